# A program over the blocks of a log, with the postings of its indexes; and the merge of lanes by time.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from c_postings cimport Chunk
from confluo_tools.core.block cimport Block, Layout, Picks, Staging
from confluo_tools.core.predicate cimport Program
from confluo_tools.core.segment cimport SegmentBlock

cdef class Search:
    cdef readonly Program program
    cdef readonly dict postings         # column -> Postings of the present segment
    cdef readonly dict stored           # name of a filter -> Chunks of the present segment
    cdef list _columns
    cdef Chunk** chunk                  # by column, or NULL
    cdef Chunk* own                     # for those that are not mapped
    cdef void point(self, SegmentBlock block)
    cdef void note(self, int number)

cdef struct Cursor:                     # a lane's place in the merge
    const uint8_t** col
    const int64_t* ts
    const uint16_t* rows
    int64_t head                        # time of the row at `at`
    uint32_t at, n

cdef class Merger:
    cdef readonly Layout layout
    cdef readonly int lanes
    cdef int ts
    cdef Cursor* cursor
    cdef list _kept                     # (block, picks) of each lane
    cdef list _pool                     # blocks given out, to be used again when their takers let go
    cdef Staging out
    cdef const uint8_t** base           # scratch of `gather`: one column of each lane
    cdef uint16_t* from_lane
    cdef uint16_t* from_row
    cdef uint32_t pending, filled
    cdef bint* wanted
    cdef Staging blank(self)
    cdef void gather(self) noexcept nogil
    cdef int merge(self) noexcept nogil
