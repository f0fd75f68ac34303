"""Log scan: run a program over the blocks of a log, with postings and checksums; merge lanes by time."""

from cpython.ref cimport Py_REFCNT
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from c_atomic cimport load_relaxed
from c_block cimport BLOCK_ROWS
from c_layout cimport PAGE
from c_node cimport PEEK, Node
from c_postings cimport Chunk, chunk_max
from confluo_tools.core.block.block cimport Block, Layout, PICK_ALL, Picks, Staging, check_time
from confluo_tools.core.multilog.view_file cimport ViewFile
from confluo_tools.core.multilog.postings cimport Postings
from confluo_tools.core.query.predicate cimport Program
from confluo_tools.core.multilog.segment cimport SegmentBlock
cimport cython

cdef enum:
    MERGE_ROWS = 16384                  # rows of one merged block
    WHOLE_ROWS = 1024                   # fewer rows are copied, so that blocks do not become small


cdef bint _look(void* who, int column, const uint16_t* rows, uint32_t n) noexcept nogil:
    # Verify the checksums of the pages that a program is about to read.
    if n == PEEK:
        return _checked(<SegmentBlock>who, column)
    if rows == NULL:
        return (<SegmentBlock>who).ensure(column)
    return (<SegmentBlock>who).ensure_rows(column, rows, n)


cdef bint _checked(SegmentBlock block, int column) noexcept nogil:
    # Whether all pages of the column have been verified in this process.
    cdef uint64_t at, page, last
    cdef int j = block.segment.shape.source[column]
    if block.segment.crc == NULL or j < 0:
        return True
    if block.segment.packed:
        return block.ready(j)
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
        self.columns = program.layout.n
        self.chunk = <Chunk**>calloc(max(program.layout.n, 1), sizeof(Chunk*))
        self.own = <Chunk*>calloc(max(program.layout.n, 1), sizeof(Chunk))
        if self.chunk == NULL or self.own == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        if self.own != NULL:
            # By a number of our own: the garbage collector may have cleared what other attributes name.
            for i in range(self.columns):
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
            if self.own[column].buffer == NULL or self.own[column].list != (<Postings>postings[column]).list:
                free(self.own[column].buffer)
                self.own[column].list = (<Postings>postings[column]).list
                self.own[column].buffer = <uint8_t*>malloc(chunk_max(self.own[column].list))
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


cdef inline bint _precedes(const Head* a, const Head* b) noexcept nogil:
    return a.time < b.time or a.time == b.time and a.rank < b.rank


def in_time_order(Block block not None, Picks picks, int ts):
    """Whether the times (column ``ts``, i64) of the picked rows (None: all) never go back."""
    cdef const int64_t* times = _times(block, ts)
    cdef const uint16_t* rows
    cdef uint32_t i, n
    cdef bint fine = True
    if picks is not None and picks.rows > block.rows:
        raise ValueError("the picks are of another block")
    with nogil:
        if picks is None or picks.kind == PICK_ALL:
            n = block.rows if picks is None else picks.n
            fine = _rising(times, n)
        else:
            rows, n = picks.as_list(), picks.n
            for i in range(1, n):
                if times[rows[i]] < times[rows[i - 1]]:
                    fine = False
                    break
    return fine


def times_back(Block block not None, Picks picks, int ts, int64_t latest):
    """(number of picked rows, None: of all, that are earlier than a row before them or ``latest``, the latest time)."""
    cdef const int64_t* times = _times(block, ts)
    cdef const uint16_t* rows
    cdef uint32_t i
    cdef uint64_t back = 0
    if picks is not None and picks.rows > block.rows:
        raise ValueError("the picks are of another block")
    with nogil:
        if picks is None:
            for i in range(block.rows):
                back += times[i] < latest
                latest = max(latest, times[i])
        else:
            rows = picks.as_list()
            for i in range(picks.n):
                back += times[rows[i]] < latest
                latest = max(latest, times[rows[i]])
    return back, latest


def between_times(Block block not None, Picks picks not None, int ts, int64_t lo, int64_t hi):
    """The picked rows with lo <= time <= hi."""
    cdef const int64_t* times = _times(block, ts)
    cdef const uint16_t* rows = picks.as_list()
    cdef Picks out = Picks()
    cdef uint32_t i, n = 0
    if picks.rows > block.rows:
        raise ValueError("the picks are of another block")
    with nogil:
        for i in range(picks.n):
            out.list[n] = rows[i]
            n += lo <= times[rows[i]] <= hi
        out.set_list(picks.rows, n)
    return out


def sample_times(Block block not None, Picks picks not None, int ts, uint64_t first, uint64_t step):
    """(least, largest, every ``step``-th from the ``first``) of the times of the picked rows; needs a row."""
    cdef const int64_t* times = _times(block, ts)
    cdef const uint16_t* rows = picks.as_list()
    cdef uint32_t i
    cdef int64_t lo, hi
    if picks.n == 0 or picks.rows > block.rows or step == 0:
        raise ValueError("there are no rows")
    lo = hi = times[rows[0]]
    with nogil:
        for i in range(picks.n):
            lo, hi = min(lo, times[rows[i]]), max(hi, times[rows[i]])
    return lo, hi, [times[rows[i]] for i in range(first, picks.n, step)]


