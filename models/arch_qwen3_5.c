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
#include "models/parts_moe.h"

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

static int hybrid_states(const struct hparams *hp, int64_t ctx, int64_t batch,
                         struct state_desc out[MAX_STATES])
{
    int n = parts_kv_state(hp, ctx, batch, out);
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

/* ---- mixture of experts ---- */

/* The router stays fp16: a palette would flip choices. */
static mil_ref routed(struct mb *b, const struct graph *g, int64_t layer,
                      mil_ref in)
{
    struct weight_spec s = { .role = MIL_ROLE_NORM };
    mil_ref w = parts_project(b, g, layer, "mlp.gate", false, s, in);

    w = moe_route(b, g, w);
    return moe_experts(b, g, layer, "mlp.experts", parts_silu_of_half, w,
                       g->stream_exp, in);
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
    h = parts_silu_of_half(b, h);
    h = MB(b, mul, .x = h, .y = s);
    /* 1 + tanh is twice the sigmoid: the half is in W_down. */
    half.scale_exp += g->stream_exp;
    h = parts_project(b, g, layer, "mlp.shared_expert.down_proj", false, half,
                      h);
    s = parts_project(b, g, layer, "mlp.shared_expert_gate", false, sg, in);
    s = MB(b, add, .x = MB(b, tanh, .x = s), .y = mb_f16(b, 1.0));
    return MB(b, mul, .x = h, .y = s);
}

static mil_ref mlp(struct mb *b, const struct graph *g, int64_t layer,
                   mil_ref x)
{
    mil_ref in, y;

    if (!g->hp->experts)
        return parts_silu_mlp(b, g, layer, x);
    in = parts_to_conv(b, x);
    x = routed(b, g, layer, in);
    y = shared_expert(b, g, layer, in);
    return parts_from_conv(b, MB(b, add, .x = x, .y = y));
}

/* ---- decoder ---- */

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
        x = parts_touch(b, d.kv.now, x);
    if (!linear)
        x = parts_touch(b, s.history, parts_touch(b, s.memory, x));
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
    .scales_stream = true,
    .count = count_hybrid,
    .states = hybrid_states,
    .embeddings = parts_embeddings,
    .chunk = hybrid_chunk,
    .head = parts_lm_head,
    .oracle = &oracle_qwen3_5,
};
