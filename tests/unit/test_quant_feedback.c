/*
 * Error feedback: the order of Frantar et al. with its inverse written out,
 * output errors that only fall, local optimality of what comes out, moments
 * of every shape, and the same bytes at any number of threads and SIMD level.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "quant/linear.h"
#include "quant/quant.h"
#include "t_quant.h"
#include "t_rand.h"

static uint64_t seed = 21;

/* The moment of inputs that mix a few sources, in doubles too. */
static float *inputs(size_t width, size_t tokens)
{
    struct err e = ERR_INIT;
    float *h = mem_zalloc(width * width, sizeof *h, &e);
    double *x = mem_alloc(width, sizeof *x, &e), *mix;
    size_t t, i, j, sources = width / 4 + 1;

    mix = mem_alloc(width * sources, sizeof *mix, &e);
    cr_assert(h && x && mix);
    for (i = 0; i < width * sources; i++)
        mix[i] = t_gauss(&seed);
    for (t = 0; t < tokens; t++) {
        for (i = 0; i < width; i++)
            x[i] = 0.5 * t_gauss(&seed);
        for (j = 0; j < sources; j++) {
            double s = t_gauss(&seed);

            for (i = 0; i < width; i++)
                x[i] += s * mix[i * sources + j];
        }
        for (i = 0; i < width; i++)
            for (j = 0; j <= i; j++)
                h[i * width + j] += (float)(x[i] * x[j] / (double)tokens);
    }
    for (i = 0; i < width; i++)
        for (j = 0; j < i; j++)
            h[j * width + i] = h[i * width + j];
    mem_free(x);
    mem_free(mix);
    return h;
}

static struct qz_moment *moment(float *h, size_t width, struct par *par)
{
    struct err e = ERR_INIT;
    struct qz_moment *m = qz_moment_new(h, NULL, width, par, &e);

    cr_assert_not_null(m, "%s", e.text);
    return m;
}

/* ---- the matrix of a test ---- */

#define MAX_TILES 4

struct matrix {
    uint64_t rows, cols;
    uint16_t *v;
    float *imp; /* NULL: none */
    /* Rows from `split` on have the second list of tiles. */
    uint64_t split, width[MAX_TILES];
    const struct qz_moment *m[2][MAX_TILES];
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

    (void)e;
    memcpy(dst, m->imp + row * m->cols, n * m->cols * sizeof *dst);
    return 0;
}

static int get_moment(void *cookie, uint64_t row, uint64_t col, uint64_t *n,
                      const struct qz_moment **out, struct err *e)
{
    struct matrix *m = cookie;
    uint64_t at = 0;
    int t;

    (void)e;
    for (t = 0; t < MAX_TILES && at + m->width[t] <= col; t++)
        at += m->width[t];
    cr_assert_eq(at, col, "a tile is asked for at its first column");
    *n = m->width[t];
    *out = m->m[row >= m->split][t];
    return 0;
}

static struct matrix matrix(uint64_t rows, uint64_t cols)
{
    struct matrix m = { .rows = rows, .cols = cols, .split = UINT64_MAX };
    struct err e = ERR_INIT;
    uint64_t i;

    m.v = mem_alloc(rows * cols, sizeof *m.v, &e);
    cr_assert_not_null(m.v);
    for (i = 0; i < rows * cols; i++)
        m.v[i] = f32_to_bf16((float)(0.02 * t_gauss(&seed)));
    m.width[0] = cols;
    return m;
}

static struct qz_source source(struct matrix *m, bool feed)
{
    struct qz_source src = { .rows = m->rows,
                             .cols = m->cols,
                             .format = QZ_BF16,
                             .read_rows = read_rows,
                             .cookie = m };

    if (m->imp)
        src.read_importance = read_importance;
    if (feed)
        src.moment = get_moment;
    return src;
}

struct result {
    uint8_t *codes;
    f16_t *tables;
    struct qz_stats stats;
    size_t packed;
};

static void run(struct result *r, struct matrix *m, int bits, uint64_t group,
                bool feed, struct par *par)
{
    struct qz_source src = source(m, feed);
    struct err e = ERR_INIT;
    struct qz_palette *p = qz_palette_new(&src, bits, group, par, &e);
    size_t n = (size_t)(m->rows * m->cols), k, i;
    uint8_t *b, *t;

    cr_assert_not_null(p, "%s", e.text);
    r->packed = (size_t)qz_palette_index_bytes(p);
    k = (size_t)qz_palette_table_elems(p);
    b = mem_alloc(r->packed, 1, &e);
    t = mem_alloc(k, 2, &e);
    r->codes = mem_alloc(n, 1, &e);
    r->tables = mem_alloc(k, sizeof *r->tables, &e);
    cr_assert(b && t && r->codes && r->tables);
    cr_assert_eq(qz_palette_read_indices(p, 0, b, r->packed, &e), 0, "%s",
                 e.text);
    cr_assert_eq(qz_palette_read_tables(p, 0, t, 2 * k, &e), 0, "%s", e.text);
    qz_unpack(r->codes, b, 0, n, bits);
    for (i = 0; i < k; i++)
        r->tables[i] = load_le16(t + 2 * i);
    qz_palette_stats(p, &r->stats);
    qz_palette_free(p);
    mem_free(b);
    mem_free(t);
}

