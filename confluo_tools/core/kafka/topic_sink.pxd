# Rows to the partitions of a topic.

from confluo_tools.core.kafka.message_sink cimport MessageSink
from confluo_tools.core.kafka.producer cimport KafkaProducer

cdef class TopicSink(MessageSink):
    cdef readonly KafkaProducer producer
    cdef readonly int topic
