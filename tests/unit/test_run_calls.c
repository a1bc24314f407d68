/*
 * Calls side by side give what the same calls one by one give: values and
 * states, bit for bit, whatever the program does to its states.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "mil/build.h"
#include "mil/run/run.h"

#define H 160  /* width: H x H weights are taken for all calls at once */
#define ROWS 6 /* of the state */
#define CALLS 11
#define STEPS_MAX 12

static struct err e;
static unsigned seed;

static unsigned random_below(unsigned n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 10) % n;
}

static f16_t *weights(size_t n)
{
    f16_t *h = mem_alloc(n, sizeof(*h), &e);

    cr_assert(h);
    for (size_t i = 0; i < n; i++)
        h[i] = f32_to_f16(((float)random_below(513) - 256.0f) / 2048.0f);
    return h;
}

struct program {
    struct mil_program *p;
    struct mil_data data[STEPS_MAX];
    f16_t *bytes[STEPS_MAX];
    int n;
};

static mil_ref product(struct mb *b, struct program *g, mil_ref x)
{
    struct mil_data *d = &g->data[g->n];
    char name[16];

    g->bytes[g->n] = weights(H * H);
    d->type = mil_type_make(MIL_F16, 4, (int64_t[]){ H, H, 1, 1 });
    d->bytes = H * H * sizeof(f16_t);
    d->read = mil_data_read_memory;
    d->cookie = g->bytes[g->n];
    snprintf(name, sizeof(name), "w%d", g->n++);
    return mb_conv1x1(b, x, mb_data(b, name, d), 0);
}

/* Row `row` of the state as [1, H, 1, 1]. */
static mil_ref row_of(struct mb *b, mil_ref st, int32_t row)
{
    mil_ref r = MB(b, read_state, .input = st);

    r = MB(b, slice_by_size, .x = r, .begin = MB_INTS(b, row, 0),
           .size = MB_INTS(b, 1, H));
    return MB_RESHAPE(b, r, 1, H, 1, 1);
}

static void put_row(struct mb *b, mil_ref st, mil_ref begin, mil_ref end,
                    mil_ref x)
{
    mil_ref r = MB(b, slice_update, .x = MB(b, read_state, .input = st),
                   .update = MB_RESHAPE(b, x, 1, H), .begin = begin, .end = end,
                   .end_mask = MB_BOOLS(b, false, true));

    MB(b, write_state, .input = st, .data = r);
}

static void put_const(struct mb *b, mil_ref st, int32_t row, mil_ref x)
{
    put_row(b, st, MB_INTS(b, row, 0), MB_INTS(b, row + 1, 0), x);
}

/* At a row that the call gives. */
static void put_at(struct mb *b, mil_ref st, mil_ref pos, mil_ref x)
{
    mil_ref end = MB(b, add, .x = pos, .y = MB_INTS(b, 1));
    mil_ref lo = MB(b, concat, .values = MB_REFS(pos, MB_INTS(b, 0)),
                    .axis = mb_int(b, 0));
    mil_ref hi = MB(b, concat, .values = MB_REFS(end, MB_INTS(b, 0)),
                    .axis = mb_int(b, 0));

    put_row(b, st, lo, hi, x);
}

/* row + 1 rows: the last ones, or, by a begin that its mask ignores, the first
 * ones. */
static void put_many(struct mb *b, mil_ref st, int32_t row, bool masked,
                     mil_ref x)
{
    mil_ref u = MB(b, tile, .x = MB_RESHAPE(b, x, 1, H),
                   .reps = MB_INTS(b, row + 1, 1));
    mil_ref r = MB(b, slice_update, .x = MB(b, read_state, .input = st),
                   .update = u, .begin = MB_INTS(b, ROWS - 1 - row, 0),
                   .end = MB_INTS(b, masked ? row + 1 : ROWS, 0),
                   .begin_mask = MB_BOOLS(b, masked, false),
                   .end_mask = MB_BOOLS(b, false, true));

    MB(b, write_state, .input = st, .data = r);
}

