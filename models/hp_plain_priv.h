/*
 * Config tables, tensors and parameter counts of the plain transformers:
 * one attention kind, one MLP kind, no per-layer differences.
 */
#ifndef MODELS_HP_PLAIN_PRIV_H
#define MODELS_HP_PLAIN_PRIV_H

#include "models/hparams_priv.h"

int hp_parse_qwen3(struct hp_reader *r, struct hparams *hp, struct err *e);
int hp_parse_llama(struct hp_reader *r, struct hparams *hp, struct err *e);
/* For model_arch.needs and .count; per-head norms by hp->qk_norm, biases by
 * hp->attention_bias and hp->mlp_bias, lm_head when untied. */
int needs_plain(const struct hparams *hp, struct ledger *l, struct err *e);
uint64_t count_plain(const struct hparams *hp);

#endif
