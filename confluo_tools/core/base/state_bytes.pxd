# States as bytes.

from libc.stdint cimport uint8_t
from c_state_bytes cimport StateIn, StateOut

cdef void put_head(StateOut* o, bytes magic, bytes question)
cdef bytes state_bytes(StateOut* o)
cdef int open_state(StateIn* b, const uint8_t[::1] data, bytes magic, bytes question, str share) except -1
cdef int close_state(StateIn* b, str share) except -1
cdef int damaged_state(str share, str what) except -1
