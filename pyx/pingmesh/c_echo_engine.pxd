# Echo engine: starts probes when due, receives answers, ends probes at their time-out.  Used by one thread.

from libc.errno cimport (
    EADDRINUSE, EADDRNOTAVAIL, EAGAIN, ECONNREFUSED, ECONNRESET, EHOSTUNREACH, EINTR, ENETUNREACH, ENOBUFS, ENOPROTOOPT,
    EPIPE, EPROTO, ETIMEDOUT, errno)
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memset
from posix.unistd cimport close, read
from c_posix cimport MSG_DONTWAIT, MSG_NOSIGNAL, recv, send
from c_echo_probes cimport *
from c_random cimport Stream, below
from c_bits cimport bswap16, bswap32, bswap64
from c_wire cimport be32, be64

cdef extern from * nogil:
    """
    #define CFL_WAKE (~0ull)
    #define CFL_WIRES (1ull << 63)
    #define CFL_SECOND 1000000000ll
    #define CFL_TARGET_GAP 500000000ll
    #define CFL_BUSY 20000000ll
    """
    const uint64_t WAKE "CFL_WAKE"              # tag of the wake-up event of `stop`
    const uint64_t WIRES "CFL_WIRES"            # tag bit of datagram sockets
    const int64_t SECOND "CFL_SECOND"
    const int64_t TARGET_GAP "CFL_TARGET_GAP"   # min ns between two probes of one address
    const int64_t BUSY "CFL_BUSY"               # ns after which Python's signal handlers run

cdef enum:
    MAX_SENDS = 64                      # probes started between two polls for answers
    MAX_SENDS_RELAXED = 4               # the same with slack: a short batch delays no answer
    BURST = 16                          # probes allowed ahead of the average rate when many are due
    MAX_BYTES = 65536
    MAGIC = 0x43504D31                  # 'CPM1'
    HEAD = 48                           # of a datagram
    PORT_TRIES = 16                     # source ports tried before the kernel chooses one
    AGAIN = 0
    DONE = 1

cdef enum:                              # counters; 1 to 7 are the outcomes
    N_PROBES = 0
    N_RETRIED = 8
    N_SKIPPED
    N_LATE
    N_DUPLICATED
    N_STRAY
    NUMBERS

cdef struct EchoEngine:
    int ep, wake_fd
    bint lab, stamps, relabels, more    # more: answers are left unread
    uint32_t ports, port_low, port_span, capacity, n_peers, scheduled, flying, free_at, free_n, n_targets
    uint32_t room, row, behind, n_wires, n_groups, targets_room, heap_room
    uint64_t serial, version, token
    int64_t slack, gap, earliest, jitter_share, slow_share
    Address source4, source6
    Location own
    Probe* probe
    uint32_t* free_slot                 # a ring: a slot is reused as late as possible
    Peer** peer
    HeapEntry* heap
    Target* target
    Wire** wire
    DatagramBatch* received
    DatagramBatch* errors
    uint8_t* pattern
    uint8_t* scratch
    Wheel* wheel
    Event* events
    uint8_t* col[COLS]
    Stream random
    uint64_t count[NUMBERS]

cdef inline void release_peer(Peer* p) noexcept nogil:
    p.flying -= 1
    if p.gone and not p.flying:
        free(p)

cdef inline int run_engine(EchoEngine* e, int64_t until, bint idle) noexcept nogil:
    cdef int64_t now = monotonic_ns(), began = now, next = 0, tick, looked
    cdef int n
    while True:
        looked, e.more = now, False
        n = wait_events(e.ep, e.events, EVENTS, next - now if next > now else 0)
        now = monotonic_ns()
        if n < 0:
            return AGAIN if n == -EINTR else DONE
        if n and not handle_events(e, n, now):
            return DONE
        # An answer that arrived before we polled is on time, however late we poll: no probe times out while answers
        # wait to be read, unless there are more of them than probes in flight.
        e.behind = e.behind + 1 if e.more or n == EVENTS else 0
        if e.behind == 0 or e.behind > e.capacity // WIRE_BATCH + 16:
            expire(e, looked)
        next = send_due(e, now)
        if e.row >= e.room or now >= until:
            return DONE
        if not (e.scheduled or e.flying or idle):
            return DONE
        if next < 0 or next > until:
            next = until
        tick = wheel_next(e.wheel) if e.flying else -1
        if 0 <= tick < next:
            next = tick
        if now - began > BUSY:
            return AGAIN

