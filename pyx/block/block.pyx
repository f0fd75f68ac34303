"""Blocks of rows in memory: columns of fixed-width values, and selections of their rows."""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_Malloc, PyMem_Free
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int8_t, int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign
from c_bits cimport ctz64, popcount64
from c_block cimport Column, BLOCK_ROWS, MASK_WORDS, I8, I16, I32, I64, F32, F64, BYTES
from c_gather cimport gather
cimport cython


cdef class _Zeros:
    # Zero pages by size, never freed: absent columns point to them. calloc maps them, so they use no memory.
    cdef void* memory
    cdef size_t size

cdef list _zeros = []

cdef const uint8_t* zero_bytes(size_t size) except NULL:
    """Return at least `size` zero bytes; they are never freed."""
    cdef _Zeros z
    for z in _zeros:
        if z.size >= size:
            return <const uint8_t*>z.memory
    z = _Zeros()
    z.size = max(size, <size_t>1 << 20)
    z.memory = calloc(z.size, 1)
    if z.memory == NULL:
        raise MemoryError(f"{size} bytes")
    _zeros.append(z)
    return <const uint8_t*>z.memory


@cython.final
cdef class Layout:
    """Compiled columns of a schema.  ``columns``: (name, code, element bytes, elements per row)."""

    def __cinit__(self, columns):
        cdef int i
        cdef Column* c
        self.n = len(columns)
        self.column = <Column*>PyMem_Malloc(max(self.n, 1) * sizeof(Column))
        if self.column == NULL:
            raise MemoryError
        for i in range(self.n):
            name, code, size, count = columns[i]
            if not 1 <= code <= BYTES or not 1 <= size <= 65535 or not 1 <= count <= 255:
                raise ValueError(f"column {name}: code {code}, size {size}, count {count}")
            c = &self.column[i]
            c.code, c.size, c.count = code, size, count
            c.width = c.size * c.count
        self.names = tuple(c[0] for c in columns)
        self._index = {name: i for i, name in enumerate(self.names)}

    def __dealloc__(self):
        PyMem_Free(self.column)

    def index(self, str name):
        """Number of the column.  Raises KeyError when it does not exist."""
        return self._index[name]

    def get(self, str name):
        """Number of the column; -1 when it does not exist."""
        return self._index.get(name, -1)

    def describe(self, int i):
        """(name, code, element bytes, elements per row) of column i."""
        if not 0 <= i < self.n:
            raise IndexError(i)
        return self.names[i], self.column[i].code, self.column[i].size, self.column[i].count

    @property
    def row_bytes(self):
        """Bytes of one row in all columns."""
        cdef int i
        cdef size_t total = 0
        for i in range(self.n):
            total += self.column[i].width
        return total


