/*
 * Keys of 16-bit floats, their histogram, and its distinct entries.
 *
 * The histogram replaces sorting: one counter for each of the 65536 keys,
 * of which only the span that occurred is read back and cleared. Between
 * the smallest negative and the smallest positive value lie most of the
 * keys and no data; that stretch is skipped.
 */
#include <string.h>

#include "converter/base/cpu.h"
#include "quant/stages.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define CHUNK 2048

struct qz_layout qz_layout(enum qz_format f)
{
    static const struct qz_layout bf16 = { 7, 127, 0x7f80 };
    static const struct qz_layout f16 = { 10, 15, 0x7c00 };

    return f == QZ_BF16 ? bf16 : f16;
}

bool qz_span_finite(const struct qz_span *span, enum qz_format f)
{
    int inf = qz_layout(f).inf;

    return span->hi < inf && span->lo > -inf - 1;
}

void qz_span_join(struct qz_span *span, const struct qz_span *more)
{
    if (more->lo < span->lo)
        span->lo = more->lo;
    if (more->hi > span->hi)
        span->hi = more->hi;
    if (more->near < span->near)
        span->near = more->near;
}

size_t qz_first_bad(const uint16_t *src, size_t n, enum qz_format f)
{
    uint16_t inf = qz_layout(f).inf;
    size_t i;

    for (i = 0; i < n && (src[i] & 0x7fff) < inf; i++)
        ;
    return i;
}

static void keys_scalar(int16_t *keys, struct qz_span *span,
                        const uint16_t *src, size_t n)
{
    struct qz_span sp = *span;
    size_t i;

    for (i = 0; i < n; i++) {
        int16_t k = qz_key(src[i]);
        uint16_t near = (uint16_t)((src[i] & 0x7fff) - 1);

        keys[i] = k;
        if (k < sp.lo)
            sp.lo = k;
        if (k > sp.hi)
            sp.hi = k;
        if (near < sp.near)
            sp.near = near;
    }
    *span = sp;
}

#if defined(__x86_64__)
ATTR_TARGET("avx2")
static void keys_avx2(int16_t *keys, struct qz_span *span, const uint16_t *src,
                      size_t n)
{
    const __m256i one = _mm256_set1_epi16(1), ones = _mm256_set1_epi16(-1);
    const __m256i mag = _mm256_set1_epi16(0x7fff);
    __m256i lo = _mm256_set1_epi16(span->lo), hi = _mm256_set1_epi16(span->hi);
    __m256i near = _mm256_set1_epi16((int16_t)span->near);
    int16_t los[16], his[16];
    uint16_t nears[16];
    size_t i, lane;

    for (i = 0; i + 16 <= n; i += 16) {
        __m256i v =
            _mm256_loadu_si256((const __m256i *)(const void *)(src + i));
        __m256i k = _mm256_srli_epi16(_mm256_srai_epi16(v, 15), 1);

        k = _mm256_xor_si256(v, k);
        /* -1, minus zero, becomes 0. */
        k = _mm256_sub_epi16(k, _mm256_cmpeq_epi16(k, ones));
        _mm256_storeu_si256((__m256i *)(void *)(keys + i), k);
        lo = _mm256_min_epi16(lo, k);
        hi = _mm256_max_epi16(hi, k);
        near = _mm256_min_epu16(near, _mm256_sub_epi16(_mm256_and_si256(v, mag),
                                                       one));
    }
    _mm256_storeu_si256((__m256i *)(void *)los, lo);
    _mm256_storeu_si256((__m256i *)(void *)his, hi);
    _mm256_storeu_si256((__m256i *)(void *)nears, near);
    for (lane = 0; lane < 16; lane++) {
        struct qz_span one_lane = { los[lane], his[lane], nears[lane] };

        qz_span_join(span, &one_lane);
    }
    keys_scalar(keys + i, span, src + i, n - i);
}
#endif

