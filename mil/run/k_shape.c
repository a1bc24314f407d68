/*
 * Shape changes and data movement. What lies contiguously in its argument is
 * a view and costs nothing; the rest is strided copies.
 */
#include "mil/run/run_priv.h"

#include <inttypes.h>

/* ---- the same elements in another shape ---- */

static int copy_all(const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, 0);
    struct run_slot *y = run_out(s, 0);

    if (x->elems != y->elems)
        return run_fail(s, e, "%" PRId64 " elements do not fill %" PRId64,
                        x->elems, y->elems);
    if (y->data != x->data)
        memmove(y->data, x->data, (size_t)y->elems * sizeof(float));
    return 0;
}

static bool view_all(const struct run_step *s, mil_ref *src, int64_t *offset)
{
    *src = mil_arg(s->op, 0);
    *offset = 0;
    return run_arg(s, 0)->elems == run_out(s, 0)->elems;
}

#define SAME_ELEMENTS(id)                                                    \
    int run_##id(struct run_ctx *c, const struct run_step *s, struct err *e) \
    {                                                                        \
        (void)c;                                                             \
        return copy_all(s, e);                                               \
    }                                                                        \
    bool view_##id(const struct run_step *s, uint32_t out, mil_ref *src,     \
                   int64_t *offset)                                          \
    {                                                                        \
        (void)out;                                                           \
        return view_all(s, src, offset);                                     \
    }
SAME_ELEMENTS(reshape)
SAME_ELEMENTS(expand_dims)
SAME_ELEMENTS(squeeze)
SAME_ELEMENTS(identity)

/* ---- transpose ---- */

int prepare_transpose(struct run_ctx *c, struct run_step *s, struct err *e)
{
    const struct mil_type *x = &run_arg(s, P_transpose_x)->type;
    const struct mil_type *y = &run_out(s, 0)->type;
    int64_t perm[MIL_MAX_RANK], strides[MIL_MAX_RANK];
    struct nd *nd = &s->p.nd;
    int n;

    (void)c;
    if (run_ints(s, P_transpose_perm, MIL_MAX_RANK, perm, &n, e))
        return -1;
    nd_strides(x, strides);
    nd->rank = y->rank;
    nd_strides(y, nd->ds);
    for (int i = 0; i < nd->rank; i++) {
        nd->d[i] = y->dims[i];
        nd->ss[i] = strides[perm[i] < 0 ? perm[i] + x->rank : perm[i]];
    }
    return 0;
}

int run_transpose(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    (void)e;
    nd_copy(c->par, run_out(s, 0)->data, run_arg(s, P_transpose_x)->data,
            &s->p.nd);
    return 0;
}

/* Elements that keep their places: only dims of size 1 moved. */
bool view_transpose(const struct run_step *s, uint32_t out, mil_ref *src,
                    int64_t *offset)
{
    const struct nd *nd = &s->p.nd;

    (void)out;
    for (int i = 0; i < nd->rank; i++)
        if (nd->d[i] != 1 && nd->ss[i] != nd->ds[i])
            return false;
    return view_all(s, src, offset);
}

/* ---- slices ---- */

struct slice {
    int rank;
    int64_t begin[MIL_MAX_RANK], stride[MIL_MAX_RANK], count[MIL_MAX_RANK];
    bool squeeze[MIL_MAX_RANK];
};

/* Parameters of slice_by_index and slice_update stand in one order, behind x
 * (and update): begin, end, stride, three masks. */
static int slice_params(const struct run_step *s, int first, int rank,
                        int64_t v[6][MIL_MAX_RANK], struct err *e)
{
    for (int i = 0; i < 6; i++) {
        int n;

        for (int j = 0; j < MIL_MAX_RANK; j++)
            v[i][j] = i == 2;
        if (run_ints(s, first + i, rank, v[i], &n, e))
            return -1;
    }
    return 0;
}

static int64_t wrap(int64_t v, int64_t n)
{
    return v >= 0 ? v : v + n < 0 ? 0 : v + n;
}

/* One dim of n elements, as numpy counts. */
static void slice_dim(struct slice *sl, int i, int64_t n, int64_t begin,
                      int64_t end, bool begin_mask, bool end_mask)
{
    int64_t st = sl->stride[i], span;

    begin = wrap(begin, n);
    end = wrap(end, n);
    if (st > 0) {
        begin = begin_mask ? 0 : begin;
        end = end_mask || end > n ? n : end;
        span = end - begin;
    } else {
        begin = begin_mask || begin > n - 1 ? n - 1 : begin;
        end = end_mask ? -1 : end;
        span = begin - end;
        st = -st;
    }
    sl->begin[i] = begin;
    sl->count[i] = span <= 0 ? 0 : (span + st - 1) / st;
}

