/*
 * Widths under a budget against every choice there is.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "converter/base/mem.h"
#include "quant/allocate.h"
#include "t_rand.h"

static uint64_t seed = 41;

/* The least damage within the budget; infinity if there is none. */
static double exhaustive(const struct qz_choice *c, size_t n, uint64_t budget)
{
    double best = INFINITY;
    int o;

    if (n == 0)
        return 0;
    for (o = 0; o < c->n; o++)
        if (c->size[o] <= budget) {
            double d =
                c->damage[o] + exhaustive(c + 1, n - 1, budget - c->size[o]);

            best = d < best ? d : best;
        }
    return best;
}

static void sums(const struct qz_choice *c, size_t n, uint64_t *size,
                 double *damage)
{
    size_t i;

    *size = 0;
    *damage = 0;
    for (i = 0; i < n; i++) {
        *size += c[i].size[c[i].chosen];
        *damage += c[i].damage[c[i].chosen];
    }
}

/* Sizes below the number of units are not rounded: the result is exact. */
Test(allocate, the_optimum_of_small_instances)
{
    int round, refused = 0;

    for (round = 0; round < 3000; round++) {
        struct qz_choice c[6];
        size_t n = 1 + t_below(&seed, 6), i;
        uint64_t budget = 0, size;
        double best, damage, bound;
        struct err e = ERR_INIT;
        int o;

        for (i = 0; i < n; i++) {
            c[i].n = 1 + (int)t_below(&seed, 5);
            for (o = 0; o < c[i].n; o++) {
                c[i].size[o] = t_below(&seed, 2000);
                c[i].damage[o] = round % 2
                                     ? (double)t_below(&seed, 6)
                                     : (double)t_below(&seed, 100000) / 977;
            }
            budget += t_below(&seed, 2400);
        }
        best = exhaustive(c, n, budget);
        if (!(best < INFINITY)) {
            cr_assert_eq(qz_allocate(c, n, budget, NULL, &e), -1);
            cr_assert_eq(e.code, ERR_INPUT);
            refused++;
            continue;
        }
        cr_assert_eq(qz_allocate(c, n, budget, &bound, &e), 0, "%s", e.text);
        sums(c, n, &size, &damage);
        cr_assert_leq(size, budget);
        cr_assert_leq(fabs(damage - best), 1e-9 * best, "round %d: %g, %g",
                      round, damage, best);
        cr_assert_leq(bound, best * (1 + 1e-9) + 1e-9);
    }
    cr_assert_gt(refused, 50);
}

/* As models have them: widths 4, 6, 8 of 200 tensors, damage by 6 dB a bit. */
Test(allocate, close_to_the_bound_where_there_are_many)
{
    static const int widths[] = { 4, 6, 8 };
    static struct qz_choice c[200];
    struct err e = ERR_INIT;
    uint64_t all = 0, size, uniform = 0;
    double bound, damage, plain = 0;
    size_t i;
    int o;

    for (i = 0; i < 200; i++) {
        uint64_t weights = 100000 * (uint64_t)(1 + t_below(&seed, 40));
        double a = exp((double)t_below(&seed, 600) / 100);

        all += weights;
        c[i].n = 3;
        for (o = 0; o < 3; o++) {
            c[i].size[o] = weights * (uint64_t)widths[o];
            c[i].damage[o] = a * pow(4, -widths[o]);
        }
        uniform += c[i].size[0];
        plain += c[i].damage[0];
    }
    cr_assert_eq(qz_allocate(c, 200, all * 9 / 2, &bound, &e), 0);
    sums(c, 200, &size, &damage);
    cr_assert_leq(size, all * 9 / 2);
    cr_assert_gt(size, all * 9 / 2 * 99 / 100);
    cr_assert_leq(damage, bound * 1.01);
    cr_assert_lt(damage, 0.5 * plain);
    /* Exactly the smallest, and everything. */
    cr_assert_eq(qz_allocate(c, 200, uniform, NULL, &e), 0);
    sums(c, 200, &size, &damage);
    cr_assert_eq(size, uniform);
    cr_assert_eq(qz_allocate(c, 200, all * 9, NULL, &e), 0);
    sums(c, 200, &size, &damage);
    cr_assert_eq(size, all * 8);
    cr_assert_eq(qz_allocate(c, 200, uniform - 1, NULL, &e), -1);
    cr_assert_not_null(strstr(e.text, "smallest widths"), "%s", e.text);
}

Test(allocate, every_failed_allocation_is_reported)
{
    struct qz_choice c[2] = { { 2, { 10, 20 }, { 5, 1 }, 0 },
                              { 2, { 10, 20 }, { 5, 2 }, 0 } };
    long n;

    for (n = 1;; n++) {
        struct err e = ERR_INIT;
        int rc;

        mem_fail_at(n, false);
        rc = qz_allocate(c, 2, 30, NULL, &e);
        mem_fail_at(-1, false);
        if (rc == 0)
            break;
        cr_assert_eq(e.code, ERR_NOMEM);
    }
    cr_assert_eq(c[0].chosen, 1);
    cr_assert_eq(c[1].chosen, 0);
}
