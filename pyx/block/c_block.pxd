# Memory layout of a block of rows: columns of fixed-width values, one after the other.
# Header only: structs and constants, shared by every kernel.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t

cdef enum:
    BLOCK_ROWS = 65536      # rows of a full block; row numbers inside a block fit 16 bits
    MASK_WORDS = 1024       # BLOCK_ROWS / 64: one bit per row

# Physical types; schema/types.py has the same numbers (tests compare them).
cdef enum Code:
    U8 = 1
    U16 = 2
    U32 = 3
    U64 = 4
    I8 = 5
    I16 = 6
    I32 = 7
    I64 = 8
    F32 = 9
    F64 = 10
    BYTES = 11              # one value of `width` bytes, compared byte by byte

cdef struct Column:
    uint8_t code            # of one element
    uint32_t size           # bytes of one element
    uint32_t count          # elements per row: 1, or N for list(type, N)
    uint32_t width          # size * count: bytes per row

# Smallest and largest value of a column in a block, in an order-preserving u64 form (c_sort_key.pxd).
# The minimum is stored inverted, so that a sparse (all zero) page reads as "no rows yet".
# BYTES: the first 8 bytes, big endian.  Lists: over all elements.
cdef struct Zone:
    uint64_t not_min
    uint64_t max
