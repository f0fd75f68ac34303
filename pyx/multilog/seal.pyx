"""Seal a segment that a dead writer left unsealed; run by the next owner of the lane (multilog/lane_claim.py).

The trailer itself (end of stream, seal record, page checksums, footer) is written by c_seal.pxd, which the sealer
thread of a live writer also uses (c_lane.pxd).  Layout: c_layout.pxd.  `offsets` lists it for a test.
Raises ValueError (problem of the file) and OSError.
"""

from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from posix.mman cimport mmap, munmap, MAP_SHARED, MAP_FAILED, PROT_READ, PROT_WRITE
from posix.unistd cimport close
from c_block cimport Zone, BLOCK_ROWS
from c_crc cimport crc_page, crc_use
from c_fault cimport fault_point
from c_layout cimport (Geometry, BlockHead, PackedHead, Places, PlacesEnd, Seal, ControlPage, Line, PAGE,
                       PACKED_VERSION,
                       BLOCK_MAGIC, PACKED_MAGIC, SEAL_BYTES, SEAL_GAP, SEAL_MAGIC, PLACES_MAGIC, SEAL_CRC,
                       CONTROL_CRC, CONTROL_CLAIMED, data_end, blocks_of)
from c_posix cimport FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, fallocate, posix_fallocate
from c_crc cimport crc32c
from c_seal cimport read_all, write_all, seal_file, write_seal
from confluo_tools.core.multilog.segment cimport SegmentShape
from confluo_tools.core.multilog.packed_places cimport packed_ends
from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.packed_places import open_segment_file
import os


cdef class _Map:
    # A writable map of a whole file.
    cdef uint8_t* p
    cdef size_t size
    cdef int fd

    def __cinit__(self, path, int flags=os.O_RDWR, size_t size=0):
        self.fd = open_log_file(path, flags)
        if size:
            os.ftruncate(self.fd, size)
        self.size = <size_t>os.fstat(self.fd).st_size
        cdef void* memory = mmap(NULL, max(self.size, <size_t>1), PROT_READ | PROT_WRITE, MAP_SHARED, self.fd, 0)
        if memory == MAP_FAILED:
            raise OSError(errno, os.strerror(errno), path)
        self.p = <uint8_t*>memory

    def __dealloc__(self):
        if self.p != NULL:
            munmap(self.p, self.size)
        if self.fd > 0:
            close(self.fd)


def _check_errno(int error, path):
    if error:
        raise OSError(error, os.strerror(error), path)


def seal_in_place(path, SegmentShape shape not None, int lane, uint64_t base, uint64_t rows, bytes message not None,
                  bytes footer not None, bint sync):
    """Seal the growing segment at ``path`` with its first ``rows`` rows; data after them is removed.

    ``message``: record batch message of the last block; ``footer``: that of the file.
    Can be repeated after a crash at any point.  Does not disturb readers of published rows.
    """
    cdef Geometry g
    cdef _Map m = _Map(path)
    cdef uint64_t block, end, start, stop
    cdef uint32_t in_last, width
    cdef int i
    shape.fill(&g, BLOCK_ROWS)
    end = data_end(&g, rows)
    if rows == 0 or m.size < end or len(message) != g.message:
        raise ValueError(f"it is cut short: {m.size} bytes for {rows} rows")
    block = end - g.stride
    in_last = <uint32_t>(rows - (blocks_of(&g, rows) - 1) * <uint64_t>BLOCK_ROWS)
    _check_errno(write_all(m.fd, <const char*>message, g.message, block), path)
    fault_point("trim-message")
    if in_last < BLOCK_ROWS:
        for i in range(g.n):
            width = shape.layout.column[i].width
            start = block + g.column[i] + <uint64_t>in_last * width
            stop = block + g.column[i] + <uint64_t>BLOCK_ROWS * width
            _clear(m.fd, m.p, start, stop)
            fault_point("trim-column")
    os.ftruncate(m.fd, end)
    fault_point("trim-length")
    cdef const uint8_t* uuid = shape.uuid
    cdef const uint8_t* foot = footer
    cdef uint32_t n = <uint32_t>len(footer)
    cdef int error
    with nogil:
        error = seal_file(m.fd, m.p, &g, rows, base, lane, uuid, foot, n)
    _check_errno(error, path)
    if sync:
        os.fdatasync(m.fd)


