# A bounded table of TCP flows: keyed by addresses and ports, distinguished by cookie; entries keep their number until
# they are dropped, and stand in at most one of a few queues.  When it is full, nothing is added.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset
from c_hash_table cimport mum

cdef enum:
    FIRST = 1024                # entries there is room for at first
    QUEUES = 5
    Q_NONE = 0
    Q_DUE = 1                   # to be queried, oldest first
    Q_FOREIGN = 2               # of other namespaces
    Q_LATE = 3                  # to be queried once more
    Q_AWAY = 4                  # no dump has it any more: it may be closed, and not yet ended

cdef enum:
    REPORTED = 1                    # a record of it was written
    POLLED = 2                  # why it is due: it was found by looking
    EARLIER = 4                 # it was there before we began, and we could not look
    LATE = 8                    # it was given time for its DSACKs
    ENDING = 16                 # its end was received and is reported in this round

cdef struct Flow:
    uint64_t key[5]
    uint64_t cookie             # 0: not known yet
    uint64_t sk                 # where the kernel has it, 0: not known
    uint64_t bytes              # this and the next: totals of the records so far
    uint32_t sent
    uint32_t retrans
    uint32_t dsack
    uint32_t lost
    uint32_t told_events
    uint32_t events             # traced and not yet reported
    int64_t first               # ns: when it became due
    int64_t last                # ns: the last traced event
    uint32_t uid
    uint32_t round              # when a dump saw it last
    uint32_t chain              # the next one of the same bucket + 1
    uint32_t cookies            # the same, of buckets by cookie
    uint32_t before             # in its queue, + 1
    uint32_t after
    uint16_t timeouts
    uint8_t flags
    uint8_t queue

cdef struct Flows:
    Flow* flow
    uint32_t* bucket
    uint32_t* by_cookie
    uint64_t seed[2]
    uint32_t mask
    uint32_t room
    uint32_t most
    uint32_t used               # entries that were ever taken
    uint32_t count              # entries in use
    uint32_t spare              # the first free one + 1, chained
    uint32_t head[QUEUES]
    uint32_t tail[QUEUES]


cdef inline bint flows_init(Flows* t, uint32_t most, const uint64_t* seed) noexcept nogil:
    memset(t, 0, sizeof(Flows))
    t.most = most
    t.room = most if most < FIRST else FIRST
    t.mask = FIRST - 1
    t.seed[0], t.seed[1] = seed[0] | 1, seed[1] | 1
    t.flow = <Flow*>calloc(t.room, sizeof(Flow))
    t.bucket = <uint32_t*>calloc(FIRST, sizeof(uint32_t))
    t.by_cookie = <uint32_t*>calloc(FIRST, sizeof(uint32_t))
    return t.flow != NULL and t.bucket != NULL and t.by_cookie != NULL


cdef inline void flows_free(Flows* t) noexcept nogil:
    free(t.flow)
    free(t.bucket)
    free(t.by_cookie)
    t.flow, t.bucket, t.by_cookie = NULL, NULL, NULL


cdef inline uint32_t _flows_place(const Flows* t, const uint64_t* key) noexcept nogil:
    cdef uint64_t h = t.seed[0]
    cdef int i
    for i in range(5):
        h = mum(h ^ key[i], t.seed[1])
    return <uint32_t>(h & t.mask)


cdef inline uint32_t _flows_cookie(const Flows* t, uint64_t cookie) noexcept nogil:
    return <uint32_t>(mum(t.seed[0] ^ cookie, t.seed[1]) & t.mask)


cdef inline bint _flows_same(const Flow* f, const uint64_t* key) noexcept nogil:
    return f.key[4] == key[4] and memcmp(f.key, key, 32) == 0


cdef inline Flow* flows_traced(const Flows* t, const uint64_t* key, uint64_t sk) noexcept nogil:
    """The flow of these addresses and ports that is in the kernel, or may be."""
    cdef uint32_t i = t.bucket[_flows_place(t, key)]
    while i:
        if _flows_same(&t.flow[i - 1], key) and (t.flow[i - 1].sk == sk or not t.flow[i - 1].sk or not sk):
            return &t.flow[i - 1]
        i = t.flow[i - 1].chain
    return NULL


cdef inline Flow* flows_find(const Flows* t, const uint64_t* key, uint64_t cookie) noexcept nogil:
    """The flow of this socket, or one without a known cookie, or NULL."""
    cdef uint32_t i = t.bucket[_flows_place(t, key)]
    cdef Flow* any = NULL
    while i:
        if _flows_same(&t.flow[i - 1], key):
            if t.flow[i - 1].cookie == cookie:
                return &t.flow[i - 1]
            if not t.flow[i - 1].cookie:
                any = &t.flow[i - 1]
        i = t.flow[i - 1].chain
    return any


