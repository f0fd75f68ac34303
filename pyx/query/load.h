/* Columns of any number type as 64-bit values, and their sum, smallest and largest in one pass.
 *
 * A value is sign- or zero-extended, or the bits of a double.  Columns may be unaligned.
 * The loops are plain C; the compiler generates variants for AVX2 and AVX-512, selected at load time.
 */
#ifndef CONFLUO_LOAD_H
#define CONFLUO_LOAD_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CLONES
#endif

#define UNALIGNED __attribute__((aligned(1), may_alias))
typedef uint8_t load_u8;
typedef int8_t load_i8;
typedef uint16_t load_u16 UNALIGNED;
typedef int16_t load_i16 UNALIGNED;
typedef uint32_t load_u32 UNALIGNED;
typedef int32_t load_i32 UNALIGNED;
typedef uint64_t load_u64 UNALIGNED;
typedef int64_t load_i64 UNALIGNED;
typedef float load_f32 UNALIGNED;
typedef double load_f64 UNALIGNED;

/* rows: which elements of the column, or NULL for the first n. */
#define LOAD(T, WIDE)                                                                                     \
    CLONES static void values_##T(WIDE *restrict out, const load_##T *restrict p,                         \
                                  const uint16_t *restrict rows, uint32_t n) {                            \
        if (rows)                                                                                         \
            for (uint32_t i = 0; i < n; i++)                                                              \
                out[i] = (WIDE)p[rows[i]];                                                                \
        else                                                                                              \
            for (uint32_t i = 0; i < n; i++)                                                              \
                out[i] = (WIDE)p[i];                                                                      \
    }
LOAD(u8, uint64_t)
LOAD(u16, uint64_t)
LOAD(u32, uint64_t)
LOAD(u64, uint64_t)
LOAD(i8, int64_t)
LOAD(i16, int64_t)
LOAD(i32, int64_t)
LOAD(f32, double)

/* The codes of c_block.pxd. */
enum { CODE_U8 = 1, CODE_U16, CODE_U32, CODE_U64, CODE_I8, CODE_I16, CODE_I32, CODE_I64, CODE_F32, CODE_F64 };

static inline void load_values(uint64_t *out, int code, const void *column, const uint16_t *rows, uint32_t n) {
    switch (code) {
    case CODE_U8: values_u8(out, column, rows, n); break;
    case CODE_U16: values_u16(out, column, rows, n); break;
    case CODE_U32: values_u32(out, column, rows, n); break;
    case CODE_I8: values_i8((int64_t *)out, column, rows, n); break;
    case CODE_I16: values_i16((int64_t *)out, column, rows, n); break;
    case CODE_I32: values_i32((int64_t *)out, column, rows, n); break;
    case CODE_F32: values_f32((double *)out, column, rows, n); break;
    default: values_u64(out, column, rows, n); break; /* u64, i64, f64 */
    }
}

/* One element of the column. */
static inline uint64_t load_value(int code, const void *p) {
    uint64_t v;
    load_values(&v, code, p, 0, 1);
    return v;
}

/* Counts of 8- or 16-bit values.  Four counters per value, used in turn: otherwise a run of equal values would wait for
 * the previous store each time. */
#define TALLY(T)                                                                                    \
    static inline void tally_##T(uint32_t *restrict count, const void *column,                            \
                                 const uint16_t *restrict rows, uint32_t n) {                             \
        const load_##T *p = column;                                                                       \
        uint32_t i = 0;                                                                                   \
        if (rows)                                                                                         \
            for (; i < n; i++)                                                                            \
                count[(uint32_t)p[rows[i]] * 4 + (i & 3)]++;                                              \
        for (; i + 4 <= n; i += 4) {                                                                      \
            count[(uint32_t)p[i] * 4]++;                                                                  \
            count[(uint32_t)p[i + 1] * 4 + 1]++;                                                          \
            count[(uint32_t)p[i + 2] * 4 + 2]++;                                                          \
            count[(uint32_t)p[i + 3] * 4 + 3]++;                                                          \
        }                                                                                                 \
        for (; i < n; i++)                                                                                \
            count[(uint32_t)p[i] * 4]++;                                                                  \
    }
