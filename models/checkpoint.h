/*
 * A checkpoint directory: what kind it is, its config, its tensors under
 * canonical names, and the ledger that accounts for every one of them.
 *
 * Canonical names have no prefix: "embed_tokens.weight",
 * "layers.3.self_attn.q_proj.weight", "norm.weight", "lm_head.weight". The
 * stem in front of "layers.N." is found by pattern; all text tensors must
 * share one stem, repeats are collapsed.
 */
#ifndef MODELS_CHECKPOINT_H
#define MODELS_CHECKPOINT_H

#include "converter/base/json.h"
#include "converter/base/log.h"
#include "models/hparams.h"
#include "safetensors/st.h"

/* What a family needs of the file: filled by model_arch.needs. */
struct need {
    char name[128]; /* canonical */
    int rank;
    uint64_t dims[4];
    const struct st_tensor *tensor; /* after matching; NULL when planning */
    /* Experts may be stored one by one: entry i of axis 0 as the pieces
     * "<stem>.<i>.<piece>.weight", one upon the other. Then `parts` lists them
     * and `tensor` is the first; bytes go through need_read_*. */
    const char *pieces[2];
    size_t n_pieces; /* 0: never */
    const struct st_tensor **parts;
    size_t n_parts; /* 0: it is one tensor */
};
struct ledger {
    struct need *needs; /* in the family's order */
    size_t n, cap;
    struct need **by_name; /* sorted; made when the family has declared */
    struct {
        const char *rule; /* the ignore rule */
        uint64_t tensors, bytes;
    } ignored[16];
    size_t n_ignored;
    uint64_t used_tensors, used_bytes;
};
/* For model_arch.needs: declares one tensor. */
int ledger_need(struct ledger *l, struct err *e, int rank, const uint64_t *dims,
                const char *fmt, ...) ATTR_PRINTF(5, 6) ATTR_MUST_USE;
/* Declares tensors "layers.L.NAME" of one layer, of up to three dimensions;
 * the first failure stays. */
struct layer_needs {
    struct ledger *l;
    struct err *e;
    int layer;
    bool failed;
};
void layer_need(struct layer_needs *n, const char *name, int rank, int64_t d0,
                int64_t d1, int64_t d2);
/* The need declared last may be stored in pieces. */
void ledger_in_pieces(struct ledger *l, const char *first, const char *second);

/* Elements, or raw bytes, of a matched need, however it is stored; all of
 * its tensors have one dtype. Thread-safe. */
int need_read_f32(const struct st *st, const struct need *n, uint64_t first,
                  size_t count, float *dst, struct err *e) ATTR_MUST_USE;
int need_read_bytes(const struct st *st, const struct need *n, uint64_t offset,
                    void *dst, size_t count, struct err *e) ATTR_MUST_USE;

struct ckpt {
    char *dir;
    struct js_doc *config;
    struct js_doc *generation; /* generation_config.json or NULL */
    struct hparams hp;
    struct st *st; /* NULL: config only */
    struct ledger ledger;
    struct buf notes; /* lines for the user */
};

enum ckpt_flags {
    CKPT_CONFIG_ONLY = 1, /* planning: weights are not needed; those that
                             are there and readable are judged all the same */
    CKPT_FORCE_TIE = 2,   /* --tie: the embedding serves as a missing head */
};

/*
 * Opens and judges a directory. Kinds that are not a plain checkpoint get one
 * sentence each: no directory, no config.json, LoRA adapter, GPTQ, AWQ,
 * bitsandbytes, FP8, NVFP4 / modelopt (also told by hf_quant_config.json
 * alone), compressed-tensors, MXFP4, MLX-quantized, GGUF only, git-lfs
 * pointers, Meta-layout consolidated files. Plain or quantized is decided by
 * the dtypes and companions of the tensors that are needed; the config words
 * the message and decides alone only where no weights are present.
 * All missing, unknown and misshapen tensors come in one error, grouped by
 * layer.
 */
int ckpt_open(struct ckpt *c, const char *dir, unsigned flags,
              struct err *e) ATTR_MUST_USE;
void ckpt_close(struct ckpt *c);
/* A declared need by canonical name; NULL if the family has no such need.
 * With tied embeddings "lm_head.weight" is the embedding. */
const struct need *ckpt_need(const struct ckpt *c, const char *name);
/* Its tensor; NULL also without weights. */
const struct st_tensor *ckpt_tensor(const struct ckpt *c, const char *name);

/* Where a float32 reference gets its weights: rows [row, row + n) of a
 * canonical tensor, as floats. A row runs along the last axis, all other axes
 * count rows; a vector is one row. Thread-safe. */
struct tensor_source {
    int (*rows)(void *cookie, const char *name, uint64_t row, uint64_t n,
                float *dst, struct err *e);
    void *cookie;
};
/* The checkpoint's own weights. */
struct tensor_source ckpt_source(const struct ckpt *c);

#endif
