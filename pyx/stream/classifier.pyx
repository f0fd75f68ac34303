"""The classifier of a lane: a row goes to the first flow that it matches, and there to the worker of its five-tuple."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from c_atomic cimport add32, load_acquire32, store_release32
from c_bits cimport popcount64
from c_block cimport BLOCK_ROWS, MASK_WORDS, U32
from c_gather cimport gather
from confluo_tools.core.block.block cimport Block, Layout, PICK_ALL, Picks
from confluo_tools.core.kernel.ring cimport BlockSink, STOPPED
from confluo_tools.core.query.predicate cimport Program
from confluo_tools.core.stream.batch_queue cimport BATCH_HEAD, Batch, BatchQueue
from confluo_tools.core.stream.flow_worker cimport FlowWorker
from confluo_tools.core.stream.shared_windows cimport WindowClock
from confluo_tools.core.stream.stage cimport StreamStage
cimport cython

cdef enum:
    MAX_WORKERS = 256
    BATCH_ROWS = 1024                   # at most; blocks of a log have 64 times as many
    PAUSE = 50                          # ms between two looks whether waiting should end


@cython.final
cdef class FlowRoute(StreamStage):
    """The way of one flow from lane ``lane`` to ``workers``: rows of ``layout`` that hold for ``program`` (None: all).

    They pass the stages from ``first`` on in the lane, which must lead to this one.  ``taken``: rows that came from
    there; ``given``: of them, put into a queue; ``dropped``: lost because a queue was full.

    A batch has the columns of ``batch``, found by name.  ``number``: of the flow.  ``goes_on``: its rows may go to
    later flows as well.  ``hash_column``: a u32 column of the block, its value chooses the worker; -1: they take turns.
    ``clock``: of the windows; rows come from its `WindowLane`.
    Raises ValueError when a column is missing or has another type.
    """

    def __cinit__(self, Layout layout not None, Layout batch not None, int number, list workers not None, int lane, *,
                  Program program=None, bint goes_on=False, int hash_column=-1, StreamStage first=None,
                  WindowClock clock=None):
        cdef size_t row = 0, room
        cdef int i, j
        self.program, self.goes_on, self.number, self.hash_column = program, goes_on, number, hash_column
        self.clock = clock
        self.first, self.takes_all = first, program is None and first is None
        if not 0 < len(workers) <= MAX_WORKERS:
            raise ValueError(f"{len(workers)} workers")
        if hash_column >= 0 and (hash_column >= layout.n or layout.column[hash_column].code != U32):
            raise ValueError("the hash is not a u32 column")
        if program is not None and program.layout is not layout:
            raise ValueError("the program is for other columns")
        self.queues = [(<FlowWorker?>w).queues[lane] for w in workers]
        self.workers, self.columns = <uint32_t>len(workers), batch.n
        self.queue = <void**>calloc(self.workers, sizeof(void*))
        self.source = <int*>calloc(max(batch.n, 1), sizeof(int))
        self.width = <uint32_t*>calloc(max(batch.n, 1), sizeof(uint32_t))
        if self.queue == NULL or self.source == NULL or self.width == NULL:
            raise MemoryError
        room = ~<size_t>0
        for i in range(<int>self.workers):
            self.queue[i] = <void*>self.queues[i]
            room = min(room, (<BatchQueue>self.queues[i]).size // 4)
        for i in range(batch.n):
            j = layout.get(batch.names[i])
            if (j < 0 or layout.column[j].code != batch.column[i].code
                    or layout.column[j].width != batch.column[i].width):
                raise ValueError(f"column {batch.names[i]} is missing, or has another type")
            self.source[i], self.width[i] = j, batch.column[i].width
            row += batch.column[i].width
        room = room - BATCH_HEAD - 64 * <size_t>batch.n if room > BATCH_HEAD + 64 * <size_t>batch.n else 0
        if room < row:
            raise ValueError("the queues are too small for these rows")
        self.most = <uint32_t>min(<size_t>BATCH_ROWS, room // max(row, <size_t>1))

    def __init__(self, Layout layout not None, *args, **kwargs):
        super().__init__(layout)

    def __dealloc__(self):
        free(self.queue)
        free(self.source)
        free(self.width)

    cdef uint64_t send(self, BatchQueue queue, Block block, const uint16_t* rows, uint32_t start, uint32_t n,
                       int64_t now) noexcept nogil:
        """Put ``n`` rows from ``start`` on into the queue: of those in ``rows``, or (NULL) of all.

        Returns how many were lost: the queue was full.
        """
        cdef Batch* batch
        cdef uint8_t* at
        cdef uint32_t part
        cdef size_t size
        cdef int i
        while n:
            part = n if n < self.most else self.most
            size = BATCH_HEAD
            for i in range(self.columns):
                size += (<size_t>part * self.width[i] + 63) & ~<size_t>63
            batch = queue.reserve(size)
            while batch == NULL:
                if not self.wait or load_acquire32(self.ending):
                    return n
                queue.emptied.prepare()
                batch = queue.reserve(size)
                if batch != NULL:
                    queue.emptied.cancel()
                else:
                    queue.emptied.sleep(PAUSE)
                    batch = queue.reserve(size)
            batch.now, batch.flow, batch.rows = now, self.number, part
            if self.clock is not None:
                batch.window = self.clock.at
                add32(&self.clock.pending[self.clock.at], part)
            at = <uint8_t*>batch + BATCH_HEAD
            for i in range(self.columns):
                if rows == NULL:
                    memcpy(at, block.col[self.source[i]] + <size_t>start * self.width[i], <size_t>part * self.width[i])
                else:
                    gather(at, block.col[self.source[i]], rows + start, part, self.width[i])
                at += (<size_t>part * self.width[i] + 63) & ~<size_t>63
            queue.commit(batch)
            start += part
            n -= part
        return 0

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef uint32_t[MAX_WORKERS] end
        cdef const uint16_t* rows
        cdef const uint32_t* hashes
        cdef uint64_t lost = 0
        cdef uint32_t n = picks.n, i, w, at
        rows = NULL if picks.kind == PICK_ALL else picks.as_list()
        if self.workers == 1 or self.hash_column < 0:
            w = self.turn
            self.turn = w + 1 if w + 1 < self.workers else 0
            lost = self.send(<BatchQueue>self.queue[w], block, rows, 0, n, now)
        else:
            rows = picks.as_list()
            hashes = <const uint32_t*>block.col[self.hash_column]
            memset(end, 0, self.workers * sizeof(uint32_t))
            for i in range(n):
                end[hashes[rows[i]] % self.workers] += 1
            at = 0
            for w in range(self.workers):
                i = end[w]
                end[w] = at
                at += i
            for i in range(n):
                w = hashes[rows[i]] % self.workers
                self.order[end[w]] = rows[i]
                end[w] += 1
            at = 0
            for w in range(self.workers):
                lost += self.send(<BatchQueue>self.queue[w], block, self.order, at, end[w] - at, now)
                at = end[w]
        self.dropped += lost
        self.given += n - lost
        return 0


@cython.final
cdef class Classifier(BlockSink):
    """Sends rows of ``layout`` to flows, see `use`.  ``wait``: for room in a full queue; otherwise rows are dropped.

    Use it from one thread; `stop` from any.
    """

    def __cinit__(self, Layout layout not None, *, bint wait):
        self.layout, self.wait, self.picks, self.routes = layout, wait, Picks(), []
        self.rest = <uint64_t*>calloc(2 * MASK_WORDS, sizeof(uint64_t))
        self.order = <uint16_t*>malloc(BLOCK_ROWS * sizeof(uint16_t))
        if self.rest == NULL or self.order == NULL:
            raise MemoryError
        self.some = self.rest + MASK_WORDS

    def __dealloc__(self):
        free(self.rest)
        free(self.order)
        free(self.route)

    def use(self, list routes not None):
        """Each row goes to the first FlowRoute of ``routes`` that takes it.  Not while rows come."""
        cdef FlowRoute flow
        cdef int i
        cdef void** route = <void**>calloc(max(<int>len(routes), 1), sizeof(void*))
        if route == NULL:
            raise MemoryError
        for i in range(<int>len(routes)):
            flow = <FlowRoute?>routes[i]
            flow.order, flow.ending, flow.wait = self.order, &self.ending, self.wait
            if flow.clock is not None:
                flow.clock.ending, flow.clock.wait = &self.ending, self.wait
            route[i] = <void*>flow
        free(self.route)
        self.route, self.n_routes, self.routes = route, <int>len(routes), routes

    cdef int put(self, Block block) noexcept nogil:
        """All rows of a block."""
        self.picks.set_all(block.rows)
        return self.split(block, self.picks)

    cdef int split(self, Block block, Picks given) noexcept nogil:
        """The ``given`` rows, which may be `picks` itself."""
        cdef uint32_t words = (block.rows + 63) >> 6, w, none = 0
        cdef timespec t
        cdef int64_t now
        cdef int i
        clock_gettime(CLOCK_MONOTONIC, &t)
        now = <int64_t>t.tv_sec * 1_000_000_000 + t.tv_nsec
        self.taken += given.n
        if given.n == 0:
            return 0
        if self.n_routes == 1 and (<FlowRoute>self.route[0]).takes_all:
            (<FlowRoute>self.route[0]).feed(block, given, now)
            return STOPPED if load_acquire32(&self.ending) else 0
        memcpy(self.rest, given.as_mask(), words * sizeof(uint64_t))
        memset(self.some, 0, words * sizeof(uint64_t))
        for i in range(self.n_routes):
            self.offer(<FlowRoute>self.route[i], block, now)
        for w in range(words):
            none += popcount64(self.rest[w] & ~self.some[w])
        self.unmatched += none
        return STOPPED if load_acquire32(&self.ending) else 0

    cdef void offer(self, FlowRoute route, Block block, int64_t now) noexcept nogil:
        """Give a flow those of the rest that it matches."""
        cdef uint32_t words = (block.rows + 63) >> 6, w
        if route.program is None:
            memcpy(self.picks.words, self.rest, words * sizeof(uint64_t))
        else:
            route.program.run(block, self.picks)
            self.picks.as_mask()
            for w in range(words):
                self.picks.words[w] = self.picks.words[w] & self.rest[w]
        self.picks.count_mask(block.rows)
        for w in range(words):
            self.some[w] |= self.picks.words[w]
        if not route.goes_on:
            for w in range(words):
                self.rest[w] &= ~self.picks.words[w]
        if route.first is None:
            route.feed(block, self.picks, now)
        else:
            route.first.feed(block, self.picks, now)

    def write(self, Block block not None, Picks picks=None):
        """The picked rows of a block, or all.  False when it was stopped.  Raises ValueError for other columns."""
        cdef int stopped
        if block.layout is not self.layout:
            raise ValueError("the block has other columns")
        if picks is None:
            picks = self.picks
            picks.set_all(block.rows)
        with nogil:
            stopped = self.split(block, picks)
        return not stopped

    def stop(self):
        """Do not wait for room any more."""
        store_release32(&self.ending, 1)
