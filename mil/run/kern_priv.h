/*
 * Hot loops behind a table: the scalar set defines the results, the others
 * give the same bits.
 *
 * Every sum of this runtime is taken in one order, whatever the shape of the
 * product, the instruction set or the number of threads: term k goes to lane
 * k mod 8, lanes grow in order of k (products by fused multiply-add), and
 * the eight lanes are added as ((0+4)+(2+6)) + ((1+5)+(3+7)). Hence a
 * position's result does not depend on how many positions are computed with
 * it, and prefill and token-by-token calls agree bit for bit.
 */
#ifndef RUN_KERN_PRIV_H
#define RUN_KERN_PRIV_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "converter/base/num.h"

#define KERN_LANES 8

/*
 * out[m * om + n * on] = round(sum_k w[m][k] * x[n][k] + bias[m])
 * Rows of w are float or half, rows of x are float; both contiguous in k.
 */
struct kern_gemm {
    const float *w;  /* one of w and wh */
    const f16_t *wh; /* half rows */
    int64_t ldw;
    const float *x;
    int64_t ldx;
    int64_t n, k;
    const float *bias; /* by m; NULL: none */
    float *out;
    int64_t om, on;
    bool half; /* round results to half */
};
/* Floats of scratch that one worker of gemm needs. */
static inline int64_t kern_gemm_scratch(int64_t k)
{
    return 4 * ((k + 16) / 16 * 16); /* never none */
}

struct kern {
    const char *name;
    /* Rows m0 .. m1-1 of the product. */
    void (*gemm)(const struct kern_gemm *g, int64_t m0, int64_t m1,
                 float *scratch);
    /* out[n] = round(sum_k x[k] * y[k * ldy + n] + *bias), n in [n0, n1). */
    void (*vecmat)(const float *x, const float *y, int64_t ldy, int64_t k,
                   float *out, int64_t n0, int64_t n1, const float *bias,
                   bool half);
    void (*exp)(float *dst, const float *src, size_t n);
    void (*tanh)(float *dst, const float *src, size_t n);
    void (*sigmoid)(float *dst, const float *src, size_t n);
    void (*silu)(float *dst, const float *src, size_t n);
    void (*softplus)(float *dst, const float *src, size_t n);
    /* To the nearest half and back; dst == src allowed. Products round as
     * they store, everything else through this. */
    void (*round)(float *dst, const float *src, size_t n);
    float (*sum)(const float *x, size_t n);
    float (*sum_sq)(const float *x, float mean, size_t n); /* (x - mean)^2 */
    float (*max)(const float *x, size_t n);                /* NaN if any */
    void (*softmax)(float *dst, const float *src, size_t n);
    /* (x - mean) * inv, then gamma and beta where not NULL. */
    void (*normalize)(float *dst, const float *src, float mean, float inv,
                      const float *gamma, const float *beta, size_t n);
    /* dst[c * ldd + r] = src[r * lds + c]; 4-byte elements of any kind. */
    void (*transpose)(uint32_t *dst, int64_t ldd, const uint32_t *src,
                      int64_t lds, int64_t rows, int64_t cols);
};
/* The best set that cpu_features() allows now. */
const struct kern *kern_get(void);
/* Puts the Neural Engine's arithmetic into a set (kern_ane.c). */
void kern_use_ane(struct kern *k);
extern const struct kern kern_scalar;
#if defined(__x86_64__)
extern const struct kern kern_avx2;
#endif

/* ---- scalar definitions ---- */

static inline uint32_t kern_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}
static inline float kern_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}
static inline float kern_round(float v, bool half)
{
    return half ? f16_to_f32(f32_to_f16(v)) : v;
}
static inline float kern_lane_sum(const float l[KERN_LANES])
{
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

/*
 * exp: x = n ln 2 + r, |r| <= ln 2 / 2, e^r = 1 + r + r^2 q(r) with q of
 * degree 4 (minimax, relative error 3.1e-9), scaled in two steps so that
 * subnormal results are rounded once.
 */
#define KERN_EXP_HI 89.0f
#define KERN_EXP_LO -104.0f
#define KERN_LOG2E 1.44269504089f
#define KERN_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to integer */
#define KERN_LN2_HI 0.693145751953125f
#define KERN_LN2_LO 1.42860682030941723212e-6f
#define KERN_EXP_Q0 0.499999934125f
#define KERN_EXP_Q1 0.166665201078f
#define KERN_EXP_Q2 0.0416683942109f
#define KERN_EXP_Q3 0.00836878041118f
#define KERN_EXP_Q4 0.00138144670593f

static inline float kern_exp1(float x)
{
    float t, n, r, q, p;
    int32_t i, a;

    x = KERN_EXP_HI < x ? KERN_EXP_HI : x;
    x = KERN_EXP_LO > x ? KERN_EXP_LO : x;
    t = fmaf(x, KERN_LOG2E, KERN_MAGIC);
    n = t - KERN_MAGIC;
    r = fmaf(n, -KERN_LN2_HI, x);
    r = fmaf(n, -KERN_LN2_LO, r);
    q = fmaf(KERN_EXP_Q4, r, KERN_EXP_Q3);
    q = fmaf(q, r, KERN_EXP_Q2);
    q = fmaf(q, r, KERN_EXP_Q1);
    q = fmaf(q, r, KERN_EXP_Q0);
    p = fmaf(q, r * r, r) + 1.0f;
    if (!(x == x))
        return x;
    i = (int32_t)(kern_bits(t) - kern_bits(KERN_MAGIC));
    a = i < 0 ? -((1 - i) / 2) : i / 2; /* floor(i / 2) */
    p *= kern_from_bits((uint32_t)(a + 127) << 23);
    return p * kern_from_bits((uint32_t)(i - a + 127) << 23);
}

/*
 * tanh: below 0.625 an odd polynomial (minimax, relative error 4.2e-9),
 * above 1 - 2 / (e^2|x| + 1).
 */
#define KERN_TANH_SMALL 0.625f
#define KERN_TANH_Q0 -0.333332839253f
#define KERN_TANH_Q1 0.133314912887f
#define KERN_TANH_Q2 -0.0537434982112f
#define KERN_TANH_Q3 0.0206505876965f
#define KERN_TANH_Q4 -0.00571704547811f

static inline float kern_tanh1(float x)
{
    float a = fabsf(x), u, q, y;

    if (a < KERN_TANH_SMALL) {
        u = x * x;
        q = fmaf(KERN_TANH_Q4, u, KERN_TANH_Q3);
        q = fmaf(q, u, KERN_TANH_Q2);
        q = fmaf(q, u, KERN_TANH_Q1);
        q = fmaf(q, u, KERN_TANH_Q0);
        return copysignf(fmaf(q * u, x, x), x); /* keeps -0 */
    }
    y = 1.0f - 2.0f / (kern_exp1(a + a) + 1.0f);
    return x < 0.0f ? -y : y;
}

/* sigmoid from e^-|x|, so that neither side overflows. */
static inline float kern_sigmoid1(float x)
{
    float e = kern_exp1(-fabsf(x));

    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* By the C library, at every level. */
static inline float kern_softplus1(float x)
{
    return log1pf(expf(-fabsf(x))) + (x > 0.0f ? x : 0.0f);
}

#endif
