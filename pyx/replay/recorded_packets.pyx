"""Packets of recordings: the runs of both ends of a connection as single packets, with sizes and losses.

Sizes are those of headers, of this end or of its peer.  Others follow from the calls: a packet has a full segment or
what is left of the bytes that were sent before it; without bytes it is an acknowledgement; what TCP sends again is a
full segment.  Losses are segments that the peer did not receive: found by IP identification, in IPv6 by headers.
"""

from array import array
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from c_array cimport grow
from c_hash_table cimport HashTable, table_find, table_free, table_insert, table_reserve
from confluo_tools.core.replay.packet_store cimport PacketStore
cimport cython
import os

cdef enum:                              # kinds of rows, as in the schema
    K_CALL = 4
    K_RETRANSMIT = 9
    SEND = 3                            # a call

cdef enum:                              # places of `rows`
    TX
    RX
    SENT
    RECEIVED
    CALLS
    RESENT
    KINDS

cdef enum:
    TCP_SYN = 2
    EDGES = 8
    MAX_EVENTS = 1 << 26                # of one kind at one end: more is damage
    LEAST_FRAME = 64 + 20               # bytes on the wire
    WIRE = 38
    TIMESTAMPS = 12
    LEAST_MSS = 88
    REACH = 1 << 15                     # IP identifications are of 16 bits

cdef struct Kept:                       # a row
    int64_t ts                          # of calls and retransmissions, bytes
    int64_t step                        # of headers, payload; of calls and retransmissions, step of tx
    uint64_t identity                   # of headers: seq << 32 | ack
    uint32_t count
    uint32_t tx                         # of headers: flags and window
    uint32_t options                    # of headers: bytes
    uint16_t ip_id
    uint16_t segments

cdef struct Rows:
    Kept* row
    uint64_t room
    uint64_t count

cdef struct Packet:                     # a segment that an end sent
    int64_t time
    uint32_t name                       # IP identification, or number of its header
    uint32_t size                       # payload and options
    uint8_t arrived
    uint8_t known                       # the size, from a header


