# The plan that text_writer prints and text_reader reads by.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Layout

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
