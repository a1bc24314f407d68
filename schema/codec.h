/*
 * Programs as protobuf bytes: the contents of model.mlmodel, without files.
 */
#ifndef SCHEMA_CODEC_H
#define SCHEMA_CODEC_H

#include "converter/base/buf.h"
#include "mil/mil.h"
#include "schema/blob.h"

/* What every blob value of ours names: the file beside the model. */
#define CODEC_WEIGHT_FILE "@model_path/weights/weight.bin"

/* Appends the Model message. Large constants go to `w` in the order of their
 * first use. The program must be valid (mil_validate). */
int codec_encode(const struct mil_program *p, struct blob_writer *w,
                 struct buf *out, struct err *e) ATTR_MUST_USE;

/* Where a decoder finds the bytes of blob values. */
struct codec_weights {
    /* The data behind (file, offset), allocated in p's arena. */
    const struct mil_data *(*get)(void *cookie, struct mil_program *p,
                                  const char *file, uint64_t offset,
                                  const struct mil_type *type, struct err *e);
    void *cookie;
};
struct codec_options {
    struct codec_weights weights; /* get NULL: there are none */
    /* Keep operations that the table does not describe as foreign ones and
     * older forms as they are, instead of refusing the former and expressing
     * the latter in CoreML8. */
    bool raw;
};
/* Hostile bytes to a program; not validated. `description` (may be NULL)
 * takes the first difference between the model's description and the program,
 * which is no failure here (ERR_OK: none). */
struct mil_program *codec_decode(const void *bytes, size_t n,
                                 const struct codec_options *o,
                                 struct err *description,
                                 struct err *e) ATTR_MUST_USE;

#endif
