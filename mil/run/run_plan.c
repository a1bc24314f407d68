/*
 * Plans: one function with the shapes of its inputs, made ready to run.
 * Types of every value, decoded constants, one step per operation, a place in
 * one arena for every result, reused when its last reader has run.
 *
 * Shapes that only run-time values decide are inferred again at each call;
 * such steps are prepared at the call and their results have memory of their
 * own.
 */
#include "mil/run/run_priv.h"

#include <inttypes.h>

#define ALIGN_ELEMS 16

/* ---- types ---- */

static int check_dtype(const struct mil_value *v, struct err *e)
{
    char text[MIL_TYPE_TEXT_MAX];

    switch (v->type.dtype) {
    case MIL_BOOL:
    case MIL_F16:
    case MIL_F32:
    case MIL_I8:
    case MIL_U8:
    case MIL_I16:
    case MIL_U16:
    case MIL_I32: return 0;
    default: break;
    }
    mil_type_text(&v->type, text);
    return err_set(e, ERR_UNSUPPORTED,
                   "value '%s' is %s: the runtime computes with fp16, fp32, "
                   "int32, int16, int8, uint16, uint8 and bool",
                   v->name ? v->name : "", text);
}

static void set_type(struct run_plan *p, mil_ref r, const struct mil_type *t)
{
    p->slots[r].type = *t;
    p->slots[r].elems = mil_type_is_static(t) ? mil_type_elems(t) : -1;
    p->shadow.values[r].type = *t;
}

static int size_check(const struct run_plan *p, mil_ref r, struct err *e)
{
    const struct run_slot *s = &p->slots[r];
    char text[MIL_TYPE_TEXT_MAX];

    if (!mil_type_is_static(&s->type) ||
        (s->elems >= 0 && s->elems < (int64_t)1 << 40))
        return 0;
    mil_type_text(&s->type, text);
    return err_set(e, ERR_INPUT, "value '%s' is %s: too large",
                   p->f->values[r].name ? p->f->values[r].name : "", text);
}

static int plan_inputs(struct run_plan *p, struct err *e)
{
    for (size_t i = 0; i < p->f->n_inputs; i++) {
        mil_ref r = p->f->inputs[i];
        const struct mil_value *v = mil_value(p->f, r);
        bool state = v->kind == MIL_V_STATE;

        if (check_dtype(v, e))
            return -1;
        if (!mil_type_is_static(&v->type) ||
            (state && !mil_dtype_is_float(v->type.dtype)))
            return err_set(e, ERR_INPUT, "%s '%s' has no fixed shape%s",
                           state ? "state" : "input", v->name,
                           state ? " of floats" : "");
        set_type(p, r, &v->type);
        p->slots[r].home = state ? RUN_HOME_STATE : RUN_HOME_INPUT;
        if (size_check(p, r, e))
            return -1;
    }
    return 0;
}

/* ---- constants ---- */

/* What an op needs of the constant at a parameter. */
static enum run_need need_of(const struct run_plan *p, const struct mil_op *op,
                             int param)
{
    const struct mil_const *flag;

    switch (op->code) {
    case MIL_OP_gather:
        return param == P_gather_x ? RUN_NEED_ROWS : RUN_NEED_WIDE;
    case MIL_OP_gather_nd:
        return param == P_gather_nd_x ? RUN_NEED_ROWS : RUN_NEED_WIDE;
    case MIL_OP_linear:
        return param == P_linear_weight ? RUN_NEED_PIECES : RUN_NEED_WIDE;
    case MIL_OP_conv: /* depthwise kernels are small and read as floats */
        return param == P_conv_weight &&
                       p->f->values[mil_arg(op, param)].type.dims[1] > 1
                   ? RUN_NEED_PIECES
                   : RUN_NEED_WIDE;
    case MIL_OP_matmul:
        flag = mil_arg_const(p->f, op, P_matmul_transpose_y);
        return param == P_matmul_y && flag && mil_const_int(flag, 0) != 0
                   ? RUN_NEED_HALF
                   : RUN_NEED_WIDE;
    default: return RUN_NEED_WIDE;
    }
}

