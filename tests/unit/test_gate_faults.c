/*
 * Planted faults of plain packages, of files, and of what graph and oracle
 * share; those of recurrent ones are in test_gate_faults_hybrid.c.
 *
 * A shift of all four RoPE tables by a row is no fault: attention sees
 * differences of positions alone.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/num.h"
#include "quant/quant.h"
#include "safetensors/st.h"
#include "schema/package.h"
#include "t_dir.h"
#include "t_faults.h"
#include "t_gate.h"
#include "t_graph.h"

static struct err err;

/* ---- pieces of faults ---- */

static int64_t tokens(const struct mil_function *f)
{
    return mil_value(f, tg_named(f, "hidden_states"))->type.dims[1];
}

static int64_t context(const struct mil_function *f)
{
    return mil_value(f, tg_named(f, "causal_mask"))->type.dims[3];
}

/* Of layer 0: reads of the cache are slices of what read_state gave. */
static struct mil_op *cache_slice(struct mil_function *f, int nth)
{
    for (size_t i = 0; i < f->n_ops; i++) {
        struct mil_op *op = &f->ops[i];

        if (op->code == MIL_OP_slice_by_size &&
            mil_value(f, tg_arg(op, "x", 0))->op >= 0 &&
            tg_maker(f, tg_arg(op, "x", 0))->code == MIL_OP_read_state &&
            nth-- == 0)
            return op;
    }
    cr_assert_fail("no read of the cache");
    return NULL;
}

/* ---- RoPE ---- */

static void rope_keys_ahead(struct mil_function *f)
{
    tf_rows_ahead(f, "rope_cos");
    tf_rows_ahead(f, "rope_sin");
}

static void rope_all_ahead(struct mil_function *f)
{
    rope_keys_ahead(f);
    tf_rows_ahead(f, "rope_cos_query");
    tf_rows_ahead(f, "rope_sin_query");
}

static void rope_sign(struct mil_function *f)
{
    for (size_t i = 0; i < f->n_ops; i++) {
        struct mil_op *op = &f->ops[i];

        if (op->code != MIL_OP_concat || op->args[0].n != 2 ||
            mil_value(f, tg_arg(op, "values", 0))->op < 0)
            continue;
        op = tg_maker(f, tg_arg(op, "values", 0));
        if (op->code == MIL_OP_mul)
            tg_set(f, &f->ops[i], "values", 0, tg_arg(op, "x", 0));
    }
}

static void rope_last_row(struct mil_function *f)
{
    static const char *const names[] = { "rope_cos_query", "rope_sin_query" };

    for (int i = 0; i < 2; i++) {
        mil_ref v = tg_named(f, names[i]);
        size_t n, cols = (size_t)mil_value(f, v)->type.dims[1];
        float *x = tg_floats(f, v, &n);

        memset(x + n - cols, 0, cols * sizeof(*x));
        tg_put(f, v, x);
    }
}

static void attention_scale(struct mil_function *f)
{
    tf_scale(f, "rope_cos_query", 1.1f);
    tf_scale(f, "rope_sin_query", 1.1f);
}

/* ---- attention ---- */

static void keys_for_values(struct mil_function *f)
{
    tf_cross(f, tg_named(f, "layers_0_self_attn_k_proj"),
             tg_named(f, "layers_0_self_attn_v_proj"));
}

static void weights_keys_for_values(struct mil_function *f)
{
    tf_exchange(f, "layers_0_self_attn_k_proj_weight",
                "layers_0_self_attn_v_proj_weight");
}

static void norms_of_queries_and_keys(struct mil_function *f)
{
    tf_exchange(f, "layers_0_self_attn_q_norm_weight",
                "layers_0_self_attn_k_norm_weight");
}

static void transposed_output(struct mil_function *f)
{
    mil_ref v = tg_named(f, "layers_0_self_attn_o_proj_weight");
    const int64_t *dims = mil_value(f, v)->type.dims;
    size_t n, rows = (size_t)dims[0];
    float *x = tg_floats(f, v, &n);

    cr_assert_eq(dims[0], dims[1]);
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < i; k++) {
            float y = x[i * rows + k];

            x[i * rows + k] = x[k * rows + i];
            x[k * rows + i] = y;
        }
    tg_put(f, v, x);
}

static void softmax_axis(struct mil_function *f)
{
    struct mil_op *op = tg_op(f, MIL_OP_softmax, "layers_0_", 0);

    tg_set(f, op, "axis", 0, tg_ints(f, 0, 0, (int32_t[]){ -2 }));
}

/* Query head h takes key head h mod n in place of h / repeats. */
static void heads_tiled(struct mil_function *f)
{
    for (int i = 0; i < 2; i++) {
        struct mil_op *tile = tg_op(f, MIL_OP_tile, "layers_0_", i);
        struct mil_op *before = tg_maker(f, tg_arg(tile, "x", 0));
        const int64_t *d =
            mil_value(f, tg_arg(before, "x", 0))->type.dims; /* 1, n, C, D */
        int32_t r = (int32_t)mil_const_int(mil_arg_const(f, tile, 1), 1);

        tg_set(f, before, "shape", 0,
               tg_ints(f, 1, 4,
                       (int32_t[]){ 1, (int32_t)d[1], (int32_t)d[2],
                                    (int32_t)d[3] }));
        tile = tg_op(f, MIL_OP_tile, "layers_0_", i);
        tg_set(f, tile, "reps", 0, tg_ints(f, 1, 4, (int32_t[]){ r, 1, 1, 1 }));
    }
}

