"""Flow records: packets in, one row of the schema `conn` for each flow that ended.  Manual: confluo-flows(1)."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from c_conversation cimport KeyColumns, KeyedRow
from c_flow_clock cimport NEVER, FlowClock, apart, clock_see
from c_flow_entry cimport (
    ACK, ANSWER_ACKED, HIGH_END, OVER, SYN, SYN_ANSWERED, TCP, FlowEntry, FlowOrigin, FlowPacket, FlowSide)
from c_flow_key cimport flow_key
from c_flow_segments cimport add_packet, is_new_connection, restart_counters
from c_flow_state cimport L_FLIPPED, LETTERS, MAX_HISTORY, conn_state, is_over, is_reset
from c_flow_store cimport (
    ENDED, NO_FLOW, OPEN, FlowStore, flow_at, flow_hash, store_add, store_find, store_free, store_init,
    store_prefetch_entry, store_prefetch_neighbours, store_prefetch_slot, store_remove, store_touch)
from c_ipv6_hash cimport fold6
from c_block cimport BLOCK_ROWS
from confluo_tools.core.block.block cimport Block, Layout, Picks, Staging, zero_bytes
from confluo_tools.core.block.result_table cimport radix
cimport cython
import os

# Columns of packets; those of NEEDED must be there, and `len` if there is no `ip_len`.
NEEDED = ("ts", "proto", "src_ip", "dst_ip", "src_port", "dst_port")
USED = (*NEEDED, "ip_version", "src_ip6", "dst_ip6", "ip_len", "payload_len", "tcp_seq", "tcp_ack", "tcp_flags",
        "tcp_window", "icmp_type", "icmp_code", "frag_offset", "vlan", "tunnel", "vni")
USED_WIDTHS = (8, 1, 4, 4, 2, 2, 1, 16, 16, 4, 4, 4, 4, 2, 2, 1, 1, 2, 2, 1, 4)
# Columns of the result.
RESULT = ("ts", "last_ts", "duration", "ip_version", "proto", "src_ip", "src_ip6", "dst_ip", "dst_ip6", "src_port",
          "dst_port", "conn_state", "history", "reason", "src_packets", "dst_packets", "src_bytes", "dst_bytes",
          "src_payload", "dst_payload", "src_flags", "dst_flags", "syn_rtt", "ack_rtt", "src_retx", "dst_retx",
          "src_ooo", "dst_ooo", "src_zero_windows", "dst_zero_windows", "src_resets", "dst_resets", "vlan", "tunnel",
          "vni")
RESULT_WIDTHS = (8, 8, 8, 1, 1, 4, 16, 4, 16, 2, 2, 1, 16, 1, 8, 8, 8, 8, 8, 8, 2, 2, 8, 8, 4, 4, 4, 4, 2, 2, 1, 1, 2,
                 1, 4)
ENTRY_BYTES = sizeof(FlowEntry)

cdef enum:
    USES = 21
    RESULTS = 35
    BATCH = 32                  # rows with flows prefetched together
    OUT_ROWS = 4096             # of a result block
    ROOM = 3                    # rows that one packet may end
    MAX_FLOWS = 1 << 26

cdef enum PacketColumn:         # in the order of USED
    P_TS
    P_PROTO
    P_SRC
    P_DST
    P_SPORT
    P_DPORT
    P_VERSION
    P_SRC6
    P_DST6
    P_BYTES
    P_SIZE
    P_SEQ
    P_ACK
    P_FLAGS
    P_WINDOW
    P_TYPE
    P_CODE
    P_FRAG
    P_VLAN
    P_TUNNEL
    P_VNI

cdef enum Reason:               # values of the field reason
    BY_FIN = 1
    BY_RST
    BY_IDLE
    BY_ACTIVE
    BY_END
    BY_EVICTION
    BY_SYN

cdef struct PacketColumns:      # of one block; zeros for those that are missing
    const int64_t* ts
    const uint8_t* proto
    const uint8_t* version      # NULL: the packets are IPv4
    const uint32_t* source
    const uint8_t* size
    const uint32_t* bytes
    const uint32_t* seq
    const uint32_t* ack
    const uint16_t* flags
    const uint16_t* window
    const uint8_t* type
    const uint8_t* code
    const uint16_t* frag
    const uint16_t* vlan
    const uint8_t* tunnel
    const uint32_t* vni
    bint typed                  # ICMP types are there

cdef extern from *:
    """
    static const char flow_letters[] = "?SHADFRTWIQshadfrtwiq^";
    static const long long flow_linger = 5000000000ll;
    """
    const char* flow_letters
    const int64_t LINGER_NS "flow_linger"       # a connection that ended waits for its last packets


@cython.final
cdef class ConnTable:
    """Flows of packets (``layout``) as rows of ``result`` (the schema conn), at most ``max_flows`` at once.

    A flow ends after ``idle`` ns without a packet, a connection that is over after 5 s of them at most; a flow that is
    older than ``active`` ns gives a row and goes on.  0: never.  A full table gives up the connection that is over, or
    else the flow, that had no packet for the longest time, and counts it in ``evicted``.
    Times are those of the packets.  Raises KeyError when one of NEEDED is missing, ValueError for another width.
    """

    cdef readonly Layout layout
    cdef readonly Layout result
    cdef readonly uint64_t packets          # with an IP header
    cdef readonly uint64_t skipped          # without one
    cdef readonly uint64_t evicted
    cdef FlowStore flows
    cdef FlowClock clock
    cdef KeyColumns ends
    cdef Staging out
    cdef int[USES] at                       # columns of the packets; -1: missing
    cdef bint narrow                        # payload_len has 16 bits
    cdef const uint8_t* zeros
    cdef int64_t idle, active, linger

    def __cinit__(self, Layout layout not None, Layout result not None, uint32_t max_flows, int64_t idle=0,
                  int64_t active=0):
        cdef uint64_t seed[2]
        cdef int i, k
        if not 1 <= max_flows <= MAX_FLOWS or idle < 0 or active < 0:
            raise ValueError(f"{max_flows} flows, timeouts {idle} and {active} ns")
        for i in range(USES):
            k = layout.get(USED[i])
            if k < 0 and i == P_BYTES:
                k = layout.get("len")
            if k < 0 and (i < len(NEEDED) or i == P_BYTES):
                raise KeyError(USED[i])
            if i == P_SIZE and k >= 0 and layout.column[k].width == 2:
                self.narrow = True
            elif k >= 0 and layout.column[k].width != USED_WIDTHS[i]:
                raise ValueError(f"{USED[i]} has another type")
            self.at[i] = k
        if result.names != RESULT or any([result.column[i].width != RESULT_WIDTHS[i] for i in range(RESULTS)]):
            raise ValueError("the result has other columns")
        self.layout, self.result = layout, result
        self.ends.src, self.ends.dst = self.at[<int>P_SRC], self.at[<int>P_DST]
        self.ends.sport, self.ends.dport = self.at[<int>P_SPORT], self.at[<int>P_DPORT]
        self.ends.version = self.at[<int>P_VERSION]
        self.ends.src6, self.ends.dst6 = self.at[<int>P_SRC6], self.at[<int>P_DST6]
        self.idle, self.active, self.linger = idle, active, min(idle, LINGER_NS)
        self.clock.now = self.clock.latest = self.clock.other = NEVER
        secret = os.urandom(16)
        seed[0] = int.from_bytes(secret[:8], "little")
        seed[1] = int.from_bytes(secret[8:], "little")
        if not store_init(&self.flows, max_flows, seed):
            raise MemoryError
        self.zeros = zero_bytes(4 * BLOCK_ROWS)
        self.out = Staging(result, OUT_ROWS)

    def __dealloc__(self):
        store_free(&self.flows)

    @property
    def count(self):
        """Flows in memory."""
        return self.flows.count

    @property
    def now(self):
        """The time by which flows end, in ns; None before the first packet."""
        return None if self.clock.now == NEVER else self.clock.now

    @property
    def late(self):
        """Packets that were earlier than one before."""
        return self.clock.late

    def process(self, Block block not None, Picks picks=None):
        """Process the picked rows (None: all), in order; yields full blocks of rows."""
        cdef const uint16_t* rows = picks.as_list() if picks is not None else NULL
        cdef int64_t at = 0
        cdef int64_t n = block.rows if picks is None else picks.n
        if block.layout is not self.layout:
            raise ValueError("the block has another layout")
        if picks is not None and picks.rows > block.rows:
            raise ValueError("the picks are of another block")
        while at < n:
            with nogil:
                at = self.run(block, rows, <uint32_t>n, <uint32_t>at)
            if at < 0:
                raise MemoryError(f"{self.count} flows")
            if at < n:
                yield self.take()

    def advance(self, int64_t now):
        """End flows by the clock; yields full blocks of rows.  For an input that is silent."""
        cdef bint more = True
        if self.clock.now == NEVER or now <= self.clock.now:
            return
        self.clock.now = now
        while more:
            with nogil:
                more = not self.expire()
            if more:
                yield self.take()

    def finish(self):
        """End all flows, the earliest first; yields blocks of rows, also the last one."""
        cdef uint32_t n = self.flows.count, i = 0, number
        cdef FlowEntry* e
        cdef uint64_t* key = <uint64_t*>malloc(max(n, <uint32_t>1) * <size_t>24)
        cdef uint32_t* numbers
        if key == NULL:
            raise MemoryError(f"{n} flows")
        numbers = <uint32_t*>(key + 2 * <size_t>n)
        try:
            with nogil:
                for which in range(2):
                    number = self.flows.lists[which].first
                    while number != NO_FLOW:
                        key[i] = <uint64_t>flow_at(&self.flows, number).first ^ <uint64_t>1 << 63
                        numbers[i] = number
                        i += 1
                        number = self.flows.links[number].after
                radix(key, key + n, numbers, numbers + n, n)
            i = 0
            while i < n:
                with nogil:
                    while i < n and self.out.rows < OUT_ROWS:
                        e = flow_at(&self.flows, numbers[i])
                        self.emit(numbers[i], self.ended(e, BY_END))
                        store_remove(&self.flows, numbers[i])
                        i += 1
                if self.out.rows == OUT_ROWS:
                    yield self.take()
        finally:
            free(key)
        if self.out.rows:
            yield self.take()

    def take(self):
        """The rows so far, as a block; the next ones go into a new one."""
        cdef Staging full = self.out
        self.out = Staging(self.result, OUT_ROWS)
        return full

    @property
    def waiting(self):
        """Rows for `take`."""
        return self.out.rows

    cdef int64_t run(self, Block block, const uint16_t* rows, uint32_t n, uint32_t at) noexcept nogil:
        """Process rows from number ``at`` on; returns where it stopped because the result is full, -1: no memory.

        What a packet needs is read from memory ahead of it, in steps that depend on each other: its slot, its flow,
        the neighbours of the flow in its list.
        """
        cdef KeyedRow batch[BATCH]
        cdef uint32_t flow[BATCH]           # what the slot says
        cdef PacketColumns c
        cdef FlowClock before
        cdef uint32_t m, i
        self.columns(block, &c)
        while at < n:
            m = min(<uint32_t>BATCH, n - at)
            for i in range(m):
                self.keyed(block, &c, rows[at + i] if rows != NULL else at + i, &batch[i])
            for i in range(m):
                flow[i] = store_prefetch_entry(&self.flows, batch[i].hash) if batch[i].side >= 0 else NO_FLOW
            for i in range(m):
                store_prefetch_neighbours(&self.flows, flow[i])
            for i in range(m):
                if batch[i].side < 0:
                    self.skipped += 1
                    continue
                before = self.clock
                clock_see(&self.clock, c.ts[batch[i].row])
                if self.out.rows + ROOM > OUT_ROWS or not self.expire():
                    self.clock = before         # this packet comes again
                    return at + i
                if not self.one(&c, &batch[i]):
                    return -1
            at += m
        return at

    cdef void keyed(self, Block block, const PacketColumns* c, uint32_t row, KeyedRow* b) noexcept nogil:
        """The key of a packet; ``side`` is -1 if it has no IP header."""
        cdef bint typed = c.typed and not c.frag[row]
        b.row, b.side = row, -1
        if c.version[row] != 0 if c.version != NULL else c.proto[row] != 0 or c.source[row] != 0:
            flow_key(block.col, &self.ends, c.proto[row], c.type[row] if typed else -1, c.code[row], b)
            b.hash = flow_hash(&self.flows, b.key)
            store_prefetch_slot(&self.flows, b.hash)

    cdef void columns(self, Block block, PacketColumns* c) noexcept nogil:
        cdef const uint8_t* col[USES]
        cdef int i
        for i in range(USES):
            col[i] = block.col[self.at[i]] if self.at[i] >= 0 else self.zeros
        c.ts, c.proto, c.source = <const int64_t*>col[<int>P_TS], col[<int>P_PROTO], <const uint32_t*>col[<int>P_SRC]
        c.version = col[<int>P_VERSION] if self.at[<int>P_VERSION] >= 0 else NULL
        c.size, c.bytes = col[<int>P_SIZE], <const uint32_t*>col[<int>P_BYTES]
        c.seq, c.ack = <const uint32_t*>col[<int>P_SEQ], <const uint32_t*>col[<int>P_ACK]
        c.flags, c.window = <const uint16_t*>col[<int>P_FLAGS], <const uint16_t*>col[<int>P_WINDOW]
        c.type, c.code, c.frag = col[<int>P_TYPE], col[<int>P_CODE], <const uint16_t*>col[<int>P_FRAG]
        c.vlan, c.tunnel = <const uint16_t*>col[<int>P_VLAN], col[<int>P_TUNNEL]
        c.vni = <const uint32_t*>col[<int>P_VNI]
        c.typed = self.at[<int>P_TYPE] >= 0 and self.at[<int>P_CODE] >= 0

    cdef bint expire(self) noexcept nogil:
        """End the flows that had no packet for too long; False: the result is full."""
        cdef uint32_t number
        cdef FlowEntry* e
        cdef int which
        if self.idle == 0:
            return True
        for which in range(2):
            while True:
                number = self.flows.lists[which].first
                if number == NO_FLOW:
                    break
                e = flow_at(&self.flows, number)
                if not apart(e.last, self.clock.now, self.linger if which == ENDED else self.idle):
                    break
                if self.out.rows + ROOM > OUT_ROWS:
                    return False
                self.end(number, BY_IDLE)
        return True

    cdef int ended(self, const FlowEntry* e, int otherwise) noexcept nogil:
        """The reason of a connection that is over, else ``otherwise``."""
        if not e.bits & OVER:
            return otherwise
        return BY_RST if is_reset(e) else BY_FIN

    cdef void end(self, uint32_t number, int reason) noexcept nogil:
        cdef FlowEntry* e = flow_at(&self.flows, number)
        self.emit(number, reason if reason == BY_EVICTION else self.ended(e, reason))
        store_remove(&self.flows, number)

    cdef void fill(self, const PacketColumns* c, const KeyedRow* b, FlowPacket* p) noexcept nogil:
        """The packet of a row."""
        cdef uint32_t r = b.row
        p.ts = c.ts[r]
        p.side = b.side
        p.proto = c.proto[r]
        p.bytes = c.bytes[r]
        p.size = (<const uint16_t*>c.size)[r] if self.narrow else (<const uint32_t*>c.size)[r]
        p.flags = c.flags[r] if p.proto == TCP and not c.frag[r] else 0
        p.seq, p.ack, p.window = c.seq[r], c.ack[r], c.window[r]

    cdef bint one(self, const PacketColumns* c, KeyedRow* b) noexcept nogil:
        """Process one packet; False: no memory."""
        cdef FlowPacket p
        cdef uint32_t number = store_find(&self.flows, b.key, b.hash)
        cdef FlowEntry* e
        cdef int who
        self.fill(c, b, &p)
        self.packets += 1
        if number != NO_FLOW:
            e = flow_at(&self.flows, number)
            who = p.side ^ (e.bits & HIGH_END)
            if self.idle and apart(e.last, p.ts, self.linger if e.bits & OVER else self.idle):
                self.end(number, BY_IDLE)
                number = NO_FLOW
            elif p.proto == TCP and is_new_connection(&e.side[who], &p):
                self.end(number, BY_SYN)
                number = NO_FLOW
            elif self.active and p.ts > e.first and apart(e.first, p.ts, self.active - 1):
                self.emit(number, BY_ACTIVE)
                restart_counters(e, p.ts)
        if number == NO_FLOW:
            if self.flows.count == self.flows.max_count:
                self.evict()
            number = store_add(&self.flows, b.key, b.hash)
            if number == NO_FLOW:
                return False
            e = flow_at(&self.flows, number)
            self.begin(c, b.row, number, &p)
        who = p.side ^ (e.bits & HIGH_END)
        add_packet(e, who, &p)
        store_touch(&self.flows, number, p.proto == TCP and is_over(e))
        return True

    cdef void evict(self) noexcept nogil:
        cdef uint32_t number = self.flows.lists[<int>ENDED].first
        if number == NO_FLOW:
            number = self.flows.lists[<int>OPEN].first
        self.end(number, BY_EVICTION)
        self.evicted += 1

    cdef void begin(self, const PacketColumns* c, uint32_t r, uint32_t number, const FlowPacket* p) noexcept nogil:
        """A new flow: its first packet decides which end is the originator."""
        cdef FlowEntry* e = flow_at(&self.flows, number)
        cdef FlowOrigin* origin = &self.flows.origins[number]
        cdef int originator = p.side
        e.first = e.last = p.ts
        origin.vlan, origin.tunnel, origin.vni = c.vlan[r], c.tunnel[r], c.vni[r]
        if p.flags & (SYN | ACK) == SYN | ACK:
            originator = 1 - originator
            e.history = L_FLIPPED
        if originator:
            e.bits |= HIGH_END

    cdef void emit(self, uint32_t number, int reason) noexcept nogil:
        """A row of the result."""
        cdef const FlowEntry* e = flow_at(&self.flows, number)
        cdef const FlowOrigin* origin = &self.flows.origins[number]
        cdef uint8_t** col = self.out.out
        cdef uint32_t row = self.out.rows
        cdef int high = e.bits & HIGH_END, who
        cdef const FlowSide* s
        (<int64_t*>col[0])[row] = e.first
        (<int64_t*>col[1])[row] = e.last
        (<uint64_t*>col[2])[row] = <uint64_t>e.last - <uint64_t>e.first
        col[3][row] = e.version
        col[4][row] = e.proto
        self.address(e, 2 * high, 5, row)
        self.address(e, 2 - 2 * high, 7, row)
        (<uint16_t*>col[9])[row] = <uint16_t>(e.ports if high else e.ports >> 16)
        (<uint16_t*>col[10])[row] = <uint16_t>(e.ports >> 16 if high else e.ports)
        col[11][row] = <uint8_t>conn_state(e, e.proto)
        self.letters(e.history, col[12] + 16 * <size_t>row)
        col[13][row] = <uint8_t>reason
        for who in range(2):
            s = &e.side[who]
            (<uint64_t*>col[14 + who])[row] = s.packets
            (<uint64_t*>col[16 + who])[row] = s.bytes
            (<uint64_t*>col[18 + who])[row] = s.payload
            (<uint16_t*>col[20 + who])[row] = s.flags
            (<uint32_t*>col[24 + who])[row] = s.again
            (<uint32_t*>col[26 + who])[row] = s.late
            (<uint16_t*>col[28 + who])[row] = s.zero_windows
            col[30 + who][row] = s.resets
        (<int64_t*>col[22])[row] = e.syn_rtt if e.bits & SYN_ANSWERED else 0
        (<int64_t*>col[23])[row] = e.ack_rtt if e.bits & ANSWER_ACKED else 0
        (<uint16_t*>col[32])[row] = origin.vlan
        col[33][row] = origin.tunnel
        (<uint32_t*>col[34])[row] = origin.vni
        self.out.set_rows(row + 1)

    cdef void address(self, const FlowEntry* e, int word, int column, uint32_t row) noexcept nogil:
        """The address in these two words of the key."""
        cdef const uint8_t* bytes = <const uint8_t*>&e.key[word]
        if e.version == 6 and self.ends.src6 >= 0 and self.ends.dst6 >= 0:
            (<uint32_t*>self.out.out[column])[row] = fold6(bytes)
            memcpy(self.out.out[column + 1] + 16 * <size_t>row, bytes, 16)
        else:
            (<uint32_t*>self.out.out[column])[row] = <uint32_t>e.key[word]

    cdef void letters(self, uint64_t history, uint8_t* text) noexcept nogil:
        cdef uint8_t reverse[MAX_HISTORY]
        cdef int n = 0, i
        while history:
            reverse[n] = <uint8_t>flow_letters[history % LETTERS]
            history //= LETTERS
            n += 1
        for i in range(n):
            text[i] = reverse[n - 1 - i]
