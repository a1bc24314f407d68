/*
 * Shared graph blocks; see parts.h for shapes.
 */
#include "models/parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "models/fp16_range.h"

int64_t parts_attention_layers(const struct hparams *hp)
{
    int64_t n = 0;

    if (!hp->lin_value_heads)
        return hp->layers;
    for (int64_t i = 0; i < hp->layers && i < HP_MAX_LAYERS; i++)
        n += hp->layer_kind[i] == HP_LAYER_FULL;
    return n;
}

int parts_kv_state(const struct hparams *hp, int64_t ctx, int64_t batch,
                   struct state_desc out[MAX_STATES])
{
    struct state_desc *s = &out[0];

    (void)batch;
    memset(s, 0, sizeof(*s));
    snprintf(s->name, sizeof(s->name), "%s", KV_STATE);
    s->rank = 4;
    s->dims[0] = 2 * parts_attention_layers(hp);
    s->dims[1] = hp->kv_heads;
    s->dims[2] = ctx;
    s->dims[3] = hp->head_dim;
    return 1;
}

/* ---- constants ---- */

mil_ref parts_weight(struct mb *b, const struct graph *g,
                     const struct weight_spec *spec)
{
    struct err e = ERR_INIT;
    const struct mil_data *d;
    const char *tail = strstr(spec->tensor, "layers.");
    char name[160];
    size_t n;

    if (b->err.code)
        return 0;
    d = weights_get(g->weights, spec, &e);
    if (!d)
        return mb_fail(b, e.code, "%s", e.text);
    /* The scope already says which layer. */
    tail = tail ? strchr(tail + 7, '.') : NULL;
    snprintf(name, sizeof(name), "%s", tail ? tail + 1 : spec->tensor);
    n = strlen(name);
    if (spec->block)
        snprintf(name + n, sizeof(name) - n, "_rows_%llu_of_%llu",
                 (unsigned long long)spec->skip,
                 (unsigned long long)spec->block);
    else if (spec->row || (spec->rows && d->origin->total_rows != spec->rows))
        snprintf(name + n, sizeof(name) - n, "_rows_%llu",
                 (unsigned long long)spec->row);
    return mb_data(b, name, d);
}

mil_ref parts_vector(struct mb *b, const struct graph *g, const char *tensor)
{
    struct weight_spec s = { .tensor = tensor, .role = MIL_ROLE_NORM };

    return parts_weight(b, g, &s);
}

static const char *layer_tensor(char out[128], int64_t layer, const char *name)
{
    snprintf(out, 128, "layers.%lld.%s", (long long)layer, name);
    return out;
}

/* x times matrix `name` of a layer (plus bias), [1, in, 1, T] to
 * [1, out, 1, T]. */
mil_ref parts_project(struct mb *b, const struct graph *g, int64_t layer,
                      const char *name, bool bias, struct weight_spec s,
                      mil_ref x)
{
    char tensor[128], full[96];
    mil_ref w, bb = 0;

    s.tensor = tensor;
    s.conv = true;
    if (!s.role)
        s.role = MIL_ROLE_PROJECTION;
    snprintf(full, sizeof(full), "%s.weight", name);
    layer_tensor(tensor, layer, full);
    w = parts_weight(b, g, &s);
    if (bias) {
        snprintf(full, sizeof(full), "%s.bias", name);
        layer_tensor(tensor, layer, full);
        s.role = MIL_ROLE_NORM;
        s.conv = false;
        bb = parts_weight(b, g, &s);
    }
    mb_name(b, "%s", name);
    return mb_conv1x1(b, x, w, bb);
}

static mil_ref project(struct mb *b, const struct graph *g, int64_t layer,
                       const char *name, bool bias, int scale_exp, mil_ref x)
{
    struct weight_spec s = { .scale_exp = scale_exp };

    return parts_project(b, g, layer, name, bias, s, x);
}

/* ---- layouts and norms ---- */

mil_ref parts_to_conv(struct mb *b, mil_ref x)
{
    mil_ref t = MB_TRANSPOSE(b, x, 0, 2, 1);

    return MB(b, expand_dims, .x = t, .axes = MB_INTS(b, 2));
}

