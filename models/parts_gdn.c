/*
 * The Gated DeltaNet mixer; see parts_gdn.h for the formulas.
 *
 * Heads are laid out [1, NV, T, d]. The chunked form works on C tokens at a
 * time: with G the running sum of g, D_ij = e^(G_i - G_j) for j <= i,
 *     A_ij = beta_i (k_i . k_j) D_ij for j < i,  Tinv = (I + A)^-1
 *     n = Tinv (beta v) - Tinv (beta e^G k) S0
 *     o = (e^G q) S0 + ((q k^T) D) n
 *     S = e^(G_last) S0 + (e^(G_last - G) k)^T n
 * G_i - G_j is summed term by term (a product with a triangle of ones), never
 * taken as a difference of long sums, and the inverse is built by doubling
 * the size of inverted diagonal blocks: every op is a product or elementwise.
 */
#include "models/parts_gdn.h"

#include <math.h>
#include <stdio.h>

#include "converter/base/num.h"

int64_t gdn_chunk(int64_t batch)
{
    int64_t n = batch < GDN_CHUNK_MAX ? batch : GDN_CHUNK_MAX;

    while (n > 1 && batch % n)
        n--;
    return n >= GDN_CHUNK_MIN || n == batch ? n : 0;
}

void gdn_state_dims(const struct hparams *hp, int64_t n, int64_t memory[3],
                    int64_t history[3])
{
    memory[0] = n * hp->lin_value_heads;
    memory[1] = hp->lin_key_dim;
    memory[2] = hp->lin_value_dim;
    history[0] = n;
    history[1] = hp->conv_kernel - 1;
    history[2] = 2 * hp->lin_key_heads * hp->lin_key_dim +
                 hp->lin_value_heads * hp->lin_value_dim;
}

double gdn_query_scale(int64_t key_dim)
{
    double s = 1;

    while (4 * s * s <= (double)key_dim)
        s *= 2;
    return s;
}

/* ---- small forms ---- */

static mil_ref mul(struct mb *b, mil_ref x, mil_ref y)
{
    return MB(b, mul, .x = x, .y = y);
}

static mil_ref scale(struct mb *b, mil_ref x, double f)
{
    return MB(b, mul, .x = x, .y = mb_f16(b, f));
}

static mil_ref add(struct mb *b, mil_ref x, mil_ref y)
{
    return MB(b, add, .x = x, .y = y);
}

static mil_ref product(struct mb *b, mil_ref x, mil_ref y, bool tx, bool ty)
{
    return MB(b, matmul, .x = x, .y = y, .transpose_x = mb_bool(b, tx),
              .transpose_y = mb_bool(b, ty));
}

static mil_ref tensor(struct mb *b, const struct graph *g, int64_t layer,
                      const char *name, struct weight_spec s)
{
    char t[128];

    snprintf(t, sizeof(t), "layers.%lld.linear_attn.%s", (long long)layer,
             name);
    s.tensor = t;
    return parts_weight(b, g, &s);
}

static mil_ref conv_of(struct mb *b, const struct graph *g, int64_t layer,
                       const char *name, enum mil_role role, int exp,
                       mil_ref bias, mil_ref x)
{
    struct weight_spec s = { .role = role, .scale_exp = exp, .conv = true };

    return mb_conv1x1(b, x, tensor(b, g, layer, name, s), bias);
}

/* ---- constants of the chunked form ---- */

/* f(i, j) as an fp16 constant [1, 1, C, C]. */
static mil_ref square(struct mb *b, int64_t C, const char *name,
                      bool (*f)(int64_t i, int64_t j, int64_t arg), int64_t arg)
{
    struct err e = ERR_INIT;
    size_t n = (size_t)(C * C);
    struct mil_data *d = arena_alloc(&b->program->arena, 1, sizeof(*d), &e);
    unsigned char *v = arena_alloc(&b->program->arena, n, 2, &e);

    if (!d || !v)
        return mb_fail(b, e.code, "%s", e.text);
    for (int64_t i = 0; i < C; i++)
        for (int64_t j = 0; j < C; j++)
            store_le16(v + 2 * (i * C + j), f(i, j, arg) ? 0x3c00 : 0);
    d->type = mil_type_make(MIL_F16, 4, (int64_t[]){ 1, 1, C, C });
    d->bytes = 2 * n;
    d->read = mil_data_read_memory;
    d->cookie = v;
    return mb_data(b, name, d);
}

static bool at_or_below(int64_t i, int64_t j, int64_t arg)
{
    (void)arg;
    return j <= i;
}

static bool below(int64_t i, int64_t j, int64_t arg)
{
    (void)arg;
    return j < i;
}

static bool diagonal(int64_t i, int64_t j, int64_t arg)
{
    (void)arg;
    return i == j;
}

