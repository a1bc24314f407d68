/*
 * Hot loops with AVX2, FMA and F16C: the same bits as kern_scalar.c. Lanes of
 * a vector are the lanes of the summation order (kern_priv.h).
 *
 * The product works on tiles of 4 weight rows by 3 positions, twelve
 * accumulators; half rows are widened once per four rows. With one position
 * it streams eight rows at a time and widens as it goes: memory-bound.
 */
#include "mil/run/kern_priv.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "converter/base/compiler.h"

#define AVX2 ATTR_TARGET("avx2,fma,f16c")

/* n < 8 floats, zero beyond. */
AVX2 static inline __m256 load_part(const float *p, int64_t n)
{
    static const int32_t ones[16] = { -1, -1, -1, -1, -1, -1, -1, -1,
                                      0,  0,  0,  0,  0,  0,  0,  0 };
    __m256i mask = _mm256_loadu_si256((const __m256i *)(ones + 8 - n));

    return _mm256_maskload_ps(p, mask);
}

AVX2 static inline void store_part(float *p, __m256 v, int64_t n)
{
    float t[8];

    _mm256_storeu_ps(t, v);
    memcpy(p, t, (size_t)n * sizeof(float));
}

AVX2 static inline __m256 load_half(const f16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

AVX2 static inline __m256 load_half_part(const f16_t *p, int64_t n)
{
    f16_t t[8] = { 0 };

    memcpy(t, p, (size_t)n * sizeof(f16_t));
    return load_half(t);
}

AVX2 static inline float lane_sum(__m256 v)
{
    __m128 t =
        _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 u = _mm_add_ps(t, _mm_movehl_ps(t, t));

    return _mm_cvtss_f32(_mm_add_ss(u, _mm_shuffle_ps(u, u, 1)));
}

/* Lane sums of four vectors at once, in the same order. */
AVX2 static inline __m128 lane_sum4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m128 ta =
        _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 tb =
        _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    __m128 tc =
        _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
    __m128 td =
        _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));

    _MM_TRANSPOSE4_PS(ta, tb, tc, td);
    return _mm_add_ps(_mm_add_ps(ta, tc), _mm_add_ps(tb, td));
}

