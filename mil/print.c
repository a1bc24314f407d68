/*
 * Programs as MIL text, in the layout of Apple's compiler: one statement per
 * line, arguments by name, floats in hexadecimal. Floats print exactly, all
 * NaNs alike. Bytes of large constants are never printed.
 */
#include "mil/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mil/text_priv.h"
#include "mil/words_priv.h"

struct print {
    const struct mil_program *p;
    const struct mil_function *f;
    const struct text_options *o;
    struct buf *out;
    bool bare;           /* scalars as int32, not tensor<int32, []> */
    const char *escaped; /* the first string that needed an escape */
    struct err *e;
};

/* ---- types and literals ---- */

static void put_scalar_type(struct print *c, enum mil_dtype d)
{
    buf_puts(c->out, c->bare ? "" : "tensor<");
    buf_puts(c->out, mil_dtype_name(d));
    buf_puts(c->out, c->bare ? "" : ", []>");
}

static void put_type(struct print *c, const struct mil_type *t)
{
    if (t->rank == 0) {
        put_scalar_type(c, t->dtype);
        return;
    }
    buf_puts(c->out, "tensor<");
    buf_puts(c->out, mil_dtype_name(t->dtype));
    buf_puts(c->out, ", [");
    for (int i = 0; i < t->rank; i++) {
        buf_puts(c->out, i ? ", " : "");
        if (t->dims[i] < 0)
            buf_addc(c->out, '?');
        else
            buf_int(c->out, t->dims[i]);
    }
    buf_puts(c->out, "]>");
}

static void put_escape(struct print *c, unsigned char u)
{
    if (u == '"' || u == '\\')
        buf_printf(c->out, "\\%c", u);
    else if (u == '\n')
        buf_puts(c->out, "\\n");
    else if (u == '\t')
        buf_puts(c->out, "\\t");
    else
        buf_printf(c->out, "\\x%02x", u);
}

static void put_string(struct print *c, const char *s)
{
    const char *start = s, *plain = s; /* plain: not written yet */

    buf_addc(c->out, '"');
    for (; *s; s++) {
        unsigned char u = (unsigned char)*s;

        if (u != '"' && u != '\\' && u >= 0x20 && u != 0x7f)
            continue;
        if (!c->escaped)
            c->escaped = start;
        buf_add(c->out, plain, (size_t)(s - plain));
        put_escape(c, u);
        plain = s + 1;
    }
    buf_add(c->out, plain, (size_t)(s - plain));
    buf_addc(c->out, '"');
}

static void put_typed_string(struct print *c, const char *s)
{
    put_scalar_type(c, MIL_STRING);
    buf_addc(c->out, '(');
    put_string(c, s);
    buf_addc(c->out, ')');
}

/* 0x1.8p+3: normalised, trailing zeros of the fraction dropped. */
static void put_float(struct print *c, double v)
{
    char digits[16];
    uint64_t bits;
    int e, n = 13;

    if (isnan(v)) {
        buf_puts(c->out, "nan");
        return;
    }
    if (signbit(v))
        buf_addc(c->out, '-');
    if (isinf(v)) {
        buf_puts(c->out, "inf");
        return;
    }
    if (v == 0) {
        buf_puts(c->out, "0x0p+0");
        return;
    }
    bits = (uint64_t)ldexp(frexp(fabs(v), &e), 53); /* 1 and 52 bits behind */
    snprintf(digits, sizeof digits, "%013llx",
             (unsigned long long)(bits & (((uint64_t)1 << 52) - 1)));
    while (n > 0 && digits[n - 1] == '0')
        n--;
    digits[n] = '\0';
    buf_printf(c->out, "0x1%s%sp%+d", n ? "." : "", digits, e - 1);
}

static void put_element(struct print *c, const struct mil_const *k, int64_t i)
{
    enum mil_dtype d = k->type.dtype;

    if (d == MIL_STRING)
        put_string(c, k->strings[i]);
    else if (d == MIL_BOOL)
        buf_puts(c->out, mil_const_int(k, i) ? "true" : "false");
    else if (mil_dtype_is_float(d))
        put_float(c, mil_const_double(k, i));
    else if (d == MIL_U64)
        buf_uint(c->out, (uint64_t)mil_const_int(k, i));
    else
        buf_int(c->out, mil_const_int(k, i));
}

