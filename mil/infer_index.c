/*
 * Type inference of slices and gathers.
 */
#include "mil/infer_priv.h"

#include <string.h>

/* ---- slices ---- */

struct slice {
    struct infer_ints begin, end, stride, begin_mask, end_mask, squeeze_mask;
};

static int slice_params(const struct infer *c, int rank, struct slice *s)
{
    if (infer_get_ints(c, "begin", rank, &s->begin) ||
        infer_get_ints(c, "end", rank, &s->end) ||
        infer_get_ints(c, "stride", rank, &s->stride) ||
        infer_get_ints(c, "begin_mask", rank, &s->begin_mask) ||
        infer_get_ints(c, "end_mask", rank, &s->end_mask) ||
        infer_get_ints(c, "squeeze_mask", rank, &s->squeeze_mask))
        return -1;
    for (int i = 0; i < rank; i++) {
        if (!s->stride.present)
            s->stride.v[i] = 1;
        if (s->stride.v[i] == 0)
            return infer_bad(c, "stride", "holds 0");
    }
    return 0;
}

/* A begin or end of a dim of n elements, as numpy counts it. */
static int64_t wrap(int64_t v, int64_t n)
{
    if (v < 0)
        v = v + n < 0 ? 0 : v + n;
    return v;
}

/* Elements that one dim keeps: everything is known. */
static int64_t slice_count(const struct slice *s, int i, int64_t n)
{
    int64_t stride = s->stride.v[i], span;
    int64_t begin = wrap(s->begin.v[i], n), end = wrap(s->end.v[i], n);

    if (stride > 0) {
        begin = s->begin_mask.v[i] ? 0 : begin;
        end = s->end_mask.v[i] || end > n ? n : end;
        span = end - begin;
    } else {
        begin = s->begin_mask.v[i] || begin > n - 1 ? n - 1 : begin;
        end = s->end_mask.v[i] ? -1 : end;
        span = begin - end;
        stride = stride == INT64_MIN ? INT64_MAX : -stride;
    }
    return span <= 0 ? 0 : span / stride + (span % stride != 0);
}

static int slice_dim(const struct infer *c, const struct slice *s, int i,
                     int64_t n, int64_t *out)
{
    bool both = s->begin_mask.v[i] && s->end_mask.v[i];
    bool known = s->begin.known && s->end.known;
    int64_t b = s->begin.v[i], e = s->end.v[i];

    if (known && !s->begin_mask.v[i] && !s->end_mask.v[i] && b >= 0 && e >= 0 &&
        e < b && s->stride.v[i] > 0)
        return infer_bad(c, "end", "dim %d: end %lld lies before begin %lld", i,
                         (long long)e, (long long)b);
    if (n >= 0 && (both || known))
        *out = slice_count(s, i, n);
    else if (n == 1)
        *out = 1;
    else
        *out = MIL_DIM_UNKNOWN;
    return 0;
}

int infer_slice(const struct infer *c, struct mil_type *out)
{
    const struct mil_type *x = infer_type(c, "x");
    struct slice s;
    int n = 0;

    if (x->rank < 1)
        return infer_bad(c, "x", "must have rank 1 or more");
    if (slice_params(c, x->rank, &s))
        return -1;
    out->dtype = x->dtype;
    for (int i = 0; i < x->rank; i++) {
        int64_t d = x->dims[i], b = s.begin.v[i];

        if (!s.squeeze_mask.v[i]) {
            if (slice_dim(c, &s, i, d, &out->dims[n++]))
                return -1;
        } else if (s.begin.known && !s.begin_mask.v[i] && d >= 0 &&
                   (b < -d || b >= d)) {
            return infer_bad(c, "begin",
                             "dim %d: element %lld of %lld is squeezed out", i,
                             (long long)b, (long long)d);
        }
    }
    out->rank = n;
    return 0;
}

int infer_slice_by_index(struct infer *c)
{
    return infer_slice(c, &c->out[0]);
}

int infer_slice_update(struct infer *c)
{
    const struct mil_type *u = infer_type(c, "update");
    char text[MIL_TYPE_TEXT_MAX];
    struct mil_type part;
    int64_t d;
    bool ok;

    memset(&part, 0, sizeof part);
    if (infer_slice(c, &part))
        return -1;
    ok = u->rank >= 1 && u->rank == part.rank;
    for (int i = 0; ok && i < u->rank; i++)
        ok = infer_unify(u->dims[i], part.dims[i], &d);
    if (!ok) {
        mil_type_text(&part, text);
        return infer_bad(c, "update", "must have the shape of the slice, %s",
                         text);
    }
    c->out[0] = *infer_type(c, "x");
    return 0;
}

static int size_dim(const struct infer *c, int i, int64_t n,
                    const struct infer_ints *begin, int64_t size, int64_t *out)
{
    int64_t b = begin->v[i];

    if (size < -1 || (n >= 0 && size > n))
        return infer_bad(c, "size", "dim %d: %lld of %lld elements", i,
                         (long long)size, (long long)n);
    *out = size >= 0 ? size : MIL_DIM_UNKNOWN;
    if (!begin->known || n < 0)
        return 0;
    if (b < 0)
        b += n;
    if (b < 0 || b > n || (size >= 0 && b > n - size))
        return infer_bad(c, "begin",
                         "dim %d: %lld elements from %lld on exceed %lld", i,
                         (long long)size, (long long)begin->v[i], (long long)n);
    if (size < 0)
        *out = n - b;
    return 0;
}