mil_ref parts_from_conv(struct mb *b, mil_ref x)
{
    mil_ref t = MB(b, squeeze, .x = x, .axes = MB_INTS(b, 2));

    return MB_TRANSPOSE(b, t, 0, 2, 1);
}

mil_ref parts_slice(struct mb *b, mil_ref x, int axis, int64_t first, int64_t n)
{
    struct mil_type t = mb_type(b, x);
    int32_t begin[MIL_MAX_RANK] = { 0 }, size[MIL_MAX_RANK] = { 0 };

    if (!t.rank)
        return 0;
    if (axis < 0)
        axis += t.rank;
    for (int i = 0; i < t.rank; i++)
        size[i] = (int32_t)t.dims[i];
    begin[axis] = (int32_t)first;
    size[axis] = (int32_t)n;
    return MB(b, slice_by_size, .x = x,
              .begin = mb_ints(b, (size_t)t.rank, begin),
              .size = mb_ints(b, (size_t)t.rank, size));
}

static mil_ref slice_last(struct mb *b, mil_ref x, int64_t first, int64_t n)
{
    return parts_slice(b, x, -1, first, n);
}

mil_ref parts_silu_of_half(struct mb *b, mil_ref h)
{
    mil_ref t = MB(b, add, .x = MB(b, tanh, .x = h), .y = mb_f16(b, 1.0));

    return MB(b, mul, .x = h, .y = t);
}

static mil_ref negate(struct mb *b, mil_ref x)
{
    return MB(b, mul, .x = x, .y = mb_f16(b, -1.0));
}

static mil_ref concat2(struct mb *b, mil_ref x, mil_ref y, int axis)
{
    return MB(b, concat, .values = MB_REFS(x, y), .axis = mb_int(b, axis),
              .interleave = mb_bool(b, false));
}

mil_ref parts_rms(struct mb *b, mil_ref x, double eps)
{
    int64_t n = mb_dim(b, x, -1);
    mil_ref both = concat2(b, x, negate(b, x), -1);
    mil_ref norm = MB(b, layer_norm, .x = both, .axes = MB_INTS(b, -1),
                      .epsilon = mb_f16(b, eps));

    return slice_last(b, norm, 0, n);
}

mil_ref parts_norm(struct mb *b, const struct graph *g, mil_ref x,
                   const struct norm_spec *s)
{
    struct weight_spec w = { .tensor = s->tensor,
                             .role = MIL_ROLE_NORM,
                             .add = g->hp->zero_centered_norms ? 1 : 0,
                             .factor = s->factor,
                             .scale_exp = s->scale_exp };
    mil_ref y = parts_rms(b, x, s->eps > 0 ? s->eps : g->hp->rms_eps);

    return MB(b, mul, .x = y, .y = parts_weight(b, g, &w));
}

mil_ref parts_rms_norm(struct mb *b, const struct graph *g, mil_ref x,
                       const char *tensor)
{
    struct norm_spec s = { .tensor = tensor,
                           .eps =
                               range_norm_eps(g->hp->rms_eps, g->stream_exp) };

    return parts_norm(b, g, x, &s);
}

/* ---- the decoder's frame ---- */

void parts_inputs(struct mb *b, const struct graph *g,
                  struct decoder_inputs *in)
{
    int64_t T = g->tokens;

    in->hidden = mb_input(b, "hidden_states", MIL_F16, 3,
                          (int64_t[]){ 1, T, g->hp->hidden });
    in->ids = mb_input(b, "position_ids", MIL_I32, 1, &T);
    in->mask =
        mb_input(b, "causal_mask", MIL_F16, 4, (int64_t[]){ 1, 1, T, g->ctx });
    in->pos = mb_input(b, "current_pos", MIL_I32, 1, (int64_t[]){ 1 });
}

/* 16-bit indices keep the gather on the Neural Engine. */
mil_ref parts_gather_ids(struct mb *b, const struct graph *g, mil_ref ids)
{
    return g->ctx <= 65536
               ? MB(b, cast, .x = ids, .dtype = mb_string(b, "uint16"))
               : ids;
}

