/*
 * Gathers. An index outside its dim is an error that names it: on the device
 * such a read is undefined, so a program that does one is wrong. Large
 * constant tables stay in their source: only the rows asked for are read.
 */
#include "mil/run/run_priv.h"

#include <inttypes.h>

static int bad_index(const struct run_step *s, int64_t at, int64_t v, int64_t n,
                     struct err *e)
{
    return run_fail(s, e,
                    "index %" PRId64 " at position %" PRId64
                    ", allowed: 0 to %" PRId64,
                    v, at, n - 1);
}

/* One run of elements of x, wherever it lies. */
static int take(const struct run_slot *x, int64_t from, int64_t n, void *dst,
                struct err *e)
{
    if (!x->data)
        return run_const_floats(x->konst, from, n, dst, e);
    memcpy(dst, (const float *)x->data + from, (size_t)n * sizeof(float));
    return 0;
}

static int64_t product(const int64_t *d, int from, int to)
{
    int64_t p = 1;

    for (int i = from; i < to; i++)
        p *= d[i];
    return p;
}

/* ---- gather ---- */

int prepare_gather(struct run_ctx *c, struct run_step *s, struct err *e)
{
    const struct mil_type *x = &run_arg(s, P_gather_x)->type;
    const struct mil_type *ix = &run_arg(s, P_gather_indices)->type;
    int64_t axis = run_int(s, P_gather_axis, 0);
    int64_t batch = run_int(s, P_gather_batch_dims, 0);

    (void)c;
    (void)e;
    axis += axis < 0 ? x->rank : 0;
    s->p.gather.axis = (int)batch;
    s->p.gather.idx_outer = product(x->dims, 0, (int)batch);
    s->p.gather.outer = product(x->dims, (int)batch, (int)axis);
    s->p.gather.n = x->dims[axis];
    s->p.gather.inner = product(x->dims, (int)axis + 1, x->rank);
    s->p.gather.count = product(ix->dims, (int)batch, ix->rank);
    return 0;
}

int run_gather(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_gather_x);
    const int32_t *ix = run_arg(s, P_gather_indices)->data;
    float *out = run_out(s, 0)->data;
    int64_t n = s->p.gather.n, inner = s->p.gather.inner;
    int64_t count = s->p.gather.count, outer = s->p.gather.outer;

    (void)c;
    for (int64_t b = 0; b < s->p.gather.idx_outer; b++)
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < count; i++, out += inner) {
                int64_t v = ix[b * count + i];

                if (v < 0 || v >= n)
                    return bad_index(s, i, v, n, e);
                if (take(x, ((b * outer + o) * n + v) * inner, inner, out, e))
                    return err_in(e, "gather: row %" PRId64, v);
            }
    return 0;
}

/* ---- gather_along_axis ---- */

int prepare_gather_along_axis(struct run_ctx *c, struct run_step *s,
                              struct err *e)
{
    const struct mil_type *x = &run_arg(s, P_gather_along_axis_x)->type;
    const struct mil_type *y = &run_out(s, 0)->type;
    int64_t axis = run_int(s, P_gather_along_axis_axis, 0);

    (void)c;
    (void)e;
    axis += axis < 0 ? x->rank : 0;
    s->p.gather.outer = product(x->dims, 0, (int)axis);
    s->p.gather.n = x->dims[axis];
    s->p.gather.inner = product(x->dims, (int)axis + 1, x->rank);
    s->p.gather.count = y->dims[axis];
    return 0;
}

int run_gather_along_axis(struct run_ctx *c, const struct run_step *s,
                          struct err *e)
{
    const uint32_t *x = run_arg(s, P_gather_along_axis_x)->data;
    const int32_t *ix = run_arg(s, P_gather_along_axis_indices)->data;
    uint32_t *out = run_out(s, 0)->data;
    int64_t n = s->p.gather.n, inner = s->p.gather.inner;
    int64_t elems = run_out(s, 0)->elems;

    (void)c;
    for (int64_t i = 0; i < elems; i++) {
        int64_t v = ix[i], t = i % inner;
        int64_t o = i / inner / s->p.gather.count;

        if (v < 0 || v >= n)
            return bad_index(s, i, v, n, e);
        out[i] = x[(o * n + v) * inner + t];
    }
    return 0;
}

/* ---- gather_nd ---- */

int prepare_gather_nd(struct run_ctx *c, struct run_step *s, struct err *e)
{
    const struct mil_type *x = &run_arg(s, P_gather_nd_x)->type;
    const struct mil_type *ix = &run_arg(s, P_gather_nd_indices)->type;
    int64_t batch = run_int(s, P_gather_nd_batch_dims, 0);
    int64_t k = ix->dims[ix->rank - 1];

    (void)c;
    (void)e;
    s->p.gather.axis = (int)batch;
    s->p.gather.idx_outer = product(x->dims, 0, (int)batch);
    s->p.gather.outer = product(x->dims, (int)batch, x->rank);
    s->p.gather.n = k;
    s->p.gather.inner = product(x->dims, (int)(batch + k), x->rank);
    s->p.gather.count = product(ix->dims, (int)batch, ix->rank - 1);
    return 0;
}

int run_gather_nd(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_gather_nd_x);
    const int32_t *ix = run_arg(s, P_gather_nd_indices)->data;
    float *out = run_out(s, 0)->data;
    int64_t k = s->p.gather.n, inner = s->p.gather.inner;
    int64_t total = s->p.gather.idx_outer * s->p.gather.count;

    (void)c;
    for (int64_t i = 0; i < total; i++, out += inner) {
        int64_t at = 0;

        for (int64_t j = 0; j < k; j++) {
            int64_t d = x->type.dims[s->p.gather.axis + j];
            int64_t v = ix[i * k + j];

            if (v < 0 || v >= d)
                return bad_index(s, i * k + j, v, d, e);
            at = at * d + v;
        }
        at = i / s->p.gather.count * s->p.gather.outer + at * inner;
        if (take(x, at, inner, out, e))
            return err_in(e, "gather_nd");
    }
    return 0;
}
