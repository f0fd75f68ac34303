# Rows in batches for a table: filled without the interpreter lock, sent by a thread of Python.

from libc.stdint cimport int64_t, uint32_t
from confluo_tools.core.block.block cimport Block, Picks
from confluo_tools.core.clickhouse.native_batch cimport NativeBatch, NativeShape
from confluo_tools.core.kafka.message_sink cimport RowSink

cdef enum:
    BATCHES = 3                         # one is filled, the others wait or are on their way

cdef class NativeSink(RowSink):
    cdef readonly NativeShape shape
    cdef list batches
    cdef void* batch[BATCHES]           # kept by `batches`
    cdef uint32_t ready[BATCHES]        # 1: for the sender
    cdef uint32_t filling               # number of the batch that takes rows
    cdef uint32_t leaving               # of the batch that the sender has, or gets next
    cdef int64_t since                  # ns, when its first row came; 0: it is empty
    cdef readonly int wake              # an eventfd: a batch is ready
    cdef bint wait
    cdef uint32_t busy                  # 1: a thread fills or ships
    cdef void enter(self) noexcept nogil
    cdef int fill(self, Block block, Picks picks, int64_t now) noexcept nogil
    cdef void ship(self) noexcept nogil
