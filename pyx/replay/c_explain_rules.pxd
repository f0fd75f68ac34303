# The rules of `confluo-replay explain`, a packet at a time: each rule is in a c_explain_*.pxd of its own.
# docs/papers.md names their sources; tests/support/twin_explain.py has the same rules in plain Python.

from libc.stdint cimport int64_t, uint32_t
from c_explain_acks cimport acknowledged
from c_explain_gaps cimport fresh, full_size, probe
from c_explain_receiver cimport acknowledges, receives
from c_explain_retransmissions cimport again
from c_explain_rows cimport start_again
from c_explain_segments cimport append
from c_explain_state cimport (
    ACK, DEFAULT_MSS, FIN, NEVER, RST, SYN, Flow, Packet, Result, Side, before, elapsed)


cdef inline void read_options(Flow* f, const Packet* p, int side) noexcept nogil:
    """Options of a SYN; from the times of a handshake in one tap, the distance of both ends."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef int64_t near, far
    if not p.flags & SYN:
        if f.timed and p.flags & ACK and not f.both and f.syn > NEVER:
            near, far = elapsed(f.syn_ack, p.ts), elapsed(f.syn, f.syn_ack)
            if near >= 0 and far >= 0:
                me.distance, you.distance = near, far
                me.here, you.here = near < far // 4, far < near // 4
            f.syn, f.timed = NEVER, False
        return
    f.handshake |= 1 << side
    f.scale[side], me.sack_ok, me.offered = min(p.scale, 14), p.sack_ok, p.mss
    if p.flags & ACK:
        if f.syn_ack == NEVER and f.syn > NEVER:
            f.syn_ack, f.timed = p.ts, True
    elif f.syn == NEVER and f.syn_ack == NEVER:
        f.syn = p.ts
    else:
        f.timed = False
        f.syn_ack = f.syn = NEVER       # sent again: the times mean nothing


cdef inline void sends(Flow* f, const Packet* p, int side, Result* x) noexcept nogil:
    """Side ``side`` sends a segment."""
    cdef Side* me = &f.side[side]
    cdef Side* you = &f.side[1 - side]
    cdef uint32_t size = p.size + (p.flags & SYN != 0) + (p.flags & FIN != 0), end = p.seq + size, limit
    cdef int64_t gap
    if p.extra.evidence:
        me.evidence |= p.extra.evidence
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
        if p.size and p.size < full_size(me, you):
            me.small, me.smalls = end, True
    if before(me.nxt, end):
        me.nxt = end
    if me.nxt - me.una > me.most:
        me.most = me.nxt - me.una
    me.sent_ts, me.sent_number, me.since = p.ts, p.number, 0
    if me.speaks:
        me.message.last = p.number
        me.message.packets += 1


cdef inline void segment(Flow* f, const Packet* p, bint sent, bint received, Result* x) noexcept nogil:
    """A packet of a side as its sender sent it, as its receiver received it, or both in one tap."""
    cdef int side = p.side
    if p.flags & SYN and not p.flags & ACK and f.side[side].known and p.seq != f.side[side].base:
        start_again(f, x)
        if not (sent and received):
            f.side[0].here = f.side[1].here = True
    if not (sent and received):
        f.both = True
        f.side[side if sent else 1 - side].here = True
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
