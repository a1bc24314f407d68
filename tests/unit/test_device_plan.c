/*
 * The device plan: a small program for every rule, found where it is and
 * nowhere else.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "converter/device_plan.h"
#include "mil/build.h"
#include "t_conv.h"

static struct err err;
static struct mil_program *prog;
static struct mb b;
static mil_ref x; /* [1, 8, 1, 16] */

static void begin(void)
{
    prog = mil_program_new(&err);
    cr_assert_not_null(prog);
    mb_begin(&b, prog, "main");
    x = mb_input(&b, "x", MIL_F16, 4, (int64_t[]){ 1, 8, 1, 16 });
}

static void drop(void)
{
    mil_program_free(prog);
    err_reset(&err);
}

TestSuite(device_plan, .init = begin, .fini = drop);

static void end(mil_ref y)
{
    mb_output(&b, "y", y);
    cr_assert_eq(mb_end(&b, &err), 0, "%s", err.text);
}

/* The rules that were hit, with their counts: "topk:1 fp32:2". */
static const char *found(const struct mil_function *f)
{
    static char text[1000];
    struct dev_plan p;
    size_t n = 0, sum = 0;

    text[0] = '\0';
    cr_assert_eq(dev_plan(f, &p, &err), 0, "%s", err.text);
    for (int r = 0; r < (int)DEV_RULES; r++) {
        if (p.by_rule[r])
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s:%zu",
                                  n ? " " : "", dev_rule((enum dev_id)r)->id,
                                  p.by_rule[r]);
        sum += p.by_rule[r];
    }
    cr_expect_eq(sum, p.n);
    cr_expect_eq(sum, p.by_effect[DEV_REFUSED] + p.by_effect[DEV_WRONG] +
                          p.by_effect[DEV_SLOW] + p.by_effect[DEV_EDGE]);
    dev_plan_release(&p);
    return text;
}

#define EXPECT(want) cr_expect_str_eq(found(prog->functions[0]), want)

/* ---- constants that nobody reads ---- */

static int read_zeros(void *cookie, uint64_t at, void *dst, size_t n,
                      struct err *e)
{
    (void)cookie;
    (void)at;
    (void)e;
    memset(dst, 0, n);
    return 0;
}

static const struct mil_data *zeros(enum mil_dtype d, int rank,
                                    const int64_t *dims)
{
    static struct mil_data kept[32];
    static int at;
    struct mil_data *out = &kept[at++ % 32];

    memset(out, 0, sizeof(*out));
    out->type = mil_type_make(d, rank, dims);
    out->bytes = (uint64_t)mil_type_bytes(&out->type);
    out->read = read_zeros;
    return out;
}
#define ZEROS(d, ...)                                               \
    zeros((d), (int)(sizeof((const int64_t[]){ __VA_ARGS__ }) / 8), \
          (const int64_t[]){ __VA_ARGS__ })

static mil_ref lut(int64_t rows, int64_t cols, enum mil_dtype indices,
                   int64_t row_tables, int64_t col_tables)
{
    int64_t k = (int64_t)1 << mil_dtype_bits(indices);

    return MB(&b, constexpr_lut_to_dense,
              .indices = mb_data(&b, "i", ZEROS(indices, rows, cols, 1, 1)),
              .lut =
                  mb_data(&b, "t",
                          ZEROS(MIL_F16, row_tables, col_tables, 1, 1, k, 1)));
}

static mil_ref project(mil_ref w)
{
    return mb_conv1x1(&b, x, w, 0);
}

/* ---- weights ---- */

Test(device_plan, tables_of_eight_channels)
{
    end(project(lut(32, 8, MIL_U4, 4, 1)));
    EXPECT("");
}

Test(device_plan, one_table)
{
    end(project(lut(32, 8, MIL_U6, 1, 1)));
    EXPECT("");
}

Test(device_plan, a_table_a_channel)
{
    end(project(lut(32, 8, MIL_U4, 32, 1)));
    EXPECT("lut_group_1:1");
}

Test(device_plan, a_table_for_two_channels)
{
    end(project(lut(32, 8, MIL_U4, 16, 1)));
    EXPECT("lut_group_2:1");
}

