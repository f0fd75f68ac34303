# Sliding windows by key, and the triggers on them.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from c_hash_table cimport HashTable
from c_window cimport Cond
from confluo_tools.core.block.block cimport Layout

cdef struct Entry:                      # what one source says of one key in one bucket
    int32_t id
    int32_t prev                        # entries of the same key
    int32_t next
    int32_t after                       # entries of the same bucket, or free ones
    int32_t source
    int32_t live                        # its bucket is in the window

cdef struct SourceOf:                   # of rows: a layout of its own
    int first, keys                     # columns of the key
    int values
    int* unit
    int* col
    int* code

cdef class KeyedWindows:
    cdef readonly int64_t window, period, grain
    cdef readonly int64_t next          # ns: the next tick
    cdef readonly int units, tests
    cdef readonly uint64_t lost, dropped
    cdef readonly uint32_t keys, most   # known now, at most
    cdef int64_t end, n, step, slots
    cdef uint64_t seed
    cdef int ints, wide                 # sums of integers; values of an entry
    cdef uint32_t key_bytes
    cdef list layouts, memory
    cdef SourceOf* source
    cdef int sources
    cdef int* kind
    cdef int* place
    cdef double* value
    cdef Cond* cond
    cdef Cond* clear
    cdef int32_t* first                 # of each slot of the ring: its entries, -1 none
    cdef Entry* entry
    cdef int64_t* val                   # `wide` of each entry: integers, or the bits of a double
    cdef int32_t entries, entry_room, entry_free
    cdef uint32_t ids, id_room
    cdef int32_t id_free
    cdef uint64_t* hash                 # by id
    cdef uint32_t* refs                 # its entries
    cdef int32_t* chain
    cdef int64_t* total                 # `ints` each
    cdef uint8_t* state                 # `tests` each
    cdef uint8_t* flag
    cdef uint8_t* key
    cdef HashTable id_of                # id by hash
    cdef int32_t* dirty
    cdef uint32_t dirties, dirty_room
    cdef int32_t* idle                  # perhaps to be forgotten
    cdef uint32_t idles, idle_room
    cdef uint64_t* changed              # id * tests + test
    cdef uint32_t changes, change_room
    cdef int32_t find(self, uint64_t hash, const uint8_t* key, bint make) noexcept nogil
    cdef int32_t new_id(self, uint64_t hash, const uint8_t* key) noexcept nogil
    cdef void forget(self, int32_t id) noexcept nogil
    cdef int touch(self, int32_t id) noexcept nogil
    cdef void count_in(self, Entry* e, int32_t at, int64_t sign) noexcept nogil
    cdef void remove(self, int32_t at) noexcept nogil
    cdef void empty(self, int64_t slot) noexcept nogil
    cdef int put(self, SourceOf* s, const uint8_t** col, const uint32_t* width, uint32_t row,
                 uint8_t* key) noexcept nogil
    cdef void evaluate(self, int32_t id) noexcept nogil
    cdef int move(self) noexcept nogil
