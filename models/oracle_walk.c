/*
 * Contexts computed layer by layer.
 *
 * A layer is run on one context after the other, each from an empty cache; a
 * context longer than a pass takes several. Where layers read the caches of
 * others every context keeps its own set of caches, from the layer that fills
 * one to the last that reads it. Per-layer embeddings are computed with the
 * embedding of a pass and therefore anew for every layer: kept, those of Gemma
 * 4 E2B would be 36 KB a token beside 6 KB of stream.
 */
#include "models/oracle_priv.h"

#include <inttypes.h>
#include <string.h>

#include "converter/base/mem.h"

struct oracle_walk {
    struct oracle *o;
    int32_t **ids;
    size_t *lengths, n, tokens;
    float *x; /* [tokens, hidden] */
    int64_t at;
    bool shared;           /* layers read other layers' caches */
    struct kv_cache *own;  /* the oracle's */
    struct kv_cache **set; /* per context, if shared */
};

static int copy_contexts(struct oracle_walk *w, const struct oracle_contexts *c,
                         struct err *e)
{
    w->ids = mem_zalloc(c->n, sizeof(*w->ids), e);
    w->lengths = mem_zalloc(c->n, sizeof(*w->lengths), e);
    if (!w->ids || !w->lengths)
        return -1;
    for (; w->n < c->n; w->n++) {
        size_t n = c->lengths[w->n];

        w->ids[w->n] = mem_alloc(n, sizeof(**w->ids), e);
        if (!w->ids[w->n])
            return -1;
        memcpy(w->ids[w->n], c->ids[w->n], n * sizeof(**w->ids));
        w->lengths[w->n] = n;
        w->tokens += n;
    }
    return 0;
}

static int check_context(const struct oracle *o, const int32_t *ids, size_t n,
                         size_t context, struct err *e)
{
    if (!n || n > (uint64_t)o->max_positions)
        return err_set(e, ERR_INPUT,
                       "context %zu has %zu tokens, 1 to %" PRId64
                       " are possible",
                       context, n, o->max_positions);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= o->hp.vocab)
            return err_set(e, ERR_INPUT,
                           "context %zu: token %" PRId32 " at position %zu is "
                           "outside the vocabulary of %" PRId64,
                           context, ids[i], i, o->hp.vocab);
    return 0;
}

/* A context's own caches, empty. */
static struct kv_cache *make_set(const struct oracle *o, struct err *e)
{
    size_t layers = (size_t)o->hp.layers;
    struct kv_cache *set = mem_zalloc(layers, sizeof(*set), e);

    for (size_t l = 0; set && l < layers; l++) {
        struct kv_cache *c = &set[l];

        *c = o->kv[l];
        c->n_blocks = 0;
        c->keys = c->values = NULL;
        if (!c->heads)
            continue;
        c->keys = mem_zalloc(c->cap_blocks, sizeof(*c->keys), e);
        c->values = mem_zalloc(c->cap_blocks, sizeof(*c->values), e);
        if (!c->keys || !c->values) {
            for (size_t i = 0; i <= l; i++)
                kv_release(&set[i]);
            mem_free(set);
            return NULL;
        }
    }
    return set;
}

/* Gives the memory of a cache's content back. */
static void kv_empty(struct kv_cache *c)
{
    for (size_t b = 0; b < c->n_blocks; b++) {
        mem_free(c->keys[b]);
        mem_free(c->values[b]);
        c->keys[b] = c->values[b] = NULL;
    }
    c->n_blocks = 0;
}

struct oracle_walk *oracle_walk_new(struct oracle *o,
                                    const struct oracle_contexts *c,
                                    struct err *e)
{
    struct oracle_walk *w = mem_zalloc(1, sizeof(*w), e);
    uint64_t elems;

    if (!w)
        return NULL;
    w->o = o;
    w->own = o->kv;
    w->shared = o->hp.kv_shared_layers > 0;
    for (size_t i = 0; i < c->n; i++)
        if (check_context(o, c->ids[i], c->lengths[i], i, e))
            goto fail;
    if (copy_contexts(w, c, e))
        goto fail;
    if (!mem_mul(w->tokens, (uint64_t)o->hp.hidden, &elems) ||
        elems > SIZE_MAX / sizeof(float)) {
        err_set(e, ERR_NOMEM, "%zu tokens are too many", w->tokens);
        goto fail;
    }
    w->x = mem_alloc_aligned((size_t)elems, sizeof(float), e);
    if (!w->x)
        goto fail;
    if (w->shared) {
        w->set = mem_zalloc(w->n, sizeof(*w->set), e);
        for (size_t i = 0; w->set && i < w->n; i++)
            if (!(w->set[i] = make_set(o, e)))
                goto fail;
        if (!w->set)
            goto fail;
    }
    if (!oracle_reset(o, e))
        return w;
fail:
    oracle_walk_free(w);
    return NULL;
}

