"""The processor on which timers are on time, and that stays it.

One processor counts the ticks of the kernel (jiffies).  The others have their own tick at the same moment, and often
before the count: their timers then wait for the next one.  A processor that is idle leaves the count to another one.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
cimport cython

cdef extern from "replay_calls.h" nogil:
    int64_t replay_now()
    int64_t replay_tick()

cdef extern from "busy_processor.h" nogil:
    ctypedef struct busy_processor:
        pass
    int busy_begin(busy_processor* busy)
    void busy_end(busy_processor* busy)

cdef enum:
    INTERRUPT = 1_500       # ns that an interrupt takes at least
    TICKS = 5               # that are looked at
    PATIENCE = 100_000_000  # ns


def counts_ticks():
    """Whether the processor of this thread counts the ticks: each is counted in an interrupt of this processor.

    The thread must have one processor for itself; it takes some 20 ms.
    """
    cdef int64_t before, last, now, counted, count = replay_tick()
    cdef int64_t end = replay_now() + PATIENCE
    cdef int seen = 0
    cdef bint here = True
    with nogil:
        before = last = now = replay_now()
        while here and seen < TICKS and now < end:
            counted, now = replay_tick(), replay_now()
            if counted != count:
                here = now - before > INTERRUPT
                count = counted
                seen += 1
            before, last = last, now
    return here and seen == TICKS


@cython.final
cdef class BusyProcessor:
    """While it exists, a thread of the lowest priority (SCHED_IDLE) runs on the processors of its creator.

    For one thread.
    """

    cdef busy_processor* busy

    def __cinit__(self):
        self.busy = <busy_processor*>malloc(sizeof(busy_processor))
        if self.busy == NULL:
            raise MemoryError
        if busy_begin(self.busy):
            free(self.busy)
            self.busy = NULL

    def close(self):
        """End the thread."""
        if self.busy != NULL:
            with nogil:
                busy_end(self.busy)
            free(self.busy)
            self.busy = NULL

    def __dealloc__(self):
        self.close()
