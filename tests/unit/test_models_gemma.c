/*
 * Gemma 3 and Gemma 4: configs of all generations, which layer gets what,
 * tensors, counts, and what is refused.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/mem.h"
#include "models/models.h"
#include "models/weights.h"
#include "t_ckpt.h"

TestSuite(models_gemma, .fini = t_ckpt_clean);

static struct t_ckpt m;
static struct ckpt c;
static struct err e;

/* ---- configs ---- */

static int parse(const char *text, struct hparams *hp, char *notes, size_t cap)
{
    struct buf b = BUF_INIT;
    struct js_doc *doc;
    int rc;

    err_reset(&e);
    doc = js_parse(text, strlen(text), &e);
    cr_assert_not_null(doc, "%s in %s", e.text, text);
    rc = hparams_parse(doc, hp, &b, &e);
    if (notes)
        snprintf(notes, cap, "%s", buf_text(&b));
    buf_release(&b);
    js_free(doc);
    return rc;
}

static struct hparams accept(const char *text)
{
    struct hparams hp;

    cr_assert_eq(parse(text, &hp, NULL, 0), 0, "%s: %s", text, e.text);
    return hp;
}

static void refuse(const char *text, enum err_code code, const char *part)
{
    struct hparams hp;

    cr_expect_eq(parse(text, &hp, NULL, 0), -1, "accepted: %s", text);
    cr_expect_eq(e.code, code, "code %d (%s) for %s", e.code, e.text, text);
    cr_expect_not_null(strstr(e.text, part), "'%s' is not in '%s'", part,
                       e.text);
}

static bool noted(const char *text, const char *part)
{
    struct hparams hp;
    char notes[4096];

    cr_assert_eq(parse(text, &hp, notes, sizeof notes), 0, "%s: %s", text,
                 e.text);
    return strstr(notes, part) != NULL;
}

#define G3(more) "{\"model_type\": \"gemma3_text\"" more "}"
#define G4(more) "{\"model_type\": \"gemma4_text\"" more "}"
#define OUTER(more)                                  \
    "{\"model_type\": \"gemma4\", \"text_config\": " \
    "{\"model_type\": \"gemma4_text\"" more "}}"
#define UNIFIED(more) "{\"model_type\": \"gemma4_unified_text\"" more "}"
#define LAYERS(n, types) \
    ", \"num_hidden_layers\": " n ", \"layer_types\": [" types "]"
#define S "\"sliding_attention\""
#define F "\"full_attention\""

Test(models_gemma, class_defaults_of_gemma3)
{
    struct hparams hp = accept(G3(""));

    cr_expect_eq(hp.vocab, 262208);
    cr_expect_eq(hp.hidden, 2304);
    cr_expect_eq(hp.intermediate, 9216);
    cr_expect_eq(hp.layers, 26);
    cr_expect_eq(hp.heads, 8);
    cr_expect_eq(hp.kv_heads, 4);
    cr_expect_eq(hp.head_dim, 256);
    cr_expect_eq(hp.global_head_dim, 256);
    cr_expect_eq(hp.global_kv_heads, 4);
    cr_expect_eq(hp.window, 4096);
    cr_expect_eq(hp.max_positions, 131072);
    cr_expect(hp.query_pre_attn_scalar == 256 && hp.rms_eps == 1e-6);
    cr_expect(hp.rope.theta == 1e6 && hp.rope_local.theta == 1e4);
    cr_expect(hp.rope.dim == 256 && hp.rope_local.dim == 256);
    cr_expect(hp.tied && hp.qk_norm && hp.zero_centered_norms);
    cr_expect_eq(hp.embed_scale, 48);
    cr_expect_eq(hp.final_softcap, 0);
    for (int i = 0; i < 26; i++) {
        cr_expect_eq(hp.layer_kind[i],
                     i % 6 == 5 ? HP_LAYER_FULL : HP_LAYER_SLIDING);
        cr_expect_eq(hp_layer_kv_source(&hp, i), i);
        cr_expect_eq(hp_layer_rope(&hp, i)->theta, i % 6 == 5 ? 1e6 : 1e4);
    }
    cr_expect(noted(G3(""), "no 'sliding_window_pattern'"));
    cr_expect(noted(G3(""), "no rope theta of sliding_attention layers"));
}

