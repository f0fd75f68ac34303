# Print and read values: numbers, addresses, times.  Writers return the new end and need room for 48 bytes
# (a value of `bytes` more); readers must match all of [p, end) and return whether it is valid.

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod, strtof
from libc.string cimport memcpy, memchr
from c_civil cimport date_of, days_of

cdef extern from *:
    """
    static const char confluo_pairs[] =
        "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
        "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
    static const char confluo_hex[] = "0123456789abcdef";
    static inline int confluo_in_ns(int64_t seconds, int64_t ns, int64_t* out) {
        __int128 v = (__int128)seconds * 1000000000 + ns;
        *out = (int64_t)v;
        return v == *out;
    }
    """
    const char* PAIRS "confluo_pairs"
    const char* HEX "confluo_hex"
    bint mul_overflows "__builtin_mul_overflow"(uint64_t, uint64_t, uint64_t*) nogil
    bint add_overflows "__builtin_add_overflow"(uint64_t, uint64_t, uint64_t*) nogil
    bint in_ns "confluo_in_ns"(int64_t seconds, int64_t ns, int64_t* out) noexcept nogil     # False: beyond 64 bits

cdef enum:
    VALUE_MAX = 48                  # bytes of one printed number, address or time
    NUMBER_MAX = 64                 # longest text of a number that is read

cdef inline char* put_u64(char* p, uint64_t v) noexcept nogil:
    cdef char buf[24]
    cdef int at = 24
    cdef uint64_t q
    if v < 10:
        p[0] = 48 + <char>v
        return p + 1
    while v >= 100:
        q = v // 100
        at -= 2
        memcpy(buf + at, PAIRS + 2 * (v - q * 100), 2)
        v = q
    if v >= 10:
        at -= 2
        memcpy(buf + at, PAIRS + 2 * v, 2)
    else:
        at -= 1
        buf[at] = 48 + <char>v
    memcpy(p, buf + at, 24 - at)
    return p + (24 - at)

cdef inline char* put_i64(char* p, int64_t v) noexcept nogil:
    if v < 0:
        p[0] = 45
        return put_u64(p + 1, <uint64_t>0 - <uint64_t>v)
    return put_u64(p, <uint64_t>v)

cdef inline char* put_padded(char* p, uint32_t v, int digits) noexcept nogil:
    cdef int i
    for i in range(digits - 1, -1, -1):
        p[i] = 48 + <char>(v % 10)
        v //= 10
    return p + digits

cdef inline char* put_hex(char* p, uint64_t v) noexcept nogil:
    cdef int shift = 60
    memcpy(p, "0x", 2)
    p += 2
    while shift and not v >> shift:
        shift -= 4
    while shift >= 0:
        p[0] = HEX[v >> shift & 15]
        p += 1
        shift -= 4
    return p

cdef inline char* put_float(char* p, double v, bint single) noexcept nogil:
    # The shortest text that reads back as v; whole numbers keep their ".0".
    cdef int n = 0, digits
    cdef int i
    if v != v:
        memcpy(p, "nan", 3)
        return p + 3
    if v - v != 0:
        if v < 0:
            p[0] = 45
            p += 1
        memcpy(p, "inf", 3)
        return p + 3
    if -1e15 < v < 1e15 and v == <double><int64_t>v and (v != 0 or 1 / v > 0):
        p = put_i64(p, <int64_t>v)
        memcpy(p, ".0", 2)
        return p + 2
    digits = 6 if single else 15                # digits that are exact, except in subnormal numbers
    if -(1.2e-38 if single else 2.3e-308) < v < (1.2e-38 if single else 2.3e-308):
        digits = 1
    for digits in range(digits, 18):
        n = snprintf(p, 40, "%.*g", digits, v)
        if (strtof(p, NULL) == <float>v) if single else (strtod(p, NULL) == v):
            break
    for i in range(n):
        if p[i] == 46 or p[i] == 101:
            return p + n
    memcpy(p + n, ".0", 2)
    return p + n + 2