static int plan_const(struct run_plan *p, mil_ref r, enum run_need need,
                      struct err *e)
{
    struct run_slot *s = &p->slots[r];

    if (s->home == RUN_HOME_NONE) {
        if (run_const_get(p->model, p->f, r, &s->konst, e))
            return -1;
        if (!s->konst)
            return err_set(e, ERR_INPUT, "value '%s' is used before it is made",
                           p->f->values[r].name ? p->f->values[r].name : "");
        s->home = RUN_HOME_CONST;
        set_type(p, r, &s->konst->type);
        if (size_check(p, r, e))
            return -1;
    }
    if (s->home != RUN_HOME_CONST)
        return 0;
    if (run_const_need(p->model, s->konst, need, e))
        return err_in(e, "constant '%s'",
                      p->f->values[r].name ? p->f->values[r].name : "");
    s->data = s->konst->f32 ? (void *)s->konst->f32 : s->konst->i32;
    return 0;
}

static int plan_args(struct run_plan *p, struct run_step *s, struct err *e)
{
    const struct mil_op_info *info = mil_op_info(s->op->code);

    for (int k = 0; k < info->n_params; k++)
        for (uint32_t j = 0; j < s->op->args[k].n; j++) {
            mil_ref r = s->op->args[k].refs[j];

            if (r == 0 || r >= p->f->n_values)
                return err_set(e, ERR_INPUT,
                               "%s '%s' refers to value %" PRIu32 " of %zu",
                               info->name, s->op->name ? s->op->name : "", r,
                               p->f->n_values);
            if (plan_const(p, r, need_of(p, s->op, k), e))
                return -1;
            if (!mil_type_is_static(&p->slots[r].type))
                s->dynamic = true;
        }
    return 0;
}

/* ---- steps ---- */

/* The type of a result: inferred, else declared; both must agree. */
static int plan_out(struct run_plan *p, struct run_step *s, mil_ref r,
                    const struct mil_type *inferred, struct err *e)
{
    const struct mil_value *v = mil_value(p->f, r);
    bool known = mil_type_is_static(inferred);
    char a[MIL_TYPE_TEXT_MAX], b[MIL_TYPE_TEXT_MAX];
    bool same =
        v->type.dtype == inferred->dtype && v->type.rank == inferred->rank;

    for (int i = 0; same && i < inferred->rank; i++)
        same = v->type.dims[i] < 0 || inferred->dims[i] < 0 ||
               v->type.dims[i] == inferred->dims[i];
    if (!same) {
        mil_type_text(&v->type, a);
        mil_type_text(inferred, b);
        return run_fail(s, e, "result '%s' is declared as %s, but is %s",
                        v->name ? v->name : "", a, b);
    }
    if (p->slots[r].home != RUN_HOME_NONE)
        return run_fail(s, e, "result '%s' is made twice",
                        v->name ? v->name : "");
    if (!known)
        s->dynamic = true;
    set_type(p, r, known ? inferred : &v->type);
    p->slots[r].home =
        mil_type_is_static(&p->slots[r].type) ? RUN_HOME_ARENA : RUN_HOME_OWN;
    return check_dtype(&p->shadow.values[r], e) || size_check(p, r, e) ? -1 : 0;
}

static int plan_outs(struct run_plan *p, struct run_step *s, struct err *e)
{
    struct mil_type *t;
    int rc = 0;

    t = mem_zalloc(s->op->n_outs + 1, sizeof(*t), e);
    if (!t)
        return -1;
    if (mil_infer_op(&p->shadow, s->op, t, s->op->n_outs, e))
        rc = -1;
    for (uint32_t i = 0; i < s->op->n_outs && rc == 0; i++)
        rc = plan_out(p, s, s->op->outs[i], &t[i], e);
    mem_free(t);
    if (rc == 0 && s->op->n_outs)
        s->round = (s->kernel->flags & RUN_K_COMPUTES) &&
                   run_rounds(&p->model->ctx, run_out(s, 0));
    return rc;
}