static void drop(struct result *r)
{
    mem_free(r->codes);
    mem_free(r->tables);
}

static double stored(const struct result *r, const struct matrix *m, int bits,
                     uint64_t group, uint64_t row, uint64_t col)
{
    return (double)f16_to_f32(
        r->tables[(row / group << bits) + r->codes[row * m->cols + col]]);
}

/* (q - w) H (q - w)' over all rows, with the damped moments. */
static double output_error(const struct result *r, const struct matrix *m,
                           int bits, uint64_t group)
{
    double sum = 0;
    uint64_t row, i, j, at;
    int t;

    for (row = 0; row < m->rows; row++)
        for (t = 0, at = 0; at < m->cols; at += m->width[t++]) {
            const struct qz_moment *mo = m->m[row >= m->split][t];

            for (i = 0; mo && i < mo->width; i++) {
                double d = stored(r, m, bits, group, row, at + i) -
                           (double)bf16_to_f32(m->v[row * m->cols + at + i]);
                double h = 0;

                for (j = 0; j < mo->width; j++)
                    h += (stored(r, m, bits, group, row, at + j) -
                          (double)bf16_to_f32(m->v[row * m->cols + at + j])) *
                         (double)mo->h[i * mo->width + j];
                sum += d * h;
            }
        }
    return sum;
}

/* ---- moments ---- */

/* feed gives back R / diag; R R' is the moment in its order. */
static void check_factor(const struct qz_moment *m)
{
    size_t n = m->width, i, j, k;
    struct err e = ERR_INIT;
    double *d = mem_alloc(n, sizeof *d, &e), *u, trace = 0;

    /* With U = R / diag by column, H = U D U': from the last column back. */
    u = mem_zalloc(n * n, sizeof *u, &e);
    cr_assert(d && u);
    for (j = 0; j < n; j++) {
        u[j * n + j] = 1;
        for (i = 0; i < j; i++)
            u[i * n + j] = (double)m->feed[j * (j - 1) / 2 + i];
        trace += (double)m->h[j * n + j];
        if (j > 0)
            cr_assert_geq(m->h[m->order[j - 1] * n + m->order[j - 1]],
                          m->h[m->order[j] * n + m->order[j]]);
    }
    for (j = n; j-- > 0;) {
        d[j] = (double)m->h[m->order[j] * n + m->order[j]];
        for (k = j + 1; k < n; k++)
            d[j] -= u[j * n + k] * u[j * n + k] * d[k];
        cr_assert_gt(d[j], 0);
    }
    for (i = 0; i < n; i++)
        for (j = 0; j <= i; j++) {
            double s = 0;

            for (k = i; k < n; k++)
                s += u[i * n + k] * u[j * n + k] * d[k];
            cr_assert_leq(fabs(s - (double)m->h[m->order[i] * n + m->order[j]]),
                          1e-5 * trace / (double)n, "%zu, %zu of %zu", i, j, n);
        }
    mem_free(d);
    mem_free(u);
}

Test(feedback, factors_of_every_size)
{
    static const size_t widths[] = { 1, 2, 7, 8, 9, 255, 256, 257, 600 };
    size_t i;

    for (i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        struct qz_moment *m =
            moment(inputs(widths[i], widths[i] / 2 + 3), widths[i], NULL);

        check_factor(m);
        qz_moment_free(m);
    }
}

Test(feedback, moments_that_are_singular_or_zero)
{
    struct err e = ERR_INIT;
    float *h = mem_zalloc(300 * 300, sizeof *h, &e);
    struct qz_moment *m;
    size_t i, j;

    m = moment(h, 300, NULL);
    check_factor(m);
    cr_assert_eq(m->h[5 * 300 + 5], 1);
    qz_moment_free(m);
    /* One token; and a few columns that nothing reaches. */
    h = mem_zalloc(300 * 300, sizeof *h, &e);
    for (i = 10; i < 300; i++)
        for (j = 10; j < 300; j++)
            h[i * 300 + j] =
                (float)((double)(i % 7) - 3) * (float)((double)(j % 7) - 3);
    m = moment(h, 300, NULL);
    check_factor(m);
    cr_assert_gt(m->damping, 0);
    qz_moment_free(m);
}

