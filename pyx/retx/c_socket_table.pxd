# A bounded table of TCP flows: keyed by addresses and ports, distinguished by cookie; entries keep their number until
# they are dropped, and stand in at most one of a few queues.  When it is full, nothing is added.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset
from c_hash_table cimport (
    NOT_FOUND, HashTable, hash1, hash_words, slots_add, slots_home, slots_next, slots_remove, slots_reserve, table_free)

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
    UNCONNECTED = 32            # these two also in the notes of a record: see schema/retx.yaml
    STALLED = 64

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
    uint32_t before             # in its queue, + 1
    uint32_t after              # the same; of a free entry: the next free one + 1
    uint16_t timeouts
    uint8_t flags
    uint8_t queue

cdef struct Flows:
    Flow* flow
    HashTable by_key
    HashTable by_cookie
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
    t.by_key.words, t.by_cookie.words = 5, 1
    t.by_key.seed[0], t.by_key.seed[1] = seed[0] | 1, seed[1] | 1
    t.by_cookie.seed[0], t.by_cookie.seed[1] = seed[0] | 1, seed[1] | 1
    t.flow = <Flow*>calloc(t.room, sizeof(Flow))
    return t.flow != NULL and not slots_reserve(&t.by_key, t.room) and not slots_reserve(&t.by_cookie, t.room)


cdef inline void flows_free(Flows* t) noexcept nogil:
    free(t.flow)
    t.flow = NULL
    table_free(&t.by_key)
    table_free(&t.by_cookie)


cdef inline Flow* flows_traced(const Flows* t, const uint64_t* key, uint64_t sk) noexcept nogil:
    """The newest flow of these addresses and ports that is in the kernel, or may be."""
    cdef uint64_t hash = hash_words(&t.by_key, key), at = slots_home(&t.by_key, hash)
    cdef uint32_t number = slots_next(&t.by_key, hash, &at)
    cdef Flow* newest = NULL
    cdef Flow* f
    while number != NOT_FOUND:
        f = &t.flow[number]
        if memcmp(f.key, key, 40) == 0 and (f.sk == sk or not f.sk or not sk):
            newest = f
        number = slots_next(&t.by_key, hash, &at)
    return newest


cdef inline Flow* flows_find(const Flows* t, const uint64_t* key, uint64_t cookie) noexcept nogil:
    """The flow of this socket, or the oldest one without a known cookie, or NULL."""
    cdef uint64_t hash = hash_words(&t.by_key, key), at = slots_home(&t.by_key, hash)
    cdef uint32_t number = slots_next(&t.by_key, hash, &at)
    cdef Flow* any = NULL
    cdef Flow* f
    while number != NOT_FOUND:
        f = &t.flow[number]
        if memcmp(f.key, key, 40) == 0:
            if f.cookie == cookie:
                return f
            if not f.cookie and any == NULL:
                any = f
        number = slots_next(&t.by_key, hash, &at)
    return any


cdef inline Flow* flows_called(const Flows* t, uint64_t cookie) noexcept nogil:
    """The newest flow of this cookie, whatever its addresses."""
    cdef uint64_t hash = hash1(&t.by_cookie, cookie), at = slots_home(&t.by_cookie, hash)
    cdef uint32_t number = slots_next(&t.by_cookie, hash, &at)
    cdef Flow* newest = NULL
    while number != NOT_FOUND:
        if t.flow[number].cookie == cookie:
            newest = &t.flow[number]
        number = slots_next(&t.by_cookie, hash, &at)
    return newest


cdef inline void flows_call(Flows* t, Flow* f, uint64_t cookie) noexcept nogil:
    """Now its cookie is known."""
    f.cookie = cookie
    slots_add(&t.by_cookie, hash1(&t.by_cookie, cookie), <uint32_t>(f - t.flow))


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
    cdef uint32_t number = <uint32_t>(f - t.flow)
    flows_leave(t, f)
    slots_remove(&t.by_key, hash_words(&t.by_key, f.key), number)
    if f.cookie:
        slots_remove(&t.by_cookie, hash1(&t.by_cookie, f.cookie), number)
    memset(f, 0, sizeof(Flow))
    f.after, t.spare = t.spare, number + 1
    t.count -= 1


cdef inline bint _flows_grow(Flows* t) noexcept nogil:
    cdef uint64_t room = <uint64_t>t.room * 2
    cdef void* memory
    if room > t.most:
        room = t.most
    if slots_reserve(&t.by_key, room) or slots_reserve(&t.by_cookie, room):
        return False
    memory = realloc(t.flow, room * sizeof(Flow))
    if memory == NULL:
        return False
    t.flow = <Flow*>memory
    memset(t.flow + t.room, 0, (room - t.room) * sizeof(Flow))
    t.room = <uint32_t>room
    return True


cdef inline Flow* flows_add(Flows* t, const uint64_t* key, uint64_t cookie) noexcept nogil:
    """A new flow, all zero but for this; NULL when there is no room.  Pointers to others may be stale now."""
    cdef uint32_t number
    cdef Flow* f
    if not t.spare and t.used == t.room and t.room < t.most and not _flows_grow(t):
        return NULL
    if t.spare:
        number = t.spare
        t.spare = t.flow[number - 1].after
    elif t.used < t.room:
        t.used += 1
        number = t.used
    elif t.head[Q_FOREIGN] or t.head[Q_AWAY]:
        number = t.head[Q_FOREIGN] if t.head[Q_FOREIGN] else t.head[Q_AWAY]
        flows_drop(t, &t.flow[number - 1])
        t.spare = t.flow[number - 1].after
    else:
        return NULL
    f = &t.flow[number - 1]
    memset(f, 0, sizeof(Flow))
    memcpy(f.key, key, 40)
    if cookie:
        flows_call(t, f, cookie)
    slots_add(&t.by_key, hash_words(&t.by_key, key), number - 1)
    t.count += 1
    return f