Test(models_gemma, class_defaults_of_gemma4)
{
    struct hparams hp = accept(G4(""));

    cr_expect_eq(hp.vocab, 262144);
    cr_expect_eq(hp.hidden, 2304);
    cr_expect_eq(hp.intermediate, 9216);
    cr_expect_eq(hp.layers, 30);
    cr_expect_eq(hp.heads, 8);
    cr_expect_eq(hp.kv_heads, 4);
    cr_expect_eq(hp.head_dim, 256);
    cr_expect_eq(hp.global_head_dim, 512);
    cr_expect_eq(hp.global_kv_heads, 4);
    cr_expect_eq(hp.window, 512);
    cr_expect_eq(hp.ple_width, 256);
    cr_expect_eq(hp.ple_vocab, 262144);
    cr_expect_eq(hp.ple_scale, 16);
    cr_expect_eq(hp.kv_shared_layers, 0);
    cr_expect_eq(hp.experts, 0);
    cr_expect(hp.rope.type == ROPE_PROPORTIONAL && hp.rope.theta == 1e6 &&
              hp.rope.dim == 512 && hp.rope.live == 64);
    cr_expect(hp.rope_local.type == ROPE_DEFAULT && hp.rope_local.dim == 256);
    cr_expect(hp.tied && !hp.zero_centered_norms && !hp.k_eq_v);
    cr_expect_eq(hp.query_pre_attn_scalar, 0);
    hp = accept(UNIFIED(""));
    cr_expect_eq(hp.window, 1024);
    cr_expect_eq(hp.max_positions, 262144);
    cr_expect_eq(hp.ple_width, 0);
}

/* Absent, null and 0 are three things. */
Test(models_gemma, per_layer_inputs_absent_null_and_none)
{
    cr_expect_eq(accept(G4("")).ple_width, 256);
    cr_expect_eq(
        accept(G4(", \"hidden_size_per_layer_input\": null")).ple_width, 0);
    cr_expect_eq(accept(G4(", \"hidden_size_per_layer_input\": 0")).ple_width,
                 0);
    cr_expect_eq(
        accept(UNIFIED(", \"hidden_size_per_layer_input\": 0")).ple_width, 0);
    refuse(UNIFIED(", \"hidden_size_per_layer_input\": 256"), ERR_UNSUPPORTED,
           "gemma4_unified_text has no per-layer inputs");
    refuse(G4(", \"hidden_size_per_layer_input\": 2.5"), ERR_INPUT,
           "'hidden_size_per_layer_input' is 2.5");
    refuse(G4(", \"vocab_size_per_layer_input\": 262143"), ERR_INPUT,
           "vocab_size_per_layer_input is 262143, below the 262144");
    accept(G4(", \"vocab_size_per_layer_input\": 5, "
              "\"hidden_size_per_layer_input\": 0"));
}

/* ---- which layer gets what ---- */

#define E2B                                                                 \
    ", \"hidden_size\": 1536, \"intermediate_size\": 6144, "                \
    "\"num_hidden_layers\": 35, \"num_key_value_heads\": 1, "               \
    "\"num_kv_shared_layers\": 20, \"use_double_wide_mlp\": true, "         \
    "\"layer_types\": [" S5 ", " S5 ", " S5 ", " S5 ", " S5 ", " S5 ", " S5 \
    "]"
#define S5 S ", " S ", " S ", " S ", " F

Test(models_gemma, layers_of_e2b)
{
    struct hparams hp = accept(OUTER(E2B));

    for (int i = 0; i < 35; i++) {
        bool full = i % 5 == 4;

        cr_expect_eq(hp_layer_kv_source(&hp, i), i < 15 ? i : full ? 14 : 13);
        cr_expect_eq(hp_layer_intermediate(&hp, i), i < 15 ? 6144 : 12288);
        cr_expect_eq(hp_layer_head_dim(&hp, i), full ? 512 : 256);
        cr_expect_eq(hp_layer_kv_heads(&hp, i), 1);
        cr_expect_eq(hp_layer_rope(&hp, i)->dim, full ? 512 : 256);
    }
}

/* Every sixth layer, 18 of 42 share: sources 22 and 23. */
Test(models_gemma, layers_of_e4b)
{
    struct hparams hp =
        accept(G4(", \"num_hidden_layers\": 42, \"num_kv_shared_layers\": 18, "
                  "\"intermediate_size\": 10240"));

    for (int i = 0; i < 42; i++) {
        cr_expect_eq(hp.layer_kind[i],
                     i % 6 == 5 ? HP_LAYER_FULL : HP_LAYER_SLIDING);
        cr_expect_eq(hp_layer_kv_source(&hp, i), i < 24       ? i
                                                 : i % 6 == 5 ? 23
                                                              : 22);
        cr_expect_eq(hp_layer_intermediate(&hp, i), 10240);
    }
}

