/*
 * Qwen3.5, dense and mixture of experts: what their configs may say, which
 * tensors they consist of and how many parameters that makes. Class defaults
 * are transformers'.
 *
 * Keys that other tools read and the model does not (mtp_*, mamba_ssm_dtype,
 * router losses) are passed over. Keys that would change what is computed
 * are refused unless they say what is computed anyway.
 */
#include "models/hp_hybrid_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FIELD(member) offsetof(struct hparams, member)
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Far above any model, and small enough that no product overflows. */
#define MAX_VOCAB (1 << 28)
#define MAX_WIDTH (1 << 20)
#define MAX_INNER (1 << 24)
#define MAX_HEADS (1 << 16)
#define MAX_CHANNELS (1 << 22)
#define MAX_TAPS 64
#define MAX_EXPERTS (1 << 16)
#define MAX_POSITIONS 9007199254740992.0

/* Absent: the class default; null: an error in transformers too. */
#define SIZE_FROM(key, member, def, min, max)                          \
    {                                                                  \
        key, HP_INT, FIELD(member), HP_CLASS, HP_ASK, def, min, max, 0 \
    }
#define SIZE(key, member, def, max) SIZE_FROM(key, member, def, 1, max)
#define EPS(def)                                                               \
    {                                                                          \
        "rms_norm_eps", HP_REAL, FIELD(rms_eps), HP_CLASS, HP_ASK, def, 1e-30, \
            1, 0                                                               \
    }
#define WORD(key, word)                                  \
    {                                                    \
        key, HP_WORD, 0, HP_CLASS, HP_ASK, 0, 0, 0, word \
    }
#define COMMON                                                                \
    SIZE("vocab_size", vocab, 248320, MAX_VOCAB),                             \
        SIZE("head_dim", head_dim, 256, MAX_HEADS),                           \
        SIZE("max_position_embeddings", max_positions, 32768, MAX_POSITIONS), \
        EPS(1e-6), WORD("hidden_act", "silu"),                                \
        SIZE_FROM("linear_conv_kernel_dim", conv_kernel, 4, 2, MAX_TAPS),     \
        SIZE("linear_key_head_dim", lin_key_dim, 128, MAX_HEADS),             \
        SIZE("linear_value_head_dim", lin_value_dim, 128, MAX_HEADS),         \
        SIZE("linear_num_key_heads", lin_key_heads, 16, MAX_HEADS),           \
        SIZE("linear_num_value_heads", lin_value_heads, 32, MAX_HEADS)

static const struct hp_row dense_rows[] = {
    COMMON,
    SIZE("hidden_size", hidden, 4096, MAX_WIDTH),
    SIZE("intermediate_size", intermediate, 12288, MAX_INNER),
    SIZE("num_hidden_layers", layers, 32, HP_MAX_LAYERS),
    SIZE("num_attention_heads", heads, 16, MAX_HEADS),
    SIZE("num_key_value_heads", kv_heads, 4, MAX_HEADS),
};

static const struct hp_row moe_rows[] = {
    COMMON,
    SIZE("hidden_size", hidden, 2048, MAX_WIDTH),
    SIZE("num_hidden_layers", layers, 40, HP_MAX_LAYERS),
    SIZE("num_attention_heads", heads, 16, MAX_HEADS),
    SIZE("num_key_value_heads", kv_heads, 2, MAX_HEADS),
    SIZE("num_experts", experts, 256, MAX_EXPERTS),
    SIZE("num_experts_per_tok", experts_per_token, 8, MAX_EXPERTS),
    SIZE("moe_intermediate_size", moe_intermediate, 512, MAX_INNER),
    SIZE("shared_expert_intermediate_size", shared_intermediate, 512,
         MAX_INNER),
};

/* A flag that may only have one value; absent and null are that value. */
static int only_flag(const struct hp_reader *r, const struct hparams *hp,
                     const char *key, bool only, struct err *e)
{
    const struct js_node *n = hp_value(r->text, key);
    bool v;

    if (!n)
        return 0;
    if (!js_bool(n, &v))
        return hp_type_error(n, key, "true or false", e);
    if (v != only)
        return err_set(e, ERR_UNSUPPORTED,
                       "'%s' is %s; %s is computed with %s only", key,
                       v ? "true" : "false", hp->model_type,
                       only ? "true" : "false");
    return 0;
}

