/*
 * The chunked form of Gated DeltaNet where it is ill-conditioned: nearly
 * parallel keys, writing strengths near 1, decays from 1 down to e^-30, over
 * 4,096 tokens. In fp16 it has to be as exact as the token recurrence, whose
 * own error is the measure; the truth is the recurrence in double.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "mil/run/run.h"
#include "models/parts_gdn.h"
#include "t_rand.h"

static struct err e;

#define HEADS 12 /* one case each */
#define D 32     /* widths of keys and values */
#define TOKENS 4096
#define BATCH 128
#define CHUNK 64

/* Cosine of two keys of a head, and what its decays are. */
static const double parallel[4] = { 0.9, 0.99, 0.999, 0.9999 };
enum { NO_DECAY, SLOW, ANY };

static int decay_of(int head)
{
    return head / 4;
}

/* What the functions are given, [TOKENS][HEADS]; all of it halves. */
static float q[TOKENS][HEADS][D], k[TOKENS][HEADS][D], v[TOKENS][HEADS][D];
static float beta[TOKENS][HEADS][1], g[TOKENS][HEADS][1];
static double truth[TOKENS][HEADS][D];

static void unit(const double *x, float *y)
{
    double sum = 0;

    for (int i = 0; i < D; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < D; i++)
        y[i] = (float)t_half(x[i] / sqrt(sum));
}

static double log_decay(int kind, uint64_t *seed)
{
    double u = t_uniform(seed);

    switch (kind) {
    case NO_DECAY: return 0;
    case SLOW: return -ldexp(1, -(int)(3 + 10 * u)); /* 2^-3 to 2^-13 */
    default: return u < 0.01 ? -30 : -30 * pow(t_uniform(seed), 8);
    }
}

static void make_inputs(void)
{
    double base[HEADS][D], x[D];
    uint64_t seed = 7;

    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < D; i++)
            base[h][i] = t_gauss(&seed);
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++) {
            double rho = parallel[h % 4];

            for (int i = 0; i < D; i++)
                x[i] = sqrt(rho) * base[h][i] + sqrt(1 - rho) * t_gauss(&seed);
            unit(x, k[t][h]);
            for (int i = 0; i < D; i++)
                x[i] = t_gauss(&seed);
            unit(x, q[t][h]);
            for (int i = 0; i < D; i++)
                v[t][h][i] = (float)t_half(sqrt(D) * t_gauss(&seed));
            beta[t][h][0] = (float)t_half(1 - 0.02 * t_uniform(&seed));
            g[t][h][0] = (float)t_half(log_decay(decay_of(h), &seed));
        }
}

static void find_truth(void)
{
    static double s[HEADS][D][D];

    memset(s, 0, sizeof s);
    for (int n = 0; n < TOKENS * HEADS * D; n++) {
        int t = n / D / HEADS, h = n / D % HEADS, j = n % D;
        double decay = exp((double)g[t][h][0]), known = 0, out = 0, delta;

        for (int i = 0; i < D; i++) {
            s[h][i][j] *= decay;
            known += s[h][i][j] * (double)k[t][h][i];
        }
        delta = (double)beta[t][h][0] * ((double)v[t][h][j] - known);
        for (int i = 0; i < D; i++) {
            s[h][i][j] += (double)k[t][h][i] * delta;
            out += s[h][i][j] * (double)q[t][h][i];
        }
        truth[t][h][j] = out;
    }
}

/* ---- the recurrence as a program ---- */

/* Every result of floats becomes an output behind the real one. */
static void show_everything(struct mil_function *f)
{
    mil_ref *outs =
        arena_alloc(&f->program->arena, f->n_values, sizeof *outs, &e);
    size_t n = 0;

    cr_assert(outs);
    outs[n++] = f->outputs[0];
    for (mil_ref r = 1; r < f->n_values; r++)
        if (mil_value(f, r)->kind == MIL_V_RESULT && !mil_value(f, r)->konst &&
            mil_value(f, r)->type.dtype == MIL_F16 && r != outs[0])
            outs[n++] = r;
    f->outputs = outs;
    f->n_outputs = n;
}

static mil_ref input(struct mb *b, const char *name, int64_t T, int64_t width)
{
    return mb_input(b, name, MIL_F16, 4, (int64_t[]){ 1, HEADS, T, width });
}

