/*
 * Between the writer and the reader of compiled models and package.c.
 */
#ifndef SCHEMA_COMPILED_PRIV_H
#define SCHEMA_COMPILED_PRIV_H

#include "schema/codec.h"
#include "schema/model.pb-c.h"
#include "schema/package.h"
#include "schema/weight_files_priv.h"

#define COMPILED_SUFFIX ".mlmodelc"
#define COMPILED_TEXT "model.mil"
#define COMPILED_JSON "metadata.json"
#define COMPILED_ANALYTICS "analytics"

/* An open package, for the modules of this folder. */
struct pkg {
    char *path;
    char *model_path; /* of the program: protobuf or text */
    bool compiled;
    struct weight_files weights;
    struct mil_program *program;
    struct codec_described described;
    uint64_t model_bytes;
};

/* Fills program, described and model_bytes of a compiled model. */
int compiled_read(struct pkg *k, bool raw, struct err *e) ATTR_MUST_USE;

/* metadata.json. `name` is the stem of the source's file. */
int compiled_json(const struct mil_program *p, const Pb__ModelDescription *d,
                  const char *name, struct buf *out,
                  struct err *e) ATTR_MUST_USE;

#endif
