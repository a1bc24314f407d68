/*
 * Gemma 4 (text) in float32, as transformers' Gemma4ForCausalLM computes it.
 *
 * Every norm multiplies by its weight. Rows of the embedding are multiplied
 * by the root of the width, rounded to the table's dtype. Where the model has
 * per-layer embeddings, every token has P values for each layer i:
 *
 *   (norm(W_model x / sqrt(H))[i] + sqrt(P) table[token][i]) / sqrt(2)
 *
 * x being the scaled embedding, the norm over each P on its own. Layer i:
 *
 *   x += post_attention_layernorm(attention(input_layernorm(x)))
 *   y = mlp(pre_feedforward_layernorm(x)), GELU in its tanh form
 *   with experts: y = post_feedforward_layernorm_1(y) +
 *       post_feedforward_layernorm_2(experts(pre_feedforward_layernorm_2(x)))
 *   x += post_feedforward_layernorm(y)
 *   x += post_per_layer_input_norm(W_p (gelu(W_g x) * per-layer values))
 *   x *= layer_scalar
 *
 * Attention: queries are normed per head, then rotated over the whole head,
 * element i with i + d/2, by the frequencies of the layer's kind. So are keys;
 * values are normed per head without a weight and not rotated. Where full
 * layers have no value matrix, the raw keys are the values. Scores are not
 * scaled. A token of a sliding layer sees `window` positions, its own among
 * them. Layers that share read keys and values of the layer that hparams
 * resolved. Consecutive query heads share a key/value head.
 *
 * Experts: the router sees x itself, normed without a weight, times
 * router.scale / sqrt(H); softmax over all, the top k divided by their sum,
 * then times per_expert_scale. Logits: c tanh(logit / c).
 */
#include "models/oracle_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    TMP_H,
    TMP_Q,
    TMP_K,
    TMP_V,
    TMP_MIX,
    TMP_PLE, /* [n, layers, P], of the whole pass */
    TMP_SLICE,
    TMP_BRANCH,
    TMP_ROUTE,
    TMP_LOGITS,
    TMP_PICKS,
};
/* Rotations of full and of sliding layers. */
enum { ROPE_FULL, ROPE_SLIDING };

#define MAX_HEADS (1 << 16)

static bool slides(const struct oracle *o, int64_t layer)
{
    return o->hp.layer_kind[layer] == HP_LAYER_SLIDING;
}

/* Heads of one layer. */
struct heads {
    size_t nq, nkv, d;
};

static struct heads heads_of(const struct oracle *o, int64_t layer)
{
    const struct hparams *hp = &o->hp;
    struct heads h = { .nq = (size_t)hp->heads };

    h.nkv = (size_t)(slides(o, layer) ? hp->kv_heads : hp->global_kv_heads);
    h.d = (size_t)(slides(o, layer) ? hp->head_dim : hp->global_head_dim);
    return h;
}

/* The layer computes keys and values of its own. */
static bool has_keys(const struct oracle *o, int64_t layer)
{
    return layer < o->hp.layers - o->hp.kv_shared_layers;
}

static int64_t source_of(const struct oracle *o, int64_t layer)
{
    return has_keys(o, layer) ? layer : o->hp.kv_source[layer];
}

/* ---- opening ---- */

static int check_heads(const struct hparams *hp, int64_t kv, int64_t d,
                       const struct rope_params *r, struct err *e)
{
    if (hp->heads < 1 || hp->heads > MAX_HEADS || kv < 1 || hp->heads % kv)
        return err_set(e, ERR_INPUT,
                       "%" PRId64 " query heads cannot share %" PRId64
                       " key/value heads",
                       hp->heads, kv);
    if (d < 2 || d > MAX_HEADS || r->dim != d)
        return err_set(e, ERR_INPUT,
                       "a rotation of %d elements, expected the %" PRId64
                       " of a head",
                       r->dim, d);
    return 0;
}

static int check_shape(const struct hparams *hp, struct err *e)
{
    if (hp->layers > HP_MAX_LAYERS || hp->window < 1 ||
        hp->kv_shared_layers < 0 || hp->kv_shared_layers >= hp->layers)
        return err_set(e, ERR_INPUT,
                       "%" PRId64 " layers, of which %" PRId64
                       " share, with a window of %" PRId64
                       ", expected at most %d layers and a window of 1 or more",
                       hp->layers, hp->kv_shared_layers, hp->window,
                       HP_MAX_LAYERS);
    if (hp->intermediate < 1 || hp->intermediate > INT32_MAX / 2 ||
        !(hp->embed_scale > 0))
        return err_set(e, ERR_INPUT,
                       "intermediate_size %" PRId64
                       " and embedding scale %g, expected numbers above 0",
                       hp->intermediate, hp->embed_scale);
    return 0;
}

