/*
 * Kinds of directories: one sentence for each that is no plain checkpoint,
 * and the verdict on every published config that is at hand.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "models/models.h"
#include "t_ckpt.h"

TestSuite(models_kinds, .fini = t_ckpt_clean);

static struct t_ckpt m;
static struct ckpt c;
static struct err e;

static void refused(const char *dir, unsigned flags, enum err_code code,
                    const char *part)
{
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, dir, flags, &e), -1, "opened: %s", dir);
    cr_expect_eq(e.code, code, "code %d: %s", e.code, e.text);
    cr_expect_not_null(strstr(e.text, part), "'%s' is not in: %s", part,
                       e.text);
    cr_expect_null(strchr(e.text, '\n'), "more than a line: %s", e.text);
}

static void both(enum err_code code, const char *part)
{
    refused(t_ckpt_dir(), 0, code, part);
    refused(t_ckpt_dir(), CKPT_CONFIG_ONLY, code, part);
}

static const char *path_of(const char *name)
{
    static char path[300];

    snprintf(path, sizeof path, "%s/%s", t_ckpt_dir(), name);
    return path;
}

static void put_config(void)
{
    t_ckpt_llama(&m, true);
    t_ckpt_put("config.json", m.config);
}

/* ---- no directory, no config ---- */

Test(models_kinds, not_a_directory)
{
    refused("/no/such/dir", 0, ERR_INPUT, "no directory '/no/such/dir'");
    t_ckpt_put("x.gguf", "GGUF");
    refused(path_of("x.gguf"), 0, ERR_UNSUPPORTED, "is a GGUF file");
    t_ckpt_put("model.safetensors", "12345678");
    refused(path_of("model.safetensors"), 0, ERR_INPUT,
            "is a file: pass the directory that holds config.json");
    cr_assert_eq(symlink("nowhere", path_of("link")), 0);
    refused(path_of("link"), 0, ERR_INPUT, "nowhere");
}

Test(models_kinds, no_config)
{
    both(ERR_INPUT, "no config.json in");
    t_ckpt_put("model.safetensors", "12345678");
    both(ERR_INPUT, "no config.json in");
}

Test(models_kinds, packages_and_hub_folders)
{
    t_ckpt_put("meta.yaml", "model_info:\n");
    both(ERR_INPUT, "is a Core ML package, not a checkpoint");
    cr_assert_eq(unlink(path_of("meta.yaml")), 0);
    cr_assert_eq(mkdir(path_of("blobs"), 0777), 0);
    cr_assert_eq(mkdir(path_of("snapshots"), 0777), 0);
    both(ERR_INPUT, "is a hub cache folder: pass one of its snapshots");
    cr_assert_eq(mkdir(path_of("snapshots/0123abc"), 0777), 0);
    both(ERR_INPUT, "such as '0123abc'");
}

/* A snapshot of the hub cache: links to files elsewhere. */
Test(models_kinds, links_are_followed)
{
    put_config();
    t_ckpt_save(&m);
    cr_assert_eq(mkdir(path_of("blobs"), 0777), 0);
    cr_assert_eq(mkdir(path_of("snap"), 0777), 0);
    {
        char from[300];
        snprintf(from, sizeof from, "%s", path_of("model.safetensors"));
        cr_assert_eq(rename(from, path_of("blobs/1")), 0);
        snprintf(from, sizeof from, "%s", path_of("config.json"));
        cr_assert_eq(rename(from, path_of("blobs/2")), 0);
    }
    cr_assert_eq(symlink("../blobs/1", path_of("snap/model.safetensors")), 0);
    cr_assert_eq(symlink("../blobs/2", path_of("snap/config.json")), 0);
    cr_assert_eq(symlink("snap", path_of("snap2")), 0);
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, path_of("snap2"), 0, &e), 0, "%s", e.text);
    ckpt_close(&c);
}

/* ---- adapters ---- */

static const char adapter[] =
    "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": \"a/b\"}";

Test(models_kinds, adapters)
{
    t_ckpt_put("adapter_config.json", adapter);
    both(ERR_UNSUPPORTED, "is a LoRA adapter for 'a/b', not a whole model");
    t_ckpt_put("adapter_model.safetensors", "x");
    both(ERR_UNSUPPORTED, "is a LoRA adapter for 'a/b'");
    t_ckpt_put("adapter_config.json", "{\"peft_type\": \"IA3\"}");
    both(ERR_UNSUPPORTED, "is a IA3 adapter, not a whole model");
    /* With a config but without the base's weights. */
    put_config();
    both(ERR_UNSUPPORTED, "is a IA3 adapter");
    t_ckpt_put("adapter_config.json", "[");
    refused(t_ckpt_dir(), 0, ERR_INPUT, "adapter_config.json");
}

