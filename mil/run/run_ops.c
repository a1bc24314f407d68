/*
 * The kernel table, one row per operation, and what kernels share: constant
 * parameters, errors, threads.
 */
#include "mil/run/run_priv.h"

#include <stdarg.h>
#include <stdio.h>

/* Below this much work threads cost more than they give. */
#define PAR_COST 32768

#define ROW(id, flags) [MIL_OP_##id] = { prepare_##id, run_##id, NULL, flags }
#define PLAIN(id, flags) [MIL_OP_##id] = { NULL, run_##id, NULL, flags }
#define VIEWS(id, prepare, flags) \
    [MIL_OP_##id] = { prepare, run_##id, view_##id, flags }
#define MAKES RUN_K_COMPUTES

static const struct run_kernel table[MIL_OP_COUNT] = {
    ROW(conv, 0), /* products round as they store */
    ROW(linear, 0),
    ROW(matmul, 0),
    PLAIN(einsum, 0),
    ROW(scaled_dot_product_attention, 0),
    ROW(add, MAKES),
    ROW(sub, MAKES),
    ROW(mul, MAKES),
    ROW(real_div, MAKES),
    ROW(floor_div, MAKES),
    ROW(mod, MAKES),
    ROW(maximum, 0),
    ROW(minimum, 0),
    ROW(pow, MAKES),
    ROW(greater, 0),
    ROW(greater_equal, 0),
    ROW(less, 0),
    ROW(less_equal, 0),
    ROW(equal, 0),
    ROW(not_equal, 0),
    ROW(logical_and, 0),
    ROW(logical_or, 0),
    ROW(logical_xor, 0),
    ROW(logical_not, 0),
    ROW(select, 0),
    ROW(sqrt, MAKES),
    ROW(exp, MAKES),
    ROW(tanh, MAKES),
    ROW(sigmoid, MAKES),
    ROW(softplus, MAKES),
    ROW(silu, MAKES),
    ROW(erf, MAKES),
    ROW(relu, 0),
    ROW(floor, 0),
    ROW(ceil, 0),
    ROW(round, 0),
    ROW(sin, MAKES),
    ROW(cos, MAKES),
    ROW(abs, 0),
    ROW(square, MAKES),
    ROW(sign, 0),
    ROW(rsqrt, MAKES),
    ROW(log, MAKES),
    ROW(inverse, MAKES),
    ROW(clip, 0),
    ROW(gelu, MAKES),
    ROW(cast, MAKES),
    VIEWS(identity, NULL, 0),
    ROW(layer_norm, MAKES),
    ROW(l2_norm, MAKES),
    ROW(reduce_sum, MAKES),
    ROW(reduce_mean, MAKES),
    ROW(reduce_max, 0),
    ROW(reduce_min, 0),
    ROW(reduce_sum_square, MAKES),
    ROW(reduce_l2_norm, MAKES),
    ROW(reduce_log_sum_exp, MAKES),
    ROW(reduce_argmax, 0),
    ROW(reduce_argmin, 0),
    ROW(softmax, MAKES),
    ROW(cumsum, MAKES),
    ROW(topk, 0),
    VIEWS(reshape, NULL, RUN_K_VALUES),
    VIEWS(transpose, prepare_transpose, 0),
    VIEWS(expand_dims, NULL, 0),
    VIEWS(squeeze, NULL, 0),
    PLAIN(tile, RUN_K_VALUES),
    ROW(concat, 0),
    ROW(stack, 0),
    VIEWS(split, prepare_split, 0),
    VIEWS(slice_by_index, NULL, RUN_K_VALUES),
    VIEWS(slice_by_size, NULL, RUN_K_VALUES),
    PLAIN(slice_update, RUN_K_VALUES),
    ROW(gather, 0),
    ROW(gather_along_axis, 0),
    ROW(gather_nd, 0),
    PLAIN(range_1d, MAKES | RUN_K_VALUES),
    PLAIN(fill, RUN_K_VALUES),
    PLAIN(band_part, 0),
    PLAIN(shape, 0),
    PLAIN(pad, RUN_K_VALUES),
    VIEWS(read_state, NULL, 0),
    PLAIN(write_state, 0),
};

const struct run_kernel *run_kernel_of(enum mil_opcode code)
{
    return code > MIL_OP_INVALID && code < MIL_OP_COUNT && table[code].run
               ? &table[code]
               : NULL;
}

int run_fail(const struct run_step *s, struct err *e, const char *fmt, ...)
{
    const struct mil_op *op = s->op;
    const char *label = op->name;
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if ((!label || !label[0]) && op->n_outs)
        label = s->plan->f->values[op->outs[0]].name;
    return err_set(e, ERR_INPUT, "%s '%s': %s", mil_op_type(op),
                   label ? label : "", text);
}

int64_t run_int(const struct run_step *s, int param, int64_t fallback)
{
    const struct run_slot *v = run_arg(s, param);

    return v && v->data && v->elems > 0 ? ((const int32_t *)v->data)[0]
                                        : fallback;
}

bool run_bool(const struct run_step *s, int param, bool fallback)
{
    return run_int(s, param, fallback) != 0;
}

float run_float(const struct run_step *s, int param, float fallback)
{
    const struct run_slot *v = run_arg(s, param);

    return v && v->data && v->elems > 0 ? ((const float *)v->data)[0]
                                        : fallback;
}

const char *run_text(const struct run_step *s, int param, const char *fallback)
{
    const struct mil_const *k = mil_arg_const(s->plan->f, s->op, param);

    return k && k->strings ? k->strings[0] : fallback;
}

int run_ints(const struct run_step *s, int param, int max, int64_t *v, int *n,
             struct err *e)
{
    const struct run_slot *slot = run_arg(s, param);

    *n = -1;
    if (!slot)
        return 0;
    if (!slot->data || slot->elems < 0 || slot->elems > max)
        return run_fail(s, e, "parameter '%s' has %lld values, allowed: %d",
                        mil_op_info(s->op->code)->params[param].name,
                        (long long)slot->elems, max);
    *n = (int)slot->elems;
    for (int i = 0; i < *n; i++)
        v[i] = ((const int32_t *)slot->data)[i];
    return 0;
}

void run_par(struct run_ctx *c, int64_t n, int64_t cost, par_fn fn, void *arg)
{
    int64_t grain;

    if (n <= 0)
        return;
    cost = cost < 1 ? 1 : cost;
    if (n == 1 || cost * n < PAR_COST) {
        fn(arg, 0, (uint64_t)n, 0);
        return;
    }
    grain = PAR_COST / 2 / cost;
    par_for(c->par, (uint64_t)n, (uint64_t)(grain < 1 ? 1 : grain), fn, arg);
}
