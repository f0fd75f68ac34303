/* CRC32C (Castagnoli), of single ranges and of the 4 KiB pages of a file; in one of four ways.
 *
 * - Products without carry (VPCLMULQDQ, of 64 bytes with AVX-512 or of 32 with AVX2): the message is a polynomial, and 16 bytes of it times
 *   the remainder of x^2048 are added to the 16 bytes that come 256 bytes later (the first 8 of them times x^64,
 *   too), so that 256 bytes are left, then 64, then 16: they have the same CRC as the message.
 *   Each byte is read once, in order: as fast as memory is (Gopal et al., Fast CRC Computation for Generic
 *   Polynomials Using PCLMULQDQ Instruction, Intel 2009).
 * - The crc32 instruction (SSE4.2) takes 3 cycles but starts every cycle, so three thirds of a page are summed
 *   side by side and joined: the CRC of a message followed by n zero bytes is a linear function of its CRC, kept
 *   in four tables of 256 words for n = 1360 and n = 2720.
 * - Eight tables (slicing by 8).
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CFL_PAGE 4096
#define CFL_THIRD 1360                    /* bytes of the second and third part; the first has 1376 */

static uint32_t cfl_crc_table[8][256];    /* slicing by 8 */
static uint32_t cfl_crc_shift[2][4][256]; /* append 1360 and 2720 zero bytes */
static uint32_t cfl_crc_zero_page;
static int cfl_crc_way; /* 0: tables, 1: the crc32 instruction, 2: products of 32 bytes, 3: of 64 bytes */

static uint32_t cfl_crc_soft(uint32_t crc, const uint8_t *p, size_t n) {
    while (n && ((uintptr_t)p & 7)) {
        crc = cfl_crc_table[0][(crc ^ *p++) & 255] ^ (crc >> 8);
        n--;
    }
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        v = __builtin_bswap64(v);
#endif
        v ^= crc;
        crc = cfl_crc_table[7][v & 255] ^ cfl_crc_table[6][(v >> 8) & 255] ^ cfl_crc_table[5][(v >> 16) & 255]
            ^ cfl_crc_table[4][(v >> 24) & 255] ^ cfl_crc_table[3][(v >> 32) & 255]
            ^ cfl_crc_table[2][(v >> 40) & 255] ^ cfl_crc_table[1][(v >> 48) & 255] ^ cfl_crc_table[0][v >> 56];
    }
    while (n--)
        crc = cfl_crc_table[0][(crc ^ *p++) & 255] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

static inline uint32_t cfl_crc_append_zeros(int which, uint32_t crc) {
    const uint32_t (*t)[256] = cfl_crc_shift[which];
    return t[0][crc & 255] ^ t[1][(crc >> 8) & 255] ^ t[2][(crc >> 16) & 255] ^ t[3][crc >> 24];
}

__attribute__((target("sse4.2"))) static uint32_t cfl_crc_hard(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t a = crc, b, c, u, v, w;
    for (; n >= 3 * CFL_THIRD; n -= 3 * CFL_THIRD, p += 3 * CFL_THIRD) {
        b = c = 0;
        for (int i = 0; i < CFL_THIRD; i += 8) {
            memcpy(&u, p + i, 8);
            memcpy(&v, p + CFL_THIRD + i, 8);
            memcpy(&w, p + 2 * CFL_THIRD + i, 8);
            a = _mm_crc32_u64(a, u);
            b = _mm_crc32_u64(b, v);
            c = _mm_crc32_u64(c, w);
        }
        a = cfl_crc_append_zeros(1, (uint32_t)a) ^ cfl_crc_append_zeros(0, (uint32_t)b) ^ (uint32_t)c;
    }
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&u, p, 8);
        a = _mm_crc32_u64(a, u);
    }
    crc = (uint32_t)a;
    while (n--)
        crc = _mm_crc32_u8(crc, *p++);
    return crc;
}

