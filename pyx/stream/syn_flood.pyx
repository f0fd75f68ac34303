"""SYN floods by target: half-open connections in sliding windows, in bounded memory."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t, INT64_MIN
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign
from c_bits cimport prefetch
from c_hash_table cimport lru_free, lru_init
from c_huge_pages cimport huge_pages
from c_syn_flood cimport (
    ACK, ANSWERED, Attempt, DONE, Flood, FloodEvent, OF_ADDRESS, OF_PORT, RST, SYN, Slot, TARGET_WORDS, Target,
    WAS_RESET, WAYS, advance, attempt, bucket_of, drop_target, mark_attempt, pair_hash, step_of, tick_to)
from confluo_tools.core.block.block cimport Block, Layout, Picks, PICK_ALL, column_number
cimport cython
import os

NEEDED = ("ts", "proto", "src_ip", "dst_ip", "src_port", "dst_port", "tcp_flags")
USED = (*NEEDED, "ip_version", "src_ip6", "dst_ip6")
WIDTHS = (8, 1, 4, 4, 2, 2, 2, 1, 16, 16)

cdef enum:
    U_TS
    U_PROTO
    U_SRC
    U_DST
    U_SPORT
    U_DPORT
    U_FLAGS
    U_VERSION
    U_SRC6
    U_DST6
    USES
    NEEDS = 7
    TCP = 6
    BATCH = 32                          # rows with buckets prefetched together
    MAX_SLOTS = 1024

cdef struct Segment:
    uint64_t hash                       # with the sender as the client
    int64_t mark                        # the latest time up to this row
    uint32_t row
    uint32_t flags


@cython.final
cdef class SynFlood:
    """Attempts to connect, and the ones that were completed, by target.

    ``window`` ns, a multiple of ``steps``: it slides by one step.  An attempt is a SYN; it is half-open unless its
    sender acknowledges within ``timeout`` ns.  A target fires when its half-open attempts of a window reach
    ``threshold`` and the share ``ratio`` of all; it clears below the share ``clear`` of either.  A tick is evaluated
    ``timeout + lateness`` ns later.  ``attempts``: kept at once, a power of two; ``targets``: kept at once.
    Raises KeyError for a missing column of NEEDED, ValueError for one of another width.
    """

    cdef readonly Layout layout
    cdef int[USES] at                   # columns of USED; -1: the layout lacks it
    cdef Flood flood

    def __cinit__(self, Layout layout not None, int64_t window, *, int64_t timeout, int64_t lateness,
                  uint64_t threshold, double ratio, double clear=0.5, int64_t steps=10,
                  uint32_t attempts=1 << 20, uint32_t targets=1 << 16):
        cdef Flood* f = &self.flood
        cdef void* memory
        cdef int i
        if steps < 1 or window < steps or window % steps or timeout < 1 or lateness < 0 or threshold < 1:
            raise ValueError(f"a window of {window} ns in {steps} steps")
        if attempts < WAYS or attempts & (attempts - 1) or not 1 <= targets <= 1 << 24:
            raise ValueError(f"{attempts} attempts, {targets} targets")
        self.layout = layout
        for i in range(USES):
            self.at[i] = column_number(layout, USED[i], WIDTHS[i], i < NEEDS)
        f.step, f.steps, f.timeout, f.delay = window // steps, steps, timeout, timeout + lateness
        if f.delay // f.step > MAX_SLOTS:
            raise ValueError(f"{f.delay // f.step} steps at once")
        f.slots = 16
        while f.slots < steps + f.delay // f.step + 3:
            f.slots *= 2
        f.threshold, f.ratio, f.clear = threshold, ratio, clear
        f.least = max((threshold + steps - 1) // steps, 1)
        secret = os.urandom(16)
        f.seed[0] = int.from_bytes(secret[:8], "little") | 1
        f.seed[1] = int.from_bytes(secret[8:], "little") | 1
        if not lru_init(&f.targets, TARGET_WORDS, sizeof(Target) + f.slots * sizeof(Slot), targets, f.seed):
            raise MemoryError
        f.targets.drop, f.targets.context = drop_target, f
        f.buckets = attempts // WAYS
        if posix_memalign(&memory, 64, <size_t>attempts * sizeof(Attempt)):
            raise MemoryError
        huge_pages(memory, <size_t>attempts * sizeof(Attempt))
        memset(memory, 0, <size_t>attempts * sizeof(Attempt))
        f.attempts = <Attempt*>memory

    def __dealloc__(self):
        self.flood.targets.drop = NULL
        lru_free(&self.flood.targets)
        free(self.flood.attempts)
        free(self.flood.candidates)
        free(self.flood.events)

    def take(self, Block block not None, Picks picks=None):
        """Count the picked rows; those of one connection must come in their order.  Returns whether there are events.

        Raises MemoryError.
        """
        cdef const uint16_t* rows = NULL
        cdef uint32_t n = block.rows
        if block.layout is not self.layout:
            raise ValueError("the block has another layout")
        if picks is not None:
            if picks.rows > block.rows:
                raise ValueError("the picks are of another block")
            n = picks.n
            if picks.kind != PICK_ALL:
                rows = picks.as_list()
        with nogil:
            self.run(block, rows, n)
        if self.flood.failed:
            raise MemoryError("SYN flood")
        return self.flood.n_events > 0

    cdef void run(self, Block block, const uint16_t* rows, uint32_t n) noexcept nogil:
        cdef Flood* f = &self.flood
        cdef Segment batch[BATCH]
        cdef const int64_t* ts = <const int64_t*>block.col[self.at[<int>U_TS]]
        cdef const uint8_t* proto = block.col[self.at[<int>U_PROTO]]
        cdef const uint16_t* flags = <const uint16_t*>block.col[self.at[<int>U_FLAGS]]
        cdef uint32_t i = 0, k, r, found
        cdef int64_t high = INT64_MIN
        while i < n:
            found = 0
            while i < n and found < BATCH:
                r = rows[i] if rows != NULL else i
                i += 1
                if ts[r] > high:
                    high = ts[r]
                if proto[r] != TCP or not flags[r] & (SYN | ACK | RST):
                    continue
                batch[found].row, batch[found].flags, batch[found].mark = r, flags[r], high
                batch[found].hash = self.hash_of(block, r, False)
                prefetch(bucket_of(f, batch[found].hash))
                found += 1
            for k in range(found):
                if batch[k].mark > f.mark or not f.started:
                    advance(f, batch[k].mark)
                self.segment(block, &batch[k], ts[batch[k].row])
        if n and (high > f.mark or not f.started):
            advance(f, high)

    cdef void segment(self, Block block, const Segment* s, int64_t ts) noexcept nogil:
        cdef Flood* f = &self.flood
        cdef uint64_t key[TARGET_WORDS]
        if s.flags & SYN:
            if not s.flags & ACK:
                self.target(block, s.row, False, key)
                attempt(f, s.hash, ts, key)
            else:
                self.target(block, s.row, True, key)
                mark_attempt(f, self.hash_of(block, s.row, True), ts, key, ANSWERED)
        elif s.flags & RST:
            self.target(block, s.row, False, key)
            if not mark_attempt(f, s.hash, ts, key, WAS_RESET):
                self.target(block, s.row, True, key)
                mark_attempt(f, self.hash_of(block, s.row, True), ts, key, WAS_RESET)
        else:
            f.acks += 1
            if self.open(s.hash):
                self.target(block, s.row, False, key)
                mark_attempt(f, s.hash, ts, key, DONE)

    cdef bint open(self, uint64_t hash) noexcept nogil:
        # Most segments are of connections that have been completed long ago: look only at the tags.
        cdef const Attempt* a = bucket_of(&self.flood, hash)
        cdef uint64_t tag = hash >> 3
        return a[0].tag >> 3 == tag or a[1].tag >> 3 == tag or a[2].tag >> 3 == tag or a[3].tag >> 3 == tag

    cdef bint is_v6(self, Block block, uint32_t r) noexcept nogil:
        return (self.at[<int>U_VERSION] >= 0 and block.col[self.at[<int>U_VERSION]][r] == 6
                and self.at[<int>U_SRC6] >= 0 and self.at[<int>U_DST6] >= 0)

    cdef uint64_t hash_of(self, Block block, uint32_t r, bint back) noexcept nogil:
        # Of the connection; `back`: the receiver is the client.
        cdef int a = U_DST if back else U_SRC
        cdef uint64_t src = (<const uint32_t*>block.col[self.at[a]])[r]
        cdef uint64_t dst = (<const uint32_t*>block.col[self.at[<int>U_SRC if back else <int>U_DST]])[r]
        cdef uint64_t sport = (<const uint16_t*>block.col[self.at[<int>U_DPORT if back else <int>U_SPORT]])[r]
        cdef uint64_t dport = (<const uint16_t*>block.col[self.at[<int>U_SPORT if back else <int>U_DPORT]])[r]
        cdef uint64_t source[2]
        cdef uint64_t target[2]
        if not self.is_v6(block, r):
            return pair_hash(&self.flood, src, dst, sport << 16 | dport, NULL, NULL)
        memcpy(source, block.col[self.at[<int>U_DST6 if back else <int>U_SRC6]] + <size_t>r * 16, 16)
        memcpy(target, block.col[self.at[<int>U_SRC6 if back else <int>U_DST6]] + <size_t>r * 16, 16)
        return pair_hash(&self.flood, src, dst, sport << 16 | dport, source, target)

    cdef void target(self, Block block, uint32_t r, bint back, uint64_t* key) noexcept nogil:
        # The key of the server with its port.
        cdef uint64_t port = (<const uint16_t*>block.col[self.at[<int>U_SPORT if back else <int>U_DPORT]])[r]
        cdef bint six = self.is_v6(block, r)
        key[0] = key[1] = 0
        if six:
            memcpy(key, block.col[self.at[<int>U_SRC6 if back else <int>U_DST6]] + <size_t>r * 16, 16)
        else:
            key[0] = (<const uint32_t*>block.col[self.at[<int>U_SRC if back else <int>U_DST]])[r]
        key[2] = port << 16 | (6 if six else 4) << 8 | OF_PORT

    def until(self, int64_t now):
        """Time has come to ``now`` (ns), without rows."""
        if self.flood.started:
            with nogil:
                advance(&self.flood, now)

    def finish(self):
        """The input has ended: evaluate the ticks up to its last time with what is known."""
        cdef Flood* f = &self.flood
        if f.started:
            with nogil:
                tick_to(f, (step_of(f, f.mark) + 1) * f.step)

    def events(self):
        """Remove and return the events: (fires, tick, lasted, address, address6, version, port, key id, attempts,
        completed, answered, resets), ordered by tick, kind and target; port -1: of the whole address."""
        cdef Flood* f = &self.flood
        cdef FloodEvent* e
        cdef uint32_t i
        found = []
        for i in range(f.n_events):
            e = f.events + i
            six = e.key[2] >> 8 & 255 == 6
            address6 = (<uint8_t*>e.key)[:16] if six else b""
            port = -1 if e.key[2] & 255 == OF_ADDRESS else <int>(e.key[2] >> 16)
            found.append((e.tick, e.kind, address6, 0 if six else e.key[0], port, e.lasted, 6 if six else 4, e.number,
                          e.attempts, e.completed, e.answered, e.resets))
        f.n_events = 0
        found.sort()
        return [(kind == 1, tick, lasted, address, address6, version, port, *rest)
                for tick, kind, address6, address, port, lasted, version, *rest in found]

    @property
    def due(self):
        """When the next tick is evaluated (ns) if a target may change then; None if none can."""
        return self.flood.next + self.flood.delay if self.flood.listed else None

    @property
    def counts(self):
        """{name: number}: syns, repeated (of a known attempt), late, displaced (forgotten before their time), acks,
        targets (kept), evicted (targets that were forgotten)."""
        cdef Flood* f = &self.flood
        return {"syns": f.syns, "repeated": f.repeated, "late": f.late, "displaced": f.displaced, "acks": f.acks,
                "targets": f.targets.index.count, "evicted": f.targets.evicted}
