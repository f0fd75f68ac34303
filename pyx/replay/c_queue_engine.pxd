# Switch queues with a shared buffer, and the calendar of the packets that are on their way to a switch.
# Times are picoseconds: 10 Gb/s are 800 ps a byte.  pyx/replay/queue_engine.pyx uses it.

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from c_array cimport grow

cdef enum:
    SLOTS = 8192                    # of the calendar
    WORDS = 128                     # SLOTS / 64
    NO_SWITCH = 0xFFFFFFFF          # switch of a host's port
    FEW = 24                        # events that are sorted by insertion
    DIGIT = 10                      # bits of a pass of the radix sort
    DIGITS = 1 << DIGIT
    DROPPED = 1                     # flags of a row
    TAGGED = 2
    BUFFER = 4                      # the whole buffer was full, not only this queue's share

cdef struct Frame:                  # in a queue
    int64_t leaves
    uint32_t size
    uint32_t flow

cdef struct Port:                   # 64 bytes: one cache line
    int64_t free_at
    int64_t delay                   # of the link
    uint64_t queue                  # bytes of the frames in the ring
    Frame* ring
    uint32_t head                   # both only grow; a frame's place is its number & mask
    uint32_t tail
    uint32_t mask
    uint32_t ps_per_byte
    uint32_t switch
    uint32_t spare

cdef struct Switch:
    uint64_t used                   # bytes in its queues
    uint64_t buffer
    uint64_t alpha                  # in 1/1024; 0: each queue has a buffer of its own
    int64_t next                    # no frame leaves before it
    uint32_t first                  # its ports
    uint32_t ports

cdef struct Event:                  # a packet arrives at a switch
    int64_t time
    uint32_t packet
    uint32_t place                  # in the list of routes
    uint32_t flow
    uint32_t size                   # highest bit: tagged

cdef struct Slot:
    Event* events
    uint64_t room
    uint64_t count

cdef struct Calendar:
    Slot slot[SLOTS]
    uint64_t busy[WORDS]
    int shift                       # a slot is 2^shift ps
    int64_t now                     # number of the slot that is worked on; those before it are done
    Slot far                        # events beyond the last slot
    int64_t next_look               # slot number: no far event is in it or before it
    uint64_t waiting

cdef extern from *:
    """
    #define CFL_CTZ64(x) __builtin_ctzll(x)
    #define CFL_PREFETCH(p) __builtin_prefetch(p, 1)
    """
    int ctz64 "CFL_CTZ64"(uint64_t) noexcept nogil
    void prefetch "CFL_PREFETCH"(const void*) noexcept nogil


cdef inline int slot_add(Slot* s, const Event* e) noexcept nogil:
    if s.count == s.room and grow(<void**>&s.events, &s.room, s.count + 1, 32, sizeof(Event)) < 0:
        return -1
    s.events[s.count] = e[0]
    s.count += 1
    return 0


cdef inline int calendar_add(Calendar* c, const Event* e) noexcept nogil:
    """An event that is later than the slot that is worked on.  -1: no memory."""
    cdef int64_t number = e.time >> c.shift
    cdef uint32_t at = <uint32_t>number & (SLOTS - 1)
    c.waiting += 1
    if number - c.now >= SLOTS:
        if c.far.count == 0:
            c.next_look = c.now + SLOTS // 2
        return slot_add(&c.far, e)
    c.busy[at >> 6] |= <uint64_t>1 << (at & 63)
    return slot_add(&c.slot[at], e)


cdef inline int calendar_near(Calendar* c) noexcept nogil:
    """Move far events that are near by now into their slots.  -1: no memory."""
    cdef uint64_t i, kept = 0
    cdef Event e
    cdef uint64_t count = c.far.count
    for i in range(count):
        e = c.far.events[i]
        if (e.time >> c.shift) - c.now < SLOTS:
            c.waiting -= 1
            if calendar_add(c, &e) < 0:
                return -1
        else:
            c.far.events[kept] = e
            kept += 1
    c.far.count = kept
    c.next_look = c.now + SLOTS // 2
    return 0


cdef inline int64_t calendar_next(const Calendar* c) noexcept nogil:
    """The number of the next slot with events, or -1."""
    cdef uint32_t start = <uint32_t>c.now & (SLOTS - 1), word = start >> 6, _i
    cdef uint64_t bits = c.busy[word] >> (start & 63) << (start & 63)
    cdef int64_t best = -1, number
    cdef uint64_t k
    for _i in range(WORDS + 1):
        if bits:
            number = (word << 6) + ctz64(bits)
            return c.now + ((number - start) & (SLOTS - 1))
        word = (word + 1) & (WORDS - 1)
        bits = c.busy[word]
        if word == start >> 6:
            bits &= (<uint64_t>1 << (start & 63)) - 1
    for k in range(c.far.count):
        number = c.far.events[k].time >> c.shift
        if best < 0 or number < best:
            best = number
    return best


