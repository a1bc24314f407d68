/*
 * The gate; see gate.h for what it proves.
 */
#include "converter/gate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/num.h"
#include "converter/gate_metrics.h"
#include "converter/gate_weights.h"
#include "converter/package_run.h"
#include "converter/package_source.h"
#include "models/models.h"

struct gate {
    const struct gate_options *o;
    struct gate_result *r;
    struct package *pkg;
    struct package_source *src;
    struct oracle *ref; /* on the checkpoint's weights */
    struct oracle *dec; /* on the package's decoded weights, or NULL */
    struct prompts prompts;
    size_t own; /* the last `own` prompts are not the user's */
    int64_t vocab, ctx, batch;
    int64_t block;              /* positions that the oracles take at once */
    float *ref_rows, *dec_rows; /* [block, vocab] */
    float *row;                 /* [vocab] */
    float *pre_rows;            /* prefill pass: [n_pre, vocab] */
    int32_t *pre_at;            /* [T]: row of each position, -1: none */
    float *kept;                /* for --logits: [T, vocab] */
    struct metrics loss, bytes;
    uint64_t done, total; /* positions, for progress */
    struct st_writer *out;
};

/* ---- prompts ---- */

static uint64_t next_random(uint64_t *s) /* splitmix64 */
{
    uint64_t z = (*s += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int add_prompt(struct gate *g, int64_t n, int32_t **ids, struct err *e)
{
    *ids = mem_zalloc((size_t)n, sizeof(**ids), e);
    if (*ids && !prompts_add(&g->prompts, *ids, (size_t)n, e))
        return 0;
    mem_free(*ids);
    return -1;
}

static int64_t seed_ids(const struct gate *g, int32_t *ids, int64_t n,
                        uint64_t seed)
{
    int64_t at = 0, bos = g->o->ckpt ? g->o->ckpt->hp.bos : -1;

    if (bos >= 0 && bos < g->vocab && n > 1)
        ids[at++] = (int32_t)bos;
    while (at < n)
        ids[at++] = (int32_t)(next_random(&seed) % (uint64_t)g->vocab);
    return at;
}

static int32_t best_token(const float *x, int64_t n)
{
    int64_t b = 0;

    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[b])
            b = i;
    return (int32_t)b;
}

/* A few seeded ids, continued greedily by the oracle past a batch border. */
static int greedy_prompt(struct gate *g, struct err *e)
{
    int64_t n = g->batch + 32 < g->ctx ? g->batch + 32 : g->ctx;
    int64_t seeded = n < 9 ? n : 9;
    struct oracle_out out = { .last_logits = g->row };
    int32_t *ids;

    if (add_prompt(g, n, &ids, e))
        return -1;
    seed_ids(g, ids, seeded, 1);
    if (!g->ref) {
        seed_ids(g, ids, n, 1);
        return 0;
    }
    if (oracle_reset(g->ref, e) ||
        oracle_feed(g->ref, ids, (size_t)seeded, &out, e))
        return -1;
    for (int64_t i = seeded; i < n; i++) {
        if (log_cancelled(g->o->log))
            return err_set(e, ERR_CANCELLED, "interrupted");
        log_progress(g->o->log, "oracle", (uint64_t)i, (uint64_t)n, "tokens");
        ids[i] = best_token(g->row, g->vocab);
        if (i + 1 < n && oracle_feed(g->ref, &ids[i], 1, &out, e))
            return -1;
    }
    return 0;
}

/* Reaches the last position of the context. */
static int border_prompt(struct gate *g, struct err *e)
{
    int32_t *ids;

    for (size_t i = 0; i < g->prompts.n; i++)
        if ((int64_t)g->prompts.lengths[i] >= g->ctx)
            return 0;
    if (add_prompt(g, g->ctx, &ids, e))
        return -1;
    /* The first prompt over and over: text as the model knows it, since what
     * random ids do to a recurrent state is noise. */
    for (int64_t i = 0; i < g->ctx; i++)
        ids[i] = g->prompts.ids[0][(size_t)i % g->prompts.lengths[0]];
    g->own = 1;
    return 0;
}

static int make_prompts(struct gate *g, struct err *e)
{
    if (g->o->tokens) {
        if (prompts_read(&g->prompts, g->o->tokens, g->vocab, e))
            return -1;
    } else if (greedy_prompt(g, e)) {
        return -1;
    }
    for (size_t i = 0; i < g->prompts.n; i++)
        if ((int64_t)g->prompts.lengths[i] > g->ctx) {
            log_warn(g->o->log,
                     "prompt %zu has %zu tokens, the package's context %" PRId64
                     ": the rest is left out",
                     i, g->prompts.lengths[i], g->ctx);
            g->prompts.lengths[i] = (size_t)g->ctx;
        }
    if (border_prompt(g, e))
        return -1;
    for (size_t i = 0; i < g->prompts.n; i++)
        g->total += 2 * g->prompts.lengths[i];
    return 0;
}

/* ---- opening ---- */

/* The package must be of this checkpoint's shape before logits say more. */
static int check_same(const struct gate *g, struct err *e)
{
    const struct meta *m = package_meta(g->pkg);
    const struct hparams *hp = &g->o->ckpt->hp;
    struct {
        const char *what;
        int64_t package, checkpoint;
    } pairs[] = {
        { "vocabulary", g->vocab, hp->vocab },
        { "hidden size", m->hidden_size ? m->hidden_size : hp->hidden,
          hp->hidden },
        { "number of layers", m->num_layers ? m->num_layers : hp->layers,
          hp->layers },
    };

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if (pairs[i].package != pairs[i].checkpoint)
            return err_set(e, ERR_MISMATCH,
                           "the package has a %s of %" PRId64
                           ", the checkpoint '%s' of %" PRId64,
                           pairs[i].what, pairs[i].package, g->o->ckpt->dir,
                           pairs[i].checkpoint);
    if (m->architecture[0] && strcmp(m->architecture, hp->arch->name))
        return err_set(e, ERR_MISMATCH,
                       "the package's architecture is '%s', the checkpoint's "
                       "'%s'",
                       m->architecture, hp->arch->name);
    return 0;
}

/* The package runs token by token, the oracle in blocks: what stays counts for
 * more there. */
static uint64_t keep_bytes(const struct gate *g, bool package)
{
    uint64_t n = g->o->keep_bytes ? g->o->keep_bytes : GATE_KEEP_BYTES;

    return package ? n - n / 3 : n / 3;
}

/* Logits of one oracle that are held at a time. */
#define ROWS_KEEP 16000000

static int64_t block_of(int64_t vocab, int64_t batch)
{
    int64_t n = ROWS_KEEP / (vocab * (int64_t)sizeof(float));

    return n < 1 ? 1 : n < batch ? n : batch;
}

/* Float32 weights are rounded even in an uncompressed package. */
static bool has_float32(const struct ckpt *c)
{
    for (size_t i = 0; i < c->ledger.n; i++)
        if (c->ledger.needs[i].tensor &&
            c->ledger.needs[i].tensor->dtype == ST_F32)
            return true;
    return false;
}

static int open_oracles(struct gate *g, struct err *e)
{
    struct oracle_options oo = { .par = g->o->par,
                                 .keep_bytes = keep_bytes(g, false),
                                 .max_positions = g->ctx };
    struct tensor_source s = ckpt_source(g->o->ckpt);

    g->src = package_source_open(g->pkg, g->o->ckpt, e);
    if (!g->src && e->code == ERR_UNSUPPORTED) {
        /* Not one of ours: compared with the checkpoint alone. */
        log_warn(g->o->log, "%s", e->text);
        err_reset(e);
    } else if (!g->src) {
        return -1;
    }
    g->r->sourced = g->src != NULL;
    g->r->compressed =
        g->src && (package_source_compressed(g->src) ||
                   package_source_rounded(g->src) || has_float32(g->o->ckpt));
    /* Tables of rotations are fp16 in any package: what judges its bytes has
     * them so, what compression cost is counted from the exact ones. */
    oo.half_rope = !g->r->compressed;
    g->ref = oracle_new(&g->o->ckpt->hp, &s, &oo, e);
    if (!g->ref)
        return -1;
    if (!g->r->compressed)
        return 0;
    s = package_source_tensors(g->src);
    oo.keep_bytes = 0; /* fed in batches: streaming costs little */
    oo.half_rope = true;
    g->dec = oracle_new(&g->o->ckpt->hp, &s, &oo, e);
    return g->dec ? 0 : -1;
}

static int open_all(struct gate *g, struct err *e)
{
    struct run_options ro = { g->o->profile, g->o->par, keep_bytes(g, true) };
    size_t v, b;

    g->pkg = package_open(g->o->package, &ro, e);
    if (!g->pkg)
        return err_in(e, "package");
    g->vocab = package_vocab(g->pkg);
    g->ctx = package_meta(g->pkg)->context_length;
    g->batch = package_meta(g->pkg)->batch_size;
    if (g->o->ckpt && (check_same(g, e) || open_oracles(g, e)))
        return -1;
    g->block = block_of(g->vocab, g->batch);
    v = (size_t)g->vocab;
    b = (size_t)g->block;
    g->row = mem_alloc(v, sizeof(float), e);
    g->ref_rows = g->ref ? mem_alloc(v * b, sizeof(float), e) : NULL;
    g->dec_rows = g->dec ? mem_alloc(v * b, sizeof(float), e) : NULL;
    if (!g->row || (g->ref && !g->ref_rows) || (g->dec && !g->dec_rows))
        return -1;
    return make_prompts(g, e);
}

static void close_all(struct gate *g)
{
    package_close(g->pkg);
    package_source_close(g->src);
    oracle_free(g->ref);
    oracle_free(g->dec);
    prompts_release(&g->prompts);
    mem_free(g->ref_rows);
    mem_free(g->dec_rows);
    mem_free(g->row);
    mem_free(g->pre_rows);
    mem_free(g->pre_at);
    mem_free(g->kept);
    st_writer_free(g->out);
}

static int compare_weights(struct gate *g, struct err *e)
{
    return g->src ? gate_weights_compare(g->src, g->o->ckpt, g->o->par,
                                         g->o->log, &g->r->weights, e)
                  : 0;
}

/* ---- one prompt ---- */

static int step(struct gate *g, uint64_t n, struct err *e)
{
    g->done += n;
    log_progress(g->o->log, "gate", g->done, g->total, "positions");
    return log_cancelled(g->o->log) ? err_set(e, ERR_CANCELLED, "interrupted")
                                    : 0;
}

/* Tokens of the prefill pass that go through infer one by one in between, so
 * that batches lie at positions that are no multiples of the batch, and that
 * prefill reads what infer leaves behind. */
static int64_t lead_of(const struct gate *g)
{
    return g->batch < 10 ? g->batch / 2 : 5;
}

/*
 * Tokens of the call at position `at` of the prefill pass: 1 or a batch. A
 * prompt that fills the context has its batches at multiples of the batch,
 * but in the middle third, which begins behind a few single tokens. Shorter
 * ones begin with them.
 */
static int64_t call_length(const struct gate *g, int64_t n, int64_t at)
{
    int64_t B = g->batch, lead = lead_of(g), single = 0, again = 0;

    if (n >= g->ctx) {
        single = n / 3 / B * B;
        again = 2 * n / 3 / B * B;
    }
    if (B == 1 || at + B > n)
        return 1;
    if (n < g->ctx || again > single) {
        if (at >= single && at < single + lead)
            return 1;
        if (again > single && at >= again + lead && at < again + B)
            return 1;
    }
    return B;
}

/* Whether the package's prefill yields logits, of the call's last token. */
static bool yields(const struct gate *g, int64_t length)
{
    return length == 1 || package_meta(g->pkg)->prefill_last_token_output;
}

/* Full batches through prefill, the rest through infer; logits of batch ends,
 * and of what infer adds behind a batch. */
static int prefill_pass(struct gate *g, const int32_t *ids, int64_t n,
                        struct err *e)
{
    int64_t rows = 0, k = 0;
    bool batched = false;

    mem_free(g->pre_at);
    g->pre_at = mem_alloc((size_t)n, sizeof(*g->pre_at), e);
    if (!g->pre_at)
        return -1;
    for (int64_t p = 0, m; p < n; p += m) {
        m = call_length(g, n, p);
        batched = batched || m > 1;
        for (int64_t i = 0; i < m; i++)
            g->pre_at[p + i] = -1;
        if (batched && yields(g, m))
            g->pre_at[p + m - 1] = (int32_t)rows++;
    }
    mem_free(g->pre_rows);
    g->pre_rows = mem_alloc((size_t)((rows + 1) * g->vocab), sizeof(float), e);
    if (!g->pre_rows)
        return -1;
    /* Rows of the prompt before must not show. */
    package_restart(g->pkg);
    for (int64_t p = 0, m; p < n; p += m) {
        m = call_length(g, n, p);
        k = g->pre_at[p + m - 1];
        if (package_feed(g->pkg, ids + p, (size_t)m, true,
                         k < 0 ? NULL : g->pre_rows + k * g->vocab, e) ||
            step(g, (uint64_t)m, e))
            return -1;
    }
    return 0;
}

static void compare_position(struct gate *g, size_t prompt, int64_t at,
                             int64_t in_batch, const float *package,
                             int64_t next)
{
    int64_t v = g->vocab;

    if (g->ref)
        metrics_add(&g->loss, g->ref_rows + in_batch * v, package, v,
                    (int64_t)prompt, at, next);
    if (g->dec)
        metrics_add(&g->bytes, g->dec_rows + in_batch * v, package, v,
                    (int64_t)prompt, at, next);
}

/* NaN differs from everything, itself too. */
static void compare_passes(struct gate *g, const float *pre, const float *inf)
{
    for (int64_t i = 0; i < g->vocab; i++) {
        double d = fabs((double)pre[i] - (double)inf[i]);

        metrics_keep_max(&g->r->prefill_infer_max_diff, d);
        if (fabs((double)inf[i]) > g->r->max_abs_logit)
            g->r->max_abs_logit = fabs((double)inf[i]);
    }
}

static int infer_position(struct gate *g, size_t prompt, int64_t at,
                          int64_t in_batch, struct err *e)
{
    const int32_t *ids = g->prompts.ids[prompt];
    int64_t n = (int64_t)g->prompts.lengths[prompt];
    int64_t k = g->pre_at[at], next = -1;
    bool own = prompt >= g->prompts.n - g->own;

    if (package_feed(g->pkg, ids + at, 1, false, g->row, e))
        return -1;
    if (at + 1 < n && (!own || g->prompts.n == g->own))
        next = ids[at + 1];
    compare_position(g, prompt, at, in_batch, g->row, next);
    if (k >= 0) {
        const float *pre = g->pre_rows + k * g->vocab;

        compare_position(g, prompt, at, in_batch, pre, -1);
        compare_passes(g, pre, g->row);
    }
    if (g->kept)
        memcpy(g->kept + at * g->vocab, g->row,
               (size_t)g->vocab * sizeof(float));
    return step(g, 1, e);
}

static int oracles_feed(struct gate *g, const int32_t *ids, size_t n,
                        struct err *e)
{
    struct oracle_out ref = { .logits = g->ref_rows };
    struct oracle_out dec = { .logits = g->dec_rows };

    if (g->ref && oracle_feed(g->ref, ids, n, &ref, e))
        return err_in(e, "oracle");
    if (g->dec && oracle_feed(g->dec, ids, n, &dec, e))
        return err_in(e, "oracle on the package's weights");
    if (g->out && st_writer_write(g->out, g->ref_rows,
                                  n * (size_t)g->vocab * sizeof(float), e))
        return -1;
    return 0;
}

static int run_prompt(struct gate *g, size_t prompt, struct err *e)
{
    const int32_t *ids = g->prompts.ids[prompt];
    int64_t n = (int64_t)g->prompts.lengths[prompt];

    if (prefill_pass(g, ids, n, e))
        return -1;
    package_reset(g->pkg); /* nor stand in for what infer has to write */
    if ((g->ref && oracle_reset(g->ref, e)) ||
        (g->dec && oracle_reset(g->dec, e)))
        return -1;
    for (int64_t p = 0; p < n; p += g->block) {
        int64_t m = n - p < g->block ? n - p : g->block;

        if (oracles_feed(g, ids + p, (size_t)m, e))
            return -1;
        for (int64_t i = 0; i < m; i++)
            if (infer_position(g, prompt, p + i, i, e))
                return -1;
    }
    g->r->positions += (uint64_t)n;
    g->r->crossed_batch = g->r->crossed_batch || n > g->batch;
    g->r->reached_end = g->r->reached_end || n == g->ctx;
    return 0;
}

/* ---- logits file ---- */

/* Replaces logits of an earlier run, nothing else: a slip of the hand must not
 * cost a checkpoint's shard. */
static int check_logits_path(const char *path, struct err *e)
{
    struct err probe = ERR_INIT;
    struct st *st;
    bool ours;

    if (!io_exists(path))
        return 0;
    st = st_open(path, &probe);
    ours = st && st_find(st, "oracle.0");
    st_close(st);
    return ours
               ? 0
               : err_set(e, ERR_USAGE,
                         "--logits '%s' exists and is no file of logits", path);
}

static int begin_logits(struct gate *g, struct err *e)
{
    size_t user = g->prompts.n - g->own;

    if (!g->o->logits || !g->ref)
        return 0;
    if (check_logits_path(g->o->logits, e))
        return -1;
    g->out = st_writer_new(e);
    if (!g->out)
        return -1;
    for (size_t i = 0; i < user; i++) {
        uint64_t dims[2] = { g->prompts.lengths[i], (uint64_t)g->vocab };
        char name[48];

        snprintf(name, sizeof(name), "oracle.%zu", i);
        if (st_writer_add(g->out, name, ST_F32, 2, dims, e))
            return -1;
        snprintf(name, sizeof(name), "package.%zu", i);
        if (st_writer_add(g->out, name, ST_F32, 2, dims, e))
            return -1;
    }
    return st_writer_begin(g->out, g->o->logits, e);
}

/* The oracle's rows were written batch by batch; the package's follow. */
static int prompt_logits(struct gate *g, size_t prompt, struct err *e)
{
    size_t bytes =
        g->prompts.lengths[prompt] * (size_t)g->vocab * sizeof(float);

    return g->out ? st_writer_write(g->out, g->kept, bytes, e) : 0;
}

static int run_prompts(struct gate *g, struct err *e)
{
    for (size_t i = 0; i < g->prompts.n; i++) {
        size_t user = g->prompts.n - g->own;

        if (g->out && i == user) {
            if (st_writer_finish(g->out, e))
                return -1;
            st_writer_free(g->out);
            g->out = NULL;
        }
        mem_free(g->kept);
        g->kept = NULL;
        if (g->out) {
            g->kept = mem_alloc(g->prompts.lengths[i] * (size_t)g->vocab,
                                sizeof(float), e);
            if (!g->kept)
                return -1;
        }
        if (run_prompt(g, i, e) || prompt_logits(g, i, e))
            return err_in(e, "prompt %zu", i);
    }
    if (!g->out)
        return 0;
    if (st_writer_finish(g->out, e))
        return -1;
    st_writer_free(g->out);
    g->out = NULL;
    return 0;
}

/* ---- judging ---- */

static void check(struct gate_result *r, const char *name, double value,
                  bool at_least, double limit)
{
    struct gate_check *c = &r->checks[r->n_checks];

    BUG_UNLESS(r->n_checks < GATE_MAX_CHECKS);
    r->n_checks++;
    snprintf(c->name, sizeof(c->name), "%s", name);
    c->value = value;
    c->limit = limit;
    c->at_least = at_least;
    c->pass = at_least ? value >= limit : value <= limit; /* NaN fails */
}

/* What compression may cost, by the narrowest width: mean KL divergence in
 * nats and mean cosine of the logits. From measurements on the trained
 * checkpoints that docs/GATE.md lists; below 4 bits a model may lose anything
 * and only finite values are asked for. */
static void loss_limits(int bits, double *kl_mean, double *cosine_mean)
{
    *kl_mean = bits > 8    ? 0.01
               : bits == 8 ? 0.02
               : bits >= 6 ? 0.25
               : bits >= 4 ? 1.0
                           : 1e9;
    *cosine_mean = bits >= 8 ? 0.999 : bits >= 6 ? 0.97 : bits >= 4 ? 0.8 : -1;
}

static void judge_bytes(struct gate_result *r, const struct metrics *m)
{
    bool f32 = r->profile == RUN_F32;

    check(r, "finite", m->finite ? 1 : 0, true, 1);
    check(r, "cosine_min", m->out.cosine_min, true, f32 ? 0.99999 : 0.999);
    if (f32)
        check(r, "psnr_min", m->out.psnr_min, true, 70);
    check(r, "top1_agreement_decided", m->out.top1_agreement_decided, true, 1);
}

static void judge_weights(struct gate_result *r)
{
    const struct gate_weights *w = &r->weights;

    check(r, "weights_missing", (double)w->missing, false, 0);
    check(r, "weights_differ", (double)w->differ, false, 0);
    if (!r->compressed)
        return;
    check(r, "weights_misplaced", (double)w->misplaced, false, 0);
    check(r, "weights_gain_error", w->gain_error, false, GATE_GAIN_ERROR);
    check(r, "weights_excess", w->excess, false, GATE_EXCESS);
}

static void judge(struct gate *g)
{
    struct gate_result *r = g->r;
    const struct metrics *m = r->compressed ? &g->bytes : &g->loss;
    double kl, cosine;

    r->loss = g->loss.out;
    r->bytes = m->out;
    if (r->sourced)
        judge_weights(r);
    if (g->ref)
        judge_bytes(r, m);
    check(r, "prefill_infer_relative_diff",
          r->prefill_infer_max_diff /
              (r->max_abs_logit > 0 ? r->max_abs_logit : 1),
          false, r->profile == RUN_F32 ? 1e-4 : 5e-3);
    if (g->ref && r->compressed) {
        loss_limits(package_source_bits(g->src), &kl, &cosine);
        check(r, "loss_kl_mean", r->loss.kl_mean, false, kl);
        check(r, "loss_cosine_mean", r->loss.cosine_mean, true, cosine);
    }
}

static void explain(struct gate_result *r, const struct gate_check *c)
{
    char v[NUM_TEXT_MAX], l[NUM_TEXT_MAX];
    size_t n;

    num_text(v, c->value);
    num_text(l, c->limit);
    snprintf(r->reason, sizeof(r->reason), "%s is %s, %s %s is required",
             c->name, v, c->at_least ? "at least" : "at most", l);
    n = strlen(r->reason);
    if (!strncmp(c->name, "weights_", 8) && r->weights.first[0]) {
        snprintf(r->reason + n, sizeof(r->reason) - n, "; first in %s",
                 r->weights.first);
        n = strlen(r->reason);
    }
    if (r->bytes.diverged)
        snprintf(r->reason + n, sizeof(r->reason) - n,
                 "; first divergence in prompt %" PRId64 " at position %" PRId64
                 ": oracle token %" PRId64 ", package token %" PRId64
                 ", margin %.4g",
                 r->bytes.first.prompt, r->bytes.first.position,
                 r->bytes.first.oracle_token, r->bytes.first.package_token,
                 r->bytes.first.margin);
}

static void verdict(struct gate *g)
{
    struct gate_result *r = g->r;

    r->verdict = GATE_PASS;
    for (int i = 0; i < r->n_checks; i++)
        if (!r->checks[i].pass) {
            r->verdict = GATE_FAIL;
            explain(r, &r->checks[i]);
            return;
        }
    if (!g->ref) {
        r->verdict = GATE_UNVERIFIED;
        snprintf(r->reason, sizeof(r->reason),
                 "no checkpoint to compare with (--hf DIR)");
    } else if (!r->crossed_batch && g->ctx > g->batch) {
        r->verdict = GATE_UNVERIFIED;
        snprintf(r->reason, sizeof(r->reason),
                 "no prompt crossed a batch border");
    } else if (!r->reached_end) {
        r->verdict = GATE_UNVERIFIED;
        snprintf(r->reason, sizeof(r->reason),
                 "no prompt reached the end of the context");
    }
}

int gate_run(const struct gate_options *o, struct gate_result *r, struct err *e)
{
    struct gate g = { .o = o, .r = r };
    int rc = -1;

    memset(r, 0, sizeof(*r));
    r->profile = o->profile;
    metrics_init(&g.loss);
    metrics_init(&g.bytes);
    if (!open_all(&g, e) && !compare_weights(&g, e) && !begin_logits(&g, e) &&
        !run_prompts(&g, e)) {
        metrics_finish(&g.loss);
        metrics_finish(&g.bytes);
        r->prompts = g.prompts.n;
        judge(&g);
        verdict(&g);
        rc = 0;
    }
    close_all(&g);
    return rc;
}

int gate_oracle_logits(const struct ckpt *c, const struct prompts *p,
                       const char *path, struct par *par, const struct log *log,
                       struct err *e)
{
    struct oracle_options oo = { .par = par };
    struct tensor_source s = ckpt_source(c);
    struct st_writer *w = st_writer_new(e);
    struct oracle *o = NULL;
    uint64_t total = 0, done = 0;
    float *rows = NULL;
    int rc = w ? check_logits_path(path, e) : -1;
    const size_t step = 64;

    for (size_t i = 0; !rc && i < p->n; i++) {
        uint64_t dims[2] = { p->lengths[i], (uint64_t)c->hp.vocab };
        char name[48];

        snprintf(name, sizeof(name), "oracle.%zu", i);
        rc = st_writer_add(w, name, ST_F32, 2, dims, e);
        total += p->lengths[i];
        if ((int64_t)p->lengths[i] > oo.max_positions)
            oo.max_positions = (int64_t)p->lengths[i];
    }
    if (!rc && !(o = oracle_new(&c->hp, &s, &oo, e)))
        rc = -1;
    if (!rc &&
        !(rows = mem_alloc(step * (size_t)c->hp.vocab, sizeof(float), e)))
        rc = -1;
    if (!rc)
        rc = st_writer_begin(w, path, e);
    for (size_t i = 0; !rc && i < p->n; i++) {
        rc = oracle_reset(o, e);
        for (size_t at = 0; !rc && at < p->lengths[i]; at += step) {
            size_t n = p->lengths[i] - at < step ? p->lengths[i] - at : step;
            struct oracle_out out = { .logits = rows };

            rc =
                oracle_feed(o, p->ids[i] + at, n, &out, e) ||
                        st_writer_write(w, rows,
                                        n * (size_t)c->hp.vocab * sizeof(float),
                                        e)
                    ? -1
                    : 0;
            done += n;
            log_progress(log, "oracle", done, total, "positions");
            if (!rc && log_cancelled(log))
                rc = err_set(e, ERR_CANCELLED, "interrupted");
        }
    }
    if (!rc)
        rc = st_writer_finish(w, e);
    mem_free(rows);
    oracle_free(o);
    st_writer_free(w);
    return rc;
}
