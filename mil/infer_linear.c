/*
 * Type inference of convolutions and products.
 */
#include "mil/infer_priv.h"

#include <string.h>

/* ---- conv ---- */

enum { PAD_VALID, PAD_CUSTOM, PAD_SAME, PAD_SAME_LOWER };

struct conv {
    int s; /* spatial dims */
    int pad_type;
    struct infer_ints strides, dilations, pad;
    int64_t groups;
};

/* A positive vector, 1s when absent. */
static int positive(const struct infer *c, const char *param, int n,
                    struct infer_ints *v)
{
    if (infer_get_ints(c, param, n, v))
        return -1;
    for (int i = 0; i < n; i++) {
        if (!v->present)
            v->v[i] = 1;
        if (v->v[i] < 1 || v->v[i] > INT32_MAX)
            return infer_bad(c, param, "holds %lld, allowed: 1 and more",
                             (long long)v->v[i]);
    }
    return 0;
}

static int conv_params(const struct infer *c, struct conv *p)
{
    static const char *const types[] = { "valid", "custom", "same",
                                         "same_lower", NULL };

    if (positive(c, "strides", p->s, &p->strides) ||
        positive(c, "dilations", p->s, &p->dilations) ||
        infer_get_choice(c, "pad_type", "valid", types, &p->pad_type) ||
        infer_get_ints(c, "pad", 2 * p->s, &p->pad) ||
        infer_get_int(c, "groups", 1, &p->groups))
        return -1;
    for (int i = 0; i < 2 * p->s; i++) {
        if (p->pad.v[i] < 0)
            return infer_bad(c, "pad", "holds %lld, allowed: 0 and more",
                             (long long)p->pad.v[i]);
    }
    if (p->groups < 1)
        return infer_bad(c, "groups", "is %lld, allowed: 1 and more",
                         (long long)p->groups);
    return 0;
}

static int conv_channels(const struct infer *c, const struct conv *p)
{
    const struct mil_type *x = infer_type(c, "x");
    const struct mil_type *w = infer_type(c, "weight");
    const struct mil_type *bias = infer_type(c, "bias");
    char xt[MIL_TYPE_TEXT_MAX];

    mil_type_text(x, xt);
    if (!mil_type_is_static(w) || x->dims[1] < 0)
        return infer_bad(c, "weight",
                         "and the channels of 'x' (%s) must be known", xt);
    if (x->dims[1] % p->groups != 0 || w->dims[0] % p->groups != 0)
        return infer_bad(c, "weight",
                         "and 'x' (%s): %lld groups must divide both channel "
                         "counts",
                         xt, (long long)p->groups);
    if (w->dims[1] != x->dims[1] / p->groups)
        return infer_bad(c, "weight",
                         "must have dim 1 = %lld: 'x' is %s, groups %lld",
                         (long long)(x->dims[1] / p->groups), xt,
                         (long long)p->groups);
    if (bias && bias->dims[0] != w->dims[0])
        return infer_bad(c, "bias", "must have %lld elements",
                         (long long)w->dims[0]);
    return 0;
}

/* Output size of spatial dim i. */
static int conv_size(const struct infer *c, const struct conv *p, int i,
                     int64_t *out)
{
    int64_t d = infer_type(c, "x")->dims[i + 2];
    int64_t k = infer_type(c, "weight")->dims[i + 2];
    int64_t stride = p->strides.v[i], keff, pad = 0;

    *out = MIL_DIM_UNKNOWN;
    if (k < 1 || k > INT32_MAX)
        return infer_bad(c, "weight", "has a kernel of size %lld",
                         (long long)k);
    if (d < 0)
        return 0;
    if (p->pad_type == PAD_SAME || p->pad_type == PAD_SAME_LOWER) {
        *out = d / stride + (d % stride != 0);
        return 0;
    }
    keff = (k - 1) * p->dilations.v[i] + 1;
    if (p->pad_type == PAD_CUSTOM)
        pad = p->pad.v[2 * i] + p->pad.v[2 * i + 1];
    if (d > INT64_MAX - pad || d + pad < keff)
        return infer_bad(c, "x",
                         "spatial dim %d: %lld + padding %lld is smaller "
                         "than the kernel's extent %lld",
                         i, (long long)d, (long long)pad, (long long)keff);
    *out = (d + pad - keff) / stride + 1;
    return 0;
}

int infer_conv(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    const struct mil_type *w = infer_type(c, "weight");
    struct conv p = { .s = x->rank - 2 };
    const struct mil_value *wv = mil_value(c->f, infer_ref(c, "weight"));

    if (x->rank < 3 || x->rank > 5)
        return infer_bad(c, "x", "must have rank 3, 4 or 5");
    if (w->rank != x->rank)
        return infer_bad(c, "weight", "must have the rank of 'x', %d", x->rank);
    if (conv_params(c, &p) || conv_channels(c, &p))
        return -1;
    c->out[0] = *x;
    c->out[0].dims[1] = w->dims[0];
    for (int i = 0; i < p.s; i++) {
        if (conv_size(c, &p, i, &c->out[0].dims[i + 2]))
            return -1;
        if (p.dilations.v[i] > 1 && !wv->konst &&
            !(wv->op >= 0 &&
              (mil_op_info(c->f->ops[wv->op].code)->flags & MIL_O_CONSTEXPR)))
            return infer_fail(c, "dilation %lld needs a constant weight",
                              (long long)p.dilations.v[i]);
    }
    return 0;
}

