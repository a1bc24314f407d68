/*
 * Names and ledger: prefixes, missing, unknown and misshapen tensors, dtypes,
 * tying, and rows as the reference reads them.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/mem.h"
#include "models/models.h"
#include "t_ckpt.h"

TestSuite(models_checkpoint, .fini = t_ckpt_clean);

static struct t_ckpt m;
static struct ckpt c;
static struct err e;

static void opens(unsigned flags)
{
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), flags, &e), 0, "%s", e.text);
}

static void save_and_open(unsigned flags)
{
    t_ckpt_save(&m);
    opens(flags);
}

static void refused(unsigned flags, enum err_code code)
{
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), flags, &e), -1,
                 "opened, though it must not");
    cr_expect_eq(e.code, code, "code %d: %s", e.code, e.text);
}

static void says(const char *part)
{
    cr_expect_not_null(strstr(e.text, part), "'%s' is not in: %s", part,
                       e.text);
}

static bool noted(const char *part)
{
    return strstr(buf_text(&c.notes), part) != NULL;
}

/* ---- a sound one ---- */

Test(models_checkpoint, sound_model_balances)
{
    t_ckpt_qwen3(&m, false);
    save_and_open(0);
    cr_expect_eq(c.ledger.n, 3 * 11 + 3);
    cr_expect_eq(c.ledger.used_tensors, c.ledger.n);
    cr_expect_eq(c.ledger.used_bytes, 2 * hparams_count(&c.hp));
    cr_expect_eq(c.ledger.used_bytes, st_data_bytes(c.st));
    cr_expect_eq(c.ledger.n_ignored, 0);
    cr_expect(noted("36 tensors used, none left over"));
    cr_expect(noted("tensors by dtype: BF16 36"));
    cr_expect_str_eq(c.ledger.needs[0].name, "embed_tokens.weight");
    cr_expect_not_null(ckpt_tensor(&c, "layers.2.self_attn.k_norm.weight"));
    cr_expect_null(ckpt_tensor(&c, "layers.3.self_attn.k_norm.weight"));
    cr_expect_null(ckpt_tensor(&c, ""));
    cr_expect_null(ckpt_need(&c, "zzz"));
    cr_expect_null(c.generation);
    ckpt_close(&c);
    cr_expect_null(c.st);
    ckpt_close(&c); /* twice is fine */
}

Test(models_checkpoint, trailing_slashes_and_generation_config)
{
    char path[200];

    t_ckpt_llama(&m, true);
    t_ckpt_save(&m);
    t_ckpt_put("generation_config.json", "{\"eos_token_id\": [2]}");
    snprintf(path, sizeof path, "%s//", t_ckpt_dir());
    cr_assert_eq(ckpt_open(&c, path, 0, &e), 0, "%s", e.text);
    cr_expect_str_eq(c.dir, t_ckpt_dir());
    cr_expect_not_null(c.generation);
    ckpt_close(&c);
    t_ckpt_put("generation_config.json", "{");
    refused(0, ERR_INPUT);
    says("generation_config.json");
}

/* ---- prefixes ---- */

static const struct {
    const char *head;
    bool keep;
    const char *outer;
} spellings[] = {
    { "", true, "" },  /* model.layers. and lm_head. */
    { "", false, "" }, /* nothing at all */
    { "base_model.model.", true, "base_model.model." },
    { "_orig_mod.", true, "_orig_mod." },
    { "module.", true, "module." },
    { "model.language_model.", false, "" },
    { "model.language_model.", false, "language_model." },
    { "model.language_model.language_model.", false,
      "language_model.language_model." },
    { "language_model.language_model.language_model.", true,
      "language_model." },
    { "language_model.", true, "language_model." },
    { "module.module._orig_mod.", true, "module._orig_mod." },
    { "foreign.thing.", true, "foreign.thing." },
    { "a.b.a.b.", false, "a.b." },
};

