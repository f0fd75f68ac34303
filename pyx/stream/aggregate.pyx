"""Aggregates of rows by group, by windows of event time: a roll-up for each window."""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from c_posix cimport pthread_mutex_lock, pthread_mutex_unlock
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.query.rollup cimport Rollup
from confluo_tools.core.stream.event_windows cimport WindowStage
cimport cython


@cython.final
cdef class AggregateStage(WindowStage):
    """Folds rows into a roll-up for each window, and gives its result when the window ends.

    ``make()``: an empty roll-up of ``layout``.  ``answer(roll-up, start)``: blocks of result rows.  ``groups``: a
    window with more groups, or values that are counted once each, is given in parts.  Only the ends of windows need
    the interpreter lock.
    """

    def __init__(self, Layout layout not None, int time, int64_t every, int64_t late, make, answer, uint64_t groups,
                 int slots=0):
        super().__init__(layout, time, every, late, slots)
        if groups == 0:
            raise ValueError("no groups")
        self.make, self.answer, self.groups = make, answer, groups
        self.rollups, self.every_row = [None] * self.slots, Picks()
        self.rollup = <void**>calloc(self.slots, sizeof(void*))
        if self.rollup == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.rollup)

    cdef int begin(self, int slot, int64_t start) noexcept nogil:
        cdef int failed
        with gil:
            failed = self.renew(slot)
        return failed

    cdef int renew(self, int slot) noexcept:
        """A new roll-up for the slot."""
        cdef Rollup rollup
        self.rollup[slot] = NULL
        try:
            rollup = self.make()
            if rollup.layout is not self.layout:
                raise ValueError("the roll-up has other columns")
        except Exception as e:
            self.problem = e
            return 1
        self.rollups[slot] = rollup
        self.rollup[slot] = <void*>rollup
        return 0

    cdef int add(self, int slot, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef int stopped = 0
        if self.rollup[slot] == NULL:
            self.dropped += picks.n
        elif (<Rollup>self.rollup[slot]).fold(block, picks) < 0:
            with gil:
                self.lose(slot, MemoryError("no memory for more groups"))
                self.renew(slot)
        elif (<Rollup>self.rollup[slot]).entries() > self.groups:
            if self.gate != NULL:
                pthread_mutex_lock(self.gate)
            with gil:
                self.parts += 1
                stopped = self.emit(slot, self.window[slot].start, now)
                self.renew(slot)
            if self.gate != NULL:
                pthread_mutex_unlock(self.gate)
        return stopped

    cdef int close(self, int slot, int64_t start, int64_t now) noexcept nogil:
        cdef int stopped
        with gil:
            stopped = self.emit(slot, start, now)
        return stopped

    cdef int emit(self, int slot, int64_t start, int64_t now) noexcept:
        """Give the result of the slot, and empty it."""
        cdef Block block
        cdef int stopped = 0
        if self.rollup[slot] == NULL:
            return 0
        try:
            for block in self.answer(self.rollups[slot], start):
                self.every_row.set_all(block.rows)
                with nogil:
                    stopped = self.give(block, self.every_row, now)
                if stopped:
                    break
        except Exception as e:
            self.lose(slot, e)
        self.rollups[slot] = None
        self.rollup[slot] = NULL
        return stopped

    cdef void absorb(self, int slot, WindowStage other) noexcept:
        cdef AggregateStage theirs = <AggregateStage>other
        if theirs.rollup[slot] == NULL:
            return
        if self.rollup[slot] == NULL:
            self.rollups[slot], self.rollup[slot] = theirs.rollups[slot], theirs.rollup[slot]
        else:
            try:
                self.rollups[slot].merge(theirs.rollups[slot])
            except Exception as e:
                theirs.lose(slot, e)
        theirs.rollups[slot] = None
        theirs.rollup[slot] = NULL

    cdef void lose(self, int slot, problem) noexcept:
        self.problem = problem
        self.dropped += (<Rollup>self.rollup[slot]).rows
