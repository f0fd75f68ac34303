/* Rate-based sampling of rows that were looked up together: see rate_sample.pyx.
 *
 * What is random in traffic must not be a branch: whether a row is kept decides what is stored, not what is run. */

#include <stdint.h>
#include <string.h>

#define RATE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define RATE_AHEAD 256                  /* rows looked up together */
#define RATE_UNBOUNDED (1LL << 62)
#define RATE_SANE (1LL << 61)           /* the difference of two times below this does not overflow */

typedef struct {                        /* a flow: a cache line; the four words from `time` on are its state */
    uint64_t used;                      /* as in LruTable: time of last use, key, value */
    uint64_t key[2];
    int64_t time;                       /* of the row that was kept */
    int64_t low, high;                  /* steps that fit all rows since, ns */
    uint32_t count;                     /* rows of the run */
    uint32_t row;                       /* number of the row that was kept */
    int64_t unused;
} rate_flow;

typedef struct {
    const int64_t *time;                /* columns, row by row */
    const uint32_t *source, *target;
    const uint16_t *source_port, *target_port;
    const uint8_t *proto;
    uint64_t key[RATE_AHEAD][2];        /* addresses; ports and protocol */
    uint64_t hash[RATE_AHEAD];
    uint32_t guess[RATE_AHEAD];         /* numbers of flows */
    /* The runs that have ended, by their numbers, and the rows that ended them: stored 8 at a time. */
    int64_t low[RATE_AHEAD + 8], high[RATE_AHEAD + 8];
    uint64_t run[RATE_AHEAD + 8];       /* row << 32 | count, as in the flow */
    uint32_t begun[RATE_AHEAD + 8];
    uint32_t ends;                      /* as many have begun */
    uint32_t next_row;                  /* number of the next row that is kept */
    uint64_t clock;
    int64_t threshold;
    uint64_t reach;                     /* longest run + threshold */
    int64_t latest;                     /* time of a row */
    int wild;                           /* there was a time that is not sane */
} rate_batch;

