# One writer's lane of a MultiLog: the door.

from libc.stdint cimport uint8_t, uint32_t
from c_lane cimport Lane
from confluo_tools.core.block cimport Block
from confluo_tools.core.control cimport Control
from confluo_tools.core.segment cimport Shape

cdef class Writer:
    cdef readonly Control control
    cdef readonly Shape shape
    cdef readonly int number            # of the lane
    cdef object _kept
    cdef object __weakref__
    cdef int lock_fd
    cdef bint busy
    cdef Lane* lane
    # Rows of `columns` (one pointer a column; NULL: zeros), stored and published.  0 or errno; ENOSPC: the rows
    # before the block that did not fit are published (see rows).
    cdef int append_columns(self, const uint8_t** columns, uint32_t rows) noexcept nogil
    cdef int append_row(self, const uint8_t* const* row) noexcept nogil
    cdef int append_block(self, Block block) noexcept nogil
