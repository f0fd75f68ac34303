"""Traceroutes of many flows at once: probes out, ICMP errors in, time-outs, without the interpreter."""

from libc.errno cimport EAGAIN, EINTR, ENOBUFS
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset
from c_ipv6_hash cimport fold6
from c_hash_table cimport (
    NOT_FOUND, HashTable, mum, slots_add, slots_home, slots_next, slots_remove, slots_reserve, table_free)
from c_traceroute_packets cimport (
    BAD, EXCEEDED, MAX_HOPS, UNREACHABLE, Kind, Quote, Tuple, craft, fill, read_icmp4, read_icmp6)
from c_traced_flow cimport (
    REACHES, Guess, Reach, Trace, learn, reach_confirm, reach_forget, reach_note, reach_of, reach_sure, repeats)
from c_wire cimport be32
from confluo_tools.core.trace.flow_table cimport NumberMap
cimport cython

cdef extern from "raw_sockets.h" nogil:
    enum: BATCH
    ctypedef struct Mail:
        unsigned n
    ctypedef struct Outbox:
        Mail mail
        uint32_t* slot
    ctypedef struct Inbox:
        uint8_t** bytes
    int64_t prober_now()
    uint8_t* outbox_next(Outbox* o, int version, const uint8_t* dst, uint32_t slot)
    int outbox_send(Outbox* o, int fd, unsigned start)
    int inbox_receive(Inbox* b, int fd)
    uint32_t inbox_length(const Inbox* b, int i)
    const uint8_t* inbox_sender6(const Inbox* b, int i)
    unsigned wait_for(const int* fd, const short* events, int n, int milliseconds)
    int secret_bytes(void* out, size_t n)
    enum: POLLIN
    enum: POLLOUT

cdef enum:
    FREE = 0
    FLYING = 1                  # probes are out
    HOLDING = 2                 # the next round waits for leave
    FINISHED = 3
    SECRETS = 1024
    PATIENCE = 20               # ms for a full send queue, each time

ENDS = ("silence", "tor", "destination", "unreachable", "loop", "hops", "error")
cdef enum:
    E_SILENCE                   # the last hops did not answer: the destination, or the failure, is there
    E_TOR
    E_DESTINATION
    E_UNREACHABLE
    E_LOOP
    E_HOPS
    E_ERROR

COUNTS = ("probes", "answers", "duplicates", "forged", "stray", "bad", "unsent", "repeated")


