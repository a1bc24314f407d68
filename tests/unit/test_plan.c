/*
 * Options and plans: figures against what is written, names, chunks, parts of
 * the head, limits, and every published config.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "converter/base/compiler.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/synth.h"
#include "models/parts_gdn.h"
#include "t_ckpt.h"
#include "t_conv.h"

TestSuite(plan, .fini = t_conv_clean);

/* ---- options ---- */

static void lut_is(const char *text, int bits, uint64_t group)
{
    struct err e = ERR_INIT;
    struct cv_lut l = { -1, 99 };

    cr_assert_eq(cv_lut_parse("--lut", text, &l, &e), 0, "%s: %s", text,
                 e.text);
    cr_expect(l.bits == bits && l.group == group, "%s: %d,%" PRIu64, text,
              l.bits, l.group);
}

Test(plan, lut_options)
{
    static const char *const bad[] = {
        "",     "0",         "5",         "7",
        "9",    "16",        "six",       "6,",
        "6,x",  "6,-8",      "6,8,2",     "6x",
        " 6",   "6 ",        "6,8 ",      "none,8",
        "None", "06",        "6.0",       "6,1e1",
        "-6",   "6,tensors", "6,1048577", "6,99999999999999999999",
    };

    lut_is("none", 0, 8);
    lut_is("6", 6, 8);
    lut_is("4,16", 4, 16);
    lut_is("1,1", 1, 1);
    lut_is("8,0", 8, 0);
    lut_is("3,tensor", 3, 0);
    lut_is("2,t", 2, 0);
    lut_is("6,1048576", 6, 1048576);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err e = ERR_INIT;
        struct cv_lut l;

        cr_expect_eq(cv_lut_parse("--lut2", bad[i], &l, &e), -1, "'%s'",
                     bad[i]);
        cr_expect_eq((int)e.code, (int)ERR_USAGE);
        cr_expect(strstr(e.text, "--lut2: "), "%s", e.text);
    }
}

static void refused(const struct cv_options *o, const char *says)
{
    struct err e = ERR_INIT;
    struct cv_job j;

    cr_expect_eq(cv_job_open(&j, o, true, &e), -1, "'%s' was expected", says);
    cr_expect_eq((int)e.code, (int)ERR_USAGE, "%s", e.text);
    cr_expect(strstr(e.text, says), "'%s' lacks '%s'", e.text, says);
}

static void plan(const struct cv_options *o, struct cv_job *j)
{
    struct err e = ERR_INIT;

    cr_assert_eq(cv_job_open(j, o, true, &e), 0, "%s", e.text);
}

Test(plan, shapes_that_cannot_be)
{
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o, good;

    t_model_write(&m, "m");
    good = o = t_conv_options("m");
    o.batch = 0;
    refused(&o, "--batch 0");
    o.batch = 4097;
    refused(&o, "--batch 4097");
    o = good;
    o.ctx = 72;
    refused(&o, "--ctx 72 is not a multiple of the batch of 16");
    o.ctx = 0;
    refused(&o, "--ctx 0");
    o.ctx = -16;
    refused(&o, "--ctx -16");
    o.ctx = 144;
    refused(&o, "--ctx 144 is above the model's 128 positions");
    o = good;
    o.chunks = 3;
    refused(&o, "--chunks 3: between 1 and 2 chunks");
    o.chunks = -1;
    refused(&o, "--chunks -1");
    o = good;
    o.head_parts = 3;
    refused(&o, "--split-lm-head 3 does not divide the vocabulary of 64");
    o.head_parts = -4;
    refused(&o, "--split-lm-head -4 is not between 1 and 256");
    o.head_parts = 512; /* it divides, and is too many */
    refused(&o, "--split-lm-head 512 is not between 1 and 256");
    o = good;
    o.max_chunk_mb = 0;
    refused(&o, "--max-chunk-mb 0");
    o.max_chunk_mb = INT64_MAX;
    refused(&o, "--max-chunk-mb 9223372036854775807");
}

Test(plan, prefixes)
{
    static const char longest[] =
        "A23456789012345678901234567890123456789012345678";
    static const char *const good[] = { "q", "My_Model-2", "nope", "gemma",
                                        longest };
    static const char *const bad[] = {
        "",
        "no",
        "NO",
        "Null",
        "true",
        "On",
        "y",
        "1x",
        "0x10",
        "1e5",
        "-x",
        "_x",
        "a.b",
        "a b",
        "a/b",
        "..",
        "a:",
        "\xc3\xa9",
        "a#",
        "~",
        "A234567890123456789012345678901234567890123456789",
        "x_chunk_01of02",
        "myFFN",
        "gemma3",
        "gemma3x"
    };
    struct t_model m = t_model_tiny("llama");
    struct cv_options o;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct cv_job j;

        o.prefix = good[i];
        plan(&o, &j);
        cr_expect(!strncmp(j.parts[0].name, good[i], strlen(good[i])));
        cv_job_close(&j);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        o.prefix = bad[i];
        refused(&o, "--prefix '");
    }
}