Test(models_kinds, adapters_beside_a_model)
{
    put_config();
    t_ckpt_save(&m);
    t_ckpt_put("adapter_config.json", adapter);
    /* The leftover of a merge: nothing is lost. */
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), 0, &e), 0, "%s", e.text);
    ckpt_close(&c);
    t_ckpt_put("adapter_model.safetensors", "x");
    both(ERR_UNSUPPORTED,
         "holds a LoRA adapter ('adapter_model.safetensors') beside a model");
}

/* ---- weights in other forms ---- */

Test(models_kinds, foreign_weights)
{
    static const struct {
        const char *file, *part;
    } rows[] = {
        { "q4.gguf", "holds GGUF weights only ('q4.gguf')" },
        { "pytorch_model.bin", "PyTorch pickles only ('pytorch_model.bin')" },
        { "pytorch_model-00001-of-00002.bin", "PyTorch pickles only" },
        { "consolidated.00.pth", "maker's own layout only" },
        { "consolidated.safetensors", "maker's own layout only" },
    };

    for (int config = 0; config < 2; config++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            if (config)
                put_config();
            t_ckpt_put(rows[i].file, "x");
            both(ERR_UNSUPPORTED, rows[i].part);
            t_ckpt_clean();
        }
}

Test(models_kinds, no_weights)
{
    put_config();
    refused(t_ckpt_dir(), 0, ERR_INPUT, "no weights in");
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), CKPT_CONFIG_ONLY, &e), 0, "%s",
                 e.text);
    cr_expect_null(c.st);
    cr_expect_eq(c.ledger.n, 29);
    cr_expect_null(c.ledger.needs[0].tensor);
    cr_expect_not_null(ckpt_need(&c, "lm_head.weight"));
    cr_expect_null(ckpt_tensor(&c, "lm_head.weight"));
    ckpt_close(&c);
    t_ckpt_put("model-00001-of-00002.safetensors", "x");
    refused(t_ckpt_dir(), 0, ERR_INPUT,
            "'model-00001-of-00002.safetensors' are there, but neither");
}

Test(models_kinds, pointers_and_broken_shards)
{
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:"
        "0000000000000000000000000000000000000000000000000000000000000000\n"
        "size 1503300328\n";

    put_config();
    t_ckpt_put("model.safetensors", pointer);
    refused(t_ckpt_dir(), 0, ERR_INPUT, "git-lfs");
    cr_expect_not_null(strstr(e.text, "model.safetensors"), "%s", e.text);
    /* A plan needs no weights; a line says what it found. */
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), CKPT_CONFIG_ONLY, &e), 0, "%s",
                 e.text);
    cr_expect_null(c.st);
    cr_expect_not_null(
        strstr(buf_text(&c.notes), "planned from the config alone: "));
    ckpt_close(&c);
    t_ckpt_put("config.json", pointer);
    refused(t_ckpt_dir(), 0, ERR_INPUT, "git-lfs");
    cr_expect_not_null(strstr(e.text, "config.json"), "%s", e.text);
}

Test(models_kinds, truncated_shard)
{
    struct stat st;

    put_config();
    t_ckpt_save(&m);
    cr_assert_eq(stat(path_of("model.safetensors"), &st), 0);
    cr_assert_eq(truncate(path_of("model.safetensors"), st.st_size - 5), 0);
    refused(t_ckpt_dir(), 0, ERR_INPUT, "model.safetensors");
}