@cython.final
cdef class RecordedPackets:
    """Gives the packets of one end after the other to a store.

    ``derived``: packets with a size that is not recorded.
    """

    cdef uint64_t[2] seed
    cdef Rows[KINDS] rows               # of the connection at hand
    cdef bint own                       # its sender has headers
    cdef readonly uint64_t derived
    cdef Packet* packet
    cdef uint64_t packet_room, packets
    cdef uint64_t expected              # one more than the last packet that arrived
    cdef uint32_t* name                 # of the segments that the peer received
    cdef uint32_t* length               # and their payload, if it has headers
    cdef uint64_t name_room, length_room, names

    def __cinit__(self):
        secret = os.urandom(16)
        memcpy(self.seed, <const char*>secret, 16)
        self.seed[1] |= 1

    def __dealloc__(self):
        cdef int k
        for k in range(KINDS):
            free(self.rows[k].row)
        free(self.packet)
        free(self.name)
        free(self.length)

    cdef int _room(self, int k, uint64_t n) except -1:
        self.rows[k].count = 0
        if grow(<void**>&self.rows[k].row, &self.rows[k].room, n, 64, sizeof(Kept)) < 0:
            raise MemoryError
        return 0

    cdef int _runs(self, int k, runs) except -1:
        # The rows of received or sent packets.
        cdef const int64_t[::1] ts = runs["ts"], step = runs["step"]
        cdef const uint32_t[::1] count = runs["count"]
        cdef const uint16_t[::1] ip_id = runs["ip_id"], segments = runs["segments"]
        cdef uint64_t i, n = ts.shape[0]
        self._room(k, n)
        for i in range(n):
            self.rows[k].row[i] = Kept(ts[i], step[i], 0, count[i], 0, 0, ip_id[i], segments[i])
        self.rows[k].count = n
        return 0

    cdef int _headers(self, int k, headers) except -1:
        cdef const int64_t[::1] ts
        cdef const uint32_t[::1] seq, ack, length, window, tsval, sack
        cdef const uint16_t[::1] flags, ip_id
        cdef uint64_t i, n = len(headers)
        cdef uint32_t options
        self._room(k, n)
        if n == 0:
            return 0
        ts = headers["ts"]
        seq, ack, length, window, tsval = (
            _coded("I", headers[name]) for name in ("seq", "ack", "len", "window", "tsval"))
        flags, ip_id = _coded("H", headers["tcp_flags"]), _coded("H", headers["ip_id"])
        sack = memoryview(headers["sack"]).cast("B").cast("I")
        for i in range(n):
            options = _options(flags[i], tsval[i] != 0, &sack[EDGES * i])
            self.rows[k].row[i] = Kept(ts[i], length[i], <uint64_t>seq[i] << 32 | ack[i], 1,
                                       <uint32_t>flags[i] << 16 ^ window[i], options, ip_id[i], 0)
        self.rows[k].count = n
        return 0

    cdef int _events_of(self, events) except -1:
        # The calls that sent something, and what TCP sent again.
        cdef const uint8_t[::1] kind = events["kind"], call = events["call"]
        cdef const uint32_t[::1] count = events["count"], tx = events["tx"], tx_step = events["tx_step"]
        cdef const int64_t[::1] size = events["bytes"]
        cdef uint64_t i, n = kind.shape[0]
        cdef int k
        self._room(CALLS, n)
        self._room(RESENT, n)
        for i in range(n):
            if kind[i] == K_CALL and call[i] == SEND and size[i] > 0:
                k = CALLS
            elif kind[i] == K_RETRANSMIT:
                k = RESENT
            else:
                continue
            self.rows[k].row[self.rows[k].count] = Kept(size[i], tx_step[i], 0, count[i], tx[i], 0, 0, 0)
            self.rows[k].count += 1
        return 0

    def collect(self, PacketStore store not None, uint32_t flow, sender, receiver, *, uint32_t mss, uint32_t headers,
                bint timestamps):
        """Add the packets that ``sender`` sent to ``store``, as those of ``flow``; whether it is known which were lost.

        ``sender``, ``receiver``: ends of a connection, with the columns `sent`, `headers_sent`, `events`, `received`,
        `headers_received`; ``receiver`` None: not recorded.  If its recording has no end, packets after the last one
        that arrived are not known to be lost.  ``mss``: bytes of a full segment; 0: not known.  ``headers``: bytes of
        the IP and TCP headers without options.  Raises ValueError for counts that cannot be.
        """
        cdef bint known, ended = receiver is not None and receiver.ended != 0
        cdef int64_t i
        cdef uint64_t derived = 0
        cdef uint32_t size
        cdef Packet* p
        self._runs(TX, sender.sent)
        self._headers(SENT, sender.headers_sent)
        self._room(RX, 0)
        self._room(RECEIVED, 0)
        if receiver is not None:
            self._runs(RX, receiver.received)
            self._headers(RECEIVED, receiver.headers_received)
        if mss == 0:
            mss = 1500 - headers - (TIMESTAMPS if timestamps else 0)
        mss = max(mss, <uint32_t>LEAST_MSS)
        known = self._expand(mss)
        if not self.own:
            self._events_of(sender.events)
            self._sizes(mss, timestamps)
        store.reserve(self.packets)
        with nogil:
            # The last times of a run may be later than those of the next one, by the threshold of Algorithm 1.
            for i in range(<int64_t>self.packets - 1, 0, -1):
                self.packet[i - 1].time = min(self.packet[i - 1].time, self.packet[i].time)
            for i in range(<int64_t>self.packets):
                p = &self.packet[i]
                size = max(p.size + headers + <uint32_t>WIRE, <uint32_t>LEAST_FRAME)
                store.add(p.time, size, flow, known and not p.arrived and (ended or <uint64_t>i < self.expected))
                derived += not p.known
        self.derived += derived
        return known

    cdef bint _expand(self, uint32_t mss) except -1:
        # Into self.packet: the segments sent; whether it is known which arrived.
        cdef uint64_t headers = self.rows[SENT].count, events = self._events(TX)
        cdef uint64_t came = self._events(RX), heard = self.rows[RECEIVED].count
        cdef bint theirs = False, six
        cdef HashTable table
        self.own = headers > 0 and (headers == events or events == 0)
        self.packets = self.names = 0
        theirs = heard > 0 and (heard == came or came == 0)
        six = events == 0 or self.rows[TX].row[0].segments == 0
        memset(&table, 0, sizeof(HashTable))
        table.words = 2
        memcpy(table.seed, self.seed, 16)
        try:
            self._sent(mss, six, &table)
            if self.packets == 0:
                return True
            if came + heard == 0:
                return False
            if six and not (self.own and theirs):
                return False
            self._received(mss, theirs, six, &table)
        finally:
            table_free(&table)
        self._match(theirs, six)
        return True

    cdef uint64_t _events(self, int k) except? -1:
        cdef uint64_t i, total = 0
        for i in range(self.rows[k].count):
            if not 0 < self.rows[k].row[i].count <= <uint64_t>MAX_EVENTS - total:
                raise ValueError(f"a run of {self.rows[k].row[i].count} events after {total}: the recording is damaged")
            total += self.rows[k].row[i].count
        return total

    cdef int _sent(self, uint32_t mss, bint six, HashTable* table) except -1:
        # Runs of packets as segments: time, name, and with headers the size.
        cdef uint64_t i, header = 0
        cdef uint32_t j, k, pieces
        cdef Kept* r
        cdef Kept* h = NULL
        cdef int of = TX if self.rows[TX].count else SENT
        for i in range(self.rows[of].count):
            r = &self.rows[of].row[i]
            for j in range(r.count):
                if self.own:
                    h = &self.rows[SENT].row[header]
                    header += 1
                pieces = _pieces(r, h, mss)
                if grow(<void**>&self.packet, &self.packet_room, self.packets + pieces, 4096, sizeof(Packet)) < 0:
                    raise MemoryError
                if self.packets + pieces > <uint64_t>MAX_EVENTS:
                    raise ValueError(f"more than {MAX_EVENTS:,} packets of one end: the recording is damaged")
                for k in range(pieces):
                    self._packet(r, h, j, k, mss, six, table)
        return 0

    cdef int _packet(self, const Kept* r, const Kept* h, uint32_t j, uint32_t k, uint32_t mss, bint six,
                     HashTable* table) except -1:
        cdef Packet* p = &self.packet[self.packets]
        cdef uint64_t[2] key
        self.packets += 1
        p.time = <int64_t>(<uint64_t>r.ts + <uint64_t>r.step * j)     # unsigned: a wrong step may overflow
        p.arrived, p.known, p.size = 0, 0, 0
        p.name = <uint32_t>(r.ip_id + j * r.segments + k) & 0xFFFF
        if h == NULL:
            return 0
        p.size, p.known = _piece(h, k, mss) + h.options, True
        if six:
            _name(h, k, mss, key)
            if table_reserve(table, 1) < 0:
                raise MemoryError
            p.name = table_insert(table, key)
        return 0

    cdef int _received(self, uint32_t mss, bint theirs, bint six, HashTable* table) except -1:
        cdef uint64_t i, header = 0
        cdef uint64_t[2] key
        cdef uint32_t j, k, pieces, name
        cdef Kept* r
        cdef Kept* h = NULL
        cdef int of = RX if self.rows[RX].count else RECEIVED
        for i in range(self.rows[of].count):
            r = &self.rows[of].row[i]
            for j in range(r.count):
                if theirs:
                    h = &self.rows[RECEIVED].row[header]
                    header += 1
                pieces = _pieces(r, h, mss)
                if (grow(<void**>&self.name, &self.name_room, self.names + pieces, 4096, 4) < 0
                        or grow(<void**>&self.length, &self.length_room, self.names + pieces, 4096, 4) < 0):
                    raise MemoryError
                if self.names + pieces > <uint64_t>MAX_EVENTS:
                    raise ValueError(f"more than {MAX_EVENTS:,} packets of one end: the recording is damaged")
                for k in range(pieces):
                    name = <uint32_t>(r.ip_id + j * r.segments + k) & 0xFFFF
                    if six:
                        _name(h, k, mss, key)
                        name = table_find(table, key)
                    self.name[self.names] = name
                    self.length[self.names] = _piece(h, k, mss) + h.options if h != NULL else 0
                    self.names += 1
        return 0

    cdef int _match(self, bint theirs, bint six) except -1:
        """Of the packets with a name, one that arrived is the nearest to the one expected next, each once."""
        cdef uint64_t i, at, low, high, expected = 0, best
        cdef uint32_t name, most = 0
        cdef uint64_t* start
        cdef uint32_t* place
        cdef Packet* p
        for i in range(self.packets):
            most = max(most, self.packet[i].name + 1)
        start = <uint64_t*>calloc(<size_t>most + 2, 8)
        place = <uint32_t*>malloc(self.packets * 4 + 4)
        if start == NULL or place == NULL:
            free(start)
            free(place)
            raise MemoryError
        with nogil:
            for i in range(self.packets):
                start[self.packet[i].name + 2] += 1
            for i in range(2, <uint64_t>most + 2):
                start[i] += start[i - 1]
            for i in range(self.packets):
                at = start[self.packet[i].name + 1]
                place[at] = <uint32_t>i
                start[self.packet[i].name + 1] += 1
            for i in range(self.names):
                name = self.name[i]
                if name >= most or start[name] == start[name + 1]:
                    continue
                low, high = start[name], start[name + 1]
                while low < high:                       # the first place that is not before the one expected
                    at = (low + high) // 2
                    if place[at] < expected:
                        low = at + 1
                    else:
                        high = at
                best = self._free_place(place, start[name], start[name + 1], low, expected)
                if best == self.packets or not six and (
                        best + REACH < expected or best > expected + REACH):
                    continue                            # the network made a copy
                p = &self.packet[best]
                p.arrived = 1
                if theirs and not p.known:
                    p.size, p.known = self.length[i], True
                expected = max(expected, best + 1)
        self.expected = expected
        free(start)
        free(place)
        return 0

    cdef uint64_t _free_place(self, const uint32_t* place, uint64_t first, uint64_t last, uint64_t from_,
                              uint64_t expected) noexcept nogil:
        # The nearest place that has not arrived; self.packets: none.  A few steps each way are enough.
        cdef uint64_t up = from_, down = from_, best = self.packets
        cdef int _step
        for _step in range(64):
            if up < last and not self.packet[place[up]].arrived:
                best = place[up]
                break
            up += up < last
        for _step in range(64):
            if down == first:
                break
            down -= 1
            if not self.packet[place[down]].arrived:
                if best == self.packets or expected - place[down] < best - expected:
                    best = place[down]
                break
        return best

    cdef int _sizes(self, uint32_t mss, bint timestamps) except -1:
        # Walk along the packets with the bytes that calls sent before each.
        cdef uint64_t events = self._events(TX), event = 0, i = 0, row, waiting = 0, sent = 0, its
        cdef uint64_t* given = <uint64_t*>calloc(events + 1, 8)
        cdef uint8_t* again = <uint8_t*>calloc(events + 1, 1)
        cdef uint32_t _j, _k
        cdef Kept* r
        cdef Packet* p
        try:
            if given == NULL or again == NULL:
                raise MemoryError
            self._calls(events, given, again)
            for row in range(self.rows[TX].count):
                r = &self.rows[TX].row[row]
                for _j in range(r.count):
                    waiting += given[event]
                    for _k in range(max(r.segments, <uint16_t>1)):
                        p = &self.packet[i]
                        i += 1
                        its = 0                         # a SYN
                        if again[event]:
                            its = min(<uint64_t>mss, sent)
                        elif event:
                            its = min(<uint64_t>mss, waiting)
                            if p.known:
                                its = min(<uint64_t>p.size, waiting)
                            waiting -= its
                            sent += its
                        if not p.known:
                            p.size = <uint32_t>its + (TIMESTAMPS if timestamps else 0)
                            if event == 0:
                                p.size = _syn(timestamps)
                    event += 1
        finally:
            free(given)
            free(again)
        return 0

    cdef int _calls(self, uint64_t events, uint64_t* given, uint8_t* again) except -1:
        # What calls sent before each packet, and which packets were sent again.
        cdef uint64_t i, at
        cdef uint32_t j
        cdef Kept* r
        self._events(CALLS)
        self._events(RESENT)
        for i in range(self.rows[CALLS].count):
            r = &self.rows[CALLS].row[i]
            for j in range(r.count):
                at = <uint64_t>r.tx + <uint64_t>r.step * j
                given[min(at, events)] += <uint64_t>r.ts
        for i in range(self.rows[RESENT].count):
            r = &self.rows[RESENT].row[i]
            for j in range(r.count):
                at = <uint64_t>r.tx + <uint64_t>r.step * j
                again[min(at, events)] = 1
        return 0


