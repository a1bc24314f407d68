/*
 * Half, bfloat16 and float conversion; little-endian loads and stores.
 *
 * The scalar functions work on bits alone, so that neither rounding mode
 * nor contraction nor flush-to-zero can change a result. A NaN becomes
 * quiet and keeps sign and the leading bits of its payload, which is what
 * the F16C instructions do. The block functions are in num_block.c.
 */
#include "converter/base/num.h"

#include <string.h>

#include "converter/base/num_priv.h"

float f16_to_f32(f16_t h)
{
    return num_f32_of(num_half_widen(h));
}

f16_t f32_to_f16(float f)
{
    return num_half_narrow(num_f32_bits(f));
}

f16_t f64_to_f16(double d)
{
    uint64_t x, a, m, r, rest, half;
    unsigned sign, shift;

    memcpy(&x, &d, sizeof x);
    sign = (unsigned)(x >> 48) & 0x8000;
    a = x & (UINT64_MAX >> 1);
    if (a > UINT64_C(0x7ff0000000000000))
        return (f16_t)(sign | 0x7e00 | ((unsigned)(a >> 42) & 0x3ff));
    if (a >= UINT64_C(0x40effe0000000000)) /* 65520 */
        return (f16_t)(sign | 0x7c00);
    if (a >= UINT64_C(0x3f10000000000000)) { /* 2^-14 */
        r = a - UINT64_C(0x3f00000000000000) + (UINT64_C(1) << 41) - 1 +
            ((a >> 42) & 1);
        return (f16_t)(sign | (unsigned)(r >> 42));
    }
    if (a <= UINT64_C(0x3e60000000000000)) /* 2^-25 */
        return (f16_t)sign;
    m = (a & UINT64_C(0xfffffffffffff)) | UINT64_C(0x10000000000000);
    shift = 1051 - (unsigned)(a >> 52); /* 43 .. 53: units of 2^-24 */
    r = m >> shift;
    rest = m & ((UINT64_C(1) << shift) - 1);
    half = UINT64_C(1) << (shift - 1);
    if (rest > half || (rest == half && (r & 1) != 0))
        r++;
    return (f16_t)(sign | (unsigned)r);
}

float bf16_to_f32(bf16_t b)
{
    return num_f32_of(num_bf16_widen(b));
}

bf16_t f32_to_bf16(float f)
{
    return num_bf16_narrow(num_f32_bits(f));
}

uint16_t load_le16(const void *p)
{
    return num_le16(p);
}

uint32_t load_le32(const void *p)
{
    return num_le32(p);
}

uint64_t load_le64(const void *p)
{
    const unsigned char *b = p;

    return (uint64_t)num_le32(b) | (uint64_t)num_le32(b + 4) << 32;
}

static bool host_is_little(void)
{
    const uint16_t one = 1;
    unsigned char low;

    memcpy(&low, &one, 1);
    return low == 1;
}

void num_order_le16(void *p, size_t n)
{
    unsigned char *b = p;

    if (host_is_little())
        return;
    for (size_t i = 0; i < n; i++) {
        uint16_t v = load_le16(b + 2 * i);

        memcpy(b + 2 * i, &v, 2);
    }
}

void num_order_le32(void *p, size_t n)
{
    unsigned char *b = p;

    if (host_is_little())
        return;
    for (size_t i = 0; i < n; i++) {
        uint32_t v = load_le32(b + 4 * i);

        memcpy(b + 4 * i, &v, 4);
    }
}

void store_le16(void *p, uint16_t v)
{
    unsigned char *b = p;

    b[0] = (unsigned char)(v & 0xff);
    b[1] = (unsigned char)(v >> 8);
}

void store_le32(void *p, uint32_t v)
{
    unsigned char *b = p;

    store_le16(b, (uint16_t)(v & 0xffff));
    store_le16(b + 2, (uint16_t)(v >> 16));
}

void store_le64(void *p, uint64_t v)
{
    unsigned char *b = p;

    store_le32(b, (uint32_t)(v & 0xffffffff));
    store_le32(b + 4, (uint32_t)(v >> 32));
}
