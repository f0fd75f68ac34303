# Datagrams of NetFlow v5, NetFlow v9 (RFC 3954) and IPFIX (RFC 7011) into rows.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from libc.stdlib cimport free
from c_wire cimport be16, be32
from c_export_record cimport *
from c_export_sources cimport *
from c_export_template cimport *
from c_export_waiting cimport *

cdef enum:
    V5_HEADER = 24
    V5_RECORD = 48
    V9_HEADER = 20
    IPFIX_HEADER = 16
    FIRST_TEMPLATE = 256        # id of a set of data; those below are templates
    SFLOW_EXPORT = 1            # values of the field export
    V5_EXPORT = 5
    V9_EXPORT = 9
    IPFIX_EXPORT = 10

cdef struct ExportCounts:
    uint64_t datagrams
    uint64_t bytes
    uint64_t unknown            # of another protocol or version
    uint64_t malformed          # datagrams that are cut or contradict themselves
    uint64_t templates
    uint64_t bad_templates
    uint64_t options            # options records
    uint64_t other_records      # records without an address: not of flows
    uint64_t waited             # sets of data that came before their template
    uint64_t counters           # counter samples of sFlow
    uint64_t other_samples      # samples of sFlow without a packet that is parsed
    uint64_t no_memory          # rows and templates

cdef struct ExportDecoder:
    RowWriter rows
    Sources sources
    WaitingSets waiting
    ExportCounts counts
    ExportRecord record


cdef inline uint32_t exporter_of(ExportDecoder* d, const ExportHeader* h, uint16_t port) noexcept nogil:
    """The exporter of a datagram; ``port``: of its session, 0 if that does not matter."""
    cdef uint64_t key[3]
    memcpy(key, h.address, 16)
    key[2] = <uint64_t>port << 48 | <uint64_t>h.export << 32 | h.source_id
    return source_of(&d.sources, key)


cdef inline void map_address(uint8_t* to, const uint8_t* four) noexcept nogil:
    """An IPv4 address in the form of IPv6."""
    memset(to, 0, 10)
    to[10] = to[11] = 0xFF
    memcpy(to + 12, four, 4)


cdef inline void put_exporter(ExportRecord* r, const ExportHeader* h) noexcept nogil:
    """The columns that all records of a datagram share."""
    cdef const uint8_t* a = h.address
    if _is_mapped(a):
        put_address(r, A_EXPORTER, a + 12)
    else:
        put_address(r, A_EXPORTER + A_SIX, a)
    put(r, V_SOURCE_ID, h.source_id)
    put(r, V_EXPORT, h.export)
    put(r, V_EXPORTED, <uint64_t>h.exported)
    put(r, V_RECEIVED, <uint64_t>h.received)


cdef inline bint _is_mapped(const uint8_t* a) noexcept nogil:
    """Whether this is an IPv4 address in the form of IPv6."""
    cdef int i
    for i in range(10):
        if a[i]:
            return False
    return a[10] == 0xFF and a[11] == 0xFF


cdef inline bint flow_row(ExportDecoder* d, uint32_t number, const ExportHeader* h) noexcept nogil:
    """A row of d.record."""
    cdef ExportRecord* r = &d.record
    cdef Exporter* e = &d.sources.exporter[number]
    cdef uint32_t rate
    own_sampling(r)
    if not has(r, V_SAMPLING):
        rate = rate_of(e, has(r, V_SAMPLER), <uint32_t>r.number[V_SAMPLER])
        if rate:
            put(r, V_SAMPLING, rate)
    if e.boot and not has(r, V_BOOT):
        put(r, V_BOOT, <uint64_t>e.boot)
    if e.name_count:
        if has(r, V_IN):
            r.in_name = name_of(e, <uint32_t>r.number[V_IN])
        if has(r, V_OUT):
            r.out_name = name_of(e, <uint32_t>r.number[V_OUT])
    put_exporter(r, h)
    if not write_record(&d.rows, r, h):
        d.counts.no_memory += 1
        return False
    e.records += 1
    return True


# -- NetFlow v5

