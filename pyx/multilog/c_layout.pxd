# The bytes on disk: control page, lane lines, block heads, seals.  docs/format.md has the same in tables;
# a test compares the two.  All integers little endian, all structs naturally aligned.

from libc.stdint cimport uint8_t, uint32_t, uint64_t, int64_t
from c_block cimport Column, Zone, BLOCK_ROWS

cdef enum:
    FORMAT_VERSION = 1
    PACKED_VERSION = 2              # of a log that may have compressed segments, and of their seals
    ENDIAN_MARK = 0x01020304
    PAGE = 4096
    LINE_BYTES = 64
    HEAD_BYTES = 128                # block head, before the zones
    SEAL_BYTES = 128                # seal record, before the page checksums
    SEAL_GAP = 64                   # from the end of the data, where EOS is, to the seal record
    CONTROL_CHECKED = 2048          # bytes of the control page under its checksum
    MAX_LANES = 4096
    MAX_SEGMENT_BLOCKS = 1024
    MAX_COLUMNS = 250
    PACKED_MESSAGE = 64             # bytes by which the batch message of a compressed segment is longer
    HEAD_BIT = 255                  # in a column mask: the block head
    MASK_U64 = 4

cdef extern from *:
    """
    #define CFL_CONTROL_MAGIC "CFLCTRL"
    #define CFL_BLOCK_MAGIC "CFLBLCK"
    #define CFL_SEAL_MAGIC "CFLSEAL"
    #define CFL_PACKED_MAGIC "CFLPACK"
    #define CFL_PLACES_MAGIC "CFLPLAC"
    #define CFL_ARROW_MAGIC "ARROW1\\0"
    """
    const char* CONTROL_MAGIC "CFL_CONTROL_MAGIC"       # 8 bytes each, the last of them NUL
    const char* BLOCK_MAGIC "CFL_BLOCK_MAGIC"
    const char* SEAL_MAGIC "CFL_SEAL_MAGIC"
    const char* PACKED_MAGIC "CFL_PACKED_MAGIC"
    const char* PLACES_MAGIC "CFL_PLACES_MAGIC"
    const char* ARROW_MAGIC "CFL_ARROW_MAGIC"

cdef enum:                          # sync modes
    SYNC_NONE = 0
    SYNC_SEAL = 1
    SYNC_BATCH = 2

cdef struct ControlPage:
    char magic[8]                   # CONTROL_MAGIC
    uint32_t version                # FORMAT_VERSION
    uint32_t endian                 # ENDIAN_MARK
    uint8_t uuid[16]
    uint32_t block_rows             # BLOCK_ROWS
    uint32_t segment_blocks
    uint32_t lanes                  # number of lane lines
    uint32_t line_bytes             # LINE_BYTES
    uint64_t lanes_offset           # of line 0
    uint64_t schema_offset          # of the Arrow schema message
    uint32_t schema_bytes
    uint32_t schema_crc             # CRC32C of the message
    uint32_t sync
    uint32_t message_bytes          # of the record batch message of a segment of this schema
    int64_t created                 # ns since 1970 UTC

cdef enum:
    CONTROL_CRC = 2044              # u32: CRC32C of the bytes before it
    CONTROL_CLAIMED = 2048          # u32: number of lanes ever claimed; the only mutable word of the page

cdef struct Line:
    uint64_t tail                   # c_atomic.pxd
    uint64_t deadline               # CLOCK_BOOTTIME ns at which the freezes in force end
    uint64_t sealed                 # rows below this are in sealed segments
    uint64_t first                  # first row kept
    uint64_t epoch                  # number of claims of this lane
    uint64_t started                # owner's start time, clock ticks since boot (/proc/PID/stat, field 22)
    uint64_t boot                   # first 8 bytes of the boot id under which the owner runs
    uint32_t pid                    # owner, 0 when closed; informative: the lock on lane-NNN/lock decides
    uint32_t seals                  # segments sealed

