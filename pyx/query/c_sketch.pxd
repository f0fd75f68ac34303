# Sketches: counts per logarithmic bucket for quantiles, and HyperLogLog for numbers of distinct values.
#
# Buckets (as in DDSketch, VLDB 2019, with the exponent and 7 mantissa bits of the float format as
# logarithm): a value and the middle of its bucket differ by at most 1/256 of the value (0.39 %).  Integers
# below 256 have a bucket each and are exact.  Bucket numbers sort like the values.
#
# HyperLogLog (Flajolet et al. 2007) with the estimator of Ertl, "New cardinality estimation algorithms for
# HyperLogLog sketches", 2017, section 4: no bias correction tables, accurate from 0 on.  Standard error:
# 1.04 / sqrt(2^p).
# A sketch starts as the exact set of the 64-bit hashes and turns into registers when those need less memory.

from libc.math cimport INFINITY, sqrt
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_bits cimport clz64
from c_sort_key cimport order_f64

cdef enum Domain:
    UNSIGNED = 0                # types of a 64-bit value
    SIGNED = 1
    FLOAT = 2

cdef enum:
    MIDDLE = 8192               # bucket of 0 for signed integers
    INT_BUCKETS = 7424          # 256 exact ones, then 56 powers of two of 128 buckets each
    FLOAT_SHIFT = 45            # 52 bits of mantissa, 7 kept
    FLOAT_BUCKETS = 1 << 19     # sign, 11 bits of exponent, 7 of mantissa

cdef inline uint32_t bucket_u(uint64_t v) noexcept nogil:
    cdef int e = max(56 - clz64(v | 1), 0)      # so that v >> e has at most 8 bits; without a branch
    return (<uint32_t>e << 7) + <uint32_t>(v >> e)

cdef inline double middle_u(uint32_t bucket) noexcept nogil:
    cdef int e
    cdef uint64_t low
    if bucket < 256:
        return bucket
    e = (bucket >> 7) - 1
    low = <uint64_t>(128 + (bucket & 127)) << e
    return <double>(low + ((<uint64_t>1 << e) - 1) // 2)

cdef inline uint32_t bucket_of(int domain, uint64_t v) noexcept nogil:
    """The bucket of a value (not NaN)."""
    cdef double d
    if domain == UNSIGNED:
        return bucket_u(v)
    if domain == SIGNED:
        return MIDDLE + bucket_u(v) if <int64_t>v >= 0 else MIDDLE - bucket_u(0 - v)
    memcpy(&d, &v, 8)
    return <uint32_t>(order_f64(d) >> FLOAT_SHIFT)

cdef inline void buckets_of(int domain, const uint64_t* v, uint32_t n, uint32_t* out) noexcept nogil:
    cdef uint32_t i
    if domain == UNSIGNED:
        for i in range(n):
            out[i] = bucket_u(v[i])
    else:
        for i in range(n):
            out[i] = bucket_of(domain, v[i])

cdef inline double bucket_middle(int domain, uint32_t bucket) noexcept nogil:
    """A value within 1/256 of every value of the bucket."""
    cdef uint64_t bits
    cdef double d
    if domain == UNSIGNED:
        return middle_u(bucket)
    if domain == SIGNED:
        return middle_u(bucket - MIDDLE) if bucket >= MIDDLE else -middle_u(MIDDLE - bucket)
    if bucket == FLOAT_BUCKETS // 2 or bucket == FLOAT_BUCKETS // 2 - 1:
        return 0.0                          # zero and subnormal numbers
    bits = <uint64_t>bucket << FLOAT_SHIFT
    if bits >> 63:
        bits = bits ^ <uint64_t>1 << 63
    else:
        bits = ~bits ^ ((<uint64_t>1 << FLOAT_SHIFT) - 1)
    if bits >> 52 & 0x7FF != 0x7FF:
        bits |= <uint64_t>1 << (FLOAT_SHIFT - 1)
    memcpy(&d, &bits, 8)
    return d

cdef inline uint32_t bucket_limit(int domain) noexcept nogil:
    return INT_BUCKETS if domain == UNSIGNED else 2 * MIDDLE if domain == SIGNED else FLOAT_BUCKETS

cdef inline uint64_t quantile_rank(uint32_t millionths, uint64_t n) noexcept nogil:
    """The rank, 1..n, of a quantile: the least k with k / n >= q."""
    cdef uint64_t whole = n // 1000000 * millionths, rest = n % 1000000 * millionths
    cdef uint64_t k = whole + rest // 1000000 + (rest % 1000000 != 0)
    return min(max(k, <uint64_t>1), n)


cdef struct Hyper:
    uint64_t* memory            # hashes in a table of `slots`, 0 free; or 2^p one-byte registers
    uint32_t used               # hashes
    uint32_t slots              # 0: registers

cdef inline void hyper_register(uint8_t* registers, int p, uint64_t h) noexcept nogil:
    cdef uint8_t rank = <uint8_t>(clz64(h << p | <uint64_t>1 << (p - 1)) + 1)
    cdef uint64_t i = h >> (64 - p)
    if registers[i] < rank:
        registers[i] = rank

cdef inline void hyper_insert(uint64_t* table, uint32_t slots, uint32_t* used, uint64_t h) noexcept nogil:
    # The table always has a free slot.
    cdef uint32_t at = <uint32_t>h & (slots - 1)
    while table[at]:
        if table[at] == h:
            return
        at = (at + 1) & (slots - 1)
    table[at] = h
    used[0] += 1

cdef inline double _sigma(double x) noexcept nogil:
    cdef double y = 1.0, z = x, before
    if x == 1.0:
        return INFINITY
    while True:
        x *= x
        before = z
        z += x * y
        y += y
        if z == before:
            return z

cdef inline double _tau(double x) noexcept nogil:
    cdef double y = 1.0, z, before
    if x == 0.0 or x == 1.0:
        return 0.0
    z = 1.0 - x
    while True:
        x = sqrt(x)
        before = z
        y *= 0.5
        z -= (1.0 - x) * (1.0 - x) * y
        if z == before:
            return z / 3.0

cdef inline double hyper_estimate(const uint8_t* registers, int p) noexcept nogil:
    """Ertl 2017, algorithm 6."""
    cdef uint32_t count[65]
    cdef uint32_t m = <uint32_t>1 << p, i
    cdef int q = 64 - p, k
    cdef double z
    memset(count, 0, sizeof(count))
    for i in range(m):
        count[registers[i]] += 1
    z = m * _tau(1.0 - <double>count[q + 1] / m)
    k = q
    while k >= 1:
        z = 0.5 * (z + count[k])
        k -= 1
    z += m * _sigma(<double>count[0] / m)
    return 0.7213475204444817 * m * m / z               # 1 / (2 ln 2)
