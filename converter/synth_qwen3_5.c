/*
 * Synthetic Qwen3.5, dense and mixture of experts, in the published layout:
 * an outer config, names under "model.language_model.", A_log and the
 * recurrent norm in F32, and beside the text model a block of multi-token
 * prediction ("mtp.") and some of a vision tower ("model.visual.").
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/synth_priv.h"

/* clang-format off */
#define PUBLISHED 248320, 262144, 1e7, 1e-6, .version = "4.57.0.dev0",    \
    .lin_keys = 16, .lin_key_dim = 128, .lin_value_dim = 128, .taps = 4,  \
    .interval = 4, .rotary = 0.25
#define SMALL(V) V, 262144, 1e7, 1e-6, .version = "5.2.0"

/* Columns: H, I, L, heads, kv heads, head_dim, V, positions, theta, eps. */
static const struct synth_shape dense_shapes[] = {
    { "tiny", 128, 224, 4, 4, 2, 32, SMALL(512), .tied = true,
      .lin_keys = 2, .lin_values = 4, .lin_key_dim = 32, .lin_value_dim = 32,
      .taps = 4, .interval = 4, .rotary = 0.25, .vision = 32 },
    /* text-only in float32; pairwise different widths, prime V, three taps,
     * three value heads for a key head, the last layer linear */
    { "odd", 120, 208, 5, 3, 1, 40, SMALL(1009), .f32 = true,
      .lin_keys = 2, .lin_values = 6, .lin_key_dim = 40, .lin_value_dim = 56,
      .taps = 3, .interval = 3, .rotary = 0.5, .text_only = true },
    { "qwen3.5-0.8b", 1024, 3584, 24, 8, 2, 256, PUBLISHED,
      .lin_values = 16, .vision = 768, .tied = true },
    { "qwen3.5-2b", 2048, 6144, 24, 8, 2, 256, PUBLISHED,
      .lin_values = 16, .vision = 1024, .tied = true },
    { "qwen3.5-4b", 2560, 9216, 32, 16, 4, 256, PUBLISHED,
      .lin_values = 32, .vision = 1024, .tied = true },
    { "qwen3.5-9b", 4096, 12288, 32, 16, 4, 256, PUBLISHED,
      .lin_values = 32, .vision = 1152 },
    { "qwen3.5-27b", 5120, 17408, 64, 24, 4, 256, PUBLISHED,
      .lin_values = 48, .vision = 1152 },
};
static const struct synth_shape moe_shapes[] = {
    { "tiny", 96, 0, 4, 4, 2, 32, SMALL(512), .tied = true,
      .lin_keys = 2, .lin_values = 4, .lin_key_dim = 32, .lin_value_dim = 32,
      .taps = 4, .interval = 4, .rotary = 0.25, .vision = 32,
      .experts = 16, .top = 4, .expert_inter = 20, .shared_inter = 48 },
    /* text-only in float32, as many value heads as key heads, experts one by
     * one, their number and that of a token odd */
    { "odd", 104, 0, 3, 6, 2, 48, SMALL(509), .f32 = true,
      .lin_keys = 3, .lin_values = 3, .lin_key_dim = 48, .lin_value_dim = 24,
      .taps = 4, .interval = 3, .rotary = 0.25, .text_only = true,
      .experts = 11, .top = 5, .expert_inter = 24, .shared_inter = 40,
      .listed = true },
    { "qwen3.5-35b-a3b", 2048, 0, 40, 16, 2, 256, PUBLISHED,
      .lin_values = 32, .vision = 1152,
      .experts = 256, .top = 8, .expert_inter = 512, .shared_inter = 512 },
    { "qwen3.5-122b-a10b", 3072, 0, 48, 32, 2, 256, PUBLISHED,
      .lin_values = 64, .vision = 1152,
      .experts = 256, .top = 8, .expert_inter = 1024, .shared_inter = 1024 },
    { "qwen3.5-397b-a17b", 4096, 0, 60, 32, 2, 256, PUBLISHED,
      .lin_values = 64, .vision = 1152,
      .experts = 512, .top = 10, .expert_inter = 1024, .shared_inter = 1024 },
};
/* clang-format on */

static bool is_full(const struct synth_shape *m, uint64_t layer)
{
    return (layer + 1) % m->interval == 0;
}

/* ---- config.json ---- */

static void config_layers(const struct synth_shape *m, struct js_writer *w)
{
    js_w_uint(w, "full_attention_interval", m->interval);
    if (m->text_only)
        return; /* the interval has to do */
    js_w_array(w, "layer_types", false);
    for (uint64_t i = 0; i < m->layers; i++)
        js_w_string(w, NULL,
                    is_full(m, i) ? "full_attention" : "linear_attention");
    js_w_end(w);
}

