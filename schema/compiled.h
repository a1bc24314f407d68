/*
 * Compiled models: `.mlmodelc` directories, as Core ML loads them.
 *
 *   NAME.mlmodelc/model.mil                 the program as text
 *   NAME.mlmodelc/coremldata.bin            versions, the model's description
 *   NAME.mlmodelc/weights/...               the weight files, unchanged
 *   NAME.mlmodelc/metadata.json             for tools and people
 *   NAME.mlmodelc/analytics/coremldata.bin  what a load is recorded with
 *
 * The text is a transliteration of the source's protobuf: nothing is folded,
 * renamed or dropped. Reading: package.h, whose pkg_open takes these too.
 */
#ifndef SCHEMA_COMPILED_H
#define SCHEMA_COMPILED_H

#include "schema/package.h"

/* How the weight files get there. A hard link shares the bytes with the
 * source; where the file system has no links they are copied. */
enum compiled_weights { COMPILED_COPY, COMPILED_LINK };

struct compiled_options {
    enum compiled_weights weights;
    const struct log *log; /* progress of copying; may say cancelled */
    const char *stage;     /* progress name; NULL: none */
};
struct compiled_written {
    uint64_t text_bytes;    /* model.mil */
    uint64_t other_bytes;   /* all but text and weights */
    uint64_t weights_bytes; /* files that the program names */
    uint64_t linked_bytes;  /* of these, what takes no room of its own */
};

/* Fills `path`, an empty directory. `from` was opened by pkg_open_raw, so that
 * unknown operations and older forms are written as they stand, and is not
 * itself a compiled model; its description must fit its program. o and out may
 * be NULL. */
int compiled_fill(const char *path, const struct pkg *from,
                  const struct compiled_options *o,
                  struct compiled_written *out, struct err *e) ATTR_MUST_USE;
/* Creates directory `path` (must not exist; suffix .mlmodelc), fills it, and
 * removes it again on failure. */
int compiled_write(const char *path, const struct pkg *from,
                   const struct compiled_options *o,
                   struct compiled_written *out, struct err *e) ATTR_MUST_USE;
/* What would be written for a program message of a package called `name`,
 * weights apart: text_bytes and other_bytes. The message stands for itself:
 * no file is read. */
int compiled_measure(const void *message, size_t n, const char *name,
                     struct compiled_written *out, struct err *e) ATTR_MUST_USE;
/* The key of buildInfo under which this writer gives its version. */
#define COMPILED_WRITER "anemll-convert-version"

#endif
