/*
 * Finished packages under the replay of ANEMLL's runtimes: they load, run in
 * the runtimes' order, and give what our own order gives. Changes that would
 * break a runtime are planted and must be seen.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "contract.h"
#include "converter/package_run.h"
#include "t_conv.h"
#include "t_pack.h"

TestSuite(contract, .fini = t_conv_clean);

#define MAX_VOCAB 4096
#define N_TOKENS 41 /* two batches of 16, nine tokens */

static void fill(int32_t *tokens, size_t n, int64_t vocab)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)((int64_t)(i * 37 + 11) % vocab);
}

/* Our own order: every position once. */
static void ours(const char *dir, const int32_t *tokens, size_t n,
                 float *logits)
{
    const struct run_options o = { .profile = RUN_FP16 };
    struct err e = ERR_INIT;
    struct package *p = package_open(dir, &o, &e);
    size_t at = 0;

    cr_assert_not_null(p, "%s", e.text);
    for (; at + 16 <= n; at += 16)
        cr_assert_eq(package_feed(p, tokens + at, 16, true, NULL, &e), 0, "%s",
                     e.text);
    cr_assert_eq(package_feed(p, tokens + at, n - at, false, logits, &e), 0,
                 "%s", e.text);
    package_close(p);
}

typedef bool loader(struct ct *c, const char *dir);

typedef bool prompter(struct ct *c, const int32_t *tokens, size_t n,
                      float *logits);

static void expect_same_by(loader *load, prompter *prompt, const char *name)
{
    static float a[MAX_VOCAB], b[MAX_VOCAB];
    const char *dir = t_conv_path(name);
    int32_t tokens[N_TOKENS + 1];
    struct ct c;

    cr_assert(load(&c, dir), "%s: %s", name, c.why);
    cr_assert_leq(c.vocab, MAX_VOCAB);
    cr_expect(c.batched);
    fill(tokens, N_TOKENS + 1, c.vocab);
    cr_assert(prompt(&c, tokens, N_TOKENS, a), "%s: %s", name, c.why);
    ours(dir, tokens, N_TOKENS, b);
    cr_expect(!memcmp(a, b, (size_t)c.vocab * sizeof(float)), "%s: prompt",
              name);
    cr_assert(ct_token(&c, tokens[N_TOKENS], N_TOKENS, a), "%s", c.why);
    ours(dir, tokens, N_TOKENS + 1, b);
    cr_expect(!memcmp(a, b, (size_t)c.vocab * sizeof(float)), "%s: token",
              name);
    for (int64_t i = 0; i < c.vocab; i++)
        cr_assert_eq(ct_swift_id(&c, i), i);
    ct_close(&c);
}

static void expect_same(loader *load, const char *name)
{
    expect_same_by(load, ct_prompt, name);
}

static void expect_runs(const char *name)
{
    char why[600] = "";

    expect_same(ct_load_python, name);
    expect_same(ct_load_python_full, name);
    expect_same(ct_load_swift, name);
    cr_expect(ct_shell(t_conv_path(name), why), "%s: %s", name, why);
    cr_expect(ct_swift_assets(t_conv_path(name), why), "%s: %s", name, why);
}

Test(contract, qwen3)
{
    T_PACK_MAKE("p", .both = true, .arch = "qwen3", .like = "tiny");
    expect_runs("p");
}

Test(contract, qwen3_in_chunks_with_tables)
{
    T_PACK_MAKE("p", .both = true, .arch = "qwen3", .like = "tiny", .lut = "6",
                .chunks = 3, .prefix = "my_model-1", .head_parts = 4);
    expect_runs("p");
}

Test(contract, llama)
{
    T_PACK_MAKE("p", .both = true, .arch = "llama", .like = "tiny", .lut = "4",
                .chunks = 2);
    expect_runs("p");
}

/* The rotate functions from the window on. They shift the local cache, so the
 * token that is run again stands there twice, in ANEMLL's own packages too:
 * only once for each position is there one right answer. */
Test(contract, gemma3)
{
    char why[600];

    T_PACK_MAKE("p", .both = true, .arch = "gemma3", .like = "tiny",
                .chunks = 2);
    expect_same_by(ct_load_python, ct_prompt_once, "p");
    expect_same_by(ct_load_python_full, ct_prompt_once, "p");
    expect_same_by(ct_load_swift, ct_prompt_once, "p");
    cr_expect(ct_shell(t_conv_path("p"), why), "%s", why);
    cr_expect(ct_swift_assets(t_conv_path("p"), why), "%s", why);
}

/* A recurrent state counts the token that is run again twice: the runtimes
 * load and run the package, and compute something else. In the order of the
 * extension it is right. */
Test(contract, qwen3_5_needs_its_own_order)
{
    static float a[MAX_VOCAB], b[MAX_VOCAB];
    const char *dir;
    int32_t tokens[N_TOKENS];
    struct ct c;

    T_PACK_MAKE("p", .both = true, .arch = "qwen3_5", .like = "tiny",
                .lut = "6", .chunks = 2);
    dir = t_conv_path("p");
    cr_assert(ct_load_swift(&c, dir), "%s", c.why);
    fill(tokens, N_TOKENS, c.vocab);
    cr_assert(ct_prompt(&c, tokens, N_TOKENS, a), "%s", c.why);
    ours(dir, tokens, N_TOKENS, b);
    cr_expect(memcmp(a, b, (size_t)c.vocab * sizeof(float)) != 0);
    ct_close(&c);
    expect_same_by(ct_load_swift, ct_prompt_once, "p");
    expect_same_by(ct_load_python, ct_prompt_once, "p");
}

