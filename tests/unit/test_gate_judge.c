/*
 * From figures to a verdict: limits, what softens them and what does not; and
 * the noise that they are softened by.
 */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "converter/base/num.h"
#include "converter/gate_judge.h"
#include "converter/gate_noise.h"
#include "t_gate.h"

/* Figures that pass in both profiles. */
static struct gate_result good(enum run_profile profile)
{
    struct gate_result r = { .profile = profile,
                             .judged = true,
                             .recurrent = true,
                             .bits = 16,
                             .ctx = 512,
                             .batch = 64,
                             .decode_steps = 512,
                             .crossed_batch = true,
                             .reached_end = true,
                             .max_abs_logit = 10 };

    r.bytes = (struct gate_compare){ .cosine_min = 0.999999,
                                     .psnr_min = 80,
                                     .top1_agreement_decided = 1,
                                     .finite = true };
    r.drift = (struct gate_drift){ { 1e-4, 1e-4, 1e-4, 1e-4 }, 512 };
    r.n_states = 1;
    r.states[0] = (struct gate_state){ "gdn", 1e-4, 1e-4, true };
    return r;
}

static void passes(struct gate_result r)
{
    gate_judge(&r);
    cr_expect_eq(r.verdict, GATE_PASS, "%s", r.reason);
    cr_expect_str_empty(r.reason);
    cr_expect(!gate_judge_asks_noise(&r));
}

static void fails(struct gate_result r, const char *check)
{
    gate_judge(&r);
    cr_expect_eq(r.verdict, GATE_FAIL, "%s", check);
    cr_expect(!strncmp(r.reason, check, strlen(check)), "%s, not %s", r.reason,
              check);
    cr_expect(!t_gate_check(&r, check)->pass);
}

Test(judge, good_figures)
{
    passes(good(RUN_F32));
    passes(good(RUN_FP16));
}

Test(judge, every_limit)
{
    static const enum run_profile both[] = { RUN_F32, RUN_FP16 };

    for (int i = 0; i < 2; i++) {
        struct gate_result r = good(both[i]);
        bool f32 = both[i] == RUN_F32;

        r.bytes.cosine_min = f32 ? 0.999989 : 0.9989;
        fails(r, "cosine_min");
        r = good(both[i]);
        r.bytes.top1_agreement_decided = 0.99;
        fails(r, "top1_agreement_decided");
        r = good(both[i]);
        r.prefill_infer_max_diff = f32 ? 1.1e-3 : 5.1e-2;
        fails(r, "prefill_infer_relative_diff");
        r = good(both[i]);
        r.states[0].prefill_infer = f32 ? 1.1e-3 : 5.1e-2;
        fails(r, "state_prefill_infer");
        r = good(both[i]);
        r.states[0].oracle = f32 ? 1.1e-3 : 5.1e-2;
        fails(r, "state_oracle");
        r = good(both[i]);
        r.drift.error[3] = f32 ? 8.1e-4 : 8.1e-3;
        fails(r, "drift");
        r = good(both[i]);
        r.decode_steps = 255;
        fails(r, "decode_steps");
        r = good(both[i]);
        r.embeddings = f32 ? 1.1e-5 : 1.1e-3;
        fails(r, "embeddings_distance");
        r = good(both[i]);
        r.bytes.finite = false;
        fails(r, "finite");
    }
}

Test(judge, psnr_in_f32_alone)
{
    struct gate_result r = good(RUN_F32);

    r.bytes.psnr_min = 69.9;
    fails(r, "psnr_min");
    r.profile = RUN_FP16;
    passes(r);
}

Test(judge, not_a_number_fails)
{
    struct gate_result r = good(RUN_F32);

    r.states[0].oracle = NAN;
    fails(r, "state_oracle");
    r = good(RUN_F32);
    r.states[0].prefill_infer = INFINITY;
    fails(r, "state_prefill_infer");
    r = good(RUN_F32);
    r.drift.error[0] = NAN;
    fails(r, "drift");
    r = good(RUN_F32);
    r.drift.error[3] = NAN;
    fails(r, "drift");
}

