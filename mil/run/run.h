/*
 * The CPU runtime: opens a program, plans each function once, and runs calls
 * with states.
 *
 * Numeric profiles. F32: every value is float32 (fp16 constants widened).
 * FP16: every op's result is rounded to fp16; convolutions, matmuls, sums,
 * softmax and layer_norm accumulate in float32 and round once. States hold
 * what the profile computes (fp16 values in FP16). int32 and bool stay what
 * they are. ANE: FP16 with what the Neural Engine is known to do worse, so
 * that a graph that would fail there fails here; kern_ane.c has the list and
 * where it comes from.
 *
 * Every sum has one order, so results are the same bits for any number of
 * threads, at any SIMD level, and for a position whatever other positions
 * are computed in the same call: a prefill and single steps agree exactly if
 * the graph computes positions by the same operations. (sin, cos, log, pow,
 * erf and softplus are the C library's.)
 */
#ifndef MIL_RUN_RUN_H
#define MIL_RUN_RUN_H

#include "converter/base/par.h"
#include "mil/mil.h"

enum run_profile { RUN_F32, RUN_FP16, RUN_ANE };
const char *run_profile_name(enum run_profile p); /* "f32", "fp16", "ane" */
bool run_profile_by_name(const char *name, enum run_profile *out);

struct run_options {
    enum run_profile profile;
    struct par *par; /* NULL: serial; used by one call at a time */
    /* Decoded constants that may stay in memory; weights of products beyond
     * are decoded in pieces at each use, to the same bits. 0: no limit. */
    uint64_t const_bytes;
};

/* A program made ready: constants decoded (LUTs once), shared by functions.
 * The program must outlive it. Unknown or unsupported op: ERR_UNSUPPORTED
 * naming it, at open. */
struct run_model;
struct run_model *run_open(const struct mil_program *p,
                           const struct run_options *o,
                           struct err *e) ATTR_MUST_USE;
void run_close(struct run_model *m);
uint64_t run_resident_bytes(const struct run_model *m); /* constants, plans */

/* States by name, shared by models and functions that declare the same name,
 * shape and dtype; zero at first use. */
struct run_states;
struct run_states *run_states_new(struct err *e) ATTR_MUST_USE;
void run_states_reset(struct run_states *s); /* zeros everything */
struct run_states *run_states_copy(const struct run_states *s,
                                   struct err *e) ATTR_MUST_USE;
void run_states_free(struct run_states *s);
/* Content of a state as floats; NULL if it was never used. */
const float *run_state_data(const struct run_states *s, const char *name,
                            const struct mil_type **type);

/* A tensor at the border. Data: float for fp16/fp32 types, int32_t for all
 * integer and bool types, row-major. The caller owns inputs; outputs belong
 * to the model until its next call. */
struct run_tensor {
    const char *name;
    struct mil_type type; /* static */
    const void *data;
};

/*
 * Runs one function (NULL: the default one). Every declared input must be
 * given, with a type that it accepts (shape checked; fp16 inputs are rounded
 * but in F32), and none besides. `outs` is filled with up to `cap` outputs in
 * declared order. A shape that is new for a flexible input is planned on its
 * first use and kept. After an error the states hold whatever was written
 * before it.
 */
int run_call(struct run_model *m, const char *function,
             struct run_states *states, const struct run_tensor *inputs,
             size_t n_inputs, struct run_tensor *outs, size_t cap,
             size_t *n_outs, struct err *e) ATTR_MUST_USE;

/* Calls of one function in the order given, the inputs of each one behind the
 * other. `take` gets each call's outputs, in order; they are gone when it
 * returns. */
struct run_calls {
    const char *function; /* NULL: the default one */
    size_t n, n_inputs;
    const struct run_tensor *inputs; /* [n][n_inputs] */
    int (*take)(void *cookie, size_t call, const struct run_tensor *outs,
                size_t n_outs, struct err *e);
    void *cookie;
};
/* The same bits as run_call for one after the other, states included. Where
 * the function allows it large products are taken for many calls at once, which
 * reads the weights once for all of them. After an error, `take`'s own
 * included, the states hold anything. */
int run_many(struct run_model *m, struct run_states *states,
             const struct run_calls *calls, struct err *e) ATTR_MUST_USE;

#endif
