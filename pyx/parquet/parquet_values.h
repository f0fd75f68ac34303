/* Values in pages of Parquet: bit-packed numbers, numbers looked up in a dictionary, checksums of pages.
 *
 * The encodings are those of the Parquet format, Encodings.md.  No function reads past `end`.
 */
#ifndef CONFLUO_PARQUET_VALUES_H
#define CONFLUO_PARQUET_VALUES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Fewer numbers than this are not worth the tables that wide instructions need. */
#define PARQUET_SHORT 64

/* Set by `parquet_use_wide`: the processor has AVX2; it has carry-less multiplication. */
static int parquet_avx2, parquet_clmul;

static inline void parquet_use_wide(int wanted) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    parquet_avx2 = wanted && __builtin_cpu_supports("avx2");
    parquet_clmul = wanted && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#else
    (void)wanted;
#endif
}

/* One number of `width` <= 64 bits that begins at a bit. */
static inline uint64_t unpack_one(const uint8_t *p, const uint8_t *end, size_t bit, unsigned width) {
    uint64_t v = 0;
    uint8_t more = 0;
    unsigned shift = bit & 7;
    p += bit >> 3;
    if (p >= end || !width)
        return 0;
    memcpy(&v, p, (size_t)(end - p) < 8 ? (size_t)(end - p) : 8);
    v >>= shift;
    if (shift + width > 64 && p + 8 < end) {
        more = p[8];
        v |= (uint64_t)more << (64 - shift);
    }
    return width == 64 ? v : v & (((uint64_t)1 << width) - 1);
}

static inline void unpack_wide(const uint8_t *p, const uint8_t *end, unsigned width, size_t n, uint64_t *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = unpack_one(p, end, i * width, width);
}

#if defined(__x86_64__)
/* Eight numbers of up to 25 bits are `width` bytes: each half of them fits into 16 bytes. */
__attribute__((target("avx2"))) static size_t unpack_avx2(const uint8_t *p, const uint8_t *end, unsigned width,
                                                          size_t n, uint32_t *out, uint32_t *most) {
    const unsigned second = (4 * width) >> 3;
    uint8_t bytes[32];
    uint32_t shifts[8];
    size_t i = 0;
    for (unsigned k = 0; k < 8; k++) {
        unsigned bit = k * width - (k < 4 ? 0 : 8 * second);
        shifts[k] = bit & 7;
        for (unsigned j = 0; j < 4; j++)
            bytes[4 * k + j] = (uint8_t)((bit >> 3) + j);
    }
    uint32_t each[8];
    __m256i largest = _mm256_setzero_si256();
    const __m256i order = _mm256_loadu_si256((const __m256i *)bytes);
    const __m256i shift = _mm256_loadu_si256((const __m256i *)shifts);
    const __m256i mask = _mm256_set1_epi32((int)(((uint32_t)1 << width) - 1));
    for (; i + 8 <= n && (size_t)(end - p) >= second + 16; i += 8, p += width) {
        __m128i low = _mm_loadu_si128((const __m128i *)p), high = _mm_loadu_si128((const __m128i *)(p + second));
        __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
        v = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(v, order), shift), mask);
        largest = _mm256_max_epu32(largest, v);
        _mm256_storeu_si256((__m256i *)(out + i), v);
    }
    _mm256_storeu_si256((__m256i *)each, largest);
    for (unsigned k = 0; k < 8; k++)
        *most = each[k] > *most ? each[k] : *most;
    return i;
}

