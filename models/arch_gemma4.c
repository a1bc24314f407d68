/*
 * Gemma 4, dense and mixture of experts: sliding and full attention with
 * different heads, norms before and after every branch, per-layer embeddings,
 * late layers that read the keys and values of earlier ones, a scalar on the
 * stream at the end of each layer, a soft cap on the logits.
 *
 * The cache of sliding layers. A context beyond the window and two batches
 * keeps window + 2 batch positions of them, by blocks of `batch` positions:
 * after a call whose last position is e, slot j holds position base + j, with
 * base = (e / batch + 1) batch - length. A call that enters a new block first
 * moves its layers' slots down by one block. A position's slot depends on its
 * block alone, so infer and prefill read the same keys in the same order.
 * Shorter contexts keep all positions and mask the window.
 */
#include <math.h>
#include <string.h>

#include "models/fp16_range.h"
#include "models/hp_gemma_priv.h"
#include "models/oracle_priv.h"
#include "models/parts_gemma.h"
#include "models/parts_moe.h"

struct gemma4 {
    struct gemma kinds;
    mil_ref ple; /* of the chunk's layers [1, n * P, 1, T]; 0: none */
};

/* ---- states ---- */

static int64_t shifting_length(const struct hparams *hp, int64_t batch)
{
    return hp->window + 2 * batch;
}

static bool shifts(const struct hparams *hp, int64_t ctx, int64_t batch)
{
    return ctx > shifting_length(hp, batch);
}

/* Keys and values of a layer in one row: keys first. */
static int gemma4_states(const struct hparams *hp, int64_t ctx, int64_t batch,
                         struct state_desc out[MAX_STATES])
{
    int64_t length = shifts(hp, ctx, batch) ? shifting_length(hp, batch) : ctx;

    return gemma_states(hp, ctx, length, 1, 2, out);
}

/* ---- the cache of sliding layers ---- */

/* One block, where the call enters a new one; infer does at multiples of the
 * batch. int32 [1]. */
static mil_ref shift_by(struct mb *b, const struct graph *g, mil_ref pos,
                        mil_ref block)
{
    mil_ref size = MB_INTS(b, (int32_t)g->batch), before;

    if (g->tokens > 1)
        return size;
    before = MB(b, sub, .x = pos, .y = MB_INTS(b, 1));
    before = MB(b, floor_div, .x = before, .y = size);
    before = MB(b, sub, .x = block, .y = before);
    return MB(b, mul, .x = before, .y = size);
}

/* Moves the slots of this chunk's layers. */
static void shift(struct mb *b, const struct graph *g, struct gemma_kind *k,
                  mil_ref by)
{
    int64_t end = g->first_layer + g->n_layers;
    int32_t first = (int32_t)gemma_slots_before(g->hp, true, g->first_layer);
    int32_t last = (int32_t)gemma_slots_before(g->hp, true, end);
    int32_t keep = (int32_t)(k->length - g->batch);
    struct mil_type t = mb_type(b, k->kv.now);
    mil_ref zero = MB_INTS(b, 0), begin, rows, next;

    if (first == last || !t.rank)
        return;
    begin = MB(b, concat, .values = MB_REFS(MB_INTS(b, first), zero, by, zero),
               .axis = mb_int(b, 0), .interleave = mb_bool(b, false));
    rows = MB(b, slice_by_size, .x = k->kv.now, .begin = begin,
              .size = MB_INTS(b, last - first, (int32_t)t.dims[1], keep,
                              (int32_t)t.dims[3]));
    next = MB(b, slice_update, .x = k->kv.now, .update = rows,
              .begin = MB_INTS(b, first, 0, 0, 0),
              .end = MB_INTS(b, last, 0, keep, 0),
              .stride = MB_INTS(b, 1, 1, 1, 1),
              .begin_mask = MB_BOOLS(b, false, true, false, true),
              .end_mask = MB_BOOLS(b, false, true, false, true),
              .squeeze_mask = MB_BOOLS(b, false, false, false, false));
    MB(b, write_state, .input = k->kv.state, .data = next);
    k->kv.now = MB(b, read_state, .input = k->kv.state);
}

static void begin_shifting(struct mb *b, const struct graph *g, struct gemma *d)
{
    struct gemma_kind *k = &d->sliding;
    int32_t T = (int32_t)g->tokens, B = (int32_t)g->batch;
    mil_ref block = d->in.pos, base, lowest, at;

    if (T > 1)
        block = MB(b, add, .x = block, .y = MB_INTS(b, T - 1));
    block = MB(b, floor_div, .x = block, .y = MB_INTS(b, B));
    base = MB(b, mul, .x = block, .y = MB_INTS(b, B));
    base = MB(b, sub, .x = base, .y = MB_INTS(b, (int32_t)k->length - B));
    lowest = MB(b, mul, .x = base, .y = MB_INTS(b, -1));
    at = gemma_column(b, d->in.ids, base);
    k->cap = gemma_window(b, at, k->length, g->hp->window, lowest);
    k->kv.pos = MB(b, sub, .x = d->in.pos, .y = base);
    k->kv.pos_end = MB(b, add, .x = k->kv.pos, .y = MB_INTS(b, T));
    shift(b, g, k, shift_by(b, g, d->in.pos, block));
}

