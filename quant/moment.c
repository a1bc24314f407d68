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
#include "converter/base/num.h"
#include "converter/base/sgemm.h"
#include "quant/feedback_priv.h"

#define BLOCK SGEMM_SLICE
#define ROWS 64 /* of one piece of work */
#define SHARE 0.01
#define TRIES 20
#define CHOICES 8 /* SHARE times powers of two */
#define LANES FEED_LANES

struct factor {
    const struct qz_moment *m;
    size_t n, ld;
    double by;     /* what is added to the diagonal */
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

/* Rows of the reversed, reordered and damped moment. */
static void load_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct factor *f = arg;
    const struct qz_moment *m = f->m;

    (void)worker;
    for (size_t i = (size_t)begin; i < end; i++) {
        const float *h = m->h + (size_t)m->order[f->n - 1 - i] * f->n;

        for (size_t j = 0; j < f->ld; j++)
            f->a[i * f->ld + j] = j <= i ? h[m->order[f->n - 1 - j]] : 0;
        f->a[i * f->ld + i] = (float)((double)f->a[i * f->ld + i] + f->by);
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

/* The feedback of f->m, damped by f->by; false: there is none. */
static bool make_feed(struct factor *f, struct par *par)
{
    par_for(par, f->n, ROWS, load_rows, f);
    if (!factor(f, par))
        return false;
    par_for(par, f->n, ROWS, store_rows, f);
    return true;
}

static void damp(struct qz_moment *m, double by)
{
    for (size_t j = 0; j < m->width; j++)
        m->h[j * m->width + j] = (float)((double)m->h[j * m->width + j] + by);
    m->damping = by;
}

static double mean_diagonal(const float *h, size_t width)
{
    double sum = 0;

    for (size_t j = 0; j < width; j++)
        sum += (double)h[j * width + j];
    return sum / (double)width;
}

static int run_factor(struct qz_moment *m, double share, struct par *par,
                      struct factor *f, struct err *e)
{
    double mean = mean_diagonal(m->h, m->width);
    bool done = false;

    f->m = m;
    f->by = mean > 0 ? share * mean : 1;
    for (int i = 0; i < TRIES && !done; i++) {
        f->by *= i ? 2 : 1;
        done = make_feed(f, par);
    }
    if (!done)
        return err_set(e, ERR_INPUT,
                       "a moment of %zu columns has no factor: it is not "
                       "finite or far from symmetric and positive",
                       m->width);
    damp(m, f->by);
    return 0;
}

/* ---- the choice of the damping ---- */

struct trial {
    float *d;  /* [width, LANES]: what rounding leaves, in its order */
    float *at; /* the same, by columns */
    struct par *par;
    double *losses; /* [width]: of each row of the other part */
    const float *other;
    size_t width;
};

/* Feedback with errors of rounding of size 1. */
static void leave(struct trial *t, const struct qz_moment *m)
{
    float sum[LANES];

    for (size_t j = 0; j < t->width; j++) {
        uint64_t bits = num_mix((j + 1) * NUM_GOLDEN);
        float *d = t->d + j * LANES;

        feed_lanes(m->feed + j * (j - 1) / 2, t->d, j, sum);
        for (size_t l = 0; l < LANES; l++)
            d[l] = (bits >> l & 1 ? 1.0f : -1.0f) - sum[l];
        memcpy(t->at + m->order[j] * LANES, d, LANES * sizeof(*d));
    }
}

static void lose(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct trial *t = arg;
    float sum[LANES];

    (void)worker;
    for (size_t i = (size_t)begin; i < end; i++) {
        feed_lanes(t->other + i * t->width, t->at, t->width, sum);
        t->losses[i] = 0;
        for (size_t l = 0; l < LANES; l++)
            t->losses[i] += (double)sum[l] * (double)t->at[i * LANES + l];
    }
}

/* What feedback by one part loses on the other. */
static double loss_on(struct trial *t, const struct qz_moment *part,
                      const float *other, double share, struct factor *f)
{
    double sum = 0;

    f->m = part;
    f->by = share * mean_diagonal(part->h, part->width);
    if (!make_feed(f, t->par))
        return INFINITY;
    leave(t, part);
    t->other = other;
    par_for(t->par, t->width, ROWS, lose, t);
    for (size_t i = 0; i < t->width; i++)
        sum += t->losses[i];
    return sum;
}

/* The losses of feedback by either part have one unit: the moments'. */
static double search(struct trial *t, const struct qz_moment *m, float *rest,
                     struct factor *f)
{
    struct qz_moment other = *m;
    double share = SHARE, best = INFINITY;

    other.h = rest;
    for (int i = 0; i < CHOICES; i++) {
        double next = ldexp(SHARE, i);
        double loss =
            loss_on(t, m, rest, next, f) + loss_on(t, &other, m->h, next, f);

        if (best < INFINITY && !(loss < best))
            break;
        share = loss < INFINITY ? next : share;
        best = loss;
    }
    return share;
}

static int choose_share(const struct qz_moment *m, float *rest, struct par *par,
                        struct factor *f, double *share, struct err *e)
{
    size_t n = m->width;
    struct trial t = { .par = par, .width = n };
    int rc = -1;

    *share = SHARE;
    if (!rest || !(mean_diagonal(m->h, n) > 0) || !(mean_diagonal(rest, n) > 0))
        return 0;
    t.d = mem_alloc_aligned(n * LANES, sizeof(*t.d), e);
    t.at = mem_alloc_aligned(n * LANES, sizeof(*t.at), e);
    t.losses = mem_alloc(n, sizeof(*t.losses), e);
    if (t.d && t.at && t.losses) {
        *share = search(&t, m, rest, f);
        rc = 0;
    }
    mem_free(t.d);
    mem_free(t.at);
    mem_free(t.losses);
    return rc;
}

/* ---- all of it ---- */

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

static int set_order(struct qz_moment *m, const float *rest, struct err *e)
{
    struct place *p = mem_alloc(m->width, sizeof(*p), e);

    if (!p)
        return -1;
    for (size_t j = 0; j < m->width; j++) {
        p[j].diag =
            m->h[j * m->width + j] + (rest ? rest[j * m->width + j] : 0);
        p[j].column = (uint32_t)j;
    }
    qsort(p, m->width, sizeof(*p), by_diag);
    for (size_t j = 0; j < m->width; j++)
        m->order[j] = p[j].column;
    mem_free(p);
    return 0;
}

static int check_finite(const struct qz_moment *m, const float *rest,
                        struct err *e)
{
    for (size_t i = 0; i < m->width * m->width; i++)
        if (!(fabsf(m->h[i] + (rest ? rest[i] : 0)) < INFINITY))
            return err_set(e, ERR_INPUT,
                           "a moment of %zu columns holds a value that is not "
                           "finite (row %zu, column %zu)",
                           m->width, i / m->width, i % m->width);
    return 0;
}

static void add_rest(struct qz_moment *m, const float *rest)
{
    for (size_t i = 0; rest && i < m->width * m->width; i++)
        m->h[i] += rest[i];
}

static int prepare(struct qz_moment *m, float *rest, struct par *par,
                   struct err *e)
{
    struct factor f = { .n = m->width, .ld = sgemm_pad(m->width) };
    size_t n = m->width, threads = (size_t)par_width(par);
    double share;
    int rc = -1;

    m->order = mem_alloc(n, sizeof(*m->order), e);
    m->feed = mem_alloc_aligned(n * (n - 1) / 2, sizeof(*m->feed), e);
    f.a = mem_alloc_aligned(n * f.ld, sizeof(*f.a), e);
    f.t = mem_alloc_aligned(BLOCK * BLOCK, sizeof(*f.t), e);
    f.x = mem_alloc_aligned(threads * BLOCK, sizeof(*f.x), e);
    f.c = mem_alloc_aligned(threads * SGEMM_PANEL * ROWS, sizeof(*f.c), e);
    if (m->order && m->feed && f.a && f.t && f.x && f.c &&
        !check_finite(m, rest, e) && !set_order(m, rest, e) &&
        !choose_share(m, rest, par, &f, &share, e)) {
        add_rest(m, rest);
        rc = run_factor(m, share, par, &f, e);
    }
    mem_free(f.a);
    mem_free(f.t);
    mem_free(f.x);
    mem_free(f.c);
    return rc;
}

struct qz_moment *qz_moment_new(float *h, float *rest, size_t width,
                                struct par *par, struct err *e)
{
    struct qz_moment *m = mem_zalloc(1, sizeof(*m), e);
    int rc = -1;

    if (m) {
        m->h = h;
        m->width = width;
        rc = prepare(m, rest, par, e);
    } else
        mem_free(h);
    mem_free(rest);
    if (!rc)
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
