/*
 * The gate's parts: metrics against numbers worked out by hand, verdicts,
 * prompts, the JSON document and the file.
 */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/gate_metrics.h"
#include "safetensors/st.h"
#include "t_dir.h"
#include "t_gate.h"

static struct err err;

#define NEAR(a, b)                                    \
    cr_expect(fabs((double)(a) - (double)(b)) <=      \
                  1e-12 * fmax(1, fabs((double)(b))), \
              "%.17g", (double)(a))

/* ---- metrics ---- */

static const float a[] = { 1, 2, 3 }, b[] = { 1, 2, 4 };
static const float c[] = { 2, 0, 0 }, d[] = { 0, 2, 0 };

Test(metrics, one_position)
{
    struct metrics m;

    metrics_init(&m);
    metrics_add(&m, a, b, 3, 0, 0, -1);
    metrics_finish(&m);
    NEAR(m.out.cosine_min, 17 / sqrt(14.0 * 21.0));
    NEAR(m.out.cosine_mean, m.out.cosine_min);
    NEAR(m.out.psnr_min, 20 * log10(3 / sqrt(1.0 / 3.0)));
    NEAR(m.out.kl_mean, 0.09699909933708359);
    NEAR(m.out.kl_max, m.out.kl_mean);
    NEAR(m.out.max_abs_diff, 1);
    NEAR(m.max_abs_logit, 3);
    NEAR(m.out.top1_agreement, 1);
    NEAR(m.out.top1_agreement_decided, 1);
    cr_expect_eq(m.out.positions, 1);
    cr_expect_eq(m.out.decided, 1);
    cr_expect(m.out.finite && !m.out.diverged);
}

Test(metrics, extremes_means_and_the_first_divergence)
{
    struct metrics m;

    metrics_init(&m);
    metrics_add(&m, a, b, 3, 0, 0, 2);
    metrics_add(&m, c, d, 3, 1, 7, 1);
    metrics_add(&m, d, c, 3, 1, 8, -1);
    metrics_finish(&m);
    NEAR(m.out.cosine_min, 0);
    NEAR(m.out.cosine_mean, 17 / sqrt(14.0 * 21.0) / 3);
    NEAR(m.out.psnr_min, 20 * log10(2 / sqrt(8.0 / 3.0)));
    NEAR(m.out.kl_max, 1.3609581264847952);
    NEAR(m.out.kl_mean, (0.09699909933708359 + 2 * 1.3609581264847952) / 3);
    NEAR(m.out.max_abs_diff, 2);
    NEAR(m.out.top1_agreement, 1.0 / 3);
    /* The position without a next token does not count. */
    NEAR(m.out.perplexity_oracle, 3.756829431343112);
    NEAR(m.out.perplexity_package, 1.2271512090420407);
    cr_assert(m.out.diverged);
    cr_expect_eq(m.out.first.prompt, 1);
    cr_expect_eq(m.out.first.position, 7);
    cr_expect_eq(m.out.first.oracle_token, 0);
    cr_expect_eq(m.out.first.package_token, 1);
    NEAR(m.out.first.margin, 2);
}

Test(metrics, equal_rows)
{
    struct metrics m;

    metrics_init(&m);
    metrics_add(&m, a, a, 3, 0, 0, -1);
    metrics_finish(&m);
    NEAR(m.out.cosine_min, 1);
    cr_expect(isinf(m.out.psnr_min) && m.out.psnr_min > 0);
    cr_expect_eq(m.out.kl_max, 0);
    cr_expect_eq(m.out.max_abs_diff, 0);
    cr_expect(isnan(m.out.perplexity_oracle)); /* of no position */
}

/* Only positions with a margin count as decided, whatever happens at others;
 * of equal logits the first is the best. */
Test(metrics, margins_and_ties)
{
    static const float close[] = { 1, 1.0625f, 0 }, swapped[] = { 2, 1, 0 };
    static const float clear[] = { 1, 1.125f, 0 };
    static const float tie[] = { 0, 5, 5 }, other[] = { 0, 5, 4 };
    struct metrics m;

    metrics_init(&m);
    metrics_add(&m, close, swapped, 3, 0, 0, -1);
    metrics_add(&m, tie, other, 3, 0, 1, -1);
    metrics_finish(&m);
    cr_expect_eq(m.out.decided, 0);
    NEAR(m.out.top1_agreement, 0.5);
    NEAR(m.out.top1_agreement_decided, 1); /* none could disagree */
    cr_assert(m.out.diverged);
    NEAR(m.out.first.margin, 0.0625);

    metrics_init(&m);
    metrics_add(&m, clear, swapped, 3, 0, 0, -1);
    metrics_add(&m, clear, clear, 3, 0, 1, -1);
    metrics_finish(&m);
    cr_expect_eq(m.out.decided, 2);
    NEAR(m.out.top1_agreement_decided, 0.5);
}

