# Packets that an end sent during a replay: their headers, kept; their payload is zero bytes and is made again.
# A packet socket puts a virtio_net_hdr before each frame: with it a packet of several segments passes as one, and its
# checksum is left to the device, as between containers.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_wire cimport be16

cdef enum:
    OFFLOADS = 24           # bytes of virtio_net_hdr and Ethernet header
    HEAD_ROOM = 128         # these, IPv6 header 40, TCP header 60
    TCP = 6

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
    cdef uint32_t before, total
    if p[0] >> 4 == 6:
        p[1] |= 0x30
        return
    before = be16(p)
    p[1] |= 3
    total = (<uint32_t>(~be16(p + 10)) & 0xFFFF) + (~before & 0xFFFF) + be16(p)
    total = (total & 0xFFFF) + (total >> 16)
    total = ~(total + (total >> 16)) & 0xFFFF
    p[10], p[11] = <uint8_t>(total >> 8), <uint8_t>total
