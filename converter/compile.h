/*
 * One model to its compiled form: any ML Program, of whatever origin.
 */
#ifndef CONVERTER_COMPILE_H
#define CONVERTER_COMPILE_H

#include "converter/base/log.h"
#include "schema/compiled.h"

struct cv_compile {
    const char *source; /* NAME.mlpackage or NAME.mlmodel */
    const char *output; /* NAME.mlmodelc; NULL: beside the source */
    bool force;         /* replace a compiled model that we wrote */
    const struct log *log;
};
struct cv_compiled {
    char *output; /* mem_free */
    struct compiled_written files;
    size_t functions, ops;
    /* The first operation that our runtime does not know, or NULL: it is
     * written as it stands. */
    char *unknown; /* mem_free */
};
/* Staged beside the output and renamed whole; what was written is read back
 * and compared with the source before. `out` is to be released in any case. */
int cv_compile(const struct cv_compile *c, struct cv_compiled *out,
               struct err *e) ATTR_MUST_USE;
void cv_compiled_release(struct cv_compiled *c);

#endif