cdef inline void _v5_record(ExportRecord* r, const uint8_t* p, uint32_t sampling) noexcept nogil:
    record_begin(r)
    put_address(r, A_SRC, p)
    put_address(r, A_DST, p + 4)
    if be32(p + 8):
        put_address(r, A_NEXT, p + 8)
    put(r, V_IN, be16(p + 12))
    put(r, V_OUT, be16(p + 14))
    put(r, V_PACKETS, be32(p + 16))
    put(r, V_BYTES, be32(p + 20))
    put(r, V_FIRST_UP, be32(p + 24))
    put(r, V_LAST_UP, be32(p + 28))
    put(r, V_SPORT, be16(p + 32))
    put(r, V_DPORT, be16(p + 34))
    put(r, V_FLAGS, p[37])
    put(r, V_PROTO, p[38])
    put(r, V_TOS, p[39])
    put(r, V_SRC_AS, be16(p + 40))
    put(r, V_DST_AS, be16(p + 42))
    put(r, V_SRC_MASK, p[44])
    put(r, V_DST_MASK, p[45])
    if sampling:
        put(r, V_SAMPLING, sampling)
    icmp_of_port(r)


cdef inline void icmp_of_port(ExportRecord* r) noexcept nogil:
    """Type and code of ICMP, which may be in the destination port; other protocols have none."""
    cdef uint64_t kinds = <uint64_t>1 << V_ICMP | <uint64_t>1 << V_TYPE | <uint64_t>1 << V_CODE
    if not has(r, V_PROTO):
        return
    if r.number[V_PROTO] != 1 and r.number[V_PROTO] != 58:
        r.used &= ~kinds
        return
    if not r.used & kinds and has(r, V_DPORT):
        put(r, V_ICMP, r.number[V_DPORT])
    r.used &= ~(<uint64_t>1 << V_DPORT)


cdef inline void _v5(ExportDecoder* d, const uint8_t* p, uint32_t size, ExportHeader* h) noexcept nogil:
    cdef uint32_t n, i, number, sampling
    cdef bint late
    cdef Exporter* e
    if size < V5_HEADER:
        d.counts.malformed += 1
        return
    n = be16(p + 2)
    if size < V5_HEADER + n * V5_RECORD:
        d.counts.malformed += 1
        n = (size - V5_HEADER) // V5_RECORD
    h.uptime, h.has_uptime = be32(p + 4), True
    h.exported = <int64_t>be32(p + 8) * SECOND + be32(p + 12)
    h.sequence, h.source_id = be32(p + 16), be16(p + 20)
    sampling = be16(p + 22) & 0x3FFF            # above: the mode
    number = exporter_of(d, h, 0)
    e = &d.sources.exporter[number]
    if restarted(e, h.uptime, h.exported):
        new_sequence(e)
    late = see_sequence(e, h.sequence)
    for i in range(n):
        _v5_record(&d.record, p + V5_HEADER + i * V5_RECORD, sampling)
        flow_row(d, number, h)
    _end_datagram(d, number, h, n, late, True)


cdef inline void _end_datagram(ExportDecoder* d, uint32_t number, const ExportHeader* h, uint32_t n, bint late,
                               bint known) noexcept nogil:
    cdef Exporter* e = &d.sources.exporter[number]
    end_sequence(e, h.sequence, n, late, known)
    if not late:
        e.uptime, e.exported = h.uptime, h.exported
    e.datagrams += 1
    if e.records:
        prove(&d.sources, number)


# -- templates and data

cdef inline void _options_record(ExportDecoder* d, uint32_t number) noexcept nogil:
    """Keep what an options record says: a sampling rate, the name of an interface, the start of the exporter."""
    cdef ExportRecord* r = &d.record
    cdef Exporter* e = &d.sources.exporter[number]
    cdef bint named = has(r, V_SAMPLER)
    d.counts.options += 1
    own_sampling(r)
    if has(r, V_SAMPLING):
        set_rate(e, named, <uint32_t>r.number[V_SAMPLER] if named else 0, <uint32_t>min(
            r.number[V_SAMPLING], <uint64_t>0xFFFFFFFFu))
    if has(r, V_BOOT):
        e.boot = <int64_t>r.number[V_BOOT]
    if r.text_size and has(r, V_IN):
        set_name(&d.sources, number, <uint32_t>r.number[V_IN], r.text, r.text_size)


