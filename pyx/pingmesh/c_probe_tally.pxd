# State of the probe tally: cells of counters, drops that may be overflows of their targets, overflows of hosts.

from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from c_hash_table cimport HashTable, NOT_FOUND, table_find
from c_values cimport Values

cdef enum:
    CHUNK = 256             # rows per batch of key lookups
    LIMITS = 4
    SIGNATURE = 8
    MAX_WORDS = 32          # of a key
    MAX_WINDOWS = 1 << 18   # open at a time
    LOOK = 16               # updates between two checks of the memory in use
    FIRST_BITS = 6          # log2 of the initial slots of a window's table
    FIRST_ROOM = 40
    PROBES = 16             # kinds below are probes
    HOST = 16
    OK = 1
    FORWARD = 1             # hints
    REVERSE = 2
    BLAMED = 4              # note `overflow`
    NAMED = 4               # words of a name
    TARGET = 6              # words of a host's key: name, or zeros and the address

# Counters of a cell, in the order of `COUNTERS`.
cdef enum:
    N_OK
    N_DROPPED
    N_OVERFLOW
    N_TIMEOUT
    N_REFUSED
    N_UNREACHABLE
    N_RESET
    N_GARBLED
    N_LOCAL
    N_FORWARD
    N_REVERSE
    N_SLOW
    N_NETWORK               # sums in ns over probes that have both: round trips
    N_SEEN                  # and times seen by the program
    N_ABOVE
    N_ALL = N_ABOVE + LIMITS

cdef struct Cell:
    uint64_t count[N_ALL]
    Values rtt
    Values seen

cdef struct Drop:
    # A probe answered after a retry; the target's overflow counter may explain it.
    int64_t ts
    int64_t end
    uint32_t cell
    uint32_t target
    uint32_t retries
    uint32_t hint

cdef struct Window:
    int64_t start
    HashTable table
    Cell* cell
    uint64_t room
    Drop* drop
    uint64_t drops
    uint64_t drop_room

cdef struct Span:
    int64_t ts
    int64_t end
    uint32_t name           # keys of the target: by name, by address (or NONE)
    uint32_t address
    uint64_t overflows

cdef struct Rows:
    const int64_t* ts
    const uint8_t* kind
    const uint8_t* outcome
    const uint16_t* notes
    const uint8_t* retries
    const uint8_t* hint
    const int64_t* rtt
    const int64_t* elapsed
    const uint32_t* overflows
    const uint8_t* src
    const uint8_t* dst
    const uint32_t* src_ip
    const uint32_t* dst_ip
    const uint8_t* src_ip6
    const uint8_t* dst_ip6

cdef struct Part:
    int col
    uint32_t width
    uint32_t word           # first word in the key
    uint32_t words
    HashTable* classes          # values that have a class; NULL: no classes
    uint64_t* class_of

cdef inline uint64_t class_of(const Part* p, const uint8_t* value) noexcept nogil:
    """The class of a value of at most 32 bytes; 0: none."""
    cdef uint64_t key[4]
    cdef const HashTable* t = p.classes
    cdef uint32_t number
    if t.count == 0:
        return 0
    key[t.words - 1] = 0
    memcpy(key, value, p.width)
    number = table_find(t, key)
    return p.class_of[number] if number != NOT_FOUND else 0

cdef inline int64_t window_of(int64_t ts, int64_t length) noexcept nogil:
    cdef int64_t rest = ts % length
    if rest < 0:
        rest += length
    return ts - rest if ts >= INT64_MIN + rest else INT64_MIN

cdef inline void target_of(const uint8_t* name, uint32_t v4, const uint8_t* v6, uint64_t* key) noexcept nogil:
    # The key of a host: its name if set, otherwise its address.
    memset(key, 0, TARGET * 8)
    memcpy(key, name, NAMED * 8)
    if (key[0] | key[1] | key[2] | key[3]) == 0:
        memcpy(key + NAMED, v6, 16)
        if (key[4] | key[5]) == 0:
            key[4] = v4
