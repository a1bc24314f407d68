/*
 * Formulas of the reference against known values: frequencies of published
 * models in double precision, norms, exponentials, activations.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/num.h"
#include "models/oracle_math.h"
#include "models/weights.h"

static struct err err;

static void near_rel(double got, double want, double rel, const char *what,
                     int i)
{
    cr_expect(fabs(got - want) <= rel * fabs(want), "%s %d: %.9g, not %.9g",
              what, i, got, want);
}

struct known {
    int i;
    double f;
};

static void check_freq(const char *what, const struct rope_params *r,
                       const struct known *k, size_t n)
{
    float f[256];

    cr_assert_eq(oracle_rope_freq(r, f, &err), 0, "%s", err.text);
    for (size_t i = 0; i < n; i++)
        near_rel((double)f[k[i].i], k[i].f, 2e-6, what, k[i].i);
}

#define CHECK_FREQ(what, r, k) \
    check_freq((what), (r), (k), sizeof(k) / sizeof((k)[0]))

Test(oracle_math, default_frequencies)
{
    struct rope_params r = { .type = ROPE_DEFAULT, .theta = 1e6, .dim = 128 };
    static const struct known qwen3[] = { { 0, 1 },
                                          { 1, 0.805842188 },
                                          { 2, 0.649381632 },
                                          { 32, 0.001 },
                                          { 63, 1.24093776e-06 } };
    static const struct known qwen3_5[] = { { 1, 0.60429639 },
                                            { 2, 0.365174127 },
                                            { 16, 3.16227766e-04 },
                                            { 31, 1.6548171e-07 } };

    CHECK_FREQ("qwen3", &r, qwen3);
    r.theta = 1e7;
    r.dim = 64;
    CHECK_FREQ("qwen3_5", &r, qwen3_5);
}

Test(oracle_math, linear_frequencies)
{
    struct rope_params r = {
        .type = ROPE_LINEAR, .theta = 1e6, .dim = 128, .factor = 8
    };
    static const struct known k[] = { { 0, 0.125 },
                                      { 1, 0.805842188 / 8 },
                                      { 32, 0.000125 } };

    CHECK_FREQ("linear", &r, k);
}

Test(oracle_math, llama3_frequencies)
{
    struct rope_params r = { .type = ROPE_LLAMA3,
                             .theta = 500000,
                             .dim = 64,
                             .factor = 32,
                             .low_freq_factor = 1,
                             .high_freq_factor = 4,
                             .original_max = 8192 };
    static const struct known llama_1b[] = { { 14, 3.21144599e-03 },
                                             { 15, 1.29054793e-03 },
                                             { 17, 9.7082878e-05 },
                                             { 18, 1.94616382e-05 },
                                             { 31, 9.41830673e-08 } };
    static const struct known llama_8b[] = { { 28, 3.21144599e-03 },
                                             { 29, 2.16657076e-03 },
                                             { 34, 1.78507813e-04 },
                                             { 35, 9.55621235e-05 },
                                             { 63, 3.06892599e-07 } };
    static const struct known llama_3b[] = { { 29, 2.118407e-03 },
                                             { 34, 9.7082878e-05 },
                                             { 35, 2.38905309e-05 },
                                             { 63, 7.67231497e-08 } };

    CHECK_FREQ("3.2-1B", &r, llama_1b);
    r.dim = 128;
    CHECK_FREQ("3.2-3B", &r, llama_3b);
    r.factor = 8;
    CHECK_FREQ("3.1-8B", &r, llama_8b);
}

Test(oracle_math, yarn_frequencies)
{
    struct rope_params r = { .type = ROPE_YARN,
                             .theta = 1e6,
                             .dim = 128,
                             .factor = 4,
                             .original_max = 32768,
                             .beta_fast = 32,
                             .beta_slow = 1,
                             .truncate = true };
    static const struct known k[] = { { 0, 1 },
                                      { 23, 6.97830585e-03 },
                                      { 24, 5.37532149e-03 },
                                      { 39, 6.49039432e-05 },
                                      { 40, 4.44569853e-05 },
                                      { 63, 3.1023444e-07 } };
    float cut[64], smooth[64];
    double m;

    CHECK_FREQ("yarn", &r, k);
    cr_assert_eq(oracle_rope_freq(&r, cut, &err), 0);
    r.truncate = false;
    cr_assert_eq(oracle_rope_freq(&r, smooth, &err), 0);
    cr_assert_eq(cut[22], smooth[22]);
    cr_assert_eq(cut[41], smooth[41]);
    /* the band's unrounded ends are 23.596 and 39.651 */
    m = (30 - 23.596) / (39.651 - 23.596);
    near_rel((double)smooth[30], pow(1e6, -60.0 / 128) * (m / 4 + 1 - m), 1e-4,
             "untruncated", 30);
}

