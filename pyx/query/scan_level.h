/* The loops of scan_kernels.h for one instruction set: LEVEL 0 any machine, 1 AVX2, 2 AVX-512 BW. */

#undef FN
#undef FN_
#undef FN__
#define FN__(name, level) name##_##level
#define FN_(name, level) FN__(name, level)
#define FN(name) FN_(name, LEVEL)

/* --- 64 rows: lo <= (x & mask) <= lo + span ------------------------------------------------- */

#if LEVEL == 2

SCAN_INLINE uint64_t FN(range_u8)(const scan_u8 *p, uint64_t lo, uint64_t span, uint64_t mask)
{
    __m512i x = _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8((char)mask));
    return _mm512_cmple_epu8_mask(_mm512_sub_epi8(x, _mm512_set1_epi8((char)lo)), _mm512_set1_epi8((char)span));
}

SCAN_INLINE uint64_t FN(range_u16)(const scan_u16 *p, uint64_t lo, uint64_t span, uint64_t mask)
{
    uint64_t word = 0;
    for (int i = 0; i < 2; i++) {
        __m512i x = _mm512_and_si512(_mm512_loadu_si512(p + 32 * i), _mm512_set1_epi16((short)mask));
        x = _mm512_sub_epi16(x, _mm512_set1_epi16((short)lo));
        word |= (uint64_t)_mm512_cmple_epu16_mask(x, _mm512_set1_epi16((short)span)) << (32 * i);
    }
    return word;
}

SCAN_INLINE uint64_t FN(range_u32)(const scan_u32 *p, uint64_t lo, uint64_t span, uint64_t mask)
{
    uint64_t word = 0;
    for (int i = 0; i < 4; i++) {
        __m512i x = _mm512_and_si512(_mm512_loadu_si512(p + 16 * i), _mm512_set1_epi32((int)mask));
        x = _mm512_sub_epi32(x, _mm512_set1_epi32((int)lo));
        word |= (uint64_t)_mm512_cmple_epu32_mask(x, _mm512_set1_epi32((int)span)) << (16 * i);
    }
    return word;
}

SCAN_INLINE uint64_t FN(range_u64)(const scan_u64 *p, uint64_t lo, uint64_t span, uint64_t mask)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) {
        __m512i x = _mm512_and_si512(_mm512_loadu_si512(p + 8 * i), _mm512_set1_epi64((long long)mask));
        x = _mm512_sub_epi64(x, _mm512_set1_epi64((long long)lo));
        word |= (uint64_t)_mm512_cmple_epu64_mask(x, _mm512_set1_epi64((long long)span)) << (8 * i);
    }
    return word;
}

SCAN_INLINE uint64_t FN(real_f32)(const scan_f32 *p, double lo, double hi)
{
    uint64_t word = 0;
    for (int i = 0; i < 4; i++) {
        __m512 x = _mm512_loadu_ps((const float *)p + 16 * i);
        __mmask16 ge = _mm512_cmp_ps_mask(x, _mm512_set1_ps((float)lo), _CMP_GE_OQ);
        word |= (uint64_t)_mm512_mask_cmp_ps_mask(ge, x, _mm512_set1_ps((float)hi), _CMP_LE_OQ) << (16 * i);
    }
    return word;
}

SCAN_INLINE uint64_t FN(real_f64)(const scan_f64 *p, double lo, double hi)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) {
        __m512d x = _mm512_loadu_pd((const double *)p + 8 * i);
        __mmask8 ge = _mm512_cmp_pd_mask(x, _mm512_set1_pd(lo), _CMP_GE_OQ);
        word |= (uint64_t)_mm512_mask_cmp_pd_mask(ge, x, _mm512_set1_pd(hi), _CMP_LE_OQ) << (8 * i);
    }
    return word;
}

#elif LEVEL == 1

SCAN_INLINE uint64_t FN(range_u8)(const scan_u8 *p, uint64_t lo, uint64_t span, uint64_t mask)
{
    uint64_t word = 0;
    for (int i = 0; i < 2; i++) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(p + 32 * i));
        x = _mm256_sub_epi8(_mm256_and_si256(x, _mm256_set1_epi8((char)mask)), _mm256_set1_epi8((char)lo));
        x = _mm256_cmpeq_epi8(_mm256_min_epu8(x, _mm256_set1_epi8((char)span)), x);
        word |= (uint64_t)(uint32_t)_mm256_movemask_epi8(x) << (32 * i);
    }
    return word;
}

