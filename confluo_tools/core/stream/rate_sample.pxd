# Rate-based sampling of five-tuples: Algorithm 1 of DETER.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from c_hash_table cimport LruTable
from c_sampling cimport RateSampler, TimeRun
from confluo_tools.core.block.block cimport Block, Picks, Staging
from confluo_tools.core.stream.stage cimport StreamStage

cdef struct SampledFlow:
    RateSampler sampler                 # and the number of the flow is that of its entry


cdef class RateSampleStage(StreamStage):
    cdef readonly int64_t threshold     # ns
    cdef readonly int64_t longest       # a run lasts at most this, ns
    cdef readonly uint32_t most         # flows at a time
    cdef int time                       # numbers of the columns
    cdef int source
    cdef int target
    cdef int source_port
    cdef int target_port
    cdef int proto
    cdef LruTable flows
    cdef uint8_t* row                   # of each flow: the first row of its run, one column after the other
    cdef size_t row_bytes
    cdef Staging out                    # rows of runs that have ended
    cdef Picks every_row
    cdef int64_t latest                 # time of a row, ns
    cdef int64_t swept                  # `now` of the last look at all flows
    cdef uint64_t seen                  # `taken` then
    cdef int64_t now
    cdef bint stopped
    cdef uint8_t* row_of(self, const SampledFlow* flow) noexcept nogil
    cdef void begin_run(self, SampledFlow* flow, Block block, uint32_t row) noexcept nogil
    cdef void give_run(self, SampledFlow* flow, const TimeRun* run) noexcept nogil
    cdef void ship(self) noexcept nogil
    cdef void end_runs(self, int64_t before) noexcept nogil
