/* Tests over one column of a block: 64 rows become one 64-bit word of a mask.
 *
 * scan_level.h holds the loops; it is included once per instruction set, and scan_table() selects
 * the set at run time.  No loop reads beyond row n: the last, partial word is computed
 * from a zero-padded copy.
 */
#ifndef CONFLUO_SCAN_KERNELS_H
#define CONFLUO_SCAN_KERNELS_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SCAN_SET = 0, SCAN_AND = 1, SCAN_OR = 2 };       /* how words are combined with existing ones */
enum { PAIR_EQ = 0, PAIR_LT = 1, PAIR_LE = 2 };
enum { SCAN_U8 = 1, SCAN_U16, SCAN_U32, SCAN_U64, SCAN_I8, SCAN_I16, SCAN_I32, SCAN_I64, SCAN_F32, SCAN_F64, SCAN_BYTES };

typedef struct {                /* lo <= x <= lo + span, modulo 2^bits: also for signed x */
    uint64_t lo, span;
} scan_range;

typedef struct {
    uint64_t mask, mask2;       /* integers: x & mask is tested; of the second column of a Pair */
    uint64_t flip;              /* ~0 negates the test */
    uint32_t size, count;       /* bytes per element, elements per row */
    uint32_t k;                 /* ranges */
    uint32_t shift;             /* of the hash table: 64 - log2(slots); of the directory: a value >> shift is its place */
    const scan_range *range;
    const uint64_t *table;      /* bit map (1 and 2 byte elements) or hash table (0 = free slot) */
    const uint32_t *directory;  /* of many ranges: the first that ends at or after place << shift, and one place more */
    uint64_t has_zero;          /* 1: zero is in the hash table */
    double lo, hi;              /* floats: lo <= x <= hi */
    const uint8_t *blo, *bhi, *bmask;   /* bytes: bounds and mask (NULL: none) of `size` bytes; Glob: blo, glen;
                                           k > 0: the bounds of k sorted ranges, one after the other */
    uint32_t glen, same;        /* length of the pattern; bounds are equal */
    int op, code, code2, wide;  /* Pair: PAIR_*, types, and the common type to compare in */
} scan_test;

typedef void (*scan_fn)(const uint8_t *p, uint32_t n, const scan_test *t, uint64_t *out, int mode);
typedef void (*pair_fn)(const uint8_t *p, const uint8_t *q, uint32_t n, const scan_test *t, uint64_t *out, int mode);

typedef struct {
    scan_fn range[4], ranges[4];        /* by log2 of the element size; one range, several */
    scan_fn bitmap[2], hash[2];         /* 1 and 2 bytes; 4 and 8 bytes */
    scan_fn search[2];                  /* many sorted ranges: 4 and 8 bytes */
    scan_fn real[2];                    /* f32, f64 */
    pair_fn pair;
    uint32_t (*count)(const uint64_t *words, uint32_t n);
} scan_table;

typedef uint16_t scan_u16 __attribute__((aligned(1), may_alias));
typedef uint32_t scan_u32 __attribute__((aligned(1), may_alias));
typedef uint64_t scan_u64 __attribute__((aligned(1), may_alias));
typedef int16_t scan_i16 __attribute__((aligned(1), may_alias));
typedef int32_t scan_i32 __attribute__((aligned(1), may_alias));
typedef int64_t scan_i64 __attribute__((aligned(1), may_alias));
typedef float scan_f32 __attribute__((aligned(1), may_alias));
typedef double scan_f64 __attribute__((aligned(1), may_alias));
typedef uint8_t scan_u8;
typedef int8_t scan_i8;

#define SCAN_INLINE static inline __attribute__((always_inline))

/* 64 bytes of 0 or 1 -> 64 bits. */
SCAN_INLINE uint64_t scan_pack(const uint8_t *b)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        word |= ((*(const scan_u64 *)(b + 8 * i) * 0x0102040810204080u) >> 56) << (8 * i);
    return word;
}

SCAN_INLINE void scan_join(uint64_t *out, uint64_t word, int mode)
{
    if (mode == SCAN_SET)
        *out = word;
    else if (mode == SCAN_AND)
        *out &= word;
    else
        *out |= word;
}