Test(models_gemma, the_last_layer_of_gemma4_is_full)
{
    static const char listed[] = G4(LAYERS("3", S ", " F ", " S));
    static const char pattern[] = G4(", \"num_hidden_layers\": 8");
    struct hparams hp = accept(listed);

    cr_expect_eq(hp.layer_kind[2], HP_LAYER_FULL);
    cr_expect(noted(listed, "warning: the last layer, 2, is sliding_attention "
                            "in layer_types"));
    hp = accept(pattern);
    cr_expect_eq(hp.layer_kind[6], HP_LAYER_SLIDING);
    cr_expect_eq(hp.layer_kind[7], HP_LAYER_FULL);
    cr_expect(noted(pattern, "in the pattern of 6"));
    cr_expect(!noted(G4(LAYERS("2", S ", " F)), "warning"));
    /* Gemma 3's may slide */
    hp = accept(G3(LAYERS("3", S ", " F ", " S)));
    cr_expect_eq(hp.layer_kind[2], HP_LAYER_SLIDING);
}

Test(models_gemma, both_dialects_of_heads)
{
    static const char types[] = LAYERS("4", S ", " F ", " S ", " F);
    char a[1024], b[1024];
    struct hparams x, y;

    snprintf(a, sizeof a,
             "{\"model_type\": \"gemma4_text\"%s, \"head_dim\": 32, "
             "\"num_key_value_heads\": 2, \"attention_k_eq_v\": true, "
             "\"global_head_dim\": 64, \"num_global_key_value_heads\": 1}",
             types);
    snprintf(b, sizeof b,
             "{\"model_type\": \"gemma4_text\"%s, \"head_dim\": 32, "
             "\"num_key_value_heads\": 2, \"attention_k_eq_v\": true, "
             "\"per_layer_config\": {\"1\": {\"head_dim\": 64, "
             "\"num_key_value_heads\": 1}, \"3\": {\"num_key_value_heads\": "
             "1, \"head_dim\": 64}}}",
             types);
    x = accept(a);
    y = accept(b);
    cr_expect_eq(memcmp(&x, &y, sizeof x), 0);
    cr_expect_eq(x.global_head_dim, 64);
    cr_expect_eq(x.global_kv_heads, 1);
    cr_expect_eq(x.head_dim, 32);
    cr_expect_eq(x.kv_heads, 2);
    /* without keys as values the number for full layers does not count */
    x = accept(G4(", \"num_key_value_heads\": 2, "
                  "\"num_global_key_value_heads\": 1"));
    cr_expect_eq(x.global_kv_heads, 2);
}

Test(models_gemma, overrides_that_cannot_be)
{
#define PLC(text) G4(LAYERS("2", S ", " F) ", \"per_layer_config\": " text)
    refuse(PLC("{\"2\": {}}"), ERR_INPUT,
           "'per_layer_config' names layer '2', there are 0 to 1");
    refuse(PLC("{\"full_attention\": {}}"), ERR_INPUT,
           "names layer 'full_attention'");
    refuse(PLC("[]"), ERR_INPUT, "'per_layer_config' is an array");
    refuse(PLC("{\"1\": 5}"), ERR_INPUT, "'per_layer_config[...]' is a number");
    refuse(PLC("{\"1\": {\"intermediate_size\": 8}}"), ERR_UNSUPPORTED,
           "'per_layer_config.1.intermediate_size': of single layers, "
           "head_dim and num_key_value_heads are read");
    refuse(PLC("{\"1\": {\"head_dim\": 0}}"), ERR_INPUT,
           "'per_layer_config.1.head_dim' is 0");
    refuse(PLC("{\"1\": {\"head_dim\": \"64\"}}"), ERR_INPUT,
           "'per_layer_config.1.head_dim' is a string");
    refuse(G4(LAYERS(
               "4",
               S ", " F ", " S
                 ", " F) ", \"per_layer_config\": {\"1\": {\"head_dim\": 64}}"),
           ERR_UNSUPPORTED,
           "layers 1 and 3 are both full_attention and have 4 key/value heads "
           "of 64 and 4 of 256");
}

/* ---- refusals ---- */

