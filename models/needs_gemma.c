/*
 * The tensors of Gemma 3 and Gemma 4, how many parameters that makes, and
 * what their files hold besides.
 */
#include "models/hp_gemma_priv.h"

#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"

static void vector(struct layer_needs *n, const char *name, int64_t width)
{
    layer_need(n, name, 1, width, 0, 0);
}

static void matrix(struct layer_needs *n, const char *name, int64_t out,
                   int64_t in)
{
    layer_need(n, name, 2, out, in, 0);
}

/* In a full layer of a model whose values are its keys. */
static bool has_values(const struct hparams *hp, int64_t layer)
{
    return !hp->k_eq_v || hp->layer_kind[layer] != HP_LAYER_FULL;
}

static bool has_keys(const struct hparams *hp, int64_t layer)
{
    return hp_layer_kv_source(hp, layer) == layer;
}

static void need_attention(struct layer_needs *n, const struct hparams *hp)
{
    int64_t d = hp_layer_head_dim(hp, n->layer), q = hp->heads * d;
    int64_t kv = hp_layer_kv_heads(hp, n->layer) * d;

    matrix(n, "self_attn.q_proj.weight", q, hp->hidden);
    vector(n, "self_attn.q_norm.weight", d);
    if (has_keys(hp, n->layer)) {
        matrix(n, "self_attn.k_proj.weight", kv, hp->hidden);
        vector(n, "self_attn.k_norm.weight", d);
        if (has_values(hp, n->layer))
            matrix(n, "self_attn.v_proj.weight", kv, hp->hidden);
    }
    matrix(n, "self_attn.o_proj.weight", hp->hidden, q);
}

static void need_mlp(struct layer_needs *n, const struct hparams *hp)
{
    int64_t inner = hp_layer_intermediate(hp, n->layer);

    matrix(n, "mlp.gate_proj.weight", inner, hp->hidden);
    matrix(n, "mlp.up_proj.weight", inner, hp->hidden);
    matrix(n, "mlp.down_proj.weight", hp->hidden, inner);
}

static void need_experts(struct layer_needs *n, const struct hparams *hp)
{
    int64_t inner = hp->moe_intermediate;

    vector(n, "post_feedforward_layernorm_1.weight", hp->hidden);
    vector(n, "pre_feedforward_layernorm_2.weight", hp->hidden);
    vector(n, "router.scale", hp->hidden);
    matrix(n, "router.proj.weight", hp->experts, hp->hidden);
    vector(n, "router.per_expert_scale", hp->experts);
    layer_need(n, "experts.gate_up_proj", 3, hp->experts, 2 * inner,
               hp->hidden);
    layer_need(n, "experts.down_proj", 3, hp->experts, hp->hidden, inner);
    vector(n, "post_feedforward_layernorm_2.weight", hp->hidden);
}

static void need_per_layer(struct layer_needs *n, const struct hparams *hp)
{
    matrix(n, "per_layer_input_gate.weight", hp->ple_width, hp->hidden);
    matrix(n, "per_layer_projection.weight", hp->hidden, hp->ple_width);
    vector(n, "post_per_layer_input_norm.weight", hp->hidden);
}

/* What both families have. */
static void need_block(struct layer_needs *n, const struct hparams *hp)
{
    vector(n, "input_layernorm.weight", hp->hidden);
    need_attention(n, hp);
    vector(n, "post_attention_layernorm.weight", hp->hidden);
    vector(n, "pre_feedforward_layernorm.weight", hp->hidden);
    need_mlp(n, hp);
    vector(n, "post_feedforward_layernorm.weight", hp->hidden);
}

static int need_table(const struct hparams *hp, struct ledger *l, struct err *e)
{
    uint64_t table[2] = { (uint64_t)hp->vocab, (uint64_t)hp->hidden };

    return ledger_need(l, e, 2, table, "embed_tokens.weight");
}

static int need_end(const struct hparams *hp, struct ledger *l, struct err *e)
{
    uint64_t table[2] = { (uint64_t)hp->vocab, (uint64_t)hp->hidden };

    if (ledger_need(l, e, 1, table + 1, "norm.weight"))
        return -1;
    return hp->tied ? 0 : ledger_need(l, e, 2, table, "lm_head.weight");
}

int needs_gemma3(const struct hparams *hp, struct ledger *l, struct err *e)
{
    if (need_table(hp, l, e))
        return -1;
    for (int64_t i = 0; i < hp->layers; i++) {
        struct layer_needs n = { .l = l, .e = e, .layer = (int)i };

        need_block(&n, hp);
        if (n.failed)
            return -1;
    }
    return need_end(hp, l, e);
}