/* A sharing layer reads a layer of its own kind that does not share. */
static int check_source(const struct oracle *o, int64_t layer, struct err *e)
{
    int64_t from = source_of(o, layer);

    if (!has_keys(o, from) || slides(o, from) != slides(o, layer))
        return err_set(e, ERR_INPUT,
                       "layer %" PRId64 " would read keys and values of layer "
                       "%" PRId64,
                       layer, from);
    return 0;
}

static int gemma4_open(struct oracle *o, struct err *e)
{
    const struct hparams *hp = &o->hp;

    if (check_shape(hp, e) ||
        check_heads(hp, hp->kv_heads, hp->head_dim, &hp->rope_local, e) ||
        check_heads(hp, hp->global_kv_heads, hp->global_head_dim, &hp->rope, e))
        return -1;
    for (int64_t l = 0; l < hp->layers; l++) {
        struct heads h = heads_of(o, l);

        if (has_keys(o, l) ? oracle_kv_init(o, l, h.nkv, h.d, e)
                           : check_source(o, l, e))
            return -1;
    }
    return oracle_rope_init(o, ROPE_FULL, &hp->rope, e) ||
                   oracle_rope_init(o, ROPE_SLIDING, &hp->rope_local, e)
               ? -1
               : 0;
}

/* ---- pieces ---- */

/* y [n, width] = the norm of x under a layer's weight; y == x is allowed. */
static int stream_norm(struct oracle *o, int64_t layer, const char *which,
                       const float *x, float *y, struct err *e)
{
    size_t width = (size_t)o->hp.hidden;
    const float *w = oracle_vector(o, width, e, "layers.%" PRId64 ".%s.weight",
                                   layer, which);

    if (!w)
        return -1;
    oracle_norm(o, NORM_PLAIN, x, w, o->n, width, o->hp.rms_eps, y);
    return 0;
}

static int project(struct oracle *o, int64_t layer, const char *stem,
                   size_t out, size_t in, const float *x, float *y,
                   struct err *e)
{
    struct oracle_mat m = oracle_layer_mat(layer, stem, out, in, false);

    return oracle_linear(o, &m, x, o->n, y, e);
}

static void scale_all(float *x, size_t n, float by)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= by;
}

/* ---- embeddings ---- */

/* The pass's per-layer values, to TMP_PLE; x: the scaled embedding. */
static int per_layer_values(struct oracle *o, const float *x, struct err *e)
{
    const struct hparams *hp = &o->hp;
    size_t H = (size_t)hp->hidden, P = (size_t)hp->ple_width;
    size_t all = (size_t)hp->layers * P;
    struct oracle_mat m = { .name = "per_layer_model_projection.weight",
                            .out = all,
                            .in = H };
    const float *w = oracle_vector(o, P, e, "per_layer_projection_norm.weight");
    float *ple = oracle_tmp(o, TMP_PLE, o->n, all, e);
    float *ctx = oracle_tmp(o, TMP_MIX, o->n, all, e);

    if (!w || !ple || !ctx ||
        oracle_lookup(o, "embed_tokens_per_layer.weight", all, ple, e) ||
        oracle_linear(o, &m, x, o->n, ctx, e))
        return -1;
    scale_all(ctx, o->n * all, (float)(1 / sqrt((double)H)));
    oracle_norm(o, NORM_PLAIN, ctx, w, o->n * (size_t)hp->layers, P,
                hp->rms_eps, ctx);
    scale_all(ple, o->n * all, (float)hp->ple_scale);
    oracle_add(o, ple, ctx, o->n, all);
    scale_all(ple, o->n * all, (float)(1 / sqrt(2.0)));
    return 0;
}

static int gemma4_embed(struct oracle *o, float *x, struct err *e)
{
    size_t width = (size_t)o->hp.hidden;

    if (oracle_lookup(o, "embed_tokens.weight", width, x, e))
        return -1;
    scale_all(x, o->n * width, (float)o->hp.embed_scale);
    return o->hp.ple_width ? per_layer_values(o, x, e) : 0;
}

/* ---- attention ---- */

static void rotate(struct oracle *o, int64_t layer, float *x, size_t heads,
                   size_t d)
{
    oracle_rope(o, slides(o, layer) ? ROPE_SLIDING : ROPE_FULL, ROPE_HALVES, x,
                heads, d);
}

