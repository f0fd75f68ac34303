# A Kafka producer: messages of records, sent and counted without the interpreter lock.

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from c_rdkafka cimport rd_kafka_message_t, rd_kafka_t, rd_kafka_topic_t
from confluo_tools.core.kafka.message cimport Sent

cdef enum:
    MAX_TOPICS = 256
    PROBLEM = 512                       # bytes of a text about what is wrong
    SLAB = 65536                        # bytes
    SLAB_HEAD = 64                      # bytes before the first message
    SLAB_MESSAGES = 600

# Short messages of one partition, one after the other, that the client takes at once.  It sends them from here, so the
# slab is used again when it has done with all.  The address of a slab is a multiple of its size: any address in it
# leads to it.
cdef struct Slab:
    uint32_t held                       # messages that the client has not done with
    uint32_t n                          # messages
    uint32_t used                       # bytes, with the head
    uint32_t rows                       # of all messages
    Slab* next                          # of those that are free

# Each field has one writer: the thread that sends, or the one that serves.
cdef struct ProducerCounts:
    uint64_t sent                       # messages given to the client
    uint64_t records_sent
    uint64_t bytes_sent
    uint64_t busy                       # times that the queue was full
    uint64_t acked                      # messages that a broker has
    uint64_t records_acked
    uint64_t bytes_acked
    uint64_t failed                     # messages given up
    uint64_t records_failed
    uint64_t bytes_failed
    uint64_t free                       # the Slab that the client had done with last, 0: none
    int refusal                         # why the last message was refused, 0: none was
    int failure                         # why the last message was given up
    int trouble                         # of the client: the last error with a broker
    char text[PROBLEM]                  # and what it said

cdef class KafkaProducer:
    cdef rd_kafka_t* rk
    cdef rd_kafka_topic_t* topics[MAX_TOPICS]
    cdef readonly int topic_count
    cdef ProducerCounts n
    cdef uint64_t most_messages, most_bytes     # that the client may hold
    cdef Slab* spare                    # slabs that are free
    cdef rd_kafka_message_t batch[SLAB_MESSAGES]
    cdef Sent send(self, int topic, int32_t partition, void* value, size_t size, uint32_t records, const void* key,
                   size_t key_size, bint give) noexcept nogil
    cdef int serve(self, int timeout) noexcept nogil
    cdef Slab* slab(self) noexcept nogil
    cdef Sent send_slab(self, int topic, int32_t partition, Slab** slab, uint32_t* refused) noexcept nogil
