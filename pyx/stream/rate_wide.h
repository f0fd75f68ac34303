/* Rate-based sampling of 8 rows at a time with AVX-512: see rate_rows.h, which includes this. */

#include <immintrin.h>

#define RATE_WIDE __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx512cd,bmi,bmi2,popcnt")))

static int rate_wants_wide = 1; /* 0 in tests */

static inline int rate_is_wide(void) {
    return rate_wants_wide && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

/* As rate_guess_plain; looks at 4 slots from the home of a hash on: where others have them, no flow is guessed. */
RATE_WIDE static void rate_guess_wide(rate_batch *b, uint32_t n, const uint64_t *slots, uint64_t mask, int shift,
                                      const rate_flow *flows) {
    const uint64_t last = mask - 3;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t h = b->hash[i], at = h >> shift;
        at = at < last ? at : last;
        __m256i four = _mm256_loadu_si256((const __m256i *)(slots + at));
        uint32_t same = _mm256_mask_cmpeq_epi32_mask(0xaa, four, _mm256_set1_epi32((int)(h >> 32)));
        uint64_t slot = slots[at + (_tzcnt_u32(same | 0x80) >> 1)];
        uint32_t guess = (uint32_t)slot & -(uint32_t)(same != 0);
        guess -= guess != 0;
        b->guess[i] = guess;
        __builtin_prefetch(flows + guess);
    }
}

/* One row after the other, with the state of a flow in one register. */
RATE_WIDE static uint32_t rate_ones(rate_batch *restrict b, uint32_t start, uint32_t n, rate_flow *restrict flows) {
    const uint64_t threshold = (uint64_t)b->threshold;
    const __m256i one_more = _mm256_set_epi64x(1, 0, 0, 0);
    uint64_t clock = b->clock;
    uint32_t next_row = b->next_row, at = b->ends, i;
    for (i = start; i < n; i++) {
        rate_flow *f = flows + b->guess[i];
        if (__builtin_expect((f->key[0] ^ b->key[i][0]) | (f->key[1] ^ b->key[i][1]), 0))
            break;
        f->used = ++clock;
        __m256i state = _mm256_loadu_si256((const __m256i *)&f->time);
        uint64_t count = f->count, ahead = (uint64_t)b->time[i] - (uint64_t)f->time + threshold;
        __mmask8 near = (__mmask8)((ahead < b->reach) & (count < UINT32_MAX));
        /* Rounded up from `late`, down from `ahead`.  Where the row is not near, no result is used. */
        __m128i numbers = _mm_set1_epi64x((int64_t)ahead);
        __m128i late = _mm_max_epi64(_mm_sub_epi64(numbers, _mm_set1_epi64x(2 * (int64_t)threshold)), _mm_setzero_si128());
        late = _mm_add_epi64(late, _mm_set1_epi64x((int64_t)count - 1));
        numbers = _mm_mask_mov_epi64(numbers, 1, late);
        __m128d rows = _mm_cvtepi64_pd(_mm_set1_epi64x((int64_t)count));
        __m128i steps = _mm_cvttpd_epi64(_mm_div_pd(_mm_cvtepi64_pd(numbers), rows));
        __m128i bounds = _mm_loadu_si128((const __m128i *)&f->low);
        /* The run so far is noted; it counts if the row does not fit. */
        b->low[at] = f->low;
        b->high[at] = f->high;
        b->run[at] = (uint64_t)_mm256_extract_epi64(state, 3);
        b->begun[at] = i;
        bounds = _mm_mask_mov_epi64(_mm_min_epi64(steps, bounds), 1, _mm_max_epi64(steps, bounds));
        __mmask8 fits = near & _mm_cmple_epi64_mask(bounds, _mm_unpackhi_epi64(bounds, bounds)) & 1;
        __m256i on = _mm256_mask_permutex_epi64(state, 6, _mm256_castsi128_si256(bounds), 0x10);   /* lanes 1 and 2 */
        __m256i begin = _mm256_set_epi64x((int64_t)((uint64_t)next_row << 32 | 1), RATE_UNBOUNDED, 0, b->time[i]);
        on = _mm256_add_epi64(on, one_more);
        _mm256_storeu_si256((__m256i *)&f->time, _mm256_mask_mov_epi64(begin, (__mmask8)-fits, on));
        next_row += fits ^ 1;
        at += fits ^ 1;
    }
    b->next_row = next_row;
    b->ends = at;
    b->clock = clock;
    return i;
}

#define RATE_PAIR(low, high) \
    _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)&(low)->time)), \
                       _mm256_loadu_si256((const __m256i *)&(high)->time), 1)