/* ---- mask ---- */

/* Column c of the mask becomes column c + by, around the end. */
static void mask_rolled(struct mil_function *f, int32_t by)
{
    int32_t T = (int32_t)tokens(f), C = (int32_t)context(f);
    mil_ref mask = tg_named(f, "causal_mask"), part[2], both;
    struct mil_op *user = tg_op(f, MIL_OP_maximum, "", 0), *op;
    size_t at = tg_index(f, user);
    int32_t cut = by < 0 ? C + by : by;

    part[0] = tg_insert(f, at, MIL_OP_slice_by_size, "mask_tail", 1);
    part[1] = tg_insert(f, at + 1, MIL_OP_slice_by_size, "mask_head", 1);
    both = tg_insert(f, at + 2, MIL_OP_concat, "mask_rolled", 1);
    for (int i = 0; i < 2; i++) {
        op = &f->ops[at + (size_t)i];
        tg_set(f, op, "x", 0, mask);
        tg_set(f, op, "begin", 0,
               tg_ints(f, 1, 4, (int32_t[]){ 0, 0, 0, i ? 0 : cut }));
        tg_set(f, op, "size", 0,
               tg_ints(f, 1, 4, (int32_t[]){ 1, 1, T, i ? cut : C - cut }));
    }
    op = &f->ops[at + 2];
    cr_assert_eq(mil_set_arg(f, op, 0, part, 2, &err), 0);
    tg_set(f, op, "axis", 0, tg_ints(f, 0, 0, (int32_t[]){ -1 }));
    tg_set(f, &f->ops[at + 3], "x", 0, both);
}

static void mask_early(struct mil_function *f)
{
    mask_rolled(f, 1);
}

static void mask_late(struct mil_function *f)
{
    mask_rolled(f, -1);
}

static void mask_ignored(struct mil_function *f)
{
    tf_bypass(f, tg_op(f, MIL_OP_minimum, "layers_0_", 0), "x");
}

/* The last column of the context stays hidden: one position is wrong. */
static void mask_last_column(struct mil_function *f)
{
    struct mil_op *op = tg_op(f, MIL_OP_add, "add_", 0);
    int64_t dims[4] = { 1, 1, 1, context(f) };
    float y[1024];

    for (int64_t i = 0; i < dims[3]; i++)
        y[i] = i < dims[3] - 1 ? 30000.0f : -30000.0f;
    tg_set(f, op, "y", 0, tg_halfs(f, 4, dims, y));
}

/* ---- the cache ---- */

static void keys_not_written(struct mil_function *f)
{
    tg_remove(f, tg_op(f, MIL_OP_write_state, "layers_0_", 0));
}

static void values_not_written(struct mil_function *f)
{
    tg_remove(f, tg_op(f, MIL_OP_write_state, "layers_0_", 1));
}

/* The call itself sees what it computed, the next one does not. Of the chunk's
 * last layer: behind it nothing writes the state again. */
static void cache_not_kept(struct mil_function *f)
{
    for (int i = 0; i < 2; i++) {
        struct mil_op *w = tg_op(f, MIL_OP_write_state, "layers_2_", 0);
        mil_ref data = tg_arg(w, "data", 0);
        mil_ref again = tg_op(f, MIL_OP_read_state, "layers_2_", i)->outs[0];

        tg_remove(f, w);
        tg_replace(f, again, data);
    }
}

static void read_before_write(struct mil_function *f)
{
    struct mil_op *op = cache_slice(f, 0);

    tg_set(f, op, "x", 0, tg_op(f, MIL_OP_read_state, "", 0)->outs[0]);
}

static void read_other_row(struct mil_function *f)
{
    tg_set(f, cache_slice(f, 0), "begin", 0,
           tg_ints(f, 1, 4, (int32_t[]){ 1, 0, 0, 0 }));
}

static void write_other_row(struct mil_function *f)
{
    struct mil_op *op = tg_op(f, MIL_OP_slice_update, "layers_0_", 0);
    mil_ref begin = tg_arg(op, "begin", 0), end = tg_arg(op, "end", 0);

    tg_set(f, tg_maker(f, begin), "values", 0,
           tg_ints(f, 1, 1, (int32_t[]){ 1 }));
    tg_set(f, tg_maker(f, end), "values", 0,
           tg_ints(f, 1, 1, (int32_t[]){ 2 }));
}

/* ---- norms, MLP, residual ---- */

static void norm_of_ones(struct mil_function *f)
{
    tf_fill(f, "layers_0_input_layernorm_weight", 1);
}

static void norm_of_another_layer(struct mil_function *f)
{
    tf_exchange(f, "layers_0_post_attention_layernorm_weight",
                "layers_1_post_attention_layernorm_weight");
}

