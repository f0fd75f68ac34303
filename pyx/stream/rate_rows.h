/* Rate-based sampling of rows that were looked up together: see rate_sample.pyx.
 *
 * What is random in traffic must not be a branch: whether a row is kept decides what is stored, not what is run. */

#include <stdint.h>
#include <string.h>

#define RATE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define RATE_AHEAD 256                  /* rows looked up together */
#define RATE_UNBOUNDED (1LL << 62)
#define RATE_SANE (1LL << 61)           /* the difference of two times below this does not overflow */

typedef struct {                        /* a flow: a cache line */
    uint64_t used;                      /* as in LruTable: time of last use, key, value */
    uint64_t key[2];
    int64_t time;                       /* of the row that was kept */
    int64_t low, high;                  /* steps that fit all rows since, ns */
    uint32_t count;                     /* rows of the run */
    uint32_t row;                       /* number of the row that was kept */
    int64_t unused;
} rate_flow;

typedef struct {                        /* the run that a row has ended, as in the flow, and this row */
    int64_t time, low, high;
    uint32_t count, row;
    uint32_t begun;
    uint32_t unused;
} rate_end;

typedef struct {
    const int64_t *time;                /* columns, row by row */
    const uint32_t *source, *target;
    const uint16_t *source_port, *target_port;
    const uint8_t *proto;
    uint64_t hosts[RATE_AHEAD];         /* their keys */
    uint64_t ports[RATE_AHEAD];
    uint64_t hash[RATE_AHEAD];
    uint32_t guess[RATE_AHEAD];         /* numbers of flows */
    rate_end end[RATE_AHEAD + 1];
    uint32_t ends;                      /* runs that have ended: as many as have begun */
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

/* Keys and hashes of n rows; their slots are fetched. */
RATE_CLONES static void rate_keys(rate_batch *b, uint32_t n, uint64_t seed0, uint64_t seed1, const uint64_t *slots,
                                  int shift) {
    const int64_t *restrict time = b->time;
    const uint32_t *restrict source = b->source, *restrict target = b->target;
    const uint16_t *restrict source_port = b->source_port, *restrict target_port = b->target_port;
    const uint8_t *restrict proto = b->proto;
    uint64_t *restrict hosts = b->hosts, *restrict ports = b->ports, *restrict hash = b->hash;
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
        hosts[i] = (uint64_t)source[i] << 32 | target[i];
        ports[i] = (uint64_t)source_port[i] << 32 | (uint32_t)target_port[i] << 16 | proto[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t h = rate_mix(rate_mix(hosts[i] ^ seed0, seed1) ^ ports[i], seed1);
        hash[i] = h;
        __builtin_prefetch(slots + (h >> shift));
    }
}

/* The flows that the rows probably have; they are fetched. */
RATE_CLONES static void rate_guess(rate_batch *b, uint32_t n, const uint64_t *slots, uint64_t mask, int shift,
                                   const rate_flow *flows) {
    for (uint32_t i = 0; i < n; i++) {
        uint64_t h = b->hash[i], at = h >> shift, slot = slots[at];
        while (slot && slot >> 32 != h >> 32) {
            at = (at + 1) & mask;
            slot = slots[at];
        }
        b->guess[i] = (uint32_t)slot - 1;               /* of a free slot: NOT_FOUND */
        if (slot)
            __builtin_prefetch(flows + (uint32_t)slot - 1);
    }
}

typedef int64_t rate_two __attribute__((vector_size(16)));
typedef double rate_quotients __attribute__((vector_size(16)));

static inline __attribute__((always_inline)) uint32_t rate_rows(rate_batch *restrict b, uint32_t start, uint32_t n,
                                                                rate_flow *restrict flows, int wild) {
    const int64_t *restrict time = b->time;
    const uint64_t *restrict hosts = b->hosts, *restrict ports = b->ports;
    const uint32_t *restrict guess = b->guess;
    const int64_t threshold = b->threshold;
    const uint64_t reach = b->reach;
    rate_end *restrict end = b->end + b->ends;
    uint32_t next_row = b->next_row, i;
    uint64_t clock = b->clock;
    for (i = start; i < n; i++) {
        rate_flow *restrict f = flows + guess[i];
        if (__builtin_expect(guess[i] == UINT32_MAX, 0) ||
            __builtin_expect((f->key[0] ^ hosts[i]) | (f->key[1] ^ ports[i]), 0))
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
        end->low = f->low;
        end->high = f->high;
        end->count = (uint32_t)count;
        end->row = f->row;
        end->begun = i;
        uint64_t goes_on = -fits, ends = fits ^ 1;
        f->time = (int64_t)(((uint64_t)old & goes_on) | ((uint64_t)t & ~goes_on));
        f->low = (int64_t)((uint64_t)low & goes_on);
        f->high = (int64_t)(((uint64_t)high & goes_on) | (RATE_UNBOUNDED & ~goes_on));
        f->row = (f->row & (uint32_t)goes_on) | (next_row & ~(uint32_t)goes_on);
        f->count = (uint32_t)(count & goes_on) + 1;
        next_row += (uint32_t)ends;
        end += ends;
    }
    b->ends = (uint32_t)(end - b->end);
    b->next_row = next_row;
    b->clock = clock;
    return i;
}

RATE_CLONES static uint32_t rate_plain(rate_batch *b, uint32_t start, uint32_t n, rate_flow *flows) {
    return b->wild ? rate_rows(b, start, n, flows, 1) : rate_rows(b, start, n, flows, 0);
}

#if defined(__x86_64__)
#include <immintrin.h>

/* As rate_rows, with the state of a flow (time, low, high, count and row) in one register. */
__attribute__((target("avx512f,avx512vl,avx512dq,bmi2"))) static uint32_t
rate_wide(rate_batch *restrict b, uint32_t start, uint32_t n, rate_flow *restrict flows) {
    const int64_t *restrict time = b->time;
    const uint64_t *restrict hosts = b->hosts, *restrict ports = b->ports;
    const uint32_t *restrict guess = b->guess;
    const uint64_t threshold = (uint64_t)b->threshold, reach = b->reach;
    const __m256i one_more = _mm256_set_epi64x(1, 0, 0, 0), next_number = _mm256_set_epi64x(1LL << 32, 0, 0, 0);
    __m256i fresh = _mm256_set_epi64x((int64_t)((uint64_t)b->next_row << 32 | 1), RATE_UNBOUNDED, 0, 0);
    rate_end *restrict end = b->end + b->ends;
    uint64_t clock = b->clock;
    uint32_t i;
    for (i = start; i < n; i++) {
        rate_flow *f = flows + guess[i];
        if (__builtin_expect(guess[i] == UINT32_MAX, 0) ||
            __builtin_expect((f->key[0] ^ hosts[i]) | (f->key[1] ^ ports[i]), 0))
            break;
        f->used = ++clock;
        __m256i state = _mm256_loadu_si256((const __m256i *)&f->time);
        uint64_t count = f->count, ahead = (uint64_t)time[i] - (uint64_t)f->time + threshold;
        __mmask8 near = (__mmask8)((ahead < reach) & (count < UINT32_MAX));
        /* Rounded up from `late`, down from `ahead`. */
        __m128i numbers = _mm_and_si128(_mm_set1_epi64x((int64_t)ahead), _mm_set1_epi64x((1LL << 52) - 1));
        __m128i late = _mm_max_epi64(_mm_sub_epi64(numbers, _mm_set1_epi64x(2 * (int64_t)threshold)), _mm_setzero_si128());
        late = _mm_add_epi64(late, _mm_set1_epi64x((int64_t)count - 1));
        numbers = _mm_mask_mov_epi64(numbers, 1, late);
        __m128d rows = _mm_cvtepi64_pd(_mm_set1_epi64x((int64_t)count));
        __m128i steps = _mm_cvttpd_epi64(_mm_div_pd(_mm_cvtepi64_pd(numbers), rows));
        __m128i bounds = _mm_loadu_si128((const __m128i *)&f->low);
        bounds = _mm_mask_mov_epi64(_mm_min_epi64(steps, bounds), 1, _mm_max_epi64(steps, bounds));
        __mmask8 fits = near & _mm_cmple_epi64_mask(bounds, _mm_unpackhi_epi64(bounds, bounds)) & 1;
        /* The run so far is noted; it counts if the row does not fit. */
        _mm256_storeu_si256((__m256i *)end, state);
        end->begun = i;
        __m256i on = _mm256_mask_permutex_epi64(state, 6, _mm256_castsi128_si256(bounds), 0x10);   /* lanes 1 and 2 */
        on = _mm256_add_epi64(on, one_more);
        __m256i begin = _mm256_mask_set1_epi64(fresh, 1, time[i]);
        __mmask8 all = (__mmask8)-fits;
        _mm256_storeu_si256((__m256i *)&f->time, _mm256_mask_mov_epi64(begin, all, on));
        fresh = _mm256_mask_add_epi64(fresh, (__mmask8)~all, fresh, next_number);
        end += fits ^ 1;
    }
    b->next_row += (uint32_t)(end - b->end) - b->ends;
    b->ends = (uint32_t)(end - b->end);
    b->clock = clock;
    return i;
}
#endif

/* Take rows from `start` on; returns the number of the first one that has another flow than was guessed, or n. */
static inline uint32_t rate_take(rate_batch *b, uint32_t start, uint32_t n, rate_flow *flows) {
#if defined(__x86_64__)
    if (!b->wild && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return rate_wide(b, start, n, flows);
#endif
    return rate_plain(b, start, n, flows);
}
