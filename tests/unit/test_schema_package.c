/*
 * Packages on disk: the two-function example to the byte, round trips,
 * packages of others, manifests, descriptions.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/num.h"
#include "mil/text.h"
#include "schema/codec.h"
#include "schema/package.h"
#include "t_dir.h"
#include "t_schema.h"

static const char *dir;

static void setup(void)
{
    dir = t_dir_new();
}

/* A path in the directory that outlives later ones. */
static const char *place(const char *name)
{
    static char ring[16][1024];
    static int at;
    char *p = ring[at++ % 16];

    snprintf(p, sizeof(ring[0]), "%s/%s", dir, name);
    return p;
}

static void drop(void)
{
    t_dir_drop(dir);
}

TestSuite(package, .init = setup, .fini = drop);

/* Of the listing as another implementation parses it: equal as a message;
 * map entries stand in our order. */
#define MODEL_SHA \
    "c5f52e600c6647451b2ea71a84a8253085defa79236da7e4380d5e2af0d7d81f"
#define MODEL "Data/com.apple.CoreML/model.mlmodel"
#define WEIGHTS "Data/com.apple.CoreML/weights/weight.bin"

static struct pkg_written write_to(const char *path,
                                   const struct mil_program *p)
{
    struct pkg_written w;
    struct err e = ERR_INIT;

    cr_assert_eq(pkg_write(path, p, NULL, &w, &e), 0, "%s", e.text);
    return w;
}

static struct pkg *open_ok(const char *path)
{
    struct err e = ERR_INIT;
    struct pkg *k = pkg_open(path, &e);

    cr_assert_not_null(k, "%s", e.text);
    cr_assert_eq(mil_validate(pkg_program(k), &e), 0, "%s", e.text);
    cr_assert_eq(pkg_check_description(k, &e), 0, "%s", e.text);
    return k;
}

static void same_file(const char *a, const char *b, const char *name)
{
    struct buf x = BUF_INIT, y = BUF_INIT;

    ts_read(&x, t_path(a, name));
    ts_read(&y, t_path(b, name));
    cr_assert_eq(x.len, y.len, "%s", name);
    cr_assert_eq(memcmp(x.data, y.data, x.len), 0, "%s", name);
    buf_release(&x);
    buf_release(&y);
}

static void same_package(const char *a, const char *b, bool weights)
{
    same_file(a, b, "Manifest.json");
    same_file(a, b, MODEL);
    if (weights)
        same_file(a, b, WEIGHTS);
}

Test(package, example_to_the_byte)
{
    const char *path = place("e.mlpackage");
    struct mil_program *p = ts_example();
    struct pkg_written w = write_to(path, p);
    struct pkg_sizes z;
    struct pkg *k;
    const struct mil_function *f;
    const struct mil_data *d[2];
    const char *file;
    uint64_t offset;
    int i;

    cr_assert_eq(w.weights_bytes, 288);
    cr_assert_eq(w.blobs, 2);
    cr_assert_eq(w.shared, 2);
    cr_assert_str_eq(
        ts_sha256(t_path(path, WEIGHTS)),
        "3ccfad69aee7b320b80dd2eb5585ff7d1dda5753cb98529a8feb9a17a4a94171");
    cr_assert_str_eq(ts_sha256(t_path(path, MODEL)), MODEL_SHA);
    cr_assert_str_eq(t_names(path), "Data Manifest.json");
    k = open_ok(path);
    pkg_sizes(k, &z);
    cr_assert_eq(z.model_bytes, w.model_bytes);
    cr_assert_eq(z.weights_bytes, 288);
    cr_assert_eq(z.blobs, 2);
    cr_assert_eq(pkg_program(k)->n_functions, 2);
    cr_assert_str_eq(pkg_program(k)->functions[0]->name, "decode");
    for (i = 0; i < 2; i++) {
        f = pkg_program(k)->functions[i];
        cr_assert_eq(f->ops[0].code, MIL_OP_constexpr_lut_to_dense);
        d[i] = mil_arg_const(f, &f->ops[0], 0)->data;
        cr_assert(pkg_blob(k, d[i], &file, &offset));
        cr_assert_str_eq(file, "@model_path/weights/weight.bin");
        cr_assert_eq(offset, 64);
    }
    cr_assert_eq(d[0], d[1], "both functions share the table's indices");
    cr_assert_not(pkg_blob(p, d[0], &file, &offset), "not of that package");
    cr_assert_eq(pkg_program(k)->spec_version, 9);
    pkg_close(k);
    mil_program_free(p);
}

