"""Packets of captures of hosts: the sightings of one packet in several captures become one packet.

A packet is identified by its flow, IP identification, sequence and acknowledgement numbers, payload and time stamp,
as a secret hash of 64 bits.  IPv6 has no identification, and what TCP sends again may look the same: of equal packets,
the last one that arrived is the last one that was sent before, and so on backwards.
A TCP packet that is larger than the segments of its connection is what a card or a kernel sends or has received as
several packets: it is split into these.
"""

from array import array
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy
from c_array cimport grow
from c_bits cimport prefetch
from c_hash_table cimport (
    HashTable, NOT_FOUND, mum, slots_add, slots_home, slots_next, slots_reserve, table_find, table_free, table_insert,
    table_reserve)
from confluo_tools.core.block.block cimport Block, column_of
from confluo_tools.core.replay.packet_store cimport PacketStore
cimport cython
import os

cdef enum:
    TCP = 6
    SYN = 2
    KEY_WORDS = 5
    BATCH = 256                         # packets that are prefetched together
    MSS = 1460                          # where no SYN says it
    MSS6 = 1440
    LEAST_MSS = 88                      # of Linux
    TIMESTAMPS = 12                     # bytes of the option, padded
    LAST_CAPTURE = 0xFFFF
    NO_FLOW = 0xFFFFFFFF

NEEDED = ("ts", "ip_version", "proto", "src_ip", "dst_ip", "src_port", "dst_port", "ip_len", "ip_id", "tcp_seq",
          "payload_len")

cdef struct Sighting:                   # a packet, 40 bytes
    int64_t time                        # in the capture `first`
    int64_t other                       # in another one
    uint64_t identity
    uint32_t flow
    uint32_t size                       # bytes of the IP packet
    uint32_t repeats                    # in the capture `last`: how often the identity came
    uint16_t first
    uint16_t last                       # capture in which it was seen last
    uint8_t captures                    # 3: three or more
    uint8_t comes_back                  # its identity does

cdef struct CapturedFlow:
    uint64_t packets                    # in this capture, not split
    uint32_t opposite                   # flow of the other direction, or NO_FLOW
    uint16_t mss                        # of its SYN; 0: not seen

cdef struct Columns:
    const int64_t* ts
    const uint8_t* version
    const uint8_t* proto
    const uint32_t* src
    const uint32_t* dst
    const uint8_t* src6
    const uint8_t* dst6
    const uint16_t* sport
    const uint16_t* dport
    const uint32_t* ip_len
    const uint16_t* ip_id
    const uint16_t* frag
    const uint32_t* seq
    const uint32_t* ack
    const uint32_t* payload
    const uint16_t* flags
    const uint16_t* mss
    const uint32_t* tsval


