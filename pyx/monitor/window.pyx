"""Sliding windows of thousands of aggregates, updated row by row; their conditions are evaluated tick by tick.

Time is cut into buckets of `grain` ns, the largest that window and period are made of.  Tick T sees the rows with
T - window <= time < T.  Counts and sums of integers move with the window (what enters is added, what leaves is taken
off, all units of a bucket side by side); smallest, largest and sums of floats come from a segment tree.
Paper: section 4.2, monitor module.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from c_bits cimport ctz64, popcount64
from c_block cimport F32, I64, MASK_WORDS
from c_source cimport floor_div, load_value
from c_window cimport (Cond, Gear, Op, Put, O_EQ, O_GE, O_LAST, O_NEG, O_NOT, O_NUM, O_UNIT, STACK, gear_put, gear_tick,
                       tree_clear, tree_free, tree_make)
from confluo_tools.core.query.shared_filters cimport SharedFilters
from confluo_tools.core.block.block cimport Block, Picks, check_time
cimport cython

CODES = {"num": 0, "agg": 1, "+": 2, "-": 3, "*": 4, "/": 5, "neg": 6, "==": 7, "!=": 8, "<": 9, "<=": 10, ">": 11,
         ">=": 12, "and": 13, "or": 14, "not": 15}
KINDS = ("sum", "min", "max", "real")

cdef enum:
    MAX_SLOTS = 1 << 22
    MAX_CELLS = 1 << 28         # slots x units of one grid: 2 GiB


cdef int read_cond(Cond* c, object program, int units, list memory) except -1:
    """A program: a list of (code, number), code as in CODES, number the constant or the number of the unit."""
    cdef Op* op
    cdef int i, depth = 0, top
    cdef bytearray room = bytearray(max(len(program), 1) * sizeof(Op))
    memory.append(room)
    c.simple, c.n, c.op = -1, len(program), <Op*>PyByteArray_AS_STRING(room)
    for i, (code, number) in enumerate(program):
        op = &c.op[i]
        if not 0 <= code <= O_LAST or (code == O_UNIT and not 0 <= number < units):
            raise ValueError(f"step {i} of a condition: {code}, {number}")
        op.code, op.value = code, number
        op.unit = number if code == O_UNIT else 0
        top = 1 if code <= O_UNIT else 0 if code == O_NEG or code == O_NOT else -1
        if (top < 0 and depth < 2) or (top == 0 and depth < 1):
            raise ValueError(f"step {i} of a condition has nothing to work on")
        depth += top
        if depth > STACK:
            raise ValueError("the condition is too deep")
    if c.n and depth != 1:
        raise ValueError("the condition does not end in one value")
    if c.n == 3 and c.op[0].code == O_UNIT and c.op[1].code == O_NUM and O_EQ <= c.op[2].code <= O_GE:
        c.simple, c.unit, c.limit = c.op[2].code, c.op[0].unit, c.op[1].value
    return 0


@cython.final
cdef class GridWindows:
    """Windows of ``window`` ns evaluated every ``period`` ns.  ``head``: how far ahead of the last tick rows may be.

    ``kinds``: of each unit 'sum' (integers), 'min', 'max' or 'real' (a sum of doubles).
    ``tests``: of each trigger two programs, the condition and what ends it ([]: no such thing).
    """

    def __cinit__(self, int64_t window, int64_t period, int64_t head, kinds, tests):
        cdef Gear* g = &self.gear
        cdef int64_t a = window, b = period, room
        cdef int i
        cdef int count[4]
        if window <= 0 or period <= 0 or head < 0:
            raise ValueError(f"a window of {window} ns every {period} ns")
        while b:
            a, b = b, a % b
        g.window, g.period, g.grain = window, period, a
        g.n, g.step = window // a, period // a
        room = g.n + g.step + head // a + 4
        g.slots = 16
        while g.slots < room and g.slots < MAX_SLOTS:
            g.slots *= 2
        kinds, tests = list(kinds), list(tests)
        g.units, g.tests = len(kinds), len(tests)
        if g.slots < room or g.slots * max(g.units, 1) > MAX_CELLS:
            raise MemoryError(f"{g.units} aggregates over {g.n} steps")
        self.memory = []
        g.kind = <int*>calloc(max(g.units, 1), sizeof(int))
        g.place = <int*>calloc(max(g.units, 1), sizeof(int))
        g.value = <double*>calloc(max(g.units, 1), sizeof(double))
        g.cond = <Cond*>calloc(max(g.tests, 1), sizeof(Cond))
        g.clear = <Cond*>calloc(max(g.tests, 1), sizeof(Cond))
        g.state = <uint8_t*>malloc(max(g.tests, 1))
        g.changed = <int*>calloc(max(g.tests, 1), sizeof(int))
        if (g.kind == NULL or g.place == NULL or g.value == NULL or g.cond == NULL or g.clear == NULL
                or g.state == NULL or g.changed == NULL):
            raise MemoryError
        memset(count, 0, sizeof(count))
        for i, name in enumerate(kinds):
            g.kind[i] = KINDS.index(name)
            g.place[i] = count[g.kind[i]]
            count[g.kind[i]] += 1
        g.ints = count[0]
        g.ring = <int64_t*>calloc(max(<size_t>g.slots * g.ints, <size_t>1), 8)
        g.sum = <int64_t*>calloc(max(g.ints, 1), 8)
        if g.ring == NULL or g.sum == NULL:
            raise MemoryError
        for i in range(3):
            if tree_make(&g.tree[i], i, count[i + 1], g.slots) < 0:
                raise MemoryError
        for i, (condition, end) in enumerate(tests):
            read_cond(&g.cond[i], condition, g.units, self.memory)
            read_cond(&g.clear[i], end, g.units, self.memory)
        self.start(0)

    def __dealloc__(self):
        cdef Gear* g = &self.gear
        cdef int i
        for i in range(3):
            tree_free(&g.tree[i])
        free(g.ring)
        free(g.sum)
        free(g.kind)
        free(g.place)
        free(g.value)
        free(g.cond)
        free(g.clear)
        free(g.state)
        free(g.changed)

    def start(self, int64_t after):
        """Empty the windows; the next tick is the first one later than ``after``.  All tests count as changed."""
        cdef Gear* g = &self.gear
        cdef int64_t s
        cdef int i
        g.end = floor_div(after, g.period) * g.step
        g.next = g.end * g.grain + g.period
        memset(g.ring, 0, <size_t>g.slots * g.ints * 8)
        memset(g.sum, 0, <size_t>g.ints * 8)
        memset(g.state, 128, g.tests)
        for i in range(3):
            if g.tree[i].width:
                for s in range(g.slots):
                    tree_clear(&g.tree[i], s)

    def skip(self, int64_t after):
        """Like `start`, but without changes: the windows must have been empty for a whole window."""
        cdef Gear* g = &self.gear
        g.end = floor_div(after, g.period) * g.step
        g.next = g.end * g.grain + g.period

    def values(self):
        """Values of all units as of the last tick; NaN: no value."""
        cdef int i
        return [self.gear.value[i] for i in range(self.gear.units)]

    def value(self, int unit):
        """The value of one unit, as of the last tick."""
        if not 0 <= unit < self.gear.units:
            raise IndexError(unit)
        return self.gear.value[unit]

    def states(self):
        """State of each test as of the last tick: bit 1 the condition holds, bit 2 that for clearing."""
        cdef int i
        return [self.gear.state[i] & 3 for i in range(self.gear.tests)]

    def changed_tests(self):
        """[(test, state)] that changed at the last tick; see `states`."""
        cdef Gear* g = &self.gear
        cdef int i
        out = []
        for i in range(g.changes):
            out.append((g.changed[i], g.state[g.changed[i]]))
        return out

    @property
    def next(self):
        """The next tick, ns."""
        return self.gear.next

    @property
    def window(self):
        return self.gear.window

    @property
    def period(self):
        return self.gear.period

    @property
    def grain(self):
        return self.gear.grain

    @property
    def units(self):
        return self.gear.units

    def tick(self):
        """Do the next tick; returns the number of changed tests."""
        with nogil:
            gear_tick(&self.gear)
        return self.gear.changes


@cython.final
cdef class GridTicks:
    """Ticks many grids in the order of time."""

    def __cinit__(self, grids):
        cdef int i
        cdef GridWindows g
        self.grids, self.n = list(grids), 0
        self.grid = <Gear**>calloc(max(len(self.grids), 1), sizeof(Gear*))
        if self.grid == NULL:
            raise MemoryError
        for i, g in enumerate(self.grids):
            self.grid[i] = &g.gear
        self.n = len(self.grids)

    def __dealloc__(self):
        free(self.grid)

    @property
    def next(self):
        """The next tick of any grid."""
        cdef int64_t t = INT64_MAX
        cdef int i
        for i in range(self.n):
            t = min(t, self.grid[i].next)
        return t

    def tick(self, int64_t t):
        """Tick all grids that are due at ``t``: numbers of those with a changed test, None if there are none."""
        cdef int i
        out = None
        for i in range(self.n):
            if self.grid[i].next == t:
                with nogil:
                    gear_tick(self.grid[i])
                if self.grid[i].changes:
                    out = [] if out is None else out
                    out.append(i)
        return out


@cython.final
cdef class RowFeed:
    """Adds rows to windows: each filter of ``bank`` adds to units of ``grids``.

    ``puts``: (filter, grid, unit, column): column -1 counts rows, else a number with one value a row.
    ``outside``: filters for `hits` and `picks`.  ``ts``: the column of the time.
    """

    def __cinit__(self, SharedFilters bank not None, grids, puts, outside, int ts):
        cdef int i
        cdef GridWindows g
        self.bank, self.grids, self.outside = bank, list(grids), list(outside)
        self.newest, self.ahead, self.late_from, self.ts = INT64_MIN, INT64_MAX, INT64_MAX, ts
        check_time(bank.layout, ts)
        puts = sorted(puts)
        self.grid = <Gear**>calloc(max(len(self.grids), 1), sizeof(Gear*))
        self.put = <Put*>calloc(max(len(puts), 1), sizeof(Put))
        self.clip = <uint64_t*>malloc(MASK_WORDS * 8)
        self.bucket = <int64_t*>malloc(MASK_WORDS * 64 * 8)
        if self.grid == NULL or self.put == NULL or self.clip == NULL or self.bucket == NULL:
            raise MemoryError
        for i, g in enumerate(self.grids):
            self.grid[i] = &g.gear
        for i, (f, at, unit, col) in enumerate(puts):
            if not (0 <= f < bank.n and 0 <= at < len(self.grids) and 0 <= unit < self.grids[at].units):
                raise ValueError(f"filter {f}, grid {at}, unit {unit}")
            if not -1 <= col < bank.layout.n or (col >= 0 and (
                    bank.layout.column[<int>col].count != 1 or bank.layout.column[<int>col].code > 10)):
                raise ValueError(f"column {col} is not a number")
            self.put[i].filter, self.put[i].grid, self.put[i].unit, self.put[i].col = f, at, unit, col
            self.put[i].code = 0 if col < 0 else bank.layout.column[<int>col].code
        for f in self.outside:
            if not 0 <= f < bank.n:
                raise ValueError(f"filter {f}")
        self.puts = len(puts)

    def __dealloc__(self):
        free(self.grid)
        free(self.put)
        free(self.clip)
        free(self.bucket)

    def take_rows(self, Block block not None, uint32_t start, uint32_t stop, int64_t lo, int64_t hi, int64_t done):
        """Rows start .. stop of ``block`` with lo <= time < hi.  ``done``: the last tick; returns their number.

        Rows with an earlier time than ``done`` are counted as ``late``, ``late_from`` is the smallest time of them;
        ``ahead`` is the smallest time from hi on.
        """
        cdef uint32_t n
        self.bank.host._fits(block)
        with nogil:
            n = self.take(block, start, min(stop, block.rows), lo, hi, done)
        return n

    cdef uint32_t take(self, Block block, uint32_t start, uint32_t stop, int64_t lo, int64_t hi,
                       int64_t done) noexcept nogil:
        cdef const int64_t* ts = <const int64_t*>block.col[self.ts]
        cdef uint32_t i, n = 0, first = stop, after = start
        cdef int64_t t
        self.ahead = INT64_MAX
        for i in range(start, stop):
            t = ts[i]
            if t >= hi:
                self.ahead = min(self.ahead, t)
            elif t >= lo:
                if n == 0:
                    first = i
                after = i + 1
                n += 1
                if t < done:
                    self.late += 1
                    self.late_from = min(self.late_from, t)
                if t > self.newest:
                    self.newest = t
        self.start, self.stop = first, after
        self.rows += n
        if n == 0:
            self.start = self.stop = start
            return 0
        self.clipped = n != after - first
        if self.clipped:
            memset(self.clip, 0, (after - first + 63) // 64 * 8)
            for i in range(first, after):
                if lo <= ts[i] < hi:
                    self.clip[(i - first) >> 6] |= <uint64_t>1 << ((i - first) & 63)
        if self.bank.run_rows(block, first, after):
            self.store(block)
        return n

    cdef void store(self, Block block) noexcept nogil:
        cdef const int64_t* ts = <const int64_t*>block.col[self.ts] + self.start
        cdef uint32_t rows = self.stop - self.start, words = (rows + 63) >> 6, w, i, r
        cdef int64_t low = INT64_MAX, high = INT64_MIN, old, b, whole
        cdef int64_t cut = 0, single = INT64_MIN
        cdef int64_t* bucket = self.bucket
        cdef int known = -1, k, before = -1
        cdef const uint64_t* mask
        cdef const uint8_t* column
        cdef uint64_t bits, v
        cdef uint32_t width, count = 0
        cdef double real
        cdef Gear* g
        cdef Put* p
        for i in range(rows):
            low, high = min(low, ts[i]), max(high, ts[i])
        for k in range(self.puts):
            p = &self.put[k]
            if self.bank.count[p.filter] == 0:
                continue
            g = self.grid[p.grid]
            if known != p.grid:                         # bucket numbers of the rows for this grid, once for many puts
                known = p.grid
                cut = g.end - g.n
                single = floor_div(low, g.grain)
                if floor_div(high, g.grain) != single:
                    single = INT64_MIN
                    for i in range(rows):
                        b = floor_div(ts[i], g.grain)
                        bucket[i] = b if b < cut + g.slots else INT64_MIN
                elif single < cut or single >= cut + g.slots:
                    if before != p.filter:
                        self.lost += self.bank.count[p.filter]
                    before = p.filter
                    known = -1
                    continue
            mask = self.bank.mask(p.filter)
            if p.col < 0 and single != INT64_MIN and not self.clipped:
                gear_put(g, p.unit, single, self.bank.count[p.filter], 0)
                continue
            if p.col < 0 and single != INT64_MIN:
                count = 0
                for w in range(words):
                    count += popcount64(mask[w] & self.clip[w])
                gear_put(g, p.unit, single, count, 0)
                continue
            width = 0
            column = NULL
            if p.col >= 0:
                width = block.layout.column[p.col].width
                column = block.col[p.col] + <size_t>self.start * width
            old = 0
            for w in range(words):
                bits = mask[w] & self.clip[w] if self.clipped else mask[w]
                while bits:
                    r = w * 64 + ctz64(bits)
                    bits &= bits - 1
                    b = single if single != INT64_MIN else bucket[r]
                    if b < cut:
                        old += 1
                        continue
                    whole, real = 1, 0
                    if column != NULL:
                        v = load_value(p.code, column + <size_t>r * width)
                        whole = <int64_t>v
                        if p.code >= F32:
                            memcpy(&real, &v, 8)
                        else:
                            real = <double>v if p.code <= 4 else <double>whole
                    gear_put(g, p.unit, b, whole, real)
            if old and before != p.filter:
                self.lost += old
            before = p.filter

    def hits(self):
        """Filters of ``outside`` that match some of the last rows."""
        return [f for f in self.outside if self.bank.count[<int>f]]

    def picks(self, int filter, Picks out not None):
        """The rows that match ``filter``, as picks of the slice start .. stop."""
        cdef uint32_t w, rows = self.stop - self.start, words = (rows + 63) >> 6
        cdef const uint64_t* mask
        if not 0 <= filter < self.bank.n:
            raise IndexError(filter)
        mask = self.bank.mask(filter)
        for w in range(words):
            out.words[w] = mask[w] & self.clip[w] if self.clipped else mask[w]
        out.count_mask(rows)
        return out


def split(Block block not None, Picks picks not None, int ts, int64_t grain):
    """Picked rows by bucket: [(bucket, Picks)], ascending."""
    cdef const int64_t* t
    cdef const uint16_t* rows
    cdef uint32_t i
    if not 0 <= ts < block.layout.n or block.layout.column[ts].code != I64 or grain <= 0 or picks.rows > block.rows:
        raise ValueError("no times in these rows")
    t = <const int64_t*>block.col[ts]
    rows = picks.as_list()
    found = {}
    for i in range(picks.n):
        found.setdefault(floor_div(t[rows[i]], grain), []).append(rows[i])
    if len(found) == 1:
        return [(next(iter(found)), picks)]
    return [(b, Picks.of(picks.rows, found[b])) for b in sorted(found)]
