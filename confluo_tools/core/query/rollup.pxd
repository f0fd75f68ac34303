# Roll-ups: aggregates of selected rows by group.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_source cimport Chunk, Source
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.query.group_keys cimport GroupTable
from confluo_tools.core.query.predicate cimport Program
from confluo_tools.core.query.rollup_result cimport Output
from confluo_tools.core.query.aggregate_states cimport State, Value

cdef class RowCondition:
    cdef Program program
    cdef Picks found
    cdef int slot
    cdef RowCondition next
    cdef void look(self, Block block, Picks picks, Value* value) noexcept nogil

cdef class Rollup:
    cdef readonly Layout layout
    cdef readonly tuple keys
    cdef readonly tuple aggs
    cdef readonly int time              # column, or -1
    cdef readonly uint64_t rows         # number of rows folded in
    cdef GroupTable groups
    cdef Picks every
    cdef list kept                      # calculations of values
    cdef RowCondition conditions        # of values, or None
    cdef Value* value
    cdef int values
    cdef State* state
    cdef bint* whole                    # state i can be reduced per block
    cdef int states
    cdef Output* output
    cdef int outputs
    cdef bytes seed
    cdef dict _slots
    cdef Chunk chunk
    cdef uint32_t* group
    cdef int64_t* times
    cdef uint16_t* turned               # rows of a chunk that have a second group
    cdef bint timed                     # some state depends on time
    cdef bint chunked                   # some state cannot be reduced per block
    cdef readonly bint spanning                  # a rate needs the first and last time
    cdef bint broken
    cdef int64_t low
    cdef int64_t high
    cdef uint64_t loose                 # number of rows without a lane
    cdef uint32_t* tally                # only counts, by one 8- or 16-bit column: four counters per value
    cdef uint64_t tallied
    cdef int fold(self, Block block, Picks picks) noexcept nogil
    cdef uint64_t entries(self) noexcept nogil
    cdef int _fold_other_ends(self) noexcept nogil
    cdef int _fold_chunk(self, bint done) noexcept nogil
    cdef int _room(self) noexcept nogil
    cdef bint _reduces(self, int value) noexcept nogil
    cdef bint _all_whole(self, int value) noexcept nogil
    cdef int _untally(self) noexcept nogil
    cdef int _merge(self, Rollup other, const uint8_t* share, uint8_t wanted) noexcept nogil
    cdef int _slot(self, tuple operand, bint hashed, bint raw) except -1
    cdef int _state(self, int kind, int value, int p) except -1
    cdef int _plan(self, Output* o, tuple agg) except -1