/* One more input: the first decoder call is refused by name. */
Test(contract, gemma4_is_refused_at_the_first_call)
{
    static float a[MAX_VOCAB];
    int32_t tokens[N_TOKENS] = { 1, 2, 3 };
    struct ct c;

    T_PACK_MAKE("p", .both = true, .arch = "gemma4", .like = "tiny");
    cr_assert(ct_load_python(&c, t_conv_path("p")), "%s", c.why);
    cr_expect(!ct_prompt(&c, tokens, N_TOKENS, a));
    cr_expect(strstr(c.why, "per_layer_inputs"), "%s", c.why);
    ct_close(&c);
}

/* ---- what would break a runtime ---- */

static void expect_refused(loader *load, const char *says)
{
    struct ct c;

    cr_expect(!load(&c, t_conv_path("p")), "'%s' was expected", says);
    cr_expect(strstr(c.why, says), "'%s' lacks '%s'", c.why, says);
    ct_close(&c);
}

#define F1 "qwen_FFN_PF_lut4_chunk_01of02.mlpackage"
#define F2 "qwen_FFN_PF_lut4_chunk_02of02.mlpackage"

static void fresh(void)
{
    t_pack_copy("base", "p");
}

static void call_it_otherwise(struct mil_program *p, const void *arg)
{
    (void)arg;
    for (size_t i = 0; i < p->n_functions; i++)
        mil_value(p->functions[i],
                  mil_find_value(p->functions[i], "output_hidden_states"))
            ->name = "hidden_out";
}

static void rename_logits(struct mil_program *p, const void *arg)
{
    (void)arg;
    mil_value(p->functions[0], mil_find_value(p->functions[0], "logits16"))
        ->name = "logits_16";
}

static void bits_none(struct mil_program *p, const void *arg)
{
    (void)arg;
    for (size_t i = 0; i < p->n_metadata; i++)
        if (!strcmp(p->metadata[i].key, "com.anemll.lut_bits"))
            p->metadata[i].value = "none";
}

Test(contract, planted_breaks_are_seen)
{
    char why[600];
    struct ct c;

    T_PACK_MAKE("base", .arch = "qwen3", .like = "tiny", .lut = "4",
                .chunks = 2);
    fresh();
    t_pack_edit("p", "meta.yaml", "    lut_ffn: 4\n", "");
    expect_refused(ct_load_python, "KeyError: lut_ffn");
    fresh();
    t_pack_edit("p", "meta.yaml", "split_lm_head: 16", "split_lm_head: 17");
    expect_refused(ct_load_swift, "'logits17'");
    fresh();
    t_pack_edit("p", "meta.yaml", "split_lm_head: 16", "split_lm_head: \"16\"");
    cr_assert(ct_load_swift(&c, t_conv_path("p")), "%s", c.why);
    cr_expect_eq(c.vocab, 256); /* 8 parts: half of the vocabulary */
    ct_close(&c);
    fresh();
    t_pack_edit("p", "meta.yaml", "num_chunks: 2", "num_chunks: \"2\"");
    cr_expect(!ct_shell(t_conv_path("p"), why));
    fresh();
    t_pack_edit("p", "meta.yaml", "version: 0.3.5", "version: 0.3");
    expect_refused(ct_load_swift, "version");
    fresh();
    t_pack_edit("p", "meta.yaml", "lut_lmhead: 4", "lut_lmhead: 6");
    expect_refused(ct_load_python_full, "no model 'qwen_lm_head_lut6'");
    cr_expect(!ct_shell(t_conv_path("p"), why));
    fresh();
    t_pack_put("p", "qwen_FFN_PF_lut4_chunk_01of02_rot.mlpackage/x", "x");
    expect_refused(ct_load_python, "3 chunk files, 2 by their names");
    fresh();
    t_pack_rename("p", F2, "qwen_FFN_PF_lut4_chunk_2of2.mlpackage");
    expect_refused(ct_load_swift, "chunk_02of02");
    fresh();
    t_pack_program("p", F2, call_it_otherwise, NULL);
    expect_refused(ct_load_swift, "no output_hidden_states");
    fresh();
    t_pack_program("p", "qwen_lm_head_lut4.mlpackage", rename_logits, NULL);
    expect_refused(ct_load_python, "'logits16'");
    fresh();
    t_pack_program("p", "qwen_lm_head_lut4.mlpackage", bits_none, NULL);
    expect_refused(ct_load_python, "ValueError: com.anemll.lut_bits 'none'");
    fresh();
    t_pack_edit("p", "config.json", "\"eos_token_id\"", "\"eos\"");
    cr_expect(!ct_swift_assets(t_conv_path("p"), why));
}

/* A context that meta.yaml has wrong: the mask has another shape than the
 * input. */
Test(contract, a_wrong_context_fails_at_the_first_call)
{
    static float a[MAX_VOCAB];
    int32_t tokens[3] = { 1, 2, 3 };
    struct ct c;

    T_PACK_MAKE("p", .arch = "qwen3", .like = "tiny");
    t_pack_edit("p", "meta.yaml", "context_length: 64", "context_length: 32");
    cr_assert(ct_load_python(&c, t_conv_path("p")), "%s", c.why);
    cr_expect(!ct_prompt(&c, tokens, 3, a));
    cr_expect(strstr(c.why, "causal_mask"), "%s", c.why);
    ct_close(&c);
}
