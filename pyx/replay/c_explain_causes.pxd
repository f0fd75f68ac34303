# What the time of each message went to (the paper's tables 2 and 3).

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from c_explain_state cimport (
    E_GAP, E_RETRANSMISSION, LABELS, L_ACK_LOSS, L_CWND_LIMITED, L_DELACK_WINDOW_SHRINK, L_DELAYED_ACK, L_FEW_DUPACKS,
    L_LOST_RETRANSMISSION, L_SPURIOUS, L_TAIL_LOSS, FlowRow, MessageRow, Result, Row, elapsed)


cdef inline int cause_of(const Row* row) noexcept nogil:
    """The label, or the reason behind it where that says more."""
    if row.why in (L_SPURIOUS, L_DELAYED_ACK, L_DELACK_WINDOW_SHRINK, L_ACK_LOSS, L_TAIL_LOSS, L_FEW_DUPACKS,
                   L_LOST_RETRANSMISSION):
        return row.why
    return row.label


cdef inline void judge(MessageRow* row, const FlowRow* flow) noexcept nogil:
    """What most of the time of a message above the ideal went to (the paper's tables 2 and 3)."""
    cdef int i
    cdef int64_t stalled = 0, most = 0
    row.took = elapsed(row.m.start, row.m.end) if row.m.end else 0
    row.ideal = flow.min_rtt[row.side]
    if flow.rate[row.side]:
        row.ideal = max(row.ideal, <int64_t>(<double>row.m.bytes * 1e9 / <double>flow.rate[row.side]))
    row.above = row.took - row.ideal if row.took > row.ideal else 0
    row.slowdown = <double>row.took / <double>row.ideal if row.ideal and row.took else 0
    for i in range(1, LABELS):
        if i != L_CWND_LIMITED:
            stalled += row.times[i]
            if row.times[i] > most:
                row.main, most = <uint8_t>i, row.times[i]
    if row.above - stalled > most and row.times[<int>L_CWND_LIMITED]:
        row.main = L_CWND_LIMITED       # what is left: it went slower than its best rate


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
        m.times[0] = m.m.sending
    for i in range(x.count):
        row = x.rows + i
        row.cause = <uint8_t>cause_of(row)
        if row.message and row.event in (E_GAP, E_RETRANSMISSION):
            x.messages[place[x.flows[row.flow].first + row.message - 1]].times[row.cause] += row.duration
    for i in range(x.message_count):
        judge(x.messages + i, x.flows + x.messages[i].flow)
    free(place)
    return True
