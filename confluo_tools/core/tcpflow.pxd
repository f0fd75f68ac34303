# TCP conversations, for `--analyze tcp`.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_tcpflow cimport Flow, Memory
from confluo_tools.core.block cimport Block, Layout

cdef struct Row:                    # of a batch
    uint64_t key[5]
    uint64_t hash
    uint32_t row
    int side                        # of the sender

cdef class TcpFlows:
    cdef readonly Layout layout         # of the input
    cdef readonly Layout result         # with the fields of the analysis at the end
    cdef int column[24]                 # where the input has what we need
    cdef Flow* flow
    cdef uint32_t* bucket               # flow + 1 by hash
    cdef uint32_t mask
    cdef readonly uint32_t count        # flows in memory
    cdef readonly uint32_t most
    cdef uint32_t room
    cdef uint32_t newest                # + 1
    cdef uint32_t oldest
    cdef Memory memory
    cdef uint64_t seed[2]
    cdef readonly uint64_t packets      # TCP segments seen
    cdef readonly uint64_t evicted      # flows forgotten because there were too many
    cdef uint32_t find(self, const uint64_t* key, uint64_t hash) noexcept nogil
    cdef int more(self) noexcept nogil
    cdef void touch(self, uint32_t i) noexcept nogil
    cdef void unlink(self, uint32_t i) noexcept nogil
    cdef int _one(self, Block block, Block out, Row* b) noexcept nogil
    cdef uint32_t _gather(self, Block block, uint32_t* row, Row* batch) noexcept nogil
    cdef const uint8_t* _col(self, Block block, int need) noexcept nogil
    cdef void _key(self, Block block, Row* b) noexcept nogil
    cdef void _restart(self, Flow* f) noexcept nogil
    cdef uint32_t _place(self, const Flow* f) noexcept nogil
    cdef int run(self, Block block, Block out) noexcept nogil