cdef class Block:
    """Up to 65,536 rows.  Made by the store, by a parser, or from buffers with `wrap`."""

    def __cinit__(self, Layout layout not None, *args, **kwargs):
        cdef int i
        self.layout = layout
        self.lane = -1
        self.col = <const uint8_t**>PyMem_Malloc(max(layout.n, 1) * sizeof(void*))
        if self.col == NULL:
            raise MemoryError
        for i in range(layout.n):
            self.col[i] = zero_bytes(<size_t>layout.column[i].width * BLOCK_ROWS)

    def __dealloc__(self):
        PyMem_Free(self.col)
        free(self.own)

    @staticmethod
    def wrap(Layout layout not None, uint32_t rows, buffers, *, int lane=-1, uint64_t base=0):
        """A block over ``buffers``: one bytes-like object per column, None for a column of zeros."""
        cdef Block block = Block(layout)
        cdef const uint8_t[::1] view
        cdef int i
        if rows > BLOCK_ROWS:
            raise ValueError(f"{rows} rows in a block of {BLOCK_ROWS}")
        if len(buffers) != layout.n:
            raise ValueError(f"{len(buffers)} buffers for {layout.n} columns")
        kept = []
        for i in range(layout.n):
            if buffers[i] is None or rows == 0:
                continue
            view = memoryview(buffers[i]).cast("B")
            if <size_t>view.shape[0] < <size_t>rows * layout.column[i].width:
                raise ValueError(f"column {layout.names[i]}: {view.shape[0]} bytes for {rows} rows")
            block.col[i] = &view[0]
            kept.append(view)
        block.owner = kept
        block.rows, block.lane, block.base = rows, lane, base
        return block

    def __len__(self):
        return self.rows

    def buffer(self, int i):
        """Read-only bytes of column i: rows * width, no copy."""
        if not 0 <= i < self.layout.n:
            raise IndexError(i)
        cdef _View view = _View()
        view.block, view.data = self, self.col[i]
        view.size = <Py_ssize_t>self.rows * self.layout.column[i].width
        return memoryview(view)

    def get(self, int i, uint32_t row):
        """The value of column i in ``row``: int, float, bytes, or a tuple of them for a list."""
        if not 0 <= i < self.layout.n or row >= self.rows:
            raise IndexError((i, row))
        cdef Column* c = &self.layout.column[i]
        cdef const uint8_t* p = self.col[i] + <size_t>row * c.width
        cdef uint32_t k
        if c.count == 1:
            return _value(c.code, c.size, p)
        return tuple([_value(c.code, c.size, p + k * c.size) for k in range(c.count)])

    cpdef Block take(self, Picks picks):
        """A new block with copies of the picked rows (columns of zeros stay shared)."""
        cdef uint32_t n = picks.n
        cdef const uint16_t* rows
        cdef size_t total = 0
        cdef uint8_t* p
        cdef int i
        if picks.kind == PICK_ALL and n == self.rows:
            return self
        if picks.rows > self.rows:
            raise ValueError("the picks are of another block")
        cdef Block out = Block(self.layout)
        out.lane, out.rows = self.lane, n
        if n == 0:
            return out
        for i in range(self.layout.n):
            if not self._is_zero(i):
                total += (<size_t>n * self.layout.column[i].width + 63) & ~<size_t>63
        _reserve(out, total, False)
        with nogil:
            rows = picks.as_list()
            p = out.own
            for i in range(self.layout.n):
                if not self._is_zero(i):
                    gather(p, self.col[i], rows, n, self.layout.column[i].width)
                    out.col[i] = p
                    p += (<size_t>n * self.layout.column[i].width + 63) & ~<size_t>63
        return out

    def take_columns(self, Picks picks, columns=None):
        """As `take`, but only ``columns`` (numbers, None: all) are copied; the others are zero."""
        cdef const uint16_t* rows = picks.as_list()
        cdef size_t total = 0
        cdef uint8_t* p
        cdef int i
        if picks.rows > self.rows:
            raise ValueError("the picks are of another block")
        cdef Block out = Block(self.layout)
        out.lane, out.rows = self.lane, picks.n
        wanted = [i for i in (range(self.layout.n) if columns is None else columns) if not self._is_zero(i)]
        for i in wanted:
            total += (<size_t>picks.n * self.layout.column[i].width + 63) & ~<size_t>63
        _reserve(out, total, False)
        p = out.own
        for i in wanted:
            gather(p, self.col[i], rows, picks.n, self.layout.column[i].width)
            out.col[i] = p
            p += (<size_t>picks.n * self.layout.column[i].width + 63) & ~<size_t>63
        return out

    cdef bint _is_zero(self, int i) noexcept nogil:
        # True when the column is known to be zero: no rows, or the zone holds only the key of zero bytes.
        cdef uint64_t zero
        if self.zone == NULL or self.layout.column[i].code == BYTES:
            return False
        zero = <uint64_t>1 << 63 if self.layout.column[i].code >= I8 else 0
        return self.zone[i].max == zero and ~self.zone[i].not_min == zero

    cpdef Block slice(self, uint32_t start, uint32_t rows):
        """Rows start .. start+rows, sharing the memory."""
        if start > self.rows or rows > self.rows - start:
            raise IndexError((start, rows))
        cdef Block out = Block(self.layout)
        cdef int i
        for i in range(self.layout.n):
            out.col[i] = self.col[i] + <size_t>start * self.layout.column[i].width
        out.owner, out.rows, out.lane, out.base = self, rows, self.lane, self.base + start
        out.zone = self.zone
        return out

    def project(self, Layout layout not None):
        """The columns of ``layout`` by name, sharing the memory; a missing column reads as zeros.

        Raises ValueError when a column of the same name has another type.
        """
        cdef Block out = Block(layout)
        cdef int i, j
        for i in range(layout.n):
            j = self.layout._index.get(layout.names[i], -1)
            if j < 0:
                continue
            if (layout.column[i].code != self.layout.column[j].code
                    or layout.column[i].width != self.layout.column[j].width):
                raise ValueError(f"column {layout.names[i]} has another type")
            out.col[i] = self.col[j]
        out.owner, out.rows, out.lane, out.base = self, self.rows, self.lane, self.base
        return out

    def zones(self, int i):
        """(smallest, largest) order key of column i; None when unknown."""
        if not 0 <= i < self.layout.n:
            raise IndexError(i)
        return None if self.zone == NULL else (~self.zone[i].not_min, self.zone[i].max)