/* One of what programs do; returns the new stream. */
static mil_ref random_step(struct mb *b, struct program *g, mil_ref st,
                           mil_ref pos, mil_ref x)
{
    int32_t row = (int32_t)random_below(ROWS);

    switch (random_below(10)) {
    case 0:
    case 1:
    case 2: return product(b, g, x);
    case 3: put_const(b, st, row, x); return x;
    case 4: return MB(b, add, .x = x, .y = row_of(b, st, row));
    case 5:
        put_const(b, st, row, MB(b, add, .x = x, .y = row_of(b, st, row)));
        return x;
    case 6:
        if (!random_below(4))
            put_at(b, st, pos, x);
        return x;
    case 7: put_many(b, st, row, random_below(2) != 0, x); return x;
    case 8: (void)product(b, g, x); return x; /* nobody uses it */
    default: return MB(b, tanh, .x = x);
    }
}

static void make(struct program *g, int steps)
{
    struct mb b;
    mil_ref x, st, pos;

    memset(g, 0, sizeof(*g));
    g->p = mil_program_new(&e);
    mb_begin(&b, g->p, "main");
    x = mb_input(&b, "x", MIL_F16, 4, (int64_t[]){ 1, H, 1, 1 });
    pos = mb_input(&b, "pos", MIL_I32, 1, (int64_t[]){ 1 });
    st = mb_state(&b, "s", 2, (int64_t[]){ ROWS, H });
    x = product(&b, g, x);
    for (int i = 0; i < steps; i++)
        x = random_step(&b, g, st, pos, x);
    /* a row that only the call knows ties all steps that touch the state */
    if (random_below(3))
        put_const(&b, st, (int32_t)random_below(ROWS), x);
    else
        put_at(&b, st, pos, x);
    mb_output(&b, "y", product(&b, g, x));
    mb_output(&b, "z", MB(&b, mul, .x = x, .y = mb_f16(&b, 0.5)));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
}

static void drop(struct program *g)
{
    mil_program_free(g->p);
    for (int i = 0; i < g->n; i++)
        mem_free(g->bytes[i]);
}

struct results {
    float y[CALLS][H], z[CALLS][H], state[ROWS * H];
};

static int take(void *cookie, size_t call, const struct run_tensor *outs,
                size_t n, struct err *err)
{
    struct results *r = cookie;

    (void)err;
    cr_assert_eq(n, 2);
    cr_assert_str_eq(outs[0].name, "y");
    memcpy(r->y[call], outs[0].data, sizeof(r->y[0]));
    memcpy(r->z[call], outs[1].data, sizeof(r->z[0]));
    return 0;
}

static float xs[CALLS][H];
static int32_t positions[CALLS];

static void inputs(struct run_tensor *in)
{
    for (int t = 0; t < CALLS; t++) {
        positions[t] = (int32_t)random_below(ROWS);
        for (int i = 0; i < H; i++)
            xs[t][i] = ((float)random_below(257) - 128.0f) / 64.0f;
        in[2 * t].name = "x";
        in[2 * t].type = mil_type_make(MIL_F16, 4, (int64_t[]){ 1, H, 1, 1 });
        in[2 * t].data = xs[t];
        in[2 * t + 1].name = "pos";
        in[2 * t + 1].type = mil_type_make(MIL_I32, 1, (int64_t[]){ 1 });
        in[2 * t + 1].data = &positions[t];
    }
}

static void one_by_one(struct run_model *m, const struct run_tensor *in,
                       struct run_states *s, struct results *r)
{
    struct run_tensor out[2];
    size_t n;

    for (size_t t = 0; t < CALLS; t++) {
        cr_assert_eq(run_call(m, NULL, s, in + 2 * t, 2, out, 2, &n, &e), 0,
                     "%s", e.text);
        cr_assert_eq(take(r, t, out, n, &e), 0);
    }
    memcpy(r->state, run_state_data(s, "s", NULL), sizeof(r->state));
}

static void side_by_side(struct run_model *m, const struct run_tensor *in,
                         struct run_states *s, struct results *r)
{
    struct run_calls calls = {
        .n = CALLS, .n_inputs = 2, .inputs = in, .take = take, .cookie = r
    };