/* ---- names ---- */

static void named(const char *model, const char *want)
{
    struct cv_options o = t_conv_options(model);
    struct cv_job j;
    char full[300];

    plan(&o, &j);
    snprintf(full, sizeof full, "anemll-%s-ctx64", want);
    cr_expect_str_eq(j.name, full, "%s: %s", model, j.name);
    snprintf(full, sizeof full, "./anemll-%s-ctx64", want);
    cr_expect_str_eq(j.output, full);
    cv_job_close(&j);
}

Test(plan, names_of_models)
{
    struct t_model m = t_model_tiny("llama");
    char longest[300] = "", cut[101] = "";

    t_model_write(&m, "Small-1B");
    t_model_write(&m, "models--Qwen--Qwen3-0.6B/snapshots/c1899de");
    t_model_write(&m, "plain/snapshots/abc");
    t_model_write(&m, "x/snapshots/abc/sub");
    t_model_write(&m, "a b&c(d)");
    for (int i = 0; i < 250; i++)
        longest[i] = cut[i < 100 ? i : 99] = 'n';
    t_model_write(&m, longest);
    cr_assert_eq(symlink("models--Qwen--Qwen3-0.6B/snapshots/c1899de",
                         t_conv_path("link")),
                 0);
    named("Small-1B", "Small-1B");
    named("Small-1B///", "Small-1B");
    named("Small-1B/.", "Small-1B");
    named("x/../Small-1B", "Small-1B");
    named("models--Qwen--Qwen3-0.6B/snapshots/c1899de", "Qwen-Qwen3-0.6B");
    named("models--Qwen--Qwen3-0.6B/snapshots/c1899de/", "Qwen-Qwen3-0.6B");
    named("link", "Qwen-Qwen3-0.6B");
    named("plain/snapshots/abc", "plain");
    named("x/snapshots/abc/sub", "sub");
    named("a b&c(d)", "a_b_c_d_");
    named(longest, cut);
    cr_assert_eq(chdir(t_conv_path("Small-1B")), 0);
    {
        struct cv_options o = t_conv_options(".");
        struct cv_job j;

        o.model = ".";
        plan(&o, &j);
        cr_expect_str_eq(j.name, "anemll-Small-1B-ctx64");
        cv_job_close(&j);
    }
    cr_assert_eq(chdir("/"), 0);
}

Test(plan, names_of_parts)
{
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;
    struct cv_job j;

    m.layers = 12;
    t_model_write(&m, "m");
    o = t_conv_options("m");
    o.chunks = 12;
    o.lut_head = (struct cv_lut){ 8, 0 };
    o.lut_embeddings = (struct cv_lut){ 6, 8 };
    plan(&o, &j);
    cr_expect_eq(j.n_parts, 14);
    cr_expect_str_eq(j.parts[0].name, "qwen_embeddings_lut6");
    cr_expect_str_eq(j.parts[1].name, "qwen_FFN_PF_lut4_chunk_01of12");
    cr_expect_str_eq(j.parts[12].name, "qwen_FFN_PF_lut4_chunk_12of12");
    cr_expect_str_eq(j.parts[13].name, "qwen_lm_head_lut8");
    cv_job_close(&j);
}

/* ---- chunks ---- */

Test(plan, first_chunks_take_the_remainder)
{
    static const int64_t want[][5] = {
        { 7 }, { 4, 3 }, { 3, 2, 2 }, { 2, 2, 2, 1 }, { 2, 2, 1, 1, 1 }
    };
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;

    m.layers = 7;
    t_model_write(&m, "m");
    o = t_conv_options("m");
    for (int c = 1; c <= 5; c++) {
        int64_t first = 0;
        struct cv_job j;

        o.chunks = c;
        plan(&o, &j);
        for (int i = 0; i < c; i++) {
            cr_expect_eq(j.parts[1 + i].n_layers, want[c - 1][i]);
            cr_expect_eq(j.parts[1 + i].first_layer, first);
            first += j.parts[1 + i].n_layers;
        }
        cr_expect_eq(first, 7);
        cv_job_close(&j);
    }
}

