/*
 * Weights of the reference: streamed from the tensor source in blocks of
 * rows, each block read, converted and multiplied by one thread while it is
 * in that thread's cache; or, up to a budget, kept after their first use.
 * A matrix is never held whole unless it is kept.
 */
#include "models/oracle_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"

#define BLOCK_ELEMS 65536 /* of a weight, about: a quarter of a megabyte */

/* FNV-1a over name and first row. */
static uint64_t held_hash(const char *name, uint64_t row)
{
    uint64_t h = 14695981039346656037u ^ row;

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h ^ (h >> 32);
}

/* The slot of a tensor, or the free slot where it belongs. */
static struct held *held_slot(const struct held_set *h, const char *name,
                              uint64_t row)
{
    size_t i = (size_t)held_hash(name, row) & (h->cap - 1);

    while (h->slots[i].name &&
           (h->slots[i].row != row || strcmp(h->slots[i].name, name) != 0))
        i = (i + 1) & (h->cap - 1);
    return &h->slots[i];
}

static struct held *held_find(const struct held_set *h, const char *name,
                              uint64_t row)
{
    struct held *s = h->cap ? held_slot(h, name, row) : NULL;

    return s && s->name ? s : NULL;
}

static int held_grow(struct held_set *h, struct err *e)
{
    struct held_set next = { .n = h->n, .cap = h->cap ? 2 * h->cap : 64 };

    next.slots = mem_zalloc(next.cap, sizeof(*next.slots), e);
    if (!next.slots)
        return -1;
    for (size_t i = 0; i < h->cap; i++) {
        if (h->slots[i].name)
            *held_slot(&next, h->slots[i].name, h->slots[i].row) = h->slots[i];
    }
    next.bytes = h->bytes;
    mem_free(h->slots);
    *h = next;
    return 0;
}

/* Adds a filled tensor under a copy of `name`; takes t->data only on
 * success. */
static int held_add(struct held_set *h, const char *name, const struct held *t,
                    struct err *e)
{
    struct held *s;
    char *own;

    if (2 * (h->n + 1) > h->cap && held_grow(h, e))
        return -1;
    own = mem_strdup(name, e);
    if (!own)
        return -1;
    s = held_slot(h, name, t->row);
    *s = *t;
    s->name = own;
    h->n++;
    h->bytes += t->rows * t->cols * sizeof(float);
    return 0;
}

void held_release(struct held_set *h)
{
    for (size_t i = 0; i < h->cap; i++) {
        if (h->slots[i].name)
            mem_free(h->slots[i].data);
        mem_free(h->slots[i].name);
    }
    mem_free(h->slots);
    *h = (struct held_set){ 0 };
}

/* Errors of threads: the lowest piece's is the one that is reported. */
static void errors_reset(struct oracle *o)
{
    for (int i = 0; i < par_width(o->par); i++)
        err_reset(&o->workers[i].err);
}

static void error_note(struct oracle_worker *w, const struct err *e,
                       uint64_t at)
{
    if (w->err.code != ERR_OK && w->err_at <= at)
        return;
    w->err = *e;
    w->err_at = at;
}

static int errors_report(const struct oracle *o, struct err *e)
{
    const struct oracle_worker *first = NULL;

    for (int i = 0; i < par_width(o->par); i++) {
        const struct oracle_worker *w = &o->workers[i];

        if (w->err.code != ERR_OK && (!first || w->err_at < first->err_at))
            first = w;
    }
    return first ? err_copy(e, &first->err) : 0;
}

struct oracle_mat oracle_layer_mat(int64_t layer, const char *stem, size_t out,
                                   size_t in, bool bias)
{
    struct oracle_mat m = { .out = out, .in = in };

    snprintf(m.name, sizeof(m.name), "layers.%" PRId64 ".%s.weight", layer,
             stem);
    if (bias)
        snprintf(m.bias, sizeof(m.bias), "layers.%" PRId64 ".%s.bias", layer,
                 stem);
    return m;
}

struct linear {
    struct oracle *o;
    const struct oracle_mat *m;
    const float *xp, *bias;
    size_t n, block; /* rows of x; rows of the matrix per piece */
    float *kept;     /* the matrix in memory, or NULL */
    bool fill;       /* `kept` is still to be read */
    float *y;
};

static void linear_piece(const struct linear *l, uint64_t piece,
                         struct oracle_worker *w)
{
    const struct oracle_mat *m = l->m;
    size_t row = (size_t)piece * l->block;
    size_t n = m->out - row < l->block ? m->out - row : l->block;
    float *rows = l->kept ? l->kept + row * m->in : w->rows.p;

    if (!l->kept || l->fill) {
        struct err e = ERR_INIT;

        if (l->o->src.rows(l->o->src.cookie, m->name, m->row + row, n, rows,
                           &e)) {
            error_note(w, &e, piece);
            return;
        }
    }
    sgemm_rows(l->xp, l->n, m->in, rows, m->in, n,
               l->bias ? l->bias + row : NULL, l->y + row, m->out, &w->gemm);
}

