# What the time of each message went to (the paper's tables 2 and 3).

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.math cimport ceil
from libc.stdlib cimport calloc, free, malloc, qsort
from c_bits cimport ctz64, prefetch
from c_explain_state cimport (
    E_GAP, E_RETRANSMISSION, ITS_DURATION, LABELS, L_ACK_LOSS, L_CWND_LIMITED, L_DELACK_WINDOW_SHRINK, L_DELAYED_ACK,
    L_FEW_DUPACKS, L_LOST_RETRANSMISSION, L_NONE, L_ROUND_TRIP, L_SENDING, L_SPURIOUS, L_TAIL_LOSS, OTHER_TIME, FlowRow,
    MessageRow, Result, Row, elapsed, flow_at, message_at, rare_at, row_at)

cdef struct Tally:              # of one cause
    uint64_t messages           # with it as their main cause
    uint64_t events
    uint64_t row                # with the longest wait, plus 1; 0: none
    int64_t longest             # this wait, ns
    int64_t time                # ns

cdef struct Slow:               # a message, by its place in the order
    double slowdown
    uint64_t place

cdef enum:
    AHEAD = 16                  # rows prefetched
    MESSAGES_AHEAD = 8          # between the steps in which rows of messages are prefetched


cdef inline int cause_of(const Row* row) noexcept nogil:
    """The label, or the reason behind it where that says more."""
    if row.why in (L_SPURIOUS, L_DELAYED_ACK, L_DELACK_WINDOW_SHRINK, L_ACK_LOSS, L_TAIL_LOSS, L_FEW_DUPACKS,
                   L_LOST_RETRANSMISSION):
        return row.why
    return row.label


cdef inline int64_t counted_of(const Result* x, const Row* row) noexcept nogil:
    """What the time of its message has of its duration."""
    if row.counts == ITS_DURATION:
        return row.duration
    return rare_at(x, row).counted if row.counts == OTHER_TIME else 0


cdef inline void take_ideal(int64_t rest, int64_t* times, uint32_t used) noexcept nogil:
    """Take the ideal time out of the times: the rest, which adds up to `above`, is what went wrong.

    First out of what each transfer has, sending and round trips; then out of the longest waits, which began as such.
    """
    cdef int64_t part
    cdef int i, k
    for i in range(LABELS + 3):
        k = L_SENDING if i == 0 else L_ROUND_TRIP if i == 1 else L_CWND_LIMITED if i == 2 else longest(times, used)
        if not used >> k & 1:
            continue
        part = min(rest, times[k])
        times[k] -= part
        rest -= part
        if rest <= 0:
            return


cdef inline int longest(const int64_t* times, uint32_t used) noexcept nogil:
    """The label with most of the time, the first one of several; ``used``: a bit for each that may have any."""
    cdef int i, most = ctz64(used)
    while used:
        i = ctz64(used)
        used &= used - 1
        if times[i] > times[most]:
            most = i
    return most


cdef inline uint32_t times_of(const Result* x, const MessageRow* m, int64_t ideal, int64_t* times) noexcept nogil:
    """What the time of a message above the ideal went to, ns by cause (LABELS of them): their sum is `above`.

    Returns a bit for each cause that has any; the other times are not set.
    """
    cdef uint32_t i = m.rows, used = 1 << <int>L_NONE
    cdef const Row* row
    cdef int64_t last
    times[<int>L_NONE] = 0
    while i:
        row = row_at(x, i - 1)
        used = add_time(times, used, cause_of(row), counted_of(x, row))
        i = row.next
    used = add_time(times, used, L_SENDING, m.sending)
    if m.end:
        last = elapsed(m.counted, m.end)
        used = add_time(times, used, L_ROUND_TRIP, last - min(m.late, last))
        used = add_time(times, used, m.late_label, min(m.late, last))
    take_ideal(ideal, times, used)
    return used


cdef inline uint32_t add_time(int64_t* times, uint32_t used, int cause, int64_t time) noexcept nogil:
    times[cause] = times[cause] + time if used >> cause & 1 else time
    return used | <uint32_t>1 << cause


cdef inline int64_t took_by(const MessageRow* m) noexcept nogil:
    """Until its last byte was acknowledged, ns; 0: it was not."""
    return elapsed(m.start, m.end) if m.end else 0


cdef inline int64_t ideal_of(const Result* x, const MessageRow* m) noexcept nogil:
    """The time it needs at least (the paper's tables 2 and 3): one round trip, and its bytes at the best rate."""
    cdef const FlowRow* flow = flow_at(x, m.flow)
    cdef int64_t ideal = flow.min_rtt[m.side]
    if not m.end:
        return 0
    if flow.rate[m.side]:
        ideal = max(ideal, <int64_t>(<double>m.bytes * 1e9 / <double>flow.rate[m.side]))
    return max(min(ideal, took_by(m)), <int64_t>0)


cdef inline double slowdown_of(const Result* x, const MessageRow* m) noexcept nogil:
    cdef int64_t ideal = ideal_of(x, m)
    return <double>took_by(m) / <double>ideal if ideal else 0


cdef inline int64_t above_ideal(const MessageRow* m, int64_t ideal) noexcept nogil:
    """Its time above the ideal one, ns; of a message that was not acknowledged, until its last packet."""
    return elapsed(m.start, m.end if m.end else m.counted) - ideal