/* theta so small that both ends of the band fall on one index: no 0 / 0. */
Test(oracle_math, yarn_band_of_no_width)
{
    struct rope_params r = { .type = ROPE_YARN,
                             .theta = 10000,
                             .dim = 16,
                             .factor = 2,
                             .original_max = 4,
                             .beta_fast = 32,
                             .beta_slow = 1,
                             .truncate = true };
    float f[8];

    cr_assert_eq(oracle_rope_freq(&r, f, &err), 0, "%s", err.text);
    near_rel((double)f[0], 1, 1e-6, "kept", 0);
    near_rel((double)f[7], pow(10000, -14.0 / 16) / 2, 1e-6, "stretched", 7);
}

Test(oracle_math, infinite_frequencies_are_refused)
{
    struct rope_params r = {
        .type = ROPE_LINEAR, .theta = 1e4, .dim = 8, .factor = 0
    };
    float f[4];

    cr_assert_eq(oracle_rope_freq(&r, f, &err), -1);
    cr_assert_eq(err.code, ERR_INPUT);
    cr_assert_str_eq(err.text, "rope frequency 0 of 4 is not finite");
    err_reset(&err);
    r.type = (enum rope_type)99;
    cr_assert_eq(oracle_rope_freq(&r, f, &err), -1);
    cr_assert_eq(err.code, ERR_UNSUPPORTED);
}

/* The angle is rounded to float32 before its cosine is taken: at position
 * 100,000 that is visible, and it is what float32 models do. */
Test(oracle_math, angles_are_float32)
{
    struct rope_params r = {
        .type = ROPE_DEFAULT, .theta = 1e6, .dim = 4, .attention_scaling = 2
    };
    float f[2], c[2], s[2];
    float angle;

    cr_assert_eq(oracle_rope_freq(&r, f, &err), 0);
    f[0] = 0.805842161f;
    oracle_rope_row(&r, f, 100003, c, s);
    angle = 100003.0f * 0.805842161f;
    near_rel((double)c[0], 2 * cos((double)angle), 1e-7, "cos", 0);
    near_rel((double)s[0], 2 * sin((double)angle), 1e-7, "sin", 0);
    cr_assert(fabs((double)c[0] - 2 * cos(100003.0 * (double)f[0])) > 1e-4);
}

Test(oracle_math, rotation_pairs)
{
    static const float c[2] = { 0, 1 }, s[2] = { 1, 0 };
    float halves[6] = { 1, 2, 3, 4, 5, 6 };
    float adjacent[6] = { 1, 2, 3, 4, 5, 6 };
    static const float want_h[6] = { -3, 2, 1, 4, 5, 6 };
    static const float want_a[6] = { -2, 1, 3, 4, 5, 6 };

    oracle_rotate(ROPE_HALVES, halves, 4, c, s);
    oracle_rotate(ROPE_ADJACENT, adjacent, 4, c, s);
    cr_assert_eq(memcmp(halves, want_h, sizeof(want_h)), 0);
    cr_assert_eq(memcmp(adjacent, want_a, sizeof(want_a)), 0);
}

Test(oracle_math, norm_forms)
{
    static const float x[3] = { 1, 2, -2 }, w[3] = { 0.5f, 1, 2 };
    float y[3];
    double u = 1 / sqrt(3 + 0.25); /* mean square 3 */

    oracle_norm_row(NORM_PLAIN, x, w, 3, 0.25, y);
    near_rel((double)y[0], 0.5 * u, 1e-7, "plain", 0);
    near_rel((double)y[2], -4 * u, 1e-7, "plain", 2);
    oracle_norm_row(NORM_CENTRED, x, w, 3, 0.25, y);
    near_rel((double)y[0], 1.5 * u, 1e-7, "centred", 0);
    near_rel((double)y[2], -6 * u, 1e-7, "centred", 2);
    oracle_norm_row(NORM_UNSCALED, x, NULL, 3, 0.25, y);
    near_rel((double)y[0], u, 1e-7, "unscaled", 0);
    near_rel((double)y[1], 2 * u, 1e-7, "unscaled", 1);
}

