# The UDP payload of a captured frame.

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset
from c_inet cimport Ip, UDP
from c_link cimport Link, open_link
from c_packet cimport MAX_WIRE, read_ip
from c_pcap cimport Frame
from c_wire cimport be16

cdef struct Datagram:
    const uint8_t* data
    uint32_t size
    uint16_t source_port
    uint16_t port
    uint8_t source[16]          # IPv4 as ::ffff:a.b.c.d
    uint8_t destination[16]

cdef enum Payload:
    NO_DATAGRAM                 # not UDP
    WHOLE
    PARTIAL                     # a fragment, or cut by the capture


cdef inline void _from_header(uint8_t* to, const uint8_t* head, uint32_t version, bint destination) noexcept nogil:
    if version == 6:
        memcpy(to, head + (24 if destination else 8), 16)
        return
    memset(to, 0, 10)
    to[10] = to[11] = 0xFF
    memcpy(to + 12, head + (16 if destination else 12), 4)


cdef inline Payload udp_payload(const Frame* f, Datagram* d) noexcept nogil:
    """The datagram in a frame.  Of a partial one only addresses are set, and ports if it has them."""
    cdef Link k
    cdef Ip ip
    cdef uint32_t wire = f.len if f.len < MAX_WIRE else MAX_WIRE, size, left
    if wire < f.cap:
        wire = f.cap
    open_link(&k, f.data, f.cap, wire, f.link)
    if not read_ip(&ip, &k) or ip.proto != UDP:
        return NO_DATAGRAM
    d.port = d.source_port = 0
    _from_header(d.source, ip.head, ip.version, False)
    _from_header(d.destination, ip.head, ip.version, True)
    if ip.opaque or ip.up > k.end or k.end - ip.up < 8:
        return PARTIAL
    d.source_port, d.port = be16(k.data + ip.up), be16(k.data + ip.up + 2)
    size = be16(k.data + ip.up + 4)
    left = min(k.end, ip.stop) - ip.up
    d.data = k.data + ip.up + 8
    if size < 8 or size > left or ip.flags & 1:
        return PARTIAL
    d.size = size - 8
    return WHOLE
