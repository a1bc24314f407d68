/*
 * Formulas of the reference; see oracle_math.h. Block functions are one
 * inline body that is compiled twice, for any processor and for AVX2 with
 * FMA; both give the same bits because each rounding is spelled out.
 */
#include "models/oracle_math.h"

#include <math.h>
#include <string.h>

#include "converter/base/cpu.h"

void oracle_norm_row(enum norm_form form, const float *x, const float *w,
                     size_t n, double eps, float *y)
{
    double part[8] = { 0 }, sum = 0, scale;

    for (size_t i = 0; i < n; i++)
        part[i % 8] += (double)x[i] * (double)x[i];
    for (size_t q = 0; q < 8; q++)
        sum += part[q];
    scale = 1 / sqrt(sum / (double)n + eps);
    for (size_t i = 0; i < n; i++) {
        double u = (double)x[i] * scale;

        if (form == NORM_PLAIN)
            u *= (double)w[i];
        else if (form == NORM_CENTRED)
            u *= 1 + (double)w[i];
        y[i] = (float)u;
    }
}

/* theta^(2i/dim), in the float32 steps of a tensor expression. */
static float rope_period(const struct rope_params *r, int i)
{
    float exponent = (float)(2 * i) / (float)r->dim;

    return (float)pow((double)(float)r->theta, (double)exponent);
}

static const double two_pi = 6.283185307179586476925286766559;

/* Long waves are divided by `factor`, short ones kept, blended between. */
static float llama3_freq(const struct rope_params *r, float f)
{
    float wave = (float)two_pi / f;
    float low_wave = (float)(r->original_max / r->low_freq_factor);
    float high_wave = (float)(r->original_max / r->high_freq_factor);
    float factor = (float)r->factor, low = (float)r->low_freq_factor, smooth;

    if (wave > low_wave)
        return f / factor;
    if (wave < high_wave)
        return f;
    smooth = ((float)r->original_max / wave - low) /
             (float)(r->high_freq_factor - r->low_freq_factor);
    return (1.0f - smooth) * f / factor + smooth * f;
}

/* Index, as a fraction, of the frequency that turns `turns` times within the
 * original context. */
static double yarn_index(const struct rope_params *r, double turns)
{
    return r->dim * log(r->original_max / (turns * two_pi)) /
           (2 * log(r->theta));
}

static void yarn_freqs(const struct rope_params *r, float *f)
{
    double low = yarn_index(r, r->beta_fast);
    double high = yarn_index(r, r->beta_slow);

    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    if (low < 0)
        low = 0;
    if (high > r->dim - 1)
        high = r->dim - 1;
    if (low == high)
        high += 0.001;
    for (int i = 0; i < r->dim / 2; i++) {
        float period = rope_period(r, i);
        float kept = 1.0f / period;
        float stretched = 1.0f / ((float)r->factor * period);
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float keep;

        if (ramp < 0)
            ramp = 0;
        if (ramp > 1)
            ramp = 1;
        keep = 1.0f - ramp;
        f[i] = stretched * (1.0f - keep) + kept * keep;
    }
}

/* The exponents run over the whole head, but only the first angles turn. */
static void proportional_freqs(const struct rope_params *r, float *f)
{
    for (int i = 0; i < r->dim / 2; i++)
        f[i] =
            (i < r->live ? 1.0f / rope_period(r, i) : 0.0f) / (float)r->factor;
}

int oracle_rope_freq(const struct rope_params *r, float *f, struct err *e)
{
    switch (r->type) {
    case ROPE_DEFAULT:
    case ROPE_LINEAR:
    case ROPE_LLAMA3:
        for (int i = 0; i < r->dim / 2; i++) {
            f[i] = 1.0f / rope_period(r, i);
            if (r->type == ROPE_LINEAR)
                f[i] /= (float)r->factor;
            if (r->type == ROPE_LLAMA3)
                f[i] = llama3_freq(r, f[i]);
        }
        break;
    case ROPE_YARN: yarn_freqs(r, f); break;
    case ROPE_PROPORTIONAL: proportional_freqs(r, f); break;
    default:
        return err_set(e, ERR_UNSUPPORTED, "rope type %d has no reference",
                       (int)r->type);
    }
    for (int i = 0; i < r->dim / 2; i++) {
        if (!isfinite(f[i]))
            return err_set(e, ERR_INPUT,
                           "rope frequency %d of %d is not finite", i,
                           r->dim / 2);
    }
    return 0;
}

