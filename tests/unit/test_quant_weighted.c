/*
 * Clustering under importances: the optimum of a plain program on thousands of
 * small groups, importances that stand for repeated values, degenerate ones,
 * and the streamed matrix at any number of threads and SIMD level.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "quant/quant.h"
#include "t_rand.h"

static uint64_t seed = 11;

static struct qz_scratch *scratch(void)
{
    struct err e = ERR_INIT;
    struct qz_scratch *s = qz_scratch_new(&e);

    cr_assert_not_null(s, "%s", e.text);
    return s;
}

static void weighted(struct qz_scratch *s, const uint16_t *v, const float *imp,
                     size_t n, int bits, f16_t *table, uint8_t *idx,
                     struct qz_result *r)
{
    struct err e = ERR_INIT;

    cr_assert_eq(qz_cluster_weighted(s, v, imp, n, QZ_BF16, 0, bits, table, idx,
                                     r, &e),
                 0, "%s", e.text);
}

/* ---- against all partitions ---- */

struct point {
    double x, w;
};

static int by_x(const void *a, const void *b)
{
    double x = ((const struct point *)a)->x, y = ((const struct point *)b)->x;

    return x < y ? -1 : x > y;
}

static double run_cost(const struct point *p, size_t j, size_t i)
{
    long double w = 0, s = 0, mean, c = 0;
    size_t t;

    for (t = j; t < i; t++) {
        w += p[t].w;
        s += (long double)p[t].w * p[t].x;
    }
    mean = w > 0 ? s / w : p[j].x;
    for (t = j; t < i; t++)
        c += p[t].w * (p[t].x - mean) * (p[t].x - mean);
    return (double)c;
}

/* The least weighted error of at most k clusters: every last border. */
static double optimum(struct point *p, size_t n, int k)
{
    double best[17], next[17];
    size_t i, j;
    int q;

    qsort(p, n, sizeof *p, by_x);
    for (i = 0; i <= n; i++)
        best[i] = i == 0 ? 0 : INFINITY;
    for (q = 0; q < k; q++) {
        for (i = 0; i <= n; i++) {
            next[i] = best[i];
            for (j = 0; j < i; j++)
                if (best[j] + run_cost(p, j, i) < next[i])
                    next[i] = best[j] + run_cost(p, j, i);
        }
        memcpy(best, next, sizeof best);
    }
    return best[n];
}

Test(weighted, the_optimum_of_small_groups)
{
    static const int widths[] = { 1, 2, 3 };
    struct qz_scratch *s = scratch();
    int round;

    for (round = 0; round < 6000; round++) {
        int bits = widths[t_below(&seed, 3)], kind = (int)t_below(&seed, 4);
        size_t n = 2 + t_below(&seed, 15), i;
        struct point p[16];
        uint16_t v[16];
        float imp[16];
        uint8_t idx[16];
        f16_t table[8];
        struct qz_result r;
        double e = 0, sq = 0, all = 0, least, top = 0;

        for (i = 0; i < n; i++) {
            double x = kind == 0 ? (int)t_below(&seed, 9) - 4 : t_gauss(&seed);

            v[i] = f32_to_bf16((float)x);
            imp[i] = kind == 1   ? (float)exp(3 * t_gauss(&seed))
                     : kind == 2 ? (float)t_below(&seed, 3)
                                 : (float)(1 + t_below(&seed, 1000)) * 1e-3f;
            p[i].x = bf16_to_f32(v[i]);
            p[i].w = imp[i];
            all += imp[i];
            top = fabs(p[i].x) > top ? fabs(p[i].x) : top;
        }
        if (all == 0)
            continue;
        weighted(s, v, imp, n, bits, table, idx, &r);
        for (i = 0; i < n; i++) {
            double x = p[i].x, d = x - f16_to_f32(table[idx[i]]);

            e += p[i].w * d * d;
            sq += p[i].w * x * x;
        }
        cr_assert_leq(fabs(e - r.weighted), 1e-12 * e);
        cr_assert_leq(fabs(sq - r.weighted_sq), 1e-12 * sq);
        least = optimum(p, n, 1 << bits);
        cr_assert_geq(e, least * (1 - 1e-9), "round %d", round);
        /* Entries are rounded to fp16, and what counts for less than 1/4096
         * of the mean counts for so much. */
        cr_assert_leq(e,
                      least * (1 + 1e-3) + all * pow(top * 0x1p-11, 2) +
                          all / 2000 * top * top,
                      "round %d, %zu values, %d bits: %g, optimum %g", round, n,
                      bits, e, least);
    }
    qz_scratch_free(s);
}

