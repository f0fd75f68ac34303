# Counts of the values of a field in bins, by windows of event time.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Layout, Picks, Staging
from confluo_tools.core.stream.event_windows cimport WindowStage

cdef enum:
    MAX_BINS = 10000

cdef struct Operand:
    int col
    int code
    uint32_t width

cdef class Bins:
    cdef readonly int code              # of the values: U64, I64 or F64
    cdef readonly uint32_t n            # bins, with the one below and the one above all others
    cdef bint powers                    # of two; otherwise of equal width
    cdef uint64_t low                   # of the first bin, as an unsigned number of the same order
    cdef uint64_t span                  # from it to the end of the last one
    cdef uint64_t step
    cdef uint64_t magic                 # 2^64 / step, rounded up; 0: divide
    cdef double* edge                   # n - 1: between bins
    cdef double scale                   # of doubles: bins per unit
    cdef void put(self, uint64_t* v, uint32_t count) noexcept nogil
    cdef void put_doubles(self, uint64_t* v, uint32_t count) noexcept nogil

cdef class HistogramStage(WindowStage):
    cdef readonly Bins bins
    cdef readonly uint64_t nans         # rows without a number
    cdef Operand a
    cdef Operand b                      # col -1: there is none
    cdef int sign                       # a + sign * b
    cdef uint16_t* table                # bin of each value of an 8- or 16-bit column, or NULL
    cdef uint64_t* counts               # of each slot: 4 counters a bin, used in turn
    cdef uint64_t* v                    # of a chunk
    cdef uint64_t* v2
    cdef Staging out
    cdef Picks every_row
    cdef uint64_t* of_slot(self, int slot) noexcept nogil
    cdef void load(self, const uint8_t** col, const uint16_t* rows, uint32_t start, uint32_t n) noexcept nogil
    cdef void combine(self, uint32_t n) noexcept nogil
    cdef int ship(self, uint32_t n, int64_t now) noexcept nogil
