/*
 * Contexts layer by layer against the same contexts fed one after the other,
 * to the bit; moments of the inputs against sums made here.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "models/models.h"
#include "models/moments.h"
#include "t_conv.h"

TestSuite(oracle_walk, .fini = t_conv_clean);

#define CONTEXTS 4
static const size_t lengths[CONTEXTS] = { 70, 1, 530, 33 };
enum { TOKENS = 70 + 1 + 530 + 33 };

struct model {
    struct ckpt ckpt;
    struct oracle *o;
    int32_t ids[TOKENS];
    const int32_t *at[CONTEXTS];
    struct oracle_contexts contexts;
};

static void open_model(struct model *m, const char *arch, const char *like,
                       struct par *par)
{
    struct err e = ERR_INIT;
    struct oracle_options opt = { .par = par, .max_positions = 600 };
    struct tensor_source src;
    size_t at = 0;

    t_conv_synth(arch, like, "model");
    cr_assert_eq(ckpt_open(&m->ckpt, t_conv_path("model"), 0, &e), 0, "%s",
                 e.text);
    src = ckpt_source(&m->ckpt);
    m->o = oracle_new(&m->ckpt.hp, &src, &opt, &e);
    cr_assert_not_null(m->o, "%s", e.text);
    for (size_t i = 0; i < TOKENS; i++)
        m->ids[i] =
            (int32_t)((i * i * 7 + 3 * i + 5) % (uint64_t)m->ckpt.hp.vocab);
    for (size_t i = 0; i < CONTEXTS; at += lengths[i++])
        m->at[i] = m->ids + at;
    m->contexts = (struct oracle_contexts){ m->at, lengths, CONTEXTS };
}

static void close_model(struct model *m)
{
    oracle_free(m->o);
    ckpt_close(&m->ckpt);
    t_conv_clean();
}

static struct oracle_walk *walk_of(struct model *m)
{
    struct err e = ERR_INIT;
    struct oracle_walk *w = oracle_walk_new(m->o, &m->contexts, &e);

    cr_assert_not_null(w, "%s", e.text);
    cr_assert_eq(oracle_walk_tokens(w), TOKENS);
    return w;
}

static void walk_to(struct oracle_walk *w, int64_t at,
                    const struct oracle_watch *watch)
{
    struct err e = ERR_INIT;

    while (oracle_walk_at(w) < at)
        cr_assert_eq(oracle_walk_step(w, watch, &e), 0, "%s", e.text);
}

static float *floats(size_t n)
{
    struct err e = ERR_INIT;
    float *x = mem_alloc(n, sizeof(*x), &e);

    cr_assert_not_null(x);
    return x;
}

static void same_as_fed(const char *arch, const char *like)
{
    struct model m;
    struct err e = ERR_INIT;
    struct oracle_walk *w;
    float *walked, *fed, *stream;
    size_t vocab, width, at = 0;
    int64_t layers;

    open_model(&m, arch, like, NULL);
    vocab = (size_t)m.ckpt.hp.vocab;
    width = (size_t)m.ckpt.hp.hidden;
    layers = m.ckpt.hp.layers;
    walked = floats(TOKENS * vocab);
    fed = floats(530 * vocab);
    stream = floats(TOKENS * width);
    w = walk_of(&m);
    walk_to(w, 1, NULL);
    memcpy(stream, oracle_walk_stream(w), TOKENS * width * sizeof(*stream));
    walk_to(w, layers + 1, NULL);
    cr_assert_eq(oracle_walk_logits(w, 0, TOKENS, walked, &e), 0);
    oracle_walk_free(w);
    for (size_t i = 0; i < CONTEXTS; at += lengths[i++]) {
        struct oracle_out out = { .logits = fed };

        cr_assert_eq(oracle_reset(m.o, &e), 0);
        cr_assert_eq(oracle_feed(m.o, m.at[i], lengths[i], &out, &e), 0);
        cr_assert_eq(memcmp(fed, walked + at * vocab,
                            lengths[i] * vocab * sizeof(*fed)),
                     0, "%s, context %zu", arch, i);
    }
    /* From the first layer's output once more. */
    w = walk_of(&m);
    if (oracle_walk_back(w, 1, stream)) {
        walk_to(w, layers + 1, NULL);
        cr_assert_eq(oracle_walk_logits(w, 600, 34, fed, &e), 0);
        cr_assert_eq(memcmp(fed, walked + 600 * vocab,
                            34 * vocab * sizeof(*fed)),
                     0);
    }
    cr_assert(oracle_walk_back(w, 0, NULL));
    walk_to(w, 1, NULL);
    cr_assert_eq(memcmp(stream, oracle_walk_stream(w),
                        TOKENS * width * sizeof(*stream)),
                 0);
    oracle_walk_free(w);
    mem_free(walked);
    mem_free(fed);
    mem_free(stream);
    close_model(&m);
}

