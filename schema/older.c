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

#include "schema/decode_priv.h"

#define AFFINE "constexpr_affine_dequantize"
#define LUT "constexpr_lut_to_dense"

/* Attributes or inline inputs; NULL if absent or bound by name. */
static const Pb__Value *find(const Pb__Operation *o, const char *key)
{
    size_t i;

    for (i = 0; i < o->n_attributes; i++)
        if (strcmp(o->attributes[i]->key, key) == 0)
            return o->attributes[i]->value;
    for (i = 0; i < o->n_inputs; i++) {
        const Pb__Argument *a = o->inputs[i]->value;

        if (strcmp(o->inputs[i]->key, key) == 0 && a && a->n_arguments == 1 &&
            a->arguments[0]->binding_case ==
                PB__ARGUMENT__BINDING__BINDING_VALUE)
            return a->arguments[0]->value;
    }
    return NULL;
}

bool dec_is_older(const Pb__Operation *o)
{
    return strcmp(o->type, AFFINE) == 0 ||
           (strcmp(o->type, LUT) == 0 && find(o, "shape"));
}

static const struct mil_const *need(struct dec *c, const Pb__Operation *o,
                                    const char *key, const struct mil_type *as)
{
    const Pb__Value *v = find(o, key);
    const struct mil_const *k;

    if (!v) {
        err_set(c->e, ERR_INPUT, "parameter '%s' is absent or no inline value",
                key);
        return NULL;
    }
    k = dec_value(c, v, as);
    if (!k)
        err_in(c->e, "parameter '%s'", key);
    return k;
}

static int put(struct dec *c, struct mil_op *op, const char *param,
               const struct mil_const *k)
{
    int i = mil_param_index(mil_op_info(op->code), param);
    mil_ref r = dec_literal(c, k);

    return r ? mil_set_arg(c->f, op, i, &r, 1, c->e) : -1;
}

/* The same constant with other dimensions, one element repeated if need be. */
static const struct mil_const *reshape(struct dec *c, const struct mil_const *k,
                                       const struct mil_type *t)
{
    int64_t have = mil_type_elems(&k->type), want = mil_type_elems(t), i;
    size_t size = mil_dtype_bits(k->type.dtype) / 8;
    struct mil_const out = *k;
    struct mil_data *d;
    uint8_t *room;

    out.type = *t;
    if (have != want) {
        uint64_t bytes;

        if (have != 1 || !k->bytes || want < 0 ||
            !mem_mul((uint64_t)want, size, &bytes) || bytes > UINT32_MAX) {
            err_set(c->e, ERR_UNSUPPORTED,
                    "%" PRId64 " elements where %" PRId64 " are needed", have,
                    want);
            return NULL;
        }
        room = arena_alloc(&c->scratch, (size_t)want, size, c->e);
        for (i = 0; room && i < want; i++)
            memcpy(room + (size_t)i * size, k->bytes, size);
        if (!room)
            return NULL;
        out.bytes = room;
    } else if (k->data) {
        d = arena_memdup(&c->p->arena, k->data, sizeof(*d), c->e);
        if (!d)
            return NULL;
        d->type = *t;
        out.data = d;
    }
    return mil_copy_const(c->p, &out, c->e);
}

static int affine(struct dec *c, const Pb__Operation *o, struct mil_op *op)
{
    const struct mil_const *data = need(c, o, "quantized_data", NULL), *zero,
                           *scale, *axis;
    int64_t dims[MIL_MAX_RANK] = { 1, 1, 1, 1, 1, 1, 1, 1 }, n, nz, a;
    struct mil_type t;

    if (!data || !(zero = need(c, o, "zero_point", NULL)) ||
        !(scale = need(c, o, "scale", NULL)) ||
        !(axis = need(c, o, "axis", NULL)))
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

static int lut(struct dec *c, const Pb__Operation *o, struct mil_op *op)
{
    const struct mil_const *table = need(c, o, "lut", NULL),
                           *shape = need(c, o, "shape", NULL), *indices;
    int64_t dims[MIL_MAX_RANK], n, rank, i;
    struct mil_type t;

    if (!table || !shape)
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
    indices = need(c, o, "indices", &t);
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

int dec_older(struct dec *c, const Pb__Operation *o, struct mil_op *op)
{
    if (strcmp(c->f->opset, DEC_OPSET_BEFORE) != 0 &&
        strcmp(c->f->opset, DEC_OPSET) != 0)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "its form of opset '%s' is not supported", c->f->opset);
    return strcmp(o->type, AFFINE) == 0 ? affine(c, o, op) : lut(c, o, op);
}