static void build(struct mil_program *p, const char *name, int64_t T)
{
    struct gdn_in in;
    struct mb b;
    mil_ref state, memory, out;

    mb_begin(&b, p, name);
    in.q = input(&b, "q", T, D);
    in.k = input(&b, "k", T, D);
    in.v = input(&b, "v", T, D);
    in.beta = input(&b, "beta", T, 1);
    in.g = input(&b, "g", T, 1);
    state = mb_state(&b, "memory", 4, (int64_t[]){ 1, HEADS, D, D });
    memory = MB(&b, read_state, .input = state);
    out = gdn_recurrence(&b, &in, T, CHUNK, &memory);
    MB(&b, write_state, .input = state, .data = memory);
    mb_output(&b, "o", out);
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
}

/* Rows [T][HEADS][width] as [HEADS][T][width]. */
static struct run_tensor by_head(const char *name, const float *rows, int T,
                                 int width, float *dst)
{
    struct run_tensor t = { .name = name, .data = dst };

    t.type = mil_type_make(MIL_F16, 4, (int64_t[]){ 1, HEADS, T, width });
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < T; i++, dst += width)
            memcpy(dst, rows + (i * HEADS + h) * width,
                   (size_t)width * sizeof *dst);
    return t;
}

static void all_finite(const struct run_tensor *outs, size_t n, int at)
{
    for (size_t i = 0; i < n; i++) {
        int64_t bad = 0, elems = mil_type_elems(&outs[i].type);

        for (int64_t j = 0; j < elems; j++)
            bad += !isfinite(((const float *)outs[i].data)[j]);
        cr_assert_eq(bad, 0, "token %d: %lld values of %s", at, (long long)bad,
                     outs[i].name);
    }
}

/* Squared errors by head. */
static void run_all(struct run_model *m, int T, double error[HEADS])
{
    static float room[5][HEADS * BATCH * D];
    static struct run_tensor outs[512];
    struct run_states *s = run_states_new(&e);

    memset(error, 0, HEADS * sizeof *error);
    for (int t = 0; t < TOKENS; t += T) {
        struct run_tensor in[5] = { by_head("q", q[t][0], T, D, room[0]),
                                    by_head("k", k[t][0], T, D, room[1]),
                                    by_head("v", v[t][0], T, D, room[2]),
                                    by_head("beta", beta[t][0], T, 1, room[3]),
                                    by_head("g", g[t][0], T, 1, room[4]) };
        const float *o;
        size_t n;

        cr_assert_eq(run_call(m, T == 1 ? "infer" : "prefill", s, in, 5, outs,
                              512, &n, &e),
                     0, "%s", e.text);
        cr_assert_lt(n, 512);
        all_finite(outs, n, t);
        o = outs[0].data;
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < T; i++)
                for (int j = 0; j < D; j++) {
                    double d = (double)*o++ - truth[t + i][h][j];

                    error[h] += d * d;
                }
    }
    run_states_free(s);
}

static double size_of_truth(int head)
{
    double sum = 0;

    for (int t = 0; t < TOKENS; t++)
        for (int j = 0; j < D; j++)
            sum += truth[t][head][j] * truth[t][head][j];
    return sum;
}

static void compare(const struct mil_program *p, enum run_profile profile)
{
    struct run_options o = { .profile = profile };
    struct run_model *m = run_open(p, &o, &e);
    double step[HEADS], chunk[HEADS];

    cr_assert(m, "%s", e.text);
    run_all(m, 1, step);
    run_all(m, BATCH, chunk);
    for (int h = 0; h < HEADS; h++) {
        static const char *const names[] = { "none", "slow", "any" };
        double all = size_of_truth(h), s = sqrt(step[h] / all);
        double c = sqrt(chunk[h] / all);

        printf("%s, keys %g, decay %s: recurrence %.1e, chunks %.1e\n",
               run_profile_name(profile), parallel[h % 4], names[decay_of(h)],
               s, c);
        cr_expect(c <= 2 * s, "head %d: %.2e, recurrence: %.2e", h, c, s);
        cr_expect(s < 0.02, "head %d: recurrence %.2e", h, s);
    }
    run_close(m);
}

Test(models_gdn_keys, chunks_are_as_exact_as_the_recurrence)
{
    struct mil_program *p = mil_program_new(&e);

    make_inputs();
    find_truth();
    build(p, "infer", 1);
    build(p, "prefill", BATCH);
    for (int i = 0; i < 2; i++)
        show_everything(p->functions[i]);
    compare(p, RUN_FP16);
    compare(p, RUN_ANE);
    mil_program_free(p);
}
