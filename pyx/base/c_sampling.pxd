# Algorithm 1 of DETER in integers: confluo_tools/replay/sampling.py explains it.  32 bytes of state for a flow.

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from *:
    """
    #define CFL_UNBOUNDED (1LL << 62)
    #define CFL_MAX_SPAN (1ULL << 61)
    static inline int below(uint64_t a, int64_t b, int64_t n) { return a < (unsigned __int128)(uint64_t)b * n; }
    static inline int above(uint64_t a, int64_t b, int64_t n) { return a > (unsigned __int128)(uint64_t)b * n; }
    """
    bint below(uint64_t a, int64_t b, int64_t n) noexcept nogil         # a < b * n, b and n not negative
    bint above(uint64_t a, int64_t b, int64_t n) noexcept nogil
    const int64_t UNBOUNDED "CFL_UNBOUNDED"
    const uint64_t MAX_SPAN "CFL_MAX_SPAN"

cdef enum:
    MAX_COUNT = 0xFFFFFFFF

cdef struct RateSampler:            # all zero but `high`: no packet yet
    int64_t time                    # of the sampled packet
    int64_t low                     # steps that fit all packets since
    int64_t high
    uint32_t count                  # packets of the run so far

cdef struct TimeRun:
    int64_t time
    int64_t step
    uint32_t count

cdef inline void sampler_begin(RateSampler* s) noexcept nogil:
    s.time = s.low = 0
    s.high = UNBOUNDED
    s.count = 0

cdef inline bint sampler_flush(RateSampler* s, TimeRun* done) noexcept nogil:
    """The run so far into ``done``, if there is one."""
    if s.count == 0:
        return False
    done.time, done.count = s.time, s.count
    done.step = s.low + (s.high - s.low) // 2 if s.count > 1 else 0
    sampler_begin(s)
    return True

cdef inline bint sampler_offer(RateSampler* s, int64_t time, int64_t threshold, TimeRun* done) noexcept nogil:
    """Take the time of the next packet.  True: it begins a run, and the run before it is in ``done``.

    ``threshold`` is from 0 to 2^62 - 1.
    """
    cdef int64_t low, high, n = s.count
    cdef uint64_t apart, late
    cdef bint ended
    if n and n < MAX_COUNT:
        low, high = s.low, s.high
        if time >= s.time:
            apart = <uint64_t>time - <uint64_t>s.time
            late = apart - <uint64_t>threshold if apart > <uint64_t>threshold else 0
            if apart < MAX_SPAN:
                # A product says whether a bound moves: most packets need no division.
                if above(late, low, n):
                    low = <int64_t>(late // n + (late % n != 0))
                if below(apart + threshold, high, n):
                    high = <int64_t>((apart + threshold) // n)
            else:
                high = -1
        else:
            apart = <uint64_t>s.time - <uint64_t>time
            high = min(high, <int64_t>((threshold - apart) // n)) if apart <= <uint64_t>threshold else -1
        if low <= high:
            s.low, s.high, s.count = low, high, s.count + 1
            return False
    ended = sampler_flush(s, done)
    s.time, s.count = time, 1
    return ended
