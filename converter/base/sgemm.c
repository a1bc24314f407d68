/*
 * Matrix products in float32; see sgemm.h for what an element of the result
 * is. The scalar functions below are that definition, the AVX2 ones do the
 * same operations eight partial sums at a time on tiles of four rows of x by
 * three rows of W, which are twelve of the sixteen registers.
 *
 * Blocking: a panel of 24 rows of W by one slice (24 KB) stays in the first
 * cache while all rows of x pass by, four at a time.
 */
#include "converter/base/sgemm.h"

#include <math.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define TILE_X 4
#define TILE_W 3

size_t sgemm_pad(size_t k)
{
    return (k + 7) / 8 * 8;
}

/* Elements of slice `s` of an inner axis of k, unpadded. */
static size_t slice_len(size_t k, size_t s)
{
    size_t left = k - s * SGEMM_SLICE;

    return left < SGEMM_SLICE ? left : SGEMM_SLICE;
}

static size_t slice_count(size_t k)
{
    return (k + SGEMM_SLICE - 1) / SGEMM_SLICE;
}

static void copy_padded(float *dst, const float *src, size_t len)
{
    size_t padded = sgemm_pad(len);

    memcpy(dst, src, len * sizeof(*dst));
    for (size_t i = len; i < padded; i++)
        dst[i] = 0;
}

void sgemm_pack(float *dst, const float *x, size_t ldx, size_t n, size_t k)
{
    for (size_t s = 0; s < slice_count(k); s++) {
        size_t len = slice_len(k, s);
        float *out = dst + n * s * SGEMM_SLICE;

        for (size_t i = 0; i < n; i++)
            copy_padded(out + i * sgemm_pad(len), x + i * ldx + s * SGEMM_SLICE,
                        len);
    }
}

static float pairwise(const float s[8])
{
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

static void slice_scalar(const float *x, size_t ldx, size_t n, const float *w,
                         size_t ldw, size_t m, size_t len, double *c,
                         size_t ldc)
{
    for (size_t j = 0; j < m; j++) {
        for (size_t i = 0; i < n; i++) {
            const float *a = x + i * ldx;
            const float *b = w + j * ldw;
            float s[8] = { 0 };

            for (size_t k = 0; k < len; k += 8)
                for (size_t q = 0; q < 8; q++)
                    s[q] = fmaf(a[k + q], b[k + q], s[q]);
            c[j * ldc + i] += (double)pairwise(s);
        }
    }
}

#if defined(__x86_64__)
/* Adds the pairwise sums of four registers to four doubles. */
ATTR_TARGET("avx2,fma,f16c")
static void add4(double *c, __m256 a, __m256 b, __m256 d, __m256 f)
{
    __m256 t = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(d, f));
    __m128 s =
        _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));

    _mm256_storeu_pd(c, _mm256_add_pd(_mm256_loadu_pd(c), _mm256_cvtps_pd(s)));
}