static int plan_step(struct run_plan *p, struct run_step *s, struct err *e)
{
    s->kernel = run_kernel_of(s->op->code);
    if (!s->kernel)
        return err_set(e, ERR_UNSUPPORTED,
                       "op '%s' is not supported by the runtime",
                       mil_op_type(s->op));
    if (plan_args(p, s, e) || plan_outs(p, s, e))
        return -1;
    if (s->dynamic || !s->kernel->prepare)
        return 0;
    return s->kernel->prepare(&p->model->ctx, s, e);
}

static bool is_constant_op(const struct mil_op *op)
{
    return op->code == MIL_OP_const ||
           (op->code != MIL_OP_INVALID &&
            (mil_op_info(op->code)->flags & MIL_O_CONSTEXPR));
}

static int plan_steps(struct run_plan *p, struct err *e)
{
    p->steps = mem_zalloc(p->f->n_ops, sizeof(*p->steps), e);
    if (!p->steps)
        return -1;
    for (size_t i = 0; i < p->f->n_ops; i++) {
        struct run_step *s = &p->steps[p->n_steps];

        if (is_constant_op(&p->f->ops[i]))
            continue;
        s->op = &p->f->ops[i];
        s->plan = p;
        p->n_steps++;
        if (plan_step(p, s, e))
            return -1;
    }
    return 0;
}

static int plan_outputs(struct run_plan *p, struct err *e)
{
    p->outs = mem_zalloc(p->f->n_outputs, sizeof(*p->outs), e);
    if (!p->outs)
        return -1;
    for (size_t i = 0; i < p->f->n_outputs; i++) {
        mil_ref r = p->f->outputs[i];

        if (r == 0 || r >= p->f->n_values ||
            p->f->values[r].kind == MIL_V_STATE)
            return err_set(e, ERR_INPUT, "output %zu is no value", i);
        p->outs[i].ref = r;
        if (plan_const(p, r, RUN_NEED_WIDE, e))
            return -1;
    }
    return 0;
}

/* ---- places ---- */

/* Roots in use, in order of their places. */
struct places {
    mil_ref *in_use;
    size_t n;
};

static void release_before(struct run_plan *p, struct places *a, size_t now)
{
    size_t n = 0;

    for (size_t i = 0; i < a->n; i++)
        if (p->slots[a->in_use[i]].last >= now)
            a->in_use[n++] = a->in_use[i];
    a->n = n;
}

static uint64_t room_of(const struct run_slot *s)
{
    return ((uint64_t)s->elems + ALIGN_ELEMS) / ALIGN_ELEMS * ALIGN_ELEMS;
}

/* Best fit among the gaps, else the end. */
static void place(struct run_plan *p, struct places *a, mil_ref r)
{
    struct run_slot *s = &p->slots[r];
    uint64_t need = room_of(s), at = 0, best = UINT64_MAX;
    size_t pos = a->n;

    for (size_t i = 0; i < a->n; i++) {
        const struct run_slot *o = &p->slots[a->in_use[i]];
        uint64_t gap = o->place - at;

        if (gap >= need && gap < best) {
            best = gap;
            s->place = at;
            pos = i;
        }
        at = o->place + room_of(o);
    }
    if (best == UINT64_MAX)
        s->place = at;
    memmove(a->in_use + pos + 1, a->in_use + pos,
            (a->n - pos) * sizeof(*a->in_use));
    a->in_use[pos] = r;
    a->n++;
    if (s->place + need > p->arena_elems)
        p->arena_elems = s->place + need;
}