static int slice_of(const struct run_step *s, const struct mil_type *x,
                    int first, struct slice *sl, struct err *e)
{
    int64_t v[6][MIL_MAX_RANK];

    sl->rank = x->rank;
    if (slice_params(s, first, x->rank, v, e))
        return -1;
    for (int i = 0; i < x->rank; i++) {
        int64_t n = x->dims[i], b = v[0][i];

        sl->stride[i] = v[2][i];
        sl->squeeze[i] = v[5][i] != 0;
        if (v[2][i] == 0)
            return run_fail(s, e, "stride 0 in dim %d", i);
        if (!sl->squeeze[i]) {
            slice_dim(sl, i, n, b, v[1][i], v[3][i] != 0, v[4][i] != 0);
            continue;
        }
        b = v[3][i] ? (v[2][i] > 0 ? 0 : n - 1) : b < 0 ? b + n : b;
        if (b < 0 || b >= n)
            return run_fail(s, e,
                            "element %" PRId64 " of %" PRId64
                            " in dim %d is taken",
                            v[0][i], n, i);
        sl->begin[i] = b;
        sl->count[i] = 1;
    }
    return 0;
}

/* Whether the slice's kept dims are those of `t`. */
static bool slice_fits(const struct slice *sl, const struct mil_type *t)
{
    int n = 0;

    for (int i = 0; i < sl->rank; i++) {
        if (sl->squeeze[i])
            continue;
        if (n >= t->rank || t->dims[n++] != sl->count[i])
            return false;
    }
    return n == t->rank;
}

static int slice_misfit(const struct run_step *s, const struct slice *sl,
                        const struct mil_type *t, struct err *e)
{
    struct mil_type got = { .dtype = t->dtype };
    char a[MIL_TYPE_TEXT_MAX], b[MIL_TYPE_TEXT_MAX];

    for (int i = 0; i < sl->rank; i++)
        if (!sl->squeeze[i])
            got.dims[got.rank++] = sl->count[i];
    mil_type_text(&got, a);
    mil_type_text(t, b);
    return run_fail(s, e, "the slice at these positions is %s, %s is expected",
                    a, b);
}

/* The strided part of x that the slice is. */
static int64_t slice_nd(const struct slice *sl, const struct mil_type *x,
                        struct nd *nd)
{
    int64_t strides[MIL_MAX_RANK], at = 0, dense = 1;

    nd_strides(x, strides);
    nd->rank = sl->rank;
    for (int i = sl->rank - 1; i >= 0; i--) {
        at += sl->begin[i] * strides[i];
        nd->d[i] = sl->count[i];
        nd->ss[i] = sl->stride[i] * strides[i];
        nd->ds[i] = dense;
        dense *= sl->count[i];
    }
    return at;
}

static bool nd_is_dense(const struct nd *nd)
{
    for (int i = 0; i < nd->rank; i++)
        if (nd->d[i] != 1 && nd->ss[i] != nd->ds[i])
            return false;
    return true;
}

static int slice_copy(struct run_ctx *c, const struct run_step *s,
                      const struct slice *sl, struct err *e)
{
    const struct run_slot *x = run_arg(s, 0);
    struct run_slot *y = run_out(s, 0);
    struct nd nd;
    int64_t at;

    if (!slice_fits(sl, &y->type))
        return slice_misfit(s, sl, &y->type, e);
    at = slice_nd(sl, &x->type, &nd);
    if (y->elems > 0)
        nd_copy(c->par, y->data, (const float *)x->data + at, &nd);
    return 0;
}

static bool slice_view(const struct run_step *s, const struct slice *sl,
                       mil_ref *src, int64_t *offset)
{
    struct nd nd;

    *src = mil_arg(s->op, 0);
    *offset = slice_nd(sl, &run_arg(s, 0)->type, &nd);
    return nd_is_dense(&nd) && slice_fits(sl, &run_out(s, 0)->type) &&
           run_out(s, 0)->elems > 0;
}

static bool known(const struct run_step *s, int param)
{
    const struct run_slot *v = run_arg(s, param);

    return !v || v->konst;
}

int run_slice_by_index(struct run_ctx *c, const struct run_step *s,
                       struct err *e)
{
    struct slice sl;

