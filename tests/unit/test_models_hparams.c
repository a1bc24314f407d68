/*
 * Hyper-parameters: spellings, defaults, types, refusals, counts.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"
#include "models/models.h"

struct parsed {
    struct js_doc *doc;
    struct hparams hp;
    struct buf notes;
    struct err e;
    int rc;
};

static struct parsed parse(const char *text)
{
    struct parsed p = { .notes = BUF_INIT, .e = ERR_INIT };

    p.doc = js_parse(text, strlen(text), &p.e);
    cr_assert_not_null(p.doc, "%s in %s", p.e.text, text);
    p.rc = hparams_parse(p.doc, &p.hp, &p.notes, &p.e);
    return p;
}

static void drop(struct parsed *p)
{
    js_free(p->doc);
    buf_release(&p->notes);
}

static void accept(struct parsed *p, const char *text)
{
    *p = parse(text);
    cr_assert_eq(p->rc, 0, "%s: %s", text, p->e.text);
}

static void refuse(const char *text, enum err_code code, const char *part)
{
    struct parsed p = parse(text);

    cr_expect_eq(p.rc, -1, "accepted: %s", text);
    cr_expect_eq(p.e.code, code, "code %d (%s) for %s", p.e.code, p.e.text,
                 text);
    cr_expect_not_null(strstr(p.e.text, part), "'%s' is not in '%s'", part,
                       p.e.text);
    drop(&p);
}

static bool noted(const struct parsed *p, const char *part)
{
    return strstr(buf_text(&p->notes), part) != NULL;
}

#define DIMS                                                               \
    "\"vocab_size\": 100, \"hidden_size\": 32, \"intermediate_size\": 48," \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4,"                \
    "\"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-5,"                  \
    "\"max_position_embeddings\": 4096"
#define LLAMA(more) "{\"model_type\": \"llama\", " DIMS more "}"
#define QWEN3(more) \
    "{\"model_type\": \"qwen3\", \"head_dim\": 16, " DIMS more "}"
#define NESTED(more) \
    "{\"model_type\": \"llama\", \"text_config\": {" DIMS more "}}"

/* ---- family ---- */

Test(models_hparams, registry_is_sorted_and_exact)
{
    size_t n = 0;

    for (; model_archs[n]; n++) {
        if (n)
            cr_expect_lt(strcmp(model_archs[n - 1]->name, model_archs[n]->name),
                         0);
        for (const char *const *t = model_archs[n]->model_types; *t; t++)
            cr_expect_eq(model_arch_by_type(*t), model_archs[n]);
    }
    cr_expect_geq(n, 2);
    cr_expect_null(model_arch_by_type("qwen3_moe"));
    cr_expect_null(model_arch_by_type("qwen"));
    cr_expect_null(model_arch_by_type(""));
    cr_expect_null(model_arch_by_type("Llama"));
}

Test(models_hparams, unknown_types_are_named_and_the_known_listed)
{
    refuse("{\"model_type\": \"qwen3_moe\"}", ERR_UNSUPPORTED,
           "model_type 'qwen3_moe' is not supported (supported: ");
    refuse("{\"model_type\": \"phi\"}", ERR_UNSUPPORTED, "llama");
    refuse("{\"model_type\": \"phi\"}", ERR_UNSUPPORTED, "qwen3");
    refuse("{\"model_type\": \"a\\nb\"}", ERR_UNSUPPORTED, "'a?b'");
    refuse("{}", ERR_INPUT, "no 'model_type'");
    refuse("{\"model_type\": null}", ERR_INPUT, "no 'model_type'");
    refuse("{\"model_type\": 3}", ERR_INPUT, "'model_type' is a number");
    refuse("[]", ERR_INPUT, "an array");
    refuse("{\"model_type\": \"llava\", \"text_config\": "
           "{\"model_type\": \"llama\"}}",
           ERR_UNSUPPORTED, "'llava'");
    refuse("{\"model_type\": \"llama\", \"text_config\": "
           "{\"model_type\": \"qwen3\"}}",
           ERR_UNSUPPORTED, "text_config of model_type 'qwen3'");
}

Test(models_hparams, architectures_must_be_of_the_family)
{
    struct parsed p;

    refuse(QWEN3(", \"architectures\": [\"DFlashDraftModel\"]"),
           ERR_UNSUPPORTED,
           "model_type is 'qwen3' but 'architectures' names "
           "'DFlashDraftModel'");
    refuse(LLAMA(", \"architectures\": [\"LlamaForCausalLM\", \"X\"]"),
           ERR_UNSUPPORTED, "'X'");
    refuse(LLAMA(", \"architectures\": \"LlamaForCausalLM\""), ERR_INPUT,
           "'architectures' is a string");
    refuse(LLAMA(", \"architectures\": [7]"), ERR_INPUT, "a number");
    accept(&p, LLAMA(", \"architectures\": [\"LlamaForCausalLM\"]"));
    cr_expect_str_eq(p.hp.architecture, "LlamaForCausalLM");
    cr_expect_str_eq(p.hp.model_type, "llama");
    drop(&p);
    accept(&p, LLAMA(", \"architectures\": []"));
    cr_expect_str_eq(p.hp.architecture, "");
    drop(&p);
    accept(&p, LLAMA(", \"architectures\": null"));
    drop(&p);
}

