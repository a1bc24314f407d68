/*
 * The program IR: programs, functions, values, operations, constants.
 *
 * It knows nothing of protobuf, MIL text or any other file form. Everything
 * lives in the program's arena and is freed with it. Weights are never copied
 * into the IR: a large constant holds a `mil_data` (type, size, read
 * callback), and one mil_data may stand behind constants of several
 * functions: writers store it once.
 */
#ifndef MIL_MIL_H
#define MIL_MIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"
#include "converter/base/mem.h"

/* ---- types ---- */

enum mil_dtype {
    MIL_INVALID,
    MIL_BOOL,
    MIL_STRING,
    MIL_F16,
    MIL_F32,
    MIL_F64,
    MIL_BF16,
    MIL_I4,
    MIL_I8,
    MIL_I16,
    MIL_I32,
    MIL_I64,
    MIL_U1,
    MIL_U2,
    MIL_U3,
    MIL_U4,
    MIL_U6,
    MIL_U8,
    MIL_U16,
    MIL_U32,
    MIL_U64,
    MIL_DTYPE_COUNT
};
const char *mil_dtype_name(enum mil_dtype d); /* MIL text: "fp16", "int32" */
bool mil_dtype_by_name(const char *name, enum mil_dtype *out);
unsigned mil_dtype_bits(enum mil_dtype d); /* BOOL 8, STRING 0 */
bool mil_dtype_is_float(enum mil_dtype d);
bool mil_dtype_is_int(enum mil_dtype d); /* any integer, sub-byte too */

#define MIL_MAX_RANK 8 /* LUTs of rank-4 weights have rank 6 */
#define MIL_DIM_UNKNOWN (-1)

struct mil_type {
    enum mil_dtype dtype;
    int rank;                   /* 0 = scalar */
    int64_t dims[MIL_MAX_RANK]; /* >= 0 or MIL_DIM_UNKNOWN */
};
struct mil_type mil_type_make(enum mil_dtype d, int rank, const int64_t *dims);
struct mil_type mil_scalar(enum mil_dtype d);
bool mil_type_equal(const struct mil_type *a, const struct mil_type *b);
bool mil_type_is_static(const struct mil_type *t);
/* Elements of a static type; -1 when unknown or beyond 2^62. */
int64_t mil_type_elems(const struct mil_type *t);
/* Packed bytes of a static type (sub-byte types: ceil(n * bits / 8)). */
int64_t mil_type_bytes(const struct mil_type *t);
/* "tensor<fp16, [1, 8, 1, 64]>" or "fp16" for scalars. */
#define MIL_TYPE_TEXT_MAX 160
void mil_type_text(const struct mil_type *t, char out[MIL_TYPE_TEXT_MAX]);

/* ---- constants ---- */

/* What a large constant is for: decides palettization and fp16 exemption. */
enum mil_role {
    MIL_ROLE_NONE,
    MIL_ROLE_PROJECTION, /* matrices inside decoder layers */
    MIL_ROLE_HEAD,       /* matrices of the LM head */
    MIL_ROLE_EMBEDDING,  /* gather tables of tokens */
    MIL_ROLE_NORM,
    MIL_ROLE_ROPE,
};

/*
 * Bytes that stand behind a constant: row-major, packed for sub-byte types
 * (LSB first). read() yields bytes [offset, offset + n) in any order; readers
 * go front to back where they can, since sources may be cheapest so.
 */
struct mil_data {
    struct mil_type type;
    uint64_t bytes;
    int (*read)(void *cookie, uint64_t offset, void *dst, size_t n,
                struct err *e);
    void *cookie;
    enum mil_role role;
    /* Provenance for the gate: checkpoint tensor and rows, what was folded
     * in. NULL for constants that come from no tensor. */
    const struct mil_origin *origin;
};
struct mil_origin {
    const char *tensor; /* checkpoint name */
    uint64_t row, rows; /* rows of that tensor held here */
    uint64_t total_rows;
    int scale_exp;              /* value here = tensor value * 2^scale_exp */
    uint64_t block, take, skip; /* of each block of rows, these; 0 = all */
    uint64_t wide;      /* [E, H, I] held as [H, E * I]: E; 0 = as it is */
    double add, factor; /* (value + add) * factor; factor 0 = 1 */
    bool neg_exp;       /* -exp(value) */
};
/* A mil_data over bytes in memory (not copied; must outlive the program). */
int mil_data_read_memory(void *cookie, uint64_t offset, void *dst, size_t n,
                         struct err *e); /* cookie: const void *bytes */

