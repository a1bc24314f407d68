/*
 * Planted faults of Gemma: windows, shifting and rotating caches, shared keys
 * and values, per-layer embeddings, scalars, soft cap, experts.
 *
 * A factor on all per-layer embeddings is no fault of the logits: the norm
 * behind them takes it away.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "t_faults.h"

/* ---- finding ops ---- */

static bool is_int(const struct mil_function *f, mil_ref v, int64_t want)
{
    const struct mil_const *c = mil_value(f, v)->konst;

    return c && c->type.dtype == MIL_I32 && mil_type_elems(&c->type) == 1 &&
           mil_const_int(c, 0) == want;
}

/* The first op of a kind whose y is the integer `y`. */
static struct mil_op *with_int(struct mil_function *f, enum mil_opcode code,
                               int64_t y)
{
    for (size_t i = 0; i < f->n_ops; i++)
        if (f->ops[i].code == code && is_int(f, tg_arg(&f->ops[i], "y", 0), y))
            return &f->ops[i];
    cr_assert_fail("no %s with %lld", mil_op_info(code)->name, (long long)y);
    return NULL;
}

/* The nth slice of `scope` out of what an op of a kind yields. */
static struct mil_op *slice_of(struct mil_function *f, const char *scope,
                               enum mil_opcode from, int nth)
{
    for (size_t i = 0; i < f->n_ops; i++) {
        struct mil_op *op = &f->ops[i];
        mil_ref x;

        if (op->code != MIL_OP_slice_by_size ||
            strncmp(mil_value(f, op->outs[0])->name, scope, strlen(scope)) != 0)
            continue;
        x = tg_arg(op, "x", 0);
        if (mil_value(f, x)->op >= 0 && tg_maker(f, x)->code == from &&
            nth-- == 0)
            return op;
    }
    cr_assert_fail("no such slice in %s", scope);
    return NULL;
}

/* Keys and values joined for the cache. */
static struct mil_op *joined(struct mil_function *f, const char *scope)
{
    for (int i = 0;; i++) {
        struct mil_op *op = tg_op(f, MIL_OP_concat, scope, i);

        if (op->args[0].n == 2 && is_int(f, tg_arg(op, "axis", 0), 1))
            return op;
    }
}

static void set_begin(struct mil_function *f, struct mil_op *op, int axis,
                      int32_t at)
{
    int32_t begin[4] = { 0 };

    begin[axis] = at;
    tg_set(f, op, "begin", 0, tg_ints(f, 1, 4, begin));
}

/* ---- windows and caches ---- */

static void window_wide(struct mil_function *f)
{
    tg_set(f, with_int(f, MIL_OP_sub, 31), "y", 0,
           tg_ints(f, 0, 0, (int32_t[]){ 32 }));
}

static void window_narrow(struct mil_function *f)
{
    tg_set(f, with_int(f, MIL_OP_sub, 31), "y", 0,
           tg_ints(f, 0, 0, (int32_t[]){ 30 }));
}

/* Slots of 4 blocks: base = 16 block - 48. */
static void base_a_block_late(struct mil_function *f)
{
    tg_set(f, with_int(f, MIL_OP_sub, 48), "y", 0,
           tg_ints(f, 1, 1, (int32_t[]){ 32 }));
}

static void never_shifted(struct mil_function *f)
{
    struct mil_op *op = slice_of(f, "slice_by_size_", MIL_OP_read_state, 0);

    tg_set(f, op, "begin", 0, tg_ints(f, 1, 4, (int32_t[]){ 0, 0, 0, 0 }));
}

static void shifted_at_every_call(struct mil_function *f)
{
    struct mil_op *op = slice_of(f, "slice_by_size_", MIL_OP_read_state, 0);

    tg_set(f, op, "begin", 0, tg_ints(f, 1, 4, (int32_t[]){ 0, 0, 16, 0 }));
}

