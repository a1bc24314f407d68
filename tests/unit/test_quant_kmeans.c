/*
 * The one-dimensional k-means solver: against brute force over every
 * multiset and partition, against the plain dynamic program, against the
 * certificate of the priced pass, and one way against the other.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "converter/base/cpu.h"
#include "quant/kmeans.h"
#include "t_rand.h"

static uint64_t seed = 1;

static struct qz_kmeans *fresh(void)
{
    struct err e = ERR_INIT;
    struct qz_kmeans *km = qz_kmeans_new(&e);

    cr_assert_not_null(km, "%s", e.text);
    return km;
}

/* The definition, in long double around each mean. */
static long double run_cost(const double *x, const double *w, size_t j,
                            size_t i)
{
    long double a = 0, s = 0, c = 0, d;
    size_t t;

    for (t = j; t < i; t++) {
        a += w[t];
        s += (long double)w[t] * x[t];
    }
    for (t = j; t < i; t++) {
        d = x[t] - s / a;
        c += w[t] * d * d;
    }
    return c;
}

static long double path_cost(const double *x, const double *w, int k,
                             const uint32_t *borders)
{
    long double c = 0;
    int q;

    for (q = 0; q < k; q++)
        c += run_cost(x, w, borders[q], borders[q + 1]);
    return c;
}

static void check_path(const uint32_t *borders, int k, size_t m)
{
    int q;

    cr_assert_eq(borders[0], 0);
    cr_assert_eq(borders[k], m);
    for (q = 0; q < k; q++)
        cr_assert_lt(borders[q], borders[q + 1]);
}

static long double solved(struct qz_kmeans *km, const double *x,
                          const double *w, size_t m, int k, enum qz_solver how)
{
    uint32_t borders[QZ_MAX_CLUSTERS + 1];
    struct err e = ERR_INIT;

    qz_kmeans_points(km, x, w, m);
    cr_assert_eq(qz_kmeans_solve(km, k, how, borders, &e), 0, "%s", e.text);
    check_path(borders, k, m);
    return path_cost(x, w, k, borders);
}

/* Least cost of x[from ..] in k runs, by trying every border. */
static long double brute(const double *x, const double *w, size_t from,
                         size_t m, int k)
{
    long double best = -1;
    size_t i;

    if (k == 1)
        return run_cost(x, w, from, m);
    for (i = from + 1; i + (size_t)k <= m + 1; i++) {
        long double c = run_cost(x, w, from, i) + brute(x, w, i, m, k - 1);

        if (best < 0 || c < best)
            best = c;
    }
    return best;
}

static void all_multisets(struct qz_kmeans *km, const double *value, int n)
{
    int count[6] = { 0 };
    int total, i, k;

    /* Every way to take each of n values 0 to 8 times, at most 8 in all. */
    for (;;) {
        double x[6], w[6];
        size_t m = 0;

        for (i = 0; i < n && count[i] == 8; i++)
            count[i] = 0;
        if (i == n)
            break;
        count[i]++;
        for (total = i = 0; i < n; i++)
            total += count[i];
        if (total > 8)
            continue;
        for (i = 0; i < n; i++)
            if (count[i] > 0) {
                x[m] = value[i];
                w[m++] = count[i];
            }
        for (k = 1; k <= 5 && (size_t)k <= m; k++) {
            long double want = brute(x, w, 0, m, k);
            long double a = solved(km, x, w, m, k, QZ_AUTO);
            long double b = solved(km, x, w, m, k, QZ_LAYERS);

            cr_assert_leq(fabsl(a - want), 1e-13L * (1 + want));
            cr_assert_leq(fabsl(b - want), 1e-13L * (1 + want));
        }
    }
}

Test(kmeans, every_multiset_of_up_to_eight_values)
{
    static const double even[6] = { 0, 1, 2, 3, 4, 5 };
    static const double uneven[6] = { -7, -1, 0, 1, 4, 100 };
    static const double far_off[6] = { 1000000, 1000001, 1000002,
                                       1000003, 1000004, 1000099 };
    struct qz_kmeans *km = fresh();

    all_multisets(km, even, 6);
    all_multisets(km, uneven, 6);
    all_multisets(km, far_off, 6);
    qz_kmeans_free(km);
}

