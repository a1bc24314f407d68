/*
 * Synthetic checkpoints: directories with the exact shape of a named model
 * and seeded random weights, for tests and for measuring where the published
 * weights are not at hand.
 *
 * Weights are Gaussian with a scale per row, scaled by fan-in so that
 * activations and logits stay in the range of trained models; a few rows have
 * heavy tails. They are BF16 where the published files are; the tokenizer knows
 * the 256 bytes and the three ChatML tokens. Same arguments, same bytes, on any
 * machine.
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

struct synth_options {
    const char *arch, *like;
    uint64_t seed;
    uint64_t layers, experts; /* 0: those of the model */
    /* More than single_max bytes of weights are written as shards of at most
     * shard_max (or one tensor). 0: 2 GB and 5 GB. */
    uint64_t single_max, shard_max;
    const struct log *log;
};
/* Writes a model into the new directory `dir`, which appears when it is
 * complete. Unknown names: ERR_USAGE that lists what there is. Weights are
 * streamed: memory does not grow with the model. */
int synth_make(const struct synth_options *o, const char *dir,
               struct err *e) ATTR_MUST_USE;
/* The same with no other wishes. */
int synth_checkpoint(const char *arch, const char *like, uint64_t seed,
                     const char *dir, const struct log *log,
                     struct err *e) ATTR_MUST_USE;

#endif
