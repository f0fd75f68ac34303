# What a packet adds to its flow: counters, TCP numbers, segments sent again, round trips of the handshake.
#
# A segment counts as sent again or out of order by the rules of tshark that c_tcp_analysis.pxd has, without its lists
# of unacknowledged segments: the sum of the two is the same, and each of them may differ.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from c_flow_entry cimport (
    ACK, ANSWER_ACKED, ANSWER_TIMED, DUPLICATES, FIN, ONE_DUPLICATE, RST, SYN, SYN_ANSWERED, SYN_TIMED, TCP, UDP,
    FlowEntry, FlowPacket, FlowSide)
from c_flow_state cimport (
    CLOSED, L_AGAIN, L_DATA, L_WINDOW, RESET, add_letter, add_once, next_state, note_flags, power_of_ten, state_of)

cdef enum:
    ORDER_US = 3000             # most that a segment out of order comes late if no round trip is known
    FAST_NS = 20000000          # most between a duplicate ACK and a fast retransmission
    FULL_U16 = 0xFFFF
    FULL_U8 = 0xFF


cdef inline bint before(uint32_t a, uint32_t b) noexcept nogil:
    """a < b of sequence numbers, which wrap."""
    return <int32_t>(a - b) < 0


cdef inline uint32_t microseconds(int64_t ts) noexcept nogil:
    return <uint32_t>(<uint64_t>ts // 1000)


cdef inline bint is_new_connection(const FlowSide* me, const FlowPacket* p) noexcept nogil:
    """Whether a SYN begins another connection of the same five-tuple."""
    return p.flags & (SYN | ACK) == SYN and me.base != 0 and p.seq != me.base


cdef inline bint passed(FlowEntry* e, int who, const FlowPacket* p, uint32_t next) noexcept nogil:
    """Count a segment that is sent again or out of order; whether it is."""
    cdef FlowSide* me = &e.side[who]
    cdef FlowSide* you = &e.side[1 - who]
    cdef uint32_t rtt = ORDER_US
    if p.size and you.ack and not before(you.ack, p.seq + p.size):
        me.again += 1
        return True
    if not me.next or not before(p.seq, me.next) or (p.size > 1 and me.next - 1 == p.seq):
        return False
    if e.bits & ANSWER_ACKED and e.syn_rtt + e.ack_rtt > 0:
        rtt = <uint32_t>((e.syn_rtt + e.ack_rtt) // 1000)
    if you.bits & DUPLICATES >= 2 * ONE_DUPLICATE and you.ack == p.seq and <uint64_t>(p.ts - e.last) < FAST_NS:
        me.again += 1
    elif microseconds(p.ts) - me.next_us < rtt and me.next != next:
        me.late += 1
    else:
        me.again += 1
    return True


cdef inline void count_acks(FlowSide* me, const FlowPacket* p) noexcept nogil:
    """Count duplicates of the last ACK of this end."""
    if p.ack != me.ack:
        me.bits &= ~DUPLICATES
    elif (p.size == 0 and me.next and p.seq == me.next and p.window and p.window == me.window
            and not p.flags & (SYN | FIN | RST) and me.bits & DUPLICATES != DUPLICATES):
        me.bits += ONE_DUPLICATE


cdef inline void time_handshake(FlowEntry* e, int who, const FlowPacket* p) noexcept nogil:
    """From the last SYN to the first SYN-ACK, from the last SYN-ACK to the first ACK."""
    if p.flags & (SYN | ACK) == SYN:
        if who == 0 and not e.bits & SYN_ANSWERED:
            e.syn_rtt, e.bits = p.ts, e.bits | SYN_TIMED
    elif p.flags & SYN:
        if who == 1 and e.bits & SYN_TIMED and not e.bits & ANSWER_ACKED:
            if not e.bits & SYN_ANSWERED:
                e.syn_rtt, e.bits = p.ts - e.syn_rtt, e.bits | SYN_ANSWERED
            e.ack_rtt, e.bits = p.ts, e.bits | ANSWER_TIMED
    elif who == 0 and p.flags & ACK and not p.flags & RST and e.bits & (ANSWER_TIMED | ANSWER_ACKED) == ANSWER_TIMED:
        e.ack_rtt, e.bits = p.ts - e.ack_rtt, e.bits | ANSWER_ACKED


cdef inline void tcp_segment(FlowEntry* e, int who, const FlowPacket* p) noexcept nogil:
    """Process the TCP header of a packet."""
    cdef FlowSide* me = &e.side[who]
    cdef FlowSide* you = &e.side[1 - who]
    cdef bint control = p.flags & (SYN | FIN | RST)
    cdef bint probe = p.size == 1 and me.next and p.seq == me.next and you.next and you.window == 0
    cdef uint32_t next = p.seq + p.size
    if p.flags & (SYN | FIN):
        next += 1
    if me.base == 0 or p.flags & (SYN | ACK) == SYN | ACK:
        me.base = p.seq if p.flags & SYN else p.seq - 1
    if p.flags & ACK and you.base == 0:
        you.base = p.ack - 1
    note_flags(e, who, p)
    if p.window == 0 and not control:
        if me.zero_windows < FULL_U16:
            me.zero_windows += 1
        if power_of_ten(me.zero_windows) and state_of(you) != CLOSED and state_of(me) != RESET:
            add_letter(e, who, L_WINDOW)
    count_acks(me, p)
    if (p.size or p.flags & (SYN | FIN)) and not (p.size <= 1 and p.seq == me.next - 1 and not control):
        if passed(e, who, p, next) and p.size and power_of_ten(me.again + me.late):
            add_letter(e, who, L_AGAIN)
    if not probe and (not me.next or before(me.next, next)):
        me.next, me.next_us = next, microseconds(p.ts)
    me.window, me.ack = p.window, p.ack
    me.flags |= <unsigned short>p.flags
    if p.flags & RST and me.resets < FULL_U8:
        me.resets += 1
    time_handshake(e, who, p)
    next_state(e, who, p)


cdef inline void add_packet(FlowEntry* e, int who, const FlowPacket* p) noexcept nogil:
    """Process a packet of the flow, sent by the originator (``who`` 0) or the responder (1)."""
    cdef FlowSide* me = &e.side[who]
    me.packets += 1
    me.bytes += p.bytes
    me.payload += p.size
    if p.proto == TCP and p.flags:
        tcp_segment(e, who, p)
    elif p.proto == UDP:
        add_once(e, who, L_DATA)
    if p.ts < e.first:
        e.first = p.ts
    if p.ts > e.last:
        e.last = p.ts


cdef inline void restart_counters(FlowEntry* e, int64_t now) noexcept nogil:
    """Begin the next record of the same flow; what is known of the connection stays."""
    cdef FlowSide* s
    cdef int i
    e.first = e.last = now
    for i in range(2):
        s = &e.side[i]
        s.packets = s.bytes = s.payload = 0
        s.again = s.late = 0
        s.flags = s.zero_windows = 0
        s.resets = 0
