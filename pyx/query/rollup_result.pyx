"""Roll-up result: compute the result columns from the states of a roll-up."""

from libc.math cimport NAN, isfinite, llrint, sqrt
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from c_block cimport BYTES, F32, F64, I64, U32, U64
from c_sketch cimport FLOAT, SIGNED, bucket_middle, quantile_rank
from c_source cimport IP, IP_HASH, V6, ip_result
from confluo_tools.core.block.block cimport Layout
from confluo_tools.core.block.result_table cimport Rows, radix
from confluo_tools.core.query.sketch cimport hyper_count
from confluo_tools.core.query.aggregate_states cimport (
    COUNT, FIRST, LAST, MAX, MIN, MOMENTS_INT, SUM_FLOAT, SUM_INT, Event, FloatMoments, FloatSum, State, Value, moments,
    moments_stddev, total, total_as_i, total_as_u, total_double, total_mean, total_mean_int, value_of_order,
)


cdef int check_column(Layout layout, int i, int code, uint32_t width) except -1:
    if i >= layout.n or layout.column[i].code != code or layout.column[i].width != width:
        raise ValueError(f"result column {i} should have type {code} of {width} bytes")
    return 0


cdef int finish_column(const Output* o, State* states, Value* values, Rows rows, int column, double seconds) except -1:
    """Fill one result column, or two for an address; returns their number.

    Raises OverflowError with the column number if a sum of integers does not fit.
    """
    cdef State* s = &states[o.state]
    cdef const Value* value = &values[max(s.value, 0)]
    cdef const uint64_t* count = NULL
    cdef int code
    if column >= rows.layout.n:
        raise ValueError(f"{rows.layout.n} result columns are too few")
    if o.count >= 0:
        count = <const uint64_t*>states[o.count].data
    if o.func in (F_COUNT, F_DISTINCT, F_HYPER):
        check_column(rows.layout, column, U64, 8)
        _counts(s, o.func == F_HYPER, <uint64_t*>rows.column[column], rows.total)
    elif o.func == F_SUM and s.kind == SUM_INT:
        check_column(rows.layout, column, I64 if value.domain == SIGNED else U64, 8)
        if _sums(s, value.domain == SIGNED, <uint64_t*>rows.column[column], rows.total):
            raise OverflowError(column)
    elif o.func == F_SUM or o.func == F_RATE:
        check_column(rows.layout, column, F64, 8)
        _rates(s, o.func == F_RATE, seconds, <double*>rows.column[column], rows.total)
    elif o.func == F_AVG or o.func == F_STDDEV or o.func == F_QUANTILE:
        code = I64 if rows.layout.column[column].code == I64 else F64
        check_column(rows.layout, column, code, 8)
        if o.func == F_QUANTILE:
            _quantiles(o, s, value, &states[o.low], &states[o.high], count, code == I64, rows, column)
        else:
            _means(s, count, code == I64, rows.column[column], rows.total)
    elif s.kind == MIN or s.kind == MAX:
        check_column(rows.layout, column, value.source.code, value.source.size)
        _extremes(s, value, count, rows.column[column], rows.total)
    elif value.source.kind == IP or value.source.kind == IP_HASH:
        check_column(rows.layout, column, U32, 4)
        check_column(rows.layout, column + 1, BYTES, 16)
        _addresses(s, value, rows.column[column], rows.column[column + 1], rows.total)
        return 2
    else:
        check_column(rows.layout, column, value.source.code, value.source.width)
        _payloads(s, value, rows.column[column], rows.total)
    return 1


cdef void _counts(const State* s, bint estimated, uint64_t* out, uint32_t groups) noexcept nogil:
    cdef uint32_t g
    for g in range(groups):
        out[g] = <uint64_t>llrint(hyper_count(s, g)) if estimated else (<const uint64_t*>s.data)[g]


cdef int _sums(const State* s, bint signed, uint64_t* out, uint32_t groups) noexcept nogil:
    # Returns nonzero on overflow.
    cdef const total* sums = <const total*>s.data
    cdef uint32_t g
    cdef int over = 0
    for g in range(groups):
        if signed:
            over |= total_as_i(&sums[g], &out[g])
        else:
            over |= total_as_u(&sums[g], &out[g])
    return over


