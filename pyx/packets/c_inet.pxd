# IP headers, the tunnels above them, and transport headers.  Every read is checked against `end`, the captured
# bytes, and `stop`, where the IP length says that the packet ends.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_bits cimport expect
from c_wire cimport be16, be32
from c_link cimport (Link, ETH_IP, ETH_IP6, ETH_MPLS, ETH_TEB, ETH_PPP, ETH_WLAN,
                     NOTE_TRUNCATED, NOTE_MALFORMED, NOTE_FRAGMENT, NOTE_OPTIONS, NOTE_AUTH)

cdef enum:
    MAX_EXTENSIONS = 64
    ICMP = 1
    IPIP = 4
    TCP = 6
    UDP = 17
    IP6 = 41
    ROUTING = 43
    FRAGMENT = 44
    GRE = 47
    AH = 51
    ICMP6 = 58
    L2TP = 115
    SCTP = 132
    UDPLITE = 136
    MPLS_IN_IP = 137

cdef enum Tunnel:
    T_NONE
    T_GRE
    T_VXLAN
    T_GENEVE
    T_IPIP
    T_GTP
    T_ERSPAN
    T_PPPOE
    T_L2TP
    T_TEREDO
    T_MPLS_UDP

cdef struct Ip:
    const uint8_t* head         # the fixed header; NULL: missing
    uint8_t copy[40]            # copy of a truncated header, padded with zeros
    uint32_t version
    uint32_t up                 # where the header above IP starts
    uint32_t stop               # end of the packet by the IP length; may lie beyond the captured bytes
    uint32_t length
    uint32_t proto
    uint32_t offset             # of this fragment, bytes
    uint32_t options            # offset of options that switches may have written to; 0: none
    uint32_t options_end
    uint8_t flags
    uint8_t notes
    bint opaque                 # no header above IP is readable: a later fragment, or a truncated capture


cdef inline bint _fixed(Ip* ip, const uint8_t* data, uint32_t end, uint32_t at, uint32_t size) noexcept nogil:
    """Point `head` at `size` bytes.  If truncated, at a copy in which incomplete fields are zero."""
    cdef uint32_t left = end - at
    if left >= size:
        ip.head = data + at
        return True
    if size == 20:
        if left > 9:
            left &= ~<uint32_t>3            # addresses; the checksum is not checked
            if left < 12:
                left = 10
        elif left != 9 and left != 1:
            left &= ~<uint32_t>1
    elif left > 8:
        left = 24 if left >= 24 else 8
    elif left < 6:
        left &= ~<uint32_t>1
    memset(ip.copy, 0, 40)
    memcpy(ip.copy, data + at, left)
    ip.head = ip.copy
    ip.notes |= NOTE_TRUNCATED
    ip.opaque = True
    return False


cdef inline void _limit(Ip* ip, uint32_t at, uint32_t wire) noexcept nogil:
    """End of the packet; a length beyond the frame is ignored."""
    ip.stop = at + ip.length
    if ip.stop > wire:
        ip.stop = wire
        ip.notes |= NOTE_MALFORMED


cdef inline void read_ip4(Ip* ip, const uint8_t* data, uint32_t end, uint32_t wire, uint32_t at) noexcept nogil:
    cdef uint32_t size, fragment
    cdef const uint8_t* p
    cdef bint whole
    ip.notes, ip.opaque, ip.version, ip.offset, ip.flags, ip.options = 0, False, 4, 0, 0, 0
    whole = _fixed(ip, data, end, at, 20)
    p = ip.head
    size = (p[0] & 15) * 4
    ip.length = be16(p + 2)
    if ip.length == 0 and end - at >= 4:    # segmentation offload, BIG TCP: use the length of the frame
        ip.length = wire - at if wire > at else 0
    ip.proto = p[9]
    fragment = be16(p + 6)
    ip.flags = fragment >> 13
    ip.offset = (fragment & 0x1FFF) * 8
    ip.up = at + size
    _limit(ip, at, wire)
    if size < 20:
        ip.notes |= NOTE_MALFORMED
        ip.opaque = True
        ip.up = at + 20
    elif ip.length < size and end - at >= 4:
        ip.notes |= NOTE_MALFORMED
        ip.opaque = True
        ip.stop = ip.up
    if fragment & 0x3FFF:
        ip.notes |= NOTE_FRAGMENT
        if ip.offset:
            ip.opaque = True
    if size > 20:
        ip.notes |= NOTE_OPTIONS
        if ip.up <= end and ip.up <= ip.stop:
            ip.options, ip.options_end = at + 20, ip.up
    if whole and not ip.opaque and ip.proto == AH:
        _authentication(ip, data, end)


