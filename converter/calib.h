/*
 * Calibration: the reference runs over the user's tokens, layer by layer, and
 * gives second moments of what goes into each matrix.
 *
 * Nothing is computed before it is asked for. Asking for the matrices of a
 * layer runs the reference up to and through that layer; moments of one layer
 * are held at a time, so matrices are best asked for in the model's order.
 */
#ifndef CONVERTER_CALIB_H
#define CONVERTER_CALIB_H

#include "converter/base/hash.h"
#include "converter/base/log.h"
#include "models/moments.h"
#include "models/weights.h"
#include "quant/moment.h"

struct calib;
struct calib_options {
    const char *tokens; /* file, as prompts_read takes it */
    bool full;          /* full moments, for error feedback */
    struct par *par;
    const struct log *log;
};
/* Reads the tokens: ids are checked, nothing is run. */
struct calib *calib_open(const struct ckpt *c, const struct calib_options *o,
                         struct err *e) ATTR_MUST_USE;
void calib_close(struct calib *c);
uint64_t calib_tokens(const struct calib *c);

/* The moment of the input of row `row` of a tensor; *out NULL: no token
 * reached it. Valid until one of another layer is asked for. */
int calib_moment(struct calib *c, const char *tensor, uint64_t row,
                 const struct moment **out, struct err *e) ATTR_MUST_USE;
/* The same prepared for error feedback, as long as it is valid. An expert
 * counts for the tokens that reached it. *out NULL: no token did, or the
 * moment is too large to be kept. */
int calib_feedback(struct calib *c, const char *tensor, uint64_t row,
                   const struct qz_moment **out, struct err *e) ATTR_MUST_USE;
/* A hash of the same moment, and of how many tokens there are: what importances
 * and feedback of the row depend on. Zeros: no token reached it. */
int calib_digest(struct calib *c, const char *tensor, uint64_t row,
                 struct hash128 *out, struct err *e) ATTR_MUST_USE;
/* Mean KL divergence (nats) of the model with other weights from the model as
 * it is, on every CALIB_KL_EACH-th of the first tokens; 0 with fewer tokens. */
#define CALIB_KL_EACH 4
int calib_divergence(struct calib *c, const struct tensor_source *other,
                     double *kl, struct err *e) ATTR_MUST_USE;
/* Importances of rows [row, row + n) of a constant: the sum of squares of each
 * column's input per token fed, with a share of its matrix's mean, so that no
 * column counts for nothing. 0 where no token came. */
int calib_rows(struct calib *c, const struct mil_data *d, uint64_t row,
               uint64_t n, float *dst, struct err *e) ATTR_MUST_USE;

#endif
