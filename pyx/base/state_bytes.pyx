"""States as bytes: what c_state_bytes.pxd wrote, as an object of Python."""

from libc.stdlib cimport free
from libc.string cimport memset
from c_state_bytes cimport StateOut


cdef bytes state_bytes(StateOut* o):
    """What was put; frees it.  Raises MemoryError."""
    try:
        if o.failed:
            raise MemoryError("no memory for the state of a share")
        return (<const char*>o.data)[:o.size] if o.size else b""
    finally:
        free(o.data)
        memset(o, 0, sizeof(StateOut))
