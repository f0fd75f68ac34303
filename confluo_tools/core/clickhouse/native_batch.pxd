# Rows as a block of ClickHouse's format Native: column after column, in the types that a table has.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Block, Layout
from confluo_tools.core.text.text_writer cimport Printer

cdef enum Cast:
    COPY = 0                            # the bytes as they are
    WIDEN = 1                           # an integer as a wider one
    DOUBLE = 2                          # an f32 as a Float64
    DIVIDE = 3                          # nanoseconds as another unit of time
    ADDRESS = 4                         # ip as 16 bytes, IPv4 addresses mapped
    MAPPED = 5                          # ipv4 as 16 bytes
    STRING = 6                          # a text as a String
    WHOLE = 7                           # bytes as a String
    PRINTED = 8                         # as our text output has it, a String; absent: empty
    ARRAY = 9                           # a list without the zeros at its end
    MEMBER = 10                         # an enum as the number that the table has for its name

cdef struct Target:
    uint8_t cast
    bint nullable
    int col
    int col6                            # of the IPv6 address, or -1
    int colv                            # of the version of IP, or -1
    int item                            # of the plan of the printer, or -1
    uint8_t code                        # of one element of the column
    uint32_t size                       # bytes of one element
    uint32_t count                      # elements per row
    uint32_t width                      # bytes per row of the column
    uint32_t to                         # bytes of a value in the table; of those without a fixed width, the most
    int64_t unit                        # ns, of DIVIDE
    const uint8_t* members              # of MEMBER: two bytes for each value of the column

cdef class NativeShape:
    cdef readonly Layout layout
    cdef readonly size_t row_bytes      # of a row in the table, at most
    cdef readonly list heads            # of each column: its name and type
    cdef list held                      # what `members` of targets point to
    cdef int n
    cdef Target* target
    cdef Printer printer
    cdef uint8_t* scratch               # for one printed value
    cdef bint fits(self, Target* t)
    cdef size_t most(self, Target* t)

cdef struct ColumnData:
    uint8_t* values
    uint64_t* ends                      # ARRAY: after each row
    size_t used                         # bytes in `values`

cdef class NativeBatch:
    cdef readonly NativeShape shape
    cdef readonly uint32_t capacity     # rows
    cdef readonly uint32_t rows
    cdef int n                          # columns
    cdef ColumnData* data
    cdef uint8_t* nulls                 # zeros, for columns that are Nullable
    cdef bint prepare(self) noexcept nogil
    cdef uint32_t add(self, Block block, const uint16_t* picked, uint32_t start, uint32_t n) noexcept nogil
    cdef void fill(self, Target* t, ColumnData* d, Block block, const uint16_t* picked, uint32_t n) noexcept nogil
    cdef void texts(self, Target* t, ColumnData* d, Block block, const uint16_t* picked, uint32_t n) noexcept nogil
    cdef void lists(self, Target* t, ColumnData* d, Block block, const uint16_t* picked, uint32_t n) noexcept nogil
