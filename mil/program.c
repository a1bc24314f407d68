/*
 * Construction of programs: everything is copied into the program's arena,
 * arrays grow by copying into it. No rule of MIL is checked here.
 */
#include "mil/mil.h"

#include <string.h>

/* Room for one more element; the old array stays behind in the arena. */
static int grow(struct arena *a, void **items, size_t *cap, size_t used,
                size_t size, struct err *e)
{
    size_t n = *cap ? *cap * 2 : 8;
    void *p;

    if (used < *cap)
        return 0;
    p = arena_alloc(a, n, size, e);
    if (!p)
        return -1;
    if (used)
        memcpy(p, *items, used * size);
    *items = p;
    *cap = n;
    return 0;
}

struct mil_program *mil_program_new(struct err *e)
{
    struct mil_program *p = mem_zalloc(1, sizeof *p, e);

    if (p)
        p->spec_version = 9;
    return p;
}

void mil_program_free(struct mil_program *p)
{
    if (!p)
        return;
    arena_release(&p->arena);
    mem_free(p);
}

struct mil_function *mil_program_find(const struct mil_program *p,
                                      const char *name)
{
    for (size_t i = 0; i < p->n_functions; i++) {
        if (strcmp(p->functions[i]->name, name) == 0)
            return p->functions[i];
    }
    return NULL;
}

struct mil_function *mil_program_add(struct mil_program *p, const char *name,
                                     struct err *e)
{
    struct mil_function *f;
    void *items = p->functions;

    if (mil_program_find(p, name)) {
        err_set(e, ERR_INPUT, "function '%s' is defined twice", name);
        return NULL;
    }
    if (grow(&p->arena, &items, &p->cap_functions, p->n_functions,
             sizeof(struct mil_function *), e))
        return NULL;
    p->functions = items;
    f = arena_alloc(&p->arena, 1, sizeof *f, e);
    if (!f)
        return NULL;
    f->program = p;
    f->opset = "CoreML8";
    f->name = arena_strdup(&p->arena, name, e);
    items = NULL;
    if (!f->name ||
        grow(&p->arena, &items, &f->cap_values, 0, sizeof(struct mil_value), e))
        return NULL;
    f->values = items;
    f->n_values = 1; /* ref 0 is "none" */
    p->functions[p->n_functions++] = f;
    return f;
}

static int set_pair(struct mil_program *p, struct mil_pair **pairs, size_t *n,
                    size_t *cap, const struct mil_pair *pair, struct err *e)
{
    const char *value = arena_strdup(&p->arena, pair->value, e);
    void *items = *pairs;
    const char *key;

    if (!value)
        return -1;
    for (size_t i = 0; i < *n; i++) {
        if (strcmp((*pairs)[i].key, pair->key) == 0) {
            (*pairs)[i].value = value;
            return 0;
        }
    }
    key = arena_strdup(&p->arena, pair->key, e);
    if (!key || grow(&p->arena, &items, cap, *n, sizeof **pairs, e))
        return -1;
    *pairs = items;
    (*pairs)[(*n)++] = (struct mil_pair){ key, value };
    return 0;
}

int mil_program_set_metadata(struct mil_program *p, const char *key,
                             const char *value, struct err *e)
{
    struct mil_pair pair = { key, value };

    return set_pair(p, &p->metadata, &p->n_metadata, &p->cap_metadata, &pair,
                    e);
}

int mil_program_set_build_info(struct mil_program *p, const char *key,
                               const char *value, struct err *e)
{
    struct mil_pair pair = { key, value };

    return set_pair(p, &p->build_info, &p->n_build_info, &p->cap_build_info,
                    &pair, e);
}

const char *mil_program_metadata(const struct mil_program *p, const char *key)
{
    for (size_t i = 0; i < p->n_metadata; i++) {
        if (strcmp(p->metadata[i].key, key) == 0)
            return p->metadata[i].value;
    }
    return NULL;
}

int mil_set_shapes(struct mil_function *f, mil_ref input,
                   const struct mil_shapes *s, struct err *e)
{
    struct arena *a = &f->program->arena;
    struct mil_shapes *copy = arena_memdup(a, s, sizeof *s, e);

    if (!copy)
        return -1;
    if (s->n) {
        copy->list =
            arena_memdup(a, s->list, (size_t)s->n * sizeof *s->list, e);
        if (!copy->list)
            return -1;
    }
    mil_value(f, input)->shapes = copy;
    return 0;
}

