# Integers as they stand in packets and files: any alignment, either byte order.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from * nogil:
    uint16_t bswap16 "__builtin_bswap16"(uint16_t)
    uint32_t bswap32 "__builtin_bswap32"(uint32_t)
    uint64_t bswap64 "__builtin_bswap64"(uint64_t)
    bint unlikely "__builtin_expect"(bint, bint)

cdef inline uint16_t be16(const uint8_t* p) noexcept nogil:
    cdef uint16_t v
    memcpy(&v, p, 2)
    return bswap16(v)

cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return bswap32(v)

cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return bswap64(v)

cdef inline uint64_t be48(const uint8_t* p) noexcept nogil:
    return <uint64_t>be16(p) << 32 | be32(p + 2)

cdef inline uint16_t get16(const uint8_t* p, bint swap) noexcept nogil:
    """As this machine writes it, or swapped."""
    cdef uint16_t v
    memcpy(&v, p, 2)
    return bswap16(v) if swap else v

cdef inline uint32_t get32(const uint8_t* p, bint swap) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return bswap32(v) if swap else v

cdef inline uint64_t get64(const uint8_t* p, bint swap) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return bswap64(v) if swap else v
