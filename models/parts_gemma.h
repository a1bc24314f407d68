/*
 * What the graphs of the Gemma families share: sliding and full layers with a
 * state each, norms before and after every branch, a tanh-GELU MLP, scaled
 * embeddings.
 *
 * Sliding layers see the last `window` positions. Two states hold keys (after
 * their norm and RoPE) and values, one for each kind of layer.
 */
#ifndef MODELS_PARTS_GEMMA_H
#define MODELS_PARTS_GEMMA_H

#include "models/parts.h"

#define LOCAL_STATE "model_model_kv_cache_local"
#define GLOBAL_STATE "model_model_kv_cache_global"

/* One kind of layers in a decoder function. */
struct gemma_kind {
    struct kv_store kv; /* state 0: the model has no layer of this kind */
    int64_t slots;      /* layers of the model that store keys and values */
    int64_t length;     /* positions that the state holds of each */
    mil_ref cos, sin;   /* [1, 1, T, D]; 0: no such layer in this chunk */
    mil_ref cap;        /* ceiling of the scores [1, 1, T, keys] */
};
struct gemma {
    struct decoder_inputs in;
    struct gemma_kind full, sliding;
};

bool gemma_is_sliding(const struct hparams *hp, int64_t layer);
struct gemma_kind *gemma_kind_of(const struct graph *g, struct gemma *d,
                                 int64_t layer);
/* Layers of one kind that store, before `layer`; all: pass hp->layers. */
int64_t gemma_slots_before(const struct hparams *hp, bool sliding,
                           int64_t layer);
/* The last layer of the chunk that stores; -1: none. */
int64_t gemma_last_store(const struct graph *g);

/* The two states, of `length` positions in sliding layers: row r of the first
 * axis as [n_kv * heads, length, D], `rows` of them for each layer. */
int gemma_states(const struct hparams *hp, int64_t ctx, int64_t length,
                 int64_t rows, int64_t heads,
                 struct state_desc out[MAX_STATES]);

/* With the inputs in d->in: declares the states and computes what layers
 * share, except the sliding layers' cap and places. */
void gemma_begin(struct mb *b, const struct graph *g, struct gemma *d,
                 const struct state_desc *states, int n_states);
/* int32 [1, 1, T, 1]: ids - base (base 0: ids). */
mil_ref gemma_column(struct mb *b, mil_ref ids, mil_ref base);
/* +PARTS_MASK where key j of n is one that the query at place `at` sees, of
 * those at places at - window + 1 .. at, -PARTS_MASK elsewhere. `lowest`, if
 * not 0: int32 [1], no key before it is seen. */
mil_ref gemma_window(struct mb *b, mil_ref at, int64_t n, int64_t window,
                     mil_ref lowest);
/* The window alone: keys behind the query are left to another mask. */
mil_ref gemma_window_start(struct mb *b, mil_ref at, int64_t n, int64_t window);
/* Behind the last layer that stores, only the last token of the last chunk's
 * prefill is needed: cuts everything that layers share down to it. */
void gemma_narrow(struct mb *b, struct gemma *d);
/* Touches states that no layer of the chunk uses; final norm; output. */
void gemma_end(struct mb *b, const struct graph *g, struct gemma *d, mil_ref x);

/* Tensor "layers.N.name". */
const char *gemma_tensor(char out[128], int64_t layer, const char *name);
/* Norm of the stream in front of a branch. */
mil_ref gemma_pre_norm(struct mb *b, const struct graph *g, int64_t layer,
                       const char *name, mil_ref x);
/* Epsilon of a norm that reads a matrix (graph.norm_exp). */
double gemma_matrix_eps(const struct graph *g);
/* x + norm(y): the end of a branch. eps: gemma_matrix_eps(), or 0 if y is the
 * model's own. */
mil_ref gemma_add_branch(struct mb *b, const struct graph *g, int64_t layer,
                         const char *name, double eps, mil_ref x, mil_ref y);
/* gelu_tanh(2 h), from h: the half is folded into the weights before it. No
 * intermediate leaves fp16. */
mil_ref gemma_gelu_of_half(struct mb *b, mil_ref h);
/* 2^norm_exp W_down(gelu(W_gate x) * W_up x), [1, H, 1, T] to [1, H, 1, T]. */
mil_ref gemma_mlp(struct mb *b, const struct graph *g, int64_t layer,
                  mil_ref in);
/* softmax(min(q k^T, cap)) v with queries [1, NH, T, D], keys and values
 * [1, NKV, C, D]: query heads that share keys are taken as rows, so nothing is
 * repeated. */
mil_ref gemma_attend(struct mb *b, mil_ref q, mil_ref k, mil_ref v,
                     mil_ref cap);

#endif