Test(models_gemma, what_is_not_computed_is_refused_by_name)
{
    static const struct {
        const char *text, *part;
        enum err_code code;
    } rows[] = {
        { G3(", \"sliding_window\": 0"), "'sliding_window' is 0, allowed are 1",
          ERR_INPUT },
        { G3(", \"sliding_window\": null"), "'sliding_window' is null",
          ERR_INPUT },
        { G4(", \"sliding_window\": 0"), "'sliding_window' is 0", ERR_INPUT },
        { G4(", \"sliding_window\": -5"), "'sliding_window' is -5", ERR_INPUT },
        { G3(", \"use_bidirectional_attention\": true"),
          "'use_bidirectional_attention' is true; gemma3_text is computed with "
          "false only",
          ERR_UNSUPPORTED },
        { G4(", \"use_bidirectional_attention\": \"all\""),
          "'use_bidirectional_attention' is 'all'; gemma4_text is computed "
          "with causal attention only",
          ERR_UNSUPPORTED },
        { G4(", \"use_bidirectional_attention\": 1"),
          "'use_bidirectional_attention' is a number", ERR_INPUT },
        { G3(", \"attention_bias\": true"), "'attention_bias' is true",
          ERR_UNSUPPORTED },
        { G4(", \"attention_bias\": true"), "'attention_bias' is true",
          ERR_UNSUPPORTED },
        { G3(", \"attn_logit_softcapping\": 50"),
          "'attn_logit_softcapping' is 50", ERR_UNSUPPORTED },
        { G3(", \"hidden_activation\": \"gelu\""), "hidden_activation 'gelu'",
          ERR_UNSUPPORTED },
        { G4(", \"final_logit_softcapping\": 0"),
          "'final_logit_softcapping' is 0", ERR_INPUT },
        { G3(", \"query_pre_attn_scalar\": 0"), "'query_pre_attn_scalar' is 0",
          ERR_INPUT },
        { G3(", \"num_attention_heads\": 7"),
          "num_attention_heads 7 is not a multiple of the 4 key/value heads of "
          "sliding layers",
          ERR_INPUT },
        { G4(", \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "
             "\"attention_k_eq_v\": true, \"num_global_key_value_heads\": 3"),
          "num_attention_heads 8 is not a multiple of the 3 key/value heads of "
          "full layers",
          ERR_INPUT },
        { G4(", \"global_head_dim\": 33"), "the head_dim 33 of full_attention",
          ERR_INPUT },
        { G3(LAYERS("2", S ", " S)), "all 2 layers are sliding_attention",
          ERR_UNSUPPORTED },
        { G3(", \"sliding_window_pattern\": 1"),
          "all 26 layers are full_attention", ERR_UNSUPPORTED },
        { G4(LAYERS("2", F ", " F)), "all 2 layers are full_attention",
          ERR_UNSUPPORTED },
        { G4(LAYERS("2", "\"linear_attention\", " F)),
          "layer_types[0] is 'linear_attention'", ERR_UNSUPPORTED },
        { G4(LAYERS("3", S ", " F)), "'layer_types' has 2 entries", ERR_INPUT },
        { G4(", \"num_kv_shared_layers\": 30"),
          "num_kv_shared_layers is 30 of 30 layers", ERR_INPUT },
        { G4(", \"num_kv_shared_layers\": 26"),
          "num_kv_shared_layers is 26: layer 5 is full_attention, and none of "
          "the layers before 4",
          ERR_INPUT },
        { G4(LAYERS("3", F ", " S ", " F) ", \"num_kv_shared_layers\": 2"),
          "layer 1 is sliding_attention, and none of the layers before 1",
          ERR_INPUT },
        { G4(", \"num_kv_shared_layers\": -1"), "'num_kv_shared_layers' is -1",
          ERR_INPUT },
        { G4(", \"enable_moe_block\": true"), "'num_experts' is absent",
          ERR_INPUT },
        { G4(", \"enable_moe_block\": true, \"num_experts\": 4, "
             "\"top_k_experts\": 5, \"moe_intermediate_size\": 8"),
          "top_k_experts 5 is more than the 4", ERR_INPUT },
        { UNIFIED(", \"enable_moe_block\": true"), "'enable_moe_block' is true",
          ERR_UNSUPPORTED },
        { "{\"model_type\": \"gemma4\", \"text_config\": {\"model_type\": "
          "\"gemma4_unified_text\"}}",
          "model_type 'gemma4' with a text_config of model_type "
          "'gemma4_unified_text'",
          ERR_UNSUPPORTED },
        { G3(", \"architectures\": [\"Gemma3ForSequenceClassification\"]"),
          "'architectures' names 'Gemma3ForSequenceClassification'",
          ERR_UNSUPPORTED },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refuse(rows[i].text, rows[i].code, rows[i].part);
}

Test(models_gemma, other_kinds_are_refused_by_name)
{
    static const char *const types[] = {
        "gemma4_assistant", "gemma4_unified_assistant",
        "gemma3n",          "gemma3n_text",
        "gemma2",           "gemma",
        "diffusion_gemma",  "t5gemma",
        "paligemma"
    };

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char text[128], part[128];

        snprintf(text, sizeof text, "{\"model_type\": \"%s\"}", types[i]);
        snprintf(part, sizeof part, "model_type '%s' is not supported",
                 types[i]);
        refuse(text, ERR_UNSUPPORTED, part);
        cr_expect(strstr(e.text, "gemma3, gemma3_text, gemma4, "), "%s",
                  e.text);
    }
}

