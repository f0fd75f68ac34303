# A short message of records: a binary head, then the columns; its schema is elsewhere.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Layout

# Places in the head; all numbers are little-endian.
cdef enum:
    MAGIC_AT = 0                        # 4 bytes
    VERSION_AT = 4                      # u16
    HOST_BYTES_AT = 6                   # u16
    SIZE_AT = 8                         # u32: bytes of the whole message
    CRC_AT = 12                         # u32: CRC32C of the whole message, with zeros here
    SCHEMA_AT = 16                      # 16 bytes: which schema
    RUN_AT = 32                         # u64
    PIPELINE_AT = 40                    # u32
    PARTITION_AT = 44                   # u32
    RECORDS_AT = 48                     # u32; then 4 bytes of zeros
    SEQ_AT = 56                         # u64
    FIRST_AT = 64                       # i64, ns
    LAST_AT = 72                        # i64, ns
    DROPPED_AT = 80                     # u64
    HOST_AT = 88                        # padded with zeros to 8 bytes

cdef inline size_t padded(size_t n) noexcept nogil:
    return (n + 7) & ~<size_t>7

cdef inline uint32_t size_of(const uint8_t* value) noexcept nogil:
    """Bytes of a message that was packed here."""
    return (<const uint32_t*>(value + SIZE_AT))[0]

cdef inline uint32_t records_of(const uint8_t* value) noexcept nogil:
    return (<const uint32_t*>(value + RECORDS_AT))[0]

cdef class ShortShape:
    cdef readonly Layout layout
    cdef readonly bytes head            # with zeros for its numbers
    cdef readonly size_t size           # bytes of head
    cdef const uint8_t* start           # of head
    cdef size_t bytes_of(self, uint32_t rows) noexcept nogil
    cdef void seal(self, uint8_t* value, uint32_t rows, uint32_t partition, uint64_t seq, uint64_t first, uint64_t last,
                   uint64_t dropped) noexcept nogil