static void config_mlp(const struct synth_shape *m, struct js_writer *w)
{
    if (!m->experts) {
        js_w_uint(w, "intermediate_size", m->inter);
        return;
    }
    js_w_uint(w, "moe_intermediate_size", m->expert_inter);
    js_w_uint(w, "num_experts", m->experts);
    js_w_uint(w, "num_experts_per_tok", m->top);
    js_w_double(w, "router_aux_loss_coef", 0.001);
    js_w_uint(w, "shared_expert_intermediate_size", m->shared_inter);
}

/* Sections of the rotated pairs for time, height and width, as equal as they
 * get: [11, 11, 10] of 32. */
static void config_rope(const struct synth_shape *m, struct js_writer *w)
{
    uint64_t pairs = (uint64_t)((double)m->head_dim * m->rotary) / 2;

    js_w_object(w, "rope_parameters");
    js_w_bool(w, "mrope_interleaved", true);
    js_w_array(w, "mrope_section", true);
    for (uint64_t i = 0; i < 3; i++)
        js_w_uint(w, NULL, (pairs + 2 - i) / 3);
    js_w_end(w);
    js_w_double(w, "partial_rotary_factor", m->rotary);
    js_w_uint(w, "rope_theta", (uint64_t)m->theta);
    js_w_string(w, "rope_type", "default");
    js_w_end(w);
}

static void config_text(const struct synth_shape *m, struct js_writer *w)
{
    js_w_bool(w, "attention_bias", false);
    js_w_double(w, "attention_dropout", 0);
    js_w_bool(w, "attn_output_gate", true);
    js_w_string(w, "dtype", m->f32 ? "float32" : "bfloat16");
    js_w_uint(w, "eos_token_id", SYNTH_IM_END);
    js_w_uint(w, "head_dim", m->head_dim);
    js_w_string(w, "hidden_act", "silu");
    js_w_uint(w, "hidden_size", m->hidden);
    js_w_double(w, "initializer_range", 0.02);
    config_layers(m, w);
    js_w_uint(w, "linear_conv_kernel_dim", m->taps);
    js_w_uint(w, "linear_key_head_dim", m->lin_key_dim);
    js_w_uint(w, "linear_num_key_heads", m->lin_keys);
    js_w_uint(w, "linear_num_value_heads", m->lin_values);
    js_w_uint(w, "linear_value_head_dim", m->lin_value_dim);
    js_w_string(w, "mamba_ssm_dtype", "float32");
    js_w_uint(w, "max_position_embeddings", m->positions);
    config_mlp(m, w);
    js_w_array(w, "mlp_only_layers", true);
    js_w_end(w);
    js_w_string(w, "model_type",
                m->experts ? "qwen3_5_moe_text" : "qwen3_5_text");
    js_w_uint(w, "mtp_num_hidden_layers", !m->text_only);
    js_w_bool(w, "mtp_use_dedicated_embeddings", false);
    js_w_uint(w, "num_attention_heads", m->heads);
    js_w_uint(w, "num_hidden_layers", m->layers);
    js_w_uint(w, "num_key_value_heads", m->kv_heads);
    js_w_double(w, "rms_norm_eps", m->eps);
    config_rope(m, w);
    js_w_bool(w, "tie_word_embeddings", m->tied);
    js_w_bool(w, "use_cache", true);
    js_w_uint(w, "vocab_size", m->vocab);
}

#define POSITIONS 256 /* of the vision tower */

static void config_vision(const struct synth_shape *m, struct js_writer *w)
{
    js_w_object(w, "vision_config");
    js_w_uint(w, "depth", 1);
    js_w_uint(w, "hidden_size", m->vision);
    js_w_uint(w, "in_channels", 3);
    js_w_string(w, "model_type", m->experts ? "qwen3_5_moe" : "qwen3_5");
    js_w_uint(w, "num_position_embeddings", POSITIONS);
    js_w_uint(w, "out_hidden_size", m->hidden);
    js_w_uint(w, "patch_size", 16);
    js_w_uint(w, "temporal_patch_size", 2);
    js_w_end(w);
}

static void config(const struct synth_shape *m, struct js_writer *w)
{
    char class[64];

    snprintf(class, sizeof class, "Qwen3_5%sFor%s", m->experts ? "Moe" : "",
             m->text_only ? "CausalLM" : "ConditionalGeneration");
    js_w_array(w, "architectures", false);
    js_w_string(w, NULL, class);
    js_w_end(w);
    if (m->text_only) {
        config_text(m, w);
    } else {
        js_w_string(w, "model_type", m->experts ? "qwen3_5_moe" : "qwen3_5");
        js_w_object(w, "text_config");
        config_text(m, w);
        js_w_end(w);
        js_w_bool(w, "tie_word_embeddings", m->tied);
        config_vision(m, w);
    }
    js_w_string(w, "transformers_version", m->version);
}

