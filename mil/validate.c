/*
 * Validation of a whole program: everything that a loader demands and what
 * no loader checks but a device trips over. The first finding is the error.
 */
#include "mil/mil.h"

#include <stdio.h>
#include <string.h>

#include "mil/name_map_priv.h"
#include "mil/words_priv.h"

#define MAX_RANK 5 /* of everything that is no operand of a constexpr op */
#define OPSET "CoreML8"
#define OPSET_VERSION 9

/* What is known of each value while a function is walked. */
enum {
    DEFINED = 1,  /* usable by the ops that follow */
    ORDINARY = 2, /* feeds an op other than constexpr, or is an output */
    READ = 4,     /* a state that is read */
    STORED = 8,   /* written to a state */
    OUTPUT = 16,
};

/* Inputs of the functions so far, by name. */
struct seen {
    struct name_map names;
    struct seen_input {
        const struct mil_function *f;
        const struct mil_value *v;
    } * items;
    size_t n, cap;
};

struct check {
    struct seen *seen;
    const struct mil_function *f;
    unsigned char *flags; /* per value */
    struct name_map names;
    struct mil_type *types; /* inferred outputs of one op */
    uint32_t cap_types;
    struct err *e;
};

static int check_name(const char *what, const char *name, struct err *e)
{
    if (!name || !mil_is_identifier(name))
        return err_set(e, ERR_INPUT,
                       "%s '%s' is no identifier: letters, digits, '_' and "
                       "'@', not starting with a digit",
                       what, name ? name : "");
    if (mil_is_reserved(name))
        return err_set(e, ERR_INPUT, "%s '%s' is a reserved word", what, name);
    return 0;
}

static int check_type(const char *what, const struct mil_value *v,
                      struct err *e)
{
    char text[MIL_TYPE_TEXT_MAX];

    if (v->type.dtype <= MIL_INVALID || v->type.dtype >= MIL_DTYPE_COUNT ||
        v->type.rank < 0 || v->type.rank > MIL_MAX_RANK)
        return err_set(e, ERR_INPUT, "%s '%s' has no sound type", what,
                       v->name);
    for (int i = 0; i < v->type.rank; i++) {
        if (v->type.dims[i] < MIL_DIM_UNKNOWN) {
            mil_type_text(&v->type, text);
            return err_set(e, ERR_INPUT, "%s '%s' (%s): dim %d is %lld", what,
                           v->name, text, i, (long long)v->type.dims[i]);
        }
    }
    return 0;
}

static bool is_border_dtype(enum mil_dtype d)
{
    return d == MIL_F16 || d == MIL_F32 || d == MIL_I32;
}

/* Defines a value under its name; both may be there once only. */
static int define(struct check *c, const char *what, mil_ref r)
{
    const struct mil_value *v = mil_value(c->f, r);

    if (check_name(what, v->name, c->e) || check_type(what, v, c->e))
        return -1;
    if (name_map_find(&c->names, v->name))
        return err_set(c->e, ERR_INPUT, "the name '%s' is defined twice",
                       v->name);
    if (name_map_set(&c->names, v->name, r, c->e))
        return -1;
    c->flags[r] |= DEFINED;
    return 0;
}

/* ---- inputs and states ---- */

static int check_state(const struct check *c, const struct mil_value *v)
{
    const struct mil_type *t = &v->type;
    char text[MIL_TYPE_TEXT_MAX];

    mil_type_text(t, text);
    if (t->dtype != MIL_F16 || !mil_type_is_static(t))
        return err_set(c->e, ERR_INPUT,
                       "state '%s' is %s: states are fp16 of a fixed shape",
                       v->name, text);
    if (t->dims[t->rank - 1] == 3)
        return err_set(c->e, ERR_INPUT,
                       "state '%s' is %s: a last dim of 3 fails on devices",
                       v->name, text);
    return 0;
}