bool mil_shapes_take(const struct mil_shapes *s, const struct mil_type *t)
{
    for (int i = 0; i < s->n; i++) {
        if (mil_type_equal(&s->list[i], t))
            return true;
    }
    if (s->n)
        return false;
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] < s->low[i] ||
            (s->high[i] >= 0 && t->dims[i] > s->high[i]))
            return false;
    }
    return true;
}

int mil_program_set_enumerated(struct mil_program *p, const char *input,
                               int n_shapes, const struct mil_type *shapes,
                               struct err *e)
{
    struct mil_shapes s = { .n = n_shapes, .list = shapes };

    if (n_shapes < 1)
        return err_set(e, ERR_INPUT, "input '%s' enumerates %d shapes", input,
                       n_shapes);
    s.first = shapes[0];
    for (size_t i = 0; i < p->n_functions; i++) {
        struct mil_function *f = p->functions[i];

        for (size_t k = 0; k < f->n_inputs; k++) {
            if (strcmp(mil_value(f, f->inputs[k])->name, input) == 0 &&
                mil_set_shapes(f, f->inputs[k], &s, e))
                return -1;
        }
    }
    return 0;
}

static int add_ref(struct arena *a, mil_ref **list, size_t *n, size_t *cap,
                   mil_ref v, struct err *e)
{
    void *items = *list;

    if (grow(a, &items, cap, *n, sizeof **list, e))
        return -1;
    *list = items;
    (*list)[(*n)++] = v;
    return 0;
}

mil_ref mil_add_value(struct mil_function *f, enum mil_value_kind kind,
                      const char *name, const struct mil_type *type,
                      struct err *e)
{
    struct arena *a = &f->program->arena;
    struct mil_value v = { .kind = kind, .type = *type, .op = -1 };
    void *items = f->values;
    mil_ref r;

    if (f->n_values >= UINT32_MAX) {
        err_set(e, ERR_UNSUPPORTED, "function '%s' has more than %u values",
                f->name, UINT32_MAX);
        return 0;
    }
    v.name = name ? arena_strdup(a, name, e) : "";
    if (!v.name || grow(a, &items, &f->cap_values, f->n_values, sizeof v, e))
        return 0;
    f->values = items;
    r = (mil_ref)f->n_values;
    if ((kind == MIL_V_INPUT || kind == MIL_V_STATE) &&
        add_ref(a, &f->inputs, &f->n_inputs, &f->cap_inputs, r, e))
        return 0;
    f->values[f->n_values++] = v;
    return r;
}

struct mil_op *mil_add_op(struct mil_function *f, enum mil_opcode code,
                          const char *name, struct err *e)
{
    struct arena *a = &f->program->arena;
    struct mil_op op = { .code = code };
    void *items = f->ops;

    if (f->n_ops >= INT32_MAX) {
        err_set(e, ERR_UNSUPPORTED, "function '%s' has more than %d ops",
                f->name, INT32_MAX);
        return NULL;
    }
    op.name = name ? arena_strdup(a, name, e) : "";
    if (!op.name || grow(a, &items, &f->cap_ops, f->n_ops, sizeof op, e))
        return NULL;
    f->ops = items;
    f->ops[f->n_ops] = op;
    return &f->ops[f->n_ops++];
}

static int check_refs(const struct mil_function *f, const mil_ref *refs,
                      uint32_t n, struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        if (refs[i] == 0 || refs[i] >= f->n_values)
            return err_set(e, ERR_INPUT,
                           "an argument refers to value %u of %zu", refs[i],
                           f->n_values);
    }
    return 0;
}

int mil_set_arg(struct mil_function *f, struct mil_op *op, int param,
                const mil_ref *refs, uint32_t n, struct err *e)
{
    mil_ref *copy;

    BUG_UNLESS(param >= 0 && param < MIL_MAX_PARAMS);
    if (check_refs(f, refs, n, e))
        return -1;
    copy = arena_memdup(&f->program->arena, refs, n * sizeof *refs, e);
    if (!copy)
        return -1;
    op->args[param] = (struct mil_arg){ copy, n };
    return 0;
}

int mil_set_foreign(struct mil_function *f, struct mil_op *op,
                    const struct mil_foreign *foreign, struct err *e)
{
    struct arena *a = &f->program->arena;
    struct mil_foreign *copy = arena_alloc(a, 1, sizeof *copy, e);
    struct mil_named_arg *args;

    args =
        arena_alloc(a, foreign->n_args ? foreign->n_args : 1, sizeof *args, e);
    if (!copy || !args)
        return -1;
    for (uint32_t i = 0; i < foreign->n_args; i++) {
        const struct mil_named_arg *from = &foreign->args[i];

        if (check_refs(f, from->arg.refs, from->arg.n, e))
            return -1;
        args[i] = *from;
        args[i].name = arena_strdup(a, from->name, e);
        args[i].arg.refs =
            arena_memdup(a, from->arg.refs, from->arg.n * sizeof(mil_ref), e);
        if (!args[i].name || !args[i].arg.refs)
            return -1;
    }
    copy->type = arena_strdup(a, foreign->type, e);
    if (!copy->type)
        return -1;
    copy->args = args;
    copy->n_args = foreign->n_args;
    op->foreign = copy;
    return 0;
}