cdef inline void _authentication(Ip* ip, const uint8_t* data, uint32_t end) noexcept nogil:
    """Skip an authentication header: its payload is not encrypted."""
    cdef uint32_t size, lim = end if end < ip.stop else ip.stop
    ip.notes |= NOTE_OPTIONS | NOTE_AUTH
    if ip.up > lim or lim - ip.up < 12:
        _missing(ip, end, 12)
        return
    size = (<uint32_t>data[ip.up + 1] + 2) * 4
    ip.proto = data[ip.up]
    ip.up += size
    if ip.up > ip.stop:
        ip.notes |= NOTE_MALFORMED
        ip.opaque = True


cdef inline void _missing(Ip* ip, uint32_t end, uint32_t size) noexcept nogil:
    """Note that `size` bytes at `up` are incomplete: cut by the capture, or beyond the IP length."""
    ip.opaque = True
    if ip.up + size <= ip.stop or ip.stop > end:
        ip.notes |= NOTE_TRUNCATED
    else:
        ip.notes |= NOTE_MALFORMED


cdef inline uint32_t _jumbo(const uint8_t* data, uint32_t at, uint32_t stop) noexcept nogil:
    """The jumbo payload length in the hop-by-hop options at..stop; 0: none (RFC 2675)."""
    while at < stop:
        if data[at] == 0:
            at += 1
            continue
        if stop - at < 2:
            return 0
        if data[at] == 0xC2 and data[at + 1] == 4 and stop - at >= 6:
            return be32(data + at + 2)
        at += 2 + <uint32_t>data[at + 1]
    return 0


cdef inline void read_ip6(Ip* ip, const uint8_t* data, uint32_t end, uint32_t wire, uint32_t at) noexcept nogil:
    cdef uint32_t payload, kind, size, jumbo, lim
    cdef int _k
    cdef bint hop
    cdef uint64_t length
    ip.notes, ip.opaque, ip.version, ip.offset, ip.flags, ip.options = 0, False, 6, 0, 0, 0
    if not _fixed(ip, data, end, at, 40):
        ip.length = 40 + <uint32_t>be16(ip.head + 4) if end - at >= 6 else 0
        ip.proto = ip.head[6]
        ip.up = ip.stop = end
        return
    payload = be16(ip.head + 4)
    kind = ip.head[6]
    ip.up = at + 40
    ip.length = 40 + payload
    if payload == 0:
        jumbo = 0
        if kind == 0 and end - ip.up >= 8:
            size = (<uint32_t>data[ip.up + 1] + 1) * 8
            jumbo = _jumbo(data, ip.up + 2, ip.up + size if size <= end - ip.up else end)
        length = <uint64_t>jumbo + 40
        if jumbo == 0 and kind != 59 and wire > at and wire - at > 65535:
            length = wire - at              # BIG TCP without the option
        if length > 0x7FFFFFFF - at:
            ip.notes |= NOTE_MALFORMED
            length = 40
        ip.length = <uint32_t>length
    _limit(ip, at, wire)
    lim = end if end < ip.stop else ip.stop
    for _k in range(MAX_EXTENSIONS):
        if not (kind == 0 or kind == ROUTING or kind == 60 or kind == FRAGMENT or kind == AH
                or kind == 139 or kind == 140):
            break
        ip.notes |= NOTE_OPTIONS | NOTE_AUTH if kind == AH else NOTE_OPTIONS
        if ip.up > lim or lim - ip.up < 8:
            _missing(ip, end, 8)
            break
        if kind == FRAGMENT:
            size = be16(data + ip.up + 2)
            ip.offset = size & 0xFFF8
            if size & 0xFFF9:
                ip.notes |= NOTE_FRAGMENT
            ip.flags = size & 1
            kind = data[ip.up]
            ip.up += 8
            if ip.offset:
                ip.opaque = True
                break
            continue
        size = (<uint32_t>data[ip.up + 1] + 2) * 4 if kind == AH else (<uint32_t>data[ip.up + 1] + 1) * 8
        hop = kind == 0
        kind = data[ip.up]
        ip.up += size
        if ip.up > ip.stop:
            ip.notes |= NOTE_MALFORMED
            ip.opaque = True
            break
        if ip.up > end:
            ip.notes |= NOTE_TRUNCATED
            ip.opaque = True
            break
        if hop:
            ip.options, ip.options_end = ip.up - size + 2, ip.up
    ip.proto = kind