/* Two parts of a moment, each of `tokens` inputs that mix the same sources. */
static void halves(size_t width, size_t tokens, float *part[2])
{
    struct err e = ERR_INIT;
    size_t sources = width / 2, t, i, j;
    double *mix = mem_alloc(width * sources, sizeof *mix, &e);
    double *x = mem_alloc(width, sizeof *x, &e);
    int q;

    cr_assert(mix && x);
    for (i = 0; i < width * sources; i++)
        mix[i] = t_gauss(&seed);
    for (q = 0; q < 2; q++) {
        part[q] = mem_zalloc(width * width, sizeof **part, &e);
        cr_assert_not_null(part[q]);
        for (t = 0; t < tokens; t++) {
            for (i = 0; i < width; i++)
                x[i] = t_gauss(&seed);
            for (j = 0; j < sources; j++) {
                double s = t_gauss(&seed);

                for (i = 0; i < width; i++)
                    x[i] += s * mix[i * sources + j];
            }
            for (i = 0; i < width; i++)
                for (j = 0; j < width; j++)
                    part[q][i * width + j] +=
                        (float)(x[i] * x[j] / (double)(2 * tokens));
        }
    }
    mem_free(mix);
    mem_free(x);
}

static float *copy_of(const float *h, size_t n)
{
    struct err e = ERR_INIT;
    float *copy = mem_alloc(n, sizeof *h, &e);

    cr_assert_not_null(copy);
    memcpy(copy, h, n * sizeof *h);
    return copy;
}

/* The damping that two parts get, as a share of the mean diagonal. */
static double share_of(const float *h, const float *rest, size_t width)
{
    struct err e = ERR_INIT;
    struct qz_moment *m;
    double mean = 0, share;
    size_t i;

    m = qz_moment_new(copy_of(h, width * width), copy_of(rest, width * width),
                      width, NULL, &e);
    cr_assert_not_null(m, "%s", e.text);
    check_factor(m);
    for (i = 0; i < width * width; i++) {
        double damped = i % (width + 1) == 0 ? m->damping : 0;
        double sum = (double)h[i] + (double)rest[i];

        mean += i % (width + 1) == 0 ? sum / (double)width : 0;
        cr_assert_float_eq((double)m->h[i], sum + damped,
                           1e-5 * (1 + fabs(sum)));
    }
    share = m->damping / mean;
    qz_moment_free(m);
    return share;
}

Test(feedback, halves_choose_the_damping)
{
    enum { W = 64 };
    static const size_t tokens[] = { 20, 100, 500 };
    double before = 2, share;
    static float none[W * W];
    float *part[2];
    size_t i;

    /* The fewer tokens, the more. */
    for (i = 0; i < 3; i++) {
        halves(W, tokens[i], part);
        share = share_of(part[0], part[1], W);
        cr_assert_lt(share, before, "%zu tokens: %g", tokens[i], share);
        cr_assert_float_eq(share, share_of(part[1], part[0], W), 1e-6);
        before = share;
        if (i < 2) {
            cr_assert_gt(share, 0.015);
            /* Nothing speaks against a part but the other. */
            cr_assert_float_eq(share_of(part[0], part[0], W), 0.01, 1e-6);
            cr_assert_float_eq(share_of(part[0], none, W), 0.01, 1e-6);
            cr_assert_float_eq(share_of(none, part[0], W), 0.01, 1e-6);
        }
        mem_free(part[0]);
        mem_free(part[1]);
    }
}

Test(feedback, moments_that_are_refused)
{
    static const float bad[] = { NAN, INFINITY };
    struct err e = ERR_INIT;
    size_t i;
    float *h;

    for (i = 0; i < 4; i++) {
        float *rest = i < 2 ? NULL : inputs(9, 30);

        h = inputs(9, 30);
        (rest ? rest : h)[9 * 3 + 4] = bad[i % 2];
        err_reset(&e);
        cr_assert_null(qz_moment_new(h, rest, 9, NULL, &e));
        cr_assert_eq(e.code, ERR_INPUT);
        cr_assert_not_null(strstr(e.text, "row 3, column 4"), "%s", e.text);
    }
    /* As no sum of squares can be. */
    h = inputs(9, 30);
    h[9 * 2 + 3] = h[9 * 3 + 2] = 1e30f;
    err_reset(&e);
    cr_assert_null(qz_moment_new(h, NULL, 9, NULL, &e));
    cr_assert_not_null(strstr(e.text, "no factor"), "%s", e.text);
}

