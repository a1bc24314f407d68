/*
 * States of the runtime: what reads see around writes, updates in place that
 * nobody can tell from copies, sharing between functions and models, and the
 * cost of a cache update.
 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "converter/base/num.h"
#include "mil/build.h"
#include "mil/run/run.h"

#define N 8 /* elements of the small states */

static struct err e;

static mil_ref update(struct mb *b, mil_ref x, mil_ref u, int at)
{
    int64_t n = mb_dim(b, u, 0);

    return MB(b, slice_update, .x = x, .update = u, .begin = MB_INTS(b, at),
              .end = MB_INTS(b, at + (int32_t)n));
}

static struct run_model *open_program(struct mil_program *p)
{
    struct run_options o = { .profile = RUN_F32 };
    struct run_model *m = run_open(p, &o, &e);

    cr_assert(m, "%s", e.text);
    return m;
}

static struct run_tensor vec(const char *name, int64_t n, const float *v)
{
    struct run_tensor t = { name, mil_type_make(MIL_F16, 1, &n), v };

    return t;
}

static void call(struct run_model *m, const char *f, struct run_states *s,
                 const struct run_tensor *in, size_t n_in,
                 struct run_tensor *out, size_t n_out)
{
    size_t n;

    cr_assert_eq(run_call(m, f, s, in, n_in, out, n_out, &n, &e), 0, "%s",
                 e.text);
    cr_assert_eq(n, n_out);
}

static void expect(const struct run_tensor *t, const float *want, int n)
{
    for (int i = 0; i < n; i++)
        cr_expect_eq(((const float *)t->data)[i], want[i],
                     "%s[%d] is %g, expected %g", t->name, i,
                     (double)((const float *)t->data)[i], (double)want[i]);
}

/* ---- reads and writes ---- */

Test(run_state, a_read_keeps_what_it_saw)
{
    struct mil_program *p = mil_program_new(&e);
    struct run_states *s = run_states_new(&e);
    struct run_tensor in, out[3];
    struct run_model *m;
    float x[N] = { 1, 2, 3, 4, 5, 6, 7, 8 }, zero[N] = { 0 };
    struct mb b;

    mb_begin(&b, p, "main");
    mil_ref in_x = mb_input(&b, "x", MIL_F16, 1, (int64_t[]){ N });
    mil_ref st = mb_state(&b, "s", 1, (int64_t[]){ N });
    mil_ref before = MB(&b, read_state, .input = st);
    MB(&b, write_state, .input = st, .data = MB(&b, add, .x = in_x, .y = in_x));
    mil_ref after = MB(&b, read_state, .input = st);
    mb_output(&b, "before", MB(&b, mul, .x = before, .y = mb_f16(&b, 1)));
    mb_output(&b, "after", MB(&b, mul, .x = after, .y = mb_f16(&b, 1)));
    mb_output(&b, "raw", MB(&b, identity, .x = after));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    m = open_program(p);
    in = vec("x", N, x);
    call(m, "main", s, &in, 1, out, 3);
    expect(&out[0], zero, N);
    expect(&out[1], (float[]){ 2, 4, 6, 8, 10, 12, 14, 16 }, N);
    expect(&out[2], (float[]){ 2, 4, 6, 8, 10, 12, 14, 16 }, N);
    /* outputs are the model's own: a later change of the state by others
     * does not reach them */
    run_states_reset(s);
    expect(&out[2], (float[]){ 2, 4, 6, 8, 10, 12, 14, 16 }, N);
    run_close(m);
    run_states_free(s);
    mil_program_free(p);
}

Test(run_state, an_update_that_is_not_written_leaves_the_state)
{
    struct mil_program *p = mil_program_new(&e);
    struct run_states *s = run_states_new(&e);
    struct run_tensor in, out[2];
    struct run_model *m;
    float x[2] = { 7, 9 }, zero[N] = { 0 };
    struct mb b;

    mb_begin(&b, p, "main");
    mil_ref in_x = mb_input(&b, "x", MIL_F16, 1, (int64_t[]){ 2 });
    mil_ref st = mb_state(&b, "s", 1, (int64_t[]){ N });
    mil_ref r = MB(&b, read_state, .input = st);
    mil_ref u = update(&b, r, in_x, 3);
    mil_ref again = MB(&b, read_state, .input = st);
    mb_output(&b, "u", MB(&b, mul, .x = u, .y = mb_f16(&b, 1)));
    mb_output(&b, "again", MB(&b, mul, .x = again, .y = mb_f16(&b, 1)));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    m = open_program(p);
    in = vec("x", 2, x);
    for (int i = 0; i < 2; i++) {
        call(m, "main", s, &in, 1, out, 2);
        expect(&out[0], (float[]){ 0, 0, 0, 7, 9, 0, 0, 0 }, N);
        expect(&out[1], zero, N);
    }
    run_close(m);
    run_states_free(s);
    mil_program_free(p);
}

