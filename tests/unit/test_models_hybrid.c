/*
 * Qwen3.5: configs, tensors, counts, experts in both forms of storage, and
 * the rewrites of other tools that must be told apart.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/mem.h"
#include "models/models.h"
#include "t_ckpt.h"

TestSuite(models_hybrid, .fini = t_ckpt_clean);

static struct t_ckpt m;
static struct ckpt c;
static struct err e;

/* ---- configs ---- */

struct parsed {
    struct hparams hp;
    struct buf notes;
    int rc;
};

static struct parsed parse(const char *text)
{
    struct parsed p = { .notes = BUF_INIT };
    struct js_doc *doc;

    err_reset(&e);
    doc = js_parse(text, strlen(text), &e);
    cr_assert_not_null(doc, "%s in %s", e.text, text);
    p.rc = hparams_parse(doc, &p.hp, &p.notes, &e);
    js_free(doc);
    return p;
}

static struct hparams accept(const char *text)
{
    struct parsed p = parse(text);

    cr_assert_eq(p.rc, 0, "%s: %s", text, e.text);
    buf_release(&p.notes);
    return p.hp;
}

static void refuse(const char *text, enum err_code code, const char *part)
{
    struct parsed p = parse(text);

    cr_expect_eq(p.rc, -1, "accepted: %s", text);
    cr_expect_eq(e.code, code, "code %d (%s) for %s", e.code, e.text, text);
    cr_expect_not_null(strstr(e.text, part), "'%s' is not in '%s'", part,
                       e.text);
    buf_release(&p.notes);
}

static bool noted_for(const char *text, const char *part)
{
    struct parsed p = parse(text);
    bool found = strstr(buf_text(&p.notes), part) != NULL;

    cr_assert_eq(p.rc, 0, "%s: %s", text, e.text);
    buf_release(&p.notes);
    return found;
}

#define TEXT(more) "{\"model_type\": \"qwen3_5_text\"" more "}"
#define OUTER(more)                                   \
    "{\"model_type\": \"qwen3_5\", \"text_config\": " \
    "{\"model_type\": \"qwen3_5_text\"" more "}}"
#define MOE(more) "{\"model_type\": \"qwen3_5_moe_text\"" more "}"

Test(models_hybrid, class_defaults_of_the_dense_family)
{
    struct hparams hp = accept(TEXT(""));

    cr_expect_eq(hp.vocab, 248320);
    cr_expect_eq(hp.hidden, 4096);
    cr_expect_eq(hp.intermediate, 12288);
    cr_expect_eq(hp.layers, 32);
    cr_expect_eq(hp.heads, 16);
    cr_expect_eq(hp.kv_heads, 4);
    cr_expect_eq(hp.head_dim, 256);
    cr_expect_eq(hp.max_positions, 32768);
    cr_expect_eq(hp.conv_kernel, 4);
    cr_expect_eq(hp.lin_key_heads, 16);
    cr_expect_eq(hp.lin_value_heads, 32);
    cr_expect_eq(hp.lin_key_dim, 128);
    cr_expect_eq(hp.lin_value_dim, 128);
    cr_expect_eq(hp.experts, 0);
    cr_expect_eq(hp.rope.dim, 64);
    cr_expect(hp.rope.theta == 1e7 && hp.rms_eps == 1e-6);
    cr_expect(!hp.tied && hp.qk_norm && hp.zero_centered_norms &&
              hp.attn_output_gate);
    for (int i = 0; i < 32; i++)
        cr_expect_eq(hp.layer_kind[i],
                     i % 4 == 3 ? HP_LAYER_FULL : HP_LAYER_LINEAR);
    cr_expect(noted_for(TEXT(""), "no 'full_attention_interval'"));
    cr_expect(noted_for(TEXT(""), "no partial_rotary_factor"));
}

Test(models_hybrid, class_defaults_with_experts)
{
    struct hparams hp = accept(MOE(""));

    cr_expect_eq(hp.hidden, 2048);
    cr_expect_eq(hp.layers, 40);
    cr_expect_eq(hp.heads, 16);
    cr_expect_eq(hp.kv_heads, 2);
    cr_expect_eq(hp.intermediate, 0);
    cr_expect_eq(hp.experts, 256);
    cr_expect_eq(hp.experts_per_token, 8);
    cr_expect_eq(hp.moe_intermediate, 512);
    cr_expect_eq(hp.shared_intermediate, 512);
}

#define LIN "\"linear_attention\""
#define FULL "\"full_attention\""

