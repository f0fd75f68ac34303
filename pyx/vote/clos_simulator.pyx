"""Simulator of a Clos with links that drop packets (007, section 6), flow by flow."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from c_random cimport (
    ONE63, POWERS, Stream, below, draw, mul63, mulhi, seed_stream, squares, survivors,
)
from c_clos_flow cimport Flow, farthest, live, place
from c_hash_table cimport mum
from confluo_tools.core.block.block cimport Staging
cimport cython

cdef enum:                          # kinds of directed link, in the order of a path
    HOST_TOR
    TOR_T1
    T1_T2
    T2_T1
    T1_TOR
    TOR_HOST
    KINDS

cdef enum:                          # quirks of the authors' program
    LAST_HOP = 1                    # no link from the ToR to the host
    TWO_DRAWS = 2                   # whether and how many are drawn apart
    CULPRIT = 4                     # the first failed link of the path is recorded as the truth, whichever dropped

cdef enum:                          # healthy flows
    LEFT_OUT = 0
    BARE = 1
    WHOLE = 2

cdef enum:                          # streams of random numbers of a seed; every second of FLOWS, DROPS is an epoch's
    RATES = 1
    FLOWS = 16
    DROPS = 17
    TRACES = 1 << 30                # below 2 ** 31: an int
    LIVES = 1 << 29

cdef enum:                          # what a failure drops
    SHARE = 0                       # of all packets, by chance
    PAIRS = 1                       # all packets of a share of the address pairs
    TUPLES = 2                      # of the five-tuples

cdef enum:                          # notes of schema/path.yaml
    PARTIAL = 1
    CAPPED = 8
    NOISE = 16
    PROBE = 128

cdef enum:
    PROBES = 6                      # other source ports that are traced when the path of a flow that died ends early
    MAX_NODES = 1 << 21
    MAX_PACKETS = 1 << 24
    MAX_LINKS = 1 << 24
    AT_ONCE = 1 << 21               # flows of a call: a signal waits no longer
    HOPS = 16

cdef enum:                          # columns that are written
    C_TS
    C_KIND
    C_NOTES
    C_PROTO
    C_SRC_IP
    C_DST_IP
    C_SRC_PORT
    C_DST_PORT
    C_SENT
    C_LOST
    C_RETRANS
    C_HOPS
    C_PATH
    C_SRC_TOR
    C_DST_TOR
    C_LINK_A
    C_LINK_B
    COLS

_COLUMNS = (("ts", 8), ("kind", 1), ("notes", 1), ("proto", 1), ("src_ip", 4), ("dst_ip", 4), ("src_port", 2),
            ("dst_port", 2), ("sent", 4), ("lost", 4), ("retrans", 4), ("hops", 1), ("path", 4 * HOPS),
            ("src_tor", 4), ("dst_tor", 4), ("link_a", 4), ("link_b", 4))


@cython.final
cdef class ClosSimulator:
    """A network of `pods` x (`tors` + `t1s`) + `t2s` switches and `hosts` a ToR, all rates 0.

    Probabilities are integers, 2**63 is certainty.  A link is (kind, number): see `link`.
    """

    cdef readonly uint32_t pods, tors, t1s, t2s, hosts      # tors, t1s: of a pod; hosts: of a ToR
    cdef readonly uint32_t all_tors, all_hosts, links
    cdef uint32_t first_host
    cdef uint32_t offset[KINDS + 1]
    cdef uint64_t* rate                 # a link
    cdef uint32_t* owner                # a link: 0 good; 1 failed; else 2 + the device that failed
    cdef uint32_t* connections          # a host, this epoch
    cdef uint32_t* traced               # a host, this epoch
    cdef uint32_t* hot                  # ToRs: hot ones, then the others
    cdef uint32_t* place                # index of a ToR in `hot`
    cdef uint32_t hot_tors
    cdef uint64_t skew, seed, silence
    cdef uint32_t least_packets, most_packets, least_connections, most_connections, cap
    cdef bint pareto
    cdef int healthy, quirks
    cdef int64_t start, step            # ns; ns << 20 a slot
    cdef uint32_t round, rounds, at
    cdef bint deaths
    cdef int holes
    cdef Stream flows_of, drops_of, traces_of, lives_of
    cdef readonly uint64_t flows, affected, packets, lost

    def __cinit__(self, uint32_t pods, uint32_t tors, uint32_t t1s, uint32_t t2s, uint32_t hosts, uint32_t first_host,
                  uint64_t seed):
        cdef uint64_t all_tors = <uint64_t>pods * tors, all_t1s = <uint64_t>pods * t1s
        cdef uint64_t n = 0
        cdef int k
        cdef uint64_t size[KINDS]
        if not (pods and tors and t1s and t2s and hosts) or max(pods, tors, t1s, t2s, hosts) > MAX_NODES:
            raise ValueError(f"a network of {pods} pods, {tors} ToRs, {t1s} T1s, {t2s} T2s and {hosts} hosts")
        if all_tors < 2:
            raise ValueError("one ToR: flows go to other ToRs")
        if all_tors > MAX_NODES or all_t1s > MAX_NODES or all_tors * hosts > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} hosts or switches")
        size[HOST_TOR] = size[TOR_HOST] = all_tors * hosts
        size[TOR_T1] = size[T1_TOR] = all_tors * t1s
        size[T1_T2] = size[T2_T1] = all_t1s * t2s
        for k in range(KINDS):
            self.offset[k] = n
            n += size[k]
            if n > MAX_LINKS:
                raise ValueError(f"more than {MAX_LINKS} links")
        self.offset[KINDS] = n
        self.pods, self.tors, self.t1s, self.t2s, self.hosts = pods, tors, t1s, t2s, hosts
        self.all_tors, self.all_hosts, self.links = all_tors, all_tors * hosts, n
        if first_host <= all_tors + all_t1s + t2s or <uint64_t>first_host + self.all_hosts > 1 << 24:
            raise ValueError(f"hosts numbered from {first_host}")
        self.first_host, self.seed = first_host, seed
        self.rate = <uint64_t*>calloc(n, 8)
        self.owner = <uint32_t*>calloc(n, 4)
        self.connections = <uint32_t*>calloc(self.all_hosts, 4)
        self.traced = <uint32_t*>calloc(self.all_hosts, 4)
        self.hot = <uint32_t*>calloc(all_tors, 4)
        self.place = <uint32_t*>calloc(all_tors, 4)
        if not (self.rate and self.owner and self.connections and self.traced and self.hot and self.place):
            raise MemoryError
        for k in range(<int>all_tors):
            self.hot[k] = self.place[k] = k
        self.set_flows(60, 60, 1, 100, False, LEFT_OUT, 0, 0)

    def __dealloc__(self):
        free(self.rate)
        free(self.owner)
        free(self.connections)
        free(self.traced)
        free(self.hot)
        free(self.place)

    def count(self, int kind):
        """How many links of a kind there are."""
        if not 0 <= kind < KINDS:
            raise IndexError(kind)
        return self.offset[kind + 1] - self.offset[kind]

    def link(self, int kind, uint32_t number):
        """(from, to) of a link, as node numbers."""
        if number >= self.count(kind):
            raise IndexError((kind, number))
        return self._from(self.offset[kind] + number), self._to(self.offset[kind] + number)

    def set_noise(self, uint64_t most):
        """Every link gets a drop rate of its own from 0 up to ``most``, and is good."""
        cdef Stream r
        cdef uint32_t i
        if most > ONE63:
            raise ValueError("a probability above 1")
        seed_stream(&r, self.seed, RATES)
        for i in range(self.links):
            self.rate[i], self.owner[i] = mulhi(draw(&r), most), 0

    def fail(self, int kind, uint32_t number, uint64_t rate, uint32_t device=0):
        """Make a link drop with ``rate``; ``device``: the switch that fails, if the link drops because of it."""
        cdef uint32_t i = self.offset[kind] + number
        if number >= self.count(kind):
            raise IndexError((kind, number))
        if rate > ONE63:
            raise ValueError("a probability above 1")
        self.rate[i] = mul63(ONE63 - self.rate[i], rate) + self.rate[i] if self.owner[i] or device else rate
        if not self.owner[i]:
            self.owner[i] = 2 + device if device else 1

    def rate_of(self, int kind, uint32_t number):
        """(its drop rate, whether it failed)."""
        if number >= self.count(kind):
            raise IndexError((kind, number))
        return self.rate[self.offset[kind] + number], self.owner[self.offset[kind] + number] != 0

    def set_hot(self, tors, uint64_t skew):
        """``skew``: the share of the flows that goes to the ToRs ``tors`` (counted from 0), evenly."""
        cdef uint32_t i
        cdef uint32_t n = 0
        chosen = sorted(set(tors))
        if skew > ONE63 or (chosen and not 0 <= min(chosen) <= max(chosen) < self.all_tors):
            raise ValueError("hot ToRs")
        self.hot_tors, self.skew = len(chosen), skew if chosen else 0
        for tor in [*chosen, *sorted(set(range(self.all_tors)).difference(chosen))]:
            i = tor
            self.hot[n], self.place[i] = i, n
            n += 1

    def set_flows(self, uint32_t least_connections, uint32_t most_connections, uint32_t least_packets,
                  uint32_t most_packets, bint pareto, int healthy, int quirks, uint32_t cap):
        """Connections of a host and packets of a flow: from .. to.  ``pareto``: many small flows, few large ones
        (alpha 1).  ``cap``: flows of a host that are traced in an epoch, 0 for all.
        """
        if not least_connections <= most_connections <= MAX_PACKETS:
            raise ValueError("connections")
        if not 1 <= least_packets <= most_packets <= MAX_PACKETS:
            raise ValueError("packets")
        self.least_connections, self.most_connections = least_connections, most_connections
        self.least_packets, self.most_packets, self.pareto = least_packets, most_packets, pareto
        self.healthy, self.quirks, self.cap = healthy, quirks, cap

    def set_silence(self, uint64_t chance):
        """Each switch of a path that is traced does not answer with this chance."""
        if chance > ONE63:
            raise ValueError("a probability above 1")
        self.silence = chance

    def set_deaths(self, bint deaths, int holes):
        """``deaths``: TCP with handshakes, time-outs and lost acknowledgements, and traces that losses cut short.
        ``holes``: failures drop by address pair (1) or five-tuple (2), always or never, not by chance (0).
        """
        if not 0 <= holes <= 2:
            raise ValueError("holes")
        self.deaths, self.holes = deaths, holes

    def begin(self, uint32_t epoch, int64_t start, int64_t length):
        """Make ready for the flows of an epoch: its number, when it begins, how long it is (ns)."""
        cdef uint32_t i, most = 0
        cdef uint64_t slots
        if not 0 < length < <int64_t>1 << 42:
            raise ValueError("the length of an epoch")
        seed_stream(&self.flows_of, self.seed, FLOWS + 2 * <uint64_t>epoch)
        seed_stream(&self.drops_of, self.seed, DROPS + 2 * <uint64_t>epoch)
        seed_stream(&self.traces_of, self.seed, <uint64_t>TRACES * 8 + epoch)
        seed_stream(&self.lives_of, self.seed, <uint64_t>LIVES * 8 + epoch)
        memset(self.traced, 0, <size_t>self.all_hosts * 4)
        for i in range(self.all_hosts):
            self.connections[i] = self.least_connections
            if self.most_connections > self.least_connections:
                self.connections[i] += below(&self.flows_of, self.most_connections - self.least_connections + 1)
            most = max(most, self.connections[i])
        self.round, self.rounds, self.at = 0, most, 0
        slots = <uint64_t>most * self.all_hosts
        self.start = start
        self.step = (<uint64_t>length << 20) // slots if slots else 0

    @property
    def more(self):
        """Whether the epoch has flows left."""
        return self.round < self.rounds

    def fill(self, Staging block not None):
        """Records of the epoch into the block, from its beginning: how many; there may be `more` even if it is not
        full.  ValueError when the block lacks a column.
        """
        cdef void* col[COLS]
        cdef int i
        cdef uint32_t rows
        for i in range(COLS):
            name, width = _COLUMNS[i]
            k = block.layout.get(name)
            if k < 0 or block.layout.column[<int>k].width != width:
                raise ValueError(f"no column {name} of {width} bytes")
            col[i] = block.out[<int>k]
        with nogil:
            rows = self._fill(col, block.capacity)
            block.set_rows(rows)
        return rows

    cdef uint32_t _fill(self, void** col, uint32_t room) noexcept nogil:
        cdef uint32_t rows = 0, left = AT_ONCE
        cdef uint64_t n
        cdef Flow f
        while left and rows + PROBES < room and self.round < self.rounds:
            left -= 1
            n = self.connections[self.at]
            # Those of a host are spread evenly over the rounds.
            if (self.round + 1) * n // self.rounds > self.round * n // self.rounds:
                self._flow(&f, self.at)
                if self.deaths:
                    self._die(&f)
                else:
                    self._lose(&f)
                self.flows += 1
                self.packets += f.packets
                if f.total:
                    self.affected += 1
                    self.lost += f.total
                if f.total or self.healthy:
                    rows += self._emit(col, rows, &f)
            self.at += 1
            if self.at == self.all_hosts:
                self.at, self.round = 0, self.round + 1
        return rows

    cdef void _flow(self, Flow* f, uint32_t host) noexcept nogil:
        cdef Stream* r = &self.flows_of
        memset(f, 0, sizeof(Flow))
        f.src, f.src_tor = host, host // self.hosts
        f.dst_tor = self._destination(f.src_tor)
        f.dst = f.dst_tor * self.hosts + <uint32_t>below(r, self.hosts)
        self._way(f, r)
        f.packets = self.least_packets
        if self.pareto:
            f.packets = self._pareto(r)
        elif self.most_packets > self.least_packets:
            f.packets += <uint32_t>below(r, self.most_packets - self.least_packets + 1)

    cdef void _way(self, Flow* f, Stream* r) noexcept nogil:
        # The links from its source to its destination, by ECMP.
        cdef uint32_t host = f.src, tor = f.src_tor, pod = tor // self.tors, n
        f.t1 = pod * self.t1s + <uint32_t>below(r, self.t1s)
        f.link[0] = self.offset[HOST_TOR] + host
        f.link[1] = self.offset[TOR_T1] + tor * self.t1s + f.t1 % self.t1s
        n = 2
        f.dst_t1 = f.t1
        if f.dst_tor // self.tors != pod:
            f.t2 = <uint32_t>below(r, self.t2s)
            f.dst_t1 = f.dst_tor // self.tors * self.t1s + <uint32_t>below(r, self.t1s)
            f.link[2] = self.offset[T1_T2] + f.t1 * self.t2s + f.t2
            f.link[3] = self.offset[T2_T1] + f.dst_t1 * self.t2s + f.t2
            n = 4
        f.link[n] = self.offset[T1_TOR] + f.dst_tor * self.t1s + f.dst_t1 % self.t1s
        n += 1
        if not self.quirks & LAST_HOP:
            f.link[n] = self.offset[TOR_HOST] + f.dst
            n += 1
        f.links = n

    cdef uint32_t _pareto(self, Stream* r) noexcept nogil:
        # least / u with u above least / most: density 1 / x**2, cut off at most.
        cdef uint64_t low = (<uint64_t>self.least_packets << 32) // self.most_packets
        cdef uint64_t u = low + below(r, (<uint64_t>1 << 32) - low) + 1
        return max(min(<uint32_t>((<uint64_t>self.least_packets << 32) // u), self.most_packets), self.least_packets)

    cdef uint32_t _destination(self, uint32_t tor) noexcept nogil:
        # Another ToR: of the hot ones with the chance `skew`, else of the others; of all when a group has no other.
        cdef Stream* r = &self.flows_of
        cdef uint32_t first = 0, n = self.all_tors, k
        cdef bint own
        if self.skew:
            if draw(r) >> 1 < self.skew:
                n = self.hot_tors
            else:
                first, n = self.hot_tors, self.all_tors - self.hot_tors
        own = first <= self.place[tor] < first + n
        if n <= (1 if own else 0):
            first, n, own = 0, self.all_tors, True
        k = first + <uint32_t>below(r, n - (1 if own else 0))
        if own and k >= self.place[tor]:
            k += 1
        return self.hot[k]

    cdef uint64_t _rate_for(self, uint32_t link, uint32_t src, uint32_t dst, uint32_t port) noexcept nogil:
        # The drop rate of a link for a flow; a black hole drops all packets of some.
        cdef uint64_t key
        if not self.holes or not self.owner[link]:
            return self.rate[link]
        key = self.owner[link] if self.owner[link] > 1 else <uint64_t>link + (<uint64_t>1 << 32)
        key = mum(key ^ self.seed, 0x9E3779B97F4A7C15u) ^ (<uint64_t>src << 32 | dst)
        key = mum(key, 0xD1342543DE82EF95u) ^ (port if self.holes == TUPLES else 0)
        return ONE63 if mum(key, 0xBF58476D1CE4E5B9u) >> 1 < self.rate[link] else 0

    cdef void _die(self, Flow* f) noexcept nogil:
        # The flow with its way back: it may die, and lost acknowledgements count as losses.
        cdef Flow back
        cdef int i
        cdef uint32_t most = 0
        memset(&back, 0, sizeof(Flow))
        back.src, back.src_tor, back.dst, back.dst_tor = f.dst, f.dst_tor, f.src, f.src_tor
        self._way(&back, &self.lives_of)
        for i in range(f.links):
            f.back[i] = back.link[i]
            f.rate[i] = self._rate_for(f.link[i], f.src, f.dst, self.round)
            f.rate_back[i] = self._rate_for(f.back[i], f.dst, f.src, self.round)
        live(&self.lives_of, f)
        f.culprit = -1
        for i in range(f.links):
            if f.lost[i] > most:
                most, f.culprit = f.lost[i], i
            if f.lost_back[i] > most:
                most, f.culprit = f.lost_back[i], f.links + i

    cdef uint32_t _compare(self, void** col, uint32_t row, Flow* like) noexcept nogil:
        # Records of other source ports between the same hosts; how many.
        cdef Flow f
        cdef int i, k
        cdef uint32_t port
        for i in range(PROBES):
            memset(&f, 0, sizeof(Flow))
            f.src, f.src_tor, f.dst, f.dst_tor = like.src, like.src_tor, like.dst, like.dst_tor
            self._way(&f, &self.lives_of)
            port = 32768 + <uint32_t>below(&self.lives_of, 16384)
            for k in range(f.links):
                f.rate[k] = self._rate_for(f.link[k], f.src, f.dst, port)
            f.culprit = -1
            self._emit(col, row + i, &f)
            (<uint8_t*>col[C_NOTES])[row + i] |= PROBE
            (<uint16_t*>col[C_SRC_PORT])[row + i] = <uint16_t>(1024 + port)
        return PROBES

    cdef void _lose(self, Flow* f) noexcept nogil:
        cdef Stream* r = &self.drops_of
        cdef uint64_t keep = ONE63, some, u, v, left
        cdef uint64_t power[POWERS]
        cdef int i, bits
        f.total, f.culprit = 0, -1
        for i in range(f.links):
            f.lost[i] = 0
        if self.quirks & TWO_DRAWS:
            self._lose_twice(f)
        else:
            for i in range(f.links):
                f.rate[i] = self.rate[f.link[i]]
                keep = mul63(keep, ONE63 - f.rate[i])
            some = ONE63 - keep             # the chance that a packet is lost
            u = draw(r) >> 1
            if some < <uint64_t>1 << 39 and u >= some * f.packets:
                return                      # since packets * some >= 1 - keep ** packets
            left = f.packets
            bits = squares(power, keep, left)
            while left:
                v = survivors(power, bits, left, u)
                if v >= left:
                    break
                left -= v + 1
                f.lost[place(r, f.rate, f.links, some)] += 1
                f.total += 1
                u = draw(r) >> 1
        if f.total:
            self._blame(f)

    cdef void _lose_twice(self, Flow* f) noexcept nogil:
        # The authors' program: first whether each link drops, then how many; 0 of a link that does counts in nothing.
        cdef Stream* r = &self.drops_of
        cdef uint64_t power[POWERS]
        cdef uint64_t rate, left, v
        cdef int i, bits
        cdef bint some = False
        for i in range(f.links):
            rate = self.rate[f.link[i]]
            v = draw(r) >> 1
            if rate < <uint64_t>1 << 39 and v >= rate * f.packets:
                continue
            left = f.packets
            bits = squares(power, ONE63 - rate, left)
            if survivors(power, bits, left, v) >= left:
                continue
            some = True
            if f.culprit < 0:
                f.culprit = i
            while True:
                v = survivors(power, bits, left, draw(r) >> 1)
                if v >= left:
                    break
                left -= v + 1
                f.lost[i] += 1
                f.total += 1
        if some and f.total == 0:
            f.lost[f.culprit] = f.total = 1     # a flow that lost nothing would not be seen

    cdef void _blame(self, Flow* f) noexcept nogil:
        cdef int i
        if self.quirks & CULPRIT:
            for i in range(f.links):
                if f.lost[i]:
                    f.culprit = i
                if self.owner[f.link[i]]:
                    f.culprit = i
                    return
            return
        f.culprit = 0
        for i in range(1, f.links):
            if f.lost[i] > f.lost[f.culprit]:
                f.culprit = i

    cdef uint32_t _from(self, uint32_t link) noexcept nogil:
        if link < self.offset[TOR_T1]:
            return self.first_host + link
        if link < self.offset[T1_T2]:
            return 1 + (link - self.offset[TOR_T1]) // self.t1s
        if link < self.offset[T2_T1]:
            return 1 + self.all_tors + (link - self.offset[T1_T2]) // self.t2s
        if link < self.offset[T1_TOR]:
            return self._t2((link - self.offset[T2_T1]) % self.t2s)
        if link < self.offset[TOR_HOST]:
            return self._t1_at((link - self.offset[T1_TOR]))
        return 1 + (link - self.offset[TOR_HOST]) // self.hosts

    cdef uint32_t _to(self, uint32_t link) noexcept nogil:
        if link < self.offset[TOR_T1]:
            return 1 + link // self.hosts
        if link < self.offset[T1_T2]:
            return self._t1_at(link - self.offset[TOR_T1])
        if link < self.offset[T2_T1]:
            return self._t2((link - self.offset[T1_T2]) % self.t2s)
        if link < self.offset[T1_TOR]:
            return 1 + self.all_tors + (link - self.offset[T2_T1]) // self.t2s
        if link < self.offset[TOR_HOST]:
            return 1 + (link - self.offset[T1_TOR]) // self.t1s
        return self.first_host + link - self.offset[TOR_HOST]

    cdef uint32_t _t1_at(self, uint32_t number) noexcept nogil:
        # The T1 of the number-th pair of ToR and T1.
        return 1 + self.all_tors + number // self.t1s // self.tors * self.t1s + number % self.t1s

    cdef uint32_t _t2(self, uint32_t i) noexcept nogil:
        return 1 + self.all_tors + self.pods * self.t1s + i

    cdef uint32_t _emit(self, void** col, uint32_t row, Flow* f) noexcept nogil:
        # The record of a flow, and those of probes for it; how many.
        cdef uint32_t* path = <uint32_t*>col[C_PATH] + <size_t>row * HOPS
        cdef uint8_t notes = 0
        cdef uint32_t n = 0, i, link, device, a = 0, b = 0
        cdef bint whole = f.total != 0 or self.healthy == WHOLE or f.packets == 0
        memset(path, 0, 4 * HOPS)
        if f.total and self.cap:
            if self.traced[f.src] >= self.cap:
                whole, notes = False, CAPPED
            else:
                self.traced[f.src] += 1
        if whole:
            path[0] = 1 + f.src_tor
            path[1] = 1 + self.all_tors + f.t1
            n = 2
            if f.dst_tor // self.tors != f.src_tor // self.tors:
                path[2] = self._t2(f.t2)
                path[3] = 1 + self.all_tors + f.dst_t1
                n = 4
            path[n] = 1 + f.dst_tor
            n += 1
            if self.quirks & LAST_HOP:
                notes |= PARTIAL
            if self.silence:
                for i in range(n):
                    if draw(&self.traces_of) >> 1 < self.silence:
                        path[i] = 0
                while n and path[n - 1] == 0:   # the rest of the path is unknown
                    n -= 1
                    notes |= PARTIAL
            if self.deaths:
                i = <uint32_t>farthest(&self.lives_of, f, path, <int>n)
                notes |= PARTIAL if i < n else 0
                n = i
        notes |= f.fate
        if f.total:
            link = f.link[f.culprit] if f.culprit < f.links else f.back[f.culprit - f.links]
            device = self.owner[link]
            if device > 1:
                a = b = device - 2
            else:
                a, b = self._from(link), self._to(link)
            if device == 0:
                notes |= NOISE
        (<int64_t*>col[C_TS])[row] = self.start + (<int64_t>((<uint64_t>self.round * self.all_hosts + self.at)
                                                             * <uint64_t>self.step >> 20))
        (<uint8_t*>col[C_KIND])[row] = 1
        (<uint8_t*>col[C_NOTES])[row] = notes
        (<uint8_t*>col[C_PROTO])[row] = 6
        (<uint32_t*>col[C_SRC_IP])[row] = self.first_host + f.src
        (<uint32_t*>col[C_DST_IP])[row] = self.first_host + f.dst
        (<uint16_t*>col[C_SRC_PORT])[row] = <uint16_t>(1024 + self.round % 64512)
        (<uint16_t*>col[C_DST_PORT])[row] = 80
        (<uint32_t*>col[C_SENT])[row] = f.packets
        (<uint32_t*>col[C_LOST])[row] = f.total
        (<uint32_t*>col[C_RETRANS])[row] = f.total
        (<uint8_t*>col[C_HOPS])[row] = <uint8_t>n
        (<uint32_t*>col[C_SRC_TOR])[row] = 1 + f.src_tor
        (<uint32_t*>col[C_DST_TOR])[row] = 1 + f.dst_tor
        (<uint32_t*>col[C_LINK_A])[row] = a
        (<uint32_t*>col[C_LINK_B])[row] = b
        if f.fate and notes & PARTIAL:
            return 1 + self._compare(col, row + 1, f)
        return 1
