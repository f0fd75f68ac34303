"""Segments of a MultiLog for readers: files of up to `segment_blocks` blocks in Arrow layout, mapped.

Raises ValueError (problem of the file) and OSError.  Damage found later, when a page is read for the first time, is
appended to the list ``damage``.
"""

from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memcmp
from posix.mman cimport (mmap, munmap, madvise, mprotect, MAP_ANONYMOUS, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE,
                         MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE, MADV_DONTNEED)
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close
from c_atomic cimport fetch_or, load_acquire32, load_relaxed, store_release32, swap32
from c_block cimport Zone, BLOCK_ROWS, I8, F64
from c_crc cimport crc32c, crc_page
from c_layout cimport (Geometry, BlockHead, Place, Places, Seal, BLOCK_MAGIC, PACKED_MAGIC, PACKED_MESSAGE, SEAL_MAGIC,
                       ARROW_MAGIC, HEAD_BYTES, PAGE, SEAL_BYTES, SEAL_GAP,
                       SEAL_CRC, MAX_COLUMNS, geometry, data_end, blocks_of, round_up, seal_bytes)
from c_seal cimport read_all, check_pages
from confluo_tools.core.block.block cimport Block, Layout, Picks, PICK_ALL
from confluo_tools.core.multilog.column_codec cimport SLACK, unpack
from confluo_tools.core.multilog.packed_places cimport packed_ends, read_places
from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog import column_codec
from confluo_tools.core.multilog.packed_places import open_segment_file
cimport cython
import os
import time

MAX_HEADER = 4 << 20

cdef enum:                          # states of a column of a compressed block
    COLUMN_STORED = 0
    COLUMN_BUSY = 1                 # a thread decompresses it
    COLUMN_READY = 2
    COLUMN_DAMAGED = 3

# For tests: reading a compressed column that was not checked before ends the process, instead of giving zeros.
cdef bint _guarded = bool(os.environ.get("CONFLUO_GUARD_COLUMNS"))


cdef class SegmentShape:
    """Layout shared by all segments of one schema in one log.

    ``layout``: columns of the segments; ``log_layout``: columns for readers, matched by name (ValueError when the
    types differ).
    """

    def __cinit__(self, Layout layout not None, bytes header not None, bytes uuid not None, uint32_t message,
                  int segment_blocks, Layout log_layout not None, schema=None):
        cdef int i, j
        if len(uuid) != 16 or layout.n > MAX_COLUMNS or len(header) % PAGE or message % 64:
            raise ValueError("invalid segment layout")
        self.layout, self.header, self.uuid, self.message = layout, header, uuid, message
        self.header_bytes = <uint32_t>len(header)
        self.segment_blocks, self.log_layout, self.schema = segment_blocks, log_layout, schema
        self.source = <int*>calloc(max(log_layout.n, 1), sizeof(int))
        if self.source == NULL:
            raise MemoryError
        self.identity = layout.n == log_layout.n
        for i in range(log_layout.n):
            j = layout.get(log_layout.names[i])
            self.source[i] = j
            self.identity = self.identity and i == j
            if j >= 0 and (layout.column[j].code != log_layout.column[i].code
                           or layout.column[j].width != log_layout.column[i].width):
                raise ValueError(f"its column {log_layout.names[i]} has another type than in the log")

    def __dealloc__(self):
        free(self.source)

    cdef void fill(self, Geometry* g, uint32_t capacity) noexcept nogil:
        geometry(g, self.layout.column, self.layout.n, self.header_bytes, self.message, capacity)

    def geometry(self, uint32_t capacity=BLOCK_ROWS):
        """(stride, [(offset in the body, bytes) of each column]) of blocks of ``capacity`` rows."""
        cdef Geometry g
        cdef int i
        if not 1 <= capacity <= BLOCK_ROWS:
            raise ValueError(f"capacity {capacity}")
        self.fill(&g, capacity)
        return g.stride, [(g.column[i] - g.message, <uint64_t>self.layout.column[i].width * capacity)
                          for i in range(self.layout.n)]

    def blocks(self, uint64_t rows, uint32_t capacity=BLOCK_ROWS):
        """(offset, message bytes, body bytes) of each block of a segment of ``rows`` rows, for the footer."""
        cdef Geometry g
        cdef uint32_t k
        if not 1 <= capacity <= BLOCK_ROWS:
            raise ValueError(f"capacity {capacity}")
        self.fill(&g, capacity)
        return [(g.header + k * g.stride, g.message, g.stride - g.message) for k in range(blocks_of(&g, rows))]