Test(models_hybrid, layer_types_win_over_the_interval)
{
    struct hparams hp = accept(
        TEXT(", \"num_hidden_layers\": 3, \"full_attention_interval\": 2, "
             "\"layer_types\": [" FULL ", " LIN ", " LIN "]"));

    cr_expect_eq(hp.layer_kind[0], HP_LAYER_FULL);
    cr_expect_eq(hp.layer_kind[1], HP_LAYER_LINEAR);
    cr_expect_eq(hp.layer_kind[2], HP_LAYER_LINEAR);
    hp = accept(TEXT(", \"num_hidden_layers\": 5, \"layer_types\": null, "
                     "\"full_attention_interval\": 3"));
    for (int i = 0; i < 5; i++)
        cr_expect_eq(hp.layer_kind[i],
                     i == 2 ? HP_LAYER_FULL : HP_LAYER_LINEAR);
}

Test(models_hybrid, layer_types_that_cannot_be)
{
    static const char two[] = "'layer_types' has 2 entries, num_hidden_layers "
                              "is 3";

    refuse(TEXT(", \"num_hidden_layers\": 3, \"layer_types\": [" LIN ", " FULL
                "]"),
           ERR_INPUT, two);
    refuse(TEXT(", \"num_hidden_layers\": 2, \"layer_types\": [" LIN
                ", \"sliding_attention\"]"),
           ERR_UNSUPPORTED, "layer_types[1] is 'sliding_attention'");
    refuse(TEXT(", \"num_hidden_layers\": 2, \"layer_types\": [" LIN ", 1]"),
           ERR_INPUT, "layer_types[1] is a number");
    refuse(TEXT(", \"layer_types\": \"all\""), ERR_INPUT,
           "'layer_types' is a string, an array of strings is needed");
    refuse(TEXT(", \"num_hidden_layers\": 2, \"layer_types\": [" LIN ", " LIN
                "]"),
           ERR_UNSUPPORTED, "all 2 layers are linear_attention");
    refuse(TEXT(", \"num_hidden_layers\": 2, \"layer_types\": [" FULL ", " FULL
                "]"),
           ERR_UNSUPPORTED, "all 2 layers are full_attention");
    refuse(TEXT(", \"full_attention_interval\": 1"), ERR_UNSUPPORTED,
           "all 32 layers are full_attention");
    refuse(TEXT(", \"full_attention_interval\": 0"), ERR_INPUT,
           "'full_attention_interval' is 0");
    refuse(TEXT(", \"full_attention_interval\": 33"), ERR_UNSUPPORTED,
           "all 32 layers are linear_attention");
    refuse(TEXT(", \"num_hidden_layers\": 257"), ERR_INPUT,
           "'num_hidden_layers' is 257, allowed are 1 to 256");
}

