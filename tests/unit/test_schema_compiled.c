/*
 * Compiled models: against the output of Apple's compiler, to the byte where
 * the format is settled; written, read back, equal to their source; what is
 * refused.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/json.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "mil/text.h"
#include "schema/codec.h"
#include "schema/compiled.h"
#include "schema/coremldata.h"
#include "schema/model.pb-c.h"
#include "t_dir.h"
#include "t_schema.h"

static const char *dir;

static void setup(void)
{
    dir = t_dir_new();
}

static void drop(void)
{
    t_dir_drop(dir);
}

TestSuite(compiled, .init = setup, .fini = drop);

/* A path in the directory that outlives later ones. */
static const char *place(const char *name)
{
    static char ring[16][1024];
    static int at;
    char *p = ring[at++ % 16];

    snprintf(p, sizeof(ring[0]), "%s/%s", dir, name);
    return p;
}

static struct buf contents(const char *folder, const char *name)
{
    struct buf b = BUF_INIT;

    ts_read(&b, t_path(folder, name));
    return b;
}

/* ---- Apple's output ---- */

#define GOLDEN "goldens/mlmodelc/"

/* Under which name Apple's compiler saw the source: a class is called so. */
static const struct golden {
    const char *name, *source, *as;
} goldens[] = {
    { "flexible-enumerated", "input.mlmodel", "input.mlmodel" },
    { "flexible-gather", "input.mlmodel", "input.mlmodel" },
    { "flexible-multifunction", "input.mlmodel", "input.mlmodel" },
    { "quantized-constexpr", "input.mlmodel", "input.mlmodel" },
    { "silero-vad-unified-v6.0.0", "source.mlpackage",
      "silero-vad-unified-v6.0.0.mlpackage" },
    { "unified_256ms_palette_8bit", "source.mlpackage",
      "unified_256ms_palette_8bit.mlpackage" },
    { "unified_int8", "source.mlpackage", "unified_int8.mlpackage" },
    { "unified_palette_4bit", "source.mlpackage",
      "unified_palette_4bit.mlpackage" },
    { "unified_palette_6bit", "source.mlpackage",
      "unified_palette_6bit.mlpackage" },
};
#define N_GOLDENS (sizeof(goldens) / sizeof(goldens[0]))

/* Identifiers of enumerated shapes, of which only the order is known. */
static void drop_ids(struct buf *b)
{
    char *p = strstr(b->data, "(\"EnumeratedShapes\", {");

    for (p = p ? strstr(p, "{\"") : NULL; p; p = strstr(p + 10, "}}}, {\"")) {
        p = strstr(p, "{\"");
        memset(p + 2, '.', 8);
    }
}

/* The version, and all behind buildInfo. */
static void same_text(const char *apple, const char *ours)
{
    struct buf a = contents(apple, "model.mil");
    struct buf b = contents(ours, "model.mil");
    char *x, *y;

    drop_ids(&a);
    drop_ids(&b);
    cr_assert_eq(strncmp(a.data, b.data, 13), 0, "%s", apple);
    x = strstr(a.data, "\n{\n");
    y = strstr(b.data, "\n{\n");
    cr_assert(x && y);
    if (a.data[a.len - 1] == '\n') /* which one of them has */
        a.data[a.len - 1] = '\0';
    cr_assert_str_eq(x, y);
    buf_release(&a);
    buf_release(&b);
}

static int by_key(const void *a, const void *b)
{
    const Pb__Metadata__UserDefinedEntry *const *x = a, *const *y = b;

    return strcmp((*x)->key, (*y)->key);
}

/* The description with its user's metadata in order: a map has none. */
static void in_order(const struct coremldata *d, struct buf *out)
{
    Pb__ModelDescription *m =
        pb__model_description__unpack(NULL, d->description_bytes,
                                      d->description);
    size_t n;

    cr_assert_not_null(m);
    n = pb__model_description__get_packed_size(m);
    cr_assert_eq(n, d->description_bytes);
    if (m->metadata && m->metadata->n_userdefined)
        qsort(m->metadata->userdefined, m->metadata->n_userdefined,
              sizeof(*m->metadata->userdefined), by_key);
    pb__model_description__pack(m, buf_extend(out, n));
    pb__model_description__free_unpacked(m, NULL);
}

static void same_data(const char *apple, const char *ours)
{
    struct buf a = contents(apple, "coremldata.bin");
    struct buf b = contents(ours, "coremldata.bin");
    struct buf x = BUF_INIT, y = BUF_INIT;
    struct coremldata da, db;
    struct err e = ERR_INIT;
    size_t at, tail;

    cr_assert_eq(coremldata_read(a.data, a.len, &da, &e), 0, "%s", e.text);
    cr_assert_eq(coremldata_read(b.data, b.len, &db, &e), 0, "%s", e.text);
    cr_assert_eq(a.len, b.len, "%s", apple);
    in_order(&da, &x);
    in_order(&db, &y);
    cr_assert_eq(x.len, y.len);
    cr_assert_eq(memcmp(x.data, y.data, x.len), 0, "%s", apple);
    at = (size_t)((const char *)da.description - a.data);
    tail = at + da.description_bytes;
    cr_assert_eq(memcmp(a.data, b.data, at), 0, "%s", apple);
    cr_assert_eq(memcmp(a.data + tail, b.data + tail, a.len - tail), 0, "%s",
                 apple);
    buf_release(&a);
    buf_release(&b);
    buf_release(&x);
    buf_release(&y);
}

