"""Read lines of TSV, CSV or NDJSON as rows.  text_writer.pyx prints them and defines the plan."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport malloc, free
from libc.string cimport memcpy, memset, memcmp, memchr
from posix.strings cimport strncasecmp
from c_block cimport U64, I64, F32, F64
from c_ipv6_hash cimport fold6
from c_json cimport SCRATCH, json_blank, json_skip, json_string
from c_text cimport hex_digit, get_u64, get_i64, get_float, get_ipv4, get_ipv6, get_mac, get_time, get_duration
from confluo_tools.core.block.block cimport Staging
from confluo_tools.core.text.text_writer cimport (
    TextPlan, Item, TSV, CSV, RAW, IPV4, IP, MAC, TIME, DURATION, ENUM, FLAGS, SKIP, same_columns,
)
cimport cython

# Errors of a line.
PROBLEMS = {
    1: "is not a value of its type",
    2: "is too long",
    3: "the line has too few fields",
    4: "the line has too many fields",
    5: "the line is not a JSON object",
    6: "a quote is not closed",
    7: "a comment or header",
    8: "a key that is not in the plan",
}
cdef const char* COMMA = b","

cdef enum:
    PATH = 1024         # bytes of the keys of nested objects; deeper ones are left out

cdef enum Problem:
    FINE = 0
    BAD_VALUE = 1
    TOO_LONG = 2
    TOO_FEW = 3
    TOO_MANY = 4
    NOT_JSON = 5
    OPEN_QUOTE = 6
    HEADER = 7
    NEW_KEY = 8


cdef inline void _zero(uint8_t* p, uint32_t width) noexcept nogil:
    if width == 1:
        p[0] = 0
    elif width == 2:
        (<uint16_t*>p)[0] = 0
    elif width == 4:
        (<uint32_t*>p)[0] = 0
    elif width == 8:
        (<uint64_t*>p)[0] = 0
    else:
        memset(p, 0, width)


@cython.final
cdef class Scanner(TextPlan):
    """Reads lines as rows.  The keys of the plan are field names; op 'skip' ignores a column.

    `feed` stops after a line that is not a row: `problem` is the reason, `field` the number of the field
    (-1: the whole line), `bad` the offset of the wrong text in the data.
    With `all_keys` it stops before a JSON object that has a key without a place in the plan: `new_key`.
    The key of a value in nested objects has points: ``a.b``.  Arrays of texts are joined by commas.
    """

    cdef public bint all_keys
    cdef readonly bytes new_key

    cdef readonly int problem
    cdef readonly int field
    cdef Py_ssize_t bad_start, bad_end
    cdef bytes header           # CSV: skip a line that repeats the header
    cdef char delimiter         # of CSV
    cdef char* scratch
    cdef char path[PATH]        # JSON: the keys of the objects around a value, each with a point

    def __cinit__(self, *args, **kwargs):
        self.scratch = <char*>malloc(SCRATCH)
        if self.scratch == NULL:
            raise MemoryError

    def __init__(self, layout, plan, style, bytes header=b"", bytes delimiter=b","):
        self.header, self.delimiter = header, delimiter[0]

    def __dealloc__(self):
        free(self.scratch)

    @property
    def bad(self):
        return self.bad_start, self.bad_end

    def feed(self, const uint8_t[::1] data not None, Py_ssize_t start, Staging out not None, bint final):
        """Append the rows of the complete lines from ``start`` to ``out``, as many as fit.

        ``final``: the last line may lack its newline.  Returns the start of the next call.
        """
        cdef const char* base
        cdef const char* p
        cdef const char* q
        cdef const char* end
        cdef const char* header = PyBytes_AS_STRING(self.header)
        cdef Py_ssize_t header_size = PyBytes_GET_SIZE(self.header)
        cdef uint32_t row = out.rows
        cdef int result
        if not same_columns(out.layout, self.layout):
            raise ValueError("the block has other columns")
        self.problem, self.field = FINE, -1
        if not 0 <= start < data.shape[0]:
            return start
        base = <const char*>&data[0]
        p, end = base + start, base + data.shape[0]
        with nogil:
            while p < end and row < out.capacity:
                q = _line_end(p, end, self.style == CSV)
                if q == NULL:
                    if not final:
                        break
                    q = end
                self.bad_start, self.bad_end = p - base, q - base
                result = self._row(p, q - 1 if q > p and (q - 1)[0] == 13 else q, header, header_size, out, row, base)
                if result == NEW_KEY:
                    self.problem = result
                    break
                p = q + 1 if q < end else end
                if result < 0:
                    row += 1
                elif result > 0:
                    self.problem = result
                    break
            out.set_rows(row)
        return p - base

    cdef int _row(self, const char* p, const char* end, const char* header, Py_ssize_t header_size,
                  Staging out, uint32_t row, const char* base) noexcept nogil:
        # -1: a row; 0: nothing; else the problem.
        cdef int i
        cdef int result
        cdef Item* it
        if p == end:
            return 0
        if self.style == TSV and p[0] == 35:
            return HEADER
        if header_size and end - p == header_size and memcmp(p, header, header_size) == 0:
            return 0
        for i in range(self.n):
            it = &self.item[i]
            if it.op != SKIP:
                _zero(out.out[it.col] + <size_t>row * it.width, it.width)
                if it.op == IP:
                    memset(out.out[it.col6] + <size_t>row * 16, 0, 16)
                    if it.colv >= 0:
                        out.out[it.colv][row] = 0
        if self.style == TSV:
            result = self._tsv(p, end, out, row, base)
        elif self.style == CSV:
            result = self._csv(p, end, out, row, base)
        else:
            result = self._json(p, end, out, row, base)
        return result if result else -1

    cdef int _tsv(self, const char* p, const char* end, Staging out, uint32_t row, const char* base) noexcept nogil:
        cdef int i = 0
        cdef int result
        cdef const char* q
        while True:
            q = <const char*>memchr(p, 9, end - p)
            if q == NULL:
                q = end
            if i >= self.n:
                return TOO_MANY
            if q > p and not (q - p == 1 and p[0] == 45):
                result = self._store(i, p, q, out, row)
                if result:
                    self.field, self.bad_start, self.bad_end = i, p - base, q - base
                    return result
            i += 1
            if q == end:
                return FINE if i == self.n else TOO_FEW
            p = q + 1

    cdef int _csv(self, const char* p, const char* end, Staging out, uint32_t row, const char* base) noexcept nogil:
        cdef int i = 0
        cdef int result
        cdef uint32_t n
        cdef const char* q
        cdef const char* text
        cdef const char* start
        while True:
            start = p
            if p < end and p[0] == 34:
                n = 0
                p += 1
                while p < end and (p[0] != 34 or p + 1 < end and p[1] == 34):
                    if n >= SCRATCH:
                        return TOO_LONG
                    p += 1 if p[0] == 34 else 0
                    self.scratch[n] = p[0]
                    n += 1
                    p += 1
                if p >= end:
                    return OPEN_QUOTE
                p += 1
                if p < end and p[0] != self.delimiter:
                    return BAD_VALUE
                text, q = self.scratch, self.scratch + n
            else:
                text = p
                q = <const char*>memchr(p, self.delimiter, end - p)
                if q == NULL:
                    q = end
                p = q
            if i >= self.n:
                return TOO_MANY
            if q > text and not (self.delimiter == 32 and q - text == 1 and text[0] == 45):  # VPC: absent
                result = self._store(i, text, q, out, row)
                if result:
                    self.field, self.bad_start, self.bad_end = i, start - base, p - base
                    return result
            i += 1
            if p == end:
                return FINE if i == self.n else TOO_FEW
            p += 1

    cdef int _json(self, const char* p, const char* end, Staging out, uint32_t row, const char* base) noexcept nogil:
        cdef int guess = 0, result = FINE, last = FINE
        p = json_blank(p, end)
        while end > p and ((end - 1)[0] == 32 or (end - 1)[0] == 9):
            end -= 1
        if end - p < 2 or p[0] != 123 or (end - 1)[0] != 125:
            return NOT_JSON
        p = self._object(p, end, 0, &guess, out, row, base, &result, &last)
        if p == NULL:
            return result if result else NOT_JSON
        return last if p == end else NOT_JSON

    cdef const char* _object(self, const char* p, const char* end, uint32_t prefix, int* guess, Staging out,
                             uint32_t row, const char* base, int* result, int* last) noexcept nogil:
        # The object at p; its keys come after `prefix` bytes of the path.  NULL: `result`, or not JSON.
        cdef int i
        cdef const char* q
        cdef const char* text
        cdef const char* start
        cdef uint32_t n
        cdef bint fits
        p = json_blank(p + 1, end)
        if p < end and p[0] == 125:
            return p + 1
        while True:
            p = json_string(p, end, self.scratch, &text, &n)
            if p == NULL:
                return NULL
            fits = prefix + n < PATH
            if fits:
                memcpy(self.path + prefix, text, n)
                text, n = self.path, prefix + n
            i = self._find(text, n, guess[0]) if fits or not prefix else -1
            p = json_blank(p, end)
            if p >= end or p[0] != 58:
                return NULL
            p = json_blank(p + 1, end)
            start = p
            if p < end and p[0] == 123 and fits and (i < 0 or self.item[i].op != SKIP):
                self.path[n] = 46
                p = self._object(p, end, n + 1, guess, out, row, base, result, last)
                if p == NULL:
                    return NULL
            elif i >= 0 and self.item[i].op != SKIP:
                guess[0] = i + 1
                p = self._json_value(i, p, end, out, row, result)
            else:
                if i < 0 and self.all_keys and (fits or not prefix):
                    with gil:
                        self.new_key = text[:n]
                    last[0] = NEW_KEY
                p = json_skip(p, end)
            if p == NULL and not result[0]:
                return NULL
            if result[0]:
                q = json_skip(start, end)
                self.field, self.bad_start, self.bad_end = i, start - base, (q if q else end) - base
                return NULL
            p = json_blank(p, end)
            if p >= end:
                return NULL
            if p[0] == 125:
                return p + 1
            if p[0] != 44:
                return NULL
            p = json_blank(p + 1, end)

    cdef const char* _json_value(self, int i, const char* p, const char* end, Staging out, uint32_t row,
                                 int* result) noexcept nogil:
        cdef Item* it = &self.item[i]
        cdef const char* text
        cdef uint32_t n, k = 0
        result[0] = FINE
        if p < end and p[0] == 91:
            if it.op == RAW:
                return self._joined(it, p, end, out, row, result)
            if it.count == 1 and it.op != FLAGS:
                result[0] = BAD_VALUE
                return NULL
            p = json_blank(p + 1, end)
            while p < end and p[0] != 93:
                if it.count > 1 and k >= it.count:
                    result[0] = TOO_LONG
                    return NULL
                p = self._token(p, end, &text, &n)
                if p == NULL:
                    return NULL
                if n:
                    # All flags share one value; a list has one place per element.
                    result[0] = self._element(it, text, text + n, out, row, k if it.count > 1 else 0)
                    if result[0]:
                        return NULL
                k += 1
                p = json_blank(p, end)
                if p < end and p[0] == 44:
                    p = json_blank(p + 1, end)
                elif p >= end or p[0] != 93:
                    return NULL
            return p + 1 if p < end else NULL
        p = self._token(p, end, &text, &n)
        if p != NULL and n:
            result[0] = self._store(i, text, text + n, out, row)
        return p

    cdef const char* _joined(self, Item* it, const char* p, const char* end, Staging out, uint32_t row,
                             int* result) noexcept nogil:
        # An array as a text: its elements with commas between, those that are objects or arrays as they are.
        cdef uint8_t* v = out.out[it.col] + <size_t>row * it.width
        cdef const char* text
        cdef uint32_t n, used = 0
        p = json_blank(p + 1, end)
        while p < end and p[0] != 93:
            if used:
                result[0] = _put_bytes(COMMA, COMMA + 1, v, it.size, &used, False)
            if p[0] == 123 or p[0] == 91:
                text, p = p, json_skip(p, end)
                n = <uint32_t>(p - text) if p != NULL else 0
            else:
                p = self._token(p, end, &text, &n)
            if p == NULL:
                break
            if not result[0]:
                result[0] = _put_bytes(text, text + n, v, it.size, &used, not it.utf8)
            if result[0]:
                break
            p = json_blank(p, end)
            if p < end and p[0] == 44:
                p = json_blank(p + 1, end)
            elif p >= end or p[0] != 93:
                p = NULL
                break
        if result[0] or p == NULL or p >= end:
            memset(v, 0, it.width)
            return NULL
        return p + 1

    cdef const char* _token(self, const char* p, const char* end, const char** text, uint32_t* n) noexcept nogil:
        # A string, number, true or false; null has no length.
        cdef const char* start = p
        if p < end and p[0] == 34:
            return json_string(p, end, self.scratch, text, n)
        while p < end and p[0] != 44 and p[0] != 125 and p[0] != 93 and p[0] > 32:
            p += 1
        text[0], n[0] = start, <uint32_t>(p - start)
        if p == start:
            return NULL
        if p - start == 4 and memcmp(start, "null", 4) == 0:
            n[0] = 0
        elif p - start == 4 and memcmp(start, "true", 4) == 0:
            text[0], n[0] = "1", 1
        elif p - start == 5 and memcmp(start, "false", 5) == 0:
            text[0], n[0] = "0", 1
        elif start[0] != 45 and not 48 <= start[0] <= 57:
            return NULL
        return p

    cdef int _find(self, const char* key, uint32_t n, int guess) noexcept nogil:
        # Keys usually come in the same order: try the one after the last match first.
        cdef int i, k
        for k in range(self.n):
            i = guess + k
            if i >= self.n:
                i -= self.n
            if self.item[i].key_size == n and memcmp(self.item[i].key, key, n) == 0:
                return i
        return -1

    cdef int _store(self, int i, const char* p, const char* end, Staging out, uint32_t row) noexcept nogil:
        cdef Item* it = &self.item[i]
        cdef const char* q
        cdef uint32_t k = 0
        cdef int result
        if it.op == SKIP:
            return FINE
        if it.count == 1:
            return self._element(it, p, end, out, row, 0)
        while True:
            q = <const char*>memchr(p, 44, end - p)
            if q == NULL:
                q = end
            if k >= it.count:
                return TOO_LONG
            result = self._element(it, p, q, out, row, k)
            if result or q == end:
                return result
            p = q + 1
            k += 1

    cdef int _element(self, Item* it, const char* p, const char* end, Staging out, uint32_t row,
                      uint32_t k) noexcept nogil:
        cdef uint8_t* v = out.out[it.col] + <size_t>row * it.width + <size_t>k * it.size
        cdef uint64_t u = 0
        cdef uint32_t used = 0
        cdef int64_t s
        cdef double d
        cdef float f
        if it.op != RAW:                        # some programs pad columns
            while p < end and p[0] == 32:
                p += 1
            while end > p and (end - 1)[0] == 32:
                end -= 1
            if p == end:
                return FINE
        if it.count > 1 and end - p == 1 and p[0] == 48:
            return FINE                         # an empty element in a list; the row is zero already
        if it.op == RAW:
            return _put_bytes(p, end, v, it.size, &used, not it.utf8 or self.style == TSV)
        if it.op == ENUM or it.op == FLAGS:
            return _put_names(it, p, end, v)
        if it.op == IP:
            return _put_ip(it, p, end, v, out, row)
        if it.op == IPV4:
            if not get_ipv4(p, end, <uint32_t*>v):
                return BAD_VALUE
        elif it.op == MAC:
            if not get_mac(p, end, <uint64_t*>v):
                return BAD_VALUE
        elif it.op == TIME:
            if not get_time(p, end, it.unit, <int64_t*>v):
                return BAD_VALUE
        elif it.op == DURATION:
            if not get_duration(p, end, <int64_t*>v):
                return BAD_VALUE
        elif it.code <= U64:
            if not get_u64(p, end, &u) or it.size < 8 and u >> it.size * 8:
                return BAD_VALUE
            memcpy(v, &u, it.size)
        elif it.code <= I64:
            if not get_i64(p, end, &s) or it.size < 8 and (s >> it.size * 8 - 1) + 1 not in (0, 1):
                return BAD_VALUE
            memcpy(v, &s, it.size)
        else:
            if not get_float(p, end, &d, it.code == F32):
                return BAD_VALUE
            if it.code == F64:
                memcpy(v, &d, 8)
            else:
                f = <float>d
                memcpy(v, &f, 4)
        return FINE


cdef int _put_ip(Item* it, const char* p, const char* end, uint8_t* v, Staging out, uint32_t row) noexcept nogil:
    cdef uint8_t* a = out.out[it.col6] + <size_t>row * 16
    cdef uint32_t v4
    if memchr(p, 58, end - p) == NULL:
        if not get_ipv4(p, end, <uint32_t*>v):
            return BAD_VALUE
        if it.colv >= 0:
            out.out[it.colv][row] = 4
        return FINE
    if not get_ipv6(p, end, a):
        return BAD_VALUE
    v4 = fold6(a)
    memcpy(v, &v4, 4)
    if it.colv >= 0:
        out.out[it.colv][row] = 6
    return FINE


cdef inline int _name(Item* it, const char* p, const char* end) noexcept nogil:
    # The number of the name, else that of one that differs in capitals only; -1: none.
    cdef int k
    cdef uint32_t n = <uint32_t>(end - p)
    for k in range(it.n_names):
        if it.names[k].size == n and memcmp(it.names[k].text, p, n) == 0:
            return k
    for k in range(it.n_names):
        if it.names[k].size == n and strncasecmp(it.names[k].text, p, n) == 0:
            return k
    return -1


cdef int _put_names(Item* it, const char* p, const char* end, uint8_t* v) noexcept nogil:
    # A name or a number; flags: several with | between.
    cdef const char* q
    cdef uint64_t total = 0, one
    cdef int k
    while True:
        q = end
        if it.op == FLAGS:
            q = <const char*>memchr(p, 124, end - p)
        if q == NULL:
            q = end
        k = _name(it, p, q)
        if k >= 0:
            one = it.names[k].value
        elif not get_u64(p, q, &one) or it.size < 8 and one >> it.size * 8:
            return BAD_VALUE
        total |= one
        if q == end:
            break
        p = q + 1
    if it.op == FLAGS:
        one = 0
        memcpy(&one, v, it.size)                # a JSON list of flags has one flag per element
        total |= one
    memcpy(v, &total, it.size)
    return FINE


cdef int _put_bytes(const char* p, const char* end, uint8_t* v, uint32_t size, uint32_t* used,
                    bint escapes) noexcept nogil:
    # After the first `used` bytes of v.  `escapes`: \xNN is one byte.
    cdef uint32_t n = used[0]
    while p < end:
        if n == size:
            memset(v, 0, size)
            return TOO_LONG
        if escapes and p[0] == 92 and end - p >= 4 and p[1] == 120 and hex_digit(p[2]) >= 0 and hex_digit(p[3]) >= 0:
            v[n] = <uint8_t>(hex_digit(p[2]) << 4 | hex_digit(p[3]))
            p += 4
        else:
            v[n] = <uint8_t>p[0]
            p += 1
        n += 1
    used[0] = n
    return FINE


cdef const char* _line_end(const char* p, const char* end, bint quotes) noexcept nogil:
    # The newline that ends the line; a CSV field in quotes may hold newlines.
    cdef const char* q = <const char*>memchr(p, 10, end - p)
    cdef bint inside = False
    if not quotes or q == NULL or memchr(p, 34, q - p) == NULL:
        return q
    while p < end:
        if p[0] == 34:
            inside = not inside
        elif p[0] == 10 and not inside:
            return p
        p += 1
    return NULL
