"""Places of the columns of a compressed segment: find and read them.  All that they say is checked.  Open segments."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy
from c_block cimport BLOCK_ROWS
from c_crc cimport crc32c
from c_layout cimport (PackedHead, Place, Places, PlacesEnd, ARROW_MAGIC, PACKED_MAGIC, PACKED_MESSAGE, PAGE,
                       PLACES_MAGIC,
                       seal_bytes)
from c_seal cimport read_all
from confluo_tools.core.multilog.column_codec cimport LZ4, ZSTD
from confluo_tools.core.base.log_file import open_log_file
import errno as codes
import os


cdef object read_places(int fd, uint64_t size, uint64_t end, int columns, int most, uint64_t first, uint64_t low,
                        Places* head, uint64_t** start, Place** place):
    cdef uint64_t at = end + seal_bytes(end), length, i
    cdef uint32_t k, n = <uint32_t>columns
    if read_all(fd, head, sizeof(Places), at):
        return f"it is cut short: {size} bytes"
    if (not 1 <= head.capacity <= BLOCK_ROWS or head.capacity % 64 or head.columns != n or head.blocks == 0
            or head.blocks > <uint32_t>most or head.codec not in (LZ4, ZSTD)
            or not (head.blocks - 1) * <uint64_t>head.capacity < head.rows <= head.blocks * <uint64_t>head.capacity):
        return "the places of its columns are damaged"
    length = sizeof(Places) + (head.blocks + 1) * sizeof(uint64_t) + <uint64_t>head.blocks * n * sizeof(Place)
    if length > size - at:
        return f"it is cut short: {size} bytes"
    cdef bytes data = os.pread(fd, length, at)
    cdef const uint8_t* p = data
    if <uint64_t>len(data) != length or head.crc != crc32c(p + 4, length - 4):
        return "the places of its columns are damaged"
    free(start[0])
    free(place[0])
    start[0] = <uint64_t*>malloc((head.blocks + 1) * sizeof(uint64_t))
    place[0] = <Place*>malloc(max(<size_t>head.blocks * n, <size_t>1) * sizeof(Place))
    if start[0] == NULL or place[0] == NULL:
        raise MemoryError
    memcpy(start[0], p + sizeof(Places), (head.blocks + 1) * sizeof(uint64_t))
    memcpy(place[0], p + sizeof(Places) + (head.blocks + 1) * sizeof(uint64_t),
           <size_t>head.blocks * n * sizeof(Place))
    if start[0][0] != first or start[0][head.blocks] != end:
        return "the places of its columns are damaged"
    for k in range(head.blocks):
        if start[0][k] % 64 or start[0][k + 1] > end or start[0][k + 1] < start[0][k] + low:
            return "the places of its columns are damaged"
        for i in range(<uint64_t>k * n, (k + <uint64_t>1) * n):
            if (place[0][i].at < start[0][k] + low or place[0][i].at > start[0][k + 1]
                    or place[0][i].size > start[0][k + 1] - place[0][i].at):
                return "the places of its columns are damaged"
    return None


cdef list packed_ends(int fd, uint64_t size, uint64_t header, uint64_t plain_head):
    # Where the data end, if the file is a compressed segment: what is before the footer says, and the first block.
    cdef PackedHead head
    cdef PlacesEnd last
    cdef uint8_t end[10]
    cdef uint32_t footer
    found = []
    if size > 10 + sizeof(last) and not read_all(fd, end, 10, size - 10) and not memcmp(end + 4, ARROW_MAGIC, 6):
        memcpy(&footer, end, 4)
        if (footer < size - 10 - sizeof(last) and not read_all(fd, &last, sizeof(last),
                                                               size - 10 - footer - sizeof(last))
                and not memcmp(last.magic, PLACES_MAGIC, 8)):
            found.append(last.end)
    if (not read_all(fd, &head, sizeof(head), plain_head + PACKED_MESSAGE)
            and not memcmp(head.head.magic, PACKED_MAGIC, 8)):
        found.append(head.end)
    return [at for at in dict.fromkeys(found) if header < at < size and at % PAGE == 0]


def open_segment_file(path):
    """A descriptor of a segment.  What is not a file is a damaged segment: ValueError."""
    try:
        return open_log_file(path)
    except OSError as e:
        if e.errno in (codes.ELOOP, codes.EINVAL):
            raise ValueError(f"it {e.strerror}") from None
        raise
