/*
 * Type inference of elementwise operations: broadcasting binaries, unaries,
 * comparisons, select, cast.
 */
#include "mil/infer_priv.h"

#include <string.h>

static int broadcast_fail(const struct infer *c, const char *px, const char *py)
{
    char x[MIL_TYPE_TEXT_MAX], y[MIL_TYPE_TEXT_MAX];

    mil_type_text(infer_type(c, px), x);
    mil_type_text(infer_type(c, py), y);
    return infer_fail(c, "'%s' (%s) and '%s' (%s) do not broadcast", px, x, py,
                      y);
}

static int binary(struct infer *c, enum mil_dtype dtype)
{
    const struct mil_type *x = infer_type(c, "x"), *y = infer_type(c, "y");

    c->out[0].dtype = dtype == MIL_INVALID ? x->dtype : dtype;
    if (!infer_broadcast(x, y, &c->out[0]))
        return broadcast_fail(c, "x", "y");
    return 0;
}

#define BINARY(id)                     \
    int infer_##id(struct infer *c)    \
    {                                  \
        return binary(c, MIL_INVALID); \
    }
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(real_div)
BINARY(floor_div)
BINARY(mod)
BINARY(maximum)
BINARY(minimum)
BINARY(pow)

#define COMPARISON(id)              \
    int infer_##id(struct infer *c) \
    {                               \
        return binary(c, MIL_BOOL); \
    }
COMPARISON(greater)
COMPARISON(greater_equal)
COMPARISON(less)
COMPARISON(less_equal)
COMPARISON(equal)
COMPARISON(not_equal)
COMPARISON(logical_and)
COMPARISON(logical_or)
COMPARISON(logical_xor)

static int like_x(struct infer *c)
{
    c->out[0] = *infer_type(c, "x");
    return 0;
}

#define UNARY(id)                   \
    int infer_##id(struct infer *c) \
    {                               \
        return like_x(c);           \
    }
UNARY(logical_not)
UNARY(sqrt)
UNARY(exp)
UNARY(tanh)
UNARY(sigmoid)
UNARY(softplus)
UNARY(silu)
UNARY(erf)
UNARY(relu)
UNARY(floor)
UNARY(ceil)
UNARY(round)
UNARY(sin)
UNARY(cos)
UNARY(abs)
UNARY(square)
UNARY(sign)
UNARY(rsqrt)
UNARY(log)
UNARY(inverse)
UNARY(identity)

/* The published rule gives broadcast(a, b) only; a condition that is larger
 * would make the run-time shape differ from the declared one. */
int infer_select(struct infer *c)
{
    const struct mil_type *cond = infer_type(c, "cond");
    struct mil_type all;
    char text[MIL_TYPE_TEXT_MAX];

    c->out[0].dtype = infer_type(c, "a")->dtype;
    if (!infer_broadcast(infer_type(c, "a"), infer_type(c, "b"), &c->out[0]))
        return broadcast_fail(c, "a", "b");
    all = c->out[0];
    if (infer_broadcast(cond, &c->out[0], &all) && all.rank == c->out[0].rank) {
        int i = 0;

        while (i < all.rank &&
               (all.dims[i] == c->out[0].dims[i] || c->out[0].dims[i] < 0))
            i++;
        if (i == all.rank)
            return 0;
    }
    mil_type_text(&c->out[0], text);
    return infer_bad(c, "cond", "does not broadcast into a and b (%s)", text);
}

int infer_clip(struct infer *c)
{
    const char *const params[2] = { "alpha", "beta" };
    double v[2];

    for (int i = 0; i < 2; i++) {
        mil_ref r = infer_ref(c, params[i]);
        const struct mil_const *k = c->f->values[r].konst;

        if (!k || !k->bytes) /* a constexpr result, or far away */
            return like_x(c);
        v[i] = mil_const_double(k, 0);
    }
    if (!(v[0] < v[1]))
        return infer_fail(c, "alpha %g must be less than beta %g", v[0], v[1]);
    return like_x(c);
}

int infer_gelu(struct infer *c)
{
    static const char *const modes[] = { "EXACT", "TANH_APPROXIMATION",
                                         "SIGMOID_APPROXIMATION", NULL };
    int i;

    if (infer_get_choice(c, "mode", modes[0], modes, &i))
        return -1;
    return like_x(c);
}

int infer_cast(struct infer *c)
{
    static const char *const names[] = { "fp16",  "fp32",  "int8",
                                         "uint8", "int16", "uint16",
                                         "int32", "bool",  NULL };
    int i;

    if (infer_get_choice(c, "dtype", NULL, names, &i))
        return -1;
    c->out[0] = *infer_type(c, "x");
    return mil_dtype_by_name(names[i], &c->out[0].dtype) ? 0 : -1;
}
