#include "t_schema.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/num.h"

static struct err e;

#define T(d, ...)                                                           \
    mil_type_make((d), (int)(sizeof((const int64_t[]){ __VA_ARGS__ }) / 8), \
                  (const int64_t[]){ __VA_ARGS__ })

mil_ref ts_const(struct mil_function *f, const char *name,
                 const struct mil_type *t, const void *bytes)
{
    struct mil_const k = { *t, bytes, NULL, NULL };
    struct mil_op *op = mil_add_op(f, MIL_OP_const, name, &e);
    mil_ref r = mil_add_output(f, op, name, t, &e);

    cr_assert_neq(r, 0);
    mil_value(f, r)->konst = mil_copy_const(f->program, &k, &e);
    return r;
}

mil_ref ts_strings(struct mil_function *f, const char *name,
                   const struct mil_type *t, const char *const *s)
{
    struct mil_const k = { *t, NULL, s, NULL };
    struct mil_op *op = mil_add_op(f, MIL_OP_const, name, &e);
    mil_ref r = mil_add_output(f, op, name, t, &e);

    cr_assert_neq(r, 0);
    mil_value(f, r)->konst = mil_copy_const(f->program, &k, &e);
    return r;
}

mil_ref ts_op(struct mil_function *f, enum mil_opcode code, const char *name,
              const struct mil_type *out, ...)
{
    const struct mil_op_info *info = mil_op_info(code);
    struct mil_op *op = mil_add_op(f, code, name, &e);
    const char *param;
    mil_ref r = 0;
    va_list ap;

    cr_assert_not_null(op);
    va_start(ap, out);
    while ((param = va_arg(ap, const char *)) != NULL) {
        mil_ref v = va_arg(ap, mil_ref);
        int i = mil_param_index(info, param);

        cr_assert_geq(i, 0, "%s", param);
        cr_assert_eq(mil_set_arg(f, op, i, &v, 1, &e), 0);
    }
    va_end(ap);
    if (out) {
        r = mil_add_output(f, op, name, out, &e);
        cr_assert_neq(r, 0);
    }
    return r;
}

static mil_ref ints(struct mil_function *f, const char *name, int n,
                    const int32_t *v)
{
    int64_t dim = n;
    struct mil_type t = mil_type_make(MIL_I32, 1, &dim);

    return ts_const(f, name, &t, v);
}

static mil_ref literal(struct mil_function *f, const struct mil_type *t,
                       const void *bytes)
{
    struct mil_const k = { *t, bytes, NULL, NULL };
    mil_ref r = mil_add_value(f, MIL_V_LITERAL, NULL, t, &e);

    cr_assert_neq(r, 0);
    mil_value(f, r)->konst = mil_copy_const(f->program, &k, &e);
    return r;
}

static mil_ref weight(struct mil_function *f)
{
    struct mil_type ti = T(MIL_U4, 8, 8, 1, 1), tw = T(MIL_F16, 8, 8, 1, 1),
                    tl = T(MIL_F16, 1, 1, 1, 1, 16, 1);
    uint8_t idx[32] = { 0 }, lut[32];
    unsigned r, c, j;
    mil_ref vi, vl;

    for (r = 0; r < 8; r++)
        for (c = 0; c < 8; c++) {
            unsigned i = r * 8 + c, v = (3 * r + 5 * c + r * c) % 16;

            idx[i / 2] |= (uint8_t)(v << 4 * (i % 2));
        }
    for (j = 0; j < 16; j++)
        store_le16(lut + 2 * j, f64_to_f16(j / 8.0 - 1));
    vi = literal(f, &ti, idx);
    vl = literal(f, &tl, lut);
    return ts_op(f, MIL_OP_constexpr_lut_to_dense, "w", &tw, "indices", vi,
                 "lut", vl, (char *)NULL);
}