/* The lower left quarters of diagonal blocks of 2 * size. */
static bool quarter(int64_t i, int64_t j, int64_t size)
{
    return i / (2 * size) == j / (2 * size) && i / size % 2 == 1 &&
           j / size % 2 == 0;
}

/* (I + A)^-1 for strictly lower A [1, NV, C, C]. With X the inverse of the
 * diagonal blocks of one size, X - X (A in the quarters) X is that of blocks
 * twice as large. */
static mil_ref unit_inverse(struct mb *b, mil_ref a, int64_t C)
{
    mil_ref x = MB(b, sub, .x = square(b, C, "eye", diagonal, 0),
                   .y = mul(b, a, square(b, C, "quarters_1", quarter, 1)));

    for (int64_t size = 2; size < C; size *= 2) {
        char name[32];
        mil_ref off;

        snprintf(name, sizeof(name), "quarters_%lld", (long long)size);
        off = mul(b, a, square(b, C, name, quarter, size));
        off = product(b, product(b, x, off, false, false), x, false, false);
        x = MB(b, sub, .x = x, .y = off);
    }
    return x;
}

/* ---- inputs of the recurrence ---- */

/* Channels [first, first + n * d) of [1, channels, 1, T] as [1, n, T, d]. */
static mil_ref heads(struct mb *b, mil_ref x, int64_t first, int64_t n,
                     int64_t d, int64_t T)
{
    x = parts_slice(b, x, 1, first, n * d);
    if (T == 1)
        return MB_RESHAPE(b, x, 1, (int32_t)n, 1, (int32_t)d);
    x = MB_RESHAPE(b, x, 1, (int32_t)n, (int32_t)d, (int32_t)T);
    return MB_TRANSPOSE(b, x, 0, 1, 3, 2);
}

/* x / sqrt(sum x^2 + 1e-6) per head and token, times `factor`. */
static mil_ref unit(struct mb *b, mil_ref x, double factor)
{
    mil_ref r = MB(b, reduce_sum_square, .x = x, .axes = MB_INTS(b, -1),
                   .keep_dims = mb_bool(b, true));

    r = MB(b, rsqrt, .x = r, .epsilon = mb_f16(b, 1e-6));
    return mul(b, x, factor == 1 ? r : scale(b, r, factor));
}

/* Each key head for its nv / nk value heads, side by side. */
static mil_ref spread(struct mb *b, const struct hparams *hp, mil_ref x,
                      int64_t T)
{
    int32_t nk = (int32_t)hp->lin_key_heads, d = (int32_t)hp->lin_key_dim;
    int32_t r = (int32_t)(hp->lin_value_heads / hp->lin_key_heads);

    if (r == 1)
        return x;
    x = MB_RESHAPE(b, x, nk, 1, (int32_t)T, d);
    x = MB(b, tile, .x = x, .reps = MB_INTS(b, 1, r, 1, 1));
    return MB_RESHAPE(b, x, 1, nk * r, (int32_t)T, d);
}

/* [1, NV, 1, T] to [1, NV, T, 1]. */
static mil_ref per_token(struct mb *b, mil_ref x)
{
    return MB_TRANSPOSE(b, x, 0, 1, 3, 2);
}

/* The causal convolution over the history and this call's tokens, then SiLU;
 * keeps the last K - 1 inputs. */
static mil_ref convolve(struct mb *b, const struct graph *g, struct gdn *s,
                        int64_t layer, int64_t j, mil_ref mixed)
{
    int64_t T = g->tokens, K = g->hp->conv_kernel;
    int64_t C = mb_dim(b, mixed, 1);
    struct weight_spec spec = { .role = MIL_ROLE_NORM,
                                .scale_exp = -1,
                                .conv = true };
    mil_ref rows = parts_from_conv(b, mixed); /* [1, T, C] */
    mil_ref past = parts_slice(b, s->history, 0, j, 1);
    mil_ref window = MB(b, concat, .values = MB_REFS(past, rows),
                        .axis = mb_int(b, 1), .interleave = mb_bool(b, false));
    mil_ref keep = parts_slice(b, window, 1, T, K - 1), next;
    mil_ref w = tensor(b, g, layer, "conv1d.weight", spec);

    next = MB(b, slice_update, .x = s->history, .update = keep,
              .begin = MB_INTS(b, (int32_t)j, 0, 0),
              .end = MB_INTS(b, (int32_t)j + 1, 0, 0),
              .stride = MB_INTS(b, 1, 1, 1),
              .begin_mask = MB_BOOLS(b, false, true, true),
              .end_mask = MB_BOOLS(b, false, true, true),
              .squeeze_mask = MB_BOOLS(b, false, false, false));
    MB(b, write_state, .input = s->conv, .data = next);
    s->history = MB(b, read_state, .input = s->conv);

    mb_name(b, "linear_attn_conv1d");
    return parts_silu_of_half(b, MB(b, conv, .x = parts_to_conv(b, window),
                                    .weight = w, .strides = MB_INTS(b, 1, 1),
                                    .pad_type = mb_string(b, "valid"),
                                    .pad = MB_INTS(b, 0, 0, 0, 0),
                                    .dilations = MB_INTS(b, 1, 1),
                                    .groups = mb_int(b, (int32_t)C)));
}

