# Datagrams of sFlow version 5 (sflow.org, sflow_version_5.txt) into rows: one for each sampled packet.
#
# The header of a sampled packet goes through the parser of all packets, so its fields are the same here as there.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from c_link_types cimport LINKTYPE_EN10MB, LINKTYPE_PPP, LINKTYPE_RAW
from c_netflow cimport *
from c_packet cimport parse_frame
from c_packet_columns cimport *
from c_pcap cimport Frame
from c_wire cimport be32, be48

cdef enum:
    SFLOW_VERSION = 5
    AGENT_V4 = 1
    AGENT_V6 = 2
    SAMPLE = 1                  # formats of samples
    COUNTERS = 2
    WIDE_SAMPLE = 3             # with whole 32-bit numbers of interfaces
    WIDE_COUNTERS = 4
    RAW_HEADER = 1              # formats of records in a sample
    ETHERNET = 2
    IPV4 = 3
    IPV6 = 4
    SWITCH = 1001
    ROUTER = 1002
    GATEWAY = 1003
    NO_INTERFACE = 0x3FFFFFFF   # the agent itself; above: formats without a number of an interface

ctypedef void (*wipe_fn)(Rows* rows) noexcept nogil

cdef struct Words:
    # Numbers of 32 bits, read one after the other; past the end they are 0 and `bad`.
    const uint8_t* p
    const uint8_t* end
    bint bad

cdef struct SampledPacket:
    Rows* rows                  # row 0 is that of the packet; else all zero
    wipe_fn wipe                # makes it zero again
    uint8_t next_hop[16]
    bint parsed                 # the sample says what packet it was


cdef inline uint32_t word(Words* w) noexcept nogil:
    cdef uint32_t v
    if w.end - w.p < 4:
        w.bad, w.p = True, w.end
        return 0
    v = be32(w.p)
    w.p += 4
    return v

cdef inline const uint8_t* opaque(Words* w, uint32_t size) noexcept nogil:
    """The next bytes, and what fills them up to a whole word; NULL: they are not there."""
    cdef const uint8_t* p = w.p
    if <size_t>(w.end - w.p) < size:
        w.bad, w.p = True, w.end
        return NULL
    w.p += min(<size_t>size + 3 & ~<size_t>3, <size_t>(w.end - w.p))
    return p

cdef inline bint part(Words* w, Words* inner) noexcept nogil:
    """A length and as many bytes; False: they are not there."""
    cdef uint32_t size = word(w)
    inner.p = opaque(w, size)
    inner.end, inner.bad = inner.p + size, False
    return inner.p != NULL

cdef inline const uint8_t* _address(Words* w, bint* six) noexcept nogil:
    """An address with its type; NULL: none."""
    cdef uint32_t type = word(w)
    six[0] = type == AGENT_V6
    return opaque(w, 16) if type == AGENT_V6 else opaque(w, 4) if type == AGENT_V4 else NULL


cdef inline void _if_set(ExportRecord* r, int value, uint64_t number) noexcept nogil:
    if number:
        put(r, value, number)


cdef inline void _put_vlan(ExportRecord* r, int value, uint32_t id) noexcept nogil:
    if 1 <= id <= 4095:
        put(r, value, id)