/* ---- the three columns ---- */

Test(models_hparams, class_defaults_of_llama)
{
    struct parsed p;

    accept(&p, "{\"model_type\": \"llama\"}");
    cr_expect_eq(p.hp.vocab, 32000);
    cr_expect_eq(p.hp.hidden, 4096);
    cr_expect_eq(p.hp.intermediate, 11008);
    cr_expect_eq(p.hp.layers, 32);
    cr_expect_eq(p.hp.heads, 32);
    cr_expect_eq(p.hp.kv_heads, 32);
    cr_expect_eq(p.hp.head_dim, 128);
    cr_expect_eq(p.hp.max_positions, 2048);
    cr_expect_eq(p.hp.rms_eps, 1e-6);
    cr_expect_not(p.hp.tied);
    cr_expect_str_eq(p.hp.tied_by, "class default");
    cr_expect_not(p.hp.attention_bias || p.hp.mlp_bias || p.hp.qk_norm);
    cr_expect_eq(p.hp.rope.theta, 10000);
    cr_expect_str_eq(p.hp.rope_by, "class default");
    cr_expect_eq(p.hp.bos, -1);
    cr_expect_eq(p.hp.n_eos, 0);
    cr_expect(noted(&p, "no 'hidden_size': the class default 4096"));
    cr_expect(noted(&p, "rope_theta in any spelling: the class default 10000"));
    drop(&p);
}

Test(models_hparams, class_defaults_of_qwen3)
{
    struct parsed p;

    accept(&p, "{\"model_type\": \"qwen3\"}");
    cr_expect_eq(p.hp.vocab, 151936);
    cr_expect_eq(p.hp.intermediate, 22016);
    cr_expect_eq(p.hp.kv_heads, 32);
    cr_expect_eq(p.hp.head_dim, 128);
    cr_expect_eq(p.hp.max_positions, 32768);
    cr_expect(p.hp.qk_norm);
    drop(&p);
    /* head_dim does not follow from hidden / heads. */
    accept(&p, "{\"model_type\": \"qwen3\", \"hidden_size\": 1024,"
               "\"num_attention_heads\": 16, \"num_key_value_heads\": null}");
    cr_expect_eq(p.hp.head_dim, 128);
    cr_expect_eq(p.hp.kv_heads, 16, "null means as many as query heads");
    drop(&p);
}

Test(models_hparams, derived_head_counts)
{
    struct parsed p;

    accept(&p, LLAMA(", \"head_dim\": null"));
    cr_expect_eq(p.hp.head_dim, 8);
    drop(&p);
    refuse("{\"model_type\": \"llama\", \"hidden_size\": 33,"
           "\"num_attention_heads\": 4}",
           ERR_INPUT, "hidden_size 33 is not a multiple");
    refuse("{\"model_type\": \"llama\", \"num_attention_heads\": 32,"
           "\"num_key_value_heads\": 5}",
           ERR_INPUT, "not a multiple of num_key_value_heads 5");
    refuse(LLAMA(", \"head_dim\": 7"), ERR_INPUT, "head_dim 7 is odd");
    refuse("{\"model_type\": \"llama\", \"num_attention_heads\": 65536,"
           "\"head_dim\": 65536}",
           ERR_INPUT, "is above 4194304");
}

/* Each key of a table against each JSON type. */
Test(models_hparams, wrong_types_name_key_and_type)
{
    static const char *const ints[] = { "vocab_size",
                                        "hidden_size",
                                        "intermediate_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "num_key_value_heads",
                                        "head_dim",
                                        "max_position_embeddings" };
    static const struct {
        const char *value, *part;
    } bad[] = {
        { "\"8\"", "is a string, a whole number is needed" },
        { "[8]", "is an array, a whole number is needed" },
        { "{}", "is an object, a whole number is needed" },
        { "true", "a whole number is needed" },
        { "8.5", "is 8.5, a whole number is needed" },
        { "0", "is 0, allowed are 1 to" },
        { "-4", "is -4, allowed are 1 to" },
        { "NaN", "a whole number is needed" },
    };
    static const char *const types[] = { "llama", "qwen3" };
    char text[256], part[256];

    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
            for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
                snprintf(text, sizeof text,
                         "{\"model_type\": \"%s\", \"%s\": %s}", types[t],
                         ints[i], bad[k].value);
                snprintf(part, sizeof part, "'%s'", ints[i]);
                refuse(text, ERR_INPUT, part);
                refuse(text, ERR_INPUT, bad[k].part);
            }
}