static void norm_with_nan(struct mil_function *f)
{
    mil_ref v = tg_named(f, "layers_1_post_attention_layernorm_weight");
    size_t n;
    float *x = tg_floats(f, v, &n);

    x[n - 1] = NAN;
    tg_put(f, v, x);
}

static void final_norm_missing(struct mil_function *f)
{
    struct mil_op *op = tg_maker(f, tg_named(f, "output_hidden_states"));

    tg_set(f, op, "x", 0, tg_op(f, MIL_OP_add, "layers_", -1)->outs[0]);
    tg_set(f, op, "y", 0, tg_half(f, 1));
}

static void epsilon(struct mil_function *f)
{
    for (size_t i = 0; i < f->n_ops; i++) {
        struct mil_op *op = &f->ops[i];
        const struct mil_const *c;

        if (op->code != MIL_OP_layer_norm)
            continue;
        c = mil_value(f, tg_arg(op, "epsilon", 0))->konst;
        tg_set(f, op, "epsilon", 0,
               tg_half(f, 100 * (float)mil_const_double(c, 0)));
    }
}

static void gate_for_up(struct mil_function *f)
{
    tf_cross(f, tg_named(f, "layers_0_mlp_gate_proj"),
             tg_named(f, "layers_0_mlp_up_proj"));
}

static void gate_not_halved(struct mil_function *f)
{
    tf_scale(f, "layers_0_mlp_gate_proj_weight", 2);
}

static void silu_half_lost(struct mil_function *f)
{
    struct mil_op *op =
        tg_maker(f, tg_arg(tg_op(f, MIL_OP_add, "layers_0_", 3), "x", 0));

    cr_assert_eq(op->code, MIL_OP_tanh);
    tg_set(f, tg_op(f, MIL_OP_add, "layers_0_", 3), "y", 0, tg_half(f, 0));
}

static void sigmoid_for_tanh(struct mil_function *f)
{
    tg_op(f, MIL_OP_tanh, "layers_0_", 0)->code = MIL_OP_sigmoid;
}

static void residual_dropped(struct mil_function *f)
{
    tf_bypass(f, tg_op(f, MIL_OP_add, "layers_1_", 2), "y");
}

static void mlp_dropped(struct mil_function *f)
{
    tf_bypass(f, tg_op(f, MIL_OP_add, "layers_1_", 4), "x");
}

static void first_for_last_token(struct mil_function *f)
{
    int64_t last = tokens(f) - 1;

    for (size_t i = 0; i < f->n_ops; i++) {
        struct mil_op *op = &f->ops[i];
        const struct mil_const *c;

        if (op->code != MIL_OP_slice_by_size)
            continue;
        c = mil_value(f, tg_arg(op, "begin", 0))->konst;
        if (c && mil_type_elems(&c->type) == 3 && mil_const_int(c, 1) == last) {
            tg_set(f, op, "begin", 0, tg_ints(f, 1, 3, (int32_t[]){ 0, 0, 0 }));
            return;
        }
    }
    cr_assert_fail("no slice of the last token");
}

/* ---- weights ---- */

static void layer_from_another(struct mil_function *f)
{
    tf_exchange(f, "layers_0_mlp_down_proj_weight",
                "layers_1_mlp_down_proj_weight");
}

/* Too little for logits. */
static void one_weight(struct mil_function *f)
{
    mil_ref v = tg_named(f, "layers_2_mlp_up_proj_weight");
    size_t n;
    float *x = tg_floats(f, v, &n);

    x[n / 2] *= 1.25f;
    tg_put(f, v, x);
}

static void token_rows_ahead(struct mil_function *f)
{
    tf_rows_ahead(f, "embed_tokens_weight");
}

/* The prompt of this one test has tokens below 100 alone. */
static void unread_token(struct mil_function *f)
{
    mil_ref v = tg_named(f, "embed_tokens_weight");
    size_t n;
    float *x = tg_floats(f, v, &n);

    x[n - 1] += 0.5f;
    tg_put(f, v, x);
}

static void head_parts_exchanged(struct mil_function *f)
{
    mil_ref a = tg_named(f, "logits1"), b = tg_named(f, "logits2");

    mil_value(f, a)->name = "logits2";
    mil_value(f, b)->name = "logits1";
}

static void head_weights_exchanged(struct mil_function *f)
{
    struct mil_op *a = tg_op(f, MIL_OP_conv, "", 0);
    struct mil_op *b = tg_op(f, MIL_OP_conv, "", 1);

    tf_exchange(f, mil_value(f, tg_arg(a, "weight", 0))->name,
                mil_value(f, tg_arg(b, "weight", 0))->name);
}

static void head_part_of_zeros(struct mil_function *f)
{
    struct mil_op *op = tg_op(f, MIL_OP_conv, "", -1);

    tf_fill(f, mil_value(f, tg_arg(op, "weight", 0))->name, 0);
}

/* ---- palettized weights ---- */

#define LUT_WEIGHT "layers_0_self_attn_k_proj_weight"

