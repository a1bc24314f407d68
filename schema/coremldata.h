/*
 * coremldata.bin of a compiled model: versions and the model's description.
 *
 *   0x00  4  kind of the model: 502, an ML Program
 *   0x04  8 x 3, length + text   compiler version, its variant "generic"
 *   0x2b  8 x 3, length + text   specification version, its variant ""
 *   0x4b  8 + L                  ModelDescription
 *   then, for each function, 8 + 8: 502 and the number of strings behind, 0
 *
 * All little-endian, nothing aligned, no checksum.
 */
#ifndef SCHEMA_COREMLDATA_H
#define SCHEMA_COREMLDATA_H

#include <stdint.h>

#include "converter/base/buf.h"

#define COREMLDATA_NAME "coremldata.bin"

void coremldata_put(struct buf *out, int spec_version, const void *description,
                    size_t n, size_t functions);

struct coremldata {
    int spec_version;
    const void *description; /* in the bytes that were read */
    size_t description_bytes;
    size_t functions;
};
/* Hostile bytes. Models of other kinds are named and refused. */
int coremldata_read(const void *p, size_t n, struct coremldata *out,
                    struct err *e) ATTR_MUST_USE;

/* Pieces of both files: 8 bytes; 8 bytes of length and the bytes. */
void coremldata_put_number(struct buf *out, uint64_t v);
void coremldata_put_bytes(struct buf *out, const void *p, size_t n);

/* analytics/coremldata.bin: what a load is recorded with. `hash` is the
 * Base64 of the SHA-256 of the source's program message, `name` the stem of
 * its file. */
void analytics_put(struct buf *out, const char *hash, const char *name);

#endif