/* A published config in a folder of its own; false where there is none. */
static bool config(const char *name)
{
    const char *root = t_ckpt_shared("configs");
    char path[1200], *text;

    if (!root)
        return false;
    snprintf(path, sizeof path, "%s/%s/config.json", root, name);
    text = t_conv_text(path, NULL);
    snprintf(path, sizeof path, "%s/config.json", name);
    t_conv_put(path, text);
    mem_free(text);
    return true;
}

/* Fewest chunks whose largest stays below the limit, by trying all. */
static void expect_fewest(struct cv_options *o)
{
    struct cv_job j;
    int chosen;

    o->chunks = 0;
    plan(o, &j);
    chosen = j.chunks;
    cv_job_close(&j);
    for (int c = 1; c <= chosen; c++) {
        uint64_t largest = 0;

        o->chunks = c;
        plan(o, &j);
        for (int i = 1; i <= c; i++)
            if (j.parts[i].weight_bytes > largest)
                largest = j.parts[i].weight_bytes;
        cv_job_close(&j);
        cr_expect((largest <= (uint64_t)o->max_chunk_mb * 1000000) ==
                      (c == chosen),
                  "%d of %d chunks: %" PRIu64, c, chosen, largest);
    }
}

Test(plan, auto_takes_as_few_chunks_as_fit, .timeout = 60)
{
    struct cv_options o;

    if (!config("Qwen3-0.6B"))
        cr_skip_test("no shared configs");
    o = t_conv_options("Qwen3-0.6B");
    o.lut_ffn.bits = 6;
    o.max_chunk_mb = 950;
    expect_fewest(&o);
    o.max_chunk_mb = 90;
    expect_fewest(&o);
    o.max_chunk_mb = 37;
    expect_fewest(&o);
}

Test(plan, a_layer_above_the_limit_is_said)
{
    struct cv_options o;
    struct cv_job j;

    if (!config("Qwen3-0.6B"))
        cr_skip_test("no shared configs");
    o = t_conv_options("Qwen3-0.6B");
    o.max_chunk_mb = 1;
    plan(&o, &j);
    cr_expect_eq(j.chunks, 28);
    cr_expect(strstr(buf_text(&j.notes), "one layer alone is above"), "%s",
              buf_text(&j.notes));
    cv_job_close(&j);
}

/* ---- the head ---- */

static int head_parts(uint64_t vocab, const char *note)
{
    char text[900];
    struct cv_options o;
    struct cv_job j;
    int n;

    snprintf(text, sizeof text,
             "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": "
             "\"qwen3\", \"vocab_size\": %" PRIu64 ", \"hidden_size\": 64, "
             "\"intermediate_size\": 64, \"num_hidden_layers\": 1, "
             "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
             "\"head_dim\": 32, \"max_position_embeddings\": 128, "
             "\"tie_word_embeddings\": true, \"rope_theta\": 1e4}",
             vocab);
    t_conv_put("v/config.json", text);
    o = t_conv_options("v");
    plan(&o, &j);
    n = j.head_parts;
    for (int i = 0; i < n; i++)
        cr_expect_eq((uint64_t)j.head_sizes[i] * (uint64_t)n, vocab);
    if (note)
        cr_expect(strstr(buf_text(&j.notes), note), "%s", buf_text(&j.notes));
    else
        cr_expect(!strstr(buf_text(&j.notes), "LM head"), "%s",
                  buf_text(&j.notes));
    cv_job_close(&j);
    return n;
}

Test(plan, head_in_equal_parts)
{
    cr_expect_eq(head_parts(151936, NULL), 16);
    cr_expect_eq(head_parts(64, NULL), 16);
    cr_expect_eq(head_parts(1999, "LM head: 1 equal parts, since 1999"), 1);
    cr_expect_eq(head_parts(1001, "do not split into 16"), 13);
    /* parts below the axis limit are nearer than fewer */
    cr_expect_eq(head_parts(524288, "32 equal parts"), 32);
    cr_expect_eq(head_parts(150001, "parts of 150001 rows are above 16384"), 1);
}

/* ---- figures ---- */

/* Tables and scales of a few entries stand in the text, and are measured as if
 * they were long. */
static bool in_text(const struct cv_lut *l)
{
    return l->bits == 1 || (l->linear && !l->group);
}

