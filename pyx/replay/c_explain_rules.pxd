# The rules of `confluo-replay explain`: what each gap, retransmission and late acknowledgement was.
# docs/papers.md names their sources; tests/support/twin_explain.py has the same rules in plain Python.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove
from c_explain cimport *

cdef extern from *:
    """
    #define CFL_SLACK 2000000LL
    #define CFL_DELACK 30000000LL
    #define CFL_DELACK_TIME 40000000LL
    #define CFL_RTO_MIN 200000000LL
    #define CFL_WATCH 1000000000LL
    """
    const int64_t SLACK "CFL_SLACK"         # a packet that follows an input within this was caused by it
    const int64_t DELACK "CFL_DELACK"       # later, the timer sent the acknowledgement (40 ms less a tick of 10 ms)
    const int64_t DELACK_TIME "CFL_DELACK_TIME"
    const int64_t RTO_MIN "CFL_RTO_MIN"
    const int64_t WATCH "CFL_WATCH"         # a report of a duplicate may come for this long


# ---- the handshake

cdef inline void read_options(Flow* f, const Packet* p, int side) noexcept nogil:
    """Options of a SYN; from the times of a handshake in one tap, the distance of both ends."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef int64_t near, far
    if not p.flags & SYN:
        if f.syn_ack > NEVER and p.flags & ACK and not f.both and f.syn > NEVER:
            near, far = elapsed(f.syn_ack, p.ts), elapsed(f.syn, f.syn_ack)
            if near >= 0 and far >= 0:
                me.distance, you.distance = near, far
                me.here, you.here = near < far // 4, far < near // 4
            f.syn = NEVER
        return
    f.handshake |= 1 << side
    me.scale, me.sack_ok, me.offered = p.scale, p.sack_ok, p.mss
    if p.flags & ACK:
        if f.syn_ack == NEVER and f.syn > NEVER:
            f.syn_ack = p.ts
    elif f.syn == NEVER and f.syn_ack == NEVER:
        f.syn = p.ts
    else:
        f.syn_ack = f.syn = NEVER       # sent again: the times mean nothing


cdef inline int64_t scaled(const Side* me, const Side* you, const Packet* p) noexcept nogil:
    if p.flags & SYN or me.scale < 0 or you.scale < 0:
        return p.window
    return <int64_t>p.window << (me.scale if me.scale < 14 else 14)


# ---- the end that acknowledges

cdef inline void late_ack(Flow* f, const Packet* p, int side, Result* x, int64_t window) noexcept nogil:
    """Side ``side`` sends an acknowledgement that it may have delayed."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef int64_t oldest = elapsed(me.pending_ts, p.ts) - me.distance
    cdef int64_t youngest = elapsed(me.data_ts, p.ts) - me.distance
    cdef Row* row
    if oldest < x.gap or (p.edges and not before(p.ack, p.sack[1])):
        return
    row = new_row(x, f, side)
    if row == NULL:
        return
    row.trigger = (T_REPLY if p.size else T_PACKET if youngest < SLACK else T_TIMER if youngest >= DELACK
                   else T_APPLICATION)
    row.label = L_DELAYED_ACK
    if me.pending > you.mss and you.mss and 0 <= window < me.own_window and row.trigger != T_PACKET:
        row.label = L_DELACK_WINDOW_SHRINK
    row.event = E_ACK
    row.certainty = C_KNOWN if me.here and row.trigger == T_TIMER else C_LIKELY
    row.ts, row.duration = p.ts - oldest, oldest
    row.seq, row.size, row.flight = me.acked - you.base, me.pending, me.pending
    row.packet, row.previous = p.number, me.pending_number
    row.window = <uint32_t>window
    row.message = you.message_number if you.speaks else 0
    me.late, me.late_ack, me.late_label = oldest, p.ack, row.label


