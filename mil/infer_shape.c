/*
 * Type inference of shape changes and data movement without indices:
 * reshape, transpose, concat, split, tile, pad and their like.
 */
#include "mil/infer_priv.h"

#include <string.h>

/* ---- reshape ---- */

/* Replaces zeros (x's dim, aligned from the right; 1 beyond it). */
static void fill_zeros(const struct mil_type *x, const struct infer_ints *s,
                       struct mil_type *out)
{
    out->rank = s->n;
    for (int i = 0; i < s->n; i++) {
        int from = x->rank - (s->n - i);

        out->dims[i] = s->v[i];
        if (s->v[i] == 0)
            out->dims[i] = from < 0 ? 1 : x->dims[from];
    }
}

/* Product of the dims other than `skip`; unknown if one is, -2 on overflow. */
static int64_t product(const struct mil_type *t, int skip)
{
    int64_t p = 1;

    for (int i = 0; i < t->rank && p != -2; i++) {
        if (i != skip)
            p = infer_dim_mul(p, t->dims[i]);
    }
    return p;
}

static int reshape_counts(struct infer *c, int infer_at)
{
    const struct mil_type *x = infer_type(c, "x");
    struct mil_type *out = &c->out[0];
    int64_t have = product(x, -1), want = product(out, infer_at);
    char text[MIL_TYPE_TEXT_MAX];

    if (have == -2 || want == -2)
        return infer_bad(c, "x", "has too many elements");
    if (infer_at >= 0) {
        out->dims[infer_at] = MIL_DIM_UNKNOWN;
        if (have < 0 || want < 0)
            return 0;
        if (want > 0 && have % want == 0) {
            out->dims[infer_at] = have / want;
            return 0;
        }
    } else if (have < 0 || want < 0 || have == want) {
        return 0;
    }
    mil_type_text(out, text);
    return infer_bad(c, "x", "has %lld elements, they do not fill %s",
                     (long long)have, text);
}

int infer_reshape(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    struct mil_type *out = &c->out[0];
    struct infer_ints s;
    int infer_at = -1;

    if (infer_get_ints(c, "shape", -1, &s))
        return -1;
    if (s.n > MIL_MAX_RANK)
        return infer_bad(c, "shape", "may have at most %d elements",
                         MIL_MAX_RANK);
    out->dtype = x->dtype;
    if (!s.known) {
        out->rank = s.n;
        for (int i = 0; i < s.n; i++)
            out->dims[i] = MIL_DIM_UNKNOWN;
        return 0;
    }
    for (int i = 0; i < s.n; i++) {
        if (s.v[i] < -1)
            return infer_bad(c, "shape", "holds %lld, allowed: -1 and more",
                             (long long)s.v[i]);
        if (s.v[i] == -1 && infer_at >= 0)
            return infer_bad(c, "shape", "holds -1 twice");
        if (s.v[i] == -1)
            infer_at = i;
    }
    fill_zeros(x, &s, out);
    return reshape_counts(c, infer_at);
}

/* ---- axes ---- */

int infer_transpose(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    struct infer_ints perm;
    unsigned seen;

    if (infer_get_ints(c, "perm", x->rank, &perm) ||
        infer_get_axes(c, "perm", x->rank, false, &seen))
        return -1;
    c->out[0] = *x;
    for (int i = 0; i < x->rank; i++) {
        int64_t a = perm.v[i] < 0 ? perm.v[i] + x->rank : perm.v[i];

        c->out[0].dims[i] = x->dims[a];
    }
    return 0;
}

int infer_expand_dims(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    const struct mil_type *a = infer_type(c, "axes");
    int64_t rank = x->rank + a->dims[0];
    unsigned mask;
    int n = 0;

    if (a->dims[0] < 1 || rank > MIL_MAX_RANK)
        return infer_bad(c, "axes", "would give rank %lld, allowed: %d to %d",
                         (long long)rank, x->rank + 1, MIL_MAX_RANK);
    if (infer_get_axes(c, "axes", (int)rank, false, &mask))
        return -1;
    c->out[0].dtype = x->dtype;
    c->out[0].rank = (int)rank;
    for (int i = 0; i < (int)rank; i++)
        c->out[0].dims[i] = mask >> i & 1 ? 1 : x->dims[n++];
    return 0;
}

int infer_squeeze(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    unsigned mask;
    bool all = !infer_ref(c, "axes");
    int n = 0;

    if (infer_get_axes(c, "axes", x->rank, true, &mask))
        return -1;
    for (int i = 0; i < x->rank; i++) {
        bool listed = mask >> i & 1;

        if (listed && x->dims[i] < 0)
            return infer_bad(c, "x", "dim %d is unknown: it cannot be %s", i,
                             all ? "judged" : "dropped");
        if (!listed || x->dims[i] != 1)
            c->out[0].dims[n++] = x->dims[i];
    }
    c->out[0].dtype = x->dtype;
    c->out[0].rank = n;
    return 0;
}

/* ---- joining and splitting ---- */

