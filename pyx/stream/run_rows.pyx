"""Rows that wait for the ends of their runs, in the order in which they came: a log of parts of 1024 rows.

A row is copied once, column by column, and given without another copy.  The length and the step of a run are stored by
the number of its row when it ends.  A part is free when all its rows were given.  A few rows that wait for long must
not hold many parts: they are moved behind all others.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from c_gather cimport gather
from confluo_tools.core.block.block cimport Block, Layout, Picks
cimport cython

cdef extern from "marked_rows.h" nogil:
    int marked_wanted
    bint can_copy_marked() noexcept
    bint copy_marked(uint8_t* to, const uint8_t* column, const uint64_t* marks, uint32_t words, uint32_t width) noexcept

cdef enum:
    PART_ROWS = 1024
    MIN_FILLED = 768                    # of a part that is not the newest
    MARK_WORDS = 8                      # rows that are copied by marks are within 512
    MARKED_FROM = 6                     # and every sixth at least is one


def use_marked(bint wanted):
    """Copy marked rows with AVX-512 if the processor has it, or do not."""
    global marked_wanted
    marked_wanted = wanted


@cython.final
cdef class RunRows:
    """Rows with the columns of ``layout``, at most ``most`` at a time in runs that have not ended.

    ``out``: layout of the rows given: these columns, run_packets (u32) and run_step (i64).
    """

    def __cinit__(self, Layout layout not None, Layout out not None, uint32_t most):
        cdef size_t rows
        cdef int i
        if out.names != (*layout.names, "run_packets", "run_step"):
            raise ValueError("rows of another schema")
        self.layout, self.view, self.picks = layout, Block(out), Picks()
        for i in range(layout.n):
            self.part_bytes += column_bytes(layout.column[i].width)
        self.parts = parts_for(most)
        rows = <size_t>self.parts * PART_ROWS + 1
        self.nowhere = <uint32_t>(rows - 1)
        self.memory = <uint8_t*>malloc(self.parts * max(self.part_bytes, <size_t>1))
        self.part = <RunPart*>calloc(self.parts, sizeof(RunPart))
        self.packets = <uint32_t*>malloc(rows * sizeof(uint32_t))
        self.step = <int64_t*>malloc(rows * sizeof(int64_t))
        self.owner = <uint32_t*>malloc(rows * sizeof(uint32_t))
        self.moving = <uint16_t*>malloc(PART_ROWS * sizeof(uint16_t))
        if (self.memory == NULL or self.part == NULL or self.packets == NULL or self.step == NULL
                or self.owner == NULL or self.moving == NULL):
            raise MemoryError
        memset(self.packets, 0, PART_ROWS * sizeof(uint32_t))
        # Parts are taken in this order at first, and then the one that was freed last.
        for i in range(<int>self.parts):
            self.part[i].next = i + 1
        self.spare, self.spares = 1, self.parts - 1

    def __dealloc__(self):
        free(self.memory)
        free(self.part)
        free(self.packets)
        free(self.step)
        free(self.owner)
        free(self.moving)

    cdef uint32_t room(self) noexcept nogil:
        """Rows that `begin` may add before `open_part`."""
        return PART_ROWS - self.part[self.newest].filled

    cdef uint32_t next_row(self) noexcept nogil:
        """The number that the next row will have."""
        return self.newest * PART_ROWS + self.part[self.newest].filled

    cdef void begin(self, const uint8_t** columns, const uint16_t* rows, uint32_t n) noexcept nogil:
        """Copy rows, in ascending order; their ``owner`` is set."""
        cdef RunPart* part = &self.part[self.newest]
        cdef uint8_t* to = self.memory + self.newest * self.part_bytes
        cdef uint64_t[MARK_WORDS] marks
        cdef uint32_t words = 0, width, span, i
        cdef int c
        if n == 0:
            return
        span = <uint32_t>rows[n - 1] - rows[0] + 1
        if n * MARKED_FROM >= span and span <= 64 * MARK_WORDS and can_copy_marked():
            words = (span + 63) // 64
            for i in range(words):
                marks[i] = 0
            for i in range(n):
                marks[(<uint32_t>rows[i] - rows[0]) // 64] |= <uint64_t>1 << (<uint32_t>rows[i] - rows[0]) % 64
        for c in range(self.layout.n):
            width = self.layout.column[c].width
            if not (words and copy_marked(to + <size_t>part.filled * width, columns[c] + <size_t>rows[0] * width,
                                          marks, words, width)):
                gather(to + <size_t>part.filled * width, columns[c], rows, n, width)
            to += column_bytes(width)
        part.filled += n

    cdef bint crowded(self, uint32_t waiting) noexcept nogil:
        """Whether the parts are more than ``waiting`` rows of runs need: the oldest should be freed."""
        return self.parts - self.spares >= parts_for(waiting)

    cdef void open_part(self) noexcept nogil:
        """Begin a spare part; there must be one."""
        cdef uint32_t fresh = self.spare
        self.spare, self.spares = self.part[fresh].next, self.spares - 1
        self.part[fresh].filled = self.part[fresh].ended = 0
        self.part[fresh].given = False
        memset(self.packets + <size_t>fresh * PART_ROWS, 0, PART_ROWS * sizeof(uint32_t))
        self.part[self.newest].next, self.newest = fresh, fresh

    cdef bint oldest_ended(self) noexcept nogil:
        """Whether all rows of the oldest part have ended, and it is not the newest one."""
        cdef RunPart* part = &self.part[self.oldest]
        cdef const uint32_t* packets = self.packets + <size_t>self.oldest * PART_ROWS
        if self.oldest == self.newest:
            return False
        while part.ended < part.filled and packets[part.ended]:
            part.ended += 1
        return part.ended == part.filled

    cdef bint look(self, uint32_t part) noexcept nogil:
        """Make ``view`` and ``picks`` the rows of a part that have ended and were not given; False: there are none."""
        cdef const uint8_t* at = self.memory + part * self.part_bytes
        cdef size_t first = <size_t>part * PART_ROWS
        cdef uint32_t* owner = self.owner + first
        cdef uint32_t filled = self.part[part].filled, n = 0, i
        cdef int c
        for c in range(self.layout.n):
            self.view.col[c] = at
            at += column_bytes(self.layout.column[c].width)
        self.view.col[self.layout.n] = <const uint8_t*>(self.packets + first)
        self.view.col[self.layout.n + 1] = <const uint8_t*>(self.step + first)
        self.view.rows = filled
        if not self.part[part].given and self.part[part].ended == filled:
            self.picks.set_all(filled)
            return filled > 0
        for i in range(filled):
            self.picks.list[n] = i
            if self.packets[first + i] and owner[i] != self.nowhere:
                owner[i] = self.nowhere
                n += 1
        self.picks.set_list(filled, n)
        self.part[part].given = True
        return n > 0

    cdef uint32_t move_open(self) noexcept nogil:
        """Move the rows of the oldest part that have not ended into the newest, which is empty; returns how many."""
        cdef size_t from_row = <size_t>self.oldest * PART_ROWS, to_row = self.next_row()
        cdef const uint8_t* at = self.memory + self.oldest * self.part_bytes
        cdef uint32_t n = 0, i
        cdef int c
        for i in range(self.part[self.oldest].filled):
            if self.packets[from_row + i] == 0:
                self.owner[to_row + n] = self.owner[from_row + i]
                self.moving[n] = i
                n += 1
        for c in range(self.layout.n):
            self.view.col[c] = at
            at += column_bytes(self.layout.column[c].width)
        self.begin(self.view.col, self.moving, n)
        return n

    cdef void free_oldest(self) noexcept nogil:
        cdef uint32_t part = self.oldest
        self.oldest = self.part[part].next
        self.part[part].next, self.spare, self.spares = self.spare, part, self.spares + 1


cdef inline uint32_t parts_for(size_t waiting) noexcept nogil:
    """Twice the parts of the rows that may wait: a part has on average as many rows to give as to move."""
    return <uint32_t>(2 * ((waiting + MIN_FILLED - 1) // MIN_FILLED) + 2)


cdef inline size_t column_bytes(size_t width) noexcept nogil:
    """Of a part: `copy_marked` writes 64 bytes after its rows."""
    return ((width * PART_ROWS + 63) & ~<size_t>63) + 64