cdef inline void acknowledges(Flow* f, const Packet* p, int side, Result* x) noexcept nogil:
    """Side ``side`` sends an acknowledgement."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef int64_t window = scaled(me, you, p)
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
            me.zero_windows += 1
        me.own_window = window


cdef inline void set_why(Result* x, uint64_t row, int why, int certainty) noexcept nogil:
    x.rows[row].why, x.rows[row].certainty = <uint8_t>why, <uint8_t>certainty


cdef inline void unwatch(Side* me, int i) noexcept nogil:
    me.watched -= 1
    memmove(me.again + i, me.again + i + 1, (me.watched - i) * sizeof(Again))


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


cdef inline void not_needed(Side* me, Result* x, uint32_t left, uint32_t right) noexcept nogil:
    """Data came twice to the other end, which was seen there: the latest retransmission was not needed."""
    cdef int i = 0
    cdef Again* a = latest(me, left, right, &i)
    if a != NULL:
        if x.rows[a.row].why not in (L_ACK_LOSS, L_DELAYED_ACK):
            set_why(x, a.row, L_SPURIOUS, C_KNOWN)
        unwatch(me, i)


cdef inline void receives(Flow* f, const Packet* p, int side, Result* x) noexcept nogil:
    """Side ``side`` receives a segment."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef uint32_t end = p.seq + p.size + (p.flags & SYN != 0) + (p.flags & FIN != 0), i
    cdef bint fresh
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
            at(you, i).arrived = p.ts
        elif p.size:
            not_needed(you, x, p.seq, end)
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


# ---- the end that sends: acknowledgements that come

cdef inline void settle(const Packet* p, Side* me, Result* x) noexcept nogil:
    """Retransmissions that this acknowledgement covers: was it the answer to the original?"""
    cdef int i = 0
    cdef int64_t after
    cdef Again* a
    while i < me.watched:
        a = me.again + i
        after = elapsed(a.ts, p.ts)
        if before(p.ack, a.end):
            i += 1
            continue
        if x.rows[a.row].missing & M_OTHER_END == 0:
            pass                        # what arrived is known
        elif p.tsecr and a.tsval:
            if before(p.tsecr, a.tsval):
                set_why(x, a.row, L_SPURIOUS, C_KNOWN)
        elif me.min_rtt and after < me.min_rtt // 2 and x.rows[a.row].label != L_FAST_RTX:
            set_why(x, a.row, L_SPURIOUS, C_LIKELY)
        if after < WATCH:
            i += 1
        else:
            unwatch(me, i)


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


cdef inline void advance(const Packet* p, Side* me, Result* x) noexcept nogil:
    """The acknowledgement covers new data."""
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
    if me.speaks:
        me.message.end = p.ts


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


cdef inline void duplicate(Flow* f, Side* me, Result* x, uint32_t left, uint32_t right) noexcept nogil:
    """The other end reports data that came twice (DSACK, RFC 2883)."""
    cdef int i = 0
    cdef Again* a
    me.dsacks += 1
    a = latest(me, left, right, &i) if not f.both else NULL
    if a == NULL:
        return
    if x.rows[a.row].label not in (L_RTO, L_TLP) or a.acks != me.acks:
        set_why(x, a.row, L_SPURIOUS, C_KNOWN)
    elif x.rows[a.row].age < DELACK_TIME + 2 * me.srtt:
        set_why(x, a.row, L_DELAYED_ACK, C_POSSIBLE)
    else:
        set_why(x, a.row, L_ACK_LOSS, C_LIKELY)
    unwatch(me, i)


