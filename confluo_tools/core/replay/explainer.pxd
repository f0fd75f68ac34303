# TCP connections explained, for `confluo-replay explain`.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from c_conversation cimport KeyColumns, KeyedRow
from c_explain cimport Result
from c_hash_table cimport LruTable
from confluo_tools.core.block.block cimport Block, Layout

cdef class Explainer:
    cdef readonly Layout layout         # of the input
    cdef readonly int taps
    cdef int[32] column                 # input column of each column used
    cdef KeyColumns ends
    cdef LruTable flows
    cdef LruTable places                # at which end each tap is
    cdef Result result
    cdef uint64_t[2] numbers            # rows of finished blocks of each tap
    cdef readonly uint64_t packets      # TCP segments seen
    cdef LruTable only                  # the connections chosen
    cdef public bint chosen             # only those
    cdef bint stopped
    cdef uint32_t _gather(self, Block block, uint32_t* row, int64_t until, KeyedRow* batch) noexcept nogil
    cdef const uint8_t* _col(self, Block block, int use) noexcept nogil
    cdef void _one(self, Block block, KeyedRow* b, int tap) noexcept nogil
