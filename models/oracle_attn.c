/*
 * Caches and softmax attention of the reference.
 *
 * A piece of work is one key/value head and a few tokens: all query heads
 * that read this head, as rows of one matrix. Scores of the whole context
 * are computed block by block, turned to exponentials in place, and read the
 * values out as one more product; the sum divides at the end, in double.
 * Blocks lie at multiples of SGEMM_SLICE positions from 0 and what a query
 * may not see weighs exactly 0, so results do not depend on what else is in
 * the pass.
 */
#include "models/oracle_priv.h"

#include <math.h>
#include <string.h>

#include "converter/base/mem.h"

#define BLOCK SGEMM_SLICE
#define PIECE_ROWS 64 /* query rows that a piece aims at */

int oracle_kv_init(struct oracle *o, int64_t layer, size_t heads, size_t dim,
                   struct err *e)
{
    struct kv_cache *c = &o->kv[layer];

    c->heads = heads;
    c->dim = dim;
    c->padded = sgemm_pad(dim);
    c->cap_blocks = ((size_t)o->max_positions + BLOCK - 1) / BLOCK;
    c->keys = mem_zalloc(c->cap_blocks, sizeof(*c->keys), e);
    c->values = mem_zalloc(c->cap_blocks, sizeof(*c->values), e);
    return c->keys && c->values ? 0 : -1;
}

static size_t key_elems(const struct kv_cache *c)
{
    return c->heads * BLOCK * c->padded;
}

static size_t value_elems(const struct kv_cache *c)
{
    return c->heads * c->dim * BLOCK;
}

void kv_release(struct kv_cache *c)
{
    for (size_t b = 0; b < c->n_blocks; b++) {
        mem_free(c->keys[b]);
        mem_free(c->values[b]);
    }
    mem_free(c->keys);
    mem_free(c->values);
    *c = (struct kv_cache){ 0 };
}

void kv_clear(struct kv_cache *c)
{
    for (size_t b = 0; b < c->n_blocks; b++) {
        memset(c->keys[b], 0, key_elems(c) * sizeof(float));
        memset(c->values[b], 0, value_elems(c) * sizeof(float));
    }
}

static int kv_reserve(struct kv_cache *c, size_t blocks, struct err *e)
{
    while (c->n_blocks < blocks) {
        float *k = mem_zalloc(key_elems(c), sizeof(float), e);
        float *v = mem_zalloc(value_elems(c), sizeof(float), e);

        if (!k || !v) {
            mem_free(k);
            mem_free(v);
            return -1;
        }
        c->keys[c->n_blocks] = k;
        c->values[c->n_blocks++] = v;
    }
    return 0;
}

int oracle_kv_reserve_layer(struct oracle *o, int64_t layer, int64_t positions,
                            struct err *e)
{
    size_t blocks = ((size_t)positions + BLOCK - 1) / BLOCK;

    return o->kv[layer].heads ? kv_reserve(&o->kv[layer], blocks, e) : 0;
}

int oracle_kv_reserve(struct oracle *o, int64_t positions, struct err *e)
{
    for (int64_t l = 0; l < o->hp.layers; l++) {
        if (oracle_kv_reserve_layer(o, l, positions, e))
            return -1;
    }
    return 0;
}

void oracle_kv_put(struct oracle *o, int64_t layer, const float *k,
                   const float *v)
{
    struct kv_cache *c = &o->kv[layer];

    for (size_t i = 0; i < o->n; i++) {
        size_t pos = (size_t)o->pos + i;
        float *kb = c->keys[pos / BLOCK], *vb = c->values[pos / BLOCK];
        size_t at = pos % BLOCK;

        for (size_t h = 0; h < c->heads; h++) {
            const float *kr = k + (i * c->heads + h) * c->dim;
            const float *vr = v + (i * c->heads + h) * c->dim;

            memcpy(kb + (h * BLOCK + at) * c->padded, kr, c->dim * sizeof(*kr));
            for (size_t d = 0; d < c->dim; d++)
                vb[(h * c->dim + d) * BLOCK + at] = vr[d];
        }
    }
}