const char *mil_op_type(const struct mil_op *op)
{
    return op->foreign ? op->foreign->type : mil_op_info(op->code)->name;
}

mil_ref mil_add_output(struct mil_function *f, struct mil_op *op,
                       const char *name, const struct mil_type *type,
                       struct err *e)
{
    struct arena *a = &f->program->arena;
    mil_ref r;

    BUG_UNLESS(f->n_ops && op == &f->ops[f->n_ops - 1]);
    /* Capacity is the next power of two: full when n is one. */
    if ((op->n_outs & (op->n_outs - 1)) == 0) {
        mil_ref *outs = arena_alloc(a, op->n_outs ? 2 * (size_t)op->n_outs : 1,
                                    sizeof *outs, e);

        if (!outs)
            return 0;
        if (op->n_outs)
            memcpy(outs, op->outs, op->n_outs * sizeof *outs);
        op->outs = outs;
    }
    r = mil_add_value(f, MIL_V_RESULT, name, type, e);
    if (!r)
        return 0;
    f->values[r].op = (int)f->n_ops - 1;
    op->outs[op->n_outs++] = r;
    return r;
}

int mil_add_function_output(struct mil_function *f, mil_ref v, struct err *e)
{
    if (check_refs(f, &v, 1, e))
        return -1;
    return add_ref(&f->program->arena, &f->outputs, &f->n_outputs,
                   &f->cap_outputs, v, e);
}

static const char *const *copy_strings(struct arena *a,
                                       const char *const *strings, size_t n,
                                       struct err *e)
{
    const char **copy = arena_alloc(a, n ? n : 1, sizeof *copy, e);

    for (size_t i = 0; copy && i < n; i++) {
        copy[i] = arena_strdup(a, strings[i], e);
        if (!copy[i])
            return NULL;
    }
    return copy;
}

const struct mil_const *mil_copy_const(struct mil_program *p,
                                       const struct mil_const *c, struct err *e)
{
    struct mil_const *copy = arena_alloc(&p->arena, 1, sizeof *copy, e);
    char text[MIL_TYPE_TEXT_MAX];

    if (!copy)
        return NULL;
    *copy = *c;
    if (c->data)
        return copy;
    if (c->strings) {
        int64_t n = mil_type_elems(&c->type);

        if (n >= 0 && c->type.dtype == MIL_STRING) {
            copy->strings = copy_strings(&p->arena, c->strings, (size_t)n, e);
            return copy->strings ? copy : NULL;
        }
    } else if (c->bytes) {
        int64_t n = mil_type_bytes(&c->type);

        if (n >= 0 && c->type.dtype != MIL_STRING) {
            copy->bytes = arena_memdup(&p->arena, c->bytes, (size_t)n, e);
            return copy->bytes ? copy : NULL;
        }
    }
    mil_type_text(&c->type, text);
    err_set(e, ERR_INPUT, "a constant of type %s has no value of that type",
            text);
    return NULL;
}

mil_ref mil_find_value(const struct mil_function *f, const char *name)
{
    for (size_t i = 1; i < f->n_values; i++) {
        const struct mil_value *v = &f->values[i];

        if (v->kind != MIL_V_LITERAL && v->kind != MIL_V_NONE &&
            strcmp(v->name, name) == 0)
            return (mil_ref)i;
    }
    return 0;
}

const struct mil_value *mil_value_among(const struct mil_function *f,
                                        const mil_ref *refs, size_t n,
                                        const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(mil_value(f, refs[i])->name, name))
            return mil_value(f, refs[i]);
    return NULL;
}

const struct mil_const *mil_arg_const(const struct mil_function *f,
                                      const struct mil_op *op, int param)
{
    mil_ref r = mil_arg(op, param);

    return r ? f->values[r].konst : NULL;
}

bool mil_is_identifier(const char *s)
{
    for (size_t i = 0; s[i]; i++) {
        char c = s[i];
        bool letter =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        bool later = (c >= '0' && c <= '9') || c == '@';

        if (!letter && !(i > 0 && later))
            return false;
    }
    return s[0] != '\0';
}
