"""TCP conversations followed packet by packet: the fields that `--analyze tcp` adds.  Manual: confluo-tcp(7)."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.string cimport memset
from posix.stdlib cimport posix_memalign
from c_conversation cimport KeyedRow
from c_hash_table cimport lru_free, lru_init, lru_insert, lru_prefetch_entry
from c_tcp_analysis cimport (
    ACK, SYN, A_REUSED, HAS_BASE, SCALE_UNKNOWN, Flow, Memory, Packet, Side, Verdict, analyse, forget, handshake,
    start_side)
from confluo_tools.core.block.block cimport Block, Layout
from confluo_tools.core.packets.tcp_columns cimport (
    N_ACK, N_FLAGS, N_OPTS, N_SCALE, N_SEQ, N_TS, N_WINDOW, OPT_WSCALE, TcpColumns, gather, optional, payload)
from confluo_tools.core.packets.tcp_columns import ANALYSED
cimport cython
import os

# Columns of the result after those of the input.
ADDED = ("tcp_analysis", "tcp_dup_ack_num", "tcp_bytes_in_flight", "tcp_rel_seq", "tcp_rel_ack", "tcp_window_size",
         "tcp_rto", "tcp_ack_rtt", "tcp_irtt")
ADDED_WIDTHS = (2, 4, 4, 4, 4, 4, 8, 8, 8)

cdef enum:
    ADDS = 9
    BATCH = 32                  # rows with flows prefetched together
    MAX_SEGMENTS = 1 << 22     # 64 MiB of unacknowledged segments

cdef extern from *:
    const int64_t FOREVER "INT64_MAX"


@cython.final
cdef class TcpFlows:
    """Conversations seen so far, at most ``max_flows``; idle ones are evicted (LruTable).

    ``layout``: columns of the input, ``result``: the same and those of ADDED.
    Raises KeyError and ValueError as TcpColumns.
    """

    def __cinit__(self, Layout layout not None, Layout result not None, uint32_t max_flows=1 << 18,
                  uint64_t segments=MAX_SEGMENTS):
        cdef int i
        cdef uint64_t seed[2]
        if not 1 <= max_flows <= 1 << 26:
            raise ValueError(f"{max_flows} flows")
        self.layout, self.result = layout, result
        self.columns = TcpColumns(layout, ANALYSED)
        if result.n != layout.n + ADDS or result.names[:layout.n] != layout.names:
            raise ValueError("the result needs the columns of the input and those of the analysis")
        for i in range(ADDS):
            if result.names[layout.n + i] != ADDED[i] or result.column[layout.n + i].width != ADDED_WIDTHS[i]:
                raise ValueError(f"{ADDED[i]} is not where it should be")
        secret = os.urandom(16)
        seed[0] = int.from_bytes(secret[:8], "little")
        seed[1] = int.from_bytes(secret[8:], "little")
        self.memory.max_segments = segments
        if not lru_init(&self.flows, 5, sizeof(Flow), max_flows, seed):
            raise MemoryError
        self.flows.drop, self.flows.context = _drop, &self.memory

    def __dealloc__(self):
        lru_free(&self.flows)

    @property
    def count(self):
        """Flows in memory."""
        return self.flows.index.count

    @property
    def evicted(self):
        """Flows evicted because there were too many."""
        return self.flows.evicted

    def apply(self, Block block not None):
        """The block with the fields of the analysis added; its columns are shared.  Blocks must come in order."""
        if block.layout is not self.layout:
            raise ValueError("the block has another layout")
        cdef Block out = Block(self.result)
        cdef size_t total = 0
        cdef void* memory
        cdef uint8_t* p
        cdef int i, n = self.layout.n, failed
        for i in range(ADDS):
            total += _bytes(self.result.column[n + i].width, block.rows)
        if posix_memalign(&memory, 64, max(total, <size_t>64)):
            raise MemoryError(f"{total} bytes")
        out.own, out.own_size = <uint8_t*>memory, total
        p = out.own
        for i in range(n):
            out.col[i] = block.col[i]
        for i in range(ADDS):
            out.col[n + i] = p
            p += _bytes(self.result.column[n + i].width, block.rows)
        out.owner, out.rows, out.lane, out.base = block, block.rows, block.lane, block.base
        with nogil:
            memset(memory, 0, total)
            failed = self.run(block, out)
        if failed:
            raise MemoryError(f"{self.count} TCP flows")
        return out

    cdef int run(self, Block block, Block out) noexcept nogil:
        cdef KeyedRow batch[BATCH]
        cdef uint32_t row = 0, n, i
        while row < block.rows:
            n = gather(self.columns, block.col, block.rows, &row, FOREVER, &self.flows, batch, BATCH)
            for i in range(n):
                lru_prefetch_entry(&self.flows, batch[i].hash)
            for i in range(n):
                if self._one(block, out, &batch[i]):
                    return 1
        return 0

    cdef void _restart(self, Flow* f) noexcept nogil:
        start_side(&f.side[0])
        start_side(&f.side[1])
        f.rtt = 0

    cdef int _one(self, Block block, Block out, KeyedRow* b) noexcept nogil:
        cdef uint32_t r = b.row
        cdef bint fresh = False
        cdef Packet p
        cdef Verdict v
        cdef Flow* f
        cdef Side* me
        cdef const uint8_t* options = optional(self.columns, block.col, N_OPTS)
        cdef const uint8_t* shift = optional(self.columns, block.col, N_SCALE)
        cdef const int* at = self.columns.at
        cdef int n = self.layout.n
        self.packets += 1
        f = <Flow*>lru_insert(&self.flows, b.key, b.hash, &fresh)
        if f == NULL:
            return 1
        if fresh:
            self._restart(f)
        me = &f.side[b.side]
        p.ts = (<const int64_t*>block.col[at[<int>N_TS]])[r]
        p.seq = (<const uint32_t*>block.col[at[<int>N_SEQ]])[r]
        p.ack = (<const uint32_t*>block.col[at[<int>N_ACK]])[r]
        p.flags = (<const uint16_t*>block.col[at[<int>N_FLAGS]])[r]
        p.window = (<const uint16_t*>block.col[at[<int>N_WINDOW]])[r]
        p.size = payload(self.columns, block.col, r)
        p.scale = SCALE_UNKNOWN
        if shift != NULL and (options[r] & OPT_WSCALE if options != NULL else shift[r]):
            p.scale = min(<int>shift[r], 14)
        memset(&v, 0, sizeof(v))
        if p.flags & SYN and me.has & HAS_BASE and p.seq != me.base:
            if p.flags & ACK:
                me.base = p.seq
            else:
                forget(&f.side[0], &self.memory)
                forget(&f.side[1], &self.memory)
                self._restart(f)
            v.flags |= A_REUSED
        elif p.flags & SYN and not p.flags & ACK and me.has & HAS_BASE:
            me.next = me.solid
        analyse(f, b.side, &p, &self.memory, &v)
        handshake(f, b.side, &p, &v)
        (<uint16_t*>out.col[n])[r] = <uint16_t>v.flags
        (<uint32_t*>out.col[n + 1])[r] = v.duplicate
        (<uint32_t*>out.col[n + 2])[r] = v.in_flight
        (<uint32_t*>out.col[n + 3])[r] = v.rel_seq
        (<uint32_t*>out.col[n + 4])[r] = v.rel_ack
        (<uint32_t*>out.col[n + 5])[r] = v.window
        (<int64_t*>out.col[n + 6])[r] = v.rto
        (<int64_t*>out.col[n + 7])[r] = v.ack_rtt
        (<int64_t*>out.col[n + 8])[r] = v.irtt
        return 0


cdef void _drop(void* context, void* value) noexcept nogil:
    cdef Flow* f = <Flow*>value
    forget(&f.side[0], <Memory*>context)
    forget(&f.side[1], <Memory*>context)


cdef inline size_t _bytes(uint32_t width, uint32_t rows) noexcept nogil:
    # Add 64 bytes: columns that start at equal offsets modulo 4 KiB compete for the same cache sets.
    return ((<size_t>width * rows + 63) & ~<size_t>63) + 64
