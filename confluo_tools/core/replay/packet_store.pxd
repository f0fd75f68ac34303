# Packets that hosts sent, for `confluo-replay queues`.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef class PacketStore:
    cdef int64_t* times
    cdef uint32_t* sizes
    cdef uint32_t* flows
    cdef uint8_t* lost
    cdef readonly uint64_t count
    cdef uint64_t room
    cdef uint64_t most
    cdef int reserve(self, uint64_t more) except -1 nogil
    cdef void add(self, int64_t time, uint32_t size, uint32_t flow, bint lost) noexcept nogil