Test(models_checkpoint, any_prefix_gives_the_same_names)
{
    float first[64], row[64];

    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        struct tensor_source s;
        t_ckpt_qwen3(&m, false);
        t_ckpt_prefix(&m, spellings[i].head, spellings[i].keep,
                      spellings[i].outer);
        save_and_open(0);
        cr_expect_eq(c.ledger.used_tensors, 36);
        for (size_t k = 0; k < c.ledger.n; k++) {
            const struct need *n = &c.ledger.needs[k];
            size_t want = strlen(n->name), len;
            cr_assert_not_null(n->tensor);
            len = strlen(n->tensor->name);
            cr_expect(len >= want &&
                          !strcmp(n->tensor->name + len - want, n->name),
                      "%s for %s", n->tensor->name, n->name);
        }
        s = ckpt_source(&c);
        cr_assert_eq(s.rows(s.cookie, "layers.1.mlp.down_proj.weight", 3, 2,
                            row, &e),
                     0, "%s", e.text);
        if (!i)
            memcpy(first, row, sizeof first);
        cr_expect_eq(memcmp(first, row, 24 * sizeof *row), 0, "spelling %zu",
                     i);
        ckpt_close(&c);
    }
}

Test(models_checkpoint, wrappers_inside_a_name)
{
    static const char *const wrappers[] = { "_fsdp_wrapped_module", "_orig_mod",
                                            "_checkpoint_wrapped_module" };

    for (size_t k = 0; k < 3; k++) {
        t_ckpt_llama(&m, true);
        for (size_t i = 0; i < m.n; i++) {
            char *p = strstr(m.t[i].name, "self_attn."), rest[200];
            if (!p)
                continue;
            snprintf(rest, sizeof rest, "%s", p);
            snprintf(p, 200, "%s.%.100s", wrappers[k], rest);
        }
        save_and_open(0);
        ckpt_close(&c);
    }
}

/* "model." is the stem of most, once its repeats are counted with it. */
Test(models_checkpoint, the_most_frequent_stem_wins)
{
    t_ckpt_llama(&m, true);
    for (size_t i = 0; i < m.n; i++) {
        char rest[200];
        const char *stem = i % 5 < 2 ? "model." : "model.model.";
        if (i % 5 == 2 || strstr(m.t[i].name, "layers.1."))
            stem = "model.m.";
        snprintf(rest, sizeof rest, "%s", m.t[i].name + 6);
        if (!strncmp(rest, "layers.", 7))
            snprintf(m.t[i].name, sizeof m.t[i].name, "%s%s", stem, rest);
    }
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("more than one prefix: 'model.' and 'model.m.'");
}

Test(models_checkpoint, layer_numbers_have_one_spelling)
{
    t_ckpt_llama(&m, true);
    snprintf(t_ckpt_find(&m, "model.layers.0.mlp.up_proj.weight")->name, 100,
             "model.layers.00.mlp.up_proj.weight");
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("layer 0: missing mlp.up_proj.weight");
    says("top level: unknown layers.00.mlp.up_proj.weight");
}

Test(models_checkpoint, runs_of_layers_do_not_jump_gaps)
{
    t_ckpt_llama(&m, true);
    for (size_t i = m.n; i-- > 0;)
        if (strstr(m.t[i].name, "mlp.up_proj") &&
            !strstr(m.t[i].name, "layers.1."))
            t_ckpt_drop(&m, i);
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("\n  layer 0: missing mlp.up_proj.weight [12, 8]");
    says("\n  layer 2: missing mlp.up_proj.weight [12, 8]");
}

Test(models_checkpoint, a_head_elsewhere_is_not_the_head)
{
    t_ckpt_llama(&m, false);
    snprintf(m.t[m.n - 1].name, 100, "medusa.lm_head.weight");
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("1 missing, 1 unknown");
    says("missing lm_head.weight [16, 8]");
    says("unknown medusa.lm_head.weight [16, 8]");
}

Test(models_checkpoint, half_under_another_prefix)
{
    t_ckpt_llama(&m, true);
    for (size_t i = 0; i < m.n; i++)
        if (!strncmp(m.t[i].name, "model.layers.1.", 15)) {
            char rest[200];
            snprintf(rest, sizeof rest, "%s", m.t[i].name + 6);
            snprintf(m.t[i].name, sizeof m.t[i].name, "other.%s", rest);
        }
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("9 missing, 9 unknown");
    says("layer 1: missing mlp.down_proj.weight [8, 12]");
    says("layer 1: unknown other.layers.*.mlp.down_proj.weight [8, 12]");
    says("more than one prefix: 'model.' and 'other.'");
}

Test(models_checkpoint, one_name_twice_after_collapsing)
{
    t_ckpt_llama(&m, true);
    t_ckpt_add(&m, "model.model.layers.0.mlp.up_proj.weight", 2, 12, 8);
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("1 repeated");
    says("twice layers.0.mlp.up_proj.weight");
}

