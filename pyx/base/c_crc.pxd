# CRC32C: see c_crc.h.

from libc.stdint cimport uint32_t

cdef extern from "c_crc.h" nogil:
    uint32_t crc32c "cfl_crc32c"(const void* data, size_t n)
    uint32_t crc32c_more "cfl_crc32c_more"(uint32_t crc, const void* data, size_t n)    # after bytes with `crc`
    uint32_t crc_page "cfl_crc_page"(const void* page)              # of 4096 bytes
    const uint32_t CRC_ZERO_PAGE "cfl_crc_zero_page"
    void crc_use "cfl_crc_use"(int way)                             # tests compare all ways