static void begin_sliding(struct mb *b, const struct graph *g, struct gemma *d)
{
    struct gemma_kind *k = &d->sliding;
    mil_ref start;

    if (shifts(g->hp, g->ctx, g->batch)) {
        begin_shifting(b, g, d);
        return;
    }
    k->kv.pos = d->full.kv.pos;
    k->kv.pos_end = d->full.kv.pos_end;
    k->cap = d->full.cap;
    if (g->ctx <= g->hp->window)
        return;
    start = gemma_column(b, d->in.ids, 0);
    start = gemma_window_start(b, start, g->ctx, g->hp->window);
    k->cap = MB(b, minimum, .x = start, .y = k->cap);
}

/* ---- attention ---- */

/* A norm that reads a matrix. */
static mil_ref matrix_norm(struct mb *b, const struct graph *g, int64_t layer,
                           const char *name, mil_ref x)
{
    char t[128];
    struct norm_spec s = { .tensor = gemma_tensor(t, layer, name),
                           .eps = gemma_matrix_eps(g) };

    return parts_norm(b, g, x, &s);
}

/* Keys and values of this call, in one update. Where full layers have no
 * v_proj, values are what k_proj yields. */
static void store(struct mb *b, const struct graph *g, struct gemma *d,
                  int64_t layer, mil_ref in)
{
    const struct hparams *hp = g->hp;
    bool sliding = gemma_is_sliding(hp, layer);
    struct gemma_kind *kind = gemma_kind_of(g, d, layer);
    int64_t n = hp_layer_kv_heads(hp, layer);
    struct weight_spec s = { .scale_exp = g->norm_exp };
    mil_ref k, v;

    k = parts_project(b, g, layer, "self_attn.k_proj", false, s, in);
    k = parts_to_heads(b, k, n);
    v = k;
    if (!hp->k_eq_v || sliding) {
        v = parts_project(b, g, layer, "self_attn.v_proj", false, s, in);
        v = parts_to_heads(b, v, n);
    }
    k = matrix_norm(b, g, layer, "self_attn.k_norm.weight", k);
    k = parts_rotate(b, k, kind->cos, kind->sin);
    v = parts_rms(b, v, gemma_matrix_eps(g));
    k = MB(b, concat, .values = MB_REFS(k, v), .axis = mb_int(b, 1),
           .interleave = mb_bool(b, false));
    parts_cache_write(b, &kind->kv, gemma_slots_before(hp, sliding, layer), k);
}

static mil_ref attention(struct mb *b, const struct graph *g, struct gemma *d,
                         int64_t layer, mil_ref in)
{
    const struct hparams *hp = g->hp;
    const struct gemma_kind *kind = gemma_kind_of(g, d, layer);
    int64_t n = hp_layer_kv_heads(hp, layer);
    int64_t slot = gemma_slots_before(hp, gemma_is_sliding(hp, layer),
                                      hp_layer_kv_source(hp, layer));
    struct weight_spec s = { .scale_exp = g->norm_exp };
    mil_ref q, k, v;

    q = parts_project(b, g, layer, "self_attn.q_proj", false, s, in);
    q = parts_to_heads(b, q, hp->heads);
    q = matrix_norm(b, g, layer, "self_attn.q_norm.weight", q);
    q = parts_rotate(b, q, kind->cos, kind->sin);
    v = parts_slice(b, kind->kv.now, 0, slot, 1);
    k = parts_slice(b, v, 1, 0, n);
    v = parts_slice(b, v, 1, n, n);
    q = parts_from_heads(b, gemma_attend(b, q, k, v, kind->cap));
    q = parts_project(b, g, layer, "self_attn.o_proj", false, s, q);
    return parts_from_conv(b, q);
}

/* ---- MLP ---- */

static mil_ref branch_norm(struct mb *b, const struct graph *g, int64_t layer,
                           const char *name, mil_ref x)
{
    x = parts_from_conv(b, x);
    return matrix_norm(b, g, layer, name, x);
}

/* The router reads the stream, not its pre-norm. per_expert_scale comes behind
 * the division by the sum. */
