/*
 * The forms of a package: which are written, that their weights lie on the
 * disk once, that they compute the same to the bit, and that the gate passes
 * no package whose forms differ.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/gate.h"
#include "converter/package_run.h"
#include "t_conv.h"
#include "t_gate.h"
#include "t_links.h"

#define BOTH (PACKAGE_COMPILED | PACKAGE_SOURCE)
#define HEAD "qwen_lm_head_lut4"
#define CHUNK "qwen_FFN_PF_lut4_chunk_01of01"
#define WEIGHTS ".mlpackage/Data/com.apple.CoreML/weights/weight.bin"
#define COMPILED_WEIGHTS ".mlmodelc/weights/weight.bin"

static const char *const stems[] = { "qwen_embeddings", CHUNK, HEAD };

static void set_up(void)
{
    struct t_model m = t_model_tiny("qwen3");

    t_model_write(&m, "m");
}

TestSuite(emit, .init = set_up, .fini = t_conv_clean);

static void convert(const char *to, enum cv_emit emit)
{
    struct cv_options o = t_conv_options("m");

    o.emit = emit;
    t_conv_run(&o, to);
}

static const char *of(const char *pack, const char *stem, const char *end)
{
    char name[300];

    snprintf(name, sizeof(name), "%s/%s%s", pack, stem, end);
    return t_conv_path(name);
}

static struct stat about(const char *path)
{
    struct stat st;

    cr_assert_eq(stat(path, &st), 0, "%s", path);
    return st;
}

/* ---- what is written ---- */

Test(emit, both_forms_by_default)
{
    struct cv_options o;

    cv_options_init(&o);
    cr_expect_eq((int)o.emit, (int)CV_EMIT_BOTH);
}

Test(emit, the_forms_that_are_asked_for)
{
    convert("b", CV_EMIT_BOTH);
    convert("c", CV_EMIT_COMPILED);
    convert("p", CV_EMIT_PACKAGE);
    for (size_t i = 0; i < 3; i++) {
        cr_expect(io_is_dir(of("b", stems[i], ".mlmodelc")));
        cr_expect(io_is_dir(of("b", stems[i], ".mlpackage")));
        cr_expect(io_is_dir(of("c", stems[i], ".mlmodelc")));
        cr_expect_not(io_exists(of("c", stems[i], ".mlpackage")));
        cr_expect(io_is_dir(of("p", stems[i], ".mlpackage")));
        cr_expect_not(io_exists(of("p", stems[i], ".mlmodelc")));
        /* Alone or beside the other, a form has the same bytes. */
        cr_expect_str_empty(t_conv_differ(of("b", stems[i], ".mlmodelc"),
                                          of("c", stems[i], ".mlmodelc"),
                                          NULL));
        cr_expect_str_empty(t_conv_differ(of("b", stems[i], ".mlpackage"),
                                          of("p", stems[i], ".mlpackage"),
                                          NULL));
        cr_expect_eq(about(of("c", stems[i], COMPILED_WEIGHTS)).st_nlink, 1);
    }
}

Test(emit, weights_lie_on_the_disk_once)
{
    convert("b", CV_EMIT_BOTH);
    for (size_t i = 0; i < 3; i++) {
        struct stat a = about(of("b", stems[i], WEIGHTS));
        struct stat b = about(of("b", stems[i], COMPILED_WEIGHTS));

        cr_expect_eq(a.st_ino, b.st_ino);
        cr_expect_eq(a.st_nlink, 2);
    }
}

/* ---- without hard links ---- */

static void note(void *cookie, enum log_level level, const char *text)
{
    if (level == LOG_WARN)
        snprintf(cookie, 300, "%s", text);
}

Test(emit, weights_are_copied_where_links_fail)
{
    char said[300] = "";
    struct log log = { .line = note, .cookie = said, .level = LOG_WARN };
    struct cv_options o = t_conv_options("m");
    struct err e = ERR_INIT;
    struct cv_job j;
    uint64_t copied = 0, linked, bytes;

    convert("b", CV_EMIT_BOTH);
    linked = t_conv_bytes("b");
    if (!t_links_forbid())
        cr_skip_test("system calls cannot be filtered");
    cr_expect_not(io_takes_links(t_conv_dir()));
    o.output = t_conv_path("n");
    o.log = &log;
    cr_assert_eq(cv_job_open(&j, &o, false, &e), 0, "%s", e.text);
    cr_assert_eq(cv_convert(&j, NULL, &e), 0, "%s", e.text);
    for (size_t i = 0; i < 3; i++) {
        struct stat a = about(of("n", stems[i], WEIGHTS));
        struct stat b = about(of("n", stems[i], COMPILED_WEIGHTS));

        cr_expect_neq(a.st_ino, b.st_ino);
        cr_expect_eq(j.parts[i].copied_weights, (uint64_t)b.st_size);
        copied += (uint64_t)b.st_size;
    }
    cr_expect(strstr(said, "takes no hard links: the weights are stored in "
                           "both forms"),
              "%s", said);
    bytes = t_conv_bytes("n");
    cr_expect_eq(bytes, linked + copied);
    cr_expect_lt(bytes > j.disk_bytes ? bytes - j.disk_bytes
                                      : j.disk_bytes - bytes,
                 bytes / 100, "the plan counts them twice");
    cr_expect_str_empty(t_conv_differ("b", "n", "meta.yaml"));
    cv_job_close(&j);
}