static void same_json(const char *apple, const char *ours)
{
    struct buf a = contents(apple, "metadata.json");
    struct buf b = contents(ours, "metadata.json");
    struct err e = ERR_INIT;
    struct js_doc *x = js_parse(a.data, a.len, &e);
    struct js_doc *y = js_parse(b.data, b.len, &e);
    const struct js_node *m, *n;

    cr_assert(x && y, "%s", e.text);
    m = js_first(js_root(x));
    n = js_first(js_root(y));
    for (const struct js_node *k = js_first(m); k; k = js_next(k))
        cr_expect(js_get(n, js_key(k)) && js_equal(k, js_get(n, js_key(k))),
                  "%s: %s", apple, js_key(k));
    cr_expect_eq(js_count(m), js_count(n), "%s", apple);
    js_free(x);
    js_free(y);
    buf_release(&a);
    buf_release(&b);
}

static void same_files(const char *apple, const char *ours, const char *folder)
{
    char **names;
    struct err e = ERR_INIT;
    size_t n;

    if (!io_is_dir(t_path(apple, folder)))
        return;
    cr_assert_eq(io_list(t_path(apple, folder), &names, &n, &e), 0);
    for (size_t i = 0; i < n; i++) {
        char name[300];
        struct buf a, b;

        snprintf(name, sizeof(name), "%s/%s", folder, names[i]);
        a = contents(apple, name);
        b = contents(ours, name);
        cr_assert_eq(a.len, b.len, "%s/%s", apple, name);
        cr_assert_eq(memcmp(a.data, b.data, a.len), 0, "%s/%s", apple, name);
        buf_release(&a);
        buf_release(&b);
    }
    io_list_free(names, n);
}

static struct pkg *open_raw(const char *path)
{
    struct err e = ERR_INIT;
    struct pkg *k = pkg_open_raw(path, &e);

    cr_assert_not_null(k, "%s", e.text);
    return k;
}

static void compile(const char *from, const char *to)
{
    struct pkg *k = open_raw(from);
    struct err e = ERR_INIT;

    cr_assert_eq(compiled_write(to, k, NULL, NULL, &e), 0, "%s", e.text);
    pkg_close(k);
}

Test(compiled, what_apples_compiler_writes)
{
    for (size_t i = 0; i < N_GOLDENS; i++) {
        const struct golden *g = &goldens[i];
        char name[300], apple[1024], source[1024];
        const char *from, *to, *found;

        snprintf(name, sizeof(name), GOLDEN "%s/%s", g->name, g->source);
        found = ts_shared(name);
        if (!found)
            cr_skip_test("no shared goldens");
        snprintf(source, sizeof(source), "%s", found);
        snprintf(name, sizeof(name), GOLDEN "%s/apple.mlmodelc", g->name);
        snprintf(apple, sizeof(apple), "%s", ts_shared(name));
        from = place(g->as);
        to = place("ours.mlmodelc");
        if (strcmp(g->as, g->source) == 0)
            from = source;
        else
            cr_assert_eq(symlink(source, from), 0);
        compile(from, to);
        same_text(apple, to);
        same_data(apple, to);
        same_json(apple, to);
        same_files(apple, to, "analytics");
        same_files(apple, to, "weights");
        t_dir_drop(dir);
        dir = t_dir_new();
    }
}

/* ---- reading ---- */

/* A golden's compiled model, with the weights of its source where it came
 * without; NULL where there are no goldens. */
static const char *apple_model(const char *name)
{
    char part[300], from[1024];
    const char *found, *to;
    static const char *const parts[] = { "model.mil", "coremldata.bin",
                                         "weights" };

    snprintf(part, sizeof(part), GOLDEN "%s/apple.mlmodelc", name);
    if (!ts_shared(part))
        return NULL;
    snprintf(part, sizeof(part), "%s.mlmodelc", name);
    to = place(part);
    cr_assert_eq(io_mkdir(to, &(struct err)ERR_INIT), 0);
    for (size_t i = 0; i < 3; i++) {
        snprintf(part, sizeof(part), GOLDEN "%s/apple.mlmodelc/%s", name,
                 parts[i]);
        found = ts_shared(part);
        snprintf(part, sizeof(part),
                 GOLDEN "%s/source.mlpackage/Data/com.apple.CoreML/%s", name,
                 parts[i]);
        if (!found)
            found = ts_shared(part);
        if (!found)
            continue;
        snprintf(from, sizeof(from), "%s", found);
        cr_assert_eq(symlink(from, t_path(to, parts[i])), 0);
    }
    return to;
}

