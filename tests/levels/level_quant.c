/*
 * Palettes and integers at every instruction set that this processor has, on
 * one thread and on several: the same bytes as portable C on one thread.
 *
 * The last line has a digest of all of them. It is made of whole numbers and
 * of IEEE operations alone, so that it is the same on every kind of machine;
 * .ci/run compares that of another one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "quant/linear.h"
#include "quant/stages.h"

static uint64_t seed = 1;

static uint32_t rnd(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((seed >> 33) % n);
}

/* About Gaussian; with tails, a quotient of two. */
static double sample(bool tails)
{
    double s = -6;
    int i;

    for (i = 0; i < 12; i++)
        s += rnd(1 << 20) / 1048576.0;
    return tails ? s / (0.25 + rnd(1 << 20) / 1048576.0) : s;
}

enum shape { GAUSS, TAILS, SPARSE, FAR, FEW, TINY, SHAPES };

static uint16_t value(enum shape shape, enum qz_format f, size_t i)
{
    double x = 0.02 * sample(shape == TAILS);

    switch (shape) {
    case SPARSE: x = rnd(10) != 0 ? (rnd(2) != 0 ? 0.0 : -0.0) : x; break;
    case FAR: x = i == 5 ? -200 : x; break;
    case FEW: x = (double)rnd(9) / 8 - 0.5; break;
    case TINY: x *= 0x1p-16; break;
    case GAUSS:
    case TAILS:
    case SHAPES: break;
    }
    return f == QZ_BF16 ? f32_to_bf16((float)x) : f64_to_f16(x);
}

static void need(bool ok, const struct err *e)
{
    if (ok)
        return;
    fprintf(stderr, "level_quant: %s\n", e->text);
    exit(1);
}

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    const uint8_t *b = p;

    while (n-- > 0)
        h = (h ^ *b++) * UINT64_C(0x100000001b3);
    return h;
}

enum { MAX = 4100 };

struct group {
    uint16_t v[MAX];
    float imp[MAX];
    size_t n;
    enum qz_format f;
    int scale;
};

/* Tables, codes, packed codes and figures of one group at every width. */
static uint64_t group_digest(const struct group *g, bool weighted)
{
    static const int widths[] = { 1, 2, 3, 4, 6, 8 };
    static uint8_t codes[MAX], packed[MAX + 1], back[MAX];
    struct err e = ERR_INIT;
    struct qz_scratch *s = qz_scratch_new(&e);
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    f16_t table[QZ_MAX_CLUSTERS];
    struct qz_result r;
    size_t w, bytes;

    need(s != NULL, &e);
    for (w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        int bits = widths[w];

        need(qz_cluster_weighted(s, g->v, weighted ? g->imp : NULL, g->n, g->f,
                                 g->scale, bits, table, codes, &r, &e) == 0,
             &e);
        bytes = (g->n * (size_t)bits + 7) / 8;
        packed[bytes] = 0xa5;
        qz_pack(packed, codes, g->n, bits);
        qz_unpack(back, packed, 0, g->n, bits);
        if (packed[bytes] != 0xa5 || memcmp(back, codes, g->n) != 0) {
            fprintf(stderr, "level_quant: %d bits do not unpack\n", bits);
            exit(1);
        }
        h = mix(h, table, sizeof *table << bits);
        h = mix(h, codes, g->n);
        h = mix(h, packed, bytes);
        h = mix(h, &r.sse, sizeof r.sse);
        h = mix(h, &r.sum_sq, sizeof r.sum_sq);
        h = mix(h, &r.weighted, sizeof r.weighted);
    }
    qz_scratch_free(s);
    return h;
}

enum { ROWS = 48, COLS = 187 };

struct matrix {
    uint16_t v[ROWS * COLS];
    float imp[COLS];
    float h[COLS * COLS]; /* what the inputs of the layer correlate to */
    const struct qz_moment *moment;
};

static int rows_of(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                   struct err *e)
{
    const struct matrix *m = cookie;

    (void)e;
    memcpy(dst, m->v + row * COLS, (size_t)n * COLS * sizeof *dst);
    return 0;
}

static int imp_of(void *cookie, uint64_t row, uint64_t n, float *dst,
                  struct err *e)
{
    const struct matrix *m = cookie;

    (void)row;
    (void)e;
    for (; n > 0; n--, dst += COLS)
        memcpy(dst, m->imp, sizeof m->imp);
    return 0;
}

static int moment_of(void *cookie, uint64_t row, uint64_t col, uint64_t *n,
                     const struct qz_moment **out, struct err *e)
{
    const struct matrix *m = cookie;

    (void)row;
    (void)e;
    *n = COLS - col;
    *out = m->moment;
    return 0;
}

static struct qz_moment *moment(const struct matrix *m, struct par *par)
{
    struct err e = ERR_INIT;
    float *h = mem_alloc((size_t)COLS * COLS, sizeof *h, &e);
    struct qz_moment *mo;

    need(h != NULL, &e);
    memcpy(h, m->h, sizeof m->h);
    mo = qz_moment_new(h, NULL, COLS, par, &e);
    need(mo != NULL, &e);
    return mo;
}

static uint64_t palette_digest(uint64_t h, const struct qz_source *src,
                               int bits, uint64_t group, struct par *par)
{
    static uint8_t packed[ROWS * COLS], tables[2 * ROWS * 256];
    struct err e = ERR_INIT;
    struct qz_palette *p = qz_palette_new(src, bits, group, par, &e);
    struct qz_stats st;
    size_t n;

    need(p != NULL, &e);
    n = (size_t)qz_palette_index_bytes(p);
    need(qz_palette_read_indices(p, 0, packed, n, &e) == 0, &e);
    h = mix(h, packed, n);
    n = 2 * (size_t)qz_palette_table_elems(p);
    need(qz_palette_read_tables(p, 0, tables, n, &e) == 0, &e);
    h = mix(h, tables, n);
    qz_palette_stats(p, &st);
    qz_palette_free(p);
    return mix(h, &st, sizeof st);
}

