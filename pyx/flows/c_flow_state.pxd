# State and history of a connection, as in Zeek's conn.log: conn_state and history of base/protocols/conn.
#
# The history is a number in base LETTERS: each packet that adds a letter multiplies it and adds the letter.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_flow_entry cimport (
    ACK, ACKED, FIN, RST, SENT, STATE, SYN, TCP, UDP, WAS_CLOSED, FlowEntry, FlowPacket, FlowSide)

cdef enum TcpState:
    INACTIVE
    SYN_SENT
    SYN_ACK_SENT
    PARTIAL                     # packets, and no SYN before them
    ESTABLISHED
    CLOSED                      # it sent a FIN
    RESET                       # it sent a RST

cdef enum Letter:               # of the originator; those of the responder are OF_RESPONDER higher
    L_SYN = 1
    L_SYN_ACK
    L_ACK
    L_DATA
    L_FIN
    L_RST
    L_AGAIN
    L_WINDOW
    L_INCONSISTENT
    L_MULTI
    OF_RESPONDER = 10
    L_FLIPPED = 21
    LETTERS = 22
    MAX_HISTORY = 14            # letters in 64 bits

cdef enum ConnState:            # values of the field conn_state
    S0 = 1
    S1
    SF
    REJ
    S2
    S3
    RSTO
    RSTR
    RSTOS0
    RSTRH
    SH
    SHR
    OTH

cdef extern from *:
    const uint64_t FULL_HISTORY "282810057883082752ull"      # LETTERS ** (MAX_HISTORY - 1)


cdef inline int state_of(const FlowSide* s) noexcept nogil:
    return s.bits & STATE


cdef inline void set_state(FlowSide* s, int state) noexcept nogil:
    cdef int closed = WAS_CLOSED if s.bits & STATE == CLOSED else 0
    s.bits = <uint8_t>((s.bits & ~(STATE | WAS_CLOSED)) | state | closed)


cdef inline void add_letter(FlowEntry* e, int who, int letter) noexcept nogil:
    """Append a letter of the originator (``who`` 0) or the responder (1), if there is room."""
    if e.history < FULL_HISTORY:
        e.history = e.history * LETTERS + <uint64_t>(letter + (OF_RESPONDER if who else 0))


cdef inline void add_once(FlowEntry* e, int who, int letter) noexcept nogil:
    """Append a letter that the history does not have yet."""
    cdef uint64_t left = e.history
    cdef uint64_t wanted = <uint64_t>(letter + (OF_RESPONDER if who else 0))
    while left:
        if left % LETTERS == wanted:
            return
        left //= LETTERS
    add_letter(e, who, letter)


cdef inline bint power_of_ten(uint32_t n) noexcept nogil:
    while n >= 10 and n % 10 == 0:
        n //= 10
    return n == 1


cdef inline void note_flags(FlowEntry* e, int who, const FlowPacket* p) noexcept nogil:
    """The letters of the flags and the payload of a segment."""
    cdef FlowSide* me = &e.side[who]
    cdef uint32_t control = p.flags & (SYN | FIN | RST)
    if control == 0:
        if p.size:
            if not me.bits & SENT:
                me.bits |= SENT
                add_letter(e, who, L_DATA)
        elif p.flags & ACK and not me.bits & ACKED:
            me.bits |= ACKED
            add_letter(e, who, L_ACK)
    elif control == SYN:
        add_once(e, who, L_SYN_ACK if p.flags & ACK else L_SYN)
    elif control == FIN:
        add_once(e, who, L_FIN)
    elif control == RST:
        add_once(e, who, L_RST)
    else:
        add_once(e, who, L_INCONSISTENT if p.flags & FIN and p.flags & RST else L_MULTI)


cdef inline void next_state(FlowEntry* e, int who, const FlowPacket* p) noexcept nogil:
    """The states of both ends after a segment."""
    cdef FlowSide* me = &e.side[who]
    cdef FlowSide* you = &e.side[1 - who]
    cdef int state = state_of(me)
    if state == INACTIVE:
        if p.flags & SYN:
            if who == 1:
                if state_of(you) == SYN_SENT:
                    set_state(you, ESTABLISHED)
                set_state(me, ESTABLISHED)
            elif p.flags & ACK:
                set_state(me, SYN_ACK_SENT)
            else:               # after a SYN-ACK: the two were captured in the wrong order
                set_state(me, ESTABLISHED if state_of(you) == ESTABLISHED else SYN_SENT)
        if p.flags & FIN:
            set_state(me, CLOSED)
        if p.flags & RST:
            set_state(me, RESET)
        if state_of(me) == INACTIVE and not (who == 1 and p.size == 0 and state_of(you) == SYN_SENT):
            set_state(me, ESTABLISHED if p.flags & ACK and state_of(you) == ESTABLISHED else PARTIAL)
    elif state == SYN_SENT or state == SYN_ACK_SENT:
        if p.flags & FIN:
            set_state(me, CLOSED)
        if p.flags & RST:
            set_state(me, RESET)
    elif state == ESTABLISHED or state == PARTIAL:
        if p.flags & SYN and not p.flags & ACK and state == PARTIAL and state_of(you) == INACTIVE:
            set_state(me, SYN_SENT)
        if p.flags & FIN and not p.flags & RST:
            set_state(me, CLOSED)
            if state_of(you) == RESET and you.bits & WAS_CLOSED:
                set_state(you, CLOSED)      # a FIN, then a RST: it ended as it should
        if p.flags & RST:
            set_state(me, RESET)
    elif state == CLOSED and p.flags & RST and state_of(you) != CLOSED:
        set_state(me, RESET)


cdef inline bint is_reset(const FlowEntry* e) noexcept nogil:
    return state_of(&e.side[0]) == RESET or state_of(&e.side[1]) == RESET


cdef inline bint is_over(const FlowEntry* e) noexcept nogil:
    """Whether the TCP connection has ended."""
    return is_reset(e) or (state_of(&e.side[0]) == CLOSED and state_of(&e.side[1]) == CLOSED)


cdef inline int tcp_state(const FlowEntry* e) noexcept nogil:
    """The ConnState of a TCP connection."""
    cdef int orig = state_of(&e.side[0]), resp = state_of(&e.side[1])
    if resp == RESET:
        if orig == SYN_SENT or orig == SYN_ACK_SENT or (
                orig == RESET and e.side[0].payload == 0 and e.side[1].payload == 0):
            return REJ
        return RSTRH if orig == INACTIVE or orig == PARTIAL else RSTR
    if orig == RESET:
        return RSTOS0 if resp == INACTIVE or resp == PARTIAL else RSTO
    if orig == CLOSED and resp == CLOSED:
        return SF
    if orig == CLOSED:
        return SH if resp == INACTIVE or resp == PARTIAL else S2
    if resp == CLOSED:
        return SHR if orig == INACTIVE or orig == PARTIAL else S3
    if orig == SYN_SENT and resp == INACTIVE:
        return S0
    return S1 if orig == ESTABLISHED and resp == ESTABLISHED else OTH


cdef inline int conn_state(const FlowEntry* e, uint32_t proto) noexcept nogil:
    """The ConnState of a flow."""
    if proto == TCP:
        return tcp_state(e)
    if proto != UDP:
        return OTH
    if e.side[0].packets:
        return SF if e.side[1].packets else S0
    return SHR if e.side[1].packets else OTH
