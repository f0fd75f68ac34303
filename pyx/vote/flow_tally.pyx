"""Flows of an epoch, tallied: components are numbered, flows with loss keep their paths, the others are added up.

core.vote.fault_localiser judges it; the definitions are in vote/voting.py.
"""

import os
from collections import namedtuple
from hashlib import blake2b
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset
from c_hash_table cimport (
    HashTable, NOT_FOUND, hash1, hash2, table_find1, table_free, table_insert, table_insert1, table_insert2,
    table_reserve)
from c_array cimport grow
from confluo_tools.core.block.block cimport Block, Picks, column_of
cimport cython

cdef enum:
    CHUNK = 128                         # rows for which room is made at a time
    FLOW = 1
    FAILED = 2
    PARTIAL = 1                         # notes
    LOOP = 2
    NOISE = 16
    DEAD = 32 | 64                      # its handshake did not finish; its retransmissions time out again and again
    PROBE = 128

TalliedFlow = namedtuple("TalliedFlow", (
    "parts", "lost", "sent", "hops", "truth", "noise", "dead", "known", "src", "dst", "src_tor", "dst_tor", "last"))

cdef tuple COLUMNS = (
    "ts", "kind", "notes", "ip_version", "proto", "src_ip", "src_ip6", "dst_ip", "dst_ip6", "src_port", "dst_port",
    "sent", "lost", "hops", "path", "path6", "src_tor", "dst_tor", "link_a", "link_b", "rate")
cdef tuple WIDTHS = (8, 1, 1, 1, 1, 4, 16, 4, 16, 2, 2, 4, 4, 1, 4 * HOPS, 16 * HOPS, 4, 4, 4, 4, 8)


cdef int _columns(Block block, Rows* c) except -1:
    cdef const uint8_t* p[21]
    cdef int i
    for i in range(21):
        p[i] = column_of(block, COLUMNS[i], WIDTHS[i])
    c.ts, c.kind, c.notes, c.version, c.proto = <const int64_t*>p[0], p[1], p[2], p[3], p[4]
    c.src, c.src6, c.dst, c.dst6 = <const uint32_t*>p[5], p[6], <const uint32_t*>p[7], p[8]
    c.sport, c.dport = <const uint16_t*>p[9], <const uint16_t*>p[10]
    c.sent, c.lost, c.hops = <const uint32_t*>p[11], <const uint32_t*>p[12], p[13]
    c.path, c.path6 = <const uint32_t*>p[14], p[15]
    c.src_tor, c.dst_tor = <const uint32_t*>p[16], <const uint32_t*>p[17]
    c.link_a, c.link_b, c.rate = <const uint32_t*>p[18], <const uint32_t*>p[19], <const double*>p[20]
    return 0


cdef int _fill(HashTable* t, uint64_t** values, uint64_t* room, dict pairs) except -1:
    cdef uint64_t key
    if pairs and (table_reserve(t, len(pairs)) < 0 or grow(<void**>values, room, len(pairs), 256, 8) < 0):
        raise MemoryError
    for key, value in pairs.items():
        values[0][table_insert1(t, hash1(t, key), key)] = value
    return 0


cdef uint64_t _look(const HashTable* t, const uint64_t* values, uint64_t key, uint64_t otherwise) noexcept nogil:
    cdef uint32_t number = table_find1(t, key)
    return values[number] if number != NOT_FOUND else otherwise


def run(Block block not None, uint32_t start, int64_t epoch):
    """(number of the epoch, end, earliest and latest time) of the rows from ``start`` on that share their epoch.

    ``epoch`` in ns; 0: all rows share one.
    """
    cdef const int64_t* ts = <const int64_t*>column_of(block, "ts", 8)
    cdef int64_t number = 0, first, latest = INT64_MIN, earliest = INT64_MAX
    cdef uint64_t past = 0, left        # of the epoch before the first row, and from it on: no time overflows
    cdef uint32_t i = start
    if start >= block.rows or epoch < 0:
        raise ValueError(f"row {start} of {block.rows}, epoch {epoch}")
    first = ts[i]
    if epoch:
        number = first // epoch - (first % epoch < 0)
        past = first % epoch + (epoch if first % epoch < 0 else 0)
    left = <uint64_t>epoch - past
    with nogil:
        while i < block.rows and (epoch == 0 or (
                <uint64_t>ts[i] - <uint64_t>first < left if ts[i] >= first
                else <uint64_t>first - <uint64_t>ts[i] <= past)):
            latest, earliest = max(latest, ts[i]), min(earliest, ts[i])
            i += 1
    return number, i, earliest, latest


