/*
 * Weights of a package against those of the checkpoint; see gate_weights.h.
 */
#include "converter/gate_weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "converter/gate_metrics.h"

/* Elements of one unit of work; whole rows of one group. */
#define BLOCK 65536
#define NOWHERE UINT64_MAX
/* Squares below this are lost in the rounding of fp16's subnormals. */
#define NOISE 0x1p-30

/* What a block of one group came to. */
struct block {
    uint64_t wrong; /* elements */
    uint64_t first; /* index of the first of them within the piece */
    double ww, wq, qq;
    double error, least; /* squared; of the nearest entries */
};

struct worker {
    float *want, *have; /* [rows of a block, cols] */
    struct err e;
};

/* One constant at work. */
struct piece_job {
    const struct package_source *src;
    const struct ckpt *ckpt;
    const struct need *need;
    struct source_piece piece;
    size_t index;
    uint64_t group_rows, step, per_group; /* blocks */
    struct block *blocks;
    struct worker *workers;
};

/* ---- one block ---- */

/* The values that the constant was made from. Tensors of float32 are rounded
 * to fp16 before they are clustered. */
static int wanted(const struct piece_job *j, uint64_t first, size_t n,
                  float *dst, struct err *e)
{
    const struct source_piece *p = &j->piece;

    for (size_t i = 0; i < n;) {
        uint64_t run, at = source_locate(p, first + i, &run);
        size_t m = run < n - i ? (size_t)run : n - i;

        if (need_read_f32(j->ckpt->st, j->need, at, m, dst + i, e))
            return -1;
        i += m;
    }
    if (p->bits < 16 && j->need->tensor->dtype == ST_F32)
        num_round_f16(dst, dst, n);
    for (size_t i = 0; i < n; i++)
        dst[i] = ldexpf((float)source_fold(p, (double)dst[i]), p->scale_exp);
    if (p->bits == 16)
        num_round_f16(dst, dst, n);
    return 0;
}

/* Sorted ascending; tables are so already, which takes one pass. */
static void sort(float *x, int n)
{
    for (int i = 1; i < n; i++) {
        float v = x[i];
        int k = i;

        for (; k > 0 && x[k - 1] > v; k--)
            x[k] = x[k - 1];
        x[k] = v;
    }
}

