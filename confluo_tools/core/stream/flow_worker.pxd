# A worker: takes batches from its queues, one of each lane, and runs the functions of their flows.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.stream.batch_queue cimport Batch, BatchQueue, Bell
from confluo_tools.core.stream.shared_windows cimport WindowPart
from confluo_tools.core.stream.stage cimport StreamStage

cdef class FlowEnd:
    cdef readonly StreamStage head      # first stage of the chain
    cdef WindowPart part                # the same, if it is one
    cdef readonly uint64_t taken        # rows
    cdef Block view                     # over the memory of a batch
    cdef int take(self, Batch* batch, Picks picks) noexcept nogil

cdef class FlowWorker:
    cdef readonly Bell bell
    cdef readonly list queues
    cdef readonly uint64_t batches, sleeps
    cdef list ends                      # FlowEnd or None, by number of the flow
    cdef void** queue
    cdef void** end
    cdef int n_queues, n_ends
    cdef Picks picks
    cdef uint32_t draining
    cdef bint one_round(self) noexcept nogil
    cdef bint waiting(self) noexcept nogil
    cdef void tick(self, int64_t now) noexcept nogil
    cdef void work(self) noexcept nogil
