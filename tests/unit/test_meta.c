/*
 * meta.yaml: the text to the byte, what other readers make of it, and other
 * packages' files, sound and hostile.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "converter/base/mem.h"
#include "converter/meta.h"
#include "t_conv.h"

TestSuite(meta, .fini = t_conv_clean);

/* The meta.yaml of a job, as text; mem_free. */
static char *text_of(const struct cv_options *o)
{
    struct err e = ERR_INIT;
    struct buf out = BUF_INIT;
    struct assets *a;
    struct cv_job j;
    char *text;

    cr_assert_eq(cv_job_open(&j, o, false, &e), 0, "%s", e.text);
    a = assets_open(&j.ckpt, &j.notes, &e);
    cr_assert_not_null(a, "%s", e.text);
    cr_assert_eq(meta_text(&j, a, &out, &e), 0, "%s", e.text);
    text = buf_detach(&out, &e);
    cr_assert_not_null(text);
    assets_close(a);
    cv_job_close(&j);
    return text;
}

static const char golden[] =
    "model_info:\n"
    "  name: anemll-My-Model-ctx64\n"
    "  version: 0.3.5\n"
    "  description: |\n"
    "    qwen3 for the Apple Neural Engine\n"
    "    Context length: 64\n"
    "    Batch size: 16\n"
    "    Chunks: 2\n"
    "  license: see the source model\n"
    "  author: anemll-convert\n"
    "  framework: Core ML\n"
    "  language: C\n"
    "  architecture: qwen3\n"
    "  parameters:\n"
    "    context_length: 64\n"
    "    batch_size: 16\n"
    "    lut_embeddings: none\n"
    "    lut_ffn: 4\n"
    "    lut_ffn_per_channel: 8\n"
    "    lut_lmhead: 6\n"
    "    lut_lmhead_per_channel: 0\n"
    "    num_chunks: 2\n"
    "    model_prefix: qwen\n"
    "    embeddings: qwen_embeddings.mlmodelc\n"
    "    lm_head: qwen_lm_head_lut6.mlmodelc\n"
    "    ffn: qwen_FFN_PF_lut4_chunk_01of02.mlmodelc\n"
    "    split_lm_head: 4\n"
    "    vocab_size: 64\n"
    "    lm_head_chunk_sizes: [16, 16, 16, 16]\n"
    "    prefill_dynamic_slice: true\n"
    "    prefill_last_token_output: true\n"
    "    hidden_size: 32\n"
    "    num_layers: 2\n"
    "    recommended_sampling: {do_sample: true, temperature: 1.0, top_p: "
    "1.0e-5, top_k: 20}\n"
    "    states:\n"
    "    - name: model_model_kv_cache_0\n"
    "      shape: [4, 2, 64, 16]\n"
    "      dtype: float16\n"
    "      layers: [0, 1]\n"
    "# written by anemll-convert " ANEMLL_VERSION "\n";

static struct cv_options golden_job(void)
{
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;

    t_model_write(&m, "My-Model");
    t_conv_put("My-Model/generation_config.json",
               "{\"do_sample\": true, \"temperature\": 1, \"top_p\": 1e-05, "
               "\"top_k\": 20}");
    o = t_conv_options("My-Model");
    o.lut_head = (struct cv_lut){ 6, 0 };
    o.chunks = 2;
    o.head_parts = 4;
    return o;
}

Test(meta, golden_text)
{
    struct cv_options o = golden_job();
    char *text = text_of(&o);

    cr_expect_str_eq(text, golden);
    mem_free(text);
}

/* What ANEMLL's shell reader takes: the nth field between single spaces of
 * every line that holds the key and a colon. */
static void expect_field(const char *file, const char *key, int field,
                         const char *want)
{
    char cmd[900], got[300] = "";
    size_t n;
    FILE *p;

    snprintf(cmd, sizeof cmd, "grep '%s:' '%s' | cut -d' ' -f%d", key, file,
             field);
    p = popen(cmd, "r");
    cr_assert_not_null(p);
    n = fread(got, 1, sizeof got - 1, p);
    pclose(p);
    while (n && got[n - 1] == '\n')
        got[--n] = '\0';
    cr_expect_str_eq(got, want, "%s: '%s'", key, got);
}

