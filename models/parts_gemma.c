/*
 * Shared blocks of the Gemma families; see parts_gemma.h.
 */
#include "models/parts_gemma.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- layers and their slots ---- */

bool gemma_is_sliding(const struct hparams *hp, int64_t layer)
{
    return hp->layer_kind[layer] == HP_LAYER_SLIDING;
}

struct gemma_kind *gemma_kind_of(const struct graph *g, struct gemma *d,
                                 int64_t layer)
{
    return gemma_is_sliding(g->hp, layer) ? &d->sliding : &d->full;
}

static bool stores(const struct hparams *hp, int64_t layer)
{
    return hp_layer_kv_source(hp, layer) == layer;
}

int64_t gemma_slots_before(const struct hparams *hp, bool sliding,
                           int64_t layer)
{
    int64_t n = 0;

    for (int64_t i = 0; i < layer; i++)
        n += gemma_is_sliding(hp, i) == sliding && stores(hp, i);
    return n;
}

int64_t gemma_last_store(const struct graph *g)
{
    int64_t last = -1;

    for (int64_t l = g->first_layer; l < g->first_layer + g->n_layers; l++)
        if (stores(g->hp, l))
            last = l;
    return last;
}

/* Whether a layer of this kind is in the chunk. */
static bool has_kind(const struct graph *g, bool sliding)
{
    for (int64_t i = 0; i < g->n_layers; i++)
        if (gemma_is_sliding(g->hp, g->first_layer + i) == sliding)
            return true;
    return false;
}

/* ---- states ---- */

/* Numbers of the layers that store, for people: without memory, none. */
static void list_layers(const struct hparams *hp, bool sliding,
                        struct state_desc *s)
{
    struct err e = ERR_INIT;

    s->layers = mem_alloc((size_t)hp->layers, sizeof(*s->layers), &e);
    for (int64_t i = 0; s->layers && i < hp->layers; i++)
        if (gemma_is_sliding(hp, i) == sliding && stores(hp, i))
            s->layers[s->n_layers++] = i;
}

int gemma_states(const struct hparams *hp, int64_t ctx, int64_t length,
                 int64_t rows, int64_t heads, struct state_desc out[MAX_STATES])
{
    int n = 0;

    for (int k = 0; k < 2; k++) {
        bool sliding = k == 0;
        int64_t slots = gemma_slots_before(hp, sliding, hp->layers), l = 0;
        struct state_desc *s = &out[n];

        if (!slots)
            continue;
        while (gemma_is_sliding(hp, l) != sliding)
            l++;
        memset(s, 0, sizeof(*s));
        snprintf(s->name, sizeof(s->name), "%s",
                 sliding ? LOCAL_STATE : GLOBAL_STATE);
        s->rank = 4;
        s->dims[0] = rows * slots;
        s->dims[1] = heads * hp_layer_kv_heads(hp, l);
        s->dims[2] = sliding ? length : ctx;
        s->dims[3] = hp_layer_head_dim(hp, l);
        list_layers(hp, sliding, s);
        n++;
    }
    return n;
}

/* ---- the decoder's frame ---- */

static void begin_kind(struct mb *b, const struct graph *g,
                       struct gemma_kind *k, bool sliding,
                       const struct state_desc *states, int n)
{
    const char *name = sliding ? LOCAL_STATE : GLOBAL_STATE;

    memset(k, 0, sizeof(*k));
    k->slots = gemma_slots_before(g->hp, sliding, g->hp->layers);
    for (int i = 0; i < n; i++)
        if (!strcmp(states[i].name, name)) {
            k->length = states[i].dims[2];
            k->kv.state =
                mb_state(b, states[i].name, states[i].rank, states[i].dims);
        }
}

static void begin_rope(struct mb *b, const struct graph *g,
                       struct gemma_kind *k, bool sliding, mil_ref ids)
{
    const struct rope_params *rope =
        sliding ? &g->hp->rope_local : &g->hp->rope;

    if (!has_kind(g, sliding))
        return;
    k->cos = parts_rope_rows(b, g, ids, sliding ? "rope_cos_local" : "rope_cos",
                             rope, false, 1.0);
    k->sin = parts_rope_rows(b, g, ids, sliding ? "rope_sin_local" : "rope_sin",
                             rope, true, 1.0);
}

