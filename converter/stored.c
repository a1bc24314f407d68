/*
 * The weights of written programs: forms and bytes from the program, losses
 * from decoding them beside the checkpoint.
 */
#include "converter/stored.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "converter/base/dmath.h"
#include "converter/base/mem.h"
#include "converter/program_priv.h"

const char *stored_form_name(enum stored_form form)
{
    static const char *const names[] = { "fp16", "palettized", "linear" };

    return names[form];
}

/* ---- what there is ---- */

static void set_plain(struct stored *s, const struct mil_const *c)
{
    s->bits = (int)mil_dtype_bits(c->type.dtype);
    s->value_bytes = (uint64_t)mil_type_bytes(&c->type);
}

static void set_tables(struct stored *s, const struct mil_const *values,
                       const struct mil_const *tables)
{
    uint64_t rows = (uint64_t)s->type.dims[0];

    s->bits = (int)mil_dtype_bits(values->type.dtype);
    s->value_bytes = (uint64_t)mil_type_bytes(&values->type);
    s->table_bytes = (uint64_t)mil_type_bytes(&tables->type);
    if (s->form == STORED_INTEGERS) {
        uint64_t scales = (uint64_t)mil_type_elems(&tables->type);

        s->group = scales > 1 ? s->weights / scales : 0;
    } else if (tables->type.rank && tables->type.dims[0] > 1) {
        s->group = rows / (uint64_t)tables->type.dims[0];
    }
}

/* Short lists of integers are shapes and axes. */
static bool is_weight(const struct mil_const *c, const char *tensor)
{
    return tensor ||
           (c->data && !(mil_dtype_is_int(c->type.dtype) && c->type.rank == 1));
}

/* [tensor, row, rows, total rows, ...] */
static void read_source(const struct js_node *n, struct stored *s)
{
    const struct js_node *x = js_first(n);
    uint64_t rows, total;

    if (!js_string(x, &s->tensor))
        return;
    for (int i = 0; i < 2 && x; i++)
        x = js_next(x);
    s->whole =
        js_uint(x, &rows) && js_uint(js_next(x), &total) && rows == total;
}

static const struct mil_const *foreign_const(const struct mil_function *f,
                                             const struct mil_op *op,
                                             const char *name)
{
    for (uint32_t i = 0; i < op->foreign->n_args; i++) {
        const struct mil_named_arg *a = &op->foreign->args[i];

        if (!strcmp(a->name, name) && a->arg.n == 1)
            return mil_value(f, a->arg.refs[0])->konst;
    }
    return NULL;
}

/* The forms before CoreML8: one table, or scales and zero points along one
 * axis. */
static bool read_older(const struct mil_function *f, const struct mil_op *op,
                       struct stored *s)
{
    const struct mil_const *values = foreign_const(f, op, "indices"),
                           *tables = foreign_const(f, op, "lut"), *zero;
    int64_t n;

    if (!strcmp(op->foreign->type, "constexpr_lut_to_dense") && values &&
        tables && (n = mil_type_elems(&tables->type)) > 0) {
        s->form = STORED_TABLES;
        s->value_bytes = (uint64_t)mil_type_bytes(&values->type);
        s->table_bytes = (uint64_t)mil_type_bytes(&tables->type);
        while (s->bits < 16 && (int64_t)1 << s->bits < n)
            s->bits++;
        return true;
    }
    values = foreign_const(f, op, "quantized_data");
    tables = foreign_const(f, op, "scale");
    zero = foreign_const(f, op, "zero_point");
    if (strcmp(op->foreign->type, "constexpr_affine_dequantize") != 0 ||
        !values || !tables || !zero)
        return false;
    s->form = STORED_INTEGERS;
    set_tables(s, values, tables);
    s->table_bytes += (uint64_t)mil_type_bytes(&zero->type);
    return true;
}

static bool is_constexpr(const struct mil_op *op)
{
    return !strncmp(mil_op_type(op), "constexpr_", strlen("constexpr_"));
}

/* False: it is no weight, or *unread is counted. */
static bool read_op(const struct mil_function *f, const struct mil_op *op,
                    const struct js_node *sources, struct stored *s,
                    size_t *unread)
{
    const struct mil_value *v = op->n_outs ? mil_value(f, op->outs[0]) : NULL;
    const struct mil_const *values, *tables;

    if (!v || !v->name || mil_type_elems(&v->type) < 1)
        return false;
    *s = (struct stored){ .name = v->name, .type = v->type };
    read_source(js_get(sources, v->name), s);
    s->weights = (uint64_t)mil_type_elems(&v->type);
    if (op->code == MIL_OP_const) {
        if (!v->konst || !is_weight(v->konst, s->tensor))
            return false;
        set_plain(s, v->konst);
        return true;
    }
    if (!is_constexpr(op) || !s->type.rank)
        return false;
    values = op->foreign ? NULL : mil_arg_const(f, op, 0);
    tables = op->foreign ? NULL : mil_arg_const(f, op, 1);
    s->form = op->code == MIL_OP_constexpr_lut_to_dense ? STORED_TABLES
                                                        : STORED_INTEGERS;
    if (values && tables &&
        (op->code == MIL_OP_constexpr_lut_to_dense ||
         op->code == MIL_OP_constexpr_blockwise_shift_scale)) {
        set_tables(s, values, tables);
        return true;
    }
    if (op->foreign && read_older(f, op, s))
        return true;
    ++*unread;
    return false;
}

static bool listed(const struct stored_list *l, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(l->items[i].name, name))
            return true;
    return false;
}

