# Flows of one epoch, what they lost and where they went; numbers by number (aliases, ToRs).

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_hash_table cimport LruTable
from confluo_tools.core.block.block cimport Layout

cdef class NumberMap:
    cdef uint32_t* key
    cdef uint32_t* value
    cdef uint32_t mask
    cdef uint32_t get(self, uint32_t key, uint32_t otherwise) noexcept nogil

cdef struct Flow:
    int64_t ts                  # of the latest record
    uint64_t sent
    uint64_t lost
    uint64_t retrans
    uint64_t dsack
    int64_t rtt
    int64_t traced              # when, ns of the monotonic clock; 0: not
    uint32_t path               # number of its path + 1
    uint8_t state
    uint8_t notes
    uint8_t written
    uint8_t fate                # notes: how it failed, or that it is a probe of ours

cdef struct Path:
    uint8_t dst[16]             # where it was traced to
    uint16_t dport
    uint8_t hops
    uint8_t notes
    uint32_t node[16]
    uint8_t address[256]

cdef class FlowTable:
    cdef LruTable flows
    cdef Layout layout          # of the records
    cdef int column[16]
    cdef bint healthy
    cdef bint counts            # records have the number of lost packets; else each counts as one
    cdef FlowTable before
    cdef int64_t fresh
    cdef Path* paths
    cdef uint32_t path_count
    cdef uint32_t path_room
    cdef uint32_t* queue
    cdef uint32_t queue_room
    cdef readonly uint32_t queued       # lossy flows to be traced, so far
    cdef readonly uint32_t popped
    cdef readonly uint64_t records
    cdef readonly uint64_t skipped      # of them: not of a TCP flow
    cdef readonly uint64_t overflow     # of them: of flows for which there was no room
    cdef readonly uint64_t overflow_lost
    cdef readonly uint64_t before_since  # rows that `take` left out
    cdef int _row(self, const uint8_t** col, uint32_t row) noexcept nogil
    cdef void _fated(self, Flow* f, const uint8_t** col, uint32_t row, int64_t ts) noexcept nogil
    cdef int _enqueue(self, uint32_t number) noexcept nogil
    cdef Path* _new_path(self) noexcept nogil
    cdef Flow* _flow(self, uint32_t number) except NULL