/* ---- random programs against a plain interpreter ---- */

#define MAX_VALUES 64

struct model {
    uint64_t seed;
    struct mb b;
    mil_ref refs[MAX_VALUES];
    float value[MAX_VALUES][N];
    int n;
    float state[2][N];
    mil_ref st[2];
    char text[4096];
};

static unsigned rnd(struct model *r, unsigned n)
{
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(r->seed >> 33) % n;
}

static void note(struct model *r, const char *what, int a, int c)
{
    size_t at = strlen(r->text);

    snprintf(r->text + at, sizeof(r->text) - at, "v%d = %s %d %d\n", r->n - 1,
             what, a, c);
}

static void push(struct model *r, mil_ref ref, const float *v, const char *what,
                 int a, int c)
{
    r->refs[r->n] = ref;
    memcpy(r->value[r->n++], v, sizeof(r->value[0]));
    note(r, what, a, c);
}

/* One random step: the builder's and the interpreter's. */
static void random_step(struct model *r)
{
    struct mb *b = &r->b;
    int v = (int)rnd(r, (unsigned)r->n), w = (int)rnd(r, (unsigned)r->n);
    int s = (int)rnd(r, 2), at = (int)rnd(r, N - 2);
    float t[N];

    switch (rnd(r, 8)) {
    case 0:
    case 1:
        push(r, MB(b, read_state, .input = r->st[s]), r->state[s], "read", s,
             0);
        break;
    case 2:
    case 3: /* mostly the newest value: the pattern of caches */
        v = rnd(r, 4) ? r->n - 1 : v;
        MB(b, write_state, .input = r->st[s], .data = r->refs[v]);
        memcpy(r->state[s], r->value[v], sizeof(t));
        note(r, "(write)", s, v);
        break;
    case 4:
    case 5: { /* two elements of w into v */
        mil_ref u = MB(b, slice_by_index, .x = r->refs[w],
                       .begin = MB_INTS(b, at), .end = MB_INTS(b, at + 2));

        v = rnd(r, 3) ? r->n - 1 : v;
        memcpy(t, r->value[v], sizeof(t));
        memcpy(t + 1, r->value[w] + at, 2 * sizeof(float));
        push(r, update(b, r->refs[v], u, 1), t, "update", v, w * 10 + at);
        break;
    }
    case 6:
        memcpy(t, r->value[v], sizeof(t));
        push(r,
             MB_RESHAPE(b,
                        MB(b, expand_dims, .x = r->refs[v],
                           .axes = MB_INTS(b, 0)),
                        N),
             t, "view", v, 0);
        break;
    default:
        for (int i = 0; i < N; i++)
            t[i] = r->value[v][i] + r->value[w][i];
        push(r, MB(b, add, .x = r->refs[v], .y = r->refs[w]), t, "add", v, w);
        break;
    }
}

/* Sums of values, weighted so that no two cancel. */
static void add_outputs(struct model *r, float want[][N], int *n_out)
{
    *n_out = 0;
    for (int i = 0; i < r->n && *n_out < 12; i++) {
        char name[16];
        mil_ref y;

        if (rnd(r, 3) && i != r->n - 1)
            continue;
        snprintf(name, sizeof(name), "out%d", i);
        y = rnd(r, 2) ? MB(&r->b, identity, .x = r->refs[i])
                      : MB(&r->b, mul, .x = r->refs[i], .y = mb_f16(&r->b, 1));
        mb_output(&r->b, name, y);
        memcpy(want[(*n_out)++], r->value[i], sizeof(want[0]));
    }
}

