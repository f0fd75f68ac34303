"""States with their own tables: exact distinct values, HyperLogLog sketches, bucket counts for quantiles."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from c_bits cimport popcount64
from c_hash_table cimport (
    AHEAD, NOT_FOUND, hash1, hash2, table_insert1, table_insert2, table_insert_many, table_reserve,
)
from c_sketch cimport FLOAT, Hyper, buckets_of, hyper_estimate, hyper_insert, hyper_register
from c_source cimport NUMBER, fixed_hash, fixed_hashes, is_nan, plain_float
from confluo_tools.core.query.group_source cimport renumber
from confluo_tools.core.query.aggregate_states cimport State, Value


cdef inline uint64_t _distinct_value(const Value* value, uint64_t v) noexcept nogil:
    if value.domain == FLOAT and value.source.kind == NUMBER:
        return plain_float(v)
    return v


cdef bint is_paged(const Value* value) noexcept nogil:
    # Values of at most 16 bits: each table key covers 64 values; its tally is their bit map.
    return value.source.kind == NUMBER and value.source.size <= 2 and value.domain != FLOAT


cdef int _pages_update(State* s, const Value* value) noexcept nogil:
    cdef uint64_t key[AHEAD]
    cdef const uint64_t* words[1]
    cdef uint32_t number[AHEAD]
    cdef uint64_t* count = <uint64_t*>s.data
    cdef const uint32_t* group = value.group
    cdef const uint64_t* v = value.v
    cdef uint64_t mask = 0xFFFF if value.source.size == 2 else 0xFF, bit, page
    cdef uint32_t i, m, start = 0
    if _tally_room(s, value.n) < 0:
        return -1
    words[0] = key
    while start < value.n:
        m = min(<uint32_t>AHEAD, value.n - start)
        for i in range(m):
            key[i] = <uint64_t>group[start + i] << 32 | (v[start + i] & mask) >> 6
        table_insert_many(&s.table, words, m, number)
        for i in range(m):
            page = s.tally[number[i]]
            bit = <uint64_t>1 << (v[start + i] & 63)
            count[group[start + i]] += page & bit == 0
            s.tally[number[i]] = page | bit
        start += m
    return 0


cdef int distinct_update(State* s, const Value* value) noexcept nogil:
    cdef uint64_t first[AHEAD]
    cdef uint64_t second[AHEAD]
    cdef const uint64_t* words[2]
    cdef uint32_t number[AHEAD]
    cdef uint64_t* count = <uint64_t*>s.data
    cdef uint32_t i, start = 0, m, before
    if is_paged(value):
        return _pages_update(s, value)
    if table_reserve(&s.table, value.n) < 0:
        return -1
    words[0], words[1] = first, second
    while start < value.n:
        m = min(<uint32_t>AHEAD, value.n - start)
        before = s.table.count
        if s.keyless:
            for i in range(m):
                first[i] = _distinct_value(value, value.v[start + i])
        elif s.table.words == 1:
            for i in range(m):
                first[i] = <uint64_t>value.group[start + i] << 32 | <uint32_t>value.v[start + i]
        else:
            for i in range(m):
                first[i] = _distinct_value(value, value.v[start + i])
                second[i] = value.group[start + i]
        table_insert_many(&s.table, words, m, number)
        if s.keyless:
            count[0] += s.table.count - before
        elif s.table.count != before:
            # The new values among these m: numbers at or above `before`, each once.
            for i in range(m):
                if number[i] >= before:
                    count[value.group[start + i]] += number[i] == before
                    before += number[i] == before
        start += m
    return 0


cdef int histogram_update(State* s, const Value* value) noexcept nogil:
    cdef uint64_t key[AHEAD]
    cdef const uint64_t* words[1]
    cdef uint32_t bucket[AHEAD]
    cdef const uint64_t* v
    cdef const uint32_t* group
    cdef uint64_t* tally
    cdef uint32_t i, k, m, start = 0
    if not s.keyless and _tally_room(s, value.n) < 0:
        return -1
    words[0], tally = key, s.tally
    while start < value.n:
        m = min(<uint32_t>AHEAD, value.n - start)
        v, group = value.v + start, value.group + start
        start += m
        buckets_of(value.domain, v, m, bucket)
        k = m
        if value.domain == FLOAT:
            k = 0
            for i in range(m):
                bucket[k] = bucket[i]
                key[k] = group[i]
                k += not is_nan(v[i])
        else:
            for i in range(m):
                key[i] = group[i]
        if not s.keyless:
            for i in range(k):
                key[i] = key[i] << 32 | bucket[i]
            table_insert_many(&s.table, words, k, bucket)
        for i in range(k):
            tally[bucket[i]] += 1
    return 0


cdef int _tally_room(State* s, uint64_t extra) noexcept nogil:
    cdef uint64_t* tally
    if table_reserve(&s.table, extra) < 0:
        return -1
    if s.table.room > s.tallies:
        tally = <uint64_t*>realloc(s.tally, <size_t>s.table.room * 8)
        if tally == NULL:
            return -1
        memset(tally + s.tallies, 0, <size_t>(s.table.room - s.tallies) * 8)
        s.tally, s.tallies = tally, s.table.room
    return 0


cdef int hyper_update(State* s, const Value* value) noexcept nogil:
    cdef uint64_t h[AHEAD]
    cdef const uint64_t* v
    cdef const uint32_t* group
    cdef Hyper* states = <Hyper*>s.data
    cdef Hyper* hyper
    cdef int p = s.p
    cdef uint32_t i, m, start = 0
    while start < value.n:
        m = min(<uint32_t>AHEAD, value.n - start)
        v, group = value.v + start, value.group + start
        start += m
        if value.source.kind != NUMBER:
            memcpy(h, v, m * 8)
        elif value.domain != FLOAT:
            fixed_hashes(h, v, m)
        else:
            for i in range(m):
                h[i] = fixed_hash(plain_float(v[i]))
        for i in range(m):
            hyper = &states[group[i]]
            if hyper.slots == 0 and hyper.memory != NULL:
                hyper_register(<uint8_t*>hyper.memory, p, h[i])
            elif hyper_add(hyper, p, h[i]) < 0:
                return -1
    return 0


cdef int hyper_add(Hyper* hyper, int p, uint64_t h) noexcept nogil:
    cdef uint64_t* table
    cdef uint32_t i, slots, used = 0
    if hyper.memory != NULL and hyper.slots == 0:
        hyper_register(<uint8_t*>hyper.memory, p, h)
        return 0
    h = h if h else 1
    if hyper.used >= hyper.slots // 4 * 3:
        slots = max(<uint32_t>4, hyper.slots * 2)
        if slots * 8 > <uint32_t>1 << p:
            table = <uint64_t*>calloc(<size_t>1 << p, 1)
            if table == NULL:
                return -1
            for i in range(hyper.slots):
                if hyper.memory[i]:
                    hyper_register(<uint8_t*>table, p, hyper.memory[i])
            free(hyper.memory)
            hyper.memory, hyper.slots, hyper.used = table, 0, 0
            hyper_register(<uint8_t*>table, p, h)
            return 0
        table = <uint64_t*>calloc(slots, 8)
        if table == NULL:
            return -1
        for i in range(hyper.slots):
            if hyper.memory[i]:
                hyper_insert(table, slots, &used, hyper.memory[i])
        free(hyper.memory)
        hyper.memory, hyper.slots = table, slots
    hyper_insert(hyper.memory, hyper.slots, &hyper.used, h)
    return 0


cdef int hyper_merge(Hyper* ours, const Hyper* theirs, int p) noexcept nogil:
    cdef uint8_t* a
    cdef const uint8_t* b
    cdef Hyper mine
    cdef uint32_t i
    if theirs.memory == NULL:
        return 0
    if theirs.slots:
        for i in range(theirs.slots):
            if theirs.memory[i] and hyper_add(ours, p, theirs.memory[i]) < 0:
                return -1
        return 0
    if ours.memory == NULL or ours.slots:
        mine = ours[0]
        ours.memory, ours.slots, ours.used = <uint64_t*>malloc(<size_t>1 << p), 0, 0
        if ours.memory == NULL:
            ours[0] = mine
            return -1
        memcpy(ours.memory, theirs.memory, <size_t>1 << p)
        for i in range(mine.slots):
            if mine.memory[i]:
                hyper_register(<uint8_t*>ours.memory, p, mine.memory[i])
        free(mine.memory)
        return 0
    a, b = <uint8_t*>ours.memory, <const uint8_t*>theirs.memory
    for i in range(<uint32_t>1 << p):
        a[i] = max(a[i], b[i])
    return 0


cdef double hyper_count(const State* s, uint32_t group) noexcept nogil:
    """The estimated number of distinct values; exact while the sketch stores the hashes."""
    cdef const Hyper* hyper = &(<const Hyper*>s.data)[group]
    if hyper.memory == NULL or hyper.slots:
        return hyper.used
    return hyper_estimate(<const uint8_t*>hyper.memory, s.p)


cdef int merge_distinct(State* s, const State* o, const Value* value, const uint32_t* group,
                        const uint32_t* to) noexcept nogil:
    cdef uint64_t* count = <uint64_t*>s.data
    cdef uint64_t v, owner
    cdef uint32_t i, before, g
    if is_paged(value):
        return _merge_pages(s, o, group)
    if table_reserve(&s.table, o.table.count) < 0:
        return -1
    for i in range(o.table.count):
        before = s.table.count
        if s.table.words == 2:
            v, owner = o.table.keys[<size_t>i * 2], o.table.keys[<size_t>i * 2 + 1]
            g = group[owner]
            if g == NOT_FOUND:
                continue
            v = renumber(&value.source, to, v)
            table_insert2(&s.table, hash2(&s.table, v, g), v, g)
        elif s.keyless:
            g, v = 0, renumber(&value.source, to, o.table.keys[i])
            table_insert1(&s.table, hash1(&s.table, v), v)
        else:
            v = o.table.keys[i]
            g = group[v >> 32]
            if g == NOT_FOUND:
                continue
            v = <uint64_t>g << 32 | <uint32_t>renumber(&value.source, to, <uint32_t>v)
            table_insert1(&s.table, hash1(&s.table, v), v)
        count[g] += s.table.count - before
    return 0


cdef int _merge_pages(State* s, const State* o, const uint32_t* group) noexcept nogil:
    cdef uint64_t* count = <uint64_t*>s.data
    cdef uint64_t key
    cdef uint32_t i, number, g
    if _tally_room(s, o.table.count) < 0:
        return -1
    for i in range(o.table.count):
        key = o.table.keys[i]
        g = group[key >> 32]
        if g == NOT_FOUND:
            continue
        key = <uint64_t>g << 32 | <uint32_t>key
        number = table_insert1(&s.table, hash1(&s.table, key), key)
        count[g] += popcount64(o.tally[i] & ~s.tally[number])
        s.tally[number] |= o.tally[i]
    return 0


cdef int merge_histogram(State* s, const State* o, const uint32_t* group) noexcept nogil:
    cdef uint64_t key
    cdef uint32_t i
    if s.keyless:
        for i in range(o.tallies):
            s.tally[i] += o.tally[i]
        return 0
    if _tally_room(s, o.table.count) < 0:
        return -1
    for i in range(o.table.count):
        key = o.table.keys[i]
        if group[key >> 32] == NOT_FOUND:
            continue
        key = <uint64_t>group[key >> 32] << 32 | <uint32_t>key
        s.tally[table_insert1(&s.table, hash1(&s.table, key), key)] += o.tally[i]
    return 0