static mil_ref route(struct mb *b, const struct graph *g, int64_t layer,
                     mil_ref x)
{
    const struct hparams *hp = g->hp;
    char t[128];
    struct weight_spec s = { .tensor = gemma_tensor(t, layer, "router.scale"),
                             .role = MIL_ROLE_NORM,
                             .factor = 1 / sqrt((double)hp->hidden) };
    struct weight_spec r = { .role = MIL_ROLE_NORM };
    struct weight_spec each = { .role = MIL_ROLE_NORM,
                                .rank = 4,
                                .dims = { 1, hp->experts, 1, 1 } };
    mil_ref w = parts_rms(b, x, range_norm_eps(hp->rms_eps, g->stream_exp));

    w = MB(b, mul, .x = w, .y = parts_weight(b, g, &s));
    w = parts_to_conv(b, w);
    w = parts_project(b, g, layer, "router.proj", false, r, w);
    w = moe_route(b, g, w);
    each.tensor = gemma_tensor(t, layer, "router.per_expert_scale");
    return MB(b, mul, .x = w, .y = parts_weight(b, g, &each));
}

static mil_ref mlp(struct mb *b, const struct graph *g, int64_t layer,
                   mil_ref x)
{
    mil_ref y, in, w;

    in = gemma_pre_norm(b, g, layer, "pre_feedforward_layernorm.weight", x);
    y = gemma_mlp(b, g, layer, parts_to_conv(b, in));
    if (!g->hp->experts)
        return parts_from_conv(b, y);
    y = branch_norm(b, g, layer, "post_feedforward_layernorm_1.weight", y);
    w = route(b, g, layer, x);
    in = gemma_pre_norm(b, g, layer, "pre_feedforward_layernorm_2.weight", x);
    in = parts_to_conv(b, in);
    in = moe_experts(b, g, layer, "experts", gemma_gelu_of_half, w, g->norm_exp,
                     in);
    in = branch_norm(b, g, layer, "post_feedforward_layernorm_2.weight", in);
    return MB(b, add, .x = y, .y = in);
}

/* ---- layers ---- */

/* The token's embedding for this layer, gated by the stream. Both matrices
 * stay fp16: they are small, and a palette costs much. */
static mil_ref per_layer(struct mb *b, const struct graph *g,
                         const struct gemma4 *d, int64_t layer, mil_ref x)
{
    int64_t P = g->hp->ple_width, at = (layer - g->first_layer) * P;
    struct weight_spec half = { .role = MIL_ROLE_NORM,
                                .scale_exp = -1 - g->stream_exp };
    struct weight_spec end = { .role = MIL_ROLE_NORM,
                               .scale_exp = g->norm_exp };
    mil_ref h = parts_to_conv(b, x), token;

    h = parts_project(b, g, layer, "per_layer_input_gate", false, half, h);
    h = gemma_gelu_of_half(b, h);
    token = parts_slice(b, d->ple, 1, at, P);
    h = MB(b, mul, .x = h, .y = token);
    h = parts_project(b, g, layer, "per_layer_projection", false, end, h);
    return parts_from_conv(b, h);
}

static void narrow(struct mb *b, struct gemma4 *d)
{
    gemma_narrow(b, &d->kinds);
    if (d->ple)
        d->ple = parts_slice(b, d->ple, 3, mb_dim(b, d->ple, 3) - 1, 1);
}

static mil_ref layer(struct mb *b, const struct graph *g, struct gemma4 *d,
                     int64_t l, mil_ref x)
{
    char t[128];
    struct weight_spec scalar = { .tensor = gemma_tensor(t, l, "layer_scalar"),
                                  .role = MIL_ROLE_NORM };
    double eps = gemma_matrix_eps(g);
    mil_ref y = gemma_pre_norm(b, g, l, "input_layernorm.weight", x);

    y = parts_to_conv(b, y);
    if (hp_layer_kv_source(g->hp, l) == l)
        store(b, g, &d->kinds, l, y);
    if (g->last_chunk && g->tokens > 1 && l == gemma_last_store(g)) {
        narrow(b, d);
        x = parts_last_token(b, g, x);
        y = parts_slice(b, y, 3, g->tokens - 1, 1);
    }
    y = attention(b, g, &d->kinds, l, y);
    x = gemma_add_branch(b, g, l, "post_attention_layernorm.weight", eps, x, y);
    y = mlp(b, g, l, x);
    /* With experts y is a sum of two norms. */
    x = gemma_add_branch(b, g, l, "post_feedforward_layernorm.weight",
                         g->hp->experts ? 0 : eps, x, y);
    if (d->ple) {
        y = per_layer(b, g, d, l, x);
        x = gemma_add_branch(b, g, l, "post_per_layer_input_norm.weight", eps,
                             x, y);
    }
    return MB(b, mul, .x = x, .y = parts_weight(b, g, &scalar));
}