Test(metrics, extremes_keep_nan)
{
    double min = 1, max = 1;

    metrics_keep_min(&min, 2);
    metrics_keep_max(&max, 0.5);
    cr_expect(min == 1 && max == 1);
    metrics_keep_min(&min, NAN);
    metrics_keep_max(&max, NAN);
    cr_expect(isnan(min) && isnan(max));
    metrics_keep_min(&min, -1);
    metrics_keep_max(&max, 3);
    cr_expect(isnan(min) && isnan(max));
}

/* One bad value anywhere can not be outvoted. */
static void never_passes(const float *oracle, const float *package)
{
    struct metrics m;

    metrics_init(&m);
    metrics_add(&m, a, a, 3, 0, 0, 2);
    metrics_add(&m, oracle, package, 3, 0, 1, 2);
    metrics_add(&m, a, a, 3, 0, 2, 2);
    metrics_finish(&m);
    cr_expect(!(m.out.cosine_min >= 0.999));
    cr_expect(!(m.out.cosine_mean >= 0.999));
    cr_expect(!(m.out.psnr_min >= 70));
    cr_expect(!(m.out.max_abs_diff <= 1e9));
    cr_expect(!m.out.finite);
}

Test(metrics, not_finite_never_passes)
{
    static const float bad[][3] = { { NAN, 2, 3 },      { 1, 2, NAN },
                                    { 1, INFINITY, 3 }, { 1, 2, -INFINITY },
                                    { NAN, NAN, NAN },  { -INFINITY, 2, 3 } };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        never_passes(a, bad[i]);
        never_passes(bad[i], a);
        never_passes(bad[i], bad[i]);
    }
}

Test(metrics, zeros_never_pass)
{
    static const float zeros[3] = { 0, 0, 0 };
    struct metrics m;

    metrics_init(&m);
    metrics_add(&m, a, zeros, 3, 0, 0, -1);
    metrics_add(&m, a, a, 3, 0, 1, -1);
    metrics_finish(&m);
    cr_expect(m.out.finite);
    cr_expect(!(m.out.cosine_min >= 0.999));
}

/* exp() of the largest floats would overflow without the maximum. */
Test(metrics, large_logits)
{
    static const float big[] = { 60000, 59999, -60000 };
    static const float moved[] = { 60000, 59998, -60000 };
    double p = 1 / (1 + exp(-1.0)), q = 1 / (1 + exp(-2.0));
    double kl = p * log(p / q) + (1 - p) * log((1 - p) / (1 - q));
    struct metrics m;

    metrics_init(&m);
    metrics_add(&m, big, moved, 3, 0, 0, 0);
    metrics_finish(&m);
    cr_expect(fabs(m.out.kl_mean - kl) < 1e-9, "%.17g", m.out.kl_mean);
    cr_expect(fabs(m.out.perplexity_oracle - 1 / p) < 1e-9);
    cr_expect(fabs(m.out.perplexity_package - 1 / q) < 1e-9);
}

/* ---- prompts ---- */

static const char *dir;

static void open_dir(void)
{
    dir = t_dir_new();
}

static void close_dir(void)
{
    t_dir_drop(dir);
}

TestSuite(prompts, .init = open_dir, .fini = close_dir);

static int read_text(struct prompts *p, const char *text)
{
    const char *path = t_path(dir, "tokens.txt");

    err_reset(&err);
    t_write_text(path, text);
    return prompts_read(p, path, 100, &err);
}

Test(prompts, lines_of_ids)
{
    struct prompts p;

    cr_assert_eq(read_text(&p, "1 2,3\t99\r\n\n  \n0,\n , 7 ,, 8"), 0, "%s",
                 err.text);
    cr_assert_eq(p.n, 3);
    cr_expect_eq(p.lengths[0], 4);
    cr_expect_eq(p.ids[0][0], 1);
    cr_expect_eq(p.ids[0][3], 99);
    cr_expect_eq(p.lengths[1], 1);
    cr_expect_eq(p.ids[1][0], 0);
    cr_expect_eq(p.lengths[2], 2);
    cr_expect_eq(p.ids[2][1], 8);
    prompts_release(&p);
    cr_expect_eq(p.n, 0);
    prompts_release(&p);
}

static void refused(const char *text, const char *part)
{
    struct prompts p;

    cr_assert_eq(read_text(&p, text), -1, "'%s' was taken", text);
    cr_expect_eq(err.code, ERR_INPUT);
    cr_expect(strstr(err.text, part), "'%s': %s, not %s", text, err.text, part);
    cr_expect(strstr(err.text, "tokens.txt"), "%s", err.text);
    cr_expect_eq(p.n, 0);
}