/* O(k m^2) over all borders, with costs around the first point of a run. */
static long double plain(const double *x, const double *w, size_t m, int k)
{
    static long double d[2][401], cost[401][401];
    size_t i, j;
    int q;

    for (j = 0; j < m; j++) {
        long double a = 0, s = 0, q2 = 0;

        for (i = j + 1; i <= m; i++) {
            long double t = x[i - 1] - x[j];

            a += w[i - 1];
            s += w[i - 1] * t;
            q2 += w[i - 1] * t * t;
            cost[j][i] = q2 - s * s / a;
        }
    }
    for (i = 0; i <= m; i++)
        d[0][i] = i == 0 ? 0 : INFINITY;
    for (q = 1; q <= k; q++)
        for (i = 0; i <= m; i++) {
            long double best = INFINITY;

            for (j = 0; j < i; j++)
                if (d[(q - 1) & 1][j] + cost[j][i] < best)
                    best = d[(q - 1) & 1][j] + cost[j][i];
            d[q & 1][i] = best;
        }
    return d[k & 1][m];
}

enum shape { UNIFORM, GRID, FLOATS, CLUMPS, SHAPES };

/* The i-th of numbers with `mant` bits behind the leading one, both signs,
 * 0 in the middle. */
static double small_float(int i, int mant)
{
    int a = abs(i), e = a >> mant;

    if (e == 0)
        return i;
    return (i < 0 ? -1 : 1) *
           ldexp((a & ((1 << mant) - 1)) + (1 << mant), e - 1);
}

/* m distinct ascending points with weights: whole numbers with gaps, without,
 * of floating point with 7 to 10 bits, in clumps. */
static void points(double *x, double *w, size_t m, enum shape shape)
{
    double at = -(double)t_below(&seed, 100000);
    int mant = 7 + (int)t_below(&seed, 4),
        n = 1 + (int)(m / 2 * (1 + t_below(&seed, 2)));
    int key = -n;
    size_t i;

    if (n >> mant > 22)
        mant = 10;
    for (i = 0; i < m; i++) {
        uint32_t r = t_below(&seed, 1000);

        switch (shape) {
        case UNIFORM: at += 1 + t_below(&seed, 1000); break;
        case GRID: at += 1; break;
        case FLOATS:
            key += 1 + (int)t_below(&seed, (uint32_t)(2 * n / (int)m));
            at = small_float(key, mant);
            break;
        case CLUMPS: at += r > 950 ? 1000 : 1 + t_below(&seed, 3); break;
        case SHAPES: break;
        }
        x[i] = at;
        w[i] = shape == GRID ? 1 + t_below(&seed, 2)
                             : 1 + t_below(&seed, 1 + t_below(&seed, 200));
    }
}

Test(kmeans, random_points_against_the_plain_program)
{
    static double x[400], w[400];
    struct qz_kmeans *km = fresh();
    int round;

    for (round = 0; round < 1500; round++) {
        size_t m = 2 + t_below(&seed, round % 10 == 0 ? 300 : 60);
        int k = 1 + (int)t_below(&seed, m < 64 ? (uint32_t)m : 64);
        long double want, a, b;

        points(x, w, m, (enum shape)(round % SHAPES));
        want = plain(x, w, m, k);
        a = solved(km, x, w, m, k, QZ_AUTO);
        b = solved(km, x, w, m, k, QZ_LAYERS);
        cr_assert_leq(a - want, 1e-10L * want,
                      "round %d: m %zu, k %d: %.20Lg, optimum %.20Lg", round, m,
                      k, a, want);
        cr_assert_leq(b - want, 1e-10L * want,
                      "round %d (layers): m %zu, k %d: %.20Lg, optimum %.20Lg",
                      round, m, k, b, want);
    }
    qz_kmeans_free(km);
}

Test(kmeans, both_ways_agree_on_large_inputs)
{
    static double x[3000], w[3000];
    static const int ks[] = { 3, 4, 8, 16, 64, 200, 256 };
    struct qz_kmeans *km = fresh();
    int round;
    size_t i;

    for (round = 0; round < 12; round++)
        for (i = 0; i < sizeof ks / sizeof ks[0]; i++) {
            size_t m = 257 + t_below(&seed, 2700);
            long double a, b;

            points(x, w, m, (enum shape)(round % SHAPES));
            a = solved(km, x, w, m, ks[i], QZ_AUTO);
            b = solved(km, x, w, m, ks[i], QZ_LAYERS);
            cr_assert_leq(fabsl(a - b), 1e-9L * b,
                          "%d: m %zu k %d: %.20Lg, layers %.20Lg", round, m,
                          ks[i], a, b);
        }
    qz_kmeans_free(km);
}

