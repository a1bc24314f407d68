/*
 * What suites of quant/ ask of every kind of source.
 */
#ifndef T_QUANT_H
#define T_QUANT_H

#include "quant/quant.h"

/* Integers of 4 bits in blocks of 32: each allocation that fails is reported
 * as such, and nothing is left of it. */
void t_quant_linear_without_memory(const struct qz_source *src);

#endif