ATTR_TARGET("avx2,fma,f16c")
static void add1(double *c, __m256 a)
{
    __m256 t = _mm256_hadd_ps(a, a);
    __m128 s;

    t = _mm256_hadd_ps(t, t);
    s = _mm_add_ss(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    *c += (double)_mm_cvtss_f32(s);
}

ATTR_TARGET("avx2,fma,f16c")
static void tile_4x3(const float *x, size_t ldx, const float *w, size_t ldw,
                     size_t len, double *c, size_t ldc)
{
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    __m256 b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    __m256 d0 = a0, d1 = a0, d2 = a0, d3 = a0;

    for (size_t k = 0; k < len; k += 8) {
        __m256 u = _mm256_loadu_ps(w + k);
        __m256 v = _mm256_loadu_ps(w + ldw + k);
        __m256 z = _mm256_loadu_ps(w + 2 * ldw + k);
        __m256 y = _mm256_loadu_ps(x + k);

        a0 = _mm256_fmadd_ps(y, u, a0);
        b0 = _mm256_fmadd_ps(y, v, b0);
        d0 = _mm256_fmadd_ps(y, z, d0);
        y = _mm256_loadu_ps(x + ldx + k);
        a1 = _mm256_fmadd_ps(y, u, a1);
        b1 = _mm256_fmadd_ps(y, v, b1);
        d1 = _mm256_fmadd_ps(y, z, d1);
        y = _mm256_loadu_ps(x + 2 * ldx + k);
        a2 = _mm256_fmadd_ps(y, u, a2);
        b2 = _mm256_fmadd_ps(y, v, b2);
        d2 = _mm256_fmadd_ps(y, z, d2);
        y = _mm256_loadu_ps(x + 3 * ldx + k);
        a3 = _mm256_fmadd_ps(y, u, a3);
        b3 = _mm256_fmadd_ps(y, v, b3);
        d3 = _mm256_fmadd_ps(y, z, d3);
    }
    add4(c, a0, a1, a2, a3);
    add4(c + ldc, b0, b1, b2, b3);
    add4(c + 2 * ldc, d0, d1, d2, d3);
}

ATTR_TARGET("avx2,fma,f16c")
static void tile_4x1(const float *x, size_t ldx, const float *w, size_t len,
                     double *c)
{
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;

    for (size_t k = 0; k < len; k += 8) {
        __m256 u = _mm256_loadu_ps(w + k);

        a0 = _mm256_fmadd_ps(_mm256_loadu_ps(x + k), u, a0);
        a1 = _mm256_fmadd_ps(_mm256_loadu_ps(x + ldx + k), u, a1);
        a2 = _mm256_fmadd_ps(_mm256_loadu_ps(x + 2 * ldx + k), u, a2);
        a3 = _mm256_fmadd_ps(_mm256_loadu_ps(x + 3 * ldx + k), u, a3);
    }
    add4(c, a0, a1, a2, a3);
}

ATTR_TARGET("avx2,fma,f16c")
static void tile_1x3(const float *x, const float *w, size_t ldw, size_t len,
                     double *c, size_t ldc)
{
    __m256 a = _mm256_setzero_ps(), b = a, d = a;

    for (size_t k = 0; k < len; k += 8) {
        __m256 y = _mm256_loadu_ps(x + k);

        a = _mm256_fmadd_ps(y, _mm256_loadu_ps(w + k), a);
        b = _mm256_fmadd_ps(y, _mm256_loadu_ps(w + ldw + k), b);
        d = _mm256_fmadd_ps(y, _mm256_loadu_ps(w + 2 * ldw + k), d);
    }
    add1(c, a);
    add1(c + ldc, b);
    add1(c + 2 * ldc, d);
}

ATTR_TARGET("avx2,fma,f16c")
static void tile_1x1(const float *x, const float *w, size_t len, double *c)
{
    __m256 a = _mm256_setzero_ps();

    for (size_t k = 0; k < len; k += 8)
        a = _mm256_fmadd_ps(_mm256_loadu_ps(x + k), _mm256_loadu_ps(w + k), a);
    add1(c, a);
}

ATTR_TARGET("avx2,fma,f16c")
static void slice_avx2(const float *x, size_t ldx, size_t n, const float *w,
                       size_t ldw, size_t m, size_t len, double *c, size_t ldc)
{
    size_t i = 0;

    for (; i + TILE_X <= n; i += TILE_X) {
        size_t j = 0;

        for (; j + TILE_W <= m; j += TILE_W)
            tile_4x3(x + i * ldx, ldx, w + j * ldw, ldw, len, c + j * ldc + i,
                     ldc);
        for (; j < m; j++)
            tile_4x1(x + i * ldx, ldx, w + j * ldw, len, c + j * ldc + i);
    }
    for (; i < n; i++) {
        size_t j = 0;

        for (; j + TILE_W <= m; j += TILE_W)
            tile_1x3(x + i * ldx, w + j * ldw, ldw, len, c + j * ldc + i, ldc);
        for (; j < m; j++)
            tile_1x1(x + i * ldx, w + j * ldw, len, c + j * ldc + i);
    }
}
#endif

void sgemm_slice(const float *x, size_t ldx, size_t n, const float *w,
                 size_t ldw, size_t m, size_t len, double *c, size_t ldc)
{
#if defined(__x86_64__)
    if (cpu_features() & CPU_AVX2) {
        slice_avx2(x, ldx, n, w, ldw, m, len, c, ldc);
        return;
    }
#endif
    slice_scalar(x, ldx, n, w, ldw, m, len, c, ldc);
}

/* One slice of a panel of W: as it lies where few rows of x pass by, else
 * copied together (rows whose distance is a power of two would push each
 * other out of the cache). */
static const float *panel_slice(const float *w, size_t ldw, size_t m,
                                size_t len, size_t n, float *copy, size_t *ld)
{
    if (n < 2 * TILE_X && len % 8 == 0) {
        *ld = ldw;
        return w;
    }
    *ld = sgemm_pad(len);
    for (size_t j = 0; j < m; j++)
        copy_padded(copy + j * *ld, w + j * ldw, len);
    return copy;
}

static void store(float *y, size_t ldy, size_t n, size_t m, const double *c,
                  const float *bias)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < m; j++) {
            double v = c[j * n + i];

            if (bias)
                v += (double)bias[j];
            y[i * ldy + j] = (float)v;
        }
    }
}

