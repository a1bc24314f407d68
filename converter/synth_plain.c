/*
 * Synthetic Qwen3 and Llama: pre-norm blocks of grouped attention and a gated
 * MLP.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/synth_priv.h"

/* Columns: H, I, L, heads, kv heads, head_dim, V, positions, theta, eps. */
/* clang-format off */
static const struct synth_shape qwen3_shapes[] = {
    { "tiny", 128, 320, 3, 4, 2, 32, 512, 40960, 1e6, 1e-6,
      .tied = true, .version = "4.51.0" },
    /* pairwise different widths, heads x head_dim unlike H, prime V */
    { "odd", 160, 352, 5, 6, 2, 32, 1009, 40960, 1e6, 1e-6,
      .version = "4.51.0" },
    { "qwen3-0.6b", 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e6, 1e-6,
      .tied = true, .head_copy = true, .version = "4.51.0" },
    { "qwen3-1.7b", 2048, 6144, 28, 16, 8, 128, 151936, 40960, 1e6, 1e-6,
      .tied = true, .head_copy = true, .version = "4.51.0" },
    { "qwen3-4b", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e6, 1e-6,
      .tied = true, .version = "4.51.0" },
    { "qwen3-8b", 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e6, 1e-6,
      .version = "4.51.0" },
    { "qwen3-14b", 5120, 17408, 40, 40, 8, 128, 151936, 40960, 1e6, 1e-6,
      .version = "4.51.0" },
    { "qwen3-32b", 5120, 25600, 64, 64, 8, 128, 151936, 40960, 1e6, 1e-6,
      .version = "4.51.0" },
};
static const struct synth_shape llama_shapes[] = {
    { "tiny", 128, 288, 3, 4, 2, 32, 512, 131072, 5e5, 1e-5,
      .rope_factor = 32, .tied = true, .version = "4.45.0" },
    { "llama-3.2-1b", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5, 1e-5,
      .rope_factor = 32, .tied = true, .version = "4.45.0" },
    { "llama-3.2-3b", 3072, 8192, 28, 24, 8, 128, 128256, 131072, 5e5, 1e-5,
      .rope_factor = 32, .tied = true, .version = "4.45.0" },
    { "llama-3.1-8b", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 5e5, 1e-5,
      .rope_factor = 8, .no_head_dim = true, .version = "4.43.0" },
    { "smollm2-135m", 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e5, 1e-5,
      .tied = true, .no_head_dim = true, .version = "4.42.3" },
};
/* clang-format on */

/* config.json, in the order and spelling of transformers 4. */

static void config_common(const struct synth_shape *m, struct js_writer *w,
                          const char *class)
{
    js_w_array(w, "architectures", false);
    js_w_string(w, NULL, class);
    js_w_end(w);
    js_w_bool(w, "attention_bias", false);
    js_w_double(w, "attention_dropout", 0);
    js_w_uint(w, "bos_token_id", SYNTH_END_OF_TEXT);
    js_w_uint(w, "eos_token_id", SYNTH_IM_END);
    if (!m->no_head_dim)
        js_w_uint(w, "head_dim", m->head_dim);
    js_w_string(w, "hidden_act", "silu");
    js_w_uint(w, "hidden_size", m->hidden);
    js_w_double(w, "initializer_range", 0.02);
    js_w_uint(w, "intermediate_size", m->inter);
    js_w_uint(w, "max_position_embeddings", m->positions);
}

static void config_tail(const struct synth_shape *m, struct js_writer *w)
{
    js_w_bool(w, "tie_word_embeddings", m->tied);
    js_w_string(w, "torch_dtype", "bfloat16");
    js_w_string(w, "transformers_version", m->version);
    js_w_bool(w, "use_cache", true);
}

static void config_qwen3(const struct synth_shape *m, struct js_writer *w)
{
    config_common(m, w, "Qwen3ForCausalLM");
    js_w_uint(w, "max_window_layers", m->layers);
    js_w_string(w, "model_type", "qwen3");
    js_w_uint(w, "num_attention_heads", m->heads);
    js_w_uint(w, "num_hidden_layers", m->layers);
    js_w_uint(w, "num_key_value_heads", m->kv_heads);
    js_w_double(w, "rms_norm_eps", m->eps);
    js_w_null(w, "rope_scaling");
    js_w_uint(w, "rope_theta", (uint64_t)m->theta);
    js_w_null(w, "sliding_window");
    config_tail(m, w);
    js_w_bool(w, "use_sliding_window", false);
    js_w_uint(w, "vocab_size", m->vocab);
}

static void config_llama(const struct synth_shape *m, struct js_writer *w)
{
    config_common(m, w, "LlamaForCausalLM");
    js_w_bool(w, "mlp_bias", false);
    js_w_string(w, "model_type", "llama");
    js_w_uint(w, "num_attention_heads", m->heads);
    js_w_uint(w, "num_hidden_layers", m->layers);
    js_w_uint(w, "num_key_value_heads", m->kv_heads);
    js_w_uint(w, "pretraining_tp", 1);
    js_w_double(w, "rms_norm_eps", m->eps);
    if (m->rope_factor > 0) {
        js_w_object(w, "rope_scaling");
        js_w_double(w, "factor", m->rope_factor);
        js_w_double(w, "high_freq_factor", 4);
        js_w_double(w, "low_freq_factor", 1);
        js_w_uint(w, "original_max_position_embeddings", 8192);
        js_w_string(w, "rope_type", "llama3");
        js_w_end(w);
    } else {
        js_w_null(w, "rope_scaling");
    }
    js_w_double(w, "rope_theta", m->theta);
    config_tail(m, w);
    js_w_uint(w, "vocab_size", m->vocab);
}

