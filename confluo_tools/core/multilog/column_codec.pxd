# Compression of the columns of sealed segments.

from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    LZ4 = 1
    ZSTD = 2
    SLACK = 32                  # bytes after `size` that `unpack` may overwrite

# 0, or -1 if the stored buffer is damaged or has not `size` bytes.
cdef int unpack(int codec, const uint8_t* data, uint64_t n, uint8_t* out, uint64_t size) noexcept nogil
