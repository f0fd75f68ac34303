# The end that sends: what it learns from an acknowledgement.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from c_explain_needless cimport duplicate, settle
from c_explain_segments cimport at, find
from c_explain_state cimport (
    DUP_THRESHOLD, FIN, NEVER, OPEN, SYN, Flow, Packet, Result, Segment, Side, before, elapsed, scaled)


cdef inline void sample(Side* me, const Segment* newest, int64_t rtt) noexcept nogil:
    """A round trip (RFC 6298) and a delivery rate."""
    cdef int64_t error
    cdef uint64_t rate
    if not me.srtt:
        me.srtt, me.rttvar = rtt, rtt // 2
    else:
        error = me.srtt - rtt if me.srtt > rtt else rtt - me.srtt
        me.rttvar += (error - me.rttvar) // 4
        me.srtt += (rtt - me.srtt) // 8
    if not me.min_rtt or rtt < me.min_rtt:
        me.min_rtt = rtt
    if rtt:
        rate = <uint64_t>(<double>(me.delivered - newest.delivered) * 1e9 / <double>rtt)
        if rate > me.rate:
            me.rate = rate


cdef inline int64_t late_by(const Side* you, const Packet* p) noexcept nogil:
    """For how long the other end delayed this acknowledgement, ns."""
    return you.late if you.late and you.late_ack == p.ack else 0


cdef inline void advance(const Packet* p, Side* me, const Side* you, Result* x) noexcept nogil:
    """The acknowledgement covers new data."""
    cdef bint waited = me.speaks and before(me.una, me.message.edge)
    cdef Segment newest
    cdef Segment* s
    cdef bint found = False
    if before(me.nxt, p.ack):           # the capture lacks packets
        me.nxt, me.count, me.head, me.sacked = p.ack, 0, 0, 0
    while me.count:
        s = at(me, 0)
        if not before(s.seq, p.ack):
            break
        if before(p.ack, s.end):
            if s.sacked:
                me.sacked -= p.ack - s.seq
            s.seq = p.ack
            break
        if s.sacked:
            me.sacked -= s.end - s.seq
        elif s.sent == 1:
            newest, found = s[0], True
            if me.sacked and before(s.end, p.ack):
                me.reordering = True
        me.head += 1
        me.count -= 1
    me.delivered += p.ack - me.una
    if found and elapsed(newest.last, p.ts) >= 0:
        sample(me, &newest, elapsed(newest.last, p.ts))
    me.una = p.ack
    me.duplicates, me.backoff, me.third_ts = 0, 0, NEVER
    if me.probed and not before(p.ack, me.probe_end):
        me.probed = False
    if me.state != OPEN and not before(p.ack, me.recover):
        me.state = OPEN
    if me.watched:
        settle(p, me, x)
    if waited and not before(p.ack, me.message.edge):
        me.message.end, me.message.late, me.message.late_label = p.ts, late_by(you, p), you.late_label


cdef inline void sack(const Packet* p, Side* me, uint32_t left, uint32_t right) noexcept nogil:
    cdef uint32_t i
    cdef Segment* s
    if before(me.nxt, right) or not before(left, right) or not me.count:
        return
    i = find(me, left)
    while i < me.count:
        s = at(me, i)
        if not before(s.seq, right):
            break
        if not (before(s.seq, left) or before(right, s.end) or s.sacked):
            s.sacked = True
            me.sacked += s.end - s.seq
            me.delivered += s.end - s.seq
        i += 1
    if me.third_ts == NEVER and me.mss > 1 and me.sacked >= <uint64_t>DUP_THRESHOLD * me.mss:
        me.third_ts = p.ts


cdef inline void acknowledged(Flow* f, const Packet* p, int side, Result* x) noexcept nogil:
    """Side ``side`` receives an acknowledgement."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef int64_t window = scaled(f, 1 - side, p)
    cdef const uint32_t* edges = p.extra.sack
    cdef uint32_t flight
    cdef int first = 0, i
    if not me.known:
        me.known, me.base, me.nxt, me.una = True, p.ack - 1, p.ack, p.ack
    flight = me.nxt - me.una
    me.before_flight, me.before_edge, me.before_window = flight, me.edge, me.window
    if p.extra.edges and (not before(p.ack, edges[1]) or (
            p.extra.edges > 2 and not before(edges[0], edges[2]) and not before(edges[3], edges[1]))):
        first = 2
    if before(me.una, p.ack):
        advance(p, me, you, x)
    elif p.ack == me.una and flight and not p.size and window == me.window and not p.flags & (SYN | FIN):
        me.duplicates += 1
        if me.duplicates == DUP_THRESHOLD and me.third_ts == NEVER:
            me.third_ts = p.ts
    for i in range(first, p.extra.edges - 1, 2):
        sack(p, me, edges[i], edges[i + 1])
    if first:
        duplicate(f, side, x, edges[0], edges[1])
    if not before(p.ack, me.una):
        me.edge, me.window = <uint32_t>(p.ack + window), <int32_t>window
        if window and before(me.nxt, me.edge):
            me.probes = 0
    me.acks += 1
    me.since += 1
    me.in_ts, me.in_number, me.in_plain = p.ts, p.number, not p.size
    me.in_late = late_by(you, p)
    me.in_label = you.late_label
