/*
 * Qwen3.5 (dense and mixture of experts) in float32, as transformers'
 * Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM compute it.
 *
 * Norms of the stream and of the heads multiply by 1 + w. Layers are of two
 * kinds:
 *
 * Full attention: q_proj gives for each head its d queries and then its d
 * gates. Queries and keys are normed per head, then the first rope.dim
 * elements are rotated, element i with i + dim / 2, the others stay.
 * Consecutive query heads share a key/value head; scores are divided by
 * sqrt(d). What a head reads out is multiplied by the sigmoid of its gates.
 *
 * Gated DeltaNet: queries, keys and values (in this order of channels) pass a
 * causal convolution per channel, whose last tap meets the current token, and
 * SiLU. Then token by token, for value head h with the queries and keys of
 * head h / (value heads per key head), both of unit length, queries divided
 * by sqrt(dk):
 *
 *   S = e^g S;  m = S^T k;  S = S + k (beta (v - m))^T;  y = S^T q
 *
 * with beta = sigmoid(b), g = -e^A_log softplus(a + dt_bias). The read-out is
 * normed per head with a plain weight and multiplied by SiLU(z).
 *
 * Experts: softmax over all of them, the top k divided by their sum, the
 * lower index first among equals; besides, a shared expert times the sigmoid
 * of its own gate.
 */
#include "models/oracle_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"

/* Beside the squares of a query or key; not rms_norm_eps. */
#define UNIT_EPS 1e-6
#define MAX_HEADS (1 << 16)

enum {
    TMP_H,
    TMP_Q,
    TMP_K,
    TMP_V,
    TMP_MIX,
    TMP_GATE,
    TMP_UP,
    TMP_QKV,
    TMP_CONV,
    TMP_A,
    TMP_B,
    TMP_SUM,
    TMP_ROWS,
    TMP_DOWN,
    TMP_PICKS,
};

static const struct oracle_plain stream = { .norm = NORM_CENTRED };

/* What a linear layer remembers. */
struct memory {
    float *taps;  /* [K - 1, channels]: inputs of the convolution */
    float *state; /* [value heads, dk, dv] */
};

/* Widths of a linear layer. */
struct widths {
    size_t nk, nv, dk, dv, K;
    size_t keys, values, channels;
};

static struct widths widths_of(const struct hparams *hp)
{
    struct widths w = {
        .nk = (size_t)hp->lin_key_heads,
        .nv = (size_t)hp->lin_value_heads,
        .dk = (size_t)hp->lin_key_dim,
        .dv = (size_t)hp->lin_value_dim,
        .K = (size_t)hp->conv_kernel,
    };

    w.keys = w.nk * w.dk;
    w.values = w.nv * w.dv;
    w.channels = 2 * w.keys + w.values;
    return w;
}

static bool is_linear(const struct oracle *o, int64_t layer)
{
    return o->hp.layer_kind[layer] == HP_LAYER_LINEAR;
}

/* ---- opening ---- */

static bool within(int64_t v, int64_t min, int64_t max)
{
    return v >= min && v <= max;
}

static int check_attention(const struct hparams *hp, struct err *e)
{
    if (!within(hp->heads, 1, MAX_HEADS) || hp->kv_heads < 1 ||
        hp->heads % hp->kv_heads)
        return err_set(e, ERR_INPUT,
                       "%" PRId64 " query heads cannot share %" PRId64
                       " key/value heads",
                       hp->heads, hp->kv_heads);
    if (!within(hp->head_dim, 2, MAX_HEADS) || hp->rope.dim < 2 ||
        hp->rope.dim > hp->head_dim || hp->rope.dim % 2)
        return err_set(e, ERR_INPUT,
                       "rotation of %d of the %" PRId64
                       " elements of a head, expected an even part",
                       hp->rope.dim, hp->head_dim);
    return 0;
}

