/*
 * From figures to a verdict: see docs/GATE.md for the checks and their limits.
 */
#ifndef CONVERTER_GATE_JUDGE_H
#define CONVERTER_GATE_JUDGE_H

#include "converter/gate.h"

/* A float32 run differs from the oracle by its fp16 constants alone, so its
 * share of the model's noise is this much smaller. */
#define GATE_NOISE_F32 20.0
/* More draws of the noise than these are not made. */
#define GATE_NOISE_DRAWS 6
/* A package that is farther off than the noise by this factor is not drawn
 * for again. */
#define GATE_NOISE_HOPELESS 30.0

/* Makes the checks, verdict and reason anew from the figures in `r`. */
void gate_judge(struct gate_result *r);
/* Whether the model's noise, or another draw of it, might excuse the FAIL. */
bool gate_judge_asks_noise(const struct gate_result *r);
/* Takes over the checks of a run in f32, and its FAIL. */
void gate_judge_join(struct gate_result *r, const struct gate_result *f32);

#endif
