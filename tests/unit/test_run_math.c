/*
 * Numbers of the runtime: accuracy of its exp, tanh and sigmoid, the same bits
 * at every SIMD level, for any number of threads, and for a position
 * whatever is computed with it.
 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/num.h"
#include "mil/build.h"
#include "mil/run/run.h"

static struct err e;

static struct run_model *open_with(const struct mil_program *p,
                                   enum run_profile profile, struct par *par)
{
    struct run_options o = { .profile = profile, .par = par };
    struct run_model *m = run_open(p, &o, &e);

    cr_assert(m, "%s", e.text);
    return m;
}

static const float *call1(struct run_model *m, const char *f,
                          const struct mil_type *t, const float *x)
{
    struct run_tensor in = { "x", *t, x }, out;
    size_t n;

    cr_assert_eq(run_call(m, f, NULL, &in, 1, &out, 1, &n, &e), 0, "%s",
                 e.text);
    return out.data;
}

static float from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* ---- accuracy ---- */

#define BATCH 65536

static struct mil_program *unary(enum mil_opcode code, int64_t n)
{
    struct mil_program *p = mil_program_new(&e);
    struct mb b;
    mil_ref x, y;

    mb_begin(&b, p, "main");
    x = mb_input(&b, "x", MIL_F32, 1, &n);
    y = code == MIL_OP_exp    ? MB(&b, exp, .x = x)
        : code == MIL_OP_tanh ? MB(&b, tanh, .x = x)
                              : MB(&b, sigmoid, .x = x);
    mb_output(&b, "y", y);
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    return p;
}

static double exact(enum mil_opcode code, double x)
{
    return code == MIL_OP_exp    ? exp(x)
           : code == MIL_OP_tanh ? tanh(x)
                                 : 1 / (1 + exp(-x));
}

/* Units in the last place of the float nearest to `want`. */
static double ulps(float got, double want)
{
    float w = (float)want;
    double ulp;

    if (!(got == got) || isinf(w) || isinf(got))
        return got == w || (!(got == got) && !(w == w)) ? 0 : 1e9;
    ulp = fabs((double)w) < 1.1754943508222875e-38
              ? 1.401298464324817e-45
              : ldexp(1, ilogb((double)w) - 23);
    return fabs((double)got - want) / ulp;
}

/* Every 97th float of both signs, and the neighbours of what matters. */
static double worst_of(enum mil_opcode code, double lowest)
{
    struct mil_program *p = unary(code, BATCH);
    struct run_model *m = open_with(p, RUN_F32, NULL);
    int64_t n = BATCH;
    struct mil_type t = mil_type_make(MIL_F32, 1, &n);
    float *x = mem_alloc(BATCH, sizeof(*x), &e), at = 0;
    double worst = 0;

    for (uint32_t u = 0; u < 0xff800000u;) {
        const float *y;

        for (int i = 0; i < BATCH; i++, u += 97) {
            if (u > 0x7f800000u && u < 0x80000000u)
                u = 0x80000000u;
            x[i] = from_bits(u < 0xff800000u ? u : 0);
        }
        y = call1(m, NULL, &t, x);
        for (int i = 0; i < BATCH; i++) {
            double want = exact(code, (double)x[i]), d;

            if (fabs(want) < lowest)
                continue;
            d = ulps(y[i], want);
            if (!(d <= worst)) {
                worst = d;
                at = x[i];
            }
        }
    }
    printf("%s: %.3f ulp at %.9g\n", mil_op_info(code)->name, worst,
           (double)at);
    mem_free(x);
    run_close(m);
    mil_program_free(p);
    return worst;
}

Test(run_math, exp_is_within_two_ulp)
{
    cr_expect_lt(worst_of(MIL_OP_exp, 0), 2.0);
}

Test(run_math, tanh_is_within_two_ulp)
{
    cr_expect_lt(worst_of(MIL_OP_tanh, 0), 2.0);
}

Test(run_math, sigmoid_is_within_three_ulp)
{
    cr_expect_lt(worst_of(MIL_OP_sigmoid, 1e-37), 3.0);
}

