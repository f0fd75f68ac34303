# The header of a page of Parquet: a structure of Thrift in its compact protocol (parquet.thrift, PageHeader).

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

cdef enum:
    DATA_PAGE = 0
    DICTIONARY_PAGE = 2
    DATA_PAGE_V2 = 3
    ENCODING_PLAIN = 0
    ENCODING_PLAIN_DICTIONARY = 2
    ENCODING_DELTA = 5
    ENCODING_DICTIONARY = 8
    MAX_NESTED = 8                   # structures in structures

cdef enum:                           # types of the compact protocol
    T_STOP = 0
    T_TRUE = 1
    T_FALSE = 2
    T_BYTE = 3
    T_I16 = 4
    T_I64 = 6
    T_DOUBLE = 7
    T_BINARY = 8
    T_STRUCT = 12

cdef struct PageHeader:
    int64_t type
    int64_t size                     # bytes of the page, decompressed
    int64_t stored                   # bytes after the header
    int64_t crc
    bint has_crc
    int64_t values
    int64_t encoding
    int64_t levels                   # bytes of levels, which version 2 never compresses
    int64_t nulls
    bint plain                       # version 2: this page is not compressed


cdef inline const uint8_t* varint(const uint8_t* p, const uint8_t* end, uint64_t* out) noexcept nogil:
    # A number of up to 64 bits, seven in a byte; NULL: it does not end.
    cdef uint64_t v = 0
    cdef unsigned shift = 0
    while p < end and shift < 64:
        v |= <uint64_t>(p[0] & 127) << shift
        if p[0] < 128:
            out[0] = v
            return p + 1
        p += 1
        shift += 7
    return NULL


cdef inline int64_t signed_of(uint64_t v) noexcept nogil:
    return <int64_t>((v >> 1) ^ (0 - (v & 1)))


cdef inline int64_t* _place(PageHeader* h, unsigned path) noexcept nogil:
    # Where a number is kept; path: numbers of the fields on the way to it, a byte each.
    if path == 1:
        return &h.type
    if path == 2:
        return &h.size
    if path == 3:
        return &h.stored
    if path == 4:
        h.has_crc = True
        return &h.crc
    if path in (0x0501, 0x0701, 0x0801):
        return &h.values
    if path == 0x0802:
        return &h.nulls
    if path in (0x0502, 0x0702, 0x0804):
        return &h.encoding
    return NULL


cdef inline const uint8_t* page_header(const uint8_t* p, const uint8_t* end, PageHeader* h) noexcept nogil:
    # The first byte after the header at p; NULL: it is not one, or has lists.
    cdef unsigned fields[MAX_NESTED]
    cdef unsigned depth = 0, path, k
    cdef uint8_t byte
    cdef uint64_t number
    cdef int64_t* place
    memset(h, 0, sizeof(PageHeader))
    h.type = h.size = h.stored = h.values = h.encoding = -1
    fields[0] = 0
    while p < end:
        byte = p[0]
        p += 1
        if byte == T_STOP:
            if depth == 0:
                return p
            depth -= 1
            continue
        if byte >> 4:
            fields[depth] += byte >> 4
        else:
            p = varint(p, end, &number)
            if p == NULL:
                return NULL
            fields[depth] = <unsigned>signed_of(number)
        path = 0
        for k in range(depth + 1):
            path = path << 8 | fields[k] if depth < 2 and fields[k] < 256 else 0
        byte &= 15
        if byte == T_TRUE or byte == T_FALSE:
            if path == 0x0807:
                h.plain = byte == T_FALSE
        elif byte == T_BYTE:
            p += 1
        elif T_I16 <= byte <= T_I64:
            p = varint(p, end, &number)
            if p == NULL:
                return NULL
            place = _place(h, path)
            if place != NULL:
                place[0] = signed_of(number)
            elif path == 0x0805 or path == 0x0806:
                h.levels |= signed_of(number)
        elif byte == T_DOUBLE:
            if end - p < 8:
                return NULL
            p += 8
        elif byte == T_BINARY:
            p = varint(p, end, &number)
            if p == NULL or number > <uint64_t>(end - p):
                return NULL
            p += number
        elif byte == T_STRUCT and depth + 1 < MAX_NESTED:
            depth += 1
            fields[depth] = 0
        else:
            return NULL
    return NULL
