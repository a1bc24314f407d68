/*
 * Which values share memory.
 *
 * Views take their argument's memory. A state read is a view of the state
 * itself, and slice_update writes into its argument's memory where nobody can
 * tell: no other value of that memory is used later, and, in a state's
 * memory, the result is what the next write_state puts there before anyone
 * reads the state again. So read_state, slice_update, write_state cost what
 * the update costs, whatever the size of the cache.
 *
 * Decisions only ever fall back to copies, so repeating until nothing changes
 * ends.
 */
#include "mil/run/run_priv.h"

struct alias {
    struct run_plan *p;
    size_t *def, *last;         /* by value: op of definition, of last use */
    struct run_step **producer; /* by value; NULL for inputs and constants */
};

/* Ops count from 1; 0 is the function's entry, n_steps + 1 its end. */
static size_t when(const struct run_step *s)
{
    return (size_t)(s - s->plan->steps) + 1;
}

static void note_uses(struct alias *a)
{
    struct run_plan *p = a->p;

    for (size_t i = 0; i < p->n_steps; i++) {
        struct run_step *s = &p->steps[i];
        const struct mil_op_info *info = mil_op_info(s->op->code);

        for (int k = 0; k < info->n_params; k++)
            for (uint32_t j = 0; j < s->op->args[k].n; j++)
                a->last[s->op->args[k].refs[j]] = when(s);
        for (uint32_t j = 0; j < s->op->n_outs; j++) {
            a->def[s->op->outs[j]] = when(s);
            a->producer[s->op->outs[j]] = s;
        }
    }
    for (size_t i = 0; i < p->f->n_outputs; i++)
        a->last[p->f->outputs[i]] = p->n_steps + 1;
}

static bool is(const struct run_step *s, enum mil_opcode code)
{
    return s->op->code == code;
}

static void set_roots(struct alias *a)
{
    struct run_plan *p = a->p;

    for (mil_ref r = 0; r < p->f->n_values; r++) {
        p->slots[r].root = r;
        p->slots[r].offset = 0;
    }
    for (size_t i = 0; i < p->n_steps; i++) {
        struct run_step *s = &p->steps[i];

        for (uint32_t j = 0; j < s->op->n_outs; j++) {
            struct run_slot *out = &p->slots[s->op->outs[j]];
            int64_t offset = 0;
            mil_ref src = 0;

            if (is(s, MIL_OP_slice_update) && s->in_place)
                src = mil_arg(s->op, P_slice_update_x);
            else if (s->dynamic || !s->kernel->view ||
                     !s->kernel->view(s, j, &src, &offset))
                continue;
            out->root = p->slots[src].root;
            out->offset = p->slots[src].offset + offset;
        }
    }
}

/* Whether a value of root `root`, other than `except`, that exists at time t
 * is used after it. */
static bool used_later(const struct alias *a, mil_ref root, mil_ref except,
                       size_t t)
{
    for (mil_ref r = 1; r < a->p->f->n_values; r++)
        if (r != except && a->p->slots[r].root == root &&
            a->p->f->values[r].kind != MIL_V_STATE && a->def[r] <= t &&
            a->last[r] > t)
            return true;
    return false;
}

/* Whether what step `s` puts into state `root` is written to it next. */
static bool committed(const struct alias *a, const struct run_step *s,
                      mil_ref root)
{
    const struct run_step *end = a->p->steps + a->p->n_steps;

    for (s++; s < end; s++) {
        if (is(s, MIL_OP_read_state) &&
            mil_arg(s->op, P_read_state_input) == root)
            return false;
        if (is(s, MIL_OP_write_state) &&
            mil_arg(s->op, P_write_state_input) == root)
            return a->p->slots[mil_arg(s->op, P_write_state_data)].root == root;
    }
    return false;
}

