/*
 * Op cases: read, made into a program, run, compared.
 */
#include "t_op.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/json.h"
#include "converter/base/num.h"
#include "mil/run/run.h"

#define MAX_ELEMS (1 << 20)

static int read_value(const struct js_node *n, struct t_op_value *v,
                      struct err *e)
{
    const char *dtype;
    const struct js_node *d;
    int64_t i = 0, x;

    memset(v, 0, sizeof(*v));
    if (js_string(js_get(n, "string"), &v->text)) {
        v->type = mil_scalar(MIL_STRING);
        return 0;
    }
    if (!js_string(js_get(n, "dtype"), &dtype) ||
        !mil_dtype_by_name(dtype, &v->type.dtype))
        return err_set(e, ERR_INPUT, "a value without dtype");
    for (d = js_first(js_get(n, "shape")); d; d = js_next(d)) {
        if (v->type.rank == MIL_MAX_RANK || !js_integral(d, &x))
            return err_set(e, ERR_INPUT, "a bad shape");
        v->type.dims[v->type.rank++] = x;
    }
    v->elems = mil_type_elems(&v->type);
    if (v->elems < 0 || v->elems > MAX_ELEMS)
        return err_set(e, ERR_INPUT, "too many elements");
    v->bits = mem_alloc((size_t)v->elems, sizeof(*v->bits), e);
    if (!v->bits)
        return -1;
    for (d = js_first(js_get(n, "bits")); d && i < v->elems; d = js_next(d)) {
        if (!js_integral(d, &x))
            return err_set(e, ERR_INPUT, "a bad element");
        v->bits[i++] = (uint32_t)x;
    }
    return d || i != v->elems ? err_set(e, ERR_INPUT, "a bad element count")
                              : 0;
}

static bool listed(const struct js_node *list, const char *name)
{
    const char *s;

    for (const struct js_node *n = js_first(list); n; n = js_next(n))
        if (js_string(n, &s) && strcmp(s, name) == 0)
            return true;
    return false;
}

static int read_arg(const struct js_node *n, const struct js_node *run_time,
                    struct t_op_case *c, struct err *e)
{
    const struct mil_op_info *info = mil_op_info(c->code);
    const struct js_node *v = js_kind(n) == JS_ARRAY ? js_first(n) : n;

    for (; v; v = js_kind(n) == JS_ARRAY ? js_next(v) : NULL) {
        struct t_op_arg *a = &c->args[c->n_args];

        if (c->n_args == T_OP_MAX_ARGS)
            return err_set(e, ERR_INPUT, "too many arguments");
        a->param = mil_param_index(info, js_key(n));
        if (a->param < 0)
            return err_set(e, ERR_INPUT, "no parameter '%s'", js_key(n));
        a->run_time = listed(run_time, js_key(n));
        if (read_value(v, &a->v, e))
            return -1;
        c->n_args++;
    }
    return 0;
}

void t_op_free(struct t_op_case *c)
{
    for (int i = 0; i < c->n_args; i++)
        mem_free(c->args[i].v.bits);
    for (int i = 0; i < c->n_outs; i++)
        mem_free(c->outs[i].bits);
}

int t_op_read(const struct js_node *n, struct t_op_case *c, struct err *e)
{
    const char *op;
    const struct js_node *a;

    memset(c, 0, sizeof(*c));
    if (!js_string(js_get(n, "name"), &c->name) ||
        !js_string(js_get(n, "op"), &op) || !mil_op_by_name(op) ||
        !js_double(js_get(n, "rtol"), &c->rtol) ||
        !js_double(js_get(n, "atol"), &c->atol))
        return err_set(e, ERR_INPUT, "a case without name, op or tolerance");
    c->code = mil_op_by_name(op)->code;
    for (a = js_first(js_get(n, "args")); a; a = js_next(a))
        if (read_arg(a, js_get(n, "run_time"), c, e))
            return err_in(e, "%s", c->name);
    for (a = js_first(js_get(n, "outs")); a && c->n_outs < T_OP_MAX_ARGS;
         a = js_next(a))
        if (read_value(a, &c->outs[c->n_outs++], e))
            return err_in(e, "%s", c->name);
    return 0;
}

/* ---- the program ---- */

/* The type that a value has in this run: floats become halves. */
static struct mil_type typed(const struct t_op_value *v, bool half)
{
    struct mil_type t = v->type;