/* Apple's own text, read and printed: the same, but for identifiers and one
 * newline. */
Test(compiled, apples_output_is_read)
{
    static const char *const names[] = {
        "add_model",
        "flexible-enumerated",
        "flexible-gather",
        "flexible-multifunction",
        "quantized-constexpr",
        "silero-vad-unified-v6.0.0",
        "unified_256ms_palette_8bit",
        "unified_int8",
        "unified_palette_4bit",
        "unified_palette_6bit",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *path = apple_model(names[i]);
        struct err e = ERR_INIT;
        struct buf want, got = BUF_INIT;
        struct pkg *k;
        struct text_options o = { .blob = pkg_blob, .sorted = true };

        if (!path)
            cr_skip_test("no shared goldens");
        want = contents(path, "model.mil");
        k = open_raw(path);
        cr_assert(pkg_is_compiled(k));
        cr_assert_eq(pkg_check_description(k, &e), 0, "%s", e.text);
        o.cookie = k;
        cr_assert_eq(text_print(pkg_program(k), &o, &got, &e), 0, "%s", e.text);
        drop_ids(&want);
        drop_ids(&got);
        want.len -= want.data[want.len - 1] == '\n';
        cr_assert_eq(want.len, got.len, "%s", names[i]);
        cr_assert_eq(memcmp(want.data, got.data, got.len), 0, "%s", names[i]);
        pkg_close(k);
        buf_release(&want);
        buf_release(&got);
    }
}

/* Apple's compiled models are their sources in another form. */
Test(compiled, apples_output_is_its_source)
{
    for (size_t i = 0; i < N_GOLDENS; i++) {
        char name[300];
        const char *path;
        struct err e = ERR_INIT;
        struct pkg *source, *apple;

        snprintf(name, sizeof(name), GOLDEN "%s/%s", goldens[i].name,
                 goldens[i].source);
        path = ts_shared(name);
        if (!path)
            cr_skip_test("no shared goldens");
        source = open_raw(path);
        apple = open_raw(apple_model(goldens[i].name));
        cr_expect_eq(pkg_same(source, apple, &e), 0, "%s", e.text);
        cr_expect_str_eq(pkg_program(source)->functions[0]->name,
                         pkg_program(apple)->functions[0]->name);
        pkg_close(source);
        pkg_close(apple);
    }
}

/* ---- bytes of our own ---- */

static void bytes_are(const struct buf *b, const char *hex)
{
    size_t n = 0;

    for (const char *p = hex; *p; p++) {
        unsigned v;

        if (*p == ' ')
            continue;
        cr_assert_eq(sscanf(p, "%2x", &v), 1);
        cr_assert_lt(n, b->len);
        cr_assert_eq((uint8_t)b->data[n], v, "byte %zu is %02x, not %02x", n,
                     (uint8_t)b->data[n], v);
        n++;
        p++;
    }
    cr_assert_eq(n, b->len);
}

/* One function without metadata. */
Test(compiled, description_of_one_function)
{
    static const uint8_t d[] =
        "\x0a\x0f\x0a\x01x\x1a\x0a\x2a\x08\x0a\x02\x01\x04\x10\x90\x80\x04"
        "\x52\x0f\x0a\x01y\x1a\x0a\x2a\x08\x0a\x02\x01\x04\x10\x90\x80\x04"
        "\xa2\x06";
    struct buf b = BUF_INIT;

    coremldata_put(&b, 9, d, sizeof(d), 1); /* its NUL is an empty metadata */
    bytes_are(&b, "f6010000 0900000000000000 0000000000000000 0000000000000000 "
                  "0700000000000000 67656e65726963 0900000000000000 "
                  "0000000000000000 0000000000000000 0000000000000000 "
                  "2500000000000000 0a0f 0a0178 1a0a 2a08 0a020104 10908004 "
                  "520f 0a0179 1a0a 2a08 0a020104 10908004 a20600 "
                  "f601000000000000 0000000000000000");
    cr_assert_eq(b.len, 136);
    buf_release(&b);
}

Test(compiled, versions_of_the_compiler)
{
    static const struct {
        int spec, compiler;
    } rows[] = { { 4, 3 }, { 5, 4 }, { 6, 5 }, { 7, 5 },
                 { 8, 8 }, { 9, 9 }, { 10, 9 } };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct buf b = BUF_INIT;

        coremldata_put(&b, rows[i].spec, "", 0, 2);
        cr_expect_eq(b.data[4], rows[i].compiler, "%d", rows[i].spec);
        cr_expect_eq(b.data[0x2b], rows[i].spec);
        cr_expect_eq(b.len, 83 + 32);
        buf_release(&b);
    }
}

