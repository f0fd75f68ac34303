# Rows of the schema retx: which column has which number, and one row written.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.string cimport memcpy, memset
from c_sock_diag cimport Sample
from c_socket_table cimport EARLIER, STALLED, UNCONNECTED, Flow
from c_ipv6_hash cimport fold6

cdef enum:                      # columns
    N_TS
    N_EVENT
    N_NOTES
    N_STATE
    N_VERSION
    N_PROTO
    N_SRC
    N_SRC6
    N_DST
    N_DST6
    N_SPORT
    N_DPORT
    N_SENT
    N_LOST
    N_RETRANS
    N_DSACK
    N_EVENTS
    N_TIMEOUTS
    N_RTT
    N_RTT_VAR
    N_RTT_MIN
    N_CWND
    N_BYTES
    N_COOKIE
    N_UID

cdef enum:                      # what a row is about
    RETRANSMIT = 1
    POLL = 2
    END = 3
    GONE = 4
    MANY_TIMEOUTS = 3           # in a row

cdef struct Delta:              # since the previous row of the socket
    uint64_t bytes
    uint32_t sent
    uint32_t lost
    uint32_t retrans
    uint32_t dsack
    uint32_t events
    uint32_t timeouts


cdef struct Counts:             # what happened, by the names of COUNTS
    uint64_t ended
    uint64_t queried
    uint64_t looked
    uint64_t dumps
    uint64_t events             # traced in this kernel
    uint64_t traced             # of them in rows
    uint64_t foreign            # of flows that are not ours
    uint64_t rows
    uint64_t retrans
    uint64_t lost
    uint64_t late_dsack         # reported as lost before their DSACK came
    uint64_t unfollowed         # looks at sockets for which there was no room
    uint64_t excess             # events of flows for which there was no room
    uint64_t overflows          # how often the kernel could not give us all ends
    uint64_t malformed
    uint64_t gone
    uint64_t interrupted        # dumps that the kernel says are not whole


cdef inline uint32_t sample_lost(const Sample* s) noexcept nogil:
    return s.retrans - s.dsack if s.retrans > s.dsack else 0


cdef inline uint8_t sample_fate(const Sample* s) noexcept nogil:
    """UNCONNECTED, STALLED or 0."""
    if s.retrans and not s.heard:
        return UNCONNECTED
    return STALLED if s.timed_out >= MANY_TIMEOUTS else 0


cdef inline void flow_restart(Flow* f) noexcept nogil:
    """The same socket, connected again: its counters restarted at zero."""
    f.sent = f.retrans = f.dsack = f.lost = f.told_events = 0
    f.bytes, f.timeouts = 0, 0


cdef inline void flow_forward(Flow* f, const Sample* s) noexcept nogil:
    """Mark all of ``s`` as reported."""
    cdef uint32_t lost = sample_lost(s)
    f.sent, f.retrans, f.dsack, f.bytes, f.timeouts = s.sent, s.retrans, s.dsack, s.bytes, s.timeouts
    f.lost, f.uid = max(f.lost, lost), s.uid if s.uid else f.uid
    f.flags = <uint8_t>(f.flags & ~(UNCONNECTED | STALLED) | sample_fate(s))


cdef inline void retx_delta(Delta* d, const Flow* f, const Sample* s) noexcept nogil:
    """The part of ``s`` that is not reported yet; a late DSACK is subtracted from later losses."""
    cdef uint32_t lost = sample_lost(s)
    d.sent, d.retrans = s.sent - f.sent, s.retrans - f.retrans
    d.lost = lost - f.lost if lost > f.lost else 0
    d.dsack, d.bytes = s.dsack - min(f.dsack, s.dsack), s.bytes - min(f.bytes, s.bytes)
    d.events = min(f.events, s.retrans - min(f.told_events, s.retrans))
    d.timeouts = <uint16_t>(s.timeouts - f.timeouts)


cdef inline void retx_row(uint8_t** out, uint32_t r, int kind, int64_t now, const Flow* f, const Sample* s,
                          const Delta* d) noexcept nogil:
    """Row ``r``.  ``s``: the last look at the socket, NULL: there was none."""
    cdef bint six = f.key[4] >> 32 == 6
    (<int64_t*>out[N_TS])[r] = f.last if kind == RETRANSMIT and f.last else now
    out[N_EVENT][r], out[N_PROTO][r], out[N_VERSION][r] = <uint8_t>kind, 6, 6 if six else 4
    out[N_NOTES][r] = (2 if f.flags & EARLIER else 0) | (1 if s != NULL and s.mapped else 0)
    out[N_NOTES][r] |= sample_fate(s) if s != NULL else f.flags & (UNCONNECTED | STALLED)
    out[N_STATE][r] = s.state if s != NULL else 7
    if six:
        memcpy(out[N_SRC6] + <size_t>r * 16, f.key, 16)
        memcpy(out[N_DST6] + <size_t>r * 16, f.key + 2, 16)
        (<uint32_t*>out[N_SRC])[r] = fold6(<const uint8_t*>f.key)
        (<uint32_t*>out[N_DST])[r] = fold6(<const uint8_t*>(f.key + 2))
    else:
        memset(out[N_SRC6] + <size_t>r * 16, 0, 16)
        memset(out[N_DST6] + <size_t>r * 16, 0, 16)
        (<uint32_t*>out[N_SRC])[r] = <uint32_t>f.key[0]
        (<uint32_t*>out[N_DST])[r] = <uint32_t>f.key[2]
    (<uint16_t*>out[N_SPORT])[r] = <uint16_t>(f.key[4] >> 16)
    (<uint16_t*>out[N_DPORT])[r] = <uint16_t>f.key[4]
    (<uint32_t*>out[N_SENT])[r] = d.sent
    (<uint32_t*>out[N_LOST])[r] = d.lost
    (<uint32_t*>out[N_RETRANS])[r] = d.retrans
    (<uint32_t*>out[N_DSACK])[r] = d.dsack
    (<uint32_t*>out[N_EVENTS])[r] = d.events
    (<uint32_t*>out[N_TIMEOUTS])[r] = d.timeouts
    (<int64_t*>out[N_RTT])[r] = <int64_t>s.rtt * 1000 if s != NULL else 0
    (<int64_t*>out[N_RTT_VAR])[r] = <int64_t>s.rtt_var * 1000 if s != NULL else 0
    (<int64_t*>out[N_RTT_MIN])[r] = <int64_t>s.rtt_min * 1000 if s != NULL else 0
    (<uint32_t*>out[N_CWND])[r] = s.cwnd if s != NULL else 0
    (<uint64_t*>out[N_BYTES])[r] = d.bytes
    (<uint64_t*>out[N_COOKIE])[r] = f.cookie
    (<uint32_t*>out[N_UID])[r] = s.uid if s != NULL and s.uid else f.uid
