/*
 * Gemma 4 (text): as Gemma 3, with wider heads in full layers, caches that
 * later layers share, per-layer embeddings, a scalar per layer and, in one
 * model, experts beside the MLP; plain weights in the norms.
 */
#include "models/hp_gemma_priv.h"
#include "models/oracle_priv.h"

static const char *const types[] = { "gemma4", "gemma4_text", "gemma4_unified",
                                     "gemma4_unified_text", NULL };
static const char *const classes[] = { "Gemma4ForConditionalGeneration",
                                       "Gemma4ForCausalLM",
                                       "Gemma4TextModel",
                                       "Gemma4Model",
                                       "Gemma4UnifiedForConditionalGeneration",
                                       "Gemma4UnifiedForCausalLM",
                                       "Gemma4UnifiedTextModel",
                                       "Gemma4UnifiedModel",
                                       NULL };
static const char *const ignore[] = {
    "rotary_emb",  "vision_tower",    "audio_tower", "embed_vision",
    "embed_audio", "vision_embedder", "input_min",   "input_max",
    "output_min",  "output_max",      NULL
};

const struct model_arch arch_gemma4 = {
    .name = "gemma4",
    .model_types = types,
    .architectures = classes,
    .prefix = "gemma4",
    .tokenizer_class = "GemmaTokenizer",
    .head_parts = 16,
    .parse = hp_parse_gemma4,
    .needs = needs_gemma4,
    .ignore = ignore,
    .spare = spare_gemma4,
    .layout = layout_gemma,
    .norms_branches = true,
    .count = count_gemma4,
    .oracle = &oracle_gemma4,
};
