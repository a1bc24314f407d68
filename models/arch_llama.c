/*
 * Llama 2 and 3.x: pre-norm transformer, grouped-query attention, RoPE with the
 * llama3 frequency bands, SiLU MLP, RMSNorm with plain weights.
 */
#include "models/hp_plain_priv.h"
#include "models/oracle_priv.h"
#include "models/parts.h"

static void llama_chunk(struct mb *b, const struct graph *g)
{
    parts_plain_chunk(b, g, false);
}

static const char *const types[] = { "llama", NULL };
static const char *const classes[] = { "LlamaForCausalLM", "LlamaModel", NULL };
static const char *const ignore[] = { "rotary_emb.inv_freq", NULL };

const struct model_arch arch_llama = {
    .name = "llama",
    .model_types = types,
    .architectures = classes,
    .prefix = "llama",
    .tokenizer_class = "LlamaTokenizer",
    .head_parts = 8,
    .parse = hp_parse_llama,
    .needs = needs_plain,
    .ignore = ignore,
    .scales_stream = true,
    .count = count_plain,
    .states = parts_kv_state,
    .embeddings = parts_embeddings,
    .chunk = llama_chunk,
    .head = parts_lm_head,
    .oracle = &oracle_llama,
};