#if defined(__aarch64__)
static void keys_neon(int16_t *keys, struct qz_span *span, const uint16_t *src,
                      size_t n)
{
    int16x8_t lo = vdupq_n_s16(span->lo), hi = vdupq_n_s16(span->hi);
    uint16x8_t near = vdupq_n_u16(span->near);
    size_t i;

    for (i = 0; i + 8 <= n; i += 8) {
        uint16x8_t v = vld1q_u16(src + i), k;
        int16x8_t s = vreinterpretq_s16_u16(v);

        k = vshrq_n_u16(vreinterpretq_u16_s16(vshrq_n_s16(s, 15)), 1);
        k = veorq_u16(v, k);
        /* -1, minus zero, becomes 0. */
        k = vsubq_u16(k, vceqq_u16(k, vdupq_n_u16(0xffff)));
        s = vreinterpretq_s16_u16(k);
        vst1q_s16(keys + i, s);
        lo = vminq_s16(lo, s);
        hi = vmaxq_s16(hi, s);
        v = vsubq_u16(vandq_u16(v, vdupq_n_u16(0x7fff)), vdupq_n_u16(1));
        near = vminq_u16(near, v);
    }
    span->lo = vminvq_s16(lo);
    span->hi = vmaxvq_s16(hi);
    span->near = vminvq_u16(near);
    keys_scalar(keys + i, span, src + i, n - i);
}
#endif

static void get_keys(int16_t *keys, struct qz_span *span, const uint16_t *src,
                     size_t n)
{
#if defined(__x86_64__)
    if ((cpu_features() & CPU_AVX2) != 0) {
        keys_avx2(keys, span, src, n);
        return;
    }
#elif defined(__aarch64__)
    if ((cpu_features() & CPU_NEON) != 0) {
        keys_neon(keys, span, src, n);
        return;
    }
#endif
    keys_scalar(keys, span, src, n);
}

void qz_count(uint32_t *counts, struct qz_span *span, const uint16_t *src,
              size_t n)
{
    int16_t keys[CHUNK];
    uint32_t *mid = counts + KEYS / 2;
    size_t i, len;

    for (; n > 0; n -= len, src += len) {
        len = n < CHUNK ? n : CHUNK;
        get_keys(keys, span, src, len);
        for (i = 0; i < len; i++)
            mid[keys[i]]++;
    }
}

void qz_count_weighted(uint32_t *counts, struct qz_span *span,
                       const uint16_t *src, const float *imp, float scale,
                       size_t n)
{
    int16_t keys[CHUNK];
    uint32_t w[CHUNK], *mid = counts + KEYS / 2;
    size_t i, len;

    for (; n > 0; n -= len, src += len, imp += len) {
        len = n < CHUNK ? n : CHUNK;
        get_keys(keys, span, src, len);
        qz_importance_round(w, imp, scale, len);
        for (i = 0; i < len; i++)
            mid[keys[i]] += w[i];
    }
}

void qz_count_heavy(uint64_t *counts, struct qz_span *span, const uint16_t *src,
                    const float *imp, float scale, size_t n)
{
    int16_t keys[CHUNK];
    uint32_t w[CHUNK];
    uint64_t *mid = counts + KEYS / 2;
    size_t i, len;

    for (; n > 0; n -= len, src += len, imp += len) {
        len = n < CHUNK ? n : CHUNK;
        get_keys(keys, span, src, len);
        qz_importance_round(w, imp, scale, len);
        for (i = 0; i < len; i++)
            mid[keys[i]] += w[i];
    }
}

static size_t take_scalar(uint32_t *counts, int lo, int hi, int16_t *keys,
                          double *weights, size_t m)
{
    uint32_t *mid = counts + KEYS / 2;
    int k;

    for (k = lo; k <= hi; k++)
        if (mid[k] != 0) {
            keys[m] = (int16_t)k;
            weights[m++] = mid[k];
            mid[k] = 0;
        }
    return m;
}

#if defined(__x86_64__)
/* Eight counters at a time; an aligned block may reach over the ends of the
 * stretch, where the counters are zero. */