int infer_slice_by_size(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    struct infer_ints begin, size;

    if (x->rank < 1)
        return infer_bad(c, "x", "must have rank 1 or more");
    if (infer_get_ints(c, "begin", x->rank, &begin) ||
        infer_get_ints(c, "size", x->rank, &size))
        return -1;
    c->out[0] = *x;
    for (int i = 0; i < x->rank; i++) {
        if (!size.known)
            c->out[0].dims[i] = MIL_DIM_UNKNOWN;
        else if (size_dim(c, i, x->dims[i], &begin, size.v[i],
                          &c->out[0].dims[i]))
            return -1;
    }
    return 0;
}

/* ---- gathers ---- */

/* Constant indices are checked against the dim: from iOS 17 on a negative
 * one is out of bounds, and such reads are undefined. */
static int check_indices(const struct infer *c, int64_t n)
{
    const struct mil_const *k = mil_value(c->f, infer_ref(c, "indices"))->konst;
    int64_t elems = k && k->bytes ? mil_type_elems(&k->type) : 0;

    for (int64_t i = 0; i < elems && n >= 0; i++) {
        int64_t v = mil_const_int(k, i);

        if (v < 0 || v >= n)
            return infer_bad(c, "indices", "holds %lld, allowed: 0 to %lld",
                             (long long)v, (long long)n - 1);
    }
    return 0;
}

static int shapes_fail(const struct infer *c, const char *rule)
{
    char x[MIL_TYPE_TEXT_MAX], ix[MIL_TYPE_TEXT_MAX];

    mil_type_text(infer_type(c, "x"), x);
    mil_type_text(infer_type(c, "indices"), ix);
    return infer_fail(c, "'x' (%s) and 'indices' (%s): %s", x, ix, rule);
}

static int batch_dims(const struct infer *c, int limit, int *out)
{
    const struct mil_type *x = infer_type(c, "x");
    const struct mil_type *ix = infer_type(c, "indices");
    int64_t b, d;

    if (infer_get_int(c, "batch_dims", 0, &b))
        return -1;
    if (b < 0 || b > limit)
        return infer_bad(c, "batch_dims", "is %lld, allowed: 0 to %d",
                         (long long)b, limit);
    for (int i = 0; i < (int)b; i++) {
        if (!infer_unify(x->dims[i], ix->dims[i], &d))
            return shapes_fail(c, "batch dims must be equal");
    }
    *out = (int)b;
    return 0;
}

static int append(const struct infer *c, struct mil_type *out,
                  const struct mil_type *t, int from, int to)
{
    for (int i = from; i < to; i++) {
        if (out->rank == MIL_MAX_RANK)
            return shapes_fail(c, "the result's rank is too large");
        out->dims[out->rank++] = t->dims[i];
    }
    return 0;
}

int infer_gather(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    const struct mil_type *ix = infer_type(c, "indices");
    struct mil_type *out = &c->out[0];
    int axis, b, limit;

    if (x->rank < 1)
        return infer_bad(c, "x", "must have rank 1 or more");
    if (infer_get_axis(c, "axis", 0, x->rank, &axis))
        return -1;
    limit = axis < ix->rank ? axis : ix->rank;
    if (batch_dims(c, limit, &b) || check_indices(c, x->dims[axis]))
        return -1;
    out->dtype = x->dtype;
    if (append(c, out, x, 0, axis) || append(c, out, ix, b, ix->rank) ||
        append(c, out, x, axis + 1, x->rank))
        return -1;
    return 0;
}

int infer_gather_along_axis(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    const struct mil_type *ix = infer_type(c, "indices");
    int axis;

    if (x->rank < 1 || x->rank != ix->rank)
        return shapes_fail(c, "both must have one rank of 1 or more");
    if (infer_get_axis(c, "axis", 0, x->rank, &axis))
        return -1;
    c->out[0] = *ix;
    c->out[0].dtype = x->dtype;
    for (int i = 0; i < x->rank; i++) {
        if (i != axis &&
            !infer_unify(ix->dims[i], x->dims[i], &c->out[0].dims[i]))
            return shapes_fail(c, "dims besides the axis must be equal");
    }
    return check_indices(c, x->dims[axis]);
}

int infer_gather_nd(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    const struct mil_type *ix = infer_type(c, "indices");
    int limit = x->rank < ix->rank - 1 ? x->rank : ix->rank - 1, b;
    int64_t k;

    if (x->rank < 1 || ix->rank < 1)
        return shapes_fail(c, "both must have rank 1 or more");
    if (batch_dims(c, limit, &b))
        return -1;
    k = ix->dims[ix->rank - 1];
    if (k < 1 || k > x->rank - b)
        return infer_bad(c, "indices",
                         "its last dim must be known and lie in 1 to %d",
                         x->rank - b);
    c->out[0].dtype = x->dtype;
    if (append(c, &c->out[0], ix, 0, ix->rank - 1) ||
        append(c, &c->out[0], x, b + (int)k, x->rank))
        return -1;
    return 0;
}
