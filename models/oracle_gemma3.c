/*
 * Gemma 3 (text) in float32, as transformers' Gemma3ForCausalLM computes it.
 *
 * Every norm multiplies by 1 + w. Rows of the embedding are multiplied by the
 * root of the width, rounded to the table's dtype; the tied head reads the
 * table as it is. Both ends of a branch are normed:
 *
 *   x += post_attention_layernorm(attention(input_layernorm(x)))
 *   x += post_feedforward_layernorm(mlp(pre_feedforward_layernorm(x)))
 *
 * with GELU in its tanh form in the MLP. Queries and keys are normed per head,
 * then rotated over the whole head, element i with i + d/2, by the
 * frequencies of the layer's kind. Scores are multiplied by
 * query_pre_attn_scalar to the power -1/2, whatever d is. A token of a
 * sliding layer sees `window` positions, its own among them. Consecutive
 * query heads share a key/value head.
 */
#include "models/oracle_priv.h"

#include <inttypes.h>
#include <math.h>

enum { TMP_H, TMP_Q, TMP_K, TMP_V, TMP_MIX };
/* Rotations of full and of sliding layers. */
enum { ROPE_FULL, ROPE_SLIDING };

#define MAX_HEADS (1 << 16)

static bool slides(const struct oracle *o, int64_t layer)
{
    return o->hp.layer_kind[layer] == HP_LAYER_SLIDING;
}

static int check_shape(const struct hparams *hp, struct err *e)
{
    if (hp->layers > HP_MAX_LAYERS || hp->window < 1)
        return err_set(e, ERR_INPUT,
                       "%" PRId64 " layers with a window of %" PRId64
                       ", expected 1 to %d layers and a window of 1 or more",
                       hp->layers, hp->window, HP_MAX_LAYERS);
    if (hp->heads < 1 || hp->heads > MAX_HEADS || hp->kv_heads < 1 ||
        hp->heads % hp->kv_heads)
        return err_set(e, ERR_INPUT,
                       "%" PRId64 " query heads cannot share %" PRId64
                       " key/value heads",
                       hp->heads, hp->kv_heads);
    if (hp->head_dim < 2 || hp->head_dim > MAX_HEADS ||
        hp->rope.dim != hp->head_dim || hp->rope_local.dim != hp->head_dim)
        return err_set(e, ERR_INPUT,
                       "rotations of %d and %d elements, expected the %" PRId64
                       " of a head",
                       hp->rope.dim, hp->rope_local.dim, hp->head_dim);
    if (hp->intermediate < 1 || hp->intermediate > INT32_MAX ||
        !(hp->query_pre_attn_scalar > 0) || !(hp->embed_scale > 0))
        return err_set(e, ERR_INPUT,
                       "intermediate_size %" PRId64
                       ", query_pre_attn_scalar %g and embedding scale %g, "
                       "expected numbers above 0",
                       hp->intermediate, hp->query_pre_attn_scalar,
                       hp->embed_scale);
    return 0;
}

static int gemma3_open(struct oracle *o, struct err *e)
{
    const struct hparams *hp = &o->hp;

    if (check_shape(hp, e))
        return -1;
    for (int64_t l = 0; l < hp->layers; l++)
        if (oracle_kv_init(o, l, (size_t)hp->kv_heads, (size_t)hp->head_dim, e))
            return -1;
    return oracle_rope_init(o, ROPE_FULL, &hp->rope, e) ||
                   oracle_rope_init(o, ROPE_SLIDING, &hp->rope_local, e)
               ? -1
               : 0;
}

static int gemma3_embed(struct oracle *o, float *x, struct err *e)
{
    size_t width = (size_t)o->hp.hidden;
    float scale = (float)o->hp.embed_scale;

    if (oracle_lookup(o, "embed_tokens.weight", width, x, e))
        return -1;
    for (size_t i = 0; i < o->n * width; i++)
        x[i] *= scale;
    return 0;
}

/* y [n, width] = the norm of x under a layer's weight; y == x is allowed. */
static int stream_norm(struct oracle *o, int64_t layer, const char *which,
                       const float *x, float *y, struct err *e)
{
    size_t width = (size_t)o->hp.hidden;
    const float *w = oracle_vector(o, width, e, "layers.%" PRId64 ".%s.weight",
                                   layer, which);

    if (!w)
        return -1;
    oracle_norm(o, NORM_CENTRED, x, w, o->n, width, o->hp.rms_eps, y);
    return 0;
}

