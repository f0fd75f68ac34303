# From the start of a frame to its network header: link layers, VLAN tags, MPLS labels, PPPoE.
# c_link_types.pxd, generated from schema/link_types.py, names the entry of open_link for each link type.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from c_link_types cimport *
from c_wire cimport be16, be32, be48, get16, get32

cdef enum:
    ETH_IP = 0x0800
    ETH_ARP = 0x0806
    ETH_RARP = 0x8035
    ETH_IP6 = 0x86DD
    ETH_MPLS = 0x8847
    ETH_MPLS_MC = 0x8848
    ETH_PPPOE = 0x8864
    ETH_CMD = 0x8909            # Cisco metadata: a security group tag, then the next type
    ETH_TEB = 0x6558            # transparent Ethernet bridging: an Ethernet frame follows
    ETH_ANY_IP = 0x10001        # internal: IPv4 or IPv6 by the first nibble
    ETH_PPP = 0x10002           # internal: a PPP protocol number follows
    ETH_LLC = 0x10003           # internal: an 802.2 header follows
    ETH_WLAN = 0x10004          # internal: an 802.11 frame follows

# Bits of the field `notes`.
cdef enum Note:
    NOTE_TRUNCATED = 1          # a header runs past the captured bytes
    NOTE_MALFORMED = 2          # a header contradicts itself
    NOTE_FRAGMENT = 4
    NOTE_UNKNOWN_LINK = 8
    NOTE_OPTIONS = 16           # IPv4 options or IPv6 extension headers
    NOTE_INNER = 32             # IP and transport fields are those of an inner packet
    NOTE_AUTH = 128             # an authentication header (AH) before the transport header

cdef enum:
    MAX_ETHERNETS = 4           # Ethernet headers of a frame with a place in `ethernet_at`

cdef struct Link:
    const uint8_t* data
    uint32_t end                # captured bytes
    uint32_t wire               # end of the packet on the wire, by the headers parsed so far
    uint32_t at                 # start of the header of `type`
    uint32_t type               # EtherType or ETH_*; 0: unknown
    uint16_t shown              # the field eth_type
    uint8_t notes
    uint8_t vlans
    uint8_t labels
    bint pppoe
    bint has_mac
    uint16_t vlan
    uint16_t vlan2
    uint16_t session            # PPPoE
    uint32_t label
    uint64_t src
    uint64_t dst
    uint32_t ethernets          # Ethernet headers that were passed, and where the first ones start
    uint32_t ethernet_at[MAX_ETHERNETS]


cdef inline bint is_vlan(uint32_t type) noexcept nogil:
    return type == 0x8100 or type == 0x88A8 or type == 0x9100 or type == 0x9200 or type == 0x9300


cdef inline void _show(Link* k) noexcept nogil:
    # eth_type: the last EtherType of the outermost frame, not of inner frames.
    if not k.labels and not k.pppoe:
        k.shown = k.type if 1536 <= k.type <= 0xFFFF else 0


cdef inline void _bound(Link* k, uint32_t stop) noexcept nogil:
    if stop < k.wire:
        k.wire = stop


cdef inline void _cut(Link* k) noexcept nogil:
    k.notes |= NOTE_TRUNCATED
    k.type = 0


cdef inline void _ethernet(Link* k, bint outer) noexcept nogil:
    """Parse addresses and type of the Ethernet header at `at`."""
    if k.end - k.at < 14:
        if outer and k.end - k.at >= 6:
            k.dst = be48(k.data + k.at)
            k.has_mac = True
            if k.end - k.at >= 12:
                k.src = be48(k.data + k.at + 6)
        _cut(k)
        return
    if outer:
        k.dst = be48(k.data + k.at)
        k.src = be48(k.data + k.at + 6)
        k.has_mac = True
    k.type = be16(k.data + k.at + 12)
    if k.ethernets < MAX_ETHERNETS:
        k.ethernet_at[k.ethernets] = k.at
    k.ethernets += 1
    k.at += 14


cdef inline void _llc(Link* k) noexcept nogil:
    cdef const uint8_t* p = k.data + k.at
    cdef uint32_t oui
    k.type = 0
    if k.end - k.at < 3:
        k.notes |= NOTE_TRUNCATED
        return
    if p[0] == 0xAA and p[1] == 0xAA and p[2] == 3:
        if k.end - k.at < 8:
            k.notes |= NOTE_TRUNCATED
            return
        oui = <uint32_t>p[3] << 16 | be16(p + 4)
        if oui == 0 or oui == 0xF8:         # RFC 1042, or 802.1H bridge tunnel
            k.type = be16(p + 6)
            k.at += 8
    elif p[0] == 6 and p[1] == 6 and p[2] == 3:
        k.type = ETH_IP
        k.at += 3