/* Written, read, written again: the same bytes. */
Test(package, round_trip)
{
    const char *a = place("a.mlpackage");
    const char *b = place("b.mlpackage");
    struct mil_program *p = ts_example();
    struct err e = ERR_INIT;
    struct pkg *k;

    cr_assert_eq(mil_program_set_metadata(p, "z", "last", &e), 0);
    cr_assert_eq(mil_program_set_metadata(p, "a", "first", &e), 0);
    cr_assert_eq(mil_program_set_metadata(p, "Z", "\xc3\xa9", &e), 0);
    cr_assert_eq(mil_program_set_build_info(p, "tool", "1.0", &e), 0);
    p->description = "d";
    p->author = "who";
    p->license = "l";
    p->version = "1";
    write_to(a, p);
    k = open_ok(a);
    cr_assert_str_eq(pkg_program(k)->metadata[0].key, "Z", "byte order");
    cr_assert_str_eq(mil_program_metadata(pkg_program(k), "Z"), "\xc3\xa9");
    cr_assert_str_eq(pkg_program(k)->author, "who");
    cr_assert_str_eq(pkg_program(k)->build_info[0].value, "1.0");
    write_to(b, pkg_program(k));
    same_package(a, b, true);
    pkg_close(k);
    mil_program_free(p);
}

static struct mil_program *relu(const char *name, const char *in,
                                const struct mil_type *t)
{
    struct err e = ERR_INIT;
    struct mil_program *p = mil_program_new(&e);
    struct mil_function *f = mil_program_add(p, name, &e);
    mil_ref x = mil_add_value(f, MIL_V_INPUT, in, t, &e);
    mil_ref y = ts_op(f, MIL_OP_relu, "y", t, "x", x, (char *)NULL);

    cr_assert_eq(mil_add_function_output(f, y, &e), 0);
    return p;
}

Test(package, no_blobs)
{
    const char *path = place("n.mlpackage");
    struct mil_type t = mil_type_make(MIL_F16, 1, (const int64_t[]){ 4 });
    struct mil_program *p = relu("main", "x", &t);
    struct pkg_written w = write_to(path, p);

    cr_assert_eq(w.blobs, 0);
    cr_assert_eq(w.weights_bytes, 0);
    cr_assert_str_eq(t_names(t_path(path, "Data/com.apple.CoreML/weights")),
                     "");
    pkg_close(open_ok(path));
    mil_program_free(p);
}

Test(package, open_shapes)
{
    const char *a = place("a.mlpackage");
    const char *b = place("b.mlpackage");
    struct mil_type t = mil_type_make(MIL_F16, 2, (const int64_t[]){ 1, -1 });
    struct mil_type s[2] = {
        mil_type_make(MIL_F16, 2, (const int64_t[]){ 1, 64 }),
        mil_type_make(MIL_F16, 2, (const int64_t[]){ 1, 1 })
    };
    struct mil_program *p = relu("main", "ids", &t);
    const struct mil_function *f;
    struct err e = ERR_INIT;
    struct pkg_written w;
    struct pkg *k;

    cr_assert_eq(pkg_write(a, p, NULL, &w, &e), -1);
    cr_assert_not_null(strstr(e.text, "'ids': its shape is open and no "
                                      "accepted shapes are listed"),
                       "%s", e.text);
    cr_assert_not(io_exists(a), "a failed package is removed");
    err_reset(&e);
    cr_assert_eq(mil_program_set_enumerated(p, "ids", 2, s, &e), 0);
    write_to(a, p);
    k = open_ok(a);
    f = pkg_program(k)->functions[0];
    cr_assert_not_null(mil_value(f, f->inputs[0])->shapes);
    cr_assert_eq(mil_value(f, f->inputs[0])->shapes->n, 2);
    cr_assert_eq(mil_value(f, f->inputs[0])->shapes->first.dims[1], 64,
                 "the default is the first");
    write_to(b, pkg_program(k));
    same_package(a, b, false);
    pkg_close(k);
    mil_program_free(p);
}

static void refused(const char *path, const struct mil_program *p,
                    const char *text)
{
    struct err e = ERR_INIT;

    cr_assert_eq(pkg_write(path, p, NULL, NULL, &e), -1, "%s", text);
    cr_assert_not_null(strstr(e.text, text), "got: %s", e.text);
}