/* Keys and values of the pass into the layer's cache. */
static int keys_and_values(struct oracle *o, int64_t layer, const float *h,
                           struct err *e)
{
    struct heads n = heads_of(o, layer);
    size_t width = (size_t)o->hp.hidden, nkv = n.nkv * n.d;
    bool raw_keys = o->hp.k_eq_v && !slides(o, layer);
    float *k = oracle_tmp(o, TMP_K, o->n, nkv, e);
    float *v = oracle_tmp(o, TMP_V, o->n, nkv, e);

    if (!k || !v || project(o, layer, "self_attn.k_proj", nkv, width, h, k, e))
        return -1;
    if (raw_keys)
        memcpy(v, k, o->n * nkv * sizeof(*v));
    else if (project(o, layer, "self_attn.v_proj", nkv, width, h, v, e))
        return -1;
    if (oracle_head_norm(o, NORM_PLAIN, layer, "k_norm", k, n.nkv, n.d, e))
        return -1;
    rotate(o, layer, k, n.nkv, n.d);
    oracle_norm(o, NORM_UNSCALED, v, NULL, o->n * n.nkv, n.d, o->hp.rms_eps, v);
    oracle_kv_put(o, layer, k, v);
    return 0;
}

static int attend(struct oracle *o, int64_t layer, float *x, struct err *e)
{
    struct heads n = heads_of(o, layer);
    size_t width = (size_t)o->hp.hidden, nq = n.nq * n.d;
    struct oracle_attn a = { .layer = source_of(o, layer),
                             .heads = n.nq,
                             .scale = 1,
                             .window =
                                 slides(o, layer) ? (size_t)o->hp.window : 0 };
    float *h = oracle_tmp(o, TMP_H, o->n, width, e);
    float *q = oracle_tmp(o, TMP_Q, o->n, nq, e);
    float *mix = oracle_tmp(o, TMP_MIX, o->n, nq, e);

    if (!h || !q || !mix || stream_norm(o, layer, "input_layernorm", x, h, e) ||
        (has_keys(o, layer) && keys_and_values(o, layer, h, e)) ||
        project(o, layer, "self_attn.q_proj", nq, width, h, q, e) ||
        oracle_head_norm(o, NORM_PLAIN, layer, "q_norm", q, n.nq, n.d, e))
        return -1;
    rotate(o, layer, q, n.nq, n.d);
    if (oracle_attention(o, &a, q, mix, e) ||
        project(o, layer, "self_attn.o_proj", width, nq, mix, h, e) ||
        stream_norm(o, layer, "post_attention_layernorm", h, h, e))
        return -1;
    oracle_add(o, x, h, o->n, width);
    return 0;
}

/* ---- MLP and experts ---- */

/* What the router reads: x normed, scaled per channel and by 1 / sqrt(H). */
static float *router_input(struct oracle *o, int64_t layer, const float *x,
                           struct err *e)
{
    size_t width = (size_t)o->hp.hidden;
    const float *scale =
        oracle_vector(o, width, e, "layers.%" PRId64 ".router.scale", layer);
    float *t = oracle_tmp(o, TMP_ROUTE, o->n, width, e);
    float root = (float)(1 / sqrt((double)width));

    if (!scale || !t)
        return NULL;
    oracle_norm(o, NORM_UNSCALED, x, NULL, o->n, width, o->hp.rms_eps, t);
    for (size_t i = 0; i < o->n * width; i++)
        t[i] = t[i] * scale[i % width] * root;
    return t;
}

static struct oracle_pick *route(struct oracle *o, int64_t layer,
                                 const float *x, struct err *e)
{
    size_t E = (size_t)o->hp.experts, k = (size_t)o->hp.experts_per_token;
    const float *scale =
        oracle_vector(o, E, e, "layers.%" PRId64 ".router.per_expert_scale",
                      layer);
    float *t = router_input(o, layer, x, e);
    float *logits = oracle_tmp(o, TMP_LOGITS, o->n, E, e);
    struct grown *picks = &o->tmp[TMP_PICKS], *room = &o->workers[0].mix;
    struct oracle_pick *p;

    if (!scale || !t || !logits ||
        oracle_grow(picks, o->n * k, sizeof(*p), e) ||
        oracle_grow(room, E, sizeof(double), e) ||
        project(o, layer, "router.proj", E, (size_t)o->hp.hidden, t, logits, e))
        return NULL;
    p = picks->p;
    for (size_t i = 0; i < o->n; i++)
        oracle_route(logits + i * E, E, k, room->p, p + i * k);
    for (size_t i = 0; i < o->n * k; i++)
        p[i].weight *= (double)scale[p[i].expert];
    return p;
}

