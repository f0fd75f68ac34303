# Freeze the logs of this host, for `snapshot_round`.

from libc.stdint cimport uint8_t, uint64_t
from c_freeze cimport Held

cdef class LogFreeze:
    cdef readonly tuple controls
    cdef readonly uint64_t ns           # from the last freeze to its thaw
    cdef readonly bint frozen
    cdef Held* held
    cdef int n
    cdef uint64_t began, deadline
    cdef bint c_freeze(self, uint64_t timeout_ns) noexcept nogil
    cdef bint c_thaw(self) noexcept nogil
    cdef void c_ready(self) noexcept nogil
    cdef int c_serve(self, int fd_in, int fd_out, uint64_t most, uint8_t* buffer, size_t* got, uint8_t* out,
                     int idle_ms, int wake) noexcept nogil
    cdef uint64_t c_tails(self, uint8_t* out, uint64_t mark) noexcept nogil
