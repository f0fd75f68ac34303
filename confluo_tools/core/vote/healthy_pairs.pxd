# Flows without loss and without a known path, by their pairs of ToRs.

from libc.stdint cimport uint32_t, uint64_t
from c_hash_table cimport HashTable
from confluo_tools.core.vote.flow_tally cimport FlowTally

cdef struct Share:                      # components that a flow between two ToRs crosses with the same chance
    double f
    uint32_t level                      # which of all chances that is
    uint32_t start
    uint32_t n

cdef struct Pair:                       # two ToRs: their shares, and flows without loss by what they sent
    uint32_t share
    uint32_t shares
    uint64_t entry
    uint64_t entries

cdef struct Entry:
    uint32_t amount                     # which of all numbers of packets
    double times


cdef class HealthyPairs:
    cdef FlowTally tally
    cdef Pair* pair
    cdef readonly uint32_t pairs        # of ToRs
    cdef Share* share
    cdef uint32_t* shared_part
    cdef Entry* entry
    cdef double* amount                 # numbers of packets that flows sent, each once
    cdef uint32_t amounts
    cdef double* level                  # chances, each once
    cdef uint32_t levels
    cdef double* term                   # log-likelihood of each amount and level, level by level
    cdef readonly uint64_t unrouted     # flows between ToRs that `routes` does not know
    cdef _sort(self, dict routes)
    cdef _group(self, HashTable* groups, HashTable* amounts, uint32_t* group, dict routes)
    cdef void add_packets(self, double* packets) noexcept nogil
    cdef void add_likelihood(self, double p_b, double p_g, double* out, uint32_t step) noexcept nogil
