"""Open-loop replay of sending times through the queues of switches (DETER, section 3.4).

No packet changes the times at which others are sent.  So there is one event for a packet and a hop: its arrival.  The
time at which it leaves is known at once, and frames that have left are taken out when the next packet comes.  To its
next switch a packet needs at least the delay of a link: events are sorted in slots of that length, by (time, packet).
tests/support/twin_queues.py is the same with a heap and an event for each departure.
"""

from array import array
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from c_array cimport grow
from c_queue_engine cimport (
    NO_SWITCH, SLOTS, TAGGED, Calendar, Event, Port, Slot, Switch, calendar_add, calendar_near, calendar_next,
    drain_switch, enqueue, over, prefetch, sort_events,
)
cimport cython

cdef enum:
    SIZE = 0x7FFFFFFF                   # bits of the size of an event; the one above: tagged
    AHEAD = 12                          # events that are prefetched
    END = 0xFFFFFFFF                    # behind the last port of a route
    NO_FLOW = 0xFFFFFFFF
    MOST = 0xFFFFFFFF                   # bytes that a row can tell
    MAX_FRAME = 1 << 20
    SHARERS = 4                         # flows of a queue that a row names

cdef struct Sent:                       # a packet, in the order of the times of sending
    int64_t time
    uint32_t packet
    uint32_t flow
    uint32_t size                       # as of an event

cdef struct Share:                      # a flow's bytes in a queue that a packet saw
    uint32_t packet
    uint32_t hop
    uint32_t flow                       # NO_FLOW: the queue was empty
    uint32_t bytes

RULE, TAGS = 0, 1                       # who decides on drops: the buffer; the tags


@cython.final
cdef class QueueRows:
    """Rows of the engine, by time: ``count`` of them, in arrays.

    ``time``, ``leaves`` (ps; leaves is 0 for a dropped frame), ``packet``, ``port``, ``queue`` and ``used`` (bytes
    in the queue and in the whole buffer on arrival), ``flags``: 1 dropped, 2 tagged, 4 the whole buffer was full.
    ``hop``: number of the switch on the route, from 1.  ``sharer`` and ``share``, four for a row, if the engine names
    flows: the numbers of the flows with the most bytes in the queue plus 1, and these bytes; 0: no such flow.
    """

    cdef readonly uint32_t count
    cdef readonly object time
    cdef readonly object leaves
    cdef readonly object packet
    cdef readonly object port
    cdef readonly object queue
    cdef readonly object used
    cdef readonly object flags
    cdef readonly object hop
    cdef readonly object sharer
    cdef readonly object share
    cdef int64_t[::1] _time, _leaves
    cdef uint32_t[::1] _packet, _port, _queue, _used, _sharer, _share
    cdef uint8_t[::1] _flags, _hop

    def __init__(self, uint32_t room):
        self.time, self.leaves = array("q", [0]) * room, array("q", [0]) * room
        self.packet, self.port = array("I", [0]) * room, array("I", [0]) * room
        self.queue, self.used = array("I", [0]) * room, array("I", [0]) * room
        self.flags, self.hop = array("B", [0]) * room, array("B", [0]) * room
        self._hop = self.hop
        self.sharer, self.share = array("I", [0]) * (SHARERS * room), array("I", [0]) * (SHARERS * room)
        self._sharer, self._share = self.sharer, self.share
        self._time, self._leaves, self._packet, self._port = self.time, self.leaves, self.packet, self.port
        self._queue, self._used, self._flags = self.queue, self.used, self.flags

    def arrived(self, int64_t base):
        """The times in ns, from ``base`` on; rounded down."""
        cdef uint32_t i
        cdef int64_t[::1] into
        found = array("q", [0]) * self.count
        into = found
        for i in range(self.count):
            into[i] = base + self._time[i] // 1000
        return found

    def delays(self):
        """From the time of arrival until the last bit has left, in ns, rounded up; 0: dropped."""
        cdef uint32_t i
        cdef int64_t[::1] into
        found = array("q", [0]) * self.count
        into = found
        for i in range(self.count):
            into[i] = (self._leaves[i] - self._time[i] + 999) // 1000 if self._leaves[i] else 0
        return found


