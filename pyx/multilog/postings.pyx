"""Posting files of an index: one per segment, appended block by block.

    header     FileHeader; only the first `published` blocks are complete and may be read
    table      {u64 offset, u32 bytes, u32 rows} for each block of a full segment; bytes 0: the block is not indexed
    chunks     c_postings.pxd, 64-byte aligned, in block order

A published chunk is never overwritten: a damaged file is rebuilt under a temporary name and renamed.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.mman cimport MADV_DONTNEED, MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, madvise, mmap, munmap
from posix.unistd cimport close
from c_atomic cimport store_release
from c_block cimport BLOCK_ROWS, BYTES, Column
from c_crc cimport crc32c
from c_fault cimport fault_point
from c_posix cimport pwrite
from c_list_postings cimport ListSorter, build_list_chunk
from c_postings cimport (CHUNK_MAX, LIST_CHUNK_MAX, Chunk, ChunkHeader, Sorter, build_chunk, checked_bytes, chunk_check,
                         chunk_key, chunk_max, chunk_open, chunk_rows, chunk_start)
from confluo_tools.core.block.block cimport Block
from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.block_file cimport BlockFileShape, header_bytes, read_head, read_published
cimport cython
import os

cdef extern from *:
    """
    #define CFL_INDEX_MAGIC "CFLINDX"
    """
    const char* INDEX_MAGIC "CFL_INDEX_MAGIC"

cdef enum:
    INDEX_VERSION = 1
    PAGE = 4096
    KEY_BYTES = 128                 # of the header: identity of the file, under its checksum
    BLOCKS_AT = 52
    PUBLISHED_AT = 136
    TABLE_AT = 192
    OF_LIST = 256                   # added to the code of the column: the rows that contain each element of a list

LIST_CODE = OF_LIST

cdef struct FileHeader:
    char magic[8]                   # INDEX_MAGIC
    uint32_t version                # INDEX_VERSION
    uint32_t endian                 # 0x01020304
    uint8_t uuid[16]                # of the log
    uint64_t base                   # first row of the segment
    uint64_t bucket                 # values per key; 1: exact
    uint32_t lane
    uint32_t blocks                 # entries of the table
    uint32_t code, size             # of the column (c_block.pxd), + OF_LIST
    char field[64]                  # name of the column, zeros after it
    uint32_t crc                    # CRC32C of the KEY_BYTES before it
    uint32_t reserved
    uint64_t published              # complete blocks; written last, with release order


def file_key(bytes uuid not None, int lane, uint64_t base, str field not None, int code, uint32_t size,
             uint64_t bucket, uint32_t blocks):
    """The header bytes of the posting file of this segment and column; ``code``: plus LIST_CODE for a list."""
    cdef FileHeader h
    memset(&h, 0, sizeof(h))
    name = field.encode()
    if len(uuid) != 16 or len(name) > 63 or not 1 <= blocks <= 1 << 16 or bucket < 1:
        raise ValueError("invalid parameters of a posting file")
    memcpy(h.magic, INDEX_MAGIC, 8)
    memcpy(h.uuid, <const char*>uuid, 16)
    memcpy(h.field, <const char*>name, len(name))
    h.version, h.endian, h.base, h.bucket = INDEX_VERSION, 0x01020304, base, bucket
    h.lane, h.blocks, h.code, h.size = lane, blocks, code, size
    h.crc = crc32c(&h, KEY_BYTES)
    return (<uint8_t*>&h)[:KEY_BYTES + 4]


cdef BlockFileShape _shape = BlockFileShape(INDEX_MAGIC, KEY_BYTES, BLOCKS_AT, PUBLISHED_AT, TABLE_AT, sizeof(Entry))


cdef inline size_t _header_bytes(uint32_t blocks) noexcept nogil:
    return header_bytes(&_shape, blocks)


@cython.final
cdef class Postings:
    """The posting file at ``path``; its header must equal ``key`` (see file_key).

    Raises ValueError when it does not, or is damaged.  The postings of a block are used only after their checksums
    are verified; ``damaged`` lists the others.
    ``mapped``: map the file for repeated queries, and verify each part once.
    """

    def __cinit__(self, path, bytes key not None, bint mapped=False):
        cdef FileHeader h
        cdef void* memory
        self.path, self.key, self.damaged, self.fd = path, key, set(), -1
        self.fd = open_log_file(path)
        start = read_head(self.fd, &_shape, key, "another segment", &self.blocks)
        memcpy(&h, <const char*>start, sizeof(h))
        self.lane, self.base, self.bucket, self.code = h.lane, h.base, h.bucket, <uint8_t>h.code
        self.list = (h.code & OF_LIST) != 0
        self.table = <Entry*>malloc(max(self.blocks, 1) * sizeof(Entry))
        if self.table == NULL:
            raise MemoryError
        memcpy(self.table, <const char*>start + TABLE_AT, self.blocks * sizeof(Entry))
        if mapped:
            self.size = os.fstat(self.fd).st_size       # after reading the table, because the file may grow
            memory = mmap(NULL, self.size, PROT_READ, MAP_SHARED, self.fd, 0)
            if memory == MAP_FAILED:
                raise OSError(errno, os.strerror(errno), path)
            self.map = <uint8_t*>memory
            self.chunk = <Chunk*>calloc(max(self.blocks, 1), sizeof(Chunk))
            if self.chunk == NULL:
                raise MemoryError

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)
        if self.map != NULL:
            munmap(self.map, self.size)
        free(self.table)
        free(self.chunk)

    cdef Chunk* aim(self, Chunk* own, int number, uint64_t base) noexcept nogil:
        cdef Chunk* c = own
        if number >= self.blocks or self.table[number].bytes == 0:
            return NULL
        if self.map != NULL:
            c = &self.chunk[number]
            if c.state != 0:
                return c
        c.fd, c.at, c.room, c.base = self.fd, self.table[number].offset, self.table[number].bytes, base
        c.bucket, c.code, c.list, c.state = self.bucket, self.code, self.list, 0
        if c.at % 64 or c.at >> 62:
            c.state = -1
        elif self.map != NULL:
            c.fd, c.buffer = -1, self.map + c.at
            if c.at > self.size or c.room > self.size - c.at:
                c.state = -1
        return c

    def release(self):
        """Release the pages of the map; they are read again when accessed."""
        if self.map != NULL:
            madvise(self.map, self.size, MADV_DONTNEED)

    def __len__(self):
        """Size of the map in bytes, 0 unless mapped."""
        return self.size

    @property
    def grown(self):
        """True if more blocks have been published since the file was opened."""
        return read_published(self.fd, &_shape) > <uint64_t>self.blocks

    def sound(self, uint64_t capacity=BLOCK_ROWS, bint whole=False):
        """True if the header and position of every chunk are valid; ``whole``: verify every byte."""
        cdef Chunk own
        cdef Chunk* c
        cdef int i
        own.buffer = <uint8_t*>malloc(chunk_max(self.list))
        if own.buffer == NULL:
            raise MemoryError
        try:
            for i in range(self.blocks):
                c = self.aim(&own, i, self.base + i * capacity)
                if c != NULL and chunk_open(c) != 1:
                    return False
                if c != NULL and whole and c.posts and not chunk_check(c, c.key, checked_bytes(c)):
                    return False
            return True
        finally:
            free(own.buffer)

    def keys(self, int number, uint64_t capacity=BLOCK_ROWS):
        """[(order key, rows)] of block ``number``, for tests; None if missing or damaged."""
        cdef Chunk own
        cdef Chunk* c
        cdef uint32_t i, a, b, k
        cdef const uint16_t* rows
        own.buffer = <uint8_t*>malloc(chunk_max(self.list))
        if own.buffer == NULL:
            raise MemoryError
        try:
            c = self.aim(&own, number, self.base + number * capacity)
            if c == NULL:
                return None
            out = []
            for i in range(c.keys if chunk_open(c) == 1 else 0):
                a, b = chunk_start(c, i), chunk_start(c, i + 1)
                rows = chunk_rows(c, a, b)
                if rows == NULL or c.state != 1:
                    break
                out.append((chunk_key(c, i), [rows[k] for k in range(b - a)]))
            if c.state == 1:
                return out
            self.damaged.add(number)
            return None
        finally:
            free(own.buffer)


@cython.final
cdef class PostingsBuilder:
    """Appends blocks to posting files; keeps the working memory for sorting: 2 MiB, for lists up to 36 MiB."""

    def __cinit__(self):
        self.sorter = <Sorter*>malloc(sizeof(Sorter))
        self.out = <uint8_t*>malloc(CHUNK_MAX)
        if self.sorter == NULL or self.out == NULL:
            raise MemoryError
        self.sorter.pair, self.sorter.pair2 = self.sorter.memory[0], self.sorter.memory[1]

    def __dealloc__(self):
        free(self.sorter)
        free(self.list_sorter)
        free(self.out)

    cdef Column* column(self, Block block, int column, uint64_t bucket, bint list) except NULL:
        cdef Column* c
        if not 0 <= column < block.layout.n or block.rows == 0:
            raise ValueError(f"column {column} of a block of {block.rows} rows")
        c = &block.layout.column[column]
        if (c.count != 1 and not list or list and c.code == BYTES or bucket < 1
                or bucket > 1 and (c.code > 8 or bucket > <uint64_t>1 << 62)):
            raise ValueError(f"column {block.layout.names[column]} cannot be indexed with this bucket")
        if list and self.list_sorter == NULL:
            self.list_sorter = <ListSorter*>malloc(sizeof(ListSorter))
            memory = <uint8_t*>realloc(self.out, LIST_CHUNK_MAX)
            if memory != NULL:
                self.out = memory
            if self.list_sorter == NULL or memory == NULL:
                free(self.list_sorter)
                self.list_sorter = NULL
                raise MemoryError
        return c

    cdef uint32_t build(self, Block block, int column, uint64_t bucket, bint list) noexcept nogil:
        # The chunk, in self.out; returns its length, 0: the lists have too many elements.
        cdef Column* c = &block.layout.column[column]
        if list:
            return build_list_chunk(self.list_sorter, block.col[column], block.rows, c.code, c.size, c.count, bucket,
                                    block.base, self.out)
        return build_chunk(self.sorter, block.col[column], block.rows, c.code, c.size, bucket, block.base, self.out)

    def chunk(self, Block block not None, int column, uint64_t bucket=1, bint list=False):
        """The postings of one column of a block of at least one row, as bytes; ``list``: of its elements.

        Empty if a block of lists has more than 1,048,576 elements.
        """
        cdef uint32_t n
        self.column(block, column, bucket, list)
        with nogil:
            n = self.build(block, column, bucket, list)
        return self.out[:n]

    def append(self, int fd, int number, Block block, int column, uint64_t bucket):
        """Append block ``number`` to the file open for reading and writing as ``fd``, and publish it.

        Returns the bytes written.  ``block`` None: no postings, readers scan the block.  Raises ValueError unless
        ``number`` is the next block.
        """
        cdef FileHeader* h
        cdef Entry* e
        cdef void* memory
        cdef uint32_t n = 0, room
        cdef uint64_t at
        cdef size_t size
        cdef int error = 0
        cdef bint list
        size = os.fstat(fd).st_size
        if size < PAGE:
            raise ValueError("the posting file is cut short")
        memory = mmap(NULL, size if size < PAGE * 65 else PAGE * 65, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if memory == MAP_FAILED:
            raise OSError(errno, os.strerror(errno))
        try:
            h = <FileHeader*>memory
            room = h.blocks
            at = _header_bytes(room)
            if room > 1 << 14 or at > size or <uint64_t>number != h.published or <uint32_t>number >= room:
                raise ValueError(f"block {number} is not the next of the posting file")
            list = (h.code & OF_LIST) != 0
            if block is not None:
                self.column(block, column, bucket, list)
            e = <Entry*>(<uint8_t*>memory + TABLE_AT) + number
            if number:
                at = ((e - 1).offset + (e - 1).bytes + 63) // 64 * 64
            with nogil:
                if block is not None:
                    n = self.build(block, column, bucket, list)
                    error = _write(fd, self.out, n, at)
                if not error:
                    fault_point("index-written")
                    e.offset, e.bytes, e.rows = at, n, (block.rows if n else 0)
                    fault_point("index-entered")
                    store_release(&h.published, number + 1)
                    fault_point("index-published")
            if error:
                raise OSError(error, os.strerror(error))
        finally:
            munmap(memory, size if size < PAGE * 65 else PAGE * 65)
        return n


cdef int _write(int fd, const uint8_t* p, size_t n, uint64_t at) noexcept nogil:
    cdef ssize_t done
    cdef size_t half = n // 2
    cdef bint first = True
    while n:
        done = pwrite(fd, p, half if first and half else n, at)     # in two steps, so that a test can crash in between
        if done < 0 and errno == EINTR:
            continue
        if done < 0:
            return errno
        if first:
            fault_point("index-half")
        first = False
        p += done
        at += done
        n -= done
    return 0


def blank(bytes key not None, uint32_t blocks):
    """The content of an empty posting file for ``key`` and ``blocks`` blocks."""
    return key.ljust(_header_bytes(blocks), b"\0")


def offsets():
    """Offsets in the files, as listed in docs/format-index.md: {structure: {name: offset}}."""
    cdef FileHeader h
    cdef Entry e
    cdef ChunkHeader c
    return {
        "index file": {n: p for n, p in [
            ("magic", <uint8_t*>&h.magic - <uint8_t*>&h), ("version", <uint8_t*>&h.version - <uint8_t*>&h),
            ("endian", <uint8_t*>&h.endian - <uint8_t*>&h), ("uuid", <uint8_t*>&h.uuid - <uint8_t*>&h),
            ("base", <uint8_t*>&h.base - <uint8_t*>&h), ("bucket", <uint8_t*>&h.bucket - <uint8_t*>&h),
            ("lane", <uint8_t*>&h.lane - <uint8_t*>&h), ("blocks", <uint8_t*>&h.blocks - <uint8_t*>&h),
            ("code", <uint8_t*>&h.code - <uint8_t*>&h), ("size", <uint8_t*>&h.size - <uint8_t*>&h),
            ("field", <uint8_t*>&h.field - <uint8_t*>&h), ("crc", <uint8_t*>&h.crc - <uint8_t*>&h),
            ("published", <uint8_t*>&h.published - <uint8_t*>&h), ("table", TABLE_AT)]},
        "index entry": {n: p for n, p in [
            ("offset", <uint8_t*>&e.offset - <uint8_t*>&e), ("bytes", <uint8_t*>&e.bytes - <uint8_t*>&e),
            ("rows", <uint8_t*>&e.rows - <uint8_t*>&e)]},
        "index chunk": {n: p for n, p in [
            ("magic", <uint8_t*>&c.magic - <uint8_t*>&c), ("rows", <uint8_t*>&c.rows - <uint8_t*>&c),
            ("keys", <uint8_t*>&c.keys - <uint8_t*>&c), ("key_bytes", <uint8_t*>&c.key_bytes - <uint8_t*>&c),
            ("bytes", <uint8_t*>&c.bytes - <uint8_t*>&c), ("first", <uint8_t*>&c.first - <uint8_t*>&c),
            ("last", <uint8_t*>&c.last - <uint8_t*>&c), ("base", <uint8_t*>&c.base - <uint8_t*>&c),
            ("posts", <uint8_t*>&c.posts - <uint8_t*>&c), ("crc", <uint8_t*>&c.crc - <uint8_t*>&c)]},
    }
