# Rewrite the addresses in a frame, and find where what is known of it ends: the rest is cut.
# What a header may carry and is not known here, such as an option, is overwritten.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from c_link_types cimport *
from c_wire cimport be16, get16
from c_link cimport (Link, MAX_ETHERNETS, ETH_IP, ETH_IP6, ETH_ARP, ETH_RARP, ETH_WLAN, open_link, walk_tags)
from c_inet cimport (Ip, Shell, ICMP, TCP, UDP, GRE, ICMP6, SCTP, UDPLITE, L2TP, T_GENEVE, T_L2TP, T_TEREDO,
                     read_ip4, read_ip6, find_shell)
from c_crypto_pan cimport Pan, hide6
from c_checksum cimport (Judgement, SUM_RIGHT, SUM_ABSENT, UDP_SUM, fold_sum, sum_bytes, judge_sum, write_sum)
from c_anonymous_header cimport (hide_address4, hide_mac_at, hide_port_at, hide_arp, hide_ip4_options,
                                 hide_ip6_headers, hide_tcp_options, hide_l2tp, hide_teredo, hide_discovery)

cdef enum:
    NOT_HIDDEN = 0xFFFFFFFF     # a link type with addresses in unknown places
    MAX_INSIDE = 8              # packets within packets
    ANY_LENGTH = 1 << 17        # a packet in an ICMP error was longer than what is there of it
    IGMP = 2
    ESP = 50


cdef struct Layer:
    # An IP packet while it is rewritten.
    Ip ip
    uint32_t end                # captured bytes
    uint32_t lim                # end, or where the packet ends
    uint32_t wire
    uint32_t before             # sums of the two addresses, which checksums above IP cover
    uint32_t after
    uint32_t depth


cdef inline uint32_t _pseudo(uint32_t addresses, uint32_t proto, uint32_t length) noexcept nogil:
    """The sum of a pseudo header."""
    return fold_sum(<uint64_t>addresses + proto + (length >> 16) + (length & 0xFFFF))


cdef inline Judgement _judge(const Layer* layer, const uint8_t* p, uint32_t length, uint32_t field,
                             uint32_t pseudo) noexcept nogil:
    """What the checksum of `length` bytes at p, the header above IP, was."""
    if layer.ip.flags & 1:                  # of all fragments together
        return SUM_ABSENT
    if layer.ip.up + length > layer.end:
        return SUM_RIGHT
    return judge_sum(p, length, field, pseudo)


cdef inline uint32_t _tcp(Pan* pan, uint8_t* data, Layer* layer) noexcept nogil:
    cdef Ip* ip = &layer.ip
    cdef uint8_t* p = data + ip.up
    cdef uint32_t left = layer.lim - ip.up, length = ip.stop - ip.up, size, cut
    cdef Judgement judged
    if left < 20:
        return ip.up
    judged = _judge(layer, p, length, 16, _pseudo(layer.before, TCP, length))
    size = (p[12] >> 4) * 4
    if size < 20 or size > left:
        cut = ip.up + 20
    else:
        hide_tcp_options(p + 20, size - 20)
        cut = layer.lim if pan.keep_payload else ip.up + size
    hide_port_at(pan, p)
    hide_port_at(pan, p + 2)
    write_sum(p, cut - ip.up, 16, _pseudo(layer.after, TCP, length), judged)
    return cut


cdef inline uint32_t _udp(Pan* pan, uint8_t* data, Layer* layer, const Shell* shell) noexcept nogil:
    cdef Ip* ip = &layer.ip
    cdef uint8_t* p = data + ip.up
    cdef uint32_t length = ip.stop - ip.up, covered = length, cut = ip.up + 8, counted
    cdef Judgement judged
    if layer.lim - ip.up < 8:
        return ip.up
    if 8 <= be16(p + 4) <= length:
        covered = be16(p + 4)
    if ip.proto == UDP:
        length = covered
    judged = SUM_ABSENT
    if be16(p + 6):
        judged = _judge(layer, p, covered, UDP_SUM, _pseudo(layer.before, ip.proto, length))
    if shell.kind:
        cut = _inside(pan, data, layer, shell, cut)
    elif pan.keep_payload:
        cut = layer.lim
    hide_port_at(pan, p)
    hide_port_at(pan, p + 2)
    counted = cut - ip.up
    if counted > covered:
        counted = covered
    write_sum(p, counted, UDP_SUM, _pseudo(layer.after, ip.proto, length), judged)
    return cut


