# Netlink messages, many in one system call, each in its part of a buffer.

from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memset
from c_posix cimport MSG_DONTWAIT, MSG_TRUNC, iovec, mmsghdr, recvmmsg
from c_sock_diag cimport NL_HEADER, diag_u32

cdef extern from "<linux/netlink.h>" nogil:
    cdef struct sockaddr_nl:
        uint16_t nl_family
        uint32_t nl_pid
        uint32_t nl_groups

cdef enum:
    BATCH = 64                  # messages in one system call
    MESSAGE = 2048              # bytes of one

cdef struct Netlink:            # where a system call puts what
    mmsghdr message[BATCH]
    iovec part[BATCH]
    sockaddr_nl sender[BATCH]


cdef inline int netlink_receive(Netlink* n, uint8_t* buffer, int fd) noexcept nogil:
    """How many messages were there, message i MESSAGE * i bytes into ``buffer``; -errno when there were none."""
    cdef int i, got
    for i in range(BATCH):
        memset(&n.message[i], 0, sizeof(mmsghdr))
        n.part[i].iov_base, n.part[i].iov_len = buffer + <size_t>i * MESSAGE, MESSAGE
        n.message[i].msg_hdr.msg_iov, n.message[i].msg_hdr.msg_iovlen = &n.part[i], 1
        n.message[i].msg_hdr.msg_name = &n.sender[i]
        n.message[i].msg_hdr.msg_namelen = sizeof(sockaddr_nl)
        n.sender[i].nl_pid = 0
    got = recvmmsg(fd, n.message, BATCH, MSG_DONTWAIT, NULL)
    return -errno if got < 0 else got


cdef inline size_t netlink_length(const Netlink* n, const uint8_t* buffer, int i) noexcept nogil:
    """Bytes of message i, 0 when it was cut off, is malformed, or did not come from the kernel."""
    cdef const mmsghdr* m = &n.message[i]
    cdef size_t length = diag_u32(buffer + <size_t>i * MESSAGE) if m.msg_len >= NL_HEADER else 0
    if n.sender[i].nl_pid or m.msg_hdr.msg_flags & MSG_TRUNC or length < NL_HEADER or length > m.msg_len:
        return 0
    return length