Test(feedback, moments_do_not_depend_on_threads_or_simd_level)
{
    struct err e = ERR_INIT;
    struct par *par = par_new(3, &e);
    struct qz_moment *a, *b;
    float *part[2];
    int level;

    halves(700, 100, part);
    for (level = 0; level < 2; level++) {
        a = qz_moment_new(copy_of(part[0], 700 * 700),
                          copy_of(part[1], 700 * 700), 700, NULL, &e);
        cpu_mask(level == 0 ? 0 : ~0u);
        b = qz_moment_new(copy_of(part[0], 700 * 700),
                          copy_of(part[1], 700 * 700), 700, par, &e);
        cpu_mask(~0u);
        cr_assert(a && b);
        cr_assert_eq(memcmp(a->feed, b->feed, 700 * 699 / 2 * sizeof *a->feed),
                     0);
        cr_assert_eq(memcmp(a->order, b->order, 700 * sizeof *a->order), 0);
        cr_assert_eq(memcmp(a->h, b->h, 700 * 700 * sizeof *a->h), 0);
        qz_moment_free(a);
        qz_moment_free(b);
    }
    mem_free(part[0]);
    mem_free(part[1]);
    par_free(par);
}

/* ---- against the inverse written out ---- */

#define W 24

/* Upper factor U of the inverse of h in the given order: h^-1 = U' U. */
static void inverse_factor(const struct qz_moment *m, double u[W][W])
{
    double a[W][2 * W], inv[W][W];
    size_t n = m->width, i, j, k;

    for (i = 0; i < n; i++)
        for (j = 0; j < 2 * n; j++)
            a[i][j] = j < n ? (double)m->h[m->order[i] * n + m->order[j]]
                            : (double)(j - n == i);
    for (k = 0; k < n; k++) {
        double p = a[k][k];

        for (j = 0; j < 2 * n; j++)
            a[k][j] /= p;
        for (i = 0; i < n; i++) {
            double f = a[i][k];

            for (j = 0; i != k && j < 2 * n; j++)
                a[i][j] -= f * a[k][j];
        }
    }
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++)
            inv[i][j] = a[i][n + j];
    for (j = 0; j < n; j++) /* L L' = inv, U = L' */
        for (i = j; i < n; i++) {
            double s = inv[i][j];

            for (k = 0; k < j; k++)
                s -= u[k][i] * u[k][j];
            u[j][i] = i == j ? sqrt(s) : s / u[j][j];
        }
}

static int nearest(const f16_t *table, int k, double v)
{
    int q, best = 0;

    for (q = 1; q < k; q++)
        if (fabs(v - (double)f16_to_f32(table[q])) <
            fabs(v - (double)f16_to_f32(table[best])))
            best = q;
    return best;
}

/*
 * With tables of 8 bits nothing is fitted, and a lattice of equal steps makes
 * the table known: the codes before the descent are those of the published
 * loop. Descent is undone by comparing errors: it may only lower them.
 */
Test(feedback, at_least_as_good_as_the_published_loop)
{
    int round, better = 0, equal = 0;

    for (round = 0; round < 300; round++) {
        size_t n = 2 + t_below(&seed, W - 1), i, j, row;
        int bits = round % 3 == 0 ? 2 : round % 3 == 1 ? 4 : 6;
        struct matrix m = matrix(8, n);
        struct qz_moment *mo = moment(inputs(n, n * 3), n, NULL);
        struct result fed, plain;
        static double u[W][W];
        double loop = 0, near, got;

        m.m[0][0] = mo;
        run(&plain, &m, bits, 8, false, NULL);
        run(&fed, &m, bits, 8, true, NULL);
        inverse_factor(mo, u);
        /* The published loop on the plain table. */
        for (row = 0; row < 8; row++) {
            double w[W], d[W];

            for (j = 0; j < n; j++)
                w[j] = (double)bf16_to_f32(m.v[row * n + mo->order[j]]);
            for (j = 0; j < n; j++) {
                int q = nearest(plain.tables, 1 << bits, w[j]);
                double c = (double)f16_to_f32(plain.tables[q]);
                double err = (w[j] - c) / u[j][j];

                d[j] = c - (double)bf16_to_f32(m.v[row * n + mo->order[j]]);
                for (i = j; i < n; i++)
                    w[i] -= err * u[j][i];
            }
            for (i = 0; i < n; i++)
                for (j = 0; j < n; j++)
                    loop += d[i] * d[j] *
                            (double)mo->h[mo->order[i] * n + mo->order[j]];
        }
        near = output_error(&plain, &m, bits, 8);
        got = output_error(&fed, &m, bits, 8);
        cr_assert_leq(got, loop * (1 + 1e-4) + 1e-9 * near,
                      "round %d, %zu columns, %d bits: %g, the loop %g, "
                      "nearest %g",
                      round, n, bits, got, loop, near);
        better += got < 0.999 * loop;
        equal += fabs(got - loop) < 1e-3 * loop;
        cr_assert_leq(fabs(fed.stats.output - got), 1e-4 * got + 1e-12 * near);
        cr_assert_gt(fed.stats.output_sq, 0);
        drop(&fed);
        drop(&plain);
        qz_moment_free(mo);
        mem_free(m.v);
    }
    /* The descent finds something in most cases, and not always. */
    cr_assert_gt(better, 150);
    cr_assert_gt(equal, 5);
}

