/*
 * Opening programs and running calls: the runtime's public face.
 */
#include "mil/run/run_priv.h"

#include <inttypes.h>

#include "converter/base/buf.h"

static const char *const profiles[] = {
    [RUN_F32] = "f32", [RUN_FP16] = "fp16", [RUN_ANE] = "ane"
};

const char *run_profile_name(enum run_profile p)
{
    return profiles[p];
}

bool run_profile_by_name(const char *name, enum run_profile *out)
{
    for (size_t i = 0; i < sizeof(profiles) / sizeof(profiles[0]); i++)
        if (strcmp(profiles[i], name) == 0) {
            *out = (enum run_profile)i;
            return true;
        }
    return false;
}

/* ---- open ---- */

/* Every op must be known, also in functions whose shapes come with a call. */
static int check_ops(const struct mil_function *f, struct err *e)
{
    for (size_t i = 0; i < f->n_ops; i++) {
        const struct mil_op *op = &f->ops[i];
        bool constant = op->code == MIL_OP_const ||
                        (op->code != MIL_OP_INVALID &&
                         (mil_op_info(op->code)->flags & MIL_O_CONSTEXPR));

        if (constant || run_kernel_of(op->code))
            continue;
        err_set(e, ERR_UNSUPPORTED, "op '%s' is not supported by the runtime",
                mil_op_type(op));
        return err_in(e, "function '%s'", f->name);
    }
    return 0;
}

/* Inputs without a fixed shape, with the types that they get. */
struct shapes {
    const char **names;
    struct mil_type *types;
    size_t n;
};

static int shapes_alloc(struct shapes *s, const struct mil_function *f,
                        struct err *e)
{
    s->n = 0;
    s->names = mem_alloc(f->n_inputs, sizeof(*s->names), e);
    s->types = mem_alloc(f->n_inputs, sizeof(*s->types), e);
    return s->names && s->types ? 0 : -1;
}

static void shapes_free(struct shapes *s)
{
    mem_free(s->names);
    mem_free(s->types);
}

/* Plans a function in its default shapes where it has any. */
static int open_function(struct run_model *m, const struct mil_function *f,
                         struct err *e)
{
    struct shapes s = { 0 };
    bool ready = true;
    int rc = -1;

    if (check_ops(f, e))
        return -1;
    if (shapes_alloc(&s, f, e))
        goto out;
    for (size_t i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(f, f->inputs[i]);

        if (mil_type_is_static(&v->type))
            continue;
        if (!v->shapes) {
            ready = false;
            continue;
        }
        s.names[s.n] = v->name;
        s.types[s.n++] = v->shapes->first;
    }
    if (!ready || run_plan_new(m, f, s.names, s.types, s.n, e))
        rc = 0;
out:
    shapes_free(&s);
    return rc;
}

struct run_model *run_open(const struct mil_program *p,
                           const struct run_options *o, struct err *e)
{
    struct run_model *m = mem_zalloc(1, sizeof(*m), e);

    if (!m)
        return NULL;
    m->ctx.failures =
        mem_zalloc((size_t)par_width(o->par), sizeof(*m->ctx.failures), e);
    if (!m->ctx.failures) {
        mem_free(m);
        return NULL;
    }
    m->program = p;
    m->options = *o;
    m->ctx.par = o->par;
    m->ctx.half = o->profile != RUN_F32;
    m->kern = *kern_get();
    if (o->profile == RUN_ANE)
        kern_use_ane(&m->kern);
    m->ctx.k = &m->kern;
    for (size_t i = 0; i < p->n_functions; i++)
        if (open_function(m, p->functions[i], e)) {
            run_close(m);
            return NULL;
        }
    return m;
}

void run_close(struct run_model *m)
{
    if (!m)
        return;
    while (m->plans) {
        struct run_plan *p = m->plans;

        m->plans = p->next;
        run_plan_free(p);
    }
    run_const_free_all(m);
    mem_free(m->ctx.shared);
    mem_free(m->ctx.work);
    mem_free(m->ctx.failures);
    mem_free(m);
}

uint64_t run_resident_bytes(const struct run_model *m)
{
    uint64_t scratch = (uint64_t)(m->ctx.shared_floats +
                                  m->ctx.work_floats * par_width(m->ctx.par)) *
                       sizeof(float);

    return m->const_bytes + m->plan_bytes + scratch;
}

/* ---- calls ---- */

const struct run_tensor *run_find_input(const struct run_tensor *in, size_t n,
                                        const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(in[i].name, name) == 0)
            return &in[i];
    return NULL;
}

static bool fits(const struct mil_type *declared, const struct mil_type *given)
{
    if (declared->dtype != given->dtype || declared->rank != given->rank)
        return false;
    for (int i = 0; i < declared->rank; i++)
        if (given->dims[i] < 0 ||
            (declared->dims[i] >= 0 && declared->dims[i] != given->dims[i]))
            return false;
    return true;
}

