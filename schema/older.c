/*
 * Weight decompression of the CoreML6 and CoreML7 opsets, read as what
 * CoreML8 calls the same computation. The bytes of the constants stay; only
 * their types change:
 *
 *   constexpr_affine_dequantize(quantized_data, zero_point, scale, axis)
 *     -> constexpr_blockwise_shift_scale(data, scale, offset), scale and
 *        offset of data's rank, their length on `axis`
 *   constexpr_lut_to_dense(indices: bits of all indices as uint8 [M],
 *                          lut: [P], shape: uint32 [K])
 *     -> constexpr_lut_to_dense(indices: uintN [shape], lut: [1.., P, 1])
 *
 * Other operations changed between CoreML6 and CoreML8 in ways that a form
 * cannot show, so only programs of CoreML7 and later are raised.
 */
#include <inttypes.h>
#include <string.h>

#include "schema/older_priv.h"

#define OPSET "CoreML8"
/* Its operations take the same parameters there, weight decompression apart. */
#define OPSET_BEFORE "CoreML7"
#define AFFINE "constexpr_affine_dequantize"
#define LUT "constexpr_lut_to_dense"

struct raise {
    struct mil_program *p;
    struct mil_function *f;
    struct err *e;
};

static const struct mil_named_arg *find(const struct mil_op *op,
                                        const char *key)
{
    const struct mil_foreign *fo = op->foreign;
    uint32_t i;

    for (i = 0; i < fo->n_args; i++)
        if (strcmp(fo->args[i].name, key) == 0)
            return &fo->args[i];
    return NULL;
}

static bool is_older(const struct mil_op *op)
{
    const char *type = op->foreign->type;

    return strcmp(type, AFFINE) == 0 ||
           (strcmp(type, LUT) == 0 && find(op, "shape"));
}

static const struct mil_const *need(struct raise *c, const struct mil_op *op,
                                    const char *key)
{
    const struct mil_named_arg *a = find(op, key);
    const struct mil_const *k = NULL;

    if (a && a->arg.n == 1)
        k = mil_value(c->f, a->arg.refs[0])->konst;
    if (!k)
        err_set(c->e, ERR_INPUT, "parameter '%s' is absent or no constant",
                key);
    return k;
}

static int put(struct raise *c, struct mil_op *op, const char *param,
               const struct mil_const *k)
{
    int i = mil_param_index(mil_op_info(op->code), param);
    mil_ref r = mil_add_value(c->f, MIL_V_LITERAL, NULL, &k->type, c->e);

    if (!r)
        return -1;
    mil_value(c->f, r)->konst = k;
    return mil_set_arg(c->f, op, i, &r, 1, c->e);
}

/* Another type for the same bytes. */
static const struct mil_const *
retype(struct raise *c, const struct mil_const *k, const struct mil_type *t)
{
    struct mil_const out = *k;
    struct mil_data *d;

    if (mil_type_bytes(&k->type) != mil_type_bytes(t)) {
        err_set(c->e, ERR_INPUT,
                "a constant of %" PRId64 " bytes where %" PRId64 " are needed",
                mil_type_bytes(&k->type), mil_type_bytes(t));
        return NULL;
    }
    out.type = *t;
    if (k->data) {
        d = arena_memdup(&c->p->arena, k->data, sizeof(*d), c->e);
        if (!d)
            return NULL;
        d->type = *t;
        out.data = d;
    }
    return mil_copy_const(c->p, &out, c->e);
}

/* The same constant with other dimensions, one element repeated if need be. */
static const struct mil_const *
reshape(struct raise *c, const struct mil_const *k, const struct mil_type *t)
{
    int64_t have = mil_type_elems(&k->type), want = mil_type_elems(t), i;
    size_t size = mil_dtype_bits(k->type.dtype) / 8;
    struct mil_const out = *k;
    uint64_t bytes;
    uint8_t *room;

    if (have == want)
        return retype(c, k, t);
    if (have != 1 || !k->bytes || want < 0 ||
        !mem_mul((uint64_t)want, size, &bytes) || bytes > UINT32_MAX) {
        err_set(c->e, ERR_UNSUPPORTED,
                "%" PRId64 " elements where %" PRId64 " are needed", have,
                want);
        return NULL;
    }
    room = arena_alloc(&c->p->arena, (size_t)want, size, c->e);
    if (!room)
        return NULL;
    for (i = 0; i < want; i++)
        memcpy(room + (size_t)i * size, k->bytes, size);
    out.type = *t;
    out.bytes = room;
    return mil_copy_const(c->p, &out, c->e);
}

