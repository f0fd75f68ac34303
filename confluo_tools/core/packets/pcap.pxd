# Read the frames of a capture file.

from libc.stdint cimport uint64_t
from c_pcap_pieces cimport Feed
from c_pcap cimport Frame

cdef class Capture:
    cdef Feed f
    cdef object piece                   # owner of the bytes being read
    cdef readonly uint64_t frames       # read so far
    cdef int next(self, Frame* frame) noexcept nogil
    cpdef release(self)