Test(models_hybrid, what_is_not_computed_is_refused_by_name)
{
    static const struct {
        const char *text, *part;
        enum err_code code;
    } rows[] = {
        { TEXT(", \"attn_output_gate\": false"),
          "'attn_output_gate' is false; qwen3_5_text is computed with true "
          "only",
          ERR_UNSUPPORTED },
        { TEXT(", \"attn_output_gate\": 1"),
          "'attn_output_gate' is a number, true or false is needed",
          ERR_INPUT },
        { TEXT(", \"attention_bias\": true"), "'attention_bias' is true",
          ERR_UNSUPPORTED },
        { TEXT(", \"use_sliding_window\": true"),
          "'use_sliding_window' is true", ERR_UNSUPPORTED },
        { MOE(", \"norm_topk_prob\": false"), "'norm_topk_prob' is false",
          ERR_UNSUPPORTED },
        { TEXT(", \"output_gate_type\": \"gelu\""),
          "output_gate_type 'gelu' is not computed", ERR_UNSUPPORTED },
        { TEXT(", \"output_gate_type\": []"), "'output_gate_type' is an array",
          ERR_INPUT },
        { TEXT(", \"hidden_act\": \"gelu\""), "hidden_act 'gelu'",
          ERR_UNSUPPORTED },
        { MOE(", \"mlp_only_layers\": [0, 3]"),
          "'mlp_only_layers' names 2 layers", ERR_UNSUPPORTED },
        { TEXT(", \"mlp_only_layers\": [0]"), "'mlp_only_layers' names 1",
          ERR_UNSUPPORTED },
        { MOE(", \"mlp_only_layers\": 0"), "'mlp_only_layers' is a number",
          ERR_INPUT },
        { TEXT(", \"linear_num_value_heads\": 24"),
          "linear_num_value_heads 24 is not a multiple of "
          "linear_num_key_heads 16",
          ERR_INPUT },
        { TEXT(", \"linear_num_key_heads\": 32768, "
               "\"linear_num_value_heads\": 65536"),
          "channels of convolution", ERR_INPUT },
        { TEXT(", \"linear_conv_kernel_dim\": 1"),
          "'linear_conv_kernel_dim' is 1, allowed are 2 to 64", ERR_INPUT },
        { MOE(", \"num_experts_per_tok\": 257"),
          "num_experts_per_tok 257 is more than the 256 of num_experts",
          ERR_INPUT },
        { TEXT(", \"linear_key_head_dim\": null"),
          "'linear_key_head_dim' is null", ERR_INPUT },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refuse(rows[i].text, rows[i].code, rows[i].part);
}

Test(models_hybrid, what_is_said_and_changes_nothing)
{
    accept(TEXT(", \"attn_output_gate\": true, \"attention_bias\": null, "
                "\"output_gate_type\": \"swish\", \"mlp_only_layers\": [], "
                "\"mamba_ssm_dtype\": \"float32\", \"mtp_num_hidden_layers\": "
                "1, \"use_sliding_window\": false"));
    accept(MOE(", \"output_gate_type\": \"silu\", \"num_experts_per_tok\": "
               "256, \"norm_topk_prob\": true, \"mlp_only_layers\": null, "
               "\"router_aux_loss_coef\": 0.001"));
}

Test(models_hybrid, levels_must_be_of_one_kind)
{
    static const char mixed[] =
        "{\"model_type\": \"qwen3_5\", \"text_config\": {\"model_type\": "
        "\"qwen3_5_moe_text\"}}";
    static const char reverse[] =
        "{\"model_type\": \"qwen3_5_moe\", \"text_config\": {\"model_type\": "
        "\"qwen3_5_text\"}}";
    static const char class[] =
        MOE(", \"architectures\": [\"Qwen3_5ForConditionalGeneration\"]");

    refuse(mixed, ERR_UNSUPPORTED,
           "model_type 'qwen3_5' with a text_config of model_type "
           "'qwen3_5_moe_text'");
    refuse(reverse, ERR_UNSUPPORTED,
           "model_type 'qwen3_5_moe' with a text_config of model_type "
           "'qwen3_5_text'");
    /* Seen in a pruned re-save, whose tensors follow the model_type. */
    cr_expect_eq(accept(class).experts, 256);
    cr_expect(noted_for(class, "model_type 'qwen3_5_moe_text' counts"));
    refuse("{\"model_type\": \"qwen3_next\"}", ERR_UNSUPPORTED,
           "model_type 'qwen3_next' is not supported");
}

Test(models_hybrid, partial_rotation_in_every_spelling)
{
    static const char *const half[] = {
        TEXT(", \"partial_rotary_factor\": 0.5"),
        TEXT(", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}"),
        OUTER(", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}"),
        TEXT(", \"partial_rotary_factor\": 0.25, \"rope_parameters\": "
             "{\"partial_rotary_factor\": 0.5}"),
        TEXT(", \"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": "
             "[11, 11, 10]}, \"partial_rotary_factor\": 0.5"),
    };

    for (size_t i = 0; i < sizeof half / sizeof *half; i++)
        cr_expect_eq(accept(half[i]).rope.dim, 128, "%s", half[i]);
    /* cut, not rounded, as in Python's int() */
    cr_expect_eq(
        accept(TEXT(", \"head_dim\": 100, \"partial_rotary_factor\": 0.149"))
            .rope.dim,
        14);
    refuse(TEXT(", \"partial_rotary_factor\": 1.5"), ERR_INPUT,
           "'partial_rotary_factor' is 1.5");
    refuse(TEXT(", \"partial_rotary_factor\": 0"), ERR_INPUT,
           "'partial_rotary_factor' is 0");
    refuse(TEXT(", \"head_dim\": 100"), ERR_INPUT, "gives 25 rotated elements");
    refuse(TEXT(", \"head_dim\": 4"), ERR_INPUT, "gives 1 rotated elements");
    refuse(TEXT(", \"rope_parameters\": {\"rope_type\": \"xyz\"}"),
           ERR_UNSUPPORTED, "rope type 'xyz'");
}

Test(models_hybrid, printed_lines)
{
    struct hparams hp = accept(MOE(", \"num_hidden_layers\": 5"));
    struct buf b = BUF_INIT;
    static const char *const lines[] = {
        "layer_types 0-2 linear_attention\n",
        "layer_types 3 full_attention\n",
        "layer_types 4 linear_attention\n",
        "linear_num_value_heads 32\n",
        "num_experts 256\n",
        "num_experts_per_tok 8\n",
        "moe_intermediate_size 512\n",
        "rope_dim 64\n",
    };

    hparams_print(&hp, &b);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_expect_not_null(strstr(buf_text(&b), lines[i]), "%s in %s", lines[i],
                           buf_text(&b));
    cr_expect_null(strstr(buf_text(&b), "\nintermediate_size"));
    buf_release(&b);
}

/* ---- counts ---- */

static const struct {
    int64_t H, I, L, nq, nkv, nv, E, k;
    bool tied;
    uint64_t n;
} published[] = {
    { 1024, 3584, 24, 8, 2, 16, 0, 0, true, 752393024 },
    { 2048, 6144, 24, 8, 2, 16, 0, 0, true, 1881825088 },
    { 2560, 9216, 32, 16, 4, 32, 0, 0, true, 4205751296 },
    { 4096, 12288, 32, 16, 4, 32, 0, 0, false, 8953803264 },
    { 5120, 17408, 64, 24, 4, 48, 0, 0, false, 26895998464 },
    { 2048, 512, 40, 16, 2, 32, 256, 8, false, 34660610688 },
    { 3072, 1024, 48, 32, 2, 64, 256, 8, false, 122111526912 },
    { 4096, 1024, 60, 32, 2, 64, 512, 10, false, 396346350336 },
};

static struct hparams model(size_t i)
{
    struct hparams hp = accept(published[i].E ? MOE("") : TEXT(""));

    hp.hidden = published[i].H;
    hp.layers = published[i].L;
    hp.heads = published[i].nq;
    hp.kv_heads = published[i].nkv;
    hp.lin_value_heads = published[i].nv;
    hp.tied = published[i].tied;
    hp.intermediate = published[i].E ? 0 : published[i].I;
    hp.experts = published[i].E;
    hp.experts_per_token = published[i].k;
    hp.moe_intermediate = hp.shared_intermediate = published[i].I;
    for (int64_t l = 0; l < hp.layers; l++)
        hp.layer_kind[l] = l % 4 == 3 ? HP_LAYER_FULL : HP_LAYER_LINEAR;
    return hp;
}

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

Test(models_hybrid, published_counts)
{
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct hparams hp = model(i);
        size_t n, L = (size_t)published[i].L, mlp = published[i].E ? 7 : 3;

        cr_expect_eq(hparams_count(&hp), published[i].n, "row %zu: %llu", i,
                     (unsigned long long)hparams_count(&hp));
        cr_expect_eq(sum_of_needs(&hp, &n), published[i].n, "row %zu", i);
        cr_expect_eq(n, L / 4 * (3 * (11 + mlp) + 8 + mlp) + 2 +
                            !published[i].tied);
    }
}