cdef inline bint before(const Event* events, uint32_t a, uint32_t b) noexcept nogil:
    return events[a].time < events[b].time or (events[a].time == events[b].time
                                               and events[a].packet < events[b].packet)


cdef inline void sort_events(const Event* events, uint32_t n, int shift, uint64_t* keys,
                             uint64_t* other) noexcept nogil:
    """Into ``keys``: the numbers of the events of a slot by (time, packet), in the lower 32 bits."""
    cdef uint32_t[DIGITS] count
    cdef uint32_t i, j, total, some
    cdef uint64_t key, low = (<uint64_t>1 << shift) - 1
    cdef uint64_t* source = keys
    cdef uint64_t* target = other
    cdef uint64_t* swap
    cdef int bit = 32
    for i in range(n):
        keys[i] = (<uint64_t>events[i].time & low) << 32 | i
    if n > FEW:
        while bit < 32 + shift:
            memset(count, 0, sizeof(count))
            for i in range(n):
                count[source[i] >> bit & (DIGITS - 1)] += 1
            total = 0
            for i in range(DIGITS):
                some = count[i]
                count[i] = total
                total += some
            for i in range(n):
                j = <uint32_t>(source[i] >> bit & (DIGITS - 1))
                target[count[j]] = source[i]
                count[j] += 1
            swap = source
            source = target
            target = swap
            bit += DIGIT
        if source != keys:
            memcpy(keys, source, n * 8)
    for i in range(1, n):           # nearly sorted by now: equal times are left
        key = keys[i]
        j = i
        while j > 0 and before(events, <uint32_t>key, <uint32_t>keys[j - 1]):
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


cdef inline void drain(Port* p, Switch* s, int64_t* front, int64_t now) noexcept nogil:
    """Take out the frames that have left by ``now``.  ``front``: when the first frame of the queue leaves."""
    cdef uint64_t gone = 0
    while p.head != p.tail and p.ring[p.head & p.mask].leaves <= now:
        gone += p.ring[p.head & p.mask].size
        p.head += 1
    p.queue -= gone
    s.used -= gone
    front[0] = p.ring[p.head & p.mask].leaves if p.head != p.tail else INT64_MAX


cdef inline void drain_switch(Port* ports, Switch* s, int64_t* fronts, int64_t now) noexcept nogil:
    cdef uint32_t i
    cdef int64_t soonest = INT64_MAX
    if now < s.next:
        return
    for i in range(s.first, s.first + s.ports):
        if fronts[i] <= now:
            drain(&ports[i], s, &fronts[i], now)
        soonest = min(soonest, fronts[i])
    s.next = soonest


cdef inline int enqueue(Port* p, Switch* s, int64_t* front, int64_t leaves, uint32_t size,
                        uint32_t flow) noexcept nogil:
    """-1: no memory."""
    cdef Frame* bigger
    cdef uint32_t i
    if p.tail - p.head > p.mask or p.ring == NULL:
        bigger = <Frame*>malloc((16 if p.ring == NULL else 2 * (<size_t>p.mask + 1)) * sizeof(Frame))
        if bigger == NULL:
            return -1
        for i in range(p.tail - p.head):
            bigger[i] = p.ring[(p.head + i) & p.mask]
        free(p.ring)
        p.tail -= p.head
        p.mask = 15 if p.ring == NULL else 2 * p.mask + 1
        p.head, p.ring = 0, bigger
    if p.head == p.tail:
        front[0] = leaves
    p.ring[p.tail & p.mask] = Frame(leaves, size, flow)
    p.tail += 1
    p.queue += size
    s.used += size
    s.next = min(s.next, leaves)
    return 0


cdef inline uint8_t over(const Port* p, const Switch* s, uint64_t size, uint64_t slack) noexcept nogil:
    """DROPPED where a frame exceeds the queue's share of the buffer less ``slack`` bytes; BUFFER too: the buffer.

    Dynamic threshold (Choudhury, Hahne): queue + size <= alpha * (buffer - used), and used + size <= buffer.
    """
    if s.alpha == 0:
        return DROPPED if p.queue + size + slack > s.buffer else 0
    if s.used + size + slack > s.buffer:
        return DROPPED | BUFFER
    return DROPPED if (p.queue + size + slack) << 10 > s.alpha * (s.buffer - s.used) else 0