Test(prompts, text_that_is_refused)
{
    refused("1 2 x", "prompt 0: 'x' is no token id");
    refused("1\n2 3.5", "prompt 1: '3.5' is no token id");
    refused("0x10", "'0x10' is no token id");
    refused("1;2", "'1;2' is no token id");
    refused("99999999999999999999", "is no token id");
    refused("1 2 100", "prompt 0, token 2 is id 100, the vocabulary has ids 0 "
                       "to 99");
    refused("5\n-1", "prompt 1, token 0 is id -1");
    refused(" \n\n", "holds no prompt (a line of token ids each is needed)");
}

Test(prompts, text_with_nul_or_nothing)
{
    struct prompts p;
    const char *path = t_path(dir, "tokens.txt");

    t_write(path, "1\0002", 3);
    cr_assert_eq(prompts_read(&p, path, 100, &err), -1);
    cr_expect(strstr(err.text, "is no token id"), "%s", err.text);
    err_reset(&err);
    t_write(path, "", 0);
    cr_assert_eq(prompts_read(&p, path, 100, &err), -1);
    err_reset(&err);
    cr_assert_eq(prompts_read(&p, t_path(dir, "absent"), 100, &err), -1);
    cr_expect(strstr(err.text, "absent"), "%s", err.text);
}

struct part {
    const char *name;
    enum st_dtype dtype;
    int rank;
    uint64_t dims[2];
    const void *data;
    size_t bytes;
};

static const char *tensors(const struct part *part, size_t n)
{
    const char *path = t_path(dir, "t.safetensors");
    struct st_writer *w = st_writer_new(&err);

    unlink(path);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(st_writer_add(w, part[i].name, part[i].dtype, part[i].rank,
                                   part[i].dims, &err),
                     0);
    cr_assert_eq(st_writer_begin(w, path, &err), 0, "%s", err.text);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(st_writer_write(w, part[i].data, part[i].bytes, &err), 0);
    cr_assert_eq(st_writer_finish(w, &err), 0, "%s", err.text);
    st_writer_free(w);
    return path;
}

static const int32_t three[] = { 4, 5, 6 }, beyond[] = { 1, 100 };
static const int64_t wide[] = { 7, 8 };

Test(prompts, safetensors)
{
    const struct part parts[] = {
        { "tokens.1", ST_I64, 1, { 2 }, wide, sizeof(wide) },
        { "tokens.0", ST_I32, 1, { 3 }, three, sizeof(three) },
        { "tokens.3", ST_I32, 1, { 3 }, three, sizeof(three) },
        { "eval_nll", ST_I32, 1, { 3 }, three, sizeof(three) },
    };
    struct prompts p;

    cr_assert_eq(prompts_read(&p, tensors(parts, 4), 100, &err), 0, "%s",
                 err.text);
    cr_assert_eq(p.n, 2); /* numbered without a gap */
    cr_expect_eq(p.lengths[0], 3);
    cr_expect_eq(p.ids[0][2], 6);
    cr_expect_eq(p.lengths[1], 2);
    cr_expect_eq(p.ids[1][0], 7);
    prompts_release(&p);
}

static void tensor_refused(struct part part, const char *text)
{
    struct prompts p;

    err_reset(&err);
    cr_assert_eq(prompts_read(&p, tensors(&part, 1), 100, &err), -1);
    cr_expect(strstr(err.text, text), "%s, not %s", err.text, text);
    cr_expect_eq(p.n, 0);
}

Test(prompts, safetensors_that_are_refused)
{
    static const float f[3] = { 1, 2, 3 };

    tensor_refused(
        (struct part){ "ids", ST_I32, 1, { 3 }, three, sizeof(three) },
        "holds no prompt (int32 tensors tokens.0, tokens.1, ... are needed)");
    tensor_refused(
        (struct part){ "tokens.0", ST_I32, 2, { 1, 3 }, three, sizeof(three) },
        "tensor 'tokens.0' has rank 2 and 3 elements, a vector");
    tensor_refused((struct part){ "tokens.0", ST_I32, 1, { 0 }, three, 0 },
                   "0 elements");
    tensor_refused((struct part){ "tokens.0", ST_F32, 1, { 3 }, f, sizeof(f) },
                   "tokens.0");
    tensor_refused(
        (struct part){ "tokens.0", ST_I32, 1, { 2 }, beyond, sizeof(beyond) },
        "prompt 0, token 1 is id 100");
}

/* ---- verdicts ---- */

static void made(const struct gate_result *r, const char *name, bool wanted)
{
    cr_expect_eq(t_gate_check(r, name) != NULL, wanted, "%s", name);
}