cdef const int64_t* _times(Block block, int ts) except NULL:
    check_time(block.layout, ts)
    return <const int64_t*>block.col[ts]


def split_by_time(Block block not None, int ts, uint32_t start, int64_t cut):
    """(first row from ``start`` on that is not before ``cut``, least time from that row on).

    (block.rows, the largest i64) if there is none.
    """
    cdef const int64_t* times = _times(block, ts)
    cdef uint32_t row = start, i
    cdef int64_t least = 0x7fffffffffffffff
    with nogil:
        while row < block.rows and times[row] < cut:
            row += 1
        for i in range(row, block.rows):
            least = min(least, times[i])
    return min(row, block.rows), least


cdef bint _rising(const int64_t* times, uint32_t n) noexcept nogil:
    # In pieces without a branch inside, so that the compiler can use wide instructions.
    cdef uint32_t at = 1, i, end
    cdef int64_t back
    while at < n:
        end, back = min(at + 512, n), 0
        for i in range(at, end):
            back |= times[i] < times[i - 1]
        if back:
            return False
        at = end
    return True


cdef void _sort(uint16_t* rows, uint32_t n, const int64_t* times, uint16_t* scratch) noexcept nogil:
    # Stable: merges the runs that exist already, so rows that are nearly in order cost one pass or two.
    cdef uint16_t* source = rows
    cdef uint16_t* target = scratch
    cdef uint32_t start, middle, end, i, j, k
    cdef bint more = True
    while more:
        more, start = False, 0
        while start < n:
            middle = start + 1
            while middle < n and times[source[middle]] >= times[source[middle - 1]]:
                middle += 1
            end = middle
            if end < n:
                end += 1
                while end < n and times[source[end]] >= times[source[end - 1]]:
                    end += 1
            i, j = start, middle
            for k in range(start, end):
                if i < middle and (j >= end or times[source[i]] <= times[source[j]]):
                    target[k] = source[i]
                    i += 1
                else:
                    target[k] = source[j]
                    j += 1
            more = more or start > 0 or end < n
            start = end
        source, target = target, source
    if source != rows:
        memcpy(rows, source, <size_t>n * 2)