struct attn {
    struct oracle *o;
    const struct oracle_attn *a;
    const struct kv_cache *c;
    size_t group;         /* query heads per key/value head */
    size_t tokens, per_g; /* tokens per piece; pieces per head */
    const float *q;
    float *y;
};

/* What a piece looks at. Row i is token i / group of the piece and query
 * head i % group of the head's. */
struct piece {
    size_t g, token, rows;
    size_t end;           /* one behind the last position that any row sees */
    size_t first, blocks; /* the first block that a row sees; one behind the
                             last */
};

/* The first position that token `pos` sees. */
static size_t first_seen(const struct attn *t, size_t pos)
{
    size_t w = t->a->window;

    return w && pos + 1 > w ? pos + 1 - w : 0;
}

static struct piece piece_of(const struct attn *t, uint64_t index)
{
    struct piece p;
    size_t n;

    p.g = (size_t)(index / t->per_g);
    p.token = (size_t)(index % t->per_g) * t->tokens;
    n = t->o->n - p.token < t->tokens ? t->o->n - p.token : t->tokens;
    p.rows = n * t->group;
    p.end = (size_t)t->o->pos + p.token + n;
    p.first = first_seen(t, (size_t)t->o->pos + p.token) / BLOCK;
    p.blocks = (p.end + BLOCK - 1) / BLOCK;
    return p;
}

/* Element offset of a row's head within [n, heads, dim]. */
static size_t row_offset(const struct attn *t, const struct piece *p, size_t i)
{
    size_t head = p->g * t->group + i % t->group;

    return ((p->token + i / t->group) * t->a->heads + head) * t->c->dim;
}

/* How many of block b's positions lie before `end`. */
static size_t block_len(size_t end, size_t b)
{
    size_t n = end > b * BLOCK ? end - b * BLOCK : 0;

    return n < BLOCK ? n : BLOCK;
}

static void piece_scores(const struct attn *t, const struct piece *p,
                         struct oracle_worker *w)
{
    const struct kv_cache *c = t->c;
    float *heads = w->heads.p, *packed = w->packed.p, *scores = w->scores.p;

    for (size_t i = 0; i < p->rows; i++)
        memcpy(heads + i * c->dim, t->q + row_offset(t, p, i),
               c->dim * sizeof(float));
    sgemm_pack(packed, heads, c->dim, p->rows, c->dim);
    for (size_t b = p->first; b < p->blocks; b++)
        sgemm_rows(packed, p->rows, c->dim,
                   c->keys[b] + p->g * BLOCK * c->padded, c->padded,
                   block_len(p->end, b), NULL, scores + b * p->rows * BLOCK,
                   BLOCK, &w->gemm);
}

/* What one row sees: positions [first, end). */
struct sight {
    size_t first, end;
};

/* Scales the scores that a row sees; returns the greatest. */
static float row_max(const struct attn *t, const struct piece *p, float *row,
                     struct sight see)
{
    float scale = (float)t->a->scale, max = -INFINITY;
    float part[8];

    for (size_t q = 0; q < 8; q++)
        part[q] = max;
    for (size_t b = p->first; b < p->blocks; b++) {
        float *s = row + b * p->rows * BLOCK;
        size_t n = block_len(see.end, b), k = block_len(see.first, b);

        for (; k + 8 <= n; k += 8) {
            for (size_t q = 0; q < 8; q++) {
                s[k + q] *= scale;
                part[q] = s[k + q] > part[q] ? s[k + q] : part[q];
            }
        }
        for (; k < n; k++) {
            s[k] *= scale;
            max = s[k] > max ? s[k] : max;
        }
    }
    for (size_t q = 0; q < 8; q++)
        max = part[q] > max ? part[q] : max;
    return max;
}

/* Exponentials of one row in place, zero where it does not see; returns their
 * sum. Raises *top to the greatest score. */
static double row_exp(const struct attn *t, const struct piece *p, float *row,
                      struct sight see, float *top)
{
    double part[8] = { 0 };
    float max = row_max(t, p, row, see);

    *top = max > *top ? max : *top;