cdef class Segment:
    """The segment at ``path``, mapped.  ``rows``: number of sealed rows, 0 while it grows.

    ``shapes``: {header bytes: SegmentShape} (raises ValueError for an invalid header); ``shape``: that of the log,
    tried when the header is damaged.  Raises ValueError when no part of the file is usable.
    """

    def __cinit__(self, path, int lane, uint64_t base, shapes, SegmentShape shape not None, list damage not None,
                  uint64_t rows=0):
        cdef int fd
        self.path, self.lane, self.base, self.damage = path, lane, base, damage
        self.map, self._latest = NULL, -1
        self._told = set()
        fd = open_segment_file(path)
        try:
            self._open(fd, shapes, shape, rows)
        finally:
            close(fd)

    def _open(self, int fd, shapes, SegmentShape main, uint64_t rows):
        cdef struct_stat st
        cdef uint8_t start[16]
        cdef uint32_t length
        if fstat(fd, &st):
            raise OSError("fstat")
        cdef uint64_t size = st.st_size
        candidates = [main]
        if read_all(fd, start, 16, 0):
            raise ValueError(f"it has {size} bytes")
        memcpy(&length, start + 12, 4)
        header = b""
        if not memcmp(start, ARROW_MAGIC, 8) and 16 <= length <= MAX_HEADER and not (length + 16) % PAGE:
            header = os.pread(fd, length + 16, 0)
        problem = None
        if header != main.header:
            try:
                candidates = [shapes[header], main] if header else [main]
                problem = None if header else "its header is damaged"
            except ValueError as e:
                problem = f"its header is damaged ({e})"
        for shape in candidates:
            found = self._try(fd, size, shape, rows)
            if found is None and shape is not main and not self.ensure_bytes(0, self.g.header):
                munmap(self.map, self.size)
                self.map, found = NULL, "its header is damaged"
            elif found is None and header != (<SegmentShape>shape).header:
                if not self.sealed:
                    break                           # without checksums the columns are unknown
                self.note_damage(None, "its header is damaged")
            if found is None:
                return
            problem = problem or found
        raise ValueError(problem or "its header is damaged")

    def _try(self, int fd, uint64_t size, SegmentShape shape, uint64_t rows):
        # None if the file is a segment of this shape, else the problem.
        cdef BlockHead head
        self.shape, self.packed, self.sealed = shape, 0, 0
        if read_all(fd, &head, sizeof(head), shape.header_bytes + shape.message):
            return f"it ends before its first block ({size} bytes)"
        if memcmp(head.magic, BLOCK_MAGIC, 8):
            found = None
            for end in packed_ends(fd, size, shape.header_bytes, shape.header_bytes + shape.message):
                found = self._try_packed(fd, size, rows, end)
                if found is None:
                    return None
            if found is not None:
                return found
        problem = self._head_problem(&head)
        if rows:                                    # the seal is authoritative; a damaged head affects only its block
            wrong = f"it is cut short: {size} bytes for {rows} rows"
            for capacity in (head.capacity, BLOCK_ROWS, (rows + 63) // 64 * 64):
                if not 1 <= capacity <= BLOCK_ROWS or capacity % 64 or (capacity < BLOCK_ROWS and rows > capacity):
                    continue
                shape.fill(&self.g, capacity)
                if blocks_of(&self.g, rows) > <uint32_t>shape.segment_blocks or data_end(&self.g, rows) > size:
                    continue
                wrong = "its seal is missing or damaged"
                if not self._open_seal(fd, rows, data_end(&self.g, rows)):
                    wrong = None
                    break
            if wrong:
                return problem or wrong
            self.blocks_on_file = blocks_of(&self.g, rows)
        else:
            no_head = memcmp(head.magic, BLOCK_MAGIC, 8) != 0
            if problem and not no_head:
                return problem
            shape.fill(&self.g, BLOCK_ROWS if no_head else head.capacity)
            self.blocks_on_file = 1 if self.g.capacity < BLOCK_ROWS else shape.segment_blocks
            if size < self.g.header + self.g.stride:
                return f"it is cut short: {size} bytes"
            self.blocks_on_file = min(<uint64_t>self.blocks_on_file, (size - self.g.header) // self.g.stride)
        return self._map(fd, self.g.header + self.blocks_on_file * self.g.stride)

    cdef object _map(self, int fd, uint64_t size):
        cdef void* memory
        self.size = size
        memory = mmap(NULL, self.size, PROT_READ, MAP_SHARED, fd, 0)
        if memory == MAP_FAILED:
            raise OSError(errno, os.strerror(errno), self.path)
        self.map = <uint8_t*>memory
        self.bad_block = <uint64_t*>calloc((self.blocks_on_file + 63) // 64, 8)
        self._cache = [None] * self.blocks_on_file
        if self.bad_block == NULL:
            raise MemoryError
        return None

    cdef object _head_problem(self, const BlockHead* head):
        if memcmp(head.magic, BLOCK_MAGIC, 8):
            return "its first block has no head"
        if memcmp(head.uuid, <const char*>self.shape.uuid, 16):
            return "it belongs to another MultiLog"
        if head.lane != <uint32_t>self.lane or head.base != self.base:
            return f"it is row {head.base} of lane {head.lane}; it should be row {self.base} of lane {self.lane}"
        if head.columns != <uint32_t>self.shape.layout.n:
            return f"it has {head.columns} columns; its schema has {self.shape.layout.n}"
        if head.capacity == 0 or head.capacity > BLOCK_ROWS or head.capacity % 64:
            return f"its first block has a capacity of {head.capacity} rows"
        return None

    cdef object _try_packed(self, int fd, uint64_t size, uint64_t rows, uint64_t end):
        # None if the file is a compressed segment of this shape with data that end at `end`, else the problem.
        problem = self._read_places(fd, size, end)
        if problem:
            return problem
        if rows and self.sealed != rows:
            return f"it has {self.sealed} rows; {rows} are expected"
        rows, self.sealed = self.sealed, 0
        if self._open_seal(fd, rows, end):
            return "its seal is missing or damaged"
        return self._map(fd, end)

    cdef object _read_places(self, int fd, uint64_t size, uint64_t end):
        # Read the places of the blocks and columns.  All that they say is checked: offsets lie in the data.
        cdef Places head
        cdef int n = self.shape.layout.n
        cdef uint64_t low = self.shape.message + PACKED_MESSAGE + HEAD_BYTES + n * sizeof(Zone)
        self.packed = 0
        problem = read_places(fd, size, end, n, self.shape.segment_blocks, self.shape.header_bytes, low, &head,
                              &self.start, &self.place)
        if problem is None:
            geometry(&self.g, self.shape.layout.column, n, self.shape.header_bytes, self.shape.message + PACKED_MESSAGE,
                     head.capacity)
            self.packed, self.sealed, self.blocks_on_file = <int>head.codec, head.rows, <int>head.blocks
        return problem

    cdef uint64_t _block_at(self, int number) noexcept nogil:
        return self.start[number] if self.packed else self.g.header + number * self.g.stride

    cdef int _open_seal(self, int fd, uint64_t rows, uint64_t end) except -1:
        # Read the seal with read(2), not through the map: a file that is being sealed changes its length.
        cdef uint64_t n = end // PAGE
        cdef uint8_t gap[192]
        cdef Seal* seal = <Seal*>(gap + SEAL_GAP)
        cdef uint32_t check
        if read_all(fd, gap, SEAL_GAP + SEAL_BYTES, end):
            return 1
        free(self.crc)
        free(self.good)
        self.crc = <uint32_t*>malloc(n * 4)
        self.good = <uint64_t*>calloc((n + 63) // 64, 8)
        if self.crc == NULL or self.good == NULL:
            raise MemoryError
        if read_all(fd, self.crc, n * 4, end + SEAL_GAP + SEAL_BYTES):
            return 1
        memcpy(&check, gap + SEAL_GAP + SEAL_CRC, 4)
        wrong = ((memcmp(seal.magic, SEAL_MAGIC, 8) != 0) + (memcmp(seal.uuid, <const char*>self.shape.uuid, 16) != 0)
                 + (seal.lane != <uint32_t>self.lane) + (seal.base != self.base) + (seal.rows != rows)
                 + (seal.pages != n))
        if check != crc32c(gap, SEAL_GAP + SEAL_CRC) and wrong <= 1:
            self.note_damage(None, "its seal record is damaged")       # the page checksums may still be valid
        elif wrong:
            return 1
        self.sealed, self.pages = rows, n
        return 0

    def __dealloc__(self):
        if self.map != NULL:
            munmap(self.map, self.size)
        free(self.crc)
        free(self.good)
        free(self.bad_block)
        free(self.start)
        free(self.place)

    def __repr__(self):
        return f"Segment({self.path!r}, lane={self.lane}, base={self.base}, sealed={self.sealed})"

    @property
    def uuid(self):
        return self.shape.uuid

    @property
    def capacity(self):
        """Rows of a block: 65,536, or less in a compacted segment of one block."""
        return self.g.capacity

    @property
    def codec(self):
        """'lz4', 'zstd', or None: the columns are not compressed."""
        return column_codec.NAMES.get(self.packed)

    @property
    def plain_bytes(self):
        """Bytes of the values of all columns that are not zero, without compression."""
        cdef BlockHead* head
        cdef uint64_t total = 0, rows = self.sealed or self.blocks_on_file * <uint64_t>self.g.capacity
        cdef int k, j
        for k in range(self.blocks_on_file):
            head = <BlockHead*>(self.map + self._block_at(k) + self.g.message)
            for j in range(self.g.n):
                if head.used[j >> 6] >> (j & 63) & 1:
                    total += (min(rows, (k + <uint64_t>1) * self.g.capacity) - k * <uint64_t>self.g.capacity
                              ) * self.shape.layout.column[j].width
        return total

    def note_damage(self, number, str reason not None):
        """Record damage of block ``number``, or of the whole segment (None).  Each reason once."""
        if (number, reason) not in self._told:
            self._told.add((number, reason))
            self.damage.append((self.path, number, reason))

    cdef bint ensure_bytes(self, uint64_t start, uint64_t end) noexcept nogil:
        cdef uint64_t page, last, bit
        if self.crc == NULL or start >= end:
            return True
        last = (end - 1) // PAGE
        for page in range(start // PAGE, last + 1):
            bit = <uint64_t>1 << (page & 63)
            if load_relaxed(&self.good[page >> 6]) & bit:
                continue
            if page >= self.pages or crc_page(self.map + page * PAGE) != self.crc[page]:
                return False
            fetch_or(&self.good[page >> 6], bit)
        return True

    cdef bint ensure(self, int number, int column, uint32_t start, uint32_t rows) noexcept nogil:
        cdef int j = self.shape.source[column]
        cdef uint64_t at, width
        cdef const BlockHead* head
        if self.crc == NULL or j < 0:
            return True
        at = self.g.header + number * self.g.stride
        head = <const BlockHead*>(self.map + at + self.g.message)
        if not head.used[j >> 6] >> (j & 63) & 1:
            return True
        width = self.shape.layout.column[j].width
        at += self.g.column[j]
        return self.ensure_bytes(at + start * width, at + (<uint64_t>start + rows) * width)

    cdef bint ensure_list(self, int number, int column, const uint16_t* rows, uint32_t n) noexcept nogil:
        cdef int j = self.shape.source[column]
        cdef uint64_t at, width, page, before = ~<uint64_t>0
        cdef const BlockHead* head
        cdef uint32_t i
        if self.crc == NULL or j < 0:
            return True
        at = self.g.header + number * self.g.stride
        head = <const BlockHead*>(self.map + at + self.g.message)
        if not head.used[j >> 6] >> (j & 63) & 1:
            return True
        width = self.shape.layout.column[j].width
        at += self.g.column[j]
        for i in range(n):
            page = (at + (rows[i] + <uint64_t>1) * width - 1) // PAGE
            if page == before and (at + rows[i] * width) // PAGE == page:
                continue
            before = page
            if not self.ensure_bytes(at + rows[i] * width, at + (rows[i] + <uint64_t>1) * width):
                return False
        return True

    cpdef SegmentBlock block(self, int number, uint32_t rows):
        """The first ``rows`` rows of block ``number``; None if it is damaged (see ``damage``)."""
        cdef SegmentBlock block
        cdef BlockHead* head
        cdef Zone* zone
        cdef uint64_t start
        cdef int i, j
        if not 0 <= number < self.blocks_on_file or rows > self.g.capacity:
            self.note_damage(number, f"rows {self.base + number * self.g.capacity} and later are not in the file")
            return None
        block = self._cache[number]
        if block is not None and block.rows == rows:
            return block
        if self.bad_block[number >> 6] >> (number & 63) & 1:
            return None
        start = self._block_at(number)
        if not self.ensure_bytes(start, start + self.g.zones + self.g.n * sizeof(Zone)):
            self.condemn(number, "the head of the block is damaged")
            return None
        head = <BlockHead*>(self.map + start + self.g.message)
        if (memcmp(head.magic, PACKED_MAGIC if self.packed else BLOCK_MAGIC, 8)
                or memcmp(head.uuid, <const char*>self.shape.uuid, 16)
                or head.lane != <uint32_t>self.lane or head.base != self.base + number * <uint64_t>self.g.capacity
                or head.number != <uint32_t>number or head.capacity != self.g.capacity
                or head.columns != <uint32_t>self.g.n):
            self.condemn(number, "the head of the block is not that of this block")
            return None
        block = SegmentBlock(self.shape.log_layout)
        block.segment, block.number, block.owner = self, number, self
        block.lane, block.rows, block.base = self.lane, rows, head.base
        zone = <Zone*>(self.map + start + self.g.zones)
        if self.packed:
            block._reserve()
            if self._latest >= 0:                   # memory is bounded: one block of a segment
                self._cache[self._latest] = None
            self._latest = number
        for i in range(self.shape.log_layout.n):
            j = self.shape.source[i]
            if not self.packed and j >= 0 and head.used[j >> 6] >> (j & 63) & 1:
                block.col[i] = self.map + start + self.g.column[j]
        if self.shape.identity:
            block.zone = zone
        else:
            _map_zones(block, self.shape, zone)
        self._cache[number] = block
        return block

    def condemn(self, int number, str reason not None):
        """Record that block ``number`` is damaged: it is not returned again."""
        if 0 <= number < self.blocks_on_file:
            self.bad_block[number >> 6] |= <uint64_t>1 << (number & 63)
            self._cache[number] = None
        self.note_damage(number, reason)

    def release(self):
        """Release the pages of the map.  Blocks stay valid; pages are read again when accessed."""
        madvise(self.map, self.size, MADV_DONTNEED)
        if self.packed:
            self.forget()

    def forget(self):
        """Drop the cached blocks; blocks that callers hold stay valid."""
        self._cache = [None] * self.blocks_on_file

    def bad_pages(self):
        """Numbers of the pages with a wrong checksum; [] for an unsealed segment.  Reads the whole file."""
        cdef uint64_t n = 0
        cdef uint8_t* mark
        cdef int fd, error
        if self.crc == NULL:
            return []
        mark = <uint8_t*>calloc(self.pages, 1)
        if mark == NULL:
            raise MemoryError
        fd = open_log_file(self.path)
        try:
            with nogil:
                error = check_pages(fd, self.crc, self.pages, mark, &n)
            if error:
                raise OSError(error, os.strerror(error), self.path)
            return [i for i in range(self.pages) if mark[i]] if n else []
        finally:
            free(mark)
            close(fd)

    def name_page(self, uint64_t page):
        """(block number or None, [column names]) of the content of ``page``."""
        cdef uint64_t start = page * PAGE, end = start + PAGE, at
        cdef Place* place
        cdef int i, k
        if start < self.g.header:
            return None, []
        if self.packed:
            k = 0
            while self.start[k + 1] <= start:
                k += 1
            place = self.place + <size_t>k * self.g.n
            return k, [self.shape.layout.names[i] for i in range(self.g.n)
                       if place[i].at < end and place[i].at + place[i].size > start]
        number = (start - self.g.header) // self.g.stride
        at = self.g.header + number * self.g.stride
        names = []
        for i in range(self.g.n):
            if (at + self.g.column[i] < end
                    and at + self.g.column[i] + <uint64_t>self.shape.layout.column[i].width * self.g.capacity > start):
                names.append(self.shape.layout.names[i])
        return number, names

    def check_trailer(self):
        """Problems of the trailer of a sealed segment: a list of messages."""
        cdef Seal* seal
        cdef uint32_t check
        cdef uint64_t end = self.pages * PAGE, fixed = seal_bytes(end)
        if self.crc == NULL:
            return []
        with open(self.path, "rb", opener=open_log_file) as f:
            f.seek(end)
            data = f.read()
        cdef const uint8_t[::1] view = data
        if <uint64_t>len(data) < fixed:
            return ["it ends inside its seal"]
        seal = <Seal*>&view[SEAL_GAP]
        memcpy(&check, &view[SEAL_GAP + SEAL_CRC], 4)
        if check != crc32c(&view[0], SEAL_GAP + SEAL_CRC):
            return ["its seal record is damaged"]
        found = []
        if seal.pages_crc != crc32c(&view[SEAL_GAP + SEAL_BYTES], fixed - SEAL_GAP - SEAL_BYTES):
            found.append("the page checksums in its seal are damaged")
        if <uint64_t>len(data) != fixed + seal.footer_bytes:
            found.append(f"it has {end + len(data)} bytes; sealed with {end + fixed + seal.footer_bytes}")
        elif seal.footer_crc != crc32c(&view[0] + fixed, seal.footer_bytes):
            found.append("its Arrow footer is damaged")
        return found


cdef int _map_zones(SegmentBlock block, SegmentShape shape, const Zone* zone) except -1:
    # The zones in the order of the columns of the log; missing columns have the zone of zeros.
    cdef Zone* own = <Zone*>calloc(max(shape.log_layout.n, 1), sizeof(Zone))
    cdef uint64_t zero
    cdef int i
    if own == NULL:
        raise MemoryError
    for i in range(shape.log_layout.n):
        if shape.source[i] >= 0:
            own[i] = zone[shape.source[i]]
        elif block.rows:
            zero = <uint64_t>1 << 63 if I8 <= shape.log_layout.column[i].code <= F64 else 0
            own[i].not_min, own[i].max = ~zero, zero
    block.own, block.own_size, block.zone = <uint8_t*>own, shape.log_layout.n * sizeof(Zone), own
    return 0


cdef class SegmentBlock(Block):
    """A block of a mapped segment.

    Of a compressed segment: the block has memory of its own, in which a column is decompressed when it is checked.
    """

    def __dealloc__(self):
        if self.plain != NULL:
            munmap(self.plain, self.plain_bytes)
        free(self.state)

    cdef int _reserve(self) except -1:
        # Addresses for the columns that are not zero; their memory is used when they are decompressed.
        cdef Segment segment = self.segment
        cdef const BlockHead* head = <const BlockHead*>(segment.map + segment.start[self.number] + segment.g.message)
        cdef uint64_t rows = min(segment.sealed - self.number * <uint64_t>segment.g.capacity,
                                 <uint64_t>segment.g.capacity)
        cdef uint64_t at = 0, where
        cdef void* memory
        cdef int i, j, n = segment.shape.log_layout.n
        self.state = <uint32_t*>calloc(max(segment.g.n, 1), sizeof(uint32_t))
        if self.state == NULL:
            raise MemoryError
        for turn in range(2):
            at = 0
            for i in range(n):
                j = segment.shape.source[i]
                if j < 0 or not head.used[j >> 6] >> (j & 63) & 1:
                    continue
                where = at + (i & 31) * 64                  # not all at equal offsets modulo 4 KiB
                if turn:
                    self.col[i] = self.plain + where
                at = round_up(where + rows * segment.shape.layout.column[j].width + SLACK, PAGE)
            if turn == 0 and at:
                memory = mmap(NULL, at, PROT_NONE if _guarded else PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                if memory == MAP_FAILED:
                    raise MemoryError(f"{at} bytes")
                self.plain, self.plain_bytes = <uint8_t*>memory, at
        return 0

    cdef bint fill_column(self, int column) noexcept nogil:
        # Decompress a column into its place, unless it is there.  Threads that want the same column wait.
        cdef int j = self.segment.shape.source[column]
        cdef uint32_t seen
        cdef uint64_t rows, size, start
        cdef const BlockHead* head
        cdef const Place* place
        cdef bint fine
        if j < 0:
            return True
        seen = load_acquire32(&self.state[j])
        if seen == COLUMN_READY:
            return True
        head = <const BlockHead*>(self.segment.map + self.segment.start[self.number] + self.segment.g.message)
        if not head.used[j >> 6] >> (j & 63) & 1:
            return True
        seen = COLUMN_STORED
        if not swap32(&self.state[j], &seen, COLUMN_BUSY):
            while seen == COLUMN_BUSY:
                with gil:                                   # zstd needs the lock that this thread may hold
                    time.sleep(0)
                seen = load_acquire32(&self.state[j])
            return seen == COLUMN_READY
        place = self.segment.place + <size_t>self.number * self.segment.g.n + j
        rows = min(self.segment.sealed - self.number * <uint64_t>self.segment.g.capacity,
                   <uint64_t>self.segment.g.capacity)
        size = rows * self.segment.shape.layout.column[j].width
        if _guarded:
            start = (self.col[column] - self.plain) // PAGE * PAGE
            mprotect(self.plain + start, round_up(self.col[column] - self.plain + size + SLACK, PAGE) - start,
                     PROT_READ | PROT_WRITE)
        fine = (self.segment.ensure_bytes(place.at, place.at + place.size)
                and unpack(self.segment.packed, self.segment.map + place.at, place.size, <uint8_t*>self.col[column],
                           size) == 0)
        store_release32(&self.state[j], COLUMN_READY if fine else COLUMN_DAMAGED)
        return fine

    cdef bint ready(self, int source) noexcept nogil:
        cdef const BlockHead* head
        head = <const BlockHead*>(self.segment.map + self.segment.start[self.number] + self.segment.g.message)
        return (load_acquire32(&self.state[source]) == COLUMN_READY
                or not head.used[source >> 6] >> (source & 63) & 1)

    cdef bint ensure(self, int column) noexcept nogil:
        if self.segment.packed:
            return self.fill_column(column)
        return self.segment.ensure(self.number, column, 0, self.rows)

    cdef bint ensure_rows(self, int column, const uint16_t* rows, uint32_t n) noexcept nogil:
        if self.segment.packed:
            return self.fill_column(column)
        return self.segment.ensure_list(self.number, column, rows, n)

    cdef bint ensure_picks(self, int column, Picks picks) noexcept nogil:
        if self.segment.packed:
            return self.fill_column(column)
        if picks.kind == PICK_ALL or picks.n * 8 > self.rows:
            return self.segment.ensure(self.number, column, 0, self.rows)
        return self.segment.ensure_list(self.number, column, picks.as_list(), picks.n)

    def buffer(self, int i):
        """Read-only bytes of column i: rows * width, no copy.  Damage is found by `check`; it reads as zeros here."""
        if 0 <= i < self.layout.n and self.segment.packed:
            self.fill_column(i)
        return Block.buffer(self, i)

    def head(self):
        """The block head and the zones, as bytes in the order of the columns of the segment."""
        cdef const uint8_t* p = self.segment.map + self.segment._block_at(self.number) + self.segment.g.message
        return p[:HEAD_BYTES + self.segment.g.n * sizeof(Zone)]

    def check(self, columns=None, Picks picks=None):
        """Verify the checksums of ``columns`` (numbers; None: all), for all rows or ``picks``.

        Damage is recorded in ``segment.damage``, and the block is not returned again.
        Call it before reading a column; each page is verified once per process.
        """
        cdef int i
        cdef bint fine
        for i in range(self.layout.n) if columns is None else columns:
            if not 0 <= i < self.layout.n:
                raise IndexError(i)
            fine = self.ensure(i) if picks is None else self.ensure_picks(i, picks)
            if not fine:
                self.segment.condemn(self.number, f"column {self.layout.names[i]} is damaged")
                return False
        return True


@cython.final
cdef class SegmentPart:
    """A segment at a version: its first ``rows`` rows, in ``blocks`` blocks."""

    def __cinit__(self, Segment segment not None, uint64_t rows):
        self.segment, self.rows = segment, rows
        self.blocks = <int>((rows + segment.g.capacity - 1) // segment.g.capacity)

    def __repr__(self):
        return f"SegmentPart({self.segment.path!r}, rows={self.rows})"

    @property
    def lane(self):
        return self.segment.lane

    @property
    def base(self):
        return self.segment.base

    @property
    def path(self):
        return self.segment.path

    @property
    def sealed(self):
        return self.segment.sealed != 0

    @property
    def uuid(self):
        return self.segment.shape.uuid

    def block(self, int number):
        """Block ``number`` with the rows of this version; None if it is damaged."""
        cdef uint64_t before
        if not 0 <= number < self.blocks:
            raise IndexError(number)
        before = <uint64_t>number * self.segment.g.capacity
        return self.segment.block(number, <uint32_t>min(self.rows - before, <uint64_t>self.segment.g.capacity))

    def find(self, uint64_t row):
        """(block number, row in the block) of row ``row`` of the lane."""
        if not self.segment.base <= row < self.segment.base + self.rows:
            raise IndexError(row)
        return divmod(row - self.segment.base, self.segment.g.capacity)

    def release(self):
        """Release the pages of the map; blocks stay valid."""
        self.segment.release()