@cython.final
cdef class QueueEngine:
    """Queues of a network.

    ``buffer`` (bytes) and ``alpha`` (in 1/1024; 0: a queue has the buffer for itself) of the switches; ``switch_of``,
    ``ps_per_byte`` and ``delay`` (ps) of the ports, switch by switch, 2^32 - 1 for ports of hosts.  The route of flow f
    is ``routes[starts[f] : starts[f + 1]]``: numbers of ports, first that of a host.  ``until_sent``: a frame counts
    until its last bit has left; otherwise until its first does, as in ns-3.
    """

    cdef Port* ports
    cdef Switch* switches
    cdef int64_t* fronts                # of the queues of the ports: when the first frame leaves
    cdef Calendar* calendar
    cdef uint32_t all_ports, all_switches, flows, room
    cdef const uint32_t[::1] routes, starts
    cdef uint32_t* hops                 # routes, each ended by END
    cdef uint32_t* first_hop            # flow -> its place in `hops`
    cdef Sent* sent
    cdef uint64_t* keys
    cdef uint64_t* other
    cdef uint32_t key_room
    cdef uint64_t fed, packets
    cdef uint32_t at, in_slot           # next event of the slot that is worked on
    cdef bint by_tags, until_sent
    cdef uint64_t slack
    cdef bint name_flows
    cdef uint32_t sample                # contents are kept for every sample-th packet; 0: for none
    cdef uint64_t* tally                # flow -> its bytes in a queue that is looked at
    cdef uint32_t* touched              # flows with a tally
    cdef Share* shares
    cdef uint64_t share_room, share_count
    cdef readonly uint64_t events
    cdef readonly uint64_t drops

    def __cinit__(self, const uint64_t[::1] buffer not None, const uint32_t[::1] alpha not None,
                  const uint32_t[::1] switch_of not None, const uint32_t[::1] ps_per_byte not None,
                  const int64_t[::1] delay not None, const uint32_t[::1] routes not None,
                  const uint32_t[::1] starts not None, *, bint until_sent=True):
        cdef uint32_t i, s, before = NO_SWITCH
        if alpha.shape[0] != buffer.shape[0] or starts.shape[0] < 1 or not (
                switch_of.shape[0] == ps_per_byte.shape[0] == delay.shape[0]):
            raise ValueError("arrays of different lengths")
        self.all_ports, self.all_switches = <uint32_t>switch_of.shape[0], <uint32_t>buffer.shape[0]
        self.flows = <uint32_t>(starts.shape[0] - 1)
        self.ports = <Port*>calloc(self.all_ports + 1, sizeof(Port))
        self.switches = <Switch*>calloc(self.all_switches + 1, sizeof(Switch))
        self.calendar = <Calendar*>calloc(1, sizeof(Calendar))
        self.fronts = <int64_t*>calloc(self.all_ports + 1, 8)
        if self.fronts == NULL or self.ports == NULL or self.switches == NULL or self.calendar == NULL:
            raise MemoryError
        self.until_sent = until_sent
        for i in range(self.all_switches):
            if buffer[i] >> 40 or alpha[i] >> 20:
                raise ValueError("a buffer or alpha is too large")
            self.switches[i].buffer, self.switches[i].alpha = buffer[i], alpha[i]
        for i in range(self.all_ports):
            s = switch_of[i]
            if not 0 < ps_per_byte[i] < 1 << 30 or not 0 <= delay[i] < <int64_t>1 << 50:
                raise ValueError("the speed or the delay of a port")
            self.ports[i].ps_per_byte, self.ports[i].delay, self.ports[i].switch = ps_per_byte[i], delay[i], s
            if s == NO_SWITCH:
                continue
            if s >= self.all_switches or (self.switches[s].ports and s != before):
                raise ValueError("the ports are not in the order of the switches")
            if self.switches[s].ports == 0:
                self.switches[s].first = i
            self.switches[s].ports += 1
            before = s
        self._routes(routes, starts)

    cdef int _routes(self, const uint32_t[::1] routes, const uint32_t[::1] starts) except -1:
        cdef uint32_t f, i, n = 0
        self.hops = <uint32_t*>malloc((<size_t>routes.shape[0] + self.flows + 1) * 4)
        self.first_hop = <uint32_t*>malloc((<size_t>self.flows + 1) * 4)
        if self.hops == NULL or self.first_hop == NULL:
            raise MemoryError
        for f in range(self.flows):
            if not starts[f] < starts[f + 1] <= routes.shape[0]:
                raise ValueError("a route is empty")
            self.first_hop[f] = n
            for i in range(starts[f], starts[f + 1]):
                if routes[i] >= self.all_ports or (
                        (self.ports[routes[i]].switch == NO_SWITCH) != (i == starts[f])):
                    raise ValueError("a route does not begin at a host, or does not go on through switches")
                self.hops[n] = routes[i]
                n += 1
            self.hops[n] = END
            n += 1
        return 0

    def __dealloc__(self):
        cdef uint32_t i
        if self.ports != NULL:
            for i in range(self.all_ports):
                free(self.ports[i].ring)
        if self.calendar != NULL:
            for i in range(SLOTS):
                free(self.calendar.slot[i].events)
            free(self.calendar.far.events)
        free(self.ports)
        free(self.switches)
        free(self.fronts)
        free(self.calendar)
        free(self.hops)
        free(self.first_hop)
        free(self.keys)
        free(self.other)
        free(self.tally)
        free(self.touched)
        free(self.shares)
        free(self.sent)

    def load(self, const int64_t[::1] times not None, const uint32_t[::1] sizes not None,
             const uint32_t[::1] flow_of not None, const uint32_t[::1] order not None,
             const uint8_t[::1] tags=None, *, int decide=RULE, uint64_t slack=0,
             bint name_flows=False, uint32_t sample=0):
        """The packets: when they are sent (ps, from 0), bytes on the wire, flow, and the order of times (`time_order`).

        ``decide`` RULE: a frame for which there is no room is dropped.  TAGS: a frame is dropped if it is tagged and
        there is no room for it and ``slack`` bytes; no other frame is ever dropped, and the buffer may overflow.
        ``name_flows``: rows name the flows that share the queue.  ``sample``: keep the `contents` of the queues that
        every sample-th packet sees; 0: of none.
        """
        cdef uint64_t i, n = times.shape[0]
        cdef uint32_t least = MAX_FRAME, f
        cdef int64_t ahead = -1, now = 0, its
        cdef Sent* e
        if not (sizes.shape[0] == flow_of.shape[0] == order.shape[0] == <Py_ssize_t>n) or (
                tags is not None and tags.shape[0] != <Py_ssize_t>n):
            raise ValueError("arrays of different lengths")
        if decide == TAGS and tags is None or slack >> 40:
            raise ValueError("no tags, or the slack")
        self.fed = self.packets = self.in_slot = 0
        free(self.sent)
        self.sent = <Sent*>malloc((n + 1) * sizeof(Sent))
        if self.sent == NULL:
            raise MemoryError
        for i in range(n):
            if order[i] >= n:
                raise ValueError("the order")
            e = &self.sent[i]
            e.packet, e.time = order[i], times[order[i]]
            e.flow, e.size = flow_of[order[i]], sizes[order[i]]
            if e.flow >= self.flows or not 0 < e.size <= MAX_FRAME or not now <= e.time < <int64_t>1 << 61:
                raise ValueError("a packet has a bad size, flow or time, or the order is not that of the times")
            now, least = e.time, min(least, e.size)
            if tags is not None and tags[order[i]]:
                e.size |= <uint32_t>1 << 31
        for f in range(self.all_ports):
            its = self.ports[f].delay + <int64_t>self.ports[f].ps_per_byte * least
            ahead = its if ahead < 0 else min(ahead, its)
            self.ports[f].free_at, self.ports[f].queue = 0, 0
            self.ports[f].head = self.ports[f].tail = 0
            self.fronts[f] = INT64_MAX
        for f in range(self.all_switches):
            self.switches[f].used, self.switches[f].next = 0, INT64_MAX
        for f in range(SLOTS):
            self.calendar.slot[f].count = 0
        memset(self.calendar.busy, 0, sizeof(self.calendar.busy))
        self.calendar.shift = 0
        while self.calendar.shift < 30 and (<int64_t>2 << self.calendar.shift) <= ahead:
            self.calendar.shift += 1
        self.calendar.now = self.calendar.next_look = 0
        self.calendar.far.count = self.calendar.waiting = 0
        self.by_tags, self.slack = decide == TAGS, slack
        self.name_flows, self.sample, self.share_count = name_flows, sample, 0
        if (name_flows or sample) and self.tally == NULL:
            self.tally = <uint64_t*>calloc(<size_t>self.flows + 1, 8)
            self.touched = <uint32_t*>malloc((<size_t>self.flows + 1) * 4)
            if self.tally == NULL or self.touched == NULL:
                raise MemoryError
        self.fed, self.packets, self.at, self.in_slot, self.events, self.drops = 0, n, 0, 0, 0, 0

    def advance(self, QueueRows rows not None):
        """Fill ``rows`` with the next ones; whether there may be more."""
        cdef int more
        rows.count = 0
        with nogil:
            more = self._advance(rows)
        if more < 0:
            raise MemoryError
        return more == 1

    cdef int _advance(self, QueueRows rows) noexcept nogil:
        cdef Calendar* c = self.calendar
        cdef Slot* slot
        cdef Port* near
        cdef uint32_t room = <uint32_t>rows._time.shape[0], at
        cdef int more
        while True:
            slot = &c.slot[<uint32_t>c.now & (SLOTS - 1)]
            if self.at < self.in_slot:
                while self.at < self.in_slot and rows.count < room:
                    if self.at + AHEAD < self.in_slot:
                        prefetch(&self.ports[self.hops[slot.events[<uint32_t>self.keys[self.at + AHEAD]].place]])
                        near = &self.ports[self.hops[slot.events[<uint32_t>self.keys[self.at + AHEAD // 2]].place]]
                        prefetch(&near.ring[near.tail & near.mask])
                    if self._arrive(&slot.events[<uint32_t>self.keys[self.at]], rows) < 0:
                        return -1
                    self.at += 1
                if self.at < self.in_slot:
                    return 1
            if self.in_slot:
                at = <uint32_t>c.now & (SLOTS - 1)
                c.waiting -= slot.count
                slot.count = 0
                c.busy[at >> 6] &= ~(<uint64_t>1 << (at & 63))
                self.in_slot = self.at = 0
            more = self._next_slot()
            if more <= 0:
                return more
            slot = &c.slot[<uint32_t>c.now & (SLOTS - 1)]
            if slot.count > self.key_room and self._more_keys(<uint32_t>slot.count) < 0:
                return -1
            sort_events(slot.events, <uint32_t>slot.count, c.shift, self.keys, self.other)
            self.in_slot = <uint32_t>slot.count

    cdef int _more_keys(self, uint32_t need) noexcept nogil:
        cdef uint32_t room = 2 * need + 1024
        free(self.keys)
        free(self.other)
        self.keys, self.other = <uint64_t*>malloc(<size_t>room * 8), <uint64_t*>malloc(<size_t>room * 8)
        self.key_room = room if self.keys != NULL and self.other != NULL else 0
        return 0 if self.key_room else -1

    cdef int _next_slot(self) noexcept nogil:
        # Go to the next slot with events, and first send what is sent before it.  0: all is done; -1: no memory.
        cdef Calendar* c = self.calendar
        cdef int64_t here, target
        cdef bint send
        while c.waiting or self.fed < self.packets:
            here = target = calendar_next(c) if c.waiting else -1
            send = False
            if self.fed < self.packets:         # arrives in a later slot than it is sent
                target = self.sent[self.fed].time >> c.shift
                send = here < 0 or target < here
                if not send:
                    target = here
            if c.far.count and target >= c.next_look:
                c.now = max(c.now, c.next_look if c.waiting > c.far.count else target)
                if calendar_near(c) < 0:
                    return -1
                continue
            c.now = max(c.now, target)
            if not send:
                return 1
            if self._send(target + 1) < 0:
                return -1
        return 0

    cdef int _send(self, int64_t before) noexcept nogil:
        # Give packets that are sent before a slot to the ports of their hosts.
        cdef uint32_t place
        cdef int64_t leaves
        cdef Port* p
        cdef Sent* sent
        cdef Event e
        while self.fed < self.packets and self.sent[self.fed].time >> self.calendar.shift < before:
            sent = &self.sent[self.fed]
            self.fed += 1
            place = self.first_hop[sent.flow]
            p = &self.ports[self.hops[place]]
            leaves = max(sent.time, p.free_at) + <int64_t>p.ps_per_byte * (sent.size & SIZE)
            p.free_at = leaves
            if self.hops[place + 1] == END:
                continue
            e.time, e.packet, e.place, e.flow, e.size = leaves + p.delay, sent.packet, place + 1, sent.flow, sent.size
            if calendar_add(self.calendar, &e) < 0:
                return -1
        return 0

    cdef int _arrive(self, const Event* e, QueueRows rows) noexcept nogil:
        cdef uint32_t at = rows.count, number = self.hops[e.place]
        cdef Port* p = &self.ports[number]
        cdef Switch* s = &self.switches[p.switch]
        cdef uint32_t size = e.size & SIZE
        cdef bint tagged = e.size != size
        cdef uint8_t no_room = 0
        cdef int64_t start, leaves = 0
        cdef Event onward
        drain_switch(self.ports, s, self.fronts, e.time)
        if not self.by_tags:
            no_room = over(p, s, size, 0)
        elif tagged:
            no_room = over(p, s, size, self.slack)
        self.events += 1
        rows._time[at], rows._packet[at], rows._port[at] = e.time, e.packet, number
        rows._queue[at] = <uint32_t>min(p.queue, <uint64_t>MOST)
        rows._used[at] = <uint32_t>min(s.used, <uint64_t>MOST)
        rows._hop[at] = <uint8_t>(e.place - self.first_hop[e.flow])
        if (self.name_flows or self.sample) and self._look(p, e, rows) < 0:
            return -1
        if no_room:
            self.drops += 1
        else:
            start = max(e.time, p.free_at)
            p.free_at = leaves = start + <int64_t>p.ps_per_byte * size
            if enqueue(p, s, &self.fronts[number], leaves if self.until_sent else start, size, e.flow) < 0:
                return -1
            if self.hops[e.place + 1] != END:
                onward = e[0]
                onward.time, onward.place = leaves + p.delay, e.place + 1
                if calendar_add(self.calendar, &onward) < 0:
                    return -1
        rows._leaves[at], rows._flags[at] = leaves, no_room | (TAGGED if tagged else 0)
        rows.count = at + 1
        return 0

    cdef int _look(self, const Port* p, const Event* e, QueueRows rows) noexcept nogil:
        # The flows of the frames in the queue, in the order in which they came.
        cdef uint32_t i, j, k, flow, n = 0, at = rows.count * SHARERS
        cdef uint64_t its
        cdef bint kept = self.sample != 0 and e.packet % self.sample == 0
        if not self.name_flows and not kept:
            return 0
        for i in range(p.tail - p.head):
            flow = p.ring[(p.head + i) & p.mask].flow
            if self.tally[flow] == 0:
                self.touched[n] = flow
                n += 1
            self.tally[flow] += p.ring[(p.head + i) & p.mask].size
        if kept and self._keep(e, n) < 0:
            return -1
        for k in range(SHARERS):
            rows._sharer[at + k], rows._share[at + k] = 0, 0
        for i in range(n):
            its = min(self.tally[self.touched[i]], <uint64_t>MOST)
            j = SHARERS
            while j > 0 and its > rows._share[at + j - 1]:      # of equal shares, the first in the queue is named
                if j < SHARERS:
                    rows._sharer[at + j], rows._share[at + j] = rows._sharer[at + j - 1], rows._share[at + j - 1]
                j -= 1
            if j < SHARERS:
                rows._sharer[at + j], rows._share[at + j] = self.touched[i] + 1, <uint32_t>its
            self.tally[self.touched[i]] = 0
        return 0

    cdef int _keep(self, const Event* e, uint32_t n) noexcept nogil:
        cdef uint32_t i, hop = e.place - self.first_hop[e.flow] - 1
        cdef Share* s
        if grow(<void**>&self.shares, &self.share_room, self.share_count + n + 1, 1024, sizeof(Share)) < 0:
            return -1
        for i in range(max(n, <uint32_t>1)):
            s = &self.shares[self.share_count]
            s.packet, s.hop, s.flow, s.bytes = e.packet, hop, <uint32_t>NO_FLOW, 0
            if n:
                s.flow, s.bytes = self.touched[i], <uint32_t>min(self.tally[self.touched[i]], <uint64_t>MOST)
            self.share_count += 1
        return 0

    def contents(self):
        """{(packet, hop): {flow: bytes}} of the queues that the sampled packets saw; the first switch is hop 0."""
        cdef uint64_t i
        cdef Share* s
        found = {}
        for i in range(self.share_count):
            s = &self.shares[i]
            its = found.setdefault((s.packet, s.hop), {})
            if s.flow != <uint32_t>NO_FLOW:
                its[s.flow] = s.bytes
        return found


ctypedef fused Number:
    uint8_t
    uint16_t
    uint32_t


ctypedef fused Index:
    uint8_t
    uint32_t


def gather(const Number[::1] table not None, const Index[::1] index not None, uint32_t count):
    """``table[i]`` for the first ``count`` of ``index``, as an array.  IndexError beyond the table."""
    cdef uint32_t i, size = <uint32_t>table.shape[0]
    cdef Number[::1] into
    if count > <size_t>index.shape[0]:
        raise IndexError("count")
    found = array("B" if Number is uint8_t else "H" if Number is uint16_t else "I", [0]) * count
    into = found
    for i in range(count):
        if index[i] >= size:
            raise IndexError("index")
        into[i] = table[index[i]]
    return found


def picoseconds(const int64_t[::1] times not None, int64_t base):
    """Times in ns as times in ps after ``base``, the earliest.  OverflowError for more than 26 days."""
    cdef size_t i
    cdef int64_t[::1] into
    found = array("q", [0]) * times.shape[0]
    into = found
    for i in range(<size_t>times.shape[0]):
        if not 0 <= <int64_t>(<uint64_t>times[i] - <uint64_t>base) < <int64_t>1 << 51:
            raise OverflowError("the times are more than 26 days apart")
        into[i] = (times[i] - base) * 1000
    return found


def time_order(const int64_t[::1] times not None):
    """The numbers of the times (from 0 to 2^61) from the earliest to the latest; equal times as they come."""
    cdef size_t n = times.shape[0], i, total
    cdef uint32_t* source
    cdef uint32_t* target
    cdef uint32_t[2048] count
    cdef uint32_t some
    cdef int64_t all_bits = 0
    cdef int bit = 0
    cdef uint32_t[::1] into
    found = array("I", [0]) * n
    if n == 0:
        return found
    if n >> 32:
        raise MemoryError
    into = found
    spare = array("I", [0]) * n
    cdef uint32_t[::1] aside = spare
    source, target = &into[0], &aside[0]
    for i in range(n):
        source[i] = <uint32_t>i
        if times[i] < 0 or times[i] >> 61:
            raise ValueError("a time")
        all_bits |= times[i] ^ times[0]
    with nogil:
        while bit < 61 and all_bits >> bit:
            memset(count, 0, sizeof(count))
            for i in range(n):
                count[times[i] >> bit & 2047] += 1
            total = 0
            for i in range(2048):
                some = count[i]
                count[i] = <uint32_t>total
                total += some
            for i in range(n):
                some = <uint32_t>(times[source[i]] >> bit & 2047)
                target[count[some]] = source[i]
                count[some] += 1
            source, target = target, source
            bit += 11
    return found if source == &into[0] else spare
