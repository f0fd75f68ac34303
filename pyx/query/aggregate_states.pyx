"""Aggregate states: load the values of a field for a chunk of rows, fold them in, merge the states of two roll-ups."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset
from c_bits cimport ctz64, popcount64
from c_hash_table cimport NOT_FOUND, table_free, table_memory
from c_huge_pages cimport huge_pages
from c_sort_key cimport order_f64
from c_sketch cimport FLOAT, SIGNED, Hyper, bucket_limit
from c_source cimport (
    ABSENT, HOLDS, IP, NUMBER, WIDE, WIDE_HASH, Chunk, Source, ip_at, ip_codes, ip_hashes, is_nan, load_column,
    load_value, no_ipv6, row_of, wide_codes, wide_hashes,
)
from confluo_tools.core.query.calculation cimport CALC_NO_FIT, calc, calc_run
from confluo_tools.core.query.group_source cimport source_room
from confluo_tools.core.query.sketch cimport (
    distinct_update, histogram_update, hyper_merge, hyper_update, merge_distinct, merge_histogram,
)


# ---- values of a chunk -------------------------------------------------------------------------------------------

cdef int load_value_chunk(Value* value, const Chunk* c) noexcept nogil:
    """Fill value.v, .n and .group; -1 without memory."""
    cdef Source* s = &value.source
    cdef uint32_t i, k, n = 0
    cdef const uint8_t* p
    cdef uint64_t v
    value.n, value.group = c.n, c.group
    if c.group == NULL:
        value.group = value.own                     # all zero
    if s.kind == HOLDS:
        _rows_that_hold(value, c)
        return 0
    if s.calc != NULL:
        calc_run(<const calc*>s.calc, c.col, c.rows, c.first, c.n, value.v, value.present)
        if s.drop:
            for i in range(c.n):
                value.present[i] = value.present[i] & CALC_NO_FIT if s.missing else value.present[i] == 0
            _keep_present(value, c)
        return 0
    if s.kind == NUMBER and not s.drop:
        load_column(c, s.col, s.code, s.width, value.v)
        return 0
    if source_room(s, c.n) < 0:
        return -1
    if s.kind == WIDE:
        wide_codes(s, c, value.v)
        return 0
    if s.kind == WIDE_HASH:
        wide_hashes(s, c, value.v)
        return 0
    value.group = value.own
    if s.kind == NUMBER:                            # one value per element that is not zero
        for i in range(c.n):
            p = c.col[s.col] + <size_t>row_of(c, i) * s.width
            for k in range(s.count):
                v = load_value(s.code, p + <size_t>k * s.size)
                if v:
                    value.v[n] = v
                    if c.group != NULL:
                        value.own[n] = c.group[i]
                    n += 1
    else:                                           # addresses: a row without an address has no value
        if s.kind == IP:
            ip_codes(s, c, value.v)
            for i in range(c.n):
                value.present[i] = value.v[i] != 0
        else:
            ip_hashes(s, c, value.v, value.present)
        _keep_present(value, c)
        return 0
    value.n = n
    return 0


cdef void _keep_present(Value* value, const Chunk* c) noexcept nogil:
    # Drop the values of rows without one.
    cdef uint32_t i, n = 0
    value.group = value.own
    for i in range(c.n):
        value.v[n] = value.v[i]
        if c.group != NULL:
            value.own[n] = c.group[i]
        n += value.present[i]
    value.n = n


cdef void _rows_that_hold(Value* value, const Chunk* c) noexcept nogil:
    # One value per row for which the condition holds; only their number and groups count.
    cdef const uint64_t* holds = value.source.holds
    cdef uint32_t* own = value.own
    cdef uint32_t i, row, n = 0, end = c.first + c.n
    cdef uint64_t word
    value.group = own
    if c.rows != NULL:
        for i in range(c.n):
            row = c.rows[i]
            if c.group != NULL:
                own[n] = c.group[i]
            n += holds[row >> 6] >> (row & 63) & 1
    else:
        i = c.first
        while i < end:                                              # whole words of 64 rows
            word = holds[i >> 6] >> (i & 63)
            row = min(64 - (i & 63), end - i)
            if row < 64:
                word &= (<uint64_t>1 << row) - 1
            if c.group == NULL or c.single >= 0:
                n += popcount64(word)
            else:
                while word:
                    own[n] = c.group[i - c.first + ctz64(word)]
                    n += 1
                    word &= word - 1
            i += row
    value.n = n


# ---- states ------------------------------------------------------------------------------------------------------

cdef uint64_t order_value(int domain, uint64_t v) noexcept nogil:
    """An unsigned number that sorts like the value; never 0 or ~0 for a float."""
    cdef double d
    if domain == SIGNED:
        return v ^ <uint64_t>1 << 63
    if domain == FLOAT:
        memcpy(&d, &v, 8)
        return order_f64(d)
    return v


cdef uint64_t value_of_order(int domain, uint64_t v) noexcept nogil:
    if domain == SIGNED:
        return v ^ <uint64_t>1 << 63
    if domain == FLOAT:
        return v ^ <uint64_t>1 << 63 if v >> 63 else ~v
    return v


cdef int state_groups(State* s, uint32_t groups, const Value* value) noexcept nogil:
    """Initialise the states of groups up to `groups`; -1 without memory."""
    cdef uint64_t room
    cdef uint8_t* data
    if groups <= s.groups:
        return 0
    if groups > s.room:
        room = max(<uint64_t>groups, <uint64_t>s.room + s.room // 2)
        room = min(max(room, <uint64_t>64), <uint64_t>0xFFFFFFFF)
        if s.keyless:
            room = 1
        data = <uint8_t*>realloc(s.data, room * s.width)
        if data == NULL:
            return -1
        huge_pages(data, room * s.width)
        s.data, s.room = data, <uint32_t>room
    memset(s.data + <size_t>s.groups * s.width, 0xFF if s.kind == MIN else 0, <size_t>(groups - s.groups) * s.width)
    s.groups = groups
    if s.kind == HISTOGRAM and s.keyless and s.tally == NULL:
        s.tallies = bucket_limit(value.domain)
        s.tally = <uint64_t*>calloc(s.tallies, 8)
        if s.tally == NULL:
            return -1
    return 0


cdef void state_free(State* s) noexcept nogil:
    cdef uint32_t g
    if s.kind == HYPER and s.data != NULL:
        for g in range(s.groups):
            free((<Hyper*>s.data)[g].memory)
    free(s.data)
    free(s.tally)
    table_free(&s.table)
    s.data = NULL
    s.tally = NULL
    s.groups = s.room = 0


cdef uint64_t state_memory(const State* s) noexcept nogil:
    """Bytes of the states of all groups."""
    cdef uint64_t n = <uint64_t>s.room * s.width + <uint64_t>s.tallies * 8 + table_memory(&s.table)
    cdef const Hyper* hyper = <const Hyper*>s.data
    cdef uint32_t g
    if s.kind == HYPER:
        for g in range(s.groups):
            if hyper[g].memory != NULL:
                n += <uint64_t>hyper[g].slots * 8 if hyper[g].slots else <uint64_t>1 << s.p
    return n


cdef void state_reduced(State* s, const Value* value, const reduced* r, uint32_t group, uint64_t n) noexcept nogil:
    """Fold n > 0 rows of one group, already reduced, into COUNT, SUM_*, MIN or MAX."""
    cdef uint8_t* state = s.data + <size_t>group * s.width
    cdef uint64_t* extreme = <uint64_t*>state
    cdef FloatSum* f = <FloatSum*>state
    cdef uint64_t v
    if s.kind == COUNT:
        (<uint64_t*>state)[0] += n
    elif s.kind == SUM_INT:
        total_add_halves(<total*>state, r.low, r.high)
    elif s.kind == SUM_FLOAT:
        two_sum(&f.sum, &f.error, r.sum)
        f.error += r.error
        f.n += r.n
    elif r.n:
        v = order_value(value.domain, r.min if s.kind == MIN else r.max)
        if v < extreme[0] if s.kind == MIN else v > extreme[0]:
            extreme[0] = v


cdef int state_update(State* s, Value* value, const Chunk* c, const reduced* r) noexcept nogil:
    """Fold in a chunk; r: the reduced values, if all rows are of one group and the state needs only these."""
    if r != NULL or (s.kind == COUNT and c.single >= 0):
        state_reduced(s, value, r, <uint32_t>c.single, c.n)
    elif s.kind == COUNT:
        _count(<uint64_t*>s.data, c.group, c.n)
    elif s.kind == VALUES and c.single >= 0:
        (<uint64_t*>s.data)[c.single] += value.n
    elif s.kind == VALUES:
        _count(<uint64_t*>s.data, value.group, value.n)
    elif s.kind == SUM_INT:
        _sum_int(<total*>s.data, value)
    elif s.kind == SUM_FLOAT:
        _sum_float(<FloatSum*>s.data, value)
    elif s.kind == MIN:
        _least(<uint64_t*>s.data, value)
    elif s.kind == MAX:
        _most(<uint64_t*>s.data, value)
    elif s.kind == MOMENTS_INT and c.single >= 0:
        moments_add(<moments*>s.data + c.single, value.domain == SIGNED, value.v, value.n)
    elif s.kind == MOMENTS_INT:
        _moments_int(<moments*>s.data, value)
    elif s.kind == MOMENTS_FLOAT and c.single >= 0:
        _moments_of(<FloatMoments*>s.data + c.single, value)
    elif s.kind == MOMENTS_FLOAT:
        _moments_float(<FloatMoments*>s.data, value)
    elif s.kind == MIN_BYTES or s.kind == MAX_BYTES:
        _extreme_bytes(s, value, c)
    elif s.kind == FIRST or s.kind == LAST:
        _events(s, value, c)
    elif s.kind == DISTINCT:
        return distinct_update(s, value)
    elif s.kind == HYPER:
        return hyper_update(s, value)
    else:
        return histogram_update(s, value)
    return 0


# The arrays are copied to local variables: the compiler cannot know that a state does not alias `value`.

cdef inline void _count(uint64_t* count, const uint32_t* group, uint32_t n) noexcept nogil:
    cdef uint32_t i
    for i in range(n):
        count[group[i]] += 1


cdef void _sum_int(total* sums, const Value* value) noexcept nogil:
    cdef const uint32_t* group = value.group
    cdef const uint64_t* v = value.v
    cdef uint32_t i, n = value.n
    if value.domain == SIGNED:
        for i in range(n):
            total_add_i(&sums[group[i]], v[i])
    else:
        for i in range(n):
            total_add_u(&sums[group[i]], v[i])


cdef void _sum_float(FloatSum* sums, const Value* value) noexcept nogil:
    cdef const uint32_t* group = value.group
    cdef const double* v = <const double*>value.v
    cdef uint32_t i, n = value.n
    cdef FloatSum* f
    for i in range(n):
        f = &sums[group[i]]
        if v[i] == v[i]:
            two_sum(&f.sum, &f.error, v[i])
            f.n += 1


cdef void _least(uint64_t* least, const Value* value) noexcept nogil:
    cdef const uint32_t* group = value.group
    cdef const uint64_t* v = value.v
    cdef uint64_t* p
    cdef uint64_t x, sign = <uint64_t>1 << 63 if value.domain == SIGNED else 0
    cdef uint32_t i, n = value.n
    if value.domain != FLOAT:
        for i in range(n):
            p, x = &least[group[i]], v[i] ^ sign
            p[0] = min(p[0], x)
        return
    for i in range(n):
        p, x = &least[group[i]], order_value(FLOAT, v[i])
        if x < p[0] and not is_nan(v[i]):
            p[0] = x


cdef void _most(uint64_t* most, const Value* value) noexcept nogil:
    cdef const uint32_t* group = value.group
    cdef const uint64_t* v = value.v
    cdef uint64_t* p
    cdef uint64_t x, sign = <uint64_t>1 << 63 if value.domain == SIGNED else 0
    cdef uint32_t i, n = value.n
    if value.domain != FLOAT:
        for i in range(n):
            p, x = &most[group[i]], v[i] ^ sign
            p[0] = max(p[0], x)
        return
    for i in range(n):
        p, x = &most[group[i]], order_value(FLOAT, v[i])
        if x > p[0] and not is_nan(v[i]):
            p[0] = x


cdef void _moments_int(moments* states, const Value* value) noexcept nogil:
    cdef const uint32_t* group = value.group
    cdef const uint64_t* v = value.v
    cdef uint32_t i, n = value.n
    if value.domain == SIGNED:
        for i in range(n):
            moments_add_i(&states[group[i]], v[i])
    else:
        for i in range(n):
            moments_add_u(&states[group[i]], v[i])


cdef void _moments_float(FloatMoments* states, const Value* value) noexcept nogil:
    cdef const uint32_t* group = value.group
    cdef const double* v = <const double*>value.v
    cdef uint32_t i, n = value.n
    cdef FloatMoments* m
    cdef double delta
    for i in range(n):
        if v[i] == v[i]:
            m = &states[group[i]]
            m.n += 1
            delta = v[i] - m.mean
            m.mean += delta / <double>m.n
            m.square += delta * (v[i] - m.mean)


cdef void _moments_of(FloatMoments* m, const Value* value) noexcept nogil:
    # One group: the mean of the chunk, then the squared differences from it, then the combination of both.
    cdef FloatMoments chunk
    cdef reduced r
    if value.n == 0:
        return
    reduce_column(&r, 10, value.v, value.n)
    chunk.n = r.n
    if r.n:
        chunk.mean = (r.sum + r.error) / <double>r.n
        chunk.square = square_differences(<const double*>value.v, value.n, chunk.mean)
        _merge_moments(m, &chunk)


cdef void _extreme_bytes(State* s, const Value* value, const Chunk* c) noexcept nogil:
    # A state: 1 if there is a value (for addresses the family), then its bytes, so that memcmp orders states.
    cdef const Source* source = &value.source
    cdef bint address = source.kind != WIDE and source.kind != WIDE_HASH
    cdef bint no6 = address and no_ipv6(source, c)
    cdef bint better
    cdef uint8_t six[17]
    cdef uint32_t i, row, v4
    cdef uint8_t* state
    cdef const uint8_t* p
    cdef int order
    for i in range(c.n):
        row = row_of(c, i)
        state = s.data + <size_t>(c.group[i] if c.group != NULL else 0) * s.width
        if address:
            six[0] = <uint8_t>ip_at(source, c, row, no6, &v4, &six[1])
            if six[0] == ABSENT:
                continue
            if v4:
                six[1], six[2], six[3], six[4] = v4 >> 24, v4 >> 16 & 255, v4 >> 8 & 255, v4 & 255
            if state[0] == 0 or (memcmp(six, state, 17) < 0) == (s.kind == MIN_BYTES):
                memcpy(state, six, 17)
        else:
            p = c.col[source.col] + <size_t>row * source.width
            order = memcmp(p, state + 1, s.payload)
            better = order < 0 if s.kind == MIN_BYTES else order > 0
            if state[0] == 0 or better:
                state[0] = 1
                memcpy(state + 1, p, s.payload)


cdef inline bint _earlier(const Event* a, int64_t time, int32_t lane, uint64_t row) noexcept nogil:
    # whether a is before (time, lane, row)
    if a.time != time:
        return a.time < time
    if a.lane != lane:
        return a.lane < lane
    return a.row < row


cdef void _events(State* s, const Value* value, const Chunk* c) noexcept nogil:
    cdef uint32_t i, k
    if c.single < 0 or c.time == NULL:
        for i in range(c.n):
            _event(s, value, c, i, c.group[i] if c.group != NULL else 0)
        return
    # One group: only the first row with the earliest time of the chunk counts, or the last row with the latest.
    k = 0
    for i in range(1, c.n):
        if (c.time[i] < c.time[k]) if s.kind == FIRST else (c.time[i] >= c.time[k]):
            k = i
    _event(s, value, c, k, <uint32_t>c.single)


cdef inline void _event(State* s, const Value* value, const Chunk* c, uint32_t i, uint32_t group) noexcept nogil:
    cdef const Source* source = &value.source
    cdef bint address = source.kind != NUMBER and source.kind != WIDE and source.kind != WIDE_HASH
    cdef uint32_t row = row_of(c, i), v4
    cdef int64_t time = c.time[i] if c.time != NULL else 0
    cdef Event* e = <Event*>(s.data + <size_t>group * s.width)
    cdef uint8_t* payload = <uint8_t*>(e + 1)
    if e.seen and _earlier(e, time, c.lane, c.base + row) == (s.kind == FIRST):
        return
    e.time, e.lane, e.row, e.seen = time, c.lane, c.base + row, 1
    if address:
        payload[0] = <uint8_t>ip_at(source, c, row, no_ipv6(source, c), &v4, payload + 1)
        memcpy(payload + 17, &v4, 4)
    else:
        memcpy(payload, c.col[source.col] + <size_t>row * source.width, source.width)


# ---- merging -----------------------------------------------------------------------------------------------------

cdef int state_merge(State* s, State* o, const Value* value, const uint32_t* group, uint32_t groups,
                     const uint32_t* to, uint64_t offset) noexcept nogil:
    """Fold in the first `groups` states of o: its group g becomes group[g], its side-table numbers become to[...].

    Groups with the number NOT_FOUND are left out.  offset: added to the row numbers of rows without a lane.
    """
    cdef uint32_t g
    cdef uint8_t* ours
    cdef uint8_t* theirs
    if s.kind == DISTINCT:
        return merge_distinct(s, o, value, group, to)
    if s.kind == HISTOGRAM:
        return merge_histogram(s, o, group)
    for g in range(groups):
        if group[g] == NOT_FOUND:
            continue
        ours, theirs = s.data + <size_t>group[g] * s.width, o.data + <size_t>g * o.width
        if s.kind == HYPER:
            if hyper_merge(<Hyper*>ours, <const Hyper*>theirs, s.p) < 0:
                return -1
        else:
            _merge_one(s, ours, theirs, offset)
    return 0


cdef void _merge_one(const State* s, uint8_t* ours, const uint8_t* theirs, uint64_t offset) noexcept nogil:
    cdef FloatSum* f
    cdef const FloatSum* fo
    cdef const Event* e
    cdef uint64_t a, b, row
    if s.kind == COUNT or s.kind == VALUES:
        (<uint64_t*>ours)[0] += (<const uint64_t*>theirs)[0]
    elif s.kind == SUM_INT:
        total_add(<total*>ours, <const total*>theirs)
    elif s.kind == SUM_FLOAT:
        f, fo = <FloatSum*>ours, <const FloatSum*>theirs
        two_sum(&f.sum, &f.error, fo.sum)
        f.error += fo.error
        f.n += fo.n
    elif s.kind == MIN or s.kind == MAX:
        a, b = (<uint64_t*>ours)[0], (<const uint64_t*>theirs)[0]
        (<uint64_t*>ours)[0] = min(a, b) if s.kind == MIN else max(a, b)
    elif s.kind == MOMENTS_INT:
        moments_merge(<moments*>ours, <const moments*>theirs)
    elif s.kind == MOMENTS_FLOAT:
        _merge_moments(<FloatMoments*>ours, <const FloatMoments*>theirs)
    elif s.kind == MIN_BYTES or s.kind == MAX_BYTES:
        if theirs[0] and (ours[0] == 0 or (memcmp(theirs, ours, s.width) < 0) == (s.kind == MIN_BYTES)):
            memcpy(ours, theirs, s.width)
    else:
        e = <const Event*>theirs
        row = e.row + (offset if e.lane < 0 else 0)
        if e.seen and not ((<Event*>ours).seen
                           and _earlier(<Event*>ours, e.time, e.lane, row) == (s.kind == FIRST)):
            memcpy(ours, theirs, s.width)
            (<Event*>ours).row = row


cdef void state_rank(State* s, int32_t source) noexcept nogil:
    # Rows of one time: those of a lower source are earlier, whatever their lanes.
    cdef uint32_t g
    cdef Event* e
    if s.kind != FIRST and s.kind != LAST:
        return
    for g in range(s.groups):
        e = <Event*>(s.data + <size_t>g * s.width)
        e.lane = source << 16 | (e.lane & 0xffff if e.lane >= 0 else 0)


cdef void _merge_moments(FloatMoments* a, const FloatMoments* b) noexcept nogil:
    # Chan, Golub, LeVeque 1979
    cdef double delta, n
    if b.n == 0:
        return
    if a.n == 0:
        a[0] = b[0]
        return
    n = <double>a.n + <double>b.n
    delta = b.mean - a.mean
    a.square += b.square + delta * delta * (<double>a.n * <double>b.n / n)
    a.mean += delta * (<double>b.n / n)
    a.n += b.n