static void with_tables(struct mil_function *f, const char *name,
                        void (*change)(f16_t *table, size_t groups, size_t k))
{
    struct mil_op *op = tg_maker(f, tg_named(f, name));
    mil_ref v = tg_arg(op, "lut", 0);
    const struct mil_const *c = mil_value(f, v)->konst;
    size_t n, groups = (size_t)c->type.dims[0];
    f16_t *x = tg_bytes(f, c, &n);

    change(x, groups, n / sizeof(*x) / groups);
    mil_value(f, v)->konst = tg_const(f, c, x);
}

static void exchange_tables(f16_t *x, size_t groups, size_t k)
{
    cr_assert(groups > 1);
    for (size_t i = 0; i < k; i++) {
        f16_t v = x[i];

        x[i] = x[k + i];
        x[k + i] = v;
    }
}

static void double_tables(f16_t *x, size_t groups, size_t k)
{
    for (size_t i = 0; i < groups * k; i++)
        x[i] = f32_to_f16(2 * f16_to_f32(x[i]));
}

static void stretch_one_table(f16_t *x, size_t groups, size_t k)
{
    for (size_t i = (groups - 1) * k; i < groups * k; i++)
        x[i] = f32_to_f16(1.01f * f16_to_f32(x[i]));
}

static void tables_exchanged(struct mil_function *f)
{
    with_tables(f, LUT_WEIGHT, exchange_tables);
}

static void tables_doubled(struct mil_function *f)
{
    with_tables(f, "layers_0_mlp_gate_proj_weight", double_tables);
}

static void table_stretched(struct mil_function *f)
{
    with_tables(f, LUT_WEIGHT, stretch_one_table);
}

static void with_indices(struct mil_function *f,
                         void (*change)(uint8_t *idx, size_t n, int bits))
{
    struct mil_op *op = tg_maker(f, tg_named(f, LUT_WEIGHT));
    mil_ref v = tg_arg(op, "indices", 0);
    const struct mil_const *c = mil_value(f, v)->konst;
    int bits = (int)mil_dtype_bits(c->type.dtype);
    size_t bytes, n = (size_t)mil_type_elems(&c->type);
    uint8_t *packed = tg_bytes(f, c, &bytes);
    uint8_t *idx = arena_alloc(&f->program->arena, n, 1, &err);

    cr_assert(idx);
    qz_unpack(idx, packed, 0, n, bits);
    change(idx, n, bits);
    qz_pack(packed, idx, n, bits);
    mil_value(f, v)->konst = tg_const(f, c, packed);
}

static void flip_one(uint8_t *idx, size_t n, int bits)
{
    idx[n / 2] = (uint8_t)(idx[n / 2] ^ 1u << (bits - 1));
}

static void shift_all(uint8_t *idx, size_t n, int bits)
{
    (void)bits;
    memmove(idx, idx + 1, n - 1);
}

static void index_flipped(struct mil_function *f)
{
    with_indices(f, flip_one);
}

static void indices_shifted(struct mil_function *f)
{
    with_indices(f, shift_all);
}

/* ---- the suites ---- */

static const struct tf_fault graph_faults[] = {
    { "RoPE of keys a row ahead", CV_CHUNK, 1, rope_keys_ahead, NULL,
      "cosine_min" },
    { "RoPE a row ahead in prefill", CV_CHUNK, 1, rope_all_ahead, "prefill",
      "cosine_min prefill_infer_relative_diff" },
    { "RoPE a row ahead in infer", CV_CHUNK, 1, rope_all_ahead, "infer",
      "cosine_min prefill_infer_relative_diff" },
    { "rotate-half without its sign", CV_CHUNK, 1, rope_sign, NULL,
      "cosine_min" },
    { "RoPE of the last position", CV_CHUNK, 1, rope_last_row, NULL,
      "cosine_min" },
    { "attention scale x 1.1", CV_CHUNK, 1, attention_scale, NULL,
      "cosine_min" },
    { "K and V exchanged", CV_CHUNK, 1, keys_for_values, NULL, "cosine_min" },
    { "softmax over another axis", CV_CHUNK, 1, softmax_axis, NULL,
      "cosine_min" },
    { "key heads tiled, not repeated", CV_CHUNK, 1, heads_tiled, NULL,
      "cosine_min" },
    { "mask a column early", CV_CHUNK, 1, mask_early, NULL, "cosine_min" },
    { "mask a column late", CV_CHUNK, 1, mask_late, NULL, "cosine_min" },
    { "mask ignored in prefill", CV_CHUNK, 1, mask_ignored, "prefill",
      "cosine_min prefill_infer_relative_diff" },
    { "mask's last column", CV_CHUNK, 1, mask_last_column, NULL, "cosine_min" },
    { "keys not written", CV_CHUNK, 1, keys_not_written, NULL, "cosine_min" },
    { "values not written", CV_CHUNK, 1, values_not_written, NULL,
      "cosine_min" },
    { "cache not kept for the next call", CV_CHUNK, 1, cache_not_kept, NULL,
      "cosine_min" },
    { "cache not kept by prefill", CV_CHUNK, 1, cache_not_kept, "prefill",
      "cosine_min prefill_infer_relative_diff" },
    { "keys read before they are written", CV_CHUNK, 1, read_before_write, NULL,
      "cosine_min" },
    { "keys read from another layer", CV_CHUNK, 1, read_other_row, NULL,
      "cosine_min" },
    { "keys written to another layer", CV_CHUNK, 1, write_other_row, NULL,
      "cosine_min" },
    { "final norm missing", CV_CHUNK, 2, final_norm_missing, NULL,
      "cosine_min" },
    { "gate and up exchanged", CV_CHUNK, 1, gate_for_up, NULL, "cosine_min" },
    { "SiLU without its linear half", CV_CHUNK, 1, silu_half_lost, NULL,
      "cosine_min" },
    { "sigmoid for tanh", CV_CHUNK, 1, sigmoid_for_tanh, NULL, "cosine_min" },
    { "residual dropped in prefill", CV_CHUNK, 1, residual_dropped, "prefill",
      "cosine_min prefill_infer_relative_diff" },
    { "residual dropped in infer", CV_CHUNK, 1, residual_dropped, "infer",
      "cosine_min prefill_infer_relative_diff" },
    { "MLP left out", CV_CHUNK, 1, mlp_dropped, NULL, "cosine_min" },
    { "first for last token of prefill", CV_CHUNK, 2, first_for_last_token,
      "prefill", "cosine_min prefill_infer_relative_diff" },
};

