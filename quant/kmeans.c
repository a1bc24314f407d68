/*
 * Exact k-means on the line: prefix sums, choice of the solver, windows.
 *
 * With prefix sums A (weight), S (weight * x) and Q (weight * x * x) the
 * cost of the points j .. i-1 is Q - S^2/A of the differences. Q needs more
 * than 53 bits, so it is kept as two exact doubles, high and low: each
 * difference is rounded once, relative to the run itself. A few far points
 * therefore do not drown the cost of all the others, which they would in
 * the usual form that maximises the sum of S^2/A.
 *
 * Cost has the Monge property (Wu 1991): the best last border is monotone,
 * which divide and conquer uses (kmeans_layers.c); and under a price per
 * cluster one pass with a queue of candidates finds the best partition into
 * any number of clusters (Aggarwal, Schieber, Tokuyama 1994;
 * kmeans_priced.c).
 *
 * A pass gives an optimal path B for its own number of clusters c, rarely
 * for the k asked. If c > k, with d = c - k, some optimal path P for k has
 * B[q] <= P[q] <= B[q+d] for every q: where P leaves that band, exchanging
 * the stretch with B gives two legal paths of the same lengths that are
 * together no dearer (Monge at both ends of the stretch), hence both are
 * optimal. The mirror holds for c < k. So the layered program needs about
 * d * m states instead of k * m, whatever ties there are.
 *
 * Only + - * / of doubles decide, in a fixed order: the same borders on
 * every machine.
 */
#include "quant/kmeans.h"

#include <float.h>
#include <stdbool.h>

#include "converter/base/mem.h"
#include "quant/kmeans_priv.h"

#define MAX_X 1099511627776.0 /* 2^40 */
/* Passes before the windows are taken as they are. */
#define MAX_PASSES 12
/* A path this near to k clusters costs less as windows than a new pass. */
#define NEAR_ENOUGH 2

struct qz_kmeans *qz_kmeans_new(struct err *e)
{
    struct qz_kmeans *km = mem_zalloc(1, sizeof *km, e);
    size_t n = QZ_MAX_POINTS + 1 + QZ_POINTS_PAD;
    double **rows[6];
    int i, bad = 0;

    if (km == NULL)
        return NULL;
    rows[0] = &km->a;
    rows[1] = &km->s;
    rows[2] = &km->h;
    rows[3] = &km->l;
    rows[4] = &km->d0;
    rows[5] = &km->d1;
    for (i = 0; i < 6 && !bad; i++) {
        *rows[i] = mem_alloc_aligned(n, sizeof(double), e);
        bad = *rows[i] == NULL;
    }
    if (bad || (km->par = mem_alloc(n, sizeof(uint32_t), e)) == NULL ||
        (km->cand = mem_alloc(n, sizeof(uint32_t), e)) == NULL ||
        (km->start = mem_alloc(n, sizeof(uint32_t), e)) == NULL) {
        qz_kmeans_free(km);
        return NULL;
    }
    return km;
}

void qz_kmeans_free(struct qz_kmeans *km)
{
    if (km == NULL)
        return;
    mem_free(km->a);
    mem_free(km->s);
    mem_free(km->h);
    mem_free(km->l);
    mem_free(km->d0);
    mem_free(km->d1);
    mem_free(km->par);
    mem_free(km->cand);
    mem_free(km->start);
    mem_free(km->back);
    mem_free(km);
}

/* Nearest whole number of a double below 2^51, by the rounding of a sum. */
static inline double whole(double v)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */

    return (v + magic) - magic;
}

void qz_kmeans_points(struct qz_kmeans *km, const double *x, const double *w,
                      size_t m)
{
    double top = x[m - 1] > -x[0] ? x[m - 1] : -x[0];
    double up = 1, down, a = 0, s = 0, h = 0, l = 0;
    size_t i;

    BUG_UNLESS(m >= 1 && m <= QZ_MAX_POINTS && top <= MAX_X);
    /* With x = xh * up + xl and mid = xh * xl split once more, x * x is
     * h * up^2 + l in whole parts below 1.5 up^2; up^2 < 4 top. */
    while (up * up < top)
        up *= 2;
    down = 1 / up;
    km->m = m;
    km->unit = up * up;
    km->a[0] = km->s[0] = km->h[0] = km->l[0] = 0;
    for (i = 0; i < m; i++) {
        double xh = whole(x[i] * down), xl = x[i] - xh * up;
        double mid = xh * xl, mh = whole(mid * (2 * down));

        a += w[i];
        s += w[i] * x[i];
        h += w[i] * (xh * xh + mh);
        l += w[i] * ((mid - mh * (up / 2)) * (2 * up) + xl * xl);
        km->a[i + 1] = a;
        km->s[i + 1] = s;
        km->h[i + 1] = h;
        km->l[i + 1] = l;
    }
    for (i = m + 1; i <= m + QZ_POINTS_PAD; i++) {
        km->a[i] = a;
        km->s[i] = s;
        km->h[i] = h;
        km->l[i] = l;
    }
}

