/*
 * Importances as whole-number weights of the solver.
 *
 * The solver's sums are exact because its weights are whole numbers; a group's
 * importances are therefore scaled so that their mean is 2^shift and rounded,
 * to 1 at least. Sums run in a fixed order: the numbers depend on the values
 * alone.
 */
#include <math.h>
#include <string.h>

#include "quant/stages.h"

/* One weight alone; with it the sum of a group stays below 2^32. */
#define HEAVIEST 1073741824.0f

double qz_importance_sum(const float *imp, size_t n)
{
    double sum[8] = { 0 };
    size_t i, lane;

    for (i = 0; i + 8 <= n; i += 8)
        for (lane = 0; lane < 8; lane++)
            sum[lane] += (double)imp[i + lane];
    for (lane = 0; i < n; i++, lane++)
        sum[lane] += (double)imp[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) +
           ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

int qz_importance_shift(uint64_t n)
{
    int shift = 12;

    while (shift > 0 && n > UINT64_C(1) << (31 - shift))
        shift--;
    return shift;
}

float qz_importance_scale(double sum, uint64_t n, int shift)
{
    double scale = ldexp((double)n, shift) / sum;

    /* Sums so small that their inverse is no float count as nothing. */
    return sum > 0 && scale < 1e37 ? (float)scale : 0;
}

void qz_importance_round(uint32_t *dst, const float *imp, float scale, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        float v = imp[i] * scale;

        v = v < 1 ? 1 : v;
        v = v > HEAVIEST ? HEAVIEST : v;
        dst[i] = (uint32_t)(int32_t)(v + 0.5f);
    }
}