@cython.final
cdef class CapturePackets:
    """Call `begin` for each capture, then `add` for its blocks; `settle` gives the packets of all to a store.

    ``flows`` [(version, proto, source, destination, source port, destination port, IPv6 source, IPv6 destination)].
    ``split``: packets that were split.
    """

    cdef HashTable keys                 # of flows
    cdef HashTable index                # of sightings
    cdef Sighting* seen
    cdef uint64_t count, room, most
    cdef CapturedFlow* flow
    cdef uint64_t flow_room
    cdef uint32_t captures
    cdef uint64_t[2] seed
    cdef Sighting[BATCH] waiting
    cdef uint32_t waits
    cdef readonly list flows
    cdef readonly uint64_t split
    cdef readonly uint64_t rows         # IP packets in this capture

    def __cinit__(self, uint64_t most):
        secret = os.urandom(16)
        memcpy(self.seed, <const char*>secret, 16)
        self.seed[1] |= 1
        self.keys.words = KEY_WORDS
        memcpy(self.keys.seed, self.seed, 16)
        memcpy(self.index.seed, self.seed, 16)
        self.most = most
        self.flows = []

    def __dealloc__(self):
        table_free(&self.keys)
        table_free(&self.index)
        free(self.seen)
        free(self.flow)

    def begin(self):
        """The next capture."""
        cdef uint32_t i
        if self.captures == LAST_CAPTURE:
            raise OverflowError(f"more than {LAST_CAPTURE} captures")
        self.captures += 1
        self.rows = 0
        for i in range(self.keys.count):
            self.flow[i].packets = 0

    def packets_of_flows(self):
        """How many packets of each flow this capture has so far, as an array."""
        cdef uint32_t i
        cdef uint64_t[::1] into
        found = array("Q", [0]) * self.keys.count
        if self.keys.count:
            into = found
            for i in range(self.keys.count):
                into[i] = self.flow[i].packets
        return found

    def add(self, Block block not None):
        """Packets of this capture.  Raises KeyError: the name of a field that is missing, ValueError: of another type,
        OverflowError: too many packets.
        """
        cdef Columns c
        cdef uint32_t i, flow
        if not self.captures:
            raise ValueError("no capture")
        for name in NEEDED:
            if block.layout.get(name) < 0:
                raise KeyError(name)
        _columns(block, &c)
        for i in range(block.rows):
            if c.version[i] == 0:
                continue
            flow = self._flow(&c, i)
            self.rows += 1
            self.flow[flow].packets += 1
            self._segments(&c, i, flow)
        self._flush()

    cdef uint32_t _flow(self, const Columns* c, uint32_t i) except? NO_FLOW:
        cdef uint64_t[KEY_WORDS] key
        cdef uint64_t[KEY_WORDS] back
        cdef uint32_t number
        cdef CapturedFlow* f
        _key(c, i, c.src[i], c.dst[i], c.src6, c.dst6, c.sport[i], c.dport[i], key)
        number = table_find(&self.keys, key)
        if number == NOT_FOUND:
            if table_reserve(&self.keys, 1) < 0 or grow(
                    <void**>&self.flow, &self.flow_room, <uint64_t>self.keys.count + 1, 256, sizeof(CapturedFlow)) < 0:
                raise MemoryError
            number = table_insert(&self.keys, key)
            six = c.version[i] == 6
            self.flows.append((
                c.version[i], c.proto[i], c.src[i], c.dst[i], c.sport[i], c.dport[i],
                c.src6[16 * i:16 * i + 16] if six else b"", c.dst6[16 * i:16 * i + 16] if six else b""))
            _key(c, i, c.dst[i], c.src[i], c.dst6, c.src6, c.dport[i], c.sport[i], back)
            f = &self.flow[number]
            f.packets, f.mss, f.opposite = 0, 0, table_find(&self.keys, back)
            if f.opposite != NO_FLOW:
                self.flow[f.opposite].opposite = number
        f = &self.flow[number]
        if c.proto[i] == TCP and c.flags[i] & SYN and c.mss[i]:
            f.mss = max(c.mss[i], <uint16_t>LEAST_MSS)
        return number

    cdef uint32_t _segment(self, const CapturedFlow* f, const Columns* c, uint32_t i) noexcept nogil:
        # The largest payload of a packet on the wire.
        cdef uint32_t mss = f.mss, other = self.flow[f.opposite].mss if f.opposite != NO_FLOW else 0
        if mss == 0 or 0 < other < mss:
            mss = other
        if mss == 0:
            mss = MSS6 if c.version[i] == 6 else MSS
        return mss - TIMESTAMPS if c.tsval[i] and mss > 2 * TIMESTAMPS else mss

    cdef int _segments(self, const Columns* c, uint32_t i, uint32_t flow) except -1:
        cdef uint32_t left = c.payload[i], mss, its, n = 0, head = c.ip_len[i] - c.payload[i]
        cdef Sighting* s
        if c.proto[i] != TCP or c.frag[i] or c.payload[i] > c.ip_len[i]:
            mss = left
        else:
            mss = self._segment(&self.flow[flow], c, i)
            self.split += left > mss
        while True:
            its = min(left, mss)
            if self.waits == BATCH:
                self._flush()
            s = &self.waiting[self.waits]
            self.waits += 1
            s.time, s.flow, s.size = c.ts[i], flow, head + its if c.payload[i] <= c.ip_len[i] else c.ip_len[i]
            s.identity = mum(mum(mum(mum(
                (<uint64_t>flow << 32 | <uint32_t>(c.ip_id[i] + n * (c.version[i] == 4) & 0xFFFF) << 16 | c.frag[i])
                ^ self.seed[0], self.seed[1]) ^ (<uint64_t>(c.seq[i] + n * mss) << 32 | its), self.seed[1])
                ^ (<uint64_t>c.ack[i] << 32 | c.tsval[i]), self.seed[1]) ^ c.proto[i], self.seed[1])
            left -= its
            n += 1
            if left == 0:
                return 0

    cdef int _flush(self) except -1:
        # In rounds, so that the cache misses overlap.
        cdef uint32_t i, n = self.waits
        cdef uint64_t slot
        self.waits = 0
        if self.count + n > self.most:
            raise OverflowError(f"more than {self.most:,} packets")
        if (grow(<void**>&self.seen, &self.room, self.count + n, 4096, sizeof(Sighting)) < 0
                or slots_reserve(&self.index, self.count + n) < 0):
            raise MemoryError
        for i in range(n):
            prefetch(&self.index.slots[slots_home(&self.index, self.waiting[i].identity)])
        for i in range(n):
            slot = self.index.slots[slots_home(&self.index, self.waiting[i].identity)]
            if slot:
                prefetch(&self.seen[<uint32_t>slot - 1])
        for i in range(n):
            self._see(&self.waiting[i])
        return 0

    cdef Sighting* _find(self, uint64_t identity) noexcept nogil:
        cdef uint64_t at = slots_home(&self.index, identity)
        cdef uint32_t number
        while True:
            number = slots_next(&self.index, identity, &at)
            if number == NOT_FOUND:
                return NULL
            if self.seen[number].identity == identity:
                return &self.seen[number]

    cdef void _see(self, Sighting* s) noexcept nogil:
        cdef Sighting* first = self._find(s.identity)
        cdef Sighting* its = first
        cdef uint16_t here = <uint16_t>self.captures
        if first != NULL:
            if first.last != here:
                first.last, first.repeats = here, 0
            if first.repeats:
                first.comes_back = True
                s.identity = self._repeated(s.identity, first.repeats)
                its = self._find(s.identity)
            first.repeats += 1
        if its != NULL:
            its.other = s.time if its.captures == 1 else min(its.other, s.time)
            its.captures = min(its.captures + 1, 3)
            return
        self.seen[self.count] = s[0]
        its = &self.seen[self.count]
        its.repeats, its.first, its.last, its.captures, its.comes_back = 1, here, here, 1, False
        slots_add(&self.index, s.identity, <uint32_t>self.count)
        self.count += 1

    cdef uint64_t _repeated(self, uint64_t identity, uint32_t number) noexcept nogil:
        return mum(identity ^ number * <uint64_t>0x9E3779B97F4A7C15, self.seed[1])

    cdef int _join_repeats(self) except -1:
        # Of the packets of an identity that comes back: which of them arrived.
        cdef uint64_t i, room = 0, other_room = 0
        cdef uint32_t ours, theirs, n
        cdef int64_t* mine = NULL
        cdef int64_t* others = NULL
        cdef Sighting* s
        cdef bint plain
        try:
            for i in range(self.count):
                if not self.seen[i].comes_back:
                    continue
                s, n, ours, theirs, plain = &self.seen[i], 0, 0, 0, True
                while s != NULL:
                    if (grow(<void**>&mine, &room, n + 1, 64, 8) < 0
                            or grow(<void**>&others, &other_room, n + 1, 64, 8) < 0):
                        raise MemoryError
                    if s.first == self.seen[i].first:
                        mine[ours] = s.time
                        ours += 1
                        if s.captures > 1:
                            others[theirs] = s.other
                            theirs += 1
                    else:
                        others[theirs] = s.time
                        theirs += 1
                    plain = plain and s.captures <= 2
                    n += 1
                    s = self._find(self._repeated(self.seen[i].identity, n))
                if plain and ours and theirs and ours != theirs:
                    if ours > theirs:
                        self._backwards(&self.seen[i], mine, ours, others, theirs)
                    else:
                        self._backwards(&self.seen[i], others, theirs, mine, ours)
        finally:
            free(mine)
            free(others)
        return 0

    cdef void _backwards(self, Sighting* first, const int64_t* sent, uint32_t n, const int64_t* came,
                         uint32_t arrived) noexcept nogil:
        # n > arrived.  Each that arrived takes the last one that was sent before it and is left.
        cdef uint32_t i = n
        cdef Sighting* s
        while i > 0:
            i -= 1
            s = first if i == 0 else self._find(self._repeated(first.identity, i))
            s.time = s.other = sent[i]
            s.captures = 1
            if arrived and (sent[i] <= came[arrived - 1] or arrived == i + 1):
                s.captures, arrived = 2, arrived - 1

    def settle(self, PacketStore store not None, const uint32_t[::1] number not None,
               const uint8_t[::1] both not None, uint32_t more, uint32_t least):
        """Give all packets to ``store``, and forget them.

        ``number`` of each flow in the store, 2^32 - 1: leave its packets out.  ``both``: whether there are captures of
        both ends of the flow; a packet of it that is in one only was lost.  A packet has ``more`` bytes on the wire,
        at least ``least`` in all.
        """
        cdef uint64_t i
        cdef Sighting* s
        if number.shape[0] != self.keys.count or both.shape[0] != self.keys.count:
            raise ValueError("arrays of different lengths")
        store.reserve(self.count)
        self._join_repeats()
        with nogil:
            for i in range(self.count):
                s = &self.seen[i]
                if number[s.flow] != <uint32_t>NO_FLOW:
                    if s.captures > 1:
                        s.time = min(s.time, s.other)
                    store.add(s.time, max(s.size + more, least), number[s.flow], s.captures < 2 and both[s.flow])
        free(self.seen)
        table_free(&self.index)
        self.index.slots, self.index.mask, self.seen = NULL, 0, NULL
        self.count = self.room = 0