Test(models_gemma, what_is_said_and_changes_nothing)
{
    accept(G3(", \"use_bidirectional_attention\": false, "
              "\"attn_logit_softcapping\": null, \"attention_bias\": false, "
              "\"cache_implementation\": \"hybrid\""));
    accept(G4(", \"use_bidirectional_attention\": \"vision\", "
              "\"num_experts\": null, \"enable_moe_block\": false, "
              "\"expert_intermediate_size\": null, \"top_k_experts\": null"));
    accept(G4(", \"use_bidirectional_attention\": false"));
}

/* ---- rotation ---- */

/* All spellings of one rotation give the same hyper-parameters, but for where
 * theta stood. */
Test(models_gemma, rotations_in_every_spelling)
{
    static const char *const same[] = {
        G3(", \"rope_theta\": 1000000, \"rope_local_base_freq\": 10000, "
           "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}"),
        G3(", \"rope_theta\": 1e6, \"rope_local_base_freq\": 1e4, "
           "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 8}"),
        G3(", \"rope_parameters\": {\"full_attention\": {\"rope_type\": "
           "\"linear\", \"factor\": 8.0, \"rope_theta\": 1000000.0}, "
           "\"sliding_attention\": {\"rope_type\": \"default\", "
           "\"rope_theta\": 10000.0}}"),
        G3(", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}"),
    };

    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        struct hparams hp = accept(same[i]);

        cr_expect(hp.rope.type == ROPE_LINEAR && hp.rope.factor == 8 &&
                      hp.rope.theta == 1e6 && hp.rope.dim == 256,
                  "%s", same[i]);
        cr_expect(hp.rope_local.type == ROPE_DEFAULT &&
                      hp.rope_local.theta == 1e4,
                  "%s", same[i]);
    }
}

#define ROPE4(full, sliding)                               \
    G4(", \"rope_parameters\": {\"full_attention\": " full \
       ", \"sliding_attention\": " sliding "}")

Test(models_gemma, rotations_of_gemma4)
{
    struct hparams hp =
        accept(ROPE4("{\"rope_type\": \"proportional\", \"rope_theta\": 5e5, "
                     "\"partial_rotary_factor\": 0.1, \"factor\": 2}",
                     "{\"rope_theta\": 2e4}"));

    /* 0.1 of 512, halved and cut */
    cr_expect(hp.rope.live == 25 && hp.rope.dim == 512 && hp.rope.factor == 2 &&
              hp.rope.theta == 5e5);
    cr_expect(hp.rope_local.theta == 2e4 && hp.rope_local.type == ROPE_DEFAULT);
    /* absent inside the object: everything turns */
    hp = accept(ROPE4("{\"rope_type\": \"proportional\", \"rope_theta\": 1e6}",
                      "{\"rope_theta\": 1e4}"));
    cr_expect_eq(hp.rope.live, 256);
    refuse(ROPE4("{\"rope_type\": \"proportional\", "
                 "\"partial_rotary_factor\": 1.5, \"rope_theta\": 1e6}",
                 "{}"),
           ERR_INPUT, "'partial_rotary_factor' is 1.5");
    refuse(ROPE4("{\"rope_type\": \"proportional\", "
                 "\"partial_rotary_factor\": 0.001, \"rope_theta\": 1e6}",
                 "{}"),
           ERR_INPUT, "of the 256 pairs of a head, 1 to all can turn");
    refuse(ROPE4("{\"rope_type\": \"yarn\", \"rope_theta\": 1e6}", "{}"),
           ERR_UNSUPPORTED, "rope type 'yarn' in rope_parameters");
    refuse(ROPE4("{\"rope_theta\": 1e6}",
                 "{\"partial_rotary_factor\": 0.5, \"rope_theta\": 1e4}"),
           ERR_UNSUPPORTED,
           "partial_rotary_factor 0.5 with rope type 'default'");
    refuse(G4(", \"rope_parameters\": {\"rope_theta\": 1e6}"), ERR_INPUT,
           "'rope_parameters' has no object 'full_attention'");
    refuse(G3(", \"rope_parameters\": {\"full_attention\": 3}"), ERR_INPUT,
           "'full_attention' is a number");
    refuse(G3(", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}, "
              "\"rope_parameters\": {\"full_attention\": {}, "
              "\"sliding_attention\": {}}"),
           ERR_INPUT, "'rope_scaling' and 'rope_parameters' are both there");
}

