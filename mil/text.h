/*
 * MIL text: a stable printed form, and a reader of it.
 *
 * print -> parse -> print gives the same bytes. Small constants are printed
 * in full; large ones by their data's file offset if they have one (see
 * text_blob), else by size. The reader also takes the dialects of
 * mlmodelc files (both spellings of scalars).
 */
#ifndef MIL_TEXT_H
#define MIL_TEXT_H

#include "converter/base/buf.h"
#include "mil/mil.h"

struct text_options {
    const char *function; /* NULL: all */
    /* Where a large constant lies: sets *file and *offset and returns true,
     * or returns false. NULL: never. */
    bool (*blob)(void *cookie, const struct mil_data *d, const char **file,
                 uint64_t *offset);
    void *cookie;
    /* Functions and parameters by name, as Apple's compiler orders them;
     * else in the order of the program. */
    bool sorted;
    /* Pairs of buildInfo beside the program's own, of which those with the
     * same key are left out. */
    const struct mil_pair *build_info;
    size_t n_build_info;
    /* For other readers than ours: refuse names that are words of the
     * language, and strings that need escapes, which no sample shows. */
    bool strict;
};
/* The layout is that of Apple's compiler: program(1.3) with bare scalars from
 * specification version 9 on, program(1.0) with tensor<T, []> before. */
int text_print(const struct mil_program *p, const struct text_options *o,
               struct buf *out, struct err *e) ATTR_MUST_USE;

struct text_parse_options {
    /* Makes the data behind BLOBFILE(path, offset). NULL: a BLOBFILE is kept
     * as an unreadable data of that type that prints the same way. */
    const struct mil_data *(*blob)(void *cookie, struct mil_program *p,
                                   const char *file, uint64_t offset,
                                   const struct mil_type *t, struct err *e);
    void *cookie;
    /* Keep arguments of CoreML8 operations that the table does not know. */
    bool raw;
};
/* Errors carry line and column. The result is not validated: operations that
 * the table does not describe come back as foreign ones. */
struct mil_program *text_parse(const char *text, size_t len,
                               const struct text_parse_options *o,
                               struct err *e) ATTR_MUST_USE;

#endif
