/*
 * Packages as ANEMLL's own tools of several versions publish them: compiled
 * models alone, its meta.yaml and metadata without what later versions or this
 * converter add. They are sound, so the lint finds no error in them; what it
 * warns of is known.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/lint.h"
#include "mil/build.h"
#include "schema/compiled.h"
#include "t_conv.h"
#include "t_pack.h"

TestSuite(lint_older, .fini = t_conv_clean);

/* ---- making them ---- */

static bool is_anemll(const char *key)
{
    static const char *const known[] = {
        "com.anemll.context_length", "com.anemll.num_chunks",
        "com.anemll.chunk_no",       "com.anemll.batch_size",
        "com.anemll.lut_bits",
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(key, known[i]))
            return true;
    return false;
}

static void keep_anemll(struct mil_program *p, const void *arg)
{
    size_t n = 0;

    (void)arg;
    for (size_t i = 0; i < p->n_metadata; i++)
        if (is_anemll(p->metadata[i].key))
            p->metadata[n++] = p->metadata[i];
    p->n_metadata = n;
}

static void compile_one(const char *pack, const char *name)
{
    char from[300], to[300];
    struct err e = ERR_INIT;
    struct pkg *p;

    t_pack_program(pack, name, keep_anemll, NULL);
    snprintf(from, sizeof(from), "%s/%s", pack, name);
    snprintf(to, sizeof(to), "%.*s.mlmodelc", (int)(strlen(from) - 10), from);
    p = pkg_open_raw(t_conv_path(from), &e);
    cr_assert_not_null(p, "%s", e.text);
    cr_assert_eq(compiled_write(t_conv_path(to), p, NULL, NULL, &e), 0, "%s",
                 e.text);
    pkg_close(p);
    t_pack_remove(pack, name);
}

/* Compiled models alone, with the metadata that ANEMLL writes. */
static void publish(const char *pack)
{
    struct err e = ERR_INIT;
    char **names;
    size_t n;

    cr_assert_eq(io_list(t_conv_path(pack), &names, &n, &e), 0);
    for (size_t i = 0; i < n; i++)
        if (strstr(names[i], ".mlpackage"))
            compile_one(pack, names[i]);
    io_list_free(names, n);
    t_pack_put(pack, "config.json",
               "{\n  \"tokenizer_class\": \"LlamaTokenizer\",\n"
               "  \"model_type\": \"llama\"\n}\n");
}

static void expect_sound(const char *pack, const char *found)
{
    struct lint_report r;
    struct buf text = BUF_INIT;
    struct err e = ERR_INIT;
    char got[1000] = "";
    size_t n = 0;

    cr_assert_eq(lint_package(t_conv_path(pack), &r, &e), 0, "%s", e.text);
    lint_text(&r, pack, &text);
    for (size_t i = 0; i < r.n; i++)
        if (!i || r.v[i].rule != r.v[i - 1].rule)
            n += (size_t)snprintf(got + n, sizeof(got) - n, "%s%s",
                                  n ? " " : "", r.v[i].rule->id);
    cr_expect_eq(r.errors, 0, "%s", buf_text(&text));
    cr_expect_str_eq(got, found, "%s", buf_text(&text));
    buf_release(&text);
    lint_release(&r);
}

/* ---- chunked ---- */

#define HEAD(name, version)                                    \
    "model_info:\n  name: " name "\n  version: " version       \
    "\n  description: |\n    Demonstrates running " name       \
    " on Apple Neural Engine\n    Context length: 64\n"        \
    "  license: MIT\n  author: Anemll\n  framework: Core ML\n" \
    "  language: Python\n"

