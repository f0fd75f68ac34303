# Rows to a place outside: the interface of all sinks, and of those that send messages.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.kafka.message cimport MessageShape, Sent

cdef enum:
    MAX_PARTITIONS = 4096

cdef class RowSink:
    cdef readonly Layout layout
    cdef readonly uint64_t rows         # given to `put`
    cdef readonly uint64_t sent         # of them, on their way: the other end took them, or the client did
    cdef readonly uint64_t dropped      # of them, because there was no room
    cdef readonly uint64_t refused      # because the other end does not take them
    cdef public uint64_t before         # lost before they came here, so far: messages say it with `dropped`
    cdef uint32_t ending                # 1: do not wait any more
    cdef object raised                  # by the handler of a signal
    cdef void heed(self) noexcept nogil
    cdef raise_again(self)
    cdef int put(self, Block block, Picks picks, int64_t now) noexcept nogil
    cdef int late(self, int64_t before) noexcept nogil
    cdef int serve(self, int timeout) noexcept nogil

cdef struct PartitionState:
    void* packer                        # a MessagePacker, kept by `packers`
    uint64_t seq                        # of the next message
    int64_t since                       # ns, when its first row came, 0: it is empty
    uint32_t start                      # of its rows in `order`
    uint32_t n                          # rows of this block

cdef class MessageSink(RowSink):
    cdef readonly MessageShape shape
    cdef readonly uint32_t partitions
    cdef int key                        # number of the column that chooses the partition, or -1
    cdef bint wait
    cdef list packers
    cdef PartitionState* part
    cdef uint16_t* order                # rows of a block, by partition
    cdef uint32_t turn                  # without a key: the partition of the next block
    cdef prepare(self, MessageShape shape, uint32_t partitions, uint32_t capacity, int key, bint wait)
    cdef Sent send(self, uint32_t partition, void* value, size_t size, uint32_t rows) noexcept nogil
    cdef int fill(self, uint32_t p, Block block, const uint16_t* rows, uint32_t start, uint32_t n,
                  int64_t now) noexcept nogil
    cdef bint try_again(self, bint tried) noexcept nogil
    cdef int ship(self, uint32_t partition) noexcept nogil