static int item_fail(const struct infer *c, const struct mil_arg *list,
                     uint32_t i, const char *rule)
{
    char a[MIL_TYPE_TEXT_MAX], b[MIL_TYPE_TEXT_MAX];

    mil_type_text(infer_item(c, list, 0), a);
    mil_type_text(infer_item(c, list, i), b);
    return infer_fail(c, "values 0 (%s) and %u (%s): %s", a, i, b, rule);
}

/* Dims of all values, unified outside `axis` (-1: everywhere). */
static int unify_values(const struct infer *c, const struct mil_arg *list,
                        int axis, struct mil_type *out)
{
    *out = *infer_item(c, list, 0);
    for (uint32_t i = 1; i < list->n; i++) {
        const struct mil_type *t = infer_item(c, list, i);

        if (t->rank != out->rank)
            return item_fail(c, list, i, "ranks differ");
        for (int d = 0; d < t->rank; d++) {
            if (d != axis &&
                !infer_unify(out->dims[d], t->dims[d], &out->dims[d]))
                return item_fail(c, list, i,
                                 axis < 0 ? "shapes must be equal"
                                          : "dims besides the axis must be "
                                            "equal");
        }
    }
    return 0;
}

static int concat_scalars(struct infer *c, const struct mil_arg *list)
{
    struct mil_type t;
    int64_t axis;

    if (unify_values(c, list, -1, &t) || infer_get_int(c, "axis", 0, &axis))
        return -1;
    if (axis != 0 && axis != -1)
        return infer_bad(c, "axis", "is %lld, allowed for scalars: 0",
                         (long long)axis);
    c->out[0].dtype = t.dtype;
    c->out[0].rank = 1;
    c->out[0].dims[0] = list->n;
    return 0;
}

int infer_concat(struct infer *c)
{
    const struct mil_arg *list = infer_list(c, "values");
    struct mil_type *out = &c->out[0];
    int rank = infer_item(c, list, 0)->rank, axis;
    int64_t sum = 0;
    bool interleave;

    if (rank == 0)
        return concat_scalars(c, list);
    if (infer_get_axis(c, "axis", 0, rank, &axis) ||
        infer_get_bool(c, "interleave", false, &interleave) ||
        unify_values(c, list, interleave ? -1 : axis, out))
        return -1;
    for (uint32_t i = 0; i < list->n && sum >= 0; i++) {
        int64_t d = infer_item(c, list, i)->dims[axis];

        if (d > INT64_MAX / 2 - sum)
            return item_fail(c, list, i, "the sum is too large");
        sum = d < 0 ? MIL_DIM_UNKNOWN : sum + d;
    }
    out->dims[axis] = sum;
    return 0;
}

int infer_stack(struct infer *c)
{
    const struct mil_arg *list = infer_list(c, "values");
    struct mil_type t;
    int axis;

    if (unify_values(c, list, -1, &t))
        return -1;
    if (t.rank + 1 > MIL_MAX_RANK)
        return item_fail(c, list, 0, "the result's rank is too large");
    if (infer_get_axis(c, "axis", 0, t.rank + 1, &axis))
        return -1;
    c->out[0].dtype = t.dtype;
    c->out[0].rank = t.rank + 1;
    for (int i = 0; i < t.rank; i++)
        c->out[0].dims[i < axis ? i : i + 1] = t.dims[i];
    c->out[0].dims[axis] = list->n;
    return 0;
}

static int split_sizes(struct infer *c, int axis, int64_t d)
{
    int64_t *sizes, n, sum = 0, k;
    int rc = -1;

    if (infer_get_long_ints(c, "split_sizes", &sizes, &n))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        if (sizes[i] < 0 || sizes[i] > INT32_MAX) {
            infer_bad(c, "split_sizes", "holds %lld", (long long)sizes[i]);
            goto out;
        }
        sum += sizes[i];
        c->out[i].dims[axis] = sizes[i];
    }
    if (infer_get_int(c, "num_splits", n, &k))
        goto out;
    if (d >= 0 && sum != d)
        infer_bad(c, "split_sizes", "adds up to %lld, dim %d of 'x' is %lld",
                  (long long)sum, axis, (long long)d);
    else if (k != n)
        infer_bad(c, "split_sizes", "has %lld elements, num_splits is %lld",
                  (long long)n, (long long)k);
    else
        rc = 0;
out:
    mem_free(sizes);
    return rc;
}

int infer_split(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    int64_t d, n = c->n_out;
    int axis;

    if (infer_get_axis(c, "axis", 0, x->rank, &axis))
        return -1;
    d = x->dims[axis];
    for (uint32_t i = 0; i < c->n_out; i++)
        c->out[i] = *x;
    if (infer_ref(c, "split_sizes"))
        return split_sizes(c, axis, d);
    if (d >= 0 && d % n != 0)
        return infer_bad(c, "x", "dim %d does not split into %lld equal parts",
                         axis, (long long)n);
    for (uint32_t i = 0; i < c->n_out; i++)
        c->out[i].dims[axis] = d < 0 ? MIL_DIM_UNKNOWN : d / n;
    return 0;
}

/* ---- filling and repeating ---- */