cdef inline void acknowledged(Flow* f, const Packet* p, int side, Result* x) noexcept nogil:
    """Side ``side`` receives an acknowledgement."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef int64_t window = scaled(you, me, p)
    cdef uint32_t flight
    cdef int first = 0, i
    if not me.known:
        me.known, me.base, me.nxt, me.una = True, p.ack - 1, p.ack, p.ack
    flight = me.nxt - me.una
    me.before_flight, me.before_edge, me.before_window = flight, me.edge, me.window
    if p.edges and (not before(p.ack, p.sack[1]) or (
            p.edges > 2 and not before(p.sack[0], p.sack[2]) and not before(p.sack[3], p.sack[1]))):
        first = 2
    if before(me.una, p.ack):
        advance(p, me, x)
    elif p.ack == me.una and flight and not p.size and window == me.window and not p.flags & (SYN | FIN):
        me.duplicates += 1
        if me.duplicates == DUP_THRESHOLD and me.third_ts == NEVER:
            me.third_ts = p.ts
    for i in range(first, p.edges - 1, 2):
        sack(p, me, p.sack[i], p.sack[i + 1])
    if first:
        duplicate(f, me, x, p.sack[0], p.sack[1])
    if not before(p.ack, me.una):
        me.edge, me.window = <uint32_t>(p.ack + window), window
        if window and before(me.nxt, me.edge):
            me.probes = 0
    me.acks += 1
    me.since += 1
    me.in_ts, me.in_number, me.in_plain = p.ts, p.number, not p.size
    me.in_late = you.late if you.late and you.late_ack == p.ack else 0
    me.in_label = you.late_label


# ---- the end that sends: segments that leave

cdef inline bint triggered(const Packet* p, Side* me, int64_t gap) noexcept nogil:
    """Whether an acknowledgement made the sender send, also as a later packet of the same burst."""
    if me.since:
        me.burst = elapsed(me.in_ts, p.ts) <= SLACK + me.distance
    elif gap > SLACK:
        me.burst = False
    return me.burst


cdef inline void spent(Side* me, int64_t gap) noexcept nogil:
    """A short wait: it has no row of its own."""
    if me.speaks:
        me.message.sending += gap


cdef inline void probe(Flow* f, const Packet* p, int side, Result* x) noexcept nogil:
    """A segment with the sequence number of an old byte: it asks for an acknowledgement."""
    cdef Side* me = &f.side[side]
    cdef bint zero = me.window >= 0 and not before(me.nxt, me.edge)
    cdef int64_t since = max(me.probe_ts, me.sent_ts)
    cdef Row* row = new_row(x, f, side)
    if row == NULL:
        return
    if zero:
        me.probes += 1
        row.n = me.probes
    row.event, row.trigger, row.certainty = E_PROBE, T_TIMER, C_KNOWN
    row.label = L_WINDOW_PROBE if zero else L_KEEP_ALIVE
    row.duration = elapsed(since, p.ts) if since > NEVER else 0
    row.ts = p.ts - row.duration
    row.seq, row.packet, row.previous, row.ack = p.seq - me.base, p.number, me.sent_number, me.in_number
    row.window = <uint32_t>max(me.window, <int64_t>0)
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
            me.message.bytes = p.size
        return
    by_ack = triggered(p, me, gap)
    if gap < x.gap and flight:
        spent(me, gap)
        me.message.bytes += p.size
        return
    trigger = T_PACKET if by_ack else T_APPLICATION
    if by_ack:
        label = blocked_by(p, me, flight, &certainty)
        if label != L_APP_LIMITED and me.in_late > gap // 2:
            why = me.in_label
    elif flight and may_be_probe(p, me, gap):
        label, certainty, trigger, why = L_TLP, C_POSSIBLE, T_TIMER, L_TAIL_LOSS
        me.probed, me.probe_end = True, end
    else:
        label = L_APP_LIMITED
    begins = not flight and label == L_APP_LIMITED
    if begins and p.size:
        finish_message(f, side, x)
        start_message(f, me, p)
        if gap > max(RTO_MIN, me.srtt + 4 * me.rttvar) and me.most > <uint32_t>INITIAL_WINDOW * me.mss:
            me.idle, me.most = True, 0
    elif label != L_IDLE_RESTART:
        me.idle = False
    if gap >= x.gap:
        row = new_row(x, f, side)
        if row != NULL:
            row.event, row.label, row.why = E_GAP, <uint8_t>label, <uint8_t>why
            row.certainty, row.trigger = <uint8_t>certainty, <uint8_t>trigger
            row.ts, row.duration, row.rtt = p.ts - gap, gap, me.srtt
            row.seq, row.size, row.flight = p.seq - me.base, p.size, flight
            row.packet, row.previous, row.ack = p.number, me.sent_number, me.in_number if by_ack else 0
            row.window = <uint32_t>max(me.window, <int64_t>0)
            if begins:
                row.message = 0         # it was between two messages
    elif not begins:
        spent(me, gap)
    me.message.bytes += p.size


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


cdef inline void watch(Side* me, const Packet* p, uint32_t end, uint64_t row) noexcept nogil:
    cdef Again* a
    if me.again == NULL:
        me.again = <Again*>malloc(MAX_AGAIN * sizeof(Again))
        if me.again == NULL:
            return
    if me.watched == MAX_AGAIN:
        unwatch(me, 0)
    a = me.again + me.watched
    a.row, a.seq, a.end, a.ts, a.tsval, a.acks = row, p.seq, end, p.ts, p.tsval, me.acks
    me.watched += 1


cdef inline void name_retransmission(Flow* f, const Packet* p, int side, uint32_t end, const Segment* old,
                                     bint by_ack, Row* row) noexcept nogil:
    """Which of the sender's mechanisms sent this again, and what it made up for."""
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
        row.label, row.n, row.certainty = L_AFTER_RTO if by_ack else L_RTO, me.backoff, C_KNOWN
    elif old == NULL:                   # acknowledged before
        if not by_ack:
            me.backoff += 1
        row.label, row.n, row.why, row.certainty = L_RTO, me.backoff, L_SPURIOUS, C_KNOWN
    elif by_ack and me.state == LOSS:
        row.label, row.n = L_AFTER_RTO, me.backoff
    elif by_ack or (count and me.state != LOSS
                    and elapsed(me.in_ts, p.ts) <= max(me.srtt, me.min_rtt) + 4 * MS):
        late = (me.state == OPEN and me.third_ts > NEVER and count > DUP_THRESHOLD
                and elapsed(me.third_ts, p.ts) > SLACK + 2 * me.distance)
        row.label, row.n = L_LATE_FR if late else L_FAST_RTX, count
        if late and me.reordering:
            row.why = L_REORDERING
        if me.state == OPEN:
            me.state, me.recover = RECOVERY, me.nxt
        if times > 1:
            row.why = L_LOST_RETRANSMISSION
    elif (end == me.nxt and times == 1 and not me.probed and me.state == OPEN
          and me.sack_ok and you.sack_ok):
        row.label, row.why = L_TLP, L_TAIL_LOSS
        row.certainty = C_LIKELY if me.count == 1 else C_KNOWN
        me.probed, me.probe_end = True, end
    else:
        me.backoff += 1
        row.label, row.n = L_RTO, me.backoff
        if times > 1 and me.state == RECOVERY and not me.probed:
            row.why = L_LOST_RETRANSMISSION
        else:
            row.why = L_FEW_DUPACKS if count else L_TAIL_LOSS
        row.certainty = C_LIKELY if before(me.una, p.seq) else C_KNOWN
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
    cdef uint64_t number
    cdef bint by_ack
    cdef Row* row = new_row(x, f, side)
    if row == NULL:
        return
    row.packet, row.seq, row.size, row.duration = p.number, p.seq - me.base, p.size, gap
    row.ts, row.previous = p.ts - gap, me.sent_number
    if old != NULL and old.sent == 0 and p.ip_id and me.highest_id and (
            <uint16_t>(p.ip_id - me.highest_id) >= 0x8000):
        old.sent, old.first, old.last, old.number, old.last_number = 1, p.ts, p.ts, p.number, p.number
        row.event, row.label, row.certainty = E_ORDER, L_REORDERING, C_KNOWN
        spent(me, gap)
        return
    by_ack = triggered(p, me, gap)
    row.event, row.trigger = E_RETRANSMISSION, T_PACKET if by_ack else T_TIMER
    row.flight, row.rtt, row.ack = flight, me.srtt, me.in_number if by_ack else 0
    row.window = <uint32_t>max(me.window, <int64_t>0)
    row.age = elapsed(old.last, p.ts) if old != NULL and old.sent else gap
    if old != NULL:
        row.previous = old.last_number
    name_retransmission(f, p, side, end, old, by_ack, row)
    number = x.count - 1
    watch(me, p, end, number)
    if me.speaks:
        me.message.again += 1
    mark(me, p, end, x)