cdef inline double float_sum(const FloatSum* f) noexcept nogil:
    return f.sum + f.error if isfinite(f.sum) else f.sum


cdef inline int64_t rounded(double x) noexcept nogil:
    # 0 without a value.  2^63 is a double, the largest i64 is not.
    if x != x:
        return 0
    return INT64_MAX if x >= 9223372036854775808.0 else INT64_MIN if x < -9223372036854775808.0 else llrint(x)


cdef void _rates(const State* s, bint rate, double seconds, double* out, uint32_t groups) noexcept nogil:
    cdef uint32_t g
    for g in range(groups):
        if s.kind == COUNT:
            out[g] = <double>(<const uint64_t*>s.data)[g]
        elif s.kind == SUM_INT:
            out[g] = total_double(<const total*>s.data + g)
        else:
            out[g] = float_sum(<const FloatSum*>s.data + g)
        if rate:
            out[g] = out[g] / seconds if seconds > 0 else NAN


cdef void _means(const State* s, const uint64_t* count, bint whole, uint8_t* out, uint32_t groups) noexcept nogil:
    # Means and standard deviations; whole: rounded to integers.
    cdef const FloatSum* f
    cdef const FloatMoments* m
    cdef uint32_t g
    cdef double x
    for g in range(groups):
        x = NAN
        if s.kind == SUM_INT:
            if count[g] and whole:
                (<int64_t*>out)[g] = total_mean_int(<const total*>s.data + g, count[g])
                continue
            if count[g]:
                x = total_mean(<const total*>s.data + g, count[g])
        elif s.kind == SUM_FLOAT:
            f = <const FloatSum*>s.data + g
            if f.n:
                x = float_sum(f) / <double>f.n
        elif s.kind == MOMENTS_INT:
            if (<const moments*>s.data)[g].n:
                x = moments_stddev(<const moments*>s.data + g)
        else:
            m = <const FloatMoments*>s.data + g
            if m.n:
                x = sqrt(m.square / <double>m.n)
        if whole:
            (<int64_t*>out)[g] = rounded(x)
        else:
            (<double*>out)[g] = x


cdef inline double extreme(const State* s, const Value* value, uint32_t g) noexcept nogil:
    # The smallest or largest value as a float; NaN if there is none.
    cdef uint64_t v = (<const uint64_t*>s.data)[g]
    cdef double d
    if value.domain != FLOAT:
        v = value_of_order(value.domain, v)
        return <double><int64_t>v if value.domain == SIGNED else <double>v
    if v == (~<uint64_t>0 if s.kind == MIN else <uint64_t>0):
        return NAN
    v = value_of_order(FLOAT, v)
    memcpy(&d, &v, 8)
    return d


cdef void _extremes(const State* s, const Value* value, const uint64_t* count, uint8_t* out,
                    uint32_t groups) noexcept nogil:
    cdef uint32_t g, size = value.source.size
    cdef uint64_t v
    cdef double d
    cdef float f
    for g in range(groups):
        if value.domain == FLOAT:
            d = extreme(s, value, g)
            if value.source.code == F32:
                f = <float>d
                memcpy(out + <size_t>g * 4, &f, 4)
            else:
                memcpy(out + <size_t>g * 8, &d, 8)
        elif count[g]:
            v = value_of_order(value.domain, (<const uint64_t*>s.data)[g])
            memcpy(out + <size_t>g * size, &v, size)


cdef inline const uint8_t* payload(const State* s, uint32_t g) noexcept nogil:
    # The bytes after the head of a state, NULL if the group has no value.
    cdef const uint8_t* state = s.data + <size_t>g * s.width
    if s.kind == FIRST or s.kind == LAST:
        return state + sizeof(Event) if (<const Event*>state).seen else NULL
    return state + 1 if state[0] else NULL