/* Tensors. */

static int add_norm(struct synth_plan *p, struct err *e, const char *prefix,
                    const char *name, uint64_t n)
{
    struct synth_tensor t = { .kind = SYNTH_VECTOR, .rank = 1, .dims = { n } };

    t.centre = 1;
    t.sigma = SYNTH_NORM_SIGMA;
    snprintf(t.name, sizeof t.name, "%s%s.weight", prefix, name);
    return synth_add(p, &t, e);
}

/* `gain` is the standard deviation of an output for inputs of deviation 1. */
static int add_matrix(struct synth_plan *p, struct err *e, const char *prefix,
                      const char *name, uint64_t rows, uint64_t cols,
                      double gain)
{
    struct synth_tensor t = { .kind = SYNTH_MATRIX,
                              .rank = 2,
                              .dims = { rows, cols } };

    t.sigma = gain / synth_root((double)cols);
    snprintf(t.name, sizeof t.name, "%s%s.weight", prefix, name);
    return synth_add(p, &t, e);
}

/* The branches add up to a residual of deviation about 2. */
static int add_layer(struct synth_plan *p, const struct synth_shape *m,
                     uint64_t layer, bool qk_norm, struct err *e)
{
    double out_gain = synth_root(6.0 / (double)m->layers);
    uint64_t h = m->hidden, q = m->heads * m->head_dim,
             kv = m->kv_heads * m->head_dim;
    char at[48];

    snprintf(at, sizeof at, "model.layers.%" PRIu64 ".", layer);
    if (add_norm(p, e, at, "input_layernorm", h) ||
        add_matrix(p, e, at, "mlp.down_proj", h, m->inter, out_gain) ||
        add_matrix(p, e, at, "mlp.gate_proj", m->inter, h, 1) ||
        add_matrix(p, e, at, "mlp.up_proj", m->inter, h, 1) ||
        add_norm(p, e, at, "post_attention_layernorm", h) ||
        (qk_norm && add_norm(p, e, at, "self_attn.k_norm", m->head_dim)) ||
        add_matrix(p, e, at, "self_attn.k_proj", kv, h, 1) ||
        add_matrix(p, e, at, "self_attn.o_proj", h, q, out_gain) ||
        (qk_norm && add_norm(p, e, at, "self_attn.q_norm", m->head_dim)) ||
        add_matrix(p, e, at, "self_attn.q_proj", q, h, 1) ||
        add_matrix(p, e, at, "self_attn.v_proj", kv, h, 1))
        return -1;
    return 0;
}

static int add_head(struct synth_plan *p, const struct synth_shape *m,
                    struct err *e)
{
    struct synth_tensor copy = { .kind = SYNTH_MATRIX,
                                 .rank = 2,
                                 .dims = { m->vocab, m->hidden },
                                 .name = "lm_head.weight",
                                 .like = "model.embed_tokens.weight",
                                 .share = 1 };

    copy.sigma = SYNTH_LOGIT_GAIN / synth_root((double)m->hidden);
    if (m->head_copy)
        return synth_add(p, &copy, e);
    return m->tied ? 0
                   : add_matrix(p, e, "", "lm_head", m->vocab, m->hidden,
                                SYNTH_LOGIT_GAIN);
}

static int tensors(const struct synth_shape *m, struct synth_plan *p,
                   bool qk_norm, struct err *e)
{
    if (add_matrix(p, e, "model.", "embed_tokens", m->vocab, m->hidden,
                   SYNTH_LOGIT_GAIN))
        return -1;
    for (uint64_t i = 0; i < m->layers; i++)
        if (add_layer(p, m, i, qk_norm, e))
            return -1;
    if (add_norm(p, e, "model.", "norm", m->hidden))
        return -1;
    return add_head(p, m, e);
}

static int tensors_qwen3(const struct synth_shape *m, struct synth_plan *p,
                         struct err *e)
{
    return tensors(m, p, true, e);
}

static int tensors_llama(const struct synth_shape *m, struct synth_plan *p,
                         struct err *e)
{
    return tensors(m, p, false, e);
}

const struct synth_family synth_qwen3 = {
    .arch = "qwen3",
    .shapes = qwen3_shapes,
    .n_shapes = sizeof qwen3_shapes / sizeof qwen3_shapes[0],
    .config = config_qwen3,
    .tensors = tensors_qwen3,
};
const struct synth_family synth_llama = {
    .arch = "llama",
    .shapes = llama_shapes,
    .n_shapes = sizeof llama_shapes / sizeof llama_shapes[0],
    .config = config_llama,
    .tensors = tensors_llama,
};
