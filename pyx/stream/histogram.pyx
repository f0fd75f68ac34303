"""Histograms: how often the values of a field fall into each bin, by windows of event time."""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from c_bits cimport clz64
from c_block cimport BYTES, F32, F64, I64, I8, U64
from c_source cimport CHUNK
from confluo_tools.core.block.block cimport PICK_ALL, Block, Layout, Picks, Staging
from confluo_tools.core.stream.event_windows cimport WindowStage
cimport cython

cdef extern from "load.h" nogil:
    void load_values(uint64_t* out, int code, const void* column, const uint16_t* rows, uint32_t n) noexcept

cdef extern from *:
    """
    #define CFL_SIGN (1ULL << 63)
    static inline uint64_t mul_high(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
    /* a + b or a - b; the nearest number where that overflows */
    static inline int64_t near_sum(int64_t a, int64_t b) {
        int64_t v;
        return __builtin_add_overflow(a, b, &v) ? (b > 0 ? INT64_MAX : INT64_MIN) : v;
    }
    static inline int64_t near_difference(int64_t a, int64_t b) {
        int64_t v;
        return __builtin_sub_overflow(a, b, &v) ? (b > 0 ? INT64_MIN : INT64_MAX) : v;
    }
    """
    const uint64_t SIGN "CFL_SIGN"
    uint64_t mul_high(uint64_t a, uint64_t b) noexcept nogil
    int64_t near_sum(int64_t a, int64_t b) noexcept nogil
    int64_t near_difference(int64_t a, int64_t b) noexcept nogil

cdef enum:
    OUT_ROWS = 1024
    NO_BIN = 0xFFFFFFFF
    POWERS = 67                         # below 0, 0, [1, 2), [2, 4), ..., [2^63, 2^64), from 2^64 on


