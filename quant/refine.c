/*
 * Descent on the codes and the table of one group.
 *
 * With the differences D = Q - W of a row and R = D H the error is the sum of
 * D_j R_j. For a fixed table the best entry for column j alone is the one
 * nearest to Q_j - R_j / H_jj, and a step of size s there adds s times row j
 * of H to R: no step makes the error larger. For fixed codes the best table
 * solves the normal equations M c = v with M = sum of P^T H P and
 * v = sum of P^T H w, P the one-hot matrix of a row's codes. Both alternate
 * (Kim et al. 2025, LNQ); a table rounded to fp16 is taken only if it is
 * better.
 */
#include <math.h>
#include <string.h>

#include "converter/base/sgemm.h"
#include "quant/feedback_priv.h"

#define ROUNDS 2 /* of descent and fit; descent ends it */
#define CYCLES 2 /* of descent over all columns */
/* Of the mean diagonal of M, added to it. */
#define RIDGE 1e-9

/* r = diff times the moment. */
static void times_moment(struct qz_feed *f, const struct qz_tile *t,
                         size_t rows)
{
    sgemm_pack(f->packed, f->diff, t->n, rows, t->n);
    sgemm_rows(f->packed, rows, t->n, t->m->h, t->n, t->n, NULL, f->r, t->n,
               f->gemm);
}

/* diff and r of a tile for all rows of the group. */
static void set_tile(struct qz_feed *f, size_t row, const struct qz_tile *t,
                     size_t rows, const struct feed_table *table,
                     const uint8_t *codes)
{
    size_t i, j;

    for (i = 0; i < rows; i++)
        for (j = 0; j < t->n; j++)
            f->diff[i * t->n + j] =
                table->entry[codes[i * f->cols + t->col + j]] -
                f->x[(row + i) * f->cols + t->col + j];
    times_moment(f, t, rows);
}

/* One row of a tile, all columns in the moment's order. */
static void descend_row(const struct qz_tile *t, const struct feed_table *table,
                        float *r, uint8_t *codes)
{
    const struct qz_moment *m = t->m;
    size_t j;

    for (j = 0; j < t->n; j++) {
        size_t col = m->order[j];
        const float *h = m->h + col * t->n;
        float have = table->entry[codes[col]], want;
        uint8_t q = feed_nearest(table, have - r[col] / h[col]);

        want = table->entry[q];
        if (!(want < have) && !(want > have))
            continue;
        codes[col] = q;
        feed_axpy(r, h, want - have, t->n);
    }
}

static void descend(struct qz_feed *f, size_t row, const struct qz_tile *t,
                    size_t rows, const struct feed_table *table, uint8_t *codes)
{
    size_t i;
    int c;

    set_tile(f, row, t, rows, table, codes);
    for (i = 0; i < rows; i++)
        for (c = 0; c < CYCLES; c++)
            descend_row(t, table, f->r + i * t->n,
                        codes + i * f->cols + t->col);
}

/* ---- the table ---- */

/* The columns of each code, one code after the other: those of code a are
 * places start[a] to start[a + 1]. */
static void sort_columns(const uint8_t *codes, size_t n, size_t k,
                         uint32_t *columns, size_t *start)
{
    size_t at[1 << REFIT_BITS], a, j;

    memset(start, 0, (k + 1) * sizeof *start);
    for (j = 0; j < n; j++)
        start[codes[j] + 1]++;
    for (a = 0; a < k; a++) {
        start[a + 1] += start[a];
        at[a] = start[a];
    }
    for (j = 0; j < n; j++)
        columns[at[codes[j]]++] = (uint32_t)j;
}

