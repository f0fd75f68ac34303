"""Rows of recordings, sorted to the ends of connections that they belong to."""

from array import array
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset
from c_array cimport grow
from c_block cimport BLOCK_ROWS
from c_gather cimport gather
from c_hash_table cimport HashTable, table_free, table_insert, table_reserve
from confluo_tools.core.block.block cimport Block, column_of
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
cimport cython
import os

cdef enum:
    KEY_WORDS = 6           # addresses, ports and version, cookie
    FLOW_WORDS = 5          # without the cookie
    MAX_TABLES = 8
    MAX_COLUMNS = 40
    MAX_WIDTH = 64
    NO_TABLE = 255
    NONE = -1               # number of a row that is not taken
    LIST = 64               # as in record_tcp.h
    ESCAPE = 240

cdef struct Table:
    int columns
    int count               # column of the number of events; -1: each row is one event
    uint32_t width[MAX_COLUMNS]
    uint8_t* values[MAX_COLUMNS]
    uint64_t room[MAX_COLUMNS]
    uint32_t* end           # of each row
    uint64_t end_room
    uint64_t rows
    uint64_t* events        # of each end
    uint64_t events_room
    uint32_t* order         # rows by end, in the order in which they came
    uint64_t* first         # of each end: its first place in `order`; one more for the last end
    uint64_t sorted         # rows that `order` has
    uint32_t sorted_ends