Test(run_math, ends_and_nan)
{
    static const float x[8] = { INFINITY, -INFINITY, NAN,   0.0f,
                                -0.0f,    1000.0f,   -1e9f, 88.8f };
    int64_t n = 8;
    struct mil_type t = mil_type_make(MIL_F32, 1, &n);
    static const enum mil_opcode codes[3] = { MIL_OP_exp, MIL_OP_tanh,
                                              MIL_OP_sigmoid };
    static const float want[3][8] = {
        { INFINITY, 0, NAN, 1, 1, INFINITY, 0, INFINITY },
        { 1, -1, NAN, 0, -0.0f, 1, -1, 1 },
        { 1, 0, NAN, 0.5f, 0.5f, 1, 0, 1 },
    };

    for (int k = 0; k < 3; k++) {
        struct mil_program *p = unary(codes[k], n);
        struct run_model *m = open_with(p, RUN_F32, NULL);
        const float *y = call1(m, NULL, &t, x);

        for (int i = 0; i < 8; i++)
            cr_expect(y[i] == want[k][i] ||
                          (!(y[i] == y[i]) && !(want[k][i] == want[k][i])),
                      "%s(%g) = %g", mil_op_info(codes[k])->name, (double)x[i],
                      (double)y[i]);
        cr_expect(k != 1 || signbit(y[4]));
        run_close(m);
        mil_program_free(p);
    }
}

/* ---- a block with everything that sums ---- */

#define C 76 /* not a multiple of 8 */
#define HEADS 4
#define HD 19
#define CTX 37
#define T 11

static f16_t weight_bytes[3][C * C * 4];
static struct mil_data weights[3];

static const struct mil_data *weight(int i, int64_t out, int64_t in)
{
    unsigned seed = 77u + (unsigned)i;

    for (int k = 0; k < C * C * 4; k++) {
        seed = seed * 1664525u + 1013904223u;
        weight_bytes[i][k] =
            f32_to_f16(((float)(seed >> 9) / 4194304.0f - 1.0f) * 0.3f);
    }
    weights[i].type = mil_type_make(MIL_F16, 4, (int64_t[]){ out, in, 1, 1 });
    weights[i].bytes = (uint64_t)(out * in) * 2;
    weights[i].read = mil_data_read_memory;
    weights[i].cookie = weight_bytes[i];
    return &weights[i];
}

/* x [1, C, 1, n] through products, attention, norms and activations. */
static void block(struct mil_program *p, const char *name, int32_t n)
{
    struct mb b;

    mb_begin(&b, p, name);
    mil_ref x = mb_input(&b, "x", MIL_F16, 4, (int64_t[]){ 1, C, 1, n });
    mil_ref q = mb_conv1x1(&b, x, mb_data(&b, "q", weight(0, C, C)), 0);
    q = MB_RESHAPE(&b, q, 1, HEADS, HD, n);
    q = MB_TRANSPOSE(&b, q, 0, 1, 3, 2); /* [1, heads, n, hd] */
    mil_ref k = mb_data(&b, "k", weight(1, HEADS * CTX, HD));
    k = MB_RESHAPE(&b, k, 1, HEADS, CTX, HD);
    mil_ref s =
        MB(&b, matmul, .x = q, .y = k, .transpose_y = mb_bool(&b, true));
    s = MB(&b, softmax, .x = s, .axis = mb_int(&b, -1));
    mil_ref o = MB(&b, matmul, .x = s, .y = k); /* [1, heads, n, hd] */
    o = MB_RESHAPE(&b, MB_TRANSPOSE(&b, o, 0, 2, 1, 3), 1, n, C);
    o = MB(&b, layer_norm, .x = o, .axes = MB_INTS(&b, -1),
           .epsilon = mb_f16(&b, 1e-3));
    o = MB_RESHAPE(&b, MB_TRANSPOSE(&b, o, 0, 2, 1), 1, C, 1, n);
    mil_ref g = mb_conv1x1(&b, o, mb_data(&b, "g", weight(2, 4 * C, C)), 0);
    g = MB(&b, mul, .x = MB(&b, tanh, .x = g), .y = MB(&b, sigmoid, .x = g));
    g = MB(&b, add, .x = g,
           .y = MB(&b, reduce_sum, .x = g, .axes = MB_INTS(&b, 1),
                   .keep_dims = mb_bool(&b, true)));
    mb_output(&b, "y", g);
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
}

static void fill(float *x, int n)
{
    for (int i = 0; i < C * n; i++)
        x[i] = f16_to_f32(
            f32_to_f16((float)((i * 131 + i / 7) % 97) / 40.0f - 1.2f));
}