/* Errors of the profile's own size may be as they like. */
Test(judge, drift_of_next_to_nothing)
{
    struct gate_result r = good(RUN_FP16);

    r.drift.error[3] = 7e-3;
    passes(r);
    r.experts = true;
    r.drift.error[3] = 7e-2;
    passes(r);
    r.drift.error[3] = 9e-2;
    fails(r, "drift");
    r = good(RUN_F32);
    r.drift.error[0] = 0;
    r.drift.error[3] = 7e-7;
    passes(r);
    r.drift.error[3] = 9e-7;
    fails(r, "drift");
}

Test(judge, a_short_context_has_fewer_steps)
{
    struct gate_result r = good(RUN_F32);

    r.ctx = r.decode_steps = 64;
    passes(r);
    r.decode_steps = 63;
    fails(r, "decode_steps");
}

Test(judge, plain_packages_have_no_such_checks)
{
    struct gate_result r = good(RUN_F32);

    r.recurrent = false;
    r.decode_steps = 0;
    r.drift.error[3] = 1;
    r.states[0].oracle = 1;
    passes(r);
}

/* Another expert may be taken where two are almost equal. */
Test(judge, states_of_experts_in_half_precision)
{
    struct gate_result r = good(RUN_FP16);

    r.experts = true;
    r.states[0].prefill_infer = 0.4;
    passes(r);
    r.states[0].prefill_infer = 0.6;
    fails(r, "state_prefill_infer");
    r.states[0].prefill_infer = 0.4;
    r.profile = RUN_F32;
    fails(r, "state_prefill_infer");
}

Test(judge, narrower_is_unverified)
{
    struct gate_result r = good(RUN_F32);

    r.reached_end = false;
    gate_judge(&r);
    cr_expect_eq(r.verdict, GATE_UNVERIFIED);
    cr_expect(strstr(r.reason, "end of the context"), "%s", r.reason);
    r.bytes.cosine_min = 0;
    fails(r, "cosine_min"); /* that is worse */
}

/* ---- noise ---- */

static struct gate_noise noise_of(double cosine)
{
    return (struct gate_noise){ .draws = 1,
                                .cosine_min = cosine,
                                .cosine_mean = 0.99,
                                .kl_mean = 0.5,
                                .psnr_min = 30,
                                .top1_agreement_decided = 0.9,
                                .relative_diff = 0.1,
                                .state = 0.2 };
}

Test(noise, asked_for_where_it_may_help)
{
    struct gate_result r = good(RUN_FP16);

    r.bytes.cosine_min = 0.998;
    gate_judge(&r);
    cr_expect(gate_judge_asks_noise(&r));
    r.bytes.finite = false; /* nothing excuses that */
    gate_judge(&r);
    cr_expect(!gate_judge_asks_noise(&r));
    r = good(RUN_FP16);
    r.bytes.cosine_min = NAN;
    gate_judge(&r);
    cr_expect(!gate_judge_asks_noise(&r));
    r = good(RUN_FP16);
    r.drift.error[3] = 1;
    gate_judge(&r);
    cr_expect(!gate_judge_asks_noise(&r));
    r = good(RUN_FP16);
    r.bytes.cosine_min = 0.998;
    r.judged = false; /* no oracle, no noise */
    gate_judge(&r);
    cr_expect(!gate_judge_asks_noise(&r));
}

Test(noise, softens_what_is_not_met)
{
    struct gate_result r = good(RUN_FP16);

    r.bytes.cosine_min = 0.99;
    r.noise = noise_of(0.98);
    gate_judge(&r);
    cr_expect_eq(r.verdict, GATE_PASS, "%s", r.reason);
    cr_expect_eq(t_gate_check(&r, "cosine_min")->limit, 0.98);
    /* What is met keeps its limit. */
    cr_expect_eq(t_gate_check(&r, "top1_agreement_decided")->limit, 1);
    cr_expect_eq(t_gate_check(&r, "prefill_infer_relative_diff")->limit, 5e-3);
    cr_expect_eq(t_gate_check(&r, "state_oracle")->limit, 5e-2);
    r.bytes.top1_agreement_decided = 0.95;
    r.prefill_infer_max_diff = 0.9;
    r.states[0].oracle = 0.15;
    gate_judge(&r);
    cr_expect_eq(r.verdict, GATE_PASS, "%s", r.reason);
    r.bytes.cosine_min = 0.9799;
    fails(r, "cosine_min");
}

