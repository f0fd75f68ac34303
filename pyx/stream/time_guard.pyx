"""Rows with a time far from that of the others, before a service of windows sees them.

The rule is that of event_windows: one such row does not move the time; two in succession are believed.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Block, Layout, Picks, check_time
cimport cython

cdef extern from *:
    """
    #define CFL_FAR_BEHIND 60000000000LL    /* as in event_windows */
    #define CFL_MAX_TIME (1LL << 61)        /* two times are never further apart than int64 reaches */
    """
    const int64_t FAR_BEHIND "CFL_FAR_BEHIND"
    const int64_t MAX_TIME "CFL_MAX_TIME"

cdef enum:
    NONE = -1                           # no row is held
    BEFORE = -2                         # it is of a block before


@cython.final
cdef class TimeGuard:
    """Sifts rows by the column ``time``: a row more than ``far`` ns ahead of the latest one, or more than a minute
    further behind, is held back until the next row is there as well.  Times beyond 73 years from 1970 are strange.
    Raises ValueError.

    ``strange``: rows that were left out.  ``steps``: how often the clock stepped back.
    """

    cdef readonly Layout layout
    cdef readonly uint64_t strange, steps
    cdef int time
    cdef bint begun
    cdef int64_t far, latest, held_time
    cdef int side                       # of the row that is held: 1 ahead, -1 behind, 0: none
    cdef object held                    # its block

    def __init__(self, Layout layout not None, int time, int64_t far):
        check_time(layout, time)
        if not 0 < far <= MAX_TIME // 8:
            raise ValueError(f"{far} ns")
        self.layout, self.time, self.far = layout, time, far

    def sift(self, Block block not None, Picks picks=None):
        """[(block, picks, stepped)] of the rows to take; ``stepped``: before them, the clock stepped back."""
        cdef const int64_t* times
        cdef Picks rows = picks if picks is not None else Picks.of(block.rows)
        cdef const uint16_t* list = rows.as_list()
        cdef Picks kept
        cdef uint32_t i, n = 0
        cdef int64_t t, row
        cdef int64_t waits = BEFORE if self.side else NONE   # the row that is held
        cdef int side
        cdef bint stepped = False
        if block.layout is not self.layout or rows.rows > block.rows:
            raise ValueError("the block has another layout, or the picks are of another block")
        out = []
        if self._near(block, list, rows.n):
            return [(block, picks, False)]
        kept = Picks()
        times = <const int64_t*>block.col[self.time]
        i = 0
        while i < rows.n:
            row = list[i]
            t = times[row]
            if not -MAX_TIME < t < MAX_TIME:
                self.strange += 1
                i += 1
                continue
            if not self.begun:
                self.begun, self.latest = True, t
            side = self._side(t)
            if side and side == self.side and t >= self.held_time - self.far:
                # The row before was there, too: it counts, and the time is there.
                if side < 0:
                    if n:
                        kept.set_list(block.rows, n)
                        out.append((block, kept, stepped))
                        kept, n = Picks(), 0
                    stepped = True
                    self.steps += 1
                if waits == BEFORE:
                    out.append((self.held, None, stepped))
                    stepped = False
                else:
                    kept.list[n] = <uint16_t>waits
                    n += 1
                self.latest, self.side, self.held, waits = self.held_time, 0, None, NONE
                continue
            if waits != NONE:
                self.strange += 1
                self.held, waits = None, NONE
            self.side = side
            if side:
                waits, self.held_time = row, t
            else:
                self.latest = max(self.latest, t)
                kept.list[n] = <uint16_t>row
                n += 1
            i += 1
        if n:
            kept.set_list(block.rows, n)
            out.append((block, kept, stepped))
        if waits >= 0:
            self.held = block.take(Picks.of(block.rows, [waits]))
        return out

    cdef bint _near(self, Block block, const uint16_t* rows, uint32_t n) noexcept nogil:
        """Whether all rows are near the latest one, and none is held: nearly always.  Then the time moves."""
        cdef const int64_t* times = <const int64_t*>block.col[self.time]
        cdef int64_t latest = self.latest, t
        cdef uint32_t i
        if self.side or not self.begun:
            return False
        for i in range(n):
            t = times[rows[i]]
            if t > latest:
                if <uint64_t>t - <uint64_t>latest > <uint64_t>self.far:
                    return False
                latest = t
            elif <uint64_t>latest - <uint64_t>t > <uint64_t>(self.far + FAR_BEHIND):
                return False
        self.latest = latest
        return True

    cdef int _side(self, int64_t t) noexcept nogil:
        if t > self.latest:
            return t - self.latest > self.far
        return -1 if self.latest - t > self.far + FAR_BEHIND else 0

    @property
    def due(self):
        """The time of a row that is held because it is ahead; None if there is none."""
        return self.held_time if self.side > 0 else None

    def release(self):
        """Remove and return the block with the row that is held because it is ahead: time has come there.  Or None."""
        if self.side <= 0:
            return None
        held, self.held = self.held, None
        self.latest, self.side = self.held_time, 0
        return held
