# The mapped control page of a MultiLog, for lanes and versions.

from libc.stdint cimport uint8_t, uint64_t
from c_layout cimport ControlPage, Line

cdef class Control:
    cdef readonly object path
    cdef readonly bint writable
    cdef readonly int lanes             # number of lane lines
    cdef readonly bytes schema          # the Arrow schema message
    cdef uint8_t* map
    cdef size_t size
    cdef int fd
    cdef const ControlPage* page
    cdef Line* line                     # array of `lanes`
    cdef int _check(self) except -1
    cdef int claimed_lanes(self) noexcept nogil
