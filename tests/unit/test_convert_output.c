/*
 * Where a package goes: never over the model, never over what is not ours,
 * whole or not at all.
 */
#define _DEFAULT_SOURCE /* mount */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/mount.h>
#endif

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "t_conv.h"

static char before[20000]; /* the model as it was */

static void set_up(void)
{
    struct t_model m = t_model_tiny("qwen3");

    t_model_write(&m, "m");
    t_conv_put("m/tokenizer.json",
               "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 2}}}");
    snprintf(before, sizeof before, "%s", t_conv_hash("m"));
}

TestSuite(output, .init = set_up, .fini = t_conv_clean);

static void refused(const struct cv_options *o, const char *output,
                    const char *says)
{
    char names[4096];
    struct err e = ERR_INIT;

    snprintf(names, sizeof names, "%s", t_conv_list(""));
    cr_expect_eq(t_conv_try(o, output, &e), -1, "%s was written", output);
    cr_expect_eq((int)e.code, (int)ERR_USAGE, "%s: %s", output, e.text);
    cr_expect(strstr(e.text, says), "%s: '%s' lacks '%s'", output, e.text,
              says);
    cr_expect_str_eq(t_conv_list(""), names, "%s left something", output);
}

static void model_is_whole(void)
{
    cr_expect_str_eq(t_conv_hash("m"), before);
}

/* ---- over the model ---- */

Test(output, is_the_model_or_around_it)
{
    for (int force = 0; force < 2; force++) {
        struct cv_options o = t_conv_options("m");

        o.force = force;
        refused(&o, "m", "is or holds the model");
        refused(&o, "m/", "is or holds the model");
        refused(&o, "m/.", "is or holds the model");
        refused(&o, "m/../m", "is or holds the model");
        refused(&o, "m/out", "inside the model");
        refused(&o, "m/a/b/out", "inside the model");
        refused(&o, "", "is or holds the model"); /* its parent */
        refused(&o, "/", "is or holds the model");
        model_is_whole();
    }
}

Test(output, leads_to_the_model_by_links)
{
    struct cv_options o = t_conv_options("m");

    o.force = true;
    cr_assert_eq(symlink("m", t_conv_path("link")), 0);
    cr_assert_eq(symlink("link", t_conv_path("link2")), 0);
    refused(&o, "link", "is or holds the model");
    refused(&o, "link2", "is or holds the model");
    refused(&o, "link2/x", "inside the model");
    refused(&o, "gone/../m/x", "goes through '..'");
    refused(&o, "gone/a/..", "goes through '..'");
    o = t_conv_options("link2");
    o.force = true;
    refused(&o, "m", "is or holds the model");
    refused(&o, "m/x", "inside the model");
    model_is_whole();
}

/* A package of ours, into which a file of the model moves and is linked. */
static void move_into_package(const char *file)
{
    struct cv_options o = t_conv_options("m");
    char from[100], to[300];

    t_conv_run(&o, "pkg");
    snprintf(from, sizeof from, "m/%s", file);
    snprintf(to, sizeof to, "pkg/%s", file);
    unlink(t_conv_path(to));
    cr_assert_eq(rename(t_conv_path(from), t_conv_path(to)), 0);
    snprintf(to, sizeof to, "../pkg/%s", file);
    cr_assert_eq(symlink(to, t_conv_path(from)), 0);
}

Test(output, holds_a_linked_shard)
{
    struct cv_options o = t_conv_options("m");

    o.force = true;
    move_into_package("model.safetensors");
    refused(&o, "pkg", "holds the model's file");
    cr_expect(io_exists(t_conv_path("pkg/model.safetensors")));
}

Test(output, holds_a_linked_tokenizer)
{
    struct cv_options o = t_conv_options("m");

    o.force = true;
    move_into_package("tokenizer.json");
    refused(&o, "pkg", "holds the model's file");
    cr_expect(io_exists(t_conv_path("pkg/tokenizer.json")));
}

Test(output, holds_the_prompts)
{
    struct cv_options o = t_conv_options("m");

    t_conv_run(&o, "pkg");
    o.force = true;
    o.tokens = t_conv_path("pkg/tokenizer.json");
    refused(&o, "pkg", "holds the input file");
}

Test(output, is_a_hard_link_of_a_shard)
{
    struct cv_options o = t_conv_options("m");

    o.force = true;
    cr_assert_eq(link(t_conv_path("m/model.safetensors"), t_conv_path("h")), 0);
    refused(&o, "h", "");
    model_is_whole();
}

/* ---- what exists ---- */

Test(output, exists)
{
    struct cv_options o = t_conv_options("m");

    cr_assert_eq(mkdir(t_conv_path("d"), 0777), 0);
    t_conv_put("f", "x");
    cr_assert_eq(symlink("nowhere", t_conv_path("l")), 0);
    refused(&o, "d", "exists; choose another -o or pass --force");
    refused(&o, "f", "exists; choose another -o or pass --force");
    refused(&o, "l", "exists; choose another -o or pass --force");
    o.force = true;
    refused(&o, "d", "is no package");
    refused(&o, "f", "is no folder");
    refused(&o, "l", "is no folder");
    refused(&o, "nowhere/.", "no name for a new directory");
}

