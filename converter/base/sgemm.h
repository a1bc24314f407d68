/*
 * Matrix products in float32, for the reference and for calibration: y = x
 * W^T, with W as it lies in a checkpoint ([out, in], row-major).
 *
 * Every element of the result is defined by its own row of x and its own row
 * of W alone: the inner axis is cut into slices of SGEMM_SLICE from element
 * 0 on; within a slice eight partial sums (element k goes to sum k mod 8) are
 * built by fused multiply-add in float32, added pairwise, and the slices are
 * summed in double. So the same bits come out for any number of rows, any
 * split, any thread count and any SIMD level.
 */
#ifndef BASE_SGEMM_H
#define BASE_SGEMM_H

#include <stddef.h>

#include "converter/base/err.h"
#include "converter/base/par.h"

#define SGEMM_SLICE 256 /* inner elements whose sum stays in float32 */
#define SGEMM_PANEL 24  /* rows of W that are worked on together */
#define SGEMM_BATCH 128 /* rows of x that are worked on together */

/* k rounded up to the width of the partial sums. */
size_t sgemm_pad(size_t k);

/*
 * Rows of x in the order in which they are read: slice by slice, the rows of
 * a slice one after the other, the last slice filled with zeros up to
 * sgemm_pad. dst has n * sgemm_pad(k) elements.
 */
void sgemm_pack(float *dst, const float *x, size_t ldx, size_t n, size_t k);

/* One slice: c[j * ldc + i] += x[i] . w[j] for i < n, j < m; len is at most
 * SGEMM_SLICE and a multiple of 8. */
void sgemm_slice(const float *x, size_t ldx, size_t n, const float *w,
                 size_t ldw, size_t m, size_t len, double *c, size_t ldc);

/* Working memory of one thread. */
struct sgemm_scratch {
    float w[SGEMM_PANEL * SGEMM_SLICE];
    double c[SGEMM_PANEL * SGEMM_BATCH];
};

/* y[i * ldy + j] = x[i] . w[j] + bias[j] for i < n, j < m, on the calling
 * thread. `xp` from sgemm_pack; bias may be NULL. */
void sgemm_rows(const float *xp, size_t n, size_t k, const float *w, size_t ldw,
                size_t m, const float *bias, float *y, size_t ldy,
                struct sgemm_scratch *s);

/* The whole product of resident matrices, threaded; x [n, k], w [m, k],
 * y [n, m], all dense. */
int sgemm(struct par *par, size_t n, size_t m, size_t k, const float *x,
          const float *w, float *y, struct err *e) ATTR_MUST_USE;

#endif
