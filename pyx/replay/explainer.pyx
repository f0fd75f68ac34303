"""TCP connections explained: what each gap, retransmission and late acknowledgement was.  confluo-replay-explain(1)."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from c_bits cimport prefetch
from c_conversation cimport KeyedRow
from c_explain_causes cimport Tally, judge_all, keep_slowest, tally
from c_explain_rows cimport end_flow, start_flow
from c_explain_rules cimport segment
from c_explain_state cimport (
    EDGES, LABELS, M_CALLS, M_HANDSHAKE, M_PROBES, M_SACK, M_TIMERS, Flow, FlowRow, MessageRow, Packet, Result, Row,
    Side)
from c_hash_table cimport lru_find, lru_free, lru_hash, lru_init, lru_insert, lru_peek, lru_value
from c_ipv6_hash cimport fold6
from confluo_tools.core.block.block cimport Block, Layout
from confluo_tools.core.block.result_table cimport Rows
from confluo_tools.core.packets.tcp_columns cimport (
    N_ACK, N_CWND, N_EVIDENCE, N_FLAGS, N_HELD, N_ID, N_MSS, N_OPTS, N_QUEUED, N_SACK, N_SCALE, N_SENT_BY, N_SEQ, N_TS,
    N_TSECR, N_TSVAL, N_UNSENT, N_WINDOW, OPT_SACK_OK, OPT_WSCALE, TCP, USES, TcpColumns, gather, optional, payload)
cimport cython
import os

FOREVER = (1 << 63) - 1

cdef enum:
    BATCH = 32
    MAX_SEGMENTS = 1 << 24
    TAPS = 2


@cython.final
cdef class Explainer:
    """Feed blocks of packets in order of time, then read `rows` and `messages`.

    ``layout``: of the blocks.  ``gap``: shorter waits have no row, ns.  ``taps``: 2 if packets come from both ends;
    `place` must then say at which end each tap is.  At most ``max_flows`` connections are followed at a time.
    ``chosen``: explain only the connections given to `choose`.
    Raises KeyError and ValueError as TcpColumns.
    """

    def __cinit__(self, Layout layout not None, int64_t gap=1_000_000, int taps=1, uint32_t max_flows=1 << 16,
                  uint64_t segments=MAX_SEGMENTS):
        cdef int i
        cdef uint64_t seed[2]
        if not 1 <= max_flows <= 1 << 24 or not 1 <= taps <= TAPS or gap < 0:
            raise ValueError(f"{max_flows} flows, {taps} taps, gap {gap}")
        self.layout, self.taps = layout, taps
        self.columns = TcpColumns(layout)
        self.result.gap, self.result.max_segments = gap, segments
        self.result.missing = M_TIMERS | M_CALLS | M_PROBES
        for i in range(<int>N_EVIDENCE, <int>USES):
            if (self.columns.at[i] < 0) != (self.columns.at[<int>N_EVIDENCE] < 0):
                raise ValueError("the columns of recordings are not complete")
        if self.columns.at[<int>N_SACK] < 0:
            self.result.missing |= M_SACK
        if self.columns.at[<int>N_OPTS] < 0 or self.columns.at[<int>N_SCALE] < 0:
            self.result.missing |= M_HANDSHAKE
        secret = os.urandom(16)
        seed[0] = int.from_bytes(secret[:8], "little")
        seed[1] = int.from_bytes(secret[8:], "little")
        if not lru_init(&self.flows, 5, sizeof(Flow), max_flows, seed):
            raise MemoryError
        if not lru_init(&self.only, 5, 1, 1 << 24, seed):
            raise MemoryError
        if not lru_init(&self.places, 5, TAPS, max(max_flows, <uint32_t>1 << 20), seed):
            raise MemoryError
        self.flows.drop, self.flows.context = _drop, &self.result

    def __dealloc__(self):
        lru_free(&self.flows)
        lru_free(&self.only)
        lru_free(&self.places)
        free(self.result.rows)
        free(self.result.messages)
        free(self.result.flows)

    @property
    def count(self):
        """Connections seen."""
        return self.result.flow_count

    @property
    def labels(self):
        """Labels so far."""
        return self.result.count

    @property
    def messages_found(self):
        """Messages of connections that have ended."""
        return self.result.message_count

    @property
    def lacking(self):
        """Bits of evidence that some label lacks; after `finish`."""
        return self.result.lacking

    @property
    def evicted(self):
        """Connections that were ended early because there were too many."""
        return self.flows.evicted

    @staticmethod
    def key(bytes source not None, int sport, bytes target not None, int dport):
        """(key of `place` for a connection, side of the source).  Addresses of 4 or 16 bytes, either order."""
        cdef uint64_t key[5]
        version = 6 if len(source) == 16 else 4
        if len(source) != len(target) or len(source) not in (4, 16):
            raise ValueError("the addresses have different lengths")
        ends = []
        for address, port in ((source, sport), (target, dport)):
            if version == 6:
                words = (int.from_bytes(address[:8], "little"), int.from_bytes(address[8:], "little"))
            else:
                words = (int.from_bytes(address, "big"), 0)
            ends.append((*words, port))
        side = int(ends[0] > ends[1])
        ends.sort()
        for i in range(2):
            key[2 * i], key[2 * i + 1] = ends[i][0], ends[i][1]
        key[4] = <uint64_t>(ends[0][2] << 16 | ends[1][2]) | <uint64_t>version << 32
        return (<const uint8_t*>key)[:sizeof(key)], side

    def choose(self, bytes source not None, int sport, bytes target not None, int dport):
        """Explain only this connection, and others given in this way."""
        cdef uint64_t key[5]
        cdef bint new = False
        cdef bytes text = Explainer.key(source, sport, target, dport)[0]
        memcpy(key, <const uint8_t*>text, sizeof(key))
        if lru_insert(&self.only, key, lru_hash(&self.only, key), &new) == NULL:
            raise MemoryError
        self.chosen = True

    def feed(self, Block block not None, uint32_t start=0, int64_t until=FOREVER, int tap=0):
        """Read rows from ``start`` on up to the time ``until``; returns the number of the first row not read.

        The packets of a tap are numbered from 1, all rows of its blocks counted.
        """
        cdef KeyedRow batch[BATCH]
        cdef uint32_t row = start, n, i
        if block.layout is not self.layout or not 0 <= tap < self.taps:
            raise ValueError("the block has another layout")
        with nogil:
            while row < block.rows and not self.result.failed:
                n = gather(self.columns, block.col, block.rows, &row, until, &self.flows, batch, BATCH)
                self._fetch(block, batch, n)
                for i in range(n):
                    self._one(block, &batch[i], tap)
                if n < BATCH:
                    break               # at the end, or later than `until`
        if row >= block.rows:
            self.numbers[tap] += block.rows
        if self.result.failed:
            raise MemoryError(f"{self.result.count} labels")
        return row

    cdef void _fetch(self, Block block, const KeyedRow* batch, uint32_t n) noexcept nogil:
        # Prefetch what the rules need of each connection, then the segments that they look at.
        cdef Flow* flows[BATCH]
        cdef Side* me
        cdef Side* you
        cdef uint32_t i
        for i in range(n):
            flows[i] = <Flow*>lru_peek(&self.flows, batch[i].hash)
            if flows[i] == NULL:
                continue
            me, you = &flows[i].side[batch[i].side], &flows[i].side[1 - batch[i].side]
            prefetch(flows[i])
            prefetch(&me.pending_ts)
            prefetch(you)
            prefetch(&you.in_ts)
            prefetch(me)
            if payload(self.columns, block.col, batch[i].row):
                prefetch(&me.in_ts)
                prefetch(&me.delivered)
                prefetch(&you.pending_ts)
            else:
                prefetch(&you.delivered)
                prefetch(&you.duplicates)
                prefetch(&you.sacked)
        for i in range(n):
            if flows[i] == NULL:
                continue
            me, you = &flows[i].side[batch[i].side], &flows[i].side[1 - batch[i].side]
            if me.count:
                prefetch(me.list + me.head + me.count)
            if you.count:
                prefetch(you.list + you.head)

    cdef void _one(self, Block block, KeyedRow* b, int tap) noexcept nogil:
        cdef uint32_t r = b.row
        cdef bint new = False, sent = True, received = True
        cdef Packet p
        cdef const int* at = self.columns.at
        cdef uint8_t* near
        cdef const uint8_t* opts = optional(self.columns, block.col, N_OPTS)
        cdef const uint8_t* column
        cdef const uint32_t* edges
        cdef Flow* f
        if self.chosen and lru_find(&self.only, b.key, b.hash) == NULL:
            return
        f = <Flow*>lru_insert(&self.flows, b.key, b.hash, &new)
        self.packets += 1
        if f == NULL:
            self.result.failed = True
            return
        if new:
            memcpy(f.key, b.key, sizeof(f.key))
            start_flow(f, &self.result)
            if self.taps > 1:
                near = <uint8_t*>lru_insert(&self.places, b.key, b.hash, &new)
                if near != NULL:
                    f.near[0], f.near[1] = near[0], near[1]
        if self.taps > 1:
            if f.near[0] and f.near[1] and f.near[0] != f.near[1]:
                sent = f.near[tap] == b.side + 1
                received = not sent
            elif tap:
                return
        p.number = self.numbers[tap] + r + 1
        p.ts = (<const int64_t*>block.col[at[<int>N_TS]])[r]
        p.seq = (<const uint32_t*>block.col[at[<int>N_SEQ]])[r]
        p.ack = (<const uint32_t*>block.col[at[<int>N_ACK]])[r]
        p.flags = (<const uint16_t*>block.col[at[<int>N_FLAGS]])[r]
        p.window = (<const uint16_t*>block.col[at[<int>N_WINDOW]])[r]
        p.size = payload(self.columns, block.col, r)
        p.scale, p.mss, p.sack_ok = -1, 0, False
        column = optional(self.columns, block.col, N_SCALE)
        if column != NULL and opts != NULL and opts[r] & OPT_WSCALE:
            p.scale = column[r]
        if opts != NULL and opts[r] & OPT_SACK_OK:
            p.sack_ok = True
        column = optional(self.columns, block.col, N_MSS)
        if column != NULL:
            p.mss = (<const uint16_t*>column)[r]
        column = optional(self.columns, block.col, N_ID)
        p.ip_id = (<const uint16_t*>column)[r] if column != NULL else 0
        column = optional(self.columns, block.col, N_TSVAL)
        p.tsval = (<const uint32_t*>column)[r] if column != NULL else 0
        column = optional(self.columns, block.col, N_TSECR)
        p.tsecr = (<const uint32_t*>column)[r] if column != NULL else 0
        p.evidence = p.sent_by = p.held = 0
        p.cwnd, p.unsent, p.queued = 0, 0, 0
        if at[<int>N_EVIDENCE] >= 0:
            self._evidence(block, r, &p)
        p.edges = 0
        edges = <const uint32_t*>optional(self.columns, block.col, N_SACK)
        if edges != NULL:
            edges += <size_t>r * EDGES
            while p.edges < EDGES and (edges[p.edges] or edges[p.edges + 1]):
                p.sack[p.edges], p.sack[p.edges + 1] = edges[p.edges], edges[p.edges + 1]
                p.edges += 2
        segment(f, &p, b.side, sent, received, &self.result)

    cdef void _evidence(self, Block block, uint32_t r, Packet* p) noexcept nogil:
        cdef const int* at = self.columns.at
        p.evidence = block.col[at[<int>N_EVIDENCE]][r]
        p.sent_by, p.held = block.col[at[<int>N_SENT_BY]][r], block.col[at[<int>N_HELD]][r]
        p.queued = (<const int64_t*>block.col[at[<int>N_QUEUED]])[r]
        p.unsent = (<const uint32_t*>block.col[at[<int>N_UNSENT]])[r]
        p.cwnd = (<const uint32_t*>block.col[at[<int>N_CWND]])[r]

    def finish(self):
        """End all connections.  No block may come after this."""
        cdef uint32_t i
        with nogil:
            for i in range(self.flows.index.count):
                end_flow(<Flow*>lru_value(&self.flows, i), &self.result)
            if not self.result.failed and not judge_all(&self.result):
                self.result.failed = True
        if self.result.failed:
            raise MemoryError(f"{self.result.count} labels")

    def distances(self):
        """{key: (side at which the tap is, from the handshake, or -1, shortest round trip of each side's data)}."""
        cdef uint32_t i
        cdef Flow* f
        found = {}
        for i in range(self.flows.index.count):
            f = <Flow*>lru_value(&self.flows, i)
            side = 0 if f.side[0].here else 1 if f.side[1].here else -1
            found[(<const uint8_t*>f.key)[:40]] = (side, f.side[0].min_rtt, f.side[1].min_rtt)
        return found

    def place(self, int tap, dict ends not None):
        """At which end a tap is: {`key` of a connection: side}."""
        cdef uint64_t key[5]
        cdef bint new = False
        cdef uint8_t* near
        cdef bytes text
        for name, side in ends.items():
            text = name
            if len(text) != sizeof(key):
                raise ValueError(name)
            memcpy(key, <const uint8_t*>text, sizeof(key))
            near = <uint8_t*>lru_insert(&self.places, key, lru_hash(&self.places, key), &new)
            if near == NULL:
                raise MemoryError
            near[tap] = <uint8_t>(<int>side + 1)

    def flow_facts(self):
        """By number of the flow: ((min round trip, best rate, DSACKs received, zero windows sent) of each side)."""
        cdef uint64_t i
        cdef FlowRow* f
        found = []
        for i in range(self.result.flow_count):
            f = self.result.flows + i
            found.append(tuple([(f.min_rtt[s], f.rate[s], f.dsacks[s], f.zero_windows[s]) for s in range(2)]))
        return found

    def keep_slowest(self, double share):
        """Forget all messages but this share, the slowest, at least one, and their labels; after `finish`."""
        cdef bint done
        with nogil:
            done = keep_slowest(&self.result, share)
        if not done:
            raise MemoryError(f"{self.result.message_count} messages")

    def causes(self, tuple limits not None):
        """Sums by size class and cause; after `finish`.

        ``limits``: largest sizes of the classes 1, 2, ... in ascending order, bytes; the last class has no limit.
        Class 0 are labels of no message; without limits, everything.  Each (class, cause, messages with this main
        cause, labels, time above the ideal in ns, number of the label with the longest wait or -1), without those
        that have nothing.
        """
        cdef int64_t[16] sizes
        cdef int classes = <int>len(limits) + 2 if limits else 1, i
        cdef Tally* sums
        cdef Tally* one
        if len(limits) > 16:
            raise ValueError(limits)
        for i in range(len(limits)):
            sizes[i] = limits[i]
        sums = <Tally*>calloc(classes * LABELS, sizeof(Tally))
        if sums == NULL:
            raise MemoryError
        with nogil:
            tally(&self.result, sizes, classes, sums)
        found = []
        for i in range(classes * LABELS):
            one = sums + i
            if i % LABELS and (one.messages or one.events or one.time):
                found.append((i // LABELS, i % LABELS, one.messages, one.events, one.time, <int64_t>one.row - 1))
        free(sums)
        return found

    def rows(self, Layout layout not None, patterns=(), only=None):
        """The labels so far as Rows of the schema explanation, in the order in which they were found.

        ``patterns``: how each label is written, with %u for its number, for the column name.  ``only``: the numbers
        of those wanted.
        """
        cdef Row r
        cdef size_t start = <size_t>&r
        cdef uint64_t i, n = self.result.count
        cdef const Row* made = self.result.rows
        cdef Row* chosen = NULL
        fields = {
            "ts": <size_t>&r.ts - start, "event": <size_t>&r.event - start, "label": <size_t>&r.label - start,
            "why": <size_t>&r.why - start, "certainty": <size_t>&r.certainty - start,
            "missing": <size_t>&r.missing - start, "duration": <size_t>&r.duration - start,
            "trigger": <size_t>&r.trigger - start, "n": <size_t>&r.n - start, "seq": <size_t>&r.seq - start,
            "len": <size_t>&r.size - start, "packet": <size_t>&r.packet - start,
            "previous_packet": <size_t>&r.previous - start, "trigger_packet": <size_t>&r.ack - start,
            "cause": <size_t>&r.cause - start,
            "flight": <size_t>&r.flight - start, "window": <size_t>&r.window - start, "rtt": <size_t>&r.rtt - start,
            "age": <size_t>&r.age - start, "message": <size_t>&r.message - start, "flow": <size_t>&r.flow - start,
        }
        if only is not None:
            n = len(only)
            chosen = <Row*>malloc((n + 1) * sizeof(Row))
            if chosen == NULL:
                raise MemoryError(f"{n} labels")
            made = chosen
        try:
            for i in range(n if only is not None else 0):
                if not 0 <= only[i] < self.result.count:
                    raise IndexError(only[i])
                chosen[i] = self.result.rows[<uint64_t>only[i]]
            out = _table(layout, fields, <const uint8_t*>made, n, sizeof(Row), <size_t>&r.key - start,
                         <size_t>&r.side - start)
            if patterns:
                _spell(out, layout.index("name"), made, n, patterns)
        finally:
            free(chosen)
        return out

    def messages(self, Layout layout not None, names not None):
        """The messages as Rows; ``names``: of the labels, which are the columns of their times."""
        if len(names) != LABELS:
            raise ValueError(f"{len(names)} labels")
        cdef MessageRow r
        cdef size_t start = <size_t>&r
        cdef int i
        fields = {
            "ts": <size_t>&r.m.start - start, "end": <size_t>&r.m.end - start,
            "first_packet": <size_t>&r.m.first - start, "last_packet": <size_t>&r.m.last - start,
            "bytes": <size_t>&r.m.bytes - start, "packets": <size_t>&r.m.packets - start,
            "retransmissions": <size_t>&r.m.again - start, "message": <size_t>&r.message - start,
            "flow": <size_t>&r.flow - start, "took": <size_t>&r.took - start, "ideal": <size_t>&r.ideal - start,
            "above": <size_t>&r.above - start, "slowdown": <size_t>&r.slowdown - start,
            "main": <size_t>&r.main - start,
        }
        for i in range(LABELS):
            fields[names[i]] = <size_t>&r.times[i] - start
        return _table(layout, fields, <const uint8_t*>self.result.messages, self.result.message_count,
                      sizeof(MessageRow), <size_t>&r.key - start, <size_t>&r.side - start)


cdef Rows _table(Layout layout, dict fields, const uint8_t* rows, uint64_t count, size_t stride, size_t key,
                 size_t side):
    # Columns from an array of structures; addresses and ports of the side that the row is about.
    cdef Rows out
    cdef uint64_t i
    cdef size_t offset, width
    cdef uint8_t* to
    cdef int k
    if count > 0xFFFFFFFF:
        raise MemoryError(f"{count} rows")
    out = Rows(layout, <uint32_t>count)
    for k, name in enumerate(layout.names):
        width, to = layout.column[k].width, out.column[k]
        if name in fields:
            offset = fields[name]
            with nogil:
                for i in range(count):
                    memcpy(to + i * width, rows + i * stride + offset, width)
        elif name in ("src_ip", "dst_ip", "src_ip6", "dst_ip6", "src_port", "dst_port", "ip_version", "proto"):
            _ends(to, PLACES.index(name), rows, count, stride, key, side)
    return out


cdef int _spell(Rows out, int column, const Row* rows, uint64_t count, patterns) except -1:
    # Labels with their numbers.
    cdef char text[64]
    cdef uint64_t i
    cdef uint32_t width = out.layout.column[column].width
    cdef list kept = [pattern.encode() for pattern in patterns]
    cdef const char* form[LABELS]
    cdef int k
    for k in range(LABELS):
        form[k] = <bytes>kept[k]
    with nogil:
        for i in range(count):
            k = snprintf(text, sizeof(text), form[rows[i].label], rows[i].n)
            memcpy(out.column[column] + i * width, text, min(<uint32_t>k, width))
    return 0


PLACES = ("src_ip", "dst_ip", "src_ip6", "dst_ip6", "src_port", "dst_port", "ip_version", "proto")


cdef int _ends(uint8_t* to, int place, const uint8_t* rows, uint64_t count, size_t stride, size_t key,
               size_t side) except -1:
    cdef uint64_t i
    cdef const uint64_t* k
    cdef const uint64_t* address
    cdef bint high, six
    cdef uint16_t port
    with nogil:
        for i in range(count):
            k = <const uint64_t*>(rows + i * stride + key)
            high = (rows[i * stride + side] != 0) != (place & 1)        # the higher end is meant
            address = k + (2 if high else 0)
            six = k[4] >> 32 == 6
            if place < 2:
                (<uint32_t*>to)[i] = fold6(<const uint8_t*>address) if six else <uint32_t>address[0]
            elif place < 4:
                if six:
                    memcpy(to + 16 * i, address, 16)
            elif place < 6:
                port = <uint16_t>(k[4] if high else k[4] >> 16)
                (<uint16_t*>to)[i] = port
            else:
                to[i] = <uint8_t>(k[4] >> 32) if place == 6 else TCP
    return 0


cdef void _drop(void* context, void* value) noexcept nogil:
    end_flow(<Flow*>value, <Result*>context)
