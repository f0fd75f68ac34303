# Rows of the result: labels, messages, connections.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcpy
from c_array cimport grow
from c_bits cimport prefetch
from c_chunks cimport chunk_append
from c_explain_segments cimport free_side
from c_explain_state cimport (
    ITS_DURATION, M_HANDSHAKE, M_OTHER_END, NEVER, NO_TIME, OTHER_TIME, Flow, FlowRow, Found, Message, MessageRow,
    Packet, RareFields, Result, Row, Side, before, clear_memory, elapsed, flow_at, message_at, rare_at, row_at,
    start_side)

cdef enum:
    ROWS_AHEAD = 8              # prefetched, to be written


cdef inline void* found(Found* table, Result* x, size_t size) noexcept nogil:
    """A new row of the current packet, not initialised; NULL: no memory."""
    cdef uint64_t room
    cdef uint32_t* order
    cdef void* row
    cdef size_t i
    if table.made.count == table.room:
        room = table.room * 2 if table.room else 1024
        order = <uint32_t*>realloc(table.order, room * sizeof(uint32_t)) if room >> 32 == 0 else NULL
        if order == NULL:
            x.failed = True
            return NULL
        table.order, table.room = order, room
    row = chunk_append(&table.made, size)
    if row == NULL:
        x.failed = True
        return NULL
    for i in range(2):                  # later rows, which may still be in no cache
        prefetch(<uint8_t*>row + ROWS_AHEAD * size + i * 64)
    table.order[table.made.count - 1] = x.now
    return row


cdef inline bint put_in_order(Found* table, uint64_t packets, Result* x) noexcept nogil:
    """Rows of this batch in order of its packets; those of one packet were made one after the other.

    False: no memory.
    """
    cdef uint64_t n = table.made.count - table.ordered, i, k, start = 0
    cdef uint32_t* by = table.order + table.ordered
    if not n:
        return True
    if (grow(<void**>&x.first, &x.first_room, packets, 1024, sizeof(uint32_t)) < 0
            or grow(<void**>&table.sorted, &table.sorted_room, n, 1024, sizeof(uint32_t)) < 0):
        return False
    for i in range(n):
        if i == 0 or by[i] != by[i - 1]:
            x.first[by[i]] = <uint32_t>(i + 1)
    for i in range(packets):
        k = x.first[i]
        x.first[i] = 0
        while 0 < k <= n and by[k - 1] == i:
            table.sorted[start] = <uint32_t>(table.ordered + k - 1)
            start += 1
            k += 1
    memcpy(by, table.sorted, n * sizeof(uint32_t))
    table.ordered += n
    return True


cdef inline Row* new_row(Result* x, const Flow* f, int side, Side* speaker) noexcept nogil:
    """A row, zero but for the flow; of the open message of ``speaker``, or of none.  NULL: no memory."""
    cdef Row* row = <Row*>found(&x.rows, x, sizeof(Row))
    if row == NULL:
        return NULL
    # Not by memset: the compiler makes `rep stos` of it, which costs more than all else that is written here.
    row.ts = row.duration = row.rtt = 0
    row.packet = row.previous = row.ack = 0
    row.place = row.next = row.rare = row.seq = row.size = row.flight = row.window = 0
    row.event = row.label = row.why = row.certainty = row.trigger = row.counts = 0
    row.flow, row.side = f.number, <uint8_t>side
    if speaker != NULL and speaker.speaks:
        row.next = speaker.message.rows
        speaker.message.rows = <uint32_t>x.rows.made.count
    row.missing = (x.missing & ~f.side[side].evidence) | (0 if f.both else M_OTHER_END)
    if f.handshake != 3:
        row.missing |= M_HANDSHAKE
    x.lacking |= row.missing
    return row


cdef inline RareFields* add_rare(Result* x, Row* row) noexcept nogil:
    """Its fields that few rows have, all zero; NULL: no memory."""
    cdef RareFields* rare = <RareFields*>chunk_append(&x.rare, sizeof(RareFields))
    if rare == NULL:
        x.failed = True
        return NULL
    rare.counted = rare.age = 0
    rare.n = 0
    row.rare = <uint32_t>x.rare.count
    return rare


cdef inline void count_row(Result* x, Row* row, int64_t counted) noexcept nogil:
    """This time of the message is that of the row."""
    cdef RareFields* rare
    row.counts = NO_TIME if not counted else ITS_DURATION if counted == row.duration else OTHER_TIME
    if row.counts == OTHER_TIME:
        rare = <RareFields*>rare_at(x, row) if row.rare else add_rare(x, row)
        if rare != NULL:
            rare.counted = counted


