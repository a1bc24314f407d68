/*
 * Shared by the inference files: the context of one op, access to its
 * arguments, shape arithmetic with unknown dims.
 */
#ifndef MIL_INFER_PRIV_H
#define MIL_INFER_PRIV_H

#include "mil/mil.h"

struct infer {
    const struct mil_function *f;
    const struct mil_op *op;
    const struct mil_op_info *info;
    struct mil_type *out;
    uint32_t n_out;
    struct err *e;
};

/* One function per row of the table; arguments were checked by class. */
#define OP(id, since, outputs, flags) int infer_##id(struct infer *c);
#include "mil/ops.def"

/* Sets an error that names the op. Returns -1. */
int infer_fail(const struct infer *c, const char *fmt, ...) ATTR_PRINTF(2, 3);
/* The same about one parameter: "parameter 'x' (type): ...". */
int infer_bad(const struct infer *c, const char *param, const char *fmt, ...)
    ATTR_PRINTF(3, 4);

/* Arguments by parameter name, which must be one of the row. */
mil_ref infer_ref(const struct infer *c, const char *param); /* 0 = absent */
const struct mil_type *infer_type(const struct infer *c,
                                  const char *param); /* NULL = absent */
const struct mil_arg *infer_list(const struct infer *c, const char *param);
const struct mil_type *infer_item(const struct infer *c,
                                  const struct mil_arg *list, uint32_t i);

/* A vector of integers or bools. */
#define INFER_MAX_INTS (2 * MIL_MAX_RANK)
struct infer_ints {
    bool present;
    bool known; /* the values are constant */
    int n;
    int64_t v[INFER_MAX_INTS];
};
/* Reads a vector parameter, which must have `want` elements (any number up
 * to INFER_MAX_INTS when want < 0). */
int infer_get_ints(const struct infer *c, const char *param, int want,
                   struct infer_ints *out) ATTR_MUST_USE;
/* A constant scalar, or `fallback` when absent. */
int infer_get_int(const struct infer *c, const char *param, int64_t fallback,
                  int64_t *out) ATTR_MUST_USE;
int infer_get_bool(const struct infer *c, const char *param, bool fallback,
                   bool *out) ATTR_MUST_USE;
int infer_get_string(const struct infer *c, const char *param,
                     const char *fallback, const char **out) ATTR_MUST_USE;
/* A string that must be one of `allowed` (NULL-terminated); gives its
 * index. */
int infer_get_choice(const struct infer *c, const char *param,
                     const char *fallback, const char *const *allowed,
                     int *out) ATTR_MUST_USE;
/* All values of a constant vector of any length (fresh array, mem_free). */
int infer_get_long_ints(const struct infer *c, const char *param, int64_t **out,
                        int64_t *n) ATTR_MUST_USE;
/* A scalar axis in [-rank, rank), made non-negative. */
int infer_get_axis(const struct infer *c, const char *param, int64_t fallback,
                   int rank, int *out) ATTR_MUST_USE;
/* A vector of axes as a mask of `rank` bits; refuses repeats. Absent gives
 * `all` when all, else 0. */
int infer_get_axes(const struct infer *c, const char *param, int rank, bool all,
                   unsigned *mask) ATTR_MUST_USE;

/* One dim where two must agree; unknown takes the other. */
bool infer_unify(int64_t a, int64_t b, int64_t *out);
/* Right-aligned broadcast; false when a pair differs and holds no 1. */
bool infer_broadcast(const struct mil_type *a, const struct mil_type *b,
                     struct mil_type *out);
/* Sum and product with unknown; -2 beyond 2^62. */
int64_t infer_dim_mul(int64_t a, int64_t b);

/* The result shape of slice_by_index and slice_update, from x and the
 * parameters of that name; dtype is x's. */
int infer_slice(const struct infer *c, struct mil_type *out) ATTR_MUST_USE;

#endif
