/*
 * One pass at a price per cluster, and the first guess of that price.
 *
 * E[i] = min over j < i of E[j] + cost(j, i) + price, for i = 1 .. m. The
 * queue holds the candidates j that are best somewhere ahead, each from its
 * start up to the next one's start. A later candidate beats an earlier one
 * from some point on and for good (Monge), so that insertion at the end
 * suffices: pop what is beaten at its own start, find where the last one is
 * beaten, append. Nearly every start lies just behind the one before, so the
 * search gallops from there.
 */
#include <stdbool.h>
#include <string.h>

#include "quant/kmeans_priv.h"

/* Candidate i against the earlier candidate c: what is the same at each t. */
struct duel {
    double d, si, ai, sc, ac;
};

static inline struct duel duel_of(const struct qz_kmeans *km, const double *v,
                                  uint32_t i, uint32_t c)
{
    struct duel u;

    u.si = km->s[i];
    u.ai = km->a[i];
    u.sc = km->s[c];
    u.ac = km->a[c];
    u.d = (v[c] - v[i]) +
          ((km->h[i] - km->h[c]) * km->unit + (km->l[i] - km->l[c]));
    return u;
}

/* Is i better at t: the comparison of E + cost, times both weights. */
static inline bool wins(const struct qz_kmeans *km, const struct duel *u,
                        uint32_t t)
{
    double p = km->s[t] - u->si, wi = km->a[t] - u->ai;
    double q = km->s[t] - u->sc, wc = km->a[t] - u->ac;

    return u->d * wi * wc + p * p * wc > q * q * wi;
}

/* Least t in [lo, hi] where i wins; hi + 1 if nowhere. */
static uint32_t first_win(const struct qz_kmeans *km, const struct duel *u,
                          uint32_t lo, uint32_t hi, uint32_t guess)
{
    uint32_t step = 1;

    if (guess < lo)
        guess = lo;
    if (guess > hi)
        guess = hi;
    /* Keep: loses below lo, wins at hi + 1 (or there is nowhere). */
    if (wins(km, u, guess)) {
        hi = guess - 1;
        while (lo <= hi && hi - lo >= step) {
            guess = hi - (step - 1);
            if (!wins(km, u, guess)) {
                lo = guess + 1;
                break;
            }
            hi = guess - 1;
            step *= 2;
        }
    } else {
        lo = guess + 1;
        while (lo <= hi && hi - lo >= step) {
            guess = lo + (step - 1);
            if (wins(km, u, guess)) {
                hi = guess - 1;
                break;
            }
            lo = guess + 1;
            step *= 2;
        }
    }
    while (lo <= hi) {
        guess = lo + (hi - lo) / 2;
        if (wins(km, u, guess))
            hi = guess - 1;
        else
            lo = guess + 1;
    }
    return lo;
}

uint32_t kmeans_pass(struct qz_kmeans *km, double price)
{
    const uint32_t m = (uint32_t)km->m;
    uint32_t *cand = km->cand, *start = km->start;
    uint32_t head = 0, tail = 0, i, t, guess = 1, count;
    double *v = km->d0;

    v[0] = 0;
    cand[0] = 0;
    start[0] = 1;
    for (i = 1;; i++) {
        while (head < tail && start[head + 1] <= i)
            head++;
        km->par[i] = cand[head];
        v[i] = v[cand[head]] + kmeans_cost(km, cand[head], i) + price;
        if (i == m)
            break;
        for (;;) {
            struct duel u = duel_of(km, v, i, cand[tail]);
            uint32_t s = start[tail] > i ? start[tail] : i + 1;

            if (tail > head && start[tail] > i && wins(km, &u, s)) {
                tail--;
                continue;
            }
            t = first_win(km, &u, s, m, guess + 1);
            if (t <= m) {
                tail++;
                cand[tail] = i;
                start[tail] = guess = t;
            }
            break;
        }
    }
    for (count = 0, i = m; i > 0; i = km->par[i])
        count++;
    return count;
}

double kmeans_cbrt(double x)
{
    uint64_t bits;
    double y;
    int i;

    /* A third of the exponent, then Newton's step until nothing moves. */
    memcpy(&bits, &x, sizeof bits);
    bits = bits / 3 + UINT64_C(0x2a9f7893782da1ce);
    memcpy(&y, &bits, sizeof y);
    for (i = 0; i < 3; i++)
        y = (2 * y + x / (y * y)) / 3;
    return y;
}

double kmeans_guess(const struct qz_kmeans *km, int k)
{
    /* Panter and Dite: the error of the best k levels tends to
     * (integral of density^(1/3))^3 / (12 k^2), and the price of a level is
     * its derivative, 2/k of it. The density is taken constant over chunks
     * of points. */
    enum { CHUNKS = 96 };
    size_t m = km->m, j = 0, i, c, n = m < CHUNKS ? m : CHUNKS;
    double sum = 0, x0 = km->s[1] / km->a[1];

    for (c = 1; c <= n; c++) {
        double x1, w;

        i = m * c / n;
        x1 = (km->s[i] - km->s[i - 1]) / (km->a[i] - km->a[i - 1]);
        w = (km->a[i] - km->a[j]) * (x1 - x0) * (x1 - x0);
        if (w > 0)
            sum += kmeans_cbrt(w);
        x0 = x1;
        j = i;
    }
    return sum * sum * sum / ((double)k * k * k * 6);
}
