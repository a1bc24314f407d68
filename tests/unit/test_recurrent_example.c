/*
 * docs/RECURRENT.md: its code is this file's, word for word, and is run here;
 * its figures are what the run gives; and package_run.h does the same.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/package_run.h"
#include "mil/run/run.h"
#include "schema/package.h"
#include "t_conv.h"

static struct err err;

/* ---- the package of the page ---- */

#define PARTS 4 /* embeddings, two chunks, LM head */
#define PROMPT 34
#define V 512

static struct pkg *files[PARTS];
static struct run_model *parts[PARTS];
static struct run_states *states;

static void set_up(void)
{
    static const char *const names[PARTS] = {
        "embeddings", "FFN_PF_chunk_01of02", "FFN_PF_chunk_02of02", "lm_head"
    };
    const struct run_options o = { .profile = RUN_F32 };
    struct cv_options c;
    char path[128];

    t_conv_synth("qwen3_5", "tiny", "m");
    c = t_conv_options("m");
    c.chunks = 2;
    c.lut_ffn.bits = c.lut_head.bits = 0;
    t_conv_run(&c, "pkg");
    for (int i = 0; i < PARTS; i++) {
        snprintf(path, sizeof path, "pkg/qwen35_%s.mlpackage", names[i]);
        files[i] = pkg_open(t_conv_path(path), &err);
        cr_assert(files[i], "%s", err.text);
        parts[i] = run_open(pkg_program(files[i]), &o, &err);
        cr_assert(parts[i], "%s", err.text);
    }
    states = run_states_new(&err);
}

static void tear_down(void)
{
    for (int i = 0; i < PARTS; i++) {
        run_close(parts[i]);
        pkg_close(files[i]);
    }
    run_states_free(states);
    t_conv_clean();
}

TestSuite(recurrent_example, .init = set_up, .fini = tear_down);

static struct run_tensor input(const char *name, enum mil_dtype dtype, int rank,
                               const int64_t *dims, const void *data)
{
    return (struct run_tensor){ name, mil_type_make(dtype, rank, dims), data };
}

/* The outputs of a part; they stay until it is called again. */
static const struct run_tensor *predict(int part, const char *function,
                                        const struct run_tensor *in, size_t n)
{
    static struct run_tensor out[16];
    size_t n_out;

    cr_assert_eq(run_call(parts[part], function, states, in, n, out, 16, &n_out,
                          &err),
                 0, "%s", err.text);
    return out;
}

/* What follows, up to the next line of dashes, is in the page. */

/* ---- begin ---- */

/* H, C and B are hidden_size, context_length and batch_size of meta.yaml. */
enum { H = 128, C = 64, B = 16 };

/* Runs all parts on T tokens at positions p ... p + T - 1; T is B or 1.
 * Returns the last chunk's output: the last token's hidden state. */
static const float *call(const int32_t *ids, int32_t T, int32_t p)
{
    const char *function = T == 1 ? "infer" : "prefill";
    int32_t positions[B];
    float mask[B * C];
    struct run_tensor in[4];

    for (int32_t t = 0; t < T; t++) {
        positions[t] = p + t;
        for (int32_t c = 0; c < C; c++)
            mask[t * C + c] = c <= p + t ? 0.0f : -INFINITY;
    }
    in[0] = input("input_ids", MIL_I32, 2, (int64_t[]){ 1, T }, ids);
    in[0] = *predict(0, NULL, in, 1); /* hidden_states [1, T, H] */
    in[1] = input("position_ids", MIL_I32, 1, (int64_t[]){ T }, positions);
    in[2] = input("causal_mask", MIL_F16, 4, (int64_t[]){ 1, 1, T, C }, mask);
    in[3] = input("current_pos", MIL_I32, 1, (int64_t[]){ 1 }, &p);
    for (int chunk = 1; chunk <= 2; chunk++) {
        in[0].name = "hidden_states";
        in[0] = *predict(chunk, function, in, 4);
    }
    return in[0].data;
}

