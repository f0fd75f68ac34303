# One frame into one row of Rows.  Zero means absent, so only present values are written.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from c_bits cimport expect
from c_wire cimport be16, be32, be48
from c_ipv6_hash cimport fold6
from c_pcap cimport Frame
from c_link_types cimport LINKTYPE_EN10MB
from c_packet_columns cimport *
from c_packet_rows cimport HOPS, bit
from c_link cimport (Link, open_link, walk_tags, _bound, ETH_IP, ETH_IP6, ETH_ARP, ETH_RARP,
                     NOTE_TRUNCATED, NOTE_MALFORMED, NOTE_FRAGMENT, NOTE_INNER)
from c_inet cimport (Ip, Shell, read_ip4, read_ip6, find_shell, is_tunnel_port, flow_hash, pair_hash, _missing,
                     TCP, UDP, UDPLITE, SCTP, ICMP, ICMP6, T_PPPOE)
from c_telemetry cimport Found, NO_TRACE, BAD_TRACE, read_telemetry

cdef enum:
    MAX_NESTING = 16            # nested tunnels that `--decap inner` follows
    MAX_WIRE = 0x3FFFFFFF       # longest frame with valid offsets
    NOT_FOLLOWED = 256          # bit of parse_frame next to those of `notes`: the header inside a tunnel was not read

# Bits of tcp_opts.
cdef enum Option:
    OPT_MSS = 1
    OPT_WSCALE = 2
    OPT_SACK_OK = 4
    OPT_SACK = 8
    OPT_TSTAMP = 16
    OPT_FASTOPEN = 32
    OPT_MPTCP = 64
    OPT_OTHER = 128


cdef inline uint64_t if_set(uint64_t value, int column) noexcept nogil:
    """The bit of the column if the value is not zero."""
    return <uint64_t>(value != 0) << column


cdef inline uint64_t tcp_options(Rows* r, uint32_t i, const uint8_t* p, uint32_t size, uint8_t* notes) noexcept nogil:
    cdef uint32_t at = 0, kind, length, edge, seen = 0
    cdef uint64_t used = 0
    while at < size:
        kind = p[at]
        if kind == 1:
            at += 1
            continue
        if kind == 0:
            break
        if size - at < 2:
            notes[0] |= NOTE_MALFORMED
            break
        length = p[at + 1]
        if length < 2 or length > size - at:
            notes[0] |= NOTE_MALFORMED
            break
        if kind == 8 and length == 10:
            seen |= OPT_TSTAMP
            r.tcp_tsval[i] = be32(p + at + 2)
            r.tcp_tsecr[i] = be32(p + at + 6)
            used |= bit(C_TCP_TSVAL) | bit(C_TCP_TSECR)
        elif kind == 2 and length == 4:
            seen |= OPT_MSS
            r.tcp_mss[i] = be16(p + at + 2)
            used |= bit(C_TCP_MSS)
        elif kind == 3 and length == 3:
            seen |= OPT_WSCALE
            r.tcp_wscale[i] = p[at + 2]
            used |= bit(C_TCP_WSCALE)
        elif kind == 4 and length == 2:
            seen |= OPT_SACK_OK
        elif kind == 5:
            seen |= OPT_SACK
            for edge in range(min((length - 2) >> 3 << 1, <uint32_t>HOPS)):
                r.tcp_sack[i][edge] = be32(p + at + 2 + 4 * edge)
            used |= bit(C_TCP_SACK)
        elif kind == 34 or kind == 254 and length >= 4 and be16(p + at + 2) == 0xF989:
            seen |= OPT_FASTOPEN
        elif kind == 30:
            seen |= OPT_MPTCP
        else:
            seen |= OPT_OTHER
        at += length
    r.tcp_opts[i] = seen
    return used | if_set(seen, C_TCP_OPTS)


