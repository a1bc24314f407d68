/*
 * Blocks of numbers: conversion and statistics, scalar and AVX2 + F16C with
 * the same bits. Sources may stand at any address (file bytes). 16- and
 * 32-bit elements in memory are little-endian on the source side of file
 * data and native in results, as everywhere on the hosts that we build for.
 */
#include "converter/base/num.h"

#include "converter/base/cpu.h"
#include "converter/base/num_priv.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define BLOCK_TARGET ATTR_TARGET("avx2,fma,f16c")
#endif

static void scalar_f16_to_f32(float *dst, const unsigned char *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = num_f32_of(num_half_widen(num_le16(src + 2 * i)));
}

static void scalar_f32_to_f16(f16_t *dst, const unsigned char *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = num_half_narrow(num_le32(src + 4 * i));
}

static void scalar_bf16_to_f32(float *dst, const unsigned char *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = num_f32_of(num_bf16_widen(num_le16(src + 2 * i)));
}

static void scalar_bf16_to_f16(f16_t *dst, const unsigned char *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = num_half_narrow(num_bf16_widen(num_le16(src + 2 * i)));
}

static void scalar_f32_to_bf16(bf16_t *dst, const unsigned char *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = num_bf16_narrow(num_le32(src + 4 * i));
}

static void scalar_round_f16(float *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] =
            num_f32_of(num_half_widen(num_half_narrow(num_f32_bits(src[i]))));
}

static void count_one(struct num_stats *s, uint32_t a, uint64_t index)
{
    if (a >= F32_BITS_INF) {
        if (s->nan + s->inf == 0)
            s->first_bad = index;
        if (a > F32_BITS_INF)
            s->nan++;
        else
            s->inf++;
        return;
    }
    if (a >= F32_BITS_ABOVE_F16) {
        if (s->above_f16 == 0)
            s->first_above = index;
        s->above_f16++;
    }
    if (a > 0 && a < F32_BITS_NORMAL_F16)
        s->sub_f16++;
    if (a > num_f32_bits(s->max_abs))
        s->max_abs = num_f32_of(a);
}

static void scalar_stats(struct num_stats *s, const float *src, size_t n,
                         uint64_t base)
{
    for (size_t i = 0; i < n; i++)
        count_one(s, num_f32_bits(src[i]) & 0x7fffffff, base + i);
}

#if defined(__x86_64__)
/* Rounds as the scalar code, whatever the state of MXCSR. */
#define TO_HALF(v) \
    _mm256_cvtps_ph((v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

BLOCK_TARGET
static size_t avx2_f16_to_f32(float *dst, const unsigned char *src, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m128i h =
            _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));

        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(h));
    }
    return i;
}

BLOCK_TARGET
static size_t avx2_f32_to_f16(f16_t *dst, const unsigned char *src, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256i v =
            _mm256_loadu_si256((const __m256i *)(const void *)(src + 4 * i));

        _mm_storeu_si128((__m128i *)(void *)(dst + i),
                         TO_HALF(_mm256_castsi256_ps(v)));
    }
    return i;
}

/* 8 bfloat16 as float bits, signalling NaNs made quiet. */
BLOCK_TARGET
static __m256i avx2_widen_bf16(__m128i b)
{
    __m256i v = _mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16);
    __m256i a = _mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(a, _mm256_set1_epi32((int)F32_BITS_INF));

    return _mm256_or_si256(v,
                           _mm256_and_si256(nan, _mm256_set1_epi32(0x400000)));
}

BLOCK_TARGET
static size_t avx2_bf16_to_f32(float *dst, const unsigned char *src, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m128i b =
            _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));

        _mm256_storeu_si256((__m256i *)(void *)(dst + i), avx2_widen_bf16(b));
    }
    return i;
}

/* cvtps_ph makes NaNs quiet itself. */
BLOCK_TARGET
static size_t avx2_bf16_to_f16(f16_t *dst, const unsigned char *src, size_t n)
{
    const __m256i zero = _mm256_setzero_si256();
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m256i b =
            _mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * i));
        /* Per 128-bit lane: 0-3 and 8-11, 4-7 and 12-15. */
        __m256i lo = _mm256_unpacklo_epi16(zero, b);
        __m256i hi = _mm256_unpackhi_epi16(zero, b);
        __m128i hl = TO_HALF(_mm256_castsi256_ps(lo));
        __m128i hh = TO_HALF(_mm256_castsi256_ps(hi));

        _mm_storeu_si128((__m128i *)(void *)(dst + i),
                         _mm_unpacklo_epi64(hl, hh));
        _mm_storeu_si128((__m128i *)(void *)(dst + i + 8),
                         _mm_unpackhi_epi64(hl, hh));
    }
    return i;
}