Test(package, what_is_not_written)
{
    struct mil_type t = mil_type_make(MIL_F16, 1, (const int64_t[]){ 4 });
    struct mil_type i8 = mil_type_make(MIL_I8, 1, (const int64_t[]){ 4 });
    struct mil_program *p = relu("infer", "x", &t), *q = relu("main", "x", &t);
    struct err e = ERR_INIT;
    struct mil_function *f;
    mil_ref x, y;

    refused(t_path(dir, "a.mlpackage"), p,
            "the only function of a program must be called 'main', not "
            "'infer'");
    refused(t_path(dir, "a.mlmodel"), q, "the name must end in .mlpackage");
    refused(t_path(dir, ".mlpackage"), p, "called 'main'");
    cr_assert_eq(io_mkdir(t_path(dir, "b.mlpackage"), &e), 0);
    refused(t_path(dir, "b.mlpackage"), q, "it exists");
    mil_program_free(p);
    p = mil_program_new(&e);
    f = mil_program_add(p, "main", &e);
    x = mil_add_value(f, MIL_V_INPUT, "x", &i8, &e);
    y = ts_op(f, MIL_OP_identity, "y", &i8, "x", x, (char *)NULL);
    cr_assert_eq(mil_add_function_output(f, y, &e), 0);
    refused(t_path(dir, "c.mlpackage"), p, "int8");
    cr_assert_str_eq(t_names(dir), "b.mlpackage");
    mil_program_free(p);
    mil_program_free(q);
}

static int read_fails(void *cookie, uint64_t at, void *dst, size_t n,
                      struct err *e)
{
    (void)cookie;
    (void)at;
    (void)dst;
    (void)n;
    return err_set(e, ERR_INPUT, "the shard ends here");
}

/* A source that fails leaves nothing behind, and the error says where. */
Test(package, failing_source)
{
    int64_t n = 4096;
    struct mil_data d = { mil_type_make(MIL_F16, 1, &n),
                          8192,
                          read_fails,
                          NULL,
                          MIL_ROLE_NONE,
                          NULL };
    struct mil_program *p = ts_adder("table", &d);
    struct err e = ERR_INIT;
    char want[512];

    snprintf(want, sizeof(want),
             "cannot write '%s/f.mlpackage': function 'main': op 'table' "
             "(const): the shard ends here",
             dir);
    cr_assert_eq(pkg_write(t_path(dir, "f.mlpackage"), p, NULL, NULL, &e), -1);
    cr_assert_str_eq(e.text, want);
    cr_assert_str_eq(t_names(dir), "");
    mil_program_free(p);
}

/* ---- packages of others ---- */

#define GOLDEN "goldens/packages/qwen3-tiny-coremltools/qwen_"

static const char *const shared_packages[] = {
    GOLDEN "FFN_PF_chunk_01of01.mlpackage",
    GOLDEN "embeddings.mlpackage",
    GOLDEN "lm_head.mlpackage",
};

/* They open, are valid, and come out with the same weight file and program. */
Test(package, written_by_coremltools)
{
    size_t i;

    for (i = 0; i < 3; i++) {
        const char *from = ts_shared(shared_packages[i]);
        char a[64], b[64];
        struct pkg *k, *again;

        if (!from)
            cr_skip_test("no shared packages");
        snprintf(a, sizeof(a), "a%zu.mlpackage", i);
        snprintf(b, sizeof(b), "b%zu.mlpackage", i);
        k = open_ok(from);
        write_to(t_path(dir, a), pkg_program(k));
        same_file(from, t_path(dir, a), WEIGHTS);
        again = open_ok(t_path(dir, a));
        write_to(t_path(dir, b), pkg_program(again));
        same_package(t_path(dir, a), t_path(dir, b), true);
        pkg_close(k);
        pkg_close(again);
    }
}

static const char *const shared_models[] = {
    "goldens/mlmodelc/flexible-enumerated/input.mlmodel",
    "goldens/mlmodelc/flexible-gather/input.mlmodel",
    "goldens/mlmodelc/flexible-multifunction/input.mlmodel",
    "goldens/mlmodelc/quantized-constexpr/input.mlmodel",
};

