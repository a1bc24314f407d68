/*
 * Which values of a model leave fp16, and the power of two that keeps the
 * residual stream inside it.
 */
#ifndef MODELS_FP16_RANGE_H
#define MODELS_FP16_RANGE_H

/*
 * Epsilon of a norm over a stream that is scaled by 2^stream_exp: the norm is
 * unchanged if epsilon scales with the square. Below the smallest number of
 * fp16, 2^-24, it would vanish and rows of zeros be divided by zero; it stays
 * at 2^-24 then.
 */
double range_norm_eps(double eps, int stream_exp);

#endif
