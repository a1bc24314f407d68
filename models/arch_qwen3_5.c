/*
 * Qwen3.5 / 3.6 / 3.8, dense and mixture of experts: three of four layers are
 * Gated DeltaNet, every fourth is attention with an output gate; zero-centred
 * norms; partial RoPE.
 */
#include <stdio.h>
#include <string.h>

#include "models/hp_hybrid_priv.h"
#include "models/oracle_priv.h"
#include "models/parts.h"
#include "models/parts_gdn.h"

static int64_t count_linear(const struct hparams *hp)
{
    return hp->layers - parts_attention_layers(hp);
}

/* Numbers of the layers of one kind, for meta.yaml. */
static int list_layers(const struct hparams *hp, int kind, struct state_desc *s)
{
    struct err e = ERR_INIT;

    s->layers = mem_alloc((size_t)hp->layers, sizeof(*s->layers), &e);
    if (!s->layers)
        return -1;
    for (int64_t i = 0; i < hp->layers; i++)
        if (hp->layer_kind[i] == kind)
            s->layers[s->n_layers++] = i;
    return 0;
}

static int hybrid_states(const struct hparams *hp, int64_t ctx,
                         struct state_desc out[MAX_STATES])
{
    int n = parts_kv_state(hp, ctx, out);
    int64_t linear = count_linear(hp);

    memset(&out[1], 0, 2 * sizeof(out[0]));
    snprintf(out[1].name, sizeof(out[1].name), "%s", GDN_STATE);
    snprintf(out[2].name, sizeof(out[2].name), "%s", CONV_STATE);
    out[1].rank = out[2].rank = 3;
    gdn_state_dims(hp, linear, out[1].dims, out[2].dims);
    if (list_layers(hp, HP_LAYER_FULL, &out[0]) ||
        list_layers(hp, HP_LAYER_LINEAR, &out[1]) ||
        list_layers(hp, HP_LAYER_LINEAR, &out[2]))
        return n; /* the lists are for people: without memory, none */
    return 3;
}

/* ---- mixture of experts, evaluated densely ---- */

static mil_ref keep_max(struct mb *b, mil_ref x)
{
    return MB(b, reduce_max, .x = x, .axes = MB_INTS(b, 1),
              .keep_dims = mb_bool(b, true));
}

/* Weights of all experts [1, E, 1, T]: the top k of the softmax, divided by
 * their sum; 0 for the others. The threshold is found by k - 1 rounds of
 * taking the largest away. */
