# Bit operations and hints of the compiler (GCC and Clang builtins), each declared once.

from libc.stdint cimport uint16_t, uint32_t, uint64_t

cdef extern from * nogil:
    uint16_t bswap16 "__builtin_bswap16"(uint16_t)
    uint32_t bswap32 "__builtin_bswap32"(uint32_t)
    uint64_t bswap64 "__builtin_bswap64"(uint64_t)
    int popcount32 "__builtin_popcount"(uint32_t)
    int popcount64 "__builtin_popcountll"(uint64_t)
    int clz64 "__builtin_clzll"(uint64_t)               # undefined for 0
    int ctz64 "__builtin_ctzll"(uint64_t)               # undefined for 0
    bint expect "__builtin_expect"(bint value, bint likely)
    void prefetch "__builtin_prefetch"(const void* p)
