"""Rows to the partitions of a topic: packed, numbered and sent without the interpreter lock."""

from libc.stdint cimport int32_t, uint32_t
from confluo_tools.core.kafka.message cimport MessageShape, Sent
from confluo_tools.core.kafka.message_sink cimport MessageSink
from confluo_tools.core.kafka.producer cimport KafkaProducer
cimport cython


@cython.final
cdef class TopicSink(MessageSink):
    """Sends rows of ``shape`` to ``partitions`` of a topic of ``producer``, in messages of up to ``capacity`` rows.

    ``key``: a u32 column: its value, modulo the partitions, chooses the partition, so that a flow stays in one.
    Without it (-1) each block goes to the next partition.  ``wait``: when the client's queue is full, wait; otherwise
    drop the message, and count its rows.
    """

    def __cinit__(self, KafkaProducer producer not None, int topic, MessageShape shape not None, uint32_t partitions, *,
                  uint32_t capacity, int key=-1, bint wait=True):
        if not 0 <= topic < producer.topic_count:
            raise IndexError(topic)
        self.prepare(shape, partitions, capacity, key, wait)
        self.producer, self.topic = producer, topic

    cdef Sent send(self, uint32_t partition, void* value, size_t size, uint32_t rows) noexcept nogil:
        return self.producer.send(self.topic, <int32_t>partition, value, size, rows, NULL, 0, True)

    cdef int serve(self, int timeout) noexcept nogil:
        return self.producer.serve(timeout)