Test(package, bare_models)
{
    size_t i;

    for (i = 0; i < 4; i++) {
        const char *from = ts_shared(shared_models[i]);
        struct err e = ERR_INIT;
        struct pkg *k;

        if (!from)
            cr_skip_test("no shared models");
        pkg_close(open_ok(from));
        k = pkg_open_raw(from, &e);
        cr_assert_not_null(k, "%s", e.text);
        cr_assert_eq(pkg_check_description(k, &e), 0, "%s", e.text);
        pkg_close(k);
    }
}

Test(package, default_function_comes_first)
{
    const char *from = ts_shared(shared_models[2]);
    struct pkg *k;

    if (!from)
        cr_skip_test("no shared models");
    k = open_ok(from);
    cr_assert_str_eq(pkg_program(k)->functions[0]->name, "second");
    cr_assert_str_eq(pkg_program(k)->functions[1]->name, "first");
    pkg_close(k);
}

/* scale * (data - zero), expressed in CoreML8's operation. */
Test(package, older_dequantization)
{
    const char *from = ts_shared(shared_models[3]);
    const struct mil_function *f;
    const struct mil_op *op;
    struct pkg *k;

    if (!from)
        cr_skip_test("no shared models");
    k = open_ok(from);
    f = pkg_program(k)->functions[0];
    op = &f->ops[0];
    cr_assert_eq(op->code, MIL_OP_constexpr_blockwise_shift_scale);
    cr_assert_str_eq(f->opset, "CoreML8");
    cr_assert_eq(mil_value(f, op->args[0].refs[0])->type.rank,
                 mil_value(f, op->args[1].refs[0])->type.rank);
    pkg_close(k);
}

static const char *const old_packages[] = {
    "goldens/mlmodelc/silero-vad-unified-v6.0.0/source.mlpackage",
    "goldens/mlmodelc/unified_256ms_palette_8bit/source.mlpackage",
    "goldens/mlmodelc/unified_int8/source.mlpackage",
    "goldens/mlmodelc/unified_palette_4bit/source.mlpackage",
    "goldens/mlmodelc/unified_palette_6bit/source.mlpackage",
};

/* Older opsets: refused with op and opset; readable as they stand. */
Test(package, older_opsets)
{
    size_t i;

    for (i = 0; i < 5; i++) {
        const char *from = ts_shared(old_packages[i]);
        struct err e = ERR_INIT;
        struct pkg *k;

        if (!from)
            cr_skip_test("no shared packages");
        cr_assert_null(pkg_open(from, &e));
        cr_assert_eq(e.code, ERR_UNSUPPORTED);
        cr_assert_not_null(strstr(e.text, i ? "of opset 'CoreML6' is not"
                                            : "unknown op 'lstm' "
                                              "('lstm_out_batch_first') of "
                                              "opset 'CoreML5'"),
                           "%s", e.text);
        err_reset(&e);
        k = pkg_open_raw(from, &e);
        cr_assert_not_null(k, "%s", e.text);
        cr_assert_eq(pkg_check_description(k, &e), 0, "%s", e.text);
        cr_assert_eq(pkg_program(k)->spec_version, i ? 7 : 6);
        pkg_close(k);
    }
}

/* ---- manifests ---- */

static void manifest(const char *from, const char *to, const char *text)
{
    const char *path = place("e.mlpackage");
    struct err e = ERR_INIT;
    struct buf b = BUF_INIT, c = BUF_INIT;
    char *at;

    ts_read(&b, t_path(path, "Manifest.json"));
    at = strstr(b.data, from);
    cr_assert_not_null(at, "%s", from);
    buf_add(&c, b.data, (size_t)(at - b.data));
    buf_puts(&c, to);
    buf_puts(&c, at + strlen(from));
    cr_assert_eq(io_remove_tree(t_path(dir, "m.mlpackage"), &e), 0);
    cr_assert_eq(io_mkdir(t_path(dir, "m.mlpackage"), &e), 0);
    cr_assert_eq(io_mkdir(t_path(dir, "m.mlpackage/Data"), &e), 0);
    cr_assert_eq(io_mkdir(t_path(dir, "m.mlpackage/Data/com.apple.CoreML"), &e),
                 0);
    cr_assert_eq(io_mkdir(t_path(dir, "m.mlpackage/Data/com.apple.CoreML/"
                                      "weights"),
                          &e),
                 0);
    cr_assert_eq(io_copy_file(t_path(path, MODEL),
                              t_path(dir, "m.mlpackage/" MODEL), &e),
                 0);
    cr_assert_eq(io_copy_file(t_path(path, WEIGHTS),
                              t_path(dir, "m.mlpackage/" WEIGHTS), &e),
                 0);
    t_write_text(t_path(dir, "m.mlpackage/Manifest.json"), buf_text(&c));
    buf_release(&b);
    buf_release(&c);
    if (!text) {
        pkg_close(open_ok(t_path(dir, "m.mlpackage")));
        return;
    }
    cr_assert_null(pkg_open(t_path(dir, "m.mlpackage"), &e), "%s -> %s", from,
                   to);
    cr_assert_not_null(strstr(e.text, text), "%s: %s", to, e.text);
}