    cr_assert_eq(run_many(m, s, &calls, &e), 0, "%s", e.text);
    memcpy(r->state, run_state_data(s, "s", NULL), sizeof(r->state));
}

static void compare(int program, enum run_profile profile, uint64_t const_bytes)
{
    static struct results want, got;
    struct run_options o = { .profile = profile, .const_bytes = const_bytes };
    struct run_tensor in[2 * CALLS];
    struct program g;
    struct run_model *m;

    seed = (unsigned)program;
    make(&g, 2 + program % (STEPS_MAX - 3));
    inputs(in);
    m = run_open(g.p, &o, &e);
    cr_assert(m, "%s", e.text);
    /* on one model, in turns: neither way leaves anything behind */
    for (int round = 0; round < 2; round++) {
        struct run_states *a = run_states_new(&e), *b = run_states_new(&e);

        one_by_one(m, in, a, &want);
        side_by_side(m, in, b, &got);
        cr_assert_eq(memcmp(want.y, got.y, sizeof(want.y)), 0, "program %d: y",
                     program);
        cr_assert_eq(memcmp(want.z, got.z, sizeof(want.z)), 0, "program %d: z",
                     program);
        cr_assert_eq(memcmp(want.state, got.state, sizeof(want.state)), 0,
                     "program %d: state", program);
        run_states_free(a);
        run_states_free(b);
    }
    run_close(m);
    drop(&g);
}

Test(run_calls, random_programs, .timeout = 60)
{
    for (int i = 0; i < 400; i++)
        compare(i, i % 2 ? RUN_FP16 : RUN_F32, i % 3 ? 0 : 1);
}

/* ---- what is read ---- */

struct source {
    struct mil_data data;
    const f16_t *bytes;
    uint64_t read;
    bool broken;
};

static int read_source(void *cookie, uint64_t offset, void *dst, size_t n,
                       struct err *err)
{
    struct source *s = cookie;

    if (s->broken)
        return err_set(err, ERR_IO, "the disk is gone");
    s->read += n;
    memcpy(dst, (const unsigned char *)s->bytes + offset, n);
    return 0;
}

/* A layer that reads its own row and writes it, between two products; with
 * `mixed`, a third product's result goes to the row that the first part of the
 * next call reads. */
static struct mil_program *layer(struct source *s, int n, bool mixed)
{
    struct mil_program *p = mil_program_new(&e);
    mil_ref x, st, w[3];
    struct mb b;

    mb_begin(&b, p, "main");
    x = mb_input(&b, "x", MIL_F16, 4, (int64_t[]){ 1, H, 1, 1 });
    (void)mb_input(&b, "pos", MIL_I32, 1, (int64_t[]){ 1 });
    st = mb_state(&b, "s", 2, (int64_t[]){ ROWS, H });
    for (int i = 0; i < n; i++) {
        char name[8];

        s[i].data.type = mil_type_make(MIL_F16, 4, (int64_t[]){ H, H, 1, 1 });
        s[i].data.bytes = H * H * 2;
        s[i].data.read = read_source;
        s[i].data.cookie = &s[i];
        snprintf(name, sizeof(name), "w%d", i);
        w[i] = mb_data(&b, name, &s[i].data);
    }
    x = mb_conv1x1(&b, x, w[0], 0);
    x = MB(&b, add, .x = x, .y = row_of(&b, st, 2));
    if (mixed) /* within what one call must finish before the next begins */
        x = mb_conv1x1(&b, x, w[1], 0);
    put_const(&b, st, 2, x);
    if (!mixed)
        x = mb_conv1x1(&b, x, w[1], 0);
    mb_output(&b, "y", mb_conv1x1(&b, x, w[2], 0));
    mb_output(&b, "z", MB(&b, tanh, .x = x));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    return p;
}

