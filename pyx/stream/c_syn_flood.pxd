# Half-open connections by target: which attempts (SYN) were completed (ACK of the same sender) in time.
#
# An attempt is in a table of fixed size, by a hash of its addresses and ports, so that a flood of forged sources costs
# no memory.  Its bucket is one cache line.  A target (address, or address and port) counts attempts and completed ones
# in slots of one step by the time of the SYN: nothing has to be done when an attempt expires.
# Header only, no Python.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy
from c_hash_table cimport LruTable, hash_words, lru_find, lru_insert, lru_value, mum
from c_source cimport floor_div

cdef enum:
    FIN = 1
    SYN = 2
    RST = 4
    ACK = 16

cdef enum:
    WAYS = 4                    # attempts of a bucket
    DONE = 1                    # state of an attempt, in the low bits of its tag: completed
    ANSWERED = 2                # SYN-ACK seen
    WAS_RESET = 4
    STATES = 7
    TARGET_WORDS = 3            # address (two words), port and version and kind
    OF_ADDRESS = 1              # kinds of targets
    OF_PORT = 2
    FIRE = 1                    # events
    CLEAR = 2

cdef struct Attempt:
    uint64_t tag                # hash, and state; 0: free
    int64_t ts                  # of the SYN

cdef struct Slot:
    int64_t step                # number of the step that is counted here
    uint32_t attempts
    uint32_t completed
    uint32_t answered
    uint32_t resets

cdef struct Target:             # `slots` Slots follow
    uint32_t listed             # place among the candidates, plus one; 0: none
    uint32_t firing
    int64_t fired               # tick

cdef struct FloodEvent:
    int64_t tick
    int64_t lasted
    uint64_t key[TARGET_WORDS]
    uint64_t attempts
    uint64_t completed
    uint64_t answered
    uint64_t resets
    uint64_t number             # of the key
    uint32_t kind

cdef struct Flood:
    # as configured
    int64_t step
    int64_t timeout
    int64_t delay               # of the evaluation of a tick: timeout and lateness
    int64_t steps               # of a window
    int64_t slots               # of a target, a power of two
    uint64_t threshold
    uint64_t least              # attempts of a step without which no window reaches the threshold
    double ratio
    double clear                # share of threshold and ratio below which an alert ends
    # state
    Attempt* attempts
    uint64_t buckets            # a power of two
    uint64_t seed[2]
    LruTable targets
    int64_t at_step             # see `step_of`
    int64_t at_start
    int64_t next                # tick
    int64_t mark                # the latest time seen
    bint started
    uint32_t* candidates        # numbers of targets that may reach the threshold, or fire
    uint32_t listed
    uint32_t list_room
    FloodEvent* events
    uint32_t n_events
    uint32_t event_room
    bint failed                 # no memory
    # counts
    uint64_t syns
    uint64_t acks
    uint64_t repeated           # SYNs of an attempt that was known
    uint64_t late
    uint64_t displaced          # attempts that were forgotten before their time


cdef inline int64_t step_of(Flood* f, int64_t ts) noexcept nogil:
    """The number of the step of a time; the last one is kept, because a division costs as much as all the rest."""
    if ts < f.at_start or ts - f.at_start >= f.step:
        f.at_step = floor_div(ts, f.step)
        f.at_start = f.at_step * f.step
    return f.at_step


cdef inline Slot* slot_of(const Flood* f, Target* t, int64_t step) noexcept nogil:
    return <Slot*>(<uint8_t*>t + sizeof(Target)) + (step & (f.slots - 1))


cdef inline Attempt* bucket_of(const Flood* f, uint64_t hash) noexcept nogil:
    return f.attempts + (hash >> 20 & (f.buckets - 1)) * WAYS


cdef inline Attempt* known(const Flood* f, uint64_t hash) noexcept nogil:
    """The attempt with this hash, or NULL."""
    cdef Attempt* a = bucket_of(f, hash)
    cdef uint64_t tag = hash & ~<uint64_t>STATES
    cdef int i
    for i in range(WAYS):
        if a[i].tag & ~<uint64_t>STATES == tag:
            return a + i
    return NULL


