# The 32-bit hash of an IPv6 address; fold6 in schema/types.py computes the same.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef inline uint32_t fold6(const uint8_t* address) noexcept nogil:
    cdef uint32_t word[4]
    cdef uint32_t h = 0x811C9DC5u
    cdef int i
    memcpy(word, address, 16)
    if not (word[0] | word[1] | word[2] | word[3]):
        return 1
    for i in range(4):
        h = (h ^ word[i]) * 0x01000193u
        h ^= h >> 15
    return h if h else 2
