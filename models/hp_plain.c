/*
 * llama and qwen3: what their configs may say, which tensors they consist of
 * and how many parameters that makes. Class defaults are transformers'.
 */
#include "models/hp_plain_priv.h"

#define FIELD(member) offsetof(struct hparams, member)
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Far above any model, and small enough that no product overflows. */
#define MAX_VOCAB (1 << 28)
#define MAX_WIDTH (1 << 20)
#define MAX_INNER (1 << 24)
#define MAX_LAYERS (1 << 12)
#define MAX_HEADS (1 << 16)
#define MAX_POSITIONS 9007199254740992.0

#define SIZE(key, member, absent, null, def, max)                          \
    {                                                                      \
        key, HP_INT, FIELD(member), HP_##absent, HP_##null, def, 1, max, 0 \
    }
#define EPS(def)                                                               \
    {                                                                          \
        "rms_norm_eps", HP_REAL, FIELD(rms_eps), HP_CLASS, HP_ASK, def, 1e-30, \
            1, 0                                                               \
    }
#define FLAG(key, member)                                           \
    {                                                               \
        key, HP_FLAG, FIELD(member), HP_CLASS, HP_CLASS, 0, 0, 0, 0 \
    }
#define WORD(key, word)                                  \
    {                                                    \
        key, HP_WORD, 0, HP_CLASS, HP_ASK, 0, 0, 0, word \
    }

static const struct hp_row llama_rows[] = {
    SIZE("vocab_size", vocab, CLASS, ASK, 32000, MAX_VOCAB),
    SIZE("hidden_size", hidden, CLASS, ASK, 4096, MAX_WIDTH),
    SIZE("intermediate_size", intermediate, CLASS, ASK, 11008, MAX_INNER),
    SIZE("num_hidden_layers", layers, CLASS, ASK, 32, MAX_LAYERS),
    SIZE("num_attention_heads", heads, CLASS, ASK, 32, MAX_HEADS),
    SIZE("num_key_value_heads", kv_heads, LEAVE, LEAVE, 0, MAX_HEADS),
    SIZE("head_dim", head_dim, LEAVE, LEAVE, 0, MAX_HEADS),
    SIZE("max_position_embeddings", max_positions, CLASS, ASK, 2048,
         MAX_POSITIONS),
    EPS(1e-6),
    WORD("hidden_act", "silu"),
    FLAG("attention_bias", attention_bias),
    FLAG("mlp_bias", mlp_bias),
};

static const struct hp_row qwen3_rows[] = {
    SIZE("vocab_size", vocab, CLASS, ASK, 151936, MAX_VOCAB),
    SIZE("hidden_size", hidden, CLASS, ASK, 4096, MAX_WIDTH),
    SIZE("intermediate_size", intermediate, CLASS, ASK, 22016, MAX_INNER),
    SIZE("num_hidden_layers", layers, CLASS, ASK, 32, MAX_LAYERS),
    SIZE("num_attention_heads", heads, CLASS, ASK, 32, MAX_HEADS),
    /* null, unlike absent, means as many as there are query heads. */
    SIZE("num_key_value_heads", kv_heads, CLASS, LEAVE, 32, MAX_HEADS),
    /* Not hidden_size / heads; null is an error in transformers too. */
    SIZE("head_dim", head_dim, CLASS, ASK, 128, MAX_HEADS),
    SIZE("max_position_embeddings", max_positions, CLASS, ASK, 32768,
         MAX_POSITIONS),
    EPS(1e-6),
    WORD("hidden_act", "silu"),
    FLAG("attention_bias", attention_bias),
};

static int finish(struct hp_reader *r, struct hparams *hp, struct err *e)
{
    if (hp_check_heads(hp, e) || hp_read_full_layers(r, hp, e) ||
        hp_read_tie(r, hp, false, e))
        return -1;
    return hp_read_rope(r, hp, 10000.0, e);
}

int hp_parse_llama(struct hp_reader *r, struct hparams *hp, struct err *e)
{
    if (hp_read_rows(r, llama_rows, COUNT(llama_rows), hp, e))
        return -1;
    return finish(r, hp, e);
}

