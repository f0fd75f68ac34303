# Packets that an end sent during a replay: their headers, kept; their payload is zero bytes and is made again.
# A packet socket puts a virtio_net_hdr before each frame: with it a packet of several segments passes as one, and its
# checksum is left to the device, as between containers.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_wire cimport be16, be32

cdef enum:
    OFFLOADS = 24           # bytes of virtio_net_hdr and Ethernet header
    HEAD_ROOM = 128         # these, IPv6 header 40, TCP header 60
    TCP = 6
    NEEDS_CSUM = 1          # of the flags of virtio_net_hdr
    GSO_TCP4 = 1            # its gso_type
    GSO_TCP6 = 4
    FIN = 1                 # flags of TCP
    PSH = 8
    CWR = 0x80

ctypedef struct Packet:
    int64_t at              # ns after the start of the replay
    uint32_t length         # virtio_net_hdr and frame
    uint32_t head           # virtio_net_hdr and all headers
    uint8_t bytes[HEAD_ROOM]


cdef inline uint32_t tcp_head(const uint8_t* p, uint32_t n) noexcept nogil:
    """Bytes of the IP and TCP headers of a packet; 0: it is not TCP, is a fragment, or is cut."""
    cdef uint32_t ip, tcp
    if n >= 40 and p[0] >> 4 == 4:
        ip = (p[0] & 15) << 2
        if ip < 20 or p[9] != TCP or be16(p + 6) & 0x3FFF:
            return 0
    elif n >= 60 and p[0] >> 4 == 6 and p[6] == TCP:
        ip = 40
    else:
        return 0
    if n < ip + 20:
        return 0
    tcp = (p[ip + 12] >> 4) << 2
    return ip + tcp if tcp >= 20 and ip + tcp <= n and ip + tcp <= HEAD_ROOM - OFFLOADS else 0


cdef inline void mark_congestion(uint8_t* p) noexcept nogil:
    """Set the ECN bits of the IP header to CE; the checksum of IPv4 stays right (RFC 1624)."""
    cdef uint32_t before
    if p[0] >> 4 == 6:
        p[1] |= 0x30
        return
    before = be16(p)
    p[1] |= 3
    patch_checksum(p, before, be16(p))


cdef inline void patch_checksum(uint8_t* p, uint32_t before, uint32_t after) noexcept nogil:
    """Mend the checksum of an IPv4 header in which one 16-bit word has changed (RFC 1624)."""
    cdef uint32_t total = (<uint32_t>(~be16(p + 10)) & 0xFFFF) + (~before & 0xFFFF) + after
    total = (total & 0xFFFF) + (total >> 16)
    total = ~(total + (total >> 16)) & 0xFFFF
    p[10], p[11] = <uint8_t>(total >> 8), <uint8_t>total


cdef inline void put_be16(uint8_t* p, uint32_t value) noexcept nogil:
    p[0], p[1] = <uint8_t>(value >> 8), <uint8_t>value


cdef inline void put_be32(uint8_t* p, uint32_t value) noexcept nogil:
    put_be16(p, value >> 16)
    put_be16(p + 2, value)


cdef inline uint32_t segment_size(const Packet* p) noexcept nogil:
    """Payload of each segment of a packet but the last; 0: it has one."""
    cdef uint16_t gso = 0
    if p.bytes[1]:
        memcpy(&gso, p.bytes + 4, 2)
    return gso


cdef inline uint32_t segments_of(const Packet* p) noexcept nogil:
    cdef uint32_t size = segment_size(p), payload = p.length - p.head
    return (payload + size - 1) // size if size and payload else 1


cdef inline void take_segments(Packet* p, uint32_t first, uint32_t count) noexcept nogil:
    """Make ``p`` the packet that a device makes of ``count`` of its segments, from the segment ``first`` on."""
    cdef uint32_t size = segment_size(p), payload = p.length - p.head, begin, end, ip, at, before
    cdef uint8_t* h = p.bytes + OFFLOADS
    if size == 0 or first >= segments_of(p):
        return
    begin = first * size
    end = payload if count >= segments_of(p) - first else (first + count) * size
    ip = 40 if h[0] >> 4 == 6 else (h[0] & 15) << 2
    if end < payload:
        h[ip + 13] &= ~<uint8_t>(FIN | PSH)
    if begin:
        h[ip + 13] &= ~<uint8_t>CWR
    if end - begin <= size:
        p.bytes[1] = 0
        memset(p.bytes + 4, 0, 2)
    put_be32(h + ip + 4, be32(h + ip + 4) + begin)
    at = 4 if h[0] >> 4 == 6 else 2     # of the length
    before = be16(h + at)
    put_be16(h + at, before - payload + end - begin)
    if at == 2:
        patch_checksum(h, before, be16(h + at))
        before = be16(h + 4)
        put_be16(h + 4, before + first)
        patch_checksum(h, before, be16(h + 4))
    p.length = p.head + end - begin


cdef inline bint join_packet(Packet* p, const Packet* next) noexcept nogil:
    """Make ``p`` the packet that TCP makes of both while a call holds the socket (tcp_add_backlog of Linux).

    It has the payload of both and the later acknowledgement.  False: they do not fit, and nothing is changed.
    """
    cdef uint32_t ip, size = p.length - p.head, more = next.length - next.head, at, before
    cdef uint16_t gso, other
    cdef uint8_t* h = p.bytes + OFFLOADS
    cdef const uint8_t* n = next.bytes + OFFLOADS
    if p.head != next.head or p.length + more - OFFLOADS > 0xFFFF:
        return False
    if size + more == 0:
        p[0] = next[0]
        return True
    if not p.bytes[0] & next.bytes[0] & NEEDS_CSUM:
        return False
    ip = 40 if h[0] >> 4 == 6 else (h[0] & 15) << 2
    memcpy(&gso, p.bytes + 4, 2)
    memcpy(&other, next.bytes + 4, 2)
    gso = max(gso if gso else <uint16_t>size, other if other else <uint16_t>more)
    p.bytes[1] = GSO_TCP6 if h[0] >> 4 == 6 else GSO_TCP4
    memcpy(p.bytes + 4, &gso, 2)
    at = 4 if h[0] >> 4 == 6 else 2     # of the length
    before = be16(h + at)
    put_be16(h + at, before + more)
    if at == 2:
        patch_checksum(h, before, be16(h + at))
    if <uint32_t>(be32(n + ip + 8) - be32(h + ip + 8)) < <uint32_t>0x80000000:
        memcpy(h + ip + 8, n + ip + 8, 4)       # acknowledgement
        memcpy(h + ip + 14, n + ip + 14, 2)     # window
    h[ip + 13] |= n[ip + 13]
    p.length += more
    return True
