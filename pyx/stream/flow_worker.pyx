"""Workers of flows: threads that run chains of functions over batches, without the interpreter lock."""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from c_atomic cimport load_acquire32, store_release32
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.stream.batch_queue cimport BATCH_HEAD, Batch, BatchQueue, Bell
from confluo_tools.core.stream.shared_windows cimport WindowPart
from confluo_tools.core.stream.stage cimport StreamStage
cimport cython

cdef enum:
    TICK = 1_000_000                    # ns between two ticks while there is work
    NAP = 5                             # ms between two ticks while there is none


cdef inline int64_t _now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1_000_000_000 + t.tv_nsec


@cython.final
cdef class FlowEnd:
    """One flow in one worker: batches with columns of ``layout`` go to the chain that begins with ``head``.

    A `WindowPart` there gets them with their windows.
    """

    def __cinit__(self, Layout layout not None, StreamStage head not None):
        self.head, self.view = head, Block(layout)
        self.part = head if isinstance(head, WindowPart) else None

    cdef int take(self, Batch* batch, Picks picks) noexcept nogil:
        cdef uint8_t* at = <uint8_t*>batch + BATCH_HEAD
        cdef int i
        for i in range(self.view.layout.n):
            self.view.col[i] = at
            at += (<size_t>batch.rows * self.view.layout.column[i].width + 63) & ~<size_t>63
        self.view.rows = batch.rows
        self.taken += batch.rows
        picks.set_all(batch.rows)
        if self.part is not None:
            return self.part.take_window(batch.window, self.view, picks, batch.now)
        return self.head.feed(self.view, picks, batch.now)


@cython.final
cdef class FlowWorker:
    """Takes batches from ``lanes`` queues of ``size`` bytes each.  `use` says what becomes of them."""

    def __cinit__(self, int lanes, size_t size):
        cdef int i
        self.bell, self.picks = Bell(), Picks()
        self.queues = [BatchQueue(size, self.bell) for _ in range(lanes)]
        self.n_queues = lanes
        self.queue = <void**>calloc(max(lanes, 1), sizeof(void*))
        if self.queue == NULL:
            raise MemoryError
        for i in range(lanes):
            self.queue[i] = <void*>self.queues[i]
        self.ends = []

    def __dealloc__(self):
        free(self.queue)
        free(self.end)

    def use(self, list ends not None):
        """Take batches of flow i to ``ends[i]``, a FlowEnd, or None where there is none.  Not while it runs."""
        cdef int i
        cdef void** end = <void**>calloc(max(<int>len(ends), 1), sizeof(void*))
        if end == NULL:
            raise MemoryError
        for i in range(<int>len(ends)):
            end[i] = <void*>(<FlowEnd?>ends[i]) if ends[i] is not None else NULL
        free(self.end)
        self.end, self.n_ends, self.ends = end, <int>len(ends), ends

    cdef bint one_round(self) noexcept nogil:
        """Take at most one batch of each lane; whether there was one."""
        cdef Batch* batch
        cdef bint found = False
        cdef int i
        for i in range(self.n_queues):
            batch = (<BatchQueue>self.queue[i]).front()
            if batch == NULL:
                continue
            found = True
            self.batches += 1
            (<FlowEnd>self.end[batch.flow]).take(batch, self.picks)
            (<BatchQueue>self.queue[i]).pop(batch)
        return found

    cdef bint waiting(self) noexcept nogil:
        cdef int i
        for i in range(self.n_queues):
            if (<BatchQueue>self.queue[i]).front() != NULL:
                return True
        return False

    cdef void tick(self, int64_t now) noexcept nogil:
        cdef int i
        for i in range(self.n_ends):
            if self.end[i] != NULL:
                (<FlowEnd>self.end[i]).head.tick(now)

    cdef void work(self) noexcept nogil:
        cdef int64_t now, last = 0
        cdef bint found
        while True:
            found = self.one_round()
            now = _now()
            if now - last >= TICK:
                self.tick(now)
                last = now
            if found:
                continue
            if load_acquire32(&self.draining) and not self.waiting():
                return
            self.bell.prepare()
            if self.waiting() or load_acquire32(&self.draining):
                self.bell.cancel()
                continue
            self.sleeps += 1
            self.bell.sleep(NAP)

    def run(self):
        """Work until `drain`: then until the queues are empty."""
        with nogil:
            self.work()

    def drain(self):
        """Make `run` return when the queues are empty: call it when no lane adds to them any more."""
        store_release32(&self.draining, 1)
        with nogil:
            self.bell.ring()

    def go(self):
        """Allow `run` again."""
        store_release32(&self.draining, 0)
