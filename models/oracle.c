/*
 * The reference's context: options, passes, results. What a layer computes
 * is the family's file; where weights come from is oracle_weights.c.
 */
#include "models/oracle_priv.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "converter/base/mem.h"
#include "models/models.h"

#define MAX_WIDTH (1 << 24) /* of any axis but the vocabulary */

int oracle_grow(struct grown *g, size_t n, size_t size, struct err *e)
{
    uint64_t bytes;
    void *p;

    if (!mem_mul(n, size, &bytes) || bytes > SIZE_MAX)
        return err_set(e, ERR_NOMEM, "%zu elements of %zu bytes are too many",
                       n, size);
    if (bytes <= g->bytes && g->p)
        return 0;
    p = mem_alloc_aligned(n, size, e);
    if (!p)
        return -1;
    mem_free(g->p);
    g->p = p;
    g->bytes = (size_t)bytes;
    return 0;
}

float *oracle_tmp(struct oracle *o, int slot, size_t rows, size_t width,
                  struct err *e)
{
    uint64_t n;

    if (!mem_mul(rows, width, &n) || n > SIZE_MAX) {
        err_set(e, ERR_NOMEM, "%zu rows of %zu values are too many", rows,
                width);
        return NULL;
    }
    return oracle_grow(&o->tmp[slot], (size_t)n, sizeof(float), e)
               ? NULL
               : o->tmp[slot].p;
}

static int check_axis(const char *what, int64_t v, int64_t max, struct err *e)
{
    if (v < 1 || v > max)
        return err_set(e, ERR_INPUT,
                       "%s is %" PRId64 ", expected 1 to %" PRId64, what, v,
                       max);
    return 0;
}

static int check_hparams(const struct hparams *hp, int64_t positions,
                         struct err *e)
{
    if (!hp->arch || !hp->arch->oracle)
        return err_set(e, ERR_UNSUPPORTED,
                       "model_type '%s' has no float32 reference",
                       hp->model_type);
    if (check_axis("vocab_size", hp->vocab, INT32_MAX, e) ||
        check_axis("hidden_size", hp->hidden, MAX_WIDTH, e) ||
        check_axis("num_hidden_layers", hp->layers, MAX_WIDTH, e) ||
        check_axis("the number of positions", positions, INT32_MAX, e))
        return -1;
    return 0;
}

struct oracle *oracle_new(const struct hparams *hp,
                          const struct tensor_source *src,
                          const struct oracle_options *opt, struct err *e)
{
    struct oracle *o;

    if (check_hparams(hp, opt->max_positions, e))
        return NULL;
    o = mem_zalloc(1, sizeof(*o), e);
    if (!o)
        return NULL;
    o->hp = *hp;
    o->src = *src;
    o->par = opt->par;
    o->keep_bytes = opt->keep_bytes;
    o->max_positions = opt->max_positions;
    o->half_rope = opt->half_rope;
    o->kv = mem_zalloc((size_t)hp->layers, sizeof(*o->kv), e);
    o->workers = mem_zalloc((size_t)par_width(o->par), sizeof(*o->workers), e);
    o->ops = hp->arch->oracle;
    if (!o->kv || !o->workers || o->ops->open(o, e)) {
        oracle_free(o);
        return NULL;
    }
    return o;
}

static void worker_release(struct oracle_worker *w)
{
    mem_free(w->rows.p);
    mem_free(w->heads.p);
    mem_free(w->packed.p);
    mem_free(w->scores.p);
    mem_free(w->mix.p);
    mem_free(w->sum.p);
}

void oracle_free(struct oracle *o)
{
    if (!o)
        return;
    if (o->ops->close)
        o->ops->close(o);
    for (int64_t l = 0; o->kv && l < o->hp.layers; l++)
        kv_release(&o->kv[l]);
    mem_free(o->kv);
    for (int i = 0; o->workers && i < par_width(o->par); i++)
        worker_release(&o->workers[i]);
    mem_free(o->workers);
    for (int i = 0; i < ORACLE_ROPES; i++) {
        mem_free(o->rope[i].freq);
        mem_free(o->rope[i].cos);
        mem_free(o->rope[i].sin);
    }
    for (int i = 0; i < ORACLE_TMPS; i++)
        mem_free(o->tmp[i].p);
    held_release(&o->held);
    mem_free(o->packed.p);
    mem_free(o->x.p);
    mem_free(o);
}

int oracle_reset(struct oracle *o, struct err *e)
{
    (void)e;
    for (int64_t l = 0; l < o->hp.layers; l++)
        kv_clear(&o->kv[l]);
    if (o->ops->reset)
        o->ops->reset(o);
    o->pos = 0;
    o->broken = false;
    return 0;
}

int64_t oracle_positions(const struct oracle *o)
{
    return o->pos;
}

int64_t oracle_layers(const struct oracle *o)
{
    return o->hp.layers;
}

bool oracle_memory(const struct oracle *o, int64_t layer,
                   struct oracle_memory *out)
{
    return layer >= 0 && layer < o->hp.layers && o->ops->memory &&
           o->ops->memory(o, layer, out);
}

