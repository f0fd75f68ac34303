"""States with tables of their own: exact distinct values, HyperLogLog sketches, bucket counts for quantiles."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from c_hash cimport AHEAD, hash1, hash2, table_find1, table_find2, table_find_many
from c_sketch cimport FLOAT, Hyper, bucket_of, hyper_estimate, hyper_insert, hyper_register
from c_source cimport NUMBER, fixed_hash, is_nan, plain_float
from confluo_tools.core.groups cimport renumber, table_room
from confluo_tools.core.states cimport State, Value


cdef inline uint64_t _distinct_value(const Value* value, uint64_t v) noexcept nogil:
    if value.domain == FLOAT and value.source.kind == NUMBER:
        return plain_float(v)
    return v


cdef int distinct_update(State* s, const Value* value) noexcept nogil:
    cdef uint64_t first[AHEAD]
    cdef uint64_t second[AHEAD]
    cdef const uint64_t* words[2]
    cdef uint32_t number[AHEAD]
    cdef uint64_t* count = <uint64_t*>s.data
    cdef uint64_t mask = 0xFFFFFFFF
    cdef uint32_t i, start = 0, m, before
    if table_room(&s.table, value.n) < 0:
        return -1
    if value.source.kind == NUMBER and value.source.size < 4:
        mask >>= 32 - value.source.size * 8
    words[0], words[1] = first, second
    while start < value.n:
        m = min(<uint32_t>AHEAD, value.n - start)
        before = s.table.count
        if value.group == NULL:
            for i in range(m):
                first[i] = _distinct_value(value, value.v[start + i])
        elif s.table.words == 1:
            for i in range(m):
                first[i] = <uint64_t>value.group[start + i] << 32 | (value.v[start + i] & mask)
        else:
            for i in range(m):
                first[i] = _distinct_value(value, value.v[start + i])
                second[i] = value.group[start + i]
        table_find_many(&s.table, words, m, number)
        if value.group == NULL:
            count[0] += s.table.count - before
        elif s.table.count != before:
            # The new ones among these m: the numbers at or above `before`, each once.
            for i in range(m):
                if number[i] >= before:
                    count[value.group[start + i]] += number[i] == before
                    before += number[i] == before
        start += m
    return 0


cdef int histogram_update(State* s, const Value* value) noexcept nogil:
    cdef uint64_t key[AHEAD]
    cdef const uint64_t* words[1]
    cdef uint32_t number[AHEAD]
    cdef uint32_t i = 0, k, m
    if s.keyless:
        for i in range(value.n):
            if value.domain != FLOAT or not is_nan(value.v[i]):
                s.tally[bucket_of(value.domain, value.v[i])] += 1
        return 0
    if _tally_room(s, value.n) < 0:
        return -1
    words[0] = key
    while i < value.n:
        m = 0
        while m < AHEAD and i < value.n:
            if value.domain != FLOAT or not is_nan(value.v[i]):
                key[m] = <uint64_t>value.group[i] << 32 | bucket_of(value.domain, value.v[i])
                m += 1
            i += 1
        table_find_many(&s.table, words, m, number)
        for k in range(m):
            s.tally[number[k]] += 1
    return 0


cdef int _tally_room(State* s, uint64_t extra) noexcept nogil:
    cdef uint64_t* tally
    if table_room(&s.table, extra) < 0:
        return -1
    if s.table.room > s.tallies:
        tally = <uint64_t*>realloc(s.tally, <size_t>s.table.room * 8)
        if tally == NULL:
            return -1
        memset(tally + s.tallies, 0, <size_t>(s.table.room - s.tallies) * 8)
        s.tally, s.tallies = tally, s.table.room
    return 0


cdef int hyper_update(State* s, const Value* value) noexcept nogil:
    cdef bint hashed = value.source.kind != NUMBER
    cdef uint32_t i
    cdef uint64_t h
    for i in range(value.n):
        h = value.v[i]
        if not hashed:
            h = fixed_hash(_distinct_value(value, h))
        if hyper_add(&(<Hyper*>s.data)[value.group[i] if value.group != NULL else 0], s.p, h) < 0:
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
    """The estimated number of distinct values; exact while the sketch still holds the hashes."""
    cdef const Hyper* hyper = &(<const Hyper*>s.data)[group]
    if hyper.memory == NULL or hyper.slots:
        return hyper.used
    return hyper_estimate(<const uint8_t*>hyper.memory, s.p)


cdef int merge_distinct(State* s, const State* o, const Value* value, const uint32_t* group,
                        const uint32_t* to) noexcept nogil:
    cdef uint64_t* count = <uint64_t*>s.data
    cdef uint64_t v, owner
    cdef uint32_t i, before, g
    if table_room(&s.table, o.table.count) < 0:
        return -1
    for i in range(o.table.count):
        before = s.table.count
        if s.table.words == 2:
            v, owner = o.table.keys[<size_t>i * 2], o.table.keys[<size_t>i * 2 + 1]
            g, v = group[owner], renumber(&value.source, to, v)
            table_find2(&s.table, hash2(&s.table, v, g), v, g)
        elif s.keyless:
            g, v = 0, renumber(&value.source, to, o.table.keys[i])
            table_find1(&s.table, hash1(&s.table, v), v)
        else:
            v = o.table.keys[i]
            g = group[v >> 32]
            v = <uint64_t>g << 32 | <uint32_t>renumber(&value.source, to, <uint32_t>v)
            table_find1(&s.table, hash1(&s.table, v), v)
        count[g] += s.table.count - before
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
        key = <uint64_t>group[key >> 32] << 32 | <uint32_t>key
        s.tally[table_find1(&s.table, hash1(&s.table, key), key)] += o.tally[i]
    return 0
