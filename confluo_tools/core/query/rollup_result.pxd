# Result columns of a roll-up.

from libc.stdint cimport uint32_t
from confluo_tools.core.block.block cimport Layout
from confluo_tools.core.block.result_table cimport Rows
from confluo_tools.core.query.aggregate_states cimport State, Value

cdef enum Func:
    F_COUNT = 0
    F_SUM = 1
    F_AVG = 2
    F_STDDEV = 3
    F_MIN = 4
    F_MAX = 5
    F_FIRST = 6
    F_LAST = 7
    F_DISTINCT = 8
    F_HYPER = 9
    F_QUANTILE = 10
    F_RATE = 11

cdef struct Output:                     # one aggregate of the result, made of these states (-1: none)
    int func
    int state
    int count                           # number of values
    int low                             # quantiles: smallest and largest value
    int high
    uint32_t millionths                 # quantiles

cdef int check_column(Layout layout, int i, int code, uint32_t width) except -1
cdef int finish_column(const Output* o, State* states, Value* values, Rows rows, int column, double seconds) except -1
cdef void forget_order(State* s) noexcept nogil
