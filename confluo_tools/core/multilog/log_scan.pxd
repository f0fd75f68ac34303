# Run a program over the blocks of a log, with postings; merge lanes by time.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from c_postings cimport Chunk
from confluo_tools.core.block.block cimport Block, Layout, Picks, Staging
from confluo_tools.core.query.predicate cimport Program
from confluo_tools.core.multilog.segment cimport SegmentBlock

cdef class LogScan:
    cdef readonly Program program
    cdef readonly dict postings         # column -> Postings of the current segment
    cdef readonly dict stored           # filter name -> ViewFile of the current segment
    cdef list _columns
    cdef int columns
    cdef Chunk** chunk                  # by column, or NULL
    cdef Chunk* own                     # for those that are not mapped
    cdef void point(self, SegmentBlock block)
    cdef void note(self, int number)

cdef struct Cursor:                     # position of a lane in the merge
    const uint8_t** col
    const int64_t* ts
    const uint16_t* rows
    int64_t head                        # time of the row at `at`
    uint64_t rank                       # decides rows of equal time
    uint32_t at, n
    bint whole                          # the rows are picked in ascending order

cdef struct Head:                       # of a lane in the heap
    int64_t time
    uint64_t rank
    int lane

cdef class LaneMerger:
    cdef readonly Layout layout
    cdef readonly int lanes
    cdef int ts
    cdef Cursor* cursor
    cdef list _kept                     # (block, picks) of each lane
    cdef list _pool                     # returned blocks, reused once nothing else refers to them
    cdef Staging out
    cdef const uint8_t** base           # scratch of `gather`: one column of each lane
    cdef uint16_t* from_lane
    cdef uint16_t* from_row
    cdef uint32_t pending, filled
    cdef bint* wanted
    cdef Head* heap                     # the lanes with rows, the earliest first
    cdef uint16_t* scratch              # of sorting
    cdef int heaped
    cdef list _hungry
    cdef Staging blank(self)
    cdef void gather(self) noexcept nogil
    cdef int merge(self, int* hungry) noexcept nogil
    cdef const Head* second(self) noexcept nogil
    cdef void push(self, Head head) noexcept nogil
    cdef void pop(self) noexcept nogil
    cdef void sink(self, Head head) noexcept nogil