cdef inline bint handle_events(EchoEngine* e, int n, int64_t now) noexcept nogil:
    """Process epoll events; False: `stop` was called."""
    cdef int i
    cdef uint64_t what, drained
    cdef uint32_t slot
    cdef bint on = True
    for i in range(n):
        what = e.events[i].data.u64
        if what == WAKE:
            read(e.wake_fd, &drained, 8)
            on = False
        elif e.row >= e.room:
            e.more = True           # epoll reports it again
        elif what & WIRES:
            receive_datagrams(e, <uint32_t>what)
        else:
            slot = <uint32_t>what
            if e.probe[slot].generation == what >> 32 and e.probe[slot].state != FREE:
                if e.probe[slot].state == CONNECTING:
                    check_connect(e, slot)
                else:
                    continue_echo(e, slot)
    return on

# -- sending

cdef inline int64_t send_due(EchoEngine* e, int64_t now) noexcept nogil:
    """Start the probes that are due; returns when the next one is, -1: none."""
    cdef Peer* p
    cdef Target* t
    cdef int64_t next = -1
    cdef uint32_t n = 0, i
    while e.scheduled and e.row < e.room:
        p = e.heap[0].peer
        if e.heap[0].due > now:
            next = e.heap[0].due + e.slack      # wait for several: fewer wake-ups
            break
        if not e.free_n:
            break                   # an answer or a time-out frees a slot
        if n == <uint32_t>(MAX_SENDS_RELAXED if e.slack else MAX_SENDS):
            next = now
            break
        if e.gap:
            if e.earliest - BURST * e.gap - 2 * e.slack > now:
                next = e.earliest - BURST * e.gap - e.slack
                break
            t = &e.target[p.target]
            if t.next_at > now:
                e.heap[0].due = t.next_at
                heap_sink(e.heap, e.scheduled, 0)
                continue
            t.next_at = now + TARGET_GAP
            e.earliest = max(e.earliest, now) + e.gap
        n += 1
        begin_probe(e, p, now)
    if n:
        for i in range(e.n_wires):
            if e.wire[i].n:
                flush_wire(e, e.wire[i])
    return next