/* Of the graph's tables, in float32. */
Test(models_gemma, known_frequencies)
{
    struct hparams hp = accept(G4(""));
    float f[256];

    cr_assert_eq(rope_frequencies(&hp.rope, f, &e), 0, "%s", e.text);
    cr_expect_float_eq(f[1], 0.947463526f, 1e-7f);
    cr_expect_float_eq(f[2], 0.897687132f, 1e-7f);
    cr_expect_float_eq(f[63], 0.0333762469f, 4e-9f);
    for (int i = 64; i < 256; i++)
        cr_expect_eq(f[i], 0);
    cr_assert_eq(rope_frequencies(&hp.rope_local, f, &e), 0, "%s", e.text);
    cr_expect_float_eq(f[1], 0.930572041f, 1e-7f);
    cr_expect_float_eq(f[64], 0.01f, 1e-9f);
    cr_expect_float_eq(f[127], 1.07460783e-04f, 2e-11f);
}

/* ---- counts ---- */

static uint64_t sum_of_needs(const struct hparams *hp, size_t *tensors)
{
    struct ledger l = { 0 };
    uint64_t sum = 0;

    err_reset(&e);
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

#define SIZES(H, I, L, nq, nkv)                                      \
    ", \"hidden_size\": " #H ", \"intermediate_size\": " #I          \
    ", \"num_hidden_layers\": " #L ", \"num_attention_heads\": " #nq \
    ", \"num_key_value_heads\": " #nkv
#define NO_PLE ", \"hidden_size_per_layer_input\": 0"
#define KV(n) \
    ", \"attention_k_eq_v\": true, \"num_global_key_value_heads\": " #n

Test(models_gemma, published_counts)
{
    static const struct {
        const char *text;
        uint64_t count;
        size_t tensors;
    } rows[] = {
        { G3(SIZES(640, 2048, 18, 4, 1) ", \"vocab_size\": 262144"), 268098176,
          18 * 13 + 2 },
        { G3(SIZES(1152, 6912, 26, 4, 1) ", \"vocab_size\": 262144"), 999885952,
          26 * 13 + 2 },
        { G3(SIZES(2560, 10240, 34, 8, 4)), 3880263168, 34 * 13 + 2 },
        { G3(SIZES(3840, 15360, 48, 16, 8)), 11766034176, 48 * 13 + 2 },
        { G3(SIZES(5376, 21504, 62, 32, 16) ", \"head_dim\": 128"), 27009346304,
          62 * 13 + 2 },
        /* of E2B's 600 text tensors, 60 are read by nobody */
        { G4(E2B), 4628569379, 540 },
        { G4(SIZES(2560, 10240, 42, 8, 2) ", \"num_kv_shared_layers\": 18"),
          7463013418, 42 * 17 + 5 - 18 * 3 },
        { UNIFIED(SIZES(3840, 15360, 48, 16, 8) KV(1)), 11907350320,
          48 * 14 + 2 - 8 },
        { G4(SIZES(5376, 21504, 60, 32, 16) NO_PLE KV(4)), 30697345340,
          60 * 14 + 2 - 10 },
        { G4(SIZES(2816, 2112, 30, 16, 8) NO_PLE KV(
              2) ", \"enable_moe_block\": true, \"num_experts\": 128, "
                 "\"top_k_experts\": 8, \"moe_intermediate_size\": 704"),
          25233141790, 30 * 22 + 2 - 5 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct hparams hp = accept(rows[i].text);
        size_t n;

        cr_expect_eq(hparams_count(&hp), rows[i].count, "row %zu: %llu", i,
                     (unsigned long long)hparams_count(&hp));
        cr_expect_eq(sum_of_needs(&hp, &n), rows[i].count, "row %zu", i);
        cr_expect_eq(n, rows[i].tensors, "row %zu: %zu tensors", i, n);
    }
}

Test(models_gemma, printed_lines)
{
    static const char *const lines[] = {
        "layer_types 0-3 sliding_attention\n",
        "layer_types 4 full_attention\n",
        "sliding_window 512\n",
        "global_head_dim 512\n",
        "num_kv_shared_layers 20\n",
        "kv_source 15-18 layer 13\n",
        "kv_source 19 layer 14\n",
        "use_double_wide_mlp true\n",
        "hidden_size_per_layer_input 256\n",
        "per_layer_embedding_scale 16\n",
        "rope_type proportional\n",
        "rope_pairs_that_turn 64\n",
        "sliding_rope_type default\n",
        "sliding_rope_dim 256\n",
    };
    struct hparams hp = accept(G4(E2B));
    struct buf b = BUF_INIT;

    hparams_print(&hp, &b);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_expect_not_null(strstr(buf_text(&b), lines[i]), "%s in %s", lines[i],
                           buf_text(&b));
    buf_release(&b);
}

/* ---- checkpoints ---- */

/* H 24, V 16, four layers (sliding, full, and two that share), P 6. */
static const char small[] =
    "{\"model_type\": \"gemma4\", \"tie_word_embeddings\": true, "
    "\"text_config\": {\"model_type\": \"gemma4_text\", \"vocab_size\": 16, "
    "\"hidden_size\": 24, \"intermediate_size\": 12, \"num_hidden_layers\": 4, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, "
    "\"global_head_dim\": 8, \"max_position_embeddings\": 64, "
    "\"sliding_window\": 8, \"layer_types\": [" S ", " F ", " S ", " F "], "
    "\"num_kv_shared_layers\": 2, \"use_double_wide_mlp\": true, "
    "\"hidden_size_per_layer_input\": 6, \"vocab_size_per_layer_input\": 16, "
    "\"attention_k_eq_v\": false, \"enable_moe_block\": false, "
    "\"num_experts\": null}}";

/* What the config announces, under the published names. */
static void make(void)
{
    struct hparams hp = accept(small);
    struct ledger l = { 0 };

    memset(&m, 0, sizeof m);
    snprintf(m.config, sizeof m.config, "%s", small);
    cr_assert_eq(hp.arch->needs(&hp, &l, &e), 0);
    for (size_t i = 0; i < l.n; i++) {
        char name[200];

        snprintf(name, sizeof name, "model.language_model.%s", l.needs[i].name);
        t_ckpt_add(&m, name, l.needs[i].rank, l.needs[i].dims[0],
                   l.needs[i].dims[1]);
    }
    mem_free(l.needs);
}

static void add_spares(void)
{
    static const char *const names[] = { "k_proj", "v_proj", "k_norm" };

    for (int i = 2; i < 4; i++)
        for (int k = 0; k < 3; k++) {
            uint64_t d = i == 3 ? 8 : 4;
            char name[200];

            snprintf(name, sizeof name,
                     "model.language_model.layers.%d.self_attn.%s.weight", i,
                     names[k]);
            t_ckpt_add(&m, name, k < 2 ? 2 : 1, d, 24);
        }
}

static void opens(void)
{
    err_reset(&e);
    t_ckpt_save(&m);
    cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), 0, &e), 0, "%s", e.text);
}