cdef inline void _ppp(Link* k) noexcept nogil:
    """Parse a PPP protocol number: optional address and control first; one or two bytes."""
    cdef const uint8_t* p = k.data + k.at
    cdef uint32_t left = k.end - k.at, protocol
    k.type = 0
    if left >= 2 and p[0] == 0xFF and p[1] == 3:
        k.at += 2
        p += 2
        left -= 2
    if left and p[0] & 1:
        protocol = p[0]
        k.at += 1
    elif left >= 2:
        protocol = be16(p)
        k.at += 2
    else:
        k.notes |= NOTE_TRUNCATED
        return
    if protocol == 0x21:
        k.type = ETH_IP
    elif protocol == 0x57:
        k.type = ETH_IP6
    elif protocol == 0x281:
        k.type = ETH_MPLS
    elif protocol == 0x283:
        k.type = ETH_MPLS_MC


cdef inline void _mpls(Link* k, bint outer) noexcept nogil:
    cdef uint32_t entry, nibble
    while True:
        if k.end - k.at < 4:
            _cut(k)
            return
        entry = be32(k.data + k.at)
        if outer:
            if k.labels == 0:
                k.label = entry >> 12
            if k.labels < 255:
                k.labels += 1
        k.at += 4
        if entry & 0x100:                   # bottom of the stack
            break
    if k.at >= k.end:
        _cut(k)
        return
    nibble = k.data[k.at] >> 4
    k.type = 0
    if nibble == 4:
        k.type = ETH_IP
    elif nibble == 6:
        k.type = ETH_IP6
    elif nibble == 0:                       # pseudowire control word (RFC 4385), then Ethernet
        if k.end - k.at < 18:
            k.notes |= NOTE_TRUNCATED
            return
        k.at += 4
        _ethernet(k, False)


cdef inline uint32_t _metadata(const uint8_t* p) noexcept nogil:
    # Version and length are 1 and 1; the next type is last in Ethernet and first in GRE.
    if be16(p) == 0x0101:
        return be16(p + 6)
    return be16(p) if be16(p + 2) == 0x0101 else 0


cdef inline void _wlan_control(Link* k, uint32_t control, uint32_t left) noexcept nogil:
    """802.11 control frames have a receiver and perhaps a transmitter, but no source and no destination."""
    cdef uint32_t subtype = control >> 4 & 15
    # The carried frame of a wrapper, a clear-to-send and an acknowledgement have one address, others two.
    if left < (10 if subtype == 6 or subtype == 7 or subtype == 12 or subtype == 13 else 16):
        k.notes |= NOTE_TRUNCATED


cdef inline void _wlan(Link* k) noexcept nogil:
    """Parse an 802.11 frame: addresses of data and management frames, the network header of data frames."""
    cdef const uint8_t* p = k.data + k.at
    cdef uint32_t left = k.end - k.at, head = 24, control, type
    k.type = 0
    if left < 10:
        k.notes |= NOTE_TRUNCATED
        return
    control = get16(p, False)
    type = control & 0x0C
    if type == 0x0C:                        # extension frames
        return
    if type == 0x04:
        _wlan_control(k, control, left)
        return
    if left < 24:
        k.notes |= NOTE_TRUNCATED
        return
    if type == 0:                           # management
        k.has_mac = True
        k.dst, k.src = be48(p + 4), be48(p + 10)
        return
    if control & 0x0300 == 0x0300:          # between access points: four addresses
        head = 30
    if head == 30 and left < 30:
        k.notes |= NOTE_TRUNCATED
        return
    k.has_mac = True
    k.dst = be48(p + 16) if control & 0x0100 else be48(p + 4)
    if control & 0x0300 == 0x0300:
        k.src = be48(p + 24)
    elif control & 0x0200:
        k.src = be48(p + 16)
    else:
        k.src = be48(p + 10)
    if control & 0x80:                      # QoS
        head += 2
        if control & 0x8000:                # and HT control
            head += 4
    if control & 0x4040:                    # encrypted, or without data
        return
    if left < head:
        k.notes |= NOTE_TRUNCATED
        return
    k.at += head
    k.type = ETH_LLC