/* Full batches through prefill, the rest through infer, every position once
 * and in order. */
static const float *prompt(const int32_t *ids, int32_t n)
{
    const float *hidden = NULL;
    int32_t p = 0;

    for (; p + B <= n; p += B)
        hidden = call(ids + p, B, p);
    for (; p < n; p++)
        hidden = call(ids + p, 1, p);
    return hidden; /* of the call that took token n - 1, whichever it was */
}

/* The LM head's sixteen outputs, one behind the other. */
static void head(const float *hidden, float *logits)
{
    struct run_tensor in =
        input("hidden_states", MIL_F16, 3, (int64_t[]){ 1, 1, H }, hidden);
    const struct run_tensor *out = predict(3, NULL, &in, 1);

    for (int i = 0; i < 16; i++, logits += out[i - 1].type.dims[2])
        memcpy(logits, out[i].data,
               (size_t)out[i].type.dims[2] * sizeof(*logits));
}

/* ---- end ---- */

static int32_t best(const float *x)
{
    int32_t b = 0;

    for (int32_t i = 1; i < V; i++)
        if (x[i] > x[b])
            b = i;
    return b;
}

static void fill(int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (31 * i + 7) % V;
}

static double largest(const char *name)
{
    const struct mil_type *type;
    const float *x = run_state_data(states, name, &type);
    double max = 0;

    cr_assert(x, "%s", name);
    for (int64_t i = 0; i < mil_type_elems(type); i++)
        max = fmax(max, fabs((double)x[i]));
    return max;
}

/* ---- the page ---- */

static char *page(void)
{
    struct buf b = BUF_INIT;
    char *text;

    cr_assert_eq(io_read_file(ANEMLL_SOURCE_DIR "/docs/RECURRENT.md", 1 << 20,
                              &b, &err),
                 0, "%s", err.text);
    text = mem_strdup(buf_text(&b), &err);
    buf_release(&b);
    return text;
}

Test(recurrent_example, the_code_of_the_page_is_this)
{
    char *text = page(), *from = strstr(text, "```c\n"), *to, *here, *a, *z;
    struct buf b = BUF_INIT;

    cr_assert_eq(io_read_file(ANEMLL_SOURCE_DIR
                              "/tests/unit/test_recurrent_example.c",
                              1 << 20, &b, &err),
                 0, "%s", err.text);
    here = mem_strdup(buf_text(&b), &err);
    a = strstr(here, "/* ---- begin ---- */\n\n");
    z = strstr(here, "\n/* ---- end ---- */");
    cr_assert(from && a && z);
    a = strchr(a, '\n') + 2;
    from += strlen("```c\n");
    to = strstr(from, "```");
    cr_assert(to);
    cr_expect(to - from == z - a && !strncmp(from, a, (size_t)(z - a)),
              "docs/RECURRENT.md has other code than this test runs");
    buf_release(&b);
    mem_free(here);
    mem_free(text);
}

/* The row of a table that begins with "| key |", as numbers. */
static int row(const char *text, const char *key, double *v, int n)
{
    char begin[64];
    const char *s;
    int i = 0;

    snprintf(begin, sizeof begin, "\n| %s |", key);
    s = strstr(text, begin);
    cr_assert(s, "no row '%s' in docs/RECURRENT.md", key);
    for (s += strlen(begin); i < n && *s != '\n'; i++) {
        v[i] = strtod(s, NULL);
        s = strchr(s, '|') + 1;
    }
    return i;
}

/* Within half a unit of the fourth figure. */
static void expect_row(const char *text, const char *key, const double *now,
                       int n)
{
    double v[8];

    cr_assert_eq(row(text, key, v, n), n, "%s", key);
    for (int i = 0; i < n; i++)
        cr_expect(fabs(v[i] - now[i]) <= 1e-3 * fabs(now[i]),
                  "%s, number %d: the page says %g, the run gives %g", key, i,
                  v[i], now[i]);
}

