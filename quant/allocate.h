/*
 * Widths for many tensors under one budget: each tensor takes one of its
 * options, sizes add up, and so does the damage (multiple-choice knapsack).
 */
#ifndef QUANT_ALLOCATE_H
#define QUANT_ALLOCATE_H

#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"

#define QZ_MAX_OPTIONS 8

struct qz_choice {
    int n; /* options, at least 1 */
    uint64_t size[QZ_MAX_OPTIONS];
    double damage[QZ_MAX_OPTIONS]; /* finite, not negative */
    int chosen;                    /* the result */
};
/*
 * Chooses the least damage whose size is within the budget. Sizes are rounded
 * up to 1/65536 of the budget, which may cost that much for each tensor; the
 * better of this and of steps by falling gain is taken. Ties: the smaller
 * size, then the lower option of the first tensor. *bound (may be NULL) is a
 * lower bound of the damage of any choice within the budget. ERR_INPUT: even
 * the smallest options exceed it.
 */
int qz_allocate(struct qz_choice *c, size_t n, uint64_t budget, double *bound,
                struct err *e) ATTR_MUST_USE;

#endif
