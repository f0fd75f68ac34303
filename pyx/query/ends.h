/* Two columns of the ends of a conversation, exchanged in some rows. */
#ifndef CONFLUO_ENDS_H
#define CONFLUO_ENDS_H

#include <stdint.h>
#include <string.h>

/* order[i]: 0 not decided yet, 1 as they are, 2 exchanged.  rows NULL: first, first + 1, ... */

static inline __attribute__((always_inline)) void
ends_order_of(uint8_t *order, const uint8_t *a, const uint8_t *b, const uint16_t *rows, uint32_t first, uint32_t n,
              uint32_t width, int higher_first) {
    for (uint32_t i = 0; i < n; i++) {
        size_t at = (size_t)(rows ? rows[i] : first + i) * width;
        int less, more;
        if (order[i])
            continue;
        if (width <= 8) {
            uint64_t x = 0, y = 0;
            memcpy(&x, a + at, width);
            memcpy(&y, b + at, width);
            less = x < y, more = x > y;
        } else {
            int c = memcmp(a + at, b + at, width);
            less = c < 0, more = c > 0;
        }
        order[i] = less || more ? 1 + (higher_first ? less : more) : 0;
    }
}

static inline __attribute__((always_inline)) void
ends_take_of(uint8_t *one, uint8_t *two, const uint8_t *order, const uint8_t *a, const uint8_t *b,
             const uint16_t *rows, uint32_t first, uint32_t n, uint32_t width) {
    for (uint32_t i = 0; i < n; i++) {
        size_t at = (size_t)(rows ? rows[i] : first + i) * width;
        int other = order[i] == 2;
        memcpy(one + (size_t)i * width, (other ? b : a) + at, width);
        memcpy(two + (size_t)i * width, (other ? a : b) + at, width);
    }
}

#define FOR_WIDTH(call)                                                                                              \
    switch (width) {                                                                                                 \
    case 1: { enum { W = 1 }; call; break; }                                                                         \
    case 2: { enum { W = 2 }; call; break; }                                                                         \
    case 4: { enum { W = 4 }; call; break; }                                                                         \
    case 8: { enum { W = 8 }; call; break; }                                                                         \
    case 16: { enum { W = 16 }; call; break; }                                                                       \
    }

/* Decide the rows that are not decided by this pair of columns of 1, 2, 4, 8 or 16 bytes. */
static inline void ends_order(uint8_t *order, const uint8_t *a, const uint8_t *b, const uint16_t *rows, uint32_t first,
                              uint32_t n, uint32_t width, int higher_first) {
    FOR_WIDTH(ends_order_of(order, a, b, rows, first, n, W, higher_first))
}

/* The values of both columns, in the order of each row. */
static inline void ends_take(uint8_t *one, uint8_t *two, const uint8_t *order, const uint8_t *a, const uint8_t *b,
                             const uint16_t *rows, uint32_t first, uint32_t n, uint32_t width) {
    FOR_WIDTH(ends_take_of(one, two, order, a, b, rows, first, n, W))
}

#undef FOR_WIDTH
#endif
