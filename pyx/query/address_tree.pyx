"""Addresses of blocks -> records of an address database, by its search tree (MaxMind DB format 2.0)."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.string cimport memcpy
from c_block cimport BYTES, U32
from confluo_tools.core.block.block cimport Block, Picks
cimport cython

cdef enum:
    KEPT = 1 << 16                  # addresses that are remembered with their records
    AFTER_TREE = 16                 # zero bytes between the tree and the data
    NO_ADDRESS = 1                  # addresses up to this one: absent, or `::` (see schema/types.py: V6_ANY)

cdef struct Kept:
    uint64_t high
    uint64_t low
    uint32_t number                 # of the record, plus 1; 0: the place is free


cdef inline uint64_t big_endian(const uint8_t* p) noexcept nogil:
    cdef uint64_t out = 0
    cdef int i
    for i in range(8):
        out = out << 8 | p[i]
    return out


@cython.final
cdef class AddressTree:
    """The search tree of a database: ``nodes`` nodes of two records of ``bits`` bits (24, 28, 32), in ``data``.

    ``wide``: the tree is of IPv6 addresses, with the IPv4 ones at ::/96; otherwise of IPv4 addresses.
    ``data_size``: bytes of the data after the tree.
    ``offsets``: where in the data the records are that were found so far, by their numbers; the first, -1, is for no
    record.
    Raises ValueError if the tree does not fit into ``data``.
    """

    cdef const uint8_t[::1] data
    cdef const uint8_t* tree
    cdef uint64_t nodes, data_size
    cdef int bits, node_bytes
    cdef bint wide
    cdef int64_t start              # of the IPv4 addresses: a node, or what all of them have
    cdef readonly list offsets
    cdef dict number_of
    cdef Kept* kept

    def __cinit__(self, const uint8_t[::1] data, uint64_t nodes, int bits, bint wide, uint64_t data_size):
        if bits not in (24, 28, 32) or not 1 <= nodes < <uint64_t>1 << 32:
            raise ValueError(f"{nodes} nodes with records of {bits} bits")
        self.data, self.nodes, self.bits, self.wide, self.data_size = data, nodes, bits, wide, data_size
        self.node_bytes = bits // 4
        if nodes * self.node_bytes > <uint64_t>data.shape[0]:
            raise ValueError(f"{nodes} nodes do not fit")
        self.tree = &data[0]
        self.offsets, self.number_of = [-1], {}
        self.start = 0
        if wide:
            for _ in range(96):
                if <uint64_t>self.start < self.nodes:
                    self.start = self.child(self.start, 0)
        self.kept = <Kept*>PyMem_Calloc(KEPT, sizeof(Kept))
        if self.kept == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.kept)

    cdef int64_t child(self, uint64_t node, int side) noexcept nogil:
        """What a node has for the next bit: a node, the number of nodes (nothing), or above it a place in the data."""
        cdef const uint8_t* p = self.tree + node * self.node_bytes
        if self.bits == 28:
            if side:
                return <int64_t>(p[3] & 0x0F) << 24 | <int64_t>p[4] << 16 | <int64_t>p[5] << 8 | p[6]
            return <int64_t>(p[3] >> 4) << 24 | <int64_t>p[0] << 16 | <int64_t>p[1] << 8 | p[2]
        if self.bits == 24:
            p += 3 * side
            return <int64_t>p[0] << 16 | <int64_t>p[1] << 8 | p[2]
        p += 4 * side
        return <int64_t>p[0] << 24 | <int64_t>p[1] << 16 | <int64_t>p[2] << 8 | p[3]

    cdef int64_t find(self, uint64_t high, uint64_t low) noexcept nogil:
        """Where in the data the record of an address is; -1: it has none, -2: the tree is damaged."""
        cdef int64_t node = 0
        cdef int i
        if high == 0 and low >> 32 == 0:
            node = self.start
            i = 32
        elif self.wide:
            i = 128
        else:
            return -1
        while i > 0 and <uint64_t>node < self.nodes:
            i -= 1
            node = self.child(node, (high >> (i - 64) if i >= 64 else low >> i) & 1)
        if <uint64_t>node == self.nodes:
            return -1
        if <uint64_t>node < self.nodes + AFTER_TREE or <uint64_t>node - self.nodes - AFTER_TREE >= self.data_size:
            return -2
        return node - <int64_t>self.nodes - AFTER_TREE

    cdef int64_t number(self, uint64_t high, uint64_t low) except -1:
        """The number of the record of an address."""
        cdef Kept* kept = self.kept + (((high ^ low) * <uint64_t>0x9E3779B97F4A7C15) >> 48)
        cdef int64_t offset
        if kept.number and kept.high == high and kept.low == low:
            return kept.number - 1
        offset = self.find(high, low)
        if offset == -2:
            raise ValueError("its search tree is damaged")
        known = 0 if offset < 0 else self.number_of.get(offset)
        if known is None:
            known = self.number_of[offset] = len(self.offsets)
            self.offsets.append(offset)
        kept.high, kept.low, kept.number = high, low, <uint32_t>known + 1
        return <int64_t>known

    def numbers(self, Block block not None, int column, int column6=-1, Picks picks=None):
        """The number of the record (u32) for each row of ``block``; 0 without a record or an address.

        ``column``: of IPv4 addresses; ``column6``: of IPv6 addresses, -1 if there is none.  ``picks``: the rows to look
        at, None: all; the others get 0.  Raises ValueError for a damaged tree.
        """
        cdef uint32_t i, row
        cdef const uint32_t* narrow
        cdef const uint8_t* wide = NULL
        cdef uint64_t high, low, last_high = 0, last_low = 0
        cdef uint32_t last = 0
        cdef uint32_t[::1] out
        if not 0 <= column < block.layout.n or block.layout.column[column].code != U32 \
                or block.layout.column[column].count != 1:
            raise ValueError("not a column of addresses")
        if column6 >= 0:
            if column6 >= block.layout.n or block.layout.column[column6].code != BYTES \
                    or block.layout.column[column6].size != 16:
                raise ValueError("not a column of IPv6 addresses")
            wide = block.col[column6]
        if picks is None:
            picks = Picks.of(block.rows)
        elif picks.rows > block.rows:
            raise ValueError("the picks are of another block")
        narrow = <const uint32_t*>block.col[column]
        found = bytearray(<size_t>block.rows * 4)
        if not picks.n:
            return found
        out = memoryview(found).cast("I")
        cdef const uint16_t* rows = picks.as_list()
        for i in range(picks.n):
            row = rows[i]
            high, low = 0, narrow[row]
            if wide != NULL:
                high, low = big_endian(wide + <size_t>row * 16), big_endian(wide + <size_t>row * 16 + 8)
                if not high and not low:
                    low = narrow[row]
            if not high and low <= NO_ADDRESS:
                continue
            if high != last_high or low != last_low:
                last = <uint32_t>self.number(high, low)
                last_high, last_low = high, low
            out[row] = last
        return found


def fill(out, numbers, table, uint32_t width):
    """Give each of the ``out`` cells (``width`` bytes) that are zero the value of its number in ``table``.

    Raises ValueError if a buffer is too short, or a number is not in the table.
    """
    cdef uint8_t[::1] cells = memoryview(out).cast("B")
    cdef const uint8_t[::1] values = memoryview(table).cast("B")
    cdef const uint32_t[::1] number = memoryview(numbers).cast("B").cast("I")
    cdef size_t rows = number.shape[0], known = values.shape[0] // max(width, 1)
    cdef size_t i, k
    cdef uint8_t* cell
    if not width or <size_t>cells.shape[0] < rows * width:
        raise ValueError("too short")
    for i in range(rows):
        if not number[i]:
            continue
        if number[i] >= known:
            raise ValueError(f"no value for {number[i]}")
        cell = &cells[i * width]
        for k in range(width):
            if cell[k]:
                break
        else:
            memcpy(cell, &values[number[i] * width], width)
