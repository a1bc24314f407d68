/*
 * Nearest table entry for each weight.
 *
 * The border between two entries is their exact midpoint; a value on it
 * belongs to the lower one. As keys keep the order of values, each border
 * becomes the least key beyond it, and no float is compared. Of equal
 * entries only the lowest is used.
 */
#include <math.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "quant/stages.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Up to this many entries thresholds are compared one after the other, if
 * for many values at once; alone, a look into the codes is faster. */
#define FEW 16

/* Key of the greatest value <= y; clamped to the infinities. */
static int floor_key(double y, const struct qz_layout *lay)
{
    int drop = 52 - lay->mant, e;
    uint64_t bits, mag;
    bool rest;

    memcpy(&bits, &y, sizeof bits);
    bits &= UINT64_MAX >> 1;
    e = (int)(bits >> 52) - 1023 + lay->bias;
    if (e >= lay->inf >> lay->mant) {
        mag = lay->inf;
        rest = false;
    } else if (e >= 1) {
        mag = (bits >> drop) - ((uint64_t)(1023 - lay->bias) << lay->mant);
        rest = (bits & ((UINT64_C(1) << drop) - 1)) != 0;
    } else { /* subnormal there: whole units of the least one */
        double units = ldexp(fabs(y), lay->bias - 1 + lay->mant);

        mag = (uint64_t)units;
        rest = (double)mag < units;
    }
    if (y >= 0)
        return (int)mag;
    return -(int)(mag + (rest && mag < lay->inf)) - 1;
}

/* Code q for the keys lo .. hi. */
static void fill_codes(uint8_t *codes, int lo, int hi, int q)
{
    if (lo < 0) {
        int top = hi < -1 ? hi : -1;

        memset(codes + 0x8000 + (-top - 1), q, (size_t)(top - lo + 1));
        lo = 0;
    }
    if (lo <= hi)
        memset(codes + lo, q, (size_t)(hi - lo + 1));
}

static void set_codes(struct qz_nearest *a, const struct qz_span *span)
{
    int q, lo, hi;

    for (q = 0; q <= a->n; q++) {
        lo = q == 0 || a->reach[q - 1] < span->lo ? span->lo : a->reach[q - 1];
        hi = q == a->n || a->reach[q] > span->hi ? span->hi : a->reach[q] - 1;
        if (lo <= hi)
            fill_codes(a->codes, lo, hi, q);
    }
    a->codes[0x8000] = a->codes[0];
}

void qz_nearest_set(struct qz_nearest *a, const f16_t *table, int bits,
                    enum qz_format f, int scale_exp, const struct qz_span *span)
{
    struct qz_layout lay = qz_layout(f);
    int k = 1 << bits, q, head = 0;
    double down = ldexp(1, -scale_exp);

    a->n = 0;
    a->coded =
        k > FEW || (cpu_features() & (unsigned)(CPU_AVX2 | CPU_NEON)) == 0;
    for (q = 1; q < k; q++) {
        double mid;

        if (table[q] == table[head])
            continue;
        mid = ((double)f16_to_f32(table[head]) + f16_to_f32(table[q])) / 2;
        /* The unused entries between the two share the threshold. */
        while (a->n < q)
            a->reach[a->n++] = (int16_t)(floor_key(mid * down, &lay) + 1);
        head = q;
    }
    if (a->coded)
        set_codes(a, span);
}

static void few_scalar(const struct qz_nearest *a, uint8_t *dst,
                       const uint16_t *src, size_t n)
{
    size_t i;
    int q;

    for (i = 0; i < n; i++) {
        int16_t key = qz_key(src[i]);
        uint8_t code = 0;

        for (q = 0; q < a->n; q++)
            code = (uint8_t)(code + (key >= a->reach[q]));
        dst[i] = code;
    }
}

#if defined(__x86_64__)
ATTR_TARGET("avx2")
static __m256i keys16(const uint16_t *src)
{
    const __m256i ones = _mm256_set1_epi16(-1);
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)src);
    __m256i k = _mm256_srli_epi16(_mm256_srai_epi16(v, 15), 1);

    k = _mm256_xor_si256(v, k);
    return _mm256_sub_epi16(k, _mm256_cmpeq_epi16(k, ones));
}

