/*
 * How much a model itself makes of rounding.
 *
 * A package rounds to fp16 after every operation. What that does to the
 * logits depends on the model: where a norm divides a sum that has almost
 * cancelled, or two experts are almost equal, the last bit of fp16 decides.
 * Trained models hardly do such things, random ones do. To tell an
 * ill-conditioned checkpoint from a faulty package, the oracle runs on the
 * same weights with every element of a matrix moved at random by up to
 * GATE_NOISE_ULPS units in the last place of fp16, in float32 otherwise, and
 * its distance from the unmoved oracle is measured as a package's would be.
 * With experts to choose from it is GATE_NOISE_EXPERTS units: a package
 * compares probabilities that were rounded to fp16 and may take one expert for
 * another, or both, where the oracle knows no tie; only as many choices turn
 * under larger moves.
 */
#ifndef CONVERTER_GATE_NOISE_H
#define CONVERTER_GATE_NOISE_H

#include "converter/gate.h"
#include "models/oracle.h"

#define GATE_NOISE_ULPS 2.0
#define GATE_NOISE_EXPERTS 8.0

/* What the noise is measured on. */
struct gate_noise_job {
    const struct ckpt *ckpt;
    const struct prompts *prompts;
    struct oracle *base;          /* that the package is compared with */
    struct tensor_source weights; /* its */
    struct oracle_options options;
    const struct log *log;
};
/* One more draw; `out`, zero at first, keeps the worst of all. */
int gate_noise_draw(const struct gate_noise_job *j, struct gate_noise *out,
                    struct err *e) ATTR_MUST_USE;
/* x moved by `by` units in the last place that fp16 has at x. */
float gate_noise_move(float x, double by);
/* The next of a sequence of random numbers (splitmix64). */
uint64_t gate_random(uint64_t *s);

#endif
