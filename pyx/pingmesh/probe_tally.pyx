"""Probe tally: counts probes by window and group in one pass; pingmesh/analysis/probe_tally.py defines the values."""

import os
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from c_bits cimport prefetch
from c_hash_table cimport HashTable, PREFETCH_FROM, hash_words, table_free, table_insert, table_reserve
from c_array cimport grow
from c_probe_tally cimport (
    BLAMED, CHUNK, FIRST_BITS, FIRST_ROOM, FORWARD, HOST, LIMITS, LOOK, MAX_WINDOWS, MAX_WORDS, N_ABOVE, N_ALL,
    N_DROPPED, N_FORWARD, N_GARBLED, N_LOCAL, N_NETWORK, N_OK, N_OVERFLOW, N_REFUSED, N_RESET, N_REVERSE, N_SEEN,
    N_SLOW, N_TIMEOUT, N_UNREACHABLE, OK, PROBES, REVERSE, SIGNATURE, TARGET, Cell, Drop, Part, Rows, Span, Window,
    class_of, target_of, window_of,
)
from c_values cimport values_add, values_free, values_merge, values_prefetch, values_quantile
from confluo_tools.core.block.block cimport Block, Layout, Picks, column_of
cimport cython

COUNTERS = ("ok", "dropped", "overflow", "timeout", "refused", "unreachable", "reset", "garbled", "local", "forward",
            "reverse", "slow", "network_ns", "seen_ns", "above", "above2", "above3", "above4")

cdef uint8_t[8] COUNTER_OF = [0, N_OK, N_TIMEOUT, N_REFUSED, N_UNREACHABLE, N_RESET, N_LOCAL, N_GARBLED]  # by outcome

cdef uint32_t NONE = 0xFFFFFFFFu
cdef int64_t MAX_SPAN = <int64_t>1 << 52            # ns, 52 days: max time that a record of a host covers
cdef tuple COLUMNS = ("ts", "kind", "outcome", "notes", "retries", "hint", "rtt", "elapsed", "overflows", "src", "dst",
                      "src_ip", "dst_ip", "src_ip6", "dst_ip6")
cdef tuple WIDTHS = (8, 1, 1, 2, 1, 1, 8, 8, 4, 32, 32, 4, 4, 16, 16)