/* Newer configs name the gate's activation; both words mean SiLU. */
static int check_gate_type(const struct hp_reader *r, struct err *e)
{
    const struct js_node *n = hp_value(r->text, "output_gate_type");
    char t[HP_CLEAN_MAX];
    const char *s;

    if (!n)
        return 0;
    if (!js_string(n, &s))
        return hp_type_error(n, "output_gate_type", "a string", e);
    if (strcmp(s, "swish") && strcmp(s, "silu"))
        return err_set(e, ERR_UNSUPPORTED,
                       "output_gate_type '%s' is not computed, only 'swish' "
                       "and 'silu' are",
                       hp_clean(t, s));
    return 0;
}

static int check_mlp_only(const struct hp_reader *r, const struct hparams *hp,
                          struct err *e)
{
    const struct js_node *n = hp_value(r->text, "mlp_only_layers");

    if (!n)
        return 0;
    if (js_kind(n) != JS_ARRAY)
        return hp_type_error(n, "mlp_only_layers", "an array", e);
    if (js_count(n))
        return err_set(e, ERR_UNSUPPORTED,
                       "'mlp_only_layers' names %zu layers; all layers of %s "
                       "have the same kind of MLP",
                       js_count(n), hp->model_type);
    return 0;
}

static int check_variants(const struct hp_reader *r, const struct hparams *hp,
                          struct err *e)
{
    if (only_flag(r, hp, "attn_output_gate", true, e) ||
        only_flag(r, hp, "attention_bias", false, e) ||
        only_flag(r, hp, "use_sliding_window", false, e) ||
        only_flag(r, hp, "norm_topk_prob", true, e))
        return -1;
    return check_gate_type(r, e) || check_mlp_only(r, hp, e) ? -1 : 0;
}

/* Which layers are what: layer_types, else every interval-th is full. */
static int read_interval(const struct hp_reader *r, struct hparams *hp,
                         struct err *e)
{
    static const struct hp_row row = {
        "full_attention_interval",
        HP_INT,
        FIELD(layers),
        HP_CLASS,
        HP_ASK,
        4,
        1,
        HP_MAX_LAYERS,
        0,
    };
    struct hparams t = { 0 }; /* t.layers: the interval */

    if (hp_read_rows(r, &row, 1, &t, e))
        return -1;
    for (int64_t i = 0; i < hp->layers; i++)
        hp->layer_kind[i] =
            (i + 1) % t.layers ? HP_LAYER_LINEAR : HP_LAYER_FULL;
    return 0;
}

static int read_layer_types(const struct hp_reader *r, struct hparams *hp,
                            struct err *e)
{
    static const struct hp_layer_word words[] = {
        { "full_attention", HP_LAYER_FULL },
        { "linear_attention", HP_LAYER_LINEAR },
    };
    int listed = hp_read_layer_types(r, hp, words, 2, hp->layer_kind, e);

    if (listed < 0)
        return -1;
    return listed ? 0 : read_interval(r, hp, e);
}

/* The caches and states of a package presume both kinds. */
static int check_layers(const struct hparams *hp, struct err *e)
{
    int64_t linear = 0;

    for (int64_t i = 0; i < hp->layers; i++)
        linear += hp->layer_kind[i] == HP_LAYER_LINEAR;
    if (!linear || linear == hp->layers)
        return err_set(e, ERR_UNSUPPORTED,
                       "all %" PRId64 " layers are %s; %s is computed with "
                       "layers of both kinds",
                       hp->layers,
                       linear ? "linear_attention" : "full_attention",
                       hp->model_type);
    return 0;
}

int64_t hp_conv_channels(const struct hparams *hp)
{
    return 2 * hp->lin_key_heads * hp->lin_key_dim +
           hp->lin_value_heads * hp->lin_value_dim;
}

static int check_linear(const struct hparams *hp, struct err *e)
{
    if (hp->lin_value_heads % hp->lin_key_heads)
        return err_set(e, ERR_INPUT,
                       "linear_num_value_heads %" PRId64 " is not a multiple "
                       "of linear_num_key_heads %" PRId64,
                       hp->lin_value_heads, hp->lin_key_heads);
    if (hp_conv_channels(hp) > MAX_CHANNELS)
        return err_set(e, ERR_INPUT,
                       "the linear heads make %" PRId64 " channels of "
                       "convolution, at most %d are computed",
                       hp_conv_channels(hp), MAX_CHANNELS);
    return 0;
}

