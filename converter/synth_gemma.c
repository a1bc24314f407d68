/*
 * Synthetic Gemma 3 and Gemma 4. Gemma 4 comes in both layouts: as published
 * (outer config, names under "model.language_model.", some of a vision tower,
 * keys and values also in layers that share them) and as saved again by
 * transformers (text settings at top level, per_layer_config, no spare
 * tensors).
 *
 * Both ends of a branch are normed, so the weights of the second norm alone
 * decide what a branch adds; q and k norms decide how sharp attention is,
 * and the final norm how large logits are. Embeddings are small: multiplied
 * by the root of the width, they would outweigh the layers and every token
 * predict itself.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/synth_priv.h"

/* clang-format off */
#define GEMMA4(V) V, 131072, 1e6, 1e-6, .tied = true, .softcap = 30, \
    .version = "5.5.0.dev0"

/* Columns: H, I, L, heads, kv heads, head_dim, V, positions, theta, eps. */
static const struct synth_shape gemma3_shapes[] = {
    /* older spelling; the last layer slides, the scale is not the head's */
    { "tiny", 96, 224, 7, 4, 1, 32, 512, 32768, 1e6, 1e-6, .tied = true,
      .version = "4.50.0.dev0", .window = 32, .interval = 6,
      .query_scalar = 24, .full_head_dim = 32, .full_kv_heads = 1 },
    { "gemma3-270m", 640, 2048, 18, 4, 1, 256, 262144, 32768, 1e6, 1e-6,
      .tied = true, .version = "4.55.0.dev0", .window = 512, .interval = 6,
      .query_scalar = 256, .full_head_dim = 256, .full_kv_heads = 1 },
};
static const struct synth_shape gemma4_shapes[] = {
    { "tiny", 64, 112, 10, 2, 1, 32, GEMMA4(512), .window = 32,
      .interval = 5, .full_head_dim = 64, .full_kv_heads = 1, .shared = 5,
      .ple = 16, .wide = true, .spare_kv = true, .vision = 32 },
    /* the same model without tensors that nobody reads */
    { "tiny-resaved", 64, 112, 10, 2, 1, 32, GEMMA4(512), .window = 32,
      .interval = 5, .full_head_dim = 64, .full_kv_heads = 1, .shared = 5,
      .ple = 16, .wide = true, .vision = 32 },
    /* keys as values, other heads in full layers; odd widths, prime V */
    { "odd", 120, 208, 6, 6, 3, 40, GEMMA4(1009), .window = 24,
      .interval = 3, .full_head_dim = 80, .full_kv_heads = 2,
      .k_eq_v = true, .overrides = true, .text_only = true },
    { "moe-odd", 104, 176, 4, 4, 2, 48, GEMMA4(509), .window = 24,
      .interval = 2, .full_head_dim = 64, .full_kv_heads = 1,
      .k_eq_v = true, .overrides = true, .text_only = true,
      .experts = 6, .top = 2, .expert_inter = 72 },
    { "gemma4-e2b", 1536, 6144, 35, 8, 1, 256, GEMMA4(262144), .window = 512,
      .interval = 5, .full_head_dim = 512, .full_kv_heads = 1, .shared = 20,
      .ple = 256, .wide = true, .spare_kv = true, .vision = 768 },
    { "gemma4-e4b", 2560, 10240, 42, 8, 2, 256, GEMMA4(262144), .window = 512,
      .interval = 6, .full_head_dim = 512, .full_kv_heads = 2, .shared = 18,
      .ple = 256, .spare_kv = true, .vision = 768 },
};
/* clang-format on */

static bool is_gemma4(const struct synth_shape *m)
{
    return m->full_head_dim != m->head_dim;
}

/* In Gemma 4 the last layer is full, whatever the interval. */
static bool is_full(const struct synth_shape *m, uint64_t layer)
{
    return (layer + 1) % m->interval == 0 ||
           (is_gemma4(m) && layer + 1 == m->layers);
}

/* The first interval at least computes keys and values of both kinds. */
static uint64_t shared_layers(const struct synth_shape *m)
{
    uint64_t most = m->layers - m->interval;

    return m->shared < most ? m->shared : most;
}

static bool shares(const struct synth_shape *m, uint64_t layer)
{
    return layer >= m->layers - shared_layers(m);
}

/* ---- config.json ---- */

static void config_kinds(const struct synth_shape *m, struct js_writer *w)
{
    js_w_array(w, "layer_types", false);
    for (uint64_t i = 0; i < m->layers; i++)
        js_w_string(w, NULL,
                    is_full(m, i) ? "full_attention" : "sliding_attention");
    js_w_end(w);
}