BLOCK_TARGET
static size_t avx2_f32_to_bf16(bf16_t *dst, const unsigned char *src, size_t n)
{
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i bias = _mm256_set1_epi32(0x7fff);
    const __m256i mag = _mm256_set1_epi32(0x7fffffff);
    const __m256i inf = _mm256_set1_epi32((int)F32_BITS_INF);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256i x =
            _mm256_loadu_si256((const __m256i *)(const void *)(src + 4 * i));
        __m256i top = _mm256_srli_epi32(x, 16);
        __m256i odd = _mm256_and_si256(top, one);
        __m256i r =
            _mm256_srli_epi32(_mm256_add_epi32(x, _mm256_add_epi32(bias, odd)),
                              16);
        __m256i nan = _mm256_cmpgt_epi32(_mm256_and_si256(x, mag), inf);
        __m256i q = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
        __m256i v = _mm256_blendv_epi8(r, q, nan);
        __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(v),
                                          _mm256_extracti128_si256(v, 1));

        _mm_storeu_si128((__m128i *)(void *)(dst + i), packed);
    }
    return i;
}

BLOCK_TARGET
static size_t avx2_round_f16(float *dst, const float *src, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i,
                         _mm256_cvtph_ps(TO_HALF(_mm256_loadu_ps(src + i))));
    return i;
}

BLOCK_TARGET
static uint32_t avx2_max_u31(__m256i v)
{
    uint32_t lane[8], m = 0;

    _mm256_storeu_si256((__m256i *)(void *)lane, v);
    for (int i = 0; i < 8; i++)
        m = lane[i] > m ? lane[i] : m;
    return m;
}

BLOCK_TARGET
static uint64_t avx2_sum_u32(__m256i v)
{
    uint32_t lane[8];
    uint64_t sum = 0;

    _mm256_storeu_si256((__m256i *)(void *)lane, v);
    for (int i = 0; i < 8; i++)
        sum += lane[i];
    return sum;
}

/* Statistics of one block of at most 2^16 floats. Blocks that hold anything
 * to report are rare and go through the scalar code. */
BLOCK_TARGET
static void avx2_stats_block(struct num_stats *s, const float *src, size_t n,
                             uint64_t base)
{
    const __m256i mag = _mm256_set1_epi32(0x7fffffff);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i limit = _mm256_set1_epi32((int)F32_BITS_NORMAL_F16);
    __m256i max = zero, sub = zero;
    uint32_t top;
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256i x =
            _mm256_loadu_si256((const __m256i *)(const void *)(src + i));
        __m256i a = _mm256_and_si256(x, mag);
        __m256i small = _mm256_cmpgt_epi32(limit, a);
        __m256i some = _mm256_cmpgt_epi32(a, zero);

        max = _mm256_max_epi32(max, a);
        sub = _mm256_sub_epi32(sub, _mm256_and_si256(small, some));
    }
    top = avx2_max_u31(max);
    if (top >= F32_BITS_ABOVE_F16) {
        scalar_stats(s, src, n, base);
        return;
    }
    s->sub_f16 += avx2_sum_u32(sub);
    if (top > num_f32_bits(s->max_abs))
        s->max_abs = num_f32_of(top);
    scalar_stats(s, src + i, n - i, base + i);
}

#define HAVE_BLOCK_SIMD() ((cpu_features() & CPU_AVX2) != 0)
#define SIMD(call) (HAVE_BLOCK_SIMD() ? (call) : 0)
#else
#define HAVE_BLOCK_SIMD() 0
#define SIMD(call) 0
#endif

void num_f16_to_f32(float *dst, const void *src, size_t n)
{
    size_t i = SIMD(avx2_f16_to_f32(dst, src, n));

    scalar_f16_to_f32(dst + i, (const unsigned char *)src + 2 * i, n - i);
}

void num_f32_to_f16(f16_t *dst, const void *src, size_t n)
{
    size_t i = SIMD(avx2_f32_to_f16(dst, src, n));

    scalar_f32_to_f16(dst + i, (const unsigned char *)src + 4 * i, n - i);
}

void num_bf16_to_f32(float *dst, const void *src, size_t n)
{
    size_t i = SIMD(avx2_bf16_to_f32(dst, src, n));

    scalar_bf16_to_f32(dst + i, (const unsigned char *)src + 2 * i, n - i);
}

void num_bf16_to_f16(f16_t *dst, const void *src, size_t n)
{
    size_t i = SIMD(avx2_bf16_to_f16(dst, src, n));

    scalar_bf16_to_f16(dst + i, (const unsigned char *)src + 2 * i, n - i);
}

void num_f32_to_bf16(bf16_t *dst, const void *src, size_t n)
{
    size_t i = SIMD(avx2_f32_to_bf16(dst, src, n));

    scalar_f32_to_bf16(dst + i, (const unsigned char *)src + 4 * i, n - i);
}

void num_round_f16(float *dst, const float *src, size_t n)
{
    size_t i = SIMD(avx2_round_f16(dst, src, n));

    scalar_round_f16(dst + i, src + i, n - i);
}

void num_stats_f32(struct num_stats *s, const float *src, size_t n,
                   uint64_t base)
{
    s->n += n;
#if defined(__x86_64__)
    if (HAVE_BLOCK_SIMD()) {
        const size_t step = 4096;

        for (size_t i = 0; i < n; i += step)
            avx2_stats_block(s, src + i, n - i < step ? n - i : step, base + i);
        return;
    }
#endif
    scalar_stats(s, src, n, base);
}
