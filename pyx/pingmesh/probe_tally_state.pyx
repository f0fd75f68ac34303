"""State of a probe tally: as bytes for another process or host, and merged with that of the rows that follow.

Bytes: as state_bytes.pyx says, with numbers as in c_state_bytes.pxd: totals, hosts, their overflows and
the windows, each with its groups (key, counters, values) and its drops.  What is read is not trusted: every length and
number is checked against what it counts or points to.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from c_array cimport grow
from c_hash_table cimport table_insert, table_reserve
from c_probe_tally cimport (
    MAX_WORDS, N_ABOVE, N_ALL, N_DROPPED, N_FORWARD, N_GARBLED, N_LOCAL, N_NETWORK, N_OK, N_OVERFLOW, N_REFUSED,
    N_RESET, N_REVERSE, N_SEEN, N_SLOW, N_TIMEOUT, N_UNREACHABLE, REVERSE, TARGET, Cell, Drop, Span, Window, window_of,
)
from c_sketch cimport INT_BUCKETS
from c_state_bytes cimport (
    StateIn, StateOut, put_number, put_raw, put_signed, take_below, take_count, take_number, take_raw, take_signed,
)
from c_values cimport EXACT, Values, values_add, values_merge, values_range
from confluo_tools.core.base.state_bytes cimport close_state, damaged_state, open_state, put_head, state_bytes
from confluo_tools.core.pingmesh.probe_tally cimport ProbeTally

MAGIC = b"CFPROBE\x01"
cdef str SHARE = "probes"

cdef uint32_t NONE = 0xFFFFFFFFu


def dump(ProbeTally t not None):
    """The state as bytes for `load`.  Raises MemoryError."""
    cdef StateOut o
    cdef uint64_t i
    cdef Span* s
    put_head(&o, MAGIC, t.question)
    with nogil:
        put_number(&o, t.probes)
        put_number(&o, t.unknown)
        put_number(&o, t.drops_not_kept)
        put_signed(&o, t.newest)
        put_signed(&o, t.oldest)
        put_number(&o, t.targets.count)
        put_raw(&o, t.targets.keys, <uint64_t>t.targets.count * TARGET * 8)
        put_number(&o, t.spans_n)
        for i in range(t.spans_n):
            s = &t.span[i]
            put_signed(&o, s.ts)
            put_signed(&o, s.end)
            put_number(&o, s.overflows)
            put_number(&o, s.name)
            put_number(&o, 0 if s.address == NONE else <uint64_t>s.address + 1)
        put_number(&o, t.windows_n)
        for i in range(t.windows_n):
            _put_window(&o, &t.windows_[i])
    return state_bytes(&o)


cdef void _put_window(StateOut* o, const Window* w) noexcept nogil:
    cdef uint32_t i
    cdef int k
    cdef const Drop* d
    put_signed(o, w.start)
    put_number(o, w.table.count)
    put_raw(o, w.table.keys, <uint64_t>w.table.count * w.table.words * 8)
    for i in range(w.table.count):
        for k in range(N_ALL):
            put_number(o, w.cell[i].count[k])
        _put_values(o, &w.cell[i].rtt)
        _put_values(o, &w.cell[i].seen)
    put_number(o, w.drops)
    for i in range(<uint32_t>w.drops):
        d = &w.drop[i]
        put_signed(o, d.ts)
        put_signed(o, d.end)
        put_number(o, d.cell)
        put_number(o, d.target)
        put_number(o, d.retries)
        put_number(o, d.hint)


cdef void _put_values(StateOut* o, const Values* v) noexcept nogil:
    # 2 n, and the values; or 2 n + 1, the first and the last bucket, and for each in use: how much further, count.
    cdef uint32_t i, first, last, before
    put_number(o, v.n << 1 | v.counted)
    if not v.counted:
        for i in range(<uint32_t>v.n):
            put_number(o, v.data[i])
        return
    first, last = 0, v.room - 1
    while first < last and v.data[first] == 0:
        first += 1
    while last > first and v.data[last] == 0:
        last -= 1
    put_number(o, v.base + first)
    put_number(o, v.base + last)
    before = first
    for i in range(first, last + 1):
        if v.data[i]:
            put_number(o, i - before)
            put_number(o, v.data[i])
            before = i


# ---- reading -----------------------------------------------------------------------------------------------------

cdef int _bad(str what) except -1:
    return damaged_state(SHARE, what)


def load(ProbeTally t not None, const uint8_t[::1] data not None):
    """Decode the output of `dump` into an empty tally of the same question.

    Raises ValueError if the question differs, the bytes are damaged, or ``t`` is not empty, and MemoryError; after an
    error ``t`` is unusable.
    """
    cdef StateIn b
    cdef uint64_t n, i, probes = 0, size = 0
    if t.probes or t.unknown or t.windows_n or t.spans_n:
        raise ValueError("the tally is not empty")
    open_state(&b, data, MAGIC, t.question, SHARE)
    t.probes, t.unknown, t.drops_not_kept = take_number(&b), take_number(&b), take_number(&b)
    t.newest, t.oldest = take_signed(&b), take_signed(&b)
    _get_targets(t, &b)
    _get_spans(t, &b)
    n = take_count(&b, 3)
    if n > t.max_windows:
        _bad("too many windows")
    for i in range(n):
        probes += _get_window(t, &b, i, &size)
    close_state(&b, SHARE)
    if probes != t.probes or probes >> 56 or (n != 0 and (
            t.windows_[0].start != _start(t, t.oldest) or t.windows_[n - 1].start != _start(t, t.newest))):
        _bad("wrong number of probes")


cdef int64_t _start(ProbeTally t, int64_t ts) noexcept nogil:
    return window_of(ts, t.window) if t.window else 0


cdef int _get_targets(ProbeTally t, StateIn* b) except -1:
    cdef uint64_t key[TARGET]
    cdef uint64_t i, n = take_count(b, TARGET * 8)
    if n and table_reserve(&t.targets, n) < 0:
        raise MemoryError
    for i in range(n):
        memcpy(key, take_raw(b, TARGET * 8), TARGET * 8)
        if table_insert(&t.targets, key) != i:
            _bad("a host is there twice")
    return 0


cdef int _get_spans(ProbeTally t, StateIn* b) except -1:
    cdef uint64_t i, n = take_count(b, 5)
    cdef uint64_t address
    cdef Span* s
    if n and grow(<void**>&t.span, &t.span_room, n, 8, sizeof(Span)) < 0:
        raise MemoryError
    for i in range(n):
        s = &t.span[i]
        s.ts, s.end, s.overflows = take_signed(b), take_signed(b), take_number(b)
        s.name = <uint32_t>take_below(b, t.targets.count)
        address = take_below(b, <uint64_t>t.targets.count + 1)
        s.address = <uint32_t>(address - 1) if address else NONE
    if b.bad:
        _bad("a host that is not there")
    t.spans_n = n
    return 0


cdef uint64_t _get_window(ProbeTally t, StateIn* b, uint64_t at, uint64_t* size) except? 0xFFFFFFFFFFFFFFFF:
    # The next window, which must be number ``at``; the number of its probes.  ``size``: bytes of values so far.
    cdef int64_t start = take_signed(b)
    cdef uint64_t before = t.windows_n, n, i, probes = 0
    cdef uint64_t key[MAX_WORDS]
    cdef Window* w
    if b.bad or start != _start(t, start):
        _bad("the time of a window")
    w = t._open(start)
    if w == NULL:
        raise MemoryError
    if t.windows_n == before or w != &t.windows_[at]:
        _bad("the windows are not in order")
    n = take_count(b, <uint64_t>w.table.words * 8 + N_ALL + 2)
    if n == 0 or (t.words == 0 and n > 1):
        _bad("the number of groups")
    if table_reserve(&w.table, n) < 0 or grow(<void**>&w.cell, &w.room, n, 8, sizeof(Cell)) < 0:
        raise MemoryError
    size[0] += n * sizeof(Cell)
    for i in range(n):
        memcpy(key, take_raw(b, <uint64_t>w.table.words * 8), w.table.words * 8)
        if table_insert(&w.table, key) != i or (t.words == 0 and key[0]):
            _bad("a group is there twice")
    for i in range(n):
        _get_cell(b, &w.cell[i], t.probes)
        if b.bad:
            _bad("the counts of a group")
        size[0] += (w.cell[i].rtt.room + w.cell[i].seen.room) * <uint64_t>8
        if size[0] > t.max_bytes:
            raise MemoryError
        probes += _probes(&w.cell[i])
    _get_drops(t, w, b)
    return probes


cdef uint64_t _probes(const Cell* s) noexcept nogil:
    return (s.count[N_OK] + s.count[N_TIMEOUT] + s.count[N_REFUSED] + s.count[N_UNREACHABLE] + s.count[N_RESET]
            + s.count[N_GARBLED] + s.count[N_LOCAL])


cdef int _get_cell(StateIn* b, Cell* s, uint64_t probes) except -1:
    cdef const uint64_t* c = s.count
    cdef int k
    for k in range(N_ALL):
        s.count[k] = take_number(b)
        b.bad |= s.count[k] > probes and k != N_NETWORK and k != N_SEEN
    _get_values(b, &s.rtt)
    _get_values(b, &s.seen)
    b.bad |= (c[N_DROPPED] + c[N_OVERFLOW] + s.rtt.n > c[N_OK] or c[N_FORWARD] + c[N_REVERSE] > c[N_DROPPED]
              or s.seen.n > s.rtt.n or c[N_SLOW] > c[N_OK])
    for k in range(N_ABOVE, N_ALL):
        b.bad |= c[k] > s.rtt.n
    return 0


cdef int _get_values(StateIn* b, Values* v) except -1:
    cdef uint64_t n = take_number(b), count, sum = 0
    cdef uint32_t first, last, at
    if n & 1 == 0:
        if n >> 1 > EXACT:
            b.bad = True
            return 0
        for _ in range(n >> 1):
            if values_add(v, take_number(b)) < 0:
                raise MemoryError
        return 0
    n >>= 1
    first, last = <uint32_t>take_below(b, INT_BUCKETS), <uint32_t>take_below(b, INT_BUCKETS)
    if b.bad or last < first or n <= EXACT:
        b.bad = True
        return 0
    if values_range(v, first, last) < 0:
        raise MemoryError
    at = first
    while not b.bad and sum < n:
        at += <uint32_t>take_below(b, <uint64_t>last - at + 1)
        count = take_number(b)
        if count == 0 or count > n - sum or v.data[at - v.base]:
            b.bad = True
        else:
            v.data[at - v.base] = count
            sum += count
    b.bad |= at != last
    v.n = n
    return 0


cdef int _get_drops(ProbeTally t, Window* w, StateIn* b) except -1:
    cdef uint64_t i, n = take_count(b, 6)
    cdef uint64_t* left                 # of each group: drops that it may have
    cdef Drop* d
    if n > t.max_drops:
        _bad("too many drops")
    left = <uint64_t*>malloc((<size_t>w.table.count + 1) * 8)
    if left == NULL or (n and grow(<void**>&w.drop, &w.drop_room, n, 8, sizeof(Drop)) < 0):
        free(left)
        raise MemoryError
    for i in range(w.table.count):
        left[i] = w.cell[i].count[N_DROPPED] - w.cell[i].count[N_REVERSE]
    for i in range(n):
        d = &w.drop[i]
        d.ts, d.end = take_signed(b), take_signed(b)
        d.cell, d.target = <uint32_t>take_below(b, w.table.count), <uint32_t>take_below(b, t.targets.count)
        d.retries, d.hint = <uint32_t>take_below(b, 256), <uint32_t>take_below(b, 256)
        if d.retries == 0 or d.hint == REVERSE or left[d.cell] == 0:
            b.bad = True
            break
        left[d.cell] -= 1
    free(left)
    if b.bad:
        _bad("a drop")
    w.drops = n
    return 0


# ---- merging -----------------------------------------------------------------------------------------------------

def merge(ProbeTally t not None, ProbeTally other not None):
    """Add what ``other`` counted, of the rows that follow those of ``t``; ``other`` is not changed.

    Then ``t`` is as if it had counted all rows.  Raises ValueError if the question differs, and MemoryError; after an
    error ``t`` is unusable.
    """
    cdef uint32_t* number
    cdef uint64_t i
    cdef int status
    if t.question != other.question or t is other:
        raise ValueError("the tallies have different questions")
    number = <uint32_t*>malloc((<size_t>other.targets.count + 1) * 4)
    if number == NULL:
        raise MemoryError
    try:
        with nogil:
            status = _merge_hosts(t, other, number)
            for i in range(other.windows_n):
                if status == 0:
                    status = _merge_window(t, &other.windows_[i], number)
    finally:
        free(number)
    if status < 0 or t.memory() > t.max_bytes:
        raise MemoryError
    t.probes += other.probes
    t.unknown += other.unknown
    t.drops_not_kept += other.drops_not_kept
    t.newest, t.oldest = max(t.newest, other.newest), min(t.oldest, other.oldest)


cdef int _merge_hosts(ProbeTally t, ProbeTally other, uint32_t* number) noexcept nogil:
    # `number`: of each host of `other`, its number in `t`.
    cdef uint64_t i
    cdef Span* s
    if table_reserve(&t.targets, other.targets.count) < 0:
        return -1
    for i in range(other.targets.count):
        number[i] = table_insert(&t.targets, other.targets.keys + i * TARGET)
    if grow(<void**>&t.span, &t.span_room, t.spans_n + other.spans_n, 8, sizeof(Span)) < 0:
        return -1
    for i in range(other.spans_n):
        s = &t.span[t.spans_n]
        s[0] = other.span[i]
        s.name = number[s.name]
        s.address = number[s.address] if s.address != NONE else NONE
        t.spans_n += 1
    return 0


cdef int _merge_window(ProbeTally t, const Window* of, const uint32_t* number) noexcept nogil:
    cdef Window* w = t._open(of.start)
    cdef uint32_t* cell
    cdef uint64_t i
    cdef Drop* d
    cdef int status = -1
    if w == NULL:
        return -1
    cell = <uint32_t*>malloc((<size_t>of.table.count + 1) * 4)
    if (cell != NULL and table_reserve(&w.table, of.table.count) == 0
            and grow(<void**>&w.cell, &w.room, <uint64_t>w.table.count + of.table.count, 8, sizeof(Cell)) == 0
            and grow(<void**>&w.drop, &w.drop_room, min(w.drops + of.drops, t.max_drops), 8, sizeof(Drop)) == 0):
        status = 0
        for i in range(of.table.count):
            cell[i] = table_insert(&w.table, of.table.keys + i * of.table.words)
            status |= _merge_cell(&w.cell[cell[i]], &of.cell[i])
        for i in range(of.drops):
            if w.drops >= t.max_drops:
                t.drops_not_kept += of.drops - i
                break
            d = &w.drop[w.drops]
            d[0] = of.drop[i]
            d.cell, d.target = cell[d.cell], number[d.target]
            w.drops += 1
    free(cell)
    return status


cdef int _merge_cell(Cell* to, const Cell* other) noexcept nogil:
    cdef int k
    for k in range(N_ALL):
        to.count[k] += other.count[k]
    return -1 if values_merge(&to.rtt, &other.rtt) < 0 or values_merge(&to.seen, &other.seen) < 0 else 0