@cython.final
cdef class RowSorter:
    """Columns of rows by the end that they belong to; ends are numbered from 0 in the order of their first row.

    ``tables``: (values of the column kind, names of the columns, bytes of their values, number of the column
    `count` or -1).  A table may have ``most`` events of each end.  ``only``: see `choose`.
    """

    cdef Table table[MAX_TABLES]
    cdef int tables
    cdef uint8_t of_kind[256]
    cdef HashTable keys
    cdef tuple names
    cdef uint64_t most
    cdef uint64_t chosen[2][KEY_WORDS]
    cdef bint only

    def __cinit__(self, tables, uint64_t most):
        cdef int t, i
        if not 0 < len(tables) <= MAX_TABLES:
            raise ValueError(f"{len(tables)} tables")
        memset(self.of_kind, NO_TABLE, sizeof(self.of_kind))
        self.tables, self.most = len(tables), most
        self.names = tuple([tuple(names) for _, names, _, _ in tables])
        for t, (kinds, names, widths, count) in enumerate(tables):
            if len(names) != len(widths) or not len(names) <= MAX_COLUMNS or not -1 <= count < len(names):
                raise ValueError(f"table {t}")
            if max(widths) > MAX_WIDTH or (count >= 0 and widths[count] != 4):
                raise ValueError(f"widths of table {t}")
            self.table[t].columns, self.table[t].count = len(names), count
            for i, width in enumerate(widths):
                self.table[t].width[i] = width
            for kind in kinds:
                self.of_kind[kind] = t
        secret = os.urandom(16)
        self.keys.words = KEY_WORDS
        self.keys.seed[0] = int.from_bytes(secret[:8], "little")
        self.keys.seed[1] = int.from_bytes(secret[8:], "little")

    def __dealloc__(self):
        cdef int t, i
        cdef Table* table
        table_free(&self.keys)
        for t in range(self.tables):
            table = &self.table[t]
            for i in range(table.columns):
                free(table.values[i])
            free(table.end)
            free(table.events)
            free(table.order)
            free(table.first)

    def choose(self, int version, bytes src not None, int src_port, bytes dst not None, int dst_port):
        """Take only the rows of both ends of this flow, and rows without a flow.

        Addresses as in the columns: 4 bytes of a little-endian number, or 16 bytes.
        """
        cdef uint64_t words[KEY_WORDS]
        cdef bytes a = src.ljust(16, b"\0"), b = dst.ljust(16, b"\0")
        memcpy(words, <const char*>a, 16)
        memcpy(words + 2, <const char*>b, 16)
        words[4] = <uint64_t>version << 32 | <uint64_t>src_port << 16 | <uint64_t>dst_port
        memcpy(self.chosen[0], words, FLOW_WORDS * 8)
        memcpy(words, <const char*>b, 16)
        memcpy(words + 2, <const char*>a, 16)
        words[4] = <uint64_t>version << 32 | <uint64_t>dst_port << 16 | <uint64_t>src_port
        memcpy(self.chosen[1], words, FLOW_WORDS * 8)
        self.only = True

    @property
    def ends(self):
        """Ends so far, the one of rows without a flow among them."""
        return self.keys.count

    def add(self, Block block not None):
        """Add the rows of a block.  Returns [(row, number of its end)] of the rows of other kinds, and of the first row
        of each end.

        Raises ValueError when a column has another type, OverflowError for a number of events that cannot be.
        """
        cdef const uint8_t* version = column_of(block, "ip_version", 1)
        cdef const uint32_t* src = <const uint32_t*>column_of(block, "src_ip", 4)
        cdef const uint32_t* dst = <const uint32_t*>column_of(block, "dst_ip", 4)
        cdef const uint8_t* src6 = column_of(block, "src_ip6", 16)
        cdef const uint8_t* dst6 = column_of(block, "dst_ip6", 16)
        cdef const uint16_t* sport = <const uint16_t*>column_of(block, "src_port", 2)
        cdef const uint16_t* dport = <const uint16_t*>column_of(block, "dst_port", 2)
        cdef const uint64_t* cookie = <const uint64_t*>column_of(block, "cookie", 8)
        cdef const uint8_t* kind = column_of(block, "kind", 1)
        cdef const uint8_t* column
        cdef uint32_t* number = NULL
        cdef uint16_t* rows = NULL
        cdef uint32_t n = 0, known = self.keys.count, row, i
        cdef Table* table
        cdef int t, c
        cdef list found = []
        number = <uint32_t*>malloc(BLOCK_ROWS * 4)
        rows = <uint16_t*>malloc(BLOCK_ROWS * 2)
        try:
            if number == NULL or rows == NULL or table_reserve(&self.keys, block.rows) < 0:
                raise MemoryError
            with nogil:
                n = self._number(block.rows, version, src, dst, src6, dst6, sport, dport, cookie, number, rows)
            for i in range(n):
                row = rows[i]
                if self.of_kind[kind[row]] == NO_TABLE or number[row] >= known:
                    found.append((row, number[row]))
                    known = max(known, number[row] + 1)
            for t in range(self.tables):
                table = &self.table[t]
                n = self._rows_of(block.rows, kind, number, t, rows)
                if n == 0:
                    continue
                self._room(table, n)
                for i in range(n):
                    table.end[table.rows + i] = number[rows[i]]
                for c in range(table.columns):
                    column = column_of(block, self.names[t][c], table.width[c])
                    gather(table.values[c] + table.rows * table.width[c], column, rows, n, table.width[c])
                self._count(table, n)
                table.rows += n
        finally:
            free(number)
            free(rows)
        return found

    cdef uint32_t _number(
        self, uint32_t n, const uint8_t* version, const uint32_t* src, const uint32_t* dst, const uint8_t* src6,
        const uint8_t* dst6, const uint16_t* sport, const uint16_t* dport, const uint64_t* cookie, uint32_t* number,
        uint16_t* rows,
    ) noexcept nogil:
        # The numbers of the ends of the rows, and which rows are taken.
        cdef uint64_t key[KEY_WORDS]
        cdef uint64_t last[KEY_WORDS]
        cdef uint32_t row, taken = 0, at = 0
        cdef bint any = False
        for row in range(n):
            number[row] = <uint32_t>NONE
            key[4] = <uint64_t>version[row] << 32 | <uint64_t>sport[row] << 16 | dport[row]
            if self.only and key[4] != self.chosen[0][4] and key[4] != self.chosen[1][4] and key[4]:
                continue
            if version[row] == 6:
                memcpy(key, src6 + <size_t>row * 16, 16)
                memcpy(key + 2, dst6 + <size_t>row * 16, 16)
            else:
                key[0], key[1], key[2], key[3] = src[row], 0, dst[row], 0
            key[5] = cookie[row]
            if not any or memcmp(key, last, sizeof(key)) != 0:
                if self.only and key[4] and memcmp(key, self.chosen[0], FLOW_WORDS * 8) != 0 and memcmp(
                        key, self.chosen[1], FLOW_WORDS * 8) != 0:
                    continue
                at = table_insert(&self.keys, key)
                memcpy(last, key, sizeof(key))
                any = True
            number[row] = at
            rows[taken] = <uint16_t>row
            taken += 1
        return taken

    cdef uint32_t _rows_of(
        self, uint32_t n, const uint8_t* kind, const uint32_t* number, int t, uint16_t* rows
    ) noexcept nogil:
        cdef uint32_t row, found = 0
        for row in range(n):
            rows[found] = <uint16_t>row
            if self.of_kind[kind[row]] == t and number[row] != <uint32_t>NONE:
                found += 1
        return found

    cdef int _room(self, Table* table, uint32_t n) except -1:
        cdef uint64_t need = table.rows + n
        cdef int c
        if need > 0xFFFFFFFF:
            raise MemoryError("too many rows")
        if grow(<void**>&table.end, &table.end_room, need, BLOCK_ROWS, 4) < 0:
            raise MemoryError
        if grow(<void**>&table.events, &table.events_room, self.keys.count, 1024, 8) < 0:
            raise MemoryError
        for c in range(table.columns):
            if grow(<void**>&table.values[c], &table.room[c], need, 1024, table.width[c]) < 0:
                raise MemoryError
        return 0

    cdef int _count(self, Table* table, uint32_t n) except -1:
        # Count the events of the last n rows.
        cdef const uint32_t* count = NULL
        cdef uint64_t* events
        cdef uint64_t i
        if table.count >= 0:
            count = <const uint32_t*>table.values[table.count]
        for i in range(table.rows, table.rows + n):
            events = &table.events[table.end[i]]
            if count != NULL and not 0 < count[i] <= self.most - events[0]:
                raise OverflowError(f"a run of {count[i]} events after {events[0]}")
            if events[0] >= self.most:
                raise OverflowError(f"more than {self.most} packets")
            events[0] += count[i] if count != NULL else 1
        return 0

    cdef int _sort(self, Table* table) except -1:
        # Rows by end: a counting sort.
        cdef uint64_t* next = NULL
        cdef uint64_t i
        cdef uint32_t e, ends = self.keys.count
        if table.sorted == table.rows and table.sorted_ends == ends and table.first != NULL:
            return 0
        free(table.order)
        free(table.first)
        table.order = <uint32_t*>malloc(max(table.rows, <uint64_t>1) * 4)
        table.first = <uint64_t*>malloc((<size_t>ends + 1) * 8)
        next = <uint64_t*>malloc((<size_t>ends + 1) * 8)
        if table.order == NULL or table.first == NULL or next == NULL:
            free(next)
            raise MemoryError
        with nogil:
            memset(table.first, 0, (<size_t>ends + 1) * 8)
            for i in range(table.rows):
                table.first[table.end[i] + 1] += 1
            for e in range(ends):
                table.first[e + 1] += table.first[e]
            memcpy(next, table.first, (<size_t>ends + 1) * 8)
            for i in range(table.rows):
                table.order[next[table.end[i]]] = <uint32_t>i
                next[table.end[i]] += 1
        free(next)
        table.sorted, table.sorted_ends = table.rows, ends
        return 0

    cdef Table* _table(self, int t, uint32_t end) except NULL:
        if not 0 <= t < self.tables or end >= self.keys.count:
            raise IndexError((t, end))
        self._sort(&self.table[t])
        return &self.table[t]

    def rows(self, int t, uint32_t end):
        """Rows of an end in a table."""
        cdef Table* table = self._table(t, end)
        return table.first[end + 1] - table.first[end]

    def events(self, int t, uint32_t end):
        """Events in these rows."""
        if not 0 <= t < self.tables or end >= self.keys.count:
            raise IndexError((t, end))
        return self.table[t].events[end] if end < self.table[t].events_room else 0

    def column(self, int t, uint32_t end, int c):
        """The values of a column of a table in the rows of an end, as bytes."""
        cdef Table* table = self._table(t, end)
        cdef uint64_t first = table.first[end], n = table.first[end + 1] - first, i
        cdef uint32_t width
        cdef char* out
        if not 0 <= c < table.columns:
            raise IndexError(c)
        width = table.width[c]
        found = PyBytes_FromStringAndSize(NULL, n * width)
        out = PyBytes_AS_STRING(found)
        for i in range(n):
            memcpy(out + i * width, table.values[c] + <size_t>table.order[first + i] * width, width)
        return found