cdef inline void finish_message(Flow* f, int side, Result* x) noexcept nogil:
    cdef Side* me = &f.side[side]
    cdef const Message* m = &me.message
    cdef MessageRow* row
    if not me.speaks:
        return
    me.speaks = False
    row = <MessageRow*>found(&x.messages, x, sizeof(MessageRow))
    if row == NULL:
        return
    row.start, row.end = m.start, 0 if before(me.una, m.edge) else m.end
    row.counted, row.sending, row.late, row.late_label = m.counted, m.sending, m.late, m.late_label
    row.first, row.last, row.bytes, row.packets = m.first, m.last, m.bytes, m.packets
    row.again, row.rows, row.message = m.again, m.rows, m.number
    row.flow, row.side, row.main = f.number, <uint8_t>side, 0


cdef inline void start_message(Flow* f, Side* me, const Packet* p) noexcept nogil:
    cdef Message* m = &me.message
    f.messages += 1
    m.number, m.start, m.counted, m.first = f.messages, p.ts, p.ts, p.number
    m.sending = m.end = m.late = 0
    m.bytes = m.last = 0
    m.edge = m.packets = m.again = m.rows = 0
    m.late_label = 0
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


cdef inline FlowRow* new_flow(Result* x, const uint64_t* key, uint64_t began) noexcept nogil:
    """A row for a connection that begins after this many packets; NULL: no memory."""
    cdef FlowRow* row = <FlowRow*>chunk_append(&x.flows, sizeof(FlowRow))
    if row == NULL:
        x.failed = True
        return NULL
    clear_memory(row, sizeof(FlowRow))
    memcpy(row.key, key, sizeof(row.key))
    row.began = began
    return row


cdef inline void start_flow(Flow* f, uint32_t number, const Result* x) noexcept nogil:
    """A new connection; ``number``: of its FlowRow."""
    start_side(&f.side[0])
    start_side(&f.side[1])
    f.scale[0] = f.scale[1] = -1
    f.syn = f.syn_ack = NEVER
    f.both, f.timed, f.handshake, f.messages = False, False, 0, 0
    f.dsacks[0] = f.dsacks[1] = f.zero_windows[0] = f.zero_windows[1] = 0
    f.near[0], f.near[1] = flow_at(x, number).near[0], flow_at(x, number).near[1]
    f.number, f.open = number, True


cdef inline void start_again(Flow* f, Result* x) noexcept nogil:
    """The ports of a connection are used for another one."""
    cdef FlowRow* old = flow_at(x, f.number)
    cdef FlowRow* row
    end_flow(f, x)
    row = new_flow(x, old.key, x.before + x.now)
    if row == NULL:
        return
    row.near[0], row.near[1] = old.near[0], old.near[1]
    x.again += 1
    start_flow(f, <uint32_t>(x.flows.count - 1), x)


cdef inline void end_flow(Flow* f, Result* x) noexcept nogil:
    cdef FlowRow* row
    cdef int s
    if not f.open:
        return
    f.open = False
    row = flow_at(x, f.number)
    for s in range(2):
        finish_message(f, s, x)
        row.min_rtt[s], row.rate[s] = f.side[s].min_rtt, f.side[s].rate
        row.dsacks[s], row.zero_windows[s] = f.dsacks[s], f.zero_windows[s]
        free_side(&f.side[s], x)


cdef inline int by_start(const void* a, const void* b) noexcept nogil:
    """For qsort: numbers of connections after the packets before them."""
    cdef const uint64_t* one = <const uint64_t*>a
    cdef const uint64_t* other = <const uint64_t*>b
    cdef int k = 0 if one[0] != other[0] else 1
    return -1 if one[k] < other[k] else 1


cdef inline bint number_in_order(Result* x) noexcept nogil:
    """Number connections as they began: one that uses the ports of another one was found later.  False: no memory."""
    cdef uint64_t n = x.flows.count, i
    cdef uint64_t (*began)[2]
    cdef FlowRow* rows
    cdef uint32_t* number
    cdef bint done
    if not x.again:
        return True
    began = <uint64_t (*)[2]>malloc(n * sizeof(began[0]))
    rows = <FlowRow*>malloc(n * sizeof(FlowRow))
    number = <uint32_t*>malloc(n * sizeof(uint32_t))
    done = began != NULL and rows != NULL and number != NULL
    if done:
        for i in range(n):
            began[i][0], began[i][1], rows[i] = flow_at(x, i).began, i, flow_at(x, i)[0]
        qsort(began, n, sizeof(began[0]), by_start)
        for i in range(n):
            number[began[i][1]] = <uint32_t>i
            flow_at(x, i)[0] = rows[began[i][1]]
        for i in range(x.rows.made.count):
            row_at(x, i).flow = number[row_at(x, i).flow]
        for i in range(x.messages.made.count):
            message_at(x, i).flow = number[message_at(x, i).flow]
    free(began)
    free(rows)
    free(number)
    return done
