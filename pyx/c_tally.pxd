# What a tally of probes keeps: cells of counters, drops that may be somebody's, what hosts told.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_hash cimport Table
from c_values cimport Values

cdef enum:
    CHUNK = 256             # rows whose keys are looked up together
    LIMITS = 4
    SIGNATURE = 8
    MOST_WORDS = 32         # of a key
    MOST_WINDOWS = 1 << 20
    PROBES = 16             # kinds below it
    HOST = 16
    OK = 1
    BLAMED = 4              # note `overflow`
    NAMED = 4               # words of a name
    TARGET = 6              # words that tell a host: name, or zeros and the address

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
    N_NETWORK               # sums in ns, over probes that have both: round trips
    N_SEEN                  # and what the program saw
    N_ABOVE
    N_ALL = N_ABOVE + LIMITS

cdef struct Cell:
    uint64_t count[N_ALL]
    Values rtt
    Values seen

cdef struct Drop:
    # A probe that was answered after a retry, by a target that may own up to it.
    int64_t ts
    int64_t end
    uint32_t cell
    uint32_t target
    uint32_t retries
    uint32_t hint

cdef struct Window:
    int64_t start
    Table table
    Cell* cell
    uint64_t room
    Drop* drop
    uint64_t drops
    uint64_t drop_room

cdef struct Span:
    int64_t ts
    int64_t end
    uint32_t name           # targets: by name, by address; NONE
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
    uint32_t word           # where it begins in the key
    uint32_t words