static void expect_figures(struct cv_options *o, const char *what)
{
    struct err e = ERR_INIT;
    uint64_t bytes, off;
    struct cv_job j;

    o->output = t_conv_path("fig");
    cr_assert_eq(cv_job_open(&j, o, false, &e), 0, "%s", e.text);
    cr_assert_eq(cv_convert(&j, NULL, &e), 0, "%s", e.text);
    bytes = t_conv_bytes("fig");
    off = bytes > j.disk_bytes ? bytes - j.disk_bytes : j.disk_bytes - bytes;
    cr_expect_leq(off, bytes / 100, "%s: disk %" PRIu64 " of %" PRIu64, what,
                  j.disk_bytes, bytes);
    for (size_t i = 0; i < j.n_parts; i++) {
        const struct cv_part *p = &j.parts[i];

        cr_expect_eq(p->weight_bytes, p->written_weights,
                     "%s, %s: %" PRIu64 " planned, %" PRIu64 " written", what,
                     p->name, p->weight_bytes, p->written_weights);
        cr_expect_eq(o->emit & CV_EMIT_PACKAGE ? p->model_bytes : 0,
                     p->written_model,
                     "%s, %s: message %" PRIu64 " of %" PRIu64, what, p->name,
                     p->model_bytes, p->written_model);
        cr_expect(p->compiled_bytes >= p->written_compiled &&
                      p->compiled_bytes - p->written_compiled <=
                          (in_text(&p->lut) ? p->written_compiled / 50 : 0),
                  "%s, %s: compiled %" PRIu64 " of %" PRIu64, what, p->name,
                  p->compiled_bytes, p->written_compiled);
        cr_expect_eq(p->palettized, p->weights);
    }
    cv_job_close(&j);
    cr_assert_eq(io_remove_tree(t_conv_path("fig"), &e), 0);
}

Test(plan, figures_are_what_is_written)
{
    static const int widths[] = { 0, 1, 2, 3, 4, 6, 8 };
    struct cv_options o;

    t_conv_synth("qwen3", "tiny", "q");
    t_conv_synth("qwen3", "odd", "d");
    t_conv_synth("llama", "tiny", "l");
    for (size_t i = 0; i < 7; i++) {
        o = t_conv_options("q");
        o.lut_ffn.bits = o.lut_head.bits = widths[i];
        expect_figures(&o, "qwen3 tiny");
    }
    o = t_conv_options("d");
    o.chunks = 3;
    o.lut_ffn = (struct cv_lut){ 6, 0 };
    o.lut_head = (struct cv_lut){ 4, 16 };
    o.lut_embeddings = (struct cv_lut){ 8, 1 };
    expect_figures(&o, "qwen3 odd");
    o = t_conv_options("l");
    o.chunks = 2;
    o.ctx = 512;
    o.batch = 64;
    o.lut_ffn = (struct cv_lut){ 4, 4 };
    expect_figures(&o, "llama tiny");
    o.lut_ffn = o.lut_head = (struct cv_lut){ 8, 0, true };
    expect_figures(&o, "one scale");
}

/* Weights count once, whatever the forms. */
Test(plan, figures_of_each_form)
{
    struct cv_options o;

    t_conv_synth("qwen3", "tiny", "q");
    o = t_conv_options("q");
    o.emit = CV_EMIT_PACKAGE;
    expect_figures(&o, "packages alone");
    o.emit = CV_EMIT_COMPILED;
    expect_figures(&o, "compiled alone");
    o.emit = CV_EMIT_BOTH;
    o.budget = 5; /* planned anew */
    expect_figures(&o, "both, under a budget");
}

/* Recurrent layers: constants of the chunked form, which all layers share;
 * experts, whose rows are chosen and turned. */
Test(plan, figures_of_hybrid_models)
{
    static const struct {
        const char *arch, *like;
        int bits;
        uint64_t group;
        int chunks;
        int64_t batch;
    } rows[] = {
        { "qwen3_5", "tiny", 6, 8, 1, 64 },
        { "qwen3_5", "tiny", 0, 8, 3, 32 },
        { "qwen3_5", "odd", 4, 0, 5, 16 },
        { "qwen3_5_moe", "tiny", 6, 8, 2, 64 },
        { "qwen3_5_moe", "odd", 0, 8, 1, 16 },
        { "qwen3_5_moe", "odd", 8, 4, 3, 128 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct cv_options o;
        char dir[32];

        snprintf(dir, sizeof dir, "m%zu", i);
        t_conv_synth(rows[i].arch, rows[i].like, dir);
        o = t_conv_options(dir);
        o.ctx = 256;
        o.batch = rows[i].batch;
        o.chunks = rows[i].chunks;
        o.lut_ffn = (struct cv_lut){ rows[i].bits, rows[i].group };
        expect_figures(&o, rows[i].arch);
    }
}

Test(plan, figures_of_the_fixtures)
{
    static const char *const names[] = { "qwen3-tiny",  "qwen3-odd",
                                         "llama-odd",   "qwen3_5-tiny",
                                         "qwen3_5-odd", "qwen3_5_moe-tiny" };
    const char *root = t_ckpt_shared("fixtures");

    if (!root)
        cr_skip_test("no shared fixtures");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct cv_options o;
        char path[1100];

        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        o = t_conv_options(path);
        o.ctx = 256;
        o.batch = 64;
        o.chunks = i ? 2 : 0;
        expect_figures(&o, names[i]);
    }
}