Test(meta, shell_readers_cut_the_values)
{
    struct cv_options o = golden_job();
    const char *f = t_conv_path("out/meta.yaml");

    t_conv_run(&o, "out");
    expect_field(f, "name", 4, "anemll-My-Model-ctx64");
    expect_field(f, "version", 4, "0.3.5");
    expect_field(f, "context_length", 6, "64");
    expect_field(f, "batch_size", 6, "16");
    expect_field(f, "model_prefix", 6, "qwen");
    expect_field(f, "num_chunks", 6, "2");
    expect_field(f, "lut_ffn", 6, "4");
    expect_field(f, "lut_lmhead", 6, "6");
    expect_field(f, "lut_embeddings", 6, "none");
    expect_field(f, "lut_bits", 6, "");
    expect_field(f, "architecture", 4, "qwen3");
    expect_field(f, "model_type", 4, "");
    expect_field(f, "monolithic_model", 4, "");
    expect_field(f, "split_rotate", 4, "");
}

/* A YAML 1.1 reader that types its scalars. */
Test(meta, python_reads_the_same_types)
{
    static const char script[] =
        "import sys, yaml\n"
        "i = yaml.safe_load(open(sys.argv[1]))['model_info']\n"
        "p = i['parameters']\n"
        "for k in 'name version description license author framework language "
        "architecture'.split():\n"
        "    assert type(i[k]) is str, k\n"
        "assert i['version'] == '0.3.5'\n"
        "for k in 'context_length batch_size lut_ffn lut_ffn_per_channel "
        "num_chunks split_lm_head vocab_size hidden_size num_layers'.split():\n"
        "    assert type(p[k]) is int, k\n"
        "for k in 'lut_embeddings model_prefix embeddings lm_head "
        "ffn'.split():\n"
        "    assert type(p[k]) is str, k\n"
        "assert p['lut_embeddings'] == 'none'\n"
        "assert p['prefill_dynamic_slice'] is True\n"
        "assert p['lm_head_chunk_sizes'] == [16] * 4\n"
        "s = p['recommended_sampling']\n"
        "assert [type(s[k]) for k in ('do_sample', 'temperature', 'top_p', "
        "'top_k')] == [bool, float, float, int], s\n"
        "assert s['temperature'] == 1.0 and s['top_p'] == 1e-05\n"
        "assert p['states'][0]['shape'] == [4, 2, 64, 16]\n";
    struct cv_options o = golden_job();
    char cmd[1500];

    if (system("python3 -c 'import yaml' 2>/dev/null") != 0)
        cr_skip_test("no PyYAML here");
    t_conv_run(&o, "out");
    t_conv_put("check.py", script);
    snprintf(cmd, sizeof cmd, "python3 '%s' '%s'", t_conv_path("check.py"),
             t_conv_path("out/meta.yaml"));
    cr_expect_eq(system(cmd), 0);
}

Test(meta, reads_what_it_writes)
{
    struct cv_options o = golden_job();
    struct err e = ERR_INIT;
    struct meta m;
    char *p;

    t_conv_run(&o, "out");
    cr_assert_eq(meta_read(t_conv_path("out"), &m, &e), 0, "%s", e.text);
    cr_expect_str_eq(m.name, "anemll-My-Model-ctx64");
    cr_expect_str_eq(m.architecture, "qwen3");
    cr_expect_str_eq(m.version, "0.3.5");
    cr_expect_str_eq(m.prefix, "qwen");
    cr_expect(m.context_length == 64 && m.batch_size == 16 &&
              m.num_chunks == 2 && m.split_lm_head == 4 && m.vocab_size == 64 &&
              m.hidden_size == 32 && m.num_layers == 2);
    cr_expect(m.lut_embeddings == 0 && m.lut_ffn == 4 && m.lut_lmhead == 6);
    cr_expect(m.prefill_last_token_output && !m.recurrent_state && m.ours);
    p = meta_part_path("d", &m, CV_CHUNK, 2, META_PACKAGE, &e);
    cr_expect_str_eq(p, "d/qwen_FFN_PF_lut4_chunk_02of02.mlpackage");
    mem_free(p);
    p = meta_part_path("d", &m, CV_HEAD, 0, META_PACKAGE, &e);
    cr_expect_str_eq(p, "d/qwen_lm_head_lut6.mlpackage");
    mem_free(p);
}

/* ---- words ---- */

static const char *const quoted[] = {
    "",      " ",    "no",         "NO",   "null", "Null",     "~",     "on",
    "y",     "Y",    "1e5",        "0x10", "012",  "1.10",     "12:30", ".inf",
    "-.INF", ".nan", "2026-11-29", "+1",   "-x",   "true",     "FALSE", "a: b",
    "a #b",  "a:",   "a ",         "#a",   "[a",   "{a",       "*a",    "&a",
    "!a",    "|",    ">",          "'a",   "\"a",  "%a",       "@a",    "`a",
    "?",     "<<",   "=",          "a\nb", "a\tb", "\xc3\xa9", "---",   "...",
    "off",   "0o7"
};