/* ---- importances as counts ---- */

/* Whole weights of mean 2: exact for the solver. */
static void whole_weights(float *imp, size_t n)
{
    size_t i;

    for (i = 0; i + 2 <= n; i += 2) {
        imp[i] = (float)(1 + t_below(&seed, 3));
        imp[i + 1] = 4 - imp[i];
    }
}

Test(weighted, an_importance_is_a_number_of_copies)
{
    enum { N = 512 };
    static uint16_t v[N], many[4 * N];
    static float imp[N];
    static uint8_t idx[N], idx2[4 * N];
    static const int widths[] = { 1, 2, 3, 4, 6, 8 };
    struct qz_scratch *s = scratch();
    f16_t a[256], b[256];
    struct qz_result r, r2;
    struct err e = ERR_INIT;
    size_t i, m;
    int round, c;

    for (round = 0; round < 300; round++) {
        int bits = widths[round % 6];

        for (i = 0; i < N; i++)
            v[i] = f32_to_bf16((float)((int)t_below(&seed, 2000) - 1000) / 64);
        whole_weights(imp, N);
        for (i = m = 0; i < N; i++)
            for (c = 0; c < (int)imp[i]; c++)
                many[m++] = v[i];
        weighted(s, v, imp, N, bits, a, idx, &r);
        cr_assert_eq(qz_cluster(s, many, m, QZ_BF16, 0, bits, b, idx2, &r2, &e),
                     0);
        cr_assert_eq(memcmp(a, b, sizeof(f16_t) << bits), 0, "round %d", round);
        cr_assert_leq(fabs(r.weighted - r2.sse), 1e-12 * r2.sse);
        cr_assert_leq(fabs(r.weighted_sq - r2.sum_sq), 1e-12 * r2.sum_sq);
        cr_assert_eq(r.distinct, r2.distinct);
    }
    qz_scratch_free(s);
}

enum { GROUP = 8192 };

static void group(uint16_t *v, float *imp)
{
    size_t i;

    for (i = 0; i < GROUP; i++) {
        v[i] = f32_to_bf16((float)(0.02 * t_gauss(&seed)));
        imp[i] = (float)exp(1.5 * t_gauss(&seed));
    }
}

Test(weighted, alike_is_unweighted_and_scale_does_not_matter)
{
    static uint16_t v[GROUP];
    static float imp[GROUP], other[GROUP];
    static uint8_t ia[GROUP], ib[GROUP];
    static const float likes[] = { 0, 1, 0.37f, 1e-30f, 1e-42f, 3e38f };
    struct qz_scratch *s = scratch();
    f16_t a[256], b[256];
    struct qz_result ra, rb;
    struct err e = ERR_INIT;
    size_t i, k;

    group(v, imp);
    cr_assert_eq(qz_cluster(s, v, GROUP, QZ_BF16, 0, 4, a, ia, &ra, &e), 0);
    cr_assert_eq(ra.weighted, ra.sse);
    cr_assert_eq(ra.weighted_sq, ra.sum_sq);
    for (k = 0; k < sizeof likes / sizeof likes[0]; k++) {
        for (i = 0; i < GROUP; i++)
            other[i] = likes[k];
        weighted(s, v, other, GROUP, 4, b, ib, &rb);
        cr_assert_eq(memcmp(a, b, 16 * sizeof *a), 0, "all %g", likes[k]);
        cr_assert_eq(memcmp(ia, ib, GROUP), 0);
        cr_assert_leq(fabs(ra.sse - rb.sse), 1e-12 * ra.sse);
    }
    weighted(s, v, imp, GROUP, 6, a, ia, &ra);
    for (i = 0; i < GROUP; i++)
        other[i] = imp[i] * 0x1p-40f;
    weighted(s, v, other, GROUP, 6, b, ib, &rb);
    cr_assert_eq(memcmp(a, b, 64 * sizeof *a), 0);
    cr_assert_eq(memcmp(ia, ib, GROUP), 0);
    qz_scratch_free(s);
}

