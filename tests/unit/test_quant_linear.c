/*
 * Linear quantization: the least error over all scales, what is known of
 * distributions, degenerate blocks, importances, and the streamed matrix.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "quant/linear.h"
#include "t_quant.h"
#include "t_rand.h"

static uint64_t seed = 31;

/* ---- one block ---- */

static double error_of(const float *x, const float *imp, size_t n, double s,
                       int top)
{
    double sum = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        double q = nearbyint((double)x[i] / s), d;

        q = q > top ? top : q < -top - 1 ? -top - 1 : q;
        d = (double)x[i] - s * q;
        sum += (imp ? (double)imp[i] : 1) * d * d;
    }
    return sum;
}

static double error_with(const float *x, const float *imp, size_t n, double s,
                         const int8_t *q)
{
    double sum = 0;
    size_t i;

    for (i = 0; i < n; i++)
        sum += (imp ? (double)imp[i] : 1) *
               pow((double)x[i] - s * (double)q[i], 2);
    return sum;
}

/* All scales there are near the largest magnitude's. */
Test(linear, near_the_least_error_of_every_scale)
{
    int round, rounds = 0;
    double all = 0;

    for (round = 0; round < 400; round++) {
        size_t n = round % 5 == 0 ? 1 + t_below(&seed, 7) : 32, i;
        int top = round % 2 ? 7 : 127;
        float x[32], imp[32];
        const float *w = round % 3 ? NULL : imp;
        int8_t q[32];
        double s, got, best = INFINITY, max = 0;
        f16_t h;

        for (i = 0; i < n; i++) {
            x[i] = bf16_to_f32(f32_to_bf16(
                (float)(0.02 *
                        (round % 4 < 2 ? t_gauss(&seed) : t_student5(&seed)))));
            imp[i] = (float)exp(2 * t_gauss(&seed));
            max = fmax(max, fabs((double)x[i]));
        }
        s = (double)f16_to_f32(qz_linear_block(x, w, n, top, q));
        got = error_with(x, w, n, s, q);
        for (i = 0; i < n; i++)
            cr_assert(q[i] >= -top - 1 && q[i] <= top);
        /* Nearest integers for the scale. */
        cr_assert_leq(got, error_of(x, w, n, s, top) * (1 + 1e-5) + 1e-18);
        for (h = f32_to_f16((float)(max / top * 0.4));
             h <= f32_to_f16((float)(max / top * 1.2)); h++) {
            double e = f16_to_f32(h) < 0x1p-14f
                           ? INFINITY
                           : error_of(x, w, n, (double)f16_to_f32(h), top);

            best = e < best ? e : best;
        }
        /* Few values on many steps may fit a scale by chance that no search
         * meets. */
        if (max / top < 0x1p-14)
            continue;
        if (top > 7 || n < 32)
            cr_assert_leq(got, error_of(x, w, n,
                                        (double)f16_to_f32(
                                            f32_to_f16((float)(max / top))),
                                        top) *
                                       (1 + 1e-5) +
                                   1e-16);
        else
            cr_assert_leq(got, 2.5 * best + 1e-16, "round %d: %g, best %g",
                          round, got, best);
        if (top == 7 && n == 32) {
            all += got / best;
            rounds++;
        }
    }
    cr_assert_lt(all, 1.12 * rounds, "%g over %d", all, rounds);
}