cdef inline uint64_t tcp_header(Rows* r, uint32_t i, Ip* ip, const uint8_t* p, uint32_t left,
                                uint32_t end) noexcept nogil:
    """p: the header, `left` bytes of it readable.  Skips incomplete options."""
    cdef uint64_t used = 0
    cdef uint32_t flags, size, payload
    cdef uint8_t odd = 0
    if left >= 8:
        r.tcp_seq[i] = be32(p + 4)
        used |= bit(C_TCP_SEQ)
    if left >= 12:
        r.tcp_ack[i] = be32(p + 8)
        used |= bit(C_TCP_ACK)
    if left >= 14:
        flags = be16(p + 12)
        r.tcp_flags[i] = flags & 0xFFF
        used |= bit(C_TCP_FLAGS)
        size = flags >> 12 << 2
        if left >= 16:
            r.tcp_window[i] = be16(p + 14)
            used |= bit(C_TCP_WINDOW)
        if size < 20 or ip.stop - ip.up < size:
            ip.notes |= NOTE_MALFORMED
            return used
        payload = ip.stop - ip.up - size
        r.payload_len[i] = payload
        used |= if_set(payload, C_PAYLOAD_LEN)
        if size > 20 and left > 20:
            used |= tcp_options(r, i, p + 20, (size if size < left else left) - 20, &odd)
        if left < size:
            _missing(ip, end, size)
        else:
            ip.notes |= odd
    else:
        _missing(ip, end, 20)
    return used


cdef inline uint64_t transport(Rows* r, uint32_t i, Ip* ip, const uint8_t* data, uint32_t end) noexcept nogil:
    """Store ports, TCP and ICMP fields, payload length, flow hash."""
    cdef uint32_t lim = end if end < ip.stop else ip.stop
    cdef uint32_t left, head, payload, sport = 0, dport = 0, proto = ip.proto
    cdef uint64_t used = bit(C_FLOW_HASH)
    cdef const uint8_t* p = data + ip.up
    if expect(ip.opaque or ip.up > lim, False):
        payload = 0                         # unknown when a header cannot be read
        if ip.offset:
            payload = ip.stop - ip.up if ip.stop > ip.up else 0
        elif not ip.notes & (NOTE_TRUNCATED | NOTE_MALFORMED):
            _missing(ip, end, 8)
        r.payload_len[i] = payload
        used |= if_set(payload, C_PAYLOAD_LEN)
        r.flow_hash[i] = flow_hash(r.src_ip[i], r.dst_ip[i], 0, 0, proto)
        return used
    left = lim - ip.up
    if proto == TCP or proto == UDP or proto == SCTP or proto == UDPLITE:
        if left >= 2:
            sport = be16(p)
            r.src_port[i] = sport
        if left >= 4:
            dport = be16(p + 2)
            r.dst_port[i] = dport
        used |= bit(C_SRC_PORT) | bit(C_DST_PORT)
        if proto == TCP:
            used |= tcp_header(r, i, ip, p, left, end)
            head = 0
        else:
            head = 12 if proto == SCTP else 8
    elif proto == ICMP or proto == ICMP6:
        if left >= 1:
            r.icmp_type[i] = p[0]
        if left >= 2:
            r.icmp_code[i] = p[1]
        used |= if_set(left and p[0], C_ICMP_TYPE) | if_set(left >= 2 and p[1], C_ICMP_CODE)
        head = 8 if proto == ICMP or ip.stop - ip.up >= 8 else 4
    else:
        payload = ip.stop - ip.up
        r.payload_len[i] = payload
        used |= if_set(payload, C_PAYLOAD_LEN)
        head = 0
    if head:
        if left < head:
            _missing(ip, end, head)
        if ip.stop - ip.up > head:
            r.payload_len[i] = ip.stop - ip.up - head
            used |= bit(C_PAYLOAD_LEN)
    r.flow_hash[i] = flow_hash(r.src_ip[i], r.dst_ip[i], sport, dport, proto)
    return used


