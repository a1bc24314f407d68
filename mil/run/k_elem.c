/*
 * Elementwise operations: broadcasting binaries and select, unaries, casts.
 *
 * An op is a function over a piece of the result that is contiguous; each
 * operand advances by 0 or 1. NaN goes through everything, as in numpy;
 * integers wrap; division of an integer by zero gives 0.
 */
#include "mil/run/run_priv.h"

#define PIECE 8192 /* elements of one piece of work: stays in the L1 cache */

/* ---- broadcasting ---- */

static int64_t stride_at(const struct mil_type *t, int rank, int axis,
                         const int64_t *own)
{
    int i = axis - (rank - t->rank);

    return i < 0 || t->dims[i] == 1 ? 0 : own[i];
}

/* Strides of up to three operands over the result, dims merged where all
 * operands allow it. */
static void bcast_init(struct bcast *b, const struct mil_type *out,
                       const struct mil_type *const t[3])
{
    int64_t own[3][MIL_MAX_RANK] = { { 0 } };

    memset(b, 0, sizeof(*b));
    b->n = 1;
    for (int j = 0; j < 3; j++)
        if (t[j])
            nd_strides(t[j], own[j]);
    for (int i = 0; i < out->rank; i++) {
        int64_t d = out->dims[i], s[3] = { 0 };
        int last = b->rank - 1;
        bool merge = last >= 0;

        b->n *= d;
        if (d == 1)
            continue;
        for (int j = 0; j < 3; j++) {
            s[j] = t[j] ? stride_at(t[j], out->rank, i, own[j]) : 0;
            merge = merge && b->s[j][last] == s[j] * d;
        }
        if (!merge)
            last = b->rank++;
        b->d[last] = merge ? b->d[last] * d : d;
        for (int j = 0; j < 3; j++)
            b->s[j][last] = s[j];
    }
    if (b->rank == 0) {
        b->rank = 1;
        b->d[0] = 1;
    }
}

struct elem_job {
    struct run_ctx *c;
    const struct run_step *s;
    const uint32_t *in[3];
    uint32_t *out;
};

static void elem_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct elem_job *j = arg;
    const struct bcast *b = &j->s->p.elem.b;
    int last = b->rank - 1;
    int64_t stride[3] = { b->s[0][last], b->s[1][last], b->s[2][last] };
    int64_t at = (int64_t)begin;

    (void)worker;
    while (at < (int64_t)end) {
        int64_t row = at / b->d[last], i = at % b->d[last];
        int64_t n = b->d[last] - i;
        const void *p[3];

        n = n < (int64_t)end - at ? n : (int64_t)end - at;
        for (int k = 0; k < 3; k++) {
            int64_t rest = row, off = i * stride[k];

            for (int d = last - 1; d >= 0; d--) {
                off += rest % b->d[d] * b->s[k][d];
                rest /= b->d[d];
            }
            p[k] = j->in[k] ? j->in[k] + off : NULL;
        }
        j->s->p.elem.fn(j->s, j->out + at, p, stride, n);
        at += n;
    }
    if (j->s->round)
        j->c->k->round((float *)j->out + begin, (float *)j->out + begin,
                       (size_t)(end - begin));
}

static int elem_run(struct run_ctx *c, const struct run_step *s, int params)
{
    struct elem_job j = { .c = c, .s = s, .out = run_out(s, 0)->data };
    int64_t n = s->p.elem.b.n;

    for (int i = 0; i < params; i++)
        j.in[i] = run_arg(s, i)->data;
    if (n <= PIECE)
        elem_range(&j, 0, (uint64_t)(n > 0 ? n : 0), 0);
    else
        par_for(c->par, (uint64_t)n, PIECE, elem_range, &j);
    return 0;
}

static void elem_prepare(struct run_step *s, int params, elem_fn fn)
{
    const struct mil_type *t[3] = { NULL, NULL, NULL };

    for (int i = 0; i < params; i++)
        t[i] = &run_arg(s, i)->type;
    s->p.elem.fn = fn;
    bcast_init(&s->p.elem.b, &run_out(s, 0)->type, t);
}