Test(linear, blocks_by_hand)
{
    float x[8] = { 0 }, imp[8] = { 0 };
    int8_t q[8];
    size_t i;

    /* Zeros: any normal scale. */
    cr_assert_eq(qz_linear_block(x, NULL, 8, 7, q), f32_to_f16(1));
    for (i = 0; i < 8; i++)
        cr_assert_eq(q[i], 0);
    /* A grid is met exactly. */
    for (i = 0; i < 8; i++)
        x[i] = 0.25f * (float)((int)i - 1);
    x[7] = -1.75f;
    cr_assert_eq(qz_linear_block(x, NULL, 8, 7, q), f32_to_f16(0.25f));
    cr_assert_eq(q[7], -7);
    cr_assert_eq(q[6], 5);
    /* Importances of nothing count alike. */
    cr_assert_eq(qz_linear_block(x, imp, 8, 7, q), f32_to_f16(0.25f));
    /* One that counts alone is met. */
    x[3] = 0.1f;
    imp[3] = 1e30f;
    cr_assert_lt(fabs((double)x[3] -
                      (double)f16_to_f32(qz_linear_block(x, imp, 8, 7, q)) *
                          (double)q[3]),
                 1e-3);
    /* Smaller than fp16's normal numbers can scale: the least one. */
    for (i = 0; i < 8; i++)
        x[i] = 1e-7f * (float)i;
    cr_assert_eq(qz_linear_block(x, NULL, 8, 7, q), f32_to_f16(0x1p-14f));
    /* The largest of fp16. */
    for (i = 0; i < 8; i++)
        x[i] = i % 2 ? 65504 : -65504;
    (void)qz_linear_block(x, NULL, 8, 7, q);
    cr_assert_eq(q[1], 7);
    cr_assert(q[0] == -7 || q[0] == -8);
}

/* ---- the matrix ---- */

struct matrix {
    uint64_t rows, cols;
    uint16_t *v;
    float *imp;
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

static struct matrix matrix(uint64_t rows, uint64_t cols, bool tails)
{
    struct matrix m = { rows, cols, NULL, NULL };
    struct err e = ERR_INIT;
    uint64_t i, r;

    m.v = mem_alloc(rows * cols, sizeof *m.v, &e);
    cr_assert_not_null(m.v);
    for (r = 0; r < rows; r++) {
        double scale = 0.02 * exp(0.25 * t_gauss(&seed));

        for (i = 0; i < cols; i++)
            m.v[r * cols + i] = f32_to_bf16(
                (float)(scale * (tails ? t_student5(&seed) : t_gauss(&seed))));
    }
    return m;
}

struct result {
    int8_t *q;
    f16_t *scales;
    struct qz_stats stats;
};

static struct qz_linear *open(struct matrix *m, int bits, uint64_t block,
                              struct par *par)
{
    struct qz_source src = { .rows = m->rows,
                             .cols = m->cols,
                             .format = QZ_BF16,
                             .read_rows = read_rows,
                             .read_importance = m->imp ? read_importance : NULL,
                             .cookie = m };
    struct err e = ERR_INIT;
    struct qz_linear *l = qz_linear_new(&src, bits, block, par, &e);

    cr_assert_not_null(l, "%s", e.text);
    return l;
}

static void run(struct result *r, struct matrix *m, int bits, uint64_t block,
                struct par *par, size_t step)
{
    struct err e = ERR_INIT;
    struct qz_linear *l = open(m, bits, block, par);
    size_t n = (size_t)qz_linear_value_bytes(l), at, len, i;
    size_t k = (size_t)qz_linear_scales(l), all = (size_t)(m->rows * m->cols);
    uint8_t *b = mem_alloc(n, 1, &e), *s = mem_alloc(k, 2, &e);