static int need_ple(const struct hparams *hp, struct ledger *l, struct err *e)
{
    uint64_t all = (uint64_t)(hp->layers * hp->ple_width);
    uint64_t table[2] = { (uint64_t)hp->ple_vocab, all };
    uint64_t proj[2] = { all, (uint64_t)hp->hidden };
    uint64_t norm[1] = { (uint64_t)hp->ple_width };

    if (!hp->ple_width)
        return 0;
    if (ledger_need(l, e, 2, table, "embed_tokens_per_layer.weight") ||
        ledger_need(l, e, 2, proj, "per_layer_model_projection.weight"))
        return -1;
    return ledger_need(l, e, 1, norm, "per_layer_projection_norm.weight");
}

int needs_gemma4(const struct hparams *hp, struct ledger *l, struct err *e)
{
    if (need_table(hp, l, e) || need_ple(hp, l, e))
        return -1;
    for (int64_t i = 0; i < hp->layers; i++) {
        struct layer_needs n = { .l = l, .e = e, .layer = (int)i };

        need_block(&n, hp);
        if (hp->experts)
            need_experts(&n, hp);
        if (hp->ple_width)
            need_per_layer(&n, hp);
        vector(&n, "layer_scalar", 1);
        if (n.failed)
            return -1;
    }
    return need_end(hp, l, e);
}

/* Original uploads hold these tensors for all layers, re-saved ones do not;
 * nobody reads them. */
const char *spare_gemma4(const struct hparams *hp, const char *name)
{
    static const char *const parts[] = { "k_proj.weight", "v_proj.weight",
                                         "k_norm.weight", "v_norm.weight" };
    static const char stem[] = ".self_attn.";
    const char *tail = strstr(name, stem);
    uint64_t layer;

    if (strncmp(name, "layers.", 7) || !tail ||
        !num_parse_u64(name + 7, (size_t)(tail - name - 7), &layer) ||
        layer >= (uint64_t)hp->layers || has_keys(hp, (int64_t)layer))
        return NULL;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(tail + sizeof stem - 1, parts[i]))
            return "keys and values of layers that share them";
    return NULL;
}

/* ---- scales ---- */

static double rounded_to(enum st_dtype d, double x)
{
    if (d == ST_BF16)
        return (double)bf16_to_f32(f32_to_bf16((float)x));
    return d == ST_F16 ? (double)f16_to_f32(f32_to_f16((float)x)) : x;
}

int layout_gemma(struct ckpt *c, struct err *e)
{
    const struct st_tensor *table = ckpt_tensor(c, "embed_tokens.weight");
    const struct st_tensor *ple =
        ckpt_tensor(c, "embed_tokens_per_layer.weight");

    (void)e;
    if (table)
        c->hp.embed_scale = rounded_to(table->dtype, c->hp.embed_scale);
    if (ple)
        c->hp.ple_scale = rounded_to(ple->dtype, c->hp.ple_scale);
    return 0;
}

/* ---- counting ---- */

static uint64_t count_block(const struct hparams *hp, int64_t layer)
{
    uint64_t H = (uint64_t)hp->hidden, nq = (uint64_t)hp->heads,
             d = (uint64_t)hp_layer_head_dim(hp, layer),
             kl = (uint64_t)hp_layer_kv_heads(hp, layer),
             I = (uint64_t)hp_layer_intermediate(hp, layer);
    uint64_t n = 2 * H * nq * d + d + 3 * H * I + 4 * H;

    if (has_keys(hp, layer))
        n += (has_values(hp, layer) ? 2 : 1) * H * kl * d + d;
    return n;
}

static uint64_t count_ends(const struct hparams *hp)
{
    uint64_t V = (uint64_t)hp->vocab, H = (uint64_t)hp->hidden;

    return V * H * (hp->tied ? 1 : 2) + H;
}

uint64_t count_gemma3(const struct hparams *hp)
{
    uint64_t n = count_ends(hp);

    for (int64_t i = 0; i < hp->layers; i++)
        n += count_block(hp, i);
    return n;
}

uint64_t count_gemma4(const struct hparams *hp)
{
    uint64_t H = (uint64_t)hp->hidden, E = (uint64_t)hp->experts,
             P = (uint64_t)hp->ple_width, L = (uint64_t)hp->layers;
    uint64_t n = count_ends(hp), extra = 1;

    if (P) {
        n += (uint64_t)hp->ple_vocab * L * P + L * P * H + P;
        extra += 2 * H * P + H;
    }
    if (E)
        extra +=
            E * H + H + E + 3 * E * (uint64_t)hp->moe_intermediate * H + 3 * H;
    for (int64_t i = 0; i < hp->layers; i++)
        n += count_block(hp, i) + extra;
    return n;
}
