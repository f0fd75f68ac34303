# Segments sent and not yet acknowledged: a list in order of sequence numbers, without gaps.

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove
from c_explain_state cimport FIRST_ROOM, NEVER, Packet, Result, Segment, Side, before


cdef inline Segment* at(const Side* s, uint32_t i) noexcept nogil:
    return s.list + s.head + i


cdef inline void free_side(Side* s, Result* x) noexcept nogil:
    x.segments -= s.room
    free(s.list)
    free(s.again)
    s.list, s.again, s.room, s.count, s.head = NULL, NULL, 0, 0, 0


cdef inline bint reserve(Side* s, Result* x) noexcept nogil:
    """Room for one more segment after the last one."""
    cdef uint32_t room
    cdef Segment* list
    if s.head + s.count < s.room:
        return True
    if s.head > s.count:
        memmove(s.list, s.list + s.head, s.count * sizeof(Segment))
    else:
        room = s.room * 2 if s.room else FIRST_ROOM
        if x.segments + room - s.room > x.max_segments:
            return False
        list = <Segment*>malloc(room * sizeof(Segment))
        if list == NULL:
            x.failed = True
            return False
        if s.count:
            memcpy(list, s.list + s.head, s.count * sizeof(Segment))
        free(s.list)
        x.segments += room - s.room
        s.list, s.room = list, room
    s.head = 0
    return True


cdef inline bint insert(Side* s, Result* x, uint32_t i, const Segment* segment) noexcept nogil:
    """Put a segment at place i."""
    if not reserve(s, x):
        return False
    if i < s.count:
        memmove(at(s, i + 1), at(s, i), (s.count - i) * sizeof(Segment))
    at(s, i)[0] = segment[0]
    s.count += 1
    return True


cdef inline void append(Side* s, Result* x, uint32_t seq, uint32_t end, const Packet* p, uint32_t sent) noexcept nogil:
    cdef Segment* new
    if not reserve(s, x):
        return
    new = at(s, s.count)
    new.seq, new.end, new.sent, new.delivered = seq, end, sent, s.delivered
    new.last, new.arrived = p.ts, NEVER
    new.last_number = p.number if sent else 0
    new.sacked = new.answered = False
    s.count += 1


cdef inline uint32_t find(const Side* s, uint32_t seq) noexcept nogil:
    """The place of the first segment that ends after ``seq``; count: none does."""
    cdef uint32_t low = 0, high = s.count, middle
    while low < high:
        middle = (low + high) >> 1
        if before(seq, at(s, middle).end):
            high = middle
        else:
            low = middle + 1
    return low


cdef inline void mark(Side* me, const Packet* p, uint32_t end, Result* x) noexcept nogil:
    """Mark [p.seq, end) as sent again; a segment that is only partly in it becomes two or three."""
    cdef uint32_t i = find(me, p.seq)
    cdef Segment part
    cdef Segment* s
    if i < me.count and before(at(me, i).seq, p.seq):
        part = at(me, i)[0]
        part.end = p.seq
        if not insert(me, x, i, &part):
            return
        i += 1
        at(me, i).seq = p.seq
    while i < me.count and before(at(me, i).seq, end):
        s = at(me, i)
        if before(end, s.end):
            part = s[0]
            part.seq = end
            if not insert(me, x, i + 1, &part):
                return
            s = at(me, i)
            s.end = end
        s.sent += 1
        s.last, s.last_number = p.ts, p.number
        i += 1
    if before(me.nxt, end):
        append(me, x, me.nxt, end, p, 1)