static void put_allowed(struct buf *out, const struct mil_shapes *s)
{
    char text[MIL_TYPE_TEXT_MAX];

    for (int i = 0; i < s->n; i++) {
        mil_type_text(&s->list[i], text);
        buf_printf(out, "%s%s", i ? ", " : "", text);
    }
    for (int i = 0; !s->n && i < s->first.rank; i++) {
        buf_printf(out, "%s%" PRId64, i ? " x " : "", s->low[i]);
        if (s->high[i] < 0)
            buf_puts(out, " and more");
        else if (s->high[i] > s->low[i])
            buf_printf(out, " to %" PRId64, s->high[i]);
    }
}

static int input_misfit(const struct mil_value *v, const struct run_tensor *t,
                        struct err *e)
{
    char given[MIL_TYPE_TEXT_MAX], text[MIL_TYPE_TEXT_MAX];
    struct buf allowed = { .limit = 1024 };

    mil_type_text(&t->type, given);
    mil_type_text(&v->type, text);
    if (v->shapes)
        put_allowed(&allowed, v->shapes);
    err_set(e, ERR_INPUT, "input '%s' is %s, %s: %s", v->name, given,
            v->shapes ? "allowed" : "declared",
            v->shapes ? buf_text(&allowed) : text);
    buf_release(&allowed);
    return -1;
}

/* Checks one input; notes its type if the declaration leaves it open. */
static int check_input(const struct mil_value *v, const struct run_tensor *in,
                       size_t n, struct shapes *s, struct err *e)
{
    const struct run_tensor *t = run_find_input(in, n, v->name);
    bool ok;

    if (!t)
        return err_set(e, ERR_INPUT, "input '%s' is missing", v->name);
    ok = fits(&v->type, &t->type);
    if (!mil_type_is_static(&v->type)) {
        ok = ok && (!v->shapes || mil_shapes_take(v->shapes, &t->type));
        s->names[s->n] = v->name;
        s->types[s->n++] = t->type;
    }
    if (!ok)
        return input_misfit(v, t, e);
    if (!t->data && mil_type_elems(&t->type) > 0)
        return err_set(e, ERR_INPUT, "input '%s' has no data", v->name);
    return 0;
}

static int check_inputs(const struct mil_function *f,
                        const struct run_tensor *in, size_t n, struct shapes *s,
                        struct err *e)
{
    size_t declared = 0;

    for (size_t i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(f, f->inputs[i]);

        if (v->kind != MIL_V_INPUT)
            continue;
        declared++;
        if (check_input(v, in, n, s, e))
            return -1;
    }
    for (size_t i = 0; i < n; i++) {
        bool known = false;

        for (size_t j = 0; j < f->n_inputs && !known; j++) {
            const struct mil_value *v = mil_value(f, f->inputs[j]);

            known = v->kind == MIL_V_INPUT && !strcmp(v->name, in[i].name);
        }
        if (!known)
            return err_set(e, ERR_INPUT, "'%s' is no input", in[i].name);
    }
    if (n != declared)
        return err_set(e, ERR_INPUT, "%zu inputs are given, %zu are declared",
                       n, declared);
    return 0;
}

static bool plan_matches(const struct run_plan *p, const struct mil_function *f,
                         const struct shapes *s)
{
    if (p->source != f)
        return false;
    for (size_t i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(p->f, p->f->inputs[i]);

        for (size_t j = 0; j < s->n; j++)
            if (strcmp(v->name, s->names[j]) == 0 &&
                !mil_type_equal(&v->type, &s->types[j]))
                return false;
    }
    return true;
}

static struct run_plan *get_plan(struct run_model *m,
                                 const struct mil_function *f,
                                 const struct run_tensor *in, size_t n,
                                 struct err *e)
{
    struct run_plan *p = NULL;
    struct shapes s = { 0 };

    if (shapes_alloc(&s, f, e) || check_inputs(f, in, n, &s, e))
        goto out;
    for (p = m->plans; p && !plan_matches(p, f, &s); p = p->next)
        ;
    if (!p)
        p = run_plan_new(m, f, s.names, s.types, s.n, e);
out:
    shapes_free(&s);
    return p;
}

static int bind_input(struct run_ctx *c, struct run_slot *s,
                      const struct run_tensor *t, struct err *e)
{
    if (!run_rounds(c, s)) {
        s->data = (void *)t->data; /* never written: see run_alias.c */
        return 0;
    }
    if (run_slot_own(s, e))
        return -1;
    c->k->round(s->own, t->data, (size_t)s->elems);
    return 0;
}

static int bind_inputs(struct run_plan *p, const struct run_tensor *in,
                       size_t n, struct err *e)
{
    for (size_t i = 0; i < p->f->n_inputs; i++) {
        mil_ref r = p->f->inputs[i];
        const struct mil_value *v = mil_value(p->f, r);

        if (v->kind == MIL_V_INPUT &&
            bind_input(&p->model->ctx, &p->slots[r],
                       run_find_input(in, n, v->name), e))
            return -1;
    }
    return 0;
}

