/*
 * analytics/coremldata.bin: sections of a name, a count and as many pairs of
 * strings, keys in byte order; each string is its length and its bytes.
 */
#include <string.h>

#include "schema/coremldata.h"

static void put_string(struct buf *out, const char *s)
{
    coremldata_put_bytes(out, s, strlen(s));
}

static void put_section(struct buf *out, const char *name,
                        const char *const pairs[][2], size_t n)
{
    size_t i;

    put_string(out, name);
    coremldata_put_number(out, n);
    for (i = 0; i < n; i++) {
        put_string(out, pairs[i][0]);
        put_string(out, pairs[i][1]);
    }
}

void analytics_put(struct buf *out, const char *hash, const char *name)
{
    const char *const network[][2] = { { "containsCustomLayer", "0" },
                                       { "modelDimension", "0" } };
    const char *const specification[][2] = { { "modelHash", hash },
                                             { "modelName", name } };

    put_section(out, "NeuralNetworkModelDetails", network, 2);
    put_section(out, "SpecificationDetails", specification, 2);
}