static inline uint64_t rate_mix(uint64_t a, uint64_t b) {       /* mum of c_hash_table */
    unsigned __int128 r = (unsigned __int128)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

/* Fetch a part of a column that is read soon. */
static inline void rate_fetch(const uint8_t *column, size_t size) {
    for (size_t at = 0; at < size; at += 64)
        __builtin_prefetch(column + at);
}

/* Keys and hashes of n rows; their slots are fetched. */
RATE_CLONES static void rate_keys(rate_batch *b, uint32_t n, uint64_t seed0, uint64_t seed1, const uint64_t *slots,
                                  int shift) {
    const int64_t *restrict time = b->time;
    const uint32_t *restrict source = b->source, *restrict target = b->target;
    const uint16_t *restrict source_port = b->source_port, *restrict target_port = b->target_port;
    const uint8_t *restrict proto = b->proto;
    uint64_t (*restrict key)[2] = b->key, *restrict hash = b->hash;
    uint64_t wild = 0;
    int64_t latest = b->latest;
    for (uint32_t i = 0; i < n; i++) {
        int64_t t = time[i];
        latest = t > latest ? t : latest;
        wild |= ((uint64_t)t + RATE_SANE) >> 62;
    }
    b->latest = latest;
    b->wild |= wild != 0;
    for (uint32_t i = 0; i < n; i++) {
        key[i][0] = (uint64_t)source[i] << 32 | target[i];
        key[i][1] = (uint64_t)source_port[i] << 32 | (uint32_t)target_port[i] << 16 | proto[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t h = rate_mix(rate_mix(key[i][0] ^ seed0, seed1) ^ key[i][1], seed1);
        hash[i] = h;
        __builtin_prefetch(slots + (h >> shift));
    }
}

/* The flows that the rows probably have, 0 if none; they are fetched.  Who uses a guess compares its key. */
RATE_CLONES static void rate_guess_plain(rate_batch *b, uint32_t n, const uint64_t *slots, uint64_t mask, int shift,
                                   const rate_flow *flows) {
    for (uint32_t i = 0; i < n; i++) {
        uint64_t h = b->hash[i], at = h >> shift, slot = slots[at];
        while (slot && slot >> 32 != h >> 32) {
            at = (at + 1) & mask;
            slot = slots[at];
        }
        b->guess[i] = (uint32_t)slot - (slot != 0);
        __builtin_prefetch(flows + b->guess[i]);
    }
}

typedef int64_t rate_two __attribute__((vector_size(16)));
typedef double rate_quotients __attribute__((vector_size(16)));

static inline __attribute__((always_inline)) uint32_t rate_rows(rate_batch *restrict b, uint32_t start, uint32_t n,
                                                                rate_flow *restrict flows, int wild) {
    const int64_t *restrict time = b->time;
    const uint64_t (*restrict key)[2] = (const uint64_t (*)[2])b->key;
    const uint32_t *restrict guess = b->guess;
    const int64_t threshold = b->threshold;
    const uint64_t reach = b->reach;
    uint32_t next_row = b->next_row, at = b->ends, i;
    uint64_t clock = b->clock;
    for (i = start; i < n; i++) {
        rate_flow *restrict f = flows + guess[i];
        if (__builtin_expect((f->key[0] ^ key[i][0]) | (f->key[1] ^ key[i][1]), 0))
            break;
        f->used = ++clock;
        int64_t t = time[i], old = f->time;
        uint64_t count = f->count, ahead = (uint64_t)t - (uint64_t)old + (uint64_t)threshold;
        uint64_t fits = (ahead < reach) & (count < UINT32_MAX);
        if (wild)               /* a difference is right when its sign is, and it is within reach */
            fits &= ((int64_t)(ahead - (uint64_t)threshold) >= 0) == (t >= old);
        ahead &= (1ULL << 52) - 1;
        int64_t late = (int64_t)ahead - 2 * threshold;
        late = late & ~(late >> 63);
        rate_two numbers = {late + (int64_t)count - 1, (int64_t)ahead};         /* rounded up, and down */
        double n_rows = (double)(int64_t)count;
        rate_quotients quotients = __builtin_convertvector(numbers, rate_quotients) / (rate_quotients){n_rows, n_rows};
        rate_two steps = __builtin_convertvector(quotients, rate_two);
        int64_t low = steps[0] > f->low ? steps[0] : f->low, high = steps[1] < f->high ? steps[1] : f->high;
        fits &= low <= high;
        /* The run so far is noted; it counts if the row does not fit. */
        b->low[at] = f->low;
        b->high[at] = f->high;
        b->run[at] = (uint64_t)f->row << 32 | count;
        b->begun[at] = i;
        uint64_t goes_on = -fits, ends = fits ^ 1;
        f->time = (int64_t)(((uint64_t)old & goes_on) | ((uint64_t)t & ~goes_on));
        f->low = (int64_t)((uint64_t)low & goes_on);
        f->high = (int64_t)(((uint64_t)high & goes_on) | (RATE_UNBOUNDED & ~goes_on));
        f->row = (f->row & (uint32_t)goes_on) | (next_row & ~(uint32_t)goes_on);
        f->count = (uint32_t)(count & goes_on) + 1;
        next_row += (uint32_t)ends;
        at += (uint32_t)ends;
    }
    b->ends = at;
    b->next_row = next_row;
    b->clock = clock;
    return i;
}

RATE_CLONES static uint32_t rate_plain(rate_batch *b, uint32_t start, uint32_t n, rate_flow *flows) {
    return b->wild ? rate_rows(b, start, n, flows, 1) : rate_rows(b, start, n, flows, 0);
}

#if defined(__x86_64__)
#include "rate_wide.h"
#else
static int rate_wants_wide; /* without effect */
#endif

static inline void rate_guess(rate_batch *b, uint32_t n, const uint64_t *slots, uint64_t mask, int shift,
                              const rate_flow *flows) {
#if defined(__x86_64__)
    if (rate_is_wide())
        return rate_guess_wide(b, n, slots, mask, shift, flows);
#endif
    rate_guess_plain(b, n, slots, mask, shift, flows);
}

/* Take rows from `start` on; returns the number of the first one that has another flow than was guessed, or n. */
static inline uint32_t rate_take(rate_batch *b, uint32_t start, uint32_t n, rate_flow *flows) {
#if defined(__x86_64__)
    if (!b->wild && rate_is_wide())
        return rate_wide(b, start, n, flows);
#endif
    return rate_plain(b, start, n, flows);
}

/* Store the packets and steps of the runs that have ended, by the numbers of their rows. */
RATE_CLONES static void rate_store(rate_batch *restrict b, uint32_t *restrict packets, int64_t *restrict step) {
    for (uint32_t i = 0; i < b->ends; i++)
        b->low[i] = (uint32_t)b->run[i] > 1 ? (b->low[i] + b->high[i]) >> 1 : 0;
    for (uint32_t i = 0; i < b->ends; i++) {
        uint32_t row = (uint32_t)(b->run[i] >> 32);
        packets[row] = (uint32_t)b->run[i];
        step[row] = b->low[i];
    }
}