static void config_common(const struct synth_shape *m, struct js_writer *w)
{
    js_w_bool(w, "attention_bias", false);
    js_w_double(w, "attention_dropout", 0);
    js_w_uint(w, "bos_token_id", SYNTH_END_OF_TEXT);
    js_w_uint(w, "eos_token_id", SYNTH_IM_END);
    if (m->softcap > 0)
        js_w_double(w, "final_logit_softcapping", m->softcap);
    else
        js_w_null(w, "final_logit_softcapping");
    js_w_uint(w, "head_dim", m->head_dim);
    js_w_string(w, "hidden_activation", "gelu_pytorch_tanh");
    js_w_uint(w, "hidden_size", m->hidden);
    js_w_double(w, "initializer_range", 0.02);
    js_w_uint(w, "intermediate_size", m->inter);
    js_w_uint(w, "max_position_embeddings", m->positions);
    js_w_uint(w, "num_attention_heads", m->heads);
    js_w_uint(w, "num_hidden_layers", m->layers);
    js_w_uint(w, "num_key_value_heads", m->kv_heads);
    js_w_double(w, "rms_norm_eps", m->eps);
    js_w_uint(w, "sliding_window", m->window);
    js_w_bool(w, "use_cache", true);
    js_w_uint(w, "vocab_size", m->vocab);
}

/* transformers 4: a pattern, two thetas, the key of tying left out. */
static void config_gemma3(const struct synth_shape *m, struct js_writer *w)
{
    js_w_array(w, "architectures", false);
    js_w_string(w, NULL, "Gemma3ForCausalLM");
    js_w_end(w);
    js_w_null(w, "attn_logit_softcapping");
    config_common(m, w);
    js_w_string(w, "model_type", "gemma3_text");
    js_w_uint(w, "query_pre_attn_scalar", (uint64_t)m->query_scalar);
    js_w_uint(w, "rope_local_base_freq", 10000);
    js_w_null(w, "rope_scaling");
    js_w_uint(w, "rope_theta", (uint64_t)m->theta);
    js_w_uint(w, "sliding_window_pattern", m->interval);
    js_w_string(w, "torch_dtype", "bfloat16");
    js_w_string(w, "transformers_version", m->version);
}

static void config_rope(const struct synth_shape *m, struct js_writer *w)
{
    js_w_object(w, "rope_parameters");
    js_w_object(w, "full_attention");
    js_w_double(w, "partial_rotary_factor", 0.25);
    js_w_double(w, "rope_theta", m->theta);
    js_w_string(w, "rope_type", "proportional");
    js_w_end(w);
    js_w_object(w, "sliding_attention");
    js_w_double(w, "rope_theta", 10000);
    js_w_string(w, "rope_type", "default");
    js_w_end(w);
    js_w_end(w);
}

static void config_heads(const struct synth_shape *m, struct js_writer *w)
{
    char key[24];

    if (!m->overrides) {
        js_w_uint(w, "global_head_dim", m->full_head_dim);
        if (m->full_kv_heads != m->kv_heads)
            js_w_uint(w, "num_global_key_value_heads", m->full_kv_heads);
        else
            js_w_null(w, "num_global_key_value_heads");
        return;
    }
    js_w_object(w, "per_layer_config");
    for (uint64_t i = 0; i < m->layers; i++) {
        if (!is_full(m, i))
            continue;
        snprintf(key, sizeof key, "%" PRIu64, i);
        js_w_object(w, key);
        js_w_uint(w, "head_dim", m->full_head_dim);
        js_w_uint(w, "num_key_value_heads", m->full_kv_heads);
        js_w_end(w);
    }
    js_w_end(w);
}

static void uint_or_null(struct js_writer *w, const char *key, uint64_t v)
{
    if (v)
        js_w_uint(w, key, v);
    else
        js_w_null(w, key);
}

static void config_text(const struct synth_shape *m, struct js_writer *w)
{
    js_w_bool(w, "attention_k_eq_v", m->k_eq_v);
    config_common(m, w);
    js_w_string(w, "dtype", "bfloat16");
    js_w_bool(w, "enable_moe_block", m->experts > 0);
    config_heads(m, w);
    js_w_uint(w, "hidden_size_per_layer_input", m->ple);
    config_kinds(m, w);
    js_w_string(w, "model_type", "gemma4_text");
    uint_or_null(w, "moe_intermediate_size", m->expert_inter);
    uint_or_null(w, "num_experts", m->experts);
    js_w_uint(w, "num_kv_shared_layers", shared_layers(m));
    js_w_uint(w, "pad_token_id", SYNTH_END_OF_TEXT);
    config_rope(m, w);
    js_w_bool(w, "tie_word_embeddings", m->tied);
    uint_or_null(w, "top_k_experts", m->top);
    js_w_null(w, "use_bidirectional_attention");
    js_w_bool(w, "use_double_wide_mlp", m->wide);
    js_w_uint(w, "vocab_size_per_layer_input", m->vocab);
}

