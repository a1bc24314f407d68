/*
 * The peaks of what the reference computes, for fp16_range.c. Called from the
 * blocks that all families use; without a report these return at once.
 */
#include "models/oracle_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/fp16_range.h"

/* The greatest absolute value; infinite if one is NaN. */
static double peak_of(const float *x, size_t n)
{
    float max = 0;

    for (size_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);

        if (!(a <= max))
            max = isnan(a) ? INFINITY : a;
    }
    return (double)max;
}

static void note(struct oracle *o, enum range_kind kind, const char *name,
                 double value)
{
    struct range_peak *p = &o->range->peak[kind];

    if (value <= p->value)
        return;
    p->value = value;
    p->layer = o->at_layer;
    snprintf(p->name, sizeof(p->name), "%s", name);
}

/* The matrix's output is added to the stream, maybe behind a norm. */
static bool ends_branch(const char *name)
{
    static const char *const ends[] = { ".o_proj.weight", ".down_proj.weight",
                                        ".out_proj.weight", ".down_proj",
                                        ".per_layer_projection.weight" };
    size_t n = strlen(name);

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        size_t m = strlen(ends[i]);

        if (n >= m && !strcmp(name + n - m, ends[i]))
            return true;
    }
    return false;
}

void oracle_range_matrix(struct oracle *o, const char *name, const float *y,
                         size_t n)
{
    if (o->range)
        note(o, ends_branch(name) ? RANGE_BRANCH : RANGE_MATRIX, name,
             peak_of(y, n));
}

void oracle_range_product(struct oracle *o, const float *x, size_t n)
{
    if (o->range)
        note(o, RANGE_PRODUCT, "", peak_of(x, n));
}

void oracle_range_score(struct oracle *o, double value)
{
    if (o->range)
        note(o, RANGE_SCORE, "", isnan(value) ? INFINITY : value);
}

void oracle_range_stream(struct oracle *o, const float *x)
{
    size_t width = (size_t)o->hp.hidden;

    if (!o->range || x != o->x.p)
        return;
    note(o, RANGE_STREAM, "", peak_of(x, o->n * width));
    for (size_t i = 0; i < o->n; i++) {
        double sum = 0;

        for (size_t k = 0; k < width; k++)
            sum += (double)x[i * width + k] * (double)x[i * width + k];
        if (sum / (double)width < o->range->least_square)
            o->range->least_square = sum / (double)width;
    }
}
