"""Simulator of the probes of a fleet with network faults: the records that Pingmesh agents would have written."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from c_bits cimport clz64
from c_probe_simulator cimport (
    COLS, FIRST_PORT, FORWARD, L_DC, L_POD, L_WAN, MAX_DEVICES, MAX_HOLES, MAX_PEERS, MAX_SERVERS, MAX_TRIES,
    MAX_TURNS, MILLISECOND, NAME, OCTAVES, OK, ORDER, PARTS, PLACE, PORTS, PROBES, RELABEL, REVERSE, TABLES, TIMEOUT,
    T_BUSY, T_FACTOR, T_HOST, Device, Hole, PathDelay, Place, Probe, Server, mix, pick_switch, write_host, write_probe,
    write_source,
)
from c_random cimport ONE63, Stream, below, draw, mul63, seed_stream
from confluo_tools.core.block.block cimport Staging
cimport cython

_COLUMNS = (("ts", 8), ("kind", 1), ("level", 1), ("outcome", 1), ("notes", 2), ("ip_version", 1), ("proto", 1),
            ("src_ip", 4), ("dst_ip", 4), ("src_ip6", 16), ("dst_ip6", 16), ("src_port", 2), ("dst_port", 2),
            ("payload", 4), ("retries", 1), ("hint", 1), ("rtt", 8), ("elapsed", 8), ("echo", 8), ("errno", 2),
            ("list", 8), ("src", 32), ("dst", 32), ("src_pod", 16), ("dst_pod", 16), ("src_podset", 16),
            ("dst_podset", 16), ("src_dc", 16), ("dst_dc", 16), ("peers", 4), ("probes", 4), ("overflows", 4),
            ("listen_drops", 4), ("syn_retrans", 4), ("rss", 8), ("cpu", 4))


cdef int put_name(char* at, bytes name, Py_ssize_t room) except -1:
    if len(name) > room:
        raise ValueError(f"name {name!r} exceeds {room} bytes")
    memcpy(at, <const char*>name, len(name))
    return 0

cdef int columns(Staging block, void** col) except -1:
    cdef int i
    for i in range(COLS):
        name, width = _COLUMNS[i]
        k = block.layout.get(name)
        if k < 0 or block.layout.column[<int>k].width != width:
            raise ValueError(f"no column {name} of {width} bytes")
        col[i] = block.out[<int>k]
    return 0


@cython.final
cdef class ProbeSimulator:
    """`pods`: (podset, dc) of each pod, as numbers; `counts`: podsets, data centres; `names`: of pods, podsets and
    data centres, 16 bytes each; `servers`: (pod, address, 16 bytes or b"", port, name) of each.

    Devices are numbered: ToRs of the pods, then `leaves` of each podset, then `spines` of each data centre, then
    podsets (faults of a whole podset), then pairs of data centres.  Probabilities are in units of 2**-63, times in ns.
    """

    cdef readonly uint32_t n, pods, podsets, dcs, leaves, spines, devices
    cdef readonly uint64_t pairs, probes, lost, failed
    cdef uint32_t first_leaf, first_spine, first_podset, first_wan, most
    cdef Server* server
    cdef Place* place
    cdef Device* device
    cdef Hole* hole
    cdef uint32_t holes
    cdef uint32_t* peer
    cdef uint64_t table[TABLES][OCTAVES]
    cdef uint64_t* distance             # ns, by pair of data centres
    cdef uint64_t noise[4]              # by level
    cdef uint64_t noise_back[4]
    cdef bint faulty
    cdef uint64_t seed, version
    cdef uint32_t payload
    cdef int tries
    cdef uint64_t wait[MAX_TRIES]
    cdef int64_t start
    cdef uint64_t step
    cdef uint32_t round, at
    cdef uint32_t host_at
    cdef Stream r

    def __cinit__(self, pods, counts, names, servers, uint32_t leaves, uint32_t spines, uint64_t seed):
        cdef uint32_t i
        self.n, self.pods, (self.podsets, self.dcs) = len(servers), len(pods), counts
        if not (0 < self.n <= MAX_SERVERS and self.pods and self.podsets and self.dcs):
            raise ValueError(f"{self.n} servers in {self.pods} pods, {self.podsets} podsets, {self.dcs} DCs")
        if not (0 < leaves <= 1024 and 0 < spines <= 4096):
            raise ValueError(f"{leaves} leaf switches of a podset, {spines} spine switches")
        self.leaves, self.spines, self.seed = leaves, spines, seed
        devices = (self.pods + self.podsets * leaves + self.dcs * spines + self.podsets + self.dcs * self.dcs)
        if devices > MAX_DEVICES:
            raise ValueError(f"more than {MAX_DEVICES} switches")
        self.devices = devices
        self.first_leaf = self.pods
        self.first_spine = self.first_leaf + self.podsets * leaves
        self.first_podset = self.first_spine + self.dcs * spines
        self.first_wan = self.first_podset + self.podsets
        self.server = <Server*>calloc(self.n, sizeof(Server))
        self.place = <Place*>calloc(self.pods, sizeof(Place))
        self.device = <Device*>calloc(self.devices, sizeof(Device))
        self.hole = <Hole*>calloc(MAX_HOLES, sizeof(Hole))
        self.distance = <uint64_t*>calloc(self.dcs * self.dcs, 8)
        if not (self.server and self.place and self.device and self.hole and self.distance):
            raise MemoryError
        for i in range(self.pods):
            podset, dc = pods[i]
            if not (0 <= podset < self.podsets and 0 <= dc < self.dcs):
                raise ValueError(f"pod {i}: podset {podset}, data centre {dc}")
            self.place[i].podset, self.place[i].dc = podset, dc
            put_name(self.place[i].pod_name, names[0][i], PLACE)
            put_name(self.place[i].podset_name, names[1][podset], PLACE)
            put_name(self.place[i].dc_name, names[2][dc], PLACE)
        for i in range(self.n):
            pod, ip, ip6, port, name = servers[i]
            if not 0 <= pod < self.pods:
                raise ValueError(f"server {i}: pod {pod}")
            self.server[i].pod, self.server[i].ip, self.server[i].port = pod, ip, port
            put_name(self.server[i].name, name, NAME)
            if ip6:
                if len(ip6) != 16:
                    raise ValueError(f"an address of {len(ip6)} bytes")
                put_name(<char*>self.server[i].ip6, ip6, 16)
                self.server[i].v6 = 1
        self.version = seed
        self.set_kernel(True, 0, 1)

    def __dealloc__(self):
        free(self.server)
        free(self.place)
        free(self.device)
        free(self.hole)
        free(self.distance)
        free(self.peer)

    # -- settings -----------------------------------------------------------------------------------------------

    def set_tables(self, tables):
        """Set the latency tables in ns (factors: 65536 is 1): minimum, median, then the quantiles 1 - 2**-2 to
        1 - 2**-25.
        """
        for i in range(TABLES):
            for k in range(OCTAVES):
                if not 0 <= tables[i][k] < 1 << 40:
                    raise ValueError("a latency is out of range")
                self.table[i][k] = tables[i][k]

    def set_noise(self, pod, dc, wan):
        """Set the probability that one of the two packets of a handshake is lost, by level."""
        for level, chance in ((L_POD, pod), (L_DC, dc), (L_WAN, wan)):
            if chance > ONE63:
                raise ValueError("a probability above 1")
            half = chance >> 1              # the first packet; below, the second, given the first
            self.noise[level] = half
            self.noise_back[level] = (half << 63) // (ONE63 - half)

    def set_distance(self, uint32_t a, uint32_t b, uint64_t ns):
        """Set the round-trip time (ns) between two data centres."""
        if a >= self.dcs or b >= self.dcs or ns >= 1 << 40:
            raise ValueError("a distance is out of range")
        self.distance[a * self.dcs + b] = self.distance[b * self.dcs + a] = ns

    def set_kernel(self, bint linear, uint32_t payload, uint64_t version):
        """``linear``: tcp_syn_linear_timeouts=4, not 0, with TCP_SYNCNT=2; ``payload``: bytes echoed."""
        cdef int i
        self.tries = 6 if linear else 3
        for i in range(self.tries):
            self.wait[i] = <uint64_t>1000 * MILLISECOND << (0 if linear else i)
        if linear:
            self.wait[5] *= 2
        self.payload, self.version = payload, version

    def set_lists(self, parts, lists):
        """Who probes whom: ``parts``, bytes of numbers of servers (uint32); ``lists``: for each server the parts
        (numbers of them, up to 4) that make up its list.  A part may hold the server itself, and servers of the other
        version of IP: it leaves those out.
        """
        cdef uint32_t i, j, k
        cdef uint64_t total = 0
        cdef bytes part
        if len(lists) != self.n:
            raise ValueError(f"{len(lists)} lists of peers for {self.n} servers")
        sizes = [len(part) // 4 for part in parts]
        if sum(sizes) > MAX_PEERS:
            raise ValueError(f"more than {MAX_PEERS} peers")
        free(self.peer)
        self.peer = <uint32_t*>calloc(max(sum(sizes), 1), 4)
        if not self.peer:
            raise MemoryError
        starts = []
        for number, part in enumerate(parts):
            memcpy(self.peer + total, <const char*>part, <size_t>sizes[number] * 4)
            starts.append(total)
            total += <uint64_t>sizes[number]
        for i in range(total):
            if self.peer[i] >= self.n:
                raise ValueError(f"no server {self.peer[i]}")
        self.most, self.pairs = 0, 0
        for i in range(self.n):
            if len(lists[i]) > PARTS:
                raise ValueError(f"a list of more than {PARTS} parts")
            memset(self.server[i].size, 0, sizeof(self.server[i].size))
            self.server[i].entries = 0
            for j, number in enumerate(lists[i]):
                self.server[i].first[j], self.server[i].size[j] = starts[number], sizes[number]
                self.server[i].entries += self.server[i].size[j]
            self.most = max(self.most, self.server[i].entries)
        with nogil:
            for i in range(self.n):
                self.server[i].peers = 0
                for k in range(self.server[i].entries):
                    j = self._peer(i, k)
                    self.server[i].peers += j != i and self.server[j].v6 == self.server[i].v6
                self.pairs += self.server[i].peers
            self._shuffle()

    cdef inline uint32_t _peer(self, uint32_t i, uint32_t k) noexcept nogil:
        # The k-th entry of a server's list.
        cdef Server* s = &self.server[i]
        cdef int j = 0
        while k >= s.size[j] and j < PARTS - 1:
            k -= s.size[j]
            j += 1
        return self.peer[s.first[j] + k]

    cdef void _shuffle(self) noexcept nogil:
        # Servers start at different places of their lists: otherwise all would probe the same target at once.
        cdef uint32_t i
        seed_stream(&self.r, self.seed, ORDER)
        for i in range(self.n):
            self.server[i].turn = <uint32_t>below(&self.r, max(self.server[i].entries, 1))
            self.server[i].owed = <uint32_t>below(&self.r, max(self.most, 1))
        seed_stream(&self.r, self.seed, PROBES)

    def peers_of(self, uint32_t i):
        """Numbers of the servers that server ``i`` probes."""
        if i >= self.n:
            raise IndexError(i)
        its = [self._peer(i, k) for k in range(self.server[i].entries)]
        return [k for k in its if k != i and self.server[<uint32_t>k].v6 == self.server[i].v6]

    # -- faults -------------------------------------------------------------------------------------------------

    def clear_faults(self):
        """Remove all faults."""
        cdef uint32_t i
        memset(self.device, 0, self.devices * sizeof(Device))
        for i in range(self.n):
            self.server[i].down = self.server[i].holed = 0
            self.server[i].busy = self.server[i].slow = 0
        self.holes, self.faulty = 0, False

    def fault_device(self, uint32_t i, uint64_t drop, uint64_t hole1, uint64_t hole2, uint64_t delay):
        """Let a device drop packets with probability ``drop``, all packets of shares ``hole1`` of the address pairs and
        ``hole2`` of the five-tuples, and delay packets by ``delay`` (median).  Adds to the faults it has.
        """
        cdef Device* d
        if i >= self.devices:
            raise IndexError(i)
        if max(drop, hole1, hole2) > ONE63 or delay >= 1 << 40:
            raise ValueError("a probability above 1, or a delay of more than 18 minutes")
        d = &self.device[i]
        d.drop += mul63(ONE63 - d.drop, drop)
        d.hole1, d.hole2 = max(d.hole1, hole1), max(d.hole2, hole2)
        d.delay += delay
        d.bad, self.faulty = 1, True

    def fault_server(self, uint32_t i, bint down, uint64_t busy, uint64_t slow):
        """Switch a server off, or let it drop SYNs with probability ``busy`` and delay its programs by ``slow``."""
        if i >= self.n:
            raise IndexError(i)
        if busy > ONE63 or slow >= 1 << 40:
            raise ValueError("a probability above 1, or a delay of more than 18 minutes")
        self.server[i].down |= down
        self.server[i].busy = max(self.server[i].busy, busy)
        self.server[i].slow = max(self.server[i].slow, slow)
        self.faulty = True

    def fault_pair(self, uint32_t src, uint32_t dst, uint64_t share):
        """Drop all packets of a share of the five-tuples from one server to another."""
        if max(src, dst) >= self.n:
            raise IndexError(max(src, dst))
        if share > ONE63:
            raise ValueError("a probability above 1")
        if self.holes == MAX_HOLES:
            raise ValueError(f"more than {MAX_HOLES} pairs")
        self.hole[self.holes] = Hole(src, dst, share)
        self.server[src].holed = self.server[dst].holed = 1
        self.holes += 1
        self.faulty = True

    # -- records ------------------------------------------------------------------------------------------------

    def begin(self, int64_t start, int64_t length):
        """Start a round of ``length`` ns: each server probes each of its peers once, evenly spread."""
        cdef uint64_t slots = <uint64_t>self.most * self.n
        if not 0 < length < <int64_t>1 << 42:
            raise ValueError("the length of a round is out of range")
        self.start, self.round, self.at = start, 0, 0
        self.step = (<uint64_t>length << 20) // slots if slots else 0

    @property
    def more(self):
        """Whether the round has probes left."""
        return self.round < self.most

    @property
    def now(self):
        """Time of the next probe, ns."""
        return self._now()

    cdef int64_t _now(self) noexcept nogil:
        return self.start + ((<uint64_t>self.round * self.n + self.at) * self.step >> 20)

    def fill(self, Staging block not None, int64_t until, uint32_t rows=0):
        """Write records of probes before ``until`` into the block after its first ``rows``; returns its new row count.

        More probes may be left even if the block is not full.  Raises ValueError if the block lacks a column.
        """
        cdef void* col[COLS]
        columns(block, col)
        with nogil:
            rows = self._fill(col, rows, block.capacity, until)
            block.set_rows(rows)
        return rows

    def fill_hosts(self, Staging block not None, int64_t ts, int64_t span):
        """Write records of the servers' counters over the last ``span`` ns; as `fill`, 0 rows after the last server."""
        cdef void* col[COLS]
        cdef uint32_t rows = 0
        cdef Server* s
        columns(block, col)
        with nogil:
            while rows < block.capacity and self.host_at < self.n:
                s = &self.server[self.host_at]
                if not s.down:
                    write_source(col, rows, s, &self.place[s.pod], self.version)
                    write_host(col, rows, s, ts, span)
                    s.probes = s.overflows = s.syn_retrans = 0
                    rows += 1
                self.host_at += 1
            if rows == 0:
                self.host_at = 0
            block.set_rows(rows)
        return rows

    cdef uint32_t _fill(self, void** col, uint32_t rows, uint32_t room, int64_t until) noexcept nogil:
        cdef uint32_t left = MAX_TURNS, src
        cdef int64_t ts
        cdef Server* s
        cdef Server* d
        cdef Probe p
        while left and rows < room and self.round < self.most:
            left -= 1
            ts = self._now()
            if ts >= until:
                break
            src = self.at
            s = &self.server[src]
            self.at += 1
            if self.at == self.n:
                self.at, self.round = 0, self.round + 1
            s.owed += s.entries
            if s.owed < self.most:
                continue
            s.owed -= self.most
            p.dst = self._peer(src, s.turn)
            s.turn += 1
            if s.turn >= s.entries:
                s.turn = 0
            if s.down or p.dst == src or self.server[p.dst].v6 != s.v6:
                continue
            self._probe(&p, src)
            ts += <int64_t>below(&self.r, (self.step >> 20) + 1)
            write_source(col, rows, s, &self.place[s.pod], self.version)
            d = &self.server[p.dst]
            write_probe(col, rows, &p, d, &self.place[d.pod], min(ts, until - 1), self.payload)
            rows += 1
        return rows

    cdef inline uint64_t _sample(self, int table) noexcept nogil:
        # A random latency: linear interpolation between the quantiles of the table.
        cdef uint64_t u = draw(&self.r), t
        cdef int i = clz64(u | 1)
        cdef uint64_t* v
        if i > OCTAVES - 2:
            i = OCTAVES - 2
        t = u << i << 1 >> 48
        v = &self.table[table][i]
        return v[0] + ((v[1] - v[0]) * (65536 - t) >> 16)

    cdef inline uint64_t _scaled(self, uint64_t delay, int table) noexcept nogil:
        return delay * (self._sample(table) >> 4) >> 12 if delay else 0

    cdef bint _passes(self, PathDelay* w, uint32_t device, uint64_t pair, uint64_t tuple) noexcept nogil:
        # Whether a packet passes a device.
        cdef Device* d = &self.device[device]
        cdef uint64_t salt
        if not d.bad:
            return True
        salt = mix(self.seed, device)
        if d.hole1 and mix(pair, salt) >> 1 < d.hole1:
            return False
        if d.hole2 and mix(tuple, salt) >> 1 < d.hole2:
            return False
        if d.drop and draw(&self.r) >> 1 < d.drop:
            return False
        w.delay += self._scaled(d.delay, T_FACTOR)
        return True

    cdef bint _send(self, PathDelay* w, uint32_t src, uint32_t dst, uint32_t ports, uint32_t label) noexcept nogil:
        # Whether a packet arrives; `label`: IPv6 flow label, which can change the path.
        cdef uint64_t pair, tuple, h
        cdef uint32_t a = self.server[src].pod, b = self.server[dst].pod, i, leaf, spine
        cdef Place* pa = &self.place[a]
        cdef Place* pb = &self.place[b]
        pair = mix(<uint64_t>src << 32 | dst, self.seed)
        tuple = mix(pair, ports)
        h = mix(tuple, label)               # ECMP hash: 16 bits per switch
        if self.server[src].holed and self.server[dst].holed:
            for i in range(self.holes):
                if (self.hole[i].src == src and self.hole[i].dst == dst
                        and mix(tuple, self.seed) >> 1 < self.hole[i].share):
                    return False
        if not self._passes(w, self.first_podset + pa.podset, pair, tuple):
            return False
        if not self._passes(w, a, pair, tuple):
            return False
        if a == b:
            return True
        if not self._passes(w, self.first_leaf + pa.podset * self.leaves + pick_switch(h, 0, self.leaves), pair, tuple):
            return False
        if pa.podset != pb.podset:
            spine = self.first_spine + pa.dc * self.spines + pick_switch(h, 16, self.spines)
            if not self._passes(w, spine, pair, tuple):
                return False
            if pa.dc != pb.dc:
                if not self._passes(w, self.first_wan + pa.dc * self.dcs + pb.dc, pair, tuple):
                    return False
                spine = self.first_spine + pb.dc * self.spines + pick_switch(h, 48, self.spines)
                if not self._passes(w, spine, pair, tuple):
                    return False
            leaf = self.first_leaf + pb.podset * self.leaves + pick_switch(h, 32, self.leaves)
            if not self._passes(w, leaf, pair, tuple):
                return False
            if not self._passes(w, self.first_podset + pb.podset, pair, tuple):
                return False
        return self._passes(w, b, pair, tuple)

    cdef void _probe(self, Probe* p, uint32_t src) noexcept nogil:
        cdef Server* s = &self.server[src]
        cdef Server* d = &self.server[p.dst]
        cdef Place* pa = &self.place[s.pod]
        cdef Place* pb = &self.place[d.pod]
        cdef uint64_t rtt
        cdef uint32_t label
        cdef int i
        cdef PathDelay w
        p.level = L_POD if s.pod == d.pod else L_DC if pa.dc == pb.dc else L_WAN
        p.sport = <uint16_t>(FIRST_PORT + below(&self.r, PORTS))
        p.rtt = p.echo = p.elapsed = 0
        p.outcome, p.retries, p.hint, p.notes = OK, 0, 0, 0
        s.probes += 1
        self.probes += 1
        for i in range(self.tries):
            w.delay = 0
            label = i if s.v6 else 0
            if not self._forward_arrives(&w, p, src, label):
                p.hint = FORWARD if p.hint == 0 else p.hint
            elif not self._reverse_arrives(&w, p, src, label):
                p.hint = REVERSE if p.hint == 0 else p.hint
            else:
                break
            p.elapsed += self.wait[i] + self._timer_lag(self.wait[i])
            if i + 1 < self.tries:
                p.retries += 1
        else:
            p.outcome = TIMEOUT
        s.syn_retrans += p.retries
        if p.retries:
            self.lost += 1
            p.notes = RELABEL if s.v6 else 0
        if p.retries != 1 or p.outcome != OK:
            p.hint = 0
        if p.outcome != OK:
            self.failed += 1
            return
        rtt = w.delay + self._sample(p.level - 1) + self.distance[pa.dc * self.dcs + pb.dc]
        p.rtt = 0 if p.retries else rtt
        p.elapsed += rtt + self._sample(T_HOST) + self._scaled(s.slow, T_BUSY)
        if self.payload:
            self._echo(p, src)

    cdef void _echo(self, Probe* p, uint32_t src) noexcept nogil:
        # The payload and its echo; a lost segment is sent again after 200 ms, 400 ms, ...
        cdef Server* s = &self.server[src]
        cdef Server* d = &self.server[p.dst]
        cdef uint64_t wait = 200 * MILLISECOND, all = 0
        cdef PathDelay w
        for _ in range(5):
            w.delay = 0
            if self._forward_arrives(&w, p, src, 0) and self._reverse_arrives(&w, p, src, 0):
                break
            all += wait
            wait *= 2
        all += (w.delay + self._sample(p.level - 1) + self._sample(T_HOST) + self._scaled(d.slow, T_BUSY)
                + self.distance[self.place[s.pod].dc * self.dcs + self.place[d.pod].dc] + <uint64_t>40 * self.payload)
        p.echo = all
        p.elapsed += all

    cdef inline bint _forward_arrives(self, PathDelay* w, Probe* p, uint32_t src, uint32_t label) noexcept nogil:
        cdef Server* d = &self.server[p.dst]
        if draw(&self.r) >> 1 < self.noise[p.level]:
            return False
        if not self.faulty:
            return True
        if not self._send(w, src, p.dst, <uint32_t>p.sport << 16 | d.port, label) or d.down:
            return False
        if d.busy and draw(&self.r) >> 1 < d.busy:
            d.overflows += 1
            return False
        return True

    cdef inline bint _reverse_arrives(self, PathDelay* w, Probe* p, uint32_t src, uint32_t label) noexcept nogil:
        if draw(&self.r) >> 1 < self.noise_back[p.level]:
            return False
        return not self.faulty or self._send(w, p.dst, src, <uint32_t>self.server[p.dst].port << 16 | p.sport, label)

    cdef uint64_t _timer_lag(self, uint64_t wait) noexcept nogil:
        # Timers fire late, never early: by 2 to 32 ms, timers of 4 s by up to 222 ms (measured).
        return (2 * MILLISECOND
                + below(&self.r, (30 if wait <= <uint64_t>2000 * MILLISECOND else 220) * MILLISECOND))