/* 0.3.0: no vocabulary, no flags of prefill, no architecture. */
Test(lint_older, llama_of_0_3_0)
{
    T_PACK_MAKE("p", .arch = "llama", .like = "tiny", .lut = "6", .chunks = 2,
                .head_parts = 8);
    publish("p");
    t_pack_put(
        "p", "meta.yaml",
        HEAD("anemll-llama-ctx64",
             "0.3.0") "  parameters:\n"
                      "    context_length: 64\n"
                      "    batch_size: 16\n"
                      "    lut_embeddings: none\n"
                      "    lut_ffn: 6\n"
                      "    lut_lmhead: 6\n"
                      "    num_chunks: 2\n"
                      "    model_prefix: llama\n"
                      "    embeddings: llama_embeddings.mlmodelc\n"
                      "    lm_head: llama_lm_head_lut6.mlmodelc\n"
                      "    ffn: llama_FFN_PF_lut6_chunk_01of02.mlmodelc\n");
    expect_sound("p", "meta_prefill_flags meta_vocab_keys stop_missing "
                      "part_source_missing");
    /* The file keys may be absent: names are made of the others. */
    t_pack_edit("p", "meta.yaml",
                "    ffn: llama_FFN_PF_lut6_chunk_01of02.mlmodelc\n", "");
    t_pack_edit("p", "meta.yaml", "    lm_head: llama_lm_head_lut6.mlmodelc\n",
                "");
    t_pack_edit("p", "meta.yaml", "    embeddings: llama_embeddings.mlmodelc\n",
                "");
    expect_sound("p", "meta_prefill_flags meta_vocab_keys stop_missing "
                      "part_source_missing");
}

/* 0.3.5, with the comments that its generator appends. */
Test(lint_older, qwen3_of_0_3_5)
{
    T_PACK_MAKE("p", .arch = "qwen3", .like = "tiny", .lut = "4");
    publish("p");
    t_pack_put("p", "meta.yaml",
               HEAD("anemll-Qwen3-ctx64",
                    "0.3.5") "  architecture: qwen3\n"
                             "  parameters:\n"
                             "    context_length: 64\n"
                             "    batch_size: 16\n"
                             "    lut_embeddings: none\n"
                             "    lut_ffn: 4\n"
                             "    lut_ffn_per_channel: 8\n"
                             "    lut_lmhead: 4\n"
                             "    lut_lmhead_per_channel: 8\n"
                             "    num_chunks: 1\n"
                             "    model_prefix: qwen\n"
                             "    embeddings: qwen_embeddings.mlmodelc\n"
                             "    lm_head: qwen_lm_head_lut4.mlmodelc\n"
                             "    ffn: qwen_FFN_PF_lut4_chunk_01of01.mlmodelc\n"
                             "    split_lm_head: 16\n"
                             "    vocab_size: 512\n"
                             "    lm_head_chunk_sizes: [32, 32, 32, 32, 32, "
                             "32, 32, 32, 32, "
                             "32, 32, 32, 32, 32, 32, 32]\n"
                             "    prefill_dynamic_slice: true\n"
                             "\n# Conversion Parameters:\n# -----\n# Context "
                             "Length: 64\n"
                             "# LUT Part 2: 4,8\n");
    expect_sound("p", "stop_missing part_source_missing");
}

/* Two caches, the functions *_rotate, and no list of states or layers. */
Test(lint_older, gemma3_of_0_3_5)
{
    T_PACK_MAKE("p", .arch = "gemma3", .like = "tiny", .lut = "6", .ctx = 128,
                .chunks = 2);
    publish("p");
    t_pack_put(
        "p", "meta.yaml",
        HEAD("anemll-gemma-ctx128",
             "0.3.5") "  architecture: gemma3_text\n"
                      "  parameters:\n"
                      "    context_length: 128\n"
                      "    batch_size: 16\n"
                      "    lut_embeddings: none\n"
                      "    lut_ffn: 6\n"
                      "    lut_lmhead: 6\n"
                      "    num_chunks: 2\n"
                      "    model_prefix: gemma3\n"
                      "    embeddings: gemma3_embeddings.mlmodelc\n"
                      "    lm_head: gemma3_lm_head_lut6.mlmodelc\n"
                      "    ffn: gemma3_FFN_PF_lut6_chunk_01of02.mlmodelc\n"
                      "    split_lm_head: 16\n"
                      "    vocab_size: 512\n"
                      "    lm_head_chunk_sizes: [32, 32, 32, 32, 32, 32, 32, "
                      "32, 32, "
                      "32, 32, 32, 32, 32, 32, 32]\n"
                      "    sliding_window: 32\n"
                      "    prefill_dynamic_slice: true\n");
    expect_sound("p", "state_shapes stop_missing part_source_missing");
}

/* ---- forms that this converter does not write ---- */

static struct mil_program *fresh(void)
{
    struct err e = ERR_INIT;
    struct mil_program *p = mil_program_new(&e);

    cr_assert_not_null(p);
    return p;
}