/* Elements from *next on, bracketed from axis `axis` inwards. */
static void put_nest(struct print *c, const struct mil_const *k, int axis,
                     int64_t *next)
{
    if (axis == k->type.rank) {
        put_element(c, k, (*next)++);
        return;
    }
    buf_addc(c->out, '[');
    for (int64_t i = 0; i < k->type.dims[axis] && !c->out->failed; i++) {
        buf_puts(c->out, i ? ", " : "");
        put_nest(c, k, axis + 1, next);
    }
    buf_addc(c->out, ']');
}

static void put_place(struct print *c, const struct mil_data *d)
{
    const char *file = NULL;
    uint64_t offset = 0;

    if ((c->o && c->o->blob && c->o->blob(c->o->cookie, d, &file, &offset)) ||
        (text_unread(d, &file, &offset) && file)) {
        buf_puts(c->out, "BLOBFILE(path = ");
        put_typed_string(c, file);
        buf_puts(c->out, ", offset = ");
        put_scalar_type(c, MIL_U64);
        buf_addc(c->out, '(');
        buf_uint(c->out, offset);
        buf_puts(c->out, "))");
        return;
    }
    buf_puts(c->out, "DATA(bytes = ");
    put_scalar_type(c, MIL_U64);
    buf_printf(c->out, "(%llu))", (unsigned long long)d->bytes);
}

static int put_const(struct print *c, const struct mil_const *k)
{
    int64_t next = 0;

    if (!k || mil_type_bytes(&k->type) < 0 ||
        (!k->data && !k->strings && !k->bytes) ||
        (k->strings != NULL) != (k->type.dtype == MIL_STRING))
        return err_set(c->e, ERR_INPUT, "a constant has no value");
    put_type(c, &k->type);
    buf_addc(c->out, '(');
    if (k->data)
        put_place(c, k->data);
    else if (mil_type_elems(&k->type) == 0)
        buf_puts(c->out, "[]"); /* whatever the other dims are */
    else
        put_nest(c, k, 0, &next);
    buf_addc(c->out, ')');
    return 0;
}

/* ---- operations ---- */

static int put_name(struct print *c, const char *name)
{
    if (!name || !mil_is_identifier(name))
        return err_set(c->e, ERR_INPUT, "the name '%s' is no identifier",
                       name ? name : "");
    buf_puts(c->out, name);
    return 0;
}

/* A name of the program's own. */
static int put_own(struct print *c, const char *name)
{
    if (c->o && c->o->strict && name && mil_is_reserved(name))
        return err_set(c->e, ERR_INPUT, "the name '%s' is a word of MIL's text",
                       name);
    return put_name(c, name);
}

static int check_strings(const struct print *c)
{
    if (!c->o || !c->o->strict || !c->escaped)
        return 0;
    return err_set(c->e, ERR_UNSUPPORTED,
                   "the string '%s' needs an escape, which MIL's text is not "
                   "known to have",
                   c->escaped);
}

static int put_ref(struct print *c, mil_ref r)
{
    if (r == 0 || r >= c->f->n_values)
        return err_set(c->e, ERR_INPUT, "value %u of %zu is used", r,
                       c->f->n_values);
    if (mil_value(c->f, r)->kind == MIL_V_LITERAL)
        return put_const(c, mil_value(c->f, r)->konst);
    return put_own(c, mil_value(c->f, r)->name);
}

static int put_arg(struct print *c, const struct mil_named_arg *a)
{
    if (put_name(c, a->name))
        return -1;
    buf_puts(c->out, a->arg.n == 1 ? " = " : " = (");
    for (uint32_t i = 0; i < a->arg.n; i++) {
        buf_puts(c->out, i ? ", " : "");
        if (put_ref(c, a->arg.refs[i]))
            return -1;
    }
    buf_puts(c->out, a->arg.n == 1 ? "" : ")");
    return 0;
}