ATTR_TARGET("avx2,bmi")
static size_t take_avx2(uint32_t *counts, int lo, int hi, int16_t *keys,
                        double *weights, size_t m)
{
    const __m256i zero = _mm256_setzero_si256();
    int k, at;

    for (k = lo & ~7; k <= hi; k += 8) {
        uint32_t *p = counts + KEYS / 2 + k;
        __m256i v = _mm256_load_si256((const __m256i *)(const void *)p);
        __m256i eq = _mm256_cmpeq_epi32(v, zero);
        unsigned some =
            ~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(eq)) & 0xff;

        if (some == 0)
            continue;
        do {
            at = (int)_tzcnt_u32(some);
            keys[m] = (int16_t)(k + at);
            weights[m++] = p[at];
            some &= some - 1;
        } while (some != 0);
        _mm256_store_si256((__m256i *)(void *)p, zero);
    }
    return m;
}
#endif

#if defined(__aarch64__)
/* Empty blocks of eight are passed over, as above. */
static size_t take_neon(uint32_t *counts, int lo, int hi, int16_t *keys,
                        double *weights, size_t m)
{
    int k;

    for (k = lo & ~7; k <= hi; k += 8) {
        uint32_t *p = counts + KEYS / 2 + k;

        if (vmaxvq_u32(vorrq_u32(vld1q_u32(p), vld1q_u32(p + 4))) != 0)
            m = take_scalar(counts, k, k + 7, keys, weights, m);
    }
    return m;
}
#endif

static size_t take(uint32_t *counts, int lo, int hi, int16_t *keys,
                   double *weights, size_t m)
{
#if defined(__x86_64__)
    if ((cpu_features() & CPU_AVX2) != 0)
        return take_avx2(counts, lo, hi, keys, weights, m);
#elif defined(__aarch64__)
    if ((cpu_features() & CPU_NEON) != 0)
        return take_neon(counts, lo, hi, keys, weights, m);
#endif
    return take_scalar(counts, lo, hi, keys, weights, m);
}

/* The up to three stretches of a span that can hold data. */
static int stretches(const struct qz_span *span, int ends[3][2])
{
    int n = 0, near = span->near + 1; /* least magnitude but zero */

    if (span->lo < 0) {
        ends[n][0] = span->lo;
        ends[n++][1] = span->hi < -near - 1 ? span->hi : -near - 1;
    }
    if (span->lo <= 0 && span->hi >= 0) {
        ends[n][0] = 0;
        ends[n++][1] = 0;
    }
    if (span->hi > 0) {
        ends[n][0] = span->lo > near ? span->lo : near;
        ends[n++][1] = span->hi;
    }
    return n;
}

size_t qz_compact(uint32_t *counts, const struct qz_span *span, int16_t *keys,
                  double *weights)
{
    int ends[3][2], i, n = stretches(span, ends);
    size_t m = 0;

    for (i = 0; i < n; i++)
        m = take(counts, ends[i][0], ends[i][1], keys, weights, m);
    return m;
}

void qz_fold(uint64_t *wide, uint32_t *counts, const struct qz_span *span)
{
    int ends[3][2], i, k, n = stretches(span, ends);

    for (i = 0; i < n; i++)
        for (k = ends[i][0] + KEYS / 2; k <= ends[i][1] + KEYS / 2; k++) {
            wide[k] += counts[k];
            counts[k] = 0;
        }
}

void qz_fold_heavy(uint64_t *wide, uint64_t *counts, const struct qz_span *span)
{
    int ends[3][2], i, k, n = stretches(span, ends);

    for (i = 0; i < n; i++)
        for (k = ends[i][0] + KEYS / 2; k <= ends[i][1] + KEYS / 2; k++) {
            wide[k] += counts[k];
            counts[k] = 0;
        }
}

size_t qz_compact_wide(const uint64_t *wide, const struct qz_span *span,
                       int16_t *keys, double *weights)
{
    int ends[3][2], i, k, n = stretches(span, ends);
    size_t m = 0;

    for (i = 0; i < n; i++)
        for (k = ends[i][0]; k <= ends[i][1]; k++)
            if (wide[k + KEYS / 2] != 0) {
                keys[m] = (int16_t)k;
                weights[m++] = (double)wide[k + KEYS / 2];
            }
    return m;
}
