# TCP analysis, segment by segment: retransmissions, losses, windows, round trips.
# The rules are those of the chapter "TCP Analysis" of the Wireshark user's guide; confluo-tcp(7) states them.
# Header only, no Python.  Allocates only the lists of unacknowledged segments.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int8_t, int32_t, int64_t
from libc.stdlib cimport malloc, free
from libc.string cimport memcpy, memset

cdef enum:
    FIN = 1
    SYN = 2
    RST = 4
    ACK = 16

# Bits of the field tcp_analysis.
cdef enum:
    A_RETRANSMISSION = 1
    A_FAST = 2
    A_SPURIOUS = 4
    A_OUT_OF_ORDER = 8
    A_LOST = 16
    A_ACK_LOST = 32
    A_DUPLICATE_ACK = 64
    A_ZERO_WINDOW = 128
    A_PROBE = 256
    A_PROBE_ACK = 512
    A_WINDOW_FULL = 1024
    A_WINDOW_UPDATE = 2048
    A_KEEP_ALIVE = 4096
    A_KEEP_ALIVE_ACK = 8192
    A_REUSED = 16384

cdef enum:
    UNACKED = 10000             # segments kept per direction, as in Wireshark
    SMALL = 8                   # room of the first list
    FAST_NS = 20000000          # maximum time from the duplicate ACK to a fast retransmission
    ORDER_NS = 3000000          # maximum delay of an out-of-order segment if no round trip is known
    IN_FLIGHT = 2000000000      # more bytes in flight mean a gap in the capture

# Bits of Side.has.
cdef enum:
    HAS_BASE = 1                # base is known
    HAS_SYN = 4                 # of the lower end: the time of a SYN is known, the round trip not yet
    HAS_RTT = 8                 # of the lower end: the round trip of the handshake is known
    REPORTED = 2                # the other side acknowledged more than was seen; until the ACK of this side changes
    ROUGH = 16                  # the list is not in ascending order
    SHORT_WINDOW = 32           # the last window came with a SYN: it is not scaled
    HAS_FLIGHT = 64             # the other side has acknowledged something since the last gap

cdef enum:
    SCALE_UNKNOWN = -1
    SCALE_NONE = -2
    NO_WINDOW = 0xFFFFFFFFu

cdef struct Segment:            # sent and not yet acknowledged
    uint32_t seq
    uint32_t next
    int64_t ts

# Sequence number 0 means unknown, as it does in tshark: a RST that answers a SYN has it, and the SYN-ACK that comes
# later is not sent again.
cdef struct Side:               # one direction of a conversation
    Segment* list               # a ring, oldest first; NULL before the first
    uint32_t head
    uint32_t count
    uint32_t room               # a power of two
    uint32_t base               # initial sequence number
    uint32_t next               # the highest sequence number sent, plus one; 0: unknown
    uint32_t solid              # the same up to the first gap; 0: unknown
    uint32_t ack                # of the last segment
    uint32_t duplicates         # repetitions of the last ACK
    int64_t next_ts             # time of the last change of `next`
    int64_t ts                  # of the last segment
    uint32_t window             # of the last segment, as sent; NO_WINDOW before the first
    uint16_t flags              # tcp_analysis of the last segment
    int8_t scale
    uint8_t has

cdef struct Flow:               # all zero is valid, without lists; call `start_side` on both sides before use
    int64_t rtt                 # of the handshake; before it is known, with HAS_SYN, the time of the last SYN
    Side side[2]                # sent by the lower end, by the higher

cdef struct Packet:
    int64_t ts
    uint32_t seq
    uint32_t ack
    uint32_t size               # bytes of payload
    uint32_t flags
    uint16_t window
    int scale                   # of the option; SCALE_UNKNOWN: no option

cdef struct Verdict:            # fields of the packet; all zero at first
    uint32_t flags
    uint32_t duplicate
    uint32_t in_flight
    uint32_t rel_seq
    uint32_t rel_ack
    uint32_t window             # scaled
    int64_t rto
    int64_t ack_rtt
    int64_t irtt

cdef struct Memory:             # of all lists together
    uint64_t segments
    uint64_t max_segments


cdef inline bint before(uint32_t a, uint32_t b) noexcept nogil:
    """a < b of sequence numbers, which wrap."""
    return <int32_t>(a - b) < 0


cdef inline int64_t elapsed(int64_t from_, int64_t to) noexcept nogil:
    """to - from_, without overflow."""
    return <int64_t>(<uint64_t>to - <uint64_t>from_)


cdef inline Segment* at(const Side* s, uint32_t i) noexcept nogil:
    return &s.list[(s.head + i) & (s.room - 1)]


cdef inline void forget(Side* s, Memory* m) noexcept nogil:
    """Free the list."""
    free(s.list)
    m.segments -= s.room
    s.list, s.room, s.count, s.head = NULL, 0, 0, 0
    s.has &= ~ROUGH


