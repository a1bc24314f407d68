/*
 * Whatever type inference accepts, the runtime runs or refuses: random
 * operations with random arguments (empty tensors, ranks 0 to 5, odd
 * parameters), as constants and as run-time values. Meant for sanitizers;
 * elsewhere it finds crashes, endless loops and NaN that should not be.
 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/num.h"
#include "mil/run/run.h"

#define MAX_IN 24

static uint64_t seed;

static unsigned rnd(unsigned n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % n;
}

struct trial {
    struct mil_program *p;
    struct mil_function *f;
    struct run_tensor in[MAX_IN];
    uint32_t *data[MAX_IN];
    int n_in, serial;
    bool run_time; /* allow run-time values for small parameters */
    struct err e;
};

static const char *const strings[] = {
    "valid",
    "custom",
    "same",
    "same_lower",
    "constant",
    "reflect",
    "replicate",
    "EXACT",
    "fp16",
    "fp32",
    "int32",
    "int16",
    "bool",
    "uint16",
    "nchw,nwhu->nchu",
    "chw,whu->chu",
    "TANH_APPROXIMATION",
    "uint8",
    "int8",
    "SIGMOID_APPROXIMATION",
};

static mil_ref add_const(struct trial *t, const struct mil_type *type,
                         const struct mil_const *c)
{
    const struct mil_const *kept = mil_copy_const(t->p, c, &t->e);
    char name[32];
    struct mil_op *op;
    mil_ref r;

    snprintf(name, sizeof(name), "c%d", t->serial++);
    cr_assert(kept, "%s", t->e.text);
    op = mil_add_op(t->f, MIL_OP_const, name, &t->e);
    cr_assert(op);
    r = mil_add_output(t->f, op, name, type, &t->e);
    cr_assert(r);
    mil_value(t->f, r)->konst = kept;
    return r;
}

static mil_ref add_string(struct trial *t)
{
    const char *s = strings[rnd(sizeof(strings) / sizeof(strings[0]))];
    struct mil_const c = { .type = mil_scalar(MIL_STRING), .strings = &s };

    return add_const(t, &c.type, &c);
}

static uint32_t element(enum mil_dtype d)
{
    static const float floats[] = { 0, -0.0f, 1, -1, 0.5f, 3, -2.25f, 100 };
    uint32_t u;

    if (mil_dtype_is_float(d)) {
        memcpy(&u, &floats[rnd(8)], sizeof(u));
        return u;
    }
    if (d == MIL_BOOL)
        return rnd(2);
    if (d == MIL_U8 || d == MIL_U16 || mil_dtype_bits(d) < 8)
        return rnd(2);
    return (uint32_t)((int)rnd(9) - (rnd(2) ? 3 : 0));
}

static mil_ref add_tensor(struct trial *t, const struct mil_type *type,
                          bool run_time)
{
    int64_t n = mil_type_elems(type);
    unsigned bits = mil_dtype_bits(type->dtype), size = bits / 8;
    unsigned char bytes[4096] = { 0 };
    struct mil_const c = { .type = *type, .bytes = bytes };
    char name[32];
    mil_ref r;

    cr_assert(n >= 0 && n <= 1024);
    if (run_time && bits >= 8) {
        struct run_tensor *in = &t->in[t->n_in];

        cr_assert_lt(t->n_in, MAX_IN);
        snprintf(name, sizeof(name), "in%d", t->n_in);
        t->data[t->n_in] = mem_zalloc((size_t)n, 4, &t->e);
        for (int64_t i = 0; i < n; i++)
            t->data[t->n_in][i] = element(type->dtype);
        r = mil_add_value(t->f, MIL_V_INPUT, name, type, &t->e);
        cr_assert(r);
        in->name = mil_value(t->f, r)->name;
        in->type = *type;
        in->data = t->data[t->n_in++];
        return r;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = element(type->dtype);
        float x;

        memcpy(&x, &u, sizeof(x));
        if (type->dtype == MIL_F16)
            u = f32_to_f16(x);
        if (size)
            for (unsigned b = 0; b < size; b++)
                bytes[i * size + b] = (unsigned char)(u >> (8 * b));
        else
            bytes[i * bits / 8] |= (unsigned char)((u & 1) << i * bits % 8);
    }
    return add_const(t, type, &c);
}

static enum mil_dtype dtype_of(enum mil_class cls)
{
    static const enum mil_dtype any[] = { MIL_F16, MIL_F32, MIL_I32, MIL_BOOL,
                                          MIL_I8,  MIL_U16, MIL_F16, MIL_F32 };
    static const enum mil_dtype lut[] = { MIL_U1, MIL_U2, MIL_U3,
                                          MIL_U4, MIL_U6, MIL_U8 };

    switch (cls) {
    case MIL_T_F: return rnd(2) ? MIL_F16 : MIL_F32;
    case MIL_T_N: return any[rnd(3)];
    case MIL_T_NB: return any[rnd(4)];
    case MIL_T_I:
    case MIL_T_IDX:
    case MIL_T_INT32: return MIL_I32;
    case MIL_T_BOOL: return MIL_BOOL;
    case MIL_T_LUTIDX: return lut[rnd(6)];
    case MIL_T_LUTVAL: return rnd(2) ? MIL_F16 : MIL_U8;
    case MIL_T_QDATA: return rnd(2) ? MIL_I4 : MIL_U8;
    default: return any[rnd(8)];
    }
}

/* Shapes that fit each other more often than chance would have it. */
static void random_shape(struct mil_type *t, const int64_t *base, int rank)
{
    t->rank = rnd(4) ? rank : (int)rnd(6);
    for (int i = 0; i < t->rank; i++)
        t->dims[i] = rnd(3) ? base[i] : rnd(8) ? (int64_t)rnd(3) + 1 : 0;
}