/* ---- small checkpoints ---- */

/* H 8, V 16, two linear layers (2 key heads of 2, 4 value heads of 3, 3 taps)
 * and one full one (2 heads of 4 over 1); 3 experts of width 5. */
static const char small_config[] =
    "{\"architectures\": [\"Qwen3_5%sForCausalLM\"],"
    " \"model_type\": \"qwen3_5%s_text\", \"vocab_size\": 16,"
    " \"hidden_size\": 8, \"intermediate_size\": 12,"
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 2,"
    " \"num_key_value_heads\": 1, \"head_dim\": 4,"
    " \"hidden_act\": \"silu\", \"max_position_embeddings\": 64,"
    " \"partial_rotary_factor\": 0.5, \"tie_word_embeddings\": true,"
    " \"full_attention_interval\": 2, \"linear_conv_kernel_dim\": 3,"
    " \"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4,"
    " \"linear_key_head_dim\": 2, \"linear_value_head_dim\": 3,"
    " \"num_experts\": 3, \"num_experts_per_tok\": 2,"
    " \"moe_intermediate_size\": 5, \"shared_expert_intermediate_size\": 6}";

struct part {
    const char *name;
    int rank;
    uint64_t d0, d1, d2;
};

static const struct part ends[] = { { "input_layernorm.weight", 1, 8, 0, 0 },
                                    { "post_attention_layernorm.weight", 1, 8,
                                      0, 0 },
                                    { 0 } };
