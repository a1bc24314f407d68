/*
 * The builder: names, scopes, constants, outputs, sticky errors.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "mil/build.h"

#define DIMS(...) ((const int64_t[]){ __VA_ARGS__ })

struct fixture {
    struct mil_program *p;
    struct mb b;
    struct err e;
};

static struct fixture start(void)
{
    struct fixture x = { .e = ERR_INIT };

    x.p = mil_program_new(&x.e);
    cr_assert_not_null(x.p);
    mb_begin(&x.b, x.p, "infer");
    return x;
}

static void fails_with(struct fixture *x, const char *text)
{
    cr_assert_eq(mb_end(&x->b, &x->e), -1);
    cr_assert_not_null(strstr(x->e.text, text), "%s", x->e.text);
    mil_program_free(x->p);
}

Test(mil_build, emits_checked_named_ops)
{
    struct fixture x = start();
    struct mb *b = &x.b;
    mil_ref in = mb_input(b, "x", MIL_F16, 4, DIMS(1, 8, 1, 4)), y, z;
    struct mil_type t;

    mb_scope(b, "layers_%d", 3);
    mb_name(b, "q_proj");
    y = MB(b, add, .x = in, .y = in);
    mb_leave(b);
    z = MB(b, mul, .x = y, .y = mb_f16(b, 2));
    cr_assert_str_eq(mil_value(b->f, y)->name, "layers_3_q_proj");
    t = mb_type(b, z);
    cr_assert_eq(t.rank, 4);
    cr_assert_eq(mb_dim(b, z, -1), 4);
    mb_output(b, "y", z);
    cr_assert_str_eq(mil_value(b->f, z)->name, "y");
    cr_assert_str_eq(b->f->ops[mil_value(b->f, z)->op].name, "y");
    cr_assert_eq(mb_end(b, &x.e), 0, "%s", x.e.text);
    cr_assert_eq(mil_validate(x.p, &x.e), 0, "%s", x.e.text);
    mil_program_free(x.p);
}

Test(mil_build, equal_constants_are_one)
{
    struct fixture x = start();
    struct mb *b = &x.b;
    mil_ref a = MB_INTS(b, 1, 2, 3);

    cr_assert_eq(a, MB_INTS(b, 1, 2, 3));
    cr_assert_neq(a, MB_INTS(b, 1, 2, 4));
    cr_assert_neq(mb_int(b, 1), MB_INTS(b, 1));
    cr_assert_eq(mb_int(b, 7), mb_int(b, 7));
    cr_assert_eq(mb_string(b, "valid"), mb_string(b, "valid"));
    cr_assert_neq(mb_string(b, "valid"), mb_string(b, "same"));
    cr_assert_neq(mb_bool(b, true), mb_bool(b, false));
    cr_assert_eq(MB_BOOLS(b, true, false), MB_BOOLS(b, true, false));
    cr_assert_neq(mb_f16(b, 0.0), mb_f16(b, -0.0));
    cr_assert_neq(mb_f16(b, 1), mb_f32(b, 1));
    cr_assert_eq(mb_end(b, &x.e), -1);
    mil_program_free(x.p);
}

Test(mil_build, names_are_legal_unique_unreserved)
{
    struct fixture x = start();
    struct mb *b = &x.b;
    mil_ref in = mb_input(b, "x", MIL_F16, 1, DIMS(4)), v[5];
    static const char *const labels[] = { "3.weight", "tensor", "a", "a", "é" };
    static const char *const names[] = { "var_3_weight", "tensor_", "a", "a_1",
                                         "__" };

    for (int i = 0; i < 5; i++) {
        mb_name(b, "%s", labels[i]);
        v[i] = MB(b, relu, .x = in);
        cr_assert_str_eq(mil_value(b->f, v[i])->name, names[i]);
    }
    mb_output(b, "y", v[0]);
    cr_assert_eq(mb_end(b, &x.e), 0, "%s", x.e.text);
    mil_program_free(x.p);
}

Test(mil_build, a_label_is_not_spent_on_constants)
{
    struct fixture x = start();
    struct mb *b = &x.b;
    mil_ref in = mb_input(b, "x", MIL_F16, 2, DIMS(4, 2)), v;

    mb_name(b, "turned");
    v = MB_TRANSPOSE(b, in, 1, 0);
    cr_assert_str_eq(mil_value(b->f, v)->name, "turned");
    mb_output(b, "y", v);
    cr_assert_eq(mb_end(b, &x.e), 0, "%s", x.e.text);
    mil_program_free(x.p);
}

Test(mil_build, outputs_pass_through_identity_where_needed)
{
    struct fixture x = start();
    struct mb *b = &x.b;
    mil_ref in = mb_input(b, "x", MIL_F16, 1, DIMS(4)), v, s, r;

    v = MB(b, relu, .x = in);
    s = mb_state(b, "kv", 1, DIMS(4));
    r = MB(b, read_state, .input = s);
    mb_output(b, "a", in);
    mb_output(b, "b", v);
    mb_output(b, "c", v);
    mb_output(b, "d", mb_f16(b, 3));
    mb_output(b, "e", r);
    cr_assert_eq(mb_end(b, &x.e), 0, "%s", x.e.text);
    cr_assert_eq(b->f->n_outputs, 5);
    for (size_t i = 0; i < 5; i++) {
        const struct mil_value *o = mil_value(b->f, b->f->outputs[i]);

        cr_assert_eq(b->f->ops[o->op].code,
                     i == 1 ? MIL_OP_relu : MIL_OP_identity);
    }
    cr_assert_eq(mil_validate(x.p, &x.e), 0, "%s", x.e.text);
    mil_program_free(x.p);
}

Test(mil_build, name_clashes_are_errors)
{
    struct fixture x = start();
    mil_ref in = mb_input(&x.b, "x", MIL_F16, 1, DIMS(4));

    mb_output(&x.b, "x", MB(&x.b, relu, .x = in));
    fails_with(&x, "output 'x': the name is taken");

    x = start();
    mb_input(&x.b, "x", MIL_F16, 1, DIMS(4));
    mb_input(&x.b, "x", MIL_F16, 1, DIMS(4));
    fails_with(&x, "input 'x': the name is taken");

    x = start();
    mb_input(&x.b, "state", MIL_F16, 1, DIMS(4));
    fails_with(&x, "input 'state' is no legal name");
}

Test(mil_build, the_first_error_sticks_and_says_where)
{
    struct fixture x = start();
    struct mb *b = &x.b;
    mil_ref in = mb_input(b, "x", MIL_F16, 2, DIMS(4, 2)), v;

    mb_scope(b, "layers_1");
    mb_name(b, "sum");
    v = MB(b, add, .x = in, .y = mb_f32(b, 1));
    cr_assert_eq(v, 0);
    cr_assert_eq(MB(b, relu, .x = v), 0);
    cr_assert_eq(mb_type(b, in).rank, 0);
    mb_leave(b);
    mb_output(b, "y", v);
    fails_with(&x, "test_mil_build.c:");
    cr_assert_not_null(strstr(x.e.text, "add 'layers_1_sum': parameter 'y' is "
                                        "fp32, but 'x' is fp16"),
                       "%s", x.e.text);
}

Test(mil_build, split_and_topk_give_several_outputs)
{
    struct fixture x = start();
    struct mb *b = &x.b;
    mil_ref in = mb_input(b, "x", MIL_F16, 2, DIMS(4, 6)), s, k;

    mb_name(b, "parts");
    s = MB(b, split, .x = in, .num_splits = mb_int(b, 3), .axis = mb_int(b, 1));
    cr_assert_eq(mb_dim(b, mb_out(b, s, 2), 1), 2);
    cr_assert_str_eq(mil_value(b->f, mb_out(b, s, 2))->name, "parts_2");
    k = MB(b, topk, .x = in, .k = mb_int(b, 2), .axis = mb_int(b, 1));
    cr_assert_eq(mb_type(b, mb_out(b, k, 1)).dtype, MIL_I32);
    mb_output(b, "y", mb_out(b, k, 1));
    cr_assert_eq(mb_out(b, s, 3), 0);
    fails_with(&x, "'parts_0' has no output 3");
}

Test(mil_build, states_and_writes)
{
    struct fixture x = start();
    struct mb *b = &x.b;
    mil_ref in = mb_input(b, "x", MIL_F16, 4, DIMS(1, 8, 1, 1)), s, c;

    s = mb_state(b, "kv", 4, DIMS(1, 8, 1, 4));
    c = MB(b, read_state, .input = s);
    c = MB(b, slice_update, .x = c, .update = in,
           .begin = MB_INTS(b, 0, 0, 0, 1), .end = MB_INTS(b, 1, 8, 1, 2));
    cr_assert_eq(MB(b, write_state, .input = s, .data = c), 0);
    cr_assert_eq(x.b.err.code, ERR_OK);
    c = MB(b, read_state, .input = s);
    mb_output(b, "y",
              MB(b, reduce_sum, .x = c, .axes = MB_INTS(b, 3),
                 .keep_dims = mb_bool(b, true)));
    cr_assert_eq(mb_end(b, &x.e), 0, "%s", x.e.text);
    for (size_t i = 0; i < b->f->n_ops; i++) {
        const struct mil_op *op = &b->f->ops[i];

        if (op->code == MIL_OP_write_state)
            cr_assert_not_null(strstr(op->name, "_write_state"));
    }
    cr_assert_eq(mil_validate(x.p, &x.e), 0, "%s", x.e.text);
    mil_program_free(x.p);
}

Test(mil_build, scopes_must_balance)
{
    struct fixture x = start();

    mb_leave(&x.b);
    fails_with(&x, "a scope is left that was never entered");
    x = start();
    mb_output(&x.b, "y",
              MB(&x.b, relu, .x = mb_input(&x.b, "x", MIL_F16, 1, DIMS(4))));
    mb_scope(&x.b, "a");
    fails_with(&x, "in 'a': the scope is not left");
}

Test(mil_build, conv1x1_writes_all_parameters)
{
    static const unsigned char zeros[16 * 8 * 2];
    static const struct mil_data w = {
        .type = { MIL_F16, 4, { 16, 8, 1, 1 } },
        .bytes = sizeof zeros,
        .read = mil_data_read_memory,
        .cookie = (void *)zeros,
    };
    struct fixture x = start();
    struct mb *b = &x.b;
    mil_ref in = mb_input(b, "x", MIL_F16, 4, DIMS(1, 8, 1, 4)), y, k;
    const struct mil_op *op;

    k = mb_data(b, "model.layers.0.w", &w);
    cr_assert_str_eq(mil_value(b->f, k)->name, "model_layers_0_w");
    cr_assert_eq(k, mb_data(b, "other", &w));
    y = mb_conv1x1(b, in, k, 0);
    cr_assert_eq(mb_dim(b, y, 1), 16);
    op = &b->f->ops[mil_value(b->f, y)->op];
    for (int i = 0; i < mil_op_info(MIL_OP_conv)->n_params; i++)
        cr_assert_eq(op->args[i].n, i == 2 ? 0 : 1);
    mb_output(b, "y", y);
    cr_assert_eq(mb_end(b, &x.e), 0, "%s", x.e.text);
    mil_program_free(x.p);
}
