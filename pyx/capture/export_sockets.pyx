"""UDP sockets into a decoder of exported records, without the interpreter lock."""

from libc.errno cimport EAGAIN, EINTR
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from confluo_tools.core.capture.flow_exports cimport FlowExports
cimport cython

cdef extern from "export_sockets.h" nogil:
    enum:
        BATCH_DATAGRAMS
        BATCH_BYTES
        DATAGRAM_STEP
        POLLIN
    struct pollfd:
        int fd
        short events
        short revents
    ctypedef struct DatagramBatch:
        uint8_t* bytes
    int datagrams_receive(DatagramBatch* b, int fd)
    uint32_t datagram_size(const DatagramBatch* b, int i)
    uint16_t datagram_sender(const DatagramBatch* b, int i, uint8_t* address)
    int64_t datagram_time(DatagramBatch* b, int i)
    int wait_readable(pollfd* fds, int n, int ms)

cdef enum:
    MAX_SOCKETS = 64
    ROUNDS = 16                 # batches of one socket before the next one has its turn


@cython.final
cdef class ExportSockets:
    """Receives datagrams of ``sockets``, [(descriptor, is sFlow)], into ``decoder``.

    ``wake``: a descriptor that ends a wait when it is readable.
    Raises ValueError for more than 64 sockets.
    """

    cdef FlowExports decoder
    cdef DatagramBatch* batch
    cdef pollfd[65] fds
    cdef bint[64] sflow
    cdef int sockets

    def __cinit__(self, FlowExports decoder not None, sockets not None, int wake):
        if len(sockets) > MAX_SOCKETS:
            raise ValueError(f"{len(sockets)} sockets")
        self.decoder = decoder
        self.batch = <DatagramBatch*>calloc(1, sizeof(DatagramBatch))
        if self.batch != NULL:
            self.batch.bytes = <uint8_t*>malloc(BATCH_BYTES)
        if self.batch == NULL or self.batch.bytes == NULL:
            raise MemoryError
        for fd, sflow in sockets:
            self.fds[self.sockets].fd, self.fds[self.sockets].events = fd, POLLIN
            self.sflow[self.sockets] = sflow
            self.sockets += 1
        self.fds[self.sockets].fd, self.fds[self.sockets].events = wake, POLLIN

    def __dealloc__(self):
        if self.batch != NULL:
            free(self.batch.bytes)
        free(self.batch)

    def receive(self, int ms):
        """Wait up to ``ms`` for datagrams and decode them; False: none came.  Raises OSError.

        It returns early when a block is full, so that waiting datagrams stay in the sockets.
        """
        cdef int i, n, got = 0
        for i in range(self.sockets + 1):
            self.fds[i].revents = 0
        with nogil:
            n = wait_readable(self.fds, self.sockets + 1, ms)
            if n > 0:
                for i in range(self.sockets):
                    if self.fds[i].revents:
                        n = self.drain(i)
                        if n < 0:
                            break
                        got += n
        if n < 0 and n != -EINTR:
            raise OSError(-n, "receive")
        return got > 0

    cdef int drain(self, int number) noexcept nogil:
        """Decode what a socket has; datagrams, or minus errno."""
        cdef int n, i, _round, total = 0
        cdef uint16_t port
        cdef uint8_t address[16]
        for _round in range(ROUNDS):
            n = datagrams_receive(self.batch, self.fds[number].fd)
            if n < 0:
                if n == -EAGAIN or n == -EINTR:
                    break
                return n
            for i in range(n):
                port = datagram_sender(self.batch, i, address)
                self.decoder.datagram(self.sflow[number], self.batch.bytes + <size_t>i * DATAGRAM_STEP,
                                      datagram_size(self.batch, i), address, port, datagram_time(self.batch, i))
            total += n
            if n < BATCH_DATAGRAMS or self.decoder.d.rows.written >= 4096:
                break
        self.decoder.d.rows.written = 0
        return total