static const struct part linear[] = {
    { "linear_attn.in_proj_qkv.weight", 2, 20, 8, 0 },
    { "linear_attn.in_proj_z.weight", 2, 12, 8, 0 },
    { "linear_attn.in_proj_b.weight", 2, 4, 8, 0 },
    { "linear_attn.in_proj_a.weight", 2, 4, 8, 0 },
    { "linear_attn.conv1d.weight", 3, 20, 1, 3 },
    { "linear_attn.A_log", 1, 4, 0, 0 },
    { "linear_attn.dt_bias", 1, 4, 0, 0 },
    { "linear_attn.norm.weight", 1, 3, 0, 0 },
    { "linear_attn.out_proj.weight", 2, 8, 12, 0 },
    { 0 }
};
static const struct part full[] = { { "self_attn.q_proj.weight", 2, 16, 8, 0 },
                                    { "self_attn.k_proj.weight", 2, 4, 8, 0 },
                                    { "self_attn.v_proj.weight", 2, 4, 8, 0 },
                                    { "self_attn.q_norm.weight", 1, 4, 0, 0 },
                                    { "self_attn.k_norm.weight", 1, 4, 0, 0 },
                                    { "self_attn.o_proj.weight", 2, 8, 8, 0 },
                                    { 0 } };
static const struct part mlp[] = { { "mlp.gate_proj.weight", 2, 12, 8, 0 },
                                   { "mlp.up_proj.weight", 2, 12, 8, 0 },
                                   { "mlp.down_proj.weight", 2, 8, 12, 0 },
                                   { 0 } };
static const struct part moe[] = {
    { "mlp.gate.weight", 2, 3, 8, 0 },
    { "mlp.experts.gate_up_proj", 3, 3, 10, 8 },
    { "mlp.experts.down_proj", 3, 3, 8, 5 },
    { "mlp.shared_expert.gate_proj.weight", 2, 6, 8, 0 },
    { "mlp.shared_expert.up_proj.weight", 2, 6, 8, 0 },
    { "mlp.shared_expert.down_proj.weight", 2, 8, 6, 0 },
    { "mlp.shared_expert_gate.weight", 2, 1, 8, 0 },
    { 0 }
};

static void add_parts(int layer, const struct part *p)
{
    char name[200];

    for (; p->name; p++) {
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, p->name);
        t_ckpt_add(&m, name, p->rank, p->d0, p->d1);
        m.t[m.n - 1].dims[2] = p->d2;
    }
}

static void make(bool experts)
{
    const char *moe_name = experts ? "Moe" : "";

    memset(&m, 0, sizeof m);
    snprintf(m.config, sizeof m.config, small_config, moe_name,
             experts ? "_moe" : "");
    t_ckpt_add(&m, "model.embed_tokens.weight", 2, 16, 8);
    for (int i = 0; i < 3; i++) {
        add_parts(i, ends);
        add_parts(i, i == 1 ? full : linear);
        add_parts(i, experts ? moe : mlp);
    }
    t_ckpt_add(&m, "model.norm.weight", 1, 8, 0);
}

static void opens(void)
{
    t_ckpt_save(&m);
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), 0, &e), 0, "%s", e.text);
}

static void refused(enum err_code code, const char *part)
{
    t_ckpt_save(&m);
    err_reset(&e);
    cr_assert_eq(ckpt_open(&c, t_ckpt_dir(), 0, &e), -1, "opened");
    cr_expect_eq(e.code, code, "code %d: %s", e.code, e.text);
    cr_expect_not_null(strstr(e.text, part), "'%s' is not in: %s", part,
                       e.text);
}

Test(models_hybrid, sound_models_balance)
{
    for (int experts = 0; experts < 2; experts++) {
        make(experts);
        opens();
        cr_expect_eq(c.ledger.used_tensors, m.n);
        cr_expect_eq(2 * hparams_count(&c.hp), c.ledger.used_bytes);
        cr_expect_not_null(strstr(buf_text(&c.notes),
                                  "norms are zero-centred as published: "
                                  "means of 9 run from "),
                           "%s", buf_text(&c.notes));
        ckpt_close(&c);
    }
}