Test(models_checkpoint, foreign_names_find_nothing)
{
    t_ckpt_llama(&m, true);
    for (size_t i = 0; i < m.n; i++)
        snprintf(m.t[i].name, sizeof m.t[i].name, "gpt_neox.h.%zu.w", i);
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("29 missing, 29 unknown");
    says("layers 0-2: missing mlp.up_proj.weight [12, 8]");
    says("top level: unknown gpt_neox.h.0.w");
}

/* ---- the ledger ---- */

Test(models_checkpoint, each_tensor_deleted_in_turn)
{
    size_t n;

    t_ckpt_qwen3(&m, true);
    t_ckpt_put("config.json", m.config);
    n = m.n;
    for (size_t i = 0; i < n; i++) {
        char name[256], want[300];
        t_ckpt_qwen3(&m, true);
        snprintf(name, sizeof name, "%s", m.t[i].name + 6);
        t_ckpt_drop(&m, i);
        t_ckpt_save(&m);
        refused(0, ERR_INPUT);
        says(": 1 missing");
        if (!strncmp(name, "layers.", 7)) {
            snprintf(want, sizeof want, "\n  layer %c: missing %s [", name[7],
                     name + 9);
        } else {
            snprintf(want, sizeof want, "\n  top level: missing %s [", name);
        }
        says(want);
    }
}

Test(models_checkpoint, wrong_shapes_tell_both)
{
    t_ckpt_llama(&m, true);
    t_ckpt_find(&m, "model.layers.1.self_attn.k_proj.weight")->dims[0] = 6;
    t_ckpt_find(&m, "model.embed_tokens.weight")->dims[0] = 15;
    t_ckpt_find(&m, "model.norm.weight")->rank = 2;
    t_ckpt_find(&m, "model.norm.weight")->dims[1] = 1;
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("3 of another shape");
    says("layer 1: shape of self_attn.k_proj.weight is [6, 8], needed [4, 8]");
    says("shape of embed_tokens.weight is [15, 8], needed [16, 8]");
    says("shape of norm.weight is [8, 1], needed [8]");
    /* No transposing to make it fit. */
    t_ckpt_llama(&m, true);
    t_ckpt_find(&m, "model.layers.0.mlp.up_proj.weight")->dims[0] = 8;
    t_ckpt_find(&m, "model.layers.0.mlp.up_proj.weight")->dims[1] = 12;
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("is [8, 12], needed [12, 8]");
}

Test(models_checkpoint, extra_tensors)
{
    t_ckpt_llama(&m, true);
    t_ckpt_add(&m, "model.layers.2.self_attn.q_norm.weight", 1, 4, 0);
    t_ckpt_add(&m, "model.layers.3.mlp.up_proj.weight", 2, 12, 8);
    t_ckpt_add(&m, "extra", 1, 2, 0);
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("does not hold the tensors of a llama model of this config: "
         "3 unknown");
    says("layer 2: unknown self_attn.q_norm.weight [4]");
    says("layer 3: unknown mlp.up_proj.weight [12, 8]");
    says("top level: unknown extra [2]");
    says("(per-head q/k norms: llama has none)");
}

Test(models_checkpoint, skipped_by_rule)
{
    t_ckpt_llama(&m, true);
    for (int i = 0; i < 3; i++) {
        char name[100];
        snprintf(name, sizeof name,
                 "model.layers.%d.self_attn.rotary_emb.inv_freq", i);
        t_ckpt_add(&m, name, 1, 2, 0);
    }
    save_and_open(0);
    cr_expect_eq(c.ledger.n_ignored, 1);
    cr_expect_str_eq(c.ledger.ignored[0].rule, "rotary_emb.inv_freq");
    cr_expect_eq(c.ledger.ignored[0].tensors, 3);
    cr_expect_eq(c.ledger.ignored[0].bytes, 12);
    cr_expect(noted("3 skipped by rule 'rotary_emb.inv_freq'"));
    ckpt_close(&c);
    /* Segments, not text. */
    t_ckpt_add(&m, "model.layers.0.my_rotary_emb.inv_freq", 1, 2, 0);
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("unknown my_rotary_emb.inv_freq");
    snprintf(m.t[m.n - 1].name, 100, "rotary_emb.inv_freqs");
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("unknown rotary_emb.inv_freqs");
}