__attribute__((target("sse4.2"))) static uint32_t cfl_crc_page_hard(const uint8_t *p) {
    uint64_t a = 0xFFFFFFFFu, b = 0, c = 0, u, v, w;
    const uint8_t *q = p + CFL_PAGE - 2 * CFL_THIRD, *r = q + CFL_THIRD;
    /* From memory, line after line is read 2.5 times as fast as from three places in turn: fetch the page first. */
    for (int i = 0; i < CFL_PAGE; i += 64)
        (void)*(const volatile uint8_t *)(p + i);
    for (int i = 0; i < 2; i++, p += 8) {     /* the first part is 16 bytes longer */
        memcpy(&u, p, 8);
        a = _mm_crc32_u64(a, u);
    }
    for (int i = 0; i < CFL_THIRD; i += 8) {
        memcpy(&u, p + i, 8);
        memcpy(&v, q + i, 8);
        memcpy(&w, r + i, 8);
        a = _mm_crc32_u64(a, u);
        b = _mm_crc32_u64(b, v);
        c = _mm_crc32_u64(c, w);
    }
    return ~(cfl_crc_append_zeros(1, (uint32_t)a) ^ cfl_crc_append_zeros(0, (uint32_t)b) ^ (uint32_t)c);
}

/* Factors that move 16 bytes on by 16, 32, 64 and 256 bytes: one for the first 8 bytes, one for the others. */
static uint64_t cfl_crc_factor[4][2];

#define CFL_HALF __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2")))
#define CFL_WIDE __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))

CFL_HALF static inline __m128i cfl_crc_fold_part(__m128i a, __m128i factor, __m128i later) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(a, factor, 0x00), _mm_clmulepi64_si128(a, factor, 0x11)),
                         later);
}

CFL_HALF static inline __m256i cfl_crc_fold_half(__m256i a, __m256i factor, __m256i later) {
    return _mm256_xor_si256(_mm256_xor_si256(_mm256_clmulepi64_epi128(a, factor, 0x00),
                                             _mm256_clmulepi64_epi128(a, factor, 0x11)),
                            later);
}

/* The CRC of 16 bytes that all are folded into. */
CFL_HALF static inline uint32_t cfl_crc_of_rest(__m128i rest) {
    return (uint32_t)_mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(rest)),
                                   (uint64_t)_mm_extract_epi64(rest, 1));
}

/* Of n bytes, at least 256. */
CFL_HALF static uint32_t cfl_crc_half(uint32_t crc, const uint8_t *p, size_t n) {
    const __m128i one = _mm_loadu_si128((const __m128i *)cfl_crc_factor[0]);
    const __m256i two = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)cfl_crc_factor[1]));
    const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)cfl_crc_factor[3]));
    __m256i a[8];
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_loadu_si256((const __m256i *)(p + 32 * i));
    a[0] = _mm256_xor_si256(a[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        for (int i = 0; i < 256; i += 64)
            _mm_prefetch((const char *)p + 1024 + i, _MM_HINT_T0);
        for (int i = 0; i < 8; i++)
            a[i] = cfl_crc_fold_half(a[i], all, _mm256_loadu_si256((const __m256i *)(p + 32 * i)));
    }
    for (int i = 1; i < 8; i++)
        a[0] = cfl_crc_fold_half(a[0], two, a[i]);
    crc = cfl_crc_of_rest(cfl_crc_fold_part(_mm256_castsi256_si128(a[0]), one, _mm256_extracti128_si256(a[0], 1)));
    return cfl_crc_hard(crc, p, n);
}

CFL_WIDE static inline __m512i cfl_crc_fold(__m512i a, __m512i factor, __m512i later) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(a, factor, 0x00),
                                     _mm512_clmulepi64_epi128(a, factor, 0x11), later, 0x96); /* all three added */
}

/* Of n bytes, at least 256. */
CFL_WIDE static uint32_t cfl_crc_wide(uint32_t crc, const uint8_t *p, size_t n) {
    const __m128i one = _mm_loadu_si128((const __m128i *)cfl_crc_factor[0]);
    const __m512i four = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)cfl_crc_factor[2]));
    const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)cfl_crc_factor[3]));
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = _mm512_loadu_si512(p + 64), c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    __m128i rest;
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        for (int i = 0; i < 256; i += 64)
            _mm_prefetch((const char *)p + 1024 + i, _MM_HINT_T0);
        a = cfl_crc_fold(a, all, _mm512_loadu_si512(p));
        b = cfl_crc_fold(b, all, _mm512_loadu_si512(p + 64));
        c = cfl_crc_fold(c, all, _mm512_loadu_si512(p + 128));
        d = cfl_crc_fold(d, all, _mm512_loadu_si512(p + 192));
    }
    d = cfl_crc_fold(cfl_crc_fold(cfl_crc_fold(a, four, b), four, c), four, d);
    rest = cfl_crc_fold_part(_mm512_castsi512_si128(d), one, _mm512_extracti32x4_epi32(d, 1));
    rest = cfl_crc_fold_part(rest, one, _mm512_extracti32x4_epi32(d, 2));
    rest = cfl_crc_fold_part(rest, one, _mm512_extracti32x4_epi32(d, 3));
    return cfl_crc_hard(cfl_crc_of_rest(rest), p, n);
}