Test(weighted, what_counts_more_is_served_better)
{
    static uint16_t v[GROUP];
    static float imp[GROUP];
    static uint8_t idx[GROUP];
    static const int widths[] = { 2, 3, 4, 6, 8 };
    struct qz_scratch *s = scratch();
    f16_t plain[256], table[256];
    struct qz_result r, rp;
    struct err e = ERR_INIT;
    size_t i, w;

    for (w = 0; w < 5; w++) {
        double under_plain = 0;

        group(v, imp);
        /* Those far out are the important ones. */
        for (i = 0; i < GROUP; i++)
            imp[i] *= (float)pow(50 * fabs((double)bf16_to_f32(v[i])), 3);
        cr_assert_eq(qz_cluster(s, v, GROUP, QZ_BF16, 0, widths[w], plain, idx,
                                &rp, &e),
                     0);
        for (i = 0; i < GROUP; i++)
            under_plain += imp[i] * pow((double)bf16_to_f32(v[i]) -
                                            (double)f16_to_f32(plain[idx[i]]),
                                        2);
        weighted(s, v, imp, GROUP, widths[w], table, idx, &r);
        cr_assert_lt(r.weighted, 0.8 * under_plain, "%d bits", widths[w]);
        cr_assert_gt(r.sse, rp.sse);
    }
    qz_scratch_free(s);
}

Test(weighted, one_weight_may_count_for_all)
{
    static uint16_t v[GROUP];
    static float imp[GROUP];
    static uint8_t idx[GROUP];
    struct qz_scratch *s = scratch();
    f16_t table[256];
    struct qz_result r;
    size_t i;

    group(v, imp);
    v[77] = f32_to_bf16(0.01171875f);
    for (i = 0; i < GROUP; i++)
        imp[i] = i == 77 ? 3e38f : 0;
    weighted(s, v, imp, GROUP, 1, table, idx, &r);
    cr_assert_lt(fabs(f16_to_f32(table[idx[77]]) - 0.01171875), 1e-4);
    qz_scratch_free(s);
}

Test(weighted, refusals)
{
    uint16_t v[4] = { 0, 0x3f80, 0x7fc0, 0 };
    float imp[4] = { 1, 2, 0, 4 };
    struct qz_scratch *s = scratch();
    struct qz_result r;
    struct err e = ERR_INIT;
    uint8_t idx[4];
    f16_t table[4];

    cr_assert_eq(qz_cluster_weighted(s, v, imp, 4, QZ_BF16, 0, 2, table, idx,
                                     &r, &e),
                 -1);
    cr_assert_eq(e.code, ERR_INPUT);
    cr_assert_not_null(strstr(e.text, "weight 2 of 4 is nan"), "%s", e.text);
    err_reset(&e);
    cr_assert_eq(qz_cluster_weighted(s, v, imp, ((size_t)1 << 21) + 1, QZ_BF16,
                                     0, 2, table, idx, &r, &e),
                 -1);
    cr_assert_not_null(strstr(e.text, "2097152"), "%s", e.text);
    /* Nothing of it is left behind. */
    v[2] = 0x4000;
    weighted(s, v, imp, 4, 2, table, idx, &r);
    cr_assert_eq(r.sse, 0);
    qz_scratch_free(s);
}

/* ---- the streamed matrix ---- */

struct matrix {
    uint64_t rows, cols;
    uint16_t *v;
    float *imp;
    uint64_t fail_at;
};

static int read_rows(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                     struct err *e)
{
    struct matrix *m = cookie;

    (void)e;
    memcpy(dst, m->v + row * m->cols, n * m->cols * sizeof *dst);
    return 0;
}

