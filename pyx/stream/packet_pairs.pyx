"""The same packets at two observation points: which came through, which did not, how long they took."""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from c_hash_table cimport (
    HashTable, LruTable, NOT_FOUND, hash_words, lru_free, lru_init, lru_insert, mum, slots_add, slots_home, slots_next,
    slots_remove, slots_reserve, table_free)
from confluo_tools.core.block.block cimport Block, Layout, PICK_ALL, Picks, Staging, column_number
cimport cython
import os

# What makes two packets the same one: all but the time.  The path does not change these fields (TTL and DSCP it may).
NEEDED = ("ts", "proto", "src_ip", "dst_ip", "src_port", "dst_port", "ip_id", "tcp_seq", "payload_len")
USED = (*NEEDED, "ip_version", "src_ip6", "dst_ip6", "tcp_ack", "tcp_flags", "frag_offset", "tcp_tsval", "icmp_type")
WIDTHS = (8, 1, 4, 4, 2, 2, 2, 4, 4, 1, 16, 16, 4, 2, 2, 4, 1)
RESULT = ("ts", "seen", "delay", "reordered", "ip_version", "proto", "src_ip", "src_ip6", "dst_ip", "dst_ip6",
          "src_port", "dst_port", "ip_id", "tcp_seq", "payload_len")
RESULT_WIDTHS = (8, 1, 8, 1, 1, 1, 4, 16, 4, 16, 2, 2, 2, 4, 4)

cdef enum:
    U_TS
    U_PROTO
    U_SRC
    U_DST
    U_SPORT
    U_DPORT
    U_ID
    U_SEQ
    U_SIZE
    U_VERSION
    U_SRC6
    U_DST6
    U_ACK
    U_FLAGS
    U_FRAG
    U_TSVAL
    U_ICMP
    USES
    NEEDS = 9
    RESULTS = 15
    AT_BOTH = 3
    FLOW_WORDS = 6
    MAX_FLOWS = 1 << 16
    OUT_ROWS = 16384

cdef struct Seen:                       # a packet at one point or both
    uint64_t hash
    int64_t ts                          # at the first point that reported it, by the clock of a
    int64_t delay
    uint64_t src6[2]
    uint64_t dst6[2]
    uint32_t src
    uint32_t dst
    uint32_t seq
    uint32_t size
    uint32_t turn                       # changes when the entry is used again, or its packet is matched
    uint16_t sport
    uint16_t dport
    uint16_t id
    uint8_t points                      # bit 1: a, 2: b
    uint8_t version
    uint8_t proto

cdef struct Due:                        # when a packet is reported
    int64_t at
    uint64_t order
    uint32_t entry
    uint32_t turn


cdef inline bint sooner(const Due* a, const Due* b) noexcept nogil:
    return a.at < b.at or (a.at == b.at and a.order < b.order)