@cython.final
cdef class ProbeTally:
    """Probes by window and by group.

    ``by``: for each part of a key the numbers of its columns (an address has two).  ``window``: ns; 0: one window.
    ``classes``: {number of a column: {bytes of a value: class, from 1}}: keys contain the class, 0 for others.
    ``limits``: up to 4 round-trip times (ns); probes above each limit are counted.
    ``signature``: (from, to, drops) of connect times in ns, for records without retries.
    ``max_drops``: drops of a window kept for `pending`; more are counted in ``drops_not_kept``.
    """
    def __cinit__(self):
        self.part, self.windows_, self.span = NULL, NULL, NULL

    def __init__(self, Layout layout not None, by, int64_t window=0, *, classes=None, limits=(), signature=(),
                 max_drops=1 << 20, max_windows=MAX_WINDOWS, uint64_t max_bytes=1 << 40):
        cdef uint64_t room = 0
        cdef bytes seed = os.urandom(32)
        if self.part != NULL or self.seed[1]:
            raise ValueError("already initialised")
        memcpy(self.seed, <const char*>seed, 16)
        self.seed[1] |= 1
        memcpy(self.targets.seed, <const char*>seed + 16, 16)
        self.targets.seed[1] |= 1
        self.targets.words = TARGET
        if window < 0 or len(limits) > LIMITS or len(signature) > SIGNATURE:
            raise ValueError("negative window, or too many limits")
        self.layout, self.window = layout, window
        self.max_drops, self.max_windows, self.max_bytes = max_drops, max_windows, max_bytes
        self.newest, self.oldest = INT64_MIN, INT64_MAX
        self.by = tuple([tuple(columns) for columns in by])
        for columns in self.by:
            for col in columns:
                if not 0 <= col < layout.n:
                    raise ValueError(f"no column {col}")
                if grow(<void**>&self.part, &room, self.parts + 1, 8, sizeof(Part)) < 0:
                    raise MemoryError
                width = layout.column[<int>col].width
                self.part[self.parts].col, self.part[self.parts].width = col, width
                self.part[self.parts].word, self.part[self.parts].words = self.words, (width + 7) // 8
                self.parts += 1
                if classes is not None and col in classes:
                    self._classes(&self.part[self.parts - 1], classes[col], seed)
                self.words += self.part[self.parts - 1].words
                if self.words > MAX_WORDS:
                    raise ValueError(f"key exceeds {MAX_WORDS * 8} bytes")
        for i, limit in enumerate(limits):
            self.limit[i] = limit
        self.limits = len(limits)
        for i, (low, high, lost) in enumerate(signature):
            self.low[i], self.high[i], self.lost[i] = low, high, lost
        self.signature = len(signature)
        columns = [[layout.describe(col) for col in columns] for columns in self.by]
        numbers = sorted((col, sorted(values.items())) for col, values in (classes or {}).items())
        self.question = repr((columns, window, numbers, tuple(limits), tuple(signature), max_drops)).encode()

    def __dealloc__(self):
        cdef uint64_t i
        for i in range(self.windows_n):
            self._clear(&self.windows_[i])
        for i in range(self.parts):
            if self.part[i].classes != NULL:
                table_free(self.part[i].classes)
                free(self.part[i].classes)
                free(self.part[i].class_of)
        free(self.windows_)
        free(self.part)
        free(self.span)
        table_free(&self.targets)

    cdef int _classes(self, Part* p, dict classes, bytes seed) except -1:
        cdef uint64_t key[4]
        cdef uint64_t at
        cdef HashTable* t
        if p.width > 32:
            raise ValueError("column with classes exceeds 32 bytes")
        p.classes = t = <HashTable*>calloc(1, sizeof(HashTable))
        if t == NULL:
            raise MemoryError
        p.class_of = <uint64_t*>calloc(len(classes) + 1, 8)
        t.words = p.words
        memcpy(t.seed, <const char*>seed, 16)
        t.seed[1] |= 1
        if p.class_of == NULL or table_reserve(t, len(classes) + 1) < 0:
            raise MemoryError
        for value, number in classes.items():
            memset(key, 0, sizeof(key))
            memcpy(key, <const char*>(<bytes>value), min(<size_t>len(value), <size_t>p.width))
            at = table_insert(t, key)
            p.class_of[at] = number
        p.words = 1
        return 0

    cdef void _clear(self, Window* w) noexcept nogil:
        cdef uint64_t i
        for i in range(w.room):
            values_free(&w.cell[i].rtt)
            values_free(&w.cell[i].seen)
        free(w.cell)
        free(w.drop)
        table_free(&w.table)
        memset(w, 0, sizeof(Window))

    # -- windows, in the order of their starts

    cdef uint64_t _at(self, int64_t start) noexcept nogil:
        cdef uint64_t low = 0, high = self.windows_n, mid
        while low < high:
            mid = (low + high) // 2
            if self.windows_[mid].start < start:
                low = mid + 1
            else:
                high = mid
        return low

    cdef Window* _open(self, int64_t start) noexcept nogil:
        # The window that begins then; NULL: no memory, or too many windows.
        cdef uint64_t at = self._at(start), i
        cdef uint64_t* slots
        cdef uint64_t* keys
        cdef Window* w
        if at < self.windows_n and self.windows_[at].start == start:
            return &self.windows_[at]
        if self.windows_n >= self.max_windows:
            return NULL
        if grow(<void**>&self.windows_, &self.windows_room, self.windows_n + 1, 8, sizeof(Window)) < 0:
            return NULL
        slots = <uint64_t*>calloc(1 << FIRST_BITS, 8)           # table_reserve would start with 4,096 slots
        keys = <uint64_t*>calloc(FIRST_ROOM * max(self.words, <uint32_t>1), 8)
        if slots == NULL or keys == NULL:
            free(slots)
            free(keys)
            return NULL
        i = self.windows_n
        while i > at:
            self.windows_[i] = self.windows_[i - 1]
            i -= 1
        self.windows_n += 1
        w = &self.windows_[at]
        memset(w, 0, sizeof(Window))
        w.start = start
        w.table.seed[0], w.table.seed[1] = self.seed[0], self.seed[1]
        w.table.words = max(self.words, <uint32_t>1)
        w.table.slots, w.table.keys, w.table.room = slots, keys, FIRST_ROOM
        w.table.mask, w.table.shift = (1 << FIRST_BITS) - 1, 64 - FIRST_BITS
        return w

    cdef Window* _find(self, int64_t start) except NULL:
        cdef uint64_t at = self._at(start)
        if at >= self.windows_n or self.windows_[at].start != start:
            raise KeyError(start)
        return &self.windows_[at]

    # -- rows

    def update(self, Block block not None, Picks picks=None):
        """Count the picked rows of a block.  Raises MemoryError at the limit of windows or groups."""
        cdef Rows c
        cdef const uint8_t* p[15]
        cdef const uint16_t* rows = NULL
        cdef uint32_t n = block.rows
        cdef int i, status
        if block.layout is not self.layout:
            raise ValueError("the block has another layout")
        if picks is not None:
            if picks.rows != block.rows:
                raise ValueError("the picks are of another block")
            rows, n = picks.as_list(), picks.n
        for i in range(15):
            p[i] = column_of(block, COLUMNS[i], WIDTHS[i])
        c.ts, c.kind, c.outcome, c.notes = <const int64_t*>p[0], p[1], p[2], <const uint16_t*>p[3]
        c.retries, c.hint, c.rtt, c.elapsed = p[4], p[5], <const int64_t*>p[6], <const int64_t*>p[7]
        c.overflows, c.src, c.dst = <const uint32_t*>p[8], p[9], p[10]
        c.src_ip, c.dst_ip, c.src_ip6, c.dst_ip6 = <const uint32_t*>p[11], <const uint32_t*>p[12], p[13], p[14]
        with nogil:
            status = self._update(block.col, &c, rows, n)
        self.updates += 1
        if status < 0 or (self.updates % LOOK == 0 and self.memory() > self.max_bytes):
            raise MemoryError

    def memory(self):
        """Approximate bytes of the groups of all windows."""
        cdef uint64_t i, j, size = 0
        cdef Window* w
        for i in range(self.windows_n):
            w = &self.windows_[i]
            size += w.room * sizeof(Cell) + w.table.room * (w.table.words + 2) * 8 + w.drop_room * sizeof(Drop)
            for j in range(w.table.count):
                size += (w.cell[j].rtt.room + w.cell[j].seen.room) * 8
        return size

    cdef int _update(self, const uint8_t** col, const Rows* c, const uint16_t* rows, uint32_t n) noexcept nogil:
        cdef uint32_t row[CHUNK]
        cdef uint32_t r, m, at = 0
        cdef uint8_t kind
        cdef int64_t ts, low = 0, newest = self.newest, oldest = self.oldest
        cdef uint64_t span = 0
        cdef Window* w = NULL
        while at < n:
            # Rows that are probes of one window, up to CHUNK of them.
            m = 0
            while at < n and m < CHUNK:
                r = rows[at] if rows != NULL else at
                kind = c.kind[r]
                if kind >= PROBES:
                    if kind == HOST and c.overflows[r] and self._host(c, r) < 0:
                        return -1
                    at += 1
                    continue
                if (kind == 0 or c.outcome[r] == 0 or c.outcome[r] > 7) and not (self.signature and c.outcome[r] <= 7):
                    self.unknown += 1
                    at += 1
                    continue
                ts = c.ts[r]
                if self.window and <uint64_t>ts - <uint64_t>low >= span:
                    if m:
                        break                       # count these rows first
                    w = self._open(window_of(ts, self.window))
                    if w == NULL:
                        return -1
                    low, span = w.start, <uint64_t>self.window if w.start > INT64_MIN else 1
                newest, oldest = max(newest, ts), min(oldest, ts)
                row[m] = r
                m += 1
                at += 1
            if m == 0:
                continue
            if w == NULL:
                w = self._open(0)
                if w == NULL:
                    return -1
            if self._chunk(w, col, c, row, m) < 0:
                return -1
        self.newest, self.oldest = newest, oldest
        return 0

    cdef int _chunk(
        self, Window* w, const uint8_t** col, const Rows* c, const uint32_t* row, uint32_t n
    ) noexcept nogil:
        cdef uint64_t key[CHUNK][MAX_WORDS]
        cdef uint64_t h[CHUNK]
        cdef uint32_t cell[CHUNK]
        cdef uint32_t i, j
        cdef const Part* p
        cdef Cell* s
        cdef bint far
        if table_reserve(&w.table, n) < 0 or grow(<void**>&w.cell, &w.room, w.table.count + n, 8, sizeof(Cell)) < 0:
            return -1
        self.probes += n
        if self.words == 0:
            for i in range(n):
                key[i][0] = 0
        for j in range(<uint32_t>self.parts):
            p = &self.part[j]
            if p.classes != NULL:
                for i in range(n):
                    key[i][p.word] = class_of(p, col[p.col] + <size_t>row[i] * p.width)
            elif p.width == 16:                     # names of pods
                for i in range(n):                  # two copies: gcc 12 assumes alignment for one of 16 bytes
                    memcpy(&key[i][p.word], col[p.col] + <size_t>row[i] * 16, 8)
                    memcpy(&key[i][p.word + 1], col[p.col] + <size_t>row[i] * 16 + 8, 8)
            else:
                for i in range(n):
                    key[i][p.word + p.words - 1] = 0
                    memcpy(&key[i][p.word], col[p.col] + <size_t>row[i] * p.width, p.width)
        far = w.table.mask >= PREFETCH_FROM
        if far:
            for i in range(n):
                h[i] = hash_words(&w.table, key[i]) >> w.table.shift
                prefetch(w.table.slots + h[i])
            for i in range(n):
                if w.table.slots[h[i]]:
                    prefetch(w.table.keys + <size_t>(<uint32_t>w.table.slots[h[i]] - 1) * w.table.words)
        for i in range(n):
            cell[i] = table_insert(&w.table, key[i])
        if w.table.count * sizeof(Cell) > 1 << 18:
            for i in range(n):
                s = &w.cell[cell[i]]
                prefetch(s)
                prefetch(<uint8_t*>s + 64)
                prefetch(<uint8_t*>s + 128)
            for i in range(n):
                values_prefetch(&w.cell[cell[i]].rtt, <uint64_t>c.rtt[row[i]])
                values_prefetch(&w.cell[cell[i]].seen, <uint64_t>c.elapsed[row[i]])
        for i in range(n):
            if self._row(w, cell[i], c, row[i]) < 0:
                return -1
        return 0

    cdef inline int _row(self, Window* w, uint32_t number, const Rows* c, uint32_t r) noexcept nogil:
        cdef Cell* s = &w.cell[number]
        cdef uint8_t outcome = c.outcome[r]
        cdef uint32_t retries = c.retries[r]
        cdef int64_t rtt = c.rtt[r], elapsed = c.elapsed[r]
        cdef int k
        if self.signature:
            if outcome == 0:
                outcome = OK if elapsed > 0 or rtt > 0 else 2
            if outcome == OK and retries == 0:
                retries = self._retries_of(elapsed if elapsed > 0 else rtt, s)
                if rtt <= 0:
                    rtt = elapsed
        s.count[COUNTER_OF[outcome]] += 1
        if outcome != OK:
            return 0
        if retries:
            if c.notes[r] & BLAMED:
                s.count[N_OVERFLOW] += 1
                return 0
            s.count[N_DROPPED] += 1
            s.count[N_FORWARD] += c.hint[r] == FORWARD
            s.count[N_REVERSE] += c.hint[r] == REVERSE
            return self._drop(w, number, c, r, retries)
        if rtt <= 0:
            return 0
        for k in range(self.limits):
            s.count[N_ABOVE + k] += <uint64_t>rtt > self.limit[k]
        if values_add(&s.rtt, <uint64_t>rtt) < 0:
            return -1
        if elapsed > 0 and (c.kind[r] == 1 or c.kind[r] >= 5 or c.kind[r] == 0):   # echo, http and https take longer
            s.count[N_NETWORK] += <uint64_t>min(rtt, elapsed)
            s.count[N_SEEN] += <uint64_t>elapsed
            return values_add(&s.seen, <uint64_t>elapsed)
        return 0

    cdef uint32_t _retries_of(self, int64_t took, Cell* s) noexcept nogil:
        cdef int k
        for k in range(self.signature):
            if self.low[k] <= <uint64_t>took < self.high[k]:
                if self.lost[k] == 0:
                    s.count[N_SLOW] += 1
                return self.lost[k]
        return 0

    cdef int _drop(self, Window* w, uint32_t cell, const Rows* c, uint32_t r, uint32_t retries) noexcept nogil:
        cdef uint64_t key[TARGET]
        cdef Drop* d
        if c.hint[r] == REVERSE:            # the target had received it
            return 0
        if w.drops >= self.max_drops:
            self.drops_not_kept += 1
            return 0
        if table_reserve(&self.targets, 1) < 0:
            return -1
        if grow(<void**>&w.drop, &w.drop_room, w.drops + 1, 8, sizeof(Drop)) < 0:
            return -1
        target_of(c.dst + <size_t>r * 32, c.dst_ip[r], c.dst_ip6 + <size_t>r * 16, key)
        d = &w.drop[w.drops]
        w.drops += 1
        d.ts, d.end = c.ts[r], c.ts[r] + max(c.elapsed[r], <int64_t>0)
        d.cell, d.retries, d.hint = cell, retries, c.hint[r]
        d.target = table_insert(&self.targets, key)
        return 0

    cdef int _host(self, const Rows* c, uint32_t r) noexcept nogil:
        cdef uint64_t key[TARGET]
        cdef uint8_t none[32]
        cdef Span* s
        if table_reserve(&self.targets, 2) < 0:
            return -1
        if grow(<void**>&self.span, &self.span_room, self.spans_n + 1, 8, sizeof(Span)) < 0:
            return -1
        s = &self.span[self.spans_n]
        self.spans_n += 1
        s.end, s.overflows = c.ts[r], c.overflows[r]        # the record is of the end of its time
        s.ts = s.end - min(max(c.elapsed[r], <int64_t>0), MAX_SPAN)
        target_of(c.src + <size_t>r * 32, c.src_ip[r], c.src_ip6 + <size_t>r * 16, key)
        s.name = table_insert(&self.targets, key)
        memset(none, 0, 32)
        target_of(none, c.src_ip[r], c.src_ip6 + <size_t>r * 16, key)
        s.address = table_insert(&self.targets, key) if key[4] | key[5] else NONE
        return 0

    # -- results

    def windows(self):
        """Start times of the windows, ascending."""
        cdef uint64_t i
        return [self.windows_[i].start for i in range(self.windows_n)]

    def groups(self, int64_t start):
        """Number of groups of a window."""
        return self._find(start).table.count

    def keys(self, int64_t start):
        """The keys of a window: for each column of ``by``, the values of all groups, joined.

        A column with classes has u64 values.
        """
        cdef Window* w = self._find(start)
        cdef uint64_t j, i, size
        cdef Part* p
        cdef bytearray raw
        cdef uint8_t* to
        cdef list out = []
        for j in range(self.parts):
            p = &self.part[j]
            size = 8 if p.classes != NULL else p.width
            raw = bytearray(w.table.count * size)
            to = <uint8_t*>raw
            for i in range(w.table.count):
                memcpy(to + i * size, w.table.keys + i * w.table.words + p.word, size)
            out.append(bytes(raw))
        return out

    def counts(self, int64_t start, tuple rtt=(), tuple seen=(), unions=None):
        """(u64 counters in the order of `COUNTERS`, then the counts of both kinds of values; f64 quantiles) by group.

        ``rtt``, ``seen``: quantiles of round trips and of times seen by the program, as pairs of millionths and an
        offset of the rank in thousandths of its standard deviation; nan without values.
        ``unions``: lists of group numbers, each merged into one result.
        """
        cdef Window* w = self._find(start)
        cdef Cell sum
        cdef uint64_t i, n = w.table.count, m = len(rtt) + len(seen), k
        cdef bytearray numbers, values
        cdef uint64_t* to
        cdef double* q
        if unions is not None:
            n = len(unions)
        numbers, values = bytearray(n * (N_ALL + 2) * 8), bytearray(n * m * 8)
        to, q = <uint64_t*><uint8_t*>numbers, <double*><uint8_t*>values
        for i in range(n):
            if unions is None:
                self._put(&w.cell[i], to + i * (N_ALL + 2), q + i * m, rtt, seen)
                continue
            memset(&sum, 0, sizeof(sum))
            try:
                for k in unions[i]:
                    if k >= w.table.count:
                        raise IndexError(k)
                    if self._join(&sum, &w.cell[k]) < 0:
                        raise MemoryError
                self._put(&sum, to + i * (N_ALL + 2), q + i * m, rtt, seen)
            finally:
                values_free(&sum.rtt)
                values_free(&sum.seen)
        return bytes(numbers), bytes(values)

    cdef int _join(self, Cell* to, const Cell* other) noexcept nogil:
        cdef int k
        for k in range(N_ALL):
            to.count[k] += other.count[k]
        return -1 if values_merge(&to.rtt, &other.rtt) < 0 or values_merge(&to.seen, &other.seen) < 0 else 0

    cdef int _put(self, Cell* s, uint64_t* to, double* q, tuple rtt, tuple seen) except -1:
        cdef uint32_t millionths
        cdef int32_t aside
        memcpy(to, s.count, sizeof(s.count))
        to[N_ALL], to[N_ALL + 1] = s.rtt.n, s.seen.n
        for millionths, aside in rtt:
            q[0] = values_quantile(&s.rtt, millionths, aside)
            q += 1
        for millionths, aside in seen:
            q[0] = values_quantile(&s.seen, millionths, aside)
            q += 1
        return 0

    # -- drops explained by overflows of their targets

    def spans(self):
        """[(ts, end, overflows, targets)] of the records of hosts."""
        cdef uint64_t i
        cdef Span* s
        out = []
        for i in range(self.spans_n):
            s = &self.span[i]
            out.append((s.ts, s.end, s.overflows, [s.name] if s.address == NONE else [s.name, s.address]))
        return out

    def pending(self, int64_t start, targets):
        """[(ts, end, retries, target, number)] of the drops of a window to these targets."""
        cdef Window* w = self._find(start)
        cdef uint64_t i
        cdef set wanted = set(targets)
        cdef bytearray flag = bytearray(self.targets.count)
        for t in wanted:
            if 0 <= t < self.targets.count:
                flag[t] = 1
        out = []
        for i in range(w.drops):
            if w.drop[i].target < <uint64_t>len(flag) and flag[w.drop[i].target]:
                out.append((w.drop[i].ts, w.drop[i].end, w.drop[i].retries, w.drop[i].target, i))
        return out

    def mark_overflow(self, int64_t start, numbers):
        """Count these drops of a window as overflows; each can be marked once."""
        cdef Window* w = self._find(start)
        cdef uint64_t i
        cdef Drop* d
        for i in numbers:
            if i >= w.drops:
                raise IndexError(i)
            d = &w.drop[i]
            if d.retries == 0:
                raise ValueError(f"drop {i} is marked already")
            d.retries = 0
            w.cell[d.cell].count[N_DROPPED] -= 1
            w.cell[d.cell].count[N_OVERFLOW] += 1
            w.cell[d.cell].count[N_FORWARD] -= d.hint == FORWARD

    def pop(self, int64_t start):
        """Remove a window."""
        cdef Window* w = self._find(start)
        cdef uint64_t i = w - self.windows_
        self._clear(w)
        while i + 1 < self.windows_n:
            self.windows_[i] = self.windows_[i + 1]
            i += 1
        self.windows_n -= 1

    def forget_spans(self, int64_t before):
        """Remove the records of hosts up to ``before``."""
        cdef uint64_t i, n = 0
        for i in range(self.spans_n):
            if self.span[i].end > before:
                self.span[n] = self.span[i]
                n += 1
        self.spans_n = n
