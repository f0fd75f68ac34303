"""Roll-ups: mergeable aggregates of selected rows by group.

Groups: group_keys.pyx.  States: aggregate_states.pyx, sketch.pyx.  Result columns: rollup_result.pyx.  As bytes:
rollup_codec.pyx.  Into coarser keys: rollup_coarsening.pyx.
"""

from libc.math cimport NAN
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from c_hash_table cimport table_free, table_memory
from c_block cimport BYTES, F32, F64, I8, I64, U64
from c_sketch cimport FLOAT, SIGNED, UNSIGNED, Hyper
from c_source cimport CHUNK, IP, IP_HASH, NUMBER, WIDE, ZEROS, Chunk, Source, load_column
from confluo_tools.core.block.block cimport PICK_ALL, Block, Layout, Picks, zero_bytes
from confluo_tools.core.query.group_keys cimport GroupTable
from confluo_tools.core.query.group_source cimport intern_merge, make_source
from confluo_tools.core.query.predicate cimport Program
from confluo_tools.core.query.rollup_result cimport (
    F_AVG, F_COUNT, F_DISTINCT, F_FIRST, F_HYPER, F_LAST, F_MAX, F_MIN, F_QUANTILE, F_RATE, F_STDDEV, F_SUM, Output,
    check_column, finish_column, forget_order,
)
from confluo_tools.core.block.result_table cimport Rows
from confluo_tools.core.query.aggregate_states cimport (
    COUNT, DISTINCT, FIRST, HISTOGRAM, HYPER, LAST, MAX, MAX_BYTES, MIN, MIN_BYTES, MOMENTS_FLOAT, MOMENTS_INT,
    SUM_FLOAT, SUM_INT, VALUES, Event, FloatMoments, FloatSum, State, Value, load_value_chunk, moments, reduce_column,
    reduced, state_free, state_groups, state_memory, state_merge, state_rank, state_reduced, state_update, total,
)
import os
cimport cython

cdef extern from "load.h" nogil:
    void tally_u8(uint32_t* count, const void* p, const uint16_t* rows, uint32_t n) noexcept
    void tally_u16(uint32_t* count, const void* p, const uint16_t* rows, uint32_t n) noexcept

# Codes of the functions.  confluo_tools/expr/aggregate_functions.py names them; a test compares both.
FUNCS = {
    "count": F_COUNT, "sum": F_SUM, "avg": F_AVG, "stddev": F_STDDEV, "min": F_MIN, "max": F_MAX,
    "first": F_FIRST, "last": F_LAST, "distinct": F_DISTINCT, "hyper": F_HYPER, "quantile": F_QUANTILE,
    "rate": F_RATE,
}

cdef enum:
    P_ONE = 14                  # registers 2^p of a HyperLogLog sketch without groups: standard error 0.81 %
    P_GROUP = 12                # per group: 1.63 %, at most 4 KiB
    HYPER_ENTRIES = 32          # a sketch of a group takes as much memory as this number of groups
    TALLY_LIMIT = 1 << 30       # maximum number of rows in 32-bit counters
    FEW = 8                     # below 1/FEW of the rows of a block, conditions read these rows only


@cython.final
cdef class RowCondition:
    """The condition of the value number ``slot`` of a roll-up, and the next condition."""

    def __cinit__(self, Layout layout, tree, int slot, RowCondition next):
        self.program, self.found = Program(tree, layout), Picks()
        self.slot, self.next = slot, next

    cdef void look(self, Block block, Picks picks, Value* value) noexcept nogil:
        """Find the rows of a block for which the conditions hold; of few ``picks`` only those among them."""
        if picks.n < block.rows // FEW:
            memcpy(self.found.list, picks.as_list(), picks.n * 2)
            self.found.set_list(block.rows, picks.n)
            self.program.narrow(block, self.found)
        else:
            self.program.run(block, self.found)
        value[self.slot].source.holds = self.found.as_mask()
        if self.next is not None:
            self.next.look(block, picks, value)