static void linear_pieces(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct linear *l = arg;

    for (uint64_t i = begin; i < end; i++)
        linear_piece(l, i, &l->o->workers[worker]);
}

/* Rows of a matrix that are read at once: whole panels. */
static size_t block_rows(size_t in)
{
    size_t n = BLOCK_ELEMS / in / SGEMM_PANEL * SGEMM_PANEL;

    return n ? n : SGEMM_PANEL;
}

/* Room for the streamed block and the packed operand. */
static int linear_memory(struct oracle *o, const struct linear *l,
                         struct err *e)
{
    for (int i = 0; i < par_width(o->par); i++) {
        if (oracle_grow(&o->workers[i].rows, l->block * l->m->in, sizeof(float),
                        e))
            return -1;
    }
    return oracle_grow(&o->packed, l->n * sgemm_pad(l->m->in), sizeof(float),
                       e);
}

/* Decides whether the matrix is or shall be in memory. */
static void linear_keep(struct oracle *o, struct linear *l)
{
    const struct oracle_mat *m = l->m;
    const struct held *h = held_find(&o->held, m->name, m->row);
    uint64_t bytes;
    struct err ignored = ERR_INIT;

    if (h && h->rows == m->out && h->cols == m->in) {
        l->kept = h->data;
        return;
    }
    bytes = (uint64_t)m->out * m->in * sizeof(float);
    if (h || o->held.bytes > o->keep_bytes ||
        bytes > o->keep_bytes - o->held.bytes)
        return;
    /* no memory to keep it is no failure: it is streamed */
    l->kept = mem_alloc_aligned(m->out * m->in, sizeof(float), &ignored);
    l->fill = l->kept != NULL;
}

int oracle_linear(struct oracle *o, const struct oracle_mat *m, const float *x,
                  size_t n, float *y, struct err *e)
{
    struct linear l = { .o = o, .m = m, .n = n, .y = y };

    if (o->watch && o->watch->see(o->watch->cookie, m->name, m->row, m->out,
                                  m->in, x, n, e))
        return -1;
    l.block = block_rows(m->in);
    if (m->bias[0]) {
        l.bias = oracle_vector(o, m->out, e, "%s", m->bias);
        if (!l.bias)
            return -1;
    }
    if (linear_memory(o, &l, e))
        return -1;
    linear_keep(o, &l);
    sgemm_pack(o->packed.p, x, m->in, n, m->in);
    l.xp = o->packed.p;
    errors_reset(o);
    par_for(o->par, (m->out + l.block - 1) / l.block, 1, linear_pieces, &l);
    if (errors_report(o, e))
        goto fail;
    if (l.fill) {
        struct held t = {
            .row = m->row, .rows = m->out, .cols = m->in, .data = l.kept
        };

        if (held_add(&o->held, m->name, &t, e))
            goto fail;
    }
    oracle_range_matrix(o, m->name, y, n * m->out);
    return 0;
fail:
    if (l.fill)
        mem_free(l.kept);
    return -1;
}

/* Rows of a tensor that is loaded whole once and kept, budget or not. */
static const float *kept_rows(struct oracle *o, const char *name, size_t rows,
                              size_t cols, struct err *e)
{
    struct held t = { .rows = rows, .cols = cols };
    const struct held *h = held_find(&o->held, name, 0);

    if (h)
        return h->data;
    t.data = mem_alloc(rows * cols, sizeof(float), e);
    if (!t.data)
        return NULL;
    if (o->src.rows(o->src.cookie, name, 0, rows, t.data, e) ||
        held_add(&o->held, name, &t, e)) {
        mem_free(t.data);
        return NULL;
    }
    return t.data;
}

const float *oracle_vector(struct oracle *o, size_t n, struct err *e,
                           const char *fmt, ...)
{
    char name[128];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    return kept_rows(o, name, 1, n, e);
}

const float *oracle_matrix(struct oracle *o, size_t rows, size_t cols,
                           struct err *e, const char *fmt, ...)
{
    char name[128];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    return kept_rows(o, name, rows, cols, e);
}

struct lookup {
    struct oracle *o;
    const char *name;
    size_t cols;
    float *y;
};

static void lookup_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct lookup *l = arg;
    struct oracle_worker *w = &l->o->workers[worker];

    for (uint64_t i = begin; i < end; i++) {
        struct err e = ERR_INIT;

        if (l->o->src.rows(l->o->src.cookie, l->name, (uint64_t)l->o->tokens[i],
                           1, l->y + i * l->cols, &e))
            error_note(w, &e, i);
    }
}

int oracle_lookup(struct oracle *o, const char *name, size_t cols, float *y,
                  struct err *e)
{
    struct lookup l = { .o = o, .name = name, .cols = cols, .y = y };

    errors_reset(o);
    par_for(o->par, o->n, 0, lookup_rows, &l);
    return errors_report(o, e);
}
