/*
 * MIL text: print -> parse -> print is stable, both dialects are read,
 * hostile text ends in an error with a place.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "mil/build.h"
#include "mil/text.h"

#define BODY(params, body, result)                               \
    "program(1.3)\n{\n    func main<ios18>(" params ") {\n" body \
    "        } -> (" result ");\n}"
#define LINE(text) "            " text ";\n"

static struct mil_program *parsed(const char *text, struct err *e)
{
    return text_parse(text, strlen(text), NULL, e);
}

/* Parses, prints, parses, prints; the texts must be equal. */
static void stable(const char *text, const char *expected)
{
    struct buf a = BUF_INIT, b = BUF_INIT;
    struct err e = ERR_INIT;
    struct mil_program *p = parsed(text, &e), *q;

    cr_assert_not_null(p, "%s\n%s", e.text, text);
    cr_assert_eq(text_print(p, NULL, &a, &e), 0, "%s", e.text);
    if (expected)
        cr_assert_str_eq(buf_text(&a), expected);
    q = parsed(buf_text(&a), &e);
    cr_assert_not_null(q, "%s\n%s", e.text, buf_text(&a));
    cr_assert_eq(text_print(q, NULL, &b, &e), 0, "%s", e.text);
    cr_assert_str_eq(buf_text(&a), buf_text(&b));
    mil_program_free(p);
    mil_program_free(q);
    buf_release(&a);
    buf_release(&b);
}

static void refused(const char *text, const char *message)
{
    struct err e = ERR_INIT;
    struct mil_program *p = parsed(text, &e);

    cr_assert_null(p, "accepted: %s", text);
    cr_assert_not_null(strstr(e.text, message), "%s", e.text);
}

static const char *const two_functions =
    "program(1.3)\n"
    "[buildInfo = dict<string, string>({{\"coremlc-component-MIL\", "
    "\"3520.4.1\"}, {\"coremlc-version\", \"3520.5.1\"}})]\n"
    "{\n"
    "    func infer<ios18>(tensor<fp16, [1, 64, 1, 1]> h, state<tensor<fp16, "
    "[1, 64, 1, 32]>> kv, tensor<int32, [1]> pos) {\n" LINE(
        "string pt = const()[name = string(\"pt\"), val = string(\"valid\")]")
        LINE("tensor<int32, [2]> st = const()[name = string(\"st\"), val = "
             "tensor<int32, [2]>([1, 1])]") LINE("int32 gr = const()[name = "
                                                 "string(\"gr\"), val = "
                                                 "int32(1)]")
            LINE(
                "tensor<fp16, [64, 64, 1, 1]> w = "
                "constexpr_lut_to_dense(indices = "
                "tensor<uint4, [64, 64, 1, 1]>(BLOBFILE(path = "
                "string(\"@model_path/weights/weight.bin\"), offset = "
                "uint64(64))), "
                "lut = tensor<fp16, [8, 1, 1, 1, 16, 1]>(BLOBFILE(path = "
                "string(\"@model_path/weights/weight.bin\"), offset = "
                "uint64(2176))))[name = string(\"w\")]") LINE("tensor<fp16, "
                                                              "[1, 64, 1, 1]> "
                                                              "y = conv(groups "
                                                              "= gr, pad_type "
                                                              "= pt, "
                                                              "strides = st, "
                                                              "weight = w, x = "
                                                              "h)[name = "
                                                              "string(\"y\")]")
                LINE("tensor<fp16, [1, 64, 1, 32]> kv_old = read_state(input = "
                     "kv)[name = string(\"kv_old\")]")
                    LINE("tensor<fp16, [1, 64, 1, 32]> kv_new = add(x = "
                         "kv_old, y = y)[name "
                         "= string(\"kv_new\")]")
                        LINE(
                            "write_state(data = kv_new, input = kv)[name = "
                            "string(\"kv_upd_write_state\")]") "        } -> "
                                                               "(y);\n"
                                                               "    func "
                                                               "prefill<ios18>("
                                                               "tensor<fp16, "
                                                               "[2, 6]> h) "
                                                               "{\n" LINE(
                                                                   "tensor<"
                                                                   "fp16, [2, "
                                                                   "2]> a, "
                                                                   "tensor<"
                                                                   "fp16, [2, "
                                                                   "2]> b, "
                                                                   "tensor<"
                                                                   "fp16, [2, "
                                                                   "2]> c = "
                                                                   "split(axis "
                                                                   "= "
                                                                   "int32(1), "
                                                                   "num_splits "
                                                                   "= "
                                                                   "int32(3), "
                                                                   "x = h)")
                                                                   LINE(
                                                                       "tensor<"
                                                                       "fp16, "
                                                                       "[2, "
                                                                       "4]> d "
                                                                       "= "
                                                                       "concat("
                                                                       "axis = "
                                                                       "int32("
                                                                       "1), "
                                                                       "values "
                                                                       "= (a, "
                                                                       "b))["
                                                                       "name = "
                                                                       "string("
                                                                       "\"d\")"
                                                                       "]") "  "
                                                                            "  "
                                                                            "  "
                                                                            "  "
                                                                            "} "
                                                                            "->"
                                                                            " ("
                                                                            "c,"
                                                                            " d"
                                                                            ");"
                                                                            "\n"
                                                                            "}";

