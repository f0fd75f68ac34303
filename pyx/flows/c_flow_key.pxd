# The key of a flow: both directions have the same one.
#
# Words 0 to 3: addresses, the lower end first.  Word 4: ports, IP version, protocol; see `conversation_key`.
# ICMP has no ports: its type is that of the sender, and that of the answer, or the code, is that of the receiver.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from c_conversation cimport KeyColumns, KeyedRow, ordered_key, read_ends
from c_flow_entry cimport ICMP, ICMP6

cdef enum:
    VERSION_AT = 32             # bits of word 4
    PROTO_AT = 40
    KEY_BITS = 56               # of word 4
    ONE_WAY_AT = 48             # ICMP messages that no answer belongs to: the two directions are two flows
    FROM_HIGH_AT = 49


cdef inline int icmp_answer(uint32_t proto, uint32_t kind) noexcept nogil:
    """The type of the message that answers one of type ``kind``, or that it answers; -1: none."""
    if proto == ICMP:
        if kind == 8:           # echo
            return 0
        if kind == 0:
            return 8
        if kind == 10:          # router solicitation
            return 9
        if kind == 9:
            return 10
        if 13 <= kind <= 18:    # timestamp, information, address mask
            return kind + 1 if kind & 1 else kind - 1
        return -1
    if kind == 128 or kind == 133 or kind == 135 or kind == 139 or kind == 144:
        return kind + 1         # echo, router and neighbour solicitation, node information, home agent discovery
    if kind == 129 or kind == 134 or kind == 136 or kind == 140 or kind == 145:
        return kind - 1
    if kind == 130:             # multicast listener query and report
        return 131
    if kind == 131:
        return 130
    return -1


cdef inline void flow_key(const uint8_t** col, const KeyColumns* at, uint32_t proto, int icmp_type, int icmp_code,
                          KeyedRow* b) noexcept nogil:
    """Fill ``key`` and ``side`` from the columns of the row ``row``.  ``icmp_type``, ``icmp_code``: -1 if unknown."""
    cdef uint64_t source[2]
    cdef uint64_t target[2]
    cdef uint32_t version = read_ends(col, at, b.row, source, target)
    cdef uint64_t sport = (<const uint16_t*>col[at.sport])[b.row]
    cdef uint64_t dport = (<const uint16_t*>col[at.dport])[b.row]
    cdef uint64_t one_way = 0
    cdef int answer
    if (proto == ICMP or proto == ICMP6) and icmp_type >= 0:
        answer = icmp_answer(proto, icmp_type)
        sport, dport = icmp_type, answer
        if answer < 0:
            dport, one_way = icmp_code, 1
    ordered_key(source, target, sport, dport, b)
    b.key[4] |= <uint64_t>version << VERSION_AT | <uint64_t>proto << PROTO_AT | one_way << ONE_WAY_AT
    if one_way:
        b.key[4] |= <uint64_t>b.side << FROM_HIGH_AT
