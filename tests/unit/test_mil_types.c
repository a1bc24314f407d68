/*
 * Element types, tensor types, packed constants, raw construction.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "mil/mil.h"

Test(mil_types, names_and_widths)
{
    for (int i = MIL_INVALID + 1; i < MIL_DTYPE_COUNT; i++) {
        enum mil_dtype d = (enum mil_dtype)i, back;

        cr_assert(mil_dtype_by_name(mil_dtype_name(d), &back));
        cr_assert_eq(back, d);
        cr_assert(!(mil_dtype_is_float(d) && mil_dtype_is_int(d)));
    }
    cr_assert_eq(mil_dtype_bits(MIL_BOOL), 8);
    cr_assert_eq(mil_dtype_bits(MIL_STRING), 0);
    cr_assert_eq(mil_dtype_bits(MIL_U3), 3);
    cr_assert(mil_dtype_is_int(MIL_U1) && !mil_dtype_is_int(MIL_BOOL));
    cr_assert_eq(mil_dtype_bits((enum mil_dtype)999), 0);
}

Test(mil_types, sizes_are_checked)
{
    struct mil_type t = { MIL_U3, 1, { 7 } };

    cr_assert_eq(mil_type_elems(&t), 7);
    cr_assert_eq(mil_type_bytes(&t), 3);
    t = (struct mil_type){ MIL_F16, 3, { 1, -1, 2 } };
    cr_assert_eq(mil_type_elems(&t), -1);
    cr_assert_eq(mil_type_bytes(&t), -1);
    t = (struct mil_type){ MIL_F16, 2, { INT64_MAX, INT64_MAX } };
    cr_assert_eq(mil_type_elems(&t), -1);
    t = (struct mil_type){ MIL_F16, 3, { INT64_MAX, INT64_MAX, 0 } };
    cr_assert_eq(mil_type_elems(&t), 0);
    t = (struct mil_type){ MIL_F64, 1, { (int64_t)1 << 61 } };
    cr_assert_eq(mil_type_elems(&t), (int64_t)1 << 61);
    cr_assert_eq(mil_type_bytes(&t), -1);
    t = mil_scalar(MIL_F32);
    cr_assert_eq(mil_type_elems(&t), 1);
}

Test(mil_types, text)
{
    char out[MIL_TYPE_TEXT_MAX];
    struct mil_type t = { MIL_F16, 4, { 1, 8, -1, 64 } };

    mil_type_text(&t, out);
    cr_assert_str_eq(out, "tensor<fp16, [1, 8, ?, 64]>");
    t = mil_scalar(MIL_STRING);
    mil_type_text(&t, out);
    cr_assert_str_eq(out, "string");
    t = mil_type_make(MIL_F16, 8,
                      (const int64_t[]){ INT64_MAX, INT64_MAX, INT64_MAX,
                                         INT64_MAX, INT64_MAX, INT64_MAX,
                                         INT64_MAX, INT64_MAX });
    mil_type_text(&t, out);
    cr_assert_lt(strlen(out), MIL_TYPE_TEXT_MAX);
    cr_assert_str_eq(out + strlen(out) - 2, "]>");
}

Test(mil_types, packed_elements)
{
    /* uint3 1,2,3,4,5,6,7,0,5; int4 -1,7,-8; uint6 1,2,3,63,33 */
    static const unsigned char u3[] = { 0xd1, 0x58, 0x1f, 0x05 };
    static const unsigned char i4[] = { 0x7f, 0x08 };
    static const unsigned char u6[] = { 0x81, 0x30, 0xfc, 0x21 };
    static const int64_t v3[] = { 1, 2, 3, 4, 5, 6, 7, 0, 5 };
    static const int64_t v4[] = { -1, 7, -8 }, v6[] = { 1, 2, 3, 63, 33 };
    struct mil_const c = { { MIL_U3, 1, { 9 } }, u3, NULL, NULL };

    for (int i = 0; i < 9; i++)
        cr_assert_eq(mil_const_int(&c, i), v3[i]);
    cr_assert_eq(mil_const_int(&c, 9), 0);
    cr_assert_eq(mil_const_int(&c, -1), 0);
    c = (struct mil_const){ { MIL_I4, 1, { 3 } }, i4, NULL, NULL };
    for (int i = 0; i < 3; i++)
        cr_assert_eq(mil_const_int(&c, i), v4[i]);
    c = (struct mil_const){ { MIL_U6, 1, { 5 } }, u6, NULL, NULL };
    for (int i = 0; i < 5; i++)
        cr_assert_eq(mil_const_double(&c, i), (double)v6[i]);
}

