# Order-preserving maps from each physical type to u64: a < b  <=>  key(a) < key(b).
# All-zero bytes map to the key of the number zero, so that an unwritten column has the zone of zeros.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int8_t, int16_t, int32_t, int64_t
from libc.string cimport memcpy
from c_block cimport U8, U16, U32, U64, I8, I16, I32, I64, F32, F64, BYTES

cdef enum:
    SIGN_SHIFT = 63

cdef inline uint64_t order_f64(double v) noexcept nogil:
    cdef uint64_t bits
    v = v + 0.0                                   # -0.0 and 0.0 are one value
    memcpy(&bits, &v, 8)
    return ~bits if bits >> SIGN_SHIFT else bits | (<uint64_t>1 << SIGN_SHIFT)

cdef inline uint64_t order_i64(int64_t v) noexcept nogil:
    return <uint64_t>v ^ (<uint64_t>1 << SIGN_SHIFT)

cdef inline uint64_t order_bytes(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef uint64_t key = 0
    cdef uint32_t i
    for i in range(8):
        key = key << 8 | (p[i] if i < size else 0)
    return key

cdef inline uint64_t order_key(uint8_t code, const uint8_t* p, uint32_t size) noexcept nogil:
    """The sort key of the element at p."""
    cdef uint16_t u16
    cdef uint32_t u32
    cdef uint64_t u64
    cdef int64_t i64
    cdef float f32
    cdef double f64
    if code == U8:
        return p[0]
    if code == U16:
        memcpy(&u16, p, 2)
        return u16
    if code == U32:
        memcpy(&u32, p, 4)
        return u32
    if code == U64:
        memcpy(&u64, p, 8)
        return u64
    if code == I8:
        return order_i64(<int8_t>p[0])
    if code == I16:
        memcpy(&u16, p, 2)
        return order_i64(<int16_t>u16)
    if code == I32:
        memcpy(&u32, p, 4)
        return order_i64(<int32_t>u32)
    if code == I64:
        memcpy(&i64, p, 8)
        return order_i64(i64)
    if code == F32:
        memcpy(&f32, p, 4)
        return order_f64(f32)
    if code == F64:
        memcpy(&f64, p, 8)
        return order_f64(f64)
    return order_bytes(p, size)
