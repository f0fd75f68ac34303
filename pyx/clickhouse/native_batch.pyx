"""Rows as a block of ClickHouse's format Native: column after column, in the types that a table has."""

from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.stdint cimport UINT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from c_block cimport BYTES, F32, I8, I16, I32, I64, U8, U16, U32
from c_gather cimport gather
from c_text cimport VALUE_MAX
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.text.text_writer cimport FLAGS, Item, Printer
cimport cython

CASTS = {
    "copy": COPY, "widen": WIDEN, "double": DOUBLE, "divide": DIVIDE, "address": ADDRESS, "mapped": MAPPED,
    "string": STRING, "whole": WHOLE, "printed": PRINTED, "array": ARRAY, "member": MEMBER,
}
cdef enum:
    V6_ANY = 1                          # what the IPv6 address :: folds to
    NUMBER = 20                         # digits
    LENGTH = 5                          # bytes of the length of a String, at most


cdef inline uint8_t* _put_length(uint8_t* p, uint64_t n) noexcept nogil:
    """A number of 7 bits a byte, the lowest first."""
    while n > 127:
        p[0] = <uint8_t>(n & 127 | 128)
        n >>= 7
        p += 1
    p[0] = <uint8_t>n
    return p + 1


cdef inline uint8_t* _put_string(uint8_t* p, const uint8_t* text, uint32_t n) noexcept nogil:
    p = _put_length(p, n)
    memcpy(p, text, n)
    return p + n


cdef inline int64_t _integer(const uint8_t* p, uint8_t code) noexcept nogil:
    if code == U8:
        return p[0]
    if code == U16:
        return (<const uint16_t*>p)[0]
    if code == U32:
        return (<const uint32_t*>p)[0]
    if code == I8:
        return (<const int8_t*>p)[0]
    if code == I16:
        return (<const int16_t*>p)[0]
    if code == I32:
        return (<const int32_t*>p)[0]
    return (<const int64_t*>p)[0]


cdef inline void _store(uint8_t* p, int64_t v, uint32_t size) noexcept nogil:
    memcpy(p, &v, size)                 # little endian, as Native is


cdef inline void _map_ipv4(uint8_t* p, uint32_t v4) noexcept nogil:
    """An IPv4 address as an IPv6 address."""
    cdef int k
    memset(p, 0, 10)
    p[10] = p[11] = 0xff
    for k in range(4):
        p[12 + k] = <uint8_t>(v4 >> (24 - 8 * k))


cdef void _put_address(uint8_t* p, const uint8_t* v6, uint32_t v4, const uint8_t* version) noexcept nogil:
    """An address as 16 bytes: the one that our text output prints; all zeros if it prints none."""
    cdef uint64_t half[2]
    memcpy(half, v6, 16)
    if half[0] | half[1] or version != NULL and version[0] == 6 or version == NULL and v4 == V6_ANY:
        memcpy(p, v6, 16)
    elif v4 or version != NULL and version[0] == 4:
        _map_ipv4(p, v4)
    else:
        memset(p, 0, 16)