double qz_kmeans_cost(const struct qz_kmeans *km, size_t j, size_t i)
{
    double c = kmeans_cost(km, j, i);

    return c > 0 ? c : 0;
}

double qz_kmeans_sum(const struct qz_kmeans *km, size_t j, size_t i)
{
    return km->s[i] - km->s[j];
}

double qz_kmeans_weight(const struct qz_kmeans *km, size_t j, size_t i)
{
    return km->a[i] - km->a[j];
}

double qz_kmeans_priced(struct qz_kmeans *km, double price, uint32_t *clusters)
{
    *clusters = kmeans_pass(km, price);
    return km->d0[km->m];
}

void qz_kmeans_info(const struct qz_kmeans *km, struct qz_solve_info *info)
{
    *info = km->info;
}

/* No borders known: border q has q points before it and k - q after. */
static void open_windows(const struct qz_kmeans *km, int k,
                         struct qz_window *win)
{
    uint32_t q, m = (uint32_t)km->m, n = (uint32_t)k;

    for (q = 0; q <= n; q++) {
        win[q].lo = q;
        win[q].hi = m - (n - q);
    }
    win[0].hi = 0;
    win[n].lo = m;
}

/* Narrows to the band around the path b of c clusters that the last pass
 * left in `par`; b is read from its end. */
static void path_windows(struct qz_kmeans *km, int k, uint32_t c,
                         struct qz_window *win)
{
    uint32_t n = (uint32_t)k, q, i = (uint32_t)km->m;
    uint32_t d = c > n ? c - n : n - c;

    open_windows(km, k, win);
    for (q = c;; q--) { /* i = b[q] */
        if (c >= n) {
            if (q <= n && win[q].lo < i)
                win[q].lo = i;
            if (q >= d && win[q - d].hi > i)
                win[q - d].hi = i;
        } else {
            if (win[q].hi > i)
                win[q].hi = i;
            if (win[q + d].lo < i)
                win[q + d].lo = i;
        }
        if (q == 0)
            break;
        i = km->par[i];
    }
}

/* The search for the price: count falls as the price rises, about with its
 * cube root, so that count is near linear in price^(-1/3). */
struct bracket {
    double lo, hi;   /* prices that gave more and fewer clusters than k */
    double nlo, nhi; /* how many */
};

static double next_price(struct bracket *b, double price, uint32_t count, int k)
{
    double c = count, r = c / k, f;

    if (c > k) {
        b->lo = price;
        b->nlo = c;
    } else {
        b->hi = price;
        b->nhi = c;
    }
    if (b->lo > 0 && b->hi > 0) {
        double xl = 1 / kmeans_cbrt(b->lo), xh = 1 / kmeans_cbrt(b->hi);

        f = xh + (xl - xh) * ((k - b->nhi) / (b->nlo - b->nhi));
        return 1 / (f * f * f);
    }
    return price * (r * r * r) * (c > k ? 1.02 : 0.98);
}

/* Windows around k from passes at a few prices. False: no pass helped. */
static bool priced_windows(struct qz_kmeans *km, int k, struct qz_window *win)
{
    struct bracket b = { 0, 0, 0, 0 };
    double price = kmeans_guess(km, k);
    uint32_t n = (uint32_t)k, c, d, best = UINT32_MAX;

    while (km->info.passes < MAX_PASSES && price > 0 && price < DBL_MAX &&
           best > NEAR_ENOUGH) {
        c = kmeans_pass(km, price);
        d = c > n ? c - n : n - c;
        km->info.passes++;
        if (d < best) {
            best = d;
            path_windows(km, k, c, win);
        }
        if (d != 0)
            price = next_price(&b, price, c, k);
        /* A tie: no price yields k. */
        if (b.lo > 0 && b.hi > 0 && !(b.hi - b.lo > 1e-9 * b.hi))
            break;
    }
    km->info.distance = best == UINT32_MAX ? -1 : (int)best;
    return best != UINT32_MAX;
}

int qz_kmeans_solve(struct qz_kmeans *km, int k, enum qz_solver how,
                    uint32_t *borders, struct err *e)
{
    struct qz_window win[QZ_MAX_CLUSTERS + 1];
    const struct qz_solve_info none = { 0, -1, 0 };
    uint32_t i;

    BUG_UNLESS(k >= 1 && k <= QZ_MAX_CLUSTERS && (size_t)k <= km->m);
    km->info = none;
    if ((size_t)k == km->m) {
        for (i = 0; i <= (uint32_t)k; i++)
            borders[i] = i;
        return 0;
    }
    /* Two clusters: the layers are two scans. */
    if (how == QZ_LAYERS || k <= 2 || !priced_windows(km, k, win))
        open_windows(km, k, win);
    return kmeans_layers(km, k, win, borders, e);
}