static int read_importance(void *cookie, uint64_t row, uint64_t n, float *dst,
                           struct err *e)
{
    struct matrix *m = cookie;

    if (m->fail_at >= row && m->fail_at < row + n)
        return err_set(e, ERR_IO, "importances of row %d", (int)m->fail_at);
    memcpy(dst, m->imp + row * m->cols, n * m->cols * sizeof *dst);
    return 0;
}

static struct matrix matrix(uint64_t rows, uint64_t cols)
{
    struct matrix m = { .rows = rows, .cols = cols, .fail_at = UINT64_MAX };
    struct err e = ERR_INIT;
    uint64_t i;

    m.v = mem_alloc(rows * cols, sizeof *m.v, &e);
    m.imp = mem_alloc(rows * cols, sizeof *m.imp, &e);
    cr_assert(m.v && m.imp);
    for (i = 0; i < rows * cols; i++)
        m.v[i] = f32_to_bf16((float)((int)t_below(&seed, 4000) - 2000) / 256);
    whole_weights(m.imp, rows * cols);
    return m;
}

static struct qz_palette *palette(struct matrix *m, int bits, uint64_t group,
                                  struct par *par)
{
    struct qz_source src = { .rows = m->rows,
                             .cols = m->cols,
                             .format = QZ_BF16,
                             .read_rows = read_rows,
                             .read_importance = read_importance,
                             .cookie = m };
    struct err e = ERR_INIT;
    struct qz_palette *p = qz_palette_new(&src, bits, group, par, &e);

    cr_assert_not_null(p, "%s", e.text);
    return p;
}

/* Everything read, as one string of bytes: indices, then tables. */
static uint8_t *read_all(struct qz_palette *p, size_t *len,
                         struct qz_stats *stats)
{
    size_t n = (size_t)qz_palette_index_bytes(p);
    size_t t = (size_t)qz_palette_table_elems(p) * sizeof(f16_t);
    struct err e = ERR_INIT;
    uint8_t *b = mem_alloc(n + t, 1, &e);

    cr_assert_not_null(b);
    cr_assert_eq(qz_palette_read_indices(p, 0, b, n, &e), 0, "%s", e.text);
    cr_assert_eq(qz_palette_read_tables(p, 0, b + n, t, &e), 0, "%s", e.text);
    qz_palette_stats(p, stats);
    *len = n + t;
    return b;
}

/* The same from qz_cluster_weighted; also for large groups, since the
 * importances are whole. */
static uint8_t *by_group(const struct matrix *m, int bits, uint64_t rows,
                         size_t *len)
{
    size_t gw = (size_t)(rows * m->cols), all = (size_t)(m->rows * m->cols);
    size_t n = (all * (size_t)bits + 7) / 8, g, groups = all / gw;
    size_t t = (groups << bits) * sizeof(f16_t), q;
    struct err e = ERR_INIT;
    uint8_t *b = mem_alloc(n + t, 1, &e), *idx = mem_alloc(all, 1, &e);
    struct qz_scratch *s = scratch();
    struct qz_result r;
    f16_t table[256];

    for (g = 0; g < groups; g++) {
        weighted(s, m->v + g * gw, m->imp + g * gw, gw, bits, table,
                 idx + g * gw, &r);
        for (q = 0; q < (size_t)1 << bits; q++)
            store_le16(b + n + ((g << bits) + q) * 2, table[q]);
    }
    qz_pack(b, idx, all, bits);
    mem_free(idx);
    qz_scratch_free(s);
    *len = n + t;
    return b;
}

