# What the time of each message went to (the paper's tables 2 and 3).

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.math cimport ceil
from libc.stdlib cimport calloc, free, malloc, qsort
from c_explain_state cimport (
    E_GAP, E_RETRANSMISSION, LABELS, L_ACK_LOSS, L_CWND_LIMITED, L_DELACK_WINDOW_SHRINK, L_DELAYED_ACK, L_FEW_DUPACKS,
    L_LOST_RETRANSMISSION, L_ROUND_TRIP, L_SENDING, L_SPURIOUS, L_TAIL_LOSS, FlowRow, MessageRow, Result, Row, elapsed)

cdef struct Tally:              # of one cause
    uint64_t messages           # with it as their main cause
    uint64_t events
    uint64_t row                # with the longest wait, plus 1; 0: none
    int64_t time                # ns


cdef inline int cause_of(const Row* row) noexcept nogil:
    """The label, or the reason behind it where that says more."""
    if row.why in (L_SPURIOUS, L_DELAYED_ACK, L_DELACK_WINDOW_SHRINK, L_ACK_LOSS, L_TAIL_LOSS, L_FEW_DUPACKS,
                   L_LOST_RETRANSMISSION):
        return row.why
    return row.label


cdef inline void take_ideal(MessageRow* row) noexcept nogil:
    """Take the ideal time out of the times: the rest, which adds up to `above`, is what went wrong.

    First out of what each transfer has, sending and round trips; then out of the longest waits, which began as such.
    """
    cdef int64_t rest = row.ideal, part
    cdef int i, k
    for i in range(LABELS + 3):
        k = L_SENDING if i == 0 else L_ROUND_TRIP if i == 1 else L_CWND_LIMITED if i == 2 else longest(row)
        part = min(rest, row.times[k])
        row.times[k] -= part
        rest -= part
        if rest <= 0:
            return


cdef inline int longest(const MessageRow* row) noexcept nogil:
    cdef int i, most = 0
    for i in range(1, LABELS):
        if row.times[i] > row.times[most]:
            most = i
    return most


cdef inline void judge(MessageRow* row, const FlowRow* flow) noexcept nogil:
    """What the time of a message above the ideal went to (the paper's tables 2 and 3)."""
    cdef int64_t last
    row.times[<int>L_SENDING] = row.m.sending
    if row.m.end:
        row.took = elapsed(row.m.start, row.m.end)
        last = elapsed(row.m.counted, row.m.end)
        row.m.late = min(row.m.late, last)
        row.times[<int>L_ROUND_TRIP] = last - row.m.late
        row.times[row.m.late_label] += row.m.late
        row.ideal = flow.min_rtt[row.side]
        if flow.rate[row.side]:
            row.ideal = max(row.ideal, <int64_t>(<double>row.m.bytes * 1e9 / <double>flow.rate[row.side]))
        row.ideal = max(min(row.ideal, row.took), <int64_t>0)
        row.slowdown = <double>row.took / <double>row.ideal if row.ideal else 0
    row.above = elapsed(row.m.start, row.m.end if row.m.end else row.m.counted) - row.ideal
    take_ideal(row)
    row.main = <uint8_t>longest(row)


cdef inline bint judge_all(Result* x) noexcept nogil:
    """Causes of all rows, and from them the times of all messages; False: no memory."""
    cdef uint64_t i, total = 0
    cdef uint64_t* place
    cdef MessageRow* m
    cdef Row* row
    for i in range(x.flow_count):
        x.flows[i].first = total
        total += x.flows[i].messages
    place = <uint64_t*>malloc((total + 1) * sizeof(uint64_t))
    if place == NULL:
        return False
    for i in range(x.message_count):
        m = x.messages + i
        place[x.flows[m.flow].first + m.message - 1] = i
    for i in range(x.count):
        row = x.rows + i
        row.cause = <uint8_t>cause_of(row)
        x.lacking |= row.missing
        if row.message:
            row.place = place[x.flows[row.flow].first + row.message - 1] + 1
            x.messages[row.place - 1].times[row.cause] += row.counted
    for i in range(x.message_count):
        judge(x.messages + i, x.flows + x.messages[i].flow)
    free(place)
    return True


cdef inline int by_slowdown(const void* a, const void* b) noexcept nogil:
    """For qsort: the slowest first, equal ones in their order."""
    cdef const MessageRow* one = (<const MessageRow**>a)[0]
    cdef const MessageRow* other = (<const MessageRow**>b)[0]
    if one.slowdown != other.slowdown:
        return -1 if one.slowdown > other.slowdown else 1
    return -1 if one < other else 1


cdef inline bint keep_slowest(Result* x, double share) noexcept nogil:
    """Keep this share of the messages, by slowdown, at least one, and their rows; False: no memory."""
    cdef MessageRow** order = <MessageRow**>malloc((x.message_count + 1) * sizeof(MessageRow*))
    cdef uint64_t* place = <uint64_t*>calloc(x.message_count + 1, sizeof(uint64_t))
    cdef uint64_t i, n = 0, kept = 0
    if order == NULL or place == NULL:
        free(order)
        free(place)
        return False
    for i in range(x.message_count):
        if x.messages[i].slowdown > 0:
            order[n] = x.messages + i
            n += 1
    qsort(order, n, sizeof(MessageRow*), by_slowdown)
    n = min(n, max(<uint64_t>ceil(<double>n * share), <uint64_t>1))
    for i in range(n):
        place[order[i] - x.messages] = 1
    free(order)
    for i in range(x.message_count):
        if place[i]:
            x.messages[kept] = x.messages[i]
            kept += 1
            place[i] = kept
    x.message_count, kept = kept, 0
    for i in range(x.count):
        if x.rows[i].place and place[x.rows[i].place - 1]:
            x.rows[kept] = x.rows[i]
            x.rows[kept].place = place[x.rows[i].place - 1]
            kept += 1
    x.count = kept
    free(place)
    return True


cdef inline void tally(const Result* x, const int64_t* limits, int classes, Tally* out) noexcept nogil:
    """Sums by size class of the messages and cause: out[class * LABELS + cause].

    Class 0 are rows of no message: retransmissions of the handshake; or everything, if it is the only one.
    ``limits``: the largest size of the others, in ascending order; the last one has none.
    """
    cdef uint64_t i
    cdef int k
    cdef const Row* row
    cdef Tally* one
    for i in range(x.message_count):
        one = out + size_class(x.messages + i, limits, classes) * LABELS
        one[x.messages[i].main].messages += 1
        for k in range(1, LABELS):
            one[k].time += x.messages[i].times[k]
    for i in range(x.count):
        row = x.rows + i
        if row.place:
            k = size_class(x.messages + (row.place - 1), limits, classes)
        elif row.event == E_RETRANSMISSION:
            k = 0
        else:
            continue                    # between two messages
        one = out + k * LABELS + row.cause
        one.events += 1
        if not row.place:
            one.time += row.duration
        if row.event in (E_GAP, E_RETRANSMISSION) and (not one.row or row.duration > x.rows[one.row - 1].duration):
            one.row = i + 1


cdef inline int size_class(const MessageRow* m, const int64_t* limits, int classes) noexcept nogil:
    cdef int k = 1
    if classes == 1:
        return 0
    while k < classes - 1 and <int64_t>m.m.bytes > limits[k - 1]:
        k += 1
    return k
