/*
 * Tokenizer, configuration and generation files of a package.
 *
 * Files that need no change are copied byte for byte, always as regular
 * files; config.json and tokenizer_config.json get single members spliced
 * into their text (end tokens lifted to the top level, tokenizer_class,
 * chat_template), and everything else in them stays as it is. Members that
 * carry a path of the build machine (_name_or_path) are left out.
 */
#ifndef CONVERTER_ASSETS_H
#define CONVERTER_ASSETS_H

#include "converter/base/buf.h"
#include "models/checkpoint.h"

struct assets;
/* Reads and judges the checkpoint's files before any work: chat template by
 * transformers' precedence, stop tokens united from all sources, tokenizer
 * sizes against the vocabulary. Notes get a line each. A checkpoint without a
 * tokenizer is a warning, a broken one an error. */
struct assets *assets_open(const struct ckpt *c, struct buf *notes,
                           struct err *e) ATTR_MUST_USE;
void assets_close(struct assets *a);
uint64_t assets_bytes(const struct assets *a); /* upper bound */
int assets_write(const struct assets *a, const char *dir,
                 struct err *e) ATTR_MUST_USE;
/* United end tokens, ascending. */
size_t assets_stop_tokens(const struct assets *a, const int64_t **ids);
/* recommended_sampling for meta.yaml; false if the checkpoint names none. */
struct assets_sampling {
    bool do_sample;
    double temperature, top_p;
    int64_t top_k;
};
bool assets_sampling(const struct assets *a, struct assets_sampling *out);

#endif
