"""Result rows in columns, any number: filter, sort, take the first, read as blocks."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from c_bits cimport clz64, ctz64
from c_block cimport BLOCK_ROWS, BYTES, F32, U64, Column
from c_sort_key cimport order_bytes, order_key
from c_huge_pages cimport huge_pages
from confluo_tools.core.block.block cimport Block, Layout, Picks, Staging
cimport cython

cdef enum:
    SELECT_FROM = 4096          # rows: below, sorting all is as fast as selecting first
    NO_FAMILY = -2              # in an order, as version of an address: the address is a number
    LAST_FAMILY = 3             # after IPv6


@cython.final
cdef class Rows:
    """``total`` zeroed rows of a layout, filled by a roll-up."""

    def __cinit__(self, Layout layout not None, uint32_t total):
        cdef int i
        self.layout, self.total, self.columns = layout, total, layout.n
        self.column = <uint8_t**>calloc(max(layout.n, 1), sizeof(void*))
        if self.column == NULL:
            raise MemoryError
        for i in range(layout.n):
            self.column[i] = <uint8_t*>calloc(max(total, <uint32_t>1), layout.column[i].width)
            if self.column[i] == NULL:
                raise MemoryError(f"{total} rows")
            huge_pages(self.column[i], <size_t>total * layout.column[i].width)

    def __dealloc__(self):
        cdef int i
        if self.column != NULL:
            # By a number of our own: the garbage collector may have cleared what other attributes name.
            for i in range(self.columns):
                free(self.column[i])
        free(self.column)
        free(self.pick)

    @staticmethod
    def of(Layout layout not None, list pieces not None):
        """The rows of ``pieces``, a list of (block of ``layout``, first row): its rows from that one on."""
        cdef Rows out
        cdef Block block
        cdef uint64_t total = 0
        cdef uint32_t at = 0, start, width
        cdef int i
        for block, first in pieces:
            if block.layout.n != layout.n or not 0 <= first <= block.rows:
                raise ValueError("the pieces do not fit")
            total += block.rows - <uint32_t>first
        if total > <uint64_t>0xFFFFFFFF:
            raise MemoryError(f"{total} rows")
        out = Rows(layout, <uint32_t>total)
        for block, first in pieces:
            start = first
            for i in range(layout.n):
                width = layout.column[i].width
                memcpy(out.column[i] + <size_t>at * width, block.col[i] + <size_t>start * width,
                       <size_t>(block.rows - start) * width)
            at += block.rows - start
        return out

    def cut(self, list ends not None, list last not None):
        """Keep the rows up to the first that is in ``last``, all if none is; returns how many of each piece.

        ``ends``: the row after the last of each piece, in memory order; ``last``: rows in memory order.  Sort before.
        """
        cdef uint32_t k, piece, n = self.length()
        cdef uint8_t* mark = <uint8_t*>calloc(max(<size_t>self.total, <size_t>1), 1)
        cdef list counts = [0] * len(ends)
        if mark == NULL:
            raise MemoryError
        for row in last:
            mark[<uint32_t>row] = 1
        for k in range(n):
            if mark[self.pick[k]]:
                n = k + 1
                break
        self.picks = n
        memset(mark, 0, self.total)
        for k in range(n):
            mark[self.pick[k]] = 1
        k = 0
        for piece, end in enumerate(ends):
            n = 0
            while k < <uint32_t>end:
                n += mark[k]
                k += 1
            counts[piece] = n
        free(mark)
        return counts

    cdef uint32_t length(self) noexcept nogil:
        return self.total if self.pick == NULL else self.picks

    def __len__(self):
        return self.length()

    cdef Block window(self, uint32_t start, uint32_t n):
        # Rows start .. start+n in memory order; the memory is shared.
        cdef Block block = Block(self.layout)
        cdef int i
        for i in range(self.layout.n):
            block.col[i] = self.column[i] + <size_t>start * self.layout.column[i].width
        block.owner, block.rows, block.base = self, n, start
        return block

    def blocks(self):
        """The selected rows in order, as blocks of up to 65,536 rows."""
        cdef uint32_t start = 0, n
        cdef Staging block
        cdef int i
        while start < self.length():
            n = min(<uint32_t>BLOCK_ROWS, self.length() - start)
            if self.pick == NULL:
                yield self.window(start, n)
            else:
                block = Staging(self.layout, n)
                with nogil:
                    for i in range(self.layout.n):
                        gather(block.out[i], self.column[i], self.pick + start, n, self.layout.column[i].width)
                    block.set_rows(n)
                block.base = start
                yield block
            start += n

    def keep(self, select):
        """Keep only the rows that ``select(block) -> Picks`` picks.  Call it before `sort`."""
        cdef uint32_t start = 0, n, k, kept = 0
        cdef uint32_t* pick
        cdef const uint16_t* rows
        cdef Picks picks
        if self.pick != NULL:
            raise ValueError("the rows are already selected")
        pick = <uint32_t*>malloc(max(<size_t>self.total, <size_t>1) * 4)
        if pick == NULL:
            raise MemoryError(f"{self.total} rows")
        try:
            while start < self.total:
                n = min(<uint32_t>BLOCK_ROWS, self.total - start)
                picks = select(self.window(start, n))
                if picks.rows > n:
                    raise ValueError("the picks are of another block")
                rows = picks.as_list()
                for k in range(picks.n):
                    pick[kept] = start + rows[k]
                    kept += 1
                start += n
        except BaseException:
            free(pick)
            raise
        self.pick, self.picks = pick, kept

    def sort(self, list order not None, first=None):
        """Sort the rows by ``order``, a list of (column number, descending); keep only the ``first`` N if given.

        Numbers sort as numbers (NaN last), bytes and lists element by element.  (column, descending, version, last)
        is an address of that column and the next one, with its version in a column or -1: IPv4 before IPv6, rows
        without an address first or, with ``last``, last in both directions.  With a version of -2, it is an address
        of type ipv4.  Rows equal in all the columns keep their order.
        """
        cdef uint32_t i, n = self.length()
        cdef uint32_t max_rows = n
        for number, _, *address in order:
            if not 0 <= number < self.layout.n - (len(address) > 0 and address[0] > NO_FAMILY):
                raise IndexError(number)
            if address and not NO_FAMILY <= address[0] < self.layout.n:
                raise IndexError(address[0])
        if first is not None:
            if first < 0:
                raise ValueError(f"the first {first} rows")
            max_rows = min(first, n)
        if self.pick == NULL:
            self.pick = <uint32_t*>malloc(max(<size_t>n, <size_t>1) * 4)
            if self.pick == NULL:
                raise MemoryError(f"{n} rows")
            for i in range(n):
                self.pick[i] = i
            self.picks = n
        if order and max_rows and max_rows <= n // 8 and n > SELECT_FROM:
            self._select(order[0], max_rows)
        self._sort_by(order)
        self.picks = min(max_rows, self.picks)

    cdef int _parts(self, tuple column, SortPart* part) except -1:
        # The words that a column or address of an order sorts by, and their number; only this, if `part` is NULL.
        cdef int number = column[0], version = column[2] if len(column) > 2 else NO_FAMILY
        cdef Column* c = &self.layout.column[number]
        cdef bint address = version > NO_FAMILY, last = len(column) > 2 and column[3]
        cdef int word, words = 3 if address else (c.size + 7) // 8 if c.code == BYTES else c.count
        if part == NULL:
            return words
        for word in range(words):
            part[word].column, part[word].version, part[word].last = number, version, last
            part[word].address = word + 1 if address else 0
            part[word].at = 0 if address else word * (8 if c.code == BYTES else c.size)
            part[word].flip, part[word].low, part[word].shift = ~<uint64_t>0 if column[1] else 0, 0, 0
            part[word].step = 1
        return words

    cdef int _select(self, tuple column, uint32_t max_rows) except -1:
        # Drop the rows that cannot be among the first `max_rows`, by the first word of the first column alone.
        cdef uint32_t i, kept = 0, n = self.picks
        cdef uint64_t limit
        cdef SortPart* part = <SortPart*>malloc(self._parts(column, NULL) * sizeof(SortPart))
        cdef uint64_t* key = <uint64_t*>malloc(<size_t>n * 16)
        if part == NULL or key == NULL:
            free(part)
            free(key)
            raise MemoryError(f"{n} rows")
        self._parts(column, part)
        with nogil:
            self._keys(part, False, key)
            memcpy(key + n, key, <size_t>n * 8)
            limit = nth(key + n, n, max_rows - 1)
            for i in range(n):
                if key[i] <= limit:
                    self.pick[kept] = self.pick[i]
                    kept += 1
        self.picks = kept
        free(part)
        free(key)
        return 0

    cdef int _sort_by(self, list order) except -1:
        # The words of all columns, each minus its smallest value and as a number of steps (of time keys), packed into
        # as few words as possible.
        cdef size_t n = self.picks, i
        cdef int k, first, last, parts = 0
        cdef uint32_t used
        cdef uint64_t low, high
        cdef SortPart* part
        cdef uint64_t* key
        for column in order:
            parts += self._parts(column, NULL)
        if n < 2 or parts == 0:
            return 0
        part = <SortPart*>malloc(parts * sizeof(SortPart))
        key = <uint64_t*>malloc(n * 20 + 8)
        if part == NULL or key == NULL:
            free(part)
            free(key)
            raise MemoryError(f"{n} rows")
        huge_pages(key, n * 20)
        k = 0
        for column in order:
            k += self._parts(column, part + k)
        with nogil:
            for k in range(parts):
                self._keys(&part[k], False, key)
                low, high = key[0], key[0]
                for i in range(n):
                    low, high = min(low, key[i]), max(high, key[i])
                part[k].low = low
                part[k].step = step_of(key, n, low) if high > low else 1
                part[k].bits = 64 - clz64((high - low) // part[k].step) if high > low else 0
            last = parts
            while last:
                first, used = last, 0
                while first and used + part[first - 1].bits <= 64:
                    first -= 1
                    part[first].shift = used
                    used += part[first].bits
                memset(key, 0, n * 8)
                for k in range(first, last):
                    if part[k].bits:
                        self._keys(&part[k], True, key)
                if used:
                    radix(key, key + n, self.pick, <uint32_t*>(key + 2 * n), n)
                last = first
        free(part)
        free(key)
        return 0

    cdef void _keys(self, const SortPart* part, bint add, uint64_t* key) noexcept nogil:
        # One unsigned number per row that sorts like the part; with `add`, packed into the value in `key`.
        cdef Column* c = &self.layout.column[part.column]
        cdef const uint8_t* column = self.column[part.column] + part.at
        cdef const uint8_t* p
        cdef const uint32_t* pick = self.pick
        cdef uint64_t flip = part.flip, low = part.low, step = part.step, v
        cdef uint32_t shift = part.shift, width = c.width, left, n = self.picks, i
        cdef int code = c.code
        if part.address:
            self._address_keys(part, add, key)
            return
        left = min(c.size - part.at, <uint32_t>8) if code == BYTES else c.size
        for i in range(n):
            p = column + <size_t>pick[i] * width
            if code == U64:
                memcpy(&v, p, 8)
                v ^= flip
            elif code == BYTES:
                v = order_bytes(p, left) ^ flip
            else:
                v = order_key(code, p, left) ^ flip
                if code >= F32 and is_nan(code, p):
                    v = ~<uint64_t>0
            if part.last and v == flip:
                v = ~<uint64_t>0
            if not add:
                key[i] = v
            elif step == 1:
                key[i] |= (v - low) << shift
            else:
                key[i] |= (v - low) // step << shift

    cdef void _address_keys(self, const SortPart* part, bint add, uint64_t* key) noexcept nogil:
        # As `_keys`, of a word of an address.
        cdef const uint8_t* four = self.column[part.column]
        cdef const uint8_t* six = self.column[part.column + 1]
        cdef const uint8_t* version = self.column[part.version] if part.version >= 0 else NULL
        cdef Column* c = &self.layout.column[max(part.version, 0)]
        cdef uint64_t words[3]
        cdef uint64_t v
        cdef uint32_t i
        cdef size_t row
        for i in range(self.picks):
            row = self.pick[i]
            address_words(four + row * 4, six + row * 16,
                          <int64_t>order_key(c.code, version + row * c.width, c.size) if version != NULL else -1, words)
            if part.last and words[0] == 0:
                words[0] = 0 if part.flip else LAST_FAMILY
            v = words[part.address - 1] ^ part.flip
            if add:
                key[i] |= (v - part.low) // part.step << part.shift
            else:
                key[i] = v


cdef inline void address_words(const uint8_t* four, const uint8_t* six, int64_t version,
                               uint64_t* words) noexcept nogil:
    # What an address sorts by: 1 of IPv4, 2 of IPv6, 0 of none, and its number.  Without a version 1 is ::, and 0.0.0.0
    # and 0.0.0.1 are IPv4-mapped: `ip_result` of c_source.pxd.
    cdef uint32_t v4
    memcpy(&v4, four, 4)
    words[1], words[2] = order_bytes(six, 8), order_bytes(six + 8, 8)
    words[0] = 2 if version == 6 or words[1] | words[2] or (v4 == 1 and version < 0) else 1 if v4 or version == 4 else 0
    if version < 0 and words[1] == 0 and words[2] >> 1 == <uint64_t>0xFFFF << 31:
        words[0], words[2] = 1, words[2] & 1
    elif words[0] == 1:
        words[2] = v4


cdef void gather(uint8_t* out, const uint8_t* column, const uint32_t* rows, uint32_t n, uint32_t width) noexcept nogil:
    cdef uint32_t i
    if width == 8:
        for i in range(n):
            (<uint64_t*>out)[i] = (<const uint64_t*>column)[rows[i]]
    elif width == 4:
        for i in range(n):
            (<uint32_t*>out)[i] = (<const uint32_t*>column)[rows[i]]
    elif width == 2:
        for i in range(n):
            (<uint16_t*>out)[i] = (<const uint16_t*>column)[rows[i]]
    elif width == 1:
        for i in range(n):
            out[i] = column[rows[i]]
    elif width == 16:
        for i in range(n):
            memcpy(out + <size_t>i * 16, column + <size_t>rows[i] * 16, 16)
    else:
        for i in range(n):
            memcpy(out + <size_t>i * width, column + <size_t>rows[i] * width, width)


cdef inline bint is_nan(int code, const uint8_t* p) noexcept nogil:
    cdef float f
    cdef double d
    if code == F32:
        memcpy(&f, p, 4)
        return f != f
    memcpy(&d, p, 8)
    return d != d


cdef uint64_t nth(uint64_t* v, uint32_t n, uint32_t k) noexcept nogil:
    """The k-th smallest of n numbers; changes their order (Hoare's selection, middle of three as pivot)."""
    cdef int64_t low = 0, high = <int64_t>n - 1, i, j
    cdef uint64_t pivot, a, b, c
    while low < high:
        a, b, c = v[low], v[(low + high) // 2], v[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while v[i] < pivot:
                i += 1
            while v[j] > pivot:
                j -= 1
            if i <= j:
                v[i], v[j] = v[j], v[i]
                i += 1
                j -= 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            break
    return v[k]


cdef uint64_t step_of(const uint64_t* key, size_t n, uint64_t low) noexcept nogil:
    """The greatest common divisor of all keys minus ``low``; at least one of them is not 0."""
    cdef uint64_t step = 0, rest, t
    cdef size_t i
    for i in range(n):
        rest = key[i] - low
        if step and rest % step == 0:
            continue
        while rest:
            t, step = step, rest
            rest = t % rest
        if step == 1:
            break
    return step


cdef void radix(uint64_t* key, uint64_t* spare, uint32_t* id, uint32_t* spare_id, size_t n) noexcept nogil:
    """Stable radix sort of key and id by key, lowest digit first; skips digits that are equal in all keys.

    Digits have up to 11 bits: with more, the places that are written to do not fit into the fastest cache.
    """
    cdef uint32_t count[6][2048]
    cdef uint32_t* places
    cdef uint64_t* a = key
    cdef uint64_t* b = spare
    cdef uint32_t* ia = id
    cdef uint32_t* ib = spare_id
    cdef uint64_t differ = 0, digit, k
    cdef uint32_t sum, t
    cdef int first, bits, digits, width, shift, d
    cdef size_t i
    for i in range(1, n):
        differ |= key[i] ^ key[0]
    if not differ:
        return
    first = ctz64(differ)
    bits = 64 - clz64(differ) - first
    digits = (bits + 10) // 11 if n >= 4096 else (bits + 7) // 8        # few keys: less to clear and to add
    if digits > 6:
        digits = 6
    width = (bits + digits - 1) // digits
    digit = (<uint64_t>1 << width) - 1
    memset(count, 0, digits * sizeof(count[0]))
    for i in range(n):
        k = key[i] >> first
        for d in range(digits):
            count[d][k & digit] += 1
            k >>= width
    for d in range(digits):
        shift = first + d * width
        places = count[d]
        if places[a[0] >> shift & digit] == n:
            continue
        sum = 0
        for i in range(digit + 1):
            t, places[i] = places[i], sum
            sum += t
        for i in range(n):
            t = places[a[i] >> shift & digit]
            places[a[i] >> shift & digit] = t + 1
            b[t], ib[t] = a[i], ia[i]
        a, b, ia, ib = b, a, ib, ia
    if ia != id:
        memcpy(id, ia, n * 4)
        memcpy(key, a, n * 8)
