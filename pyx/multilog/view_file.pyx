"""View files: one per segment, with one chunk per block; appended block by block.

    header     FileHeader; only the first `published` blocks are complete and may be read
    table      ChunkEntry for each block of a full segment; bytes 0: no data for the block
    chunks     of a filter: the matching rows (`pack`); of an aggregate: a roll-up (pyx/query/rollup_codec.pyx)

A published chunk is never overwritten: a damaged file is rebuilt under a temporary name and renamed.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.types cimport off_t
from posix.unistd cimport close
from c_block cimport BLOCK_ROWS
from c_crc cimport crc32c
from c_fault cimport fault_point
from c_posix cimport pread, pwrite
from c_node cimport LIST, MASK, NONE, Picked
from confluo_tools.core.block.block cimport Picks
from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.block_file cimport BlockFileShape, header_bytes, read_head, read_published
cimport cython
import os

cdef extern from *:
    """
    #define CFL_VIEW_MAGIC "CFLVIEW"
    """
    const char* VIEW_MAGIC "CFL_VIEW_MAGIC"

cdef enum:
    VIEW_VERSION = 1
    PAGE = 4096
    KEY_BYTES = 80                  # of the header: identity of the file, under its checksum
    BLOCKS_AT = 44
    PUBLISHED_AT = 88
    TABLE_AT = 128
    MAX_BLOCKS = 1 << 14
    PICKED_HEAD = 8

cdef struct FileHeader:
    char magic[8]                   # VIEW_MAGIC
    uint32_t version                # VIEW_VERSION
    uint32_t endian                 # 0x01020304
    uint8_t uuid[16]                # of the log
    uint64_t base                   # first row of the segment
    uint32_t lane
    uint32_t blocks                 # entries of the table
    uint8_t digest[32]              # SHA-256 of the definition of the view
    uint32_t crc                    # CRC32C of the KEY_BYTES before it
    uint32_t reserved
    uint64_t published              # complete blocks; written last

cdef struct PickedHead:
    uint32_t kind                   # 0: rows as u16, ascending; 1: one bit per row, u64 words
    uint32_t n                      # rows


def file_key(bytes uuid not None, int lane, uint64_t base, bytes digest not None, uint32_t blocks):
    """The header bytes of the view file of this segment."""
    cdef FileHeader h
    memset(&h, 0, sizeof(h))
    if len(uuid) != 16 or len(digest) != 32 or not 1 <= blocks <= MAX_BLOCKS:
        raise ValueError("invalid parameters of a view file")
    memcpy(h.magic, VIEW_MAGIC, 8)
    memcpy(h.uuid, <const char*>uuid, 16)
    memcpy(h.digest, <const char*>digest, 32)
    h.version, h.endian, h.base, h.lane, h.blocks = VIEW_VERSION, 0x01020304, base, lane, blocks
    h.crc = crc32c(&h, KEY_BYTES)
    return (<uint8_t*>&h)[:KEY_BYTES + 4]


cdef BlockFileShape _shape = BlockFileShape(
    VIEW_MAGIC, KEY_BYTES, BLOCKS_AT, PUBLISHED_AT, TABLE_AT, sizeof(ChunkEntry))


cdef inline size_t _header_bytes(uint32_t blocks) noexcept nogil:
    return header_bytes(&_shape, blocks)


def blank(bytes key not None, uint32_t blocks):
    """The content of an empty view file for ``key`` and ``blocks`` blocks."""
    return key.ljust(_header_bytes(blocks), b"\0")


cdef inline uint32_t _sum(const ChunkEntry* e, uint64_t base, const uint8_t* data) noexcept nogil:
    cdef uint64_t words[3]
    words[0], words[1], words[2] = e.offset, <uint64_t>e.bytes << 32 | e.rows, base
    return crc32c(data, e.bytes) ^ crc32c(words, 24)


@cython.final
cdef class ViewFile:
    """The view file at ``path``; its header must equal ``key`` (see file_key).

    Raises ValueError when it does not, or is damaged.  A chunk is used only after its checksum is verified.
    """

    def __cinit__(self, path, bytes key not None):
        cdef FileHeader h
        cdef uint64_t end = 0
        cdef int i
        self.path, self.key, self.damaged, self.fd = path, key, set(), -1
        self.fd = open_log_file(path)
        start = read_head(self.fd, &_shape, key, "something else", &self.blocks)
        memcpy(&h, <const char*>start, sizeof(h))
        self.base = h.base
        self.table = <ChunkEntry*>malloc(max(self.blocks, 1) * sizeof(ChunkEntry))
        if self.table == NULL:
            raise MemoryError
        memcpy(self.table, <const char*>start + TABLE_AT, self.blocks * sizeof(ChunkEntry))
        for i in range(self.blocks):    # chunks are written before they are published
            end = max(end, self.table[i].offset + self.table[i].bytes if self.table[i].bytes else 0)
        if end > <uint64_t>os.fstat(self.fd).st_size:
            raise ValueError("is cut off")

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)
        free(self.table)
        free(self.buffer)

    @property
    def grown(self):
        """True if more blocks have been published since the file was opened."""
        return read_published(self.fd, &_shape) > <uint64_t>self.blocks

    cdef int _load(self, int number, uint64_t base) noexcept nogil:
        # Read a chunk into the buffer.  Returns its size, 0 without data, -1 if damaged.
        cdef ChunkEntry* e
        cdef void* wider
        if not 0 <= number < self.blocks or self.table[number].bytes == 0:
            return 0
        e = &self.table[number]
        if e.bytes > <uint32_t>1 << 30 or e.offset >> 62:
            return -1
        if e.bytes > self.room:
            wider = realloc(self.buffer, e.bytes)
            if wider == NULL:
                return -1
            self.buffer, self.room = <uint8_t*>wider, e.bytes
        if pread(self.fd, self.buffer, e.bytes, <off_t>e.offset) != <ssize_t>e.bytes:
            return -1
        if _sum(e, base, self.buffer) != e.crc:
            return -1
        return <int>e.bytes

    cdef int picked(self, int number, uint64_t base, Picked* out) noexcept nogil:
        cdef int n = self._load(number, base)
        cdef const PickedHead* h = <const PickedHead*>self.buffer
        cdef const uint16_t* list
        cdef uint32_t i, rows
        if n <= 0:
            return n
        rows = self.table[number].rows
        if n < PICKED_HEAD or h.n > rows or rows > BLOCK_ROWS or h.kind > 1:
            return -1
        out.n, out.rows = h.n, rows
        out.list = list = <const uint16_t*>(self.buffer + PICKED_HEAD)
        out.words = <const uint64_t*>(self.buffer + PICKED_HEAD)
        if h.kind == 1:
            out.kind = MASK
            return 1 if <uint32_t>n == PICKED_HEAD + (rows + 63) // 64 * 8 else -1
        if <uint32_t>n != PICKED_HEAD + h.n * 2:
            return -1
        for i in range(h.n):
            if list[i] >= rows or i and list[i] <= list[i - 1]:
                return -1
        out.kind = LIST if h.n else NONE
        return 1

    def rows(self, int number):
        """Number of rows of the block when chunk ``number`` was written; None without data."""
        if not 0 <= number < self.blocks or self.table[number].bytes == 0:
            return None
        return self.table[number].rows

    def size(self, int number):
        """Size of chunk ``number`` in bytes; 0 without data."""
        return self.table[number].bytes if 0 <= number < self.blocks else 0

    def read(self, int number, uint64_t base):
        """The bytes of chunk ``number``, of the block that starts with row ``base``; None if missing or damaged.

        ``damaged`` lists the damaged ones.
        """
        cdef int n
        with nogil:
            n = self._load(number, base)
        if n < 0:
            self.damaged.add(number)
        return None if n <= 0 else (<const char*>self.buffer)[:n]

    def picks(self, int number, uint64_t base, Picks out not None):
        """Store the rows in the chunk of a filter in ``out``; returns their number, -1 if missing or damaged."""
        cdef Picked p
        cdef int status
        with nogil:
            status = self.picked(number, base, &p)
        if status < 0:
            self.damaged.add(number)
        if status <= 0:
            return -1
        if p.kind == MASK:
            memcpy(out.words, p.words, <size_t>(p.rows + 63) // 64 * 8)
            out.count_mask(p.rows)
        else:
            memcpy(out.list, p.list, <size_t>p.n * 2)
            out.set_list(p.rows, p.n)
        return len(out)

    def sound(self, uint64_t capacity=BLOCK_ROWS):
        """True if the checksum of every chunk is valid."""
        cdef int i
        for i in range(self.blocks):
            if self._load(i, self.base + i * capacity) < 0:
                self.damaged.add(i)
        return not self.damaged


def pack(Picks picks not None):
    """Encode selected rows as the chunk of a filter: a list, or one bit per row if smaller."""
    cdef PickedHead h
    cdef uint32_t words = (picks.rows + 63) // 64
    h.n, h.kind = picks.n, picks.n * 2 > words * 8
    head = (<const char*>&h)[:sizeof(h)]
    if h.kind:
        return head + (<const char*>picks.as_mask())[:words * 8]
    return head + (<const char*>picks.as_list())[:picks.n * 2]


def append(int fd, int number, list chunks not None):
    """Append chunks of block ``number`` and the blocks after it to the file open for reading and writing as ``fd``.

    Each is (rows of the block, its first row in the lane, bytes or None: no data).  They are published together.
    Raises ValueError unless ``number`` is the next block.
    """
    cdef FileHeader h
    cdef ChunkEntry e, last
    cdef uint64_t at, start, entry = TABLE_AT + <uint64_t>number * sizeof(ChunkEntry)
    cdef const uint8_t[::1] view
    cdef const uint8_t* p
    cdef int error = 0
    cdef size_t size, entered
    if pread(fd, &h, sizeof(h), 0) != sizeof(h):
        raise ValueError("the view file is cut short")
    if (number < 0 or <uint64_t>number != h.published or h.blocks > MAX_BLOCKS
            or <uint64_t>number + <uint64_t>len(chunks) > h.blocks):
        raise ValueError(f"block {number} is not the next of the view file")
    at = _header_bytes(h.blocks)
    if number:
        if pread(fd, &last, sizeof(last), <off_t>(entry - sizeof(last))) != sizeof(last) or last.offset >> 62:
            raise ValueError("the view file is cut short")
        at = max(at, (last.offset + last.bytes + 63) // 64 * 64)
    start = at
    data, entries = bytearray(), bytearray()
    for rows, base, chunk in chunks:
        data += bytes((64 - len(data) % 64) % 64)   # `start` is a multiple of 64
        memset(&e, 0, sizeof(e))
        e.offset, e.rows = start + <uint64_t>len(data), rows
        if chunk:
            if len(chunk) > 1 << 30:
                raise ValueError(f"a chunk of {len(chunk)} bytes")
            view = chunk
            e.bytes = <uint32_t>view.shape[0]
            e.crc = _sum(&e, base, &view[0])
            data += chunk
        entries += (<const char*>&e)[:sizeof(e)]
    h.published += <uint64_t>len(chunks)
    size, entered = len(data), len(entries)
    view = entries
    p = &view[0] if entered else NULL
    view = data
    with nogil:
        if size:
            error = _write(fd, &view[0], size, start)
        if not error:
            fault_point("view-written")
            error = _write(fd, p, entered, entry)
        if not error:
            fault_point("view-entered")
            error = _write(fd, <const uint8_t*>&h.published, 8, PUBLISHED_AT)
        if not error:
            fault_point("view-published")
    if error:
        raise OSError(error, os.strerror(error))
    return size


cdef int _write(int fd, const uint8_t* p, size_t n, uint64_t at) noexcept nogil:
    cdef ssize_t done
    cdef size_t half = n // 2
    cdef bint first = n > 64                        # in two steps, so that a test can crash in between
    while n:
        done = pwrite(fd, p, half if first else n, <off_t>at)
        if done < 0 and errno == EINTR:
            continue
        if done < 0:
            return errno
        if first:
            fault_point("view-half")
        first = False
        p += done
        at += done
        n -= done
    return 0


def offsets():
    """Offsets in the files, as listed in docs/format-views.md: {structure: {name: offset}}."""
    cdef FileHeader h
    cdef ChunkEntry e
    cdef PickedHead p
    return {
        "view file": {n: q for n, q in [
            ("magic", <uint8_t*>&h.magic - <uint8_t*>&h), ("version", <uint8_t*>&h.version - <uint8_t*>&h),
            ("endian", <uint8_t*>&h.endian - <uint8_t*>&h), ("uuid", <uint8_t*>&h.uuid - <uint8_t*>&h),
            ("base", <uint8_t*>&h.base - <uint8_t*>&h), ("lane", <uint8_t*>&h.lane - <uint8_t*>&h),
            ("blocks", <uint8_t*>&h.blocks - <uint8_t*>&h), ("digest", <uint8_t*>&h.digest - <uint8_t*>&h),
            ("crc", <uint8_t*>&h.crc - <uint8_t*>&h), ("published", <uint8_t*>&h.published - <uint8_t*>&h),
            ("table", TABLE_AT)]},
        "view entry": {n: q for n, q in [
            ("offset", <uint8_t*>&e.offset - <uint8_t*>&e), ("bytes", <uint8_t*>&e.bytes - <uint8_t*>&e),
            ("rows", <uint8_t*>&e.rows - <uint8_t*>&e), ("crc", <uint8_t*>&e.crc - <uint8_t*>&e)]},
        "filter chunk": {n: q for n, q in [
            ("kind", <uint8_t*>&p.kind - <uint8_t*>&p), ("n", <uint8_t*>&p.n - <uint8_t*>&p)]},
    }
