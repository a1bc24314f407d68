/*
 * The pre-norm transformer with gated MLP, of which plain families are
 * settings:
 *
 *   x = embedding[token]
 *   x += o(attention(norm(x)));  x += down(silu(gate(h)) up(h)), h = norm(x)
 *   logits = head(norm(x))
 *
 * No convention is decided here: the family's table says all of them.
 */
#include "models/oracle_priv.h"

#include <inttypes.h>
#include <math.h>

enum { TMP_H, TMP_Q, TMP_K, TMP_V, TMP_MIX };

#define MAX_HEADS (1 << 16)

int plain_open(struct oracle *o, struct err *e)
{
    const struct hparams *hp = &o->hp;

    if (hp->heads < 1 || hp->heads > MAX_HEADS || hp->kv_heads < 1 ||
        hp->heads % hp->kv_heads)
        return err_set(e, ERR_INPUT,
                       "%" PRId64 " query heads cannot share %" PRId64
                       " key/value heads",
                       hp->heads, hp->kv_heads);
    if (hp->head_dim < 2 || hp->head_dim > MAX_HEADS || hp->rope.dim < 2 ||
        hp->rope.dim > hp->head_dim || hp->rope.dim % 2)
        return err_set(e, ERR_INPUT,
                       "rotation of %d of the %" PRId64
                       " elements of a head, expected an even part",
                       hp->rope.dim, hp->head_dim);
    if (hp->intermediate < 1 || hp->intermediate > INT32_MAX)
        return err_set(e, ERR_INPUT,
                       "intermediate_size is %" PRId64 ", expected 1 to %d",
                       hp->intermediate, INT32_MAX);
    for (int64_t l = 0; l < hp->layers; l++) {
        if (oracle_kv_init(o, l, (size_t)hp->kv_heads, (size_t)hp->head_dim, e))
            return -1;
    }
    return oracle_rope_init(o, 0, &hp->rope, e);
}

int plain_embed(struct oracle *o, float *x, struct err *e)
{
    return oracle_lookup(o, "embed_tokens.weight", (size_t)o->hp.hidden, x, e);
}

/* The norm of the stream under a layer's weight, in TMP_H. */
static float *normed(struct oracle *o, const struct oracle_plain *p,
                     int64_t layer, const char *which, const float *x,
                     struct err *e)
{
    size_t width = (size_t)o->hp.hidden;
    const float *w = oracle_vector(o, width, e, "layers.%" PRId64 ".%s.weight",
                                   layer, which);
    float *h = w ? oracle_tmp(o, TMP_H, o->n, width, e) : NULL;

    if (h)
        oracle_norm(o, p->norm, x, w, o->n, width, o->hp.rms_eps, h);
    return h;
}

/* Norms and rotates the heads of x, which are queries or keys. */
static int place_heads(struct oracle *o, const struct oracle_plain *p,
                       int64_t layer, const char *norm, float *x, int64_t heads,
                       struct err *e)
{
    size_t d = (size_t)o->hp.head_dim, n = (size_t)heads;

    if (p->head_norms &&
        oracle_head_norm(o, p->head_norm, layer, norm, x, n, d, e))
        return -1;
    oracle_rope(o, 0, p->pairing, x, n, d);
    return 0;
}

static int plain_attention(struct oracle *o, const struct oracle_plain *p,
                           int64_t layer, float *x, struct err *e)
{
    const struct hparams *hp = &o->hp;
    size_t width = (size_t)hp->hidden, d = (size_t)hp->head_dim;
    size_t nq = (size_t)hp->heads * d, nkv = (size_t)hp->kv_heads * d;
    bool bias = p->qkv_bias && hp->attention_bias;
    struct oracle_mat wq =
        oracle_layer_mat(layer, "self_attn.q_proj", nq, width, bias);
    struct oracle_mat wk =
        oracle_layer_mat(layer, "self_attn.k_proj", nkv, width, bias);
    struct oracle_mat wv =
        oracle_layer_mat(layer, "self_attn.v_proj", nkv, width, bias);
    struct oracle_mat wo =
        oracle_layer_mat(layer, "self_attn.o_proj", width, nq,
                         p->o_bias && hp->attention_bias);
    struct oracle_attn a = { .layer = layer,
                             .heads = (size_t)hp->heads,
                             .scale = pow((double)d, p->scale_power) };
    float *h = normed(o, p, layer, "input_layernorm", x, e);
    float *q = oracle_tmp(o, TMP_Q, o->n, nq, e);
    float *k = oracle_tmp(o, TMP_K, o->n, nkv, e);
    float *v = oracle_tmp(o, TMP_V, o->n, nkv, e);
    float *mix = oracle_tmp(o, TMP_MIX, o->n, nq, e);

    if (!h || !q || !k || !v || !mix || oracle_linear(o, &wq, h, o->n, q, e) ||
        oracle_linear(o, &wk, h, o->n, k, e) ||
        oracle_linear(o, &wv, h, o->n, v, e) ||
        place_heads(o, p, layer, "q_norm", q, hp->heads, e) ||
        place_heads(o, p, layer, "k_norm", k, hp->kv_heads, e))
        return -1;
    oracle_kv_put(o, layer, k, v);
    if (oracle_attention(o, &a, q, mix, e) ||
        oracle_linear(o, &wo, mix, o->n, h, e))
        return -1;
    oracle_add(o, x, h, o->n, width);
    return 0;
}

static int plain_mlp(struct oracle *o, const struct oracle_plain *p,
                     int64_t layer, float *x, struct err *e)
{
    const struct hparams *hp = &o->hp;
    size_t width = (size_t)hp->hidden, inner = (size_t)hp->intermediate;
    bool bias = p->mlp_bias && hp->mlp_bias;
    struct oracle_gated g = {
        .gate = oracle_layer_mat(layer, "mlp.gate_proj", inner, width, bias),
        .up = oracle_layer_mat(layer, "mlp.up_proj", inner, width, bias),
        .down = oracle_layer_mat(layer, "mlp.down_proj", width, inner, bias),
        .act = ACT_SILU,
    };
    float *h = normed(o, p, layer, "post_attention_layernorm", x, e);

    if (!h || oracle_gated_mlp(o, &g, h, o->n, h, e))
        return -1;
    oracle_add(o, x, h, o->n, width);
    return 0;
}

int plain_layer(struct oracle *o, const struct oracle_plain *p, int64_t layer,
                float *x, struct err *e)
{
    if (plain_attention(o, p, layer, x, e))
        return -1;
    return plain_mlp(o, p, layer, x, e);
}

int plain_norm(struct oracle *o, enum norm_form form, float *x, struct err *e)
{
    size_t width = (size_t)o->hp.hidden;
    const float *w = oracle_vector(o, width, e, "norm.weight");

    if (!w)
        return -1;
    oracle_norm(o, form, x, w, o->n, width, o->hp.rms_eps, x);
    return 0;
}

int plain_head(struct oracle *o, const float *x, size_t n, float *logits,
               struct err *e)
{
    struct oracle_mat w = { .name = "lm_head.weight",
                            .out = (size_t)o->hp.vocab,
                            .in = (size_t)o->hp.hidden };

    if (oracle_linear(o, &w, x, n, logits, e))
        return -1;
    if (o->hp.final_softcap > 0)
        oracle_softcap(o, logits, n, (size_t)o->hp.vocab, o->hp.final_softcap);
    return 0;
}