Test(noise, never_tightens)
{
    struct gate_result r = good(RUN_FP16);

    r.noise = noise_of(0.9999999);
    r.noise.relative_diff = r.noise.state = 0;
    r.noise.top1_agreement_decided = 1;
    r.bytes.cosine_min = 0.9991;
    passes(r);
    r.bytes.cosine_min = 0.9989;
    fails(r, "cosine_min");
}

/* What rounding the weights to fp16 costs, but not what compression does. */
Test(noise, softens_the_loss_of_rounding_alone)
{
    struct gate_result r = good(RUN_FP16);

    r.compressed = true; /* of float32 tensors, say */
    r.loss = r.bytes;
    r.loss.cosine_mean = 0.998;
    r.loss.kl_mean = 0.02;
    gate_judge(&r);
    cr_expect_eq(r.verdict, GATE_FAIL);
    cr_expect(gate_judge_asks_noise(&r));
    r.noise = noise_of(0.98);
    gate_judge(&r);
    cr_expect_eq(r.verdict, GATE_PASS, "%s", r.reason);
    r.bits = 8;
    fails(r, "loss_cosine_mean");
    r.noise.draws = 0;
    gate_judge(&r);
    cr_expect(!gate_judge_asks_noise(&r));
}

/* In float32 a twentieth of the distance is left. */
Test(noise, little_of_it_in_f32)
{
    struct gate_result r = good(RUN_F32);

    r.noise = noise_of(0.6); /* 0.4 / 400 */
    r.bytes.cosine_min = 0.9991;
    r.bytes.psnr_min = 57; /* 30 + 26.02 */
    r.prefill_infer_max_diff = 0.049;
    r.states[0].oracle = 0.0099;
    gate_judge(&r);
    cr_expect_eq(r.verdict, GATE_PASS, "%s", r.reason);
    r.bytes.cosine_min = 0.9989;
    fails(r, "cosine_min");
    r.bytes.cosine_min = 1;
    r.bytes.psnr_min = 56;
    fails(r, "psnr_min");
    r.bytes.psnr_min = 80;
    r.bytes.top1_agreement_decided = 0.99;
    fails(r, "top1_agreement_decided");
    r.bytes.top1_agreement_decided = 1;
    r.prefill_infer_max_diff = 0.051;
    fails(r, "prefill_infer_relative_diff");
}

Test(noise, drawn_again_until_it_is_hopeless)
{
    struct gate_result r = good(RUN_FP16);

    r.bytes.cosine_min = 0.99;
    r.noise = noise_of(1 - 1.2e-5); /* 0.01 is below 900 times this */
    gate_judge(&r);
    cr_expect(gate_judge_asks_noise(&r));
    r.noise.draws = GATE_NOISE_DRAWS;
    cr_expect(!gate_judge_asks_noise(&r));
    r.noise = noise_of(1 - 1e-5);
    gate_judge(&r);
    cr_expect(!gate_judge_asks_noise(&r));
}

Test(noise, checks_of_the_run_in_f32)
{
    struct gate_result r = good(RUN_FP16), f = good(RUN_F32);

    gate_judge(&r);
    f.positions = 96;
    f.sourced = true;
    gate_judge(&f);
    gate_judge_join(&r, &f);
    cr_expect_eq(r.verdict, GATE_PASS, "%s", r.reason);
    cr_expect_eq(r.f32_positions, 96);
    cr_expect(t_gate_check(&r, "f32_psnr_min"));
    cr_expect_null(t_gate_check(&r, "f32_decode_steps"));
    cr_expect_null(t_gate_check(&r, "f32_weights_missing"));
    f.bytes.cosine_min = 0.9999;
    gate_judge(&f);
    gate_judge(&r);
    gate_judge_join(&r, &f);
    cr_expect_eq(r.verdict, GATE_FAIL);
    cr_expect(!strncmp(r.reason, "f32_cosine_min is 0.9999, at least 0.99999",
                       42),
              "%s", r.reason);
}

