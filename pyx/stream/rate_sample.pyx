"""Rate-based sampling of five-tuples: Algorithm 1 of DETER (section 3.3); confluo_tools/replay/sampling.py explains it.

A row is kept when its time does not fit an even rate since the row that was kept before; so the times of all rows are
known within a threshold.  Kept rows of a five-tuple are more than a threshold apart: 1 ms means at most 1000 a second.

What is random in traffic must not be a branch: whether a row is kept decides what is stored, not what is run.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from c_block cimport I64, U16, U32, U8
from c_hash_table cimport (
    NOT_FOUND, hash2, lru_free, lru_guess, lru_hit2, lru_init, lru_insert, lru_number,
    lru_prefetch_slot, lru_value)
from c_bits cimport prefetch
from c_sampling cimport MAX_COUNT, UNBOUNDED
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.stream.run_rows cimport RunRows
from confluo_tools.core.stream.stage cimport StreamStage
import os
cimport cython

cdef extern from *:
    """
    #define CFL_LONGEST_RUN (1LL << 51)     /* with its threshold: quotients of doubles are exact below 2^53 */
    #define CFL_MAX_DIVIDEND ((1LL << 53) - 1)
    """
    const int64_t LONGEST "CFL_LONGEST_RUN"
    const int64_t MAX_DIVIDEND "CFL_MAX_DIVIDEND"

cdef enum:
    AHEAD = 256                         # rows looked up together
    MAX_FLOWS = 1 << 24
    CLEAR = 100_000_000                 # ns after which rows are given though older ones wait


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
        super().__init__(layout)
        if not 0 <= threshold <= LONGEST or not 0 < longest <= LONGEST or not 0 < most <= MAX_FLOWS:
            raise ValueError(f"runs of {longest} ns within {threshold} ns of {most} flows")
        self.threshold, self.longest = threshold, longest
        if not 0 <= time < layout.n or layout.column[time].code != I64 or layout.column[time].count != 1:
            raise ValueError(f"column {time} is not a time")
        self.time = time
        self.source, self.target = column(layout, "src_ip", U32), column(layout, "dst_ip", U32)
        self.source_port, self.target_port = column(layout, "src_port", U16), column(layout, "dst_port", U16)
        self.proto = column(layout, "proto", U8)
        self.latest = INT64_MIN
        if self.rows is not None:
            raise ValueError("made twice")
        self.rows = RunRows(layout, out, most)
        self.key, self.hash = <uint64_t*>malloc(AHEAD * 16), <uint64_t*>malloc(AHEAD * 8)
        self.guess, self.begun = <uint32_t*>malloc(AHEAD * 4), <uint16_t*>malloc((AHEAD + 1) * 2)
        memcpy(seed, <const char*>secret, 16)
        if (self.key == NULL or self.hash == NULL or self.guess == NULL or self.begun == NULL
                or not lru_init(&self.flows, 2, sizeof(SampledFlow), most, seed)):
            raise MemoryError
        self.flows.drop, self.flows.context = evict, <void*>self

    def __dealloc__(self):
        self.flows.drop = NULL
        lru_free(&self.flows)
        free(self.key)
        free(self.hash)
        free(self.guess)
        free(self.begun)

    @property
    def evicted(self):
        """Flows that others displaced."""
        return self.flows.evicted

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef const uint16_t* rows = picks.as_list()
        cdef FiveTuples packets
        cdef uint32_t start = 0, n, begun
        packets.time = <const int64_t*>block.col[self.time]
        packets.source = <const uint32_t*>block.col[self.source]
        packets.target = <const uint32_t*>block.col[self.target]
        packets.source_port = <const uint16_t*>block.col[self.source_port]
        packets.target_port = <const uint16_t*>block.col[self.target_port]
        packets.proto = block.col[self.proto]
        self.now = now
        while start < picks.n:
            n = min(picks.n - start, <uint32_t>AHEAD)
            self.make_room()
            self.find(&packets, rows + start, n)
            begun = self.sample(packets.time, rows + start, n)
            self.rows.begin(block.col, self.begun, begun)
            start += n
        self.give_ended_parts()
        return self.stopped

    cdef void find(self, const FiveTuples* packets, const uint16_t* rows, uint32_t n) noexcept nogil:
        """Where the flows of rows probably are, so that their misses of the cache overlap."""
        cdef uint64_t* key = self.key
        cdef uint64_t* hash = self.hash
        cdef int64_t latest = self.latest, t
        cdef uint32_t i, k
        for i in range(n):
            k = rows[i]
            key[2 * i] = <uint64_t>packets.source[k] << 32 | packets.target[k]
            key[2 * i + 1] = (<uint64_t>packets.source_port[k] << 32 | <uint64_t>packets.target_port[k] << 16
                              | packets.proto[k])
            hash[i] = hash2(&self.flows.index, key[2 * i], key[2 * i + 1])
            lru_prefetch_slot(&self.flows, hash[i])
            t = packets.time[k]
            latest = t if t > latest else latest
        self.latest = latest
        for i in range(n):
            self.guess[i] = lru_guess(&self.flows, hash[i])
            if self.guess[i] != NOT_FOUND:
                prefetch(self.flows.entries + self.guess[i] * self.flows.stride)

    cdef uint32_t sample(self, const int64_t* times, const uint16_t* rows, uint32_t n) noexcept nogil:
        """Take the times of rows that were looked up; `begun` are those that begin a run.  Returns how many."""
        cdef uint64_t threshold = self.threshold, reach = self.longest + self.threshold, ahead
        cdef uint64_t* key = self.key
        cdef uint32_t* packets = self.rows.packets
        cdef int64_t* step = self.rows.step
        cdef uint32_t* owner = self.rows.owner
        cdef uint16_t* begun = self.begun
        cdef uint32_t first = self.rows.next_row(), next_row = first, nowhere = self.rows.nowhere, i, row, count
        cdef SampledFlow* flow
        cdef int64_t t, low, high, late, ends
        cdef bint fits
        for i in range(n):
            flow = <SampledFlow*>lru_hit2(&self.flows, self.guess[i], key[2 * i], key[2 * i + 1])
            if flow == NULL:
                flow = self.insert(i)
                if flow == NULL:
                    self.dropped += 1
                    continue
            t, count = times[rows[i]], flow.count
            # Times may be any: their difference is right when its sign is, and it is within reach.
            ahead = <uint64_t>t - <uint64_t>flow.time + threshold
            fits = (ahead < reach) & ((<int64_t>(ahead - threshold) >= 0) == (t >= flow.time)) & (count < MAX_COUNT)
            ahead &= MAX_DIVIDEND
            late = <int64_t>(ahead - 2 * threshold)
            late = late if late > 0 else 0
            low = <int64_t>(<double>(late + count - 1) / <double>count)     # rounded up
            high = <int64_t>(<double><int64_t>ahead / <double>count)
            low = low if low > flow.low else flow.low
            high = high if high < flow.high else flow.high
            ends = <int64_t>(fits & (low <= high)) - 1
            row = <uint32_t>select(ends, flow.row, nowhere)
            packets[row] = count
            step[row] = (flow.low + flow.high) >> 1 & -<int64_t>(count > 1)
            begun[next_row - first] = rows[i]
            owner[next_row] = self.guess[i]
            flow.time = select(ends, t, flow.time)
            flow.low = low & ~ends
            flow.high = select(ends, UNBOUNDED, high)
            flow.count = (count & <uint32_t>~ends) + 1
            flow.row = <uint32_t>select(ends, next_row, flow.row)
            next_row -= <uint32_t>ends
        return next_row - first

    cdef SampledFlow* insert(self, uint32_t i) noexcept nogil:
        """The flow of the i-th row that was looked up; NULL: no memory."""
        cdef bint fresh
        cdef SampledFlow* flow = <SampledFlow*>lru_insert(&self.flows, &self.key[2 * i], self.hash[i], &fresh)
        if flow != NULL:
            self.guess[i] = lru_number(&self.flows, flow)
            if fresh:
                self.without_run(flow)
        return flow

    cdef void end_run(self, SampledFlow* flow) noexcept nogil:
        self.rows.packets[flow.row] = flow.count
        self.rows.step[flow.row] = (flow.low + flow.high) >> 1 if flow.count > 1 else 0
        self.without_run(flow)

    cdef void without_run(self, SampledFlow* flow) noexcept nogil:
        """No row fits a step from 1 to 0: the next one begins a run."""
        flow.time, flow.low, flow.high, flow.count, flow.row = 0, 1, 0, 1, self.rows.nowhere

    # -- rows of runs that have ended

    cdef void make_room(self) noexcept nogil:
        """For as many rows as are looked up together, and one more."""
        cdef uint32_t first, i
        while self.rows.room() <= AHEAD:
            self.rows.open_part()
            if self.rows.crowded(self.flows.index.count):
                if self.rows.look(self.rows.oldest):
                    self.ship()
                first = self.rows.next_row()
                for i in range(first, first + self.rows.move_open()):
                    (<SampledFlow*>lru_value(&self.flows, self.rows.owner[i])).row = i
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
        cdef SampledFlow* flow
        cdef uint32_t i
        for i in range(self.flows.index.count):
            flow = <SampledFlow*>lru_value(&self.flows, i)
            if flow.row != self.rows.nowhere and flow.time < before_time:
                self.end_run(flow)

    cdef int tick(self, int64_t now) noexcept nogil:
        # A run that is old enough would not go on with its next row: to end it now changes no row.
        cdef bint sweep = now - self.swept >= self.longest
        if sweep:
            self.swept = now
            self.end_runs(INT64_MAX if self.taken == self.seen else max(self.latest, -UNBOUNDED) - self.longest)
            self.seen = self.taken
        if sweep or now - self.cleared >= CLEAR:
            self.now, self.cleared = now, now
            self.give_ended_rows()
        return 1 if self.stopped else StreamStage.tick(self, now)

    cdef int finish(self) noexcept nogil:
        self.end_runs(INT64_MAX)
        self.give_ended_rows()
        return 1 if self.stopped else StreamStage.finish(self)


cdef inline int64_t select(int64_t mask, int64_t one, int64_t other) noexcept nogil:
    """``one`` where the mask is -1, ``other`` where it is 0."""
    return other ^ ((one ^ other) & mask)


cdef void evict(void* context, void* value) noexcept nogil:
    (<RateSampleStage>context).end_run(<SampledFlow*>value)


cdef int column(Layout layout, str name, int code) except -1:
    cdef int i = layout.index(name)
    if layout.column[i].code != code or layout.column[i].count != 1:
        raise ValueError(f"column {name} has another type")
    return i