cdef inline void _raw_header(ExportRecord* r, SampledPacket* s, Words* w, int64_t received) noexcept nogil:
    cdef Frame f
    cdef Rows* k = s.rows
    cdef uint32_t protocol = word(w), size
    f.len = word(w)
    word(w)                                     # bytes stripped at the end
    size = word(w)
    f.data = opaque(w, size)
    if f.data == NULL or protocol != 1 and protocol != 7 and protocol != 11 and protocol != 12:
        return
    f.link = LINKTYPE_EN10MB if protocol == 1 else LINKTYPE_PPP if protocol == 7 else LINKTYPE_RAW
    f.cap, f.ts, f.offset, f.number, f.iface, f.notes = size, received, 0, 0, 0, 0
    parse_frame(k, 0, &f, False)
    s.parsed = True
    _if_set(r, V_VERSION, k.ip_version[0])
    _if_set(r, V_PROTO, k.proto[0])
    if k.ip_version[0] == 6:
        put_address(r, A_SRC + A_SIX, k.src_ip6[0])
        put_address(r, A_DST + A_SIX, k.dst_ip6[0])
    _if_set(r, V_SPORT, k.src_port[0])
    _if_set(r, V_DPORT, k.dst_port[0])
    put(r, V_BYTES, k.ip_len[0] if k.ip_version[0] else f.len)
    _if_set(r, V_FLAGS, k.tcp_flags[0])
    _if_set(r, V_TYPE, k.icmp_type[0])
    _if_set(r, V_CODE, k.icmp_code[0])
    _if_set(r, V_DSCP, k.dscp[0])
    _if_set(r, V_ECN, k.ecn[0])
    _if_set(r, V_TTL, k.ttl[0])
    _if_set(r, V_ETH_SRC, k.eth_src[0])
    _if_set(r, V_ETH_DST, k.eth_dst[0])
    _if_set(r, V_VLAN, k.vlan[0])
    _if_set(r, V_LABEL, <uint64_t>k.mpls_label[0] << 4)
    _if_set(r, V_TUNNEL, k.tunnel[0])
    _if_set(r, V_VNI, k.vni[0])


cdef inline void _plain_header(ExportRecord* r, SampledPacket* s, Words* w, uint32_t format) noexcept nogil:
    """The fields of a packet without its header: Ethernet, IPv4 or IPv6."""
    cdef uint32_t length = word(w), size = 16 if format == IPV6 else 4
    cdef const uint8_t* p
    if format == ETHERNET:
        p = opaque(w, 8)
        if p != NULL:
            put(r, V_ETH_SRC, be48(p))
        p = opaque(w, 8)
        if p != NULL:
            put(r, V_ETH_DST, be48(p))
        if not s.parsed:
            put(r, V_BYTES, length)
        s.parsed = True
        return
    put(r, V_PROTO, word(w))
    p = opaque(w, 2 * size)
    if p == NULL:
        return
    put_address(r, A_SRC + (A_SIX if size == 16 else 0), p)
    put_address(r, A_DST + (A_SIX if size == 16 else 0), p + size)
    put(r, V_SPORT, word(w))
    put(r, V_DPORT, word(w))
    put(r, V_FLAGS, word(w))
    put(r, V_TOS, word(w))
    put(r, V_BYTES, length)
    s.parsed = True


cdef inline void _next_hop(ExportRecord* r, Words* w, int place) noexcept nogil:
    cdef bint six
    cdef const uint8_t* p = _address(w, &six)
    if p != NULL:
        put_address(r, place + (A_SIX if six else 0), p)


cdef inline void _gateway(ExportRecord* r, Words* w) noexcept nogil:
    """Autonomous systems: the last one of the path is that of the destination; without a path it is our own."""
    cdef uint32_t own, source, segments, n, _i, last = 0
    _next_hop(r, w, A_BGP)
    own = word(w)
    source = word(w)
    word(w)                                     # the neighbour
    segments = word(w)
    for _i in range(segments):
        word(w)                                 # set or sequence
        n = word(w)
        if w.bad or n > 4096 or n and opaque(w, 4 * n - 4) == NULL:
            return
        if n:
            last = word(w)
    put(r, V_SRC_AS, source if source else own)
    put(r, V_DST_AS, last if last else own)


