/* Sums wider than 64 bits, exactly: 128-bit totals, 192-bit sums of squares, 256-bit differences of products. */
#ifndef CONFLUO_WIDE_H
#define CONFLUO_WIDE_H

#include <stdint.h>
#include <math.h>

typedef __int128 wide_t;
typedef unsigned __int128 uwide_t;

/* A sum of signed or unsigned 64-bit numbers: cannot overflow before 2^63 of them. */
struct total {
    uint64_t low;
    int64_t high;
};

static inline wide_t total_get(const struct total *t) {
    return (wide_t)(((uwide_t)(uint64_t)t->high << 64) | t->low);
}

static inline void total_set(struct total *t, wide_t v) {
    t->low = (uint64_t)v;
    t->high = (int64_t)((uwide_t)v >> 64);
}

static inline void total_add_u(struct total *t, uint64_t v) {
    total_set(t, (wide_t)((uwide_t)total_get(t) + v));
}

static inline void total_add_i(struct total *t, uint64_t v) {
    total_set(t, (wide_t)((uwide_t)total_get(t) + (uwide_t)(wide_t)(int64_t)v));
}

static inline void total_add(struct total *t, const struct total *o) {
    total_set(t, (wide_t)((uwide_t)total_get(t) + (uwide_t)total_get(o)));
}

/* high * 2^32 + low, where low sums the lower halves and high the upper halves of 64-bit numbers. */
static inline void total_add_halves(struct total *t, uint64_t low, int64_t high) {
    total_set(t, (wide_t)((uwide_t)total_get(t) + low + ((uwide_t)(wide_t)high << 32)));
}

/* 0 if the total fits u64 (or i64), which is then stored. */
static inline int total_as_u(const struct total *t, uint64_t *out) {
    *out = t->low;
    return t->high != 0;
}

static inline int total_as_i(const struct total *t, uint64_t *out) {
    *out = t->low;
    return t->high != ((int64_t)t->low < 0 ? -1 : 0);
}

/* The mean of n > 0 numbers, rounded once (80-bit intermediate). */
static inline double total_mean(const struct total *t, uint64_t n) {
    wide_t v = total_get(t), q = v / (wide_t)n, r = v % (wide_t)n;
    return (double)((long double)q + (long double)r / (long double)n);
}

/* The mean rounded to the nearest integer, halves away from zero. */
static inline int64_t total_mean_int(const struct total *t, uint64_t n) {
    wide_t v = total_get(t), q = v / (wide_t)n, r = v % (wide_t)n;
    if ((r < 0 ? -r : r) >= (wide_t)n - (r < 0 ? -r : r))
        q += v < 0 ? -1 : 1;
    return (int64_t)q;
}

static inline double total_double(const struct total *t) {
    return (double)(long double)total_get(t);
}

/* n, sum and sum of squares of 64-bit integers. */
struct moments {
    uint64_t n;
    struct total sum;
    uint64_t square[3]; /* least significant first */
};

static inline void moments_square(struct moments *m, uwide_t square) {
    uwide_t low = ((uwide_t)m->square[1] << 64) | m->square[0];
    uwide_t sum = low + square;
    m->square[0] = (uint64_t)sum;
    m->square[1] = (uint64_t)(sum >> 64);
    m->square[2] += sum < low;
}

static inline void moments_add_u(struct moments *m, uint64_t v) {
    m->n++;
    total_add_u(&m->sum, v);
    moments_square(m, (uwide_t)v * v);
}

static inline void moments_add_i(struct moments *m, uint64_t v) {
    uint64_t size = (int64_t)v < 0 ? 0 - v : v;
    m->n++;
    total_add_i(&m->sum, v);
    moments_square(m, (uwide_t)size * size);
}

static inline void moments_merge(struct moments *m, const struct moments *o) {
    m->n += o->n;
    total_add(&m->sum, &o->sum);
    moments_square(m, ((uwide_t)o->square[1] << 64) | o->square[0]);
    m->square[2] += o->square[2];
}

/* n numbers of one group.  For absolute values below 2^32 the squares are summed by halves, which vectorises. */
static inline void moments_add(struct moments *m, int is_signed, const uint64_t *v, uint32_t n) {
    struct moments chunk = {0};
    uint64_t all = 0, low = 0, high = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        all |= is_signed && (int64_t)v[i] < 0 ? 0 - v[i] : v[i];
    if (all >> 32) {
        for (uint32_t i = 0; i < n; i++)
            if (is_signed)
                moments_add_i(&chunk, v[i]);
            else
                moments_add_u(&chunk, v[i]);
    } else {
        for (uint32_t i = 0; i < n; i++) {
            uint64_t size = is_signed && (int64_t)v[i] < 0 ? 0 - v[i] : v[i];
            uint64_t square = (uint64_t)(uint32_t)size * (uint32_t)size;
            sum += v[i];
            low += (uint32_t)square;
            high += square >> 32;
        }
        chunk.n = n;
        if (is_signed)
            total_add_i(&chunk.sum, sum);
        else
            total_add_u(&chunk.sum, sum);
        moments_square(&chunk, low + ((uwide_t)high << 32));
    }
    moments_merge(m, &chunk);
}

/* out (four words) = a (three or fewer words) * b */
static inline void wide_scale(uint64_t out[4], const uint64_t a[3], uint64_t b) {
    uwide_t carry = 0;
    for (int i = 0; i < 3; i++) {
        carry += (uwide_t)a[i] * b;
        out[i] = (uint64_t)carry;
        carry >>= 64;
    }
    out[3] = (uint64_t)carry;
}

static inline void wide_square(uint64_t out[4], uwide_t v) {
    uint64_t a[3] = {(uint64_t)v, (uint64_t)(v >> 64), 0}, low[4], high[4];
    uwide_t carry = 0;
    wide_scale(low, a, a[0]);
    wide_scale(high, a, a[1]);
    out[0] = low[0];
    for (int i = 1; i < 4; i++) {
        carry += (uwide_t)low[i] + high[i - 1];
        out[i] = (uint64_t)carry;
        carry >>= 64;
    }
}

/* Population standard deviation: sqrt(n * sum of squares - sum squared) / n, the difference taken exactly. */
static inline double moments_stddev(const struct moments *m) {
    uint64_t a[4], b[4];
    wide_t sum = total_get(&m->sum);
    wide_t borrow = 0;
    long double v = 0;
    wide_scale(a, m->square, m->n);
    wide_square(b, sum < 0 ? -(uwide_t)sum : (uwide_t)sum);
    for (int i = 0; i < 4; i++) {
        borrow += (wide_t)a[i] - b[i];
        a[i] = (uint64_t)borrow;
        borrow >>= 64;
    }
    for (int i = 3; i >= 0; i--)
        v = v * 18446744073709551616.0L + a[i];
    return (double)(sqrtl(v) / (long double)m->n);
}

#endif