static int check_tokens(const struct oracle *o, const int32_t *tokens, size_t n,
                        struct err *e)
{
    if (o->broken)
        return err_set(e, ERR_INPUT,
                       "the context is incomplete after an earlier failure "
                       "and must be reset");
    if (n > (uint64_t)(o->max_positions - o->pos))
        return err_set(e, ERR_INPUT,
                       "%zu tokens after position %" PRId64
                       " exceed the context of %" PRId64,
                       n, o->pos, o->max_positions);
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= o->hp.vocab)
            return err_set(e, ERR_INPUT,
                           "token %" PRId32 " at position %" PRId64
                           " is outside the vocabulary of %" PRId64,
                           tokens[i], o->pos + (int64_t)i, o->hp.vocab);
    }
    return 0;
}

void oracle_rope_refill(struct oracle *o)
{
    for (int i = 0; i < ORACLE_ROPES; i++) {
        struct rope_table *t = &o->rope[i];
        size_t half = (size_t)t->params.dim / 2;

        for (size_t k = 0; t->freq && k < o->n; k++)
            oracle_rope_row(&t->params, t->freq, o->pos + (int64_t)k,
                            t->cos + k * half, t->sin + k * half);
        if (t->freq && o->half_rope) {
            num_round_f16(t->cos, t->cos, o->n * half);
            num_round_f16(t->sin, t->sin, o->n * half);
        }
    }
}

/* Where a pass of a longer feed puts its results. */
struct place {
    const struct oracle_out *out;
    size_t done, total; /* tokens before this pass, in the whole feed */
};

static void put_hidden(const struct oracle *o, const struct place *at,
                       int64_t entry, const float *x)
{
    size_t width = (size_t)o->hp.hidden;

    if (at->out->hidden)
        memcpy(at->out->hidden + ((size_t)entry * at->total + at->done) * width,
               x, o->n * width * sizeof(*x));
}

/* The final norm and the logits that are asked for. */
static int pass_results(struct oracle *o, const struct place *at, float *x,
                        struct err *e)
{
    const struct oracle_out *out = at->out;
    size_t width = (size_t)o->hp.hidden, vocab = (size_t)o->hp.vocab;
    bool last = at->done + o->n == at->total && out->last_logits;

    if (!out->logits && !out->hidden && !last)
        return 0;
    if (o->ops->norm(o, x, e))
        return -1;
    put_hidden(o, at, o->hp.layers, x);
    if (out->logits) {
        float *rows = out->logits + at->done * vocab;

        if (o->ops->head(o, x, o->n, rows, e))
            return -1;
        if (last)
            memcpy(out->last_logits, rows + (o->n - 1) * vocab,
                   vocab * sizeof(*rows));
    } else if (last) {
        return o->ops->head(o, x + (o->n - 1) * width, 1, out->last_logits, e);
    }
    return 0;
}

static int pass(struct oracle *o, const struct place *at, struct err *e)
{
    float *x;

    if (oracle_grow(&o->x, o->n * (size_t)o->hp.hidden, sizeof(float), e) ||
        oracle_kv_reserve(o, o->pos + (int64_t)o->n, e))
        return -1;
    x = o->x.p;
    oracle_rope_refill(o);
    o->at_layer = -1;
    if (o->ops->embed(o, x, e))
        return -1;
    oracle_range_stream(o, x);
    put_hidden(o, at, 0, x);
    for (int64_t l = 0; l < o->hp.layers; l++) {
        o->at_layer = l;
        if (o->ops->layer(o, l, x, e))
            return err_in(e, "layer %" PRId64 " of the reference", l);
        oracle_range_stream(o, x);
        if (l + 1 < o->hp.layers)
            put_hidden(o, at, l + 1, x);
    }
    return pass_results(o, at, x, e);
}

int oracle_feed(struct oracle *o, const int32_t *tokens, size_t n,
                const struct oracle_out *out, struct err *e)
{
    static const struct oracle_out nothing = { 0 };
    struct place at = { .out = out ? out : &nothing, .total = n };

    if (check_tokens(o, tokens, n, e))
        return -1;
    for (; at.done < n; at.done += o->n) {
        o->tokens = tokens + at.done;
        o->n = n - at.done < ORACLE_PASS ? n - at.done : ORACLE_PASS;
        if (pass(o, &at, e)) {
            o->broken = true;
            return -1;
        }
        o->pos += (int64_t)o->n;
    }
    return 0;
}

int oracle_embed(struct oracle *o, const int32_t *tokens, size_t n, float *x,
                 struct err *e)
{
    if (check_tokens(o, tokens, n, e))
        return -1;
    for (size_t done = 0; done < n; done += o->n) {
        o->tokens = tokens + done;
        o->n = n - done < ORACLE_PASS ? n - done : ORACLE_PASS;
        if (o->ops->embed(o, x + done * (size_t)o->hp.hidden, e))
            return -1;
    }
    return 0;
}