static void replace(struct mil_program *p, const char *pack, const char *name)
{
    struct err e = ERR_INIT;
    char path[300];

    t_pack_remove(pack, name);
    snprintf(path, sizeof(path), "%s/%s", pack, name);
    cr_assert_eq(pkg_write(t_conv_path(path), p, NULL, NULL, &e), 0, "%s",
                 e.text);
    mil_program_free(p);
}

/* All T rows also in the last chunk's prefill; a cache that is longer than
 * the context. */
static void decoder(struct mil_program *p, const char *name, int64_t T)
{
    struct err e = ERR_INIT;
    struct mb b;
    mil_ref x, y;

    mb_begin(&b, p, name);
    x = mb_input(&b, "hidden_states", MIL_F16, 3, (int64_t[]){ 1, T, 128 });
    mb_input(&b, "position_ids", MIL_I32, 1, &T);
    mb_input(&b, "causal_mask", MIL_F16, 4, (int64_t[]){ 1, 1, T, 64 });
    mb_input(&b, "current_pos", MIL_I32, 1, (int64_t[]){ 1 });
    y = mb_state(&b, "model_model_kv_cache_0", 4, (int64_t[]){ 6, 2, 512, 32 });
    y = MB(&b, read_state, .input = y);
    y = MB(&b, slice_by_size, .x = y, .begin = MB_INTS(&b, 0, 0, 0, 0),
           .size = MB_INTS(&b, 1, 1, 1, 1));
    mb_output(&b, "output_hidden_states",
              MB(&b, add, .x = x, .y = MB_RESHAPE(&b, y, 1, 1, 1)));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
}

#define LLAMA(version, more)                      \
    HEAD("anemll-llama-ctx64", version)           \
    "  parameters:\n"                             \
    "    context_length: 64\n"                    \
    "    batch_size: 16\n"                        \
    "    lut_embeddings: none\n"                  \
    "    lut_ffn: none\n"                         \
    "    lut_lmhead: none\n"                      \
    "    num_chunks: 1\n"                         \
    "    model_prefix: llama\n"                   \
    "    embeddings: llama_embeddings.mlmodelc\n" \
    "    lm_head: llama_lm_head.mlmodelc\n"       \
    "    ffn: llama_FFN_PF_chunk_01of01.mlmodelc\n" more

/* 0.1.1: the mode in which the last chunk's prefill gives every row. */
Test(lint_older, llama_of_0_1_1)
{
    struct mil_program *p = fresh();

    T_PACK_MAKE("p", .arch = "llama", .like = "tiny", .head_parts = 8);
    decoder(p, "infer", 1);
    decoder(p, "prefill", 16);
    replace(p, "p", "llama_FFN_PF_chunk_01of01.mlpackage");
    publish("p");
    t_pack_put("p", "meta.yaml", LLAMA("0.1.1", ""));
    expect_sound("p", "meta_version meta_prefill_flags meta_vocab_keys "
                      "prefill_rows stop_missing part_source_missing");
}

/* A head that gives the best token of each part. */
Test(lint_older, argmax_of_0_3_5)
{
    struct mil_program *p = fresh();
    struct err e = ERR_INIT;
    struct mb b;
    mil_ref y;

    T_PACK_MAKE("p", .arch = "llama", .like = "tiny");
    mb_begin(&b, p, "main");
    y = mb_input(&b, "hidden_states", MIL_F16, 3, (int64_t[]){ 1, 1, 128 });
    y = MB_RESHAPE(&b, y, 8, 16);
    mb_output(&b, "argmax_idx",
              MB(&b, reduce_argmax, .x = y, .axis = mb_int(&b, 1),
                 .keep_dims = mb_bool(&b, false)));
    mb_output(&b, "argmax_val",
              MB(&b, reduce_max, .x = y, .axes = MB_INTS(&b, 1),
                 .keep_dims = mb_bool(&b, false)));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    replace(p, "p", "llama_lm_head.mlpackage");
    publish("p");
    t_pack_put("p", "meta.yaml",
               LLAMA("0.3.5", "    split_lm_head: 8\n"
                              "    argmax_in_model: true\n"
                              "    vocab_size: 512\n"
                              "    lm_head_chunk_sizes: [64, 64, 64, 64, 64, "
                              "64, 64, 64]\n"
                              "    prefill_dynamic_slice: true\n"));
    expect_sound("p", "stop_missing part_source_missing");
}
