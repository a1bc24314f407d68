/*
 * The streamed matrix: equal to clustering group by group and packing the
 * whole, whatever the order and size of reads, threads and SIMD level; large
 * groups; refusals with row and column; memory that does not grow.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "quant/quant.h"
#include "t_rand.h"

static const int widths[] = { 1, 2, 3, 4, 6, 8 };
enum { WIDTHS = sizeof widths / sizeof widths[0] };

static uint64_t seed = 5;

static uint16_t weight(void)
{
    int s = 0, i;

    for (i = 0; i < 8; i++)
        s += (int)t_below(&seed, 4096);
    return f32_to_bf16((float)(s - 8 * 2048) * 1e-5f);
}

struct matrix {
    uint64_t rows, cols;
    uint16_t *v;
    uint64_t rows_read;
    uint64_t fail_at; /* row whose reading fails */
};

static int read_rows(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                     struct err *e)
{
    struct matrix *m = cookie;

    if (row > m->rows || n > m->rows - row)
        return err_set(e, ERR_IO, "rows beyond the matrix were asked for");
    if (m->fail_at >= row && m->fail_at < row + n)
        return err_set(e, ERR_IO, "row %d is on fire", (int)m->fail_at);
    memcpy(dst, m->v + row * m->cols, n * m->cols * sizeof *dst);
    m->rows_read += n;
    return 0;
}

static void matrix_new(struct matrix *m, uint64_t rows, uint64_t cols)
{
    struct err e = ERR_INIT;
    uint64_t i;

    m->rows = rows;
    m->cols = cols;
    m->rows_read = 0;
    m->fail_at = UINT64_MAX;
    m->v = mem_alloc(rows * cols, sizeof *m->v, &e);
    cr_assert_not_null(m->v);
    for (i = 0; i < rows * cols; i++)
        m->v[i] = weight();
}

static struct qz_palette *open_palette(struct matrix *m, int bits,
                                       uint64_t group, struct par *par)
{
    struct qz_source src = { 0 };
    struct err e = ERR_INIT;
    struct qz_palette *p;

    src.rows = m->rows;
    src.cols = m->cols;
    src.format = QZ_BF16;
    src.read_rows = read_rows;
    src.cookie = m;
    p = qz_palette_new(&src, bits, group, par, &e);
    cr_assert_not_null(p, "%s", e.text);
    return p;
}

/* Everything by qz_cluster and qz_pack. */
struct plain {
    uint8_t *packed;
    f16_t *tables;
    size_t bytes, elems;
    double sse, sum_sq;
};

static void plain_new(struct plain *r, const struct matrix *m, int bits,
                      uint64_t group)
{
    struct err e = ERR_INIT;
    struct qz_scratch *s = qz_scratch_new(&e);
    size_t gw = (size_t)(group * m->cols), n = (size_t)(m->rows * m->cols), i;
    uint8_t *idx = mem_alloc(n, 1, &e);

    r->bytes = (n * (size_t)bits + 7) / 8;
    r->elems = n / gw << bits;
    r->packed = mem_alloc(r->bytes, 1, &e);
    r->tables = mem_alloc(r->elems, sizeof(f16_t), &e);
    r->sse = r->sum_sq = 0;
    cr_assert(s != NULL && idx != NULL && r->packed != NULL &&
              r->tables != NULL);
    for (i = 0; i < n / gw; i++) {
        struct qz_result one;

        cr_assert_eq(qz_cluster(s, m->v + i * gw, gw, QZ_BF16, 0, bits,
                                r->tables + (i << bits), idx + i * gw, &one,
                                &e),
                     0);
        r->sse += one.sse;
        r->sum_sq += one.sum_sq;
    }
    qz_pack(r->packed, idx, n, bits);
    mem_free(idx);
    qz_scratch_free(s);
}

static void plain_release(struct plain *r)
{
    mem_free(r->packed);
    mem_free(r->tables);
}

static void check_all(struct qz_palette *p, const struct plain *want,
                      size_t step)
{
    struct err e = ERR_INIT;
    struct qz_stats st;
    uint8_t *got = mem_alloc(want->bytes + 1, 1, &e);
    uint8_t *tab = mem_alloc(want->elems, 2, &e);
    size_t at, n, i;

    cr_assert_eq(qz_palette_index_bytes(p), want->bytes);
    cr_assert_eq(qz_palette_table_elems(p), want->elems);
    for (at = 0; at < want->bytes; at += n) {
        n = want->bytes - at < step ? want->bytes - at : step;
        cr_assert_eq(qz_palette_read_indices(p, at, got + at, n, &e), 0, "%s",
                     e.text);
    }
    cr_assert_eq(memcmp(got, want->packed, want->bytes), 0);
    cr_assert_eq(qz_palette_read_tables(p, 0, tab, want->elems * 2, &e), 0);
    for (i = 0; i < want->elems; i++)
        cr_assert_eq(load_le16(tab + 2 * i), want->tables[i]);
    qz_palette_stats(p, &st);
    cr_assert_eq(st.sse, want->sse);
    cr_assert_eq(st.sum_sq, want->sum_sq);
    mem_free(got);
    mem_free(tab);
}

