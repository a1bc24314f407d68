/*
 * Planted faults of recurrent packages, dense and with experts: see t_faults.h.
 * Layers 0 to 2 are Gated DeltaNet, layer 3 is attention.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"
#include "t_faults.h"

#define L0 "layers_0_"
#define L3 "layers_3_"

static struct err err;

/* ---- where things are in layer 0 ---- */

/* The product with a weight. */
static mil_ref product_of(struct mil_function *f, const char *weight)
{
    mil_ref w = tg_named(f, weight);

    for (size_t i = 0; i < f->n_ops; i++)
        if (f->ops[i].code == MIL_OP_conv &&
            tg_arg(&f->ops[i], "weight", 0) == w)
            return f->ops[i].outs[0];
    cr_assert_fail("no product with '%s'", weight);
    return 0;
}

/* The multiplication of layer 0 by what the nth op of a kind yields. */
static struct mil_op *times(struct mil_function *f, enum mil_opcode code,
                            int nth)
{
    mil_ref y = tg_op(f, code, L0, nth)->outs[0];

    for (int i = 0;; i++) {
        struct mil_op *op = tg_op(f, MIL_OP_mul, L0, i);

        if (tg_arg(op, "y", 0) == y)
            return op;
    }
}

/* The op of layer 0 that takes a value as its x. */
static struct mil_op *user_of(struct mil_function *f, enum mil_opcode code,
                              mil_ref x)
{
    for (int i = 0;; i++) {
        struct mil_op *op = tg_op(f, code, L0, i);

        if (tg_arg(op, "x", 0) == x)
            return op;
    }
}

/* The values, times sqrt(d_k) as fp16 has it. */
static struct mil_op *scale_of_values(struct mil_function *f)
{
    for (int i = 0;; i++) {
        struct mil_op *op = tg_op(f, MIL_OP_mul, L0, i);
        const struct mil_const *k = mil_value(f, tg_arg(op, "y", 0))->konst;

        if (k && mil_type_elems(&k->type) == 1 &&
            mil_const_double(k, 0) == 5.65625)
            return op;
    }
}

/* (1 + tanh) / 2 of half the product. */
static struct mil_op *beta(struct mil_function *f, mil_ref product)
{
    mil_ref x = user_of(f, MIL_OP_tanh, product)->outs[0];

    x = user_of(f, MIL_OP_add, x)->outs[0];
    return user_of(f, MIL_OP_mul, x);
}

/* In infer: the old state times e^g. */
static struct mil_op *decayed(struct mil_function *f)
{
    return times(f, MIL_OP_exp, 0);
}

/* Matrix products of infer. */
enum { RECALL, OUTER, READ_OUT };

static struct mil_op *matmul(struct mil_function *f, int nth)
{
    return tg_op(f, MIL_OP_matmul, L0, nth);
}

/* What infer makes of the state: the sum of the decayed one and the outer
 * product. */
static mil_ref new_state(struct mil_function *f)
{
    return tg_arg(matmul(f, READ_OUT), "y", 0);
}

/* A binary op behind the one that yields `after`. */
static mil_ref append(struct mil_function *f, mil_ref after,
                      enum mil_opcode code, const char *name, mil_ref x,
                      mil_ref y)
{
    size_t at = tg_index(f, tg_maker(f, after)) + 1;
    mil_ref out = tg_insert(f, at, code, name, 1);

    tg_set(f, &f->ops[at], "x", 0, x);
    tg_set(f, &f->ops[at], "y", 0, y);
    return out;
}

/* A product with the flags of an existing one. */
static mil_ref append_product(struct mil_function *f, mil_ref after, int like,
                              const char *name, mil_ref x, mil_ref y)
{
    mil_ref out = append(f, after, MIL_OP_matmul, name, x, y);
    static const char *const flags[] = { "transpose_x", "transpose_y" };

    for (int i = 0; i < 2; i++)
        tg_set(f, tg_maker(f, out), flags[i], 0,
               tg_arg(matmul(f, like), flags[i], 0));
    return out;
}

/* ---- the recurrent state ---- */

static void state_not_scaled(struct mil_function *f)
{
    tf_bypass(f, scale_of_values(f), "x");
}