/* Numbers of up to 4 bits, looked up in a dictionary of bytes with 16 places: 32 at a time. */
__attribute__((target("avx2"))) static size_t look_up_few_avx2(const uint8_t *p, const uint8_t *end, unsigned width,
                                                               size_t n, const uint8_t *values, uint8_t *out,
                                                               uint32_t *most) {
    size_t i = 0;
    uint8_t bytes[32], each[32];
    uint16_t shifts[16];
    /* Number k of 8 is in a word of 16 bits, moved up so that its high byte begins with it. */
    for (unsigned k = 0; k < 8; k++) {
        unsigned bit = k * width;
        bytes[2 * k] = bytes[16 + 2 * k] = (uint8_t)(bit >> 3);
        bytes[2 * k + 1] = bytes[17 + 2 * k] = (uint8_t)((bit >> 3) + 1);
        shifts[k] = shifts[8 + k] = (uint16_t)(1u << (8 - (bit & 7)));
    }
    for (unsigned k = 0; k < 16; k++)
        bytes[16 + k] = (uint8_t)(bytes[16 + k] + width);
    const __m256i order = _mm256_loadu_si256((const __m256i *)bytes);
    const __m256i shift = _mm256_loadu_si256((const __m256i *)shifts);
    const __m256i mask = _mm256_set1_epi16((int16_t)((1u << width) - 1));
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)values));
    __m256i largest = _mm256_setzero_si256();
    for (; i + 32 <= n && (size_t)(end - p) >= 2 * width + 16; i += 32, p += 4 * width) {
        /* Each load has 16 numbers of at most 8 bytes; a word that ends after them is masked. */
        __m256i a = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
        __m256i b = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(p + 2 * width)));
        a = _mm256_and_si256(_mm256_srli_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(a, order), shift), 8), mask);
        b = _mm256_and_si256(_mm256_srli_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(b, order), shift), 8), mask);
        a = _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xD8);
        largest = _mm256_max_epu8(largest, a);
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_shuffle_epi8(table, a));
    }
    _mm256_storeu_si256((__m256i *)each, largest);
    for (unsigned k = 0; k < 32; k++)
        *most = each[k] > *most ? each[k] : *most;
    return i;
}
#endif

/* out[i] = the byte of `values`, which has 16, for number i of `width` <= 4 bits; returns how many: the first ones, a
 * multiple of 8.  `most`: the largest number, if that is larger. */
static inline size_t look_up_few(const uint8_t *p, const uint8_t *end, unsigned width, size_t n, const uint8_t *values,
                                 uint8_t *out, uint32_t *most) {
#if defined(__x86_64__)
    if (parquet_avx2 && width && width <= 4 && n >= PARQUET_SHORT)
        return look_up_few_avx2(p, end, width, n, values, out, most);
#endif
    return 0;
}

/* n numbers of `width` <= 32 bits; returns the largest. */
static inline uint32_t unpack_bits(const uint8_t *p, const uint8_t *end, unsigned width, size_t n, uint32_t *out) {
    uint32_t most = 0;
    size_t i = 0;
    if (n < PARQUET_SHORT && width <= 8)
        for (; i + 8 <= n && (size_t)(end - p) >= i / 8 * width + 8; i += 8) { /* eight of them are in eight bytes */
            uint64_t v;
            memcpy(&v, p + i / 8 * width, 8);
            for (size_t k = 0; k < 8; k++, v >>= width) {
                out[i + k] = (uint32_t)v & ((1u << width) - 1);
                most = out[i + k] > most ? out[i + k] : most;
            }
        }
#if defined(__x86_64__)
    else if (parquet_avx2 && width && width <= 25)
        i = unpack_avx2(p, end, width, n, out, &most);
#endif
    for (; i < n; i++) {
        out[i] = (uint32_t)unpack_one(p, end, i * width, width);
        most = out[i] > most ? out[i] : most;
    }
    return most;
}

/* out[i] = value += least + more[i], the low `size` bytes of it; returns the last. */
static inline uint64_t add_up(uint64_t value, uint64_t least, const uint32_t *restrict more, size_t n, size_t size,
                              uint8_t *restrict out) {
    if (size == 8)
        for (size_t i = 0; i < n; i++) {
            value += least + more[i];
            memcpy(out + 8 * i, &value, 8);
        }
    else
        for (size_t i = 0; i < n; i++) {
            uint64_t v = value += least + more[i];
            memcpy(out + size * i, &v, size);
        }
    return value;
}

static inline uint64_t add_up_wide(uint64_t value, uint64_t least, const uint64_t *restrict more, size_t n, size_t size,
                                   uint8_t *restrict out) {
    for (size_t i = 0; i < n; i++) {
        uint64_t v = value += least + more[i];
        memcpy(out + size * i, &v, size);
    }
    return value;
}

/* out[i] = values[index[i]], `size` bytes each. */
static inline void look_up(const uint32_t *restrict index, size_t n, const uint8_t *restrict values, size_t size,
                           uint8_t *restrict out) {
#define LOOK_UP(T)                                       \
    for (size_t i = 0; i < n; i++) {                     \
        T v;                                             \
        memcpy(&v, values + index[i] * sizeof(T), sizeof(T)); \
        memcpy(out + i * sizeof(T), &v, sizeof(T));      \
    }
    switch (size) {
    case 1: LOOK_UP(uint8_t) break;
    case 2: LOOK_UP(uint16_t) break;
    case 4: LOOK_UP(uint32_t) break;
    case 8: LOOK_UP(uint64_t) break;
    default:
        for (size_t i = 0; i < n; i++)
            memcpy(out + i * size, values + index[i] * size, size);
    }
#undef LOOK_UP
}

