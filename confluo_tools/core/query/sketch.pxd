# States with their own tables.

from libc.stdint cimport uint32_t
from c_sketch cimport Hyper
from confluo_tools.core.query.aggregate_states cimport State, Value

cdef bint is_paged(const Value* value) noexcept nogil
cdef int distinct_update(State* s, const Value* value) noexcept nogil
cdef int histogram_update(State* s, const Value* value) noexcept nogil
cdef int hyper_update(State* s, const Value* value) noexcept nogil
cdef int hyper_merge(Hyper* ours, const Hyper* theirs, int p) noexcept nogil
cdef double hyper_count(const State* s, uint32_t group) noexcept nogil
cdef int merge_distinct(State* s, const State* o, const Value* value, const uint32_t* group,
                        const uint32_t* to) noexcept nogil
cdef int merge_histogram(State* s, const State* o, const uint32_t* group) noexcept nogil