static void decay_after_update(struct mil_function *f)
{
    mil_ref old = decayed(f)->outs[0];
    mil_ref before = tg_arg(decayed(f), "x", 0);
    mil_ref decay = tg_arg(decayed(f), "y", 0);
    mil_ref now = new_state(f), late;

    tg_replace(f, old, before);
    /* Users behind the sum are those of the new state. */
    late = append(f, now, MIL_OP_mul, "late_decay", now, decay);
    tg_replace(f, now, late);
}

/* The whole step once more on what it left behind. */
static void step_twice(struct mil_function *f)
{
    mil_ref decay = tg_arg(decayed(f), "y", 0);
    mil_ref key = tg_arg(matmul(f, RECALL), "x", 0);
    mil_ref value = tg_arg(tg_op(f, MIL_OP_sub, L0, 0), "x", 0);
    mil_ref delta = tg_op(f, MIL_OP_sub, L0, 0)->outs[0];
    mil_ref rate = tg_arg(user_of(f, MIL_OP_mul, delta), "y", 0);
    mil_ref now = new_state(f), old, x;

    old = append(f, now, MIL_OP_mul, "again_old", now, decay);
    x = append_product(f, old, RECALL, "again_recall", key, old);
    x = append(f, x, MIL_OP_sub, "again_delta", value, x);
    x = append(f, x, MIL_OP_mul, "again_rate", x, rate);
    x = append_product(f, x, OUTER, "again_outer", key, x);
    x = append(f, x, MIL_OP_add, "again_state", old, x);
    tg_replace(f, now, x);
}

static void read_before_update(struct mil_function *f)
{
    tg_set(f, matmul(f, READ_OUT), "y", 0, decayed(f)->outs[0]);
}

static void beta_raw(struct mil_function *f)
{
    mil_ref raw = product_of(f, "layers_0_linear_attn_in_proj_b_weight");

    tg_replace(f, beta(f, raw)->outs[0], raw);
}

static void decay_reversed(struct mil_function *f)
{
    tf_scale(f, "layers_0_linear_attn_A_log", -1);
}

static void key_not_of_unit_length(struct mil_function *f)
{
    tf_bypass(f, times(f, MIL_OP_rsqrt, 1), "x");
}

static void heads_tiled(struct mil_function *f)
{
    for (int i = 0; i < 2; i++) {
        struct mil_op *tile = tg_op(f, MIL_OP_tile, L0, i);
        struct mil_op *before = tg_maker(f, tg_arg(tile, "x", 0));
        const int64_t *d = mil_value(f, tg_arg(before, "x", 0))->type.dims;
        int32_t nk = (int32_t)d[1], T = (int32_t)d[2], dk = (int32_t)d[3];

        tg_set(f, before, "shape", 0,
               tg_ints(f, 1, 4, (int32_t[]){ 1, nk, T, dk }));
        tile = tg_op(f, MIL_OP_tile, L0, i);
        tg_set(f, tile, "reps", 0, tg_ints(f, 1, 4, (int32_t[]){ 2, 1, 1, 1 }));
    }
}

/* The write of a state by a layer. */
static void drop_write(struct mil_function *f, const char *state)
{
    for (size_t i = 0; i < f->n_ops; i++) {
        struct mil_op *op = &f->ops[i];

        if (op->code == MIL_OP_write_state &&
            strstr(mil_value(f, tg_arg(op, "data", 0))->name, L0) &&
            !strcmp(mil_value(f, tg_arg(op, "input", 0))->name, state)) {
            tg_remove(f, op);
            return;
        }
    }
    cr_assert_fail("layer 0 does not write %s", state);
}

static void state_not_written(struct mil_function *f)
{
    drop_write(f, "model_model_gdn_state_0");
}

static void other_layers_state(struct mil_function *f)
{
    for (size_t i = 0; i < f->n_ops; i++) {
        struct mil_op *op = &f->ops[i];
        const struct mil_type *t;

        if (op->code != MIL_OP_slice_by_size)
            continue;
        t = &mil_value(f, tg_arg(op, "x", 0))->type;
        if (t->rank == 3 && t->dims[0] == 12) { /* three layers of 4 heads */
            tg_set(f, op, "begin", 0, tg_ints(f, 1, 3, (int32_t[]){ 4, 0, 0 }));
            return;
        }
    }
    cr_assert_fail("no read of the recurrent state");
}

/* ---- the chunked form ---- */