static void refused(const char *part)
{
    err_reset(&e);
    t_ckpt_save(&m);
    cr_expect_eq(ckpt_open(&c, t_ckpt_dir(), 0, &e), -1);
    cr_expect_not_null(strstr(e.text, part), "'%s' is not in '%s'", part,
                       e.text);
}

static void drop(const char *tail)
{
    for (size_t i = m.n; i-- > 0;)
        if (strstr(m.t[i].name, tail)) {
            t_ckpt_drop(&m, i);
            return;
        }
    cr_assert(false, "no %s", tail);
}

/* Layers that share keep their keys and values unread, whatever the prefix. */
Test(models_gemma, tensors_that_nobody_reads)
{
    static const char *const heads[] = { "model.language_model.",
                                         "language_model.model.", "model." };
    struct hparams without;

    make();
    opens();
    cr_expect_eq(c.ledger.used_tensors, m.n);
    cr_expect_eq(c.ledger.n_ignored, 0);
    cr_expect_eq(2 * hparams_count(&c.hp), c.ledger.used_bytes);
    without = c.hp;
    ckpt_close(&c);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        make();
        add_spares();
        t_ckpt_add(&m, "model.language_model.vision_tower.x.weight", 2, 3, 3);
        for (size_t k = 0; k < m.n; k++) {
            char tail[200];

            snprintf(tail, sizeof tail, "%s", m.t[k].name + 21);
            snprintf(m.t[k].name, sizeof m.t[k].name, "%s%s", heads[i], tail);
        }
        opens();
        cr_expect_eq(c.ledger.used_tensors, m.n - 7, "%s", heads[i]);
        cr_assert_eq(c.ledger.n_ignored, 2);
        cr_expect_eq(c.ledger.ignored[0].tensors, 6);
        cr_expect(strstr(c.ledger.ignored[0].rule, "share"), "%s",
                  c.ledger.ignored[0].rule);
        cr_expect_str_eq(c.ledger.ignored[1].rule, "vision_tower");
        cr_expect_eq(memcmp(&without, &c.hp, sizeof without), 0);
        cr_expect_null(ckpt_need(&c, "layers.2.self_attn.k_proj.weight"));
        ckpt_close(&c);
    }
    /* those that compute them need them, and only they have no others */
    make();
    drop("layers.1.self_attn.v_proj");
    refused("layer 1: missing self_attn.v_proj.weight [8, 24]");
    make();
    add_spares();
    t_ckpt_add(&m, "model.language_model.layers.2.self_attn.k_proj.bias", 1, 4,
               0);
    refused("layer 2: unknown self_attn.k_proj.bias");
}

