# What the flows of an epoch tell: components (links or switches) by number, flows with loss and their paths.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_hash_table cimport HashTable
from confluo_tools.core.block.block cimport Block

cdef enum:
    NONE = 0xFFFFFFFF
    HOPS = 16                           # of a path column
    MAX_PARTS = 18                           # components of a flow: 16 switches and two hosts make 17 links
    WHOLE = 12252240                    # of a vote: divisible by 1 .. 18, so that votes add up exactly

cdef enum:                              # what is made of flows without loss
    HEALTHY_NONE = 0
    HEALTHY_PATH = 1                    # their paths, where they are known; else as shares
    HEALTHY_SHARE = 2                   # what their pair of ToRs says

cdef struct Rows:                       # columns of a block of paths
    const int64_t* ts
    const uint8_t* kind
    const uint8_t* notes
    const uint8_t* version
    const uint8_t* proto
    const uint32_t* src
    const uint8_t* src6
    const uint32_t* dst
    const uint8_t* dst6
    const uint16_t* sport
    const uint16_t* dport
    const uint32_t* sent
    const uint32_t* lost
    const uint8_t* hops
    const uint32_t* path
    const uint8_t* path6
    const uint32_t* src_tor
    const uint32_t* dst_tor
    const uint32_t* link_a
    const uint32_t* link_b
    const double* rate

cdef struct Seen:                       # a flow with loss
    uint64_t start                      # of its components
    uint64_t lost
    uint64_t sent
    uint64_t truth                      # the link that took its packets, a << 32 | b; 0: not known
    uint8_t n                           # its components
    uint8_t hops                        # h: those not known counted, too
    uint8_t noise                       # ground truth: on a good link

cdef class FlowTally:
    cdef readonly bint switches         # components are switches, not directed links
    cdef readonly int healthy
    cdef readonly bint keep             # the records of flows with loss
    cdef HashTable table                    # component: a << 32 | b, or a switch -> number
    cdef uint64_t* good                 # packets that flows without loss sent through each component
    cdef uint64_t good_room
    cdef uint8_t* tiers                 # of switches: how near the edge they were seen, from 1; 0: not known
    cdef uint64_t tiers_room
    cdef uint8_t place[MAX_PARTS]            # the same of the path that was looked at last
    cdef Seen* seen                     # the flows with loss
    cdef readonly uint64_t flows        # with loss
    cdef uint64_t flow_room
    cdef uint32_t* part                 # components of all of them
    cdef uint64_t parts
    cdef uint64_t part_room
    cdef HashTable known                    # flows with loss by their five-tuple -> place in `same`
    cdef uint64_t* same
    cdef uint64_t same_room
    cdef HashTable pairs                    # (src_tor << 32 | dst_tor, sent) of flows without loss -> how many
    cdef uint64_t* times
    cdef uint64_t times_room
    cdef HashTable named                    # fold of an IPv6 address -> its place in `names`
    cdef uint8_t* names
    cdef uint64_t names_room
    cdef HashTable alias                    # address -> node
    cdef uint64_t* alias_to
    cdef uint64_t alias_room
    cdef HashTable home                     # host -> its ToR
    cdef uint64_t* home_to
    cdef uint64_t home_room
    cdef uint64_t* failed               # (a << 32 | b), the ground truth
    cdef readonly uint64_t failures
    cdef uint64_t failed_room
    cdef uint32_t* kept_flow            # flow of each record that is kept
    cdef uint64_t kept_room
    cdef readonly uint64_t kept_rows
    cdef readonly list kept             # blocks of them
    cdef readonly uint64_t records, sent, lost, healthy_flows, repeated, partial, loops, cut, pathless, placeless
    cdef int _rows(self, const Rows* c, uint32_t start, uint32_t end, uint16_t* chosen, uint32_t* n) noexcept nogil
    cdef int _row(self, const Rows* c, uint32_t i) noexcept nogil
    cdef int _path(self, const Rows* c, uint32_t i, uint64_t* out, int* hops, bint lossy) noexcept nogil
    cdef uint32_t _known(self, const Rows* c, uint32_t i, bint* new) noexcept nogil
    cdef uint64_t _node(self, uint64_t number) noexcept nogil
    cdef uint64_t _tor(self, uint64_t given, uint64_t host) noexcept nogil
    cdef void _name(self, uint64_t number, const uint8_t* address) noexcept nogil
    cdef int _room(self, uint32_t n) noexcept nogil
    cdef void _placed(self, const uint32_t* ids, int n) noexcept nogil
    cdef uint32_t _find(self, uint64_t key) noexcept nogil
