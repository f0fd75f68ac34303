# Frames of docs/protocol.md: a u32 (bytes of the body), a u8 (kind), three zero bytes, the body.

from libc.errno cimport errno, EAGAIN, EINTR
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.unistd cimport write as c_write
from c_posix cimport POLLIN, POLLOUT, poll, pollfd

cdef enum:                              # the kinds handled here; remote/ handles the others
    FREEZE_FRAME = 2
    THAW_FRAME = 3
    FROZEN_FRAME = 66
    THAWED_FRAME = 67
    HEAD = 8                            # bytes before the body
    LONGEST = 1 << 20                   # bytes of the body of any frame
    STALL_MS = 10000                    # timeout for the rest of a frame

cdef inline uint32_t get32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v

cdef inline uint64_t get64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v

cdef inline void put_head(uint8_t* p, uint32_t size, uint8_t kind) noexcept nogil:
    memset(p, 0, HEAD)
    memcpy(p, &size, 4)
    p[4] = kind

cdef inline bint send_all(int fd, const uint8_t* p, size_t n) noexcept nogil:
    """Write all bytes to a descriptor, which may be non-blocking.  False: see errno."""
    cdef ssize_t done
    cdef pollfd one
    while n:
        done = c_write(fd, p, n)
        if done >= 0:
            p += done
            n -= <size_t>done
        elif errno == EAGAIN:
            one.fd, one.events = fd, POLLOUT
            if poll(&one, 1, STALL_MS) == 0:
                return False
        elif errno != EINTR:
            return False
    return True
