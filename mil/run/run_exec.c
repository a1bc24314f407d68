/*
 * Running one step: scratch, and the inference of shapes that only run-time
 * values decide.
 */
#include "mil/run/run_priv.h"

#define MAX_VALUES 16 /* a shape parameter's elements */

int run_scratch(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    int64_t width = par_width(c->par);

    if (s->shared > c->shared_floats) {
        mem_free(c->shared);
        c->shared_floats = 0;
        c->shared = mem_alloc_aligned((size_t)s->shared, sizeof(float), e);
        if (!c->shared)
            return -1;
        c->shared_floats = s->shared;
    }
    if (s->per_work > c->work_floats) {
        int64_t each = (s->per_work + 31) / 16 * 16;

        mem_free(c->work);
        c->work_floats = 0;
        c->work = mem_alloc_aligned((size_t)(each * width), sizeof(float), e);
        if (!c->work)
            return -1;
        c->work_floats = each;
    }
    return 0;
}

int run_slot_own(struct run_slot *s, struct err *e)
{
    if (!s->own || (uint64_t)s->elems > s->own_elems) {
        mem_free(s->own);
        s->own_elems = 0;
        s->own = mem_alloc_aligned((size_t)s->elems, sizeof(float), e);
        if (!s->own)
            return -1;
        s->own_elems = (uint64_t)s->elems;
    }
    s->data = s->own;
    return 0;
}

/* A run-time value as the constant that it is for this call. */
static bool as_const(const struct run_slot *v, struct mil_const *k,
                     unsigned char *bytes)
{
    unsigned size = mil_dtype_bits(v->type.dtype) / 8;

    if (v->elems < 0 || v->elems > MAX_VALUES || !v->data)
        return false;
    for (int64_t i = 0; i < v->elems; i++) {
        uint32_t u;

        memcpy(&u, (const uint32_t *)v->data + i, sizeof(u));
        if (v->type.dtype == MIL_F16)
            u = f32_to_f16(kern_from_bits(u));
        for (unsigned b = 0; b < size; b++)
            bytes[i * size + b] = (unsigned char)(u >> (8 * b));
    }
    memset(k, 0, sizeof(*k));
    k->type = v->type;
    k->bytes = bytes;
    return true;
}

/* Types of the results, from the arguments' types and values as they are. */
static int infer_now(struct run_step *s, struct mil_type *out, struct err *e)
{
    struct run_plan *p = s->plan;
    const struct mil_op_info *info = mil_op_info(s->op->code);
    const struct mil_const *old[MIL_MAX_PARAMS] = { NULL };
    struct mil_const now[MIL_MAX_PARAMS];
    unsigned char bytes[MIL_MAX_PARAMS][MAX_VALUES * 4];
    bool values = s->kernel->flags & RUN_K_VALUES;
    int rc;

    for (int k = 0; k < info->n_params; k++)
        for (uint32_t j = 0; j < s->op->args[k].n; j++) {
            mil_ref r = s->op->args[k].refs[j];

            p->shadow.values[r].type = p->slots[r].type;
        }
    for (int k = 0; values && k < info->n_params; k++) {
        mil_ref r = mil_arg(s->op, k);
        struct mil_value *v = &p->shadow.values[r];

        old[k] = v->konst;
        if (r && !v->konst &&
            (k > 0 || s->op->code == MIL_OP_range_1d ||
             s->op->code == MIL_OP_fill) &&
            as_const(&p->slots[r], &now[k], bytes[k]))
            v->konst = &now[k];
    }
    rc = mil_infer_op(&p->shadow, s->op, out, s->op->n_outs, e);
    for (int k = info->n_params - 1; values && k >= 0; k--)
        if (s->op->args[k].n)
            p->shadow.values[mil_arg(s->op, k)].konst = old[k];
    return rc;
}

static int take_type(struct run_step *s, mil_ref r, const struct mil_type *t,
                     struct err *e)
{
    struct run_slot *v = &s->plan->slots[r];
    char a[MIL_TYPE_TEXT_MAX], b[MIL_TYPE_TEXT_MAX];

    if (!mil_type_is_static(t) || mil_type_elems(t) < 0)
        return run_fail(s, e, "the result's shape is not known at run time");
    if (v->home == RUN_HOME_OWN) {
        v->type = *t;
        v->elems = mil_type_elems(t);
        return run_slot_own(v, e);
    }
    if (mil_type_equal(t, &v->type))
        return 0;
    mil_type_text(&v->type, a);
    mil_type_text(t, b);
    return run_fail(s, e, "the result is declared as %s, but is %s", a, b);
}

static int make_ready(struct run_ctx *c, struct run_step *s, struct err *e)
{
    struct mil_type *t;
    int rc;

    t = mem_zalloc(s->op->n_outs + 1, sizeof(*t), e);
    if (!t)
        return -1;
    rc = infer_now(s, t, e);
    for (uint32_t i = 0; i < s->op->n_outs && rc == 0; i++)
        rc = take_type(s, s->op->outs[i], &t[i], e);
    mem_free(t);
    if (rc)
        return -1;
    s->shared = s->per_work = 0;
    if (s->kernel->prepare && s->kernel->prepare(c, s, e))
        return -1;
    return run_scratch(c, s, e);
}

int run_step_exec(struct run_ctx *c, struct run_step *s, struct err *e)
{
    if (s->dynamic && make_ready(c, s, e))
        return -1;
    return s->kernel->run(c, s, e);
}