Test(weighted, streamed_equals_group_by_group)
{
    static const struct {
        uint64_t rows, cols, group;
        int bits;
    } shapes[] = {
        { 24, 130, 8, 4 },    { 7, 6, 7, 2 },          { 512, 4, 256, 6 },
        { 1200, 1000, 8, 3 }, { 1024, 2048, 1024, 4 },
    };
    size_t i;
    int t, level;

    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct matrix m = matrix(shapes[i].rows, shapes[i].cols);
        size_t len, n;
        uint8_t *want = by_group(&m, shapes[i].bits, shapes[i].group, &len);

        for (t = 1; t <= 3; t++)
            for (level = 0; level < 2; level++) {
                struct err e = ERR_INIT;
                struct par *par = par_new(t, &e);
                struct qz_palette *p =
                    palette(&m, shapes[i].bits, shapes[i].group, par);
                struct qz_stats stats;
                uint8_t *got;

                cpu_mask(level ? ~0u : 0);
                got = read_all(p, &n, &stats);
                cr_assert_eq(n, len);
                cr_assert_eq(memcmp(got, want, n), 0, "shape %zu", i);
                cr_assert_gt(stats.weighted_sq, stats.sum_sq);
                mem_free(got);
                qz_palette_free(p);
                par_free(par);
            }
        cpu_mask(~0u);
        mem_free(want);
        mem_free(m.v);
        mem_free(m.imp);
    }
}

/* A group too large for one go: counted in pieces, to the same table. */
Test(weighted, large_groups)
{
    struct matrix m = matrix(2100, 1024);
    struct qz_palette *p = palette(&m, 4, 2100, NULL);
    struct err e = ERR_INIT;
    struct qz_stats stats;
    size_t len, i;
    uint8_t *got = read_all(p, &len, &stats),
            *idx = mem_alloc(2100 * 1024, 1, &e);
    double sse = 0, werr = 0, w[16] = { 0 }, wx[16] = { 0 };

    cr_assert_not_null(idx);
    qz_unpack(idx, got, 0, 2100 * 1024, 4);
    for (i = 0; i < 2100 * 1024; i++) {
        double x = bf16_to_f32(m.v[i]);
        double d = x - f16_to_f32(load_le16(got + 2100 * 512 + 2 * idx[i]));

        sse += d * d;
        werr += m.imp[i] * d * d;
        w[idx[i]] += m.imp[i];
        wx[idx[i]] += m.imp[i] * x;
    }
    cr_assert_lt(fabs(stats.sse - sse), 1e-9 * sse);
    cr_assert_lt(fabs(stats.weighted - werr), 1e-9 * werr);
    for (i = 0; i < 16; i++) {
        double c = f16_to_f32(load_le16(got + 2100 * 512 + 2 * i));

        cr_assert_lt(fabs(c - wx[i] / w[i]), 1e-3 * fabs(c) + 1e-6,
                     "entry %zu is %g, the weighted mean %g", i, c,
                     wx[i] / w[i]);
    }
    mem_free(idx);
    mem_free(got);
    qz_palette_free(p);
    mem_free(m.v);
    mem_free(m.imp);
}

Test(weighted, failures_of_the_source)
{
    static const uint64_t groups[] = { 8, 2400 };
    struct matrix m = matrix(2400, 1000);
    uint8_t b[16];
    size_t i;

    m.fail_at = 40;
    for (i = 0; i < 2; i++) {
        struct qz_palette *p = palette(&m, 4, groups[i], NULL);
        struct err e = ERR_INIT;

        cr_assert_eq(qz_palette_read_indices(p, 0, b, sizeof b, &e), -1);
        cr_assert_eq(e.code, ERR_IO);
        cr_assert_not_null(strstr(e.text, "row 40"), "%s", e.text);
        qz_palette_free(p);
    }
    mem_free(m.v);
    mem_free(m.imp);
}

Test(weighted, every_failed_allocation_is_reported)
{
    static const uint64_t groups[] = { 8, 2400 };
    struct matrix m = matrix(2400, 1000);
    uint8_t b[16];
    size_t i;
    long n;

    for (i = 0; i < 2; i++)
        for (n = 1;; n++) {
            struct qz_palette *p = palette(&m, 2, groups[i], NULL);
            struct err e = ERR_INIT;
            int rc;

            mem_fail_at(n, false);
            rc = qz_palette_read_indices(p, 0, b, sizeof b, &e);
            mem_fail_at(-1, false);
            qz_palette_free(p);
            if (rc == 0)
                break;
            cr_assert_eq(e.code, ERR_NOMEM, "%s", e.text);
        }
    mem_free(m.v);
    mem_free(m.imp);
}
