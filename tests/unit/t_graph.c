/*
 * Surgery on programs.
 */
#include "t_graph.h"

#include <criterion/criterion.h>
#include <string.h>

#include "converter/base/num.h"

static struct err err;

struct mil_op *tg_op(struct mil_function *f, enum mil_opcode code,
                     const char *scope, int nth)
{
    size_t n = f->n_ops;
    int left = nth < 0 ? -nth - 1 : nth;

    for (size_t i = 0; i < n; i++) {
        struct mil_op *op = &f->ops[nth < 0 ? n - 1 - i : i];
        const char *name =
            op->n_outs ? mil_value(f, op->outs[0])->name : op->name;

        if (op->code == code && !strncmp(name, scope, strlen(scope)) &&
            left-- == 0)
            return op;
    }
    cr_assert_fail("function '%s' has no %s number %d in '%s'", f->name,
                   mil_op_info(code)->name, nth, scope);
    return NULL;
}

mil_ref tg_named(const struct mil_function *f, const char *name)
{
    mil_ref v = mil_find_value(f, name);

    cr_assert(v, "function '%s' has no value '%s'", f->name, name);
    return v;
}

struct mil_op *tg_maker(const struct mil_function *f, mil_ref v)
{
    int op = mil_value(f, v)->op;

    cr_assert(op >= 0 && (size_t)op < f->n_ops);
    return &f->ops[op];
}

size_t tg_index(const struct mil_function *f, const struct mil_op *op)
{
    return (size_t)(op - f->ops);
}

static int param_of(const struct mil_op *op, const char *param)
{
    int p = mil_param_index(mil_op_info(op->code), param);

    cr_assert(p >= 0, "%s has no parameter '%s'", mil_op_info(op->code)->name,
              param);
    return p;
}

mil_ref tg_arg(const struct mil_op *op, const char *param, int i)
{
    const struct mil_arg *a = &op->args[param_of(op, param)];

    cr_assert((uint32_t)i < a->n);
    return a->refs[i];
}

void tg_set(struct mil_function *f, struct mil_op *op, const char *param, int i,
            mil_ref v)
{
    int p = param_of(op, param);
    uint32_t n = op->args[p].n ? op->args[p].n : 1;
    mil_ref refs[16];

    cr_assert(n <= 16 && (uint32_t)i < n);
    for (uint32_t k = 0; k < op->args[p].n; k++)
        refs[k] = op->args[p].refs[k];
    refs[i] = v;
    cr_assert_eq(mil_set_arg(f, op, p, refs, n, &err), 0, "%s", err.text);
}

static mil_ref literal(struct mil_function *f, const struct mil_const *c)
{
    mil_ref v = mil_add_value(f, MIL_V_LITERAL, NULL, &c->type, &err);

    cr_assert(v, "%s", err.text);
    mil_value(f, v)->konst = mil_copy_const(f->program, c, &err);
    return v;
}

mil_ref tg_ints(struct mil_function *f, int rank, int64_t n, const int32_t *v)
{
    struct mil_const c = { .type = mil_type_make(MIL_I32, rank, &n),
                           .bytes = v };

    return literal(f, &c);
}

mil_ref tg_halfs(struct mil_function *f, int rank, const int64_t *dims,
                 const float *v)
{
    struct mil_const c = { .type = mil_type_make(MIL_F16, rank, dims) };
    size_t n = (size_t)mil_type_elems(&c.type);
    f16_t h[1024];

    cr_assert(n <= 1024);
    num_f32_to_f16(h, v, n);
    c.bytes = h;
    return literal(f, &c);
}

mil_ref tg_half(struct mil_function *f, float v)
{
    return tg_halfs(f, 0, NULL, &v);
}

/* Results know their op by number. */
static void renumber(struct mil_function *f)
{
    for (size_t i = 0; i < f->n_ops; i++)
        for (uint32_t k = 0; k < f->ops[i].n_outs; k++)
            mil_value(f, f->ops[i].outs[k])->op = (int)i;
}