/* ---- moved weights ---- */

/* The distance to the next fp16 value, taken from the bits. */
static double unit_of(float x)
{
    f16_t h = f32_to_f16(fabsf(x));

    return (double)f16_to_f32((f16_t)(h + 1)) - (double)f16_to_f32(h);
}

Test(moved, by_units_of_half_precision)
{
    static const float xs[] = { 1,      1.5f,     1.999f,   0.1f,  -3.7f,
                                1000,   -65000,   6.2e-5f,  5e-5f, 1e-7f,
                                -1e-6f, 0.00012f, 0x1p-14f, 0 };

    for (size_t i = 0; i < sizeof(xs) / sizeof(xs[0]); i++) {
        double u = unit_of(xs[i]);

        for (double by = -2; by <= 2; by += 0.5) {
            double d = (double)gate_noise_move(xs[i], by) - (double)xs[i];

            cr_expect(fabs(d - by * u) <= 1e-7 * fabs((double)xs[i]),
                      "%g by %g: %g, unit %g", (double)xs[i], by, d, u);
        }
    }
}

Test(moved, beyond_half_precision_nothing_moves)
{
    static const float xs[] = { 65536, -1e30f, INFINITY, -INFINITY };

    for (size_t i = 0; i < sizeof(xs) / sizeof(xs[0]); i++)
        cr_expect_eq(gate_noise_move(xs[i], 2), xs[i]);
    cr_expect(isnan(gate_noise_move(NAN, 2)));
}

/* One prompt of ids 0, 1, 2, ... */
static struct prompts count_up(int32_t *ids, size_t *length)
{
    static int32_t *rows[1];

    for (size_t i = 0; i < *length; i++)
        ids[i] = (int32_t)i;
    rows[0] = ids;
    return (struct prompts){ .ids = rows, .lengths = length, .n = 1 };
}

static struct gate_noise draw(const struct t_gate *t, struct par *par, int n)
{
    int32_t ids[40];
    size_t length = 40;
    struct prompts p = count_up(ids, &length);
    struct err e = ERR_INIT;
    struct gate_noise out = { .draws = 0 };
    struct gate_noise_job j = { .ckpt = &t->ckpt,
                                .prompts = &p,
                                .weights = ckpt_source(&t->ckpt),
                                .options = { .par = par,
                                             .max_positions = 40 } };

    j.base = oracle_new(&t->ckpt.hp, &j.weights, &j.options, &e);
    cr_assert(j.base, "%s", e.text);
    for (int i = 0; i < n; i++)
        cr_assert_eq(gate_noise_draw(&j, &out, &e), 0, "%s", e.text);
    oracle_free(j.base);
    return out;
}

Test(moved, draws_are_small_repeatable_and_keep_the_worst)
{
    struct gate_noise one, two;
    struct err e = ERR_INIT;
    struct par *par = par_new(3, &e);
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "qwen3_5", .like = "tiny");
    one = draw(&t, NULL, 1);
    cr_expect_eq(one.draws, 1);
    cr_expect(one.cosine_min < 1 - 1e-8 && one.cosine_min > 0.99, "%.9f",
              one.cosine_min);
    cr_expect(one.state > 1e-5 && one.state < 0.1, "%g", one.state);
    two = draw(&t, par, 1);
    cr_expect(one.cosine_min == two.cosine_min && one.state == two.state &&
              one.psnr_min == two.psnr_min); /* any threads */
    two = draw(&t, NULL, 4);
    cr_expect_eq(two.draws, 4);
    cr_expect(two.cosine_min < one.cosine_min); /* draws differ */
    cr_expect(two.psnr_min <= one.psnr_min);
    cr_expect(two.relative_diff >= one.relative_diff);
    cr_expect(two.state >= one.state);
    par_free(par);
    t_gate_drop(&t);
}
