/*
 * What makes some weights of a checkpoint count more: importance files and
 * calibration tokens, from the file to the package.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/calib.h"
#include "converter/gate.h"
#include "converter/importance.h"
#include "schema/blob.h"
#include "t_conv.h"

TestSuite(quant_guides, .fini = t_conv_clean);

/* ---- importance files ---- */

typedef float value_fn(const char *tensor, uint64_t elem, float weight);

static float size_of(const char *tensor, uint64_t elem, float weight)
{
    (void)tensor;
    (void)elem;
    return fabsf(weight);
}

static float alike(const char *tensor, uint64_t elem, float weight)
{
    (void)tensor;
    (void)elem;
    (void)weight;
    return 0.25f;
}

/* NAME.safetensors: fn of every tensor of a checkpoint, but `without`. */
static const char *importance_file(const char *model, const char *name,
                                   enum st_dtype dtype, value_fn *fn,
                                   const char *without)
{
    static char path[600];
    struct err e = ERR_INIT;
    struct st *st = st_open(t_conv_path(model), &e);
    struct st_writer *w = st_writer_new(&e);

    cr_assert(st && w, "%s", e.text);
    snprintf(path, sizeof(path), "%s.safetensors", t_conv_path(name));
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < st_count(st); i++) {
            const struct st_tensor *t = st_at(st, i);
            float x[256];
            f16_t h[256];

            if (without && strstr(t->name, without))
                continue;
            if (!pass) {
                cr_assert_eq(st_writer_add(w, t->name, dtype, t->rank, t->dims,
                                           &e),
                             0);
                continue;
            }
            for (uint64_t at = 0; at < t->elems; at += 256) {
                size_t n = t->elems - at < 256 ? (size_t)(t->elems - at) : 256;

                cr_assert_eq(st_read_f32(st, t, at, n, x, &e), 0);
                for (size_t k = 0; k < n; k++)
                    x[k] = fn(t->name, at + k, x[k]);
                num_f32_to_f16(h, x, n);
                cr_assert_eq(st_writer_write(w, dtype == ST_F16 ? (void *)h : x,
                                             n * (dtype == ST_F16 ? 2 : 4), &e),
                             0);
            }
        }
        if (!pass)
            cr_assert_eq(st_writer_begin(w, path, &e), 0, "%s", e.text);
    }
    cr_assert_eq(st_writer_finish(w, &e), 0, "%s", e.text);
    st_writer_free(w);
    st_close(st);
    return path;
}

static void write_tokens(const char *name, int rows, int cols, int step)
{
    char text[20000];
    size_t n = 0;

    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%d%c",
                                  (r * 31 + c * c * 7 + c * step) % 64,
                                  c + 1 == cols ? '\n' : ' ');
    t_conv_put(name, text);
}

/* Every matrix of a job's programs: fn sees its constant. */
static size_t each_matrix(struct cv_job *j,
                          void (*fn)(struct cv_job *j,
                                     const struct mil_data *d))
{
    struct err e = ERR_INIT;
    size_t n = 0;

    for (size_t i = 0; i < j->n_parts; i++) {
        struct cv_program p;
        struct cv_lut lut = j->parts[i].asked;

        /* Unpalettized, the matrices stand in the program themselves. */
        j->parts[i].asked.bits = 0;
        cr_assert_eq(cv_build_part(j, &j->parts[i], &p, &e), 0, "%s", e.text);
        j->parts[i].asked = lut;
        for (size_t k = 0; k < p.program->functions[0]->n_ops; k++) {
            const struct mil_function *f = p.program->functions[0];
            const struct mil_const *c =
                f->ops[k].n_outs ? mil_value(f, f->ops[k].outs[0])->konst
                                 : NULL;

            if (!c || !c->data ||
                (c->data->role != MIL_ROLE_PROJECTION &&
                 c->data->role != MIL_ROLE_HEAD))
                continue;
            fn(j, c->data);
            n++;
        }
        cv_program_release(&p);
    }
    return n;
}