Test(mil_types, whole_elements)
{
    static const unsigned char h[] = { 0x00, 0x3c, 0x00, 0xfc, 0x00, 0x7e };
    static const unsigned char i16[] = { 0xff, 0xff, 0xff, 0x7f };
    static const unsigned char u64[] = { 0xff, 0xff, 0xff, 0xff,
                                         0xff, 0xff, 0xff, 0xff };
    struct mil_const c = { { MIL_F16, 1, { 3 } }, h, NULL, NULL };

    cr_assert_eq(mil_const_double(&c, 0), 1.0);
    cr_assert_eq(mil_const_double(&c, 1), -INFINITY);
    cr_assert(isnan(mil_const_double(&c, 2)));
    cr_assert_eq(mil_const_int(&c, 0), 1);
    cr_assert_eq(mil_const_int(&c, 1), INT64_MIN);
    cr_assert_eq(mil_const_int(&c, 2), 0);
    c = (struct mil_const){ { MIL_I16, 1, { 2 } }, i16, NULL, NULL };
    cr_assert_eq(mil_const_int(&c, 0), -1);
    cr_assert_eq(mil_const_int(&c, 1), 32767);
    c = (struct mil_const){ { MIL_U64, 0, { 0 } }, u64, NULL, NULL };
    cr_assert_eq(mil_const_double(&c, 0), 18446744073709551616.0);
    cr_assert_eq(mil_const_int(NULL, 0), 0);
}

Test(mil_program, grows_and_keeps_order)
{
    struct err e = ERR_INIT;
    struct mil_program *p = mil_program_new(&e);
    struct mil_function *f = mil_program_add(p, "f", &e);
    struct mil_type t = mil_scalar(MIL_F16);
    struct mil_op *op;
    char name[32];

    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "in%d", i);
        cr_assert_eq(mil_add_value(f, MIL_V_INPUT, name, &t, &e), i + 1);
    }
    op = mil_add_op(f, MIL_OP_split, "s", &e);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "out%d", i);
        cr_assert_eq(mil_add_output(f, op, name, &t, &e), 1001 + i);
    }
    cr_assert_eq(op->n_outs, 100);
    for (uint32_t i = 0; i < 100; i++)
        cr_assert_eq(op->outs[i], 1001 + i);
    cr_assert_eq(f->n_inputs, 1000);
    cr_assert_eq(f->inputs[999], 1000);
    cr_assert_eq(mil_find_value(f, "in500"), 501);
    cr_assert_eq(mil_find_value(f, "none"), 0);
    cr_assert_str_eq(mil_value(f, 1050)->name, "out49");
    mil_program_free(p);
}

Test(mil_program, refuses_what_does_not_fit)
{
    struct err e = ERR_INIT;
    struct mil_program *p = mil_program_new(&e);
    struct mil_function *f = mil_program_add(p, "f", &e);
    struct mil_const none = { { MIL_F16, 1, { 4 } }, NULL, NULL, NULL };
    struct mil_op *op = mil_add_op(f, MIL_OP_relu, "r", &e);
    mil_ref bad = 7;

    cr_assert_null(mil_program_add(p, "f", &e));
    cr_assert_str_eq(e.text, "function 'f' is defined twice");
    err_reset(&e);
    cr_assert_eq(mil_set_arg(f, op, 0, &bad, 1, &e), -1);
    cr_assert_str_eq(e.text, "an argument refers to value 7 of 1");
    err_reset(&e);
    cr_assert_null(mil_copy_const(p, &none, &e));
    cr_assert_not_null(strstr(e.text, "tensor<fp16, [4]> has no value"));
    mil_program_free(p);
}

Test(mil_program, metadata_keeps_order_and_replaces)
{
    struct err e = ERR_INIT;
    struct mil_program *p = mil_program_new(&e);

    cr_assert_eq(mil_program_set_metadata(p, "b", "1", &e), 0);
    cr_assert_eq(mil_program_set_metadata(p, "a", "2", &e), 0);
    cr_assert_eq(mil_program_set_metadata(p, "b", "3", &e), 0);
    cr_assert_eq(p->n_metadata, 2);
    cr_assert_str_eq(p->metadata[0].key, "b");
    cr_assert_str_eq(mil_program_metadata(p, "b"), "3");
    cr_assert_null(mil_program_metadata(p, "c"));
    mil_program_free(p);
}

Test(mil_program, identifiers)
{
    cr_assert(mil_is_identifier("a"));
    cr_assert(mil_is_identifier("_9@"));
    cr_assert(!mil_is_identifier(""));
    cr_assert(!mil_is_identifier("9a"));
    cr_assert(!mil_is_identifier("@a"));
    cr_assert(!mil_is_identifier("a-b"));
    cr_assert(!mil_is_identifier("a\xc3\xa9"));
}