@cython.final
cdef class NativeShape:
    """What rows of ``layout`` become in a table.

    ``columns``: (name, type, cast, column, column of the 16 address bytes or -1, column of the IP version or -1, bytes
    of a value in the table, unit of time in ns, nullable, members) of each column of the table; for lists the bytes
    are those of an element.  ``members``: of a "member", two bytes for each value of the column.
    ``plan``: as `Printer` has it, with an item for each column that is "printed", in order.
    """

    def __cinit__(self, Layout layout not None, columns, plan):
        cdef Target* t
        cdef int k, item = 0
        cdef Item* it
        cdef uint32_t longest = 0
        self.layout, self.n, self.heads, self.held = layout, len(columns), [], []
        self.printer = Printer(layout, plan, "tsv")
        self.target = <Target*>calloc(max(self.n, 1), sizeof(Target))
        if self.target == NULL:
            raise MemoryError
        for k, (name, type, cast, col, col6, colv, to, unit, nullable, members) in enumerate(columns):
            t = &self.target[k]
            if not 0 <= col < layout.n or not -1 <= col6 < layout.n or not -1 <= colv < layout.n:
                raise IndexError(col)
            t.cast, t.col, t.col6, t.colv, t.to, t.unit = CASTS[cast], col, col6, colv, to, unit
            t.nullable, t.item = nullable, -1
            t.code, t.size = layout.column[col].code, layout.column[col].size
            t.count, t.width = layout.column[col].count, layout.column[col].width
            if t.cast == PRINTED:
                if item >= self.printer.n:
                    raise IndexError(item)
                it = &self.printer.item[item]
                t.item = item
                item += 1
                t.to = VALUE_MAX if it.n_names == 0 or it.op == FLAGS else NUMBER
                for i in range(it.n_names):
                    t.to = t.to + it.names[i].size + 1 if it.op == FLAGS else max(t.to, it.names[i].size)
                longest = max(longest, t.to)
            if t.cast == MEMBER:
                if len(members) != 2 << (8 * t.size):
                    raise ValueError(f"column {k} has other values than its members")
                self.held.append(members)
                t.members = members
            if not self.fits(t):
                raise ValueError(f"column {k} cannot be cast in this way")
            self.row_bytes += self.most(t) + t.nullable
            self.heads.append(_string(name) + _string(type))
        self.scratch = <uint8_t*>malloc(longest + 64)
        if self.scratch == NULL:
            raise MemoryError

    cdef bint fits(self, Target* t):
        """Whether the column has what its cast reads."""
        if t.cast == ADDRESS:
            if t.col6 < 0 or self.layout.column[t.col6].width != 16:
                return False
            if t.colv >= 0 and self.layout.column[t.colv].width != 1:
                return False
            return t.code == U32 and t.count == 1 and t.to == 16
        if t.cast == MAPPED:
            return t.code == U32 and t.count == 1 and t.to == 16
        if t.cast == STRING or t.cast == WHOLE:
            return t.code == BYTES and t.count == 1 and t.to == t.size
        if t.cast == WIDEN:
            return t.code <= I64 and t.count == 1 and t.size < t.to <= 8
        if t.cast == MEMBER:
            return (t.code == U8 or t.code == U16) and t.count == 1 and (t.to == 1 or t.to == 2)
        if t.cast == DOUBLE:
            return t.code == F32 and t.count == 1 and t.to == 8
        if t.cast == DIVIDE:
            return t.code == I64 and t.count == 1 and t.unit > 0 and (t.to == 8 or t.to == 4)
        if t.cast == ARRAY:
            return t.code != BYTES and t.to == t.size and not t.nullable
        if t.cast == PRINTED:
            return self.printer.item[t.item].col == t.col and t.count == 1 and t.code != BYTES
        return t.count == 1 and t.to == t.width

    cdef size_t most(self, Target* t):
        """The most bytes of a value."""
        if t.cast == ARRAY:
            return 8 + <size_t>t.width
        return <size_t>t.to + (LENGTH if t.cast in (STRING, WHOLE, PRINTED) else 0)

    def __dealloc__(self):
        free(self.target)
        free(self.scratch)


cdef bytes _string(bytes text):
    return _length(len(text)) + text


cdef bytes _length(uint64_t n):
    cdef uint8_t out[10]
    return (<char*>out)[:_put_length(out, n) - out]


