"""Group keys of a roll-up: columns of a row packed into 64-bit words, numbered in order of appearance."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from c_block cimport F32, F64, I8
from c_hash_table cimport (
    NOT_FOUND, hash1, table_free, table_insert, table_insert1, table_insert_many, table_memory, table_reserve,
)
from c_key_ends cimport MAX_PAIRS, KeyEnds, ends_exchanged, ends_free, ends_in_order, ends_init
from c_source cimport (
    BUCKET, CHUNK, EITHER, IN_ORDER, IP, KEY, MAX_WORDS, Chunk, Source, fixed_hash, fixed_hash_bytes, ip_codes,
    ip_of_code, ip_result, load_column, no_ipv6, plain_floats, row_of, wide_codes,
)
from c_time_steps cimport local_times, step_numbers, step_start, utc_of_local
from confluo_tools.core.block.block cimport Layout
from confluo_tools.core.query.calculation cimport calc, calc_run
from confluo_tools.core.query.group_source cimport (
    in_span, intern_key, intern_merge, intern_number, interned, make_source, renumber, source_room,
)
cimport cython

cdef extern from "load.h" nogil:
    void range_u64(const uint64_t* v, uint32_t n, uint64_t* low, uint64_t* high) noexcept

cdef enum:
    WINDOW = 1 << 16        # range of one-word keys that are looked up by value


@cython.final
cdef class GroupTable:
    """Table of the distinct keys of selected rows; a group is the number of a key.

    ``keys`` are column specifications as in `rollup.Rollup`; without keys there is one group.
    A single 8- or 16-bit key indexes an array; keys of up to 64 bits in total are one word of a hash table, longer
    ones several words.  Values of more than 64 bits (IPv6 addresses, bytes, lists) are numbered in a side table
    first, so that a five-tuple with two addresses fits into two words.
    """

    def __cinit__(self, Layout layout not None, tuple keys not None, bytes seed not None):
        cdef int i
        cdef uint32_t w
        cdef uint32_t used[MAX_WORDS]
        if len(keys) > 200 or len(seed) != 16:
            raise ValueError(f"{len(keys)} keys, seed of {len(seed)} bytes")
        self.layout, self.keys, self.parts, self.kept = layout, keys, len(keys), []
        self.part = <KeyPart*>calloc(max(self.parts, 1), sizeof(KeyPart))
        if self.part == NULL:
            raise MemoryError
        for i in range(self.parts):
            make_source(&self.part[i].source, layout, keys[i], True, False, seed, self.kept)
        self._take_ends(&self.in_order, IN_ORDER)
        self._take_ends(&self.exchanged, EITHER)
        self.twice = self.exchanged.n > 0
        # Widest first, each into the first word with enough free bits.
        memset(used, 0, sizeof(used))
        for i in sorted(range(self.parts), key=lambda k: -self.part[k].source.bits):
            w = 0
            while w < MAX_WORDS and used[w] + self.part[i].source.bits > 64:
                w += 1
            if w == MAX_WORDS:
                raise ValueError(f"the keys are longer than {MAX_WORDS * 8} bytes")
            self.part[i].word, self.part[i].shift = w, used[w]
            used[w] += self.part[i].source.bits
            self.words = max(self.words, w + 1)
        self.table.words = max(self.words, <uint32_t>1)
        memcpy(self.table.seed, <const char*>seed, 16)
        self.table.seed[1] |= 1
        self.narrow = self.parts == 1 and self.part[0].source.kind == KEY and self.part[0].source.bits <= 16
        self.narrow = self.narrow and not self.part[0].source.ends
        if self.narrow:
            self.direct = <uint32_t*>calloc(1 << 16, 4)
            self.table.keys = <uint64_t*>malloc((1 << 16) * 8)
            if self.direct == NULL or self.table.keys == NULL:
                raise MemoryError
        self.word = <uint64_t**>calloc(MAX_WORDS + 1, sizeof(void*))
        if self.word == NULL:
            raise MemoryError
        for i in range(<int>self.words + 1):                          # the last word holds the values of one key
            self.word[i] = <uint64_t*>malloc(CHUNK * 8)
            if self.word[i] == NULL:
                raise MemoryError

    def __dealloc__(self):
        cdef int i
        if self.part != NULL:
            for i in range(self.parts):
                table_free(&self.part[i].source.intern)
                free(self.part[i].source.change)
        free(self.part)
        ends_free(&self.in_order)
        ends_free(&self.exchanged)
        free(self.direct)
        free(self.window)
        table_free(&self.table)
        if self.word != NULL:
            for i in range(MAX_WORDS + 1):
                free(self.word[i])
        free(self.word)

    def __len__(self):
        return self.count()

    cdef uint32_t count(self) noexcept nogil:
        return self.table.count if self.parts else 1

    cdef uint32_t at(self, uint64_t value) noexcept nogil:
        # The group of a value of the narrow key.
        if self.direct[value] == 0:
            self.table.keys[self.table.count] = value
            self.table.count += 1
            self.direct[value] = self.table.count
        return self.direct[value] - 1

    cdef int assign(self, Chunk* c, uint32_t* out) noexcept nogil:
        """Compute the group of each row of the chunk; c.single if all rows have one group.  -1 without memory."""
        cdef uint64_t* v
        cdef uint64_t* w
        cdef KeyPart* p
        cdef uint32_t k, number
        cdef uint64_t seen = 0, low, high
        cdef bint same = True
        cdef int i
        c.single = -1
        if self.narrow:
            v = self.word[0]
            part_values(&self.part[0].source, c, v)
            if all_equal(v, c.n):
                c.single = self.at(v[0])
                for k in range(c.n):
                    out[k] = <uint32_t>c.single
                return 0
            for k in range(c.n):
                number = self.direct[v[k]]
                if number == 0:
                    number = self.at(v[k]) + 1
                out[k] = number - 1
            return 0
        if table_reserve(&self.table, c.n) < 0:
            return -1
        self._turn(c)
        for i in range(self.parts):
            p = &self.part[i]
            if source_room(&p.source, c.n) < 0:
                return -1
            w = self.word[p.word]
            if not seen >> p.word & 1:
                seen |= <uint64_t>1 << p.word
                part_values(&p.source, self._seen(&p.source, c), w)
                if p.shift:
                    for k in range(c.n):
                        w[k] <<= p.shift
            else:
                v = self.word[self.words]
                part_values(&p.source, self._seen(&p.source, c), v)
                for k in range(c.n):
                    w[k] |= v[k] << p.shift
        if self.words == 1:
            range_u64(self.word[0], c.n, &low, &high)
            same = low == high
            if not same and high - low < WINDOW and self._aim(low, high):
                self._look(c.n, out)
                return 0
        for i in range(<int>self.words):
            same = same and all_equal(self.word[i], c.n)
        table_insert_many(&self.table, <const uint64_t**>self.word, 1 if same else c.n, out)
        if same:
            c.single = out[0]
            for k in range(1, c.n):
                out[k] = out[0]
        return 0

    cdef int _take_ends(self, KeyEnds* e, int kind) except -1:
        # The pairs of columns of the keys of this kind, which all have the same ones.
        cdef Source* s
        cdef int i, k, a, b
        pairs = None
        for i in range(self.parts):
            if self.part[i].source.ends != kind:
                continue
            if pairs is not None and pairs != self.keys[i][2]:
                raise ValueError("the keys have other pairs of columns")
            pairs = self.keys[i][2]
            s = &self.part[i].source
            reads = [s.col, s.col6, s.version] if s.kind == IP else [s.col]
            _check_pairs(self.layout, pairs, reads)
        if pairs is None:
            return 0
        for k in range(len(pairs)):
            a, b = pairs[k]
            e.pair[k].a, e.pair[k].b, e.pair[k].width = a, b, self.layout.column[a].width
            e.n = k + 1
        if not ends_init(e, self.layout.n, kind == IN_ORDER):
            raise MemoryError
        return 0

    cdef void _turn(self, const Chunk* c) noexcept nogil:
        # Make the chunks that keys of ends read.
        cdef bint no6 = True
        cdef int i
        if self.in_order.n:
            for i in range(self.parts):
                if self.part[i].source.ends == IN_ORDER and self.part[i].source.kind == IP:
                    no6 = no6 and no_ipv6(&self.part[i].source, c)
            ends_in_order(&self.in_order, c, no6)
        if self.second:
            ends_exchanged(&self.exchanged, c)

    cdef const Chunk* _seen(self, const Source* s, const Chunk* c) noexcept nogil:
        # The chunk that a key reads.
        if s.ends == IN_ORDER:
            return &self.in_order.chunk
        return &self.exchanged.chunk if s.ends == EITHER and self.second else c

    cdef int64_t other_ends(self, Chunk* c, uint16_t* rows) noexcept nogil:
        """Fill ``rows`` with those of the chunk that have a second group; returns their number, -1 without memory."""
        cdef KeyPart* p
        cdef uint32_t k, n = 0
        cdef int i
        for k in range(c.n):
            self.exchanged.order[k] = 0
        ends_exchanged(&self.exchanged, c)
        for i in range(self.parts):
            p = &self.part[i]
            if p.source.ends != EITHER:
                continue
            if source_room(&p.source, 2 * c.n) < 0:
                return -1
            part_values(&p.source, c, self.word[0])
            part_values(&p.source, &self.exchanged.chunk, self.word[1])
            for k in range(c.n):
                self.exchanged.order[k] |= self.word[0][k] != self.word[1][k]
        for k in range(c.n):
            rows[n] = <uint16_t>row_of(c, k)
            n += self.exchanged.order[k]
        return n

    cdef bint _aim(self, uint64_t low, uint64_t high) noexcept nogil:
        # Whether the window covers these keys.  It moves rarely, because moving costs as much as a few chunks.
        if self.window != NULL and low >= self.base and high - self.base < WINDOW:
            return True
        self.missed += 1
        if self.missed < 16:
            return False
        if self.window == NULL:
            self.window = <uint32_t*>malloc(WINDOW * 4)
            if self.window == NULL:
                return False
        memset(self.window, 0, WINDOW * 4)
        self.base, self.missed = low, 0
        # Times increase; other keys may be on both sides.
        if self.part[0].source.kind != BUCKET:
            self.base = low - min(low, (WINDOW - 1 - (high - low)) // 2)
        return True

    cdef void _look(self, uint32_t n, uint32_t* out) noexcept nogil:
        # One-word keys, all inside the window: a copy of part of the table, indexed by value.
        cdef const uint64_t* key = self.word[0]
        cdef uint32_t* window = self.window
        cdef uint64_t base = self.base
        cdef uint32_t k, number
        for k in range(n):
            number = window[key[k] - base]
            if number == 0:
                number = table_insert1(&self.table, hash1(&self.table, key[k]), key[k]) + 1
                window[key[k] - base] = number
            out[k] = number - 1

    cdef int adopt(self, GroupTable other, uint32_t* out, const uint8_t* share, uint8_t wanted) noexcept nogil:
        """The group here for each group of `other`, which has the same keys; -1 without memory.

        share: only the groups g with share[g] == wanted are taken; the others get NOT_FOUND.
        """
        cdef uint32_t** renumbered
        cdef uint32_t g, n = 0
        cdef int i, status = -1
        if self.parts == 0:
            out[0] = 0
            return 0
        if self.narrow:
            for g in range(other.table.count):
                out[g] = NOT_FOUND
                if share == NULL or share[g] == wanted:
                    out[g] = self.at(other.table.keys[g])
            return 0
        renumbered = <uint32_t**>calloc(self.parts, sizeof(void*))
        if renumbered == NULL:
            return -1
        for g in range(other.table.count):
            n += share == NULL or share[g] == wanted
        if table_reserve(&self.table, n) == 0 and _renumber(self, other, renumbered, share, wanted) == 0:
            self._insert(other, <const uint32_t**>renumbered, out, share, wanted)
            status = 0
        for i in range(self.parts):
            free(renumbered[i])
        free(renumbered)
        return status

    cdef void _insert(self, GroupTable other, const uint32_t** renumbered, uint32_t* out, const uint8_t* share,
                      uint8_t wanted) noexcept nogil:
        cdef uint32_t row[CHUNK]
        cdef uint32_t number[CHUNK]
        cdef const uint64_t* theirs
        cdef uint32_t g = 0, n, k, w
        cdef KeyPart* p
        cdef int i
        while g < other.table.count:
            n = 0
            while g < other.table.count and n < CHUNK:
                out[g] = NOT_FOUND
                if share == NULL or share[g] == wanted:
                    row[n] = g
                    n += 1
                g += 1
            for w in range(self.table.words):
                memset(self.word[w], 0, n * 8)
            for k in range(n):
                theirs = other.table.keys + <size_t>row[k] * self.table.words
                for i in range(self.parts):
                    p = &self.part[i]
                    self.word[p.word][k] |= renumber(&p.source, renumbered[i], part_of(p, theirs)) << p.shift
            if n:
                table_insert_many(&self.table, <const uint64_t**>self.word, n, number)
            for k in range(n):
                out[row[k]] = number[k]

    cdef void shares(self, uint64_t seed, int shift, uint8_t* out) noexcept nogil:
        """Four bits of a hash of the key of each group: the same in every roll-up, for the same seed."""
        cdef const Source* s
        cdef uint64_t h, v
        cdef uint32_t g
        cdef int i
        for g in range(self.count()):
            h = seed
            for i in range(self.parts):
                s = &self.part[i].source
                v = part_of(&self.part[i], self.table.keys + <size_t>g * self.table.words)
                if interned(s, v):
                    v = fixed_hash_bytes(<const uint8_t*>intern_key(s, v), s.intern.words * 8)
                h = fixed_hash(h ^ v)
            out[g] = h >> shift & 15

    cdef uint64_t memory(self) noexcept nogil:
        """Bytes of the keys."""
        cdef uint64_t n = table_memory(&self.table) + (WINDOW * 4 if self.window != NULL else 0)
        cdef int i
        for i in range(self.parts):
            n += table_memory(&self.part[i].source.intern)
        return n

    cdef int column(self, int part, uint8_t* out, uint8_t* out6) noexcept nogil:
        """The values of a key for all groups, in the format of its field; out6: the 16 bytes of addresses."""
        cdef KeyPart* p = &self.part[part]
        cdef Source* s = &p.source
        cdef uint32_t g, v4
        cdef uint64_t v
        cdef int64_t start
        cdef uint8_t six[16]
        for g in range(self.count()):
            v = part_of(p, self.table.keys + <size_t>g * self.table.words)
            if s.kind == KEY:
                v = v << s.shift if s.shift < 64 else 0
                memcpy(out + <size_t>g * s.width, &v, s.width)
            elif s.kind == BUCKET:
                start = utc_of_local(s, step_start(s, v))
                memcpy(out + <size_t>g * 8, &start, 8)
            elif s.kind == IP:
                ip_of_code(s, v, &v4, six)
                ip_result(s, <int>(v >> 32), v4, six, out + <size_t>g * 4, out6 + <size_t>g * 16)
            else:
                memcpy(out + <size_t>g * s.width, s.intern.keys + v * s.intern.words, s.width)
        return 0


def _check_pairs(Layout layout, pairs, reads):
    """Raises ValueError unless the pairs are columns of equal types and contain all that are read."""
    columns = [in_span("column", column, 0, layout.n - 1) for pair in pairs for column in pair]
    if not 1 <= len(pairs) <= MAX_PAIRS or any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"invalid pairs of columns {pairs!r}")
    for a, b in pairs:
        if (layout.column[<int>a].width != layout.column[<int>b].width
                or layout.column[<int>a].code != layout.column[<int>b].code
                or layout.column[<int>a].width not in (1, 2, 4, 8, 16)):
            raise ValueError(f"columns {a} and {b} have other types")
    # A calculation reads columns that are not known here: its own is -1.
    if reads[0] < 0 or not set(reads) - {-1} <= set(columns):
        raise ValueError(f"columns {reads} are not among the pairs {pairs!r}")


cdef inline bint all_equal(const uint64_t* v, uint32_t n) noexcept nogil:
    # Data are often sorted, at least by time: most non-uniform chunks have different values at their ends.
    cdef uint64_t first = v[0], differ = 0
    cdef uint32_t i
    if v[n - 1] != first or v[n // 2] != first:
        return False
    for i in range(n):
        differ |= v[i] ^ first
    return differ == 0


cdef uint64_t part_of(const KeyPart* p, const uint64_t* key) noexcept nogil:
    """The value of one key in a packed key."""
    cdef uint64_t v = key[p.word] >> p.shift
    return v if p.source.bits == 64 else v & ((<uint64_t>1 << p.source.bits) - 1)


cdef int _renumber(GroupTable ours, GroupTable other, uint32_t** out, const uint8_t* share,
                   uint8_t wanted) noexcept nogil:
    cdef Source* s
    cdef uint64_t v
    cdef uint32_t g, n
    cdef int i
    for i in range(ours.parts):
        s = &other.part[i].source
        if share == NULL:
            out[i] = intern_merge(&ours.part[i].source, s)
            if out[i] == NULL:
                return -1
            continue
        # Only the values of the groups that are taken.
        n = s.intern.count
        out[i] = <uint32_t*>malloc((<size_t>n + 1) * 4)
        if out[i] == NULL:
            return -1
        memset(out[i], 0xFF, (<size_t>n + 1) * 4)
        for g in range(other.table.count if n else 0):
            v = part_of(&other.part[i], other.table.keys + <size_t>g * other.table.words)
            if share[g] != wanted or not interned(s, v) or out[i][intern_number(s, v)] != NOT_FOUND:
                continue
            if table_reserve(&ours.part[i].source.intern, 1) < 0:
                return -1
            out[i][intern_number(s, v)] = table_insert(&ours.part[i].source.intern, intern_key(s, v))
    return 0


cdef void part_values(Source* s, const Chunk* c, uint64_t* out) noexcept nogil:
    cdef uint8_t missing[CHUNK]
    cdef uint64_t mask = ~<uint64_t>0 >> (64 - s.size * 8) if s.size < 8 else ~<uint64_t>0
    cdef uint32_t i
    cdef float f
    cdef double d
    if s.kind == KEY:
        if s.calc != NULL:
            calc_run(<const calc*>s.calc, c.col, c.rows, c.first, c.n, out, missing)
        else:
            load_column(c, s.col, s.code, s.width, out)
        if s.code == F64:
            plain_floats(out, c.n)
        elif s.code == F32:
            plain_floats(out, c.n)
            for i in range(c.n):
                memcpy(&d, &out[i], 8)
                f = <float>d
                out[i] = 0
                memcpy(&out[i], &f, 4)
        elif s.bits == 0:
            memset(out, 0, c.n * 8)
        elif s.code >= I8:
            for i in range(c.n):
                out[i] &= mask
        elif s.shift:
            for i in range(c.n):
                out[i] >>= s.shift
    elif s.kind == BUCKET:
        load_column(c, s.col, s.code, s.width, out)
        if s.changes:
            local_times(s, c.n, out)
        step_numbers(s, c.n, out)
    elif s.kind == IP:
        ip_codes(s, c, out)
    else:
        wide_codes(s, c, out)