cdef inline void start_side(Side* s) noexcept nogil:
    memset(s, 0, sizeof(Side))
    s.scale, s.window = SCALE_UNKNOWN, NO_WINDOW
    s.has = SHORT_WINDOW | HAS_FLIGHT


cdef inline bint grow(Side* s, Memory* m) noexcept nogil:
    cdef uint32_t room = s.room * 2 if s.room else SMALL, i
    cdef Segment* list
    if m.segments + room - s.room > m.max_segments:
        return False
    list = <Segment*>malloc(room * sizeof(Segment))
    if list == NULL:
        return False
    for i in range(s.count):
        list[i] = at(s, i)[0]
    free(s.list)
    m.segments += room - s.room
    s.list, s.room, s.head = list, room, 0
    return True


cdef inline bint remember(Side* s, Memory* m, uint32_t seq, uint32_t next, int64_t ts) noexcept nogil:
    """Append a sent segment to the list.  False: no room."""
    cdef Segment* last
    if s.count >= UNACKED or (s.count == s.room and not grow(s, m)):
        return False
    if s.count:
        last = at(s, s.count - 1)
        if before(seq, last.seq) or before(next, last.next):
            s.has |= ROUGH
    last = at(s, s.count)
    last.seq, last.next, last.ts = seq, next, ts
    s.count += 1
    return True


cdef inline int64_t acknowledge(Side* s, uint32_t ack, int64_t now, bint* found) noexcept nogil:
    """Remove segments that ``ack`` acknowledges.  Returns the age of the oldest segment that ends exactly there."""
    cdef uint32_t i, kept
    cdef int64_t rtt = 0
    cdef Segment* p
    cdef Segment* q
    if not s.has & ROUGH:
        while s.count:
            p = at(s, 0)
            if before(ack, p.next):
                break
            if p.next == ack and not found[0]:
                rtt, found[0] = elapsed(p.ts, now), True
            s.head = (s.head + 1) & (s.room - 1)
            s.count -= 1
        for i in range(s.count):
            p = at(s, i)
            if not before(p.seq, ack):
                break
            p.seq = ack
        return rtt
    kept = 0
    s.has &= ~ROUGH
    for i in range(s.count):
        p = at(s, i)
        if not before(ack, p.next):
            if p.next == ack and not found[0]:
                rtt, found[0] = elapsed(p.ts, now), True
            continue
        q = at(s, kept)
        q[0] = p[0]
        if before(q.seq, ack):
            q.seq = ack
        if kept:
            p = at(s, kept - 1)
            if before(q.seq, p.seq) or before(q.next, p.next):
                s.has |= ROUGH
        kept += 1
    s.count = kept
    return rtt


cdef inline uint32_t span(const Side* s) noexcept nogil:
    """Sequence numbers from the first to the last of the list."""
    cdef uint32_t first, last, i
    cdef const Segment* p
    if s.count == 0:
        return 0
    p = at(s, 0)
    first, last = p.seq, at(s, s.count - 1).next
    if s.has & ROUGH:
        for i in range(s.count):
            p = at(s, i)
            if before(p.seq, first):
                first = p.seq
            if before(last, p.next):
                last = p.next
    return last - first


cdef inline void scales(Side* me, Side* you, const Packet* p) noexcept nogil:
    """Window scaling: both sides must offer it in their SYN, or neither scales."""
    if p.scale >= 0:
        me.scale = <int8_t>p.scale
    if me.scale == SCALE_UNKNOWN:
        me.scale = you.scale = SCALE_NONE
    elif p.flags & ACK and you.scale == SCALE_NONE:
        me.scale = SCALE_NONE


cdef inline bint plain_ack(const Side* me, const Packet* p) noexcept nogil:
    """Whether the segment only repeats the last acknowledgement."""
    return (p.size == 0 and me.next and p.seq == me.next and p.ack == me.ack
            and not p.flags & (SYN | FIN | RST))


cdef inline uint32_t window_rules(Side* me, Side* you, const Packet* p, Verdict* v) noexcept nogil:
    """Detect window changes, gaps, keep-alives and duplicate ACKs."""
    cdef uint32_t out = 0
    cdef bint control = p.flags & (SYN | FIN | RST)
    cdef int shift
    if p.size == 1 and me.next and p.seq == me.next and you.window == 0:
        return A_PROBE
    if p.window == 0 and not control:
        out |= A_ZERO_WINDOW
    if me.next and before(me.next, p.seq) and not p.flags & RST:
        out |= A_LOST
        me.has &= ~HAS_FLIGHT
    if p.size <= 1 and p.seq == me.next - 1 and not control:
        out |= A_KEEP_ALIVE
    if p.window and p.window != me.window and plain_ack(me, p):
        out |= A_WINDOW_UPDATE
    if p.size and you.scale != SCALE_UNKNOWN and not control:
        shift = 0 if you.has & SHORT_WINDOW or you.scale < 0 else you.scale
        if p.seq + p.size == you.ack + (you.window << shift):
            out |= A_WINDOW_FULL
    if p.window == me.window and p.window and plain_ack(me, p):
        if you.flags & A_KEEP_ALIVE:
            return out | A_KEEP_ALIVE_ACK
        me.duplicates += 1
        me.has &= ~REPORTED
        v.duplicate = me.duplicates
        out |= A_DUPLICATE_ACK
    if (p.window == 0 and me.window == 0 and p.size == 0 and p.seq == me.next and not control
            and you.flags & A_PROBE and p.ack == me.ack):
        out |= A_PROBE_ACK
    return out


