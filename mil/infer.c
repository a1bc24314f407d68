/*
 * Type inference: the checks that follow from the op table (presence,
 * classes, ranks, shared dtypes, const-ness), access to arguments, and the
 * dispatch to one function per row. The rows' own rules are in infer_*.c.
 */
#include "mil/infer_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int (*const rows[MIL_OP_COUNT])(struct infer *) = {
#define OP(id, since, outputs, flags) [MIL_OP_##id] = infer_##id,
#include "mil/ops.def"
};

/* ---- errors ---- */

static const char *label(const struct infer *c)
{
    const struct mil_op *op = c->op;

    if (op->name && op->name[0])
        return op->name;
    if (op->n_outs)
        return c->f->values[op->outs[0]].name;
    return "?";
}

static int fail_v(const struct infer *c, const char *fmt, va_list ap)
{
    char text[1024];

    vsnprintf(text, sizeof text, fmt, ap);
    return err_set(c->e, ERR_INPUT, "%s '%s': %s", mil_op_type(c->op), label(c),
                   text);
}

int infer_fail(const struct infer *c, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_v(c, fmt, ap);
    va_end(ap);
    return -1;
}

int infer_bad(const struct infer *c, const char *param, const char *fmt, ...)
{
    const struct mil_type *t = infer_type(c, param);
    char text[1024], type[MIL_TYPE_TEXT_MAX] = "absent";
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (t)
        mil_type_text(t, type);
    return infer_fail(c, "parameter '%s' (%s) %s", param, type, text);
}

/* ---- arguments ---- */

static int param_of(const struct infer *c, const char *param)
{
    int i = mil_param_index(c->info, param);

    BUG_UNLESS(i >= 0);
    return i;
}

mil_ref infer_ref(const struct infer *c, const char *param)
{
    return mil_arg(c->op, param_of(c, param));
}

const struct mil_type *infer_type(const struct infer *c, const char *param)
{
    mil_ref r = infer_ref(c, param);

    return r ? &c->f->values[r].type : NULL;
}

const struct mil_arg *infer_list(const struct infer *c, const char *param)
{
    return &c->op->args[param_of(c, param)];
}

const struct mil_type *infer_item(const struct infer *c,
                                  const struct mil_arg *list, uint32_t i)
{
    return &c->f->values[list->refs[i]].type;
}

/* Integers of a constant, wherever its bytes lie. */
static int read_ints(const struct infer *c, const struct mil_const *k,
                     int64_t first, int64_t *v, int64_t n)
{
    unsigned char bytes[512];
    struct mil_const piece = { .type = k->type };
    unsigned size = mil_dtype_bits(k->type.dtype) / 8;
    int64_t step;

    if (k->bytes) {
        for (int64_t i = 0; i < n; i++)
            v[i] = mil_const_int(k, first + i);
        return 0;
    }
    if (!k->data || size == 0)
        return infer_fail(c, "a constant of %s holds no integers",
                          mil_dtype_name(k->type.dtype));
    step = (int64_t)(sizeof bytes / size);
    for (int64_t i = 0; i < n; i += step) {
        int64_t m = n - i < step ? n - i : step;

        if (k->data->read(k->data->cookie, (uint64_t)(first + i) * size, bytes,
                          (size_t)m * size, c->e))
            return -1;
        piece.type.rank = 1;
        piece.type.dims[0] = m;
        piece.bytes = bytes;
        for (int64_t j = 0; j < m; j++)
            v[i + j] = mil_const_int(&piece, j);
    }
    return 0;
}

int infer_get_ints(const struct infer *c, const char *param, int want,
                   struct infer_ints *out)
{
    const struct mil_type *t = infer_type(c, param);
    const struct mil_const *k = mil_arg_const(c->f, c->op, param_of(c, param));

    memset(out, 0, sizeof *out);
    if (!t)
        return 0;
    out->present = true;
    if (t->rank != 1)
        return infer_bad(c, param, "must have rank 1");
    if (t->dims[0] < 0 && want < 0)
        return infer_bad(c, param, "has an unknown number of elements");
    if (want >= 0 && t->dims[0] >= 0 && t->dims[0] != want)
        return infer_bad(c, param, "must have %d elements", want);
    if (t->dims[0] > INFER_MAX_INTS || want > INFER_MAX_INTS)
        return infer_bad(c, param, "may have at most %d elements",
                         INFER_MAX_INTS);
    out->n = t->dims[0] < 0 ? want : (int)t->dims[0];
    if (!k)
        return 0;
    out->known = true;
    return read_ints(c, k, 0, out->v, out->n);
}

