/*
 * The float32 reference forward pass. It shares no formula with the graph:
 * only the parsed hyper-parameters and the tensor source. Weights are
 * streamed from the source (or kept, up to a budget); activations, caches
 * and sums are float32 (dot products accumulate in float32 blocks summed in
 * double or better).
 */
#ifndef MODELS_ORACLE_H
#define MODELS_ORACLE_H

#include "converter/base/par.h"
#include "models/checkpoint.h"

struct oracle;

struct oracle_options {
    struct par *par;
    uint64_t keep_bytes;   /* float32 weights that may stay in memory */
    int64_t max_positions; /* capacity of the caches */
};
struct oracle *oracle_new(const struct hparams *hp,
                          const struct tensor_source *src,
                          const struct oracle_options *o,
                          struct err *e) ATTR_MUST_USE;
void oracle_free(struct oracle *o);
/* Empty context. */
int oracle_reset(struct oracle *o, struct err *e) ATTR_MUST_USE;

/* Where results go; NULL members are not computed. */
struct oracle_out {
    float *logits;      /* [n, vocab] */
    float *last_logits; /* [vocab], of the last token only */
    float *hidden;      /* [layers + 1, n, hidden]: entry 0 the embedding,
                           entry i the output of layer i for i < layers,
                           entry `layers` after the final norm */
};
/* Appends n tokens to the context and computes them in one pass. */
int oracle_feed(struct oracle *o, const int32_t *tokens, size_t n,
                const struct oracle_out *out, struct err *e) ATTR_MUST_USE;
int64_t oracle_positions(const struct oracle *o); /* fed so far */

#endif