Test(models_hybrid, each_tensor_deleted_in_turn)
{
    for (int experts = 0; experts < 2; experts++) {
        make(experts);
        for (size_t i = 0; i < m.n; i++) {
            struct t_ckpt whole = m;
            const char *name = strstr(m.t[i].name, "layers.");
            char part[300];

            name = name ? name + 9 : m.t[i].name + 6;
            snprintf(part, sizeof part, "missing %s [", name);
            t_ckpt_drop(&m, i);
            refused(ERR_INPUT, part);
            m = whole;
        }
    }
}

Test(models_hybrid, float32_parameters_in_either_dtype)
{
    for (int f32 = 0; f32 < 2; f32++) {
        make(false);
        for (size_t i = 0; i < m.n; i++)
            if (strstr(m.t[i].name, "A_log") ||
                strstr(m.t[i].name, "linear_attn.norm"))
                m.t[i].dtype = f32 ? ST_F32 : ST_BF16;
        opens();
        cr_expect_eq(ckpt_tensor(&c, "layers.0.linear_attn.A_log")->dtype,
                     f32 ? ST_F32 : ST_BF16);
        ckpt_close(&c);
    }
}

/* Towers and draft layers are skipped wherever they stand. */
static void add_extras(const char *visual, const char *mtp)
{
    char name[200];

    snprintf(name, sizeof name, "%svisual.blocks.0.attn.qkv.weight", visual);
    t_ckpt_add(&m, name, 2, 3, 5);
    snprintf(name, sizeof name, "%svisual.layers.0.norm.weight", visual);
    t_ckpt_add(&m, name, 1, 3, 0);
    snprintf(name, sizeof name, "%smtp.layers.0.self_attn.q_proj.weight", mtp);
    t_ckpt_add(&m, name, 2, 16, 8);
    snprintf(name, sizeof name, "%smtp.norm.weight", mtp);
    t_ckpt_add(&m, name, 1, 8, 0);
}

Test(models_hybrid, one_model_in_eight_spellings)
{
    static const struct {
        const char *head, *visual, *mtp;
        bool keep;
    } rows[] = {
        { "model.language_model.", "model.", "", false },
        { "model.language_model.language_model.", "model.language_model.", "",
          false },
        { "model.language_model.language_model.language_model.",
          "model.language_model.", "model.", false },
        { "language_model.model.", "", "language_model.", false },
        { "base_model.model.", "base_model.model.", "", true },
        { "_orig_mod.", "_orig_mod.", "_orig_mod.", true },
        { "module.", "module.", "module.", true },
        { "", "", "", false },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        make(i % 2);
        t_ckpt_prefix(&m, rows[i].head, rows[i].keep, "");
        add_extras(rows[i].visual, rows[i].mtp);
        opens();
        cr_expect_eq(c.ledger.used_tensors, m.n - 4, "row %zu", i);
        cr_expect_eq(c.ledger.n_ignored, 2);
        cr_expect_not_null(ckpt_tensor(&c, "layers.2.linear_attn.dt_bias"));
        ckpt_close(&c);
    }
}

Test(models_hybrid, tensors_of_another_kind)
{
    char text[4096];

    /* a plain model in a hybrid config, and the reverse */
    make(false);
    memcpy(text, m.config, sizeof text);
    t_ckpt_qwen3(&m, true);
    memcpy(m.config, text, sizeof text);
    refused(ERR_INPUT, "missing linear_attn.A_log");
    /* experts that the config does not announce */
    make(true);
    snprintf(m.config, sizeof m.config, small_config, "", "");
    refused(ERR_INPUT, "does not announce 'num_experts'");
    make(false);
    snprintf(m.config, sizeof m.config, small_config, "Moe", "_moe");
    refused(ERR_INPUT, "announces 'num_experts'");
    /* another mixer than layer_types says */
    make(false);
    t_ckpt_config(&m, "\"full_attention_interval\": 2",
                  "\"full_attention_interval\": 3");
    refused(ERR_INPUT, "layer 1: unknown self_attn.q_proj.weight");
    make(false);
    t_ckpt_add(&m, "model.layers.0.linear_attn.conv1d.bias", 1, 20, 0);
    refused(ERR_INPUT, "unknown linear_attn.conv1d.bias");
}

/* ---- rewrites of other tools ---- */

static void shift_norms(void)
{
    for (size_t i = 0; i < m.n; i++)
        if (m.t[i].rank == 1 && strstr(m.t[i].name, "norm.weight") &&
            !strstr(m.t[i].name, "linear_attn"))
            m.t[i].ones = true;
}

