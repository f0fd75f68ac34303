# Parse JSON on one line in place.

from libc.stdint cimport uint32_t
from c_text cimport hex_digit

cdef enum:
    SCRATCH = 1 << 16   # longest string that is read
    DEPTH_MAX = 64      # nested values that are skipped

cdef inline const char* json_blank(const char* p, const char* end) noexcept nogil:
    while p < end and (p[0] == 32 or p[0] == 9):
        p += 1
    return p

cdef inline char json_escaped(char c) noexcept nogil:
    if c == 110:
        return 10
    if c == 116:
        return 9
    if c == 114:
        return 13
    if c == 98:
        return 8
    if c == 102:
        return 12
    return c

cdef inline bint json_hex4(const char* p, const char* end, uint32_t* out) noexcept nogil:
    cdef int i, d
    cdef uint32_t v = 0
    if end - p < 4:
        return False
    for i in range(4):
        d = hex_digit(p[i])
        if d < 0:
            return False
        v = v << 4 | <uint32_t>d
    out[0] = v
    return True

cdef inline uint32_t put_utf8(char* p, uint32_t c) noexcept nogil:
    if c < 0x80:
        p[0] = <char>c
        return 1
    if c < 0x800:
        p[0] = <char>(0xC0 | c >> 6)
        p[1] = <char>(0x80 | c & 63)
        return 2
    if c < 0x10000:
        p[0] = <char>(0xE0 | c >> 12)
        p[1] = <char>(0x80 | c >> 6 & 63)
        p[2] = <char>(0x80 | c & 63)
        return 3
    p[0] = <char>(0xF0 | c >> 18)
    p[1] = <char>(0x80 | c >> 12 & 63)
    p[2] = <char>(0x80 | c >> 6 & 63)
    p[3] = <char>(0x80 | c & 63)
    return 4

cdef inline const char* json_string(const char* p, const char* end, char* scratch,
                                    const char** text, uint32_t* n) noexcept nogil:
    """Skip the string at p; NULL if invalid.  Its text is in place, or unescaped in `scratch` (SCRATCH bytes)."""
    cdef const char* q
    cdef uint32_t k, code, low
    if p >= end or p[0] != 34:
        return NULL
    p += 1
    q = p
    while q < end and q[0] != 34 and q[0] != 92:
        q += 1
    if q >= end:
        return NULL
    if q[0] == 34:
        text[0], n[0] = p, <uint32_t>(q - p)
        return q + 1
    k = 0
    while p < end and p[0] != 34:
        if k + 4 > SCRATCH:
            return NULL
        if p[0] != 92:
            scratch[k] = p[0]
            k += 1
            p += 1
            continue
        p += 1
        if p >= end:
            return NULL
        if p[0] == 117:
            if not json_hex4(p + 1, end, &code):
                return NULL
            p += 5
            if 0xD800 <= code < 0xDC00 and end - p > 6 and p[0] == 92 and p[1] == 117:
                if json_hex4(p + 2, end, &low) and 0xDC00 <= low < 0xE000:
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                    p += 6
            if 0xDC80 <= code <= 0xDCFF:        # a byte that is not UTF-8, as our own JSON writes it
                scratch[k] = <char>(code & 0xFF)
                k += 1
                continue
            k += put_utf8(scratch + k, code)
            continue
        scratch[k] = json_escaped(p[0])
        k += 1
        p += 1
    if p >= end:
        return NULL
    text[0], n[0] = scratch, k
    return p + 1

cdef inline const char* json_skip(const char* p, const char* end) noexcept nogil:
    """Skip a value of any kind at p; NULL when it does not end."""
    cdef int depth = 0
    while p < end:
        if p[0] == 34:
            p += 1
            while p < end and p[0] != 34:
                p += 2 if p[0] == 92 else 1
            if p >= end:
                return NULL
        elif p[0] == 123 or p[0] == 91:
            depth += 1
            if depth > DEPTH_MAX:
                return NULL
        elif p[0] == 125 or p[0] == 93:
            if depth == 0:
                return p
            depth -= 1
            if depth == 0:
                return p + 1
        elif p[0] == 44 and depth == 0:
            return p
        p += 1
        if depth == 0 and p < end and ((p - 1)[0] == 34):
            return p
    return NULL
