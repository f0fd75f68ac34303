"""Compression of the columns of sealed segments: buffers as in Arrow's BodyCompression.

A buffer is its plain length (8 bytes, -1: stored as it is), then an LZ4 frame or a zstd frame.  LZ4 is lz4_frame.h;
zstd is a function that is given, called with the interpreter lock.  Nothing is allocated by what a buffer says.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef extern from "lz4_frame.h":
    enum:
        LZ4_SLACK
    int lz4_frame_decode(const uint8_t* data, uint64_t n, uint8_t* out, uint64_t size) nogil
    uint64_t lz4_frame_encode(const uint8_t* data, uint64_t size, uint8_t* out) nogil
    uint64_t lz4_frame_bound(uint64_t size) nogil

NAMES = {LZ4: "lz4", ZSTD: "zstd"}
_zstd_compress = _zstd_into = None


def use_zstd(compress, decompress_into):
    """Set the functions for zstd (formats/zstd_buffer.py): this package imports nothing."""
    global _zstd_compress, _zstd_into
    _zstd_compress, _zstd_into = compress, decompress_into


cdef class _PlainMemory:
    # Writable memory for zstd.
    cdef uint8_t* data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* view, int flags):
        from_memory(view, self, self.data, self.size, 0, flags)


cdef class _StoredBytes:
    # Memory that zstd only reads.
    cdef const uint8_t* data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* view, int flags):
        from_memory(view, self, <void*>self.data, self.size, 1, flags)


cdef extern from "Python.h":
    int from_memory "PyBuffer_FillInfo"(Py_buffer* view, object owner, void* data, Py_ssize_t size, int readonly,
                                        int flags) except -1


cdef int _zstd(const uint8_t* data, uint64_t n, uint8_t* out, uint64_t size) noexcept with gil:
    cdef _StoredBytes source = _StoredBytes()
    cdef _PlainMemory target = _PlainMemory()
    source.data, source.size = data, <Py_ssize_t>n
    target.data, target.size = out, <Py_ssize_t>size
    try:
        return 0 if _zstd_into(memoryview(source), memoryview(target)) else -1
    except Exception:
        return -1


cdef int unpack(int codec, const uint8_t* data, uint64_t n, uint8_t* out, uint64_t size) noexcept nogil:
    cdef int64_t plain
    if n < 8:
        return -1
    memcpy(&plain, data, 8)
    if plain == -1:
        if n - 8 != size:
            return -1
        memcpy(out, data + 8, size)
        return 0
    if plain < 0 or <uint64_t>plain != size:
        return -1
    if codec == LZ4:
        return lz4_frame_decode(data + 8, n - 8, out, size)
    if codec == ZSTD:
        return _zstd(data + 8, n - 8, out, size)
    return -1


def pack(int codec, const uint8_t[::1] data not None):
    """The stored form of ``data``, which has at least one byte; ``codec``: a key of `NAMES`.

    Stored as it is, with a length of -1, when it does not become smaller.
    """
    cdef uint64_t n = <uint64_t>data.shape[0], used
    cdef uint8_t* out
    if codec == ZSTD:
        frame = _zstd_compress(data)
    elif codec == LZ4:
        out = <uint8_t*>malloc(lz4_frame_bound(n))
        if out == NULL:
            raise MemoryError
        try:
            with nogil:
                used = lz4_frame_encode(&data[0], n, out)
            if used == 0:
                raise MemoryError
            frame = out[:used]
        finally:
            free(out)
    else:
        raise ValueError(f"codec {codec}")
    if len(frame) >= n:
        return (-1).to_bytes(8, "little", signed=True) + bytes(data)
    return n.to_bytes(8, "little") + frame


def unpacked(int codec, const uint8_t[::1] data not None, uint64_t size):
    """The ``size`` bytes of a stored buffer.  Raises ValueError when it is damaged or has another size."""
    cdef uint8_t* out = <uint8_t*>malloc(size + SLACK)
    cdef int wrong = -1
    if out == NULL:
        raise MemoryError
    try:
        if data.shape[0]:
            with nogil:
                wrong = unpack(codec, &data[0], <uint64_t>data.shape[0], out, size)
        if wrong:
            raise ValueError("the buffer is damaged")
        return out[:size]
    finally:
        free(out)
