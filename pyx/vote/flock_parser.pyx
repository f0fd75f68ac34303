"""Lines of Flock's traces as rows of the schema `path`, at core speed; vote/flock.py says what they mean."""

import os
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy
from c_hash_table cimport HashTable, NOT_FOUND, hash1, table_find1, table_free, table_insert1, table_reserve
from c_text cimport get_float
from confluo_tools.core.block.block cimport Staging
cimport cython

cdef enum:
    HOPS = 16                           # room of a path
    MAX_HOPS = 255                          # hops that are counted, and searched for what has failed
    FLOW = 1
    FAILED = 2
    NOISE = 16

cdef enum:                              # columns that are written
    TS, KIND, NOTES, SRC, DST, SPORT, DPORT, SENT, LOST, HOP_COUNT, PATH, SRC_TOR, DST_TOR, LINK_A, LINK_B, RATE
    COLUMNS

NAMES = ("ts", "kind", "notes", "src_ip", "dst_ip", "src_port", "dst_port", "sent", "lost", "hops", "path", "src_tor",
         "dst_tor", "link_a", "link_b", "rate")
WIDTHS = (8, 1, 1, 4, 4, 2, 2, 4, 4, 1, 4 * HOPS, 4, 4, 4, 4, 8)


cdef inline const char* _skip(const char* p, const char* end) noexcept nogil:
    while p < end and (p[0] == 32 or 9 <= p[0] <= 13):
        p += 1
    return p


cdef inline const char* _word(const char* p, const char* end) noexcept nogil:
    # Where the word ends that begins at p.
    while p < end and not (p[0] == 32 or 9 <= p[0] <= 13):
        p += 1
    return p


cdef inline bint _number(const char** at, const char* end, uint32_t* out) noexcept nogil:
    # The next word, a whole number below 2^32.
    cdef const char* p = _skip(at[0], end)
    cdef const char* start = p
    cdef uint64_t v = 0
    while p < end and 48 <= p[0] <= 57:
        v = v * 10 + <uint64_t>(p[0] - 48)
        if v > 0xFFFFFFFFu:
            return False
        p += 1
    at[0] = p
    out[0] = <uint32_t>v
    return p > start and (p == end or p[0] == 32 or 9 <= p[0] <= 13)


cdef inline bint _float(const char** at, const char* end, double* out) noexcept nogil:
    cdef const char* p = _skip(at[0], end)
    at[0] = _word(p, end)
    return get_float(p, at[0], out, False)


cdef inline bint _time(const char** at, const char* end, int64_t* out) noexcept nogil:
    # The next word, ms since 1970, as ns.
    cdef double v
    if not _float(at, end, &v):
        return False
    v *= 1e6
    if not -9.2e18 < v < 9.2e18:
        return False
    out[0] = <int64_t>v
    return True


