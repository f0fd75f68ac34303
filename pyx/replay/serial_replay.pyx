"""The serial replay of one connection: one thread applies the inputs of both ends in their recorded order.

Sending a packet to a veth device runs TCP of its peer in the caller, and so does a socket call that does not block: the
order of the inputs of a TCP end is the order of our calls.  Only timers and clocks remain outside.
"""

from libc.errno cimport EAGAIN, EINVAL
from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from cpython.exc cimport PyErr_CheckSignals
from posix.unistd cimport close, read
from c_array cimport grow
from c_feed cimport Sender, move_packet, note_sent
from c_replay_packet cimport (
    HEAD_ROOM, OFFLOADS, Packet, join_packet, mark_congestion, segments_of,
    take_segments, tcp_head,
)
cimport cython

cdef extern from "replay_calls.h" nogil:
    enum: PACKET_ROOM
    int64_t replay_now()
    void* replay_ring(int fd)
    int replay_deliver(int fd, void* ring, const uint8_t* bytes, uint32_t head, uint32_t length)
    int replay_wait(const int* fd, int64_t ns)
    int64_t replay_send(int fd, uint64_t n, int flags)
    void replay_ask_room(int fd, int flags)
    int64_t replay_receive(int fd, uint64_t n, int flags)
    int64_t replay_poll(int fd, int16_t events)
    int64_t replay_option(int fd, int level, int name, int64_t value)
    int64_t replay_connect(int fd, const void* address, unsigned n)
    int64_t replay_accept(int fd)
    void replay_abort(int fd)
    void replay_unmap(void* ring)
    int shutdown(int fd, int how)

KINDS = ("packet", "gate", "connect", "accept", "send", "recv", "poll", "option", "shutdown", "close")
cdef enum:
    K_PACKET
    K_GATE
    K_CONNECT
    K_ACCEPT
    K_SEND
    K_RECV
    K_POLL
    K_OPTION
    K_SHUTDOWN
    K_CLOSE

cdef enum:
    SPIN = 1_000_000        # ns: the last part of a wait is spun, not slept: TCP stays in the caches
    SHORT_SPIN = 60_000     # ns, when other programs of this processor must have a part
    GREEDY = 500_000_000    # ns after which they must, and what they get: else the scheduler stops a real-time thread
    PART = 40_000_000
    GRACE = 6_000_000       # ns after which an end with a feed does without packets that it should have sent: > a tick
    OF_TIMER = 0x7FFFFFFF   # no time: a timer sent the packet
    LATE = 50_000           # ns: an input that is later than this is less late than its cause
    MAX_SLEEP = 100_000_000     # ns of one sleep, so that signals are seen
    SPARE = 1024            # packets more than recorded that have memory
    MOST = 1 << 20          # packets that have memory from the start
    SIGNALS = 8192          # rounds between two looks for signals
    BLOCKING = 1            # of a step: the call waited until all was sent
    PARTIAL = 4             # of a step: the send stopped there for packets, or for room
    JOINED = 2              # of a step: TCP processed the packet together with the one before
    ANY_COUNT = 0xFFFFFFFF  # of a step: the number of packets sent before it is not known

# SEGMENTS: the size of a packet is its first segment << 32 | segments, and 0 is the whole packet; that of a fed packet
# is the highest byte that it acknowledges.
ctypedef packed struct Step:
    int64_t at              # ns after the start
    int64_t result          # what the call returned; of a packet, when the other end sent it, ns after the start
    uint64_t size          # of a call: bytes; value of an option; of a packet: see SEGMENTS
    uint32_t sent           # packets that this end had sent before; ANY_COUNT
    uint32_t packet         # number of the peer's packet, from 0
    uint32_t flags          # of the call; events of a poll; level << 16 | name of an option; how of shutdown
    uint8_t kind
    uint8_t mark            # 1: the packet carries CE
    uint8_t notes
    uint8_t unused

