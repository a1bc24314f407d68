/*
 * Second moments of what goes into a model's matrices, gathered while the
 * reference runs (oracle_watch): for an input x, the mean over all tokens of
 * x_j^2 of every element, and where asked for of x_i x_j of every pair.
 * Matrices with the same input, such as queries, keys and values of a layer,
 * share one moment. Pairs are kept in two parts, each of about half of the
 * tokens, so that what one part says can be judged by the other.
 *
 * The same tokens give the same bits, for any number of threads and any SIMD
 * level: sums run over the tokens in their order.
 */
#ifndef MODELS_MOMENTS_H
#define MODELS_MOMENTS_H

#include "converter/base/par.h"
#include "models/oracle.h"

struct moment {
    size_t width;
    uint64_t tokens;    /* that reached the matrix; at least 1 */
    const double *diag; /* [width]: mean of x_j^2 */
    /* [width + 1, width]; NULL: not gathered. The mean of x_i x_j as a sum of
     * two parts, those of every other call: for j <= i one is in row i + 1,
     * column j, the other in row j, column i. */
    float *full;
};

struct moments;
/* full_bytes: what the full moments may take together; the first ones get
 * theirs, the others their diagonal only. 0: diagonals only. */
struct moments *moments_new(struct par *par, uint64_t full_bytes,
                            struct err *e) ATTR_MUST_USE;
void moments_free(struct moments *m);
/* The watch that gathers into `m`. */
struct oracle_watch moments_watch(struct moments *m);
/* Sums become means; nothing is gathered afterwards. */
void moments_finish(struct moments *m);
/* Of the matrix that holds row `row` of a tensor; NULL: no token reached it.
 * After moments_finish. */
const struct moment *moments_find(const struct moments *m, const char *tensor,
                                  uint64_t row);
/* Hands the two parts of `full` to the caller (mem_free), [width, width] and
 * symmetric each; the moment loses it. Both NULL if it is gone. */
int moments_take_full(struct moments *m, const struct moment *of,
                      float *part[2], struct err *e) ATTR_MUST_USE;
/* How many have a full moment, and how many only the diagonal for want of
 * room. */
void moments_count(const struct moments *m, size_t *full, size_t *without);

#endif
