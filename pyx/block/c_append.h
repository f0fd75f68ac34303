/* Storing rows in a block: the span (smallest and largest order key, any bit set) of a piece of a column, and
 * one row at a time.  Order keys are those of c_sort_key.pxd; tests compare the two.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define CFL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CFL_CLONES
#endif

#define CFL_SIGN ((uint64_t)1 << 63)

enum { CFL_U8 = 1, CFL_U16, CFL_U32, CFL_U64, CFL_I8, CFL_I16, CFL_I32, CFL_I64, CFL_F32, CFL_F64, CFL_BYTES };

typedef struct { uint64_t lo, hi, any; } cfl_span;
typedef struct { uint64_t not_min, max; } cfl_zone;         /* Zone of c_block.pxd */

/* One column of the current block of a lane. */
typedef struct {
    uint8_t *data;          /* column in the map */
    void *zone;             /* cfl_zone in the map */
    uint32_t width;         /* bytes per row */
    uint32_t size;          /* bytes per element */
    uint32_t count;
    uint32_t touched;       /* rows from here on were never written and are zero */
    uint8_t code;
    uint8_t open;           /* disk space is allocated and the used bit is set */
} cfl_slot;

#define CFL_SPAN(name, type, work, flip)                                                                  \
    CFL_CLONES static cfl_span cfl_span_##name(const void *data, size_t n) {                              \
        typedef type __attribute__((aligned(1), may_alias)) value;                                        \
        const value *v = (const value *)data;                                                             \
        work lo = v[0], hi = v[0];                                                                        \
        type any = 0;                                                                                     \
        for (size_t i = 0; i < n; i++) {                                                                  \
            work x = v[i];                                                                                \
            lo = x < lo ? x : lo;                                                                         \
            hi = x > hi ? x : hi;                                                                         \
            any |= v[i];                                                                                  \
        }                                                                                                 \
        cfl_span s = {(uint64_t)(flip ? (uint64_t)(int64_t)lo ^ CFL_SIGN : (uint64_t)lo),                 \
                      (uint64_t)(flip ? (uint64_t)(int64_t)hi ^ CFL_SIGN : (uint64_t)hi), (uint64_t)any}; \
        return s;                                                                                         \
    }

CFL_SPAN(u8, uint8_t, uint8_t, 0)
CFL_SPAN(u16, uint16_t, uint16_t, 0)
CFL_SPAN(u32, uint32_t, uint32_t, 0)
CFL_SPAN(u64, uint64_t, uint64_t, 0)
CFL_SPAN(i8, int8_t, int8_t, 1)
CFL_SPAN(i16, int16_t, int16_t, 1)
CFL_SPAN(i32, int32_t, int32_t, 1)
CFL_SPAN(i64, int64_t, int64_t, 1)

static inline uint64_t cfl_key_f64(double v) {
    uint64_t bits;
    v += 0.0; /* -0.0 and 0.0 are one value */
    memcpy(&bits, &v, 8);
    return bits >> 63 ? ~bits : bits | CFL_SIGN;
}

static inline uint64_t cfl_key_f32_bits(uint32_t ordered) { /* from the 32-bit order key */
    uint32_t bits = ordered >> 31 ? ordered & 0x7FFFFFFFu : ~ordered;
    float f;
    memcpy(&f, &bits, 4);
    return cfl_key_f64(f);
}

static inline uint64_t cfl_key_f64_bits(uint64_t ordered) {
    uint64_t bits = ordered >> 63 ? ordered & ~CFL_SIGN : ~ordered;
    double f;
    memcpy(&f, &bits, 8);
    return cfl_key_f64(f);
}

#define CFL_SPAN_FLOAT(name, type, signed_type, top, finish)                                              \
    CFL_CLONES static cfl_span cfl_span_##name(const void *data, size_t n) {                              \
        typedef type __attribute__((aligned(1), may_alias)) value;                                        \
        const value *v = (const value *)data;                                                             \
        type lo = ~(type)0, hi = 0, any = 0;                                                              \
        for (size_t i = 0; i < n; i++) {                                                                  \
            type x = v[i], key = x ^ ((type)((signed_type)x >> (8 * sizeof(type) - 1)) | top);            \
            lo = key < lo ? key : lo;                                                                     \
            hi = key > hi ? key : hi;                                                                     \
            any |= x;                                                                                     \
        }                                                                                                 \
        cfl_span s = {finish(lo), finish(hi), any};                                                       \
        return s;                                                                                         \
    }

CFL_SPAN_FLOAT(f32, uint32_t, int32_t, 0x80000000u, cfl_key_f32_bits)
CFL_SPAN_FLOAT(f64, uint64_t, int64_t, CFL_SIGN, cfl_key_f64_bits)

CFL_CLONES static uint64_t cfl_any(const uint8_t *p, size_t n) {
    typedef uint64_t __attribute__((aligned(1), may_alias)) word;
    const word *w = (const word *)p;
    uint64_t any = 0;
    size_t i, words = n / 8;
    for (i = 0; i < words; i++)
        any |= w[i];
    for (i = words * 8; i < n; i++)
        any |= p[i];
    return any;
}