void sgemm_rows(const float *xp, size_t n, size_t k, const float *w, size_t ldw,
                size_t m, const float *bias, float *y, size_t ldy,
                struct sgemm_scratch *s)
{
    for (size_t i = 0; i < n; i += SGEMM_BATCH) {
        size_t ni = n - i < SGEMM_BATCH ? n - i : SGEMM_BATCH;

        for (size_t j = 0; j < m; j += SGEMM_PANEL) {
            size_t mj = m - j < SGEMM_PANEL ? m - j : SGEMM_PANEL;

            memset(s->c, 0, mj * ni * sizeof(s->c[0]));
            for (size_t b = 0; b < slice_count(k); b++) {
                size_t at = b * SGEMM_SLICE;
                size_t len = slice_len(k, b);
                size_t lp = sgemm_pad(len), ld;
                const float *ws =
                    panel_slice(w + j * ldw + at, ldw, mj, len, ni, s->w, &ld);

                sgemm_slice(xp + n * at + i * lp, lp, ni, ws, ld, mj, lp, s->c,
                            ni);
            }
            store(y + i * ldy + j, ldy, ni, mj, s->c, bias ? bias + j : NULL);
        }
    }
}

struct product {
    size_t n, m, k;
    const float *xp, *w;
    float *y;
    struct sgemm_scratch *scratch; /* one per worker */
};

static void product_panels(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct product *p = arg;
    size_t first = (size_t)begin * SGEMM_PANEL;
    size_t last = (size_t)end * SGEMM_PANEL;

    if (last > p->m)
        last = p->m;
    sgemm_rows(p->xp, p->n, p->k, p->w + first * p->k, p->k, last - first, NULL,
               p->y + first, p->m, &p->scratch[worker]);
}

int sgemm(struct par *par, size_t n, size_t m, size_t k, const float *x,
          const float *w, float *y, struct err *e)
{
    struct product p = { .n = n, .m = m, .k = k, .w = w, .y = y };
    uint64_t elems;
    float *xp;
    int rc = -1;

    if (!mem_mul(n, sgemm_pad(k), &elems) || elems > SIZE_MAX)
        return err_set(e, ERR_NOMEM, "a matrix of %zu x %zu is too large", n,
                       k);
    xp = mem_alloc_aligned((size_t)elems, sizeof(*xp), e);
    p.scratch =
        mem_alloc_aligned((size_t)par_width(par), sizeof(*p.scratch), e);
    if (!xp || !p.scratch)
        goto out;
    sgemm_pack(xp, x, k, n, k);
    p.xp = xp;
    par_for(par, (m + SGEMM_PANEL - 1) / SGEMM_PANEL, 4, product_panels, &p);
    rc = 0;
out:
    mem_free(p.scratch);
    mem_free(xp);
    return rc;
}