/* The decay of the whole chunk on the state that it began with. */
static void old_state_not_decayed(struct mil_function *f)
{
    struct mil_op *write = tg_op(f, MIL_OP_slice_update, L0, 1);
    struct mil_op *reshape = tg_maker(f, tg_arg(write, "update", 0));
    struct mil_op *sum = tg_maker(f, tg_arg(reshape, "x", 0));

    cr_assert_eq(sum->code, MIL_OP_add);
    tf_bypass(f, tg_maker(f, tg_arg(sum, "x", 0)), "x");
}

static void inverse_without_last_level(struct mil_function *f)
{
    /* Of 16 tokens: eye - ..., then blocks of 2, 4 and 8. */
    tf_bypass(f, tg_op(f, MIL_OP_sub, L0, 3), "x");
}

static void decay_of_the_token_itself(struct mil_function *f)
{
    tf_exchange(f, "layers_0_below", "layers_0_at_or_below");
}

/* ---- the convolution ---- */

static void taps_reversed(struct mil_function *f)
{
    mil_ref v = tg_named(f, "layers_0_linear_attn_conv1d_weight");
    size_t n, K = (size_t)mil_value(f, v)->type.dims[3];
    float *x = tg_floats(f, v, &n);

    for (size_t i = 0; i < n; i += K)
        for (size_t k = 0; k < K / 2; k++) {
            float y = x[i + k];

            x[i + k] = x[i + K - 1 - k];
            x[i + K - 1 - k] = y;
        }
    tg_put(f, v, x);
}

static void history_keeps_the_oldest(struct mil_function *f)
{
    struct mil_op *write = tg_op(f, MIL_OP_slice_update, L0, 0);

    tg_set(f, tg_maker(f, tg_arg(write, "update", 0)), "begin", 0,
           tg_ints(f, 1, 3, (int32_t[]){ 0, 0, 0 }));
}

static void history_not_written(struct mil_function *f)
{
    drop_write(f, "model_model_conv_state_0");
}

/* ---- gates ---- */

/* q_proj read as all queries, then all gates; it has both for each head. */
static void queries_and_gates_in_blocks(struct mil_function *f)
{
    mil_ref q = tg_named(f, "layers_3_self_attn_q_proj_weight_rows_0_of_64");
    mil_ref g = tg_named(f, "layers_3_self_attn_q_proj_weight_rows_32_of_64");
    size_t n, row = (size_t)mil_value(f, q)->type.dims[1], head = 32 * row;
    float *x = tg_floats(f, q, &n), *y = tg_floats(f, g, &n);
    float *all = mem_alloc(2 * n, sizeof(*all), &err);

    cr_assert(all && n == 4 * head);
    for (size_t h = 0; h < 4; h++)
        for (size_t i = 0; i < head; i++) {
            all[2 * h * head + i] = x[h * head + i];
            all[(2 * h + 1) * head + i] = 2 * y[h * head + i];
        }
    for (size_t i = 0; i < n; i++)
        all[n + i] /= 2; /* gates are held halved */
    tg_put(f, q, all);
    tg_put(f, g, all + n);
    mem_free(all);
}

static void queries_for_gates(struct mil_function *f)
{
    tf_cross(f, product_of(f, "layers_3_self_attn_q_proj_weight_rows_0_of_64"),
             product_of(f, "layers_3_self_attn_q_proj_weight_rows_32_of_64"));
}

static void output_gate_missing(struct mil_function *f)
{
    mil_ref y = product_of(f, "layers_3_self_attn_o_proj_weight");

    tf_bypass(f, tg_maker(f, tg_arg(tg_maker(f, y), "x", 0)), "x");
}

static void recurrent_gate_missing(struct mil_function *f)
{
    mil_ref w = tg_named(f, "layers_0_linear_attn_norm_weight"), normed = 0;

    for (size_t i = 0; i < f->n_ops; i++) {
        struct mil_op *op = &f->ops[i];

        if (op->code != MIL_OP_mul)
            continue;
        if (tg_arg(op, "y", 0) == w)
            normed = op->outs[0];
        else if (normed && tg_arg(op, "x", 0) == normed) {
            tf_bypass(f, op, "x");
            return;
        }
    }
    cr_assert_fail("no gate behind the recurrent norm");
}

static void norm_not_zero_centred(struct mil_function *f)
{
    mil_ref v = tg_named(f, "layers_0_input_layernorm_weight");
    size_t n;
    float *x = tg_floats(f, v, &n);

    for (size_t i = 0; i < n; i++)
        x[i] -= 1;
    tg_put(f, v, x);
}