/* Squares that float32 cannot hold. */
Test(oracle_math, norm_of_huge_and_tiny_rows)
{
    float x[2] = { 3e30f, -4e30f }, y[2];
    static const float w[2] = { 1, 1 };

    oracle_norm_row(NORM_PLAIN, x, w, 2, 1e-6, y);
    near_rel((double)y[0], 0.6 * sqrt(2), 1e-6, "huge", 0);
    x[0] = 3e-30f;
    x[1] = 4e-30f;
    oracle_norm_row(NORM_PLAIN, x, w, 2, 0, y);
    near_rel((double)y[1], 0.8 * sqrt(2), 1e-6, "tiny", 1);
}

Test(oracle_math, exponentials)
{
    float x[7] = { -87.5f, -INFINITY, -86.9f, 0, 88, 200, NAN };

    for (int i = -8600; i <= 8700; i++) {
        float v = (float)i / 100, got = v;

        oracle_exp_block(&got, 1, 0);
        near_rel((double)got, exp((double)v), 1.5 * 1.1920929e-7, "exp", i);
    }
    oracle_exp_block(x, 7, 0);
    cr_assert_eq(x[0], 0.0f);
    cr_assert_eq(x[1], 0.0f);
    cr_assert(x[2] > 0);
    cr_assert_eq(x[3], 1.0f);
    cr_assert(isfinite(x[4]));
    cr_assert_eq(x[5], x[4]);
    cr_assert(isnan(x[6]));
    x[0] = 3;
    oracle_exp_block(x, 1, 2);
    near_rel((double)x[0], exp(1), 1e-7 * 2, "shifted", 0);
}

Test(oracle_math, silu_values)
{
    static const double want[4] = { -0.142277620, -0.268941421, 0.731058579,
                                    2.857722380 };
    float g[4] = { -3, -1, 1, 3 }, far[3] = { -1000, 1000, NAN };
    static const float u[4] = { 1, 2, -1, 0.5f }, one[3] = { 1, 1, 1 };

    oracle_act_mul(ACT_SILU, g, u, 4);
    for (int i = 0; i < 4; i++)
        near_rel((double)g[i], want[i] * (double)u[i], 3e-7, "silu", i);
    oracle_act_mul(ACT_SILU, far, one, 3);
    cr_assert(fabs((double)far[0]) < 1e-30);
    cr_assert_eq(far[1], 1000.0f);
    cr_assert(isnan(far[2]));
}

/* The form with tanh; the one with the error function differs in the fourth
 * digit. */
Test(oracle_math, gelu_values)
{
    static const double want[4] = { -0.003637392, -0.158808009, 0.841191991,
                                    2.996362608 };
    float g[4] = { -3, -1, 1, 3 }, far[5] = { -1000, 1000, NAN, 1e20f, -1e20f };
    static const float u[4] = { 1, 2, -1, 0.5f }, one[5] = { 1, 1, 1, 1, 1 };

    oracle_act_mul(ACT_GELU_TANH, g, u, 4);
    for (int i = 0; i < 4; i++)
        cr_expect_float_eq((double)g[i], want[i] * (double)u[i],
                           2e-9 + 3e-7 * fabs(want[i]), "gelu %d: %.9g", i,
                           (double)g[i]);
    oracle_act_mul(ACT_GELU_TANH, far, one, 5);
    cr_assert(fabs((double)far[0]) < 1e-30);
    cr_assert_eq(far[1], 1000.0f);
    cr_assert(isnan(far[2]));
    cr_assert_eq(far[3], 1e20f);
    cr_assert(fabs((double)far[4]) < 1e-17);
    for (int i = -1000; i <= 1000; i++) {
        double x = i * 0.01,
               y = 0.79788456080286536 * (x + 0.044715 * x * x * x);
        float got = (float)x;

        oracle_act_mul(ACT_GELU_TANH, &got, one, 1);
        cr_expect_float_eq((double)got, 0.5 * x * (1 + tanh(y)), 1e-6, "%g", x);
    }
}

Test(oracle_math, proportional_frequencies)
{
    struct rope_params r = { .type = ROPE_PROPORTIONAL,
                             .theta = 1e6,
                             .dim = 512,
                             .live = 64,
                             .factor = 1,
                             .attention_scaling = 1 };
    float f[256];

    cr_assert_eq(oracle_rope_freq(&r, f, &err), 0, "%s", err.text);
    near_rel((double)f[1], 0.947463526, 1e-6, "f", 1);
    near_rel((double)f[2], 0.897687132, 1e-6, "f", 2);
    near_rel((double)f[63], 0.0333762469, 1e-6, "f", 63);
    for (int i = 64; i < 256; i++)
        cr_expect_eq(f[i], 0);
    r.factor = 4;
    cr_assert_eq(oracle_rope_freq(&r, f, &err), 0);
    near_rel((double)f[1], 0.947463526 / 4, 1e-6, "f", 1);
}

