# The end that sends: what new data and probes waited for.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from c_explain_rows cimport (
    add_rare, count_row, count_wait, extend_message, finish_message, new_row, start_message)
from c_explain_state cimport (
    C_KNOWN, C_LIKELY, C_POSSIBLE, E_GAP, E_PROBE, FIN, HELD_FULL, HELD_MORE, INITIAL_WINDOW, L_APP_LIMITED, L_CORK,
    L_CWND_LIMITED, L_IDLE_RESTART, L_KEEP_ALIVE, L_NAGLE_WAIT, L_NONE, L_RWND_LIMITED, L_SNDBUF_LIMITED,
    L_TAIL_LOSS, L_TLP, L_WINDOW_PROBE, L_ZERO_WINDOW, MS, M_CALLS, NEVER, OPEN, RTO_MIN, SLACK, SYN, S_LOSS_PROBE,
    S_PACE, S_PACKET, S_RTO, S_UNKNOWN, T_APPLICATION, T_PACKET, T_TIMER, Flow, Packet, RareFields, Result, Row,
    Side, before, elapsed)


cdef inline bint triggered(const Packet* p, Side* me, int64_t gap) noexcept nogil:
    """Whether an acknowledgement made the sender send, also as a later packet of the same burst."""
    if p.extra.sent_by:
        me.burst = p.extra.sent_by == S_PACKET
    elif me.since:
        me.burst = elapsed(me.in_ts, p.ts) <= SLACK + me.distance
    elif gap > SLACK:
        me.burst = False
    return me.burst


cdef inline void spent(Side* me, const Packet* p) noexcept nogil:
    """A short wait: it has no row of its own."""
    me.message.sending += count_wait(me, p)


cdef inline void probe(Flow* f, const Packet* p, int side, Result* x) noexcept nogil:
    """A segment with the sequence number of an old byte: it asks for an acknowledgement."""
    cdef Side* me = &f.side[side]
    cdef bint zero = me.window >= 0 and not before(me.nxt, me.edge)
    cdef int64_t since = max(me.probe_ts, me.sent_ts)
    cdef Row* row = new_row(x, f, side, me)
    cdef RareFields* rare
    if row == NULL:
        return
    if zero:
        me.probes += 1
        rare = add_rare(x, row)
        if rare != NULL:
            rare.n = me.probes
    row.event, row.trigger, row.certainty = E_PROBE, T_TIMER, C_KNOWN
    row.label = L_WINDOW_PROBE if zero else L_KEEP_ALIVE
    row.duration = elapsed(since, p.ts) if since > NEVER else 0
    row.ts = p.ts - row.duration
    row.seq, row.packet, row.previous, row.ack = p.seq - me.base, p.number, me.sent_number, me.in_number
    row.window = <uint32_t>max(me.window, 0)
    me.probe_ts = p.ts


cdef inline int blocked_by(const Packet* p, const Side* me, uint32_t flight, int* certainty) noexcept nogil:
    """What kept back data that an acknowledgement let go."""
    cdef uint32_t size = p.size if p.size < me.mss else me.mss
    certainty[0] = C_LIKELY
    if me.before_window >= 0 and before(me.before_edge, me.nxt + size):
        certainty[0] = C_KNOWN
        return L_ZERO_WINDOW if me.before_window < me.mss else L_RWND_LIMITED
    if not me.before_flight:
        return L_APP_LIMITED
    if not flight and 0 < p.size < me.mss and me.in_plain and 0 < me.last_size < me.mss:
        return L_NAGLE_WAIT
    if not flight and (not me.in_plain or p.flags & FIN):
        return L_APP_LIMITED
    if me.idle and me.before_flight <= <uint32_t>INITIAL_WINDOW * me.mss:
        return L_IDLE_RESTART
    if flight:
        certainty[0] = C_KNOWN
    return L_CWND_LIMITED


cdef inline uint32_t full_size(const Side* me, const Side* you) noexcept nogil:
    """A segment of this size or more is full; options may take 60 bytes."""
    return you.offered - 60 if you.offered > me.mss + 60 else me.mss