@cython.final
cdef class TraceText:
    """Lines to rows.  ``zero`` replaces node 0, because in records 0 is a hop that did not answer.

    `feed` stops after a line that does not fit: ``problem`` is true and `bad` is its place in the data.
    A flow is a row when the next one begins, or at `finish`; a flow is none when a line of it does not fit.
    """

    cdef readonly uint64_t line         # how many there were
    cdef readonly bint problem
    cdef Py_ssize_t bad_start, bad_end
    cdef uint32_t zero
    cdef HashTable failed                   # a << 32 | b
    cdef uint32_t count                 # flows: they are numbered, because two may have the same ends
    cdef bint open, whole               # a flow has begun; nothing of it is damaged
    cdef uint32_t src, dst, src_tor, dst_tor, sent, lost, noise
    cdef int64_t ts
    cdef uint32_t path[MAX_HOPS]
    cdef int hops

    def __cinit__(self, uint32_t zero):
        cdef bytes seed = os.urandom(16)
        self.zero = zero
        self.failed.words = 1
        memcpy(self.failed.seed, <const char*>seed, 16)
        self.failed.seed[1] |= 1

    def __dealloc__(self):
        table_free(&self.failed)

    @property
    def bad(self):
        return self.bad_start, self.bad_end

    def feed(self, const uint8_t[::1] data not None, Py_ssize_t start, Staging out not None, bint final):
        """Append the rows of the complete lines from ``start`` on to ``out``, as many as fit.

        ``final``: the last line may lack its newline.  Returns where the next call has to start.
        """
        cdef const char* base
        cdef const char* p
        cdef const char* q
        cdef const char* end
        cdef uint8_t* col[COLUMNS]
        cdef uint32_t row = out.rows
        cdef int status = 0
        self.problem = False
        if not 0 <= start < data.shape[0]:
            return start
        self._columns(out, col)
        base = <const char*>&data[0]
        p, end = base + start, base + data.shape[0]
        with nogil:
            while p < end and row < out.capacity:
                q = <const char*>memchr(p, 10, end - p)
                if q == NULL:
                    if not final:
                        break
                    q = end
                self.line += 1
                status = self._line(p, q, col, &row)
                if status:
                    self.whole = False
                    self.bad_start, self.bad_end = p - base, q - base
                p = q + 1 if q < end else end
                if status:
                    break
            out.set_rows(row)
        if status > 1:
            raise MemoryError
        self.problem = status == 1
        return p - base

    def finish(self, Staging out not None):
        """Append the row of the last flow, if there is room; false: there was none."""
        cdef uint8_t* col[COLUMNS]
        cdef uint32_t row = out.rows
        if row >= out.capacity:
            return False
        self._columns(out, col)
        self._flow(col, &row)
        out.set_rows(row)
        return True

    def spoil(self):
        """The flow that has begun is damaged: it will be no row."""
        self.whole = False

    cdef int _columns(self, Staging out, uint8_t** col) except -1:
        cdef int i, k
        for i in range(COLUMNS):
            k = out.layout.index(NAMES[i]) if NAMES[i] in out.layout.names else -1
            if k < 0 or out.layout.column[k].width != <uint32_t>WIDTHS[i]:
                raise ValueError(f"no column {NAMES[i]} of {WIDTHS[i]} bytes")
            col[i] = out.out[k]
        return 0

    cdef int _line(self, const char* p, const char* end, uint8_t** col, uint32_t* row) noexcept nogil:
        # 0: it is fine; 1: it does not fit; 2: no memory.
        cdef const char* at = _word(p, end)
        cdef Py_ssize_t size = at - p
        cdef bint fits
        if size == 2 and p[0] == 70 and p[1] == 80:                 # FP
            return 0
        if size == 3 and memcmp(p, b"FPT", 3) == 0:
            fits = self._path(at, end)
        elif size == 2 and p[0] == 83 and p[1] == 83:               # SS
            fits = self._snapshot(at, end)
        elif size == 3 and memcmp(p, b"FID", 3) == 0:
            self._flow(col, row)
            self.open = self.whole = fits = self._begin(at, end)
        elif size == 12 and memcmp(p, b"Failing_link", 12) == 0:
            return self._failing(at, end, col, row)
        else:
            return 0 if _skip(p, end) == end or (size == 4 and memcmp(p, b"FPRT", 4) == 0) else 1
        return 0 if fits else 1

    cdef bint _begin(self, const char* at, const char* end) noexcept nogil:
        self.sent = self.lost = self.noise = 0
        self.ts = 0
        self.hops = 0
        if not (_number(&at, end, &self.src) and _number(&at, end, &self.dst) and _number(&at, end, &self.src_tor)
                and _number(&at, end, &self.dst_tor)):
            return False
        at = _word(_skip(at, end), end)                             # its bytes
        return _skip(at, end) == end or _time(&at, end, &self.ts)

    cdef bint _path(self, const char* at, const char* end) noexcept nogil:
        cdef uint32_t node
        cdef int n = 0
        while True:
            at = _skip(at, end)
            if at == end:
                self.hops = n
                return True
            if not _number(&at, end, &node):
                return False
            if n < MAX_HOPS:
                self.path[n] = node if node else self.zero
                n += 1

    cdef bint _snapshot(self, const char* at, const char* end) noexcept nogil:
        if not self.open:
            return False
        self.noise = 0
        if not (_time(&at, end, &self.ts) and _number(&at, end, &self.sent) and _number(&at, end, &self.lost)):
            return False
        return _skip(at, end) == end or _number(&at, end, &self.noise)

    cdef int _failing(self, const char* at, const char* end, uint8_t** col, uint32_t* row) noexcept nogil:
        cdef uint32_t a, b, i = row[0]
        cdef uint64_t key
        cdef double rate
        if not (_number(&at, end, &a) and _number(&at, end, &b) and _float(&at, end, &rate) and _skip(at, end) == end):
            return 1
        if table_reserve(&self.failed, 1) < 0:
            return 2
        a, b = a if a else self.zero, b if b else self.zero
        key = <uint64_t>a << 32 | b
        table_insert1(&self.failed, hash1(&self.failed, key), key)
        col[KIND][i] = FAILED
        (<uint32_t*>col[LINK_A])[i], (<uint32_t*>col[LINK_B])[i] = a, b
        (<double*>col[RATE])[i] = rate
        self._ports(col, i)
        row[0] = i + 1
        return 0

    cdef void _ports(self, uint8_t** col, uint32_t i) noexcept nogil:
        (<uint16_t*>col[SPORT])[i], (<uint16_t*>col[DPORT])[i] = <uint16_t>self.count, <uint16_t>(self.count >> 16)

    cdef bint _has_failed(self, uint64_t a, uint64_t b) noexcept nogil:
        return table_find1(&self.failed, a << 32 | b) != NOT_FOUND

    cdef void _flow(self, uint8_t** col, uint32_t* row) noexcept nogil:
        # The flow that was begun becomes a row, with the link that took its packets where only one can have.
        cdef uint32_t i = row[0], a, b, culprits = 0, link_a = 0, link_b = 0
        cdef int k
        if not (self.open and self.whole):
            self.open = False
            return
        self.open = False
        self.count += 1
        self.src, self.dst = self.src if self.src else self.zero, self.dst if self.dst else self.zero
        if self.lost:
            a = self.src
            for k in range(self.hops + 1):
                b = self.path[k] if k < self.hops else self.dst
                if self._has_failed(a, b):
                    culprits += 1
                    link_a, link_b = a, b
                elif self._has_failed(b, b):
                    culprits += 1
                    link_a = link_b = b
                a = b
            if self.lost <= self.noise or culprits == 0:
                col[NOTES][i] = NOISE
            elif culprits == 1:
                (<uint32_t*>col[LINK_A])[i], (<uint32_t*>col[LINK_B])[i] = link_a, link_b
        (<int64_t*>col[TS])[i] = self.ts
        col[KIND][i] = FLOW
        (<uint32_t*>col[SRC])[i], (<uint32_t*>col[DST])[i] = self.src, self.dst
        self._ports(col, i)
        (<uint32_t*>col[SENT])[i], (<uint32_t*>col[LOST])[i] = self.sent, self.lost
        col[HOP_COUNT][i] = <uint8_t>self.hops
        memcpy(col[PATH] + <size_t>i * 4 * HOPS, self.path, 4 * min(self.hops, HOPS))
        (<uint32_t*>col[SRC_TOR])[i] = self.src_tor if self.src_tor else self.zero
        (<uint32_t*>col[DST_TOR])[i] = self.dst_tor if self.dst_tor else self.zero
        row[0] = i + 1