cdef void _clear(int fd, uint8_t* p, uint64_t start, uint64_t stop) noexcept nogil:
    # Zero the bytes from start to stop, with a hole if the file system supports it.
    cdef uint64_t i
    if fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, stop - start) == 0:
        return
    for i in range(start, stop):
        if p[i]:
            p[i] = 0


def seal_compact(path, new_path, SegmentShape shape not None, int lane, uint64_t base, uint32_t rows,
                 bytes message not None, bytes footer not None, bint sync):
    """Write the first ``rows`` rows of the one block at ``path`` to ``new_path``, sealed, without free space.

    ``message`` and ``footer`` are those of a block of ``rows`` rounded up to 64.  The caller renames the file.
    """
    cdef Geometry g, small
    cdef _Map m = _Map(path), out
    cdef BlockHead* head
    cdef uint32_t capacity = (rows + 63) // 64 * 64
    cdef int i
    shape.fill(&g, BLOCK_ROWS)
    shape.fill(&small, capacity)
    if not 1 <= rows <= BLOCK_ROWS or m.size < data_end(&g, rows) or len(message) != g.message:
        raise ValueError(f"it is cut short: {m.size} bytes for {rows} rows")
    out = _Map(new_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, small.header + small.stride)
    _check_errno(posix_fallocate(out.fd, 0, out.size), new_path)
    memcpy(out.p, <const char*>shape.header, g.header)
    memcpy(out.p + g.header, <const char*>message, g.message)
    memcpy(out.p + g.header + g.message, m.p + g.header + g.message, g.zones - g.message + g.n * sizeof(Zone))
    head = <BlockHead*>(out.p + g.header + g.message)
    head.capacity = capacity
    for i in range(g.n):
        if head.used[i >> 6] >> (i & 63) & 1:
            memcpy(out.p + small.header + small.column[i], m.p + g.header + g.column[i],
                   <size_t>rows * shape.layout.column[i].width)
    fault_point("compact-copied")
    cdef const uint8_t* uuid = shape.uuid
    cdef const uint8_t* foot = footer
    _check_errno(seal_file(out.fd, out.p, &small, rows, base, lane, uuid, foot, <uint32_t>len(footer)), new_path)
    if sync:
        os.fdatasync(out.fd)


def find_seal(path, SegmentShape shape not None, int lane, uint64_t base):
    """Number of rows in the seal of the segment at ``path``; 0 without a valid seal of this lane and row."""
    cdef uint8_t gap[SEAL_GAP + SEAL_BYTES]
    cdef Seal* seal = <Seal*>(gap + SEAL_GAP)
    cdef BlockHead head
    cdef Geometry g
    cdef int k
    cdef int fd = open_segment_file(path)
    try:
        if read_all(fd, &head, sizeof(head), shape.header_bytes + shape.message):
            return 0
        for end in packed_ends(fd, os.fstat(fd).st_size, shape.header_bytes,
                               shape.header_bytes + shape.message) if memcmp(head.magic, BLOCK_MAGIC, 8) else ():
            if not read_all(fd, gap, SEAL_GAP + SEAL_BYTES, end) and _sealed(gap, shape, lane, base):
                return seal.rows
        if head.capacity == 0 or head.capacity > BLOCK_ROWS or head.capacity % 64:
            head.capacity = BLOCK_ROWS
        shape.fill(&g, head.capacity)
        for k in range(1, shape.segment_blocks + 1):
            if read_all(fd, gap, SEAL_GAP + SEAL_BYTES, g.header + k * g.stride):
                return 0
            if _sealed(gap, shape, lane, base) and blocks_of(&g, seal.rows) == <uint32_t>k:
                return seal.rows
        return 0
    finally:
        close(fd)