cdef inline int held_by(const Packet* p, const Side* me, const Side* you, uint32_t flight, int64_t gap,
                        int* certainty) noexcept nogil:
    """The same with the calls of the application: when data came, and whether it waited for room in the send buffer."""
    cdef uint32_t size = p.size if p.size < me.mss else me.mss
    cdef bint acked = p.extra.sent_by == S_PACKET
    cdef uint32_t out = me.before_flight if acked else flight
    cdef int64_t window = me.before_window if acked else me.window
    cdef uint32_t edge = me.before_edge if acked else me.edge
    cdef bint full = p.extra.cwnd and out - min(me.sacked, <uint64_t>out) + size > <uint64_t>p.extra.cwnd * me.mss
    certainty[0] = C_KNOWN
    if p.extra.queued < gap - p.extra.queued:
        return L_SNDBUF_LIMITED if p.extra.held & HELD_FULL else L_APP_LIMITED
    if window >= 0 and before(edge, me.nxt + size):
        return L_ZERO_WINDOW if window < me.mss else L_RWND_LIMITED
    if not out and not p.extra.unsent and not p.extra.held & HELD_MORE and p.extra.sent_by != S_PACE:
        return L_APP_LIMITED            # the call took most of the time itself
    if not full and p.extra.unsent < full_size(me, you) and p.extra.sent_by != S_PACE:
        if p.extra.held & HELD_MORE:
            return L_CORK
        if not acked:
            certainty[0] = C_LIKELY
        if me.smalls and before(me.nxt - out, me.small):
            return L_NAGLE_WAIT
        if not acked:
            return L_CORK               # nothing else holds back so little
    if not full:
        certainty[0] = C_POSSIBLE if p.extra.cwnd else C_KNOWN if acked and flight else C_LIKELY
    if me.idle and me.before_flight <= <uint32_t>INITIAL_WINDOW * me.mss:
        return L_IDLE_RESTART
    return L_CWND_LIMITED


cdef inline bint fills_window(const Packet* p, const Side* me) noexcept nogil:
    """Whether the timer for probes sent what a window smaller than a segment has room for."""
    if p.extra.sent_by not in (S_UNKNOWN, S_LOSS_PROBE, S_RTO):
        return False
    return 0 < me.window < me.mss and 0 < p.size < me.mss and p.seq + p.size == me.edge


cdef inline bint may_be_probe(const Packet* p, const Side* me, int64_t gap) noexcept nogil:
    """Whether new data may be a tail loss probe (RFC 8985, section 7)."""
    cdef int64_t timeout = 2 * me.srtt + (RTO_MIN if me.count == 1 else 2 * MS)
    if me.since or me.probed or me.state != OPEN or not me.srtt or p.size < me.mss or me.last_size < me.mss:
        return False
    return timeout - 4 * MS <= gap <= timeout + 12 * MS


cdef inline void fresh(Flow* f, const Packet* p, int side, Result* x, uint32_t end, int64_t gap) noexcept nogil:
    """New data: what did it wait for?"""
    cdef Side* me = &f.side[side]
    cdef uint32_t flight = me.nxt - me.una
    cdef int label, certainty = C_LIKELY, why = L_NONE, trigger
    cdef bint by_ack, begins
    cdef Row* row
    if p.flags & SYN:
        return
    if not me.speaks:
        if p.size:
            start_message(f, me, p)
            extend_message(me, p)
        return
    by_ack = triggered(p, me, gap)
    if gap < x.gap and flight:
        spent(me, p)
        extend_message(me, p)
        return
    trigger = T_PACKET if by_ack else T_APPLICATION
    if flight and (p.extra.sent_by == S_LOSS_PROBE or (
            not p.extra.sent_by and not by_ack and may_be_probe(p, me, gap))):
        label, trigger, why = L_TLP, T_TIMER, L_TAIL_LOSS
        certainty = C_KNOWN if p.extra.sent_by else C_POSSIBLE
        me.probed, me.probe_end = True, end
    elif not flight and not by_ack and fills_window(p, me):
        label, trigger, certainty = L_RWND_LIMITED, T_TIMER, C_KNOWN if p.extra.sent_by else C_LIKELY
    elif p.extra.evidence & M_CALLS:
        label = held_by(p, me, &f.side[1 - side], flight, gap, &certainty)
    else:
        label = blocked_by(p, me, flight, &certainty) if by_ack else L_APP_LIMITED
    if label in (L_CWND_LIMITED, L_IDLE_RESTART, L_NAGLE_WAIT, L_RWND_LIMITED, L_SNDBUF_LIMITED, L_ZERO_WINDOW):
        if me.in_late > gap // 2:
            why = me.in_label
    begins = not flight and label == L_APP_LIMITED
    if begins and p.size:
        finish_message(f, side, x)
        start_message(f, me, p)
        if gap > max(RTO_MIN, me.srtt + 4 * me.rttvar) and me.most > <uint32_t>INITIAL_WINDOW * me.mss:
            me.idle, me.most = True, 0
    elif label != L_IDLE_RESTART:
        me.idle = False
    if gap >= x.gap:
        row = new_row(x, f, side, NULL if begins else me)   # begins: it was between two messages
        if row != NULL:
            row.event, row.label, row.why = E_GAP, <uint8_t>label, <uint8_t>why
            row.certainty, row.trigger = <uint8_t>certainty, <uint8_t>trigger
            row.ts, row.duration, row.rtt = p.ts - gap, gap, me.srtt
            row.seq, row.size, row.flight = p.seq - me.base, p.size, flight
            row.packet, row.previous, row.ack = p.number, me.sent_number, me.in_number if by_ack else 0
            row.window = <uint32_t>max(me.window, 0)
            if not begins:
                count_row(x, row, count_wait(me, p))
    elif not begins:
        spent(me, p)
    extend_message(me, p)