static int by_arg_name(const void *a, const void *b)
{
    const struct mil_named_arg *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* All arguments of an op by name, sorted (mem_free). */
static struct mil_named_arg *sorted_args(struct print *c,
                                         const struct mil_op *op, uint32_t *n)
{
    const struct mil_op_info *info = mil_op_info(op->code);
    uint32_t cap = op->foreign ? op->foreign->n_args : MIL_MAX_PARAMS;
    struct mil_named_arg *args = mem_alloc(cap, sizeof *args, c->e);

    *n = 0;
    if (!args)
        return NULL;
    if (op->foreign) {
        for (; *n < cap; (*n)++)
            args[*n] = op->foreign->args[*n];
    }
    for (int i = 0; !op->foreign && i < info->n_params; i++) {
        if (op->args[i].n)
            args[(*n)++] = (struct mil_named_arg){ info->params[i].name,
                                                   op->args[i], false };
    }
    if (*n)
        qsort(args, *n, sizeof *args, by_arg_name);
    return args;
}

static int put_args(struct print *c, const struct mil_named_arg *args,
                    uint32_t n)
{
    const char *sep = "";

    buf_addc(c->out, '(');
    for (uint32_t i = 0; i < n; i++) {
        if (args[i].attribute)
            continue;
        buf_puts(c->out, sep);
        if (put_arg(c, &args[i]))
            return -1;
        sep = ", ";
    }
    buf_addc(c->out, ')');
    return 0;
}

/* Attributes by name; `name` and a const's `val` among them. */
static int put_attributes(struct print *c, const struct mil_op *op,
                          const struct mil_named_arg *args, uint32_t n)
{
    bool named = op->name && op->name[0];
    const char *sep = "[";

    for (uint32_t i = 0; i <= n; i++) {
        if (named && (i == n || strcmp(args[i].name, "name") > 0)) {
            buf_puts(c->out, sep);
            buf_puts(c->out, "name = ");
            put_typed_string(c, op->name);
            named = false;
            sep = ", ";
        }
        if (i == n || !args[i].attribute)
            continue;
        buf_puts(c->out, sep);
        if (put_arg(c, &args[i]))
            return -1;
        sep = ", ";
    }
    if (op->code == MIL_OP_const) {
        buf_puts(c->out, sep);
        buf_puts(c->out, "val = ");
        if (op->n_outs != 1 ||
            put_const(c, mil_value(c->f, op->outs[0])->konst))
            return err_set(c->e, ERR_INPUT, "a const has no value");
        sep = ", ";
    }
    buf_puts(c->out, sep[0] == ',' ? "]" : "");
    return 0;
}

static int put_op(struct print *c, const struct mil_op *op)
{
    struct mil_named_arg *args;
    uint32_t n;
    int rc = -1;

    buf_puts(c->out, "            ");
    for (uint32_t i = 0; i < op->n_outs; i++) {
        const struct mil_value *v = mil_value(c->f, op->outs[i]);

        buf_puts(c->out, i ? ", " : "");
        put_type(c, &v->type);
        buf_addc(c->out, ' ');
        if (put_own(c, v->name))
            return -1;
    }
    buf_puts(c->out, op->n_outs ? " = " : "");
    if (put_name(c, mil_op_type(op)))
        return -1;
    args = sorted_args(c, op, &n);
    if (args && put_args(c, args, n) == 0 &&
        put_attributes(c, op, args, n) == 0)
        rc = check_strings(c);
    mem_free(args);
    buf_puts(c->out, ";\n");
    return rc;
}

/* ---- functions ---- */

static const struct mil_shapes *flexible(const struct print *c, mil_ref input)
{
    const struct mil_value *v = mil_value(c->f, input);

    return mil_type_is_static(&v->type) ? NULL : v->shapes;
}

static void put_shape(struct print *c, const char *input,
                      const struct mil_type *t, const char *sep)
{
    buf_printf(c->out, "%s{", sep);
    put_string(c, input);
    buf_puts(c->out, ", [");
    for (int i = 0; i < t->rank; i++)
        buf_printf(c->out, "%s%lld", i ? ", " : "", (long long)t->dims[i]);
    buf_puts(c->out, "]}");
}

static void put_defaults(struct print *c, const mil_ref *inputs)
{
    const char *sep = "{";

    for (size_t i = 0; i < c->f->n_inputs; i++) {
        const struct mil_shapes *s = flexible(c, inputs[i]);

        if (!s)
            continue;
        put_shape(c, mil_value(c->f, inputs[i])->name, &s->first, sep);
        sep = ", ";
    }
    buf_addc(c->out, '}');
}

/* Shape k of every enumerated input: one configuration. */
static void put_configuration(struct print *c, const mil_ref *inputs, int k)
{
    const char *sep = "{";

    for (size_t i = 0; i < c->f->n_inputs; i++) {
        const struct mil_shapes *s = flexible(c, inputs[i]);

        if (!s || k >= s->n)
            continue;
        put_shape(c, mil_value(c->f, inputs[i])->name, &s->list[k], sep);
        sep = ", ";
    }
    buf_addc(c->out, '}');
}

static void put_enumerated(struct print *c, const mil_ref *inputs, int n)
{
    buf_puts(c->out, ", (\"EnumeratedShapes\", {");
    for (int k = 0; k < n; k++) {
        buf_printf(c->out, "%s{\"%08x\", ", k ? ", " : "", (unsigned)k + 1);
        put_configuration(c, inputs, k);
        buf_addc(c->out, '}');
    }
    buf_puts(c->out, "})");
}

static void put_ranges(struct print *c, const mil_ref *inputs)
{
    const char *sep = "";

    buf_puts(c->out, ", (\"RangeDims\", {");
    for (size_t i = 0; i < c->f->n_inputs; i++) {
        const struct mil_shapes *s = flexible(c, inputs[i]);

        if (!s || s->n)
            continue;
        buf_printf(c->out, "%s{", sep);
        put_string(c, mil_value(c->f, inputs[i])->name);
        buf_puts(c->out, ", [");
        for (int d = 0; d < s->first.rank; d++)
            buf_printf(c->out, "%s[%lld, %lld]", d ? ", " : "",
                       (long long)s->low[d], (long long)s->high[d]);
        buf_puts(c->out, "]}");
        sep = ", ";
    }
    buf_puts(c->out, "})");
}

/* Lists or ranges: no reader takes both in one function, and the form of the
 * attribute's type that is known holds one of them. */
static int put_flexible(struct print *c, const mil_ref *inputs)
{
    const char *s = c->bare ? "string" : "tensor<string, []>";
    int n = 0, ranges = 0;

    for (size_t i = 0; i < c->f->n_inputs; i++) {
        const struct mil_shapes *f = flexible(c, inputs[i]);

        if (f && f->n > n)
            n = f->n;
        ranges += f && f->n == 0;
    }
    if (n && ranges)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "some inputs accept listed shapes, others ranges");
    if (n == 0 && ranges == 0)
        return 0;
    buf_printf(c->out,
               " [" TEXT_FLEXIBLE " = tuple<tuple<%s, dict<%s, tensor<int32, "
               "[?]>>>, tuple<%s, dict<%s, ",
               s, s, s, s);
    if (n)
        buf_printf(c->out, "dict<%s, tensor<int32, [?]>>", s);
    else
        buf_puts(c->out, "list<tensor<int32, [2]>, ?>");
    buf_puts(c->out, ">>>(((\"DefaultShapes\", ");
    put_defaults(c, inputs);
    buf_addc(c->out, ')');
    if (n)
        put_enumerated(c, inputs, n);
    else
        put_ranges(c, inputs);
    buf_puts(c->out, "))]");
    return 0;
}

