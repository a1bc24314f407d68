/*
 * The range of a model's values: what is measured against what the reference
 * gives, which scale follows, and what is refused.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"
#include "converter/converter.h"
#include "models/fp16_range.h"
#include "models/models.h"
#include "t_conv.h"

TestSuite(fp16_range, .fini = t_conv_clean);

#define TOKENS 24

/* The model's weights, those of one tensor times a factor. */
struct bent {
    struct ckpt ckpt;
    const char *name;
    float factor;
};

static int bent_rows(void *cookie, const char *name, uint64_t row, uint64_t n,
                     float *dst, struct err *e)
{
    const struct bent *b = cookie;
    const struct need *need = ckpt_need(&b->ckpt, name);
    struct tensor_source src = ckpt_source(&b->ckpt);
    uint64_t cols = need->dims[need->rank - 1];

    if (src.rows(src.cookie, name, row, n, dst, e))
        return -1;
    for (uint64_t i = 0; !strcmp(name, b->name) && i < n * cols; i++)
        dst[i] *= b->factor;
    return 0;
}

static void open_bent(struct bent *b, const char *arch, const char *like,
                      const char *name, float factor)
{
    struct err e = ERR_INIT;

    t_conv_synth(arch, like, arch);
    cr_assert_eq(ckpt_open(&b->ckpt, t_conv_path(arch), 0, &e), 0, "%s",
                 e.text);
    b->name = name;
    b->factor = factor;
}

static struct range_report measure(struct bent *b, int threads)
{
    struct tensor_source src = { bent_rows, b };
    const int32_t ids[TOKENS] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    const int32_t *lists[1] = { ids };
    const size_t lengths[1] = { TOKENS };
    struct range_prompts p = { lists, lengths, 1 };
    struct err e = ERR_INIT;
    struct par *par = par_new(threads, &e);
    struct range_report r;

    cr_assert_eq(range_measure(&b->ckpt.hp, &src, &p, par, &r, &e), 0, "%s",
                 e.text);
    par_free(par);
    return r;
}

/* The greatest value of the streams between layers. */
static double greatest_hidden(struct bent *b)
{
    struct tensor_source src = { bent_rows, b };
    struct oracle_options opt = { .max_positions = TOKENS };
    const int32_t ids[TOKENS] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    struct err e = ERR_INIT;
    size_t n = (size_t)(b->ckpt.hp.layers * b->ckpt.hp.hidden) * TOKENS;
    float *h = mem_alloc(n + (size_t)b->ckpt.hp.hidden * TOKENS, sizeof *h, &e);
    struct oracle_out out = { .hidden = h };
    struct oracle *o = oracle_new(&b->ckpt.hp, &src, &opt, &e);
    double max = 0;

    cr_assert(h && o && !oracle_feed(o, ids, TOKENS, &out, &e), "%s", e.text);
    for (size_t i = 0; i < n; i++) /* all but the final norm */
        max = fmax(max, fabs((double)h[i]));
    oracle_free(o);
    mem_free(h);
    return max;
}

/* Streams inside layers may reach further than those between. */
Test(fp16_range, what_is_measured)
{
    static const char *const archs[][2] = {
        { "llama", "tiny" },       { "qwen3", "tiny" },
        { "qwen3_5", "tiny" },     { "gemma3", "tiny" },
        { "gemma4", "tiny" },      { "gemma4", "moe-odd" },
        { "qwen3_5_moe", "tiny" },
    };

    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        struct bent b;
        struct range_report one, two;
        double hidden;

        open_bent(&b, archs[i][0], archs[i][1], "", 1);
        one = measure(&b, 1);
        two = measure(&b, 3);
        hidden = greatest_hidden(&b);
        cr_expect(!memcmp(&one, &two, sizeof one), "%s: threads show",
                  archs[i][0]);
        cr_expect_eq(one.tokens, TOKENS);
        cr_expect(one.peak[RANGE_STREAM].value >= hidden &&
                      one.peak[RANGE_STREAM].value < 4 * hidden,
                  "%s: %g, between layers %g", archs[i][0],
                  one.peak[RANGE_STREAM].value, hidden);
        for (int k = 0; k < RANGE_KINDS; k++)
            cr_expect(one.peak[k].value > 0.01 && one.peak[k].value < 200,
                      "%s kind %d: %g", archs[i][0], k, one.peak[k].value);
        cr_expect(strstr(one.peak[RANGE_BRANCH].name, "layers."), "%s",
                  one.peak[RANGE_BRANCH].name);
        cr_expect(one.least_square > 0 && one.least_square < hidden * hidden);
        ckpt_close(&b.ckpt);
        t_conv_clean();
    }
}

