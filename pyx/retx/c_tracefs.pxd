# Pages of the kernel's trace buffers as trace_pipe_raw gives them (linux/ring_buffer.h, events/header_page and
# events/header_event of tracefs), and the TCP events in them.  Every read stays inside the page.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int32_t
from libc.string cimport memcpy
from c_sock_diag cimport INET, INET6, diag_key, diag_u32, diag_u64

cdef struct TraceFormat:        # where an event has what: of events/tcp/NAME/format
    uint32_t id
    uint32_t size               # bytes that must be there
    uint32_t sport
    uint32_t dport
    uint32_t family
    uint32_t saddr
    uint32_t daddr
    uint32_t saddr6
    uint32_t daddr6
    uint32_t err                # 0: there is none
    uint32_t sk                 # kernel address of the socket; 0: unknown

cdef struct TracePage:
    const uint8_t* data
    size_t size
    size_t at
    uint64_t time

cdef enum:
    COMMIT = 0xFFFFF            # of the word after the time: bytes of data; above stand flags
    PADDING = 29
    EXTEND = 30
    STAMP = 31
    EAGAIN = 11
    ENOMEM = 12
    EBUSY = 16
    EINVAL = 22


cdef inline bint page_begin(TracePage* page, const uint8_t* bytes, size_t size, size_t header) noexcept nogil:
    """``header``: bytes before the data, the commit word at 8."""
    if size < header or header < 12:
        return False
    page.time = diag_u64(bytes)
    page.data, page.at = bytes + header, 0
    page.size = diag_u32(bytes + 8) & COMMIT
    if page.size > size - header:
        page.size = size - header
    return True


cdef inline const uint8_t* page_next(TracePage* page, size_t* size) noexcept nogil:
    """The next event and its size, or NULL at the end; ``page.time`` is its time."""
    cdef uint32_t head, kind, more = 0
    cdef size_t length
    cdef const uint8_t* p
    while page.at + 4 <= page.size:
        p = page.data + page.at
        head = diag_u32(p)
        kind = head & 31
        if kind == 0 or kind >= PADDING:
            if page.at + 8 > page.size:
                return NULL
            more = diag_u32(p + 4)
        if kind == PADDING:
            if not head >> 5:
                return NULL
            page.time += head >> 5
            length = <size_t>more + 4
            if length < 8 or length > page.size - page.at:
                return NULL
            page.at += length
        elif kind == EXTEND:
            page.time += (<uint64_t>more << 27) + (head >> 5)
            page.at += 8
        elif kind == STAMP:         # 59 bits of it
            page.time = (page.time & ~((<uint64_t>1 << 59) - 1)) | <uint64_t>more << 27 | head >> 5
            page.at += 8
        else:
            page.time += head >> 5
            length = 4 + <size_t>kind * 4 if kind else <size_t>more + 4
            if length < 8 or length > page.size - page.at:
                return NULL
            page.at += length
            size[0] = length - 4 if kind else length - 8
            return p + 4 if kind else p + 8
    return NULL


cdef inline bint trace_event(const TraceFormat* f, const uint8_t* event, size_t size, uint64_t* key,
                             uint64_t* sk) noexcept nogil:
    """Whether it is a retransmission; sets its flow and the address of its socket, unique while the socket exists.

    What failed before TCP counted it is none: its own queue still had the packet, or there was no memory.
    """
    cdef uint16_t id, sport, dport, family
    cdef int32_t err
    if size < 2 or size < f.size:
        return False
    memcpy(&id, event, 2)
    if id != f.id:
        return False
    if f.err:
        memcpy(&err, event + f.err, 4)
        if err == -EBUSY or err == -EAGAIN or err == -EINVAL or err == -ENOMEM:
            return False
    sk[0] = diag_u64(event + f.sk) if f.sk else 0
    memcpy(&sport, event + f.sport, 2)
    memcpy(&dport, event + f.dport, 2)
    memcpy(&family, event + f.family, 2)
    if family == INET6 and (diag_u64(event + f.saddr6) or diag_u64(event + f.saddr6 + 8)):
        diag_key(key, INET6, event + f.saddr6, event + f.daddr6, sport, dport)
    elif family == INET or family == INET6:     # an IPv6 listener with an IPv4 client
        diag_key(key, INET, event + f.saddr, event + f.daddr, sport, dport)
    else:
        return False
    return True