cdef inline uint32_t _data(ExportDecoder* d, uint32_t number, const Template* t, const uint8_t* p, const uint8_t* end,
                           const ExportHeader* h, bint waited) noexcept nogil:
    """The records of a set; returns their number.  What is left, shorter than a record, is padding."""
    cdef uint32_t n = 0
    cdef ExportRecord* r = &d.record
    while <size_t>(end - p) >= t.length:
        p = read_record(r, t, p, end, h)
        if p == NULL:                           # padding that looks like a record, or a length that lies
            break
        n += 1
        if t.options:
            _options_record(d, number)
        elif not t.flow:
            d.counts.other_records += 1
        else:
            if waited:
                add_note(r, NOTE_WAITED)
            icmp_of_port(r)
            flow_row(d, number, h)
    return n


cdef inline void _release(ExportDecoder* d, uint32_t number, const Template* t) noexcept nogil:
    """Read the sets that waited for this template."""
    cdef WaitingSets* w = &d.waiting
    cdef Exporter* e = &d.sources.exporter[number]
    cdef WaitingSet* item
    cdef uint64_t i
    for i in range(w.first, w.end):
        if e.waiting == 0:
            break
        item = &w.item[i & (MAX_WAITING - 1)]
        if item.data == NULL or item.exporter != number or item.generation != e.generation or item.id != t.id:
            continue
        item.header.address = <const uint8_t*>e.key
        _data(d, number, t, item.data, item.data + item.size, &item.header, True)
        d.counts.waited += 1
        end_waiting(w, &d.sources, item)


cdef inline bint _open_list(FieldList* f, uint16_t* id) noexcept nogil:
    """The head of a template; False: it is cut."""
    cdef uint32_t head = 6 if f.options else 4
    if <size_t>(f.end - f.p) < head:
        return False
    id[0], f.left, f.scopes = be16(f.p), be16(f.p + 2), 0
    if f.options:
        f.scopes = be16(f.p + 4)
        if not f.ipfix:                         # lengths in bytes: of the scopes, of the options
            f.scopes, f.left = f.left // 4, f.left // 4 + f.scopes // 4
        elif f.left == 0:
            head = 4                            # a withdrawal has no number of scopes
            f.scopes = 0
    f.p += head
    return True


cdef inline bint _templates(ExportDecoder* d, uint32_t number, const uint8_t* p, const uint8_t* end, bint ipfix,
                            bint options) noexcept nogil:
    """The templates of a set; False: it contradicts itself."""
    cdef Sources* s = &d.sources
    cdef Exporter* e = &s.exporter[number]
    cdef Template* t
    cdef FieldList f
    cdef uint16_t id
    cdef Fate fate
    f.p, f.end, f.ipfix, f.options = p, end, ipfix, options
    while f.end - f.p >= 4:
        if be32(f.p) == 0:                      # padding
            return True
        if not _open_list(&f, &id):
            d.counts.bad_templates += 1
            return False
        if f.left == 0 and ipfix:
            if id == 2 or id == 3:
                forget_templates(s, e)          # all of them, so that one rule is enough for both kinds
            else:
                remove_template(s, e, id)
            continue
        fate = IMPOSSIBLE
        if f.left and f.scopes <= f.left:
            fate = compile_template(&f, id, &t)
        if fate == KEPT and id < FIRST_TEMPLATE:
            free(t)
            fate = IMPOSSIBLE
        if fate != KEPT:
            d.counts.no_memory += fate == NO_MEMORY
            d.counts.bad_templates += 1
            if fate == IMPOSSIBLE and f.left == 0:
                remove_template(s, e, id)       # what came before is not valid any more
                continue
            return False
        d.counts.templates += 1
        if not put_template(s, number, t):
            d.counts.no_memory += 1
        elif e.waiting:
            _release(d, number, t)
    return True


