"""Rows to the partitions of a topic: packed, numbered and sent without the interpreter lock."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from c_atomic cimport load_acquire32
from confluo_tools.core.kafka.message cimport MessagePacker, MessageShape, SENT, Sent
from confluo_tools.core.kafka.message_sink cimport MessageSink
from confluo_tools.core.kafka.producer cimport KafkaProducer, SLAB, SLAB_HEAD, SLAB_MESSAGES, Slab
from confluo_tools.core.kafka.short_message cimport ShortShape
cimport cython

SHORT = 16384                           # bytes of the rows of a short message at most


@cython.final
cdef class TopicSink(MessageSink):
    """Sends rows of ``shape`` to ``partitions`` of a topic of ``producer``, in messages of up to ``capacity`` rows.

    ``key``: a u32 column: its value, modulo the partitions, chooses the partition, so that a flow stays in one.
    Without it (-1) each block goes to the next partition.  ``wait``: when the client's queue is full, wait; otherwise
    drop the message, and count its rows.  ``short``: the shape of messages with few rows; None: all are of ``shape``.
    """

    def __cinit__(self, KafkaProducer producer not None, int topic, MessageShape shape not None, uint32_t partitions, *,
                  uint32_t capacity, int key=-1, bint wait=True, ShortShape short=None):
        if not 0 <= topic < producer.topic_count:
            raise IndexError(topic)
        if short is not None and short.layout is not shape.layout:
            raise ValueError("the short messages have other columns")
        self.prepare(shape, partitions, capacity, key, wait)
        self.producer, self.topic, self.short = producer, topic, short
        if short is not None:
            self.few = SHORT // max(shape.layout.row_bytes, 1)
        self.slab = <Slab**>calloc(partitions, sizeof(void*))
        if self.slab == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t p
        if self.slab != NULL:
            for p in range(self.partitions):
                free(self.slab[p])
        free(self.slab)

    cdef Sent send(self, uint32_t partition, void* value, size_t size, uint32_t rows) noexcept nogil:
        return self.producer.send(self.topic, <int32_t>partition, value, size, rows, NULL, 0, True)

    cdef int serve(self, int timeout) noexcept nogil:
        return self.producer.serve(timeout)

    cdef int ship(self, uint32_t p) noexcept nogil:
        if 0 < (<MessagePacker>self.part[p].packer).rows <= self.few:
            return self.add_short(p)
        if self.slab[p] != NULL and self.slab[p].n and self.ship_slab(p):
            return 1
        return MessageSink.ship(self, p)

    cdef int add_short(self, uint32_t p) noexcept nogil:
        """Pack what the partition has behind its other short messages."""
        cdef uint32_t rows = (<MessagePacker>self.part[p].packer).rows
        cdef uint32_t size = <uint32_t>self.short.bytes_of(rows)
        cdef Slab* slab
        if self.slab[p] != NULL and (self.slab[p].used + size > SLAB or self.slab[p].n == SLAB_MESSAGES):
            if self.ship_slab(p):
                return 1
        if self.slab[p] == NULL:
            self.slab[p] = self.producer.slab()
        slab = self.slab[p]
        if slab == NULL:                # no memory
            (<MessagePacker>self.part[p].packer).rows = 0
            self.dropped += rows
            return 0
        (<MessagePacker>self.part[p].packer).finish_short(self.short, <uint8_t*>slab + slab.used, p, self.part[p].seq,
                                                          self.dropped + self.before)
        slab.n += 1
        slab.used += size
        slab.rows += rows
        self.part[p].seq += 1
        return 0

    cdef int ship_slab(self, uint32_t p) noexcept nogil:
        """Send the short messages of the partition.  Returns as `ship`."""
        cdef uint32_t n = self.slab[p].n, rows = self.slab[p].rows, refused
        cdef bint tried = False
        while self.producer.send_slab(self.topic, <int32_t>p, &self.slab[p], &refused) != SENT:
            if not self.try_again(tried):
                self.dropped += rows
                self.part[p].seq -= n
                self.slab[p].n, self.slab[p].used, self.slab[p].rows = 0, SLAB_HEAD, 0
                return 1 if load_acquire32(&self.ending) else 0
            tried = True
        self.sent += rows - refused
        self.refused += refused
        return 0

    cdef int late(self, int64_t before) noexcept nogil:
        cdef uint32_t p
        for p in range(self.partitions):
            if self.part[p].since == 0 or self.part[p].since > before:
                continue
            if self.ship(p) or (self.slab[p] != NULL and self.slab[p].n and self.ship_slab(p)):
                return 1
            self.part[p].since = 0
        return 0