mil_ref parts_rope_rows(struct mb *b, const struct graph *g, mil_ref ids,
                        const char *name, const struct rope_params *rope,
                        bool is_sin, double scale)
{
    struct err e = ERR_INIT;
    const struct mil_data *d;
    mil_ref rows;

    if (b->err.code)
        return 0;
    d = weights_rope(g->weights, rope, (uint64_t)g->ctx, is_sin, scale, &e);
    if (!d)
        return mb_fail(b, e.code, "%s", e.text);
    rows = MB(b, gather, .x = mb_data(b, name, d), .indices = ids,
              .axis = mb_int(b, 0), .batch_dims = mb_int(b, 0),
              .validate_indices = mb_bool(b, false));
    return MB_RESHAPE(b, rows, 1, 1, (int32_t)g->tokens, (int32_t)rope->dim);
}

/* Scores of hidden columns are cut to -PARTS_MASK, visible ones to at most
 * +PARTS_MASK: one minimum masks and keeps an overflowed score finite, so that
 * no row can become NaN and no infinity reaches the softmax. exp(-PARTS_MASK)
 * is zero in any precision. */
mil_ref parts_cap(struct mb *b, mil_ref mask)
{
    mil_ref low = MB(b, maximum, .x = mask, .y = mb_f16(b, -2 * PARTS_MASK));

    return MB(b, add, .x = low, .y = mb_f16(b, PARTS_MASK));
}

/* The attention scale is in the queries' tables: no rounded constant, no op,
 * and the scores stay further from 65504. */
static void begin_rope(struct mb *b, const struct graph *g, struct decoder *d,
                       mil_ref ids)
{
    const struct rope_params *rope = &g->hp->rope;
    double scale = 1.0 / sqrt((double)g->hp->head_dim);

    d->partial = rope->dim < g->hp->head_dim;
    d->cos = parts_rope_rows(b, g, ids, "rope_cos", rope, false, 1.0);
    d->sin = parts_rope_rows(b, g, ids, "rope_sin", rope, true, 1.0);
    d->cos_q = d->cos;
    d->sin_q = d->sin;
    if (d->partial)
        return;
    d->cos_q = parts_rope_rows(b, g, ids, "rope_cos_query", rope, false, scale);
    d->sin_q = parts_rope_rows(b, g, ids, "rope_sin_query", rope, true, scale);
}

void parts_decoder_begin(struct mb *b, const struct graph *g, struct decoder *d,
                         mil_ref *hidden)
{
    struct state_desc st[MAX_STATES];
    struct decoder_inputs in;

    parts_inputs(b, g, &in);
    *hidden = in.hidden;
    parts_kv_state(g->hp, g->ctx, g->batch, st);
    d->slots = parts_attention_layers(g->hp);
    d->kv.state = mb_state(b, st[0].name, st[0].rank, st[0].dims);
    d->kv.now = MB(b, read_state, .input = d->kv.state);
    d->cap = parts_cap(b, in.mask);
    begin_rope(b, g, d, parts_gather_ids(b, g, in.ids));
    d->kv.pos = in.pos;
    d->kv.pos_end =
        MB(b, add, .x = in.pos, .y = MB_INTS(b, (int32_t)g->tokens));
}

mil_ref parts_last_token(struct mb *b, const struct graph *g, mil_ref x)
{
    int32_t H = (int32_t)mb_dim(b, x, 2), T = (int32_t)mb_dim(b, x, 1);

    (void)g;
    return T == 1
               ? x
               : MB(b, slice_by_size, .x = x, .begin = MB_INTS(b, 0, T - 1, 0),
                    .size = MB_INTS(b, 1, 1, H));
}

void parts_decoder_end(struct mb *b, const struct graph *g, mil_ref x)
{
    if (g->last_chunk) {
        x = parts_last_token(b, g, x);
        x = parts_rms_norm(b, g, x, "norm.weight");
    }
    mb_output(b, "output_hidden_states", x);
}

/* ---- attention ---- */