/* Whatever a key holds: it parses, or the error names the key. */
Test(models_hparams, every_key_with_every_kind)
{
    static const char *const keys[] = {
        "architectures",      "model_type",      "text_config",
        "vocab_size",         "hidden_size",     "num_key_value_heads",
        "head_dim",           "rms_norm_eps",    "hidden_act",
        "attention_bias",     "mlp_bias",        "tie_word_embeddings",
        "use_sliding_window", "layer_types",     "rope_theta",
        "rope_scaling",       "rope_parameters", "partial_rotary_factor",
        "bos_token_id",       "eos_token_id",    "dtype",
        "torch_dtype"
    };
    static const char *const values[] = { "null", "\"x\"", "\"\"",  "0",   "-1",
                                          "1.5",  "1e300", "true",  "NaN", "[]",
                                          "[[]]", "{}",    "[null]" };
    static const char *const types[] = { "llama", "qwen3" };
    char text[256];

    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
                struct parsed p;
                snprintf(text, sizeof text, "{\"%s\": %s%s%s%s}", keys[i],
                         values[k],
                         strcmp(keys[i], "model_type") ? ", \"model_type\": \""
                                                       : "",
                         strcmp(keys[i], "model_type") ? types[t] : "",
                         strcmp(keys[i], "model_type") ? "\"" : "");
                p = parse(text);
                cr_expect(!p.rc || strstr(p.e.text, keys[i]), "%s: %s", text,
                          p.e.text);
                cr_expect(!p.rc || p.e.code == ERR_INPUT ||
                          p.e.code == ERR_UNSUPPORTED);
                drop(&p);
            }
}

Test(models_hparams, null_where_a_value_is_needed)
{
    static const char *const keys[] = {
        "vocab_size",        "hidden_size",         "intermediate_size",
        "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
        "rms_norm_eps",      "hidden_act"
    };
    char text[256], part[128];

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(text, sizeof text, "{\"model_type\": \"llama\", \"%s\": null}",
                 keys[i]);
        snprintf(part, sizeof part, "'%s' is null, a value is needed", keys[i]);
        refuse(text, ERR_INPUT, part);
    }
    refuse("{\"model_type\": \"qwen3\", \"head_dim\": null}", ERR_INPUT,
           "'head_dim' is null");
}

Test(models_hparams, numbers_in_other_spellings)
{
    struct parsed p;

    accept(&p, "{\"model_type\": \"llama\", \"hidden_size\": 64.0,"
               "\"num_attention_heads\": 4e0, \"rms_norm_eps\": 1,"
               "\"rope_theta\": 1000000, \"num_hidden_layers\": 1e1}");
    cr_expect_eq(p.hp.hidden, 64);
    cr_expect_eq(p.hp.layers, 10);
    cr_expect_eq(p.hp.rms_eps, 1);
    cr_expect_eq(p.hp.rope.theta, 1e6);
    drop(&p);
    /* What Python writes for "no limit". */
    accept(&p, LLAMA(", \"x\": NaN, \"y\": 1"));
    drop(&p);
    accept(&p, "{\"model_type\": \"llama\", \"max_position_embeddings\": "
               "1000000000000000019884624838656}");
    cr_expect_eq(p.hp.max_positions, INT64_C(1) << 53);
    drop(&p);
    refuse("{\"model_type\": \"llama\", \"rms_norm_eps\": NaN}", ERR_INPUT,
           "'rms_norm_eps' is not a finite number");
    refuse("{\"model_type\": \"llama\", \"rms_norm_eps\": 0}", ERR_INPUT,
           "'rms_norm_eps' is 0, allowed");
    refuse("{\"model_type\": \"llama\", \"rms_norm_eps\": \"1e-6\"}", ERR_INPUT,
           "'rms_norm_eps' is a string, a number is needed");
    refuse("{\"model_type\": \"llama\", \"num_hidden_layers\": 4097}",
           ERR_INPUT, "is 4097, allowed are 1 to 4096");
}

