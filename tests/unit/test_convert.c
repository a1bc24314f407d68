/*
 * Conversions: equal bytes whatever the spelling, the threads and the
 * processor; values that no package can hold; biases, ties and odd shapes
 * through the gate.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "converter/base/cpu.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/gate.h"
#include "converter/synth.h"
#include "models/weights.h"
#include "t_conv.h"

TestSuite(convert, .fini = t_conv_clean);

static void expect_same(const char *a, const char *b, const char *but)
{
    const char *d = t_conv_differ(a, b, but);

    cr_expect(!d[0], "%s and %s differ in %s", a, b, d);
}

static void expect_failure(const struct cv_options *o, enum err_code code,
                           const char *says)
{
    struct err e = ERR_INIT;

    cr_expect_eq(t_conv_try(o, "failed", &e), -1, "'%s' was expected", says);
    cr_expect_eq((int)e.code, (int)code, "%s", e.text);
    cr_expect(strstr(e.text, says), "'%s' lacks '%s'", e.text, says);
    cr_expect(!io_exists(t_conv_path("failed")));
    cr_expect(!strstr(t_conv_list(""), "stage"), "left: %s", t_conv_list(""));
}

/* ---- equal bytes ---- */

Test(convert, twice_and_with_any_number_of_threads)
{
    struct err e = ERR_INIT;
    struct cv_options o;

    t_conv_synth("qwen3", "tiny", "m");
    o = t_conv_options("m");
    o.lut_embeddings = (struct cv_lut){ 6, 8 };
    o.lut_ffn = (struct cv_lut){ 3, 0 };
    o.chunks = 2;
    t_conv_run(&o, "serial");
    t_conv_run(&o, "again");
    expect_same("serial", "again", NULL);
    for (int n = 1; n <= 3; n++) {
        char name[16];

        snprintf(name, sizeof name, "t%d", n);
        o.par = par_new(n, &e);
        cr_assert_not_null(o.par);
        t_conv_run(&o, name);
        par_free(o.par);
        expect_same("serial", name, NULL);
    }
}

Test(convert, on_any_processor)
{
    static const char *const levels[] = { "scalar", "avx2", "auto" };
    struct err e = ERR_INIT;
    struct cv_options o;

    t_conv_synth("qwen3", "odd", "m");
    o = t_conv_options("m");
    o.lut_head = (struct cv_lut){ 8, 8 };
    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(cpu_mask_by_name(levels[i], &e), 0, "%s", e.text);
        t_conv_run(&o, levels[i]);
        expect_same("scalar", levels[i], NULL);
    }
}

/* One model under eight names of its tensors. */
Test(convert, eight_spellings_of_names)
{
    static const char *const spellings[][2] = {
        { "model.", "" },
        { "", "" },
        { "model.language_model.", "" },
        { "language_model.model.", "language_model." },
        { "model.language_model.language_model.", "" },
        { "base_model.model.model.", "base_model.model." },
        { "_orig_mod.model.", "_orig_mod." },
        { "module.model.", "module." },
    };
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;

    m.tied = false;
    for (size_t i = 0; i < 8; i++) {
        char name[32], tensor[128], *text;
        size_t len;

        m.prefix = spellings[i][0];
        m.outer = spellings[i][1];
        t_model_write(&m, "m");
        o = t_conv_options("m");
        snprintf(name, sizeof name, "s%zu", i);
        t_conv_run(&o, name);
        /* The report names tensors as the checkpoint does. */
        expect_same("s0", name, "report.json");
        snprintf(tensor, sizeof tensor,
                 "\"%slayers.0.self_attn.q_proj.weight\"", m.prefix);
        snprintf(name, sizeof name, "s%zu/report.json", i);
        text = t_conv_text(name, &len);
        cr_expect(strstr(text, tensor), "no %s", tensor);
        mem_free(text);
    }
}

