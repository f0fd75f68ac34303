"""Sliding windows by key: a tick costs time only for keys with changed windows.

Rows are those of a roll-up: the start of a bucket, the columns of the key, values.  Sums of integers move with the
window; the smallest, the largest and sums of doubles are found again from the entries of a key that changed.
A key is known by a 64-bit hash of its bytes (seeded by the log), while rows of it are in the ring or it is pinned.
"""

from libc.math cimport INFINITY, NAN, isnan
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from c_block cimport BYTES, F32, I64
from c_hash_table cimport (
    NOT_FOUND, mum, slots_add, slots_clear, slots_home, slots_next, slots_remove, slots_reserve, table_free)
from c_source cimport floor_div, load_value
from c_window cimport Cond, J_SUM, holds, joined, nothing
from confluo_tools.core.block.block cimport Block, Layout
from confluo_tools.core.monitor.window cimport read_cond
from confluo_tools.core.monitor.window import KINDS as _KINDS
cimport cython

cdef enum:
    MAX_SLOTS = 1 << 22
    MAX_ENTRIES = 1 << 26
    MAX_KEY = 1024
    DIRTY = 1
    PINNED = 2
    IDLE = 4
    NAMELESS = 8                        # known by its hash only, until it has rows


cdef void* grown(void* memory, size_t room, size_t size) noexcept nogil:
    return realloc(memory, room * size if room * size else 1)


