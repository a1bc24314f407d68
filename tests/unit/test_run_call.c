/*
 * Calls at the border: inputs that are missing, foreign, of another type or
 * shape; flexible and run-time shapes; outputs; unsupported operations;
 * every allocation failing once.
 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "mil/build.h"
#include "mil/run/run.h"

static struct err e;

static struct run_tensor tensor(const char *name, enum mil_dtype d, int rank,
                                const int64_t *dims, const void *data)
{
    struct run_tensor t = { name, mil_type_make(d, rank, dims), data };

    return t;
}

static struct run_model *open_as(const struct mil_program *p,
                                 enum run_profile profile)
{
    struct run_options o = { .profile = profile };
    struct run_model *m = run_open(p, &o, &e);

    cr_assert(m, "%s", e.text);
    return m;
}

/* y = (a + b) * 2 over [2, 3], and c = a as an output of its own. */
static struct mil_program *adder(void)
{
    struct mil_program *p = mil_program_new(&e);
    struct mb b;

    mb_begin(&b, p, "main");
    mil_ref x = mb_input(&b, "a", MIL_F16, 2, (int64_t[]){ 2, 3 });
    mil_ref y = mb_input(&b, "b", MIL_F16, 2, (int64_t[]){ 2, 3 });
    mil_ref s = MB(&b, add, .x = x, .y = y);
    mb_output(&b, "y", MB(&b, mul, .x = s, .y = mb_f16(&b, 2)));
    mb_output(&b, "c", x);
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    return p;
}

static const float ones[6] = { 1, 1, 1, 1, 1, 1 };
static const int64_t d23[2] = { 2, 3 };

Test(run_call, profiles_have_names)
{
    enum run_profile p;

    cr_expect_str_eq(run_profile_name(RUN_F32), "f32");
    cr_expect_str_eq(run_profile_name(RUN_FP16), "fp16");
    cr_expect_str_eq(run_profile_name(RUN_ANE), "ane");
    cr_expect(run_profile_by_name("ane", &p) && p == RUN_ANE);
    cr_expect(run_profile_by_name("fp16", &p) && p == RUN_FP16);
    cr_expect(run_profile_by_name("f32", &p) && p == RUN_F32);
    cr_expect_not(run_profile_by_name("FP16", &p));
    cr_expect_not(run_profile_by_name("", &p));
}

static void refused(struct run_model *m, const char *f,
                    const struct run_tensor *in, size_t n, const char *text)
{
    struct run_tensor out[2];
    size_t k = 7;

    err_reset(&e);
    cr_expect_neq(run_call(m, f, NULL, in, n, out, 2, &k, &e), 0);
    cr_expect_eq(e.code, ERR_INPUT);
    cr_expect_str_eq(e.text, text);
    cr_expect_eq(k, 0);
}

Test(run_call, inputs_are_checked)
{
    struct mil_program *p = adder();
    struct run_model *m = open_as(p, RUN_F32);
    struct run_tensor in[3];

    in[0] = tensor("a", MIL_F16, 2, d23, ones);
    in[1] = tensor("b", MIL_F16, 2, d23, ones);
    in[2] = tensor("z", MIL_F16, 2, d23, ones);
    refused(m, "main", in, 1, "function 'main': input 'b' is missing");
    refused(m, "main", in, 3, "function 'main': 'z' is no input");
    refused(m, "other", in, 2, "the program has no function 'other'");
    in[2].name = "a";
    refused(m, "main", in, 3,
            "function 'main': 3 inputs are given, 2 are declared");
    in[1].type.dims[1] = 4;
    refused(m, "main", in, 2,
            "function 'main': input 'b' is tensor<fp16, [2, 4]>, declared: "
            "tensor<fp16, [2, 3]>");
    in[1].type = mil_type_make(MIL_F32, 2, d23);
    refused(m, "main", in, 2,
            "function 'main': input 'b' is tensor<fp32, [2, 3]>, declared: "
            "tensor<fp16, [2, 3]>");
    in[1] = tensor("b", MIL_F16, 2, d23, NULL);
    refused(m, "main", in, 2, "function 'main': input 'b' has no data");
    in[1].type.rank = 1;
    refused(m, "main", in, 2,
            "function 'main': input 'b' is tensor<fp16, [2]>, declared: "
            "tensor<fp16, [2, 3]>");
    run_close(m);
    mil_program_free(p);
}

