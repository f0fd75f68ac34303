# A message of records: an Arrow stream of one batch; its metadata has numbers at known places.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Block, Layout
from confluo_tools.core.kafka.short_message cimport ShortShape

cdef enum:
    DIGITS = 20                         # of a number in an envelope, padded with spaces
    CRC_DIGITS = 8

cdef enum Sent:
    SENT = 0
    BUSY = 1                            # there is no room now: serve, and try again
    REFUSED = 2                         # the message can never be sent

cdef struct ColumnPlace:
    uint32_t node                       # number of its first node
    uint32_t buffer                     # number of the buffer of its values
    uint32_t width                      # bytes per row
    uint32_t count                      # elements per row of a list, otherwise 0

cdef class MessageShape:
    cdef readonly Layout layout
    cdef readonly bytes head            # schema message and batch message, with their numbers
    cdef readonly int time              # number of the column of times, or -1
    cdef const uint8_t* start           # of head
    cdef uint8_t* fixed                 # `head` with zeros at all places of numbers
    cdef size_t size                    # bytes of head
    cdef size_t body_length, rows, nodes, buffers       # places of Arrow's numbers
    cdef size_t partition, seq, first, last, records, dropped, crc   # places of the envelope's
    cdef uint32_t n_nodes, n_buffers
    cdef ColumnPlace* column
    cdef void blank(self, uint8_t* head) noexcept nogil
    cdef bint fits(self, const uint8_t* value, uint64_t rows, size_t body) noexcept nogil
    cdef bint checks(self, const uint8_t* value, size_t size) noexcept nogil

cdef class MessagePacker:
    cdef readonly MessageShape shape
    cdef readonly uint32_t capacity     # rows
    cdef readonly uint32_t rows         # so far
    cdef uint8_t* value
    cdef size_t* place                  # of each column in the body
    cdef size_t body                    # bytes, when it is full
    cdef uint64_t earliest, latest      # ns
    cdef uint32_t add(self, Block block, const uint16_t* picked, uint32_t start, uint32_t n) noexcept nogil
    cdef uint8_t* finish(self, uint32_t partition, uint64_t seq, uint64_t dropped, size_t* size) noexcept nogil
    cdef void finish_short(self, ShortShape short, uint8_t* value, uint32_t partition, uint64_t seq,
                           uint64_t dropped) noexcept nogil
    cdef fill(self, Block block)