int infer_get_long_ints(const struct infer *c, const char *param, int64_t **out,
                        int64_t *n)
{
    const struct mil_type *t = infer_type(c, param);
    const struct mil_const *k = mil_arg_const(c->f, c->op, param_of(c, param));

    if (!t || !k || t->rank != 1 || t->dims[0] < 0 || t->dims[0] > 1 << 20)
        return infer_bad(c, param, "must be a constant vector");
    *n = t->dims[0];
    *out = mem_alloc((size_t)*n, sizeof **out, c->e);
    if (!*out)
        return -1;
    if (read_ints(c, k, 0, *out, *n)) {
        mem_free(*out);
        *out = NULL;
        return -1;
    }
    return 0;
}

int infer_get_int(const struct infer *c, const char *param, int64_t fallback,
                  int64_t *out)
{
    const struct mil_const *k = mil_arg_const(c->f, c->op, param_of(c, param));

    *out = fallback;
    if (!infer_type(c, param))
        return 0;
    if (!k)
        return infer_bad(c, param, "must be constant");
    return read_ints(c, k, 0, out, 1);
}

int infer_get_bool(const struct infer *c, const char *param, bool fallback,
                   bool *out)
{
    int64_t v;

    if (infer_get_int(c, param, fallback, &v))
        return -1;
    *out = v != 0;
    return 0;
}

int infer_get_string(const struct infer *c, const char *param,
                     const char *fallback, const char **out)
{
    const struct mil_const *k = mil_arg_const(c->f, c->op, param_of(c, param));

    *out = fallback;
    if (!infer_type(c, param))
        return 0;
    if (!k || !k->strings || k->type.rank != 0)
        return infer_bad(c, param, "must be a constant string");
    *out = k->strings[0];
    return 0;
}

int infer_get_choice(const struct infer *c, const char *param,
                     const char *fallback, const char *const *allowed, int *out)
{
    char list[256];
    const char *s;
    size_t n = 0;

    if (infer_get_string(c, param, fallback, &s))
        return -1;
    list[0] = '\0';
    for (int i = 0; allowed[i]; i++) {
        int k;

        if (strcmp(s, allowed[i]) == 0) {
            *out = i;
            return 0;
        }
        k = snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "",
                     allowed[i]);
        n += (size_t)k < sizeof list - n ? (size_t)k : 0;
    }
    return infer_bad(c, param, "is '%.64s', allowed: %s", s, list);
}

int infer_get_axis(const struct infer *c, const char *param, int64_t fallback,
                   int rank, int *out)
{
    int64_t v;

    if (infer_get_int(c, param, fallback, &v))
        return -1;
    if (v < -rank || v >= rank)
        return infer_bad(c, param, "is %lld, allowed: -%d to %d", (long long)v,
                         rank, rank - 1);
    *out = (int)(v < 0 ? v + rank : v);
    return 0;
}

int infer_get_axes(const struct infer *c, const char *param, int rank, bool all,
                   unsigned *mask)
{
    struct infer_ints a;

    *mask = 0;
    if (infer_get_ints(c, param, -1, &a))
        return -1;
    if (!a.present) {
        *mask = all ? (1u << rank) - 1 : 0;
        return 0;
    }
    if (!a.known)
        return infer_bad(c, param, "must be constant");
    for (int i = 0; i < a.n; i++) {
        unsigned bit;

        if (a.v[i] < -rank || a.v[i] >= rank)
            return infer_bad(c, param, "holds axis %lld, allowed: -%d to %d",
                             (long long)a.v[i], rank, rank - 1);
        bit = 1u << (a.v[i] < 0 ? a.v[i] + rank : a.v[i]);
        if (*mask & bit)
            return infer_bad(c, param, "holds axis %lld twice",
                             (long long)a.v[i]);
        *mask |= bit;
    }
    return 0;
}

/* ---- shapes ---- */

bool infer_unify(int64_t a, int64_t b, int64_t *out)
{
    if (a >= 0 && b >= 0 && a != b)
        return false;
    *out = a < 0 ? b : a;
    return true;
}

bool infer_broadcast(const struct mil_type *a, const struct mil_type *b,
                     struct mil_type *out)
{
    int rank = a->rank > b->rank ? a->rank : b->rank;

