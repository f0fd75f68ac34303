# The writer of one lane.

from libc.stdint cimport uint8_t, uint32_t
from c_lane cimport Lane
from confluo_tools.core.block.block cimport Block
from confluo_tools.core.multilog.control cimport Control
from confluo_tools.core.multilog.segment cimport SegmentShape

cdef class LaneWriter:
    cdef readonly Control control
    cdef readonly SegmentShape shape
    cdef readonly int number            # of the lane
    cdef object _kept
    cdef object __weakref__
    cdef int lock_fd
    cdef unsigned long closer           # thread that closes it, or 0
    cdef bint busy                      # a thread appends
    cdef Lane* lane
    cdef int _wait_for_others(self) except -1
    # Store and publish rows of `columns` (one pointer per column; NULL: zeros).  0 or errno; on ENOSPC the rows
    # before the block that did not fit are published (see rows).
    cdef int append_columns(self, const uint8_t** columns, uint32_t rows) noexcept nogil
    cdef int append_row(self, const uint8_t* const* row) noexcept nogil
    cdef int append_block(self, Block block) noexcept nogil