SCAN_INLINE int scan_in_hash(uint64_t x, const scan_test *t)
{
    uint64_t slots = (uint64_t)1 << (64 - t->shift), i;
    if (!x)
        return (int)t->has_zero;
    for (i = (x * 0x9E3779B97F4A7C15u) >> t->shift; t->table[i]; i = (i + 1) & (slots - 1))
        if (t->table[i] == x)
            return 1;
    return 0;
}

/* Ranges sorted by their unsigned bounds; none goes beyond the largest value. */
SCAN_INLINE int scan_in_ranges(uint64_t x, const scan_test *t)
{
    const uint32_t *place = t->directory + (x >> t->shift);
    uint32_t a = place[0], b = place[1];
    while (a < b) {
        uint32_t mid = (a + b) / 2;
        if (t->range[mid].lo + t->range[mid].span < x)
            a = mid + 1;
        else
            b = mid;
    }
    return a < t->k && t->range[a].lo <= x;
}

/* Exact order of a float and an integer: -1, 0, 1, or 2 when x is not a number. */
static int scan_order_i64(double x, int64_t y)
{
    if (x != x)
        return 2;
    if (x >= 9223372036854775808.0)
        return 1;
    if (x < -9223372036854775808.0)
        return -1;
    int64_t whole = (int64_t)x;
    if (whole != y)
        return whole < y ? -1 : 1;
    double rest = x - (double)whole;
    return rest < 0 ? -1 : rest > 0;
}

static int scan_order_u64(double x, uint64_t y)
{
    if (x != x)
        return 2;
    if (x >= 18446744073709551616.0)
        return 1;
    if (x < 0)
        return -1;
    uint64_t whole = (uint64_t)x;
    if (whole != y)
        return whole < y ? -1 : 1;
    return x > (double)whole;
}

static int scan_order_mixed(int64_t a, int a_unsigned, int64_t b, int b_unsigned)
{
    if (a_unsigned != b_unsigned) {
        if (a_unsigned && b < 0)
            return 1;
        if (b_unsigned && a < 0)
            return -1;
        return (uint64_t)a < (uint64_t)b ? -1 : a != b;
    }
    return a_unsigned ? ((uint64_t)a < (uint64_t)b ? -1 : a != b) : (a < b ? -1 : a != b);
}

#define LEVEL 0
#include "scan_level.h"
#undef LEVEL

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt")
#define LEVEL 1
#include "scan_level.h"
#undef LEVEL
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt,avx512f,avx512bw,avx512vl,avx512dq")
#define LEVEL 2
#include "scan_level.h"
#undef LEVEL
#pragma GCC pop_options
#define SCAN_LEVELS 3
static const scan_table scan_tables[SCAN_LEVELS] = {SCAN_TABLE(0, 0), SCAN_TABLE(1, 1), SCAN_TABLE(2, 1)};
#else
#define SCAN_LEVELS 1
static const scan_table scan_tables[SCAN_LEVELS] = {SCAN_TABLE(0, 0)};
#endif

static int scan_forced = -1;

/* Use this instruction set from now on; -1: the best. */
static void scan_force(int level)
{
    scan_forced = level;
}

/* The best instruction set here: 0 any, 1 AVX2, 2 AVX-512. */
static int scan_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))
        return 1;
#endif
    return 0;
}

static int scan_level(void)
{
    static int level = -1;
    if (scan_forced >= 0)
        return scan_forced;
    if (level < 0)
        level = scan_best();
    return level;
}

static const scan_table *scan_kernels(void)
{
    return &scan_tables[scan_level()];
}

/* 64 bits -> 32: the or of each pair of neighbours. */
SCAN_INLINE uint64_t scan_halve(uint64_t x)
{
    x = (x | x >> 1) & 0x5555555555555555u;
    x = (x | x >> 1) & 0x3333333333333333u;
    x = (x | x >> 2) & 0x0f0f0f0f0f0f0f0fu;
    x = (x | x >> 4) & 0x00ff00ff00ff00ffu;
    x = (x | x >> 8) & 0x0000ffff0000ffffu;
    return (x | x >> 16) & 0xffffffffu;
}

