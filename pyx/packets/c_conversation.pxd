# The key of a TCP conversation in a block of packets: both directions of a flow have one key.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef struct KeyColumns:             # columns of the block; -1: the block lacks it
    int src, dst, sport, dport      # needed
    int version, src6, dst6

cdef struct KeyedRow:
    uint64_t key[5]                 # the lower end (address, port) comes first
    uint64_t hash
    uint32_t row
    int side                        # of the sender: 0 if it is the lower end


cdef inline uint32_t read_ends(const uint8_t** col, const KeyColumns* at, size_t r, uint64_t* source,
                               uint64_t* target) noexcept nogil:
    """The addresses of row ``r``, two words each; returns the IP version."""
    cdef uint32_t version = 4
    if at.version >= 0:
        version = col[at.version][r]
    source[1] = target[1] = 0
    if version == 6 and at.src6 >= 0 and at.dst6 >= 0:
        memcpy(source, col[at.src6] + r * 16, 16)
        memcpy(target, col[at.dst6] + r * 16, 16)
    else:
        source[0] = (<const uint32_t*>col[at.src])[r]
        target[0] = (<const uint32_t*>col[at.dst])[r]
    return version


cdef inline void ordered_key(const uint64_t* source, const uint64_t* target, uint64_t sport, uint64_t dport,
                             KeyedRow* b) noexcept nogil:
    """Fill ``key``, with the ports in the lower half of its last word, and ``side``."""
    cdef int side = source[0] > target[0]       # without branches: the two directions come in no order
    if source[0] == target[0]:
        side = source[1] > target[1] or (source[1] == target[1] and sport > dport)
    b.side = side
    b.key[2 * side], b.key[2 * side + 1] = source[0], source[1]
    b.key[2 - 2 * side], b.key[3 - 2 * side] = target[0], target[1]
    b.key[4] = sport << (16 - 16 * side) | dport << (16 * side)


cdef inline void conversation_key(const uint8_t** col, const KeyColumns* at, KeyedRow* b) noexcept nogil:
    """Fill ``key`` and ``side`` from the columns of the row ``row``."""
    cdef uint64_t source[2]
    cdef uint64_t target[2]
    cdef uint32_t version = read_ends(col, at, b.row, source, target)
    ordered_key(source, target, (<const uint16_t*>col[at.sport])[b.row], (<const uint16_t*>col[at.dport])[b.row], b)
    b.key[4] |= <uint64_t>version << 32
