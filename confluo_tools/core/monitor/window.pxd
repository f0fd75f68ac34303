# Sliding windows of many aggregates at once, and the triggers on them.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from c_window cimport Cond, Gear, Put
from confluo_tools.core.query.shared_filters cimport SharedFilters
from confluo_tools.core.block.block cimport Block

cdef int read_cond(Cond* c, object program, int units, list memory) except -1

cdef class GridWindows:
    cdef Gear gear
    cdef list memory

cdef class GridTicks:
    cdef readonly list grids
    cdef Gear** grid
    cdef int n

cdef class RowFeed:
    cdef readonly SharedFilters bank
    cdef readonly list grids
    cdef readonly int64_t late          # rows that came after a tick that would have seen them
    cdef public int64_t late_from       # earliest time of those; the reader of it sets it back to INT64_MAX
    cdef readonly int64_t lost          # matches too old for every window
    cdef readonly int64_t ahead         # of the last rows: smallest time at or beyond `hi`, else the largest int64
    cdef readonly int64_t newest        # largest time of the rows taken
    cdef readonly uint64_t rows         # taken
    cdef readonly uint32_t start, stop  # of the last rows: where those that were taken stand
    cdef Gear** grid
    cdef Put* put
    cdef int puts, ts
    cdef list outside                   # filters that feed other kinds of windows
    cdef uint64_t* clip
    cdef bint clipped
    cdef int64_t* bucket
    cdef uint32_t take(self, Block block, uint32_t start, uint32_t stop, int64_t lo, int64_t hi,
                       int64_t done) noexcept nogil
    cdef void store(self, Block block) noexcept nogil