static int check_linear(const struct hparams *hp, struct err *e)
{
    if (!within(hp->lin_value_heads, 1, MAX_HEADS) || hp->lin_key_heads < 1 ||
        hp->lin_value_heads % hp->lin_key_heads)
        return err_set(e, ERR_INPUT,
                       "%" PRId64 " value heads cannot share %" PRId64
                       " key heads",
                       hp->lin_value_heads, hp->lin_key_heads);
    if (!within(hp->lin_key_dim, 1, MAX_HEADS) ||
        !within(hp->lin_value_dim, 1, MAX_HEADS) ||
        !within(hp->conv_kernel, 2, MAX_HEADS))
        return err_set(e, ERR_INPUT,
                       "linear heads of %" PRId64 " by %" PRId64
                       " behind a convolution of %" PRId64
                       " taps, expected 1 to %d of each",
                       hp->lin_key_dim, hp->lin_value_dim, hp->conv_kernel,
                       MAX_HEADS);
    return 0;
}

static int check_mlp(const struct hparams *hp, struct err *e)
{
    if (!hp->experts)
        return within(hp->intermediate, 1, INT32_MAX)
                   ? 0
                   : err_set(e, ERR_INPUT,
                             "intermediate_size is %" PRId64
                             ", expected 1 to %d",
                             hp->intermediate, INT32_MAX);
    if (!within(hp->experts, 1, INT32_MAX) ||
        !within(hp->experts_per_token, 1, hp->experts))
        return err_set(e, ERR_INPUT,
                       "%" PRId64 " of %" PRId64 " experts, expected 1 to all",
                       hp->experts_per_token, hp->experts);
    if (!within(hp->moe_intermediate, 1, INT32_MAX) ||
        !within(hp->shared_intermediate, 1, INT32_MAX))
        return err_set(e, ERR_INPUT,
                       "experts of width %" PRId64 " and a shared one of "
                       "%" PRId64 ", expected 1 to %d",
                       hp->moe_intermediate, hp->shared_intermediate,
                       INT32_MAX);
    return 0;
}

static int memory_init(const struct oracle *o, struct memory *m, struct err *e)
{
    struct widths w = widths_of(&o->hp);
    uint64_t n;

    if (!mem_mul(w.values, w.dk, &n) || n > SIZE_MAX)
        return err_set(e, ERR_NOMEM, "a state of %zu by %zu is too large",
                       w.values, w.dk);
    m->taps = mem_zalloc((w.K - 1) * w.channels, sizeof(float), e);
    m->state = mem_zalloc((size_t)n, sizeof(float), e);
    return m->taps && m->state ? 0 : -1;
}

static int hybrid_open(struct oracle *o, struct err *e)
{
    const struct hparams *hp = &o->hp;
    struct memory *m;

    if (hp->layers > HP_MAX_LAYERS)
        return err_set(e, ERR_INPUT,
                       "num_hidden_layers is %" PRId64 ", expected 1 to %d",
                       hp->layers, HP_MAX_LAYERS);
    if (check_attention(hp, e) || check_linear(hp, e) || check_mlp(hp, e))
        return -1;
    o->priv = m = mem_zalloc((size_t)hp->layers, sizeof(*m), e);
    if (!m)
        return -1;
    for (int64_t l = 0; l < hp->layers; l++) {
        if (is_linear(o, l) ? memory_init(o, &m[l], e)
                            : oracle_kv_init(o, l, (size_t)hp->kv_heads,
                                             (size_t)hp->head_dim, e))
            return -1;
    }
    return oracle_rope_init(o, 0, &hp->rope, e);
}

static void hybrid_close(struct oracle *o)
{
    struct memory *m = o->priv;

    for (int64_t l = 0; m && l < o->hp.layers; l++) {
        mem_free(m[l].taps);
        mem_free(m[l].state);
    }
    mem_free(m);
}

static void hybrid_reset(struct oracle *o)
{
    struct widths w = widths_of(&o->hp);
    struct memory *m = o->priv;

    for (int64_t l = 0; l < o->hp.layers; l++) {
        if (!is_linear(o, l))
            continue;
        memset(m[l].taps, 0, (w.K - 1) * w.channels * sizeof(float));
        memset(m[l].state, 0, w.values * w.dk * sizeof(float));
    }
}