    out->rank = rank;
    for (int i = 0; i < rank; i++) {
        int ia = i - (rank - a->rank), ib = i - (rank - b->rank);
        int64_t da = ia < 0 ? 1 : a->dims[ia];
        int64_t db = ib < 0 ? 1 : b->dims[ib];

        if (da == 1)
            out->dims[i] = db;
        else if (db == 1)
            out->dims[i] = da;
        else if (!infer_unify(da, db, &out->dims[i]))
            return false;
    }
    return true;
}

int64_t infer_dim_mul(int64_t a, int64_t b)
{
    uint64_t p;

    if (a == 0 || b == 0)
        return 0;
    if (a < 0 || b < 0)
        return MIL_DIM_UNKNOWN;
    if (!mem_mul((uint64_t)a, (uint64_t)b, &p) || p > (uint64_t)1 << 62)
        return -2;
    return (int64_t)p;
}

/* ---- checks that follow from the table ---- */

#define BIT(d) (1u << MIL_##d)
static const unsigned classes[] = {
    [MIL_T_ANY] = ~0u,
    [MIL_T_F] = BIT(F16) | BIT(F32),
    [MIL_T_N] = BIT(F16) | BIT(F32) | BIT(I32),
    [MIL_T_W] = BIT(F16) | BIT(F32) | BIT(I32) | BIT(I8) | BIT(U8) | BIT(I16) |
                BIT(U16) | BIT(BOOL),
    [MIL_T_G] = BIT(F16) | BIT(F32) | BIT(I32) | BIT(I16) | BIT(U16) | BIT(I8) |
                BIT(U8),
    [MIL_T_I] = BIT(I8) | BIT(I16) | BIT(I32),
    [MIL_T_IDX] = BIT(I8) | BIT(U8) | BIT(I16) | BIT(U16) | BIT(I32),
    [MIL_T_INT32] = BIT(I32),
    [MIL_T_BOOL] = BIT(BOOL),
    [MIL_T_STR] = BIT(STRING),
    [MIL_T_NB] = BIT(F16) | BIT(F32) | BIT(I32) | BIT(BOOL),
    [MIL_T_LUTIDX] = BIT(U1) | BIT(U2) | BIT(U3) | BIT(U4) | BIT(U6) | BIT(U8),
    [MIL_T_LUTVAL] = BIT(F16) | BIT(F32) | BIT(I8) | BIT(U8),
    [MIL_T_QDATA] = BIT(I4) | BIT(U4) | BIT(I8) | BIT(U8) | BIT(F16) | BIT(F32),
    [MIL_T_STATE] = ~0u,
};
#undef BIT

static int bad_class(const struct infer *c, const struct mil_param *p,
                     const struct mil_type *t)
{
    char allowed[160], type[MIL_TYPE_TEXT_MAX];
    size_t n = 0;

    allowed[0] = '\0';
    for (int d = MIL_INVALID + 1; d < MIL_DTYPE_COUNT; d++) {
        if (classes[p->cls] >> d & 1)
            n += (size_t)snprintf(allowed + n, sizeof allowed - n, "%s%s",
                                  n ? ", " : "",
                                  mil_dtype_name((enum mil_dtype)d));
    }
    mil_type_text(t, type);
    return infer_fail(c, "parameter '%s' is %s, allowed: %s", p->name, type,
                      allowed);
}

static bool is_constant(const struct infer *c, const struct mil_value *v)
{
    const struct mil_op *op;

    if (v->konst)
        return true;
    if (v->kind != MIL_V_RESULT || v->op < 0)
        return false;
    op = &c->f->ops[v->op];
    return (mil_op_info(op->code)->flags & MIL_O_CONSTEXPR) != 0;
}

static int check_value(const struct infer *c, const struct mil_param *p,
                       mil_ref r)
{
    const struct mil_value *v;

    if (r == 0 || r >= c->f->n_values)
        return infer_fail(c, "parameter '%s' refers to value %u of %zu",
                          p->name, r, c->f->n_values);
    v = &c->f->values[r];
    if (v->kind == MIL_V_NONE)
        return infer_fail(c, "parameter '%s' refers to no value", p->name);
    if (p->cls == MIL_T_STATE && v->kind != MIL_V_STATE)
        return infer_fail(c, "parameter '%s' must be a state, '%s' is none",
                          p->name, v->name);
    if (p->cls != MIL_T_STATE && v->kind == MIL_V_STATE)
        return infer_fail(c,
                          "parameter '%s' is the state '%s': only read_state "
                          "and write_state take states",
                          p->name, v->name);
    if (!(classes[p->cls] >> v->type.dtype & 1) || v->type.dtype == MIL_INVALID)
        return bad_class(c, p, &v->type);
    if ((p->flags & MIL_P_SCALAR) && v->type.rank != 0)
        return infer_bad(c, p->name, "must be a scalar (rank 0)");
    if ((p->flags & MIL_P_VECTOR) && v->type.rank != 1)
        return infer_bad(c, p->name, "must be a vector (rank 1)");
    if ((p->flags & MIL_P_CONST) && !is_constant(c, v))
        return infer_bad(c, p->name, "must be constant, '%s' is not", v->name);
    return 0;
}