Test(device_plan, three_bits)
{
    end(project(lut(32, 8, MIL_U3, 4, 1)));
    EXPECT("lut_3_bits:1");
}

Test(device_plan, tables_by_rows_and_columns)
{
    end(project(lut(32, 8, MIL_U4, 4, 2)));
    EXPECT("lut_blocks:1");
}

static mil_ref scale(mil_ref data, int64_t rows)
{
    return MB(&b, constexpr_blockwise_shift_scale, .data = data,
              .scale = mb_data(&b, "s", ZEROS(MIL_F16, rows, 1, 1, 1)));
}

Test(device_plan, scaled_tables)
{
    end(project(scale(lut(32, 8, MIL_U4, 4, 1), 32)));
    EXPECT("lut_scaled:1");
}

Test(device_plan, linear_8_bits)
{
    end(project(scale(mb_data(&b, "d", ZEROS(MIL_I8, 32, 8, 1, 1)), 32)));
    EXPECT("linear_int8:1");
}

Test(device_plan, linear_4_bits)
{
    end(project(scale(mb_data(&b, "d", ZEROS(MIL_I4, 32, 8, 1, 1)), 32)));
    EXPECT("linear_int4:1");
}

/* ---- gathers ---- */

static mil_ref gather(mil_ref table, mil_ref ids)
{
    return MB(&b, gather, .x = table, .indices = ids, .axis = mb_int(&b, 0),
              .batch_dims = mb_int(&b, 0),
              .validate_indices = mb_bool(&b, false));
}

Test(device_plan, gathers)
{
    mil_ref ids = mb_input(&b, "ids", MIL_I32, 1, (int64_t[]){ 4 });
    mil_ref table = mb_data(&b, "t", ZEROS(MIL_F16, 64, 8));
    mil_ref narrow = MB(&b, cast, .x = ids, .dtype = mb_string(&b, "uint16"));

    end(MB(&b, add, .x = gather(table, ids), .y = gather(table, narrow)));
    EXPECT("gather_32_bits:1");
}

Test(device_plan, palettized_tables)
{
    mil_ref ids = mb_input(&b, "ids", MIL_I32, 1, (int64_t[]){ 4 });
    mil_ref narrow = MB(&b, cast, .x = ids, .dtype = mb_string(&b, "uint16"));

    end(gather(lut(64, 8, MIL_U4, 8, 1), narrow));
    EXPECT("lut_gather:1");
}

/* ---- arithmetic ---- */

Test(device_plan, native_sigmoids)
{
    mil_ref y = MB(&b, sigmoid, .x = x);

    end(MB(&b, add, .x = MB(&b, silu, .x = y), .y = MB(&b, tanh, .x = y)));
    EXPECT("sigmoid_coarse:2");
}

Test(device_plan, single_precision)
{
    mil_ref y = MB(&b, cast, .x = x, .dtype = mb_string(&b, "fp32"));

    y = MB(&b, add, .x = y, .y = mb_f32(&b, 1));
    end(MB(&b, cast, .x = y, .dtype = mb_string(&b, "fp16")));
    EXPECT("fp32:2");
}

Test(device_plan, powers)
{
    mil_ref two = MB(&b, pow, .x = mb_f16(&b, 2), .y = x);
    mil_ref cube = MB(&b, pow, .x = x, .y = mb_f16(&b, 3));
    mil_ref square = MB(&b, pow, .x = x, .y = mb_f16(&b, 2));

    end(MB(&b, add, .x = MB(&b, add, .x = two, .y = cube), .y = square));
    EXPECT("pow_base:1 pow_cube:1");
}

Test(device_plan, infinities)
{
    mil_ref low = mb_f16(&b, -INFINITY);
    mil_ref bounded = MB(&b, maximum, .x = x, .y = low);

    end(MB(&b, add, .x = bounded, .y = low));
    EXPECT("infinite_constant:1");
}

