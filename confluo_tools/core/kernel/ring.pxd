# Live packets: rings of packet sockets, and a pump that reads several of them.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_posix cimport pthread_mutex_t
from c_ring cimport RingState
from confluo_tools.core.block.block cimport Block, Picks
from confluo_tools.core.multilog.lane cimport LaneWriter
from confluo_tools.core.packets.packet cimport Packets
from confluo_tools.core.query.predicate cimport Program

# Why a pump stops.
cdef enum:
    FULL = 16                       # the batch is full
    IDLE = 17                       # no packets before the timeout
    STOPPED = 18
    LIMIT = 19                      # the budget is used up
    TROUBLE = 20                    # a socket has a pending error

cdef class Ring:
    cdef RingState r
    cdef size_t size                # bytes mapped
    cdef readonly int fd

cdef class Budget:
    cdef pthread_mutex_t lock
    cdef uint64_t left
    cdef uint64_t take(self, uint64_t want) noexcept nogil

cdef class BlockSink:
    # Where a pump puts the rows of a lane.  Returns 0, LIMIT, STOPPED, or minus errno.
    cdef int put(self, Block block) noexcept nogil

cdef class LaneSink(BlockSink):
    cdef LaneWriter writer
    cdef Program program            # or None: all packets
    cdef Budget budget              # or None: no limit
    cdef Picks picks
    cdef uint32_t flows             # one flow in N
    cdef uint64_t every             # one packet in N
    cdef uint64_t seen              # by --sample-packets
    cdef int hash_column
    cdef int[250] source            # column of the parsed block for each column of the log; -1: zeros
    cdef const uint8_t** out
    cdef uint8_t* scratch           # selected rows, column by column
    cdef size_t scratch_size
    cdef readonly uint64_t matched  # rows for which the program holds
    cdef readonly uint64_t kept     # rows stored
    cdef readonly uint64_t lost     # selected, but not stored: the disk is full

cdef class Pump:
    cdef readonly Packets packets
    cdef readonly list rings
    cdef BlockSink sink
    cdef void** state               # RingState of each ring
    cdef void* poll                 # a struct pollfd each, and one for `wake`
    cdef int n
    cdef int turn                   # ring to read first
    cdef uint32_t ending
    cdef readonly uint64_t received  # rows parsed
    cdef readonly uint64_t waits    # number of waits
    cdef int fill(self) noexcept nogil
    cdef int wait(self, int timeout) noexcept nogil
    cdef int work(self, int timeout) noexcept nogil
