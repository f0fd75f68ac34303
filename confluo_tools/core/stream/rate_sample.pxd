# Rate-based sampling of five-tuples: Algorithm 1 of DETER.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_hash_table cimport LruTable
from confluo_tools.core.block.block cimport Block, Picks
from confluo_tools.core.stream.run_rows cimport RunRows
from confluo_tools.core.stream.stage cimport StreamStage

cdef struct SampledFlow:                # an entry with its head and key is a cache line
    int64_t time                        # of the row that was kept
    int64_t low                         # steps that fit all rows since, ns
    int64_t high
    uint32_t count                      # rows of the run
    uint32_t row                        # number of the row that was kept; `nowhere`: there is no run
    int64_t unused

cdef struct FiveTuples:                 # columns of a block
    const int64_t* time
    const uint32_t* source
    const uint32_t* target
    const uint16_t* source_port
    const uint16_t* target_port
    const uint8_t* proto


cdef class RateSampleStage(StreamStage):
    cdef readonly int64_t threshold     # ns
    cdef readonly int64_t longest       # a run lasts at most this, ns
    cdef int time                       # numbers of the columns
    cdef int source
    cdef int target
    cdef int source_port
    cdef int target_port
    cdef int proto
    cdef LruTable flows
    cdef RunRows rows                   # of runs
    cdef uint64_t* key                  # of the rows looked up together
    cdef uint64_t* hash
    cdef uint32_t* guess                # entries of the flows
    cdef uint16_t* begun                # rows that begin a run
    cdef int64_t latest                 # time of a row, ns
    cdef int64_t swept                  # `now` of the last look at all flows
    cdef int64_t cleared                # `now` when the runs that had ended were given
    cdef uint64_t seen                  # `taken` then
    cdef int64_t now
    cdef bint stopped
    cdef void find(self, const FiveTuples* packets, const uint16_t* rows, uint32_t n) noexcept nogil
    cdef uint32_t sample(self, const int64_t* times, const uint16_t* rows, uint32_t n) noexcept nogil
    cdef SampledFlow* insert(self, uint32_t i) noexcept nogil
    cdef void end_run(self, SampledFlow* flow) noexcept nogil
    cdef void without_run(self, SampledFlow* flow) noexcept nogil
    cdef void make_room(self) noexcept nogil
    cdef void give_ended_parts(self) noexcept nogil
    cdef void give_ended_rows(self) noexcept nogil
    cdef void ship(self) noexcept nogil
    cdef void end_runs(self, int64_t before) noexcept nogil
