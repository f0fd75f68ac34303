# Posting files: which rows of a segment hold which value of one column.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_block cimport Column
from c_postings cimport Chunk, Sorter
from confluo_tools.core.block cimport Block

cdef class Postings:
    cdef readonly object path
    cdef readonly int lane
    cdef readonly uint64_t base         # row number of the first row of the segment in its lane
    cdef readonly uint64_t bucket       # 1: none
    cdef readonly int blocks            # complete when the file was opened
    cdef readonly bytes key             # what the file was made for: header bytes that must not differ
    cdef uint8_t* map
    cdef size_t size
    cdef Chunk* chunk                   # `blocks` of them, opened when first asked for
    cdef uint64_t* seen
    # Postings of block `number`, whose first row is number `base` of the lane; NULL when there are none to trust.
    cdef Chunk* get(self, int number, uint64_t base) noexcept nogil

cdef class Builder:
    cdef Sorter sorter
    cdef uint8_t* memory
    cdef uint8_t* out
    cdef Column* column(self, Block block, int column, uint64_t bucket) except NULL
