"""Rows to a place outside: the interface of all sinks, and of those that send messages."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from c_atomic cimport load_acquire32, store_release32
from c_block cimport BLOCK_ROWS, U32
from confluo_tools.core.block.block cimport Block, Picks
from confluo_tools.core.kafka.message cimport MessagePacker, MessageShape, REFUSED, SENT, Sent

cdef enum:
    PAUSE = 5                           # ms between two tries while there is no room


cdef class RowSink:
    """Takes rows of ``layout`` out of a pipeline.  Use it from one thread; `stop` from any.

    ``rows``: given to it.  ``sent``: of them, on their way.  ``dropped``: lost because there was no room.
    ``refused``: because the other end does not take them.  ``before``, set from outside: lost on the way to it.
    """

    cdef int put(self, Block block, Picks picks, int64_t now) noexcept nogil:
        """Take the picked rows of the block.  ``now``: ns, for `late`.  Returns 0, or 1 when it was stopped."""
        return 1

    cdef int late(self, int64_t before) noexcept nogil:
        """Send what has waited since ``before`` (ns) or longer.  Returns 0, or 1 when it was stopped."""
        return 0

    cdef int serve(self, int timeout) noexcept nogil:
        """Go on with what is under way, for up to ``timeout`` ms."""
        return 0

    cdef void heed(self) noexcept nogil:
        """Run handlers of signals, if this is the main thread: one may stop this sink, or raise."""
        with gil:
            try:
                PyErr_CheckSignals()
            except BaseException as e:
                self.raised = e
                store_release32(&self.ending, 1)

    cdef raise_again(self):
        e, self.raised = self.raised, None
        if e is not None:
            raise e

    def write(self, Block block not None, Picks picks=None, *, int64_t now=1):
        """Add rows; ``now``: ns, for `flush`.  False when it was stopped.  Raises ValueError for other columns."""
        cdef int stopped
        if block.layout is not self.layout:
            raise ValueError("the block has other columns")
        if picks is None:
            picks = Picks()
            picks.set_all(block.rows)
        with nogil:
            stopped = self.put(block, picks, now)
        self.raise_again()
        return not stopped

    def flush(self, int64_t before=0x7fffffffffffffff):
        """Send what has waited since ``before`` (ns) or longer; by default all.  False when it was stopped."""
        cdef int stopped
        with nogil:
            stopped = self.late(before)
        self.raise_again()
        return not stopped

    def stop(self):
        """Do not wait for room any more."""
        store_release32(&self.ending, 1)


cdef class MessageSink(RowSink):
    """Packs rows into messages, and numbers those of each partition.  Where they go is up to `send` of a subclass."""

    def __dealloc__(self):
        free(self.part)
        free(self.order)

    cdef prepare(self, MessageShape shape, uint32_t partitions, uint32_t capacity, int key, bint wait):
        """``key``, ``wait``: as `TopicSink` has them.  Raises ValueError."""
        cdef uint32_t i
        if not 0 < partitions <= MAX_PARTITIONS:
            raise ValueError(f"{partitions} partitions, not 1 to {MAX_PARTITIONS}")
        if key >= 0 and (key >= shape.layout.n or shape.layout.column[key].code != U32):
            raise ValueError("the key is not a u32 column")
        self.layout, self.shape, self.partitions, self.key, self.wait = shape.layout, shape, partitions, key, wait
        self.packers = [MessagePacker(shape, capacity) for _ in range(partitions)]
        self.part = <PartitionState*>calloc(partitions, sizeof(PartitionState))
        self.order = <uint16_t*>malloc(BLOCK_ROWS * sizeof(uint16_t))
        if self.part == NULL or self.order == NULL:
            raise MemoryError
        for i in range(partitions):
            self.part[i].packer = <void*>self.packers[i]

    cdef Sent send(self, uint32_t partition, void* value, size_t size, uint32_t rows) noexcept nogil:
        """Take a message, of malloc: SENT means that it will be freed here."""
        return REFUSED

    cdef int put(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef const uint16_t* rows
        cdef const uint32_t* hashes
        cdef uint32_t n = picks.n, i, p, at
        if n == 0:
            return 0
        rows = picks.as_list()
        self.rows += n
        if self.key < 0 or self.partitions == 1:
            p = self.turn
            self.turn = p + 1 if p + 1 < self.partitions else 0
            return self.fill(p, block, rows, 0, n, now)
        hashes = <const uint32_t*>block.col[self.key]
        for p in range(self.partitions):
            self.part[p].n = 0
        for i in range(n):
            self.part[hashes[rows[i]] % self.partitions].n += 1
        at = 0
        for p in range(self.partitions):
            self.part[p].start = at
            at += self.part[p].n
        for i in range(n):
            p = hashes[rows[i]] % self.partitions
            self.order[self.part[p].start] = rows[i]
            self.part[p].start += 1
        for p in range(self.partitions):
            if self.part[p].n and self.fill(p, block, self.order, self.part[p].start - self.part[p].n, self.part[p].n,
                                            now):
                return 1
        return 0

    cdef int fill(self, uint32_t p, Block block, const uint16_t* rows, uint32_t start, uint32_t n,
                  int64_t now) noexcept nogil:
        cdef uint32_t done
        while n:
            if self.part[p].since == 0:
                self.part[p].since = now
            done = (<MessagePacker>self.part[p].packer).add(block, rows, start, n)
            start += done
            n -= done
            if (<MessagePacker>self.part[p].packer).rows == (<MessagePacker>self.part[p].packer).capacity:
                if self.ship(p):
                    return 1
            elif done == 0:             # no memory
                self.dropped += n
                return 0
        return 0

    cdef int ship(self, uint32_t p) noexcept nogil:
        """Send what the partition has.  Returns 0, or 1 when it was stopped while it waited (the rows are lost)."""
        cdef uint32_t rows = (<MessagePacker>self.part[p].packer).rows
        cdef size_t size = 0
        cdef Sent sent
        cdef uint8_t* value
        cdef bint tried = False
        self.part[p].since = 0
        value = (<MessagePacker>self.part[p].packer).finish(p, self.part[p].seq, self.dropped + self.before, &size)
        if value == NULL:
            return 0
        while True:
            sent = self.send(p, value, size, rows)
            if sent == SENT:
                self.part[p].seq += 1
                self.sent += rows
                return 0
            if sent == REFUSED:
                self.refused += rows
                break
            if not self.try_again(tried):
                self.dropped += rows
                break
            tried = True
        free(value)
        return 1 if load_acquire32(&self.ending) else 0

    cdef bint try_again(self, bint tried) noexcept nogil:
        """Make room for what was BUSY; False when it is to be dropped.  ``tried``: not for the first time."""
        if tried and (not self.wait or load_acquire32(&self.ending)):
            return False
        self.serve(PAUSE if self.wait and not load_acquire32(&self.ending) else 0)      # it may make room
        if self.wait:
            self.heed()
        return True

    cdef int late(self, int64_t before) noexcept nogil:
        cdef uint32_t p
        for p in range(self.partitions):
            if self.part[p].since and self.part[p].since <= before and self.ship(p):
                return 1
        return 0