@cython.final
cdef class PacketPairs:
    """Pairs packets of ``layout`` at two points, and reports each once as a row of ``result`` (columns RESULT).

    A packet that the other point does not have within ``timeout`` ns was seen at one point only.  ``offset``: ns that
    the clock of b is ahead of a's.  Rows of ``layout`` may be up to ``lateness`` ns out of order.  At most ``most``
    packets wait; beyond them the oldest are ``forgotten``, and not reported.
    Raises KeyError for a missing column of NEEDED, ValueError for one of another width.
    """

    cdef readonly Layout layout
    cdef readonly Layout result
    cdef readonly uint64_t forgotten
    cdef readonly uint64_t paired
    cdef readonly uint64_t late         # packets that came after the time at which they were to be reported
    cdef readonly uint32_t waiting
    cdef int[USES] at
    cdef int64_t timeout, lateness, offset, reported
    cdef int64_t newest[2]
    cdef uint32_t most, used, free_list
    cdef uint64_t order
    cdef Seen* entries
    cdef uint32_t room
    cdef Due* heap
    cdef size_t due, due_room
    cdef HashTable index
    cdef LruTable flows                 # the latest time at the first point, of packets that came to the second
    cdef bint failed

    def __cinit__(self, Layout layout not None, Layout result not None, *, int64_t timeout, int64_t lateness,
                  int64_t offset=0, uint32_t most=1 << 20):
        cdef int i
        cdef uint64_t seed[2]
        if timeout < 1 or lateness < 0 or not 16 <= most <= 1 << 26:
            raise ValueError(f"{timeout} ns, {lateness} ns, {most} packets")
        for i in range(USES):
            self.at[i] = column_number(layout, USED[i], WIDTHS[i], i < NEEDS)
        if result.names != RESULT or any([result.column[i].width != RESULT_WIDTHS[i] for i in range(RESULTS)]):
            raise ValueError("the result has other columns")
        self.layout, self.result = layout, result
        self.timeout, self.lateness, self.offset, self.most = timeout, lateness, offset, most
        self.newest[0] = self.newest[1] = self.reported = INT64_MIN
        self.free_list = NOT_FOUND
        secret = os.urandom(16)
        seed[0] = int.from_bytes(secret[:8], "little") | 1
        seed[1] = int.from_bytes(secret[8:], "little") | 1
        memset(&self.index, 0, sizeof(HashTable))
        self.index.seed[0], self.index.seed[1] = seed[0], seed[1]
        if slots_reserve(&self.index, 1) < 0 or not lru_init(&self.flows, FLOW_WORDS, 8, MAX_FLOWS, seed):
            raise MemoryError

    def __dealloc__(self):
        free(self.entries)
        free(self.heap)
        table_free(&self.index)
        lru_free(&self.flows)

    def take(self, Block block not None, int point, Picks picks=None):
        """Take the picked rows of a block that point 0 (a) or 1 (b) saw.  Raises MemoryError."""
        cdef const uint16_t* rows = NULL
        cdef uint32_t n = block.rows, i
        if block.layout is not self.layout:
            raise ValueError("the block has another layout")
        if not 0 <= point <= 1:
            raise ValueError(f"point {point}")
        if picks is not None:
            if picks.rows > block.rows:
                raise ValueError("the picks are of another block")
            n = picks.n
            if picks.kind != PICK_ALL:
                rows = picks.as_list()
        with nogil:
            for i in range(n):
                self.packet(block, rows[i] if rows != NULL else i, point)
        if self.failed:
            raise MemoryError(f"{self.waiting} packets")

    def newest_at(self, int point):
        """The latest time at a point by its own clock; None before the first packet."""
        cdef int64_t t = self.newest[point & 1]
        return None if t == INT64_MIN else t + (self.offset if point & 1 else 0)

    @property
    def mark(self):
        """The time that both points have reached (ns, by the clock of a); None before both have packets."""
        cdef int64_t t = min(self.newest[0], self.newest[1])
        return None if t == INT64_MIN else t

    def until(self, now=None):
        """Report what is known at ``now`` (ns), or all, waiting packets too: yields blocks of RESULT.

        A packet is reported ``lateness`` after it came to its second point, or after its time-out.
        """
        cdef int64_t limit = INT64_MAX if now is None else <int64_t>now - self.lateness
        cdef Staging out
        cdef bint more = True
        while more:
            out = Staging(self.result, OUT_ROWS)
            with nogil:
                more = self.report(out, limit)
            if out.rows:
                yield out

    # -- entries

    cdef uint32_t fresh(self) noexcept nogil:
        """A free entry, or NOT_FOUND: no memory."""
        cdef uint32_t i = self.free_list
        cdef uint32_t room
        cdef Seen* grown
        if i != NOT_FOUND:
            self.free_list = <uint32_t>self.entries[i].hash
            return i
        if self.used == self.room:
            room = self.room * 2 if self.room else 1024
            grown = <Seen*>realloc(self.entries, room * sizeof(Seen))
            if grown == NULL or slots_reserve(&self.index, room) < 0:
                if grown != NULL:
                    self.entries = grown
                self.failed = True
                return NOT_FOUND
            self.entries, self.room = grown, room
        i = self.used
        self.used += 1
        self.entries[i].turn = 0
        return i

    cdef void release(self, uint32_t i) noexcept nogil:
        self.entries[i].hash = self.free_list
        self.entries[i].turn += 1
        self.free_list = i
        self.waiting -= 1

    # -- the heap

    cdef void push(self, int64_t at, uint32_t entry) noexcept nogil:
        cdef size_t i = self.due, parent
        cdef Due d
        cdef Due* grown
        if self.due == self.due_room:
            grown = <Due*>realloc(self.heap, (self.due_room * 2 + 1024) * sizeof(Due))
            if grown == NULL:
                self.failed = True
                return
            self.heap, self.due_room = grown, self.due_room * 2 + 1024
        self.order += 1
        d.at, d.order, d.entry, d.turn = at, self.order, entry, self.entries[entry].turn
        self.due += 1
        while i:
            parent = (i - 1) // 2
            if not sooner(&d, &self.heap[parent]):
                break
            self.heap[i] = self.heap[parent]
            i = parent
        self.heap[i] = d

    cdef void pop(self) noexcept nogil:
        cdef size_t i = 0, child
        cdef Due d
        self.due -= 1
        if not self.due:
            return
        d = self.heap[self.due]
        while 2 * i + 1 < self.due:
            child = 2 * i + 1
            if child + 1 < self.due and sooner(&self.heap[child + 1], &self.heap[child]):
                child += 1
            if not sooner(&self.heap[child], &d):
                break
            self.heap[i] = self.heap[child]
            i = child
        self.heap[i] = d

    # -- packets

    cdef uint64_t number(self, Block block, int use, uint32_t r) noexcept nogil:
        """The value of a small column; 0 without it."""
        cdef int k = self.at[use]
        if k < 0:
            return 0
        if WIDTH[use] == 1:
            return block.col[k][r]
        return (<const uint16_t*>block.col[k])[r] if WIDTH[use] == 2 else (<const uint32_t*>block.col[k])[r]

    cdef void packet(self, Block block, uint32_t r, int point) noexcept nogil:
        cdef Seen p
        cdef Seen* other
        cdef uint64_t at
        cdef uint32_t i
        memset(&p, 0, sizeof(p))
        p.ts = (<const int64_t*>block.col[self.at[<int>U_TS]])[r] - (self.offset if point else 0)
        if p.ts > self.newest[point]:
            self.newest[point] = p.ts
        p.proto = <uint8_t>self.number(block, U_PROTO, r)
        p.version = <uint8_t>self.number(block, U_VERSION, r) if self.at[<int>U_VERSION] >= 0 else 4
        if p.version != 4 and p.version != 6:
            return                              # not IP: two of them look the same
        p.src, p.dst = <uint32_t>self.number(block, U_SRC, r), <uint32_t>self.number(block, U_DST, r)
        if p.version == 6 and self.at[<int>U_SRC6] >= 0 and self.at[<int>U_DST6] >= 0:
            memcpy(p.src6, block.col[self.at[<int>U_SRC6]] + <size_t>r * 16, 16)
            memcpy(p.dst6, block.col[self.at[<int>U_DST6]] + <size_t>r * 16, 16)
        p.sport, p.dport = <uint16_t>self.number(block, U_SPORT, r), <uint16_t>self.number(block, U_DPORT, r)
        p.id, p.seq = <uint16_t>self.number(block, U_ID, r), <uint32_t>self.number(block, U_SEQ, r)
        p.size = <uint32_t>self.number(block, U_SIZE, r)
        p.hash = self.identity(block, r, &p)
        p.points = 1 << point
        at = slots_home(&self.index, p.hash)
        while True:
            i = slots_next(&self.index, p.hash, &at)
            if i == NOT_FOUND:
                break
            other = &self.entries[i]
            if (other.hash == p.hash and other.points == 3 - p.points
                    and -self.timeout <= p.ts - other.ts <= self.timeout):
                self.pair(i, &p, point)
                return
        if p.ts + self.timeout < self.reported:
            self.late += 1
        if self.waiting >= self.most:
            self.forget()
        i = self.fresh()
        if i == NOT_FOUND:
            return
        p.turn = self.entries[i].turn
        self.entries[i] = p
        self.waiting += 1
        slots_add(&self.index, p.hash, i)
        self.push(p.ts + self.timeout, i)

    cdef uint64_t identity(self, Block block, uint32_t r, const Seen* p) noexcept nogil:
        cdef uint64_t s = self.index.seed[1]
        cdef uint64_t h = mum((p.src | <uint64_t>p.dst << 32) ^ self.index.seed[0], s)
        h = mum(h ^ (p.sport | <uint64_t>p.dport << 16 | <uint64_t>p.id << 32 | <uint64_t>p.proto << 48
                     | <uint64_t>p.version << 56), s)
        h = mum(h ^ (p.seq | <uint64_t>p.size << 32), s)
        h = mum(h ^ (self.number(block, U_ACK, r) | self.number(block, U_FLAGS, r) << 32
                     | self.number(block, U_FRAG, r) << 48), s)
        h = mum(h ^ (self.number(block, U_TSVAL, r) | self.number(block, U_ICMP, r) << 32), s)
        if p.version == 6:
            h = mum(mum(h ^ p.src6[0], s) ^ p.src6[1], s)
            h = mum(mum(h ^ p.dst6[0], s) ^ p.dst6[1], s)
        return h

    cdef void pair(self, uint32_t i, const Seen* p, int point) noexcept nogil:
        """The packet of entry i came to the other point, too."""
        cdef Seen* e = &self.entries[i]
        cdef int64_t second = max(e.ts, p.ts)
        slots_remove(&self.index, e.hash, i)
        e.delay = p.ts - e.ts if point else e.ts - p.ts
        e.ts = min(e.ts, p.ts)
        e.points = AT_BOTH
        e.turn += 1
        self.paired += 1
        if second < self.reported:
            self.late += 1
        self.push(second, i)

    cdef void forget(self) noexcept nogil:
        """Make room: drop the packet that would be reported next."""
        cdef Due* d
        while self.due:
            d = &self.heap[0]
            if self.entries[d.entry].turn == d.turn:
                if self.entries[d.entry].points != AT_BOTH:
                    slots_remove(&self.index, self.entries[d.entry].hash, d.entry)
                self.release(d.entry)
                self.forgotten += 1
                self.pop()
                return
            self.pop()

    # -- results

    cdef bint report(self, Staging out, int64_t limit) noexcept nogil:
        """Rows of packets that are due by ``limit``, until ``out`` is full: then True."""
        cdef Due d
        cdef uint32_t n = 0
        while self.due and self.heap[0].at <= limit:
            d = self.heap[0]
            if self.entries[d.entry].turn != d.turn:
                self.pop()
                continue
            if n == OUT_ROWS:
                out.set_rows(n)
                return True
            self.pop()
            self.write(out, n, &self.entries[d.entry])
            n += 1
            if self.entries[d.entry].points != AT_BOTH:
                slots_remove(&self.index, self.entries[d.entry].hash, d.entry)
            self.release(d.entry)
            self.reported = max(self.reported, d.at)
        out.set_rows(n)
        return False

    cdef void write(self, Staging out, uint32_t n, const Seen* p) noexcept nogil:
        cdef uint8_t** col = out.out
        (<int64_t*>col[0])[n] = p.ts
        col[1][n] = p.points
        (<int64_t*>col[2])[n] = p.delay if p.points == AT_BOTH else 0
        col[3][n] = p.points == AT_BOTH and self.overtaken(p)
        col[4][n], col[5][n] = p.version, p.proto
        (<uint32_t*>col[6])[n], (<uint32_t*>col[8])[n] = p.src, p.dst
        memcpy(col[7] + <size_t>n * 16, p.src6, 16)
        memcpy(col[9] + <size_t>n * 16, p.dst6, 16)
        (<uint16_t*>col[10])[n], (<uint16_t*>col[11])[n], (<uint16_t*>col[12])[n] = p.sport, p.dport, p.id
        (<uint32_t*>col[13])[n], (<uint32_t*>col[14])[n] = p.seq, p.size

    cdef bint overtaken(self, const Seen* p) noexcept nogil:
        """Whether a packet of the flow that left the first point later came to the second point before."""
        cdef uint64_t key[FLOW_WORDS]
        cdef bint fresh
        cdef int64_t* latest
        if p.version == 6:
            key[0], key[1], key[2], key[3] = p.src6[0], p.src6[1], p.dst6[0], p.dst6[1]
        else:
            key[0], key[1], key[2], key[3] = p.src, 0, p.dst, 0
        key[4] = p.sport | <uint64_t>p.dport << 16 | <uint64_t>p.proto << 32
        key[5] = p.version
        latest = <int64_t*>lru_insert(&self.flows, key, hash_words(&self.flows.index, key), &fresh)
        if latest == NULL:
            self.failed = True
            return False
        if fresh or p.ts >= latest[0]:
            latest[0] = p.ts
            return False
        return True


cdef uint8_t[17] WIDTH
for _i in range(17):
    WIDTH[_i] = WIDTHS[_i]
