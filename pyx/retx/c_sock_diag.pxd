# sock_diag(7) requests and answers for a TCP socket: struct inet_diag_msg and tcp_info of linux/inet_diag.h
# and linux/tcp.h at their offsets, every read inside the message.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_posix cimport ntohl, ntohs

cdef enum:
    NL_HEADER = 16              # bytes of struct nlmsghdr: length, type, flags, sequence, port
    NL_ERROR = 2
    NL_DONE = 3
    DIAG = 20                   # SOCK_DIAG_BY_FAMILY
    DIAG_BODY = 72              # bytes of struct inet_diag_msg; attributes follow
    DIAG_REQUEST = 72           # bytes of a request: nlmsghdr and struct inet_diag_req_v2
    ATTR_INFO = 2               # INET_DIAG_INFO: struct tcp_info
    ATTR_PROTOCOL = 10
    F_REQUEST = 1
    F_DUMP = 0x300
    INET = 2
    INET6 = 10
    LISTEN = 10
    TIME_WAIT = 6
    LIVE = 0xBB6                # states with a socket that sends: not syn_recv, time_wait, listen, new_syn_recv

cdef struct Sample:             # one look at one socket
    uint64_t key[5]             # addresses (IPv4: the number), ports and version: see `diag_key`
    uint64_t cookie
    uint64_t bytes
    uint32_t sent
    uint32_t retrans
    uint32_t dsack
    uint32_t rtt                # µs, as the next two
    uint32_t rtt_var
    uint32_t rtt_min
    uint32_t cwnd
    uint32_t uid
    uint32_t flow               # request: flow + 1
    uint16_t timeouts
    uint8_t state
    uint8_t mapped
    uint8_t kind
    uint8_t alone               # it has let go of its other end
    uint8_t timed_out           # retransmission time-outs in a row
    uint8_t heard               # a segment of the other end has come


cdef inline uint32_t diag_u32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v


cdef inline uint64_t diag_u64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v


cdef inline bint diag_is_mapped(const uint8_t* a) noexcept nogil:
    """::ffff:a.b.c.d"""
    return diag_u64(a) == 0 and diag_u32(a + 8) == ntohl(0xFFFF)


cdef inline bint diag_key(uint64_t* key, int family, const uint8_t* src, const uint8_t* dst,
                          uint32_t sport, uint32_t dport) noexcept nogil:
    """The key of a flow; true when its IPv4 addresses are those of an IPv6 socket."""
    cdef bint mapped = family == INET6 and diag_is_mapped(src) and diag_is_mapped(dst)
    if mapped:
        src += 12
        dst += 12
        family = INET
    if family == INET6:
        memcpy(key, src, 16)
        memcpy(key + 2, dst, 16)
    else:
        key[0], key[1] = ntohl(diag_u32(src)), 0
        key[2], key[3] = ntohl(diag_u32(dst)), 0
    key[4] = <uint64_t>(6 if family == INET6 else 4) << 32 | sport << 16 | dport
    return mapped


cdef inline bint diag_info(Sample* s, const uint8_t* info, size_t size) noexcept nogil:
    """The counters of struct tcp_info, which is shorter in older kernels."""
    cdef uint32_t data
    if size < 104:
        return False
    s.timed_out = info[2]
    s.heard = size < 144 or diag_u32(info + 140) != 0
    s.rtt, s.rtt_var = diag_u32(info + 68), diag_u32(info + 72)
    s.cwnd, s.retrans = diag_u32(info + 80), diag_u32(info + 100)
    if size >= 160:
        s.rtt_min = diag_u32(info + 148)
        if s.rtt_min == 0xFFFFFFFFu:            # none measured yet
            s.rtt_min = 0
        data = diag_u32(info + 156)
        s.sent = data if data > s.retrans else s.retrans
    else:
        s.sent = s.retrans
    if size >= 220:
        s.bytes, s.dsack = diag_u64(info + 200), diag_u32(info + 216)
    if size >= 242:
        memcpy(&s.timeouts, info + 240, 2)
        s.timed_out = <uint8_t>min(<uint16_t>s.timed_out, s.timeouts)  # after its end the former may be anything
    return True


cdef inline bint diag_parse(Sample* s, const uint8_t* body, size_t size) noexcept nogil:
    """A socket out of the body of a message; false when it is none of TCP with counters.

    A socket without a remote end is disconnected and has lost its counters (failed `connect`, abort): only
    its cookie identifies it then.
    """
    cdef uint16_t length, type, sport, dport
    cdef size_t at = DIAG_BODY
    cdef bint found = False
    if size < DIAG_BODY or (body[0] != INET and body[0] != INET6):
        return False
    memset(s, 0, sizeof(Sample))
    s.state = body[1]
    if s.state == LISTEN or s.state == TIME_WAIT:
        return False
    memcpy(&sport, body + 4, 2)
    memcpy(&dport, body + 6, 2)
    s.mapped = diag_key(s.key, body[0], body + 8, body + 24, ntohs(sport), ntohs(dport))
    s.alone = dport == 0
    s.cookie, s.uid = diag_u64(body + 44), diag_u32(body + 64)
    while at + 4 <= size:
        memcpy(&length, body + at, 2)
        memcpy(&type, body + at + 2, 2)
        if length < 4 or length > size - at:
            return False
        if type == ATTR_INFO:
            found = diag_info(s, body + at + 4, length - 4)
        elif type == ATTR_PROTOCOL and length > 4 and body[at + 4] != 6:
            return False
        at += (length + 3) & ~3
    return found


cdef inline void diag_request(uint8_t* out, uint32_t seq, int family, const uint64_t* key) noexcept nogil:
    """A request of DIAG_REQUEST bytes: for the socket of ``key``, or (NULL) for all that live."""
    cdef uint32_t length = DIAG_REQUEST, states = LIVE, address
    cdef uint16_t type = DIAG, flags = F_REQUEST, port
    memset(out, 0, DIAG_REQUEST)
    if key == NULL:
        flags |= F_DUMP
    memcpy(out, &length, 4)
    memcpy(out + 4, &type, 2)
    memcpy(out + 6, &flags, 2)
    memcpy(out + 8, &seq, 4)
    out[16], out[17], out[18] = <uint8_t>family, 6, 1 << (ATTR_INFO - 1)
    memcpy(out + 20, &states, 4)
    if key != NULL:
        port = ntohs(<uint16_t>(key[4] >> 16 & 0xFFFF))
        memcpy(out + 24, &port, 2)
        port = ntohs(<uint16_t>(key[4] & 0xFFFF))
        memcpy(out + 26, &port, 2)
        if family == INET6:
            memcpy(out + 28, key, 16)
            memcpy(out + 44, key + 2, 16)
        else:
            address = ntohl(<uint32_t>key[0])
            memcpy(out + 28, &address, 4)
            address = ntohl(<uint32_t>key[2])
            memcpy(out + 44, &address, 4)
        memset(out + 64, 255, 8)        # whatever cookie it has
