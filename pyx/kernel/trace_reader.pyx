"""Events of an instance of tracefs, from the raw buffers of all CPUs, as tuples of numbers in the order of time."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.unistd cimport read as c_read
from c_trace_pages cimport TracePage, page_begin, page_next
cimport cython

cdef enum:
    MAX_FIELDS = 16
    MAX_KINDS = 32
    PID_AT = 4                  # common_pid

cdef struct EventField:
    uint32_t offset
    uint32_t size
    bint is_signed

cdef struct EventShape:
    uint16_t id
    uint16_t fields
    uint32_t size               # bytes that must be there
    EventField[MAX_FIELDS] field


cdef object _value(const uint8_t* p, const EventField* f):
    cdef uint64_t v = 0
    if f.size > 8:
        return (<const char*>p)[:f.size]
    memcpy(&v, p, f.size)
    if not f.is_signed:
        return v
    if f.size == 4:
        return <int32_t>v
    if f.size == 8:
        return <int64_t>v
    return <int16_t>v if f.size == 2 else <int8_t>v


@cython.final
cdef class TraceReader:
    """Reads the descriptors ``traces`` of trace_pipe_raw, one of each CPU, opened without blocking.

    ``header``, ``page``: bytes before the data of a page, and of a page.  ``shapes``: of each event its id and its
    fields, (offset, size, signed); integers of 1, 2, 4 or 8 bytes, else bytes.  Raises ValueError.
    """
    cdef list traces
    cdef size_t header, page
    cdef EventShape* shapes
    cdef int n
    cdef uint8_t* bytes
    cdef readonly uint64_t read_events

    def __cinit__(self, list traces not None, size_t header, size_t page, list shapes not None):
        cdef EventShape* s
        cdef int i
        if len(shapes) > MAX_KINDS:
            raise ValueError("too many events")
        self.traces, self.header, self.page, self.n = traces, header, page, len(shapes)
        self.shapes = <EventShape*>calloc(self.n + 1, sizeof(EventShape))
        self.bytes = <uint8_t*>calloc(page, 1)
        if self.shapes == NULL or self.bytes == NULL:
            raise MemoryError
        for i, (number, fields) in enumerate(shapes):
            if len(fields) > MAX_FIELDS:
                raise ValueError("too many fields")
            s = &self.shapes[i]
            s.id, s.fields, s.size = number, len(fields), 8
            for j, (offset, size, is_signed) in enumerate(fields):
                s.field[j].offset, s.field[j].size, s.field[j].is_signed = offset, size, is_signed
                s.size = max(s.size, <uint32_t>(offset + size))

    def __dealloc__(self):
        free(self.shapes)
        free(self.bytes)

    def read(self, int most=1 << 16):
        """Events that the buffers hold: tuples (time, place in ``shapes``, process, field ...), sorted.

        Reads about ``most`` events of a CPU at a time.
        """
        cdef TracePage page
        cdef const uint8_t* event
        cdef size_t size
        cdef ssize_t got
        cdef int fd, before
        cdef list out = []
        for trace in self.traces:
            fd, before = trace, len(out)
            while len(out) - before < most:
                got = c_read(fd, self.bytes, self.page)
                if got <= 0 or not page_begin(&page, self.bytes, <size_t>got, self.header):
                    break
                while True:
                    event = page_next(&page, &size)
                    if event == NULL:
                        break
                    self._add(out, page.time, event, size)
        self.read_events += <uint64_t>len(out)
        out.sort()
        return out

    cdef int _add(self, list out, uint64_t time, const uint8_t* event, size_t size) except -1:
        cdef uint16_t id
        cdef int32_t pid
        cdef const EventShape* s
        cdef int i, j
        if size < 8:
            return 0
        memcpy(&id, event, 2)
        for i in range(self.n):
            s = &self.shapes[i]
            if s.id == id and size >= s.size:
                memcpy(&pid, event + PID_AT, 4)
                row = [time, i, pid]
                for j in range(s.fields):
                    row.append(_value(event + s.field[j].offset, &s.field[j]))
                out.append(tuple(row))
                return 0
        return 0
