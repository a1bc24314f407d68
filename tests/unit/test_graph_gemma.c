/*
 * Gemma's caches, through whole packages: calls of any length at any position
 * give what single tokens give, and single tokens what the reference gives.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "converter/gate.h"
#include "converter/package_run.h"
#include "t_gate.h"
#include "t_graph.h"

static struct err err;

#define VOCAB 512
#define BATCH 16

static void make_ids(int32_t *ids, size_t n)
{
    uint32_t x = 7;

    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)(x >> 8) % VOCAB;
    }
}

static struct package *open_package(const struct t_gate *t,
                                    enum run_profile profile)
{
    struct run_options o = { .profile = profile };
    struct package *p = package_open(t->honest, &o, &err);

    cr_assert(p, "%s", err.text);
    cr_assert_eq(package_vocab(p), VOCAB);
    return p;
}

/* Logits of every position, token by token, [n, VOCAB]; mem_free. */
static float *singly(struct package *p, const int32_t *ids, size_t n)
{
    float *y = mem_alloc(n * VOCAB, sizeof(*y), &err);

    cr_assert(y);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(package_feed(p, ids + i, 1, false, y + i * VOCAB, &err), 0,
                     "%s", err.text);
    return y;
}

/* Calls of these lengths, over and over: 1 or a batch. Logits at the end of
 * each are the very ones of single tokens. */
static void expect_same(struct package *p, const int32_t *ids, size_t n,
                        const int *calls, size_t n_calls, const float *want)
{
    float y[VOCAB];
    size_t at = 0;

    for (size_t i = 0;; i++) {
        size_t m = (size_t)calls[i % n_calls];

        if (at + m > n)
            return;
        cr_assert_eq(package_feed(p, ids + at, m, m > 1, y, &err), 0, "%s",
                     err.text);
        at += m;
        cr_assert_eq(memcmp(y, want + (at - 1) * VOCAB, sizeof(y)), 0,
                     "position %zu, behind a call of %zu", at - 1, m);
    }
}

static const int batches[] = { BATCH };
static const int mixed[] = { 1, 1, 1, BATCH, 1, BATCH, BATCH, 1, 1, 1, 1, 1 };

/* Any calls; twice over the same state, which restarts at 0. */
static void calls_agree(const struct t_gate *t, enum run_profile profile,
                        size_t n)
{
    struct package *p = open_package(t, profile);
    int32_t ids[512];
    float *want;

    cr_assert(n <= 512);
    make_ids(ids, n);
    want = singly(p, ids, n);
    package_restart(p);
    expect_same(p, ids, n, batches, 1, want);
    package_restart(p);
    expect_same(p, ids, n, mixed, sizeof(mixed) / sizeof(mixed[0]), want);
    /* A restart in the middle leaves nothing that shows. */
    package_restart(p);
    expect_same(p, ids, 50, batches, 1, want);
    package_restart(p);
    expect_same(p, ids, n, mixed, sizeof(mixed) / sizeof(mixed[0]), want);
    mem_free(want);
    package_close(p);
}

Test(graph_gemma, shifting_cache_takes_calls_at_any_position)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "gemma4", .like = "tiny", .ctx = 256,
                .batch = BATCH, .chunks = 3);
    calls_agree(&t, RUN_FP16, 256);
    calls_agree(&t, RUN_F32, 128);
    t_gate_drop(&t);
}

Test(graph_gemma, masked_cache_takes_calls_at_any_position)
{
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "gemma4", .like = "tiny", .ctx = 64,
                .batch = BATCH);
    calls_agree(&t, RUN_FP16, 64);
    t_gate_drop(&t);
}

/* A batch of 64 is longer than the window of 32. */
Test(graph_gemma, batch_longer_than_the_window)
{
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "gemma3", .like = "tiny", .ctx = 256, .batch = 64);
    cr_expect_eq(t_gate_run(&t, t.honest, RUN_F32, &r), GATE_PASS, "%s",
                 r.reason);
    t_gate_drop(&t);
    T_GATE_MAKE(&t, .arch = "gemma4", .like = "tiny", .ctx = 256, .batch = 64);
    cr_expect_eq(t_gate_run(&t, t.honest, RUN_F32, &r), GATE_PASS, "%s",
                 r.reason);
    t_gate_drop(&t);
}

/* Keys lie elsewhere in the two functions, so sums differ in their last
 * bits. */
Test(graph_gemma, rotating_cache_takes_calls_at_any_position)
{
    struct package *p;
    int32_t ids[128];
    float *want, y[VOCAB];
    size_t at = 0;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "gemma3", .like = "tiny", .ctx = 128,
                .batch = BATCH, .chunks = 2);
    p = open_package(&t, RUN_F32);
    make_ids(ids, 128);
    want = singly(p, ids, 128);
    package_restart(p);
    for (size_t i = 0;; i++) {
        size_t m = (size_t)mixed[i % (sizeof(mixed) / sizeof(mixed[0]))];

        if (at + m > 128)
            break;
        cr_assert_eq(package_feed(p, ids + at, m, m > 1, y, &err), 0, "%s",
                     err.text);
        at += m;
        for (int v = 0; v < VOCAB; v++)
            cr_assert(fabsf(y[v] - want[(at - 1) * VOCAB + (size_t)v]) < 1e-3f,
                      "position %zu", at - 1);
    }
    mem_free(want);
    package_close(p);
    t_gate_drop(&t);
}