SCAN_INLINE __m256i FN(hit_u16)(const scan_u16 *p, uint64_t lo, uint64_t span, uint64_t mask)
{
    __m256i x = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), _mm256_set1_epi16((short)mask));
    x = _mm256_sub_epi16(x, _mm256_set1_epi16((short)lo));
    return _mm256_cmpeq_epi16(_mm256_min_epu16(x, _mm256_set1_epi16((short)span)), x);
}

SCAN_INLINE uint64_t FN(range_u16)(const scan_u16 *p, uint64_t lo, uint64_t span, uint64_t mask)
{
    uint64_t word = 0;
    for (int i = 0; i < 2; i++) {
        __m256i a = FN(hit_u16)(p + 32 * i, lo, span, mask), b = FN(hit_u16)(p + 32 * i + 16, lo, span, mask);
        a = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xD8);
        word |= (uint64_t)(uint32_t)_mm256_movemask_epi8(a) << (32 * i);
    }
    return word;
}

SCAN_INLINE uint64_t FN(range_u32)(const scan_u32 *p, uint64_t lo, uint64_t span, uint64_t mask)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(p + 8 * i));
        x = _mm256_sub_epi32(_mm256_and_si256(x, _mm256_set1_epi32((int)mask)), _mm256_set1_epi32((int)lo));
        x = _mm256_cmpeq_epi32(_mm256_min_epu32(x, _mm256_set1_epi32((int)span)), x);
        word |= (uint64_t)(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(x)) << (8 * i);
    }
    return word;
}

SCAN_INLINE uint64_t FN(range_u64)(const scan_u64 *p, uint64_t lo, uint64_t span, uint64_t mask)
{
    const __m256i sign = _mm256_set1_epi64x((long long)0x8000000000000000u);
    uint64_t word = 0;
    for (int i = 0; i < 16; i++) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(p + 4 * i));
        x = _mm256_sub_epi64(_mm256_and_si256(x, _mm256_set1_epi64x((long long)mask)), _mm256_set1_epi64x((long long)lo));
        x = _mm256_cmpgt_epi64(_mm256_xor_si256(x, sign), _mm256_xor_si256(_mm256_set1_epi64x((long long)span), sign));
        word |= (uint64_t)(~(uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(x)) & 15) << (4 * i);
    }
    return word;
}

SCAN_INLINE uint64_t FN(real_f32)(const scan_f32 *p, double lo, double hi)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) {
        __m256 x = _mm256_loadu_ps((const float *)p + 8 * i);
        x = _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps((float)lo), _CMP_GE_OQ),
                          _mm256_cmp_ps(x, _mm256_set1_ps((float)hi), _CMP_LE_OQ));
        word |= (uint64_t)(uint32_t)_mm256_movemask_ps(x) << (8 * i);
    }
    return word;
}

SCAN_INLINE uint64_t FN(real_f64)(const scan_f64 *p, double lo, double hi)
{
    uint64_t word = 0;
    for (int i = 0; i < 16; i++) {
        __m256d x = _mm256_loadu_pd((const double *)p + 4 * i);
        x = _mm256_and_pd(_mm256_cmp_pd(x, _mm256_set1_pd(lo), _CMP_GE_OQ), _mm256_cmp_pd(x, _mm256_set1_pd(hi), _CMP_LE_OQ));
        word |= (uint64_t)(uint32_t)_mm256_movemask_pd(x) << (4 * i);
    }
    return word;
}

#else

