/*
 * Two ways: steps along the lower convex hulls of the options, the steepest
 * first, which end at the optimum for their own size; and a dynamic program
 * over units of the budget, which also sees options off the hull.
 */
#include "quant/allocate.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "converter/base/mem.h"

#define UNITS 65536

/* The next point of the lower hull behind option `at`: the steepest fall of
 * damage; -1: none. */
static int next_on_hull(const struct qz_choice *c, int at, double *slope)
{
    int best = -1, i;

    *slope = 0;
    for (i = 0; i < c->n; i++) {
        double s;

        if (c->size[i] <= c->size[at] || !(c->damage[i] < c->damage[at]))
            continue;
        s = (c->damage[at] - c->damage[i]) / (double)(c->size[i] - c->size[at]);
        if (s > *slope ||
            (best >= 0 && !(s < *slope) && c->size[i] > c->size[best])) {
            *slope = s;
            best = i;
        }
    }
    return best;
}

/* Least size, and among those least damage. */
static int smallest(const struct qz_choice *c)
{
    int best = 0, i;

    for (i = 1; i < c->n; i++)
        if (c->size[i] < c->size[best] ||
            (c->size[i] == c->size[best] && c->damage[i] < c->damage[best]))
            best = i;
    return best;
}

struct sum {
    uint64_t size;
    double damage;
};

static struct sum sum_of(const struct qz_choice *c, size_t n, const int *chosen)
{
    struct sum s = { 0, 0 };
    size_t i;

    for (i = 0; i < n; i++) {
        s.size += c[i].size[chosen[i]];
        s.damage += c[i].damage[chosen[i]];
    }
    return s;
}

/* Steps while the steepest fits; returns the slope where it did not. */
static double steps(const struct qz_choice *c, size_t n, uint64_t budget,
                    int *chosen)
{
    struct sum s;
    double top, slope;
    size_t i, at;
    int to, next;

    for (i = 0; i < n; i++)
        chosen[i] = smallest(&c[i]);
    s = sum_of(c, n, chosen);
    for (;;) {
        top = 0;
        at = n;
        next = -1;
        for (i = 0; i < n; i++) {
            to = next_on_hull(&c[i], chosen[i], &slope);
            if (to >= 0 && slope > top) {
                top = slope;
                at = i;
                next = to;
            }
        }
        if (at == n)
            return 0;
        s.size += c[at].size[next] - c[at].size[chosen[at]];
        if (s.size > budget)
            return top;
        chosen[at] = next;
    }
}

/* min over options of damage + price * size, less price * budget. */
static double lower_bound(const struct qz_choice *c, size_t n, uint64_t budget,
                          double price)
{
    double sum = -price * (double)budget;
    size_t i;
    int o;

    for (i = 0; i < n; i++) {
        double least = INFINITY;

        for (o = 0; o < c[i].n; o++)
            least = fmin(least, c[i].damage[o] + price * (double)c[i].size[o]);
        sum += least;
    }
    return sum;
}

/* best[u]: least damage of the tensors so far in u units. */
static int program(const struct qz_choice *c, size_t n, uint64_t budget,
                   int *chosen, struct err *e)
{
    uint64_t unit = budget / UNITS + 1, units = budget / unit, u;
    size_t row = (size_t)units + 1, i;
    double *best = mem_alloc(row, sizeof *best, e), *next;
    uint8_t *back = mem_alloc(row, n, e);
    int o;

    next = mem_alloc(row, sizeof *next, e);
    if (best == NULL || next == NULL || back == NULL) {
        mem_free(best);
        mem_free(next);
        mem_free(back);
        return -1;
    }
    for (u = 0; u <= units; u++)
        best[u] = 0;
    for (i = 0; i < n; i++) {
        double *swap;

        for (u = 0; u <= units; u++) {
            next[u] = INFINITY;
            back[i * row + u] = 0;
        }
        for (o = 0; o < c[i].n; o++) {
            uint64_t s = (c[i].size[o] + unit - 1) / unit;

            for (u = s; u <= units; u++)
                if (best[u - s] + c[i].damage[o] < next[u]) {
                    next[u] = best[u - s] + c[i].damage[o];
                    back[i * row + u] = (uint8_t)o;
                }
        }
        swap = best;
        best = next;
        next = swap;
    }
    u = units;
    o = best[u] < INFINITY;
    for (i = n; o && i-- > 0;) {
        chosen[i] = back[i * row + u];
        u -= (c[i].size[chosen[i]] + unit - 1) / unit;
    }
    mem_free(best);
    mem_free(next);
    mem_free(back);
    return o ? 0 : 1;
}

static bool better(struct sum a, struct sum b)
{
    return a.damage < b.damage || (!(a.damage > b.damage) && a.size < b.size);
}

int qz_allocate(struct qz_choice *c, size_t n, uint64_t budget, double *bound,
                struct err *e)
{
    int *a = mem_alloc(n, sizeof *a, e), *b = mem_alloc(n, sizeof *b, e);
    struct sum s, t;
    double price;
    size_t i;
    int rc = -1;

    if (a == NULL || b == NULL)
        goto out;
    price = steps(c, n, budget, a);
    s = sum_of(c, n, a);
    if (s.size > budget) {
        err_set(e, ERR_INPUT,
                "the smallest widths need %" PRIu64 " bits, the budget has "
                "%" PRIu64,
                s.size, budget);
        goto out;
    }
    if (bound != NULL)
        *bound = lower_bound(c, n, budget, price);
    rc = program(c, n, budget, b, e);
    if (rc < 0)
        goto out;
    if (rc == 0) {
        t = sum_of(c, n, b);
        if (t.size <= budget && better(t, s))
            memcpy(a, b, n * sizeof *a);
    }
    for (i = 0; i < n; i++)
        c[i].chosen = a[i];
    rc = 0;
out:
    mem_free(a);
    mem_free(b);
    return rc;
}