Test(verdict, pass_says_nothing)
{
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "odd");
    cr_assert_eq(t_gate_run(&t, t.honest, RUN_F32, &r), GATE_PASS, "%s",
                 r.reason);
    cr_expect_str_empty(r.reason);
    cr_expect_eq(r.prompts, 2);
    cr_expect_eq(r.positions, 48 + 64); /* past a border, and to the end */
    cr_expect(r.crossed_batch && r.reached_end && r.sourced && !r.compressed);
    /* Each position once by infer; batch ends and what infer adds behind full
     * batches once more: of 48, 5 tokens before 2 batches and 11; of 64, a
     * batch, 5, a batch, 11, a batch. */
    cr_expect_eq(r.loss.positions, 48 + 13 + 64 + 19);
    cr_expect_eq(memcmp(&r.loss, &r.bytes, sizeof(r.loss)), 0);
    made(&r, "weights_missing", true);
    made(&r, "weights_differ", true);
    made(&r, "weights_misplaced", false);
    made(&r, "finite", true);
    made(&r, "cosine_min", true);
    made(&r, "psnr_min", true);
    made(&r, "loss_kl_mean", false);
    cr_expect_eq(t_gate_check(&r, "cosine_min")->limit, 0.99999);
    made(&r, "f32_cosine_min", false);
    made(&r, "state_prefill_infer", false);
    cr_expect_eq(r.f32_positions, 0);
    t_gate_run(&t, t.honest, RUN_FP16, &r);
    made(&r, "psnr_min", false);
    cr_expect_eq(t_gate_check(&r, "cosine_min")->limit, 0.999);
    /* Half precision is not alone: the first prompt runs in f32 too. */
    cr_expect_eq(r.positions, 48 + 64);
    cr_expect_eq(r.f32_positions, 48);
    made(&r, "f32_psnr_min", true);
    made(&r, "f32_weights_differ", false);
    cr_expect_eq(t_gate_check(&r, "f32_cosine_min")->limit, 0.99999);
    t_gate_drop(&t);
}

static void recurrent_checks(const struct t_gate *t, enum run_profile profile)
{
    static const char *const names[] = { "model_model_kv_cache_0",
                                         "model_model_gdn_state_0",
                                         "model_model_conv_state_0" };
    struct gate_result r;

    cr_assert_eq(t_gate_run(t, t->honest, profile, &r), GATE_PASS, "%s",
                 r.reason);
    cr_expect_eq(r.decode_steps, 64);
    cr_expect_eq(t_gate_check(&r, "decode_steps")->limit, 64);
    cr_assert_eq(r.n_states, 3);
    for (int i = 0; i < 3; i++) {
        cr_expect_str_eq(r.states[i].name, names[i]);
        /* Chunks and steps do not round alike. */
        cr_expect_gt(r.states[i].prefill_infer, 0);
        cr_expect_eq(r.states[i].known, i > 0); /* the cache is not a memory */
        cr_expect(i == 0 || r.states[i].oracle > 0);
    }
    cr_expect_gt(t_gate_check(&r, "state_prefill_infer")->value, 0);
    cr_expect_eq(t_gate_check(&r, "state_oracle")->value,
                 fmax(r.states[1].oracle, r.states[2].oracle));
    for (int i = 0; i < GATE_QUARTERS; i++)
        cr_expect_gt(r.drift.error[i], 0);
    cr_expect_eq(r.drift.positions, 64);
    cr_expect_eq(t_gate_check(&r, "drift")->value,
                 r.drift.error[3] /
                     fmax(r.drift.error[0], profile == RUN_F32 ? 1e-7 : 1e-3));
    made(&r, "f32_drift", false); /* of the whole context alone */
    made(&r, "f32_state_oracle", profile != RUN_F32);
}

Test(verdict, recurrent_packages_are_judged_by_their_states)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3_5", .like = "odd", .chunks = 2);
    recurrent_checks(&t, RUN_F32);
    recurrent_checks(&t, RUN_FP16);
    t_gate_drop(&t);
}

Test(verdict, unverified_without_a_checkpoint)
{
    struct gate_options o = { .profile = RUN_FP16 };
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "odd");
    o.package = t.honest;
    cr_assert_eq(gate_run(&o, &r, &err), 0, "%s", err.text);
    cr_expect_eq(r.verdict, GATE_UNVERIFIED);
    cr_expect_str_eq(r.reason, "no checkpoint to compare with (--hf DIR)");
    cr_expect_eq(r.n_checks, 1);
    made(&r, "prefill_infer_relative_diff", true);
    cr_expect_eq(r.positions, 48 + 64);
    t_gate_drop(&t);
}