#define PORTABLE_RANGE(T, U)                                                                         \
    SCAN_INLINE uint64_t FN(range_##T)(const scan_##T *p, uint64_t lo, uint64_t span, uint64_t mask) \
    {                                                                                                \
        uint8_t b[64];                                                                               \
        const U l = (U)lo, s = (U)span, m = (U)mask;                                                 \
        for (int i = 0; i < 64; i++)                                                                 \
            b[i] = (U)((U)(p[i] & m) - l) <= s;                                                      \
        return scan_pack(b);                                                                         \
    }
PORTABLE_RANGE(u8, uint8_t)
PORTABLE_RANGE(u16, uint16_t)
PORTABLE_RANGE(u32, uint32_t)
PORTABLE_RANGE(u64, uint64_t)
#undef PORTABLE_RANGE

#define PORTABLE_REAL(T, U)                                                         \
    SCAN_INLINE uint64_t FN(real_##T)(const scan_##T *p, double lo, double hi)      \
    {                                                                               \
        uint8_t b[64];                                                              \
        const U l = (U)lo, h = (U)hi;                                               \
        for (int i = 0; i < 64; i++)                                                \
            b[i] = (p[i] >= l) & (p[i] <= h);                                       \
        return scan_pack(b);                                                        \
    }
PORTABLE_REAL(f32, float)
PORTABLE_REAL(f64, double)
#undef PORTABLE_REAL

#endif

/* --- a column: words of full 64 rows, then the padded rest ------------------------------------ */

#define DRIVE(NAME, T, WORD)                                                                                 \
    static void FN(NAME##_##T)(const uint8_t *base, uint32_t n, const scan_test *t, uint64_t *out, int mode) \
    {                                                                                                        \
        const scan_##T *p = (const scan_##T *)base;                                                          \
        const uint64_t flip = t->flip, mask = t->mask, lo = t->k ? t->range->lo : 0;                         \
        const uint64_t span = t->k ? t->range->span : 0;                                                     \
        const uint32_t full = n >> 6, rest = n & 63;                                                         \
        (void)mask, (void)lo, (void)span;                                                                    \
        if (mode == SCAN_SET)                                                                                \
            for (uint32_t w = 0; w < full; w++, p += 64)                                                     \
                out[w] = (WORD) ^ flip;                                                                      \
        else if (mode == SCAN_AND)                                                                           \
            for (uint32_t w = 0; w < full; w++, p += 64) {                                                   \
                if (out[w])                                                                                  \
                    out[w] &= (WORD) ^ flip;                                                                 \
            }                                                                                                \
        else                                                                                                 \
            for (uint32_t w = 0; w < full; w++, p += 64)                                                     \
                out[w] |= (WORD) ^ flip;                                                                     \
        if (rest) {                                                                                          \
            scan_##T pad[64];                                                                                \
            memset(pad, 0, sizeof pad);                                                                      \
            memcpy(pad, p, rest * sizeof *p);                                                                \
            p = pad;                                                                                         \
            scan_join(out + full, ((WORD) ^ flip) & (((uint64_t)1 << rest) - 1), mode);                      \
        }                                                                                                    \
    }

#define RANGES(T)                                                                         \
    SCAN_INLINE uint64_t FN(ranges_##T)(const scan_##T *p, const scan_test *t)            \
    {                                                                                     \
        uint64_t word = 0;                                                                \
        for (uint32_t i = 0; i < t->k; i++)                                               \
            word |= FN(range_##T)(p, t->range[i].lo, t->range[i].span, t->mask);          \
        return word;                                                                      \
    }
RANGES(u8)
RANGES(u16)
RANGES(u32)
RANGES(u64)
#undef RANGES

/* Table lookups and pairs: AVX-512 is not faster than the AVX2 code of the compiler. */
#if LEVEL < 2
#define LOOKUP(NAME, T, HIT)                                                              \
    SCAN_INLINE uint64_t FN(NAME##_##T)(const scan_##T *p, const scan_test *t)            \
    {                                                                                     \
        uint64_t word = 0;                                                                \
        for (int i = 0; i < 64; i++) {                                                    \
            uint64_t x = p[i] & t->mask;                                                  \
            word |= (uint64_t)(HIT) << i;                                                 \
        }                                                                                 \
        return word;                                                                      \
    }
LOOKUP(bitmap, u8, t->table[x >> 6] >> (x & 63) & 1)
LOOKUP(bitmap, u16, t->table[x >> 6] >> (x & 63) & 1)
LOOKUP(hash, u32, scan_in_hash(x, t))
LOOKUP(hash, u64, scan_in_hash(x, t))
LOOKUP(search, u32, scan_in_ranges(x, t))
LOOKUP(search, u64, scan_in_ranges(x, t))
#undef LOOKUP
DRIVE(bits, u8, FN(bitmap_u8)(p, t))
DRIVE(bits, u16, FN(bitmap_u16)(p, t))
DRIVE(find, u32, FN(hash_u32)(p, t))
DRIVE(find, u64, FN(hash_u64)(p, t))
DRIVE(inside, u32, FN(search_u32)(p, t))
DRIVE(inside, u64, FN(search_u64)(p, t))
#endif

DRIVE(one, u8, FN(range_u8)(p, lo, span, mask))
DRIVE(one, u16, FN(range_u16)(p, lo, span, mask))
DRIVE(one, u32, FN(range_u32)(p, lo, span, mask))
DRIVE(one, u64, FN(range_u64)(p, lo, span, mask))
DRIVE(many, u8, FN(ranges_u8)(p, t))
DRIVE(many, u16, FN(ranges_u16)(p, t))
DRIVE(many, u32, FN(ranges_u32)(p, t))
DRIVE(many, u64, FN(ranges_u64)(p, t))
DRIVE(between, f32, FN(real_f32)(p, t->lo, t->hi))
DRIVE(between, f64, FN(real_f64)(p, t->lo, t->hi))
#undef DRIVE

/* --- two columns ------------------------------------------------------------------------------- */

#if LEVEL < 2

#define COMPARE(T)                                                                        \
    SCAN_INLINE void FN(compare_##T)(const scan_##T *p, const scan_##T *q, int op, uint8_t *b) \
    {                                                                                     \
        if (op == PAIR_EQ)                                                                \
            for (int i = 0; i < 64; i++)                                                  \
                b[i] = p[i] == q[i];                                                      \
        else if (op == PAIR_LT)                                                           \
            for (int i = 0; i < 64; i++)                                                  \
                b[i] = p[i] < q[i];                                                       \
        else                                                                              \
            for (int i = 0; i < 64; i++)                                                  \
                b[i] = p[i] <= q[i];                                                      \
    }
COMPARE(u8)
COMPARE(u16)
COMPARE(u32)
COMPARE(u64)
COMPARE(i8)
COMPARE(i16)
COMPARE(i32)
COMPARE(i64)
COMPARE(f32)
COMPARE(f64)
#undef COMPARE

#define WIDEN(T, OUT, MASKED)                     \
    for (int i = 0; i < 64; i++)                  \
        OUT[i] = (MASKED);                        \
    break;

/* 64 integers of any type as 64-bit ones, masked in their own type. */
SCAN_INLINE void FN(widen_int)(int code, const uint8_t *p, uint64_t mask, int64_t *out)
{
    switch (code) {
    case SCAN_U8: WIDEN(u8, out, (scan_u8)(((const scan_u8 *)p)[i] & mask))
    case SCAN_U16: WIDEN(u16, out, (uint16_t)(((const scan_u16 *)p)[i] & mask))
    case SCAN_U32: WIDEN(u32, out, (uint32_t)(((const scan_u32 *)p)[i] & mask))
    case SCAN_I8: WIDEN(i8, out, (int8_t)(((const scan_i8 *)p)[i] & mask))
    case SCAN_I16: WIDEN(i16, out, (int16_t)(((const scan_i16 *)p)[i] & mask))
    case SCAN_I32: WIDEN(i32, out, (int32_t)(((const scan_i32 *)p)[i] & mask))
    default: WIDEN(u64, out, (int64_t)(((const scan_u64 *)p)[i] & mask))
    }
}

/* 64 numbers as doubles; integers of at most 32 bits fit exactly. */
SCAN_INLINE void FN(widen_real)(int code, const uint8_t *p, uint64_t mask, double *out)
{
    int64_t whole[64];
    if (code == SCAN_F32) {
        for (int i = 0; i < 64; i++)
            out[i] = ((const scan_f32 *)p)[i];
    } else if (code == SCAN_F64) {
        memcpy(out, p, 64 * 8);
    } else {
        FN(widen_int)(code, p, mask, whole);
        for (int i = 0; i < 64; i++)
            out[i] = (double)whole[i];
    }
}

static void FN(compare_exact)(const uint8_t *p, const uint8_t *q, const scan_test *t, uint8_t *b)
{
    int64_t a[64], c[64];
    double x[64];
    int left = t->code >= SCAN_F32, right = t->code2 >= SCAN_F32;
    if (left)
        FN(widen_real)(t->code, p, 0, x);
    else
        FN(widen_int)(t->code, p, t->mask, a);
    if (right)
        FN(widen_real)(t->code2, q, 0, x);
    else
        FN(widen_int)(t->code2, q, t->mask2, c);
    for (int i = 0; i < 64; i++) {
        int order;
        if (left)
            order = t->code2 == SCAN_U64 ? scan_order_u64(x[i], (uint64_t)c[i]) : scan_order_i64(x[i], c[i]);
        else if (right) {
            order = t->code == SCAN_U64 ? scan_order_u64(x[i], (uint64_t)a[i]) : scan_order_i64(x[i], a[i]);
            order = order == 2 ? 2 : -order;
        } else
            order = scan_order_mixed(a[i], t->code == SCAN_U64, c[i], t->code2 == SCAN_U64);
        b[i] = t->op == PAIR_EQ ? order == 0 : t->op == PAIR_LT ? order == -1 : (order == -1) | (order == 0);
    }
}

SCAN_INLINE uint64_t FN(pair_word)(const uint8_t *p, const uint8_t *q, const scan_test *t)
{
    uint8_t b[64];
    int64_t a[64], c[64];
    double x[64], y[64];
#define SAME(CODE, T) \
    case CODE: FN(compare_##T)((const scan_##T *)p, (const scan_##T *)q, t->op, b); break;
    switch (t->wide) {
    SAME(SCAN_U8, u8)
    SAME(SCAN_U16, u16)
    SAME(SCAN_U32, u32)
    SAME(SCAN_U64, u64)
    SAME(SCAN_I8, i8)
    SAME(SCAN_I16, i16)
    SAME(SCAN_I32, i32)
    SAME(SCAN_I64, i64)
    SAME(SCAN_F32, f32)
    SAME(SCAN_F64, f64)
#undef SAME
    case -SCAN_I64:
        FN(widen_int)(t->code, p, t->mask, a);
        FN(widen_int)(t->code2, q, t->mask2, c);
        FN(compare_i64)((const scan_i64 *)a, (const scan_i64 *)c, t->op, b);
        break;
    case -SCAN_U64:
        FN(widen_int)(t->code, p, t->mask, a);
        FN(widen_int)(t->code2, q, t->mask2, c);
        FN(compare_u64)((const scan_u64 *)a, (const scan_u64 *)c, t->op, b);
        break;
    case -SCAN_F64:
        FN(widen_real)(t->code, p, t->mask, x);
        FN(widen_real)(t->code2, q, t->mask2, y);
        FN(compare_f64)((const scan_f64 *)x, (const scan_f64 *)y, t->op, b);
        break;
    default:
        FN(compare_exact)(p, q, t, b);
    }
    return scan_pack(b);
}
#undef WIDEN

/* t->code and t->code2 are the types; t->wide: the common type, minus a type to widen both to, or 0. */
static void FN(pair)(const uint8_t *p, const uint8_t *q, uint32_t n, const scan_test *t, uint64_t *out, int mode)
{
    static const uint8_t sizes[] = {0, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8};
    const uint32_t a = sizes[t->code], c = sizes[t->code2], full = n >> 6, rest = n & 63;
    for (uint32_t w = 0; w < full; w++) {
        if (mode == SCAN_AND && !out[w])
            continue;
        scan_join(out + w, FN(pair_word)(p + (size_t)w * 64 * a, q + (size_t)w * 64 * c, t) ^ t->flip, mode);
    }
    if (rest) {
        uint8_t pad[512], pad2[512];
        memset(pad, 0, sizeof pad);
        memset(pad2, 0, sizeof pad2);
        memcpy(pad, p + (size_t)full * 64 * a, (size_t)rest * a);
        memcpy(pad2, q + (size_t)full * 64 * c, (size_t)rest * c);
        scan_join(out + full, (FN(pair_word)(pad, pad2, t) ^ t->flip) & (((uint64_t)1 << rest) - 1), mode);
    }
}
#endif

/* Bits of the first n words. */
static uint32_t FN(count)(const uint64_t *words, uint32_t n)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += (uint64_t)__builtin_popcountll(words[i]);
    return (uint32_t)total;
}

#undef SCAN_TABLE
#define SCAN_TABLE(L, M)                                                                  \
    {                                                                                     \
        {FN_(one_u8, L), FN_(one_u16, L), FN_(one_u32, L), FN_(one_u64, L)},              \
        {FN_(many_u8, L), FN_(many_u16, L), FN_(many_u32, L), FN_(many_u64, L)},          \
        {FN_(bits_u8, M), FN_(bits_u16, M)}, {FN_(find_u32, M), FN_(find_u64, M)},        \
        {FN_(inside_u32, M), FN_(inside_u64, M)},                                         \
        {FN_(between_f32, L), FN_(between_f64, L)}, FN_(pair, M), FN_(count, M)           \
    }
