# What a roll-up reads of each row.

from libc.stdint cimport uint32_t, uint64_t
from c_source cimport IP, V6, WIDE, Source
from confluo_tools.core.block.block cimport Layout

cdef int make_source(Source* s, Layout layout, tuple spec, bint key, bint hashed, bytes seed, list kept) except -1
cdef object in_span(str what, object value, object lowest, object highest)

# Addresses of IPv6, bytes and lists are numbered in a side table of their column.
cdef int source_room(Source* s, uint32_t n) noexcept nogil
cdef uint32_t* intern_merge(Source* ours, const Source* theirs) noexcept nogil
cdef uint64_t renumber(const Source* s, const uint32_t* to, uint64_t v) noexcept nogil

cdef inline bint interned(const Source* s, uint64_t v) noexcept nogil:
    # Whether a value is in the side table.
    return s.kind == WIDE or (s.kind == IP and v >> 32 == V6 and <uint32_t>v > 1)


cdef inline uint32_t intern_number(const Source* s, uint64_t v) noexcept nogil:
    return <uint32_t>v if s.kind == WIDE else <uint32_t>v - 2


cdef inline const uint64_t* intern_key(const Source* s, uint64_t v) noexcept nogil:
    return s.intern.keys + <size_t>intern_number(s, v) * s.intern.words