#define ROWS 4096

/* The graph's tables are the reference's rows rounded to fp16, to the bit. */
static void tables_match(const struct rope_params *r, bool is_sin)
{
    static f16_t table[ROWS * 128];
    struct ckpt none = { 0 };
    struct weights *w = weights_new(&none, &err);
    const struct mil_data *d = weights_rope(w, r, ROWS, is_sin, 1, &err);
    size_t half = (size_t)r->dim / 2, differ = 0;
    float f[64], row[2][64];

    cr_assert(d && d->bytes <= sizeof table, "%s", err.text);
    cr_assert_eq(d->read(d->cookie, 0, table, (size_t)d->bytes, &err), 0);
    cr_assert_eq(oracle_rope_freq(r, f, &err), 0);
    for (size_t p = 0; p < ROWS; p++) {
        oracle_rope_row(r, f, (int64_t)p, row[0], row[1]);
        for (size_t i = 0; i < half; i++) {
            f16_t want = f32_to_f16(row[is_sin][i]);

            differ += load_le16(&table[2 * p * half + i]) != want;
            differ += load_le16(&table[(2 * p + 1) * half + i]) != want;
        }
    }
    cr_expect_eq(differ, 0, "rope type %d: %zu of %d", (int)r->type, differ,
                 ROWS * r->dim);
    weights_free(w);
}

Test(oracle_math, tables_are_those_of_the_graph)
{
    struct rope_params all[] = {
        { .type = ROPE_DEFAULT, .theta = 1e4, .dim = 128 },
        { .type = ROPE_DEFAULT, .theta = 1e6, .dim = 22 },
        { .type = ROPE_LINEAR, .theta = 1e6, .dim = 96, .factor = 8 },
        { .type = ROPE_PROPORTIONAL,
          .theta = 1e6,
          .dim = 128,
          .live = 16,
          .factor = 3 },
        { .type = ROPE_LLAMA3,
          .theta = 500000,
          .dim = 64,
          .factor = 32,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_max = 8192 },
        { .type = ROPE_YARN,
          .theta = 1e6,
          .dim = 128,
          .factor = 4,
          .original_max = 32768,
          .beta_fast = 32,
          .beta_slow = 1,
          .truncate = true },
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        all[i].attention_scaling = all[i].type == ROPE_YARN ? 1.138629436 : 1;
        tables_match(&all[i], false);
        tables_match(&all[i], true);
    }
}

Test(oracle_math, simd_gives_the_same_bits)
{
    float a[1003], b[1003], u[1003];

    for (int i = 0; i < 1003; i++) {
        a[i] = b[i] = (float)(i - 500) * 0.173f;
        u[i] = (float)i * 0.01f - 3;
    }
    oracle_exp_block(a, 1003, 0.3f);
    oracle_act_mul(ACT_SILU, a, u, 1003);
    oracle_act_mul(ACT_GELU_TANH, a, u, 1003);
    cpu_mask(0);
    oracle_exp_block(b, 1003, 0.3f);
    oracle_act_mul(ACT_SILU, b, u, 1003);
    oracle_act_mul(ACT_GELU_TANH, b, u, 1003);
    cr_assert_eq(memcmp(a, b, sizeof(a)), 0);
}

