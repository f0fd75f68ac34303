# View files: what a filter or an aggregate knows of each block of one segment.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from c_node cimport Picked

cdef struct ChunkEntry:                 # of the table of a view file
    uint64_t offset
    uint32_t bytes                      # 0: the view knows nothing of the block
    uint32_t rows                       # of the block
    uint32_t crc                        # CRC32C of the chunk, exclusive-or that of (offset, bytes, rows, base)
    uint32_t reserved[3]

cdef class Chunks:
    cdef readonly object path
    cdef readonly bytes key             # what the file was made for: header bytes that must not differ
    cdef readonly int blocks            # complete when the file was opened
    cdef readonly uint64_t base         # row number of the first row of the segment in its lane
    cdef readonly set damaged           # numbers of the blocks whose chunks were found damaged so far
    cdef int fd
    cdef ChunkEntry* table
    cdef uint8_t* buffer                # the chunk read last
    cdef size_t room
    cdef int _load(self, int number, uint64_t base) noexcept nogil
    # The rows in the chunk of block `number` (a filter's), whose first row is number `base` of the lane.
    # 1: filled; 0: nothing is known; -1: damaged.  Valid until the next look.
    cdef int picked(self, int number, uint64_t base, Picked* out) noexcept nogil