cdef struct Shell:
    # Fields of a tunnel header.
    uint32_t kind               # Tunnel
    uint32_t vni
    uint32_t at                 # start of the inner header
    uint32_t type               # type of the inner header, as in walk_tags; 0: unknown


cdef inline void _gre(Shell* s, const uint8_t* p, uint32_t left, uint32_t at) noexcept nogil:
    """RFC 2784, 2890 (key, sequence), 2637 (PPTP), ERSPAN types I to III."""
    cdef uint32_t flags, type, size = 4
    if left < 4:
        return
    flags, type = be16(p), be16(p + 2)
    if flags & 7 > 1:
        return
    s.kind = T_GRE
    if flags & 0xC000:                      # checksum or routing: both fields are present
        size += 4
    if flags & 0x2000:
        if left < size + 4:
            return
        s.vni = be32(p + size)
        size += 4
    if flags & 0x1000:
        size += 4
    if flags & 0x0080 and flags & 7 == 1:   # PPTP acknowledgement
        size += 4
    if flags & 0x4000:                      # source routes: deprecated, not followed
        return
    if type == 0x88BE:
        s.kind = T_ERSPAN
        if flags & 0x1000:                  # with a sequence number: type II
            if left < size + 8:
                return
            s.vni = be16(p + size + 2) & 0x3FF
            size += 8
        type = ETH_TEB
    elif type == 0x22EB:
        s.kind = T_ERSPAN
        if left < size + 12:
            return
        s.vni = be16(p + size + 2) & 0x3FF
        size += 20 if p[size + 11] & 1 else 12
        type = ETH_TEB
    elif type == 0x880B:
        type = ETH_PPP
    elif 0x8200 <= type <= 0x82F0 and type & 15 == 0 or 0x9000 <= type <= 0x90F0 and type & 15 == 0:
        type = ETH_WLAN                     # access points of Aruba
    if size <= left:
        s.at, s.type = at + size, type


cdef inline void _gtp(Shell* s, const uint8_t* p, uint32_t left, uint32_t at) noexcept nogil:
    """GTP-U version 1 (3GPP TS 29.281), the message that carries a packet."""
    cdef uint32_t size = 8
    if left < 8 or p[0] & 0xF0 != 0x30 or p[1] != 255:
        return
    s.kind, s.vni = T_GTP, be32(p + 4)
    if p[0] & 7:
        size = 12
        if left < 12:
            return
        if p[0] & 4:
            while p[size - 1]:              # extension headers: length in words, next type last
                if left < size + 4 or p[size] == 0 or left < size + p[size] * 4:
                    return
                size += p[size] * 4
    if size < left:
        s.at = at + size
        s.type = ETH_IP if p[size] >> 4 == 4 else ETH_IP6 if p[size] >> 4 == 6 else 0


cdef inline void _l2tp(Shell* s, const uint8_t* p, uint32_t left, uint32_t at) noexcept nogil:
    """L2TP over UDP (RFC 2661): a data message of version 2.  Version 3 does not say what it carries."""
    cdef uint32_t flags = be16(p), size = 2
    if flags & 0x8000 or flags & 15 != 2 and flags & 15 != 3:
        return
    if flags & 15 == 3:
        s.kind, s.vni = T_L2TP, be32(p + 4)
        return
    if flags & 0x4000:
        size += 2
    if left < size + 4:
        return
    s.kind, s.vni = T_L2TP, be32(p + size)
    size += 4
    if flags & 0x0800:
        size += 4
    if flags & 0x0200:                      # an offset: padding follows its length
        if left < size + 2:
            return
        size += 2 + <uint32_t>be16(p + size)
    if size < left:
        s.at, s.type = at + size, ETH_PPP


cdef inline void _teredo(Shell* s, const uint8_t* p, uint32_t left, uint32_t at) noexcept nogil:
    """Teredo (RFC 4380): authentication and origin may come before the IPv6 header."""
    cdef uint32_t size = 0
    if p[0] == 0 and p[1] == 1:             # authentication: two lengths, nonce, confirmation
        size = 13 + <uint32_t>p[2] + p[3]
    if left >= size + 8 and p[size] == 0 and p[size + 1] == 0:
        size += 8
    if size + 40 <= left and p[size] >> 4 == 6:
        s.kind, s.at, s.type = T_TEREDO, at + size, ETH_IP6


