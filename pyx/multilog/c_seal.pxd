# Seal a segment: write the trailer after its data.  Header only; used by the sealer thread of a live writer
# (c_lane.pxd) and by the next owner of the lane of a dead one (seal.pyx).

from libc.errno cimport errno, EINTR, ENOMEM, ENXIO, EIO
from libc.stdint cimport uint8_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.time cimport clock_gettime, timespec, CLOCK_REALTIME
from posix.unistd cimport ftruncate, lseek
from posix.types cimport off_t
from c_crc cimport crc32c, crc_page, CRC_ZERO_PAGE
from c_fault cimport fault_point
from c_posix cimport SEEK_DATA, SEEK_HOLE, pread, pwrite
from c_layout cimport (Geometry, Seal, SEAL_MAGIC, PAGE, SEAL_BYTES, SEAL_GAP, SEAL_CRC, FORMAT_VERSION, data_end,
                       blocks_of, seal_bytes)

cdef enum:
    CHUNK = 256                     # pages per read


cdef inline int read_all(int fd, void* data, size_t n, uint64_t at) noexcept nogil:
    """0 or errno; EIO if the file is shorter."""
    cdef ssize_t got
    cdef uint8_t* p = <uint8_t*>data
    while n:
        got = pread(fd, p, n, at)
        if got < 0 and errno == EINTR:
            continue
        if got <= 0:
            return errno if got < 0 else EIO
        p += got
        at += got
        n -= got
    return 0


cdef inline int write_all(int fd, const void* data, size_t n, uint64_t at) noexcept nogil:
    cdef ssize_t done
    cdef const uint8_t* p = <const uint8_t*>data
    while n:
        done = pwrite(fd, p, n, at)
        if done < 0 and errno == EINTR:
            continue
        if done < 0:
            return errno
        p += done
        at += done
        n -= done
    return 0


cdef inline int seal_file(int fd, const uint8_t* map, const Geometry* g, uint64_t rows, uint64_t base, uint32_t lane,
                          const uint8_t* uuid, const uint8_t* footer, uint32_t footer_bytes) noexcept nogil:
    """Write EOS, seal record, page checksums and footer after the data; set the length.  0 or errno.

    The data must not change any more.  Holes are not read: a page of zeros has a known checksum.
    """
    cdef Seal seal
    memset(&seal, 0, sizeof(seal))
    memcpy(seal.uuid, uuid, 16)
    seal.version, seal.lane, seal.base, seal.rows = FORMAT_VERSION, lane, base, rows
    seal.blocks, seal.capacity = blocks_of(g, rows), g.capacity
    return write_seal(fd, map, data_end(g, rows), &seal, footer, footer_bytes)


cdef inline int write_seal(int fd, const uint8_t* map, uint64_t end, const Seal* record, const uint8_t* footer,
                           uint32_t footer_bytes) noexcept nogil:
    """As `seal_file`, for data that end at ``end``; sizes, checksums and the time of the record are filled in."""
    cdef uint64_t fixed = seal_bytes(end), page, last
    cdef uint8_t* out = <uint8_t*>calloc(fixed + footer_bytes, 1)
    cdef uint32_t* crc
    cdef Seal* seal
    cdef timespec now
    cdef off_t at = 0, stop
    cdef int error
    if out == NULL:
        return ENOMEM
    crc = <uint32_t*>(out + SEAL_GAP + SEAL_BYTES)
    for page in range(end // PAGE):
        crc[page] = CRC_ZERO_PAGE
    while <uint64_t>at < end:
        at = lseek(fd, at, SEEK_DATA)
        if at < 0 and errno == ENXIO:
            break
        stop = lseek(fd, at, SEEK_HOLE) if at >= 0 else -1
        if at < 0 or stop < 0:                      # the file system does not report holes
            at, stop = 0, end
        last = min((<uint64_t>stop + PAGE - 1) // PAGE, end // PAGE)
        for page in range(<uint64_t>at // PAGE, last):
            crc[page] = crc_page(map + page * PAGE)
        at = stop
    memset(out, 0xFF, 4)                            # EOS: continuation mark, length 0
    seal = <Seal*>(out + SEAL_GAP)
    seal[0] = record[0]
    memcpy(seal.magic, SEAL_MAGIC, 8)
    clock_gettime(CLOCK_REALTIME, &now)
    seal.pages = <uint32_t>(end // PAGE)
    seal.footer_bytes, seal.footer_crc = footer_bytes, crc32c(footer, footer_bytes)
    seal.pages_crc = crc32c(crc, fixed - SEAL_GAP - SEAL_BYTES)
    seal.sealed = <int64_t>now.tv_sec * 1000000000 + now.tv_nsec
    (<uint32_t*>(out + SEAL_GAP + SEAL_CRC))[0] = crc32c(out, SEAL_GAP + SEAL_CRC)
    memcpy(out + fixed, footer, footer_bytes)
    fault_point("seal-before")
    error = write_all(fd, out, fixed // 2, end)    # in two steps, so that a test can crash in between
    fault_point("seal-half")
    if not error:
        error = write_all(fd, out + fixed // 2, fixed - fixed // 2 + footer_bytes, end + fixed // 2)
    if not error and ftruncate(fd, end + fixed + footer_bytes):
        error = errno
    fault_point("seal-written")
    free(out)
    return error


cdef inline int check_pages(int fd, const uint32_t* crc, uint64_t pages, uint8_t* mark, uint64_t* bad) noexcept nogil:
    """Mark the pages with a wrong checksum.  0 or errno.  Holes are not read: they are pages of zeros."""
    cdef uint8_t* data = <uint8_t*>calloc(CHUNK, PAGE)
    cdef uint64_t page = 0, data_page = 0, hole_page = 0, n, i
    cdef uint32_t found
    cdef off_t at
    cdef int error = 0
    if data == NULL:
        return ENOMEM
    while page < pages and not error:
        if page >= hole_page:                       # the next range of data
            at = lseek(fd, page * PAGE, SEEK_DATA)
            data_page = <uint64_t>at // PAGE if at >= 0 else (pages if errno == ENXIO else page)
            at = lseek(fd, at, SEEK_HOLE) if at >= 0 else -1
            hole_page = (<uint64_t>at + PAGE - 1) // PAGE if at >= 0 else pages
            data_page, hole_page = min(data_page, pages), min(hole_page, pages)
        if page < data_page:
            n = data_page - page
        else:
            n = min(hole_page - page, <uint64_t>CHUNK)
            error = read_all(fd, data, n * PAGE, page * PAGE)
            if error == EIO:                        # truncated: missing bytes count as zeros, and do not match
                memset(data, 0, CHUNK * PAGE)
                for i in range(n):
                    if read_all(fd, data + i * PAGE, PAGE, (page + i) * PAGE):
                        memset(data + i * PAGE, 255, PAGE)
                error = 0
        for i in range(n):
            found = CRC_ZERO_PAGE if page < data_page else crc_page(data + i * PAGE)
            if found != crc[page + i]:
                mark[page + i] = 1
                bad[0] += 1
        page += n
    free(data)
    return error
