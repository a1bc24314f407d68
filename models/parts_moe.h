/*
 * Mixtures of experts, evaluated densely: every expert computes every token in
 * wide convolutions, and those that the router did not choose count zero.
 */
#ifndef MODELS_PARTS_MOE_H
#define MODELS_PARTS_MOE_H

#include "models/parts.h"

/* Weights of all experts [1, E, 1, T] from the router's logits [1, E, 1, T]:
 * the top experts_per_token of the softmax, divided by their sum; 0 for the
 * others. */
mil_ref moe_route(struct mb *b, const struct graph *g, mil_ref logits);
/* sum_e w_e W_down_e(act(W_gate_e x) * W_up_e x), times 2^scale_exp, on
 * [1, H, 1, T]. `experts` ("mlp.experts") holds the layer's stacked
 * gate_up_proj and down_proj; `act` takes half of its argument. */
mil_ref moe_experts(struct mb *b, const struct graph *g, int64_t layer,
                    const char *experts,
                    mil_ref (*act)(struct mb *b, mil_ref half), mil_ref w,
                    int scale_exp, mil_ref in);

#endif