static bool hybrid_memory(const struct oracle *o, int64_t layer,
                          struct oracle_memory *out)
{
    struct widths w = widths_of(&o->hp);
    const struct memory *m = (const struct memory *)o->priv + layer;

    *out = (struct oracle_memory){ m->state, m->taps, w.nv,      w.dk,
                                   w.dv,     w.K - 1, w.channels };
    return is_linear(o, layer);
}

/* The norm of the stream under a layer's weight, in TMP_H. */
static float *normed(struct oracle *o, int64_t layer, const char *which,
                     const float *x, struct err *e)
{
    size_t width = (size_t)o->hp.hidden;
    const float *w = oracle_vector(o, width, e, "layers.%" PRId64 ".%s.weight",
                                   layer, which);
    float *h = w ? oracle_tmp(o, TMP_H, o->n, width, e) : NULL;

    if (h)
        oracle_norm(o, NORM_CENTRED, x, w, o->n, width, o->hp.rms_eps, h);
    return h;
}

static int layer_linear(struct oracle *o, int64_t layer, const char *stem,
                        size_t out, size_t in, const float *x, float *y,
                        struct err *e)
{
    struct oracle_mat m = oracle_layer_mat(layer, stem, out, in, false);

    return oracle_linear(o, &m, x, o->n, y, e);
}

/* ---- full attention ---- */

/* Row h 2d + c of q_proj is query c of head h, row h 2d + d + c its gate. */
static void split_gates(const struct oracle *o, const float *both, float *q,
                        float *gate)
{
    size_t d = (size_t)o->hp.head_dim, rows = o->n * (size_t)o->hp.heads;

    for (size_t i = 0; i < rows; i++) {
        memcpy(q + i * d, both + 2 * i * d, d * sizeof(*q));
        memcpy(gate + i * d, both + (2 * i + 1) * d, d * sizeof(*q));
    }
}

static int place_heads(struct oracle *o, int64_t layer, const char *norm,
                       float *x, size_t heads, struct err *e)
{
    size_t d = (size_t)o->hp.head_dim;

    if (oracle_head_norm(o, NORM_CENTRED, layer, norm, x, heads, d, e))
        return -1;
    oracle_rope(o, 0, ROPE_HALVES, x, heads, d);
    return 0;
}

static int full_mixer(struct oracle *o, int64_t layer, float *x, struct err *e)
{
    const struct hparams *hp = &o->hp;
    size_t width = (size_t)hp->hidden, d = (size_t)hp->head_dim;
    size_t nq = (size_t)hp->heads * d, nkv = (size_t)hp->kv_heads * d;
    struct oracle_attn a = { .layer = layer,
                             .heads = (size_t)hp->heads,
                             .scale = 1.0 / sqrt((double)d) };
    float *h = normed(o, layer, "input_layernorm", x, e);
    float *both = oracle_tmp(o, TMP_QKV, o->n, 2 * nq, e);
    float *q = oracle_tmp(o, TMP_Q, o->n, nq, e);
    float *gate = oracle_tmp(o, TMP_GATE, o->n, nq, e);
    float *k = oracle_tmp(o, TMP_K, o->n, nkv, e);
    float *v = oracle_tmp(o, TMP_V, o->n, nkv, e);
    float *mix = oracle_tmp(o, TMP_MIX, o->n, nq, e);

    if (!h || !both || !q || !gate || !k || !v || !mix ||
        layer_linear(o, layer, "self_attn.q_proj", 2 * nq, width, h, both, e) ||
        layer_linear(o, layer, "self_attn.k_proj", nkv, width, h, k, e) ||
        layer_linear(o, layer, "self_attn.v_proj", nkv, width, h, v, e))
        return -1;
    split_gates(o, both, q, gate);
    if (place_heads(o, layer, "q_norm", q, (size_t)hp->heads, e) ||
        place_heads(o, layer, "k_norm", k, (size_t)hp->kv_heads, e))
        return -1;
    oracle_kv_put(o, layer, k, v);
    if (oracle_attention(o, &a, q, mix, e))
        return -1;
    for (size_t i = 0; i < o->n * nq; i++)
        mix[i] = (float)((double)mix[i] * oracle_sigmoid((double)gate[i]));
    if (layer_linear(o, layer, "self_attn.o_proj", width, nq, mix, h, e))
        return -1;
    oracle_add(o, x, h, o->n, width);
    return 0;
}