@cython.final
cdef class KeyedWindows:
    """Windows of ``window`` ns evaluated every ``period`` ns, one per key.  See `window.GridWindows`.

    ``most``: keys at once; rows of further ones are ``dropped``, and counted.
    """

    def __cinit__(self, int64_t window, int64_t period, int64_t head, kinds, tests, uint64_t seed,
                  uint32_t most=1 << 20):
        cdef int64_t a = window, b = period, room, i
        cdef int k
        if window <= 0 or period <= 0 or head < 0 or not 1 <= most <= 1 << 24:
            raise ValueError(f"a window of {window} ns every {period} ns")
        while b:
            a, b = b, a % b
        self.window, self.period, self.grain, self.most = window, period, a, most
        self.n, self.step = window // a, period // a
        room = self.n + self.step + head // a + 4
        self.slots = 16
        while self.slots < room and self.slots < MAX_SLOTS:
            self.slots *= 2
        if self.slots < room:
            raise MemoryError(f"{self.n} steps")
        kinds, tests = list(kinds), list(tests)
        self.units, self.tests, self.seed = len(kinds), len(tests), seed | 1
        self.layouts, self.memory = [], []
        self.kind = <int*>calloc(max(self.units, 1), sizeof(int))
        self.place = <int*>calloc(max(self.units, 1), sizeof(int))
        self.value = <double*>calloc(max(self.units, 1), sizeof(double))
        self.cond = <Cond*>calloc(max(self.tests, 1), sizeof(Cond))
        self.clear = <Cond*>calloc(max(self.tests, 1), sizeof(Cond))
        self.first = <int32_t*>malloc(self.slots * 4)
        if (self.kind == NULL or self.place == NULL or self.value == NULL or self.cond == NULL or self.clear == NULL
                or self.first == NULL or slots_reserve(&self.id_of, 1)):
            raise MemoryError
        for i in range(self.slots):
            self.first[i] = -1
        for k, name in enumerate(kinds):
            self.kind[k] = _KINDS.index(name)
            self.place[k] = self.ints
            self.ints += self.kind[k] == 0
        for k, (condition, end) in enumerate(tests):
            read_cond(&self.cond[k], condition, self.units, self.memory)
            read_cond(&self.clear[k], end, self.units, self.memory)
        self.entry_free = self.id_free = -1
        self.wide = 1
        self.start(0)

    def __dealloc__(self):
        cdef int i
        for i in range(self.sources):
            free(self.source[i].unit)
        free(self.source)
        free(self.kind)
        free(self.place)
        free(self.value)
        free(self.cond)
        free(self.clear)
        free(self.first)
        free(self.entry)
        free(self.val)
        free(self.hash)
        free(self.refs)
        free(self.chain)
        free(self.total)
        free(self.state)
        free(self.flag)
        free(self.key)
        table_free(&self.id_of)
        free(self.dirty)
        free(self.idle)
        free(self.changed)

    def add_source(self, Layout layout not None, int keys, values):
        """Rows of ``layout``: column 0 the start of a bucket, then ``keys`` columns; ``values``: (unit, column).

        Returns the number of the source.  All sources are added before the first row, with the same columns as keys.
        """
        cdef SourceOf* s
        cdef uint32_t size = 0
        cdef int i, n
        values = list(values)
        n = len(values)
        if self.entries or not 0 < keys < layout.n or layout.column[0].code != I64:
            raise ValueError("rows without a time and a key")
        for i in range(1, keys + 1):
            size += layout.column[i].width
        if size > MAX_KEY or (self.sources and size != self.key_bytes):
            raise ValueError(f"a key of {size} bytes")
        for unit, col in values:
            if not 0 <= unit < self.units or not keys < col < layout.n or layout.column[<int>col].code >= BYTES or (
                    layout.column[<int>col].count != 1):
                raise ValueError(f"unit {unit} from column {col}")
        s = <SourceOf*>realloc(self.source, (self.sources + 1) * sizeof(SourceOf))
        if s == NULL:
            raise MemoryError
        self.source = s
        s = &self.source[self.sources]
        memset(s, 0, sizeof(SourceOf))
        s.unit = <int*>calloc(max(n, 1) * 3, sizeof(int))
        if s.unit == NULL:
            raise MemoryError
        s.col, s.code = s.unit + n, s.unit + 2 * n
        s.first, s.keys, s.values, self.key_bytes = 1, keys, n, size
        for i, (unit, col) in enumerate(values):
            s.unit[i], s.col[i], s.code[i] = unit, col, layout.column[<int>col].code
        self.wide = max(self.wide, n)
        self.layouts.append(layout)
        self.sources += 1
        return self.sources - 1

    def start(self, int64_t after):
        """Empty all windows and forget all keys; the next tick is the first one later than ``after``."""
        cdef int64_t s
        self.end = floor_div(after, self.period) * self.step
        self.next = self.end * self.grain + self.period
        for s in range(self.slots):
            self.first[s] = -1
        self.entries, self.entry_free, self.ids, self.id_free, self.keys = 0, -1, 0, -1, 0
        self.dirties = self.idles = self.changes = 0
        slots_clear(&self.id_of)

    def skip(self, int64_t after):
        """Make the first tick later than ``after`` the next one; the ring must be empty."""
        self.end = floor_div(after, self.period) * self.step
        self.next = self.end * self.grain + self.period

    # --- keys -----------------------------------------------------------------------------------------------

    cdef int32_t find(self, uint64_t hash, const uint8_t* key, bint make) noexcept nogil:
        """The id of a key, -1 when it is not known and cannot be (-2: no memory)."""
        cdef uint64_t at = slots_home(&self.id_of, hash)
        cdef uint32_t id = slots_next(&self.id_of, hash, &at)
        while id != NOT_FOUND:
            if self.hash[id] == hash:
                if key != NULL and self.flag[id] & NAMELESS:
                    memcpy(self.key + <size_t>id * self.key_bytes, key, self.key_bytes)
                    self.flag[id] &= ~NAMELESS
                return <int32_t>id
            id = slots_next(&self.id_of, hash, &at)
        return self.new_id(hash, key) if make else -1

    cdef int32_t new_id(self, uint64_t hash, const uint8_t* key) noexcept nogil:
        cdef int32_t id = self.id_free
        cdef uint32_t room
        if self.keys >= self.most:
            return -1
        if slots_reserve(&self.id_of, <uint64_t>self.keys + 1) < 0:
            return -2
        if id >= 0:
            self.id_free = self.chain[id]
        else:
            if self.ids == self.id_room:
                room = self.id_room * 2 + 64
                self.hash = <uint64_t*>grown(self.hash, room, 8)
                self.refs = <uint32_t*>grown(self.refs, room, 4)
                self.chain = <int32_t*>grown(self.chain, room, 4)
                self.total = <int64_t*>grown(self.total, room, 8 * self.ints)
                self.state = <uint8_t*>grown(self.state, room, self.tests)
                self.flag = <uint8_t*>grown(self.flag, room, 1)
                self.key = <uint8_t*>grown(self.key, room, self.key_bytes)
                if (self.hash == NULL or self.refs == NULL or self.chain == NULL or self.total == NULL
                        or self.state == NULL or self.flag == NULL or self.key == NULL):
                    self.id_room = self.ids = 0
                    return -2
                self.id_room = room
            id = <int32_t>self.ids
            self.ids += 1
        self.hash[id], self.refs[id], self.chain[id] = hash, 0, -1
        self.flag[id] = 0 if key != NULL else NAMELESS
        memset(self.total + <size_t>id * self.ints, 0, <size_t>self.ints * 8)
        memset(self.state + <size_t>id * self.tests, 0, self.tests)
        if key != NULL:
            memcpy(self.key + <size_t>id * self.key_bytes, key, self.key_bytes)
        else:
            memset(self.key + <size_t>id * self.key_bytes, 0, self.key_bytes)
        slots_add(&self.id_of, hash, <uint32_t>id)
        self.keys += 1
        return id

    cdef void forget(self, int32_t id) noexcept nogil:
        slots_remove(&self.id_of, self.hash[id], <uint32_t>id)
        self.flag[id] = 0
        self.chain[id], self.id_free = self.id_free, id
        self.keys -= 1

    cdef int touch(self, int32_t id) noexcept nogil:
        cdef int32_t* more
        if self.flag[id] & DIRTY:
            return 0
        if self.dirties == self.dirty_room:
            more = <int32_t*>grown(self.dirty, self.dirty_room * 2 + 64, 4)
            if more == NULL:
                return -1
            self.dirty, self.dirty_room = more, self.dirty_room * 2 + 64
        self.flag[id] |= DIRTY
        self.dirty[self.dirties] = id
        self.dirties += 1
        return 0

    # --- entries --------------------------------------------------------------------------------------------

    cdef void count_in(self, Entry* e, int32_t at, int64_t sign) noexcept nogil:
        cdef SourceOf* s = &self.source[e.source]
        cdef int64_t* total = self.total + <size_t>e.id * self.ints
        cdef int64_t* val = self.val + <size_t>at * self.wide
        cdef int i
        e.live = sign > 0
        for i in range(s.values):
            if self.kind[s.unit[i]] == 0:
                total[self.place[s.unit[i]]] += sign * val[i]

    cdef void remove(self, int32_t at) noexcept nogil:
        # The caller removes it from the list of its bucket.
        cdef Entry* e = &self.entry[at]
        if e.live:
            self.count_in(e, at, -1)
        if e.prev >= 0:
            self.entry[e.prev].next = e.next
        else:
            self.chain[e.id] = e.next
        if e.next >= 0:
            self.entry[e.next].prev = e.prev
        self.refs[e.id] -= 1
        self.touch(e.id)
        e.after, self.entry_free = self.entry_free, at

    cdef void empty(self, int64_t slot) noexcept nogil:
        cdef int32_t at = self.first[slot], after
        self.first[slot] = -1
        while at >= 0:
            after = self.entry[at].after
            self.remove(at)
            at = after

    cdef int put(self, SourceOf* s, const uint8_t** col, const uint32_t* width, uint32_t row,
                 uint8_t* key) noexcept nogil:
        cdef int64_t bucket = floor_div((<const int64_t*>col[0])[row], self.grain), slot
        cdef uint64_t h = self.seed, word, v
        cdef uint32_t size = 0, i
        cdef int32_t id, at, room
        cdef Entry* e
        cdef Entry* more
        cdef int64_t* vals
        cdef double real
        if bucket < self.end - self.n or bucket >= self.end - self.n + self.slots:
            self.lost += 1
            return 0
        for i in range(1, s.keys + 1):
            memcpy(key + size, col[i] + <size_t>row * width[i], width[i])
            size += width[i]
        memset(key + size, 0, 8)
        for i in range((size + 7) // 8):
            memcpy(&word, key + i * 8, 8)
            h = mum(h ^ word, <uint64_t>0x9E3779B97F4A7C15 ^ self.seed)
        h = mum(h ^ size, <uint64_t>0xD6E8FEB86659FD93)
        id = self.find(h, key, True)
        if id == -1:
            self.dropped += 1
            return 0
        if id < 0:
            return -1
        at = self.entry_free
        if at >= 0:
            self.entry_free = self.entry[at].after
        else:
            if self.entries == self.entry_room:
                room = self.entry_room * 2 + 256
                if room > MAX_ENTRIES:
                    self.dropped += 1
                    return 0
                more = <Entry*>grown(self.entry, room, sizeof(Entry))
                if more == NULL:
                    return -1
                self.entry = more
                vals = <int64_t*>grown(self.val, room, 8 * self.wide)
                if vals == NULL:
                    return -1
                self.val, self.entry_room = vals, room
            at = self.entries
            self.entries += 1
        e = &self.entry[at]
        slot = bucket & (self.slots - 1)
        e.id, e.source, e.live = id, <int32_t>(s - self.source), 0
        e.after, self.first[slot] = self.first[slot], at
        e.prev, e.next, self.chain[id] = -1, self.chain[id], at
        if e.next >= 0:
            self.entry[e.next].prev = at
        self.refs[id] += 1
        vals = self.val + <size_t>at * self.wide
        for i in range(<uint32_t>s.values):
            v = load_value(s.code[i], col[s.col[i]] + <size_t>row * width[s.col[i]])
            if self.kind[s.unit[i]] and s.code[i] < F32:
                real = <double>v if s.code[i] <= 4 else <double><int64_t>v
                memcpy(&vals[i], &real, 8)
            else:
                vals[i] = <int64_t>v
        if bucket < self.end:
            self.count_in(e, at, 1)
            return self.touch(id)
        return 0

    def add(self, int source, Block block not None):
        """Add the rows of a roll-up.  MemoryError if the keys do not fit into memory."""
        cdef uint8_t key[MAX_KEY + 8]
        cdef uint32_t width[250]
        cdef Layout layout
        cdef SourceOf* s
        cdef uint32_t row
        cdef int i, status = 0
        if not 0 <= source < self.sources or block.layout is not self.layouts[source]:
            raise ValueError("rows of another source")
        layout, s = block.layout, &self.source[source]
        for i in range(layout.n):
            width[i] = layout.column[i].width
        with nogil:
            for row in range(block.rows):
                status = self.put(s, block.col, width, row, key)
                if status:
                    break
        if status:
            raise MemoryError(f"{self.keys} keys")

    # --- ticks ------------------------------------------------------------------------------------------------

    cdef void evaluate(self, int32_t id) noexcept nogil:
        cdef int64_t* total = self.total + <size_t>id * self.ints
        cdef int32_t at = self.chain[id]
        cdef SourceOf* s
        cdef double real
        cdef int i, u
        for i in range(self.units):
            self.value[i] = <double>total[self.place[i]] if self.kind[i] == 0 else nothing(self.kind[i] - 1)
        if self.ints < self.units:
            while at >= 0:
                if self.entry[at].live:
                    s = &self.source[self.entry[at].source]
                    for i in range(s.values):
                        u = s.unit[i]
                        if self.kind[u]:
                            memcpy(&real, &self.val[<size_t>at * self.wide + i], 8)
                            if not isnan(real):
                                self.value[u] = joined(self.kind[u] - 1, self.value[u], real)
                at = self.entry[at].next
            for i in range(self.units):
                if self.kind[i] and self.kind[i] - 1 != J_SUM and (
                        self.value[i] == INFINITY or self.value[i] == -INFINITY):
                    self.value[i] = NAN

    cdef int move(self) noexcept nogil:
        cdef int64_t end = self.end + self.step, b, slot, leaving
        cdef int32_t at, id
        cdef uint32_t i
        cdef int k
        cdef uint8_t* state
        cdef uint8_t new
        cdef void* more
        for i in range(self.idles):                     # the changes of the last tick have been read
            id = self.idle[i]
            self.flag[id] &= ~IDLE
            if self.refs[id] == 0 and not self.flag[id] & (PINNED | DIRTY):
                self.forget(id)
        self.idles = self.changes = 0
        leaving = min(self.end, end - self.n)
        for b in range(self.end - self.n, leaving):
            self.empty(b & (self.slots - 1))
        for b in range(self.end, end):
            slot = b & (self.slots - 1)
            if b < end - self.n:                        # between two windows
                self.empty(slot)
                continue
            at = self.first[slot]
            while at >= 0:
                self.count_in(&self.entry[at], at, 1)
                if self.touch(self.entry[at].id):
                    return -1
                at = self.entry[at].after
        self.end = end
        self.next += self.period
        for i in range(self.dirties):
            id = self.dirty[i]
            self.flag[id] &= ~DIRTY
            self.evaluate(id)
            state = self.state + <size_t>id * self.tests
            for k in range(self.tests):
                new = holds(&self.cond[k], self.value)
                if self.clear[k].n and holds(&self.clear[k], self.value):
                    new |= 2
                if new != state[k]:
                    state[k] = new
                    if self.changes == self.change_room:
                        more = grown(self.changed, self.change_room * 2 + 64, 8)
                        if more == NULL:
                            return -1
                        self.changed, self.change_room = <uint64_t*>more, self.change_room * 2 + 64
                    self.changed[self.changes] = <uint64_t>id * self.tests + k
                    self.changes += 1
            if self.refs[id] == 0 and not self.flag[id] & IDLE:
                if self.idles == self.idle_room:
                    more = grown(self.idle, self.idle_room * 2 + 64, 4)
                    if more == NULL:
                        return -1
                    self.idle, self.idle_room = <int32_t*>more, self.idle_room * 2 + 64
                self.flag[id] |= IDLE
                self.idle[self.idles] = id
                self.idles += 1
        self.dirties = 0
        return 0

    def tick(self):
        """Do the next tick; returns the number of changed tests of keys.  MemoryError."""
        cdef int status
        with nogil:
            status = self.move()
        if status:
            raise MemoryError(f"{self.keys} keys")
        return self.changes

    def changed_tests(self):
        """[(id, hash, test, state)] of the changes at the last tick, by hash and test; see `GridWindows`."""
        cdef uint32_t i, id
        out = []
        for i in range(self.changes):
            id = <uint32_t>(self.changed[i] // self.tests)
            out.append((id, self.hash[id], self.changed[i] % self.tests, self.state[self.changed[i]]))
        out.sort(key=_place)
        return out

    def values(self, uint32_t id):
        """Values of all units for a key, as of the last tick."""
        cdef int i
        if id >= self.ids:
            raise IndexError(id)
        self.evaluate(id)
        return [self.value[i] for i in range(self.units)]

    def key_of(self, uint32_t id):
        """The bytes of the key's columns, concatenated; zeros if it was adopted and has no rows yet."""
        if id >= self.ids:
            raise IndexError(id)
        return (self.key + <size_t>id * self.key_bytes)[:self.key_bytes]

    def pin(self, uint32_t id, bint on):
        """Keep a key while it has no rows, or stop keeping it."""
        if id >= self.ids:
            raise IndexError(id)
        if on:
            self.flag[id] |= PINNED
        elif self.flag[id] & PINNED:
            self.flag[id] &= ~PINNED
            if self.refs[id] == 0 and self.touch(id):
                raise MemoryError

    def adopt(self, uint64_t hash):
        """The id of a key of an earlier run, pinned; at the next tick all its tests count as changed."""
        cdef int32_t id = self.find(hash, NULL, True)
        if id < 0:
            raise MemoryError(f"{self.keys} keys")
        self.flag[id] |= PINNED
        memset(self.state + <size_t>id * self.tests, 128, self.tests)
        if self.touch(id):
            raise MemoryError
        return id


def _place(changed):
    return changed[1], changed[2]
