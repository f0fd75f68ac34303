"""Messages of records: packed from rows, and read back, without parsing.

A message is an Arrow stream of one schema and one batch.  All messages of a producer begin with the same bytes but for
some numbers, so a `MessageShape` knows where these are: a packer writes them, a reader compares the rest.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset
from c_block cimport BLOCK_ROWS
from c_crc cimport crc32c_more
from c_gather cimport gather
from confluo_tools.core.block.block cimport Block, Layout
from confluo_tools.core.kafka.short_message cimport ShortShape, padded
cimport cython

cdef enum:
    END_BYTES = 8
    MAX_PARTITION = 0x7fffffff


cdef inline size_t _padded(size_t n) noexcept nogil:
    return (n + 63) & ~<size_t>63


cdef inline void _put(uint8_t* p, uint64_t v) noexcept nogil:
    memcpy(p, &v, 8)


cdef inline int64_t _get(const uint8_t* p) noexcept nogil:
    cdef int64_t v
    memcpy(&v, p, 8)
    return v


cdef void _put_number(uint8_t* p, uint64_t v) noexcept nogil:
    cdef int i = DIGITS - 1
    memset(p, c' ', DIGITS)
    while True:
        p[i] = <uint8_t>(c'0' + v % 10)
        v //= 10
        i -= 1
        if v == 0 or i < 0:
            break


cdef bint _get_number(const uint8_t* p, uint64_t* out) noexcept nogil:
    """Read a padded number; False when there is none, or none of 64 bits."""
    cdef uint64_t v = 0, digit
    cdef int i = 0
    while i < DIGITS - 1 and p[i] == c' ':
        i += 1
    for i in range(i, DIGITS):
        if not c'0' <= p[i] <= c'9':
            return False
        digit = p[i] - c'0'
        if v > (~<uint64_t>0 - digit) // 10:
            return False
        v = v * 10 + digit
    out[0] = v
    return True


cdef void _put_crc(uint8_t* p, uint32_t v) noexcept nogil:
    cdef int i
    for i in range(CRC_DIGITS):
        p[i] = b"0123456789abcdef"[v >> 28]
        v <<= 4


cdef uint32_t _crc(const uint8_t* value, size_t size, size_t place) noexcept nogil:
    """CRC32C of a message, with zeros for its own CRC, at ``place``."""
    cdef uint32_t crc = crc32c_more(0, value, place)
    crc = crc32c_more(crc, <const uint8_t*>b"00000000", CRC_DIGITS)
    return crc32c_more(crc, value + place + CRC_DIGITS, size - place - CRC_DIGITS)


@cython.final
cdef class MessageShape:
    """What all messages of one producer have in common.

    ``head``: the schema message and the batch message.  ``columns``: (first node, buffer, elements of a list or 0) of
    each column of ``layout``.  ``places``: offsets in ``head`` of the numbers body_length, rows, nodes, buffers,
    partition, seq, first, last, records, dropped and crc, in this order.  ``time``: number of the column of times.
    Raises ValueError when a place is not in the head.
    """

    def __cinit__(self, Layout layout not None, bytes head not None, columns, places, int nodes, int buffers, int time):
        cdef int i
        cdef size_t at
        self.layout, self.head, self.size, self.time = layout, head, len(head), time
        self.n_nodes, self.n_buffers = nodes, buffers
        (self.body_length, self.rows, self.nodes, self.buffers, self.partition, self.seq, self.first, self.last,
         self.records, self.dropped, self.crc) = places
        for at, n in zip(places, (8, 8, 16 * nodes, 16 * buffers, *(DIGITS,) * 6, CRC_DIGITS)):
            if at + <size_t>n > self.size:
                raise ValueError(f"a number at {at}, after the head of {self.size} bytes")
        if len(columns) != layout.n:
            raise ValueError(f"{len(columns)} columns instead of {layout.n}")
        self.column = <ColumnPlace*>calloc(max(layout.n, 1), sizeof(ColumnPlace))
        self.fixed = <uint8_t*>malloc(max(self.size, 1))
        if self.column == NULL or self.fixed == NULL:
            raise MemoryError
        for i, (node, buffer, count) in enumerate(columns):
            if not 0 <= node < nodes or not 0 <= buffer < buffers or (count and node + 1 >= nodes):
                raise ValueError(f"column {i}: node {node}, buffer {buffer}")
            self.column[i].node, self.column[i].buffer, self.column[i].count = node, buffer, count
            self.column[i].width = layout.column[i].width
        self.start = head
        memcpy(self.fixed, self.start, self.size)
        self.blank(self.fixed)

    def __dealloc__(self):
        free(self.column)
        free(self.fixed)

    cdef void blank(self, uint8_t* head) noexcept nogil:
        """Put zeros at all places of numbers."""
        memset(head + self.body_length, 0, 8)
        memset(head + self.rows, 0, 8)
        memset(head + self.nodes, 0, 16 * <size_t>self.n_nodes)
        memset(head + self.buffers, 0, 16 * <size_t>self.n_buffers)
        memset(head + self.partition, 0, DIGITS)
        memset(head + self.seq, 0, DIGITS)
        memset(head + self.first, 0, DIGITS)
        memset(head + self.last, 0, DIGITS)
        memset(head + self.records, 0, DIGITS)
        memset(head + self.dropped, 0, DIGITS)
        memset(head + self.crc, 0, CRC_DIGITS)

    def read(self, bytes value not None):
        """(block, envelope) of a message, or None when it is not of this shape.

        ``block``: its rows, no copy.  ``envelope``: (partition, seq, first, last, records, dropped, whether the
        checksum is right).  A damaged message is None, or has a wrong checksum.
        """
        cdef const uint8_t* p = value
        cdef size_t size = len(value), body
        cdef uint64_t number[6]
        cdef uint8_t* copy
        cdef bint same, right
        cdef int64_t rows
        cdef int i
        if size < self.size + END_BYTES:
            return None
        copy = <uint8_t*>malloc(self.size)
        if copy == NULL:
            raise MemoryError
        memcpy(copy, p, self.size)
        self.blank(copy)
        same = memcmp(copy, self.fixed, self.size) == 0
        free(copy)
        if not same:
            return None
        body, rows = <size_t>_get(p + self.body_length), _get(p + self.rows)
        if body != size - self.size - END_BYTES or not 0 <= rows <= BLOCK_ROWS:
            return None
        if not (_get_number(p + self.partition, &number[0]) and _get_number(p + self.seq, &number[1])
                and _get_number(p + self.first, &number[2]) and _get_number(p + self.last, &number[3])
                and _get_number(p + self.records, &number[4]) and _get_number(p + self.dropped, &number[5])):
            return None
        if number[0] > MAX_PARTITION or number[4] != <uint64_t>rows or not self.fits(p, <uint64_t>rows, body):
            return None
        cdef Block block = Block(self.layout)
        if rows:
            for i in range(self.layout.n):
                block.col[i] = p + self.size + <size_t>_get(p + self.buffers + 16 * <size_t>self.column[i].buffer)
        block.rows, block.owner = <uint32_t>rows, value
        right = self.checks(p, size)
        times = <int64_t>number[2], <int64_t>number[3]
        return block, (number[0], number[1], *times, number[4], number[5], right)

    cdef bint fits(self, const uint8_t* value, uint64_t rows, size_t body) noexcept nogil:
        """Whether each column has ``rows`` values without nulls, aligned, inside the body, and none overlaps another.

        A sender lays the columns out in their order.
        """
        cdef const uint8_t* node
        cdef const uint8_t* place
        cdef size_t at, length, end = 0
        cdef int i
        for i in range(self.layout.n):
            node = value + self.nodes + 16 * <size_t>self.column[i].node
            if <uint64_t>_get(node) != rows or _get(node + 8):
                return False
            if self.column[i].count and (<uint64_t>_get(node + 16) != rows * self.column[i].count or _get(node + 24)):
                return False
            place = value + self.buffers + 16 * <size_t>self.column[i].buffer
            at, length = <size_t>_get(place), <size_t>_get(place + 8)
            if length != <size_t>rows * self.column[i].width:
                return False
            if length and (at < end or at % 8 or at > body or length > body - at):
                return False
            end = at + length if length else end
        return True

    cdef bint checks(self, const uint8_t* value, size_t size) noexcept nogil:
        cdef uint8_t digits[CRC_DIGITS]
        _put_crc(digits, _crc(value, size, self.crc))
        return memcmp(digits, value + self.crc, CRC_DIGITS) == 0


@cython.final
cdef class MessagePacker:
    """Packs rows into messages of ``shape``, up to ``capacity`` rows each."""

    def __cinit__(self, MessageShape shape not None, uint32_t capacity):
        cdef int i
        if not 0 < capacity <= BLOCK_ROWS:
            raise ValueError(f"{capacity} rows in a message")
        self.shape, self.capacity = shape, capacity
        self.place = <size_t*>calloc(max(shape.layout.n, 1), sizeof(size_t))
        if self.place == NULL:
            raise MemoryError
        for i in range(shape.layout.n):
            self.place[i] = self.body
            self.body += _padded(<size_t>capacity * shape.column[i].width)

    def __dealloc__(self):
        free(self.place)
        free(self.value)

    cdef uint32_t add(self, Block block, const uint16_t* picked, uint32_t start, uint32_t n) noexcept nogil:
        """Add rows of the block, of the same layout: ``n`` from ``start`` on, of those ``picked`` or (NULL) of all.

        Returns how many fit; 0 also when there is no memory.
        """
        cdef uint32_t width
        cdef uint64_t t
        cdef uint32_t i
        cdef int k
        cdef uint8_t* body
        if self.value == NULL:
            self.value = <uint8_t*>malloc(self.shape.size + self.body + END_BYTES)
            if self.value == NULL:
                return 0
        if n > self.capacity - self.rows:
            n = self.capacity - self.rows
        if n == 0:
            return 0
        body = self.value + self.shape.size
        for k in range(self.shape.layout.n):
            width = self.shape.column[k].width
            if picked == NULL:
                memcpy(body + self.place[k] + <size_t>self.rows * width, block.col[k] + <size_t>start * width,
                       <size_t>n * width)
            else:
                gather(body + self.place[k] + <size_t>self.rows * width, block.col[k], picked + start, n, width)
        if self.shape.time >= 0:
            if self.rows == 0:
                self.earliest, self.latest = ~<uint64_t>0, 0
            for i in range(n):
                t = (<const uint64_t*>(body + self.place[self.shape.time]))[self.rows + i]
                if t < self.earliest:
                    self.earliest = t
                if t > self.latest:
                    self.latest = t
        self.rows += n
        return n

    cdef uint8_t* finish(self, uint32_t partition, uint64_t seq, uint64_t dropped, size_t* size) noexcept nogil:
        """The message, of ``size`` bytes of malloc; the packer is empty again.  NULL when it has no rows."""
        cdef uint8_t* value = self.value
        cdef uint32_t n = self.rows
        cdef size_t at = 0, length
        cdef int k
        if n == 0:
            return NULL
        memcpy(value, self.shape.start, self.shape.size)
        for k in range(self.shape.layout.n):
            length = <size_t>n * self.shape.column[k].width
            if at != self.place[k]:
                memmove(value + self.shape.size + at, value + self.shape.size + self.place[k], length)
            memset(value + self.shape.size + at + length, 0, _padded(length) - length)
            _put(value + self.shape.nodes + 16 * <size_t>self.shape.column[k].node, n)
            if self.shape.column[k].count:
                _put(value + self.shape.nodes + 16 * <size_t>self.shape.column[k].node + 16,
                     <uint64_t>n * self.shape.column[k].count)
            _put(value + self.shape.buffers + 16 * <size_t>self.shape.column[k].buffer, at)
            _put(value + self.shape.buffers + 16 * <size_t>self.shape.column[k].buffer + 8, length)
            at += _padded(length)
        _put(value + self.shape.body_length, at)
        _put(value + self.shape.rows, n)
        memset(value + self.shape.size + at, 0, END_BYTES)
        memset(value + self.shape.size + at, 0xff, 4)
        size[0] = self.shape.size + at + END_BYTES
        _put_number(value + self.shape.partition, partition)
        _put_number(value + self.shape.seq, seq)
        _put_number(value + self.shape.first, self.earliest if self.shape.time >= 0 else 0)
        _put_number(value + self.shape.last, self.latest if self.shape.time >= 0 else 0)
        _put_number(value + self.shape.records, n)
        _put_number(value + self.shape.dropped, dropped)
        _put_crc(value + self.shape.crc, _crc(value, size[0], self.shape.crc))
        self.value, self.rows = NULL, 0
        return value

    cdef void finish_short(self, ShortShape short, uint8_t* value, uint32_t partition, uint64_t seq,
                           uint64_t dropped) noexcept nogil:
        """Write the rows as a short message to ``value``; the packer is empty again."""
        cdef size_t at = short.size, length, next
        cdef bint timed = self.shape.time >= 0
        cdef int k
        for k in range(self.shape.layout.n):
            length = <size_t>self.rows * self.shape.column[k].width
            next = at + padded(length)
            memset(value + next - 8, 0, 8)
            memcpy(value + at, self.value + self.shape.size + self.place[k], length)
            at = next
        short.seal(value, self.rows, partition, seq, self.earliest if timed else 0, self.latest if timed else 0,
                   dropped)
        self.rows = 0

    def pack(self, Block block not None, *, uint32_t partition=0, uint64_t seq=0, uint64_t dropped=0):
        """A message with all rows of the block.  Raises ValueError for none, too many, or other columns."""
        cdef size_t size
        cdef uint8_t* value
        self.fill(block)
        value = self.finish(partition, seq, dropped, &size)
        try:
            return value[:size]
        finally:
            free(value)

    def pack_short(self, ShortShape short not None, Block block not None, *, uint32_t partition=0, uint64_t seq=0,
                   uint64_t dropped=0):
        """A short message with all rows of the block.  Raises ValueError as `pack`."""
        if short.layout is not self.shape.layout:
            raise ValueError("the short shape has other columns")
        self.fill(block)
        cdef bytes value = bytes(short.bytes_of(self.rows))
        self.finish_short(short, <uint8_t*><const uint8_t*>value, partition, seq, dropped)
        return value

    cdef fill(self, Block block):
        if block.layout is not self.shape.layout:
            raise ValueError("the block has other columns")
        if self.add(block, NULL, 0, block.rows) != block.rows or block.rows == 0:
            raise ValueError(f"{block.rows} rows in a message of {self.capacity}")
