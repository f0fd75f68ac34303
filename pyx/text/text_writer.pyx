"""Print rows as lines of TSV, CSV or NDJSON.  text_reader.pyx reads them.

Printing and reading follow a *plan*, one entry per field in printed order, which formats/text.py makes from a Schema:
(key, op, column, column of the 16 address bytes or -1, column of the IP version or -1, always, names).  For all types
but addresses, the fifth is the column, one byte wide, that is 0 in the rows without a value.
``names`` are (value, text) pairs; ``always`` fields are printed even when zero (a record's own time).
The op ``literal`` is a text that is JSON itself, such as a number that may be absent.  ``time_ms``, ``time_us`` and
``time_ns`` are times that are read also from numbers of these units, ``time`` from seconds.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Malloc, PyMem_Free, PyMem_Realloc
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.string cimport memcpy, memset
from c_block cimport BLOCK_ROWS, U64, I64, F32, BYTES
from c_text cimport (
    HEX, VALUE_MAX, hex_digit, put_u64, put_i64, put_hex, put_float, put_ipv4, put_ipv6, put_mac, put_time,
)
from confluo_tools.core.block.block cimport Block, Layout, Picks
cimport cython

OPS = {
    "number": NUMBER, "bytes": RAW, "text": RAW, "ipv4": IPV4, "ip": IP, "mac": MAC, "time": TIME, "duration": DURATION,
    "enum": ENUM, "flags": FLAGS, "literal": RAW, "skip": SKIP, "time_ms": TIME, "time_us": TIME, "time_ns": TIME,
}
UNITS = {"time_ms": 1000000, "time_us": 1000, "time_ns": 1}  # ns of numbers that are times; seconds otherwise
STYLES = {"tsv": TSV, "csv": CSV, "ndjson": JSON}


cdef class TextPlan:
    """The plan of Printer and Scanner: the fields in order, checked against the layout."""

    def __cinit__(self, Layout layout not None, plan, str style not None, *args, **kwargs):
        cdef int i, k
        cdef Item* it
        self.layout, self.style, self.n, self.keep = layout, STYLES[style], len(plan), []
        self.item = <Item*>PyMem_Malloc(max(self.n, 1) * sizeof(Item))
        if self.item == NULL:
            raise MemoryError
        memset(self.item, 0, max(self.n, 1) * sizeof(Item))
        for i, (key, op, col, col6, colv, always, names) in enumerate(plan):
            it = &self.item[i]
            it.op, it.col, it.col6, it.colv, it.always = OPS[op], col, col6, colv, always
            it.utf8 = op in ("text", "literal")
            it.unit = UNITS.get(op, 1000000000)
            for k in (col, col6, colv):
                if not -1 <= k < layout.n:
                    raise IndexError(k)
            if it.op != SKIP:
                if col < 0 or it.op == IP and col6 < 0:
                    raise IndexError(col)
                it.code, it.size = layout.column[col].code, layout.column[col].size
                it.count, it.width = layout.column[col].count, layout.column[col].width
                _check(it, layout)
            it.quoted = it.op != NUMBER and it.op != DURATION and op != "literal"
            self.keep.append(key)
            it.key, it.key_size = PyBytes_AS_STRING(key), <uint32_t>PyBytes_GET_SIZE(key)
            if names:
                it.names = <Name*>PyMem_Malloc(len(names) * sizeof(Name))
                if it.names == NULL:
                    raise MemoryError
                for value, text in names:
                    self.keep.append(text)
                    it.names[it.n_names].value = value
                    it.names[it.n_names].text = PyBytes_AS_STRING(text)
                    it.names[it.n_names].size = <uint32_t>PyBytes_GET_SIZE(text)
                    it.n_names += 1

    def __dealloc__(self):
        cdef int i
        if self.item != NULL:
            for i in range(self.n):
                PyMem_Free(self.item[i].names)
        PyMem_Free(self.item)


cdef int _check(Item* it, Layout layout) except -1:
    # Each op reads columns of certain widths: a wrong plan must not read outside them.
    cdef bint fits = it.colv < 0 or layout.column[it.colv].width == 1
    if not fits:
        pass
    elif it.op == RAW:
        fits = it.code == BYTES
    elif it.op == IPV4:
        fits = it.size == 4 and it.code != BYTES
    elif it.op == IP:
        fits = it.width == 4 and layout.column[it.col6].width == 16 and it.code != BYTES
    elif it.op == MAC or it.op == TIME or it.op == DURATION:
        fits = it.size == 8 and it.code != BYTES
    elif it.code == BYTES or it.op != NUMBER and (it.count != 1 or it.code > U64):
        fits = False
    if not fits:
        raise ValueError("the plan does not fit the layout")
    return 0


cdef bint same_columns(Layout a, Layout b):
    cdef int i
    if a.n != b.n:
        return False
    for i in range(a.n):
        if a.column[i].code != b.column[i].code or a.column[i].width != b.column[i].width:
            return False
    return True


cdef inline uint64_t _unsigned(const uint8_t* p, uint32_t size) noexcept nogil:
    # memcpy of constant sizes: columns of foreign streams may be unaligned.
    cdef uint16_t u16
    cdef uint32_t u32
    cdef uint64_t u64
    if size == 1:
        return p[0]
    if size == 2:
        memcpy(&u16, p, 2)
        return u16
    if size == 4:
        memcpy(&u32, p, 4)
        return u32
    memcpy(&u64, p, 8)
    return u64

cdef inline int64_t _signed(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef int shift = 64 - 8 * <int>size
    return <int64_t>(_unsigned(p, size) << shift) >> shift


@cython.final
cdef class Printer(TextPlan):
    """Prints rows as lines.  In JSON the keys of the plan are complete: ``{"ts":`` first, then ``,"len":``.

    ``terminal``: escape characters of texts that a terminal would obey, or that it would not show.
    """

    def __init__(self, layout, plan, style, bint terminal=False):
        cdef int i, k
        cdef size_t names
        cdef Item* it
        self.terminal = terminal
        self.cache.text[0] = 0
        self.line_max = 4
        for i in range(self.n):
            it = &self.item[i]
            self.line_max += it.key_size + 8 + <size_t>it.count * (VALUE_MAX + 1)
            if it.op == RAW:
                self.line_max += 6 * <size_t>it.size
            names = 0
            for k in range(it.n_names):
                names += it.names[k].size + 1
            self.line_max += names

    def lines(self, Block block not None, Picks picks=None, uint32_t start=0, uint32_t count=BLOCK_ROWS):
        """The text of rows start .. start+count of the picked rows (all when picks is None), as bytes."""
        cdef const uint16_t* rows = NULL
        cdef uint32_t n = block.rows if picks is None else picks.n
        cdef size_t room, used = 0
        cdef char* out
        cdef char* more
        cdef uint32_t k, end
        if block.layout is not self.layout and not same_columns(block.layout, self.layout):
            raise ValueError("the block has other columns")
        if picks is not None and picks.rows > block.rows:
            raise ValueError("the picks are of another block")
        if start >= n or count == 0:
            return b""
        end = n if count > n - start else start + count
        room = min(self.line_max, <size_t>32 * self.n + 64) * (end - start) + self.line_max
        out = <char*>PyMem_Malloc(room)
        if out == NULL:
            raise MemoryError
        try:
            with nogil:
                if picks is not None:
                    rows = picks.as_list()
                k = start
                while True:
                    while k < end and room - used >= self.line_max:
                        used += self._line(out + used, block, k if rows == NULL else rows[k])
                        k += 1
                    if k == end:
                        break
                    room += room // 2 + self.line_max
                    with gil:
                        more = <char*>PyMem_Realloc(out, room)
                        if more == NULL:
                            raise MemoryError
                        out = more
            return PyBytes_FromStringAndSize(out, used)
        finally:
            PyMem_Free(out)

    cdef size_t _line(self, char* start, Block block, uint32_t row) noexcept nogil:
        cdef char* p = start
        cdef int i
        cdef Item* it
        for i in range(self.n):
            it = &self.item[i]
            if self.style == JSON:
                memcpy(p, it.key, it.key_size)
                p += it.key_size
            elif i:
                p[0] = 9 if self.style == TSV else 44
                p += 1
            p = self.put_value(p, it, block, row, i == 0)
        if self.style == JSON:
            p[0] = 125
            p += 1
        p[0] = 10
        return p + 1 - start

    cdef char* put_value(self, char* p, Item* it, Block block, uint32_t row, bint first) noexcept nogil:
        # The text of one field, at most VALUE_MAX bytes and its names, if it is not a list, bytes or a text.
        cdef const uint8_t* v = block.col[it.col] + <size_t>row * it.width
        cdef char* start = p
        cdef uint32_t n
        if it.colv >= 0 and it.op != IP and block.col[it.colv][row] == 0:
            return self._absent(p)
        if it.count > 1:
            return self._list(p, it, v)
        if it.op == RAW:
            n = it.size
            while n and v[n - 1] == 0:
                n -= 1
            if n == 0:
                return self._absent(p)
            if self.style == JSON and not it.quoted:    # JSON already
                memcpy(p, v, n)
                return p + n
            return self._text(p, v, n, first) if it.utf8 else self._bytes(p, v, n, first)
        if it.op == NUMBER:
            return self._number(p, it, v)
        if it.quoted and self.style == JSON:
            p[0] = 34
            p += 1
        if it.op == IP:
            p = self._ip(p, it, block, row, <uint32_t>_unsigned(v, 4))
        else:
            p = self._scalar(p, it, v)
        if p == NULL:
            return self._absent(start)
        if it.quoted and self.style == JSON:
            p[0] = 34
            p += 1
        return p

    cdef char* _absent(self, char* p) noexcept nogil:
        if self.style == TSV:
            p[0] = 45
            return p + 1
        if self.style == JSON:
            memcpy(p, "null", 4)
            return p + 4
        return p

    cdef char* _number(self, char* p, Item* it, const uint8_t* v) noexcept nogil:
        cdef double d
        cdef float f
        if it.code <= U64:
            return put_u64(p, _unsigned(v, it.size))
        if it.code <= I64:
            return put_i64(p, _signed(v, it.size))
        if it.code == F32:
            memcpy(&f, v, 4)
            d = f
        else:
            memcpy(&d, v, 8)
        if self.style == JSON and d - d != 0:
            if d != d:
                memcpy(p, "null", 4)
                return p + 4
            memcpy(p, "-1e999", 6)              # JSON has no infinity; this number reads as -infinity
            if d > 0:
                memcpy(p, "1e999", 5)
            return p + (5 if d > 0 else 6)
        return put_float(p, d, it.code == F32)

    cdef char* _scalar(self, char* p, Item* it, const uint8_t* v) noexcept nogil:
        # NULL: absent.
        cdef uint64_t u = _unsigned(v, it.size), bit
        cdef int k
        cdef char* start = p
        if it.op == TIME:
            return NULL if u == 0 and not it.always else put_time(p, <int64_t>u, &self.cache)
        if it.op == DURATION:
            return put_i64(p, <int64_t>u)
        if it.op == IPV4:
            return NULL if u == 0 else put_ipv4(p, <uint32_t>u)
        if it.op == MAC:
            return NULL if u == 0 else put_mac(p, u)
        if it.op == ENUM:
            for k in range(it.n_names):
                if it.names[k].value == u:
                    memcpy(p, it.names[k].text, it.names[k].size)
                    return p + it.names[k].size
            return NULL if u == 0 else put_u64(p, u)
        for k in range(it.n_names):             # FLAGS
            bit = it.names[k].value
            if u & bit and u & bit == bit:
                if p != start:
                    p[0] = 124
                    p += 1
                memcpy(p, it.names[k].text, it.names[k].size)
                p += it.names[k].size
                u &= ~bit
        if u:
            if p != start:
                p[0] = 124
                p += 1
            p = put_hex(p, u)
        return NULL if p == start else p

    cdef char* _ip(self, char* p, Item* it, Block block, uint32_t row, uint32_t v4) noexcept nogil:
        cdef const uint8_t* a = block.col[it.col6] + <size_t>row * 16
        cdef uint8_t version = block.col[it.colv][row] if it.colv >= 0 else 0
        cdef uint64_t half[2]
        memcpy(half, a, 16)
        if half[0] | half[1] or version == 6:
            return put_ipv6(p, a)
        if v4 == 1 and it.colv < 0:
            return put_ipv6(p, a)
        return put_ipv4(p, v4) if v4 or version == 4 else NULL

    cdef char* _list(self, char* p, Item* it, const uint8_t* v) noexcept nogil:
        # Omit zeros at the end; separate elements by commas, which CSV must quote.
        cdef uint32_t n = it.count, k
        cdef char* start
        cdef bint more
        while n and _is_zero(v + (n - 1) * it.size, it.size):
            n -= 1
        if self.style == JSON:
            p[0] = 91
            p += 1
        elif n == 0:
            return self._absent(p)
        more = self.style == CSV and n > 1
        if more:
            p[0] = 34
            p += 1
        for k in range(n):
            if k:
                p[0] = 44
                p += 1
            if it.op == NUMBER:
                p = self._number(p, it, v + k * it.size)
                continue
            if self.style == JSON and it.quoted:
                p[0] = 34
                p += 1
            start = p
            p = self._scalar(p, it, v + k * it.size)
            if p == NULL:                       # a zero between nonzero values
                p = start
                p[0] = 48
                p += 1
            if self.style == JSON and it.quoted:
                p[0] = 34
                p += 1
        if more:
            p[0] = 34
            p += 1
        if self.style == JSON:
            p[0] = 93
            p += 1
        return p

    cdef char* _bytes(self, char* p, const uint8_t* v, uint32_t n, bint first) noexcept nogil:
        # Printable ASCII as it is, everything else and the backslash as \xNN, so that it can be read back.
        cdef uint32_t i
        if self.style != TSV:
            p[0] = 34
            p += 1
        for i in range(n):
            if (v[i] < 32 or v[i] > 126 or v[i] == 92
                    or self.style == TSV and (n == 1 and v[i] == 45 or first and i == 0 and v[i] == 35)):
                if self.style == JSON:
                    p[0] = 92
                    p += 1
                p = _put_escape(p, v[i])
            else:
                if v[i] == 34 and self.style != TSV:
                    p[0] = 92 if self.style == JSON else 34
                    p += 1
                p[0] = <char>v[i]
                p += 1
        if self.style != TSV:
            p[0] = 34
            p += 1
        return p

    cdef char* _text(self, char* p, const uint8_t* v, uint32_t n, bint first) noexcept nogil:
        # Exactly the text, in the quotes of its format.  TSV has no quotes: there \xNN is what would break the line,
        # a lone - and a # at the start of the line, and the backslash before xNN.
        cdef uint32_t i = 0, k, size, code
        cdef uint8_t c
        if self.style != TSV:
            p[0] = 34
            p += 1
        while i < n:
            c = v[i]
            code, size = c, 1
            if c > 127:
                size = _utf8_size(v + i, n - i, &code)
            if self.style == JSON and (size == 0 or c < 32 or c == 127 or self.terminal and not _visible(code)):
                if size == 0:                   # not UTF-8: the byte as a surrogate, as Python's surrogateescape
                    size, code = 1, 0xDC00 | c
                    if n - i >= 3 and c == 0xED and v[i + 1] >> 5 == 5 and v[i + 2] >> 6 == 2:
                        k = 0xD000 | (v[i + 1] & 0x3F) << 6 | (v[i + 2] & 0x3F)
                        if not 0xDC80 <= k <= 0xDCFF:
                            size, code = 3, k   # a surrogate without its other half
                p[0] = 92
                p[1] = 117
                p[2] = HEX[code >> 12]
                p[3] = HEX[code >> 8 & 15]
                p[4] = HEX[code >> 4 & 15]
                p[5] = HEX[code & 15]
                p += 6
            elif (self.terminal and (size == 0 or not _visible(code))
                    or self.style == TSV and (
                        c == 9 or c == 10 or c == 13 or n == 1 and c == 45 or first and i == 0 and c == 35
                        or c == 92 and n - i >= 4 and v[i + 1] == 120
                        and hex_digit(<char>v[i + 2]) >= 0 and hex_digit(<char>v[i + 3]) >= 0)):
                size = max(size, 1)
                for k in range(size):
                    p = _put_escape(p, v[i + k])
            else:
                if self.style == JSON and (c == 34 or c == 92):
                    p[0] = 92
                    p += 1
                elif self.style == CSV and c == 34:
                    p[0] = 34
                    p += 1
                size = max(size, 1)
                memcpy(p, v + i, size)
                p += size
            i += size
        if self.style != TSV:
            p[0] = 34
            p += 1
        return p


cdef inline char* _put_escape(char* p, uint8_t c) noexcept nogil:
    p[0] = 92
    p[1] = 120
    p[2] = HEX[c >> 4]
    p[3] = HEX[c & 15]
    return p + 4


cdef uint32_t _utf8_size(const uint8_t* v, uint32_t n, uint32_t* out) noexcept nogil:
    # Length of the non-ASCII character at the start of v, and its number; 0: none (RFC 3629, section 4).
    cdef uint32_t size = 2 if v[0] >= 0xC2 and v[0] < 0xE0 else 3 if v[0] >> 4 == 14 else 4 if v[0] >> 3 == 30 else 0
    cdef uint32_t code, i
    if size == 0 or size > n:
        return 0
    code = v[0] & (0x7F >> size)
    for i in range(1, size):
        if v[i] >> 6 != 2:
            return 0
        code = code << 6 | (v[i] & 0x3F)
    if size == 3 and (code < 0x800 or code >> 11 == 27) or size == 4 and not 0x10000 <= code < 0x110000:
        return 0
    out[0] = code
    return size


cdef inline bint _visible(uint32_t code) noexcept nogil:
    # Not a control character, not invisible, and does not change the direction of the text.
    if code < 32 or 127 <= code < 0xA0:
        return False
    return not (0x200B <= code <= 0x200F or 0x2028 <= code <= 0x202E or 0x2060 <= code <= 0x206F or code == 0xFEFF)


cdef inline bint _is_zero(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef uint32_t i
    for i in range(size):
        if p[i]:
            return False
    return True