mil_ref tg_insert(struct mil_function *f, size_t at, enum mil_opcode code,
                  const char *name, int n_outs)
{
    struct mil_type none = mil_scalar(MIL_F16);
    struct mil_op *op = mil_add_op(f, code, name, &err), added;
    mil_ref out = 0;

    cr_assert(op && at < f->n_ops, "%s", err.text);
    if (n_outs)
        out = mil_add_output(f, op, name, &none, &err);
    added = f->ops[f->n_ops - 1];
    memmove(f->ops + at + 1, f->ops + at,
            (f->n_ops - 1 - at) * sizeof(*f->ops));
    f->ops[at] = added;
    renumber(f);
    return out;
}

void tg_remove(struct mil_function *f, struct mil_op *op)
{
    size_t at = tg_index(f, op);

    memmove(op, op + 1, (f->n_ops - 1 - at) * sizeof(*op));
    f->n_ops--;
    renumber(f);
}

void tg_replace(struct mil_function *f, mil_ref was, mil_ref now)
{
    int from = mil_value(f, now)->op;

    for (size_t i = (size_t)(from + 1); i < f->n_ops; i++) {
        struct mil_op *op = &f->ops[i];
        const struct mil_op_info *info = mil_op_info(op->code);

        for (int p = 0; p < info->n_params; p++)
            for (uint32_t k = 0; k < op->args[p].n; k++)
                if (op->args[p].refs[k] == was)
                    tg_set(f, op, info->params[p].name, (int)k, now);
    }
}

void tg_infer(struct mil_function *f)
{
    for (size_t i = 0; i < f->n_ops; i++) {
        struct mil_op *op = &f->ops[i];
        struct mil_type t[4];

        if (op->n_outs == 0 || op->code == MIL_OP_const)
            continue;
        cr_assert(op->n_outs <= 4);
        cr_assert_eq(mil_infer_op(f, op, t, op->n_outs, &err), 0, "%s",
                     err.text);
        for (uint32_t k = 0; k < op->n_outs; k++)
            mil_value(f, op->outs[k])->type = t[k];
    }
}

void *tg_bytes(const struct mil_function *f, const struct mil_const *c,
               size_t *n)
{
    void *p;

    *n = (size_t)mil_type_bytes(&c->type);
    p = arena_alloc(&f->program->arena, *n, 1, &err);
    cr_assert(p);
    if (c->data)
        cr_assert_eq(c->data->read(c->data->cookie, 0, p, *n, &err), 0, "%s",
                     err.text);
    else
        memcpy(p, c->bytes, *n);
    return p;
}

const struct mil_const *tg_const(const struct mil_function *f,
                                 const struct mil_const *like,
                                 const void *bytes)
{
    struct arena *a = &f->program->arena;
    struct mil_const c = { .type = like->type };
    struct mil_data *d;

    if (like->data) {
        d = arena_memdup(a, like->data, sizeof(*d), &err);
        cr_assert(d);
        d->type = like->type;
        d->bytes = (uint64_t)mil_type_bytes(&like->type);
        d->read = mil_data_read_memory;
        d->cookie = (void *)(uintptr_t)bytes;
        c.data = d;
    } else {
        c.bytes = bytes;
    }
    return mil_copy_const(f->program, &c, &err);
}

float *tg_floats(const struct mil_function *f, mil_ref v, size_t *n)
{
    const struct mil_const *c = mil_value(f, v)->konst;
    void *h;
    float *x;

    cr_assert(c && c->type.dtype == MIL_F16, "'%s' is no fp16 constant",
              mil_value(f, v)->name);
    h = tg_bytes(f, c, n);
    *n /= sizeof(f16_t);
    x = arena_alloc(&f->program->arena, *n, sizeof(*x), &err);
    cr_assert(x);
    num_f16_to_f32(x, h, *n);
    return x;
}

void tg_put(struct mil_function *f, mil_ref v, const float *x)
{
    const struct mil_const *c = mil_value(f, v)->konst;
    size_t n = (size_t)mil_type_elems(&c->type);
    f16_t *h = arena_alloc(&f->program->arena, n, sizeof(*h), &err);

    cr_assert(h);
    num_f32_to_f16(h, x, n);
    mil_value(f, v)->konst = tg_const(f, c, h);
}
