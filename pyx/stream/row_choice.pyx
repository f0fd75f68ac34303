"""Stages that choose rows, by an expression, by count, by five-tuple; and one that chooses columns."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from c_block cimport U32
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.packets.packet cimport keep_every, keep_flows
from confluo_tools.core.query.predicate cimport Program
from confluo_tools.core.stream.stage cimport StreamStage
cimport cython


@cython.final
cdef class FilterStage(StreamStage):
    """Rows for which ``program`` holds."""

    def __init__(self, Program program not None):
        super().__init__(program.layout)
        self.program = program

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        self.program.narrow(block, picks)
        return self.give(block, picks, now)


@cython.final
cdef class SampleStage(StreamStage):
    """The first of every ``x`` rows."""

    def __init__(self, Layout layout not None, uint64_t x):
        super().__init__(layout)
        if x == 0:
            raise ValueError("one row of none")
        self.x = x

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        self.seen = keep_every(picks, self.seen, self.x)
        return self.give(block, picks, now)


@cython.final
cdef class FlowSampleStage(StreamStage):
    """All rows of one five-tuple in ``x``, the same ones each time.  ``hash_column``: number of flow_hash."""

    def __init__(self, Layout layout not None, uint32_t x, int hash_column):
        super().__init__(layout)
        if x == 0:
            raise ValueError("one flow of none")
        if not 0 <= hash_column < layout.n or layout.column[hash_column].code != U32:
            raise ValueError("the hash is not a u32 column")
        self.x, self.hash_column = x, hash_column

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        keep_flows(<const uint32_t*>block.col[self.hash_column], picks, self.x)
        return self.give(block, picks, now)


@cython.final
cdef class FieldStage(StreamStage):
    """All rows, with the columns of ``to`` alone, found by name.  Raises ValueError when one is missing."""

    def __init__(self, Layout layout not None, Layout to not None):
        cdef int i, j
        super().__init__(layout)
        self.view = Block(to)
        self.source = <int*>calloc(max(to.n, 1), sizeof(int))
        if self.source == NULL:
            raise MemoryError
        for i in range(to.n):
            j = layout.get(to.names[i])
            if j < 0 or layout.column[j].code != to.column[i].code or layout.column[j].width != to.column[i].width:
                raise ValueError(f"column {to.names[i]} is missing, or has another type")
            self.source[i] = j

    def __dealloc__(self):
        free(self.source)

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef int i
        for i in range(self.view.layout.n):
            self.view.col[i] = block.col[self.source[i]]
        self.view.rows = block.rows
        return self.give(self.view, picks, now)
