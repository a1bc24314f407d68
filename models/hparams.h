/*
 * Hyper-parameters of a checkpoint, from every spelling of config.json.
 *
 * One struct for all families: what a family lacks is zero. Parsing is a
 * table per family (key, kind, what absent means, what null means); a wrong
 * JSON type is an error with key and type. Spellings: text settings at top
 * level or in `text_config`; RoPE as `rope_theta` + `rope_scaling` or as
 * `rope_parameters`; `torch_dtype` or `dtype`.
 */
#ifndef MODELS_HPARAMS_H
#define MODELS_HPARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "converter/base/buf.h"
#include "converter/base/err.h"
#include "converter/base/json.h"

enum rope_type {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_PROPORTIONAL,
};
const char *rope_type_name(enum rope_type t);

struct rope_params {
    enum rope_type type;
    double theta;
    int dim;  /* R: rotated width, even */
    int live; /* proportional: pairs i < live turn by theta^(-2i/dim), those
                 from there to dim / 2 by 0; dim is the whole head */
    double factor; /* linear, llama3, yarn, proportional */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_max;                      /* llama3, yarn */
    double beta_fast, beta_slow;              /* yarn */
    bool truncate;                            /* yarn: round the band */
    double attention_scaling; /* multiplies cos and sin; 1 unless yarn */
};

#define HP_MAX_STOP 16
/* Of families whose layers differ in kind. */
#define HP_MAX_LAYERS 256

enum hp_layer {
    HP_LAYER_FULL,    /* softmax attention over all positions */
    HP_LAYER_LINEAR,  /* a recurrent state and a causal convolution */
    HP_LAYER_SLIDING, /* softmax attention over the last `window` positions */
};

struct hparams {
    const struct model_arch *arch;
    char model_type[64];   /* of the text model */
    char architecture[96]; /* architectures[0] or "" */
    int64_t vocab, hidden, intermediate, layers;
    int64_t heads, kv_heads, head_dim;
    int64_t max_positions;
    double rms_eps;
    bool tied;
    const char *tied_by; /* what decided: "config", "text_config",
                            "class default", "--tie", "the missing
                            lm_head.weight" */
    bool attention_bias, mlp_bias;
    bool qk_norm;             /* RMSNorm of q and k per head, before RoPE */
    bool zero_centered_norms; /* norms multiply by 1 + w */
    bool attn_output_gate;    /* q_proj gives query and gate per head */
    /* enum hp_layer of each; plain families leave it 0 and may have more
     * layers than it holds. */
    uint8_t layer_kind[HP_MAX_LAYERS];
    /* Gated DeltaNet: heads and their widths, taps of the convolution. */
    int64_t lin_key_heads, lin_value_heads, lin_key_dim, lin_value_dim;
    int64_t conv_kernel;
    /* Mixture of experts; `experts` 0: dense, by `intermediate`. Gemma 4 has
     * the dense MLP beside the experts, and no shared one. */
    int64_t experts, experts_per_token;
    int64_t moe_intermediate, shared_intermediate;
    struct rope_params rope; /* of sliding layers: rope_local */
    const char *rope_by;     /* where theta stood: "rope_parameters",
                                "rope_scaling", "rope_theta", "class default" */
    /*
     * Gemma. With sliding layers head_dim, kv_heads and rope_local are
     * theirs; global_head_dim, global_kv_heads and rope the full ones'.
     * Ask hp_layer_*, which know.
     */
    int64_t window; /* token t of a sliding layer sees positions j with
                       t - window < j <= t; 0: no sliding layers */
    int64_t global_head_dim, global_kv_heads; /* 0: no sliding layers */
    struct rope_params rope_local;
    const char *rope_local_by;
    /* The scores' scale is this to the power -1/2 (Gemma 3; 0 elsewhere: the
     * family's own, which is 1 in Gemma 4). */
    double query_pre_attn_scalar;
    /* The last kv_shared_layers layers compute no keys and values: they read
     * those of layer kv_source[i], the last of their kind that does. For
     * layers that do, kv_source[i] is i. */
    int64_t kv_shared_layers;
    uint8_t kv_source[HP_MAX_LAYERS];
    bool double_wide_mlp; /* layers that share are 2 * intermediate wide */
    bool k_eq_v; /* full layers have no v_proj: values are the raw output of
                    k_proj, normed as values */
    /* Per-layer embeddings: width of one layer's, rows of their table; 0:
     * none. */
    int64_t ple_width, ple_vocab;
    /* Looked-up rows are multiplied by these: the roots of hidden_size and of
     * ple_width, rounded to the dtype of the table as transformers does.
     * 0: not multiplied. */
    double embed_scale, ple_scale;
    double final_softcap; /* logits become c tanh(logit / c); 0: they stay */
    char dtype[16];       /* of the config; the tensors' own win */
    int64_t bos;          /* -1: none */
    int n_eos;
    int64_t eos[HP_MAX_STOP];
};

/*
 * Parses a config document. Finds the family by exact model_type (and
 * `architectures`, when given, must be one of the family's); unknown:
 * ERR_UNSUPPORTED that names it and lists what is supported. Everything the
 * family does not compute (an activation, a rope type, sliding windows in
 * use, ...) is refused by key and value. Notes for the user (defaults that
 * decided, yarn within its native window) are appended to `notes`, a line
 * each; may be NULL.
 */
int hparams_parse(const struct js_doc *config, struct hparams *hp,
                  struct buf *notes, struct err *e) ATTR_MUST_USE;
/* What one layer has, in every family. */
int64_t hp_layer_head_dim(const struct hparams *hp, int64_t layer);
int64_t hp_layer_kv_heads(const struct hparams *hp, int64_t layer);
int64_t hp_layer_intermediate(const struct hparams *hp, int64_t layer);
const struct rope_params *hp_layer_rope(const struct hparams *hp,
                                        int64_t layer);
/* The layer whose keys and values it reads: itself unless it shares. */
int64_t hp_layer_kv_source(const struct hparams *hp, int64_t layer);
/* Parameters of the text model by the family's formula. */
uint64_t hparams_count(const struct hparams *hp);
/* The lines that tools print: "hidden_size 1024". */
void hparams_print(const struct hparams *hp, struct buf *out);
/* Lines that depend on the context length asked for: yarn switched on though
 * `ctx` fits the model's native window. */
void hparams_context_notes(const struct hparams *hp, int64_t ctx,
                           struct buf *notes);

#endif
