# Datagrams of probes: magic 'CPM1', flags, token, number, spare, three times (ours, and two of who answers), padding.
# All big endian.  A request has no times of who answers, so that an answer is never answered.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_atomic cimport load_relaxed
from c_wire cimport be32, bswap64, get64

cdef extern from "string.h" nogil:
    void* memcpy(void* to, const void* data, size_t n)

cdef enum:
    MAGIC = 0x43504D31
    HEADER = 48
    TOKENS = 8                  # that are known at once

cdef enum:
    IS_PROBE
    TOO_SHORT
    NOT_OURS
    NO_TOKEN
    IS_ANSWER


cdef inline void put64(uint8_t* p, uint64_t value) noexcept nogil:
    value = bswap64(value)
    memcpy(p, &value, 8)


cdef inline int judge_datagram(const uint8_t* p, uint32_t size, const uint64_t* tokens) noexcept nogil:
    cdef uint64_t token
    cdef int i
    if size < HEADER:
        return TOO_SHORT
    if be32(p) != MAGIC:
        return NOT_OURS
    token = get64(p + 8, True)
    for i in range(TOKENS):
        if token and load_relaxed(&tokens[i]) == token:
            return IS_ANSWER if get64(p + 32, False) or get64(p + 40, False) else IS_PROBE
    return NO_TOKEN


cdef inline void stamp_datagram(uint8_t* p, uint64_t received, uint64_t now) noexcept nogil:
    # Received without a stamp (0), or after now because the clock was set back: now.
    put64(p + 32, received if 0 < received <= now else now)
    put64(p + 40, now)
