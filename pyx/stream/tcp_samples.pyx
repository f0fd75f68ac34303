"""What each TCP segment adds to the rates of its flow: bytes, retransmissions, and round trips by timestamps."""

from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy
from c_conversation cimport KeyedRow
from c_hash_table cimport LruTable, lru_free, lru_init, lru_insert, lru_prefetch_entry
from confluo_tools.core.block.block cimport Block, Layout, Staging
from confluo_tools.core.packets.tcp_columns cimport (
    N_DPORT, N_DST, N_DST6, N_FLAGS, N_OPTS, N_SPORT, N_SRC, N_SRC6, N_TS, N_TSECR, N_TSVAL, N_VERSION, TcpColumns,
    gather, optional, payload)
cimport cython
import os

RESULT = ("ts", "ip_version", "proto", "src_ip", "src_ip6", "dst_ip", "dst_ip6", "src_port", "dst_port", "segments",
          "bytes", "good", "retransmitted", "kind", "rtt")
RESULT_WIDTHS = (8, 1, 1, 4, 16, 4, 16, 2, 2, 1, 4, 4, 1, 1, 8)
KINDS = ("data", "timestamp", "ack")     # 0, 1, 2

cdef enum:
    RESULTS = 15
    BATCH = 32
    MAX_ROWS = 16384                    # of the input at once: each may give three rows
    BY_TIMESTAMP = 1
    BY_ACK = 2
    SYN = 2
    RST = 4
    ACK = 16
    OPT_TSTAMP = 16
    RETRANSMISSION = 1                  # of tcp_analysis

cdef extern from *:
    const int64_t FOREVER "INT64_MAX"

cdef struct Timed:                      # a timestamp of one direction, until it is echoed
    int64_t ts
    uint32_t value
    uint32_t latest
    uint8_t open                        # it is waited for
    uint8_t begun                       # `latest` is valid

cdef struct TimedPair:
    Timed side[2]