static void open_job(struct cv_job *j, struct cv_options *o)
{
    struct err e = ERR_INIT;

    cr_assert_eq(cv_job_open(j, o, false, &e), 0, "%s", e.text);
}

static void check_mapping(struct cv_job *j, const struct mil_data *d)
{
    struct err e = ERR_INIT;
    struct weight_raw raw;
    uint16_t *bits;
    float *imp;

    cr_assert(weights_raw(d, &raw));
    bits = mem_alloc((size_t)(raw.rows * raw.cols), sizeof(*bits), &e);
    imp = mem_alloc((size_t)(raw.rows * raw.cols), sizeof(*imp), &e);
    cr_assert(bits && imp);
    cr_assert_eq(importance_check(j->importance, d, &e), 0, "%s", e.text);
    cr_assert_eq(weights_raw_rows(d, 0, raw.rows, bits, &e), 0);
    /* In two goes, of which the second begins inside. */
    cr_assert_eq(importance_rows(j->importance, d, 0, 1, imp, &e), 0);
    cr_assert_eq(importance_rows(j->importance, d, 1, raw.rows - 1,
                                 imp + raw.cols, &e),
                 0);
    for (uint64_t i = 0; i < raw.rows * raw.cols; i++)
        cr_assert_eq(imp[i],
                     fabsf(raw.is_bf16 ? bf16_to_f32(bits[i])
                                       : f16_to_f32(bits[i])),
                     "tensor '%s', element %d", raw.tensor, (int)i);
    mem_free(bits);
    mem_free(imp);
}

/* Row choice, stacked and widened experts: importances go where weights go. */
static void mapping_of(const char *arch, const char *like, size_t matrices)
{
    struct cv_options o;
    struct cv_job j;

    t_conv_synth(arch, like, "m");
    o = t_conv_options("m");
    o.importance = importance_file("m", "imp", ST_F32, size_of, NULL);
    open_job(&j, &o);
    cr_assert_geq(each_matrix(&j, check_mapping), matrices);
    cv_job_close(&j);
}

Test(quant_guides, importances_lie_where_the_weights_lie)
{
    mapping_of("qwen3", "tiny", 20);
}

Test(quant_guides, importances_are_what_a_cache_goes_by)
{
    static char cache[600];
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    snprintf(cache, sizeof(cache), "%s", t_conv_path("cache"));
    o.importance = importance_file("m", "imp", ST_F32, size_of, NULL);
    t_conv_run(&o, "plain");
    o.cache = cache;
    t_conv_run(&o, "first");
    t_conv_run(&o, "second");
    cr_expect_str_eq(t_conv_differ("plain", "first", NULL), "");
    cr_expect_str_eq(t_conv_differ("plain", "second", NULL), "");
    o.importance = importance_file("m", "imp2", ST_F32, alike, NULL);
    t_conv_run(&o, "alike");
    o.cache = NULL;
    t_conv_run(&o, "alike_plain");
    cr_expect_str_eq(t_conv_differ("alike", "alike_plain", NULL), "");
    cr_expect_str_neq(t_conv_differ("alike", "plain", NULL), "");
}

Test(quant_guides, and_in_hybrid_models_and_experts)
{
    mapping_of("qwen3_5_moe", "tiny", 20);
}

Test(quant_guides, importances_alike_change_nothing)
{
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    o.lut_embeddings = (struct cv_lut){ 3, 8 };
    t_conv_run(&o, "plain");
    o.importance = importance_file("m", "imp", ST_F16, alike, "norm");
    t_conv_run(&o, "weighted");
    /* The method is told in the programs; the weight files are the same. */
    for (int i = 0; i < 3; i++) {
        static const char *const parts[] = { "embeddings_lut3",
                                             "FFN_PF_lut4_chunk_01of01",
                                             "lm_head_lut4" };
        char a[300], b[300], *ta, *tb;
        size_t na, nb;

        snprintf(a, sizeof(a),
                 "plain/qwen_%s.mlpackage/Data/com.apple.CoreML/weights/"
                 "weight.bin",
                 parts[i]);
        snprintf(b, sizeof(b),
                 "weighted/qwen_%s.mlpackage/Data/com.apple.CoreML/weights/"
                 "weight.bin",
                 parts[i]);
        ta = t_conv_text(a, &na);
        tb = t_conv_text(b, &nb);
        cr_assert_eq(na, nb);
        cr_assert_eq(memcmp(ta, tb, na), 0, "%s", parts[i]);
        mem_free(ta);
        mem_free(tb);
    }
}

