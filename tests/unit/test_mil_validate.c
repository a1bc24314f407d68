/*
 * Validation and specialization: one program that is sound, and one change
 * per rule.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "mil/build.h"
#include "mil/text.h"

/* A function of an input x, a state kv and a body. */
#define FUNC(name, body, result)                                           \
    "func " name "<ios18>(tensor<fp16, [1, 8]> x, state<tensor<fp16, [1, " \
    "8]>> kv) { tensor<fp16, [1, 8]> r = read_state(input = kv); " body    \
    " } -> (" result ");"
#define PROGRAM(functions) "program(1.3) { " functions " }"
#define MAIN(body, result) PROGRAM(FUNC("main", body, result))
#define T "tensor<fp16, [1, 8]> "
#define Y T "y = add(x = x, y = r);"

static struct mil_program *parsed(const char *text)
{
    struct err e = ERR_INIT;
    struct mil_program *p = text_parse(text, strlen(text), NULL, &e);

    cr_assert_not_null(p, "%s\n%s", e.text, text);
    return p;
}

static void valid(const char *text)
{
    struct err e = ERR_INIT;
    struct mil_program *p = parsed(text);

    cr_expect_eq(mil_validate(p, &e), 0, "%s\n%s", e.text, text);
    mil_program_free(p);
}

static void invalid(const char *text, const char *message)
{
    struct err e = ERR_INIT;
    struct mil_program *p = parsed(text);

    cr_expect_eq(mil_validate(p, &e), -1, "accepted: %s", text);
    cr_expect_not_null(strstr(e.text, message), "got: %s\nwanted: %s", e.text,
                       message);
    mil_program_free(p);
}

Test(mil_validate, sound_programs)
{
    valid(MAIN(Y, "y"));
    valid(MAIN(Y T "z = relu(x = y);", "y, z"));
    valid(PROGRAM(FUNC("infer", Y, "y") FUNC("prefill", Y, "y")));
    valid(MAIN(Y "write_state(input = kv, data = r); " T
                 "r2 = read_state(input = kv); " T "z = relu(x = r2);",
               "z"));
    /* A declared static dim against an inferred unknown one, and back. */
    valid("program(1.3) { func main<ios18>(tensor<fp16, [1, 8]> x, "
          "tensor<int32, [2]> i) { tensor<fp16, [1, 3]> y = "
          "slice_by_index(x = x, begin = i, end = i); } -> (y); }");
    valid(MAIN(Y "tensor<fp16, [1, ?]> z = relu(x = y);", "z"));
}

Test(mil_validate, names)
{
    invalid("program(1.3) { func state<ios18>(fp16 x) {} -> (); }",
            "function 'state' is a reserved word");
    invalid(MAIN(T "tensor = relu(x = x);", "tensor"),
            "'tensor' is a reserved word");
    invalid("program(1.3) { func main<ios18>(tensor<fp16, [1]> list) {} -> (); "
            "}",
            "function 'main': input 'list' is a reserved word");
}

Test(mil_validate, a_name_twice)
{
    struct err e = ERR_INIT;
    struct mil_program *p = parsed(MAIN(Y T "z = relu(x = y);", "z"));
    struct mil_function *f = p->functions[0];

    f->values[f->outputs[0]].name = "x";
    cr_assert_eq(mil_validate(p, &e), -1);
    cr_assert_not_null(strstr(e.text, "the name 'x' is defined twice"), "%s",
                       e.text);
    err_reset(&e);
    f->values[f->outputs[0]].name = "9";
    cr_assert_eq(mil_validate(p, &e), -1);
    cr_assert_not_null(strstr(e.text, "'9' is no identifier"), "%s", e.text);
    mil_program_free(p);
}

Test(mil_validate, opsets_and_versions)
{
    struct err e = ERR_INIT;
    struct mil_program *p;

    invalid("program(1.3) { func main<ios17>(tensor<fp16, [1]> x) { "
            "tensor<fp16, [1]> y = relu(x = x); } -> (y); }",
            "function 'main' is written for opset 'CoreML7', allowed: "
            "'CoreML8'");
    invalid(PROGRAM(""), "the program has no function");
    p = parsed(MAIN(Y, "y"));
    p->spec_version = 8;
    cr_assert_eq(mil_validate(p, &e), -1);
    cr_assert_eq(e.code, ERR_UNSUPPORTED);
    mil_program_free(p);
    invalid(MAIN(Y T "z = lstm(x = y);", "z"),
            "lstm '': not an operation of the CoreML8 opset");
}