AVX2 static inline __m128 round4(__m128 v)
{
    return _mm_cvtph_ps(_mm_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

AVX2 static inline __m256 round8(__m256 v)
{
    return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* Four results of rows m .. m+3 (rows of them valid) at position n. */
AVX2 static inline void put4(const struct kern_gemm *g, int64_t m, int64_t rows,
                             int64_t n, __m128 v)
{
    float *out = g->out + m * g->om + n * g->on;
    float t[4];

    if (g->bias) {
        float b[4] = { 0 };

        memcpy(b, g->bias + m, (size_t)rows * sizeof(float));
        v = _mm_add_ps(v, _mm_loadu_ps(b));
    }
    if (g->half)
        v = round4(v);
    if (g->om == 1 && rows == 4) {
        _mm_storeu_ps(out, v);
        return;
    }
    _mm_storeu_ps(t, v);
    for (int64_t r = 0; r < rows; r++)
        out[r * g->om] = t[r];
}

/* A tile of 4 rows (row i at w + i * ldw) by C positions. */
#define TILE(C)                                                                \
    AVX2 static void tile4x##C(const struct kern_gemm *g, const float *w,      \
                               int64_t ldw, int64_t m, int64_t rows,           \
                               int64_t n)                                      \
    {                                                                          \
        const float *x = g->x + n * g->ldx;                                    \
        int64_t ldx = g->ldx, k = g->k, i = 0;                                 \
        __m256 acc[4][C];                                                      \
                                                                               \
        for (int r = 0; r < 4; r++)                                            \
            for (int c = 0; c < C; c++)                                        \
                acc[r][c] = _mm256_setzero_ps();                               \
        for (; i + 8 <= k; i += 8) {                                           \
            __m256 xv[C];                                                      \
                                                                               \
            for (int c = 0; c < C; c++)                                        \
                xv[c] = _mm256_loadu_ps(x + c * ldx + i);                      \
            for (int r = 0; r < 4; r++) {                                      \
                __m256 wv = _mm256_loadu_ps(w + r * ldw + i);                  \
                                                                               \
                for (int c = 0; c < C; c++)                                    \
                    acc[r][c] = _mm256_fmadd_ps(wv, xv[c], acc[r][c]);         \
            }                                                                  \
        }                                                                      \
        if (i < k) {                                                           \
            for (int c = 0; c < C; c++) {                                      \
                __m256 xv = load_part(x + c * ldx + i, k - i);                 \
                                                                               \
                for (int r = 0; r < 4; r++)                                    \
                    acc[r][c] =                                                \
                        _mm256_fmadd_ps(load_part(w + r * ldw + i, k - i), xv, \
                                        acc[r][c]);                            \
            }                                                                  \
        }                                                                      \
        for (int c = 0; c < C; c++)                                            \
            put4(g, m, rows, n + c,                                            \
                 lane_sum4(acc[0][c], acc[1][c], acc[2][c], acc[3][c]));       \
    }
TILE(1)
TILE(2)
TILE(3)

/* Asks for one cache line of each of the eight rows behind those at p: eight
 * streams are more than the hardware follows by itself (a third of the
 * bandwidth more on Zen 3). Behind the last row it has no effect. */
AVX2 static inline void fetch_rows(const void *p, int64_t stride)
{
    uintptr_t at = (uintptr_t)p + 8 * (uintptr_t)stride;

    for (int r = 0; r < 8; r++, at += (uintptr_t)stride)
        _mm_prefetch((const char *)at, _MM_HINT_T0);
}

/* One position, eight half rows. */
AVX2 static void gemv8_half(const struct kern_gemm *g, int64_t m)
{
    const f16_t *w = g->wh + m * g->ldw;
    const float *x = g->x;
    int64_t ldw = g->ldw, k = g->k, i = 0;
    __m256 acc[8];

    for (int r = 0; r < 8; r++)
        acc[r] = _mm256_setzero_ps();
    for (; i + 8 <= k; i += 8) {
        __m256 xv = _mm256_loadu_ps(x + i);

        if (i % 32 == 0)
            fetch_rows(w + i, ldw * (int64_t)sizeof(*w));
        for (int r = 0; r < 8; r++)
            acc[r] = _mm256_fmadd_ps(load_half(w + r * ldw + i), xv, acc[r]);
    }
    if (i < k) {
        __m256 xv = load_part(x + i, k - i);

        for (int r = 0; r < 8; r++)
            acc[r] = _mm256_fmadd_ps(load_half_part(w + r * ldw + i, k - i), xv,
                                     acc[r]);
    }
    put4(g, m, 4, 0, lane_sum4(acc[0], acc[1], acc[2], acc[3]));
    put4(g, m + 4, 4, 0, lane_sum4(acc[4], acc[5], acc[6], acc[7]));
}

AVX2 static void gemv8_f32(const struct kern_gemm *g, int64_t m)
{
    const float *w = g->w + m * g->ldw;
    const float *x = g->x;
    int64_t ldw = g->ldw, k = g->k, i = 0;
    __m256 acc[8];

    for (int r = 0; r < 8; r++)
        acc[r] = _mm256_setzero_ps();
    for (; i + 8 <= k; i += 8) {
        __m256 xv = _mm256_loadu_ps(x + i);

        if (i % 16 == 0)
            fetch_rows(w + i, ldw * (int64_t)sizeof(*w));
        for (int r = 0; r < 8; r++)
            acc[r] =
                _mm256_fmadd_ps(_mm256_loadu_ps(w + r * ldw + i), xv, acc[r]);
    }
    if (i < k) {
        __m256 xv = load_part(x + i, k - i);

        for (int r = 0; r < 8; r++)
            acc[r] =
                _mm256_fmadd_ps(load_part(w + r * ldw + i, k - i), xv, acc[r]);
    }
    put4(g, m, 4, 0, lane_sum4(acc[0], acc[1], acc[2], acc[3]));
    put4(g, m + 4, 4, 0, lane_sum4(acc[4], acc[5], acc[6], acc[7]));
}

AVX2 static void widen_row(float *dst, const f16_t *src, int64_t k)
{
    int64_t i = 0;

    for (; i + 8 <= k; i += 8)
        _mm256_storeu_ps(dst + i, load_half(src + i));
    if (i < k)
        store_part(dst + i, load_half_part(src + i, k - i), k - i);
}

/* Rows that a tile may read: w itself, or `scratch` when the rows are half
 * or fewer than four (missing ones repeat the last). */
AVX2 static const float *tile_rows(const struct kern_gemm *g, int64_t m,
                                   int64_t rows, float *scratch, int64_t *ldw)
{
    int64_t ld = (g->k + 15) / 16 * 16;

    if (!g->wh && rows == 4) {
        *ldw = g->ldw;
        return g->w + m * g->ldw;
    }
    for (int64_t r = 0; r < 4; r++) {
        int64_t row = m + (r < rows ? r : rows - 1);

        if (g->wh)
            widen_row(scratch + r * ld, g->wh + row * g->ldw, g->k);
        else
            memcpy(scratch + r * ld, g->w + row * g->ldw,
                   (size_t)g->k * sizeof(float));
    }
    *ldw = ld;
    return scratch;
}

AVX2 static void gemm_avx2(const struct kern_gemm *g, int64_t m0, int64_t m1,
                           float *scratch)
{
    int64_t m = m0;

    if (g->n == 1)
        for (; m + 8 <= m1; m += 8) {
            if (g->wh)
                gemv8_half(g, m);
            else
                gemv8_f32(g, m);
        }
    for (; m < m1; m += 4) {
        int64_t rows = m1 - m < 4 ? m1 - m : 4, ldw, n = 0;
        const float *w = tile_rows(g, m, rows, scratch, &ldw);

        for (; n + 3 <= g->n; n += 3)
            tile4x3(g, w, ldw, m, rows, n);
        if (g->n - n == 2)
            tile4x2(g, w, ldw, m, rows, n);
        else if (g->n - n == 1)
            tile4x1(g, w, ldw, m, rows, n);
    }
}

/* Lanes l0 .. l0+3 of columns n .. n+15. */
AVX2 static inline void vecmat_lanes(__m256 acc[8], const float *x,
                                     const float *y, int64_t ldy, int64_t k,
                                     int64_t l0)
{
    for (int j = 0; j < 8; j++)
        acc[j] = _mm256_setzero_ps();
    for (int64_t i = l0; i < k; i += 8) {
        if (i + 4 <= k) {
            for (int l = 0; l < 4; l++) {
                __m256 xv = _mm256_broadcast_ss(x + i + l);
                const float *row = y + (i + l) * ldy;

                acc[2 * l] =
                    _mm256_fmadd_ps(xv, _mm256_loadu_ps(row), acc[2 * l]);
                acc[2 * l + 1] = _mm256_fmadd_ps(xv, _mm256_loadu_ps(row + 8),
                                                 acc[2 * l + 1]);
            }
            continue;
        }
        for (int64_t l = 0; i + l < k; l++) {
            __m256 xv = _mm256_broadcast_ss(x + i + l);
            const float *row = y + (i + l) * ldy;

            acc[2 * l] = _mm256_fmadd_ps(xv, _mm256_loadu_ps(row), acc[2 * l]);
            acc[2 * l + 1] =
                _mm256_fmadd_ps(xv, _mm256_loadu_ps(row + 8), acc[2 * l + 1]);
        }
    }
}

AVX2 static void vecmat_avx2(const float *x, const float *y, int64_t ldy,
                             int64_t k, float *out, int64_t n0, int64_t n1,
                             const float *bias, bool half)
{
    int64_t n = n0;

    for (; n + 16 <= n1; n += 16) {
        __m256 a[8], b[8];

        vecmat_lanes(a, x, y + n, ldy, k, 0);
        vecmat_lanes(b, x, y + n, ldy, k, 4);
        for (int v = 0; v < 2; v++) {
            __m256 t0 = _mm256_add_ps(a[v], b[v]);
            __m256 t1 = _mm256_add_ps(a[2 + v], b[2 + v]);
            __m256 t2 = _mm256_add_ps(a[4 + v], b[4 + v]);
            __m256 t3 = _mm256_add_ps(a[6 + v], b[6 + v]);
            __m256 r =
                _mm256_add_ps(_mm256_add_ps(t0, t2), _mm256_add_ps(t1, t3));

            if (bias)
                r = _mm256_add_ps(r, _mm256_broadcast_ss(bias));
            _mm256_storeu_ps(out + n + 8 * v, half ? round8(r) : r);
        }
    }
    if (n < n1)
        kern_scalar.vecmat(x, y, ldy, k, out, n, n1, bias, half);
}

AVX2 static inline __m256 exp8(__m256 x0)
{
    __m256 x = _mm256_min_ps(_mm256_set1_ps(KERN_EXP_HI), x0);
    __m256 magic = _mm256_set1_ps(KERN_MAGIC);
    __m256 t, n, r, q, p;
    __m256i i, a;

    x = _mm256_max_ps(_mm256_set1_ps(KERN_EXP_LO), x);
    t = _mm256_fmadd_ps(x, _mm256_set1_ps(KERN_LOG2E), magic);
    n = _mm256_sub_ps(t, magic);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-KERN_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-KERN_LN2_LO), r);
    q = _mm256_fmadd_ps(_mm256_set1_ps(KERN_EXP_Q4), r,
                        _mm256_set1_ps(KERN_EXP_Q3));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(KERN_EXP_Q2));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(KERN_EXP_Q1));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(KERN_EXP_Q0));
    p = _mm256_add_ps(_mm256_fmadd_ps(q, _mm256_mul_ps(r, r), r),
                      _mm256_set1_ps(1.0f));
    i = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic));
    a = _mm256_srai_epi32(i, 1);
    i = _mm256_sub_epi32(i, a);
    a = _mm256_slli_epi32(_mm256_add_epi32(a, _mm256_set1_epi32(127)), 23);
    i = _mm256_slli_epi32(_mm256_add_epi32(i, _mm256_set1_epi32(127)), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(a));
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(i));
    return _mm256_blendv_ps(p, x0, _mm256_cmp_ps(x0, x0, _CMP_UNORD_Q));
}