    for (size_t b = p->first; b < p->blocks; b++) {
        float *s = row + b * p->rows * BLOCK;
        size_t n = block_len(see.end, b), k = block_len(see.first, b);
        size_t len = sgemm_pad(block_len(p->end, b));

        memset(s, 0, k * sizeof(*s));
        memset(s + n, 0, (len - n) * sizeof(*s));
        oracle_exp_block(s + k, n - k, max);
        for (k = 0; k < len; k += 8) {
            for (size_t q = 0; q < 8; q++)
                part[q] += (double)s[k + q];
        }
    }
    return ((part[0] + part[1]) + (part[2] + part[3])) +
           ((part[4] + part[5]) + (part[6] + part[7]));
}

static void piece_mix(const struct attn *t, const struct piece *p,
                      struct oracle_worker *w)
{
    const struct kv_cache *c = t->c;
    const float *scores = w->scores.p;
    const double *sum = w->sum.p;
    double *mix = w->mix.p;

    memset(mix, 0, c->dim * p->rows * sizeof(*mix));
    for (size_t b = p->first; b < p->blocks; b++) {
        const float *s = scores + b * p->rows * BLOCK;
        const float *v = c->values[b] + p->g * c->dim * BLOCK;

        for (size_t d = 0; d < c->dim; d += SGEMM_PANEL) {
            size_t m = c->dim - d < SGEMM_PANEL ? c->dim - d : SGEMM_PANEL;

            sgemm_slice(s, BLOCK, p->rows, v + d * BLOCK, BLOCK, m,
                        sgemm_pad(block_len(p->end, b)), mix + d * p->rows,
                        p->rows);
        }
    }
    for (size_t i = 0; i < p->rows; i++) {
        float *y = t->y + row_offset(t, p, i);

        for (size_t d = 0; d < c->dim; d++)
            y[d] = (float)(mix[d * p->rows + i] / sum[i]);
    }
}

static void attn_pieces(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct attn *t = arg;
    struct oracle_worker *w = &t->o->workers[worker];

    for (uint64_t index = begin; index < end; index++) {
        struct piece p = piece_of(t, index);
        float *scores = w->scores.p;
        double *sum = w->sum.p;

        piece_scores(t, &p, w);
        for (size_t i = 0; i < p.rows; i++) {
            size_t pos = (size_t)t->o->pos + p.token + i / t->group;
            struct sight see = { first_seen(t, pos), pos + 1 };

            sum[i] = row_exp(t, &p, scores + i * BLOCK, see, &w->top_score);
        }
        piece_mix(t, &p, w);
    }
}

/* Working memory of every thread for pieces of `rows` rows. */
static int attn_memory(struct oracle *o, const struct kv_cache *c, size_t rows,
                       struct err *e)
{
    size_t end = (size_t)o->pos + o->n;
    size_t scores = (end + BLOCK - 1) / BLOCK * rows * BLOCK;

    for (int i = 0; i < par_width(o->par); i++) {
        struct oracle_worker *w = &o->workers[i];

        if (oracle_grow(&w->heads, rows * c->dim, sizeof(float), e) ||
            oracle_grow(&w->packed, rows * c->padded, sizeof(float), e) ||
            oracle_grow(&w->scores, scores, sizeof(float), e) ||
            oracle_grow(&w->mix, rows * c->dim, sizeof(double), e) ||
            oracle_grow(&w->sum, rows, sizeof(double), e))
            return -1;
    }
    return 0;
}

int oracle_attention(struct oracle *o, const struct oracle_attn *a,
                     const float *q, float *y, struct err *e)
{
    struct attn t = { .o = o, .a = a, .c = &o->kv[a->layer], .q = q, .y = y };

    t.group = a->heads / t.c->heads;
    t.tokens = PIECE_ROWS / t.group ? PIECE_ROWS / t.group : 1;
    if (t.tokens > o->n)
        t.tokens = o->n;
    t.per_g = (o->n + t.tokens - 1) / t.tokens;
    if (attn_memory(o, t.c, t.tokens * t.group, e))
        return -1;
    for (int i = 0; i < par_width(o->par); i++)
        o->workers[i].top_score = -INFINITY;
    par_for(o->par, t.c->heads * t.per_g, 1, attn_pieces, &t);
    for (int i = 0; i < par_width(o->par); i++)
        oracle_range_score(o, (double)o->workers[i].top_score);
    return 0;
}