cdef _coded(code, values):
    # Headers that are written relative to others come back as arrays of wider numbers.
    return values if values.typecode == code else array(code, values)


cdef uint32_t _syn(bint timestamps) noexcept nogil:
    # Bytes of the options of a SYN: segment size, window scale, SACK permitted, timestamps.
    return 20 if timestamps else 12


cdef uint32_t _options(uint16_t flags, bint timestamps, const uint32_t* sack) noexcept nogil:
    cdef uint32_t edges = 0, i
    if flags & TCP_SYN:
        return _syn(timestamps)
    for i in range(EDGES):
        if sack[i]:
            edges = (i | 1) + 1         # blocks have two edges
    return (TIMESTAMPS if timestamps else 0) + (4 + 4 * edges if edges else 0)


cdef uint32_t _pieces(const Kept* r, const Kept* h, uint32_t mss) noexcept nogil:
    # Into how many segments a packet is split.
    if r.segments > 1 and r != h:
        return r.segments
    return <uint32_t>max(<int64_t>1, (h.step + mss - 1) // mss) if h != NULL else 1


cdef uint32_t _piece(const Kept* h, uint32_t k, uint32_t mss) noexcept nogil:
    # Payload of a segment of a packet.
    cdef int64_t left = h.step - <int64_t>k * mss
    return <uint32_t>max(<int64_t>0, min(left, <int64_t>mss))


cdef void _name(const Kept* h, uint32_t k, uint32_t mss, uint64_t* key) noexcept nogil:
    key[0] = h.identity + (<uint64_t>k * mss << 32)
    key[1] = <uint64_t>_piece(h, k, mss) << 32 | (h.tx if h.step == 0 else 0)
