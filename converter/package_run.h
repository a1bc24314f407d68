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
 * needed. */
struct package *package_open(const char *dir, const struct run_options *o,
                             struct err *e) ATTR_MUST_USE;
void package_close(struct package *p);
const struct meta *package_meta(const struct package *p);
int64_t package_vocab(const struct package *p);
/* Opened files, for decoding weights: embeddings, chunks in order, head. */
size_t package_files(const struct package *p);
const struct pkg *package_file(const struct package *p, size_t i);

/* Empty context. */
void package_reset(struct package *p);
/* Position 0 as runtimes restart: states stay what they are, unless they are
 * of a kind that cannot be rewound. */
void package_restart(struct package *p);
/* Feeds `n` tokens at the current position: one prefill call when n equals
 * the batch size and `prefill` is set, else token by token through infer.
 * logits: [vocab] of the last token, or NULL to skip the head. After a
 * prefill call logits are only available from packages whose prefill yields
 * the last token (prefill_last_token_output); others: ERR_UNSUPPORTED. */
int package_feed(struct package *p, const int32_t *tokens, size_t n,
                 bool prefill, float *logits, struct err *e) ATTR_MUST_USE;
int64_t package_position(const struct package *p);

#endif