static const char *const plain[] = { "none",    "anemll-Qwen3-0.6B-ctx512",
                                     "qwen",    "see the source model",
                                     "a.b-c_d", "nope",
                                     "Core ML", "yesterday" };

Test(meta, words_that_need_quotes)
{
    for (size_t i = 0; i < sizeof quoted / sizeof quoted[0]; i++)
        cr_expect(!meta_plain(quoted[i]), "'%s'", quoted[i]);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        cr_expect(meta_plain(plain[i]), "'%s'", plain[i]);
}

/* Model folders with such names: the package's name is a plain string, and
 * the prefix is refused where it would not be. */
Test(meta, odd_names_of_models)
{
    static const char *const names[] = { "no",
                                         "null",
                                         "on",
                                         "y",
                                         "1e5",
                                         "0x10",
                                         "012",
                                         "1.10",
                                         "12:30",
                                         "~",
                                         "a b#c: d",
                                         "-x",
                                         "\xc3\xa9t\xc3\xa9",
                                         "x--y" };
    static const char *const want[] = { "no",    "null", "on",       "y",
                                        "1e5",   "0x10", "012",      "1.10",
                                        "12_30", "_",    "a_b_c__d", "-x",
                                        "__t__", "x-y" };
    struct t_model m = t_model_tiny("llama");

    t_model_write(&m, "model");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct cv_options o;
        struct err e = ERR_INIT;
        struct meta got;
        char line[200], *text;

        cr_assert_eq(rename(t_conv_path("model"), t_conv_path(names[i])), 0);
        o = t_conv_options(names[i]);
        text = text_of(&o);
        snprintf(line, sizeof line, "\n  name: anemll-%s-ctx64\n", want[i]);
        cr_expect(strstr(text, line), "%s: %.80s", names[i], text);
        t_conv_put("read/meta.yaml", text);
        cr_expect_eq(meta_read(t_conv_path("read"), &got, &e), 0, "%s", e.text);
        snprintf(line, sizeof line, "anemll-%s-ctx64", want[i]);
        cr_expect_str_eq(got.name, line);
        mem_free(text);
        cr_assert_eq(rename(t_conv_path(names[i]), t_conv_path("model")), 0);
    }
}

/* ---- other files ---- */

#define HEAD "model_info:\n  name: x\n  version: 0.3.5\n  parameters:\n"
#define NEEDED HEAD "    context_length: 512\n    batch_size: 64\n"

static int read_text(const char *text, struct meta *m, struct err *e)
{
    err_reset(e);
    t_conv_put("pkg/meta.yaml", text);
    return meta_read(t_conv_path("pkg"), m, e);
}

static void expect_read(const char *text, struct meta *m)
{
    struct err e = ERR_INIT;

    cr_assert_eq(read_text(text, m, &e), 0, "%.200s: %s", text, e.text);
}

static void expect_refused(const char *text, const char *says)
{
    struct err e = ERR_INIT;
    struct meta m;

    cr_expect_eq(read_text(text, &m, &e), -1, "%.200s", text);
    cr_expect(strstr(e.text, says), "%.200s: '%s' lacks '%s'", text, e.text,
              says);
    cr_expect(strstr(e.text, "meta.yaml"), "%s", e.text);
}

Test(meta, defaults_and_foreign_spellings)
{
    struct meta m;

    expect_read(NEEDED, &m);
    cr_expect(m.num_chunks == 0 && m.lut_ffn == 0 && !m.ours &&
              !m.prefill_last_token_output && !m.ffn[0]);
    expect_read(NEEDED "    lut_ffn: none\n    lut_lmhead: null\n"
                       "    lut_embeddings: ~\n"
                       "    prefill_last_token_output: True\n"
                       "    unknown: {a: [1, 2]}\n    num_chunks: \"3\"\n"
                       "# a comment\n",
                &m);
    cr_expect(m.num_chunks == 3 && m.prefill_last_token_output && !m.ours);
    expect_read("# written by anemll-convert 9\n" NEEDED, &m);
    cr_expect(!m.ours); /* it is the last line */
    expect_read("---\n" NEEDED "...\n# written by anemll-convert 9\n", &m);
    cr_expect(m.ours);
    expect_read("{model_info: {parameters: {context_length: 8, batch_size: "
                "4}}}",
                &m);
    cr_expect_eq(m.context_length, 8);
}