cdef inline bint is_tunnel_port(uint32_t source, uint32_t port) noexcept nogil:
    """Of UDP: VXLAN, VXLAN-GPE, GENEVE, GTP-U, MPLS by destination; L2TP, Teredo by either port."""
    return (port == 4789 or port == 8472 or port == 4790 or port == 6081 or port == 2152 or port == 6635
            or port == 1701 or source == 1701 or port == 3544 or source == 3544)


cdef inline void _udp_tunnel(Shell* s, const uint8_t* p, uint32_t left, uint32_t at) noexcept nogil:
    """p: the UDP header.  Checks the ports and the fixed bits of the tunnel header."""
    cdef uint32_t source, port, size
    if left < 16:
        return
    source, port = be16(p), be16(p + 2)
    p += 8
    left -= 8
    at += 8
    if port == 4789 or port == 8472:
        if p[0] & 0x08:
            s.kind, s.vni, s.at, s.type = T_VXLAN, be32(p + 4) >> 8, at + 8, ETH_TEB
    elif port == 4790:                      # VXLAN-GPE
        if p[0] & 0x08:
            s.kind, s.vni, s.at = T_VXLAN, be32(p + 4) >> 8, at + 8
            s.type = ETH_TEB
            if p[0] & 0x04:
                s.type = ETH_IP if p[3] == 1 else ETH_IP6 if p[3] == 2 else ETH_TEB if p[3] == 3 else 0
    elif port == 6081:
        if p[0] & 0xC0 == 0:
            size = 8 + (p[0] & 0x3F) * 4
            s.kind, s.vni = T_GENEVE, be32(p + 4) >> 8
            if size <= left:
                s.at, s.type = at + size, be16(p + 2)
    elif port == 2152:
        _gtp(s, p, left, at)
    elif port == 6635:                      # RFC 7510
        s.kind, s.at, s.type = T_MPLS_UDP, at, ETH_MPLS
    elif port == 1701 or source == 1701:
        _l2tp(s, p, left, at)
    elif port == 3544 or source == 3544:
        _teredo(s, p, left, at)


cdef inline bint find_shell(Shell* s, const Ip* ip, const uint8_t* data, uint32_t end) noexcept nogil:
    """Whether a tunnel header follows this IP header."""
    cdef uint32_t lim = end if end < ip.stop else ip.stop
    cdef uint32_t left
    s.kind, s.vni, s.at, s.type = T_NONE, 0, 0, 0
    if ip.opaque or ip.up > lim:
        return False
    left = lim - ip.up
    if ip.proto == UDP:
        _udp_tunnel(s, data + ip.up, left, ip.up)
    elif ip.proto == GRE:
        _gre(s, data + ip.up, left, ip.up)
    elif ip.proto == IPIP:
        s.kind, s.at, s.type = T_IPIP, ip.up, ETH_IP
    elif ip.proto == IP6:
        s.kind, s.at, s.type = T_IPIP, ip.up, ETH_IP6
    elif ip.proto == L2TP and left >= 4 and be32(data + ip.up):     # version 3: what it carries is not written
        s.kind, s.vni = T_L2TP, be32(data + ip.up)
    elif ip.proto == MPLS_IN_IP:
        s.kind, s.at, s.type = T_IPIP, ip.up, ETH_MPLS
    return s.kind != T_NONE


cdef inline uint32_t flow_hash(uint32_t src, uint32_t dst, uint32_t sport, uint32_t dport,
                               uint32_t proto) noexcept nogil:
    """Hash of a five-tuple.  src and dst: IPv4 addresses, or fold6 of IPv6 addresses."""
    return pair_hash(<uint64_t>src << 16 | sport, <uint64_t>dst << 16 | dport, proto)


cdef inline uint32_t pair_hash(uint64_t a, uint64_t b, uint32_t kind) noexcept nogil:
    """Hash of two endpoints of 48 bits: equal in both directions, never 0.

    Stored in logs and used for sampling: it must not change.  tests/packets/test_packet.py has a Python version.
    """
    cdef uint64_t low = a if a < b else b, high = b if a < b else a
    cdef uint64_t h = low * <uint64_t>0x9E3779B97F4A7C15u
    h ^= h >> 32
    h += high | <uint64_t>kind << 48
    h *= <uint64_t>0xD6E8FEB86659FD93u
    h ^= h >> 32
    h *= <uint64_t>0xD6E8FEB86659FD93u
    h >>= 32
    return <uint32_t>h if h else 1
