/*
 * The reference over the calibration tokens, as far as it was asked for.
 */
#include "converter/calib.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "converter/base/dmath.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/gate.h"
#include "models/models.h"

/* Of an importance, this share is the mean of all columns. */
#define DAMPING 0.05
/* What the full moments of one layer may take, whatever the machine: the
 * result must not depend on it. */
#define FULL_BYTES (UINT64_C(2) << 30)

/* Tokens and positions that a divergence is measured on. */
#define KL_TOKENS 256
#define KL_POSITIONS (KL_TOKENS / CALIB_KL_EACH)

struct feedback {
    const struct moment *of;
    struct qz_moment *m;
};

struct digest {
    const struct moment *of;
    struct hash128 hash;
};

struct calib {
    const struct ckpt *ckpt;
    struct calib_options o;
    struct prompts prompts;
    struct oracle *oracle;
    struct oracle_walk *walk;
    struct moments *moments; /* of step `step` */
    int64_t step;            /* -1: none */
    struct feedback *feedback;
    size_t n_feedback, cap_feedback;
    struct digest *digests;
    size_t n_digests, cap_digests;
    uint64_t tokens;
    float *base; /* [KL_POSITIONS, vocab]: logits of the model as it is */
    size_t n_base;
};

static int open_walk(struct calib *c, struct err *e)
{
    struct oracle_options oo = { .par = c->o.par };
    struct oracle_contexts contexts = { (const int32_t *const *)c->prompts.ids,
                                        c->prompts.lengths, c->prompts.n };
    struct tensor_source src = ckpt_source(c->ckpt);

    for (size_t i = 0; i < c->prompts.n; i++)
        if ((int64_t)c->prompts.lengths[i] > oo.max_positions)
            oo.max_positions = (int64_t)c->prompts.lengths[i];
    c->oracle = oracle_new(&c->ckpt->hp, &src, &oo, e);
    if (!c->oracle)
        return -1;
    c->walk = oracle_walk_new(c->oracle, &contexts, e);
    return c->walk ? 0 : -1;
}

static int check_lengths(const struct calib *c, struct err *e)
{
    int64_t max = c->ckpt->hp.max_positions;

    for (size_t i = 0; i < c->prompts.n; i++)
        if ((int64_t)c->prompts.lengths[i] > max)
            return err_set(e, ERR_INPUT,
                           "'%s': prompt %zu has %zu tokens, the model %" PRId64
                           " positions",
                           c->o.tokens, i, c->prompts.lengths[i], max);
    return 0;
}

struct calib *calib_open(const struct ckpt *ckpt, const struct calib_options *o,
                         struct err *e)
{
    struct calib *c = mem_zalloc(1, sizeof(*c), e);

    if (!c)
        return NULL;
    c->ckpt = ckpt;
    c->o = *o;
    c->step = -1;
    if (prompts_read(&c->prompts, o->tokens, ckpt->hp.vocab, e) ||
        check_lengths(c, e)) {
        err_in(e, "--calib");
        calib_close(c);
        return NULL;
    }
    for (size_t i = 0; i < c->prompts.n; i++)
        c->tokens += c->prompts.lengths[i];
    return c;
}

static void drop_step(struct calib *c)
{
    for (size_t i = 0; i < c->n_feedback; i++)
        qz_moment_free(c->feedback[i].m);
    c->n_feedback = c->n_digests = 0;
    moments_free(c->moments);
    c->moments = NULL;
    c->step = -1;
}

void calib_close(struct calib *c)
{
    if (!c)
        return;
    drop_step(c);
    mem_free(c->feedback);
    mem_free(c->digests);
    mem_free(c->base);
    oracle_walk_free(c->walk);
    oracle_free(c->oracle);
    prompts_release(&c->prompts);
    mem_free(c);
}

uint64_t calib_tokens(const struct calib *c)
{
    return c->tokens;
}

/* The step of the walk that sees a tensor's input; -1: none does. */
static int64_t step_of(const struct calib *c, const char *tensor)
{
    const char *s = "layers.";
    size_t n = strlen(s), digits;
    int64_t layer;

    if (!strcmp(tensor, "lm_head.weight"))
        return c->ckpt->hp.layers;
    if (strncmp(tensor, s, n) != 0)
        return -1;
    digits = strcspn(tensor + n, ".");
    return num_parse_i64(tensor + n, digits, &layer) ? layer : -1;
}

