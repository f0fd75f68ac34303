# Datagrams of exporters into rows: NetFlow, IPFIX, sFlow.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from c_netflow cimport ExportDecoder
from c_sflow cimport SampledPacket
from c_udp_payload cimport Datagram
from confluo_tools.core.block.block cimport Block, Layout, Staging

cdef enum:
    MAX_TARGETS = 64

cdef struct Target:
    uint8_t address[16]
    bint any_address
    uint16_t port               # 0: any
    bint sflow

cdef class FlowExports:
    cdef readonly Layout layout
    cdef ExportDecoder* d
    cdef SampledPacket sampled
    cdef Staging out                    # being filled
    cdef list full                      # blocks before it
    cdef list spare                     # zeroed, to be filled
    cdef Target[MAX_TARGETS] target     # of datagrams in captures
    cdef int targets
    cdef readonly unsigned long long frames     # of captures
    cdef readonly unsigned long long partial    # datagrams to a target that are fragments, or cut
    cdef bint _next(self) except -1
    cdef Target* wanted(self, const Datagram* g) noexcept nogil
    cdef void datagram(self, bint sflow, const uint8_t* p, uint32_t size, const uint8_t* address, uint16_t port,
                       int64_t received) noexcept nogil
    cdef void _zero(self, Staging block, int column) noexcept nogil
    cpdef Block take(self)