static int check_experts(const struct hparams *hp, struct err *e)
{
    if (hp->experts_per_token > hp->experts)
        return err_set(e, ERR_INPUT,
                       "num_experts_per_tok %" PRId64 " is more than the "
                       "%" PRId64 " of num_experts",
                       hp->experts_per_token, hp->experts);
    return 0;
}

/* "qwen3_5_moe" tells of experts, at both levels alike. */
static int check_names(const struct hp_reader *r, const struct hparams *hp,
                       bool moe, struct err *e)
{
    const char *outer;

    if (js_string(hp_value(r->outer, "model_type"), &outer) &&
        (strstr(outer, "_moe") != NULL) != moe)
        return err_set(e, ERR_UNSUPPORTED,
                       "model_type '%s' with a text_config of model_type '%s' "
                       "is not supported",
                       outer, hp->model_type);
    /* Re-saves keep the class of the other kind; model_type decides. */
    if (hp->architecture[0] && (strstr(hp->architecture, "Moe") != NULL) != moe)
        hp_note(r, "'architectures' names '%s'; model_type '%s' counts",
                hp->architecture, hp->model_type);
    return 0;
}

int hp_parse_qwen3_5(struct hp_reader *r, struct hparams *hp, struct err *e)
{
    bool moe = strstr(hp->model_type, "_moe") != NULL;

    if (check_names(r, hp, moe, e) ||
        hp_read_rows(r, moe ? moe_rows : dense_rows,
                     moe ? COUNT(moe_rows) : COUNT(dense_rows), hp, e) ||
        check_variants(r, hp, e) || read_layer_types(r, hp, e) ||
        check_layers(hp, e) || hp_check_heads(hp, e) || check_linear(hp, e) ||
        check_experts(hp, e) || hp_read_tie(r, hp, false, e))
        return -1;
    hp->qk_norm = true;
    hp->zero_centered_norms = true;
    hp->attn_output_gate = true;
    return hp_read_partial_rope(r, hp, 1e7, 0.25, e);
}

/* ---- tensors ---- */

static void need_full(struct layer_needs *n, const struct hparams *hp)
{
    int64_t q = hp->heads * hp->head_dim, kv = hp->kv_heads * hp->head_dim;

    layer_need(n, "self_attn.q_proj.weight", 2, 2 * q, hp->hidden, 0);
    layer_need(n, "self_attn.k_proj.weight", 2, kv, hp->hidden, 0);
    layer_need(n, "self_attn.v_proj.weight", 2, kv, hp->hidden, 0);
    layer_need(n, "self_attn.q_norm.weight", 1, hp->head_dim, 0, 0);
    layer_need(n, "self_attn.k_norm.weight", 1, hp->head_dim, 0, 0);
    layer_need(n, "self_attn.o_proj.weight", 2, hp->hidden, q, 0);
}

static void need_linear(struct layer_needs *n, const struct hparams *hp)
{
    int64_t c = hp_conv_channels(hp), nv = hp->lin_value_heads;
    int64_t v = nv * hp->lin_value_dim;

    layer_need(n, "linear_attn.in_proj_qkv.weight", 2, c, hp->hidden, 0);
    layer_need(n, "linear_attn.in_proj_z.weight", 2, v, hp->hidden, 0);
    layer_need(n, "linear_attn.in_proj_b.weight", 2, nv, hp->hidden, 0);
    layer_need(n, "linear_attn.in_proj_a.weight", 2, nv, hp->hidden, 0);
    layer_need(n, "linear_attn.conv1d.weight", 3, c, 1, hp->conv_kernel);
    layer_need(n, "linear_attn.A_log", 1, nv, 0, 0);
    layer_need(n, "linear_attn.dt_bias", 1, nv, 0, 0);
    layer_need(n, "linear_attn.norm.weight", 1, hp->lin_value_dim, 0, 0);
    layer_need(n, "linear_attn.out_proj.weight", 2, hp->hidden, v, 0);
}