/* Prompts of the user's never narrow what a PASS covers. */
Test(verdict, the_end_of_the_context_is_always_reached)
{
    struct gate_result r;
    struct t_gate t;
    char text[1024] = "";

    T_GATE_MAKE(&t, .arch = "llama", .like = "tiny", .ctx = 32);
    snprintf(t.tokens, sizeof(t.tokens), "%s/tokens.txt", t.root);
    t_write_text(t.tokens, "1 2 3");
    cr_expect_eq(t_gate_run(&t, t.honest, RUN_F32, &r), GATE_PASS, "%s",
                 r.reason);
    cr_expect_eq(r.prompts, 2);
    cr_expect_eq(r.positions, 3 + 32);
    /* Longer ones are cut and serve as the prompt that reaches the end. */
    for (int i = 0; i < 50; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d ", i);
    t_write_text(t.tokens, text);
    cr_expect_eq(t_gate_run(&t, t.honest, RUN_F32, &r), GATE_PASS);
    cr_expect_eq(r.prompts, 1);
    cr_expect_eq(r.positions, 32);
    t_gate_drop(&t);
}

/* Where the context is one batch there is no border to cross. */
Test(verdict, a_context_of_one_batch)
{
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "llama", .like = "tiny", .ctx = 32, .batch = 32);
    cr_expect_eq(t_gate_run(&t, t.honest, RUN_F32, &r), GATE_PASS, "%s",
                 r.reason);
    cr_expect(!r.crossed_batch && r.reached_end);
    t_gate_drop(&t);
}

Test(verdict, compressed_is_two_comparisons)
{
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "tiny", .lut = "4");
    cr_assert_eq(t_gate_run(&t, t.honest, RUN_F32, &r), GATE_PASS, "%s",
                 r.reason);
    cr_expect(r.compressed);
    made(&r, "weights_misplaced", true);
    made(&r, "weights_gain_error", true);
    made(&r, "loss_kl_mean", true);
    made(&r, "loss_cosine_mean", true);
    /* The bars are met against the package's own weights alone. */
    cr_expect_gt(r.bytes.cosine_min, 0.99999);
    cr_expect_lt(r.loss.cosine_min, 0.999);
    cr_expect_eq(t_gate_check(&r, "cosine_min")->value, r.bytes.cosine_min);
    t_gate_drop(&t);
}

static void mismatch(const struct t_gate *t, const struct ckpt *other,
                     const char *text)
{
    struct gate_options o = { .package = t->honest,
                              .ckpt = other,
                              .profile = RUN_F32 };
    struct gate_result r;

    err_reset(&err);
    cr_assert_eq(gate_run(&o, &r, &err), -1);
    cr_expect_eq(err.code, ERR_MISMATCH);
    cr_expect(strstr(err.text, text), "%s, not %s", err.text, text);
}

Test(verdict, a_checkpoint_of_another_shape)
{
    struct t_gate t, u, v;

    T_GATE_MAKE(&t, .arch = "qwen3", .like = "odd");
    T_GATE_MAKE(&u, .arch = "qwen3", .like = "tiny");
    T_GATE_MAKE(&v, .arch = "llama", .like = "tiny");
    mismatch(&t, &u.ckpt,
             "the package has a vocabulary of 1009, the "
             "checkpoint '");
    mismatch(&u, &v.ckpt,
             "the package's architecture is 'qwen3', the checkpoint's 'llama'");
    u.ckpt.hp.layers = 2;
    mismatch(&u, &u.ckpt, "number of layers of 3, ");
    t_gate_drop(&t);
    t_gate_drop(&u);
    t_gate_drop(&v);
}

static int stop(void *cookie)
{
    int *left = cookie;

    return --*left < 0;
}

Test(verdict, the_user_may_stop_it_anywhere)
{
    struct log log = { .cancelled = stop };
    struct gate_options o = { .profile = RUN_F32, .log = &log };
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "llama", .like = "tiny", .ctx = 32);
    o.package = t.honest;
    o.ckpt = &t.ckpt;
    for (int at = 0; at < 85; at += 7) {
        int left = at;

        log.cookie = &left;
        err_reset(&err);
        cr_assert_eq(gate_run(&o, &r, &err), -1, "%d", at);
        cr_expect_eq(err.code, ERR_CANCELLED, "%d: %s", at, err.text);
    }
    t_gate_drop(&t);
}

/* ---- logits ---- */