static mil_ref route(struct mb *b, const struct graph *g, int64_t layer,
                     mil_ref in)
{
    struct weight_spec s = { .role = MIL_ROLE_NORM };
    mil_ref p = parts_project(b, g, layer, "mlp.gate", false, s, in);
    mil_ref zero = mb_f16(b, 0.0), rest, sum;

    p = MB(b, softmax, .x = p, .axis = mb_int(b, 1));
    rest = p;
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

static mil_ref experts(struct mb *b, const struct graph *g, int64_t layer,
                       struct weight_spec s, const char *name, mil_ref x)
{
    char t[128];

    s.role = MIL_ROLE_PROJECTION;
    s.conv = true;
    snprintf(t, sizeof(t), "layers.%lld.mlp.experts.%s", (long long)layer,
             name);
    s.tensor = t;
    return mb_conv1x1(b, x, parts_weight(b, g, &s), 0);
}

static mil_ref silu_times(struct mb *b, mil_ref half, mil_ref up)
{
    return MB(b, mul, .x = parts_silu_of_half(b, half), .y = up);
}

/* Three wide convolutions over all experts; each expert's part is weighted
 * before the last. */
static mil_ref routed(struct mb *b, const struct graph *g, int64_t layer,
                      mil_ref in)
{
    const struct hparams *hp = g->hp;
    uint64_t I = (uint64_t)hp->moe_intermediate;
    int32_t E = (int32_t)hp->experts, T = (int32_t)mb_dim(b, in, 3);
    struct weight_spec gate = { .block = 2 * I, .take = I, .scale_exp = -1 };
    struct weight_spec up = { .block = 2 * I, .take = I, .skip = I };
    struct weight_spec down = { .wide = true };
    mil_ref w = route(b, g, layer, in), h, v;

    h = experts(b, g, layer, gate, "gate_up_proj", in);
    v = experts(b, g, layer, up, "gate_up_proj", in);
    h = silu_times(b, h, v);
    h = MB_RESHAPE(b, h, 1, E, (int32_t)I, T);
    h = MB(b, mul, .x = h, .y = w);
    h = MB_RESHAPE(b, h, 1, E * (int32_t)I, 1, T);
    return experts(b, g, layer, down, "down_proj", h);
}

/* sigmoid(W_sg x) times the expert that every token has. */
static mil_ref shared_expert(struct mb *b, const struct graph *g, int64_t layer,
                             mil_ref in)
{
    struct weight_spec half = { .scale_exp = -1 }, plain = { 0 };
    struct weight_spec sg = { .role = MIL_ROLE_NORM, .scale_exp = -1 };
    mil_ref h, s;

    h = parts_project(b, g, layer, "mlp.shared_expert.gate_proj", false, half,
                      in);
    s = parts_project(b, g, layer, "mlp.shared_expert.up_proj", false, plain,
                      in);
    h = silu_times(b, h, s);
    /* 1 + tanh is twice the sigmoid: the half is in W_down. */
    h = parts_project(b, g, layer, "mlp.shared_expert.down_proj", false, half,
                      h);
    s = parts_project(b, g, layer, "mlp.shared_expert_gate", false, sg, in);
    s = MB(b, add, .x = MB(b, tanh, .x = s), .y = mb_f16(b, 1.0));
    return MB(b, mul, .x = h, .y = s);
}

static mil_ref mlp(struct mb *b, const struct graph *g, int64_t layer,
                   mil_ref x)
{
    mil_ref in;

    if (!g->hp->experts)
        return parts_silu_mlp(b, g, layer, x);
    in = parts_to_conv(b, x);
    return parts_from_conv(b, MB(b, add, .x = routed(b, g, layer, in),
                                 .y = shared_expert(b, g, layer, in)));
}

/* ---- decoder ---- */

/* Adds one element of a state times zero: every chunk must use every state
 * that it declares. */
static mil_ref touch(struct mb *b, mil_ref content, mil_ref x)
{
    struct mil_type t = mb_type(b, content);
    int32_t zeros[MIL_MAX_RANK] = { 0 }, ones[MIL_MAX_RANK];
    mil_ref one;

    if (!t.rank)
        return 0;
    for (int i = 0; i < t.rank; i++)
        ones[i] = 1;
    one = MB(b, slice_by_size, .x = content,
             .begin = mb_ints(b, (size_t)t.rank, zeros),
             .size = mb_ints(b, (size_t)t.rank, ones));
    one = MB_RESHAPE(b, one, 1, 1, 1);
    return MB(b, add, .x = x, .y = MB(b, mul, .x = one, .y = mb_f16(b, 0.0)));
}

static void begin_gdn(struct mb *b, const struct graph *g, struct gdn *s)
{
    int64_t memory[3], history[3];

    gdn_state_dims(g->hp, count_linear(g->hp), memory, history);
    s->state = mb_state(b, GDN_STATE, 3, memory);
    s->conv = mb_state(b, CONV_STATE, 3, history);
    s->memory = MB(b, read_state, .input = s->state);
    s->history = MB(b, read_state, .input = s->conv);
}

/* How many layers of its kind come before layer l. */
static int64_t index_of(const struct hparams *hp, int64_t l)
{
    int64_t n = 0;

    for (int64_t i = 0; i < l; i++)
        n += hp->layer_kind[i] == hp->layer_kind[l];
    return n;
}

static mil_ref layer(struct mb *b, const struct graph *g, struct decoder *d,
                     struct gdn *s, int64_t l, mil_ref x)
{
    const struct hparams *hp = g->hp;
    bool full = hp->layer_kind[l] == HP_LAYER_FULL;
    char t[128];
    mil_ref y;

    snprintf(t, sizeof(t), "layers.%lld.input_layernorm.weight", (long long)l);
    y = parts_rms_norm(b, g, x, t);
    y = full ? parts_attention(b, g, d, l, index_of(hp, l), y, true)
             : gdn_mixer(b, g, s, l, index_of(hp, l), gdn_chunk(g->tokens), y);
    x = MB(b, add, .x = x, .y = y);
    if (g->last_chunk && l == g->first_layer + g->n_layers - 1)
        x = parts_last_token(b, g, x);
    snprintf(t, sizeof(t), "layers.%lld.post_attention_layernorm.weight",
             (long long)l);
    return MB(b, add, .x = x, .y = mlp(b, g, l, parts_rms_norm(b, g, x, t)));
}

static void hybrid_chunk(struct mb *b, const struct graph *g)
{
    bool full = false, linear = false;
    struct decoder d;
    struct gdn s;
    mil_ref x;

    parts_decoder_begin(b, g, &d, &x);
    begin_gdn(b, g, &s);
    for (int64_t i = 0; i < g->n_layers; i++) {
        int64_t l = g->first_layer + i;

        full = full || g->hp->layer_kind[l] == HP_LAYER_FULL;
        linear = linear || g->hp->layer_kind[l] == HP_LAYER_LINEAR;
        mb_scope(b, "layers_%lld", (long long)l);
        x = layer(b, g, &d, &s, l, x);
        mb_leave(b);
    }
    if (!full)
        x = touch(b, d.cache, x);
    if (!linear)
        x = touch(b, s.history, touch(b, s.memory, x));
    parts_decoder_end(b, g, x);
}

static const char *const types[] = { "qwen3_5", "qwen3_5_text", "qwen3_5_moe",
                                     "qwen3_5_moe_text", NULL };
static const char *const classes[] = { "Qwen3_5ForConditionalGeneration",
                                       "Qwen3_5ForCausalLM",
                                       "Qwen3_5MoeForConditionalGeneration",
                                       "Qwen3_5MoeForCausalLM", NULL };
static const char *const ignore[] = { "rotary_emb.inv_freq", "visual", "mtp",
                                      NULL };

const struct model_arch arch_qwen3_5 = {
    .name = "qwen3_5",
    .model_types = types,
    .architectures = classes,
    .prefix = "qwen35",
    .tokenizer_class = "Qwen2Tokenizer",
    .head_parts = 16,
    .parse = hp_parse_qwen3_5,
    .needs = needs_hybrid,
    .ignore = ignore,
    .layout = layout_hybrid,
    .count = count_hybrid,
    .states = hybrid_states,
    .embeddings = parts_embeddings,
    .chunk = hybrid_chunk,
    .head = parts_lm_head,
    .oracle = &oracle_qwen3_5,
};
