"""Segments of a MultiLog for readers: files of up to `segment_blocks` blocks in Arrow layout, mapped.

Raises ValueError (problem of the file) and OSError.  Damage found later, when a page is read for the first time, is
appended to the list ``damage``.
"""

from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memcmp
from posix.mman cimport mmap, munmap, madvise, MAP_SHARED, MAP_FAILED, PROT_READ, MADV_DONTNEED
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close
from c_atomic cimport fetch_or, load_relaxed
from c_block cimport Zone, BLOCK_ROWS, I8, F64
from c_crc cimport crc32c, crc_page
from c_layout cimport (Geometry, BlockHead, Seal, BLOCK_MAGIC, SEAL_MAGIC, ARROW_MAGIC, PAGE, SEAL_BYTES, SEAL_GAP,
                       SEAL_CRC, MAX_COLUMNS, geometry, data_end, blocks_of, seal_bytes)
from c_seal cimport read_all, check_pages
from confluo_tools.core.block.block cimport Block, Layout, Picks, PICK_ALL
from confluo_tools.core.base.log_file import open_log_file
cimport cython
import errno as codes
import os

MAX_HEADER = 4 << 20


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


def _open_file(path):
    # What is not a file is a damaged segment: ValueError.
    try:
        return open_log_file(path)
    except OSError as e:
        if e.errno in (codes.ELOOP, codes.EINVAL):
            raise ValueError(f"it {e.strerror}") from None
        raise


cdef class Segment:
    """The segment at ``path``, mapped.  ``rows``: number of sealed rows, 0 while it grows.

    ``shapes``: {header bytes: SegmentShape} (raises ValueError for an invalid header); ``shape``: that of the log,
    tried when the header is damaged.  Raises ValueError when no part of the file is usable.
    """

    def __cinit__(self, path, int lane, uint64_t base, shapes, SegmentShape shape not None, list damage not None,
                  uint64_t rows=0):
        cdef int fd
        self.path, self.lane, self.base, self.damage = path, lane, base, damage
        self.map = NULL
        self._told = set()
        fd = _open_file(path)
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
        cdef void* memory
        self.shape = shape
        if read_all(fd, &head, sizeof(head), shape.header_bytes + shape.message):
            return f"it ends before its first block ({size} bytes)"
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
                if not self._open_seal(fd, rows):
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
        self.size = self.g.header + self.blocks_on_file * self.g.stride
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

    cdef int _open_seal(self, int fd, uint64_t rows) except -1:
        # Read the seal with read(2), not through the map: a file that is being sealed changes its length.
        cdef uint64_t end = data_end(&self.g, rows), n = end // PAGE
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

    def __repr__(self):
        return f"Segment({self.path!r}, lane={self.lane}, base={self.base}, sealed={self.sealed})"

    @property
    def uuid(self):
        return self.shape.uuid

    @property
    def capacity(self):
        """Rows of a block: 65,536, or less in a compacted segment of one block."""
        return self.g.capacity

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
        start = self.g.header + number * self.g.stride
        if not self.ensure_bytes(start, start + self.g.column[0]):
            self.condemn(number, "the head of the block is damaged")
            return None
        head = <BlockHead*>(self.map + start + self.g.message)
        if (memcmp(head.magic, BLOCK_MAGIC, 8) or memcmp(head.uuid, <const char*>self.shape.uuid, 16)
                or head.lane != <uint32_t>self.lane or head.base != self.base + number * <uint64_t>self.g.capacity
                or head.number != <uint32_t>number or head.capacity != self.g.capacity
                or head.columns != <uint32_t>self.g.n):
            self.condemn(number, "the head of the block is not that of this block")
            return None
        block = SegmentBlock(self.shape.log_layout)
        block.segment, block.number, block.owner = self, number, self
        block.lane, block.rows, block.base = self.lane, rows, head.base
        zone = <Zone*>(self.map + start + self.g.zones)
        for i in range(self.shape.log_layout.n):
            j = self.shape.source[i]
            if j >= 0 and head.used[j >> 6] >> (j & 63) & 1:
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
        cdef int i
        if start < self.g.header:
            return None, []
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


def find_seal(path, SegmentShape shape not None, int lane, uint64_t base):
    """Number of rows in the seal of the segment at ``path``; 0 without a valid seal of this lane and row."""
    cdef uint8_t gap[SEAL_GAP + SEAL_BYTES]
    cdef Seal* seal = <Seal*>(gap + SEAL_GAP)
    cdef BlockHead head
    cdef Geometry g
    cdef uint32_t check
    cdef int k
    cdef int fd = _open_file(path)
    try:
        if read_all(fd, &head, sizeof(head), shape.header_bytes + shape.message):
            return 0
        if head.capacity == 0 or head.capacity > BLOCK_ROWS or head.capacity % 64:
            head.capacity = BLOCK_ROWS
        shape.fill(&g, head.capacity)
        for k in range(1, shape.segment_blocks + 1):
            if read_all(fd, gap, SEAL_GAP + SEAL_BYTES, g.header + k * g.stride):
                return 0
            memcpy(&check, gap + SEAL_GAP + SEAL_CRC, 4)
            if (not memcmp(seal.magic, SEAL_MAGIC, 8) and check == crc32c(gap, SEAL_GAP + SEAL_CRC)
                    and seal.lane == <uint32_t>lane and seal.base == base and blocks_of(&g, seal.rows) == <uint32_t>k
                    and not memcmp(seal.uuid, <const char*>shape.uuid, 16)):
                return seal.rows
        return 0
    finally:
        close(fd)


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
    """A block of a mapped segment."""

    cdef bint ensure(self, int column) noexcept nogil:
        return self.segment.ensure(self.number, column, 0, self.rows)

    cdef bint ensure_picks(self, int column, Picks picks) noexcept nogil:
        if picks.kind == PICK_ALL or picks.n * 8 > self.rows:
            return self.segment.ensure(self.number, column, 0, self.rows)
        return self.segment.ensure_list(self.number, column, picks.as_list(), picks.n)

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