cdef inline uint32_t _inside(Pan* pan, uint8_t* data, Layer* layer, const Shell* shell, uint32_t cut) noexcept nogil:
    """A tunnel header, and what it carries.  `cut`: where the header below it ends."""
    cdef Link k
    cdef uint8_t* p = data + layer.ip.up
    if not shell.at or shell.at > layer.lim:
        return cut
    if shell.kind == T_GENEVE:
        memset(data + cut + 8, 0, shell.at - cut - 8)
    elif shell.kind == T_TEREDO:
        hide_teredo(data + cut, shell.at - cut)
    elif shell.kind == T_L2TP:
        hide_l2tp(data + cut, shell.at - cut)
    elif layer.ip.proto == GRE and p[0] & 0x80:
        p[4] = p[5] = 0                     # a checksum of all that follows
    k.data, k.end, k.at, k.type = data, layer.lim, shell.at, shell.type
    k.wire = layer.wire if layer.wire < layer.ip.stop else layer.ip.stop
    k.notes, k.vlans, k.labels, k.ethernets = 0, 0, 0, 0
    if not k.type or k.type == ETH_WLAN or layer.depth >= MAX_INSIDE:
        return shell.at
    walk_tags(&k, False)
    return _above_link(pan, data, &k, layer.depth + 1)


cdef inline uint32_t _error(Pan* pan, uint8_t* data, Layer* layer) noexcept nogil:
    """The packet in an ICMP error, after 8 bytes."""
    cdef uint32_t at = layer.ip.up + 8
    if at >= layer.lim or layer.depth >= MAX_INSIDE:
        return at
    return hide_ip(pan, data, layer.lim, at + ANY_LENGTH, at, layer.depth + 1)


cdef inline uint32_t _icmp(Pan* pan, uint8_t* data, Layer* layer) noexcept nogil:
    cdef Ip* ip = &layer.ip
    cdef uint8_t* p = data + ip.up
    cdef uint32_t length = ip.stop - ip.up, cut = ip.up + 8
    cdef Judgement judged
    if layer.lim - ip.up < 8:
        return ip.up
    judged = _judge(layer, p, length, 2, 0)
    if p[0] == 3 or p[0] == 4 or p[0] == 5 or p[0] == 11 or p[0] == 12:
        if p[0] == 5:                       # a redirect: the better router
            hide_address4(pan, p + 4)
        cut = _error(pan, data, layer)
    elif p[0] == 0 or p[0] == 8:
        if pan.keep_payload:
            cut = layer.lim
    elif not (9 <= p[0] <= 10 or 13 <= p[0] <= 18):
        cut = ip.up + 4
    write_sum(p, cut - ip.up, 2, 0, judged)
    return cut


cdef inline uint32_t _icmp6(Pan* pan, uint8_t* data, Layer* layer) noexcept nogil:
    cdef Ip* ip = &layer.ip
    cdef uint8_t* p = data + ip.up
    cdef uint32_t left = layer.lim - ip.up, length = ip.stop - ip.up, cut = ip.up + 4
    cdef Judgement judged
    if left < 8:
        return ip.up
    judged = _judge(layer, p, length, 2, _pseudo(layer.before, ICMP6, length))
    if 1 <= p[0] <= 4:
        cut = _error(pan, data, layer)
    elif p[0] == 128 or p[0] == 129:
        cut = layer.lim if pan.keep_payload else ip.up + 8
    elif 133 <= p[0] <= 137:
        cut = ip.up + hide_discovery(pan, p, left)
    elif 130 <= p[0] <= 132 and left >= 24:
        hide6(pan, p + 8)
        cut = ip.up + 24
    elif p[0] == 143:
        cut = ip.up + 8
    write_sum(p, cut - ip.up, 2, _pseudo(layer.after, ICMP6, length), judged)
    return cut