static uint64_t states_of(const char *name)
{
    struct cv_options o = t_conv_options(name);
    struct cv_job j;
    uint64_t bytes;

    o.ctx = 512;
    o.batch = 64;
    plan(&o, &j);
    bytes = j.state_bytes;
    cv_job_close(&j);
    return bytes;
}

Test(plan, figures_of_published_models)
{
    if (!config("Qwen3-0.6B") || !config("Llama-3.2-1B-Instruct"))
        cr_skip_test("no shared configs");
    /* 2 x layers x heads x context x width x 2 bytes */
    cr_expect_eq(states_of("Qwen3-0.6B"), UINT64_C(2) * 28 * 8 * 512 * 128 * 2);
    cr_expect_eq(states_of("Llama-3.2-1B-Instruct"),
                 UINT64_C(2) * 16 * 8 * 512 * 64 * 2);
}

/* Matrices of a layer, by the shapes that their names have. */
static uint64_t hybrid_matrices(const struct hparams *hp, int64_t layer)
{
    int64_t H = hp->hidden, v = hp->lin_value_heads * hp->lin_value_dim;
    int64_t c = 2 * hp->lin_key_heads * hp->lin_key_dim + v;
    int64_t q = hp->heads * hp->head_dim, kv = hp->kv_heads * hp->head_dim;
    int64_t mixer = hp->layer_kind[layer] == HP_LAYER_FULL
                        ? 2 * q * H + 2 * kv * H + q * H
                        : c * H + v * H + v * H;
    int64_t mlp = hp->experts ? hp->experts * 3 * hp->moe_intermediate * H +
                                    3 * hp->shared_intermediate * H
                              : 3 * hp->intermediate * H;

    return (uint64_t)(mixer + mlp);
}

/* Nothing is forgotten and nothing counted twice, from the config alone: 6-bit
 * indices, tables of 64 for each 8 rows, and less than 2 % of other things. */
static void expect_published(const char *name, uint64_t parameters)
{
    struct cv_options o = t_conv_options(name);
    uint64_t want = 0, bytes = 0;
    struct cv_job j;

    o.lut_ffn = o.lut_head = (struct cv_lut){ 6, 8 };
    plan(&o, &j);
    cr_expect_eq(hparams_count(&j.ckpt.hp), parameters);
    for (size_t i = 0; i < j.n_parts; i++) {
        const struct cv_part *p = &j.parts[i];
        uint64_t weights = 0;

        for (int64_t l = 0; l < p->n_layers; l++)
            weights += hybrid_matrices(&j.ckpt.hp, p->first_layer + l);
        if (p->kind == CV_HEAD)
            weights = (uint64_t)(j.ckpt.hp.vocab * j.ckpt.hp.hidden);
        cr_expect_eq(p->weights, weights, "%s, %s: %" PRIu64 " of %" PRIu64,
                     name, p->name, p->weights, weights);
        want += p->weights * 6 / 8;
        bytes += p->kind == CV_EMBEDDINGS ? 0 : p->weight_bytes;
    }
    cr_expect(bytes > want && bytes < want + want / 25,
              "%s: %" PRIu64 " bytes for %" PRIu64, name, bytes, want);
    cv_job_close(&j);
}

Test(plan, figures_of_published_hybrids, .timeout = 60)
{
    static const struct {
        const char *name;
        uint64_t parameters;
    } rows[] = {
        { "Qwen3.5-0.8B-reformatted", 752393024 },
        { "Qwen3.5-4B", 4205751296 },
        { "Qwen3.5-27B", 26895998464 },
        { "Qwen3.8-27B", 26895998464 },
        { "Qwen3.5-35B-A3B", 34660610688 },
        { "Qwen3.6-35B-A3B", 34660610688 },
        { "Qwen3.5-397B-A17B", 396346350336 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!config(rows[i].name))
            cr_skip_test("no shared configs");
        expect_published(rows[i].name, rows[i].parameters);
    }
}

