/*
 * The weights of a finished package, decoded from its bytes and unfolded, as
 * a tensor source for the oracle.
 */
#ifndef CONVERTER_PACKAGE_SOURCE_H
#define CONVERTER_PACKAGE_SOURCE_H

#include "converter/package_run.h"
#include "models/checkpoint.h"

struct package_source;
/* Uses the package's own list of sources (user metadata of each file). A
 * package without one: ERR_UNSUPPORTED. `p` must outlive the result. */
struct package_source *package_source_open(const struct package *p,
                                           struct err *e) ATTR_MUST_USE;
void package_source_close(struct package_source *s);
struct tensor_source package_source_tensors(const struct package_source *s);
/* 1 if any constant is palettized. */
int package_source_compressed(const struct package_source *s);
/* Narrowest width among palettized matrices; 16 if none. */
int package_source_bits(const struct package_source *s);

#endif