/* ---- tensors ---- */

/* The branches add up to a stream of deviation about 1. More, and the errors
 * of half precision and of palettes would grow from layer to layer as they do
 * in no trained model. */
static double out_gain(const struct synth_shape *m)
{
    return synth_root(1.5 / (double)m->layers);
}

static void attention(struct synth_list *l)
{
    const struct synth_shape *m = l->m;
    uint64_t h = m->hidden, q = m->heads * m->head_dim,
             kv = m->kv_heads * m->head_dim;

    synth_vector(l, "self_attn.k_norm.weight", m->head_dim, 0);
    synth_matrix(l, "self_attn.k_proj.weight", kv, h, 1);
    synth_matrix(l, "self_attn.o_proj.weight", h, q, 2 * out_gain(m));
    synth_vector(l, "self_attn.q_norm.weight", m->head_dim, 0);
    synth_matrix(l, "self_attn.q_proj.weight", 2 * q, h, 1);
    synth_matrix(l, "self_attn.v_proj.weight", kv, h, 1);
}

/* Heads forget as in trained models: e^A_log between 0.5 and 16, time steps
 * softplus(dt_bias) between 0.001 and 0.1. */
static void recurrence(struct synth_list *l)
{
    struct synth_tensor rate = { .kind = SYNTH_UNIFORM,
                                 .f32 = true,
                                 .rank = 1,
                                 .dims = { l->m->lin_values },
                                 .centre = 1.04,
                                 .sigma = 1.73 };
    struct synth_tensor step = { .kind = SYNTH_UNIFORM,
                                 .rank = 1,
                                 .dims = { l->m->lin_values },
                                 .centre = -2.5,
                                 .sigma = 2.1 };
    struct synth_tensor norm = { .kind = SYNTH_VECTOR,
                                 .f32 = true,
                                 .rank = 1,
                                 .dims = { l->m->lin_value_dim },
                                 .centre = 1,
                                 .sigma = SYNTH_NORM_SIGMA };

    synth_put(l, "linear_attn.A_log", rate);
    synth_put(l, "linear_attn.dt_bias", step);
    synth_put(l, "linear_attn.norm.weight", norm);
}

static void linear(struct synth_list *l)
{
    const struct synth_shape *m = l->m;
    uint64_t h = m->hidden, nv = m->lin_values, v = nv * m->lin_value_dim;
    uint64_t k = m->lin_keys * m->lin_key_dim, c = 2 * k + v;
    struct synth_tensor conv = { .kind = SYNTH_MATRIX,
                                 .rank = 3,
                                 .dims = { c, 1, m->taps },
                                 .sigma = 1 / synth_root((double)m->taps),
                                 .first = k,
                                 .end = 2 * k,
                                 .period = k,
                                 .share = 0.8 };
    struct synth_tensor qkv = { .kind = SYNTH_MATRIX,
                                .rank = 2,
                                .dims = { c, h },
                                .sigma = 1 / synth_root((double)h),
                                .first = k,
                                .end = 2 * k,
                                .period = k,
                                .share = 0.8 };

    /* Keys resemble their queries: what is read is no noise. */
    recurrence(l);
    synth_put(l, "linear_attn.conv1d.weight", conv);
    synth_matrix(l, "linear_attn.in_proj_a.weight", nv, h, 0.5);
    synth_matrix(l, "linear_attn.in_proj_b.weight", nv, h, 0.5);
    synth_put(l, "linear_attn.in_proj_qkv.weight", qkv);
    synth_matrix(l, "linear_attn.in_proj_z.weight", v, h, 1);
    synth_matrix(l, "linear_attn.out_proj.weight", h, v, out_gain(m));
}

static void mlp(struct synth_list *l, const char *stem, uint64_t inner,
                double gain)
{
    char name[64];

    snprintf(name, sizeof name, "%s.down_proj.weight", stem);
    synth_matrix(l, name, l->m->hidden, inner, gain);
    snprintf(name, sizeof name, "%s.gate_proj.weight", stem);
    synth_matrix(l, name, inner, l->m->hidden, 1);
    snprintf(name, sizeof name, "%s.up_proj.weight", stem);
    synth_matrix(l, name, inner, l->m->hidden, 1);
}

/* Experts resemble the first of their layer, as do those that grew out of one
 * MLP: where half precision turns a close choice, little changes. The router's
 * logits have deviation 8: the last expert that a token gets weighs little. */
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