/* A plan needs no more than the config to tell what will be written. */
Test(plan, config_alone_and_checkpoint_agree)
{
    static const char *const archs[] = { "qwen3_5", "qwen3_5_moe" };
    static const char *const likes[] = { "tiny", "odd" };

    for (int i = 0; i < 4; i++) {
        struct err e = ERR_INIT;
        struct cv_options o, bare;
        struct cv_job a, b;
        char dir[32], alone[32], file[64], *text;

        snprintf(dir, sizeof dir, "m%d", i);
        snprintf(alone, sizeof alone, "c%d", i);
        t_conv_synth(archs[i / 2], likes[i % 2], dir);
        snprintf(file, sizeof file, "%s/config.json", dir);
        text = t_conv_text(file, NULL);
        snprintf(file, sizeof file, "%s/config.json", alone);
        t_conv_put(file, text);
        mem_free(text);
        o = t_conv_options(dir);
        bare = t_conv_options(alone);
        cr_assert_eq(cv_job_open(&a, &o, false, &e), 0, "%s", e.text);
        plan(&bare, &b);
        cr_assert_eq(a.n_parts, b.n_parts);
        for (size_t k = 0; k < a.n_parts; k++) {
            cr_expect_eq(a.parts[k].weight_bytes, b.parts[k].weight_bytes);
            cr_expect_eq(a.parts[k].model_bytes, b.parts[k].model_bytes);
        }
        cr_expect_eq(a.expert_bytes, b.expert_bytes);
        cv_job_close(&a);
        cv_job_close(&b);
    }
}

/* ---- experts ---- */

static bool plan_says(const struct cv_job *j, const char *text)
{
    struct buf b = BUF_INIT;
    bool found;

    cv_plan_text(j, &b);
    found = strstr(buf_text(&b), text) != NULL;
    buf_release(&b);
    return found;
}

Test(plan, experts_are_counted)
{
    const uint64_t experts = UINT64_C(4) * 16 * 3 * 20 * 96;
    struct cv_options o;
    struct cv_job j;

    t_conv_synth("qwen3_5_moe", "tiny", "m");
    o = t_conv_options("m");
    o.lut_ffn.bits = 0;
    o.chunks = 2;
    plan(&o, &j);
    cr_expect_eq(j.expert_bytes, 2 * experts);
    cr_expect_eq(j.dense_bytes, j.parts[1].weight_bytes +
                                    j.parts[2].weight_bytes +
                                    j.parts[3].weight_bytes);
    cr_expect_eq(j.dense_bytes - j.routed_bytes, 2 * experts * 12 / 16);
    cr_expect(plan_says(&j, "all 16 experts (737 KB) are evaluated for each "
                            "token, which reads "));
    cr_expect(plan_says(&j, "; the 4 that routing chooses would need "));
    cr_expect(!plan_says(&j, "--force"));
    cv_job_close(&j);
    /* tables belong to them */
    o.lut_ffn = (struct cv_lut){ 4, 8 };
    plan(&o, &j);
    cr_expect_eq(j.expert_bytes,
                 experts / 2 + UINT64_C(4) * (2 * 320 + 96) / 8 * 16 * 2);
    cv_job_close(&j);
    o = t_conv_options("d");
    t_conv_synth("qwen3_5", "tiny", "d");
    plan(&o, &j);
    cr_expect_eq(j.expert_bytes, 0);
    cr_expect(!plan_says(&j, "experts"));
    cv_job_close(&j);
}

Test(plan, experts_above_the_limit_need_force)
{
    struct err e = ERR_INIT;
    struct cv_options o;
    struct cv_job j;

    t_conv_synth("qwen3_5_moe", "tiny", "m");
    o = t_conv_options("m");
    cr_expect_eq(o.expert_limit, UINT64_C(8000000000));
    o.expert_limit = 100000;
    plan(&o, &j);
    cr_expect(plan_says(&j, "the conversion will ask for --force"));
    cv_job_close(&j);
    cr_expect_eq(t_conv_try(&o, "out", &e), -1);
    cr_expect_eq((int)e.code, (int)ERR_USAGE);
    cr_expect(strstr(e.text, "the experts take ") &&
                  strstr(e.text, "above 100 KB pass --force"),
              "%s", e.text);
    cr_expect(!io_exists(t_conv_path("out")));
    err_reset(&e);
    o.force = true;
    cr_expect_eq(t_conv_try(&o, "out", &e), 0, "%s", e.text);
}