static inline uint64_t cfl_key_bytes(const uint8_t *p, uint32_t size) {
    uint64_t key = 0;
    if (size >= 8) {
        memcpy(&key, p, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        key = __builtin_bswap64(key);
#endif
        return key;
    }
    for (uint32_t i = 0; i < size; i++)
        key |= (uint64_t)p[i] << (56 - 8 * i);
    return key;
}

static cfl_span cfl_span_bytes(const uint8_t *p, size_t n, uint32_t size) {
    cfl_span s = {0, 0, cfl_any(p, n * size)};
    if (!s.any)
        return s;
    s.lo = ~(uint64_t)0;
    for (size_t i = 0; i < n; i++, p += size) {
        uint64_t key = cfl_key_bytes(p, size);
        s.lo = key < s.lo ? key : s.lo;
        s.hi = key > s.hi ? key : s.hi;
    }
    return s;
}

/* Of n > 0 elements. */
static inline cfl_span cfl_span_of(uint8_t code, uint32_t size, const void *p, size_t n) {
    switch (code) {
    case CFL_U8: return cfl_span_u8(p, n);
    case CFL_U16: return cfl_span_u16(p, n);
    case CFL_U32: return cfl_span_u32(p, n);
    case CFL_U64: return cfl_span_u64(p, n);
    case CFL_I8: return cfl_span_i8(p, n);
    case CFL_I16: return cfl_span_i16(p, n);
    case CFL_I32: return cfl_span_i32(p, n);
    case CFL_I64: return cfl_span_i64(p, n);
    case CFL_F32: return cfl_span_f32(p, n);
    case CFL_F64: return cfl_span_f64(p, n);
    default: return cfl_span_bytes((const uint8_t *)p, n, size);
    }
}

/* The key of zero bytes. */
static inline uint64_t cfl_zero_key(uint8_t code) { return code >= CFL_I8 && code != CFL_BYTES ? CFL_SIGN : 0; }

/* Readers read zones while they are widened: store whole words, one at a time. */
static inline void cfl_widen(void *zone, uint64_t lo, uint64_t hi) {
    volatile uint64_t *not_min = &((cfl_zone *)zone)->not_min, *max = &((cfl_zone *)zone)->max;
    if (~lo > *not_min)
        *not_min = ~lo;
    if (hi > *max)
        *max = hi;
}

#define CFL_STREAM 1024 /* minimum bytes for which it is faster */

#if defined(__x86_64__)
#include <emmintrin.h>

/* Copy past the cache: the rows are not read soon, and the lines they go to need not be read before.  Ends with a
 * fence: what is stored later is seen later. */
__attribute__((noinline)) static void cfl_stream(uint8_t *to, const uint8_t *from, size_t n) {
    size_t head = -(uintptr_t)to & 63;
    memcpy(to, from, head);
    for (to += head, from += head, n -= head; n >= 64; n -= 64, to += 64, from += 64)
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    memcpy(to, from, n);
    _mm_sfence();
}
#else
#define cfl_stream memcpy
#endif

/* Store rows at .. at+n of one column.  Returns 0, or 1 when the column must be opened first (and nothing was done).
 * A null pointer means a column of zeros. */
static inline int cfl_store_column(cfl_slot *s, uint32_t at, const uint8_t *from, uint32_t n) {
    cfl_span span;
    if (from)
        span = cfl_span_of(s->code, s->size, from, (size_t)n * s->count);
    else
        span.lo = span.hi = cfl_zero_key(s->code), span.any = 0;
    if (!span.any) {
        if (s->touched > at) { /* left over from an append that failed */
            uint32_t rows = s->touched - at < n ? s->touched - at : n;
            memset(s->data + (size_t)at * s->width, 0, (size_t)rows * s->width);
        }
    } else {
        if (!s->open)
            return 1;
        size_t bytes = (size_t)n * s->width;
        if (bytes < CFL_STREAM)
            memcpy(s->data + (size_t)at * s->width, from, bytes);
        else
            cfl_stream(s->data + (size_t)at * s->width, from, bytes);
        if (s->touched < at + n)
            s->touched = at + n;
    }
    cfl_widen(s->zone, span.lo, span.hi);
    return 0;
}

/* One row.  Returns the number of columns done: n, or less when that column must be opened first. */
static inline int cfl_store_row(cfl_slot *slot, int n, int from, uint32_t at, const uint8_t *const *row) {
    int i;
    for (i = from; i < n; i++) {
        cfl_slot *s = slot + i;
        const uint8_t *p = row[i];
        uint8_t *to = s->data + (size_t)at * s->width;
        uint64_t key, any;
        if (s->count != 1 || s->code > CFL_I64) {
            if (cfl_store_column(s, at, p, 1))
                return i;
            continue;
        }
        switch (s->width) {
        case 1: {
            uint8_t v = *p;
            any = v;
            key = s->code == CFL_U8 ? v : (uint64_t)(int64_t)(int8_t)v ^ CFL_SIGN;
            break;
        }
        case 2: {
            uint16_t v;
            memcpy(&v, p, 2);
            any = v;
            key = s->code == CFL_U16 ? v : (uint64_t)(int64_t)(int16_t)v ^ CFL_SIGN;
            break;
        }
        case 4: {
            uint32_t v;
            memcpy(&v, p, 4);
            any = v;
            key = s->code == CFL_U32 ? v : (uint64_t)(int64_t)(int32_t)v ^ CFL_SIGN;
            break;
        }
        default: {
            memcpy(&any, p, 8);
            key = s->code == CFL_U64 ? any : any ^ CFL_SIGN;
        }
        }
        if (any || s->touched > at) {
            if (!s->open)
                return i;
            switch (s->width) {
            case 1: *to = (uint8_t)any; break;
            case 2: memcpy(to, p, 2); break;
            case 4: memcpy(to, p, 4); break;
            default: memcpy(to, p, 8);
            }
            if (s->touched <= at)
                s->touched = at + 1;
        }
        cfl_widen(s->zone, key, key);
    }
    return n;
}
