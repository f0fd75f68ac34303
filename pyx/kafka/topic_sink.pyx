"""Rows to the partitions of a topic: packed, numbered and sent without the interpreter lock."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from c_atomic cimport load_acquire32, store_release32
from c_block cimport BLOCK_ROWS, U32
from confluo_tools.core.block.block cimport Block, Picks
from confluo_tools.core.kafka.message cimport MessagePacker, MessageShape
from confluo_tools.core.kafka.producer cimport KafkaProducer, REFUSED, SENT, Sent
cimport cython

cdef enum:
    PAUSE = 5                           # ms between two tries while the client's queue is full


@cython.final
cdef class TopicSink:
    """Sends rows of ``shape`` to ``partitions`` of a topic of ``producer``, in messages of up to ``capacity`` rows.

    ``key``: a u32 column: its value, modulo the partitions, chooses the partition, so that a flow stays in one.
    Without it (-1) each block goes to the next partition.  ``wait``: when the client's queue is full, wait; otherwise
    drop the message, and count its rows.  Use it from one thread; `stop` from any.
    """

    def __cinit__(self, KafkaProducer producer not None, int topic, MessageShape shape not None, uint32_t partitions, *,
                  uint32_t capacity, int key=-1, bint wait=True):
        cdef uint32_t i
        if not 0 < partitions <= MAX_PARTITIONS:
            raise ValueError(f"{partitions} partitions, not 1 to {MAX_PARTITIONS}")
        if not 0 <= topic < producer.topic_count:
            raise IndexError(topic)
        if key >= 0 and (key >= shape.layout.n or shape.layout.column[key].code != U32):
            raise ValueError("the key is not a u32 column")
        self.producer, self.topic, self.shape, self.partitions = producer, topic, shape, partitions
        self.key, self.wait = key, wait
        self.packers = [MessagePacker(shape, capacity) for _ in range(partitions)]
        self.part = <PartitionState*>calloc(partitions, sizeof(PartitionState))
        self.order = <uint16_t*>malloc(BLOCK_ROWS * sizeof(uint16_t))
        if self.part == NULL or self.order == NULL:
            raise MemoryError
        for i in range(partitions):
            self.part[i].packer = <void*>self.packers[i]

    def __dealloc__(self):
        free(self.part)
        free(self.order)

    cdef int put(self, Block block, Picks picks, int64_t now) noexcept nogil:
        """Add the picked rows of the block, which has the layout of the shape.  Returns 0, or 1 when it was stopped."""
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
        self.part[p].since = 0
        value = (<MessagePacker>self.part[p].packer).finish(p, self.part[p].seq, self.dropped, &size)
        if value == NULL:
            return 0
        while True:
            sent = self.producer.send(self.topic, <int>p, value, size, rows, NULL, 0, True)
            if sent == SENT:
                self.part[p].seq += 1
                return 0
            if sent == REFUSED:
                self.refused += rows
                break
            if not self.wait or load_acquire32(&self.ending):
                self.dropped += rows
                break
            self.producer.serve(PAUSE)
        free(value)
        return 1 if load_acquire32(&self.ending) else 0

    cdef int late(self, int64_t before) noexcept nogil:
        """Send what has waited since ``before`` (ns) or longer."""
        cdef uint32_t p
        for p in range(self.partitions):
            if self.part[p].since and self.part[p].since <= before and self.ship(p):
                return 1
        return 0

    def write(self, Block block not None, Picks picks=None, *, int64_t now=1):
        """Add rows; ``now``: ns, for `flush`.  False when it was stopped.  Raises ValueError for other columns."""
        cdef int stopped
        if block.layout is not self.shape.layout:
            raise ValueError("the block has other columns")
        if picks is None:
            picks = Picks()
            picks.set_all(block.rows)
        with nogil:
            stopped = self.put(block, picks, now)
        return not stopped

    def flush(self, int64_t before=0x7fffffffffffffff):
        """Send what has waited since ``before`` (ns) or longer; by default all.  False when it was stopped."""
        cdef int stopped
        with nogil:
            stopped = self.late(before)
        return not stopped

    def stop(self):
        """Do not wait for a full queue any more."""
        store_release32(&self.ending, 1)