cdef bint _sealed(const uint8_t* gap, SegmentShape shape, int lane, uint64_t base):
    # Whether EOS and the seal record after it are whole, and of this segment.
    cdef const Seal* seal = <const Seal*>(gap + SEAL_GAP)
    cdef uint32_t check
    memcpy(&check, gap + SEAL_GAP + SEAL_CRC, 4)
    return (not memcmp(seal.magic, SEAL_MAGIC, 8) and check == crc32c(gap, SEAL_GAP + SEAL_CRC)
            and seal.lane == <uint32_t>lane and seal.base == base
            and not memcmp(seal.uuid, <const char*>shape.uuid, 16))


def packed_head(bytes head not None, uint64_t end):
    """The head and zones of a block, as `SegmentBlock.head` returns them, for data of a segment up to ``end``."""
    cdef bytearray out = bytearray(head)
    cdef uint8_t[::1] view = out
    cdef PackedHead* packed = <PackedHead*>&view[0]
    if len(head) < 128:
        raise ValueError("not a block head")
    memcpy(packed.head.magic, PACKED_MAGIC, 8)
    packed.end = end
    return bytes(out)


def places(int codec, uint64_t rows, uint32_t capacity, starts not None, buffers not None):
    """The places of a compressed segment, with their end.

    ``starts``: offsets of the blocks and of the end of the data; ``buffers``: for each block [(offset, bytes) of each
    column].
    """
    cdef Places p
    cdef PlacesEnd last
    cdef uint32_t check
    memset(&p, 0, sizeof(p))
    memset(&last, 0, sizeof(last))
    p.codec, p.rows, p.capacity, p.blocks, p.columns = codec, rows, capacity, len(buffers), len(buffers[0])
    numbers = [*starts, *(n for block in buffers for place in block for n in place)]
    cdef bytes rest = b"".join([n.to_bytes(8, "little") for n in numbers])
    cdef bytes whole = (<const char*>&p)[:sizeof(p)] + rest
    check = crc32c(<const uint8_t*>(<const char*>whole) + 4, len(whole) - 4)
    memcpy(last.magic, PLACES_MAGIC, 8)
    last.end = starts[len(starts) - 1]
    return (<const char*>&check)[:4] + whole[4:] + (<const char*>&last)[:sizeof(last)]


def seal_packed(path, bytes uuid not None, int lane, uint64_t base, uint64_t rows, uint32_t capacity, uint32_t blocks,
                bytes trailer not None):
    """Seal the file of a compressed segment, which has all its data and nothing else, and sync it to the disk.

    ``trailer``: `places` and the Arrow footer.
    """
    cdef Seal seal
    cdef _Map m = _Map(path)
    cdef const uint8_t* tail = trailer
    cdef uint32_t n = <uint32_t>len(trailer)
    cdef int error
    if len(uuid) != 16 or m.size % PAGE:
        raise ValueError("invalid segment")
    memset(&seal, 0, sizeof(seal))
    memcpy(seal.uuid, <const char*>uuid, 16)
    seal.version, seal.lane, seal.base, seal.rows = PACKED_VERSION, lane, base, rows
    seal.blocks, seal.capacity = blocks, capacity
    with nogil:
        error = write_seal(m.fd, m.p, m.size, &seal, tail, n)
    _check_errno(error, path)
    os.fsync(m.fd)