static void config_gemma4(const struct synth_shape *m, struct js_writer *w)
{
    js_w_array(w, "architectures", false);
    js_w_string(w, NULL,
                m->text_only ? "Gemma4ForCausalLM"
                             : "Gemma4ForConditionalGeneration");
    js_w_end(w);
    if (m->text_only) {
        config_text(m, w);
    } else {
        js_w_null(w, "audio_config");
        js_w_string(w, "dtype", "bfloat16");
        js_w_string(w, "model_type", "gemma4");
        js_w_object(w, "text_config");
        config_text(m, w);
        js_w_end(w);
        js_w_bool(w, "tie_word_embeddings", m->tied);
        js_w_object(w, "vision_config");
        js_w_uint(w, "hidden_size", m->vision);
        js_w_string(w, "model_type", "gemma4_vision");
        js_w_end(w);
    }
    js_w_string(w, "transformers_version", m->version);
}

/* ---- tensors ---- */

/* A norm that multiplies by about `w`, in the family's form. */
static void norm(struct synth_list *l, const char *name, uint64_t n, double w)
{
    struct synth_tensor t = { .kind = SYNTH_VECTOR, .rank = 1, .dims = { n } };

    t.centre = is_gemma4(l->m) ? w : w - 1;
    t.sigma = SYNTH_NORM_SIGMA * (w < 1 ? w : 1);
    synth_put(l, name, t);
}

/* What a branch adds: all together a stream of deviation about 2. */
static double branch(const struct synth_shape *m)
{
    return synth_root(2.0 / (double)m->layers);
}

/* Queries and keys whose scores have deviation about 1.4. */
static double sharpness(const struct synth_shape *m, uint64_t d)
{
    double scale = m->query_scalar > 0 ? m->query_scalar : 1;

    return synth_root(1.4 * synth_root(scale / (double)d));
}

static void attention(struct synth_list *l, uint64_t layer)
{
    const struct synth_shape *m = l->m;
    bool full = is_full(m, layer), own = !shares(m, layer);
    uint64_t h = m->hidden, d = full ? m->full_head_dim : m->head_dim;
    uint64_t kv = (full ? m->full_kv_heads : m->kv_heads) * d;

    l->spare = !own;
    if (own || m->spare_kv) {
        norm(l, "self_attn.k_norm.weight", d, sharpness(m, d));
        synth_matrix(l, "self_attn.k_proj.weight", kv, h, 1);
        if (!full || !m->k_eq_v)
            synth_matrix(l, "self_attn.v_proj.weight", kv, h, 1);
    }
    l->spare = false;
    synth_matrix(l, "self_attn.o_proj.weight", h, m->heads * d, 2);
    norm(l, "self_attn.q_norm.weight", d, sharpness(m, d));
    synth_matrix(l, "self_attn.q_proj.weight", m->heads * d, h, 1);
}

static void mlp(struct synth_list *l, uint64_t layer)
{
    uint64_t h = l->m->hidden, inner = l->m->inter;

    if (l->m->wide && shares(l->m, layer))
        inner *= 2;
    synth_matrix(l, "mlp.down_proj.weight", h, inner, 2);
    synth_matrix(l, "mlp.gate_proj.weight", inner, h, 1);
    synth_matrix(l, "mlp.up_proj.weight", inner, h, 1);
}

/* Experts resemble the first of their layer, as do those that grew out of one
 * MLP; the router's logits have deviation 8. */
#define EXPERT_SHARE 0.97
#define ROUTER_GAIN 8

static void stacked(struct synth_list *l, const char *name, uint64_t rows,
                    uint64_t cols, double gain)
{
    struct synth_tensor t = { .kind = SYNTH_MATRIX,
                              .rank = 3,
                              .dims = { l->m->experts, rows, cols },
                              .first = rows,
                              .period = rows,
                              .share = EXPERT_SHARE };

    t.sigma = gain / synth_root((double)cols);
    synth_put(l, name, t);
}