/* Adds one row of a tile to the normal equations; v is the last column. */
static void add_equations(struct qz_feed *f, const struct qz_tile *t,
                          const float *x, const uint8_t *codes)
{
    size_t k = (size_t)1 << f->bits, n = t->n, a, j;
    size_t start[(1 << REFIT_BITS) + 1];

    sort_columns(codes, n, k, f->columns, start);
    for (a = 0; a < k; a++) {
        double *m = f->m + a * (k + 1), v = 0;

        feed_sum_rows(f->s, t->m->h, n, f->columns + start[a],
                      start[a + 1] - start[a]);
        for (j = 0; j < n; j++) {
            m[codes[j]] += (double)f->s[j];
            v += (double)f->s[j] * (double)x[j];
        }
        m[k] += v;
    }
}

/* c' M c - 2 c' v, the part of the error that the table decides. */
static double table_part(const double *m, size_t k, const double *c)
{
    double sum = 0;
    size_t a, b;

    for (a = 0; a < k; a++) {
        double row = -2 * m[a * (k + 1) + k];

        for (b = 0; b < k; b++)
            row += m[a * (k + 1) + b] * c[b];
        sum += row * c[a];
    }
    return sum;
}

/* Solves for c in place of v; entries without weights keep theirs. False: no
 * solution. */
static bool solve(const double *m, size_t k, double *c)
{
    double a[1 << REFIT_BITS][(1 << REFIT_BITS) + 1], mean = 0;
    size_t i, j, q;

    for (i = 0; i < k; i++)
        mean += m[i * (k + 1) + i] / (double)k;
    for (i = 0; i < k; i++) {
        bool used = m[i * (k + 1) + i] > 0;

        for (j = 0; j <= k; j++)
            a[i][j] = used ? m[i * (k + 1) + j] : 0;
        a[i][i] = used ? a[i][i] + RIDGE * mean : 1;
        a[i][k] = used ? a[i][k] : c[i];
    }
    for (q = 0; q < k; q++) { /* M is positive: no pivots */
        if (!(a[q][q] > 0))
            return false;
        for (i = q + 1; i < k; i++) {
            double w = a[i][q] / a[q][q];

            for (j = q; j <= k; j++)
                a[i][j] -= w * a[q][j];
        }
    }
    for (q = k; q-- > 0;) {
        for (j = q + 1; j < k; j++)
            a[q][k] -= a[q][j] * c[j];
        c[q] = a[q][k] / a[q][q];
        if (!(fabs(c[q]) < 65504))
            return false;
    }
    return true;
}

/* Ascending order; codes follow. */
static void sort_table(f16_t *table, int bits, uint8_t *codes, size_t n)
{
    uint8_t place[1 << REFIT_BITS], to[1 << REFIT_BITS];
    f16_t old[1 << REFIT_BITS];
    int k = 1 << bits, q, i;
    size_t j;

    memcpy(old, table, (size_t)k * sizeof *old);
    for (q = 0; q < k; q++) {
        for (i = q; i > 0 && f16_to_f32(old[place[i - 1]]) > f16_to_f32(old[q]);
             i--)
            place[i] = place[i - 1];
        place[i] = (uint8_t)q;
    }
    for (q = 0; q < k; q++) {
        table[q] = old[place[q]];
        to[place[q]] = (uint8_t)q;
    }
    for (j = 0; j < n; j++)
        codes[j] = to[codes[j]];
}

/* The best table for the codes, if it is better than the one at hand. */
static bool refit(struct qz_feed *f, f16_t *table, uint8_t *codes, size_t n)
{
    double have[1 << REFIT_BITS], want[1 << REFIT_BITS];
    size_t k = (size_t)1 << f->bits, q;
    f16_t t[1 << REFIT_BITS];

    for (q = 0; q < k; q++)
        want[q] = have[q] = (double)f16_to_f32(table[q]);
    if (!solve(f->m, k, want))
        return false;
    for (q = 0; q < k; q++) {
        t[q] = f64_to_f16(want[q]);
        t[q] = t[q] == 0x8000 ? 0 : t[q];
        want[q] = (double)f16_to_f32(t[q]);
    }
    if (!(table_part(f->m, k, want) < table_part(f->m, k, have)))
        return false;
    memcpy(table, t, k * sizeof *t);
    sort_table(table, f->bits, codes, n);
    return true;
}

