/*
 * The arithmetic of the ANE profile: fp16 with the ways of the Neural Engine
 * that make a sound fp16 graph fail there. Nothing here was measured by this
 * project: each rule follows a published report of what the hardware does,
 * rounded to its bad side where reports differ.
 *
 * - A result that is subnormal in fp16 is zero, and so is each product inside
 *   a convolution or matmul: |p| < 2^-14 adds nothing. Sums are float32.
 *   (Reported with recurrent states: q^T S loses its small terms although the
 *   sum is large.) Constants are taken as they are stored.
 * - sigmoid comes from a coarse table: the reports say errors up to 0.015 and
 *   a large relative error near zero. Here it is rounded to the nearest
 *   multiple of 1/32, whose largest error is 1/64 = 0.0156. silu, and gelu by
 *   a sigmoid, are built on it.
 * - softplus is ln(1 + e^x) taken literally: where e^x leaves the range of
 *   the exponential it returns 0. Reports place the cliff at 10.4 (ln 32752)
 *   or 11.09 (ln 65504) by chip; here it is the lower one.
 * - softmax does not handle infinities: a row that holds one is NaN.
 */
#include "converter/base/compiler.h"
#include "converter/base/cpu.h"
#include "mil/run/kern_priv.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define NORMAL_MIN 6.103515625e-05f /* 2^-14 */
#define SIGMOID_STEPS 32.0f
#define SOFTPLUS_CLIFF 10.3967f

static inline float flush(float v)
{
    return fabsf(v) < NORMAL_MIN ? copysignf(0.0f, v) : v;
}

static inline float put(float v, bool half)
{
    return half ? flush(kern_round(v, true)) : v;
}

/* ---- products: the order of kern_priv.h ---- */

/* Halves multiply exactly in float32, so that only the flush is new: where
 * nothing is flushed a sum has the bits of the fused one. */
static inline float add_product(float sum, float a, float b)
{
    float p = a * b;

    return sum + (fabsf(p) < NORMAL_MIN ? 0.0f : p);
}

static float dot(const float *a, const float *b, int64_t k)
{
    float l[KERN_LANES] = { 0 };

    for (int64_t i = 0; i < k; i++)
        l[i % KERN_LANES] = add_product(l[i % KERN_LANES], a[i], b[i]);
    return kern_lane_sum(l);
}

static void vecmat_flush(const float *x, const float *y, int64_t ldy, int64_t k,
                         float *out, int64_t n0, int64_t n1, const float *bias,
                         bool half)
{
    for (int64_t n = n0; n < n1; n++) {
        float l[KERN_LANES] = { 0 }, v;

        for (int64_t i = 0; i < k; i++)
            l[i % KERN_LANES] =
                add_product(l[i % KERN_LANES], x[i], y[i * ldy + n]);
        v = kern_lane_sum(l);
        out[n] = put(bias ? v + *bias : v, half);
    }
}

/* Products of rows, by one function for the sum. */
static void gemm_by(float (*sum)(const float *a, const float *b, int64_t k),
                    const struct kern_gemm *g, int64_t m0, int64_t m1,
                    float *scratch)
{
    for (int64_t m = m0; m < m1; m++) {
        const float *w = scratch;

        if (g->wh)
            num_f16_to_f32(scratch, g->wh + m * g->ldw, (size_t)g->k);
        else
            w = g->w + m * g->ldw;
        for (int64_t n = 0; n < g->n; n++) {
            float v = sum(w, g->x + n * g->ldx, g->k);

            if (g->bias)
                v += g->bias[m];
            g->out[m * g->om + n * g->on] = put(v, g->half);
        }
    }
}

static void gemm_flush(const struct kern_gemm *g, int64_t m0, int64_t m1,
                       float *scratch)
{
    gemm_by(dot, g, m0, m1, scratch);
}

#if defined(__x86_64__)
#define AVX2 ATTR_TARGET("avx2")

