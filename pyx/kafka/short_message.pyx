"""Short messages: a binary head and the columns, without the schema that makes most of a small Arrow stream."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from c_block cimport BLOCK_ROWS
from c_crc cimport crc32c_more
from confluo_tools.core.block.block cimport Block, Layout
cimport cython


cdef inline void _put(uint8_t* p, uint64_t v) noexcept nogil:
    memcpy(p, &v, 8)


cdef inline void _put4(uint8_t* p, uint32_t v) noexcept nogil:
    memcpy(p, &v, 4)


cdef inline uint32_t _get4(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v


cdef inline uint32_t _host_bytes(const uint8_t* value) noexcept nogil:
    return value[HOST_BYTES_AT] | <uint32_t>value[HOST_BYTES_AT + 1] << 8


cdef uint32_t _crc(const uint8_t* value, size_t size) noexcept nogil:
    """CRC32C of a message, with zeros for its own CRC."""
    cdef uint32_t crc = crc32c_more(0, value, CRC_AT)
    crc = crc32c_more(crc, <const uint8_t*>b"\0\0\0\0", 4)
    return crc32c_more(crc, value + CRC_AT + 4, size - CRC_AT - 4)


cdef bint _empty(const uint8_t* p, size_t start, size_t end) noexcept nogil:
    """Whether these bytes are zeros."""
    cdef size_t at
    for at in range(start, end):
        if p[at]:
            return False
    return True


cdef size_t _body(Layout layout, uint32_t rows) noexcept nogil:
    """Bytes of the columns of a message."""
    cdef size_t n = 0
    cdef int i
    for i in range(layout.n):
        n += padded(<size_t>rows * layout.column[i].width)
    return n


@cython.final
cdef class ShortShape:
    """What the short messages of one producer have in common: the columns of ``layout``, and ``head``.

    Raises ValueError for a head that is too short for its host.
    """

    def __cinit__(self, Layout layout not None, bytes head not None):
        self.layout, self.head, self.size, self.start = layout, head, len(head), head
        if self.size < HOST_AT or self.size != HOST_AT + padded(_host_bytes(self.start)):
            raise ValueError(f"a head of {self.size} bytes")

    cdef size_t bytes_of(self, uint32_t rows) noexcept nogil:
        """Bytes of a message of ``rows`` rows: a multiple of 8."""
        return self.size + _body(self.layout, rows)

    cdef void seal(self, uint8_t* value, uint32_t rows, uint32_t partition, uint64_t seq, uint64_t first, uint64_t last,
                   uint64_t dropped) noexcept nogil:
        """Write the head of a message that has its columns."""
        cdef size_t size = self.bytes_of(rows)
        memcpy(value, self.start, self.size)
        _put4(value + SIZE_AT, <uint32_t>size)
        _put4(value + PARTITION_AT, partition)
        _put4(value + RECORDS_AT, rows)
        _put(value + SEQ_AT, seq)
        _put(value + FIRST_AT, first)
        _put(value + LAST_AT, last)
        _put(value + DROPPED_AT, dropped)
        _put4(value + CRC_AT, _crc(value, size))


def sound(bytes value not None):
    """Whether the checksum of a short message is right."""
    return len(value) >= HOST_AT and _get4(<const uint8_t*>value + CRC_AT) == _crc(value, len(value))


def read_columns(Layout layout not None, bytes value not None):
    """The rows of a short message, no copy.

    None when their number does not fit its length, or there is something in the padding.
    """
    cdef const uint8_t* p = value
    cdef size_t size = len(value), at, end
    cdef uint32_t rows
    cdef int i
    if size < HOST_AT:
        return None
    rows, end = _get4(p + RECORDS_AT), HOST_AT + _host_bytes(p)
    at = padded(end)
    if rows > BLOCK_ROWS or at + _body(layout, rows) != size or not _empty(p, end, at):
        return None
    cdef Block block = Block(layout)
    for i in range(layout.n):
        if rows:
            block.col[i] = p + at
        end = at + <size_t>rows * layout.column[i].width
        at = padded(end)
        if not _empty(p, end, at):
            return None
    block.rows, block.owner = rows, value
    return block
