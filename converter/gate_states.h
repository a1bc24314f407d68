/*
 * What the states of a recurrent package hold.
 *
 * Prefill and infer of the same tokens must leave the same contents behind,
 * and the recurrent ones must be what docs/RECURRENT.md promises: sqrt(d_k)
 * times the S of the oracle's literal recurrence, and the convolution's last
 * inputs, oldest first. So a call order that keeps the logits right for now
 * and spoils what follows does not pass.
 */
#ifndef CONVERTER_GATE_STATES_H
#define CONVERTER_GATE_STATES_H

#include "converter/gate.h"
#include "converter/package_run.h"

/* Compares the package's states with `prefilled`, those behind a prefill of
 * the same tokens, and both with the oracle `o` (may be NULL) that was fed
 * them. r->states keeps the largest distances of all calls. */
void gate_states_compare(const struct package *p,
                         const struct run_states *prefilled,
                         const struct oracle *o, struct gate_result *r);
/* The same between two oracles: the largest distance of any layer. */
double gate_states_between(const struct oracle *a, const struct oracle *b);

#endif
