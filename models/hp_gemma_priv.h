/*
 * Config tables, tensors and parameter counts of Gemma 3 and Gemma 4 (text):
 * layers with a sliding window between layers that see everything, norms on
 * both ends of each branch.
 */
#ifndef MODELS_HP_GEMMA_PRIV_H
#define MODELS_HP_GEMMA_PRIV_H

#include "models/hparams_priv.h"

/* For model_arch.parse. */
int hp_parse_gemma3(struct hp_reader *r, struct hparams *hp, struct err *e);
int hp_parse_gemma4(struct hp_reader *r, struct hparams *hp, struct err *e);
/* For model_arch.needs and .count. */
int needs_gemma3(const struct hparams *hp, struct ledger *l, struct err *e);
int needs_gemma4(const struct hparams *hp, struct ledger *l, struct err *e);
uint64_t count_gemma3(const struct hparams *hp);
uint64_t count_gemma4(const struct hparams *hp);
/* For model_arch.spare: keys and values of layers that read another's. */
const char *spare_gemma4(const struct hparams *hp, const char *name);
/* For model_arch.layout: rounds the scales of the embeddings to the dtype of
 * their tables, as transformers does. */
int layout_gemma(struct ckpt *c, struct err *e);

#endif
