# What the time of each message went to (the paper's tables 2 and 3).

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.math cimport ceil
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memset
from c_bits cimport prefetch
from c_explain_state cimport (
    E_GAP, E_RETRANSMISSION, LABELS, L_ACK_LOSS, L_CWND_LIMITED, L_DELACK_WINDOW_SHRINK, L_DELAYED_ACK, L_FEW_DUPACKS,
    L_LOST_RETRANSMISSION, L_ROUND_TRIP, L_SENDING, L_SPURIOUS, L_TAIL_LOSS, FlowRow, MessageRow, Result, Row, elapsed,
    flow_at, message_at, row_at)

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


cdef inline int cause_of(const Row* row) noexcept nogil:
    """The label, or the reason behind it where that says more."""
    if row.why in (L_SPURIOUS, L_DELAYED_ACK, L_DELACK_WINDOW_SHRINK, L_ACK_LOSS, L_TAIL_LOSS, L_FEW_DUPACKS,
                   L_LOST_RETRANSMISSION):
        return row.why
    return row.label


cdef inline void take_ideal(int64_t rest, int64_t* times) noexcept nogil:
    """Take the ideal time out of the times: the rest, which adds up to `above`, is what went wrong.

    First out of what each transfer has, sending and round trips; then out of the longest waits, which began as such.
    """
    cdef int64_t part
    cdef int i, k
    for i in range(LABELS + 3):
        k = L_SENDING if i == 0 else L_ROUND_TRIP if i == 1 else L_CWND_LIMITED if i == 2 else longest(times)
        part = min(rest, times[k])
        times[k] -= part
        rest -= part
        if rest <= 0:
            return


cdef inline int longest(const int64_t* times) noexcept nogil:
    cdef int i, most = 0
    for i in range(1, LABELS):
        if times[i] > times[most]:
            most = i
    return most


cdef inline void times_of(const Result* x, const MessageRow* m, int64_t* times) noexcept nogil:
    """What the time of a message above the ideal went to, ns by cause (LABELS of them): their sum is `above`."""
    cdef uint32_t i = m.m.rows
    cdef const Row* row
    cdef int64_t last
    memset(times, 0, LABELS * sizeof(int64_t))
    while i:
        row = row_at(x, i - 1)
        times[row.cause] += row.counted
        i = row.next
    times[<int>L_SENDING] = m.m.sending
    if m.m.end:
        last = elapsed(m.m.counted, m.m.end)
        times[<int>L_ROUND_TRIP] = last - min(m.m.late, last)
        times[m.m.late_label] += min(m.m.late, last)
    take_ideal(m.ideal, times)


cdef inline void judge(const Result* x, MessageRow* row) noexcept nogil:
    """Compare the time of a message with the ideal one (the paper's tables 2 and 3)."""
    cdef const FlowRow* flow = flow_at(x, row.flow)
    cdef int64_t times[LABELS]
    if row.m.end:
        row.took = elapsed(row.m.start, row.m.end)
        row.ideal = flow.min_rtt[row.side]
        if flow.rate[row.side]:
            row.ideal = max(row.ideal, <int64_t>(<double>row.m.bytes * 1e9 / <double>flow.rate[row.side]))
        row.ideal = max(min(row.ideal, row.took), <int64_t>0)
        row.slowdown = <double>row.took / <double>row.ideal if row.ideal else 0
    row.above = elapsed(row.m.start, row.m.end if row.m.end else row.m.counted) - row.ideal
    times_of(x, row, times)
    row.main = <uint8_t>longest(times)


cdef inline void judge_all(const Result* x) noexcept nogil:
    """Causes of all rows, and from them those of all messages."""
    cdef uint64_t i
    cdef uint32_t row
    for i in range(x.rows.made.count):
        row_at(x, i).cause = <uint8_t>cause_of(row_at(x, i))
    for i in range(x.messages.made.count):
        row = message_at(x, i).m.rows
        while row:
            row_at(x, row - 1).place = <uint32_t>(i + 1)
            row = row_at(x, row - 1).next
        judge(x, message_at(x, i))


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
        slow[n].slowdown, slow[n].place = message_at(x, x.messages.order[i]).slowdown, i
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


cdef inline void tally(const Result* x, const int64_t* limits, int classes, Tally* out) noexcept nogil:
    """Sums by size class of the messages and cause: out[class * LABELS + cause].

    Class 0 are rows of no message: retransmissions of the handshake; or everything, if it is the only one.
    ``limits``: the largest size of the others, in ascending order; the last one has none.
    """
    cdef uint64_t i
    cdef int k
    cdef const MessageRow* m
    cdef const Row* row
    cdef Tally* one
    cdef int64_t times[LABELS]
    for i in range(x.messages.ordered):
        m = message_at(x, x.messages.order[i])
        one = out + size_class(m, limits, classes) * LABELS
        one[m.main].messages += 1
        times_of(x, m, times)
        for k in range(1, LABELS):
            one[k].time += times[k]
    for i in range(x.rows.ordered):
        prefetch(row_at(x, x.rows.order[min(i + AHEAD, x.rows.ordered - 1)]))
        row = row_at(x, x.rows.order[i])
        if row.place:
            k = size_class(message_at(x, row.place - 1), limits, classes)
        elif row.event == E_RETRANSMISSION:
            k = 0
        else:
            continue                    # between two messages
        one = out + k * LABELS + row.cause
        one.events += 1
        if not row.place:
            one.time += row.duration
        if row.event in (E_GAP, E_RETRANSMISSION) and (not one.row or row.duration > one.longest):
            one.row, one.longest = i + 1, row.duration


cdef inline int size_class(const MessageRow* m, const int64_t* limits, int classes) noexcept nogil:
    cdef int k = 1
    if classes == 1:
        return 0
    while k < classes - 1 and <int64_t>m.m.bytes > limits[k - 1]:
        k += 1
    return k
