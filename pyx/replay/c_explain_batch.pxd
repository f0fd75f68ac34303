# Packets put in order of their connections, a batch at a time.
#
# With many connections, most packets are of one that has left the cache of the CPU.  The rules of a connection need
# only its own packets; so the packets of a batch are sorted by connection first, and then each connection is fetched
# once for all of its packets.  The result is put into the order of the packets afterwards.
#
# Packets are divided into parts by their connection when they are added: those of a part are few enough to be read in
# any order out of a cache, and out of pages that the CPU has the addresses of.  A part is sorted when it is its turn.

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
    PARTS = 64
    NEAR_BITS = 4               # connections with near numbers, which are near in memory, are in one part: 2^4
    PIECE = 64                  # packets: a page of memory

cdef struct Part:
    uint32_t first              # piece
    uint32_t next               # packet, in its last piece; the end of a piece: there is none
    uint32_t count              # packets

cdef struct Batch:
    Packet* packets             # in pieces, each of one part
    uint32_t* connection        # of each packet
    uint32_t* follows           # of each piece: the next one of the same part
    uint32_t pieces             # in use
    Part[PARTS] part
    Extra* extras
    Extra no_extra              # of packets that have nothing of it
    uint32_t* order             # numbers of the packets of a part, by connection
    uint32_t* last              # of each connection of a part: its packets; then where they end in `order`
    Flow* flows                 # of each connection; memory is touched when one is needed after its first batch
    uint8_t* kept               # of each connection: whether `flows` has it
    uint32_t count              # packets
    uint32_t extra
    uint32_t room
    uint32_t connections        # seen so far; their numbers are smaller
    int taps


cdef inline uint32_t part_of(uint32_t connection) noexcept nogil:
    return connection >> NEAR_BITS & (PARTS - 1)


cdef inline uint32_t place_of(uint32_t connection) noexcept nogil:
    """Of a connection in its part."""
    return connection // (PARTS << NEAR_BITS) << NEAR_BITS | connection & ((1 << NEAR_BITS) - 1)


cdef inline uint32_t connection_at(uint32_t part, uint32_t place) noexcept nogil:
    return (place >> NEAR_BITS) * (PARTS << NEAR_BITS) + (part << NEAR_BITS) + (place & ((1 << NEAR_BITS) - 1))


cdef inline bint batch_init(Batch* b, uint32_t room, uint32_t connections, int taps) noexcept nogil:
    """An empty batch for ``room`` packets, of at most ``connections``; False: no memory."""
    cdef uint32_t pieces = room // PIECE + PARTS + 1
    memset(b, 0, sizeof(Batch))
    b.room, b.taps = room, taps
    b.packets = <Packet*>huge_memory(<size_t>pieces * PIECE * sizeof(Packet))
    b.connection = <uint32_t*>huge_memory(<size_t>pieces * PIECE * sizeof(uint32_t))
    b.follows = <uint32_t*>calloc(pieces, sizeof(uint32_t))
    b.extras = <Extra*>huge_memory(b.room * sizeof(Extra))
    b.order = <uint32_t*>huge_memory(b.room * sizeof(uint32_t))
    b.last = <uint32_t*>calloc(place_of(connections) + (2 << NEAR_BITS), sizeof(uint32_t))
    b.flows = <Flow*>huge_memory(connections * sizeof(Flow))
    b.kept = <uint8_t*>calloc(connections + 1, 1)
    return (b.packets != NULL and b.connection != NULL and b.follows != NULL and b.extras != NULL and b.order != NULL
            and b.last != NULL and b.flows != NULL and b.kept != NULL)


cdef inline void batch_free(Batch* b, Result* x) noexcept nogil:
    cdef uint32_t c
    if b.kept != NULL and b.flows != NULL:
        for c in range(b.connections):
            if b.kept[c]:
                end_flow(b.flows + c, x)
    free(b.packets)
    free(b.connection)
    free(b.follows)
    free(b.extras)
    free(b.order)
    free(b.last)
    free(b.flows)
    free(b.kept)


