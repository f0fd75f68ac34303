# TCP conversations, for `--analyze tcp`.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_conversation cimport KeyedRow
from c_hash_table cimport LruTable
from c_tcp_analysis cimport Flow, Memory
from confluo_tools.core.block.block cimport Block, Layout
from confluo_tools.core.packets.tcp_columns cimport TcpColumns

cdef class TcpFlows:
    cdef readonly Layout layout         # of the input
    cdef readonly Layout result         # with the fields of the analysis at the end
    cdef TcpColumns columns             # of the input
    cdef LruTable flows
    cdef Memory memory
    cdef readonly uint64_t packets      # TCP segments seen
    cdef int _one(self, Block block, Block out, KeyedRow* b) noexcept nogil
    cdef void _restart(self, Flow* f) noexcept nogil
    cdef int run(self, Block block, Block out) noexcept nogil
