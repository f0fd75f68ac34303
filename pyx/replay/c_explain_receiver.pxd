# The end that receives: which data waits for an acknowledgement, and how long.

from libc.stdint cimport int32_t, int64_t, uint32_t
from c_explain_needless cimport arrives
from c_explain_rows cimport new_row
from c_explain_segments cimport at, find
from c_explain_state cimport (
    ACK, C_KNOWN, C_LIKELY, DELACK, E_ACK, FIN, L_DELACK_WINDOW_SHRINK, L_DELAYED_ACK, NEVER, SLACK, SYN, S_CALL,
    S_PACKET, S_UNKNOWN, T_APPLICATION, T_NONE, T_PACKET, T_REPLY, T_TIMER, Flow, Packet, Result, Row, Side, before,
    elapsed, scaled)


cdef inline int sent_because(const Packet* p) noexcept nogil:
    """What a recording says of an acknowledgement; T_NONE: nothing."""
    if p.extra.sent_by == S_UNKNOWN:
        return T_NONE
    return T_PACKET if p.extra.sent_by == S_PACKET else T_APPLICATION if p.extra.sent_by == S_CALL else T_TIMER


cdef inline void late_ack(Flow* f, const Packet* p, int side, Result* x, int64_t window) noexcept nogil:
    """Side ``side`` sends an acknowledgement that it may have delayed."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef int64_t oldest = elapsed(me.pending_ts, p.ts) - me.distance
    cdef int64_t youngest = elapsed(me.data_ts, p.ts) - me.distance
    cdef Row* row
    if oldest < x.gap or (p.extra.edges and not before(p.ack, p.extra.sack[1])):
        return
    row = new_row(x, f, side, you)
    if row == NULL:
        return
    row.trigger = T_REPLY if p.size else sent_because(p)
    if row.trigger == T_NONE:
        row.trigger = T_PACKET if youngest < SLACK else T_TIMER if youngest >= DELACK else T_APPLICATION
    row.label = L_DELAYED_ACK
    if me.pending > you.mss and you.mss and 0 <= window < me.own_window and row.trigger != T_PACKET:
        row.label = L_DELACK_WINDOW_SHRINK
    row.event = E_ACK
    row.certainty = C_KNOWN if p.extra.sent_by or (me.here and row.trigger == T_TIMER) else C_LIKELY
    row.ts, row.duration = p.ts - oldest, oldest
    row.seq, row.size, row.flight = me.acked - you.base, me.pending, me.pending
    row.packet, row.previous = p.number, me.pending_number
    row.window = <uint32_t>window
    me.late, me.late_ack, me.late_label = oldest, p.ack, row.label


cdef inline void acknowledges(Flow* f, const Packet* p, int side, Result* x) noexcept nogil:
    """Side ``side`` sends an acknowledgement."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef int64_t window = scaled(f, side, p)
    cdef uint32_t i
    if me.expects and me.pending and not me.here and p.ack == me.acked and not p.size:
        me.doubt, me.doubted, me.pending = True, me.expected, 0     # data is lost behind the tap
    if me.expects and before(me.acked, p.ack):
        me.late = 0
        if me.doubt:
            me.doubt = before(p.ack, me.doubted)
        elif me.pending:
            late_ack(f, p, side, x, window)
        if not before(p.ack, me.expected):
            me.expected, me.pending = p.ack, 0
        elif me.pending:
            me.pending, me.pending_ts = me.expected - p.ack, me.data_ts
    if not me.expects or before(me.acked, p.ack):
        me.acked = p.ack
        if f.both:
            for i in range(you.count):
                if before(p.ack, at(you, i).end):
                    break
                at(you, i).answered = True
    if not p.flags & SYN:
        if window == 0 and me.own_window > 0:
            f.zero_windows[side] += 1
        me.own_window = <int32_t>window


cdef inline void receives(Flow* f, const Packet* p, int side, Result* x) noexcept nogil:
    """Side ``side`` receives a segment."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef uint32_t end = p.seq + p.size + (p.flags & SYN != 0) + (p.flags & FIN != 0), i
    cdef bint fresh, first = False
    if end == p.seq:
        return
    if p.flags & SYN and not p.flags & ACK and me.known:     # a SYN again: it may be answered again
        me.since += 1
        me.in_ts, me.in_number = p.ts, p.number
    if not me.expects:
        me.expects, me.expected = True, end
        me.acked = end if p.flags & SYN else p.seq
        if not p.flags & SYN:
            me.pending, me.pending_ts, me.pending_number, me.data_ts = p.size, p.ts, p.number, p.ts
        return
    if f.both:
        i = find(you, p.seq)
        if i < you.count and not before(p.seq, at(you, i).seq) and at(you, i).arrived == NEVER:
            at(you, i).arrived, first = p.ts, True
        if p.size:
            arrives(you, p, end, first, x)
    if p.flags & SYN or not before(me.acked, end) or before(me.expected, p.seq):
        return                          # duplicates and what is out of order are acknowledged at once
    fresh = before(me.expected, end)
    if not me.pending or (not fresh and not me.here):
        me.pending_ts, me.pending_number = p.ts, p.number
        me.pending = max(max(me.pending, p.size), <uint32_t>1)
    elif fresh:
        me.pending += p.size
    me.data_ts = p.ts
    if fresh:
        me.expected = end