Test(run_call, outputs_in_order_and_up_to_the_room_given)
{
    struct mil_program *p = adder();
    struct run_model *m = open_as(p, RUN_F32);
    float a[6] = { 1, 2, 3, 4, 5, 6 };
    struct run_tensor in[2], out[2];
    size_t n;

    in[0] = tensor("b", MIL_F16, 2, d23, ones); /* any order */
    in[1] = tensor("a", MIL_F16, 2, d23, a);
    cr_assert_eq(run_call(m, NULL, NULL, in, 2, out, 2, &n, &e), 0, "%s",
                 e.text);
    cr_expect_eq(n, 2);
    cr_expect_str_eq(out[0].name, "y");
    cr_expect_str_eq(out[1].name, "c");
    for (int i = 0; i < 6; i++) {
        cr_expect_eq(((const float *)out[0].data)[i], 2 * a[i] + 2);
        cr_expect_eq(((const float *)out[1].data)[i], a[i]);
    }
    a[0] = 99; /* the caller's again: outputs are copies */
    cr_expect_eq(((const float *)out[1].data)[0], 1);
    cr_assert_eq(run_call(m, NULL, NULL, in, 2, out, 1, &n, &e), 0);
    cr_expect_eq(n, 1);
    run_close(m);
    mil_program_free(p);
}

/* FP16 rounds inputs and every result; F32 keeps what it computes. */
Test(run_call, the_profile_decides_about_rounding)
{
    struct mil_program *p = adder();
    float a[6] = { 0.1f, 1e-8f, 70000.0f, -0.3f, 2048.0f, 1.0f };
    float b[6] = { 0.2f, 0, 0, 1.7f, 1.0f, 0.00048828125f };
    struct run_tensor in[2], out[2];
    size_t n;

    in[0] = tensor("a", MIL_F16, 2, d23, a);
    in[1] = tensor("b", MIL_F16, 2, d23, b);
    for (int half = 0; half < 2; half++) {
        struct run_model *m = open_as(p, half ? RUN_FP16 : RUN_F32);

        cr_assert_eq(run_call(m, NULL, NULL, in, 2, out, 2, &n, &e), 0);
        for (int i = 0; i < 6; i++) {
            float x = a[i], y = b[i], s;

            if (half) {
                x = f16_to_f32(f32_to_f16(x));
                y = f16_to_f32(f32_to_f16(y));
            }
            s = half ? f16_to_f32(f32_to_f16(x + y)) : x + y;
            s = half ? f16_to_f32(f32_to_f16(2 * s)) : 2 * s;
            cr_expect_eq(((const float *)out[0].data)[i], s, "%d: %g %g", i,
                         (double)((const float *)out[0].data)[i], (double)s);
        }
        run_close(m);
    }
    mil_program_free(p);
}

/* ---- flexible inputs ---- */

static struct mil_program *flexible(int n_shapes)
{
    struct mil_program *p = mil_program_new(&e);
    struct mil_type shapes[2];
    struct mb b;

    mb_begin(&b, p, "main");
    mil_ref x =
        mb_input(&b, "ids", MIL_I32, 2, (int64_t[]){ 1, MIL_DIM_UNKNOWN });
    mil_ref y = MB(&b, cast, .x = x, .dtype = mb_string(&b, "fp16"));
    y = MB(&b, expand_dims, .x = y, .axes = MB_INTS(&b, -1));
    y = MB(&b, concat, .values = MB_REFS(y, y), .axis = mb_int(&b, -1));
    mb_output(&b, "y", MB(&b, mul, .x = y, .y = mb_f16(&b, 0.5)));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    shapes[0] = mil_type_make(MIL_I32, 2, (int64_t[]){ 1, 1 });
    shapes[1] = mil_type_make(MIL_I32, 2, (int64_t[]){ 1, 4 });
    if (n_shapes)
        cr_assert_eq(mil_program_set_enumerated(p, "ids", n_shapes, shapes, &e),
                     0);
    return p;
}