Test(oracle_walk, qwen3)
{
    same_as_fed("qwen3", "odd");
}

Test(oracle_walk, llama)
{
    same_as_fed("llama", "tiny");
}

Test(oracle_walk, hybrid)
{
    same_as_fed("qwen3_5", "tiny");
}

Test(oracle_walk, experts)
{
    same_as_fed("qwen3_5_moe", "tiny");
}

Test(oracle_walk, windows)
{
    same_as_fed("gemma3", "tiny");
}

/* Layers that read other layers' caches, and per-layer embeddings. */
Test(oracle_walk, shared_caches)
{
    same_as_fed("gemma4", "tiny");
}

Test(oracle_walk, contexts_that_cannot_be)
{
    struct model m;
    int32_t bad[3] = { 0, 1, -1 };
    const int32_t *ids[1] = { bad };
    size_t n[1] = { 3 };
    struct oracle_contexts c = { ids, n, 1 };
    struct err e = ERR_INIT;

    open_model(&m, "llama", "tiny", NULL);
    cr_assert_null(oracle_walk_new(m.o, &c, &e));
    cr_assert_not_null(strstr(e.text, "token -1 at position 2"), "%s", e.text);
    err_reset(&e);
    n[0] = 0;
    cr_assert_null(oracle_walk_new(m.o, &c, &e));
    cr_assert_not_null(strstr(e.text, "0 tokens"), "%s", e.text);
    err_reset(&e);
    n[0] = 601;
    cr_assert_null(oracle_walk_new(m.o, &c, &e));
    cr_assert_not_null(strstr(e.text, "601 tokens"), "%s", e.text);
    close_model(&m);
}

/* ---- moments ---- */

/* Everything that one matrix sees, as it comes. */
struct record {
    const char *name;
    uint64_t row;
    size_t width, rows;
    float *x;
    bool odd[TOKENS], last;   /* the call that a row came by */
    struct oracle_watch next; /* sees it too */
};

static int record(void *cookie, const char *name, uint64_t row, size_t out,
                  size_t in, const float *x, size_t n, struct err *e)
{
    struct record *r = cookie;

    if (!strcmp(name, r->name) && row <= r->row && r->row < row + out) {
        if (!r->x)
            r->x = floats(TOKENS * in);
        r->width = in;
        memcpy(r->x + r->rows * in, x, n * in * sizeof(*x));
        for (size_t t = 0; t < n; t++)
            r->odd[r->rows + t] = r->last;
        r->last = !r->last;
        r->rows += n;
    }
    return r->next.see(r->next.cookie, name, row, out, in, x, n, e);
}