cdef inline bint _sets(ExportDecoder* d, uint32_t number, const uint8_t* p, const uint8_t* end, const ExportHeader* h,
                       uint32_t* records, bint* known) noexcept nogil:
    """The sets of a datagram; False: it contradicts itself.  ``records``: those of data; ``known``: all of them."""
    cdef bint ipfix = h.export == IPFIX_EXPORT, good = True
    cdef uint32_t id, size
    cdef const Template* t
    while end - p >= 4:
        id, size = be16(p), be16(p + 2)
        if size < 4:
            return id == 0 and size == 0 and good       # padding after the last set
        if size > <size_t>(end - p):
            known[0] = False
            return False
        if id == (2 if ipfix else 0):
            good = _templates(d, number, p + 4, p + size, ipfix, False) and good
        elif id == (3 if ipfix else 1):
            good = _templates(d, number, p + 4, p + size, ipfix, True) and good
        elif id >= FIRST_TEMPLATE:
            t = find_template(&d.sources, &d.sources.exporter[number], id)
            if t != NULL:
                records[0] += _data(d, number, t, p + 4, p + size, h, False)
            else:
                known[0] = False
                wait_for_template(&d.waiting, &d.sources, number, id, h, p + 4, size - 4)
        p += size
    return good


cdef inline void _v9(ExportDecoder* d, const uint8_t* p, uint32_t size, ExportHeader* h) noexcept nogil:
    cdef uint32_t number, records = 0
    cdef bint late, known = True
    cdef Exporter* e
    if size < V9_HEADER:
        d.counts.malformed += 1
        return
    h.uptime, h.has_uptime, h.exported = be32(p + 4), True, <int64_t>be32(p + 8) * SECOND
    h.sequence, h.source_id = be32(p + 12), be32(p + 16)
    number = exporter_of(d, h, 0)
    e = &d.sources.exporter[number]
    if restarted(e, h.uptime, h.exported):
        drop_waiting_of(&d.waiting, &d.sources, number)
        forget(&d.sources, e)
        new_sequence(e)
    late = see_sequence(e, h.sequence)
    if not _sets(d, number, p + V9_HEADER, p + size, h, &records, &known):
        d.counts.malformed += 1
    _end_datagram(d, number, h, 1, late, True)


cdef inline void _ipfix(ExportDecoder* d, const uint8_t* p, uint32_t size, ExportHeader* h,
                        uint16_t port) noexcept nogil:
    cdef uint32_t number, records = 0, length
    cdef bint late, known = True, whole = True
    cdef Exporter* e
    if size < IPFIX_HEADER or be16(p + 2) < IPFIX_HEADER:
        d.counts.malformed += 1
        return
    length = be16(p + 2)
    if length > size:
        length, whole, known = size, False, False
    h.exported = <int64_t>be32(p + 4) * SECOND
    h.sequence, h.source_id = be32(p + 8), be32(p + 12)
    number = exporter_of(d, h, port)
    e = &d.sources.exporter[number]
    late = see_sequence(e, h.sequence)
    if not _sets(d, number, p + IPFIX_HEADER, p + length, h, &records, &known) or not whole:
        d.counts.malformed += 1
    _end_datagram(d, number, h, records, late, known)


cdef inline void decode_netflow(ExportDecoder* d, const uint8_t* p, uint32_t size, const uint8_t* address,
                                uint16_t port, int64_t received) noexcept nogil:
    """One datagram from this address (16 bytes) and port."""
    cdef ExportHeader h
    cdef uint32_t version = be16(p) if size >= 2 else 0
    d.counts.datagrams += 1
    d.counts.bytes += size
    h.address, h.received, h.uptime, h.has_uptime, h.export = address, received, 0, False, version
    if version == V5_EXPORT:
        _v5(d, p, size, &h)
    elif version == V9_EXPORT:
        _v9(d, p, size, &h)
    elif version == IPFIX_EXPORT:
        _ipfix(d, p, size, &h, port)
    else:
        d.counts.unknown += 1
