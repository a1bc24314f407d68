/*
 * Mixtures of experts; see parts_moe.h.
 */
#include "models/parts_moe.h"

#include <stdio.h>

static mil_ref keep_max(struct mb *b, mil_ref x)
{
    return MB(b, reduce_max, .x = x, .axes = MB_INTS(b, 1),
              .keep_dims = mb_bool(b, true));
}

/* The threshold is found by k - 1 rounds of taking the largest away. */
mil_ref moe_route(struct mb *b, const struct graph *g, mil_ref logits)
{
    mil_ref p = MB(b, softmax, .x = logits, .axis = mb_int(b, 1));
    mil_ref zero = mb_f16(b, 0.0), rest = p, sum;

    for (int64_t i = 1; i < g->hp->experts_per_token; i++) {
        mil_ref top = MB(b, less, .x = rest, .y = keep_max(b, rest));

        rest = MB(b, select, .cond = top, .a = rest, .b = zero);
    }
    p = MB(b, select,
           .cond = MB(b, greater_equal, .x = p, .y = keep_max(b, rest)), .a = p,
           .b = zero);
    sum = MB(b, reduce_sum, .x = p, .axes = MB_INTS(b, 1),
             .keep_dims = mb_bool(b, true));
    return MB(b, real_div, .x = p, .y = sum);
}

static mil_ref wide(struct mb *b, const struct graph *g, int64_t layer,
                    struct weight_spec s, const char *experts, const char *name,
                    mil_ref x)
{
    char t[128];

    s.role = MIL_ROLE_PROJECTION;
    s.conv = true;
    snprintf(t, sizeof(t), "layers.%lld.%s.%s", (long long)layer, experts,
             name);
    s.tensor = t;
    return mb_conv1x1(b, x, parts_weight(b, g, &s), 0);
}

/* Three wide convolutions over all experts; each expert's part is weighted
 * before the last. */
mil_ref moe_experts(struct mb *b, const struct graph *g, int64_t layer,
                    const char *experts,
                    mil_ref (*act)(struct mb *b, mil_ref half), mil_ref w,
                    int scale_exp, mil_ref in)
{
    const struct hparams *hp = g->hp;
    uint64_t I = (uint64_t)hp->moe_intermediate;
    int32_t E = (int32_t)hp->experts, T = (int32_t)mb_dim(b, in, 3);
    struct weight_spec gate = { .block = 2 * I, .take = I, .scale_exp = -1 };
    struct weight_spec up = { .block = 2 * I, .take = I, .skip = I };
    struct weight_spec down = { .wide = true, .scale_exp = scale_exp };
    mil_ref h = wide(b, g, layer, gate, experts, "gate_up_proj", in), v;

    v = wide(b, g, layer, up, experts, "gate_up_proj", in);
    h = act(b, h);
    h = MB(b, mul, .x = h, .y = v);
    h = MB_RESHAPE(b, h, 1, E, (int32_t)I, T);
    h = MB(b, mul, .x = h, .y = w);
    h = MB_RESHAPE(b, h, 1, E * (int32_t)I, 1, T);
    return wide(b, g, layer, down, experts, "down_proj", h);
}