    r->q = mem_alloc(all, 1, &e);
    r->scales = mem_alloc(k, sizeof *r->scales, &e);
    cr_assert(b && s && r->q && r->scales);
    for (at = 0; at < n; at += len) {
        len = n - at < step ? n - at : step;
        cr_assert_eq(qz_linear_read_values(l, at, b + at, len, &e), 0, "%s",
                     e.text);
    }
    cr_assert_eq(qz_linear_read_scales(l, 0, s, 2 * k, &e), 0);
    for (i = 0; i < all; i++)
        r->q[i] = bits == 8 ? (int8_t)b[i]
                  : i % 2   ? (int8_t)((int8_t)b[i / 2] >> 4)
                            : (int8_t)((int8_t)(uint8_t)(b[i / 2] << 4) >> 4);
    for (i = 0; i < k; i++)
        r->scales[i] = load_le16(s + 2 * i);
    qz_linear_stats(l, &r->stats);
    qz_linear_free(l);
    mem_free(b);
    mem_free(s);
}

static void drop(struct result *r)
{
    mem_free(r->q);
    mem_free(r->scales);
}

static double snr(const struct result *r)
{
    return 10 * log10(r->stats.sum_sq / r->stats.sse);
}

/* What the plain rule leaves: the largest magnitude over the greatest integer.
 */
static double plain_snr(const struct matrix *m, int top, uint64_t block)
{
    double sse = 0, sum = 0;
    uint64_t i, b;
    float x[1024];

    for (b = 0; b < m->rows * m->cols; b += block) {
        double max = 0;

        for (i = 0; i < block; i++) {
            x[i] = bf16_to_f32(m->v[b + i]);
            max = fmax(max, fabs((double)x[i]));
            sum += (double)x[i] * (double)x[i];
        }
        sse +=
            error_of(x, NULL, block,
                     (double)f16_to_f32(f32_to_f16((float)(max / top))), top);
    }
    return 10 * log10(sum / sse);
}

/* In dB; the least is what is published for this rule. */
Test(linear, signal_to_noise_of_known_distributions)
{
    static const struct {
        int bits;
        uint64_t block;
        bool tails;
        double at_least;
    } want[] = {
        { 4, 32, false, 21.1 },   { 4, 32, true, 19.0 },
        { 4, 1024, false, 19.2 }, { 4, 1024, true, 14.7 },
        { 8, 1024, false, 42.0 }, { 8, 1024, true, 36.0 },
        { 8, 32, false, 45.3 },   { 8, 32, true, 43.2 },
    };
    size_t i;

    for (i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct matrix m = matrix(256, 1024, want[i].tails);
        struct result r;

        run(&r, &m, want[i].bits, want[i].block, NULL, 1 << 20);
        cr_assert_gt(snr(&r), want[i].at_least, "%d bits, block %d: %g dB",
                     want[i].bits, (int)want[i].block, snr(&r));
        cr_assert_gt(snr(&r),
                     plain_snr(&m, want[i].bits == 4 ? 7 : 127, want[i].block));
        drop(&r);
        mem_free(m.v);
    }
}

static void check_result(const struct result *r, const struct matrix *m,
                         int bits, uint64_t block)
{
    double sse = 0, sum = 0;
    uint64_t i, j;
    int top = (1 << (bits - 1)) - 1;

    for (i = 0; i < m->rows; i++)
        for (j = 0; j < m->cols; j++) {
            f16_t h = r->scales[block ? i * (m->cols / block) + j / block : 0];
            double s = (double)f16_to_f32(h), x, d;
            int q = r->q[i * m->cols + j];

            x = (double)bf16_to_f32(m->v[i * m->cols + j]);
            d = x - s * q;
            cr_assert_geq(s, 0x1p-14);
            cr_assert(q >= -top - 1 && q <= top);
            if (q > -top - 1 && q < top)
                cr_assert_leq(fabs(d), s * 0.50001);
            sse += d * d;
            sum += x * x;
        }
    cr_assert_leq(fabs(sse - r->stats.sse), 1e-9 * sse);
    cr_assert_leq(fabs(sum - r->stats.sum_sq), 1e-9 * sum);
    cr_assert_eq(r->stats.weights, m->rows * m->cols);
}

Test(linear, shapes_threads_and_steps)
{
    static const struct {
        uint64_t rows, cols, block;
    } shapes[] = {
        { 1, 1, 1 },        { 3, 5, 5 },       { 7, 33, 11 },
        { 5, 64, 0 },       { 64, 96, 32 },    { 9, 4096, 1 },
        { 1100, 1000, 40 }, { 1100, 1000, 0 }, { 3, 600000, 600000 },
    };
    struct err e = ERR_INIT;
    struct par *par = par_new(3, &e);
    size_t i;
    int bits;

    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (bits = 4; bits <= 8; bits += 4) {
            struct matrix m = matrix(shapes[i].rows, shapes[i].cols, false);
            struct result a, b;
            size_t k =
                (size_t)(shapes[i].block ? m.rows * m.cols / shapes[i].block
                                         : 1);

            run(&a, &m, bits, shapes[i].block, NULL, 1 << 30);
            check_result(&a, &m, bits, shapes[i].block);
            run(&b, &m, bits, shapes[i].block, par, 1 + t_below(&seed, 100000));
            cr_assert_eq(memcmp(a.q, b.q, (size_t)(m.rows * m.cols)), 0);
            cr_assert_eq(memcmp(a.scales, b.scales, k * sizeof(f16_t)), 0);
            cr_assert_eq(memcmp(&a.stats, &b.stats, sizeof a.stats), 0);
            drop(&a);
            drop(&b);
            mem_free(m.v);
        }
    par_free(par);
}

Test(linear, importances_are_heeded)
{
    struct matrix m = matrix(64, 512, true);
    struct err e = ERR_INIT;
    struct result a, b;
    double under = 0;
    uint64_t i;

    run(&a, &m, 4, 64, NULL, 1 << 20);
    m.imp = mem_alloc(64 * 512, sizeof *m.imp, &e);
    for (i = 0; i < 64 * 512; i++)
        m.imp[i] = (float)exp(2.5 * t_gauss(&seed));
    run(&b, &m, 4, 64, NULL, 1 << 20);
    for (i = 0; i < 64 * 512; i++)
        under += (double)m.imp[i] *
                 pow((double)bf16_to_f32(m.v[i]) -
                         (double)f16_to_f32(a.scales[i / 64]) * a.q[i],
                     2);
    cr_assert_lt(b.stats.weighted, 0.9 * under);
    cr_assert_gt(b.stats.sse, a.stats.sse);
    drop(&a);
    drop(&b);
    mem_free(m.imp);
    mem_free(m.v);
}

Test(linear, scales_before_values)
{
    struct matrix m = matrix(2000, 1024, false);
    struct err e = ERR_INIT;
    struct qz_linear *l = open(&m, 8, 1024, NULL);
    struct result r;
    uint8_t b[3];

    run(&r, &m, 8, 1024, NULL, 1 << 20);
    cr_assert_eq(qz_linear_read_scales(l, 2 * 1500 + 1, b, 3, &e), 0);
    cr_assert_eq(b[0], r.scales[1500] >> 8);
    cr_assert_eq(load_le16(b + 1), r.scales[1501]);
    cr_assert_eq(qz_linear_read_values(l, 2000 * 1024, b, 0, &e), 0);
    cr_assert_eq(qz_linear_read_values(l, 2000 * 1024 - 1, b, 2, &e), -1);
    drop(&r);
    qz_linear_free(l);
    mem_free(m.v);
}

static void refused(struct matrix *m, int bits, uint64_t block,
                    const char *word)
{
    struct qz_source src = { .rows = m->rows,
                             .cols = m->cols,
                             .format = QZ_BF16,
                             .read_rows = read_rows,
                             .cookie = m };
    struct err e = ERR_INIT;

    cr_assert_null(qz_linear_new(&src, bits, block, NULL, &e));
    cr_assert_not_null(strstr(e.text, word), "%s", e.text);
}

Test(linear, refusals)
{
    static const uint64_t blocks[] = { 32, 64, 0 };
    struct matrix m = matrix(40, 64, false), none = { 0, 64, NULL, NULL };
    uint8_t b[4];
    size_t i;

    refused(&m, 6, 32, "4 or 8 bits, not 6");
    refused(&m, 4, 24, "do not divide 64");
    refused(&m, 4, 128, "do not divide 64");
    refused(&none, 4, 32, "0 x 64");
    m.v[37 * 64 + 5] = 0xff80;
    m.v[39 * 64 + 5] = 0x7fc0;
    for (i = 0; i < 3; i++) {
        struct qz_linear *l = open(&m, 4, blocks[i], NULL);
        struct err e = ERR_INIT;

        cr_assert_eq(qz_linear_read_values(l, 0, b, 4, &e), -1);
        cr_assert_not_null(strstr(e.text, "row 37, column 5 is infinite"), "%s",
                           e.text);
        qz_linear_free(l);
    }
    mem_free(m.v);
}

Test(linear, every_failed_allocation_is_reported)
{
    struct matrix m = matrix(16, 64, false);
    struct qz_source src = { .rows = 16,
                             .cols = 64,
                             .format = QZ_BF16,
                             .read_rows = read_rows,
                             .cookie = &m };

    t_quant_linear_without_memory(&src);
    mem_free(m.v);
}