static int plan_places(struct run_plan *p, struct err *e)
{
    struct places a = { 0 };

    a.in_use = mem_alloc(p->f->n_values, sizeof(*a.in_use), e);
    if (!a.in_use)
        return -1;
    for (size_t i = 0; i < p->n_steps; i++) {
        const struct mil_op *op = p->steps[i].op;

        release_before(p, &a, i + 1);
        for (uint32_t j = 0; j < op->n_outs; j++) {
            mil_ref r = op->outs[j];

            if (p->slots[r].root == r && p->slots[r].home == RUN_HOME_ARENA)
                place(p, &a, r);
        }
    }
    mem_free(a.in_use);
    p->arena = mem_alloc_aligned((size_t)p->arena_elems, sizeof(float), e);
    return p->arena ? 0 : -1;
}

/* Pointers that stay the same from call to call. */
static void plan_bind(struct run_plan *p)
{
    for (size_t i = 0; i < p->f->n_outputs; i++) {
        enum run_home h = p->slots[p->slots[p->outs[i].ref].root].home;

        p->outs[i].copy = h == RUN_HOME_STATE || h == RUN_HOME_INPUT;
    }
    for (mil_ref r = 1; r < p->f->n_values; r++) {
        struct run_slot *s = &p->slots[r];

        if (s->home == RUN_HOME_ARENA && s->root == r)
            s->data = p->arena + s->place;
    }
}

/* ---- one function ---- */

static int plan_start(struct run_plan *p, const char *const *names,
                      const struct mil_type *types, size_t n, struct err *e)
{
    size_t count;

    p->f = p->source;
    if (n) {
        p->specialized = mil_specialize(p->source, names, types, n, e);
        if (!p->specialized)
            return -1;
        p->f = p->specialized->functions[0];
    }
    count = p->f->n_values;
    p->shadow = *p->f;
    p->shadow.values = mem_alloc(count + 1, sizeof(*p->shadow.values), e);
    p->slots = mem_zalloc(count + 1, sizeof(*p->slots), e);
    if (!p->shadow.values || !p->slots)
        return -1;
    memcpy(p->shadow.values, p->f->values, count * sizeof(*p->shadow.values));
    return 0;
}

static uint64_t plan_bytes(const struct run_plan *p)
{
    return p->arena_elems * sizeof(float) +
           p->f->n_values * (sizeof(*p->slots) + sizeof(struct mil_value)) +
           p->n_steps * sizeof(*p->steps);
}

struct run_plan *run_plan_new(struct run_model *m,
                              const struct mil_function *source,
                              const char *const *names,
                              const struct mil_type *types, size_t n,
                              struct err *e)
{
    struct run_plan *p = mem_zalloc(1, sizeof(*p), e);
    int rc = -1;

    if (!p)
        return NULL;
    p->model = m;
    p->source = source;
    if (plan_start(p, names, types, n, e) == 0 && plan_inputs(p, e) == 0 &&
        plan_steps(p, e) == 0 && plan_outputs(p, e) == 0 &&
        run_alias(p, e) == 0 && plan_places(p, e) == 0)
        rc = 0;
    for (size_t i = 0; i < p->n_steps && rc == 0; i++)
        rc = run_scratch(&m->ctx, &p->steps[i], e);
    if (rc) {
        err_in(e, "function '%s'", source->name);
        run_plan_free(p);
        return NULL;
    }
    plan_bind(p);
    m->plan_bytes += plan_bytes(p);
    p->next = m->plans;
    m->plans = p;
    return p;
}

void run_plan_free(struct run_plan *p)
{
    if (!p)
        return;
    for (size_t i = 0; p->slots && i < p->f->n_values; i++)
        mem_free(p->slots[i].own);
    for (size_t i = 0; p->outs && i < p->f->n_outputs; i++)
        mem_free(p->outs[i].own);
    mem_free(p->slots);
    mem_free(p->outs);
    mem_free(p->steps);
    mem_free(p->arena);
    mem_free(p->shadow.values);
    run_lockstep_free(p->lockstep);
    mil_program_free(p->specialized);
    mem_free(p);
}
