/*
 * Synthetic checkpoints, inside: what a family tells of its models, and what
 * the writer consumes. A family is one file synth_<family>.c with a table of
 * shapes, its config.json and its list of tensors.
 */
#ifndef CONVERTER_SYNTH_PRIV_H
#define CONVERTER_SYNTH_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "converter/base/buf.h"
#include "converter/base/compiler.h"
#include "converter/base/err.h"
#include "converter/base/json.h"
#include "converter/base/log.h"

/* A model. What a family lacks is 0. */
struct synth_shape {
    const char *like;
    uint64_t hidden, inter, layers, heads, kv_heads, head_dim, vocab;
    uint64_t positions;
    double theta, eps;
    double rope_factor; /* llama3 scaling; 0 = none */
    bool tied;
    bool head_copy;      /* tied, yet lm_head.weight is in the file */
    bool no_head_dim;    /* config.json leaves head_dim out */
    const char *version; /* transformers_version */
    /* Gated DeltaNet: heads and widths of keys and values, taps of the
     * convolution; every interval-th layer is attention. */
    uint64_t lin_keys, lin_values, lin_key_dim, lin_value_dim, taps, interval;
    double rotary;   /* rotated share of head_dim */
    uint64_t vision; /* width of a vision tower in the file; 0 = none */
    bool text_only;  /* text settings at top level, no other tensors */
    bool f32;        /* all weights; else BF16 and a few of F32 */
    /* Mixture of experts. */
    uint64_t experts, top, expert_inter, shared_inter;
    bool listed; /* experts are stored one by one */
    /* Gemma: what a sliding layer sees; heads of full layers; layers that
     * share keys and values; width of per-layer embeddings. */
    uint64_t window, full_head_dim, full_kv_heads, shared, ple;
    bool wide;      /* layers that share have MLPs of twice the width */
    bool k_eq_v;    /* full layers have no value matrix */
    bool spare_kv;  /* layers that share have tensors for them all the same */
    bool overrides; /* full layers' heads stand in per_layer_config */
    double softcap, query_scalar;
};

/* How values are drawn; see synth_weights.c. */
enum synth_kind {
    SYNTH_MATRIX,  /* Gaussian; sigma is that of a row, some have tails */
    SYNTH_VECTOR,  /* Gaussian around `centre`, at least centre - 0.75 */
    SYNTH_UNIFORM, /* between centre - sigma and centre + sigma */
};
struct synth_tensor {
    char name[96];
    enum synth_kind kind;
    bool f32; /* else BF16 */
    int rank;
    uint64_t dims[5];
    double centre, sigma;
    /* Rows from `first` on, up to `end` (0: all), are `share` times the row
     * modulo `period` (0: the same row) of the tensor `like` ("": this one),
     * and sqrt(1 - share^2) of their own. Share 1 is a copy, 0 nothing. */
    char like[96];
    uint64_t first, end, period;
    double share;
    bool spare; /* no part of the text model: not counted */
    int shard;
};
uint64_t synth_elems(const struct synth_tensor *t);

struct synth_plan {
    struct synth_tensor *t;
    size_t n, cap;
    uint64_t bytes, parameters;
    int shards;
};
int synth_add(struct synth_plan *p, const struct synth_tensor *t,
              struct err *e) ATTR_MUST_USE;
/* Newton's square root: the same bits everywhere, without libm. */
double synth_root(double x);

/* A plan that grows under one prefix; the first failure stays. */
struct synth_list {
    const struct synth_shape *m;
    struct synth_plan *p;
    struct err *e;
    char at[48]; /* in front of the names */
    bool spare, failed;
};
void synth_under(struct synth_list *l, const char *fmt, ...) ATTR_PRINTF(2, 3);
void synth_put(struct synth_list *l, const char *name, struct synth_tensor t);
/* `gain` is the standard deviation of an output for inputs of deviation 1. */
void synth_matrix(struct synth_list *l, const char *name, uint64_t rows,
                  uint64_t cols, double gain);
/* With deviation SYNTH_NORM_SIGMA around `centre`. */
void synth_vector(struct synth_list *l, const char *name, uint64_t n,
                  double centre);

struct synth_family {
    const char *arch;
    const struct synth_shape *shapes;
    size_t n_shapes;
    /* The members of config.json. */
    void (*config)(const struct synth_shape *m, struct js_writer *w);
    int (*tensors)(const struct synth_shape *m, struct synth_plan *p,
                   struct err *e);
};
extern const struct synth_family synth_gemma3, synth_gemma4, synth_llama,
    synth_qwen3, synth_qwen3_5, synth_qwen3_5_moe;

/* Ids of the tokenizer: the bytes, then these. */
enum { SYNTH_END_OF_TEXT = 256, SYNTH_IM_START, SYNTH_IM_END, SYNTH_TOKENS };

/* Logits of deviation 2.5: some positions are decided, some are close. */
#define SYNTH_LOGIT_GAIN 2.5
/* Deviation of a norm's weights. */
#define SYNTH_NORM_SIGMA 0.15

/* Tokenizer and generation config beside the weights. */
int synth_write_assets(const struct synth_shape *m, const char *dir,
                       struct err *e) ATTR_MUST_USE;
int synth_save(const char *dir, const char *name, struct buf *b,
               struct err *e) ATTR_MUST_USE;

/* The weights: all files of a plan whose tensors have shards and are sorted by
 * name. */
int synth_write_weights(const struct synth_plan *p, uint64_t seed,
                        const char *dir, const struct log *log,
                        struct err *e) ATTR_MUST_USE;
void synth_shard_name(char *out, size_t cap, int shard, int shards);

#endif
