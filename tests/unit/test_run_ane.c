/*
 * Profile ane: what it does differently from fp16, and that it does nothing
 * else.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/num.h"
#include "mil/build.h"
#include "mil/run/run.h"
#include "t_rand.h"

static struct err e;

#define TINY 6.103515625e-05f /* 2^-14, the least normal half */

/* One input x, one output y. */
static const float *run(const struct mil_program *p, enum run_profile profile,
                        const float *x, struct run_model **m)
{
    struct run_options o = { .profile = profile };
    const struct mil_value *v =
        mil_value(p->functions[0], p->functions[0]->inputs[0]);
    struct run_tensor in = { "x", v->type, x }, out;
    size_t n;

    *m = run_open(p, &o, &e);
    cr_assert(*m, "%s", e.text);
    cr_assert_eq(run_call(*m, NULL, NULL, &in, 1, &out, 1, &n, &e), 0, "%s",
                 e.text);
    return out.data;
}

/* ---- products ---- */

#define K 40 /* terms of a sum: whole lanes */
#define ROWS 9

static f16_t weight_bits[ROWS * K * 9];
static struct mil_data weight_data;

static mil_ref weight(struct mb *b, const char *name, int rank,
                      const int64_t *dims)
{
    weight_data.type = mil_type_make(MIL_F16, rank, dims);
    weight_data.bytes = (uint64_t)mil_type_bytes(&weight_data.type);
    weight_data.read = mil_data_read_memory;
    weight_data.cookie = weight_bits;
    cr_assert_leq(weight_data.bytes, sizeof weight_bits);
    return mb_data(b, name, &weight_data);
}

static mil_ref conv(struct mb *b, mil_ref x, mil_ref w, int groups)
{
    return MB(b, conv, .x = x, .weight = w, .strides = MB_INTS(b, 1, 1),
              .pad_type = mb_string(b, "valid"), .pad = MB_INTS(b, 0, 0, 0, 0),
              .dilations = MB_INTS(b, 1, 1), .groups = mb_int(b, groups));
}

/* x [1, K, 5, ROWS]; every path that products take. */
enum { POINTWISE, DEPTHWISE, PATCHES, LINEAR, ROWS_BY_ROWS, FEW_ROWS, EINSUM };
static const char *const paths[] = { "pointwise", "depthwise", "patches",
                                     "linear",    "matmul",    "vecmat",
                                     "einsum" };

static mil_ref product(struct mb *b, int path, mil_ref x)
{
    mil_ref t = MB_TRANSPOSE(b, x, 0, 2, 3, 1), w; /* [1, 5, ROWS, K] */

    switch (path) {
    case POINTWISE:
        w = weight(b, "w", 4, (int64_t[]){ ROWS, K, 1, 1 });
        return conv(b, x, w, 1);
    case DEPTHWISE:
        w = weight(b, "w", 4, (int64_t[]){ K, 1, 1, 4 });
        return conv(b, x, w, K);
    case PATCHES:
        w = weight(b, "w", 4, (int64_t[]){ 1, K, 3, 3 });
        return conv(b, x, w, 1);
    case LINEAR:
        w = weight(b, "w", 2, (int64_t[]){ ROWS, K });
        return MB(b, linear, .x = MB_RESHAPE(b, t, 5 * ROWS, K), .weight = w);
    case ROWS_BY_ROWS:
        w = weight(b, "w", 2, (int64_t[]){ K, ROWS });
        return MB(b, matmul, .x = t, .y = w);
    case FEW_ROWS:
        w = weight(b, "w", 2, (int64_t[]){ K, ROWS });
        t = MB_RESHAPE(b, t, 5 * ROWS, 1, K);
        return MB(b, matmul, .x = t, .y = w);
    default:
        w = weight(b, "w", 4, (int64_t[]){ 1, K, 1, ROWS });
        t = MB_RESHAPE(b, t, 1, 5 * ROWS, 1, K);
        return MB(b, einsum, .values = MB_REFS(t, w),
                  .equation = mb_string(b, "nchw,nwhu->nchu"));
    }
}

static struct mil_program *products(int path, int64_t *elems)
{
    struct mil_program *p = mil_program_new(&e);
    struct mil_type t;
    struct mb b;
    mil_ref y;

