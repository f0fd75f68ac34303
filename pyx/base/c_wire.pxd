# Integers in packets and files: any alignment, either byte order.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from c_bits cimport bswap16, bswap32, bswap64

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
    """In the byte order of this machine, or swapped."""
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
