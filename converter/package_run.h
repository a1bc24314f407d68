/*
 * Runs a whole ANEMLL package with the bundled runtime, by ANEMLL's call
 * order: embeddings, every chunk, LM head.
 */
#ifndef CONVERTER_PACKAGE_RUN_H
#define CONVERTER_PACKAGE_RUN_H

#include "converter/meta.h"
#include "mil/run/run.h"
#include "schema/package.h"

struct package;
/* Opens every part from disk. Ours or not; only meta.yaml's required keys are
 * needed. Compiled parts are read as such; where the source form lies beside
 * one, both must be the same model to the bit (ERR_MISMATCH). */
struct package *package_open(const char *dir, const struct run_options *o,
                             struct err *e) ATTR_MUST_USE;
void package_close(struct package *p);
const struct meta *package_meta(const struct package *p);
int64_t package_vocab(const struct package *p);
/* The forms that every part has; where a part has both, they were compared. */
#define PACKAGE_COMPILED 1u
#define PACKAGE_SOURCE 2u
unsigned package_forms(const struct package *p);
/* Opened files, for decoding weights: embeddings, chunks in order, head. */
size_t package_files(const struct package *p);
const struct pkg *package_file(const struct package *p, size_t i);

/* Empty context. */
void package_reset(struct package *p);
/* Position 0 as runtimes restart: states stay what they are, unless they are
 * of a kind that cannot be rewound. */
void package_restart(struct package *p);
/* The position of the next token is to be `position`. Back is fine where
 * every position has a place of its own in the cache. A recurrent state has
 * none, a token given twice counts twice: there only the position that is due
 * is taken. A window that shifts or has rotated starts anew at 0 alone. Ahead
 * would leave positions out: refused. */
int package_seek(struct package *p, int64_t position,
                 struct err *e) ATTR_MUST_USE;
/* Where all states stand: the way back for packages that cannot be rewound. A
 * snapshot may be restored any number of times, and outlives the package. */
struct package_snapshot;
struct package_snapshot *package_snapshot(const struct package *p,
                                          struct err *e) ATTR_MUST_USE;
/* On failure the package is as it was. */
int package_restore(struct package *p, const struct package_snapshot *s,
                    struct err *e) ATTR_MUST_USE;
void package_snapshot_free(struct package_snapshot *s);
/* Contents, by name: run.h. Of the package: until it is fed or reset. */
const struct run_states *package_states(const struct package *p);
const struct run_states *snapshot_states(const struct package_snapshot *s);

/* Feeds `n` tokens at the current position: one prefill call when n equals
 * the batch size and `prefill` is set, else token by token through infer.
 * logits: [vocab] of the last token, or NULL to skip the head. After a
 * prefill call logits are only available from packages whose prefill yields
 * the last token (prefill_last_token_output); others: ERR_UNSUPPORTED. After
 * a call that failed half-way a recurrent package takes nothing but reset and
 * restore. */
int package_feed(struct package *p, const int32_t *tokens, size_t n,
                 bool prefill, float *logits, struct err *e) ATTR_MUST_USE;
/* Feeds `n` tokens one by one through infer; logits [n, vocab] of all of them,
 * or NULL. What the calls have in common is done for many at once (run_many),
 * with the same results. */
int package_infer(struct package *p, const int32_t *tokens, size_t n,
                  float *logits, struct err *e) ATTR_MUST_USE;
/* The embeddings [n, hidden] of tokens alone: states and position stay. */
int package_embed(struct package *p, const int32_t *tokens, size_t n,
                  float *rows, struct err *e) ATTR_MUST_USE;
int64_t package_hidden(const struct package *p);
int64_t package_position(const struct package *p);

#endif
