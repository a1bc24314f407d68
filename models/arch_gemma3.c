/*
 * Gemma 3 (text): sliding windows between layers that see everything, norms
 * on both ends of each branch, per-head q/k norms, zero-centred weights.
 */
#include "models/hp_gemma_priv.h"
#include "models/oracle_priv.h"

static const char *const types[] = { "gemma3", "gemma3_text", NULL };
static const char *const classes[] = { "Gemma3ForConditionalGeneration",
                                       "Gemma3ForCausalLM", "Gemma3TextModel",
                                       "Gemma3Model", NULL };
static const char *const ignore[] = { "rotary_emb.inv_freq", "vision_tower",
                                      "multi_modal_projector", NULL };

const struct model_arch arch_gemma3 = {
    .name = "gemma3",
    .model_types = types,
    .architectures = classes,
    .prefix = "gemma3",
    .tokenizer_class = "GemmaTokenizer",
    .head_parts = 16,
    .parse = hp_parse_gemma3,
    .needs = needs_gemma3,
    .ignore = ignore,
    .layout = layout_gemma,
    .norms_branches = true,
    .count = count_gemma3,
    .oracle = &oracle_gemma3,
};