static void need_mlp(struct layer_needs *n, const char *stem, int64_t inner,
                     int64_t hidden)
{
    char name[64];

    snprintf(name, sizeof name, "%s.gate_proj.weight", stem);
    layer_need(n, name, 2, inner, hidden, 0);
    snprintf(name, sizeof name, "%s.up_proj.weight", stem);
    layer_need(n, name, 2, inner, hidden, 0);
    snprintf(name, sizeof name, "%s.down_proj.weight", stem);
    layer_need(n, name, 2, hidden, inner, 0);
}

static void need_moe(struct layer_needs *n, const struct hparams *hp)
{
    int64_t inner = hp->moe_intermediate;

    layer_need(n, "mlp.gate.weight", 2, hp->experts, hp->hidden, 0);
    layer_need(n, "mlp.experts.gate_up_proj", 3, hp->experts, 2 * inner,
               hp->hidden);
    if (!n->failed)
        ledger_in_pieces(n->l, "gate_proj", "up_proj");
    layer_need(n, "mlp.experts.down_proj", 3, hp->experts, hp->hidden, inner);
    if (!n->failed)
        ledger_in_pieces(n->l, "down_proj", NULL);
    need_mlp(n, "mlp.shared_expert", hp->shared_intermediate, hp->hidden);
    layer_need(n, "mlp.shared_expert_gate.weight", 2, 1, hp->hidden, 0);
}

static int need_layer(const struct hparams *hp, struct ledger *l, int layer,
                      struct err *e)
{
    struct layer_needs n = { .l = l, .e = e, .layer = layer };

    layer_need(&n, "input_layernorm.weight", 1, hp->hidden, 0, 0);
    if (hp->layer_kind[layer] == HP_LAYER_LINEAR)
        need_linear(&n, hp);
    else
        need_full(&n, hp);
    layer_need(&n, "post_attention_layernorm.weight", 1, hp->hidden, 0, 0);
    if (hp->experts)
        need_moe(&n, hp);
    else
        need_mlp(&n, "mlp", hp->intermediate, hp->hidden);
    return n.failed ? -1 : 0;
}

int needs_hybrid(const struct hparams *hp, struct ledger *l, struct err *e)
{
    uint64_t table[2] = { (uint64_t)hp->vocab, (uint64_t)hp->hidden };

    if (ledger_need(l, e, 2, table, "embed_tokens.weight"))
        return -1;
    for (int64_t i = 0; i < hp->layers; i++)
        if (need_layer(hp, l, (int)i, e))
            return -1;
    if (ledger_need(l, e, 1, table + 1, "norm.weight"))
        return -1;
    return hp->tied ? 0 : ledger_need(l, e, 2, table, "lm_head.weight");
}

/* ---- counting ---- */

static uint64_t count_linear(const struct hparams *hp)
{
    uint64_t H = (uint64_t)hp->hidden, C = (uint64_t)hp_conv_channels(hp),
             nv = (uint64_t)hp->lin_value_heads,
             dv = (uint64_t)hp->lin_value_dim, K = (uint64_t)hp->conv_kernel;

    return H * C + 2 * H * nv * dv + 2 * H * nv + C * K + 2 * nv + dv;
}

static uint64_t count_full(const struct hparams *hp)
{
    uint64_t H = (uint64_t)hp->hidden, d = (uint64_t)hp->head_dim,
             nq = (uint64_t)hp->heads, nkv = (uint64_t)hp->kv_heads;

    return 3 * H * nq * d + 2 * H * nkv * d + 2 * d;
}

static uint64_t count_mlp(const struct hparams *hp)
{
    uint64_t H = (uint64_t)hp->hidden, E = (uint64_t)hp->experts;

    if (!E)
        return 3 * H * (uint64_t)hp->intermediate;
    return E * H + 3 * E * (uint64_t)hp->moe_intermediate * H +
           3 * H * (uint64_t)hp->shared_intermediate + H;
}

uint64_t count_hybrid(const struct hparams *hp)
{
    uint64_t V = (uint64_t)hp->vocab, H = (uint64_t)hp->hidden;
    uint64_t n = V * H * (hp->tied ? 1 : 2) + H;

    for (int64_t i = 0; i < hp->layers; i++)
        n += 2 * H + count_mlp(hp) +
             (hp->layer_kind[i] == HP_LAYER_LINEAR ? count_linear(hp)
                                                   : count_full(hp));
    return n;
}