Test(feedback, without_correlation_nearest_is_best)
{
    static const int widths[] = { 6, 8 };
    size_t w, i;

    for (w = 0; w < 2; w++) {
        struct matrix m = matrix(48, 200);
        struct err e = ERR_INIT;
        float *h = mem_zalloc(200 * 200, sizeof *h, &e);
        struct result fed, plain;
        struct qz_moment *mo;

        for (i = 0; i < 200; i++)
            h[i * 200 + i] = (float)exp(t_gauss(&seed));
        m.m[0][0] = mo = moment(h, 200, NULL);
        run(&plain, &m, widths[w], 8, false, NULL);
        run(&fed, &m, widths[w], 8, true, NULL);
        cr_assert_eq(memcmp(plain.tables, fed.tables,
                            (size_t)(6 << widths[w]) * sizeof(f16_t)),
                     0);
        cr_assert_eq(memcmp(plain.codes, fed.codes, 48 * 200), 0);
        cr_assert_eq(plain.stats.sse, fed.stats.sse);
        drop(&plain);
        drop(&fed);
        qz_moment_free(mo);
        mem_free(m.v);
    }
}

/* No single code can be changed for the better. */
Test(feedback, what_comes_out_is_locally_best)
{
    static const int widths[] = { 1, 2, 3, 4, 6 };
    size_t w, row, j, i;
    int q;

    for (w = 0; w < 5; w++) {
        int bits = widths[w];
        struct matrix m = matrix(16, 64);
        struct qz_moment *mo = moment(inputs(64, 200), 64, NULL);
        struct result r;
        int open = 0;

        m.m[0][0] = mo;
        run(&r, &m, bits, 8, true, NULL);
        for (row = 0; row < 16; row++) {
            double d[64], g[64];

            for (j = 0; j < 64; j++)
                d[j] = stored(&r, &m, bits, 8, row, j) -
                       (double)bf16_to_f32(m.v[row * 64 + j]);
            for (j = 0; j < 64; j++)
                for (g[j] = 0, i = 0; i < 64; i++)
                    g[j] += d[i] * (double)mo->h[i * 64 + j];
            for (j = 0; j < 64; j++)
                for (q = 0; q < 1 << bits; q++) {
                    double c = (double)f16_to_f32(
                                   r.tables[(row / 8 << bits) + (size_t)q]) -
                               stored(&r, &m, bits, 8, row, j);

                    /* Two cycles come close to the end, not to it. */
                    open +=
                        2 * c * g[j] + c * c * (double)mo->h[j * 65] < -1e-9;
                }
        }
        cr_assert_leq(open, 16 * 64 / 40, "%d bits: %d codes", bits, open);
        drop(&r);
        qz_moment_free(mo);
        mem_free(m.v);
    }
}

Test(feedback, gains_in_the_output)
{
    static const struct {
        int bits;
        double at_most; /* of the nearest codes' output error */
    } want[] = { { 2, 0.5 }, { 3, 0.45 }, { 4, 0.45 }, { 6, 0.45 } };
    size_t i;

    for (i = 0; i < 4; i++) {
        struct matrix m = matrix(64, 256);
        struct qz_moment *mo = moment(inputs(256, 1000), 256, NULL);
        struct result fed, plain;
        double a, b;

        m.m[0][0] = mo;
        run(&plain, &m, want[i].bits, 8, false, NULL);
        run(&fed, &m, want[i].bits, 8, true, NULL);
        a = output_error(&plain, &m, want[i].bits, 8);
        b = output_error(&fed, &m, want[i].bits, 8);
        cr_assert_lt(b, want[i].at_most * a, "%d bits: %g of %g", want[i].bits,
                     b, a);
        /* At the price of the weights' own error. */
        cr_assert_gt(fed.stats.sse, plain.stats.sse);
        drop(&plain);
        drop(&fed);
        qz_moment_free(mo);
        mem_free(m.v);
    }
}