def offsets():
    """Offsets in the files, as listed in docs/format.md: {structure: {field: offset in bytes}}."""
    cdef ControlPage page
    cdef Line line
    cdef BlockHead head
    cdef Seal seal
    cdef PackedHead packed
    cdef Places places
    cdef PlacesEnd last
    return {
        "control page": {
            "magic": <size_t>&page.magic - <size_t>&page,
            "version": <size_t>&page.version - <size_t>&page,
            "endian": <size_t>&page.endian - <size_t>&page,
            "uuid": <size_t>&page.uuid - <size_t>&page,
            "block_rows": <size_t>&page.block_rows - <size_t>&page,
            "segment_blocks": <size_t>&page.segment_blocks - <size_t>&page,
            "lanes": <size_t>&page.lanes - <size_t>&page,
            "line_bytes": <size_t>&page.line_bytes - <size_t>&page,
            "lanes_offset": <size_t>&page.lanes_offset - <size_t>&page,
            "schema_offset": <size_t>&page.schema_offset - <size_t>&page,
            "schema_bytes": <size_t>&page.schema_bytes - <size_t>&page,
            "schema_crc": <size_t>&page.schema_crc - <size_t>&page,
            "sync": <size_t>&page.sync - <size_t>&page,
            "message_bytes": <size_t>&page.message_bytes - <size_t>&page,
            "created": <size_t>&page.created - <size_t>&page,
            "crc": CONTROL_CRC,
            "claimed": CONTROL_CLAIMED,
        },
        "lane line": {
            "tail": <size_t>&line.tail - <size_t>&line,
            "deadline": <size_t>&line.deadline - <size_t>&line,
            "sealed": <size_t>&line.sealed - <size_t>&line,
            "first": <size_t>&line.first - <size_t>&line,
            "epoch": <size_t>&line.epoch - <size_t>&line,
            "started": <size_t>&line.started - <size_t>&line,
            "boot": <size_t>&line.boot - <size_t>&line,
            "pid": <size_t>&line.pid - <size_t>&line,
            "seals": <size_t>&line.seals - <size_t>&line,
        },
        "block head": {
            "magic": <size_t>&head.magic - <size_t>&head,
            "uuid": <size_t>&head.uuid - <size_t>&head,
            "base": <size_t>&head.base - <size_t>&head,
            "lane": <size_t>&head.lane - <size_t>&head,
            "number": <size_t>&head.number - <size_t>&head,
            "capacity": <size_t>&head.capacity - <size_t>&head,
            "columns": <size_t>&head.columns - <size_t>&head,
            "used": <size_t>&head.used - <size_t>&head,
        },
        "seal record": {
            "magic": <size_t>&seal.magic - <size_t>&seal,
            "version": <size_t>&seal.version - <size_t>&seal,
            "lane": <size_t>&seal.lane - <size_t>&seal,
            "uuid": <size_t>&seal.uuid - <size_t>&seal,
            "base": <size_t>&seal.base - <size_t>&seal,
            "rows": <size_t>&seal.rows - <size_t>&seal,
            "blocks": <size_t>&seal.blocks - <size_t>&seal,
            "capacity": <size_t>&seal.capacity - <size_t>&seal,
            "pages": <size_t>&seal.pages - <size_t>&seal,
            "footer_bytes": <size_t>&seal.footer_bytes - <size_t>&seal,
            "footer_crc": <size_t>&seal.footer_crc - <size_t>&seal,
            "pages_crc": <size_t>&seal.pages_crc - <size_t>&seal,
            "sealed": <size_t>&seal.sealed - <size_t>&seal,
            "crc": SEAL_CRC,
        },
        "head of a compressed block": {
            "end": <size_t>&packed.end - <size_t>&packed,
        },
        "places": {
            "crc": <size_t>&places.crc - <size_t>&places,
            "codec": <size_t>&places.codec - <size_t>&places,
            "rows": <size_t>&places.rows - <size_t>&places,
            "capacity": <size_t>&places.capacity - <size_t>&places,
            "blocks": <size_t>&places.blocks - <size_t>&places,
            "columns": <size_t>&places.columns - <size_t>&places,
        },
        "end of the places": {
            "magic": <size_t>&last.magic - <size_t>&last,
            "end": <size_t>&last.end - <size_t>&last,
        },
    }


def crc_of_pages(const uint8_t[::1] data not None, int way=3):
    """CRC32C of each 4 KiB page of ``data``; for tests.

    ``way``: 0 with tables, 1 with the crc32 instruction, 2 and 3 with products of 32 and 64 bytes; or the best below
    that the processor has.
    """
    cdef Py_ssize_t i
    crc_use(way)
    try:
        return [crc_page(&data[i * PAGE]) for i in range(data.shape[0] // PAGE)]
    finally:
        crc_use(3)


def crc_of_bytes(const uint8_t[::1] data not None, int way=3):
    """CRC32C of ``data``, which is not empty; for tests."""
    crc_use(way)
    try:
        return crc32c(&data[0], data.shape[0])
    finally:
        crc_use(3)