Test(models_hparams, flags_and_activation)
{
    struct parsed p;

    accept(&p, LLAMA(", \"attention_bias\": true, \"mlp_bias\": true"));
    cr_expect(p.hp.attention_bias && p.hp.mlp_bias);
    drop(&p);
    accept(&p, LLAMA(", \"attention_bias\": null, \"mlp_bias\": null"));
    cr_expect_not(p.hp.attention_bias || p.hp.mlp_bias);
    drop(&p);
    refuse(LLAMA(", \"attention_bias\": 1"), ERR_INPUT,
           "'attention_bias' is a number, true or false is needed");
    refuse(LLAMA(", \"mlp_bias\": \"no\""), ERR_INPUT, "'mlp_bias'");
    refuse(LLAMA(", \"hidden_act\": \"gelu\""), ERR_UNSUPPORTED,
           "hidden_act 'gelu' is not computed, only 'silu' is");
    refuse(QWEN3(", \"hidden_act\": 1"), ERR_INPUT, "'hidden_act' is a number");
    accept(&p, LLAMA(", \"hidden_act\": \"silu\""));
    drop(&p);
}

Test(models_hparams, windows_are_refused_by_key)
{
    struct parsed p;

    refuse(QWEN3(", \"use_sliding_window\": true"), ERR_UNSUPPORTED,
           "'use_sliding_window' is true");
    refuse(QWEN3(", \"use_sliding_window\": 1"), ERR_INPUT,
           "'use_sliding_window' is a number");
    refuse(QWEN3(", \"layer_types\": [\"full_attention\", "
                 "\"sliding_attention\"]"),
           ERR_UNSUPPORTED, "layer_types[1] is 'sliding_attention'");
    refuse(QWEN3(", \"layer_types\": [\"full_attention\"]"), ERR_INPUT,
           "'layer_types' has 1 entries, num_hidden_layers is 2");
    refuse(LLAMA(", \"layer_types\": [\"full_attention\", 2]"), ERR_INPUT,
           "layer_types[1] is a number");
    refuse(LLAMA(", \"layer_types\": {}"), ERR_INPUT,
           "'layer_types' is an object");
    /* Inert numbers. */
    accept(&p, QWEN3(", \"use_sliding_window\": false, "
                     "\"sliding_window\": 4096, \"max_window_layers\": 1, "
                     "\"layer_types\": [\"full_attention\", "
                     "\"full_attention\"]"));
    drop(&p);
    accept(&p, QWEN3(", \"use_sliding_window\": null, \"layer_types\": null"));
    drop(&p);
}

/* ---- levels ---- */

Test(models_hparams, text_config_is_the_only_source_of_architecture)
{
    struct parsed p;

    accept(&p, "{\"model_type\": \"llama\", \"hidden_size\": 999, "
               "\"rope_theta\": 7777.0, \"text_config\": {" DIMS
               ", \"model_type\": \"llama\"}}");
    cr_expect_eq(p.hp.hidden, 32);
    cr_expect_eq(p.hp.rope.theta, 10000);
    cr_expect(noted(&p, "text_config has no rope_theta"));
    drop(&p);
    accept(&p, "{\"text_config\": {\"model_type\": \"llama\", " DIMS "}}");
    drop(&p);
    accept(&p, LLAMA(", \"text_config\": null"));
    cr_expect_eq(p.hp.hidden, 32);
    drop(&p);
    refuse(LLAMA(", \"text_config\": []"), ERR_INPUT,
           "'text_config' is an array, an object is needed");
}

Test(models_hparams, token_ids)
{
    struct parsed p;

    accept(&p, LLAMA(", \"bos_token_id\": 1, \"eos_token_id\": [2, 99.0]"));
    cr_expect_eq(p.hp.bos, 1);
    cr_expect_eq(p.hp.n_eos, 2);
    cr_expect_eq(p.hp.eos[1], 99);
    drop(&p);
    accept(&p, LLAMA(", \"bos_token_id\": null, \"eos_token_id\": null"));
    cr_expect_eq(p.hp.bos, -1);
    cr_expect_eq(p.hp.n_eos, 0);
    drop(&p);
    /* The outer ones stand in where the inner are absent. */
    accept(&p, "{\"model_type\": \"llama\", \"bos_token_id\": 5, "
               "\"eos_token_id\": 6, \"text_config\": {\"eos_token_id\": "
               "7, " DIMS "}}");
    cr_expect_eq(p.hp.bos, 5);
    cr_expect_eq(p.hp.eos[0], 7);
    drop(&p);
    refuse(LLAMA(", \"eos_token_id\": 100"), ERR_INPUT,
           "'eos_token_id' is 100, token ids are whole numbers below "
           "vocab_size 100");
    refuse(LLAMA(", \"bos_token_id\": -1"), ERR_INPUT, "'bos_token_id' is -1");
    refuse(LLAMA(", \"bos_token_id\": \"<s>\""), ERR_INPUT,
           "'bos_token_id' is a string");
    refuse(LLAMA(", \"eos_token_id\": [1, null]"), ERR_INPUT,
           "'eos_token_id' is null");
    refuse(LLAMA(", \"eos_token_id\": "
                 "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"),
           ERR_INPUT, "lists 17 ids, at most 16");
}