Test(models_kinds, file_with_holes)
{
    struct stat st;

    t_ckpt_llama(&m, true);
    t_ckpt_config(&m, "\"vocab_size\": 16", "\"vocab_size\": 200000");
    m.t[0].dims[0] = 16;
    t_ckpt_save(&m);
    {
        /* The same header with a table of 200,000 rows, its data a hole. */
        struct err w = ERR_INIT;
        struct st_writer *s = st_writer_new(&w);
        static char zeros[4096];
        uint64_t left = 0;
        m.t[0].dims[0] = 200000;
        unlink(path_of("model.safetensors"));
        for (size_t i = 0; i < m.n; i++) {
            uint64_t n = 2;
            cr_assert_eq(st_writer_add(s, m.t[i].name, m.t[i].dtype,
                                       m.t[i].rank, m.t[i].dims, &w),
                         0);
            for (int k = 0; k < m.t[i].rank; k++)
                n *= m.t[i].dims[k];
            left += n;
        }
        cr_assert_eq(st_writer_begin(s, path_of("model.safetensors"), &w), 0);
        for (size_t i = 0; i < m.n; i++) {
            uint64_t n = 2;
            for (int k = 0; k < m.t[i].rank; k++)
                n *= m.t[i].dims[k];
            while (n) {
                size_t part = n < sizeof zeros ? (size_t)n : sizeof zeros;
                cr_assert_eq(st_writer_write(s, zeros, part, &w), 0);
                n -= part;
            }
        }
        cr_assert_eq(st_writer_finish(s, &w), 0, "%s", w.text);
        st_writer_free(s);
    }
    cr_assert_eq(stat(path_of("model.safetensors"), &st), 0);
    {
        /* Keep the header, drop the blocks of the data. */
        off_t head = 8192;
        cr_assert_eq(truncate(path_of("model.safetensors"), head), 0);
        cr_assert_eq(truncate(path_of("model.safetensors"), st.st_size), 0);
    }
    refused(t_ckpt_dir(), 0, ERR_INPUT, "has holes");
}

Test(models_kinds, broken_configs)
{
    static const struct {
        const char *text, *part;
    } rows[] = {
        { "{", "config.json" },
        { "[]", "config.json': it holds an array" },
        { "{}", "config.json': there is no 'model_type'" },
        { "{\"model_type\": \"llama\", \"hidden_size\": \"big\"}",
          "config.json': 'hidden_size' is a string" },
        { "{\"model_type\": \"llama\", \"model_type\": \"llama\"}",
          "model_type" },
        { "{\"model_type\": \"llama\"} x", "config.json" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        t_ckpt_put("config.json", rows[i].text);
        refused(t_ckpt_dir(), 0, ERR_INPUT, rows[i].part);
    }
}

/* ---- quantization in words ---- */

Test(models_kinds, methods_by_config)
{
    static const struct {
        const char *member, *part;
    } rows[] = {
        { "\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, "
          "\"group_size\": 128}",
          "is GPTQ-quantized (4 bits, groups of 128), as quantization_config "
          "in config.json tells" },
        { "\"quantization_config\": {\"quant_method\": \"awq\", \"w_bit\": 4, "
          "\"q_group_size\": 64}",
          "is AWQ-quantized (4 bits, groups of 64)" },
        { "\"quantization_config\": {\"quant_method\": \"bitsandbytes\", "
          "\"load_in_8bit\": true}",
          "is bitsandbytes-quantized (8 bits)" },
        { "\"quantization_config\": {\"quant_method\": \"fp8\"}",
          "is FP8-quantized" },
        { "\"quantization_config\": {\"quant_method\": \"modelopt\", "
          "\"quant_algo\": \"NVFP4\"}",
          "is quantized with modelopt (NVFP4)" },
        { "\"quantization_config\": {\"quant_algo\": \"FP8\"}",
          "is quantized with modelopt (FP8)" },
        { "\"quantization_config\": {\"quant_method\": \"mxfp4\"}",
          "is MXFP4-quantized" },
        { "\"quantization_config\": {\"quant_method\": \"hqq\"}",
          "is quantized with 'hqq'" },
        { "\"compression_config\": {\"quant_method\": "
          "\"compressed-tensors\", \"format\": \"int-quantized\"}",
          "is quantized with compressed-tensors (int-quantized), as "
          "compression_config" },
        { "\"quantization\": {\"bits\": 3, \"group_size\": 32}",
          "is MLX-quantized (3 bits, groups of 32), as quantization in" },
        { "\"quantization_config\": {\"bits\": 4}",
          "is quantized by a method that is not named (4 bits)" },
        { "\"quantization_config\": {\"quant_method\": \"a\\u0007b\"}",
          "is quantized with 'a?b'" },
    };
    char text[600];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text, "%s, \"head_dim\"", rows[i].member);
        t_ckpt_llama(&m, true);
        t_ckpt_config(&m, "\"head_dim\"", text);
        t_ckpt_put("config.json", m.config);
        both(ERR_UNSUPPORTED, rows[i].part);
    }
}

Test(models_kinds, inert_quantization_keys)
{
    static const char *const rows[] = { "\"quantization_config\": null",
                                        "\"quantization\": null",
                                        "\"quantization\": 4",
                                        "\"compression_config\": null" };
    char text[100];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text, "%s, \"head_dim\"", rows[i]);
        t_ckpt_llama(&m, true);
        t_ckpt_config(&m, "\"head_dim\"", text);
        t_ckpt_put("config.json", m.config);
        err_reset(&e);
        cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), CKPT_CONFIG_ONLY, &e), 0,
                     "%s: %s", rows[i], e.text);
        ckpt_close(&c);
    }
}