Test(mil_validate, inputs_and_states)
{
    invalid("program(1.3) { func main<ios18>(fp16 x) { fp16 y = relu(x = x); "
            "} -> (y); }",
            "input 'x' has rank 0, allowed: 1 to 5");
    invalid("program(1.3) { func main<ios18>(tensor<fp16, [1, 1, 1, 1, 1, 1]> "
            "x) {} -> (x); }",
            "input 'x' has rank 6, allowed: 1 to 5");
    invalid("program(1.3) { func main<ios18>(tensor<bool, [1]> x) {} -> (x); "
            "}",
            "input 'x' is bool, allowed: fp16, fp32, int32");
    invalid("program(1.3) { func main<ios18>(state<tensor<fp32, [1]>> s) {} -> "
            "(); }",
            "state 's' is tensor<fp32, [1]>: states are fp16 of a fixed shape");
    invalid("program(1.3) { func main<ios18>(state<tensor<fp16, [?]>> s) {} -> "
            "(); }",
            "states are fp16 of a fixed shape");
    invalid("program(1.3) { func main<ios18>(state<tensor<fp16, [8, 3]>> s) "
            "{} -> (); }",
            "a last dim of 3 fails on devices");
    invalid("program(1.3) { func main<ios18>(tensor<fp16, [4]> x, "
            "state<tensor<fp16, [4]>> s) { tensor<fp16, [4]> y = relu(x = x); "
            "} -> (y); }",
            "state 's' is declared but never read in function 'main'");
    invalid(MAIN(Y "write_state(input = kv, data = y);", "y"),
            "output 'y' is the very value that is written to a state");
    invalid(MAIN(Y T "z = relu(x = kv);", "z"), "parameter 'x' is the state");
}

Test(mil_validate, functions_agree_on_states)
{
    invalid(PROGRAM(FUNC(
                "a", Y,
                "y") "func b<ios18>(tensor<fp16, [4]> x, "
                     "state<tensor<fp16, [1, 4]>> kv) { tensor<fp16, [1, "
                     "4]> r = read_state(input = kv); tensor<fp16, [1, 4]> "
                     "y = relu(x = r); } -> (y);"),
            "function 'b': state 'kv' is tensor<fp16, [1, 4]> here and "
            "tensor<fp16, [1, 8]> in function 'a'");
    invalid(PROGRAM(
                FUNC("a", Y, "y") "func b<ios18>(tensor<fp16, [1, 8]> kv) { " T
                                  "y = relu(x = kv); } -> (y);"),
            "'kv' is an input here and a state in function 'a'");
}

Test(mil_validate, outputs)
{
    invalid(MAIN(Y, ""), "no output is declared");
    invalid(MAIN(Y, "y, y"), "output 'y' is an output already");
    invalid(MAIN(Y, "x"), "output 'x' is an input of the function");
    invalid(MAIN(Y, "kv"), "output 'kv' is a state");
    invalid(MAIN(Y, "r"), "output 'r' is the read of a state");
    invalid(MAIN("fp16 k = const()[val = fp16(1)];", "k"),
            "output 'k' is a constant");
    invalid(MAIN("tensor<fp16, [2]> k = constexpr_lut_to_dense(indices = "
                 "tensor<uint1, [2]>([0, 1]), lut = tensor<fp16, [1, 2, "
                 "1]>([[[1], [2]]]));",
                 "k"),
            "output 'k' is a constexpr result");
    invalid(MAIN("tensor<bool, [1, 8]> b = equal(x = x, y = r);", "b"),
            "output 'b' is bool, allowed: fp16, fp32, int32");
}

Test(mil_validate, declared_types)
{
    invalid(MAIN("tensor<fp16, [1, 9]> y = add(x = x, y = r);", "y"),
            "add '': output 'y' is declared tensor<fp16, [1, 9]>, inferred "
            "tensor<fp16, [1, 8]>");
    invalid(MAIN("tensor<fp32, [1, 8]> y = add(x = x, y = r);", "y"),
            "is declared tensor<fp32, [1, 8]>");
    invalid(MAIN("tensor<fp16, [1, ?]> k = constexpr_lut_to_dense(indices = "
                 "tensor<uint1, [1, 2]>([[0, 1]]), lut = tensor<fp16, [1, 1, "
                 "2, 1]>([[[[1], [2]]]]));" Y,
                 "y"),
            "output 'k' is declared tensor<fp16, [1, ?]>, inferred "
            "tensor<fp16, [1, 2]>");
    invalid(MAIN("tensor<int32, [1]> k = const()[val = int32(1)];" Y, "y"),
            "output 'k' is declared tensor<int32, [1]>, inferred int32");
}

#define LUT4(indices, lut)                                                 \
    "tensor<fp16, [2, 1, 1, 1]> w = constexpr_lut_to_dense(indices = "     \
    "tensor<uint1, [2, 1, 1, 1]>(" indices "), lut = tensor<fp16, [1, 1, " \
    "1, 1, 2, 1]>(" lut "));"

