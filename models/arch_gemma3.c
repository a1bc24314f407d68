/*
 * Gemma 3 (text): sliding windows between layers that see everything, norms
 * on both ends of each branch, per-head q/k norms, zero-centred weights.
 *
 * States and functions are those that ANEMLL's runtimes know. The state of
 * sliding layers holds the last `window` positions. While positions are below
 * the window, position p is in slot p; from there on runtimes call
 * infer_rotate and prefill_rotate, which drop the oldest and append, so that
 * the last slot is the newest position. A batch sees what was in the state
 * before it and its own tokens, each token its own window of them.
 */
#include <math.h>
#include <string.h>

#include "models/hp_gemma_priv.h"
#include "models/oracle_priv.h"
#include "models/parts_gemma.h"

/* The whole context is in the state of sliding layers. */
static bool is_short(const struct hparams *hp, int64_t ctx)
{
    return ctx <= hp->window;
}

static bool gemma3_rotates(const struct hparams *hp, int64_t ctx)
{
    return gemma_slots_before(hp, true, hp->layers) && !is_short(hp, ctx);
}

/* Keys of the j-th layer of a kind in row j, values behind the keys of all. */
static int gemma3_states(const struct hparams *hp, int64_t ctx, int64_t batch,
                         struct state_desc out[MAX_STATES])
{
    (void)batch;
    return gemma_states(hp, ctx, is_short(hp, ctx) ? ctx : hp->window, 2, 1,
                        out);
}

/* ---- sliding layers ---- */

/* A batch attends to the state's positions and its own. */
static bool is_wide(const struct graph *g)
{
    return g->tokens > 1 && !is_short(g->hp, g->ctx);
}

static void begin_sliding(struct mb *b, const struct graph *g, struct gemma *d)
{
    struct gemma_kind *k = &d->sliding;
    int64_t W = g->hp->window;
    mil_ref base = 0;

    k->kv.pos = d->full.kv.pos;
    k->kv.pos_end = d->full.kv.pos_end;
    k->cap = d->full.cap;
    if (is_short(g->hp, g->ctx))
        return;
    if (is_wide(g)) {
        if (g->rotate)
            base = MB(b, sub, .x = d->in.pos, .y = MB_INTS(b, (int32_t)W));
        base = gemma_column(b, d->in.ids, base);
        k->cap = gemma_window(b, base, W + g->tokens, W, 0);
    } else {
        k->cap =
            g->rotate ? mb_f16(b, PARTS_MASK) : parts_slice(b, k->cap, 3, 0, W);
    }
}

/* Writes a whole row of the state. */
static void write_row(struct mb *b, struct kv_store *c, int64_t row, mil_ref x)
{
    mil_ref begin = MB_INTS(b, (int32_t)row, 0, 0, 0);
    mil_ref end = MB_INTS(b, (int32_t)row + 1, 0, 0, 0);
    mil_ref masks = MB_BOOLS(b, false, true, true, true);
    mil_ref next = MB(b, slice_update, .x = c->now, .update = x, .begin = begin,
                      .end = end, .stride = MB_INTS(b, 1, 1, 1, 1),
                      .begin_mask = masks, .end_mask = masks,
                      .squeeze_mask = MB_BOOLS(b, false, false, false, false));

    MB(b, write_state, .input = c->state, .data = next);
    c->now = MB(b, read_state, .input = c->state);
}

/* int32 [4]: (0, 0, at, 0) */
static mil_ref place(struct mb *b, mil_ref at)
{
    mil_ref zero = MB_INTS(b, 0);

    return MB(b, concat, .values = MB_REFS(zero, zero, at, zero),
              .axis = mb_int(b, 0), .interleave = mb_bool(b, false));
}

/* A batch below the window, which may reach beyond it: with the old row and
 * room for a batch behind it, positions are places. Keeps the last `window` of
 * them. */
static mil_ref put_batch(struct mb *b, const struct graph *g,
                         struct kv_store *c, int64_t row, mil_ref all,
                         mil_ref x)
{
    mil_ref masks = MB_BOOLS(b, true, true, false, true);
    mil_ref begin = place(b, c->pos), end = place(b, c->pos_end), from;
    int32_t W = (int32_t)g->hp->window;

    all = MB(b, slice_update, .x = all, .update = x, .begin = begin, .end = end,
             .stride = MB_INTS(b, 1, 1, 1, 1), .begin_mask = masks,
             .end_mask = masks,
             .squeeze_mask = MB_BOOLS(b, false, false, false, false));
    from = MB(b, sub, .x = c->pos_end, .y = MB_INTS(b, W));
    from = MB(b, maximum, .x = from, .y = MB_INTS(b, 0));
    from = place(b, from);
    x = MB(b, slice_by_size, .x = all, .begin = from,
           .size = MB_INTS(b, 1, (int32_t)mb_dim(b, all, 1), W,
                           (int32_t)mb_dim(b, all, 3)));
    write_row(b, c, row, x);
    return all;
}

/* Stores this call's keys or values [1, NKV, T, D] in a row; returns those
 * that the call attends to, or 0 where they are the row itself. That is read
 * when both are written: a view of the state that outlives a write makes
 * whoever runs the graph copy the whole of it. */
static mil_ref keep(struct mb *b, const struct graph *g, struct kv_store *c,
                    int64_t row, bool sliding, mil_ref x)
{
    int64_t T = mb_dim(b, x, 2);
    mil_ref all;

    if (!sliding || (!is_wide(g) && !g->rotate)) {
        parts_cache_write(b, c, row, x);
        return 0;
    }
    all = parts_slice(b, c->now, 0, row, 1);
    all = MB(b, concat, .values = MB_REFS(all, x), .axis = mb_int(b, 2),
             .interleave = mb_bool(b, false));
    if (!g->rotate)
        return put_batch(b, g, c, row, all, x);
    x = parts_slice(b, all, 2, T, g->hp->window);
    write_row(b, c, row, x);
    return T > 1 ? all : 0;
}

