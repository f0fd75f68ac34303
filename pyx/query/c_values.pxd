# Quantiles of one group of values: the values while they are few, then counts per logarithmic bucket
# (c_sketch.pxd: within 1/256), for the range of nonempty buckets.

from libc.math cimport NAN, ceil, sqrt
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy
from c_bits cimport prefetch
from c_sketch cimport INT_BUCKETS, bucket_u, middle_u, quantile_rank

cdef enum:
    EXACT = 512             # maximum number of stored values
    SLACK = 32              # extra buckets when the range grows

cdef struct Values:
    uint64_t n
    uint64_t* data          # values, or counts of buckets
    uint32_t room           # values, or buckets
    uint32_t base           # the first bucket
    uint32_t counted        # 1: buckets

cdef inline void values_free(Values* v) noexcept nogil:
    free(v.data)
    v.data = NULL
    v.n = v.room = v.base = v.counted = 0

cdef inline int values_range(Values* v, uint32_t low, uint32_t high) noexcept nogil:
    """Extend the range to buckets low..high; keeps the counts."""
    cdef uint32_t first = low, last = high
    cdef uint64_t* fresh
    if v.counted and v.room:
        if low >= v.base and high < v.base + v.room:
            return 0
        first, last = min(low, v.base), max(high, v.base + v.room - 1)
    first = first - SLACK if first > SLACK else 0
    last = min(last + SLACK, <uint32_t>INT_BUCKETS - 1)
    fresh = <uint64_t*>calloc(last - first + 1, 8)
    if fresh == NULL:
        return -1
    if v.counted:
        memcpy(fresh + (v.base - first), v.data, <size_t>v.room * 8)
        free(v.data)
        v.data = fresh
    v.base, v.room = first, last - first + 1
    if not v.counted:
        v.counted = 1
        free(v.data)
        v.data = fresh
    return 0

cdef inline int values_count(Values* v) noexcept nogil:
    """Convert values to counts."""
    cdef uint64_t* values = v.data
    cdef uint64_t low = ~<uint64_t>0, high = 0
    cdef uint32_t i
    if v.counted:
        return 0
    for i in range(<uint32_t>v.n):
        low, high = min(low, values[i]), max(high, values[i])
    if v.n == 0:
        low = 0
    v.data = NULL
    if values_range(v, bucket_u(low), bucket_u(high)) < 0:
        v.data = values
        return -1
    for i in range(<uint32_t>v.n):
        v.data[bucket_u(values[i]) - v.base] += 1
    free(values)
    return 0

cdef inline int values_add(Values* v, uint64_t value) noexcept nogil:
    """Add a value; -1 without memory: the value is then not added."""
    cdef uint32_t bucket
    cdef uint64_t* fresh
    if not v.counted:
        if v.n < v.room:
            v.data[v.n] = value
            v.n += 1
            return 0
        if v.n < EXACT:
            bucket = max(v.room * 2, <uint32_t>8)
            fresh = <uint64_t*>realloc(v.data, <size_t>bucket * 8)
            if fresh == NULL:
                return -1
            v.data, v.room = fresh, bucket
            v.data[v.n] = value
            v.n += 1
            return 0
        if values_count(v) < 0:
            return -1
    bucket = bucket_u(value)
    if bucket - v.base >= v.room and values_range(v, bucket, bucket) < 0:
        return -1
    v.data[bucket - v.base] += 1
    v.n += 1
    return 0

cdef inline int values_merge(Values* to, const Values* other) noexcept nogil:
    cdef uint32_t i
    if not other.counted:
        for i in range(<uint32_t>other.n):
            if values_add(to, other.data[i]) < 0:
                return -1
        return 0
    if values_count(to) < 0 or values_range(to, other.base, other.base + other.room - 1) < 0:
        return -1
    for i in range(other.room):
        to.data[other.base - to.base + i] += other.data[i]
    to.n += other.n
    return 0

cdef inline uint64_t values_select(uint64_t* v, uint32_t n, uint32_t k) noexcept nogil:
    """The k-th smallest (from 0) of n values, which are reordered: Hoare's quickselect."""
    cdef uint32_t low = 0, high = n - 1, i, j
    cdef uint64_t pivot, swap
    while low < high:
        pivot = v[low + (high - low) // 2]
        i, j = low, high
        while True:
            while v[i] < pivot:
                i += 1
            while v[j] > pivot:
                j -= 1
            if i >= j:
                break
            swap = v[i]
            v[i] = v[j]
            v[j] = swap
            i += 1
            j -= 1
        if k <= j:
            high = j
        else:
            low = j + 1
    return v[k]

cdef inline double values_quantile(Values* v, uint32_t millionths, int32_t aside) noexcept nogil:
    """The value of rank ceil(q n), shifted by the given thousandths of a standard deviation of the rank; NaN: none.

    The number of values below a quantile is binomially distributed: shifts of -1,960 and 1,960 give its 95 %
    confidence interval for any distribution of the values.
    """
    cdef uint64_t rank, seen = 0
    cdef double mean, wide
    cdef uint32_t i
    if v.n == 0:
        return NAN
    if aside == 0:
        rank = quantile_rank(millionths, v.n)
    else:
        mean = <double>v.n * millionths / 1e6
        wide = ceil(mean + aside / 1e3 * sqrt(mean * (1e6 - millionths) / 1e6))
        if not 1 <= wide <= <double>v.n:
            return NAN
        rank = <uint64_t>wide
    if not v.counted:
        return <double>values_select(v.data, <uint32_t>v.n, <uint32_t>rank - 1)
    for i in range(v.room):
        seen += v.data[i]
        if seen >= rank:
            return middle_u(v.base + i)
    return middle_u(v.base + v.room - 1)

cdef inline void values_prefetch(const Values* v, uint64_t value) noexcept nogil:
    cdef uint32_t bucket
    if not v.counted:
        prefetch(v.data + v.n)
        return
    bucket = bucket_u(value) - v.base
    if bucket < v.room:
        prefetch(v.data + bucket)
