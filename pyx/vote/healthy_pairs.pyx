"""Flows without loss and without a known path: evidence about the components between their ToRs."""

from libc.math cimport exp, log, log1p
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from c_hash_table cimport HashTable, hash1, table_free, table_insert1, table_reserve
from confluo_tools.core.vote.flow_tally cimport NONE, FlowTally
cimport cython


@cython.final
cdef class HealthyPairs:
    """The flows of a tally without loss and without a path, by their pair of ToRs.

    ``routes``: of such flows, by their pair of ToRs, [(chance, the components that they cross with it)]; a component
    is a << 32 | b, or a switch.
    """

    def __cinit__(self, FlowTally tally not None, dict routes not None):
        self.tally = tally
        if tally.pairs.count:
            self._sort(routes)

    def __dealloc__(self):
        free(self.pair)
        free(self.share)
        free(self.shared_part)
        free(self.entry)
        free(self.amount)
        free(self.level)
        free(self.term)

    cdef _sort(self, dict routes):
        # Groups the flows by their ToRs, and the components of a pair by the chance to cross them.
        cdef HashTable groups, amounts
        cdef uint64_t n = self.tally.pairs.count
        cdef uint32_t* group = <uint32_t*>malloc((n + 1) * 4)
        cdef uint32_t i
        memset(&groups, 0, sizeof(HashTable))
        groups.words = 1
        memcpy(groups.seed, self.tally.pairs.seed, 16)
        amounts = groups
        try:
            if group == NULL or table_reserve(&groups, n) < 0 or table_reserve(&amounts, n) < 0:
                raise MemoryError
            self._group(&groups, &amounts, group, routes)
            self.amounts = amounts.count
            self.amount = <double*>malloc((<size_t>self.amounts + 1) * 8)
            self.term = <double*>malloc((<size_t>self.amounts * self.levels + 1) * 8)
            if self.amount == NULL or self.term == NULL:
                raise MemoryError
            for i in range(self.amounts):
                self.amount[i] = <double>amounts.keys[i]
        finally:
            table_free(&groups)
            table_free(&amounts)
            free(group)

    cdef _group(self, HashTable* groups, HashTable* amounts, uint32_t* group, dict routes):
        cdef FlowTally t = self.tally
        cdef uint64_t i, key, at = 0, n = t.pairs.count
        cdef uint32_t c, g, room = 0, parts = 0
        cdef list known = []
        cdef dict levels = {}
        cdef const uint64_t[::1] members
        cdef double f
        cdef uint32_t* place
        with nogil:
            for i in range(n):
                key = t.pairs.keys[2 * i]
                group[i] = table_insert1(groups, hash1(groups, key), key)
        for g in range(groups.count):
            key = groups.keys[g]
            known.append(routes.get((key >> 32, key & 0xFFFFFFFFu)))
            for f, keys in known[g] or []:
                levels.setdefault(f, len(levels))
                room += 1
                parts += <uint32_t>len(keys)
        self.entry = <Entry*>malloc((n + 1) * sizeof(Entry))
        self.pair = <Pair*>calloc(groups.count + 1, sizeof(Pair))
        self.share = <Share*>calloc(room + 1, sizeof(Share))
        self.shared_part = <uint32_t*>malloc((<size_t>parts + 1) * 4)
        place = <uint32_t*>malloc((<size_t>groups.count + 1) * 4)
        self.levels = <uint32_t>len(levels)
        self.level = <double*>malloc((<size_t>self.levels + 1) * 8)
        try:
            if (self.level == NULL or self.entry == NULL or self.pair == NULL or self.share == NULL
                    or self.shared_part == NULL or place == NULL):
                raise MemoryError
            for f, i in levels.items():
                self.level[i] = f
            room = parts = 0
            for g in range(groups.count):
                place[g] = NONE
                if known[g] is None:
                    continue
                place[g] = self.pairs
                self.pair[self.pairs].share = room
                for f, keys in known[g]:
                    members = keys
                    self.share[room].f, self.share[room].start, self.share[room].level = f, parts, levels[f]
                    for i in range(<uint64_t>members.shape[0]):
                        c = t._find(members[i])
                        if c != NONE:
                            self.shared_part[parts] = c
                            parts += 1
                    self.share[room].n = parts - self.share[room].start
                    room += 1
                self.pair[self.pairs].shares = room - self.pair[self.pairs].share
                self.pairs += 1
            with nogil:
                for i in range(n):
                    if place[group[i]] == NONE:
                        self.unrouted += t.times[i]
                    else:
                        self.pair[place[group[i]]].entries += 1
                for g in range(self.pairs):
                    self.pair[g].entry = at
                    at += self.pair[g].entries
                    self.pair[g].entries = 0
                for i in range(n):
                    g = place[group[i]]
                    if g != NONE:
                        at = self.pair[g].entry + self.pair[g].entries
                        key = t.pairs.keys[2 * i + 1]
                        self.entry[at].amount = table_insert1(amounts, hash1(amounts, key), key)
                        self.entry[at].times = <double>t.times[i]
                        self.pair[g].entries += 1
        finally:
            free(place)

    cdef void add_packets(self, double* packets) noexcept nogil:
        """Add to ``packets`` of each component what these flows sent through it, in the mean."""
        cdef uint64_t e
        cdef uint32_t i, j, k
        cdef double all
        for i in range(self.pairs):
            all = 0
            for e in range(self.pair[i].entry, self.pair[i].entry + self.pair[i].entries):
                all += self.amount[self.entry[e].amount] * self.entry[e].times
            for j in range(self.pair[i].share, self.pair[i].share + self.pair[i].shares):
                for k in range(self.share[j].n):
                    packets[self.shared_part[self.share[j].start + k]] += self.share[j].f * all

    cdef void add_likelihood(self, double p_b, double p_g, double* out, uint32_t step) noexcept nogil:
        """Add to ``out`` of each component, ``step`` apart, the log-likelihood ratio of these flows.

        ``p_b``, ``p_g``: drop rates of a bad and of a good component.
        """
        cdef double c = log1p(-p_b) - log1p(-p_g), f, total
        cdef const double* terms
        cdef uint64_t e
        cdef uint32_t i, j, k
        for j in range(self.levels):
            f = self.level[j]
            for i in range(self.amounts):
                self.term[<size_t>j * self.amounts + i] = (
                    self.amount[i] * c if f >= 1 else log(1 - f + f * exp(self.amount[i] * c)))
        for i in range(self.pairs):
            for j in range(self.pair[i].share, self.pair[i].share + self.pair[i].shares):
                terms, total = self.term + <size_t>self.share[j].level * self.amounts, 0
                for e in range(self.pair[i].entry, self.pair[i].entry + self.pair[i].entries):
                    total += self.entry[e].times * terms[self.entry[e].amount]
                for k in range(self.share[j].n):
                    out[<size_t>self.shared_part[self.share[j].start + k] * step] += total
