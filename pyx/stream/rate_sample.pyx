"""Rate-based sampling of five-tuples: Algorithm 1 of DETER (section 3.3); confluo_tools/replay/sampling.py explains it.

A row is kept when its time does not fit an even rate since the row that was kept before; so the times of all rows are
known within a threshold.  Kept rows of a five-tuple are more than a threshold apart: 1 ms means at most 1000 a second.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from c_block cimport I64, U16, U32, U8
from c_hash_table cimport (
    hash2, lru_free, lru_init, lru_insert, lru_prefetch_entry, lru_prefetch_slot, lru_value)
from c_sampling cimport TimeRun, sampler_begin, sampler_flush, sampler_offer
from confluo_tools.core.block.block cimport Block, Layout, Picks, Staging
from confluo_tools.core.stream.stage cimport StreamStage
import os
cimport cython

cdef extern from *:
    """
    #define CFL_FIRST_TIME (-1LL << 62)
    static inline void copy_value(void *to, const void *from, uint32_t width) {
        switch (width) {
        case 1: memcpy(to, from, 1); break;
        case 2: memcpy(to, from, 2); break;
        case 4: memcpy(to, from, 4); break;
        case 8: memcpy(to, from, 8); break;
        case 16: memcpy(to, from, 16); break;
        default: memcpy(to, from, width);
        }
    }
    """
    void copy_value(void* to, const void* source, uint32_t width) noexcept nogil
    const int64_t FIRST_TIME "CFL_FIRST_TIME"

cdef enum:
    OUT_ROWS = 1024
    AHEAD = 64                          # rows looked up together
    MAX_FLOWS = 1 << 24


@cython.final
cdef class RateSampleStage(StreamStage):
    """Gives the first row of each run: rows of one five-tuple at an even rate, within ``threshold`` ns.

    ``out``: layout of the rows given: the columns of ``layout``, then run_packets (u32) and run_step (i64, ns): the
    i-th row of the run, from 0, was at about ts + i * run_step.  A run lasts at most ``longest`` ns; the sum of
    run_packets is the number of rows taken.  Of more than ``most`` flows those not seen for long end their run.
    IPv6 addresses are compared by the hash that their column has.
    """

    def __init__(self, Layout layout not None, Layout out not None, int time, int64_t threshold, int64_t longest,
                 uint32_t most):
        cdef uint64_t seed[2]
        cdef bytes secret = os.urandom(16)
        super().__init__(layout)
        if not 0 <= threshold < <int64_t>1 << 62 or not 0 < longest < <int64_t>1 << 61 or not 0 < most <= MAX_FLOWS:
            raise ValueError(f"runs of {longest} ns within {threshold} ns of {most} flows")
        if out.names != (*layout.names, "run_packets", "run_step"):
            raise ValueError("rows of another schema")
        self.threshold, self.longest, self.most = threshold, longest, most
        if not 0 <= time < layout.n or layout.column[time].code != I64 or layout.column[time].count != 1:
            raise ValueError(f"column {time} is not a time")
        self.time = time
        self.source, self.target = column(layout, "src_ip", U32), column(layout, "dst_ip", U32)
        self.source_port, self.target_port = column(layout, "src_port", U16), column(layout, "dst_port", U16)
        self.proto = column(layout, "proto", U8)
        self.out, self.every_row, self.row_bytes = Staging(out, OUT_ROWS), Picks(), layout.row_bytes
        self.latest = INT64_MIN
        memcpy(seed, <const char*>secret, 16)
        if self.row != NULL:
            raise ValueError("made twice")
        self.row = <uint8_t*>calloc(most, self.row_bytes)
        if self.row == NULL or not lru_init(&self.flows, 2, sizeof(SampledFlow), most, seed):
            raise MemoryError
        self.flows.drop, self.flows.context = evict, <void*>self

    def __dealloc__(self):
        self.flows.drop = NULL
        lru_free(&self.flows)
        free(self.row)

    @property
    def evicted(self):
        """Flows that others displaced."""
        return self.flows.evicted

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef const int64_t* times = <const int64_t*>block.col[self.time]
        cdef const uint32_t* source = <const uint32_t*>block.col[self.source]
        cdef const uint32_t* target = <const uint32_t*>block.col[self.target]
        cdef const uint16_t* source_port = <const uint16_t*>block.col[self.source_port]
        cdef const uint16_t* target_port = <const uint16_t*>block.col[self.target_port]
        cdef const uint8_t* proto = block.col[self.proto]
        cdef const uint16_t* rows = picks.as_list()
        cdef uint64_t key[AHEAD * 2]
        cdef uint64_t hash[AHEAD]
        cdef uint32_t start = 0, n, i, k
        cdef SampledFlow* flow
        cdef TimeRun run
        cdef int64_t t
        cdef bint fresh
        self.now = now
        while start < picks.n:
            n = min(picks.n - start, <uint32_t>AHEAD)
            for i in range(n):
                k = rows[start + i]
                key[2 * i] = <uint64_t>source[k] << 32 | target[k]
                key[2 * i + 1] = <uint64_t>source_port[k] << 32 | <uint64_t>target_port[k] << 16 | proto[k]
                hash[i] = hash2(&self.flows.index, key[2 * i], key[2 * i + 1])
                lru_prefetch_slot(&self.flows, hash[i])
            for i in range(n):
                lru_prefetch_entry(&self.flows, hash[i])
            for i in range(n):
                k = rows[start + i]
                t = times[k]
                if t > self.latest:
                    self.latest = t
                flow = <SampledFlow*>lru_insert(&self.flows, &key[2 * i], hash[i], &fresh)
                if flow == NULL:
                    self.dropped += 1
                    continue
                if fresh:
                    sampler_begin(&flow.sampler)
                elif flow.sampler.count and not before(t, flow.sampler.time, self.longest):
                    if sampler_flush(&flow.sampler, &run):
                        self.give_run(flow, &run)
                if sampler_offer(&flow.sampler, t, self.threshold, &run):
                    self.give_run(flow, &run)
                if flow.sampler.count == 1:
                    self.begin_run(flow, block, k)
            start += n
        self.ship()
        return self.stopped

    cdef uint8_t* row_of(self, const SampledFlow* flow) noexcept nogil:
        return self.row + <size_t>((<const uint8_t*>flow - self.flows.entries) // self.flows.stride) * self.row_bytes

    cdef void begin_run(self, SampledFlow* flow, Block block, uint32_t row) noexcept nogil:
        """Keep the row until the run ends."""
        cdef uint8_t* to = self.row_of(flow)
        cdef uint32_t width
        cdef int i
        for i in range(self.layout.n):
            width = self.layout.column[i].width
            copy_value(to, block.col[i] + <size_t>row * width, width)
            to += width

    cdef void give_run(self, SampledFlow* flow, const TimeRun* run) noexcept nogil:
        cdef const uint8_t* p = self.row_of(flow)
        cdef uint32_t width, n = self.out.rows
        cdef int i
        for i in range(self.layout.n):
            width = self.layout.column[i].width
            copy_value(self.out.out[i] + <size_t>n * width, p, width)
            p += width
        i = self.layout.n
        (<uint32_t*>self.out.out[i])[n] = run.count
        (<int64_t*>self.out.out[i + 1])[n] = run.step
        self.out.set_rows(n + 1)
        if n + 1 == OUT_ROWS:
            self.ship()

    cdef void ship(self) noexcept nogil:
        cdef uint32_t n = self.out.rows
        if n == 0:
            return
        self.every_row.set_all(n)
        if self.give(self.out, self.every_row, self.now):
            self.stopped = True
        self.out.set_rows(0)

    cdef void end_runs(self, int64_t before_time) noexcept nogil:
        """Give the runs that began before this time."""
        cdef SampledFlow* flow
        cdef TimeRun run
        cdef uint32_t i
        for i in range(self.flows.index.count):
            flow = <SampledFlow*>lru_value(&self.flows, i)
            if flow.sampler.time < before_time and sampler_flush(&flow.sampler, &run):
                self.give_run(flow, &run)
        self.ship()

    cdef int tick(self, int64_t now) noexcept nogil:
        # A run that is old enough would not go on with its next row: to give it now changes no row.
        if now - self.swept >= self.longest:
            self.now, self.swept = now, now
            self.end_runs(INT64_MAX if self.taken == self.seen else max(self.latest, FIRST_TIME) - self.longest)
            self.seen = self.taken
        return 1 if self.stopped else StreamStage.tick(self, now)

    cdef int finish(self) noexcept nogil:
        self.end_runs(INT64_MAX)
        return 1 if self.stopped else StreamStage.finish(self)


cdef inline bint before(int64_t t, int64_t start, int64_t longest) noexcept nogil:
    """Whether t is in a run that began at `start`: less than `longest` after it, or before it."""
    return t < start or <uint64_t>t - <uint64_t>start < <uint64_t>longest


cdef void evict(void* context, void* value) noexcept nogil:
    cdef TimeRun run
    if sampler_flush(&(<SampledFlow*>value).sampler, &run):
        (<RateSampleStage>context).give_run(<SampledFlow*>value, &run)


cdef int column(Layout layout, str name, int code) except -1:
    cdef int i = layout.index(name)
    if layout.column[i].code != code or layout.column[i].count != 1:
        raise ValueError(f"column {name} has another type")
    return i
