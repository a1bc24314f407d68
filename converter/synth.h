/*
 * Synthetic checkpoints: directories with the exact shape of a named model
 * and seeded random weights, for tests and for measuring where the published
 * weights are not at hand.
 *
 * Weights are Gaussian with a scale per row, scaled by fan-in so that
 * activations and logits stay in the range of trained models; a few rows have
 * heavy tails. They are BF16; the tokenizer knows the 256 bytes and the three
 * ChatML tokens. Same arguments, same bytes, on any machine.
 */
#ifndef CONVERTER_SYNTH_H
#define CONVERTER_SYNTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"
#include "converter/base/log.h"

struct synth_info {
    const char *arch, *like;
    uint64_t parameters; /* tied matrices once, as published counts are */
    uint64_t file_bytes; /* data of all weight files */
};
/* The models there are; false behind the last. */
bool synth_model_at(size_t i, struct synth_info *out);

/* Writes model `like` of `arch` into the new directory `dir`, which appears
 * when it is complete. Unknown names: ERR_USAGE that lists what there is.
 * Weights are streamed: memory does not grow with the model. Beyond 2 GB the
 * weights are in shards of at most 5 GB with an index. */
int synth_checkpoint(const char *arch, const char *like, uint64_t seed,
                     const char *dir, const struct log *log,
                     struct err *e) ATTR_MUST_USE;
/* The same with other limits: more than single_max bytes of weights are
 * written as shards of at most shard_max (or one tensor). */
int synth_checkpoint_sharded(const char *arch, const char *like, uint64_t seed,
                             const char *dir, uint64_t single_max,
                             uint64_t shard_max, const struct log *log,
                             struct err *e) ATTR_MUST_USE;

#endif