    if (slice_of(s, &run_arg(s, 0)->type, P_slice_by_index_begin, &sl, e))
        return -1;
    return slice_copy(c, s, &sl, e);
}

bool view_slice_by_index(const struct run_step *s, uint32_t out, mil_ref *src,
                         int64_t *offset)
{
    struct err unused = ERR_INIT;
    struct slice sl;

    (void)out;
    return known(s, P_slice_by_index_begin) && known(s, P_slice_by_index_end) &&
           slice_of(s, &run_arg(s, 0)->type, P_slice_by_index_begin, &sl,
                    &unused) == 0 &&
           slice_view(s, &sl, src, offset);
}

static int size_slice(const struct run_step *s, struct slice *sl, struct err *e)
{
    const struct mil_type *x = &run_arg(s, 0)->type;
    int64_t begin[MIL_MAX_RANK], size[MIL_MAX_RANK];
    int n;

    memset(sl, 0, sizeof(*sl));
    sl->rank = x->rank;
    if (run_ints(s, P_slice_by_size_begin, x->rank, begin, &n, e) ||
        run_ints(s, P_slice_by_size_size, x->rank, size, &n, e))
        return -1;
    for (int i = 0; i < x->rank; i++) {
        int64_t b = begin[i] < 0 ? begin[i] + x->dims[i] : begin[i];
        int64_t k = size[i] == -1 ? x->dims[i] - b : size[i];

        if (b < 0 || k < 0 || b > x->dims[i] || k > x->dims[i] - b)
            return run_fail(s, e,
                            "dim %d: %" PRId64 " elements from %" PRId64
                            " on exceed %" PRId64,
                            i, size[i], begin[i], x->dims[i]);
        sl->begin[i] = b;
        sl->count[i] = k;
        sl->stride[i] = 1;
    }
    return 0;
}

int run_slice_by_size(struct run_ctx *c, const struct run_step *s,
                      struct err *e)
{
    struct slice sl;

    if (size_slice(s, &sl, e))
        return -1;
    return slice_copy(c, s, &sl, e);
}

bool view_slice_by_size(const struct run_step *s, uint32_t out, mil_ref *src,
                        int64_t *offset)
{
    struct err unused = ERR_INIT;
    struct slice sl;

    (void)out;
    return known(s, P_slice_by_size_begin) && known(s, P_slice_by_size_size) &&
           size_slice(s, &sl, &unused) == 0 && slice_view(s, &sl, src, offset);
}

int run_slice_update(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_slice_update_x);
    const struct run_slot *u = run_arg(s, P_slice_update_update);
    struct run_slot *y = run_out(s, 0);
    struct slice sl;
    struct nd nd;
    int64_t at;

    if (slice_of(s, &x->type, P_slice_update_begin, &sl, e))
        return -1;
    if (!slice_fits(&sl, &u->type))
        return slice_misfit(s, &sl, &u->type, e);
    if (y->data != x->data)
        memcpy(y->data, x->data, (size_t)x->elems * sizeof(float));
    at = slice_nd(&sl, &x->type, &nd);
    for (int i = 0; i < nd.rank; i++) {
        int64_t t = nd.ss[i];

        nd.ss[i] = nd.ds[i];
        nd.ds[i] = t;
    }
    if (u->elems > 0)
        nd_copy(c->par, (float *)y->data + at, u->data, &nd);
    return 0;
}

/* ---- concat, stack, split ---- */

static int axis_of(const struct run_step *s, int param, int rank)
{
    int64_t a = run_int(s, param, 0);

    return (int)(a < 0 ? a + rank : a);
}

/* Blocks of the result around an axis. */
static void join_init(struct run_step *s, const struct mil_type *t, int axis)
{
    s->p.join.axis = axis;
    s->p.join.outer = s->p.join.inner = 1;
    for (int i = 0; i < axis; i++)
        s->p.join.outer *= t->dims[i];
    for (int i = axis + 1; i < t->rank; i++)
        s->p.join.inner *= t->dims[i];
}

int prepare_concat(struct run_ctx *c, struct run_step *s, struct err *e)
{
    const struct mil_type *y = &run_out(s, 0)->type;

    (void)c;
    (void)e;
    join_init(s, y, axis_of(s, P_concat_axis, y->rank));
    s->p.join.interleave = run_bool(s, P_concat_interleave, false);
    return 0;
}

