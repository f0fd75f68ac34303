# TCP connections explained, for `confluo-replay explain`.

from libc.stdint cimport uint32_t, uint64_t
from c_conversation cimport KeyedRow
from c_explain_batch cimport Batch
from c_explain_input cimport PacketColumns
from c_explain_state cimport Result
from c_hash_table cimport LruTable
from confluo_tools.core.block.block cimport Layout
from confluo_tools.core.packets.tcp_columns cimport TcpColumns

cdef class Explainer:
    cdef readonly Layout layout         # of the input
    cdef readonly int taps
    cdef TcpColumns columns             # of the input
    cdef LruTable flows                 # numbers of connections
    cdef LruTable places                # at which end each tap is
    cdef Batch batch
    cdef Result result
    cdef uint64_t[2] numbers            # rows of finished blocks of each tap
    cdef readonly uint64_t packets      # TCP segments seen
    cdef LruTable only                  # the connections chosen
    cdef public bint chosen             # only those
    cdef int _check(self) except -1
    cdef void _add(self, const PacketColumns* columns, const KeyedRow* b, int tap) noexcept nogil
    cdef void _begin(self, const KeyedRow* b, uint32_t connection) noexcept nogil
