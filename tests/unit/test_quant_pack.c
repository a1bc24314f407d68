/*
 * Index packing: against the definition, bit by bit, at every width, length
 * and SIMD level; nothing is written past the end; unpacking from anywhere.
 */
#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "quant/quant.h"
#include "t_rand.h"

static const int widths[] = { 1, 2, 3, 4, 6, 8 };
enum { WIDTHS = sizeof widths / sizeof widths[0] };

static uint64_t seed = 7;

static void check_bits(const uint8_t *packed, const uint8_t *idx, size_t n,
                       int bits)
{
    size_t e, at;
    int b;

    for (e = 0; e < n; e++)
        for (b = 0; b < bits; b++) {
            at = e * (size_t)bits + (size_t)b;
            cr_assert_eq((packed[at / 8] >> (at % 8)) & 1, (idx[e] >> b) & 1,
                         "width %d, element %zu of %zu, bit %d", bits, e, n, b);
        }
}

Test(pack, every_width_and_length)
{
    uint8_t idx[700], out[720], back[700];
    size_t n, i, bytes;
    int w, level;

    for (level = 0; level < 2; level++) {
        cpu_mask(level == 0 ? 0 : ~0u);
        for (w = 0; w < WIDTHS; w++)
            for (n = 0; n <= 700; n++) {
                int bits = widths[w];

                bytes = (n * (size_t)bits + 7) / 8;
                for (i = 0; i < n; i++)
                    idx[i] = (uint8_t)t_below(&seed, 1u << bits);
                memset(out, 0xaa, sizeof out);
                qz_pack(out, idx, n, bits);
                check_bits(out, idx, n, bits);
                for (i = bytes; i < sizeof out; i++)
                    cr_assert_eq(out[i], 0xaa, "width %d, %zu elements", bits,
                                 n);
                /* Unused bits of the last byte are zero. */
                if (n * (size_t)bits % 8 != 0)
                    cr_assert_eq(out[bytes - 1] >> (n * (size_t)bits % 8), 0);
                qz_unpack(back, out, 0, n, bits);
                cr_assert_eq(memcmp(back, idx, n), 0);
            }
    }
}

Test(pack, unpack_from_anywhere)
{
    uint8_t idx[97], out[97], back[97];
    size_t first, n, i;
    int w;

    for (w = 0; w < WIDTHS; w++) {
        for (i = 0; i < 97; i++)
            idx[i] = (uint8_t)t_below(&seed, 1u << widths[w]);
        qz_pack(out, idx, 97, widths[w]);
        for (first = 0; first <= 97; first++)
            for (n = 0; first + n <= 97; n++) {
                qz_unpack(back, out, first, n, widths[w]);
                cr_assert_eq(memcmp(back, idx + first, n), 0);
            }
    }
}

Test(pack, seven_elements_of_three_bits)
{
    static const uint8_t idx[7] = { 1, 2, 3, 4, 5, 6, 7 };
    uint8_t out[3];

    /* 111 110 101 100 011 010 001, from the top: 0x1f58d1. */
    qz_pack(out, idx, 7, 3);
    cr_assert_eq(out[0], 0xd1);
    cr_assert_eq(out[1], 0x58);
    cr_assert_eq(out[2], 0x1f);
}

Test(pack, streams_join_on_bytes)
{
    uint8_t idx[4096], whole[4096], parts[4096];
    size_t i, cut;
    int w;

    for (w = 0; w < WIDTHS; w++) {
        size_t bytes = 4096 * (size_t)widths[w] / 8;

        for (i = 0; i < 4096; i++)
            idx[i] = (uint8_t)t_below(&seed, 1u << widths[w]);
        qz_pack(whole, idx, 4096, widths[w]);
        for (cut = 8; cut < 4096; cut += 8 * 37) {
            qz_pack(parts, idx, cut, widths[w]);
            qz_pack(parts + cut * (size_t)widths[w] / 8, idx + cut, 4096 - cut,
                    widths[w]);
            cr_assert_eq(memcmp(whole, parts, bytes), 0);
        }
    }
}

Test(pack, widths_that_exist)
{
    int b;

    for (b = -1; b < 20; b++)
        cr_assert_eq(qz_bits_ok(b),
                     b == 1 || b == 2 || b == 3 || b == 4 || b == 6 || b == 8);
}
