/*
 * The device plan: one walk over the operations of a function, one small
 * check a rule of device_rules.def.
 */
#include "converter/device_plan.h"

#include <math.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"

static const struct dev_rule rules[] = {
#define ANE(id, effect, known, what, advice) \
    { #id, DEV_##effect, DEV_##known, what, advice },
#include "converter/device_rules.def"
};

const struct dev_rule *dev_rule(enum dev_id id)
{
    return &rules[id];
}

const char *dev_effect_name(enum dev_effect e)
{
    static const char *const names[] = { "refused", "wrong", "slow", "edge" };

    return names[e];
}

const char *dev_known_name(enum dev_known k)
{
    static const char *const names[] = { "measured", "reported", "inferred" };

    return names[k];
}

struct walk {
    struct dev_plan *plan;
    const struct mil_function *f;
    struct err *e;
    bool enumerated; /* an input takes several shapes */
};

static void hit(struct walk *w, enum dev_id id, int op)
{
    struct dev_plan *p = w->plan;

    if (mem_grow((void **)&p->v, &p->cap, p->n, sizeof(*p->v), w->e))
        return;
    p->v[p->n++] = (struct dev_finding){ id, op };
    p->by_rule[id]++;
    p->by_effect[rules[id].effect]++;
}

/* ---- what ops look like ---- */

static const struct mil_type *arg_type(const struct mil_function *f,
                                       const struct mil_op *op, int param)
{
    return mil_arg(op, param) ? &mil_value(f, mil_arg(op, param))->type : NULL;
}

/* The op that makes a value; NULL for inputs and literals. */
static const struct mil_op *source(const struct mil_function *f,
                                   const struct mil_value *v)
{
    return v && v->kind == MIL_V_RESULT && v->op >= 0 &&
                   (size_t)v->op < f->n_ops
               ? &f->ops[v->op]
               : NULL;
}

/* The same of an argument. */
static const struct mil_op *maker(const struct mil_function *f,
                                  const struct mil_op *op, int param)
{
    mil_ref r = mil_arg(op, param);

    return r ? source(f, mil_value(f, r)) : NULL;
}

static bool made_by(const struct mil_function *f, const struct mil_op *op,
                    int param, enum mil_opcode code)
{
    const struct mil_op *m = maker(f, op, param);

    return m && m->code == code;
}

static int param_of(const struct mil_op *op, const char *name)
{
    return mil_param_index(mil_op_info(op->code), name);
}

static bool is_weight(const struct mil_op *op)
{
    return op->code == MIL_OP_const ||
           (mil_op_info(op->code)->flags & MIL_O_CONSTEXPR);
}

/* ---- weights ---- */

static void check_linear(struct walk *w, const struct mil_op *op, int at)
{
    const struct mil_type *data = arg_type(w->f, op, 0);
    unsigned bits = data ? mil_dtype_bits(data->dtype) : 0;

    if (made_by(w->f, op, 0, MIL_OP_constexpr_lut_to_dense))
        hit(w, DEV_ID_lut_scaled, at);
    else if (bits == 8)
        hit(w, DEV_ID_linear_int8, at);
    else if (bits == 4)
        hit(w, DEV_ID_linear_int4, at);
}

/* Tables [G0, G1, ..., 2^bits, vector]: one G above 1, along the channels. */
static void check_lut(struct walk *w, const struct mil_op *op, int at)
{
    const struct mil_type *indices = arg_type(w->f, op, 0);
    const struct mil_type *lut = arg_type(w->f, op, 1);
    int axes = 0;

    if (!indices || !lut || lut->rank != indices->rank + 2 || lut->rank < 3)
        return;
    for (int i = 0; i < indices->rank; i++)
        axes += lut->dims[i] > 1;
    if (axes > 1)
        hit(w, DEV_ID_lut_blocks, at);
    if (made_by(w->f, op, 1, MIL_OP_constexpr_blockwise_shift_scale))
        hit(w, DEV_ID_lut_scaled, at);
    if (lut->dims[0] > 1 && lut->dims[0] == indices->dims[0])
        hit(w, DEV_ID_lut_group_1, at);
    else if (lut->dims[0] > 1 && 2 * lut->dims[0] == indices->dims[0])
        hit(w, DEV_ID_lut_group_2, at);
    if (indices->dtype == MIL_U3)
        hit(w, DEV_ID_lut_3_bits, at);
}

/* ---- values of any op ---- */

static void check_outputs(struct walk *w, const struct mil_op *op, int at)
{
    int64_t longest = 0;
    bool wide = false, deep = false;

    for (uint32_t i = 0; i < op->n_outs; i++) {
        const struct mil_type *t = &mil_value(w->f, op->outs[i])->type;

        wide = wide || t->dtype == MIL_F32;
        deep = deep || t->rank > 5;
        for (int k = 0; k < t->rank; k++)
            longest = t->dims[k] > longest ? t->dims[k] : longest;
    }
    if (wide)
        hit(w, DEV_ID_fp32, at);
    if (deep)
        hit(w, DEV_ID_rank_6, at);
    if (longest > 65536)
        hit(w, DEV_ID_axis_65536, at);
    else if (longest > 16384)
        hit(w, DEV_ID_axis_16384, at);
}

/* An infinite fp16 or fp32 constant, but where it only bounds a value. */
static void check_infinite(struct walk *w, const struct mil_op *op, int at)
{
    const struct mil_op_info *info = mil_op_info(op->code);

    if (op->code == MIL_OP_maximum || op->code == MIL_OP_minimum ||
        op->code == MIL_OP_clip)
        return;
    for (int i = 0; i < info->n_params; i++) {
        const struct mil_const *c = mil_arg_const(w->f, op, i);
        int64_t n = c && c->bytes && mil_dtype_is_float(c->type.dtype)
                        ? mil_type_elems(&c->type)
                        : 0;

        for (int64_t k = 0; k < n; k++)
            if (isinf(mil_const_double(c, k))) {
                hit(w, DEV_ID_infinite_constant, at);
                return;
            }
    }
}

static void check_epsilon(struct walk *w, const struct mil_op *op, int at)
{
    int i = param_of(op, "epsilon");
    const struct mil_const *c = i >= 0 ? mil_arg_const(w->f, op, i) : NULL;
    double v =
        c && c->bytes && c->type.dtype == MIL_F16 ? mil_const_double(c, 0) : 0;

    if (v > 0 && v < 0x1p-14)
        hit(w, DEV_ID_epsilon_subnormal, at);
}

/* ---- ops by kind ---- */

static void check_gather(struct walk *w, const struct mil_op *op, int at)
{
    const struct mil_type *indices = arg_type(w->f, op, 1);

    if (made_by(w->f, op, 0, MIL_OP_constexpr_lut_to_dense))
        hit(w, DEV_ID_lut_gather, at);
    if (indices && indices->dtype == MIL_I32)
        hit(w, DEV_ID_gather_32_bits, at);
}

static void check_pow(struct walk *w, const struct mil_op *op, int at)
{
    const struct mil_const *x = mil_arg_const(w->f, op, 0);
    const struct mil_const *y = mil_arg_const(w->f, op, 1);

    if (x && x->bytes && mil_const_double(x, 0) == 2)
        hit(w, DEV_ID_pow_base, at);
    if (y && y->bytes && mil_const_double(y, 0) >= 3)
        hit(w, DEV_ID_pow_cube, at);
}

static void check_update(struct walk *w, const struct mil_op *op, int at)
{
    const struct mil_type *x = arg_type(w->f, op, 0);
    const struct mil_type *update = arg_type(w->f, op, 1);
    const struct mil_op *from = maker(w->f, op, 0);

    if (!x || !update || !from)
        return;
    if (x->dtype != update->dtype)
        hit(w, DEV_ID_update_dtype, at);
    /* The second of two updates in a row: keys, then values. */
    if (from->code == MIL_OP_slice_update && x->rank == 4 && x->dims[1] == 1)
        hit(w, DEV_ID_cache_single_head, at);
}

static void check_write(struct walk *w, const struct mil_op *op, int at)
{
    const struct mil_op *from = maker(w->f, op, 1);

    if (from &&
        (from->code == MIL_OP_reshape || from->code == MIL_OP_transpose ||
         from->code == MIL_OP_expand_dims || from->code == MIL_OP_squeeze))
        hit(w, DEV_ID_state_write_form, at);
}

static bool has_other_factors(double v)
{
    int64_t n = (int64_t)v;

    while (n > 1 && n % 2 == 0)
        n /= 2;
    while (n > 1 && n % 3 == 0)
        n /= 3;
    return n > 1;
}

static void check_conv(struct walk *w, const struct mil_op *op, int at)
{
    const struct mil_type *x = arg_type(w->f, op, 0);
    int i = param_of(op, "strides");
    const struct mil_const *s = i >= 0 ? mil_arg_const(w->f, op, i) : NULL;
    int64_t n = s && s->bytes ? mil_type_elems(&s->type) : 0;

    if (x && x->rank == 5)
        hit(w, DEV_ID_conv_3d, at);
    for (int64_t k = 0; k < n; k++)
        if (has_other_factors(mil_const_double(s, k))) {
            hit(w, DEV_ID_conv_stride, at);
            return;
        }
}

static void check_gather_nd(struct walk *w, const struct mil_op *op, int at)
{
    if (op->n_outs && mil_value(w->f, op->outs[0])->type.rank >= 3)
        hit(w, DEV_ID_gather_nd, at);
}

static void check_kind(struct walk *w, const struct mil_op *op, int at)
{
    switch (op->code) {
    case MIL_OP_constexpr_blockwise_shift_scale: check_linear(w, op, at); break;
    case MIL_OP_constexpr_lut_to_dense: check_lut(w, op, at); break;
    case MIL_OP_sigmoid:
    case MIL_OP_silu: hit(w, DEV_ID_sigmoid_coarse, at); break;
    case MIL_OP_gather: check_gather(w, op, at); break;
    case MIL_OP_gather_nd: check_gather_nd(w, op, at); break;
    case MIL_OP_linear: hit(w, DEV_ID_linear_layer, at); break;
    case MIL_OP_pow: check_pow(w, op, at); break;
    case MIL_OP_topk: hit(w, DEV_ID_topk, at); break;
    case MIL_OP_conv: check_conv(w, op, at); break;
    case MIL_OP_slice_update: check_update(w, op, at); break;
    case MIL_OP_write_state: check_write(w, op, at); break;
    case MIL_OP_layer_norm:
        if (w->enumerated)
            hit(w, DEV_ID_norm_flexible, at);
        break;
    default: break;
    }
}

static void check_inputs(struct walk *w)
{
    const struct mil_function *f = w->f;
    bool ranges = false;

    for (size_t i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(f, f->inputs[i]);
        const struct mil_shapes *s = v->shapes;

        if (!v->type.rank)
            hit(w, DEV_ID_input_scalar, -1);
        if (s && s->n > 1)
            w->enumerated = true;
        ranges = ranges || (s && !s->n);
        if (s && !s->n && f->program->n_functions > 1)
            hit(w, DEV_ID_range_functions, -1);
    }
    if (ranges && w->enumerated)
        hit(w, DEV_ID_shapes_mixed, -1);
}

/* Whether a value is written to a state as it is. */
static bool is_written(const struct mil_function *f, mil_ref r)
{
    for (size_t i = 0; i < f->n_ops; i++)
        if (f->ops[i].code == MIL_OP_write_state && mil_arg(&f->ops[i], 1) == r)
            return true;
    return false;
}

static void check_results(struct walk *w)
{
    const struct mil_function *f = w->f;

    for (size_t i = 0; i < f->n_outputs; i++) {
        mil_ref r = f->outputs[i];
        const struct mil_value *v = mil_value(f, r);
        const struct mil_op *m = source(f, v);
        bool passed =
            !m || m->code == MIL_OP_read_state || m->code == MIL_OP_const;

        for (size_t k = 0; k < i; k++)
            passed = passed || f->outputs[k] == r;
        if (passed)
            hit(w, DEV_ID_output_passed, -1);
        if (is_written(f, r))
            hit(w, DEV_ID_output_written, -1);
    }
}

int dev_plan(const struct mil_function *f, struct dev_plan *out, struct err *e)
{
    struct walk w = { out, f, e, false };

    memset(out, 0, sizeof(*out));
    out->f = f;
    check_inputs(&w);
    check_results(&w);
    for (size_t i = 0; i < f->n_ops; i++) {
        const struct mil_op *op = &f->ops[i];

        out->ops += op->code != MIL_OP_const;
        if (op->code == MIL_OP_INVALID) {
            out->unknown++;
            continue;
        }
        check_kind(&w, op, (int)i);
        if (is_weight(op))
            continue;
        check_outputs(&w, op, (int)i);
        check_infinite(&w, op, (int)i);
        check_epsilon(&w, op, (int)i);
    }
    if (!e->code)
        return 0;
    dev_plan_release(out);
    return -1;
}

void dev_plan_release(struct dev_plan *p)
{
    mem_free(p->v);
    memset(p, 0, sizeof(*p));
}

/* ---- printing ---- */

static const char *op_label(const struct mil_function *f, int op)
{
    const struct mil_op *o = op >= 0 ? &f->ops[op] : NULL;

    if (!o)
        return "";
    return o->n_outs ? mil_value(f, o->outs[0])->name : o->name;
}

static const struct dev_finding *first_of(const struct dev_plan *p, size_t rule)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->v[i].rule == (enum dev_id)rule)
            return &p->v[i];
    return NULL;
}

