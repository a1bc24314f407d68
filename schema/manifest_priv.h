/*
 * Manifest.json of an .mlpackage: which item is the model, where the weights
 * are.
 */
#ifndef SCHEMA_MANIFEST_PRIV_H
#define SCHEMA_MANIFEST_PRIV_H

#include "converter/base/buf.h"
#include "converter/base/err.h"

#define MANIFEST_NAME "Manifest.json"
#define MANIFEST_DATA "Data"
#define MANIFEST_AUTHOR "com.apple.CoreML"
#define MANIFEST_MODEL "model.mlmodel"
#define MANIFEST_WEIGHTS "weights"

/* Appends the text, in the form that coremltools leaves behind when it opens
 * a package: its rewrite then changes no byte. */
void manifest_print(struct buf *out, const char *model_id,
                    const char *weights_id);

/* Paths inside the package, fresh (mem_free). */
struct manifest {
    char *model;
    char *weights; /* the directory; NULL if the package lists none */
};
#define MANIFEST_INIT \
    {                 \
        0, 0          \
    }
int manifest_read(struct manifest *m, const char *package,
                  struct err *e) ATTR_MUST_USE;
void manifest_release(struct manifest *m);

#endif