/* ---- products ---- */

int infer_linear(struct infer *c)
{
    const struct mil_type *x = infer_type(c, "x");
    const struct mil_type *w = infer_type(c, "weight");
    const struct mil_type *bias = infer_type(c, "bias");
    char text[MIL_TYPE_TEXT_MAX];
    int64_t d;

    mil_type_text(x, text);
    if (x->rank < 1 || x->rank > 3)
        return infer_bad(c, "x", "must have rank 1, 2 or 3");
    if (w->rank != 2)
        return infer_bad(c, "weight", "must have rank 2");
    if (!infer_unify(x->dims[x->rank - 1], w->dims[1], &d))
        return infer_bad(c, "weight",
                         "must have as many columns as the last dim of 'x' "
                         "(%s)",
                         text);
    if (bias && bias->dims[0] != w->dims[0])
        return infer_bad(c, "bias", "must have %lld elements",
                         (long long)w->dims[0]);
    c->out[0] = *x;
    c->out[0].dims[x->rank - 1] = w->dims[0];
    return 0;
}

static void swap_last(struct mil_type *t)
{
    int64_t d = t->dims[t->rank - 1];

    t->dims[t->rank - 1] = t->dims[t->rank - 2];
    t->dims[t->rank - 2] = d;
}

static int matmul_operand(const struct infer *c, const char *param,
                          const char *flag, struct mil_type *t)
{
    bool transpose;

    *t = *infer_type(c, param);
    if (infer_get_bool(c, flag, false, &transpose))
        return -1;
    if (t->rank < 1)
        return infer_bad(c, param, "must have rank 1 or more");
    if (!transpose)
        return 0;
    if (t->rank == 1)
        return infer_bad(c, param, "has rank 1: %s is not possible", flag);
    swap_last(t);
    return 0;
}

/* One dtype, unless exactly one operand is a const: the other's then. */
static int matmul_dtype(const struct infer *c, enum mil_dtype *out)
{
    const struct mil_value *x = mil_value(c->f, infer_ref(c, "x"));
    const struct mil_value *y = mil_value(c->f, infer_ref(c, "y"));

    *out = x->konst && !y->konst ? y->type.dtype : x->type.dtype;
    if (x->type.dtype != y->type.dtype && !x->konst == !y->konst)
        return infer_fail(c,
                          "parameter 'y' is %s, but 'x' is %s: both must have "
                          "the same dtype",
                          mil_dtype_name(y->type.dtype),
                          mil_dtype_name(x->type.dtype));
    return 0;
}

int infer_matmul(struct infer *c)
{
    struct mil_type x, y, bx, by;
    char xt[MIL_TYPE_TEXT_MAX], yt[MIL_TYPE_TEXT_MAX];
    struct mil_type *out = &c->out[0];
    bool vx, vy;
    int64_t d;

    if (matmul_operand(c, "x", "transpose_x", &x) ||
        matmul_operand(c, "y", "transpose_y", &y) ||
        matmul_dtype(c, &out->dtype))
        return -1;
    mil_type_text(infer_type(c, "x"), xt);
    mil_type_text(infer_type(c, "y"), yt);
    vx = x.rank == 1;
    vy = y.rank == 1;
    if (vx)
        x = mil_type_make(x.dtype, 2, (const int64_t[]){ 1, x.dims[0] });
    if (vy)
        y = mil_type_make(y.dtype, 2, (const int64_t[]){ y.dims[0], 1 });
    if (!infer_unify(x.dims[x.rank - 1], y.dims[y.rank - 2], &d))
        return infer_fail(c,
                          "'x' (%s) and 'y' (%s): inner dims %lld and %lld "
                          "differ",
                          xt, yt, (long long)x.dims[x.rank - 1],
                          (long long)y.dims[y.rank - 2]);
    bx = x;
    by = y;
    bx.rank -= 2;
    by.rank -= 2;
    if (!infer_broadcast(&bx, &by, out))
        return infer_fail(c,
                          "batch dims of 'x' (%s) and 'y' (%s) do not "
                          "broadcast",
                          xt, yt);
    if (!vx)
        out->dims[out->rank++] = x.dims[x.rank - 2];
    if (!vy)
        out->dims[out->rank++] = y.dims[y.rank - 1];
    return 0;
}

/* Matches "nchw,nwhu->nchu" or "chw,whu->chu" up to renaming of letters. */
static bool match_equation(const char *s, int rank)
{
    const char *pattern = rank == 4 ? "nchw,nwhu->nchu" : "chw,whu->chu";
    char map[128] = { 0 }, back[128] = { 0 };

    if (strlen(s) != strlen(pattern))
        return false;
    for (size_t i = 0; s[i]; i++) {
        unsigned char a = (unsigned char)s[i], p = (unsigned char)pattern[i];
        bool letter = (a >= 'a' && a <= 'z') || (a >= 'A' && a <= 'Z');

        if (p == ',' || p == '-' || p == '>') {
            if (a != p)
                return false;
            continue;
        }
        if (!letter || (map[p] && map[p] != (char)a) ||
            (back[a] && back[a] != (char)p))
            return false;
        map[p] = (char)a;
        back[a] = (char)p;
    }
    return true;
}

