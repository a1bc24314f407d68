/*
 * Row-wise blocks of the reference, spread over the threads: norms, sums,
 * gated MLPs, rotation. The formulas are in oracle_math.c.
 */
#include "models/oracle_priv.h"

#include <inttypes.h>
#include <math.h>

#include "converter/base/mem.h"

/* Rows per piece, so that a piece is worth a thread's while. */
static uint64_t row_grain(size_t width)
{
    return 16384 / (width ? width : 1) + 1;
}

struct norm_rows {
    enum norm_form form;
    const float *x, *w;
    size_t width;
    double eps;
    float *y;
};

static void norm_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct norm_rows *r = arg;

    (void)worker;
    for (uint64_t i = begin; i < end; i++)
        oracle_norm_row(r->form, r->x + i * r->width, r->w, r->width, r->eps,
                        r->y + i * r->width);
}

void oracle_norm(struct oracle *o, enum norm_form form, const float *x,
                 const float *w, size_t rows, size_t width, double eps,
                 float *y)
{
    struct norm_rows r = {
        .form = form, .x = x, .w = w, .width = width, .eps = eps, .y = y
    };

    par_for(o->par, rows, row_grain(width), norm_rows, &r);
}

int oracle_head_norm(struct oracle *o, enum norm_form form, int64_t layer,
                     const char *name, float *x, size_t heads, size_t d,
                     struct err *e)
{
    const float *w =
        oracle_vector(o, d, e, "layers.%" PRId64 ".self_attn.%s.weight", layer,
                      name);

    if (!w)
        return -1;
    oracle_norm(o, form, x, w, o->n * heads, d, o->hp.rms_eps, x);
    return 0;
}

struct pair_rows {
    float *x;
    const float *y;
    size_t width;
};

static void add_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct pair_rows *r = arg;

    (void)worker;
    for (uint64_t i = begin * r->width; i < end * r->width; i++)
        r->x[i] += r->y[i];
}

void oracle_add(struct oracle *o, float *x, const float *y, size_t rows,
                size_t width)
{
    struct pair_rows r = { .x = x, .y = y, .width = width };

    par_for(o->par, rows, row_grain(width), add_rows, &r);
    oracle_range_stream(o, x);
}

struct act_rows {
    enum oracle_act act;
    float *g;
    const float *u;
    size_t width;
};

static void act_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct act_rows *r = arg;

    (void)worker;
    oracle_act_mul(r->act, r->g + begin * r->width, r->u + begin * r->width,
                   (size_t)(end - begin) * r->width);
}

void oracle_gate(struct oracle *o, enum oracle_act act, float *g,
                 const float *u, size_t rows, size_t width)
{
    struct act_rows r = { .act = act, .g = g, .u = u, .width = width };

    par_for(o->par, rows, row_grain(width), act_rows, &r);
    oracle_range_product(o, g, rows * width);
}

struct cap_rows {
    float *x;
    size_t width;
    double cap;
};

static void cap_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct cap_rows *r = arg;

    (void)worker;
    for (uint64_t i = begin * r->width; i < end * r->width; i++)
        r->x[i] = (float)(r->cap * tanh((double)r->x[i] / r->cap));
}

void oracle_softcap(struct oracle *o, float *x, size_t rows, size_t width,
                    double cap)
{
    struct cap_rows r = { .x = x, .width = width, .cap = cap };

    par_for(o->par, rows, row_grain(width), cap_rows, &r);
}

int oracle_gated_mlp(struct oracle *o, const struct oracle_gated *g,
                     const float *x, size_t n, float *y, struct err *e)
{
    size_t inner = g->gate.out;
    float *a = oracle_tmp(o, ORACLE_TMP_GATE, n, inner, e);
    float *b = oracle_tmp(o, ORACLE_TMP_UP, n, inner, e);

    if (!a || !b || oracle_linear(o, &g->gate, x, n, a, e) ||
        oracle_linear(o, &g->up, x, n, b, e))
        return -1;
    oracle_gate(o, g->act, a, b, n, inner);
    return oracle_linear(o, &g->down, a, n, y, e);
}

int oracle_rope_init(struct oracle *o, int which, const struct rope_params *r,
                     struct err *e)
{
    struct rope_table *t = &o->rope[which];
    size_t half = (size_t)r->dim / 2;

    t->params = *r;
    t->freq = mem_alloc(half, sizeof(float), e);
    t->cos = mem_alloc(ORACLE_PASS * half, sizeof(float), e);
    t->sin = mem_alloc(ORACLE_PASS * half, sizeof(float), e);
    if (!t->freq || !t->cos || !t->sin)
        return -1;
    return oracle_rope_freq(r, t->freq, e);
}

struct rope_rows {
    const struct rope_table *t;
    enum rope_pairing pairing;
    float *x;
    size_t heads, dim;
};

static void rope_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct rope_rows *r = arg;
    size_t half = (size_t)r->t->params.dim / 2;

    (void)worker;
    for (uint64_t i = begin; i < end; i++) {
        for (size_t h = 0; h < r->heads; h++)
            oracle_rotate(r->pairing, r->x + (i * r->heads + h) * r->dim,
                          r->t->params.dim, r->t->cos + i * half,
                          r->t->sin + i * half);
    }
}

void oracle_rope(struct oracle *o, int which, enum rope_pairing pairing,
                 float *x, size_t heads, size_t dim)
{
    struct rope_rows r = { .t = &o->rope[which],
                           .pairing = pairing,
                           .x = x,
                           .heads = heads,
                           .dim = dim };

    par_for(o->par, o->n, row_grain(heads * dim), rope_rows, &r);
}
