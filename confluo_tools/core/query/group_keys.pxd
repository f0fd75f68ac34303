# Group keys of a roll-up.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_hash_table cimport HashTable
from c_key_ends cimport KeyEnds
from c_source cimport Chunk, Source
from confluo_tools.core.block.block cimport Layout

cdef struct KeyPart:
    Source source
    uint32_t word           # position of its bits in the packed key
    uint32_t shift

cdef uint64_t part_of(const KeyPart* p, const uint64_t* key) noexcept nogil

cdef class GroupTable:
    cdef readonly Layout layout
    cdef readonly tuple keys
    cdef KeyPart* part
    cdef readonly int parts
    cdef list kept                      # calculations of keys
    cdef uint32_t words
    cdef HashTable table                    # packed key -> number
    cdef uint32_t* direct               # single 8- or 16-bit key: number + 1 by value, instead of the table
    cdef uint32_t* window               # keys of one word: number + 1 of the keys from `base` on, 0 not looked up yet
    cdef uint64_t base
    cdef uint32_t missed                # number of chunks that would fit into another window
    cdef uint64_t** word                # the words of the keys of a chunk
    cdef bint narrow
    cdef KeyEnds in_order               # of keys of connections
    cdef KeyEnds exchanged              # of keys of hosts
    cdef bint twice            # each row has two groups
    cdef bint second                    # the second one is looked up
    cdef int _take_ends(self, KeyEnds* e, int kind) except -1
    cdef void _turn(self, const Chunk* c) noexcept nogil
    cdef const Chunk* _seen(self, const Source* s, const Chunk* c) noexcept nogil
    cdef int64_t other_ends(self, Chunk* c, uint16_t* rows) noexcept nogil
    cdef uint32_t count(self) noexcept nogil
    cdef int assign(self, Chunk* c, uint32_t* out) noexcept nogil
    cdef uint32_t at(self, uint64_t value) noexcept nogil
    cdef bint _aim(self, uint64_t low, uint64_t high) noexcept nogil
    cdef void _look(self, uint32_t n, uint32_t* out) noexcept nogil
    cdef int adopt(self, GroupTable other, uint32_t* out, const uint8_t* share, uint8_t wanted) noexcept nogil
    cdef void _insert(self, GroupTable other, const uint32_t** renumbered, uint32_t* out, const uint8_t* share,
                      uint8_t wanted) noexcept nogil
    cdef void shares(self, uint64_t seed, int shift, uint8_t* out) noexcept nogil
    cdef uint64_t memory(self) noexcept nogil
    cdef int column(self, int part, uint8_t* out, uint8_t* out6) noexcept nogil