/* One name is one thing in all functions: a state of one type, or inputs. */
static int check_seen(const struct check *c, const struct mil_value *v)
{
    struct seen *s = c->seen;
    uint32_t *at = name_map_find(&s->names, v->name);
    char here[MIL_TYPE_TEXT_MAX], there[MIL_TYPE_TEXT_MAX];
    const struct seen_input *other;
    void *items = s->items;

    if (!at) {
        if (mem_grow(&items, &s->cap, s->n, sizeof *s->items, c->e))
            return -1;
        s->items = items;
        s->items[s->n] = (struct seen_input){ c->f, v };
        return name_map_set(&s->names, v->name, (uint32_t)s->n++, c->e);
    }
    other = &s->items[*at];
    if (other->v->kind != v->kind)
        return err_set(c->e, ERR_INPUT,
                       "'%s' is %s here and %s in function '%s'", v->name,
                       v->kind == MIL_V_STATE ? "a state" : "an input",
                       v->kind == MIL_V_STATE ? "an input" : "a state",
                       other->f->name);
    if (v->kind != MIL_V_STATE || mil_type_equal(&other->v->type, &v->type))
        return 0;
    mil_type_text(&v->type, here);
    mil_type_text(&other->v->type, there);
    return err_set(c->e, ERR_INPUT,
                   "state '%s' is %s here and %s in function '%s'", v->name,
                   here, there, other->f->name);
}

static int check_input(struct check *c, mil_ref r)
{
    const struct mil_value *v;
    const char *what;

    if (r == 0 || r >= c->f->n_values)
        return err_set(c->e, ERR_INPUT, "an input refers to value %u of %zu", r,
                       c->f->n_values);
    v = mil_value(c->f, r);
    what = v->kind == MIL_V_STATE ? "state" : "input";
    if (v->kind != MIL_V_STATE && v->kind != MIL_V_INPUT)
        return err_set(c->e, ERR_INPUT, "input '%s' is no input", v->name);
    if (define(c, what, r))
        return -1;
    if (v->type.rank < 1 || v->type.rank > MAX_RANK)
        return err_set(c->e, ERR_INPUT, "%s '%s' has rank %d, allowed: 1 to %d",
                       what, v->name, v->type.rank, MAX_RANK);
    if (v->kind == MIL_V_STATE && check_state(c, v))
        return -1;
    if (v->kind == MIL_V_INPUT && !is_border_dtype(v->type.dtype))
        return err_set(c->e, ERR_INPUT,
                       "input '%s' is %s, allowed: fp16, fp32, int32", v->name,
                       mil_dtype_name(v->type.dtype));
    return check_seen(c, v);
}

/* ---- constants ---- */

static int check_const(const struct check *c, const char *name,
                       const struct mil_const *k)
{
    int64_t bytes = mil_type_bytes(&k->type);
    char text[MIL_TYPE_TEXT_MAX];

    mil_type_text(&k->type, text);
    if (bytes < 0)
        return err_set(c->e, ERR_INPUT,
                       "constant '%s' (%s) must have a known size", name, text);
    if ((k->bytes != NULL) + (k->strings != NULL) + (k->data != NULL) != 1)
        return err_set(c->e, ERR_INPUT, "constant '%s' (%s) has no value", name,
                       text);
    if ((k->strings != NULL) != (k->type.dtype == MIL_STRING))
        return err_set(c->e, ERR_INPUT,
                       "constant '%s' (%s) has a value of another type", name,
                       text);
    if (!k->data)
        return 0;
    if (k->data->bytes != (uint64_t)bytes ||
        k->data->type.dtype != k->type.dtype)
        return err_set(c->e, ERR_INPUT,
                       "constant '%s' (%s) needs %lld bytes, its data are %llu "
                       "of %s",
                       name, text, (long long)bytes,
                       (unsigned long long)k->data->bytes,
                       mil_dtype_name(k->data->type.dtype));
    if (k->type.dtype == MIL_BOOL || k->type.dtype == MIL_F64 ||
        k->type.dtype == MIL_I64 || k->type.dtype == MIL_U64)
        return err_set(c->e, ERR_INPUT,
                       "constant '%s' (%s) cannot lie in a weight file", name,
                       text);
    return 0;
}

/* ---- operations ---- */