static void experts(struct synth_list *l)
{
    const struct synth_shape *m = l->m;
    uint64_t h = m->hidden, inner = m->expert_inter;

    stacked(l, "experts.down_proj", h, inner, 2);
    stacked(l, "experts.gate_up_proj", 2 * inner, h, 1);
    norm(l, "post_feedforward_layernorm_1.weight", h, 1);
    norm(l, "post_feedforward_layernorm_2.weight", h, 1);
    norm(l, "pre_feedforward_layernorm_2.weight", h, 1);
    norm(l, "router.per_expert_scale", m->experts, 1);
    /* its input is divided by the root of H */
    synth_matrix(l, "router.proj.weight", m->experts, h,
                 ROUTER_GAIN * synth_root((double)h));
    norm(l, "router.scale", h, 1);
}

static void per_layer(struct synth_list *l)
{
    const struct synth_shape *m = l->m;

    synth_matrix(l, "per_layer_input_gate.weight", m->ple, m->hidden, 1);
    synth_matrix(l, "per_layer_projection.weight", m->hidden, m->ple, 2);
    norm(l, "post_per_layer_input_norm.weight", m->hidden, branch(m) / 2);
}

static void block(struct synth_list *l, uint64_t layer)
{
    const struct synth_shape *m = l->m;
    struct synth_tensor scalar = { .kind = SYNTH_UNIFORM,
                                   .rank = 1,
                                   .dims = { 1 },
                                   .centre = 0.9,
                                   .sigma = 0.15 };

    norm(l, "input_layernorm.weight", m->hidden, 1);
    attention(l, layer);
    norm(l, "post_attention_layernorm.weight", m->hidden, branch(m));
    norm(l, "pre_feedforward_layernorm.weight", m->hidden, 1);
    mlp(l, layer);
    norm(l, "post_feedforward_layernorm.weight", m->hidden, branch(m));
    if (m->experts)
        experts(l);
    if (m->ple)
        per_layer(l);
    if (is_gemma4(m))
        synth_put(l, "layer_scalar", scalar);
}

/* What a text model skips. */
static void spare(struct synth_list *l)
{
    uint64_t h = l->m->hidden, v = l->m->vision;

    l->spare = true;
    synth_under(l, "model.");
    synth_matrix(l, "embed_vision.embedding_projection.weight", h, v, 1);
    synth_under(l, "model.vision_tower.");
    synth_matrix(l, "encoder.layers.0.mlp.up_proj.linear.weight", 4 * v, v, 1);
    synth_vector(l, "encoder.layers.0.mlp.up_proj.input_max", 1, 4);
    synth_matrix(l, "patch_embedder.input_proj.weight", v, 768, 1);
}

/* Embeddings and the norm that makes up for their size in the logits. */
#define EMBED_GAIN 0.1
#define FINAL_NORM (SYNTH_LOGIT_GAIN / EMBED_GAIN)

static void tables(struct synth_list *l)
{
    const struct synth_shape *m = l->m;
    struct synth_tensor ple = { .kind = SYNTH_MATRIX,
                                .rank = 2,
                                .dims = { m->vocab, m->layers * m->ple } };

    synth_matrix(l, "embed_tokens.weight", m->vocab, m->hidden, EMBED_GAIN);
    if (!m->ple)
        return;
    /* multiplied by the root of their width */
    ple.sigma = 1 / synth_root((double)m->ple);
    synth_put(l, "embed_tokens_per_layer.weight", ple);
    synth_matrix(l, "per_layer_model_projection.weight", m->layers * m->ple,
                 m->hidden, 1 / EMBED_GAIN);
    norm(l, "per_layer_projection_norm.weight", m->ple, 1);
}

static int tensors(const struct synth_shape *m, struct synth_plan *p,
                   struct err *e)
{
    const char *stem =
        m->text_only || !is_gemma4(m) ? "model." : "model.language_model.";
    struct synth_list l = { .m = m, .p = p, .e = e };

    synth_under(&l, "%s", stem);
    tables(&l);
    for (uint64_t i = 0; i < m->layers; i++) {
        synth_under(&l, "%slayers.%" PRIu64 ".", stem, i);
        block(&l, i);
    }
    synth_under(&l, "%s", stem);
    norm(&l, "norm.weight", m->hidden, FINAL_NORM);
    if (m->vision)
        spare(&l);
    return l.failed ? -1 : 0;
}

const struct synth_family synth_gemma3 = {
    .arch = "gemma3",
    .shapes = gemma3_shapes,
    .n_shapes = sizeof gemma3_shapes / sizeof gemma3_shapes[0],
    .config = config_gemma3,
    .tensors = tensors,
};
const struct synth_family synth_gemma4 = {
    .arch = "gemma4",
    .shapes = gemma4_shapes,
    .n_shapes = sizeof gemma4_shapes / sizeof gemma4_shapes[0],
    .config = config_gemma4,
    .tensors = tensors,
};
