# Copy selected values of a column one after the other.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef inline void gather(uint8_t* out, const uint8_t* column, const uint16_t* rows, uint32_t n,
                        uint32_t width) noexcept nogil:
    cdef uint32_t i
    if width == 1:
        for i in range(n):
            out[i] = column[rows[i]]
    elif width == 2:
        for i in range(n):
            (<uint16_t*>out)[i] = (<const uint16_t*>column)[rows[i]]
    elif width == 4:
        for i in range(n):
            (<uint32_t*>out)[i] = (<const uint32_t*>column)[rows[i]]
    elif width == 8:
        for i in range(n):
            (<uint64_t*>out)[i] = (<const uint64_t*>column)[rows[i]]
    elif width == 16:
        for i in range(n):
            (<uint64_t*>out)[2 * i] = (<const uint64_t*>column)[2 * rows[i]]
            (<uint64_t*>out)[2 * i + 1] = (<const uint64_t*>column)[2 * rows[i] + 1]
    else:
        for i in range(n):
            memcpy(out + <size_t>i * width, column + <size_t>rows[i] * width, width)
