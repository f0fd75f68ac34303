# Posting files: which rows of a segment hold which value of one column.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_block cimport Column
from c_postings cimport Chunk, Sorter
from confluo_tools.core.block cimport Block

cdef struct Entry:                      # of the table of a posting file
    uint64_t offset
    uint32_t bytes                      # 0: the block is not indexed
    uint32_t rows

cdef class Postings:
    cdef readonly object path
    cdef readonly int lane
    cdef readonly uint64_t base         # row number of the first row of the segment in its lane
    cdef readonly uint64_t bucket       # 1: none
    cdef readonly int blocks            # complete when the file was opened
    cdef readonly bytes key             # what the file was made for: header bytes that must not differ
    cdef readonly set damaged           # numbers of the blocks whose postings were found damaged so far
    cdef uint8_t code
    cdef int fd
    cdef Entry* table
    cdef uint8_t* map                   # of the file, or NULL
    cdef size_t size
    cdef Chunk* chunk                   # with a map: `blocks` of them, which remember what was checked
    # The chunk of block `number`, whose first row is number `base` of the lane; NULL when there are no postings.
    # `own`: what to use, with its buffer, when the file is not mapped.
    cdef Chunk* aim(self, Chunk* own, int number, uint64_t base) noexcept nogil

cdef class Builder:
    cdef Sorter* sorter
    cdef uint8_t* out
    cdef Column* column(self, Block block, int column, uint64_t bucket) except NULL
