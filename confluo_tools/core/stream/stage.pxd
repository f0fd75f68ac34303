# A stage of a stream: it reads rows, and gives what it makes of them to the next stage.

from libc.stdint cimport int64_t, uint64_t
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.kafka.message_sink cimport RowSink

cdef class StreamStage:
    cdef StreamStage after              # where rows go; None: nowhere
    cdef readonly Layout layout         # of the rows that it takes
    cdef readonly uint64_t taken        # rows that came
    cdef readonly uint64_t given        # rows that went on
    cdef readonly uint64_t dropped      # rows lost against the user's will
    # To call: the next stage, or the first one of a chain, gets rows, and counts them.
    cdef int feed(self, Block block, Picks picks, int64_t now) noexcept nogil
    cdef int give(self, Block block, Picks picks, int64_t now) noexcept nogil
    # To override; each returns 0, or 1 when it was stopped.  `now`: ns, CLOCK_MONOTONIC.
    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil
    cdef int tick(self, int64_t now) noexcept nogil
    cdef int finish(self) noexcept nogil

cdef class RelayStage(StreamStage):
    pass

cdef class SinkStage(StreamStage):
    cdef readonly RowSink sink
    cdef int64_t linger                 # ns that a row waits for others of its message
    cdef void count(self) noexcept nogil

cdef class WriterStage(StreamStage):
    cdef object write
    cdef readonly object problem        # the exception of `write`, or None
