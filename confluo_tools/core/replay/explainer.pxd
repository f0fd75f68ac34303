# TCP connections explained, for `confluo-replay explain`.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from c_conversation cimport KeyedRow
from c_explain_state cimport Packet, Result
from c_hash_table cimport LruTable
from confluo_tools.core.block.block cimport Block, Layout
from confluo_tools.core.packets.tcp_columns cimport TcpColumns

cdef class Explainer:
    cdef readonly Layout layout         # of the input
    cdef readonly int taps
    cdef TcpColumns columns             # of the input
    cdef LruTable flows
    cdef LruTable places                # at which end each tap is
    cdef Result result
    cdef uint64_t[2] numbers            # rows of finished blocks of each tap
    cdef readonly uint64_t packets      # TCP segments seen
    cdef LruTable only                  # the connections chosen
    cdef public bint chosen             # only those
    cdef void _evidence(self, Block block, uint32_t r, Packet* p) noexcept nogil
    cdef void _fetch(self, Block block, const KeyedRow* batch, uint32_t n) noexcept nogil
    cdef void _one(self, Block block, KeyedRow* b, int tap) noexcept nogil