ATTR_TARGET("avx2")
static void few_avx2(const struct qz_nearest *a, uint8_t *dst,
                     const uint16_t *src, size_t n)
{
    __m256i below[FEW]; /* reach - 1; no threshold is the least int16 */
    size_t i;
    int q;

    for (q = 0; q < a->n; q++)
        below[q] = _mm256_set1_epi16((int16_t)(a->reach[q] - 1));
    for (i = 0; i + 32 <= n; i += 32) {
        __m256i k0 = keys16(src + i), k1 = keys16(src + i + 16);
        __m256i c0 = _mm256_setzero_si256(), c1 = c0;

        for (q = 0; q < a->n; q++) {
            c0 = _mm256_sub_epi16(c0, _mm256_cmpgt_epi16(k0, below[q]));
            c1 = _mm256_sub_epi16(c1, _mm256_cmpgt_epi16(k1, below[q]));
        }
        c0 = _mm256_permute4x64_epi64(_mm256_packus_epi16(c0, c1), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(dst + i), c0);
    }
    few_scalar(a, dst + i, src + i, n - i);
}

ATTR_TARGET("avx512f,avx512bw")
static void few_avx512(const struct qz_nearest *a, uint8_t *dst,
                       const uint16_t *src, size_t n)
{
    const __m512i ones = _mm512_set1_epi16(-1), one = _mm512_set1_epi16(1);
    __m512i reach[FEW];
    size_t i;
    int q;

    for (q = 0; q < a->n; q++)
        reach[q] = _mm512_set1_epi16(a->reach[q]);
    for (i = 0; i + 32 <= n; i += 32) {
        __m512i v = _mm512_loadu_si512(src + i), c = _mm512_setzero_si512();
        __m512i k = _mm512_srli_epi16(_mm512_srai_epi16(v, 15), 1);

        k = _mm512_xor_si512(v, k);
        k = _mm512_mask_mov_epi16(k, _mm512_cmpeq_epi16_mask(k, ones), c);
        for (q = 0; q < a->n; q++)
            c = _mm512_mask_add_epi16(c, _mm512_cmpge_epi16_mask(k, reach[q]),
                                      c, one);
        _mm256_storeu_si256((__m256i *)(void *)(dst + i),
                            _mm512_cvtepi16_epi8(c));
    }
    few_scalar(a, dst + i, src + i, n - i);
}
#endif

#if defined(__aarch64__)
static int16x8_t keys8(const uint16_t *src)
{
    int16x8_t v = vreinterpretq_s16_u16(vld1q_u16(src));
    uint16x8_t flip = vshrq_n_u16(vreinterpretq_u16_s16(vshrq_n_s16(v, 15)), 1);
    int16x8_t k = veorq_s16(v, vreinterpretq_s16_u16(flip));
    uint16x8_t zero = vceqq_s16(k, vdupq_n_s16(-1));

    return vsubq_s16(k, vreinterpretq_s16_u16(zero));
}

static void few_neon(const struct qz_nearest *a, uint8_t *dst,
                     const uint16_t *src, size_t n)
{
    int16x8_t reach[FEW];
    size_t i;
    int q;

    for (q = 0; q < a->n; q++)
        reach[q] = vdupq_n_s16(a->reach[q]);
    for (i = 0; i + 16 <= n; i += 16) {
        int16x8_t k0 = keys8(src + i), k1 = keys8(src + i + 8);
        uint16x8_t c0 = vdupq_n_u16(0), c1 = c0;

        for (q = 0; q < a->n; q++) {
            c0 = vsubq_u16(c0, vcgeq_s16(k0, reach[q]));
            c1 = vsubq_u16(c1, vcgeq_s16(k1, reach[q]));
        }
        vst1q_u8(dst + i, vcombine_u8(vmovn_u16(c0), vmovn_u16(c1)));
    }
    few_scalar(a, dst + i, src + i, n - i);
}
#endif

static void few(const struct qz_nearest *a, uint8_t *dst, const uint16_t *src,
                size_t n)
{
    unsigned cpu = cpu_features();

#if defined(__x86_64__)
    if ((cpu & CPU_AVX512) != 0)
        few_avx512(a, dst, src, n);
    else if ((cpu & CPU_AVX2) != 0)
        few_avx2(a, dst, src, n);
    else
#elif defined(__aarch64__)
    if ((cpu & CPU_NEON) != 0)
        few_neon(a, dst, src, n);
    else
#endif
        few_scalar(a, dst, src, n);
    (void)cpu;
}

void qz_nearest_map(const struct qz_nearest *a, uint8_t *dst,
                    const uint16_t *src, size_t n)
{
    size_t i;

    if (!a->coded) {
        few(a, dst, src, n);
        return;
    }
    for (i = 0; i < n; i++)
        dst[i] = a->codes[src[i]];
}