cdef int _columns(Block block, Columns* c) except -1:
    c.ts = <const int64_t*>column_of(block, "ts", 8)
    c.version, c.proto = column_of(block, "ip_version", 1), column_of(block, "proto", 1)
    c.src, c.dst = <const uint32_t*>column_of(block, "src_ip", 4), <const uint32_t*>column_of(block, "dst_ip", 4)
    c.src6, c.dst6 = column_of(block, "src_ip6", 16), column_of(block, "dst_ip6", 16)
    c.sport = <const uint16_t*>column_of(block, "src_port", 2)
    c.dport = <const uint16_t*>column_of(block, "dst_port", 2)
    c.ip_len, c.ip_id = <const uint32_t*>column_of(block, "ip_len", 4), <const uint16_t*>column_of(block, "ip_id", 2)
    c.frag = <const uint16_t*>column_of(block, "frag_offset", 2)
    c.seq, c.ack = <const uint32_t*>column_of(block, "tcp_seq", 4), <const uint32_t*>column_of(block, "tcp_ack", 4)
    c.payload = <const uint32_t*>column_of(block, "payload_len", 4)
    c.flags, c.mss = <const uint16_t*>column_of(block, "tcp_flags", 2), <const uint16_t*>column_of(block, "tcp_mss", 2)
    c.tsval = <const uint32_t*>column_of(block, "tcp_tsval", 4)
    return 0


cdef void _key(const Columns* c, uint32_t i, uint32_t src, uint32_t dst, const uint8_t* src6, const uint8_t* dst6,
               uint16_t sport, uint16_t dport, uint64_t* key) noexcept nogil:
    key[0] = <uint64_t>sport << 48 | <uint64_t>dport << 32 | <uint64_t>c.proto[i] << 8 | c.version[i]
    if c.version[i] == 6:
        memcpy(&key[1], src6 + 16 * <size_t>i, 16)
        memcpy(&key[3], dst6 + 16 * <size_t>i, 16)
    else:
        key[1], key[2], key[3], key[4] = src, 0, dst, 0