static float negative(const char *tensor, uint64_t elem, float weight)
{
    (void)weight;
    return strstr(tensor, "layers.1.mlp.up_proj") && elem == 100 ? -1 : 1;
}

static float not_a_number(const char *tensor, uint64_t elem, float weight)
{
    (void)weight;
    return strstr(tensor, "layers.0.mlp.down_proj") && elem == 49 ? NAN : 1;
}

static float infinite(const char *tensor, uint64_t elem, float weight)
{
    (void)weight;
    return strstr(tensor, "o_proj") && elem == 3 ? INFINITY : 1;
}

static float zeros(const char *tensor, uint64_t elem, float weight)
{
    (void)weight;
    (void)elem;
    return strstr(tensor, "layers.1.self_attn.k_proj") ? 0 : 1;
}

/* Refused with these words; no output appears. */
static void refused(const struct cv_options *o, const char *word,
                    const char *word2)
{
    struct err e = ERR_INIT;

    cr_assert_eq(t_conv_try(o, "out", &e), -1, "'%s' was expected", word);
    cr_assert_not_null(strstr(e.text, word), "%s", e.text);
    cr_assert_not_null(strstr(e.text, word2), "%s", e.text);
    cr_assert_eq(strstr(t_conv_list("."), "out"), NULL);
}

Test(quant_guides, importance_files_that_are_refused)
{
    struct t_model m = t_model_tiny("qwen3"), wide = m;
    struct cv_options o;

    t_model_write(&m, "m");
    wide.inter = 64;
    t_model_write(&wide, "wide");
    o = t_conv_options("m");
    o.importance = importance_file("m", "a", ST_F32, negative, NULL);
    refused(&o, "layers.1.mlp.up_proj.weight', row 3, column 4 is -1",
            "not negative");
    o.importance = importance_file("m", "a", ST_F32, not_a_number, NULL);
    refused(&o, "layers.0.mlp.down_proj.weight', row 1, column 1 is", "finite");
    o.importance = importance_file("m", "a", ST_F32, infinite, NULL);
    refused(&o, "o_proj.weight', row 0, column 3 is inf", "finite");
    o.importance = importance_file("m", "a", ST_F32, zeros, NULL);
    refused(&o, "layers.1.self_attn.k_proj.weight' is all zero", "importance");
    o.importance = importance_file("m", "a", ST_F32, alike, "gate_proj");
    refused(&o, "has no tensor 'model.layers.0.mlp.gate_proj.weight'",
            "palettized");
    o.importance = importance_file("wide", "a", ST_F32, alike, NULL);
    refused(&o, "gate_proj.weight' has shape [64, 32], the weights [48, 32]",
            "importance");
    o.importance = t_conv_path("m/config.json");
    refused(&o, "--importance", "config.json");
    o.gptq = true;
    refused(&o, "--method gptq", "--calib");
    o.gptq = false;
    o.importance = t_conv_path("absent.safetensors");
    refused(&o, "--importance", "absent.safetensors");
    o.calib = t_conv_path("tokens");
    refused(&o, "--importance and --calib", "one of them");
}

/* What is not palettized needs no importance. */
Test(quant_guides, only_palettized_tensors_need_importances)
{
    struct t_model m = t_model_tiny("llama");
    struct cv_options o;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    o.lut_head.bits = 0;
    o.importance = importance_file("m", "a", ST_F32, size_of, "embed_tokens");
    t_conv_run(&o, "out");
}

/* ---- calibration ---- */

static struct calib *calib;

