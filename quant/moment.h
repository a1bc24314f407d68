/*
 * The second moment of a layer's input, prepared for error feedback.
 *
 * With H = E[x x^T] the error that stored weights q leave in a row's output
 * is (q - w) H (q - w)^T. H is damped and written as R R^T with R upper
 * triangular, columns in the order in which they are rounded. Feedback then
 * rounds column j where it leaves least when all later columns may still make
 * up for it:
 *
 *     q_j = nearest(w_j + sum over i < j of (w_i - q_i) R_ij / R_jj)
 *
 * which is the sequence of Frantar et al. 2022 (GPTQ) without its inverse.
 */
#ifndef QUANT_MOMENT_H
#define QUANT_MOMENT_H

#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"
#include "converter/base/par.h"

struct qz_moment {
    size_t width;
    float *h;        /* [width, width], symmetric, damped */
    uint32_t *order; /* the column that is rounded at each place: falling
                        diagonal, lower columns first among equals */
    float *feed;     /* row j (from j (j - 1) / 2 on): R_ij / R_jj, i < j */
    double damping;  /* that was added to the diagonal */
};

/*
 * Takes `h` (from mem_alloc), also if it fails. One part in a hundred of the
 * mean diagonal is added to the diagonal, and twice as much again and again
 * until the factor exists; a diagonal of zeros gets ones. Same bits for any
 * number of threads and any SIMD level. ERR_INPUT: h is not finite.
 */
struct qz_moment *qz_moment_new(float *h, size_t width, struct par *par,
                                struct err *e) ATTR_MUST_USE;
void qz_moment_free(struct qz_moment *m);

#endif
