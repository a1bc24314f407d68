/*
 * What a table and its indices leave of the values: squared errors, summed in
 * a fixed order.
 */
#include <math.h>
#include <string.h>

#include "quant/stages.h"

#define CHUNK 1024
#define LANES 4

static double total(const double sum[LANES])
{
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* n is a multiple of LANES but in the last chunk. */
static void add_chunk(double sums[4][LANES], const float *x, const float *imp,
                      const uint8_t *codes, const double *entry, double scale,
                      size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        double v = (double)x[i] * scale, d = v - entry[codes[i]];
        double w = imp ? (double)imp[i] : 1;

        d *= d;
        v *= v;
        sums[0][i % LANES] += d;
        sums[1][i % LANES] += v;
        sums[2][i % LANES] += w * d;
        sums[3][i % LANES] += w * v;
    }
}

void qz_errors_add(struct qz_errors *sum, const uint16_t *src,
                   const uint8_t *codes, const f16_t *table, int bits,
                   const float *imp, size_t n, enum qz_format f, int scale_exp)
{
    double sums[4][LANES], entry[QZ_MAX_CLUSTERS], scale = ldexp(1, scale_exp);
    float x[CHUNK];
    size_t i, len;

    memset(sums, 0, sizeof sums);
    for (i = 0; i < (size_t)1 << bits; i++)
        entry[i] = (double)f16_to_f32(table[i]);
    for (i = 0; i < n; i += len) {
        len = n - i < CHUNK ? n - i : CHUNK;
        if (f == QZ_BF16)
            num_bf16_to_f32(x, src + i, len);
        else
            num_f16_to_f32(x, src + i, len);
        add_chunk(sums, x, imp ? imp + i : NULL, codes + i, entry, scale, len);
    }
    sum->sse += total(sums[0]);
    sum->sum_sq += total(sums[1]);
    sum->weighted += total(sums[2]);
    sum->weighted_sq += total(sums[3]);
}