Test(logits, file_holds_both_sides)
{
    struct gate_options o = { .profile = RUN_F32 };
    struct gate_result r;
    struct prompts p;
    struct t_gate t;
    struct st *st, *alone;
    float x[512], y[512];

    T_GATE_MAKE(&t, .arch = "llama", .like = "tiny", .ctx = 32);
    o.package = t.honest;
    o.ckpt = &t.ckpt;
    o.tokens = t_path(t.root, "tokens.txt");
    o.logits = t_path(t.root, "l.safetensors");
    t_write_text(o.tokens, "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18\n9 8");
    cr_assert_eq(gate_run(&o, &r, &err), 0, "%s", err.text);
    cr_assert_eq(prompts_read(&p, o.tokens, 512, &err), 0);
    cr_assert_eq(gate_oracle_logits(&t.ckpt, &p,
                                    t_path(t.root, "o.safetensors"), NULL, NULL,
                                    &err),
                 0, "%s", err.text);
    st = st_open(o.logits, &err);
    alone = st_open(t_path(t.root, "o.safetensors"), &err);
    cr_assert(st && alone, "%s", err.text);
    /* The gate's own prompt to the end of the context is not the user's. */
    cr_assert_eq(st_count(st), 4);
    cr_assert_eq(st_count(alone), 2);
    for (int i = 0; i < 2; i++) {
        char name[2][32];
        const struct st_tensor *o_t, *p_t, *a_t;

        snprintf(name[0], sizeof(name[0]), "oracle.%d", i);
        snprintf(name[1], sizeof(name[1]), "package.%d", i);
        o_t = st_find(st, name[0]);
        p_t = st_find(st, name[1]);
        a_t = st_find(alone, name[0]);
        cr_assert(o_t && p_t && a_t);
        cr_expect_eq(o_t->rank, 2);
        cr_expect_eq(o_t->dims[0], p.lengths[i]);
        cr_expect_eq(o_t->dims[1], 512);
        cr_expect_eq(p_t->elems, o_t->elems);
        for (uint64_t k = 0; k < o_t->dims[0]; k++) {
            cr_assert_eq(st_read_f32(st, o_t, 512 * k, 512, x, &err), 0);
            cr_assert_eq(st_read_f32(alone, a_t, 512 * k, 512, y, &err), 0);
            /* The gate's rotations are rounded to fp16. */
            for (int v = 0; v < 512; v++)
                cr_assert(fabsf(x[v] - y[v]) < 0.005f, "%s row %d: %g and %g",
                          name[0], (int)k, (double)x[v], (double)y[v]);
            cr_assert_eq(st_read_f32(st, p_t, 512 * k, 512, y, &err), 0);
            for (int v = 0; v < 512; v++)
                cr_assert(fabsf(x[v] - y[v]) < 0.05f, "%s row %d: %g and %g",
                          name[1], (int)k, (double)x[v], (double)y[v]);
        }
    }
    st_close(st);
    st_close(alone);
    prompts_release(&p);
    t_gate_drop(&t);
}

/* ---- the document ---- */

static const char *const compare_keys[] = {
    "cosine_min",       "cosine_mean",  "psnr_min",
    "kl_mean",          "kl_max",       "top1_agreement",
    "perplexity",       "max_abs_diff", "top1_agreement_decided",
    "first_divergence",
};
#define COMPARE_KEYS (sizeof(compare_keys) / sizeof(compare_keys[0]))
static const char *const other_keys[] = {
    "schema",     "verdict",       "profile",      "prompts",
    "positions",  "crossed_batch", "reached_end",  "prefill_infer_max_diff",
    "compressed", "max_abs_logit", "bytes",        "loss",
    "checks",     "f32_positions", "decode_steps", "drift",
    "states",     "noise",         "forms",
};
#define OTHER_KEYS (sizeof(other_keys) / sizeof(other_keys[0]))

static void expect_keys(const struct js_node *n, const char *const *keys,
                        size_t count)
{
    for (size_t i = 0; i < count; i++)
        cr_expect(js_get(n, keys[i]), "no key '%s'", keys[i]);
}

static struct js_doc *document(const struct gate_result *r)
{
    struct buf text = BUF_INIT;
    struct js_writer w;
    struct js_doc *doc;

    js_w_init(&w, &text);
    gate_json(r, &w, NULL);
    doc = js_parse(buf_text(&text), text.len, &err);
    cr_assert(doc, "%s", err.text);
    buf_release(&text);
    return doc;
}

static struct gate_result sample(void)
{
    struct gate_result r = {
        .verdict = GATE_FAIL, .profile = RUN_FP16, .prompts = 2, .positions = 1
    };

    snprintf(r.reason, sizeof(r.reason), "a \"reason\"");
    r.loss.cosine_min = NAN;
    r.loss.psnr_min = INFINITY;
    r.loss.diverged = true;
    r.loss.first = (struct gate_divergence){ 1, 20, 300, 4000, 0.5 };
    snprintf(r.checks[0].name, sizeof(r.checks[0].name), "cosine_min");
    r.checks[0].value = NAN;
    r.checks[0].limit = 0.999;
    r.checks[0].at_least = true;
    r.n_checks = 1;
    r.decode_steps = 64;
    r.drift = (struct gate_drift){ { 0.1, 0.2, 0.3, 0.4 }, 64 };
    r.n_states = 2;
    r.states[0] = (struct gate_state){ "kv", 0.25, 0, false };
    r.states[1] = (struct gate_state){ "gdn", 0.5, 0.75, true };
    r.noise =
        (struct gate_noise){ 3, 0.5, 0.875, 0.0625, 20, 0.625, 0.125, 0.375 };
    return r;
}

