/*
 * Helpers of the package suites: the two-function example program, whole
 * files, and programs through the codec and back.
 */
#ifndef T_SCHEMA_H
#define T_SCHEMA_H

#include <stddef.h>
#include <stdint.h>

#include "converter/base/buf.h"
#include "mil/mil.h"

/* Functions `decode` (one position) and `prefill` (four): a 1x1 convolution
 * with a 4-bit table, written to a state, summed over positions. */
struct mil_program *ts_example(void);
/* One function `main`: a table of fp16 [n] added to input x [n]. */
struct mil_program *ts_adder(const char *table, const struct mil_data *d);

/* Adds a small const op; bytes are copied. */
mil_ref ts_const(struct mil_function *f, const char *name,
                 const struct mil_type *t, const void *bytes);
mil_ref ts_strings(struct mil_function *f, const char *name,
                   const struct mil_type *t, const char *const *s);
/* Adds an op with one output (none if `out` is NULL) and binds parameters:
 * pairs of name and value, ended by NULL. */
mil_ref ts_op(struct mil_function *f, enum mil_opcode code, const char *name,
              const struct mil_type *out, ...);

/* A fixed stream of numbers. */
uint32_t ts_random(uint64_t *state);
/* The whole of a file; fails the test if it cannot be read. */
void ts_read(struct buf *out, const char *path);
/* Lower-case SHA-256 of a file, by sha256sum. */
const char *ts_sha256(const char *path);
/* The shared data directory + "/" + name, or NULL where it is absent. */
const char *ts_shared(const char *name);

#endif