cdef inline uint32_t _igmp(Pan* pan, uint8_t* data, Layer* layer) noexcept nogil:
    cdef Ip* ip = &layer.ip
    cdef uint8_t* p = data + ip.up
    cdef Judgement judged
    if layer.lim - ip.up < 8 or not (p[0] == 0x11 or p[0] == 0x12 or p[0] == 0x16 or p[0] == 0x17):
        return ip.up
    judged = _judge(layer, p, ip.stop - ip.up, 2, 0)
    hide_address4(pan, p + 4)
    write_sum(p, 8, 2, 0, judged)
    return ip.up + 8


cdef inline uint32_t _above_ip(Pan* pan, uint8_t* data, Layer* layer) noexcept nogil:
    """The headers above IP; returns where they end."""
    cdef Ip* ip = &layer.ip
    cdef Shell shell
    cdef uint32_t left
    if ip.opaque or ip.up > layer.lim:
        if pan.keep_payload and ip.offset and ip.up <= layer.lim and (ip.proto == TCP or ip.proto == UDP):
            return layer.lim
        return ip.up if ip.up < layer.end else layer.end
    left = layer.lim - ip.up
    find_shell(&shell, ip, data, layer.end)
    if ip.proto == TCP:
        return _tcp(pan, data, layer)
    if ip.proto == UDP or ip.proto == UDPLITE:
        return _udp(pan, data, layer, &shell)
    if ip.proto == ICMP:
        return _icmp(pan, data, layer)
    if ip.proto == ICMP6:
        return _icmp6(pan, data, layer)
    if ip.proto == IGMP:
        return _igmp(pan, data, layer)
    if ip.proto == ESP:
        return ip.up + 8 if left >= 8 else ip.up
    if ip.proto == SCTP and left >= 12:
        hide_port_at(pan, data + ip.up)
        hide_port_at(pan, data + ip.up + 2)
        memset(data + ip.up + 8, 0, 4)      # a CRC of what is cut
        return ip.up + 12
    if ip.proto == L2TP:
        return ip.up
    return _inside(pan, data, layer, &shell, ip.up)


cdef inline uint32_t hide_ip(Pan* pan, uint8_t* data, uint32_t end, uint32_t wire, uint32_t at,
                             uint32_t depth) noexcept nogil:
    """Rewrite the IP packet at `at`; returns where what is known of it ends."""
    cdef Layer layer
    cdef Ip* ip = &layer.ip
    cdef Judgement judged = SUM_ABSENT
    cdef uint8_t* p = data + at
    cdef uint8_t* target = p + 24           # where the packet goes in the end
    cdef uint32_t head, reached, cut
    if at >= end:
        return end
    layer.end, layer.wire, layer.depth = end, wire, depth
    if p[0] >> 4 == 4:
        read_ip4(ip, data, end, wire, at)
        head = (p[0] & 15) * 4
        if head < 20:
            head = 20
        if end - at < head:
            return at
        judged = judge_sum(p, head, 10, 0)
        layer.before = sum_bytes(p + 12, 8)
        hide_address4(pan, p + 12)
        hide_address4(pan, p + 16)
        hide_ip4_options(pan, p + 20, head - 20)
        layer.after = sum_bytes(p + 12, 8)
        if p[9] == 51 and at + head + 12 < end and ip.up > at + head + 12:      # AH: its digest
            memset(p + head + 12, 0, (ip.up if ip.up < end else end) - at - head - 12)
    elif p[0] >> 4 == 6:
        read_ip6(ip, data, end, wire, at)
        if end - at < 40:
            return at
        head = 0
        layer.before = sum_bytes(p + 8, 16)
        hide6(pan, p + 8)
        layer.after = sum_bytes(p + 8, 16)
        reached = hide_ip6_headers(pan, data, end, at, ip.up, &target, &layer.before)
        if target == p + 24:                # no routing header says otherwise
            layer.before += sum_bytes(target, 16)
        hide6(pan, p + 24)
        layer.after += sum_bytes(target, 16)
        if reached < ip.up:
            return reached
    else:
        return at
    layer.lim = end if end < ip.stop else ip.stop
    cut = _above_ip(pan, data, &layer)
    if head:
        write_sum(p, head, 10, 0, judged)
    return cut


