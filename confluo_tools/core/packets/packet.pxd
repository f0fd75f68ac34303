# Parse frames into rows of a schema.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from c_block cimport Zone
from c_pcap cimport Frame
from c_packet_columns cimport COLS, Rows
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.packets.pcap cimport Capture

cdef class PacketBlock(Block):
    cdef Rows* r
    cdef uint8_t* extra                 # converted columns and raw bytes
    cdef Zone* zones                    # exact for columns without a value, else as wide as possible
    cdef int _make(self, size_t extra) except -1
    cdef void _show(self, int i, const uint8_t* data, bint used) noexcept nogil

cdef struct Convert:
    # A column that the schema stores in another integer type.
    int column
    uint32_t source                     # offset in Rows
    uint32_t source_size                # of one element
    uint32_t size
    uint32_t count                      # elements a row
    uint64_t max_value                  # larger values are stored as this
    uint64_t bit
    size_t out                          # offset in extra

cdef class Packets:
    cdef readonly Layout layout
    cdef readonly uint32_t capacity
    cdef readonly uint32_t waiting      # rows parsed and not yet taken
    cdef readonly bint inner
    cdef readonly bint hop_ns
    cdef readonly uint32_t snap
    cdef PacketBlock block              # being filled
    cdef list pool                      # blocks to use again when they have no other owner
    cdef int[64] place                  # schema column of each packet column; -1: none, or converted
    cdef (const uint8_t*)[64] zero        # data of the column in a batch without values
    cdef const uint8_t* none            # zeros for a converted column
    cdef Convert[64] convert
    cdef int converts
    cdef int raw                        # schema column of the raw bytes, -1
    cdef size_t raw_at
    cdef int digest                     # schema column of packet_digest, -1
    cdef size_t digest_at
    cdef size_t extra_size
    cdef uint64_t[9] note_counts        # of NOTES, and of tunnels that were not followed
    cdef uint16_t[8] strange_link       # link types of frames that were not parsed
    cdef uint32_t strange_links
    cdef void _strange(self, uint16_t link) noexcept nogil
    cdef readonly uint64_t wire_bytes
    cdef void put(self, const Frame* f) noexcept nogil
    cdef void present(self) noexcept nogil
    cdef void again(self) noexcept nogil
    cdef int _fresh(self) except -1
    cdef int _fill(self, Capture capture) noexcept nogil
    cpdef bint ready(self) except -1
    cpdef Block take(self)

# sample_flows and sample_packets without the GIL: n > 0; `hashes` is the column flow_hash of the block.
cdef void keep_flows(const uint32_t* hashes, Picks picks, uint32_t n) noexcept nogil
cdef uint64_t keep_every(Picks picks, uint64_t seen, uint64_t n) noexcept nogil
