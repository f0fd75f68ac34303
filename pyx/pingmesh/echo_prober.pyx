"""Echo probes to many targets over TCP, UDP and ICMP, and their records, without the interpreter."""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from cpython.exc cimport PyErr_CheckSignals
from posix.unistd cimport write
from c_posix cimport EFD_CLOEXEC, EFD_NONBLOCK, EPOLL_CLOEXEC, epoll_create1, eventfd
from c_echo_probes cimport *
from c_echo_engine cimport *
from c_random cimport Stream, below, draw, seed_stream
from confluo_tools.core.block.block cimport Layout, Staging
cimport cython

cdef enum:
    MAX_PEERS = 65536
    MAX_GROUPS = 16                     # of datagram sockets: IP versions, ICMP, classes of service

MIN_INTERVAL = 10 * SECOND              # min ns between two probes of a pair
MAX_PAYLOAD = MAX_BYTES
MAX_RATE = 2000                         # probes per second to all peers
MAX_TARGET_RATE = 2                     # and to one address
MAX_TIMEOUT = 60 * SECOND
cdef int64_t SLACK = 50_000_000         # ns that a due probe may wait for others
TIMEOUTS = {TCP: 9 * SECOND, ECHO: 10 * SECOND, UDP: 3 * SECOND, ICMP: 3 * SECOND}
KINDS = {"tcp": TCP, "echo": ECHO, "udp": UDP, "icmp": ICMP}
COUNTS = ("probes", "ok", "timeout", "refused", "unreachable", "reset", "local", "garbled", "retried", "skipped",
          "late", "duplicated", "stray")
_COLUMNS = (("ts", 8), ("kind", 1), ("level", 1), ("outcome", 1), ("notes", 2), ("ip_version", 1), ("proto", 1),
            ("src_ip", 4), ("src_ip6", 16), ("dst_ip", 4), ("dst_ip6", 16), ("src_port", 2), ("dst_port", 2),
            ("dscp", 1), ("seq", 4), ("payload", 4), ("retries", 1), ("hint", 1), ("rtt", 8), ("elapsed", 8),
            ("echo", 8), ("remote", 8), ("errno", 2), ("list", 8), ("src", 32), ("dst", 32), ("src_pod", 16),
            ("dst_pod", 16), ("src_podset", 16), ("dst_podset", 16), ("src_dc", 16), ("dst_dc", 16))