/* ---- tiles, groups, threads ---- */

static struct matrix tiled(struct qz_moment *mo[4])
{
    struct matrix m = matrix(96, 300);
    int i;

    m.width[0] = 100;
    m.width[1] = 40;
    m.width[2] = 160;
    m.split = 40;
    mo[0] = moment(inputs(100, 300), 100, NULL);
    mo[1] = moment(inputs(160, 300), 160, NULL);
    mo[2] = moment(inputs(100, 300), 100, NULL);
    mo[3] = moment(inputs(40, 300), 40, NULL);
    m.m[0][0] = mo[0];
    m.m[0][2] = mo[1];
    m.m[1][0] = mo[2];
    m.m[1][1] = mo[3];
    m.imp = NULL;
    for (i = 0; i < 4; i++)
        cr_assert_not_null(mo[i]);
    return m;
}

static bool same(const struct result *a, const struct result *b,
                 const struct matrix *m, int bits, uint64_t group)
{
    return memcmp(a->codes, b->codes, (size_t)(m->rows * m->cols)) == 0 &&
           memcmp(a->tables, b->tables,
                  (size_t)(m->rows / group << bits) * sizeof(f16_t)) == 0 &&
           a->stats.sse == b->stats.sse && a->stats.output == b->stats.output &&
           a->stats.output_sq == b->stats.output_sq;
}

Test(feedback, tiles_of_several_moments)
{
    static const uint64_t groups[] = { 1, 2, 8, 16, 24, 48, 96 };
    static const int widths[] = { 2, 4, 6 };
    struct qz_moment *mo[4];
    struct matrix m = tiled(mo);
    struct err e = ERR_INIT;
    struct par *par = par_new(3, &e);
    size_t g, w;

    for (g = 0; g < 7; g++)
        for (w = 0; w < 3; w++) {
            int bits = widths[w];
            struct result a, b, plain;

            run(&plain, &m, bits, groups[g], false, NULL);
            run(&a, &m, bits, groups[g], true, NULL);
            cr_assert_lt(output_error(&a, &m, bits, groups[g]),
                         0.8 * output_error(&plain, &m, bits, groups[g]),
                         "group %d, %d bits", (int)groups[g], bits);
            run(&b, &m, bits, groups[g], true, par);
            cr_assert(same(&a, &b, &m, bits, groups[g]), "threads");
            drop(&b);
            cpu_mask(0);
            run(&b, &m, bits, groups[g], true, NULL);
            cpu_mask(~0u);
            cr_assert(same(&a, &b, &m, bits, groups[g]), "SIMD level");
            drop(&b);
            drop(&a);
            drop(&plain);
        }
    for (g = 0; g < 4; g++)
        qz_moment_free(mo[g]);
    mem_free(m.v);
    par_free(par);
}

/* Where no moment is, codes are the nearest ones: bits that fit no table. */
Test(feedback, columns_without_a_moment)
{
    struct qz_moment *mo[4];
    struct matrix m = tiled(mo);
    struct result a, plain;
    uint64_t row, col;
    size_t g;

    run(&plain, &m, 6, 8, false, NULL);
    run(&a, &m, 6, 8, true, NULL);
    for (row = 0; row < m.rows; row++)
        for (col = 0; col < m.cols; col++)
            if (row < 40 ? col >= 100 && col < 140 : col >= 140)
                cr_assert_eq(a.codes[row * 300 + col],
                             plain.codes[row * 300 + col]);
    drop(&a);
    drop(&plain);
    for (g = 0; g < 4; g++)
        qz_moment_free(mo[g]);
    mem_free(m.v);
}

/* Beyond 2^21 weights a group is fed in parts; its table is not fitted. */
Test(feedback, large_groups)
{
    struct matrix m = matrix(4200, 512);
    struct err e = ERR_INIT;
    struct par *par = par_new(2, &e);
    struct qz_moment *mo = moment(inputs(512, 600), 512, par);
    struct result a, b, plain;
    double x = 0;

    m.m[0][0] = mo;
    run(&plain, &m, 3, 4200, false, par);
    run(&a, &m, 3, 4200, true, par);
    run(&b, &m, 3, 4200, true, NULL);
    cr_assert(same(&a, &b, &m, 3, 4200));
    cr_assert_eq(memcmp(a.tables, plain.tables, 8 * sizeof(f16_t)), 0);
    cr_assert_eq(a.stats.groups, 1);
    cr_assert_eq(a.stats.weights, 4200 * 512);
    for (size_t i = 0; i < 4200 * 512; i++)
        x += pow((double)bf16_to_f32(m.v[i]) -
                     (double)f16_to_f32(a.tables[a.codes[i]]),
                 2);
    cr_assert_leq(fabs(x - a.stats.sse), 1e-9 * x);
    m.rows = 64;
    cr_assert_lt(output_error(&a, &m, 3, 4200),
                 0.7 * output_error(&plain, &m, 3, 4200));
    drop(&a);
    drop(&b);
    drop(&plain);
    qz_moment_free(mo);
    mem_free(m.v);
    par_free(par);
}