Test(mil_text, the_layout_is_kept_byte_for_byte)
{
    stable(two_functions, two_functions);
}

Test(mil_text, sorted_output_orders_functions_and_parameters)
{
    struct text_options o = { .sorted = true };
    struct buf out = BUF_INIT;
    struct err e = ERR_INIT;
    struct mil_program *p =
        parsed("program(1.3) { func b<ios18>(fp16 z, fp16 a) {} -> ();"
               "func a<ios18>(fp16 x) {} -> (); }",
               &e);

    cr_assert_not_null(p, "%s", e.text);
    cr_assert_eq(text_print(p, &o, &out, &e), 0);
    cr_assert_str_eq(buf_text(&out),
                     "program(1.3)\n{\n    func a<ios18>(fp16 x) {\n        } "
                     "-> ();\n    func b<ios18>(fp16 a, fp16 z) {\n        } "
                     "-> ();\n}");
    o.function = "a";
    buf_clear(&out);
    cr_assert_eq(text_print(p, &o, &out, &e), 0);
    cr_assert_null(strstr(buf_text(&out), "func b"));
    o.function = "c";
    cr_assert_eq(text_print(p, &o, &out, &e), -1);
    mil_program_free(p);
    buf_release(&out);
}

#define CONST(type, value) LINE(type " k = const()[val = " type "(" value ")]")

/* Written value, printed value. */
static void literal(const char *type, const char *in, const char *out)
{
    char text[2000], expected[2000];
    static const char form[] =
        BODY("", LINE("%s k = const()[val = %s(%s)]"), "");

    snprintf(text, sizeof text, form, type, type, in);
    snprintf(expected, sizeof expected, form, type, type, out);
    stable(text, expected);
}