/* ---- Gated DeltaNet ---- */

struct conv {
    struct widths w;
    const float *taps, *x; /* rows before the pass; of the pass */
    const float *weight;   /* [channels, K] */
    float *y;
};

static void conv_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct conv *c = arg;
    size_t C = c->w.channels, K = c->w.K;

    (void)worker;
    for (size_t t = (size_t)begin; t < end; t++) {
        for (size_t ch = 0; ch < C; ch++) {
            double sum = 0;

            for (size_t j = 0; j < K; j++) {
                /* row t - (K - 1) + j; those before 0 are remembered */
                const float *row = t + j < K - 1 ? c->taps + (t + j) * C
                                                 : c->x + (t + j - (K - 1)) * C;

                sum += (double)c->weight[ch * K + j] * (double)row[ch];
            }
            c->y[t * C + ch] = (float)(sum * oracle_sigmoid(sum));
        }
    }
}

/* The last K - 1 rows of what was remembered and what came. */
static void keep_taps(const struct widths *w, float *taps, const float *x,
                      size_t n)
{
    size_t keep = w->K - 1, fresh = n < keep ? n : keep, C = w->channels;

    memmove(taps, taps + fresh * C, (keep - fresh) * C * sizeof(*taps));
    memcpy(taps + (keep - fresh) * C, x + (n - fresh) * C,
           fresh * C * sizeof(*taps));
}

struct delta {
    struct oracle *o;
    struct widths w;
    const float *qkv;   /* [n, channels], behind the convolution */
    const float *a, *b; /* [n, nv] */
    const float *A_log, *dt_bias;
    float *state; /* [nv, dk, dv] */
    float *y;     /* [n, nv, dv] */
};

static void delta_head(const struct delta *d, size_t h, struct oracle_worker *k)
{
    const struct widths *w = &d->w;
    size_t from = h / (w->nv / w->nk);
    float *query = k->heads.p, *key = query + w->dk;
    double *m = k->mix.p, *out = m + w->dv;
    double rate = -exp((double)d->A_log[h]), dt = (double)d->dt_bias[h];

    for (size_t t = 0; t < d->o->n; t++) {
        const float *row = d->qkv + t * w->channels;
        double g = rate * oracle_softplus((double)d->a[t * w->nv + h] + dt);

        oracle_unit_row(row + from * w->dk, w->dk, UNIT_EPS,
                        1.0 / sqrt((double)w->dk), query);
        oracle_unit_row(row + w->keys + from * w->dk, w->dk, UNIT_EPS, 1.0,
                        key);
        oracle_delta_step(d->state + h * w->dk * w->dv, w->dk, w->dv, query,
                          key, row + 2 * w->keys + h * w->dv, exp(g),
                          oracle_sigmoid((double)d->b[t * w->nv + h]), m, out);
        for (size_t j = 0; j < w->dv; j++)
            d->y[(t * w->nv + h) * w->dv + j] = (float)out[j];
    }
}

static void delta_heads(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct delta *d = arg;

    for (uint64_t h = begin; h < end; h++)
        delta_head(d, (size_t)h, &d->o->workers[worker]);
}

static int delta_memory(struct oracle *o, const struct widths *w, struct err *e)
{
    for (int i = 0; i < par_width(o->par); i++)
        if (oracle_grow(&o->workers[i].heads, 2 * w->dk, sizeof(float), e) ||
            oracle_grow(&o->workers[i].mix, 2 * w->dv, sizeof(double), e))
            return -1;
    return 0;
}