cdef inline Attempt* place_for(Flood* f, uint64_t hash) noexcept nogil:
    """A place for a new attempt: a free one, one that is over, or the oldest."""
    cdef Attempt* a = bucket_of(f, hash)
    cdef Attempt* best = a
    cdef int64_t over = f.mark - f.timeout
    cdef int i
    for i in range(WAYS):
        if a[i].tag == 0 or a[i].tag & DONE or a[i].ts < over:
            return a + i
        if a[i].ts < best.ts:
            best = a + i
    f.displaced += 1
    return best


cdef inline bint add_event(Flood* f, uint32_t kind, int64_t tick, const uint64_t* key, uint64_t number,
                           const Target* t) noexcept nogil:
    cdef FloodEvent* e
    if f.n_events == f.event_room:
        e = <FloodEvent*>realloc(f.events, (2 * <size_t>f.event_room + 64) * sizeof(FloodEvent))
        if e == NULL:
            f.failed = True
            return False
        f.events, f.event_room = e, 2 * f.event_room + 64
    e = f.events + f.n_events
    f.n_events += 1
    e.kind, e.tick, e.number = kind, tick, number
    e.lasted = tick - t.fired if kind == CLEAR else 0
    e.attempts = e.completed = e.answered = e.resets = 0
    memcpy(e.key, key, TARGET_WORDS * 8)
    return True


cdef inline void unlist(Flood* f, Target* t) noexcept nogil:
    cdef uint32_t at = t.listed - 1, last
    cdef Target* moved
    f.listed -= 1
    last = f.candidates[f.listed]
    f.candidates[at] = last
    moved = <Target*>lru_value(&f.targets, last)
    moved.listed = at + 1
    t.listed = 0


cdef inline void enlist(Flood* f, Target* t, uint32_t number) noexcept nogil:
    cdef uint32_t* grown
    if f.listed == f.list_room:
        grown = <uint32_t*>realloc(f.candidates, (2 * <size_t>f.list_room + 64) * 4)
        if grown == NULL:
            f.failed = True
            return
        f.candidates, f.list_room = grown, 2 * f.list_room + 64
    f.candidates[f.listed] = number
    f.listed += 1
    t.listed = f.listed


cdef inline void drop_target(void* context, void* value) noexcept nogil:
    """A target is evicted: its alert ends."""
    cdef Flood* f = <Flood*>context
    cdef Target* t = <Target*>value
    cdef const uint64_t* key = <uint64_t*>value - TARGET_WORDS
    if t.firing:
        add_event(f, CLEAR, f.next, key, hash_words(&f.targets.index, key), t)
        t.firing = False
    if t.listed:
        unlist(f, t)


cdef inline Slot* live_slot(const Flood* f, Target* t, int64_t step) noexcept nogil:
    """The slot of a step, emptied if it held an earlier one."""
    cdef Slot* s = slot_of(f, t, step)
    if s.step != step or s.attempts == 0:
        s.step = step
        s.attempts = s.completed = s.answered = s.resets = 0
    return s