    mb_begin(&b, p, "main");
    y = mb_input(&b, "x", MIL_F16, 4, (int64_t[]){ 1, K, 5, ROWS });
    y = product(&b, path, y);
    t = mb_type(&b, y);
    *elems = mil_type_elems(&t);
    mb_output(&b, "y", y);
    cr_assert_eq(mb_end(&b, &e), 0, "%s: %s", paths[path], e.text);
    return p;
}

#define INPUTS (K * 5 * ROWS)

static void fill(float *x, float a, float w)
{
    for (int i = 0; i < INPUTS; i++)
        x[i] = a;
    for (size_t i = 0; i < sizeof weight_bits / sizeof *weight_bits; i++)
        weight_bits[i] = f32_to_f16(w);
}

/* Each product below 2^-14 is lost, however many there are. */
Test(run_ane, small_products_add_nothing)
{
    static float x[INPUTS];

    for (int level = 0; level < 2; level++)
        for (int path = 0; path <= EINSUM; path++)
            for (int small = 0; small < 2; small++) {
                int64_t n, bad = 0, zero = 0;
                struct mil_program *p = products(path, &n);
                struct run_model *ane, *half;
                const float *a, *h;

                cpu_mask(level ? ~0u : 0u);
                fill(x, 0x1p-8f, small ? -0x1p-7f : -0x1p-6f);
                a = run(p, RUN_ANE, x, &ane);
                h = run(p, RUN_FP16, x, &half);
                for (int64_t i = 0; i < n; i++) {
                    bad += a[i] != (small ? 0 : h[i]);
                    zero += h[i] == 0;
                }
                cr_expect_eq(bad, 0, "%s, level %d, small %d: %lld of %lld",
                             paths[path], level, small, (long long)bad,
                             (long long)n);
                cr_expect_lt(zero, n);
                run_close(ane);
                run_close(half);
                mil_program_free(p);
            }
    cpu_mask(~0u);
}

/* Where nothing is small, the bits are those of fp16. */
Test(run_ane, other_products_are_those_of_fp16)
{
    static float x[INPUTS];
    uint64_t seed = 3;

    for (int i = 0; i < INPUTS; i++) {
        double u = 0.125 + t_uniform(&seed);

        x[i] = (float)t_half(i % 3 ? u : -u);
    }
    for (size_t i = 0; i < sizeof weight_bits / sizeof *weight_bits; i++)
        weight_bits[i] = f64_to_f16(0.125 + t_uniform(&seed));
    for (int level = 0; level < 2; level++)
        for (int path = 0; path <= EINSUM; path++) {
            int64_t n;
            struct mil_program *p = products(path, &n);
            struct run_model *ane, *half;
            const float *a, *h;

            cpu_mask(level ? ~0u : 0u);
            a = run(p, RUN_ANE, x, &ane);
            h = run(p, RUN_FP16, x, &half);
            cr_expect_eq(memcmp(a, h, (size_t)n * sizeof *a), 0, "%s, level %d",
                         paths[path], level);
            run_close(ane);
            run_close(half);
            mil_program_free(p);
        }
    cpu_mask(~0u);
}

/* ---- everything else ---- */

enum { INPUT, MUL, EXP, SUM, MEAN, SIGMOID, SILU, GELU, SOFTPLUS };

static struct mil_program *one_op(int what, int64_t n)
{
    struct mil_program *p = mil_program_new(&e);
    mil_ref axes, keep, x, y;
    struct mb b;

    mb_begin(&b, p, "main");
    x = mb_input(&b, "x", MIL_F16, 1, &n);
    axes = MB_INTS(&b, 0);
    keep = mb_bool(&b, true);
    y = what == INPUT ? MB(&b, abs, .x = x)
        : what == MUL ? MB(&b, mul, .x = x, .y = x)
        : what == EXP ? MB(&b, exp, .x = x)
        : what == SUM
            ? MB(&b, reduce_sum, .x = x, .axes = axes, .keep_dims = keep)
        : what == MEAN
            ? MB(&b, reduce_mean, .x = x, .axes = axes, .keep_dims = keep)
        : what == SIGMOID ? MB(&b, sigmoid, .x = x)
        : what == SILU    ? MB(&b, silu, .x = x)
        : what == GELU    ? MB(&b, gelu, .x = x,
                               .mode = mb_string(&b, "SIGMOID_APPROXIMATION"))
                          : MB(&b, softplus, .x = x);
    mb_output(&b, "y", y);
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    return p;
}

