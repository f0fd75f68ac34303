"""Zone maps of blocks from other sources: the smallest and largest value of each column.

The tests of the predicate engine use it: they pass blocks with zones as narrow as possible, or wider than
their rows, like those of a block that is still being written.  Files cannot contain all of these cases.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_block cimport Column, Zone
from c_sort_key cimport order_key
from confluo_tools.core.block.block cimport Block


def zoned(Block block not None, wider=None):
    """``block`` (columns shared) with zone maps computed from its rows.

    ``wider``: {column number: (lowest, highest) order key} to widen some of them, like those of a block that is still
    being written are wider than the rows a reader sees.
    """
    cdef Block out = Block(block.layout)
    cdef Column* c
    cdef Zone* zone
    cdef uint64_t low, high, key
    cdef uint32_t row, k
    cdef int i
    memory = bytearray(max(block.layout.n, 1) * sizeof(Zone))
    zone = <Zone*><uint8_t*>memory
    for i in range(block.layout.n):
        c = &block.layout.column[i]
        low, high = ~<uint64_t>0, 0
        for row in range(block.rows):
            for k in range(c.count):
                key = order_key(c.code, block.col[i] + <size_t>row * c.width + <size_t>k * c.size, c.size)
                low, high = min(low, key), max(high, key)
        if wider and i in wider:
            low, high = min(low, <uint64_t>wider[i][0]), max(high, <uint64_t>wider[i][1])
        zone[i].not_min, zone[i].max = ~low, high
        out.col[i] = block.col[i]
    out.owner, out.zone = (block, memory), zone
    out.rows, out.base, out.lane = block.rows, block.base, block.lane
    return out
