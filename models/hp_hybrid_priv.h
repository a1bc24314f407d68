/*
 * Config tables, tensors and parameter counts of Qwen3.5, whose layers are
 * Gated DeltaNet or gated softmax attention, with one MLP or a mixture of
 * experts.
 */
#ifndef MODELS_HP_HYBRID_PRIV_H
#define MODELS_HP_HYBRID_PRIV_H

#include "models/hparams_priv.h"

/* For model_arch.parse; takes both families and holds each to its own
 * model_type. */
int hp_parse_qwen3_5(struct hp_reader *r, struct hparams *hp, struct err *e);
/*
 * For model_arch.needs and .count. Experts are declared stacked:
 * "layers.N.mlp.experts.gate_up_proj" [experts, 2 * moe_intermediate, hidden]
 * (the gate's rows first) and ".down_proj" [experts, hidden,
 * moe_intermediate]; they may be stored one by one.
 */
int needs_hybrid(const struct hparams *hp, struct ledger *l, struct err *e);
uint64_t count_hybrid(const struct hparams *hp);
/* For model_arch.layout: tells published weights from other tools' rewrites
 * by the shape of the convolutions and the means of the norms. */
int layout_hybrid(struct ckpt *c, struct err *e);

/* Channels of the convolution: queries, keys, values. */
int64_t hp_conv_channels(const struct hparams *hp);

#endif
