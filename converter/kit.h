/*
 * The device kit: a package, prompts, what the bundled runtime says of them,
 * and two small programs that ask a Mac the same and answer in one line.
 *
 *   DIR/package/       the package (hard links where they can be made)
 *   DIR/kit.json       calls in order, and of each its best token, margin,
 *                      norm and digest of the logits
 *   DIR/check.py       for coremltools
 *   DIR/check.swift    for the system alone
 *
 * A digest is 16 sums of the logits under fixed signs. Between two rows the
 * mean square of the differences of their sums estimates the square of their
 * distance, so that 16 numbers stand for a whole vocabulary.
 */
#ifndef CONVERTER_KIT_H
#define CONVERTER_KIT_H

#include "converter/base/log.h"
#include "converter/base/par.h"

#define KIT_SUMS 16

struct kit_options {
    const char *package;
    const char *output; /* must not exist */
    const char *tokens; /* prompts file; NULL: the kit's own */
    const char *logits; /* also write all rows: prompt.N [rows, V]; or NULL */
    const struct log *log;
    struct par *par;
};
int kit_write(const struct kit_options *o, struct err *e) ATTR_MUST_USE;

/* The sums of a row. Sign of column i in sum k: the lowest bit of a hash of
 * 16 i + k, 1 is plus. */
void kit_digest(const float *logits, int64_t n, double out[KIT_SUMS]);

#endif