static double number(const struct js_node *n, const char *key)
{
    double v = -1;

    cr_expect(js_double(js_get(n, key), &v), "'%s' is no number", key);
    return v;
}

Test(document, keys_and_values)
{
    struct gate_result r = sample();
    struct js_doc *doc = document(&r);
    const struct js_node *root = js_root(doc), *n;
    const char *text;
    bool flag = true;

    expect_keys(root, compare_keys, COMPARE_KEYS);
    expect_keys(root, other_keys, OTHER_KEYS);
    cr_expect_eq(js_count(root), COMPARE_KEYS + OTHER_KEYS + 1 /* reason */);
    for (int i = 0; i < 2; i++) {
        n = js_get(root, i ? "bytes" : "loss");
        expect_keys(n, compare_keys, COMPARE_KEYS);
        cr_expect_eq(js_count(n), COMPARE_KEYS);
    }
    cr_expect(js_string(js_get(root, "verdict"), &text));
    cr_expect_str_eq(text, "FAIL");
    cr_expect(js_string(js_get(root, "profile"), &text));
    cr_expect_str_eq(text, "fp16");
    cr_expect(js_string(js_get(root, "reason"), &text));
    cr_expect_str_eq(text, "a \"reason\"");
    /* JSON has neither NaN nor infinity. */
    cr_expect_eq(js_kind(js_get(root, "cosine_min")), JS_NULL);
    cr_expect_eq(number(root, "psnr_min"), 999);
    n = js_get(root, "first_divergence");
    cr_expect_eq(js_count(n), 5);
    cr_expect_eq(number(n, "prompt"), 1);
    cr_expect_eq(number(n, "position"), 20);
    cr_expect_eq(number(n, "oracle_token"), 300);
    cr_expect_eq(number(n, "package_token"), 4000);
    cr_expect_eq(number(n, "margin"), 0.5);
    n = js_get(js_get(root, "bytes"), "first_divergence");
    cr_expect_eq(js_kind(n), JS_NULL);
    n = js_get(root, "perplexity");
    cr_expect(js_count(n) == 2 && js_get(n, "oracle") && js_get(n, "package"));
    n = js_first(js_get(root, "checks"));
    cr_assert(n && !js_next(n));
    cr_expect_eq(js_count(n), 5);
    cr_expect(js_string(js_get(n, "name"), &text));
    cr_expect_str_eq(text, "cosine_min");
    cr_expect_eq(js_kind(js_get(n, "value")), JS_NULL);
    cr_expect(js_string(js_get(n, "compare"), &text));
    cr_expect_str_eq(text, ">=");
    cr_expect_eq(number(n, "limit"), 0.999);
    cr_expect(js_bool(js_get(n, "pass"), &flag) && !flag);
    js_free(doc);
}

Test(document, states_drift_and_noise)
{
    struct gate_result r = sample();
    struct js_doc *doc = document(&r);
    const struct js_node *root = js_root(doc), *n;
    const char *text;
    double v;

    cr_expect_eq(number(root, "decode_steps"), 64);
    cr_expect_eq(number(root, "f32_positions"), 0);
    n = js_first(js_get(root, "drift"));
    for (int i = 0; i < 4; i++, n = js_next(n))
        cr_expect(n && js_double(n, &v) && v == r.drift.error[i]);
    cr_expect_null(n);
    n = js_first(js_get(root, "states"));
    cr_expect(js_string(js_get(n, "name"), &text));
    cr_expect_str_eq(text, "kv");
    cr_expect_eq(number(n, "prefill_infer"), 0.25);
    cr_expect_eq(js_kind(js_get(n, "oracle")), JS_NULL);
    n = js_next(n);
    cr_expect_eq(number(n, "oracle"), 0.75);
    cr_expect_null(js_next(n));
    n = js_get(root, "noise");
    cr_expect_eq(js_count(n), 8);
    cr_expect_eq(number(n, "draws"), 3);
    cr_expect_eq(number(n, "cosine_min"), 0.5);
    cr_expect_eq(number(n, "cosine_mean"), 0.875);
    cr_expect_eq(number(n, "kl_mean"), 0.0625);
    cr_expect_eq(number(n, "psnr_min"), 20);
    cr_expect_eq(number(n, "top1_agreement_decided"), 0.625);
    cr_expect_eq(number(n, "relative_diff"), 0.125);
    cr_expect_eq(number(n, "state"), 0.375);
    js_free(doc);
}