static void other_source(struct mil_function *f)
{
    set_begin(f, slice_of(f, "layers_5_", MIL_OP_read_state, 0), 0, 2);
}

/* ---- values ---- */

static void values_not_normed(struct mil_function *f)
{
    struct mil_op *op = joined(f, "layers_0_");
    struct mil_op *cut = tg_maker(f, tg_arg(op, "values", 1));
    struct mil_op *norm = tg_maker(f, tg_arg(cut, "x", 0));
    struct mil_op *both = tg_maker(f, tg_arg(norm, "x", 0));

    cr_assert_eq(norm->code, MIL_OP_layer_norm);
    tg_set(f, joined(f, "layers_0_"), "values", 1, tg_arg(both, "values", 0));
}

/* Of a full layer whose values are its raw keys. */
static void values_from_turned_keys(struct mil_function *f)
{
    struct mil_op *op = joined(f, "layers_2_");

    tg_set(f, op, "values", 1, tg_arg(op, "values", 0));
}

/* ---- layers ---- */

static void embeddings_of_next_layer(struct mil_function *f)
{
    set_begin(f, slice_of(f, "layers_2_", MIL_OP_expand_dims, 0), 1, 3 * 16);
}

static void scalar_skipped(struct mil_function *f)
{
    tf_bypass(f, tg_op(f, MIL_OP_mul, "layers_3_", -1), "x");
}

static void tanh_for_gelu(struct mil_function *f)
{
    struct mil_op *op = tg_op(f, MIL_OP_clip, "layers_1_", 0);

    tg_set(f, op, "alpha", 0, tg_half(f, -0.5f));
    tg_set(f, op, "beta", 0, tg_half(f, 0.5f));
}

static void post_norm_skipped(struct mil_function *f)
{
    struct mil_op *op = tg_op(f, MIL_OP_layer_norm, "layers_1_", 3);

    cr_assert_eq(tg_maker(f, tg_arg(op, "x", 0))->code, MIL_OP_concat);
    tf_bypass(f, op, "x");
}

static void soft_cap_missing(struct mil_function *f)
{
    struct mil_op *div = tg_op(f, MIL_OP_real_div, "", 0);
    struct mil_op *tanh = tg_op(f, MIL_OP_tanh, "", 0);
    mil_ref raw = tg_arg(div, "x", 0), one = tg_half(f, 1);

    for (size_t i = 0; i < f->n_ops; i++)
        if (f->ops[i].code == MIL_OP_mul &&
            tg_arg(&f->ops[i], "x", 0) == tanh->outs[0]) {
            tg_set(f, &f->ops[i], "x", 0, raw);
            tg_set(f, &f->ops[i], "y", 0, one);
            return;
        }
    cr_assert_fail("no end of the soft cap");
}

static void embedding_doubled(struct mil_function *f)
{
    tf_scale(f, "embed_tokens_weight", 2);
}

static void embedding_scale_doubled(struct mil_function *f)
{
    tg_set(f, tg_op(f, MIL_OP_mul, "", 0), "y", 0, tg_half(f, 2 * 1.3671875f));
}

/* The root of 120 as it is, not rounded to bf16: 0.15 % more. */
static void embedding_scale_unrounded(struct mil_function *f)
{
    tg_set(f, tg_op(f, MIL_OP_mul, "", 0), "y", 0, tg_half(f, 10.954451f / 8));
}

/* ---- experts ---- */

static void one_expert_fewer(struct mil_function *f)
{
    struct mil_op *op = tg_op(f, MIL_OP_greater_equal, "layers_1_", 0);
    struct mil_op *less = tg_op(f, MIL_OP_less, "layers_1_", 0);

    tg_set(f, op, "y", 0, tg_arg(less, "y", 0));
}

