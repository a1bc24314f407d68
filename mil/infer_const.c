/*
 * Type inference of constants, weight decompression and state access.
 */
#include "mil/infer_priv.h"

#include <string.h>

int infer_const(struct infer *c)
{
    const struct mil_const *k;

    k = c->op->n_outs ? c->f->values[c->op->outs[0]].konst : NULL;
    if (!k)
        return infer_fail(c, "has no value");
    c->out[0] = k->type;
    return 0;
}

static int text_fail(const struct infer *c, const char *px, const char *py,
                     const char *rule)
{
    char x[MIL_TYPE_TEXT_MAX], y[MIL_TYPE_TEXT_MAX];

    mil_type_text(infer_type(c, px), x);
    mil_type_text(infer_type(c, py), y);
    return infer_fail(c, "'%s' (%s) does not fit '%s' (%s): %s", py, y, px, x,
                      rule);
}

/* Rank, table size and groups of a table against its indices. */
static int check_lut(const struct infer *c)
{
    const struct mil_type *x = infer_type(c, "indices");
    const struct mil_type *lut = infer_type(c, "lut");
    int k = x->rank;

    if (k < 1 || !mil_type_is_static(x) || !mil_type_is_static(lut))
        return text_fail(c, "indices", "lut",
                         "both must be static tensors of rank 1 or more");
    if (lut->rank != k + 2)
        return text_fail(c, "indices", "lut",
                         "its rank must be the rank of indices plus 2");
    if (lut->dims[k] != (int64_t)1 << mil_dtype_bits(x->dtype))
        return infer_bad(c, "lut",
                         "holds %lld entries per table, %s indices need "
                         "exactly %lld",
                         (long long)lut->dims[k], mil_dtype_name(x->dtype),
                         1LL << mil_dtype_bits(x->dtype));
    if (lut->dims[k + 1] < 1)
        return infer_bad(c, "lut", "has vectors of no elements");
    for (int i = 0; i < k; i++) {
        if (lut->dims[i] < 1 || x->dims[i] % lut->dims[i] != 0)
            return text_fail(c, "indices", "lut",
                             "every group count must divide its axis");
    }
    return 0;
}

int infer_constexpr_lut_to_dense(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "indices");
    const struct mil_type *lut = infer_type(c, "lut");
    int64_t v, d;
    int axis;

    if (check_lut(c))
        return -1;
    c->out[0] = *x;
    c->out[0].dtype = lut->dtype;
    v = lut->dims[x->rank + 1];
    if (!infer_ref(c, "vector_axis")) {
        if (v > 1)
            return infer_fail(c,
                              "parameter 'vector_axis' is missing: vectors "
                              "of %lld elements need it",
                              (long long)v);
        return 0;
    }
    if (infer_get_axis(c, "vector_axis", 0, x->rank, &axis))
        return -1;
    d = infer_dim_mul(c->out[0].dims[axis], v);
    if (d < 0)
        return infer_bad(c, "lut", "makes axis %d too large", axis);
    c->out[0].dims[axis] = d;
    return 0;
}

int infer_constexpr_blockwise_shift_scale(struct infer *c)
{
    const struct mil_type *data = infer_type(c, "data");
    const struct mil_type *scale = infer_type(c, "scale");
    const struct mil_type *offset = infer_type(c, "offset");

    if (data->rank < 1 || scale->rank != data->rank ||
        !mil_type_is_static(data) || !mil_type_is_static(scale))
        return text_fail(c, "data", "scale",
                         "both must be static, of one rank of 1 or more");
    for (int i = 0; i < data->rank; i++) {
        if (scale->dims[i] < 1 || data->dims[i] % scale->dims[i] != 0)
            return text_fail(c, "data", "scale",
                             "every dim must divide that of data");
    }
    c->out[0] = *data;
    c->out[0].dtype = scale->dtype;
    if (!offset)
        return 0;
    if (offset->dtype != data->dtype && offset->dtype != MIL_F16 &&
        offset->dtype != MIL_F32)
        return text_fail(c, "data", "offset",
                         "its dtype must be that of data, fp16 or fp32");
    if (offset->rank != scale->rank)
        return text_fail(c, "scale", "offset", "their shapes must be equal");
    for (int i = 0; i < scale->rank; i++) {
        if (offset->dims[i] != scale->dims[i])
            return text_fail(c, "scale", "offset",
                             "their shapes must be equal");
    }
    return 0;
}

int infer_constexpr_sparse_to_dense(struct infer *c)
{
    const struct mil_type *mask = infer_type(c, "mask");
    const struct mil_type *x = infer_type(c, "nonzero_data");

    if (mask->dtype != MIL_U1 || !mil_type_is_static(mask))
        return infer_bad(c, "mask", "must be a static uint1 tensor");
    if (x->dims[0] > mil_type_elems(mask))
        return text_fail(c, "mask", "nonzero_data",
                         "more values than elements");
    c->out[0] = *mask;
    c->out[0].dtype = x->dtype;
    return 0;
}

int infer_constexpr_cast(struct infer *c)
{
    static const char *const names[] = { "fp32", NULL };
    int i;

    if (infer_type(c, "source_val")->dtype != MIL_F16)
        return infer_bad(c, "source_val", "must be fp16");
    if (infer_get_choice(c, "output_dtype", NULL, names, &i))
        return -1;
    c->out[0] = *infer_type(c, "source_val");
    c->out[0].dtype = MIL_F32;
    return 0;
}

int infer_read_state(struct infer *c)
{
    c->out[0] = *infer_type(c, "input");
    return 0;
}

int infer_write_state(struct infer *c)
{
    if (!mil_type_equal(infer_type(c, "input"), infer_type(c, "data")))
        return text_fail(c, "input", "data",
                         "a state takes exactly its own type and shape");
    return 0;
}

/* Never called: control flow is refused before. */
int infer_while_loop(struct infer *c)
{
    return infer_fail(c, "control flow is not supported");
}

int infer_cond(struct infer *c)
{
    return infer_fail(c, "control flow is not supported");
}