static int check_arg(struct check *c, const struct mil_op *op,
                     const char *param, mil_ref r)
{
    bool constexpr_op = mil_op_info(op->code)->flags & MIL_O_CONSTEXPR;
    const struct mil_value *v;

    if (r == 0 || r >= c->f->n_values)
        return err_set(c->e, ERR_INPUT,
                       "%s '%s': parameter '%s' refers to value %u of %zu",
                       mil_op_type(op), op->name, param, r, c->f->n_values);
    v = mil_value(c->f, r);
    if (v->kind == MIL_V_LITERAL) {
        if (!v->konst)
            return err_set(c->e, ERR_INPUT,
                           "%s '%s': parameter '%s' has no value",
                           mil_op_type(op), op->name, param);
        if (v->konst->data && !constexpr_op)
            return err_set(c->e, ERR_INPUT,
                           "%s '%s': parameter '%s' lies in a weight file: "
                           "only constexpr ops take such values inline",
                           mil_op_type(op), op->name, param);
        if (!mil_type_equal(&v->type, &v->konst->type))
            return err_set(c->e, ERR_INPUT,
                           "%s '%s': parameter '%s' has a value of another "
                           "type",
                           mil_op_type(op), op->name, param);
        if (check_const(c, param, v->konst))
            return -1;
    } else if (!(c->flags[r] & DEFINED)) {
        return err_set(c->e, ERR_INPUT,
                       "%s '%s': parameter '%s' uses '%s' before it is "
                       "defined",
                       mil_op_type(op), op->name, param, v->name);
    }
    if (!constexpr_op)
        c->flags[r] |= ORDINARY;
    if (v->kind == MIL_V_LITERAL && !constexpr_op && v->type.rank > MAX_RANK)
        return err_set(c->e, ERR_INPUT,
                       "%s '%s': parameter '%s' has rank %d, allowed: up to %d",
                       mil_op_type(op), op->name, param, v->type.rank,
                       MAX_RANK);
    return 0;
}

static int check_args(struct check *c, const struct mil_op *op)
{
    const struct mil_op_info *info = mil_op_info(op->code);

    for (int i = 0; i < info->n_params; i++) {
        for (uint32_t j = 0; j < op->args[i].n; j++) {
            if (check_arg(c, op, info->params[i].name, op->args[i].refs[j]))
                return -1;
        }
    }
    if (op->code == MIL_OP_read_state)
        c->flags[mil_arg(op, 0)] |= READ;
    if (op->code == MIL_OP_write_state)
        c->flags[mil_arg(op, 1)] |= STORED;
    return 0;
}

static bool compatible(const struct mil_type *a, const struct mil_type *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++) {
        if (a->dims[i] != b->dims[i] && a->dims[i] >= 0 && b->dims[i] >= 0)
            return false;
    }
    return true;
}

static int check_declared(const struct check *c, const struct mil_op *op,
                          const struct mil_value *v, const struct mil_type *t)
{
    bool exact = op->code == MIL_OP_const ||
                 (mil_op_info(op->code)->flags & MIL_O_CONSTEXPR);
    char declared[MIL_TYPE_TEXT_MAX], inferred[MIL_TYPE_TEXT_MAX];

    if (exact ? mil_type_equal(&v->type, t) : compatible(&v->type, t))
        return 0;
    mil_type_text(&v->type, declared);
    mil_type_text(t, inferred);
    return err_set(c->e, ERR_INPUT,
                   "%s '%s': output '%s' is declared %s, inferred %s",
                   mil_op_type(op), op->name, v->name, declared, inferred);
}

static int room_for_types(struct check *c, uint32_t n)
{
    struct mil_type *types;

    if (n <= c->cap_types)
        return 0;
    types = mem_realloc(c->types, n, sizeof *types, c->e);
    if (!types)
        return -1;
    c->types = types;
    c->cap_types = n;
    return 0;
}

