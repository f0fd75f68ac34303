"""TCP connections explained: what each gap, retransmission and late acknowledgement was.  confluo-replay-explain(1)."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from c_bits cimport prefetch
from c_chunks cimport Chunks, chunk_item, chunks_free
from c_conversation cimport KeyedRow
from c_explain_batch cimport batch_add, batch_free, batch_init, explain_batch
from c_explain_causes cimport (
    AHEAD, Tally, above_ideal, cause_of, ideal_of, judge_all, keep_slowest, slowdown_of, tally, times_of, took_by)
from c_explain_input cimport PacketColumns, find_columns, read_packet
from c_explain_rows cimport new_flow, number_in_order
from c_explain_state cimport (
    LABELS, M_CALLS, M_HANDSHAKE, M_PROBES, M_SACK, M_TIMERS, Flow, FlowRow, MessageRow, Packet, RareFields, Result,
    Row, flow_at, message_at, rare_at, row_at)
from c_hash_table cimport (
    lru_find, lru_free, lru_hash, lru_init, lru_insert, lru_number, lru_prefetch_entry)
from c_ipv6_hash cimport fold6
from confluo_tools.core.block.block cimport Block, Layout
from confluo_tools.core.block.result_table cimport Rows
from confluo_tools.core.packets.tcp_columns cimport (
    N_EVIDENCE, N_OPTS, N_SACK, N_SCALE, TCP, USES, TcpColumns, gather)
cimport cython
import os

FOREVER = (1 << 63) - 1

cdef enum:
    BATCH = 32
    MAX_SEGMENTS = 1 << 24
    MAX_BATCH = 1 << 20
    TAPS = 2


@cython.final
cdef class Explainer:
    """Feed blocks of packets in order of time, then read `rows` and `messages`.

    ``layout``: of the blocks.  ``gap``: shorter waits have no row, ns.  ``taps``: 2 if packets come from both ends;
    `place` must then say at which end each tap is.  At most ``max_flows`` connections are followed at a time.
    ``chosen``: explain only the connections given to `choose`.  ``batch``: packets sorted by connection at a time.
    Raises KeyError and ValueError as TcpColumns.
    """

    def __cinit__(self, Layout layout not None, int64_t gap=1_000_000, int taps=1, uint32_t max_flows=1 << 16,
                  uint64_t segments=MAX_SEGMENTS, uint32_t batch=MAX_BATCH):
        cdef int i
        cdef uint64_t seed[2]
        if not 1 <= max_flows <= 1 << 24 or not 1 <= taps <= TAPS or gap < 0 or not 2 * BATCH <= batch <= MAX_BATCH:
            raise ValueError(f"{max_flows} flows, {taps} taps, gap {gap}, batch {batch}")
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
        if not lru_init(&self.flows, 5, 16, max_flows, seed):
            raise MemoryError
        if not batch_init(&self.batch, batch, max_flows, taps):
            raise MemoryError
        if not lru_init(&self.only, 5, 1, 1 << 24, seed):
            raise MemoryError
        if not lru_init(&self.places, 5, TAPS, max(max_flows, <uint32_t>1 << 20), seed):
            raise MemoryError

    def __dealloc__(self):
        batch_free(&self.batch, &self.result)
        lru_free(&self.flows)
        lru_free(&self.only)
        lru_free(&self.places)
        chunks_free(&self.result.rows.made)
        chunks_free(&self.result.rare)
        chunks_free(&self.result.messages.made)
        chunks_free(&self.result.flows)
        free(self.result.rows.order)
        free(self.result.messages.order)
        free(self.result.rows.sorted)
        free(self.result.messages.sorted)
        free(self.result.first)

    @property
    def count(self):
        """Connections seen."""
        return self.result.flows.count

    @property
    def labels(self):
        """Labels; after `finish`."""
        return self.result.rows.ordered

    @property
    def messages_found(self):
        """Messages; after `finish`."""
        return self.result.messages.ordered

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
        cdef KeyedRow[2][BATCH] batch       # of the rows that were read before, and of the next ones
        cdef PacketColumns columns
        cdef uint32_t row = start, n = BATCH, waiting = 0, i
        cdef int k = 0
        if block.layout is not self.layout or not 0 <= tap < self.taps:
            raise ValueError("the block has another layout")
        find_columns(self.columns, block.col, &columns)
        with nogil:
            while (n == BATCH or waiting) and not self.result.failed:
                n = gather(self.columns, block.col, block.rows, &row, until, &self.flows, batch[k], BATCH)
                for i in range(n):
                    lru_prefetch_entry(&self.flows, batch[k][i].hash)
                k = 1 - k
                if self.batch.count + 2 * BATCH > self.batch.room:
                    explain_batch(&self.batch, False, &self.result)
                for i in range(waiting):
                    if not self.chosen or lru_find(&self.only, batch[k][i].key, batch[k][i].hash) != NULL:
                        self._add(&columns, &batch[k][i], tap)
                waiting = n
        if row >= block.rows:
            self.numbers[tap] += block.rows
        self._check()
        return row

    cdef int _check(self) except -1:
        if self.result.failed:
            raise MemoryError(f"{self.result.rows.made.count} labels")
        return 0

    cdef void _add(self, const PacketColumns* columns, const KeyedRow* b, int tap) noexcept nogil:
        # Put a packet into the batch.
        cdef bint new = False
        cdef uint32_t* connection = <uint32_t*>lru_insert(&self.flows, b.key, b.hash, &new)
        if connection == NULL:
            self.result.failed = True
            return
        if new:
            connection[0] = lru_number(&self.flows, connection)
            self._begin(b, connection[0])
        self.packets += 1
        read_packet(columns, b, self.numbers[tap] + b.row + 1, tap, &self.batch, batch_add(&self.batch, connection[0]))

    cdef void _begin(self, const KeyedRow* b, uint32_t connection) noexcept nogil:
        # A connection that is new, perhaps in the place of one that was not used for longest.
        cdef FlowRow* row = new_flow(&self.result, b.key, self.result.before + self.batch.count)
        cdef Packet* p
        cdef const uint8_t* near
        if row == NULL:
            return
        near = <const uint8_t*>lru_find(&self.places, b.key, b.hash) if self.taps > 1 else NULL
        if near != NULL:
            row.near[0], row.near[1] = near[0], near[1]
        p = batch_add(&self.batch, connection)
        p.begins, p.number = True, self.result.flows.count - 1

    def finish(self):
        """End all connections.  No block may come after this."""
        with nogil:
            explain_batch(&self.batch, True, &self.result)
            if not self.result.failed and not number_in_order(&self.result):
                self.result.failed = True
            judge_all(&self.result)
        self._check()

    def distances(self):
        """{key: (side at which the tap is, from the handshake, or -1, shortest round trip of each side's data)}."""
        cdef uint32_t i
        cdef Flow* f
        with nogil:
            explain_batch(&self.batch, False, &self.result)
        self._check()
        found = {}
        for i in range(self.batch.connections):
            f = self.batch.flows + i
            side = 0 if f.side[0].here else 1 if f.side[1].here else -1
            found[(<const uint8_t*>flow_at(&self.result, f.number).key)[:40]] = (
                side, f.side[0].min_rtt, f.side[1].min_rtt)
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
        for i in range(self.result.flows.count):
            f = flow_at(&self.result, i)
            found.append(tuple([(f.min_rtt[s], f.rate[s], f.dsacks[s], f.zero_windows[s]) for s in range(2)]))
        return found

    def keep_slowest(self, double share):
        """Forget all messages but this share, the slowest, at least one, and their labels; after `finish`."""
        cdef bint done
        with nogil:
            done = keep_slowest(&self.result, share)
        if not done:
            raise MemoryError(f"{self.result.messages.ordered} messages")

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
        cdef bint done
        if len(limits) > 16:
            raise ValueError(limits)
        for i in range(len(limits)):
            sizes[i] = limits[i]
        sums = <Tally*>calloc(classes * LABELS, sizeof(Tally))
        if sums == NULL:
            raise MemoryError
        with nogil:
            done = tally(&self.result, sizes, classes, sums)
        if not done:
            free(sums)
            raise MemoryError(f"{self.result.rows.made.count} labels")
        found = []
        for i in range(classes * LABELS):
            one = sums + i
            if i % LABELS and (one.messages or one.events or one.time):
                found.append((i // LABELS, i % LABELS, one.messages, one.events, one.time, <int64_t>one.row - 1))
        free(sums)
        return found

    def rows(self, Layout layout not None, patterns=(), only=None):
        """The labels as Rows of the schema explanation, in the order in which they were found; after `finish`.

        ``patterns``: how each label is written, with %u for its number, for the column name.  ``only``: the numbers
        of those wanted.
        """
        cdef Row r
        cdef size_t start = <size_t>&r
        cdef uint64_t i, n = self.result.rows.ordered
        cdef uint32_t* order = self.result.rows.order
        cdef uint32_t* chosen = NULL
        fields = {
            "ts": <size_t>&r.ts - start, "event": <size_t>&r.event - start, "label": <size_t>&r.label - start,
            "why": <size_t>&r.why - start, "certainty": <size_t>&r.certainty - start,
            "missing": <size_t>&r.missing - start, "duration": <size_t>&r.duration - start,
            "trigger": <size_t>&r.trigger - start, "seq": <size_t>&r.seq - start, "len": <size_t>&r.size - start,
            "packet": <size_t>&r.packet - start, "previous_packet": <size_t>&r.previous - start,
            "trigger_packet": <size_t>&r.ack - start, "flight": <size_t>&r.flight - start,
            "window": <size_t>&r.window - start, "rtt": <size_t>&r.rtt - start, "flow": <size_t>&r.flow - start,
        }
        if only is not None:
            n = len(only)
            chosen = <uint32_t*>malloc((n + 1) * sizeof(uint32_t))
            if chosen == NULL:
                raise MemoryError(f"{n} labels")
        try:
            for i in range(n if only is not None else 0):
                if not 0 <= only[i] < self.result.rows.ordered:
                    raise IndexError(only[i])
                chosen[i] = order[<uint64_t>only[i]]
            order = chosen if only is not None else order
            out = _table(layout, fields, &self.result, &self.result.rows.made, order, n, sizeof(Row),
                         <size_t>&r.flow - start, <size_t>&r.side - start)
            _derive(out, &self.result, order, n)
            if patterns:
                _spell(out, layout.index("name"), &self.result, order, n, patterns)
        finally:
            free(chosen)
        return out

    def messages(self, Layout layout not None, names not None):
        """The messages as Rows; ``names``: of the labels, which are the columns of their times; after `finish`."""
        if len(names) != LABELS:
            raise ValueError(f"{len(names)} labels")
        cdef MessageRow r
        cdef size_t start = <size_t>&r
        cdef int64_t* column[LABELS]
        cdef int64_t times[LABELS]
        cdef const MessageRow* m
        cdef int64_t ideal
        cdef uint32_t used
        cdef uint64_t n
        cdef int i, k
        fields = {
            "ts": <size_t>&r.start - start, "end": <size_t>&r.end - start, "first_packet": <size_t>&r.first - start,
            "last_packet": <size_t>&r.last - start, "bytes": <size_t>&r.bytes - start,
            "packets": <size_t>&r.packets - start, "retransmissions": <size_t>&r.again - start,
            "message": <size_t>&r.message - start, "flow": <size_t>&r.flow - start, "main": <size_t>&r.main - start,
        }
        out = _table(layout, fields, &self.result, &self.result.messages.made, self.result.messages.order,
                     self.result.messages.ordered, sizeof(MessageRow), <size_t>&r.flow - start, <size_t>&r.side - start)
        for i in range(LABELS):
            k = layout.get(names[i])
            column[i] = <int64_t*>out.column[k] if k >= 0 else NULL
        cdef int64_t* took = <int64_t*>_column(out, "took")
        cdef int64_t* least = <int64_t*>_column(out, "ideal")
        cdef int64_t* above = <int64_t*>_column(out, "above")
        cdef double* slowdown = <double*>_column(out, "slowdown")
        with nogil:
            for n in range(self.result.messages.ordered):
                m = message_at(&self.result, self.result.messages.order[n])
                ideal = ideal_of(&self.result, m)
                if took != NULL:
                    took[n] = took_by(m)
                if least != NULL:
                    least[n] = ideal
                if above != NULL:
                    above[n] = above_ideal(m, ideal)
                if slowdown != NULL:
                    slowdown[n] = slowdown_of(&self.result, m)
                used = times_of(&self.result, m, ideal, times)
                for i in range(LABELS):
                    if column[i] != NULL and used >> i & 1:
                        column[i][n] = times[i]
        return out


cdef Rows _table(Layout layout, dict fields, const Result* x, const Chunks* made, const uint32_t* order, uint64_t count,
                 size_t size, size_t flow, size_t side):
    # Columns from structures; addresses and ports of the side that the row is about.
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
                    prefetch(<uint8_t*>chunk_item(made, order[min(i + AHEAD, count - 1)], size) + offset)
                    memcpy(to + i * width, <uint8_t*>chunk_item(made, order[i], size) + offset, width)
        elif name in PLACES:
            _ends(to, PLACES.index(name), x, made, order, count, size, flow, side)
    return out


cdef uint8_t* _column(Rows out, str name):
    # NULL: the layout lacks it.
    cdef int k = out.layout.get(name)
    return out.column[k] if k >= 0 else NULL


cdef int _derive(Rows out, const Result* x, const uint32_t* order, uint64_t count) except -1:
    # Columns of labels that their rows do not have as they are.
    cdef uint8_t* cause = _column(out, "cause")
    cdef uint32_t* message = <uint32_t*>_column(out, "message")
    cdef uint32_t* n = <uint32_t*>_column(out, "n")
    cdef int64_t* age = <int64_t*>_column(out, "age")
    cdef const Row* row
    cdef const RareFields* rare
    cdef uint64_t i
    with nogil:
        for i in range(count):
            prefetch(row_at(x, order[min(i + AHEAD, count - 1)]))
            row = row_at(x, order[i])
            rare = rare_at(x, row)
            if cause != NULL:
                cause[i] = <uint8_t>cause_of(row)
            if message != NULL and row.place:
                message[i] = message_at(x, row.place - 1).message
            if n != NULL and rare != NULL:
                n[i] = rare.n
            if age != NULL and rare != NULL:
                age[i] = rare.age
    return 0


cdef int _spell(Rows out, int column, const Result* x, const uint32_t* order, uint64_t count, patterns) except -1:
    # Labels with their numbers.
    cdef char text[64]
    cdef uint64_t i
    cdef uint32_t width = out.layout.column[column].width
    cdef list kept = [pattern.encode() for pattern in patterns]
    cdef const char* form[LABELS]
    cdef const Row* row
    cdef const RareFields* rare
    cdef int k
    for k in range(LABELS):
        form[k] = <bytes>kept[k]
    with nogil:
        for i in range(count):
            row = row_at(x, order[i])
            rare = rare_at(x, row)
            k = snprintf(text, sizeof(text), form[row.label], rare.n if rare != NULL else 0)
            memcpy(out.column[column] + i * width, text, min(<uint32_t>k, width))
    return 0


PLACES = ("src_ip", "dst_ip", "src_ip6", "dst_ip6", "src_port", "dst_port", "ip_version", "proto")


cdef int _ends(uint8_t* to, int place, const Result* x, const Chunks* made, const uint32_t* order, uint64_t count,
               size_t size, size_t flow, size_t side) except -1:
    cdef uint64_t i
    cdef const uint8_t* row
    cdef const uint64_t* k
    cdef const uint64_t* address
    cdef bint high, six
    cdef uint16_t port
    with nogil:
        for i in range(count):
            row = <const uint8_t*>chunk_item(made, order[i], size)
            k = flow_at(x, (<const uint32_t*>(row + flow))[0]).key
            high = (row[side] != 0) != (place & 1)      # the higher end is meant
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
