/*
 * report.json against what was written: promises that are broken, figures
 * against a plain recomputation, rows of every constant.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/package_source.h"
#include "converter/report.h"
#include "schema/package.h"
#include "t_conv.h"

TestSuite(report, .fini = t_conv_clean);

/* Writes a part by one width and holds it against what another would be. */
static void promise(struct cv_lut written, struct cv_lut promised,
                    const char *says)
{
    struct cv_options o;
    struct err e = ERR_INIT;
    struct cv_program a, b;
    struct cv_part *part;
    struct report *r;
    struct pkg *pkg;
    struct cv_job j;
    int rc;

    if (!io_exists(t_conv_path("m")))
        t_conv_synth("qwen3", "tiny", "m");
    cr_assert_eq(io_remove_tree(t_conv_path("p.mlpackage"), &e), 0);
    cr_assert_eq(io_remove_tree(t_conv_path("report.json"), &e), 0);
    o = t_conv_options("m");
    cr_assert_eq(cv_job_open(&j, &o, false, &e), 0, "%s", e.text);
    part = &j.parts[1];
    part->asked = written;
    cr_assert_eq(cv_build_part(&j, part, &a, &e), 0, "%s", e.text);
    cr_assert_eq(pkg_write(t_conv_path("p.mlpackage"), a.program, NULL, NULL,
                           &e),
                 0, "%s", e.text);
    part->asked = promised;
    cr_assert_eq(cv_build_part(&j, part, &b, &e), 0, "%s", e.text);
    pkg = pkg_open_raw(t_conv_path("p.mlpackage"), &e);
    r = report_new(&j, t_conv_dir(), &e);
    cr_assert(pkg && r, "%s", e.text);
    rc = report_part(r, part, pkg, &b, &e);
    cr_expect_eq(rc, says ? -1 : 0, "%s", e.text);
    cr_expect(!says || (e.code == ERR_MISMATCH && strstr(e.text, says)),
              "'%s' lacks '%s'", e.text, says);
    report_free(r);
    pkg_close(pkg);
    cv_program_release(&a);
    cv_program_release(&b);
    cv_job_close(&j);
}

Test(report, promises_are_held_against_the_file)
{
    struct cv_lut four = { 4, 8, false }, six = { 6, 8, false };
    struct cv_lut wide = { 4, 16, false }, none = { 0, 8, false };
    struct cv_lut whole = { 4, 0, false }, int4 = { 4, CV_ROW, true };
    struct cv_lut int4_64 = { 4, 64, true };

    promise(four, four, NULL);
    promise(four, six, "promised 6 bits, the file holds 4");
    promise(four, wide,
            "promised 16 channels to a table or scale, the file "
            "holds 8");
    promise(wide, whole, "promised 0 channels");
    promise(four, none, "promised to be fp16, the file holds it as palettized");
    promise(none, four, "promised to be palettized, the file holds it as fp16");
    promise(int4, four, "the file holds it as linear");
    promise(int4, int4_64, "promised 64 channels");
}

/* Of one constant by the package's own decoder, value by value. */
static double recomputed(const struct package_source *src, size_t i,
                         const struct ckpt *c, double *energy)
{
    struct err e = ERR_INIT;
    struct source_piece p;
    double sse = 0;

    package_source_at(src, i, &p);
    *energy = 0;
    for (uint64_t el = 0; el < p.rows * p.cols; el++) {
        uint64_t run;
        float have, want;
        double x;

        cr_assert_eq(package_source_values(src, i, el, 1, &have, &e), 0);
        cr_assert_eq(need_read_f32(c->st, ckpt_need(c, p.tensor),
                                   source_locate(&p, el, &run), 1, &want, &e),
                     0, "%s", e.text);
        x = ldexp(source_fold(&p, (double)want), p.scale_exp);
        sse += (x - (double)have) * (x - (double)have);
        *energy += x * x;
    }
    return sse;
}