/* ---- recurrent layers ---- */

Test(plan, chunks_of_the_recurrence_divide_the_batch)
{
    static const struct {
        int64_t batch, chunk;
    } rows[] = {
        { 1, 1 },    { 7, 7 },   { 16, 16 },  { 50, 50 },  { 64, 64 },
        { 80, 40 },  { 96, 48 }, { 100, 50 }, { 67, 0 },   { 106, 53 },
        { 118, 59 }, { 127, 0 }, { 134, 0 },  { 512, 64 }, { 4096, 64 }
    };
    struct cv_options o;

    t_conv_synth("qwen3_5", "tiny", "m");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char want[64];
        struct cv_job j;

        cr_expect_eq(gdn_chunk(rows[i].batch), rows[i].chunk, "%d",
                     (int)rows[i].batch);
        o = t_conv_options("m");
        o.batch = o.ctx = rows[i].batch;
        snprintf(want, sizeof want, "--batch %d: recurrent layers",
                 (int)rows[i].batch);
        if (!rows[i].chunk) {
            refused(&o, want);
            continue;
        }
        plan(&o, &j);
        cv_job_close(&j);
    }
}

static bool noted(const struct cv_job *j, const char *text)
{
    return strstr(buf_text(&j->notes), text) != NULL;
}

Test(plan, limits_are_said)
{
    struct cv_options o;
    struct cv_job j;

    if (!config("Qwen3-14B") || !config("Qwen3-0.6B"))
        cr_skip_test("no shared configs");
    o = t_conv_options("Qwen3-14B");
    o.ctx = 32768;
    o.batch = 64;
    o.lut_ffn.bits = o.lut_head.bits = 0;
    o.chunks = 10;
    plan(&o, &j);
    cr_expect(noted(&j, "state 'model_model_kv_cache_0': axis of 32768"), "%s",
              buf_text(&j.notes));
    cr_expect(noted(&j, "_01of10' and 10 more: up to 26"), "%s",
              buf_text(&j.notes));
    cr_expect(noted(&j, "above the 1 GB that iPhones load"));
    cr_expect(noted(&j, "part 'qwen_embeddings': up to 155"), "%s",
              buf_text(&j.notes));
    cr_expect(noted(&j, "read in place"));
    cr_expect(noted(&j, "_01of10' and 9 more: up to 32768 elements of one "
                        "axis are above 16384"));
    cr_expect(!noted(&j, "65536"));
    cv_job_close(&j);
    o = t_conv_options("Qwen3-0.6B");
    plan(&o, &j);
    cr_expect(!noted(&j, "above"), "%s", buf_text(&j.notes));
    cv_job_close(&j);
}

/* ---- every published config ---- */

Test(plan, every_published_config, .timeout = 500)
{
    const char *root = t_ckpt_shared("configs");
    struct err e = ERR_INIT;
    char **names;
    size_t n, planned = 0;

    if (!root)
        cr_skip_test("no shared configs");
    cr_assert_eq(io_list(root, &names, &n, &e), 0, "%s", e.text);
    for (size_t i = 0; i < n; i++) {
        struct err why = ERR_INIT;
        struct cv_options o;
        struct cv_job j;
        char path[1200];

        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        if (!io_is_dir(path))
            continue;
        o = t_conv_options(path);
        o.batch = 64;
        if (cv_job_open(&j, &o, true, &why)) {
            cr_expect(why.code == ERR_UNSUPPORTED || why.code == ERR_INPUT,
                      "%s: %s", names[i], why.text);
            cr_expect(!strchr(why.text, '\n'), "%s: %s", names[i], why.text);
            continue;
        }
        planned++;
        cr_expect_gt(j.disk_bytes, 1000000);
        cv_job_close(&j);
    }
    io_list_free(names, n);
    cr_expect_geq(planned, 10, "%zu configs are planned", planned);
}

/* ---- memory ---- */

#if !defined(HAVE_ASAN)
struct memory_job {
    const char *model;
    int bits;
    uint64_t group;
    int threads, chunks;
};

static int open_memory_job(const struct memory_job *m, struct cv_job *j,
                           struct err *e)
{
    struct cv_options o = t_conv_options(m->model);

    o.output = t_conv_path("mem");
    o.chunks = m->chunks;
    o.lut_ffn = o.lut_head = (struct cv_lut){ m->bits, m->group };
    o.par = par_new(m->threads, e);
    return cv_job_open(j, &o, false, e);
}