static void function_text(const struct dev_plan *p, struct buf *out)
{
    buf_printf(out,
               "  %s: %zu operations, %zu refused, %zu wrong, %zu slow, %zu "
               "at the edge",
               p->f->name, p->ops, p->by_effect[DEV_REFUSED],
               p->by_effect[DEV_WRONG], p->by_effect[DEV_SLOW],
               p->by_effect[DEV_EDGE]);
    if (p->unknown)
        buf_printf(out, ", %zu unknown", p->unknown);
    buf_puts(out, "\n");
    for (size_t r = 0; r < DEV_RULES; r++) {
        const struct dev_finding *d = first_of(p, r);

        if (!d)
            continue;
        buf_printf(out, "    %-8s %4zu x %-18s %s (%s)",
                   dev_effect_name(rules[r].effect), p->by_rule[r], rules[r].id,
                   rules[r].what, dev_known_name(rules[r].known));
        if (d->op >= 0)
            buf_printf(out, "; first: %s '%s'", mil_op_type(&p->f->ops[d->op]),
                       op_label(p->f, d->op));
        buf_printf(out, "\n                  -> %s\n", rules[r].advice);
    }
}

int dev_plan_text(const struct pkg *p, struct buf *out, struct err *e)
{
    const struct mil_program *prog = pkg_program(p);

    buf_printf(out, "%s\n", io_basename(pkg_path(p)));
    for (size_t i = 0; i < prog->n_functions; i++) {
        struct dev_plan plan;

        if (dev_plan(prog->functions[i], &plan, e))
            return -1;
        function_text(&plan, out);
        dev_plan_release(&plan);
    }
    return buf_ok(out, e);
}