static int affine(struct raise *c, struct mil_op *op)
{
    const struct mil_const *data = need(c, op, "quantized_data"), *zero, *scale,
                           *axis;
    int64_t dims[MIL_MAX_RANK] = { 1, 1, 1, 1, 1, 1, 1, 1 }, n, nz, a;
    struct mil_type t;

    if (!data || !(zero = need(c, op, "zero_point")) ||
        !(scale = need(c, op, "scale")) || !(axis = need(c, op, "axis")))
        return -1;
    a = mil_const_int(axis, 0);
    if (a < 0)
        a += data->type.rank;
    if (mil_type_elems(&axis->type) != 1 || a < 0 || a >= data->type.rank)
        return err_set(c->e, ERR_INPUT, "'axis' is outside the rank %d of data",
                       data->type.rank);
    n = mil_type_elems(&scale->type);
    nz = mil_type_elems(&zero->type);
    if (nz > n)
        n = nz;
    if (n != 1 && n != data->type.dims[a])
        return err_set(c->e, ERR_INPUT,
                       "%" PRId64 " scales for %" PRId64 " slices", n,
                       data->type.dims[a]);
    dims[a] = n;
    op->code = MIL_OP_constexpr_blockwise_shift_scale;
    t = mil_type_make(scale->type.dtype, data->type.rank, dims);
    scale = reshape(c, scale, &t);
    t = mil_type_make(zero->type.dtype, data->type.rank, dims);
    zero = reshape(c, zero, &t);
    return scale && zero && !put(c, op, "data", data) &&
                   !put(c, op, "scale", scale) && !put(c, op, "offset", zero)
               ? 0
               : -1;
}

/* The type of indices into a table of n entries. */
static enum mil_dtype index_type(int64_t n)
{
    switch (n) {
    case 2: return MIL_U1;
    case 4: return MIL_U2;
    case 16: return MIL_U4;
    case 64: return MIL_U6;
    case 256: return MIL_U8;
    default: return MIL_INVALID;
    }
}

static int lut(struct raise *c, struct mil_op *op)
{
    const struct mil_const *table = need(c, op, "lut"),
                           *shape = need(c, op, "shape"),
                           *indices = need(c, op, "indices");
    int64_t dims[MIL_MAX_RANK], n, rank, i;
    struct mil_type t;

    if (!table || !shape || !indices)
        return -1;
    n = mil_type_elems(&table->type);
    rank = mil_type_elems(&shape->type);
    if (rank < 1 || rank > MIL_MAX_RANK - 2 || !shape->bytes ||
        !mil_dtype_is_int(shape->type.dtype) || index_type(n) == MIL_INVALID)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "a table of %" PRId64 " entries for rank %" PRId64, n,
                       rank);
    for (i = 0; i < rank; i++) {
        dims[i] = mil_const_int(shape, i);
        if (dims[i] < 0)
            return err_set(c->e, ERR_INPUT, "'shape' has a negative size");
    }
    t = mil_type_make(index_type(n), (int)rank, dims);
    indices = retype(c, indices, &t);
    for (i = 0; i < rank; i++)
        dims[i] = 1;
    dims[rank] = n;
    dims[rank + 1] = 1;
    t = mil_type_make(table->type.dtype, (int)rank + 2, dims);
    op->code = MIL_OP_constexpr_lut_to_dense;
    table = reshape(c, table, &t);
    return indices && table && !put(c, op, "indices", indices) &&
                   !put(c, op, "lut", table)
               ? 0
               : -1;
}