/* ---- experts ---- */

/* 4 of 16: rounds of taking the largest away, then a threshold. */
static struct mil_op *largest(struct mil_function *f, int nth)
{
    return tg_op(f, MIL_OP_reduce_max, L0, nth);
}

static void an_expert_too_few(struct mil_function *f)
{
    tg_set(f, largest(f, 3), "x", 0, tg_arg(largest(f, 2), "x", 0));
}

static void an_expert_too_many(struct mil_function *f)
{
    struct mil_op *ge = tg_op(f, MIL_OP_greater_equal, L0, 0);

    /* One round more: what is below the threshold, and its largest. */
    mil_ref rest = tg_arg(largest(f, 3), "x", 0);
    mil_ref top = tg_arg(ge, "y", 0), less, select, max;
    size_t at;

    less = append(f, top, MIL_OP_less, "more_less", rest, top);
    at = tg_index(f, tg_maker(f, less)) + 1;
    select = tg_insert(f, at, MIL_OP_select, "more_select", 1);
    tg_set(f, &f->ops[at], "cond", 0, less);
    tg_set(f, &f->ops[at], "a", 0, rest);
    tg_set(f, &f->ops[at], "b", 0, tg_half(f, 0));
    at++;
    max = tg_insert(f, at, MIL_OP_reduce_max, "more_max", 1);
    tg_set(f, &f->ops[at], "x", 0, select);
    tg_set(f, &f->ops[at], "axes", 0, tg_arg(largest(f, 3), "axes", 0));
    tg_set(f, &f->ops[at], "keep_dims", 0,
           tg_arg(largest(f, 3), "keep_dims", 0));
    tg_set(f, tg_op(f, MIL_OP_greater_equal, L0, 0), "y", 0, max);
}

static void weights_not_normalized(struct mil_function *f)
{
    tf_bypass(f, tg_op(f, MIL_OP_real_div, L0, 0), "x");
}

static void shared_gate_missing(struct mil_function *f)
{
    mil_ref y = product_of(f, "layers_0_mlp_shared_expert_down_proj_weight");

    for (size_t i = 0; i < f->n_ops; i++)
        if (f->ops[i].code == MIL_OP_mul && tg_arg(&f->ops[i], "x", 0) == y) {
            tf_bypass(f, &f->ops[i], "x");
            return;
        }
    cr_assert_fail("no gate of the shared expert");
}

static void gate_for_up(struct mil_function *f)
{
    tf_cross(f, product_of(f, "layers_0_mlp_experts_gate_up_proj_rows_0_of_40"),
             product_of(f, "layers_0_mlp_experts_gate_up_proj_rows_20_of_40"));
}

/* An expert's columns are held side by side. */
static void experts_shifted(struct mil_function *f)
{
    mil_ref v = tg_named(f, "layers_0_mlp_experts_down_proj");
    size_t n, cols = (size_t)mil_value(f, v)->type.dims[1], inner = 20;
    float *x = tg_floats(f, v, &n), *y = mem_alloc(n, sizeof(*y), &err);

    cr_assert(y);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i / cols * cols + (i % cols + inner) % cols];
    tg_put(f, v, y);
    mem_free(y);
}

/* ---- the suites ---- */

