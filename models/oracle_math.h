/*
 * The formulas of the reference that need no context: frequencies, rotation,
 * norms, activations, exponentials. Everything is told by argument, nothing
 * by default, so that each family states its own conventions. Shares nothing
 * with the graph.
 *
 * Functions work on one row at a time and are safe to call from any thread;
 * no result depends on the SIMD level.
 */
#ifndef MODELS_ORACLE_MATH_H
#define MODELS_ORACLE_MATH_H

#include <stddef.h>

#include "models/hparams.h"

/* What becomes of the unit-RMS vector u under weights w. */
enum norm_form {
    NORM_PLAIN,    /* w u */
    NORM_CENTRED,  /* (1 + w) u */
    NORM_UNSCALED, /* u; no weights */
};
/* y = the norm of x [n]; the mean square is taken in double, eps is added to
 * it. y == x is allowed; w is not read for NORM_UNSCALED. */
void oracle_norm_row(enum norm_form form, const float *x, const float *w,
                     size_t n, double eps, float *y);

/* Which elements of a head are rotated together. */
enum rope_pairing {
    ROPE_HALVES,   /* i and i + dim / 2 */
    ROPE_ADJACENT, /* 2 i and 2 i + 1 */
};
/* Frequencies f[0 .. dim/2 - 1] in float32, step by step as transformers
 * rounds them. */
int oracle_rope_freq(const struct rope_params *r, float *f,
                     struct err *e) ATTR_MUST_USE;
/* cos and sin [dim/2] of one position: the product of position and frequency
 * is rounded to float32, then both are multiplied by attention_scaling. */
void oracle_rope_row(const struct rope_params *r, const float *f, int64_t pos,
                     float *cos_row, float *sin_row);
/* Rotates the first `dim` elements of a head in place. */
void oracle_rotate(enum rope_pairing pairing, float *head, int dim,
                   const float *cos_row, const float *sin_row);

/* x[i] = e^(x[i] - shift): within 1.5 units in the last place; below -87 it
 * is 0, above 88 it is e^88. NaN stays NaN. */
void oracle_exp_block(float *x, size_t n, float shift);
/* Activations of gated MLPs. */
enum oracle_act {
    ACT_SILU,      /* x sigmoid(x) */
    ACT_GELU_TANH, /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
};
/* g[i] = act(g[i]) u[i] */
void oracle_act_mul(enum oracle_act act, float *g, const float *u, size_t n);

/* oracle_delta.c */

double oracle_sigmoid(double x);
/* ln(1 + e^x), which is x above 20. */
double oracle_softplus(double x);
/* y = x / sqrt(sum of squares + eps) times scale */
void oracle_unit_row(const float *x, size_t n, double eps, double scale,
                     float *y);
/*
 * One token of the gated delta rule. The state S [dk, dv] is float32, sums
 * are double:
 *
 *   S = decay S;  S = S + k (beta (v - S^T k))^T;  y = S^T q
 *
 * m and y [dv]: room, and what is read out.
 */
void oracle_delta_step(float *S, size_t dk, size_t dv, const float *q,
                       const float *k, const float *v, double decay,
                       double beta, double *m, double *y);

struct oracle_pick {
    size_t expert;
    double weight;
};
/* Softmax over n logits; the k greatest, the lower index first among equals,
 * with their weights divided by their sum. `room` has n elements. */
void oracle_route(const float *logits, size_t n, size_t k, double *room,
                  struct oracle_pick *picks);

#endif