/* ---- binaries ---- */

/* Loops over the three ways that two operands advance. */
#define LOOP2(to, from, expr)                 \
    do {                                      \
        to *o = out;                          \
        const from *pa = in[0], *pb = in[1];  \
                                              \
        (void)s;                              \
        if (stride[0] && stride[1]) {         \
            for (int64_t i = 0; i < n; i++) { \
                from a = pa[i], b = pb[i];    \
                o[i] = (to)(expr);            \
            }                                 \
        } else if (stride[0]) {               \
            from b = *pb;                     \
            for (int64_t i = 0; i < n; i++) { \
                from a = pa[i];               \
                o[i] = (to)(expr);            \
            }                                 \
        } else if (stride[1]) {               \
            from a = *pa;                     \
            for (int64_t i = 0; i < n; i++) { \
                from b = pb[i];               \
                o[i] = (to)(expr);            \
            }                                 \
        } else {                              \
            from a = *pa, b = *pb;            \
            to v = (to)(expr);                \
            for (int64_t i = 0; i < n; i++)   \
                o[i] = v;                     \
        }                                     \
    } while (0)

#define FN2(name, to, from, expr)                                      \
    static void name(const struct run_step *s, void *out,              \
                     const void *const in[3], const int64_t stride[3], \
                     int64_t n)                                        \
    {                                                                  \
        LOOP2(to, from, expr);                                         \
    }

/* Python's modulo: the sign of the divisor. */
static float mod_f(float a, float b)
{
    float m = fmodf(a, b);

    if (m != 0.0f && (b < 0.0f) != (m < 0.0f))
        m += b;
    else if (m == 0.0f)
        m = copysignf(0.0f, b);
    return m;
}

/* Division that agrees with the modulo. */
static float floor_div_f(float a, float b)
{
    float m = fmodf(a, b), q, f;

    if (b == 0.0f)
        return a / b;
    q = (a - m) / b;
    if (m != 0.0f && (b < 0.0f) != (m < 0.0f))
        q -= 1.0f;
    if (q == 0.0f)
        return copysignf(0.0f, a / b);
    f = floorf(q);
    return q - f > 0.5f ? f + 1.0f : f;
}

static int32_t neg(int32_t a)
{
    return (int32_t)(0u - (uint32_t)a);
}

static int32_t div_i(int32_t a, int32_t b)
{
    return b == 0 ? 0 : b == -1 ? neg(a) : a / b;
}