/* Bits of `count` elements per row -> one bit per row: set if any of its elements is.  `e` is changed. */
static uint64_t scan_any(uint64_t *e, uint32_t count)
{
    uint64_t word = 0;
    if (count == 8) {                   /* a byte a row: 128 + its value, unless zero, has another high bit */
        for (uint32_t i = 0; i < 8; i++) {
            uint64_t x = e[i], high = 0x8080808080808080u;
            x = ((((x & ~high) + ~high) | x) & high) >> 7;
            word |= (x * 0x0102040810204080u >> 56) << (8 * i);
        }
        return word;
    }
    for (; !(count & 1); count /= 2)
        for (uint32_t i = 0; i < count / 2; i++)
            e[i] = scan_halve(e[2 * i]) | scan_halve(e[2 * i + 1]) << 32;
    if (count == 1)
        return e[0];
    for (uint32_t row = 0; row < 64; row++) {
        uint32_t at = row * count, end = at + count;
        uint64_t any = 0;
        while (at < end) {
            uint32_t here = 64 - (at & 63), take = end - at < here ? end - at : here;
            uint64_t bits = e[at >> 6] >> (at & 63);
            any |= take == 64 ? bits : bits & (((uint64_t)1 << take) - 1);
            at += take;
        }
        word |= (uint64_t)(any != 0) << row;
    }
    return word;
}

/* The test `fn` on a list column: `n` rows of t->count elements each. */
static void scan_list(scan_fn fn, const uint8_t *p, uint32_t n, const scan_test *t, uint64_t *out, int mode)
{
    uint64_t e[256], rest = 0;
    scan_test one = *t;
    one.flip = 0;
    for (uint32_t at = 0; at < n; at += 64) {
        uint32_t rows = n - at < 64 ? n - at : 64;
        memset(e, 0, (size_t)(t->count + 1) * 8);
        fn(p + (size_t)at * t->count * t->size, rows * t->count, &one, e, SCAN_SET);
        rest = rows == 64 ? ~(uint64_t)0 : ((uint64_t)1 << rows) - 1;
        scan_join(out + at / 64, (scan_any(e, t->count) ^ t->flip) & rest, mode);
    }
}

static int scan_in_byte_ranges(const uint8_t *p, const scan_test *t)
{
    uint32_t a = 0, b = t->k;
    while (a < b) {
        uint32_t mid = (a + b) / 2;
        if (memcmp(t->bhi + (size_t)mid * t->size, p, t->size) < 0)
            a = mid + 1;
        else
            b = mid;
    }
    return a < t->k && memcmp(t->blo + (size_t)a * t->size, p, t->size) <= 0;
}

static int scan_one_bytes(const uint8_t *p, const scan_test *t)
{
    uint32_t size = t->size, i;
    int above = 0, below = 0;           /* already greater than lo, already smaller than hi */
    if (t->k)
        return scan_in_byte_ranges(p, t);
    if (t->same && !t->bmask)
        return memcmp(p, t->blo, size) == 0;
    for (i = 0; i < size && !(above && below); i++) {
        uint8_t x = t->bmask ? p[i] & t->bmask[i] : p[i];
        if (!above && x != t->blo[i]) {
            if (x < t->blo[i])
                return 0;
            above = 1;
        }
        if (!below && x != t->bhi[i]) {
            if (x > t->bhi[i])
                return 0;
            below = 1;
        }
    }
    return 1;
}

/* A shell pattern of * and ? against the value without its trailing zeros. */
static int scan_one_glob(const uint8_t *p, const scan_test *t)
{
    uint32_t n = t->size, i = 0, j = 0, star = UINT32_MAX, mark = 0;
    while (n && !p[n - 1])
        n--;
    while (i < n) {
        if (j < t->glen && t->blo[j] == '*') {
            star = j++;
            mark = i;
        } else if (j < t->glen && (t->blo[j] == '?' || t->blo[j] == p[i])) {
            i++;
            j++;
        } else if (star != UINT32_MAX) {
            j = star + 1;
            i = ++mark;
        } else {
            return 0;
        }
    }
    while (j < t->glen && t->blo[j] == '*')
        j++;
    return j == t->glen;
}