@cython.final
cdef class TracerouteProber:
    """Traces flows through raw sockets, which stay their owner's: those that send IPv4 and IPv6 with headers of ours,
    those that get the ICMP errors (-1: there is none); ``wake``: a descriptor that ends `run` when it can be read.

    ``tries`` rounds of probes each; ``gap`` hops in a row that are silent end a path; a round lasts as long as answers
    were seen to take, within ``least`` and ``most`` ns, ``first`` before any was seen.  ``aliases``: address number ->
    node number.  For one thread.
    """

    cdef int fd4, fd6, icmp4, icmp6, wake
    cdef uint32_t capacity, active, free_count, n_finished, n_holding, secrets
    cdef uint32_t tries, gap
    cdef int64_t least, first, most
    cdef NumberMap aliases
    cdef Trace* trace
    cdef uint32_t* free_slot
    cdef uint32_t* flying           # slots in flight or holding
    cdef uint32_t* done
    cdef HashTable slot_of          # of the tuples in flight
    cdef Outbox* out4
    cdef Outbox* out6
    cdef Inbox* inbox
    cdef Guess guess[16]
    cdef uint32_t random[SECRETS]
    cdef uint64_t seed[2]
    cdef Reach reaches
    cdef uint64_t count[8]

    def __cinit__(self, int send4, int send6, int icmp4, int icmp6, int wake=-1, *, NumberMap aliases=None,
                  uint32_t capacity=8192, uint32_t tries=2, uint32_t gap=3, int64_t least=50_000_000,
                  int64_t first=300_000_000, int64_t most=1_000_000_000):
        cdef uint32_t i
        if not 1 <= capacity <= 1 << 20 or not 1 <= tries <= 8 or not 1 <= gap <= MAX_HOPS:
            raise ValueError("out of range")
        if not 0 < least <= first <= most <= 60_000_000_000:
            raise ValueError("time-outs out of order")
        self.fd4, self.fd6, self.icmp4, self.icmp6, self.wake = send4, send6, icmp4, icmp6, wake
        self.capacity, self.tries, self.gap = capacity, tries, gap
        self.least, self.first, self.most = least, first, most
        self.aliases = aliases if aliases is not None else NumberMap()
        self.trace = <Trace*>calloc(capacity, sizeof(Trace))
        self.free_slot = <uint32_t*>calloc(capacity, 4)
        self.flying = <uint32_t*>calloc(capacity, 4)
        self.done = <uint32_t*>calloc(capacity, 4)
        self.out4 = <Outbox*>calloc(1, sizeof(Outbox))
        self.out6 = <Outbox*>calloc(1, sizeof(Outbox))
        self.inbox = <Inbox*>calloc(1, sizeof(Inbox))
        self.reaches.key = <uint64_t*>calloc(REACHES, 8)
        self.reaches.hop = <uint8_t*>calloc(REACHES, 2)
        if (self.trace == NULL or self.free_slot == NULL or self.flying == NULL or self.done == NULL
                or slots_reserve(&self.slot_of, capacity)
                or self.out4 == NULL or self.out6 == NULL or self.inbox == NULL
                or self.reaches.key == NULL or self.reaches.hop == NULL):
            raise MemoryError
        for i in range(capacity):
            self.free_slot[i] = capacity - 1 - i
        self.free_count = capacity
        if secret_bytes(self.seed, 16):
            raise OSError("no random numbers")
        self.seed[0] |= 1
        self.seed[1] |= 1

    def __dealloc__(self):
        free(self.trace)
        free(self.free_slot)
        free(self.flying)
        free(self.done)
        table_free(&self.slot_of)
        free(self.out4)
        free(self.out6)
        free(self.inbox)
        free(self.reaches.key)
        free(self.reaches.hop)

    @property
    def room(self):
        """How many more flows can be traced at once."""
        return self.free_count

    @property
    def flying_now(self):
        """Flows with probes in flight, or waiting for a token to repeat them."""
        return self.active

    @property
    def holding(self):
        """Flows that want another round, see `again`."""
        return self.n_holding

    @property
    def counts(self):
        """What happened so far, by name."""
        return {name: self.count[i] for i, name in enumerate(COUNTS)}

    # -- where a destination ends

    def reach(self, bytes address not None):
        """The farthest hop that answered on the way to that destination since `forget`; 0: none."""
        if len(address) not in (4, 16):
            raise ValueError("no address")
        return reach_of(&self.reaches, self._goal(<const uint8_t*><const char*>address, 4 if len(address) == 4 else 16))

    def forget(self):
        """A new epoch: paths may be others now."""
        reach_forget(&self.reaches)

    cdef uint64_t _goal(self, const uint8_t* address, uint32_t size) noexcept nogil:
        cdef uint64_t word[2]
        memset(word, 0, 16)
        memcpy(word, address, size)
        return mum(mum(word[0] ^ self.seed[1], self.seed[0]) ^ word[1] ^ size, self.seed[1]) | 1

    cdef uint64_t _place(self, const Tuple* t) noexcept nogil:
        cdef uint64_t word[4]
        cdef uint64_t h = self.seed[0] ^ <uint64_t>t.sport ^ <uint64_t>t.dport << 16 ^ <uint64_t>t.version << 32
        cdef int i
        memcpy(word, t.src, 16)
        memcpy(word + 2, t.dst, 16)
        for i in range(4):
            h = mum(h ^ word[i], self.seed[1])
        return h

    cdef uint32_t _find(self, const Tuple* t, uint64_t place) noexcept nogil:
        # Slot + 1, or 0.
        cdef uint64_t at = slots_home(&self.slot_of, place)
        cdef uint32_t i = slots_next(&self.slot_of, place, &at)
        while i != NOT_FOUND:
            if (self.trace[i].place == place
                    and memcmp(self.trace[i].flow.src, t.src, 16) == 0
                    and memcmp(self.trace[i].flow.dst, t.dst, 16) == 0
                    and self.trace[i].flow.sport == t.sport and self.trace[i].flow.dport == t.dport
                    and self.trace[i].flow.version == t.version):
                return i + 1
            i = slots_next(&self.slot_of, place, &at)
        return 0

    # -- asking

    def start(self, uint64_t number, int version, bytes src not None, bytes dst not None, uint16_t sport,
              uint16_t dport, int64_t rtt=0, uint32_t tor=0):
        """Trace this flow, which the caller knows as ``number``; False: it is being traced already, or there is no
        room.

        ``rtt``: of its connection, ns.  ``tor``: number of the last switch before the destination, 0: not known.
        """
        cdef Tuple t
        cdef Trace* f
        cdef uint64_t place
        cdef uint32_t slot, size = 4 if version == 4 else 16
        cdef uint32_t width, reach
        if version not in (4, 6) or len(src) != size or len(dst) != size:
            raise ValueError("not two addresses of that version")
        if (self.fd4 if version == 4 else self.fd6) < 0:
            raise ValueError(f"no sockets for IPv{version}")
        fill(&t, version, src, dst, sport, dport)
        place = self._place(&t)
        if not self.free_count or self._find(&t, place):
            return False
        self.free_count -= 1
        slot = self.free_slot[self.free_count]
        f = &self.trace[slot]
        memset(f, 0, sizeof(Trace))
        f.flow, f.number, f.place, f.tor = t, number, place, tor
        f.goal = self._goal(t.dst, size)
        slots_add(&self.slot_of, place, slot)
        if self.secrets == 0:
            if secret_bytes(self.random, sizeof(self.random)):
                raise OSError("no random numbers")
            self.secrets = SECRETS
        self.secrets -= 1
        f.secret = self.random[self.secrets] >> 4
        f.state = FLYING
        # An answer from this path comes before the other end's, unless a switch is slow to make it.
        f.hint = rtt + rtt // 2 if 0 < rtt < self.most else 0
        self.flying[self.active] = slot
        self.active += 1
        reach = reach_of(&self.reaches, f.goal)
        width = reach + 1 if reach_sure(&self.reaches, f.goal) else max(reach, <uint32_t>5) + self.gap
        with nogil:
            f.since = prober_now()
            self._ask(slot, 1, min(width, <uint32_t>MAX_HOPS), f.since)
            if slot & 7 == 0:
                self._drain()               # answers come while we send
        return True

    cdef void _ask(self, uint32_t slot, uint32_t first, uint32_t last, int64_t now) noexcept nogil:
        """Probe hops first..last that have not answered."""
        cdef Trace* f = &self.trace[slot]
        cdef Outbox* out = self.out4 if f.flow.version == 4 else self.out6
        cdef uint32_t hop
        for hop in range(first, last + 1):
            if f.answered >> hop & 1:
                continue
            if out.mail.n == BATCH:
                self._flush(out, self.fd4 if f.flow.version == 4 else self.fd6)
            craft(outbox_next(out, f.flow.version, f.flow.dst, slot), &f.flow, f.secret << 4 | hop, hop)
            self.count[0] += 1
            if f.probed >> hop & 1:
                f.again |= <uint16_t>(1 << hop)
                self.count[7] += 1
            f.probed |= <uint16_t>(1 << hop)
            f.sent_at[hop] = now
        if last > f.last:
            f.last = <uint8_t>last
        f.asked_at = now

    cdef int64_t _usual(self) noexcept nogil:
        """How long answers of any hop take, at most, as far as was seen; 0: none was."""
        cdef int64_t longest = 0
        cdef uint32_t hop
        for hop in range(1, <uint32_t>MAX_HOPS + 1):
            if self.guess[hop].samples:
                longest = max(longest, self.guess[hop].mean + 4 * self.guess[hop].deviation)
        return longest

    cdef int64_t _due(self, const Trace* f, int64_t usual) noexcept nogil:
        """When the round of this flow is over."""
        cdef int64_t t = max(usual, f.hint)
        if t == 0:
            t = self.first
        return f.asked_at + min(max(t << f.round, self.least), self.most)

    cdef void _flush(self, Outbox* out, int fd) noexcept nogil:
        """Send what is written.  What the kernel refuses for good ends its flow; what it cannot take is left out."""
        cdef unsigned at = 0, tries = 0
        cdef int n
        cdef short events = POLLOUT
        while at < out.mail.n:
            n = outbox_send(out, fd, at)
            if n > 0:
                at += n
                tries = 0
            elif n == -EINTR:
                continue
            elif n == -EAGAIN or n == -ENOBUFS:
                tries += 1
                if tries > 10:
                    self.count[6] += 1
                    at += 1
                elif n == -ENOBUFS:
                    wait_for(NULL, NULL, 0, 1)
                else:
                    wait_for(&fd, &events, 1, PATIENCE)
            else:
                self.count[6] += 1
                self.trace[out.slot[at]].error = -n
                at += 1
        out.mail.n = 0

    cdef void _send(self) noexcept nogil:
        if self.out4.mail.n:
            self._flush(self.out4, self.fd4)
        if self.out6.mail.n:
            self._flush(self.out6, self.fd6)

    # -- answers

    cdef void _drain(self) noexcept nogil:
        self._receive(self.icmp4, 4)
        self._receive(self.icmp6, 6)

    cdef void _receive(self, int fd, int version) noexcept nogil:
        cdef Quote q
        cdef Kind kind
        cdef int n = BATCH, i
        cdef int64_t now
        if fd < 0:
            return
        while n == BATCH:
            n = inbox_receive(self.inbox, fd)
            if n <= 0:
                return
            now = prober_now()
            for i in range(n):
                if version == 4:
                    kind = read_icmp4(&q, self.inbox.bytes[i], inbox_length(self.inbox, i))
                else:
                    kind = read_icmp6(&q, self.inbox.bytes[i], inbox_length(self.inbox, i),
                                      inbox_sender6(self.inbox, i))
                if kind == EXCEEDED or kind == UNREACHABLE:
                    self._answer(&q, kind, now)
                elif kind == BAD:
                    self.count[5] += 1
                else:
                    self.count[4] += 1

    cdef void _answer(self, const Quote* q, Kind kind, int64_t now) noexcept nogil:
        cdef uint32_t slot = self._find(&q.flow, self._place(&q.flow)), hop = q.seq & 15, size
        cdef uint32_t number, k
        cdef Trace* f
        if slot == 0:
            self.count[4] += 1
            return
        slot -= 1
        f = &self.trace[slot]
        if (q.seq >> 4 != f.secret or hop == 0 or not f.probed >> hop & 1 or (q.flow.version == 4 and q.id != hop)
                or not _somebody(q.sender, q.flow.version)):
            self.count[3] += 1
            return
        if f.answered >> hop & 1 or f.state == FINISHED:
            self.count[2] += 1
            return
        self.count[1] += 1
        if not f.again >> hop & 1:
            learn(&self.guess[hop], now - f.sent_at[hop])
        size = 4 if q.flow.version == 4 else 16
        if memcmp(q.sender, f.flow.dst, size) == 0:         # it is the destination itself
            if f.stop == 0 or hop - 1 < f.stop:
                f.stop, f.end = <uint8_t>(hop - 1), E_DESTINATION
            f.probed &= <uint16_t>~(1 << hop)
            if hop == 1:
                self._finish(slot)
                return
            self._settle(slot, now)
            return
        if kind == UNREACHABLE and memcmp(q.sender, f.flow.src, size) == 0:
            f.error = 113                                   # EHOSTUNREACH: our own host knows no way
            self._end(slot, E_ERROR)
            return
        f.answered |= <uint16_t>(1 << hop)
        number = be32(q.sender) if size == 4 else fold6(q.sender)
        number = self.aliases.get(number, number)
        f.node[hop - 1] = number
        if size == 16:
            memcpy(f.address + 16 * (hop - 1), q.sender, 16)
        if hop > f.top:
            f.top = <uint8_t>hop
        if kind == UNREACHABLE and (f.stop == 0 or hop < f.stop):
            f.stop, f.end = <uint8_t>hop, E_UNREACHABLE
        elif number == f.tor and (f.stop == 0 or hop < f.stop):
            f.stop, f.end = <uint8_t>hop, E_TOR
        else:
            k = repeats(f, hop, MAX_HOPS)
            if k and (f.stop == 0 or k < f.stop):
                f.stop, f.end = <uint8_t>k, E_LOOP
        if f.stop == 0 or f.top <= f.stop:
            reach_note(&self.reaches, f.goal, f.top)
        self._settle(slot, now)

    cdef void _settle(self, uint32_t slot, int64_t now) noexcept nogil:
        """After an answer: finish when all is known, continue when the path is longer than what was probed."""
        cdef Trace* f = &self.trace[slot]
        cdef uint16_t want
        if f.stop:
            want = <uint16_t>((1 << (f.stop + 1)) - 2)
            if f.answered & want == want:
                self._end(slot, f.end)
        elif f.top == MAX_HOPS:
            if f.answered == 0xFFFE:
                self._end(slot, E_HOPS)
        elif f.top == f.last and f.state == FLYING:
            self._ask(slot, f.last + 1, min(<uint32_t>f.last + 2, <uint32_t>MAX_HOPS), now)

    cdef void _end(self, uint32_t slot, int end) noexcept nogil:
        cdef Trace* f = &self.trace[slot]
        f.end = <uint8_t>end
        self._finish(slot)

    cdef void _finish(self, uint32_t slot) noexcept nogil:
        cdef Trace* f = &self.trace[slot]
        if f.state == FINISHED:
            return
        if f.state == HOLDING:
            self.n_holding -= 1
        f.state = FINISHED
        self.done[self.n_finished] = slot
        self.n_finished += 1

    cdef bint _wants_more(self, const Trace* f) noexcept nogil:
        """Whether another round can find more: silent hops, or an end that is not reached yet."""
        cdef uint32_t end = f.stop if f.stop else f.top
        cdef uint16_t want = <uint16_t>((1 << (end + 1)) - 2)
        cdef uint32_t reach
        if f.answered & want != want:
            return True
        if f.stop or f.top == MAX_HOPS:
            return False
        reach = reach_of(&self.reaches, f.goal)
        if f.top < reach or f.tor:
            return True
        return not reach_sure(&self.reaches, f.goal)

    cdef void _round_over(self, uint32_t slot) noexcept nogil:
        cdef Trace* f = &self.trace[slot]
        if f.error:
            self._end(slot, E_ERROR)
        elif <uint32_t>f.round + 1 < self.tries and self._wants_more(f):
            f.state = HOLDING
            self.n_holding += 1
        else:
            if f.stop == 0 and f.top and <uint32_t>f.round + 1 == self.tries:
                reach_confirm(&self.reaches, f.goal, f.top)
            self._end(slot, f.end if f.stop else E_SILENCE)

    cdef int64_t _timers(self, int64_t now) noexcept nogil:
        """End the rounds that are over; when the next one is."""
        cdef uint32_t i, kept = 0, slot
        cdef int64_t usual = self._usual(), due, soonest = (<int64_t>1 << 62)
        cdef Trace* f
        for i in range(self.active):
            slot = self.flying[i]
            f = &self.trace[slot]
            if f.state == FLYING:
                due = self._due(f, usual)
                if due <= now or f.error:
                    self._round_over(slot)
                elif due < soonest:
                    soonest = due
            if f.state != FINISHED:
                self.flying[kept] = slot
                kept += 1
        self.active = kept
        return soonest

    def again(self, uint32_t n):
        """Let ``n`` of those that hold send another round; how many did."""
        cdef uint32_t i, slot, given = 0
        cdef int64_t now
        cdef Trace* f
        with nogil:
            now = prober_now()
            for i in range(self.active):
                if given == n or self.n_holding == 0:
                    break
                slot = self.flying[i]
                f = &self.trace[slot]
                if f.state != HOLDING:
                    continue
                f.state = FLYING
                f.round += 1
                self.n_holding -= 1
                given += 1
                self._ask(slot, 1, f.stop if f.stop else min(f.top + self.gap, <uint32_t>MAX_HOPS), now)
                if given & 15 == 0:
                    self._drain()
            self._send()
        return given

    def give_up(self):
        """End those that hold with what they have."""
        cdef uint32_t i, slot
        for i in range(self.active):
            slot = self.flying[i]
            if self.trace[slot].state == HOLDING:
                self._end(slot, self.trace[slot].end if self.trace[slot].stop else E_SILENCE)
        self._timers(0)

    def run(self, int milliseconds):
        """Send, receive and wait for that long at most; less when `wake` can be read, or flows are finished or
        begin to hold.
        """
        cdef int fd[3]
        cdef short events[3]
        cdef int n = 0, i, which_wake = -1
        cdef int64_t now, end, soonest
        cdef unsigned ready = 0
        cdef uint32_t held = self.n_holding     # these may have to wait for long
        for one in (self.icmp4, self.icmp6):
            if one >= 0:
                fd[n], events[n] = one, POLLIN
                n += 1
        if self.wake >= 0:
            fd[n], events[n], which_wake = self.wake, POLLIN, n
            n += 1
        with nogil:
            self._send()
            now = prober_now()
            end = now + <int64_t>milliseconds * 1000000
            while True:
                self._drain()
                self._send()
                now = prober_now()
                soonest = self._timers(now)
                if self.n_finished or self.n_holding > held or now >= end:
                    break
                if which_wake >= 0 and ready >> which_wake & 1:
                    break
                i = <int>((min(soonest, end) - now + 999999) // 1000000)
                ready = wait_for(fd, events, n, i)

    def finished(self):
        """[(number, hops, nodes, addresses, end, errno, ns it took)] of flows that are finished, each once.

        ``nodes``: a number for each hop, 0 where none answered; ``addresses``: 16 bytes each, of IPv6 flows;
        ``end``: why the path ends there, one of `ENDS`.
        """
        cdef uint32_t i, slot, hops, k
        cdef Trace* f
        cdef int64_t now = prober_now()
        cdef list out = []
        self._timers(0)                     # they leave the list of those in flight
        for i in range(self.n_finished):
            slot = self.done[i]
            f = &self.trace[slot]
            hops = f.stop if f.stop and (f.stop < f.top or f.end == E_DESTINATION) else f.top
            out.append((f.number, hops, [f.node[k] for k in range(hops)],
                        (<const uint8_t*>f.address)[:16 * hops] if f.flow.version == 6 else b"",
                        ENDS[f.end], f.error, now - f.since))
            slots_remove(&self.slot_of, f.place, slot)
            f.state = FREE
            self.free_slot[self.free_count] = slot
            self.free_count += 1
        self.n_finished = 0
        return out


cdef inline bint _somebody(const uint8_t* address, int version) noexcept nogil:
    # Whether a switch can have this address.
    if version == 4:
        return address[0] != 0 and address[0] != 127 and address[0] < 224
    return address[0] != 0xFF and (be32(address) | be32(address + 4) | be32(address + 8) | be32(address + 12) >> 1) != 0
