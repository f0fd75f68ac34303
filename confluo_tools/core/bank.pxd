# Many filters over a range of rows at once, for other kernels.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_bank cimport Group, Join
from c_node cimport Context
from confluo_tools.core.block cimport Block, Layout, Picks
from confluo_tools.core.predicate cimport Program

cdef class Bank:
    cdef readonly Layout layout
    cdef readonly int n                 # filters
    cdef readonly uint32_t start, span  # of the last run: its first row, how many rows
    cdef readonly uint32_t words        # of a mask of the last run
    cdef Program host                   # compiles the tests and owns their memory
    cdef list memory                    # bytearrays
    cdef dict known                     # leaf or (refs) -> number of the join
    cdef list leaf                      # by number of the join: the leaf, or None
    cdef Join* join                     # `joins` of them, children first
    cdef int joins, room
    cdef int* root                      # by filter: number of the join * 2, + 1: negated
    cdef Group* group
    cdef int groups
    cdef uint64_t* out                  # n masks of `words`
    cdef uint32_t* count                # by filter: rows of the last run
    cdef Context context
    cdef const uint8_t** cursor         # by column: the 64 rows in hand
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
    # All filters over rows start .. stop of the block (stop at most its rows; its columns those of the layout, and
    # looked at before if they can be damaged).  Returns how many filters found a row.  One thread at a time.
    cdef int run_rows(self, Block block, uint32_t start, uint32_t stop) noexcept nogil
    # Rows of filter i: bit 0 is row `start`; bits beyond `stop` are zero.  Valid until the next run.
    cdef const uint64_t* mask(self, int i) noexcept nogil
