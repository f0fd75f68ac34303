# A capture that arrives in pieces: a record that spans two pieces is copied to separate memory (the carry);
# all others are read in place.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset
from c_pcap cimport Reader, Frame, Interface, capture_next, FRAME, MORE, GROW, END

cdef struct Feed:
    Reader c                    # reads the piece, or the carry
    const uint8_t* piece        # bytes after those in the carry; valid while pending
    size_t piece_size
    size_t piece_at             # bytes of the piece copied to the carry
    bint pending
    bint last                   # no piece after this one
    uint8_t* carry
    size_t carry_room


cdef inline void feed_start(Feed* f, uint32_t first_iface, uint32_t number) noexcept nogil:
    memset(f, 0, sizeof(Feed))
    f.c.interfaces = f.c.first = first_iface
    f.c.number = number


cdef inline void feed_end(Feed* f) noexcept nogil:
    free(f.c.iface)
    free(f.carry)


cdef inline bint feed_hungry(const Feed* f) noexcept nogil:
    """Whether a piece can be fed now."""
    return not f.pending and not f.last


cdef inline int feed_give(Feed* f, const uint8_t* bytes, size_t size, bint last) noexcept nogil:
    """Feed a piece, unchanged until it is read; the previous one may be freed.  FRAME, or END: no memory."""
    cdef size_t left = f.c.size - f.c.at
    if f.c.stopped:
        return FRAME
    if left:                            # a record that continues in the new bytes
        if _reserve(f, left) < 0:
            return END
        memmove(f.carry, f.c.data + f.c.at, left)
        f.c.base += f.c.at
        f.c.data, f.c.size, f.c.at = f.carry, left, 0
        f.piece, f.piece_size, f.piece_at, f.pending = bytes, size, 0, True
    else:
        f.c.base += f.c.size
        f.c.data, f.c.size, f.c.at, f.c.final = bytes, size, 0, last
    f.last = last
    return FRAME


cdef inline int _reserve(Feed* f, size_t size) noexcept nogil:
    cdef size_t room = f.carry_room if f.carry_room else 4096
    cdef uint8_t* p
    cdef bint reading = f.carry != NULL and f.c.data == f.carry
    if size <= f.carry_room:
        return 0
    while room < size:
        room *= 2
    p = <uint8_t*>realloc(f.carry, room)
    if p == NULL:
        return -1
    f.carry, f.carry_room = p, room
    if reading:
        f.c.data = p
    return 0


cdef inline int _refill(Feed* f) noexcept nogil:
    """Give the reader bytes: FRAME: done; MORE: feed a piece first; END: no memory."""
    cdef size_t want, left
    if not f.pending:
        return MORE
    if f.c.at == f.c.size:              # the carried record is read: continue in the piece
        f.c.base += f.c.size
        f.c.data, f.c.size, f.c.at = f.piece, f.piece_size, f.piece_at
        f.c.base -= f.piece_at
        f.c.final, f.pending = f.last, False
        return FRAME
    want = f.c.at + f.c.need - f.c.size
    left = f.piece_size - f.piece_at
    if left == 0:
        f.c.final, f.pending = f.last, False
        return FRAME if f.last else MORE
    if want > left:
        want = left
    if _reserve(f, f.c.size + want) < 0:
        return END
    memcpy(f.carry + f.c.size, f.piece + f.piece_at, want)
    f.c.size += want
    f.piece_at += want
    return FRAME


cdef inline int _grow(Feed* f) noexcept nogil:
    cdef uint32_t room = f.c.room * 2 if f.c.room else 16
    cdef Interface* p
    while room <= f.c.interfaces:
        room *= 2
    p = <Interface*>realloc(f.c.iface, room * sizeof(Interface))
    if p == NULL:
        return END
    memset(p + f.c.room, 0, (room - f.c.room) * sizeof(Interface))
    f.c.iface, f.c.room = p, room
    return FRAME


cdef inline int feed_next(Feed* f, Frame* frame) noexcept nogil:
    """Read a frame: FRAME; MORE: feed a piece; END."""
    cdef int status
    while True:
        status = capture_next(&f.c, frame)
        if status == FRAME or status == END:
            return status
        status = _grow(f) if status == GROW else _refill(f)
        if status != FRAME:
            return status
