"""TCP headers from rings of packet sockets, with all that a digest or a replay needs."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_pcap cimport Frame, MORE
from c_ring cimport ring_next
from c_wire cimport be16, be32
from c_link_types cimport LINKTYPE_EN10MB, LINKTYPE_LINUX_SLL
from confluo_tools.core.kernel.ring cimport Ring
cimport cython

cdef enum:
    TCP = 6
    IP4 = 0x0800
    IP6 = 0x86DD


@cython.final
cdef class HeaderReader:
    """Reads TCP packets from ``rings``."""
    cdef list rings
    cdef readonly uint64_t packets

    def __cinit__(self, list rings not None):
        self.rings = [<Ring?>ring for ring in rings]

    def read(self, int most=1 << 16):
        """Packets that the rings hold, about ``most`` at a time, in the order of time: tuples

        (time, interface, source, destination (4 or 16 bytes), source port, destination port, IP identification, ECN,
        seq, ack, payload bytes, flags, window, SACK edges, tsval, tsecr, MSS, window scale (-1: none), SACK permitted).
        """
        cdef Frame f
        cdef list out = []
        cdef Ring ring
        for ring in self.rings:
            while len(out) < most and ring_next(&ring.r, &f) != MORE:
                packet = _parse(&f)
                if packet is not None:
                    out.append(packet)
        self.packets += <uint64_t>len(out)
        out.sort(key=_time)
        return out


def _time(packet):
    return packet[0]


cdef object _parse(const Frame* f):
    cdef const uint8_t* p = f.data
    cdef size_t left = f.cap
    cdef uint32_t kind = 0
    if f.link == LINKTYPE_EN10MB:
        if left < 14:
            return None
        kind = be16(p + 12)
        p += 14
        left -= 14
        if kind == 0x8100 and left >= 4:
            kind = be16(p + 2)
            p += 4
            left -= 4
    elif f.link == LINKTYPE_LINUX_SLL:
        if left < 16:
            return None
        kind = be16(p + 14)
        p += 16
        left -= 16
    elif left:
        kind = IP4 if p[0] >> 4 == 4 else IP6
    if kind == IP4:
        return _ip4(f, p, left)
    return _ip6(f, p, left) if kind == IP6 else None


cdef object _ip4(const Frame* f, const uint8_t* p, size_t left):
    cdef size_t head
    if left < 20 or p[0] >> 4 != 4 or p[9] != TCP or be16(p + 6) & 0x1FFF:
        return None
    head = (p[0] & 15) * 4
    if head < 20 or left < head + 20:
        return None
    # Packets of more than 64 KiB have length 0.
    length = be16(p + 2) if be16(p + 2) else f.len - <uint32_t>(p - f.data)
    return _tcp(f, p + head, left - head, length - head, (<const char*>p + 12)[:4], (<const char*>p + 16)[:4],
                be16(p + 4), p[1] & 3)


cdef object _ip6(const Frame* f, const uint8_t* p, size_t left):
    if left < 60 or p[0] >> 4 != 6 or p[6] != TCP:
        return None
    length = be16(p + 4) if be16(p + 4) else f.len - <uint32_t>(p - f.data) - 40
    return _tcp(f, p + 40, left - 40, length, (<const char*>p + 8)[:16], (<const char*>p + 24)[:16], 0, p[1] >> 4 & 3)


cdef object _tcp(const Frame* f, const uint8_t* p, size_t left, Py_ssize_t length, bytes src, bytes dst, ip_id, ecn):
    cdef size_t head = (p[12] >> 4) * 4, at = 20, size, k
    cdef uint32_t tsval = 0, tsecr = 0, mss = 0
    cdef int scale = -1
    cdef bint sack_ok = False
    sack = ()
    if head < 20 or head > left or length < <Py_ssize_t>head:
        return None
    while at < head and p[at]:
        if p[at] == 1:
            at += 1
            continue
        if at + 1 >= head or p[at + 1] < 2 or at + p[at + 1] > head:
            break
        size = p[at + 1]
        if p[at] == 8 and size == 10:
            tsval, tsecr = be32(p + at + 2), be32(p + at + 6)
        elif p[at] == 5 and size >= 10:
            sack = tuple([be32(p + at + 2 + 4 * k) for k in range((size - 2) // 4)])
        elif p[at] == 2 and size == 4:
            mss = be16(p + at + 2)
        elif p[at] == 3 and size == 3:
            scale = p[at + 2]
        elif p[at] == 4 and size == 2:
            sack_ok = True
        at += size
    return (f.ts, f.iface, src, dst, be16(p), be16(p + 2), ip_id, ecn, be32(p + 4), be32(p + 8), length - head,
            p[13] | (p[12] & 1) << 8, be16(p + 14), sack, tsval, tsecr, mss, scale, sack_ok)
