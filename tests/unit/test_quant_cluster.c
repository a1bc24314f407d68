/*
 * One group: the table is that of the exact partition, every index is that
 * of the nearest entry, degenerate groups, scales, refusals; the result does
 * not depend on order or SIMD level.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "quant/kmeans.h"
#include "quant/quant.h"
#include "t_rand.h"

#define MAXN 70000

static const int widths[] = { 1, 2, 3, 4, 6, 8 };
enum { WIDTHS = sizeof widths / sizeof widths[0] };

static uint64_t seed = 3;

static uint16_t bits_of(double v, enum qz_format f)
{
    return f == QZ_BF16 ? f32_to_bf16((float)v) : f64_to_f16(v);
}

static double value_of(uint16_t bits, enum qz_format f)
{
    return f == QZ_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

static struct qz_scratch *scratch(void)
{
    struct err e = ERR_INIT;
    struct qz_scratch *s = qz_scratch_new(&e);

    cr_assert_not_null(s, "%s", e.text);
    return s;
}

/* What must hold for every group, by definition. Returns the error. */
static double check_group(const uint16_t *v, size_t n, enum qz_format f,
                          int scale, int bits, const f16_t *table,
                          const uint8_t *idx, const struct qz_result *r)
{
    double c[256], sse = 0, sum = 0;
    int k = 1 << bits, q;
    size_t i;

    for (q = 0; q < k; q++) {
        c[q] = f16_to_f32(table[q]);
        cr_assert(isfinite(c[q]));
        cr_assert_neq(table[q], 0x8000, "minus zero in the table");
        if (q > 0)
            cr_assert_leq(c[q - 1], c[q], "entry %d", q);
    }
    for (i = 0; i < n; i++) {
        double x = ldexp(value_of(v[i], f), scale), d;
        int best = 0;

        for (q = 1; q < k; q++)
            if (fabs(x - c[q]) < fabs(x - c[best]))
                best = q;
        cr_assert_eq(idx[i], best, "value %g: index %d (%g), nearest %d (%g)",
                     x, idx[i], c[idx[i] & (k - 1)], best, c[best]);
        d = x - c[best];
        sse += d * d;
        sum += x * x;
    }
    cr_assert_leq(fabs(sse - r->sse), 1e-12 * sse + 1e-300);
    cr_assert_leq(fabs(sum - r->sum_sq), 1e-12 * sum + 1e-300);
    return sse;
}