static void check_calibrated(struct cv_job *j, const struct mil_data *d)
{
    const struct need *nd = weights_need(d);
    uint64_t width = nd->dims[nd->rank - 1], run;
    struct err e = ERR_INIT;
    struct weight_raw raw;
    float *imp;

    (void)j;
    cr_assert(weights_raw(d, &raw));
    imp = mem_alloc((size_t)(raw.rows * raw.cols), sizeof(*imp), &e);
    cr_assert_not_null(imp);
    cr_assert_eq(calib_rows(calib, d, 0, raw.rows, imp, &e), 0, "%s", e.text);
    for (uint64_t i = 0; i < raw.rows * raw.cols; i += 7) {
        uint64_t at = weights_place(d, i, &run);
        const struct moment *m;
        double mean = 0, want;

        cr_assert_eq(calib_moment(calib, d->origin->tensor, at / width, &m, &e),
                     0);
        if (!m) {
            cr_assert_eq(imp[i], 0);
            continue;
        }
        cr_assert_eq(m->width, width);
        for (size_t k = 0; k < width; k++)
            mean += m->diag[k] / (double)width;
        want = (0.95 * m->diag[at % width] + 0.05 * mean) * (double)m->tokens /
               (double)calib_tokens(calib);
        cr_assert_leq(fabs((double)imp[i] - want), 1e-6 * want,
                      "tensor '%s', element %d", raw.tensor, (int)i);
    }
    mem_free(imp);
}

/* Forwards, then backwards: the reference begins anew. */
static void calibrated(const char *arch, const char *like)
{
    struct calib_options co = { 0 };
    struct err e = ERR_INIT;
    struct cv_options o;
    struct cv_job j;
    const struct moment *first, *again;
    double d0;

    t_conv_synth(arch, like, "m");
    write_tokens("tokens", 3, 40, 1);
    o = t_conv_options("m");
    open_job(&j, &o);
    co.tokens = t_conv_path("tokens");
    calib = calib_open(&j.ckpt, &co, &e);
    cr_assert_not_null(calib, "%s", e.text);
    cr_assert_eq(calib_tokens(calib), 120);
    cr_assert_eq(calib_moment(calib, "embed_tokens.weight", 0, &first, &e), 0);
    cr_assert_null(first);
    cr_assert_gt(each_matrix(&j, check_calibrated), 10);
    cr_assert_eq(calib_moment(calib, "lm_head.weight", 3, &first, &e), 0);
    cr_assert_not_null(first);
    d0 = first->diag[1];
    cr_assert_gt(each_matrix(&j, check_calibrated), 10);
    cr_assert_eq(calib_moment(calib, "lm_head.weight", 3, &again, &e), 0);
    cr_assert_eq(again->diag[1], d0);
    calib_close(calib);
    cv_job_close(&j);
}

Test(quant_guides, calibration_of_projections_and_head)
{
    calibrated("llama", "tiny");
}

Test(quant_guides, calibration_of_experts)
{
    calibrated("qwen3_5_moe", "tiny");
}

/* The damping of the first layer's queries, as a share of the mean diagonal. */
static double share_of(const struct ckpt *c, const char *tokens)
{
    struct calib_options co = { .tokens = t_conv_path(tokens), .full = true };
    struct err e = ERR_INIT;
    struct calib *from = calib_open(c, &co, &e);
    const char *name = "layers.0.self_attn.q_proj.weight";
    const struct qz_moment *m;
    const struct moment *of;
    double mean = 0, share;

    cr_assert_not_null(from, "%s", e.text);
    cr_assert_eq(calib_feedback(from, name, 0, &m, &e), 0, "%s", e.text);
    cr_assert_eq(calib_moment(from, name, 0, &of, &e), 0);
    cr_assert(m && of);
    for (size_t j = 0; j < m->width; j++)
        mean += of->diag[j] / (double)m->width;
    share = m->damping / mean;
    calib_close(from);
    return share;
}