Test(models_kinds, modelopt_by_its_own_file_alone)
{
    put_config();
    t_ckpt_put("hf_quant_config.json",
               "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": "
               "{\"quant_algo\": \"FP8\"}}");
    both(ERR_UNSUPPORTED,
         "is quantized with modelopt (FP8), as hf_quant_config.json tells");
    /* Plain weights are plain whatever lies beside them. */
    t_ckpt_save(&m);
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), 0, &e), 0, "%s", e.text);
    ckpt_close(&c);
}

Test(models_kinds, an_index_without_shards_tells_by_names)
{
    put_config();
    t_ckpt_put("model.safetensors.index.json",
               "{\"weight_map\": {\"model.layers.0.mlp.up_proj.scales\": "
               "\"a.safetensors\"}}");
    both(ERR_UNSUPPORTED, "is MLX-quantized, as tensor "
                          "'model.layers.0.mlp.up_proj.scales' tells");
    t_ckpt_put("model.safetensors.index.json",
               "{\"weight_map\": {\"model.norm.weight\": \"a.safetensors\"}}");
    refused(t_ckpt_dir(), 0, ERR_INPUT, "a.safetensors");
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), CKPT_CONFIG_ONLY, &e), 0, "%s",
                 e.text);
    ckpt_close(&c);
    t_ckpt_put("model.safetensors.index.json", "{\"weight_map\": [1]}");
    refused(t_ckpt_dir(), 0, ERR_INPUT, "weight_map");
    t_ckpt_put("model.safetensors.index.json", "[");
    refused(t_ckpt_dir(), 0, ERR_INPUT, "index.json");
}

/* An unsupported family is told before the user downloads the rest. */
Test(models_kinds, the_family_counts_before_the_weights)
{
    t_ckpt_put("config.json", "{\"model_type\": \"phi\"}");
    t_ckpt_put("model.safetensors", "12345678");
    both(ERR_UNSUPPORTED, "model_type 'phi' is not supported");
    t_ckpt_put("config.json", "{\"model_type\": \"phi\", "
                              "\"quantization_config\": "
                              "{\"quant_method\": \"gptq\"}}");
    both(ERR_UNSUPPORTED, "is GPTQ-quantized, as quantization_config in "
                          "config.json tells");
    cr_expect_not_null(strstr(e.text, "; besides, model_type 'phi' is not "
                                      "supported"),
                       "%s", e.text);
}

/* ---- every published config ---- */