cdef inline void sends(Flow* f, const Packet* p, int side, Result* x) noexcept nogil:
    """Side ``side`` sends a segment."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef uint32_t size = p.size + (p.flags & SYN != 0) + (p.flags & FIN != 0), end = p.seq + size, limit
    cdef int64_t gap
    if not me.known:
        me.known, me.una, me.nxt = True, p.seq, p.seq
        me.base = p.seq if p.flags & SYN else p.seq - 1
    if size <= 1 and p.seq == me.una - 1 and me.una == me.nxt and not p.flags & (SYN | FIN):
        probe(f, p, side, x)
        return
    if not size:
        return
    if p.size > me.mss:
        limit = you.offered if you.offered else DEFAULT_MSS
        me.mss = p.size if p.size < limit else max(limit, me.mss)
    gap = elapsed(me.sent_ts, p.ts) if me.sent_ts > NEVER else 0
    if before(p.seq, me.nxt):
        again(f, p, side, x, end, gap)
    else:
        if before(me.nxt, p.seq):       # the capture lacks what is between
            append(me, x, me.nxt, p.seq, p, 0)
        fresh(f, p, side, x, end, gap)
        append(me, x, p.seq, end, p, 1)
        me.last_size, me.highest_id = p.size, p.ip_id
    if before(me.nxt, end):
        me.nxt = end
    if me.nxt - me.una > me.most:
        me.most = me.nxt - me.una
    me.sent_ts, me.sent_number, me.since = p.ts, p.number, 0
    if me.speaks:
        me.message.last = p.number
        me.message.packets += 1


cdef inline int cause_of(const Row* row) noexcept nogil:
    """The label, or the reason behind it where that says more."""
    if row.why in (L_SPURIOUS, L_DELAYED_ACK, L_DELACK_WINDOW_SHRINK, L_ACK_LOSS, L_TAIL_LOSS, L_FEW_DUPACKS,
                   L_LOST_RETRANSMISSION):
        return row.why
    return row.label


cdef inline void judge(MessageRow* row, const FlowRow* flow) noexcept nogil:
    """What most of the time of a message above the ideal went to (the paper's tables 2 and 3)."""
    cdef int i
    cdef int64_t stalled = 0, most = 0
    row.took = elapsed(row.m.start, row.m.end) if row.m.end else 0
    row.ideal = flow.min_rtt[row.side]
    if flow.rate[row.side]:
        row.ideal = max(row.ideal, <int64_t>(<double>row.m.bytes * 1e9 / <double>flow.rate[row.side]))
    row.above = row.took - row.ideal if row.took > row.ideal else 0
    row.slowdown = <double>row.took / <double>row.ideal if row.ideal and row.took else 0
    for i in range(1, LABELS):
        if i != L_CWND_LIMITED:
            stalled += row.times[i]
            if row.times[i] > most:
                row.main, most = <uint8_t>i, row.times[i]
    if row.above - stalled > most and row.times[<int>L_CWND_LIMITED]:
        row.main = L_CWND_LIMITED       # what is left: it went slower than its best rate


cdef inline bint judge_all(Result* x) noexcept nogil:
    """Causes of all rows, and from them the times of all messages; False: no memory."""
    cdef uint64_t i, total = 0
    cdef uint64_t* place
    cdef MessageRow* m
    cdef Row* row
    for i in range(x.flow_count):
        x.flows[i].first = total
        total += x.flows[i].messages
    place = <uint64_t*>malloc((total + 1) * sizeof(uint64_t))
    if place == NULL:
        return False
    for i in range(x.message_count):
        m = x.messages + i
        place[x.flows[m.flow].first + m.message - 1] = i
        m.times[0] = m.m.sending
    for i in range(x.count):
        row = x.rows + i
        row.cause = <uint8_t>cause_of(row)
        if row.message and row.event in (E_GAP, E_RETRANSMISSION):
            x.messages[place[x.flows[row.flow].first + row.message - 1]].times[row.cause] += row.duration
    for i in range(x.message_count):
        judge(x.messages + i, x.flows + x.messages[i].flow)
    free(place)
    return True


cdef inline void segment(Flow* f, const Packet* p, int side, bint sent, bint received, Result* x) noexcept nogil:
    """A packet of side ``side`` as its sender sent it, as its receiver received it, or both in one tap."""
    if not (sent and received):
        f.both = True
        f.side[side if sent else 1 - side].here = True
    if p.flags & SYN and not p.flags & ACK and f.side[side].known and p.seq != f.side[side].base:
        end_flow(f, x)                  # the ports are used again
        start_flow(f, x)
        if not (sent and received):
            f.both = True
            f.side[0].here = f.side[1].here = True
    if x.failed:
        return
    if sent:
        read_options(f, p, side)
    if p.flags & RST:
        return
    if p.flags & ACK:
        if sent:
            acknowledges(f, p, side, x)
        if received:
            acknowledged(f, p, 1 - side, x)
    if sent:
        sends(f, p, side, x)
    if received:
        receives(f, p, 1 - side, x)
