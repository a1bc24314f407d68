/*
 * From a program as it was read to one of ours.
 */
#ifndef SCHEMA_OLDER_PRIV_H
#define SCHEMA_OLDER_PRIV_H

#include "mil/mil.h"

/* Expresses programs of the CoreML7 opset, and the weight decompression of
 * that opset, in CoreML8's operations; reads small vectors of integers that
 * lie in a weight file, since inference needs their values. Operations that
 * the table does not describe are refused by name. */
int older_raise(struct mil_program *p, struct err *e) ATTR_MUST_USE;

#endif