Test(gate_faults, graph)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "odd", .chunks = 2);
    TF_RUN(&t, graph_faults);
    t_gate_drop(&t);
}

static const struct tf_fault weight_faults[] = {
    { "weights of K and V exchanged", CV_CHUNK, 1, weights_keys_for_values,
      NULL, "weights_differ cosine_min" },
    { "norms of queries and keys exchanged", CV_CHUNK, 1,
      norms_of_queries_and_keys, NULL, "weights_differ cosine_min" },
    { "norm weight missing", CV_CHUNK, 1, norm_of_ones, NULL,
      "weights_differ cosine_min" },
    { "norm of another layer", CV_CHUNK, 1, norm_of_another_layer, NULL,
      "weights_differ cosine_min" },
    { "one weight of prefill", CV_CHUNK, 1, one_weight, "prefill",
      "weights_differ" },
    { "NaN in a norm", CV_CHUNK, 1, norm_with_nan, NULL,
      "weights_differ finite cosine_min prefill_infer_relative_diff" },
    { "a layer's weights from another", CV_CHUNK, 1, layer_from_another, NULL,
      "weights_differ cosine_min" },
    { "gate not halved", CV_CHUNK, 1, gate_not_halved, NULL,
      "weights_differ cosine_min" },
    { "token rows a row ahead", CV_EMBEDDINGS, 0, token_rows_ahead, NULL,
      "weights_differ cosine_min" },
};

Test(gate_faults, weights)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "tiny");
    TF_RUN(&t, weight_faults);
    t_gate_drop(&t);
}

static const struct tf_fault llama_faults[] = {
    { "transposed o_proj", CV_CHUNK, 1, transposed_output, NULL,
      "weights_differ cosine_min" },
    { "LM-head parts exchanged", CV_HEAD, 0, head_parts_exchanged, NULL,
      "cosine_min" },
    { "weights of LM-head parts exchanged", CV_HEAD, 0, head_weights_exchanged,
      NULL, "weights_differ cosine_min" },
    { "last LM-head part of zeros", CV_HEAD, 0, head_part_of_zeros, NULL,
      "weights_differ cosine_min" },
    { "RoPE of keys a row ahead", CV_CHUNK, 1, rope_keys_ahead, NULL,
      "cosine_min" },
    { "key heads tiled, not repeated", CV_CHUNK, 1, heads_tiled, NULL,
      "cosine_min" },
    { "mask a column late", CV_CHUNK, 1, mask_late, NULL, "cosine_min" },
};

Test(gate_faults, llama_and_head)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "llama", .like = "tiny");
    TF_RUN(&t, llama_faults);
    t_gate_drop(&t);
}

/* Keys of deviation 0.03 before their norm, so that an epsilon of 1e-6 does
 * not count and one of 1e-4 does. */
static void small_keys(const char *ck)
{
    t_gate_scale(ck, "model.layers.0.self_attn.k_proj.weight", 1.0f / 32);
    t_gate_scale(ck, "model.layers.1.self_attn.k_proj.weight", 1.0f / 32);
}

Test(gate_faults, epsilon_times_100)
{
    static const struct tf_fault list[] = { { "epsilon x 100", CV_CHUNK, 1,
                                              epsilon, NULL, "cosine_min" } };
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "odd", .bend = small_keys);
    TF_RUN(&t, list);
    t_gate_drop(&t);
}

static void attention_scale_slightly(struct mil_function *f)
{
    tf_scale(f, "rope_cos_query", 1.01f);
    tf_scale(f, "rope_sin_query", 1.01f);
}

/* What half precision itself costs hides them; the run in f32 beside it finds
 * them. */