Test(convert, one_file_or_many)
{
    struct synth_options many = { .arch = "qwen3",
                                  .like = "tiny",
                                  .seed = 1,
                                  .single_max = 1,
                                  .shard_max = 500000 };
    struct err e = ERR_INIT;
    struct cv_options o;

    t_conv_synth("qwen3", "tiny", "a/m");
    cr_assert_eq(synth_make(&many, t_conv_path("b/m"), &e), 0, "%s", e.text);
    cr_expect(strstr(t_conv_list("b/m"), "-of-00003"), "%s",
              t_conv_list("b/m"));
    o = t_conv_options("a/m");
    t_conv_run(&o, "one");
    o = t_conv_options("b/m");
    t_conv_run(&o, "many");
    expect_same("one", "many", NULL);
}

static void put_llama_config(const char *name, bool five)
{
    static const char common[] =
        "\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
        "\"vocab_size\": 64, \"hidden_size\": 32, \"intermediate_size\": 48, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16, \"hidden_act\": "
        "\"silu\", \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-05, "
        "\"tie_word_embeddings\": true, \"eos_token_id\": 2, ";
    char text[2000], file[100];

    snprintf(text, sizeof text,
             five ? "{%s\"rope_parameters\": {\"rope_theta\": 10000.0, "
                    "\"rope_type\": \"llama3\", \"factor\": 8.0, "
                    "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                    "\"original_max_position_embeddings\": 32}, \"dtype\": "
                    "\"bfloat16\"}"
                  : "{%s\"rope_theta\": 10000.0, \"rope_scaling\": {\"type\": "
                    "\"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
                    "\"high_freq_factor\": 4.0, "
                    "\"original_max_position_embeddings\": 32}, "
                    "\"torch_dtype\": \"bfloat16\"}",
             common);
    snprintf(file, sizeof file, "%s/config.json", name);
    t_conv_put(file, text);
}

Test(convert, spellings_of_two_generations)
{
    struct t_model m = t_model_tiny("llama");
    struct cv_options o;

    t_model_write(&m, "4/m");
    put_llama_config("4/m", false);
    t_model_write(&m, "5/m");
    put_llama_config("5/m", true);
    o = t_conv_options("4/m");
    t_conv_run(&o, "four");
    o = t_conv_options("5/m");
    t_conv_run(&o, "five");
    expect_same("four", "five", "config.json");
    cr_expect(t_conv_differ("four", "five", NULL)[0]);
}

/* Values that all three dtypes hold exactly make one package, palettized or
 * not. */
Test(convert, source_dtypes_agree)
{
    static const enum st_dtype dtypes[] = { ST_BF16, ST_F16, ST_F32 };
    static const char *const names[] = { "bf16", "f16", "f32" };
    struct t_model m = t_model_tiny("qwen3");

    for (int lut = 0; lut < 2; lut++)
        for (size_t i = 0; i < 3; i++) {
            struct cv_options o;
            char out[16], first[16];

            m.dtype = dtypes[i];
            t_model_write(&m, "m");
            o = t_conv_options("m");
            if (!lut)
                o.lut_ffn.bits = o.lut_head.bits = 0;
            snprintf(out, sizeof out, "%s-%d", names[i], lut);
            snprintf(first, sizeof first, "bf16-%d", lut);
            t_conv_run(&o, out);
            expect_same(first, out, NULL);
        }
}

/* ---- values ---- */

static const struct {
    float value;
    const char *says;
} values[] = {
    { NAN, "NaN" },
    { INFINITY, "infinite" },
    { -INFINITY, "infinite" },
    { 70000.0f, "beyond fp16" },
    { -65536.0f, "beyond fp16" },
};

static void refused_values(const char *tensor, uint64_t elem, const char *place)
{
    struct t_model m = t_model_tiny("qwen3");

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        for (int bits = 0; bits <= 4; bits += 4)
            for (int wide = 0; wide < 2; wide++) {
                struct cv_options o;

                m.dtype = wide ? ST_F32 : ST_BF16;
                t_model_write(&m, "m");
                t_model_poke("m", tensor, elem, values[i].value);
                o = t_conv_options("m");
                o.lut_ffn.bits = o.lut_head.bits = bits;
                expect_failure(&o, ERR_INPUT, values[i].says);
                expect_failure(&o, ERR_INPUT, tensor);
                expect_failure(&o, ERR_INPUT, place);
            }
}