    if (half && t.dtype == MIL_F32)
        t.dtype = MIL_F16;
    return t;
}

static mil_ref make_const(struct mil_function *f, const struct t_op_value *v,
                          bool half, int serial, struct err *e)
{
    struct mil_const c = { .type = typed(v, half) };
    const struct mil_const *kept;
    unsigned bits = mil_dtype_bits(c.type.dtype), size = bits / 8;
    unsigned char *bytes = mem_zalloc((size_t)v->elems, 4, e);
    struct mil_op *op;
    char name[32];
    mil_ref r = 0;

    if (!bytes)
        return 0;
    for (int64_t i = 0; i < v->elems; i++) {
        uint32_t u = v->bits[i];
        float x;

        memcpy(&x, &u, sizeof(x));
        if (c.type.dtype == MIL_F16)
            u = f32_to_f16(x);
        for (unsigned b = 0; b < bits && size == 0; b++) {
            uint64_t at = (uint64_t)i * bits + b;

            bytes[at / 8] |= (unsigned char)((u >> b & 1) << at % 8);
        }
        for (unsigned b = 0; b < size; b++)
            bytes[i * size + b] = (unsigned char)(u >> (8 * b));
    }
    c.bytes = bytes;
    if (v->text)
        c.strings = &v->text, c.bytes = NULL;
    snprintf(name, sizeof(name), "c%d", serial);
    kept = mil_copy_const(f->program, &c, e);
    op = kept ? mil_add_op(f, MIL_OP_const, name, e) : NULL;
    r = op ? mil_add_output(f, op, name, &c.type, e) : 0;
    if (r)
        mil_value(f, r)->konst = kept;
    mem_free(bytes);
    return r;
}

static int make_args(struct mil_function *f, struct t_op_case *c, bool half,
                     struct err *e)
{
    for (int i = 0; i < c->n_args; i++) {
        struct t_op_arg *a = &c->args[i];
        struct mil_type t = typed(&a->v, half);
        char name[32];

        snprintf(name, sizeof(name), "in%d", i);
        a->ref = a->run_time ? mil_add_value(f, MIL_V_INPUT, name, &t, e)
                             : make_const(f, &a->v, half, i, e);
        if (!a->ref)
            return -1;
    }
    return 0;
}

static int make_op(struct mil_function *f, struct t_op_case *c, struct err *e)
{
    struct mil_op *op = mil_add_op(f, c->code, "case", e);
    struct mil_type types[T_OP_MAX_ARGS];

    if (!op)
        return -1;
    for (int i = 0; i < c->n_args;) {
        mil_ref refs[T_OP_MAX_ARGS];
        uint32_t n = 0;
        int param = c->args[i].param;

        for (; i < c->n_args && c->args[i].param == param; i++)
            refs[n++] = c->args[i].ref;
        if (mil_set_arg(f, op, param, refs, n, e))
            return -1;
    }
    if (mil_infer_op(f, op, types, (uint32_t)c->n_outs, e))
        return -1;
    for (int i = 0; i < c->n_outs; i++) {
        char name[32];
        mil_ref r;

        snprintf(name, sizeof(name), "out%d", i);
        r = mil_add_output(f, op, name, &types[i], e);
        if (!r || mil_add_function_output(f, r, e))
            return -1;
    }
    return 0;
}

/* ---- comparison ---- */

static int differs(struct err *e, const struct t_op_case *c, bool half,
                   const char *level, int n, int64_t i, double got, double want)
{
    return err_set(e, ERR_MISMATCH,
                   "%s (%s, %s): result %d[%lld] is %.9g, expected %.9g",
                   c->name, half ? "fp16" : "f32", level, n, (long long)i, got,
                   want);
}

static bool close_to(const struct t_op_case *c, float got, float want,
                     bool half)
{
    double tol = c->atol + c->rtol * fabs((double)want);

    if (half) {
        want = f16_to_f32(f32_to_f16(want));
        /* one unit in the last place of a half, and of its subnormals */
        tol += ldexp(fabs((double)want), -10) + ldexp(1, -24);
    }
    if (got == want)
        return true;
    if (!(got == got) || !(want == want))
        return !(got == got) && !(want == want);
    return fabs((double)got - want) <= tol;
}