Test(meta, missing_and_wrong_values)
{
    expect_refused("", "'");
    expect_refused("# only a comment\n", "'model_info' is missing");
    expect_refused("model_info: 3\n", "'model_info' is no mapping");
    expect_refused("- model_info\n", "'model_info' is missing");
    expect_refused("model_info:\n  name: x\n", "'parameters' is missing");
    expect_refused(HEAD "    batch_size: 64\n", "'context_length' is missing");
    expect_refused(HEAD "    context_length: 512\n", "'batch_size' is missing");
    expect_refused(NEEDED "    num_chunks: 0\n", "'num_chunks' is '0'");
    expect_refused(NEEDED "    num_chunks: 100\n", "from 1 to 99");
    expect_refused(NEEDED "    num_chunks: 1e1\n", "'1e1'");
    expect_refused(NEEDED "    num_chunks: 012\n", "'012'");
    expect_refused(NEEDED "    num_chunks: [1]\n", "'num_chunks' is no text");
    expect_refused(NEEDED "    vocab_size: 99999999999999999999\n",
                   "'vocab_size'");
    expect_refused(NEEDED "    lut_ffn: 9\n", "'lut_ffn' is '9'");
    expect_refused(NEEDED "    lut_ffn: 4.0\n", "'4.0'");
    expect_refused(NEEDED "    recurrent_state: maybe\n", "'maybe'");
    expect_refused("model_info:\n  model_type: monolithic\n  parameters:\n"
                   "    context_length: 1\n    batch_size: 1\n",
                   "monolithic");
}

Test(meta, names_that_lead_elsewhere)
{
    static const char *const bad[] = { "../x.mlmodelc", "a/b.mlmodelc",
                                       "/etc/x",        "..",
                                       "C:x",           "a\\\\b" };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[400];

        snprintf(text, sizeof text, NEEDED "    ffn: \"%s\"\n", bad[i]);
        expect_refused(text, "no file name");
        snprintf(text, sizeof text, NEEDED "    embeddings: \"%s\"\n", bad[i]);
        expect_refused(text, "'embeddings'");
    }
    expect_refused(NEEDED "    lm_head: \"a\\0b\"\n", "'lm_head' is no text");
}

Test(meta, twice_and_twice_over)
{
    struct meta m;

    expect_refused(NEEDED "    batch_size: 32\n", "'batch_size' stands there "
                                                  "twice");
    expect_refused(NEEDED "model_info: {}\n", "'model_info' stands there");
    expect_refused(NEEDED "---\n" NEEDED, "more than one YAML document");
    expect_read(NEEDED "    other: 1\n    other: 2\n", &m);
}

/* Aliases are one node each: neither cycles nor expansion cost anything. */
Test(meta, anchors_cycles_and_bombs)
{
    struct meta m;
    struct buf b = BUF_INIT;

    expect_read("x: &a {context_length: 4, batch_size: 2}\n"
                "model_info:\n  parameters: *a\n",
                &m);
    cr_expect_eq(m.batch_size, 2);
    expect_read("model_info: &i\n  self: *i\n  parameters: &p\n    me: *p\n"
                "    context_length: 4\n    batch_size: 2\n",
                &m);
    expect_refused("model_info: &i\n  parameters: *i\n", "'context_length'");
    expect_refused("model_info: *nothing\n", "undefined alias");
    buf_puts(&b, "a0: &a0 [x, x]\n");
    for (int i = 1; i < 60; i++)
        buf_printf(&b, "a%d: &a%d [*a%d, *a%d]\n", i, i, i - 1, i - 1);
    buf_puts(&b, NEEDED);
    expect_read(buf_text(&b), &m);
    buf_release(&b);
}

static void fill_with(struct buf *b, const char *piece, size_t n)
{
    buf_clear(b);
    while (b->len < n)
        buf_puts(b, piece);
}

Test(meta, deep_and_huge, .timeout = 20)
{
    struct buf b = BUF_INIT;
    struct meta m;

    fill_with(&b, "[", 400000);
    expect_refused(buf_text(&b), "more than 64 brackets are open at byte 64");
    fill_with(&b, "{a: ", 400000);
    expect_refused(buf_text(&b), "more than 64 brackets");
    fill_with(&b, "- [a, [b]]\n", 900000);
    expect_refused(buf_text(&b), "'model_info' is missing");
    fill_with(&b, "- ", 400000);
    expect_refused(buf_text(&b), "");
    fill_with(&b, "? ", 400000);
    expect_refused(buf_text(&b), "");
    fill_with(&b, "k: v\n", 900000);
    buf_puts(&b, NEEDED);
    expect_read(buf_text(&b), &m);
    fill_with(&b, "# filler\n", 1000001);
    expect_refused(buf_text(&b), "at most 1000000 are taken");
    buf_release(&b);
}