Test(emit, compiled_alone_needs_no_link)
{
    struct stat st;

    if (!t_links_forbid())
        cr_skip_test("system calls cannot be filtered");
    convert("c", CV_EMIT_COMPILED);
    st = about(of("c", HEAD, COMPILED_WEIGHTS));
    cr_expect_eq(st.st_nlink, 1);
    cr_expect_not(io_exists(of("c", HEAD, ".mlpackage")));
}

/* ---- the gate ---- */

static enum gate_verdict judge(const char *pack, const char *logits,
                               struct gate_result *r)
{
    struct err e = ERR_INIT;
    struct ckpt c;
    struct gate_options g = { .package = t_conv_path(pack),
                              .ckpt = &c,
                              .logits = logits ? t_conv_path(logits) : NULL,
                              .tokens = t_conv_path("ids"),
                              .profile = RUN_FP16 };

    t_conv_put("ids", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20\n");
    cr_assert_eq(ckpt_open(&c, t_conv_path("m"), 0, &e), 0, "%s", e.text);
    cr_assert_eq(gate_run(&g, r, &e), 0, "%s", e.text);
    ckpt_close(&c);
    return r->verdict;
}

static void same_file(const char *a, const char *b)
{
    size_t n, m;
    char *x = t_conv_text(a, &n), *y = t_conv_text(b, &m);

    cr_assert_eq(n, m);
    cr_expect_eq(memcmp(x, y, n), 0, "%s and %s", a, b);
    mem_free(x);
    mem_free(y);
}

/* Each form on its own, and both: every logit and figure is the same. */
Test(emit, forms_compute_the_same_to_the_bit)
{
    struct gate_result b, c, p;

    convert("b", CV_EMIT_BOTH);
    convert("c", CV_EMIT_COMPILED);
    convert("p", CV_EMIT_PACKAGE);
    cr_expect_eq(judge("b", "b.st", &b), GATE_PASS, "%s", b.reason);
    cr_expect_eq(judge("c", "c.st", &c), GATE_PASS, "%s", c.reason);
    cr_expect_eq(judge("p", "p.st", &p), GATE_PASS, "%s", p.reason);
    cr_expect_eq(b.forms, BOTH);
    cr_expect_eq(c.forms, PACKAGE_COMPILED);
    cr_expect_eq(p.forms, PACKAGE_SOURCE);
    same_file("b.st", "c.st");
    same_file("b.st", "p.st");
    cr_expect_eq(memcmp(&b.loss, &p.loss, sizeof(b.loss)), 0);
    cr_expect_eq(memcmp(&c.bytes, &p.bytes, sizeof(c.bytes)), 0);
    cr_expect(t_gate_check(&b, "forms_differ")->pass);
    cr_expect_null(t_gate_check(&c, "forms_differ"));
    cr_expect_null(t_gate_check(&p, "forms_differ"));
    cr_expect_null(t_gate_check(&b, "f32_forms_differ"));
}

/* A copy whose files are all its own. */
static void fresh(void)
{
    char command[1500];
    struct err e = ERR_INIT;

    cr_assert_eq(io_remove_tree(t_conv_path("x"), &e), 0);
    snprintf(command, sizeof(command), "cp -r '%s' '%s'", t_conv_path("b"),
             t_conv_path("x"));
    cr_assert_eq(system(command), 0);
}

/* Replaces the first `from` in a file of x by `to`, which is as long. */
static void plant(const char *stem, const char *file, const char *from,
                  const char *to, size_t n)
{
    const char *path = of("x", stem, file);
    size_t len, at = 0;
    char *text = t_conv_text(path, &len);
    FILE *f = fopen(path, "r+b");

    cr_assert_not_null(f, "%s", path);
    while (at + n <= len && memcmp(text + at, from, n) != 0)
        at++;
    cr_assert_leq(at + n, len, "%s has no '%s'", path, from);
    cr_assert_eq(fseek(f, (long)at, SEEK_SET), 0);
    cr_assert_eq(fwrite(to, 1, n, f), n);
    cr_assert_eq(fclose(f), 0);
    mem_free(text);
}

static void flip(const char *stem, const char *file, long at)
{
    FILE *f = fopen(of("x", stem, file), "r+b");
    int c;

    cr_assert_not_null(f);
    cr_assert_eq(fseek(f, at, SEEK_SET), 0);
    c = fgetc(f);
    cr_assert_geq(c, 0);
    cr_assert_eq(fseek(f, at, SEEK_SET), 0);
    cr_assert_eq(fputc(c ^ 1, f), c ^ 1);
    cr_assert_eq(fclose(f), 0);
}

static void fails(const char *says)
{
    struct gate_result r;
    struct err e = ERR_INIT;
    char *json;

    cr_expect_eq(judge("x", NULL, &r), GATE_FAIL, "%s", says);
    cr_expect(strstr(r.reason, says), "'%s' lacks '%s'", r.reason, says);
    cr_expect(strstr(r.reason, "are not one model"), "%s", r.reason);
    cr_expect_eq(r.forms, BOTH);
    cr_expect_eq(r.positions, 0, "nothing is run");
    cr_expect_not(t_gate_check(&r, "forms_differ")->pass);
    cr_assert_eq(gate_write(t_conv_path("x"), &r, &e), 0, "%s", e.text);
    json = t_conv_text("x/gate.json", NULL);
    cr_expect(strstr(json, "\"verdict\": \"FAIL\""));
    cr_expect(strstr(json, "\"forms\": [\"mlmodelc\", \"mlpackage\"]"));
    cr_expect(strstr(json, "\"cosine_min\": null"), "no figure is made up");
    cr_expect_null(strstr(json, t_conv_dir()), "no path of this machine");
    mem_free(json);
    fresh();
}

static void lose(const char *stem, const char *form)
{
    struct err e = ERR_INIT;

    cr_assert_eq(io_remove_tree(of("x", stem, form), &e), 0, "%s", e.text);
}

/* What one part lacks was not judged of the package. */
Test(emit, forms_that_some_parts_lack)
{
    struct gate_result r;
    struct buf text = BUF_INIT;

    convert("b", CV_EMIT_BOTH);
    fresh();
    lose(HEAD, ".mlpackage");
    cr_expect_eq(judge("x", NULL, &r), GATE_PASS, "%s", r.reason);
    cr_expect_eq(r.forms, PACKAGE_COMPILED);
    gate_text(&r, &text);
    cr_expect_null(strstr(buf_text(&text), "both forms"));
    lose(CHUNK, ".mlmodelc");
    cr_expect_eq(judge("x", NULL, &r), GATE_PASS, "%s", r.reason);
    cr_expect_eq(r.forms, 0u);
    buf_release(&text);
}

Test(emit, the_gate_fails_forms_that_differ)
{
    struct gate_result r;

    convert("b", CV_EMIT_BOTH);
    fresh();
    cr_expect_eq(judge("x", NULL, &r), GATE_PASS, "copies: %s", r.reason);
    cr_expect_eq(r.forms, BOTH);
    /* A byte of weights, in either form. */
    flip(CHUNK, COMPILED_WEIGHTS, 3000);
    fails("their weights in 'weights/weight.bin' differ at byte 3000");
    flip(HEAD, WEIGHTS, 1000);
    fails("their weights in 'weights/weight.bin' differ at byte 1000");
    /* An operation, an inline constant, the description. */
    plant(CHUNK, ".mlmodelc/model.mil", " = add(", " = mul(", 7);
    fails("their programs differ: ");
    plant(CHUNK, ".mlmodelc/model.mil", "([1, 1])]", "([1, 2])]", 9);
    fails("their programs differ: ");
    plant(HEAD, ".mlmodelc/coremldata.bin", "com.anemll", "com.anemxx", 10);
    fails("the descriptions of their inputs, outputs or metadata differ");
}

/* What both forms share is no difference of forms: the weights' own checks
 * see it. */
Test(emit, a_fault_in_shared_weights_is_no_difference)
{
    struct gate_result r;
    char command[1500];

    convert("b", CV_EMIT_BOTH);
    snprintf(command, sizeof(command), "cp -a '%s' '%s'", t_conv_path("b"),
             t_conv_path("x"));
    cr_assert_eq(system(command), 0);
    flip("qwen_embeddings", COMPILED_WEIGHTS, 1000);
    cr_expect_eq(judge("x", NULL, &r), GATE_FAIL);
    cr_expect(t_gate_check(&r, "forms_differ")->pass);
    cr_expect(strstr(r.reason, "weights_differ"), "%s", r.reason);
}
