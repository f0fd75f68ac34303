# Rows of the result: labels, messages, connections.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy, memset
from c_explain_segments cimport free_side
from c_explain_state cimport (
    M_HANDSHAKE, M_OTHER_END, NEVER, Flow, FlowRow, Message, MessageRow, Packet, Result, Row, Side,
    before, elapsed, start_side)


cdef inline Row* new_row(Result* x, const Flow* f, int side) noexcept nogil:
    """A row, zero but for the flow; NULL: no memory."""
    cdef uint64_t room
    cdef Row* row
    cdef Row* rows
    if x.count == x.room:
        room = x.room * 2 if x.room else 256
        rows = <Row*>realloc(x.rows, room * sizeof(Row))
        if rows == NULL:
            x.failed = True
            return NULL
        x.rows, x.room = rows, room
    row = x.rows + x.count
    x.count += 1
    memset(row, 0, sizeof(Row))
    memcpy(row.key, f.key, sizeof(row.key))
    row.flow, row.side = f.number, <uint8_t>side
    row.message = f.side[side].message_number if f.side[side].speaks else 0
    row.missing = (x.missing & ~f.side[side].evidence) | (0 if f.both else M_OTHER_END)
    if f.handshake != 3:
        row.missing |= M_HANDSHAKE
    return row


cdef inline void finish_message(Flow* f, int side, Result* x) noexcept nogil:
    cdef Side* me = &f.side[side]
    cdef uint64_t room
    cdef MessageRow* rows
    cdef MessageRow* row
    if not me.speaks:
        return
    me.speaks = False
    if x.message_count == x.message_room:
        room = x.message_room * 2 if x.message_room else 64
        rows = <MessageRow*>realloc(x.messages, room * sizeof(MessageRow))
        if rows == NULL:
            x.failed = True
            return
        x.messages, x.message_room = rows, room
    row = x.messages + x.message_count
    x.message_count += 1
    memset(row, 0, sizeof(MessageRow))
    memcpy(row.key, f.key, sizeof(row.key))
    if before(me.una, me.message.edge):
        me.message.end = 0              # not acknowledged
    row.m, row.flow, row.message, row.side = me.message, f.number, me.message_number, <uint8_t>side


cdef inline void start_message(Flow* f, Side* me, const Packet* p) noexcept nogil:
    f.messages += 1
    me.message_number = f.messages
    memset(&me.message, 0, sizeof(Message))
    me.message.start = me.message.counted = p.ts
    me.message.first = p.number
    me.speaks = True


cdef inline void extend_message(Side* me, const Packet* p) noexcept nogil:
    """New data of the open message."""
    if p.size:
        me.message.bytes += p.size
        me.message.edge = p.seq + p.size


cdef inline int64_t count_wait(Side* me, const Packet* p) noexcept nogil:
    """The wait of the open message until this packet, which is then counted; 0 after its last acknowledgement."""
    cdef int64_t wait
    if not me.speaks or (not p.size or before(p.seq, me.nxt)) and not before(me.una, me.message.edge):
        return 0
    wait = elapsed(me.message.counted, p.ts)
    me.message.counted = p.ts
    return wait


cdef inline void start_flow(Flow* f, Result* x) noexcept nogil:
    """A new connection; its number is the place of its FlowRow."""
    cdef uint64_t room
    cdef FlowRow* rows
    start_side(&f.side[0])
    start_side(&f.side[1])
    f.scale[0] = f.scale[1] = -1
    f.syn = f.syn_ack = NEVER
    f.both, f.timed, f.handshake, f.messages = False, False, 0, 0
    if x.flow_count == x.flow_room:
        room = x.flow_room * 2 if x.flow_room else 64
        rows = <FlowRow*>realloc(x.flows, room * sizeof(FlowRow))
        if rows == NULL:
            x.failed = True
            return
        x.flows, x.flow_room = rows, room
    memset(x.flows + x.flow_count, 0, sizeof(FlowRow))
    f.number = <uint32_t>x.flow_count
    f.open = True
    x.flow_count += 1


cdef inline void end_flow(Flow* f, Result* x) noexcept nogil:
    cdef int s
    if not f.open:
        return
    f.open = False
    for s in range(2):
        finish_message(f, s, x)
        x.flows[f.number].min_rtt[s] = f.side[s].min_rtt
        x.flows[f.number].rate[s] = f.side[s].rate
        x.flows[f.number].dsacks[s] = f.side[s].dsacks
        x.flows[f.number].zero_windows[s] = f.side[s].zero_windows
        free_side(&f.side[s], x)
    x.flows[f.number].messages = f.messages
