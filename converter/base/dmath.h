/*
 * exp, log, sine and cosine in double whose bits are the same on every
 * machine: IEEE additions, multiplications and divisions in a fixed order,
 * no libm. Relative error below 1e-15 (sine and cosine: absolute, for
 * |x| <= 1e7). For numbers that end up in a package.
 */
#ifndef BASE_DMATH_H
#define BASE_DMATH_H

double dm_exp(double x);           /* |x| <= 700 */
double dm_log(double x);           /* x > 0, normal */
double dm_pow(double x, double y); /* x > 0: exp(y log x) */
void dm_sincos(double x, double *s, double *c);

#endif