/* Exactly one of bytes, strings, data is set. */
struct mil_const {
    struct mil_type type;
    const void *bytes;           /* small: little-endian, packed */
    const char *const *strings;  /* MIL_STRING: elems entries */
    const struct mil_data *data; /* large */
};
/* Element i of a small constant as double / int64; 0 if none. */
double mil_const_double(const struct mil_const *c, int64_t i);
int64_t mil_const_int(const struct mil_const *c, int64_t i);

/* ---- programs ---- */

typedef uint32_t mil_ref; /* a value within its function; 0 = none */

enum mil_value_kind {
    MIL_V_NONE,
    MIL_V_INPUT,   /* function input */
    MIL_V_STATE,   /* state input: only read_state / write_state take it */
    MIL_V_RESULT,  /* output of an op; of a `const` op: konst is set */
    MIL_V_LITERAL, /* inline value of a parameter; has no name */
};
/* The shapes that an input with unknown dims accepts. */
struct mil_shapes {
    struct mil_type first;       /* the default */
    int n;                       /* listed ones; 0: a range */
    const struct mil_type *list; /* the default among them */
    /* Of a range, both inclusive; high -1: no bound. */
    int64_t low[MIL_MAX_RANK], high[MIL_MAX_RANK];
};
struct mil_value {
    enum mil_value_kind kind;
    const char *name;
    struct mil_type type;
    int op;                          /* producing op's index, else -1 */
    const struct mil_const *konst;   /* LITERAL, and results of const ops */
    const struct mil_shapes *shapes; /* INPUT with unknown dims, if known */
};

enum mil_opcode {
    MIL_OP_INVALID,
#define OP(id, since, nout, flags) MIL_OP_##id,
#include "mil/ops.def"
    MIL_OP_COUNT
};

#define MIL_MAX_PARAMS 10

struct mil_arg {
    const mil_ref *refs; /* one, or several for variadic parameters */
    uint32_t n;          /* 0 = parameter absent */
};
/*
 * An operation that no row of the table describes: forms of older opsets,
 * types that we do not know. Kept so that such files can be read, listed and
 * printed; inference and validation refuse it.
 */
struct mil_named_arg {
    const char *name;
    struct mil_arg arg;
    bool attribute; /* stands in the attribute list */
};
struct mil_foreign {
    const char *type;
    const struct mil_named_arg *args;
    uint32_t n_args;
};
struct mil_op {
    enum mil_opcode code;
    const struct mil_foreign *foreign;   /* set if code is MIL_OP_INVALID */
    const char *name;                    /* label; may be "" */
    struct mil_arg args[MIL_MAX_PARAMS]; /* in the order of ops.def */
    mil_ref *outs;
    uint32_t n_outs;
};

struct mil_function {
    struct mil_program *program;
    const char *name;
    const char *opset;        /* "CoreML8" */
    struct mil_value *values; /* [0] unused */
    size_t n_values, cap_values;
    mil_ref *inputs; /* inputs and states, declared order */
    size_t n_inputs, cap_inputs;
    struct mil_op *ops;
    size_t n_ops, cap_ops;
    mil_ref *outputs;
    size_t n_outputs, cap_outputs;
};

struct mil_pair {
    const char *key, *value;
};