cdef inline void _sample(ExportDecoder* d, SampledPacket* s, Words* w, uint32_t number, const ExportHeader* h,
                         bint wide) noexcept nogil:
    cdef ExportRecord* r = &d.record
    cdef Words inner
    cdef Rows* k = s.rows
    cdef uint32_t into, out, records, format, _i
    cdef uint8_t four[8]
    record_begin(r)
    s.parsed = False
    word(w)                                     # number of the sample
    word(w)                                     # its source
    if wide:
        word(w)
    _if_set(r, V_SAMPLING, word(w))
    word(w)                                     # packets it was taken from
    word(w)                                     # samples dropped so far
    if wide:
        into = word(w) << 30 | word(w) & 0x3FFFFFFF
        out = word(w) << 30 | word(w) & 0x3FFFFFFF
    else:
        into = word(w)
        out = word(w)
    if into < NO_INTERFACE:                     # else: unknown, several, or why it was dropped
        put(r, V_IN, into)
    if out < NO_INTERFACE:
        put(r, V_OUT, out)
    records = word(w)
    for _i in range(records):
        format = word(w)
        if w.bad or not part(w, &inner):
            w.bad = True
            break
        if format == RAW_HEADER and not s.parsed:
            _raw_header(r, s, &inner, h.received)
        elif (format == ETHERNET or format == IPV4 or format == IPV6) and not k.used:
            _plain_header(r, s, &inner, format)
        elif format == SWITCH:
            _put_vlan(r, V_VLAN, word(&inner))
            word(&inner)                        # priority
            _put_vlan(r, V_OUT_VLAN, word(&inner))
        elif format == ROUTER:
            _next_hop(r, &inner, A_NEXT)
            put(r, V_SRC_MASK, word(&inner))
            put(r, V_DST_MASK, word(&inner))
        elif format == GATEWAY:
            _gateway(r, &inner)
    if s.parsed:
        if k.used and k.ip_version[0] == 4:
            _big_endian(four, k.src_ip[0])
            _big_endian(four + 4, k.dst_ip[0])
            put_address(r, A_SRC, four)
            put_address(r, A_DST, four + 4)
        put(r, V_PACKETS, 1)
        put(r, V_LAST, <uint64_t>h.received)
        flow_row(d, number, h)
    else:
        d.counts.other_samples += 1
    if k.used:
        s.wipe(k)


cdef inline void _big_endian(uint8_t* p, uint32_t v) noexcept nogil:
    p[0], p[1], p[2], p[3] = v >> 24, v >> 16 & 0xFF, v >> 8 & 0xFF, v & 0xFF


cdef inline void decode_sflow(ExportDecoder* d, SampledPacket* s, const uint8_t* p, uint32_t size,
                              int64_t received) noexcept nogil:
    """One datagram; the exporter is the agent that it names."""
    cdef ExportHeader h
    cdef Words w, inner
    cdef uint8_t agent[16]
    cdef uint32_t number, n, format, _i
    cdef const uint8_t* a
    cdef bint late, six
    cdef Exporter* e
    d.counts.datagrams += 1
    d.counts.bytes += size
    w.p, w.end, w.bad = p, p + size, False
    if word(&w) != SFLOW_VERSION:
        d.counts.unknown += 1
        return
    a = _address(&w, &six)
    h.source_id = word(&w)
    h.sequence = word(&w)
    h.uptime = word(&w)
    n = word(&w)
    if a == NULL or w.bad:
        d.counts.malformed += 1
        return
    if six:
        memcpy(agent, a, 16)
    else:
        map_address(agent, a)
    h.address, h.received, h.exported, h.has_uptime, h.export = agent, received, 0, False, SFLOW_EXPORT
    number = exporter_of(d, &h, 0)
    e = &d.sources.exporter[number]
    if e.datagrams and h.uptime < e.uptime and e.uptime - h.uptime > 10000 and h.sequence < e.expected:
        new_sequence(e)
    late = see_sequence(e, h.sequence)
    for _i in range(n):
        format = word(&w)
        if w.bad or not part(&w, &inner):
            w.bad = True
            break
        if format == SAMPLE or format == WIDE_SAMPLE:
            _sample(d, s, &inner, number, &h, format == WIDE_SAMPLE)
        elif format == COUNTERS or format == WIDE_COUNTERS:
            d.counts.counters += 1
        else:
            d.counts.other_samples += 1
        w.bad = w.bad or inner.bad
    d.counts.malformed += w.bad
    _end_datagram(d, number, &h, 1, late, True)