TALLY(u8)
TALLY(u16)

/* A bijection that spreads every bit over all 64 (the finaliser of MurmurHash3), the same in every process. */
static inline uint64_t fixed_hash(uint64_t v) {
    v ^= 0x9E3779B97F4A7C15u;
    v = (v ^ v >> 33) * 0xFF51AFD7ED558CCDu;
    v = (v ^ v >> 33) * 0xC4CEB9FE1A85EC53u;
    return v ^ v >> 33;
}

CLONES static void fixed_hashes(uint64_t *restrict out, const uint64_t *restrict v, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        out[i] = fixed_hash(v[i]);
}

/* Integers: the sum as a sum of lower and one of upper 32-bit halves.  Floats: a compensated sum; NaN is left out. */
struct reduced {
    uint64_t low;
    int64_t high;
    uint64_t min, max; /* as values */
    double sum, error;
    uint64_t n;
};

#define REDUCE_NARROW(T, WIDE)                                                                            \
    CLONES static void reduce_##T(struct reduced *r, const load_##T *restrict p, uint32_t n) {            \
        WIDE sum = 0;                                                                                     \
        load_##T low = p[0], high = p[0];                                                                 \
        for (uint32_t i = 0; i < n; i++) {                                                                \
            load_##T v = p[i];                                                                            \
            sum += v;                                                                                     \
            low = v < low ? v : low;                                                                      \
            high = v > high ? v : high;                                                                   \
        }                                                                                                 \
        r->low = (uint64_t)sum & 0xFFFFFFFFu;                                                             \
        r->high = (int64_t)((WIDE)(sum - (WIDE)r->low) >> 32);                                            \
        r->min = (uint64_t)(WIDE)low;                                                                     \
        r->max = (uint64_t)(WIDE)high;                                                                    \
    }
REDUCE_NARROW(u8, uint64_t)
REDUCE_NARROW(u16, uint64_t)
REDUCE_NARROW(u32, uint64_t)
REDUCE_NARROW(i8, int64_t)
REDUCE_NARROW(i16, int64_t)
REDUCE_NARROW(i32, int64_t)

#define REDUCE_WIDE(T)                                                                                    \
    CLONES static void reduce_##T(struct reduced *r, const load_##T *restrict p, uint32_t n) {            \
        uint64_t lows = 0, highs = 0;                                                                     \
        load_##T low = p[0], high = p[0];                                                                 \
        for (uint32_t i = 0; i < n; i++) {                                                                \
            load_##T v = p[i];                                                                            \
            lows += (uint64_t)v & 0xFFFFFFFFu;                                                            \
            highs += (uint64_t)(v >> 32);                                                                 \
            low = v < low ? v : low;                                                                      \
            high = v > high ? v : high;                                                                   \
        }                                                                                                 \
        r->low = lows;                                                                                    \
        r->high = (int64_t)highs;                                                                         \
        r->min = (uint64_t)low;                                                                           \
        r->max = (uint64_t)high;                                                                          \
    }
REDUCE_WIDE(u64)
REDUCE_WIDE(i64)

/* (s, e) + x with the rounding error kept in e (Knuth's TwoSum). */
static inline void two_sum(double *s, double *e, double x) {
    double t = *s + x, b = t - *s;
    *e += (*s - (t - b)) + (x - b);
    *s = t;
}

#define LANES 8
typedef double lanes_t __attribute__((vector_size(8 * LANES)));
typedef int64_t lane_mask_t __attribute__((vector_size(8 * LANES)));
#define PICK(mask, a, b) ((lanes_t)(((mask) & (lane_mask_t)(a)) | (~(mask) & (lane_mask_t)(b))))

