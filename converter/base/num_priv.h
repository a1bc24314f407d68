/*
 * Shared by num.c and num_block.c: conversions on bits.
 */
#ifndef BASE_NUM_PRIV_H
#define BASE_NUM_PRIV_H

#include "converter/base/num.h"

/* 65520, the least float that rounds to infinity in half. */
#define F32_BITS_ABOVE_F16 0x477ff000u
/* 2^-14 - 2^-25, the least positive float that rounds to a normal half: a
 * tie between the largest subnormal and 2^-14, which is even. */
#define F32_BITS_NORMAL_F16 0x387fe000u
#define F32_BITS_INF 0x7f800000u

uint32_t num_f32_bits(float f);
float num_f32_of(uint32_t u);
uint32_t num_half_widen(f16_t h);
f16_t num_half_narrow(uint32_t x);
uint32_t num_bf16_widen(bf16_t b);
bf16_t num_bf16_narrow(uint32_t x);

#endif