void gemma_begin(struct mb *b, const struct graph *g, struct gemma *d,
                 const struct state_desc *states, int n_states)
{
    struct gemma_kind *k[2] = { &d->sliding, &d->full };
    mil_ref ids;

    begin_kind(b, g, k[0], true, states, n_states);
    begin_kind(b, g, k[1], false, states, n_states);
    for (int i = 0; i < 2; i++)
        if (k[i]->kv.state)
            k[i]->kv.now = MB(b, read_state, .input = k[i]->kv.state);
    ids = parts_gather_ids(b, g, d->in.ids);
    begin_rope(b, g, k[0], true, ids);
    begin_rope(b, g, k[1], false, ids);
    d->full.cap = parts_cap(b, d->in.mask);
    d->full.kv.pos = d->in.pos;
    d->full.kv.pos_end =
        MB(b, add, .x = d->in.pos, .y = MB_INTS(b, (int32_t)g->tokens));
}

mil_ref gemma_column(struct mb *b, mil_ref ids, mil_ref base)
{
    if (base)
        ids = MB(b, sub, .x = ids, .y = base);
    return MB_RESHAPE(b, ids, 1, 1, (int32_t)mb_dim(b, ids, 0), 1);
}

/* 0 .. n - 1, int32 [n]. */
static mil_ref places(struct mb *b, int64_t n)
{
    struct err e = ERR_INIT;
    int32_t *v = mem_alloc((size_t)n, sizeof(*v), &e);
    mil_ref r;

    if (!v)
        return mb_fail(b, e.code, "%s", e.text);
    for (int64_t i = 0; i < n; i++)
        v[i] = (int32_t)i;
    r = mb_ints(b, (size_t)n, v);
    mem_free(v);
    return r;
}

/* True becomes +PARTS_MASK, false -PARTS_MASK. */
static mil_ref cap_of(struct mb *b, mil_ref seen)
{
    mil_ref x = MB(b, cast, .x = seen, .dtype = mb_string(b, "fp16"));

    x = MB(b, mul, .x = x, .y = mb_f16(b, 2 * PARTS_MASK));
    return MB(b, sub, .x = x, .y = mb_f16(b, PARTS_MASK));
}

static mil_ref window_start(struct mb *b, mil_ref at, int64_t window,
                            mil_ref lowest)
{
    mil_ref first = MB(b, sub, .x = at, .y = mb_int(b, (int32_t)window - 1));

    return lowest ? MB(b, maximum, .x = first, .y = lowest) : first;
}

mil_ref gemma_window(struct mb *b, mil_ref at, int64_t n, int64_t window,
                     mil_ref lowest)
{
    mil_ref j = places(b, n);
    mil_ref first = window_start(b, at, window, lowest);
    mil_ref behind = MB(b, greater_equal, .x = j, .y = first);
    mil_ref before = MB(b, less_equal, .x = j, .y = at);

    return cap_of(b, MB(b, logical_and, .x = behind, .y = before));
}

mil_ref gemma_window_start(struct mb *b, mil_ref at, int64_t n, int64_t window)
{
    mil_ref j = places(b, n);
    mil_ref first = window_start(b, at, window, 0);

    return cap_of(b, MB(b, greater_equal, .x = j, .y = first));
}

/* The last of axis `axis`, where there are several. */
static void cut(struct mb *b, mil_ref *x, int axis)
{
    int64_t n = *x ? mb_dim(b, *x, axis) : 1;

    if (n > 1)
        *x = parts_slice(b, *x, axis, n - 1, 1);
}

void gemma_narrow(struct mb *b, struct gemma *d)
{
    struct gemma_kind *k[2] = { &d->sliding, &d->full };

    for (int i = 0; i < 2; i++) {
        cut(b, &k[i]->cos, 2);
        cut(b, &k[i]->sin, 2);
        cut(b, &k[i]->cap, 2);
    }
}

void gemma_end(struct mb *b, const struct graph *g, struct gemma *d, mil_ref x)
{
    if (d->sliding.kv.state && !has_kind(g, true))
        x = parts_touch(b, d->sliding.kv.now, x);
    if (d->full.kv.state && !has_kind(g, false))
        x = parts_touch(b, d->full.kv.now, x);
    parts_decoder_end(b, g, x);
}