cdef inline void fetch_rows(const Result* x, const MessageRow* m, int skipped) noexcept nogil:
    """Prefetch the row of a message before the last ones, ``skipped`` of them, which were prefetched earlier."""
    cdef uint32_t row = m.rows
    while row and skipped:
        row = row_at(x, row - 1).next
        skipped -= 1
    if row:
        prefetch(row_at(x, row - 1))


cdef inline void judge_all(const Result* x) noexcept nogil:
    """Find the message of each row, and the main cause of each message."""
    cdef uint64_t i, count = x.messages.made.count
    cdef uint32_t row
    cdef MessageRow* m
    cdef int64_t times[LABELS]
    for i in range(count):
        fetch_rows(x, message_at(x, min(i + 3 * MESSAGES_AHEAD, count - 1)), 0)
        fetch_rows(x, message_at(x, min(i + 2 * MESSAGES_AHEAD, count - 1)), 1)
        fetch_rows(x, message_at(x, min(i + MESSAGES_AHEAD, count - 1)), 2)
        m = message_at(x, i)
        row = m.rows
        while row:
            row_at(x, row - 1).place = <uint32_t>(i + 1)
            row = row_at(x, row - 1).next
        m.main = <uint8_t>longest(times, times_of(x, m, ideal_of(x, m), times))


cdef inline int by_slowdown(const void* a, const void* b) noexcept nogil:
    """For qsort: the slowest first, equal ones in their order."""
    cdef const Slow* one = <const Slow*>a
    cdef const Slow* other = <const Slow*>b
    if one.slowdown != other.slowdown:
        return -1 if one.slowdown > other.slowdown else 1
    return -1 if one.place < other.place else 1


cdef inline bint keep_slowest(Result* x, double share) noexcept nogil:
    """Keep this share of the messages, by slowdown, at least one, and their rows; False: no memory."""
    cdef uint64_t count = x.messages.ordered, i, n = 0, kept = 0
    cdef Slow* slow = <Slow*>malloc((count + 1) * sizeof(Slow))
    cdef uint8_t* chosen = <uint8_t*>calloc(x.messages.made.count + 1, 1)
    cdef uint64_t place
    if slow == NULL or chosen == NULL:
        free(slow)
        free(chosen)
        return False
    for i in range(count):
        slow[n].slowdown, slow[n].place = slowdown_of(x, message_at(x, x.messages.order[i])), i
        n += slow[n].slowdown > 0
    qsort(slow, n, sizeof(Slow), by_slowdown)
    n = min(n, max(<uint64_t>ceil(<double>n * share), <uint64_t>1))
    for i in range(n):
        chosen[x.messages.order[slow[i].place]] = True
    free(slow)
    for i in range(count):
        if chosen[x.messages.order[i]]:
            x.messages.order[kept] = x.messages.order[i]
            kept += 1
    x.messages.ordered, kept = kept, 0
    for i in range(x.rows.ordered):
        place = row_at(x, x.rows.order[i]).place
        if place and chosen[place - 1]:
            x.rows.order[kept] = x.rows.order[i]
            kept += 1
    x.rows.ordered = kept
    free(chosen)
    return True


cdef inline bint tally(const Result* x, const int64_t* limits, int classes, Tally* out) noexcept nogil:
    """Sums by size class of the messages and cause: out[class * LABELS + cause].  False: no memory.

    Class 0 are rows of no message: retransmissions of the handshake; or everything, if it is the only one.
    ``limits``: the largest size of the others, in ascending order; the last one has none.
    """
    # In the order in which they were made, which is that of their memory.
    cdef uint32_t* rank = <uint32_t*>calloc(x.rows.made.count + 1, sizeof(uint32_t))    # of a row, plus 1; 0: not kept
    cdef bint kept = x.messages.ordered == x.messages.made.count
    cdef uint64_t i
    cdef int k
    cdef const MessageRow* m
    cdef const Row* row
    cdef Tally* one
    cdef uint32_t used
    cdef int64_t times[LABELS]
    if rank == NULL:
        return False
    for i in range(x.messages.ordered):
        m = message_at(x, i if kept else x.messages.order[i])
        one = out + size_class(m, limits, classes) * LABELS
        one[m.main].messages += 1
        used = times_of(x, m, ideal_of(x, m), times)
        for k in range(1, LABELS):
            if used >> k & 1:
                one[k].time += times[k]
    for i in range(x.rows.ordered):
        rank[x.rows.order[i]] = <uint32_t>(i + 1)
    for i in range(x.rows.made.count):
        row = row_at(x, i)
        if not rank[i]:
            continue
        if row.place:
            k = size_class(message_at(x, row.place - 1), limits, classes)
        elif row.event == E_RETRANSMISSION:
            k = 0
        else:
            continue                    # between two messages
        one = out + k * LABELS + cause_of(row)
        one.events += 1
        if not row.place:
            one.time += row.duration
        if row.event in (E_GAP, E_RETRANSMISSION) and (not one.row or row.duration > one.longest or (
                row.duration == one.longest and rank[i] < one.row)):
            one.row, one.longest = rank[i], row.duration
    free(rank)
    return True


cdef inline int size_class(const MessageRow* m, const int64_t* limits, int classes) noexcept nogil:
    cdef int k = 1
    if classes == 1:
        return 0
    while k < classes - 1 and <int64_t>m.bytes > limits[k - 1]:
        k += 1
    return k