void oracle_walk_free(struct oracle_walk *w)
{
    struct err ignored = ERR_INIT;

    if (!w)
        return;
    w->o->kv = w->own;
    w->o->watch = NULL;
    if (oracle_reset(w->o, &ignored))
        w->o->broken = true;
    for (size_t i = 0; w->set && i < w->n; i++) {
        for (int64_t l = 0; w->set[i] && l < w->o->hp.layers; l++)
            kv_release(&w->set[i][l]);
        mem_free(w->set[i]);
    }
    mem_free(w->set);
    for (size_t i = 0; w->ids && i < w->n; i++)
        mem_free(w->ids[i]);
    mem_free(w->ids);
    mem_free(w->lengths);
    mem_free(w->x);
    mem_free(w);
}

size_t oracle_walk_tokens(const struct oracle_walk *w)
{
    return w->tokens;
}

int64_t oracle_walk_at(const struct oracle_walk *w)
{
    return w->at;
}

const float *oracle_walk_stream(const struct oracle_walk *w)
{
    return w->x;
}

bool oracle_walk_back(struct oracle_walk *w, int64_t at, const float *stream)
{
    size_t bytes = w->tokens * (size_t)w->o->hp.hidden * sizeof(*w->x);

    if (at < 0 || at > w->o->hp.layers || (w->shared && at > 0))
        return false;
    if (at > 0 && stream != w->x)
        memcpy(w->x, stream, bytes);
    w->at = at;
    return true;
}

/* One pass of a context through the step. */
static int step_pass(struct oracle_walk *w, float *x, struct err *e)
{
    struct oracle *o = w->o;
    float *embedded = x;

    oracle_rope_refill(o);
    if (w->at > 0 && o->hp.ple_width) {
        if (oracle_grow(&o->x, o->n * (size_t)o->hp.hidden, sizeof(float), e))
            return -1;
        embedded = o->x.p;
    }
    if ((w->at == 0 || embedded != x) && o->ops->embed(o, embedded, e))
        return -1;
    if (oracle_kv_reserve_layer(o, w->at, o->pos + (int64_t)o->n, e))
        return -1;
    return o->ops->layer(o, w->at, x, e)
               ? err_in(e, "layer %" PRId64 " of the reference", w->at)
               : 0;
}

static int step_context(struct oracle_walk *w, size_t context, float *x,
                        struct err *e)
{
    struct oracle *o = w->o;
    size_t n = w->lengths[context];

    if (w->shared)
        o->kv = w->set[context];
    else
        kv_clear(&o->kv[w->at]);
    if (o->ops->reset)
        o->ops->reset(o);
    o->pos = 0;
    for (size_t done = 0; done < n; done += o->n) {
        o->tokens = w->ids[context] + done;
        o->n = n - done < ORACLE_PASS ? n - done : ORACLE_PASS;
        if (step_pass(w, x + done * (size_t)o->hp.hidden, e))
            return -1;
        o->pos += (int64_t)o->n;
    }
    return 0;
}

/* Caches that no layer behind this one reads. */
static void drop_caches(struct oracle_walk *w)
{
    const struct hparams *hp = &w->o->hp;

    if (!w->shared) {
        kv_empty(&w->own[w->at]);
        return;
    }
    for (int64_t l = 0; l <= w->at; l++) {
        int64_t last = l;

        for (int64_t i = w->at + 1; i < hp->layers; i++)
            last = hp->kv_source[i] == l ? i : last;
        for (size_t c = 0; last <= w->at && c < w->n; c++)
            kv_empty(&w->set[c][l]);
    }
}

/* The final norm over everything, pass by pass. */
static int step_norm(struct oracle_walk *w, struct err *e)
{
    struct oracle *o = w->o;
    size_t width = (size_t)o->hp.hidden;

    for (size_t done = 0; done < w->tokens; done += o->n) {
        float *x = w->x + done * width;

        o->n = w->tokens - done < ORACLE_PASS ? w->tokens - done : ORACLE_PASS;
        if (o->ops->norm(o, x, e) ||
            (o->watch && o->watch->see(o->watch->cookie, "lm_head.weight", 0,
                                       (size_t)o->hp.vocab, width, x, o->n, e)))
            return -1;
    }
    return 0;
}

int oracle_walk_step(struct oracle_walk *w, const struct oracle_watch *watch,
                     struct err *e)
{
    struct oracle *o = w->o;
    size_t width = (size_t)o->hp.hidden, at = 0;
    int rc = 0;

    BUG_UNLESS(w->at <= o->hp.layers);
    o->watch = watch;
    if (w->at == o->hp.layers) {
        rc = step_norm(w, e);
    } else {
        for (size_t i = 0; !rc && i < w->n; at += w->lengths[i++])
            rc = step_context(w, i, w->x + at * width, e);
        o->kv = w->own;
        if (!rc)
            drop_caches(w);
    }
    o->watch = NULL;
    w->at += !rc;
    return rc;
}

int oracle_walk_logits(struct oracle_walk *w, size_t first, size_t n,
                       float *logits, struct err *e)
{
    struct oracle *o = w->o;
    size_t width = (size_t)o->hp.hidden, vocab = (size_t)o->hp.vocab;

    BUG_UNLESS(w->at == o->hp.layers + 1 && first <= w->tokens &&
               n <= w->tokens - first);
    for (size_t done = 0; done < n; done += o->n) {
        o->n = n - done < ORACLE_PASS ? n - done : ORACLE_PASS;
        if (o->ops->head(o, w->x + (first + done) * width, o->n,
                         logits + done * vocab, e))
            return -1;
    }
    return 0;
}
