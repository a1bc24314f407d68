/*
 * Numbers: half, bfloat16 and float conversion, little-endian loads, text.
 *
 * Conversions round to nearest, ties to even; subnormals are kept; NaN stays
 * NaN (quiet), overflow becomes infinity. The scalar functions are the
 * definition; the block functions give the same bits at any SIMD level.
 * Text conversions never depend on the locale.
 */
#ifndef BASE_NUM_H
#define BASE_NUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"

typedef uint16_t f16_t;  /* IEEE binary16 bits */
typedef uint16_t bf16_t; /* bfloat16 bits */

float f16_to_f32(f16_t h);
f16_t f32_to_f16(float f);
f16_t f64_to_f16(double d); /* one rounding */
float bf16_to_f32(bf16_t b);
bf16_t f32_to_bf16(float f);

/* Blocks. src and dst need no alignment; they may not overlap, except that
 * dst == src is allowed where element sizes are equal. */
void num_f16_to_f32(float *dst, const void *src, size_t n);
void num_f32_to_f16(f16_t *dst, const void *src, size_t n);
void num_bf16_to_f32(float *dst, const void *src, size_t n);
void num_bf16_to_f16(f16_t *dst, const void *src, size_t n);
void num_f32_to_bf16(bf16_t *dst, const void *src, size_t n);
/* Rounds each float to the nearest half and back. dst == src allowed. */
void num_round_f16(float *dst, const float *src, size_t n);

/* What a block of floats holds; adds to *s. */
struct num_stats {
    uint64_t n, nan, inf;
    uint64_t above_f16;   /* finite, rounds to infinity in half */
    uint64_t sub_f16;     /* not zero, subnormal or zero in half */
    uint64_t first_bad;   /* index of the first NaN or Inf, if any */
    uint64_t first_above; /* index of the first above_f16, if any */
    float max_abs;        /* over finite values */
};
#define NUM_STATS_INIT         \
    {                          \
        0, 0, 0, 0, 0, 0, 0, 0 \
    }
/* `base` is the index of src[0] in the tensor. */
void num_stats_f32(struct num_stats *s, const float *src, size_t n,
                   uint64_t base);

/* Unaligned little-endian access to file bytes. */
uint16_t load_le16(const void *p);
uint32_t load_le32(const void *p);
uint64_t load_le64(const void *p);
/* n elements as a file has them, in place, to the host's order. */
void num_order_le16(void *p, size_t n);
void num_order_le32(void *p, size_t n);
void store_le16(void *p, uint16_t v);
void store_le32(void *p, uint32_t v);
void store_le64(void *p, uint64_t v);

/* Strict text: the whole of [s, s + len) is one number (JSON's grammar, plus
 * a leading '+' for options). False otherwise or out of range. */
bool num_parse_u64(const char *s, size_t len, uint64_t *out) ATTR_MUST_USE;
bool num_parse_i64(const char *s, size_t len, int64_t *out) ATTR_MUST_USE;
bool num_parse_double(const char *s, size_t len, double *out) ATTR_MUST_USE;
/* An integral value in any spelling of a number (8, 8.0, 1e6), judged on its
 * digits and not on a rounded double; at most `limit` in magnitude. */
bool num_parse_integral(const char *s, size_t len, int64_t limit,
                        int64_t *out) ATTR_MUST_USE;
/* Shortest text that reads back to the same double; at most 32 bytes. */
#define NUM_TEXT_MAX 32
void num_text(char out[NUM_TEXT_MAX], double v);
/* "1.5 GB", "312 KB": powers of 1000, for people. */
void num_bytes_text(char out[NUM_TEXT_MAX], uint64_t bytes);

/* SplitMix64 (Steele et al. 2014): a bijection that spreads every bit. Its
 * random sequences are those of multiples of NUM_GOLDEN. */
#define NUM_GOLDEN UINT64_C(0x9e3779b97f4a7c15)
static inline uint64_t num_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

#endif