/* The entry's index in a sorted table, any one of equals. */
static int find(const float *x, int n, float v)
{
    int lo = 0, hi = n - 1;

    while (lo < hi) {
        int mid = (lo + hi) / 2;

        if (x[mid] < v)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Half-way to the next smaller and next greater entry, for each entry of a
 * sorted table. */
static void borders(const float *x, int n, double *lo, double *hi)
{
    for (int i = 0; i < n; i++) {
        bool same = i > 0 && !(x[i] > x[i - 1]);

        lo[i] = i == 0 ? -INFINITY
                : same ? lo[i - 1]
                       : ((double)x[i - 1] + (double)x[i]) / 2;
    }
    for (int i = n - 1; i >= 0; i--) {
        bool same = i < n - 1 && !(x[i] < x[i + 1]);

        hi[i] = i == n - 1 ? INFINITY
                : same     ? hi[i + 1]
                           : ((double)x[i] + (double)x[i + 1]) / 2;
    }
}

/* From x to the nearest entry of a sorted table. */
static double nearest_distance(const float *table, int k, double x)
{
    int at = find(table, k, (float)x);
    double d = fabs(x - (double)table[at]);

    if (at > 0)
        d = fmin(d, fabs(x - (double)table[at - 1]));
    return at + 1 < k ? fmin(d, fabs(x - (double)table[at + 1])) : d;
}

static void note(struct block *b, uint64_t at)
{
    if (!b->wrong++)
        b->first = at;
}

static int palettized(const struct piece_job *j, uint64_t group, uint64_t first,
                      size_t n, const struct worker *w, struct block *b,
                      struct err *e)
{
    float table[256];
    double lo[256], hi[256];
    int k = 1 << j->piece.bits;

    if (package_source_table(j->src, j->index, group, table, e))
        return -1;
    sort(table, k);
    borders(table, k, lo, hi);
    for (size_t i = 0; i < n; i++) {
        double x = (double)w->want[i], q = (double)w->have[i];
        int at = find(table, k, w->have[i]);

        if (j->piece.method == CV_GPTQ) {
            double near = nearest_distance(table, k, x);

            b->least += near * near;
            b->error += (x - q) * (x - q);
        } else if (!(x >= lo[at] && x <= hi[at])) { /* NaN is wrong */
            note(b, first + i);
        }
        b->ww += x * x;
        b->wq += x * q;
        b->qq += q * q;
    }
    return 0;
}

/* Each integer is the nearest for its scale, or the end of the range; with
 * error feedback their error is held against that of the nearest. */
static int linear(const struct piece_job *j, uint64_t first, size_t n,
                  const struct worker *w, struct block *b, struct err *e)
{
    int top = 1 << (j->piece.bits - 1);

    for (size_t i = 0; i < n; i++) {
        double x = (double)w->want[i], q = (double)w->have[i], s, k;
        float scale;

        if (package_source_scale(j->src, j->index, first + i, &scale, e))
            return -1;
        s = (double)scale;
        k = s > 0 ? nearbyint(q / s) : 0;
        if (j->piece.method == CV_GPTQ && s > 0) {
            double near = nearbyint(x / s);

            near = near > top - 1 ? top - 1 : near < -top ? -top : near;
            b->least += (x - s * near) * (x - s * near);
            b->error += (x - q) * (x - q);
        }
        /* What was decoded is rounded to fp16. */
        else if (!(s > 0) || !(fabs(x - q) <= s / 2 + fabs(q) * 0x1p-10 ||
                               (k >= top - 1 && x > q) || (k <= -top && x < q)))
            note(b, first + i);
        b->ww += x * x;
        b->wq += x * q;
        b->qq += q * q;
    }
    return 0;
}

static int compare_block(const struct piece_job *j, uint64_t at,
                         struct worker *w, struct err *e)
{
    uint64_t group = at / j->per_group, row = at % j->per_group * j->step;
    uint64_t rows =
        j->group_rows - row < j->step ? j->group_rows - row : j->step;
    uint64_t first = (group * j->group_rows + row) * j->piece.cols;
    size_t n = (size_t)(rows * j->piece.cols);
    struct block *b = &j->blocks[at];

    b->first = NOWHERE;
    if (wanted(j, first, n, w->want, e) ||
        package_source_values(j->src, j->index, first, n, w->have, e))
        return -1;
    if (j->piece.linear)
        return linear(j, first, n, w, b, e);
    if (j->piece.bits < 16)
        return palettized(j, group, first, n, w, b, e);
    for (size_t i = 0; i < n; i++)
        if (!(w->want[i] == w->have[i]))
            note(b, first + i);
    return 0;
}

static void compare_blocks(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct piece_job *j = arg;
    struct worker *w = &j->workers[worker];

    for (uint64_t i = begin; i < end && !w->e.code; i++)
        if (compare_block(j, i, w, &w->e))
            return;
}

/* ---- one constant ---- */

/* How far the entries of one group's table are from the means of their
 * weights, all together: for means <w, q> = <q, q>. */
static double gain_error(const struct piece_job *j, uint64_t group)
{
    const struct block *b = &j->blocks[group * j->per_group];
    double n = (double)(j->group_rows * j->piece.cols);
    double ww = 0, wq = 0, qq = 0;

    for (uint64_t i = 0; i < j->per_group; i++) {
        ww += b[i].ww;
        wq += b[i].wq;
        qq += b[i].qq;
    }
    if (qq < ww * 0x1p-20 && ww > n * NOISE)
        return INFINITY; /* a table of zeros */
    return fabs(wq - qq) / (qq + n * NOISE);
}

static void where(struct gate_weights *out, const struct piece_job *j,
                  uint64_t at)
{
    const struct source_piece *p = &j->piece;

    if (!out->first[0])
        snprintf(out->first, sizeof(out->first),
                 "tensor '%s', row %" PRIu64 ", column %" PRIu64
                 " (constant '%s')",
                 p->tensor, p->row + at / p->cols, at % p->cols, p->name);
}

/* Of a whole constant; NaN comes out as it is. */
static double excess(const struct piece_job *j)
{
    double error = 0, least = 0, ww = 0;

    for (uint64_t i = 0; i < j->piece.groups * j->per_group; i++) {
        error += j->blocks[i].error;
        least += j->blocks[i].least;
        ww += j->blocks[i].ww;
    }
    return error / (least + ww * 0x1p-22 + 0x1p-60);
}

static void gather(struct gate_weights *out, const struct piece_job *j)
{
    const struct source_piece *p = &j->piece;
    uint64_t *count = p->bits < 16 ? &out->misplaced : &out->differ;

    out->elems += p->rows * p->cols;
    for (uint64_t i = 0; i < p->groups * j->per_group; i++) {
        *count += j->blocks[i].wrong;
        if (j->blocks[i].wrong)
            where(out, j, j->blocks[i].first);
    }
    if (p->bits < 16 && p->method == CV_GPTQ) {
        double v = excess(j);

        if (!(v <= GATE_EXCESS))
            where(out, j, 0);
        metrics_keep_max(&out->excess, v);
    }
    /* Entries of weighted clusters are means by weights that nobody here
     * knows. */
    for (uint64_t g = 0;
         p->bits < 16 && !p->linear && p->method == CV_KMEANS && g < p->groups;
         g++) {
        double v = gain_error(j, g);

        if (!(v <= GATE_GAIN_ERROR))
            where(out, j, g * j->group_rows * p->cols);
        metrics_keep_max(&out->gain_error, v);
    }
}

static int run_piece(struct piece_job *j, struct par *par, struct err *e)
{
    const struct source_piece *p = &j->piece;
    int width = par_width(par), rc = 0;
    uint64_t elems;

    j->group_rows = p->rows / p->groups;
    j->step = BLOCK / p->cols ? BLOCK / p->cols : 1;
    if (j->step > j->group_rows)
        j->step = j->group_rows;
    j->per_group = (j->group_rows + j->step - 1) / j->step;
    elems = j->step * p->cols;
    j->blocks =
        mem_zalloc((size_t)(p->groups * j->per_group), sizeof(*j->blocks), e);
    j->workers = mem_zalloc((size_t)width, sizeof(*j->workers), e);
    if (!j->blocks || !j->workers)
        return -1;
    for (int i = 0; !rc && i < width; i++) {
        struct worker *w = &j->workers[i];

        w->want = mem_alloc((size_t)elems, sizeof(float), e);
        w->have = mem_alloc((size_t)elems, sizeof(float), e);
        rc = w->want && w->have ? 0 : -1;
    }
    if (!rc)
        par_for(par, p->groups * j->per_group, 0, compare_blocks, j);
    for (int i = 0; i < width; i++) {
        struct worker *w = &j->workers[i];

        if (!rc && w->e.code)
            rc = err_copy(e, &w->e);
        mem_free(w->want);
        mem_free(w->have);
    }
    return rc;
}

static int compare_piece(struct gate_weights *out, struct piece_job *j,
                         struct par *par, struct err *e)
{
    int rc = run_piece(j, par, e);

    if (!rc)
        gather(out, j);
    mem_free(j->blocks);
    mem_free(j->workers);
    return rc;
}

/* ---- all of them ---- */

/* Whether some piece of `s` holds row `row` of a tensor; *next is the first
 * row behind it that may be held otherwise. */
static bool holds(const struct package_source *s, const char *tensor,
                  uint64_t row, uint64_t rows, uint64_t *next)
{
    bool found = false;

    *next = rows;
    for (size_t i = 0; i < package_source_count(s); i++) {
        struct source_piece p;
        uint64_t at = row, end;

        package_source_at(s, i, &p);
        if (strcmp(p.tensor, tensor) != 0)
            continue;
        if (p.block) { /* row by row */
            *next = row + 1;
            if (row % p.block < p.skip || row % p.block >= p.skip + p.take)
                continue;
            at = row / p.block * p.take + row % p.block - p.skip;
        }
        end = p.wide ? rows : p.row + p.rows;
        if (p.wide || (p.row <= at && at < end)) {
            found = true;
            if (!p.block && *next > end)
                *next = end;
        } else if (!p.block && p.row > row && *next > p.row) {
            *next = p.row;
        }
    }
    return found;
}

/* Rows of a tensor that no constant holds. */
static void count_missing(const struct package_source *s, const char *tensor,
                          uint64_t rows, struct gate_weights *out)
{
    for (uint64_t row = 0, next; row < rows; row = next) {
        if (holds(s, tensor, row, rows, &next))
            continue;
        out->missing += next - row;
        if (!out->first[0])
            snprintf(out->first, sizeof(out->first),
                     "tensor '%s', row %" PRIu64, tensor, row);
    }
}

/* Stacked experts are rows of rows. */
static uint64_t rows_of(const struct need *nd)
{
    return nd->rank == 3 && nd->dims[1] > 1 ? nd->dims[0] * nd->dims[1]
                                            : nd->dims[0];
}

int gate_weights_compare(const struct package_source *s, const struct ckpt *c,
                         struct par *par, const struct log *log,
                         struct gate_weights *out, struct err *e)
{
    size_t n = package_source_count(s);

    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < c->ledger.n; i++)
        count_missing(s, c->ledger.needs[i].name, rows_of(&c->ledger.needs[i]),
                      out);
    if (c->hp.tied)
        count_missing(s, "lm_head.weight", (uint64_t)c->hp.vocab, out);
    for (size_t i = 0; i < n; i++) {
        struct piece_job j = { .src = s, .ckpt = c, .index = i };

        package_source_at(s, i, &j.piece);
        j.need = ckpt_need(c, j.piece.tensor);
        if (!j.need || !j.need->tensor)
            return err_set(e, ERR_INPUT, "'%s' has no tensor '%s'", c->dir,
                           j.piece.tensor);
        log_progress(log, "weights", i, n, "constants");
        if (log_cancelled(log))
            return err_set(e, ERR_CANCELLED, "interrupted");
        if (compare_piece(out, &j, par, e))
            return -1;
    }
    log_progress(log, "weights", n, n, "constants");
    return 0;
}