static int read_function(const struct mil_function *f, struct stored_list *l,
                         struct err *e)
{
    const struct js_node *sources = l->sources ? js_root(l->sources) : NULL;
    size_t before = l->n;

    for (size_t i = 0; i < f->n_ops; i++) {
        struct stored s;

        if (!read_op(f, &f->ops[i], sources, &s, &l->unread) ||
            listed(l, before, s.name))
            continue;
        if (mem_grow((void **)&l->items, &l->cap, l->n, sizeof(s), e))
            return -1;
        l->items[l->n++] = s;
    }
    return 0;
}

int stored_read(const struct mil_program *p, struct stored_list *out,
                struct err *e)
{
    const char *text = mil_program_metadata(p, CV_SOURCES_KEY);

    memset(out, 0, sizeof(*out));
    if (text && !(out->sources = js_parse(text, strlen(text), e)))
        return err_in(e, "metadata '%s'", CV_SOURCES_KEY);
    for (size_t i = 0; i < p->n_functions; i++)
        if (read_function(p->functions[i], out, e)) {
            stored_release(out);
            return -1;
        }
    return 0;
}

void stored_release(struct stored_list *l)
{
    mem_free(l->items);
    js_free(l->sources);
    memset(l, 0, sizeof(*l));
}

double stored_bits(const struct stored *s)
{
    return 8.0 * (double)(s->value_bytes + s->table_bytes) / (double)s->weights;
}

/* ---- losses ---- */

#define BLOCK 16384

struct work {
    const struct package_source *src;
    size_t index;
    struct source_piece piece;
    const struct ckpt *ckpt;
    const struct need *need;
    bool folded;
    uint64_t elems;
    struct stored_loss *blocks;
    float *buffers;     /* per worker: 2 * BLOCK */
    struct err *errors; /* per worker */
};

static int read_want(const struct work *w, uint64_t first, uint64_t n,
                     float *dst, struct err *e)
{
    uint64_t run;

    for (uint64_t i = 0; i < n; i += run) {
        uint64_t at = source_locate(&w->piece, first + i, &run);

        run = run < n - i ? run : n - i;
        if (need_read_f32(w->ckpt->st, w->need, at, (size_t)run, dst + i, e))
            return -1;
    }
    return 0;
}

/* As source_fold, by arithmetic that is the same everywhere. */
static double should(const struct work *w, double v)
{
    if (w->piece.neg_exp)
        v = -dm_exp(v);
    else if (w->folded)
        v = (v + w->piece.add) * w->piece.factor;
    return ldexp(v, w->piece.scale_exp);
}

static void sum_block(const struct work *w, const float *want,
                      const float *have, uint64_t n, struct stored_loss *out)
{
    double sse = 0, energy = 0, scale = ldexp(1, w->piece.scale_exp);

    for (uint64_t i = 0; i < n && !w->folded; i++) {
        double x = (double)want[i] * scale, d = x - (double)have[i];

        sse += d * d;
        energy += x * x;
    }
    for (uint64_t i = 0; i < n && w->folded; i++) {
        double x = should(w, (double)want[i]), d = x - (double)have[i];

        sse += d * d;
        energy += x * x;
    }
    *out = (struct stored_loss){ sse, energy };
}

static void measure_blocks(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct work *w = arg;
    float *want = w->buffers + (size_t)worker * 2 * BLOCK, *have = want + BLOCK;
    struct err *e = &w->errors[worker];

    for (; begin < end; begin++) {
        uint64_t first = begin * BLOCK, n = w->elems - first;

        n = n < BLOCK ? n : BLOCK;
        if (e->code || read_want(w, first, n, want, e) ||
            package_source_values(w->src, w->index, first, n, have, e))
            return;
        sum_block(w, want, have, n, &w->blocks[begin]);
    }
}

int stored_measure(const struct package_source *src, size_t piece,
                   const struct ckpt *c, struct par *par,
                   struct stored_loss *out, struct err *e)
{
    size_t width = (size_t)par_width(par), blocks;
    struct work w = { .src = src, .index = piece, .ckpt = c };
    int rc = -1;

    package_source_at(src, piece, &w.piece);
    w.need = ckpt_need(c, w.piece.tensor);
    w.folded = w.piece.neg_exp || w.piece.add != 0 || w.piece.factor != 1;
    w.elems = w.piece.rows * w.piece.cols;
    blocks = (size_t)((w.elems + BLOCK - 1) / BLOCK);
    *out = (struct stored_loss){ 0, 0 };
    w.blocks = mem_zalloc(blocks, sizeof(*w.blocks), e);
    w.buffers = mem_alloc(width * 2 * BLOCK, sizeof(*w.buffers), e);
    w.errors = mem_zalloc(width, sizeof(*w.errors), e);
    if (w.blocks && w.buffers && w.errors) {
        par_for(par, blocks, 0, measure_blocks, &w);
        rc = 0;
    }
    for (size_t i = 0; !rc && i < width; i++)
        if (w.errors[i].code)
            rc = err_copy(e, &w.errors[i]);
    for (size_t i = 0; !rc && i < blocks; i++) {
        out->sse += w.blocks[i].sse;
        out->energy += w.blocks[i].energy;
    }
    mem_free(w.blocks);
    mem_free(w.buffers);
    mem_free(w.errors);
    return rc;
}

double stored_snr(const struct stored_loss *l)
{
    const double per_decade = 4.342944819032518; /* 10 / ln 10 */

    if (!(l->sse > 0))
        return INFINITY;
    if (!(l->energy > 0))
        return -INFINITY;
    return floor(100 * per_decade * dm_log(l->energy / l->sse) + 0.5) / 100;
}
