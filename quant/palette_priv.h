/*
 * The streamed matrix, between palette.c and palette_feed.c.
 */
#ifndef QUANT_PALETTE_PRIV_H
#define QUANT_PALETTE_PRIV_H

#include "quant/feedback_priv.h"

/* The first error of one worker. */
struct failure {
    uint64_t group; /* UINT64_MAX: none */
    bool read;      /* its rows could not be read */
    size_t bad;     /* place in the group of a value that is not finite */
    uint16_t bits;
    struct err err;
};

struct qz_palette {
    struct qz_source src;
    int bits;
    uint32_t k;
    uint64_t group, group_weights, groups, block_rows, blocks;
    bool large;
    struct par *par;
    int workers;
    struct qz_scratch **scratch; /* one per worker */
    struct failure *failures;    /* one per worker */

    f16_t *tables;
    uint8_t *done; /* per group: its table is there */
    struct qz_stats stats;

    /* Only while something is read: see need_work. */
    bool working;
    uint64_t block;       /* the one in `packed`; `blocks` if none */
    uint64_t first_group; /* of the block in work */
    uint64_t read_row;    /* the first of those that are read */
    uint64_t weights;     /* in the block in work */
    uint16_t *values;
    float *importance; /* of the values; NULL: all alike */
    uint8_t *indices, *packed;
    struct qz_result *results; /* small groups of a block */

    /* Large groups: counts of all rows, spans of the workers, and the group
     * whose thresholds are in scratch[0]. */
    uint64_t *wide;
    struct qz_span *spans;
    uint64_t nearest_group;
    float scale; /* of its importances */

    /* Error feedback: tiles of the block's rows, and per worker and unit of
     * rows what is at work and what came out. */
    struct qz_tile_map map;
    struct qz_feed **feeds;
    struct qz_output *outputs; /* per unit */
    struct qz_errors *errors;  /* likewise, where groups are large */
    uint64_t feed_at, feed_rows, feed_group; /* of the part at work */
    uint8_t *counted; /* per block: its figures are in the stats */
};

/* palette_feed.c: only for sources with moments. */
int palette_feed_new(struct qz_palette *p, struct err *e) ATTR_MUST_USE;
void palette_feed_free(struct qz_palette *p);
/* Tiles of rows [row, row + rows), which are the block's first ones. */
int palette_feed_tiles(struct qz_palette *p, uint64_t row, uint64_t rows,
                       struct err *e) ATTR_MUST_USE;
/* Codes and tables of the block's groups, whose tables and nearest codes are
 * there; figures of group i of the block to results[i]. */
void palette_feed_groups(struct qz_palette *p, uint64_t groups);
/* Codes of some of the block's rows (from `at` on), all of group g. */
void palette_feed_part(struct qz_palette *p, uint64_t at, uint64_t rows,
                       uint64_t g, bool count);

#endif
