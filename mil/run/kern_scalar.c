/*
 * Hot loops in portable C: the definition of the results. See kern_priv.h
 * for the order of summation. Not fast: without hardware fma in the
 * baseline instruction set each fmaf is a call.
 */
#include "mil/run/kern_priv.h"

#include "converter/base/cpu.h"

static void lanes_f32(float l[KERN_LANES], const float *w, const float *x,
                      int64_t k)
{
    int64_t i = 0;

    for (int j = 0; j < KERN_LANES; j++)
        l[j] = 0.0f;
    for (; i + KERN_LANES <= k; i += KERN_LANES)
        for (int j = 0; j < KERN_LANES; j++)
            l[j] = fmaf(w[i + j], x[i + j], l[j]);
    for (int j = 0; i + j < k; j++)
        l[j] = fmaf(w[i + j], x[i + j], l[j]);
}

static void gemm_scalar(const struct kern_gemm *g, int64_t m0, int64_t m1,
                        float *scratch)
{
    for (int64_t m = m0; m < m1; m++) {
        const float *w;

        if (g->wh) {
            num_f16_to_f32(scratch, g->wh + m * g->ldw, (size_t)g->k);
            w = scratch;
        } else {
            w = g->w + m * g->ldw;
        }
        for (int64_t n = 0; n < g->n; n++) {
            float l[KERN_LANES], v;

            lanes_f32(l, w, g->x + n * g->ldx, g->k);
            v = kern_lane_sum(l);
            if (g->bias)
                v += g->bias[m];
            g->out[m * g->om + n * g->on] = kern_round(v, g->half);
        }
    }
}

static void vecmat_scalar(const float *x, const float *y, int64_t ldy,
                          int64_t k, float *out, int64_t n0, int64_t n1,
                          const float *bias, bool half)
{
    for (int64_t n = n0; n < n1; n++) {
        float l[KERN_LANES] = { 0 }, v;

        for (int64_t i = 0; i < k; i++)
            l[i % KERN_LANES] = fmaf(x[i], y[i * ldy + n], l[i % KERN_LANES]);
        v = kern_lane_sum(l);
        out[n] = kern_round(bias ? v + *bias : v, half);
    }
}

static void exp_scalar(float *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = kern_exp1(src[i]);
}

static void tanh_scalar(float *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = kern_tanh1(src[i]);
}

static void sigmoid_scalar(float *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = kern_sigmoid1(src[i]);
}

static void silu_scalar(float *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = src[i] * kern_sigmoid1(src[i]);
}

static void softplus_scalar(float *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = kern_softplus1(src[i]);
}

static float sum_scalar(const float *x, size_t n)
{
    float l[KERN_LANES] = { 0 };

    for (size_t i = 0; i < n; i++)
        l[i % KERN_LANES] += x[i];
    return kern_lane_sum(l);
}

static float sum_sq_scalar(const float *x, float mean, size_t n)
{
    float l[KERN_LANES] = { 0 };

    for (size_t i = 0; i < n; i++) {
        float d = x[i] - mean;

        l[i % KERN_LANES] = fmaf(d, d, l[i % KERN_LANES]);
    }
    return kern_lane_sum(l);
}

static float max_scalar(const float *x, size_t n)
{
    float m = -INFINITY;

    for (size_t i = 0; i < n; i++)
        m = x[i] > m || !(x[i] == x[i]) ? x[i] : m;
    return m;
}

static void softmax_scalar(float *dst, const float *src, size_t n)
{
    float m = max_scalar(src, n), s;

    for (size_t i = 0; i < n; i++)
        dst[i] = kern_exp1(src[i] - m);
    s = sum_scalar(dst, n);
    for (size_t i = 0; i < n; i++)
        dst[i] /= s;
}

static void normalize_scalar(float *dst, const float *src, float mean,
                             float inv, const float *gamma, const float *beta,
                             size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v = (src[i] - mean) * inv;

        if (gamma && beta)
            v = fmaf(v, gamma[i], beta[i]);
        else if (gamma)
            v *= gamma[i];
        else if (beta)
            v += beta[i];
        dst[i] = v;
    }
}

/* In blocks, so that both sides stay in the cache. */
static void transpose_scalar(uint32_t *dst, int64_t ldd, const uint32_t *src,
                             int64_t lds, int64_t rows, int64_t cols)
{
    const int64_t block = 16;

    for (int64_t r0 = 0; r0 < rows; r0 += block) {
        int64_t r1 = r0 + block < rows ? r0 + block : rows;

        for (int64_t c0 = 0; c0 < cols; c0 += block) {
            int64_t c1 = c0 + block < cols ? c0 + block : cols;

            for (int64_t c = c0; c < c1; c++)
                for (int64_t r = r0; r < r1; r++)
                    dst[c * ldd + r] = src[r * lds + c];
        }
    }
}

const struct kern kern_scalar = {
    .name = "scalar",
    .gemm = gemm_scalar,
    .vecmat = vecmat_scalar,
    .exp = exp_scalar,
    .tanh = tanh_scalar,
    .sigmoid = sigmoid_scalar,
    .silu = silu_scalar,
    .softplus = softplus_scalar,
    .round = num_round_f16,
    .sum = sum_scalar,
    .sum_sq = sum_sq_scalar,
    .max = max_scalar,
    .softmax = softmax_scalar,
    .normalize = normalize_scalar,
    .transpose = transpose_scalar,
};

const struct kern *kern_get(void)
{
#if defined(__x86_64__)
    if (cpu_features() & CPU_AVX2)
        return &kern_avx2;
#endif
    return &kern_scalar;
}
