"""Live packets: read the rings that the kernel fills, parse rows, store them in a log without the interpreter lock."""

from libc.errno cimport errno, EINTR
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.mman cimport mmap, munmap, MAP_FAILED, MAP_POPULATE, MAP_SHARED, PROT_READ, PROT_WRITE
from c_atomic cimport load_acquire32, store_release32
from c_block cimport Column, U32
from c_gather cimport gather
from c_pcap cimport Frame, MORE
from c_posix cimport (
    POLLERR, POLLHUP, POLLIN, POLLNVAL, poll as c_poll, pollfd, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock)
from c_ring cimport RingState, ring_next, ring_ready, ring_waiting
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.multilog.lane cimport LaneWriter
from confluo_tools.core.packets.packet cimport Packets, keep_flows, keep_every
from confluo_tools.core.query.predicate cimport Program
cimport cython
import os

WHY = {IDLE: "idle", STOPPED: "stopped", LIMIT: "limit", TROUBLE: "trouble"}


@cython.final
cdef class Ring:
    """The mapped ring of the packet socket ``fd``: ``blocks`` of ``block_size`` bytes, as set with PACKET_RX_RING.

    The socket has PACKET_RESERVE 16.  ``loop``: skip packets that lo sends, because lo receives them again.
    Raises OSError.  The owner of the socket must keep it open at least as long as this object.
    """

    def __cinit__(self, int fd, uint32_t block_size, uint32_t blocks, *, bint loop=True):
        cdef void* map
        if not blocks or block_size < 4096:
            raise ValueError(f"a ring of {blocks} blocks of {block_size} bytes")
        self.fd, self.size = fd, <size_t>block_size * blocks
        map = mmap(NULL, self.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0)
        if map == MAP_FAILED:
            raise OSError(errno, os.strerror(errno))
        self.r.map, self.r.block_size, self.r.blocks, self.r.loop = <uint8_t*>map, block_size, blocks, loop

    def __dealloc__(self):
        if self.r.map != NULL:
            munmap(self.r.map, self.size)

    @property
    def counts(self):
        """(packets read, skipped because sent by lo, invalid, with a time stamp of the NIC, blocks read)."""
        return self.r.packets, self.r.skipped, self.r.bad, self.r.hardware, self.r.filled

    @property
    def waiting(self):
        """Bytes of the blocks that the kernel has handed over and that are not read yet."""
        return <size_t>ring_waiting(&self.r) * self.r.block_size

    @property
    def bytes(self):
        """Its size."""
        return self.size


@cython.final
cdef class Budget:
    """Number of rows that all lanes together may still store."""

    def __cinit__(self, uint64_t rows):
        pthread_mutex_init(&self.lock, NULL)
        self.left = rows

    cdef uint64_t take(self, uint64_t want) noexcept nogil:
        """Take up to `want` rows; return how many were left."""
        pthread_mutex_lock(&self.lock)
        if want > self.left:
            want = self.left
        self.left -= want
        pthread_mutex_unlock(&self.lock)
        return want


cdef class BlockSink:
    """Where a pump puts the rows of its lane."""

    cdef int put(self, Block block) noexcept nogil:
        """Take all rows of the block, which is valid during the call.  Returns 0, LIMIT, STOPPED, or minus errno."""
        return STOPPED


@cython.final
cdef class LaneSink(BlockSink):
    """Stores rows of ``layout`` in the lane of ``writer``: those for which ``program`` holds (None: all), sampled.

    Columns are matched by name.  ``flows``, ``every``: keep one flow, or packet, in N.  ``budget``: the limit
    that lanes share, or None.  Raises ValueError when a column has another type than in the log.
    """

    def __cinit__(self, Layout layout not None, LaneWriter writer not None, *, Program program=None, uint32_t flows=1,
                  uint64_t every=1, Budget budget=None, uint32_t rows=1024):
        cdef Layout to = writer.shape.layout
        cdef int i, j
        if flows == 0 or every == 0:
            raise ValueError("flows and every must be positive")
        self.writer, self.program, self.flows, self.every, self.budget = writer, program, flows, every, budget
        self.picks = Picks()
        self.hash_column = layout.get("flow_hash")
        if flows > 1 and (self.hash_column < 0 or layout.column[self.hash_column].code != U32):
            raise ValueError("no column flow_hash")
        for i in range(to.n):
            j = layout.get(to.names[i])
            self.source[i] = j
            if j >= 0 and (layout.column[j].code != to.column[i].code or layout.column[j].width != to.column[i].width):
                raise ValueError(f"column {to.names[i]} has another type")
            self.scratch_size += (<size_t>to.column[i].width * rows + 63) & ~<size_t>63
        self.out = <const uint8_t**>calloc(max(to.n, 1), sizeof(void*))
        self.scratch = <uint8_t*>calloc(max(self.scratch_size, 1), 1)
        if self.out == NULL or self.scratch == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.out)
        free(self.scratch)

    cdef int put(self, Block block) noexcept nogil:
        """Select and store rows of the block.  Returns 0, LIMIT, or minus errno."""
        cdef const Column* to = self.writer.shape.layout.column
        cdef const uint16_t* rows
        cdef uint8_t* at = self.scratch
        cdef uint64_t allowed
        cdef uint32_t n
        cdef int i, j, code
        if self.program is None:
            self.picks.set_all(block.rows)
        else:
            self.program.run(block, self.picks)
        self.matched += self.picks.n
        if self.flows > 1:
            keep_flows(<const uint32_t*>block.col[self.hash_column], self.picks, self.flows)
        if self.every > 1:
            self.seen = keep_every(self.picks, self.seen, self.every)
        n = self.picks.n
        if self.budget is not None:
            allowed = self.budget.take(n)
            if allowed < n:
                n = <uint32_t>allowed
                self.picks.as_list()
                self.picks.set_list(block.rows, n)
        rows = NULL if n == block.rows else self.picks.as_list()
        if n:
            for i in range(self.writer.shape.layout.n):
                j = self.source[i]
                self.out[i] = NULL
                if j < 0 or block._is_zero(j):
                    continue
                self.out[i] = block.col[j]
                if rows != NULL:
                    gather(at, block.col[j], rows, n, to[i].width)
                    self.out[i] = at
                    at += (<size_t>n * to[i].width + 63) & ~<size_t>63
            code = self.writer.append_columns(self.out, n)
            if code:
                self.lost += n
                return -code
            self.kept += n
        return LIMIT if self.budget is not None and self.budget.left == 0 else 0