int infer_tile(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    struct infer_ints reps;

    if (infer_get_ints(c, "reps", x->rank, &reps))
        return -1;
    c->out[0] = *x;
    for (int i = 0; i < x->rank; i++) {
        int64_t *d = &c->out[0].dims[i];

        if (!reps.known) {
            *d = MIL_DIM_UNKNOWN;
            continue;
        }
        if (reps.v[i] < 1)
            return infer_bad(c, "reps", "holds %lld, allowed: 1 and more",
                             (long long)reps.v[i]);
        *d = infer_dim_mul(*d, reps.v[i]);
        if (*d == -2)
            return infer_bad(c, "reps", "makes dim %d too large", i);
    }
    return 0;
}

int infer_fill(struct infer *c)
{
    const struct mil_type *value = infer_type(c, "value");
    struct infer_ints s;

    if (infer_get_ints(c, "shape", -1, &s))
        return -1;
    if (s.n > MIL_MAX_RANK)
        return infer_bad(c, "shape", "may have at most %d elements",
                         MIL_MAX_RANK);
    c->out[0].dtype = value ? value->dtype : MIL_F32;
    c->out[0].rank = s.n;
    for (int i = 0; i < s.n; i++) {
        if (s.known && s.v[i] < 0)
            return infer_bad(c, "shape", "holds %lld, allowed: 0 and more",
                             (long long)s.v[i]);
        c->out[0].dims[i] = s.known ? s.v[i] : MIL_DIM_UNKNOWN;
    }
    return 0;
}

/* ceil((end - start) / step), as the published definition computes it. */
static int range_count(const struct infer *c, const double v[3], int64_t *out)
{
    double n;

    if (!(v[2] > 0 || v[2] < 0))
        return infer_bad(c, "step", "is %g, it must not be 0", v[2]);
    n = (v[0] - v[1]) / v[2];
    if (!(n < 1e15))
        return infer_bad(c, "end", "is %g: the range has no sound length",
                         v[0]);
    *out = 0;
    if (n > 0)
        *out = (int64_t)n + ((double)(int64_t)n < n);
    return 0;
}

int infer_range_1d(struct infer *c)
{
    static const char *const params[3] = { "end", "start", "step" };
    double v[3];
    bool known = true;

    for (int i = 0; i < 3; i++) {
        const struct mil_value *a = mil_value(c->f, infer_ref(c, params[i]));

        known = known && a->konst && a->konst->bytes;
        v[i] = known ? mil_const_double(a->konst, 0) : 0;
    }
    c->out[0].dtype = infer_type(c, "end")->dtype;
    c->out[0].rank = 1;
    c->out[0].dims[0] = MIL_DIM_UNKNOWN;
    return known ? range_count(c, v, &c->out[0].dims[0]) : 0;
}

int infer_band_part(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    int64_t v;

    if (x->rank < 2)
        return infer_bad(c, "x", "must have rank 2 or more");
    if (infer_get_int(c, "lower", -1, &v) || infer_get_int(c, "upper", -1, &v))
        return -1;
    c->out[0] = *x;
    return 0;
}

int infer_shape(struct infer *c)
{
    c->out[0] = mil_type_make(MIL_I32, 1,
                              (const int64_t[]){ infer_type(c, "x")->rank });
    return 0;
}

static int pad_dim(const struct infer *c, int axis, const int64_t pair[2],
                   bool reflect, int64_t *d)
{
    if (pair[0] < 0 || pair[1] < 0)
        return infer_bad(c, "pad", "holds %lld, allowed: 0 and more",
                         (long long)(pair[0] < 0 ? pair[0] : pair[1]));
    if (*d < 0)
        return 0;
    if (reflect && (pair[0] >= *d || pair[1] >= *d) && (pair[0] || pair[1]))
        return infer_bad(c, "x",
                         "dim %d is too small to reflect %lld and %lld "
                         "elements",
                         axis, (long long)pair[0], (long long)pair[1]);
    if (*d > INT64_MAX - pair[0] - pair[1])
        return infer_bad(c, "pad", "makes dim %d too large", axis);
    *d += pair[0] + pair[1];
    return 0;
}

int infer_pad(struct infer *c)
{
    static const char *const modes[] = { "constant", "reflect", "replicate",
                                         NULL };
    const struct mil_type *x = infer_type(c, "x");
    struct infer_ints pad;
    int mode;

    if (infer_get_choice(c, "mode", "constant", modes, &mode) ||
        infer_get_ints(c, "pad", -1, &pad))
        return -1;
    if (pad.n % 2 != 0 || pad.n / 2 > x->rank)
        return infer_bad(c, "pad",
                         "must have 2 elements per padded dim, at most %d",
                         2 * x->rank);
    c->out[0] = *x;
    for (int i = 0; i < pad.n / 2; i++) {
        int axis = x->rank - pad.n / 2 + i;
        int64_t *d = &c->out[0].dims[axis];

        if (!pad.known)
            *d = MIL_DIM_UNKNOWN;
        else if (pad_dim(c, axis, &pad.v[2 * i], mode == 1, d))
            return -1;
    }
    return 0;
}