mil_ref parts_to_heads(struct mb *b, mil_ref x, int64_t n)
{
    int32_t D = (int32_t)(mb_dim(b, x, 1) / n), T = (int32_t)mb_dim(b, x, 3);

    if (T == 1)
        return MB_RESHAPE(b, x, 1, (int32_t)n, 1, D);
    x = MB_RESHAPE(b, x, 1, (int32_t)n, D, T);
    return MB_TRANSPOSE(b, x, 0, 1, 3, 2);
}

mil_ref parts_from_heads(struct mb *b, mil_ref x)
{
    int32_t n = (int32_t)(mb_dim(b, x, 1) * mb_dim(b, x, 3));
    int32_t T = (int32_t)mb_dim(b, x, 2);

    if (T == 1)
        return MB_RESHAPE(b, x, 1, n, 1, 1);
    x = MB_TRANSPOSE(b, x, 0, 1, 3, 2);
    return MB_RESHAPE(b, x, 1, n, 1, T);
}

/* x cos + rotate_half(x) sin */
mil_ref parts_rotate(struct mb *b, mil_ref x, mil_ref cos, mil_ref sin)
{
    int64_t d = mb_dim(b, x, -1), n = mb_dim(b, cos, -1);
    mil_ref rest = n < d ? slice_last(b, x, n, d - n) : 0;
    mil_ref lo = slice_last(b, x, 0, n / 2);
    mil_ref hi = slice_last(b, x, n / 2, n / 2);
    mil_ref half = concat2(b, negate(b, hi), lo, -1);

    if (rest)
        x = slice_last(b, x, 0, n);
    x = MB(b, add, .x = MB(b, mul, .x = x, .y = cos),
           .y = MB(b, mul, .x = half, .y = sin));
    return rest ? concat2(b, x, rest, -1) : x;
}

void parts_cache_write(struct mb *b, struct kv_store *c, int64_t row,
                       mil_ref update)
{
    mil_ref zero = MB_INTS(b, 0);
    mil_ref begin =
        MB(b, concat,
           .values = MB_REFS(MB_INTS(b, (int32_t)row), zero, c->pos, zero),
           .axis = mb_int(b, 0), .interleave = mb_bool(b, false));
    mil_ref end = MB(b, concat,
                     .values = MB_REFS(MB_INTS(b, (int32_t)row + 1), zero,
                                       c->pos_end, zero),
                     .axis = mb_int(b, 0), .interleave = mb_bool(b, false));
    mil_ref masks = MB_BOOLS(b, false, true, false, true);
    mil_ref all = MB_INTS(b, 1, 1, 1, 1);
    mil_ref off = MB_BOOLS(b, false, false, false, false);
    mil_ref next =
        MB(b, slice_update, .x = c->now, .update = update, .begin = begin,
           .end = end, .stride = all, .begin_mask = masks, .end_mask = masks,
           .squeeze_mask = off);

    MB(b, write_state, .input = c->state, .data = next);
    c->now = MB(b, read_state, .input = c->state);
}

mil_ref parts_repeat_heads(struct mb *b, mil_ref x, int64_t r)
{
    int32_t n = (int32_t)mb_dim(b, x, 1), C = (int32_t)mb_dim(b, x, 2);
    int32_t D = (int32_t)mb_dim(b, x, 3);

    if (r == 1)
        return x;
    x = MB_RESHAPE(b, x, n, 1, C, D);
    x = MB(b, tile, .x = x, .reps = MB_INTS(b, 1, (int32_t)r, 1, 1));
    return MB_RESHAPE(b, x, 1, n * (int32_t)r, C, D);
}

/* Row `row` of the cache, as many heads as queries have. */
static mil_ref cache_read(struct mb *b, const struct graph *g,
                          const struct decoder *d, int64_t row)
{
    mil_ref x = parts_slice(b, d->kv.now, 0, row, 1);

    return parts_repeat_heads(b, x, g->hp->heads / g->hp->kv_heads);
}

/* Queries [1, NH, T, D] and, with an output gate, half of the gate's argument
 * [1, NH, T, D]: q_proj holds D rows of each in turn, head by head. */
