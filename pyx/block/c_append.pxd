# Storing rows in a block: see c_append.h.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "c_append.h" nogil:
    ctypedef struct Slot "cfl_slot":
        uint8_t* data
        void* zone
        uint32_t width
        uint32_t size
        uint32_t count
        uint32_t touched
        uint8_t code
        uint8_t open
    ctypedef struct Span "cfl_span":
        uint64_t lo
        uint64_t hi
        uint64_t any
    Span span_of "cfl_span_of"(uint8_t code, uint32_t size, const void* p, size_t n)
    uint64_t any_bit "cfl_any"(const uint8_t* p, size_t n)
    int store "cfl_store_column"(Slot* slot, uint32_t at, const uint8_t* source, uint32_t n)
    int store_row "cfl_store_row"(Slot* slot, int n, int start, uint32_t at, const uint8_t* const* row)
