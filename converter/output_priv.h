/*
 * What every writer asks of the place of its output.
 */
#ifndef CONVERTER_OUTPUT_PRIV_H
#define CONVERTER_OUTPUT_PRIV_H

#include "converter/base/err.h"

/* The nearest folder that exists above (or at) a path, fresh (mem_free). */
char *output_parent(const char *path, struct err *e) ATTR_MUST_USE;
/* ".." behind a folder that does not exist means nothing yet, and would lead
 * anywhere once its parents are made: ERR_USAGE. `what`: "the output". */
int output_check_way(const char *what, const char *path, const char *parent,
                     struct err *e) ATTR_MUST_USE;
/* A path (`what`: "--cache") may not be a folder (`of`: "the output") or lie
 * inside it, by whatever links; neither has to exist yet: ERR_USAGE. */
int output_check_outside(const char *what, const char *path, const char *of,
                         const char *dir, struct err *e) ATTR_MUST_USE;

#endif
