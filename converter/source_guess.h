/*
 * Which tensors the constants of another program's file hold, where the file
 * does not say.
 */
#ifndef CONVERTER_SOURCE_GUESS_H
#define CONVERTER_SOURCE_GUESS_H

#include "converter/package_source.h"

/* Matrices of the first function, and equal parts of one, told by their values:
 * of the tensors whose shape fits, the one that a stretch of the constant
 * follows most closely, if it follows it at all; times the nearest power of
 * two. Others are left out. */
struct package_source *source_guess(const struct pkg *file,
                                    const struct ckpt *c,
                                    struct err *e) ATTR_MUST_USE;

#endif