Test(package, manifests)
{
    struct mil_program *p = ts_example();
    static const char *const names[] = {
        "..", ".", "", "a/b", "a\\\\b", "weight:", "../../etc", "/etc/passwd",
    };
    size_t i;

    write_to(t_path(dir, "e.mlpackage"), p);
    mil_program_free(p);
    manifest("{", "{ \"extra\": 1,", NULL);
    manifest("1.0.0", "0.9.9", NULL);
    manifest("1.0.0", "1.1.0", "fileFormatVersion '1.1.0', supported up to");
    manifest("1.0.0", "2.0.0", "supported up to 1.0.0");
    manifest("1.0.0", "1.0", "is not of the form 1.0.0");
    manifest("1.0.0", "1.0.0.0", "is not of the form 1.0.0");
    manifest("1.0.0", "1.0.x", "is not of the form 1.0.0");
    manifest("\"fileFormatVersion\"", "\"other\"",
             "'fileFormatVersion' is "
             "absent, not a string");
    manifest("\"rootModelIdentifier\": \"", "\"rootModelIdentifier\": \"0",
             "names no item");
    manifest("\"itemInfoEntries\": {", "\"itemInfoEntries\": [], \"x\": {",
             "'itemInfoEntries' is an array, not an object");
    manifest("\"path\"", "\"pth\"", "'path' is absent, not a string");
    manifest("\"author\": \"com.apple.CoreML\"", "\"author\": 7",
             "'author' is a number, not a string");
    manifest("\"path\": \"com.apple.CoreML/model.mlmodel\"",
             "\"path\": \"com.apple.CoreML/other\"", "is not author");
    manifest("\"path\": \"com.apple.CoreML/model.mlmodel\"",
             "\"path\": \"../model.mlmodel\"", "is not author");
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char name[128], both[256];

        snprintf(name, sizeof(name), "\"name\": \"%s\"", names[i]);
        snprintf(both, sizeof(both),
                 "%s,\n            \"path\": \"com.apple.CoreML/%s\"", name,
                 names[i]);
        manifest("\"name\": \"model.mlmodel\",\n            \"path\": "
                 "\"com.apple.CoreML/model.mlmodel\"",
                 both, "is not author");
    }
    manifest("\"name\": \"model.mlmodel\",\n            \"path\": "
             "\"com.apple.CoreML/model.mlmodel\"",
             "\"name\": \"gone\",\n            \"path\": "
             "\"com.apple.CoreML/gone\"",
             "is listed and does not exist");
    manifest("{", "", "Manifest.json");
}

Test(package, weights_that_are_not_listed)
{
    const char *path = place("e.mlpackage");
    struct mil_program *p = ts_example();
    struct err e = ERR_INIT;
    struct buf b = BUF_INIT;
    char *at;

    write_to(path, p);
    mil_program_free(p);
    ts_read(&b, t_path(path, "Manifest.json"));
    at = strstr(b.data, "\"name\": \"weights\"");
    memcpy(at, "\"name\": \"wEights\"", 17);
    at = strstr(b.data, "CoreML/weights\"");
    memcpy(at, "CoreML/wEights\"", 15);
    t_write(t_path(path, "Manifest.json"), b.data, b.len);
    buf_release(&b);
    cr_assert_null(pkg_open(path, &e));
    cr_assert_not_null(strstr(e.text, "but the package has no weights"), "%s",
                       e.text);
}

