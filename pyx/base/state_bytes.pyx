"""States as bytes: their head and their end.  What is between is written and read by c_state_bytes.pxd.

Bytes: a magic of 8 bytes, the length and the text of a question, and what the tally of that question counted.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset
from c_state_bytes cimport StateIn, StateOut, put_number, put_raw, take_count, take_raw

cdef enum:
    MAGIC = 8                   # bytes


cdef void put_head(StateOut* o, bytes magic, bytes question):
    """Begin a state."""
    memset(o, 0, sizeof(StateOut))
    put_raw(o, <const char*>magic, MAGIC)
    put_number(o, len(question))
    put_raw(o, <const char*>question, len(question))


cdef bytes state_bytes(StateOut* o):
    """What was put; frees it.  Raises MemoryError."""
    try:
        if o.failed:
            raise MemoryError("no memory for the state of a share")
        return (<const char*>o.data)[:o.size] if o.size else b""
    finally:
        free(o.data)
        memset(o, 0, sizeof(StateOut))


cdef int open_state(StateIn* b, const uint8_t[::1] data, bytes magic, bytes question, str share) except -1:
    """Read what `put_head` wrote; ``share``: of what, for errors.  Raises ValueError if it is another state."""
    cdef const uint8_t* p
    cdef uint64_t n
    if data.shape[0] < MAGIC + 1 or bytes(data[:MAGIC]) != magic:
        raise ValueError(f"this is not the state of a share of {share}")
    b.at, b.end, b.bad = &data[0] + MAGIC, &data[0] + data.shape[0], False
    n = take_count(b, 1)
    p = take_raw(b, n)
    if p == NULL or p[:n] != question:
        raise ValueError(f"the state of a share of {share} has another question")
    return 0


cdef int close_state(StateIn* b, str share) except -1:
    """Raises ValueError if the bytes ended too soon, or do not end here."""
    if b.bad or b.at != b.end:
        damaged_state(share, "it is cut off" if b.bad else "extra bytes at its end")
    return 0


cdef int damaged_state(str share, str what) except -1:
    """Raises ValueError."""
    raise ValueError(f"the state of a share of {share} is damaged: {what}")
