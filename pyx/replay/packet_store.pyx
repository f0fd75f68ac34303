"""The packets that hosts sent: one array for each of time, size, flow and loss."""

from array import array
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from confluo_tools.core.replay.queue_engine import time_order
cimport cython

MAX_PACKETS = 1 << 27


@cython.final
cdef class PacketStore:
    """Packets, 17 bytes each, at most ``most``.  `core.replay.capture_packets` and `recorded_packets` fill it."""

    def __cinit__(self, uint64_t most=MAX_PACKETS):
        self.most = min(most, <uint64_t>MAX_PACKETS)

    def __dealloc__(self):
        free(self.times)
        free(self.sizes)
        free(self.flows)
        free(self.lost)

    def __len__(self):
        return self.count

    cdef int reserve(self, uint64_t more) except -1 nogil:
        """Room for ``more`` packets.  Raises OverflowError when they are too many, MemoryError."""
        cdef uint64_t need = self.count + more, room
        if more > self.most or need > self.most:
            with gil:
                raise OverflowError(f"more than {self.most:,} packets")
        if need <= self.room:
            return 0
        room = min(max(need, self.room + self.room // 2, <uint64_t>4096), self.most)
        if (_resize(<void**>&self.times, room * 8) < 0 or _resize(<void**>&self.sizes, room * 4) < 0
                or _resize(<void**>&self.flows, room * 4) < 0 or _resize(<void**>&self.lost, room) < 0):
            with gil:
                raise MemoryError(f"{room} packets")
        self.room = room
        return 0

    cdef void add(self, int64_t time, uint32_t size, uint32_t flow, bint lost) noexcept nogil:
        """Add a packet; there is room."""
        self.times[self.count], self.sizes[self.count] = time, size
        self.flows[self.count], self.lost[self.count] = flow, lost
        self.count += 1

    def by_time(self):
        """Arrays of times (q), sizes (I), flows (I) and losses (B), by time; equal times as they came.

        The store is empty afterwards.  Raises OverflowError for times that are more than 2^60 ns apart.
        """
        cdef uint64_t n = self.count, i
        cdef int64_t first = INT64_MAX, last = INT64_MIN
        cdef int64_t[::1] relative, times
        cdef uint32_t[::1] order, sizes, flows
        cdef uint8_t[::1] lost
        found = array("q"), array("I"), array("I"), array("B")
        if n == 0:
            return found
        for i in range(n):
            first, last = min(first, self.times[i]), max(last, self.times[i])
        if <uint64_t>last - <uint64_t>first >> 60:
            raise OverflowError("the times are more than 36 years apart")
        found = array("q", [0]) * n, array("I", [0]) * n, array("I", [0]) * n, array("B", [0]) * n
        times, sizes, flows, lost = found
        relative = times                # until the order is known
        for i in range(n):
            relative[i] = self.times[i] - first
        order = time_order(found[0])
        with nogil:
            for i in range(n):
                times[i], sizes[i] = self.times[order[i]], self.sizes[order[i]]
                flows[i], lost[i] = self.flows[order[i]], self.lost[order[i]]
        self.count = self.room = 0
        free(self.times)
        free(self.sizes)
        free(self.flows)
        free(self.lost)
        self.times, self.sizes, self.flows, self.lost = NULL, NULL, NULL, NULL
        return found


cdef int _resize(void** p, size_t size) noexcept nogil:
    cdef void* fresh = realloc(p[0], size)
    if fresh == NULL:
        return -1
    p[0] = fresh
    return 0
