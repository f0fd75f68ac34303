# View files: the data of a filter or an aggregate for each block of one segment.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from c_node cimport Picked

cdef struct ChunkEntry:                 # of the table of a view file
    uint64_t offset
    uint32_t bytes                      # 0: no data for the block
    uint32_t rows                       # of the block
    uint32_t crc                        # CRC32C of the chunk, exclusive-or that of (offset, bytes, rows, base)
    uint32_t reserved[3]

cdef class ViewFile:
    cdef readonly object path
    cdef readonly bytes key             # identity of the file: expected header bytes
    cdef readonly int blocks            # number of published blocks when the file was opened
    cdef readonly uint64_t base         # row number of the first row of the segment in its lane
    cdef readonly set damaged           # numbers of the blocks with damaged chunks found so far
    cdef int fd
    cdef ChunkEntry* table
    cdef uint8_t* buffer                # the chunk read last
    cdef size_t room
    cdef int _load(self, int number, uint64_t base) noexcept nogil
    # The rows in the filter chunk of block `number`, with first row `base` of the lane.
    # 1: filled; 0: no data; -1: damaged.  Valid until the next call.
    cdef int picked(self, int number, uint64_t base, Picked* out) noexcept nogil