/* ln(1 + e^x), which is never below x. The Neural Engine's is 0 where e^x is
 * too large for it, reported from 10.4 on: there it is x to the last bit. */
static mil_ref softplus(struct mb *b, mil_ref x)
{
    return MB(b, maximum, .x = MB(b, softplus, .x = x), .y = x);
}

/* beta = sigmoid(b) with W_b / 2 in the convolution; g = -e^A_log
 * softplus(a + dt_bias). */
static void gates(struct mb *b, const struct graph *g, int64_t layer,
                  mil_ref in, struct gdn_in *r)
{
    int64_t nv = g->hp->lin_value_heads;
    struct weight_spec bias = { .role = MIL_ROLE_NORM };
    struct weight_spec decay = { .role = MIL_ROLE_NORM,
                                 .neg_exp = true,
                                 .rank = 4,
                                 .dims = { 1, nv, 1, 1 } };
    mil_ref x;

    x = conv_of(b, g, layer, "in_proj_b.weight", MIL_ROLE_NORM, -1, 0, in);
    x = MB(b, tanh, .x = x);
    x = scale(b, add(b, x, mb_f16(b, 1.0)), 0.5);
    r->beta = per_token(b, x);
    x = conv_of(b, g, layer, "in_proj_a.weight", MIL_ROLE_NORM, 0,
                tensor(b, g, layer, "dt_bias", bias), in);
    x = softplus(b, x);
    x = mul(b, x, tensor(b, g, layer, "A_log", decay));
    r->g = per_token(b, x);
}

static struct gdn_in inputs(struct mb *b, const struct graph *g, struct gdn *s,
                            int64_t layer, int64_t j, mil_ref in)
{
    const struct hparams *hp = g->hp;
    int64_t T = g->tokens, nk = hp->lin_key_heads, dk = hp->lin_key_dim;
    int64_t nv = hp->lin_value_heads, dv = hp->lin_value_dim;
    mil_ref c = conv_of(b, g, layer, "in_proj_qkv.weight", MIL_ROLE_PROJECTION,
                        0, 0, in);
    struct gdn_in r = { 0 };

    c = convolve(b, g, s, layer, j, c);
    r.q = unit(b, heads(b, c, 0, nk, dk, T), gdn_query_scale(dk));
    r.q = spread(b, hp, r.q, T);
    r.k = unit(b, heads(b, c, nk * dk, nk, dk, T), 1);
    r.k = spread(b, hp, r.k, T);
    r.v = scale(b, heads(b, c, 2 * nk * dk, nv, dv, T), sqrt((double)dk));
    gates(b, g, layer, in, &r);
    return r;
}

/* ---- the recurrence ---- */

/* One token; *s is the state [1, NV, dk, dv]. */
static mil_ref one_step(struct mb *b, const struct gdn_in *r, mil_ref *s)
{
    mil_ref old = mul(b, *s, MB(b, exp, .x = r->g));
    mil_ref known = product(b, r->k, old, false, false);
    mil_ref delta = mul(b, MB(b, sub, .x = r->v, .y = known), r->beta);

    *s = add(b, old, product(b, r->k, delta, true, false));
    return product(b, r->q, *s, false, false);
}

/* C tokens at once. */
static mil_ref one_chunk(struct mb *b, const struct gdn_in *r, int64_t C,
                         mil_ref *s)
{
    mil_ref ones = square(b, C, "at_or_below", at_or_below, 0);
    mil_ref strict = square(b, C, "below", below, 0);
    /* Row l of g in the columns before l; summed down to row i: the terms
     * j < l <= i. */
    mil_ref terms = mul(b, strict, r->g);
    mil_ref decay = MB(b, exp, .x = product(b, ones, terms, false, false));
    mil_ref from_start = MB(b, exp, .x = product(b, ones, r->g, false, false));
    mil_ref last = parts_slice(b, decay, 2, C - 1, 1); /* [1, NV, 1, C] */
    mil_ref kb = mul(b, r->k, r->beta), a, inv, n, u, o, from_state, k_end;

    decay = mul(b, decay, ones);
    a = product(b, kb, r->k, false, true);
    a = mul(b, mul(b, a, decay), strict);
    inv = unit_inverse(b, a, C);
    u = product(b, inv, mul(b, r->v, r->beta), false, false);
    n = product(b, inv, mul(b, kb, from_start), false, false);
    n = MB(b, sub, .x = u, .y = product(b, n, *s, false, false));

    o = mul(b, product(b, r->q, r->k, false, true), decay);
    o = product(b, o, n, false, false);
    from_state = product(b, mul(b, r->q, from_start), *s, false, false);
    o = add(b, from_state, o);
    k_end = mul(b, r->k, MB_TRANSPOSE(b, last, 0, 1, 3, 2));
    *s = mul(b, *s, parts_slice(b, from_start, 2, C - 1, 1));
    *s = add(b, *s, product(b, k_end, n, true, false));
    return o;
}