static mil_ref queries(struct mb *b, const struct graph *g, int64_t layer,
                       mil_ref in, mil_ref *gate)
{
    const struct hparams *hp = g->hp;
    struct weight_spec s = { 0 };
    mil_ref q;

    *gate = 0;
    if (hp->attn_output_gate) {
        s.block = 2 * (uint64_t)hp->head_dim;
        s.take = s.skip = (uint64_t)hp->head_dim;
        s.scale_exp = -1;
        *gate = parts_project(b, g, layer, "self_attn.q_proj", false, s, in);
        s.skip = 0;
        s.scale_exp = 0;
    }
    q = parts_project(b, g, layer, "self_attn.q_proj", hp->attention_bias, s,
                      in);
    return parts_to_heads(b, q, hp->heads);
}

mil_ref parts_attend(struct mb *b, mil_ref q, mil_ref k, mil_ref v, mil_ref cap)
{
    mil_ref s = MB(b, matmul, .x = q, .y = k, .transpose_x = mb_bool(b, false),
                   .transpose_y = mb_bool(b, true));

    s = MB(b, minimum, .x = s, .y = cap);
    s = MB(b, softmax, .x = s, .axis = mb_int(b, -1));
    return MB(b, matmul, .x = s, .y = v, .transpose_x = mb_bool(b, false),
              .transpose_y = mb_bool(b, false));
}

mil_ref parts_touch(struct mb *b, mil_ref content, mil_ref x)
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

mil_ref parts_attention(struct mb *b, const struct graph *g, struct decoder *d,
                        int64_t layer, int64_t slot, mil_ref x, bool qk_norm)
{
    const struct hparams *hp = g->hp;
    bool bias = hp->attention_bias;
    double scale = d->partial ? 1.0 / sqrt((double)hp->head_dim) : 0;
    char tq[128], tk[128];
    struct norm_spec nq = {
        .tensor = layer_tensor(tq, layer, "self_attn.q_norm.weight"),
        .factor = scale,
    };
    struct norm_spec nk = {
        .tensor = layer_tensor(tk, layer, "self_attn.k_norm.weight"),
    };
    mil_ref in = parts_to_conv(b, x), q, k, v, o, gate;

    q = queries(b, g, layer, in, &gate);
    k = parts_to_heads(b, project(b, g, layer, "self_attn.k_proj", bias, 0, in),
                       hp->kv_heads);
    v = parts_to_heads(b, project(b, g, layer, "self_attn.v_proj", bias, 0, in),
                       hp->kv_heads);
    if (qk_norm) {
        q = parts_norm(b, g, q, &nq);
        k = parts_norm(b, g, k, &nk);
    } else if (d->partial) {
        q = MB(b, mul, .x = q, .y = mb_f16(b, scale));
    }
    q = parts_rotate(b, q, d->cos_q, d->sin_q);
    k = parts_rotate(b, k, d->cos, d->sin);
    parts_cache_write(b, &d->kv, slot, k);
    parts_cache_write(b, &d->kv, d->slots + slot, v);
    k = cache_read(b, g, d, slot);
    v = cache_read(b, g, d, d->slots + slot);
    o = parts_from_heads(b, parts_attend(b, q, k, v, d->cap));
    if (gate) /* o sigmoid(2 h) = o / 2 (1 + tanh h): the half is in W_o */
        o = MB(b, mul, .x = o,
               .y = MB(b, add, .x = MB(b, tanh, .x = gate),
                       .y = mb_f16(b, 1.0)));
    return parts_from_conv(b, project(b, g, layer, "self_attn.o_proj", bias,
                                      g->stream_exp - (gate ? 1 : 0), o));
}

/* ---- MLP ---- */

mil_ref parts_silu_mlp(struct mb *b, const struct graph *g, int64_t layer,
                       mil_ref x)
{
    bool bias = g->hp->mlp_bias;
    mil_ref in = parts_to_conv(b, x), half, up, act;

    half = project(b, g, layer, "mlp.gate_proj", bias, -1, in);
    up = project(b, g, layer, "mlp.up_proj", bias, 0, in);
    act = parts_silu_of_half(b, half);
    act = MB(b, mul, .x = act, .y = up);
    return parts_from_conv(b, project(b, g, layer, "mlp.down_proj", bias,
                                      g->stream_exp, act));
}