Test(document, no_reason_no_divergence_no_checks)
{
    struct gate_result r = { .verdict = GATE_PASS };
    struct js_doc *doc = document(&r);

    cr_expect_null(js_get(js_root(doc), "reason"));
    cr_expect_eq(js_kind(js_get(js_root(doc), "first_divergence")), JS_NULL);
    cr_expect_eq(js_count(js_get(js_root(doc), "checks")), 0);
    cr_expect_eq(js_count(js_get(js_root(doc), "drift")), 0);
    cr_expect_eq(js_count(js_get(js_root(doc), "states")), 0);
    cr_expect_eq(js_kind(js_get(js_root(doc), "noise")), JS_NULL);
    js_free(doc);
}

TestSuite(gate_file, .init = open_dir, .fini = close_dir);

Test(gate_file, replaces_the_last_one)
{
    struct gate_result r = sample();
    struct js_doc *doc;
    const char *text;

    t_write_text(t_path(dir, "gate.json"), "old");
    cr_assert_eq(gate_write(dir, &r, &err), 0, "%s", err.text);
    cr_expect_str_eq(t_names(dir), "gate.json");
    doc = js_read_file(t_path(dir, "gate.json"), 100000, &err);
    cr_assert(doc, "%s", err.text);
    cr_expect(js_string(js_get(js_root(doc), "verdict"), &text));
    cr_expect_str_eq(text, "FAIL");
    js_free(doc);
    r.verdict = GATE_PASS;
    cr_assert_eq(gate_write(dir, &r, &err), 0);
    cr_expect(strstr(t_read_text(t_path(dir, "gate.json")), "\"PASS\""));
}

Test(gate_file, failure_leaves_nothing)
{
    struct gate_result r = sample();

    cr_assert_eq(mkdir(t_path(dir, "gate.json"), 0777), 0);
    cr_assert_eq(gate_write(dir, &r, &err), -1);
    cr_expect_eq(err.code, ERR_IO);
    cr_expect(strstr(err.text, "gate.json"), "%s", err.text);
    cr_expect_str_eq(t_names(dir), "gate.json");
    err_reset(&err);
    cr_assert_eq(gate_write(t_path(dir, "absent"), &r, &err), -1);
    cr_expect(strstr(err.text, "absent"), "%s", err.text);
}

Test(gate_file, text_for_people)
{
    struct gate_result r = sample();
    struct buf out = BUF_INIT;

    r.loss.positions = 1;
    gate_text(&r, &out);
    cr_expect(strstr(buf_text(&out), "FAIL (fp16, 2 prompts, 1 positions): a "
                                     "\"reason\"\n"),
              "%s", buf_text(&out));
    cr_expect(strstr(buf_text(&out), "  against the checkpoint: "));
    buf_clear(&out);
    r.compressed = true;
    gate_text(&r, &out);
    cr_expect(strstr(buf_text(&out), "  loss (against the checkpoint): "));
    cr_expect(strstr(buf_text(&out),
                     "  bytes (against the package's own weights): "));
    buf_release(&out);
}

/* ---- a package of another exporter ---- */

Test(gate_golden, passes_without_a_list_of_sources)
{
    const char *env = getenv("ANEMLL_FIXTURES");
    const char *base =
        env && *env ? env : ANEMLL_SOURCE_DIR "/../shared/fixtures";
    char pkg[1024], ck[1024];
    struct gate_options o = { .profile = RUN_F32 };
    struct gate_result r;
    struct ckpt ckpt;

    snprintf(ck, sizeof(ck), "%s/qwen3-tiny", base);
    snprintf(pkg, sizeof(pkg), "%s/../goldens/packages/qwen3-tiny-coremltools",
             base);
    if (!io_is_dir(pkg) || !io_is_dir(ck))
        cr_skip_test("no golden package at %s", pkg);
    cr_assert_eq(ckpt_open(&ckpt, ck, 0, &err), 0, "%s", err.text);
    o.package = pkg;
    o.ckpt = &ckpt;
    cr_assert_eq(gate_run(&o, &r, &err), 0, "%s", err.text);
    cr_expect_eq(r.verdict, GATE_PASS, "%s", r.reason);
    cr_expect(!r.sourced && !r.compressed);
    cr_expect(r.reached_end && r.crossed_batch);
    cr_expect_gt(r.loss.cosine_min, 0.9999999);
    cr_expect_gt(r.loss.psnr_min, 75);
    cr_expect_lt(r.loss.kl_max, 1e-6);
    made(&r, "weights_missing", false);
    ckpt_close(&ckpt);
}