cdef inline void count_attempt(Flood* f, const uint64_t* key, int64_t step) noexcept nogil:
    cdef bint fresh
    cdef Target* t = <Target*>lru_insert(&f.targets, key, hash_words(&f.targets.index, key), &fresh)
    cdef Slot* s
    if t == NULL:
        f.failed = True
        return
    s = live_slot(f, t, step)
    s.attempts += 1
    if s.attempts >= f.least and not t.listed:
        enlist(f, t, <uint32_t>(((<uint8_t*>t) - f.targets.entries) // f.targets.stride))


cdef inline void count_state(Flood* f, const uint64_t* key, int64_t step, uint32_t state) noexcept nogil:
    """An attempt of a step got a state."""
    cdef Target* t = <Target*>lru_find(&f.targets, key, hash_words(&f.targets.index, key))
    cdef Slot* s
    if t == NULL:
        return
    s = slot_of(f, t, step)
    if s.step != step or s.attempts == 0:
        return
    if state == DONE:
        s.completed += 1
    elif state == ANSWERED:
        s.answered += 1
    else:
        s.resets += 1


cdef inline void judge(Flood* f, uint32_t number, int64_t tick) noexcept nogil:
    """Evaluate one candidate at ``tick``; it leaves the list when it cannot reach the threshold soon."""
    cdef Target* t = <Target*>lru_value(&f.targets, number)
    cdef const uint64_t* key = <uint64_t*>t - TARGET_WORDS
    cdef uint64_t attempts = 0, completed = 0, answered = 0, resets = 0, half
    cdef int64_t end = step_of(f, tick), p, newest = step_of(f, f.mark)
    cdef bint stays = False, fire, clear
    cdef Slot* s
    cdef FloodEvent* e
    newest = min(newest, end - f.steps + f.slots - 1)       # time may have jumped
    for p in range(end - f.steps, newest + 1):
        s = slot_of(f, t, p)
        if s.step != p:
            continue
        if p < end:
            attempts += s.attempts
            completed += s.completed
            answered += s.answered
            resets += s.resets
        if s.attempts >= f.least and p > end - f.steps:
            stays = True
    half = attempts - completed
    fire = not t.firing and half >= f.threshold and half >= f.ratio * attempts
    clear = t.firing and (half < f.clear * f.threshold or half < f.clear * f.ratio * attempts)
    if fire or clear:
        if add_event(f, FIRE if fire else CLEAR, tick, key, hash_words(&f.targets.index, key), t):
            e = f.events + f.n_events - 1
            e.attempts, e.completed, e.answered, e.resets = attempts, completed, answered, resets
        t.firing = fire
        if fire:
            t.fired = tick
    if not t.firing and not stays:
        unlist(f, t)


cdef inline void tick_to(Flood* f, int64_t mark) noexcept nogil:
    """Evaluate all ticks up to ``mark``."""
    cdef int64_t i
    while f.next <= mark:
        if f.listed == 0:
            f.next = (step_of(f, mark) + 1) * f.step
            return
        i = f.listed
        while i:                            # from the last one: `unlist` fills a hole with the last one
            i -= 1
            judge(f, f.candidates[i], f.next)
        f.next += f.step


cdef inline void advance(Flood* f, int64_t ts) noexcept nogil:
    """Time has come to ``ts``."""
    if not f.started:
        f.started = True
        f.mark = ts
        f.next = (step_of(f, ts - f.delay) + 1) * f.step
    if ts > f.mark:
        f.mark = ts
    if f.next <= f.mark - f.delay:
        tick_to(f, f.mark - f.delay)


cdef inline void attempt(Flood* f, uint64_t hash, int64_t ts, uint64_t* key) noexcept nogil:
    """A SYN.  ``key``: of the target with its port."""
    cdef int64_t step = step_of(f, ts)
    cdef Attempt* a = known(f, hash)
    f.syns += 1
    if a != NULL and -f.timeout <= ts - a.ts <= f.timeout:
        f.repeated += 1
        return
    if (step + 1) * f.step < f.next:
        f.late += 1
        return
    if a == NULL:
        a = place_for(f, hash)
    a.tag, a.ts = hash & ~<uint64_t>STATES, ts
    count_attempt(f, key, step)
    key[2] = key[2] & 0xFF00 | OF_ADDRESS
    count_attempt(f, key, step)


cdef inline bint mark_attempt(Flood* f, uint64_t hash, int64_t ts, uint64_t* key, uint32_t state) noexcept nogil:
    """A segment of an attempt, which gets this state if it is still open.  False: of no attempt."""
    cdef Attempt* a = known(f, hash)
    cdef int64_t step
    if a == NULL or ts < a.ts or ts - a.ts > f.timeout:
        return False
    if a.tag & (state | DONE):
        return True
    a.tag |= state
    step = step_of(f, a.ts)
    if (step + 1) * f.step < f.next:
        f.late += 1
    count_state(f, key, step, state)
    key[2] = key[2] & 0xFF00 | OF_ADDRESS
    count_state(f, key, step, state)
    return True


cdef inline uint64_t pair_hash(const Flood* f, uint64_t client, uint64_t server, uint64_t ports,
                               const uint64_t* client6, const uint64_t* server6) noexcept nogil:
    """Hash of the two ends; ``client6`` and ``server6``: two words each, or NULL.  Never a free tag."""
    cdef uint64_t h = mum(mum((client | server << 32) ^ f.seed[0], f.seed[1]) ^ ports, f.seed[1])
    if client6 != NULL:
        h = mum(mum(h ^ client6[0], f.seed[1]) ^ client6[1], f.seed[1])
        h = mum(mum(h ^ server6[0], f.seed[1]) ^ server6[1], f.seed[1])
    return h | (STATES + 1)