static int older(struct raise *c, struct mil_op *op)
{
    if (strcmp(c->f->opset, OPSET_BEFORE) != 0 &&
        strcmp(c->f->opset, OPSET) != 0)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "its form of opset '%s' is not supported", c->f->opset);
    return strcmp(op->foreign->type, AFFINE) == 0 ? affine(c, op) : lut(c, op);
}

/* An operation that the table knows, with arguments as it does not know them;
 * attributes of weight decompression are its parameters too. */
static int place(struct raise *c, struct mil_op *op,
                 const struct mil_op_info *info)
{
    const struct mil_foreign *fo = op->foreign;
    uint32_t i;

    op->code = info->code;
    for (i = 0; i < fo->n_args; i++) {
        const struct mil_named_arg *a = &fo->args[i];
        int p = mil_param_index(info, a->name);

        if (p < 0 || (a->attribute && !(info->flags & MIL_O_CONSTEXPR)))
            return err_set(c->e, ERR_INPUT, "it has no %s '%s'",
                           a->attribute ? "attribute" : "parameter", a->name);
        if (a->arg.n != 1 && !(info->params[p].flags & MIL_P_LIST))
            return err_set(c->e, ERR_INPUT,
                           "parameter '%s' has %" PRIu32 " values", a->name,
                           a->arg.n);
        if (mil_set_arg(c->f, op, p, a->arg.refs, a->arg.n, c->e))
            return -1;
    }
    return 0;
}

static int raise_op(struct raise *c, struct mil_op *op)
{
    const char *type = mil_op_type(op), *name = op->name;
    const struct mil_op_info *info = mil_op_by_name(type);
    int rc;

    if (op->code != MIL_OP_INVALID)
        return 0;
    if (is_older(op))
        rc = older(c, op);
    else if (info)
        rc = place(c, op, info);
    else
        rc = err_set(c->e, ERR_UNSUPPORTED,
                     "unknown op '%s' ('%s') of opset '%s'", type, op->name,
                     c->f->opset);
    op->foreign = NULL;
    if (!*name && op->n_outs)
        name = mil_value(c->f, op->outs[0])->name;
    return rc ? err_in(c->e, "op '%s' (%s)", name, type) : 0;
}

/* What shapes, axes and sizes look like. */
static bool is_small(const struct mil_type *t)
{
    return t->rank == 1 && mil_type_elems(t) <= 256 &&
           (t->dtype == MIL_I32 || t->dtype == MIL_I16 || t->dtype == MIL_U16 ||
            t->dtype == MIL_I8);
}

static int read_small(struct raise *c, struct mil_value *v)
{
    const struct mil_data *d = v->konst ? v->konst->data : NULL;
    struct mil_const k;
    uint8_t *room;

    if (!d || !is_small(&v->konst->type))
        return 0;
    room = arena_alloc(&c->p->arena, (size_t)d->bytes, 1, c->e);
    if (!room ||
        (d->bytes && d->read(d->cookie, 0, room, (size_t)d->bytes, c->e)))
        return -1;
    k = *v->konst;
    k.data = NULL;
    k.bytes = room;
    v->konst = mil_copy_const(c->p, &k, c->e);
    return v->konst ? 0 : -1;
}

static int raise_function(struct raise *c)
{
    size_t i;

    for (i = 1; i < c->f->n_values; i++)
        if (read_small(c, mil_value(c->f, (mil_ref)i)))
            return -1;
    for (i = 0; i < c->f->n_ops; i++)
        if (raise_op(c, &c->f->ops[i]))
            return -1;
    if (strcmp(c->f->opset, OPSET_BEFORE) == 0)
        c->f->opset = OPSET;
    return 0;
}

int older_raise(struct mil_program *p, struct err *e)
{
    struct raise c = { p, NULL, e };
    size_t i;

    for (i = 0; i < p->n_functions; i++) {
        c.f = p->functions[i];
        if (raise_function(&c))
            return err_in(e, "function '%s'", c.f->name);
    }
    return 0;
}
