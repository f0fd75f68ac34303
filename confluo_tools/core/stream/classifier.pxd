# A classifier: which rows of a lane go to which flow and worker.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.kernel.ring cimport BlockSink
from confluo_tools.core.query.predicate cimport Program
from confluo_tools.core.stream.batch_queue cimport BatchQueue
from confluo_tools.core.stream.shared_windows cimport WindowClock
from confluo_tools.core.stream.stage cimport StreamStage

cdef class FlowRoute(StreamStage):
    cdef StreamStage first              # of the functions in the lane, then the route; None: there are none
    cdef Program program                # None: all rows
    cdef WindowClock clock              # that chooses the window of each row; None: there is none
    cdef bint takes_all                 # there is neither a program nor a function
    cdef readonly bint goes_on          # rows of this flow may go to later ones as well
    cdef list queues                    # of each worker
    cdef void** queue
    cdef uint32_t number                # of the flow
    cdef uint32_t workers
    cdef int hash_column                # of the block; -1: batches go to the workers in turn
    cdef uint32_t turn
    cdef int columns                    # of a batch
    cdef int* source                    # the column of the block
    cdef uint32_t* width
    cdef uint32_t most                  # rows of a batch
    cdef uint16_t* order                # rows by worker; memory of the classifier
    cdef uint32_t* ending               # of the classifier
    cdef bint wait
    cdef uint64_t send(self, BatchQueue queue, Block block, const uint16_t* rows, uint32_t start, uint32_t n,
                       int64_t now) noexcept nogil

cdef class Classifier(BlockSink):
    cdef readonly Layout layout
    cdef readonly uint64_t taken        # rows that came
    cdef readonly uint64_t unmatched    # of them, those of no flow
    cdef readonly list routes
    cdef void** route
    cdef int n_routes
    cdef bint wait
    cdef uint32_t ending
    cdef Picks picks                    # of a flow
    cdef uint64_t* rest                 # a bit for each row: no flow has it for itself
    cdef uint64_t* some                 # a bit for each row: a flow has it
    cdef uint16_t* order                # rows of a flow, by worker
    cdef int split(self, Block block, Picks given) noexcept nogil
    cdef void offer(self, FlowRoute route, Block block, int64_t now) noexcept nogil
