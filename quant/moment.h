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
 *
 * How far H may be trusted is for its tokens to say. If it comes in two parts,
 * each from half of them, the damping is chosen by cross-validation: with
 * rounding errors of random sign and equal size, feedback by one part, damped,
 * leaves d; what is lost is d G d^T with G the other part. The damping is the
 * share of the mean diagonal for which both losses together are least.
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
 * The moment is h + rest, two parts from halves of the tokens; rest NULL, or a
 * part of zeros: there are no halves. Takes both (from mem_alloc), also if it
 * fails. Of the mean diagonal one part in a hundred is added to the diagonal;
 * with halves twice as much again and again, up to 1.28, as long as that loses
 * less; then again until the factor exists. A diagonal of zeros gets ones.
 * Same bits for any number of threads and any SIMD level. ERR_INPUT: h + rest
 * is not finite.
 */
struct qz_moment *qz_moment_new(float *h, float *rest, size_t width,
                                struct par *par, struct err *e) ATTR_MUST_USE;
void qz_moment_free(struct qz_moment *m);

#endif