#define REDUCE_FLOAT(T)                                                                                   \
    CLONES static void reduce_##T(struct reduced *r, const load_##T *p, uint32_t n) {                     \
        lanes_t s = {0}, e = {0}, low = s + __builtin_inf(), high = s - __builtin_inf();                  \
        lane_mask_t seen = {0};                                                                           \
        double total = 0, error = 0, least = __builtin_inf(), most = -__builtin_inf();                    \
        uint32_t i = 0;                                                                                   \
        for (; i + LANES <= n; i += LANES) {                                                              \
            lanes_t v;                                                                                    \
            for (int k = 0; k < LANES; k++)                                                               \
                v[k] = p[i + k];                                                                          \
            lane_mask_t number = v == v;                                                                  \
            lanes_t x = (lanes_t)(number & (lane_mask_t)v), t = s + x, b = t - s;                         \
            e += (s - (t - b)) + (x - b);                                                                 \
            s = t;                                                                                        \
            seen -= number;                                                                               \
            low = PICK(v < low, v, low);                                                                  \
            high = PICK(v > high, v, high);                                                               \
        }                                                                                                 \
        for (; i < n; i++) {                                                                              \
            double v = p[i];                                                                              \
            if (v == v) {                                                                                 \
                two_sum(&total, &error, v);                                                               \
                r->n++;                                                                                   \
                least = v < least ? v : least;                                                            \
                most = v > most ? v : most;                                                               \
            }                                                                                             \
        }                                                                                                 \
        for (int k = 0; k < LANES; k++) {                                                                 \
            two_sum(&total, &error, s[k]);                                                                \
            error += e[k];                                                                                \
            r->n += (uint64_t)seen[k];                                                                    \
            least = low[k] < least ? low[k] : least;                                                      \
            most = high[k] > most ? high[k] : most;                                                       \
        }                                                                                                 \
        r->sum = total, r->error = error;                                                                 \
        memcpy(&r->min, &least, 8);                                                                       \
        memcpy(&r->max, &most, 8);                                                                        \
    }
REDUCE_FLOAT(f32)
REDUCE_FLOAT(f64)

/* Smallest and largest of n > 0 numbers. */
CLONES static void range_u64(const uint64_t *v, uint32_t n, uint64_t *low, uint64_t *high) {
    uint64_t a = v[0], b = v[0];
    for (uint32_t i = 0; i < n; i++) {
        a = v[i] < a ? v[i] : a;
        b = v[i] > b ? v[i] : b;
    }
    *low = a;
    *high = b;
}

/* Sum of the squared differences of n doubles from their mean; NaN is left out. */
CLONES static double square_differences(const double *p, uint32_t n, double mean) {
    lanes_t s = {0};
    double total = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes_t v;
        for (int k = 0; k < LANES; k++)
            v[k] = p[i + k];
        lanes_t d = v - mean;
        s += (lanes_t)((v == v) & (lane_mask_t)(d * d));
    }
    for (; i < n; i++)
        if (p[i] == p[i])
            total += (p[i] - mean) * (p[i] - mean);
    for (int k = 0; k < LANES; k++)
        total += s[k];
    return total;
}

/* n > 0 elements of a column. */
static inline void reduce_column(struct reduced *r, int code, const void *p, uint32_t n) {
    memset(r, 0, sizeof *r);
    r->n = code < CODE_F32 ? n : 0;
    switch (code) {
    case CODE_U8: reduce_u8(r, p, n); break;
    case CODE_U16: reduce_u16(r, p, n); break;
    case CODE_U32: reduce_u32(r, p, n); break;
    case CODE_U64: reduce_u64(r, p, n); break;
    case CODE_I8: reduce_i8(r, p, n); break;
    case CODE_I16: reduce_i16(r, p, n); break;
    case CODE_I32: reduce_i32(r, p, n); break;
    case CODE_I64: reduce_i64(r, p, n); break;
    case CODE_F32: reduce_f32(r, p, n); break;
    case CODE_F64: reduce_f64(r, p, n); break;
    }
}

#endif