Test(palette, equals_group_by_group)
{
    static const struct {
        uint64_t rows, cols, group;
    } shapes[] = {
        { 1, 1, 1 },    { 7, 3, 7 },    { 7, 3, 1 },     { 24, 129, 8 },
        { 6, 1000, 2 }, { 5, 257, 5 },  { 120, 64, 8 },  { 360, 1024, 8 },
        { 300, 33, 3 }, { 1, 4096, 1 }, { 512, 5, 256 }, { 2048, 1025, 1 },
    };
    size_t i;
    int w;

    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (w = 0; w < WIDTHS; w++) {
            struct matrix m;
            struct plain want;
            struct qz_palette *p;

            /* The largest at one odd width only. */
            if (shapes[i].rows > 1000 && widths[w] != 3)
                continue;
            matrix_new(&m, shapes[i].rows, shapes[i].cols);
            plain_new(&want, &m, widths[w], shapes[i].group);
            p = open_palette(&m, widths[w], shapes[i].group, NULL);
            check_all(p, &want, 1 + t_below(&seed, 100000));
            cr_assert_eq(m.rows_read, m.rows, "each row is read once");
            qz_palette_free(p);
            plain_release(&want);
            mem_free(m.v);
        }
}

Test(palette, threads_simd_levels_and_order_of_reads)
{
    static const int threads[] = { 1, 2, 3, 16 };
    struct matrix m;
    struct err e = ERR_INIT;
    uint8_t buf[3000];
    int w, t, level;

    matrix_new(&m, 1200, 1000);
    for (w = 0; w < WIDTHS; w++) {
        struct plain want;
        struct qz_stats st;

        plain_new(&want, &m, widths[w], 8);
        for (t = 0; t < 4; t++)
            for (level = 0; level < 2; level++) {
                struct par *par = par_new(threads[t], &e);
                struct qz_palette *p = open_palette(&m, widths[w], 8, par);
                int i;

                cpu_mask(level == 0 ? 0 : ~0u);
                check_all(p, &want, 65536);
                qz_palette_stats(p, &st);
                cr_assert_eq(st.groups, 150);
                cr_assert_eq(st.weights, 1200000);
                /* Again and anywhere: the same bytes, no new figures. */
                for (i = 0; i < 20 && t == 1; i++) {
                    size_t at = t_below(&seed, (uint32_t)want.bytes);
                    size_t n = 1 + t_below(&seed, 3000);

                    if (n > want.bytes - at)
                        n = want.bytes - at;
                    cr_assert_eq(qz_palette_read_indices(p, at, buf, n, &e), 0);
                    cr_assert_eq(memcmp(buf, want.packed + at, n), 0);
                }
                qz_palette_stats(p, &st);
                cr_assert_eq(st.groups, 150);
                qz_palette_free(p);
                par_free(par);
            }
        cpu_mask(~0u);
        plain_release(&want);
    }
    mem_free(m.v);
}

Test(palette, tables_before_indices)
{
    struct matrix m;
    struct plain want;
    struct qz_palette *p;
    struct err e = ERR_INIT;
    uint8_t b[5];

    matrix_new(&m, 2400, 700);
    plain_new(&want, &m, 4, 8);
    p = open_palette(&m, 4, 8, NULL);
    /* An odd range in the middle, then all. */
    cr_assert_eq(qz_palette_read_tables(p, 31 * 200 + 1, b, 5, &e), 0);
    cr_assert_eq(b[0], want.tables[31 * 100] >> 8);
    cr_assert_eq(b[1], want.tables[31 * 100 + 1] & 0xff);
    check_all(p, &want, 100000);
    qz_palette_free(p);
    plain_release(&want);
    mem_free(m.v);
}