/* Three tokens of one head with dk = dv = 2, from an empty state. */
Test(oracle_math, delta_rule_of_known_answer)
{
    static const float q[3][2] = { { 1, 2 }, { 0.5f, -1 }, { -1, 1 } };
    static const float k[3][2] = { { 1, 0 }, { 1, 1 }, { 0, 2 } };
    static const float v[3][2] = { { 1, -1 }, { 2, 0.5f }, { -0.5f, 3 } };
    static const double a[3] = { 0, 1, -1 }, b[3] = { 0, 2, -2 };
    static const double g[3] = { -0.949563572, -1.87438341, -0.415360835 };
    static const double beta[3] = { 0.5, 0.880797078, 0.119202922 };
    static const double out[3][2] = { { 0.158113788, -0.158113788 },
                                      { -0.358956533, -0.133423683 },
                                      { -0.102801458, 0.190546248 } };
    static const double state[4] = { 0.850587800, 0.177219857, 0.644984832,
                                     0.558312447 };
    float S[4] = { 0 }, query[2], key[2];
    double m[2], y[2];

    for (int t = 0; t < 3; t++) {
        double rate = -exp(0.5) * oracle_softplus(a[t] - 0.25);

        near_rel(rate, g[t], 1e-8, "g", t);
        near_rel(oracle_sigmoid(b[t]), beta[t], 1e-8, "beta", t);
        oracle_unit_row(q[t], 2, 1e-6, 1 / sqrt(2.0), query);
        oracle_unit_row(k[t], 2, 1e-6, 1, key);
        oracle_delta_step(S, 2, 2, query, key, v[t], exp(rate),
                          oracle_sigmoid(b[t]), m, y);
        for (int j = 0; j < 2; j++)
            near_rel(y[j], out[t][j], 1e-6, "out", 2 * t + j);
    }
    for (int i = 0; i < 4; i++)
        near_rel((double)S[i], state[i], 1e-6, "state", i);
}

Test(oracle_math, unit_rows_add_epsilon_to_the_sum)
{
    float tiny[2] = { 3e-3f, 4e-3f }, zero[2] = { 0, 0 }, y[2];

    /* the sum of squares is 25e-6, epsilon 1e-6 */
    oracle_unit_row(tiny, 2, 1e-6, 2, y);
    near_rel((double)y[0], 2 * 3e-3 / sqrt(26e-6), 1e-6, "tiny", 0);
    oracle_unit_row(zero, 2, 1e-6, 2, y);
    cr_assert(y[0] == 0 && y[1] == 0);
}

Test(oracle_math, softplus_and_sigmoid_at_the_ends)
{
    near_rel(oracle_softplus(0), 0.69314718055994531, 1e-15, "softplus", 0);
    near_rel(oracle_softplus(-40), 4.248354255291589e-18, 1e-12, "softplus",
             -40);
    near_rel(oracle_softplus(20), 20.000000002061154, 1e-15, "softplus", 20);
    cr_assert(oracle_softplus(20.5) == 20.5 && oracle_softplus(1e4) == 1e4);
    cr_assert(oracle_sigmoid(-1e4) == 0 && oracle_sigmoid(1e4) == 1);
    cr_assert(isnan(oracle_softplus(NAN)) && isnan(oracle_sigmoid(NAN)));
}

Test(oracle_math, routing_takes_the_top_and_the_lower_of_equals)
{
    static const float logits[6] = { 1, 3, 2, 3, -1, 3 };
    struct oracle_pick p[6];
    double room[6], sum = 0;

    oracle_route(logits, 6, 2, room, p);
    cr_assert(p[0].expert == 1 && p[1].expert == 3);
    cr_assert(p[0].weight == 0.5 && p[1].weight == 0.5);
    oracle_route(logits, 6, 4, room, p);
    cr_assert(p[2].expert == 5 && p[3].expert == 2);
    near_rel(p[3].weight, exp(2) / (3 * exp(3) + exp(2)), 1e-14, "weight", 3);
    oracle_route(logits, 6, 6, room, p);
    for (int i = 0; i < 6; i++)
        sum += p[i].weight;
    near_rel(sum, 1, 1e-15, "sum of weights", 6);
    cr_assert_eq(p[5].expert, 4);
}

Test(oracle_math, delta_rule_gives_the_same_bits_on_every_machine)
{
    enum { DK = 5, DV = 19 };
    float S[2][DK * DV], q[DK], k[DK], v[DV];
    double m[DV], y[2][DV];

    for (int i = 0; i < DK * DV; i++)
        S[0][i] = S[1][i] = (float)i * 0.37f - 11;
    for (int i = 0; i < DK; i++) {
        q[i] = (float)i * 0.3f - 0.7f;
        k[i] = 0.9f - (float)i * 0.41f;
    }
    for (int i = 0; i < DV; i++)
        v[i] = (float)i * 0.11f;
    for (int t = 0; t < 2; t++) {
        cpu_mask(t ? 0 : ~0u);
        for (int n = 0; n < 40; n++)
            oracle_delta_step(S[t], DK, DV, q, k, v, 0.93, 0.71, m, y[t]);
    }
    cr_assert_eq(memcmp(S[0], S[1], sizeof(S[0])), 0);
    cr_assert_eq(memcmp(y[0], y[1], sizeof(y[0])), 0);
}