/* y = the normed MLP's output plus that of the experts of x. */
static int add_experts(struct oracle *o, int64_t layer, const float *x,
                       float *y, struct err *e)
{
    size_t width = (size_t)o->hp.hidden;
    struct oracle_experts ex = { .n = (size_t)o->hp.experts,
                                 .inner = (size_t)o->hp.moe_intermediate,
                                 .act = ACT_GELU_TANH,
                                 .k = (size_t)o->hp.experts_per_token };
    float *h = oracle_tmp(o, TMP_H, o->n, width, e);
    float *sum = oracle_tmp(o, TMP_MIX, o->n, width, e);

    snprintf(ex.gate_up, sizeof(ex.gate_up),
             "layers.%" PRId64 ".experts.gate_up_proj", layer);
    snprintf(ex.down, sizeof(ex.down), "layers.%" PRId64 ".experts.down_proj",
             layer);
    ex.picks = route(o, layer, x, e);
    if (!ex.picks || !h || !sum ||
        stream_norm(o, layer, "post_feedforward_layernorm_1", y, y, e) ||
        stream_norm(o, layer, "pre_feedforward_layernorm_2", x, h, e))
        return -1;
    memset(sum, 0, o->n * width * sizeof(*sum));
    if (oracle_run_experts(o, &ex, h, sum, e) ||
        stream_norm(o, layer, "post_feedforward_layernorm_2", sum, sum, e))
        return -1;
    oracle_add(o, y, sum, o->n, width);
    return 0;
}

static int feed_forward(struct oracle *o, int64_t layer, float *x,
                        struct err *e)
{
    const struct hparams *hp = &o->hp;
    size_t width = (size_t)hp->hidden, inner = (size_t)hp->intermediate;
    float *y = oracle_tmp(o, TMP_BRANCH, o->n, width, e);
    struct oracle_gated g = { .act = ACT_GELU_TANH };

    if (hp->double_wide_mlp && !has_keys(o, layer))
        inner *= 2;
    g.gate = oracle_layer_mat(layer, "mlp.gate_proj", inner, width, false);
    g.up = oracle_layer_mat(layer, "mlp.up_proj", inner, width, false);
    g.down = oracle_layer_mat(layer, "mlp.down_proj", width, inner, false);
    if (!y || stream_norm(o, layer, "pre_feedforward_layernorm", x, y, e) ||
        oracle_gated_mlp(o, &g, y, o->n, y, e) ||
        (hp->experts && add_experts(o, layer, x, y, e)) ||
        stream_norm(o, layer, "post_feedforward_layernorm", y, y, e))
        return -1;
    oracle_add(o, x, y, o->n, width);
    return 0;
}

/* ---- the end of a layer ---- */

static int per_layer_input(struct oracle *o, int64_t layer, float *x,
                           struct err *e)
{
    size_t width = (size_t)o->hp.hidden, P = (size_t)o->hp.ple_width;
    size_t all = (size_t)o->hp.layers * P;
    const float *ple = o->tmp[TMP_PLE].p;
    float *g = oracle_tmp(o, TMP_Q, o->n, P, e);
    float *u = oracle_tmp(o, TMP_SLICE, o->n, P, e);
    float *h = oracle_tmp(o, TMP_H, o->n, width, e);

    if (!g || !u || !h ||
        project(o, layer, "per_layer_input_gate", P, width, x, g, e))
        return -1;
    for (size_t i = 0; i < o->n; i++)
        memcpy(u + i * P, ple + i * all + (size_t)layer * P, P * sizeof(*u));
    oracle_gate(o, ACT_GELU_TANH, g, u, o->n, P);
    if (project(o, layer, "per_layer_projection", width, P, g, h, e) ||
        stream_norm(o, layer, "post_per_layer_input_norm", h, h, e))
        return -1;
    oracle_add(o, x, h, o->n, width);
    return 0;
}

static int gemma4_layer(struct oracle *o, int64_t layer, float *x,
                        struct err *e)
{
    const float *scalar =
        oracle_vector(o, 1, e, "layers.%" PRId64 ".layer_scalar", layer);

    if (!scalar || attend(o, layer, x, e) || feed_forward(o, layer, x, e) ||
        (o->hp.ple_width && per_layer_input(o, layer, x, e)))
        return -1;
    scale_all(x, o->n * (size_t)o->hp.hidden, *scalar);
    return 0;
}

static int gemma4_norm(struct oracle *o, float *x, struct err *e)
{
    return plain_norm(o, NORM_PLAIN, x, e);
}

const struct oracle_ops oracle_gemma4 = {
    .name = "gemma4",
    .open = gemma4_open,
    .embed = gemma4_embed,
    .layer = gemma4_layer,
    .norm = gemma4_norm,
    .head = plain_head,
};
