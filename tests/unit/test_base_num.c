/*
 * Half and bfloat16, against tables made by another way: the value of each
 * pattern by ldexp, the nearest pattern by search among those values.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/num.h"

#define HALF_MAX_FINITE 0x7bff

/* The values of the non-negative finite halves, in order. */
static double half_value[HALF_MAX_FINITE + 1];
/* The same for bfloat16. */
static double bf16_value[0x7f80];

static void make_tables(void)
{
    for (int h = 0; h <= HALF_MAX_FINITE; h++) {
        int e = h / 1024, m = h % 1024;

        half_value[h] = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    }
    for (int b = 0; b < 0x7f80; b++) {
        int e = b / 128, m = b % 128;

        bf16_value[b] = e == 0 ? ldexp(m, -133) : ldexp(128 + m, e - 134);
    }
}

/* Number of the entry of an ascending table that is nearest to x >= 0, ties
 * to the even one; `count` when x is nearer to the value one step beyond. */
static int nearest(const double *table, int count, double x)
{
    double step = table[count - 1] - table[count - 2];
    int lo = 0, hi = count; /* table[lo] <= x < table[hi] */
    double above, below;

    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;

        if (table[mid] <= x)
            lo = mid;
        else
            hi = mid;
    }
    below = x - table[lo];
    above = (hi < count ? table[hi] : table[count - 1] + step) - x;
    if (below < above || (below == above && lo % 2 == 0))
        return lo;
    return hi;
}

static f16_t reference_half(double x)
{
    unsigned sign = signbit(x) ? 0x8000 : 0;

    if (isinf(x))
        return (f16_t)(sign | 0x7c00);
    return (f16_t)(sign |
                   (unsigned)nearest(half_value, HALF_MAX_FINITE + 1, fabs(x)));
}

static bf16_t reference_bf16(double x)
{
    unsigned sign = signbit(x) ? 0x8000 : 0;

    if (isinf(x))
        return (bf16_t)(sign | 0x7f80);
    return (bf16_t)(sign | (unsigned)nearest(bf16_value, 0x7f80, fabs(x)));
}