Test(models_gemma, towers_are_skipped_by_name)
{
    static const char *const names[] = {
        "model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight",
        "model.vision_tower.encoder.layers.0.mlp.up_proj.input_max",
        "model.audio_tower.layers.3.self_attn.q_proj.weight",
        "model.embed_vision.embedding_projection.weight",
        "model.embed_audio.embedding_projection.weight",
        "model.vision_embedder.patch_dense.weight",
        "model.language_model.layers.0.self_attn.q_proj.input_min",
        "model.language_model.layers.0.self_attn.rotary_emb.inv_freq",
    };

    make();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        t_ckpt_add(&m, names[i], 2, 2, 2);
    opens();
    cr_expect_eq(c.ledger.used_tensors, m.n - 8);
    cr_expect_eq(c.ledger.n_ignored, 7);
    ckpt_close(&c);
}

Test(models_gemma, per_layer_embeddings_that_lack)
{
    static const char *const names[] = { "embed_tokens_per_layer.weight",
                                         "per_layer_model_projection.weight",
                                         "per_layer_projection_norm.weight" };
    static const char *const parts[] = { "per_layer_input_gate.weight",
                                         "per_layer_projection.weight",
                                         "post_per_layer_input_norm.weight",
                                         "layer_scalar" };
    char part[200];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        make();
        drop(names[i]);
        snprintf(part, sizeof part, "top level: missing %s [", names[i]);
        refused(part);
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        make();
        drop(parts[i]); /* of the last layer */
        snprintf(part, sizeof part, "layer 3: missing %s [", parts[i]);
        refused(part);
    }
    make();
    drop("embed_tokens_per_layer");
    refused("announces 'hidden_size_per_layer_input', the tensors do not");
    make();
    t_ckpt_config(&m, "\"hidden_size_per_layer_input\": 6",
                  "\"hidden_size_per_layer_input\": null");
    refused("does not announce 'hidden_size_per_layer_input'");
    make();
    t_ckpt_config(&m, "\"hidden_size_per_layer_input\": 6",
                  "\"hidden_size_per_layer_input\": 8");
    refused("embed_tokens_per_layer.weight is [16, 24], needed [16, 32]");
}

/* Flags, names and shapes must tell one story. */
Test(models_gemma, flags_that_the_tensors_contradict)
{
    make();
    t_ckpt_config(&m, "\"attention_k_eq_v\": false",
                  "\"attention_k_eq_v\": true");
    refused("layer 1: unknown self_attn.v_proj.weight");
    make();
    t_ckpt_config(&m, "\"use_double_wide_mlp\": true",
                  "\"use_double_wide_mlp\": false");
    refused("layers 2-3: shape of mlp.up_proj.weight is [24, 24], needed "
            "[12, 24]");
    make();
    t_ckpt_config(&m, "\"num_kv_shared_layers\": 2",
                  "\"num_kv_shared_layers\": 0");
    refused("layer 2: missing self_attn.k_proj.weight [4, 24]");
    make();
    t_ckpt_config(&m, "\"enable_moe_block\": false, \"num_experts\": null",
                  "\"enable_moe_block\": true, \"num_experts\": 3, "
                  "\"top_k_experts\": 2, \"moe_intermediate_size\": 5");
    refused("layers 0-3: missing router.proj.weight [3, 24]");
    cr_expect(strstr(e.text, "announces 'enable_moe_block'"), "%s", e.text);
    make();
    t_ckpt_add(&m, "model.language_model.layers.0.router.proj.weight", 2, 3,
               24);
    refused("does not announce 'enable_moe_block'");
    make();
    t_ckpt_config(&m, "\"global_head_dim\": 8", "\"global_head_dim\": 16");
    refused("layer 1: shape of self_attn.q_norm.weight is [8], needed [16]");
}

/* sqrt(24) = 4.89898 and sqrt(6) = 2.44949 in the dtypes of the tables. */
Test(models_gemma, embedding_scales_are_rounded_to_their_tables)
{
    static const struct {
        enum st_dtype table, ple;
        double scale, ple_scale;
    } rows[] = {
        { ST_BF16, ST_F32, 4.90625, 2.449489831924438477 },
        { ST_F16, ST_BF16, 4.8984375, 2.453125 },
        { ST_F32, ST_F16, 4.89897966384887695, 2.44921875 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        make();
        t_ckpt_find(&m, "model.language_model.embed_tokens.weight")->dtype =
            rows[i].table;
        t_ckpt_find(&m, "model.language_model.embed_tokens_per_layer.weight")
            ->dtype = rows[i].ple;
        opens();
        cr_expect_eq(c.hp.embed_scale, rows[i].scale, "row %zu: %.17g", i,
                     c.hp.embed_scale);
        cr_expect_eq(c.hp.ple_scale, rows[i].ple_scale, "row %zu: %.17g", i,
                     c.hp.ple_scale);
        ckpt_close(&c);
    }
}