Test(run_calls, weights_are_read_once_where_states_allow)
{
    struct run_options o = { .profile = RUN_F32, .const_bytes = 1 };
    struct run_tensor in[2 * CALLS];
    static struct results r;

    for (int mixed = 0; mixed < 2; mixed++) {
        struct source s[3] = { { .read = 0 } };
        struct run_states *states = run_states_new(&e);
        struct mil_program *p = layer(s, 3, mixed);
        struct run_model *m;

        for (int i = 0; i < 3; i++)
            s[i].bytes = weights(H * H);
        inputs(in);
        m = run_open(p, &o, &e);
        cr_assert(m, "%s", e.text);
        side_by_side(m, in, states, &r);
        cr_expect_eq(s[0].read, H * H * 2);
        cr_expect_eq(s[1].read, (mixed ? CALLS : 1) * H * H * 2, "%d", mixed);
        cr_expect_eq(s[2].read, H * H * 2);
        run_close(m);
        run_states_free(states);
        mil_program_free(p);
        for (int i = 0; i < 3; i++)
            mem_free((void *)(uintptr_t)s[i].bytes);
    }
}

/* ---- errors ---- */

/* Calls fail while a larger storage is already there; single calls after that
 * find their values. */
Test(run_calls, a_failure_leaves_the_plan_sound)
{
    struct run_options o = { .profile = RUN_F32, .const_bytes = 1 };
    struct source s[3] = { { .read = 0 } };
    struct run_states *a = run_states_new(&e), *b = run_states_new(&e);
    struct run_tensor in[2 * CALLS];
    static struct results want, got;
    struct mil_program *p = layer(s, 3, false);
    struct run_calls calls = {
        .n = 2, .n_inputs = 2, .inputs = in, .take = take, .cookie = &got
    };
    struct run_model *m;

    for (int i = 0; i < 3; i++)
        s[i].bytes = weights(H * H);
    inputs(in);
    m = run_open(p, &o, &e);
    cr_assert(m, "%s", e.text);
    one_by_one(m, in, a, &want);
    cr_assert_eq(run_many(m, b, &calls, &e), 0, "%s", e.text);
    calls.n = CALLS;
    s[0].broken = true;
    cr_assert_eq(run_many(m, b, &calls, &e), -1);
    cr_expect(strstr(e.text, "the disk is gone"), "%s", e.text);
    s[0].broken = false;
    run_states_reset(b);
    one_by_one(m, in, b, &got);
    cr_expect_eq(memcmp(&want, &got, sizeof(want)), 0);
    run_close(m);
    run_states_free(a);
    run_states_free(b);
    mil_program_free(p);
    for (int i = 0; i < 3; i++)
        mem_free((void *)(uintptr_t)s[i].bytes);
}

static int refuse(void *cookie, size_t call, const struct run_tensor *outs,
                  size_t n, struct err *err)
{
    (void)outs;
    (void)n;
    if (call == *(size_t *)cookie)
        return err_set(err, ERR_INPUT, "no more");
    return 0;
}

Test(run_calls, errors_come_through)
{
    struct run_options o = { .profile = RUN_F32 };
    struct run_states *s = run_states_new(&e);
    struct run_tensor in[2 * CALLS];
    size_t last = 4;
    struct run_calls calls = {
        .n = CALLS, .n_inputs = 2, .inputs = in, .take = refuse, .cookie = &last
    };
    struct program g;
    struct run_model *m;

    seed = 5;
    make(&g, 4);
    inputs(in);
    m = run_open(g.p, &o, &e);
    cr_assert(m, "%s", e.text);
    cr_expect_eq(run_many(m, s, &calls, &e), -1);
    cr_expect_str_eq(e.text, "no more");
    err_reset(&e);
    in[2 * 7].name = "u";
    cr_expect_eq(run_many(m, s, &calls, &e), -1);
    cr_expect_str_eq(e.text, "function 'main': input 'x' is missing");
    err_reset(&e);
    in[2 * 7].name = "x";
    cr_expect_eq(run_many(m, NULL, &calls, &e), -1);
    cr_expect_str_eq(e.text, "function 'main': state 's': no states are given");
    err_reset(&e);
    calls.function = "other";
    cr_expect_eq(run_many(m, s, &calls, &e), -1);
    cr_expect_str_eq(e.text, "the program has no function 'other'");
    run_close(m);
    run_states_free(s);
    drop(&g);
}
