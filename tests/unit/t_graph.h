/*
 * Test helper: surgery on programs that were read from disk. Everything that
 * is put in lives in the program's arena. What is not there fails the test.
 */
#ifndef T_GRAPH_H
#define T_GRAPH_H

#include "mil/mil.h"

/* The nth op of a kind whose first output's name begins with `scope`; from
 * the end for nth < 0 (-1 is the last). */
struct mil_op *tg_op(struct mil_function *f, enum mil_opcode code,
                     const char *scope, int nth);
mil_ref tg_named(const struct mil_function *f, const char *name);
/* The op that yields a value. */
struct mil_op *tg_maker(const struct mil_function *f, mil_ref v);
size_t tg_index(const struct mil_function *f, const struct mil_op *op);

mil_ref tg_arg(const struct mil_op *op, const char *param, int i);
void tg_set(struct mil_function *f, struct mil_op *op, const char *param, int i,
            mil_ref v);
/* Inline values. */
mil_ref tg_ints(struct mil_function *f, int rank, int64_t n, const int32_t *v);
mil_ref tg_halfs(struct mil_function *f, int rank, const int64_t *dims,
                 const float *v);
mil_ref tg_half(struct mil_function *f, float v);

/* Adds an op in front of op number `at`; its argument are set by tg_set, its
 * type by tg_infer. Returns its output (0 for none). Ops move: pointers to
 * them become stale. */
mil_ref tg_insert(struct mil_function *f, size_t at, enum mil_opcode code,
                  const char *name, int n_outs);
void tg_remove(struct mil_function *f, struct mil_op *op);
/* Ops behind the maker of `now` (0: all) use `now` in place of `was`. */
void tg_replace(struct mil_function *f, mil_ref was, mil_ref now);
/* Infers all types anew. */
void tg_infer(struct mil_function *f);

/* A constant's bytes, and a constant with other ones. */
void *tg_bytes(const struct mil_function *f, const struct mil_const *c,
               size_t *n);
const struct mil_const *tg_const(const struct mil_function *f,
                                 const struct mil_const *like,
                                 const void *bytes);
/* The same for a fp16 constant op, as floats. */
float *tg_floats(const struct mil_function *f, mil_ref v, size_t *n);
void tg_put(struct mil_function *f, mil_ref v, const float *x);

#endif
