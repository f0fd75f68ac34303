# Echo probes: peers, probes in flight, time-out wheel, schedule heap, and the record of a probe.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_ipv6_hash cimport fold6
from c_bits cimport ctz64
from c_wire cimport be32

cdef extern from "echo_sockets.h" nogil:
    enum: SYN_RETRIES
    enum: EVENTS
    enum: WIRE_BATCH
    enum: WIRE_HEAD
    enum: WIRE_IDS
    enum: EPOLLIN
    enum: EPOLLOUT
    enum: EPOLLERR
    enum: EPOLLHUP
    enum: EPOLL_CTL_ADD
    enum: EPOLL_CTL_MOD
    enum: SO_EE_ORIGIN_LOCAL
    enum: SO_EE_ORIGIN_TIMESTAMPING
    ctypedef union Address:
        pass
    ctypedef union Data "epoll_data_t":
        uint64_t u64
    ctypedef struct Event "struct epoll_event":
        uint32_t events
        Data data
    ctypedef struct Handshake:
        uint32_t rtt, retries
        uint8_t stamped, open
        int error
    ctypedef struct Wire:
        int fd
        uint8_t six, icmp, dscp, stamps
        uint16_t port
        uint32_t id
        unsigned n
        uint32_t* slot
        uint32_t* ids
    ctypedef struct DatagramBatch:
        pass
    ctypedef struct ReceivedDatagram:
        uint32_t size, have
        const uint8_t* bytes
        const Address* sender "from"
        int64_t stamp
        int error, origin
        uint32_t id
    int64_t monotonic_ns()
    int64_t wall_ns()
    void address_set(Address* a, int version, const uint8_t* bytes, uint16_t port, uint32_t scope)
    uint16_t address_port(const Address* a)
    const uint8_t* address_bytes(const Address* a)
    bint address_same(const Address* a, const Address* b)
    bint address_six(const Address* a)
    int local_address(const Address* to, const Address* source, Address* self)
    int tcp_begin(const Address* to, const Address* source, uint16_t port, int dscp, int nodelay, Address* self,
                  int64_t* begun)
    void tcp_state(int fd, Handshake* h)
    int watch_fd(int ep, int op, int fd, uint32_t events, uint64_t data)
    int wait_events(int ep, Event* e, int n, int64_t ns)
    int wire_open(Wire* w, int six, int icmp, int dscp, int stamps, const Address* source)
    uint8_t* wire_next(Wire* w, const Address* to, uint32_t slot, uint32_t head, const uint8_t* padding, uint32_t more)
    int wire_send(Wire* w, unsigned first)
    int wire_receive(Wire* w, DatagramBatch* l, unsigned limit, bint errors, uint8_t* sink)
    void get_datagram(DatagramBatch* l, int i, ReceivedDatagram* out)
    void wait_writable(int fd, int milliseconds)

cdef enum:                              # kinds, outcomes, notes and hints of schema/probe.yaml
    TCP = 1
    ECHO = 2
    UDP = 5
    ICMP = 6
    OK = 1
    TIMEOUT = 2
    REFUSED = 3
    UNREACHABLE = 4
    RESET = 5
    LOCAL = 6
    GARBLED = 7
    LAB = 1
    RELABEL = 2
    REORDERED = 8
    DUPLICATED = 16
    SLOWED = 32
    STAMPED = 64
    FORWARD = 1
    REVERSE = 2

cdef enum:                              # states of a probe
    FREE = 0
    CONNECTING
    ECHOING
    FLYING

cdef struct Location:                   # names in the topology
    uint8_t name[32]
    uint8_t pod[16]
    uint8_t podset[16]
    uint8_t dc[16]

cdef struct Peer:
    Address to
    Address self                        # our address towards the peer; port 0
    Location where
    int64_t interval, timeout, sent_at
    uint64_t left                       # probes still to send; 0: unlimited
    uint64_t serial                     # unique, never reused
    uint32_t payload, seq, flying, target, index
    uint32_t port_at, port_step         # walk over the source ports
    uint32_t top                        # highest number answered
    uint16_t notes                      # for its next record
    uint8_t kind, level, dscp, gone, counted
    uint16_t wire                       # index of the first socket of its group

cdef struct HeapEntry:                  # separate from the peer, so that the search for the next one stays in cache
    int64_t due
    Peer* peer

cdef struct Target:                     # one address with all its peers
    int64_t next_at

cdef struct Probe:
    Peer* peer
    uint64_t serial                     # of the peer, which may be freed before a late answer comes
    uint64_t version                    # of the pinglist
    int64_t begun, wall, deadline, opened, rtt, tx, tx_wall
    Address self
    int fd, error
    uint32_t seq, index, sent, got, next, prev, bucket, generation
    uint16_t port, notes
    uint8_t state, retries, hint, outcome

# -- time-outs: a wheel of lists

cdef enum:
    WHEEL = 4096
    WORDS = 64
    TICK = 22                           # 2**22 ns = 4.2 ms; a rotation takes 17 s, later deadlines wait for the next

cdef struct Wheel:
    uint32_t first[WHEEL]               # slot + 1
    uint64_t some[WORDS]                # bit: the list is not empty
    int64_t at                          # last tick processed