Test(gate_faults, slight_ones_show_in_f32)
{
    static const struct tf_fault list[] = {
        { "attention scale x 1.01", CV_CHUNK, 1, attention_scale_slightly, NULL,
          "cosine_min psnr_min" },
        { "epsilon x 100 on inputs of deviation 1", CV_CHUNK, 1, epsilon, NULL,
          "psnr_min" },
    };
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "odd", .chunks = 2);
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        t_gate_copy(&t);
        t_gate_edit(&t, list[i].kind, list[i].chunk, tf_edit, &list[i]);
        tf_judge(&t, &list[i]);
        t_gate_run(&t, t.copy, RUN_FP16, &r);
        cr_expect(!strncmp(r.reason, "f32_", 4), "%s: %s", list[i].name,
                  r.reason);
    }
    t_gate_drop(&t);
}

/* No prompt reads the row, so no logit knows. */
Test(gate_faults, a_row_that_no_prompt_reads)
{
    static const struct tf_fault x = { "a row that no prompt reads",
                                       CV_EMBEDDINGS,
                                       0,
                                       unread_token,
                                       NULL,
                                       "weights_differ" };
    char text[512] = "";
    struct t_gate t;
    struct gate_result r;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "odd");
    snprintf(t.tokens, sizeof(t.tokens), "%s/tokens.txt", t.root);
    for (int i = 0; i < 64; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d ", i);
    t_write_text(t.tokens, text);
    tf_honest(&t, t.honest);
    t_gate_copy(&t);
    t_gate_edit(&t, x.kind, x.chunk, tf_edit, &x);
    tf_judge(&t, &x);
    t_gate_run(&t, t.copy, RUN_F32, &r);
    cr_expect(t_gate_check(&r, "cosine_min")->pass);
    cr_expect(strstr(r.reason, "'embed_tokens.weight', row 1008, column 159"),
              "%s", r.reason);
    t_gate_drop(&t);
}

/* Faults that logits show, whatever the oracle's weights, and faults that the
 * oracle on the package's own weights shares. */
static const struct tf_fault lut_faults[] = {
    { "LUT tables of two groups exchanged", CV_CHUNK, 1, tables_exchanged, NULL,
      "weights_misplaced weights_gain_error" },
    { "one LUT table x 1.01", CV_CHUNK, 1, table_stretched, NULL,
      "weights_misplaced weights_gain_error" },
    { "LUT tables of the gate not halved", CV_CHUNK, 1, tables_doubled, NULL,
      "weights_misplaced weights_gain_error" },
    { "one LUT index", CV_CHUNK, 1, index_flipped, NULL, "weights_misplaced" },
    { "LUT indices an element ahead", CV_CHUNK, 1, indices_shifted, NULL,
      "weights_misplaced weights_gain_error" },
    { "LUTs of K and V exchanged", CV_CHUNK, 1, weights_keys_for_values, NULL,
      "weights_misplaced weights_gain_error" },
    { "a layer's LUT from another", CV_CHUNK, 1, layer_from_another, NULL,
      "weights_misplaced weights_gain_error" },
    { "LUTs of LM-head parts exchanged", CV_HEAD, 0, head_weights_exchanged,
      NULL, "weights_misplaced weights_gain_error" },
    { "norm weight missing", CV_CHUNK, 1, norm_of_ones, NULL,
      "weights_differ" },
    { "K and V exchanged", CV_CHUNK, 1, keys_for_values, NULL, "cosine_min" },
    { "SiLU without its linear half", CV_CHUNK, 1, silu_half_lost, NULL,
      "cosine_min" },
    { "residual dropped in prefill", CV_CHUNK, 1, residual_dropped, "prefill",
      "cosine_min prefill_infer_relative_diff" },
    { "LM-head parts exchanged", CV_HEAD, 0, head_parts_exchanged, NULL,
      "cosine_min" },
};

Test(gate_faults, palettized_6_bits)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "tiny", .lut = "6");
    TF_RUN(&t, lut_faults);
    t_gate_drop(&t);
}

/* At two bits the limits of the loss let anything pass. */
Test(gate_faults, palettized_2_bits)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "llama", .like = "tiny", .lut = "2,4");
    TF_RUN(&t, lut_faults);
    t_gate_drop(&t);
}

/* ---- files ---- */

/* Refused before it runs: the first file yields the last token alone. */
Test(gate_faults, chunks_exchanged)
{
    char a[1024], b[1024], c[1024];
    struct gate_options o = { .profile = RUN_F32 };
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "odd", .chunks = 2);
    t_gate_copy(&t);
    snprintf(a, sizeof(a), "%s", t_gate_part(&t, t.copy, CV_CHUNK, 1));
    snprintf(b, sizeof(b), "%s", t_gate_part(&t, t.copy, CV_CHUNK, 2));
    snprintf(c, sizeof(c), "%s", t_path(t.root, "aside"));
    cr_assert_eq(rename(a, c), 0);
    cr_assert_eq(rename(b, a), 0);
    cr_assert_eq(rename(c, b), 0);
    o.package = t.copy;
    o.ckpt = &t.ckpt;
    cr_assert_eq(gate_run(&o, &r, &err), -1);
    cr_expect_eq(err.code, ERR_INPUT);
    cr_expect_str_eq(err.text, "package: 'qwen_FFN_PF_chunk_01of02.mlpackage': "
                               "function 'prefill' yields tensor<fp16, [1, 1, "
                               "160]>, meta.yaml calls for [1, 16, 160]");
    t_gate_drop(&t);
}

