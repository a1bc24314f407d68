/*
 * `.mlpackage` directories, bare `.mlmodel` files and compiled models: written
 * from (the first) and read into the IR.
 *
 *   NAME.mlpackage/Manifest.json
 *   NAME.mlpackage/Data/com.apple.CoreML/model.mlmodel       protobuf
 *   NAME.mlpackage/Data/com.apple.CoreML/weights/weight.bin  blob storage v2
 *
 * Writing streams one constant at a time; a mil_data that several constants
 * share, and any two blobs of equal bytes and type, are stored once.
 * Identifiers come from the content; equal input gives equal bytes.
 * Reading treats every byte as hostile.
 */
#ifndef SCHEMA_PACKAGE_H
#define SCHEMA_PACKAGE_H

#include "converter/base/log.h"
#include "mil/mil.h"

/* What a write produced, read back from what was written. */
struct pkg_written {
    uint64_t model_bytes;   /* model.mlmodel */
    uint64_t weights_bytes; /* weight.bin */
    uint64_t blobs;         /* stored */
    uint64_t shared;        /* references beyond the first to a blob */
};

/* Progress goes to the log as bytes of blobs are written; a log that says
 * cancelled stops the writing. */
struct pkg_options {
    const struct log *log;
    const char *stage;                      /* progress name; NULL: none */
    uint64_t progress_base, progress_total; /* bytes of blobs */
    bool threads; /* write while constants are read: from one thread */
};

/* Creates directory `path` (must not exist; suffix .mlpackage) and removes it
 * again on failure. The program is validated first. A single function must be
 * called "main"; of several the first is the default. Without blobs the
 * package has an empty weights directory. o and out may be NULL. */
int pkg_write(const char *path, const struct mil_program *p,
              const struct pkg_options *o, struct pkg_written *out,
              struct err *e) ATTR_MUST_USE;

/* An open package. Large constants read from weight.bin on demand. */
struct pkg;
/* `path` is NAME.mlpackage, a bare NAME.mlmodel with its weights in `weights`
 * beside it, or NAME.mlmodelc, which is read through its text. Operations that
 * the op table does not hold are refused by name; programs of the CoreML7 opset
 * are read as CoreML8, which calls their weight decompression by other names.
 * The program is not validated. */
struct pkg *pkg_open(const char *path, struct err *e) ATTR_MUST_USE;
/* The same, but unknown operations and older forms are kept as foreign ones:
 * to list and print, not to run. */
struct pkg *pkg_open_raw(const char *path, struct err *e) ATTR_MUST_USE;
const struct mil_program *pkg_program(const struct pkg *p);
const char *pkg_path(const struct pkg *p);
/* Where a constant of this package lies; false for none of ours. Fits
 * text_options.blob with cookie = the package. */
bool pkg_blob(void *pkg, const struct mil_data *d, const char **file,
              uint64_t *offset);
struct pkg_sizes {
    uint64_t model_bytes, weights_bytes;
    uint64_t blobs;
};
void pkg_sizes(const struct pkg *p, struct pkg_sizes *out);
bool pkg_is_compiled(const struct pkg *p);
/* The description in the file against the program: names, dtypes, shapes,
 * functions, states. ERR_INPUT with the first difference. */
int pkg_check_description(const struct pkg *p, struct err *e) ATTR_MUST_USE;
/* Whether two forms of a model, opened in the same way, hold the same program,
 * description and weights, to the bit; who wrote them does not count.
 * ERR_MISMATCH with the first difference. */
int pkg_same(const struct pkg *a, const struct pkg *b,
             struct err *e) ATTR_MUST_USE;
void pkg_close(struct pkg *p);

#endif