Test(quant_guides, contexts_are_judged_by_each_other)
{
    struct cv_options o;
    struct cv_job j;

    t_conv_synth("llama", "tiny", "m");
    write_tokens("one", 1, 40, 1);
    write_tokens("three", 3, 40, 1);
    o = t_conv_options("m");
    open_job(&j, &o);
    cr_assert_float_eq(share_of(&j.ckpt, "one"), 0.01, 1e-5);
    cr_assert_gt(share_of(&j.ckpt, "three"), 0.015);
    cv_job_close(&j);
}

Test(quant_guides, calibrated_packages)
{
    struct t_model m = t_model_tiny("qwen3");
    struct err e = ERR_INIT;
    struct cv_options o;

    t_model_write(&m, "m");
    write_tokens("tokens", 4, 60, 1);
    write_tokens("other", 4, 60, 3);
    o = t_conv_options("m");
    t_conv_run(&o, "plain/p");
    o.calib = t_conv_path("tokens");
    t_conv_run(&o, "a/p");
    cr_assert_str_neq(t_conv_differ("plain", "a", NULL), "");
    for (int threads = 1; threads <= 3; threads += 2)
        for (int level = 0; level < 2; level++) {
            o.par = par_new(threads, &e);
            cpu_mask(level ? ~0u : 0);
            t_conv_run(&o, "b/p");
            cpu_mask(~0u);
            par_free(o.par);
            cr_assert_str_eq(t_conv_differ("a", "b", NULL), "",
                             "%d threads, level %d", threads, level);
            cr_assert_eq(io_remove_tree(t_conv_path("b"), &e), 0);
        }
    o.par = NULL;
    o.calib = t_conv_path("other");
    t_conv_run(&o, "c/p");
    cr_assert_str_neq(t_conv_differ("a", "c", NULL), "");
}

/* ---- error feedback ---- */

static enum gate_verdict judge(const char *model, const char *dir,
                               struct gate_result *r)
{
    struct err e = ERR_INIT;
    struct ckpt c;
    struct gate_options g = { .package = t_conv_path(dir),
                              .ckpt = &c,
                              .profile = RUN_F32 };

    cr_assert_eq(ckpt_open(&c, t_conv_path(model), 0, &e), 0, "%s", e.text);
    cr_assert_eq(gate_run(&g, r, &e), 0, "%s", e.text);
    ckpt_close(&c);
    return r->verdict;
}

Test(quant_guides, fed_packages)
{
    struct t_model m = t_model_tiny("qwen3");
    struct err e = ERR_INIT;
    struct gate_result r;
    struct cv_options o;

    t_model_write(&m, "m");
    write_tokens("tokens", 4, 60, 1);
    o = t_conv_options("m");
    o.calib = t_conv_path("tokens");
    t_conv_run(&o, "calib/p");
    o.gptq = true;
    t_conv_run(&o, "a/p");
    cr_assert_str_neq(t_conv_differ("calib", "a", NULL), "");
    cr_assert_eq(judge("m", "a/p", &r), GATE_PASS, "%s", r.reason);
    cr_assert_gt(r.weights.excess, 1);
    for (int threads = 1; threads <= 3; threads += 2)
        for (int level = 0; level < 2; level++) {
            o.par = par_new(threads, &e);
            cpu_mask(level ? ~0u : 0);
            t_conv_run(&o, "b/p");
            cpu_mask(~0u);
            par_free(o.par);
            cr_assert_str_eq(t_conv_differ("a", "b", NULL), "",
                             "%d threads, level %d", threads, level);
            cr_assert_eq(io_remove_tree(t_conv_path("b"), &e), 0);
        }
}

/* Rows that choose from blocks, stacked experts, experts side by side. */
Test(quant_guides, fed_packages_of_experts)
{
    struct gate_result r;
    struct cv_options o;

    t_conv_synth("qwen3_5_moe", "tiny", "m");
    write_tokens("tokens", 4, 60, 1);
    o = t_conv_options("m");
    o.calib = t_conv_path("tokens");
    o.gptq = true;
    o.lut_ffn.bits = o.lut_head.bits = 6; /* random weights bear no less */
    t_conv_run(&o, "p");
    cr_assert_eq(judge("m", "p", &r), GATE_PASS, "%s", r.reason);
    cr_assert_gt(r.weights.excess, 1);
}