int infer_einsum(struct infer *c)
{
    const struct mil_arg *list = infer_list(c, "values");
    const struct mil_type *x, *y;
    struct mil_type bx, by, b;
    char xt[MIL_TYPE_TEXT_MAX], yt[MIL_TYPE_TEXT_MAX];
    const char *equation;
    int64_t d;
    int o;

    if (list->n != 2)
        return infer_fail(c, "parameter 'values' has %u values, allowed: 2",
                          list->n);
    if (infer_get_string(c, "equation", NULL, &equation))
        return -1;
    x = infer_item(c, list, 0);
    y = infer_item(c, list, 1);
    mil_type_text(x, xt);
    mil_type_text(y, yt);
    if (x->rank != y->rank || (x->rank != 3 && x->rank != 4))
        return infer_fail(c, "values %s and %s must both have rank 3 or 4", xt,
                          yt);
    if (!match_equation(equation, x->rank))
        return infer_fail(c,
                          "equation '%.64s' for rank %d, allowed up to "
                          "renaming: nchw,nwhu->nchu and chw,whu->chu",
                          equation, x->rank);
    o = x->rank - 3; /* axes before c */
    bx = mil_type_make(x->dtype, 2, (const int64_t[]){ x->dims[0], 0 });
    by = bx;
    bx.dims[0] = o ? x->dims[0] : 1;
    by.dims[0] = o ? y->dims[0] : 1;
    bx.dims[1] = x->dims[o + 1];
    by.dims[1] = y->dims[o + 1];
    if (!infer_unify(x->dims[o + 2], y->dims[o], &d) ||
        !infer_broadcast(&bx, &by, &b))
        return infer_fail(c, "values %s and %s do not fit '%.64s'", xt, yt,
                          equation);
    c->out[0] = *x;
    if (o)
        c->out[0].dims[0] = b.dims[0];
    c->out[0].dims[o + 1] = b.dims[1];
    c->out[0].dims[o + 2] = y->dims[o + 2];
    return 0;
}

static int sdpa_mask(const struct infer *c, const struct mil_type *scores)
{
    const struct mil_type *m = infer_type(c, "attn_mask");
    struct mil_type all;
    char text[MIL_TYPE_TEXT_MAX];
    int64_t d;

    if (!m)
        return 0;
    mil_type_text(scores, text);
    if (m->dtype != MIL_BOOL && m->dtype != scores->dtype)
        return infer_bad(c, "attn_mask",
                         "must be bool or have the dtype of 'query'");
    if (m->rank < 1 || m->rank > scores->rank ||
        !infer_unify(m->dims[m->rank - 1], scores->dims[scores->rank - 1],
                     &d) ||
        !infer_broadcast(m, scores, &all))
        return infer_bad(c, "attn_mask",
                         "must broadcast to the scores (%s) and have their "
                         "last dim",
                         text);
    for (int i = 0; i < all.rank; i++) {
        if (scores->dims[i] >= 0 && all.dims[i] != scores->dims[i])
            return infer_bad(c, "attn_mask", "is larger than the scores (%s)",
                             text);
    }
    return 0;
}

int infer_scaled_dot_product_attention(struct infer *c)
{
    const struct mil_type *q = infer_type(c, "query");
    const struct mil_type *k = infer_type(c, "key");
    const struct mil_type *v = infer_type(c, "value");
    char qt[MIL_TYPE_TEXT_MAX], kt[MIL_TYPE_TEXT_MAX], vt[MIL_TYPE_TEXT_MAX];
    struct mil_type scores = *q;
    int r = q->rank;
    int64_t d;
    bool ok = r >= 3 && k->rank == r && v->rank == r;

    for (int i = 0; ok && i < r - 2; i++) {
        ok = infer_unify(q->dims[i], k->dims[i], &scores.dims[i]) &&
             infer_unify(scores.dims[i], v->dims[i], &scores.dims[i]);
    }
    ok = ok && infer_unify(q->dims[r - 1], k->dims[r - 1], &d) &&
         infer_unify(k->dims[r - 2], v->dims[r - 2], &d);
    if (!ok) {
        mil_type_text(q, qt);
        mil_type_text(k, kt);
        mil_type_text(v, vt);
        return infer_fail(c,
                          "query %s, key %s, value %s: expected [B, .., L, E], "
                          "[B, .., S, E], [B, .., S, V] of one rank of 3 or "
                          "more",
                          qt, kt, vt);
    }
    scores.dims[r - 1] = d;
    if (sdpa_mask(c, &scores))
        return -1;
    c->out[0] = scores;
    c->out[0].dims[r - 1] = v->dims[r - 1];
    return 0;
}