int run_concat(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    struct run_slot *y = run_out(s, 0);
    int64_t inner = s->p.join.inner, outer = s->p.join.outer, at = 0;
    int64_t row = outer ? y->elems / outer : 0;
    uint32_t n = s->op->args[P_concat_values].n;

    (void)e;
    for (uint32_t i = 0; i < n; i++) {
        const struct run_slot *x = run_item(s, P_concat_values, i);
        int64_t len = outer ? x->elems / outer : 0;
        int64_t steps = inner ? len / inner : 0;
        struct nd nd = { .rank = 3,
                         .d = { outer, steps, inner },
                         .ss = { len, inner, 1 },
                         .ds = { row, inner, 1 } };

        if (x->elems == 0)
            continue;
        if (s->p.join.interleave)
            nd.ds[1] = inner * n;
        nd_copy(c->par, (float *)y->data + at, x->data, &nd);
        at += s->p.join.interleave ? inner : len;
    }
    return 0;
}

int prepare_stack(struct run_ctx *c, struct run_step *s, struct err *e)
{
    const struct mil_type *y = &run_out(s, 0)->type;

    (void)c;
    (void)e;
    join_init(s, y, axis_of(s, P_stack_axis, y->rank));
    return 0;
}

int run_stack(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    struct run_slot *y = run_out(s, 0);
    int64_t inner = s->p.join.inner, outer = s->p.join.outer;
    uint32_t n = s->op->args[P_stack_values].n;

    (void)e;
    for (uint32_t i = 0; i < n; i++) {
        struct nd nd = { .rank = 2,
                         .d = { outer, inner },
                         .ss = { inner, 1 },
                         .ds = { inner * n, 1 } };

        nd_copy(c->par, (float *)y->data + i * inner,
                run_item(s, P_stack_values, i)->data, &nd);
    }
    return 0;
}

int prepare_split(struct run_ctx *c, struct run_step *s, struct err *e)
{
    const struct mil_type *x = &run_arg(s, P_split_x)->type;

    (void)c;
    (void)e;
    join_init(s, x, axis_of(s, P_split_axis, x->rank));
    return 0;
}

static int64_t split_offset(const struct run_step *s, uint32_t out)
{
    int64_t at = 0;

    for (uint32_t i = 0; i < out; i++)
        at += run_out(s, i)->type.dims[s->p.join.axis];
    return at * s->p.join.inner;
}

int run_split(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_split_x);
    int64_t outer = s->p.join.outer, row = outer ? x->elems / outer : 0;

    (void)e;
    for (uint32_t i = 0; i < s->op->n_outs; i++) {
        struct run_slot *y = run_out(s, i);
        int64_t len = outer ? y->elems / outer : 0;
        struct nd nd = {
            .rank = 2, .d = { outer, len }, .ss = { row, 1 }, .ds = { len, 1 }
        };
        const float *from = (const float *)x->data + split_offset(s, i);

        if (y->data != from)
            nd_copy(c->par, y->data, from, &nd);
    }
    return 0;
}

bool view_split(const struct run_step *s, uint32_t out, mil_ref *src,
                int64_t *offset)
{
    *src = mil_arg(s->op, P_split_x);
    *offset = split_offset(s, out);
    return s->p.join.outer == 1 && run_out(s, out)->elems > 0;
}

/* ---- tile, pad, band_part ---- */

int run_tile(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_tile_x);
    struct run_slot *y = run_out(s, 0);
    int rank = x->type.rank;
    int64_t xs[MIL_MAX_RANK], ys[MIL_MAX_RANK];
    struct nd nd = { 0 };

    if (2 * rank > ND_MAX)
        return run_fail(s, e, "rank %d is more than %d", rank, ND_MAX / 2);
    nd_strides(&x->type, xs);
    nd_strides(&y->type, ys);
    for (int i = 0; i < rank; i++) {
        int64_t d = x->type.dims[i];

        nd.d[2 * i] = d ? y->type.dims[i] / d : 0;
        nd.ss[2 * i] = 0;
        nd.ds[2 * i] = d * ys[i];
        nd.d[2 * i + 1] = d;
        nd.ss[2 * i + 1] = xs[i];
        nd.ds[2 * i + 1] = ys[i];
    }
    nd.rank = 2 * rank;
    if (y->elems > 0)
        nd_copy(c->par, y->data, x->data, &nd);
    return 0;
}

/* Source index of padded index i; -1: the constant. */
static int64_t pad_index(int64_t i, int64_t before, int64_t n, int mode)
{
    int64_t j = i - before;

    if (j >= 0 && j < n)
        return j;
    if (mode == 0)
        return -1;
    if (mode == 1)
        return j < 0 ? -j : 2 * (n - 1) - j;
    return j < 0 ? 0 : n - 1;
}

