"""Tumbling windows of event time: which window takes a row, and when a window ends.

A window ends when a row is later than its end by ``late``; rows that come after that are late: dropped, and counted.
Nothing here depends on how the rows are cut into blocks, and no clock can stop it:

- One row far from the others, ahead or behind, is kept in a window of its own and does not move the time.  Two in
  succession are believed: the clock has stepped.  All windows end, and new ones begin at the time of the rows; a
  window may then be given twice, with other rows.
- Where rows stop coming for ``silence``, all windows end.  Later rows begin as the first rows did.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from c_block cimport BLOCK_ROWS
from c_source cimport floor_div
from confluo_tools.core.block.block cimport PICK_ALL, Block, Layout, Picks, check_time

cdef extern from *:
    """
    #define CFL_FAR_BEHIND 60000000000LL    /* a row as late as this is not late: the clock stepped back */
    #define CFL_MAX_TIME (1LL << 62)        /* times beyond +-146 years from 1970 are refused */
    #define CFL_MAX_WAIT 250000000LL        /* a longer time between two ticks is not silence: the chain was busy */
    """
    const int64_t FAR_BEHIND "CFL_FAR_BEHIND"
    const int64_t MAX_TIME "CFL_MAX_TIME"
    const int64_t MAX_WAIT "CFL_MAX_WAIT"

cdef enum:
    REFUSED = -1
    STOPPED = -2


cdef class WindowStage(StreamStage):
    """Base class of functions over windows of ``every`` ns of the column ``time``; subclasses keep the windows.

    ``slots``: of windows, if they must be more than rows need.
    Raises ValueError when more than 64 windows would be open at a time.
    """

    def __cinit__(self, *args, **kwargs):
        self.current = self.doubted = -1
        self.due = INT64_MAX

    def __init__(self, Layout layout not None, int time, int64_t every, int64_t late, int slots=0):
        super().__init__(layout)
        check_time(layout, time)
        if not 0 < every <= MAX_TIME // 8 or not 0 <= late <= MAX_TIME // 8:
            raise ValueError(f"windows of {every} ns")
        if late // every + 4 > MAX_WINDOWS:
            raise ValueError(f"{late} ns are more than {MAX_WINDOWS - 4} windows")
        if self.window != NULL:
            raise ValueError("made twice")
        self.time, self.every, self.late, self.silence = time, every, late, every + late
        self.slots = max(slots, <int>(late // every) + 4)
        self.window = <EventWindow*>calloc(self.slots, sizeof(EventWindow))
        if self.window == NULL:
            raise MemoryError
        self.part = Picks()

    def __dealloc__(self):
        cdef int i
        if self.window != NULL:
            for i in range(self.slots):
                free(self.window[i].rows)
        free(self.window)

    @property
    def open_windows(self):
        """Number of windows that have not ended."""
        return sum([1 for i in range(self.slots) if self.window[i].open])

    # -- what a function does with a window

    cdef int begin(self, int slot, int64_t start) noexcept nogil:
        """A window begins; 1: there is no memory for it."""
        return 0

    cdef int add(self, int slot, Block block, Picks picks, int64_t now) noexcept nogil:
        """Rows of the window."""
        return 0

    cdef int close(self, int slot, int64_t start, int64_t now) noexcept nogil:
        """The window has ended: give its result."""
        return 0

    cdef void absorb(self, int slot, WindowStage other) noexcept:
        """Take what another stage of the same function has for the window; it forgets it."""

    # -- rows

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef const int64_t* times = <const int64_t*>block.col[self.time]
        cdef const uint16_t* rows
        cdef int64_t low, high, t
        cdef uint32_t i
        if self.current >= 0 and self.doubt == 0:
            # Most blocks are in one window.
            low, high = INT64_MAX, INT64_MIN
            if picks.kind == PICK_ALL:
                for i in range(picks.n):
                    low, high = min(low, times[i]), max(high, times[i])
            else:
                rows = picks.as_list()
                for i in range(picks.n):
                    t = times[rows[i]]
                    low, high = min(low, t), max(high, t)
            t = self.window[self.current].start
            if low >= t and high - t < self.every and self.current != self.doubted:
                if self.add(self.current, block, picks, now):
                    return 1
                if high > self.latest:
                    self.latest = high
                    if high >= self.due:
                        return self.end_before(high - self.late, block, now)
                return 0
        return self.spread(block, picks, now)

    cdef int spread(self, Block block, Picks picks, int64_t now) noexcept nogil:
        """Rows of several windows, one by one."""
        cdef const int64_t* times = <const int64_t*>block.col[self.time]
        cdef const uint16_t* rows = picks.as_list()
        cdef EventWindow* w
        cdef uint32_t i
        cdef int slot
        for i in range(picks.n):
            slot = self.place(times[rows[i]], block, now)
            if slot >= 0:
                w = &self.window[slot]
                w.rows[w.n] = rows[i]
                w.n += 1
                self.current = slot
            elif slot == STOPPED:
                return 1
        for slot in range(self.slots):
            if self.window[slot].n and self.hand(slot, block, now):
                return 1
        return 0

    cdef int place(self, int64_t t, Block block, int64_t now) noexcept nogil:
        """The slot for a row of this time; REFUSED: it is late; STOPPED."""
        cdef int slot
        if not -MAX_TIME < t < MAX_TIME:
            return self.refuse()
        if not self.begun:
            self.begun, self.latest, self.doubt = True, t, 0
        if t > self.latest:
            if t - self.latest > self.every + self.late:
                return self.far(t, 1, block, now)
            self.latest = t
            if t >= self.due and self.end_before(t - self.late, block, now):
                return STOPPED
        slot = self.find(t)
        if slot < 0 or slot == self.doubted:
            if self.latest - t > self.every + self.late + FAR_BEHIND:
                return self.far(t, -1, block, now)
            if floor_div(t, self.every) * self.every + self.every + self.late <= self.latest:
                self.doubt = 0
                return self.refuse()
            if slot < 0:
                slot = self.open_at(t)
            else:
                self.due = min(self.due, self.window[slot].start + self.every + self.late)
                self.doubted = -1               # the others have come there
        self.doubt = 0
        return slot

    cdef int far(self, int64_t t, int side, Block block, int64_t now) noexcept nogil:
        """As `place`, for a time far from that of the others."""
        cdef int slot
        if self.doubt == side and t >= self.strange - self.every - self.late:
            # The row before was there, too.
            if self.end_before(INT64_MAX, block, now):
                return STOPPED
            self.steps += side < 0
            self.due = self.window[self.doubted].start + self.every + self.late
            self.doubt, self.doubted, self.latest = 0, -1, self.strange
            return self.place(t, block, now)
        slot = self.find(t)
        if slot < 0:
            if self.doubted >= 0 and self.end_slot(self.doubted, block, now):
                return STOPPED
            slot = self.open_at(t)
            if slot < 0:
                return slot
            self.doubted = slot
        self.doubt, self.strange = side, t
        return slot

    cdef int refuse(self) noexcept nogil:
        self.late_rows += 1
        self.dropped += 1
        return REFUSED

    # -- windows

    cdef int find(self, int64_t t) noexcept nogil:
        cdef int i
        if self.current >= 0 and self.window[self.current].open:
            if 0 <= t - self.window[self.current].start < self.every:
                return self.current
        for i in range(self.slots):
            if self.window[i].open and 0 <= t - self.window[i].start < self.every:
                return i
        return -1

    cdef int open_at(self, int64_t t) noexcept nogil:
        cdef EventWindow* w
        cdef int i = self.free_slot()
        if i >= 0:
            w = &self.window[i]
            if w.rows == NULL:
                w.rows = <uint16_t*>malloc(BLOCK_ROWS * sizeof(uint16_t))
            w.start = floor_div(t, self.every) * self.every
            if w.rows != NULL and self.begin(i, w.start) == 0:
                w.open = True
                self.due = min(self.due, w.start + self.every + self.late)
                return i
        self.dropped += 1                       # no memory
        return REFUSED

    cdef int free_slot(self) noexcept nogil:
        """A slot for a new window; -1: there is none."""
        cdef int i
        for i in range(self.slots):
            if not self.window[i].open:
                return i
        return -1

    cdef int hand(self, int slot, Block block, int64_t now) noexcept nogil:
        """Add the rows of the block at hand to their window."""
        cdef EventWindow* w = &self.window[slot]
        cdef uint32_t n = w.n
        w.n = 0
        memcpy(self.part.list, w.rows, n * sizeof(uint16_t))
        self.part.set_list(block.rows, n)
        return self.add(slot, block, self.part, now)

    cdef int end_slot(self, int slot, Block block, int64_t now) noexcept nogil:
        if self.window[slot].n and self.hand(slot, block, now):
            return 1
        self.window[slot].open = False
        if slot == self.current:
            self.current = -1
        if slot == self.doubted:
            self.doubted = -1
        return self.close(slot, self.window[slot].start, now)

    cdef int end_before(self, int64_t time, Block block, int64_t now) noexcept nogil:
        """End the windows that end until then, oldest first, but the doubted one."""
        cdef int i, first
        while True:
            first = -1
            self.due = INT64_MAX
            for i in range(self.slots):
                if self.window[i].open and i != self.doubted:
                    self.due = min(self.due, self.window[i].start + self.every + self.late)
                    if self.window[i].start <= time - self.every and (
                            first < 0 or self.window[i].start < self.window[first].start):
                        first = i
            if first < 0:
                return 0
            if self.end_slot(first, block, now):
                return 1

    cdef int end_all(self, int64_t now) noexcept nogil:
        cdef int stopped
        self.doubted = -1
        stopped = self.end_before(INT64_MAX, None, now)
        self.forget()
        return stopped

    cdef void forget(self) noexcept nogil:
        self.begun, self.doubt, self.doubted, self.current, self.idle = False, 0, -1, -1, 0
        self.due = INT64_MAX

    # -- time

    cdef int tick(self, int64_t now) noexcept nogil:
        if self.taken != self.seen:
            self.idle = 0
        else:
            self.idle += min(max(now - self.ticked, <int64_t>0), MAX_WAIT)
        self.seen, self.ticked = self.taken, now
        if self.silence and self.begun and self.idle >= self.silence and self.end_all(now):
            return 1
        return StreamStage.tick(self, now)

    cdef int finish(self) noexcept nogil:
        if self.end_all(self.ticked):
            return 1
        return StreamStage.finish(self)