cdef struct BlockHead:
    char magic[8]                   # BLOCK_MAGIC
    uint8_t uuid[16]
    uint64_t base                   # row number of row 0 in the lane
    uint32_t lane
    uint32_t number                 # of the block in its segment
    uint32_t capacity               # capacity in rows
    uint32_t columns
    uint64_t used[4]                # bit i: column i is not all zero

cdef struct PackedHead:             # block head of a compressed segment
    BlockHead head                  # its magic is PACKED_MAGIC
    uint64_t end                    # of the data of the segment: where its trailer begins

cdef struct Places:                 # after the page checksums of a compressed segment
    uint32_t crc                    # CRC32C of what follows: this struct, the blocks, the buffers
    uint32_t codec                  # 1 LZ4, 2 zstd
    uint64_t rows
    uint32_t capacity               # rows of a block
    uint32_t blocks
    uint32_t columns
    uint32_t zero
    # u64 offsets of the blocks, and of the end of the data; then a Place for each column of each block

cdef struct Place:                  # of a compressed buffer
    uint64_t at                     # in the file
    uint64_t size

cdef struct PlacesEnd:              # after the places, before the Arrow footer
    char magic[8]                   # PLACES_MAGIC
    uint64_t end                    # of the data

cdef struct Seal:
    char magic[8]                   # SEAL_MAGIC
    uint32_t version
    uint32_t lane
    uint8_t uuid[16]
    uint64_t base
    uint64_t rows
    uint32_t blocks
    uint32_t capacity
    uint32_t pages                  # number of checksums that follow, one per 4 KiB page of the file
    uint32_t footer_bytes           # of the footer, its length and ARROW1
    uint32_t footer_crc             # CRC32C of these
    uint32_t pages_crc              # CRC32C of the page checksums and the zeros after them
    int64_t sealed                  # ns since 1970 UTC

cdef enum:
    SEAL_CRC = 124                  # u32: CRC32C of the bytes from EOS to here

cdef struct Geometry:
    uint32_t header                 # bytes before block 0: ARROW1, schema message
    uint32_t message                # bytes of a record batch message
    uint32_t zones                  # offset of the zones from the start of a block
    uint32_t capacity               # rows of a block
    int n
    uint64_t stride                 # from block to block
    uint64_t column[250]            # offsets of the columns from the start of a block

cdef inline uint64_t round_up(uint64_t n, uint64_t size) noexcept nogil:
    return (n + size - 1) // size * size

cdef inline void geometry(Geometry* g, const Column* column, int n, uint32_t header, uint32_t message,
                          uint32_t capacity) noexcept nogil:
    """Compute the offsets in a segment: a pure function of the columns and the capacity.

    Columns follow each other, 64-byte aligned.  A column with a length that is a multiple of 4 KiB gets 64 bytes
    more, because columns at equal offsets modulo 4 KiB compete for the same cache sets.
    """
    cdef uint64_t at, size
    cdef int i
    g.header, g.message, g.capacity, g.n = header, message, capacity, n
    g.zones = message + HEAD_BYTES
    at = round_up(g.zones + <uint64_t>n * sizeof(Zone), 64)
    for i in range(n):
        g.column[i] = at
        size = round_up(<uint64_t>column[i].width * capacity, 64)
        at += size + (64 if size % PAGE == 0 else 0)
    g.stride = round_up(at, PAGE)

cdef inline uint32_t blocks_of(const Geometry* g, uint64_t rows) noexcept nogil:
    return <uint32_t>((rows + g.capacity - 1) // g.capacity)

cdef inline uint64_t data_end(const Geometry* g, uint64_t rows) noexcept nogil:
    return g.header + blocks_of(g, rows) * g.stride

cdef inline uint64_t seal_bytes(uint64_t end) noexcept nogil:
    """Offsets of EOS, seal record and page checksums after data that ends at `end`."""
    return SEAL_GAP + SEAL_BYTES + round_up(end // PAGE * 4, 64)