@cython.final
cdef class TcpSamples:
    """Rows of RESULT from analysed segments (``layout`` with tcp_analysis and tcp_ack_rtt).

    A row of kind data for each segment with payload, and for each retransmission; one of its other direction for each
    round trip that it ends: ``rtt`` is the time from a segment with a timestamp (kind timestamp), or with payload
    (kind ack), to the first segment that echoes, or acknowledges, it. One timestamp of each direction is timed at a
    time, as TCP does without timestamps (RFC 6298). At most ``most`` conversations are kept; idle ones are
    ``evicted``.
    Raises KeyError and ValueError as TcpColumns.
    """

    cdef readonly Layout layout
    cdef readonly Layout result
    cdef readonly uint64_t segments
    cdef TcpColumns columns
    cdef LruTable flows
    cdef int analysis, ack_rtt

    def __cinit__(self, Layout layout not None, Layout result not None, uint32_t most=1 << 16):
        cdef uint64_t seed[2]
        cdef int i
        self.columns = TcpColumns(layout)
        self.analysis, self.ack_rtt = layout.index("tcp_analysis"), layout.index("tcp_ack_rtt")
        if result.names != RESULT or any([result.column[i].width != RESULT_WIDTHS[i] for i in range(RESULTS)]):
            raise ValueError("the result has other columns")
        self.layout, self.result = layout, result
        secret = os.urandom(16)
        seed[0] = int.from_bytes(secret[:8], "little")
        seed[1] = int.from_bytes(secret[8:], "little")
        if not lru_init(&self.flows, 5, sizeof(TimedPair), most, seed):
            raise MemoryError

    def __dealloc__(self):
        lru_free(&self.flows)

    @property
    def evicted(self):
        """Conversations that were forgotten because there were too many."""
        return self.flows.evicted

    def samples(self, Block block not None):
        """The rows of a block; yields blocks.  Segments of a conversation must come in their order."""
        cdef Staging out
        cdef Block part
        cdef uint32_t start
        cdef int failed
        if block.layout is not self.layout:
            raise ValueError("the block has another layout")
        for start in range(0, block.rows, MAX_ROWS):
            part = block.slice(start, min(<uint32_t>MAX_ROWS, block.rows - start))
            out = Staging(self.result, 3 * part.rows)
            with nogil:
                failed = self.run(part, out)
            if failed:
                raise MemoryError("TCP flows")
            if out.rows:
                yield out

    cdef int run(self, Block block, Staging out) noexcept nogil:
        cdef KeyedRow batch[BATCH]
        cdef uint32_t row = 0, n, i, rows = 0
        cdef const uint16_t* flags = <const uint16_t*>block.col[self.columns.at[<int>N_FLAGS]]
        cdef const int64_t* ts = <const int64_t*>block.col[self.columns.at[<int>N_TS]]
        cdef const uint16_t* analysis = <const uint16_t*>block.col[self.analysis]
        cdef const int64_t* ack_rtt = <const int64_t*>block.col[self.ack_rtt]
        cdef uint32_t r, size
        cdef int64_t rtt
        while row < block.rows:
            n = gather(self.columns, block.col, block.rows, &row, FOREVER, &self.flows, batch, BATCH)
            for i in range(n):
                lru_prefetch_entry(&self.flows, batch[i].hash)
            for i in range(n):
                r = batch[i].row
                self.segments += 1
                size = payload(self.columns, block.col, r)
                rtt = self.round_trip(block, &batch[i], ts[r], size, flags[r])
                if rtt < 0:
                    return 1
                if size or analysis[r] & RETRANSMISSION:
                    self.ends(block, r, out, rows, False)
                    out.out[9][rows] = size != 0
                    (<uint32_t*>out.out[10])[rows] = size
                    (<uint32_t*>out.out[11])[rows] = 0 if analysis[r] & RETRANSMISSION else size
                    out.out[12][rows] = analysis[r] & RETRANSMISSION
                    rows += 1
                if rtt:
                    self.ends(block, r, out, rows, True)
                    out.out[13][rows], (<int64_t*>out.out[14])[rows] = BY_TIMESTAMP, rtt
                    rows += 1
                if ack_rtt[r] > 0:
                    self.ends(block, r, out, rows, True)
                    out.out[13][rows], (<int64_t*>out.out[14])[rows] = BY_ACK, ack_rtt[r]
                    rows += 1
        out.set_rows(rows)
        return 0

    cdef int64_t round_trip(self, Block block, const KeyedRow* b, int64_t ts, uint32_t size,
                            uint32_t flags) noexcept nogil:
        """The round trip that this segment ends by its echo, 0 if none, -1: no memory; then it may begin one."""
        cdef const uint32_t* value = <const uint32_t*>optional(self.columns, block.col, N_TSVAL)
        cdef const uint32_t* echo = <const uint32_t*>optional(self.columns, block.col, N_TSECR)
        cdef const uint8_t* options = optional(self.columns, block.col, N_OPTS)
        cdef uint32_t r = b.row
        cdef int64_t rtt = 0
        cdef bint fresh
        cdef TimedPair* pair
        cdef Timed* me
        cdef Timed* you
        if value == NULL or echo == NULL or flags & RST:
            return 0
        if not (options[r] & OPT_TSTAMP if options != NULL else value[r] or echo[r]):
            return 0
        pair = <TimedPair*>lru_insert(&self.flows, b.key, b.hash, &fresh)
        if pair == NULL:
            return -1
        me, you = &pair.side[b.side], &pair.side[1 - b.side]
        if you.open and flags & ACK and <int32_t>(echo[r] - you.value) >= 0:
            if echo[r] == you.value and ts > you.ts:
                rtt = ts - you.ts
            you.open = False
        if flags & SYN and not flags & ACK:
            me.begun = me.open = you.begun = you.open = False       # a new connection
        if (size or flags & SYN) and (not me.begun or <int32_t>(value[r] - me.latest) > 0):
            if not me.open:
                me.ts, me.value, me.open = ts, value[r], True
            me.latest, me.begun = value[r], True
        return rtt

    cdef void ends(self, Block block, uint32_t r, Staging out, uint32_t row, bint back) noexcept nogil:
        """Time, addresses and ports of a row; `back`: of the other direction."""
        cdef uint8_t** col = out.out
        cdef const int* at = self.columns.at
        cdef const uint8_t* version = optional(self.columns, block.col, N_VERSION)
        cdef int src = 5 if back else 3, dst = 3 if back else 5
        (<int64_t*>col[0])[row] = (<const int64_t*>block.col[at[<int>N_TS]])[r]
        col[1][row] = version[r] if version != NULL else 4
        col[2][row] = 6
        (<uint32_t*>col[src])[row] = (<const uint32_t*>block.col[at[<int>N_SRC]])[r]
        (<uint32_t*>col[dst])[row] = (<const uint32_t*>block.col[at[<int>N_DST]])[r]
        if at[<int>N_SRC6] >= 0 and at[<int>N_DST6] >= 0:
            memcpy(col[src + 1] + <size_t>row * 16, block.col[at[<int>N_SRC6]] + <size_t>r * 16, 16)
            memcpy(col[dst + 1] + <size_t>row * 16, block.col[at[<int>N_DST6]] + <size_t>r * 16, 16)
        (<uint16_t*>col[8 if back else 7])[row] = (<const uint16_t*>block.col[at[<int>N_SPORT]])[r]
        (<uint16_t*>col[7 if back else 8])[row] = (<const uint16_t*>block.col[at[<int>N_DPORT]])[r]