static void check_moment(struct moments *m, const struct record *r)
{
    const struct moment *got = moments_find(m, r->name, r->row);
    struct err e = ERR_INIT;
    size_t w = r->width;
    float *part[2];

    if (!r->rows) {
        cr_assert_null(got);
        return;
    }
    cr_assert_not_null(got, "%s, row %d", r->name, (int)r->row);
    cr_assert_eq(got->width, w);
    cr_assert_eq(got->tokens, r->rows);
    cr_assert_not_null(got->full);
    cr_assert_eq(moments_take_full(m, got, part, &e), 0);
    cr_assert(part[0] && part[1]);
    for (size_t i = 0; i < w; i++)
        for (size_t j = 0; j < w; j++) {
            double s[2] = { 0, 0 }, a = 0, v;

            for (size_t t = 0; t < r->rows; t++) {
                v = (double)r->x[t * w + i] * (double)r->x[t * w + j];
                s[r->odd[t]] += v / (double)r->rows;
                a += fabs(v) / (double)r->rows;
            }
            for (int q = 0; q < 2; q++)
                cr_assert_leq(fabs((double)part[q][i * w + j] - s[q]), 2e-6 * a,
                              "%s [%zu, %zu], part %d", r->name, i, j, q);
            if (i == j)
                cr_assert_leq(fabs(got->diag[i] - s[0] - s[1]), 1e-12 * a);
        }
    mem_free(part[0]);
    mem_free(part[1]);
}

static void moments_of(const char *arch, const char *like, const char *name,
                       uint64_t row, int64_t layer)
{
    struct model m;
    struct err e = ERR_INIT;
    struct record r = { .name = name, .row = row };
    struct moments *mo = moments_new(NULL, UINT64_MAX, &e);
    struct oracle_watch watch = { record, &r };
    struct oracle_walk *w;

    cr_assert_not_null(mo);
    open_model(&m, arch, like, NULL);
    r.next = moments_watch(mo);
    w = walk_of(&m);
    walk_to(w, layer, NULL);
    walk_to(w, layer + 1, &watch);
    moments_finish(mo);
    check_moment(mo, &r);
    oracle_walk_free(w);
    moments_free(mo);
    mem_free(r.x);
    close_model(&m);
}

Test(oracle_walk, moments_of_projections)
{
    moments_of("qwen3", "tiny", "layers.1.self_attn.v_proj.weight", 3, 1);
    moments_of("qwen3", "tiny", "layers.0.self_attn.o_proj.weight", 0, 0);
    moments_of("llama", "tiny", "layers.1.mlp.up_proj.weight", 5, 1);
    moments_of("llama", "tiny", "layers.1.mlp.down_proj.weight", 5, 1);
    moments_of("qwen3_5", "tiny", "layers.0.linear_attn.in_proj_z.weight", 1,
               0);
}

Test(oracle_walk, moments_of_the_head)
{
    struct model m;

    open_model(&m, "llama", "tiny", NULL);
    int64_t layers = m.ckpt.hp.layers;
    close_model(&m);
    moments_of("llama", "tiny", "lm_head.weight", 7, layers);
}

/* Each expert's inputs are those of the tokens that chose it. */
Test(oracle_walk, moments_of_experts)
{
    struct model m;
    uint64_t inter, hidden, experts;

    open_model(&m, "qwen3_5_moe", "tiny", NULL);
    inter = (uint64_t)m.ckpt.hp.moe_intermediate;
    hidden = (uint64_t)m.ckpt.hp.hidden;
    experts = (uint64_t)m.ckpt.hp.experts;
    close_model(&m);
    for (uint64_t x = 0; x < experts; x += 3) {
        moments_of("qwen3_5_moe", "tiny", "layers.1.mlp.experts.gate_up_proj",
                   x * 2 * inter, 1);
        moments_of("qwen3_5_moe", "tiny", "layers.1.mlp.experts.gate_up_proj",
                   x * 2 * inter + inter + 1, 1);
        moments_of("qwen3_5_moe", "tiny", "layers.1.mlp.experts.down_proj",
                   x * hidden + 2, 1);
    }
}