cdef inline void wheel_put(Wheel* w, Probe* probe, uint32_t slot) noexcept nogil:
    cdef Probe* p = &probe[slot]
    cdef int64_t tick = max((p.deadline >> TICK) + 1, w.at + 1)
    cdef uint32_t b = <uint32_t>(tick & (WHEEL - 1))
    p.bucket, p.prev, p.next = b, 0, w.first[b]
    if p.next:
        probe[p.next - 1].prev = slot + 1
    w.first[b] = slot + 1
    w.some[b >> 6] |= <uint64_t>1 << (b & 63)

cdef inline void wheel_take(Wheel* w, Probe* probe, uint32_t slot) noexcept nogil:
    cdef Probe* p = &probe[slot]
    if p.prev:
        probe[p.prev - 1].next = p.next
    else:
        w.first[p.bucket] = p.next
        if not p.next:
            w.some[p.bucket >> 6] &= ~(<uint64_t>1 << (p.bucket & 63))
    if p.next:
        probe[p.next - 1].prev = p.prev
    p.next = p.prev = 0

cdef inline int64_t wheel_next(const Wheel* w) noexcept nogil:
    """Time (ns) of the next non-empty list; -1: all are empty."""
    cdef uint32_t start = <uint32_t>((w.at + 1) & (WHEEL - 1)), i, word
    cdef uint64_t bits
    for i in range(WORDS + 1):
        word = ((start >> 6) + i) & (WORDS - 1)
        bits = w.some[word]
        if i == 0:
            bits &= ~<uint64_t>0 << (start & 63)
        elif i == WORDS:
            bits &= ~(~<uint64_t>0 << (start & 63))
        if bits:
            return (w.at + 1 + ((word * 64 + <uint32_t>ctz64(bits) - start) & (WHEEL - 1))) << TICK
    return -1

# -- schedule: a heap of due times

cdef inline void heap_sink(HeapEntry* heap, uint32_t n, uint32_t i) noexcept nogil:
    cdef HeapEntry t = heap[i]
    cdef uint32_t child
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and heap[child + 1].due < heap[child].due:
            child += 1
        if heap[child].due >= t.due:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = t

cdef inline void heap_rise(HeapEntry* heap, uint32_t i) noexcept nogil:
    cdef HeapEntry t = heap[i]
    while i and heap[(i - 1) >> 1].due > t.due:
        heap[i] = heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap[i] = t

# -- the record

cdef enum:
    C_TS
    C_KIND
    C_LEVEL
    C_OUTCOME
    C_NOTES
    C_VERSION
    C_PROTO
    C_SRC
    C_SRC6
    C_DST
    C_DST6
    C_SPORT
    C_DPORT
    C_DSCP
    C_SEQ
    C_PAYLOAD
    C_RETRIES
    C_HINT
    C_RTT
    C_ELAPSED
    C_ECHO
    C_REMOTE
    C_ERRNO
    C_LIST
    C_NAME
    C_DNAME
    C_POD
    C_DPOD
    C_PODSET
    C_DPODSET
    C_DC
    C_DDC
    COLS

cdef inline void put_address(uint8_t* four, uint8_t* six, uint32_t row, const Address* a) noexcept nogil:
    cdef const uint8_t* p = address_bytes(a)
    if address_six(a):
        (<uint32_t*>four)[row] = fold6(p)
        memcpy(six + <size_t>row * 16, p, 16)
    else:
        (<uint32_t*>four)[row] = be32(p)
        memset(six + <size_t>row * 16, 0, 16)

cdef inline void put_location(uint8_t** col, uint32_t row, int first, const Location* w) noexcept nogil:
    memcpy(col[first] + <size_t>row * 32, w.name, 32)
    memcpy(col[first + 2] + <size_t>row * 16, w.pod, 16)
    memcpy(col[first + 4] + <size_t>row * 16, w.podset, 16)
    memcpy(col[first + 6] + <size_t>row * 16, w.dc, 16)

cdef inline void put_record(uint8_t** col, uint32_t row, const Probe* p, const Location* own,
                            int64_t elapsed, int64_t echo, int64_t remote) noexcept nogil:
    cdef const Peer* peer = p.peer
    cdef bint six = address_six(&peer.to)
    (<int64_t*>col[C_TS])[row] = p.wall
    col[C_KIND][row], col[C_LEVEL][row], col[C_OUTCOME][row] = peer.kind, peer.level, p.outcome
    (<uint16_t*>col[C_NOTES])[row] = p.notes
    col[C_VERSION][row] = 6 if six else 4
    col[C_PROTO][row] = 6 if peer.kind < 5 else 17 if peer.kind == UDP else 58 if six else 1
    put_address(col[C_SRC], col[C_SRC6], row, &p.self)
    put_address(col[C_DST], col[C_DST6], row, &peer.to)
    (<uint16_t*>col[C_SPORT])[row] = p.port
    (<uint16_t*>col[C_DPORT])[row] = address_port(&peer.to)
    col[C_DSCP][row], col[C_RETRIES][row], col[C_HINT][row] = peer.dscp, p.retries, p.hint
    (<uint32_t*>col[C_SEQ])[row] = p.seq
    (<uint32_t*>col[C_PAYLOAD])[row] = peer.payload
    (<int64_t*>col[C_RTT])[row] = p.rtt
    (<int64_t*>col[C_ELAPSED])[row] = elapsed
    (<int64_t*>col[C_ECHO])[row] = echo
    (<int64_t*>col[C_REMOTE])[row] = remote
    (<uint16_t*>col[C_ERRNO])[row] = <uint16_t>p.error
    (<uint64_t*>col[C_LIST])[row] = p.version
    put_location(col, row, C_NAME, own)
    put_location(col, row, C_DNAME, &peer.where)