/* ---- whole models ---- */

void parts_plain_chunk(struct mb *b, const struct graph *g, bool qk_norm)
{
    struct decoder d;
    mil_ref x;
    char t[128];

    parts_decoder_begin(b, g, &d, &x);
    for (int64_t i = 0; i < g->n_layers; i++) {
        int64_t l = g->first_layer + i;
        mil_ref y;

        mb_scope(b, "layers_%lld", (long long)l);
        y = parts_rms_norm(b, g, x,
                           layer_tensor(t, l, "input_layernorm.weight"));
        y = parts_attention(b, g, &d, l, l, y, qk_norm);
        x = MB(b, add, .x = x, .y = y);
        if (g->last_chunk && i == g->n_layers - 1)
            x = parts_last_token(b, g, x);
        y = parts_rms_norm(b, g, x,
                           layer_tensor(t, l,
                                        "post_attention_layernorm.weight"));
        x = MB(b, add, .x = x, .y = parts_silu_mlp(b, g, l, y));
        mb_leave(b);
    }
    parts_decoder_end(b, g, x);
}

mil_ref parts_gather_rows(struct mb *b, const struct graph *g, mil_ref ids,
                          const char *tensor, double scale, int scale_exp)
{
    struct weight_spec s = { .tensor = tensor, .role = MIL_ROLE_EMBEDDING };
    int exp = 0;
    double rest = scale > 0 ? 2 * frexp(scale, &exp) : 1; /* 1 <= rest < 2 */
    bool exact = (double)f16_to_f32(f64_to_f16(rest)) == rest;
    mil_ref x;

    s.scale_exp = scale_exp + (scale > 0 ? exp - 1 : 0);
    if (!exact)
        s.factor = rest;
    x = MB(b, gather, .x = parts_weight(b, g, &s), .indices = ids,
           .axis = mb_int(b, 0), .batch_dims = mb_int(b, 0),
           .validate_indices = mb_bool(b, false));
    if (exact && rest > 1)
        x = MB(b, mul, .x = x, .y = mb_f16(b, rest));
    return x;
}

mil_ref parts_embed(struct mb *b, const struct graph *g, mil_ref *ids)
{
    mil_ref x;

    *ids =
        mb_input(b, "input_ids", MIL_I32, 2, (int64_t[]){ 1, MIL_DIM_UNKNOWN });
    x = parts_gather_rows(b, g, *ids, "embed_tokens.weight", g->hp->embed_scale,
                          g->stream_exp);
    mb_output(b, "hidden_states", x);
    return x;
}

void parts_embeddings(struct mb *b, const struct graph *g)
{
    mil_ref ids;

    parts_embed(b, g, &ids);
}

/* c tanh(x / c) */
static mil_ref soft_cap(struct mb *b, mil_ref x, double c)
{
    if (c == 0)
        return x;
    x = MB(b, real_div, .x = x, .y = mb_f16(b, c));
    x = MB(b, tanh, .x = x);
    return MB(b, mul, .x = x, .y = mb_f16(b, c));
}

void parts_lm_head(struct mb *b, const struct graph *g)
{
    mil_ref x = mb_input(b, "hidden_states", MIL_F16, 3,
                         (int64_t[]){ 1, 1, g->hp->hidden });
    uint64_t row = 0;

    x = parts_to_conv(b, x);
    for (int i = 0; i < g->n_head_parts; i++) {
        struct weight_spec s = { .tensor = "lm_head.weight",
                                 .role = MIL_ROLE_HEAD,
                                 .row = row,
                                 .rows = (uint64_t)g->head_sizes[i],
                                 .conv = true };
        mil_ref w = parts_weight(b, g, &s), y;
        char name[32];

        y = parts_from_conv(b, mb_conv1x1(b, x, w, 0));
        snprintf(name, sizeof(name), "logits%d", i + 1);
        mb_output(b, name, soft_cap(b, y, g->hp->final_softcap));
        row += (uint64_t)g->head_sizes[i];
    }
}