@cython.final
cdef class EchoProber:
    """Probes peers, each at its own interval, and writes a record of each probe.

    Call it from one thread; sockets are of the network namespace of the thread that calls `add` and `run`.

    ``layout``: of schema `probe`.  ``src``, ``pod``, ``podset``, ``dc``: names of this host.  ``source``: source
    address for peers of its IP version.  ``inflight``: max probes in flight.  ``jitter``: random delay of a probe, as a
    share of its interval.  ``stamps``: kernel time stamps of sent datagrams.  ``ports``: number of source ports of
    datagrams.  ``lab``: no limits on intervals and rates; every record is marked.
    """

    cdef readonly Layout layout
    cdef EchoEngine e
    cdef double planned                 # probes a second
    cdef int at[COLS]
    cdef bint labels_known
    cdef dict known, targets, groups, planned_at, before

    def __cinit__(self, Layout layout not None, *, uint64_t seed=0, str src="", str pod="", str podset="", str dc="",
                  source=None, uint32_t inflight=4096, double jitter=0.03, bint stamps=True, uint32_t ports=16,
                  bint lab=False):
        cdef uint32_t i
        cdef Stream bytes_of
        self.e.ep = self.e.wake_fd = -1
        if not 1 <= inflight <= 1 << 20 or not 0 <= jitter <= 1 or not 1 <= ports <= 64:
            raise ValueError("out of range")
        self.layout, self.e.lab, self.e.stamps, self.e.ports, self.e.capacity = layout, lab, stamps, ports, inflight
        self.e.jitter_share = <int64_t>(jitter * 65536)
        self.e.slow_share = 65536
        self.e.slack = 0 if lab else SLACK
        for i, (name, width) in enumerate(_COLUMNS):
            self.at[i] = layout.index(name)
            if layout.column[self.at[i]].width != width:
                raise ValueError(f"column '{name}' has the wrong width")
        _name(self.e.own.name, 32, src)
        _name(self.e.own.pod, 16, pod)
        _name(self.e.own.podset, 16, podset)
        _name(self.e.own.dc, 16, dc)
        for one in (source if isinstance(source, tuple) else (source,)) if source else ():
            if len(one) == 4:
                address_set(&self.e.source4, 4, <const uint8_t*><const char*><bytes>one, 0, 0)
            elif len(one) == 16:
                address_set(&self.e.source6, 6, <const uint8_t*><const char*><bytes>one, 0, 0)
            else:
                raise ValueError("an address has 4 or 16 bytes")
        self.e.port_low, self.e.port_span = _ports()
        self.e.probe = <Probe*>calloc(inflight, sizeof(Probe))
        self.e.free_slot = <uint32_t*>calloc(inflight, 4)
        self.e.wheel = <Wheel*>calloc(1, sizeof(Wheel))
        self.e.received = <DatagramBatch*>calloc(1, sizeof(DatagramBatch))
        self.e.errors = <DatagramBatch*>calloc(1, sizeof(DatagramBatch))
        self.e.pattern = <uint8_t*>malloc(MAX_BYTES)
        self.e.scratch = <uint8_t*>malloc(MAX_BYTES)
        self.e.events = <Event*>calloc(EVENTS, sizeof(Event))
        self.e.wire = <Wire**>calloc(MAX_GROUPS * ports, sizeof(void*))
        if (self.e.probe == NULL or self.e.free_slot == NULL or self.e.wheel == NULL or self.e.received == NULL
                or self.e.errors == NULL or self.e.pattern == NULL or self.e.scratch == NULL or self.e.events == NULL
                or self.e.wire == NULL):
            raise MemoryError
        for i in range(inflight):
            self.e.free_slot[i] = i
            self.e.probe[i].fd = -1
        self.e.free_n = inflight
        seed_stream(&self.e.random, seed, 1)
        seed_stream(&bytes_of, seed, 2)
        for i in range(<uint32_t>(MAX_BYTES // 8)):
            (<uint64_t*>self.e.pattern)[i] = draw(&bytes_of)
        self.e.pattern[0] |= 0x80       # not the first letter of an HTTP method
        self.known, self.targets, self.groups, self.planned_at, self.before = {}, {}, {}, {}, {}
        self.e.ep = epoll_create1(EPOLL_CLOEXEC)
        self.e.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.e.ep < 0 or self.e.wake_fd < 0 or watch_fd(self.e.ep, EPOLL_CTL_ADD, self.e.wake_fd, EPOLLIN, WAKE):
            raise OSError(errno, "cannot create epoll")

    def __dealloc__(self):
        cdef uint32_t i
        if self.e.peer != NULL:
            self._forget()
        if self.e.probe != NULL:
            for i in range(self.e.capacity):
                if self.e.probe[i].fd >= 0:
                    close(self.e.probe[i].fd)
                if self.e.probe[i].state != FREE:
                    release_peer(self.e.probe[i].peer)
        for i in range(self.e.n_wires):
            close(self.e.wire[i].fd)
            free(self.e.wire[i])
        for i in range(2):
            if (self.e.ep, self.e.wake_fd)[i] >= 0:
                close((self.e.ep, self.e.wake_fd)[i])
        free(self.e.probe)
        free(self.e.free_slot)
        free(self.e.peer)
        free(self.e.heap)
        free(self.e.target)
        free(self.e.wire)
        free(self.e.received)
        free(self.e.errors)
        free(self.e.pattern)
        free(self.e.scratch)
        free(self.e.wheel)
        free(self.e.events)

    def move(self, *, str pod="", str podset="", str dc=""):
        """Set the location of this host in further records.  Raises ValueError for a name that is too long."""
        cdef Location own
        memset(&own, 0, sizeof(own))
        memcpy(own.name, self.e.own.name, sizeof(own.name))
        _name(own.pod, 16, pod)
        _name(own.podset, 16, podset)
        _name(own.dc, 16, dc)
        self.e.own = own

    # -- peers

    def add(self, bytes address not None, uint16_t port, int kind, *, int64_t interval=10_000_000_000,
            int64_t timeout=0, uint32_t payload=0, int dscp=0, int level=5, uint64_t count=0, int64_t after=-1,
            str name="", str pod="", str podset="", str dc="", uint32_t scope=0):
        """Probe this peer every ``interval`` ns from now on, ``count`` times (0: until `clear`).

        ``kind``: of `KINDS`.  ``timeout``: ns, 0: the one of `TIMEOUTS`; it may exceed the interval.
        ``after``: ns until the first probe, -1: a time within the interval, such that peers are spread evenly.  A peer
        that was present before `clear` keeps its schedule and numbers.  ``scope``: interface of a link-local address.

        Raises ValueError for a duplicate peer or an exceeded limit, OSError if a socket cannot be opened.
        """
        cdef Peer* p
        cdef uint32_t i, max_payload
        cdef int version = 4 if len(address) == 4 else 6
        cdef int64_t now = monotonic_ns(), due
        if len(address) not in (4, 16):
            raise ValueError("an address has 4 or 16 bytes")
        if not _one_host(<const uint8_t*><const char*>address, version):
            raise ValueError("not a unicast address")
        if kind not in TIMEOUTS:
            raise ValueError(f"unknown kind of probe {kind}")
        if kind == ICMP:
            port = 0
        elif port == 0:
            raise ValueError("port 0")
        if not 0 <= dscp < 64:
            raise ValueError(f"DSCP {dscp} is not below 64")
        if interval < 0 or interval > 1 << 50 or (interval < MIN_INTERVAL and not self.e.lab):
            raise ValueError(f"an interval of {interval / 1e9:g} s: the minimum is {MIN_INTERVAL // SECOND} s")
        if timeout == 0:
            timeout = TIMEOUTS[kind]
        if not 0 < timeout <= MAX_TIMEOUT:
            raise ValueError(f"a time-out of {timeout / 1e9:g} s: the maximum is {MAX_TIMEOUT // SECOND} s")
        max_payload = MAX_BYTES if kind < UDP else 65507 if kind == UDP else 65499
        if payload > max_payload:
            raise ValueError(f"a payload of {payload} bytes: the maximum is {max_payload}")
        if kind == ECHO and payload == 0:
            raise ValueError("an echo probe needs a payload")
        if kind == TCP:
            payload = 0
        elif kind >= UDP:
            payload = max(payload, <uint32_t>HEAD)
        key = (address, port, kind, dscp, scope)
        if key in self.known:
            raise ValueError("duplicate peer")
        if self.e.n_peers >= MAX_PEERS:
            raise ValueError(f"more than {MAX_PEERS} peers")
        rate = 1e9 / interval if interval else 0.0
        there = self.planned_at.get(address, 0.0)
        if not self.e.lab:
            if self.planned + rate > MAX_RATE:
                raise ValueError(f"more than {MAX_RATE} probes a second")
            if there + rate > MAX_TARGET_RATE + 1e-9:
                raise ValueError(f"more than {MAX_TARGET_RATE} probes a second to one address")
        wire = self._group(version == 6, kind == ICMP, dscp) if kind >= UDP else 0
        self._make_room()
        p = <Peer*>calloc(1, sizeof(Peer))
        if p == NULL:
            raise MemoryError
        try:
            _name(p.where.name, 32, name)
            _name(p.where.pod, 16, pod)
            _name(p.where.podset, 16, podset)
            _name(p.where.dc, 16, dc)
        except ValueError:
            free(p)
            raise
        address_set(&p.to, version, <const uint8_t*><const char*>address, port, scope)
        if version == 6 and not self.labels_known:
            self.e.relabels, self.labels_known = labels_change(), True
        if local_address(&p.to, &self.e.source4 if version == 4 else &self.e.source6, &p.self) < 0:
            address_set(&p.self, version, ZEROS, 0, 0)
        p.kind, p.level, p.dscp, p.wire = <uint8_t>kind, <uint8_t>level, <uint8_t>dscp, <uint16_t>wire
        p.interval, p.timeout, p.payload, p.left, p.counted = interval, timeout, payload, count, count > 0
        p.port_at = <uint32_t>below(&self.e.random, self.e.port_span)
        p.port_step = _step(self.e.port_span, <uint32_t>below(&self.e.random, self.e.port_span))
        p.target = self._target(address)
        self.e.serial += 1
        p.serial, p.index = self.e.serial, self.e.n_peers
        earlier = self.before.pop(key, None)
        if after < 0:
            # Multiples of the golden ratio are spread evenly for any number of peers.
            share = <double>(self.e.serial * <uint64_t>0x9E3779B97F4A7C15u >> 11) / 2.0 ** 53
            after = <int64_t>(<double>interval * share)
        due = now + after
        if earlier is not None:
            sent_at, p.seq, p.port_at, p.port_step, span = earlier
            if span != self.e.port_span:
                p.port_at, p.port_step = 0, 1
            if sent_at + interval > now:
                due = sent_at + interval
            p.sent_at = sent_at
        self.e.peer[self.e.n_peers] = p
        self.e.n_peers += 1
        self.known[key] = p.index
        self.planned_at[address] = there + rate
        self.planned += rate
        self._set_gap()
        i = self.e.scheduled
        self.e.heap[i].due, self.e.heap[i].peer = due, p
        self.e.scheduled += 1
        heap_rise(self.e.heap, i)
        return p.index

    def clear(self):
        """Remove all peers.  Probes in flight still end and have their records."""
        cdef Peer* p
        cdef int64_t now = monotonic_ns()
        self.before = {key: what for key, what in self.before.items() if what[0] + MAX_TIMEOUT > now}
        for key, index in self.known.items():
            p = self.e.peer[<uint32_t>index]
            if p.sent_at and len(self.before) < 2 * MAX_PEERS:
                self.before[key] = p.sent_at, p.seq, p.port_at, p.port_step, self.e.port_span
        self._forget()
        self.known, self.targets, self.planned_at = {}, {}, {}
        self.planned, self.e.n_targets, self.e.n_peers, self.e.scheduled = 0, 0, 0, 0
        self._set_gap()

    cdef void _forget(self) noexcept nogil:
        cdef uint32_t i
        for i in range(self.e.n_peers):
            self.e.peer[i].gone = 1
            if not self.e.peer[i].flying:
                free(self.e.peer[i])
        self.e.n_peers = 0

    cdef void _set_gap(self):
        # After a pause all peers are due at once: they are then sent at twice the planned rate, not in one burst.
        self.e.gap = 0 if self.e.lab or self.planned == 0 else <int64_t>(5e8 / self.planned)

    cdef int _make_room(self) except -1:
        cdef uint32_t n = max(self.e.heap_room * 2, <uint32_t>64)
        cdef Peer** peers
        cdef HeapEntry* entries
        if self.e.n_peers < self.e.heap_room:
            return 0
        peers = <Peer**>realloc(self.e.peer, n * sizeof(void*))
        if peers == NULL:
            raise MemoryError
        self.e.peer = peers
        entries = <HeapEntry*>realloc(self.e.heap, n * sizeof(HeapEntry))
        if entries == NULL:
            raise MemoryError
        self.e.heap, self.e.heap_room = entries, n
        return 0

    cdef uint32_t _target(self, bytes address) except? 0xFFFFFFFF:
        cdef Target* more
        cdef uint32_t n
        index = self.targets.get(address)
        if index is not None:
            return index
        if self.e.n_targets == self.e.targets_room:
            n = max(self.e.targets_room * 2, <uint32_t>64)
            more = <Target*>realloc(self.e.target, n * sizeof(Target))
            if more == NULL:
                raise MemoryError
            self.e.target, self.e.targets_room = more, n
        self.targets[address] = self.e.n_targets
        self.e.target[self.e.n_targets].next_at = 0
        self.e.n_targets += 1
        return self.e.n_targets - 1

    cdef _group(self, bint six, bint icmp, int dscp):
        """Index of the first socket for these datagrams."""
        cdef uint32_t first = self.e.n_wires, i
        cdef Wire* w
        cdef int bad
        key = (six, icmp, dscp)
        if key in self.groups:
            return self.groups[key]
        if self.e.n_groups >= MAX_GROUPS:
            raise ValueError(f"datagrams of more than {MAX_GROUPS} classes of service")
        for i in range(1 if icmp else self.e.ports):
            w = <Wire*>malloc(sizeof(Wire))
            if w == NULL:
                raise MemoryError
            bad = wire_open(w, six, icmp, dscp, self.e.stamps, &self.e.source6 if six else &self.e.source4)
            if bad == 0:
                bad = watch_fd(self.e.ep, EPOLL_CTL_ADD, w.fd, EPOLLIN, WIRES | (first + i))
                if bad:
                    close(w.fd)
            if bad:
                free(w)
                while self.e.n_wires > first:
                    self.e.n_wires -= 1
                    close(self.e.wire[self.e.n_wires].fd)
                    free(self.e.wire[self.e.n_wires])
                raise OSError(-bad, "cannot open a datagram socket")
            self.e.wire[first + i] = w
            self.e.n_wires += 1
        self.e.n_groups += 1
        self.groups[key] = first
        return first

    # -- state

    @property
    def lab(self):
        """Whether the limits on intervals and rates are lifted."""
        return bool(self.e.lab)

    @property
    def list(self):
        """Version of the pinglist in the records."""
        return self.e.version

    @list.setter
    def list(self, uint64_t version):
        self.e.version = version

    @property
    def token(self):
        """Token of UDP probes, which responders check."""
        return self.e.token

    @token.setter
    def token(self, uint64_t token):
        self.e.token = token

    @property
    def peers(self):
        """Number of peers."""
        return self.e.n_peers

    @property
    def active(self):
        """Whether a probe is in flight or scheduled."""
        return self.e.scheduled > 0 or self.e.flying > 0

    @property
    def inflight(self):
        """Number of probes in flight."""
        return self.e.flying

    @property
    def rate(self):
        """Planned probes per second."""
        return self.planned

    @property
    def slow(self):
        """Factor on all intervals, 1 to 1024."""
        return self.e.slow_share / 65536.0

    @slow.setter
    def slow(self, double times):
        if not 1 <= times <= 1024:
            raise ValueError("the factor is 1 to 1024")
        self.e.slow_share = <int64_t>(times * 65536)

    @property
    def counts(self):
        """Counters by the names of `COUNTS`."""
        return {name: self.e.count[i] for i, name in enumerate(COUNTS)}

    def stop(self):
        """End `run`, or the next one.  May be called from any thread and from signal handlers."""
        cdef uint64_t one = 1
        write(self.e.wake_fd, &one, 8)

    # -- probing

    def run(self, Staging block not None, int64_t until, uint32_t min_rows=0):
        """Probe until ``until`` (ns of the monotonic clock), the block is full, ``min_rows`` rows were added, no probe
        is left, or `stop` was called.  Appends rows to the block, which must be as the last `run` or `clear` left it.
        Returns the number of new rows.
        """
        cdef int i, state = AGAIN
        cdef uint32_t start = block.rows
        cdef bint idle = not (self.e.scheduled or self.e.flying)
        if block.layout is not self.layout:
            raise ValueError("the block has another layout")
        for i in range(<int>COLS):
            self.e.col[i] = block.out[self.at[i]]
        self.e.row, self.e.room = start, block.capacity
        if min_rows and min_rows < self.e.room - start:
            self.e.room = start + min_rows
        try:
            while state == AGAIN:
                with nogil:
                    state = run_engine(&self.e, until, idle)
                block.set_rows(self.e.row)
                PyErr_CheckSignals()
        finally:
            block.set_rows(self.e.row)
        return self.e.row - start


cdef const uint8_t* ZEROS = <const uint8_t*>"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"


cdef int _name(uint8_t* to, size_t room, str text) except -1:
    cdef bytes data = text.encode("utf-8", "surrogateescape")
    if <size_t>len(data) > room:
        raise ValueError(f"the name '{text[:60]}' is longer than {room} bytes")
    memcpy(to, <const char*>data, len(data))
    return 0


cdef bint _one_host(const uint8_t* a, int version) noexcept nogil:
    """Whether it is a unicast address: not broadcast, unspecified, multicast, or IPv4-mapped IPv6."""
    cdef int i
    if version == 4:
        return 0 < a[0] < 224
    if a[0] == 0xFF:
        return False
    for i in range(10):
        if a[i]:
            return True
    if a[10] == 0xFF and a[11] == 0xFF:
        return False
    for i in range(10, 16):
        if a[i]:
            return True
    return False


cdef _ports():
    """First port and number of ports of net.ipv4.ip_local_port_range."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", "rb") as file:
            low, high = map(int, file.read(64).split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    return (low, high - low + 1) if 0 < low <= high < 65536 else (32768, 28232)


def labels_change():
    """Whether net.ipv6.auto_flowlabels is 3: retries over IPv6 get new flow labels whatever the socket sets."""
    try:
        with open("/proc/sys/net/ipv6/auto_flowlabels", "rb") as file:
            return file.read(8).strip() == b"3"
    except OSError:
        return False


cdef uint32_t _step(uint32_t span, uint32_t n) noexcept:
    # A step coprime to ``span``: the walk visits all ports before it repeats one; it differs between peers.
    cdef uint32_t a, b, t
    n = max(n, <uint32_t>1)
    while True:
        a, b = span, n % span if span > 1 else 1
        while b:
            t = a % b
            a, b = b, t
        if a == 1:
            return n
        n += 1
