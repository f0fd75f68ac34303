# Steps of time: the number of the step of each time, and the time at which a step begins.
#
# A step is a length in ns (days and longer: of local time), weeks from Monday on, months, or a length of up to an hour
# on local clocks.  The last kind keeps both hours of a clock that goes back apart, so its numbers are those of the
# minutes (UTC) in which the steps begin.

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint32_t, uint64_t
from c_civil cimport date_of, days_of
from c_source cimport HOURS, MONTHS, Source, bucket_start, floor_div

cdef enum:
    MIN_MONTH = -3508       # since 1970-01: the month of the first ns, 1677-09
    MAX_MONTH = 3507        # of the last ns, 2262-04

cdef extern from *:
    """
    #define STEP_MINUTE INT64_C(60000000000)    /* ns; an enum of Cython has 32 bits */
    #define STEP_QUARTER (15 * STEP_MINUTE)
    #define STEP_DAY (96 * STEP_QUARTER)
    #define STEP_WEEK (7 * STEP_DAY)
    """
    const int64_t MINUTE "STEP_MINUTE"
    const int64_t QUARTER "STEP_QUARTER"
    const int64_t DAY "STEP_DAY"
    const int64_t WEEK "STEP_WEEK"

cdef inline uint32_t change_before(const Source* s, int64_t t) noexcept nogil:
    """The number of the last change at or before the time t."""
    cdef uint32_t low = 0, high = s.changes, middle
    while high - low > 1:
        middle = (low + high) // 2
        if s.change[middle] <= t:
            low = middle
        else:
            high = middle
    return low

cdef inline int64_t moved(int64_t t, int64_t by) noexcept nogil:
    """t + by; the nearest number where that overflows."""
    if by > 0:
        return t + by if t <= INT64_MAX - by else INT64_MAX
    return t + by if t >= INT64_MIN - by else INT64_MIN

cdef inline int64_t hour_start(const Source* s, uint32_t k, int64_t t) noexcept nogil:
    """HOURS: when the step of the time t begins, UTC; k: the change before t."""
    cdef int64_t local = moved(t, s.offset[k]), start = moved(t, floor_div(local, s.clock) * s.clock - local)
    return max(start, s.change[k])

cdef inline void local_times(const Source* s, uint32_t n, uint64_t* v) noexcept nogil:
    """From UTC to local time; of HOURS, to the start of their step."""
    cdef uint32_t i, k = 0
    cdef int64_t t, low = 0, high = 0
    for i in range(n):
        t = <int64_t>v[i]
        if not low <= t < high:
            k = change_before(s, t)
            low, high = s.change[k], s.change[k + 1] if k + 1 < s.changes else INT64_MAX
        v[i] = <uint64_t>(hour_start(s, k, t) if s.kinds == HOURS else moved(t, s.offset[k]))

cdef inline int64_t utc_of_local(const Source* s, int64_t local) noexcept nogil:
    """The first moment (UTC) at which local clocks show ``local`` or later."""
    cdef uint32_t k
    cdef int64_t t
    if s.changes == 0 or s.kinds == HOURS or local == INT64_MIN:
        return local
    k = change_before(s, moved(local, -<int64_t>172800000000000))
    while True:
        t = max(s.change[k], moved(local, -s.offset[k]))
        if k + 1 == s.changes or t < s.change[k + 1]:
            return t
        k += 1

cdef inline uint64_t step_number(const Source* s, int64_t t) noexcept nogil:
    """The number of the step of a time from `local_times`; the first one is 0."""
    cdef uint32_t month, day
    cdef int64_t year
    if s.kinds == MONTHS:
        year = date_of(floor_div(t, DAY), &month, &day)
        return <uint64_t>(floor_div((year - 1970) * 12 + month - 1, s.step) - floor_div(MIN_MONTH, s.step))
    return <uint64_t>floor_div(moved(t, -s.origin), s.step) - <uint64_t>floor_div(INT64_MIN, s.step)

cdef inline int64_t step_start(const Source* s, uint64_t number) noexcept nogil:
    """When a step begins, in the time of `local_times`; INT64_MIN if that is earlier."""
    cdef int64_t q, year
    if s.kinds == MONTHS:
        q = (<int64_t>number + floor_div(MIN_MONTH, s.step)) * s.step
        if q <= MIN_MONTH:
            return INT64_MIN
        year = floor_div(q, 12)
        return days_of(year + 1970, <uint32_t>(q - year * 12) + 1, 1) * DAY
    q = bucket_start(<int64_t>(number + <uint64_t>floor_div(INT64_MIN, s.step)), s.step)
    return q if q == INT64_MIN else moved(q, s.origin)

cdef inline uint64_t step_span(const Source* s, uint64_t number, int64_t low) noexcept nogil:
    """The ns from ``low``, the start of a step, to the start of the next one, or to the last ns."""
    cdef int64_t q
    if s.kinds == MONTHS:
        q = (<int64_t>number + 1 + floor_div(MIN_MONTH, s.step)) * s.step
        return <uint64_t>(step_start(s, number + 1) if q <= MAX_MONTH else INT64_MAX) - <uint64_t>low
    if low == INT64_MIN:                                        # the step starts at or before INT64_MIN
        return <uint64_t>step_start(s, number + 1) - <uint64_t>low
    return min(<uint64_t>s.step, <uint64_t>INT64_MAX - <uint64_t>low)

cdef inline void step_numbers(const Source* s, uint32_t n, uint64_t* v) noexcept nogil:
    # Times are mostly in order: reuse the bounds of the last step to avoid a division.
    cdef int64_t step = s.step, least = floor_div(INT64_MIN, step), q, low
    cdef uint64_t start = 0, span = 0, number = 0
    cdef uint32_t i
    if s.kinds == MONTHS or s.origin:
        for i in range(n):
            if v[i] - start >= span:
                number = step_number(s, <int64_t>v[i])
                start = <uint64_t>step_start(s, number)
                span = step_span(s, number, <int64_t>start)
            v[i] = number
        return
    for i in range(n):
        if v[i] - start >= span:
            q = floor_div(<int64_t>v[i], step)
            low = bucket_start(q, step)
            span = <uint64_t>step
            if q == least:                                          # the bucket starts at or before INT64_MIN
                span = <uint64_t>(bucket_start(q + 1, step)) - <uint64_t>low
            elif low > 0 and <uint64_t>(INT64_MAX - low) < span:
                span = <uint64_t>(INT64_MAX - low) + 1
            start, number = <uint64_t>low, <uint64_t>q - <uint64_t>least
        v[i] = number
