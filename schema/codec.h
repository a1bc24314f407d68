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
/* What a model says beside its program. */
struct codec_described {
    /* The ModelDescription in canonical form, its metadata set; empty: the
     * model has none. */
    struct buf message;
    struct err difference; /* the first from the program; ERR_OK: none */
    struct err lost;       /* what the program does not keep; ERR_OK: nothing */
};
#define CODEC_DESCRIBED_INIT         \
    {                                \
        BUF_INIT, ERR_INIT, ERR_INIT \
    }
/* Hostile bytes to a program; not validated. `described` may be NULL; its
 * errors are no failures here. */
struct mil_program *codec_decode(const void *bytes, size_t n,
                                 const struct codec_options *o,
                                 struct codec_described *described,
                                 struct err *e) ATTR_MUST_USE;
/* For a program that was read from elsewhere: takes from a ModelDescription
 * what the description alone knows, and puts functions and inputs in its
 * order, the default function first. */
int codec_describe(struct mil_program *p, const void *message, size_t n,
                   struct codec_described *described,
                   struct err *e) ATTR_MUST_USE;

#endif
