"""Rate-based sampling of five-tuples: Algorithm 1 of DETER (section 3.3); confluo_tools/replay/sampling.py explains it.

A row is kept when its time does not fit an even rate since the row that was kept before; so the times of all rows are
known within a threshold.  Kept rows of a five-tuple are more than a threshold apart: 1 ms means at most 1000 a second.
The loops over rows are in rate_rows.h.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, UINT64_MAX, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from c_gather cimport gather
from c_hash_table cimport ENTRY_HEAD, HashTable, lru_free, lru_init, lru_insert, lru_number, lru_value
from c_sampling cimport UNBOUNDED
from confluo_tools.core.block.block cimport PICK_ALL, Block, Layout, Picks, check_time, column_number
from confluo_tools.core.stream.run_rows cimport RunRows
from confluo_tools.core.stream.stage cimport StreamStage
import os
cimport cython

cdef extern from *:
    """
    #define CFL_LONGEST_RUN (1LL << 50)     /* with its threshold below 2^51: quotients of doubles are exact */
    """
    const int64_t LONGEST "CFL_LONGEST_RUN"

cdef extern from "rate_rows.h" nogil:
    int rate_wants_wide
    void rate_fetch(const uint8_t* column, size_t size) noexcept
    void rate_keys(rate_batch* b, uint32_t n, uint64_t seed0, uint64_t seed1, const uint64_t* slots,
                   int shift) noexcept
    void rate_guess(rate_batch* b, uint32_t n, const uint64_t* slots, uint64_t mask, int shift,
                    const rate_flow* flows) noexcept
    uint32_t rate_take(rate_batch* b, uint32_t start, uint32_t n, rate_flow* flows) noexcept
    void rate_store(rate_batch* b, uint32_t* packets, int64_t* step) noexcept

cdef enum:
    MAX_FLOWS = 1 << 24
    CLEAR = 100_000_000                 # ns after which rows are given though older ones wait


def use_wide(bint wanted):
    """Take 8 rows at a time with AVX-512 if the processor has it, or do not."""
    global rate_wants_wide
    rate_wants_wide = wanted


@cython.final
cdef class RateSampleStage(StreamStage):
    """Gives the first row of each run: rows of one five-tuple at an even rate, within ``threshold`` ns.

    ``out``: layout of the rows given: the columns of ``layout``, then run_packets (u32) and run_step (i64, ns): the
    i-th row of the run, from 0, was at about ts + i * run_step.  A run lasts at most ``longest`` ns; the sum of
    run_packets is the number of rows taken.  Of more than ``most`` flows those not seen for long end their run.
    IPv6 addresses are compared by the hash that their column has.  Rows are given in the order in which they came,
    but those of runs that last are waited for 100 ms only.
    """

    def __init__(self, Layout layout not None, Layout out not None, int time, int64_t threshold, int64_t longest,
                 uint32_t most):
        cdef uint64_t seed[2]
        cdef bytes secret = os.urandom(16)
        cdef int i
        super().__init__(layout)
        if not 0 <= threshold <= LONGEST or not 0 < longest <= LONGEST or not 0 < most <= MAX_FLOWS:
            raise ValueError(f"runs of {longest} ns within {threshold} ns of {most} flows")
        self.threshold, self.longest = threshold, longest
        check_time(layout, time)
        self.source[0], self.width[0] = time, 8
        flow = [("src_ip", 4), ("dst_ip", 4), ("src_port", 2), ("dst_port", 2), ("proto", 1)]
        for i, (name, width) in enumerate(flow, 1):
            self.source[i], self.width[i] = column_number(layout, name, width, True), width
        if self.rows is not None:
            raise ValueError("made twice")
        self.rows = RunRows(layout, out, most)
        self.batch = <rate_batch*>calloc(1, sizeof(rate_batch))
        self.begun, self.copies = <uint16_t*>malloc(RATE_AHEAD * 2), <uint8_t*>malloc(6 * RATE_AHEAD * 8)
        memcpy(seed, <const char*>secret, 16)
        if (self.batch == NULL or self.begun == NULL or self.copies == NULL
                or not lru_init(&self.flows, 2, sizeof(rate_flow) - ENTRY_HEAD - 16, most, seed)):
            raise MemoryError
        self.batch.latest, self.batch.threshold, self.batch.reach = INT64_MIN, threshold, longest + threshold
        # A row without a guess is compared with the first entry, which must not be like a row before it is used.
        (<rate_flow*>self.flows.entries).key[1] = UINT64_MAX
        self.flows.drop, self.flows.context = evict, <void*>self

    def __dealloc__(self):
        self.flows.drop = NULL
        lru_free(&self.flows)
        free(self.batch)
        free(self.begun)
        free(self.copies)

    @property
    def evicted(self):
        """Flows that others displaced."""
        return self.flows.evicted

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef bint together = picks.kind == PICK_ALL
        cdef const uint16_t* rows = picks.as_list()
        cdef uint32_t start = 0, n, begun
        self.now = now
        while start < picks.n:
            n = min(picks.n - start, <uint32_t>RATE_AHEAD)
            self.make_room()
            self.load(block, rows + start, n, together)
            if together:
                self.fetch(block, rows[start] + n, min(picks.n - start - n, <uint32_t>RATE_AHEAD))
            begun = self.sample(rows + start, n)
            self.rows.begin(block.col, self.begun, begun)
            start += n
        self.give_ended_parts()
        return self.stopped

    cdef void load(self, Block block, const uint16_t* rows, uint32_t n, bint together) noexcept nogil:
        """The columns of rows one after the other, and the flows that they probably have."""
        cdef HashTable* index = &self.flows.index
        cdef rate_batch* b = self.batch
        b.time = <const int64_t*>self.column(block, 0, rows, n, together)
        b.source = <const uint32_t*>self.column(block, 1, rows, n, together)
        b.target = <const uint32_t*>self.column(block, 2, rows, n, together)
        b.source_port = <const uint16_t*>self.column(block, 3, rows, n, together)
        b.target_port = <const uint16_t*>self.column(block, 4, rows, n, together)
        b.proto = self.column(block, 5, rows, n, together)
        rate_keys(b, n, index.seed[0], index.seed[1], index.slots, index.shift)
        rate_guess(b, n, index.slots, index.mask, index.shift, <rate_flow*>self.flows.entries)

    cdef void fetch(self, Block block, uint32_t row, uint32_t n) noexcept nogil:
        """The columns of the rows that are next come while those before them are sampled."""
        cdef int i
        for i in range(6):
            rate_fetch(block.col[self.source[i]] + <size_t>row * self.width[i], <size_t>n * self.width[i])

    cdef const uint8_t* column(self, Block block, int i, const uint16_t* rows, uint32_t n,
                               bint together) noexcept nogil:
        cdef int width = self.width[i]
        cdef uint8_t* copy
        if together:
            return block.col[self.source[i]] + <size_t>rows[0] * width
        copy = self.copies + i * RATE_AHEAD * 8
        gather(copy, block.col[self.source[i]], rows, n, width)
        return copy

    cdef uint32_t sample(self, const uint16_t* rows, uint32_t n) noexcept nogil:
        """Take the times of the rows; `begun` are those that begin a run.  Returns how many."""
        cdef rate_batch* b = self.batch
        cdef uint32_t first = self.rows.next_row(), at = 0, i
        b.ends, b.next_row = 0, first
        while True:
            b.clock = self.flows.clock
            at = rate_take(b, at, n, <rate_flow*>self.flows.entries)
            self.flows.clock = b.clock
            if at == n:
                break
            if self.insert(at) == NULL:
                self.dropped += 1
                at += 1
        rate_store(b, self.rows.packets, self.rows.step)
        for i in range(b.ends):
            self.begun[i] = rows[b.begun[i]]
            self.rows.owner[first + i] = b.guess[b.begun[i]]
        return b.ends

    cdef rate_flow* insert(self, uint32_t i) noexcept nogil:
        """The flow of a row that was not guessed, now the guess of it and of later rows; NULL: no memory."""
        cdef bint fresh
        cdef rate_batch* b = self.batch
        cdef void* value = lru_insert(&self.flows, b.key[i], b.hash[i], &fresh)
        cdef rate_flow* flow
        if value == NULL:
            return NULL
        b.guess[i] = lru_number(&self.flows, value)
        flow = flow_of(value)
        if fresh:
            self.without_run(flow)
        return flow

    cdef void end_run(self, rate_flow* flow) noexcept nogil:
        self.rows.packets[flow.row] = flow.count
        self.rows.step[flow.row] = (flow.low + flow.high) >> 1 if flow.count > 1 else 0
        self.without_run(flow)

    cdef void without_run(self, rate_flow* flow) noexcept nogil:
        """No row fits a step from 1 to 0: the next one begins a run."""
        flow.time, flow.low, flow.high, flow.count, flow.row = 0, 1, 0, 1, self.rows.nowhere

    # -- rows of runs that have ended

    cdef void make_room(self) noexcept nogil:
        """For as many rows as are looked up together, and one more."""
        cdef uint32_t first, i
        while self.rows.room() <= <uint32_t>RATE_AHEAD:
            self.rows.open_part()
            if self.rows.crowded(self.flows.index.count):
                if self.rows.look(self.rows.oldest):
                    self.ship()
                first = self.rows.next_row()
                for i in range(first, first + self.rows.move_open()):
                    flow_of(lru_value(&self.flows, self.rows.owner[i])).row = i
                self.rows.free_oldest()

    cdef void give_ended_parts(self) noexcept nogil:
        while self.rows.oldest_ended():
            if self.rows.look(self.rows.oldest):
                self.ship()
            self.rows.free_oldest()

    cdef void give_ended_rows(self) noexcept nogil:
        """Also those that came after rows that wait."""
        cdef uint32_t part = self.rows.oldest
        self.give_ended_parts()
        part = self.rows.oldest
        while True:
            if self.rows.look(part):
                self.ship()
            if part == self.rows.newest:
                break
            part = self.rows.part[part].next

    cdef void ship(self) noexcept nogil:
        if self.give(self.rows.view, self.rows.picks, self.now):
            self.stopped = True

    cdef void end_runs(self, int64_t before_time) noexcept nogil:
        """End the runs that began before this time."""
        cdef rate_flow* flow
        cdef uint32_t i
        for i in range(self.flows.index.count):
            flow = flow_of(lru_value(&self.flows, i))
            if flow.row != self.rows.nowhere and flow.time < before_time:
                self.end_run(flow)

    cdef int tick(self, int64_t now) noexcept nogil:
        # A run that is old enough would not go on with its next row: to end it now changes no row.
        cdef bint sweep = now - self.swept >= self.longest
        if sweep:
            self.swept = now
            self.end_runs(INT64_MAX if self.taken == self.seen else max(self.batch.latest, -UNBOUNDED) - self.longest)
            self.seen = self.taken
        if sweep or now - self.cleared >= CLEAR:
            self.now, self.cleared = now, now
            self.give_ended_rows()
        return 1 if self.stopped else StreamStage.tick(self, now)

    cdef int finish(self) noexcept nogil:
        self.end_runs(INT64_MAX)
        self.give_ended_rows()
        return 1 if self.stopped else StreamStage.finish(self)


cdef inline rate_flow* flow_of(void* value) noexcept nogil:
    """The entry that has this value."""
    return <rate_flow*>(<uint8_t*>value - ENTRY_HEAD - 16)


cdef void evict(void* context, void* value) noexcept nogil:
    (<RateSampleStage>context).end_run(flow_of(value))
