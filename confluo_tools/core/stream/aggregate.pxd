# Aggregates of rows by group, by windows of event time.

from confluo_tools.core.block.block cimport Picks
from confluo_tools.core.query.rollup cimport Rollup
from confluo_tools.core.stream.event_windows cimport WindowStage
from libc.stdint cimport int64_t, uint64_t

cdef class AggregateStage(WindowStage):
    cdef object make                    # an empty Rollup
    cdef object answer                  # (Rollup, start of the window) -> blocks
    cdef readonly object problem        # the last error that lost rows, or None
    cdef readonly uint64_t groups       # a window with more is given in parts
    cdef readonly uint64_t parts        # of windows that were given before their end
    cdef list rollups
    cdef void** rollup                  # of each slot, kept by `rollups`
    cdef Picks every_row
    cdef int emit(self, int slot, int64_t start, int64_t now) noexcept
    cdef int renew(self, int slot) noexcept
    cdef void lose(self, int slot, problem) noexcept
