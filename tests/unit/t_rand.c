/*
 * Seeded numbers.
 */
#include "t_rand.h"

#include <math.h>

#include "converter/base/num.h"

static uint64_t next(uint64_t *seed)
{
    return *seed = *seed * 6364136223846793005u + 1442695040888963407u;
}

double t_uniform(uint64_t *seed)
{
    return (double)(next(seed) >> 40) / 16777216.0;
}

uint32_t t_below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)((next(seed) >> 33) % n);
}

double t_gauss(uint64_t *seed)
{
    double sum = -6;

    for (int i = 0; i < 12; i++)
        sum += t_uniform(seed);
    return sum;
}

double t_student5(uint64_t *seed)
{
    double sum = 0;

    for (int i = 0; i < 5; i++) {
        double g = t_gauss(seed);

        sum += g * g;
    }
    return t_gauss(seed) / sqrt(sum / 5);
}

double t_half(double x)
{
    return (double)f16_to_f32(f64_to_f16(x));
}
