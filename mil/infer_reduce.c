/*
 * Type inference of normalisations, reductions, softmax, cumsum, topk.
 */
#include "mil/infer_priv.h"

#include <string.h>

/* gamma and beta have x's dims at the axes, in ascending order. */
static int norm_operand(const struct infer *c, const char *param, unsigned axes)
{
    const struct mil_type *x = infer_type(c, "x"), *t = infer_type(c, param);
    char text[MIL_TYPE_TEXT_MAX];
    int n = 0;
    int64_t d;
    bool ok = true;

    if (!t)
        return 0;
    for (int i = 0; i < x->rank && ok; i++) {
        if (axes >> i & 1) {
            ok = n < t->rank && infer_unify(x->dims[i], t->dims[n], &d);
            n++;
        }
    }
    if (ok && n == t->rank)
        return 0;
    mil_type_text(x, text);
    return infer_bad(c, param, "must have the dims of 'x' (%s) at the axes",
                     text);
}

int infer_layer_norm(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    unsigned axes;

    if (x->rank < 1)
        return infer_bad(c, "x", "must have rank 1 or more");
    if (infer_get_axes(c, "axes", x->rank, true, &axes) ||
        norm_operand(c, "gamma", axes) || norm_operand(c, "beta", axes))
        return -1;
    c->out[0] = *x;
    return 0;
}

int infer_l2_norm(struct infer *c)
{
    if (infer_type(c, "x")->rank < 3)
        return infer_bad(c, "x", "must have rank 3 or more");
    c->out[0] = *infer_type(c, "x");
    return 0;
}

static void drop_axes(const struct mil_type *x, unsigned axes, bool keep,
                      struct mil_type *out)
{
    int n = 0;

    for (int i = 0; i < x->rank; i++) {
        if (!(axes >> i & 1))
            out->dims[n++] = x->dims[i];
        else if (keep)
            out->dims[n++] = 1;
    }
    out->rank = n;
}

static int reduce(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    unsigned axes;
    bool keep;

    if (infer_get_axes(c, "axes", x->rank, true, &axes) ||
        infer_get_bool(c, "keep_dims", false, &keep))
        return -1;
    c->out[0].dtype = x->dtype;
    drop_axes(x, axes, keep, &c->out[0]);
    return 0;
}

#define REDUCE(id)                  \
    int infer_##id(struct infer *c) \
    {                               \
        return reduce(c);           \
    }
REDUCE(reduce_sum)
REDUCE(reduce_mean)
REDUCE(reduce_max)
REDUCE(reduce_min)
REDUCE(reduce_sum_square)
REDUCE(reduce_l2_norm)
REDUCE(reduce_log_sum_exp)

static const char *const index_dtypes[] = { "int32", "uint16", NULL };
static const enum mil_dtype index_types[] = { MIL_I32, MIL_U16 };

static int arg_reduce(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    int axis, d;
    bool keep;

    if (infer_get_axis(c, "axis", -1, x->rank, &axis) ||
        infer_get_bool(c, "keep_dims", false, &keep) ||
        infer_get_choice(c, "output_dtype", "int32", index_dtypes, &d))
        return -1;
    c->out[0].dtype = index_types[d];
    drop_axes(x, 1u << axis, keep, &c->out[0]);
    return 0;
}

int infer_reduce_argmax(struct infer *c)
{
    return arg_reduce(c);
}

int infer_reduce_argmin(struct infer *c)
{
    return arg_reduce(c);
}

int infer_softmax(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    int axis;

    if (infer_get_axis(c, "axis", -1, x->rank, &axis))
        return -1;
    c->out[0] = *x;
    return 0;
}

/* The published range of the axis is [-1, rank), not [-rank, rank). */
int infer_cumsum(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    int64_t axis;
    bool unused;

    if (infer_get_int(c, "axis", 0, &axis) ||
        infer_get_bool(c, "exclusive", false, &unused) ||
        infer_get_bool(c, "reverse", false, &unused))
        return -1;
    if (axis < -1 || axis >= x->rank)
        return infer_bad(c, "axis", "is %lld, allowed: -1 to %d",
                         (long long)axis, x->rank - 1);
    c->out[0] = *x;
    return 0;
}

int infer_topk(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    int64_t k;
    int axis, d;

    if (infer_get_int(c, "k", 1, &k) ||
        infer_get_axis(c, "axis", -1, x->rank, &axis) ||
        infer_get_choice(c, "output_indices_dtype", "int32", index_dtypes, &d))
        return -1;
    if (k < 1 || (x->dims[axis] >= 0 && k > x->dims[axis]))
        return infer_bad(c, "k", "is %lld, allowed: 1 to %lld", (long long)k,
                         (long long)x->dims[axis]);
    c->out[0] = *x;
    c->out[0].dims[axis] = k;
    if (c->n_out == 1) {
        if (infer_ref(c, "output_indices_dtype"))
            return infer_bad(c, "output_indices_dtype",
                             "must be absent when return_indices is false");
        return 0;
    }
    c->out[1] = c->out[0];
    c->out[1].dtype = index_types[d];
    return 0;
}
