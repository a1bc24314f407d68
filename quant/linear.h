/*
 * Linear quantization: integers of 4 or 8 bits, -2^(b-1) .. 2^(b-1) - 1, times
 * a positive fp16 scale.
 *
 * A scale serves a stretch of one row, a row, or the whole matrix. For
 * stretches and rows it is searched for the least (weighted) squared error
 * with the scale as it is stored; for the whole matrix it is the largest
 * magnitude over the largest integer.
 */
#ifndef QUANT_LINEAR_H
#define QUANT_LINEAR_H

#include "quant/quant.h"

/* 4 or 8. */
bool qz_linear_bits_ok(int bits);

struct qz_linear;
/* block: columns per scale, a divisor of the columns; 0: one scale for all.
 * Scales are searched for the nearest integers; with moments the integers are
 * then found by error feedback. Threads as in qz_palette. */
struct qz_linear *qz_linear_new(const struct qz_source *src, int bits,
                                uint64_t block, struct par *par,
                                struct err *e) ATTR_MUST_USE;
void qz_linear_free(struct qz_linear *l);
uint64_t qz_linear_value_bytes(const struct qz_linear *l);
uint64_t qz_linear_scales(const struct qz_linear *l);
/* Packed integers (two's complement, low nibble first) and scales (fp16, row
 * by row). Cheapest front to back, values first. */
int qz_linear_read_values(struct qz_linear *l, uint64_t offset, void *dst,
                          size_t n, struct err *e) ATTR_MUST_USE;
int qz_linear_read_scales(struct qz_linear *l, uint64_t offset, void *dst,
                          size_t n, struct err *e) ATTR_MUST_USE;
/* Over what was quantized so far. */
void qz_linear_stats(const struct qz_linear *l, struct qz_stats *out);

/* One block: n values, importances (NULL: alike), the greatest integer `top`.
 * Writes n integers; returns the scale, which is normal. */
f16_t qz_linear_block(const float *x, const float *imp, size_t n, int top,
                      int8_t *q);

#endif