cdef inline uint32_t _above_link(Pan* pan, uint8_t* data, Link* k, uint32_t depth) noexcept nogil:
    """From the network header on; first the MAC addresses of the Ethernet headers on the way."""
    cdef uint32_t i
    for i in range(k.ethernets if k.ethernets < MAX_ETHERNETS else MAX_ETHERNETS):
        hide_mac_at(pan, data + k.ethernet_at[i])
        hide_mac_at(pan, data + k.ethernet_at[i] + 6)
    if k.ethernets > MAX_ETHERNETS:
        return k.ethernet_at[MAX_ETHERNETS - 1] + 14
    if k.at >= k.end:
        return k.end
    if k.type == ETH_ARP or k.type == ETH_RARP:
        return k.at + hide_arp(pan, data + k.at, k.end - k.at)
    if k.type == ETH_IP or k.type == ETH_IP6:
        return hide_ip(pan, data, k.end, k.wire, k.at, depth)
    return k.at


cdef inline uint32_t _wlan_header(Pan* pan, uint8_t* p, uint32_t left) noexcept nogil:
    """The addresses of an 802.11 header; returns its length, 0: not known."""
    cdef uint32_t control, size = 24, places = 3, i
    if left < 10:
        return 0
    control = get16(p, False)
    if control & 0x0C == 0x0C:
        return 0
    if control & 0x0C == 0x04:
        i = control >> 4 & 15
        places = 1 if i == 6 or i == 7 or i == 12 or i == 13 else 2
        size = 4 + 6 * places
    elif control & 0x0C == 0x08:
        if control & 0x0300 == 0x0300:
            size = 30
        if control & 0x80:
            size += 6 if control & 0x8000 else 2
    if left < size:
        return 0
    for i in range(places):
        hide_mac_at(pan, p + 4 + 6 * i)
    if control & 0x0C == 0x08 and control & 0x0300 == 0x0300:
        hide_mac_at(pan, p + 24)
    return size


cdef inline void _cooked_address(Pan* pan, uint8_t* p, uint32_t size) noexcept nogil:
    if size == 6:
        hide_mac_at(pan, p)
        memset(p + 6, 0, 2)
    else:
        memset(p, 0, 8)                     # may be an IP address, or the start of a longer one


cdef inline uint32_t hide_frame(Pan* pan, uint8_t* data, uint32_t end, uint32_t wire, uint16_t link) noexcept nogil:
    """Rewrite a frame in place; returns how many of its bytes may be shown, NOT_HIDDEN for other link types."""
    cdef Link k
    cdef Parser parser = parser_of(link)
    cdef uint32_t at = 0, size
    if (parser == PARSE_NOTHING or parser == PARSE_NFLOG or parser == PARSE_ARCNET or parser == PARSE_ARCNET_LINUX
            or parser == PARSE_INFINIBAND or parser == PARSE_PKTAP):
        return NOT_HIDDEN
    open_link(&k, data, end, wire, link)
    if parser == PARSE_COOKED and end >= 16:
        _cooked_address(pan, data + 6, be16(data + 4))
    elif parser == PARSE_COOKED2 and end >= 20:
        _cooked_address(pan, data + 12, data[11])
    elif parser == PARSE_FDDI and end >= 13:
        hide_mac_at(pan, data + 1)
        hide_mac_at(pan, data + 7)
    elif parser == PARSE_RADIOTAP or parser == PARSE_WLAN:
        if parser == PARSE_RADIOTAP:
            if end < 4 or get16(data + 2, False) > end or get16(data + 2, False) < 8:
                return 0
            at = get16(data + 2, False)
        size = _wlan_header(pan, data + at, end - at)
        if not size or not k.type:
            return at + size
    return _above_link(pan, data, &k, 0)
