# The plan that printing (textio) and reading (textscan) of text follow.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from confluo_tools.core.block cimport Layout

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
    SKIP = 9            # reading only: a column of the text that nobody wants

cdef struct Name:
    uint64_t value
    const char* text
    uint32_t size

cdef struct Item:
    uint8_t op
    uint8_t code
    bint always
    bint quoted                 # JSON: between quotes
    bint utf8                   # RAW: printable UTF-8 goes out as it is
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

cdef class Plan:
    cdef readonly Layout layout
    cdef readonly int n
    cdef int style
    cdef Item* item
    cdef list keep              # bytes objects that items point into

cdef bint same_columns(Layout a, Layout b)