static int next_step(struct calib *c, bool gather, struct err *e)
{
    struct oracle_watch watch;
    int64_t at = oracle_walk_at(c->walk);

    if (log_cancelled(c->o.log))
        return err_set(e, ERR_CANCELLED, "interrupted");
    log_progress(c->o.log, "calibrate", (uint64_t)at,
                 (uint64_t)c->ckpt->hp.layers, "layers");
    if (!gather)
        return oracle_walk_step(c->walk, NULL, e);
    c->moments = moments_new(c->o.par, c->o.full ? FULL_BYTES : 0, e);
    if (!c->moments)
        return -1;
    watch = moments_watch(c->moments);
    if (oracle_walk_step(c->walk, &watch, e))
        return -1;
    moments_finish(c->moments);
    c->step = at;
    return 0;
}

static int need_step(struct calib *c, int64_t step, struct err *e)
{
    if (c->step == step)
        return 0;
    if (!c->walk && open_walk(c, e))
        return -1;
    drop_step(c);
    if (oracle_walk_at(c->walk) > step &&
        !oracle_walk_back(c->walk, 0, oracle_walk_stream(c->walk)))
        BUG("a walk that cannot begin anew");
    while (oracle_walk_at(c->walk) <= step)
        if (next_step(c, oracle_walk_at(c->walk) == step, e))
            return err_in(e, "calibration");
    return 0;
}

int calib_moment(struct calib *c, const char *tensor, uint64_t row,
                 const struct moment **out, struct err *e)
{
    int64_t step = step_of(c, tensor);

    *out = NULL;
    if (step < 0)
        return 0;
    if (need_step(c, step, e))
        return -1;
    *out = moments_find(c->moments, tensor, row);
    return 0;
}

static int digest_of(struct calib *c, const struct moment *m,
                     struct hash128 *out, struct err *e)
{
    uint64_t counts[] = { m->width, m->tokens, c->tokens, c->o.full };
    struct hash_state *h;

    for (size_t i = 0; i < c->n_digests; i++)
        if (c->digests[i].of == m) {
            *out = c->digests[i].hash;
            return 0;
        }
    if (mem_grow((void **)&c->digests, &c->cap_digests, c->n_digests,
                 sizeof(*c->digests), e) ||
        !(h = hash_new(e)))
        return -1;
    hash_add(h, counts, sizeof(counts));
    hash_add(h, m->diag, m->width * sizeof(*m->diag));
    if (m->full)
        hash_add(h, m->full, (m->width + 1) * m->width * sizeof(*m->full));
    *out = hash_get(h);
    hash_free(h);
    c->digests[c->n_digests++] = (struct digest){ m, *out };
    return 0;
}

int calib_digest(struct calib *c, const char *tensor, uint64_t row,
                 struct hash128 *out, struct err *e)
{
    const struct moment *m;

    *out = (struct hash128){ 0, 0 };
    if (calib_moment(c, tensor, row, &m, e))
        return -1;
    return m ? digest_of(c, m, out, e) : 0;
}

/* Prepares a full moment; its sums become sums per token fed. */
static int add_feedback(struct calib *c, const struct moment *of, struct err *e)
{
    float share = (float)((double)of->tokens / (double)c->tokens), *part[2];
    struct feedback f = { .of = of };
    struct hash128 seen;

    /* While the full moment is there. */
    if (digest_of(c, of, &seen, e) ||
        mem_grow((void **)&c->feedback, &c->cap_feedback, c->n_feedback,
                 sizeof(f), e) ||
        moments_take_full(c->moments, of, part, e))
        return -1;
    if (part[0]) {
        for (size_t i = 0; i < of->width * of->width; i++) {
            part[0][i] *= share;
            part[1][i] *= share;
        }
        f.m = qz_moment_new(part[0], part[1], of->width, c->o.par, e);
        if (!f.m)
            return -1;
    }
    c->feedback[c->n_feedback++] = f;
    return 0;
}

int calib_feedback(struct calib *c, const char *tensor, uint64_t row,
                   const struct qz_moment **out, struct err *e)
{
    const struct moment *m;

    *out = NULL;
    if (calib_moment(c, tensor, row, &m, e))
        return -1;
    if (!m)
        return 0;
    for (size_t i = 0; i < c->n_feedback; i++)
        if (c->feedback[i].of == m) {
            *out = c->feedback[i].m;
            return 0;
        }
    if (add_feedback(c, m, e))
        return err_in(e, "calibration of '%s'", tensor);
    *out = c->feedback[c->n_feedback - 1].m;
    return 0;
}

/* Columns [col, col + n) of a moment's diagonal. An expert counts for the
 * tokens that reached it. */