static void flexible_call(struct run_model *m, int64_t n)
{
    int32_t ids[8] = { 2, 4, 6, 8, 10, 12, 14, 16 };
    struct run_tensor in, out;
    size_t k;

    in = tensor("ids", MIL_I32, 2, (int64_t[]){ 1, n }, ids);
    cr_assert_eq(run_call(m, NULL, NULL, &in, 1, &out, 1, &k, &e), 0, "%s",
                 e.text);
    cr_expect_eq(out.type.rank, 3);
    cr_expect_eq(out.type.dims[1], n);
    for (int64_t i = 0; i < 2 * n; i++)
        cr_expect_eq(((const float *)out.data)[i], (float)(i / 2 + 1));
}

Test(run_call, enumerated_shapes)
{
    struct mil_program *p = flexible(2);
    struct run_model *m = open_as(p, RUN_FP16);
    int32_t ids[8] = { 0 };
    struct run_tensor in;

    flexible_call(m, 1);
    flexible_call(m, 4);
    flexible_call(m, 1);
    in = tensor("ids", MIL_I32, 2, (int64_t[]){ 1, 3 }, ids);
    refused(m, NULL, &in, 1,
            "function 'main': input 'ids' is tensor<int32, [1, 3]>, allowed: "
            "tensor<int32, [1, 1]>, tensor<int32, [1, 4]>");
    run_close(m);
    mil_program_free(p);
}

Test(run_call, a_range_of_shapes)
{
    struct mil_program *p = flexible(0);
    struct mil_function *f = p->functions[0];
    const struct mil_shapes s = {
        .first = mil_type_make(MIL_I32, 2, (int64_t[]){ 1, 2 }),
        .low = { 1, 2 },
        .high = { 1, 5 },
    };
    int32_t ids[8] = { 0 };
    struct run_tensor in;
    struct run_model *m;

    cr_assert_eq(mil_set_shapes(f, f->inputs[0], &s, &e), 0);
    m = open_as(p, RUN_F32);
    flexible_call(m, 5);
    flexible_call(m, 2);
    in = tensor("ids", MIL_I32, 2, (int64_t[]){ 1, 6 }, ids);
    refused(m, NULL, &in, 1,
            "function 'main': input 'ids' is tensor<int32, [1, 6]>, allowed: "
            "1 x 2 to 5");
    run_close(m);
    mil_program_free(p);
}

Test(run_call, any_shape_where_none_is_listed)
{
    struct mil_program *p = flexible(0);
    struct run_model *m = open_as(p, RUN_F32);

    flexible_call(m, 3);
    flexible_call(m, 8);
    run_close(m);
    mil_program_free(p);
}

/* ---- shapes that values decide ---- */

Test(run_call, run_time_shapes_reach_later_operations)
{
    struct mil_program *p = mil_program_new(&e);
    float x[10];
    struct run_tensor in[3], out[3];
    struct run_model *m;
    struct mb b;
    size_t k;

    mb_begin(&b, p, "main");
    mil_ref in_x = mb_input(&b, "x", MIL_F16, 1, (int64_t[]){ 10 });
    mil_ref begin = mb_input(&b, "begin", MIL_I32, 1, (int64_t[]){ 1 });
    mil_ref end = mb_input(&b, "end", MIL_I32, 1, (int64_t[]){ 1 });
    mil_ref y = MB(&b, slice_by_index, .x = in_x, .begin = begin, .end = end);
    mil_ref z = MB(&b, expand_dims, .x = y, .axes = MB_INTS(&b, 0));
    mil_ref w =
        MB(&b, matmul, .x = z, .y = z, .transpose_y = mb_bool(&b, true));
    mb_output(&b, "y", MB(&b, add, .x = y, .y = mb_f16(&b, 1)));
    mb_output(&b, "w", w);
    mb_output(&b, "s", MB(&b, shape, .x = z));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    m = open_as(p, RUN_F32);
    for (int i = 0; i < 10; i++)
        x[i] = (float)i;
    for (int32_t from = 0; from < 5; from++) {
        for (int32_t n = 1; n < 5; n++) {
            int32_t to = from + n;
            float dot = 0;

            in[0] = tensor("x", MIL_F16, 1, (int64_t[]){ 10 }, x);
            in[1] = tensor("begin", MIL_I32, 1, (int64_t[]){ 1 }, &from);
            in[2] = tensor("end", MIL_I32, 1, (int64_t[]){ 1 }, &to);
            cr_assert_eq(run_call(m, NULL, NULL, in, 3, out, 3, &k, &e), 0,
                         "%s", e.text);
            cr_assert_eq(out[0].type.dims[0], n);
            for (int i = 0; i < n; i++) {
                cr_expect_eq(((const float *)out[0].data)[i], x[from + i] + 1);
                dot += x[from + i] * x[from + i];
            }
            cr_expect_eq(((const float *)out[1].data)[0], dot);
            cr_expect_eq(((const int32_t *)out[2].data)[1], n);
        }
    }
    run_close(m);
    mil_program_free(p);
}