static void random_program(uint64_t seed)
{
    struct mil_program *p = mil_program_new(&e);
    struct run_states *s = run_states_new(&e);
    static struct model r;
    static float want[12][N];
    float x[N], y[N];
    struct run_tensor in[2], out[12];
    struct run_model *m;
    int n_out, steps;

    memset(&r, 0, sizeof(r));
    r.seed = seed;
    mb_begin(&r.b, p, "main");
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i + 1);
        y[i] = (float)(100 + 3 * i);
    }
    push(&r, mb_input(&r.b, "x", MIL_F16, 1, (int64_t[]){ N }), x, "x", 0, 0);
    push(&r, mb_input(&r.b, "y", MIL_F16, 1, (int64_t[]){ N }), y, "y", 0, 0);
    r.st[0] = mb_state(&r.b, "s0", 1, (int64_t[]){ N });
    r.st[1] = mb_state(&r.b, "s1", 1, (int64_t[]){ N });
    steps = 4 + (int)rnd(&r, 30);
    for (int i = 0; i < steps; i++)
        random_step(&r);
    add_outputs(&r, want, &n_out);
    cr_assert_eq(mb_end(&r.b, &e), 0, "%s", e.text);
    m = open_program(p);
    in[0] = vec("x", N, x);
    in[1] = vec("y", N, y);
    call(m, "main", s, in, 2, out, (size_t)n_out);
    for (int i = 0; i < n_out; i++)
        cr_expect(memcmp(out[i].data, want[i], sizeof(want[0])) == 0,
                  "seed %llu, %s:\n%s", (unsigned long long)seed, out[i].name,
                  r.text);
    for (int i = 0; i < 2; i++) {
        const float *d = run_state_data(s, i ? "s1" : "s0", NULL);

        cr_expect(d && memcmp(d, r.state[i], sizeof(r.state[i])) == 0,
                  "seed %llu, state %d:\n%s", (unsigned long long)seed, i,
                  r.text);
    }
    run_close(m);
    run_states_free(s);
    mil_program_free(p);
}

Test(run_state, random_programs_behave_as_if_everything_were_copied)
{
    for (uint64_t seed = 1; seed <= 4000; seed++)
        random_program(seed);
}

/* ---- sharing ---- */

static struct mil_program *counter(const char *f1, const char *f2, int64_t n)
{
    struct mil_program *p = mil_program_new(&e);
    const char *const names[2] = { f1, f2 };

    for (int i = 0; i < 2 && names[i]; i++) {
        struct mb b;

        mb_begin(&b, p, names[i]);
        mil_ref x = mb_input(&b, "x", MIL_F16, 1, &n);
        mil_ref st = mb_state(&b, "count", 1, &n);
        mil_ref r = MB(&b, read_state, .input = st);
        mil_ref y = MB(&b, add, .x = r, .y = x);
        if (i)
            y = MB(&b, add, .x = y, .y = x);
        MB(&b, write_state, .input = st, .data = y);
        mil_ref after = MB(&b, read_state, .input = st);
        mb_output(&b, "y", MB(&b, mul, .x = after, .y = mb_f16(&b, 1)));
        cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    }
    return p;
}

Test(run_state, functions_and_models_share_by_name)
{
    struct mil_program *p = counter("infer", "prefill", 2);
    struct mil_program *q = counter("main", NULL, 2);
    struct run_model *m = open_program(p), *k = open_program(q);
    struct run_states *s = run_states_new(&e), *t;
    const struct mil_type *type;
    float one[2] = { 1, 10 };
    struct run_tensor in = vec("x", 2, one), out;

    cr_expect_null(run_state_data(s, "count", NULL));
    call(m, "infer", s, &in, 1, &out, 1);
    expect(&out, (float[]){ 1, 10 }, 2);
    call(m, "prefill", s, &in, 1, &out, 1);
    expect(&out, (float[]){ 3, 30 }, 2);
    call(k, "main", s, &in, 1, &out, 1);
    expect(&out, (float[]){ 4, 40 }, 2);
    t = run_states_copy(s, &e);
    cr_assert(t);
    call(k, NULL, t, &in, 1, &out, 1);
    expect(&out, (float[]){ 5, 50 }, 2);
    cr_expect_eq(run_state_data(s, "count", &type)[0], 4.0f);
    cr_expect_eq(type->dims[0], 2);
    run_states_reset(s);
    cr_expect_eq(run_state_data(s, "count", NULL)[1], 0.0f);
    call(m, "infer", s, &in, 1, &out, 1);
    expect(&out, (float[]){ 1, 10 }, 2);
    run_close(m);
    run_close(k);
    run_states_free(s);
    run_states_free(t);
    mil_program_free(p);
    mil_program_free(q);
}

Test(run_state, another_shape_under_the_same_name_is_refused)
{
    struct mil_program *p = counter("main", NULL, 2);
    struct mil_program *q = counter("main", NULL, 3);
    struct run_model *m = open_program(p), *k = open_program(q);
    struct run_states *s = run_states_new(&e);
    float x[3] = { 1, 2, 3 };
    struct run_tensor in = vec("x", 2, x), out;
    size_t n;

    call(m, "main", s, &in, 1, &out, 1);
    in = vec("x", 3, x);
    cr_expect_neq(run_call(k, "main", s, &in, 1, &out, 1, &n, &e), 0);
    cr_expect_str_eq(e.text,
                     "function 'main': state 'count' is declared as "
                     "tensor<fp16, [3]>, but was tensor<fp16, [2]> before");
    err_reset(&e);
    cr_expect_neq(run_call(m, "main", NULL, &in, 1, &out, 1, &n, &e), 0);
    run_close(m);
    run_close(k);
    run_states_free(s);
    mil_program_free(p);
    mil_program_free(q);
}