Test(run_math, every_level_and_any_threads_give_the_same_bits)
{
    struct mil_program *p = mil_program_new(&e);
    struct mil_type t = mil_type_make(MIL_F16, 4, (int64_t[]){ 1, C, 1, T });
    float x[C * T];
    static float first[4 * C * T];

    block(p, "main", T);
    fill(x, T);
    for (int profile = RUN_F32; profile <= RUN_ANE; profile++)
        for (int level = 0; level < 2; level++)
            for (int threads = 1; threads <= 5; threads += 2) {
                struct par *par = threads > 1 ? par_new(threads, &e) : NULL;
                struct run_model *m;
                const float *y;

                cpu_mask(level ? ~0u : 0u);
                m = open_with(p, (enum run_profile)profile, par);
                y = call1(m, NULL, &t, x);
                if (level == 0 && threads == 1)
                    memcpy(first, y, sizeof(first));
                cr_expect(memcmp(first, y, sizeof(first)) == 0,
                          "profile %s, level %d, %d threads",
                          run_profile_name((enum run_profile)profile), level,
                          threads);
                run_close(m);
                par_free(par);
            }
    mil_program_free(p);
}

Test(run_math, a_position_does_not_depend_on_its_company)
{
    struct mil_program *p = mil_program_new(&e);
    float x[C * T], x1[C];
    static float all[4 * C * T];

    block(p, "infer", 1);
    block(p, "pair", 2);
    block(p, "prefill", T);
    fill(x, T);
    for (int profile = RUN_F32; profile <= RUN_ANE; profile++) {
        struct run_model *m = open_with(p, (enum run_profile)profile, NULL);
        struct mil_type t =
            mil_type_make(MIL_F16, 4, (int64_t[]){ 1, C, 1, T });

        memcpy(all, call1(m, "prefill", &t, x), sizeof(all));
        t.dims[3] = 1;
        for (int k = 0; k < T; k++) {
            const float *y;
            int same = 0;

            for (int c = 0; c < C; c++)
                x1[c] = x[c * T + k];
            y = call1(m, "infer", &t, x1);
            for (int c = 0; c < 4 * C; c++)
                same += y[c] == all[c * T + k];
            cr_expect_eq(same, 4 * C, "position %d: %d of %d", k, same, 4 * C);
        }
        run_close(m);
    }
    mil_program_free(p);
}

/* Products of many shapes against double sums. */
Test(run_math, products_of_many_shapes)
{
    for (int32_t n = 1; n <= 9; n++)
        for (int32_t k = 1; k <= 70; k += 1 + k / 4)
            for (int32_t m = 1; m <= 19; m += 3) {
                struct mil_program *p = mil_program_new(&e);
                struct mil_type t =
                    mil_type_make(MIL_F32, 2, (int64_t[]){ n, k });
                static float x[9 * 80], w[19 * 80];
                struct mil_data d = { 0 };
                struct run_model *r;
                const float *y;
                struct mb b;

                for (int i = 0; i < n * k; i++)
                    x[i] = (float)((i * 37 + k) % 19) / 9.0f - 1.0f;
                for (int i = 0; i < m * k; i++)
                    w[i] = (float)((i * 53 + m) % 23) / 11.0f - 1.0f;
                d.type = mil_type_make(MIL_F32, 2, (int64_t[]){ m, k });
                d.bytes = (uint64_t)(m * k) * 4;
                d.read = mil_data_read_memory;
                d.cookie = w;
                mb_begin(&b, p, "main");
                mil_ref in = mb_input(&b, "x", MIL_F32, 2, t.dims);
                mb_output(&b, "y",
                          MB(&b, linear, .x = in,
                             .weight = mb_data(&b, "w", &d)));
                cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
                r = open_with(p, RUN_F32, NULL);
                y = call1(r, NULL, &t, x);
                for (int i = 0; i < n * m; i++) {
                    double sum = 0;

                    for (int j = 0; j < k; j++)
                        sum += (double)x[i / m * k + j] * w[i % m * k + j];
                    cr_expect_float_eq(y[i], (float)sum, 1e-5, "n %d k %d m %d",
                                       n, k, m);
                }
                run_close(r);
                mil_program_free(p);
            }
}