Test(kmeans, certificate_bounds_every_solution_from_below)
{
    static double x[1500], w[1500];
    struct qz_kmeans *km = fresh();
    int round;

    for (round = 0; round < 40; round++) {
        size_t m = 300 + t_below(&seed, 1200);
        int k = 4 + (int)t_below(&seed, 200);
        long double cost, room;
        double lo = 0, hi = 0, price, best = -INFINITY;
        uint32_t c;
        int i;

        points(x, w, m, (enum shape)(round % SHAPES));
        cost = solved(km, x, w, m, k, QZ_AUTO);
        hi = qz_kmeans_cost(km, 0, m) + 1;
        /* Rounding: relative to the squares that make up each cost. */
        room = 1e-9L * cost;
        for (i = 0; i < (int)m; i++)
            room += 1e-16L * (w[i] * x[i]) * x[i];
        for (i = 0; i < 120; i++) {
            double v;

            price = lo + (hi - lo) / 2;
            v = qz_kmeans_priced(km, price, &c) - price * k;
            cr_assert_leq(v, (double)(cost + room),
                          "price %g: bound %.17g above cost %.20Lg", price, v,
                          cost);
            if (v > best)
                best = v;
            if (c > (uint32_t)k)
                lo = price;
            else
                hi = price;
        }
        /* Errors are convex in k, so the best bound is the optimum. */
        cr_assert_geq(best, (double)(cost - room),
                      "m %zu k %d: bound %g, cost %Lg", m, k, best, cost);
    }
    qz_kmeans_free(km);
}

Test(kmeans, error_falls_with_k_and_ends_at_zero)
{
    static double x[200], w[200];
    struct qz_kmeans *km = fresh();
    long double before = INFINITY;
    int k;

    points(x, w, 200, UNIFORM);
    for (k = 1; k <= 200; k++) {
        long double c = solved(km, x, w, 200, k, QZ_AUTO);

        cr_assert_lt(c, before, "k %d", k);
        before = c;
    }
    cr_assert_eq(before, 0);
    qz_kmeans_free(km);
}

Test(kmeans, equal_points_and_extreme_ranges)
{
    /* Neighbours may coincide; one point may be 2^40 away. */
    static double x[600], w[600];
    struct qz_kmeans *km = fresh();
    size_t i;

    for (i = 0; i < 600; i++) {
        x[i] = (double)(i / 3);
        w[i] = 1;
    }
    cr_assert_eq(solved(km, x, w, 600, 200, QZ_AUTO), 0);
    for (i = 0; i < 600; i++)
        x[i] = (double)i;
    x[599] = 1099511627776.0;
    for (i = 2; i <= 256; i *= 2) {
        long double a = solved(km, x, w, 600, (int)i, QZ_AUTO);
        long double want = solved(km, x, w, 599, (int)i - 1, QZ_LAYERS);

        /* The far point takes one cluster and spoils nothing else. */
        cr_assert_leq(fabsl(a - want), 1e-9L * want, "k %zu: %Lg, %Lg", i, a,
                      want);
    }
    qz_kmeans_free(km);
}

Test(kmeans, full_size_at_every_width)
{
    /* 65536 points: the indices of borders reach 65535. */
    static double x[QZ_MAX_POINTS], w[QZ_MAX_POINTS];
    static const int ks[] = { 1, 2, 4, 8, 16, 64, 256 };
    struct qz_kmeans *km = fresh();
    long double before = INFINITY;
    size_t i;

    for (i = 0; i < QZ_MAX_POINTS; i++) {
        x[i] = (double)i;
        w[i] = 1;
    }
    for (i = 0; i < sizeof ks / sizeof ks[0]; i++) {
        long double c = solved(km, x, w, QZ_MAX_POINTS, ks[i], QZ_AUTO);
        long double part = 65536.0L / ks[i];
        /* Equal parts: the variance of 0 .. n-1. */
        long double want = 65536.0L * (part * part - 1) / 12;

        cr_assert_leq(fabsl(c - want), 1e-9L * want, "k %d: %Lg, not %Lg",
                      ks[i], c, want);
        cr_assert_lt(c, before);
        before = c;
    }
    qz_kmeans_free(km);
}

Test(kmeans, same_borders_at_every_simd_level)
{
    static double x[2000], w[2000];
    uint32_t a[QZ_MAX_CLUSTERS + 1], b[QZ_MAX_CLUSTERS + 1];
    struct qz_kmeans *km = fresh();
    struct err e = ERR_INIT;
    int round, k, how, q;

    for (round = 0; round < 60; round++) {
        size_t m = 300 + t_below(&seed, 1700);

        k = 2 + (int)t_below(&seed, 255);
        points(x, w, m, (enum shape)(round % SHAPES));
        for (how = 0; how < 2; how++) {
            qz_kmeans_points(km, x, w, m);
            cpu_mask(0);
            cr_assert_eq(qz_kmeans_solve(km, k, (enum qz_solver)how, a, &e), 0);
            cpu_mask(~0u);
            cr_assert_eq(qz_kmeans_solve(km, k, (enum qz_solver)how, b, &e), 0);
            for (q = 0; q <= k; q++)
                cr_assert_eq(a[q], b[q]);
        }
    }
    qz_kmeans_free(km);
}