Test(models_checkpoint, biases_are_announced_by_the_config)
{
    static const char *const parts[] = { "self_attn.q_proj", "self_attn.k_proj",
                                         "self_attn.v_proj",
                                         "self_attn.o_proj" };
    static const uint64_t rows[] = { 8, 4, 4, 8 };

    t_ckpt_llama(&m, true);
    t_ckpt_config(&m, "\"head_dim\"", "\"attention_bias\": true, \"head_dim\"");
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("12 missing");
    says("layers 0-2: missing self_attn.k_proj.bias [4]");
    says("(config.json announces 'attention_bias', the tensors do not hold");
    for (int l = 0; l < 3; l++)
        for (size_t i = 0; i < 4; i++) {
            char name[100];
            snprintf(name, sizeof name, "model.layers.%d.%s.bias", l, parts[i]);
            t_ckpt_add(&m, name, 1, rows[i], 0);
        }
    save_and_open(0);
    cr_expect_eq(c.ledger.used_tensors, 29 + 12);
    ckpt_close(&c);
    t_ckpt_config(&m, "\"attention_bias\": true", "\"attention_bias\": false");
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("12 unknown");
    says("(config.json does not announce 'attention_bias', the tensors hold");
}

Test(models_checkpoint, long_lists_are_cut)
{
    t_ckpt_llama(&m, true);
    for (int i = 0; i < 60; i++) {
        char name[256];
        snprintf(name, sizeof name, "junk.%02d.%.150s", i,
                 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
                 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
                 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
        t_ckpt_add(&m, name, 1, 1, 0);
    }
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("60 unknown");
    says("more lines");
    cr_expect_lt(strlen(e.text), ERR_TEXT_MAX - 256);
    cr_expect_null(strstr(e.text, "junk.59"));
}

Test(models_checkpoint, very_long_names_match_nothing)
{
    static char text[1200], header[1600];

    t_ckpt_llama(&m, true);
    memset(text, 'x', sizeof text - 1);
    t_ckpt_save(&m);
    /* A second file by hand: the writer's names are short. */
    snprintf(header, sizeof header,
             "{\"weight_map\": {\"model.layers.0.%s\": \"model.safetensors\"}}",
             text);
    t_ckpt_put("model.safetensors.index.json", header);
    refused(0, ERR_INPUT);
    says("missing");
    cr_expect_lt(strlen(e.text), ERR_TEXT_MAX - 256);
}

/* ---- dtypes ---- */

Test(models_checkpoint, the_header_rules_the_dtype)
{
    t_ckpt_llama(&m, true);
    for (size_t i = 0; i < m.n; i++)
        m.t[i].dtype = i ? ST_F32 : ST_F16;
    save_and_open(0);
    cr_expect(noted("tensors by dtype: F16 1, F32 28"));
    cr_expect(noted("config.json says bfloat16, no needed tensor is"));
    ckpt_close(&c);
}

Test(models_checkpoint, dtypes_that_are_not_read)
{
    static const enum st_dtype bad[] = { ST_F64, ST_I64, ST_I32, ST_F8_E4M3,
                                         ST_U8 };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char want[64];
        t_ckpt_llama(&m, true);
        t_ckpt_find(&m, "model.layers.1.mlp.up_proj.weight")->dtype = bad[i];
        t_ckpt_save(&m);
        refused(0, ERR_UNSUPPORTED);
        says("'model.layers.1.mlp.up_proj.weight'");
        snprintf(want, sizeof want, "is %s, which is unsupported for now",
                 st_dtype_name(bad[i]));
        says(want);
    }
}

Test(models_checkpoint, skipped_tensors_may_have_any_dtype)
{
    t_ckpt_llama(&m, true);
    t_ckpt_add(&m, "model.layers.0.self_attn.rotary_emb.inv_freq", 1, 2, 0);
    m.t[m.n - 1].dtype = ST_F64;
    save_and_open(0);
    ckpt_close(&c);
}

/* ---- quantized or plain: the tensors decide ---- */

Test(models_checkpoint, plain_tensors_beat_the_config)
{
    char path[200];

    t_ckpt_llama(&m, true);
    t_ckpt_config(&m, "\"head_dim\"",
                  "\"quantization_config\": {\"bits\": 4}, \"head_dim\"");
    save_and_open(0);
    cr_expect(noted("every needed tensor is plain: taken as plain"));
    ckpt_close(&c);
    /* Without weights only the config can tell. */
    snprintf(path, sizeof path, "%s/model.safetensors", t_ckpt_dir());
    cr_assert_eq(remove(path), 0);
    refused(CKPT_CONFIG_ONLY, ERR_UNSUPPORTED);
    says("quantized by a method that is not named (4 bits)");
}

