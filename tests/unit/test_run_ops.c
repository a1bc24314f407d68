/*
 * Every operation of the runtime: results that coremltools (numpy where it
 * evaluates nothing) computed, stored in tests/ops/values.json by
 * tests/peers/op_values.py.
 */
#include <criterion/criterion.h>

#include <stdio.h>

#include "t_op.h"

static struct js_doc *open_cases(struct err *e)
{
    struct js_doc *d =
        js_read_file(ANEMLL_SOURCE_DIR "/tests/ops/values.json", 1 << 24, e);

    cr_assert(d, "%s", e->text);
    return d;
}

Test(run_ops, values)
{
    struct err e = ERR_INIT;
    struct js_doc *d = open_cases(&e);
    int n = 0;

    for (const struct js_node *c = js_first(js_get(js_root(d), "cases")); c;
         c = js_next(c)) {
        struct t_op_case k;

        err_reset(&e);
        if (t_op_read(c, &k, &e) || t_op_run(&k, &e))
            cr_expect(false, "%s", e.text);
        t_op_free(&k);
        n++;
    }
    cr_expect_gt(n, 300);
    js_free(d);
}

/* Control flow is refused; state ops have suites of their own, casts of
 * constants and `const` no values that a peer could differ on. */
static bool elsewhere(enum mil_opcode code)
{
    return code == MIL_OP_const || code == MIL_OP_constexpr_cast ||
           code == MIL_OP_read_state || code == MIL_OP_write_state ||
           (mil_op_info(code)->flags & MIL_O_BLOCKS);
}

Test(run_ops, every_row_has_a_case)
{
    struct err e = ERR_INIT;
    struct js_doc *d = open_cases(&e);
    bool seen[MIL_OP_COUNT] = { false };
    const char *op;

    for (const struct js_node *c = js_first(js_get(js_root(d), "cases")); c;
         c = js_next(c))
        if (js_string(js_get(c, "op"), &op) && mil_op_by_name(op))
            seen[mil_op_by_name(op)->code] = true;
    for (int i = MIL_OP_INVALID + 1; i < MIL_OP_COUNT; i++) {
        enum mil_opcode code = (enum mil_opcode)i;

        cr_expect(seen[i] || elsewhere(code), "%s has no case",
                  mil_op_info(code)->name);
    }
    js_free(d);
}

/* The comparison itself must be able to fail. */
Test(run_ops, a_wrong_value_is_found)
{
    struct err e = ERR_INIT;
    struct js_doc *d = open_cases(&e);
    int caught = 0, n = 0;

    for (const struct js_node *c = js_first(js_get(js_root(d), "cases"));
         c && n < 40; c = js_next(c)) {
        struct t_op_case k;

        err_reset(&e);
        cr_assert_eq(t_op_read(c, &k, &e), 0, "%s", e.text);
        if (k.outs[0].elems > 0) {
            /* a changed sign, or another integer */
            k.outs[0].bits[k.outs[0].elems - 1] ^=
                mil_dtype_is_float(k.outs[0].type.dtype) ? 0xBF000000u : 1u;
            caught += t_op_run(&k, &e) != 0 && e.code == ERR_MISMATCH;
            n++;
        }
        t_op_free(&k);
    }
    cr_expect_eq(caught, n, "%d of %d wrong values were found", caught, n);
    js_free(d);
}
