/*
 * Inside the runtime: decoded constants, plans, steps, kernels.
 *
 * Values in memory: float for fp16 and fp32, int32_t for integers and bools,
 * row-major and contiguous. A value is a slot, indexed by its mil_ref; slots
 * that share memory (views, states updated in place) have one root.
 */
#ifndef RUN_RUN_PRIV_H
#define RUN_RUN_PRIV_H

#include "mil/run/run.h"

#include "converter/base/num.h"
#include "mil/run/kern_priv.h"

/* ---- constants (run_const.c) ---- */

struct run_const {
    struct mil_type type;
    int64_t elems;
    f16_t *half; /* fp16 bits, where only products and gathers read them */
    float *f32;
    int32_t *i32;
    bool streamed; /* none of these: products read it in pieces */
    /* Where content comes from, and what makes two constants one. */
    const struct mil_const *konst;
    enum mil_opcode code; /* MIL_OP_const or a constexpr */
    struct run_const *args[3];
    int64_t axis;
    struct run_const *next;
};
/* What a consumer needs of a constant. */
enum run_need {
    RUN_NEED_WIDE,   /* float or int32_t array */
    RUN_NEED_HALF,   /* fp16 bits will do */
    RUN_NEED_PIECES, /* fp16 bits, or pieces of them beyond the limit */
    RUN_NEED_ROWS,   /* rows, possibly read one by one from the source */
};
/* The constant behind a value; *out is NULL if it has none. */
int run_const_get(struct run_model *m, const struct mil_function *f, mil_ref r,
                  struct run_const **out, struct err *e) ATTR_MUST_USE;
int run_const_need(struct run_model *m, struct run_const *k, enum run_need need,
                   struct err *e) ATTR_MUST_USE;
/* Elements [first, first + n) of a constant of floats, loaded or not. */
int run_const_floats(const struct run_const *k, int64_t first, int64_t n,
                     float *dst, struct err *e) ATTR_MUST_USE;
/* Bytes of a plain constant as they lie in its source. */
int run_const_raw(const struct run_const *k, uint64_t offset, void *dst,
                  size_t n, struct err *e) ATTR_MUST_USE;
void run_const_free_all(struct run_model *m);

/* ---- constants in pieces (run_stream.c) ---- */

bool run_stream_fits(const struct run_const *k); /* can it be read so? */
int64_t run_stream_rows(int64_t cols);           /* of one piece */
/* Scratch for a piece of `elems` elements. */
int64_t run_stream_floats(const struct run_const *k, int64_t elems);
/* Elements [first, first + n) as halves at the start of `scratch`. */
int run_stream_read(const struct run_const *k, int64_t first, int64_t n,
                    float *scratch, struct err *e) ATTR_MUST_USE;

/* ---- plans ---- */

enum run_home {
    RUN_HOME_NONE,
    RUN_HOME_ARENA,
    RUN_HOME_CONST,
    RUN_HOME_INPUT,
    RUN_HOME_STATE,
    RUN_HOME_OWN, /* a run-time shape: memory of its own */
};

struct run_slot {
    struct mil_type type;
    int64_t elems; /* -1: known at run time */
    enum run_home home;
    mil_ref root;   /* itself if it has its own memory */
    int64_t offset; /* elements from the root's start */
    struct run_const *konst;
    void *data;
    uint64_t place;     /* arena offset in elements */
    size_t first, last; /* ops between which a root's memory is in use */
    void *own;          /* RUN_HOME_OWN; and rounded copies of inputs */
    uint64_t own_elems;
};

#define ND_MAX 12
/* A strided copy; the last dim is the innermost. Strides in elements. */
struct nd {
    int rank;
    int64_t d[ND_MAX], ss[ND_MAX], ds[ND_MAX];
};

/* Operands of an elementwise op, dims collapsed; stride 0 = broadcast. */
struct bcast {
    int rank; /* >= 1 */
    int64_t d[MIL_MAX_RANK], s[3][MIL_MAX_RANK];
    int64_t n;
};

/* Rows that a reduction works on: kept dims count them, reduced dims are
 * their elements. */
struct rows {
    int nk, nr;
    int64_t kd[MIL_MAX_RANK], ks[MIL_MAX_RANK];
    int64_t rd[MIL_MAX_RANK], rs[MIL_MAX_RANK];
    int64_t count, len;
    bool contiguous; /* row i is at i * len */
};

struct conv_plan {
    int s;
    bool pointwise, line; /* line: depthwise along the last dim, stride 1 */
    int64_t n, cin, cout, groups, ksize, in_elems, out_elems, chunk;
    int64_t in[3], out[3], kern[3], stride[3], dil[3], before[3];
};