static int check_op(struct check *c, size_t index)
{
    const struct mil_op *op = &c->f->ops[index];

    if (op->code <= MIL_OP_INVALID || op->code >= MIL_OP_COUNT)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "%s '%s': not an operation of the " OPSET
                       " opset in a form that is known here",
                       mil_op_type(op), op->name);
    if (check_args(c, op) || room_for_types(c, op->n_outs))
        return -1;
    for (uint32_t i = 0; i < op->n_outs; i++) {
        mil_ref r = op->outs[i];

        if (r == 0 || r >= c->f->n_values ||
            mil_value(c->f, r)->kind != MIL_V_RESULT ||
            mil_value(c->f, r)->op != (int)index)
            return err_set(c->e, ERR_INPUT,
                           "%s '%s': output %u is no result "
                           "of it",
                           mil_op_type(op), op->name, i);
    }
    if (op->code == MIL_OP_const && op->n_outs == 1 &&
        mil_value(c->f, op->outs[0])->konst &&
        check_const(c, mil_value(c->f, op->outs[0])->name,
                    mil_value(c->f, op->outs[0])->konst))
        return -1;
    if (mil_infer_op(c->f, op, c->types, op->n_outs, c->e))
        return -1;
    for (uint32_t i = 0; i < op->n_outs; i++) {
        if (check_declared(c, op, mil_value(c->f, op->outs[i]), &c->types[i]) ||
            define(c, "output", op->outs[i]))
            return -1;
    }
    return 0;
}

/* Results beyond rank 5 may only feed constexpr ops. */
static int check_ranks(const struct check *c)
{
    for (size_t i = 1; i < c->f->n_values; i++) {
        const struct mil_value *v = &c->f->values[i];
        bool constant = false;

        if (v->kind != MIL_V_RESULT || v->type.rank <= MAX_RANK)
            continue;
        if (v->op >= 0 && (size_t)v->op < c->f->n_ops) {
            enum mil_opcode code = c->f->ops[v->op].code;

            constant = code == MIL_OP_const ||
                       (mil_op_info(code)->flags & MIL_O_CONSTEXPR);
        }
        if (!constant || (c->flags[i] & ORDINARY))
            return err_set(c->e, ERR_INPUT,
                           "'%s' has rank %d, allowed: up to %d (above, only "
                           "constants that feed constexpr ops)",
                           v->name, v->type.rank, MAX_RANK);
    }
    return 0;
}

/* ---- outputs and states at the end ---- */

/* Why a value may not be an output; NULL if it may. */
static const char *bad_output(const struct check *c, mil_ref r)
{
    const struct mil_value *v = mil_value(c->f, r);
    const struct mil_op *op;

    if (v->kind == MIL_V_INPUT)
        return "an input of the function";
    if (v->kind == MIL_V_STATE)
        return "a state";
    if (v->kind != MIL_V_RESULT || !(c->flags[r] & DEFINED))
        return "not the result of an op";
    op = &c->f->ops[v->op];
    if (op->code == MIL_OP_const || v->konst)
        return "a constant";
    if (mil_op_info(op->code)->flags & MIL_O_CONSTEXPR)
        return "a constexpr result";
    if (op->code == MIL_OP_read_state)
        return "the read of a state";
    if (c->flags[r] & STORED)
        return "the very value that is written to a state";
    if (c->flags[r] & OUTPUT)
        return "an output already";
    return NULL;
}

static int check_outputs(struct check *c)
{
    const struct mil_function *f = c->f;

    if (f->n_outputs == 0)
        return err_set(c->e, ERR_INPUT, "no output is declared");
    for (size_t i = 0; i < f->n_outputs; i++) {
        mil_ref r = f->outputs[i];
        const struct mil_value *v;
        const char *why;

        if (r == 0 || r >= f->n_values)
            return err_set(c->e, ERR_INPUT,
                           "an output refers to value %u of %zu", r,
                           f->n_values);
        v = mil_value(f, r);
        why = bad_output(c, r);
        if (why)
            return err_set(c->e, ERR_INPUT, "output '%s' is %s", v->name, why);
        if (!is_border_dtype(v->type.dtype))
            return err_set(c->e, ERR_INPUT,
                           "output '%s' is %s, allowed: fp16, fp32, int32",
                           v->name, mil_dtype_name(v->type.dtype));
        c->flags[r] |= OUTPUT | ORDINARY;
    }
    return 0;
}

static int check_states_read(const struct check *c)
{
    for (size_t i = 0; i < c->f->n_inputs; i++) {
        const struct mil_value *v = mil_value(c->f, c->f->inputs[i]);

        if (v->kind == MIL_V_STATE && !(c->flags[c->f->inputs[i]] & READ))
            return err_set(c->e, ERR_INPUT,
                           "state '%s' is declared but never read in function "
                           "'%s'",
                           v->name, c->f->name);
    }
    return 0;
}