static void put_diag(const struct calib *c, const struct moment *m,
                     uint64_t col, size_t n, float *dst)
{
    double mean = 0, share = (double)m->tokens / (double)c->tokens;

    for (size_t j = 0; j < m->width; j++)
        mean += m->diag[j];
    mean /= (double)m->width;
    for (size_t j = 0; j < n; j++)
        dst[j] = (float)(((1 - DAMPING) * m->diag[col + j] + DAMPING * mean) *
                         share);
}

int calib_rows(struct calib *c, const struct mil_data *d, uint64_t row,
               uint64_t n, float *dst, struct err *e)
{
    const struct need *nd = weights_need(d);
    uint64_t width = nd->dims[nd->rank - 1], el, end, run;
    struct weight_raw raw;

    if (!weights_raw(d, &raw))
        BUG("importances of what is no matrix");
    el = row * raw.cols;
    end = el + n * raw.cols;
    for (; el < end; el += run, dst += run) {
        uint64_t at = weights_place(d, el, &run), col = at % width;
        const struct moment *m;

        run = run < width - col ? run : width - col;
        run = run < end - el ? run : end - el;
        if (calib_moment(c, d->origin->tensor, at / width, &m, e))
            return -1;
        if (m && m->width == width)
            put_diag(c, m, col, (size_t)run, dst);
        else
            memset(dst, 0, (size_t)run * sizeof(*dst));
    }
    return 0;
}

/* ---- divergence ---- */

/* Logits of every CALIB_KL_EACH-th of the first tokens under some weights. */
static int few_logits(struct calib *c, const struct tensor_source *src,
                      float *logits, size_t *n, struct err *e)
{
    size_t lengths[KL_TOKENS], vocab = (size_t)c->ckpt->hp.vocab, left, at;
    struct oracle_contexts few = { (const int32_t *const *)c->prompts.ids,
                                   lengths, 0 };
    struct oracle_options oo = { .par = c->o.par, .max_positions = KL_TOKENS };
    struct oracle *o = oracle_new(&c->ckpt->hp, src, &oo, e);
    struct oracle_walk *w = NULL;
    int rc = -1;

    for (left = KL_TOKENS; left && few.n < c->prompts.n; few.n++) {
        size_t len = c->prompts.lengths[few.n];

        lengths[few.n] = len < left ? len : left;
        left -= lengths[few.n];
    }
    if (o && (w = oracle_walk_new(o, &few, e)))
        rc = 0;
    while (!rc && oracle_walk_at(w) <= c->ckpt->hp.layers)
        rc = log_cancelled(c->o.log) ? err_set(e, ERR_CANCELLED, "interrupted")
                                     : oracle_walk_step(w, NULL, e);
    *n = 0;
    at = CALIB_KL_EACH - 1;
    for (; !rc && at < KL_TOKENS - left; at += CALIB_KL_EACH)
        rc = oracle_walk_logits(w, at, 1, logits + (*n)++ * vocab, e);
    oracle_walk_free(w);
    oracle_free(o);
    return rc;
}

static double log_sum(const float *x, size_t n)
{
    double max = -INFINITY, sum = 0;

    for (size_t i = 0; i < n; i++)
        max = (double)x[i] > max ? (double)x[i] : max;
    for (size_t i = 0; i < n; i++)
        sum += dm_exp(fmax((double)x[i] - max, -700));
    return max + dm_log(sum);
}

static double divergence(const float *p, const float *q, size_t n)
{
    double lp = log_sum(p, n), lq = log_sum(q, n), sum = 0;

    for (size_t i = 0; i < n; i++) {
        double a = (double)p[i] - lp;

        if (a > -700)
            sum += dm_exp(a) * (a - ((double)q[i] - lq));
    }
    return sum > 0 ? sum : 0;
}

int calib_divergence(struct calib *c, const struct tensor_source *other,
                     double *kl, struct err *e)
{
    size_t vocab = (size_t)c->ckpt->hp.vocab, n;
    struct tensor_source own = ckpt_source(c->ckpt);
    float *logits;

    if (!c->base) {
        c->base = mem_alloc(KL_POSITIONS * vocab, sizeof(*c->base), e);
        if (!c->base || few_logits(c, &own, c->base, &c->n_base, e))
            return -1;
    }
    logits = mem_alloc(KL_POSITIONS * vocab, sizeof(*logits), e);
    if (!logits || few_logits(c, other, logits, &n, e)) {
        mem_free(logits);
        return -1;
    }
    *kl = 0;
    for (size_t i = 0; i < n; i++)
        *kl += divergence(c->base + i * vocab, logits + i * vocab, vocab) /
               (double)n;
    mem_free(logits);
    return *kl < INFINITY
               ? 0
               : err_set(e, ERR_INPUT, "the model's outputs are not finite");
}