/* A matrix times 2^12 is found under its own name. */
Test(fp16_range, one_matrix_stands_out)
{
    struct bent b;
    struct range_report r;

    open_bent(&b, "llama", "tiny", "layers.1.mlp.down_proj.weight", 4096);
    r = measure(&b, 2);
    cr_expect_eq(r.peak[RANGE_BRANCH].layer, 1);
    cr_expect_str_eq(r.peak[RANGE_BRANCH].name, b.name);
    cr_expect_gt(r.peak[RANGE_BRANCH].value, 1000);
    cr_expect_gt(r.peak[RANGE_STREAM].value, 1000);
    cr_expect_geq(r.peak[RANGE_STREAM].layer, 1);
    ckpt_close(&b.ckpt);
    t_conv_clean();
    /* behind a norm it does not reach the stream */
    open_bent(&b, "gemma3", "tiny", "layers.1.mlp.down_proj.weight", 4096);
    r = measure(&b, 2);
    cr_expect_str_eq(r.peak[RANGE_BRANCH].name, b.name);
    cr_expect_gt(r.peak[RANGE_BRANCH].value, 1000);
    cr_expect_lt(r.peak[RANGE_STREAM].value, 200);
    ckpt_close(&b.ckpt);
}

Test(fp16_range, what_is_not_a_number_is_infinite)
{
    struct bent b;
    struct range_report r;

    open_bent(&b, "qwen3", "tiny", "layers.0.mlp.up_proj.weight", NAN);
    r = measure(&b, 2);
    cr_expect_eq(r.peak[RANGE_MATRIX].value, INFINITY);
    cr_expect_eq(r.peak[RANGE_STREAM].value, INFINITY);
    ckpt_close(&b.ckpt);
}

/* ---- choosing ---- */

struct choice {
    int rc, exp;
    char text[2048];
};

static struct choice choose(bool scales, bool norms, enum range_kind kind,
                            double value)
{
    struct model_arch arch = { .name = "some",
                               .scales_stream = scales,
                               .norms_branches = norms };
    struct hparams hp = { .arch = &arch, .rms_eps = 1e-6 };
    struct range_report r = { .least_square = 1, .tokens = 32 };
    struct choice c = { .exp = 7 };
    struct buf notes = BUF_INIT;
    struct err e = ERR_INIT;

    for (int k = 0; k < RANGE_KINDS; k++)
        r.peak[k] = (struct range_peak){ .value = 1, .layer = 3 };
    r.peak[kind].value = value;
    c.rc = range_choose(&hp, &r, &c.exp, &notes, &e);
    snprintf(c.text, sizeof c.text, "%s%s", buf_text(&notes),
             c.rc ? e.text : "");
    buf_release(&notes);
    return c;
}

Test(fp16_range, the_scale_leaves_a_factor_of_four)
{
    static const struct {
        double stream;
        int exp;
    } want[] = {
        { 1, 0 },       { 16384, 0 },   { 16385, -1 },  { 32768, -1 },
        { 104086, -3 }, { 131072, -3 }, { 131073, -4 }, { 0x1p28, -14 },
    };

    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct choice c = choose(true, true, RANGE_STREAM, want[i].stream);

        cr_expect(!c.rc && c.exp == want[i].exp, "%g: %d, %s", want[i].stream,
                  c.exp, c.text);
        cr_expect_eq(strstr(c.text, "fp16 scale: ") != NULL, want[i].exp != 0);
    }
    /* no power of two that is allowed is small enough */
    cr_expect_eq(choose(true, true, RANGE_STREAM, 0x1p31).rc, -1);
    cr_expect_eq(choose(true, true, RANGE_STREAM, INFINITY).rc, -1);
}

Test(fp16_range, what_cannot_be_scaled)
{
    static const enum range_kind kinds[] = { RANGE_MATRIX, RANGE_PRODUCT,
                                             RANGE_SCORE };
    struct choice c;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        c = choose(true, true, kinds[i], 29000);
        cr_expect(!c.rc && !c.exp && !strstr(c.text, "warning"), "%s", c.text);
        c = choose(true, true, kinds[i], 40000);
        cr_expect(!c.rc && strstr(c.text, "warning: "), "%s", c.text);
        c = choose(true, true, kinds[i], 65505);
        cr_expect(c.rc && strstr(c.text, "65505 in layer 3") &&
                      strstr(c.text, "no scale of the graph"),
                  "%s", c.text);
    }
    /* ends of branches follow the stream unless they are normed */
    c = choose(true, false, RANGE_BRANCH, 80000);
    cr_expect(!c.rc && c.exp == -3, "%d %s", c.exp, c.text);
    cr_expect_eq(choose(true, true, RANGE_BRANCH, 80000).rc, -1);
    /* a graph that does not scale */
    c = choose(false, false, RANGE_STREAM, 40000);
    cr_expect(!c.rc && !c.exp && strstr(c.text, "warning: "), "%s", c.text);
    cr_expect_eq(choose(false, false, RANGE_STREAM, 70000).rc, -1);
}

