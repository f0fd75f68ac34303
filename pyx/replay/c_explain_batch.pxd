# Packets put in order of their connections, a batch at a time.
#
# With many connections, most packets are of one that has left the cache of the CPU.  The rules of a connection need
# only its own packets; so the packets of a batch are sorted by connection first, and then each connection is fetched
# once for all of its packets.  The result is put into the order of the packets afterwards.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from c_bits cimport prefetch
from c_chunks cimport huge_memory
from c_explain_rows cimport end_flow, put_in_order, start_flow
from c_explain_rules cimport segment
from c_explain_state cimport Extra, Flow, FlowRow, Packet, Result, Side

cdef enum:
    FETCH_AHEAD = 12            # packets prefetched

cdef struct Batch:
    Packet* packets
    Extra* extras
    uint32_t* connection        # of each packet
    uint32_t* order             # places of the packets, by connection
    uint32_t* last              # of each connection: its packets; then where they end in `order`
    Flow* flows                 # of each connection; memory is touched when one is needed after its first batch
    uint8_t* kept               # of each connection: whether `flows` has it
    uint32_t count              # packets
    uint32_t extra
    uint32_t room
    uint32_t connections        # seen so far; their numbers are smaller
    int taps


cdef inline bint batch_init(Batch* b, uint32_t room, uint32_t connections, int taps) noexcept nogil:
    """An empty batch for ``room`` packets, of at most ``connections``; False: no memory."""
    memset(b, 0, sizeof(Batch))
    b.room, b.taps = room, taps
    b.packets = <Packet*>huge_memory(b.room * sizeof(Packet))
    b.extras = <Extra*>huge_memory(b.room * sizeof(Extra))
    b.connection = <uint32_t*>huge_memory(b.room * sizeof(uint32_t))
    b.order = <uint32_t*>huge_memory(b.room * sizeof(uint32_t))
    b.last = <uint32_t*>calloc(connections + 1, sizeof(uint32_t))
    b.flows = <Flow*>huge_memory(connections * sizeof(Flow))
    b.kept = <uint8_t*>calloc(connections + 1, 1)
    return (b.packets != NULL and b.extras != NULL and b.connection != NULL and b.order != NULL and b.last != NULL
            and b.flows != NULL and b.kept != NULL)


cdef inline void batch_free(Batch* b, Result* x) noexcept nogil:
    cdef uint32_t c
    if b.kept != NULL and b.flows != NULL:
        for c in range(b.connections):
            if b.kept[c]:
                end_flow(b.flows + c, x)
    free(b.packets)
    free(b.extras)
    free(b.connection)
    free(b.order)
    free(b.last)
    free(b.flows)
    free(b.kept)


cdef inline Packet* batch_add(Batch* b, uint32_t connection) noexcept nogil:
    """The next packet, of this connection, not initialised; there is room."""
    b.connection[b.count] = connection
    b.last[connection] += 1
    b.connections = max(b.connections, connection + 1)
    b.count += 1
    return b.packets + b.count - 1


cdef inline void by_connection(Batch* b) noexcept nogil:
    """Fill `order`, and make the counts in `last` places."""
    cdef uint32_t c, i, start = 0, count
    for c in range(b.connections):
        count = b.last[c]
        b.last[c] = start
        start += count
    for i in range(b.count):
        c = b.connection[i]
        b.order[b.last[c]] = i
        b.last[c] += 1


cdef inline void fetch_next(const Batch* b, uint32_t c) noexcept nogil:
    """Prefetch the connection after the next one, and the segments that the next one has in flight."""
    cdef size_t line
    cdef const Side* side
    cdef int i
    if c + 2 < b.connections and b.kept[c + 2]:
        for line in range(0, sizeof(Flow), 64):
            prefetch(<const uint8_t*>(b.flows + c + 2) + line)
    if c + 1 < b.connections and b.kept[c + 1]:
        for i in range(2):
            side = &b.flows[c + 1].side[i]
            if side.count:
                prefetch(side.list + side.head)
                prefetch(side.list + side.head + side.count)


cdef inline void explain_packet(Flow* f, const Packet* p, int taps, Result* x) noexcept nogil:
    cdef bint sent = True, received = True
    if p.begins:
        end_flow(f, x)
        start_flow(f, <uint32_t>p.number, x)
        return
    if taps > 1:
        if f.near[0] and f.near[1] and f.near[0] != f.near[1]:
            sent = f.near[p.tap] == p.side + 1
            received = not sent
        elif p.tap:
            return
    segment(f, p, sent, received, x)


cdef inline void explain_batch(Batch* b, bint final, Result* x) noexcept nogil:
    """Apply the rules to the packets of the batch, which is empty then; ``final``: end all connections."""
    cdef Flow alone                     # one that begins in the final batch
    cdef Flow* f
    cdef uint32_t c, i, start = 0, end
    cdef Packet* p
    alone.open = False
    by_connection(b)
    for c in range(b.connections):
        end = b.last[c]
        b.last[c] = 0
        if start == end and not (final and b.kept[c]):
            continue
        f = b.flows + c
        fetch_next(b, c)
        if not b.kept[c]:
            if final:
                f = &alone
            else:
                f.open, b.kept[c] = False, True
        for i in range(start, end):
            prefetch(b.packets + b.order[min(i + FETCH_AHEAD, b.count - 1)])
            p = b.packets + b.order[i]
            x.now = b.order[i]
            explain_packet(f, p, b.taps, x)
            if x.failed:
                break
        if final and not x.failed:
            x.now = b.count + c
            end_flow(f, x)
        start = end
    if not x.failed:
        x.failed = not (put_in_order(&x.rows, b.count + b.connections)
                        and put_in_order(&x.messages, b.count + b.connections))
    x.before += b.count
    b.count = b.extra = 0
