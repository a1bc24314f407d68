/*
 * Portable elementary functions. Each reduces its argument exactly or with a
 * split constant and sums a Taylor series from the smallest term.
 */
#include "converter/base/dmath.h"

#include <math.h>

/* ln 2 in two parts: the high one has 32 significant bits, so that k * hi is
 * exact for |k| < 2^20. */
static const double LN2_HI = 6.93147180369123816490e-01;
static const double LN2_LO = 1.90821492927058770002e-10;
/* pi / 2 in three parts of 33 bits each. */
static const double PIO2_1 = 1.57079632673412561417e+00;
static const double PIO2_2 = 6.07710050630396597660e-11;
static const double PIO2_3 = 2.02226624879595063154e-21;

double dm_exp(double x)
{
    double k = floor(x * 1.4426950408889634074 + 0.5);
    double r = (x - k * LN2_HI) - k * LN2_LO;
    double sum = 0.0;

    for (int n = 17; n >= 1; n--) /* 1 + r/1 (1 + r/2 (1 + ...)) */
        sum = (1.0 + sum) * r / n;
    return ldexp(1.0 + sum, (int)k);
}

double dm_log(double x)
{
    int k;
    double m = frexp(x, &k); /* [0.5, 1) */

    if (m < 0.70710678118654752440) {
        m *= 2.0;
        k--;
    }
    /* ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716 */
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0.0;

    for (int n = 23; n >= 3; n -= 2)
        sum = (sum + 1.0 / n) * s2;
    return k * LN2_HI + (2.0 * (s + s * sum) + k * LN2_LO);
}

double dm_pow(double x, double y)
{
    return dm_exp(y * dm_log(x));
}

static double sin_small(double r)
{
    double r2 = r * r, sum = 0.0;

    for (int n = 19; n >= 3; n -= 2)
        sum = (1.0 + sum) * -r2 / ((double)n * (n - 1));
    return r + r * sum;
}

static double cos_small(double r)
{
    double r2 = r * r, sum = 0.0;

    for (int n = 20; n >= 2; n -= 2)
        sum = (1.0 + sum) * -r2 / ((double)n * (n - 1));
    return 1.0 + sum;
}

void dm_sincos(double x, double *s, double *c)
{
    double k = floor(x * 0.63661977236758134308 + 0.5);
    double r = ((x - k * PIO2_1) - k * PIO2_2) - k * PIO2_3;
    double sr = sin_small(r), cr = cos_small(r);
    int q = (int)fmod(k, 4.0);

    if (q < 0)
        q += 4;
    switch (q) {
    case 0:
        *s = sr;
        *c = cr;
        break;
    case 1:
        *s = cr;
        *c = -sr;
        break;
    case 2:
        *s = -sr;
        *c = -cr;
        break;
    default:
        *s = -cr;
        *c = sr;
        break;
    }
}