cdef void _payloads(const State* s, const Value* value, uint8_t* out, uint32_t groups) noexcept nogil:
    cdef uint32_t g
    cdef const uint8_t* p
    for g in range(groups):
        p = payload(s, g)
        if p != NULL:
            memcpy(out + <size_t>g * value.source.width, p, value.source.width)


cdef void _addresses(const State* s, const Value* value, uint8_t* out, uint8_t* out6, uint32_t groups) noexcept nogil:
    cdef uint32_t g, v4
    cdef const uint8_t* p
    cdef uint8_t six[16]
    cdef int kind
    for g in range(groups):
        p = payload(s, g)
        if p == NULL:
            continue
        if s.kind == FIRST or s.kind == LAST:       # family, 16 bytes, IPv4 address
            kind = p[0]
            memcpy(six, p + 1, 16)
            memcpy(&v4, p + 17, 4)
        else:                                       # the family is the mark before it; IPv4 in the first 4 bytes
            kind = (p - 1)[0]
            memcpy(six, p, 16)
            v4 = <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]
        if kind != V6:
            memset(six, 0, 16)
        ip_result(&value.source, kind, v4, six, out + <size_t>g * 4, out6 + <size_t>g * 16)


# ---- quantiles ---------------------------------------------------------------------------------------------------

cdef void forget_order(State* s) noexcept nogil:
    free(s.order)
    s.order = NULL


cdef int _order(State* s) except -1:
    # Sort the (group, bucket) pairs once for all quantiles of a field.
    cdef size_t n = s.table.count, i
    cdef uint64_t* key
    if s.order != NULL or n == 0:
        return 0
    key = <uint64_t*>malloc(max(n, <size_t>1) * 20)
    s.order = <uint32_t*>malloc(max(n, <size_t>1) * 4)
    if key == NULL or s.order == NULL:
        free(key)
        raise MemoryError(f"{n} buckets of quantiles")
    with nogil:
        memcpy(key, s.table.keys, n * 8)
        for i in range(n):
            s.order[i] = <uint32_t>i
        radix(key, key + n, s.order, <uint32_t*>(key + 2 * n), n)
    free(key)
    return 0


cdef inline int64_t whole_extreme(const State* s, uint32_t g) noexcept nogil:
    # As it is stored: integers above 2^53 are not exact as floats.
    return <int64_t>value_of_order(SIGNED, (<const uint64_t*>s.data)[g])


cdef int _quantiles(const Output* o, State* s, const Value* value, const State* low, const State* high,
                    const uint64_t* count, bint whole, Rows rows, int column) except -1:
    cdef uint8_t* out = rows.column[column]
    cdef uint32_t g, i = 0, end
    cdef uint64_t n, rank
    cdef double x
    cdef const State* end_of
    if not s.keyless:
        _order(s)
    with nogil:
        for g in range(rows.total):
            # The buckets i .. end of the group, ascending, and the number of its values.
            n = 0
            if s.keyless:
                end = s.tallies
                for i in range(end):
                    n += s.tally[i]
                i = 0
            else:
                end = i
                while end < s.table.count and s.table.keys[s.order[end]] >> 32 == g:
                    n += s.tally[s.order[end]]
                    end += 1
            x, end_of = NAN, NULL
            if n:
                rank = quantile_rank(o.millionths, n)
                if rank == 1 or rank == n:
                    end_of = low if rank == 1 else high
                    x = extreme(end_of, value, g)
                else:
                    while True:
                        n = s.tally[i if s.keyless else s.order[i]]
                        if rank <= n:
                            break
                        rank -= n
                        i += 1
                    x = bucket_middle(value.domain, i if s.keyless else <uint32_t>s.table.keys[s.order[i]])
                    x = min(max(x, extreme(low, value, g)), extreme(high, value, g))
            i = end
            if whole and end_of != NULL:
                (<int64_t*>out)[g] = whole_extreme(end_of, g)
            elif whole and x == x:
                (<int64_t*>out)[g] = min(max(rounded(x), whole_extreme(low, g)), whole_extreme(high, g))
            elif whole:
                (<int64_t*>out)[g] = 0
            else:
                (<double*>out)[g] = x
    return 0