cdef class Staging(Block):
    """A block that a producer fills: ``capacity`` rows of zeroed columns, then `publish` rows of them."""

    def __cinit__(self, Layout layout not None, uint32_t capacity=BLOCK_ROWS):
        cdef size_t total = 0
        cdef uint8_t* p
        cdef int i
        if not 1 <= capacity <= BLOCK_ROWS:
            raise ValueError(f"capacity {capacity}")
        self.capacity = capacity
        for i in range(layout.n):
            total += _column_bytes(layout.column[i].width, capacity)
        _reserve(self, total, True)
        self.out = <uint8_t**>PyMem_Malloc(max(layout.n, 1) * sizeof(void*))
        if self.out == NULL:
            raise MemoryError
        p = self.own
        for i in range(layout.n):
            self.out[i] = p
            self.col[i] = p
            p += _column_bytes(layout.column[i].width, capacity)

    def __dealloc__(self):
        PyMem_Free(self.out)

    cdef void set_rows(self, uint32_t rows) noexcept nogil:
        self.rows = rows

    def publish(self, uint32_t rows):
        """Declare the first ``rows`` rows filled."""
        if rows > self.capacity:
            raise ValueError(f"{rows} rows in a staging block of {self.capacity}")
        self.rows = rows

    cpdef void clear(self):
        """Zero the columns and forget the rows."""
        memset(self.own, 0, self.own_size)
        self.rows = 0

    def writable(self, int i):
        """Writable bytes of column i: capacity * width."""
        if not 0 <= i < self.layout.n:
            raise IndexError(i)
        cdef _View view = _View()
        view.block, view.data, view.writable = self, self.out[i], True
        view.size = <Py_ssize_t>self.capacity * self.layout.column[i].width
        return memoryview(view)


@cython.final
cdef class Picks:
    """A selection of rows of one block: all, a bit mask, or an ascending list."""

    def __cinit__(self):
        cdef void* memory
        if posix_memalign(&memory, 64, MASK_WORDS * 8 + BLOCK_ROWS * 2):
            raise MemoryError
        self.words = <uint64_t*>memory
        self.list = <uint16_t*>(<uint8_t*>memory + MASK_WORDS * 8)
        self.kind = PICK_LIST

    def __dealloc__(self):
        free(self.words)

    @staticmethod
    def of(uint32_t rows, chosen=None):
        """Picks of a block of ``rows`` rows: all of them, or the ascending iterable ``chosen``."""
        cdef Picks picks = Picks()
        cdef uint32_t n = 0
        cdef int64_t before = -1
        if rows > BLOCK_ROWS:
            raise ValueError(f"{rows} rows")
        if chosen is None:
            picks.set_all(rows)
            return picks
        for row in chosen:
            if not before < row < rows:
                raise ValueError(f"row {row} after {before}, of {rows}")
            picks.list[n] = row
            before, n = row, n + 1
        picks.set_list(rows, n)
        return picks

    def __len__(self):
        return self.n

    @property
    def last(self):
        """Number of the last row, -1 if there is none."""
        if self.n == 0:
            return -1
        return self.n - 1 if self.kind == PICK_ALL else self.as_list()[self.n - 1]

    def within(self, uint32_t start, uint32_t end):
        """The picks from row ``start`` on, before row ``end``."""
        cdef const uint16_t* rows = self.as_list()
        cdef Picks out = Picks()
        cdef uint32_t i, n = 0
        for i in range(self.n):
            if start <= rows[i] < end:
                out.list[n] = rows[i]
                n += 1
        out.set_list(self.rows, n)
        return out

    def tolist(self):
        """The row numbers, as a Python list."""
        cdef const uint16_t* p = self.as_list()
        cdef uint32_t i
        return [p[i] for i in range(self.n)]

    cdef void set_all(self, uint32_t rows) noexcept nogil:
        self.kind, self.rows, self.n = PICK_ALL, rows, rows

    cdef void set_none(self, uint32_t rows) noexcept nogil:
        self.kind, self.rows, self.n = PICK_LIST, rows, 0

    cdef void set_list(self, uint32_t rows, uint32_t n) noexcept nogil:
        self.kind, self.rows, self.n = PICK_LIST, rows, n

    cdef void count_mask(self, uint32_t rows) noexcept nogil:
        cdef uint32_t full = rows >> 6, i
        cdef uint32_t total = 0
        if rows & 63:
            self.words[full] &= (<uint64_t>1 << (rows & 63)) - 1
            full += 1
        for i in range(full):
            total += popcount64(self.words[i])
        memset(self.words + full, 0, (MASK_WORDS - full) * 8)
        self.kind, self.rows, self.n = PICK_MASK, rows, total

    cdef const uint16_t* as_list(self) noexcept nogil:
        cdef uint32_t i, k = 0
        cdef uint64_t word
        if self.kind == PICK_ALL:
            for i in range(self.n):
                self.list[i] = <uint16_t>i
        elif self.kind == PICK_MASK:
            for i in range((self.rows + 63) >> 6):
                word = self.words[i]
                while word:
                    self.list[k] = <uint16_t>(i * 64 + ctz64(word))
                    word &= word - 1
                    k += 1
        self.kind = PICK_LIST
        return self.list

    cdef const uint64_t* as_mask(self) noexcept nogil:
        cdef uint32_t i
        if self.kind == PICK_ALL:
            memset(self.words, 255, MASK_WORDS * 8)
            self.count_mask(self.rows)
        elif self.kind == PICK_LIST:
            memset(self.words, 0, MASK_WORDS * 8)
            for i in range(self.n):
                self.words[self.list[i] >> 6] |= <uint64_t>1 << (self.list[i] & 63)
            self.kind = PICK_MASK
        return self.words