cdef inline void walk_tags(Link* k, bint outer) noexcept nogil:
    """Walk to the network header: VLAN tags, LLC, MPLS labels, PPPoE, inner Ethernet.

    Each step advances `at`, so the loop ends.  `outer`: record tags and labels.
    """
    cdef uint16_t tag
    while True:
        if k.type == ETH_IP or k.type == ETH_IP6 or k.type == ETH_ARP:
            return
        if is_vlan(k.type):
            if k.end - k.at < 4:
                if outer and k.vlans < 255:
                    k.vlans += 1
                _cut(k)
                return
            tag = be16(k.data + k.at) & 0xFFF
            k.type = be16(k.data + k.at + 2)
            k.at += 4
            if outer:
                if k.vlans == 0:
                    k.vlan = tag
                elif k.vlans == 1:
                    k.vlan2 = tag
                if k.vlans < 255:
                    k.vlans += 1
                _show(k)
        elif k.type == ETH_MPLS or k.type == ETH_MPLS_MC:
            _mpls(k, outer)
        elif k.type == ETH_PPPOE:
            if k.end - k.at < 6:
                _cut(k)
                return
            if outer:
                k.pppoe = True
                k.session = be16(k.data + k.at + 2)
            _bound(k, k.at + 6 + <uint32_t>be16(k.data + k.at + 4))
            k.at += 6
            _ppp(k)
        elif k.type == ETH_PPP:
            _ppp(k)
        elif k.type == ETH_CMD:
            if k.end - k.at < 8:
                _cut(k)
                return
            k.type = _metadata(k.data + k.at)
            k.at += 8
        elif k.type == ETH_TEB:
            _ethernet(k, False)
        elif k.type == ETH_WLAN:            # in a tunnel; its addresses are not stored
            _wlan(k)
        elif k.type == ETH_ANY_IP:
            k.type = 0
            if k.at >= k.end:
                k.notes |= NOTE_TRUNCATED
            elif k.data[k.at] >> 4 == 4:
                k.type = ETH_IP
            elif k.data[k.at] >> 4 == 6:
                k.type = ETH_IP6
            else:
                k.notes |= NOTE_MALFORMED
        elif k.type == ETH_LLC or 0 < k.type < 1536:
            if k.type < 1536:
                _bound(k, k.at + k.type)    # 802.3: a length instead of the type
            _llc(k)
            if outer:
                _show(k)
        else:
            return


cdef inline void _family(Link* k, uint32_t family) noexcept nogil:
    """EtherType of an address family of any BSD, macOS, Linux or Windows loopback capture."""
    k.type = 0
    if family == 2:
        k.type = ETH_IP
    elif family == 10 or family == 23 or family == 24 or family == 28 or family == 30:
        k.type = ETH_IP6


cdef inline void _null(Link* k, uint32_t header) noexcept nogil:
    """A family number in the byte order of the capturing host, detected because the number is small."""
    cdef uint32_t family
    if k.end < header:
        _cut(k)
        return
    family = get32(k.data, False)
    if family > 0xFFFF:
        family = get32(k.data, True)
    k.at = header
    _family(k, family)


cdef inline void _cooked(Link* k, bint v2) noexcept nogil:
    """Linux cooked capture, 16 bytes, or its version 2, 20 bytes."""
    cdef uint32_t head = 20 if v2 else 16, hardware, size
    cdef const uint8_t* p = k.data
    if k.end < head:
        _cut(k)
        return
    hardware = be16(p + 8) if v2 else be16(p + 2)
    size = p[11] if v2 else be16(p + 4)
    if size == 6:
        k.src = be48(p + 12) if v2 else be48(p + 6)
        k.has_mac = True
    k.type = be16(p) if v2 else be16(p + 14)
    k.at = head
    if hardware == 824:                     # netlink: a family, not a protocol
        k.type = 0
    elif k.type == 4:
        k.type = ETH_LLC
    elif k.type < 1536:
        k.type = 0
    _show(k)


