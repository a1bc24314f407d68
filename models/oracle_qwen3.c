/*
 * Qwen3 (dense) in float32, as transformers' Qwen3ForCausalLM computes it.
 *
 * Norms multiply by their weight. Every head of the queries and of the keys
 * is normed on its own, one weight vector for all heads, before it is rotated
 * over its whole width d, element i with i + d/2; d is not hidden / heads.
 * Consecutive query heads share a key/value head. Scores are divided by
 * sqrt(d). attention_bias means all four projections of the attention; the
 * MLP has no biases.
 */
#include "models/oracle_priv.h"

static const struct oracle_plain qwen3 = {
    .norm = NORM_PLAIN,
    .head_norms = true,
    .head_norm = NORM_PLAIN,
    .pairing = ROPE_HALVES,
    .scale_power = -0.5,
    .qkv_bias = true,
    .o_bias = true,
};

static int qwen3_layer(struct oracle *o, int64_t layer, float *x, struct err *e)
{
    return plain_layer(o, &qwen3, layer, x, e);
}

static int qwen3_norm(struct oracle *o, float *x, struct err *e)
{
    return plain_norm(o, qwen3.norm, x, e);
}

const struct oracle_ops oracle_qwen3 = {
    .name = "qwen3",
    .open = plain_open,
    .embed = plain_embed,
    .layer = qwen3_layer,
    .norm = qwen3_norm,
    .head = plain_head,
};