AVX2 static inline __m256 tanh8(__m256 x)
{
    __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 a = _mm256_andnot_ps(sign, x);
    __m256 u = _mm256_mul_ps(x, x), q, small, y;

    q = _mm256_fmadd_ps(_mm256_set1_ps(KERN_TANH_Q4), u,
                        _mm256_set1_ps(KERN_TANH_Q3));
    q = _mm256_fmadd_ps(q, u, _mm256_set1_ps(KERN_TANH_Q2));
    q = _mm256_fmadd_ps(q, u, _mm256_set1_ps(KERN_TANH_Q1));
    q = _mm256_fmadd_ps(q, u, _mm256_set1_ps(KERN_TANH_Q0));
    small = _mm256_fmadd_ps(_mm256_mul_ps(q, u), x, x);
    small = _mm256_or_ps(small, _mm256_and_ps(sign, x)); /* keeps -0 */
    y = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), one);
    y = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), y));
    y = _mm256_or_ps(y, _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(y, small,
                            _mm256_cmp_ps(a, _mm256_set1_ps(KERN_TANH_SMALL),
                                          _CMP_LT_OQ));
}

AVX2 static inline __m256 sigmoid8(__m256 x)
{
    __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 e = exp8(_mm256_or_ps(sign, x));
    __m256 neg = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);

    return _mm256_div_ps(_mm256_blendv_ps(one, e, neg), _mm256_add_ps(one, e));
}