cdef inline void _nflog(Link* k) noexcept nogil:
    """Linux netfilter log: attributes in the byte order of the capturing host; number 9 is the packet."""
    cdef uint32_t size, kind, family
    cdef bint swap
    if k.end < 8:
        _cut(k)
        return
    family = k.data[0]
    k.at = 4
    size = get16(k.data + 4, False)
    swap = size < 4 or size > 0xFF and get16(k.data + 4, True) <= 0xFF and get16(k.data + 4, True) >= 4
    while k.end - k.at >= 4:
        size, kind = get16(k.data + k.at, swap), get16(k.data + k.at + 2, swap) & 0x7FFF
        if size < 4:
            k.notes |= NOTE_MALFORMED
            k.type = 0
            return
        if kind == 9:
            k.at += 4
            _family(k, family)
            return
        size = (size + 3) & ~<uint32_t>3
        if size > k.end - k.at:
            break
        k.at += size
    _cut(k)


cdef inline void _radiotap(Link* k) noexcept nogil:
    cdef uint32_t head
    if k.end < 4:
        _cut(k)
        return
    head = <uint32_t>k.data[2] | <uint32_t>k.data[3] << 8
    if head < 8 or k.data[0] != 0:
        k.notes |= NOTE_MALFORMED
        k.type = 0
        return
    if head > k.end:
        _cut(k)
        return
    k.at = head
    _wlan(k)


cdef inline void _hdlc(Link* k, bint cisco) noexcept nogil:
    """Cisco HDLC, or PPP in HDLC-like framing, recognized by the first bytes."""
    if k.end < 4:
        _cut(k)
        return
    if cisco or k.data[0] == 0x0F or k.data[0] == 0x8F:
        k.type = be16(k.data + 2)
        k.at = 4
        _show(k)
        if k.type < 1536:
            k.type = 0
    else:
        _ppp(k)


cdef inline void _fddi(Link* k) noexcept nogil:
    """ANSI X3T9.5: frame control, addresses, and in data frames an 802.2 header."""
    cdef const uint8_t* p = k.data
    if k.end < 13:
        _cut(k)
        return
    k.has_mac = True
    k.dst, k.src = be48(p + 1), be48(p + 7)
    k.at = 13
    k.type = ETH_LLC if p[0] & 0xF0 == 0x50 else 0


cdef inline void _nlpid(Link* k) noexcept nogil:
    """RFC 2427: an optional pad, then the identifier of the network layer."""
    cdef uint32_t id
    k.type = 0
    if k.at < k.end and k.data[k.at] == 0:
        k.at += 1
    if k.at >= k.end:
        k.notes |= NOTE_TRUNCATED
        return
    id = k.data[k.at]
    k.at += 1
    if id == 0xCC:
        k.type = ETH_IP
    elif id == 0x8E:
        k.type = ETH_IP6
    elif id == 0xCF:
        k.type = ETH_PPP
    elif id == 0x80:                        # SNAP: OUI and type
        if k.end - k.at < 5:
            k.notes |= NOTE_TRUNCATED
            return
        if k.data[k.at] == 0 and be16(k.data + k.at + 1) == 0:
            k.type = be16(k.data + k.at + 3)
        elif k.data[k.at] == 0 and be16(k.data + k.at + 1) == 0x80C2:
            if be16(k.data + k.at + 3) == 7 or be16(k.data + k.at + 3) == 1:
                k.type = ETH_TEB            # bridged Ethernet, without or with its check sequence
        k.at += 5


cdef inline void _frame_relay(Link* k) noexcept nogil:
    """Q.922 address of 2 to 4 bytes; then RFC 2427, or an EtherType as Cisco sends it."""
    cdef uint32_t head = 2
    if k.end >= 2 and k.data[0] & 1:
        k.notes |= NOTE_MALFORMED
        k.type = 0
        return
    while head <= k.end and k.data[head - 1] & 1 == 0:
        head += 1
        if head > 4:
            k.notes |= NOTE_MALFORMED
            k.type = 0
            return
    if k.end < head + 2:
        _cut(k)
        return
    k.at = head
    if k.data[head] == 3:                   # unnumbered information
        k.at += 1
        _nlpid(k)
    else:
        k.type = be16(k.data + head)
        k.at += 2
        if k.type < 1536:                   # LMI and others
            k.type = 0
    _show(k)