static double cluster(struct qz_scratch *s, const uint16_t *v, size_t n,
                      enum qz_format f, int scale, int bits, f16_t *table,
                      uint8_t *idx, struct qz_result *r)
{
    struct err e = ERR_INIT;

    cr_assert_eq(qz_cluster(s, v, n, f, scale, bits, table, idx, r, &e), 0,
                 "%s", e.text);
    return check_group(v, n, f, scale, bits, table, idx, r);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Distinct values and how often each occurs. Test data are multiples of
 * 2^-30 below 2^9, so that x * 2^30 are points for the solver. */
struct distinct {
    size_t m;
    double x[QZ_MAX_POINTS], w[QZ_MAX_POINTS];
};

static const struct distinct *distinct(const uint16_t *v, size_t n,
                                       enum qz_format f)
{
    static double all[MAXN];
    static struct distinct d;
    size_t i;

    for (i = 0; i < n; i++)
        all[i] = ldexp(value_of(v[i], f), 30);
    qsort(all, n, sizeof *all, by_value);
    for (d.m = 0, i = 0; i < n; i++) {
        if (d.m == 0 || all[i] != d.x[d.m - 1]) {
            d.x[d.m] = all[i];
            d.w[d.m++] = 0;
        }
        d.w[d.m - 1] += 1;
    }
    return &d;
}

/* The least squared error of k unrounded centroids, and its borders. */
static double optimum(const struct distinct *d, int k, uint32_t *borders)
{
    struct err e = ERR_INIT;
    struct qz_kmeans *km = qz_kmeans_new(&e);
    double sse = 0;
    int q;

    cr_assert_not_null(km);
    if (d->m > (size_t)k) {
        qz_kmeans_points(km, d->x, d->w, d->m);
        cr_assert_eq(qz_kmeans_solve(km, k, QZ_LAYERS, borders, &e), 0);
        for (q = 0; q < k; q++)
            sse += qz_kmeans_cost(km, borders[q], borders[q + 1]);
    }
    qz_kmeans_free(km);
    return ldexp(sse, -60);
}

/* Means of the runs in fp16; their nearest values; the error. */
static void means(const struct distinct *d, int k, const uint32_t *borders,
                  f16_t *table)
{
    int q;
    size_t i;

    for (q = 0; q < k; q++) {
        long double s = 0, a = 0;

        for (i = borders[q]; i < borders[q + 1]; i++) {
            s += d->w[i] * (long double)d->x[i];
            a += d->w[i];
        }
        table[q] = f64_to_f16((double)ldexpl(s / a, -30));
    }
}

static double nearest(const struct distinct *d, int k, const f16_t *table,
                      uint32_t *borders)
{
    double sse = 0;
    size_t i;
    int q = 0;

    borders[0] = 0;
    borders[k] = (uint32_t)d->m;
    for (i = 0; i < d->m; i++) {
        double x = ldexp(d->x[i], -30);

        while (q + 1 < k && fabs(x - f16_to_f32(table[q + 1])) <
                                fabs(x - f16_to_f32(table[q])))
            borders[++q] = (uint32_t)i;
        sse +=
            d->w[i] * (x - f16_to_f32(table[q])) * (x - f16_to_f32(table[q]));
    }
    cr_assert_eq(q, k - 1, "the reference takes tables without unused entries");
    return sse;
}

/* The table, step by step; no entries may coincide. */
static void reference(const struct distinct *d, int k, uint32_t *borders,
                      f16_t *table)
{
    f16_t next[256];
    double sse, better;
    int i;

    means(d, k, borders, table);
    sse = nearest(d, k, table, borders);
    for (i = 0; i < 3; i++) {
        means(d, k, borders, next);
        better = nearest(d, k, next, borders);
        if (!(better < sse))
            break;
        sse = better;
        memcpy(table, next, sizeof next);
    }
}

enum shape { GAUSS, STUDENT, OFFSET, SPARSE, GRID, SHAPES };

static double sample(enum shape shape)
{
    switch (shape) {
    case GAUSS: return 0.02 * t_gauss(&seed);
    case STUDENT: return 0.02 * t_student5(&seed);
    case OFFSET: return 8 + 0.25 * t_gauss(&seed);
    case SPARSE: return t_below(&seed, 10) == 0 ? 0.05 * t_gauss(&seed) : 0;
    case GRID: return ((int)t_below(&seed, 41) - 20) / 64.0;
    case SHAPES: break;
    }
    return 0;
}

static void fill(uint16_t *v, size_t n, enum qz_format f, enum shape shape)
{
    size_t i;

    for (i = 0; i < n; i++) {
        /* Multiples of 2^-30: what is below is none of the test's. */
        double x = ldexp(rint(ldexp(sample(shape), 22)), -22);

        v[i] = bits_of(x, f);
    }
}

Test(cluster, tables_are_those_of_the_exact_partition)
{
    static uint16_t v[8192];
    static uint8_t idx[8192];
    struct qz_scratch *s = scratch();
    struct qz_result r;
    f16_t table[256];
    int f, shape, w, q, round;

    for (round = 0; round < 6; round++)
        for (shape = 0; shape < SHAPES; shape++)
            for (w = 0; w < WIDTHS; w++) {
                size_t n = 1 + t_below(&seed, round % 2 == 0 ? 8192 : 3000);
                int k = 1 << widths[w];
                const struct distinct *d;
                uint32_t borders[257];
                f16_t want[256];
                double best, sse;

                f = round % 2;
                fill(v, n, (enum qz_format)f, (enum shape)shape);
                sse = cluster(s, v, n, (enum qz_format)f, 0, widths[w], table,
                              idx, &r);
                d = distinct(v, n, (enum qz_format)f);
                best = optimum(d, k, borders);
                /* Above it by what fp16 costs: a last place of the table. */
                cr_assert_geq(sse, best * (1 - 1e-9));
                cr_assert_leq(sse, best * 1.0001 + r.sum_sq * ldexp(1, -23),
                              "format %d shape %d k %d n %zu: %g, optimum %g",
                              f, shape, k, n, sse, best);
                /* The others can have several optimal partitions. */
                if (shape == GRID || shape == SPARSE || d->m < 6 * (size_t)k)
                    continue;
                reference(d, k, borders, want);
                for (q = 0; q < k; q++)
                    cr_assert_eq(table[q], want[q],
                                 "format %d shape %d k %d n %zu: entry %d is "
                                 "%g, not %g",
                                 f, shape, k, n, q, f16_to_f32(table[q]),
                                 f16_to_f32(want[q]));
            }
    qz_scratch_free(s);
}

/* The partitions that exact solvers got wrong elsewhere. */
static void small_case(const double *x, size_t n, int bits, const double *want)
{
    struct qz_scratch *s = scratch();
    struct qz_result r;
    f16_t table[256];
    uint16_t v[16];
    uint8_t idx[16];
    size_t i;
    int q;

    for (i = 0; i < n; i++)
        v[i] = f64_to_f16(x[i]);
    cluster(s, v, n, QZ_F16, 0, bits, table, idx, &r);
    for (q = 0; q < 1 << bits; q++)
        cr_assert_eq(table[q], f64_to_f16(want[q]), "entry %d is %g, not %g", q,
                     f16_to_f32(table[q]), want[q]);
    qz_scratch_free(s);
}

Test(cluster, small_groups_by_hand)
{
    static const double a[] = { 0, 3, 4 }, ta[] = { 0, 3.5 };
    static const double b[] = { 1, 2, 3, 100 }, tb[] = { 2, 100 };
    static const double c[] = { 0.5, 2, 2, 2, 3, 4, 5, 99 };
    static const double tc[] = { 0.5, 2.25, 4.5, 99 };
    static const double d[] = { 5, 5, 5 }, td[] = { 5, 5, 5, 5 };
    static const double z[] = { 0, -0.0, 0 }, tz[] = { 0, 0 };
    static const double e[] = { -1, 2, 2, -1, 7 }, te[] = { -1, 2, 7, 7 };
    static const double one[] = { -3 }, tone[] = { -3, -3 };

    small_case(a, 3, 1, ta);
    small_case(b, 4, 1, tb);
    small_case(c, 8, 2, tc);
    small_case(d, 3, 2, td);
    small_case(z, 3, 1, tz);
    small_case(e, 5, 2, te);
    small_case(one, 1, 1, tone);
}

Test(cluster, new_means_only_if_the_error_falls)
{
    /* Whole numbers are neighbours in fp16 there. The first: exact runs have
     * the means 1103.5, 1107.5, 1113, 1122; rounded, 1106 goes down with the
     * first run, and the mean of the second becomes 1109. The second: 1105
     * lies between 1103 and 1107 and goes down; 1104 would be the new mean,
     * but the error is 16 either way. */
    static const double a[] = { 1103, 1103, 1103, 1105, 1106,
                                1109, 1113, 1113, 1113, 1122 };
    static const double ta[] = { 1104, 1109, 1113, 1122 };
    static const double b[] = { 1102, 1103, 1104, 1105, 1106, 1106,
                                1106, 1106, 1106, 1107, 1108, 1109 };
    static const double tb[] = { 1103, 1107 };

    small_case(a, 10, 2, ta);
    small_case(b, 12, 1, tb);
}

Test(cluster, mean_rounds_once_to_even)
{
    /* 1 + 2^-10 once and 1 three times: 1 + 2^-12, below the half; twice
     * each: 1 + 2^-11, a tie that goes to even; then just above it. */
    static const double far = 64;
    double x[8] = { 1, 1, 1, 1 + 1 / 1024.0, far };
    double want[2] = { 1, 64 };

    small_case(x, 5, 1, want);
    x[2] = 1 + 1 / 1024.0;
    small_case(x, 5, 1, want);
    x[0] = 1 + 2 / 1024.0; /* mean 1 + 1.0 / 1024 */
    want[0] = 1 + 1 / 1024.0;
    small_case(x, 5, 1, want);
    x[1] = 1 + 3 / 1024.0; /* 1.75 / 1024 */
    want[0] = 1 + 2 / 1024.0;
    small_case(x, 5, 1, want);
}

Test(cluster, a_mean_just_off_the_tie)
{
    /* 16392 is half way between two halves; the mean of these thousand is
     * above it by 2^-22 / 1000. The others only keep the clusters apart. */
    static uint16_t v[2000];
    static uint8_t idx[2000];
    struct qz_scratch *s = scratch();
    struct qz_result r;
    f16_t t[2];
    size_t i;

    for (i = 0; i < 2000; i++)
        v[i] = f64_to_f16(i < 500 ? 16400 : i < 998 ? 16384 : -60000);
    v[998] = f64_to_f16(32768);
    v[999] = f64_to_f16(ldexp(1, -22));
    cluster(s, v, 2000, QZ_F16, 0, 1, t, idx, &r);
    cr_assert_eq(f16_to_f32(t[1]), 16400);
    v[999] = 0;
    cluster(s, v, 2000, QZ_F16, 0, 1, t, idx, &r);
    cr_assert_eq(f16_to_f32(t[1]), 16384);
    v[999] = f64_to_f16(-ldexp(1, -22));
    v[0] = f64_to_f16(16416); /* 16392.016 */
    cluster(s, v, 2000, QZ_F16, 0, 1, t, idx, &r);
    cr_assert_eq(f16_to_f32(t[1]), 16400);
    qz_scratch_free(s);
}

Test(cluster, minus_zero_among_positive_values)
{
    static uint16_t v[3000];
    static uint8_t idx[3000];
    struct qz_scratch *s = scratch();
    struct qz_result r;
    f16_t t[256];
    int w;
    size_t i;

    for (w = 0; w < WIDTHS; w++) {
        /* What the group before leaves behind must not show. */
        fill(v, 3000, QZ_F16, GAUSS);
        cluster(s, v, 3000, QZ_F16, 0, widths[w], t, idx, &r);
        for (i = 0; i < 3000; i++)
            v[i] =
                (uint16_t)(i % 10 == 0 ? 0x8000 : 0x3c00 + t_below(&seed, 700));
        cluster(s, v, 3000, QZ_F16, 0, widths[w], t, idx, &r);
        cr_assert_eq(idx[0], 0);
    }
    qz_scratch_free(s);
}

Test(cluster, no_more_values_than_entries_is_lossless)
{
    struct qz_scratch *s = scratch();
    struct qz_result r;
    f16_t table[256];
    uint16_t v[1000];
    uint8_t idx[1000];
    size_t i;
    int w, m, q;

    for (w = 0; w < WIDTHS; w++)
        for (m = 1; m <= 1 << widths[w]; m += m < 20 ? 1 : 17) {
            for (i = 0; i < 1000; i++)
                v[i] = (uint16_t)(0x3c00 + t_below(&seed, (uint32_t)m));
            for (i = 0; i < (size_t)m; i++)
                v[i * 3] = (uint16_t)(0x3c00 + i);
            cr_assert_eq(cluster(s, v, 1000, QZ_F16, 0, widths[w], table, idx,
                                 &r),
                         0);
            cr_assert_eq(r.distinct, (uint32_t)m);
            for (q = 0; q < 1 << widths[w]; q++)
                cr_assert_eq(table[q], 0x3c00 + (q < m ? q : m - 1));
        }
    qz_scratch_free(s);
}

Test(cluster, subnormals_and_zeros)
{
    struct qz_scratch *s = scratch();
    struct qz_result r;
    f16_t table[4];
    uint8_t idx[8];
    /* -2^-24, -0, 0, 2^-24, 3 * 2^-24 */
    const uint16_t v[8] = { 0x8001, 0x8000, 0, 1, 3, 0, 0x8000, 1 };
    const uint16_t tiny[4] = { 0x0001, 0x8001, 0x0000, 0x0080 };

    cluster(s, v, 8, QZ_F16, 0, 2, table, idx, &r);
    cr_assert_eq(table[0], 0x8001);
    cr_assert_eq(table[1], 0);
    cr_assert_eq(table[2], 1);
    cr_assert_eq(table[3], 3);
    cr_assert_eq(r.sse, 0);
    cr_assert_eq(idx[1], idx[2]);
    /* bfloat16 far below fp16: all become zero, and only zero is used. */
    cluster(s, tiny, 4, QZ_BF16, 0, 2, table, idx, &r);
    cr_assert_eq(r.distinct, 4);
    cr_assert_eq(table[0], 0);
    cr_assert_eq(table[3], 0);
    cr_assert_eq(idx[0] | idx[1] | idx[2] | idx[3], 0);
    qz_scratch_free(s);
}

Test(cluster, one_far_value_spoils_nothing)
{
    static uint16_t v[8192];
    static uint8_t idx[8192];
    struct qz_scratch *s = scratch();
    struct qz_result r, r2;
    f16_t table[256], t2[256];
    uint32_t borders[257];
    int w, q;

    fill(v, 8191, QZ_BF16, GAUSS);
    v[8191] = bits_of(0.02 * 1e4, QZ_BF16);
    for (w = 0; w < WIDTHS; w++) {
        int k = 1 << widths[w];
        double best, near;

        cluster(s, v, 8192, QZ_BF16, 0, widths[w], table, idx, &r);
        cr_assert_eq(table[k - 1], f64_to_f16(value_of(v[8191], QZ_BF16)));
        near = 0;
        for (q = 0; q < 8191; q++) {
            double d = value_of(v[q], QZ_BF16) - f16_to_f32(table[idx[q]]);

            near += d * d;
        }
        best =
            k == 2 ? near : optimum(distinct(v, 8191, QZ_BF16), k - 1, borders);
        cr_assert_leq(near, best * 1.003, "k %d: %g, optimum %g", k, near,
                      best);
    }
    /* The same with the far value at the very front, and negative. */
    v[8191] = v[0];
    v[0] = bits_of(-0.02 * 1e4, QZ_BF16);
    cluster(s, v, 8192, QZ_BF16, 0, 4, t2, idx, &r2);
    cr_assert_eq(idx[0], 0);
    cr_assert_eq(t2[0], f64_to_f16(value_of(v[0], QZ_BF16)));
    qz_scratch_free(s);
}

static void refused(const uint16_t *v, size_t n, enum qz_format f, int scale,
                    int bits, const char *text)
{
    struct qz_scratch *s = scratch();
    struct err e = ERR_INIT;
    struct qz_result r;
    f16_t table[256];
    static uint8_t idx[8192];

    cr_assert_eq(qz_cluster(s, v, n, f, scale, bits, table, idx, &r, &e), -1);
    cr_assert_eq(e.code, ERR_INPUT);
    cr_assert_str_eq(e.text, text);
    /* The scratch is as good as new. */
    err_reset(&e);
    {
        const uint16_t fine[3] = { 0x3c00, 0x3e00, 0x4000 };

        cluster(s, fine, 3, QZ_F16, 0, 2, table, idx, &r);
        cr_assert_eq(r.distinct, 3);
        cr_assert_eq(r.sse, 0);
    }
    qz_scratch_free(s);
}

Test(cluster, what_is_refused)
{
    static uint16_t v[5000];
    const uint16_t big[4] = { 0x4780, 0x4781, 0x4782, 0x4790 };

    fill(v, 5000, QZ_F16, GAUSS);
    v[4321] = 0x7e01;
    v[4400] = 0x7c00;
    refused(v, 5000, QZ_F16, 0, 4, "weight 4321 of 5000 is nan");
    v[17] = 0xfc00;
    refused(v, 5000, QZ_F16, 0, 4, "weight 17 of 5000 is infinite");
    fill(v, 5000, QZ_BF16, GAUSS);
    v[4999] = 0xff80;
    refused(v, 5000, QZ_BF16, 0, 4, "weight 4999 of 5000 is infinite");
    v[0] = 0xffff;
    refused(v, 5000, QZ_BF16, 0, 4, "weight 0 of 5000 is nan");
    /* 0x7c00 is an ordinary number in bfloat16, though beyond fp16. */
    v[0] = v[4999] = 0;
    v[4] = 0x7c00;
    refused(v, 5000, QZ_BF16, 0, 8,
            "table entry 255 of 256 is 2.658455991569832e36, beyond fp16's "
            "65504");
    refused(big, 4, QZ_BF16, 0, 2,
            "table entry 0 of 4 is 65536, beyond fp16's 65504");
    refused(big, 4, QZ_BF16, 0, 5,
            "palettes have 1, 2, 3, 4, 6 or 8 bits, not 5");
    refused(big, 4, QZ_BF16, 257, 4, "scale 2^257 is beyond 2^-256 .. 2^256");
    refused(big, 0, QZ_BF16, 0, 4,
            "a group of 0 weights cannot be clustered at once (1 to "
            "2147483648)");
}

Test(cluster, values_beyond_fp16_whose_mean_is_within)
{
    /* 65536 is beyond fp16; its cluster's mean, 60000, is not. */
    const uint16_t v[4] = { 0x4780, 0x4755, 0xc780, 0xc755 };
    struct qz_scratch *s = scratch();
    struct qz_result r;
    f16_t table[2];
    uint8_t idx[4];

    cluster(s, v, 4, QZ_BF16, 0, 1, table, idx, &r);
    cr_assert_eq(table[1], f64_to_f16((65536.0 + bf16_to_f32(0x4755)) / 2));
    cr_assert_eq(table[0], table[1] | 0x8000);
    qz_scratch_free(s);
}

Test(cluster, scale_folds_exactly)
{
    static uint16_t v[6000];
    static uint8_t a[6000], b[6000];
    struct qz_scratch *s = scratch();
    struct qz_result r, r2;
    f16_t t[256], t2[256];
    int w, f, scale, q;

    for (f = 0; f < 2; f++)
        for (w = 0; w < WIDTHS; w++) {
            int k = 1 << widths[w];

            /* Kept off the subnormals: every entry shifts its exponent. */
            fill(v, 6000, (enum qz_format)f, GAUSS);
            for (q = 0; q < 6000; q++)
                if (fabs(value_of(v[q], (enum qz_format)f)) < 0.002)
                    v[q] =
                        bits_of(0.002 + 0.00001 * (q % 5), (enum qz_format)f);
            cluster(s, v, 6000, (enum qz_format)f, 0, widths[w], t, a, &r);
            for (scale = -3; scale <= 9; scale++) {
                cluster(s, v, 6000, (enum qz_format)f, scale, widths[w], t2, b,
                        &r2);
                for (q = 0; q < k; q++)
                    if (fabs(f16_to_f32(t[q])) > 0.001)
                        cr_assert_eq(f16_to_f32(t2[q]),
                                     ldexp(f16_to_f32(t[q]), scale));
                cr_assert_eq(r2.sse, ldexp(r.sse, 2 * scale));
                cr_assert_eq(memcmp(a, b, 6000), 0);
            }
        }
    qz_scratch_free(s);
}

Test(cluster, scale_beyond_fp16_precision)
{
    /* Entries that fall among the subnormals are rounded once, from the
     * scaled mean, and every index is the nearest of what is left. */
    static uint16_t v[6000];
    static uint8_t idx[6000];
    struct qz_scratch *s = scratch();
    struct qz_result r;
    f16_t t[256];
    int scale;
    const uint16_t far[3] = { 0x0080, 0x0100, 0x0180 }; /* 2^-126 and up */

    fill(v, 6000, QZ_BF16, GAUSS);
    for (scale = -24; scale <= 0; scale++)
        cluster(s, v, 6000, QZ_BF16, scale, 8, t, idx, &r);
    cluster(s, v, 6000, QZ_BF16, -256, 8, t, idx, &r);
    cr_assert_eq(t[0], 0);
    cr_assert_eq(t[255], 0);
    cluster(s, far, 3, QZ_BF16, 126, 2, t, idx, &r);
    cr_assert_eq(t[0], f64_to_f16(1));
    cr_assert_eq(t[1], f64_to_f16(2));
    cr_assert_eq(t[2], f64_to_f16(4));
    qz_scratch_free(s);
}

Test(cluster, every_bit_pattern_goes_to_its_nearest_entry)
{
    static uint16_t v[65536];
    static uint8_t idx[65536], idx2[65536];
    struct qz_scratch *s = scratch();
    struct qz_result r, r2;
    f16_t t[256], t2[256];
    size_t n;
    int f, w;
    uint32_t b;

    for (f = 0; f < 2; f++) {
        /* All finite patterns; bfloat16 scaled into fp16's range. */
        int scale = f == QZ_BF16 ? -113 : 0;

        for (n = 0, b = 0; b < 65536; b++)
            if ((b & 0x7fff) < (f == QZ_BF16 ? 0x7f80u : 0x7c00u))
                v[n++] = (uint16_t)b;
        for (w = 0; w < WIDTHS; w++) {
            cluster(s, v, n, (enum qz_format)f, scale, widths[w], t, idx, &r);
            cpu_mask(0);
            cluster(s, v, n, (enum qz_format)f, scale, widths[w], t2, idx2,
                    &r2);
            cpu_mask(~0u);
            cr_assert_eq(memcmp(t, t2, sizeof *t << widths[w]), 0);
            cr_assert_eq(memcmp(idx, idx2, n), 0);
            cr_assert_eq(r.sse, r2.sse);
            cr_assert_eq(r.distinct, n - 1);
        }
    }
    qz_scratch_free(s);
}

Test(cluster, order_simd_level_and_history_do_not_matter)
{
    static uint16_t v[8192], u[8192];
    static uint8_t a[8192], b[8192];
    struct qz_scratch *s = scratch(), *fresh;
    struct qz_result r, r2;
    f16_t t[256], t2[256];
    int f, w, shape;
    size_t i;

    for (f = 0; f < 2; f++)
        for (shape = 0; shape < SHAPES; shape++)
            for (w = 0; w < WIDTHS; w++) {
                size_t n = 1 + t_below(&seed, 8192);

                fill(v, n, (enum qz_format)f, (enum shape)shape);
                cluster(s, v, n, (enum qz_format)f, 0, widths[w], t, a, &r);
                memcpy(u, v, sizeof v);
                for (i = n; i > 1; i--) {
                    size_t j = t_below(&seed, (uint32_t)i);
                    uint16_t x = u[i - 1];

                    u[i - 1] = u[j];
                    u[j] = x;
                }
                fresh = scratch();
                cpu_mask(0);
                cluster(fresh, u, n, (enum qz_format)f, 0, widths[w], t2, b,
                        &r2);
                cr_assert_eq(memcmp(t, t2, sizeof *t << widths[w]), 0);
                cr_assert_eq(r.sse, r2.sse);
                cr_assert_eq(r.sum_sq, r2.sum_sq);
                cluster(fresh, v, n, (enum qz_format)f, 0, widths[w], t2, b,
                        &r2);
                cr_assert_eq(memcmp(a, b, n), 0);
                cpu_mask(~0u);
                qz_scratch_free(fresh);
            }
    qz_scratch_free(s);
}

Test(cluster, formats_agree_on_common_values)
{
    static uint16_t v[4096], h[4096];
    static uint8_t a[4096], b[4096];
    struct qz_scratch *s = scratch();
    struct qz_result r, r2;
    f16_t t[256], t2[256];
    int w;
    size_t i;

    fill(v, 4096, QZ_BF16, GAUSS);
    for (i = 0; i < 4096; i++) {
        h[i] = f64_to_f16(value_of(v[i], QZ_BF16));
        v[i] = bits_of(value_of(h[i], QZ_F16), QZ_BF16);
        h[i] = f64_to_f16(value_of(v[i], QZ_BF16));
    }
    for (w = 0; w < WIDTHS; w++) {
        cluster(s, v, 4096, QZ_BF16, 0, widths[w], t, a, &r);
        cluster(s, h, 4096, QZ_F16, 0, widths[w], t2, b, &r2);
        cr_assert_eq(memcmp(t, t2, sizeof *t << widths[w]), 0);
        cr_assert_eq(memcmp(a, b, 4096), 0);
    }
    qz_scratch_free(s);
}

Test(cluster, signal_to_noise_of_known_distributions)
{
    /* Decibels of 8 x 1024 groups with some spread of scale over the rows,
     * measured with another implementation. */
    static const double want[2][WIDTHS] = {
        { 4.0, 8.7, 13.9, 19.6, 31.8, 44.9 },
        { 3.1, 7.1, 11.9, 17.7, 30.5, 44.1 }
    };
    static uint16_t v[8192];
    static uint8_t idx[8192];
    struct qz_scratch *s = scratch();
    f16_t t[256];
    int shape, w, g, row, i;

    for (shape = 0; shape < 2; shape++)
        for (w = 0; w < WIDTHS; w++) {
            double sse = 0, sum = 0, db;

            for (g = 0; g < 8; g++) {
                struct qz_result r;

                for (row = 0; row < 8; row++) {
                    double scale = 0.02 * exp(0.25 * t_gauss(&seed));

                    for (i = 0; i < 1024; i++)
                        v[row * 1024 + i] =
                            bits_of(scale * (shape == 0 ? t_gauss(&seed)
                                                        : t_student5(&seed)),
                                    QZ_BF16);
                }
                cluster(s, v, 8192, QZ_BF16, 0, widths[w], t, idx, &r);
                sse += r.sse;
                sum += r.sum_sq;
            }
            db = 10 * log10(sum / sse);
            cr_assert_leq(fabs(db - want[shape][w]), 0.6,
                          "shape %d, %d bits: %.2f dB, not %.1f", shape,
                          widths[w], db, want[shape][w]);
        }
    qz_scratch_free(s);
}