struct mil_program {
    struct arena arena;
    struct mil_function **functions; /* in order; the first is the default */
    size_t n_functions, cap_functions;
    struct mil_pair *metadata; /* user-defined strings, in order */
    size_t n_metadata, cap_metadata;
    /* String pairs of the program attribute `buildInfo`, in order. */
    struct mil_pair *build_info;
    size_t n_build_info, cap_build_info;
    const char *description, *author, *license, *version; /* "" or NULL */
    /* Spec version of the file it came from (9 for ours). */
    int spec_version;
};

struct mil_program *mil_program_new(struct err *e) ATTR_MUST_USE;
void mil_program_free(struct mil_program *p);
struct mil_function *mil_program_add(struct mil_program *p, const char *name,
                                     struct err *e) ATTR_MUST_USE;
struct mil_function *mil_program_find(const struct mil_program *p,
                                      const char *name);
int mil_program_set_metadata(struct mil_program *p, const char *key,
                             const char *value, struct err *e) ATTR_MUST_USE;
int mil_program_set_build_info(struct mil_program *p, const char *key,
                               const char *value, struct err *e) ATTR_MUST_USE;
/* Lists the shapes of an input with unknown dims, the default first, in every
 * function that has one of that name; copied. */
int mil_program_set_enumerated(struct mil_program *p, const char *input,
                               int n_shapes, const struct mil_type *shapes,
                               struct err *e) ATTR_MUST_USE;
const char *mil_program_metadata(const struct mil_program *p, const char *key);

/* Raw construction, for readers (the builder in build.h is for authors). All
 * strings and arrays are copied into the arena. */
mil_ref mil_add_value(struct mil_function *f, enum mil_value_kind kind,
                      const char *name, const struct mil_type *type,
                      struct err *e) ATTR_MUST_USE; /* 0 on error */
/* What an input accepts; copied. */
int mil_set_shapes(struct mil_function *f, mil_ref input,
                   const struct mil_shapes *s, struct err *e) ATTR_MUST_USE;
/* Whether `t`, which fits the input's declared type, is among them. */
bool mil_shapes_take(const struct mil_shapes *s, const struct mil_type *t);
/* Appends an op with no arguments; outputs are added by mil_add_output. */
struct mil_op *mil_add_op(struct mil_function *f, enum mil_opcode code,
                          const char *name, struct err *e) ATTR_MUST_USE;
int mil_set_arg(struct mil_function *f, struct mil_op *op, int param,
                const mil_ref *refs, uint32_t n, struct err *e) ATTR_MUST_USE;
/* Makes an op of code MIL_OP_INVALID a foreign one. */
int mil_set_foreign(struct mil_function *f, struct mil_op *op,
                    const struct mil_foreign *foreign,
                    struct err *e) ATTR_MUST_USE;
/* "conv"; of foreign ops their own type. */
const char *mil_op_type(const struct mil_op *op);
/* Adds an output value to the op that was appended last. */
mil_ref mil_add_output(struct mil_function *f, struct mil_op *op,
                       const char *name, const struct mil_type *type,
                       struct err *e) ATTR_MUST_USE;
int mil_add_function_output(struct mil_function *f, mil_ref v,
                            struct err *e) ATTR_MUST_USE;
const struct mil_const *mil_copy_const(struct mil_program *p,
                                       const struct mil_const *c,
                                       struct err *e) ATTR_MUST_USE;
/* Value by name among inputs and results; 0 if none. Linear: readers that
 * resolve many names keep their own table. */
mil_ref mil_find_value(const struct mil_function *f, const char *name);
/* The one called `name` among some (a function's inputs, outputs); NULL if
 * there is none. */
const struct mil_value *mil_value_among(const struct mil_function *f,
                                        const mil_ref *refs, size_t n,
                                        const char *name);

static inline struct mil_value *mil_value(const struct mil_function *f,
                                          mil_ref r)
{
    return &f->values[r];
}
/* Argument `param` of an op as one value; 0 if absent. */
static inline mil_ref mil_arg(const struct mil_op *op, int param)
{
    return op->args[param].n ? op->args[param].refs[0] : 0;
}
/* The constant behind an argument (const op, literal); NULL if none or if it
 * is not constant. */
const struct mil_const *mil_arg_const(const struct mil_function *f,
                                      const struct mil_op *op, int param);

