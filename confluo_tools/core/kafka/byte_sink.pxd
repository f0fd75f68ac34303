# Messages one after the other to a file, a pipe or a neighbour's socket.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from c_posix cimport sockaddr_un
from confluo_tools.core.kafka.message_sink cimport MessageSink

cdef enum:
    MAX_QUEUED = 4096                   # messages that wait

cdef enum ByteKind:
    FILE = 0
    PIPE = 1                            # anything that may make a writer wait
    SOCKET = 2

cdef struct QueuedMessage:
    void* value                         # of malloc
    size_t size
    uint32_t rows

cdef class ByteSink(MessageSink):
    cdef int fd                         # -1: not connected
    cdef ByteKind kind
    cdef sockaddr_un address
    cdef size_t room                    # bytes
    cdef QueuedMessage[MAX_QUEUED] queue
    cdef uint32_t first                 # of the queue
    cdef uint32_t n                     # messages in it
    cdef size_t waiting                 # bytes of them
    cdef size_t at                      # bytes of the first one that are written
    cdef size_t cut                     # `at` when writing failed
    cdef int64_t next_try               # ns, to connect
    cdef readonly uint64_t messages     # written
    cdef readonly uint64_t written      # their rows
    cdef readonly uint64_t written_bytes
    cdef readonly uint64_t failed       # rows that were taken and could not be written
    cdef readonly uint64_t connections
    cdef readonly int error             # errno after which nothing is written, or 0
    cdef readonly int trouble           # errno of the last connection, or 0
    cdef void leave(self) noexcept nogil
    cdef void fail(self, int error) noexcept nogil
    cdef bint open(self) noexcept nogil
    cdef bint ready(self, int timeout) noexcept nogil
    cdef ssize_t some(self, const char* data, size_t n) noexcept nogil
    cdef void pump(self, int timeout) noexcept nogil