static void expert_scale_skipped(struct mil_function *f)
{
    struct mil_op *sum = tg_op(f, MIL_OP_real_div, "layers_1_", 0);
    mil_ref w = sum->outs[0];

    for (size_t i = 0; i < f->n_ops; i++)
        if (f->ops[i].code == MIL_OP_mul && tg_arg(&f->ops[i], "x", 0) == w) {
            tf_bypass(f, &f->ops[i], "x");
            return;
        }
    cr_assert_fail("no per_expert_scale");
}

static void router_scale_of_ones(struct mil_function *f)
{
    tf_fill(f, "layers_1_router_scale", 0.0980665f); /* 1 / sqrt(104) */
}

/* ---- rotating caches ---- */

/* The first join of old and new keys in a rotating function. */
static void appended_in_front(struct mil_function *f)
{
    for (int i = 0;; i++) {
        struct mil_op *op = tg_op(f, MIL_OP_concat, "layers_0_", i);
        mil_ref old = tg_arg(op, "values", 0);

        if (op->args[0].n != 2 || !is_int(f, tg_arg(op, "axis", 0), 2))
            continue;
        tg_set(f, op, "values", 0, tg_arg(op, "values", 1));
        tg_set(f, op, "values", 1, old);
        return;
    }
}

static void newest_dropped(struct mil_function *f)
{
    for (int i = 0;; i++) {
        struct mil_op *op = slice_of(f, "layers_0_", MIL_OP_concat, i);

        if (mil_value(f, tg_arg(op, "x", 0))->type.dims[2] != 33)
            continue;
        set_begin(f, op, 2, 0);
        return;
    }
}

static void rotated_base_late(struct mil_function *f)
{
    tg_set(f, with_int(f, MIL_OP_sub, 32), "y", 0,
           tg_ints(f, 1, 1, (int32_t[]){ 31 }));
}

/* Below the window: what does not fit into the state is dropped at the wrong
 * end. */
static void kept_from_the_start(struct mil_function *f)
{
    struct mil_op *op = with_int(f, MIL_OP_maximum, 0);

    tg_set(f, op, "x", 0, tg_ints(f, 1, 1, (int32_t[]){ 0 }));
}

/* ---- the suites ---- */

static const struct tf_fault gemma4_faults[] = {
    { "window a position wide", CV_CHUNK, 1, window_wide, NULL, "cosine_min" },
    { "window a position narrow", CV_CHUNK, 1, window_narrow, NULL,
      "cosine_min" },
    { "window a position wide in prefill", CV_CHUNK, 1, window_wide, "prefill",
      "cosine_min prefill_infer_relative_diff" },
    { "base a block late", CV_CHUNK, 1, base_a_block_late, NULL, "cosine_min" },
    { "base a block late in infer", CV_CHUNK, 1, base_a_block_late, "infer",
      "cosine_min" },
    { "infer does not shift", CV_CHUNK, 1, never_shifted, "infer",
      "cosine_min" },
    { "infer shifts at every call", CV_CHUNK, 1, shifted_at_every_call, "infer",
      "cosine_min" },
    { "prefill does not shift", CV_CHUNK, 1, never_shifted, "prefill",
      "cosine_min" },
    { "keys of another source layer", CV_CHUNK, 1, other_source, NULL,
      "cosine_min" },
    { "values not normed", CV_CHUNK, 1, values_not_normed, NULL, "cosine_min" },
    { "per-layer embeddings of the next layer", CV_CHUNK, 1,
      embeddings_of_next_layer, NULL, "cosine_min" },
    { "layer_scalar skipped", CV_CHUNK, 1, scalar_skipped, NULL, "cosine_min" },
    { "GELU cut at 1", CV_CHUNK, 1, tanh_for_gelu, NULL, "cosine_min" },
    { "embedding doubled", CV_EMBEDDINGS, 0, embedding_doubled, NULL,
      "weights_differ cosine_min" },
};

Test(gate_faults_gemma, shifting_windows_and_layers)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "gemma4", .like = "tiny", .ctx = 128, .batch = 16);
    TF_RUN(&t, gemma4_faults);
    t_gate_drop(&t);
}

