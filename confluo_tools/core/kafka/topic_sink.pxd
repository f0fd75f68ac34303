# Rows to the partitions of a topic.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Block, Picks
from confluo_tools.core.kafka.message cimport MessagePacker, MessageShape
from confluo_tools.core.kafka.producer cimport KafkaProducer

cdef enum:
    MAX_PARTITIONS = 4096

cdef struct PartitionState:
    void* packer                        # a MessagePacker, kept by `packers`
    uint64_t seq                        # of the next message
    int64_t since                       # ns, when its first row came, 0: it is empty
    uint32_t start                      # of its rows in `order`
    uint32_t n                          # rows of this block

cdef class TopicSink:
    cdef readonly KafkaProducer producer
    cdef readonly MessageShape shape
    cdef readonly int topic
    cdef readonly uint32_t partitions
    cdef int key                        # number of the column that chooses the partition, or -1
    cdef bint wait
    cdef list packers
    cdef PartitionState* part
    cdef uint16_t* order                # rows of a block, by partition
    cdef uint32_t turn                  # without a key: the partition of the next block
    cdef readonly uint64_t rows         # given to `put`
    cdef readonly uint64_t dropped      # of them, because the client's queue was full
    cdef readonly uint64_t refused      # because the client does not take such messages
    cdef uint32_t ending                # 1: do not wait any more
    cdef int put(self, Block block, Picks picks, int64_t now) noexcept nogil
    cdef int fill(self, uint32_t p, Block block, const uint16_t* rows, uint32_t start, uint32_t n,
                  int64_t now) noexcept nogil
    cdef int ship(self, uint32_t partition) noexcept nogil
    cdef int late(self, int64_t before) noexcept nogil