Test(mil_text, literals)
{
    literal("fp16", "0x1p-24", "0x1p-24");
    literal("fp16", "-0x0p+0", "-0x0p+0");
    literal("fp16", "0x0p+0", "0x0p+0");
    literal("fp16", "nan", "nan");
    literal("fp16", "-nan", "nan");
    literal("fp16", "inf", "inf");
    literal("fp16", "-inf", "-inf");
    literal("fp16", "0x1.ff8p-15", "0x1.ff8p-15");
    literal("fp16", "0x1.8p-23", "0x1.8p-23");
    literal("fp16", "2.0", "0x1p+1");
    literal("fp16", "0.1", "0x1.998p-4");
    literal("fp16", "1e6", "inf");
    literal("fp32", "0x1.921fb6p+1", "0x1.921fb6p+1");
    literal("fp32", "0x1p-149", "0x1p-149");
    literal("fp32", "0x1.fffffep+127", "0x1.fffffep+127");
    literal("fp64", "0x1.999999999999ap-4", "0x1.999999999999ap-4");
    literal("bf16", "0x1.8p+3", "0x1.8p+3");
    literal("int8", "-128", "-128");
    literal("uint64", "18446744073709551615", "18446744073709551615");
    literal("int64", "-9223372036854775808", "-9223372036854775808");
    literal("bool", "true", "true");
    literal("tensor<uint3, [7]>", "[1,2,3,4,5,6,7]", "[1, 2, 3, 4, 5, 6, 7]");
    literal("tensor<uint6, [5]>", "[63, 0, 33, 1, 62]", "[63, 0, 33, 1, 62]");
    literal("tensor<uint1, [9]>", "[1, 0, 1, 1, 0, 0, 0, 1, 1]",
            "[1, 0, 1, 1, 0, 0, 0, 1, 1]");
    literal("tensor<int4, [3]>", "[-1, 7, -8]", "[-1, 7, -8]");
    literal("tensor<int32, [2, 2]>", "[[1, 2], [3, 4]]", "[[1, 2], [3, 4]]");
    literal("tensor<int32, [0]>", "[]", "[]");
    literal("tensor<int32, [2, 0]>", "[[], []]", "[]");
    literal("tensor<int32, [1000000000000, 0]>", "[]", "[]");
    literal("tensor<string, [2]>", "[\"a\", \"\"]", "[\"a\", \"\"]");
    literal("string", "\"say \\\"\\\\\\\" \\n\\t\\x01 é\"",
            "\"say \\\"\\\\\\\" \\n\\t\\x01 é\"");
    literal("tensor<fp16, [4, 4]>", "DATA(bytes = uint64(32))",
            "DATA(bytes = uint64(32))");
}

Test(mil_text, both_dialects_give_one_program)
{
    stable("program(1.0)\n[buildInfo = dict<tensor<string, []>, "
           "tensor<string, []>>({{\"a\", \"b\"}})]\n{\n"
           "    func main<ios16>(tensor<fp16, [1, 10]> x) {\n"
           "            tensor<fp16, []> k = const()[name = tensor<string, "
           "[]>(\"k\"), val = tensor<fp16, []>(0x1p+0)];\n"
           "            tensor<fp16, [1, 10]> y = add(x = x, y = k)[name = "
           "tensor<string, []>(\"op_1\")];\n"
           "        } -> (y);\n}",
           "program(1.0)\n[buildInfo = dict<tensor<string, []>, "
           "tensor<string, []>>({{\"a\", \"b\"}})]\n{\n"
           "    func main<ios16>(tensor<fp16, [1, 10]> x) {\n"
           "            tensor<fp16, []> k = const()[name = tensor<string, "
           "[]>(\"k\"), val = tensor<fp16, []>(0x1p+0)];\n"
           "            tensor<fp16, [1, 10]> y = add(x = x, y = k)[name = "
           "tensor<string, []>(\"op_1\")];\n"
           "        } -> (y);\n}");
    stable("program(1.3) { func main<ios18>(tensor<fp16, [2]> x) { "
           "tensor<fp16, []> k = const()[val = tensor<fp16, []>(1.5)]; "
           "tensor<fp16, [2]> y = add(x = x, y = k); } -> (y); }",
           BODY("tensor<fp16, [2]> x",
                LINE("fp16 k = const()[val = fp16(0x1.8p+0)]")
                    LINE("tensor<fp16, [2]> y = add(x = x, y = k)"),
                "y"));
}