Test(device_plan, small_epsilons)
{
    mil_ref y = MB(&b, layer_norm, .x = x, .axes = MB_INTS(&b, -1),
                   .epsilon = mb_f16(&b, 1e-6));

    end(MB(&b, layer_norm, .x = y, .axes = MB_INTS(&b, -1),
           .epsilon = mb_f16(&b, 1e-4)));
    EXPECT("epsilon_subnormal:1");
}

Test(device_plan, sorting)
{
    mil_ref y = MB(&b, topk, .x = x, .k = mb_int(&b, 2), .axis = mb_int(&b, -1),
                   .ascending = mb_bool(&b, false), .sort = mb_bool(&b, true),
                   .return_indices = mb_bool(&b, true),
                   .output_indices_dtype = mb_string(&b, "int32"));

    end(MB(&b, add, .x = y, .y = mb_f16(&b, 1)));
    EXPECT("topk:1");
}

/* ---- shapes ---- */

Test(device_plan, long_axes)
{
    mil_ref y = MB(&b, tile, .x = x, .reps = MB_INTS(&b, 1, 1, 1, 1025));

    y = MB(&b, tile, .x = y, .reps = MB_INTS(&b, 1, 1, 1, 4));
    end(MB(&b, slice_by_size, .x = y, .begin = MB_INTS(&b, 0, 0, 0, 0),
           .size = MB_INTS(&b, 1, 8, 1, 16)));
    EXPECT("axis_16384:1 axis_65536:1");
}

Test(device_plan, volumes)
{
    mil_ref y = MB_RESHAPE(&b, x, 1, 8, 1, 4, 4);

    y = MB(&b, conv, .x = y,
           .weight = mb_data(&b, "w", ZEROS(MIL_F16, 8, 8, 1, 1, 1)),
           .strides = MB_INTS(&b, 1, 1, 1), .pad_type = mb_string(&b, "valid"),
           .pad = MB_INTS(&b, 0, 0, 0, 0, 0, 0),
           .dilations = MB_INTS(&b, 1, 1, 1), .groups = mb_int(&b, 1));
    end(y);
    EXPECT("conv_3d:1");
}

/* Built by hand: the builder refuses the rank. */
Test(device_plan, six_axes)
{
    struct mil_function *f;
    mil_ref y = MB(&b, add, .x = x, .y = mb_f16(&b, 1));

    end(y);
    f = prog->functions[0];
    mil_value(f, f->outputs[0])->type =
        mil_type_make(MIL_F16, 6, (const int64_t[]){ 1, 2, 4, 1, 4, 4 });
    EXPECT("rank_6:1");
}

Test(device_plan, open_shapes)
{
    struct mil_type t = mil_type_make(MIL_F16, 2, (const int64_t[]){ 1, 8 });
    struct mil_shapes range = { .first = t,
                                .low = { 1, 1 },
                                .high = { 1, 16 } };
    struct mil_type list[2] = { t, t };
    struct mil_shapes some = { .first = t, .n = 2, .list = list };
    struct mil_function *f;

    end(MB(&b, layer_norm, .x = x, .axes = MB_INTS(&b, -1),
           .epsilon = mb_f16(&b, 1e-4)));
    f = prog->functions[0];
    EXPECT("");
    list[1].dims[1] = 16;
    cr_assert_eq(mil_set_shapes(f, f->inputs[0], &some, &err), 0);
    EXPECT("norm_flexible:1");
    cr_assert_eq(mil_set_shapes(f, f->inputs[0], &range, &err), 0);
    EXPECT(""); /* ranges in a single function */
    cr_assert_not_null(mil_program_add(prog, "second", &err));
    EXPECT("range_functions:1");
}

Test(device_plan, ranges_beside_lists)
{
    struct mil_type t = mil_type_make(MIL_F16, 2, (const int64_t[]){ 1, 8 });
    struct mil_shapes range = { .first = t,
                                .low = { 1, 1 },
                                .high = { 1, 16 } };
    struct mil_type list[2] = { t, t };
    struct mil_shapes some = { .first = t, .n = 2, .list = list };
    struct mil_function *f;

    list[1].dims[1] = 16;
    mb_input(&b, "second", MIL_F16, 2, (int64_t[]){ 1, 8 });
    end(MB(&b, tanh, .x = x));
    f = prog->functions[0];
    cr_assert_eq(mil_set_shapes(f, f->inputs[0], &some, &err), 0);
    EXPECT("");
    cr_assert_eq(mil_set_shapes(f, f->inputs[1], &range, &err), 0);
    EXPECT("shapes_mixed:1");
}