Test(oracle_walk, moments_are_shared_and_bounded)
{
    struct model m;
    struct err e = ERR_INIT;
    struct moments *mo;
    struct oracle_watch watch;
    struct oracle_walk *w;
    const struct moment *q, *k, *o;
    size_t full, without;
    uint64_t h;
    float *part[2];

    open_model(&m, "llama", "tiny", NULL);
    h = (uint64_t)m.ckpt.hp.hidden;
    mo = moments_new(NULL, h * (h + 1) * sizeof(float), &e); /* for one */
    watch = moments_watch(mo);
    w = walk_of(&m);
    walk_to(w, 1, &watch);
    moments_finish(mo);
    q = moments_find(mo, "layers.0.self_attn.q_proj.weight", 0);
    k = moments_find(mo, "layers.0.self_attn.k_proj.weight", 0);
    o = moments_find(mo, "layers.0.self_attn.o_proj.weight", 0);
    cr_assert_not_null(q);
    cr_assert_eq(q, k);
    cr_assert_neq(q, o);
    cr_assert_not_null(q->full);
    cr_assert_null(o->full);
    cr_assert_null(moments_find(mo, "layers.1.self_attn.q_proj.weight", 0));
    moments_count(mo, &full, &without);
    cr_assert_eq(full, 1);
    cr_assert_eq(without, 3); /* o, gate with up, down */
    cr_assert_eq(moments_take_full(mo, q, part, &e), 0);
    cr_assert(part[0] && part[1]);
    mem_free(part[0]);
    mem_free(part[1]);
    cr_assert_eq(moments_take_full(mo, q, part, &e), 0);
    cr_assert(!part[0] && !part[1]);
    oracle_walk_free(w);
    moments_free(mo);
    close_model(&m);
}

/* One moment as bytes. */
static void moment_bytes(struct par *par, float *full, double *diag)
{
    struct model m;
    struct err e = ERR_INIT;
    struct moments *mo = moments_new(par, UINT64_MAX, &e);
    struct oracle_watch watch = moments_watch(mo);
    struct oracle_walk *w;
    const struct moment *got;

    open_model(&m, "llama", "tiny", par);
    w = walk_of(&m);
    walk_to(w, 2, &watch);
    moments_finish(mo);
    got = moments_find(mo, "layers.1.mlp.down_proj.weight", 0);
    cr_assert_lt(got->width, 1024);
    memcpy(full, got->full, (got->width + 1) * got->width * sizeof(*full));
    memcpy(diag, got->diag, got->width * sizeof(*diag));
    oracle_walk_free(w);
    moments_free(mo);
    close_model(&m);
}

Test(oracle_walk, threads_and_simd_level_do_not_show)
{
    static float a[1024 * 1024], b[1024 * 1024];
    static double da[1024], db[1024];
    struct err e = ERR_INIT;
    struct par *par = par_new(3, &e);

    moment_bytes(NULL, a, da);
    moment_bytes(par, b, db);
    cr_assert_eq(memcmp(a, b, sizeof(a)), 0);
    cr_assert_eq(memcmp(da, db, sizeof(da)), 0);
    cpu_mask(0);
    moment_bytes(par, b, db);
    cpu_mask(~0u);
    cr_assert_eq(memcmp(a, b, sizeof(a)), 0);
    cr_assert_eq(memcmp(da, db, sizeof(da)), 0);
    par_free(par);
}

Test(oracle_walk, memory_runs_out)
{
    struct model m;

    open_model(&m, "llama", "tiny", NULL);
    for (long n = 1;; n++) {
        struct err e = ERR_INIT;
        struct moments *mo;
        struct oracle_walk *w = NULL;
        int rc = -1;

        mem_fail_at(n, false);
        mo = moments_new(NULL, UINT64_MAX, &e);
        if (mo && (w = oracle_walk_new(m.o, &m.contexts, &e))) {
            struct oracle_watch watch = moments_watch(mo);

            rc = oracle_walk_step(w, &watch, &e);
        }
        mem_fail_at(-1, false);
        oracle_walk_free(w);
        moments_free(mo);
        if (!rc)
            break;
        cr_assert_eq(e.code, ERR_NOMEM, "%s", e.text);
    }
    close_model(&m);
}
