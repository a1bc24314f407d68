/*
 * Qwen3 (dense): pre-norm transformer, grouped-query attention with per-head
 * q/k norms before RoPE, SiLU MLP, RMSNorm with plain weights.
 */
#include "models/hp_plain_priv.h"
#include "models/oracle_priv.h"
#include "models/parts.h"

static void qwen3_chunk(struct mb *b, const struct graph *g)
{
    parts_plain_chunk(b, g, true);
}

static const char *const types[] = { "qwen3", NULL };
static const char *const classes[] = { "Qwen3ForCausalLM", "Qwen3Model", NULL };
static const char *const ignore[] = { "rotary_emb.inv_freq", NULL };

const struct model_arch arch_qwen3 = {
    .name = "qwen3",
    .model_types = types,
    .architectures = classes,
    .prefix = "qwen",
    .tokenizer_class = "Qwen2Tokenizer",
    .head_parts = 16,
    .parse = hp_parse_qwen3,
    .needs = needs_plain,
    .ignore = ignore,
    .scales_stream = true,
    .count = count_plain,
    .states = parts_kv_state,
    .embeddings = parts_embeddings,
    .chunk = qwen3_chunk,
    .head = parts_lm_head,
    .oracle = &oracle_qwen3,
};
