/*
 * Shared by num.c and num_block.c: conversions on bits, inline for loops.
 */
#ifndef BASE_NUM_PRIV_H
#define BASE_NUM_PRIV_H

#include <string.h>

#include "converter/base/num.h"

/* 65520, the least float that rounds to infinity in half. */
#define F32_BITS_ABOVE_F16 0x477ff000u
/* 2^-14 - 2^-25, the least positive float that rounds to a normal half: a
 * tie between the largest subnormal and 2^-14, which is even. */
#define F32_BITS_NORMAL_F16 0x387fe000u
#define F32_BITS_INF 0x7f800000u

static inline uint16_t num_le16(const unsigned char *b)
{
    return (uint16_t)(b[0] | (b[1] << 8));
}

static inline uint32_t num_le32(const unsigned char *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
           (uint32_t)b[3] << 24;
}

static inline uint32_t num_f32_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float num_f32_of(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t num_half_widen(f16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t e = (h >> 10) & 31, m = h & 0x3ff;

    if (e == 31)
        return sign | 0x7f800000 | (m << 13) | (m != 0 ? 0x400000 : 0);
    if (e != 0)
        return sign | ((e + 112) << 23) | (m << 13);
    if (m == 0)
        return sign;
    /* Subnormal: m * 2^-24 with its leading one moved to bit 10. */
    e = 113;
    while ((m & 0x400) == 0) {
        m <<= 1;
        e--;
    }
    return sign | (e << 23) | ((m & 0x3ff) << 13);
}

static inline f16_t num_half_narrow(uint32_t x)
{
    uint32_t sign = (x >> 16) & 0x8000, a = x & 0x7fffffff;
    uint32_t m, r, rest, half, shift;

    if (a > 0x7f800000)
        return (f16_t)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= F32_BITS_ABOVE_F16)
        return (f16_t)(sign | 0x7c00);
    if (a >= 0x38800000) { /* 2^-14: normal in half */
        r = a - 0x38000000 + 0xfff + ((a >> 13) & 1);
        return (f16_t)(sign | (r >> 13));
    }
    if (a <= 0x33000000) /* 2^-25, which ties to zero */
        return (f16_t)sign;
    m = (a & 0x7fffff) | 0x800000;
    shift = 126 - (a >> 23); /* 14 .. 24: down to units of 2^-24 */
    r = m >> shift;
    rest = m & ((1u << shift) - 1);
    half = 1u << (shift - 1);
    if (rest > half || (rest == half && (r & 1) != 0))
        r++;
    return (f16_t)(sign | r);
}

static inline uint32_t num_bf16_widen(bf16_t b)
{
    uint32_t quiet = (b & 0x7fff) > 0x7f80 ? 0x40 : 0;

    return (b | quiet) << 16;
}

static inline bf16_t num_bf16_narrow(uint32_t x)
{
    if ((x & 0x7fffffff) > 0x7f800000)
        return (bf16_t)((x >> 16) | 0x40);
    /* The carry of the rounding runs into the exponent, up to infinity. */
    return (bf16_t)((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}

#endif
