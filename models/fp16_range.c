/*
 * The range of a model's values in fp16; see fp16_range.h.
 */
#include "models/fp16_range.h"

#include <math.h>

#define F16_LEAST 0x1p-24

double range_norm_eps(double eps, int stream_exp)
{
    double e = ldexp(eps, 2 * stream_exp);

    return e < F16_LEAST ? F16_LEAST : e;
}
