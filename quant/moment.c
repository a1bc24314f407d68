/*
 * Damping, order and factor of a moment.
 *
 * H = R R^T with R upper triangular is the usual factor L L^T of H with rows
 * and columns reversed. It is computed block column by block column: products
 * of what is to the left by the float32 kernels of the reference, the block on
 * the diagonal in double, the rows below it by substitution.
 */
#include "quant/moment.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/mem.h"
#include "converter/base/sgemm.h"

#define BLOCK SGEMM_SLICE
#define ROWS 64 /* of one piece of work */
#define SHARE 0.01
#define TRIES 20

struct factor {
    const struct qz_moment *m;
    size_t n, ld;
    float *a;      /* [n, ld]: lower triangle */
    double *t;     /* [BLOCK, BLOCK]: columns of the diagonal block */
    double *x;     /* [width of par, BLOCK] */
    double *c;     /* [width of par, SGEMM_PANEL * ROWS] */
    size_t j0, jb; /* the block at work */
};

/* ---- the block column at work ---- */

/* Subtracts the products with the blocks to the left, for some rows. */
static void update_rows(const struct factor *f, size_t i0, size_t ni, double *c)
{
    for (size_t j = 0; j < f->jb; j += SGEMM_PANEL) {
        size_t mj = f->jb - j < SGEMM_PANEL ? f->jb - j : SGEMM_PANEL;

        memset(c, 0, mj * ni * sizeof(*c));
        for (size_t k = 0; k < f->j0; k += BLOCK)
            sgemm_slice(f->a + i0 * f->ld + k, f->ld, ni,
                        f->a + (f->j0 + j) * f->ld + k, f->ld, mj, BLOCK, c,
                        ni);
        for (size_t i = 0; i < ni; i++)
            for (size_t q = 0; q < mj; q++)
                f->a[(i0 + i) * f->ld + f->j0 + j + q] -= (float)c[q * ni + i];
    }
}

static void update_pieces(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct factor *f = arg;
    double *c = f->c + (size_t)worker * SGEMM_PANEL * ROWS;

    for (uint64_t p = begin; p < end; p++) {
        size_t i0 = f->j0 + (size_t)p * ROWS;
        size_t ni = f->n - i0 < ROWS ? f->n - i0 : ROWS;

        update_rows(f, i0, ni, c);
    }
}

/* Column c of the block's factor is t[c * BLOCK + c ..]. False: no factor. */
static bool factor_block(struct factor *f)
{
    size_t n = f->jb;
    double *t = f->t;

    for (size_t c = 0; c < n; c++)
        for (size_t i = c; i < n; i++)
            t[c * BLOCK + i] = (double)f->a[(f->j0 + i) * f->ld + f->j0 + c];
    for (size_t c = 0; c < n; c++) {
        double d = t[c * BLOCK + c];

        if (!(d > 0) || !(d < INFINITY))
            return false;
        d = sqrt(d);
        for (size_t i = c; i < n; i++)
            t[c * BLOCK + i] /= d;
        for (size_t k = c + 1; k < n; k++) {
            double v = t[c * BLOCK + k];

            for (size_t i = k; i < n; i++)
                t[k * BLOCK + i] -= v * t[c * BLOCK + i];
        }
    }
    for (size_t c = 0; c < n; c++)
        for (size_t i = c; i < n; i++)
            f->a[(f->j0 + i) * f->ld + f->j0 + c] = (float)t[c * BLOCK + i];
    return true;
}

static void solve_row(const struct factor *f, float *row, double *x)
{
    for (size_t c = 0; c < f->jb; c++)
        x[c] = (double)row[c];
    for (size_t c = 0; c < f->jb; c++) {
        const double *t = f->t + c * BLOCK;
        double v = x[c] / t[c];

        row[c] = (float)v;
        for (size_t i = c + 1; i < f->jb; i++)
            x[i] -= v * t[i];
    }
}

static void solve_pieces(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct factor *f = arg;
    size_t first = f->j0 + f->jb;

    for (uint64_t p = begin; p < end; p++)
        for (size_t i = 0; i < ROWS; i++) {
            size_t row = first + (size_t)p * ROWS + i;

            if (row < f->n)
                solve_row(f, f->a + row * f->ld + f->j0,
                          f->x + (size_t)worker * BLOCK);
        }
}

static uint64_t pieces(size_t rows)
{
    return (rows + ROWS - 1) / ROWS;
}

static bool factor(struct factor *f, struct par *par)
{
    for (f->j0 = 0; f->j0 < f->n; f->j0 += BLOCK) {
        f->jb = f->n - f->j0 < BLOCK ? f->n - f->j0 : BLOCK;
        if (f->j0)
            par_for(par, pieces(f->n - f->j0), 1, update_pieces, f);
        if (!factor_block(f))
            return false;
        par_for(par, pieces(f->n - f->j0 - f->jb), 1, solve_pieces, f);
    }
    return true;
}

