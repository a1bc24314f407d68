/*
 * Tensors behind constants, by their values.
 *
 * Compression keeps most of a matrix: even tables of one bit leave a
 * correlation of 0.8 with the source, while another matrix of the same shape
 * has none. The best multiple of the source for what is held tells a factor
 * that was folded in; for tables at the means of their values it is 1.
 */
#include "converter/source_guess.h"

#include <math.h>
#include <string.h>

#include "converter/base/mem.h"

#define SAMPLE 4096
#define MAX_PARTS 256 /* of one tensor */

struct guess {
    const struct ckpt *c;
    const struct mil_function *f;
    struct package_source *s;
    float have[SAMPLE], want[SAMPLE];
};
struct best {
    struct source_piece is;
    double follows; /* squared correlation; 0: none */
};

/* The piece that was added last, against its tensor. */
static int compare(struct guess *g, double *follows, double *factor,
                   struct err *e)
{
    size_t at = package_source_count(g->s) - 1;
    double hh = 0, hw = 0, ww = 0;
    struct source_piece p;
    uint64_t n, run;

    package_source_at(g->s, at, &p);
    n = p.rows * p.cols < SAMPLE ? p.rows * p.cols : SAMPLE;
    if (package_source_values(g->s, at, 0, n, g->have, e) ||
        need_read_f32(g->c->st, ckpt_need(g->c, p.tensor),
                      source_locate(&p, 0, &run), (size_t)n, g->want, e))
        return -1;
    for (uint64_t i = 0; i < n; i++) {
        double h = (double)g->have[i], w = (double)g->want[i];

        hh += h * h;
        hw += h * w;
        ww += w * w;
    }
    *follows = hh > 0 && ww > 0 && hw > 0 ? hw * hw / hh / ww : 0;
    *factor = hw > 0 ? hh / hw : 0;
    return 0;
}

/* The power of two next to a factor; false: it is none. */
static bool power_of_two(double factor, int *exp)
{
    double m;

    if (!(factor > 0x1p-20 && factor < 0x1p20))
        return false;
    m = frexp(factor, exp);
    if (m < 0.75)
        --*exp;
    return fabs(ldexp(factor, -*exp) - 1) < 0.2;
}

static int try_tensor(struct guess *g, const char *name, const struct need *n,
                      uint64_t rows, struct best *best, struct err *e)
{
    for (uint64_t part = 0; part < n->dims[0] / rows; part++) {
        struct source_piece is = {
            .name = name, .tensor = n->name, .row = part * rows, .rows = rows
        };
        struct err unfit = ERR_INIT; /* a form that is not decoded */
        double follows, factor;
        int rc;

        if (package_source_add(g->s, g->f, &is, g->c, &unfit))
            return unfit.code == ERR_NOMEM ? err_copy(e, &unfit) : 0;
        rc = compare(g, &follows, &factor, e);
        package_source_drop(g->s);
        if (rc)
            return -1;
        if (follows > best->follows && power_of_two(factor, &is.scale_exp))
            *best = (struct best){ is, follows };
    }
    return 0;
}

static int guess_constant(struct guess *g, const struct mil_value *v,
                          struct err *e)
{
    uint64_t elems = (uint64_t)mil_type_elems(&v->type), rows;
    struct best best = { .follows = 0 };

    rows = (uint64_t)v->type.dims[0];
    for (size_t i = 0; i < g->c->ledger.n; i++) {
        const struct need *n = &g->c->ledger.needs[i];

        if (n->rank == 2 && n->dims[1] == elems / rows &&
            n->dims[0] % rows == 0 && n->dims[0] / rows <= MAX_PARTS &&
            try_tensor(g, v->name, n, rows, &best, e))
            return -1;
    }
    return best.follows > 0.5
               ? package_source_add(g->s, g->f, &best.is, g->c, e)
               : 0;
}

static bool may_hold_weights(const struct mil_op *op, const struct mil_value *v)
{
    int64_t elems = mil_type_elems(&v->type);

    return v->name && v->type.rank >= 2 && v->type.dims[0] > 1 &&
           elems > v->type.dims[0] &&
           (op->code == MIL_OP_const ||
            op->code == MIL_OP_constexpr_lut_to_dense ||
            op->code == MIL_OP_constexpr_blockwise_shift_scale);
}

struct package_source *source_guess(const struct pkg *file,
                                    const struct ckpt *c, struct err *e)
{
    struct guess *g = mem_zalloc(1, sizeof(*g), e);
    struct package_source *s;
    int rc = 0;

    if (!g)
        return NULL;
    g->c = c;
    g->f = pkg_program(file)->functions[0];
    g->s = s = package_source_empty(e);
    for (size_t i = 0; s && !rc && i < g->f->n_ops; i++) {
        const struct mil_op *op = &g->f->ops[i];
        const struct mil_value *v =
            op->n_outs == 1 ? mil_value(g->f, op->outs[0]) : NULL;

        if (v && may_hold_weights(op, v))
            rc = guess_constant(g, v, e);
    }
    mem_free(g);
    if (!rc)
        return s;
    package_source_close(s);
    return NULL;
}
