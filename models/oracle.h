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
    /* Sines and cosines of rotations rounded to fp16, as a model that runs in
     * fp16 has them (transformers gives them the activations' dtype). */
    bool half_rope;
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
/* The embeddings x [n, hidden] of tokens alone; the context stays as it is. */
int oracle_embed(struct oracle *o, const int32_t *tokens, size_t n, float *x,
                 struct err *e) ATTR_MUST_USE;
int64_t oracle_positions(const struct oracle *o); /* fed so far */
int64_t oracle_layers(const struct oracle *o);

/* What a recurrent layer remembers behind the tokens fed so far, in the
 * model's own terms. Valid until the next call. */
struct oracle_memory {
    const float *state; /* S [heads, dk, dv] */
    const float *taps;  /* [n_taps, channels]: the convolution's last inputs,
                           oldest first */
    size_t heads, dk, dv, n_taps, channels;
};
/* False if the layer is of another kind. */
bool oracle_memory(const struct oracle *o, int64_t layer,
                   struct oracle_memory *out) ATTR_MUST_USE;

/*
 * Sees what goes into the model's matrices: x [n, in], about to be multiplied
 * with rows [row, row + out) of tensor `name`. Called by the thread that
 * feeds, in the order of the computation. Of experts only those that tokens
 * chose, with these tokens' rows.
 */
struct oracle_watch {
    int (*see)(void *cookie, const char *name, uint64_t row, size_t out,
               size_t in, const float *x, size_t n, struct err *e);
    void *cookie;
};

/*
 * Several contexts, each from position 0, computed together layer by layer:
 * every layer's weights are needed once for all tokens, and memory holds one
 * activation [tokens, hidden]. Values equal those of oracle_feed() to the
 * bit. Uses the oracle alone while it lives; the oracle's own context is
 * empty afterwards.
 */
struct oracle_walk;
struct oracle_contexts {
    const int32_t *const *ids;
    const size_t *lengths;
    size_t n;
};
/* The lists are copied. */
struct oracle_walk *oracle_walk_new(struct oracle *o,
                                    const struct oracle_contexts *c,
                                    struct err *e) ATTR_MUST_USE;
void oracle_walk_free(struct oracle_walk *w);
size_t oracle_walk_tokens(const struct oracle_walk *w); /* all contexts' */
/* The step to come: layers 0 .. L - 1, then L, the final norm, then L + 1:
 * none. */
int64_t oracle_walk_at(const struct oracle_walk *w);
/* Makes the next step. The final norm's result is seen as the input of
 * "lm_head.weight". `watch` may be NULL. */
int oracle_walk_step(struct oracle_walk *w, const struct oracle_watch *watch,
                     struct err *e) ATTR_MUST_USE;
/* What enters the next step, [tokens, hidden], context after context. */
const float *oracle_walk_stream(const struct oracle_walk *w);
/* Back to step `at` with the stream that entered it; where layers share
 * caches only to 0. False if that is not possible. */
bool oracle_walk_back(struct oracle_walk *w, int64_t at, const float *stream);
/* Behind the last step: logits [n, vocab] of tokens first .. first + n - 1 of
 * all contexts' tokens. */
int oracle_walk_logits(struct oracle_walk *w, size_t first, size_t n,
                       float *logits, struct err *e) ATTR_MUST_USE;

#endif