static int32_t floor_div_i(int32_t a, int32_t b)
{
    if (b == 0 || b == -1)
        return b == 0 ? 0 : neg(a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int32_t mod_i(int32_t a, int32_t b)
{
    int32_t m;

    if (b == 0 || b == -1)
        return 0;
    m = a % b;
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

static int32_t pow_i(int32_t a, int32_t b)
{
    uint32_t r = 1, x = (uint32_t)a;

    if (b < 0)
        return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    for (; b; b >>= 1, x *= x)
        if (b & 1)
            r *= x;
    return (int32_t)r;
}

FN2(add_f, float, float, a + b)
FN2(sub_f, float, float, a - b)
FN2(mul_f, float, float, a *b)
FN2(div_f, float, float, a / b)
FN2(max_f, float, float, a >= b || !(a == a) ? a : b)
FN2(min_f, float, float, a <= b || !(a == a) ? a : b)
FN2(pow_f, float, float, powf(a, b))
FN2(fmod_f, float, float, mod_f(a, b))
FN2(fdiv_f, float, float, floor_div_f(a, b))
FN2(gt_f, int32_t, float, a > b)
FN2(ge_f, int32_t, float, a >= b)
FN2(lt_f, int32_t, float, a < b)
FN2(le_f, int32_t, float, a <= b)
FN2(eq_f, int32_t, float, a == b)
FN2(ne_f, int32_t, float, !(a == b))
FN2(add_i, int32_t, int32_t, (uint32_t)a + (uint32_t)b)
FN2(sub_i, int32_t, int32_t, (uint32_t)a - (uint32_t)b)
FN2(mul_i, int32_t, int32_t, (uint32_t)a *(uint32_t)b)
FN2(quo_i, int32_t, int32_t, div_i(a, b))
FN2(max_i, int32_t, int32_t, a > b ? a : b)
FN2(min_i, int32_t, int32_t, a < b ? a : b)
FN2(power_i, int32_t, int32_t, pow_i(a, b))
FN2(modulo_i, int32_t, int32_t, mod_i(a, b))
FN2(fdiv_i, int32_t, int32_t, floor_div_i(a, b))
FN2(gt_i, int32_t, int32_t, a > b)
FN2(ge_i, int32_t, int32_t, a >= b)
FN2(lt_i, int32_t, int32_t, a < b)
FN2(le_i, int32_t, int32_t, a <= b)
FN2(eq_i, int32_t, int32_t, a == b)
FN2(ne_i, int32_t, int32_t, a != b)
FN2(and_i, int32_t, int32_t, a &&b)
FN2(or_i, int32_t, int32_t, a || b)
FN2(xor_i, int32_t, int32_t, !a != !b)

#define BINARY(id, ffn, ifn)                                                 \
    int prepare_##id(struct run_ctx *c, struct run_step *s, struct err *e)   \
    {                                                                        \
        (void)c;                                                             \
        (void)e;                                                             \
        elem_prepare(s, 2, run_is_float(run_arg(s, 0)) ? (ffn) : (ifn));     \
        return 0;                                                            \
    }                                                                        \
    int run_##id(struct run_ctx *c, const struct run_step *s, struct err *e) \
    {                                                                        \
        (void)e;                                                             \
        return elem_run(c, s, 2);                                            \
    }
BINARY(add, add_f, add_i)
BINARY(sub, sub_f, sub_i)
BINARY(mul, mul_f, mul_i)
BINARY(real_div, div_f, quo_i)
BINARY(floor_div, fdiv_f, fdiv_i)
BINARY(mod, fmod_f, modulo_i)
BINARY(maximum, max_f, max_i)
BINARY(minimum, min_f, min_i)
BINARY(pow, pow_f, power_i)
BINARY(greater, gt_f, gt_i)
BINARY(greater_equal, ge_f, ge_i)
BINARY(less, lt_f, lt_i)
BINARY(less_equal, le_f, le_i)
BINARY(equal, eq_f, eq_i)
BINARY(not_equal, ne_f, ne_i)
BINARY(logical_and, and_i, and_i)
BINARY(logical_or, or_i, or_i)
BINARY(logical_xor, xor_i, xor_i)

/* ---- select ---- */

static void select_any(const struct run_step *s, void *out,
                       const void *const in[3], const int64_t stride[3],
                       int64_t n)
{
    const uint32_t *cond = in[0], *a = in[1], *b = in[2];
    uint32_t *o = out;

    (void)s;
    for (int64_t i = 0; i < n; i++)
        o[i] = cond[i * stride[0]] ? a[i * stride[1]] : b[i * stride[2]];
}

int prepare_select(struct run_ctx *c, struct run_step *s, struct err *e)
{
    (void)c;
    (void)e;
    elem_prepare(s, 3, select_any);
    return 0;
}

int run_select(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    (void)e;
    return elem_run(c, s, 3);
}

/* ---- unaries ---- */

#define FN1(name, type, expr)                                          \
    static void name(const struct run_step *s, void *out,              \
                     const void *const in[3], const int64_t stride[3], \
                     int64_t n)                                        \
    {                                                                  \
        const type *px = in[0];                                        \
        type *o = out;                                                 \
        float p = s->p.elem.a, q = s->p.elem.c;                        \
                                                                       \
        (void)stride;                                                  \
        (void)p;                                                       \
        (void)q;                                                       \
        for (int64_t i = 0; i < n; i++) {                              \
            type x = px[i];                                            \
            o[i] = (type)(expr);                                       \
        }                                                              \
    }

/* Through the vector functions of the kernel table. */
#define FNV(name, fn)                                                  \
    static void name(const struct run_step *s, void *out,              \
                     const void *const in[3], const int64_t stride[3], \
                     int64_t n)                                        \
    {                                                                  \
        (void)stride;                                                  \
        s->plan->model->ctx.k->fn(out, in[0], (size_t)n);              \
    }

#define SQRT_HALF 0.70710678118654752440f
#define SQRT_2_BY_PI 0.79788456080286535588f

FN1(sqrt_f, float, sqrtf(x))
FN1(erf_f, float, erff(x))
FN1(relu_f, float, x > 0.0f || !(x == x) ? x : 0.0f)
FN1(floor_f, float, floorf(x))
FN1(ceil_f, float, ceilf(x))
FN1(round_f, float, rintf(x))
FN1(sin_f, float, sinf(x))
FN1(cos_f, float, cosf(x))
FN1(abs_f, float, fabsf(x))
FN1(square_f, float, x *x)
FN1(sign_f, float, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == x ? 0.0f : x)
FN1(rsqrt_f, float, 1.0f / sqrtf(x + p))
FN1(log_f, float, logf(x + p))
FN1(inverse_f, float, 1.0f / (x + p))
FN1(clip_f, float, !(x == x) ? x : x < p ? p : x > q ? q : x)
FN1(gelu_exact, float, 0.5f * x * (1.0f + erff(x * SQRT_HALF)))
FN1(abs_i, int32_t, x < 0 ? neg(x) : x)
FN1(square_i, int32_t, (uint32_t)x *(uint32_t)x)
FN1(sign_i, int32_t, (x > 0) - (x < 0))
FN1(not_i, int32_t, !x)
FNV(exp_f, exp)
FNV(tanh_f, tanh)
FNV(sigmoid_f, sigmoid)
FNV(silu_f, silu)
FNV(softplus_f, softplus)

static void gelu_tanh(const struct run_step *s, void *out,
                      const void *const in[3], const int64_t stride[3],
                      int64_t n)
{
    const float *x = in[0];
    float *o = out;

    (void)stride;
    for (int64_t i = 0; i < n; i++)
        o[i] = SQRT_2_BY_PI * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
    s->plan->model->ctx.k->tanh(o, o, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        o[i] = 0.5f * x[i] * (1.0f + o[i]);
}

static void gelu_sigmoid(const struct run_step *s, void *out,
                         const void *const in[3], const int64_t stride[3],
                         int64_t n)
{
    const float *x = in[0];
    float *o = out;

    (void)stride;
    for (int64_t i = 0; i < n; i++)
        o[i] = 1.702f * x[i];
    s->plan->model->ctx.k->sigmoid(o, o, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        o[i] *= x[i];
}

#define UNARY(id, ffn, ifn)                                                  \
    int prepare_##id(struct run_ctx *c, struct run_step *s, struct err *e)   \
    {                                                                        \
        (void)c;                                                             \
        (void)e;                                                             \
        elem_prepare(s, 1, run_is_float(run_arg(s, 0)) ? (ffn) : (ifn));     \
        return 0;                                                            \
    }                                                                        \
    int run_##id(struct run_ctx *c, const struct run_step *s, struct err *e) \
    {                                                                        \
        (void)e;                                                             \
        return elem_run(c, s, 1);                                            \
    }
UNARY(logical_not, not_i, not_i)
UNARY(sqrt, sqrt_f, NULL)
UNARY(exp, exp_f, NULL)
UNARY(tanh, tanh_f, NULL)
UNARY(sigmoid, sigmoid_f, NULL)
UNARY(softplus, softplus_f, NULL)
UNARY(silu, silu_f, NULL)
UNARY(erf, erf_f, NULL)
UNARY(relu, relu_f, NULL)
UNARY(floor, floor_f, NULL)
UNARY(ceil, ceil_f, NULL)
UNARY(round, round_f, NULL)
UNARY(sin, sin_f, NULL)
UNARY(cos, cos_f, NULL)
UNARY(abs, abs_f, abs_i)
UNARY(square, square_f, square_i)
UNARY(sign, sign_f, sign_i)

/* Ops with an epsilon: absent, it is the published default in x's dtype, and
 * the fp16 images of 1e-12 and 1e-45 are 0. */
#define EPSILON(id, ffn, fallback)                                           \
    int prepare_##id(struct run_ctx *c, struct run_step *s, struct err *e)   \
    {                                                                        \
        bool half = run_arg(s, 0)->type.dtype == MIL_F16;                    \
                                                                             \
        (void)c;                                                             \
        (void)e;                                                             \
        elem_prepare(s, 1, ffn);                                             \
        s->p.elem.a =                                                        \
            run_float(s, P_##id##_epsilon, kern_round(fallback, half));      \
        return 0;                                                            \
    }                                                                        \
    int run_##id(struct run_ctx *c, const struct run_step *s, struct err *e) \
    {                                                                        \
        (void)e;                                                             \
        return elem_run(c, s, 1);                                            \
    }
EPSILON(rsqrt, rsqrt_f, 1e-12f)
EPSILON(log, log_f, 1e-45f)
EPSILON(inverse, inverse_f, 1e-4f)

int prepare_clip(struct run_ctx *c, struct run_step *s, struct err *e)
{
    (void)c;
    (void)e;
    elem_prepare(s, 1, clip_f);
    s->p.elem.a = run_float(s, P_clip_alpha, 0.0f);
    s->p.elem.c = run_float(s, P_clip_beta, 0.0f);
    return 0;
}

int run_clip(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    (void)e;
    return elem_run(c, s, 1);
}

int prepare_gelu(struct run_ctx *c, struct run_step *s, struct err *e)
{
    const char *mode = run_text(s, P_gelu_mode, "EXACT");

    (void)c;
    (void)e;
    elem_prepare(s, 1,
                 strcmp(mode, "TANH_APPROXIMATION") == 0      ? gelu_tanh
                 : strcmp(mode, "SIGMOID_APPROXIMATION") == 0 ? gelu_sigmoid
                                                              : gelu_exact);
    return 0;
}

int run_gelu(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    (void)e;
    return elem_run(c, s, 1);
}

/* ---- cast ---- */

/* Narrow integers wrap. */
static int32_t wrap_int(int64_t v, enum mil_dtype d)
{
    uint64_t u = (uint64_t)v;

    switch (d) {
    case MIL_I8: return (int8_t)(uint8_t)u;
    case MIL_U8: return (uint8_t)u;
    case MIL_I16: return (int16_t)(uint16_t)u;
    case MIL_U16: return (uint16_t)u;
    case MIL_BOOL: return v != 0;
    default: return (int32_t)(uint32_t)u;
    }
}

/* Toward zero; NaN is 0, what lies beyond int32 stops at its ends. */
static int64_t trunc_float(float x)
{
    if (!(x == x))
        return 0;
    return x >= 2147483648.0f    ? INT32_MAX
           : x <= -2147483648.0f ? INT32_MIN
                                 : (int64_t)x;
}

static void cast_any(const struct run_step *s, void *out,
                     const void *const in[3], const int64_t stride[3],
                     int64_t n)
{
    enum mil_dtype to = run_out(s, 0)->type.dtype;
    bool from_float = run_is_float(run_arg(s, P_cast_x));
    const float *f = in[0];
    const int32_t *v = in[0];
    int32_t *oi = out;
    float *of = out;

    (void)stride;
    if (mil_dtype_is_float(to)) {
        if (from_float)
            memcpy(of, f, (size_t)n * sizeof(float));
        else
            for (int64_t i = 0; i < n; i++)
                of[i] = (float)v[i];
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (!from_float)
            oi[i] = wrap_int(v[i], to);
        else if (to == MIL_BOOL)
            oi[i] = f[i] != 0.0f;
        else
            oi[i] = wrap_int(trunc_float(f[i]), to);
    }
}

int prepare_cast(struct run_ctx *c, struct run_step *s, struct err *e)
{
    (void)c;
    (void)e;
    elem_prepare(s, 1, cast_any);
    return 0;
}

int run_cast(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    (void)e;
    return elem_run(c, s, 1);
}
