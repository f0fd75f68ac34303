# Posting files: the rows of a segment that contain each value of one column.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_block cimport Column
from c_list_postings cimport ListSorter
from c_postings cimport Chunk, Sorter
from confluo_tools.core.block.block cimport Block

cdef struct Entry:                      # of the table of a posting file
    uint64_t offset
    uint32_t bytes                      # 0: the block is not indexed
    uint32_t rows

cdef class Postings:
    cdef readonly object path
    cdef readonly int lane
    cdef readonly uint64_t base         # row number of the first row of the segment in its lane
    cdef readonly uint64_t bucket       # 1: none
    cdef readonly int blocks            # number of published blocks when the file was opened
    cdef readonly bytes key             # identity of the file: expected header bytes
    cdef readonly set damaged           # numbers of the blocks with damaged postings found so far
    cdef uint8_t code
    cdef bint list                      # of the elements of a list
    cdef int fd
    cdef Entry* table
    cdef uint8_t* map                   # of the file, or NULL
    cdef size_t size
    cdef Chunk* chunk                   # with a map: array of `blocks`, with the state of verification
    # The chunk of block `number`, with first row `base` of the lane; NULL without postings.
    # `own`: chunk with a buffer, used if the file is not mapped.
    cdef Chunk* aim(self, Chunk* own, int number, uint64_t base) noexcept nogil

cdef class PostingsBuilder:
    cdef Sorter* sorter
    cdef ListSorter* list_sorter        # NULL before the first list
    cdef uint8_t* out
    cdef Column* column(self, Block block, int column, uint64_t bucket, bint list) except NULL
    cdef uint32_t build(self, Block block, int column, uint64_t bucket, bint list) noexcept nogil