/* Rows from i on, 8 of 8 flows; returns how many were taken: 8, or none where two have one flow or a guess is wrong. */
RATE_WIDE static inline __attribute__((always_inline)) uint32_t rate_eight(rate_batch *restrict b, uint32_t i,
                                                                           rate_flow *restrict flows) {
    const uint32_t *guess = b->guess + i;
    rate_flow *f[8];
    __m256i wrong = _mm256_conflict_epi32(_mm256_loadu_si256((const __m256i *)guess));
    for (int k = 0; k < 8; k++)
        f[k] = flows + guess[k];
    for (int k = 0; k < 8; k += 2) {
        __m256i keys = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)f[k]->key)),
            _mm_loadu_si128((const __m128i *)f[k + 1]->key), 1);
        wrong = _mm256_or_si256(wrong, _mm256_xor_si256(keys, _mm256_loadu_si256((const __m256i *)b->key[i + k])));
    }
    if (__builtin_expect(!_mm256_testz_si256(wrong, wrong), 0))
        return 0;
    /* States of flows become columns: a register has flow k below and flow k + 4 above. */
    __m512i s0 = RATE_PAIR(f[0], f[4]), s1 = RATE_PAIR(f[1], f[5]), s2 = RATE_PAIR(f[2], f[6]), s3 = RATE_PAIR(f[3], f[7]);
    __m512i t0 = _mm512_unpacklo_epi64(s0, s1), t1 = _mm512_unpackhi_epi64(s0, s1);
    __m512i t2 = _mm512_unpacklo_epi64(s2, s3), t3 = _mm512_unpackhi_epi64(s2, s3);
    const __m512i first = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0), second = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
    __m512i old = _mm512_permutex2var_epi64(t0, first, t2), low = _mm512_permutex2var_epi64(t1, first, t3);
    __m512i high = _mm512_permutex2var_epi64(t0, second, t2), run = _mm512_permutex2var_epi64(t1, second, t3);
    /* As in rate_rows. */
    __m512i time = _mm512_loadu_si512(b->time + i), threshold = _mm512_set1_epi64(b->threshold);
    __m512i ahead = _mm512_add_epi64(_mm512_sub_epi64(time, old), threshold);
    __m512i count = _mm512_and_si512(run, _mm512_set1_epi64(UINT32_MAX));
    __mmask8 fits = _mm512_cmplt_epu64_mask(ahead, _mm512_set1_epi64((int64_t)b->reach));
    fits = _mm512_mask_cmpneq_epi64_mask(fits, count, _mm512_set1_epi64(UINT32_MAX));
    __m512i late = _mm512_max_epi64(_mm512_sub_epi64(ahead, _mm512_add_epi64(threshold, threshold)), _mm512_setzero_si512());
    late = _mm512_add_epi64(_mm512_add_epi64(late, count), _mm512_set1_epi64(-1));
    __m512d rows = _mm512_cvtepi64_pd(count);
    __m512i step_low = _mm512_cvttpd_epi64(_mm512_div_pd(_mm512_cvtepi64_pd(late), rows));
    __m512i step_high = _mm512_cvttpd_epi64(_mm512_div_pd(_mm512_cvtepi64_pd(ahead), rows));
    step_low = _mm512_max_epi64(low, step_low);
    step_high = _mm512_min_epi64(high, step_high);
    fits = _mm512_mask_cmple_epi64_mask(fits, step_low, step_high);
    __mmask8 ends = (__mmask8)~fits;
    /* The runs that end. */
    uint32_t at = b->ends, n = (uint32_t)_mm_popcnt_u32(ends);
    _mm512_storeu_si512(b->low + at, _mm512_maskz_compress_epi64(ends, low));
    _mm512_storeu_si512(b->high + at, _mm512_maskz_compress_epi64(ends, high));
    _mm512_storeu_si512(b->run + at, _mm512_maskz_compress_epi64(ends, run));
    const __m256i numbers = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    _mm256_storeu_si256((__m256i *)(b->begun + at),
                        _mm256_add_epi32(_mm256_maskz_compress_epi32(ends, numbers), _mm256_set1_epi32((int)i)));
    /* The states now: of a run that begins, this row alone. */
    __m512i row = _mm512_cvtepu32_epi64(_mm256_add_epi32(_mm256_maskz_expand_epi32(ends, numbers),
                                                         _mm256_set1_epi32((int)b->next_row)));
    __m512i fresh = _mm512_or_si512(_mm512_slli_epi64(row, 32), _mm512_set1_epi64(1));
    old = _mm512_mask_mov_epi64(time, fits, old);
    low = _mm512_maskz_mov_epi64(fits, step_low);
    high = _mm512_mask_mov_epi64(_mm512_set1_epi64(RATE_UNBOUNDED), fits, step_high);
    run = _mm512_mask_add_epi64(fresh, fits, run, _mm512_set1_epi64(1));
    b->ends = at + n;
    b->next_row += n;
    t0 = _mm512_permutex2var_epi64(old, first, high), t2 = _mm512_permutex2var_epi64(old, second, high);
    t1 = _mm512_permutex2var_epi64(low, first, run), t3 = _mm512_permutex2var_epi64(low, second, run);
    s0 = _mm512_unpacklo_epi64(t0, t1), s1 = _mm512_unpackhi_epi64(t0, t1);
    s2 = _mm512_unpacklo_epi64(t2, t3), s3 = _mm512_unpackhi_epi64(t2, t3);
    __m512i s[4] = {s0, s1, s2, s3};
    uint64_t clock = b->clock;
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_si256((__m256i *)&f[k]->time, _mm512_castsi512_si256(s[k]));
        _mm256_storeu_si256((__m256i *)&f[k + 4]->time, _mm512_extracti64x4_epi64(s[k], 1));
    }
    for (int k = 0; k < 8; k++)
        f[k]->used = clock + (uint64_t)k + 1;
    b->clock = clock + 8;
    return 8;
}

/* As rate_plain: 8 rows at a time where that can be. */
RATE_WIDE static uint32_t rate_wide(rate_batch *restrict b, uint32_t start, uint32_t n, rate_flow *restrict flows) {
    uint32_t i = start, end;
    while (i < n) {
        if ((i & 7) == 0 && n - i >= 8 && rate_eight(b, i, flows)) {
            i += 8;
            continue;
        }
        end = (i | 7) + 1 < n ? (i | 7) + 1 : n;
        i = rate_ones(b, i, end, flows);
        if (i < end)
            break;
    }
    return i;
}
