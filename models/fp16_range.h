/*
 * Which values of a model leave fp16, and the power of two that keeps the
 * residual stream inside it. Measured with the float32 reference on a few
 * tokens; the first token of a text usually reaches furthest, so that short
 * prompts show the stream's range.
 */
#ifndef MODELS_FP16_RANGE_H
#define MODELS_FP16_RANGE_H

#include "converter/base/buf.h"
#include "converter/base/par.h"
#include "models/checkpoint.h"

enum range_kind {
    RANGE_STREAM,  /* the residual stream, also within layers */
    RANGE_MATRIX,  /* outputs of matrices that do not end a branch */
    RANGE_BRANCH,  /* outputs of matrices that do */
    RANGE_PRODUCT, /* activation times gate in gated MLPs */
    RANGE_SCORE,   /* scaled attention scores, the greatest */
    RANGE_KINDS
};

/* The greatest absolute value of a kind; NaN counts as infinite. */
struct range_peak {
    double value;
    int64_t layer; /* -1: before the first */
    char name[96]; /* tensor of a matrix, else "" */
};
struct range_report {
    struct range_peak peak[RANGE_KINDS];
    double least_square; /* smallest mean square of a row that is normed */
    uint64_t tokens;
};

struct range_prompts {
    const int32_t *const *ids;
    const size_t *lengths;
    size_t n;
};
/* Runs the reference once over each prompt, each from an empty context.
 * Weights are streamed, so memory does not grow with the model; the LM head is
 * not computed. */
int range_measure(const struct hparams *hp, const struct tensor_source *src,
                  const struct range_prompts *p, struct par *par,
                  struct range_report *r, struct err *e) ATTR_MUST_USE;

/* A stream of at most this much leaves a factor of four to the largest fp16
 * number, for prompts that reach further than those measured. */
#define RANGE_STREAM_GOAL 16384.0
/* Beyond this a value that cannot be scaled is warned of; beyond 65504 it is
 * refused. */
#define RANGE_WARN 30000.0
#define RANGE_LEAST_EXP (-14)

/*
 * The greatest exponent s <= 0 with stream * 2^s <= RANGE_STREAM_GOAL, and
 * what was found, as lines for the user. ERR_UNSUPPORTED where a value leaves
 * fp16 that no scale brings back: one that does not scale with the stream, or
 * any if the family's graph does not scale it (model_arch.scales_stream).
 */
int range_choose(const struct hparams *hp, const struct range_report *r,
                 int *stream_exp, struct buf *notes,
                 struct err *e) ATTR_MUST_USE;
/*
 * graph.norm_exp: the least k >= 0 with which epsilon 4^k is a normal number
 * of fp16 (from 2^-14 on), as far as outputs of matrices stay below
 * RANGE_STREAM_GOAL; r may be NULL: nothing was measured. 1e-6 itself would be
 * rounded to 17 * 2^-24, 1.3 % more, which shows where a branch's end is
 * hardly larger than its root; times 64 it is off by 0.02 %.
 */
int range_norm_exp(const struct hparams *hp, const struct range_report *r);
/* What a given scale means for the family's graph: ERR_USAGE if it does not
 * scale its stream. */
int range_check_exp(const struct hparams *hp, int stream_exp,
                    struct err *e) ATTR_MUST_USE;

/*
 * Epsilon of a norm over a stream that is scaled by 2^stream_exp: the norm is
 * unchanged if epsilon scales with the square. Below the smallest number of
 * fp16, 2^-24, it would vanish and rows of zeros be divided by zero; it stays
 * at 2^-24 then.
 */
double range_norm_eps(double eps, int stream_exp);

#endif