/* One of the experts that are stored apart. */
static void listed(struct synth_list *l, uint64_t expert, const char *name,
                   uint64_t rows, uint64_t cols, double gain)
{
    struct synth_tensor t = { .kind = SYNTH_MATRIX,
                              .rank = 2,
                              .dims = { rows, cols },
                              .share = expert ? EXPERT_SHARE : 0 };
    char own[48];

    t.sigma = gain / synth_root((double)cols);
    snprintf(t.like, sizeof t.like, "%smlp.experts.0.%s", l->at, name);
    snprintf(own, sizeof own, "mlp.experts.%" PRIu64 ".%s", expert, name);
    synth_put(l, own, t);
}

static void experts(struct synth_list *l)
{
    const struct synth_shape *m = l->m;
    uint64_t h = m->hidden, inner = m->expert_inter;

    synth_matrix(l, "mlp.gate.weight", m->experts, h, ROUTER_GAIN);
    for (uint64_t i = 0; i < m->experts && m->listed; i++) {
        listed(l, i, "down_proj.weight", h, inner, out_gain(m));
        listed(l, i, "gate_proj.weight", inner, h, 1);
        listed(l, i, "up_proj.weight", inner, h, 1);
    }
    if (!m->listed) {
        stacked(l, "mlp.experts.down_proj", h, inner, out_gain(m));
        stacked(l, "mlp.experts.gate_up_proj", 2 * inner, h, 1);
    }
    mlp(l, "mlp.shared_expert", m->shared_inter, out_gain(m));
    synth_matrix(l, "mlp.shared_expert_gate.weight", 1, h, 1);
}

static void block(struct synth_list *l, bool full)
{
    synth_vector(l, "input_layernorm.weight", l->m->hidden, 0);
    if (full)
        attention(l);
    else
        linear(l);
    if (l->m->experts)
        experts(l);
    else
        mlp(l, "mlp", l->m->inter, out_gain(l->m));
    synth_vector(l, "post_attention_layernorm.weight", l->m->hidden, 0);
}

/* What a text model skips. */
static void spare(struct synth_list *l)
{
    uint64_t h = l->m->hidden, v = l->m->vision;
    struct synth_tensor patches = { .kind = SYNTH_MATRIX,
                                    .rank = 5,
                                    .dims = { v, 3, 2, 16, 16 },
                                    .sigma = 0.02 };

    l->spare = true;
    synth_under(l, "mtp.");
    synth_matrix(l, "fc.weight", h, 2 * h, 1);
    synth_vector(l, "norm.weight", h, 0);
    synth_vector(l, "pre_fc_norm_embedding.weight", h, 0);
    synth_vector(l, "pre_fc_norm_hidden.weight", h, 0);
    synth_under(l, "mtp.layers.0.");
    block(l, true);
    synth_under(l, "model.visual.");
    synth_matrix(l, "blocks.0.attn.qkv.weight", 3 * v, v, 1);
    synth_vector(l, "blocks.0.attn.qkv.bias", 3 * v, 0);
    synth_vector(l, "blocks.0.norm1.weight", v, 1);
    synth_vector(l, "merger.norm.weight", v, 1);
    synth_put(l, "patch_embed.proj.weight", patches);
    synth_vector(l, "patch_embed.proj.bias", v, 0);
    synth_matrix(l, "pos_embed.weight", POSITIONS, v, 1);
}

static int tensors(const struct synth_shape *m, struct synth_plan *p,
                   struct err *e)
{
    const char *stem = m->text_only ? "model." : "model.language_model.";
    struct synth_list l = { .m = m, .p = p, .e = e };

    synth_under(&l, "%s", stem);
    synth_matrix(&l, "embed_tokens.weight", m->vocab, m->hidden,
                 SYNTH_LOGIT_GAIN);
    for (uint64_t i = 0; i < m->layers; i++) {
        synth_under(&l, "%slayers.%" PRIu64 ".", stem, i);
        block(&l, is_full(m, i));
    }
    synth_under(&l, "%s", stem);
    synth_vector(&l, "norm.weight", m->hidden, 0);
    synth_under(&l, "%s", "");
    if (!m->tied)
        synth_matrix(&l, "lm_head.weight", m->vocab, m->hidden,
                     SYNTH_LOGIT_GAIN);
    if (m->vision)
        spare(&l);
    return l.failed ? -1 : 0;
}

const struct synth_family synth_qwen3_5 = {
    .arch = "qwen3_5",
    .shapes = dense_shapes,
    .n_shapes = sizeof dense_shapes / sizeof dense_shapes[0],
    .config = config,
    .tensors = tensors,
};
const struct synth_family synth_qwen3_5_moe = {
    .arch = "qwen3_5_moe",
    .shapes = moe_shapes,
    .n_shapes = sizeof moe_shapes / sizeof moe_shapes[0],
    .config = config,
    .tensors = tensors,
};
