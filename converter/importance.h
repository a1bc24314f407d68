/*
 * What each weight counts for, from a safetensors file that has the
 * checkpoint's names and shapes: squared gradients, for example.
 */
#ifndef CONVERTER_IMPORTANCE_H
#define CONVERTER_IMPORTANCE_H

#include "converter/base/log.h"
#include "models/weights.h"

struct importance;
struct importance *importance_open(const char *path, const struct ckpt *c,
                                   struct err *e) ATTR_MUST_USE;
void importance_close(struct importance *im);
/* The file has the tensor of this constant, in its shape; it will be used. */
int importance_check(struct importance *im, const struct mil_data *d,
                     struct err *e) ATTR_MUST_USE;
/* Every value of the tensors in use: finite, not negative, not all zero. */
int importance_scan(struct importance *im, const struct log *log,
                    struct err *e) ATTR_MUST_USE;
/* Of rows [row, row + n) of a constant. */
int importance_rows(const struct importance *im, const struct mil_data *d,
                    uint64_t row, uint64_t n, float *dst,
                    struct err *e) ATTR_MUST_USE;

#endif
