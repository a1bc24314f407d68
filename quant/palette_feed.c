/*
 * Error feedback in the streamed matrix: which moments the rows of a block
 * have, and the block cut into units of rows for the workers.
 */
#include <inttypes.h>
#include <string.h>

#include "converter/base/mem.h"
#include "quant/palette_priv.h"

/* Whole groups of at least FEED_LANES rows, or parts of a large group. */
static uint64_t unit_rows(const struct qz_palette *p)
{
    return p->large || p->group >= FEED_LANES
               ? (p->large ? FEED_LANES : p->group)
               : (FEED_LANES + p->group - 1) / p->group * p->group;
}

int palette_feed_new(struct qz_palette *p, struct err *e)
{
    size_t rows = (size_t)unit_rows(p), cols = (size_t)p->src.cols;
    size_t units = (size_t)(p->block_rows / rows + 2);
    size_t workers = (size_t)p->workers, i;

    p->map.rows = mem_alloc((size_t)p->block_rows, sizeof *p->map.rows, e);
    p->outputs = mem_alloc(units, sizeof *p->outputs, e);
    p->errors = mem_alloc(units, sizeof *p->errors, e);
    p->feeds = mem_zalloc(workers, sizeof *p->feeds, e);
    if (p->counted == NULL)
        p->counted = mem_zalloc((size_t)p->blocks, 1, e);
    if (p->counted == NULL || p->map.rows == NULL || p->outputs == NULL ||
        p->errors == NULL || p->feeds == NULL)
        return -1;
    for (i = 0; i < workers; i++)
        if ((p->feeds[i] =
                 qz_feed_new(rows, cols, p->large ? rows : (size_t)p->group,
                             p->bits, !p->large, e)) == NULL)
            return -1;
    return 0;
}

void palette_feed_free(struct qz_palette *p)
{
    int i;

    for (i = 0; p->feeds != NULL && i < p->workers; i++)
        qz_feed_free(p->feeds[i]);
    mem_free(p->feeds);
    feed_map_release(&p->map);
    mem_free(p->outputs);
    mem_free(p->errors);
    p->feeds = NULL;
    p->outputs = NULL;
    p->errors = NULL;
}

int palette_feed_tiles(struct qz_palette *p, uint64_t row, uint64_t rows,
                       struct err *e)
{
    return feed_map_rows(&p->map, &p->src, row, rows, e);
}

/* ---- small groups ---- */

static void feed_units(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct qz_palette *p = arg;
    uint64_t per = unit_rows(p) / p->group, i;
    size_t cols = (size_t)p->src.cols, n = (size_t)p->group_weights;

    for (; begin < end; begin++) {
        uint64_t g = begin * per, groups = p->feed_rows / p->group - g;
        size_t at = (size_t)(g * p->group) * cols;

        groups = groups < per ? groups : per;
        memset(&p->outputs[begin], 0, sizeof p->outputs[begin]);
        qz_feed_rows(p->feeds[worker], p->values + at,
                     (size_t)(groups * p->group), p->src.format,
                     p->src.scale_exp, p->map.rows + g * p->group,
                     p->tables + (p->first_group + g) * p->k, p->indices + at,
                     &p->outputs[begin]);
        for (i = g; i < g + groups; i++) {
            struct qz_errors sum = { 0, 0, 0, 0 };
            struct qz_result *r = &p->results[i];

            qz_errors_add(&sum, p->values + i * n, p->indices + i * n,
                          p->tables + (p->first_group + i) * p->k, p->bits,
                          p->importance != NULL ? p->importance + i * n : NULL,
                          n, p->src.format, p->src.scale_exp);
            r->sse = sum.sse;
            r->sum_sq = sum.sum_sq;
            r->weighted = sum.weighted;
            r->weighted_sq = sum.weighted_sq;
        }
    }
}

static void add_outputs(struct qz_palette *p, uint64_t units)
{
    uint64_t i;

    for (i = 0; i < units; i++) {
        p->stats.output += p->outputs[i].error;
        p->stats.output_sq += p->outputs[i].energy;
    }
}

void palette_feed_groups(struct qz_palette *p, uint64_t groups)
{
    uint64_t per = unit_rows(p) / p->group, units = (groups + per - 1) / per;

    p->feed_rows = groups * p->group;
    par_for(p->par, units, 1, feed_units, p);
    /* Blocks are done as a whole. */
    if (!p->done[p->first_group])
        add_outputs(p, units);
}

/* ---- large groups ---- */

static void feed_parts(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct qz_palette *p = arg;
    size_t cols = (size_t)p->src.cols;
    f16_t *table = p->tables + p->feed_group * p->k;

    for (; begin < end; begin++) {
        uint64_t row = begin * FEED_LANES, left = p->feed_rows - row;
        size_t n = (size_t)(left < FEED_LANES ? left : FEED_LANES);
        size_t at = (size_t)(p->feed_at + row) * cols;

        memset(&p->outputs[begin], 0, sizeof p->outputs[begin]);
        memset(&p->errors[begin], 0, sizeof p->errors[begin]);
        qz_feed_rows(p->feeds[worker], p->values + at, n, p->src.format,
                     p->src.scale_exp, p->map.rows + p->feed_at + row, table,
                     p->indices + at, &p->outputs[begin]);
        qz_errors_add(&p->errors[begin], p->values + at, p->indices + at, table,
                      p->bits,
                      p->importance != NULL ? p->importance + at : NULL,
                      n * cols, p->src.format, p->src.scale_exp);
    }
}

void palette_feed_part(struct qz_palette *p, uint64_t at, uint64_t rows,
                       uint64_t g, bool count)
{
    uint64_t units = (rows + FEED_LANES - 1) / FEED_LANES, i;

    p->feed_at = at;
    p->feed_rows = rows;
    p->feed_group = g;
    par_for(p->par, units, 1, feed_parts, p);
    if (!count)
        return;
    add_outputs(p, units);
    for (i = 0; i < units; i++) {
        p->stats.sse += p->errors[i].sse;
        p->stats.sum_sq += p->errors[i].sum_sq;
        p->stats.weighted += p->errors[i].weighted;
        p->stats.weighted_sq += p->errors[i].weighted_sq;
    }
    p->stats.weights += rows * p->src.cols;
}
