/*
 * A whole package by ANEMLL's call order: what must agree with what, and what
 * a package or a caller may not do.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/package_run.h"
#include "t_conv.h"

static const struct run_options f32 = { .profile = RUN_F32 };

/* A package "pkg": vocabulary 64, context 64, batch 16, two chunks. */
static void set_up(void)
{
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    o.chunks = 2;
    o.lut_ffn.bits = o.lut_head.bits = 0;
    o.emit = CV_EMIT_PACKAGE; /* tests remove and swap parts */
    t_conv_run(&o, "pkg");
}

TestSuite(package_run, .init = set_up, .fini = t_conv_clean);

static struct package *open_ok(void)
{
    struct err e = ERR_INIT;
    struct package *p = package_open(t_conv_path("pkg"), &f32, &e);

    cr_assert_not_null(p, "%s", e.text);
    return p;
}

static void fill(int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)((i * 37 + 11) % 64);
}

static void feed(struct package *p, const int32_t *tokens, size_t n,
                 bool prefill, float *logits)
{
    struct err e = ERR_INIT;

    cr_assert_eq(package_feed(p, tokens, n, prefill, logits, &e), 0, "%s",
                 e.text);
}

Test(package_run, prefill_is_single_steps)
{
    struct package *p = open_ok();
    float a[64], b[64], c[64];
    int32_t t[33];

    fill(t, 33);
    cr_expect_eq(package_vocab(p), 64);
    cr_expect_eq(package_files(p), 4);
    feed(p, t, 16, true, NULL);
    feed(p, t + 16, 16, true, a);
    cr_expect_eq(package_position(p), 32);
    feed(p, t + 32, 1, false, b);
    package_reset(p);
    cr_expect_eq(package_position(p), 0);
    feed(p, t, 32, false, c); /* token by token */
    cr_expect_eq(memcmp(a, c, sizeof a), 0);
    feed(p, t + 32, 1, true, c); /* no full batch: a single step */
    cr_expect_eq(memcmp(b, c, sizeof b), 0);
    package_close(p);
}

/* Calls of infer side by side give what they give one by one, whatever stays
 * in memory; what they leave in the states shows in the steps that follow. */
static void same_calls(const char *arch, const char *like, enum run_profile f)
{
    const size_t n = 37;
    struct err e = ERR_INIT;
    int32_t t[64];

    for (int i = 0; i < 2; i++) {
        struct run_options o = { .profile = f, .const_bytes = (uint64_t)i };
        struct package *a = package_open(t_conv_path("p"), &o, &e);
        struct package *b = package_open(t_conv_path("p"), &o, &e);
        size_t v = a ? (size_t)package_vocab(a) : 0;
        float *one = mem_alloc((n + 1) * v, sizeof *one, &e);
        float *many = mem_alloc((n + 1) * v, sizeof *many, &e);

        cr_assert(a && b && one && many, "%s", e.text);
        fill(t, 64);
        for (size_t k = 0; k <= n; k++)
            feed(a, t + k, 1, false, one + k * v);
        cr_assert_eq(package_infer(b, t, n, many, &e), 0, "%s", e.text);
        feed(b, t + n, 1, false, many + n * v);
        cr_expect_eq(memcmp(one, many, (n + 1) * v * sizeof *one), 0,
                     "%s %s, %d", arch, like, i);
        package_close(a);
        package_close(b);
        mem_free(one);
        mem_free(many);
    }
}