cdef class _View:
    # The buffer behind Block.buffer: keeps the block alive while Python reads its bytes.
    cdef Block block
    cdef const uint8_t* data
    cdef Py_ssize_t size
    cdef bint writable

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.data, self.size, not self.writable, flags)


cdef inline size_t _column_bytes(uint32_t width, uint32_t rows) noexcept nogil:
    # Add 64 bytes to a multiple of 4 KiB: columns that start at equal offsets modulo 4 KiB
    # compete for the same cache sets when a row writes all of them.
    return ((<size_t>width * rows + 63) & ~<size_t>63) + 64


cdef int _reserve(Block block, size_t size, bint zeros) except -1:
    cdef void* memory
    if posix_memalign(&memory, 64, max(size, 64)):
        raise MemoryError(f"{size} bytes")
    if zeros:
        memset(memory, 0, size)
    block.own, block.own_size = <uint8_t*>memory, size
    return 0


cdef object _value(uint8_t code, uint32_t size, const uint8_t* p):
    cdef uint64_t u = 0
    cdef float f
    cdef double d
    if code == BYTES:
        return p[:size]
    if code == F32:
        memcpy(&f, p, 4)
        return f
    if code == F64:
        memcpy(&d, p, 8)
        return d
    memcpy(&u, p, size)
    if code == I8:
        return <int8_t>u
    if code == I16:
        return <int16_t>u
    if code == I32:
        return <int32_t>u
    if code == I64:
        return <int64_t>u
    return u


cdef const uint8_t* column_of(Block block, str name, size_t width) except NULL:
    """The column ``name`` of a block; zeros when missing.  Raises ValueError when its width is not as expected."""
    cdef int i = block.layout.get(name)
    if i < 0:
        return zero_bytes(width * BLOCK_ROWS)
    if block.layout.column[i].width != width:
        raise ValueError(f"column {name} has another type")
    return block.col[i]


cdef int column_number(Layout layout, str name, size_t width, bint needed) except -2:
    """The number of the column ``name``, -1 when it is missing.

    Raises KeyError when it is ``needed``, ValueError when its width is not as expected.
    """
    cdef int i = layout.get(name)
    if i < 0 and needed:
        raise KeyError(name)
    if i >= 0 and layout.column[i].width != width:
        raise ValueError(f"{name} has another type")
    return i


cdef int check_time(Layout layout, int i) except -1:
    """Raises ValueError unless ``i`` is the number of a column of times."""
    if not 0 <= i < layout.n or layout.column[i].code != I64 or layout.column[i].count != 1:
        raise ValueError(f"column {i} is not a time")
    return 0