/* Where the codes of the file's first matrix are. */
static uint64_t codes_of(const char *file)
{
    struct blob_reader r = BLOB_READER_INIT;
    struct blob_record rec;
    struct err e = ERR_INIT;
    uint64_t next = 0;

    cr_assert_eq(blob_open(&r, t_conv_path(file), &e), 0, "%s", e.text);
    do
        cr_assert_eq(blob_next(&r, &next, &rec, &e), 1, "%s", e.text);
    while (rec.dtype != MIL_U4);
    blob_close(&r);
    return rec.data;
}

/* The oracle on decoded weights shares a wrong code: the comparison of
 * weights sees it. */
Test(quant_guides, the_gate_sees_codes_that_no_feedback_gives)
{
    const char *file = "p/qwen_FFN_PF_lut4_chunk_01of01.mlpackage/Data/"
                       "com.apple.CoreML/weights/weight.bin";
    struct t_model m = t_model_tiny("qwen3");
    struct gate_result r;
    struct cv_options o;
    size_t len;
    char *text;
    FILE *f;

    t_model_write(&m, "m");
    write_tokens("tokens", 4, 60, 1);
    o = t_conv_options("m");
    o.calib = t_conv_path("tokens");
    o.gptq = true;
    t_conv_run(&o, "p");
    text = t_conv_text(file, &len);
    memset(text + codes_of(file), 0, 500);
    f = fopen(t_conv_path(file), "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(text, 1, len, f), len);
    fclose(f);
    mem_free(text);
    cr_assert_eq(judge("m", "p", &r), GATE_FAIL);
    cr_assert_gt(r.weights.excess, GATE_EXCESS);
    cr_assert_not_null(strstr(r.reason, "weights_excess"), "%s", r.reason);
    cr_assert_not_null(strstr(r.reason, "layers.0."), "%s", r.reason);
}

/* ---- integers instead of tables ---- */

static const char *text_of(const char *file)
{
    static char kept[20000];
    char *text = t_conv_text(file, NULL);

    snprintf(kept, sizeof(kept), "%s", text);
    mem_free(text);
    return kept;
}

Test(quant_guides, linear_packages)
{
    static const struct {
        const char *text, *told;
    } forms[] = { { "int8", "quant_ffn: int8\n" },
                  { "int4,16", "quant_ffn: int4,16\n" },
                  { "int8,tensor", "quant_ffn: int8,tensor\n" },
                  { "int4", "quant_ffn: int4\n" },
                  { "int8,8", "quant_ffn: int8,8\n" } };
    struct t_model m = t_model_tiny("qwen3");
    struct err e = ERR_INIT;

    t_model_write(&m, "m");
    write_tokens("tokens", 4, 60, 1);
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct cv_options o = t_conv_options("m");
        struct gate_result r;

        cr_assert_eq(cv_quant_parse("--quant", forms[i].text, &o.lut_ffn, &e),
                     0, "%s", e.text);
        o.lut_head = o.lut_ffn;
        o.strict = true;
        o.calib = i % 2 ? t_conv_path("tokens") : NULL;
        t_conv_run(&o, "a/p");
        cr_assert_eq(judge("m", "a/p", &r), GATE_PASS, "%s: %s", forms[i].text,
                     r.reason);
        cr_assert(r.compressed);
        cr_assert_not_null(strstr(text_of("a/p/meta.yaml"), forms[i].told),
                           "%s", text_of("a/p/meta.yaml"));
        cr_assert_not_null(strstr(text_of("a/p/meta.yaml"), "lut_ffn: none"));
        o.par = par_new(3, &e);
        cpu_mask(0);
        t_conv_run(&o, "b/p");
        cpu_mask(~0u);
        par_free(o.par);
        cr_assert_str_eq(t_conv_differ("a", "b", NULL), "", "%s",
                         forms[i].text);
        cr_assert_eq(io_remove_tree(t_conv_path("a"), &e), 0);
        cr_assert_eq(io_remove_tree(t_conv_path("b"), &e), 0);
    }
}

