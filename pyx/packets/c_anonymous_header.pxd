# Rewrite single headers and their options in place.  Callers have checked that all `size` bytes are there.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_bits cimport bswap16, bswap32, bswap64
from c_wire cimport be16, be32, be48
from c_crypto_pan cimport Pan, hide4, hide6, hide_mac, hide_port
from c_checksum cimport sum_bytes

cdef enum:
    NO_OPERATION = 1            # of IPv4 and TCP; of IPv6 it is the padding of several bytes


cdef inline void hide_address4(Pan* pan, uint8_t* p) noexcept nogil:
    cdef uint32_t address = bswap32(hide4(pan, be32(p)))
    memcpy(p, &address, 4)


cdef inline void hide_mac_at(Pan* pan, uint8_t* p) noexcept nogil:
    cdef uint64_t mac = bswap64(hide_mac(pan, be48(p)) << 16)
    memcpy(p, &mac, 6)


cdef inline void hide_port_at(const Pan* pan, uint8_t* p) noexcept nogil:
    cdef uint16_t port = bswap16(hide_port(pan, be16(p)))
    memcpy(p, &port, 2)


cdef inline uint32_t hide_arp(Pan* pan, uint8_t* p, uint32_t left) noexcept nogil:
    """Returns the bytes that may be shown.  0.0.0.0, which asks for an address, stays."""
    cdef uint32_t hardware, at, _i
    if left < 8:
        return left
    hardware = p[4]
    if be16(p + 2) != 0x0800 or p[5] != 4 or left < 16 + 2 * hardware:
        return 8
    at = 8
    for _i in range(2):
        if hardware == 6:
            hide_mac_at(pan, p + at)
        else:
            memset(p + at, 0, hardware)
        at += hardware
        if be32(p + at):
            hide_address4(pan, p + at)
        at += 4
    return at


cdef inline uint32_t _option(uint8_t* p, uint32_t size) noexcept nogil:
    """Bytes of the option of IPv4 or TCP at p.  0: it does not fit into size; all that is left becomes no operation."""
    cdef uint32_t length
    if p[0] <= NO_OPERATION:
        return 1
    length = p[1] if size >= 2 else 0
    if 2 <= length <= size:
        return length
    memset(p, NO_OPERATION, size)
    return 0


cdef inline void hide_ip4_options(Pan* pan, uint8_t* p, uint32_t size) noexcept nogil:
    """Routes keep their addresses, rewritten; other options but the router alert become no operation."""
    cdef uint32_t at = 0, length, slot
    while at < size:
        length = _option(p + at, size - at)
        if length == 0:
            return
        if p[at] == 7 or p[at] == 131 or p[at] == 137:      # the route so far, a loose one, a strict one
            slot = at + 3
            while slot + 4 <= at + length:
                if be32(p + slot):
                    hide_address4(pan, p + slot)
                slot += 4
            if slot < at + length:
                memset(p + slot, 0, at + length - slot)
        elif length > 1 and (p[at] != 148 or length != 4):
            memset(p + at, NO_OPERATION, length)
        at += length


cdef inline bint _is_plain_option(uint32_t kind, uint32_t length) noexcept nogil:
    """Of TCP: segment size, window scale, SACK, time stamps, with their only lengths."""
    return (kind == 2 and length == 4 or kind == 3 and length == 3 or kind == 4 and length == 2
            or kind == 5 and length & 7 == 2 or kind == 8 and length == 10)


cdef inline void hide_tcp_options(uint8_t* p, uint32_t size) noexcept nogil:
    """Options that say nothing about hosts stay; others, such as those of Multipath TCP, become no operation."""
    cdef uint32_t at = 0, length
    while at < size:
        length = _option(p + at, size - at)
        if length == 0:
            return
        if length > 1 and not _is_plain_option(p[at], length):
            memset(p + at, NO_OPERATION, length)
        at += length


cdef inline void _ip6_options(Pan* pan, uint8_t* p, uint32_t size) noexcept nogil:
    """Of a hop-by-hop or a destination header: router alert, jumbo length and home address stay."""
    cdef uint32_t at = 0, length
    while at < size:
        if p[at] == 0:
            at += 1
            continue
        if size - at < 2 or p[at + 1] > size - at - 2:
            memset(p + at, 0, size - at)
            return
        length = p[at + 1]
        if p[at] == 0xC9 and length == 16:
            hide6(pan, p + at + 2)
        elif not (p[at] == 5 and length == 2 or p[at] == 0xC2 and length == 4):
            p[at] = NO_OPERATION
            memset(p + at + 2, 0, length)
        at += 2 + length


