# A simulated flow through a Clos, and its TCP: a handshake, packets, acknowledgements that matter, a traceroute.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_random cimport ONE63, Stream, draw, mul63, mulhi, squares, survivors, POWERS

cdef enum:
    MAX_LINKS_OF = 6
    SYNS = 6                            # of a handshake, before it is given up: 1 + 1 + 1 + 1 + 1 + 2 s
    TIMEOUTS = 6                        # losses of a packet in a row, before its flow has stalled
    LAST_ACKS = 3                       # acknowledgements after the handshake that are not made up for by later ones
    TRIES = 3                           # probes of a hop
    UNCONNECTED = 32                    # notes of schema/path.yaml
    STALLED = 64

cdef struct Flow:
    uint32_t src, dst, src_tor, dst_tor, t1, t2, dst_t1, packets       # T1s counted over all pods
    int links                           # of the path
    uint32_t link[6]
    uint32_t lost[6]
    uint32_t total                      # lost
    int culprit                         # number of the link in the path, -1: none
    uint8_t fate                        # UNCONNECTED, STALLED or 0
    uint32_t back[6]                    # the links of the way back, as many
    uint32_t lost_back[6]
    uint64_t rate[6]                    # of the links, for this flow
    uint64_t rate_back[6]


cdef inline int crosses(Stream* r, const uint64_t* rate, int links) noexcept nogil:
    """The link that drops a packet, -1 when it crosses all of them."""
    cdef int i
    for i in range(links):
        if rate[i] and draw(r) >> 1 < rate[i]:
            return i
    return -1


cdef inline int place(Stream* r, const uint64_t* rate, int links, uint64_t some) noexcept nogil:
    """The link that dropped a packet which was lost, with the chance ``some``, on one of them."""
    cdef uint64_t v = mulhi(draw(r), some), keep = ONE63, hit
    cdef int i
    for i in range(links - 1):          # link i drops with the chance that the packet came so far, times its rate
        hit = keep - mul63(keep, ONE63 - rate[i])
        if v < hit:
            return i
        v -= hit
        keep -= hit
    return links - 1


cdef inline bint answered(Stream* r, Flow* f) noexcept nogil:
    """Send a packet and its acknowledgement; what is lost is counted."""
    cdef int at = crosses(r, f.rate, f.links)
    if at >= 0:
        f.lost[at] += 1
        f.total += 1
        return False
    at = crosses(r, f.rate_back, f.links)
    if at >= 0:
        f.lost_back[at] += 1
        f.total += 1
        return False
    return True


cdef inline void live(Stream* r, Flow* f) noexcept nogil:
    """The flow's life: its handshake, its packets, each sent until it arrives, and its last acknowledgements.

    Sets `fate` when the handshake does not finish, or a packet is lost too many times in a row; ``packets`` is then
    what was sent until its death.
    """
    cdef uint64_t power[POWERS]
    cdef uint64_t keep = ONE63, left, went
    cdef uint32_t sent = 0
    cdef int i, at, bits, times, _try
    for _try in range(SYNS):
        if answered(r, f):
            break
    else:
        f.fate, f.packets = UNCONNECTED, f.total
        return
    for i in range(f.links):
        keep = mul63(keep, ONE63 - f.rate[i])
    left = f.packets
    bits = squares(power, keep, left)
    while left:
        went = survivors(power, bits, left, draw(r) >> 1)
        if went >= left:
            break
        left -= went + 1
        sent += <uint32_t>went + 1
        times = 0
        at = place(r, f.rate, f.links, ONE63 - keep)
        while at >= 0:
            f.lost[at] += 1
            f.total += 1
            times += 1
            at = crosses(r, f.rate, f.links) if times < TIMEOUTS else -1
        if times == TIMEOUTS:
            f.fate, f.packets = STALLED, sent + f.total
            return
    for _try in range(LAST_ACKS):
        at = crosses(r, f.rate_back, f.links)
        if at >= 0:
            f.lost_back[at] += 1
            f.total += 1
    f.packets += f.total


cdef inline int farthest(Stream* r, const Flow* f, uint32_t* path, int hops) noexcept nogil:
    """Trace the path: switches that no probe reached become 0; how many hops are left after the last answer."""
    cdef int i, _try, last = 0
    for i in range(hops):
        for _try in range(TRIES):
            if crosses(r, f.rate, i + 1) < 0:
                last = i + 1
                break
        else:
            path[i] = 0
    return last