Test(mil_text, enumerated_shapes_are_kept)
{
    static const char text[] =
        "program(1.3)\n{\n    func main<ios18>(tensor<int32, [1, ?]> ids) "
        "[FlexibleShapeInformation = tuple<tuple<string, dict<string, "
        "tensor<int32, [?]>>>, tuple<string, dict<string, dict<string, "
        "tensor<int32, [?]>>>>>(((\"DefaultShapes\", {{\"ids\", [1, 1]}}), "
        "(\"EnumeratedShapes\", {{\"00000001\", {{\"ids\", [1, 1]}}}, "
        "{\"00000002\", {{\"ids\", [1, 64]}}}})))] {\n" LINE(
            "tensor<int32, [1, ?]> y = identity(x = ids)") "        } -> "
                                                           "(y);\n}";
    struct err e = ERR_INIT;
    struct mil_program *p = parsed(text, &e);
    const struct mil_shapes *s;

    stable(text, text);
    cr_assert_not_null(p, "%s", e.text);
    s = mil_value(p->functions[0], p->functions[0]->inputs[0])->shapes;
    cr_assert_not_null(s);
    cr_assert_eq(s->n, 2);
    cr_assert_eq(s->first.dims[1], 1);
    cr_assert_eq(s->list[1].dims[1], 64);
    cr_assert_eq(mil_validate(p, &e), 0, "%s", e.text);
    mil_program_free(p);
}

Test(mil_text, foreign_operations_are_read_and_printed)
{
    static const char text[] =
        "program(1.3)\n{\n    func main<ios17>(tensor<fp32, [4]> x) {\n" LINE(
            "tensor<fp32, [4]> k = constexpr_affine_dequantize()[axis = "
            "int32(0), name = string(\"k\"), quantized_data = tensor<int8, "
            "[4]>([1, 2, 3, -4]), scale = fp32(0x1p-1), zero_point = "
            "int8(-1)]") LINE("tensor<fp32, [4]> a, tensor<fp32, [1]> b = "
                              "novel(list = (k, x), "
                              "x = x)") "        } -> (a);\n}";
    struct err e = ERR_INIT;
    struct mil_program *p = parsed(text, &e);

    stable(text, text);
    cr_assert_str_eq(mil_op_type(&p->functions[0]->ops[1]), "novel");
    cr_assert_eq(mil_validate(p, &e), -1);
    cr_assert_not_null(strstr(e.text, "opset 'CoreML7'"), "%s", e.text);
    mil_program_free(p);
}

/* Everything that a builder can make. */
Test(mil_text, built_programs_survive)
{
    static const unsigned char bytes[4096];
    static const struct mil_data d = { .type = { MIL_F16, 4, { 8, 8, 1, 1 } },
                                       .bytes = 128,
                                       .read = mil_data_read_memory,
                                       .cookie = (void *)bytes };
    struct err e = ERR_INIT;
    struct mil_program *p = mil_program_new(&e);
    struct buf out = BUF_INIT;
    struct mb b;

    for (int i = 0; i < 2; i++) {
        const int64_t dims[] = { 1, 8, 1, i ? 4 : 1 };
        const int64_t kv[] = { 1, 8, 1, 4 };
        mil_ref x, s, y;

        mb_begin(&b, p, i ? "prefill" : "infer");
        x = mb_input(&b, "x", MIL_F16, 4, dims);
        s = mb_state(&b, "kv", 4, kv);
        y = mb_conv1x1(&b, x, mb_data(&b, "w", &d), 0);
        y = MB(&b, add, .x = y, .y = mb_f16(&b, -0.0));
        y = MB(&b, add, .x = y, .y = MB(&b, read_state, .input = s));
        MB(&b, write_state, .input = s, .data = y);
        mb_output(&b, "y", MB(&b, read_state, .input = s));
        cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    }
    cr_assert_eq(text_print(p, NULL, &out, &e), 0, "%s", e.text);
    cr_assert_not_null(strstr(buf_text(&out), "DATA(bytes = uint64(128))"));
    stable(buf_text(&out), buf_text(&out));
    mil_program_free(p);
    buf_release(&out);
}