static int bind_states(struct run_plan *p, struct run_states *states,
                       struct err *e)
{
    for (size_t i = 0; i < p->f->n_inputs; i++) {
        mil_ref r = p->f->inputs[i];
        const struct mil_value *v = mil_value(p->f, r);
        float *data;

        if (v->kind == MIL_V_INPUT)
            continue;
        if (!states)
            return err_set(e, ERR_INPUT, "state '%s': no states are given",
                           v->name);
        if (run_state_get(states, v->name, &p->slots[r].type, &data, e))
            return -1;
        p->slots[r].data = data;
    }
    return 0;
}

static void bind_views(struct run_plan *p)
{
    for (mil_ref r = 1; r < p->f->n_values; r++) {
        struct run_slot *s = &p->slots[r];

        if (s->root != r)
            s->data = (float *)p->slots[s->root].data + s->offset;
    }
}

static int take_output(struct run_plan *p, struct run_output *o,
                       struct run_tensor *t, struct err *e)
{
    const struct run_slot *s = &p->slots[o->ref];

    t->name = mil_value(p->f, o->ref)->name;
    t->type = s->type;
    t->data = s->data;
    if (!o->copy)
        return 0;
    if ((uint64_t)s->elems > o->own_elems || !o->own) {
        mem_free(o->own);
        o->own_elems = 0;
        o->own = mem_alloc_aligned((size_t)s->elems, sizeof(float), e);
        if (!o->own)
            return -1;
        o->own_elems = (uint64_t)s->elems;
    }
    memcpy(o->own, s->data, (size_t)s->elems * sizeof(float));
    t->data = o->own;
    return 0;
}

static int call(struct run_model *m, const struct mil_function *f,
                struct run_states *states, const struct run_tensor *inputs,
                size_t n_inputs, struct run_tensor *outs, size_t cap,
                size_t *n_outs, struct err *e)
{
    struct run_plan *p = get_plan(m, f, inputs, n_inputs, e);

    if (!p || bind_inputs(p, inputs, n_inputs, e) || bind_states(p, states, e))
        return -1;
    bind_views(p);
    for (size_t i = 0; i < p->n_steps; i++)
        if (run_step_exec(&m->ctx, &p->steps[i], e))
            return -1;
    *n_outs = p->f->n_outputs < cap ? p->f->n_outputs : cap;
    for (size_t i = 0; i < *n_outs; i++)
        if (take_output(p, &p->outs[i], &outs[i], e))
            return -1;
    return 0;
}

static const struct mil_function *find_function(const struct run_model *m,
                                                const char *name, struct err *e)
{
    const struct mil_function *f = NULL;

    if (name)
        f = mil_program_find(m->program, name);
    else if (m->program->n_functions)
        f = m->program->functions[0];
    if (!f)
        err_set(e, ERR_INPUT, "the program has no function '%s'",
                name ? name : "");
    return f;
}

int run_call(struct run_model *m, const char *function,
             struct run_states *states, const struct run_tensor *inputs,
             size_t n_inputs, struct run_tensor *outs, size_t cap,
             size_t *n_outs, struct err *e)
{
    const struct mil_function *f = find_function(m, function, e);

    *n_outs = 0;
    if (!f)
        return -1;
    if (call(m, f, states, inputs, n_inputs, outs, cap, n_outs, e))
        return err_in(e, "function '%s'", f->name);
    return 0;
}

/* The plan that all of them have; *p NULL if they have several. */
static int common_plan(struct run_model *m, const struct mil_function *f,
                       const struct run_calls *calls, struct run_plan **p,
                       struct err *e)
{
    *p = NULL;
    for (size_t i = 0; i < calls->n; i++) {
        struct run_plan *one =
            get_plan(m, f, calls->inputs + i * calls->n_inputs, calls->n_inputs,
                     e);

        if (!one)
            return -1;
        if (i && one != *p) {
            *p = NULL;
            return 0;
        }
        *p = one;
    }
    return 0;
}

/* 1: calls->take failed. */
static int one_by_one(struct run_model *m, const struct mil_function *f,
                      struct run_states *states, const struct run_calls *calls,
                      struct err *e)
{
    struct run_tensor *outs = mem_alloc(f->n_outputs, sizeof(*outs), e);
    size_t n;
    int rc = outs ? 0 : -1;

    for (size_t i = 0; i < calls->n && !rc; i++) {
        rc = call(m, f, states, calls->inputs + i * calls->n_inputs,
                  calls->n_inputs, outs, f->n_outputs, &n, e);
        if (!rc && calls->take(calls->cookie, i, outs, n, e))
            rc = 1;
    }
    mem_free(outs);
    return rc;
}

int run_many(struct run_model *m, struct run_states *states,
             const struct run_calls *calls, struct err *e)
{
    const struct mil_function *f = find_function(m, calls->function, e);
    struct run_plan *p;
    bool done = false;
    int rc;

    if (!f)
        return -1;
    rc = common_plan(m, f, calls, &p, e);
    if (!rc && p)
        rc = bind_states(p, states, e);
    if (!rc && p) {
        bind_views(p);
        rc = run_lockstep(p, calls, &done, e);
    }
    if (!rc && !done)
        rc = one_by_one(m, f, states, calls, e);
    if (rc < 0)
        return err_in(e, "function '%s'", f->name);
    return rc ? -1 : 0;
}