static void counts_json(const struct dev_plan *p, struct js_writer *w)
{
    js_w_string(w, "name", p->f->name);
    js_w_uint(w, "ops", p->ops);
    js_w_uint(w, "unknown", p->unknown);
    for (int k = 0; k <= DEV_EDGE; k++)
        js_w_uint(w, dev_effect_name((enum dev_effect)k), p->by_effect[k]);
    js_w_array(w, "rules", false);
    for (size_t r = 0; r < DEV_RULES; r++) {
        if (!p->by_rule[r])
            continue;
        js_w_object(w, NULL);
        js_w_string(w, "rule", rules[r].id);
        js_w_string(w, "effect", dev_effect_name(rules[r].effect));
        js_w_string(w, "known", dev_known_name(rules[r].known));
        js_w_uint(w, "count", p->by_rule[r]);
        js_w_string(w, "what", rules[r].what);
        js_w_string(w, "advice", rules[r].advice);
        js_w_end(w);
    }
    js_w_end(w);
}

static void function_json(const struct dev_plan *p, struct js_writer *w)
{
    js_w_object(w, NULL);
    counts_json(p, w);
    js_w_array(w, "findings", false);
    for (size_t i = 0; i < p->n; i++) {
        const struct dev_finding *d = &p->v[i];

        js_w_object(w, NULL);
        js_w_string(w, "rule", rules[d->rule].id);
        if (d->op >= 0) {
            js_w_int(w, "op", d->op);
            js_w_string(w, "type", mil_op_type(&p->f->ops[d->op]));
            js_w_string(w, "name", op_label(p->f, d->op));
        }
        js_w_end(w);
    }
    js_w_end(w);
    js_w_end(w);
}

int dev_plan_json(const struct pkg *p, struct js_writer *w, struct err *e)
{
    const struct mil_program *prog = pkg_program(p);

    js_w_object(w, NULL);
    js_w_string(w, "file", io_basename(pkg_path(p)));
    js_w_array(w, "functions", false);
    for (size_t i = 0; i < prog->n_functions; i++) {
        struct dev_plan plan;

        if (dev_plan(prog->functions[i], &plan, e))
            return -1;
        function_json(&plan, w);
        dev_plan_release(&plan);
    }
    js_w_end(w);
    js_w_end(w);
    return 0;
}

void dev_rules_text(struct buf *out)
{
    buf_puts(out, "| rule | effect | known | what is known | what to do |\n"
                  "|---|---|---|---|---|\n");
    for (size_t i = 0; i < DEV_RULES; i++)
        buf_printf(out, "| `%s` | %s | %s | %s | %s |\n", rules[i].id,
                   dev_effect_name(rules[i].effect),
                   dev_known_name(rules[i].known), rules[i].what,
                   rules[i].advice);
}
