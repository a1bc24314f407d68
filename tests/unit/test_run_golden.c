/*
 * A package that another exporter wrote: casts around gathers, selects that
 * guard negative indices, its own cache pattern. Run by the call order of
 * ANEMLL packages it must give what the checkpoint's reference gives, token
 * by token, in batches, and in both profiles.
 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "mil/run/run.h"
#include "safetensors/st.h"
#include "schema/package.h"

#define CTX 128
#define BATCH 64
#define PARTS 16
#define MAX_VOCAB 4096

struct golden {
    struct pkg *pkg[3]; /* embeddings, chunk, head */
    struct run_model *run[3];
    struct run_states *states;
    struct err e;
};

static const char *fixtures(void)
{
    const char *dir = getenv("ANEMLL_FIXTURES");

    return dir && dir[0] ? dir : ANEMLL_SOURCE_DIR "/../shared/fixtures";
}

static void open_golden(struct golden *g, const struct run_options *o)
{
    static const char *const names[3] = { "qwen_embeddings.mlpackage",
                                          "qwen_FFN_PF_chunk_01of01.mlpackage",
                                          "qwen_lm_head.mlpackage" };
    char dir[1024], path[1200];

    memset(g, 0, sizeof(*g));
    snprintf(dir, sizeof(dir), "%s/../goldens/packages/qwen3-tiny-coremltools",
             fixtures());
    if (!io_is_dir(dir))
        cr_skip_test("no golden package at %s", dir);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        g->pkg[i] = pkg_open(path, &g->e);
        cr_assert(g->pkg[i], "%s", g->e.text);
        g->run[i] = run_open(pkg_program(g->pkg[i]), o, &g->e);
        cr_assert(g->run[i], "%s", g->e.text);
        cr_assert(run_resident_bytes(g->run[i]) > 0);
    }
    g->states = run_states_new(&g->e);
    cr_assert(g->states);
}

static void close_golden(struct golden *g)
{
    for (int i = 0; i < 3; i++) {
        run_close(g->run[i]);
        pkg_close(g->pkg[i]);
    }
    run_states_free(g->states);
}

static struct run_tensor tensor(const char *name, enum mil_dtype d, int rank,
                                const int64_t *dims, const void *data)
{
    struct run_tensor t = { name, mil_type_make(d, rank, dims), data };

    return t;
}

/* Positions p .. p+n-1; logits of the last one where the head gives any. */
static int64_t step(struct golden *g, const int32_t *ids, int32_t p, int n,
                    float *logits)
{
    static float mask[BATCH * CTX];
    int32_t positions[BATCH];
    struct run_tensor in[4], out[PARTS];
    int64_t at = 0;
    size_t k;

    for (int t = 0; t < n; t++) {
        positions[t] = p + t;
        for (int j = 0; j < CTX; j++)
            mask[t * CTX + j] = j <= p + t ? 0.0f : -INFINITY;
    }
    in[0] = tensor("input_ids", MIL_I32, 2, (int64_t[]){ 1, n }, ids);
    cr_assert_eq(run_call(g->run[0], NULL, NULL, in, 1, out, 1, &k, &g->e), 0,
                 "%s", g->e.text);
    in[0] = out[0];
    in[0].name = "hidden_states";
    in[1] = tensor("position_ids", MIL_I32, 1, (int64_t[]){ n }, positions);
    in[2] =
        tensor("causal_mask", MIL_F16, 4, (int64_t[]){ 1, 1, n, CTX }, mask);
    in[3] = tensor("current_pos", MIL_I32, 1, (int64_t[]){ 1 }, &p);
    cr_assert_eq(run_call(g->run[1], n == 1 ? "infer" : "prefill", g->states,
                          in, 4, out, 1, &k, &g->e),
                 0, "%s", g->e.text);
    in[0] = out[0];
    in[0].name = "hidden_states";
    if (in[0].type.dims[1] != 1)
        return 0;
    cr_assert_eq(run_call(g->run[2], NULL, NULL, in, 1, out, PARTS, &k, &g->e),
                 0, "%s", g->e.text);
    cr_assert_eq(k, PARTS);
    for (size_t i = 0; i < k; i++) {
        int64_t m = mil_type_elems(&out[i].type);

        cr_assert(at + m <= MAX_VOCAB);
        memcpy(logits + at, out[i].data, (size_t)m * sizeof(float));
        at += m;
    }
    return at;
}