/* The same value n times. */
static inline void repeat_value(const uint8_t *value, size_t size, size_t n, uint8_t *out) {
    if (size == 1) {
        memset(out, *value, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        memcpy(out + i * size, value, size);
}

/* The low `size` bytes of numbers of `from` bytes each, both little-endian. */
static inline void narrow_values(const uint8_t *restrict p, size_t from, size_t n, size_t size,
                                 uint8_t *restrict out) {
    if (from == size) {
        memcpy(out, p, n * size);
        return;
    }
    if (from == 4 && size == 2) {
        for (size_t i = 0; i < n; i++)
            memcpy(out + 2 * i, p + 4 * i, 2);
        return;
    }
    for (size_t i = 0; i < n; i++)
        memcpy(out + i * size, p + i * from, size);
}

/* CRC-32 of IEEE 802.3, that of gzip and of pages of Parquet: four sums of 16 bytes, folded by carry-less
 * multiplication (Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ, Intel 2009). */
static uint32_t parquet_crc_table[8][256];

static inline void parquet_crc_tables(void) {
    for (unsigned i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        parquet_crc_table[0][i] = c;
    }
    for (unsigned i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            parquet_crc_table[k][i] =
                parquet_crc_table[0][parquet_crc_table[k - 1][i] & 255] ^ (parquet_crc_table[k - 1][i] >> 8);
}

static uint32_t parquet_crc_soft(uint32_t crc, const uint8_t *p, size_t n) {
    const uint32_t (*t)[256] = (const uint32_t (*)[256])parquet_crc_table;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        v ^= crc;
        crc = t[7][v & 255] ^ t[6][(v >> 8) & 255] ^ t[5][(v >> 16) & 255] ^ t[4][(v >> 24) & 255]
            ^ t[3][(v >> 32) & 255] ^ t[2][(v >> 40) & 255] ^ t[1][(v >> 48) & 255] ^ t[0][v >> 56];
    }
    while (n--)
        crc = t[0][(crc ^ *p++) & 255] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__)
#define FOLD(x, k, next)                                                                                        \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next)

/* n >= 64 bytes, in steps of 16; returns how many. */
__attribute__((target("pclmul,sse4.1"))) static size_t parquet_crc_folded(uint32_t *crc, const uint8_t *p, size_t n) {
    const __m128i *q = (const __m128i *)p;
    const __m128i by4 = _mm_set_epi64x(0x01C6E41596, 0x0154442BD4), by1 = _mm_set_epi64x(0x00CCAA009E, 0x01751997D0);
    const __m128i last = _mm_set_epi64x(0, 0x0163CD6124), barrett = _mm_set_epi64x(0x01F7011641, 0x01DB710641);
    const __m128i low = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i a = _mm_xor_si128(_mm_loadu_si128(q), _mm_cvtsi32_si128((int)*crc)), b = _mm_loadu_si128(q + 1);
    __m128i c = _mm_loadu_si128(q + 2), d = _mm_loadu_si128(q + 3), t;
    size_t left = n - 64;
    for (q += 4; left >= 64; left -= 64, q += 4) {
        a = FOLD(a, by4, _mm_loadu_si128(q));
        b = FOLD(b, by4, _mm_loadu_si128(q + 1));
        c = FOLD(c, by4, _mm_loadu_si128(q + 2));
        d = FOLD(d, by4, _mm_loadu_si128(q + 3));
    }
    a = FOLD(a, by1, b);
    a = FOLD(a, by1, c);
    a = FOLD(a, by1, d);
    for (; left >= 16; left -= 16, q++)
        a = FOLD(a, by1, _mm_loadu_si128(q));
    a = _mm_xor_si128(_mm_clmulepi64_si128(a, by1, 0x10), _mm_srli_si128(a, 8));
    t = _mm_srli_si128(a, 4);
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low), last, 0x00), t);
    t = _mm_clmulepi64_si128(_mm_and_si128(a, low), barrett, 0x10);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, low), barrett, 0x00);
    *crc = (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
    return n - left;
}
#undef FOLD
#endif

static inline uint32_t parquet_crc(const uint8_t *p, size_t n) {
    uint32_t crc = ~(uint32_t)0;
#if defined(__x86_64__)
    if (parquet_clmul && n >= 64) {
        size_t done = parquet_crc_folded(&crc, p, n);
        p += done;
        n -= done;
    }
#endif
    return ~parquet_crc_soft(crc, p, n);
}

#endif