/* The window is inert unless this switch is on; a null is off. */
static int refuse_window(const struct hp_reader *r, struct err *e)
{
    const struct js_node *n = hp_value(r->text, "use_sliding_window");
    bool on;

    if (!n)
        return 0;
    if (!js_bool(n, &on))
        return hp_type_error(n, "use_sliding_window", "true or false", e);
    if (on)
        return err_set(e, ERR_UNSUPPORTED,
                       "'use_sliding_window' is true; qwen3 is computed with "
                       "full attention only");
    return 0;
}

int hp_parse_qwen3(struct hp_reader *r, struct hparams *hp, struct err *e)
{
    if (hp_read_rows(r, qwen3_rows, COUNT(qwen3_rows), hp, e) ||
        refuse_window(r, e))
        return -1;
    hp->qk_norm = true;
    return finish(r, hp, e);
}

static int need_matrix(struct ledger *l, struct err *e, int64_t layer,
                       const char *name, int64_t out, int64_t in, bool bias)
{
    uint64_t dims[2] = { (uint64_t)out, (uint64_t)in };

    if (ledger_need(l, e, 2, dims, "layers.%d.%s.weight", (int)layer, name))
        return -1;
    return bias ? ledger_need(l, e, 1, dims, "layers.%d.%s.bias", (int)layer,
                              name)
                : 0;
}

static int need_vector(struct ledger *l, struct err *e, int64_t layer,
                       const char *name, int64_t n)
{
    uint64_t dims[1] = { (uint64_t)n };

    return ledger_need(l, e, 1, dims, "layers.%d.%s.weight", (int)layer, name);
}

static int need_layer(const struct hparams *hp, struct ledger *l, int64_t i,
                      struct err *e)
{
    int64_t q = hp->heads * hp->head_dim, kv = hp->kv_heads * hp->head_dim;
    bool ab = hp->attention_bias, mb = hp->mlp_bias;

    if (need_vector(l, e, i, "input_layernorm", hp->hidden) ||
        need_matrix(l, e, i, "self_attn.q_proj", q, hp->hidden, ab) ||
        need_matrix(l, e, i, "self_attn.k_proj", kv, hp->hidden, ab) ||
        need_matrix(l, e, i, "self_attn.v_proj", kv, hp->hidden, ab))
        return -1;
    if (hp->qk_norm &&
        (need_vector(l, e, i, "self_attn.q_norm", hp->head_dim) ||
         need_vector(l, e, i, "self_attn.k_norm", hp->head_dim)))
        return -1;
    if (need_matrix(l, e, i, "self_attn.o_proj", hp->hidden, q, ab) ||
        need_vector(l, e, i, "post_attention_layernorm", hp->hidden) ||
        need_matrix(l, e, i, "mlp.gate_proj", hp->intermediate, hp->hidden,
                    mb) ||
        need_matrix(l, e, i, "mlp.up_proj", hp->intermediate, hp->hidden, mb))
        return -1;
    return need_matrix(l, e, i, "mlp.down_proj", hp->hidden, hp->intermediate,
                       mb);
}

int needs_plain(const struct hparams *hp, struct ledger *l, struct err *e)
{
    uint64_t table[2] = { (uint64_t)hp->vocab, (uint64_t)hp->hidden };

    if (ledger_need(l, e, 2, table, "embed_tokens.weight"))
        return -1;
    for (int64_t i = 0; i < hp->layers; i++)
        if (need_layer(hp, l, i, e))
            return -1;
    if (ledger_need(l, e, 1, table + 1, "norm.weight"))
        return -1;
    return hp->tied ? 0 : ledger_need(l, e, 2, table, "lm_head.weight");
}

uint64_t count_plain(const struct hparams *hp)
{
    uint64_t V = (uint64_t)hp->vocab, H = (uint64_t)hp->hidden,
             I = (uint64_t)hp->intermediate, L = (uint64_t)hp->layers,
             nq = (uint64_t)hp->heads, nkv = (uint64_t)hp->kv_heads,
             d = (uint64_t)hp->head_dim;
    uint64_t layer = H * d * (2 * nq + 2 * nkv) + 3 * H * I + 2 * H;

    if (hp->qk_norm)
        layer += 2 * d;
    if (hp->attention_bias)
        layer += (nq + 2 * nkv) * d + H;
    if (hp->mlp_bias)
        layer += 2 * I + H;
    return V * H * (hp->tied ? 1 : 2) + H + L * layer;
}