Test(quant_guides, the_gate_sees_a_wrong_integer)
{
    const char *file = "p/qwen_FFN_PF_chunk_01of01.mlpackage/Data/"
                       "com.apple.CoreML/weights/weight.bin";
    struct t_model m = t_model_tiny("qwen3");
    struct blob_reader b = BLOB_READER_INIT;
    struct blob_record rec;
    struct err e = ERR_INIT;
    struct gate_result r;
    struct cv_options o;
    uint64_t next = 0;
    size_t len;
    char *text;
    FILE *f;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    cr_assert_eq(cv_quant_parse("--quant", "int8", &o.lut_ffn, &e), 0);
    t_conv_run(&o, "p");
    cr_assert_eq(blob_open(&b, t_conv_path(file), &e), 0, "%s", e.text);
    do
        cr_assert_eq(blob_next(&b, &next, &rec, &e), 1);
    while (rec.dtype != MIL_I8);
    blob_close(&b);
    text = t_conv_text(file, &len);
    text[rec.data + 77] = (char)(text[rec.data + 77] ^ 2);
    f = fopen(t_conv_path(file), "wb");
    cr_assert_eq(fwrite(text, 1, len, f), len);
    fclose(f);
    mem_free(text);
    cr_assert_eq(judge("m", "p", &r), GATE_FAIL);
    cr_assert_eq(r.weights.misplaced, 1);
}

Test(quant_guides, forms_of_linear_options)
{
    static const char *const bad[] = { "int6",     "8",       "int8,",
                                       "int8,0",   "int4,x",  "int4,-1",
                                       "int8,t,1", "int44",   "",
                                       "Int8",     "int8 ,8", "int4,9999999" };
    struct cv_lut l;
    struct err e = ERR_INIT;
    char text[32];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        err_reset(&e);
        cr_assert_eq(cv_quant_parse("--quant", bad[i], &l, &e), -1, "%s",
                     bad[i]);
        cr_assert_eq(e.code, ERR_USAGE);
        cr_assert_not_null(strstr(e.text, "--quant"));
    }
    cr_assert_eq(cv_quant_parse("--quant", "int4,32", &l, &e), 0);
    cr_assert(l.linear && l.bits == 4 && l.group == 32);
    cv_quant_text(&l, text);
    cr_assert_str_eq(text, "int4,32");
    cr_assert_eq(cv_quant_parse("--quant", "none", &l, &e), 0);
    cr_assert(!l.linear && !l.bits);
}

/* 32 columns do not take blocks of 24. */
Test(quant_guides, blocks_that_do_not_divide)
{
    struct t_model m = t_model_tiny("qwen3");
    struct err e = ERR_INIT;
    struct cv_options o;
    struct cv_job j;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    cr_assert_eq(cv_quant_parse("--quant", "int4,24", &o.lut_ffn, &e), 0);
    open_job(&j, &o);
    cr_assert_not_null(strstr(buf_text(&j.notes), "Neural Engine"));
    cv_job_close(&j);
    t_conv_run(&o, "p");
    o.strict = true;
    refused(&o, "32 columns are not divisible by the block of 24",
            "--strict refuses");
}

/* ---- widths under a budget ---- */

static double mixed_of(const char *meta)
{
    const char *at = strstr(text_of(meta), "lut_ffn_mixed: ");

    double v = 0;

    return at && num_parse_double(at + 15, strcspn(at + 15, "\n"), &v) ? v : 0;
}

