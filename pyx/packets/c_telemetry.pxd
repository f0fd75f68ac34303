# In-band telemetry: data that switches write into a packet on its path (IOAM, RFC 9197; confluo-telemetry(7)).
#
# The pre-allocated trace, in an IPv6 hop-by-hop option (RFC 9486) and, the same bytes, in an IPv4 option with an
# experimental number, which has no standard:
#
#   0            1          2        4           6         10          10 + 4 * remaining
#   | reserved 0 | kind 0 | namespace | node, flags, remaining | trace type, 0 | free space | nodes, newest first |

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from c_bits cimport popcount32
from c_wire cimport be16, be32
from c_packet_columns cimport C_HOP_LATENCY, C_HOP_TIME, C_QUEUE_DEPTH, C_SWITCH_PATH, Rows
from c_packet_rows cimport HOPS, bit

cdef enum:
    IOAM6 = 0x31                # hop-by-hop option with data that may change on the way
    IOAM4 = 0x5E                # not copied to fragments, measurement, number 30: for experiments, RFC 4727
    TRACE_HEAD = 10
    NTP_1970 = 2208988800       # seconds from 1900 to 1970

# Bits of the trace type, which name the parts of each node's data in this order.
cdef enum Part:
    SHORT_ID = 0x800000         # hop limit (8 bits) and node id (24)
    BEFORE_SECONDS = 0xC00000
    SECONDS = 0x200000          # time: seconds, and
    FRACTION = 0x100000         # the rest
    QUEUE = 0x020000            # queue depth
    BEFORE_QUEUE = 0xFC0000     # parts of 4 bytes each
    BEFORE_WIDE = 0xFF0000
    WIDE_ID = 0x008000          # hop limit (8 bits) and node id (56)
    EIGHT = 0x00E000            # parts of 8 bytes
    FOUR = 0xFF1FFC
    SNAPSHOT = 0x000002         # opaque state after the data of each node; starts with its length

cdef extern from * nogil:
    const uint32_t NONE "0xFFFFFFFFu"    # written by a node that has no value


cdef enum Found:
    NO_TRACE
    A_TRACE
    BAD_TRACE                   # contradictory: ignored


cdef inline int64_t time_of(uint32_t seconds, uint32_t fraction, bint ns) noexcept nogil:
    """A time (RFC 9197, section 5) in ns since 1970; 0: none, or not a time in this format.

    NTP counts from 1900, so its first bit is set until 2036, and that of the other two is not until 2038.
    """
    if seconds == NONE or fraction == NONE:
        return 0
    if seconds >> 31:
        if seconds < NTP_1970:
            return 0
        return <int64_t>(seconds - NTP_1970) * 1000000000 + <int64_t>(<uint64_t>fraction * 1000000000 >> 32)
    if fraction >= <uint32_t>(1000000000 if ns else 1000000):
        return 0
    return <int64_t>seconds * 1000000000 + <int64_t>fraction * (1 if ns else 1000)


cdef inline void latencies(Rows* r, uint32_t i, uint32_t hops) noexcept nogil:
    """The time from each hop to the next, where both are known."""
    cdef uint32_t n
    for n in range(1, hops):
        if r.hop_time[i][n - 1] and r.hop_time[i][n]:
            r.hop_latency[i][n - 1] = r.hop_time[i][n] - r.hop_time[i][n - 1]


cdef inline Found read_trace(Rows* r, uint32_t i, const uint8_t* p, uint32_t size) noexcept nogil:
    """p: the data of an IOAM option."""
    cdef uint32_t shape, parts, node, snapshot, hops = 0, n = 0, k, depth, wide, seconds, at
    cdef bint timed
    cdef const uint8_t* start[HOPS]         # of the last nodes read, which are the first hops
    cdef const uint8_t* q
    if size < 2 or p[0] or p[1]:
        return NO_TRACE                     # proof of transit, edge to edge
    if size < TRACE_HEAD:
        return BAD_TRACE
    shape, parts = be16(p + 4), be32(p + 6) >> 8
    node = (shape >> 11) * 4
    at = TRACE_HEAD + (shape & 127) * 4
    if (node == 0 or node != <uint32_t>popcount32(parts & FOUR) * 4 + <uint32_t>popcount32(parts & EIGHT) * 8
            or at > size):
        return BAD_TRACE
    while at < size:
        if size - at < node:
            return BAD_TRACE
        start[hops & (HOPS - 1)] = p + at
        hops += 1
        at += node
        if parts & SNAPSHOT:
            if size - at < 4:
                return BAD_TRACE
            snapshot = 4 + <uint32_t>p[at] * 4
            if size - at < snapshot:
                return BAD_TRACE
            at += snapshot
    depth = <uint32_t>popcount32(parts & BEFORE_QUEUE) * 4
    wide = <uint32_t>popcount32(parts & BEFORE_WIDE) * 4
    seconds = <uint32_t>popcount32(parts & BEFORE_SECONDS) * 4
    timed = parts & SECONDS and parts & FRACTION
    while hops > 0 and n < HOPS:
        hops -= 1
        q = start[hops & (HOPS - 1)]
        if parts & SHORT_ID:
            r.switch_path[i][n] = be32(q) & 0xFFFFFF
        elif parts & WIDE_ID:
            r.switch_path[i][n] = NONE if be32(q + wide) & 0xFFFFFF else be32(q + wide + 4)
        if parts & QUEUE:
            k = be32(q + depth)
            r.queue_depth[i][n] = k if k != NONE else 0
        if timed:
            r.hop_time[i][n] = time_of(be32(q + seconds), be32(q + seconds + 4), r.hop_ns)
        n += 1
    if n:
        if parts & (SHORT_ID | WIDE_ID):
            r.used |= bit(C_SWITCH_PATH)
        if parts & QUEUE:
            r.used |= bit(C_QUEUE_DEPTH)
        if timed:
            latencies(r, i, n)
            r.used |= bit(C_HOP_TIME) | bit(C_HOP_LATENCY)
    return A_TRACE


cdef inline Found read_telemetry(Rows* r, uint32_t i, const uint8_t* p, uint32_t size, bint six) noexcept nogil:
    """Find the first trace in the options of an IP header at p..p+size.

    The IPv4 option number may have other uses: data unlike a trace is ignored, not an error.
    """
    cdef uint32_t at = 0, kind, length
    while at < size:
        kind = p[at]
        if kind == 0 and not six:
            break
        if kind == 0 or kind == 1 and not six:  # one byte of padding
            at += 1
            continue
        if size - at < 2:
            break
        length = p[at + 1] + 2 if six else p[at + 1]
        if length < 2 or length > size - at:
            return BAD_TRACE if six else NO_TRACE
        if six and kind == IOAM6:
            return read_trace(r, i, p + at + 2, length - 2)
        if not six and kind == IOAM4:
            return A_TRACE if read_trace(r, i, p + at + 2, length - 2) == A_TRACE else NO_TRACE
        at += length
    return NO_TRACE