Test(meta, no_yaml_at_all)
{
    struct err e = ERR_INIT;
    struct meta m;

    expect_refused("model_info: [\n", "line 2");
    expect_refused("\tmodel_info: 1\n", "line 1");
    expect_refused("a: b: c\n", "line 1, column");
    expect_refused("\xff\xfe\xfd", "");
    expect_refused("a: \xc3\x28\n", "byte 4");
    expect_refused("a: \x01\n", "byte 3");
    cr_expect_eq(meta_read(t_conv_path("nowhere"), &m, &e), -1);
    cr_expect(strstr(e.text, "nowhere/meta.yaml"), "%s", e.text);
}

/* ---- files of a package ---- */

static void expect_part(const char *ffn, int64_t chunks, int chunk,
                        const char *want, const char *says)
{
    struct meta m = { .num_chunks = chunks };
    struct err e = ERR_INIT;
    char *p;

    snprintf(m.ffn, sizeof m.ffn, "%s", ffn);
    p = meta_part_path("d", &m, CV_CHUNK, chunk, META_PACKAGE, &e);
    if (want)
        cr_expect(p && !strcmp(p, want), "%s: %s, %s", ffn, p ? p : "-",
                  e.text);
    else
        cr_expect(!p && strstr(e.text, says), "%s: %s", ffn, e.text);
    mem_free(p);
}

Test(meta, chunks_by_the_key)
{
    expect_part("q_FFN_PF_chunk_01of12.mlmodelc", 12, 12,
                "d/q_FFN_PF_chunk_12of12.mlpackage", NULL);
    expect_part("q_FFN_PF_lut4_chunk_01of01.mlpackage", 0, 1,
                "d/q_FFN_PF_lut4_chunk_01of01.mlpackage", NULL);
    expect_part("q_FFN_PF_chunk_01of02", 2, 2,
                "d/q_FFN_PF_chunk_02of02.mlpackage", NULL);
    expect_part("q_FFN_PF", 3, 2, "d/q_FFN_PF_chunk_02of03.mlpackage", NULL);
    expect_part("q_chunk_01of02.mlmodelc", 3, 1, NULL, "no chunk of 3");
    expect_part("q_chunk_1of2.mlmodelc", 2, 1, NULL, "no chunk of 2");
    expect_part("q_chunk_01of02_rot.mlmodelc", 2, 1, NULL, "no chunk of 2");
    expect_part("q_chunk_", 2, 1, NULL, "no chunk of 2");
}

Test(meta, parts_by_their_names)
{
    struct meta m = { .num_chunks = 2 };
    struct err e = ERR_INIT;
    char *p;

    t_conv_put("d/a_embeddings.mlpackage/x", "");
    t_conv_put("d/a_FFN_PF_lut6_chunk_01of02.mlpackage/x", "");
    t_conv_put("d/a_FFN_PF_lut6_chunk_02of02.mlpackage/x", "");
    t_conv_put("d/a_lm_head_lut6.mlpackage/x", "");
    t_conv_put("d/a_lm_head_lut6.mlmodelc/x", "");
    p = meta_part_path(t_conv_path("d"), &m, CV_CHUNK, 2, META_PACKAGE, &e);
    cr_assert_not_null(p, "%s", e.text);
    cr_expect(strstr(p, "_chunk_02of02.mlpackage"), "%s", p);
    mem_free(p);
    p = meta_part_path(t_conv_path("d"), &m, CV_HEAD, 0, META_PACKAGE, &e);
    cr_assert_not_null(p, "%s", e.text);
    mem_free(p);
    p = meta_part_path(t_conv_path("d"), &m, CV_CHUNK, 3, META_PACKAGE, &e);
    cr_expect_null(p);
    cr_expect(strstr(e.text, "0 files"), "%s", e.text);
    err_reset(&e);
    t_conv_put("d/b_embeddings_lut4.mlpackage/x", "");
    p = meta_part_path(t_conv_path("d"), &m, CV_EMBEDDINGS, 0, META_PACKAGE,
                       &e);
    cr_expect_null(p);
    cr_expect(strstr(e.text, "2 files"), "%s", e.text);
}