static uint64_t linear_digest(uint64_t h, const struct qz_source *src, int bits,
                              uint64_t block, struct par *par)
{
    static uint8_t values[ROWS * COLS], scales[2 * ROWS * COLS];
    struct err e = ERR_INIT;
    struct qz_linear *l = qz_linear_new(src, bits, block, par, &e);
    size_t n;

    need(l != NULL, &e);
    n = (size_t)qz_linear_value_bytes(l);
    need(qz_linear_read_values(l, 0, values, n, &e) == 0, &e);
    h = mix(h, values, n);
    n = 2 * (size_t)qz_linear_scales(l);
    need(qz_linear_read_scales(l, 0, scales, n, &e) == 0, &e);
    h = mix(h, scales, n);
    qz_linear_free(l);
    return h;
}

/* A matrix by every method. */
static uint64_t matrix_digest(struct matrix *m, int threads)
{
    static const int widths[] = { 1, 3, 4, 6 };
    static const uint64_t groups[] = { 8, ROWS };
    struct err e = ERR_INIT;
    struct par *par = par_new(threads, &e);
    struct qz_moment *mo;
    struct qz_source src = { 0 };
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    size_t w, g;
    int how;

    need(par != NULL, &e);
    mo = moment(m, par);
    m->moment = mo;
    src.rows = ROWS;
    src.cols = COLS;
    src.read_rows = rows_of;
    src.cookie = m;
    for (how = 0; how < 3; how++) {
        src.read_importance = how > 0 ? imp_of : NULL;
        src.moment = how > 1 ? moment_of : NULL;
        for (w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (g = 0; g < sizeof groups / sizeof groups[0]; g++)
                h = palette_digest(h, &src, widths[w], groups[g], par);
        for (w = 4; w <= 8 && how < 2; w += 4) {
            h = linear_digest(h, &src, (int)w, 17, par);
            h = linear_digest(h, &src, (int)w, COLS, par);
            h = linear_digest(h, &src, (int)w, 0, par);
        }
    }
    h = mix(h, mo->feed, COLS * (COLS - 1) / 2 * sizeof *mo->feed);
    qz_moment_free(mo);
    par_free(par);
    return h;
}

static unsigned have;
static uint64_t all = UINT64_C(0xcbf29ce484222325);
static long compared, differ;

static bool use(int level)
{
    if ((cpu_levels[level].mask & ~have) != 0)
        return false;
    cpu_mask(cpu_levels[level].mask);
    return true;
}

/* A digest at some level: the first one is that of portable C. */
static void check(const char *what, int level, int threads, uint64_t h,
                  uint64_t *first)
{
    if (level == 0 && threads == 1) {
        *first = h;
        all = mix(all, &h, sizeof h);
        return;
    }
    compared++;
    if (h == *first)
        return;
    differ++;
    fprintf(stderr, "%s: not the same with %s on %d threads\n", what,
            cpu_levels[level].name, threads);
}

static void groups(void)
{
    /* Ends of vectors, and more weights than one chunk of counting. */
    static const size_t sizes[] = { 1, 7, 33, 255, 4099 };
    static struct group g;
    uint64_t h = 0;
    char what[80];
    size_t n, i;
    int f, shape, weighted, level;

    for (f = 0; f < 2; f++)
        for (shape = 0; shape < SHAPES; shape++)
            for (n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
                g.f = (enum qz_format)f;
                g.n = sizes[n];
                g.scale = shape == FAR ? -3 : 0;
                for (i = 0; i < g.n; i++) {
                    g.v[i] = value((enum shape)shape, g.f, i);
                    g.imp[i] = (float)(1 + rnd(1000)) / 64;
                }
                for (weighted = 0; weighted < 2; weighted++)
                    for (level = 0; level < CPU_LEVELS; level++) {
                        if (!use(level))
                            continue;
                        snprintf(what, sizeof what,
                                 "group %s, format %d, shape %d, %zu weights",
                                 weighted ? "weighted" : "plain", f, shape,
                                 g.n);
                        check(what, level, 1, group_digest(&g, weighted != 0),
                              &h);
                    }
            }
}

static void matrices(void)
{
    static struct matrix m;
    uint64_t h = 0;
    size_t i, j, t;
    int level, threads;

    for (i = 0; i < (size_t)ROWS * COLS; i++)
        m.v[i] = value(i % 7 == 0 ? TAILS : GAUSS, QZ_BF16, i);
    for (t = 0; t < 2 * COLS; t++) {
        float x[COLS];

        for (i = 0; i < COLS; i++)
            x[i] = (float)(sample(false) + (i > 0 ? 0.8 * x[i - 1] : 0));
        for (i = 0; i < COLS; i++)
            for (j = 0; j < COLS; j++)
                m.h[i * COLS + j] += x[i] * x[j];
    }
    for (j = 0; j < COLS; j++)
        m.imp[j] = (float)(1 + rnd(100)) / 32;
    for (level = 0; level < CPU_LEVELS; level++)
        for (threads = 1; threads <= 3 && use(level); threads++)
            check("matrix", level, threads, matrix_digest(&m, threads), &h);
}

int main(void)
{
    int level;

    have = cpu_features();
    groups();
    matrices();
    printf("%ld results alike", compared - differ);
    for (level = 0; level < CPU_LEVELS; level++)
        if (use(level))
            printf(" %s", cpu_levels[level].name);
    printf(", %ld differ; digest %016" PRIx64 "\n", differ, all);
    return differ != 0;
}
