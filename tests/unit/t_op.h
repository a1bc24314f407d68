/*
 * Op cases: one operation, its arguments and results, as JSON that a peer
 * wrote (tests/peers/op_values.py).
 *
 * {"cases": [{"name", "op", "args": {param: VALUE or [VALUE...]}, "run_time":
 * [param...], "outs": [VALUE...], "rtol", "atol"}]} with VALUE = {"dtype",
 * "shape", "bits"} (float32 bit patterns or integers) or {"string"}.
 * Parameters in "run_time" are function inputs, the others constants.
 */
#ifndef T_OP_H
#define T_OP_H

#include "converter/base/json.h"
#include "mil/mil.h"

#define T_OP_MAX_ARGS 16

struct t_op_value {
    struct mil_type type;
    const char *text;
    uint32_t *bits; /* float32 patterns, or integers */
    int64_t elems;
};

struct t_op_arg {
    int param;
    bool run_time;
    struct t_op_value v;
    mil_ref ref;
};

struct t_op_case {
    const char *name;
    enum mil_opcode code;
    struct t_op_arg args[T_OP_MAX_ARGS];
    int n_args;
    struct t_op_value outs[T_OP_MAX_ARGS];
    int n_outs;
    double rtol, atol;
};

/* Strings point into the document. */
int t_op_read(const struct js_node *n, struct t_op_case *c, struct err *e);
void t_op_free(struct t_op_case *c);
/*
 * Runs a case with its float tensors as fp32 in profile f32 and as fp16 in
 * profile fp16 (where the tolerance gains what rounding to half costs), at
 * every SIMD level, which must give the same bits. 0, or -1 with what is
 * wrong.
 */
int t_op_run(struct t_op_case *c, struct err *e);

#endif
