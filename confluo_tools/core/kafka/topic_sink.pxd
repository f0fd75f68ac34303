# Rows to the partitions of a topic.

from libc.stdint cimport uint32_t
from confluo_tools.core.kafka.message_sink cimport MessageSink
from confluo_tools.core.kafka.producer cimport KafkaProducer, Slab
from confluo_tools.core.kafka.short_message cimport ShortShape

cdef class TopicSink(MessageSink):
    cdef readonly KafkaProducer producer
    cdef readonly int topic
    cdef readonly ShortShape short      # of messages with few rows, or None
    cdef uint32_t few                   # rows of a short message at most
    cdef Slab** slab                    # of each partition, or NULL
    cdef int add_short(self, uint32_t partition) noexcept nogil
    cdef int ship_slab(self, uint32_t partition) noexcept nogil