/* The example of two functions, a state and a table of four bits. */
static const char *example(void)
{
    struct mil_program *p = ts_example();
    const char *path = place("e.mlpackage");
    struct err e = ERR_INIT;

    cr_assert_eq(mil_program_set_metadata(p, "com.example.k", "v", &e), 0);
    cr_assert_eq(mil_program_set_build_info(p, "tool", "1", &e), 0);
    p->author = "who";
    cr_assert_eq(pkg_write(path, p, NULL, NULL, &e), 0, "%s", e.text);
    mil_program_free(p);
    return path;
}

/* Lines of the text, each with its indent, in this order. */
static void has_lines(const char *text, const char *const *lines, size_t n)
{
    const char *p = text;

    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(p, lines[i]);

        cr_assert_not_null(at, "'%s' is not behind '%.60s'", lines[i], p);
        cr_assert_eq(at[-1], '\n');
        p = at + strlen(lines[i]);
    }
}

#define BLOB(type, at)                                    \
    type "(BLOBFILE(path = string(\"@model_path/weights/" \
         "weight.bin\"), offset = uint64(" at ")))"
#define WEIGHT                                                     \
    "            tensor<fp16, [8, 8, 1, 1]> w = "                  \
    "constexpr_lut_to_dense(indices = " BLOB(                      \
        "tensor<uint4, [8, 8, 1, 1]>",                             \
        "64") ", lut = " BLOB("tensor<fp16, [1, 1, 1, 1, 16, 1]>", \
                              "192") ")[name = string(\"w\")];\n"

Test(compiled, text_of_the_example)
{
    static const char *const lines[] = {
        "[buildInfo = dict<string, string>({{\"anemll-convert-version\", "
        "\"" ANEMLL_VERSION "\"}, {\"coremlc-component-MIL\", \"3520.4.1\"}, "
        "{\"coremlc-version\", \"3520.5.1\"}, {\"tool\", \"1\"}})]\n",
        "{\n",
        "    func decode<ios18>(state<tensor<fp16, [1, 8, 1, 4]>> cache, "
        "tensor<fp16, [1, 8, 1, 1]> x) {\n",
        WEIGHT,
        "            tensor<int32, [2]> h_strides = const()[name = "
        "string(\"h_strides\"), val = tensor<int32, [2]>([1, 1])];\n",
        "            string h_pad_type = const()[name = "
        "string(\"h_pad_type\"), val = string(\"valid\")];\n",
        "            tensor<fp16, [1, 8, 1, 1]> h = conv(dilations = "
        "h_dilations, groups = h_groups, pad = h_pad, pad_type = h_pad_type, "
        "strides = h_strides, weight = w, x = x)[name = string(\"h\")];\n",
        "            tensor<fp16, [1, 8, 1, 4]> c0 = read_state(input = "
        "cache)[name = string(\"c0\")];\n",
        "            write_state(data = c1, input = cache)[name = "
        "string(\"c2_write_state\")];\n",
        "            tensor<fp16, [1, 8, 1, 4]> c2 = read_state(input = "
        "cache)[name = string(\"c2\")];\n",
        "        } -> (y);\n",
        "    func prefill<ios18>(state<tensor<fp16, [1, 8, 1, 4]>> cache, "
        "tensor<fp16, [1, 8, 1, 4]> x) {\n",
        WEIGHT,
        "        } -> (y);\n",
    };
    const char *to = place("e.mlmodelc");
    struct buf b;

    compile(example(), to);
    cr_assert_str_eq(
        t_names(to),
        "analytics coremldata.bin metadata.json model.mil weights");
    b = contents(to, "model.mil");
    cr_assert_eq(strncmp(b.data, "program(1.3)\n", 13), 0);
    has_lines(b.data, lines, sizeof(lines) / sizeof(lines[0]));
    cr_assert_str_eq(b.data + b.len - 11, "} -> (y);\n}");
    buf_release(&b);
    cr_assert_str_eq(
        ts_sha256(t_path(to, "weights/weight.bin")),
        "3ccfad69aee7b320b80dd2eb5585ff7d1dda5753cb98529a8feb9a17a4a94171");
    b = contents(to, "analytics/coremldata.bin");
    cr_assert_eq(b.len, 243);
    buf_release(&b);
}

static void expect_json(const struct js_node *n, const char *key,
                        const char *want)
{
    const char *got = NULL;

    cr_expect(js_string(js_get(n, key), &got), "%s", key);
    cr_expect_str_eq(got, want, "%s", key);
}