cdef inline Flow* flows_called(const Flows* t, uint64_t cookie) noexcept nogil:
    """The flow of this cookie, whatever its addresses."""
    cdef uint32_t i = t.by_cookie[_flows_cookie(t, cookie)]
    while i:
        if t.flow[i - 1].cookie == cookie:
            return &t.flow[i - 1]
        i = t.flow[i - 1].cookies
    return NULL


cdef inline void flows_call(Flows* t, Flow* f, uint64_t cookie) noexcept nogil:
    """Now its cookie is known."""
    cdef uint32_t place = _flows_cookie(t, cookie)
    f.cookie, f.cookies = cookie, t.by_cookie[place]
    t.by_cookie[place] = <uint32_t>(f - t.flow) + 1


cdef inline void flows_leave(Flows* t, Flow* f) noexcept nogil:
    """Out of its queue."""
    if f.queue == Q_NONE:
        return
    if f.before:
        t.flow[f.before - 1].after = f.after
    else:
        t.head[f.queue] = f.after
    if f.after:
        t.flow[f.after - 1].before = f.before
    else:
        t.tail[f.queue] = f.before
    f.queue, f.before, f.after = Q_NONE, 0, 0


cdef inline void flows_join(Flows* t, Flow* f, uint8_t queue) noexcept nogil:
    """To the end of a queue."""
    cdef uint32_t number = <uint32_t>(f - t.flow) + 1
    flows_leave(t, f)
    f.queue, f.before = queue, t.tail[queue]
    if f.before:
        t.flow[f.before - 1].after = number
    else:
        t.head[queue] = number
    t.tail[queue] = number


cdef inline uint32_t flows_due(const Flows* t, int queue, int64_t before) noexcept nogil:
    """The first one of a queue, + 1, if it has been in it since then."""
    cdef uint32_t i = t.head[queue]
    return i if i and t.flow[i - 1].first <= before else 0


cdef inline void flows_drop(Flows* t, Flow* f) noexcept nogil:
    cdef uint32_t number = <uint32_t>(f - t.flow) + 1
    cdef uint32_t* p = &t.bucket[_flows_place(t, f.key)]
    flows_leave(t, f)
    while p[0] != number:
        p = &t.flow[p[0] - 1].chain
    p[0] = f.chain
    if f.cookie:
        p = &t.by_cookie[_flows_cookie(t, f.cookie)]
        while p[0] != number:
            p = &t.flow[p[0] - 1].cookies
        p[0] = f.cookies
    memset(f, 0, sizeof(Flow))
    f.chain, t.spare = t.spare, number
    t.count -= 1


cdef inline bint _flows_grow(Flows* t) noexcept nogil:
    cdef uint64_t room = <uint64_t>t.room * 2
    cdef uint32_t mask = t.mask, i, place
    cdef void* memory
    cdef void* twin
    if room > t.most:
        room = t.most
    memory = realloc(t.flow, room * sizeof(Flow))
    if memory == NULL:
        return False
    t.flow = <Flow*>memory
    memset(t.flow + t.room, 0, (room - t.room) * sizeof(Flow))
    t.room = <uint32_t>room
    while mask + 1 < room:
        mask = mask * 2 + 1
    if mask != t.mask:
        memory = calloc(<size_t>mask + 1, sizeof(uint32_t))
        twin = calloc(<size_t>mask + 1, sizeof(uint32_t))
        if memory == NULL or twin == NULL:
            free(memory)
            free(twin)
            return True                 # the chains get longer
        free(t.bucket)
        free(t.by_cookie)
        t.bucket, t.by_cookie, t.mask = <uint32_t*>memory, <uint32_t*>twin, mask
        for i in range(t.used):         # nothing is free: that is why it grows
            place = _flows_place(t, t.flow[i].key)
            t.flow[i].chain = t.bucket[place]
            t.bucket[place] = i + 1
            if t.flow[i].cookie:
                flows_call(t, &t.flow[i], t.flow[i].cookie)
    return True


cdef inline Flow* flows_add(Flows* t, const uint64_t* key, uint64_t cookie) noexcept nogil:
    """A new flow, all zero but for this; NULL when there is no room.  Pointers to others may be stale now."""
    cdef uint32_t number, place
    cdef Flow* f
    if not t.spare and t.used == t.room and t.room < t.most and not _flows_grow(t):
        return NULL
    if t.spare:
        number = t.spare
        t.spare = t.flow[number - 1].chain
    elif t.used < t.room:
        t.used += 1
        number = t.used
    elif t.head[Q_FOREIGN] or t.head[Q_AWAY]:
        number = t.head[Q_FOREIGN] if t.head[Q_FOREIGN] else t.head[Q_AWAY]
        flows_drop(t, &t.flow[number - 1])
        t.spare = t.flow[number - 1].chain
    else:
        return NULL
    f = &t.flow[number - 1]
    memset(f, 0, sizeof(Flow))
    memcpy(f.key, key, 40)
    if cookie:
        flows_call(t, f, cookie)
    place = _flows_place(t, key)
    f.chain = t.bucket[place]
    t.bucket[place] = number
    t.count += 1
    return f
