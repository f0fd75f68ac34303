# The end that sends: which of its mechanisms sent data again, and what it made up for.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from c_explain_gaps cimport spent, triggered
from c_explain_needless cimport watch
from c_explain_rows cimport add_rare, count_row, count_wait, new_row
from c_explain_segments cimport at, find, mark
from c_explain_state cimport (
    C_KNOWN, C_LIKELY, DUP_THRESHOLD, E_ORDER, E_RETRANSMISSION, LOSS, L_ACK_LOSS, L_AFTER_RTO, L_DELAYED_ACK,
    L_FAST_RTX, L_FEW_DUPACKS, L_LATE_FR, L_LOSS, L_LOST_RETRANSMISSION, L_REORDERING, L_RTO, L_SPURIOUS,
    L_TAIL_LOSS, L_TLP, MS, NEVER, OPEN, RECOVERY, SLACK, SYN, S_LOSS_PROBE, S_REORDERING, S_RTO, T_PACKET, T_TIMER,
    Flow, Packet, RareFields, Result, Row, Segment, Side, before, elapsed)


cdef inline bint by_timer(const Packet* p) noexcept nogil:
    """Whether a recording says which timer sent it."""
    return S_RTO <= p.extra.sent_by <= S_REORDERING


cdef inline void name_retransmission(Flow* f, const Packet* p, int side, uint32_t end, const Segment* old,
                                     bint by_ack, Row* row, uint32_t* n) noexcept nogil:
    """Which of the sender's mechanisms sent this again, and what it made up for; ``n``: of the label, 0 before."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef uint32_t times = old.sent if old != NULL else 1
    cdef uint32_t by_sack = <uint32_t>(me.sacked // me.mss) if me.mss > 1 else 0
    cdef uint32_t count = max(me.duplicates, by_sack)
    cdef bint late
    row.why, row.certainty = L_LOSS, C_LIKELY
    if p.flags & SYN:
        if not by_ack:
            me.backoff += 1
        row.label, n[0], row.certainty = L_AFTER_RTO if by_ack else L_RTO, me.backoff, C_KNOWN
    elif old == NULL:                   # acknowledged before
        if not by_ack:
            me.backoff += 1
        row.label, n[0], row.why, row.certainty = L_RTO, me.backoff, L_SPURIOUS, C_KNOWN
    elif (by_ack or p.extra.sent_by == S_REORDERING) and me.state == LOSS:
        row.label, n[0] = L_AFTER_RTO, me.backoff
    elif by_ack or p.extra.sent_by == S_REORDERING or (
            not by_timer(p) and count and me.state != LOSS
            and elapsed(me.in_ts, p.ts) <= max(me.srtt, me.min_rtt) + 4 * MS):
        late = (me.state == OPEN and me.third_ts > NEVER and count > DUP_THRESHOLD
                and elapsed(me.third_ts, p.ts) > SLACK + 2 * me.distance)
        row.label, n[0] = L_LATE_FR if late else L_FAST_RTX, count
        if late and me.reordering:
            row.why = L_REORDERING
        if me.state == OPEN:
            me.state, me.recover = RECOVERY, me.nxt
        if times > 1:
            row.why = L_LOST_RETRANSMISSION
    elif p.extra.sent_by == S_LOSS_PROBE or (
            p.extra.sent_by != S_RTO and end == me.nxt and times == 1 and not me.probed and me.state == OPEN
            and me.sack_ok and you.sack_ok):
        row.label, row.why = L_TLP, L_TAIL_LOSS
        row.certainty = C_LIKELY if me.count == 1 and not by_timer(p) else C_KNOWN
        me.probed, me.probe_end = True, end
    else:
        me.backoff += 1
        row.label, n[0] = L_RTO, me.backoff
        if times > 1 and me.state == RECOVERY and not me.probed:
            row.why = L_LOST_RETRANSMISSION
        else:
            row.why = L_FEW_DUPACKS if count else L_TAIL_LOSS
        row.certainty = C_LIKELY if before(me.una, p.seq) and not by_timer(p) else C_KNOWN
        me.state, me.recover = LOSS, me.nxt
    if old != NULL and old.arrived > NEVER:
        row.why, row.certainty = L_ACK_LOSS if old.answered else L_DELAYED_ACK, C_KNOWN
    elif f.both and old != NULL and row.why == L_LOSS:
        row.certainty = C_KNOWN


cdef inline void again(Flow* f, const Packet* p, int side, Result* x, uint32_t end, int64_t gap) noexcept nogil:
    """Data below the highest sent: a retransmission, or a packet that the network put out of order."""
    cdef Side* me = &f.side[side]
    cdef uint32_t i = find(me, p.seq)
    cdef Segment* old = at(me, i) if i < me.count and before(at(me, i).seq, end) else NULL
    cdef uint32_t flight = me.nxt - me.una
    cdef bint by_ack
    cdef RareFields* rare
    cdef Row* row = new_row(x, f, side, me)
    if row == NULL:
        return
    row.packet, row.seq, row.size, row.duration = p.number, p.seq - me.base, p.size, gap
    row.ts, row.previous = p.ts - gap, me.sent_number
    if old != NULL and old.sent == 0 and p.ip_id and me.highest_id and (
            <uint16_t>(p.ip_id - me.highest_id) >= 0x8000):
        old.sent, old.last, old.last_number = 1, p.ts, p.number
        row.event, row.label, row.certainty = E_ORDER, L_REORDERING, C_KNOWN
        spent(me, p)
        return
    by_ack = triggered(p, me, gap)
    row.event, row.trigger = E_RETRANSMISSION, T_PACKET if by_ack else T_TIMER
    row.flight, row.rtt, row.ack = flight, me.srtt, me.in_number if by_ack else 0
    row.window = <uint32_t>max(me.window, 0)
    rare = add_rare(x, row)
    if rare == NULL:
        return
    rare.age = elapsed(old.last, p.ts) if old != NULL and old.sent else gap
    if old != NULL:
        row.previous = old.last_number
    name_retransmission(f, p, side, end, old, by_ack, row, &rare.n)
    count_row(x, row, count_wait(me, p))
    watch(me, p, end, x.rows.made.count - 1, row)
    if me.speaks:
        me.message.again += 1
    mark(me, p, end, x)
