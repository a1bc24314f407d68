/*
 * Codes of rows by what they leave in the layer's output: error feedback
 * (feedback.c), then descent on codes and tables (refine.c).
 */
#ifndef QUANT_FEEDBACK_PRIV_H
#define QUANT_FEEDBACK_PRIV_H

#include "converter/base/sgemm.h"
#include "quant/moment.h"
#include "quant/stages.h"

#define FEED_LANES 32 /* rows that are rounded together */
/* Tables up to this size are fitted again to the codes. */
#define REFIT_BITS 4

/* Columns [col, col + n) of a row and their moment; NULL: they stay with the
 * nearest entries. */
struct qz_tile {
    size_t col, n;
    const struct qz_moment *m;
};
/* What is the same for some rows. */
struct qz_tiles {
    const struct qz_tile *tiles;
    size_t n;
};

/* Of consecutive rows of a source; rows that are alike share one list. `rows`
 * has room for them all. */
struct qz_tile_map {
    struct qz_tile *tiles;
    size_t n, cap;
    struct qz_tiles *rows;
};
int feed_map_rows(struct qz_tile_map *map, const struct qz_source *src,
                  uint64_t row, uint64_t rows, struct err *e) ATTR_MUST_USE;
void feed_map_release(struct qz_tile_map *map); /* `rows` too */

/* A table, and where one entry's realm ends. */
struct feed_table {
    int k;
    float entry[QZ_MAX_CLUSTERS], mid[QZ_MAX_CLUSTERS];
};
void feed_table_set(struct feed_table *t, const f16_t *table, int bits);
/* The nearest entry, the lower one of two. */
static inline uint8_t feed_nearest(const struct feed_table *t, float v)
{
    int at = 0, step;

    for (step = t->k / 2; step > 0; step /= 2)
        at += v > t->mid[at + step - 1] ? step : 0;
    return (uint8_t)at;
}

/* Consecutive groups that one worker holds at a time. */
struct qz_feed {
    size_t rows, cols, group; /* most rows; columns; rows of a group */
    int bits;
    bool fit;          /* tables, to the codes */
    float *x;          /* [rows, cols]: values */
    float *d;          /* [cols, FEED_LANES]: what was rounded away */
    float *diff;       /* [group, cols]: entries less values */
    float *packed;     /* of diff */
    float *r;          /* [group, cols]: diff times the moment */
    float *s;          /* [cols]: sum of the moment's rows of one entry */
    uint32_t *columns; /* [cols]: by entry */
    double *m;         /* [2^bits, 2^bits + 1]: normal equations */
    struct feed_table table[FEED_LANES];
    struct sgemm_scratch *gemm;
};
/* fit: only where tables are small enough. */
struct qz_feed *qz_feed_new(size_t rows, size_t cols, size_t group, int bits,
                            bool fit, struct err *e) ATTR_MUST_USE;
void qz_feed_free(struct qz_feed *f);

struct qz_output {
    double error, energy; /* of the rows' outputs, where there are moments */
};
/*
 * Finds codes for n rows (whole groups, or one part of a group; at most
 * f->rows) whose tables and nearest codes are given, and fits the tables anew.
 * `tiles` has one list for each row. Adds to *out.
 */
void qz_feed_rows(struct qz_feed *f, const uint16_t *values, size_t n,
                  enum qz_format format, int scale_exp,
                  const struct qz_tiles *tiles, f16_t *tables, uint8_t *codes,
                  struct qz_output *out);

/*
 * Integers of n rows, which have `per_row` scales each, of `block` columns; 0:
 * one scale for all. Their nearest integers are in q. `d` is scratch:
 * [cols, FEED_LANES].
 */
struct qz_scales {
    const f16_t *scales;
    uint64_t per_row, block;
    int top; /* the greatest integer; the least is -top - 1 */
};
void feed_integers(float *d, const float *x, size_t n, size_t cols,
                   const struct qz_tiles *tiles, const struct qz_scales *s,
                   int8_t *q);

/* refine.c: one group of n rows, whose values are at `row` of f->x. */
void feed_refine(struct qz_feed *f, size_t row, size_t n,
                 const struct qz_tiles *tiles, f16_t *table, uint8_t *codes,
                 struct qz_output *out);

/* out[l] = sum of a[i] d[i][l] over i < n; d [n, FEED_LANES] */
void feed_lanes(const float *a, const float *d, size_t n, float *out);
/* y[i] += a x[i] */
void feed_axpy(float *y, const float *x, float a, size_t n);
/* sum[i] = sum of h[rows[q]][i] over q < n, in this order; h [.., width]. */
void feed_sum_rows(float *sum, const float *h, size_t width,
                   const uint32_t *rows, size_t n);

#endif
