"""Log scan: run a program over the blocks of a log, with postings and checksums; merge lanes by time."""

from cpython.ref cimport Py_REFCNT
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from c_atomic cimport load_relaxed
from c_block cimport I64
from c_layout cimport PAGE
from c_node cimport PEEK, Node
from c_postings cimport CHUNK_MAX, Chunk
from confluo_tools.core.block.block cimport Block, Layout, Picks, Staging
from confluo_tools.core.multilog.view_file cimport ViewFile
from confluo_tools.core.multilog.postings cimport Postings
from confluo_tools.core.query.predicate cimport Program
from confluo_tools.core.multilog.segment cimport SegmentBlock
cimport cython

cdef enum:
    MERGE_ROWS = 16384                  # rows of one merged block


cdef bint _look(void* who, int column, const uint16_t* rows, uint32_t n) noexcept nogil:
    # Verify the checksums of the pages that a program is about to read.
    if n == PEEK:
        return _checked(<SegmentBlock>who, column)
    if rows == NULL:
        return (<SegmentBlock>who).ensure(column)
    return (<SegmentBlock>who).segment.ensure_list((<SegmentBlock>who).number, column, rows, n)


cdef bint _checked(SegmentBlock block, int column) noexcept nogil:
    # Whether all pages of the column have been verified in this process.
    cdef uint64_t at, page, last
    cdef int j = block.segment.shape.source[column]
    if block.segment.crc == NULL or j < 0:
        return True
    at = block.segment.g.header + block.number * block.segment.g.stride + block.segment.g.column[j]
    last = (at + <uint64_t>block.rows * block.layout.column[column].width - 1) // PAGE
    for page in range(at // PAGE, last + 1):
        if not load_relaxed(&block.segment.good[page >> 6]) >> (page & 63) & 1:
            return False
    return True


@cython.final
cdef class LogScan:
    """Runs ``program`` over blocks of segments; `open` sets the postings of the next segment."""

    def __cinit__(self, Program program not None):
        self.program = program
        self.postings, self.stored, self._columns = {}, {}, []
        self.chunk = <Chunk**>calloc(max(program.layout.n, 1), sizeof(Chunk*))
        self.own = <Chunk*>calloc(max(program.layout.n, 1), sizeof(Chunk))
        if self.chunk == NULL or self.own == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        if self.own != NULL:
            for i in range(self.program.layout.n):
                free(self.own[i].buffer)
        free(self.own)
        free(self.chunk)

    def open(self, dict postings not None, dict stored=None):
        """Set the views of the next segment: {column: Postings}, {filter name: ViewFile}."""
        cdef int column
        self.stored = {} if stored is None else stored
        for name in self.stored:
            if not isinstance(self.stored[name], ViewFile):
                raise ValueError(f"filter {name} is not a ViewFile")
        for column in self._columns:
            self.chunk[column] = NULL
        for column in postings:
            if not 0 <= column < self.program.layout.n or not isinstance(postings[column], Postings):
                raise ValueError(f"column {column} has no Postings")
            if self.own[column].buffer == NULL:
                self.own[column].buffer = <uint8_t*>malloc(CHUNK_MAX)
                if self.own[column].buffer == NULL:
                    raise MemoryError
        self.postings, self._columns = postings, list(postings)

    cdef void point(self, SegmentBlock block):
        cdef int column, status, number = block.number
        cdef ViewFile chunks
        cdef Node* node
        for name, nodes in self.program.stored.items():
            status, chunks = 0, self.stored.get(name)
            for address in nodes:
                node = <Node*><size_t>address
                if chunks is not None:
                    status = chunks.picked(number, block.base, &node.stored)
                node.have = status == 1 and node.stored.rows >= block.rows
            if status < 0:
                chunks.damaged.add(number)
        for column in self._columns:
            self.chunk[column] = (<Postings>self.postings[column]).aim(&self.own[column], number, block.base)

    cdef void note(self, int number):
        # Postings that the program found damaged and did not use.
        cdef int column
        for column in self._columns:
            if self.chunk[column] != NULL and self.chunk[column].state == -1:
                (<Postings>self.postings[column]).damaged.add(number)
        for nodes in self.program.stored.values():
            for address in nodes:
                (<Node*><size_t>address).have = False

    def select(self, SegmentBlock block not None, Picks out not None):
        """Store the matching rows of ``block`` in ``out``; returns their number, -1 if the block is damaged."""
        cdef int n
        self.point(block)
        self.program._fits(block)
        self.program.look = _look
        with nogil:
            n = self.program.run_indexed(block, self.chunk, out)
        self.program.look = NULL
        self.note(block.number)
        return n

    def count(self, SegmentBlock block not None, Picks scratch not None):
        """Number of matching rows of ``block``, -1 if the block is damaged."""
        cdef int64_t n
        self.point(block)
        self.program._fits(block)
        self.program.look = _look
        with nogil:
            n = self.program.count_indexed(block, self.chunk, scratch)
        self.program.look = NULL
        self.note(block.number)
        return n


@cython.final
cdef class LaneMerger:
    """Merges ``lanes`` streams of rows by the time in column ``ts``; ties by lane, rows of a lane stay in order.

    `load` sets the next rows of a lane; `step` merges until it needs more rows or a block is full.
    ``columns``: numbers of the columns to copy; the others stay zero.
    """

    def __cinit__(self, Layout layout not None, int lanes, int ts, columns=None):
        cdef int i
        if not 0 <= ts < layout.n or layout.column[ts].code != I64 or layout.column[ts].count != 1:
            raise ValueError(f"column {ts} is not a time")
        if not 1 <= lanes <= 65535:
            raise ValueError(f"{lanes} lanes")
        self.layout, self.lanes, self.ts = layout, lanes, ts
        self._kept, self._pool = [None] * lanes, []
        self.cursor = <Cursor*>calloc(lanes, sizeof(Cursor))
        self.from_lane = <uint16_t*>calloc(MERGE_ROWS, 2)
        self.from_row = <uint16_t*>calloc(MERGE_ROWS, 2)
        self.wanted = <bint*>calloc(layout.n, sizeof(bint))
        self.base = <const uint8_t**>calloc(lanes, sizeof(uint8_t*))
        if (self.cursor == NULL or self.from_lane == NULL or self.from_row == NULL or self.wanted == NULL
                or self.base == NULL):
            raise MemoryError
        for i in range(layout.n) if columns is None else columns:
            if not 0 <= i < layout.n:
                raise IndexError(i)
            self.wanted[i] = True

    def __dealloc__(self):
        free(self.cursor)
        free(self.from_lane)
        free(self.from_row)
        free(self.wanted)
        free(self.base)

    def load(self, int lane, Block block, Picks picks):
        """Set the next rows of ``lane``, after its last ones are merged; block None: the end."""
        cdef Cursor* c
        if not 0 <= lane < self.lanes:
            raise IndexError(lane)
        c = &self.cursor[lane]
        if c.at < c.n:
            raise ValueError(f"lane {lane} has rows left")
        self.gather()                           # the old block may be freed now
        self._kept[lane] = None if block is None else (block, picks)
        c.at = c.n = 0
        if block is None:
            return
        if block.layout.n != self.layout.n or picks.rows > block.rows:
            raise ValueError("the block has other columns")
        c.col, c.ts = block.col, <const int64_t*>block.col[self.ts]
        c.rows, c.n = picks.as_list(), picks.n
        if c.n:
            c.head = c.ts[c.rows[0]]

    @property
    def hungry(self):
        """The first loaded lane without rows left, -1 if there is none."""
        cdef int i
        for i in range(self.lanes):
            if self._kept[i] is not None and self.cursor[i].at >= self.cursor[i].n:
                return i
        return -1

    def used(self, int lane):
        """Number of merged rows of the last `load` of ``lane``."""
        if not 0 <= lane < self.lanes:
            raise IndexError(lane)
        return self.cursor[lane].at

    def step(self):
        """Merge until a lane is hungry or a block is full; returns the full block, or None."""
        cdef int full
        if self.out is None:
            self.out = self.blank()
        with nogil:
            full = self.merge()
        return self.flush() if full else None

    cdef Staging blank(self):
        # Reuse a block without other references: new memory costs more than the merge itself.
        cdef Staging block
        for block in self._pool:
            if Py_REFCNT(block) == 2:           # references: the pool and this variable
                return block
        block = Staging(self.layout, MERGE_ROWS)
        if len(self._pool) < 4:
            self._pool.append(block)
        return block

    def flush(self):
        """The rows merged so far as a block, or None."""
        self.gather()
        if self.out is None or self.filled == 0:
            return None
        block = self.out
        block.set_rows(self.filled)
        self.out, self.filled = None, 0
        return block

    cdef int merge(self) noexcept nogil:
        # Returns 1 when the block is full.  Copies from one lane while it is before the second earliest.
        cdef Cursor* cursor = self.cursor
        cdef Cursor* c
        cdef int i, best, second
        cdef int64_t limit
        cdef uint32_t pending = self.pending, room = MERGE_ROWS - self.filled
        while pending < room:
            best = second = -1
            for i in range(self.lanes):
                c = cursor + i
                if c.at >= c.n:
                    if c.n == 0:
                        continue
                    self.pending = pending
                    return 0
                if best < 0 or c.head < cursor[best].head:
                    second = best
                    best = i
                elif second < 0 or c.head < cursor[second].head:
                    second = i
            if best < 0:
                self.pending = pending
                return 0
            c = cursor + best
            # Equal times: the lower lane first.
            limit = cursor[second].head if second >= 0 else 0
            while second < 0 or c.head < limit or c.head == limit and best < second:
                self.from_lane[pending] = <uint16_t>best
                self.from_row[pending] = c.rows[c.at]
                pending += 1
                c.at += 1
                if c.at == c.n:
                    break
                c.head = c.ts[c.rows[c.at]]
                if pending == room:
                    break
        self.pending = pending
        return 1

    cdef void gather(self) noexcept nogil:
        cdef uint32_t i, width, n = self.pending
        cdef const uint16_t* lane = self.from_lane
        cdef const uint16_t* row = self.from_row
        cdef const uint8_t** base = self.base
        cdef uint8_t* out
        cdef int k, j
        for k in range(self.layout.n):
            if not self.wanted[k] or n == 0:
                continue
            width = self.layout.column[k].width
            out = self.out.out[k] + <size_t>self.filled * width
            for j in range(self.lanes):
                base[j] = self.cursor[j].col[k] if self.cursor[j].col != NULL else NULL
            if width == 1:
                for i in range(n):
                    out[i] = base[lane[i]][row[i]]
            elif width == 2:
                for i in range(n):
                    (<uint16_t*>out)[i] = (<const uint16_t*>base[lane[i]])[row[i]]
            elif width == 4:
                for i in range(n):
                    (<uint32_t*>out)[i] = (<const uint32_t*>base[lane[i]])[row[i]]
            elif width == 8:
                for i in range(n):
                    (<uint64_t*>out)[i] = (<const uint64_t*>base[lane[i]])[row[i]]
            else:
                for i in range(n):
                    memcpy(out + <size_t>i * width, base[lane[i]] + <size_t>row[i] * width, width)
        self.filled += n
        self.pending = 0
