# Counts of probes by window and group.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_hash_table cimport HashTable
from c_probe_tally cimport LIMITS, SIGNATURE, Cell, Part, Rows, Span, Window
from confluo_tools.core.block.block cimport Layout

cdef class ProbeTally:
    cdef readonly Layout layout
    cdef readonly bytes question        # what is counted, as text: states of the same question can be merged
    cdef readonly int64_t window
    cdef readonly uint64_t probes       # rows counted
    cdef readonly uint64_t unknown      # rows without a kind or an outcome
    cdef readonly uint64_t drops_not_kept
    cdef readonly int64_t newest        # of all probes
    cdef readonly int64_t oldest
    cdef uint64_t max_drops
    cdef uint64_t max_windows
    cdef uint64_t max_bytes
    cdef uint32_t updates
    cdef Part* part
    cdef tuple by
    cdef uint64_t parts
    cdef uint32_t words
    cdef uint64_t limit[LIMITS]
    cdef int limits
    cdef uint64_t low[SIGNATURE]
    cdef uint64_t high[SIGNATURE]
    cdef uint32_t lost[SIGNATURE]
    cdef int signature
    cdef Window* windows_
    cdef uint64_t windows_n
    cdef uint64_t windows_room
    cdef uint64_t seed[2]
    cdef HashTable targets
    cdef Span* span
    cdef uint64_t spans_n
    cdef uint64_t span_room
    cdef void _clear(self, Window* w) noexcept nogil
    cdef uint64_t _at(self, int64_t start) noexcept nogil
    cdef Window* _open(self, int64_t start) noexcept nogil
    cdef Window* _find(self, int64_t start) except NULL
    cdef int _classes(self, Part* p, dict classes, bytes seed) except -1
    cdef int _update(self, const uint8_t** col, const Rows* c, const uint16_t* rows, uint32_t n) noexcept nogil
    cdef int _chunk(self, Window* w, const uint8_t** col, const Rows* c, const uint32_t* row,
                    uint32_t n) noexcept nogil
    cdef int _row(self, Window* w, uint32_t number, const Rows* c, uint32_t r) noexcept nogil
    cdef uint32_t _retries_of(self, int64_t took, Cell* s) noexcept nogil
    cdef int _drop(self, Window* w, uint32_t cell, const Rows* c, uint32_t r, uint32_t retries) noexcept nogil
    cdef int _host(self, const Rows* c, uint32_t r) noexcept nogil
    cdef int _join(self, Cell* to, const Cell* other) noexcept nogil
    cdef int _put(self, Cell* s, uint64_t* to, double* q, tuple rtt, tuple seen) except -1
