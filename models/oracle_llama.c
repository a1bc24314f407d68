/*
 * Llama 3 in float32, as transformers' LlamaForCausalLM computes it.
 *
 * Norms multiply by their weight. Queries and keys are rotated over the whole
 * head, element i with i + d/2. Consecutive query heads share a key/value
 * head. Scores are divided by sqrt(d). attention_bias means all four
 * projections of the attention, mlp_bias all three of the MLP.
 */
#include "models/oracle_priv.h"

static const struct oracle_plain llama = {
    .norm = NORM_PLAIN,
    .pairing = ROPE_HALVES,
    .scale_power = -0.5,
    .qkv_bias = true,
    .o_bias = true,
    .mlp_bias = true,
};

static int llama_layer(struct oracle *o, int64_t layer, float *x, struct err *e)
{
    return plain_layer(o, &llama, layer, x, e);
}

static int llama_norm(struct oracle *o, float *x, struct err *e)
{
    return plain_norm(o, llama.norm, x, e);
}

const struct oracle_ops oracle_llama = {
    .name = "llama",
    .open = plain_open,
    .embed = plain_embed,
    .layer = llama_layer,
    .norm = llama_norm,
    .head = plain_head,
};