static int project(struct oracle *o, int64_t layer, const char *stem,
                   size_t out, size_t in, const float *x, float *y,
                   struct err *e)
{
    struct oracle_mat m = oracle_layer_mat(layer, stem, out, in, false);

    return oracle_linear(o, &m, x, o->n, y, e);
}

/* Norms and rotates queries or keys. */
static int place_heads(struct oracle *o, int64_t layer, const char *norm,
                       float *x, int64_t heads, struct err *e)
{
    size_t d = (size_t)o->hp.head_dim, n = (size_t)heads;

    if (oracle_head_norm(o, NORM_CENTRED, layer, norm, x, n, d, e))
        return -1;
    oracle_rope(o, slides(o, layer) ? ROPE_SLIDING : ROPE_FULL, ROPE_HALVES, x,
                n, d);
    return 0;
}

static int attend(struct oracle *o, int64_t layer, float *x, struct err *e)
{
    const struct hparams *hp = &o->hp;
    size_t width = (size_t)hp->hidden, d = (size_t)hp->head_dim;
    size_t nq = (size_t)hp->heads * d, nkv = (size_t)hp->kv_heads * d;
    struct oracle_attn a = { .layer = layer,
                             .heads = (size_t)hp->heads,
                             .scale = 1 / sqrt(hp->query_pre_attn_scalar),
                             .window =
                                 slides(o, layer) ? (size_t)hp->window : 0 };
    float *h = oracle_tmp(o, TMP_H, o->n, width, e);
    float *q = oracle_tmp(o, TMP_Q, o->n, nq, e);
    float *k = oracle_tmp(o, TMP_K, o->n, nkv, e);
    float *v = oracle_tmp(o, TMP_V, o->n, nkv, e);
    float *mix = oracle_tmp(o, TMP_MIX, o->n, nq, e);

    if (!h || !q || !k || !v || !mix ||
        stream_norm(o, layer, "input_layernorm", x, h, e) ||
        project(o, layer, "self_attn.q_proj", nq, width, h, q, e) ||
        project(o, layer, "self_attn.k_proj", nkv, width, h, k, e) ||
        project(o, layer, "self_attn.v_proj", nkv, width, h, v, e) ||
        place_heads(o, layer, "q_norm", q, hp->heads, e) ||
        place_heads(o, layer, "k_norm", k, hp->kv_heads, e))
        return -1;
    oracle_kv_put(o, layer, k, v);
    if (oracle_attention(o, &a, q, mix, e) ||
        project(o, layer, "self_attn.o_proj", width, nq, mix, h, e) ||
        stream_norm(o, layer, "post_attention_layernorm", h, h, e))
        return -1;
    oracle_add(o, x, h, o->n, width);
    return 0;
}

static int feed_forward(struct oracle *o, int64_t layer, float *x,
                        struct err *e)
{
    size_t width = (size_t)o->hp.hidden, inner = (size_t)o->hp.intermediate;
    struct oracle_gated g = {
        .gate = oracle_layer_mat(layer, "mlp.gate_proj", inner, width, false),
        .up = oracle_layer_mat(layer, "mlp.up_proj", inner, width, false),
        .down = oracle_layer_mat(layer, "mlp.down_proj", width, inner, false),
        .act = ACT_GELU_TANH,
    };
    float *h = oracle_tmp(o, TMP_H, o->n, width, e);

    if (!h || stream_norm(o, layer, "pre_feedforward_layernorm", x, h, e) ||
        oracle_gated_mlp(o, &g, h, o->n, h, e) ||
        stream_norm(o, layer, "post_feedforward_layernorm", h, h, e))
        return -1;
    oracle_add(o, x, h, o->n, width);
    return 0;
}

static int gemma3_layer(struct oracle *o, int64_t layer, float *x,
                        struct err *e)
{
    return attend(o, layer, x, e) || feed_forward(o, layer, x, e) ? -1 : 0;
}

static int gemma3_norm(struct oracle *o, float *x, struct err *e)
{
    return plain_norm(o, NORM_CENTRED, x, e);
}

const struct oracle_ops oracle_gemma3 = {
    .name = "gemma3",
    .open = gemma3_open,
    .embed = gemma3_embed,
    .layer = gemma3_layer,
    .norm = gemma3_norm,
    .head = plain_head,
};