def expand_runs(const int64_t[::1] values not None, const int64_t[::1] counts not None, steps=None):
    """The values of the events of runs, as an array of int64: event i of a run has value + i * step.

    Raises OverflowError for values beyond 64 bits, ValueError for counts that are negative or arrays of other lengths.
    """
    cdef const int64_t[::1] step = values if steps is None else steps
    cdef Py_ssize_t r, n = values.shape[0]
    cdef int64_t total = 0, k, value, most = INT64_MAX, least = INT64_MIN
    cdef uint64_t room      # steps from the first value to the largest or smallest one
    cdef int64_t[::1] out
    if counts.shape[0] != n or step.shape[0] != n:
        raise ValueError("the arrays have different lengths")
    for r in range(n):
        if counts[r] < 0 or counts[r] > most - total:
            raise ValueError(f"a run of {counts[r]}")
        total += counts[r]
    found = array("q", (0,)) * total
    if total == 0:
        return found
    out = found
    total = 0
    for r in range(n):
        value = step[r] if steps is not None else 0
        if value and counts[r] > 1:
            if value > 0:
                room = (<uint64_t>most - <uint64_t>values[r]) // <uint64_t>value
            else:
                room = (<uint64_t>values[r] - <uint64_t>least) // (0 - <uint64_t>value)
            if <uint64_t>(counts[r] - 1) > room:
                raise OverflowError("a run")
            for k in range(counts[r]):
                out[total + k] = values[r] + k * value
        else:
            for k in range(counts[r]):
                out[total + k] = values[r]
        total += counts[r]
    return found