/* A shape that an input says it accepts. */
static int check_accepted(const struct mil_value *v, const struct mil_type *t,
                          const char *what, struct err *e)
{
    char text[MIL_TYPE_TEXT_MAX], declared[MIL_TYPE_TEXT_MAX];

    if (mil_type_is_static(t) && compatible(&v->type, t) &&
        mil_shapes_take(v->shapes, t))
        return 0;
    mil_type_text(t, text);
    mil_type_text(&v->type, declared);
    return err_set(e, ERR_INPUT, "input '%s' is %s: %s, %s, does not fit it",
                   v->name, declared, what, text);
}

static int check_range(const struct mil_value *v, struct err *e)
{
    const struct mil_shapes *s = v->shapes;

    for (int i = 0; i < v->type.rank; i++) {
        int64_t dim = v->type.dims[i];

        if (s->low[i] >= 0 && (s->high[i] < 0 || s->low[i] <= s->high[i]) &&
            (dim < 0 || (s->low[i] == dim && s->high[i] == dim)))
            continue;
        return err_set(e, ERR_INPUT,
                       "input '%s' accepts %lld to %lld in dimension %d, "
                       "which does not fit it",
                       v->name, (long long)s->low[i], (long long)s->high[i], i);
    }
    return 0;
}

static int check_shapes(const struct mil_function *f, struct err *e)
{
    for (size_t i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(f, f->inputs[i]);
        const struct mil_shapes *s = v->shapes;
        char what[32];

        if (!s)
            continue;
        if (s->n == 0 && check_range(v, e))
            return -1;
        for (int k = 0; k < s->n; k++) {
            snprintf(what, sizeof what, "shape %d", k);
            if (check_accepted(v, &s->list[k], what, e))
                return -1;
        }
        if (check_accepted(v, &s->first, "the default", e))
            return -1;
    }
    return 0;
}

static int check_body(struct check *c)
{
    for (size_t i = 0; i < c->f->n_inputs; i++) {
        if (check_input(c, c->f->inputs[i]))
            return -1;
    }
    if (check_shapes(c->f, c->e))
        return -1;
    for (size_t i = 0; i < c->f->n_ops; i++) {
        if (check_op(c, i))
            return -1;
    }
    if (check_outputs(c) || check_ranks(c) || check_states_read(c))
        return -1;
    return 0;
}

static int check_function(const struct mil_function *f, struct seen *seen,
                          struct err *e)
{
    struct check c = { .seen = seen, .f = f, .names = NAME_MAP_INIT, .e = e };
    int rc = -1;

    if (check_name("function", f->name, e))
        return -1;
    if (strcmp(f->opset, OPSET) != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "function '%s' is written for opset '%s', allowed: "
                       "'" OPSET "'",
                       f->name, f->opset);
    c.flags = mem_zalloc(f->n_values, 1, e);
    if (c.flags)
        rc = check_body(&c);
    mem_free(c.flags);
    mem_free(c.types);
    name_map_release(&c.names);
    return rc ? err_in(e, "function '%s'", f->name) : 0;
}

/* ---- the program ---- */

static int check_functions(const struct mil_program *p, struct err *e)
{
    struct seen seen = { .names = NAME_MAP_INIT };
    struct name_map names = NAME_MAP_INIT;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < p->n_functions; i++) {
        const struct mil_function *f = p->functions[i];

        if (name_map_find(&names, f->name))
            rc = err_set(e, ERR_INPUT, "function '%s' is defined twice",
                         f->name);
        else if (name_map_set(&names, f->name, 1, e))
            rc = -1;
        else
            rc = check_function(f, &seen, e);
    }
    name_map_release(&names);
    name_map_release(&seen.names);
    mem_free(seen.items);
    return rc;
}

int mil_validate(const struct mil_program *p, struct err *e)
{
    if (p->n_functions == 0)
        return err_set(e, ERR_INPUT, "the program has no function");
    if (p->spec_version < OPSET_VERSION)
        return err_set(e, ERR_UNSUPPORTED,
                       "specification version %d, " OPSET " needs %d",
                       p->spec_version, OPSET_VERSION);
    return check_functions(p, e);
}