/* Built by hand: the builder refuses the rank. */
Test(device_plan, scalars)
{
    struct mil_function *f;
    mil_ref n = mb_input(&b, "n", MIL_I32, 1, (int64_t[]){ 1 });

    end(MB(&b, tanh, .x = x));
    f = prog->functions[0];
    mil_value(f, n)->type.rank = 0;
    EXPECT("input_scalar:1");
}

Test(device_plan, strides)
{
    mil_ref w = mb_data(&b, "w", ZEROS(MIL_F16, 8, 8, 1, 1));
    mil_ref y = mb_f16(&b, 0);
    static const int64_t strides[] = { 1, 2, 3, 6, 5, 10 };

    for (int i = 0; i < 6; i++) {
        mil_ref c = MB(&b, conv, .x = x, .weight = w,
                       .strides = MB_INTS(&b, 1, strides[i]),
                       .pad_type = mb_string(&b, "valid"),
                       .pad = MB_INTS(&b, 0, 0, 0, 0),
                       .dilations = MB_INTS(&b, 1, 1), .groups = mb_int(&b, 1));

        y = MB(&b, add, .x = y,
               .y = MB(&b, reduce_max, .x = c, .axes = MB_INTS(&b, 3),
                       .keep_dims = mb_bool(&b, true)));
    }
    end(y);
    EXPECT("conv_stride:2");
}

Test(device_plan, linear_layers)
{
    end(MB(&b, linear, .x = MB_RESHAPE(&b, x, 8, 16),
           .weight = mb_data(&b, "w", ZEROS(MIL_F16, 4, 16))));
    EXPECT("linear_layer:1");
}

Test(device_plan, gathers_by_several_indices)
{
    mil_ref ids = mb_input(&b, "ids", MIL_I32, 2, (int64_t[]){ 4, 1 });
    mil_ref flat = MB_RESHAPE(&b, x, 8, 16);
    mil_ref three = MB_RESHAPE(&b, x, 2, 4, 16);

    flat =
        MB(&b, gather_nd, .x = flat, .indices = ids,
           .batch_dims = mb_int(&b, 0), .validate_indices = mb_bool(&b, false));
    three =
        MB(&b, gather_nd, .x = three, .indices = ids,
           .batch_dims = mb_int(&b, 0), .validate_indices = mb_bool(&b, false));
    end(MB(&b, add, .x = three, .y = flat));
    EXPECT("gather_nd:1");
}

/* ---- outputs ---- */

/* Built by hand: the builder puts an operation in between. */
Test(device_plan, outputs_that_are_passed_on)
{
    struct mil_function *f;

    mb_output(&b, "same", x);
    end(MB(&b, tanh, .x = x));
    f = prog->functions[0];
    EXPECT("");
    f->outputs[0] = f->outputs[1];
    EXPECT("output_passed:1");
    f->outputs[0] = f->inputs[0];
    EXPECT("output_passed:1");
}

Test(device_plan, outputs_that_are_states)
{
    int64_t dims[] = { 1, 8, 1, 16 };
    mil_ref s = mb_state(&b, "cache", 4, dims);
    mil_ref read = MB(&b, read_state, .input = s);
    mil_ref c = MB(&b, add, .x = read, .y = x);

    MB(&b, write_state, .input = s, .data = c);
    mb_output(&b, "read", MB(&b, tanh, .x = x));
    end(c);
    EXPECT("output_written:1");
    prog->functions[0]->outputs[0] = read;
    EXPECT("output_passed:1 output_written:1");
}

/* ---- states ---- */

static mil_ref update(mil_ref cache, mil_ref rows)
{
    return MB(&b, slice_update, .x = cache, .update = rows,
              .begin = MB_INTS(&b, 0, 0, 0, 0), .end = MB_INTS(&b, 1, 1, 1, 16),
              .stride = MB_INTS(&b, 1, 1, 1, 1));
}