Test(compiled, metadata_of_the_example)
{
    const char *to = place("e.mlmodelc");
    struct err e = ERR_INIT;
    struct js_doc *d;
    const struct js_node *m, *s, *h;
    uint64_t v = 0;

    compile(example(), to);
    d = js_read_file(t_path(to, "metadata.json"), 1 << 20, &e);
    cr_assert_not_null(d, "%s", e.text);
    m = js_first(js_root(d));
    expect_json(m, "generatedClassName", "e");
    expect_json(m, "author", "who");
    expect_json(m, "defaultFunctionName", "decode");
    expect_json(m, "storagePrecision", "Palettized (4 bits)");
    expect_json(m, "computePrecision", "Mixed (Float16, Int32)");
    expect_json(js_get(m, "userDefinedMetadata"), "com.example.k", "v");
    cr_expect_eq(js_count(js_get(m, "functions")), 2);
    s = js_first(js_get(m, "stateSchema"));
    expect_json(s, "name", "cache");
    expect_json(s, "type", "State");
    expect_json(s, "formattedType",
                "State (Float16 1 \xc3\x97 8 \xc3\x97 1 \xc3\x97 4)");
    h = js_get(m, "mlProgramOperationTypeHistogram");
    cr_expect(js_uint(js_get(h, "Ios18.readState"), &v) && v == 2);
    cr_expect(js_uint(js_get(h, "Ios18.constexprLutToDense"), &v) && v == 1);
    cr_expect(js_uint(js_get(h, "Ios16.reduceSum"), &v) && v == 1);
    cr_expect_eq(js_count(h), 6, "const does not count");
    js_free(d);
}

/* ---- there and back ---- */

/* The two forms of a model, as they stand and as ours. */
static void same_both_ways(const char *a, const char *b)
{
    for (int raw = 0; raw < 2; raw++) {
        struct err e = ERR_INIT;
        struct pkg *x = raw ? pkg_open_raw(a, &e) : pkg_open(a, &e);
        struct pkg *y = raw ? pkg_open_raw(b, &e) : pkg_open(b, &e);

        cr_assert(x && y, "%s", e.text);
        cr_assert_eq(pkg_same(x, y, &e), 0, "%s", e.text);
        cr_assert_eq(pkg_program(x)->n_functions, pkg_program(y)->n_functions);
        for (size_t i = 0; i < pkg_program(x)->n_functions; i++) {
            const struct mil_function *f = pkg_program(x)->functions[i];
            const struct mil_function *g = pkg_program(y)->functions[i];

            cr_assert_str_eq(f->name, g->name);
            cr_assert_str_eq(f->opset, g->opset);
            cr_assert_eq(f->n_inputs, g->n_inputs);
        }
        cr_assert_eq(mil_validate(pkg_program(x), &e),
                     mil_validate(pkg_program(y), &e));
        pkg_close(x);
        pkg_close(y);
    }
}

Test(compiled, example_there_and_back)
{
    const char *from = example(), *to = place("e.mlmodelc");
    const struct mil_function *f;
    struct err e = ERR_INIT;
    struct pkg *k;

    compile(from, to);
    same_both_ways(from, to);
    k = pkg_open(to, &e);
    cr_assert_not_null(k, "%s", e.text);
    cr_assert_eq(mil_validate(pkg_program(k), &e), 0, "%s", e.text);
    cr_assert_eq(pkg_check_description(k, &e), 0, "%s", e.text);
    cr_assert_str_eq(mil_program_metadata(pkg_program(k), "com.example.k"),
                     "v");
    cr_assert_str_eq(pkg_program(k)->author, "who");
    f = pkg_program(k)->functions[0];
    cr_assert_str_eq(mil_value(f, f->inputs[0])->name, "x");
    cr_assert_eq(mil_value(f, f->inputs[1])->kind, MIL_V_STATE);
    cr_assert_eq(f->ops[0].code, MIL_OP_constexpr_lut_to_dense);
    cr_assert_eq(mil_arg_const(f, &f->ops[0], 0)->data,
                 mil_arg_const(pkg_program(k)->functions[1],
                               &pkg_program(k)->functions[1]->ops[0], 0)
                     ->data,
                 "both functions share the table's indices");
    /* And on to a package again: the same bytes. */
    cr_assert_eq(pkg_write(place("again.mlpackage"), pkg_program(k), NULL, NULL,
                           &e),
                 0, "%s", e.text);
    pkg_close(k);
    same_both_ways(place("again.mlpackage"), to);
}

/* A package that another program wrote: casts, gathers, a state, blobs. */
Test(compiled, coremltools_there_and_back)
{
    static const char *const parts[] = { "FFN_PF_chunk_01of01", "embeddings",
                                         "lm_head" };

    for (size_t i = 0; i < 3; i++) {
        char name[200], from[1024];
        const char *found, *to;

        snprintf(name, sizeof(name),
                 "goldens/packages/qwen3-tiny-coremltools/qwen_%s.mlpackage",
                 parts[i]);
        found = ts_shared(name);
        if (!found)
            cr_skip_test("no shared packages");
        snprintf(from, sizeof(from), "%s", found);
        snprintf(name, sizeof(name), "%s.mlmodelc", parts[i]);
        to = place(name);
        compile(from, to);
        same_both_ways(from, to);
    }
}

