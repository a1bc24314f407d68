/*
 * Matrix products of the reference: right in double, defined per element,
 * equal bits whatever the blocking, the threads and the SIMD level.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "converter/base/sgemm.h"

static struct err err;
static uint64_t rng = 88172645463325252u;

static float noise(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (float)((double)(rng >> 40) / (1 << 23) - 1);
}

static float *random_matrix(size_t n)
{
    float *p = mem_alloc(n, sizeof(*p), &err);

    for (size_t i = 0; i < n; i++)
        p[i] = noise();
    return p;
}

static const size_t shapes[][3] = {
    { 1, 1, 1 },      { 1, 3, 8 },     { 2, 5, 7 },      { 4, 24, 256 },
    { 5, 25, 257 },   { 7, 23, 255 },  { 8, 48, 512 },   { 13, 50, 300 },
    { 129, 31, 264 }, { 131, 2, 700 }, { 3, 100, 1000 }, { 260, 49, 9 },
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* The definition in sgemm.h, element by element. */
static float element(const float *x, const float *w, size_t k)
{
    double sum = 0;

    for (size_t at = 0; at < k; at += SGEMM_SLICE) {
        float s[8] = { 0 };

        for (size_t i = at; i < k && i < at + SGEMM_SLICE; i++)
            s[i % 8] = fmaf(x[i], w[i], s[i % 8]);
        sum += (double)(((s[0] + s[1]) + (s[2] + s[3])) +
                        ((s[4] + s[5]) + (s[6] + s[7])));
    }
    return (float)sum;
}

static void check_shape(size_t n, size_t m, size_t k, struct par *par)
{
    float *x = random_matrix(n * k), *w = random_matrix(m * k);
    float *y = random_matrix(n * m + 1), guard = y[n * m];

    cr_assert_eq(sgemm(par, n, m, k, x, w, y, &err), 0, "%s", err.text);
    cr_assert_eq(y[n * m], guard);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < m; j++) {
            double exact = 0, size = 0;

            for (size_t q = 0; q < k; q++) {
                double t = (double)x[i * k + q] * (double)w[j * k + q];

                exact += t;
                size += fabs(t);
            }
            cr_assert_eq(y[i * m + j], element(x + i * k, w + j * k, k),
                         "%zu x %zu x %zu at %zu, %zu", n, m, k, i, j);
            cr_assert(fabs((double)y[i * m + j] - exact) <= 4e-7 * size);
        }
    }
    mem_free(y);
    mem_free(w);
    mem_free(x);
}

Test(oracle_gemm, every_element_is_its_definition)
{
    for (size_t i = 0; i < N_SHAPES; i++)
        check_shape(shapes[i][0], shapes[i][1], shapes[i][2], NULL);
}

Test(oracle_gemm, threads_change_nothing)
{
    struct par *par = par_new(3, &err);

    for (size_t i = 0; i < N_SHAPES; i++)
        check_shape(shapes[i][0], shapes[i][1], shapes[i][2], par);
    par_free(par);
}

Test(oracle_gemm, scalar_gives_the_same_bits)
{
    cpu_mask(0);
    for (size_t i = 0; i < N_SHAPES; i++)
        check_shape(shapes[i][0], shapes[i][1], shapes[i][2], NULL);
}

Test(oracle_gemm, rows_write_a_window_and_add_the_bias)
{
    enum { N = 9, M = 26, K = 40, LD = 31 };
    struct sgemm_scratch *s = mem_alloc_aligned(1, sizeof(*s), &err);
    float *x = random_matrix(N * K), *w = random_matrix(M * (K + 3));
    float *packed = mem_alloc(N * sgemm_pad(K), sizeof(*packed), &err);
    float *bias = random_matrix(M), *y = random_matrix(N * LD);
    float *before = mem_alloc(N * LD, sizeof(*before), &err);

    memcpy(before, y, N * LD * sizeof(*y));
    sgemm_pack(packed, x, K, N, K);
    sgemm_rows(packed, N, K, w, K + 3, M, bias, y, LD, s);
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < LD; j++) {
            double want = j < M
                              ? (double)element(x + i * K, w + j * (K + 3), K) +
                                    (double)bias[j]
                              : (double)before[i * LD + j];

            cr_assert_eq(y[i * LD + j], (float)want, "%zu, %zu", i, j);
        }
    }
    mem_free(before);
    mem_free(y);
    mem_free(bias);
    mem_free(packed);
    mem_free(w);
    mem_free(x);
    mem_free(s);
}

Test(oracle_gemm, packing_orders_slices_and_fills_with_zeros)
{
    enum { N = 2, K = SGEMM_SLICE + 3 };
    float x[N * K], packed[N * (SGEMM_SLICE + 8)];

    cr_assert_eq(sgemm_pad(K), SGEMM_SLICE + 8);
    for (size_t i = 0; i < N * K; i++)
        x[i] = (float)i + 1;
    sgemm_pack(packed, x, K, N, K);
    cr_assert_eq(packed[0], x[0]);
    cr_assert_eq(packed[SGEMM_SLICE], x[K]);
    cr_assert_eq(packed[2 * SGEMM_SLICE], x[SGEMM_SLICE]);
    cr_assert_eq(packed[2 * SGEMM_SLICE + 2], x[SGEMM_SLICE + 2]);
    for (size_t q = 3; q < 8; q++)
        cr_assert_eq(packed[2 * SGEMM_SLICE + q], 0.0f);
    cr_assert_eq(packed[2 * SGEMM_SLICE + 8], x[K + SGEMM_SLICE]);
}

/* A long sum whose float32 total would lose its small terms. */
Test(oracle_gemm, slices_are_summed_in_double)
{
    size_t k = 256 * SGEMM_SLICE;
    float *x = mem_alloc(k, sizeof(*x), &err);
    float *w = mem_alloc(k, sizeof(*w), &err), y;

    for (size_t i = 0; i < k; i++) {
        x[i] = i < SGEMM_SLICE ? 65536.0f : 0.0009765625f;
        w[i] = 1;
    }
    cr_assert_eq(sgemm(NULL, 1, 1, k, x, w, &y, &err), 0);
    cr_assert_eq(y, (float)(65536.0 * 256 + 255.0 * 0.25));
    mem_free(w);
    mem_free(x);
}

Test(oracle_gemm, infinities_and_nan_come_through)
{
    float x[8] = { 0 }, w[16] = { 0 }, y[2];

    x[3] = INFINITY;
    w[3] = 1;
    cr_assert_eq(sgemm(NULL, 1, 2, 8, x, w, y, &err), 0);
    cr_assert_eq(y[0], INFINITY);
    cr_assert(isnan(y[1])); /* infinity times zero */
}

Test(oracle_gemm, no_memory_is_reported)
{
    float x[8] = { 0 }, w[8] = { 0 }, y[1];

    for (long n = 0; n < 2; n++) {
        mem_fail_at(n, false);
        cr_assert_eq(sgemm(NULL, 1, 1, 8, x, w, y, &err), -1);
        cr_assert_eq(err.code, ERR_NOMEM);
        err_reset(&err);
    }
    mem_fail_at(-1, false);
}