static void state_row(const char *text, const char *key, const float *logits)
{
    double now[5] = { 0 };

    now[0] = largest("model_model_kv_cache_0");
    now[1] = largest("model_model_gdn_state_0");
    now[2] = largest("model_model_conv_state_0");
    if (logits) {
        now[3] = best(logits);
        now[4] = (double)logits[best(logits)];
    }
    cr_log_info("| %s | %.4g | %.4g | %.4g | %g | %.4g |", key, now[0], now[1],
                now[2], now[3], now[4]);
    expect_row(text, key, now, logits ? 5 : 3);
}

Test(recurrent_example, the_figures_of_the_page)
{
    char *text = page();
    float logits[V];
    int32_t ids[PROMPT], next;

    fill(ids, PROMPT);
    call(ids, B, 0);
    state_row(text, "prefill, 0 to 15", NULL);
    head(call(ids + 16, B, 16), logits);
    state_row(text, "prefill, 16 to 31", logits);
    call(ids + 32, 1, 32);
    state_row(text, "infer, 32", NULL);
    head(call(ids + 33, 1, 33), logits);
    state_row(text, "infer, 33", logits);
    next = best(logits);
    head(call(&next, 1, 34), logits);
    state_row(text, "infer, 34", logits);
    mem_free(text);
}

static double apart(const float *a, const float *b)
{
    double diff = 0, max = 0;

    for (int i = 0; i < V; i++) {
        diff = fmax(diff, fabs((double)a[i] - (double)b[i]));
        max = fmax(max, fabs((double)b[i]));
    }
    return diff / max;
}

/* What comes of wrong calls: the logits behind the next token, against those
 * of right ones. */
Test(recurrent_example, the_mistakes_of_the_page)
{
    char *text = page();
    float right[V], wrong[V];
    int32_t ids[PROMPT + 1], padded[B];
    double now;

    fill(ids, PROMPT + 1);
    prompt(ids, PROMPT);
    head(call(ids + PROMPT, 1, PROMPT), right);

    run_states_reset(states);
    prompt(ids, PROMPT);
    call(ids + PROMPT - 1, 1, PROMPT - 1);
    head(call(ids + PROMPT, 1, PROMPT), wrong);
    now = apart(wrong, right);
    expect_row(text, "the last token of the prompt run again", &now, 1);

    run_states_reset(states);
    memset(padded, 0, sizeof padded);
    memcpy(padded, ids + 32, 2 * sizeof *padded);
    prompt(ids, 32);
    call(padded, B, 32); /* writes what is beyond 33, too */
    head(call(ids + PROMPT, 1, PROMPT), wrong);
    now = apart(wrong, right);
    expect_row(text, "the rest padded to a batch", &now, 1);

    /* The caller forgot to make new states for the next prompt. */
    prompt(ids, PROMPT);
    head(call(ids + PROMPT, 1, PROMPT), wrong);
    now = apart(wrong, right);
    expect_row(text, "states of another prompt", &now, 1);
    mem_free(text);
}

/* ---- what the tools use ---- */

Test(recurrent_example, package_run_does_the_same)
{
    const struct run_options o = { .profile = RUN_F32 };
    struct package *p = package_open(t_conv_path("pkg"), &o, &err);
    float a[V], b[V];
    int32_t ids[PROMPT];

    cr_assert(p, "%s", err.text);
    fill(ids, PROMPT);
    head(prompt(ids, PROMPT), a);
    cr_assert_eq(package_feed(p, ids, B, true, NULL, &err), 0);
    cr_assert_eq(package_feed(p, ids + B, B, true, NULL, &err), 0);
    cr_assert_eq(package_feed(p, ids + 2 * B, 2, true, b, &err), 0);
    cr_expect_eq(memcmp(a, b, sizeof a), 0);
    package_close(p);
}
