/*
 * The constants of a package against the checkpoint, one by one.
 *
 * Logits cannot show everything: a prompt reads a few rows of the token table
 * only, and where weights are palettized the oracle on the package's own
 * weights shares whatever is wrong with them. So each constant is compared
 * with the tensor rows that it says it holds. Plain ones must be equal to the
 * bit. Palettized ones must be what exact clustering leaves behind at any
 * width: no weight has a nearer entry in its group's table, and (unless the
 * package says that its weights did not count alike) every entry is the mean
 * of its weights.
 */
#ifndef CONVERTER_GATE_WEIGHTS_H
#define CONVERTER_GATE_WEIGHTS_H

#include "converter/gate.h"
#include "converter/package_source.h"

int gate_weights_compare(const struct package_source *s, const struct ckpt *c,
                         struct par *par, const struct log *log,
                         struct gate_weights *out, struct err *e) ATTR_MUST_USE;

#endif
