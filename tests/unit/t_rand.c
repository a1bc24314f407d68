/*
 * Seeded numbers.
 */
#include "t_rand.h"

#include "converter/base/num.h"

double t_uniform(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 40) / 16777216.0;
}

double t_gauss(uint64_t *seed)
{
    double sum = -6;

    for (int i = 0; i < 12; i++)
        sum += t_uniform(seed);
    return sum;
}

double t_half(double x)
{
    return (double)f16_to_f32(f64_to_f16(x));
}