Test(package_run, infer_side_by_side_is_infer_one_by_one, .timeout = 60)
{
    static const struct {
        const char *arch, *like;
        int bits, chunks;
    } rows[] = {
        { "qwen3", "tiny", 6, 1 },       { "llama", "tiny", 0, 2 },
        { "qwen3_5", "tiny", 4, 1 },     { "qwen3_5", "odd", 0, 3 },
        { "qwen3_5_moe", "tiny", 0, 2 }, { "qwen3_5_moe", "odd", 6, 1 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct cv_options o;
        struct err e = ERR_INIT;

        cr_assert_eq(io_remove_tree(t_conv_path("s"), &e), 0);
        cr_assert_eq(io_remove_tree(t_conv_path("p"), &e), 0);
        t_conv_synth(rows[i].arch, rows[i].like, "s");
        o = t_conv_options("s");
        o.lut_ffn.bits = o.lut_head.bits = rows[i].bits;
        o.chunks = rows[i].chunks;
        t_conv_run(&o, "p");
        same_calls(rows[i].arch, rows[i].like, i % 2 ? RUN_F32 : RUN_FP16);
    }
}

Test(package_run, callers_that_ask_too_much)
{
    struct package *p = open_ok();
    struct err e = ERR_INIT;
    int32_t t[65];

    fill(t, 65);
    t[64] = 64;
    cr_expect_eq(package_feed(p, t + 64, 1, false, NULL, &e), -1);
    cr_expect(strstr(e.text, "token id 64 is not below the vocabulary of 64"),
              "%s", e.text);
    err_reset(&e);
    t[64] = -1;
    cr_expect_eq(package_feed(p, t + 64, 1, false, NULL, &e), -1);
    err_reset(&e);
    feed(p, t, 64, false, NULL);
    cr_expect_eq(package_feed(p, t, 1, false, NULL, &e), -1);
    cr_expect(strstr(e.text, "position 64 is beyond the package's context of "
                             "64"),
              "%s", e.text);
    err_reset(&e);
    cr_expect_eq(package_feed(p, t, 16, true, NULL, &e), -1);
    package_close(p);
}

/* Replaces a line of meta.yaml, or drops it for to = "". */
static void edit(const char *from, const char *to)
{
    char *text = t_conv_text("pkg/meta.yaml", NULL), out[4000];
    char *p = strstr(text, from);

    cr_assert_not_null(p, "%s", from);
    snprintf(out, sizeof out, "%.*s%s%s", (int)(p - text), text, to,
             p + strlen(from));
    t_conv_put("pkg/meta.yaml", out);
    mem_free(text);
}

static void expect_refused(const char *says)
{
    struct err e = ERR_INIT;
    struct package *p = package_open(t_conv_path("pkg"), &f32, &e);

    cr_expect_null(p, "'%s' was expected", says);
    cr_expect(strstr(e.text, says), "'%s' lacks '%s'", e.text, says);
    package_close(p);
}

Test(package_run, without_the_last_token)
{
    struct err e = ERR_INIT;
    struct package *p;
    float logits[64];
    int32_t t[16];

    fill(t, 16);
    edit("    prefill_last_token_output: true\n", "");
    p = open_ok();
    feed(p, t, 16, true, NULL);
    package_reset(p);
    feed(p, t, 16, false, logits);
    package_reset(p);
    cr_expect_eq(package_feed(p, t, 16, true, logits, &e), -1);
    cr_expect_eq((int)e.code, (int)ERR_UNSUPPORTED);
    package_close(p);
}

Test(package_run, files_by_their_names_alone)
{
    edit("    embeddings: qwen_embeddings.mlmodelc\n", "");
    edit("    lm_head: qwen_lm_head.mlmodelc\n", "");
    edit("    ffn: qwen_FFN_PF_chunk_01of02.mlmodelc\n", "");
    package_close(open_ok());
}

Test(package_run, descriptions_that_do_not_fit)
{
    edit("context_length: 64", "context_length: 128");
    expect_refused("input 'causal_mask' is");
    edit("context_length: 128", "context_length: 64");
    edit("batch_size: 16", "batch_size: 32");
    expect_refused("function 'prefill': input 'hidden_states' is");
    edit("batch_size: 32", "batch_size: 16");
    edit("vocab_size: 64", "vocab_size: 65");
    expect_refused("the LM head yields 64 logits, meta.yaml says vocab_size "
                   "65");
    edit("vocab_size: 65", "vocab_size: 64");
    edit("num_chunks: 2", "num_chunks: 3");
    expect_refused("names no chunk of 3");
    edit("num_chunks: 3", "num_chunks: 2");
    package_close(open_ok());
}

static void remove_part(const char *name)
{
    struct err e = ERR_INIT;

    cr_assert_eq(io_remove_tree(t_conv_path(name), &e), 0, "%s", e.text);
}

Test(package_run, parts_that_are_not_there)
{
    remove_part("pkg/qwen_FFN_PF_chunk_02of02.mlpackage");
    expect_refused("part 'qwen_FFN_PF_chunk_02of02.mlpackage'");
}

/* Parts of another model under the right names. */
static void swap_part(const char *name)
{
    char from[200], to[200];

    snprintf(from, sizeof from, "other/%s", name);
    snprintf(to, sizeof to, "pkg/%s", name);
    remove_part(to);
    cr_assert_eq(rename(t_conv_path(from), t_conv_path(to)), 0);
}

Test(package_run, parts_of_another_model)
{
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;
    struct package *p;
    struct err e = ERR_INIT;
    int32_t t = 1;

    m.hidden = 64;
    t_model_write(&m, "wide");
    o = t_conv_options("wide");
    o.chunks = 2;
    o.lut_ffn.bits = o.lut_head.bits = 0;
    t_conv_run(&o, "other");
    swap_part("qwen_embeddings.mlpackage");
    p = open_ok();
    cr_expect_eq(package_feed(p, &t, 1, false, NULL, &e), -1);
    cr_expect(
        strstr(e.text,
               "embeddings: its output 'hidden_states' is not [1, 1, 32]"),
        "%s", e.text);
    package_close(p);
    swap_part("qwen_FFN_PF_chunk_01of02.mlpackage");
    expect_refused("function 'infer': input 'hidden_states' is");
}

Test(package_run, opened_twice_gives_the_same)
{
    struct package *p = open_ok(), *q = open_ok();
    float a[64], b[64];
    int32_t t[5];

    fill(t, 5);
    for (int i = 0; i < 5; i++) { /* interleaved: states are their own */
        feed(p, t + i, 1, false, a);
        feed(q, t + i, 1, false, b);
        cr_expect_eq(memcmp(a, b, sizeof a), 0);
    }
    package_close(p);
    package_close(q);
}

/* ---- positions ---- */

static void seek_refused(struct package *p, int64_t position, const char *says)
{
    struct err e = ERR_INIT;
    int64_t was = package_position(p);

    cr_expect_eq(package_seek(p, position, &e), -1);
    cr_expect_eq((int)e.code, (int)ERR_INPUT);
    cr_expect(strstr(e.text, says), "%s", e.text);
    cr_expect_eq(package_position(p), was);
}

/* Every position has a place of its own in the cache: runtimes run the last
 * token of a prompt again. */
Test(package_run, plain_packages_go_back)
{
    struct package *p = open_ok();
    struct err e = ERR_INIT;
    float a[64], b[64];
    int32_t t[10];

    fill(t, 10);
    feed(p, t, 9, false, NULL);
    feed(p, t + 9, 1, false, a);
    cr_assert_eq(package_seek(p, 9, &e), 0, "%s", e.text);
    feed(p, t + 9, 1, false, b);
    cr_expect_eq(memcmp(a, b, sizeof a), 0);
    seek_refused(p, 11, "position 11 cannot follow: the next one is 10");
    seek_refused(p, -1, "position -1 cannot follow");
    package_close(p);
}

/* ---- windows ---- */

static void convert_gemma(const char *arch)
{
    struct cv_options o;

    t_conv_synth(arch, "tiny", "g");
    o = t_conv_options("g");
    o.ctx = 128; /* the window is 32 */
    o.lut_ffn.bits = o.lut_head.bits = 0;
    t_conv_run(&o, "pkg");
}

TestSuite(package_window, .fini = t_conv_clean);

Test(package_window, that_shifts_starts_anew_at_0_alone)
{
    struct package *p;
    struct err e = ERR_INIT;
    float a[512], b[512];
    int32_t t[20];

    convert_gemma("gemma4");
    p = open_ok();
    fill(t, 20);
    cr_assert_gt(package_meta(p)->local_cache_length, 0);
    feed(p, t, 16, true, NULL);
    feed(p, t + 16, 4, false, a);
    seek_refused(p, 19,
                 "position 19 was fed already, the next one is 20: a window "
                 "that shifts cannot be rewound");
    cr_assert_eq(package_seek(p, 0, &e), 0, "%s", e.text);
    feed(p, t, 16, true, NULL);
    feed(p, t + 16, 4, false, b);
    cr_expect_eq(memcmp(a, b, sizeof a), 0);
    package_close(p);
}

Test(package_window, that_has_rotated_cannot_go_back)
{
    struct package *p;
    struct err e = ERR_INIT;
    int32_t t[40];

    convert_gemma("gemma3");
    p = open_ok();
    fill(t, 40);
    feed(p, t, 32, false, NULL);
    cr_expect_eq(package_seek(p, 31, &e), 0); /* not yet */
    feed(p, t + 31, 2, false, NULL);
    seek_refused(p, 32, "a window that has rotated cannot be rewound");
    cr_expect_eq(package_seek(p, 0, &e), 0);
    package_close(p);
}

/* ---- recurrent packages ---- */

#define VOCAB 512 /* of the made checkpoint */

/* A package "pkg" of a hybrid model: context 64, batch 16, two chunks. */
static void set_up_hybrid(void)
{
    struct cv_options o;

    t_conv_synth("qwen3_5", "tiny", "h");
    o = t_conv_options("h");
    o.chunks = 2;
    o.lut_ffn.bits = o.lut_head.bits = 0;
    t_conv_run(&o, "pkg");
}

TestSuite(package_recurrent, .init = set_up_hybrid, .fini = t_conv_clean);

/* Largest difference over largest value. */
static double apart(const float *a, const float *b, size_t n)
{
    double diff = 0, max = 0;

    for (size_t i = 0; i < n; i++) {
        diff = fmax(diff, fabs((double)a[i] - (double)b[i]));
        max = fmax(max, fabs((double)b[i]));
    }
    return diff / max;
}

Test(package_recurrent, a_prompt_of_full_batches_has_logits_from_prefill)
{
    struct package *p = open_ok();
    float a[VOCAB], b[VOCAB];
    int32_t t[33];

    fill(t, 33);
    cr_assert(package_meta(p)->recurrent_state);
    feed(p, t, 16, true, NULL);
    feed(p, t + 16, 16, true, a); /* the last call: no token runs again */
    package_reset(p);
    feed(p, t, 32, false, b);
    cr_expect_lt(apart(a, b, VOCAB), 1e-4);
    /* Generation goes on from either. */
    feed(p, t + 32, 1, false, b);
    package_reset(p);
    feed(p, t, 16, true, NULL);
    feed(p, t + 16, 16, true, NULL);
    feed(p, t + 32, 1, false, a);
    cr_expect_lt(apart(a, b, VOCAB), 1e-4);
    package_close(p);
}

Test(package_recurrent, no_position_twice_and_none_left_out)
{
    struct package *p = open_ok();
    struct err e = ERR_INIT;
    float a[VOCAB], b[VOCAB];
    int32_t t[17];

    fill(t, 17);
    feed(p, t, 16, true, a);
    seek_refused(p, 15,
                 "position 15 was fed already, the next one is 16: a recurrent "
                 "state cannot be rewound; restore a snapshot, or reset and "
                 "feed again");
    seek_refused(p, 0, "position 0 was fed already");
    seek_refused(p, 17, "position 17 cannot follow: the next one is 16");
    cr_expect_eq(package_seek(p, 16, &e), 0); /* it is due */
    feed(p, t + 16, 1, false, a);
    /* A fresh context is the way back that is always open. */
    package_restart(p);
    cr_expect_eq(package_position(p), 0);
    feed(p, t, 16, true, NULL);
    feed(p, t + 16, 1, false, b);
    cr_expect_eq(memcmp(a, b, sizeof a), 0);
    package_close(p);
}

/* As in speculative decoding: three tokens are tried and rejected. */
Test(package_recurrent, a_snapshot_is_the_way_back)
{
    struct package *p = open_ok();
    struct package_snapshot *s;
    struct err e = ERR_INIT;
    float a[VOCAB], b[VOCAB];
    int32_t t[24];

    fill(t, 24);
    feed(p, t, 16, true, NULL);
    feed(p, t + 16, 2, false, NULL);
    s = package_snapshot(p, &e);
    cr_assert(s, "%s", e.text);
    feed(p, t + 18, 1, false, a);
    for (int i = 0; i < 2; i++) { /* more than once */
        feed(p, t + 20, 3, false, NULL);
        cr_assert_eq(package_restore(p, s, &e), 0, "%s", e.text);
        cr_expect_eq(package_position(p), 18);
        feed(p, t + 18, 1, false, b);
        cr_expect_eq(memcmp(a, b, sizeof a), 0);
    }
    /* Without the snapshot the rejected tokens would stay. */
    package_reset(p);
    feed(p, t, 18, false, NULL);
    feed(p, t + 20, 3, false, NULL);
    feed(p, t + 18, 1, false, b);
    cr_expect_gt(apart(a, b, VOCAB), 1e-3);
    package_snapshot_free(s);
    package_close(p);
}

/* Contents are all there is: they serve a package opened later. */
Test(package_recurrent, a_snapshot_outlives_its_package)
{
    struct package *p = open_ok(), *q;
    struct package_snapshot *s;
    struct err e = ERR_INIT;
    float a[VOCAB], b[VOCAB];
    int32_t t[6];

    fill(t, 6);
    feed(p, t, 5, false, NULL);
    s = package_snapshot(p, &e);
    cr_assert(s, "%s", e.text);
    feed(p, t + 5, 1, false, a);
    package_close(p);
    q = open_ok();
    cr_assert_eq(package_restore(q, s, &e), 0, "%s", e.text);
    feed(q, t + 5, 1, false, b);
    cr_expect_eq(memcmp(a, b, sizeof a), 0);
    package_snapshot_free(s);
    package_close(q);
}

/* No allocation may leave a package between two contexts. */
Test(package_recurrent, a_failed_restore_changes_nothing)
{
    struct package *p = open_ok();
    struct package_snapshot *s;
    struct err e = ERR_INIT;
    float a[VOCAB], b[VOCAB];
    int32_t t[8];
    long n = 0;

    fill(t, 8);
    s = package_snapshot(p, &e); /* empty: states are not there yet */
    cr_assert(s, "%s", e.text);
    package_snapshot_free(s);
    feed(p, t, 4, false, NULL);
    s = package_snapshot(p, &e);
    cr_assert(s, "%s", e.text);
    feed(p, t + 4, 3, false, NULL);
    for (;; n++) {
        int rc;

        err_reset(&e);
        mem_fail_at(n, true);
        rc = package_restore(p, s, &e);
        mem_fail_at(-1, false);
        if (!rc)
            break;
        cr_assert_eq((int)e.code, (int)ERR_NOMEM, "%s", e.text);
        cr_assert_eq(package_position(p), 7);
    }
    cr_expect_gt(n, 3);
    feed(p, t + 4, 1, false, a);
    package_reset(p);
    feed(p, t, 5, false, b);
    cr_expect_eq(memcmp(a, b, sizeof a), 0);
    package_snapshot_free(s);
    package_close(p);
}

/* Nobody knows which layers a call that failed has reached. */
Test(package_recurrent, nothing_follows_a_call_that_failed_half_way)
{
    float a[VOCAB], b[VOCAB];
    bool refused = false;
    int32_t t[2];
    long n = 0;
    int rc;

    fill(t, 2);
    do {
        struct package *p = open_ok();
        struct err e = ERR_INIT;

        mem_fail_at(n++, false);
        rc = package_feed(p, t, 1, false, NULL, &e);
        mem_fail_at(-1, false);
        err_reset(&e);
        if (rc && package_feed(p, t, 1, false, NULL, &e)) {
            cr_assert(strstr(e.text, "failed half-way"), "%s", e.text);
            refused = true;
            package_reset(p);
            feed(p, t, 1, false, NULL);
        }
        feed(p, t + 1, 1, false, b);
        cr_expect(n == 1 || !memcmp(a, b, sizeof a), "%ld", n);
        memcpy(a, b, sizeof a);
        package_close(p);
    } while (rc);
    cr_expect(refused && n > 3);
}