/* The name of the weight file in the model, all of one length. */
Test(package, weight_file_names)
{
    static const struct {
        const char *name, *text; /* NULL: read */
    } all[] = {
        { "@model_path/weights/weight.bin", NULL },
        { "@model_path/other_1/weight.bin", NULL },
        { "@model_path/../abcd/weight.bin", "is no name that the format" },
        { "/etc/model_path_12/weight.bin", "is no name that the format" },
        { "@model_path/weights//eight.bin", "is no name that the format" },
        { "@model_path/weights/weight.bi/", "is no name that the format" },
        { "@model_path/weights/we:ght.bin", "is no name that the format" },
        { "@model_path/weights\\weight.bin", "is no name that the format" },
        { "@model_path/weights/absent.bin", "absent.bin" },
    };
    const char *path = place("e.mlpackage"),
               *model = place("e.mlpackage/" MODEL);
    struct mil_program *p = ts_example();
    struct buf b = BUF_INIT;
    size_t i;

    write_to(path, p);
    mil_program_free(p);
    ts_read(&b, model);
    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct err e = ERR_INIT;
        struct pkg *k;
        size_t at, n = strlen(all[0].name);
        struct buf bent = BUF_INIT;

        buf_add(&bent, b.data, b.len);
        for (at = 0; at + n <= bent.len; at++)
            if (memcmp(bent.data + at, all[0].name, n) == 0)
                memcpy(bent.data + at, all[i].name,
                       strlen(all[i].name) < n ? strlen(all[i].name) : n);
        t_write(model, bent.data, bent.len);
        buf_release(&bent);
        k = pkg_open(path, &e);
        cr_assert_eq(k == NULL, all[i].text != NULL, "%s", all[i].name);
        if (!k)
            cr_assert_not_null(strstr(e.text, all[i].text), "%s", e.text);
        pkg_close(k);
    }
    buf_release(&b);
}

static uint64_t told;

static void tell(void *cookie, const char *stage, uint64_t done, uint64_t total,
                 const char *unit)
{
    (void)cookie;
    cr_assert_str_eq(stage, "weights");
    cr_assert_str_eq(unit, "bytes");
    cr_assert_eq(total, 100);
    cr_assert_geq(done, told);
    told = done;
}

Test(package, progress_and_handles)
{
    struct log log = { LOG_ERROR, NULL, tell, NULL, NULL };
    struct pkg_options o = { &log, "weights", 7, 100 };
    const char *path = place("e.mlpackage"), *file;
    struct mil_program *p = ts_example();
    struct err e = ERR_INIT;
    struct mil_data none = { 0 };
    uint64_t offset;
    struct pkg *k;

    cr_assert_eq(pkg_write(path, p, &o, NULL, &e), 0, "%s", e.text);
    cr_assert_eq(told, 7 + 4 * 32, "bytes in memory count each time");
    k = open_ok(path);
    cr_assert_str_eq(pkg_path(k), path);
    cr_assert_not(pkg_blob(k, &none, &file, &offset));
    cr_assert_not(pkg_blob(k, NULL, &file, &offset));
    pkg_close(k);
    mil_program_free(p);
}

/* A read outside a constant is refused, whatever lies there. */
Test(package, reads_stay_inside)
{
    const char *path = place("e.mlpackage");
    struct mil_program *p = ts_example();
    const struct mil_function *f;
    const struct mil_data *d;
    struct err e = ERR_INIT;
    uint8_t room[64];
    struct pkg *k;

    write_to(path, p);
    mil_program_free(p);
    k = open_ok(path);
    f = pkg_program(k)->functions[0];
    d = mil_arg_const(f, &f->ops[0], 0)->data;
    cr_assert_eq(d->read(d->cookie, 0, room, 32, &e), 0);
    cr_assert_eq(room[0], 0x50);
    cr_assert_eq(d->read(d->cookie, 31, room, 1, &e), 0);
    cr_assert_eq(room[0], 0x9d);
    cr_assert_eq(d->read(d->cookie, 1, room, 32, &e), -1);
    cr_assert_str_eq(e.text, "bytes 1 + 32 of a constant of 32");
    err_reset(&e);
    cr_assert_eq(d->read(d->cookie, UINT64_MAX, room, 2, &e), -1);
    pkg_close(k);
}

/* ---- other trees ---- */