static bool find_blob(void *cookie, const struct mil_data *d, const char **file,
                      uint64_t *offset)
{
    (void)cookie;
    *file = "@model_path/weights/weight.bin";
    *offset = d->bytes + 64;
    return true;
}

Test(mil_text, places_of_large_constants_come_from_the_caller)
{
    struct text_options o = { .blob = find_blob };
    struct err e = ERR_INIT;
    struct mil_program *p =
        parsed(BODY("", CONST("tensor<fp16, [4]>", "DATA(bytes = uint64(8))"),
                    ""),
               &e);
    struct buf out = BUF_INIT;
    char byte;

    cr_assert_not_null(p, "%s", e.text);
    cr_assert_eq(text_print(p, &o, &out, &e), 0);
    cr_assert_not_null(strstr(buf_text(&out), "offset = uint64(72)"));
    cr_assert_eq(p->functions[0]->values[1].konst->data->read(
                     p->functions[0]->values[1].konst->data->cookie, 0, &byte,
                     1, &e),
                 -1);
    mil_program_free(p);
    buf_release(&out);
}

Test(mil_text, errors_have_a_place)
{
    refused("", "line 1, column 1: expected program");
    refused("program(2.0)", "line 1, column 9: expected a version 1.x");
    refused("program(1.3)\n{", "line 2, column 2: expected func");
    refused(BODY("", LINE("fp16 k = const()[val = fp16(abc)]"), ""),
            "line 4, column 41: 'abc' is no number");
    refused(BODY("", CONST("int8", "128"), ""),
            "128 is out of range, allowed: -128 to 127");
    refused(BODY("", CONST("uint3", "8"), ""), "allowed: 0 to 7");
    refused(BODY("", CONST("tensor<int32, [3]>", "[1, 2]"), ""),
            "expected ','");
    refused(BODY("", CONST("tensor<int32, [1]>", "[1, 2]"), ""),
            "expected ']'");
    refused(BODY("", CONST("tensor<int32, [99999999999]>", "[1, 2]"), ""),
            "fewer elements than the type has");
    refused(BODY("", CONST("tensor<int32, [4611686018427387904, 4]>", "[]"),
                 ""),
            "fewer elements than the type has");
    refused(BODY("", CONST("tensor<int32, [?]>", "[1]"), ""),
            "a value of unknown shape");
    refused(BODY("", CONST("tensor<int4x, [1]>", "[1]"), ""),
            "'int4x' is no type");
    refused(BODY("", CONST("tensor<fp16, [1, 1, 1, 1, 1, 1, 1, 1, 1]>", "[]"),
                 ""),
            "a rank above 8");
    refused(BODY("fp16 x", LINE("fp16 y = add(x = x, y = z)"), ""),
            "'z' is not defined");
    refused(BODY("fp16 x", LINE("fp16 y = add(x = x, x = x)"), ""),
            "parameter 'x' is given twice");
    refused(BODY("fp16 x", LINE("fp16 y = add(x = x, w = x)"), ""),
            "add has no parameter 'w'");
    refused(BODY("fp16 x", LINE("fp16 x = relu(x = x)"), ""),
            "'x' is defined twice");
    refused(BODY("fp16 x, fp16 x", "", ""), "'x' is defined twice");
    refused(BODY("", LINE("fp16 k = const()"), ""), "a const has one output");
    refused(BODY("", LINE("fp16 k = const()[val = string(\"a"), ""),
            "a string without an end");
    refused(BODY("", LINE("string k = const()[val = string(\"\\x00\")]"), ""),
            "no such escape");
    refused(BODY("", LINE("string k = const()[val = string(\"\\q\")]"), ""),
            "no such escape");
    refused(BODY("", CONST("tensor<fp16, [4]>", "DATA(bytes = uint64(9))"), ""),
            "9 bytes, the type has 8");
    refused(BODY("",
                 CONST("tensor<fp16, [4]>",
                       "BLOBFILE(path = \"a\", offset = uint64(64))"),
                 ""),
            "expected a type");
    refused("program(1.3) { func a<ios18>() {} -> (); func a<ios18>() {} -> "
            "(); }",
            "function 'a' is defined twice");
    refused(BODY("", "", "") " x", "text after the program's end");
    refused("program(1.3) { func a<ios18>() [FlexibleShapeInformation = "
            "t<t<t<t<t<t<t<t<t<t<t<t<t<t<t<t<t<t<t<t<t<t",
            "types are nested deeper than 16");
}