/* Names in another order than by bytes: the default function stays first. */
Test(compiled, default_function_and_inputs_keep_their_places)
{
    struct err e = ERR_INIT;
    struct mil_program *p = mil_program_new(&e);
    struct mil_type t = mil_type_make(MIL_F16, 1, (const int64_t[]){ 4 });
    const char *from = place("o.mlpackage"), *to = place("o.mlmodelc");
    const struct mil_function *f;
    struct pkg *k;

    for (int i = 0; i < 2; i++) {
        struct mil_function *g = mil_program_add(p, i ? "a" : "b", &e);
        mil_ref z = mil_add_value(g, MIL_V_INPUT, "z", &t, &e);
        mil_ref x = mil_add_value(g, MIL_V_INPUT, "x", &t, &e);
        mil_ref y = ts_op(g, MIL_OP_add, "y", &t, "x", x, "y", z, (char *)NULL);

        cr_assert_eq(mil_add_function_output(g, y, &e), 0);
    }
    cr_assert_eq(pkg_write(from, p, NULL, NULL, &e), 0, "%s", e.text);
    mil_program_free(p);
    compile(from, to);
    k = open_raw(to);
    f = pkg_program(k)->functions[0];
    cr_expect_str_eq(f->name, "b");
    cr_expect_str_eq(mil_value(f, f->inputs[0])->name, "z");
    cr_expect_str_eq(mil_value(f, f->inputs[1])->name, "x");
    pkg_close(k);
}

/* ---- weights ---- */

static ino_t inode(const char *path)
{
    struct stat st;

    cr_assert_eq(stat(path, &st), 0, "%s", path);
    return st.st_ino;
}

#define IN_PACKAGE "Data/com.apple.CoreML/weights/weight.bin"

Test(compiled, weights_are_linked_or_copied)
{
    const char *from = example();
    struct compiled_options o = { COMPILED_LINK, NULL, NULL };
    struct compiled_written w;
    struct err e = ERR_INIT;
    struct buf text;
    struct pkg *k = open_raw(from);

    cr_assert_eq(compiled_write(place("l.mlmodelc"), k, &o, &w, &e), 0, "%s",
                 e.text);
    cr_expect_eq(inode(t_path(from, IN_PACKAGE)),
                 inode(place("l.mlmodelc/weights/weight.bin")));
    cr_expect_eq(w.weights_bytes, 288);
    cr_expect_eq(w.linked_bytes, 288);
    text = contents(place("l.mlmodelc"), "model.mil");
    cr_expect_eq(w.text_bytes, text.len);
    buf_release(&text);
    cr_assert_eq(compiled_write(place("c.mlmodelc"), k, NULL, &w, &e), 0, "%s",
                 e.text);
    cr_expect_neq(inode(t_path(from, IN_PACKAGE)),
                  inode(place("c.mlmodelc/weights/weight.bin")));
    cr_expect_eq(w.linked_bytes, 0);
    cr_expect_eq(w.weights_bytes, 288);
    pkg_close(k);
}

/* Another file system has no links to this one. */
Test(compiled, weights_are_copied_where_links_fail)
{
    struct compiled_options o = { COMPILED_LINK, NULL, NULL };
    struct compiled_written w;
    struct err e = ERR_INIT;
    struct stat here, there;
    char to[64];
    struct pkg *k;

    snprintf(to, sizeof(to), "/dev/shm/anemll-%ld.mlmodelc", (long)getpid());
    cr_assert_eq(stat(dir, &here), 0);
    if (stat("/dev/shm", &there) != 0 || here.st_dev == there.st_dev)
        cr_skip_test("there is no second file system");
    k = open_raw(example());
    cr_assert_eq(compiled_write(to, k, &o, &w, &e), 0, "%s", e.text);
    cr_expect_eq(w.linked_bytes, 0);
    pkg_close(k);
    k = open_raw(to);
    pkg_close(k);
    cr_assert_eq(io_remove_tree(to, &e), 0);
}

/* ---- what is not one model ---- */

static void not_same(const char *a, const char *b, const char *says)
{
    struct pkg *x = open_raw(a), *y = open_raw(b);
    struct err e = ERR_INIT;

    cr_expect_eq(pkg_same(x, y, &e), -1, "%s", says);
    cr_expect_eq((int)e.code, (int)ERR_MISMATCH);
    cr_expect(strstr(e.text, says), "got: %s", e.text);
    pkg_close(x);
    pkg_close(y);
}

/* Replaces the first `from` in a file of a folder. */
static void edit(const char *folder, const char *name, const char *from,
                 const char *to)
{
    struct buf b = contents(folder, name), out = BUF_INIT;
    char *p = NULL;
    size_t n = strlen(from), i;

    for (i = 0; !p && i + n <= b.len; i++)
        if (memcmp(b.data + i, from, n) == 0)
            p = b.data + i;
    cr_assert_not_null(p, "%s", from);
    buf_add(&out, b.data, (size_t)(p - b.data));
    buf_puts(&out, to);
    buf_add(&out, p + n, b.len - n - (size_t)(p - b.data));
    t_write(t_path(folder, name), out.data, out.len);
    buf_release(&b);
    buf_release(&out);
}