Test(package, other_kinds_of_path)
{
    struct err e = ERR_INIT;

    cr_assert_null(pkg_open(t_path(dir, "absent.mlpackage"), &e));
    cr_assert_not_null(strstr(e.text, "absent.mlpackage"), "%s", e.text);
    err_reset(&e);
    cr_assert_eq(io_mkdir(t_path(dir, "x.mlmodelc"), &e), 0);
    cr_assert_null(pkg_open(t_path(dir, "x.mlmodelc"), &e));
    cr_assert_not_null(strstr(e.text, "x.mlmodelc/coremldata.bin' does not "
                                      "exist"),
                       "%s", e.text);
    err_reset(&e);
    cr_assert_null(pkg_open(dir, &e));
    cr_assert_not_null(strstr(e.text, "a directory without Manifest.json"),
                       "%s", e.text);
    err_reset(&e);
    t_write_text(t_path(dir, "t.mlmodel"), "version https://git-lfs.github.com/"
                                           "spec/v1\noid sha256:0\nsize 5\n");
    cr_assert_null(pkg_open(t_path(dir, "t.mlmodel"), &e));
    cr_assert_not_null(strstr(e.text, "git-lfs"), "%s", e.text);
}

/* A trailing slash, and a weight file cut short under a sound model. */
Test(package, cut_weights)
{
    const char *path = place("e.mlpackage/");
    struct mil_program *p = ts_example();
    struct buf b = BUF_INIT;
    size_t n;

    write_to(t_path(dir, "e.mlpackage"), p);
    pkg_close(open_ok(path));
    ts_read(&b, t_path(path, WEIGHTS));
    for (n = 0; n < b.len; n++) {
        struct err e = ERR_INIT;

        t_write(t_path(path, WEIGHTS), b.data, n);
        cr_assert_null(pkg_open(path, &e), "%zu", n);
        cr_assert_neq(e.code, ERR_OK);
    }
    buf_release(&b);
    mil_program_free(p);
}

/* Changes one byte in place. */
static void poke(const char *path, size_t at, int byte)
{
    FILE *f = fopen(path, "r+b");

    cr_assert_not_null(f);
    cr_assert_eq(fseek(f, (long)at, SEEK_SET), 0);
    cr_assert_neq(fputc(byte & 0xff, f), EOF);
    cr_assert_eq(fclose(f), 0);
}

/* One bit of the model or the weights turned: refused or read, no more. */
Test(package, bit_flips)
{
    static const char *const files[] = { MODEL, WEIGHTS };
    const char *path = place("e.mlpackage");
    struct mil_program *p = ts_example();
    size_t i, j, f;

    write_to(path, p);
    mil_program_free(p);
    for (f = 0; f < 2; f++) {
        char name[1024];
        struct buf b = BUF_INIT;

        snprintf(name, sizeof(name), "%s/%s", path, files[f]);
        ts_read(&b, name);
        for (i = 0; i < b.len; i++)
            for (j = i % 3; j < 8; j += 3) {
                struct err e = ERR_INIT;
                struct pkg *k;

                poke(name, i, b.data[i] ^ 1 << j);
                k = pkg_open(path, &e);
                if (!k)
                    cr_assert_neq(e.text[0], '\0');
                pkg_close(k);
                poke(name, i, b.data[i]);
            }
        buf_release(&b);
    }
    pkg_close(open_ok(path));
}

/* Every allocation of a write and of a read may fail. */
Test(package, memory_runs_out)
{
    const char *path = place("m.mlpackage");
    struct mil_program *p = ts_example();
    long n;
    int done = 0;

    for (n = 0; !done && n < 100000; n += 31) {
        struct err e = ERR_INIT;
        struct err ignored = ERR_INIT;

        cr_assert_eq(io_remove_tree(path, &ignored), 0);
        mem_fail_at(n, true);
        done = pkg_write(path, p, NULL, NULL, &e) == 0;
        mem_fail_at(-1, false);
        if (!done)
            cr_assert_eq(e.code, ERR_NOMEM, "%ld: %s", n, e.text);
    }
    cr_assert(done);
    for (n = 0, done = 0; !done && n < 100000; n++) {
        struct err e = ERR_INIT;
        struct pkg *k;

        mem_fail_at(n, true);
        k = pkg_open(path, &e);
        mem_fail_at(-1, false);
        done = k != NULL;
        if (!done)
            cr_assert_eq(e.code, ERR_NOMEM, "%ld: %s", n, e.text);
        pkg_close(k);
    }
    cr_assert(done);
    mil_program_free(p);
}
