"""State of the flows of an epoch: as bytes for another process or host, and merged with that of other records.

Bytes: as state_bytes.pyx says, with numbers as in c_state_bytes.pxd: totals, components, flows with
loss, their five-tuples, flows without loss by their ToRs, IPv6 addresses, failed links, and the records that are
kept.  What is read is not trusted: every length and number is checked against what it counts or points to.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from c_array cimport grow
from c_hash_table cimport hash1, hash2, table_insert, table_insert1, table_insert2, table_reserve
from c_state_bytes cimport (
    StateIn, StateOut, put_number, put_raw, put_signed, take_below, take_count, take_number, take_raw, take_signed,
)
from confluo_tools.core.base.state_bytes cimport close_state, damaged_state, open_state, put_head, state_bytes
from confluo_tools.core.block.block cimport Block, Layout
from confluo_tools.core.vote.flow_tally cimport ENDS6, MAX_PARTS, NONE, FlowTally, Seen

MAGIC = b"CFPATHS\x01"
cdef str SHARE = "paths"

cdef enum:
    TOTALS = 12
    MAX_ROWS = 65536                    # of a block
    SEEN_BYTES = 18                     # of a flow with loss, at least

cdef uint64_t MAX_TOTAL = <uint64_t>1 << 60


cdef void _put_totals(const uint64_t** of, StateOut* o) noexcept nogil:
    cdef int i
    for i in range(TOTALS):
        put_number(o, of[i][0])


cdef void _totals(FlowTally t, uint64_t** of) noexcept:
    of[0], of[1], of[2], of[3] = &t.records, &t.sent, &t.lost, &t.healthy_flows
    of[4], of[5], of[6], of[7] = &t.healthy_sent, &t.repeated, &t.partial, &t.loops
    of[8], of[9], of[10], of[11] = &t.cut, &t.pathless, &t.placeless, &t.probes


def dump(FlowTally t not None):
    """The state as bytes for `load`.  Raises ValueError once the paths are extended, and MemoryError."""
    cdef uint64_t* total[TOTALS]
    cdef StateOut o
    cdef Block block
    cdef int col
    if t.extended:
        raise ValueError("the paths are extended already")
    _totals(t, total)
    put_head(&o, MAGIC, t.question)
    with nogil:
        _put_totals(<const uint64_t**>total, &o)
        _put_components(&o, t)
        _put_flows(&o, t)
        _put_healthy(&o, t)
    put_number(&o, len(t.kept))
    for block in t.kept:
        put_number(&o, block.rows)
        for col in range(block.layout.n):
            put_raw(&o, block.col[col], <uint64_t>block.rows * block.layout.column[col].width)
    for i in range(t.kept_rows):
        put_number(&o, t.kept_flow[i])
    return state_bytes(&o)


cdef void _put_components(StateOut* o, FlowTally t) noexcept nogil:
    cdef uint32_t i
    put_number(o, t.table.count)
    put_raw(o, t.table.keys, <uint64_t>t.table.count * 8)
    for i in range(t.table.count):
        put_number(o, t.good[i])
        put_number(o, t.carried[i])
        if t.switches:
            put_number(o, t.tiers[i])


cdef void _put_flows(StateOut* o, FlowTally t) noexcept nogil:
    cdef uint64_t i, j
    cdef const Seen* s
    put_number(o, t.flows)
    for i in range(t.flows):
        s = &t.seen[i]
        put_number(o, s.lost)
        put_number(o, s.sent)
        put_number(o, s.truth >> 32)
        put_number(o, <uint32_t>s.truth)
        put_signed(o, s.first)
        put_signed(o, <int64_t>(<uint64_t>s.traced - <uint64_t>s.first))
        put_signed(o, <int64_t>(<uint64_t>s.latest - <uint64_t>s.first))
        put_number(o, s.src)
        put_number(o, s.dst)
        put_number(o, s.src_tor)
        put_number(o, s.dst_tor)
        put_number(o, s.last)
        put_number(o, s.gap_from)
        put_number(o, s.gap_to)
        put_number(o, s.n)
        put_number(o, s.hops)
        put_number(o, s.noise)
        put_number(o, s.dead)
        for j in range(s.n):
            put_number(o, t.part[s.start + j])
    put_number(o, t.ends6.count)
    put_raw(o, t.ends6.keys, <uint64_t>t.ends6.count * ENDS6 * 8)
    put_number(o, t.known.count)
    for i in range(t.known.count):
        put_number(o, t.known.keys[2 * i])
        put_number(o, t.known.keys[2 * i + 1])
        put_number(o, t.same[i])


cdef void _put_healthy(StateOut* o, FlowTally t) noexcept nogil:
    cdef uint64_t i
    put_number(o, t.pairs.count)
    for i in range(t.pairs.count):
        put_number(o, t.pairs.keys[2 * i])
        put_number(o, t.pairs.keys[2 * i + 1])
        put_number(o, t.times[i])
    put_number(o, t.named.count)
    for i in range(t.named.count):
        put_number(o, t.named.keys[i])
        put_raw(o, t.names + i * 16, 16)
    put_number(o, t.failures)
    for i in range(t.failures):
        put_number(o, t.failed[i])


# ---- reading -----------------------------------------------------------------------------------------------------

cdef int _bad(str what) except -1:
    return damaged_state(SHARE, what)


def load(FlowTally t not None, const uint8_t[::1] data not None, Layout layout=None):
    """Decode the output of `dump` into an empty tally of the same question.  ``layout``: of the records it keeps.

    Raises ValueError if the question differs, the bytes are damaged, or ``t`` is not empty, and MemoryError; after an
    error ``t`` is unusable.
    """
    cdef uint64_t* total[TOTALS]
    cdef StateIn b
    cdef int i
    if t.records or t.failures or t.table.count or t.keep != (layout is not None):
        raise ValueError("the tally is not empty, or the layout of its records is missing")
    open_state(&b, data, MAGIC, t.question, SHARE)
    _totals(t, total)
    for i in range(TOTALS):
        total[i][0] = take_below(&b, MAX_TOTAL)
    _get_components(t, &b)
    _get_flows(t, &b)
    _get_known(t, &b)
    _get_healthy(t, &b)
    _get_kept(t, &b, layout)
    close_state(&b, SHARE)


cdef int _get_components(FlowTally t, StateIn* b) except -1:
    cdef uint64_t n = take_count(b, 10), i, key
    cdef const uint8_t* keys = take_raw(b, n * 8)
    if n == 0:
        return 0
    if (table_reserve(&t.table, n) < 0 or grow(<void**>&t.good, &t.good_room, n, 256, 8) < 0
            or grow(<void**>&t.carried, &t.carried_room, n, 256, 4) < 0
            or (t.switches and grow(<void**>&t.tiers, &t.tiers_room, n, 256, 1) < 0)):
        raise MemoryError
    for i in range(n):
        memcpy(&key, keys + i * 8, 8)
        b.bad |= table_insert1(&t.table, hash1(&t.table, key), key) != i or (t.switches and key >> 32 != 0)
        t.good[i], t.carried[i] = take_below(b, MAX_TOTAL), <uint32_t>take_below(b, NONE)
        if t.switches:
            t.tiers[i] = <uint8_t>take_below(b, MAX_PARTS)
    if b.bad:
        _bad("its links or switches")
    return 0


cdef int _get_flows(FlowTally t, StateIn* b) except -1:
    cdef uint64_t n = take_count(b, SEEN_BYTES), i, lost = 0, sent = 0
    cdef Seen* s
    if n >= 0x7FFFFFFF or (n and grow(<void**>&t.seen, &t.flow_room, n, 256, sizeof(Seen)) < 0):
        raise MemoryError
    for i in range(n):
        s = &t.seen[i]
        _get_flow(b, s, t.switches)
        lost += s.lost
        sent += s.sent
        if b.bad or lost > t.lost or sent > t.sent:
            _bad("a flow with loss")
        if grow(<void**>&t.part, &t.part_room, t.parts + s.n, 256, 4) < 0:
            raise MemoryError
        s.start = t.parts
        for _ in range(s.n):
            t.part[t.parts] = <uint32_t>take_below(b, t.table.count)
            t.parts += 1
    if b.bad or n + t.healthy_flows + t.probes > t.records or n + t.repeated > t.records:
        _bad("the number of flows")
    t.flows = n
    return 0


cdef void _get_flow(StateIn* b, Seen* s, bint switches) noexcept nogil:
    memset(s, 0, sizeof(Seen))
    s.lost, s.sent = take_below(b, MAX_TOTAL), take_below(b, MAX_TOTAL)
    s.truth = _node(b) << 32
    s.truth |= _node(b)
    s.first = take_signed(b)
    s.traced = <int64_t>(<uint64_t>s.first + <uint64_t>take_signed(b))
    s.latest = <int64_t>(<uint64_t>s.first + <uint64_t>take_signed(b))
    s.src, s.dst = <uint32_t>_node(b), <uint32_t>_node(b)
    s.src_tor, s.dst_tor = <uint32_t>_node(b), <uint32_t>_node(b)
    s.last, s.gap_from, s.gap_to = <uint32_t>_node(b), <uint32_t>_node(b), <uint32_t>_node(b)
    s.n, s.hops = <uint8_t>take_below(b, MAX_PARTS + 1), <uint8_t>take_below(b, MAX_PARTS + 1)
    s.noise, s.dead = <uint8_t>take_below(b, 2), <uint8_t>take_below(b, 1 if switches else 2)
    s.known = s.n
    b.bad |= s.lost == 0 or s.lost > s.sent


cdef uint64_t _node(StateIn* b) noexcept nogil:
    return take_below(b, <uint64_t>1 << 32)


cdef int _get_known(FlowTally t, StateIn* b) except -1:
    cdef uint64_t n = take_count(b, ENDS6 * 8), i, first, second
    cdef uint64_t key[ENDS6]
    cdef bytearray taken = bytearray(t.flows)
    cdef uint8_t* flag = taken
    if n and table_reserve(&t.ends6, n) < 0:
        raise MemoryError
    for i in range(n):
        memcpy(key, take_raw(b, ENDS6 * 8), ENDS6 * 8)
        b.bad |= table_insert(&t.ends6, key) != i
    n = take_count(b, 3)
    if n and (table_reserve(&t.known, n) < 0 or grow(<void**>&t.same, &t.same_room, n, 256, 8) < 0):
        raise MemoryError
    for i in range(n):
        first, second = take_number(b), take_below(b, <uint64_t>1 << 48)
        t.same[i] = take_below(b, t.flows)
        b.bad |= second & 0xFF == 6 and first >= t.ends6.count
        if b.bad or flag[t.same[i]] or table_insert2(&t.known, hash2(&t.known, first, second), first, second) != i:
            _bad("the addresses of a flow")
        flag[t.same[i]] = 1
    if b.bad:
        _bad("an IPv6 address")
    return 0


cdef int _get_healthy(FlowTally t, StateIn* b) except -1:
    cdef uint64_t n = take_count(b, 3), i, first, second, flows = 0
    if n and (table_reserve(&t.pairs, n) < 0 or grow(<void**>&t.times, &t.times_room, n, 256, 8) < 0):
        raise MemoryError
    for i in range(n):
        first, second, t.times[i] = take_number(b), take_below(b, MAX_TOTAL), take_below(b, t.healthy_flows + 1)
        flows += t.times[i]
        b.bad |= t.times[i] == 0 or flows > t.healthy_flows
        b.bad |= table_insert2(&t.pairs, hash2(&t.pairs, first, second), first, second) != i
        if b.bad:
            _bad("a flow without loss")
    n = take_count(b, 17)
    if n and (table_reserve(&t.named, n) < 0 or grow(<void**>&t.names, &t.names_room, n, 256, 16) < 0):
        raise MemoryError
    for i in range(n):
        first = _node(b)
        b.bad |= table_insert1(&t.named, hash1(&t.named, first), first) != i
        if b.bad or <uint64_t>(b.end - b.at) < 16:
            _bad("the address of a node")
        memcpy(t.names + i * 16, take_raw(b, 16), 16)
    n = take_count(b, 1)
    if n and grow(<void**>&t.failed, &t.failed_room, n, 256, 8) < 0:
        raise MemoryError
    for i in range(n):
        t.failed[i] = take_number(b)
    t.failures = n
    return 0


cdef int _get_kept(FlowTally t, StateIn* b, Layout layout) except -1:
    cdef uint64_t blocks = take_count(b, 1), rows, size, i
    cdef const uint8_t* p
    cdef int col
    if blocks and not t.keep:
        _bad("records, but none were kept")
    for _ in range(blocks):
        rows = take_below(b, MAX_ROWS + 1)
        columns = []
        for col in range(layout.n if rows else 0):
            size = rows * layout.column[col].width
            p = take_raw(b, size)
            if p == NULL:
                _bad("a record")
            columns.append(p[:size])
        if rows == 0:
            _bad("a record")
        t.kept.append(Block.wrap(layout, <uint32_t>rows, columns))
        t.kept_rows += rows
    if t.kept_rows > <uint64_t>(b.end - b.at) or (t.keep and t.kept_rows != t.flows + t.repeated):
        _bad("the number of its records")
    if t.kept_rows and grow(<void**>&t.kept_flow, &t.kept_room, t.kept_rows, 256, 4) < 0:
        raise MemoryError
    for i in range(t.kept_rows):
        t.kept_flow[i] = <uint32_t>take_below(b, t.flows)
    return 0


# ---- merging -----------------------------------------------------------------------------------------------------

def merge(FlowTally t not None, FlowTally other not None):
    """Add what ``other`` tallied; it is not changed.

    After `flow_order.settle`, ``t`` is as if it had tallied all records, but that those it keeps are in the order of
    the shares.  Raises ValueError if the question differs, and MemoryError; after an error ``t`` is unusable.
    """
    cdef uint64_t* total[TOTALS]
    cdef uint64_t* more[TOTALS]
    cdef uint32_t* number = <uint32_t*>malloc((<size_t>other.table.count + 1) * 4)
    cdef uint32_t* flow = <uint32_t*>malloc((<size_t>other.flows + 1) * 4)
    cdef int status = -1, i
    try:
        if t.question != other.question or t is other or t.extended or other.extended:
            raise ValueError("the tallies have different questions, or their paths are extended already")
        if number != NULL and flow != NULL:
            with nogil:
                status = _merge_components(t, other, number)
                status = status or _merge_flows(t, other, number, flow)
                status = status or _merge_healthy(t, other)
                status = status or _merge_kept(t, other, flow)
    finally:
        free(number)
        free(flow)
    if status < 0:
        raise MemoryError(f"{t.flows} flows with loss")
    t.kept += other.kept
    _totals(t, total)
    _totals(other, more)
    for i in range(TOTALS):
        total[i][0] += more[i][0]


cdef int _merge_components(FlowTally t, FlowTally other, uint32_t* number) noexcept nogil:
    cdef uint32_t n = other.table.count, i, at
    cdef uint64_t key
    if n == 0:
        return 0
    if (table_reserve(&t.table, n) < 0 or grow(<void**>&t.good, &t.good_room, t.table.room, 256, 8) < 0
            or grow(<void**>&t.carried, &t.carried_room, t.table.room, 256, 4) < 0
            or (t.switches and grow(<void**>&t.tiers, &t.tiers_room, t.table.room, 256, 1) < 0)):
        return -1
    for i in range(n):
        key = other.table.keys[i]
        number[i] = at = table_insert1(&t.table, hash1(&t.table, key), key)
        t.good[at] += other.good[i]
        t.carried[at] += other.carried[i]
        if t.switches and other.tiers[i] and (t.tiers[at] == 0 or other.tiers[i] < t.tiers[at]):
            t.tiers[at] = other.tiers[i]
    return 0


cdef int _merge_flows(FlowTally t, FlowTally other, const uint32_t* number, uint32_t* flow) noexcept nogil:
    # `flow`: of each flow of `other`, its number in `t`.  Those with a five-tuple may be in both.
    cdef uint64_t first, second, i, j
    cdef uint32_t at, before
    cdef uint32_t ids[MAX_PARTS]
    cdef const Seen* s
    cdef bint new
    if (table_reserve(&t.known, other.known.count) < 0 or table_reserve(&t.ends6, other.ends6.count) < 0
            or grow(<void**>&t.same, &t.same_room, t.known.room, 256, 8) < 0
            or grow(<void**>&t.seen, &t.flow_room, t.flows + other.flows, 256, sizeof(Seen)) < 0
            or t.flows + other.flows >= 0x7FFFFFFF):
        return -1
    for i in range(other.flows):
        flow[i] = NONE
    for i in range(other.known.count):
        first, second = other.known.keys[2 * i], other.known.keys[2 * i + 1]
        if second & 0xFF == 6:
            first = table_insert(&t.ends6, other.ends6.keys + first * ENDS6)
        before = t.known.count
        at = table_insert2(&t.known, hash2(&t.known, first, second), first, second)
        if at == before:
            t.same[at] = NONE           # its number follows, in the order of the flows of `other`
        flow[other.same[i]] = at
    for i in range(other.flows):
        s = &other.seen[i]
        at = flow[i]
        new = at == NONE or t.same[at] == NONE
        if at == NONE:
            flow[i] = <uint32_t>t.flows
        elif new:
            t.same[at] = flow[i] = <uint32_t>t.flows
        else:
            flow[i] = <uint32_t>t.same[at]
        t.flows += new
        for j in range(s.n):
            ids[j] = number[other.part[s.start + j]]
        if grow(<void**>&t.part, &t.part_room, t.parts + s.n, 256, 4) < 0:
            return -1
        t._add(&t.seen[flow[i]], s, new)
        t._choose(&t.seen[flow[i]], s, ids, new)
    return 0


cdef int _merge_healthy(FlowTally t, FlowTally other) noexcept nogil:
    cdef uint64_t first, second, i
    if (table_reserve(&t.pairs, other.pairs.count) < 0 or table_reserve(&t.named, other.named.count) < 0
            or grow(<void**>&t.times, &t.times_room, t.pairs.room, 256, 8) < 0
            or grow(<void**>&t.names, &t.names_room, t.named.room, 256, 16) < 0
            or grow(<void**>&t.failed, &t.failed_room, t.failures + other.failures, 256, 8) < 0):
        return -1
    for i in range(other.pairs.count):
        first, second = other.pairs.keys[2 * i], other.pairs.keys[2 * i + 1]
        t.times[table_insert2(&t.pairs, hash2(&t.pairs, first, second), first, second)] += other.times[i]
    for i in range(other.named.count):
        t._name(other.named.keys[i], other.names + i * 16)
    if other.failures:
        memcpy(t.failed + t.failures, other.failed, other.failures * 8)
    t.failures += other.failures
    return 0


cdef int _merge_kept(FlowTally t, FlowTally other, const uint32_t* flow) noexcept nogil:
    cdef uint64_t i
    if other.kept_rows == 0:
        return 0
    if grow(<void**>&t.kept_flow, &t.kept_room, t.kept_rows + other.kept_rows, 256, 4) < 0:
        return -1
    for i in range(other.kept_rows):
        t.kept_flow[t.kept_rows + i] = flow[other.kept_flow[i]]
    t.kept_rows += other.kept_rows
    return 0