ctypedef packed struct Done:
    int64_t at
    int64_t result
    uint32_t sent           # packets that this end had sent before
    uint32_t received       # packets that this end had received before

STEP = "<qqQIIIBBBx"
DONE = "<qqII"
PACKET = "<qII%ds" % HEAD_ROOM
IP_OFFSET = OFFLOADS            # of the IP header in a packet, after virtio_net_hdr
WAITS, MERGED, YIELDS = BLOCKING, JOINED, PARTIAL        # of the notes of a step

cdef struct End:
    void* ring              # of the device, for packets to this end
    int device, socket, listener
    const Step* steps
    uint32_t n_steps, at    # at: the step that is next
    Done* done
    Packet* packets
    uint64_t n_packets, room
    uint32_t received
    int64_t late            # ns by which its last packet came late
    int64_t* lates          # of the packets sent: ns by which their input came late, or OF_TIMER
    uint64_t lates_room
    uint64_t unsent         # bytes of a blocking send that are not in the socket yet
    uint32_t unsent_step
    uint32_t foreign        # packets that were not TCP
    bint fed                # its packets come from a feed, not from the other end
    const Packet* feed
    uint64_t n_feed
    Sender sender


@cython.final
cdef class FrameSender:
    """Sends packets to the end behind the packet socket ``device`` as a replay does."""

    cdef int device
    cdef void* ring

    def __cinit__(self, int device):
        self.device = device
        self.ring = replay_ring(device)
        if self.ring == NULL:
            raise OSError("no transmit ring")

    def __dealloc__(self):
        if self.ring != NULL:
            replay_unmap(self.ring)

    def send(self, bytes head, uint32_t length):
        """Send a packet with these headers, virtio_net_hdr first, of ``length`` bytes.  Returns 0 or -errno."""
        return -replay_deliver(self.device, self.ring, head, <uint32_t>len(head), length)