cdef inline Packet* batch_add(Batch* b, uint32_t connection) noexcept nogil:
    """The next packet, of this connection, not initialised but for its place; there is room."""
    cdef Part* part = &b.part[part_of(connection)]
    cdef uint32_t i = part.next
    if i % PIECE == 0:
        if part.count:
            b.follows[i // PIECE - 1] = b.pieces
        else:
            part.first = b.pieces
        i = b.pieces * PIECE
        b.pieces += 1
    prefetch(b.packets + i + 1)
    part.next = i + 1
    part.count += 1
    b.connection[i] = connection
    b.connections = max(b.connections, connection + 1)
    b.packets[i].place = b.count
    b.count += 1
    return b.packets + i


cdef inline void count_packets(Batch* b, const Part* part, bint ordered) noexcept nogil:
    """Count the packets of a part in `last`; ``ordered``: from where they begin in `order`, which is filled."""
    cdef uint32_t i, k, n, left = part.count, piece = part.first
    while left:
        n = min(left, <uint32_t>PIECE)
        for i in range(piece * PIECE, piece * PIECE + n):
            k = place_of(b.connection[i])
            if ordered:
                b.order[b.last[k]] = i
            b.last[k] += 1
        left -= n
        piece = b.follows[piece]


cdef inline void by_connection(Batch* b, const Part* part, uint32_t places) noexcept nogil:
    """Fill `order` with the packets of a part, and `last` with where those of each connection end."""
    cdef uint32_t k, start = 0, count
    count_packets(b, part, False)
    for k in range(places):
        count = b.last[k]
        b.last[k] = start
        start += count
    count_packets(b, part, True)


cdef inline void fetch_next(const Batch* b, uint32_t part, uint32_t place, uint32_t places, bint final) noexcept nogil:
    """Prefetch the connection after the next one, and the segments that the next one has in flight."""
    cdef uint32_t c = connection_at(part, place + 2)
    cdef size_t line
    cdef const Side* side
    cdef int i
    if place + 2 < places and c < b.connections and b.kept[c] and (final or b.last[place + 2] != b.last[place + 1]):
        for line in range(0, sizeof(Flow), 64):
            prefetch(<const uint8_t*>(b.flows + c) + line)
    c = connection_at(part, place + 1)
    if place + 1 < places and c < b.connections and b.kept[c]:
        for i in range(2):
            side = &b.flows[c].side[i]
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


cdef inline void explain_part(Batch* b, uint32_t number, bint final, Result* x) noexcept nogil:
    """Apply the rules to the packets of a part, which is empty then; ``final``: end its connections."""
    cdef Part* part = &b.part[number]
    cdef uint32_t places = place_of(b.connections - 1) + (1 << NEAR_BITS) & ~<uint32_t>((1 << NEAR_BITS) - 1)
    cdef Flow alone                     # one that begins in the final batch
    cdef Flow* f
    cdef uint32_t k, c, i, start = 0, end
    cdef Packet* p
    alone.open = False
    if not part.count and not final:
        return
    by_connection(b, part, places)
    for k in range(places):
        end = b.last[k]
        b.last[k] = 0
        c = connection_at(number, k)
        if c >= b.connections or (start == end and not (final and b.kept[c])):
            continue
        f = b.flows + c
        fetch_next(b, number, k, places, final)
        if not b.kept[c]:
            if final:
                f = &alone
            else:
                f.open, b.kept[c] = False, True
        for i in range(start, end):
            prefetch(b.packets + b.order[min(i + FETCH_AHEAD, part.count - 1)])
            p = b.packets + b.order[i]
            x.now = p.place
            explain_packet(f, p, b.taps, x)
            if x.failed:
                break
        if final and not x.failed:
            x.now = b.count + c
            end_flow(f, x)
        start = end
    part.count = part.next = 0


cdef inline void explain_batch(Batch* b, bint final, Result* x) noexcept nogil:
    """Apply the rules to the packets of the batch, which is empty then; ``final``: end all connections."""
    cdef uint32_t part
    for part in range(PARTS if b.connections else 0):
        explain_part(b, part, final, x)
    if not x.failed:
        x.failed = not (put_in_order(&x.rows, b.count + b.connections, x)
                        and put_in_order(&x.messages, b.count + b.connections, x))
    x.before += b.count
    b.count = b.extra = b.pieces = 0