Test(mil_validate, ranks)
{
    valid(MAIN(LUT4("[[[[0]]], [[[1]]]]", "[[[[[[1], [2]]]]]]") Y, "y"));
    /* By name from a const that feeds the constexpr op alone. */
    valid(MAIN("tensor<fp16, [1, 1, 1, 1, 2, 1]> l = const()[val = "
               "tensor<fp16, [1, 1, 1, 1, 2, 1]>([[[[[[1], [2]]]]]])]; "
               "tensor<fp16, [2, 1, 1, 1]> w = constexpr_lut_to_dense(indices "
               "= tensor<uint1, [2, 1, 1, 1]>([[[[0]]], [[[1]]]]), lut = l);" Y,
               "y"));
    invalid(MAIN("tensor<fp16, [1, 1, 1, 1, 2, 1]> l = const()[val = "
                 "tensor<fp16, [1, 1, 1, 1, 2, 1]>([[[[[[1], [2]]]]]])]; "
                 "tensor<fp16, [1, 1, 1, 1, 2, 1]> z = relu(x = l);" Y,
                 "y"),
            "'l' has rank 6, allowed: up to 5");
    invalid(MAIN(Y "tensor<fp16, [1, 1, 1, 1, 1, 8]> z = expand_dims(x = y, "
                   "axes = tensor<int32, [4]>([0, 1, 2, 3]));",
                 "y"),
            "'z' has rank 6, allowed: up to 5");
    invalid(MAIN("fp16 z = reduce_sum(x = tensor<fp16, [1, 1, 1, 1, 1, "
                 "1]>([[[[[[1]]]]]]));" Y,
                 "y"),
            "parameter 'x' has rank 6, allowed: up to 5");
}

Test(mil_validate, constants_that_lie_elsewhere)
{
    invalid(MAIN(T "z = add(x = x, y = tensor<fp16, [8]>(DATA(bytes = "
                   "uint64(16))));",
                 "z"),
            "only constexpr ops take such values inline");
    invalid(MAIN("tensor<bool, [64]> k = const()[val = tensor<bool, "
                 "[64]>(DATA(bytes = uint64(64)))];" Y,
                 "y"),
            "constant 'k' (tensor<bool, [64]>) cannot lie in a weight file");
    valid(MAIN("tensor<fp16, [8]> k = const()[val = tensor<fp16, "
               "[8]>(DATA(bytes = uint64(16)))];" T "z = add(x = r, y = k);",
               "z"));
}

Test(mil_validate, order_and_foreign_references)
{
    struct err e = ERR_INIT;
    struct mil_program *p = parsed(MAIN(Y T "z = relu(x = y);", "z"));
    struct mil_function *f = p->functions[0];
    struct mil_op *relu = &f->ops[f->n_ops - 1];
    mil_ref r = f->outputs[0];

    cr_assert_eq(mil_set_arg(f, relu, 0, &r, 1, &e), 0);
    cr_assert_eq(mil_validate(p, &e), -1);
    cr_assert_not_null(strstr(e.text, "uses 'z' before it is defined"), "%s",
                       e.text);
    err_reset(&e);
    r = 1000;
    cr_assert_eq(mil_set_arg(f, relu, 0, &r, 1, &e), -1);
    mil_program_free(p);
}

/* A gather whose ids have a list of shapes. */
static const char *ids(const char *first, const char *second)
{
    static char text[1000];

    snprintf(text, sizeof text,
             "program(1.3) { func main<ios18>(tensor<int32, [1, ?]> ids) "
             "[FlexibleShapeInformation = t(((\"DefaultShapes\", {{\"ids\", "
             "%s}}), (\"EnumeratedShapes\", {{\"a\", {{\"ids\", %s}}}})))] "
             "{ tensor<fp16, [1, ?, 2]> y = gather(x = tensor<fp16, [3, "
             "2]>([[1, 2], [3, 4], [5, 6]]), indices = ids); } -> (y); }",
             first, second);
    return text;
}

Test(mil_validate, listed_shapes)
{
    valid(ids("[1, 1]", "[1, 4]"));
    invalid(ids("[1, 1]", "[2, 4]"),
            "function 'main': input 'ids' is tensor<int32, [1, ?]>: shape 1, "
            "tensor<int32, [2, 4]>, does not fit it");
}