Test(convert, values_of_a_projection)
{
    refused_values("model.layers.1.mlp.up_proj.weight", 32 * 47 + 5,
                   "row 47, column 5");
}

/* Parts of the head begin at other rows of their tensor. */
Test(convert, values_of_the_head)
{
    struct t_model m = t_model_tiny("llama");
    struct cv_options o;

    m.tied = false;
    t_model_write(&m, "m");
    t_model_poke("m", "lm_head.weight", 32 * 50 + 31, NAN);
    o = t_conv_options("m");
    expect_failure(&o, ERR_INPUT, "'lm_head.weight'");
    expect_failure(&o, ERR_INPUT, "row 50, column 31");
    o.lut_head.bits = 0;
    expect_failure(&o, ERR_INPUT, "row 50, column 31");
}

Test(convert, values_of_a_norm)
{
    struct t_model m = t_model_tiny("llama");
    struct cv_options o;

    t_model_write(&m, "m");
    t_model_poke("m", "model.norm.weight", 7, 70000.0f);
    o = t_conv_options("m");
    expect_failure(&o, ERR_INPUT, "'model.norm.weight'");
}

/* The gate's weights are halved: what fits then is taken, in every mode. */
Test(convert, the_largest_values_that_fit)
{
    struct t_model m = t_model_tiny("qwen3");

    for (int bits = 0; bits <= 8; bits += 8) {
        struct cv_options o;

        m.dtype = ST_F32;
        t_model_write(&m, "m");
        t_model_poke("m", "model.layers.0.mlp.up_proj.weight", 0, 65504.0f);
        o = t_conv_options("m");
        o.lut_ffn.bits = bits;
        o.scale_given = true; /* what is computed with them does not fit */
        t_conv_run(&o, bits ? "lut" : "none");
        t_model_poke("m", "model.layers.0.mlp.up_proj.weight", 0, 65520.0f);
        expect_failure(&o, ERR_INPUT, "beyond fp16");
    }
}

/* ---- groups ---- */

Test(convert, groups_that_do_not_divide)
{
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;
    struct err e = ERR_INIT;
    struct cv_job j;

    m.vocab = 61; /* prime */
    t_model_write(&m, "m");
    o = t_conv_options("m");
    o.lut_ffn = (struct cv_lut){ 4, 24 };
    o.output = t_conv_path("out");
    cr_assert_eq(cv_job_open(&j, &o, false, &e), 0, "%s", e.text);
    cr_expect(!strstr(buf_text(&j.notes), "not divisible"));
    cr_assert_eq(cv_convert(&j, NULL, &e), 0, "%s", e.text);
    /* 48 and 24 divide; q, k, v, o, down (64, 32 rows) do not */
    cr_expect_eq(j.parts[1].fallback_tensors, 10);
    cr_expect_eq(j.parts[2].fallback_tensors, 1);
    cr_expect(strstr(buf_text(&j.notes), "32 rows are not divisible by a "
                                         "group of 24, using 16"),
              "%s", buf_text(&j.notes));
    cr_expect(strstr(buf_text(&j.notes), "61 rows are not divisible by a "
                                         "group of 8, using 1 (small"));
    cr_expect_eq(j.parts[1].palettized, j.parts[1].weights);
    cr_expect_eq(j.parts[2].palettized, 61 * 32);
    cv_job_close(&j);
    o.strict = true;
    expect_failure(&o, ERR_UNSUPPORTED, "--strict refuses the fallback");
}

