/* Calculations on columns: steps of a stack machine, each over all rows of a chunk.
 *
 * A value is a 64-bit integer, signed or not by its step, or the bits of a double.  Rows without a value are marked
 * in `bad` and are 0.
 */
#ifndef CONFLUO_CALC_H
#define CONFLUO_CALC_H

#include <math.h>
#include "load.h"

enum { CALC_ROWS = 2048, CALC_DEPTH = 64 };         /* rows of a chunk (CHUNK of c_source.pxd); stack */

enum calc_op {                                      /* the names are in calculation.pyx */
    CALC_COLUMN, CALC_CONSTANT,
    CALC_ADD, CALC_SUB, CALC_MUL,                   /* the result always fits */
    CALC_ADD_CHECKED, CALC_SUB_CHECKED, CALC_MUL_CHECKED,
    CALC_ADD_REAL, CALC_SUB_REAL, CALC_MUL_REAL, CALC_DIV_REAL,
    CALC_REAL_U, CALC_REAL_I, CALC_ROUND,           /* conversions */
    CALC_FLOOR_U, CALC_FLOOR_I, CALC_FLOOR_REAL,    /* start of a bucket of a width */
    CALC_POWER_U, CALC_POWER_I, CALC_POWER_REAL     /* largest power of a base */
};

enum { CALC_NO_FIT = 1, CALC_NO_VALUE = 2 };         /* of a row: does not fit 64 bits; a division by zero */
enum { CALC_A_SIGNED = 1, CALC_B_SIGNED = 2, CALC_SIGNED = 4 };

typedef struct {
    int op, code;                                   /* code: of a column */
    int col;
    uint32_t width;                                 /* of a column: bytes per row */
    int flags;                                      /* of checked steps */
    uint64_t value;                                 /* width of a bucket, base of a power: integer or bits of a double */
    uint64_t *constant;                             /* CALC_ROWS times the same value */
} calc_step;

typedef struct {
    calc_step *step;
    int steps;
    uint64_t *slot;                                 /* CALC_ROWS values for each level of the stack */
    int checked;                                    /* rows can be without a value */
} calc;

#define CALC_LOOP(NAME, EXPR)                                                                              \
    CLONES static void calc_##NAME(uint64_t *o, const uint64_t *a, const uint64_t *b, uint32_t n) {        \
        _Pragma("GCC ivdep") for (uint32_t i = 0; i < n; i++) o[i] = EXPR;                                 \
    }
#define CALC_REAL_LOOP(NAME, EXPR)                                                                         \
    CLONES static void calc_##NAME(double *o, const double *a, const double *b, uint32_t n) {              \
        _Pragma("GCC ivdep") for (uint32_t i = 0; i < n; i++) o[i] = EXPR;                                 \
    }
CALC_LOOP(add, a[i] + b[i])
CALC_LOOP(sub, a[i] - b[i])
CALC_LOOP(mul, a[i] * b[i])
CALC_REAL_LOOP(add_real, a[i] + b[i])
CALC_REAL_LOOP(sub_real, a[i] - b[i])
CALC_REAL_LOOP(mul_real, a[i] * b[i])
CALC_REAL_LOOP(div_real, b[i] != 0 ? a[i] / b[i] : NAN)

static inline int calc_fits(unsigned __int128 r, int negative, int is_signed) {
    /* Whether r, or -r if negative, fits 64 bits. */
    if (negative)
        return is_signed ? r <= (unsigned __int128)1 << 63 : r == 0;
    return r <= (is_signed ? (unsigned __int128)INT64_MAX : (unsigned __int128)UINT64_MAX);
}

static void calc_check(int op, int flags, uint64_t *o, const uint64_t *a, const uint64_t *b, uint8_t *bad, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        int minus = (flags & CALC_A_SIGNED) && (int64_t)a[i] < 0, minus2 = (flags & CALC_B_SIGNED) && (int64_t)b[i] < 0;
        unsigned __int128 x = minus ? -a[i] : a[i], y = minus2 ? -b[i] : b[i], r;
        int negative;
        if (op == CALC_MUL_CHECKED) {
            r = x * y;
            negative = minus != minus2;
        } else {
            __int128 sum = (minus ? -(__int128)x : (__int128)x);
            sum += (minus2 != (op == CALC_SUB_CHECKED)) ? -(__int128)y : (__int128)y;
            negative = sum < 0;
            r = negative ? -sum : sum;
        }
        if (calc_fits(r, negative, flags & CALC_SIGNED))
            o[i] = negative ? -(uint64_t)r : (uint64_t)r;
        else
            o[i] = 0, bad[i] |= CALC_NO_FIT;
    }
}

static inline uint64_t calc_power(uint64_t v, uint64_t base) {
    uint64_t p = 1;
    if (v == 0)
        return 0;
    if (base == 2)
        return (uint64_t)1 << (63 - __builtin_clzll(v));
    while (v / p >= base)
        p *= base;
    return p;
}