/* Convolution and recurrence of one layer: `x` [n, channels] to `y`. */
static int recur(struct oracle *o, int64_t layer, const float *x,
                 const float *a, const float *b, float *y, struct err *e)
{
    struct widths w = widths_of(&o->hp);
    struct memory *m = (struct memory *)o->priv + layer;
    struct conv c = { .w = w, .taps = m->taps, .x = x };
    struct delta d = {
        .o = o, .w = w, .a = a, .b = b, .state = m->state, .y = y
    };

    c.weight =
        oracle_matrix(o, w.channels, w.K, e,
                      "layers.%" PRId64 ".linear_attn.conv1d.weight", layer);
    d.A_log = oracle_vector(o, w.nv, e, "layers.%" PRId64 ".linear_attn.A_log",
                            layer);
    d.dt_bias = oracle_vector(o, w.nv, e,
                              "layers.%" PRId64 ".linear_attn.dt_bias", layer);
    c.y = oracle_tmp(o, TMP_CONV, o->n, w.channels, e);
    if (!c.weight || !d.A_log || !d.dt_bias || !c.y || delta_memory(o, &w, e))
        return -1;
    d.qkv = c.y;
    par_for(o->par, o->n, 1, conv_rows, &c);
    keep_taps(&w, m->taps, x, o->n);
    par_for(o->par, w.nv, 1, delta_heads, &d);
    return 0;
}

static int linear_mixer(struct oracle *o, int64_t layer, float *x,
                        struct err *e)
{
    struct widths w = widths_of(&o->hp);
    size_t width = (size_t)o->hp.hidden;
    const float *norm =
        oracle_vector(o, w.dv, e, "layers.%" PRId64 ".linear_attn.norm.weight",
                      layer);
    float *h = normed(o, layer, "input_layernorm", x, e);
    float *qkv = oracle_tmp(o, TMP_QKV, o->n, w.channels, e);
    float *z = oracle_tmp(o, TMP_GATE, o->n, w.values, e);
    float *a = oracle_tmp(o, TMP_A, o->n, w.nv, e);
    float *b = oracle_tmp(o, TMP_B, o->n, w.nv, e);
    float *y = oracle_tmp(o, TMP_MIX, o->n, w.values, e);

    if (!norm || !h || !qkv || !z || !a || !b || !y ||
        layer_linear(o, layer, "linear_attn.in_proj_qkv", w.channels, width, h,
                     qkv, e) ||
        layer_linear(o, layer, "linear_attn.in_proj_z", w.values, width, h, z,
                     e) ||
        layer_linear(o, layer, "linear_attn.in_proj_a", w.nv, width, h, a, e) ||
        layer_linear(o, layer, "linear_attn.in_proj_b", w.nv, width, h, b, e) ||
        recur(o, layer, qkv, a, b, y, e))
        return -1;
    oracle_norm(o, NORM_PLAIN, y, norm, o->n * w.nv, w.dv, o->hp.rms_eps, y);
    oracle_gate(o, ACT_SILU, z, y, o->n, w.values);
    if (layer_linear(o, layer, "linear_attn.out_proj", width, w.values, z, h,
                     e))
        return -1;
    oracle_add(o, x, h, o->n, width);
    return 0;
}

/* ---- MLP and experts ---- */

static struct oracle_gated mlp_of(int64_t layer, const char *gate,
                                  const char *up, const char *down,
                                  size_t inner, size_t width)
{
    struct oracle_gated g = {
        .gate = oracle_layer_mat(layer, gate, inner, width, false),
        .up = oracle_layer_mat(layer, up, inner, width, false),
        .down = oracle_layer_mat(layer, down, width, inner, false),
        .act = ACT_SILU,
    };

    return g;
}