Test(output, force_replaces_a_package_of_ours_alone)
{
    struct cv_options o = t_conv_options("m");
    char *text;

    t_conv_run(&o, "pkg");
    o.lut_ffn.bits = 8;
    o.force = true;
    t_conv_run(&o, "pkg");
    cr_expect(strstr(t_conv_list("pkg"), "lut8"), "%s", t_conv_list("pkg"));
    t_conv_run(&o, "new"); /* nothing to replace is fine */
    t_conv_put("pkg/notes.txt", "mine");
    refused(&o, "pkg", "holds 'notes.txt', which is no part of a package");
    unlink(t_conv_path("pkg/notes.txt"));
    text = t_conv_text("pkg/meta.yaml", NULL);
    *strstr(text, "\n# written") = '\0';
    t_conv_put("pkg/meta.yaml", text);
    mem_free(text);
    refused(&o, "pkg", "is a package of another program");
    t_conv_put("pkg/meta.yaml", "model_info: {}\n");
    refused(&o, "pkg", "is no package");
    cr_expect(strstr(t_conv_list("pkg"), "lut8"));
}

Test(output, force_replaces_a_link_and_not_its_target)
{
    struct cv_options o = t_conv_options("m");
    struct stat st;

    t_conv_run(&o, "pkg");
    cr_assert_eq(symlink("pkg", t_conv_path("l")), 0);
    o.force = true;
    o.lut_ffn.bits = 8;
    t_conv_run(&o, "l");
    cr_assert_eq(lstat(t_conv_path("l"), &st), 0);
    cr_expect(S_ISDIR(st.st_mode));
    cr_expect(strstr(t_conv_list("pkg"), "lut4"));
}

Test(output, makes_parents_and_takes_slashes)
{
    struct cv_options o = t_conv_options("m/");

    t_conv_run(&o, "a/b/c///");
    cr_expect(io_exists(t_conv_path("a/b/c/meta.yaml")));
    cr_expect_str_eq(t_conv_list("a/b"), "c");
}

Test(output, obeys_the_umask)
{
    struct cv_options o = t_conv_options("m");
    char cmd[700];

    umask(022);
    t_conv_run(&o, "open");
    snprintf(cmd, sizeof cmd, "test -z \"$(find '%s' ! -perm -044)\"",
             t_conv_path("open"));
    cr_expect_eq(system(cmd), 0);
    umask(077);
    t_conv_run(&o, "closed");
    snprintf(cmd, sizeof cmd, "test -z \"$(find '%s' -perm /077)\"",
             t_conv_path("closed"));
    cr_expect_eq(system(cmd), 0);
    umask(022);
}

/* ---- all or nothing ---- */

static long polls_left;

static int give_up(void *cookie)
{
    (void)cookie;
    return polls_left-- <= 0;
}

static int keep_it(void *cookie, const char *dir, bool *keep, struct err *e)
{
    (void)cookie;
    (void)dir;
    (void)e;
    *keep = true;
    return 0;
}

static int convert(const struct cv_options *o, const char *output,
                   const struct cv_verify *v, struct err *e)
{
    struct cv_options own = *o;
    struct cv_job j;
    int rc;

    own.output = t_conv_path(output);
    cr_assert_eq(cv_job_open(&j, &own, false, e), 0, "%s", e->text);
    rc = cv_convert(&j, v, e);
    cv_job_close(&j);
    return rc;
}

Test(output, interrupted_at_any_moment)
{
    struct log log = { .level = LOG_ERROR, .cancelled = give_up };
    struct cv_options o = t_conv_options("m");
    const struct cv_verify v = { keep_it, NULL };
    long k = 0;

    o.log = &log;
    o.chunks = 2;
    for (;; k += 1 + k / 6) {
        struct err e = ERR_INIT;

        polls_left = k;
        if (!convert(&o, "x/out", &v, &e))
            break;
        cr_assert_eq((int)e.code, (int)ERR_CANCELLED, "%s", e.text);
        cr_assert_str_eq(t_conv_list(""), "m", "poll %ld left %s", k,
                         t_conv_list(""));
        cr_assert_lt(k, 1000);
    }
    cr_expect_geq(k, 5, "%ld polls", k);
    cr_expect(io_exists(t_conv_path("x/out/meta.yaml")));
    model_is_whole();
}

static void touch(void)
{
    struct timespec t[2] = { { 1000, 1 }, { 1000, 1 } };

    cr_assert_eq(utimensat(AT_FDCWD, t_conv_path("m/model.safetensors"), t, 0),
                 0);
}