AVX2 static inline __m256 silu8(__m256 x)
{
    return _mm256_mul_ps(x, sigmoid8(x));
}

#define MAP(name)                                                              \
    AVX2 static void name##_avx2(float *dst, const float *src, size_t n)       \
    {                                                                          \
        size_t i = 0;                                                          \
                                                                               \
        for (; i + 8 <= n; i += 8)                                             \
            _mm256_storeu_ps(dst + i, name##8(_mm256_loadu_ps(src + i)));      \
        if (i < n)                                                             \
            store_part(dst + i, name##8(load_part(src + i, (int64_t)(n - i))), \
                       (int64_t)(n - i));                                      \
    }
MAP(exp)
MAP(tanh)
MAP(sigmoid)
MAP(silu)

static void softplus_avx2(float *dst, const float *src, size_t n)
{
    kern_scalar.softplus(dst, src, n);
}

AVX2 static float sum_avx2(const float *x, size_t n)
{
    __m256 acc = _mm256_setzero_ps();
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        acc = _mm256_add_ps(acc, _mm256_loadu_ps(x + i));
    if (i < n)
        acc = _mm256_add_ps(acc, load_part(x + i, (int64_t)(n - i)));
    return lane_sum(acc);
}

AVX2 static float sum_sq_avx2(const float *x, float mean, size_t n)
{
    __m256 acc = _mm256_setzero_ps(), mv = _mm256_set1_ps(mean), d;
    size_t i = 0;
    float l[8];

    for (; i + 8 <= n; i += 8) {
        d = _mm256_sub_ps(_mm256_loadu_ps(x + i), mv);
        acc = _mm256_fmadd_ps(d, d, acc);
    }
    _mm256_storeu_ps(l, acc);
    for (size_t j = 0; i + j < n; j++) {
        float v = x[i + j] - mean;

        l[j] = fmaf(v, v, l[j]);
    }
    return kern_lane_sum(l);
}

AVX2 static float max_avx2(const float *x, size_t n)
{
    __m256 acc = _mm256_set1_ps(-INFINITY), bad = _mm256_setzero_ps();
    size_t i = 0;
    float l[8], m = -INFINITY;

    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);

        bad = _mm256_or_ps(bad, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        acc = _mm256_max_ps(v, acc);
    }
    if (_mm256_movemask_ps(bad))
        return NAN;
    _mm256_storeu_ps(l, acc);
    for (int j = 0; j < 8; j++)
        m = l[j] > m ? l[j] : m;
    for (; i < n; i++)
        m = x[i] > m || !(x[i] == x[i]) ? x[i] : m;
    return m;
}