/* Logits of random weights hardly reach the cap: fp16 does not show it. */
static const struct tf_fault uncapped = {
    "soft cap missing", CV_HEAD, 0, soft_cap_missing, NULL, "cosine_min"
};

Test(gate_faults_gemma, soft_cap)
{
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "gemma4", .like = "tiny", .ctx = 64, .batch = 16);
    t_gate_copy(&t);
    t_gate_edit(&t, CV_HEAD, 0, tf_edit, &uncapped);
    cr_expect_eq(t_gate_run(&t, t.copy, RUN_F32, &r), GATE_FAIL);
    tf_expect_checks(&uncapped, &r);
    t_gate_drop(&t);
}

static const struct tf_fault odd_faults[] = {
    { "values from turned keys", CV_CHUNK, 1, values_from_turned_keys, NULL,
      "cosine_min" },
    { "embedding scale doubled", CV_EMBEDDINGS, 0, embedding_scale_doubled,
      NULL, "cosine_min" },
    { "embedding scale unrounded", CV_EMBEDDINGS, 0, embedding_scale_unrounded,
      NULL, "embeddings_distance" },
};

Test(gate_faults_gemma, keys_as_values)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "gemma4", .like = "odd", .ctx = 96, .batch = 16);
    TF_RUN(&t, odd_faults);
    t_gate_drop(&t);
}

static const struct tf_fault expert_faults[] = {
    { "one expert fewer", CV_CHUNK, 1, one_expert_fewer, NULL, "cosine_min" },
    { "per_expert_scale skipped", CV_CHUNK, 1, expert_scale_skipped, NULL,
      "cosine_min" },
    { "router scale of ones", CV_CHUNK, 1, router_scale_of_ones, NULL,
      "weights_differ" },
};

/* Half precision may choose another expert: the honest package is asked in
 * f32 alone. */
Test(gate_faults_gemma, experts)
{
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "gemma4", .like = "moe-odd", .ctx = 64,
                .batch = 16);
    cr_assert_eq(t_gate_run(&t, t.honest, RUN_F32, &r), GATE_PASS, "%s",
                 r.reason);
    for (size_t i = 0; i < sizeof(expert_faults) / sizeof(expert_faults[0]);
         i++) {
        t_gate_copy(&t);
        t_gate_edit(&t, CV_CHUNK, 1, tf_edit, &expert_faults[i]);
        cr_expect_eq(t_gate_run(&t, t.copy, RUN_F32, &r), GATE_FAIL, "%s",
                     expert_faults[i].name);
        tf_expect_checks(&expert_faults[i], &r);
        tf_tell(&expert_faults[i], &r);
    }
    t_gate_drop(&t);
}

static const struct tf_fault gemma3_faults[] = {
    { "a key appended in front", CV_CHUNK, 1, appended_in_front, "infer_rotate",
      "cosine_min" },
    { "keys of a batch in front", CV_CHUNK, 1, appended_in_front,
      "prefill_rotate", "cosine_min" },
    { "the newest key dropped", CV_CHUNK, 1, newest_dropped, "infer_rotate",
      "cosine_min" },
    { "base of a rotated batch", CV_CHUNK, 1, rotated_base_late,
      "prefill_rotate", "cosine_min" },
    { "window a position wide in prefill", CV_CHUNK, 1, window_wide, "prefill",
      "cosine_min" },
    { "window a position narrow in prefill_rotate", CV_CHUNK, 1, window_narrow,
      "prefill_rotate", "cosine_min" },
    { "the oldest kept", CV_CHUNK, 1, kept_from_the_start, "prefill",
      "cosine_min" },
    { "post-norm skipped", CV_CHUNK, 1, post_norm_skipped, NULL, "cosine_min" },
};

Test(gate_faults_gemma, rotating_windows)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "gemma3", .like = "tiny", .ctx = 128, .batch = 16);
    TF_RUN(&t, gemma3_faults);
    t_gate_drop(&t);
}