cdef inline uint64_t ip_fields(Rows* r, uint32_t i, Ip* ip) noexcept nogil:
    cdef const uint8_t* p = ip.head
    cdef uint64_t used
    cdef uint32_t tos, id
    r.ip_version[i] = ip.version
    r.proto[i] = ip.proto
    r.ip_len[i] = ip.length
    used = bit(C_IP_VERSION) | bit(C_PROTO) | bit(C_SRC_IP) | bit(C_DST_IP) | bit(C_IP_LEN) | bit(C_TTL)
    if ip.version == 4:
        tos = p[1]
        r.ttl[i] = p[8]
        id = be16(p + 4)
        r.ip_id[i] = id
        used |= if_set(id, C_IP_ID)
        r.src_ip[i] = be32(p + 12)
        r.dst_ip[i] = be32(p + 16)
    else:
        tos = be16(p) >> 4 & 0xFF
        r.ttl[i] = p[7]
        memcpy(r.src_ip6[i], p + 8, 16)
        memcpy(r.dst_ip6[i], p + 24, 16)
        r.src_ip[i] = fold6(p + 8)
        r.dst_ip[i] = fold6(p + 24)
        used |= bit(C_SRC_IP6) | bit(C_DST_IP6)
    r.dscp[i] = tos >> 2
    r.ecn[i] = tos & 3
    r.ip_flags[i] = ip.flags
    r.frag_offset[i] = ip.offset
    return (used | if_set(tos >> 2, C_DSCP) | if_set(tos & 3, C_ECN) | if_set(ip.flags, C_IP_FLAGS)
            | if_set(ip.offset, C_FRAG_OFFSET))


cdef inline uint64_t arp_fields(Rows* r, uint32_t i, Link* k) noexcept nogil:
    """Store sender and target of an ARP packet for IPv4."""
    cdef const uint8_t* p = k.data + k.at
    cdef uint32_t left = k.end - k.at, hardware, source, target
    cdef uint64_t used = 0
    if left < 8:
        k.notes |= NOTE_TRUNCATED
        return 0
    if be16(p + 2) != ETH_IP or p[5] != 4:
        return 0
    hardware = p[4]
    source, target = 8 + hardware, 12 + 2 * hardware
    if left >= source + 4:
        r.src_ip[i] = be32(p + source)
        used |= bit(C_SRC_IP)
    if left >= target + 4:
        r.dst_ip[i] = be32(p + target)
        used |= bit(C_DST_IP)
    else:
        k.notes |= NOTE_TRUNCATED
    return used


cdef inline bint read_ip(Ip* ip, Link* k) noexcept nogil:
    """Parse the IP header at `at` by its version number; False: no IP header."""
    cdef uint32_t version
    if k.type != ETH_IP and k.type != ETH_IP6:
        return False
    if k.at >= k.end:
        k.notes |= NOTE_TRUNCATED
        return False
    version = k.data[k.at] >> 4
    if version == 4:
        read_ip4(ip, k.data, k.end, k.wire, k.at)
    elif version == 6:
        read_ip6(ip, k.data, k.end, k.wire, k.at)
    else:
        k.notes |= NOTE_MALFORMED
        return False
    return True


cdef inline bint _inner(Link* k, Ip* ip, Shell* s) noexcept nogil:
    """Follow tunnels to the innermost IP header that is readable; False: there is a tunnel header above it."""
    cdef Ip next
    cdef int _depth
    for _depth in range(MAX_NESTING):
        if not s.type:
            break
        k.at, k.type = s.at, s.type
        _bound(k, ip.stop)
        walk_tags(k, False)
        if not read_ip(&next, k):
            break
        next.notes |= ip.notes & NOTE_TRUNCATED | NOTE_INNER
        ip[0] = next
        if next.head == next.copy:
            ip.head = ip.copy
        if not find_shell(s, ip, k.data, k.end):
            return True
    return False


cdef inline uint64_t link_fields(Rows* r, uint32_t i, Link* k) noexcept nogil:
    cdef uint64_t used = 0
    r.eth_type[i] = k.shown
    used |= if_set(k.shown, C_ETH_TYPE)
    if k.has_mac:
        r.eth_src[i] = k.src
        r.eth_dst[i] = k.dst
        used |= if_set(k.src, C_ETH_SRC) | if_set(k.dst, C_ETH_DST)
    if k.vlans:
        r.vlan[i] = k.vlan
        r.vlan2[i] = k.vlan2
        r.vlan_count[i] = k.vlans
        used |= if_set(k.vlan, C_VLAN) | if_set(k.vlan2, C_VLAN2) | bit(C_VLAN_COUNT)
    if k.labels:
        r.mpls_label[i] = k.label
        r.mpls_count[i] = k.labels
        used |= bit(C_MPLS_LABEL) | bit(C_MPLS_COUNT)
    return used