@cython.final
cdef class SerialReplay:
    """One try: two ends, each with a packet socket ``device``, a client ``socket`` or a ``listener``, and its steps.

    The client's socket is closed by this object, the listener is not.
    ``steps``: two buffers of packed `STEP`.  ``patience``: ns that a step waits for packets that were sent before it
    when it was recorded.  ``feeds``: packed `PACKET`, for an end that gets these and not what the other end sends; it
    goes on where it does something else.  An end with the device -1 does not exist.  For one thread.
    """

    cdef End end[2]
    cdef bint relative
    cdef int64_t cause              # ns by which the input that is applied came late, or OF_TIMER
    cdef int64_t start, patience
    cdef int64_t slept, rested      # ns slept since the time ``rested``
    cdef bytes address
    cdef const char* address_bytes
    cdef unsigned address_length
    cdef int pair[2]
    cdef object steps, feeds
    cdef uint8_t* packet
    cdef readonly int stuck         # end that did not send in time; -1: neither

    def __cinit__(self, devices, int socket, int listener, bytes address, steps, int64_t patience=300_000_000,
                  feeds=(b"", b"")):
        cdef int e
        self.cause = OF_TIMER
        self.packet = <uint8_t*>malloc(PACKET_ROOM)
        if self.packet == NULL:
            raise MemoryError
        self.address, self.patience, self.stuck = address, patience, -1
        self.address_bytes, self.address_length = self.address, <unsigned>len(address)
        self.pair[0], self.pair[1] = devices[0], devices[1]
        self.steps, self.feeds = tuple(bytes(s) for s in steps), tuple(bytes(f) for f in feeds)
        for e in range(2):
            self.end[e].device = devices[e]
            if devices[e] >= 0:
                self.end[e].ring = replay_ring(devices[e])
                if self.end[e].ring == NULL:
                    raise OSError("no transmit ring")
            self.end[e].feed = <const Packet*><const uint8_t*>(<bytes>self.feeds[e])
            self.end[e].n_feed = len(self.feeds[e]) // sizeof(Packet)
            self.end[e].fed = self.end[e].n_feed > 0
            self.end[e].socket = socket if e == 0 else -1
            self.end[e].listener = -1 if e == 0 else listener
            self.end[e].steps = <const Step*><const uint8_t*>(<bytes>self.steps[e])
            self.end[e].n_steps = len(self.steps[e]) // sizeof(Step)
            self.end[e].done = <Done*>malloc(max(self.end[e].n_steps, 1) * sizeof(Done))
            if self.end[e].done == NULL or self._reserve(e):
                raise MemoryError

    cdef int _reserve(self, int e) noexcept:
        """Memory for the packets of an end, touched now: the first touch of a page takes time.  -1: there is none."""
        cdef End* end = &self.end[e]
        cdef uint64_t expected = SPARE
        cdef uint32_t i
        memset(end.done, 0, end.n_steps * sizeof(Done))
        for i in range(end.n_steps):
            if end.steps[i].sent != <uint32_t>ANY_COUNT:
                expected = max(expected, <uint64_t>end.steps[i].sent + SPARE)
        return self._grow(e, min(expected, <uint64_t>MOST))

    cdef int _grow(self, int e, uint64_t packets) noexcept nogil:
        cdef End* end = &self.end[e]
        return (grow(<void**>&end.lates, &end.lates_room, packets, SPARE, sizeof(int64_t))
                or grow(<void**>&end.packets, &end.room, packets, SPARE, sizeof(Packet)))

    def __dealloc__(self):
        cdef int e
        self.close()
        free(self.packet)
        for e in range(2):
            free(self.end[e].done)
            free(self.end[e].packets)
            free(self.end[e].lates)
            if self.end[e].ring != NULL:
                replay_unmap(self.end[e].ring)

    def run(self, int64_t start, int64_t linger=2_000_000, bint relative=False):
        """Apply all steps.  ``start``: CLOCK_MONOTONIC of time 0, ns.  ``linger``: ns to collect packets afterwards.

        ``relative``: inputs come at their times after what caused them, not after the start.

        The first end for which a packet did not come in time is in ``stuck``; the replay stops there.
        Raises what a signal handler raises.
        """
        cdef int e
        cdef int64_t now, due, sleep
        cdef uint32_t rounds = 0
        cdef bint interrupted
        self.start, self.relative = start, relative
        with nogil:
            while True:
                self._drain()
                now = replay_now() - start
                e = self._next(now)
                if e >= 0:
                    self._finish_send(e)
                    self._note_lateness(e, now)
                    self._apply(e, now)
                    self._drain()
                    self.cause = OF_TIMER
                    continue
                due = self._due(now)
                if due < 0:
                    break
                rounds += 1
                interrupted = rounds % SIGNALS == 0
                sleep = min(due - now - self._spin(now), <int64_t>MAX_SLEEP)
                if sleep > 0:
                    interrupted |= replay_wait(self.pair, sleep)
                    self.slept += replay_now() - start - now
                if interrupted:
                    with gil:
                        PyErr_CheckSignals()
            due = replay_now() + linger
            while replay_now() < due:
                replay_wait(self.pair, linger // 4)
                self._drain()

    def run_freely(self, int64_t start, delays, drops, int64_t until):
        """Make the calls at their times and forward packets after the delay (ns) of their sender, without order.

        ``drops``: for each sender, bytes that are 1 for the packets that are lost.  Ends at ``until``, ns after the
        start.  A call that would block is made again until it does not.
        """
        cdef int64_t delay[2]
        cdef uint32_t forwarded[2]
        cdef const uint8_t* lost[2]
        cdef uint64_t known[2]
        cdef int e
        cdef int64_t now
        cdef uint32_t rounds = 0
        cdef bytes a = drops[0], b = drops[1]
        lost[0], lost[1] = a, b
        for e in range(2):
            delay[e], forwarded[e], known[e] = delays[e], 0, len(drops[e])
        self.start = start
        with nogil:
            while True:
                self._drain()
                now = replay_now() - start
                if now > until:
                    break
                for e in range(2):
                    self._forward(e, now, delay[e], &forwarded[e], lost[e], known[e])
                    self._call_freely(e, now)
                rounds += 1
                if rounds % SIGNALS == 0:
                    with gil:
                        PyErr_CheckSignals()

    cdef void _forward(self, int e, int64_t now, int64_t delay, uint32_t* next, const uint8_t* lost,
                       uint64_t known) noexcept nogil:
        """Forward the packets of end ``e`` that are due."""
        cdef Packet p
        cdef End* to = &self.end[1 - e]
        while next[0] < self.end[e].n_packets and self.end[e].packets[next[0]].at + delay <= now:
            p = self.end[e].packets[next[0]]
            if next[0] >= known or not lost[next[0]]:
                replay_deliver(to.device, to.ring, p.bytes, p.head, p.length)
                to.received += 1
                self._drain()
            next[0] += 1

    cdef void _call_freely(self, int e, int64_t now) noexcept nogil:
        """Make the next call of an end, if its time has come."""
        cdef End* end = &self.end[e]
        cdef const Step* s
        while end.at < end.n_steps and end.steps[end.at].at <= now:
            s = end.steps + end.at
            if s.kind != K_PACKET and s.kind != K_GATE:
                if not self._finish_send(e):
                    return
                self._apply(e, now)
                if end.done[end.at - 1].result == -EAGAIN and s.result != -EAGAIN:
                    end.at -= 1
                    return
            else:
                end.done[end.at].at, end.done[end.at].result = now, 0
                end.done[end.at].sent, end.done[end.at].received = <uint32_t>end.n_packets, end.received
                end.at += 1

    cdef int64_t _spin(self, int64_t now) noexcept nogil:
        """How long before an input to spin, ns."""
        if self.slept >= PART:
            self.rested, self.slept = now, 0
        return SPIN if now - self.rested < GREEDY else SHORT_SPIN

    cdef int _next(self, int64_t now) noexcept nogil:
        """The end with the earliest step that is due and may be applied; -1: none."""
        cdef int e, found = -1
        cdef int64_t first = now + 1
        for e in range(2):
            if self.end[e].at < self.end[e].n_steps and self._time(e) < first and self._ready(e, now):
                found, first = e, self._time(e)
        return found

    cdef void _note_lateness(self, int e, int64_t now) noexcept nogil:
        cdef const Step* s = self.end[e].steps + self.end[e].at
        self.cause = min(now - s.at, <int64_t>OF_TIMER - 1)
        if s.kind == K_PACKET:
            self.end[e].late = self.cause

    cdef int64_t _time(self, int e) noexcept nogil:
        """When the next step of an end is due.

        With ``relative`` an input comes as long after its cause as in the recording, also if that came late: the cause
        of a packet is a timer or an input of the other end, that of a call the packet before it.
        """
        cdef End* end = &self.end[e]
        cdef End* other = &self.end[1 - e]
        cdef const Step* s = end.steps + end.at
        cdef int64_t late
        if not self.relative or end.fed:
            return s.at
        if s.kind != K_PACKET or s.packet >= other.n_packets:
            return s.at + end.late
        late = other.lates[s.packet]
        if late == OF_TIMER:
            late = other.packets[s.packet].at - s.result
        return s.at + late - max(late - LATE, <int64_t>0) // 8

    cdef bint _ready(self, int e, int64_t now) noexcept nogil:
        cdef const Step* s = self.end[e].steps + self.end[e].at
        if self.end[e].fed and now >= s.at + self.patience:
            return True
        if s.sent != <uint32_t>ANY_COUNT and self.end[e].n_packets < s.sent:
            if not self.end[e].fed or now < s.at + GRACE or s.kind == K_GATE:
                return False
        if s.kind == K_PACKET:
            return self._packets_sent(e)
        return self.end[e].unsent == 0 or s.kind == K_GATE or self._finish_send(e)

    cdef bint _packets_sent(self, int e) noexcept nogil:
        """Whether the packet of the next step, and those that are joined with it, can be delivered."""
        cdef End* end = &self.end[e]
        cdef const Step* s = end.steps + end.at
        cdef const Step* last = end.steps + end.n_steps
        while True:
            if s.size > end.sender.reached if end.fed else not self._segments_sent(e, s):
                return False
            s += 1
            if s == last or not s.notes & JOINED:
                return True

    cdef bint _segments_sent(self, int e, const Step* s) noexcept nogil:
        """Whether the other end sent all segments of the packet of a step."""
        cdef End* other = &self.end[1 - e]
        cdef uint64_t wanted = (s.size >> 32) + <uint32_t>s.size, n = s.packet, found = 0
        while n < other.n_packets:
            found += segments_of(&other.packets[n])
            n += 1
            if found >= wanted:
                return True
        return False

    cdef bint _take(self, int e, const Step* s, Packet* p) noexcept nogil:
        """The packet of a step, of the feed of an end or of the other end; False: there is none."""
        cdef End* end = &self.end[e]
        cdef Packet next
        cdef uint32_t n = s.packet, first = s.size >> 32, left = <uint32_t>s.size, taken
        if n >= (end.n_feed if end.fed else self.end[1 - e].n_packets):
            return False
        p[0] = end.feed[n] if end.fed else self.end[1 - e].packets[n]
        if end.fed:
            move_packet(p, &end.sender)
            return True
        if left == 0:
            return True
        taken = segments_of(p) - min(first, segments_of(p))
        take_segments(p, first, left)
        while taken < left and n + 1 < self.end[1 - e].n_packets:     # a device joined it with those after it
            n += 1
            next = self.end[1 - e].packets[n]
            first = segments_of(&next)
            take_segments(&next, 0, left - taken)
            if not join_packet(p, &next):
                break
            taken += first
        return True

    cdef void _join(self, int e, Packet* p) noexcept nogil:
        """Put the packets that TCP processed together with the next step into ``p``; they count as applied."""
        cdef End* end = &self.end[e]
        cdef const Step* s = end.steps
        cdef Packet next
        while end.at + 1 < end.n_steps and s[end.at + 1].notes & JOINED:
            if not self._take(e, s + end.at + 1, &next) or not join_packet(p, &next):
                break
            end.at += 1
            end.received += 1
            end.done[end.at] = end.done[end.at - 1]
            end.done[end.at].received, end.done[end.at].result = end.received, 0

    cdef int64_t _due(self, int64_t now) noexcept nogil:
        """When the loop must look again; -1: never, all is done or stuck."""
        cdef int e
        cdef int64_t at, first = -1
        for e in range(2):
            if self.end[e].at >= self.end[e].n_steps:
                continue
            at = self._time(e)
            if at <= now:                       # it waits for packets
                at += GRACE if self.end[e].fed and now < at + GRACE else self.patience
                if at <= now:
                    self.stuck = e
                    return -1
            if first < 0 or at < first:
                first = at
        return first

    cdef void _drain(self) noexcept nogil:
        """Take the packets that the ends have sent."""
        cdef int e
        cdef ssize_t n
        cdef uint32_t head
        cdef Packet* p
        cdef End* end
        for e in range(2):
            end = &self.end[e]
            while True:
                n = read(end.device, self.packet, PACKET_ROOM)
                if n <= OFFLOADS:
                    break
                head = tcp_head(self.packet + OFFLOADS, <uint32_t>n - OFFLOADS)
                if head == 0 or self._grow(e, end.n_packets + 1):
                    end.foreign += 1
                    continue
                p = &end.packets[end.n_packets]
                p.at, p.length, p.head = replay_now() - self.start, <uint32_t>n, head + OFFLOADS
                memcpy(p.bytes, self.packet, p.head)
                note_sent(&end.sender, p)
                end.lates[end.n_packets] = self.cause
                end.n_packets += 1

    cdef bint _finish_send(self, int e) noexcept nogil:
        """Go on with a blocking send that found no room; whether all is in the socket."""
        cdef End* end = &self.end[e]
        cdef int64_t n
        if end.unsent:
            n = replay_send(end.socket, end.unsent, end.steps[end.unsent_step].flags)
            if n > 0:
                end.unsent -= n
                end.done[end.unsent_step].result += n
        return end.unsent == 0

    cdef void _apply(self, int e, int64_t now) noexcept nogil:
        cdef End* end = &self.end[e]
        cdef const Step* s = end.steps + end.at
        cdef Done* done = end.done + end.at
        done.at, done.sent, done.received = now, <uint32_t>end.n_packets, end.received
        done.result = self._input(e, s)     # it also applies packets that are joined with this one
        end.at += 1
        if s.kind == K_PACKET:
            end.received += 1
            self._finish_send(e)
        elif s.kind == K_SEND and s.notes & PARTIAL and done.result == s.result:
            replay_ask_room(end.socket, s.flags)
        elif s.kind == K_SEND and s.notes & BLOCKING:
            if done.result == -EAGAIN:
                done.result = 0
            if 0 <= done.result < s.result:
                end.unsent += s.result - done.result
                end.unsent_step = end.at - 1
                self._finish_send(e)

    cdef int64_t _input(self, int e, const Step* s) noexcept nogil:
        cdef End* end = &self.end[e]
        cdef Packet p
        cdef int64_t got
        if s.kind == K_PACKET:
            if not self._take(e, s, &p):
                return -EINVAL
            self._join(e, &p)
            if s.mark:
                mark_congestion(p.bytes + OFFLOADS)
            return -replay_deliver(end.device, end.ring, p.bytes, p.head, p.length)
        if end.socket < 0 and end.listener >= 0 and s.kind != K_GATE and s.kind != K_POLL:
            got = replay_accept(end.listener)   # an accept is not always recorded
            if got >= 0:
                end.socket = <int>got
            if got < 0:
                return got
        if s.kind == K_ACCEPT:
            return 0
        if s.kind == K_SEND:
            return replay_send(end.socket, s.size, s.flags)
        if s.kind == K_RECV:
            return replay_receive(end.socket, s.size, s.flags)
        if s.kind == K_POLL:
            return replay_poll(end.socket, <int16_t>s.flags)
        if s.kind == K_OPTION:
            return replay_option(end.socket, s.flags >> 16, s.flags & 0xFFFF, <int64_t>s.size)
        if s.kind == K_SHUTDOWN:
            return shutdown(end.socket, s.flags)
        if s.kind == K_CONNECT:
            return replay_connect(end.socket, self.address_bytes, self.address_length)
        if s.kind == K_CLOSE:
            got = close(end.socket)
            end.socket = end.listener = -1
            return got
        return 0

    def applied(self, int e):
        """The steps of an end that were applied: packed `DONE`."""
        return (<uint8_t*>self.end[e].done)[:self.end[e].at * sizeof(Done)]

    def packets(self, int e):
        """The packets that an end sent: packed `PACKET`."""
        return (<uint8_t*>self.end[e].packets)[:self.end[e].n_packets * sizeof(Packet)]

    def of_timers(self, int e):
        """For each packet that an end sent, a byte that is 1 if no input did, but a timer."""
        cdef bytearray found = bytearray(self.end[e].n_packets)
        cdef uint64_t n
        for n in range(self.end[e].n_packets):
            found[n] = self.end[e].lates[n] == OF_TIMER
        return bytes(found)

    def close(self):
        """Abort the connection if it is open still."""
        cdef int e
        for e in range(2):
            if self.end[e].socket >= 0:
                replay_abort(self.end[e].socket)
                self.end[e].socket = -1