static mil_ref add_arg(struct trial *t, const struct mil_param *p,
                       enum mil_dtype shared[2], const int64_t *base, int rank)
{
    struct mil_type type = { .dtype = dtype_of(p->cls) };
    bool run_time = !(p->flags & MIL_P_CONST) && rnd(4) != 0;

    if (p->cls == MIL_T_STR)
        return add_string(t);
    if ((p->flags & MIL_P_T) && shared[0] != MIL_INVALID && rnd(8))
        type.dtype = shared[0];
    if ((p->flags & MIL_P_U) && shared[1] != MIL_INVALID && rnd(8))
        type.dtype = shared[1];
    if (p->flags & MIL_P_T)
        shared[0] = type.dtype;
    if (p->flags & MIL_P_U)
        shared[1] = type.dtype;
    if (p->flags & MIL_P_SCALAR) {
        type.rank = 0;
    } else if (p->flags & MIL_P_VECTOR) {
        type.rank = 1;
        type.dims[0] = rnd(3) ? rank : (int64_t)rnd(7);
        run_time = run_time && t->run_time;
    } else {
        random_shape(&type, base, rank);
    }
    if (mil_type_elems(&type) > 1024)
        type.rank = 1, type.dims[0] = 3;
    return add_tensor(t, &type, run_time);
}

static struct mil_op *random_op(struct trial *t, enum mil_opcode code)
{
    const struct mil_op_info *info = mil_op_info(code);
    enum mil_dtype shared[2] = { MIL_INVALID, MIL_INVALID };
    mil_ref refs[MIL_MAX_PARAMS][3];
    uint32_t n[MIL_MAX_PARAMS] = { 0 };
    int64_t base[MIL_MAX_RANK];
    int rank = (int)rnd(6);
    struct mil_op *op;

    for (int i = 0; i < MIL_MAX_RANK; i++)
        base[i] = (int64_t)rnd(4) + 1;
    for (int k = 0; k < info->n_params; k++) {
        const struct mil_param *p = &info->params[k];

        if ((p->flags & MIL_P_OPT) && rnd(2))
            continue;
        n[k] = (p->flags & MIL_P_LIST) ? 1 + rnd(3) : 1;
        for (uint32_t j = 0; j < n[k]; j++)
            refs[k][j] = add_arg(t, p, shared, base, rank);
    }
    op = mil_add_op(t->f, code, "trial", &t->e);
    cr_assert(op);
    for (int k = 0; k < info->n_params; k++)
        if (n[k])
            cr_assert_eq(mil_set_arg(t->f, op, k, refs[k], n[k], &t->e), 0);
    return op;
}

/* 1: ran, 0: refused by inference, 2: refused by the runtime. */
static int random_trial(enum mil_opcode code)
{
    struct trial t = { .p = mil_program_new(&t.e) };
    struct mil_type types[8];
    struct run_tensor out[8];
    struct mil_op *op;
    uint32_t n = 0;
    int result = 0;
    size_t n_out;

    err_reset(&t.e);
    t.run_time = rnd(2);
    t.f = mil_program_add(t.p, "main", &t.e);
    op = random_op(&t, code);
    if (mil_op_out_count(t.f, op, &n, &t.e) == 0 && n >= 1 && n <= 8 &&
        mil_infer_op(t.f, op, types, n, &t.e) == 0) {
        struct run_options o = { .profile = (enum run_profile)rnd(3) };
        struct run_model *m;

        for (uint32_t i = 0; i < n; i++) {
            char name[16];
            mil_ref r;

            snprintf(name, sizeof(name), "out%u", i);
            r = mil_add_output(t.f, op, name, &types[i], &t.e);
            cr_assert(r);
            cr_assert_eq(mil_add_function_output(t.f, r, &t.e), 0);
        }
        m = run_open(t.p, &o, &t.e);
        result = 2;
        if (m && run_call(m, NULL, NULL, t.in, (size_t)t.n_in, out, 8, &n_out,
                          &t.e) == 0) {
            volatile uint32_t sum = 0;

            result = 1;
            for (size_t i = 0; i < n_out; i++)
                for (int64_t j = 0; j < mil_type_elems(&out[i].type); j++)
                    sum += ((const uint32_t *)out[i].data)[j];
        }
        cr_expect(result == 1 || t.e.text[0], "%s", mil_op_info(code)->name);
        run_close(m);
    }
    for (int i = 0; i < t.n_in; i++)
        mem_free(t.data[i]);
    mil_program_free(t.p);
    return result;
}

Test(run_hostile, random_operations_run_or_are_refused, .timeout = 600)
{
    const char *more = getenv("ANEMLL_TRIALS");
    uint64_t trials = 400, accepted = 0, unreached = 0;

    if (more && !num_parse_u64(more, strlen(more), &trials))
        cr_assert(false, "ANEMLL_TRIALS is no number");
    for (int i = MIL_OP_INVALID + 1; i < MIL_OP_COUNT; i++) {
        enum mil_opcode code = (enum mil_opcode)i;
        uint64_t ran = 0;

        if (code == MIL_OP_const || code == MIL_OP_read_state ||
            code == MIL_OP_write_state ||
            (mil_op_info(code)->flags & MIL_O_BLOCKS))
            continue;
        for (uint64_t k = 0; k < trials; k++) {
            seed = ((uint64_t)i << 32) + k;
            ran += random_trial(code) == 1;
        }
        accepted += ran;
        unreached += ran == 0;
        if (more)
            printf("%s: %d of %d ran\n", mil_op_info(code)->name, (int)ran,
                   (int)trials);
    }
    cr_expect_gt(accepted, trials * 10);
    cr_expect_lt(unreached, 12);
}