static mil_ref all_chunks(struct mb *b, const struct gdn_in *r, int64_t T,
                          int64_t C, mil_ref *s)
{
    mil_ref out = 0;

    for (int64_t at = 0; at < T; at += C) {
        struct gdn_in part = *r;
        mil_ref o;

        if (C < T) {
            part.q = parts_slice(b, r->q, 2, at, C);
            part.k = parts_slice(b, r->k, 2, at, C);
            part.v = parts_slice(b, r->v, 2, at, C);
            part.beta = parts_slice(b, r->beta, 2, at, C);
            part.g = parts_slice(b, r->g, 2, at, C);
        }
        o = one_chunk(b, &part, C, s);
        out = out ? MB(b, concat, .values = MB_REFS(out, o),
                       .axis = mb_int(b, 2), .interleave = mb_bool(b, false))
                  : o;
    }
    return out;
}

mil_ref gdn_recurrence(struct mb *b, const struct gdn_in *in, int64_t T,
                       int64_t chunk, mil_ref *memory)
{
    return T == 1 ? one_step(b, in, memory)
                  : all_chunks(b, in, T, chunk, memory);
}

/* RMS norm with a plain weight (scale-free, see the header), then silu(z). */
static mil_ref gated_norm(struct mb *b, const struct graph *g, int64_t layer,
                          mil_ref o, mil_ref in)
{
    const struct hparams *hp = g->hp;
    double dk = (double)hp->lin_key_dim;
    int64_t nv = hp->lin_value_heads, dv = hp->lin_value_dim;
    struct weight_spec s = { .role = MIL_ROLE_NORM };
    mil_ref z = conv_of(b, g, layer, "in_proj_z.weight", MIL_ROLE_PROJECTION,
                        -1, 0, in);

    o = parts_rms(b, o, hp->rms_eps * dk * dk);
    o = mul(b, o, tensor(b, g, layer, "norm.weight", s));
    return mul(b, o, parts_silu_of_half(b, heads(b, z, 0, nv, dv, g->tokens)));
}

static void store(struct mb *b, struct gdn *s, int64_t j, int64_t nv,
                  mil_ref update)
{
    int32_t first = (int32_t)(j * nv);
    mil_ref next = MB(b, slice_update, .x = s->memory, .update = update,
                      .begin = MB_INTS(b, first, 0, 0),
                      .end = MB_INTS(b, first + (int32_t)nv, 0, 0),
                      .stride = MB_INTS(b, 1, 1, 1),
                      .begin_mask = MB_BOOLS(b, false, true, true),
                      .end_mask = MB_BOOLS(b, false, true, true),
                      .squeeze_mask = MB_BOOLS(b, false, false, false));

    MB(b, write_state, .input = s->state, .data = next);
    s->memory = MB(b, read_state, .input = s->state);
}

mil_ref gdn_mixer(struct mb *b, const struct graph *g, struct gdn *s,
                  int64_t layer, int64_t j, int64_t chunk, mil_ref x)
{
    const struct hparams *hp = g->hp;
    int32_t nv = (int32_t)hp->lin_value_heads, dk = (int32_t)hp->lin_key_dim;
    int32_t dv = (int32_t)hp->lin_value_dim, T = (int32_t)g->tokens;
    mil_ref in = parts_to_conv(b, x), state, o;
    struct gdn_in r = inputs(b, g, s, layer, j, in);

    state =
        MB_RESHAPE(b, parts_slice(b, s->memory, 0, j * nv, nv), 1, nv, dk, dv);
    o = gdn_recurrence(b, &r, T, chunk, &state);
    store(b, s, j, nv, MB_RESHAPE(b, state, nv, dk, dv));
    o = scale(b, o, 1 / gdn_query_scale(dk));

    o = gated_norm(b, g, layer, o, in);
    if (T > 1)
        o = MB_TRANSPOSE(b, o, 0, 1, 3, 2);
    o = MB_RESHAPE(b, o, 1, nv * dv, 1, T);
    return parts_from_conv(b,
                           conv_of(b, g, layer, "out_proj.weight",
                                   MIL_ROLE_PROJECTION, g->stream_exp, 0, o));
}