Test(models_hparams, dtype_in_both_spellings)
{
    struct parsed p;

    accept(&p, LLAMA(", \"torch_dtype\": \"torch.bfloat16\""));
    cr_expect_str_eq(p.hp.dtype, "bfloat16");
    drop(&p);
    accept(&p, LLAMA(", \"dtype\": \"float16\", \"torch_dtype\": \"x\""));
    cr_expect_str_eq(p.hp.dtype, "float16");
    drop(&p);
    accept(&p, LLAMA(", \"dtype\": null"));
    cr_expect_str_eq(p.hp.dtype, "");
    drop(&p);
    refuse(LLAMA(", \"dtype\": 16"), ERR_INPUT, "'dtype' is a number");
}

Test(models_hparams, tying)
{
    struct parsed p;

    accept(&p, LLAMA(", \"tie_word_embeddings\": true"));
    cr_expect(p.hp.tied);
    cr_expect_str_eq(p.hp.tied_by, "config");
    drop(&p);
    accept(&p, NESTED(", \"tie_word_embeddings\": true"));
    cr_expect(p.hp.tied);
    cr_expect_str_eq(p.hp.tied_by, "text_config");
    drop(&p);
    accept(&p, "{\"model_type\": \"llama\", \"tie_word_embeddings\": true, "
               "\"text_config\": {" DIMS "}}");
    cr_expect(p.hp.tied);
    cr_expect_str_eq(p.hp.tied_by, "config");
    drop(&p);
    refuse("{\"model_type\": \"llama\", \"tie_word_embeddings\": true, "
           "\"text_config\": {\"tie_word_embeddings\": false, " DIMS "}}",
           ERR_INPUT, "true at the outer level and false in text_config");
    refuse(LLAMA(", \"tie_word_embeddings\": \"yes\""), ERR_INPUT,
           "'tie_word_embeddings' is a string, true or false is needed");
}

/* ---- rope ---- */

static void same_rope(const struct rope_params *a, const struct rope_params *b,
                      const char *text)
{
    cr_expect_eq(a->type, b->type, "%s", text);
    cr_expect_eq(a->theta, b->theta, "%s", text);
    cr_expect_eq(a->dim, b->dim, "%s", text);
    cr_expect_eq(a->factor, b->factor, "%s", text);
    cr_expect_eq(a->low_freq_factor, b->low_freq_factor, "%s", text);
    cr_expect_eq(a->high_freq_factor, b->high_freq_factor, "%s", text);
    cr_expect_eq(a->original_max, b->original_max, "%s", text);
    cr_expect_eq(a->beta_fast, b->beta_fast, "%s", text);
    cr_expect_eq(a->beta_slow, b->beta_slow, "%s", text);
    cr_expect_eq(a->truncate, b->truncate, "%s", text);
    cr_expect_eq(a->attention_scaling, b->attention_scaling, "%s", text);
}

#define L3(more)                                                         \
    "{\"factor\": 32.0, \"low_freq_factor\": 1, \"high_freq_factor\": 4" \
    ", \"original_max_position_embeddings\": 8192" more "}"

Test(models_hparams, six_spellings_of_one_rope)
{
    static const char *const spellings[] = {
        LLAMA(", \"rope_theta\": 5e5, \"rope_scaling\": " L3(
            ", \"rope_type\": \"llama3\"")),
        LLAMA(", \"rope_theta\": 500000, \"rope_scaling\": " L3(
            ", \"type\": \"llama3\"")),
        LLAMA(", \"rope_parameters\": " L3(
            ", \"rope_type\": \"llama3\", \"rope_theta\": 500000.0")),
        LLAMA(", \"rope_parameters\": {\"full_attention\": " L3(
            ", \"rope_type\": \"llama3\", \"rope_theta\": 500000.0") "}"),
        NESTED(", \"rope_theta\": 500000.0, \"rope_scaling\": " L3(
            ", \"rope_type\": \"llama3\"")),
        NESTED(", \"rope_scaling\": null, \"rope_parameters\": " L3(
            ", \"rope_type\": \"llama3\", \"rope_theta\": 500000.0")),
        /* A value inside wins; the legacy object replaces the newer one. */
        LLAMA(", \"rope_theta\": 1.5, \"rope_parameters\": " L3(
            ", \"rope_type\": \"llama3\", \"rope_theta\": 500000.0")),
        LLAMA(", \"rope_theta\": 500000.0, \"rope_parameters\": "
              "{\"rope_type\": \"linear\", \"factor\": 3, \"rope_theta\": 7},"
              "\"rope_scaling\": " L3(", \"rope_type\": \"llama3\"")),
        LLAMA(", \"rope_scaling\": {}, \"rope_parameters\": " L3(
            ", \"rope_type\": \"llama3\", \"rope_theta\": 500000.0, "
            "\"partial_rotary_factor\": 1.0")),
    };
    struct rope_params first;

    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        struct parsed p;
        accept(&p, spellings[i]);
        cr_expect_eq(p.hp.rope.type, ROPE_LLAMA3);
        if (i)
            same_rope(&p.hp.rope, &first, spellings[i]);
        else
            first = p.hp.rope;
        drop(&p);
    }
    cr_expect_eq(first.theta, 5e5);
    cr_expect_eq(first.dim, 8);
    cr_expect_eq(first.original_max, 8192);
    cr_expect_eq(first.attention_scaling, 1);
}