static void touch_on_progress(void *cookie, const char *stage, uint64_t done,
                              uint64_t total, const char *unit)
{
    (void)cookie;
    (void)stage;
    (void)done;
    (void)total;
    (void)unit;
    touch();
}

static int touch_in_gate(void *cookie, const char *dir, bool *keep,
                         struct err *e)
{
    touch();
    return keep_it(cookie, dir, keep, e);
}

Test(output, the_model_changes_while_it_is_read)
{
    struct log log = { .level = LOG_ERROR, .progress = touch_on_progress };
    const struct cv_verify v = { touch_in_gate, NULL };
    struct cv_options o = t_conv_options("m");
    struct err e = ERR_INIT;

    o.log = &log;
    cr_expect_eq(convert(&o, "out", NULL, &e), -1);
    cr_expect_eq((int)e.code, (int)ERR_INPUT);
    cr_expect(strstr(e.text, "m/model.safetensors' was written to"), "%s",
              e.text);
    cr_expect_str_eq(t_conv_list(""), "m");
    err_reset(&e);
    o.log = NULL;
    cr_assert_eq(unlink(t_conv_path("m/model.safetensors")), 0);
    set_up();
    cr_expect_eq(convert(&o, "out", &v, &e), -1);
    cr_expect(strstr(e.text, "was written to"), "%s", e.text);
    cr_expect_str_eq(t_conv_list(""), "m");
}

static int look_and_drop(void *cookie, const char *dir, bool *keep,
                         struct err *e)
{
    (void)e;
    *(bool *)cookie = io_exists(t_conv_path("out"));
    cr_expect(strstr(t_conv_list(dir), "meta.yaml"), "%s", t_conv_list(dir));
    *keep = false;
    return 0;
}

static int fail(void *cookie, const char *dir, bool *keep, struct err *e)
{
    (void)cookie;
    (void)dir;
    (void)keep;
    return err_set(e, ERR_MISMATCH, "the judge fell ill");
}

Test(output, is_judged_before_it_appears)
{
    bool early = true;
    const struct cv_verify drop = { look_and_drop, &early };
    const struct cv_verify ill = { fail, NULL };
    struct cv_options o = t_conv_options("m");
    struct err e = ERR_INIT;

    cr_expect_eq(convert(&o, "out", &drop, &e), 0, "%s", e.text);
    cr_expect(!early);
    cr_expect_str_eq(t_conv_list(""), "m");
    cr_expect_eq(convert(&o, "out", &ill, &e), -1);
    cr_expect_eq((int)e.code, (int)ERR_MISMATCH);
    cr_expect_str_eq(t_conv_list(""), "m");
}

/* A replaced package stays until its successor is complete. */
Test(output, a_failure_keeps_the_old_package)
{
    const struct cv_verify ill = { fail, NULL };
    struct cv_options o = t_conv_options("m");
    struct err e = ERR_INIT;
    char old[20000];

    t_conv_run(&o, "out");
    snprintf(old, sizeof old, "%s", t_conv_hash("out"));
    o.force = true;
    o.lut_ffn.bits = 8;
    cr_expect_eq(convert(&o, "out", &ill, &e), -1);
    cr_expect_str_eq(t_conv_hash("out"), old);
    cr_expect_str_eq(t_conv_list(""), "m out");
}

/* Every allocation of a conversion fails once. */
Test(output, out_of_memory_anywhere, .timeout = 120)
{
    struct cv_options o = t_conv_options("m");
    long n, step = 1;

    for (n = 0;; n += step) {
        struct err e = ERR_INIT;
        int rc;

        mem_fail_at(n, false);
        rc = t_conv_try(&o, "out", &e);
        mem_fail_at(-1, false);
        if (!rc)
            break;
        cr_assert_eq((int)e.code, (int)ERR_NOMEM, "%ld: %s", n, e.text);
        cr_assert_str_eq(t_conv_list(""), "m", "%ld: %s", n, t_conv_list(""));
        step = 1 + n / 60; /* there are thousands, all alike */
    }
    cr_expect_gt(n, 300, "%ld", n);
}

#if defined(__linux__)
Test(output, full_disk)
{
    struct cv_options o = t_conv_options("m");
    struct err e = ERR_INIT;

    cr_assert_eq(mkdir(t_conv_path("small"), 0777), 0);
    if (mount("none", t_conv_path("small"), "tmpfs", 0, "size=64k") != 0)
        cr_skip_test("mounting a small disk needs root");
    cr_expect_eq(t_conv_try(&o, "small/a/out", &e), -1);
    cr_expect_eq((int)e.code, (int)ERR_IO);
    cr_expect(strstr(e.text, "the package needs about") &&
                  strstr(e.text, "free"),
              "%s", e.text);
    cr_expect_str_eq(t_conv_list("small"), "");
    cr_assert_eq(umount(t_conv_path("small")), 0);
}
#endif