Test(run_call, positions_out_of_range_are_errors)
{
    struct mil_program *p = mil_program_new(&e);
    float x[12] = { 0 };
    int32_t at = 2;
    struct run_tensor in[2], out[2];
    struct run_model *m;
    struct mb b;
    size_t k;

    mb_begin(&b, p, "main");
    mil_ref in_x = mb_input(&b, "x", MIL_F16, 2, (int64_t[]){ 3, 4 });
    mil_ref pos = mb_input(&b, "pos", MIL_I32, 1, (int64_t[]){ 1 });
    mil_ref begin = MB(&b, concat, .values = MB_REFS(pos, MB_INTS(&b, 0)),
                       .axis = mb_int(&b, 0));
    mb_name(&b, "window");
    mil_ref y = MB(&b, slice_by_size, .x = in_x, .begin = begin,
                   .size = MB_INTS(&b, 1, 4));
    mb_output(&b, "y", MB(&b, mul, .x = y, .y = mb_f16(&b, 1)));
    mb_name(&b, "row");
    mil_ref g = MB(&b, gather, .x = in_x, .indices = pos);
    mb_output(&b, "g", MB(&b, mul, .x = g, .y = mb_f16(&b, 1)));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    m = open_as(p, RUN_FP16);
    in[0] = tensor("x", MIL_F16, 2, (int64_t[]){ 3, 4 }, x);
    in[1] = tensor("pos", MIL_I32, 1, (int64_t[]){ 1 }, &at);
    cr_assert_eq(run_call(m, NULL, NULL, in, 2, out, 2, &k, &e), 0, "%s",
                 e.text);
    at = 3;
    refused(m, NULL, in, 2,
            "function 'main': slice_by_size 'window': dim 0: 1 elements from "
            "3 on exceed 3");
    at = -1; /* wraps for the slice, is outside for the gather */
    refused(m, NULL, in, 2,
            "function 'main': gather 'row': index -1 at position 0, allowed: "
            "0 to 2");
    run_close(m);
    mil_program_free(p);
}

/* ---- programs that are refused ---- */

Test(run_call, an_unknown_operation_is_named_at_open)
{
    struct mil_program *p = mil_program_new(&e);
    struct mil_function *f = mil_program_add(p, "main", &e);
    struct mil_type t = mil_type_make(MIL_F16, 1, (int64_t[]){ 2 });
    struct mil_foreign foreign = { .type = "argsort" };
    struct run_options o = { .profile = RUN_F32 };
    struct mil_op *op;
    mil_ref x, y;

    x = mil_add_value(f, MIL_V_INPUT, "x", &t, &e);
    op = mil_add_op(f, MIL_OP_INVALID, "sorted", &e);
    cr_assert(x && op);
    cr_assert_eq(mil_set_foreign(f, op, &foreign, &e), 0);
    y = mil_add_output(f, op, "sorted", &t, &e);
    cr_assert(y);
    cr_assert_eq(mil_add_function_output(f, y, &e), 0);
    cr_expect_null(run_open(p, &o, &e));
    cr_expect_eq(e.code, ERR_UNSUPPORTED);
    cr_expect_str_eq(
        e.text,
        "function 'main': op 'argsort' is not supported by the runtime");
    mil_program_free(p);
}