AVX2 static inline __m256 add_products(__m256 sum, __m256 a, __m256 b)
{
    __m256 p = _mm256_mul_ps(a, b);
    __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), p);
    __m256 keep = _mm256_cmp_ps(size, _mm256_set1_ps(NORMAL_MIN), _CMP_NLT_UQ);

    return _mm256_add_ps(sum, _mm256_and_ps(p, keep));
}

AVX2 static float dot_avx2(const float *a, const float *b, int64_t k)
{
    __m256 sum = _mm256_setzero_ps();
    float l[KERN_LANES];
    int64_t i = 0;

    for (; i + KERN_LANES <= k; i += KERN_LANES)
        sum = add_products(sum, _mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
    _mm256_storeu_ps(l, sum);
    for (int j = 0; i + j < k; j++)
        l[j] = add_product(l[j], a[i + j], b[i + j]);
    return kern_lane_sum(l);
}

AVX2 static void vecmat_avx2(const float *x, const float *y, int64_t ldy,
                             int64_t k, float *out, int64_t n0, int64_t n1,
                             const float *bias, bool half)
{
    int64_t n = n0;

    for (; n + KERN_LANES <= n1; n += KERN_LANES) {
        float columns[KERN_LANES][KERN_LANES], l[KERN_LANES];
        __m256 sum[KERN_LANES];

        for (int j = 0; j < KERN_LANES; j++)
            sum[j] = _mm256_setzero_ps();
        for (int64_t i = 0; i < k; i++)
            sum[i % KERN_LANES] =
                add_products(sum[i % KERN_LANES], _mm256_broadcast_ss(x + i),
                             _mm256_loadu_ps(y + i * ldy + n));
        for (int j = 0; j < KERN_LANES; j++)
            _mm256_storeu_ps(columns[j], sum[j]);
        for (int c = 0; c < KERN_LANES; c++) {
            for (int j = 0; j < KERN_LANES; j++)
                l[j] = columns[j][c];
            l[0] = kern_lane_sum(l);
            out[n + c] = put(bias ? l[0] + *bias : l[0], half);
        }
    }
    vecmat_flush(x, y, ldy, k, out, n, n1, bias, half);
}

static void gemm_avx2(const struct kern_gemm *g, int64_t m0, int64_t m1,
                      float *scratch)
{
    gemm_by(dot_avx2, g, m0, m1, scratch);
}
#endif

/* ---- everything else ---- */

static void round_flush(float *dst, const float *src, size_t n)
{
    num_round_f16(dst, src, n);
    for (size_t i = 0; i < n; i++)
        dst[i] = flush(dst[i]);
}

static void sigmoid_coarse(float *dst, const float *src, size_t n)
{
    kern_get()->sigmoid(dst, src, n);
    for (size_t i = 0; i < n; i++)
        dst[i] = rintf(dst[i] * SIGMOID_STEPS) / SIGMOID_STEPS;
}

static void silu_coarse(float *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float s;

        sigmoid_coarse(&s, &src[i], 1);
        dst[i] = src[i] * s;
    }
}

static void softplus_literal(float *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = src[i] > SOFTPLUS_CLIFF ? 0.0f : kern_softplus1(src[i]);
}

static void softmax_finite(float *dst, const float *src, size_t n)
{
    bool bad = false;

    for (size_t i = 0; i < n; i++)
        bad = bad || fabsf(src[i]) == INFINITY;
    if (!bad) {
        kern_get()->softmax(dst, src, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        dst[i] = NAN;
}

void kern_use_ane(struct kern *k)
{
    k->gemm = gemm_flush;
    k->vecmat = vecmat_flush;
#if defined(__x86_64__)
    if (cpu_features() & CPU_AVX2) {
        k->gemm = gemm_avx2;
        k->vecmat = vecmat_avx2;
    }
#endif
    k->round = round_flush;
    k->sigmoid = sigmoid_coarse;
    k->silu = silu_coarse;
    k->softplus = softplus_literal;
    k->softmax = softmax_finite;
}
