/*
 * Palettization: exact one-dimensional k-means on 16-bit values, fp16 tables,
 * LSB-first index packing.
 *
 * A weight matrix [rows, cols] is cut into groups of `group` consecutive rows
 * (output channels); each group has one table of 2^bits fp16 values, sorted
 * ascending, and one index per weight. The partition is the exact optimum of
 * the sum of squared errors over the group's values (equal values aggregated
 * first, which loses nothing), then centroids are rounded to fp16 and every
 * value re-assigned to the nearest rounded centroid. With importances the
 * errors are weighted, with second moments of the inputs indices and tables
 * go for the least error in the output. The result depends on the values
 * alone: never on thread count, SIMD level or block size.
 */
#ifndef QUANT_QUANT_H
#define QUANT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"
#include "converter/base/num.h"
#include "converter/base/par.h"
#include "quant/moment.h"

/* Of all that this folder computes, and of the importances that calibration
 * makes of moments: raised whenever any source and options give other tables,
 * indices, integers or scales than before. What was stored under another
 * number is computed anew. */
#define QZ_RESULTS 3

/* How the source's 16-bit patterns read. F32 sources are rounded to fp16
 * (nearest even) before clustering; bf16 is never rounded. */
enum qz_format { QZ_BF16, QZ_F16 };

bool qz_bits_ok(int bits); /* 1, 2, 3, 4, 6, 8 */
/* The largest group <= wanted that divides rows (wanted 0: rows). */
uint64_t qz_fit_group(uint64_t rows, uint64_t wanted);

/* Scratch of one worker; sized once, reused for every group. */
struct qz_scratch;
struct qz_scratch *qz_scratch_new(struct err *e) ATTR_MUST_USE;
void qz_scratch_free(struct qz_scratch *s);

struct qz_result {
    double sse;         /* of the written table and indices, in real units */
    double sum_sq;      /* sum of squared weights, for SNR */
    double weighted;    /* sse with each term times its importance */
    double weighted_sq; /* sum_sq likewise; without importances as above */
    uint32_t distinct;  /* distinct values in the group */
};

/*
 * Clusters one group of n values (bit patterns in `format`), scaled by
 * 2^scale_exp (exact; folds of powers of two). Writes 2^bits table entries
 * and n indices (one byte each). NaN or Inf: ERR_INPUT with the index of the
 * first one in the group (the caller adds tensor, row and column); a centroid
 * beyond fp16: ERR_INPUT.
 */
int qz_cluster(struct qz_scratch *s, const uint16_t *values, size_t n,
               enum qz_format format, int scale_exp, int bits, f16_t *table,
               uint8_t *indices, struct qz_result *result,
               struct err *e) ATTR_MUST_USE;

/*
 * The same under importances: minimizes the sum of importance times squared
 * error, exactly but for the rounding of importances to whole numbers of
 * 1/4096 of their mean (less fine beyond 2^19 weights), which also is the
 * least a weight counts. They are finite and not negative; if all are zero
 * all count alike. n is at most 2^21.
 */
int qz_cluster_weighted(struct qz_scratch *s, const uint16_t *values,
                        const float *importance, size_t n,
                        enum qz_format format, int scale_exp, int bits,
                        f16_t *table, uint8_t *indices,
                        struct qz_result *result, struct err *e) ATTR_MUST_USE;

/* Packs n indices of `bits` each, LSB first, into ceil(n * bits / 8) bytes.
 * n * bits must be a multiple of 8 except in the last call of a stream. */
void qz_pack(uint8_t *dst, const uint8_t *indices, size_t n, int bits);
void qz_unpack(uint8_t *indices, const uint8_t *src, size_t first, size_t n,
               int bits); /* elements first .. first+n-1 of the bit string */

/*
 * A palettized matrix that is computed while it is read.
 *
 * `read_rows` yields rows [row, row + n) as bit patterns in `format`; it is
 * called for several stretches at once. Threads: one caller at a time; groups
 * inside a block run on `par`, the other callbacks in the caller's thread.
 */
struct qz_source {
    uint64_t rows, cols;
    enum qz_format format;
    int scale_exp;
    int (*read_rows)(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                     struct err *e);
    /* Importances of the weights of these rows, as for qz_cluster_weighted.
     * NULL: all count alike. */
    int (*read_importance)(void *cookie, uint64_t row, uint64_t n, float *dst,
                           struct err *e);
    /*
     * Second moments of the inputs, for error feedback: that of column `col`
     * of a row (NULL: none) and how many columns from there on are its own
     * (*n = m->width, at its first column) or have none. They live as long as
     * the palette. NULL: entries are the nearest ones.
     */
    int (*moment)(void *cookie, uint64_t row, uint64_t col, uint64_t *n,
                  const struct qz_moment **m, struct err *e);
    void *cookie;
};
struct qz_palette;
struct qz_palette *qz_palette_new(const struct qz_source *src, int bits,
                                  uint64_t group, struct par *par,
                                  struct err *e) ATTR_MUST_USE;
void qz_palette_free(struct qz_palette *p);
uint64_t qz_palette_index_bytes(const struct qz_palette *p);
uint64_t qz_palette_table_elems(const struct qz_palette *p);
/* Packed index bytes [offset, offset + n). Cheapest front to back: a block
 * of groups is clustered once, when its first byte is asked for. */
int qz_palette_read_indices(struct qz_palette *p, uint64_t offset, void *dst,
                            size_t n, struct err *e) ATTR_MUST_USE;
/* Table bytes (fp16, groups in order). Clusters what was not read yet. */
int qz_palette_read_tables(struct qz_palette *p, uint64_t offset, void *dst,
                           size_t n, struct err *e) ATTR_MUST_USE;

/* Figures over the groups clustered so far. */
struct qz_stats {
    double sse, sum_sq;
    double weighted, weighted_sq; /* by importance */
    double output, output_sq;     /* by moment; 0: there was none */
    uint64_t groups, weights;
};
void qz_palette_stats(const struct qz_palette *p, struct qz_stats *out);

#endif