def absolute_runs(
        values not None, notes not None, counts not None, steps, int64_t step, uint32_t mask, int64_t relative):
    """A column of runs that are relative to the run before where ``notes`` has ``relative``: their absolute values.

    From one run to the next the value is expected to grow by count * step; ``steps`` (or None): one for each run.
    """
    cdef const int64_t[::1] value = array("q", values), note = array("q", notes), count = array("q", counts)
    cdef const int64_t[::1] each = value if steps is None else array("q", steps)
    cdef Py_ssize_t r, n = value.shape[0]
    cdef uint64_t expected = 0, found
    cdef int64_t[::1] out
    if note.shape[0] != n or count.shape[0] != n or each.shape[0] != n:
        raise ValueError("the arrays have different lengths")
    absolute = array("q", values)
    if n == 0:
        return absolute
    out = absolute
    for r in range(n):
        found = <uint64_t>value[r]
        if note[r] & relative:
            found = (found + expected) & mask
        out[r] = <int64_t>found
        expected = found + <uint64_t>count[r] * <uint64_t>(step if steps is None else each[r])
    return absolute


cdef struct List:
    const uint8_t* bytes
    uint32_t used


cdef inline int64_t _next(List* numbers) except -1:
    """The next number of a list of LIST bytes: as `put` of record_tcp_end.h."""
    cdef uint32_t byte
    if numbers.used >= LIST:
        raise OverflowError("a list of a row is too short")
    byte = numbers.bytes[numbers.used]
    numbers.used += 1
    if byte < ESCAPE:
        return byte
    if numbers.used >= LIST:
        raise OverflowError("a list of a row is too short")
    numbers.used += 1
    return (byte - ESCAPE) << 8 | numbers.bytes[numbers.used - 1]


def listed_sums(const uint8_t[::1] lists not None, const int64_t[::1] counts not None):
    """For each row of ``counts`` events: 0, and the sums of the numbers of its list up to each later event.

    Raises OverflowError for a count that a list cannot have.
    """
    cdef Py_ssize_t r, n = counts.shape[0], at = 0
    cdef int64_t total = 0, k, value
    cdef int64_t[::1] out
    cdef List numbers
    if lists.shape[0] != n * LIST:
        raise ValueError("the arrays have different lengths")
    for r in range(n):
        if not 0 < counts[r] <= LIST:
            raise OverflowError(f"a listed row of {counts[r]} events")
        total += counts[r]
    found = array("q", (0,)) * total
    if total == 0:
        return found
    out = found
    for r in range(n):
        numbers.bytes, numbers.used = &lists[r * LIST], 0
        value = 0
        for k in range(counts[r]):
            value += _next(&numbers) if k else 0
            out[at] = value
            at += 1
    return found