/* ---- layers ---- */

/* The matrix times 2^exp. */
static mil_ref heads(struct mb *b, const struct graph *g, int64_t layer,
                     const char *name, int exp, int64_t n, mil_ref in)
{
    struct weight_spec s = { .scale_exp = exp };

    return parts_to_heads(b, parts_project(b, g, layer, name, false, s, in), n);
}

/* The norm of queries or keys; `factor` goes into its weight. */
static mil_ref turn(struct mb *b, const struct graph *g,
                    const struct gemma_kind *kind, int64_t layer,
                    const char *name, double factor, mil_ref x)
{
    char t[128];
    struct norm_spec s = { .tensor = gemma_tensor(t, layer, name),
                           .factor = factor,
                           .eps = gemma_matrix_eps(g) };

    x = parts_norm(b, g, x, &s);
    return parts_rotate(b, x, kind->cos, kind->sin);
}

static void narrow(struct mb *b, const struct graph *g, struct gemma *d,
                   int64_t layer, mil_ref *x, mil_ref *y)
{
    if (!g->last_chunk || g->tokens == 1 || layer != gemma_last_store(g))
        return;
    gemma_narrow(b, d);
    *x = parts_last_token(b, g, *x);
    *y = parts_slice(b, *y, 3, g->tokens - 1, 1);
}

static mil_ref layer(struct mb *b, const struct graph *g, struct gemma *d,
                     int64_t l, mil_ref x)
{
    const struct hparams *hp = g->hp;
    bool sliding = gemma_is_sliding(hp, l);
    struct gemma_kind *kind = gemma_kind_of(g, d, l);
    int64_t n = hp_layer_kv_heads(hp, l);
    int64_t slot = gemma_slots_before(hp, sliding, l);
    double scale = 1 / sqrt(hp->query_pre_attn_scalar);
    double eps = gemma_matrix_eps(g);
    struct weight_spec end = { .scale_exp = g->norm_exp };
    mil_ref y = gemma_pre_norm(b, g, l, "input_layernorm.weight", x), q, k, v;

    y = parts_to_conv(b, y);
    k = heads(b, g, l, "self_attn.k_proj", g->norm_exp, n, y);
    v = heads(b, g, l, "self_attn.v_proj", 0, n, y);
    k = turn(b, g, kind, l, "self_attn.k_norm.weight", 0, k);
    k = keep(b, g, &kind->kv, slot, sliding, k);
    v = keep(b, g, &kind->kv, kind->slots + slot, sliding, v);
    if (!k && !v) {
        k = parts_slice(b, kind->kv.now, 0, slot, 1);
        v = parts_slice(b, kind->kv.now, 0, kind->slots + slot, 1);
    }
    narrow(b, g, d, l, &x, &y);
    q = heads(b, g, l, "self_attn.q_proj", g->norm_exp, hp->heads, y);
    q = turn(b, g, kind, l, "self_attn.q_norm.weight", scale, q);
    q = parts_from_heads(b, gemma_attend(b, q, k, v, kind->cap));
    y = parts_project(b, g, l, "self_attn.o_proj", false, end, q);
    y = parts_from_conv(b, y);
    x = gemma_add_branch(b, g, l, "post_attention_layernorm.weight", eps, x, y);
    y = gemma_pre_norm(b, g, l, "pre_feedforward_layernorm.weight", x);
    y = parts_from_conv(b, gemma_mlp(b, g, l, parts_to_conv(b, y)));
    return gemma_add_branch(b, g, l, "post_feedforward_layernorm.weight", eps,
                            x, y);
}

static void gemma3_chunk(struct mb *b, const struct graph *g)
{
    struct state_desc st[MAX_STATES];
    struct gemma d;
    mil_ref x;
    int n = gemma3_states(g->hp, g->ctx, g->batch, st);

    parts_inputs(b, g, &d.in);
    gemma_begin(b, g, &d, st, n);
    for (int i = 0; i < n; i++)
        mem_free(st[i].layers);
    if (d.sliding.cos)
        begin_sliding(b, g, &d);
    x = d.in.hidden;
    for (int64_t i = 0; i < g->n_layers; i++) {
        int64_t l = g->first_layer + i;

        mb_scope(b, "layers_%lld", (long long)l);
        x = layer(b, g, &d, l, x);
        mb_leave(b);
    }
    gemma_end(b, g, &d, x);
}

static const char *const types[] = { "gemma3", "gemma3_text", NULL };
static const char *const classes[] = { "Gemma3ForConditionalGeneration",
                                       "Gemma3ForCausalLM", "Gemma3TextModel",
                                       "Gemma3Model", NULL };
static const char *const ignore[] = { "rotary_emb.inv_freq", "vision_tower",
                                      "multi_modal_projector", NULL };

const struct model_arch arch_gemma3 = {
    .name = "gemma3",
    .model_types = types,
    .architectures = classes,
    .prefix = "gemma3",
    .tokenizer_class = "GemmaTokenizer",
    .head_parts = 16,
    .parse = hp_parse_gemma3,
    .needs = needs_gemma3,
    .ignore = ignore,
    .layout = layout_gemma,
    .scales_stream = true,
    .norms_branches = true,
    .count = count_gemma3,
    .states = gemma3_states,
    .rotates = gemma3_rotates,
    .embeddings = parts_embeddings,
    .chunk = gemma3_chunk,
    .head = parts_lm_head,
    .oracle = &oracle_gemma3,
};
