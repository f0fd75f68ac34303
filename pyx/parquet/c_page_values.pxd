# The values of a page of Parquet, each as `size` bytes: plain, numbers of a dictionary, differences (Encodings.md).
#
# Every function returns 0, or -1 when the bytes are not n values.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_page_header cimport signed_of, varint

cdef extern from "parquet_values.h" nogil:
    void parquet_use_wide(int wanted)               # tests compare both implementations
    void parquet_crc_tables()
    uint32_t parquet_crc(const uint8_t* p, size_t n)
    uint32_t unpack_bits(const uint8_t* p, const uint8_t* end, unsigned width, size_t n, uint32_t* out)
    void unpack_wide(const uint8_t* p, const uint8_t* end, unsigned width, size_t n, uint64_t* out)
    size_t look_up_few(const uint8_t* p, const uint8_t* end, unsigned width, size_t n, const uint8_t* values,
                       uint8_t* out, uint32_t* most)
    void look_up(const uint32_t* index, size_t n, const uint8_t* values, size_t size, uint8_t* out)
    uint64_t add_up(uint64_t value, uint64_t least, const uint32_t* more, size_t n, size_t size, uint8_t* out)
    uint64_t add_up_wide(uint64_t value, uint64_t least, const uint64_t* more, size_t n, size_t size, uint8_t* out)
    void repeat_value(const uint8_t* value, size_t size, size_t n, uint8_t* out)
    void narrow_values(const uint8_t* p, size_t width, size_t n, size_t size, uint8_t* out)

cdef enum:
    DELTAS_AT_ONCE = 128
    AT_ONCE = 1024                   # numbers that are unpacked at once: they stay in the first cache
    MAX_DELTA_BLOCK = 65536
    FEW_VALUES = 16                  # a dictionary of bytes that fits into a register

cdef struct Dictionary:
    const uint8_t* values            # of `size` bytes each, and at least FEW_VALUES bytes
    uint32_t known


cdef inline int plain_values(const uint8_t* p, const uint8_t* end, size_t stored, size_t n, size_t size,
                             uint8_t* out) noexcept nogil:
    if <size_t>(end - p) < n * stored:
        return -1
    narrow_values(p, stored, n, size, out)
    return 0


cdef inline int dictionary_values(const uint8_t* p, const uint8_t* end, Dictionary* dictionary, size_t n, size_t size,
                                  uint8_t* out) noexcept nogil:
    # Runs of equal numbers, and groups of eight that are bit-packed; the first byte is the bits of a number.
    cdef uint32_t index[AT_ONCE]
    cdef uint64_t head, run, groups
    cdef uint32_t number
    cdef size_t width, take, at, some
    if p == end:
        return -1
    width = p[0]
    p += 1
    if width > 32:
        return -1
    while n:
        p = varint(p, end, &head)
        if p == NULL or head >> 32:
            return -1
        run = head >> 1
        if run == 0:
            return -1
        if head & 1:
            groups = run
            take = min(n, groups * 8)
            if <uint64_t>(end - p) < groups * width:
                return -1
            at = 0
            if size == 1 and dictionary.known <= FEW_VALUES:
                number = 0
                at = look_up_few(p, end, <unsigned>width, take, dictionary.values, out, &number)
                if at and number >= dictionary.known:
                    return -1
                out += at
            while at < take:
                some = min(take - at, <size_t>AT_ONCE)
                if unpack_bits(p + at * width // 8, end, <unsigned>width, some, index) >= dictionary.known:
                    return -1
                look_up(index, some, dictionary.values, size, out)
                out += some * size
                at += some
            p += groups * width
        else:
            take = min(n, run)
            number = 0
            at = (width + 7) // 8
            if <size_t>(end - p) < at:
                return -1
            memcpy(&number, p, at)
            p += at
            if number >= dictionary.known:
                return -1
            repeat_value(dictionary.values + <size_t>number * size, size, take, out)
            out += take * size
        n -= take
    return 0


cdef inline int delta_values(const uint8_t* p, const uint8_t* end, size_t stored, size_t n, size_t size,
                             uint8_t* out) noexcept nogil:
    # A first value, then blocks: their smallest difference, and what the differences are above it, in parts of 32
    # numbers or more with a width of their own.
    cdef uint32_t more[DELTAS_AT_ONCE]
    cdef uint64_t wide[DELTAS_AT_ONCE]
    cdef uint64_t block, parts, total, number, value, least
    cdef const uint8_t* widths
    cdef size_t part, of_part, at, some, left
    cdef unsigned width
    p = varint(p, end, &block)
    if p != NULL:
        p = varint(p, end, &parts)
    if p != NULL:
        p = varint(p, end, &total)
    if p != NULL:
        p = varint(p, end, &number)
    if p == NULL or total != n or parts == 0 or block > MAX_DELTA_BLOCK or block % parts or (block // parts) % 32:
        return -1
    if n == 0:
        return 0
    if block == 0:
        return -1
    of_part = block // parts
    value = <uint64_t>signed_of(number)
    memcpy(out, &value, size)
    out += size
    left = n - 1
    while left:
        p = varint(p, end, &number)
        if p == NULL or <uint64_t>(end - p) < parts:
            return -1
        least = <uint64_t>signed_of(number)
        widths = p
        p += parts
        for part in range(parts):
            if left == 0:
                break
            width = widths[part]
            if width > 8 * stored or <size_t>(end - p) < of_part * width // 8:
                return -1
            at = 0
            while at < of_part and left:
                some = min(min(of_part - at, left), <size_t>DELTAS_AT_ONCE)
                if width <= 32:
                    unpack_bits(p + at * width // 8, end, width, some, more)
                    value = add_up(value, least, more, some, size, out)
                else:
                    unpack_wide(p + at * width // 8, end, width, some, wide)
                    value = add_up_wide(value, least, wide, some, size, out)
                out += some * size
                at += some
                left -= some
            p += of_part * width // 8
    return 0
