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

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };
const char *rope_type_name(enum rope_type t);

struct rope_params {
    enum rope_type type;
    double theta;
    int dim;                                  /* R: rotated width, even */
    double factor;                            /* linear, llama3, yarn */
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
    HP_LAYER_FULL,   /* softmax attention over all positions */
    HP_LAYER_LINEAR, /* a recurrent state and a causal convolution */
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
    /* Mixture of experts; `experts` 0: dense, by `intermediate`. */
    int64_t experts, experts_per_token;
    int64_t moe_intermediate, shared_intermediate;
    struct rope_params rope;
    const char *rope_by; /* where theta stood: "rope_parameters",
                            "rope_scaling", "rope_theta", "class default" */
    char dtype[16];      /* of the config; the tensors' own win */
    int64_t bos;         /* -1: none */
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
/* Parameters of the text model by the family's formula. */
uint64_t hparams_count(const struct hparams *hp);
/* The lines that tools print: "hidden_size 1024". */
void hparams_print(const struct hparams *hp, struct buf *out);
/* Lines that depend on the context length asked for: yarn switched on though
 * `ctx` fits the model's native window. */
void hparams_context_notes(const struct hparams *hp, int64_t ctx,
                           struct buf *notes);

#endif