struct matmul_plan {
    int nb; /* batch dims */
    int64_t bd[MIL_MAX_RANK], xs[MIL_MAX_RANK], ys[MIL_MAX_RANK];
    int64_t batches, m, n, k;
    int64_t x_mats, y_mats;
    bool tx, ty;         /* stored transposed */
    bool pack_x, pack_y; /* copied so that k is innermost */
    bool vecmat;         /* few rows: y is read as it lies */
    bool half;           /* y's rows are kept as halves */
};

struct run_step;
typedef void (*elem_fn)(const struct run_step *s, void *out,
                        const void *const in[3], const int64_t stride[3],
                        int64_t n);

union run_param {
    struct {
        struct bcast b;
        elem_fn fn;
        float a, c;
    } elem;
    struct {
        struct rows r;
        int kind;
        float eps;
        bool flag, reverse;
        int64_t k;
    } norm;
    struct nd nd;
    struct conv_plan conv;
    struct matmul_plan matmul;
    struct {
        int64_t outer, n, inner, count, idx_outer;
        int axis;
    } gather;
    struct {
        int64_t outer, inner;
        bool interleave;
        int axis;
    } join;
    int64_t band[4];
};

struct run_plan;
struct run_ctx;

struct run_kernel {
    /* Parses constant parameters; types of arguments and results are known
     * and passed type inference. May be NULL. */
    int (*prepare)(struct run_ctx *c, struct run_step *s, struct err *e);
    int (*run)(struct run_ctx *c, const struct run_step *s, struct err *e);
    /* Result `out` is part of an argument as it lies in memory. */
    bool (*view)(const struct run_step *s, uint32_t out, mil_ref *src,
                 int64_t *offset);
    unsigned flags;
};
#define RUN_K_COMPUTES 1 /* makes new numbers: they are rounded */
#define RUN_K_VALUES 2   /* the result's shape follows arguments' values */

struct run_step {
    const struct mil_op *op;
    const struct run_kernel *kernel;
    struct run_plan *plan;
    size_t index;     /* of the op in the function */
    bool dynamic;     /* types are inferred again at each call */
    bool in_place;    /* slice_update writes into x's memory */
    bool own_read;    /* read_state copies */
    bool round;       /* results become halves */
    int64_t shared;   /* floats of scratch for the op */
    int64_t per_work; /* floats of scratch for each worker */
    union run_param p;
};

struct run_output {
    mil_ref ref;
    bool copy; /* lies in memory that is not the plan's */
    void *own;
    uint64_t own_elems;
};

struct run_plan {
    struct run_model *model;
    const struct mil_function *f;      /* specialised */
    struct mil_program *specialized;   /* owner of f, or NULL */
    const struct mil_function *source; /* as in the program */
    struct run_slot *slots;            /* by mil_ref */
    struct run_step *steps;
    size_t n_steps;
    struct run_output *outs;
    float *arena;
    uint64_t arena_elems;
    struct mil_function shadow;    /* f, with the types that slots have */
    struct run_lockstep *lockstep; /* NULL: not looked at yet */
    struct run_plan *next;
};

/* The failure of a worker; that of the lowest piece is reported. */
struct run_failure {
    struct err err;
    uint64_t at;
};

struct run_ctx {
    struct par *par;
    struct run_failure *failures; /* by worker */
    const struct kern *k;
    bool half; /* values are halves: all profiles but F32 */
    float *shared;
    float *work; /* width * work_floats */
    int64_t shared_floats, work_floats;
};

struct run_model {
    const struct mil_program *program;
    struct run_options options;
    struct kern kern; /* of the profile */
    struct run_ctx ctx;
    struct run_const *buckets[2048]; /* constants by hash */
    struct run_plan *plans;
    uint64_t const_bytes, plan_bytes;
};

/* Calls side by side (run_calls.c); states are bound. *done false: they have to
 * be made one by one. 1: calls->take failed. */
int run_lockstep(struct run_plan *p, const struct run_calls *calls, bool *done,
                 struct err *e) ATTR_MUST_USE;
void run_lockstep_free(struct run_lockstep *l);
const struct run_tensor *run_find_input(const struct run_tensor *in, size_t n,
                                        const char *name);
/* A convolution with one position, for n calls whose x and y follow each other
 * at `stride` floats. */
int run_conv_calls(struct run_ctx *c, const struct run_step *s, int64_t n,
                   int64_t stride, struct err *e) ATTR_MUST_USE;

/* Plans one function whose inputs have static types (run_plan.c). */
struct run_plan *run_plan_new(struct run_model *m,
                              const struct mil_function *source,
                              const char *const *names,
                              const struct mil_type *types, size_t n,
                              struct err *e) ATTR_MUST_USE;