@cython.final
cdef class Rollup:
    """Aggregates of selected rows by group.  Merging two roll-ups gives the same as one roll-up of all rows.

    ``keys`` and the operands of ``aggs`` are tuples of column numbers of ``layout``:

    ('column', col)                                 a whole column; as a key also bytes and lists
    ('nonzero', col)                                aggs only: its elements that are not zero
    ('ip', col, col6, version, bits4, bits6, plain) an address or its prefix; version: column number or -1;
                                                    plain: the result has its version column, too
    ('prefix', col, width, bits)                    keys only: the top ``bits`` of an unsigned number of ``width`` bits
    ('bucket', col, step)                           keys only: floor(value / step) * step of an i64 column
    ('weeks', col, n), ('months', col, n)           keys only: the start of n weeks from Monday on, or of n months
    ('bucket', col, step, changes)                  the same by local time, also of weeks and months: changes are
                                                    (time, offset) from INT64_MIN on
    ('hours', col, step, changes)                   steps of up to an hour of local clocks, each moment in one of them

    ('calc', type, steps)                           values of a `Calculation`, of type u64, i64 or f64; as a key also
                                                    of the types of columns
    ('conn', key, pairs)                            keys only: a key of columns that are exchanged in some rows, so that
                                                    the first pair of columns has the higher value first, or else the
                                                    next ones the lower value; pairs contain all columns of the key
    ('host', key, pairs)                            keys only: a row is in the group of these columns and in that of
                                                    the exchanged ones; once, if both are the same
    ('where', tree)                                 count only: rows for which a tree of tests holds
    ('missing', type, steps)                        count only: rows for which it does not fit 64 bits

    ``aggs``: ('count',), ('rate',) and (FUNC, operand) with FUNC sum, avg, stddev, min, max, first, last, distinct,
    hyper (distinct by HyperLogLog) or rate, and ('quantile', operand, millionths).
    Lists are aggregated by element; first and last take whole columns, with zeros.  NaN is skipped.
    ``time``: the column for first, last and the time span of rates; -1: rows are in input order.

    Only one thread at a time may use a roll-up; several threads fill one each and merge them.
    """

    def __cinit__(self, Layout layout not None, tuple keys not None, tuple aggs not None, int time=-1,
                  bint span=False):
        cdef int i
        cdef uint32_t wide = 64
        self.layout, self.keys, self.aggs, self.time, self.kept = layout, keys, aggs, time, []
        if not -1 <= time < layout.n or (time >= 0 and layout.column[time].code != I64):
            raise ValueError(f"column {time} is not a time")
        if len(aggs) > 200:
            raise ValueError(f"{len(aggs)} aggregates")
        self.seed = os.urandom(16)
        self.groups = GroupTable(layout, keys, self.seed)
        self._slots = {}
        self.every = Picks()
        self.value = <Value*>calloc(max(len(aggs) * 2, 1), sizeof(Value))
        self.state = <State*>calloc(max(len(aggs) * 4, 1), sizeof(State))
        self.whole = <bint*>calloc(max(len(aggs) * 4, 1), sizeof(bint))
        self.output = <Output*>calloc(max(len(aggs), 1), sizeof(Output))
        self.group = <uint32_t*>malloc(CHUNK * 4)
        self.times = <int64_t*>malloc(CHUNK * 8)
        self.turned = <uint16_t*>malloc(CHUNK * 2)
        self.chunk.scratch = <uint64_t*>malloc(CHUNK * 8)
        if (self.value == NULL or self.state == NULL or self.whole == NULL or self.output == NULL
                or self.group == NULL or self.times == NULL or self.turned == NULL or self.chunk.scratch == NULL):
            raise MemoryError
        for agg in aggs:
            self._plan(&self.output[self.outputs], agg)
            self.outputs += 1
        for i in range(layout.n):
            wide = max(wide, layout.column[i].width + 8)
        self.chunk.wide = <uint8_t*>calloc(wide, 1)
        if self.chunk.wide == NULL:
            raise MemoryError
        self.chunk.zeros = zero_bytes(ZEROS)
        self.low, self.high, self.spanning = INT64_MAX, INT64_MIN, span and time >= 0
        for i in range(self.states):
            self.whole[i] = self.state[i].kind == COUNT or (
                self.state[i].kind in (SUM_INT, SUM_FLOAT, MIN, MAX)
                and not self.value[self.state[i].value].source.drop
                and self.value[self.state[i].value].source.calc == NULL)
            self.chunked = self.chunked or not self.whole[i]
            self.timed = self.timed or self.state[i].kind in (FIRST, LAST)
        self.timed = self.timed and time >= 0
        if (self.groups.narrow and self.groups.part[0].source.calc == NULL
                and self.groups.part[0].source.shift == 0 and self.groups.part[0].source.width <= 2):
            if all(agg == ("count",) for agg in aggs):
                self.tally = <uint32_t*>calloc(4 << 16, 4)
                if self.tally == NULL:
                    raise MemoryError
        if self._room() < 0:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        if self.value != NULL:
            for i in range(self.values):
                table_free(&self.value[i].source.intern)
                free(self.value[i].v)
                free(self.value[i].own)
                free(self.value[i].present)
        if self.state != NULL:
            for i in range(self.states):
                state_free(&self.state[i])
        free(self.value)
        free(self.state)
        free(self.whole)
        free(self.output)
        free(self.group)
        free(self.times)
        free(self.turned)
        free(self.chunk.scratch)
        free(self.chunk.wide)
        free(self.tally)

    # ---- planning: each state that the aggregates need, once

    cdef int _plan(self, Output* o, tuple agg) except -1:
        cdef bint floating, partial, raw
        cdef int slot
        if not agg or agg[0] not in FUNCS or len(agg) != (1 if len(agg) == 1 else 3 if agg[0] == "quantile" else 2):
            raise ValueError(f"unknown aggregate {agg!r}")
        o.func, o.state, o.count, o.low, o.high = FUNCS[agg[0]], -1, -1, -1, -1
        if len(agg) == 1:
            if agg[0] not in ("count", "rate"):
                raise ValueError(f"{agg[0]} needs an operand")
            o.state = self._state(COUNT, -1, 0)
            return 0
        if agg[1][0] in ("where", "missing"):
            if agg[0] != "count":
                raise ValueError(f"{agg[0]} does not apply to {agg[1][0]!r}")
            o.state = self._state(VALUES, self._slot(agg[1], False, False), 0)
            return 0
        # Raw: the stored bytes, not loaded as numbers.
        raw = agg[1][0] != "calc" and (agg[1][0] == "ip" or self.layout.describe(agg[1][1])[1] == BYTES)
        slot = self._slot(agg[1], agg[0] == "hyper",
                          agg[0] in ("first", "last") or (raw and agg[0] in ("min", "max")))
        partial = self.value[slot].source.drop         # there are other numbers of values than of rows
        floating = self.value[slot].domain == FLOAT
        if o.func == F_FIRST or o.func == F_LAST:
            o.state = self._state(FIRST if o.func == F_FIRST else LAST, slot, 0)
        elif o.func == F_DISTINCT:
            o.state = self._state(DISTINCT, slot, 0)
        elif o.func == F_HYPER:
            o.state = self._state(HYPER, slot, P_GROUP if self.keys else P_ONE)
        elif (o.func == F_MIN or o.func == F_MAX) and raw:
            o.state = self._state(MIN_BYTES if o.func == F_MIN else MAX_BYTES, slot, 0)
        elif o.func == F_COUNT or raw:
            raise ValueError(f"{agg[0]} does not apply to column {agg[1]}")
        elif o.func == F_STDDEV:
            o.state = self._state(MOMENTS_FLOAT if floating else MOMENTS_INT, slot, 0)
        elif o.func == F_QUANTILE:
            if not 0 <= agg[2] <= 1000000:
                raise ValueError(f"quantile {agg[2]} is not in 0..1000000 millionths")
            o.millionths = agg[2]
            o.state = self._state(HISTOGRAM, slot, 0)
            o.low, o.high = self._state(MIN, slot, 0), self._state(MAX, slot, 0)
            o.count = self._state(VALUES, slot, 0) if partial else self._state(COUNT, -1, 0)
        elif o.func == F_MIN or o.func == F_MAX:
            o.state = self._state(MIN if o.func == F_MIN else MAX, slot, 0)
            o.count = self._state(VALUES, slot, 0) if partial else self._state(COUNT, -1, 0)
        else:
            o.state = self._state(SUM_FLOAT if floating else SUM_INT, slot, 0)
            if not floating:
                o.count = self._state(VALUES, slot, 0) if partial else self._state(COUNT, -1, 0)
        return 0

    cdef int _slot(self, tuple operand, bint hashed, bint raw) except -1:
        # The number of the Value of a field, created on first use.
        cdef Value* value
        cdef Source* s
        if operand[0] not in ("column", "nonzero", "ip", "calc", "where", "missing"):
            raise ValueError(f"invalid operand {operand!r}")
        if operand[0] in ("column", "nonzero") and 0 <= operand[1] < self.layout.n:
            hashed = hashed and self.layout.column[operand[1]].code == BYTES
        name = (operand, hashed, raw)
        if name in self._slots:
            return self._slots[name]
        value = &self.value[self.values]
        s = &value.source
        make_source(s, self.layout, operand, False, hashed, self.seed, self.kept)
        if operand[0] == "where":
            self.conditions = RowCondition(self.layout, operand[1], self.values, self.conditions)
        if s.kind == NUMBER:
            value.domain = FLOAT if s.code >= F32 else SIGNED if s.code >= I8 else UNSIGNED
        self.values += 1
        if not raw:
            value.v = <uint64_t*>malloc(<size_t>CHUNK * s.count * 8)
            value.own = <uint32_t*>calloc(<size_t>CHUNK * s.count, 4)
            value.present = <uint8_t*>malloc(CHUNK)
            if value.v == NULL or value.own == NULL or value.present == NULL:
                raise MemoryError
        self._slots[name] = self.values - 1
        return self.values - 1

    cdef int _state(self, int kind, int value, int p) except -1:
        cdef State* s
        cdef Source* source = &self.value[max(value, 0)].source
        cdef int i
        for i in range(self.states):
            if self.state[i].kind == kind and self.state[i].value == value:
                return i
        s = &self.state[self.states]
        self.states += 1
        s.kind, s.value, s.p, s.keyless = kind, value, p, not self.keys
        s.width = 8
        if value >= 0:
            s.payload = 21 if source.kind == IP or source.kind == IP_HASH else source.width
        if kind == SUM_INT:
            s.width = sizeof(total)
        elif kind == SUM_FLOAT:
            s.width = sizeof(FloatSum)
        elif kind == MOMENTS_INT:
            s.width = sizeof(moments)
        elif kind == MOMENTS_FLOAT:
            s.width = sizeof(FloatMoments)
        elif kind == MIN_BYTES or kind == MAX_BYTES:
            s.width = 17 if s.payload == 21 and source.kind != WIDE else s.payload + 1
        elif kind == FIRST or kind == LAST:
            s.width = (sizeof(Event) + s.payload + 7) // 8 * 8
        elif kind == HYPER:
            s.width = sizeof(Hyper)
        elif kind == HISTOGRAM:
            s.width, s.table.words = 1, 1
        elif kind == DISTINCT:
            s.table.words = 2
            if s.keyless or source.kind == WIDE or (source.kind == NUMBER and source.size <= 4 and source.code < F32):
                s.table.words = 1
        memcpy(s.table.seed, <const char*>self.seed, 16)
        s.table.seed[1] |= 1
        return self.states - 1

    def __len__(self):
        """Number of groups; 1 without keys."""
        return self._synced()

    cdef uint64_t entries(self) noexcept nogil:
        """What its memory grows with: groups, and the values that states and side tables keep one by one."""
        cdef uint64_t n = self.groups.count()
        cdef int i
        for i in range(self.states):
            n += self.state[i].table.count
            if self.state[i].kind == HYPER:
                n += <uint64_t>self.groups.count() * HYPER_ENTRIES
        for i in range(self.groups.parts):
            n += self.groups.part[i].source.intern.count
        for i in range(self.values):
            n += self.value[i].source.intern.count
        return n

    @property
    def span(self):
        """(first, last) time of the rows folded in, in ns; None if empty, or if not tracked."""
        return None if self.low > self.high else (self.low, self.high)

    def update(self, Block block not None, Picks picks=None):
        """Fold in the selected rows of a block (all rows without ``picks``).

        Raises ValueError if the block has other columns or the picks are of another block, MemoryError if the groups
        do not fit into memory; the roll-up is then unusable.
        """
        cdef int status
        if block.layout is not self.layout and not same_layout(block.layout, self.layout):
            raise ValueError("the block has other columns")
        if picks is None:
            picks = self.every
            picks.set_all(block.rows)
        if picks.rows != block.rows:
            raise ValueError("the picks are of another block")
        self._usable()
        with nogil:
            status = self.fold(block, picks)
        if status < 0:
            self.broken = True
            raise MemoryError(f"{self.groups.count()} groups")

    def _usable(self):
        if self.broken:
            raise ValueError("this roll-up is unusable after an earlier error")

    def _synced(self):
        if self._untally() < 0:
            raise MemoryError
        return self.groups.count()

    cdef int fold(self, Block block, Picks picks) noexcept nogil:
        cdef Chunk* c = &self.chunk
        cdef uint32_t n = picks.n, start = 0
        cdef bint every = picks.kind == PICK_ALL or n == block.rows
        cdef bint done = False
        cdef const uint16_t* rows = NULL
        cdef reduced r
        cdef int i, k
        c.col, c.zone, c.lane, c.base = block.col, block.zone, block.lane, block.base
        if block.lane < 0:                          # rows without a lane are in input order
            c.base = self.loose
            self.loose += block.rows
        if n == 0:
            return 0
        self.rows += n
        if not every:
            rows = picks.as_list()
        if self.conditions is not None:
            self.conditions.look(block, picks, self.value)
        if self.tally != NULL:
            if self.tallied > TALLY_LIMIT and self._untally() < 0:
                return -1
            self.tallied += n
            i = self.groups.part[0].source.col
            if self.groups.part[0].source.width == 1:
                tally_u8(self.tally, block.col[i], rows, n)
            else:
                tally_u16(self.tally, block.col[i], rows, n)
            if not self.spanning:
                return 0
        if self.spanning and every:
            reduce_column(&r, I64, block.col[self.time], n)
            self.low, self.high = min(self.low, <int64_t>r.min), max(self.high, <int64_t>r.max)
        if every and self.groups.parts == 0:
            # One group and all rows: reduce whole columns.
            for k in range(-1, self.values):
                if k >= 0 and (self.value[k].v == NULL or self.value[k].source.kind != NUMBER
                               or self.value[k].source.drop):
                    continue
                if k >= 0 and self._reduces(k):
                    reduce_column(&r, self.value[k].source.code, block.col[self.value[k].source.col], n)
                for i in range(self.states):
                    if self.whole[i] and self.state[i].value == k:
                        state_reduced(&self.state[i], &self.value[max(k, 0)], &r, 0, n)
            done = True
            if not self.chunked:
                return 0
        while start < n:
            c.n = min(<uint32_t>CHUNK, n - start)
            c.first, c.rows = start, rows + start if rows != NULL else NULL
            if self.timed or (self.spanning and not every):
                load_column(c, self.time, I64, 8, <uint64_t*>self.times)
                if self.spanning and not every:
                    reduce_column(&r, I64, self.times, c.n)
                    self.low, self.high = min(self.low, <int64_t>r.min), max(self.high, <int64_t>r.max)
            c.time = self.times if self.timed else NULL
            start += c.n
            if self.tally == NULL and self._fold_chunk(done) < 0:
                return -1
            if self.groups.twice and self._fold_other_ends() < 0:
                return -1
        return 0

    cdef int _fold_other_ends(self) noexcept nogil:
        # The rows of the chunk once more, for their second group.
        cdef Chunk* c = &self.chunk
        cdef int status = 0
        cdef int64_t n = self.groups.other_ends(c, self.turned)
        if n <= 0:
            return <int>n
        c.rows, c.n = self.turned, <uint32_t>n
        if self.timed:
            load_column(c, self.time, I64, 8, <uint64_t*>self.times)
        self.groups.second = True
        status = self._fold_chunk(False)
        self.groups.second = False
        return status

    cdef bint _reduces(self, int value) noexcept nogil:
        cdef int i
        for i in range(self.states):
            if self.whole[i] and self.state[i].value == value:
                return True
        return False

    cdef int _room(self) noexcept nogil:
        cdef int i
        for i in range(self.states):
            if state_groups(&self.state[i], self.groups.count(), &self.value[max(self.state[i].value, 0)]) < 0:
                return -1
        return 0

    cdef int _fold_chunk(self, bint done) noexcept nogil:
        # done: the states that are reduced per block are up to date.
        cdef Chunk* c = &self.chunk
        cdef Value* value
        cdef State* s
        cdef reduced r
        cdef const reduced* reduction
        cdef int i, k, wide
        c.group, c.single = NULL, 0
        if self.groups.parts:
            if self.groups.assign(c, self.group) < 0:
                return -1
            c.group = self.group
        if self._room() < 0:
            return -1
        for k in range(-1, self.values):
            value = &self.value[max(k, 0)]
            reduction = NULL
            if k >= 0 and value.v != NULL:
                if done and self._all_whole(k):
                    continue
                if load_value_chunk(value, c) < 0:
                    return -1
                if c.single >= 0 and value.source.kind == NUMBER and value.n and (
                        not done or value.source.drop or value.source.calc != NULL):
                    wide = F64 if value.domain == FLOAT else I64 if value.domain == SIGNED else U64
                    reduce_column(&r, wide, value.v, value.n)
            for i in range(self.states):
                s = &self.state[i]
                if s.value != k or (done and self.whole[i]):
                    continue
                reduction = NULL
                if c.single >= 0 and s.kind in (SUM_INT, SUM_FLOAT, MIN, MAX):
                    if value.n == 0:
                        continue
                    reduction = &r
                if state_update(s, value, c, reduction) < 0:
                    return -1
        return 0

    cdef bint _all_whole(self, int value) noexcept nogil:
        cdef int i
        for i in range(self.states):
            if not self.whole[i] and self.state[i].value == value:
                return False
        return True

    cdef int _untally(self) noexcept nogil:
        # Move the counters by value into the groups.
        cdef uint32_t v, g
        cdef uint64_t n
        cdef int i
        if self.tally == NULL or self.tallied == 0:
            return 0
        for v in range(1 << 16):
            n = <uint64_t>self.tally[v * 4] + self.tally[v * 4 + 1] + self.tally[v * 4 + 2] + self.tally[v * 4 + 3]
            if n == 0:
                continue
            g = self.groups.at(v)
            if self._room() < 0:
                return -1
            for i in range(self.states):
                (<uint64_t*>self.state[i].data)[g] += n
        memset(self.tally, 0, (4 << 16) * 4)
        self.tallied = 0
        return 0

    # ---- merging

    def merge(self, Rollup other not None):
        """Merge another roll-up of the same columns, keys and aggregates, which stays unchanged.

        Its rows without a lane count as later than those of this roll-up.
        """
        cdef int status
        self._fits(other)
        with nogil:
            status = self._merge(other, NULL, 0)
        if status < 0:
            self.broken = True
            raise MemoryError(f"{self.groups.count()} groups")

    def merge_share(self, Rollup other not None, const uint8_t[::1] shares not None, uint8_t wanted):
        """Merge the groups g of another roll-up that have shares[g] == wanted (see `shares`); it stays unchanged."""
        cdef int status
        self._fits(other)
        if shares.shape[0] != other._synced():
            raise ValueError(f"{shares.shape[0]} shares")
        if shares.shape[0] == 0:
            return
        with nogil:
            status = self._merge(other, &shares[0], wanted)
        if status < 0:
            self.broken = True
            raise MemoryError(f"{self.groups.count()} groups")

    def _fits(self, Rollup other):
        if other is self:
            raise ValueError("a roll-up cannot be merged with itself")
        if (other.keys != self.keys or other.aggs != self.aggs or other.time != self.time
                or not same_layout(self.layout, other.layout)):
            raise ValueError("the roll-ups have different keys or aggregates")
        self._usable()
        other._usable()

    def shares(self, uint64_t seed, int level):
        """A number from 0 to 15 for each group: four bits of a hash of its key, others for each ``level`` up to 15.

        A key has the same number in every roll-up of the same keys, for the same seed.
        """
        cdef uint32_t n = self._synced()
        cdef bytearray out = bytearray(n)
        cdef uint8_t* at = out
        if not self.keys or not 0 <= level < 16:
            raise ValueError(f"level {level} of {len(self.keys)} keys")
        self._usable()
        with nogil:
            self.groups.shares(seed, 60 - 4 * level, at)
        return out

    @property
    def ordered(self):
        """Whether the result depends on the order of rows: first, last, and sums of floats, which are rounded."""
        return any([self.state[i].kind in (FIRST, LAST, SUM_FLOAT, MOMENTS_FLOAT) for i in range(self.states)])

    @property
    def memory(self):
        """Bytes of the groups, their values and states, without what it has from the beginning."""
        cdef uint64_t n = self.groups.memory()
        cdef int i
        for i in range(self.values):
            n += table_memory(&self.value[i].source.intern)
        for i in range(self.states):
            n += state_memory(&self.state[i])
        return n

    def rank(self, int source):
        """Make its rows come before those of inputs with a higher number, where `first` and `last` see equal times."""
        cdef int i
        if not 0 <= source < 1 << 15:
            raise ValueError(f"{source} inputs")
        for i in range(self.states):
            state_rank(&self.state[i], source)

    cdef int _merge(self, Rollup other, const uint8_t* share, uint8_t wanted) noexcept nogil:
        cdef uint32_t* to
        cdef uint32_t* group
        cdef uint32_t theirs
        cdef int i, k, status = 0
        if self._untally() < 0 or other._untally() < 0:
            return -1
        theirs = other.groups.count()
        group = <uint32_t*>malloc(max(theirs, <uint32_t>1) * 4)
        if group == NULL:
            return -1
        if self.groups.adopt(other.groups, group, share, wanted) < 0 or self._room() < 0:
            free(group)
            return -1
        for k in range(-1, self.values):
            to = NULL
            if k >= 0 and self.value[k].source.kind in (IP, WIDE):
                to = intern_merge(&self.value[k].source, &other.value[k].source)
                if to == NULL:
                    status = -1
                    break
            for i in range(self.states):
                if self.state[i].value == k and status == 0:
                    status = state_merge(&self.state[i], &other.state[i], &self.value[max(k, 0)], group,
                                         min(theirs, other.state[i].groups), to, self.loose)
            free(to)
        free(group)
        self.rows += other.rows
        self.loose += other.loose
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        return status

    # ---- results

    def finish(self, Layout layout not None, double seconds=NAN, int more=0):
        """The result as a `ResultTable` of ``layout``: the key columns, then the aggregates, in order.

        ``more``: number of columns after these, which are zero.
        ``seconds``: divisor of rates.  A mean, deviation or quantile is rounded if its column is i64.  The roll-up may
        be updated afterwards.  Raises OverflowError if a sum of integers exceeds its 64-bit column.
        """
        cdef Rows rows
        cdef int i, at = 0
        cdef bint pair
        self._usable()
        rows = Rows(layout, self._synced())
        if self._room() < 0:
            raise MemoryError
        for i in range(self.groups.parts):
            pair = self.groups.part[i].source.kind == IP
            check_column(layout, at, 3 if pair else self.groups.part[i].source.code, self.groups.part[i].source.width)
            if pair:
                check_column(layout, at + 1, BYTES, 16)
            self.groups.column(i, rows.column[at], rows.column[at + 1] if pair else NULL)
            at += 2 if pair else 1
        for i in range(self.outputs):
            at += finish_column(&self.output[i], self.state, self.value, rows, at, seconds)
        for i in range(self.states):
            forget_order(&self.state[i])
        if at + more != layout.n:
            raise ValueError(f"{layout.n} result columns for {at + more} values")
        return rows


cdef bint same_layout(Layout a, Layout b):
    """True if both have the same columns, name by name and type by type."""
    cdef int i
    if a is b:
        return True
    if a.names != b.names:
        return False
    for i in range(a.n):
        if a.column[i].code != b.column[i].code or a.column[i].width != b.column[i].width:
            return False
    return True