cdef inline char* put_ipv4(char* p, uint32_t v) noexcept nogil:
    cdef int shift
    cdef uint32_t octet
    for shift in range(24, -8, -8):
        octet = v >> shift & 255
        if octet >= 100:
            p[0] = 48 + <char>(octet // 100)
            memcpy(p + 1, PAIRS + 2 * (octet % 100), 2)
            p += 3
        elif octet >= 10:
            memcpy(p, PAIRS + 2 * octet, 2)
            p += 2
        else:
            p[0] = 48 + <char>octet
            p += 1
        p[0] = 46
        p += 1
    return p - 1

cdef inline char* put_ipv6(char* p, const uint8_t* a) noexcept nogil:
    # RFC 5952; the last 32 bits dotted where inet_ntop does it.
    cdef uint32_t w[8]
    cdef int i, best = -1, best_n = 1, run = -1, nibble
    for i in range(8):
        w[i] = <uint32_t>a[2 * i] << 8 | a[2 * i + 1]
    for i in range(9):
        if i < 8 and w[i] == 0:
            if run < 0:
                run = i
        elif run >= 0:
            if i - run > best_n:
                best, best_n = run, i - run
            run = -1
    i = 0
    while i < 8:
        if i == best:
            memcpy(p, "::", 2)
            p += 2
            i += best_n
            continue
        if i and (best < 0 or i != best + best_n):
            p[0] = 58
            p += 1
        if i == 6 and best == 0 and (best_n == 6 or best_n == 5 and w[5] == 0xFFFF):
            return put_ipv4(p, w[6] << 16 | w[7])
        nibble = 12
        while nibble and not w[i] >> nibble:
            nibble -= 4
        while nibble >= 0:
            p[0] = HEX[w[i] >> nibble & 15]
            p += 1
            nibble -= 4
        i += 1
    return p

cdef inline char* put_mac(char* p, uint64_t v) noexcept nogil:
    cdef int shift
    for shift in range(40, -8, -8):
        p[0] = HEX[v >> (shift + 4) & 15]
        p[1] = HEX[v >> shift & 15]
        p[2] = 58
        p += 3
    return p - 1

cdef struct TimeCache:
    int64_t second                  # the second for which the text is kept
    char text[20]                   # 2026-11-20T10:00:00.

cdef inline int64_t floor_div(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t q = a // b
    return q - 1 if a % b < 0 else q

cdef inline char* put_time(char* p, int64_t ns, TimeCache* cache) noexcept nogil:
    # RFC 3339, UTC, nine digits; the text of a second is cached.
    cdef int64_t second = floor_div(ns, 1000000000), days, year, of_day
    cdef uint32_t day, month
    cdef char* t = cache.text
    if second != cache.second or t[0] == 0:
        days = floor_div(second, 86400)
        of_day = second - days * 86400
        year = date_of(days, &month, &day)
        t = put_padded(t, <uint32_t>year, 4)
        t[0] = 45
        t = put_padded(t + 1, month, 2)
        t[0] = 45
        t = put_padded(t + 1, day, 2)
        t[0] = 84
        t = put_padded(t + 1, <uint32_t>(of_day // 3600), 2)
        t[0] = 58
        t = put_padded(t + 1, <uint32_t>(of_day // 60 % 60), 2)
        t[0] = 58
        t = put_padded(t + 1, <uint32_t>(of_day % 60), 2)
        t[0] = 46
        cache.second = second
    memcpy(p, cache.text, 20)
    p = put_padded(p + 20, <uint32_t>(ns - second * 1000000000), 9)
    p[0] = 90
    return p + 1

# ---------------------------------------------------------------------------------------------- readers

cdef inline int hex_digit(char c) noexcept nogil:
    if 48 <= c <= 57:
        return c - 48
    if 97 <= (c | 32) <= 102:
        return (c | 32) - 87
    return -1

cdef inline bint get_u64(const char* p, const char* end, uint64_t* out) noexcept nogil:
    """Decimal or 0x hexadecimal, without sign."""
    cdef uint64_t v = 0
    cdef int d
    if p >= end:
        return False
    if end - p > 2 and p[0] == 48 and (p[1] | 32) == 120:
        p += 2
        if end - p > 16:
            return False
        while p < end:
            d = hex_digit(p[0])
            if d < 0:
                return False
            v = v << 4 | <uint64_t>d
            p += 1
    else:
        while p < end:
            d = p[0] - 48
            if d < 0 or d > 9 or mul_overflows(v, 10, &v) or add_overflows(v, d, &v):
                return False
            p += 1
    out[0] = v
    return True

cdef inline bint get_i64(const char* p, const char* end, int64_t* out) noexcept nogil:
    cdef uint64_t v
    cdef bint minus = p < end and p[0] == 45
    if p < end and (p[0] == 45 or p[0] == 43):
        p += 1
    if not get_u64(p, end, &v):
        return False
    if minus:
        if v > <uint64_t>1 << 63:
            return False
        out[0] = <int64_t>(<uint64_t>0 - v)
    else:
        if v >> 63:
            return False
        out[0] = <int64_t>v
    return True

cdef inline bint get_float(const char* p, const char* end, double* out, bint single) noexcept nogil:
    cdef char buf[NUMBER_MAX]
    cdef char* stop
    if p >= end or end - p >= NUMBER_MAX or p[0] == 32:
        return False
    memcpy(buf, p, end - p)
    buf[end - p] = 0
    if memchr(buf, 120, end - p) or memchr(buf, 88, end - p):
        return False                # no hexadecimal floats
    out[0] = <double>strtof(buf, &stop) if single else strtod(buf, &stop)
    return stop == buf + (end - p)

cdef inline bint get_ipv4(const char* p, const char* end, uint32_t* out) noexcept nogil:
    cdef uint32_t v = 0, octet
    cdef int part, digits
    for part in range(4):
        octet = 0
        digits = 0
        if end - p > 1 and p[0] == 48 and 48 <= p[1] <= 57:
            return False            # some programs read 010 as eight, others as ten
        while p < end and 48 <= p[0] <= 57 and digits < 4:
            octet = octet * 10 + <uint32_t>(p[0] - 48)
            digits += 1
            p += 1
        if digits == 0 or digits > 3 or octet > 255:
            return False
        v = v << 8 | octet
        if part < 3:
            if p >= end or p[0] != 46:
                return False
            p += 1
    out[0] = v
    return p == end

cdef inline bint get_ipv6(const char* p, const char* end, uint8_t* out) noexcept nogil:
    cdef uint8_t a[16]
    cdef int n = 0, gap = -1, digits, d
    cdef uint32_t word, v4
    cdef const char* start
    if end - p < 2 or end - p > 45:
        return False
    if p[0] == 58:
        if p[1] != 58:
            return False
        gap = 0
        p += 2
    while p < end:
        if n >= 16:
            return False
        word = 0
        digits = 0
        start = p
        while p < end and digits < 5:
            d = hex_digit(p[0])
            if d < 0:
                break
            word = word << 4 | <uint32_t>d
            digits += 1
            p += 1
        if p < end and p[0] == 46:
            if n > 12 or not get_ipv4(start, end, &v4):
                return False
            a[n] = <uint8_t>(v4 >> 24)
            a[n + 1] = <uint8_t>(v4 >> 16)
            a[n + 2] = <uint8_t>(v4 >> 8)
            a[n + 3] = <uint8_t>v4
            n += 4
            p = end
            break
        if digits == 0 or digits > 4:
            return False
        a[n] = <uint8_t>(word >> 8)
        a[n + 1] = <uint8_t>word
        n += 2
        if p == end:
            break
        if p[0] != 58:
            return False
        p += 1
        if p == end:
            return False
        if p[0] == 58:
            if gap >= 0:
                return False
            gap = n
            p += 1
    if gap < 0:
        if n != 16:
            return False
        memcpy(out, a, 16)
        return True
    if n > 14:
        return False
    for d in range(16):
        out[d] = 0
    memcpy(out, a, gap)
    memcpy(out + 16 - (n - gap), a + gap, n - gap)
    return True

cdef inline bint get_mac(const char* p, const char* end, uint64_t* out) noexcept nogil:
    cdef uint64_t v = 0
    cdef int i
    if end - p != 17:
        return False
    for i in range(6):
        if hex_digit(p[0]) < 0 or hex_digit(p[1]) < 0 or (i < 5 and p[2] != 58 and p[2] != 45):
            return False
        v = v << 8 | <uint64_t>(hex_digit(p[0]) << 4 | hex_digit(p[1]))
        p += 3
    out[0] = v
    return True

cdef inline bint get_digits(const char* p, int n, uint32_t* out) noexcept nogil:
    cdef uint32_t v = 0
    cdef int i
    for i in range(n):
        if not 48 <= p[i] <= 57:
            return False
        v = v * 10 + <uint32_t>(p[i] - 48)
    out[0] = v
    return True

cdef inline bint get_fraction(const char** at, const char* end, int64_t* ns) noexcept nogil:
    # After the point: up to nine digits count, further ones are dropped.
    cdef const char* p = at[0]
    cdef int64_t v = 0, unit = 100000000
    if p >= end or not 48 <= p[0] <= 57:
        return False
    while p < end and 48 <= p[0] <= 57:
        v += (p[0] - 48) * unit
        unit //= 10
        p += 1
    at[0], ns[0] = p, v
    return True

cdef inline bint get_epoch(uint64_t whole, int64_t part, bint minus, int64_t unit, int64_t* out) noexcept nogil:
    """Units of ``unit`` ns since 1970, and ``part`` billionths of one."""
    cdef int64_t sign = -1 if minus else 1, per_second = 1000000000 // unit, ns
    if whole >> 63:
        return False
    ns = <int64_t>whole % per_second * unit + part // per_second
    return in_ns(sign * (<int64_t>whole // per_second), sign * ns, out)

cdef inline bint get_time(const char* p, const char* end, int64_t unit, int64_t* out) noexcept nogil:
    """RFC 3339 (a blank or T between, Z or an offset or nothing), or units of ``unit`` ns since 1970 with a fraction.

    Offsets are ``+01:00``, ``+0100`` or ``+01``.
    """
    cdef uint32_t y, mo, d, h = 0, mi = 0, s = 0, oh, om
    cdef int64_t ns = 0, seconds, offset = 0
    cdef uint64_t whole
    cdef bint minus
    cdef const char* q
    if end - p < 10 or p[4] != 45:
        q = p
        minus = p < end and p[0] == 45
        if minus:
            p += 1
            q += 1
        while q < end and 48 <= q[0] <= 57:
            q += 1
        if not get_u64(p, q, &whole):
            return False
        if q < end:
            if q[0] != 46:
                return False
            q += 1
            if not get_fraction(&q, end, &ns) or q != end:
                return False
        return get_epoch(whole, ns, minus, unit, out)
    if not (get_digits(p, 4, &y) and p[7] == 45 and get_digits(p + 5, 2, &mo) and get_digits(p + 8, 2, &d)):
        return False
    p += 10
    if p < end:
        if end - p < 6 or not (p[0] == 84 or p[0] == 116 or p[0] == 32) or p[3] != 58:
            return False
        if not get_digits(p + 1, 2, &h) or not get_digits(p + 4, 2, &mi):
            return False
        p += 6
        if end - p >= 3 and p[0] == 58:
            if not get_digits(p + 1, 2, &s):
                return False
            p += 3
            if p < end and (p[0] == 46 or p[0] == 44):
                p += 1
                if not get_fraction(&p, end, &ns):
                    return False
        if p < end and (p[0] | 32) == 122:
            p += 1
        elif (end - p == 6 and p[3] == 58 or end - p == 5 or end - p == 3) and (p[0] == 43 or p[0] == 45):
            om = 0
            if not get_digits(p + 1, 2, &oh) or end - p > 3 and not get_digits(end - 2, 2, &om):
                return False
            offset = (oh * 3600 + om * 60) * (1 if p[0] == 43 else -1)
            p = end
        if p != end:
            return False
    if not 1 <= mo <= 12 or not 1 <= d <= 31 or h > 23 or mi > 59 or s > 60:
        return False
    seconds = days_of(y, mo, d) * 86400 + h * 3600 + mi * 60 + s - offset
    return in_ns(seconds, ns, out)

cdef inline int64_t unit_ns(const char* p, const char* end) noexcept nogil:
    """Nanoseconds of a unit; 0 for an unknown name."""
    cdef ptrdiff_t n = end - p
    if n == 1:
        if p[0] == 115: return 1000000000
        if p[0] == 109: return 60000000000
        if p[0] == 104: return 3600000000000
        if p[0] == 100: return 86400000000000
    elif n == 2 and p[1] == 115:
        if p[0] == 110: return 1
        if p[0] == 117: return 1000
        if p[0] == 109: return 1000000
    return 0

cdef inline bint get_duration(const char* p, const char* end, int64_t* out) noexcept nogil:
    """A number of nanoseconds, or one number with a unit (250us, 1.5s)."""
    cdef const char* q = end
    cdef int64_t unit
    cdef double v
    if get_i64(p, end, out):
        return True
    while q > p and 97 <= (q - 1)[0] <= 122:
        q -= 1
    unit = unit_ns(q, end)
    if unit == 0 or not get_float(p, q, &v, False):
        return False
    v = v * unit
    if not -9.2e18 < v < 9.2e18:
        return False
    out[0] = <int64_t>(v + 0.5) if v >= 0 else -<int64_t>(0.5 - v)
    return True