/* The same ids within a range. */
static const char *within(const char *first, const char *range)
{
    static char text[1000];

    snprintf(text, sizeof text,
             "program(1.3) { func main<ios18>(tensor<int32, [1, ?]> ids) "
             "[FlexibleShapeInformation = t(((\"DefaultShapes\", {{\"ids\", "
             "%s}}), (\"RangeDims\", {{\"ids\", %s}})))] "
             "{ tensor<fp16, [1, ?, 2]> y = gather(x = tensor<fp16, [3, "
             "2]>([[1, 2], [3, 4], [5, 6]]), indices = ids); } -> (y); }",
             first, range);
    return text;
}

Test(mil_validate, ranges)
{
    valid(within("[1, 1]", "[[1, 1], [1, 4]]"));
    valid(within("[1, 7]", "[[1, 1], [0, -1]]"));
    invalid(within("[1, 5]", "[[1, 1], [1, 4]]"),
            "the default, tensor<int32, [1, 5]>, does not fit it");
    invalid(within("[1, 1]", "[[1, 2], [1, 4]]"),
            "input 'ids' accepts 1 to 2 in dimension 0, which does not fit it");
    invalid(within("[1, 4]", "[[1, 1], [4, 3]]"),
            "input 'ids' accepts 4 to 3 in dimension 1");
}

Test(mil_specialize, types_are_inferred_anew)
{
    struct err e = ERR_INIT;
    struct mil_program *p = parsed(ids("[1, 1]", "[1, 4]"));
    static const char *const name = "ids";
    const struct mil_type t = { MIL_I32, 2, { 1, 64 } };
    const struct mil_type wrong = { MIL_I32, 2, { 2, 64 } };
    struct mil_program *q = mil_specialize(p->functions[0], &name, &t, 1, &e);
    const struct mil_function *f;

    cr_assert_not_null(q, "%s", e.text);
    f = q->functions[0];
    cr_assert_eq(f->program, q);
    cr_assert_eq(mil_value(f, f->outputs[0])->type.dims[1], 64);
    cr_assert_eq(mil_value(p->functions[0], f->outputs[0])->type.dims[1], -1);
    cr_assert_eq(mil_validate(q, &e), 0, "%s", e.text);
    mil_program_free(q);
    cr_assert_null(mil_specialize(p->functions[0], &name, &wrong, 1, &e));
    cr_assert_not_null(strstr(e.text, "input 'ids' is tensor<int32, [1, ?]>, "
                                      "given: tensor<int32, [2, 64]>"),
                       "%s", e.text);
    mil_program_free(p);
}

Test(mil_specialize, declared_dims_fill_what_is_not_inferred)
{
    struct err e = ERR_INIT;
    struct mil_program *p = parsed(
        "program(1.3) { func main<ios18>(tensor<fp16, [1, 8]> x, "
        "tensor<int32, [2]> i) { tensor<fp16, [1, 3]> y = slice_by_index(x = "
        "x, begin = i, end = i); tensor<fp16, [1, 3]> z = relu(x = y); } -> "
        "(z); }");
    struct mil_program *q = mil_specialize(p->functions[0], NULL, NULL, 0, &e);

    cr_assert_not_null(q, "%s", e.text);
    cr_assert_eq(
        mil_value(q->functions[0], q->functions[0]->outputs[0])->type.dims[1],
        3);
    mil_program_free(q);
    mil_program_free(p);
}

/* Every allocation of building, printing, parsing and validating can fail. */
static int whole(struct err *e)
{
    struct mil_program *p = mil_program_new(e), *q = NULL;
    const int64_t dims[] = { 1, 8 };
    struct buf out = BUF_INIT;
    struct mb b;
    int rc = -1;

    if (!p)
        return -1;
    mb_begin(&b, p, "main");
    mb_output(&b, "y",
              MB(&b, add, .x = mb_input(&b, "x", MIL_F16, 2, dims),
                 .y =
                     MB(&b, read_state, .input = mb_state(&b, "kv", 2, dims))));
    if (mb_end(&b, e) == 0 && mil_validate(p, e) == 0 &&
        text_print(p, NULL, &out, e) == 0)
        q = text_parse(out.data, out.len, NULL, e);
    if (q && mil_validate(q, e) == 0)
        rc = 0;
    mil_program_free(p);
    mil_program_free(q);
    buf_release(&out);
    return rc;
}

Test(mil_validate, every_failed_allocation_is_an_error)
{
    struct err e = ERR_INIT;
    long n;

    for (n = 0; n < 1000; n++) {
        int rc;

        err_reset(&e);
        mem_fail_at(n, false);
        rc = whole(&e);
        mem_fail_at(-1, false);
        if (rc == 0)
            break;
        cr_assert_eq(e.code, ERR_NOMEM, "allocation %ld: %s", n, e.text);
    }
    cr_assert(n > 10 && n < 1000, "%ld allocations", n);
}
