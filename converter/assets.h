/*
 * Tokenizer, configuration and generation files of a package.
 *
 * Files that need no change are copied byte for byte, always as regular
 * files; config.json and tokenizer_config.json get single members spliced
 * into their text (end tokens lifted to the top level, tokenizer_class,
 * chat_template), and everything else in them stays as it is. Members that
 * hold a place on somebody's machine (_name_or_path, absolute paths) are left
 * out of every file.
 */
#ifndef CONVERTER_ASSETS_H
#define CONVERTER_ASSETS_H

#include "converter/base/buf.h"
#include "models/checkpoint.h"

struct assets;
/* Reads and judges the checkpoint's files before any work: complete sets of
 * tokenizer files, chat template by transformers' precedence, stop tokens
 * united from all sources, tokenizer ids against the vocabulary. Notes get a
 * line each. A checkpoint without any tokenizer file is a note, an incomplete
 * or contradictory set an error. */
struct assets *assets_open(const struct ckpt *c, struct buf *notes,
                           struct err *e) ATTR_MUST_USE;
void assets_close(struct assets *a);
/* Bytes that these files will take in a package, about, and those of
 * tokenizer.json alone; nothing is judged. */
int assets_measure(const struct ckpt *c, uint64_t *bytes, uint64_t *tokenizer,
                   struct err *e) ATTR_MUST_USE;
int assets_write(const struct assets *a, const char *dir,
                 struct err *e) ATTR_MUST_USE;
/* Whether a package may hold a file or folder of this name (assets alone). */
bool assets_name(const char *name);
/* United end tokens: those of config.json first, then the other sources'. */
size_t assets_stop_tokens(const struct assets *a, const int64_t **ids);
/* recommended_sampling for meta.yaml; false if the checkpoint names none that
 * is complete and in range. */
struct assets_sampling {
    bool do_sample;
    double temperature, top_p;
    int64_t top_k;
};
bool assets_sampling(const struct assets *a, struct assets_sampling *out);

#endif