cdef inline void begin_probe(EchoEngine* e, Peer* p, int64_t now) noexcept nogil:
    cdef uint32_t slot = e.free_slot[e.free_at]
    cdef Probe* probe = &e.probe[slot]
    cdef int64_t late = now - e.heap[0].due, pause
    e.free_at = e.free_at + 1 if e.free_at + 1 < e.capacity else 0
    e.free_n -= 1
    e.flying += 1
    if p.interval and late > p.interval and p.sent_at:
        e.count[N_SKIPPED] += <uint64_t>(late // p.interval)
    p.sent_at = now
    p.flying += 1
    p.seq += 1
    probe.peer, probe.serial, probe.index, probe.seq = p, p.serial, p.index, p.seq
    probe.generation = (probe.generation + 1) & 0x7FFFFFFF
    probe.version = e.version
    probe.rtt = probe.opened = probe.tx = probe.tx_wall = 0
    probe.error = 0
    probe.begun = 0
    probe.deadline = -1             # not on the wheel
    probe.sent = probe.got = 0
    probe.retries = probe.hint = probe.outcome = 0
    probe.notes = (LAB if e.lab else 0) | (SLOWED if e.slow_share > 65536 else 0)
    probe.self = p.self
    probe.wall = wall_ns()
    e.count[N_PROBES] += 1
    # Schedule the next probe first: starting this one may end it at once.
    if p.left:
        p.left -= 1
    if p.counted and p.left == 0:
        e.scheduled -= 1
        e.heap[0] = e.heap[e.scheduled]
    else:
        pause = (p.interval >> 16) * e.slow_share + ((p.interval & 65535) * e.slow_share >> 16)
        if e.jitter_share:
            pause += <int64_t>below(&e.random, <uint64_t>((p.interval >> 16) * e.jitter_share) + 1)
        e.heap[0].due = now + pause
    if e.scheduled:
        heap_sink(e.heap, e.scheduled, 0)
    if p.kind >= UDP:
        write_datagram(e, slot)
    else:
        begin_connect(e, slot)

cdef inline void begin_connect(EchoEngine* e, uint32_t slot) noexcept nogil:
    cdef Probe* probe = &e.probe[slot]
    cdef Peer* p = probe.peer
    cdef int fd = -EADDRNOTAVAIL, i
    cdef uint16_t port
    for i in range(<int>PORT_TRIES + 1):
        port = <uint16_t>(e.port_low + p.port_at) if i < PORT_TRIES else 0
        p.port_at = (p.port_at + p.port_step) % e.port_span
        fd = tcp_begin(&p.to, &e.source6 if address_six(&p.to) else &e.source4, port, p.dscp,
                       p.kind == ECHO, &probe.self, &probe.begun)
        if fd != -EADDRNOTAVAIL and fd != -EADDRINUSE:
            break
    probe.fd = fd if fd >= 0 else -1
    probe.state = CONNECTING
    if fd < 0:
        fail_probe(e, slot, -fd, True)
        return
    probe.port = address_port(&probe.self)
    probe.deadline = probe.begun + p.timeout
    wheel_put(e.wheel, e.probe, slot)
    i = watch_fd(e.ep, EPOLL_CTL_ADD, fd, EPOLLOUT, <uint64_t>probe.generation << 32 | slot)
    if i:
        fail_probe(e, slot, -i, True)

cdef inline void write_datagram(EchoEngine* e, uint32_t slot) noexcept nogil:
    cdef Probe* probe = &e.probe[slot]
    cdef Peer* p = probe.peer
    cdef uint32_t here = 8 if p.kind == ICMP else 0
    cdef Wire* w = e.wire[p.wire + (0 if here else p.seq % e.ports)]
    cdef uint8_t* h
    if w.n == WIRE_BATCH:
        flush_wire(e, w)
    probe.state, probe.fd, probe.port = FLYING, -1, 0 if here else w.port
    h = wire_next(w, &p.to, slot, here + HEAD, e.pattern, p.payload - HEAD)
    if here:
        memset(h, 0, 8)
        h[0] = 128 if w.six else 8
        (<uint16_t*>h)[3] = bswap16(<uint16_t>p.seq)
        h += 8
    (<uint32_t*>h)[0] = bswap32(MAGIC)
    (<uint32_t*>h)[1] = 0
    (<uint64_t*>h)[1] = bswap64(e.token)
    (<uint32_t*>h)[4] = bswap32(p.seq)
    (<uint32_t*>h)[5] = bswap32(slot)
    (<uint64_t*>h)[3] = bswap64(<uint64_t>probe.wall)
    memset(h + 32, 0, 16)
    probe.begun = monotonic_ns()
    probe.deadline = probe.begun + p.timeout
    wheel_put(e.wheel, e.probe, slot)

cdef inline void flush_wire(EchoEngine* e, Wire* w) noexcept nogil:
    """Send the queued datagrams.  One that the kernel refuses ends with outcome `local` at the next tick."""
    cdef unsigned at = 0, tries = 0
    cdef int n
    while at < w.n:
        n = wire_send(w, at)
        if n > 0:
            at += n
            tries = 0
        elif n == -EINTR:
            continue
        elif n == 0 or ((n == -EAGAIN or n == -ENOBUFS) and tries < 5):
            tries += 1
            wait_writable(w.fd, 2)
        elif (n == -ECONNREFUSED or n == -EHOSTUNREACH) and tries < 5:
            tries += 1              # error of an earlier datagram: the error queue names it
        else:
            end_later(e, w.slot[at], LOCAL, -n)
            at += 1
            tries = 0
    w.n = 0

cdef inline void end_later(EchoEngine* e, uint32_t slot, int outcome, int error) noexcept nogil:
    """End the probe with this outcome; its record is written at the next tick."""
    cdef Probe* probe = &e.probe[slot]
    probe.outcome, probe.error = <uint8_t>outcome, error
    wheel_take(e.wheel, e.probe, slot)
    probe.deadline = 0
    wheel_put(e.wheel, e.probe, slot)

# -- receiving

cdef inline void check_connect(EchoEngine* e, uint32_t slot) noexcept nogil:
    cdef Probe* probe = &e.probe[slot]
    cdef Handshake h
    cdef int64_t bound
    tcp_state(probe.fd, &h)
    probe.opened = monotonic_ns()
    probe.retries = <uint8_t>min(h.retries, <uint32_t>255)
    if not h.open:
        if h.error:
            fail_probe(e, slot, h.error, False)
        return
    if probe.retries == 0:
        probe.rtt = max(<int64_t>h.rtt, <int64_t>(0 if h.error else 1)) * 1000
    else:
        if e.relabels and address_six(&probe.peer.to):
            probe.notes |= RELABEL
        if probe.retries == 1 and h.stamped:
            # The SYN-ACK to the second SYN echoes the first SYN's time stamp if the first one arrived.
            bound = min(probe.opened - probe.begun, SECOND)
            probe.hint = REVERSE if <int64_t>h.rtt * 2000 > bound else FORWARD
    if probe.peer.kind == TCP:
        end_probe(e, slot, OK, 0)
    elif h.error:
        fail_probe(e, slot, h.error, False)
    else:
        probe.state = ECHOING
        continue_echo(e, slot)

cdef inline void continue_echo(EchoEngine* e, uint32_t slot) noexcept nogil:
    cdef Probe* probe = &e.probe[slot]
    cdef uint32_t size = probe.peer.payload
    cdef Py_ssize_t n
    cdef bint sending = probe.sent < size
    while probe.sent < size:
        n = send(probe.fd, e.pattern + probe.sent, size - probe.sent, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                break
            fail_probe(e, slot, errno, False)
            return
        probe.sent += <uint32_t>n
    while True:
        n = recv(probe.fd, e.scratch, MAX_BYTES, MSG_DONTWAIT)
        if n < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                break
            fail_probe(e, slot, errno, False)
            return
        if n == 0:
            end_probe(e, slot, RESET, 0)
            return
        if n > probe.sent - probe.got or memcmp(e.scratch, e.pattern + probe.got, n):
            end_probe(e, slot, GARBLED, 0)
            return
        probe.got += <uint32_t>n
        if probe.got == size:
            end_probe(e, slot, OK, monotonic_ns() - probe.opened)
            return
    if sending:
        watch_fd(e.ep, EPOLL_CTL_MOD, probe.fd, EPOLLIN | (EPOLLOUT if probe.sent < size else 0),
                 <uint64_t>probe.generation << 32 | slot)

cdef inline void receive_datagrams(EchoEngine* e, uint32_t index) noexcept nogil:
    """Read answers; before evaluating them, read the error queue, which has the send times of their probes."""
    cdef Wire* w = e.wire[index]
    cdef ReceivedDatagram one
    cdef uint32_t room = min(e.room - e.row, <uint32_t>WIRE_BATCH)
    cdef int answers, n, i, _round
    answers = wire_receive(w, e.received, room, False, e.scratch)
    if answers == <int>room:
        e.more = True
    for _round in range(8):
        n = wire_receive(w, e.errors, WIRE_BATCH, True, e.scratch)
        for i in range(n):
            get_datagram(e.errors, i, &one)
            receive_error(e, w, &one, <uint32_t>max(answers, 0))
        if n < <int>WIRE_BATCH:
            break
    for i in range(answers):
        get_datagram(e.received, i, &one)
        receive_answer(e, w, &one)

cdef inline void receive_error(EchoEngine* e, Wire* w, const ReceivedDatagram* one, uint32_t kept) noexcept nogil:
    """Process an entry of the error queue.  ``kept``: rows reserved for answers already read."""
    cdef uint32_t slot
    cdef Probe* probe
    if one.origin == SO_EE_ORIGIN_TIMESTAMPING:
        if w.stamps and w.id - one.id <= WIRE_IDS:
            probe = &e.probe[w.ids[one.id % WIRE_IDS]]
            if probe.state == FLYING and one.stamp >= probe.wall:
                probe.tx_wall = one.stamp
        return
    slot = find_probe(e, w, one, True)
    if slot and one.origin != SO_EE_ORIGIN_LOCAL:
        if e.row + kept < e.room:
            fail_probe(e, slot - 1, one.error, False)
        else:
            end_later(e, slot - 1, outcome_of(one.error), one.error)

cdef inline uint32_t find_probe(EchoEngine* e, const Wire* w, const ReceivedDatagram* one, bint ours) noexcept nogil:
    """Slot + 1 of the probe in flight that a datagram belongs to, 0: none."""
    cdef const uint8_t* h = one.bytes
    cdef uint32_t slot, skip = 8 if w.icmp else 0
    cdef Probe* probe
    cdef Peer* p
    if one.have < skip + HEAD or be32(h + skip) != MAGIC:
        e.count[N_STRAY] += 1
        return 0
    if skip and not ours and h[0] != (129 if w.six else 0):
        e.count[N_STRAY] += 1
        return 0
    h += skip
    slot = be32(h + 20)
    if slot >= e.capacity:
        e.count[N_STRAY] += 1
        return 0
    probe = &e.probe[slot]
    if probe.seq != be32(h + 16) or <uint64_t>probe.wall != be64(h + 24) or be64(h + 8) != e.token:
        e.count[N_LATE if probe.seq else N_STRAY] += 1
        return 0
    if probe.state == FLYING:
        if address_same(&probe.peer.to, one.sender) and (
                skip or address_port(&probe.peer.to) == address_port(one.sender)):
            return slot + 1
        e.count[N_STRAY] += 1
        return 0
    if probe.outcome == OK:
        e.count[N_DUPLICATED] += 1
        if probe.index < e.n_peers and e.peer[probe.index].serial == probe.serial:
            p = e.peer[probe.index]
            p.notes |= DUPLICATED
    else:
        e.count[N_LATE] += 1
    return 0

cdef inline void receive_answer(EchoEngine* e, const Wire* w, const ReceivedDatagram* one) noexcept nogil:
    cdef uint32_t slot = find_probe(e, w, one, False)
    cdef Probe* probe
    cdef Peer* p
    cdef const uint8_t* h = one.bytes + (8 if w.icmp else 0)
    cdef int64_t elapsed, rtt, remote, t2, t3
    if slot == 0:
        return
    slot -= 1
    probe = &e.probe[slot]
    p = probe.peer
    if one.size != p.payload + <uint32_t>(8 if w.icmp else 0):
        end_probe(e, slot, GARBLED, 0)
        return
    if probe.seq < p.top:
        probe.notes |= REORDERED
    else:
        p.top = probe.seq
    probe.opened = monotonic_ns()
    elapsed = probe.opened - probe.begun
    if elapsed > p.timeout and one.stamp - probe.wall > p.timeout:
        time_out(e, slot)                   # the answer was late, not our poll
        return
    rtt = one.stamp - (probe.tx_wall if probe.tx_wall else probe.wall) if one.stamp else elapsed
    if rtt <= 0 or rtt > elapsed + 1_000_000:
        rtt = elapsed               # the wall clock was set
    elif probe.tx_wall and one.stamp:
        probe.notes |= STAMPED
    t2, t3 = <int64_t>be64(h + 32), <int64_t>be64(h + 40)
    remote = t3 - t2 if t2 > 0 and t3 > t2 else 0
    if remote < rtt:
        rtt -= remote
    else:
        remote = 0
    probe.rtt, probe.tx = rtt, remote
    end_probe(e, slot, OK, 0)

# -- ends

cdef inline void expire(EchoEngine* e, int64_t now) noexcept nogil:
    cdef Wheel* w = e.wheel
    cdef int64_t tick = now >> TICK
    cdef uint32_t i, next
    if w.at < tick - WHEEL or not e.flying:
        w.at = tick - (WHEEL if e.flying else 0)
    while w.at < tick:
        i = w.first[(w.at + 1) & (WHEEL - 1)]
        while i:
            next = e.probe[i - 1].next
            if e.probe[i - 1].deadline <= now:
                if e.row >= e.room:
                    return
                if e.probe[i - 1].outcome:           # sending failed
                    end_probe(e, i - 1, e.probe[i - 1].outcome, 0)
                else:
                    time_out(e, i - 1)
            i = next
        w.at += 1

cdef inline void time_out(EchoEngine* e, uint32_t slot) noexcept nogil:
    cdef Handshake h
    if e.probe[slot].state == CONNECTING:
        tcp_state(e.probe[slot].fd, &h)
        e.probe[slot].retries = <uint8_t>min(h.retries, <uint32_t>255)
    e.probe[slot].error = ETIMEDOUT
    end_probe(e, slot, TIMEOUT, 0)

cdef inline int outcome_of(int error) noexcept nogil:
    if error == ETIMEDOUT:
        return TIMEOUT
    if error == ECONNREFUSED:
        return REFUSED
    if error == ECONNRESET or error == EPIPE:
        return RESET
    if error == EHOSTUNREACH or error == ENETUNREACH or error == EPROTO or error == ENOPROTOOPT:
        return UNREACHABLE
    return LOCAL

cdef inline void fail_probe(EchoEngine* e, uint32_t slot, int error, bint local) noexcept nogil:
    """End the probe with an errno.  ``local``: this host did not send it."""
    e.probe[slot].error = error
    end_probe(e, slot, LOCAL if local and error != ECONNREFUSED else outcome_of(error), 0)

cdef inline void end_probe(EchoEngine* e, uint32_t slot, int outcome, int64_t echo) noexcept nogil:
    cdef Probe* probe = &e.probe[slot]
    cdef Peer* p = probe.peer
    cdef int64_t remote = probe.tx, elapsed
    if probe.begun == 0:
        probe.begun = monotonic_ns()
    elapsed = (probe.opened if outcome == OK else monotonic_ns()) - probe.begun
    if outcome != OK or probe.retries:
        probe.rtt = 0
    if outcome == LOCAL:
        elapsed = 0
    probe.outcome = <uint8_t>outcome
    probe.notes |= p.notes
    p.notes = 0
    put_record(e.col, e.row, probe, &e.own, elapsed, echo, remote)
    e.row += 1
    e.count[outcome] += 1
    if probe.retries and outcome == OK:
        e.count[N_RETRIED] += 1
    if probe.fd >= 0:
        close(probe.fd)
        probe.fd = -1
    if probe.deadline >= 0:
        wheel_take(e.wheel, e.probe, slot)
    probe.state = FREE
    e.free_slot[(e.free_at + e.free_n) % e.capacity] = slot
    e.free_n += 1
    e.flying -= 1
    release_peer(p)