/* ---- the op table ---- */

/* Type classes of parameters. */
enum mil_class {
    MIL_T_ANY, /* any tensor */
    MIL_T_F,   /* fp16, fp32 */
    MIL_T_N,   /* fp16, fp32, int32 */
    MIL_T_W,   /* N and int8, uint8, int16, uint16, bool */
    MIL_T_G,   /* N and int16, uint16, int8, uint8 */
    MIL_T_I,   /* int8, int16, int32 */
    MIL_T_IDX, /* int8, uint8, int16, uint16, int32 */
    MIL_T_INT32,
    MIL_T_BOOL,
    MIL_T_STR,
    MIL_T_NB,     /* fp16, fp32, int32, bool */
    MIL_T_LUTIDX, /* uint1 .. uint8 */
    MIL_T_LUTVAL, /* fp16, fp32, int8, uint8 */
    MIL_T_QDATA,  /* int4, uint4, int8, uint8, fp16, fp32 */
    MIL_T_STATE,
};
/* Parameter flags. */
#define MIL_P_OPT 1      /* may be absent */
#define MIL_P_CONST 2    /* must be known at compile time */
#define MIL_P_LIST 4     /* variadic: several values */
#define MIL_P_SCALAR 8   /* rank 0 */
#define MIL_P_VECTOR 16  /* rank 1 */
#define MIL_P_T 32       /* shares its dtype with the others so marked */
#define MIL_P_U 64       /* second shared dtype */
#define MIL_P_INLINE 128 /* written as an inline value, not through a const */
/* Op flags. */
#define MIL_O_CONSTEXPR 1
#define MIL_O_STATEFUL 2
#define MIL_O_BLOCKS 4 /* control flow: recognised, refused */

struct mil_param {
    const char *name;
    enum mil_class cls;
    unsigned flags;
};
struct mil_op_info {
    enum mil_opcode code;
    const char *name; /* MIL type string, e.g. "conv" */
    int since;        /* first spec version of this signature */
    int n_outs;       /* -1: depends on parameters (split) */
    unsigned flags;
    const struct mil_param *params;
    int n_params;
};
const struct mil_op_info *mil_op_info(enum mil_opcode code);
/* Among ops of the CoreML8 opset; NULL if unknown. */
const struct mil_op_info *mil_op_by_name(const char *name);
int mil_param_index(const struct mil_op_info *info, const char *name); /* -1 */
/* "CoreML8" is 8 here, "ios18" in text; 0 for other names. */
int mil_opset_number(const char *opset);

/* ---- inference and validation ---- */

/* Output types of one op from its arguments. `out` has room for op->n_outs
 * (for split: as many as the result has). Errors name op and parameter with
 * both shapes or types. */
int mil_infer_op(const struct mil_function *f, const struct mil_op *op,
                 struct mil_type *out, uint32_t n_out,
                 struct err *e) ATTR_MUST_USE;
/* Number of outputs that the op's arguments call for. */
int mil_op_out_count(const struct mil_function *f, const struct mil_op *op,
                     uint32_t *n, struct err *e) ATTR_MUST_USE;
/*
 * A copy of `f` (into a fresh program that shares constants' bytes and data
 * with the original, which must outlive it) with the named inputs' types
 * replaced and every type inferred anew: how the runtime gives an enumerated
 * input its shape.
 */
struct mil_program *mil_specialize(const struct mil_function *f,
                                   const char *const *input_names,
                                   const struct mil_type *input_types, size_t n,
                                   struct err *e) ATTR_MUST_USE;

/* All that readers and runtimes demand: names, topological order, arity,
 * const-ness, dtypes, declared against inferred types, states (declared, read,
 * shapes), outputs (no input, state read or const; no value under two names),
 * rank <= 5, opset. The first finding is the error. */
int mil_validate(const struct mil_program *p, struct err *e) ATTR_MUST_USE;

bool mil_is_identifier(const char *s); /* [A-Za-z_][A-Za-z0-9_@]* */

#endif