/* The top bit of the exponent of one weight, in the file. */
static void flip_in_file(const struct t_gate *t, int chunk, const char *name)
{
    const char *path = t_gate_part(t, t->copy, CV_CHUNK, chunk);
    struct pkg *pkg = pkg_open(path, &err);
    const struct mil_function *f = pkg_program(pkg)->functions[0];
    const struct mil_const *c = mil_value(f, tg_named(f, name))->konst;
    struct buf file = BUF_INIT;
    unsigned char first[64];
    char bin[1200];
    size_t at = 0;
    FILE *out;

    cr_assert_eq(c->data->read(c->data->cookie, 0, first, sizeof(first), &err),
                 0);
    pkg_close(pkg);
    snprintf(bin, sizeof(bin), "%s/Data/com.apple.CoreML/weights/weight.bin",
             path);
    cr_assert_eq(io_read_file(bin, 1 << 24, &file, &err), 0, "%s", err.text);
    while (memcmp(file.data + at, first, sizeof(first)) != 0)
        cr_assert(++at + sizeof(first) <= file.len);
    out = fopen(bin, "r+b");
    cr_assert(out && fseek(out, (long)at + 33, SEEK_SET) == 0);
    cr_assert(fputc(first[33] ^ 0x40, out) != EOF && fclose(out) == 0);
    buf_release(&file);
}

Test(gate_faults, one_bit_of_the_weight_file)
{
    static const struct tf_fault x = { .name = "one bit of the weight file",
                                       .caught = "weights_differ cosine_min" };
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "llama", .like = "tiny");
    t_gate_copy(&t);
    t_gate_own(&t, CV_CHUNK, 1);
    flip_in_file(&t, 1, "layers_1_self_attn_q_proj_weight");
    tf_judge(&t, &x);
    t_gate_drop(&t);
}

/* The list of what the constants hold, with two names exchanged in it. */
static void lie(struct mil_program *p, const void *arg)
{
    static const char k[] = "layers.0.self_attn.k_proj.weight";
    const char *text = mil_program_metadata(p, "com.anemll.sources");
    char *copy = arena_strdup(&p->arena, text, &err), *a, *b;

    (void)arg;
    a = strstr(copy, k);
    b = strstr(copy, "layers.0.self_attn.v_proj.weight");
    cr_assert(a && b);
    *strstr(a, "k_proj") = 'v';
    *strstr(b, "v_proj") = 'k';
    cr_assert_eq(mil_program_set_metadata(p, "com.anemll.sources", copy, &err),
                 0);
}

static void forget_list(struct mil_program *p, const void *arg)
{
    size_t n = 0;

    (void)arg;
    for (size_t i = 0; i < p->n_metadata; i++)
        if (strcmp(p->metadata[i].key, "com.anemll.sources") != 0)
            p->metadata[n++] = p->metadata[i];
    cr_assert_eq(n + 1, p->n_metadata);
    p->n_metadata = n;
}

static void forget_one(struct mil_program *p, const void *arg)
{
    const char *text = mil_program_metadata(p, "com.anemll.sources");
    char *copy = arena_strdup(&p->arena, text, &err), *a, *b;

    (void)arg;
    a = strstr(copy, "\"layers_0_input_layernorm_weight\"");
    b = a ? strchr(a, ']') : NULL;
    cr_assert(b && b[1] == ',');
    memmove(a, b + 2, strlen(b + 2) + 1);
    cr_assert_eq(mil_program_set_metadata(p, "com.anemll.sources", copy, &err),
                 0);
}

Test(gate_faults, the_list_of_sources)
{
    static const struct tf_fault lies = { .name =
                                              "K and V named for each other",
                                          .caught = "weights_misplaced "
                                                    "weights_gain_error "
                                                    "cosine_min" };
    static const struct tf_fault one = { .name = "a constant not named",
                                         .caught = "weights_missing" };
    static const struct tf_fault all = { .name = "no constant named",
                                         .caught = "cosine_min" };
    struct t_gate t, plain;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "tiny", .lut = "4");
    t_gate_copy(&t);
    t_gate_edit(&t, CV_CHUNK, 1, lie, NULL);
    tf_judge(&t, &lies);
    /* Then nothing tells what compression cost: the bars are those of an
     * uncompressed package. */
    t_gate_copy(&t);
    t_gate_edit(&t, CV_CHUNK, 1, forget_list, NULL);
    tf_judge(&t, &all);
    t_gate_drop(&t);
    T_GATE_MAKE(&plain, .arch = "qwen3", .like = "tiny");
    t_gate_copy(&plain);
    t_gate_edit(&plain, CV_CHUNK, 1, forget_one, NULL);
    tf_judge(&plain, &one);
    t_gate_drop(&plain);
}

/* ---- what graph and oracle share ---- */

/*
 * Hyper-parameters and the tensor source are the same for both: a fault there
 * would cancel out. They stand on what transformers computed from the
 * fixtures, and here is that this would show.
 */