Test(models_hparams, where_theta_stood)
{
    struct parsed p;

    accept(&p, QWEN3(", \"rope_theta\": 1e6, \"rope_scaling\": null"));
    cr_expect_str_eq(p.hp.rope_by, "rope_theta");
    cr_expect_eq(p.hp.rope.type, ROPE_DEFAULT);
    cr_expect_eq(p.hp.rope.dim, 16);
    cr_expect_eq(p.notes.len, 0);
    drop(&p);
    accept(&p, QWEN3(", \"rope_parameters\": {\"rope_theta\": 1e6}"));
    cr_expect_str_eq(p.hp.rope_by, "rope_parameters");
    cr_expect_eq(p.hp.rope.theta, 1e6);
    drop(&p);
    accept(&p, QWEN3(", \"rope_theta\": null"));
    cr_expect_str_eq(p.hp.rope_by, "class default");
    cr_expect(noted(&p, "class default 10000"));
    drop(&p);
}

Test(models_hparams, rope_types_that_are_not_computed)
{
    static const char *const types[] = { "dynamic",      "longrope", "su",
                                         "proportional", "xyz",      "" };
    char text[600], part[80];

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        snprintf(text, sizeof text,
                 LLAMA(", \"rope_theta\": 1e4, \"rope_scaling\": "
                       "{\"rope_type\": \"%s\", \"factor\": 2}"),
                 types[i]);
        snprintf(part, sizeof part, "rope type '%s' in rope_scaling", types[i]);
        refuse(text, ERR_UNSUPPORTED, part);
    }
    refuse(LLAMA(", \"rope_parameters\": {\"type\": \"xyz\"}"), ERR_UNSUPPORTED,
           "rope type 'xyz' in rope_parameters");
    refuse(LLAMA(", \"rope_parameters\": {\"rope_type\": 3}"), ERR_INPUT,
           "'rope_type' is a number");
    refuse(LLAMA(", \"rope_scaling\": \"linear\""), ERR_INPUT,
           "'rope_scaling' is a string");
    refuse(LLAMA(", \"rope_parameters\": [1]"), ERR_INPUT,
           "'rope_parameters' is an array");
    refuse(LLAMA(", \"rope_parameters\": {\"sliding_attention\": {}}"),
           ERR_INPUT, "no object 'full_attention'");
    refuse(LLAMA(", \"partial_rotary_factor\": 0.5"), ERR_UNSUPPORTED,
           "partial_rotary_factor 0.5 is not computed");
    refuse(LLAMA(", \"rope_parameters\": {\"rope_theta\": 1e4, "
                 "\"partial_rotary_factor\": 0.25}"),
           ERR_UNSUPPORTED, "partial_rotary_factor 0.25");
}

Test(models_hparams, rope_values_out_of_range)
{
    refuse(LLAMA(", \"rope_theta\": 0"), ERR_INPUT, "'rope_theta' is 0");
    refuse(LLAMA(", \"rope_theta\": -1e4"), ERR_INPUT,
           "'rope_theta' is -10000");
    refuse(LLAMA(", \"rope_theta\": Infinity"), ERR_INPUT, "'rope_theta'");
    refuse(LLAMA(", \"rope_theta\": \"1e4\""), ERR_INPUT,
           "'rope_theta' is a string");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"linear\"}"), ERR_INPUT,
           "rope_scaling of type 'linear' has no 'factor'");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}"),
           ERR_INPUT, "is 0.5, 1 or more is needed");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8}"),
           ERR_INPUT, "has no 'low_freq_factor'");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, "
                 "\"low_freq_factor\": 4, \"high_freq_factor\": 4, "
                 "\"original_max_position_embeddings\": 64}"),
           ERR_INPUT, "needs high_freq_factor above low_freq_factor");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, "
                 "\"low_freq_factor\": 1, \"high_freq_factor\": 4}"),
           ERR_INPUT, "has no 'original_max_position_embeddings'");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
                 "\"beta_fast\": 1, \"beta_slow\": 32}"),
           ERR_INPUT, "beta_fast above beta_slow");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
                 "\"truncate\": 0}"),
           ERR_INPUT, "'truncate' is a number");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
                 "\"attention_factor\": \"1\"}"),
           ERR_INPUT, "'attention_factor' is a string");
}

