# A block of rows and a selection of its rows: used by all kernels and formats.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from c_block cimport Column, Zone

cdef const uint8_t* zero_bytes(size_t size) except NULL

cdef class Layout:
    cdef readonly tuple names
    cdef dict _index
    cdef readonly int n                 # columns
    cdef Column* column                 # n of them

cdef class Block:
    cdef readonly Layout layout
    cdef readonly uint32_t rows         # at most BLOCK_ROWS
    cdef readonly uint64_t base         # row number of row 0 in its lane
    cdef readonly int lane              # -1: not from a log
    cdef const uint8_t** col            # layout.n columns of `rows` values; never NULL
    cdef const Zone* zone               # layout.n zones, or NULL when unknown
    cdef object owner                   # keeps the memory of the columns alive
    cdef uint8_t* own                   # memory that the block owns, or NULL
    cdef size_t own_size
    cpdef Block take(self, Picks picks)
    cpdef Block slice(self, uint32_t start, uint32_t rows)
    cdef bint _is_zero(self, int i) noexcept nogil

cdef class Staging(Block):
    cdef readonly uint32_t capacity
    cdef uint8_t** out                  # the same columns, writable
    cdef void set_rows(self, uint32_t rows) noexcept nogil
    cpdef void clear(self)

cdef class Picks:
    # Rows of one block.  kind ALL: every row 0..n-1.  MASK: the bits of `words`.  LIST: `list`, ascending.
    cdef readonly uint32_t n            # rows selected
    cdef readonly uint32_t rows         # rows of the block
    cdef int kind
    cdef uint64_t* words                # MASK_WORDS, aligned to 64 bytes; valid if MASK
    cdef uint16_t* list                 # room for BLOCK_ROWS; valid if LIST (see as_list)
    cdef void set_all(self, uint32_t rows) noexcept nogil
    cdef void set_none(self, uint32_t rows) noexcept nogil
    cdef void count_mask(self, uint32_t rows) noexcept nogil    # after filling words: clears the tail, sets n
    cdef void set_list(self, uint32_t rows, uint32_t n) noexcept nogil
    cdef const uint16_t* as_list(self) noexcept nogil           # turns ALL or MASK into LIST (MASK stays valid)
    cdef const uint64_t* as_mask(self) noexcept nogil

cdef enum:
    PICK_ALL = 0
    PICK_MASK = 1
    PICK_LIST = 2

cdef const uint8_t* column_of(Block block, str name, size_t width) except NULL    # zeros when missing
cdef int column_number(Layout layout, str name, size_t width, bint needed) except -2    # -1: missing
cdef int check_time(Layout layout, int i) except -1             # ValueError unless column i has times
