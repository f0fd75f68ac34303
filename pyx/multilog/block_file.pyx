"""Files with a chunk for each block of a segment: how their header and table are read.

    header     magic, identity with its checksum, `published`: the number of complete blocks; only these may be read
    table      an entry for each block of a full segment
    chunks

Posting files (postings.pyx) and view files (view_file.pyx) are such files.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from c_crc cimport crc32c
import os

cdef enum:
    PAGE = 4096


cdef size_t header_bytes(const BlockFileShape* shape, uint64_t blocks) noexcept nogil:
    """Bytes of the header and the table: whole pages."""
    return (shape.table_at + blocks * shape.entry + PAGE - 1) // PAGE * PAGE


cdef bytes read_head(int fd, const BlockFileShape* shape, bytes key, str other, int* published):
    """The header and the table of a file, and how many blocks are ``published``.

    Raises ValueError if they are damaged or the header does not start with ``key``: it was made for ``other``.
    """
    cdef const uint8_t* p
    cdef uint32_t blocks, crc
    cdef uint64_t complete
    cdef size_t size
    cdef bytes start = os.pread(fd, PAGE, 0)
    if len(start) < PAGE:
        raise ValueError(f"it has {len(start)} bytes")
    p = <const uint8_t*><const char*>start
    memcpy(&crc, p + shape.key_bytes, 4)
    if crc != crc32c(p, shape.key_bytes) or memcmp(p, shape.magic, 8):
        raise ValueError("its header is damaged")
    if start[:shape.key_bytes + 4] != key:
        raise ValueError(f"it was made for {other}")
    memcpy(&blocks, p + shape.blocks_at, 4)
    size = header_bytes(shape, blocks)
    if size > PAGE:                     # the table is longer: read it again, completely
        start = os.pread(fd, size, 0)
        p = <const uint8_t*><const char*>start
    if <size_t>len(start) < size:
        raise ValueError("its header is damaged")
    memcpy(&complete, p + shape.published_at, 8)
    if complete > blocks:
        raise ValueError("its header is damaged")
    published[0] = <int>complete
    return start


cdef uint64_t read_published(int fd, const BlockFileShape* shape) except? 0:
    """How many blocks are complete now; 0 if the file is cut short."""
    cdef uint64_t published = 0
    cdef bytes data = os.pread(fd, 8, shape.published_at)
    if len(data) == 8:
        memcpy(&published, <const char*>data, 8)
    return published
