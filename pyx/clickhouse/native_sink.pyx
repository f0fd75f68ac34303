"""Rows in batches for a table: filled without the interpreter lock, sent by a thread of Python."""

import os

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from posix.unistd cimport usleep, write
from c_atomic cimport load_acquire32, store_release32, swap32
from confluo_tools.core.block.block cimport Block, Picks
from confluo_tools.core.clickhouse.native_batch cimport NativeBatch, NativeShape
from confluo_tools.core.kafka.message_sink cimport RowSink
cimport cython

cdef enum:
    PAUSE = 2000                        # µs between two looks for room


@cython.final
cdef class NativeSink(RowSink):
    """Fills batches of ``shape`` of up to ``capacity`` rows.  Another thread takes them with `first` and `leave`.

    ``wait``: when all batches are full, wait for the other thread; otherwise rows are dropped and counted.
    """

    def __cinit__(self, NativeShape shape not None, *, uint32_t capacity, bint wait=True):
        cdef int k
        self.shape, self.layout, self.wait = shape, shape.layout, wait
        self.wake = -1
        self.batches = [NativeBatch(shape, capacity) for _ in range(BATCHES)]
        for k in range(BATCHES):
            self.batch[k] = <void*>self.batches[k]
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __dealloc__(self):
        if self.wake >= 0:
            os.close(self.wake)

    cdef void enter(self) noexcept nogil:
        """Wait while the sender ships what has waited; that takes no time."""
        cdef uint32_t free = 0
        while not swap32(&self.busy, &free, 1):
            free = 0
            usleep(1)

    cdef int put(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef int stopped
        self.enter()
        stopped = self.fill(block, picks, now)
        store_release32(&self.busy, 0)
        return stopped

    cdef int fill(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef const uint16_t* rows
        cdef uint32_t n = picks.n, start = 0, done
        if n == 0:
            return 0
        rows = picks.as_list()
        self.rows += n
        while n:
            if load_acquire32(&self.ready[self.filling]):
                if not self.wait or load_acquire32(&self.ending):
                    self.dropped += n
                    return 1 if load_acquire32(&self.ending) else 0
                usleep(PAUSE)
                self.heed()
                continue
            if self.since == 0:
                self.since = now
            done = (<NativeBatch>self.batch[self.filling]).add(block, rows, start, n)
            if done == 0:               # no memory
                self.dropped += n
                return 0
            start += done
            n -= done
            if (<NativeBatch>self.batch[self.filling]).rows == (<NativeBatch>self.batch[self.filling]).capacity:
                self.ship()
        return 0

    cdef void ship(self) noexcept nogil:
        """Give the batch to the sender."""
        cdef uint64_t one = 1
        self.since = 0
        self.sent += (<NativeBatch>self.batch[self.filling]).rows
        store_release32(&self.ready[self.filling], 1)
        self.filling = (self.filling + 1) % BATCHES
        write(self.wake, &one, sizeof(one))

    cdef int late(self, int64_t before) noexcept nogil:
        self.enter()
        if self.since and self.since <= before:
            self.ship()
        store_release32(&self.busy, 0)
        return 0

    # For the sender, from its own thread.

    def remind(self, int64_t before):
        """Ship what has waited since ``before`` (ns) or longer, unless another thread is at it."""
        cdef uint32_t free = 0
        if swap32(&self.busy, &free, 1):
            if self.since and self.since <= before:
                self.ship()
            store_release32(&self.busy, 0)

    def first(self):
        """The batch that has waited longest, or None."""
        return self.batches[self.leaving] if load_acquire32(&self.ready[self.leaving]) else None

    def leave(self):
        """The first batch may be filled again."""
        cdef uint32_t k = self.leaving
        self.batches[k].clear()
        self.leaving = (k + 1) % BATCHES
        store_release32(&self.ready[k], 0)

    @property
    def queued(self):
        """Batches that wait, or are on their way."""
        cdef int k
        return sum([load_acquire32(&self.ready[k]) for k in range(BATCHES)])