cdef inline Found telemetry(Rows* r, uint32_t i, Ip* ip, const uint8_t* data) noexcept nogil:
    """Store the telemetry that switches wrote into the options of this header."""
    cdef Found found = read_telemetry(r, i, data + ip.options, ip.options_end - ip.options, ip.version == 6)
    if found == BAD_TRACE:
        ip.notes |= NOTE_MALFORMED
    return found


cdef inline bint plain_frame(Rows* r, uint32_t i, const Frame* f, uint32_t wire, uint8_t* notes) noexcept nogil:
    """Fast path of the usual frame: Ethernet, complete IP header without options, complete TCP or UDP, no tunnel.

    False: any other frame; nothing is stored.  Stores the same values as `parse_frame`.
    """
    cdef const uint8_t* p = f.data
    cdef const uint8_t* q                   # transport header
    cdef uint32_t up, stop, left, length, proto, tos, src, dst, sport, dport, flags = 0, size = 0
    cdef uint64_t used
    cdef uint8_t seen = 0
    if f.link != LINKTYPE_EN10MB or f.cap < 42:
        return False
    if be16(p + 12) == ETH_IP:
        if p[14] != 0x45 or be16(p + 20) & 0x3FFF:
            return False
        up, length, proto = 34, be16(p + 16), p[23]
    elif be16(p + 12) == ETH_IP6:
        if p[14] >> 4 != 6 or f.cap < 62 or be16(p + 18) == 0:
            return False
        up, length, proto = 54, 40 + <uint32_t>be16(p + 18), p[20]
    else:
        return False
    stop = 14 + length
    if stop > wire:
        stop = wire
        seen = NOTE_MALFORMED
    left = f.cap if f.cap < stop else stop
    q = p + up
    if proto == TCP:
        if left < up + 20:
            return False
        left -= up
        flags = be16(q + 12)
        size = flags >> 12 << 2
        if size < 20 or left < size:
            return False
    elif proto == UDP:
        if left < up + 8 or is_tunnel_port(be16(q), be16(q + 2)):
            return False
        size = 8
    else:
        return False
    r.ts[i], r.len[i], r.cap_len[i], r.link_type[i] = f.ts, f.len, f.cap, LINKTYPE_EN10MB
    r.iface[i], r.file_offset[i], r.file_number[i] = f.iface, f.offset, f.number
    r.eth_dst[i], r.eth_src[i] = be48(p), be48(p + 6)
    r.ip_len[i], r.proto[i], r.payload_len[i] = length, proto, stop - up - size
    used = (bit(C_TS) | bit(C_LEN) | bit(C_CAP_LEN) | bit(C_LINK_TYPE) | bit(C_FILE_OFFSET) | bit(C_ETH_DST)
            | bit(C_ETH_SRC) | bit(C_ETH_TYPE) | bit(C_IP_LEN) | bit(C_IP_VERSION) | bit(C_PROTO) | bit(C_TTL)
            | bit(C_SRC_IP) | bit(C_DST_IP) | bit(C_SRC_PORT) | bit(C_DST_PORT) | bit(C_FLOW_HASH)
            | if_set(f.iface, C_IFACE) | if_set(f.number, C_FILE_NUMBER)
            | if_set(stop - up - size, C_PAYLOAD_LEN))
    if up == 34:
        tos = p[15]
        r.eth_type[i], r.ip_version[i], r.ttl[i] = ETH_IP, 4, p[22]
        r.ip_id[i], r.ip_flags[i] = be16(p + 18), p[20] >> 5
        src, dst = be32(p + 26), be32(p + 30)
        used |= if_set(be16(p + 18), C_IP_ID) | if_set(p[20] >> 5, C_IP_FLAGS)
    else:
        tos = be16(p + 14) >> 4 & 0xFF
        r.eth_type[i], r.ip_version[i], r.ttl[i] = ETH_IP6, 6, p[21]
        memcpy(r.src_ip6[i], p + 22, 16)
        memcpy(r.dst_ip6[i], p + 38, 16)
        src, dst = fold6(p + 22), fold6(p + 38)
        used |= bit(C_SRC_IP6) | bit(C_DST_IP6)
    r.dscp[i], r.ecn[i] = tos >> 2, tos & 3
    used |= if_set(tos >> 2, C_DSCP) | if_set(tos & 3, C_ECN)
    sport, dport = be16(q), be16(q + 2)
    r.src_ip[i], r.dst_ip[i], r.src_port[i], r.dst_port[i] = src, dst, sport, dport
    r.flow_hash[i] = flow_hash(src, dst, sport, dport, proto)
    if proto == TCP:
        r.tcp_seq[i], r.tcp_ack[i] = be32(q + 4), be32(q + 8)
        r.tcp_flags[i], r.tcp_window[i] = flags & 0xFFF, be16(q + 14)
        used |= bit(C_TCP_SEQ) | bit(C_TCP_ACK) | bit(C_TCP_FLAGS) | bit(C_TCP_WINDOW)
        if size == 32 and be32(q + 20) == 0x0101080A:       # two NOPs and a timestamp: almost always
            r.tcp_tsval[i], r.tcp_tsecr[i], r.tcp_opts[i] = be32(q + 24), be32(q + 28), OPT_TSTAMP
            used |= bit(C_TCP_TSVAL) | bit(C_TCP_TSECR) | bit(C_TCP_OPTS)
        elif size > 20:
            used |= tcp_options(r, i, q + 20, size - 20, &seen)
    seen |= f.notes
    r.notes[i] = notes[0] = seen
    r.used |= used | if_set(seen, C_NOTES)
    return True


