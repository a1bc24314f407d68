/*
 * The gate; see gate.h for what it proves.
 */
#include "converter/gate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/num.h"
#include "converter/gate_embed.h"
#include "converter/gate_judge.h"
#include "converter/gate_metrics.h"
#include "converter/gate_noise.h"
#include "converter/gate_states.h"
#include "converter/gate_weights.h"
#include "converter/package_run.h"
#include "converter/package_source.h"
#include "models/models.h"

struct gate {
    const struct gate_options *o;
    struct gate_result *r;
    struct package *pkg;
    struct package_source *src;
    struct oracle *ref;      /* on the checkpoint's weights */
    struct oracle *dec;      /* on the package's decoded weights, or NULL */
    struct prompts *prompts; /* made unless there are any */
    size_t own;              /* the last `own` prompts are not the user's */
    int64_t vocab, ctx, batch;
    int64_t block;   /* positions that the oracles take at once */
    bool beside;     /* this run only joins that of another profile */
    float *rows;     /* [block, vocab] of the oracle at work */
    float *inf_rows; /* [block, vocab] of the package's infer */
    float *row;      /* [vocab] */
    double *errors;  /* [ctx], of the longest prompt */
    float *pre_rows; /* prefill pass: [n_pre, vocab] */
    int32_t *pre_at; /* [T]: row of each position, -1: none */
    float *kept;     /* for --logits: [T, vocab] */
    struct metrics loss, bytes;
    uint64_t done, total; /* positions, for progress */
    struct st_writer *out;
};

/* What the package's bytes are compared with; NULL: nothing. */
static struct oracle *judge_of(const struct gate *g)
{
    return g->dec ? g->dec : g->ref;
}

/* ---- prompts ---- */