struct companion {
    const char *add;    /* names that appear */
    bool drop_weight;   /* the plain matrix is gone */
    const char *config; /* quantization_config, or NULL */
    const char *what;   /* of the sentence */
};
static const struct companion companions[] = {
    { "qweight qzeros scales g_idx", true,
      "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128}",
      "is GPTQ-quantized (4 bits, groups of 128)" },
    { "qweight qzeros scales", true,
      "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128}",
      "is AWQ-quantized (4 bits, groups of 128)" },
    { "qweight qzeros scales", true, NULL, "is GPTQ- or AWQ-quantized" },
    { "weight.absmax weight.quant_map weight.quant_state.bitsandbytes__nf4",
      false, "{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}",
      "is bitsandbytes-quantized (4 bits)" },
    { "weight.absmax", false, NULL, "is bitsandbytes-quantized (4 bits)" },
    { "SCB", false, NULL, "is bitsandbytes-quantized (8 bits)" },
    { "scales biases", false, NULL, "is MLX-quantized" },
    { "weight_scale_inv", false, NULL, "is FP8-quantized" },
    { "weight_scale weight_scale_2 input_scale", false, NULL,
      "is NVFP4-quantized" },
    { "weight_packed weight_scale weight_shape", true,
      "{\"quant_method\": \"compressed-tensors\"}",
      "is quantized with compressed-tensors" },
    { "lora_A.default.weight lora_B.default.weight base_layer.weight", true,
      NULL, "is a model with unmerged LoRA matrices" },
};

Test(models_checkpoint, companions_tell_of_quantization)
{
    static const char base[] = "model.layers.1.self_attn.q_proj";

    for (size_t i = 0; i < sizeof companions / sizeof *companions; i++) {
        char names[200], name[256], text[400];
        t_ckpt_llama(&m, true);
        if (companions[i].config) {
            snprintf(text, sizeof text,
                     "\"quantization_config\": %s, "
                     "\"head_dim\"",
                     companions[i].config);
            t_ckpt_config(&m, "\"head_dim\"", text);
        }
        if (companions[i].drop_weight)
            for (size_t k = 0; k < m.n; k++)
                if (strstr(m.t[k].name, "layers.1.self_attn.q_proj.weight"))
                    t_ckpt_drop(&m, k);
        snprintf(names, sizeof names, "%s", companions[i].add);
        for (char *p = strtok(names, " "); p; p = strtok(NULL, " ")) {
            snprintf(name, sizeof name, "%s.%s", base, p);
            t_ckpt_add(&m, name, 2, 4, 4);
            m.t[m.n - 1].dtype = ST_U8;
        }
        t_ckpt_save(&m);
        refused(0, ERR_UNSUPPORTED);
        says(companions[i].what);
        says("tensor 'model.layers.1.self_attn.q_proj.");
        cr_expect_null(strchr(e.text, '\n'), "%s", e.text);
    }
}

Test(models_checkpoint, packed_weights_with_a_config_are_quantized)
{
    t_ckpt_llama(&m, true);
    t_ckpt_config(&m, "\"head_dim\"",
                  "\"quantization_config\": {\"quant_method\": \"fp8\", "
                  "\"fmt\": \"e4m3\"}, \"head_dim\"");
    t_ckpt_find(&m, "model.layers.0.mlp.up_proj.weight")->dtype = ST_F8_E4M3;
    t_ckpt_save(&m);
    refused(0, ERR_UNSUPPORTED);
    says("is FP8-quantized (e4m3), as tensor "
         "'model.layers.0.mlp.up_proj.weight' tells");
}

Test(models_checkpoint, companions_of_nothing_are_unknown)
{
    t_ckpt_llama(&m, true);
    t_ckpt_add(&m, "model.layers.1.other_proj.scales", 2, 4, 4);
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("layer 1: unknown other_proj.scales");
}

/* ---- tying ---- */