/* ---- branches ---- */

const char *gemma_tensor(char out[128], int64_t layer, const char *name)
{
    snprintf(out, 128, "layers.%lld.%s", (long long)layer, name);
    return out;
}

mil_ref gemma_pre_norm(struct mb *b, const struct graph *g, int64_t layer,
                       const char *name, mil_ref x)
{
    char t[128];

    return parts_rms_norm(b, g, x, gemma_tensor(t, layer, name));
}

double gemma_matrix_eps(const struct graph *g)
{
    return ldexp(g->hp->rms_eps, 2 * g->norm_exp);
}

mil_ref gemma_add_branch(struct mb *b, const struct graph *g, int64_t layer,
                         const char *name, double eps, mil_ref x, mil_ref y)
{
    char t[128];
    struct norm_spec s = { .tensor = gemma_tensor(t, layer, name),
                           .scale_exp = g->stream_exp,
                           .eps = eps };

    y = parts_norm(b, g, y, &s);
    return MB(b, add, .x = x, .y = y);
}

/*
 * With x = 2 h: x/2 (1 + tanh(c x (1 + 0.044715 x^2))), c = sqrt(2/pi). The
 * tangent is exactly -1 or 1 in fp16 long before |x| = 8, where its argument
 * is cut, so that no cube overflows.
 */
mil_ref gemma_gelu_of_half(struct mb *b, mil_ref h)
{
    const double c = 0.79788456080286535588;
    mil_ref x =
        MB(b, clip, .x = h, .alpha = mb_f16(b, -4.0), .beta = mb_f16(b, 4.0));
    mil_ref t = MB(b, mul, .x = x, .y = x);

    t = MB(b, mul, .x = t, .y = mb_f16(b, 8 * 0.044715 * c));
    t = MB(b, add, .x = t, .y = mb_f16(b, 2 * c));
    t = MB(b, mul, .x = t, .y = x);
    t = MB(b, tanh, .x = t);
    t = MB(b, add, .x = t, .y = mb_f16(b, 1.0));
    return MB(b, mul, .x = h, .y = t);
}

mil_ref gemma_mlp(struct mb *b, const struct graph *g, int64_t layer,
                  mil_ref in)
{
    struct weight_spec half = { .scale_exp = -1 }, plain = { 0 };
    struct weight_spec down = { .scale_exp = g->norm_exp };
    mil_ref h = parts_project(b, g, layer, "mlp.gate_proj", false, half, in);
    mil_ref up = parts_project(b, g, layer, "mlp.up_proj", false, plain, in);

    h = gemma_gelu_of_half(b, h);
    h = MB(b, mul, .x = h, .y = up);
    return parts_project(b, g, layer, "mlp.down_proj", false, down, h);
}

mil_ref gemma_attend(struct mb *b, mil_ref q, mil_ref k, mil_ref v, mil_ref cap)
{
    int32_t heads = (int32_t)mb_dim(b, q, 1), T = (int32_t)mb_dim(b, q, 2);
    int32_t D = (int32_t)mb_dim(b, q, 3), n = (int32_t)mb_dim(b, k, 1);
    int32_t C = (int32_t)mb_dim(b, k, 2), r;
    mil_ref s;

    if (b->err.code)
        return 0;
    r = heads / n;
    if (r > 1)
        q = MB_RESHAPE(b, q, 1, n, r * T, D);
    s = MB(b, matmul, .x = q, .y = k, .transpose_x = mb_bool(b, false),
           .transpose_y = mb_bool(b, true));
    if (r > 1 && T > 1)
        s = MB_RESHAPE(b, s, n, r, T, C);
    s = MB(b, minimum, .x = s, .y = cap);
    s = MB(b, softmax, .x = s, .axis = mb_int(b, -1));
    if (r > 1 && T > 1)
        s = MB_RESHAPE(b, s, 1, n, r * T, C);
    s = MB(b, matmul, .x = s, .y = v, .transpose_x = mb_bool(b, false),
           .transpose_y = mb_bool(b, false));
    return r > 1 ? MB_RESHAPE(b, s, 1, heads, T, D) : s;
}