static inline double calc_power_real(double v, double base) {
    double m = fabs(v), p;
    if (!(m > 0) || isinf(v))
        return v;
    p = pow(base, floor(log(m) / log(base)));
    while (p > m)                                   /* rounding */
        p /= base;
    while (p * base <= m)
        p *= base;
    return copysign(p, v);
}

static inline double calc_double(uint64_t v) {
    double d;
    memcpy(&d, &v, 8);
    return d;
}

static void calc_one(const calc_step *s, uint64_t *o, const uint64_t *a, uint8_t *bad, uint32_t n) {
    /* Steps of one operand; o may be a. */
    uint64_t step = s->value, q, m;
    double real = calc_double(s->value), d;
    int64_t v;
    for (uint32_t i = 0; i < n; i++) {
        switch (s->op) {
        case CALC_REAL_U: d = (double)a[i]; memcpy(&o[i], &d, 8); break;
        case CALC_REAL_I: d = (double)(int64_t)a[i]; memcpy(&o[i], &d, 8); break;
        case CALC_ROUND:
            d = rint(calc_double(a[i]));
            if (d >= -9223372036854775808.0 && d < 9223372036854775808.0)
                o[i] = (uint64_t)(int64_t)d;
            else
                o[i] = 0, bad[i] |= d != d ? CALC_NO_VALUE : CALC_NO_FIT;
            break;
        case CALC_FLOOR_U:
            q = (a[i] | step) >> 32 ? a[i] / step : (uint32_t)a[i] / (uint32_t)step;
            o[i] = q * step;
            break;
        case CALC_FLOOR_I:
            v = (int64_t)a[i] / (int64_t)step - ((int64_t)a[i] % (int64_t)step < 0);
            o[i] = __builtin_mul_overflow(v, (int64_t)step, &v) ? (uint64_t)INT64_MIN : (uint64_t)v;
            break;
        case CALC_FLOOR_REAL: d = floor(calc_double(a[i]) / real) * real; memcpy(&o[i], &d, 8); break;
        case CALC_POWER_U: o[i] = calc_power(a[i], step); break;
        case CALC_POWER_I:
            m = (int64_t)a[i] < 0 ? -a[i] : a[i];
            o[i] = (int64_t)a[i] < 0 ? -calc_power(m, step) : calc_power(m, step);
            break;
        default: d = calc_power_real(calc_double(a[i]), real); memcpy(&o[i], &d, 8);
        }
    }
}

/* n results for the rows of columns; rows: NULL for first, first + 1, ...  bad: CALC_NO_FIT or
 * CALC_NO_VALUE of rows without one; written only if c->checked. */
static void calc_run(const calc *c, const uint8_t **col, const uint16_t *rows, uint32_t first, uint32_t n,
                     uint64_t *out, uint8_t *bad) {
    const uint64_t *at[CALC_DEPTH];
    int depth = 0;
    if (c->checked)
        memset(bad, 0, n);
    for (int i = 0; i < c->steps; i++) {
        const calc_step *s = &c->step[i];
        int binary = s->op >= CALC_ADD && s->op <= CALC_DIV_REAL;
        int level = s->op <= CALC_CONSTANT ? depth++ : binary ? --depth - 1 : depth - 1;
        uint64_t *o = i + 1 == c->steps ? out : c->slot + (size_t)level * CALC_ROWS;
        const uint64_t *a = at[level], *b = at[level + 1];
        if (s->op == CALC_CONSTANT && o != out) {
            at[level] = s->constant;
            continue;
        }
        switch (s->op) {
        case CALC_COLUMN:
            load_values(o, s->code, rows ? col[s->col] : col[s->col] + (size_t)first * s->width, rows, n);
            break;
        case CALC_CONSTANT: memcpy(o, s->constant, (size_t)n * 8); break;
        case CALC_ADD: calc_add(o, a, b, n); break;
        case CALC_SUB: calc_sub(o, a, b, n); break;
        case CALC_MUL: calc_mul(o, a, b, n); break;
        case CALC_ADD_CHECKED:
        case CALC_SUB_CHECKED:
        case CALC_MUL_CHECKED: calc_check(s->op, s->flags, o, a, b, bad, n); break;
        case CALC_ADD_REAL: calc_add_real((double *)o, (const double *)a, (const double *)b, n); break;
        case CALC_SUB_REAL: calc_sub_real((double *)o, (const double *)a, (const double *)b, n); break;
        case CALC_MUL_REAL: calc_mul_real((double *)o, (const double *)a, (const double *)b, n); break;
        case CALC_DIV_REAL: calc_div_real((double *)o, (const double *)a, (const double *)b, n); break;
        default: calc_one(s, o, a, bad, n);
        }
        at[level] = o;
    }
}
#endif