static mil_ref updates(int64_t heads)
{
    int64_t dims[] = { 2, heads, 8, 16 };
    mil_ref s = mb_state(&b, "cache", 4, dims);
    mil_ref row =
        MB(&b, slice_by_size, .x = x, .begin = MB_INTS(&b, 0, 0, 0, 0),
           .size = MB_INTS(&b, 1, 1, 1, 16));
    mil_ref c = update(MB(&b, read_state, .input = s), row);

    c = update(c, row);
    MB(&b, write_state, .input = s, .data = c);
    return MB(&b, add, .x = row, .y = mb_f16(&b, 1));
}

Test(device_plan, updates_of_several_heads)
{
    end(updates(2));
    EXPECT("");
}

Test(device_plan, updates_of_a_single_head)
{
    end(updates(1));
    EXPECT("cache_single_head:1");
}

Test(device_plan, updates_of_another_type)
{
    struct mil_function *f;

    end(updates(2));
    f = prog->functions[0];
    for (size_t i = 0; i < f->n_ops; i++)
        if (f->ops[i].code == MIL_OP_slice_by_size)
            mil_value(f, f->ops[i].outs[0])->type.dtype = MIL_F32;
    EXPECT("fp32:1 update_dtype:2");
}

Test(device_plan, writes_of_views)
{
    int64_t dims[] = { 1, 16, 8 };
    mil_ref s = mb_state(&b, "cache", 3, dims);
    mil_ref y = MB(&b, squeeze, .x = x, .axes = MB_INTS(&b, 2)), c;

    c = MB(&b, read_state, .input = s);
    MB(&b, write_state, .input = s, .data = MB_TRANSPOSE(&b, y, 0, 2, 1));
    end(MB(&b, add, .x = c, .y = mb_f16(&b, 1)));
    EXPECT("state_write_form:1");
}

/* ---- the table and its printed forms ---- */

Test(device_plan, each_rule_is_tested_here)
{
    static char text[200000];
    FILE *f = fopen(ANEMLL_SOURCE_DIR "/tests/unit/test_device_plan.c", "rb");

    cr_assert_not_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    for (int r = 0; r < (int)DEV_RULES; r++) {
        char hit[64];

        snprintf(hit, sizeof(hit), "%s:", dev_rule((enum dev_id)r)->id);
        cr_expect_not_null(strstr(text, hit), "%s", hit);
        cr_expect(dev_rule((enum dev_id)r)->what[0]);
        cr_expect(dev_rule((enum dev_id)r)->advice[0]);
    }
    end(MB(&b, tanh, .x = x));
}

Test(device_plan, text_and_json, .fini = t_conv_clean)
{
    struct buf text = BUF_INIT, json = BUF_INIT;
    struct js_writer w;
    struct js_doc *d;
    struct pkg *p;
    uint64_t n;

    end(MB(&b, sigmoid, .x = x));
    cr_assert_eq(pkg_write(t_conv_path("s.mlpackage"), prog, NULL, NULL, &err),
                 0, "%s", err.text);
    p = pkg_open_raw(t_conv_path("s.mlpackage"), &err);
    cr_assert_not_null(p, "%s", err.text);
    cr_assert_eq(dev_plan_text(p, &text, &err), 0);
    cr_expect(strstr(buf_text(&text),
                     "s.mlpackage\n  main: 1 operations, 0 refused, 1 wrong, "
                     "0 slow, 0 at the edge\n    wrong       1 x "
                     "sigmoid_coarse"),
              "%s", buf_text(&text));
    cr_expect(strstr(buf_text(&text), "first: sigmoid 'y'"));
    js_w_init(&w, &json);
    cr_assert_eq(dev_plan_json(p, &w, &err), 0);
    d = js_parse(json.data, json.len, &err);
    cr_assert_not_null(d, "%s", err.text);
    cr_expect(
        js_uint(js_get(js_first(js_get(js_root(d), "functions")), "wrong"),
                &n) &&
        n == 1);
    js_free(d);
    pkg_close(p);
    buf_release(&text);
    buf_release(&json);
}