Test(run_state, no_states_given)
{
    struct mil_program *p = counter("main", NULL, 2);
    struct run_model *m = open_program(p);
    float x[2] = { 1, 2 };
    struct run_tensor in = vec("x", 2, x), out;
    size_t n;

    cr_expect_neq(run_call(m, "main", NULL, &in, 1, &out, 1, &n, &e), 0);
    cr_expect_str_eq(e.text,
                     "function 'main': state 'count': no states are given");
    run_close(m);
    mil_program_free(p);
}

/* FP16: a state holds halves; F32: floats. */
Test(run_state, profile_decides_what_a_state_holds)
{
    struct mil_program *p = counter("main", NULL, 1);
    float third = 1.0f / 3.0f;

    for (int half = 0; half < 2; half++) {
        struct run_options o = { .profile = half ? RUN_FP16 : RUN_F32 };
        struct run_model *m = run_open(p, &o, &e);
        struct run_states *s = run_states_new(&e);
        struct run_tensor in = vec("x", 1, &third), out;
        float got;

        cr_assert(m);
        call(m, "main", s, &in, 1, &out, 1);
        got = run_state_data(s, "count", NULL)[0];
        cr_expect_eq(got, half ? f16_to_f32(f32_to_f16(third)) : third);
        run_close(m);
        run_states_free(s);
    }
    mil_program_free(p);
}

/* ---- cost ---- */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* not the load */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A cache of 64 MB, one position written and one layer read. */
static struct mil_program *cache(int32_t layers, int32_t ctx)
{
    struct mil_program *p = mil_program_new(&e);
    struct mb b;

    mb_begin(&b, p, "main");
    mil_ref x = mb_input(&b, "x", MIL_F16, 4, (int64_t[]){ 1, 2, 1, 64 });
    mil_ref pos = mb_input(&b, "pos", MIL_I32, 1, (int64_t[]){ 1 });
    mil_ref st = mb_state(&b, "kv", 4, (int64_t[]){ 2 * layers, 2, ctx, 64 });
    mil_ref end = MB(&b, add, .x = pos, .y = MB_INTS(&b, 1)), r = 0;

    for (int32_t l = 0; l < 2 * layers; l++) {
        mil_ref lo = MB_INTS(&b, l), hi = MB_INTS(&b, l + 1);
        mil_ref begin =
            MB(&b, concat,
               .values = MB_REFS(lo, MB_INTS(&b, 0), pos, MB_INTS(&b, 0)),
               .axis = mb_int(&b, 0));
        mil_ref stop =
            MB(&b, concat,
               .values = MB_REFS(hi, MB_INTS(&b, 0), end, MB_INTS(&b, 0)),
               .axis = mb_int(&b, 0));

        r = MB(&b, slice_update, .x = MB(&b, read_state, .input = st),
               .update = x, .begin = begin, .end = stop,
               .end_mask = MB_BOOLS(&b, false, true, false, true));
        MB(&b, write_state, .input = st, .data = r);
    }
    r = MB(&b, read_state, .input = st);
    r = MB(&b, slice_by_size, .x = r, .begin = MB_INTS(&b, 1, 1, 3, 0),
           .size = MB_INTS(&b, 1, 1, 1, 64));
    mb_output(&b, "y", MB(&b, mul, .x = r, .y = mb_f16(&b, 1)));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    return p;
}

Test(run_state, a_cache_update_costs_what_the_update_costs)
{
    struct mil_program *p = cache(16, 4096);
    struct run_model *m = open_program(p);
    struct run_states *s = run_states_new(&e);
    float x[128];
    struct run_tensor in[2], out;
    double t;

    for (int i = 0; i < 128; i++)
        x[i] = (float)i;
    in[0].name = "x";
    in[0].type = mil_type_make(MIL_F16, 4, (int64_t[]){ 1, 2, 1, 64 });
    in[0].data = x;
    in[1].name = "pos";
    in[1].type = mil_type_make(MIL_I32, 1, (int64_t[]){ 1 });
    in[1].data = (int32_t[]){ 3 };
    call(m, "main", s, in, 2, &out, 1);
    expect(&out, x + 64, 64);
    t = now();
    for (int i = 0; i < 100; i++)
        call(m, "main", s, in, 2, &out, 1);
    t = (now() - t) / 100;
    /* copies of 64 MB, 32 of them, take hundreds of milliseconds */
    cr_expect_lt(t, 0.005, "a call takes %g s", t);
    cr_expect_lt(run_resident_bytes(m), 4u << 20);
    run_close(m);
    run_states_free(s);
    mil_program_free(p);
}