static bool may_update(const struct alias *a, const struct run_step *s)
{
    const struct run_plan *p = a->p;
    const struct mil_op_info *info = mil_op_info(s->op->code);
    mil_ref x = mil_arg(s->op, P_slice_update_x), root = p->slots[x].root;
    enum run_home home = p->slots[root].home;

    if (s->dynamic || home == RUN_HOME_CONST || home == RUN_HOME_INPUT)
        return false;
    for (int k = 0; k < info->n_params; k++)
        if (k != P_slice_update_x && s->op->args[k].n &&
            p->slots[mil_arg(s->op, k)].root == root)
            return false;
    if (used_later(a, root, s->op->outs[0], when(s)))
        return false;
    return home != RUN_HOME_STATE || committed(a, s, root);
}

/* The state read that a value of a state's memory goes back to. */
static struct run_step *reader(const struct alias *a, mil_ref r)
{
    for (;;) {
        struct run_step *s = a->producer[r];
        int64_t offset;
        uint32_t j;

        if (!s || is(s, MIL_OP_read_state))
            return s;
        if (is(s, MIL_OP_slice_update)) {
            r = mil_arg(s->op, P_slice_update_x);
            continue;
        }
        for (j = 0; j < s->op->n_outs && s->op->outs[j] != r; j++)
            ;
        if (!s->kernel->view || !s->kernel->view(s, j, &r, &offset))
            return NULL;
    }
}

/* A write that copies ends the views of what the state held. */
static bool end_views(struct alias *a, const struct run_step *w)
{
    struct run_plan *p = a->p;
    mil_ref state = mil_arg(w->op, P_write_state_input);
    bool changed = false;

    if (p->slots[mil_arg(w->op, P_write_state_data)].root == state)
        return false;
    for (mil_ref r = 1; r < p->f->n_values; r++) {
        struct run_step *s;

        if (r == state || p->slots[r].root != state || a->def[r] >= when(w) ||
            a->last[r] <= when(w))
            continue;
        s = reader(a, r);
        if (s && !s->own_read) {
            s->own_read = true;
            changed = true;
        }
    }
    return changed;
}

static void decide(struct alias *a)
{
    struct run_plan *p = a->p;
    bool changed = true;

    while (changed) {
        changed = false;
        set_roots(a);
        for (size_t i = 0; i < p->n_steps && !changed; i++) {
            struct run_step *s = &p->steps[i];

            if (is(s, MIL_OP_slice_update) && s->in_place &&
                !may_update(a, s)) {
                s->in_place = false;
                changed = true;
            }
            if (is(s, MIL_OP_write_state))
                changed |= end_views(a, s);
        }
    }
}

/* When each root's memory is in use. */
static void set_spans(struct alias *a)
{
    struct run_plan *p = a->p;

    for (mil_ref r = 1; r < p->f->n_values; r++)
        p->slots[r].first = a->def[r];
    for (mil_ref r = 1; r < p->f->n_values; r++) {
        struct run_slot *root = &p->slots[p->slots[r].root];
        size_t last = a->last[r] > a->def[r] ? a->last[r] : a->def[r];

        root->last = root->last > last ? root->last : last;
    }
}

int run_alias(struct run_plan *p, struct err *e)
{
    struct alias a = { .p = p };
    size_t n = p->f->n_values;
    int rc = -1;

    a.def = mem_zalloc(n, sizeof(*a.def), e);
    a.last = mem_zalloc(n, sizeof(*a.last), e);
    a.producer = mem_zalloc(n, sizeof(*a.producer), e);
    if (a.def && a.last && a.producer) {
        for (size_t i = 0; i < p->n_steps; i++)
            p->steps[i].in_place =
                is(&p->steps[i], MIL_OP_slice_update) && !p->steps[i].dynamic;
        note_uses(&a);
        decide(&a);
        set_spans(&a);
        rc = 0;
    }
    mem_free(a.def);
    mem_free(a.last);
    mem_free(a.producer);
    return rc;
}