struct shared {
    struct ckpt c;
    struct tensor_source honest;
    const char *a, *b; /* tensors exchanged; b NULL: a row ahead */
};

static int bent_rows(void *cookie, const char *name, uint64_t row, uint64_t n,
                     float *dst, struct err *e)
{
    const struct shared *s = cookie;

    if (s->b && !strcmp(name, s->a))
        name = s->b;
    else if (s->b && !strcmp(name, s->b))
        name = s->a;
    else if (s->a && !s->b && !strcmp(name, s->a) && row == 7)
        row++;
    return s->honest.rows(s->honest.cookie, name, row, n, dst, e);
}

/* Largest difference from the fixture's logits over their largest value. */
static double distance(struct shared *s, const char *dir)
{
    struct tensor_source src = { bent_rows, s };
    struct oracle_options o = { .keep_bytes = 1 << 28, .max_positions = 128 };
    struct st *want = st_open(t_path(dir, "expect.safetensors"), &err);
    const struct st_tensor *ids_t = st_find(want, "tokens.0");
    const struct st_tensor *logits_t = st_find(want, "logits.0");
    size_t n = (size_t)ids_t->elems, v = (size_t)logits_t->elems;
    int32_t ids[128];
    float *x = mem_alloc(v, sizeof(*x), &err);
    float *y = mem_alloc(v, sizeof(*y), &err);
    struct oracle *oracle = oracle_new(&s->c.hp, &src, &o, &err);
    double d = 0, m = 0;

    cr_assert(x && y && oracle && n <= 128, "%s", err.text);
    cr_assert_eq(st_read_i32(want, ids_t, 0, n, ids, &err), 0);
    cr_assert_eq(st_read_f32(want, logits_t, 0, v, y, &err), 0);
    cr_assert_eq(oracle_feed(oracle, ids, n,
                             &(struct oracle_out){ .logits = x }, &err),
                 0, "%s", err.text);
    for (size_t i = 0; i < v; i++) {
        d = fmax(d, fabs((double)x[i] - (double)y[i]));
        m = fmax(m, fabs((double)y[i]));
    }
    oracle_free(oracle);
    st_close(want);
    mem_free(x);
    mem_free(y);
    return d / m;
}

static const char *fixture(const char *name)
{
    static char dir[1024];
    const char *env = getenv("ANEMLL_FIXTURES");

    snprintf(dir, sizeof(dir), "%s/%s",
             env && *env ? env : ANEMLL_SOURCE_DIR "/../shared/fixtures", name);
    if (!io_is_dir(dir))
        cr_skip_test("no fixtures at %s", dir);
    return dir;
}

/* Honest, then with one thing wrong: 2e-4 is the bar. */
static void shared_fault(const char *name, void (*bend)(struct hparams *hp),
                         const char *a, const char *b)
{
    const char *dir = fixture(name);
    struct shared s = { .a = NULL };
    double before, after;

    cr_assert_eq(ckpt_open(&s.c, dir, 0, &err), 0, "%s", err.text);
    s.honest = ckpt_source(&s.c);
    before = distance(&s, dir);
    if (bend)
        bend(&s.c.hp);
    s.a = a;
    s.b = b;
    after = distance(&s, dir);
    cr_log_info("%s: %.3g, then %.3g", name, before, after);
    cr_expect_leq(before, 2e-5);
    cr_expect_geq(after, 2e-3);
    ckpt_close(&s.c);
}

static void default_theta(struct hparams *hp)
{
    cr_assert_neq(hp->rope.theta, 10000);
    hp->rope.theta = 10000;
}

static void no_rope_scaling(struct hparams *hp)
{
    cr_assert_neq(hp->rope.type, ROPE_DEFAULT);
    hp->rope.type = ROPE_DEFAULT;
}

static void other_epsilon(struct hparams *hp)
{
    hp->rms_eps *= 100;
}

Test(gate_shared, theta_lost_by_the_parser)
{
    shared_fault("qwen3-tiny", default_theta, NULL, NULL);
}

Test(gate_shared, yarn_lost_by_the_parser)
{
    shared_fault("qwen3-odd", no_rope_scaling, NULL, NULL);
}

Test(gate_shared, llama3_rope_lost_by_the_parser)
{
    shared_fault("llama-odd", no_rope_scaling, NULL, NULL);
}

Test(gate_shared, wrong_epsilon)
{
    shared_fault("qwen3-tiny", other_epsilon, NULL, NULL);
}

Test(gate_shared, names_exchanged)
{
    shared_fault("qwen3-tiny", NULL, "layers.1.mlp.gate_proj.weight",
                 "layers.1.mlp.up_proj.weight");
}

Test(gate_shared, norms_exchanged)
{
    shared_fault("qwen3-tiny", NULL, "layers.2.self_attn.q_norm.weight",
                 "layers.2.self_attn.k_norm.weight");
}

Test(gate_shared, layers_exchanged)
{
    shared_fault("llama-odd", NULL, "layers.0.self_attn.o_proj.weight",
                 "layers.1.self_attn.o_proj.weight");
}