Test(convert, every_width_and_group)
{
    static const int bits[] = { 1, 2, 3, 4, 6, 8 };
    static const uint64_t groups[] = { 0, 1, 8, 32, 4096 };
    struct t_model m = t_model_tiny("llama");

    t_model_write(&m, "m");
    for (size_t b = 0; b < 6; b++)
        for (size_t g = 0; g < 5; g++) {
            struct cv_options o = t_conv_options("m");
            struct err e = ERR_INIT;

            o.lut_ffn = o.lut_head = o.lut_embeddings =
                (struct cv_lut){ bits[b], groups[g] };
            t_conv_run(&o, "out");
            cr_assert_eq(io_remove_tree(t_conv_path("out"), &e), 0);
        }
}

/* ---- through the gate ---- */

static int run_gate(void *cookie, const char *dir, bool *keep, struct err *e)
{
    struct gate_options *g = cookie;
    struct gate_result r;

    g->package = dir;
    if (gate_run(g, &r, e))
        return -1;
    *keep = r.verdict == GATE_PASS;
    if (!*keep)
        cr_log_error("%s", r.reason);
    return 0;
}

/* Converts without compression and demands a PASS in float32. */
static void expect_pass(const struct t_model *m, int lut)
{
    struct gate_options g = { .profile = RUN_F32 };
    struct cv_verify v = { run_gate, &g };
    struct cv_options o;
    struct err e = ERR_INIT;
    struct cv_job j;

    t_model_write(m, "m");
    o = t_conv_options("m");
    o.lut_ffn.bits = o.lut_head.bits = lut;
    o.output = t_conv_path("gated");
    cr_assert_eq(cv_job_open(&j, &o, false, &e), 0, "%s", e.text);
    g.ckpt = &j.ckpt;
    cr_expect_eq(cv_convert(&j, &v, &e), 0, "%s", e.text);
    cr_expect(io_exists(t_conv_path("gated")), "the gate failed");
    cv_job_close(&j);
    cr_assert_eq(io_remove_tree(t_conv_path("gated"), &e), 0);
}

Test(convert, biases_of_every_projection)
{
    struct t_model m = t_model_tiny("llama");

    m.attention_bias = true;
    expect_pass(&m, 0);
    m.mlp_bias = true;
    expect_pass(&m, 0);
    expect_pass(&m, 8);
    m.attention_bias = false;
    expect_pass(&m, 0);
    m = t_model_tiny("qwen3");
    m.attention_bias = true;
    expect_pass(&m, 0);
}

Test(convert, ties_in_every_form)
{
    struct t_model m = t_model_tiny("qwen3");

    expect_pass(&m, 0);
    m.head = true; /* a copy of the embedding, which the tie makes idle */
    expect_pass(&m, 0);
    m.tied = false;
    expect_pass(&m, 0);
}

Test(convert, odd_shapes)
{
    struct t_model m = t_model_tiny("qwen3");

    m.vocab = 61;
    m.hidden = 48;
    m.inter = 72;
    m.heads = 3;
    m.kv = 1;
    m.head_dim = 32;
    m.layers = 3;
    m.dtype = ST_F32;
    m.tied = false;
    expect_pass(&m, 0);
    m.kv = 3;
    m.layers = 1;
    m.dtype = ST_F16;
    expect_pass(&m, 8);
}

Test(convert, tie_by_option)
{
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;
    struct err e = ERR_INIT;
    char *text, *p;

    t_model_write(&m, "a/m");
    t_model_write(&m, "b/m");
    text = t_conv_text("b/m/config.json", NULL);
    p = strstr(text, "embeddings\": true");
    cr_assert_not_null(p);
    memcpy(p, "embeddings\":false", 17);
    t_conv_put("b/m/config.json", text);
    mem_free(text);
    o = t_conv_options("b/m");
    expect_failure(&o, ERR_INPUT, "--tie");
    o.tie = true;
    t_conv_run(&o, "forced");
    o = t_conv_options("a/m");
    t_conv_run(&o, "tied");
    expect_same("tied", "forced", "config.json");
    (void)e;
}