int run_pad(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_pad_x);
    struct run_slot *y = run_out(s, 0);
    const char *text = run_text(s, P_pad_mode, "constant");
    int mode = strcmp(text, "reflect") == 0     ? 1
               : strcmp(text, "replicate") == 0 ? 2
                                                : 0;
    float value = run_float(s, P_pad_constant_val, 0.0f);
    int64_t pad[2 * MIL_MAX_RANK], xs[MIL_MAX_RANK];
    int rank = x->type.rank, n, first;

    (void)c;
    if (run_ints(s, P_pad_pad, 2 * MIL_MAX_RANK, pad, &n, e))
        return -1;
    first = rank - n / 2;
    nd_strides(&x->type, xs);
    for (int64_t i = 0; i < y->elems; i++) {
        int64_t rest = i, at = 0;

        for (int d = rank - 1; d >= 0 && at >= 0; d--) {
            int64_t j = rest % y->type.dims[d];

            rest /= y->type.dims[d];
            if (d >= first)
                j = pad_index(j, pad[2 * (d - first)], x->type.dims[d], mode);
            if (j >= x->type.dims[d] || j < (mode == 0 ? -1 : 0))
                return run_fail(s, e,
                                "dim %d: padding exceeds the size %" PRId64, d,
                                x->type.dims[d]);
            at = j < 0 ? -1 : at + j * xs[d];
        }
        ((float *)y->data)[i] = at < 0 ? value : ((const float *)x->data)[at];
    }
    return 0;
}

int run_band_part(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_band_part_x);
    struct run_slot *y = run_out(s, 0);
    int64_t lower = run_int(s, P_band_part_lower, -1);
    int64_t upper = run_int(s, P_band_part_upper, -1);
    int rank = x->type.rank;
    int64_t cols = x->type.dims[rank - 1], rows = x->type.dims[rank - 2];
    const uint32_t *src = x->data;
    uint32_t *dst = y->data;

    (void)c;
    (void)e;
    for (int64_t i = 0; i < y->elems; i++) {
        int64_t n = i % cols, m = i / cols % rows;
        bool keep =
            (lower < 0 || m - n <= lower) && (upper < 0 || n - m <= upper);

        dst[i] = keep ? src[i] : 0;
    }
    return 0;
}

/* ---- fill, range_1d, shape ---- */

int run_fill(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *v = run_arg(s, P_fill_value);
    struct run_slot *y = run_out(s, 0);
    uint32_t bits = 0;

    (void)c;
    (void)e;
    if (v)
        memcpy(&bits, v->data, sizeof(bits));
    for (int64_t i = 0; i < y->elems; i++)
        ((uint32_t *)y->data)[i] = bits;
    return 0;
}

int run_range_1d(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *start = run_arg(s, P_range_1d_start);
    const struct run_slot *step = run_arg(s, P_range_1d_step);
    struct run_slot *y = run_out(s, 0);

    (void)e;
    for (int64_t i = 0; i < y->elems; i++) {
        if (run_is_float(y))
            ((float *)y->data)[i] =
                *(float *)start->data + (float)i * *(float *)step->data;
        else
            ((int32_t *)y->data)[i] =
                (int32_t)((uint32_t) * (int32_t *)start->data +
                          (uint32_t)i * (uint32_t) * (int32_t *)step->data);
    }
    if (s->round)
        c->k->round(y->data, y->data, (size_t)y->elems);
    return 0;
}

int run_shape(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_shape_x);
    struct run_slot *y = run_out(s, 0);

    (void)c;
    for (int64_t i = 0; i < y->elems; i++) {
        if (x->type.dims[i] > INT32_MAX)
            return run_fail(s, e, "dim %" PRId64 " is beyond int32", i);
        ((int32_t *)y->data)[i] = (int32_t)x->type.dims[i];
    }
    return 0;
}

/* ---- states ---- */

int run_read_state(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    (void)c;
    return copy_all(s, e);
}

bool view_read_state(const struct run_step *s, uint32_t out, mil_ref *src,
                     int64_t *offset)
{
    (void)out;
    return !s->own_read && view_all(s, src, offset);
}

int run_write_state(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    struct run_slot *state = run_arg(s, P_write_state_input);
    const struct run_slot *x = run_arg(s, P_write_state_data);

    (void)c;
    (void)e;
    if (state->data != x->data)
        memmove(state->data, x->data, (size_t)x->elems * sizeof(float));
    return 0;
}