AVX2 static void softmax_avx2(float *dst, const float *src, size_t n)
{
    __m256 mv = _mm256_set1_ps(max_avx2(src, n)), sv;
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i,
                         exp8(_mm256_sub_ps(_mm256_loadu_ps(src + i), mv)));
    if (i < n)
        store_part(dst + i,
                   exp8(
                       _mm256_sub_ps(load_part(src + i, (int64_t)(n - i)), mv)),
                   (int64_t)(n - i));
    sv = _mm256_set1_ps(sum_avx2(dst, n));
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_div_ps(_mm256_loadu_ps(dst + i), sv));
    for (; i < n; i++)
        dst[i] /= _mm256_cvtss_f32(sv);
}

AVX2 static void normalize_avx2(float *dst, const float *src, float mean,
                                float inv, const float *gamma,
                                const float *beta, size_t n)
{
    __m256 mv = _mm256_set1_ps(mean), iv = _mm256_set1_ps(inv);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 v =
            _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(src + i), mv), iv);

        if (gamma && beta)
            v = _mm256_fmadd_ps(v, _mm256_loadu_ps(gamma + i),
                                _mm256_loadu_ps(beta + i));
        else if (gamma)
            v = _mm256_mul_ps(v, _mm256_loadu_ps(gamma + i));
        else if (beta)
            v = _mm256_add_ps(v, _mm256_loadu_ps(beta + i));
        _mm256_storeu_ps(dst + i, v);
    }
    if (i < n)
        kern_scalar.normalize(dst + i, src + i, mean, inv,
                              gamma ? gamma + i : NULL, beta ? beta + i : NULL,
                              n - i);
}

AVX2 static inline void transpose8(uint32_t *dst, int64_t ldd,
                                   const uint32_t *src, int64_t lds)
{
    __m256 r[8], t[8];

    for (int i = 0; i < 8; i++) /* as bits: nothing is computed with them */
        r[i] = _mm256_castsi256_ps(
            _mm256_loadu_si256((const __m256i *)(src + i * lds)));
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        __m256 *a = t + 4 * i, *b = r + 4 * i;

        b[0] = _mm256_shuffle_ps(a[0], a[2], 0x44);
        b[1] = _mm256_shuffle_ps(a[0], a[2], 0xee);
        b[2] = _mm256_shuffle_ps(a[1], a[3], 0x44);
        b[3] = _mm256_shuffle_ps(a[1], a[3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        __m256 lo = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        __m256 hi = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);

        _mm256_storeu_si256((__m256i *)(dst + i * ldd),
                            _mm256_castps_si256(lo));
        _mm256_storeu_si256((__m256i *)(dst + (i + 4) * ldd),
                            _mm256_castps_si256(hi));
    }
}

AVX2 static void transpose_avx2(uint32_t *dst, int64_t ldd, const uint32_t *src,
                                int64_t lds, int64_t rows, int64_t cols)
{
    int64_t rb = rows / 8 * 8, cb = cols / 8 * 8;

    /* two blocks down first: whole cache lines of dst */
    for (int64_t r = 0; r < rb; r += 16)
        for (int64_t c = 0; c < cb; c += 8) {
            transpose8(dst + c * ldd + r, ldd, src + r * lds + c, lds);
            if (r + 8 < rb)
                transpose8(dst + c * ldd + r + 8, ldd, src + (r + 8) * lds + c,
                           lds);
        }
    if (cb < cols)
        kern_scalar.transpose(dst + cb * ldd, ldd, src + cb, lds, rows,
                              cols - cb);
    if (rb < rows)
        kern_scalar.transpose(dst + rb, ldd, src + rb * lds, lds, rows - rb,
                              cb);
}

const struct kern kern_avx2 = {
    .name = "avx2",
    .gemm = gemm_avx2,
    .vecmat = vecmat_avx2,
    .exp = exp_avx2,
    .tanh = tanh_avx2,
    .sigmoid = sigmoid_avx2,
    .silu = silu_avx2,
    .softplus = softplus_avx2,
    .round = num_round_f16,
    .sum = sum_avx2,
    .sum_sq = sum_sq_avx2,
    .max = max_avx2,
    .softmax = softmax_avx2,
    .normalize = normalize_avx2,
    .transpose = transpose_avx2,
};

#else
typedef int kern_avx2_unused; /* an empty unit is not C */
#endif