cdef inline uint32_t sent_again(const Side* me, const Side* you, const Packet* p, uint32_t next,
                                int64_t rtt, Verdict* v) noexcept nogil:
    """Classify a segment with sequence numbers as new or retransmitted.  A negative time is not a short one."""
    cdef bint old = me.next and before(p.seq, me.next)
    if p.size > 1 and me.next - 1 == p.seq:
        old = False                     # it starts with the byte of a window probe
    if p.size and you.ack and not before(you.ack, p.seq + p.size):
        return A_RETRANSMISSION | A_SPURIOUS
    if not old:
        return 0
    if (you.duplicates >= 2 or you.has & REPORTED) and you.ack == p.seq and <uint64_t>elapsed(you.ts, p.ts) < FAST_NS:
        return A_RETRANSMISSION | A_FAST
    if <uint64_t>elapsed(me.next_ts, p.ts) < <uint64_t>(rtt if rtt else ORDER_NS) and me.next != next:
        return A_OUT_OF_ORDER
    v.rto = elapsed(at(me, 0).ts if me.count else me.next_ts, p.ts)
    return A_RETRANSMISSION


cdef inline void analyse(Flow* f, int from_, const Packet* p, Memory* m, Verdict* v) noexcept nogil:
    """The verdict on the next segment of flow f, sent by side ``from_``."""
    cdef Side* me = &f.side[from_]
    cdef Side* you = &f.side[1 - from_]
    cdef uint32_t next = p.seq + p.size
    cdef bint found = False
    if p.flags & (SYN | FIN):
        next += 1
    if not me.has & HAS_BASE:
        me.base = p.seq if p.flags & SYN else p.seq - 1
        me.has |= HAS_BASE
    if p.flags & ACK:
        if not you.has & HAS_BASE:
            you.base = p.ack - 1
            you.has |= HAS_BASE
        you.has |= HAS_FLIGHT
    v.flags |= window_rules(me, you, p, v)
    if p.ack != me.ack:
        me.duplicates = 0
        me.has &= ~REPORTED
    if you.solid and before(you.solid, p.ack) and p.flags & ACK:
        if before(you.solid, you.next):
            v.flags |= A_ACK_LOST
            you.solid = you.next
        else:                           # once, while the other side repeats its ACK
            if not you.duplicates and not you.has & REPORTED:
                v.flags |= A_ACK_LOST
            you.duplicates = 0
            you.has |= REPORTED
    if (p.size or p.flags & (SYN | FIN)) and not v.flags & A_KEEP_ALIVE:
        v.flags |= sent_again(me, you, p, next, f.rtt if f.side[0].has & HAS_RTT else 0, v)
    if p.size or p.flags & (SYN | FIN):
        remember(me, m, p.seq, next, p.ts)
    if not v.flags & A_PROBE:
        if not me.next or before(me.next, next):
            me.next, me.next_ts = next, p.ts
        if not me.solid or p.seq == me.solid:
            me.solid = me.next
    me.window, me.ack, me.ts, me.flags = p.window, p.ack, p.ts, <uint16_t>v.flags
    v.ack_rtt = acknowledge(you, p.ack, p.ts, &found)
    if p.size and me.has & HAS_FLIGHT:
        v.in_flight = span(me) - (1 if p.flags & (SYN | FIN) else 0)
        if v.in_flight >= IN_FLIGHT:
            v.in_flight = 0


cdef inline void handshake(Flow* f, int from_, const Packet* p, Verdict* v) noexcept nogil:
    """Call after `analyse`: sets window scaling, handshake round trip, relative numbers."""
    cdef Side* me = &f.side[from_]
    cdef Side* you = &f.side[1 - from_]
    if p.flags & SYN:
        me.has |= SHORT_WINDOW
        scales(me, you, p)
        if not p.flags & ACK and not f.side[0].has & HAS_RTT:
            f.rtt = p.ts
            f.side[0].has |= HAS_SYN
    else:
        if p.flags & ACK and f.side[0].has & HAS_SYN and p.ts != f.rtt:
            f.rtt = elapsed(f.rtt, p.ts)
            f.side[0].has = f.side[0].has & ~HAS_SYN | HAS_RTT
        me.has &= ~SHORT_WINDOW
    v.irtt = f.rtt if f.side[0].has & HAS_RTT else 0
    v.rel_seq = p.seq - me.base
    v.rel_ack = p.ack - you.base if p.flags & ACK and you.has & HAS_BASE else 0
    v.window = <uint32_t>p.window << (me.scale if me.scale > 0 and not p.flags & SYN else 0)