/* ---- one group ---- */

struct one_group {
    struct qz_feed *f;
    size_t row, rows; /* in f->x */
    const struct qz_tiles *tiles;
    f16_t *table;
    uint8_t *codes;
};
/* A tile with a moment and the rows of the group that share it. */
struct piece {
    struct qz_tile tile;
    size_t row, rows;
};

/* *at and *tile begin as 0. */
static bool next_piece(const struct one_group *g, size_t *at, size_t *tile,
                       struct piece *p)
{
    while (*at < g->rows) {
        const struct qz_tiles *list = &g->tiles[*at];
        size_t rows = 1;

        while (*at + rows < g->rows &&
               g->tiles[*at + rows].tiles == list->tiles &&
               g->tiles[*at + rows].n == list->n)
            rows++;
        while (*tile < list->n) {
            p->tile = list->tiles[(*tile)++];
            p->row = *at;
            p->rows = rows;
            if (p->tile.m != NULL)
                return true;
        }
        *tile = 0;
        *at += rows;
    }
    return false;
}

static void descend_all(const struct one_group *g)
{
    size_t at = 0, tile = 0;
    struct piece p;

    feed_table_set(&g->f->table[0], g->table, g->f->bits);
    while (next_piece(g, &at, &tile, &p))
        descend(g->f, g->row + p.row, &p.tile, p.rows, &g->f->table[0],
                g->codes + p.row * g->f->cols);
}

static bool refit_all(const struct one_group *g)
{
    struct qz_feed *f = g->f;
    size_t k = (size_t)1 << f->bits, at = 0, tile = 0, i;
    struct piece p;

    memset(f->m, 0, k * (k + 1) * sizeof *f->m);
    while (next_piece(g, &at, &tile, &p))
        for (i = 0; i < p.rows; i++)
            add_equations(f, &p.tile,
                          f->x + (g->row + p.row + i) * f->cols + p.tile.col,
                          g->codes + (p.row + i) * f->cols + p.tile.col);
    return refit(f, g->table, g->codes, g->rows * f->cols);
}

/* sum of a_j b_j in double, four sums in a fixed order. */
static double dot(const float *a, const float *b, size_t n)
{
    double s[4] = { 0, 0, 0, 0 };
    size_t i;

    for (i = 0; i < n; i++)
        s[i % 4] += (double)a[i] * (double)b[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static double rows_times_moment(struct qz_feed *f, const struct piece *p)
{
    double sum = 0;
    size_t i, n = p->tile.n;

    for (i = 0; i < p->rows; i++)
        sum += dot(f->diff + i * n, f->r + i * n, n);
    return sum;
}

static void measure(const struct one_group *g, struct qz_output *out)
{
    struct qz_feed *f = g->f;
    size_t at = 0, tile = 0, i;
    struct piece p;

    feed_table_set(&f->table[0], g->table, f->bits);
    while (next_piece(g, &at, &tile, &p)) {
        set_tile(f, g->row + p.row, &p.tile, p.rows, &f->table[0],
                 g->codes + p.row * f->cols);
        out->error += rows_times_moment(f, &p);
        /* The same of the values themselves. */
        for (i = 0; i < p.rows; i++)
            memcpy(f->diff + i * p.tile.n,
                   f->x + (g->row + p.row + i) * f->cols + p.tile.col,
                   p.tile.n * sizeof *f->diff);
        times_moment(f, &p.tile, p.rows);
        out->energy += rows_times_moment(f, &p);
    }
}

void feed_refine(struct qz_feed *f, size_t row, size_t n,
                 const struct qz_tiles *tiles, f16_t *table, uint8_t *codes,
                 struct qz_output *out)
{
    struct one_group g = { f, row, n, tiles, table, codes };
    int i;

    for (i = 0; i < ROUNDS && f->fit; i++) {
        descend_all(&g);
        if (!refit_all(&g))
            break;
    }
    if (i == ROUNDS || !f->fit)
        descend_all(&g);
    measure(&g, out);
}
