# The time of a flow table: the latest time of the packets.  A jump is believed when the next packet is there as well,
# so one wrong clock ends no flow.

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    JUMP_NS = 10000000000       # two packets that are closer are of one clock

cdef extern from *:
    const int64_t NEVER "INT64_MIN"

cdef struct FlowClock:
    int64_t now                 # NEVER before the first packet; a silent input moves it on as well
    int64_t latest              # of the packets
    int64_t other               # time of the packet before, if it was far from `now`; else NEVER
    uint64_t late               # packets that were earlier than one before


cdef inline bint apart(int64_t a, int64_t b, int64_t most) noexcept nogil:
    """Whether two times are further from each other than ``most`` ns."""
    return <uint64_t>b - <uint64_t>a > <uint64_t>most if b > a else <uint64_t>a - <uint64_t>b > <uint64_t>most


cdef inline void clock_see(FlowClock* c, int64_t ts) noexcept nogil:
    """A packet of this time."""
    if c.now == NEVER:
        c.now = c.latest = ts
        return
    c.late += ts < c.latest
    if apart(c.now, ts, JUMP_NS):
        if c.other != NEVER and not apart(c.other, ts, JUMP_NS):
            c.now = c.latest = ts
            c.other = NEVER
        else:
            c.other = ts
        return
    c.other = NEVER
    if ts > c.latest:
        c.latest = ts
    if ts > c.now:
        c.now = ts