static struct oracle_pick *route_all(struct oracle *o, int64_t layer,
                                     const float *h, struct err *e)
{
    size_t E = (size_t)o->hp.experts, k = (size_t)o->hp.experts_per_token;
    float *logits = oracle_tmp(o, TMP_A, o->n, E, e);
    struct grown *room = &o->tmp[TMP_PICKS], *p = &o->workers[0].mix;
    struct oracle_pick *picks;

    if (!logits || oracle_grow(room, o->n * k, sizeof(*picks), e) ||
        oracle_grow(p, E, sizeof(double), e) ||
        layer_linear(o, layer, "mlp.gate", E, (size_t)o->hp.hidden, h, logits,
                     e))
        return NULL;
    picks = room->p;
    for (size_t t = 0; t < o->n; t++)
        oracle_route(logits + t * E, E, k, p->p, picks + t * k);
    return picks;
}

static int shared_expert(struct oracle *o, int64_t layer, const float *h,
                         float *sum, struct err *e)
{
    size_t width = (size_t)o->hp.hidden;
    struct oracle_gated g =
        mlp_of(layer, "mlp.shared_expert.gate_proj",
               "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj",
               (size_t)o->hp.shared_intermediate, width);
    float *gate = oracle_tmp(o, TMP_B, o->n, 1, e);
    float *down = oracle_tmp(o, TMP_DOWN, o->n, width, e);

    if (!gate || !down || oracle_gated_mlp(o, &g, h, o->n, down, e) ||
        layer_linear(o, layer, "mlp.shared_expert_gate", 1, width, h, gate, e))
        return -1;
    for (size_t t = 0; t < o->n; t++) {
        double w = oracle_sigmoid((double)gate[t]);

        for (size_t i = 0; i < width; i++)
            sum[t * width + i] += (float)(w * (double)down[t * width + i]);
    }
    return 0;
}

static int experts_mlp(struct oracle *o, int64_t layer, const float *h,
                       float *sum, struct err *e)
{
    struct oracle_experts x = { .n = (size_t)o->hp.experts,
                                .inner = (size_t)o->hp.moe_intermediate,
                                .act = ACT_SILU,
                                .k = (size_t)o->hp.experts_per_token };

    snprintf(x.gate_up, sizeof(x.gate_up),
             "layers.%" PRId64 ".mlp.experts.gate_up_proj", layer);
    snprintf(x.down, sizeof(x.down), "layers.%" PRId64 ".mlp.experts.down_proj",
             layer);
    x.picks = route_all(o, layer, h, e);
    if (!x.picks)
        return -1;
    memset(sum, 0, o->n * (size_t)o->hp.hidden * sizeof(*sum));
    if (oracle_run_experts(o, &x, h, sum, e))
        return -1;
    return shared_expert(o, layer, h, sum, e);
}

static int hybrid_mlp(struct oracle *o, int64_t layer, float *x, struct err *e)
{
    size_t width = (size_t)o->hp.hidden;
    struct oracle_gated g =
        mlp_of(layer, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
               (size_t)o->hp.intermediate, width);
    float *h = normed(o, layer, "post_attention_layernorm", x, e);
    float *sum = oracle_tmp(o, TMP_SUM, o->n, width, e);

    if (!h || !sum)
        return -1;
    if (o->hp.experts ? experts_mlp(o, layer, h, sum, e)
                      : oracle_gated_mlp(o, &g, h, o->n, sum, e))
        return -1;
    oracle_add(o, x, sum, o->n, width);
    return 0;
}

static int hybrid_layer(struct oracle *o, int64_t layer, float *x,
                        struct err *e)
{
    if (is_linear(o, layer) ? linear_mixer(o, layer, x, e)
                            : full_mixer(o, layer, x, e))
        return -1;
    return hybrid_mlp(o, layer, x, e);
}

static int hybrid_norm(struct oracle *o, float *x, struct err *e)
{
    return plain_norm(o, stream.norm, x, e);
}

const struct oracle_ops oracle_qwen3_5 = {
    .name = "qwen3_5",
    .open = hybrid_open,
    .close = hybrid_close,
    .reset = hybrid_reset,
    .memory = hybrid_memory,
    .embed = plain_embed,
    .layer = hybrid_layer,
    .norm = hybrid_norm,
    .head = plain_head,
};
