# Retransmissions that may prove to be needless: reports of duplicates, timestamps, early acknowledgements.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memmove
from c_explain_state cimport (
    C_KNOWN, C_LIKELY, C_POSSIBLE, DELACK_TIME, FIRST_ROOM, L_ACK_LOSS, L_DELAYED_ACK, L_FAST_RTX, L_RTO, L_SPURIOUS,
    L_TLP, MAX_AGAIN, M_OTHER_END, WATCH, Again, Flow, Packet, Result, Row, Side, before, elapsed, rare_at, row_at,
    set_why)


cdef inline void unwatch(Side* me, int i) noexcept nogil:
    me.watched -= 1
    memmove(me.again + i, me.again + i + 1, (me.watched - i) * sizeof(Again))


cdef inline void watch(Side* me, const Packet* p, uint32_t end, uint64_t number, const Row* row) noexcept nogil:
    cdef Again* a
    cdef int room
    if me.watched == MAX_AGAIN:
        unwatch(me, 0)
    if me.watched == me.room_again:
        room = 2 * me.room_again if me.room_again else FIRST_ROOM
        a = <Again*>realloc(me.again, room * sizeof(Again))
        if a == NULL:
            return
        me.again, me.room_again = a, <uint8_t>room
    a = me.again + me.watched
    a.row, a.seq, a.end, a.ts, a.tsval, a.ip_id, a.acks = number, p.seq, end, p.ts, p.tsval, p.ip_id, me.acks
    a.label, a.both = row.label, row.missing & M_OTHER_END == 0
    me.watched += 1


cdef inline Again* latest(Side* me, uint32_t left, uint32_t right, int* place) noexcept nogil:
    """The latest retransmission within these sequence numbers; NULL: none is watched."""
    cdef int i
    cdef Again* a
    for i in range(me.watched - 1, -1, -1):
        a = me.again + i
        if not before(a.seq, left) and not before(right, a.end):
            place[0] = i
            return a
    return NULL


cdef inline void not_needed(Side* me, Result* x, int i) noexcept nogil:
    """Its data had been on its way, which was seen at the other end."""
    cdef uint64_t row = me.again[i].row
    if row_at(x, row).why not in (L_ACK_LOSS, L_DELAYED_ACK):
        set_why(row_at(x, row), L_SPURIOUS, C_KNOWN)
    unwatch(me, i)


cdef inline int sent_after(const Again* a, const Packet* p) noexcept nogil:
    """Whether the retransmission left after this copy of its data did; -1: not known."""
    if a.tsval and p.tsval and a.tsval != p.tsval:
        return <int32_t>(a.tsval - p.tsval) > 0
    if a.ip_id or p.ip_id:
        return <int16_t>(a.ip_id - p.ip_id) > 0
    return -1


cdef inline void arrives(Side* me, const Packet* p, uint32_t end, bint first, Result* x) noexcept nogil:
    """Data of ``me`` comes to the other end: what was sent again while this copy was on its way was not needed."""
    cdef int i, known, place = 0
    cdef bint told = False
    for i in range(me.watched - 1, -1, -1):
        if before(me.again[i].seq, p.seq) or before(end, me.again[i].end):
            continue
        known = sent_after(me.again + i, p)
        if known > 0:
            not_needed(me, x, i)
        told = told or known >= 0
    if not first and not told and latest(me, p.seq, end, &place) != NULL:
        not_needed(me, x, place)


cdef inline void settle(const Packet* p, Side* me, Result* x) noexcept nogil:
    """Retransmissions that this acknowledgement covers: was it the answer to the original?"""
    cdef int i = 0
    cdef int64_t after
    cdef const Again* a
    while i < me.watched:
        a = me.again + i
        after = elapsed(a.ts, p.ts)
        if before(p.ack, a.end):
            i += 1
            continue
        if a.both:
            pass                        # what arrived is known
        elif p.tsecr and a.tsval:
            if before(p.tsecr, a.tsval):
                set_why(row_at(x, a.row), L_SPURIOUS, C_KNOWN)
        elif me.min_rtt and after < me.min_rtt // 2 and a.label != L_FAST_RTX:
            set_why(row_at(x, a.row), L_SPURIOUS, C_LIKELY)
        if after < WATCH:
            i += 1
        else:
            unwatch(me, i)


cdef inline void duplicate(Flow* f, int side, Result* x, uint32_t left, uint32_t right) noexcept nogil:
    """The other end reports data that came twice (DSACK, RFC 2883)."""
    cdef Side* me = &f.side[side]
    cdef int i = 0
    cdef Again* a
    cdef Row* row
    f.dsacks[side] += 1
    a = latest(me, left, right, &i) if not f.both else NULL
    if a == NULL:
        return
    row = row_at(x, a.row)
    if row.label not in (L_RTO, L_TLP) or a.acks != me.acks:
        set_why(row, L_SPURIOUS, C_KNOWN)
    elif rare_at(x, row).age < DELACK_TIME + 2 * me.srtt:
        set_why(row, L_DELAYED_ACK, C_POSSIBLE)
    else:
        set_why(row, L_ACK_LOSS, C_LIKELY)
    unwatch(me, i)