void oracle_rope_row(const struct rope_params *r, const float *f, int64_t pos,
                     float *cos_row, float *sin_row)
{
    float scaling = (float)r->attention_scaling;

    for (int i = 0; i < r->dim / 2; i++) {
        float angle = (float)pos * f[i];

        cos_row[i] = (float)cos((double)angle) * scaling;
        sin_row[i] = (float)sin((double)angle) * scaling;
    }
}

void oracle_rotate(enum rope_pairing pairing, float *head, int dim,
                   const float *cos_row, const float *sin_row)
{
    int half = dim / 2;

    for (int i = 0; i < half; i++) {
        int a = pairing == ROPE_HALVES ? i : 2 * i;
        int b = pairing == ROPE_HALVES ? i + half : 2 * i + 1;
        float x = head[a], y = head[b];

        head[a] = x * cos_row[i] - y * sin_row[i];
        head[b] = y * cos_row[i] + x * sin_row[i];
    }
}

/*
 * e^x = 2^n e^r with r = x - n ln 2, |r| <= 0.35; e^r by its series to the
 * seventh power (the next term is below 6e-9). n is rounded by adding
 * 1.5 * 2^23, whose last bits then hold it: no conversion that a NaN could
 * upset. ln 2 is cut in two so that n times the first part is exact.
 */
static inline float exp_one(float x)
{
    const float magic = 12582912.0f;
    float c = x < -87.0f ? -87.0f : x;
    float t, n, r, p, scale;
    uint32_t bits;

    c = c > 88.0f ? 88.0f : c;
    t = fmaf(c, 1.44269504088896341f, magic);
    n = t - magic;
    r = fmaf(n, -0.693145751953125f, c);
    r = fmaf(n, -1.42860682030941723e-6f, r);
    p = 1.98412698e-4f;
    p = fmaf(p, r, 1.38888889e-3f);
    p = fmaf(p, r, 8.33333333e-3f);
    p = fmaf(p, r, 4.16666667e-2f);
    p = fmaf(p, r, 1.66666667e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    memcpy(&bits, &t, sizeof(bits));
    bits = (bits - 0x4b400000u + 127u) << 23;
    memcpy(&scale, &bits, sizeof(scale));
    p *= scale;
    return x < -87.0f ? 0.0f : p;
}

static inline void exp_body(float *x, size_t n, float shift)
{
    for (size_t i = 0; i < n; i++)
        x[i] = exp_one(x[i] - shift);
}

static inline void silu_mul_body(float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++)
        g[i] = g[i] / (1.0f + exp_one(-g[i])) * u[i];
}

/* (1 + tanh z) / 2 is the sigmoid of 2 z. */
static inline void gelu_mul_body(float *g, const float *u, size_t n)
{
    const float twice_root = 1.59576912160573071f; /* 2 sqrt(2 / pi) */

    for (size_t i = 0; i < n; i++) {
        float x = g[i];
        float z = twice_root * (x + 0.044715f * x * x * x);

        g[i] = x / (1.0f + exp_one(-z)) * u[i];
    }
}

static inline void act_mul_body(enum oracle_act act, float *g, const float *u,
                                size_t n)
{
    if (act == ACT_SILU)
        silu_mul_body(g, u, n);
    else
        gelu_mul_body(g, u, n);
}

#if defined(__x86_64__)
ATTR_TARGET("avx2,fma,f16c")
static void exp_avx2(float *x, size_t n, float shift)
{
    exp_body(x, n, shift);
}

ATTR_TARGET("avx2,fma,f16c")
static void act_mul_avx2(enum oracle_act act, float *g, const float *u,
                         size_t n)
{
    act_mul_body(act, g, u, n);
}
#endif

void oracle_exp_block(float *x, size_t n, float shift)
{
#if defined(__x86_64__)
    if (cpu_features() & CPU_AVX2) {
        exp_avx2(x, n, shift);
        return;
    }
#endif
    exp_body(x, n, shift);
}

void oracle_act_mul(enum oracle_act act, float *g, const float *u, size_t n)
{
#if defined(__x86_64__)
    if (cpu_features() & CPU_AVX2) {
        act_mul_avx2(act, g, u, n);
        return;
    }
#endif
    act_mul_body(act, g, u, n);
}