@cython.final
cdef class LaneMerger:
    """Merges ``lanes`` streams of rows by the time in column ``ts``; ties by the rank of the rows that were loaded.

    `load` sets the next rows of a lane, which are put in the order of time if they are not; `step` merges until it
    needs more rows or a block is full.  Rows of one lane that are loaded later must not be earlier.
    ``columns``: numbers of the columns to copy; the others stay zero.
    """

    def __cinit__(self, Layout layout not None, int lanes, int ts, columns=None):
        cdef int i
        check_time(layout, ts)
        if not 1 <= lanes <= 65535:
            raise ValueError(f"{lanes} lanes")
        self.layout, self.lanes, self.ts = layout, lanes, ts
        self._kept, self._pool = [None] * lanes, []
        self._hungry = []
        self.cursor = <Cursor*>calloc(lanes, sizeof(Cursor))
        self.heap = <Head*>calloc(lanes, sizeof(Head))
        self.from_lane = <uint16_t*>calloc(MERGE_ROWS, 2)
        self.from_row = <uint16_t*>calloc(MERGE_ROWS, 2)
        self.wanted = <bint*>calloc(layout.n, sizeof(bint))
        self.base = <const uint8_t**>calloc(lanes, sizeof(uint8_t*))
        if (self.cursor == NULL or self.from_lane == NULL or self.from_row == NULL or self.wanted == NULL
                or self.base == NULL or self.heap == NULL):
            raise MemoryError
        for i in range(layout.n) if columns is None else columns:
            if not 0 <= i < layout.n:
                raise IndexError(i)
            self.wanted[i] = True

    def __dealloc__(self):
        free(self.cursor)
        free(self.heap)
        free(self.from_lane)
        free(self.from_row)
        free(self.wanted)
        free(self.base)
        free(self.scratch)

    def load(self, int lane, Block block, Picks picks, rank=None):
        """Set the next rows of ``lane``, after its last ones are merged; block None: the end.

        ``rank`` decides rows of equal time, the lower first; by default the lanes in their order.
        """
        cdef Cursor* c
        if not 0 <= lane < self.lanes:
            raise IndexError(lane)
        c = &self.cursor[lane]
        if c.at < c.n:
            raise ValueError(f"lane {lane} has rows left")
        self.gather()                           # the old block may be freed now
        if self._hungry and self._hungry[len(self._hungry) - 1] == lane:
            self._hungry.pop()
        elif lane in self._hungry:
            self._hungry.remove(lane)
        self._kept[lane] = None if block is None else (block, picks)
        c.at = c.n = 0
        if block is None:
            return
        if block.layout.n != self.layout.n or picks.rows > block.rows:
            raise ValueError("the block has other columns")
        if picks.n == 0:
            self._hungry.append(lane)
            return
        c.col, c.ts = block.col, <const int64_t*>block.col[self.ts]
        c.rank = <uint64_t>lane << 48 if rank is None else rank
        c.whole = in_time_order(block, picks, self.ts)
        c.rows = picks.as_list()
        if not c.whole:
            if self.scratch == NULL:
                self.scratch = <uint16_t*>malloc(BLOCK_ROWS * 2)
                if self.scratch == NULL:
                    raise MemoryError
            _sort(<uint16_t*>c.rows, picks.n, c.ts, self.scratch)
        c.n = picks.n
        c.head = c.ts[c.rows[0]]
        self.push(Head(c.head, c.rank, lane))

    @property
    def hungry(self):
        """A loaded lane without rows left, -1 if there is none."""
        return self._hungry[len(self._hungry) - 1] if self._hungry else -1

    def step(self):
        """Merge until a lane is hungry or a block is full; returns the full block, or None."""
        cdef int full, lane = -1
        if self._hungry:
            return None
        if self.out is None:
            self.out = self.blank()
        with nogil:
            full = self.merge(&lane)
        if lane >= 0:
            self._hungry.append(lane)
        return self.flush() if full else None

    @property
    def whole(self):
        """The lane of the next rows, if all that are loaded of it come next as they are and are many; or -1."""
        cdef const Cursor* c
        cdef const Head* second
        cdef Head last
        if self._hungry or self.heaped == 0:
            return -1
        c = self.cursor + self.heap[0].lane
        if c.at or not c.whole or (c.n < WHOLE_ROWS and self.lanes > 1):
            return -1
        second, last = self.second(), Head(c.ts[c.rows[c.n - 1]], c.rank, 0)
        return self.heap[0].lane if second == NULL or _precedes(&last, second) else -1

    def take(self, int lane):
        """The (block, picks) of the `whole` lane, which is hungry then.  `flush` comes before."""
        if self.heaped == 0 or lane != self.heap[0].lane or self.pending or self.filled:
            raise ValueError(f"lane {lane} is not next")
        cdef Picks picks = self._kept[lane][1]
        self.cursor[lane].at = self.cursor[lane].n
        self.pop()
        self._hungry.append(lane)
        if picks.n == picks.rows:
            picks.set_all(picks.rows)
        return self._kept[lane]

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

    # A heap of the lanes that have rows, the earliest head first.

    cdef void push(self, Head head) noexcept nogil:
        cdef int at = self.heaped, above
        self.heaped += 1
        while at:
            above = (at - 1) >> 1
            if not _precedes(&head, self.heap + above):
                break
            self.heap[at] = self.heap[above]
            at = above
        self.heap[at] = head

    cdef void pop(self) noexcept nogil:
        self.heaped -= 1
        if self.heaped:
            self.sink(self.heap[self.heaped])

    cdef void sink(self, Head head) noexcept nogil:
        # Put a new head in the place of the first.
        cdef int at = 0, below = 1
        while below < self.heaped:
            if below + 1 < self.heaped and _precedes(self.heap + below + 1, self.heap + below):
                below += 1
            if not _precedes(self.heap + below, &head):
                break
            self.heap[at] = self.heap[below]
            at, below = below, 2 * below + 1
        self.heap[at] = head

    cdef const Head* second(self) noexcept nogil:
        # The second earliest head, or NULL.
        if self.heaped < 2:
            return NULL
        return self.heap + 2 if self.heaped > 2 and _precedes(self.heap + 2, self.heap + 1) else self.heap + 1

    cdef int merge(self, int* hungry) noexcept nogil:
        # Returns 1 when the block is full.  Copies from one lane while it is before the second earliest.
        cdef Cursor* c
        cdef const Head* second
        cdef int best
        cdef int64_t limit
        cdef uint32_t at, pending = self.pending, room = MERGE_ROWS - self.filled
        while pending < room:
            if self.heaped == 0:
                self.pending = pending
                return 0
            best, second = self.heap[0].lane, self.second()
            c = self.cursor + best
            at = c.at
            if second == NULL:
                limit = 0x7fffffffffffffff
            else:                               # equal times: the lower rank first
                limit = second.time - (second.rank < c.rank)
            while True:
                self.from_lane[pending] = <uint16_t>best
                self.from_row[pending] = c.rows[at]
                pending += 1
                at += 1
                if at == c.n:
                    break
                c.head = c.ts[c.rows[at]]
                if c.head > limit or pending == room:
                    break
            c.at = at
            if at == c.n:
                self.pop()
                self.pending, hungry[0] = pending, best
                return pending == room
            self.sink(Head(c.head, c.rank, best))
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
