"""TCP conversations followed packet by packet: the fields that `--analyze tcp` adds.  Manual: confluo-tcp(7)."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.string cimport memset
from posix.stdlib cimport posix_memalign
from c_conversation cimport KeyedRow, conversation_key
from c_hash_table cimport lru_free, lru_hash, lru_init, lru_insert, lru_prefetch_entry, lru_prefetch_slot
from c_tcp_analysis cimport (
    ACK, SYN, A_REUSED, HAS_BASE, SCALE_UNKNOWN, Flow, Memory, Packet, Side, Verdict, analyse, forget, handshake,
    start_side)
from confluo_tools.core.block.block cimport Block, Layout
cimport cython
import os

# Columns of the input; the analysis needs those of NEEDED.
cdef enum:
    N_TS
    N_PROTO
    N_SRC
    N_DST
    N_SPORT
    N_DPORT
    N_SEQ
    N_ACK
    N_FLAGS
    N_WINDOW
    N_SIZE
    N_VERSION
    N_SRC6
    N_DST6
    N_FRAG
    N_OPTS
    N_SCALE
    N_NOTES
    NEEDS

NEEDED = ("ts", "proto", "src_ip", "dst_ip", "src_port", "dst_port", "tcp_seq", "tcp_ack", "tcp_flags", "tcp_window",
          "payload_len")
USED = (*NEEDED, "ip_version", "src_ip6", "dst_ip6", "frag_offset", "tcp_opts", "tcp_wscale", "notes")
WIDTHS = (8, 1, 4, 4, 2, 2, 4, 4, 2, 2, 4, 1, 16, 16, 2, 1, 1, 1)

# Columns of the result after those of the input.
ADDED = ("tcp_analysis", "tcp_dup_ack_num", "tcp_bytes_in_flight", "tcp_rel_seq", "tcp_rel_ack", "tcp_window_size",
         "tcp_rto", "tcp_ack_rtt", "tcp_irtt")
ADDED_WIDTHS = (2, 4, 4, 4, 4, 4, 8, 8, 8)

cdef enum:
    ADDS = 9
    TCP = 6
    OPT_WSCALE = 2
    DAMAGED = 3                 # notes: truncated, malformed
    BATCH = 32                  # rows with flows prefetched together
    MAX_SEGMENTS = 1 << 22     # 64 MiB of unacknowledged segments


@cython.final
cdef class TcpFlows:
    """Conversations seen so far, at most ``max_flows``; idle ones are evicted (LruTable).

    ``layout``: columns of the input, ``result``: the same and those of ADDED.
    Raises KeyError when a column of NEEDED is missing, ValueError when one has another width.
    """

    def __cinit__(self, Layout layout not None, Layout result not None, uint32_t max_flows=1 << 18,
                  uint64_t segments=MAX_SEGMENTS):
        cdef int i, k
        cdef uint64_t seed[2]
        if not 1 <= max_flows <= 1 << 26:
            raise ValueError(f"{max_flows} flows")
        self.layout, self.result = layout, result
        for i in range(NEEDS):
            k = layout.get(USED[i])
            if k < 0 and USED[i] in NEEDED:
                raise KeyError(USED[i])
            if k >= 0 and layout.column[k].width != WIDTHS[i] and not (i == N_SIZE and layout.column[k].width == 2):
                raise ValueError(f"{USED[i]} has another type")
            self.column[i] = k
        self.ends.src, self.ends.dst = self.column[N_SRC], self.column[N_DST]
        self.ends.sport, self.ends.dport = self.column[N_SPORT], self.column[N_DPORT]
        self.ends.version = self.column[N_VERSION]
        self.ends.src6, self.ends.dst6 = self.column[N_SRC6], self.column[N_DST6]
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
            n = self._gather(block, &row, batch)
            for i in range(n):
                lru_prefetch_entry(&self.flows, batch[i].hash)
            for i in range(n):
                if self._one(block, out, &batch[i]):
                    return 1
        return 0

    cdef uint32_t _gather(self, Block block, uint32_t* row, KeyedRow* batch) noexcept nogil:
        # Compute the keys of the next rows with a TCP header and prefetch their slots.
        cdef uint32_t r = row[0], n = 0
        cdef const uint8_t* proto = block.col[self.column[N_PROTO]]
        cdef const uint16_t* frag = <const uint16_t*>self._col(block, N_FRAG)
        cdef const uint8_t* notes = self._col(block, N_NOTES)
        cdef const uint16_t* flags = <const uint16_t*>self._col(block, N_FLAGS)
        while r < block.rows and n < BATCH:
            if proto[r] != TCP or (frag != NULL and frag[r]):
                r += 1
                continue
            if notes != NULL and notes[r] & DAMAGED and not flags[r]:
                r += 1          # no TCP header
                continue
            batch[n].row = r
            conversation_key(block.col, &self.ends, &batch[n])
            batch[n].hash = lru_hash(&self.flows, batch[n].key)
            lru_prefetch_slot(&self.flows, batch[n].hash)
            n += 1
            r += 1
        row[0] = r
        return n

    cdef const uint8_t* _col(self, Block block, int need) noexcept nogil:
        return block.col[self.column[need]] if self.column[need] >= 0 else NULL

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
        cdef const uint8_t* options = self._col(block, N_OPTS)
        cdef const uint8_t* shift = self._col(block, N_SCALE)
        cdef int n = self.layout.n
        self.packets += 1
        f = <Flow*>lru_insert(&self.flows, b.key, b.hash, &fresh)
        if f == NULL:
            return 1
        if fresh:
            self._restart(f)
        me = &f.side[b.side]
        p.ts = (<const int64_t*>block.col[self.column[N_TS]])[r]
        p.seq = (<const uint32_t*>block.col[self.column[N_SEQ]])[r]
        p.ack = (<const uint32_t*>block.col[self.column[N_ACK]])[r]
        p.flags = (<const uint16_t*>block.col[self.column[N_FLAGS]])[r]
        p.window = (<const uint16_t*>block.col[self.column[N_WINDOW]])[r]
        if block.layout.column[self.column[N_SIZE]].width == 2:
            p.size = (<const uint16_t*>block.col[self.column[N_SIZE]])[r]
        else:
            p.size = (<const uint32_t*>block.col[self.column[N_SIZE]])[r]
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
