/*
 * Embeddings against the oracle's; see gate_embed.h.
 */
#include "converter/gate_embed.h"

#include <math.h>

#include "converter/base/mem.h"

static double distance_of(const float *package, const float *oracle, size_t n)
{
    double oo = 0, po = 0, dd = 0, scale = 1;

    for (size_t i = 0; i < n; i++) {
        oo += (double)oracle[i] * (double)oracle[i];
        po += (double)package[i] * (double)oracle[i];
    }
    if (!(oo > 0))
        return 0;
    if (po > 0 && isfinite(po))
        scale = exp2(-nearbyint(log2(po / oo)));
    for (size_t i = 0; i < n; i++) {
        double d = (double)package[i] * scale - (double)oracle[i];

        dd += d * d;
    }
    return sqrt(dd / oo);
}

int gate_embed_compare(struct package *p, struct oracle *o, const int32_t *ids,
                       size_t n, double *distance, struct err *e)
{
    size_t elems = n * (size_t)package_hidden(p);
    float *have = mem_alloc(elems, sizeof(*have), e);
    float *want = mem_alloc(elems, sizeof(*want), e);
    int rc = -1;

    if (have && want && !package_embed(p, ids, n, have, e)) {
        rc = oracle_embed(o, ids, n, want, e);
        if (!rc)
            *distance = distance_of(have, want, elems);
    }
    mem_free(have);
    mem_free(want);
    return rc;
}