Test(run_call, a_wrong_declaration_is_found)
{
    struct mil_program *p = adder();
    struct run_options o = { .profile = RUN_F32 };
    struct mil_function *f = p->functions[0];
    mil_ref y = f->outputs[0];

    mil_value(f, y)->type.dims[1] = 5;
    cr_expect_null(run_open(p, &o, &e));
    cr_expect_eq(e.code, ERR_INPUT);
    cr_expect(strstr(e.text, "is declared as tensor<fp16, [2, 5]>, but is "
                             "tensor<fp16, [2, 3]>"),
              "%s", e.text);
    mil_program_free(p);
}

Test(run_call, a_value_used_before_it_is_made)
{
    struct mil_program *p = adder();
    struct run_options o = { .profile = RUN_F32 };
    struct mil_function *f = p->functions[0];
    struct mil_op t = f->ops[0];
    size_t a = 0, b = 0;

    for (size_t i = 0; i < f->n_ops; i++) {
        a = f->ops[i].code == MIL_OP_add ? i : a;
        b = f->ops[i].code == MIL_OP_mul ? i : b;
    }
    t = f->ops[a];
    f->ops[a] = f->ops[b];
    f->ops[b] = t;
    cr_expect_null(run_open(p, &o, &e));
    cr_expect(strstr(e.text, "is used before it is made"), "%s", e.text);
    mil_program_free(p);
}

/* ---- memory ---- */

static int everything(const struct mil_program *p)
{
    struct run_options o = { .profile = RUN_FP16 };
    struct run_tensor in[2], out[2];
    struct run_model *m = run_open(p, &o, &e);
    size_t n;
    int rc = -1;

    in[0] = tensor("a", MIL_F16, 2, d23, ones);
    in[1] = tensor("b", MIL_F16, 2, d23, ones);
    if (m)
        rc = run_call(m, NULL, NULL, in, 2, out, 2, &n, &e);
    if (rc == 0)
        cr_expect_eq(((const float *)out[0].data)[5], 4);
    run_close(m);
    return rc;
}

Test(run_call, every_allocation_may_fail)
{
    struct mil_program *p = adder();
    int failures = 0;

    for (long n = 0; n < 1000; n++) {
        int rc;

        err_reset(&e);
        mem_fail_at(n, false);
        rc = everything(p);
        mem_fail_at(-1, false);
        if (rc == 0)
            break;
        cr_expect_eq(e.code, ERR_NOMEM, "allocation %ld: %s", n, e.text);
        failures++;
    }
    cr_expect_gt(failures, 10);
    cr_expect_lt(failures, 1000);
    mil_program_free(p);
}

/* Two models, one after the other and interleaved: nothing is shared. */
Test(run_call, calls_leave_nothing_behind)
{
    struct mil_program *p = adder();
    struct run_model *m = open_as(p, RUN_F32), *k = open_as(p, RUN_F32);
    struct run_tensor in[2], out[2], other[2];
    float big[6] = { 1e30f, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f };
    size_t n;

    in[0] = tensor("a", MIL_F16, 2, d23, ones);
    in[1] = tensor("b", MIL_F16, 2, d23, ones);
    cr_assert_eq(run_call(m, NULL, NULL, in, 2, out, 2, &n, &e), 0);
    in[0].data = big;
    cr_assert_eq(run_call(k, NULL, NULL, in, 2, other, 2, &n, &e), 0);
    cr_expect_eq(((const float *)out[0].data)[0], 4);
    for (int i = 0; i < 1000; i++) {
        uint64_t before = run_resident_bytes(m);

        in[0].data = ones;
        cr_assert_eq(run_call(m, NULL, NULL, in, 2, out, 2, &n, &e), 0);
        cr_expect_eq(run_resident_bytes(m), before);
    }
    run_close(m);
    run_close(k);
    mil_program_free(p);
}