static void body(struct mil_program *p, const char *name, int n)
{
    const int32_t ones[2] = { 1, 1 }, zeros[4] = { 0 }, one = 1, axis = 3;
    const int32_t end[4] = { 1, 8, 1, n };
    const char *valid = "valid";
    const uint8_t yes = 1;
    struct mil_type tx = T(MIL_F16, 1, 8, 1, n), tc = T(MIL_F16, 1, 8, 1, 4),
                    ty = T(MIL_F16, 1, 8, 1, 1), ts = mil_scalar(MIL_STRING),
                    ti = mil_scalar(MIL_I32), tb = mil_scalar(MIL_BOOL);
    struct mil_function *f = mil_program_add(p, name, &e);
    mil_ref x = mil_add_value(f, MIL_V_INPUT, "x", &tx, &e);
    mil_ref cache = mil_add_value(f, MIL_V_STATE, "cache", &tc, &e);
    mil_ref w = weight(f), a[5], h, c0, c1, c2, y;

    a[0] = ints(f, "h_strides", 2, ones);
    a[1] = ts_strings(f, "h_pad_type", &ts, &valid);
    a[2] = ints(f, "h_pad", 4, zeros);
    a[3] = ints(f, "h_dilations", 2, ones);
    a[4] = ts_const(f, "h_groups", &ti, &one);
    h = ts_op(f, MIL_OP_conv, "h", &tx, "x", x, "weight", w, "strides", a[0],
              "pad_type", a[1], "pad", a[2], "dilations", a[3], "groups", a[4],
              (char *)NULL);
    c0 = ts_op(f, MIL_OP_read_state, "c0", &tc, "input", cache, (char *)NULL);
    a[0] = ints(f, "c1_begin", 4, zeros);
    a[1] = ints(f, "c1_end", 4, end);
    c1 = ts_op(f, MIL_OP_slice_update, "c1", &tc, "x", c0, "update", h, "begin",
               a[0], "end", a[1], (char *)NULL);
    ts_op(f, MIL_OP_write_state, "c2_write_state", NULL, "input", cache, "data",
          c1, (char *)NULL);
    c2 = ts_op(f, MIL_OP_read_state, "c2", &tc, "input", cache, (char *)NULL);
    a[0] = ints(f, "y_axes", 1, &axis);
    a[1] = ts_const(f, "y_keep_dims", &tb, &yes);
    y = ts_op(f, MIL_OP_reduce_sum, "y", &ty, "x", c2, "axes", a[0],
              "keep_dims", a[1], (char *)NULL);
    cr_assert_eq(mil_add_function_output(f, y, &e), 0);
}

struct mil_program *ts_example(void)
{
    struct mil_program *p = mil_program_new(&e);

    cr_assert_not_null(p);
    body(p, "decode", 1);
    body(p, "prefill", 4);
    return p;
}

struct mil_program *ts_adder(const char *table, const struct mil_data *d)
{
    struct mil_program *p = mil_program_new(&e);
    struct mil_function *f = mil_program_add(p, "main", &e);
    struct mil_const k = { d->type, NULL, NULL, d };
    mil_ref x = mil_add_value(f, MIL_V_INPUT, "x", &d->type, &e), t, y;
    struct mil_op *op = mil_add_op(f, MIL_OP_const, table, &e);

    t = mil_add_output(f, op, table, &d->type, &e);
    mil_value(f, t)->konst = mil_copy_const(p, &k, &e);
    y = ts_op(f, MIL_OP_add, "y", &d->type, "x", x, "y", t, (char *)NULL);
    cr_assert_eq(mil_add_function_output(f, y, &e), 0);
    return p;
}

uint32_t ts_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

void ts_read(struct buf *out, const char *path)
{
    struct err er = ERR_INIT;

    cr_assert_eq(io_read_file(path, (uint64_t)1 << 30, out, &er), 0, "%s",
                 er.text);
}

const char *ts_sha256(const char *path)
{
    static char text[65];
    char command[1024];
    FILE *f;

    snprintf(command, sizeof(command), "sha256sum '%s'", path);
    f = popen(command, "r");
    cr_assert_not_null(f);
    if (fread(text, 1, 64, f) != 64)
        text[0] = '\0';
    pclose(f);
    return text;
}

const char *ts_shared(const char *name)
{
    static char path[1024];
    const char *fixtures = getenv("ANEMLL_FIXTURES");

    if (fixtures && *fixtures)
        snprintf(path, sizeof(path), "%s/../%s", fixtures, name);
    else
        snprintf(path, sizeof(path), "%s/../shared/%s", ANEMLL_SOURCE_DIR,
                 name);
    return io_exists(path) ? path : NULL;
}