static const struct tf_fault dense_faults[] = {
    { "state not scaled by sqrt(d_k)", CV_CHUNK, 1, state_not_scaled, NULL,
      "cosine_min state_oracle" },
    { "state not scaled in prefill", CV_CHUNK, 1, state_not_scaled, "prefill",
      "cosine_min state_prefill_infer" },
    { "decay after the update", CV_CHUNK, 1, decay_after_update, "infer",
      "cosine_min" },
    { "a step run twice", CV_CHUNK, 1, step_twice, "infer", "cosine_min" },
    { "read out before the update", CV_CHUNK, 1, read_before_update, "infer",
      "cosine_min" },
    { "beta without sigmoid", CV_CHUNK, 1, beta_raw, NULL, "cosine_min" },
    { "decay above 1", CV_CHUNK, 1, decay_reversed, NULL, "weights_differ" },
    { "keys not of unit length", CV_CHUNK, 1, key_not_of_unit_length, NULL,
      "cosine_min" },
    { "key heads tiled, not repeated", CV_CHUNK, 1, heads_tiled, NULL,
      "cosine_min" },
    { "state not written by prefill", CV_CHUNK, 1, state_not_written, "prefill",
      "cosine_min" },
    { "state of another layer", CV_CHUNK, 1, other_layers_state, NULL,
      "cosine_min" },
    { "chunk's first state not decayed", CV_CHUNK, 1, old_state_not_decayed,
      "prefill", "cosine_min" },
    { "inverse without its last level", CV_CHUNK, 1, inverse_without_last_level,
      "prefill", "cosine_min" },
    { "triangles exchanged", CV_CHUNK, 1, decay_of_the_token_itself, "prefill",
      "cosine_min" },
    { "convolution reversed", CV_CHUNK, 1, taps_reversed, NULL,
      "weights_differ loss_kl_mean" },
    { "history keeps the oldest", CV_CHUNK, 1, history_keeps_the_oldest, NULL,
      "cosine_min" },
    { "history not written by prefill", CV_CHUNK, 1, history_not_written,
      "prefill", "cosine_min" },
    { "q_proj in two blocks", CV_CHUNK, 1, queries_and_gates_in_blocks, NULL,
      "weights_differ loss_kl_mean" },
    { "queries for gates", CV_CHUNK, 1, queries_for_gates, NULL, "cosine_min" },
    { "output gate missing", CV_CHUNK, 1, output_gate_missing, NULL,
      "cosine_min" },
    { "gate of the read-out missing", CV_CHUNK, 1, recurrent_gate_missing, NULL,
      "cosine_min" },
    { "norm not zero-centred", CV_CHUNK, 1, norm_not_zero_centred, NULL,
      "weights_differ loss_kl_mean" },
};

Test(gate_faults_hybrid, dense)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3_5", .like = "tiny");
    TF_RUN(&t, dense_faults);
    t_gate_drop(&t);
}

static const struct tf_fault expert_faults[] = {
    { "an expert too few", CV_CHUNK, 1, an_expert_too_few, NULL, "cosine_min" },
    { "an expert too many", CV_CHUNK, 1, an_expert_too_many, NULL,
      "cosine_min" },
    { "experts' weights not normalized", CV_CHUNK, 1, weights_not_normalized,
      NULL, "cosine_min" },
    { "shared expert's gate missing", CV_CHUNK, 1, shared_gate_missing, NULL,
      "cosine_min" },
    { "experts' gate and up exchanged", CV_CHUNK, 1, gate_for_up, NULL,
      "cosine_min" },
    { "experts an expert ahead", CV_CHUNK, 1, experts_shifted, NULL,
      "weights_differ loss_kl_mean" },
};

Test(gate_faults_hybrid, experts)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3_5_moe", .like = "tiny");
    TF_RUN(&t, expert_faults);
    t_gate_drop(&t);
}

/* ---- a model that rounding upsets ---- */

/* Routers that hardly tell experts apart: half precision takes others. */
static void undecided(const char *ck)
{
    char name[128];

    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof(name),
                 "model.language_model.layers.%d.mlp.gate.weight", i);
        t_gate_scale(ck, name, 1.0f / 64);
    }
}

/* The limits of half precision are then softer, by what the oracle itself
 * makes of moved weights, and those of f32 are not. */
Test(gate_faults_hybrid, undecided_experts)
{
    static const struct tf_fault list[] = {
        { "an expert too many", CV_CHUNK, 1, an_expert_too_many, NULL,
          "cosine_min" },
        { "experts' weights not normalized", CV_CHUNK, 1,
          weights_not_normalized, NULL, "cosine_min" },
        { "state not scaled by sqrt(d_k)", CV_CHUNK, 1, state_not_scaled, NULL,
          "cosine_min state_oracle" },
    };
    const struct gate_check *c;
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3_5_moe", .like = "tiny", .bend = undecided);
    cr_assert_eq(t_gate_run(&t, t.honest, RUN_FP16, &r), GATE_PASS, "%s",
                 r.reason);
    c = t_gate_check(&r, "cosine_min");
    cr_expect(c->value < 0.999 && c->limit == r.noise.cosine_min);
    cr_expect_gt(r.noise.draws, 0);
    cr_expect_eq(r.f32_positions, r.positions); /* then all of them */
    c = t_gate_check(&r, "f32_cosine_min");
    cr_expect(c && c->limit == 0.99999);
    TF_RUN(&t, list);
    t_gate_drop(&t);
}