static int compare(const struct t_op_case *c, const struct run_tensor *t, int n,
                   bool half, const char *level, struct err *e)
{
    const struct t_op_value *want = &c->outs[n];
    struct mil_type type = typed(want, half);
    char a[MIL_TYPE_TEXT_MAX], b[MIL_TYPE_TEXT_MAX];

    if (!mil_type_equal(&type, &t->type)) {
        mil_type_text(&type, a);
        mil_type_text(&t->type, b);
        return err_set(e, ERR_MISMATCH, "%s: result %d is %s, expected %s",
                       c->name, n, b, a);
    }
    for (int64_t i = 0; i < want->elems; i++) {
        float y;
        int32_t w;

        memcpy(&y, &want->bits[i], sizeof(y));
        memcpy(&w, &want->bits[i], sizeof(w));
        if (mil_dtype_is_float(type.dtype)) {
            float x = ((const float *)t->data)[i];

            if (!close_to(c, x, y, half))
                return differs(e, c, half, level, n, i, (double)x, (double)y);
        } else if (((const int32_t *)t->data)[i] != w) {
            return differs(e, c, half, level, n, i,
                           ((const int32_t *)t->data)[i], w);
        }
    }
    return 0;
}

/* The results of the first level against those of the others: equal bits,
 * except that a NaN is a NaN. */
static int same_bits(const struct t_op_case *c, const struct run_tensor *t,
                     int n, bool half, const char *level, uint32_t **keep,
                     struct err *e)
{
    int64_t elems = c->outs[n].elems;

    if (!keep[n]) {
        keep[n] = mem_alloc((size_t)elems, sizeof(uint32_t), e);
        if (!keep[n])
            return -1;
        memcpy(keep[n], t->data, (size_t)elems * sizeof(uint32_t));
        return 0;
    }
    for (int64_t i = 0; i < elems; i++) {
        uint32_t u;
        float x, y;

        memcpy(&u, (const uint32_t *)t->data + i, sizeof(u));
        memcpy(&x, &u, sizeof(x));
        memcpy(&y, &keep[n][i], sizeof(y));
        if (u != keep[n][i] && (mil_dtype_is_int(t->type.dtype) ||
                                t->type.dtype == MIL_BOOL || x == x || y == y))
            return differs(e, c, half, level, n, i, (double)x, (double)y);
    }
    return 0;
}

/* ---- one case ---- */

static int run_level(struct t_op_case *c, const struct mil_program *p,
                     bool half, const char *level, uint32_t **keep,
                     struct err *e)
{
    struct run_options o = { .profile = half ? RUN_FP16 : RUN_F32 };
    struct run_tensor in[T_OP_MAX_ARGS], out[T_OP_MAX_ARGS];
    struct run_model *m = run_open(p, &o, e);
    size_t n_in = 0, n_out = 0;
    int rc = 0;

    if (!m)
        return -1;
    for (int i = 0; i < c->n_args; i++) {
        struct t_op_arg *a = &c->args[i];

        if (!a->run_time)
            continue;
        in[n_in].name = mil_value(p->functions[0], a->ref)->name;
        in[n_in].type = typed(&a->v, half);
        in[n_in++].data = a->v.bits;
    }
    rc = run_call(m, NULL, NULL, in, n_in, out, T_OP_MAX_ARGS, &n_out, e);
    for (int i = 0; i < (int)n_out && rc == 0; i++)
        if (compare(c, &out[i], i, half, level, e) ||
            same_bits(c, &out[i], i, half, level, keep, e))
            rc = -1;
    run_close(m);
    return rc;
}

static int run_profile(struct t_op_case *c, bool half, struct err *e)
{
    static const char *const levels[] = { "scalar", "auto" };
    struct mil_program *p = mil_program_new(e);
    struct mil_function *f = p ? mil_program_add(p, "main", e) : NULL;
    uint32_t *keep[T_OP_MAX_ARGS] = { NULL };
    int rc = -1;

    if (f && make_args(f, c, half, e) == 0 && make_op(f, c, e) == 0)
        rc = 0;
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]) && rc == 0; i++) {
        cpu_mask(i == 0 ? 0u : ~0u);
        rc = run_level(c, p, half, levels[i], keep, e);
    }
    cpu_mask(~0u);
    for (int i = 0; i < T_OP_MAX_ARGS; i++)
        mem_free(keep[i]);
    mil_program_free(p);
    return rc;
}

int t_op_run(struct t_op_case *c, struct err *e)
{
    if (run_profile(c, false, e) || run_profile(c, true, e))
        return e->code == ERR_MISMATCH ? -1 : err_in(e, "%s", c->name);
    return 0;
}