static int add_prompt(struct gate *g, int64_t n, int32_t **ids, struct err *e)
{
    *ids = mem_zalloc((size_t)n, sizeof(**ids), e);
    if (*ids && !prompts_add(g->prompts, *ids, (size_t)n, e))
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
        ids[at++] = (int32_t)(gate_random(&seed) % (uint64_t)g->vocab);
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

static int64_t past_border(int64_t batch, int64_t ctx)
{
    return batch + 32 < ctx ? batch + 32 : ctx;
}

/* A few seeded ids, continued greedily by the oracle past a batch border. */
static int greedy_prompt(struct gate *g, struct err *e)
{
    int64_t n = past_border(g->batch, g->ctx);
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

    for (size_t i = 0; i < g->prompts->n; i++)
        if ((int64_t)g->prompts->lengths[i] >= g->ctx)
            return 0;
    if (add_prompt(g, g->ctx, &ids, e))
        return -1;
    /* The first prompt over and over: text as the model knows it, since what
     * random ids do to a recurrent state is noise. */
    for (int64_t i = 0; i < g->ctx; i++)
        ids[i] = g->prompts->ids[0][(size_t)i % g->prompts->lengths[0]];
    g->own = 1;
    return 0;
}

static int make_prompts(struct gate *g, struct err *e)
{
    struct prompts *p = g->prompts;

    if (g->o->tokens) {
        if (prompts_read(p, g->o->tokens, g->vocab, e))
            return -1;
    } else if (greedy_prompt(g, e)) {
        return -1;
    }
    for (size_t i = 0; i < p->n; i++)
        if ((int64_t)p->lengths[i] > g->ctx) {
            log_warn(g->o->log,
                     "prompt %zu has %zu tokens, the package's context %" PRId64
                     ": the rest is left out",
                     i, p->lengths[i], g->ctx);
            p->lengths[i] = (size_t)g->ctx;
        }
    return border_prompt(g, e);
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

/* Logits of one oracle that are held at a time, and as many of the package.
 * All weights are read once for as many positions. */
#define ROWS_KEEP 24000000
/* And of the pass by full batches, until the single steps come by. */
#define PREFILL_KEEP 16000000

static int64_t block_of(int64_t vocab, int64_t batch)
{
    int64_t n = ROWS_KEEP / (vocab * (int64_t)sizeof(float));

    return n < 1 ? 1 : n < batch ? n : batch;
}

/* Float32 weights are rounded even in an uncompressed package, as are sums and
 * products that were folded into a constant. */
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
    /* Of a run beside another one nobody asks what compression cost. */
    if (!g->beside || !g->r->compressed) {
        g->ref = oracle_new(&g->o->ckpt->hp, &s, &oo, e);
        if (!g->ref)
            return -1;
    }
    if (!g->r->compressed)
        return 0;
    s = package_source_tensors(g->src);
    oo.keep_bytes = 0; /* fed in batches: streaming costs little */
    oo.half_rope = true;
    g->dec = oracle_new(&g->o->ckpt->hp, &s, &oo, e);
    return g->dec ? 0 : -1;
}

/* Forms that differ are a verdict, no error: what one of them computes says
 * nothing of the other. */
static int open_package(struct gate *g, struct err *e)
{
    struct run_options ro = { g->o->profile, g->o->par, keep_bytes(g, true) };
    struct gate_result *r = g->r;

    g->pkg = package_open(g->o->package, &ro, e);
    if (g->pkg) {
        r->forms = package_forms(g->pkg);
    } else if (e->code == ERR_MISMATCH) {
        r->forms = PACKAGE_COMPILED | PACKAGE_SOURCE;
        snprintf(r->forms_differ, sizeof(r->forms_differ), "%.390s", e->text);
        err_reset(e);
    } else {
        return err_in(e, "package");
    }
    return 0;
}

static int open_all(struct gate *g, struct err *e)
{
    size_t v, b;

    g->vocab = package_vocab(g->pkg);
    g->ctx = package_meta(g->pkg)->context_length;
    g->batch = package_meta(g->pkg)->batch_size;
    g->r->ctx = g->ctx;
    g->r->batch = g->batch;
    g->r->recurrent = package_meta(g->pkg)->recurrent_state;
    g->r->experts = g->o->ckpt && g->o->ckpt->hp.experts;
    if (g->o->ckpt && (check_same(g, e) || open_oracles(g, e)))
        return -1;
    g->block = block_of(g->vocab, g->batch);
    v = (size_t)g->vocab;
    b = (size_t)g->block;
    g->row = mem_alloc(v, sizeof(float), e);
    g->errors = mem_zalloc((size_t)g->ctx, sizeof(double), e);
    g->rows = judge_of(g) ? mem_alloc(v * b, sizeof(float), e) : NULL;
    g->inf_rows = mem_alloc(v * b, sizeof(float), e);
    if (!g->row || !g->errors || !g->inf_rows || (judge_of(g) && !g->rows))
        return -1;
    if (!g->prompts->n && make_prompts(g, e))
        return -1;
    for (size_t i = 0; i < g->prompts->n; i++)
        g->total += 2 * g->prompts->lengths[i];
    return 0;
}

static void close_all(struct gate *g)
{
    package_close(g->pkg);
    package_source_close(g->src);
    oracle_free(g->ref);
    oracle_free(g->dec);
    mem_free(g->rows);
    mem_free(g->row);
    mem_free(g->errors);
    mem_free(g->inf_rows);
    mem_free(g->pre_rows);
    mem_free(g->pre_at);
    mem_free(g->kept);
    st_writer_free(g->out);
}

/* The same in every profile. */
static int compare_weights(struct gate *g, struct err *e)
{
    return g->src && !g->beside
               ? gate_weights_compare(g->src, g->o->ckpt, g->o->par, g->o->log,
                                      &g->r->weights, e)
               : 0;
}

/* Tokens whose embeddings are compared. */
#define EMBED_TOKENS 64

static int compare_embeddings(struct gate *g, struct err *e)
{
    size_t n = g->prompts->lengths[0];
    struct oracle *o = judge_of(g);

    if (!o)
        return 0;
    return oracle_reset(o, e) ||
                   gate_embed_compare(g->pkg, o, g->prompts->ids[0],
                                      n < EMBED_TOKENS ? n : EMBED_TOKENS,
                                      &g->r->embeddings, e)
               ? -1
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

/* Rows of logits that the prefill pass keeps, where calls end: of all batches,
 * and of as many single tokens behind them as there is memory for. */
static int choose_rows(struct gate *g, int64_t n, struct err *e)
{
    int64_t ends = 0, singles = 0, rows = 0, room, stride, i = 0;
    bool batched = false;

    mem_free(g->pre_at);
    g->pre_at = mem_alloc((size_t)n, sizeof(*g->pre_at), e);
    if (!g->pre_at)
        return -1;
    for (int64_t p = 0, m; p < n; p += m) {
        m = call_length(g, n, p);
        batched = batched || m > 1;
        ends += m > 1 && yields(g, m);
        singles += m == 1 && batched;
    }
    room = PREFILL_KEEP / (g->vocab * (int64_t)sizeof(float)) - ends;
    stride = room < 1 ? singles + 1 : (singles + room - 1) / room;
    batched = false;
    for (int64_t p = 0, m; p < n; p += m) {
        m = call_length(g, n, p);
        batched = batched || m > 1;
        for (int64_t k = 0; k < m; k++)
            g->pre_at[p + k] = -1;
        if (m > 1 ? yields(g, m) : batched && i++ % stride == 0)
            g->pre_at[p + m - 1] = (int32_t)rows++;
    }
    mem_free(g->pre_rows);
    g->pre_rows = mem_alloc((size_t)((rows + 1) * g->vocab), sizeof(float), e);
    return g->pre_rows ? 0 : -1;
}

static int feed_full_batch(struct gate *g, const int32_t *ids, int64_t at,
                           struct err *e)
{
    int64_t k = g->pre_at[at + g->batch - 1];

    return package_feed(g->pkg, ids + at, (size_t)g->batch, true,
                        k < 0 ? NULL : g->pre_rows + k * g->vocab, e);
}

/* Single tokens from `at` on, a block of them at most; *m: how many. */
static int feed_singles(struct gate *g, const int32_t *ids, int64_t n,
                        int64_t at, int64_t *m, struct err *e)
{
    size_t row = (size_t)g->vocab * sizeof(float);
    bool kept = false;

    for (*m = 0; *m < g->block && at + *m < n; ++*m) {
        if (call_length(g, n, at + *m) != 1)
            break;
        kept = kept || g->pre_at[at + *m] >= 0;
    }
    if (package_infer(g->pkg, ids + at, (size_t)*m, kept ? g->inf_rows : NULL,
                      e))
        return -1;
    for (int64_t i = 0; i < *m; i++)
        if (g->pre_at[at + i] >= 0)
            memcpy(g->pre_rows + g->pre_at[at + i] * g->vocab,
                   g->inf_rows + i * g->vocab, row);
    return 0;
}

/* Full batches through prefill, the rest through infer. */
static int prefill_pass(struct gate *g, const int32_t *ids, int64_t n,
                        struct err *e)
{
    if (choose_rows(g, n, e))
        return -1;
    /* Rows of the prompt before must not show. */
    package_restart(g->pkg);
    for (int64_t p = 0, m; p < n; p += m) {
        m = call_length(g, n, p);
        if (m > 1 ? feed_full_batch(g, ids, p, e)
                  : feed_singles(g, ids, n, p, &m, e))
            return -1;
        if (step(g, (uint64_t)m, e))
            return -1;
    }
    return 0;
}

/* Errors that grow from step to step show along the longest prompt. */
static void add_drift(struct gate *g, int64_t n, int64_t at,
                      const float *oracle, const float *package)
{
    if (n == g->ctx)
        g->errors[at] = metrics_distance(oracle, package, g->vocab);
}

static int by_size(const void *pa, const void *pb)
{
    const double *a = pa, *b = pb;

    return (*a > *b) - (*a < *b);
}

/* Medians: the odd position where the model is beside itself is no drift. NaN
 * has no place in an order. */
static void take_drift(struct gate *g)
{
    struct gate_drift *d = &g->r->drift;
    size_t n = (size_t)g->ctx / GATE_QUARTERS;

    if (!g->r->reached_end || !judge_of(g) || !n)
        return;
    d->positions = n * GATE_QUARTERS;
    for (size_t q = 0; q < GATE_QUARTERS; q++) {
        double *e = g->errors + q * n;

        d->error[q] = 0;
        for (size_t i = 0; i < n; i++)
            metrics_keep_max(&d->error[q], e[i]);
        if (d->error[q] != d->error[q])
            continue;
        qsort(e, n, sizeof(*e), by_size);
        d->error[q] = e[n / 2];
    }
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

/* The token behind position `at`, for the perplexity; -1: none. */
static int64_t next_token(const struct gate *g, size_t prompt, int64_t at)
{
    bool own = prompt >= g->prompts->n - g->own;

    return at + 1 < (int64_t)g->prompts->lengths[prompt] &&
                   (!own || g->prompts->n == g->own)
               ? g->prompts->ids[prompt][at + 1]
               : -1;
}

/* An oracle takes `m` positions from `at` on, and both passes' logits are
 * compared with its own. */
static int compare_block(struct gate *g, struct oracle *o, struct metrics *into,
                         size_t prompt, int64_t at, int64_t m, struct err *e)
{
    struct oracle_out out = { .logits = g->rows };
    int64_t n = (int64_t)g->prompts->lengths[prompt], v = g->vocab;

    if (oracle_feed(o, g->prompts->ids[prompt] + at, (size_t)m, &out, e))
        return err_in(e, o == g->ref ? "oracle"
                                     : "oracle on the package's weights");
    for (int64_t i = 0; i < m; i++) {
        const float *own = g->rows + i * v, *inf = g->inf_rows + i * v;
        int64_t k = g->pre_at[at + i];

        metrics_add(into, own, inf, v, (int64_t)prompt, at + i,
                    next_token(g, prompt, at + i));
        if (k >= 0)
            metrics_add(into, own, g->pre_rows + k * v, v, (int64_t)prompt,
                        at + i, -1);
        if (o == judge_of(g))
            add_drift(g, n, at + i, own, inf);
    }
    return 0;
}

/* What infer gave beside what prefill gave. */
static int infer_block(struct gate *g, int64_t at, int64_t m, struct err *e)
{
    int64_t v = g->vocab;

    for (int64_t i = 0; i < m; i++) {
        const float *inf = g->inf_rows + i * v;
        int64_t k = g->pre_at[at + i];

        if (k >= 0)
            compare_passes(g, g->pre_rows + k * v, inf);
        if (g->kept)
            memcpy(g->kept + (at + i) * v, inf, (size_t)v * sizeof(float));
        if (step(g, 1, e))
            return -1;
    }
    return 0;
}

/* Every position by infer, beside the oracles. */
static int infer_pass(struct gate *g, size_t prompt, struct err *e)
{
    const int32_t *ids = g->prompts->ids[prompt];
    int64_t n = (int64_t)g->prompts->lengths[prompt];

    package_reset(g->pkg); /* what prefill wrote must not stand in */
    if ((g->ref && oracle_reset(g->ref, e)) ||
        (g->dec && oracle_reset(g->dec, e)))
        return -1;
    for (int64_t p = 0; p < n; p += g->block) {
        int64_t m = n - p < g->block ? n - p : g->block;

        if (package_infer(g->pkg, ids + p, (size_t)m, g->inf_rows, e) ||
            (g->ref && compare_block(g, g->ref, &g->loss, prompt, p, m, e)) ||
            (g->out &&
             st_writer_write(g->out, g->rows,
                             (size_t)(m * g->vocab) * sizeof(float), e)) ||
            (g->dec && compare_block(g, g->dec, &g->bytes, prompt, p, m, e)) ||
            infer_block(g, p, m, e))
            return -1;
    }
    return 0;
}

/* Both calls have fed the same tokens: what is left in the states? */
static int both_passes(struct gate *g, size_t prompt, struct err *e)
{
    int64_t n = (int64_t)g->prompts->lengths[prompt];
    struct package_snapshot *s;
    int rc;

    if (prefill_pass(g, g->prompts->ids[prompt], n, e))
        return -1;
    if (!g->r->recurrent)
        return infer_pass(g, prompt, e);
    s = package_snapshot(g->pkg, e);
    rc = s ? infer_pass(g, prompt, e) : -1;
    if (!rc)
        gate_states_compare(g->pkg, snapshot_states(s), judge_of(g), g->r);
    package_snapshot_free(s);
    return rc;
}

static int run_prompt(struct gate *g, size_t prompt, struct err *e)
{
    int64_t n = (int64_t)g->prompts->lengths[prompt];

    if (both_passes(g, prompt, e))
        return -1;
    g->r->positions += (uint64_t)n;
    if ((uint64_t)n > g->r->decode_steps)
        g->r->decode_steps = (uint64_t)n;
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
    size_t user = g->prompts->n - g->own;

    if (!g->o->logits || !g->ref)
        return 0;
    if (check_logits_path(g->o->logits, e))
        return -1;
    g->out = st_writer_new(e);
    if (!g->out)
        return -1;
    for (size_t i = 0; i < user; i++) {
        uint64_t dims[2] = { g->prompts->lengths[i], (uint64_t)g->vocab };
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
        g->prompts->lengths[prompt] * (size_t)g->vocab * sizeof(float);

    return g->out ? st_writer_write(g->out, g->kept, bytes, e) : 0;
}

static int run_prompts(struct gate *g, struct err *e)
{
    for (size_t i = 0; i < g->prompts->n; i++) {
        size_t user = g->prompts->n - g->own;

        if (g->out && i == user) {
            if (st_writer_finish(g->out, e))
                return -1;
            st_writer_free(g->out);
            g->out = NULL;
        }
        mem_free(g->kept);
        g->kept = NULL;
        if (g->out) {
            g->kept = mem_alloc(g->prompts->lengths[i] * (size_t)g->vocab,
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

/* ---- the whole ---- */

static void take_figures(struct gate *g)
{
    struct gate_result *r = g->r;

    metrics_finish(&g->loss);
    metrics_finish(&g->bytes);
    r->prompts = g->prompts->n;
    r->judged = judge_of(g) != NULL;
    r->loss = g->ref ? g->loss.out : g->bytes.out;
    r->bytes = r->compressed ? g->bytes.out : g->loss.out;
    r->bits = g->src ? package_source_bits(g->src) : 16;
    take_drift(g);
}

/* What the oracle that the bytes are compared with makes of moved weights; as
 * many draws as it takes. */
static int measure_noise(struct gate *g, struct err *e)
{
    struct gate_noise_job j = {
        .ckpt = g->o->ckpt,
        .prompts = g->prompts,
        .base = judge_of(g),
        .weights =
            g->dec ? package_source_tensors(g->src) : ckpt_source(g->o->ckpt),
        .options = { .par = g->o->par,
                     .keep_bytes = keep_bytes(g, false),
                     .half_rope = true,
                     .max_positions = g->ctx },
        .log = g->o->log,
    };

    while (gate_judge_asks_noise(g->r)) {
        if (gate_noise_draw(&j, &g->r->noise, e))
            return -1;
        gate_judge(g->r);
    }
    return 0;
}

static int run(const struct gate_options *o, struct prompts *prompts,
               bool beside, struct gate_result *r, struct err *e)
{
    struct gate g = { .o = o, .r = r, .prompts = prompts, .beside = beside };
    int rc = -1;

    memset(r, 0, sizeof(*r));
    r->profile = o->profile;
    metrics_init(&g.loss);
    metrics_init(&g.bytes);
    if (open_package(&g, e)) {
        rc = -1;
    } else if (!g.pkg) {
        take_figures(&g);
        gate_judge(r);
        rc = 0;
    } else if (!open_all(&g, e) && !compare_weights(&g, e) &&
               !compare_embeddings(&g, e) && !begin_logits(&g, e) &&
               !run_prompts(&g, e)) {
        take_figures(&g);
        gate_judge(r);
        rc = measure_noise(&g, e);
    }
    close_all(&g);
    return rc;
}

/* The first prompt, past a batch border. */
static int short_prompt(const struct prompts *all, const struct gate_result *r,
                        struct prompts *out, struct err *e)
{
    int64_t n = past_border(r->batch, r->ctx);
    int32_t *ids = mem_alloc((size_t)n, sizeof(*ids), e);

    if (!ids)
        return -1;
    for (int64_t i = 0; i < n; i++)
        ids[i] = all->ids[0][(size_t)i % all->lengths[0]];
    if (!prompts_add(out, ids, (size_t)n, e))
        return 0;
    mem_free(ids);
    return -1;
}

/* Half precision hides slight faults of the graph, and more of them where the
 * model's noise softened a limit. They show in f32: in a few positions, or in
 * all where a limit was softened. */
static int run_f32(const struct gate_options *o, struct prompts *prompts,
                   struct gate_result *r, struct err *e)
{
    struct gate_options plain = *o;
    struct prompts few = { 0 };
    struct gate_result f32;
    int rc = r->noise.draws ? 0 : short_prompt(prompts, r, &few, e);

    plain.profile = RUN_F32;
    plain.logits = NULL;
    if (!rc)
        rc = run(&plain, few.n ? &few : prompts, true, &f32, e);
    if (!rc)
        gate_judge_join(r, &f32);
    prompts_release(&few);
    return rc ? err_in(e, "in f32") : 0;
}

int gate_run(const struct gate_options *o, struct gate_result *r, struct err *e)
{
    struct prompts prompts = { 0 };
    int rc = run(o, &prompts, false, r, e);

    if (!rc && o->profile != RUN_F32 && r->verdict == GATE_PASS)
        rc = run_f32(o, &prompts, r, e);
    prompts_release(&prompts);
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
