"""Windows of one flow, folded by several workers: the result is that of one worker.

    lane: WindowLane -> WindowClock -> FlowRoute -> queues -> worker: WindowPart -> a WindowStage of its own

Lanes decide: there rows have the order of the wire, so which window takes a row, which row is late and when a window
ends do not depend on the shares of the workers.  A batch carries the slot of its window.  A window that has ended is
given as soon as none of its rows is on its way any more, by the worker that sees it first: it adds the parts of all.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from c_atomic cimport load_acquire, load_acquire32, store_release, store_release32, subtract32
from c_posix cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.stream.batch_queue cimport Bell
from confluo_tools.core.stream.event_windows cimport EventWindow, WindowStage
from confluo_tools.core.stream.stage cimport StreamStage
cimport cython

cdef enum:
    PAUSE = 50                          # ms between two looks whether waiting should end

SLOTS = SHARED_SLOTS                    # of the stages of the workers


@cython.final
cdef class WindowClock(WindowStage):
    """The windows of a flow, as its `WindowLane` stages see rows of ``layout``.

    Its counters are those of rows: ``dropped`` are late, or found no slot.
    """

    def __init__(self, Layout layout not None, int time, int64_t every, int64_t late):
        super().__init__(layout, time, every, late, SHARED_SLOTS)
        pthread_mutex_init(&self.lock, NULL)
        pthread_mutex_init(&self.giving, NULL)
        self.emptied, self.parts = Bell(), []
        self.pending = <uint32_t*>calloc(self.slots, sizeof(uint32_t))
        self.waits = <uint32_t*>calloc(self.slots, sizeof(uint32_t))
        self.order = <int*>calloc(self.slots, sizeof(int))
        if self.pending == NULL or self.waits == NULL or self.order == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.pending)
        free(self.waits)
        free(self.order)

    def use(self, list stages not None):
        """The stages of the workers from now on.  Others stay while they have a part of a window.  Not while rows come.

        Raises ValueError for a stage with other windows.
        """
        cdef WindowStage stage
        for stage in stages:
            if stage.every != self.every or stage.slots != self.slots:
                raise ValueError("the stage has other windows")
            stage.gate = &self.giving
        self.parts = stages + [s for s in self.parts if s not in stages and s.open_windows]

    # -- in lanes, which hold `lock`

    cdef int add(self, int slot, Block block, Picks picks, int64_t now) noexcept nogil:
        self.at = slot
        return (<StreamStage>self.route).feed(block, picks, now)

    cdef int close(self, int slot, int64_t start, int64_t now) noexcept nogil:
        store_release32(&self.waits[slot], 1)
        self.order[self.ended % <uint64_t>self.slots] = slot
        store_release(&self.ended, self.ended + 1)
        return 0

    cdef int free_slot(self) noexcept nogil:
        cdef uint64_t answered
        cdef int i
        while True:
            answered = load_acquire(&self.answered)
            for i in range(self.slots):
                if not self.window[i].open and not load_acquire32(&self.waits[i]):
                    return i
            if not self.wait or load_acquire32(self.ending):
                return -1
            self.emptied.prepare()
            if load_acquire(&self.answered) == answered:
                self.emptied.sleep(PAUSE)
            else:
                self.emptied.cancel()

    # -- in workers

    cdef int tick(self, int64_t now) noexcept nogil:
        """Windows end in silence; while a lane is at work there is none."""
        if pthread_mutex_trylock(&self.lock) == 0:
            WindowStage.tick(self, now)
            pthread_mutex_unlock(&self.lock)
        return 0

    cdef int oldest(self) noexcept nogil:
        """The slot of the next window to give; -1: there is none."""
        cdef int slot
        if load_acquire(&self.ended) == self.answered:
            return -1
        slot = self.order[self.answered % <uint64_t>self.slots]
        return -1 if load_acquire32(&self.pending[slot]) else slot

    cdef int settle(self, WindowStage stage, int64_t now) noexcept nogil:
        """Give windows that have ended, in their order, through the stage of one worker.  Hold `giving`."""
        cdef int slot, stopped = 0
        while not stopped:
            slot = self.oldest()
            if slot < 0:
                break
            with gil:
                self.gather(slot, stage)
            stopped = stage.close(slot, self.window[slot].start, now)
            store_release32(&self.waits[slot], 0)
            store_release(&self.answered, self.answered + 1)
            self.emptied.ring()
        return stopped

    cdef void gather(self, int slot, WindowStage stage) noexcept:
        """Add the parts of the other workers to that of ``stage``."""
        cdef WindowStage part
        for part in self.parts:
            if part.window[slot].open:
                part.window[slot].open = False
                if part is not stage:
                    stage.absorb(slot, part)


@cython.final
cdef class WindowLane(StreamStage):
    """The last stage of a lane, before its route: the windows of ``clock`` take the rows."""

    def __init__(self, WindowClock clock not None):
        super().__init__(clock.layout)
        self.clock = clock

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef int stopped
        pthread_mutex_lock(&self.clock.lock)
        self.clock.route = <void*>self.after
        stopped = self.clock.feed(block, picks, now)
        pthread_mutex_unlock(&self.clock.lock)
        return stopped


@cython.final
cdef class WindowPart(StreamStage):
    """The head of the chain of one worker: ``stage``, the next one, folds rows of the windows of ``clock``.

    ``last``: what comes after the function belongs to the chain of this worker, and time passes for it there.
    """

    def __init__(self, WindowClock clock not None, WindowStage stage not None, bint last):
        super().__init__(stage.layout)
        self.clock, self.stage, self.last = clock, stage, last

    cdef int take_window(self, int slot, Block block, Picks picks, int64_t now) noexcept nogil:
        """All rows of a batch."""
        cdef EventWindow* w = &self.stage.window[slot]
        cdef uint32_t n = picks.n
        cdef int stopped
        if not w.open:
            w.open, w.start = True, self.clock.window[slot].start
            self.stage.begin(slot, w.start)     # without memory, `add` counts the rows
        self.taken += n
        self.stage.taken += n
        stopped = self.stage.add(slot, block, picks, now)
        if subtract32(&self.clock.pending[slot], n) == 0:
            stopped |= self.settle(now)
        return stopped

    cdef int settle(self, int64_t now) noexcept nogil:
        cdef int stopped
        if load_acquire(&self.clock.ended) == load_acquire(&self.clock.answered):
            return 0
        pthread_mutex_lock(&self.clock.giving)
        stopped = self.clock.settle(self.stage, now)
        pthread_mutex_unlock(&self.clock.giving)
        return stopped

    cdef int tick(self, int64_t now) noexcept nogil:
        cdef int stopped
        self.clock.tick(now)
        stopped = self.settle(now)
        if self.last and not stopped:
            pthread_mutex_lock(&self.clock.giving)
            stopped = StreamStage.tick(self, now)
            pthread_mutex_unlock(&self.clock.giving)
        return stopped

    cdef int finish(self) noexcept nogil:
        """The queues are empty: give all windows."""
        cdef int stopped
        pthread_mutex_lock(&self.clock.lock)
        self.clock.end_all(self.clock.ticked)
        pthread_mutex_unlock(&self.clock.lock)
        stopped = self.settle(self.clock.ticked)
        return 1 if stopped else StreamStage.finish(self)
