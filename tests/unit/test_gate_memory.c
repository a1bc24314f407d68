/*
 * The gate's memory: what does not fit is read again, with the same results,
 * and its peak follows neither layers nor experts.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/compiler.h"
#include "converter/base/io.h"
#include "converter/gate.h"
#include "converter/synth.h"
#include "t_conv.h"

TestSuite(gate_memory, .fini = t_conv_clean);

struct shape {
    const char *arch;
    uint64_t layers, experts;
    int bits;
    uint64_t keep_bytes;
};

/* A checkpoint "m" and its package "p". */
static void make(const struct shape *s)
{
    struct synth_options so = { .arch = s->arch,
                                .like = "tiny",
                                .seed = 1,
                                .layers = s->layers,
                                .experts = s->experts };
    struct err e = ERR_INIT;
    struct cv_options o;

    cr_assert_eq(io_remove_tree(t_conv_path("m"), &e), 0, "%s", e.text);
    cr_assert_eq(io_remove_tree(t_conv_path("p"), &e), 0, "%s", e.text);
    cr_assert_eq(synth_make(&so, t_conv_path("m"), &e), 0, "%s", e.text);
    o = t_conv_options("m");
    o.lut_ffn.bits = o.lut_head.bits = s->bits;
    t_conv_run(&o, "p");
}

static int judge(const struct shape *s, struct gate_result *r, struct err *e)
{
    struct gate_options g = { .package = t_conv_path("p"),
                              .profile = RUN_F32,
                              .keep_bytes = s->keep_bytes,
                              .par = par_new(2, e) };
    struct ckpt c;
    int rc = -1;

    if (!g.par || ckpt_open(&c, t_conv_path("m"), 0, e))
        return -1;
    g.ckpt = &c;
    rc = gate_run(&g, r, e);
    ckpt_close(&c);
    par_free(g.par);
    return rc;
}

static void same_results(const char *arch, int bits)
{
    struct shape s = { .arch = arch, .bits = bits };
    struct gate_result kept, read;
    struct err e = ERR_INIT;

    make(&s);
    cr_assert_eq(judge(&s, &kept, &e), 0, "%s", e.text);
    s.keep_bytes = 1;
    cr_assert_eq(judge(&s, &read, &e), 0, "%s", e.text);
    cr_expect_eq((int)kept.verdict, (int)GATE_PASS, "%s", kept.reason);
    cr_expect_eq((int)read.verdict, (int)GATE_PASS, "%s", read.reason);
    cr_assert_eq(kept.n_checks, read.n_checks);
    for (int i = 0; i < kept.n_checks; i++)
        cr_expect(kept.checks[i].value == read.checks[i].value,
                  "%s, %d bits: %s", arch, bits, kept.checks[i].name);
    cr_expect(kept.loss.kl_mean == read.loss.kl_mean);
    cr_expect(kept.max_abs_logit == read.max_abs_logit);
}

Test(gate_memory, results_do_not_depend_on_what_stays)
{
    same_results("qwen3", 6);
    same_results("qwen3_5", 0);
    same_results("qwen3_5_moe", 4);
}

#if !defined(HAVE_ASAN)
static int judge_shape(const void *arg)
{
    struct gate_result r;
    struct err e = ERR_INIT;

    return judge(arg, &r, &e);
}

static uint64_t peak(const char *arch, uint64_t layers, uint64_t experts)
{
    struct shape s = { arch, layers, experts, 6, 1 };

    make(&s);
    return t_conv_peak(judge_shape, &s);
}

/* Held in memory, the weights of 384 experts more would take 18 MB in half
 * precision, and those of eight layers more with 200 experts 18 MB too. Wide
 * activations (6 MB) and the programs of layers (7 MB) do count. */
Test(gate_memory, the_peak_follows_neither_layers_nor_experts, .timeout = 120)
{
    uint64_t few = peak("qwen3_5_moe", 4, 16);
    uint64_t many = peak("qwen3_5_moe", 4, 400);

    cr_expect_leq(many, few + 9000000, "16 experts: %" PRIu64 ", 400: %" PRIu64,
                  few, many);
    few = peak("qwen3_5_moe", 4, 200);
    many = peak("qwen3_5_moe", 12, 200);
    cr_expect_leq(many, few + 12000000, "4 layers: %" PRIu64 ", 12: %" PRIu64,
                  few, many);
}
#endif
