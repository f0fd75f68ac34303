"""Rows of lists -> one row for each element."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign
from c_block cimport BLOCK_ROWS, BYTES, Column
from c_gather cimport gather
from c_list_test cimport list_length
from c_scan cimport scan_test
from confluo_tools.core.block.block cimport Block, Layout, Picks
cimport cython

cdef enum:
    APART = 256                     # row numbers between those of two rows; no list is longer


@cython.final
cdef class Unnest:
    """Rows of ``source`` -> rows of ``target``, the same columns, but ``lists`` have one element there.

    A row gives as many rows as its longest list of these has elements, none if all of them are empty.  A shorter list
    is zero, that is absent, where it has no element.  Raises ValueError if the layouts do not match.
    """

    cdef readonly Layout source, target
    cdef readonly tuple lists
    cdef int* list                  # the numbers in `lists`
    cdef int n_lists
    cdef uint16_t* row              # of the block, for each row of the result
    cdef uint8_t* element
    cdef Picks every

    def __cinit__(self, Layout source not None, Layout target not None, lists):
        cdef int i
        cdef void* memory
        self.source, self.target, self.lists = source, target, tuple(sorted(set(lists)))
        if source.n != target.n or not self.lists or not 0 <= min(self.lists) <= max(self.lists) < source.n:
            raise ValueError("no lists, or other columns")
        for i in range(source.n):
            if (source.column[i].code != target.column[i].code or source.column[i].size != target.column[i].size
                    or target.column[i].count != (1 if i in self.lists else source.column[i].count)
                    or i in self.lists and source.column[i].code == BYTES):
                raise ValueError(f"column {source.names[i]} has another type")
        self.n_lists = len(self.lists)
        if posix_memalign(&memory, 64, BLOCK_ROWS * 3 + <size_t>self.n_lists * sizeof(int)):
            raise MemoryError
        self.row = <uint16_t*>memory
        self.element = <uint8_t*>memory + BLOCK_ROWS * 2
        self.list = <int*>(self.element + BLOCK_ROWS)
        for i in range(self.n_lists):
            self.list[i] = self.lists[i]
        self.every = Picks()

    def __dealloc__(self):
        free(self.row)

    def rows(self, Block block not None, Picks picks=None, columns=None):
        """Yield blocks of at most 65,536 rows.

        ``picks``: of the block, None: all.  ``columns``: the numbers of those that are copied, None: all; the others
        are zero.
        """
        cdef uint32_t at = 0, after = 0, n
        cdef uint64_t base
        cdef const uint16_t* chosen
        if block.layout is not self.source:
            block = block.project(self.source)
        if picks is None:
            picks = self.every
            picks.set_all(block.rows)
        elif picks.rows > block.rows:
            raise ValueError("the picks are of another block")
        rows = Picks()                          # the caller's may be used again before the next block
        memcpy(rows.list, picks.as_list(), <size_t>picks.n * 2)
        rows.set_list(picks.rows, picks.n)
        wanted = list(range(self.source.n)) if columns is None else sorted(columns)
        while at < rows.n:
            chosen = rows.list
            base = (block.base + chosen[at]) * APART + after
            with nogil:
                n = self.number(block, chosen, rows.n, &at, &after)
            if n:
                out = self.filled(block, n, wanted)
                out.base, out.lane = base, block.lane
                yield out

    cdef uint32_t longest(self, Block block, uint32_t row) noexcept nogil:
        cdef scan_test t
        cdef Column* c
        cdef uint32_t most = 0, n
        cdef int i
        for i in range(self.n_lists):
            c = &self.source.column[self.list[i]]
            t.code, t.size, t.count = c.code, c.size, c.count
            n = list_length(&t, block.col[self.list[i]] + <size_t>row * c.width)
            most = n if n > most else most
        return most

    cdef uint32_t number(self, Block block, const uint16_t* chosen, uint32_t picked, uint32_t* at,
                         uint32_t* after) noexcept nogil:
        """Number the next rows of the result: from chosen[at], without its first `after` elements."""
        cdef uint32_t n = 0, k, most
        while at[0] < picked:
            most = self.longest(block, chosen[at[0]])
            k = after[0]
            while k < most and n < BLOCK_ROWS:
                self.row[n], self.element[n] = chosen[at[0]], <uint8_t>k
                n += 1
                k += 1
            if k < most:
                after[0] = k
                return n
            at[0] += 1
            after[0] = 0
        return n

    cdef Block filled(self, Block block, uint32_t n, list wanted):
        """A block of the n rows that are numbered."""
        cdef Block out = Block(self.target)
        cdef size_t total = 64
        cdef void* memory
        cdef uint8_t* p
        cdef int i
        for i in wanted:
            total += (<size_t>n * self.target.column[i].width + 63) & ~<size_t>63
        if posix_memalign(&memory, 64, total):
            raise MemoryError
        out.own, out.own_size, out.rows = <uint8_t*>memory, total, n
        p = out.own
        for i in wanted:
            if i in self.lists:
                self.elements(p, block, i, n)
            else:
                gather(p, block.col[i], self.row, n, self.target.column[i].width)
            out.col[i] = p
            p += (<size_t>n * self.target.column[i].width + 63) & ~<size_t>63
        return out

    cdef void elements(self, uint8_t* out, Block block, int column, uint32_t n) noexcept nogil:
        cdef Column* c = &self.source.column[column]
        cdef uint32_t i
        for i in range(n):
            if self.element[i] < c.count:
                memcpy(out, block.col[column] + <size_t>self.row[i] * c.width + self.element[i] * c.size, c.size)
            else:
                memset(out, 0, c.size)
            out += c.size
