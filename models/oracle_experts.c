/*
 * Experts of the reference, one after the other: the rows of the tokens that
 * chose an expert are gathered, go through its three matrices and are added,
 * weighted, to the sums of their tokens.
 */
#include "models/oracle_priv.h"

#include <string.h>

/* Expert `i` of the stacked matrices. */
static struct oracle_gated expert_of(const struct oracle_experts *x, size_t i,
                                     size_t width)
{
    struct oracle_gated g = {
        .gate = { .row = i * 2 * x->inner, .out = x->inner, .in = width },
        .up = { .row = (i * 2 + 1) * x->inner, .out = x->inner, .in = width },
        .down = { .row = i * width, .out = width, .in = x->inner },
        .act = x->act,
    };

    memcpy(g.gate.name, x->gate_up, sizeof(g.gate.name));
    memcpy(g.up.name, x->gate_up, sizeof(g.up.name));
    memcpy(g.down.name, x->down, sizeof(g.down.name));
    return g;
}

/* The pick of an expert by a token, or NULL. */
static const struct oracle_pick *pick_of(const struct oracle_experts *x,
                                         size_t token, size_t expert)
{
    for (size_t i = 0; i < x->k; i++)
        if (x->picks[token * x->k + i].expert == expert)
            return &x->picks[token * x->k + i];
    return NULL;
}

static void add_weighted(float *sum, double w, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += (float)(w * (double)y[i]);
}

static int run_expert(struct oracle *o, const struct oracle_experts *x,
                      size_t expert, const float *h, float *sum, struct err *e)
{
    size_t width = (size_t)o->hp.hidden, n = 0;
    struct oracle_gated g = expert_of(x, expert, width);
    float *rows = oracle_tmp(o, ORACLE_TMP_ROWS, o->n, width, e);
    float *down = oracle_tmp(o, ORACLE_TMP_DOWN, o->n, width, e);

    if (!rows || !down)
        return -1;
    for (size_t t = 0; t < o->n; t++)
        if (pick_of(x, t, expert))
            memcpy(rows + n++ * width, h + t * width, width * sizeof(*rows));
    if (!n)
        return 0;
    if (oracle_gated_mlp(o, &g, rows, n, down, e))
        return -1;
    n = 0;
    for (size_t t = 0; t < o->n; t++) {
        const struct oracle_pick *p = pick_of(x, t, expert);

        if (p)
            add_weighted(sum + t * width, p->weight, down + n++ * width, width);
    }
    return 0;
}

int oracle_run_experts(struct oracle *o, const struct oracle_experts *x,
                       const float *h, float *sum, struct err *e)
{
    for (size_t i = 0; i < x->n; i++)
        if (run_expert(o, x, i, h, sum, e))
            return -1;
    return 0;
}
