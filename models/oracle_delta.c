/*
 * Formulas of the reference for recurrent layers and experts, one row at a
 * time: see oracle_math.h. Results do not depend on the SIMD level, because
 * every sum has one fixed order and nothing is contracted.
 */
#include <math.h>

#include "converter/base/cpu.h"
#include "models/oracle_math.h"

double oracle_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

double oracle_softplus(double x)
{
    return x > 20.0 ? x : log1p(exp(x));
}

void oracle_unit_row(const float *x, size_t n, double eps, double scale,
                     float *y)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    scale /= sqrt(sum + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = (float)((double)x[i] * scale);
}

static inline void delta_body(float *S, size_t dk, size_t dv, const float *q,
                              const float *k, const float *v, double decay,
                              double beta, double *m, double *y)
{
    for (size_t j = 0; j < dv; j++)
        m[j] = y[j] = 0;
    for (size_t i = 0; i < dk; i++) {
        float *row = S + i * dv;
        double key = (double)k[i];

        for (size_t j = 0; j < dv; j++) {
            row[j] = (float)((double)row[j] * decay);
            m[j] += (double)row[j] * key;
        }
    }
    for (size_t j = 0; j < dv; j++)
        m[j] = beta * ((double)v[j] - m[j]);
    for (size_t i = 0; i < dk; i++) {
        float *row = S + i * dv;
        double key = (double)k[i], query = (double)q[i];

        for (size_t j = 0; j < dv; j++) {
            row[j] = (float)((double)row[j] + key * m[j]);
            y[j] += (double)row[j] * query;
        }
    }
}

#if defined(__x86_64__)
ATTR_TARGET("avx2")
static void delta_avx2(float *S, size_t dk, size_t dv, const float *q,
                       const float *k, const float *v, double decay,
                       double beta, double *m, double *y)
{
    delta_body(S, dk, dv, q, k, v, decay, beta, m, y);
}
#endif

void oracle_delta_step(float *S, size_t dk, size_t dv, const float *q,
                       const float *k, const float *v, double decay,
                       double beta, double *m, double *y)
{
#if defined(__x86_64__)
    if (cpu_features() & CPU_AVX2) {
        delta_avx2(S, dk, dv, q, k, v, decay, beta, m, y);
        return;
    }
#endif
    delta_body(S, dk, dv, q, k, v, decay, beta, m, y);
}

void oracle_route(const float *logits, size_t n, size_t k, double *room,
                  struct oracle_pick *picks)
{
    double max = -INFINITY, all = 0, sum = 0;

    for (size_t i = 0; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (size_t i = 0; i < n; i++)
        all += room[i] = exp((double)logits[i] - max);
    for (size_t j = 0; j < k; j++) {
        size_t best = 0;

        for (size_t i = 1; i < n; i++)
            best = room[i] > room[best] ? i : best;
        picks[j] = (struct oracle_pick){ best, room[best] / all };
        sum += picks[j].weight;
        room[best] = -1;
    }
    for (size_t j = 0; j < k; j++)
        picks[j].weight /= sum;
}