static void turn_convolutions(int n)
{
    for (size_t i = 0; i < m.n && n > 0; i++)
        if (strstr(m.t[i].name, "conv1d")) {
            m.t[i].dims[1] = 3;
            m.t[i].dims[2] = 1;
            n--;
        }
}

Test(models_hybrid, norms_and_convolutions_tell_one_story)
{
    make(false);
    shift_norms();
    refused(ERR_UNSUPPORTED, "1 was added to its norms already: 2 convolutions "
                             "are [channels, 1, taps] as published, 0 ");
    cr_expect_not_null(strstr(e.text, "means of 9 norms run from 1.000 to "
                                      "1.000 with median 1.000"),
                       "%s", e.text);
    make(false);
    shift_norms();
    turn_convolutions(2);
    refused(ERR_UNSUPPORTED, "it is in MLX layout: 0 convolutions");
    make(false);
    turn_convolutions(2);
    refused(ERR_UNSUPPORTED,
            "its convolutions are written as MLX does, its norms are not");
    make(false);
    turn_convolutions(1);
    refused(ERR_UNSUPPORTED, "its convolutions are written in two ways");
    /* the recurrent norm is around 1 in published files */
    make(false);
    for (size_t i = 0; i < m.n; i++)
        m.t[i].ones = strstr(m.t[i].name, "linear_attn.norm") != NULL;
    opens();
    ckpt_close(&c);
    /* of another shape altogether: that is what is said */
    make(false);
    t_ckpt_find(&m, "model.layers.0.linear_attn.conv1d.weight")->dims[2] = 4;
    refused(ERR_INPUT,
            "shape of linear_attn.conv1d.weight is [20, 1, 4], needed "
            "[20, 1, 3]");
}

Test(models_hybrid, foreign_arrangements_by_name)
{
    make(false);
    snprintf(
        t_ckpt_find(&m, "model.layers.0.linear_attn.in_proj_qkv.weight")->name,
        256, "model.layers.0.linear_attn.in_proj_qkvz.weight");
    refused(ERR_UNSUPPORTED, "packed per key head, as Qwen3-Next has them");
    make(true);
    snprintf(t_ckpt_find(&m, "model.layers.0.mlp.experts.down_proj")->name, 256,
             "model.layers.0.mlp.switch_mlp.down_proj.weight");
    refused(ERR_UNSUPPORTED, "it is in MLX layout (tensor 'model.layers.0.mlp."
                             "switch_mlp.down_proj.weight')");
}

/* ---- experts one by one ---- */

/* Replaces the stacked tensors of a layer. */
static void list_experts(int layer)
{
    static const char *const names[] = { "gate", "up", "down" };
    char name[200];

    for (size_t i = m.n; i-- > 0;) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.", layer);
        if (!strncmp(m.t[i].name, name, strlen(name)))
            t_ckpt_drop(&m, i);
    }
    for (int x = 0; x < 3; x++)
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name,
                     "model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, x,
                     names[k]);
            t_ckpt_add(&m, name, 2, k == 2 ? 8 : 5, k == 2 ? 5 : 8);
            m.t[m.n - 1].seed = (unsigned)(1000 + 10 * x + k);
        }
}

static void read_rows(const char *name, uint64_t row, uint64_t n, float *dst)
{
    struct tensor_source s = ckpt_source(&c);

    cr_assert_eq(s.rows(s.cookie, name, row, n, dst, &e), 0, "%s", e.text);
}

/* Every way to read the stacked tensor gives the pieces. */
Test(models_hybrid, experts_one_by_one_are_the_stacked_tensor)
{
    static const char *const names[] = { "gate", "up" };
    float all[3 * 10 * 8], part[5 * 8], down[3 * 8 * 5];
    uint16_t raw[3 * 10 * 8];
    const struct need *n;

    make(true);
    list_experts(1);
    opens();
    cr_expect_eq(c.ledger.used_tensors, m.n);
    cr_expect_eq(2 * hparams_count(&c.hp), c.ledger.used_bytes);
    n = ckpt_need(&c, "layers.1.mlp.experts.gate_up_proj");
    cr_assert(n && n->n_parts == 6 && n->tensor == n->parts[0]);
    read_rows(n->name, 0, 30, all);
    for (int x = 0; x < 3; x++)
        for (int k = 0; k < 2; k++) {
            char name[200];

            snprintf(name, sizeof name,
                     "model.layers.1.mlp.experts.%d.%s_proj.weight", x,
                     names[k]);
            cr_assert_eq(st_read_f32(c.st, st_find(c.st, name), 0, 40, part,
                                     &e),
                         0);
            cr_expect_arr_eq(all + (2 * x + k) * 40, part, sizeof part, "%s",
                             name);
        }
    /* across borders, from odd places */
    for (uint64_t from = 0; from < 30; from += 7) {
        uint64_t count = 30 - from < 9 ? 30 - from : 9;
        float some[9 * 8];

        read_rows(n->name, from, count, some);
        cr_expect_arr_eq(some, all + from * 8, count * 8 * sizeof *some);
    }
    cr_assert_eq(need_read_bytes(c.st, n, 0, raw, sizeof raw, &e), 0);
    for (size_t i = 0; i < 240; i++) {
        uint32_t bits = (uint32_t)raw[i] << 16;
        float f;

        memcpy(&f, &bits, sizeof f);
        cr_expect(f == all[i], "element %zu", i);
    }
    read_rows("layers.1.mlp.experts.down_proj", 0, 24, down);
    cr_expect_neq(memcmp(down, down + 40, 160), 0);
    cr_expect_eq(ckpt_need(&c, "layers.0.mlp.experts.down_proj")->n_parts, 0);
    ckpt_close(&c);
}