struct score {
    double rel, cosine;
};

static void compare(struct score *s, const float *a, const float *b, int64_t n)
{
    double worst = 0, top = 0, ab = 0, aa = 0, bb = 0;

    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);

        worst = !(d <= worst) ? d : worst;
        top = fabs(b[i]) > top ? fabs(b[i]) : top;
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    s->rel = !(worst / top <= s->rel) ? worst / top : s->rel;
    s->cosine = fmin(s->cosine, ab / sqrt(aa * bb));
}

static int run_prompt(const struct run_options *o, int batch, struct score *s,
                      float *last)
{
    struct golden g;
    static float logits[MAX_VOCAB], want[MAX_VOCAB];
    const struct st_tensor *ids_t, *logits_t;
    int32_t ids[CTX];
    char path[1200];
    struct st *st;
    int n, compared = 0;

    open_golden(&g, o);
    snprintf(path, sizeof(path), "%s/qwen3-tiny/expect.safetensors",
             fixtures());
    st = st_open(path, &g.e);
    cr_assert(st, "%s", g.e.text);
    ids_t = st_find(st, "tokens.0");
    logits_t = st_find(st, "logits.0");
    cr_assert(ids_t && logits_t);
    n = ids_t->elems < CTX ? (int)ids_t->elems : CTX;
    cr_assert_eq(st_read_i32(st, ids_t, 0, (size_t)n, ids, &g.e), 0);
    s->rel = 0;
    s->cosine = 1;
    for (int p = 0; p < n;) {
        int k = batch > 1 && p + batch <= n ? batch : 1;
        int64_t v = step(&g, ids + p, p, k, logits);

        p += k;
        if (v == 0)
            continue;
        cr_assert_eq((uint64_t)v, logits_t->dims[1]);
        cr_assert_eq(st_read_f32(st, logits_t, (uint64_t)(p - 1) * (uint64_t)v,
                                 (size_t)v, want, &g.e),
                     0);
        compare(s, logits, want, v);
        compared++;
    }
    memcpy(last, logits, sizeof(logits));
    st_close(st);
    close_golden(&g);
    return compared;
}

static float infer_last[MAX_VOCAB], prefill_last[MAX_VOCAB];

Test(run_golden, f32_token_by_token_and_in_batches)
{
    struct run_options o = { .profile = RUN_F32 };
    struct score s;

    cr_assert_gt(run_prompt(&o, 1, &s, infer_last), 32);
    printf("f32 infer: rel %.3g, cosine %.9f\n", s.rel, s.cosine);
    cr_expect(s.rel <= 5e-4, "relative %g", s.rel);
    cr_expect(s.cosine >= 0.999999, "cosine %.9f", s.cosine);
    cr_assert_gt(run_prompt(&o, BATCH, &s, prefill_last), 0);
    cr_expect(s.rel <= 5e-4, "relative %g", s.rel);
    cr_expect(memcmp(infer_last, prefill_last, sizeof(infer_last)) == 0,
              "prefill and infer differ");
}

Test(run_golden, fp16)
{
    struct run_options o = { .profile = RUN_FP16 };
    struct score s;

    cr_assert_gt(run_prompt(&o, 1, &s, infer_last), 32);
    printf("fp16 infer: rel %.3g, cosine %.9f\n", s.rel, s.cosine);
    cr_expect(s.cosine >= 0.999, "cosine %.9f", s.cosine);
    cr_assert_gt(run_prompt(&o, BATCH, &s, prefill_last), 0);
    cr_expect(s.cosine >= 0.999, "cosine %.9f", s.cosine);
    cr_expect(memcmp(infer_last, prefill_last, sizeof(infer_last)) == 0,
              "prefill and infer differ");
}

Test(run_golden, threads_change_nothing)
{
    struct run_options o = { .profile = RUN_FP16 };
    struct err e = ERR_INIT;
    struct score s;

    cr_assert_gt(run_prompt(&o, BATCH, &s, infer_last), 0);
    o.par = par_new(3, &e);
    cr_assert(o.par);
    cr_assert_gt(run_prompt(&o, BATCH, &s, prefill_last), 0);
    par_free(o.par);
    cr_expect(memcmp(infer_last, prefill_last, sizeof(infer_last)) == 0,
              "three threads and one differ");
}