/* Sorting by name without a global: the pairs carry their key. */
struct keyed {
    const char *name;
    mil_ref ref;
    const struct mil_function *f;
};

static int by_name(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static int sorted_inputs(struct print *c, mil_ref *inputs)
{
    size_t n = c->f->n_inputs;
    struct keyed *k = mem_alloc(n, sizeof *k, c->e);

    if (!k)
        return -1;
    for (size_t i = 0; i < n; i++) {
        k[i].ref = c->f->inputs[i];
        k[i].name = mil_value(c->f, k[i].ref)->name;
    }
    if (n && c->o && c->o->sorted)
        qsort(k, n, sizeof *k, by_name);
    for (size_t i = 0; i < n; i++)
        inputs[i] = k[i].ref;
    mem_free(k);
    return 0;
}

static int put_inputs(struct print *c, const mil_ref *inputs)
{
    for (size_t i = 0; i < c->f->n_inputs; i++) {
        const struct mil_value *v = mil_value(c->f, inputs[i]);

        buf_puts(c->out, i ? ", " : "");
        if (v->kind == MIL_V_STATE)
            buf_puts(c->out, "state<");
        put_type(c, &v->type);
        buf_puts(c->out, v->kind == MIL_V_STATE ? "> " : " ");
        if (put_own(c, v->name))
            return -1;
    }
    return 0;
}

static int put_header(struct print *c)
{
    int n = mil_opset_number(c->f->opset), rc = -1;
    mil_ref *inputs = mem_alloc(c->f->n_inputs, sizeof *inputs, c->e);

    if (!inputs)
        return -1;
    buf_puts(c->out, "    func ");
    if (put_own(c, c->f->name))
        goto out;
    buf_addc(c->out, '<');
    if (n)
        buf_printf(c->out, "ios%d", n + 10);
    else if (put_name(c, c->f->opset))
        goto out;
    buf_puts(c->out, ">(");
    if (sorted_inputs(c, inputs) || put_inputs(c, inputs))
        goto out;
    buf_addc(c->out, ')');
    if (put_flexible(c, inputs))
        goto out;
    buf_puts(c->out, " {\n");
    rc = 0;
out:
    mem_free(inputs);
    return rc;
}

static int put_function(struct print *c, const struct mil_function *f)
{
    c->f = f;
    if (put_header(c))
        return -1;
    for (size_t i = 0; i < f->n_ops; i++) {
        if (put_op(c, &f->ops[i]))
            return err_in(c->e, "%s '%s'", mil_op_type(&f->ops[i]),
                          f->ops[i].name);
    }
    buf_puts(c->out, "        } -> (");
    for (size_t i = 0; i < f->n_outputs; i++) {
        buf_puts(c->out, i ? ", " : "");
        if (put_ref(c, f->outputs[i]))
            return -1;
    }
    buf_puts(c->out, ");\n");
    return 0;
}

/* ---- the program ---- */

/* The older text form: only where neither version nor opset says 9. */
static bool is_older(const struct mil_program *p)
{
    for (size_t i = 0; i < p->n_functions; i++) {
        int n = mil_opset_number(p->functions[i]->opset);

        if (n < 1 || n > 7)
            return false;
    }
    return p->n_functions > 0 && p->spec_version < 9;
}

static int by_key(const void *a, const void *b)
{
    const struct mil_pair *x = a, *y = b;

    return strcmp(x->key, y->key);
}

static bool replaced(const struct text_options *o, const char *key)
{
    for (size_t i = 0; o && i < o->n_build_info; i++) {
        if (strcmp(o->build_info[i].key, key) == 0)
            return true;
    }
    return false;
}

static int put_build_info(struct print *c)
{
    const char *s = c->bare ? "string" : "tensor<string, []>";
    size_t more = c->o ? c->o->n_build_info : 0, n = 0;
    struct mil_pair *pairs =
        mem_alloc(c->p->n_build_info + more, sizeof *pairs, c->e);

    if (!pairs)
        return -1;
    for (size_t i = 0; i < c->p->n_build_info; i++) {
        if (!replaced(c->o, c->p->build_info[i].key))
            pairs[n++] = c->p->build_info[i];
    }
    for (size_t i = 0; i < more; i++)
        pairs[n++] = c->o->build_info[i];
    if (n) {
        qsort(pairs, n, sizeof *pairs, by_key);
        buf_printf(c->out, "[buildInfo = dict<%s, %s>({", s, s);
        for (size_t i = 0; i < n; i++) {
            buf_puts(c->out, i ? ", {" : "{");
            put_string(c, pairs[i].key);
            buf_puts(c->out, ", ");
            put_string(c, pairs[i].value);
            buf_addc(c->out, '}');
        }
        buf_puts(c->out, "})]\n");
    }
    mem_free(pairs);
    return 0;
}

static int put_functions(struct print *c)
{
    size_t n = c->p->n_functions;
    struct keyed *k = mem_alloc(n, sizeof *k, c->e);
    int rc = 0;

    if (!k)
        return -1;
    for (size_t i = 0; i < n; i++) {
        k[i].f = c->p->functions[i];
        k[i].name = k[i].f->name;
    }
    if (n && c->o && c->o->sorted)
        qsort(k, n, sizeof *k, by_name);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (c->o && c->o->function && strcmp(c->o->function, k[i].name) != 0)
            continue;
        if (put_function(c, k[i].f))
            rc = err_in(c->e, "function '%s'", k[i].name);
    }
    mem_free(k);
    return rc;
}

int text_print(const struct mil_program *p, const struct text_options *o,
               struct buf *out, struct err *e)
{
    struct print c = { .p = p, .o = o, .out = out, .e = e };

    if (o && o->function && !mil_program_find(p, o->function))
        return err_set(e, ERR_INPUT, "there is no function '%s'", o->function);
    c.bare = !is_older(p);
    buf_puts(out, c.bare ? "program(1.3)\n" : "program(1.0)\n");
    if (put_build_info(&c))
        return -1;
    buf_puts(out, "{\n");
    if (put_functions(&c))
        return -1;
    buf_puts(out, "}");
    return buf_ok(out, e);
}