#define YARN(more)                                              \
    LLAMA(", \"rope_theta\": 1e6, \"rope_scaling\": {\"type\":" \
          " \"yarn\"" more "}")

Test(models_hparams, yarn)
{
    struct parsed p;

    accept(&p, YARN(", \"factor\": 4, "
                    "\"original_max_position_embeddings\": 1024"));
    cr_expect_eq(p.hp.rope.type, ROPE_YARN);
    cr_expect_eq(p.hp.rope.factor, 4);
    cr_expect_eq(p.hp.rope.beta_fast, 32);
    cr_expect_eq(p.hp.rope.beta_slow, 1);
    cr_expect(p.hp.rope.truncate);
    cr_expect_float_eq(p.hp.rope.attention_scaling, 1.138629436, 1e-9);
    cr_expect(noted(&p, "rope yarn: factor 4 over 1024 original positions"));
    cr_expect_not(noted(&p, "counts"));
    drop(&p);
    /* No original length: the model's own. */
    accept(&p, YARN(", \"factor\": 2, \"truncate\": false, "
                    "\"beta_fast\": null, \"beta_slow\": 2"));
    cr_expect_eq(p.hp.rope.original_max, 4096);
    cr_expect_eq(p.hp.rope.beta_fast, 32);
    cr_expect_eq(p.hp.rope.beta_slow, 2);
    cr_expect_not(p.hp.rope.truncate);
    cr_expect(noted(&p, "the written factor 2 counts"));
    drop(&p);
    /* No factor: the ratio of lengths. */
    accept(&p, YARN(", \"factor\": null, "
                    "\"original_max_position_embeddings\": 512"));
    cr_expect_eq(p.hp.rope.factor, 8);
    drop(&p);
    accept(&p, YARN(", \"factor\": 4, \"attention_factor\": 0.75, "
                    "\"mscale\": 2, \"mscale_all_dim\": 3"));
    cr_expect_eq(p.hp.rope.attention_scaling, 0.75);
    drop(&p);
    accept(&p, YARN(", \"factor\": 4, \"mscale\": 2, \"mscale_all_dim\": 1"));
    cr_expect_float_eq(p.hp.rope.attention_scaling,
                       (0.2 * log(4) + 1) / (0.1 * log(4) + 1), 1e-12);
    drop(&p);
    /* One of the two alone, or 0, is not used. */
    accept(&p, YARN(", \"factor\": 4, \"mscale\": 2, \"mscale_all_dim\": 0"));
    cr_expect_float_eq(p.hp.rope.attention_scaling, 1.138629436, 1e-9);
    drop(&p);
    refuse(YARN(", \"factor\": 4, \"mscale\": -9, \"mscale_all_dim\": 1"),
           ERR_INPUT, "no positive scaling");
    refuse(YARN(", \"original_max_position_embeddings\": 8192"), ERR_INPUT,
           "the yarn factor of rope_scaling is 0.5");
}

Test(models_hparams, yarn_within_the_native_window_is_noted)
{
    struct parsed p;
    struct buf b = BUF_INIT;

    accept(&p, YARN(", \"factor\": 4, "
                    "\"original_max_position_embeddings\": 1024"));
    hparams_context_notes(&p.hp, 1024, &b);
    cr_expect_not_null(strstr(buf_text(&b), "fits the native window of 1024"));
    buf_clear(&b);
    hparams_context_notes(&p.hp, 1025, &b);
    cr_expect_eq(b.len, 0);
    drop(&p);
    accept(&p, LLAMA(""));
    hparams_context_notes(&p.hp, 64, &b);
    cr_expect_eq(b.len, 0);
    drop(&p);
    buf_release(&b);
}

Test(models_hparams, mrope_of_text_is_the_default)
{
    struct parsed p;

    accept(&p, LLAMA(", \"rope_theta\": 1e6, \"rope_scaling\": {\"type\": "
                     "\"mrope\", \"mrope_section\": [1, 1, 2]}"));
    cr_expect_eq(p.hp.rope.type, ROPE_DEFAULT);
    cr_expect_eq(p.hp.rope.theta, 1e6);
    drop(&p);
}

Test(models_hparams, rope_type_names)
{
    cr_expect_str_eq(rope_type_name(ROPE_DEFAULT), "default");
    cr_expect_str_eq(rope_type_name(ROPE_LINEAR), "linear");
    cr_expect_str_eq(rope_type_name(ROPE_LLAMA3), "llama3");
    cr_expect_str_eq(rope_type_name(ROPE_YARN), "yarn");
}

