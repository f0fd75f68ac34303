# A flow that is being traced, and how long answers take.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from c_traceroute_packets cimport Tuple

cdef enum:
    REACHES = 1 << 14           # destinations

cdef struct Trace:
    Tuple flow
    uint64_t number             # the caller's
    uint64_t place              # hash of its tuple
    uint64_t goal               # hash of its destination
    int64_t since
    int64_t asked_at            # when the last probes went out
    int64_t hint                # ns that answers may take as far as the flow knows
    int64_t sent_at[16]
    uint32_t secret             # 28 bits
    uint32_t tor
    uint32_t node[16]
    uint8_t address[256]
    uint16_t probed              # bit h: the probe of hop h is out
    uint16_t again              # of them sent more than once
    uint16_t answered
    uint8_t state
    uint8_t round
    uint8_t top                 # farthest hop that answered
    uint8_t last                # farthest hop that was probed
    uint8_t stop                # nothing is beyond this hop; 0: not known
    uint8_t end
    int32_t error               # errno of a send

cdef struct Guess:              # how long answers of a hop take
    int64_t mean
    int64_t deviation
    int64_t samples


cdef inline void learn(Guess* g, int64_t t) noexcept nogil:
    """Take an answer's time into account, as TCP does (RFC 6298)."""
    cdef int64_t off
    if g.samples == 0:
        g.mean, g.deviation = t, t // 2
    else:
        off = t - g.mean
        g.mean += off // 8
        g.deviation += ((off if off > 0 else -off) - g.deviation) // 4
    g.samples += 1


cdef inline uint32_t repeats(const Trace* f, uint32_t hop, uint32_t most) noexcept nogil:
    """The farther of two hops with the same node; 0 when this hop's node occurs once."""
    cdef uint32_t k
    for k in range(1, most + 1):
        if k != hop and f.answered >> k & 1 and f.node[k - 1] == f.node[hop - 1]:
            return max(k, hop)
    return 0


# -- how far destinations are

cdef struct Reach:
    uint64_t* key               # hash of a destination, 0: free
    uint8_t* hop                # the farthest that answered; from REACHES on: whether it was probed twice beyond
    uint32_t count


cdef inline uint64_t _reach_place(const Reach* r, uint64_t goal) noexcept nogil:
    cdef uint64_t at = goal & (REACHES - 1)
    while r.key[at] and r.key[at] != goal:
        at = (at + 1) & (REACHES - 1)
    return at


cdef inline uint32_t reach_of(const Reach* r, uint64_t goal) noexcept nogil:
    return r.hop[_reach_place(r, goal)]


cdef inline bint reach_sure(const Reach* r, uint64_t goal) noexcept nogil:
    return r.hop[REACHES + _reach_place(r, goal)]


cdef inline void reach_note(Reach* r, uint64_t goal, uint32_t hop) noexcept nogil:
    """A hop has answered on the way there."""
    cdef uint64_t at = _reach_place(r, goal)
    if r.key[at] == 0:
        if r.count > REACHES // 4 * 3:
            return
        r.key[at] = goal
        r.count += 1
    if hop > r.hop[at]:
        r.hop[at], r.hop[REACHES + at] = <uint8_t>hop, 0


cdef inline void reach_confirm(Reach* r, uint64_t goal, uint32_t hop) noexcept nogil:
    """Hops beyond this one were probed twice without an answer."""
    cdef uint64_t at = _reach_place(r, goal)
    if r.key[at]:
        r.hop[REACHES + at] = hop >= r.hop[at]


cdef inline void reach_forget(Reach* r) noexcept nogil:
    memset(r.key, 0, REACHES * 8)
    memset(r.hop, 0, REACHES * 2)
    r.count = 0