cdef inline uint32_t parse_frame(Rows* r, uint32_t i, const Frame* f, bint inner) noexcept nogil:
    """Fill row i, which must be zero.  Returns the field `notes`, and NOT_FOLLOWED."""
    cdef Link k
    cdef Ip ip
    cdef Shell s
    cdef Found trace = NO_TRACE
    cdef uint64_t used
    cdef uint32_t wire = f.len if f.len < MAX_WIRE else MAX_WIRE
    cdef uint8_t notes
    cdef uint32_t stuck = 0
    if wire < f.cap:
        wire = f.cap
    if plain_frame(r, i, f, wire, &notes):
        return notes
    r.ts[i] = f.ts
    r.len[i] = f.len
    r.cap_len[i] = f.cap
    r.link_type[i] = f.link
    r.iface[i] = f.iface
    r.file_offset[i] = f.offset
    r.file_number[i] = f.number
    used = (bit(C_TS) | bit(C_LEN) | bit(C_CAP_LEN) | bit(C_FILE_OFFSET)
            | if_set(f.link, C_LINK_TYPE) | if_set(f.iface, C_IFACE) | if_set(f.number, C_FILE_NUMBER))
    open_link(&k, f.data, f.cap, wire, f.link)
    used |= link_fields(r, i, &k)
    if k.pppoe:
        r.tunnel[i] = T_PPPOE
        r.vni[i] = k.session
        used |= bit(C_TUNNEL) | if_set(k.session, C_VNI)
    if read_ip(&ip, &k):
        if expect(ip.options != 0, False):
            trace = telemetry(r, i, &ip, k.data)
        if expect(find_shell(&s, &ip, k.data, k.end), False):
            r.tunnel[i] = s.kind
            r.vni[i] = s.vni
            used |= bit(C_TUNNEL) | if_set(s.vni, C_VNI)
            if inner:
                if not _inner(&k, &ip, &s):
                    stuck = NOT_FOLLOWED
                if trace == NO_TRACE and ip.options and ip.notes & NOTE_INNER:
                    telemetry(r, i, &ip, k.data)
        used |= ip_fields(r, i, &ip)
        used |= transport(r, i, &ip, k.data, k.end)
        notes = k.notes | ip.notes
    else:
        if k.type == ETH_ARP or k.type == ETH_RARP:
            used |= arp_fields(r, i, &k)
        r.flow_hash[i] = pair_hash(k.src, k.dst, k.shown)
        used |= bit(C_FLOW_HASH)
        notes = k.notes
    notes |= f.notes
    r.notes[i] = notes
    r.used |= used | if_set(notes, C_NOTES)
    return notes | stuck
