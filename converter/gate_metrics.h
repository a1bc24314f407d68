/*
 * Comparison of logits, position by position.
 */
#ifndef CONVERTER_GATE_METRICS_H
#define CONVERTER_GATE_METRICS_H

#include "converter/gate.h"

/* Positions where the oracle's best two logits are at least this far apart
 * are decided: there the best token must be the same. */
#define GATE_DECIDED_MARGIN 0.1

/* Sums behind a gate_compare. */
struct metrics {
    struct gate_compare out;
    double cosine_sum, kl_sum, nll_oracle, nll_package;
    uint64_t same, decided_same, nll_positions;
    double max_abs_logit;
};
void metrics_init(struct metrics *m);
/* The smaller or greater of two; NaN, once it is there, stays. */
void metrics_keep_min(double *min, double v);
void metrics_keep_max(double *max, double v);
/* One position. next: the token that follows in the prompt, -1 if none or if
 * it should not count for the perplexity. */
void metrics_add(struct metrics *m, const float *oracle, const float *package,
                 int64_t vocab, int64_t prompt, int64_t position, int64_t next);
/* |b - a| / |a| */
double metrics_distance(const float *a, const float *b, int64_t n);
/* Means, ratios, perplexities. */
void metrics_finish(struct metrics *m);

#endif