void run_plan_free(struct run_plan *p);
/* Views and state updates in place: sets roots of all slots (run_alias.c). */
int run_alias(struct run_plan *p, struct err *e) ATTR_MUST_USE;
/* Kernel of an op; NULL if not supported (run_ops.c). */
const struct run_kernel *run_kernel_of(enum mil_opcode code);
/* Makes the context's scratch large enough for a step. */
int run_scratch(struct run_ctx *c, const struct run_step *s,
                struct err *e) ATTR_MUST_USE;
/* Runs a step; a dynamic one is inferred and prepared first. */
int run_step_exec(struct run_ctx *c, struct run_step *s,
                  struct err *e) ATTR_MUST_USE;
/* Reserves memory of its own for a slot. */
int run_slot_own(struct run_slot *s, struct err *e) ATTR_MUST_USE;

/* States (run_state.c): the float buffer of one, made on first use. */
int run_state_get(struct run_states *s, const char *name,
                  const struct mil_type *type, float **data,
                  struct err *e) ATTR_MUST_USE;

/* ---- for kernels ---- */

/* Positions of parameters: P_conv_weight. */
#define OP(id, since, outputs, flags) \
    enum run_params_##id              \
    {
#define IN(id, param, cls, flags) P_##id##_##param,
#define LIST(id, param, cls, flags) P_##id##_##param,
#define END(id)      \
    P_##id##_COUNT_, \
    }                \
    ;
#include "mil/ops.def"

/* Kernels by name: whichever of them an op has. */
#define OP(id, since, outputs, flags)                                        \
    int run_##id(struct run_ctx *c, const struct run_step *s, struct err *e) \
        ATTR_MUST_USE;                                                       \
    int prepare_##id(struct run_ctx *c, struct run_step *s, struct err *e)   \
        ATTR_MUST_USE;                                                       \
    bool view_##id(const struct run_step *s, uint32_t out, mil_ref *src,     \
                   int64_t *offset);
#include "mil/ops.def"

/* Argument j of a parameter; NULL if absent. */
static inline struct run_slot *run_item(const struct run_step *s, int param,
                                        uint32_t j)
{
    const struct mil_arg *a = &s->op->args[param];

    return j < a->n ? &s->plan->slots[a->refs[j]] : NULL;
}
static inline struct run_slot *run_arg(const struct run_step *s, int param)
{
    return run_item(s, param, 0);
}
static inline struct run_slot *run_out(const struct run_step *s, uint32_t i)
{
    return &s->plan->slots[s->op->outs[i]];
}
static inline bool run_is_float(const struct run_slot *v)
{
    return mil_dtype_is_float(v->type.dtype);
}
static inline bool run_rounds(const struct run_ctx *c, const struct run_slot *v)
{
    return c->half && v->type.dtype == MIL_F16;
}

/* "<op type> '<label>': ..." */
int run_fail(const struct run_step *s, struct err *e, const char *fmt, ...)
    ATTR_PRINTF(3, 4);

/* Constant parameters, or the default where absent. Content is at hand while
 * preparing; type inference has checked classes and ranges. */
int64_t run_int(const struct run_step *s, int param, int64_t fallback);
bool run_bool(const struct run_step *s, int param, bool fallback);
float run_float(const struct run_step *s, int param, float fallback);
const char *run_text(const struct run_step *s, int param, const char *fallback);
/* A vector of at most `max` integers; *n = -1 if absent. */
int run_ints(const struct run_step *s, int param, int max, int64_t *v, int *n,
             struct err *e) ATTR_MUST_USE;

/* Strided copies (run_nd.c). */
void nd_copy(struct par *par, void *dst, const void *src, const struct nd *nd);
/* Row-major strides of a type. */
void nd_strides(const struct mil_type *t, int64_t *strides);
/* [rows, cols] at src with row stride ld, transposed into dst [cols, rows]. */
void nd_transpose(struct par *par, float *dst, const float *src, int64_t rows,
                  int64_t cols, int64_t ld);

/* Splits work over threads where it is worth it: `cost` is about the number
 * of elements touched per index. */
void run_par(struct run_ctx *c, int64_t n, int64_t cost, par_fn fn, void *arg);

/* Products in batches: batch dims bd with strides ws (w), xs (x); results of
 * batch i at out + i * out_stride. With `stream` w is neither float nor half:
 * its rows are read from element `first` on, in the one batch there is. */
struct gemm_batch {
    struct kern_gemm g;
    const struct run_const *stream;
    int64_t first;
    int64_t m;
    int nb;
    int64_t bd[MIL_MAX_RANK], ws[MIL_MAX_RANK], xs[MIL_MAX_RANK];
    int64_t batches, out_stride;
};
void run_gemm(struct run_ctx *c, const struct gemm_batch *b);

#endif