/* The same bytes again when they are read again, and anywhere. */
Test(feedback, reads_in_any_order)
{
    struct matrix m = matrix(2400, 700);
    struct qz_moment *mo = moment(inputs(700, 300), 700, NULL);
    struct qz_source src;
    struct err e = ERR_INIT;
    struct qz_palette *p;
    struct qz_stats s, s2;
    uint8_t *all, part[3000];
    size_t n;
    int i;

    m.m[0][0] = mo;
    src = source(&m, true);
    p = qz_palette_new(&src, 3, 8, NULL, &e);
    cr_assert_not_null(p);
    n = (size_t)qz_palette_index_bytes(p);
    all = mem_alloc(n, 1, &e);
    cr_assert_eq(qz_palette_read_indices(p, 0, all, n, &e), 0);
    qz_palette_stats(p, &s);
    for (i = 0; i < 4; i++) {
        size_t at = t_below(&seed, (uint32_t)n - 3000);

        cr_assert_eq(qz_palette_read_indices(p, at, part, 3000, &e), 0);
        cr_assert_eq(memcmp(part, all + at, 3000), 0);
    }
    qz_palette_stats(p, &s2);
    cr_assert_eq(memcmp(&s, &s2, sizeof s), 0);
    qz_palette_free(p);
    mem_free(all);
    qz_moment_free(mo);
    mem_free(m.v);
}

Test(feedback, a_moment_that_does_not_fit)
{
    struct matrix m = matrix(8, 64);
    struct qz_moment *mo = moment(inputs(32, 60), 32, NULL);
    struct qz_source src;
    struct err e = ERR_INIT;
    struct qz_palette *p;
    uint8_t b[8];

    m.m[0][0] = mo; /* the width says 64 */
    src = source(&m, true);
    p = qz_palette_new(&src, 4, 8, NULL, &e);
    cr_assert_eq(qz_palette_read_indices(p, 0, b, 8, &e), -1);
    cr_assert_not_null(strstr(e.text, "does not fit"), "%s", e.text);
    qz_palette_free(p);
    qz_moment_free(mo);
    mem_free(m.v);
}

/* ---- integers ---- */

/* As entries of one table each: what `stored` and output_error read. */
static void run_integers(struct result *r, struct matrix *m, int bits,
                         uint64_t block, bool feed, struct par *par)
{
    struct qz_source src = source(m, feed);
    struct err e = ERR_INIT;
    struct qz_linear *l = qz_linear_new(&src, bits, block, par, &e);
    size_t n = (size_t)(m->rows * m->cols), k, i;
    uint8_t *b, *t;

    cr_assert_not_null(l, "%s", e.text);
    r->packed = (size_t)qz_linear_value_bytes(l);
    k = (size_t)qz_linear_scales(l);
    b = mem_alloc(r->packed, 1, &e);
    t = mem_alloc(k, 2, &e);
    r->codes = mem_alloc(n, 1, &e);
    r->tables = mem_alloc(n, sizeof *r->tables, &e);
    cr_assert(b && t && r->codes && r->tables);
    cr_assert_eq(qz_linear_read_values(l, 0, b, r->packed, &e), 0, "%s",
                 e.text);
    cr_assert_eq(qz_linear_read_scales(l, 0, t, 2 * k, &e), 0, "%s", e.text);
    qz_linear_stats(l, &r->stats);
    qz_linear_free(l);
    for (i = 0; i < n; i++) {
        int q = bits == 8 ? (int8_t)b[i] : b[i / 2] >> (i % 2 * 4) & 15;
        f16_t scale = load_le16(t + 2 * (block ? i / block : 0));

        q = bits == 4 && q > 7 ? q - 16 : q;
        r->codes[i] = (uint8_t)(i % m->cols);
        r->tables[i] = f32_to_f16((float)q * f16_to_f32(scale));
    }
    mem_free(b);
    mem_free(t);
}