/* `part` NULL: parses, with that many parameters. */
static const struct {
    const char *name, *part;
    uint64_t count;
} configs[] = {
    { "Gemma-4-31B-IT-NVFP4", "quantized with modelopt (NVFP4)", 0 },
    { "Kimi-K2.5",
      "quantized with compressed-tensors (pack-quantized), as "
      "quantization_config in text_config",
      0 },
    { "Llama-3.1-70B-Instruct", NULL, 70553706496 },
    { "Llama-3.1-70B-Instruct-FP8", "modelopt (FP8), as hf_quant_config.json",
      0 },
    { "Llama-3.2-1B-Instruct", NULL, 1235814400 },
    { "Llama-3_3-Nemotron-Super-49B-v1", "model_type 'nemotron-nas'", 0 },
    { "Meta-Llama-3-70B", NULL, 70553706496 },
    { "Meta-Llama-3.1-405B-Instruct-FP8", "FP8-quantized (fbgemm)", 0 },
    { "Meta-Llama-3.1-8B", NULL, 8030261248 },
    { "MiMo-7B-Base", "model_type 'mimo'", 0 },
    { "Mixtral-8x7B-v0.1", "model_type 'mixtral'", 0 },
    { "Qwen3-0.6B", NULL, 596049920 },
    { "Qwen3-1.7B", NULL, 1720574976 },
    { "Qwen3-1.7B-MLX-bf16", NULL, 1720574976 },
    { "Qwen3-14B", NULL, 14768307200 },
    { "Qwen3-14B-MLX-4bit", "MLX-quantized (4 bits, groups of 64)", 0 },
    { "Qwen3-30B-A3B", "model_type 'qwen3_moe'", 0 },
    { "Qwen3-30B-A3B-FP8", "FP8-quantized", 0 },
    { "Qwen3-32B-FP8", "FP8-quantized (e4m3)", 0 },
    { "Qwen3-32B-FP8-Static-PerTensor", "modelopt (FP8)", 0 },
    { "Qwen3-8B", NULL, 8190735360 },
    { "Qwen3-8B-DFlash-draft", "names 'DFlashDraftModel'", 0 },
    { "Qwen3-Embedding-0.6B", NULL, 595776512 },
    { "Qwen3-Embedding-8B", NULL, 8188515328 },
    { "Qwen3-Reranker-0.6B", NULL, 595776512 },
    { "Qwen3-VL-2B-Instruct", "model_type 'qwen3_vl'", 0 },
    { "Qwen3.5-0.8B-reformatted", NULL, 752393024 },
    { "Qwen3.5-122B-A10B-NVFP4", "modelopt (NVFP4)", 0 },
    { "Qwen3.5-25B-REAP-A3B-Coding", NULL, 25091371648 },
    { "Qwen3.5-27B", NULL, 26895998464 },
    { "Qwen3.5-35B-A3B", NULL, 34660610688 },
    { "Qwen3.5-35B-A3B-GPTQ-Int4", "GPTQ-quantized (4 bits, groups of 128)",
      0 },
    { "Qwen3.5-397B-A17B", NULL, 396346350336 },
    { "Qwen3.5-4B", NULL, 4205751296 },
    { "Qwen3.5-4B-TextOnly-HF", NULL, 4205751296 },
    { "Qwen3.5-9B-MLX-8bit", "MLX-quantized (8 bits, groups of 64)", 0 },
    { "Qwen3.6-27B-FP8", "FP8-quantized (e4m3)", 0 },
    { "Qwen3.6-27B-NVFP4", "quantized with modelopt (MIXED_PRECISION)", 0 },
    { "Qwen3.6-35B-A3B", NULL, 34660610688 },
    { "Qwen3.8-27B", NULL, 26895998464 },
    { "building-engineering-llm-bnb4", "bitsandbytes-quantized (4 bits, nf4)",
      0 },
    { "gpt-oss-20b", "MXFP4-quantized", 0 },
    { "lora-gemma-3-1b-it-text-to-sql",
      "LoRA adapter for 'google/gemma-3-1b-it'", 0 },
    { "lora-u2_decision_4b", "LoRA adapter for 'Qwen/Qwen3.5-4B'", 0 },
    { "phi-2-GPTQ", "GPTQ-quantized (4 bits, groups of 128)", 0 },
    { "qwen3-0.6b-base-think-sft", NULL, 596049920 },
};

static void judge(const char *root, size_t i)
{
    char dir[1200];

    snprintf(dir, sizeof dir, "%s/%s", root, configs[i].name);
    if (configs[i].part) {
        refused(dir, CKPT_CONFIG_ONLY, ERR_UNSUPPORTED, configs[i].part);
        return;
    }
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, dir, CKPT_CONFIG_ONLY, &e), 0, "%s", e.text);
    cr_expect_eq(hparams_count(&c.hp), configs[i].count, "%s: %llu", dir,
                 (unsigned long long)hparams_count(&c.hp));
    ckpt_close(&c);
}

Test(models_kinds, published_configs)
{
    const char *root = t_ckpt_shared("configs");
    char copy[1024];

    if (!root)
        cr_skip_test("no configs here");
    snprintf(copy, sizeof copy, "%s", root);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        judge(copy, i);
}

/* The others: of families to come. Parsed, or refused in one line. */
Test(models_kinds, every_directory_has_a_verdict)
{
    const char *root = t_ckpt_shared("configs");
    char copy[1024], dir[1400], **names;
    size_t n;

    if (!root)
        cr_skip_test("no configs here");
    snprintf(copy, sizeof copy, "%s", root);
    cr_assert_eq(io_list(copy, &names, &n, &e), 0, "%s", e.text);
    for (size_t i = 0; i < n; i++) {
        snprintf(dir, sizeof dir, "%s/%s", copy, names[i]);
        if (!io_is_dir(dir))
            continue;
        err_reset(&e);
        if (!ckpt_open(&c, dir, CKPT_CONFIG_ONLY, &e)) {
            ckpt_close(&c);
            continue;
        }
        cr_expect_eq(e.code, ERR_UNSUPPORTED, "%s", e.text);
        cr_expect_null(strchr(e.text, '\n'), "%s", e.text);
        cr_expect(strstr(e.text, "is not supported (supported: ") ||
                      strstr(e.text, "quantized") ||
                      strstr(e.text, "adapter") ||
                      strstr(e.text, "'architectures' names"),
                  "%s", e.text);
    }
    io_list_free(names, n);
}