Test(palette, large_groups_are_streamed)
{
    /* Beyond two million weights a group is read in stretches. */
    static const struct {
        uint64_t rows, cols, group;
    } shapes[] = { { 2100, 1001, 2100 }, { 6300, 1001, 2100 } };
    struct err e = ERR_INIT;
    size_t i;
    int t;

    for (i = 0; i < 2; i++)
        for (t = 1; t <= 3; t++) {
            struct par *par = par_new(t, &e);
            struct matrix m;
            struct plain want;
            struct qz_palette *p;
            int bits = t == 1 ? 3 : t == 2 ? 6 : 4;

            matrix_new(&m, shapes[i].rows, shapes[i].cols);
            plain_new(&want, &m, bits, shapes[i].group);
            p = open_palette(&m, bits, shapes[i].group, par);
            check_all(p, &want, 300000);
            check_all(p, &want, 1000000);
            qz_palette_free(p);
            m.v[m.rows * m.cols - 5] = 0x7fc0;
            m.v[m.rows * m.cols - 3] = 0x7f80;
            p = open_palette(&m, bits, shapes[i].group, par);
            cr_assert_eq(qz_palette_read_tables(p, want.elems * 2 - 2, &bits, 2,
                                                &e),
                         -1);
            cr_assert_str_eq(e.text, i == 0 ? "weight at row 2099, column 996 "
                                              "is nan"
                                            : "weight at row 6299, column 996 "
                                              "is nan");
            err_reset(&e);
            qz_palette_free(p);
            plain_release(&want);
            mem_free(m.v);
            par_free(par);
        }
}

Test(palette, refusals_name_the_place)
{
    struct matrix m;
    struct err e = ERR_INIT;
    struct par *par = par_new(3, &e);
    struct qz_palette *p;
    uint8_t b[16];

    matrix_new(&m, 800, 100);
    m.v[777 * 100 + 42] = 0xff80;
    m.v[301 * 100 + 7] = 0x7f81;
    m.v[303 * 100 + 1] = 0x7f80;
    p = open_palette(&m, 4, 8, par);
    cr_assert_eq(qz_palette_read_indices(p, 0, b, 16, &e), -1);
    cr_assert_eq(e.code, ERR_INPUT);
    cr_assert_str_eq(e.text, "weight at row 301, column 7 is nan");
    err_reset(&e);
    {
        struct qz_palette *alone = open_palette(&m, 4, 8, NULL);

        cr_assert_eq(qz_palette_read_indices(alone, 0, b, 16, &e), -1);
        cr_assert_str_eq(e.text, "weight at row 301, column 7 is nan");
        err_reset(&e);
        qz_palette_free(alone);
    }
    /* Asked again, the answer is the same. */
    cr_assert_eq(qz_palette_read_tables(p, 0, b, 16, &e), -1);
    cr_assert_str_eq(e.text, "weight at row 301, column 7 is nan");
    err_reset(&e);
    cr_assert_eq(qz_palette_read_indices(p, 40000, b, 1, &e), -1);
    cr_assert_str_eq(e.text, "1 bytes at 40000 of 40000 bytes of indices");
    err_reset(&e);
    cr_assert_eq(qz_palette_read_tables(p, UINT64_MAX, b, 2, &e), -1);
    err_reset(&e);
    qz_palette_free(p);
    m.v[301 * 100 + 7] = m.v[303 * 100 + 1] = 0;
    m.v[777 * 100 + 42] = 0x4800;
    p = open_palette(&m, 4, 8, par);
    cr_assert_eq(qz_palette_read_indices(p, 0, b, 16, &e), -1);
    cr_assert_str_eq(e.text, "rows 776 to 783: table entry 15 of 16 is "
                             "131072, beyond fp16's 65504");
    err_reset(&e);
    qz_palette_free(p);
    m.fail_at = 400;
    p = open_palette(&m, 4, 8, par);
    cr_assert_eq(qz_palette_read_indices(p, 0, b, 16, &e), -1);
    cr_assert_str_eq(e.text, "row 400 is on fire");
    qz_palette_free(p);
    par_free(par);
    mem_free(m.v);
}

static void not_opened(uint64_t rows, uint64_t cols, int bits, uint64_t group,
                       int scale, const char *text)
{
    struct qz_source src = { 0 };
    struct err e = ERR_INIT;

    src.rows = rows;
    src.cols = cols;
    src.scale_exp = scale;
    src.read_rows = read_rows;
    cr_assert_null(qz_palette_new(&src, bits, group, NULL, &e));
    cr_assert_eq(e.code, ERR_INPUT);
    cr_assert_str_eq(e.text, text);
}

