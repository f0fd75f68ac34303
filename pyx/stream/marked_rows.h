/* Copy rows of a column that are marked by bits: where many are kept this is faster than one load for each. */

#include <stdint.h>

static int marked_wanted = 1; /* 0 in tests */

#if defined(__x86_64__)
#include <immintrin.h>

/* Whether `copy_marked` may be called. */
static inline int can_copy_marked(void) {
    return marked_wanted && __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

#define COPY_MARKED(ROWS, BITS, MASK, LOAD, COMPRESS, BYTES) \
    for (uint32_t i = 0; i < words; i++) \
        for (uint32_t k = 0; k < 64; k += ROWS) { \
            uint64_t bits = marks[i] >> k & BITS; \
            __m512i kept = COMPRESS(MASK, LOAD(MASK, from + (size_t)(64 * i + k) * BYTES)); \
            _mm512_storeu_si512(to, kept); \
            to += (size_t)_mm_popcnt_u64(bits) * BYTES; \
        }

/* Of 64 * words rows from `from` on, those marked; only these are read.  Up to 64 bytes after them are written.
 * False: not for values of this width. */
__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx512vbmi2,bmi2,popcnt"))) static int
copy_marked(uint8_t *restrict to, const uint8_t *restrict from, const uint64_t *restrict marks, uint32_t words,
            uint32_t width) {
    switch (width) {
    case 1:
        COPY_MARKED(64, UINT64_MAX, bits, _mm512_maskz_loadu_epi8, _mm512_maskz_compress_epi8, 1)
        return 1;
    case 2:
        COPY_MARKED(32, UINT32_MAX, (__mmask32)bits, _mm512_maskz_loadu_epi16, _mm512_maskz_compress_epi16, 2)
        return 1;
    case 4:
        COPY_MARKED(16, 0xffff, (__mmask16)bits, _mm512_maskz_loadu_epi32, _mm512_maskz_compress_epi32, 4)
        return 1;
    case 8:
        COPY_MARKED(8, 0xff, (__mmask8)bits, _mm512_maskz_loadu_epi64, _mm512_maskz_compress_epi64, 8)
        return 1;
    case 16:
        COPY_MARKED(4, 0xf, (__mmask8)(3 * _pdep_u64(bits, 0x55)), _mm512_maskz_loadu_epi64,
                    _mm512_maskz_compress_epi64, 16)
        return 1;
    }
    return 0;
}
#undef COPY_MARKED
#else
static inline int can_copy_marked(void) { return marked_wanted & 0; }
static inline int copy_marked(uint8_t *to, const uint8_t *from, const uint64_t *marks, uint32_t words, uint32_t width) {
    return 0;
}
#endif