/* ---- counts ---- */

static void model(struct hparams *hp, const char *type, int64_t H, int64_t I,
                  int64_t L, int64_t nq, int64_t nkv, int64_t d, int64_t V,
                  bool tied)
{
    memset(hp, 0, sizeof *hp);
    hp->arch = model_arch_by_type(type);
    cr_assert_not_null(hp->arch);
    hp->qk_norm = !strcmp(type, "qwen3");
    hp->hidden = H;
    hp->intermediate = I;
    hp->layers = L;
    hp->heads = nq;
    hp->kv_heads = nkv;
    hp->head_dim = d;
    hp->vocab = V;
    hp->tied = tied;
}

static const struct {
    const char *type;
    int64_t H, I, L, nq, nkv, d, V;
    bool tied;
    uint64_t n;
} published[] = {
    { "qwen3", 1024, 3072, 28, 16, 8, 128, 151936, true, 596049920 },
    { "qwen3", 2048, 6144, 28, 16, 8, 128, 151936, true, 1720574976 },
    { "qwen3", 2560, 9728, 36, 32, 8, 128, 151936, true, 4022468096 },
    { "qwen3", 4096, 12288, 36, 32, 8, 128, 151936, false, 8190735360 },
    { "qwen3", 5120, 17408, 40, 40, 8, 128, 151936, false, 14768307200 },
    { "qwen3", 5120, 25600, 64, 64, 8, 128, 151936, false, 32762123264 },
    { "llama", 2048, 8192, 16, 32, 8, 64, 128256, true, 1235814400 },
    { "llama", 3072, 8192, 28, 24, 8, 128, 128256, true, 3212749824 },
    { "llama", 4096, 14336, 32, 32, 8, 128, 128256, false, 8030261248 },
    { "llama", 8192, 28672, 80, 64, 8, 128, 128256, false, 70553706496 },
};

static uint64_t sum_of_needs(const struct hparams *hp, size_t *tensors)
{
    struct ledger l = { 0 };
    struct err e = ERR_INIT;
    uint64_t sum = 0;

    cr_assert_eq(hp->arch->needs(hp, &l, &e), 0, "%s", e.text);
    for (size_t i = 0; i < l.n; i++) {
        uint64_t n = 1;
        for (int k = 0; k < l.needs[i].rank; k++)
            n *= l.needs[i].dims[k];
        sum += n;
    }
    *tensors = l.n;
    mem_free(l.needs);
    return sum;
}

Test(models_hparams, published_counts)
{
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct hparams hp;
        size_t n;
        model(&hp, published[i].type, published[i].H, published[i].I,
              published[i].L, published[i].nq, published[i].nkv, published[i].d,
              published[i].V, published[i].tied);
        cr_expect_eq(hparams_count(&hp), published[i].n, "row %zu: %llu", i,
                     (unsigned long long)hparams_count(&hp));
        cr_expect_eq(sum_of_needs(&hp, &n), published[i].n, "row %zu", i);
        cr_expect_eq(n, (size_t)published[i].L * (hp.qk_norm ? 11 : 9) + 2 +
                            !published[i].tied);
    }
}

Test(models_hparams, biases_are_counted_and_needed)
{
    struct hparams hp;
    size_t n;

    model(&hp, "llama", 12, 20, 2, 6, 3, 4, 7, false);
    cr_expect_eq(sum_of_needs(&hp, &n), hparams_count(&hp));
    hp.attention_bias = true;
    cr_expect_eq(sum_of_needs(&hp, &n), hparams_count(&hp));
    cr_expect_eq(n, 3 + 2 * (9 + 4));
    hp.mlp_bias = true;
    cr_expect_eq(sum_of_needs(&hp, &n), hparams_count(&hp));
    cr_expect_eq(n, 3 + 2 * (9 + 7));
}

Test(models_hparams, printed_lines)
{
    struct parsed p;
    struct buf b = BUF_INIT;

    accept(&p, YARN(", \"factor\": 4"));
    hparams_print(&p.hp, &b);
    cr_expect_not_null(strstr(buf_text(&b), "hidden_size 32\n"));
    cr_expect_not_null(strstr(buf_text(&b), "head_dim 8\n"));
    cr_expect_not_null(strstr(buf_text(&b), "rope_type yarn\n"));
    cr_expect_not_null(strstr(buf_text(&b), "rope_factor 4\n"));
    cr_expect_not_null(strstr(buf_text(&b), "(rope_theta)\n"));
    cr_expect_eq(buf_ok(&b, &p.e), 0);
    drop(&p);
    buf_release(&b);
}