/* One row is a group of `cols` entries here, and 2^bits of them are cols. */
static double integers_error(const struct result *r, const struct matrix *m)
{
    cr_assert_eq(m->cols, 256);
    return output_error(r, m, 8, 1);
}

static bool same_integers(const struct result *a, const struct result *b,
                          const struct matrix *m)
{
    return !memcmp(a->tables, b->tables,
                   (size_t)(m->rows * m->cols) * sizeof(f16_t)) &&
           a->stats.sse == b->stats.sse;
}

Test(feedback, integers)
{
    static const struct {
        int bits;
        uint64_t block;
    } forms[] = { { 4, 32 }, { 4, 256 }, { 8, 256 }, { 4, 0 }, { 8, 0 } };
    struct err e = ERR_INIT;
    struct par *par = par_new(3, &e);
    size_t i;

    for (i = 0; i < 5; i++) {
        struct matrix m = matrix(70, 256);
        struct qz_moment *mo = moment(inputs(256, 1000), 256, NULL);
        struct result fed, plain, again;
        double a, b;

        m.m[0][0] = mo;
        run_integers(&plain, &m, forms[i].bits, forms[i].block, false, NULL);
        run_integers(&fed, &m, forms[i].bits, forms[i].block, true, NULL);
        a = integers_error(&plain, &m);
        b = integers_error(&fed, &m);
        cr_assert_lt(b, 0.6 * a, "int%d, %d: %g of %g", forms[i].bits,
                     (int)forms[i].block, b, a);
        cr_assert_gt(fed.stats.sse, plain.stats.sse);
        run_integers(&again, &m, forms[i].bits, forms[i].block, true, par);
        cr_assert(same_integers(&fed, &again, &m), "threads");
        drop(&again);
        cpu_mask(0);
        run_integers(&again, &m, forms[i].bits, forms[i].block, true, NULL);
        cpu_mask(~0u);
        cr_assert(same_integers(&fed, &again, &m), "SIMD level");
        drop(&again);
        drop(&plain);
        drop(&fed);
        qz_moment_free(mo);
        mem_free(m.v);
    }
    par_free(par);
}

/* Two kinds of rows, and columns that nobody has moments of. */
Test(feedback, integers_in_tiles)
{
    struct matrix m = matrix(70, 256);
    struct qz_moment *a = moment(inputs(100, 300), 100, NULL);
    struct qz_moment *b = moment(inputs(116, 300), 116, NULL);
    struct result fed, plain;
    uint64_t i;

    m.width[0] = 100;
    m.width[1] = 40;
    m.width[2] = 116;
    m.split = 37;
    m.m[0][0] = a;
    m.m[1][2] = b;
    run_integers(&plain, &m, 4, 64, false, NULL);
    run_integers(&fed, &m, 4, 64, true, NULL);
    cr_assert_lt(integers_error(&fed, &m), 0.7 * integers_error(&plain, &m));
    for (i = 0; i < 70 * 256; i++)
        if (i / 256 < 37 ? i % 256 >= 100 : i % 256 < 140)
            cr_assert_eq(fed.tables[i], plain.tables[i]);
    drop(&fed);
    drop(&plain);
    qz_moment_free(a);
    qz_moment_free(b);
    mem_free(m.v);
}

Test(feedback, integers_without_memory)
{
    struct matrix m = matrix(16, 64);
    struct qz_moment *mo = moment(inputs(64, 60), 64, NULL);
    struct qz_source src;

    m.m[0][0] = mo;
    src = source(&m, true);
    t_quant_linear_without_memory(&src);
    qz_moment_free(mo);
    mem_free(m.v);
}

Test(feedback, every_failed_allocation_is_reported)
{
    struct matrix m = matrix(64, 64);
    float *h = inputs(64, 60), *copy, *rest;
    uint8_t b[8];
    long n;

    for (n = 1;; n++) {
        struct err e = ERR_INIT;
        struct qz_palette *p = NULL;
        struct qz_source src;
        struct qz_moment *mo;
        int rc = -1;

        copy = copy_of(h, 64 * 64);
        rest = copy_of(h, 64 * 64);
        mem_fail_at(n, false);
        m.m[0][0] = mo = qz_moment_new(copy, rest, 64, NULL, &e);
        src = source(&m, true);
        if (mo && (p = qz_palette_new(&src, 2, 8, NULL, &e)))
            rc = qz_palette_read_indices(p, 0, b, sizeof b, &e);
        mem_fail_at(-1, false);
        qz_palette_free(p);
        qz_moment_free(mo);
        if (rc == 0)
            break;
        cr_assert_eq(e.code, ERR_NOMEM, "%s", e.text);
    }
    mem_free(h);
    mem_free(m.v);
}
