# Probes that look like a flow's packets up to the checksum, and the quotes of them that come back in ICMP errors.
#
# Switches hash the fields of the flow: addresses, protocol, ports, a flow label of 0.  What distinguishes probes
# is in fields that are not hashed: the hop in the IP ID (IPv4) and, for both, in the lowest 4 bits of the TCP
# sequence number; the other 28 bits are a secret of the flow.  Sequence numbers are within the 8 bytes above IP
# that the meanest router quotes; the window, the other candidate, is not.  No host takes the probes for data: their
# TCP checksum is wrong.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_bits cimport bswap16, bswap32
from c_checksum cimport fold_sum, sum_bytes
from c_wire cimport be16, be32

cdef enum:
    PROBE4 = 40                 # bytes of a probe
    PROBE6 = 60
    MAX_HOPS = 15
    TCP = 6

cdef enum Kind:
    NOT_OURS                    # no error, or one that quotes no TCP packet
    BAD                         # cut short, or a wrong checksum
    EXCEEDED
    UNREACHABLE

cdef struct Tuple:              # as in the packet: network byte order; IPv4 addresses in the first 4 bytes
    uint8_t src[16]
    uint8_t dst[16]
    uint16_t sport
    uint16_t dport
    uint8_t version

cdef struct Quote:
    Tuple flow
    uint8_t sender[16]          # of the ICMP error
    uint32_t seq
    uint32_t id                 # of IPv4


cdef inline void put16(uint8_t* p, uint32_t v) noexcept nogil:
    cdef uint16_t w = bswap16(<uint16_t>v)
    memcpy(p, &w, 2)


cdef inline void fill(Tuple* t, int version, const char* src, const char* dst, uint16_t sport, uint16_t dport
                      ) noexcept nogil:
    """The tuple of addresses of 4 (``version`` 4) or 16 bytes."""
    memset(t, 0, sizeof(Tuple))
    memcpy(t.src, src, 4 if version == 4 else 16)
    memcpy(t.dst, dst, 4 if version == 4 else 16)
    put16(<uint8_t*>&t.sport, sport)
    put16(<uint8_t*>&t.dport, dport)
    t.version = <uint8_t>version


cdef inline void put32(uint8_t* p, uint32_t v) noexcept nogil:
    cdef uint32_t w = bswap32(v)
    memcpy(p, &w, 4)


cdef inline uint32_t ones(const uint8_t* p, uint32_t n, uint32_t sum) noexcept nogil:
    """The Internet checksum's sum over n bytes, not yet inverted."""
    return fold_sum(<uint64_t>sum_bytes(p, n) + sum)


cdef inline void _tcp(uint8_t* p, const Tuple* t, uint32_t seq, uint32_t pseudo) noexcept nogil:
    # An ACK without data; its checksum is wrong in half of its bits.
    memset(p, 0, 20)
    memcpy(p, &t.sport, 2)
    memcpy(p + 2, &t.dport, 2)
    put32(p + 4, seq)
    p[12], p[13] = 5 << 4, 0x10
    put16(p + 14, 0x2000)
    put16(p + 16, (~ones(p, 20, pseudo) & 0xFFFF) ^ 0x5555)


cdef inline uint32_t craft(uint8_t* p, const Tuple* t, uint32_t seq, uint32_t hop) noexcept nogil:
    """Write the probe of a hop, and return its length.  The kernel fills in the IPv4 checksum."""
    cdef uint8_t tail[8]
    memset(tail, 0, 8)
    tail[5] = 20                            # the pseudo header's length and protocol
    tail[7] = TCP
    if t.version == 4:
        memset(p, 0, 20)
        p[0] = 0x45
        put16(p + 2, PROBE4)
        put16(p + 4, hop)
        p[6] = 0x40
        p[8], p[9] = <uint8_t>hop, TCP
        memcpy(p + 12, t.src, 4)
        memcpy(p + 16, t.dst, 4)
        _tcp(p + 20, t, seq, ones(tail, 8, ones(p + 12, 8, 0)))
        return PROBE4
    memset(p, 0, 40)
    p[0] = 0x60
    p[5] = 20
    p[6], p[7] = TCP, <uint8_t>hop
    memcpy(p + 8, t.src, 16)
    memcpy(p + 24, t.dst, 16)
    _tcp(p + 40, t, seq, ones(tail, 8, ones(p + 8, 32, 0)))
    return PROBE6


cdef inline Kind _quoted(Quote* q, const uint8_t* p, uint32_t n, uint32_t version) noexcept nogil:
    # What is left of a probe: its IP header and at least 8 bytes.
    cdef uint32_t head
    if n < 28 or p[0] >> 4 != version:
        return BAD
    q.flow.version = <uint8_t>version
    if version == 4:
        head = (p[0] & 15) * 4
        if head < 20 or n < head + 8:
            return BAD
        if p[9] != TCP or be16(p + 6) & 0x1FFF:
            return NOT_OURS
        memcpy(q.flow.src, p + 12, 4)
        memcpy(q.flow.dst, p + 16, 4)
        q.id = be16(p + 4)
    else:
        head = 40
        if n < 48:
            return BAD
        if p[6] != TCP:                     # ours have no extension headers
            return NOT_OURS
        memcpy(q.flow.src, p + 8, 16)
        memcpy(q.flow.dst, p + 24, 16)
        q.id = 0
    memcpy(&q.flow.sport, p + head, 2)
    memcpy(&q.flow.dport, p + head + 2, 2)
    q.seq = be32(p + head + 4)
    return EXCEEDED


cdef inline Kind read_icmp4(Quote* q, const uint8_t* p, uint32_t n) noexcept nogil:
    """An IPv4 packet of a raw ICMP socket, which has not looked at its checksum."""
    cdef uint32_t head, type
    cdef Kind kind
    memset(q, 0, sizeof(Quote))
    if n < 20:
        return BAD
    head = (p[0] & 15) * 4
    if p[0] >> 4 != 4 or head < 20 or n < head + 8:
        return BAD
    if p[9] != 1:
        return NOT_OURS
    memcpy(q.sender, p + 12, 4)
    p += head
    n -= head
    type = p[0]
    if type != 3 and type != 11:
        return NOT_OURS
    if ones(p, n, 0) != 0xFFFF:
        return BAD
    kind = _quoted(q, p + 8, n - 8, 4)
    if kind == EXCEEDED and type == 3:
        return UNREACHABLE if p[1] != 4 else NOT_OURS     # fragmentation needed: about size
    return kind if type == 3 or p[1] == 0 or kind != EXCEEDED else NOT_OURS


cdef inline Kind read_icmp6(Quote* q, const uint8_t* p, uint32_t n, const uint8_t* sender) noexcept nogil:
    """An ICMPv6 message; the kernel has checked its checksum."""
    cdef Kind kind
    memset(q, 0, sizeof(Quote))
    if n < 8:
        return BAD
    if p[0] != 1 and p[0] != 3:
        return NOT_OURS
    memcpy(q.sender, sender, 16)
    kind = _quoted(q, p + 8, n - 8, 6)
    if kind == EXCEEDED and p[0] == 1:
        return UNREACHABLE
    return kind if p[0] == 1 or p[1] == 0 or kind != EXCEEDED else NOT_OURS
