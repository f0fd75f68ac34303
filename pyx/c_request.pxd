# The little of HTTP that a responder speaks: is it a request at all, which one, and the head of the answer.

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, strlen

cdef enum:
    NO_REQUEST = 0              # bytes of something else
    MAYBE_REQUEST = 1           # a method's beginning
    IS_REQUEST = 2

cdef enum:
    ASKS_PING = 1
    ASKS_COUNTERS = 2
    ASKS_NOTHING = 3            # another path
    ASKS_BADLY = 4
    ASKS_OTHERWISE = 5          # another method
    ASKS_TOO_MUCH = 6           # more bytes than a probe may have


cdef struct Request:
    int asks
    bint head                   # no body, please
    uint32_t size               # of the body that a ping asked for


cdef inline int request_begins(const uint8_t* data, uint32_t n) noexcept nogil:
    # Whether these first bytes of a connection are a method and a space.
    cdef const char** method = [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ",
                                b"CONNECT "]
    cdef int i
    cdef uint32_t length
    cdef int found = NO_REQUEST
    for i in range(9):
        length = <uint32_t>strlen(method[i])
        if n >= length:
            if memcmp(data, method[i], length) == 0:
                return IS_REQUEST
        elif memcmp(data, method[i], n) == 0:
            found = MAYBE_REQUEST
    return found


cdef inline bint request_ends(const uint8_t* data, uint32_t n, uint32_t seen) noexcept nogil:
    # Whether the empty line is there; the first ``seen`` bytes were looked at before.
    cdef uint32_t i
    for i in range(seen - 3 if seen > 3 else 0, n):
        if data[i] == 10 and ((i + 1 < n and data[i + 1] == 10)
                              or (i + 2 < n and data[i + 1] == 13 and data[i + 2] == 10)):
            return True
    return False


cdef inline bint path_is(const uint8_t* data, uint32_t n, const char* path) noexcept nogil:
    cdef uint32_t length = <uint32_t>strlen(path)
    return n == length and memcmp(data, path, length) == 0


cdef inline void read_request(const uint8_t* data, uint32_t n, uint32_t most, Request* r) noexcept nogil:
    # The first line: method, path, version.  ``most``: bytes that a body may have.
    cdef uint32_t at, start, question, end = 0
    cdef int64_t size = 0
    r.asks = ASKS_BADLY
    r.head = False
    r.size = 0
    while end < n and data[end] != 10:
        end += 1
    if end and data[end - 1] == 13:
        end -= 1
    if end >= 4 and memcmp(data, b"GET ", 4) == 0:
        start = 4
    elif end >= 5 and memcmp(data, b"HEAD ", 5) == 0:
        start = 5
        r.head = True
    else:
        r.asks = ASKS_OTHERWISE
        return
    at = start
    question = 0
    while at < end and data[at] != 32:
        if data[at] == 63 and not question:
            question = at
        at += 1
    if end - at != 9 or memcmp(data + at, b" HTTP/1.", 8) != 0:
        return
    if not question:
        question = at
    if path_is(data + start, question - start, b"/counters"):
        r.asks = ASKS_COUNTERS
        return
    if not path_is(data + start, question - start, b"/ping"):
        r.asks = ASKS_NOTHING
        return
    if question < at:
        question += 1
        if at - question < 6 or at - question > 12 or memcmp(data + question, b"size=", 5) != 0:
            return
        for question in range(question + 5, at):
            if data[question] < 48 or data[question] > 57:
                return
            size = size * 10 + data[question] - 48
        if size > most:
            r.asks = ASKS_TOO_MUCH
            return
    r.size = <uint32_t>size
    r.asks = ASKS_PING


cdef inline uint32_t write_head(char* out, size_t room, const Request* r, uint32_t body) noexcept nogil:
    # The answer up to its body of so many bytes.
    cdef const char* status
    cdef const char* more = b""
    cdef int n
    if r.asks == ASKS_PING:
        status = b"200 OK" if r.size else b"204 No Content"
        more = b"Content-Type: application/octet-stream\r\n" if r.size else b""
    elif r.asks == ASKS_COUNTERS:
        status = b"200 OK" if body else b"503 Service Unavailable"
        more = b"Content-Type: application/json\r\n"
    elif r.asks == ASKS_NOTHING:
        status = b"404 Not Found"
    elif r.asks == ASKS_OTHERWISE:
        status = b"405 Method Not Allowed"
        more = b"Allow: GET, HEAD\r\n"
    elif r.asks == ASKS_TOO_MUCH:
        status = b"413 Content Too Large"
    else:
        status = b"400 Bad Request"
    if r.asks == ASKS_PING and not r.size:
        n = snprintf(out, room, b"HTTP/1.1 %s\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n", status)
    else:
        n = snprintf(out, room, b"HTTP/1.1 %s\r\n%sContent-Length: %u\r\nCache-Control: no-store\r\n"
                                b"Connection: close\r\n\r\n", status, more, body)
    return <uint32_t>n if 0 < n < <int>room else 0
