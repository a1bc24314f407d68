/*
 * Index packing: element e takes bits [e * b, e * b + b) of a little-endian
 * bit string, least significant bit first.
 */
#include <string.h>

#include "converter/base/cpu.h"
#include "quant/quant.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Eight at a time, merged pairwise into lanes of 16, 32 and 64 bits. */
static void pack_scalar(uint8_t *dst, const uint8_t *src, size_t n, int bits)
{
    const int b = bits;
    uint64_t v, acc = 0;
    size_t i;
    int k;

    for (; n >= 8; n -= 8, src += 8) {
        for (v = 0, k = 0; k < 8; k++)
            v |= (uint64_t)src[k] << 8 * k;
        v = (v & UINT64_C(0x00ff00ff00ff00ff)) |
            (v >> 8 & UINT64_C(0x00ff00ff00ff00ff)) << b;
        v = (v & UINT64_C(0x0000ffff0000ffff)) |
            (v >> 16 & UINT64_C(0x0000ffff0000ffff)) << 2 * b;
        v = (v & UINT32_MAX) | v >> 32 << 4 * b;
        for (k = 0; k < b; k++)
            *dst++ = (uint8_t)(v >> 8 * k);
    }
    for (i = 0; i < n; i++)
        acc |= (uint64_t)src[i] << i * (size_t)b;
    for (i = 0; i < (n * (size_t)b + 7) / 8; i++)
        *dst++ = (uint8_t)(acc >> 8 * i);
}

#if defined(__x86_64__)
/* Neighbours are merged pairwise: in 16-bit lanes, 32-bit lanes and, at 3
 * bits, 64-bit lanes; a shuffle drops the unused bytes. Each step of 32
 * elements stores 16 bytes to each half, of which the first 2 * bits count;
 * the caller leaves room. */
ATTR_TARGET("avx2")
static size_t pack_avx2(uint8_t *dst, const uint8_t *src, size_t n, int bits)
{
    const int b = bits;
    const __m256i m1 = _mm256_set1_epi16((int16_t)(1 | (1 << (8 + b))));
    const __m256i m2 = _mm256_set1_epi32(1 | (1 << (16 + 2 * b)));
    __m256i take;
    size_t i;

    if (b == 6) /* 3 bytes of each 4 */
        take = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9,
                                                         10, 12, 13, 14, -1, -1,
                                                         -1, -1));
    else if (b == 3) /* 3 bytes of each 8 */
        take = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 8, 9, 10, -1,
                                                         -1, -1, -1, -1, -1, -1,
                                                         -1, -1, -1));
    else if (b == 4) /* 2 of each 4 */
        take = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12,
                                                         13, -1, -1, -1, -1, -1,
                                                         -1, -1, -1));
    else /* 2 bits: 1 of each 4 */
        take = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, -1, -1,
                                                         -1, -1, -1, -1, -1, -1,
                                                         -1, -1, -1, -1));
    /* What 192 elements pack to holds the 16 bytes of the second store. */
    for (i = 0; i + 192 <= n; i += 32) {
        __m256i v =
            _mm256_loadu_si256((const __m256i *)(const void *)(src + i));

        if (b == 1) {
            uint32_t w =
                (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(v, 7));

            memcpy(dst, &w, 4);
        } else {
            v = _mm256_maddubs_epi16(v, m1);
            v = _mm256_madd_epi16(v, m2);
            if (b == 3)
                v = _mm256_or_si256(v, _mm256_srli_epi64(v, 20));
            v = _mm256_shuffle_epi8(v, take);
            _mm_storeu_si128((__m128i *)(void *)dst, _mm256_castsi256_si128(v));
            _mm_storeu_si128((__m128i *)(void *)(dst + 2 * b),
                             _mm256_extracti128_si256(v, 1));
        }
        dst += 4 * b;
    }
    return i;
}
#endif

#if defined(__aarch64__)
/* The same merging in both halves of a vector; 16 elements take 2 * bits
 * bytes of the 16 that are stored. */
static size_t pack_neon(uint8_t *dst, const uint8_t *src, size_t n, int bits)
{
    const int b = bits;
    const int16x8_t up16 = vdupq_n_s16((int16_t)b);
    const int32x4_t up32 = vdupq_n_s32(2 * b);
    const int64x2_t up64 = vdupq_n_s64(4 * b);
    uint8_t order[16];
    uint8x16_t take;
    size_t i;
    int k;

    for (k = 0; k < 16; k++)
        order[k] = (uint8_t)(k < b ? k : k < 2 * b ? k - b + 8 : 0xff);
    take = vld1q_u8(order);
    /* What 128 elements pack to holds the 16 bytes of the last store. */
    for (i = 0; i + 128 <= n; i += 16) {
        uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(src + i));
        uint32x4_t w;
        uint64x2_t x;

        v = vorrq_u16(vandq_u16(v, vdupq_n_u16(0xff)),
                      vshlq_u16(vshrq_n_u16(v, 8), up16));
        w = vreinterpretq_u32_u16(v);
        w = vorrq_u32(vandq_u32(w, vdupq_n_u32(0xffff)),
                      vshlq_u32(vshrq_n_u32(w, 16), up32));
        x = vreinterpretq_u64_u32(w);
        x = vorrq_u64(vandq_u64(x, vdupq_n_u64(UINT32_MAX)),
                      vshlq_u64(vshrq_n_u64(x, 32), up64));
        vst1q_u8(dst, vqtbl1q_u8(vreinterpretq_u8_u64(x), take));
        dst += 2 * b;
    }
    return i;
}
#endif

void qz_pack(uint8_t *dst, const uint8_t *indices, size_t n, int bits)
{
    size_t done = 0;

    if (bits == 8) {
        memcpy(dst, indices, n);
        return;
    }
#if defined(__x86_64__)
    if ((cpu_features() & CPU_AVX2) != 0)
        done = pack_avx2(dst, indices, n, bits);
#elif defined(__aarch64__)
    if ((cpu_features() & CPU_NEON) != 0)
        done = pack_neon(dst, indices, n, bits);
#endif
    pack_scalar(dst + done / 8 * (size_t)bits, indices + done, n - done, bits);
}

void qz_unpack(uint8_t *indices, const uint8_t *src, size_t first, size_t n,
               int bits)
{
    unsigned mask = (1u << bits) - 1;
    size_t i = 0;

    /* Eight elements take `bits` whole bytes. */
    for (; first % 8 == 0 && i + 8 <= n; i += 8) {
        const uint8_t *p = src + (first + i) / 8 * (size_t)bits;
        uint64_t v = 0;

        for (int b = 0; b < bits; b++)
            v |= (uint64_t)p[b] << 8 * b;
        for (int k = 0; k < 8; k++, v >>= bits)
            indices[i + (size_t)k] = (uint8_t)(v & mask);
    }
    for (; i < n; i++) {
        /* The bit's byte and place, without a product that could wrap. */
        size_t e = first + i, at = e / 8 * (size_t)bits;
        unsigned bit = (unsigned)(e % 8) * (unsigned)bits;
        unsigned v;

        at += bit / 8;
        bit %= 8;
        v = (unsigned)src[at] >> bit;
        if (bit + (unsigned)bits > 8)
            v |= (unsigned)src[at + 1] << (8 - bit);
        indices[i] = (uint8_t)(v & mask);
    }
}
