/* AES-128 (FIPS 197), one direction: blocks of 16 bytes, with the instructions of the processor where it has them. */
#ifndef CONFLUO_AES128_H
#define CONFLUO_AES128_H

#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t round[11][16];
    uint8_t sbox[256];
    int fast;
} Aes128;

static inline uint8_t aes_times2(uint8_t v) { return (uint8_t)(v << 1 ^ (v >> 7) * 0x1B); }

static inline uint8_t aes_rotated(uint8_t v, int n) { return (uint8_t)(v << n | v >> (8 - n)); }

/* Section 5.1.1: the inverse of each byte, by powers of 3, and an affine map. */
static void aes_make_sbox(uint8_t *sbox)
{
    uint8_t p = 1, q = 1;
    do {
        p = (uint8_t)(p ^ aes_times2(p));
        q = (uint8_t)(q ^ q << 1);
        q = (uint8_t)(q ^ q << 2);
        q = (uint8_t)(q ^ q << 4);
        if (q & 0x80)
            q ^= 0x09;
        sbox[p] = q ^ aes_rotated(q, 1) ^ aes_rotated(q, 2) ^ aes_rotated(q, 3) ^ aes_rotated(q, 4) ^ 0x63;
    } while (p != 1);
    sbox[0] = 0x63;
}

static void aes_set_key(Aes128 *a, const uint8_t *key)
{
    uint8_t *w = a->round[0], constant = 1, t[4];
    int i, k;
    aes_make_sbox(a->sbox);
    memcpy(w, key, 16);
    for (i = 16; i < 176; i += 4) {
        memcpy(t, w + i - 4, 4);
        if (i % 16 == 0) {
            uint8_t first = t[0];
            t[0] = a->sbox[t[1]] ^ constant;
            t[1] = a->sbox[t[2]];
            t[2] = a->sbox[t[3]];
            t[3] = a->sbox[first];
            constant = aes_times2(constant);
        }
        for (k = 0; k < 4; k++)
            w[i + k] = w[i + k - 16] ^ t[k];
    }
#if defined(__x86_64__)
    a->fast = __builtin_cpu_supports("aes");
#else
    a->fast = 0;
#endif
}

static void aes_plain(const Aes128 *a, const uint8_t *in, uint8_t *out)
{
    uint8_t s[16], t[16];
    int i, c, r;
    for (i = 0; i < 16; i++)
        s[i] = in[i] ^ a->round[0][i];
    for (r = 1; r <= 10; r++) {
        for (i = 0; i < 16; i++)            /* SubBytes, ShiftRows */
            t[i] = a->sbox[s[(i + 4 * (i & 3)) & 15]];
        for (c = 0; c < 16 && r < 10; c += 4) {
            uint8_t *p = t + c, first = p[0], all = p[0] ^ p[1] ^ p[2] ^ p[3];
            p[0] ^= all ^ aes_times2(p[0] ^ p[1]);
            p[1] ^= all ^ aes_times2(p[1] ^ p[2]);
            p[2] ^= all ^ aes_times2(p[2] ^ p[3]);
            p[3] ^= all ^ aes_times2(p[3] ^ first);
        }
        for (i = 0; i < 16; i++)
            s[i] = t[i] ^ a->round[r][i];
    }
    memcpy(out, s, 16);
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("aes,sse2"))) static void aes_four(const Aes128 *a, const uint8_t *in, uint8_t *out)
{
    __m128i s[4], k = _mm_loadu_si128((const __m128i *)a->round[0]);
    int i, r;
    for (i = 0; i < 4; i++)
        s[i] = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(in + 16 * i)), k);
    for (r = 1; r < 10; r++) {
        k = _mm_loadu_si128((const __m128i *)a->round[r]);
        for (i = 0; i < 4; i++)
            s[i] = _mm_aesenc_si128(s[i], k);
    }
    k = _mm_loadu_si128((const __m128i *)a->round[10]);
    for (i = 0; i < 4; i++)
        _mm_storeu_si128((__m128i *)(out + 16 * i), _mm_aesenclast_si128(s[i], k));
}
#else
static void aes_four(const Aes128 *a, const uint8_t *in, uint8_t *out) { (void)a; (void)in; (void)out; }
#endif

/* Encrypt n blocks; in and out may be the same. */
static void aes_encrypt(const Aes128 *a, const uint8_t *in, uint8_t *out, uint32_t n)
{
    uint32_t i = 0;
    uint8_t rest[64];
    for (; a->fast && i + 4 <= n; i += 4)
        aes_four(a, in + 16 * i, out + 16 * i);
    if (a->fast && i < n) {
        memset(rest, 0, 64);
        memcpy(rest, in + 16 * i, 16 * (n - i));
        aes_four(a, rest, rest);
        memcpy(out + 16 * i, rest, 16 * (n - i));
        return;
    }
    for (; i < n; i++)
        aes_plain(a, in + 16 * i, out + 16 * i);
}

#endif