static int convert_memory_job(const void *arg)
{
    struct err e = ERR_INIT;
    struct cv_job j;

    return open_memory_job(arg, &j, &e) || cv_convert(&j, NULL, &e);
}

static uint64_t peak_of(const struct memory_job *m)
{
    uint64_t peak = t_conv_peak(convert_memory_job, m);
    struct err e = ERR_INIT;

    cr_assert_eq(io_remove_tree(t_conv_path("mem"), &e), 0);
    return peak;
}

static void expect_memory(const char *model, int bits, uint64_t group,
                          int threads)
{
    const struct memory_job m = { model, bits, group, threads, 0 };
    uint64_t peak = peak_of(&m);
    struct err e = ERR_INIT;
    struct cv_job j;

    cr_assert_eq(open_memory_job(&m, &j, &e), 0, "%s", e.text);
    cr_expect_leq(peak, j.memory_bytes,
                  "%s, %d bits, group %" PRIu64 ", %d threads: %" PRIu64, model,
                  bits, group, threads, peak);
    par_free(j.opt.par);
    cv_job_close(&j);
}

Test(plan, memory_stays_below_the_bound)
{
    t_conv_synth("qwen3", "odd", "m");
    expect_memory("m", 0, 8, 1);
    expect_memory("m", 4, 8, 1);
    expect_memory("m", 6, 0, 2);
    expect_memory("m", 8, 1, 4);
}

static uint64_t peak_of_shape(const char *arch, uint64_t layers,
                              uint64_t experts)
{
    struct synth_options s = { .arch = arch,
                               .like = "tiny",
                               .seed = 1,
                               .layers = layers,
                               .experts = experts };
    struct memory_job m = { "s", 6, 8, 2, (int)layers / 4 };
    struct err e = ERR_INIT;
    uint64_t peak;

    cr_assert_eq(synth_make(&s, t_conv_path("s"), &e), 0, "%s", e.text);
    peak = peak_of(&m);
    cr_assert_eq(io_remove_tree(t_conv_path("s"), &e), 0);
    return peak;
}

/* 10 MB of weights more in 36 layers more, and 23 MB in 384 experts more: the
 * memory of a conversion does not follow. What is known of each tensor is kept,
 * some 60 KB for a layer. */
Test(plan, memory_does_not_grow_with_layers_or_experts, .timeout = 60)
{
    uint64_t few = peak_of_shape("qwen3_5", 4, 0);
    uint64_t many = peak_of_shape("qwen3_5", 40, 0);

    cr_expect_leq(many, few + 4000000, "4 layers: %" PRIu64 ", 40: %" PRIu64,
                  few, many);
    few = peak_of_shape("qwen3_5_moe", 4, 16);
    many = peak_of_shape("qwen3_5_moe", 4, 400);
    cr_expect_leq(many, few + 2000000, "16 experts: %" PRIu64 ", 400: %" PRIu64,
                  few, many);
}
#endif

/* ---- printing ---- */

Test(plan, text_and_json_tell_the_same)
{
    struct t_model m = t_model_tiny("qwen3");
    struct buf text = BUF_INIT, json = BUF_INIT;
    struct err e = ERR_INIT;
    struct cv_options o;
    struct js_writer w;
    struct js_doc *d;
    struct cv_job j;
    uint64_t v;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    o.chunks = 2;
    plan(&o, &j);
    cv_plan_text(&j, &text);
    cr_expect(strstr(buf_text(&text), "anemll-m-ctx64: qwen3, "));
    cr_expect(strstr(buf_text(&text), "LUT4, group 8, layers 1-1"), "%s",
              buf_text(&text));
    cr_expect(strstr(buf_text(&text), "state model_model_kv_cache_0 [4, 2, 64, "
                                      "16] fp16"),
              "%s", buf_text(&text));
    js_w_init(&w, &json);
    cv_plan_json(&j, &w, NULL);
    d = js_parse(buf_text(&json), json.len, &e);
    cr_assert_not_null(d, "%s", e.text);
    cr_expect(js_uint(js_get(js_root(d), "schema"), &v) && v == 1);
    cr_expect(js_uint(js_get(js_root(d), "disk_bytes"), &v) &&
              v == j.disk_bytes);
    cr_expect(js_uint(js_get(js_root(d), "memory_bytes"), &v) &&
              v == j.memory_bytes);
    cr_expect_eq(js_count(js_get(js_root(d), "parts")), 4);
    cr_expect(js_count(js_get(js_root(d), "notes")) > 0);
    js_free(d);
    buf_release(&json);
    buf_release(&text);
    cv_job_close(&j);
}