static float float_of(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

TestSuite(num, .init = make_tables);

Test(num, all_halves_widen)
{
    for (unsigned h = 0; h < 65536; h++) {
        float f = f16_to_f32((f16_t)h);
        unsigned a = h & 0x7fff;

        if (a > 0x7c00) {
            cr_assert(isnan(f), "%04x", h);
            cr_assert(bits_of(f) & 0x400000, "%04x is not quiet", h);
            cr_assert_eq(signbit(f) != 0, h >= 0x8000);
        } else if (a == 0x7c00) {
            cr_assert_eq(f, h >= 0x8000 ? -INFINITY : INFINITY);
        } else {
            cr_assert_eq((double)fabsf(f), half_value[a], "%04x", h);
            cr_assert_eq(signbit(f) != 0, h >= 0x8000, "%04x", h);
        }
    }
}

Test(num, all_halves_come_back)
{
    for (unsigned h = 0; h < 65536; h++) {
        f16_t quiet = (f16_t)((h & 0x7fff) > 0x7c00 ? h | 0x200 : h);

        cr_assert_eq(f32_to_f16(f16_to_f32((f16_t)h)), quiet, "%04x", h);
        cr_assert_eq(f64_to_f16(f16_to_f32((f16_t)h)), quiet, "%04x", h);
    }
}

Test(num, all_bf16_widen_and_come_back)
{
    for (unsigned b = 0; b < 65536; b++) {
        float f = bf16_to_f32((bf16_t)b);
        unsigned a = b & 0x7fff;

        if (a > 0x7f80) {
            cr_assert(isnan(f), "%04x", b);
            cr_assert_eq(f32_to_bf16(f), b | 0x40, "%04x", b);
            cr_assert_eq(f32_to_f16(f), (b & 0x8000) | 0x7e00 | (b & 0x7f) << 3,
                         "%04x", b);
            continue;
        }
        cr_assert_eq((double)fabsf(f), a == 0x7f80 ? INFINITY : bf16_value[a],
                     "%04x", b);
        cr_assert_eq(signbit(f) != 0, b >= 0x8000, "%04x", b);
        cr_assert_eq(f32_to_bf16(f), b, "%04x", b);
        cr_assert_eq(f32_to_f16(f), reference_half(f), "%04x", b);
    }
}

static void check_float(float f)
{
    cr_assert_eq(f32_to_f16(f), reference_half(f), "half of %a: %04x, %04x", f,
                 f32_to_f16(f), reference_half(f));
    cr_assert_eq(f64_to_f16(f), reference_half(f), "half of %a by double", f);
    cr_assert_eq(f32_to_bf16(f), reference_bf16(f), "bf16 of %a", f);
}

/* Each half, each midpoint between two, and the floats on both sides. */
Test(num, ties_and_their_neighbours)
{
    for (int h = 0; h <= HALF_MAX_FINITE; h++) {
        double up = h < HALF_MAX_FINITE ? half_value[h + 1] : 65536.0;
        float mid = (float)((half_value[h] + up) / 2);
        float around[] = { (float)half_value[h], mid };

        cr_assert_eq((double)mid, (half_value[h] + up) / 2);
        for (int i = 0; i < 2; i++) {
            check_float(around[i]);
            check_float(-around[i]);
            check_float(nextafterf(around[i], INFINITY));
            check_float(nextafterf(around[i], -INFINITY));
        }
    }
    for (int b = 0; b < 0x7f7f; b++) {
        uint32_t mid = ((uint32_t)b << 16) | 0x8000;

        for (uint32_t u = mid - 1; u <= mid + 1; u++)
            check_float(float_of(u));
    }
}

Test(num, doubles_round_once)
{
    /* By way of float this is a tie that goes to even, 2048; the double lies
     * above it. */
    double x = 2049.0 + 1e-9;

    cr_assert_eq(f32_to_f16((float)x), reference_half(2048));
    cr_assert_eq(f64_to_f16(x), reference_half(2050));
    for (int h = 0; h <= HALF_MAX_FINITE; h++) {
        double up = h < HALF_MAX_FINITE ? half_value[h + 1] : 65536.0;
        double mid = (half_value[h] + up) / 2;
        double test[] = { mid, nextafter(mid, INFINITY), nextafter(mid, 0) };

        for (int i = 0; i < 3; i++) {
            cr_assert_eq(f64_to_f16(test[i]), reference_half(test[i]), "%a",
                         test[i]);
            cr_assert_eq(f64_to_f16(-test[i]), reference_half(-test[i]), "%a",
                         -test[i]);
        }
    }
    cr_assert_eq(f64_to_f16(1e300), 0x7c00);
    cr_assert_eq(f64_to_f16(-INFINITY), 0xfc00);
    cr_assert_eq(f64_to_f16(5e-324), 0);
    cr_assert_eq(f64_to_f16(-0.0), 0x8000);
    cr_assert_eq(f64_to_f16((double)NAN) & 0x7e00, 0x7e00);
}

Test(num, borders_by_hand)
{
    cr_assert_eq(f32_to_f16(65504.0f), 0x7bff);
    cr_assert_eq(f32_to_f16(65519.996f), 0x7bff);
    cr_assert_eq(f32_to_f16(65520.0f), 0x7c00);
    cr_assert_eq(f32_to_f16(-65520.0f), 0xfc00);
    cr_assert_eq(f32_to_f16(3e38f), 0x7c00);
    cr_assert_eq(f32_to_f16(0x1p-24f), 0x0001);
    cr_assert_eq(f32_to_f16(0x1p-25f), 0x0000);
    cr_assert_eq(f32_to_f16(-0x1p-25f), 0x8000);
    cr_assert_eq(f32_to_f16(0x1.000002p-25f), 0x0001);
    cr_assert_eq(f32_to_f16(0x1.8p-24f), 0x0002);
    cr_assert_eq(f32_to_f16(0x1.ff8p-15f), 0x03ff);
    cr_assert_eq(f32_to_f16(0x1.ffbffep-15f), 0x03ff);
    cr_assert_eq(f32_to_f16(0x1.ffcp-15f), 0x0400);
    cr_assert_eq(f32_to_f16(0x1p-14f), 0x0400);
    cr_assert_eq(f32_to_bf16(3.4028235e38f), 0x7f80);
    cr_assert_eq(f32_to_bf16(1.00390625f), 0x3f80);
    cr_assert_eq(f32_to_bf16(1.01171875f), 0x3f82);
}

Test(num, random_floats)
{
    for (int i = 0; i < 1000000; i++) {
        uint32_t u = (uint32_t)next_random();

        if ((u & 0x7fffffff) <= 0x7f800000)
            check_float(float_of(u));
        /* And again inside the range of a half. */
        u = (u & 0x81ffffff) + ((102 + (u >> 25) % 42) << 23);
        check_float(float_of(u & ~UINT32_C(0x01000000)));
    }
}

/* The blocks at each level against the scalar functions. */
#define LEVELS 2
static const unsigned level[LEVELS] = { 0, ~0u };

#define BATCH 4096

static void check_batch(const uint32_t *in)
{
    static f16_t half[BATCH];
    static bf16_t brain[BATCH];
    static float rounded[BATCH];

    for (int l = 0; l < LEVELS; l++) {
        cpu_mask(level[l]);
        num_f32_to_f16(half, in, BATCH);
        num_f32_to_bf16(brain, in, BATCH);
        memcpy(rounded, in, sizeof rounded);
        num_round_f16(rounded, rounded, BATCH);
        for (int i = 0; i < BATCH; i++) {
            float f = float_of(in[i]);

            cr_assert_eq(half[i], f32_to_f16(f), "%08x: %04x", in[i], half[i]);
            cr_assert_eq(brain[i], f32_to_bf16(f), "%08x", in[i]);
            cr_assert_eq(bits_of(rounded[i]),
                         bits_of(f16_to_f32(f32_to_f16(f))), "%08x", in[i]);
        }
    }
    cpu_mask(~0u);
}

Test(num, blocks_over_all_floats_by_stride)
{
    static uint32_t in[BATCH];
    uint32_t u = 0;

    /* 2^32 / 2039: near 2.1 million patterns spread over everything. */
    for (int batch = 0; batch < 515; batch++) {
        for (int i = 0; i < BATCH; i++, u += 2039)
            in[i] = u;
        check_batch(in);
    }
}

Test(num, blocks_on_special_patterns)
{
    static const uint32_t base[] = {
        0,          0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff,
        0x7f802000, 0x7f801fff, 0x477ff000, 0x477fefff, 0x38800000, 0x387fe000,
        0x387fdfff, 0x33000000, 0x33000001, 0x00000001, 0x007fffff, 0x00800000
    };
    static uint32_t in[BATCH];
    size_t count = sizeof base / sizeof base[0];

    for (size_t i = 0; i < BATCH; i++)
        in[i] = base[i % count] | (i / count % 2 ? 0x80000000 : 0);
    check_batch(in);
}

Test(num, blocks_over_all_16_bit_patterns)
{
    static uint16_t in[65536], half[65536];
    static float wide[65536];

    for (unsigned i = 0; i < 65536; i++)
        in[i] = (uint16_t)i;
    for (int l = 0; l < LEVELS; l++) {
        cpu_mask(level[l]);
        num_f16_to_f32(wide, in, 65536);
        for (unsigned i = 0; i < 65536; i++)
            cr_assert_eq(bits_of(wide[i]), bits_of(f16_to_f32((f16_t)i)),
                         "%04x", i);
        num_bf16_to_f32(wide, in, 65536);
        memcpy(half, in, sizeof half);
        num_bf16_to_f16(half, half, 65536);
        for (unsigned i = 0; i < 65536; i++) {
            float f = bf16_to_f32((bf16_t)i);

            cr_assert_eq(bits_of(wide[i]), bits_of(f), "%04x", i);
            cr_assert_eq(half[i], f32_to_f16(f), "%04x: %04x", i, half[i]);
        }
    }
}

/* Every length, from odd addresses, and nothing written behind the end. */
Test(num, blocks_of_odd_length_and_place)
{
    unsigned char src[4 * 80 + 8];
    float f[81];
    uint16_t h[81];

    for (size_t i = 0; i < sizeof src; i++)
        src[i] = (unsigned char)next_random();
    for (size_t at = 0; at < 4; at++)
        for (size_t n = 0; n <= 80; n++) {
            f[n] = 12345.0f;
            h[n] = 12345;
            num_f16_to_f32(f, src + at, n);
            for (size_t i = 0; i < n; i++)
                cr_assert_eq(bits_of(f[i]),
                             bits_of(f16_to_f32(load_le16(src + at + 2 * i))));
            num_bf16_to_f32(f, src + at, n);
            for (size_t i = 0; i < n; i++)
                cr_assert_eq(bits_of(f[i]),
                             bits_of(bf16_to_f32(load_le16(src + at + 2 * i))));
            cr_assert_eq(f[n], 12345.0f);
            num_bf16_to_f16(h, src + at, n);
            for (size_t i = 0; i < n; i++)
                cr_assert_eq(h[i], f32_to_f16(bf16_to_f32(
                                       load_le16(src + at + 2 * i))));
            num_f32_to_f16(h, src + at, n);
            for (size_t i = 0; i < n; i++)
                cr_assert_eq(h[i],
                             f32_to_f16(float_of(load_le32(src + at + 4 * i))));
            num_f32_to_bf16(h, src + at, n);
            for (size_t i = 0; i < n; i++)
                cr_assert_eq(h[i], f32_to_bf16(
                                       float_of(load_le32(src + at + 4 * i))));
            cr_assert_eq(h[n], 12345);
        }
}

/* Statistics by the definition, one value at a time. */
static void naive_stats(struct num_stats *s, const float *x, size_t n,
                        uint64_t base)
{
    for (size_t i = 0; i < n; i++) {
        f16_t h = f32_to_f16(x[i]);
        int exponent = (h >> 10) & 31;

        s->n++;
        if (isnan(x[i]) || isinf(x[i])) {
            if (s->nan + s->inf == 0)
                s->first_bad = base + i;
            if (isnan(x[i]))
                s->nan++;
            else
                s->inf++;
            continue;
        }
        if (exponent == 31 && s->above_f16++ == 0)
            s->first_above = base + i;
        if (exponent == 0 && x[i] != 0)
            s->sub_f16++;
        if (fabsf(x[i]) > s->max_abs)
            s->max_abs = fabsf(x[i]);
    }
}

static void check_stats(const float *x, size_t n, size_t cut)
{
    struct num_stats want = NUM_STATS_INIT;

    naive_stats(&want, x, cut, 1000);
    naive_stats(&want, x + cut, n - cut, 1000 + cut);
    for (int l = 0; l < LEVELS; l++) {
        struct num_stats got = NUM_STATS_INIT;

        cpu_mask(level[l]);
        num_stats_f32(&got, x, cut, 1000);
        num_stats_f32(&got, x + cut, n - cut, 1000 + cut);
        cr_assert_eq(got.n, want.n);
        cr_assert_eq(got.nan, want.nan);
        cr_assert_eq(got.inf, want.inf);
        cr_assert_eq(got.above_f16, want.above_f16);
        cr_assert_eq(got.sub_f16, want.sub_f16, "%d, %d", (int)got.sub_f16,
                     (int)want.sub_f16);
        cr_assert_eq(got.max_abs, want.max_abs);
        if (want.nan + want.inf > 0)
            cr_assert_eq(got.first_bad, want.first_bad);
        if (want.above_f16 > 0)
            cr_assert_eq(got.first_above, want.first_above);
    }
    cpu_mask(~0u);
}

Test(num, statistics)
{
    static const uint32_t special[] = {
        0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0x477ff000,
        0xc77ff000, 0x477fefff, 0x387fe000, 0x387fdfff, 0x00000001,
        0x80000000, 0x00000000, 0x7f7fffff, 0x33000000,
    };
    static float x[10000];

    for (int round = 0; round < 60; round++) {
        size_t n = next_random() % 10001;

        for (size_t i = 0; i < n; i++) {
            uint32_t u = (uint32_t)next_random();

            /* Mostly harmless values: between 2^-20 and 2^12. */
            x[i] = float_of((u & 0x807fffff) | ((107 + (u >> 25) % 32) << 23));
            if (round % 3 == 1 && u % 1000 == 0)
                x[i] = float_of(special[u / 1000 % 14]);
            if (round % 3 == 2 && i == n / 2)
                x[i] = float_of(special[(size_t)round % 14]);
        }
        check_stats(x, n, n == 0 ? 0 : next_random() % n);
    }
    check_stats(x, 0, 0);
}

Test(num, little_endian_access)
{
    unsigned char b[16] = { 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88 };

    cr_assert_eq(load_le16(b + 1), 0x2211);
    cr_assert_eq(load_le32(b + 1), 0x44332211);
    cr_assert_eq(load_le64(b + 1), UINT64_C(0x8877665544332211));
    store_le16(b + 3, 0xa1b2);
    cr_assert(b[3] == 0xb2 && b[4] == 0xa1);
    store_le32(b + 3, 0xa1b2c3d4);
    cr_assert(b[3] == 0xd4 && b[6] == 0xa1);
    store_le64(b + 5, UINT64_C(0x0102030405060708));
    cr_assert(b[5] == 8 && b[12] == 1);
}
