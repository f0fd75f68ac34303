# Rate-based sampling of five-tuples: Algorithm 1 of DETER.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_hash_table cimport LruTable
from confluo_tools.core.block.block cimport Block, Picks
from confluo_tools.core.stream.run_rows cimport RunRows
from confluo_tools.core.stream.stage cimport StreamStage

cdef extern from "rate_rows.h":
    enum:
        RATE_AHEAD                      # rows looked up together
    ctypedef struct rate_flow:          # an entry of an LruTable
        uint64_t[2] key
        int64_t time
        int64_t low
        int64_t high
        uint32_t count
        uint32_t row
    ctypedef struct rate_batch:
        const int64_t* time
        const uint32_t* source
        const uint32_t* target
        const uint16_t* source_port
        const uint16_t* target_port
        const uint8_t* proto
        uint64_t[2]* key
        uint64_t* hash
        uint32_t* guess
        uint32_t* begun
        uint32_t ends
        uint32_t next_row
        uint64_t clock
        int64_t threshold
        uint64_t reach
        int64_t latest


cdef class RateSampleStage(StreamStage):
    cdef readonly int64_t threshold     # ns
    cdef readonly int64_t longest       # a run lasts at most this, ns
    cdef int[6] source                  # numbers of the columns: time, addresses, ports, protocol
    cdef int[6] width                   # bytes of their values
    cdef LruTable flows
    cdef RunRows rows                   # of runs
    cdef rate_batch* batch              # rows looked up together
    cdef uint8_t* copies                # of their columns
    cdef uint16_t* begun                # rows that begin a run
    cdef int64_t swept                  # `now` of the last look at all flows
    cdef int64_t cleared                # `now` when the runs that had ended were given
    cdef uint64_t seen                  # `taken` then
    cdef int64_t now
    cdef bint stopped
    cdef void load(self, Block block, const uint16_t* rows, uint32_t n, bint together) noexcept nogil
    cdef void fetch(self, Block block, uint32_t row, uint32_t n) noexcept nogil
    cdef const uint8_t* column(self, Block block, int i, const uint16_t* rows, uint32_t n,
                               bint together) noexcept nogil
    cdef uint32_t sample(self, const uint16_t* rows, uint32_t n) noexcept nogil
    cdef rate_flow* insert(self, uint32_t i) noexcept nogil
    cdef void end_run(self, rate_flow* flow) noexcept nogil
    cdef void without_run(self, rate_flow* flow) noexcept nogil
    cdef void make_room(self) noexcept nogil
    cdef void give_ended_parts(self) noexcept nogil
    cdef void give_ended_rows(self) noexcept nogil
    cdef void ship(self) noexcept nogil
    cdef void end_runs(self, int64_t before) noexcept nogil