Test(palette, what_cannot_be_opened)
{
    not_opened(7, 8, 4, 2, 0, "groups of 2 rows do not divide 7 rows");
    not_opened(8, 8, 4, 0, 0, "groups of 0 rows do not divide 8 rows");
    not_opened(8, 8, 4, 16, 0, "groups of 16 rows do not divide 8 rows");
    not_opened(8, 8, 5, 8, 0, "palettes have 1, 2, 3, 4, 6 or 8 bits, not 5");
    not_opened(8, 8, 4, 8, -300, "scale 2^-300 is beyond 2^-256 .. 2^256");
    not_opened(0, 8, 4, 1, 0, "a matrix of 0 x 8 cannot be palettized");
    not_opened(UINT64_MAX, 8, 4, 1, 0,
               "a matrix of 18446744073709551615 x 8 cannot be palettized");
    not_opened(UINT64_C(1) << 20, UINT64_C(1) << 20, 4, UINT64_C(1) << 20, 0,
               "a group has 1099511627776 weights, more than 68719476736");
}

Test(palette, fitted_groups)
{
    uint64_t rows, want, g, best;

    cr_assert_eq(qz_fit_group(120, 8), 8);
    cr_assert_eq(qz_fit_group(7, 8), 7);
    cr_assert_eq(qz_fit_group(13, 8), 1);
    cr_assert_eq(qz_fit_group(151936, 0), 151936);
    for (rows = 1; rows < 200; rows++)
        for (want = 1; want < 210; want++) {
            for (best = g = 1; g <= rows && g <= want; g++)
                if (rows % g == 0)
                    best = g;
            cr_assert_eq(qz_fit_group(rows, want), best);
        }
    /* A prime near 2^63: quick, and one row. */
    cr_assert_eq(qz_fit_group(UINT64_C(1000000007), 8), 1);
}

Test(palette, every_failed_allocation_is_reported)
{
    struct matrix m;
    struct err e = ERR_INIT;
    long n;
    int ok = 0;

    matrix_new(&m, 16, 64);
    for (n = 0; n < 200 && !ok; n++) {
        struct qz_source src = { 0 };
        struct qz_palette *p;
        uint8_t b[8];

        src.rows = 16;
        src.cols = 64;
        src.read_rows = read_rows;
        src.cookie = &m;
        mem_fail_at(n, true);
        err_reset(&e);
        p = qz_palette_new(&src, 4, 8, NULL, &e);
        if (p != NULL && qz_palette_read_indices(p, 0, b, 8, &e) == 0)
            ok = 1;
        else
            cr_assert_eq(e.code, ERR_NOMEM, "%ld: %s", n, e.text);
        qz_palette_free(p);
        mem_fail_at(-1, false);
    }
    cr_assert(ok && n > 10);
    mem_free(m.v);
}

/* A hundred million weights that exist nowhere at once. */
static int read_endless(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                        struct err *e)
{
    const uint16_t *pool = cookie;
    uint64_t i;

    (void)e;
    for (i = 0; i < n; i++)
        memcpy(dst + i * 1000, pool + (row + i) * 7919 % 64000, 2000);
    return 0;
}

Test(palette, hundred_million_weights_in_one_table)
{
    static uint16_t pool[65000];
    static uint8_t buf[1 << 20];
    struct qz_source src = { 0 };
    struct qz_palette *p;
    struct qz_stats st;
    struct err e = ERR_INIT;
    struct rusage ru;
    uint64_t at, total, ones = 0;
    size_t n, i;

    for (i = 0; i < 65000; i++)
        pool[i] = weight();
    src.rows = 100000;
    src.cols = 1000;
    src.format = QZ_BF16;
    src.read_rows = read_endless;
    src.cookie = pool;
    p = qz_palette_new(&src, 1, 100000, NULL, &e);
    cr_assert_not_null(p, "%s", e.text);
    total = qz_palette_index_bytes(p);
    cr_assert_eq(total, 12500000);
    for (at = 0; at < total; at += n) {
        n = total - at < sizeof buf ? (size_t)(total - at) : sizeof buf;
        cr_assert_eq(qz_palette_read_indices(p, at, buf, n, &e), 0, "%s",
                     e.text);
        for (i = 0; i < n; i++)
            ones += (uint64_t)(buf[i] & 1);
    }
    qz_palette_stats(p, &st);
    cr_assert_eq(st.weights, 100000000);
    /* About half of the symmetric weights are in the upper cluster. */
    cr_assert(ones > 6000000 && ones < 6500000, "%d", (int)ones);
    qz_palette_free(p);
    cr_assert_eq(getrusage(RUSAGE_SELF, &ru), 0);
    cr_assert_lt(ru.ru_maxrss, 300 * 1024);
}