Test(quant_guides, budgets)
{
    struct t_model m = t_model_tiny("qwen3");
    struct err e = ERR_INIT;
    struct gate_result r;
    struct cv_options o;
    struct cv_job j;
    double bits = 0, weights = 0;
    char out[600];

    /* Broad enough for tables to be small beside indices, and a head at the
     * cost of which all else could be wider. */
    m.hidden = 128;
    m.inter = 256;
    m.vocab = 8192;
    m.layers = 4;
    t_model_write(&m, "m");
    write_tokens("tokens", 4, 60, 1);
    o = t_conv_options("m");
    o.budget = 4.27;
    o.budget_widths = 1u << 2 | 1u << 4 | 1u << 6 | 1u << 8;
    snprintf(out, sizeof(out), "%s", t_conv_path("a/p"));
    o.output = out;
    for (int calib = 0; calib < 2; calib++) {
        o.calib = calib ? t_conv_path("tokens") : NULL;
        cr_assert_eq(cv_job_open(&j, &o, false, &e), 0, "%s", e.text);
        cr_assert_eq(cv_convert(&j, NULL, &e), 0, "%s", e.text);
        bits = weights = 0;
        for (size_t i = 1; i < j.n_parts; i++) {
            bits += (double)j.parts[i].stored_bits;
            weights += (double)j.parts[i].weights;
        }
        cr_assert_leq(bits, 4.27 * weights);
        cr_assert_gt(bits, 4.2 * weights);
        cr_assert_not_null(strstr(buf_text(&j.notes), "budget of 4.27 bits"));
        /* All could have 4 bits: only what was measured may have less. */
        cr_assert(calib ||
                      strstr(buf_text(&j.notes), "used, 0 tensors of 2 bits"),
                  "%s", buf_text(&j.notes));
        cv_job_close(&j);
        cr_assert_gt(mixed_of("a/p/meta.yaml"), 2);
        cr_assert_not_null(strstr(t_conv_list("a/p"), "FFN_PF_lut"));
        (void)judge("m", "a/p", &r); /* of 2 bits anything may be lost */
        cr_assert_eq(r.weights.misplaced, 0);
        cr_assert_eq(r.weights.missing, 0);
        o.par = par_new(3, &e);
        cpu_mask(0);
        t_conv_run(&o, "b/p");
        cpu_mask(~0u);
        par_free(o.par);
        o.par = NULL;
        cr_assert_str_eq(t_conv_differ("a", "b", "p/gate.json"), "");
        cr_assert_eq(io_remove_tree(t_conv_path("a"), &e), 0);
        cr_assert_eq(io_remove_tree(t_conv_path("b"), &e), 0);
    }
}

Test(quant_guides, budgets_that_are_refused)
{
    struct t_model m = t_model_tiny("qwen3");
    struct err e = ERR_INIT;
    struct cv_options o;
    struct cv_job j;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    o.budget = 3.9;
    refused(&o, "--budget 3.9", "widths of 4 to 8 bits");
    o.budget = 40;
    refused(&o, "--budget 40", "tables included");
    o.budget = 5;
    o.lut_ffn.bits = o.lut_head.bits = 0;
    refused(&o, "--budget", "nothing is palettized");
    cr_assert_eq(cv_quant_parse("--quant", "int8", &o.lut_ffn, &e), 0);
    refused(&o, "--budget", "--quant");
    o = t_conv_options("m");
    o.budget = 5;
    cr_assert_eq(cv_job_open(&j, &o, true, &e), -1);
    cr_assert_not_null(strstr(e.text, "--plan"), "%s", e.text);
}

Test(quant_guides, tokens_that_are_refused)
{
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    o.calib = t_conv_path("absent");
    refused(&o, "--calib", "absent");
    t_conv_put("tokens", "1 2 64\n");
    o.calib = t_conv_path("tokens");
    refused(&o, "token 2 is id 64", "--calib");
    t_conv_put("tokens", "\n");
    refused(&o, "holds no prompt", "--calib");
    write_tokens("tokens", 1, 129, 1);
    refused(&o, "129 tokens", "128 positions");
}

Test(quant_guides, tokens_in_the_output_are_safe)
{
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;
    struct err e = ERR_INIT;

    t_model_write(&m, "m");
    o = t_conv_options("m");
    t_conv_run(&o, "out");
    write_tokens("out/tokens", 1, 20, 1);
    o.force = true;
    o.calib = t_conv_path("out/tokens");
    cr_assert_eq(t_conv_try(&o, "out", &e), -1);
    cr_assert_not_null(strstr(e.text, "holds the input file"), "%s", e.text);
}