@cython.final
cdef class FlowTally:
    """The flows of one epoch.

    ``switches``: components are the switches of a path, not its directed links.  ``healthy``: what is made of flows
    without loss: 0 nothing, 1 their paths count (by shares where the path is not known), 2 shares always.
    ``keep``: their records are kept for flows with loss.  ``alias``: {address: node}.
    ``tor_of``: {host: its ToR}, for healthy flows that do not say theirs.
    """

    def __cinit__(self, *, bint switches=False, int healthy=1, bint keep=False, alias=None, tor_of=None):
        cdef HashTable* t
        cdef bytes seed
        cdef HashTable* tables[7]
        tables[0], tables[1], tables[2] = &self.table, &self.known, &self.pairs
        tables[3], tables[4], tables[5], tables[6] = &self.named, &self.alias, &self.home, &self.ends6
        self.switches, self.healthy, self.keep = switches, healthy, keep
        self.kept = []
        seed = os.urandom(16)
        for i in range(7):
            t = tables[i]
            t.words = 2 if i in (1, 2) else ENDS6 if i == 6 else 1
            memcpy(t.seed, <const char*>seed, 16)
            t.seed[1] |= 1
        _fill(&self.alias, &self.alias_to, &self.alias_room, alias or {})
        _fill(&self.home, &self.home_to, &self.home_room, tor_of or {})
        self.maps = dict(alias or {}), dict(tor_of or {})

    def __dealloc__(self):
        table_free(&self.table)
        table_free(&self.known)
        table_free(&self.ends6)
        table_free(&self.pairs)
        table_free(&self.named)
        table_free(&self.alias)
        free(self.good)
        free(self.carried)
        free(self.tiers)
        free(self.seen)
        free(self.part)
        free(self.same)
        free(self.times)
        free(self.names)
        free(self.alias_to)
        table_free(&self.home)
        free(self.home_to)
        free(self.failed)
        free(self.kept_flow)

    @property
    def question(self):
        """What is tallied, as text: states of the same question can be merged."""
        if self.described is None:
            maps = blake2b(repr([sorted(numbers.items()) for numbers in self.maps]).encode()).hexdigest()
            self.described = repr((bool(self.switches), self.healthy, bool(self.keep), maps)).encode()
        return self.described

    @property
    def components(self):
        """How many links or switches have been seen."""
        return self.table.count

    def add(self, Block block not None, uint32_t start, uint32_t end):
        """Take in rows of a block of path records.  ValueError when a column is not as the schema says."""
        cdef Rows c
        cdef Picks picks = Picks() if self.keep else None
        cdef uint32_t n = 0, at = start, to
        cdef int status = 0
        if not start <= end <= block.rows:
            raise ValueError(f"rows {start} to {end} of {block.rows}")
        _columns(block, &c)
        with nogil:
            while at < end and status == 0:
                to = min(end, at + CHUNK)
                status = self._room(to - at)
                if status == 0:
                    status = self._rows(&c, at, to, picks.list if self.keep else NULL, &n)
                at = to
        if status < 0:
            raise MemoryError(f"{self.flows} flows with loss")
        if n:
            picks.set_list(block.rows, n)
            self.kept.append(block.take(picks))

    cdef int _room(self, uint32_t n) noexcept nogil:
        if (table_reserve(&self.table, <uint64_t>n * MAX_PARTS) < 0 or table_reserve(&self.known, n) < 0
                or table_reserve(&self.ends6, n) < 0
                or table_reserve(&self.pairs, n) < 0 or table_reserve(&self.named, <uint64_t>n * MAX_PARTS) < 0
                or grow(<void**>&self.good, &self.good_room, self.table.room, 256, 8) < 0
                or grow(<void**>&self.carried, &self.carried_room, self.table.room, 256, 4) < 0
                or grow(<void**>&self.seen, &self.flow_room, self.flows + n, 256, sizeof(Seen)) < 0
                or grow(<void**>&self.part, &self.part_room, self.parts + <uint64_t>n * MAX_PARTS, 256, 4) < 0
                or grow(<void**>&self.same, &self.same_room, self.known.room, 256, 8) < 0
                or grow(<void**>&self.times, &self.times_room, self.pairs.room, 256, 8) < 0
                or grow(<void**>&self.names, &self.names_room, self.named.room, 256, 16) < 0
                or grow(<void**>&self.failed, &self.failed_room, self.failures + n, 256, 8) < 0):
            return -1
        if self.switches and grow(<void**>&self.tiers, &self.tiers_room, self.table.room, 256, 1) < 0:
            return -1
        if self.keep and grow(<void**>&self.kept_flow, &self.kept_room, self.kept_rows + n, 256, 4) < 0:
            return -1
        return 0 if self.flows + n < 0x7FFFFFFF else -1

    cdef int _rows(self, const Rows* c, uint32_t start, uint32_t end, uint16_t* chosen, uint32_t* n) noexcept nogil:
        cdef uint32_t i
        cdef int flow
        for i in range(start, end):
            if c.kind[i] == FAILED:
                self.failed[self.failures] = self._node(c.link_a[i]) << 32 | self._node(c.link_b[i])
                self.failures += 1
            elif c.kind[i] <= FLOW:  # records that do not say what they are, are flows
                self.records += 1
                flow = self._row(c, i)
                if chosen != NULL and flow >= 0:
                    chosen[n[0]] = <uint16_t>i
                    self.kept_flow[self.kept_rows] = <uint32_t>flow
                    self.kept_rows += 1
                    n[0] += 1
        return 0

    cdef int _row(self, const Rows* c, uint32_t i) noexcept nogil:
        # One flow; its number if it lost packets, else -1.
        cdef uint64_t key[MAX_PARTS]
        cdef uint32_t ids[MAX_PARTS]
        cdef uint64_t lost = c.lost[i], sent = max(c.sent[i], c.lost[i]), src, dst
        cdef uint32_t at, number
        cdef int n, hops, k
        cdef Seen record
        cdef bint new
        self.sent += sent
        self.lost += lost
        if c.notes[i] & PROBE:
            self.probes += 1
            n = self._path(c, i, key, &hops, False)
            for k in range(n):
                ids[k] = table_insert1(&self.table, hash1(&self.table, key[k]), key[k])
            # Nothing shows that a probe has crossed the link to the host.
            self._carry(ids, n if c.notes[i] & PARTIAL else n - 1)
            return -1
        if lost == 0:
            self.healthy_flows += 1
            self.healthy_sent += sent
            if self.healthy == HEALTHY_NONE:
                return -1
            if self.healthy == HEALTHY_PATH and c.hops[i]:
                n = self._path(c, i, key, &hops, False)
                for k in range(n):
                    ids[k] = table_insert1(&self.table, hash1(&self.table, key[k]), key[k])
                    self.good[ids[k]] += sent
                self._carry(ids, n)
                self._placed(ids, n)
                return -1
            src, dst = self._tor(c.src_tor[i], c.src[i]), self._tor(c.dst_tor[i], c.dst[i])
            if c.hops[i] and src == 0:
                src = self._node(c.path[<size_t>i * HOPS])
            if 0 < c.hops[i] <= HOPS and dst == 0 and not c.notes[i] & PARTIAL:
                dst = self._node(c.path[<size_t>i * HOPS + c.hops[i] - 1])
            if src == 0 or dst == 0:
                self.placeless += 1
                return -1
            if not self.switches:  # a host has one way to its ToR
                key[0], key[1] = self._node(c.src[i]) << 32 | src, dst << 32 | self._node(c.dst[i])
                for k in range(2):
                    self.good[table_insert1(&self.table, hash1(&self.table, key[k]), key[k])] += sent
            at = table_insert2(&self.pairs, hash2(&self.pairs, src << 32 | dst, sent), src << 32 | dst, sent)
            self.times[at] += 1
            return -1
        n = self._path(c, i, key, &hops, True)
        for k in range(n):
            ids[k] = table_insert1(&self.table, hash1(&self.table, key[k]), key[k])
        self._placed(ids, n)
        if n == 0:
            self.pathless += 1
        memset(&record, 0, sizeof(Seen))
        record.truth = self._node(c.link_a[i]) << 32 | self._node(c.link_b[i])
        record.noise = 1 if c.notes[i] & NOISE else 0
        record.src, record.dst = <uint32_t>self._node(c.src[i]), <uint32_t>self._node(c.dst[i])
        record.first = record.traced = record.latest = c.ts[i]
        record.lost, record.sent = lost, sent
        record.dead = (c.notes[i] & DEAD) != 0 and not self.switches
        record.n, record.known, record.hops = <uint8_t>n, <uint8_t>n, <uint8_t>hops
        self._ends(&record, c, i)
        self._carry(ids, n - 1 if record.dead and not c.notes[i] & PARTIAL else n)
        number = self._known(c, i, &new)
        self._add(&self.seen[number], &record, new)
        self._choose(&self.seen[number], &record, ids, new)
        return <int>number

    cdef void _add(self, Seen* s, const Seen* record, bint new) noexcept nogil:
        # What another record, or another share, says of a flow.  No result depends on the order in which they come.
        if new:
            s[0] = record[0]
            s.n = s.known = 0
            return
        self.repeated += 1
        s.lost += record.lost
        s.sent += record.sent
        if record.first < s.first or (record.first == s.first and (
                record.truth > s.truth or (record.truth == s.truth and record.noise > s.noise))):
            s.first, s.truth, s.noise = record.first, record.truth, record.noise
        if record.latest > s.latest:
            s.latest, s.dead = record.latest, record.dead
        elif record.latest == s.latest:
            s.dead |= record.dead

    cdef void _choose(self, Seen* s, const Seen* record, const uint32_t* ids, bint new) noexcept nogil:
        # The path of a record, if it is better than that known so far; there is room for its parts.
        if not new and not self._is_better(record, ids, s, self.part + s.start):
            return
        s.start, s.n, s.hops, s.known, s.traced = self.parts, record.n, record.hops, record.n, record.traced
        s.src_tor, s.dst_tor, s.last = record.src_tor, record.dst_tor, record.last
        s.gap_from, s.gap_to = record.gap_from, record.gap_to
        memcpy(self.part + self.parts, ids, record.n * sizeof(uint32_t))
        self.parts += record.n

    cdef bint _is_better(
        self, const Seen* s, const uint32_t* ids, const Seen* than, const uint32_t* its
    ) noexcept nogil:
        # The longer path, the older one, or any fixed choice.
        cdef uint64_t a, b
        cdef int k
        if s.n != than.n or s.traced != than.traced:
            return s.n > than.n if s.n != than.n else s.traced < than.traced
        for k in range(s.n):
            a, b = self.table.keys[ids[k]], self.table.keys[its[k]]
            if a != b:
                return a < b
        if s.hops != than.hops or s.last != than.last:
            return s.hops < than.hops if s.hops != than.hops else s.last < than.last
        a, b = <uint64_t>s.src_tor << 32 | s.dst_tor, <uint64_t>than.src_tor << 32 | than.dst_tor
        if a != b:
            return a < b
        return (<uint64_t>s.gap_from << 32 | s.gap_to) < (<uint64_t>than.gap_from << 32 | than.gap_to)

    cdef void _ends(self, Seen* s, const Rows* c, uint32_t i) noexcept nogil:
        # The ToRs of a flow with loss, and where its path ends when that is not at its destination.
        cdef const uint32_t* path = c.path + <size_t>i * HOPS
        cdef int hops = min(<int>c.hops[i], <int>HOPS)
        cdef bint partial = c.notes[i] & PARTIAL
        cdef int k
        s.src_tor, s.dst_tor = <uint32_t>self._tor(c.src_tor[i], c.src[i]), <uint32_t>self._tor(c.dst_tor[i], c.dst[i])
        s.last = s.gap_from = s.gap_to = 0
        for k in range(hops):
            if path[k] == 0 and s.gap_from == 0:
                s.gap_from = <uint32_t>self._node(path[k - 1]) if k else s.src
            elif path[k] and s.gap_from and s.gap_to == 0:
                s.gap_to = <uint32_t>self._node(path[k])
        if hops and s.src_tor == 0:
            s.src_tor = <uint32_t>self._node(path[0])
        if hops and s.dst_tor == 0 and not partial:
            s.dst_tor = <uint32_t>self._node(path[hops - 1])
        if partial and c.hops[i] <= HOPS:
            s.last = <uint32_t>self._node(path[hops - 1]) if hops else s.src

    cdef void _carry(self, const uint32_t* ids, int n) noexcept nogil:
        cdef int k
        for k in range(n):
            self.carried[ids[k]] += 1

    def partial_ends(self):
        """{(last node that answered, destination, its ToR)} of flows with loss and partial paths."""
        cdef uint64_t i
        return {(self.seen[i].last, self.seen[i].dst, self.seen[i].dst_tor)
                for i in range(self.flows) if self.seen[i].last}

    def gaps(self):
        """{(from, to)}: the nodes around the first switches of paths with loss that did not answer."""
        cdef uint64_t i
        return {(self.seen[i].gap_from, self.seen[i].gap_to)
                for i in range(self.flows) if self.seen[i].gap_from and self.seen[i].gap_to}

    def extend(self, following, between):
        """Add the links that may follow partial paths: {(last, destination, its ToR): [(from, to)]}, and those that may
        be in gaps: {(from, to): [(from, to)]}, which can only explain flows.

        A flow that died votes for those that no trace has crossed, or for all when there is none.  One that died with
        a whole path votes for the first link of its way back, if no trace has crossed it, and for the last one.
        """
        cdef uint64_t key[MAX_NEXT]
        cdef uint64_t i, a, b
        cdef uint32_t n
        cdef uint32_t targets
        cdef Seen* s
        cdef dict keys = {}
        self.extended = True
        for place, links in following.items():
            fresh, used = [], []
            for a, b in links[:MAX_NEXT]:
                at = self._find(a << 32 | b)
                (used if at != NONE and self.carried[at] else fresh).append(a << 32 | b)
            keys[place] = fresh + used, len(fresh) or len(used)
        for i in range(self.flows):
            s = &self.seen[i]
            n = targets = 0
            if s.last:
                links, targets = keys.get((s.last, s.dst, s.dst_tor), ((), 0))
                for a in links if s.dead or s.last != s.dst_tor else ():
                    if s.dead or a & 0xFFFFFFFFu:  # an unknown link explains nothing of a flow that lives
                        key[n] = a
                        n += 1
            elif s.dead and s.known:
                n = targets = self._back(s, key)
            for a, b in between.get((s.gap_from, s.gap_to), ()) if s.gap_to else ():
                if n < MAX_NEXT:
                    key[n] = a << 32 | b
                    n += 1
            if n and self._extend(s, key, n, targets) < 0:
                raise MemoryError(f"{self.flows} flows with loss")

    cdef uint32_t _back(self, const Seen* s, uint64_t* key) noexcept nogil:
        # The links of hosts on the way back of a flow that may have killed it.
        cdef uint32_t at, n = 0
        if s.dst_tor:
            key[0] = <uint64_t>s.dst << 32 | s.dst_tor
            at = self._find(key[0])
            n = 1 if at == NONE or self.carried[at] == 0 else 0
        if s.src_tor:
            key[n] = <uint64_t>s.src_tor << 32 | s.src
            n += 1
        return n

    cdef int _extend(self, Seen* s, const uint64_t* keys, uint32_t n, uint32_t targets) noexcept nogil:
        cdef uint64_t start = self.parts
        cdef uint32_t j, at
        if (table_reserve(&self.table, n) < 0
                or grow(<void**>&self.good, &self.good_room, self.table.room, 256, 8) < 0
                or grow(<void**>&self.carried, &self.carried_room, self.table.room, 256, 4) < 0
                or grow(<void**>&self.part, &self.part_room, self.parts + s.known + n, 256, 4) < 0):
            return -1
        for j in range(s.known):
            self.part[start + j] = self.part[s.start + j]
        self.parts += s.known
        for j in range(n):
            at = table_insert1(&self.table, hash1(&self.table, keys[j]), keys[j])
            self.part[self.parts] = at
            self.parts += 1
        s.start, s.n = start, <uint8_t>(s.known + n)
        s.targets = <uint8_t>targets
        return 0

    cdef uint32_t _known(self, const Rows* c, uint32_t i, bint* new) noexcept nogil:
        # The number of the flow; flows without ports (of simulators) are each their own.
        cdef uint64_t a, b
        cdef uint64_t ends[ENDS6]
        cdef uint32_t at, before = self.known.count
        new[0] = True
        if c.sport[i] | c.dport[i]:
            a = <uint64_t>c.src[i] << 32 | c.dst[i]
            b = (<uint64_t>c.sport[i] << 32 | <uint64_t>c.dport[i] << 16 | <uint64_t>c.proto[i] << 8) | c.version[i]
            if c.version[i] == 6:
                ends[0] = a
                memcpy(&ends[1], c.src6 + <size_t>i * 16, 16)
                memcpy(&ends[3], c.dst6 + <size_t>i * 16, 16)
                a = table_insert(&self.ends6, ends)
            at = table_insert2(&self.known, hash2(&self.known, a, b), a, b)
            new[0] = at == before
            if not new[0]:
                return <uint32_t>self.same[at]
            self.same[at] = self.flows
        self.flows += 1
        return <uint32_t>(self.flows - 1)

    cdef int _path(self, const Rows* c, uint32_t i, uint64_t* out, int* hops, bint lossy) noexcept nogil:
        # The components that a flow is known to have crossed, each once, and h.
        cdef const uint32_t* path = c.path + <size_t>i * HOPS
        cdef int length = c.hops[i], n = 0, k, j, at
        cdef bint partial = c.notes[i] & PARTIAL, loop = c.notes[i] & LOOP
        cdef uint64_t node[HOPS + 2]
        hops[0] = 0
        if length == 0:
            return 0
        if length > HOPS:
            length, partial = HOPS, True
            self.cut += 1
        self.partial += 1 if partial else 0
        node[0] = self._node(c.src[i])
        for k in range(length):
            node[k + 1] = self._node(path[k])
        node[length + 1] = 0 if partial else self._node(c.dst[i])
        if lossy and c.version[i] == 6:
            if node[0] == c.src[i]:
                self._name(node[0], c.src6 + <size_t>i * 16)
            if node[length + 1] == c.dst[i]:
                self._name(node[length + 1], c.dst6 + <size_t>i * 16)
            for k in range(length):
                if node[k + 1] == path[k]:
                    self._name(path[k], c.path6 + (<size_t>i * HOPS + k) * 16)
        if self.switches:
            for k in range(length):
                if node[k + 1]:
                    out[n], self.place[n] = node[k + 1], 0 if partial else <uint8_t>(min(k, length - 1 - k) + 1)
                    n += 1
            hops[0] = length
        else:
            for k in range(length + 1):
                if node[k] and node[k + 1]:
                    out[n] = node[k] << 32 | node[k + 1]
                    n += 1
            hops[0] = length if partial else length + 1
        for k in range(1, length):
            for j in range(k):
                loop |= node[k + 1] != 0 and node[k + 1] == node[j + 1]
        j = n
        if loop:
            self.loops += 1
            j = 0
            memset(self.place, 0, MAX_PARTS)
            for k in range(n):  # each component counts once
                at = 0
                while at < j and out[at] != out[k]:
                    at += 1
                if at == j:
                    out[j] = out[k]
                    j += 1
        hops[0] -= n - j
        return j

    cdef void _placed(self, const uint32_t* ids, int n) noexcept nogil:
        cdef int k
        for k in range(n if self.switches else 0):
            if self.place[k] and (self.tiers[ids[k]] == 0 or self.place[k] < self.tiers[ids[k]]):
                self.tiers[ids[k]] = self.place[k]

    cdef uint64_t _node(self, uint64_t number) noexcept nogil:
        return _look(&self.alias, self.alias_to, number, number) if number else 0

    cdef uint64_t _tor(self, uint64_t given, uint64_t host) noexcept nogil:
        return self._node(given) if given else _look(&self.home, self.home_to, host, 0)

    cdef void _name(self, uint64_t number, const uint8_t* address) noexcept nogil:
        cdef uint32_t at, before = self.named.count
        cdef uint64_t zero[2]
        zero[0] = zero[1] = 0
        if number and memcmp(address, zero, 16):
            at = table_insert1(&self.named, hash1(&self.named, number), number)
            if at == before or memcmp(address, self.names + <size_t>at * 16, 16) < 0:
                memcpy(self.names + <size_t>at * 16, address, 16)

    cdef uint32_t _find(self, uint64_t key) noexcept nogil:
        # The number of a component, NONE when no flow crossed it.
        return table_find1(&self.table, key)

    # -- what was seen

    def key(self, uint32_t number):
        """(a, b) of component ``number``; a switch is (a, a)."""
        if number >= self.table.count:
            raise IndexError(number)
        cdef uint64_t key = self.table.keys[number]
        return (key, key) if self.switches else (key >> 32, key & 0xFFFFFFFFu)

    def find(self, uint32_t a, uint32_t b):
        """The number of the component, -1 when no flow crossed it."""
        cdef uint32_t at = self._find(a if self.switches else <uint64_t>a << 32 | b)
        return -1 if at == NONE else <int64_t>at

    def tier(self, uint32_t number):
        """How far from the nearer end of a whole path a switch was seen, 0 for ToRs; -1: not known, or a link."""
        if number >= self.table.count:
            raise IndexError(number)
        return <int>self.tiers[number] - 1 if self.switches else -1

    def truth(self):
        """The failed links (or switches, as (a, a)) in the records, each once, sorted."""
        cdef uint64_t i
        return sorted({(self.failed[i] >> 32, self.failed[i] & 0xFFFFFFFFu) for i in range(self.failures)})

    def addresses(self):
        """{node: 16 bytes} of nodes that are folds of IPv6 addresses."""
        cdef uint32_t i
        return {self.named.keys[i]: self.names[i * 16:i * 16 + 16] for i in range(self.named.count)}

    def flow_of(self, uint64_t row):
        """The number of the flow of a record that was kept."""
        if row >= self.kept_rows:
            raise IndexError(row)
        return self.kept_flow[row]

    def flow(self, uint64_t number):
        """A flow with loss: its components, packets lost and sent, h, truth (a, b) or None, and whether it is noise."""
        cdef uint64_t i
        cdef Seen* s
        if number >= self.flows:
            raise IndexError(number)
        s = &self.seen[number]
        truth = (s.truth >> 32, s.truth & 0xFFFFFFFFu) if s.truth else None
        parts = tuple(self.part[s.start + i] for i in range(s.n))
        return TalliedFlow(parts, s.lost, s.sent, s.hops, truth, bool(s.noise), bool(s.dead), s.known, s.src, s.dst,
                           s.src_tor, s.dst_tor, s.last)

    def carried_by(self, uint32_t number):
        """Traces that crossed component ``number``."""
        if number >= self.table.count:
            raise IndexError(number)
        return self.carried[number]

    def tor_pairs(self):
        """{(src_tor, dst_tor)} of flows without loss that are counted by their ToRs."""
        cdef uint64_t i
        return {(key >> 32, key & 0xFFFFFFFFu) for key in {self.pairs.keys[2 * i] for i in range(self.pairs.count)}}

    def healthy_pairs(self):
        """[(src_tor, dst_tor, sent, flows)] of flows without loss that are counted by their ToRs."""
        cdef uint64_t i
        return [(self.pairs.keys[2 * i] >> 32, self.pairs.keys[2 * i] & 0xFFFFFFFFu, self.pairs.keys[2 * i + 1],
                 self.times[i]) for i in range(self.pairs.count)]
