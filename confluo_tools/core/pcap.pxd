# A capture file as frames.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_pcap cimport Frame, Interface, Reader

cdef class Capture:
    cdef Reader c
    cdef object buffer                  # keeps the bytes alive that c.data or chunk point to
    cdef const uint8_t* chunk           # bytes after those in the carry; valid while pending
    cdef size_t chunk_size
    cdef size_t chunk_at                # how many of them are in the carry
    cdef bint pending
    cdef bint last                      # no chunk after this one
    cdef uint8_t* carry                 # a record that stands in two chunks
    cdef size_t carry_room
    cdef readonly uint64_t frames       # read so far
    cdef int next(self, Frame* f) noexcept nogil
    cdef int _grow(self) noexcept nogil
    cdef int _more(self) noexcept nogil
    cdef int _reserve_carry(self, size_t size) noexcept nogil
    cpdef release(self)
