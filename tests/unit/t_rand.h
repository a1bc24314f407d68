/*
 * Seeded numbers for tests: the same on every machine, no libm.
 */
#ifndef T_RAND_H
#define T_RAND_H

#include <stdint.h>

double t_uniform(uint64_t *seed); /* [0, 1) */
/* About normal, mean 0, variance 1: a sum of uniforms, |x| <= 6. */
double t_gauss(uint64_t *seed);
/* The nearest half. */
double t_half(double x);

#endif
