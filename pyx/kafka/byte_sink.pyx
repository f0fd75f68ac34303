"""Messages one after the other to a file, a pipe or a neighbour's socket, without the interpreter lock."""

import os
from stat import S_ISREG

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close, usleep, write
from c_posix cimport (
    AF_UNIX, MSG_DONTWAIT, MSG_NOSIGNAL, POLLOUT, SOCK_CLOEXEC, SOCK_STREAM, SUN_PATH, connect, poll, pollfd,
    send as send_some, sockaddr_un, socket)
from confluo_tools.core.kafka.message cimport BUSY, MessageShape, REFUSED, SENT, Sent
from confluo_tools.core.kafka.message_sink cimport MessageSink
cimport cython

cdef enum:
    PIPE_PART = 4096                    # bytes that a pipe takes at once when it takes any
    AGAIN = 100000000                   # ns between two tries to connect


cdef int64_t _now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


@cython.final
cdef class ByteSink(MessageSink):
    """Writes messages of ``shape``, of up to ``capacity`` rows, one after the other to a descriptor.

    ``fd``: of a file or a pipe.  If it is -1, the sink connects to the Unix socket ``path``, again after each end of
    a connection.  ``room``: bytes that may wait for a pipe or a neighbour.
    ``wait``: when these are full, wait; otherwise drop the message, and count its rows.
    A message that a neighbour had in part when it left is sent again, whole, to the next one.
    """

    def __cinit__(self, int fd, MessageShape shape not None, *, uint32_t capacity, bytes path=b"", size_t room=0,
                  bint wait=True):
        if len(path) >= SUN_PATH:
            raise ValueError(f"the path of a socket has at most {SUN_PATH - 1} bytes")
        self.prepare(shape, 1, capacity, -1, wait)
        self.fd, self.room = fd, room
        self.kind = SOCKET if fd < 0 else FILE if S_ISREG(os.fstat(fd).st_mode) else PIPE
        memset(&self.address, 0, sizeof(sockaddr_un))
        self.address.sun_family = AF_UNIX
        memcpy(self.address.sun_path, <const char*>path, len(path))

    def __dealloc__(self):
        while self.n:
            self.leave()
        if self.kind == SOCKET and self.fd >= 0:
            close(self.fd)

    cdef Sent send(self, uint32_t partition, void* value, size_t size, uint32_t rows) noexcept nogil:
        cdef QueuedMessage* place
        if self.error:
            return REFUSED
        if self.n and (self.n == MAX_QUEUED or self.waiting + size > self.room):
            self.pump(0)
            if self.error:
                return REFUSED
            if self.n and (self.n == MAX_QUEUED or self.waiting + size > self.room):
                return BUSY
        place = &self.queue[(self.first + self.n) % MAX_QUEUED]
        place.value, place.size, place.rows = value, size, rows
        self.n += 1
        self.waiting += size
        self.pump(0)
        return SENT

    cdef int serve(self, int timeout) noexcept nogil:
        self.pump(timeout)
        return 0

    cdef void leave(self) noexcept nogil:
        """Forget the first message."""
        cdef QueuedMessage* place = &self.queue[self.first]
        free(place.value)
        self.waiting -= place.size
        self.first = (self.first + 1) % MAX_QUEUED
        self.n -= 1
        self.at = 0

    cdef void fail(self, int error) noexcept nogil:
        """Nothing can be written any more."""
        self.error, self.cut = error, self.at
        while self.n:
            self.failed += self.queue[self.first].rows
            self.leave()

    cdef bint open(self) noexcept nogil:
        """Connect to the neighbour, if it is time to try."""
        cdef int64_t now = _now()
        cdef int fd
        if now < self.next_try:
            return False
        self.next_try = now + AGAIN
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)
        if fd < 0:
            self.trouble = errno
            return False
        if connect(fd, &self.address, sizeof(sockaddr_un)) != 0:
            self.trouble = errno
            close(fd)
            return False
        self.fd, self.trouble, self.at = fd, 0, 0
        self.connections += 1
        return True

    cdef bint ready(self, int timeout) noexcept nogil:
        """Whether the descriptor takes bytes within ``timeout`` ms."""
        cdef pollfd p
        p.fd, p.events, p.revents = self.fd, POLLOUT, 0
        return poll(&p, 1, timeout) > 0

    cdef ssize_t some(self, const char* data, size_t n) noexcept nogil:
        if self.kind == SOCKET:
            return send_some(self.fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL)
        return write(self.fd, data, n if self.kind == FILE or n < PIPE_PART else PIPE_PART)

    cdef void pump(self, int timeout) noexcept nogil:
        """Write what waits; once nothing goes, wait up to ``timeout`` ms."""
        cdef QueuedMessage* place
        cdef ssize_t done
        while self.n:
            if self.fd < 0 and not self.open():
                if timeout:
                    usleep(1000 * timeout)
                return
            if self.kind == PIPE and not self.ready(timeout):
                return
            place = &self.queue[self.first]
            done = self.some(<const char*>place.value + self.at, place.size - self.at)
            if done >= 0:
                self.at += <size_t>done
                if self.at == place.size:
                    self.messages += 1
                    self.written += place.rows
                    self.written_bytes += place.size
                    self.leave()
            elif errno == EINTR:
                return
            elif errno == EAGAIN:
                if not timeout or not self.ready(timeout):
                    return
                timeout = 0
            elif self.kind == SOCKET:
                self.trouble = errno
                close(self.fd)
                self.fd = -1
            else:
                self.fail(errno)

    def poll(self, int timeout=0):
        """Write what waits, for up to about ``timeout`` ms; returns the messages that still wait."""
        with nogil:
            self.pump(timeout)
        return self.n

    def purge(self):
        """Give up all that waits; its rows are counted as failed."""
        while self.n:
            self.failed += self.queue[self.first].rows
            self.leave()

    @property
    def queued(self):
        """Messages that wait."""
        return self.n

    @property
    def part(self):
        """Bytes of a message that could be written only in part."""
        return self.cut