Test(compiled, differences_are_found)
{
    const char *from = example(), *to = place("d.mlmodelc");
    struct err e = ERR_INIT;

    compile(from, to);
    edit(to, "model.mil", "c1_end, ", "c1_begin, ");
    not_same(from, to, "their programs differ: ");
    cr_assert_eq(io_remove_tree(to, &e), 0);
    compile(from, to);
    edit(to, "coremldata.bin", "com.example.k", "com.example.j");
    not_same(from, to, "the descriptions of their inputs, outputs or metadata");
    cr_assert_eq(io_remove_tree(to, &e), 0);
    compile(from, to);
    edit(to, "weights/weight.bin", "\x50\xfa", "\x51\xfa");
    not_same(from, to,
             "their weights in 'weights/weight.bin' differ at byte 128");
    edit(to, "model.mil", "3520.5.1", "9999.5.1");
    edit(to, "weights/weight.bin", "\x51\xfa", "\x50\xfa");
    same_both_ways(from, to);
}

/* ---- what is not written ---- */

static void not_written(const char *from, const char *says)
{
    struct err e = ERR_INIT;
    struct pkg *k = open_raw(from);

    cr_expect_eq(compiled_write(place("n.mlmodelc"), k, NULL, NULL, &e), -1,
                 "%s", says);
    cr_expect(strstr(e.text, says), "got: %s", e.text);
    cr_expect_not(io_exists(place("n.mlmodelc")));
    pkg_close(k);
}

/* relu of x [4] under these names, as a bare model: unlike the package writer
 * the encoder takes any name. */
static const char *named(const char *function, const char *x, const char *label)
{
    struct err e = ERR_INIT;
    struct mil_program *p = mil_program_new(&e);
    struct mil_function *f = mil_program_add(p, function, &e);
    struct mil_type t = mil_type_make(MIL_F16, 1, (const int64_t[]){ 4 });
    struct blob_writer *w = blob_writer_new(place("none"), NULL, &e);
    const char *path = place("n.mlmodel");
    struct buf b = BUF_INIT;
    struct mil_op *op;
    mil_ref in = mil_add_value(f, MIL_V_INPUT, x, &t, &e), y;

    op = mil_add_op(f, MIL_OP_relu, label, &e);
    cr_assert_eq(mil_set_arg(f, op, 0, &in, 1, &e), 0);
    y = mil_add_output(f, op, "y", &t, &e);
    cr_assert_eq(mil_add_function_output(f, y, &e), 0);
    cr_assert_eq(codec_encode(p, w, &b, &e), 0, "%s", e.text);
    t_write(path, b.data, b.len);
    buf_release(&b);
    blob_writer_free(w);
    mil_program_free(p);
    return path;
}

Test(compiled, names_that_text_cannot_spell)
{
    not_written(named("main", "a-b", "l"), "the name 'a-b' is no identifier");
    not_written(named("main", "state", "l"),
                "the name 'state' is a word of MIL's text");
    not_written(named("main", "x", "say \"y\""),
                "the string 'say \"y\"' needs an escape");
    not_written(named("main", "x", "a\\b"), "needs an escape");
    compile(named("main", "x", "op/1 \xc3\xa9"), place("fine.mlmodelc"));
    same_both_ways(place("n.mlmodel"), place("fine.mlmodelc"));
}

Test(compiled, sources_that_are_not_written)
{
    const char *from = example(), *to = place("e.mlmodelc");
    struct err e = ERR_INIT;
    struct pkg *k;

    compile(from, to);
    not_written(to, "is a compiled model already");
    k = open_raw(from);
    cr_expect_eq(compiled_write(to, k, NULL, NULL, &e), -1);
    cr_expect(strstr(e.text, "it exists"), "%s", e.text);
    err_reset(&e);
    cr_expect_eq(compiled_write(place("x"), k, NULL, NULL, &e), -1);
    cr_expect(strstr(e.text, "must end in .mlmodelc"), "%s", e.text);
    pkg_close(k);
    edit(from, "Data/com.apple.CoreML/model.mlmodel", "decode", "encode");
    not_written(from, "is described, the program has none");
}

/* ---- hostile bytes ---- */

static void not_read(const char *path, const char *says)
{
    for (int raw = 0; raw < 2; raw++) {
        struct err e = ERR_INIT;
        struct pkg *k = raw ? pkg_open_raw(path, &e) : pkg_open(path, &e);

        cr_expect_null(k, "'%s' was expected", says);
        cr_expect(strstr(e.text, says), "'%s' lacks '%s'", e.text, says);
        pkg_close(k);
    }
}

static const char *fresh(void)
{
    const char *to = place("h.mlmodelc");
    struct err e = ERR_INIT;

    cr_assert_eq(io_remove_tree(to, &e), 0);
    if (!io_exists(place("e.mlpackage")))
        example();
    compile(place("e.mlpackage"), to);
    return to;
}

