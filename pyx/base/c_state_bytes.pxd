# States as bytes for another process or host: numbers of 7 bits a byte, and raw runs of bytes.
# What is read is not trusted: a read past the end gives 0 (or NULL) and sets `bad`, so that a loop may look later.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy
from c_array cimport grow

cdef struct StateOut:
    uint8_t* data
    uint64_t size
    uint64_t room
    bint failed                 # no memory

cdef struct StateIn:
    const uint8_t* at
    const uint8_t* end
    bint bad

cdef enum:
    MAX_NUMBER = 10             # bytes of a number


cdef inline void put_number(StateOut* o, uint64_t v) noexcept nogil:
    if o.size + MAX_NUMBER > o.room and grow(<void**>&o.data, &o.room, o.size + MAX_NUMBER, 4096, 1) < 0:
        o.failed = True
        return
    while v > 127:
        o.data[o.size] = <uint8_t>(v | 128)
        o.size += 1
        v >>= 7
    o.data[o.size] = <uint8_t>v
    o.size += 1

cdef inline void put_signed(StateOut* o, int64_t v) noexcept nogil:
    put_number(o, (<uint64_t>v << 1) ^ <uint64_t>(v >> 63))

cdef inline void put_raw(StateOut* o, const void* p, uint64_t size) noexcept nogil:
    if size == 0:
        return
    if o.size + size > o.room and grow(<void**>&o.data, &o.room, o.size + size, 4096, 1) < 0:
        o.failed = True
        return
    memcpy(o.data + o.size, p, size)
    o.size += size


cdef inline uint64_t take_number(StateIn* b) noexcept nogil:
    cdef uint64_t v = 0, part
    cdef int shift = 0
    while b.at < b.end and shift < 64:
        part = b.at[0]
        if shift == 63 and part > 1:
            break
        v |= (part & 127) << shift
        b.at += 1
        if part < 128:
            return v
        shift += 7
    b.bad, b.at = True, b.end
    return 0

cdef inline uint64_t take_below(StateIn* b, uint64_t limit) noexcept nogil:
    """A number below ``limit``; other numbers set `bad`."""
    cdef uint64_t v = take_number(b)
    if v < limit:
        return v
    b.bad = True
    return 0

cdef inline int64_t take_signed(StateIn* b) noexcept nogil:
    cdef uint64_t v = take_number(b)
    return <int64_t>((v >> 1) ^ (0 - (v & 1)))

cdef inline uint64_t take_count(StateIn* b, uint64_t size) noexcept nogil:
    """A number of items that each have at least ``size`` bytes: no more than there are bytes for."""
    cdef uint64_t n = take_number(b)
    if n <= <uint64_t>(b.end - b.at) // size:
        return n
    b.bad = True
    return 0

cdef inline const uint8_t* take_raw(StateIn* b, uint64_t size) noexcept nogil:
    cdef const uint8_t* p = b.at
    if size > <uint64_t>(b.end - b.at):
        b.bad, b.at = True, b.end
        return NULL
    b.at += size
    return p
