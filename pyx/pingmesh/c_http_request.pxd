# HTTP of the responder: detect and parse a request line, write the response head.
#
# Own code, not a library: it runs in the responder's loop without the interpreter, at the rate of incoming probes, on
# a bounded buffer of untrusted bytes, and must first tell an HTTP request from the payload of an echo probe.

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, strlen

cdef enum:
    NO_REQUEST = 0              # other bytes: payload
    MAYBE_REQUEST = 1           # the first bytes of a method
    IS_REQUEST = 2

cdef enum:
    REQUEST_PING = 1
    REQUEST_COUNTERS = 2
    REQUEST_NOT_FOUND = 3       # another path
    REQUEST_BAD = 4
    REQUEST_BAD_METHOD = 5
    REQUEST_TOO_LARGE = 6       # size above the limit of a probe


cdef struct Request:
    int kind
    bint head                   # method HEAD: response without a body
    uint32_t size               # of the body of a /ping response


cdef inline int request_begins(const uint8_t* data, uint32_t n) noexcept nogil:
    # Whether the first bytes of a connection are an HTTP method and a space.
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
    # Whether the empty line has arrived; the first ``seen`` bytes were searched before.
    cdef uint32_t i
    for i in range(seen - 3 if seen > 3 else 0, n):
        if data[i] == 10 and ((i + 1 < n and data[i + 1] == 10)
                              or (i + 2 < n and data[i + 1] == 13 and data[i + 2] == 10)):
            return True
    return False


cdef inline bint path_is(const uint8_t* data, uint32_t n, const char* path) noexcept nogil:
    cdef uint32_t length = <uint32_t>strlen(path)
    return n == length and memcmp(data, path, length) == 0


cdef inline void read_request(const uint8_t* data, uint32_t n, uint32_t max_size, Request* r) noexcept nogil:
    # Parse the request line: method, path, version.  ``max_size``: limit of a body.
    cdef uint32_t at, start, question, end = 0
    cdef int64_t size = 0
    r.kind = REQUEST_BAD
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
        r.kind = REQUEST_BAD_METHOD
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
        r.kind = REQUEST_COUNTERS
        return
    if not path_is(data + start, question - start, b"/ping"):
        r.kind = REQUEST_NOT_FOUND
        return
    if question < at:
        question += 1
        if at - question < 6 or at - question > 12 or memcmp(data + question, b"size=", 5) != 0:
            return
        for question in range(question + 5, at):
            if data[question] < 48 or data[question] > 57:
                return
            size = size * 10 + data[question] - 48
        if size > max_size:
            r.kind = REQUEST_TOO_LARGE
            return
    r.size = <uint32_t>size
    r.kind = REQUEST_PING


cdef inline uint32_t write_head(char* out, size_t room, const Request* r, uint32_t body) noexcept nogil:
    # The response head for a body of ``body`` bytes.
    cdef const char* status
    cdef const char* more = b""
    cdef int n
    if r.kind == REQUEST_PING:
        status = b"200 OK" if r.size else b"204 No Content"
        more = b"Content-Type: application/octet-stream\r\n" if r.size else b""
    elif r.kind == REQUEST_COUNTERS:
        status = b"200 OK" if body else b"503 Service Unavailable"
        more = b"Content-Type: application/json\r\n"
    elif r.kind == REQUEST_NOT_FOUND:
        status = b"404 Not Found"
    elif r.kind == REQUEST_BAD_METHOD:
        status = b"405 Method Not Allowed"
        more = b"Allow: GET, HEAD\r\n"
    elif r.kind == REQUEST_TOO_LARGE:
        status = b"413 Content Too Large"
    else:
        status = b"400 Bad Request"
    if r.kind == REQUEST_PING and not r.size:
        n = snprintf(out, room, b"HTTP/1.1 %s\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n", status)
    else:
        n = snprintf(out, room, b"HTTP/1.1 %s\r\n%sContent-Length: %u\r\nCache-Control: no-store\r\n"
                                b"Connection: close\r\n\r\n", status, more, body)
    return <uint32_t>n if 0 < n < <int>room else 0