cdef inline uint8_t* _route(Pan* pan, uint8_t* p, uint32_t size, uint32_t* last) noexcept nogil:
    """A routing header: types 0 and 2 (RFC 2460, 6275) and segment routing (RFC 8754).

    Returns where its last address is, NULL: the packet is there; `last`: the sum of this address before.
    """
    cdef uint32_t n = (size - 8) >> 4, i
    cdef uint8_t* final = NULL
    if not (p[2] == 0 or p[2] == 2 or p[2] == 4) or not n:
        memset(p + 4, 0, size - 4)
        return NULL
    if p[2] == 4 and <uint32_t>p[4] + 1 < n:
        n = p[4] + 1
    if p[3]:
        final = p + 8 if p[2] == 4 else p + 8 + 16 * (n - 1)
        last[0] = sum_bytes(final, 16)
    for i in range(n):
        hide6(pan, p + 8 + 16 * i)
    memset(p + 8 + 16 * n, 0, size - 8 - 16 * n)
    return final


cdef inline uint32_t hide_ip6_headers(Pan* pan, uint8_t* data, uint32_t end, uint32_t at, uint32_t up,
                                      uint8_t** target, uint32_t* before) noexcept nogil:
    """The extension headers of the IPv6 packet at `at`, up to `up`; returns how far they are complete.

    `target`: set to where the packet goes in the end; `before`: its address is added to this sum.
    """
    cdef uint32_t kind = data[at + 6], size, last = 0
    cdef uint8_t* p
    cdef uint8_t* final
    at += 40
    while at < up:
        if end < at + 8:
            return at if at < end else end
        p = data + at
        size = 8 if kind == 44 else (<uint32_t>p[1] + 2) * 4 if kind == 51 else (<uint32_t>p[1] + 1) * 8
        if size > end - at:
            return at
        if kind == 0 or kind == 60:
            _ip6_options(pan, p + 2, size - 2)
        elif kind == 43:
            final = _route(pan, p, size, &last)
            if final != NULL:
                before[0] += last
                target[0] = final
                last = 0
        elif kind == 51:
            if size > 12:
                memset(p + 12, 0, size - 12)
        elif kind != 44:
            memset(p + 2, 0, size - 2)
        kind = p[0]
        at += size
    return at


cdef inline void hide_teredo(uint8_t* p, uint32_t size) noexcept nogil:
    """What comes before the IPv6 header: authentication without its data, the origin without its address."""
    cdef uint32_t at = 0
    if size >= 4 and p[0] == 0 and p[1] == 1:
        at = 13 + <uint32_t>p[2] + p[3]
        if at > size:
            at = size
        memset(p + 4, 0, at - 4)
    if at < size:
        memset(p + at, 0, size - at)


cdef inline void hide_l2tp(uint8_t* p, uint32_t size) noexcept nogil:
    """The padding of an L2TP header of `size` bytes, which may be of any content."""
    cdef uint32_t flags = be16(p), at = 8
    if flags & 0x0200:
        if flags & 0x4000:
            at += 2
        if flags & 0x0800:
            at += 4
        if at < size:
            memset(p + at, 0, size - at)


cdef inline uint32_t hide_discovery(Pan* pan, uint8_t* p, uint32_t left) noexcept nogil:
    """Neighbour discovery (RFC 4861); returns the bytes that may be shown."""
    cdef uint32_t at = 8, size
    if p[0] == 134:
        at = 16
    elif p[0] == 135 or p[0] == 136:
        at = 24
    elif p[0] == 137:
        at = 40
    if left < at:
        return 8
    if at >= 24:
        hide6(pan, p + 8)
    if at == 40:
        hide6(pan, p + 24)
    while left - at >= 8:
        size = <uint32_t>p[at + 1] * 8
        if size == 0 or size > left - at:
            return at
        if (p[at] == 1 or p[at] == 2) and size == 8:
            hide_mac_at(pan, p + at + 2)
        elif p[at] == 3 and size == 32:
            hide6(pan, p + at + 16)
            _clear_after(p + at + 16, p[at + 2])
        elif p[at] != 5 or size != 8:
            return at
        at += size
    return at


cdef inline void _clear_after(uint8_t* p, uint32_t bits) noexcept nogil:
    """Keep the first bits of an IPv6 address."""
    cdef uint32_t i
    for i in range(16):
        if bits < 8 * i + 8:
            p[i] &= <uint8_t>(0xFF00 >> (bits - 8 * i)) if bits > 8 * i else 0
