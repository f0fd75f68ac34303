# What the flows of an epoch tell: components (links or switches) by number, flows with loss and their paths.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_hash_table cimport HashTable
from confluo_tools.core.block.block cimport Block

cdef enum:
    NONE = 0xFFFFFFFF
    HOPS = 16                           # of a path column
    MAX_PARTS = 18                           # components of a path: 16 switches and two hosts make 17 links
    ENDS6 = 5                           # words of the folds and the addresses of an IPv6 flow
    MAX_NEXT = 128                      # links that may follow a partial path
    DEAD_LINKS = 6                      # of a path that is cut, as if it were whole
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
    int64_t first                       # ns: of its first record, which has the truth and the noise
    int64_t traced                      # of the record with its path
    int64_t latest                      # of its last record, which says whether it is dead
    uint32_t src
    uint32_t dst
    uint32_t src_tor                    # 0: not known
    uint32_t dst_tor
    uint32_t last                       # the last node that answered, when the path is partial; else 0
    uint32_t gap_from                   # the nodes around the first ones that did not answer, 0: all did
    uint32_t gap_to
    uint8_t n                           # its components: those of the path, then links that may follow it
    uint8_t known                       # of them in the path
    uint8_t hops                        # h: those not known counted, too
    uint8_t noise                       # ground truth: on a good link
    uint8_t dead                        # nothing got through at its end
    uint8_t none[6]                     # zero: flows are compared byte by byte
    uint8_t targets                     # of a dead flow: components after those known for which it votes, too


cdef inline bint votes_for(const Seen* s, uint64_t j) noexcept nogil:
    """Whether a flow votes for its component ``j``; the others can only explain it."""
    return j < <uint64_t>s.known + (s.targets if s.dead else 0)


cdef inline uint64_t vote_of(const Seen* s, uint64_t j) noexcept nogil:
    """The vote of a flow for its component ``j``, in parts of WHOLE.

    A flow that died has twice the vote for where its path ends as for a link before.  If its path is whole, half of
    its vote is for the way back: for the links of both hosts as much as for its own last link, less a trifle.
    """
    if not votes_for(s, j):
        return 0
    if not s.dead:
        return <uint64_t>WHOLE // max(s.hops, 1)
    if s.last:
        return <uint64_t>WHOLE // DEAD_LINKS if j < s.known else <uint64_t>WHOLE * 2 // (DEAD_LINKS * s.targets)
    return <uint64_t>WHOLE // (2 * max(s.hops, 1)) - (0 if j < s.known else 1)


cdef inline double part_of(const Seen* s, uint64_t j) noexcept nogil:
    """The share of a flow's packets that counts for its component ``j``."""
    if not s.dead:
        return 1.0
    return 1.0 / s.targets if s.last and j >= s.known else 0.5


cdef class FlowTally:
    cdef tuple maps                     # the aliases, and the ToRs of hosts
    cdef bytes described                 # see `question`
    cdef readonly bint extended
    cdef readonly bint switches         # components are switches, not directed links
    cdef readonly int healthy
    cdef readonly bint keep             # the records of flows with loss
    cdef HashTable table                    # component: a << 32 | b, or a switch -> number
    cdef uint64_t* good                 # packets that flows without loss sent through each component
    cdef uint64_t good_room
    cdef uint32_t* carried              # traces that crossed each component
    cdef uint64_t carried_room
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
    cdef HashTable ends6                    # folds and addresses of IPv6 flows -> the number in their five-tuple
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
    cdef readonly uint64_t probes, healthy_sent
    cdef void _ends(self, Seen* s, const Rows* c, uint32_t i) noexcept nogil
    cdef bint _is_better(self, const Seen* s, const uint32_t* ids, const Seen* than, const uint32_t* its) noexcept nogil
    cdef void _add(self, Seen* s, const Seen* record, bint new) noexcept nogil
    cdef void _choose(self, Seen* s, const Seen* record, const uint32_t* ids, bint new) noexcept nogil
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
    cdef void _carry(self, const uint32_t* ids, int n) noexcept nogil
    cdef uint32_t _back(self, const Seen* s, uint64_t* key) noexcept nogil
    cdef int _extend(self, Seen* s, const uint64_t* keys, uint32_t n, uint32_t targets) noexcept nogil
