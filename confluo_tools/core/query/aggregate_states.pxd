# Aggregate states of a roll-up: one mergeable fixed-width state per group and aggregate.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from c_hash_table cimport HashTable
from c_source cimport Chunk, Source

cdef extern from "wide.h" nogil:
    cdef struct total:
        uint64_t low
        int64_t high
    cdef struct moments:
        uint64_t n
        total sum
    void total_add(total* t, const total* o) noexcept
    void total_add_halves(total* t, uint64_t low, int64_t high) noexcept
    void total_add_u(total* t, uint64_t v) noexcept
    void total_add_i(total* t, uint64_t v) noexcept
    int total_as_u(const total* t, uint64_t* out) noexcept
    int total_as_i(const total* t, uint64_t* out) noexcept
    double total_mean(const total* t, uint64_t n) noexcept
    int64_t total_mean_int(const total* t, uint64_t n) noexcept
    double total_double(const total* t) noexcept
    void moments_add_u(moments* m, uint64_t v) noexcept
    void moments_add_i(moments* m, uint64_t v) noexcept
    void moments_merge(moments* m, const moments* o) noexcept
    void moments_add(moments* m, int is_signed, const uint64_t* v, uint32_t n) noexcept
    double moments_stddev(const moments* m) noexcept

cdef extern from "load.h" nogil:
    cdef struct reduced:
        uint64_t low
        int64_t high
        uint64_t min
        uint64_t max
        double sum
        double error
        uint64_t n
    void reduce_column(reduced* r, int code, const void* p, uint32_t n) noexcept
    double square_differences(const double* p, uint32_t n, double mean) noexcept
    void two_sum(double* s, double* e, double x) noexcept

cdef enum StateKind:
    COUNT = 1               # rows
    VALUES = 2              # values: nonzero elements of a list
    SUM_INT = 3
    SUM_FLOAT = 4
    MIN = 5
    MAX = 6
    MOMENTS_INT = 7
    MOMENTS_FLOAT = 8
    MIN_BYTES = 9           # addresses (family, 16 bytes) and bytes fields
    MAX_BYTES = 10
    FIRST = 11
    LAST = 12
    DISTINCT = 13
    HYPER = 14
    HISTOGRAM = 15

cdef struct FloatSum:
    double sum
    double error            # accumulated rounding error
    uint64_t n

cdef struct FloatMoments:
    uint64_t n
    double mean
    double square           # sum of squared differences from the mean (Welford)

cdef struct Event:          # FIRST, LAST: which row, followed by the bytes of its field
    int64_t time
    uint64_t row
    int32_t lane
    uint32_t seen

cdef struct Value:          # the values of one field of a chunk, shared by states
    Source source
    int domain              # c_sketch.Domain
    uint64_t* v
    uint32_t n
    const uint32_t* group   # group of each value
    uint32_t* own           # buffer for `group` unless there is one value per row; zero without keys
    uint8_t* present

cdef struct State:
    int kind
    int value               # number of the Value, -1: none
    bint keyless            # one group
    uint32_t width          # bytes per group
    uint32_t payload        # FIRST, LAST, *_BYTES: bytes of the value
    uint8_t* data
    uint32_t groups         # number of groups with a state
    uint32_t room
    HashTable table             # DISTINCT: (group, value); HISTOGRAM: group << 32 | bucket
    uint64_t* tally         # HISTOGRAM: counts, by number in the table, or by bucket if keyless
    uint32_t tallies
    uint32_t* order         # HISTOGRAM: the numbers of its table sorted by (group, bucket), while finishing
    int p                   # HYPER: 2^p registers

cdef int load_value_chunk(Value* value, const Chunk* c) noexcept nogil
cdef int state_groups(State* s, uint32_t groups, const Value* value) noexcept nogil
cdef void state_reduced(State* s, const Value* value, const reduced* r, uint32_t group, uint64_t n) noexcept nogil
cdef int state_update(State* s, Value* value, const Chunk* c, const reduced* r) noexcept nogil
cdef int state_merge(State* s, State* o, const Value* value, const uint32_t* group, uint32_t groups,
                     const uint32_t* to, uint64_t offset) noexcept nogil
cdef uint64_t state_memory(const State* s) noexcept nogil
cdef void state_rank(State* s, int32_t source) noexcept nogil
cdef void state_free(State* s) noexcept nogil
cdef uint64_t order_value(int domain, uint64_t v) noexcept nogil
cdef uint64_t value_of_order(int domain, uint64_t v) noexcept nogil