/* First element of the result. */
static float first(int what, enum run_profile profile, const float *x,
                   int64_t n)
{
    struct mil_program *p = one_op(what, n);
    struct run_model *m;
    float y = run(p, profile, x, &m)[0];

    run_close(m);
    mil_program_free(p);
    return y;
}

Test(run_ane, subnormal_results_are_zero)
{
    /* a result of half of TINY, and one of TINY, in fp16 */
    static const struct {
        int what;
        int64_t n;
        float small[4], least[4];
    } rows[] = {
        { INPUT, 1, { TINY / 2 }, { TINY } },
        { INPUT, 1, { -TINY / 2 }, { -TINY } },
        { MUL, 1, { 0.0055236816f }, { 0x1p-7f } },
        { EXP, 1, { -10.397f }, { -9.7f } },
        { SUM, 2, { 2 * TINY, -1.5f * TINY }, { 2 * TINY, -TINY } },
        { MEAN, 4, { 2 * TINY }, { 4 * TINY } },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float h = first(rows[i].what, RUN_FP16, rows[i].small, rows[i].n);
        float l = first(rows[i].what, RUN_FP16, rows[i].least, rows[i].n);

        cr_expect(h > 0 && h < TINY, "row %zu: %g", i, (double)h);
        cr_expect(first(rows[i].what, RUN_ANE, rows[i].small, rows[i].n) == 0,
                  "row %zu", i);
        cr_expect(l >= TINY && first(rows[i].what, RUN_ANE, rows[i].least,
                                     rows[i].n) == l,
                  "row %zu: %g", i, (double)l);
    }
}

/* In steps of 1/32, so at most 1/64 off, and somewhere nearly so. */
Test(run_ane, sigmoid_is_coarse)
{
    enum { N = 4001 };
    static float x[N];
    struct mil_program *p = one_op(SIGMOID, N);
    struct run_model *m;
    const float *y;
    double worst = 0;

    for (int i = 0; i < N; i++)
        x[i] = (float)t_half((i - N / 2) / 200.0);
    y = run(p, RUN_ANE, x, &m);
    for (int i = 0; i < N; i++) {
        double d = fabs((double)y[i] - 1 / (1 + exp(-(double)x[i])));

        cr_expect(y[i] * 32 == rintf(y[i] * 32));
        worst = d > worst ? d : worst;
    }
    cr_expect(worst > 0.015 && worst < 0.01563, "%g", worst);
    run_close(m);
    mil_program_free(p);
}

Test(run_ane, what_is_built_on_sigmoid)
{
    static const float x[1] = { 0.05f };
    float h = (float)t_half(0.05);

    cr_expect_eq(first(SILU, RUN_ANE, x, 1), h / 2);
    cr_expect_gt(first(SILU, RUN_FP16, x, 1), 1.02f * h / 2);
    /* sigmoid(0.085) = 0.521 */
    cr_expect_eq(first(GELU, RUN_ANE, x, 1), (float)t_half(h * 0.53125));
}

Test(run_ane, softplus_falls_to_zero)
{
    static const float below[1] = { 10.390625f }, above[1] = { 10.3984375f };

    cr_expect_eq(first(SOFTPLUS, RUN_ANE, below, 1), below[0]);
    cr_expect_eq(first(SOFTPLUS, RUN_ANE, above, 1), 0);
    cr_expect_eq(first(SOFTPLUS, RUN_FP16, above, 1), above[0]);
}

/* A row with an infinity fails as a whole; a large finite one does not. */
Test(run_ane, softmax_fails_with_infinities)
{
    static const float x[3][4] = { { 1, 2, -INFINITY, 0 },
                                   { 1, 2, -30000, 0 },
                                   { 1, 2, INFINITY, 0 } };
    struct mil_program *p = mil_program_new(&e);
    struct run_model *m;
    struct mb b;
    const float *y;

    mb_begin(&b, p, "main");
    mb_output(&b, "y",
              MB(&b, softmax,
                 .x = mb_input(&b, "x", MIL_F16, 2, (int64_t[]){ 3, 4 })));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    y = run(p, RUN_FP16, x[0], &m);
    cr_expect(y[2] == 0 && y[0] > 0.2f);
    run_close(m);
    y = run(p, RUN_ANE, x[0], &m);
    for (int i = 0; i < 4; i++) {
        cr_expect(isnan(y[i]) && isnan(y[8 + i]));
        cr_expect(i == 2 ? y[4 + i] == 0 : y[4 + i] > 0);
    }
    run_close(m);
    mil_program_free(p);
}