Test(compiled, models_of_other_kinds)
{
    const char *to = fresh();

    edit(to, "coremldata.bin", "\xf6\x01", "\xf4\x01");
    not_read(to, "the model is a neural network of the older kind (500)");
    edit(to, "coremldata.bin", "\xf4\x01", "\xca");
    edit(to, "coremldata.bin", "\xca", "\xca\x01");
    not_read(to, "of an unknown kind (458)");
}

Test(compiled, weights_elsewhere)
{
    const char *to = fresh();

    edit(to, "model.mil", "@model_path/weights/weight.bin",
         "@model_path/../weights/weight.bin");
    not_read(to, "is no name that the format allows");
    to = fresh();
    edit(to, "model.mil", "@model_path/weights/weight.bin",
         "@model_path//etc/passwd");
    not_read(to, "is no name that the format allows");
    to = fresh();
    edit(to, "model.mil", "uint64(64)", "uint64(6400)");
    not_read(to, "no blob can start at byte 6400");
    to = fresh();
    edit(to, "model.mil", "uint64(64)", "uint64(65)");
    not_read(to, "no blob can start at byte 65");
    to = fresh();
    edit(to, "model.mil", "tensor<uint4, [8, 8, 1, 1]>(BLOB",
         "tensor<uint4, [8, 9, 1, 1]>(BLOB");
    not_read(to, "holds 64 elements, the program declares 72");
    to = fresh();
    cr_assert_eq(unlink(t_path(to, "weights/weight.bin")), 0);
    not_read(to, "weight.bin' does not exist");
}

Test(compiled, text_and_description_that_disagree)
{
    const char *to = fresh();
    struct err e = ERR_INIT;
    struct pkg *k;

    edit(to, "model.mil", "program(1.3)", "program(1.0)");
    edit(to, "model.mil", "ios18", "ios17");
    edit(to, "model.mil", "ios18", "ios17");
    not_read(to, "specification version 9, model.mil is of version 8");
    to = fresh();
    edit(to, "model.mil", "func prefill", "func refill");
    k = open_raw(to);
    cr_expect_eq(pkg_check_description(k, &e), -1);
    cr_expect(strstr(e.text, "function 'prefill' is described, the program "
                             "has none"),
              "%s", e.text);
    pkg_close(k);
    to = fresh();
    edit(to, "model.mil", "conv(", "coonv(");
    err_reset(&e);
    cr_expect_null(pkg_open(to, &e));
    cr_expect(strstr(e.text, "unknown op 'coonv' ('h') of opset 'CoreML8'"),
              "%s", e.text);
    k = open_raw(to);
    pkg_close(k);
    to = fresh();
    cr_assert_eq(unlink(t_path(to, "model.mil")), 0);
    not_read(to, "model.mil' does not exist");
}

/* Every shorter file, and every bit of it, gives a text or a program. */
Test(compiled, damaged_descriptions)
{
    const char *to = fresh();
    struct buf b = contents(to, "coremldata.bin");
    const char *path = t_path(to, "coremldata.bin");
    char *copy = malloc(b.len);

    for (size_t n = 1; n < b.len; n++) {
        struct coremldata d;
        struct err e = ERR_INIT;
        bool whole = n + 16 == b.len || n + 32 == b.len;

        cr_assert_eq(coremldata_read(b.data, n, &d, &e) == 0, whole, "%zu", n);
        cr_assert(whole || e.text[0]);
    }
    for (size_t i = 0; i < b.len * 8; i += 3) {
        struct err e = ERR_INIT;
        struct pkg *k;

        memcpy(copy, b.data, b.len);
        copy[i / 8] ^= (char)(1 << i % 8);
        t_write(path, copy, b.len);
        k = pkg_open_raw(to, &e);
        cr_assert((k != NULL) == (e.code == ERR_OK), "bit %zu", i);
        pkg_close(k);
    }
    free(copy);
    buf_release(&b);
}

/* ---- out of memory ---- */

Test(compiled, out_of_memory_anywhere)
{
    const char *from = example(), *to = place("m.mlmodelc");
    long n, step = 1;

    for (n = 0;; n += step) {
        struct err e = ERR_INIT;
        struct pkg *k, *again = NULL;
        int rc = -1;

        mem_fail_at(n, false);
        k = pkg_open_raw(from, &e);
        if (k)
            rc = compiled_write(to, k, NULL, NULL, &e);
        if (!rc)
            again = pkg_open_raw(to, &e);
        if (again)
            rc = pkg_same(k, again, &e);
        mem_fail_at(-1, false);
        pkg_close(again);
        pkg_close(k);
        if (!rc && again)
            break;
        cr_assert_eq((int)e.code, (int)ERR_NOMEM, "%ld: %s", n, e.text);
        err_reset(&e);
        cr_assert_eq(io_remove_tree(to, &e), 0);
        step = 1 + n / 80;
    }
    cr_expect_gt(n, 300, "%ld", n);
}