/* ---- around it ---- */

/* Rows of the reversed, reordered moment. */
static void load_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct factor *f = arg;
    const struct qz_moment *m = f->m;

    (void)worker;
    for (size_t i = (size_t)begin; i < end; i++) {
        const float *h = m->h + (size_t)m->order[f->n - 1 - i] * f->n;

        for (size_t j = 0; j < f->ld; j++)
            f->a[i * f->ld + j] = j <= i ? h[m->order[f->n - 1 - j]] : 0;
    }
}

/* Rows of the feedback: columns of the factor, over their diagonal. */
static void store_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct factor *f = arg;

    (void)worker;
    for (size_t j = (size_t)begin; j < end; j++) {
        size_t c = f->n - 1 - j;
        float d = f->a[c * f->ld + c], *out = f->m->feed + j * (j - 1) / 2;

        for (size_t i = 0; i < j; i++)
            out[i] = f->a[(f->n - 1 - i) * f->ld + c] / d;
    }
}

static void damp(struct qz_moment *m, double by)
{
    for (size_t j = 0; j < m->width; j++)
        m->h[j * m->width + j] = (float)((double)m->h[j * m->width + j] + by);
    m->damping += by;
}

static int run_factor(struct qz_moment *m, struct par *par, struct factor *f,
                      struct err *e)
{
    double by = 0, mean = 0;
    bool done = false;

    for (size_t j = 0; j < m->width; j++)
        mean += (double)m->h[j * m->width + j];
    mean /= (double)m->width;
    by = mean > 0 ? SHARE * mean : 1;
    for (int i = 0; i < TRIES && !done; i++, by *= 2) {
        damp(m, by);
        par_for(par, m->width, ROWS, load_rows, f);
        done = factor(f, par);
    }
    if (!done)
        return err_set(e, ERR_INPUT,
                       "a moment of %zu columns has no factor: it is not "
                       "finite or far from symmetric and positive",
                       m->width);
    par_for(par, m->width, ROWS, store_rows, f);
    return 0;
}

struct place {
    float diag;
    uint32_t column;
};

static int by_diag(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->diag != y->diag)
        return x->diag > y->diag ? -1 : 1;
    return x->column < y->column ? -1 : 1;
}

static int set_order(struct qz_moment *m, struct err *e)
{
    struct place *p = mem_alloc(m->width, sizeof(*p), e);

    if (!p)
        return -1;
    for (size_t j = 0; j < m->width; j++) {
        p[j].diag = m->h[j * m->width + j];
        p[j].column = (uint32_t)j;
    }
    qsort(p, m->width, sizeof(*p), by_diag);
    for (size_t j = 0; j < m->width; j++)
        m->order[j] = p[j].column;
    mem_free(p);
    return 0;
}

static int check_finite(const struct qz_moment *m, struct err *e)
{
    for (size_t i = 0; i < m->width * m->width; i++)
        if (!(fabsf(m->h[i]) < INFINITY))
            return err_set(e, ERR_INPUT,
                           "a moment of %zu columns holds a value that is not "
                           "finite (row %zu, column %zu)",
                           m->width, i / m->width, i % m->width);
    return 0;
}

static int prepare(struct qz_moment *m, struct par *par, struct err *e)
{
    struct factor f = { .m = m, .n = m->width, .ld = sgemm_pad(m->width) };
    size_t n = m->width, threads = (size_t)par_width(par);
    int rc = -1;

    m->order = mem_alloc(n, sizeof(*m->order), e);
    m->feed = mem_alloc_aligned(n * (n - 1) / 2, sizeof(*m->feed), e);
    f.a = mem_alloc_aligned(n * f.ld, sizeof(*f.a), e);
    f.t = mem_alloc_aligned(BLOCK * BLOCK, sizeof(*f.t), e);
    f.x = mem_alloc_aligned(threads * BLOCK, sizeof(*f.x), e);
    f.c = mem_alloc_aligned(threads * SGEMM_PANEL * ROWS, sizeof(*f.c), e);
    if (m->order && m->feed && f.a && f.t && f.x && f.c &&
        !check_finite(m, e) && !set_order(m, e))
        rc = run_factor(m, par, &f, e);
    mem_free(f.a);
    mem_free(f.t);
    mem_free(f.x);
    mem_free(f.c);
    return rc;
}

struct qz_moment *qz_moment_new(float *h, size_t width, struct par *par,
                                struct err *e)
{
    struct qz_moment *m = mem_zalloc(1, sizeof(*m), e);

    if (!m) {
        mem_free(h);
        return NULL;
    }
    m->h = h;
    m->width = width;
    if (!prepare(m, par, e))
        return m;
    qz_moment_free(m);
    return NULL;
}

void qz_moment_free(struct qz_moment *m)
{
    if (!m)
        return;
    mem_free(m->h);
    mem_free(m->order);
    mem_free(m->feed);
    mem_free(m);
}
