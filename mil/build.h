/*
 * The builder: how model files write programs.
 *
 *     mil_ref y = MB(b, add, .x = x, .y = mlp(b, x));
 *
 * One macro; a misspelt parameter does not compile, an omitted one is absent.
 * Every call checks arguments and infers the result's type at once. The first
 * error sticks, later calls return 0, and only mb_end() is checked. Errors
 * carry the scope, the op and the source line of the call.
 *
 * Names: mb_name() labels the next op; otherwise its type and a running
 * number. Scopes go in front ("layers_3_q_proj"). Names become legal, unique,
 * unreserved identifiers in one place.
 */
#ifndef MIL_BUILD_H
#define MIL_BUILD_H

#include "mil/mil.h"

struct mb_refs {
    const mil_ref *refs;
    uint32_t n;
};
/* A list argument: .values = MB_REFS(a, b, c) */
#define MB_REFS(...)                                                         \
    ((struct mb_refs){ (const mil_ref[]){ __VA_ARGS__ },                     \
                       (uint32_t)(sizeof((const mil_ref[]){ __VA_ARGS__ }) / \
                                  sizeof(mil_ref)) })

#define OP(id, since, outputs, flags) \
    struct mil_args_##id {            \
        char unused_; /* no struct is empty */
#define IN(id, param, cls, flags) mil_ref param;
#define LIST(id, param, cls, flags) struct mb_refs param;
#define END(id) \
    }           \
    ;
#include "mil/ops.def"

struct mb {
    struct mil_program *program;
    struct mil_function *f;
    struct err err;
    struct mb_names *names; /* taken names, constants by content */
    char scope[160];
    char next_name[96];
    unsigned serial;
};

/* Starts function `name` of a program. */
void mb_begin(struct mb *b, struct mil_program *p, const char *name);
/* Ends it; reports the first error. Releases the builder in any case. */
int mb_end(struct mb *b, struct err *e) ATTR_MUST_USE;
/* For a model's own checks: sets the sticky error. Returns 0. */
mil_ref mb_fail(struct mb *b, enum err_code code, const char *fmt, ...)
    ATTR_PRINTF(3, 4);

/* Emits one op and returns its first output (0 for ops without). */
#define MB(b, id, ...)                                                  \
    mb_emit((b), MIL_OP_##id,                                           \
            &(const struct mil_args_##id){ .unused_ = 0, __VA_ARGS__ }, \
            __FILE__, __LINE__)
mil_ref mb_emit(struct mb *b, enum mil_opcode code, const void *args,
                const char *file, int line);
/* Output i of the op that produced v (split, topk). */
mil_ref mb_out(struct mb *b, mil_ref v, uint32_t i);

mil_ref mb_input(struct mb *b, const char *name, enum mil_dtype dtype, int rank,
                 const int64_t *dims);
mil_ref mb_state(struct mb *b, const char *name, int rank,
                 const int64_t *dims); /* fp16 */
/* Declares the result of an op as function output `name` (the value is
 * renamed; an input, const or state read goes through an identity). */
void mb_output(struct mb *b, const char *name, mil_ref v);

/* Constants. Equal small ones of a function are one const op. */
mil_ref mb_bool(struct mb *b, bool v);
mil_ref mb_int(struct mb *b, int32_t v);                   /* rank 0 */
mil_ref mb_ints(struct mb *b, size_t n, const int32_t *v); /* rank 1 */
#define MB_INTS(b, ...)                                                      \
    mb_ints((b), sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t), \
            (const int32_t[]){ __VA_ARGS__ })
mil_ref mb_bools(struct mb *b, size_t n, const bool *v); /* rank 1 */
#define MB_BOOLS(b, ...)                                                \
    mb_bools((b), sizeof((const bool[]){ __VA_ARGS__ }) / sizeof(bool), \
             (const bool[]){ __VA_ARGS__ })
mil_ref mb_string(struct mb *b, const char *s);
mil_ref mb_f16(struct mb *b, double v); /* rank 0 */
mil_ref mb_f32(struct mb *b, double v); /* rank 0 */
/* A large constant; `data` must outlive the program. The label (mb_name or
 * `name`) is what the package calls the weight. */
mil_ref mb_data(struct mb *b, const char *name, const struct mil_data *data);

/* Name scopes: printf text, joined with '_'. */
void mb_scope(struct mb *b, const char *fmt, ...) ATTR_PRINTF(2, 3);
void mb_leave(struct mb *b);
/* Label of the next op. */
void mb_name(struct mb *b, const char *fmt, ...) ATTR_PRINTF(2, 3);

/* Type of a value; an all-zero type once an error stuck. */
struct mil_type mb_type(const struct mb *b, mil_ref v);
/* 0 once an error stuck. */
static inline int64_t mb_dim(const struct mb *b, mil_ref v, int axis)
{
    struct mil_type t = mb_type(b, v);

    return t.rank ? t.dims[axis < 0 ? t.rank + axis : axis] : 0;
}

/* Blocks: short forms that emit opset ops at once. */
mil_ref mb_reshape(struct mb *b, mil_ref x, size_t rank, const int32_t *shape);
#define MB_RESHAPE(b, x, ...)                                              \
    mb_reshape((b), (x),                                                   \
               sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t), \
               (const int32_t[]){ __VA_ARGS__ })
#define MB_TRANSPOSE(b, x_, ...) \
    MB(b, transpose, .x = (x_), .perm = MB_INTS(b, __VA_ARGS__))
/* 1x1 convolution over [1, C, 1, T] with weight [O, C, 1, 1], all parameters
 * written out as exporters do; bias 0 = none. */
mil_ref mb_conv1x1(struct mb *b, mil_ref x, mil_ref weight, mil_ref bias);

#endif
