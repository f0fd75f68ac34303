# Shared filters: many filters over a range of rows.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_shared_filters cimport Group, Join
from c_node cimport Context
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.query.predicate cimport Program

cdef class SharedFilters:
    cdef readonly Layout layout
    cdef readonly int n                 # filters
    cdef readonly uint32_t start, span  # of the last run: first row, number of rows
    cdef readonly uint32_t words        # words of a mask of the last run
    cdef Program host                   # compiles the tests and owns their memory
    cdef list memory                    # bytearrays
    cdef dict known                     # leaf or (refs) -> number of the join
    cdef list leaf                      # by number of the join: the leaf, or None
    cdef Join* join                     # array of `joins`, children first
    cdef int joins, room
    cdef int* root                      # by filter: number of the join * 2, + 1: negated
    cdef Group* group
    cdef int groups
    cdef uint64_t* out                  # n masks of `words`
    cdef uint32_t* count                # by filter: number of rows in the last run
    cdef Context context
    cdef const uint8_t** cursor         # by column: the current 64 rows
    cdef uint64_t* touched              # by column: the stamp for which the cursor was set
    cdef uint8_t** pad                  # by column: a copy of fewer than 64 rows, or NULL
    cdef uint64_t stamp
    cdef bint zoned
    cdef void* take(self, size_t size) except NULL
    cdef int add(self, object tree, int depth) except -1
    cdef int add_leaf(self, object leaf) except -1
    cdef int add_join(self, list refs) except -1
    cdef int next_join(self) except -1
    cdef int finish(self) except -1
    cdef double cost_of(self, int ref)
    cdef int make_group(self, int col, list members) except -1
    cdef void decide(self, Block block) noexcept nogil
    # Run all filters over rows start .. stop of the block (stop at most its rows; its columns are those of the layout
    # and verified).  Returns the number of filters with a match.  One thread at a time.
    cdef int run_rows(self, Block block, uint32_t start, uint32_t stop) noexcept nogil
    # Rows of filter i: bit 0 is row `start`; bits beyond `stop` are zero.  Valid until the next run.
    cdef const uint64_t* mask(self, int i) noexcept nogil