@cython.final
cdef class Bins:
    """Bins of numbers of type ``code`` (U64, I64 or F64).

    With ``step``: from ``low`` to ``high`` in steps; the last bin may be narrower.  Otherwise 0, and powers of two:
    1 to 2, 2 to 4, and so on.  Bin 0 has what is below all of these, the last one what is above.
    Raises ValueError for bounds outside of the type, and for more than MAX_BINS bins.
    """

    def __cinit__(self, int code, low=0, high=0, step=None):
        cdef uint32_t i
        if code not in (U64, I64, F64):
            raise ValueError(f"code {code}")
        self.code, self.powers = code, step is None
        if self.powers:
            self.n = POWERS
        else:
            if not low < high or not step > 0:
                raise ValueError(f"{low} to {high} in steps of {step}")
            count = -((low - high) // step)
            if not 1 <= count <= MAX_BINS:
                raise ValueError(f"more than {MAX_BINS} bins")
            self.n = <uint32_t>int(count) + 2
        self.edge = <double*>malloc(self.n * sizeof(double))
        if self.edge == NULL:
            raise MemoryError
        for i in range(self.n - 1):
            if self.powers:
                self.edge[i] = 0.0 if i == 0 else 2.0 ** (i - 1)
            else:
                self.edge[i] = float(high if i == self.n - 2 else min(low + i * step, high))
        if not self.powers and code == F64:
            self.scale = 1.0 / step
        elif not self.powers:
            least = -(1 << 63) if code == I64 else 0
            if not (least <= low and high <= least + (1 << 64) - 1):
                raise ValueError(f"{low} to {high} is outside of the type")
            self.low, self.span, self.step = <uint64_t>(low - least), <uint64_t>(high - low), <uint64_t>step
            if 1 < self.step < <uint64_t>1 << 32 and self.span <= <uint64_t>1 << 32:
                self.magic = ~<uint64_t>0 // self.step + 1      # exact for 32 bits: Lemire et al., 2019

    def __dealloc__(self):
        free(self.edge)

    cdef void put(self, uint64_t* v, uint32_t count) noexcept nogil:
        """Numbers become numbers of bins; NO_BIN: it is not a number."""
        cdef uint64_t flip = SIGN if self.code == I64 else 0, low = self.low, span = self.span, d
        cdef uint64_t step = self.step, magic = self.magic, above = self.n - 1
        cdef uint32_t i
        if self.code == F64:
            self.put_doubles(v, count)
        elif self.powers:
            for i in range(count):
                if v[i] & flip:
                    v[i] = 0
                else:
                    v[i] = 1 + (64 - clz64(v[i]) if v[i] else 0)
        elif magic:
            for i in range(count):
                d = (v[i] ^ flip) - low
                d = (1 + mul_high(d, magic)) if d < span else above
                v[i] = d if (v[i] ^ flip) >= low else 0
        else:
            for i in range(count):
                d = (v[i] ^ flip) - low
                d = (1 + d // step) if d < span else above
                v[i] = d if (v[i] ^ flip) >= low else 0

    cdef void put_doubles(self, uint64_t* v, uint32_t count) noexcept nogil:
        cdef const double* edge = self.edge
        cdef uint32_t i, last = self.n - 2
        cdef int64_t bin
        cdef uint64_t bits
        cdef double x
        for i in range(count):
            memcpy(&x, &v[i], 8)
            if x != x:
                v[i] = NO_BIN
            elif x < edge[0]:
                v[i] = 0
            elif x >= edge[last]:
                v[i] = last + 1
            elif self.powers:
                memcpy(&bits, &x, 8)
                v[i] = 1 if x < 1 else 2 + (bits >> 52) - 1023
            else:
                bin = <int64_t>((x - edge[0]) * self.scale)
                bin = min(bin, <int64_t>last - 1)
                while bin > 0 and x < edge[bin]:        # the edges decide, whatever was rounded
                    bin -= 1
                while bin < last - 1 and x >= edge[bin + 1]:
                    bin += 1
                v[i] = <uint64_t>bin + 1

    def find(self, *values):
        """The bins of numbers, None for one that is not a number."""
        cdef uint64_t v
        cdef double x
        out = []
        for value in values:
            if self.code == F64:
                x = value
                memcpy(&v, &x, 8)
            else:
                v = <uint64_t>(value & ((1 << 64) - 1))
            self.put(&v, 1)
            out.append(None if v == NO_BIN else v)
        return out


@cython.final
cdef class HistogramStage(WindowStage):
    """Counts values in ``bins``, and gives records of the schema `histogram` when a window ends.

    ``value``: (column, ) or (column, 1 or -1, column) for the sum or difference of two; integers of fewer than 64 bits
    or signed, unless it is one column.  ``out``: layout of the records; ``names``: bytes of
    the columns flow, field and host in them.
    """

    def __init__(self, Layout layout not None, int time, int64_t every, int64_t late, tuple value not None,
                 Bins bins not None, Layout out not None, names, int slots=0):
        cdef int i, code
        cdef uint64_t v
        super().__init__(layout, time, every, late, slots)
        for i in value[::2]:
            if not 0 <= i < layout.n or layout.column[i].count != 1 or layout.column[i].code == BYTES:
                raise ValueError(f"column {i} is not a number")
        self.a = operand(layout, value[0])
        self.b.col = -1
        code = F64 if self.a.code >= F32 else I64 if self.a.code >= I8 else U64
        if len(value) > 1:
            self.sign, self.b = value[1], operand(layout, value[2])
            if self.a.code == U64 or self.b.code == U64:
                raise ValueError("a sum of u64")
            code = F64 if code == F64 or self.b.code >= F32 else I64
        if code != bins.code:
            raise ValueError("bins of another type")
        if out.names[:1] + out.names[BIN:TOTAL + 1] != ("ts", "bin", "low", "high", "count", "total"):
            raise ValueError("records of another schema")
        self.bins, self.out, self.every_row = bins, Staging(out, OUT_ROWS), Picks()
        self._write_names(out, names)
        self.counts = <uint64_t*>calloc(<size_t>self.slots * bins.n * 4, sizeof(uint64_t))
        self.v, self.v2 = <uint64_t*>malloc(CHUNK * 8), <uint64_t*>malloc(CHUNK * 8)
        if self.counts == NULL or self.v == NULL or self.v2 == NULL:
            raise MemoryError
        if self.b.col < 0 and self.a.width <= 2 and self.a.code <= I64:
            self.table = <uint16_t*>malloc(65536 * sizeof(uint16_t))
            if self.table == NULL:
                raise MemoryError
            for i in range(1 << 8 * self.a.width):
                load_values(&v, self.a.code, &i, NULL, 1)
                bins.put(&v, 1)
                self.table[i] = <uint16_t>v

    def __dealloc__(self):
        free(self.counts)
        free(self.v)
        free(self.v2)
        free(self.table)

    def _write_names(self, Layout out, names):
        cdef int i, k
        for name, text in names.items():
            k = out.index(name)
            if out.column[k].code != BYTES or len(text) > out.column[k].width:
                raise ValueError(f"{name} is longer than its column")
            filled = text.ljust(out.column[k].width, b"\0") * OUT_ROWS
            memcpy(self.out.out[k], <const char*>filled, <size_t>out.column[k].width * OUT_ROWS)
        k = out.index("window")
        for i in range(OUT_ROWS):
            (<int64_t*>self.out.out[k])[i] = self.every

    cdef uint64_t* of_slot(self, int slot) noexcept nogil:
        return self.counts + <size_t>slot * self.bins.n * 4

    cdef int add(self, int slot, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef uint64_t* counts = self.of_slot(slot)
        cdef uint64_t* v = self.v
        cdef const uint16_t* table = self.table
        cdef const uint16_t* rows = NULL
        cdef const uint8_t* p = block.col[self.a.col]
        cdef uint32_t start = 0, n, i, k
        if picks.kind != PICK_ALL:
            rows = picks.as_list()
        while start < picks.n:
            n = min(picks.n - start, <uint32_t>CHUNK)
            if table != NULL and self.a.width == 2:
                for i in range(n):
                    k = rows[start + i] if rows != NULL else start + i
                    counts[<uint32_t>table[(<const uint16_t*>p)[k]] * 4 + (i & 3)] += 1
            elif table != NULL:
                for i in range(n):
                    k = rows[start + i] if rows != NULL else start + i
                    counts[<uint32_t>table[p[k]] * 4 + (i & 3)] += 1
            else:
                self.load(block.col, rows, start, n)
                self.bins.put(v, n)
                if self.bins.code == F64:
                    for i in range(n):
                        if v[i] == NO_BIN:
                            self.nans += 1
                        else:
                            counts[v[i] * 4 + (i & 3)] += 1
                else:
                    for i in range(n):
                        counts[v[i] * 4 + (i & 3)] += 1
            start += n
        return 0

    cdef void load(self, const uint8_t** col, const uint16_t* rows, uint32_t start, uint32_t n) noexcept nogil:
        """The values of a chunk into `v`."""
        read(self.v, &self.a, col, rows, start, n)
        if self.b.col < 0:
            return
        read(self.v2, &self.b, col, rows, start, n)
        self.combine(n)

    cdef void combine(self, uint32_t n) noexcept nogil:
        cdef uint64_t* v = self.v
        cdef uint64_t* w = self.v2
        cdef uint32_t i
        cdef double x, y
        if self.bins.code == F64:
            for i in range(n):
                x, y = as_double(self.a.code, v[i]), as_double(self.b.code, w[i])
                x = x + y if self.sign > 0 else x - y
                memcpy(&v[i], &x, 8)
        elif self.sign > 0:
            for i in range(n):
                v[i] = <uint64_t>near_sum(<int64_t>v[i], <int64_t>w[i])
        else:
            for i in range(n):
                v[i] = <uint64_t>near_difference(<int64_t>v[i], <int64_t>w[i])

    cdef int close(self, int slot, int64_t start, int64_t now) noexcept nogil:
        cdef uint64_t* counts = self.of_slot(slot)
        cdef uint64_t total = 0, count
        cdef uint32_t bin, n = 0
        cdef uint32_t bins = self.bins.n
        for bin in range(bins * 4):
            total += counts[bin]
        for bin in range(bins):
            count = counts[bin * 4] + counts[bin * 4 + 1] + counts[bin * 4 + 2] + counts[bin * 4 + 3]
            if count == 0:
                continue
            (<int64_t*>self.out.out[0])[n] = start
            (<uint32_t*>self.out.out[BIN])[n] = bin
            (<double*>self.out.out[LOW])[n] = self.bins.edge[bin - 1] if bin else -INFINITY
            (<double*>self.out.out[HIGH])[n] = self.bins.edge[bin] if bin < bins - 1 else INFINITY
            (<uint64_t*>self.out.out[COUNT])[n] = count
            (<uint64_t*>self.out.out[TOTAL])[n] = total
            n += 1
            if n == OUT_ROWS:
                if self.ship(n, now):
                    return 1
                n = 0
        memset(counts, 0, <size_t>bins * 4 * sizeof(uint64_t))
        return self.ship(n, now) if n else 0

    cdef void absorb(self, int slot, WindowStage other) noexcept:
        cdef uint64_t* ours = self.of_slot(slot)
        cdef uint64_t* theirs = (<HistogramStage>other).of_slot(slot)
        cdef uint32_t i
        for i in range(self.bins.n * 4):
            ours[i] += theirs[i]
            theirs[i] = 0

    cdef int ship(self, uint32_t n, int64_t now) noexcept nogil:
        self.out.set_rows(n)
        self.every_row.set_all(n)
        return self.give(self.out, self.every_row, now)


cdef enum:                              # columns of the schema `histogram`, from ts on
    BIN = 4
    LOW = 5
    HIGH = 6
    COUNT = 7
    TOTAL = 8


cdef Operand operand(Layout layout, int col):
    cdef Operand o
    o.col, o.code, o.width = col, layout.column[col].code, layout.column[col].width
    return o


cdef inline void read(uint64_t* v, const Operand* o, const uint8_t** col, const uint16_t* rows, uint32_t start,
                      uint32_t n) noexcept nogil:
    if rows != NULL:
        load_values(v, o.code, col[o.col], rows + start, n)
    else:
        load_values(v, o.code, col[o.col] + <size_t>start * o.width, NULL, n)


cdef inline double as_double(int code, uint64_t v) noexcept nogil:
    cdef double x
    if code >= F32:
        memcpy(&x, &v, 8)
        return x
    return <double>v if code <= U64 else <double><int64_t>v