/* Parameters that share a letter have one dtype. */
static int check_shared(const struct infer *c, unsigned letter)
{
    const struct mil_param *first = NULL;
    enum mil_dtype d = MIL_INVALID;

    for (int i = 0; i < c->info->n_params; i++) {
        const struct mil_param *p = &c->info->params[i];
        const struct mil_arg *a = &c->op->args[i];

        for (uint32_t j = 0; (p->flags & letter) && j < a->n; j++) {
            const struct mil_type *t = &c->f->values[a->refs[j]].type;

            if (!first) {
                first = p;
                d = t->dtype;
            } else if (t->dtype != d) {
                return infer_fail(c,
                                  "parameter '%s' is %s, but '%s' is %s: both "
                                  "must have the same dtype",
                                  p->name, mil_dtype_name(t->dtype),
                                  first->name, mil_dtype_name(d));
            }
        }
    }
    return 0;
}

static int check_args(const struct infer *c)
{
    for (int i = 0; i < c->info->n_params; i++) {
        const struct mil_param *p = &c->info->params[i];
        const struct mil_arg *a = &c->op->args[i];

        if (a->n == 0 && !(p->flags & MIL_P_OPT))
            return infer_fail(c, "parameter '%s' is missing", p->name);
        if (a->n > 1 && !(p->flags & MIL_P_LIST))
            return infer_fail(c, "parameter '%s' has %u values, allowed: 1",
                              p->name, a->n);
        for (uint32_t j = 0; j < a->n; j++) {
            if (check_value(c, p, a->refs[j]))
                return -1;
        }
    }
    if (check_shared(c, MIL_P_T) || check_shared(c, MIL_P_U))
        return -1;
    return 0;
}

/* ---- entry points ---- */

static int start(struct infer *c)
{
    if (c->op->foreign)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "%s '%s': not an operation of the CoreML8 opset in a "
                       "form that is known here",
                       mil_op_type(c->op), label(c));
    if (!rows[c->op->code])
        return err_set(c->e, ERR_INPUT, "an op has no type");
    if (c->info->flags & MIL_O_BLOCKS)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "%s '%s': control flow is not supported", c->info->name,
                       label(c));
    return check_args(c);
}

static int count_outputs(struct infer *c, uint32_t *n)
{
    const struct mil_type *sizes;
    bool indices;
    int64_t k;

    *n = (uint32_t)c->info->n_outs;
    if (c->op->code == MIL_OP_topk) {
        if (infer_get_bool(c, "return_indices", true, &indices))
            return -1;
        *n = indices ? 2 : 1;
    } else if (c->op->code == MIL_OP_split) {
        sizes = infer_type(c, "split_sizes");
        if (sizes)
            k = sizes->dims[0];
        else if (infer_get_int(c, "num_splits", 0, &k))
            return -1;
        if (k < 1 || k > 1 << 16)
            return infer_fail(c, "splits into %lld parts, allowed: 1 to 65536",
                              (long long)k);
        *n = (uint32_t)k;
    }
    return 0;
}

static struct infer context(const struct mil_function *f,
                            const struct mil_op *op, struct err *e)
{
    struct infer c = { .f = f, .op = op, .e = e };

    c.info = mil_op_info(op->code);
    return c;
}

int mil_op_out_count(const struct mil_function *f, const struct mil_op *op,
                     uint32_t *n, struct err *e)
{
    struct infer c = context(f, op, e);

    if (start(&c))
        return -1;
    return count_outputs(&c, n);
}

int mil_infer_op(const struct mil_function *f, const struct mil_op *op,
                 struct mil_type *out, uint32_t n_out, struct err *e)
{
    struct infer c = context(f, op, e);
    uint32_t n;

    if (start(&c) || count_outputs(&c, &n))
        return -1;
    if (n != n_out)
        return infer_fail(&c, "gives %u outputs, %u are declared", n, n_out);
    if (n)
        memset(out, 0, n * sizeof *out);
    c.out = out;
    c.n_out = n_out;
    return rows[op->code](&c);
}
