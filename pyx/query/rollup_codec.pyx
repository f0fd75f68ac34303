"""Roll-up codec: encode a roll-up as bytes for another process or host, or for a view file, and decode it.

Little endian: magic, length and text of the specification, Head, then the group keys, the side tables, and the states
in the order of the plan: counts (u64) and arrays as in memory.  Hash slots are not encoded; each process has its own
seed.  The input is not trusted: lengths are checked against the available bytes, numbers of groups, buckets and
side-table values against their tables.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy
from c_hash_table cimport HashTable, table_insert, table_insert_many, table_reserve
from c_sketch cimport Hyper, bucket_limit
from c_source cimport IP, V6, WIDE, Source
from confluo_tools.core.query.group_keys cimport GroupTable, part_of
from confluo_tools.core.query.rollup cimport Rollup
from confluo_tools.core.query.sketch cimport is_paged
from confluo_tools.core.query.aggregate_states cimport DISTINCT, HISTOGRAM, HYPER, State, Value

MAGIC = b"CFROLL\x00\x01"

cdef enum:
    PART = 256                      # keys that are inserted together

cdef struct Head:
    uint64_t rows
    uint64_t loose
    int64_t low
    int64_t high
    uint64_t groups

cdef struct Bytes:
    const uint8_t* at
    const uint8_t* end


cdef bytes _question(Rollup r):
    columns = [r.layout.describe(i) for i in range(r.layout.n)]
    return repr((columns, r.keys, r.aggs, r.time, bool(r.spanning))).encode()


cdef bytes _raw(const void* p, size_t size):
    return (<const char*>p)[:size] if size else b""


cdef _put_count(list out, uint64_t n):
    out.append(_raw(&n, 8))


cdef _put_table(list out, const HashTable* t):
    _put_count(out, t.count)
    out.append(_raw(t.keys, <size_t>t.count * t.words * 8))


def dump(Rollup r not None):
    """Encode a roll-up as bytes for `load`.  Raises MemoryError."""
    return b"".join(pieces(r))


def pieces(Rollup r not None):
    """The bytes that `dump` gives, as a list of pieces.  Raises MemoryError."""
    cdef GroupTable groups = r.groups
    cdef Head head
    cdef State* s
    cdef int i
    head.groups = r._synced()
    head.rows, head.loose, head.low, head.high = r.rows, r.loose, r.low, r.high
    text = _question(r)
    out = [MAGIC]
    _put_count(out, len(text))
    out += [text, _raw(&head, sizeof(Head))]
    if groups.parts:
        _put_table(out, &groups.table)
    for i in range(groups.parts):
        _put_table(out, &groups.part[i].source.intern)
    for i in range(r.values):
        _put_table(out, &r.value[i].source.intern)
    for i in range(r.states):
        s = &r.state[i]
        if s.kind == HYPER:
            _put_hypers(out, s)
        elif s.kind != HISTOGRAM:
            out.append(_raw(s.data, <size_t>s.groups * s.width))
        if s.kind == HISTOGRAM and s.keyless:
            _put_tally(out, s)
        elif s.kind == DISTINCT or s.kind == HISTOGRAM:
            _put_table(out, &s.table)
            if s.kind == HISTOGRAM or is_paged(&r.value[s.value]):
                out.append(_raw(s.tally, <size_t>s.table.count * 8))
    return out


cdef _put_hypers(list out, const State* s):
    cdef const Hyper* hyper = <const Hyper*>s.data
    cdef uint32_t g
    for g in range(s.groups):
        _put_count(out, <uint64_t>hyper[g].used << 32 | hyper[g].slots)
        if hyper[g].memory != NULL:
            _put_count(out, 1)
            out.append(_raw(hyper[g].memory, <size_t>hyper[g].slots * 8 if hyper[g].slots else <size_t>1 << s.p))
        else:
            _put_count(out, 0)


cdef _put_tally(list out, const State* s):
    cdef uint64_t i, n = 0
    for i in range(s.tallies):
        n += s.tally[i] != 0
    _put_count(out, n)
    for i in range(s.tallies):
        if s.tally[i]:
            _put_count(out, i)
            _put_count(out, s.tally[i])


# ---- reading -----------------------------------------------------------------------------------------------------

cdef const uint8_t* _take(Bytes* b, uint64_t n, uint64_t size) except NULL:
    # The next n values of the given size in bytes.
    cdef const uint8_t* p = b.at
    if n > <uint64_t>(b.end - b.at) // size:
        raise ValueError("the partial aggregate is truncated")
    b.at += n * size
    return p


cdef uint64_t _count(Bytes* b) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t n
    memcpy(&n, _take(b, 1, 8), 8)
    return n


cdef _bad(what):
    raise ValueError(f"the partial aggregate is damaged: {what}")


cdef int _get_table(Bytes* b, HashTable* t) except -1:
    cdef uint64_t n = _count(b), i, k, m
    cdef const uint8_t* p
    cdef uint64_t key[PART * 2]                         # by columns: the first words, then the second
    cdef const uint64_t* word[2]
    cdef uint32_t number[PART]
    cdef bytes copy
    if n == 0:
        return 0
    if t.words == 0:
        _bad("values of a field without values")
    p = _take(b, n, <uint64_t>t.words * 8)
    if table_reserve(t, n) < 0:
        raise MemoryError(f"{n} keys")
    if t.words <= 2:                                    # many at once: their cache misses overlap
        word[0], word[1] = key, key + PART
        i = 0
        while i < n:
            m = min(<uint64_t>PART, n - i)
            for k in range(m):
                memcpy(&key[k], p, 8)                   # the bytes may be unaligned
                if t.words == 2:
                    memcpy(&key[PART + k], p + 8, 8)
                p += t.words * 8
            table_insert_many(t, word, <uint32_t>m, number)
            i += m
            if t.count != i:
                _bad("duplicate key")
        return 0
    for i in range(n):
        copy = p[:t.words * 8]
        table_insert(t, <const uint64_t*><const char*>copy)
        if t.count != i + 1:
            _bad("duplicate key")
        p += t.words * 8
    return 0


cdef int _check_code(const Source* s, uint64_t v) except -1:
    # A side-table number.
    if s.kind == WIDE and v >= s.intern.count:
        _bad("unknown value")
    if s.kind == IP and (v >> 32 > V6 or (v >> 32 == V6 and (<uint32_t>v == 0 or <uint32_t>v > s.intern.count + 1))):
        _bad("unknown address")
    return 0


def load(Rollup r not None, const uint8_t[::1] data not None):
    """Decode the output of `dump` into an empty roll-up.

    Raises ValueError when its keys or aggregates differ, it is truncated or damaged, or ``r`` is not empty; after an
    error ``r`` is unusable.
    """
    cdef GroupTable groups = r.groups
    cdef Bytes b
    cdef Head head
    cdef uint64_t key
    cdef uint32_t g
    cdef int i
    cdef const uint8_t* p
    if r.rows or r.loose or (r.keys and len(r)):
        raise ValueError("the roll-up is not empty")
    r._usable()
    if data.shape[0] < 16 or bytes(data[:8]) != MAGIC:
        raise ValueError("this is not a partial aggregate")
    b.at, b.end = &data[0] + 8, &data[0] + data.shape[0]
    key = _count(&b)
    p = _take(&b, key, 1)
    if p[:key] != _question(r):
        raise ValueError("the partial aggregate has other keys or aggregates")
    r.broken = True
    memcpy(&head, _take(&b, 1, sizeof(Head)), sizeof(Head))
    r.rows, r.loose, r.low, r.high = head.rows, head.loose, head.low, head.high
    if groups.narrow:
        if _count(&b) != head.groups or head.groups > 1 << 16:
            _bad("wrong number of groups")
        p = _take(&b, head.groups, 8)
        for g in range(head.groups):
            memcpy(&key, p + <size_t>g * 8, 8)
            if key >= 1 << 16 or groups.at(key) != g:
                _bad("invalid keys")
    elif groups.parts:
        _get_table(&b, &groups.table)
    if groups.count() != head.groups:
        _bad("wrong number of groups")
    for i in range(groups.parts):
        _get_table(&b, &groups.part[i].source.intern)
    for i in range(groups.parts):
        for g in range(head.groups):
            _check_code(&groups.part[i].source,
                        part_of(&groups.part[i], groups.table.keys + <size_t>g * groups.table.words))
    for i in range(r.values):
        _get_table(&b, &r.value[i].source.intern)
    if r._room() < 0:
        raise MemoryError(f"{head.groups} groups")
    for i in range(r.states):
        _get_state(&b, &r.state[i], &r.value[max(r.state[i].value, 0)], head.groups)
    if b.at != b.end:
        _bad("extra bytes at its end")
    r.broken = False


cdef int _get_state(Bytes* b, State* s, const Value* value, uint64_t groups) except -1:
    cdef uint64_t n, i, v, owner
    cdef const uint8_t* p
    if s.kind == HYPER:
        return _get_hypers(b, s, groups)
    if s.kind != HISTOGRAM and groups:
        memcpy(s.data, _take(b, groups, s.width), groups * s.width)
    if s.kind == HISTOGRAM and s.keyless:
        n = _count(b)
        for _ in range(n):
            v = _count(b)
            if v >= s.tallies:
                _bad("unknown bucket")
            s.tally[v] = _count(b)
    elif s.kind == DISTINCT or s.kind == HISTOGRAM:
        _get_table(b, &s.table)
        n = s.table.count
        for i in range(n):
            v = s.table.keys[i * s.table.words]
            owner = 0
            if s.table.words == 2:
                owner = s.table.keys[i * 2 + 1]
            elif not s.keyless or is_paged(value):
                owner, v = v >> 32, <uint32_t>v
            if owner >= groups:
                _bad("value of an unknown group")
            if s.kind == HISTOGRAM and v >= bucket_limit(value.domain):
                _bad("unknown bucket")
            elif s.kind == DISTINCT:
                _check_code(&value.source, v)
        if n and (s.kind == HISTOGRAM or is_paged(value)):
            p = _take(b, n, 8)
            s.tally = <uint64_t*>calloc(s.table.room, 8)
            if s.tally == NULL:
                raise MemoryError(f"{n} buckets")
            s.tallies = s.table.room
            memcpy(s.tally, p, n * 8)
    return 0


cdef int _get_hypers(Bytes* b, State* s, uint64_t groups) except -1:
    cdef Hyper* hyper
    cdef uint64_t v, size
    cdef uint32_t g, k, used
    cdef const uint8_t* p
    for g in range(groups):
        hyper = &(<Hyper*>s.data)[g]
        v = _count(b)
        if _count(b) == 0:
            continue
        hyper.slots = <uint32_t>v
        if hyper.slots & (hyper.slots - 1) or hyper.slots > <uint32_t>1 << (s.p - 3):
            _bad("invalid sketch")
        size = <uint64_t>hyper.slots * 8 if hyper.slots else <uint64_t>1 << s.p
        p = _take(b, size, 1)
        hyper.memory = <uint64_t*>calloc(size, 1)
        if hyper.memory == NULL:
            raise MemoryError(f"{groups} sketches")
        memcpy(hyper.memory, p, size)
        used = 0
        for k in range(hyper.slots):
            used += hyper.memory[k] != 0
        hyper.used = used
        if hyper.slots and (used != v >> 32 or used >= hyper.slots):
            _bad("invalid sketch")
        for k in range(0 if hyper.slots else size):
            if (<uint8_t*>hyper.memory)[k] > 65 - s.p:
                _bad("invalid sketch")
    return 0