static void compare_rows(const char *arch, enum st_dtype dtype, bool linear)
{
    struct run_options f32 = { .profile = RUN_F32 };
    struct err e = ERR_INIT;
    struct report_file *f;
    struct package *p;
    struct package_source *src;
    struct cv_options o;
    struct ckpt c;
    size_t rows = 0;

    if (dtype == ST_F32) {
        struct t_model m = t_model_tiny(arch);

        m.dtype = dtype;
        t_model_write(&m, "m");
        for (uint64_t i = 0; i < 40; i++) /* what fp16 has not */
            t_model_poke("m", "model.layers.0.self_attn.q_proj.weight", i,
                         0.0123457f + 0.001f * (float)i);
    } else {
        t_conv_synth(arch, "tiny", "m");
    }
    o = t_conv_options("m");
    if (linear)
        o.lut_ffn = (struct cv_lut){ 4, 32, true };
    t_conv_run(&o, "p");
    f = report_open(t_conv_path("p"), &e);
    cr_assert_not_null(f, "%s", e.text);
    cr_assert_eq(ckpt_open(&c, t_conv_path("m"), 0, &e), 0, "%s", e.text);
    p = package_open(t_conv_path("p"), &f32, &e);
    cr_assert_not_null(p, "%s", e.text);
    src = package_source_open(p, &c, &e);
    cr_assert_not_null(src, "%s", e.text);
    for (size_t i = 0; i < package_source_count(src); i++) {
        struct source_piece piece;
        struct report_said said;
        double energy, sse = recomputed(src, i, &c, &energy);
        size_t found = 0;

        package_source_at(src, i, &piece);
        for (size_t k = 0; k < package_files(p); k++) {
            char part[200];

            snprintf(part, sizeof(part), "%s",
                     io_basename(pkg_path(package_file(p, k))));
            *strrchr(part, '.') = '\0';
            found += report_find(f, part, piece.name, &said);
        }
        cr_assert_eq(found, 1, "'%s' is in %zu rows", piece.name, found);
        rows++;
        cr_expect_leq(fabs(sse - said.sums.sse), 1e-9 * sse, "%s: %g, %g said",
                      piece.name, sse, said.sums.sse);
        cr_expect_eq(said.bits, (uint64_t)piece.bits);
        cr_expect(sse > 0
                      ? fabs(10 * log10(energy / sse) - said.sums.snr) < 0.0051
                      : isinf(said.sums.snr),
                  "%s: %g dB said", piece.name, said.sums.snr);
        cr_expect(said.bits == 16 ? said.rule && !said.method
                                  : said.method && !said.rule);
    }
    cr_expect_eq(rows, report_rows(f));
    package_source_close(src);
    package_close(p);
    ckpt_close(&c);
    report_close(f);
}

Test(report, figures_are_those_of_the_written_bytes)
{
    compare_rows("qwen3", ST_BF16, false);
}

Test(report, figures_of_float32_sources_are_not_of_their_rounding)
{
    compare_rows("llama", ST_F32, false);
}

Test(report, figures_of_integers)
{
    compare_rows("qwen3", ST_BF16, true);
}

Test(report, figures_of_folds_and_experts)
{
    compare_rows("qwen3_5_moe", ST_BF16, false);
}

static void rule_is(const char *tensor, const char *rule)
{
    cr_expect_str_eq(report_rule(tensor), rule, "%s: %s", tensor,
                     report_rule(tensor));
}

Test(report, rules_of_what_stays_fp16)
{
    rule_is("norm.weight", "norm");
    rule_is("layers.0.input_layernorm.weight", "norm");
    rule_is("layers.0.self_attn.q_norm.weight", "norm");
    rule_is("layers.0.linear_attn.conv1d.weight", "convolution");
    rule_is("layers.0.mlp.gate.weight", "router");
    rule_is("layers.0.mlp.shared_expert_gate.weight", "router");
    rule_is("layers.0.router.proj.weight", "router");
    rule_is("layers.0.self_attn.q_proj.bias", "bias");
    rule_is("layers.0.linear_attn.dt_bias", "bias");
    rule_is("layers.0.linear_attn.in_proj_a.weight", "small");
    rule_is("layers.0.layer_scalar", "small");
    rule_is("layers.0.per_layer_input_gate.weight", "per-layer input");
    rule_is("per_layer_model_projection.weight", "per-layer input");
}

/* Whatever it is: an error or rows, never a crash. */
Test(report, what_is_no_report)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"weights\": 3}",
        "{\"weights\": {\"a\": 1}}",
        "{\"weights\": [",
    };
    struct err e = ERR_INIT;
    struct report_said said;
    struct report_file *f;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        t_conv_put("r/report.json", texts[i]);
        err_reset(&e);
        cr_expect_null(report_open(t_conv_path("r"), &e), "'%s'", texts[i]);
        cr_expect(strstr(e.text, "report.json"), "%s", e.text);
    }
    err_reset(&e);
    t_conv_put("r/report.json",
               "{\"weights\": [null, 3, {}, {\"part\": \"p\", \"name\": 3},"
               " {\"part\": \"p\", \"name\": \"n\", \"bits\": -1, \"sse\": 0,"
               " \"group\": \"x\"}]}");
    f = report_open(t_conv_path("r"), &e);
    cr_assert_not_null(f, "%s", e.text);
    cr_expect(!report_find(f, "p", "q", &said));
    cr_assert(report_find(f, "p", "n", &said));
    cr_expect_eq(said.bits, UINT64_MAX);
    cr_expect_eq(said.group, UINT64_MAX);
    report_close(f);
    cr_expect_null(report_open(t_conv_path("nowhere"), &e));
    cr_expect_eq(e.code, ERR_OK);
}