static void begin(struct mb *b, const struct graph *g, struct gemma4 *d)
{
    const struct hparams *hp = g->hp;
    int64_t P = hp->ple_width;
    struct state_desc st[MAX_STATES];
    mil_ref ple = 0;
    int n;

    parts_inputs(b, g, &d->kinds.in);
    if (P)
        ple = mb_input(b, "per_layer_inputs", MIL_F16, 3,
                       (int64_t[]){ 1, g->tokens, hp->layers * P });
    n = gemma4_states(hp, g->ctx, g->batch, st);
    gemma_begin(b, g, &d->kinds, st, n);
    for (int i = 0; i < n; i++)
        mem_free(st[i].layers);
    if (d->kinds.sliding.cos)
        begin_sliding(b, g, &d->kinds);
    d->ple = 0;
    if (P) {
        ple = parts_slice(b, ple, 2, g->first_layer * P, g->n_layers * P);
        d->ple = parts_to_conv(b, ple);
    }
}

static void gemma4_chunk(struct mb *b, const struct graph *g)
{
    struct gemma4 d;
    mil_ref x;

    begin(b, g, &d);
    x = d.kinds.in.hidden;
    if (g->last_chunk && g->tokens > 1 && gemma_last_store(g) < 0) {
        narrow(b, &d);
        x = parts_last_token(b, g, x);
    }
    for (int64_t i = 0; i < g->n_layers; i++) {
        int64_t l = g->first_layer + i;

        mb_scope(b, "layers_%lld", (long long)l);
        x = layer(b, g, &d, l, x);
        mb_leave(b);
    }
    gemma_end(b, g, &d.kinds, x);
}

/* ---- embeddings ---- */

/*
 * What the token and its embedding x give each layer:
 *     (sqrt(P) table[id] + w RMS(W x / sqrt(H))) / sqrt(2),
 * the norm over the P values of one layer; the root of H is in its epsilon.
 */
static void gemma4_embeddings(struct mb *b, const struct graph *g)
{
    const struct hparams *hp = g->hp;
    int32_t L = (int32_t)hp->layers, P = (int32_t)hp->ple_width;
    struct weight_spec w = { .tensor = "per_layer_model_projection.weight",
                             .role = MIL_ROLE_NORM,
                             .conv = true };
    struct norm_spec n = {
        .tensor = "per_layer_projection_norm.weight",
        .eps = range_norm_eps(hp->rms_eps * (double)hp->hidden, g->stream_exp)
    };
    mil_ref ids, x = parts_embed(b, g, &ids), y;

    if (!P)
        return;
    y = parts_gather_rows(b, g, ids, "embed_tokens_per_layer.weight",
                          hp->ple_scale, 0);
    x = parts_to_conv(b, x);
    x = parts_from_conv(b, mb_conv1x1(b, x, parts_weight(b, g, &w), 0));
    x = MB_RESHAPE(b, x, 1, -1, L, P);
    x = parts_norm(b, g, x, &n);
    x = MB_RESHAPE(b, x, 1, -1, L * P);
    x = MB(b, add, .x = y, .y = x);
    x = MB(b, mul, .x = x, .y = mb_f16(b, 0.70710678118654752440));
    mb_output(b, "per_layer_inputs", x);
}

static const char *const types[] = { "gemma4", "gemma4_text", "gemma4_unified",
                                     "gemma4_unified_text", NULL };
static const char *const classes[] = { "Gemma4ForConditionalGeneration",
                                       "Gemma4ForCausalLM",
                                       "Gemma4TextModel",
                                       "Gemma4Model",
                                       "Gemma4UnifiedForConditionalGeneration",
                                       "Gemma4UnifiedForCausalLM",
                                       "Gemma4UnifiedTextModel",
                                       "Gemma4UnifiedModel",
                                       NULL };
static const char *const ignore[] = {
    "rotary_emb",  "vision_tower",    "audio_tower", "embed_vision",
    "embed_audio", "vision_embedder", "input_min",   "input_max",
    "output_min",  "output_max",      NULL
};

const struct model_arch arch_gemma4 = {
    .name = "gemma4",
    .model_types = types,
    .architectures = classes,
    .prefix = "gemma4",
    .tokenizer_class = "GemmaTokenizer",
    .head_parts = 16,
    .parse = hp_parse_gemma4,
    .needs = needs_gemma4,
    .ignore = ignore,
    .spare = spare_gemma4,
    .layout = layout_gemma,
    .scales_stream = true,
    .norms_branches = true,
    .count = count_gemma4,
    .states = gemma4_states,
    .embeddings = gemma4_embeddings,
    .chunk = gemma4_chunk,
    .head = parts_lm_head,
    .oracle = &oracle_gemma4,
};
