# What libFuzzer calls: the capture readers and the packet parser, without Python.
#
# Byte 0: bit 0 decap inner, bit 1 one frame instead of a capture.
# One frame: bytes 1-2 its link type, byte 3 how much longer it was on the wire, then the frame.
# A capture: byte 1 the size of the pieces it is given in, then the capture.  It is read twice, whole and in
# pieces, and both must give the same frames.  Every piece is in memory of its exact size, so that the
# address sanitizer sees each byte read beyond it.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport abort, free, malloc
from libc.string cimport memcpy, memset
from c_pcap_pieces cimport Feed, feed_start, feed_end, feed_hungry, feed_give, feed_next
from c_packet cimport parse_frame
from c_pcap cimport Frame, FRAME, MORE
from c_packet_columns cimport COLS, Rows
from c_packet_rows cimport ROWS

cdef Rows rows
cdef uint32_t row


cdef struct Sum:
    uint64_t frames
    uint64_t hash
    uint64_t end
    int fault


cdef uint64_t mix(uint64_t h, uint64_t v) noexcept nogil:
    return (h ^ v) * <uint64_t>0x100000001B3


cdef void one(const Frame* f, bint inner) noexcept nogil:
    """Parse into the next row and hold the row against what must always be so."""
    global row
    cdef uint32_t longest = f.len if f.len > f.cap else f.cap
    if row == ROWS:
        memset(&rows, 0, sizeof(Rows))
        row = 0
    parse_frame(&rows, row, f, inner)
    if rows.len[row] != f.len or rows.cap_len[row] != f.cap or rows.payload_len[row] > longest:
        abort()
    if rows.ip_version[row] not in (0, 4, 6) or (rows.ip_version[row] and not rows.flow_hash[row]):
        abort()
    if rows.tcp_flags[row] and rows.proto[row] != 6:
        abort()
    if rows.used >> COLS:
        abort()
    if rows.switch_path[row][0] and not rows.ip_version[row]:
        abort()
    row += 1


cdef void run(const uint8_t* data, size_t size, size_t piece, bint inner, Sum* sum) noexcept nogil:
    cdef Feed feed
    cdef Frame f
    cdef size_t at = 0, n, i
    cdef uint8_t* now = NULL
    cdef uint8_t* before
    cdef int status
    memset(sum, 0, sizeof(Sum))
    sum.hash = <uint64_t>0xCBF29CE484222325u
    feed_start(&feed, 0, 0)
    while True:
        status = feed_next(&feed, &f)
        if status == FRAME:
            sum.frames += 1
            sum.hash = mix(mix(mix(sum.hash, f.ts), f.offset), f.len)
            sum.hash = mix(mix(mix(sum.hash, f.cap), f.iface), f.link)
            for i in range(f.cap):
                sum.hash = mix(sum.hash, f.data[i])
            one(&f, inner)
        elif status == MORE:
            if not feed_hungry(&feed):
                abort()
            n = piece if piece < size - at else size - at
            before, now = now, <uint8_t*>malloc(n if n else 1)
            memcpy(now, data + at, n)
            at += n
            feed_give(&feed, now, n, n == 0)
            free(before)
        else:
            break
    sum.end = feed.c.base + feed.c.at
    sum.fault = feed.c.fault
    feed_end(&feed)
    free(now)


cdef public int confluo_fuzz(const uint8_t* data, size_t size) noexcept nogil:
    cdef Sum whole, pieces
    cdef Frame f
    cdef uint8_t* copy
    cdef bint inner
    if size < 4:
        return 0
    inner = data[0] & 1
    if data[0] & 2:
        memset(&f, 0, sizeof(f))
        f.link = data[1] | data[2] << 8
        f.cap = <uint32_t>(size - 4)
        f.len = f.cap + data[3] * <uint32_t>data[3] * 16
        copy = <uint8_t*>malloc(f.cap if f.cap else 1)
        memcpy(copy, data + 4, f.cap)
        f.data = copy
        one(&f, inner)
        free(copy)
        return 0
    run(data + 2, size - 2, size, inner, &whole)
    run(data + 2, size - 2, <size_t>data[1] % 100 + 1, inner, &pieces)
    if (whole.frames != pieces.frames or whole.hash != pieces.hash or whole.end != pieces.end
            or whole.fault != pieces.fault):
        abort()
    return 0
