# State machine by key.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from c_hash_table cimport LruTable
from c_state_machine cimport MAX_INPUTS, MAX_OUTPUTS, MAX_STATES
from confluo_tools.core.block.block cimport Block, Layout, Picks

cdef struct StateKeyPart:                       # of a key
    int col                             # of the input
    int col6                            # of an address: its 16 bytes, or -1
    int version                         # of an address: column with 4 or 6, or -1
    uint32_t width
    uint32_t words
    int out                             # columns of the states
    int out6
    int out_version

cdef class StateMachine:
    cdef readonly Layout layout         # of the input
    cdef readonly Layout result         # of the input, with the outputs
    cdef readonly Layout states         # key and state
    cdef list memory                    # bytearrays that hold the programs
    cdef const int32_t* derive
    cdef const int32_t* update_
    cdef const int32_t* merge_
    cdef const int64_t* pool
    cdef StateKeyPart part[16]
    cdef int parts
    cdef uint32_t words
    cdef uint32_t half                  # words of one end of a conversation, or 0
    cdef int input_col[MAX_INPUTS]
    cdef int inputs
    cdef int state_col[MAX_STATES]     # in `states`
    cdef uint8_t state_code[MAX_STATES]
    cdef int64_t zero[MAX_STATES]
    cdef int state_count
    cdef int outputs
    cdef LruTable table
    cdef void _key(self, Block block, uint32_t row, uint64_t* key) noexcept nogil
    cdef int _go(self, Block block, Picks picks, uint8_t** out) except -1
    cdef int _take(self, Block block, bint merging) except -1
    cdef int _run(self, Block block, const uint8_t* chosen, uint8_t** out) noexcept nogil
    cdef void _unpack(self, uint32_t i, uint32_t row, uint8_t** out) noexcept nogil
    cdef int _restore(self, Block block, bint merging) noexcept nogil
