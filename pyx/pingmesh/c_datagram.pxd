# UDP probe datagrams: magic 'CPM1', flags, token, number, spare, three times (sender's; responder's two), padding.
# All fields are big endian.  The responder's times are 0 in a request, so that an answer is never answered.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from c_atomic cimport load_relaxed
from c_bits cimport bswap64
from c_wire cimport be32, get64

cdef enum:
    MAGIC = 0x43504D31
    HEADER = 48
    TOKENS = 8                  # accepted at the same time

cdef enum:
    IS_PROBE
    TOO_SHORT
    NOT_OURS
    NO_TOKEN
    IS_ANSWER


cdef inline void put64(uint8_t* p, uint64_t value) noexcept nogil:
    value = bswap64(value)
    memcpy(p, &value, 8)


cdef inline int check_datagram(const uint8_t* p, uint32_t size, const uint64_t* tokens) noexcept nogil:
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
    # ``received`` 0 (no time stamp) or after ``now`` (the clock was set back): use ``now``.
    put64(p + 32, received if 0 < received <= now else now)
    put64(p + 40, now)