Test(fp16_range, epsilon_scales_with_the_square_as_far_as_fp16_goes)
{
    cr_expect_eq(range_norm_eps(1e-6, 0), 1e-6);
    cr_expect_eq(range_norm_eps(1e-5, -3), 1e-5 / 64);
    cr_expect_eq(range_norm_eps(1e-6, -2), 1e-6 / 16);
    cr_expect_eq(range_norm_eps(1e-6, -3), 0x1p-24);
    cr_expect_eq(range_norm_eps(1e-6, -14), 0x1p-24);
    cr_expect(strstr(choose(true, true, RANGE_STREAM, 1e5).text, "2^-24"));
    cr_expect(!strstr(choose(true, true, RANGE_STREAM, 5e4).text, "2^-24"));
}

/* 1e-6 4^3 is the first that is no subnormal number of fp16. */
Test(fp16_range, epsilon_behind_a_matrix)
{
    static const struct {
        double eps, most;
        int exp;
    } want[] = {
        { 1e-6, 1, 3 },    { 1e-5, 1, 2 },    { 1e-4, 1, 0 }, { 1e-6, 2048, 3 },
        { 1e-6, 2049, 2 }, { 1e-6, 9000, 0 }, { 0, 1, 0 },
    };
    struct model_arch arch = { .norms_branches = true }, other = { 0 };

    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct hparams hp = { .arch = &arch, .rms_eps = want[i].eps };
        struct range_report r = { 0 };

        r.peak[i % 2 ? RANGE_MATRIX : RANGE_BRANCH].value = want[i].most;
        r.peak[RANGE_STREAM].value = 1e5;
        cr_expect_eq(range_norm_exp(&hp, &r), want[i].exp, "%g %g: %d",
                     want[i].eps, want[i].most, range_norm_exp(&hp, &r));
        hp.arch = &other;
        cr_expect_eq(range_norm_exp(&hp, &r), 0);
    }
    cr_expect_eq(range_norm_exp(&(struct hparams){ .arch = &arch,
                                                   .rms_eps = 1e-6 },
                                NULL),
                 3);
    cr_expect(strstr(choose(true, true, RANGE_STREAM, 1).text,
                     "times 2^3, folded exactly into the matrix, and their "
                     "epsilon is 6.4e-05"));
}

/* ---- options ---- */

Test(fp16_range, scales_in_words)
{
    static const struct {
        const char *text;
        int exp;
    } good[] = { { "1", 0 },
                 { "0.5", -1 },
                 { "0.125", -3 },
                 { "1.25e-1", -3 },
                 { "6.103515625e-05", -14 } };
    static const char *const bad[] = { "0",    "0.3",  "2",      "-0.5",
                                       "",     "1/8",  "nan",    "inf",
                                       "half", "0.5x", "0x1p-3", "3e-05" };
    struct cv_options o;
    struct err e = ERR_INIT;

    cv_options_init(&o);
    cr_expect(!o.scale_given);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_expect_eq(cv_scale_parse(good[i].text, &o, &e), 0, "%s", e.text);
        cr_expect(o.scale_given && o.stream_exp == good[i].exp, "%s",
                  good[i].text);
    }
    cr_expect_eq(cv_scale_parse("auto", &o, &e), 0);
    cr_expect(!o.scale_given);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err_reset(&e);
        cr_expect_eq(cv_scale_parse(bad[i], &o, &e), -1, "'%s'", bad[i]);
        cr_expect_eq((int)e.code, (int)ERR_USAGE);
        cr_expect(strstr(e.text, "power of two"), "%s", e.text);
    }
}

/* The conversion of a model that leaves fp16 is refused before it begins, and
 * goes through where the user insists. */
Test(fp16_range, a_model_that_no_scale_helps)
{
    struct t_model m = t_model_tiny("llama");
    struct cv_options o;
    struct err e = ERR_INIT;

    m.dtype = ST_F32;
    t_model_write(&m, "m");
    for (uint64_t i = 0; i < 48; i++)
        t_model_poke("m", "model.layers.1.mlp.up_proj.weight", 32 * i, 60000);
    o = t_conv_options("m");
    cr_expect_eq(t_conv_try(&o, "out", &e), -1);
    cr_expect_eq((int)e.code, (int)ERR_UNSUPPORTED);
    cr_expect(strstr(e.text, "fp16 range: ") && strstr(e.text, "layer 1"), "%s",
              e.text);
    cr_expect_str_eq(t_conv_list("."), "m");
    o.scale_given = true;
    err_reset(&e);
    cr_expect_eq(t_conv_try(&o, "out", &e), 0, "%s", e.text);
}