/* Every prefix and every single wrong byte ends well. */
Test(mil_text, mutations_end_in_an_error_or_a_program)
{
    size_t n = strlen(two_functions);
    char *copy = malloc(n + 1);
    static const char bytes[] = {
        0, '(', '<', '"', '9', '-', '\\', (char)0xff
    };

    for (size_t i = 0; i < n; i++) {
        struct err e = ERR_INIT;
        struct mil_program *p = text_parse(two_functions, i, NULL, &e);

        cr_assert_null(p);
        cr_assert_neq(e.code, ERR_OK);
        for (size_t k = 0; k < sizeof bytes; k++) {
            err_reset(&e);
            memcpy(copy, two_functions, n + 1);
            copy[i] = bytes[k];
            p = text_parse(copy, n, NULL, &e);
            cr_assert((p != NULL) == (e.code == ERR_OK));
            if (p) {
                (void)!mil_validate(p, &e);
                mil_program_free(p);
            }
        }
    }
    free(copy);
}

static char *golden(const char *name, size_t *len)
{
    const char *dir = getenv("ANEMLL_FIXTURES");
    struct buf b = BUF_INIT, text = BUF_INIT;
    struct err e = ERR_INIT;

    buf_printf(&b, "%s/../goldens/mlmodelc/%s/apple.mlmodelc/model.mil",
               dir && dir[0] ? dir : ANEMLL_SOURCE_DIR "/../shared/fixtures",
               name);
    if (!io_exists(buf_text(&b)))
        cr_skip_test("%s is absent", buf_text(&b));
    cr_assert_eq(io_read_file(buf_text(&b), 1 << 20, &text, &e), 0, "%s",
                 e.text);
    *len = text.len;
    buf_release(&b);
    return buf_detach(&text, &e);
}

/* Apple's own text comes back unchanged, but for a newline at the end that
 * one file has. */
Test(mil_text, goldens_of_apples_compiler)
{
    static const char *const names[] = {
        "add_model",
        "quantized-constexpr",
        "unified_int8",
        "silero-vad-unified-v6.0.0",
        "unified_palette_4bit",
        "unified_palette_6bit",
        "unified_256ms_palette_8bit",
        "flexible-gather",
        "flexible-multifunction",
    };
    struct err e = ERR_INIT;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t len;
        char *text = golden(names[i], &len);
        struct mil_program *p = text_parse(text, len, NULL, &e);
        struct buf out = BUF_INIT;

        cr_assert_not_null(p, "%s: %s", names[i], e.text);
        cr_assert_eq(text_print(p, NULL, &out, &e), 0, "%s", e.text);
        len -= text[len - 1] == '\n';
        cr_assert_eq(out.len, len, "%s: %zu bytes of %zu", names[i], out.len,
                     len);
        cr_assert_eq(memcmp(text, out.data, len), 0, "%s", names[i]);
        mil_program_free(p);
        mem_free(text);
        buf_release(&out);
    }
}

/* Identifiers of shapes are not kept: the rest must be stable. */
Test(mil_text, enumerated_golden_parses)
{
    size_t len;
    char *text = golden("flexible-enumerated", &len), *copy;
    struct err e = ERR_INIT;

    copy = mem_strndup(text, len, &e);
    stable(copy, NULL);
    mem_free(text);
    mem_free(copy);
}