/* Past a hundred blocks and sixty windows, each position against the
 * reference. */
Test(graph_gemma, two_thousand_positions_equal_the_reference)
{
    struct gate_result r;
    struct t_gate t;

    T_GATE_MAKE(&t, .arch = "gemma4", .like = "tiny", .ctx = 2048,
                .batch = BATCH);
    cr_expect_eq(t_gate_run(&t, t.honest, RUN_F32, &r), GATE_PASS, "%s",
                 r.reason);
    cr_expect_geq(r.positions, 2048u);
    cr_expect_eq(r.prefill_infer_max_diff, 0.0);
    cr_expect_geq(r.loss.cosine_min, 0.99999);
    t_gate_drop(&t);
}

/* States as the contract has them: every chunk declares both, keys and values
 * of a layer in one slot. */
Test(graph_gemma, states)
{
    static const struct {
        const char *arch, *like;
        int64_t ctx, local[4], global[4];
    } cases[] = {
        { "gemma4", "tiny", 256, { 4, 2, 64, 32 }, { 1, 2, 256, 64 } },
        { "gemma4", "tiny", 64, { 4, 2, 64, 32 }, { 1, 2, 64, 64 } },
        { "gemma4", "odd", 96, { 4, 6, 56, 40 }, { 2, 4, 96, 80 } },
        { "gemma3", "tiny", 96, { 12, 1, 32, 32 }, { 2, 1, 96, 32 } },
        { "gemma3", "tiny", 16, { 12, 1, 16, 32 }, { 2, 1, 16, 32 } },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct t_gate t;
        struct package *p;
        bool rotates = cases[i].arch[5] == '3' && cases[i].ctx > 32;

        T_GATE_MAKE(&t, .arch = cases[i].arch, .like = cases[i].like,
                    .ctx = cases[i].ctx, .batch = BATCH, .chunks = 2);
        p = package_open(t.honest, &(struct run_options){ .par = NULL }, &err);
        cr_assert(p, "%s", err.text);
        for (size_t c = 1; c <= 2; c++) {
            const struct mil_program *g = pkg_program(package_file(p, c));

            cr_expect_eq(g->n_functions, rotates ? 4u : 2u);
            for (size_t f = 0; f < g->n_functions; f++) {
                const struct mil_function *fn = g->functions[f];
                mil_ref l = mil_find_value(fn, "model_model_kv_cache_local");
                mil_ref q = mil_find_value(fn, "model_model_kv_cache_global");

                cr_assert(l && q);
                for (int k = 0; k < 4; k++) {
                    cr_expect_eq(mil_value(fn, l)->type.dims[k],
                                 cases[i].local[k]);
                    cr_expect_eq(mil_value(fn, q)->type.dims[k],
                                 cases[i].global[k]);
                }
            }
        }
        package_close(p);
        t_gate_drop(&t);
    }
}

/* ---- states ---- */

/* The state that an op slices what was read of; 0: none. */
static mil_ref sliced_state(const struct mil_function *f,
                            const struct mil_op *op)
{
    const struct mil_op *read;
    mil_ref x;

    if (op->code != MIL_OP_slice_by_size)
        return 0;
    x = tg_arg(op, "x", 0);
    if (mil_value(f, x)->op < 0)
        return 0;
    read = &f->ops[mil_value(f, x)->op];
    return read->code == MIL_OP_read_state ? tg_arg(read, "input", 0) : 0;
}

static bool uses(const struct mil_op *op, mil_ref r)
{
    for (int k = 0; k < mil_op_info(op->code)->n_params; k++)
        for (uint32_t j = 0; j < op->args[k].n; j++)
            if (op->args[k].refs[j] == r)
                return true;
    return false;
}

/* Whether a slice of the state from before op `w` is used behind it. */
static bool outlived(const struct mil_function *f, size_t w)
{
    mil_ref state = tg_arg(&f->ops[w], "input", 0);

    for (size_t i = 0; i < w; i++)
        for (size_t k = w + 1;
             sliced_state(f, &f->ops[i]) == state && k < f->n_ops; k++)
            if (uses(&f->ops[k], f->ops[i].outs[0]))
                return true;
    return false;
}

/* Else every write would copy the whole state. */
Test(graph_gemma, no_slice_of_a_state_outlives_a_write)
{
    static const struct {
        const char *arch;
        int64_t ctx;
    } all[] = {
        { "gemma3", 32 }, { "gemma3", 128 }, { "gemma4", 64 }, { "gemma4", 256 }
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct t_gate t;
        struct package *p;
        const struct mil_program *m;
        size_t writes = 0;

        T_GATE_MAKE(&t, .arch = all[i].arch, .like = "tiny", .ctx = all[i].ctx,
                    .batch = BATCH);
        p = open_package(&t, RUN_F32);
        m = pkg_program(package_file(p, 1));
        for (size_t k = 0; k < m->n_functions; k++) {
            const struct mil_function *f = m->functions[k];

            for (size_t w = 0; w < f->n_ops; w++) {
                if (f->ops[w].code != MIL_OP_write_state)
                    continue;
                writes++;
                cr_expect(!outlived(f, w), "%s at %d, %s: write %zu",
                          all[i].arch, (int)all[i].ctx, f->name, w);
            }
        }
        cr_expect(writes > 4);
        package_close(p);
        t_gate_drop(&t);
    }
}
