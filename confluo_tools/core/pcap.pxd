# A capture file as frames.

from libc.stdint cimport uint64_t
from c_feed cimport Feed
from c_pcap cimport Frame

cdef class Capture:
    cdef Feed f
    cdef object piece                   # keeps the bytes alive that are being read
    cdef readonly uint64_t frames       # read so far
    cdef int next(self, Frame* frame) noexcept nogil
    cpdef release(self)