Test(models_hybrid, experts_that_do_not_make_a_whole)
{
    make(true);
    list_experts(0);
    t_ckpt_drop(&m, m.n - 2); /* the last one's up_proj */
    refused(ERR_INPUT, "layer 0: missing mlp.experts.2.up_proj.weight [5, 8]");
    make(true);
    list_experts(0);
    t_ckpt_add(&m, "model.layers.0.mlp.experts.3.up_proj.weight", 2, 5, 8);
    refused(ERR_INPUT, "unknown mlp.experts.3.up_proj.weight [5, 8]");
    make(true);
    list_experts(0);
    t_ckpt_find(&m, "model.layers.0.mlp.experts.1.down_proj.weight")->dims[1] =
        6;
    refused(ERR_INPUT, "shape of mlp.experts.1.down_proj.weight is [8, 6], "
                       "needed [8, 5]");
    /* both forms: whichever comes first */
    make(true);
    t_ckpt_add(&m, "model.layers.0.mlp.experts.1.down_proj.weight", 2, 8, 5);
    refused(ERR_INPUT, "twice layers.0.mlp.experts.");
    make(true);
    t_ckpt_add(&m, "model.layers.0.mlp.experts.zero.down_proj.weight", 2, 8, 5);
    refused(ERR_INPUT, "unknown mlp.experts.zero.down_proj.weight");
    make(true);
    list_experts(2);
    t_ckpt_find(&m, "model.layers.2.mlp.experts.1.up_proj.weight")->dtype =
        ST_F32;
    refused(ERR_UNSUPPORTED, "experts of one layer must have one dtype");
    make(true);
    list_experts(2);
    t_ckpt_find(&m, "model.layers.2.mlp.experts.1.up_proj.weight")->dtype =
        ST_F8_E4M3;
    t_ckpt_add(&m, "model.layers.2.mlp.experts.1.up_proj.weight_scale_inv", 2,
               1, 1);
    refused(ERR_UNSUPPORTED, "FP8");
}

Test(models_hybrid, every_allocation_may_fail)
{
    bool done = false;

    make(true);
    list_experts(0);
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
}

/* ---- fixtures ---- */

Test(models_hybrid, fixtures_open)
{
    static const struct {
        const char *name;
        size_t used, skipped;
    } rows[] = { { "qwen3_5-tiny", 108, 6 },
                 { "qwen3_5-odd", 56, 0 },
                 { "qwen3_5_moe-tiny", 71, 0 } };

    for (size_t i = 0; i < 3; i++) {
        char name[64];
        const char *dir;
        uint64_t skipped = 0;

        snprintf(name, sizeof name, "fixtures/%s", rows[i].name);
        dir = t_ckpt_shared(name);
        if (!dir)
            cr_skip_test("no fixtures here");
        err_reset(&e);
        cr_assert_eq(ckpt_open(&c, dir, 0, &e), 0, "%s", e.text);
        for (size_t k = 0; k < c.ledger.n_ignored; k++)
            skipped += c.ledger.ignored[k].tensors;
        cr_expect_eq(c.ledger.used_tensors, rows[i].used, "%s: %llu",
                     rows[i].name, (unsigned long long)c.ledger.used_tensors);
        cr_expect_eq(skipped, rows[i].skipped, "%s", rows[i].name);
        ckpt_close(&c);
    }
}