cdef inline void _arcnet(Link* k, uint32_t type_at) noexcept nogil:
    """ARCnet of RFC 1201 and RFC 1051.  `type_at`: Linux has two bytes for an offset before the type."""
    cdef const uint8_t* p = k.data
    cdef uint32_t type, head = type_at + 1, flag
    if k.end <= type_at:
        _cut(k)
        return
    type = p[type_at]
    if type != 240 and type != 241 and type != 128:         # RFC 1201: a header for fragments
        if k.end < head + 3:
            _cut(k)
            return
        flag = p[head]
        head += 3
        if flag == 0xFF and type_at == 2:                   # exception packet: padded, and the header once more
            if k.end < head + 4:
                _cut(k)
                return
            flag = p[head + 1]
            head += 4
        if flag & 1 == 0 and flag:                          # a later fragment
            k.type = 0
            k.notes |= NOTE_FRAGMENT
            return
    k.at = head
    k.type = 0
    if type == 212 or type == 240:
        k.type = ETH_IP
    elif type == 213 or type == 241:
        k.type = ETH_ARP
    elif type == 196:
        k.type = ETH_IP6
    elif type == 214:
        k.type = ETH_RARP
    _show(k)


cdef inline void _infiniband(Link* k) noexcept nogil:
    """IP over InfiniBand (RFC 4391): a global routing header of 40 bytes, then the type and two zeros."""
    if k.end < 44:
        _cut(k)
        return
    k.at = 44
    k.type = be16(k.data + 40)
    _show(k)
    if k.type < 1536:
        k.type = 0


cdef inline bint _pktap(Link* k, uint16_t* link) noexcept nogil:
    """Apple's header about the process of a packet, little endian; True: a frame of link type `link` follows."""
    cdef uint32_t head
    if k.end < 108:
        _cut(k)
        return False
    head = get32(k.data, False)
    if head < 108:
        k.notes |= NOTE_MALFORMED
        return False
    if head > k.end:
        _cut(k)
        return False
    if get32(k.data + 4, False) != 1:       # not a packet
        return False
    link[0] = <uint16_t>get32(k.data + 8, False)
    k.data += head
    k.end -= head
    k.wire -= head
    return True


cdef inline void _skip(Link* k, uint32_t head, uint32_t type) noexcept nogil:
    if k.end < head:
        _cut(k)
        return
    k.at = head
    k.type = type


cdef inline void open_link(Link* k, const uint8_t* data, uint32_t end, uint32_t wire,
                           uint16_t link) noexcept nogil:
    """Find the network header of a frame of link type `link`: `at` and `type`."""
    cdef Parser parser
    k.data, k.end, k.wire, k.at = data, end, wire, 0
    k.notes, k.vlans, k.labels, k.type, k.shown = 0, 0, 0, 0, 0
    k.pppoe, k.has_mac = False, False
    k.vlan, k.vlan2, k.session, k.label, k.src, k.dst, k.ethernets = 0, 0, 0, 0, 0, 0, 0
    parser = parser_of(link)
    if parser == PARSE_PKTAP:
        if not _pktap(k, &link):
            return
        parser = parser_of(link)
    if parser == PARSE_ETHERNET:
        _ethernet(k, True)
        _show(k)
    elif parser == PARSE_IP:
        k.type = ETH_ANY_IP
    elif parser == PARSE_COOKED:
        _cooked(k, False)
    elif parser == PARSE_COOKED2:
        _cooked(k, True)
    elif parser == PARSE_LOOPBACK:
        _null(k, 4)
    elif parser == PARSE_ENC:               # family, SPI, flags
        _null(k, 12)
    elif parser == PARSE_PPPD:              # a direction instead of the address
        _skip(k, 2, ETH_PPP)
    elif parser == PARSE_HDLC:
        _hdlc(k, False)
    elif parser == PARSE_CISCO_HDLC:
        _hdlc(k, True)
    elif parser == PARSE_PPPOE:             # without Ethernet
        k.type = ETH_PPPOE
    elif parser == PARSE_RADIOTAP:
        _radiotap(k)
    elif parser == PARSE_WLAN:
        _wlan(k)
    elif parser == PARSE_NFLOG:
        _nflog(k)
    elif parser == PARSE_MPLS:
        k.type = ETH_MPLS
    elif parser == PARSE_FDDI:
        _fddi(k)
    elif parser == PARSE_FRAME_RELAY:
        _frame_relay(k)
    elif parser == PARSE_ARCNET:
        _arcnet(k, 2)
    elif parser == PARSE_ARCNET_LINUX:
        _arcnet(k, 4)
    elif parser == PARSE_INFINIBAND:
        _infiniband(k)
    else:
        k.notes |= NOTE_UNKNOWN_LINK
        return
    walk_tags(k, True)
