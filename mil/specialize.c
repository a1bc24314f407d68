/*
 * A copy of one function with other input types: every type is inferred
 * anew. Names, constants and argument lists are shared with the original.
 */
#include "mil/mil.h"

#include <string.h>

/* The declared dims fill what inference cannot know (slices with run-time
 * borders), as a loader takes them. */
static void fill_unknown(struct mil_type *inferred,
                         const struct mil_type *declared)
{
    if (inferred->rank != declared->rank)
        return;
    for (int i = 0; i < inferred->rank; i++) {
        if (inferred->dims[i] < 0)
            inferred->dims[i] = declared->dims[i];
    }
}

static int set_input(struct mil_function *f, const char *name,
                     const struct mil_type *t, struct err *e)
{
    char have[MIL_TYPE_TEXT_MAX], want[MIL_TYPE_TEXT_MAX];

    for (size_t i = 0; i < f->n_inputs; i++) {
        struct mil_value *v = mil_value(f, f->inputs[i]);
        bool fits = v->type.dtype == t->dtype && v->type.rank == t->rank;

        if (v->kind != MIL_V_INPUT || strcmp(v->name, name) != 0)
            continue;
        for (int d = 0; fits && d < t->rank; d++)
            fits = v->type.dims[d] < 0 || v->type.dims[d] == t->dims[d];
        if (!fits) {
            mil_type_text(&v->type, have);
            mil_type_text(t, want);
            return err_set(e, ERR_INPUT, "input '%s' is %s, given: %s", name,
                           have, want);
        }
        v->type = *t;
        v->shapes = NULL;
        return 0;
    }
    return err_set(e, ERR_INPUT, "function '%s' has no input '%s'", f->name,
                   name);
}

static int infer_all(struct mil_function *f, struct err *e)
{
    struct mil_type few[4], *types;

    for (size_t i = 0; i < f->n_ops; i++) {
        const struct mil_op *op = &f->ops[i];
        int rc;

        types = few;
        if (op->n_outs > 4) {
            types = mem_zalloc(op->n_outs, sizeof *types, e);
            if (!types)
                return -1;
        }
        rc = mil_infer_op(f, op, types, op->n_outs, e);
        for (uint32_t j = 0; rc == 0 && j < op->n_outs; j++) {
            fill_unknown(&types[j], &mil_value(f, op->outs[j])->type);
            mil_value(f, op->outs[j])->type = types[j];
        }
        if (types != few)
            mem_free(types);
        if (rc)
            return -1;
    }
    return 0;
}

struct mil_program *mil_specialize(const struct mil_function *f,
                                   const char *const *input_names,
                                   const struct mil_type *input_types, size_t n,
                                   struct err *e)
{
    struct mil_program *p = mil_program_new(e);
    struct mil_function *copy;

    if (!p)
        return NULL;
    p->spec_version = f->program->spec_version;
    copy = mil_program_add(p, f->name, e);
    if (!copy)
        goto fail;
    *copy = *f;
    copy->program = p;
    copy->values =
        arena_memdup(&p->arena, f->values, f->n_values * sizeof *f->values, e);
    copy->ops = arena_memdup(&p->arena, f->ops, f->n_ops * sizeof *f->ops, e);
    if (!copy->values || !copy->ops)
        goto fail;
    /* Full: whoever adds to the copy gets arrays of its own. */
    copy->cap_values = copy->n_values;
    copy->cap_ops = copy->n_ops;
    copy->cap_inputs = copy->n_inputs;
    copy->cap_outputs = copy->n_outputs;
    for (size_t i = 0; i < n; i++) {
        if (set_input(copy, input_names[i], &input_types[i], e))
            goto fail;
    }
    if (infer_all(copy, e))
        goto fail;
    return p;
fail:
    mil_program_free(p);
    return NULL;
}
