# States as bytes.

from c_state_bytes cimport StateOut

cdef bytes state_bytes(StateOut* o)