Test(models_checkpoint, tied_skips_a_spare_head_and_compares)
{
    struct t_tensor *head;

    t_ckpt_qwen3(&m, true);
    t_ckpt_add(&m, "lm_head.weight", 2, 16, 8);
    head = &m.t[m.n - 1];
    head->seed = m.t[0].seed;
    save_and_open(0);
    cr_expect(noted("'lm_head.weight' repeats the embedding and is skipped"));
    cr_expect_eq(c.ledger.ignored[0].tensors, 1);
    cr_expect_eq(ckpt_tensor(&c, "lm_head.weight"),
                 ckpt_tensor(&c, "embed_tokens.weight"));
    ckpt_close(&c);
    head->seed++;
    save_and_open(0);
    cr_expect(noted("warning: 'lm_head.weight' differs from the embedding"));
    ckpt_close(&c);
    head->seed--;
    head->dtype = ST_F32;
    save_and_open(0);
    cr_expect(noted("differs from the embedding"));
    ckpt_close(&c);
}

Test(models_checkpoint, untied_without_a_head_needs_the_option)
{
    t_ckpt_llama(&m, false);
    t_ckpt_drop(&m, m.n - 1);
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("has no lm_head.weight, and 'tie_word_embeddings' is false (config)");
    says("--tie");
    opens(CKPT_FORCE_TIE);
    cr_expect(c.hp.tied);
    cr_expect_str_eq(c.hp.tied_by, "--tie");
    cr_expect_eq(ckpt_tensor(&c, "lm_head.weight"),
                 ckpt_tensor(&c, "embed_tokens.weight"));
    ckpt_close(&c);
    /* Two faults: the list, with the head in it. */
    t_ckpt_drop(&m, 1);
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("2 missing");
    says("top level: missing lm_head.weight [16, 8]");
    /* With a head of its own the option would lose it. */
    t_ckpt_llama(&m, false);
    t_ckpt_save(&m);
    refused(CKPT_FORCE_TIE, ERR_INPUT);
    says("--tie would drop the checkpoint's own lm_head.weight");
    /* Tied anyway: nothing to force. */
    t_ckpt_llama(&m, true);
    save_and_open(CKPT_FORCE_TIE);
    cr_expect_str_eq(c.hp.tied_by, "config");
    ckpt_close(&c);
}

Test(models_checkpoint, levels_that_contradict)
{
    char flat[sizeof m.config];

    t_ckpt_llama(&m, true);
    snprintf(flat, sizeof flat, "%s", m.config);
    snprintf(m.config, sizeof m.config,
             "{\"model_type\": \"llama\", \"tie_word_embeddings\": false, "
             "\"text_config\": %.3500s}",
             flat);
    /* No head: only one reading is possible. */
    save_and_open(0);
    cr_expect(c.hp.tied);
    cr_expect_str_eq(c.hp.tied_by, "the missing lm_head.weight");
    cr_expect(noted("differs between the levels"));
    ckpt_close(&c);
    t_ckpt_add(&m, "lm_head.weight", 2, 16, 8);
    t_ckpt_save(&m);
    refused(0, ERR_INPUT);
    says("false at the outer level and true in text_config");
}

/* ---- shards ---- */

static void put_index(const char *extra)
{
    static char text[20000];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"weight_map\": {");

    for (size_t i = 0; i < m.n; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%s\": \"%s\"",
                              i ? ", " : "", m.t[i].name,
                              i < 7 ? "a.safetensors" : "b.safetensors");
    snprintf(text + n, sizeof text - n, "%s}}", extra);
    t_ckpt_put("model.safetensors.index.json", text);
}

Test(models_checkpoint, index_names_a_tensor_that_its_shard_lacks)
{
    t_ckpt_llama(&m, true);
    t_ckpt_put("config.json", m.config);
    t_ckpt_save_tensors(&m, "a.safetensors", 0, 7);
    t_ckpt_save_tensors(&m, "b.safetensors", 7, m.n);
    put_index("");
    opens(0);
    cr_expect_eq(c.ledger.used_tensors, 29);
    ckpt_close(&c);
    /* Needed: an error that names the shard, once. */
    t_ckpt_save_tensors(&m, "b.safetensors", 8, m.n);
    refused(0, ERR_INPUT);
    says(": 1 missing");
    says("(the index says it is in 'b.safetensors')");
    /* Unknown: an error too. */
    t_ckpt_save_tensors(&m, "b.safetensors", 7, m.n);
    put_index(", \"what.is.this\": \"a.safetensors\"");
    refused(0, ERR_INPUT);
    says("missing what.is.this (the index says it is in 'a.safetensors')");
    /* Skipped by a rule: a line. */
    put_index(", \"model.layers.0.self_attn.rotary_emb.inv_freq\": "
              "\"a.safetensors\"");
    opens(0);
    cr_expect(noted("which its shard lacks; it is not needed"));
    ckpt_close(&c);
    put_index(", \"lm_head.weight\": \"a.safetensors\"");
    opens(0);
    cr_expect(noted("'lm_head.weight', which its shard lacks"));
    ckpt_close(&c);
}