/* x to the power n, modulo the polynomial; the highest bit is that of x^0. */
static uint64_t cfl_crc_power(int n) {
    uint32_t c = 0x80000000u;
    while (n--)
        c = (c >> 1) ^ (0x82F63B78u & -(c & 1));
    return c;
}
#endif

/* Continue a CRC: `crc` is that of the bytes before `data`, 0 if there are none. */
static inline uint32_t cfl_crc32c_more(uint32_t crc, const void *data, size_t n) {
#if defined(__x86_64__)
    if (cfl_crc_way == 3 && n >= 256)
        return ~cfl_crc_wide(~crc, (const uint8_t *)data, n);
    if (cfl_crc_way == 2 && n >= 256)
        return ~cfl_crc_half(~crc, (const uint8_t *)data, n);
    if (cfl_crc_way)
        return ~cfl_crc_hard(~crc, (const uint8_t *)data, n);
#endif
    return ~cfl_crc_soft(~crc, (const uint8_t *)data, n);
}

static inline uint32_t cfl_crc32c(const void *data, size_t n) {
    return cfl_crc32c_more(0, data, n);
}

static inline uint32_t cfl_crc_page(const void *page) {
#if defined(__x86_64__)
    if (cfl_crc_way == 3)
        return ~cfl_crc_wide(0xFFFFFFFFu, (const uint8_t *)page, CFL_PAGE);
    if (cfl_crc_way == 2)
        return ~cfl_crc_half(0xFFFFFFFFu, (const uint8_t *)page, CFL_PAGE);
    if (cfl_crc_way)
        return cfl_crc_page_hard((const uint8_t *)page);
#endif
    return ~cfl_crc_soft(0xFFFFFFFFu, (const uint8_t *)page, CFL_PAGE);
}

/* The tables take 0.1 ms to make: each module that includes this has its own, and most never need them. */
static void cfl_crc_make_tables(void) {
    static const uint8_t zeros[CFL_PAGE];
    if (cfl_crc_table[0][1])
        return;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = (c >> 1) ^ (0x82F63B78u & -(c & 1));
        cfl_crc_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            cfl_crc_table[k][i] = cfl_crc_table[0][cfl_crc_table[k - 1][i] & 255] ^ (cfl_crc_table[k - 1][i] >> 8);
    for (int which = 0; which < 2; which++)
        for (int byte = 0; byte < 4; byte++) {
            uint32_t bit[8];
            for (int k = 0; k < 8; k++)
                bit[k] = cfl_crc_soft(1u << (8 * byte + k), zeros, CFL_THIRD * (which + 1));
            for (uint32_t i = 0; i < 256; i++) {
                uint32_t sum = 0;
                for (int k = 0; k < 8; k++)
                    sum ^= (i >> k & 1) ? bit[k] : 0;
                cfl_crc_shift[which][byte][i] = sum;
            }
        }
}

/* Sum in this way, or in the best one below that the processor has. */
static void cfl_crc_use(int way) {
    cfl_crc_way = 0;
#if defined(__x86_64__)
    if (way >= 1 && __builtin_cpu_supports("sse4.2"))
        cfl_crc_way = 1;
    if (way >= 2 && cfl_crc_way && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq"))
        cfl_crc_way = way >= 3 && __builtin_cpu_supports("avx512f") ? 3 : 2;
#else
    (void)way;
#endif
    if (cfl_crc_way < 2)
        cfl_crc_make_tables();
}

__attribute__((constructor)) static void cfl_crc_init(void) {
    static const uint8_t zeros[CFL_PAGE];
#if defined(__x86_64__)
    __builtin_cpu_init();
    for (int i = 0; i < 4; i++) {
        /* A product of two numbers of 64 bits is one bit too low, and the factor is the lower half of 64 bits. */
        int bits = i < 3 ? 128 << i : 2048;
        cfl_crc_factor[i][0] = cfl_crc_power(bits + 64 - 33);
        cfl_crc_factor[i][1] = cfl_crc_power(bits - 33);
    }
#endif
    cfl_crc_use(3);
    cfl_crc_zero_page = cfl_crc_page(zeros);
}
