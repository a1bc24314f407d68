/*
 * Seeded numbers for tests: the same on every machine, no libm
 * but its square root.
 */
#ifndef T_RAND_H
#define T_RAND_H

#include <stdint.h>

double t_uniform(uint64_t *seed); /* [0, 1) */
/* About normal, mean 0, variance 1: a sum of uniforms, |x| <= 6. */
double t_gauss(uint64_t *seed);
/* Student's distribution of five degrees of freedom, by such numbers: tails as
 * those of weights. */
double t_student5(uint64_t *seed);
uint32_t t_below(uint64_t *seed, uint32_t n); /* 0 to n - 1 */
/* The nearest half. */
double t_half(double x);

#endif
