# Freeze the lanes of several logs together, read their tails, thaw: the paper's Algorithm 1 on one host.
#
# The lanes of all logs are frozen before the first tail is read.  A lane that is claimed meanwhile is frozen too.  A
# lane that is claimed and written between the freeze and the thaw of other hosts makes the cut invalid: see the thaw.

from libc.stdint cimport uint32_t, uint64_t
from c_atomic cimport (boot_now, load_acquire, load_acquire32, swap, fence, tail_rows, tail_freezes, tail_broken,
                       tail_freeze, tail_thaw, MAX_FREEZE_NS)
from c_layout cimport Line

cdef struct Taken:                  # a frozen lane
    uint64_t old                    # the previous deadline, 0 if no freeze was in force
    uint64_t rows                   # its tail
    uint64_t first                  # rows that retention has removed from its start
    uint32_t broken                 # number of broken freezes before this one

cdef struct Held:                   # a log
    Line* line
    const uint32_t* claimed
    Taken* taken                    # array of `lanes`
    int lanes
    int n                           # lanes frozen: 0 .. n-1

cdef inline int held_claimed(const Held* h) noexcept nogil:
    cdef uint32_t n = load_acquire32(h.claimed)
    return <int>n if n <= <uint32_t>h.lanes else h.lanes

cdef inline bint held_thaw(Held* h, uint64_t deadline) noexcept nogil:
    """Decrement the freeze counts; False if a freeze was broken, or a new lane has rows."""
    cdef uint64_t mine
    cdef bint kept = True
    cdef int i
    for i in range(h.n, held_claimed(h)):
        if tail_rows(load_acquire(&h.line[i].tail)):
            kept = False
    for i in range(h.n):
        if not tail_thaw(&h.line[i].tail, h.taken[i].broken):
            kept = False
        if h.taken[i].old:                              # keep the deadline of a freeze left by a dead coordinator
            mine = deadline
            swap(&h.line[i].deadline, &mine, h.taken[i].old)
    h.n = 0
    return kept

cdef inline bint lane_freeze(Line* line, Taken* t, uint64_t deadline) noexcept nogil:
    """False if 255 freezes are in force."""
    cdef uint64_t old = load_acquire(&line.deadline), before = 0
    while (old < deadline or old > deadline + MAX_FREEZE_NS) and not swap(&line.deadline, &old, deadline):
        pass
    if not tail_freeze(&line.tail, &before):
        return False
    t.broken = tail_broken(before)
    t.old = old if tail_freezes(before) else 0
    return True

cdef inline bint freeze_all(Held* held, int n, uint64_t deadline) noexcept nogil:
    """Freeze all lanes of `n` logs, then read their tails.  False: 255 freezes are in force, and none was added."""
    cdef bint more = True
    cdef int i, k
    while more:                                         # until a pass over all logs finds no new lane
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
