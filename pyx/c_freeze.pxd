# Freezing the lanes of several logs together, reading their tails, letting go: the paper's Algorithm 1 on one host.
#
# The lanes of all logs are frozen before the first tail is read.  A lane that is claimed meanwhile is frozen too; one
# that is claimed and written between the freeze and the thaw of other hosts makes the thaw say that the cut is void.

from libc.stdint cimport uint32_t, uint64_t
from c_atomic cimport (boot_now, load_acquire, load_acquire32, swap, fence, tail_rows, tail_freezes, tail_broken,
                       tail_freeze, tail_thaw, MAX_FREEZE_NS)
from c_layout cimport Line

cdef struct Taken:                  # a lane that we froze
    uint64_t old                    # the deadline that stood before ours, 0 when no freeze was in force
    uint64_t rows                   # its tail
    uint64_t first                  # rows that retention has removed from its beginning
    uint32_t broken                 # freezes broken before ours

cdef struct Held:                   # a log
    Line* line
    const uint32_t* claimed
    Taken* taken                    # room for `lanes`
    int lanes
    int n                           # lanes frozen: 0 .. n-1

cdef inline int held_claimed(const Held* h) noexcept nogil:
    cdef uint32_t n = load_acquire32(h.claimed)
    return <int>n if n <= <uint32_t>h.lanes else h.lanes

cdef inline bint held_thaw(Held* h, uint64_t deadline) noexcept nogil:
    """Lower the counts again; False when a freeze was broken, or a lane came to be and has rows."""
    cdef uint64_t mine
    cdef bint kept = True
    cdef int i
    for i in range(h.n, held_claimed(h)):
        if tail_rows(load_acquire(&h.line[i].tail)):
            kept = False
    for i in range(h.n):
        if not tail_thaw(&h.line[i].tail, h.taken[i].broken):
            kept = False
        if h.taken[i].old:                              # a freeze left by a dead coordinator keeps its own end
            mine = deadline
            swap(&h.line[i].deadline, &mine, h.taken[i].old)
    h.n = 0
    return kept

cdef inline bint lane_freeze(Line* line, Taken* t, uint64_t deadline) noexcept nogil:
    """False when 255 freezes are in force."""
    cdef uint64_t old = load_acquire(&line.deadline), before = 0
    while (old < deadline or old > deadline + MAX_FREEZE_NS) and not swap(&line.deadline, &old, deadline):
        pass
    if not tail_freeze(&line.tail, &before):
        return False
    t.broken = tail_broken(before)
    t.old = old if tail_freezes(before) else 0
    return True

cdef inline bint freeze_all(Held* held, int n, uint64_t deadline) noexcept nogil:
    """Freeze all lanes of `n` logs, then read their tails.  False: 255 freezes are in force; none is ours then."""
    cdef bint more = True
    cdef int i, k
    while more:                                         # until a pass over all logs finds no lane that is new
        more = False
        for i in range(n):
            while held[i].n < held_claimed(&held[i]):
                more = True
                if not lane_freeze(&held[i].line[held[i].n], &held[i].taken[held[i].n], deadline):
                    for k in range(n):
                        held_thaw(&held[k], deadline)
                    return False
                held[i].n += 1
    fence()
    for i in range(n):
        for k in range(held[i].n):
            held[i].taken[k].rows = tail_rows(load_acquire(&held[i].line[k].tail))
            held[i].taken[k].first = load_acquire(&held[i].line[k].first)
    return True
