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
int parts_kv_state(const struct hparams *hp, int64_t ctx, int64_t batch,
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
/* RMSNorm over the last axis with a weight: layer_norm on concat(x, -x), whose
 * mean is zero and whose variance is the mean square. */
struct norm_spec {
    const char *tensor;
    double factor; /* folded into the weight (1 + w in zero-centred families);
                      0 = 1 */
    int scale_exp; /* 2^scale_exp too */
    double eps;    /* 0: the model's */
};
mil_ref parts_norm(struct mb *b, const struct graph *g, mil_ref x,
                   const struct norm_spec *s);
/* The norm of a residual stream, which is the model's times 2^stream_exp. */
mil_ref parts_rms_norm(struct mb *b, const struct graph *g, mil_ref x,
                       const char *tensor);

/* A KV state in a function: its content as of now, and where this call's
 * tokens go. */
struct kv_store {
    mil_ref state, now;
    mil_ref pos, pos_end; /* int32 [1]: first position to write, one behind */
};
/* What a decoder function computes once and all of its layers use. */
struct decoder {
    mil_ref cap;          /* ceiling of the scores [1, 1, T, C] */
    mil_ref cos, sin;     /* for keys [1, 1, T, D] */
    mil_ref cos_q, sin_q; /* for queries: times the attention scale */
    struct kv_store kv;
    int64_t slots; /* attention layers: rows of keys in the state */
    bool partial;  /* RoPE turns a part of the head only; the scale is then in
                      the q norm */
};
/* The inputs of a decoder function in declared order, states apart. */
struct decoder_inputs {
    mil_ref hidden; /* the residual stream that comes in [1, T, H] */
    mil_ref ids;    /* position_ids, int32 [T] */
    mil_ref mask;   /* causal_mask [1, 1, T, C] */
    mil_ref pos;    /* current_pos, int32 [1] */
};
void parts_inputs(struct mb *b, const struct graph *g,
                  struct decoder_inputs *in);
/* Positions as indices of gathers. */
mil_ref parts_gather_ids(struct mb *b, const struct graph *g, mil_ref ids);
/* Rows of a cos or sin table at positions, [1, 1, T, R]; `name` is the
 * constant's. */
mil_ref parts_rope_rows(struct mb *b, const struct graph *g, mil_ref ids,
                        const char *name, const struct rope_params *rope,
                        bool is_sin, double scale);
/* The ceiling of scores: +PARTS_MASK where the mask is 0, -PARTS_MASK where it
 * is -inf. */
#define PARTS_MASK 30000.0
mil_ref parts_cap(struct mb *b, mil_ref mask);
/* Declares the inputs and the state of a decoder function and computes the
 * shared values; *hidden is the residual stream that comes in. */
void parts_decoder_begin(struct mb *b, const struct graph *g, struct decoder *d,
                         mil_ref *hidden);
/* Final norm in the last chunk; declares output_hidden_states. */
void parts_decoder_end(struct mb *b, const struct graph *g, mil_ref x);
/* In the last layer of the last chunk's prefill only the last token is
 * needed once its keys and values are stored. */
mil_ref parts_last_token(struct mb *b, const struct graph *g, mil_ref x);

/* [1, n * D, 1, T] to [1, n, T, D], and back. */
mil_ref parts_to_heads(struct mb *b, mil_ref x, int64_t n);
mil_ref parts_from_heads(struct mb *b, mil_ref x);
/* RoPE: pairs (i, i + R/2) of the first R components turn, the rest passes. */
mil_ref parts_rotate(struct mb *b, mil_ref x, mil_ref cos, mil_ref sin);
/* Writes [1, n, T, D] into row `row` of a cache [rows, n, C, D] at the call's
 * positions: update, write, and read again. */
void parts_cache_write(struct mb *b, struct kv_store *c, int64_t row,
                       mil_ref update);
/* [1, n, C, D] with each head repeated `r` times, side by side. */
mil_ref parts_repeat_heads(struct mb *b, mil_ref x, int64_t r);
/* softmax(min(q k^T, cap)) v; keys and values with as many heads as q. */
mil_ref parts_attend(struct mb *b, mil_ref q, mil_ref k, mil_ref v,
                     mil_ref cap);
/* Adds one element of a state's content times zero: every chunk must use every
 * state that it declares. */
mil_ref parts_touch(struct mb *b, mil_ref content, mil_ref x);

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
/* Rows of a token table at ids [1, T], times `scale` (0 = 1) and
 * 2^scale_exp. The table stays what the checkpoint holds but for a power of
 * two: a scale that was rounded to half precision is multiplied afterwards,
 * which rounds no earlier than fp16 has to. */
mil_ref parts_gather_rows(struct mb *b, const struct graph *g, mil_ref ids,
                          const char *tensor, double scale, int scale_exp);
/* Token ids to hidden states; logits1 .. logitsN from the hidden state. */
mil_ref parts_embed(struct mb *b, const struct graph *g, mil_ref *ids);
void parts_embeddings(struct mb *b, const struct graph *g);
void parts_lm_head(struct mb *b, const struct graph *g);

#endif
