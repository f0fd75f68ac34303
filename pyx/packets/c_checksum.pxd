# Internet checksums (RFC 1071), also of packets that are rewritten: right stays right, wrong stays wrong.
# Bytes that are not in the output count as zeros, so a checksum does not describe them.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from c_bits cimport bswap16
from c_wire cimport be16

cdef enum:
    UDP_SUM = 6                 # place of the checksum in a UDP header

cdef enum Judgement:
    SUM_RIGHT                   # or not all bytes that it covers were captured
    SUM_WRONG
    SUM_ABSENT                  # the field stays 0, or becomes 0


cdef inline uint32_t fold_sum(uint64_t total) noexcept nogil:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return <uint32_t>total


cdef inline uint32_t sum_bytes(const uint8_t* p, uint32_t n) noexcept nogil:
    """The ones' complement sum of n bytes, an odd one filled up with a zero."""
    cdef uint64_t total = 0
    cdef uint32_t word, i
    cdef uint16_t half
    for i in range(n >> 2):
        memcpy(&word, p + 4 * i, 4)
        total += word
    if n & 2:
        memcpy(&half, p + (n & ~<uint32_t>3), 2)
        total += half
    if n & 1:
        total += p[n - 1]
    return bswap16(<uint16_t>fold_sum(total))


cdef inline Judgement judge_sum(const uint8_t* p, uint32_t n, uint32_t field, uint32_t pseudo) noexcept nogil:
    """What the checksum at p + field over n bytes and a pseudo header with this sum is."""
    if fold_sum(<uint64_t>sum_bytes(p, n) + pseudo) == 0xFFFF:
        return SUM_RIGHT
    return SUM_WRONG if be16(p + field) else SUM_ABSENT


cdef inline void write_sum(uint8_t* p, uint32_t n, uint32_t field, uint32_t pseudo, Judgement judged) noexcept nogil:
    """Write the checksum; a wrong one says nothing about the packet before."""
    cdef uint16_t value
    p[field] = p[field + 1] = 0
    if judged == SUM_ABSENT:
        return
    value = ~<uint16_t>fold_sum(<uint64_t>sum_bytes(p, n) + pseudo)
    if value == 0 and field == UDP_SUM:
        value = 0xFFFF                      # the same number; 0 means absent
    if judged == SUM_WRONG:
        value ^= 0x5555
    value = bswap16(value)
    memcpy(p + field, &value, 2)