/* ---- rows ---- */

Test(models_checkpoint, source_reads_rows)
{
    struct tensor_source s;
    float all[128], some[128];

    t_ckpt_llama(&m, true);
    save_and_open(0);
    s = ckpt_source(&c);
    cr_assert_eq(s.rows(s.cookie, "embed_tokens.weight", 0, 16, all, &e), 0,
                 "%s", e.text);
    cr_assert_eq(s.rows(s.cookie, "lm_head.weight", 5, 3, some, &e), 0);
    cr_expect_eq(memcmp(all + 40, some, 24 * sizeof(float)), 0);
    cr_assert_eq(s.rows(s.cookie, "norm.weight", 0, 1, some, &e), 0);
    cr_assert_eq(s.rows(s.cookie, "norm.weight", 0, 0, some, &e), 0);
    cr_expect_eq(s.rows(s.cookie, "norm.weight", 1, 1, some, &e), -1);
    says("has 1 rows");
    err_reset(&e);
    cr_expect_eq(s.rows(s.cookie, "embed_tokens.weight", 15, 2, some, &e), -1);
    says("has 16 rows, rows 15 to 17 are asked for");
    err_reset(&e);
    cr_expect_eq(s.rows(s.cookie, "embed_tokens.weight", UINT64_MAX, 2, some,
                        &e),
                 -1);
    err_reset(&e);
    cr_expect_eq(s.rows(s.cookie, "model.norm.weight", 0, 1, some, &e), -1);
    says("has no tensor 'model.norm.weight'");
    ckpt_close(&c);
}

/* ---- out of memory, at every allocation ---- */

Test(models_checkpoint, every_allocation_may_fail)
{
    bool done = false;

    t_ckpt_qwen3(&m, true);
    t_ckpt_add(&m, "lm_head.weight", 2, 16, 8);
    t_ckpt_save(&m);
    for (long n = 0; !done; n++) {
        cr_assert_lt(n, 20000);
        err_reset(&e);
        mem_fail_at(n, false);
        done = ckpt_open(&c, t_ckpt_dir(), 0, &e) == 0;
        mem_fail_at(-1, false);
        if (!done)
            cr_assert_eq(e.code, ERR_NOMEM, "n %ld: %s", n, e.text);
    }
    ckpt_close(&c);
    /* The same on the way to the list of complaints. */
    t_ckpt_drop(&m, 3);
    t_ckpt_add(&m, "extra", 1, 2, 0);
    t_ckpt_save(&m);
    done = false;
    for (long n = 0; !done; n++) {
        cr_assert_lt(n, 20000);
        err_reset(&e);
        mem_fail_at(n, false);
        cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), 0, &e), -1);
        mem_fail_at(-1, false);
        done = e.code == ERR_INPUT;
        if (!done)
            cr_assert_eq(e.code, ERR_NOMEM, "n %ld: %s", n, e.text);
    }
}

/* ---- published fixtures ---- */

Test(models_checkpoint, fixtures_open)
{
    static const struct {
        const char *name;
        size_t tensors;
        uint64_t count;
    } rows[] = { { "qwen3-tiny", 68, 5246976 },
                 { "qwen3-odd", 36, 1608768 },
                 { "llama-odd", 30, 816000 } };

    for (size_t i = 0; i < 3; i++) {
        char name[64];
        const char *dir;
        snprintf(name, sizeof name, "fixtures/%s", rows[i].name);
        dir = t_ckpt_shared(name);
        if (!dir)
            cr_skip_test("no fixtures here");
        err_reset(&e);
        cr_assert_eq(ckpt_open(&c, dir, 0, &e), 0, "%s", e.text);
        cr_expect_eq(c.ledger.used_tensors, rows[i].tensors);
        cr_expect_eq(hparams_count(&c.hp), rows[i].count);
        cr_expect_eq(st_data_bytes(c.st), 2 * rows[i].count);
        ckpt_close(&c);
    }
}