/* Bytes (glob == 0) or Glob, row by row; `rows` NULL: rows 0..n-1, else the rows it lists. */
static void scan_bytes(const uint8_t *p, const uint16_t *rows, uint32_t n, const scan_test *t, int glob,
                       uint64_t *out, int mode)
{
    for (uint32_t at = 0; at < n; at += 64) {
        uint32_t m = n - at < 64 ? n - at : 64;
        uint64_t word = 0, todo = m == 64 ? ~(uint64_t)0 : ((uint64_t)1 << m) - 1;
        if (mode == SCAN_AND)
            todo &= out[at / 64];
        else if (mode == SCAN_OR)
            todo &= ~out[at / 64];
        if (t->size == 16 && t->same && !t->bmask && !glob) {
            const scan_u64 *key = (const scan_u64 *)t->blo;
            uint64_t a = key[0], b = key[1];
            for (uint32_t i = 0; i < m; i++) {
                const scan_u64 *x = (const scan_u64 *)(p + (size_t)(rows ? rows[at + i] : at + i) * 16);
                word |= (uint64_t)(((x[0] ^ a) | (x[1] ^ b)) == 0) << i;
            }
            word = (word ^ t->flip) & todo;
        } else {
            for (uint64_t left = todo; left; left &= left - 1) {
                int i = __builtin_ctzll(left);
                const uint8_t *x = p + (size_t)(rows ? rows[at + i] : at + i) * t->size;
                word |= (uint64_t)((glob ? scan_one_glob(x, t) : scan_one_bytes(x, t)) ^ (int)(t->flip & 1)) << i;
            }
        }
        scan_join(out + at / 64, word, mode);
    }
}

/* Two bytes columns of one width, lexicographically. */
static void scan_pair_bytes(const uint8_t *p, const uint8_t *q, const uint16_t *rows, uint32_t n, const scan_test *t,
                            uint64_t *out, int mode)
{
    for (uint32_t at = 0; at < n; at += 64) {
        uint32_t m = n - at < 64 ? n - at : 64;
        uint64_t word = 0, used = m == 64 ? ~(uint64_t)0 : ((uint64_t)1 << m) - 1;
        for (uint32_t i = 0; i < m; i++) {
            size_t row = rows ? rows[at + i] : at + i;
            int order = memcmp(p + row * t->size, q + row * t->size, t->size);
            word |= (uint64_t)(t->op == PAIR_EQ ? order == 0 : t->op == PAIR_LT ? order < 0 : order <= 0) << i;
        }
        scan_join(out + at / 64, (word ^ t->flip) & used, mode);
    }
}

/* Values of `width` bytes of the listed rows, one after the other. */
static void scan_gather(uint8_t *out, const uint8_t *column, const uint16_t *rows, uint32_t n, uint32_t width)
{
    uint32_t i;
    if (width == 1)
        for (i = 0; i < n; i++)
            out[i] = column[rows[i]];
    else if (width == 2)
        for (i = 0; i < n; i++)
            ((scan_u16 *)out)[i] = ((const scan_u16 *)column)[rows[i]];
    else if (width == 4)
        for (i = 0; i < n; i++)
            ((scan_u32 *)out)[i] = ((const scan_u32 *)column)[rows[i]];
    else if (width == 8)
        for (i = 0; i < n; i++)
            ((scan_u64 *)out)[i] = ((const scan_u64 *)column)[rows[i]];
    else
        for (i = 0; i < n; i++)
            memcpy(out + (size_t)i * width, column + (size_t)rows[i] * width, width);
}

/* Rows of the first n bits of a mask, ascending; with `from`, the members of that list instead.  Returns how many. */
static uint32_t scan_mask_rows(const uint64_t *mask, uint32_t n, const uint16_t *from, uint16_t *out)
{
    uint32_t k = 0;
    for (uint32_t w = 0; w < (n + 63) / 64; w++) {
        uint64_t word = mask[w];
        if (w == n / 64)
            word &= ((uint64_t)1 << (n & 63)) - 1;
        for (; word; word &= word - 1) {
            uint32_t i = w * 64 + (uint32_t)__builtin_ctzll(word);
            out[k++] = from ? from[i] : (uint16_t)i;
        }
    }
    return k;
}

#endif
