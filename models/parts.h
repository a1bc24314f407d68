/*
 * Graph blocks that several families share. Each emits opset operations at
 * once. Shapes: T tokens of the call, H hidden, D head_dim, NH query heads,
 * NKV key/value heads, C context length.
 *
 * Residual stream [1, T, H]; around convolutions [1, channels, 1, T]; heads
 * [1, heads, T, D].
 */
#ifndef MODELS_PARTS_H
#define MODELS_PARTS_H

#include "models/models.h"
#include "models/weights.h"

/* The state of a plain transformer: keys of layer l at row l, values at
 * layers + l, [2 layers, NKV, C, D]. */
#define KV_STATE "model_model_kv_cache_0"
int64_t parts_attention_layers(const struct hparams *hp);
int parts_kv_state(const struct hparams *hp, int64_t ctx,
                   struct state_desc out[MAX_STATES]);

/* A constant for a checkpoint tensor; the const op is called after it. */
mil_ref parts_weight(struct mb *b, const struct graph *g,
                     const struct weight_spec *spec);
mil_ref parts_vector(struct mb *b, const struct graph *g, const char *tensor);

/* [1, T, H] <-> [1, H, 1, T] */
mil_ref parts_to_conv(struct mb *b, mil_ref x);
mil_ref parts_from_conv(struct mb *b, mil_ref x);

/* Elements [first, first + n) of one axis (negative: from the end). */
mil_ref parts_slice(struct mb *b, mil_ref x, int axis, int64_t first,
                    int64_t n);
/* silu(z) = z sigmoid(z) = h (1 + tanh h) with h = z / 2, from h: the half is
 * folded into the weights before it, which is exact; tanh because the Neural
 * Engine's sigmoid is coarse. */
mil_ref parts_silu_of_half(struct mb *b, mil_ref h);
/* x / sqrt(mean x^2 + eps) over the last axis. */
mil_ref parts_rms(struct mb *b, mil_ref x, double eps);
/* A 1x1 convolution with matrix `name`.weight of a layer (and its bias): of
 * `s` only folds, row choice and role (default: projection) count. */
mil_ref parts_project(struct mb *b, const struct graph *g, int64_t layer,
                      const char *name, bool bias, struct weight_spec s,
                      mil_ref x);
/* RMSNorm over the last axis with its weight (1 + w in zero-centred families):
 * layer_norm on concat(x, -x), whose mean is zero and whose variance is the
 * mean square. */
mil_ref parts_rms_norm(struct mb *b, const struct graph *g, mil_ref x,
                       const char *tensor);

/* What a decoder function computes once and all of its layers use. */
struct decoder {
    mil_ref cap;          /* ceiling of the scores [1, 1, T, C] */
    mil_ref cos, sin;     /* for keys [1, 1, T, D] */
    mil_ref cos_q, sin_q; /* for queries: times the attention scale */
    mil_ref pos, pos_end; /* int32 [1]: first row to write, one behind */
    mil_ref state, cache; /* the KV state and its current content */
    int64_t slots;        /* attention layers: rows of keys in the state */
    bool partial;         /* RoPE turns a part of the head only; the scale is
                             then in the q norm */
};
/* Declares the inputs and the state of a decoder function and computes the
 * shared values; *hidden is the residual stream that comes in. */
void parts_decoder_begin(struct mb *b, const struct graph *g, struct decoder *d,
                         mil_ref *hidden);
/* Final norm in the last chunk; declares output_hidden_states. */
void parts_decoder_end(struct mb *b, const struct graph *g, mil_ref x);
/* In the last layer of the last chunk's prefill only the last token is
 * needed once its keys and values are stored. */
mil_ref parts_last_token(struct mb *b, const struct graph *g, mil_ref x);

/* Softmax attention of `layer`, the slot-th attention layer, with grouped
 * key/value heads, RoPE over the whole head, optional per-head q/k norms,
 * projection biases by hparams. */
mil_ref parts_attention(struct mb *b, const struct graph *g, struct decoder *d,
                        int64_t layer, int64_t slot, mil_ref x, bool qk_norm);
/* W_down(silu(W_gate x) * W_up x); the gate holds W / 2, see parts.c. */
mil_ref parts_silu_mlp(struct mb *b, const struct graph *g, int64_t layer,
                       mil_ref x);

/* The whole decoder of a plain transformer: pre-norm attention and MLP. */
void parts_plain_chunk(struct mb *b, const struct graph *g, bool qk_norm);
/* Token ids to hidden states; logits1 .. logitsN from the hidden state. */
void parts_embeddings(struct mb *b, const struct graph *g);
void parts_lm_head(struct mb *b, const struct graph *g);

#endif
