# The predicate engine, for other kernels: run a compiled tree over a block without the GIL.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from c_postings cimport Chunk
from c_node cimport Context, Node, look_fn
from confluo_tools.core.block.block cimport Block, Layout, Picks

cdef class Program:
    cdef readonly Layout layout
    cdef Node* root
    cdef uint64_t* arena
    cdef uint8_t* gather
    cdef uint8_t* gather2
    cdef list memory                # bytearrays that hold the nodes
    cdef dict notes                 # node address -> (leaf, negated)
    cdef dict stored                # filter name -> addresses of its nodes
    cdef public bint timed          # measure the time of each step
    cdef readonly uint64_t blocks, rows, chosen, ns
    cdef look_fn look               # NULL, or called (with the block) before a column is read
    cdef void* take(self, size_t size) except NULL
    cdef Node* build(self, object tree, int depth) except NULL
    cdef Node* group(self, int kind, object items, int depth) except NULL
    cdef Node* test(self, object leaf, bint negated) except NULL
    cdef Node* named(self, object tree, int depth) except NULL
    cdef Node* constant(self, bint value) except NULL
    cdef int set_keys(self, Node* node, list ranges, object low, object high, bint exact) except -1
    cdef int set_range(self, Node* node, list ranges) except -1
    cdef Node* make_integer(self, Node* node, object leaf, str kind) except NULL
    cdef Node* make_real(self, Node* node, object leaf) except NULL
    cdef Node* make_bytes(self, Node* node, object leaf, str kind) except NULL
    cdef Node* make_list(self, Node* node, object leaf, str kind) except NULL
    cdef int set_items(self, Node* node, object leaf) except -1
    cdef Node* make_search(self, Node* node, list ranges) except NULL
    cdef Node* make_byte_ranges(self, Node* node, object leaf) except NULL
    cdef Node* make_pair(self, Node* node, object leaf) except NULL
    cdef void prepare(self, Context* c, Block block, Chunk** chunk) noexcept nogil
    cdef void decided(self, Context* c, Picks out) noexcept nogil
    # Store the matching rows of the block in `out`; returns their number, -1 if `look` found a damaged column.
    # One thread at a time.
    cdef int run(self, Block block, Picks out) noexcept nogil
    # The same with postings by column (NULL: none); the caller guarantees that they belong to this block.
    cdef int run_indexed(self, Block block, Chunk** chunk, Picks out) noexcept nogil
    # Number of matching rows; reads no row where postings or zone maps suffice.
    cdef int64_t count_indexed(self, Block block, Chunk** chunk, Picks scratch) noexcept nogil
    # Remove the rows of `picks` that do not match.
    cdef int narrow(self, Block block, Picks picks) noexcept nogil
