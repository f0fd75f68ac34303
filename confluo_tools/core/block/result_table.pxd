# Result rows in memory, before they are written.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Block, Layout

cdef struct SortPart:               # a number or 8 bytes of a column
    int column
    uint32_t at                     # offset in the value, bytes
    uint64_t flip                   # all ones: descending
    uint64_t low                    # smallest in any row
    uint64_t step                   # all values are multiples of it, after `low`
    uint32_t bits                   # of the number of steps
    uint32_t shift                  # position in the packed key
    int address                     # 1 to 3: a word of what an address sorts by; 0: a column
    int version                     # column with the version of the address, -1: none
    bint last                       # zeros, or rows without an address, come last

cdef class Rows:
    cdef readonly Layout layout
    cdef readonly uint32_t total        # rows in memory
    cdef int columns
    cdef uint8_t** column               # total values each
    cdef uint32_t* pick                 # the selected rows in order, or NULL: all, in memory order
    cdef uint32_t picks
    cdef uint32_t length(self) noexcept nogil
    cdef Block window(self, uint32_t start, uint32_t n)
    cdef int _parts(self, tuple column, SortPart* part) except -1
    cdef int _select(self, tuple column, uint32_t max_rows) except -1
    cdef int _sort_by(self, list order) except -1
    cdef void _keys(self, const SortPart* part, bint add, uint64_t* key) noexcept nogil
    cdef void _address_keys(self, const SortPart* part, bint add, uint64_t* key) noexcept nogil

cdef void radix(uint64_t* key, uint64_t* spare, uint32_t* id, uint32_t* spare_id, size_t n) noexcept nogil