@cython.final
cdef class Pump:
    """Reads packets from ``rings`` in turn and parses them with ``packets``.

    `run` stores the rows in ``sink``; `next` returns them as blocks.
    ``wake``: a descriptor that interrupts waiting when it is readable.  Use it from one thread; `stop` from any.
    """

    def __cinit__(self, list rings not None, Packets packets not None, int wake, *, BlockSink sink=None):
        cdef pollfd* p
        cdef int i
        if not rings:
            raise ValueError("no rings")
        self.rings, self.packets, self.sink, self.n = rings, packets, sink, len(rings)
        self.state = <void**>calloc(self.n, sizeof(void*))
        self.poll = calloc(self.n + 1, sizeof(pollfd))
        if self.state == NULL or self.poll == NULL:
            raise MemoryError
        p = <pollfd*>self.poll
        for i in range(self.n):
            self.state[i] = &(<Ring?>rings[i]).r
            p[i].fd, p[i].events = (<Ring>rings[i]).fd, POLLIN
        p[self.n].fd, p[self.n].events = wake, POLLIN

    def __dealloc__(self):
        free(self.state)
        free(self.poll)

    cdef int fill(self) noexcept nogil:
        """Parse packets until the batch is full (FULL) or the rings are empty (MORE)."""
        cdef Frame f
        cdef int _ring
        for _ring in range(self.n):
            while self.packets.waiting < self.packets.capacity:
                if ring_next(<RingState*>self.state[self.turn], &f) == MORE:
                    break
                self.packets.put(&f)
            if self.packets.waiting == self.packets.capacity:
                break
            self.turn = self.turn + 1 if self.turn + 1 < self.n else 0
        if self.packets.waiting == self.packets.capacity:
            return FULL
        return MORE

    cdef int wait(self, int timeout) noexcept nogil:
        """Wait for packets: MORE when there are some, else IDLE, TROUBLE or STOPPED."""
        cdef pollfd* p = <pollfd*>self.poll
        cdef int i, n
        self.waits += 1
        n = c_poll(p, self.n + 1, timeout)
        if load_acquire32(&self.ending):
            return STOPPED
        if n < 0:
            return IDLE if errno == EINTR else TROUBLE
        for i in range(self.n):
            if p[i].revents & (POLLERR | POLLHUP | POLLNVAL) and not ring_ready(<RingState*>self.state[i]):
                return TROUBLE
        if n == 0 or p[self.n].revents:
            return IDLE
        return MORE

    cdef int work(self, int timeout) noexcept nogil:
        cdef int status, code
        while True:
            status = self.fill()
            if self.packets.waiting:
                self.packets.present()
                self.received += self.packets.waiting
                code = self.sink.put(self.packets.block)
                self.packets.again()
                if code:
                    return code
            if load_acquire32(&self.ending):
                return STOPPED
            if status == MORE:
                status = self.wait(timeout)
                if status != MORE:
                    return status

    def run(self, int timeout):
        """Store packets in the sink, then return why it stopped: 'idle' (no packets for ``timeout`` ms, or woken),
        'stopped', 'limit', 'trouble' (a socket has an error).  Raises OSError when rows cannot be stored.
        """
        cdef int code
        if self.sink is None:
            raise ValueError("no sink")
        with nogil:
            code = self.work(timeout)
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        return WHY[code]

    def next(self, int timeout):
        """The next rows as a block; None when no packets came for ``timeout`` ms, or when woken or stopped."""
        with nogil:
            self.fill()
            if not self.packets.waiting:
                if not load_acquire32(&self.ending):
                    self.wait(timeout)
                self.fill()
        if not self.packets.waiting:
            return None
        self.received += self.packets.waiting
        return self.packets.take()

    def stop(self):
        """Make `run` return soon; `go` allows it again."""
        store_release32(&self.ending, 1)

    def go(self):
        store_release32(&self.ending, 0)

    @property
    def failed(self):
        """Numbers of the rings with a pending event on their socket."""
        cdef pollfd* p = <pollfd*>self.poll
        return [i for i in range(self.n) if p[i].revents & (POLLERR | POLLHUP | POLLNVAL)]
