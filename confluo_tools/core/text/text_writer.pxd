# The plan that text_writer prints and text_reader reads by; and the printer, for others that need single values.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from c_text cimport TimeCache
from confluo_tools.core.block.block cimport Block, Layout

cdef enum Style:
    TSV = 0
    CSV = 1
    JSON = 2

cdef enum Op:
    NUMBER = 0          # u8 .. f64 as they are
    RAW = 1             # bytes and text
    IPV4 = 2
    IP = 3
    MAC = 4
    TIME = 5
    DURATION = 6        # nanoseconds, an integer
    ENUM = 7
    FLAGS = 8
    SKIP = 9            # reading only: ignore this column of the text

cdef struct Name:
    uint64_t value
    const char* text
    uint32_t size

cdef struct Item:
    uint8_t op
    uint8_t code
    bint always
    bint quoted                 # JSON: between quotes
    bint utf8                   # RAW: print UTF-8 unescaped
    int col
    int col6
    int colv
    int64_t unit                # TIME: ns of a number's unit, when reading
    uint32_t size
    uint32_t count
    uint32_t width
    int n_names
    Name* names
    const char* key
    uint32_t key_size

cdef class TextPlan:
    cdef readonly Layout layout
    cdef readonly int n
    cdef int style
    cdef Item* item
    cdef list keep              # bytes objects that the items point to

cdef bint same_columns(Layout a, Layout b)

cdef class Printer(TextPlan):
    cdef size_t line_max
    cdef bint terminal
    cdef TimeCache cache
    cdef size_t _line(self, char* start, Block block, uint32_t row) noexcept nogil
    cdef char* put_value(self, char* p, Item* it, Block block, uint32_t row, bint first) noexcept nogil
    cdef char* _absent(self, char* p) noexcept nogil
    cdef char* _number(self, char* p, Item* it, const uint8_t* v) noexcept nogil
    cdef char* _scalar(self, char* p, Item* it, const uint8_t* v) noexcept nogil
    cdef char* _ip(self, char* p, Item* it, Block block, uint32_t row, uint32_t v4) noexcept nogil
    cdef char* _list(self, char* p, Item* it, const uint8_t* v) noexcept nogil
    cdef char* _bytes(self, char* p, const uint8_t* v, uint32_t n, bint first) noexcept nogil
    cdef char* _text(self, char* p, const uint8_t* v, uint32_t n, bint first) noexcept nogil
