# Segments of a MultiLog for readers: mapped files of blocks.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from c_layout cimport BlockHead, Geometry, Place, Places
from confluo_tools.core.block.block cimport Block, Layout, Picks

cdef class SegmentShape:
    # Layout shared by all segments of one schema in one log.
    cdef readonly Layout layout
    cdef readonly bytes header          # ARROW1 and the schema message, padded
    cdef uint32_t header_bytes
    cdef readonly bytes uuid
    cdef readonly uint32_t message      # bytes of a record batch message
    cdef readonly int segment_blocks
    cdef readonly object schema         # confluo_tools.schema.Schema; not used here
    cdef readonly Layout log_layout     # columns in the order of the log's schema
    cdef int* source                    # column of the segment for each column of the log, -1: absent
    cdef bint identity
    cdef void fill(self, Geometry* g, uint32_t capacity) noexcept nogil

cdef class Segment:
    cdef readonly object path
    cdef readonly int lane
    cdef readonly uint64_t base         # row number of its first row
    cdef readonly uint64_t sealed       # rows when it is sealed, else 0
    cdef readonly SegmentShape shape
    cdef readonly int blocks_on_file
    cdef readonly list damage           # (path, block number or None, reason), shared with the log
    cdef Geometry g
    cdef uint8_t* map
    cdef size_t size                    # bytes mapped
    cdef uint32_t* crc                  # one per page, if sealed
    cdef uint64_t* good                 # one bit per page: verified in this process
    cdef uint64_t* bad_block            # one bit per block: damaged
    cdef uint64_t pages
    cdef list _cache
    cdef set _told
    cdef int packed                     # codec of the columns (column_codec.pxd), 0: they are as in memory
    cdef uint64_t* start                # packed: offsets of the blocks, and of the end of the data
    cdef Place* place                   # packed: of each column of each block
    cdef int _latest                    # packed: the block in _cache, -1 for none
    cdef int _open_seal(self, int fd, uint64_t rows, uint64_t end) except -1
    cdef object _try_packed(self, int fd, uint64_t size, uint64_t rows, uint64_t end)
    cdef object _read_places(self, int fd, uint64_t size, uint64_t end)
    cdef object _map(self, int fd, uint64_t size)
    cdef uint64_t _block_at(self, int number) noexcept nogil
    cdef object _head_problem(self, const BlockHead* head)
    cdef bint ensure_bytes(self, uint64_t start, uint64_t end) noexcept nogil
    # Verify the checksums of rows start..start+rows of a column of the log in a block.
    cdef bint ensure(self, int number, int column, uint32_t start, uint32_t rows) noexcept nogil
    cdef bint ensure_list(self, int number, int column, const uint16_t* rows, uint32_t n) noexcept nogil
    cpdef SegmentBlock block(self, int number, uint32_t rows)

cdef class SegmentBlock(Block):
    cdef readonly Segment segment
    cdef readonly int number            # of the block in its segment
    # Call before reading a column: False if its bytes are damaged.  Each page is verified once per process.
    cdef bint ensure(self, int column) noexcept nogil
    cdef bint ensure_picks(self, int column, Picks picks) noexcept nogil
    cdef bint ensure_rows(self, int column, const uint16_t* rows, uint32_t n) noexcept nogil
    # Of a compressed segment: memory for the plain columns; each is filled when it is ensured.
    cdef uint8_t* plain
    cdef size_t plain_bytes
    cdef uint32_t* state                # of each column of the segment: COLUMN_...
    cdef int _reserve(self) except -1
    cdef bint fill_column(self, int column) noexcept nogil
    cdef bint ready(self, int source) noexcept nogil    # whether column `source` of the segment is there

cdef class SegmentPart:
    # A segment at a version: its first `rows` rows.
    cdef readonly Segment segment
    cdef readonly uint64_t rows
    cdef readonly int blocks
