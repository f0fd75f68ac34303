# Pages of the kernel's trace buffers as trace_pipe_raw gives them (linux/ring_buffer.h, events/header_page and
# events/header_event of tracefs).  Every read stays inside the page.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_wire cimport get32, get64

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


cdef inline bint page_begin(TracePage* page, const uint8_t* bytes, size_t size, size_t header) noexcept nogil:
    """``header``: bytes before the data, the commit word at 8."""
    if size < header or header < 12:
        return False
    page.time = get64(bytes, False)
    page.data, page.at = bytes + header, 0
    page.size = get32(bytes + 8, False) & COMMIT
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
        head = get32(p, False)
        kind = head & 31
        if kind == 0 or kind >= PADDING:
            if page.at + 8 > page.size:
                return NULL
            more = get32(p + 4, False)
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
