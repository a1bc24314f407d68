/*
 * Inside of checkpoint reading: the survey of a directory, what tells that
 * weights are quantized, and the matching of tensors to needs.
 */
#ifndef MODELS_CHECKPOINT_PRIV_H
#define MODELS_CHECKPOINT_PRIV_H

#include "models/checkpoint.h"
#include "models/hparams_priv.h"

#define CKPT_CONFIG_NAME "config.json"
#define CKPT_SINGLE_NAME "model.safetensors"
#define CKPT_INDEX_NAME "model.safetensors.index.json"

/* What lies in a directory, by name. The texts are views into `names`. */
struct ckpt_files {
    char **names;
    size_t n;
    bool config, hf_quant, adapter_config, single, index, params, package, hub;
    const char *adapter, *gguf, *pickle, *consolidated, *loose;
};
int ckpt_survey(const char *dir, struct ckpt_files *f,
                struct err *e) ATTR_MUST_USE;
void ckpt_files_release(struct ckpt_files *f);
/* Directories without a config, adapters, weights in a form that is not
 * read: one sentence each. */
int ckpt_judge_files(const char *dir, const struct ckpt_files *f,
                     struct err *e) ATTR_MUST_USE;
/* Neither model.safetensors nor an index. */
int ckpt_no_weights(const char *dir, const struct ckpt_files *f, struct err *e);

/* What the config files say of quantization. */
struct ckpt_quant {
    char what[192]; /* "GPTQ-quantized (4 bits, groups of 128)"; "" = none */
    const char *where;
};
int ckpt_quant_words(const char *dir, const struct ckpt_files *f,
                     const struct js_node *config, struct ckpt_quant *q,
                     struct err *e) ATTR_MUST_USE;
/* A tensor name that only quantized or patched weights have: "x.qweight".
 * NULL, or what it means; *base is the length of the "x" in front. */
struct ckpt_sign {
    const char *marker, *what, *cure;
};
const struct ckpt_sign *ckpt_sign_of(const char *name, size_t *base);
/* The sentence. `tensor` and `sign` may be NULL; `also` may hold a second
 * reason (an unsupported family). */
int ckpt_refuse_quant(const char *dir, const struct ckpt_quant *q,
                      const struct ckpt_sign *sign, const char *tensor,
                      const struct err *also, struct err *e);

/* The tensor is the output head, whatever its prefix. */
bool ckpt_is_head(const char *name);

/* Declares, matches, judges: fills c->ledger. Without c->st it only
 * declares. */
int ledger_build(struct ckpt *c, const struct ckpt_quant *q,
                 struct err *e) ATTR_MUST_USE;
void ledger_release(struct ledger *l);
const struct need *ledger_find(const struct ledger *l, const char *name);
/* The skipped output head of a tied checkpoint, or NULL. */
const struct st_tensor *ledger_spare_head(const struct ckpt *c);

#endif