@cython.final
cdef class NativeBatch:
    """A block of up to ``capacity`` rows.  Its memory is taken once, when the first row comes."""

    def __cinit__(self, NativeShape shape not None, uint32_t capacity):
        if capacity == 0:
            raise ValueError("no rows in a batch")
        self.shape, self.capacity, self.n = shape, capacity, shape.n
        self.data = <ColumnData*>calloc(max(shape.n, 1), sizeof(ColumnData))
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int k
        # By a number of our own: the garbage collector may have cleared what other attributes name.
        if self.data != NULL:
            for k in range(self.n):
                free(self.data[k].values)
                free(self.data[k].ends)
        free(self.data)
        free(self.nulls)

    cdef bint prepare(self) noexcept nogil:
        """Take the memory; False if there is none."""
        cdef int k
        cdef Target* t
        cdef size_t size
        if self.nulls != NULL:
            return True
        for k in range(self.shape.n):
            t = &self.shape.target[k]
            size = t.width if t.cast == ARRAY else t.to
            if t.cast == STRING or t.cast == WHOLE or t.cast == PRINTED:
                size += LENGTH
            if self.data[k].values == NULL:
                self.data[k].values = <uint8_t*>malloc(size * self.capacity)
            if t.cast == ARRAY and self.data[k].ends == NULL:
                self.data[k].ends = <uint64_t*>malloc(sizeof(uint64_t) * <size_t>self.capacity)
            if self.data[k].values == NULL or t.cast == ARRAY and self.data[k].ends == NULL:
                return False
        self.nulls = <uint8_t*>calloc(self.capacity, 1)
        return self.nulls != NULL

    cdef uint32_t add(self, Block block, const uint16_t* picked, uint32_t start, uint32_t n) noexcept nogil:
        """Add ``n`` of the picked rows, from ``start`` on.  Returns how many fit; 0 also when there is no memory."""
        cdef int k
        if not self.prepare():
            return 0
        if n > self.capacity - self.rows:
            n = self.capacity - self.rows
        for k in range(self.shape.n):
            self.fill(&self.shape.target[k], &self.data[k], block, picked + start, n)
        self.rows += n
        return n

    cdef void fill(self, Target* t, ColumnData* d, Block block, const uint16_t* picked, uint32_t n) noexcept nogil:
        cdef const uint8_t* column = block.col[t.col]
        cdef uint8_t* out = d.values + d.used
        cdef uint32_t i
        cdef double value
        cdef int64_t whole
        if t.cast == ARRAY:
            self.lists(t, d, block, picked, n)
            return
        if t.cast == STRING or t.cast == WHOLE or t.cast == PRINTED:
            self.texts(t, d, block, picked, n)
            return
        if t.cast == COPY:
            gather(out, column, picked, n, t.width)
        elif t.cast == WIDEN:
            for i in range(n):
                _store(out + <size_t>i * t.to, _integer(column + <size_t>picked[i] * t.size, t.code), t.to)
        elif t.cast == DOUBLE:
            for i in range(n):
                value = (<const float*>column)[picked[i]]
                memcpy(out + 8 * <size_t>i, &value, 8)
        elif t.cast == DIVIDE:
            for i in range(n):
                whole = _whole_units((<const int64_t*>column)[picked[i]], t.unit)
                if t.to == 4:           # a DateTime: its first or last second, not one of another century
                    whole = min(max(whole, 0), UINT32_MAX)
                _store(out + <size_t>i * t.to, whole, t.to)
        elif t.cast == MEMBER:
            for i in range(n):
                memcpy(out + <size_t>i * t.to,
                       t.members + 2 * _integer(column + <size_t>picked[i] * t.size, t.code), t.to)
        elif t.cast == MAPPED:
            for i in range(n):
                _map_ipv4(out + 16 * <size_t>i, (<const uint32_t*>column)[picked[i]])
        else:
            for i in range(n):
                _put_address(out + 16 * <size_t>i, block.col[t.col6] + 16 * <size_t>picked[i],
                             (<const uint32_t*>column)[picked[i]],
                             NULL if t.colv < 0 else block.col[t.colv] + picked[i])
        d.used += <size_t>n * t.to

    cdef void texts(self, Target* t, ColumnData* d, Block block, const uint16_t* picked, uint32_t n) noexcept nogil:
        cdef uint8_t* out = d.values + d.used
        cdef uint8_t* scratch = self.shape.scratch
        cdef const uint8_t* v
        cdef uint32_t i, size
        for i in range(n):
            if t.cast == PRINTED:
                size = <uint32_t>(self.shape.printer.put_value(<char*>scratch, &self.shape.printer.item[t.item], block,
                                                               picked[i], False) - <char*>scratch)
                if size == 1 and scratch[0] == 45:          # "-": absent
                    size = 0
                out = _put_string(out, scratch, size)
                continue
            v = block.col[t.col] + <size_t>picked[i] * t.width
            size = t.width
            while t.cast == STRING and size and v[size - 1] == 0:
                size -= 1
            out = _put_string(out, v, size)
        d.used = out - d.values

    cdef void lists(self, Target* t, ColumnData* d, Block block, const uint16_t* picked, uint32_t n) noexcept nogil:
        cdef const uint8_t* v
        cdef uint32_t i, size
        for i in range(n):
            v = block.col[t.col] + <size_t>picked[i] * t.width
            size = t.width
            while size and v[size - 1] == 0:
                size -= 1
            size = (size + t.size - 1) // t.size * t.size
            memcpy(d.values + d.used, v, size)
            d.used += size
            d.ends[self.rows + i] = d.used // t.size

    def add_rows(self, Block block not None, Picks picks=None):
        """Add the picked rows (None: all); returns how many fit.  Raises ValueError for other columns."""
        if block.layout is not self.shape.layout:
            raise ValueError("the block has other columns")
        if picks is None:
            picks = Picks()
            picks.set_all(block.rows)
        return self.add(block, picks.as_list(), 0, picks.n)

    def pieces(self):
        """The bytes of the block, in pieces that are valid until `clear`."""
        cdef int k
        cdef ColumnData* d
        out = [_length(self.shape.n) + _length(self.rows)]
        if self.rows == 0:
            return [b"\0\0"]
        for k in range(self.shape.n):
            d = &self.data[k]
            out.append(self.shape.heads[k])
            if self.shape.target[k].nullable:
                out.append(PyMemoryView_FromMemory(<char*>self.nulls, self.rows, PyBUF_READ))
            if d.ends != NULL:
                out.append(PyMemoryView_FromMemory(<char*>d.ends, 8 * <Py_ssize_t>self.rows, PyBUF_READ))
            out.append(PyMemoryView_FromMemory(<char*>d.values, <Py_ssize_t>d.used, PyBUF_READ))
        return out

    def clear(self):
        """Forget the rows, keep the memory."""
        cdef int k
        self.rows = 0
        for k in range(self.shape.n):
            self.data[k].used = 0


cdef inline int64_t _whole_units(int64_t ns, int64_t unit) noexcept nogil:
    """Rounded down, also before 1970."""
    cdef int64_t q = ns // unit
    return q - 1 if q * unit > ns else q
