/*
 * One pass at a price per cluster, and the first guess of that price.
 *
 * E[i] = min over j < i of E[j] + cost(j, i) + price, for i = 1 .. m. The
 * queue holds the candidates j that are best somewhere ahead, each from its
 * start up to the next one's start. A later candidate beats an earlier one
 * from some point on and for good (Monge), so that insertion at the end
 * suffices: pop what is beaten at its own start, find where the last one is
 * beaten, append. Nearly every start lies just behind the one before: the
 * first few places there are looked at together.
 */
#include <stdbool.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "quant/kmeans_priv.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define NEAR QZ_POINTS_PAD

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

/* The first of the NEAR places from t on where i wins; NEAR if none. The
 * arrays have room for NEAR more than m; what lies there counts as a loss
 * or not at all. */
typedef uint32_t near_fn(const struct qz_kmeans *km, const struct duel *u,
                         uint32_t t);

static inline uint32_t near_scalar(const struct qz_kmeans *km,
                                   const struct duel *u, uint32_t t)
{
    uint32_t i;

    for (i = 0; i < NEAR && !wins(km, u, t + i); i++)
        ;
    return i;
}

/* Least t in [lo, m] where i wins, none before lo: by leaps, then halves. */
static uint32_t far_win(const struct qz_kmeans *km, const struct duel *u,
                        uint32_t lo, uint32_t m)
{
    uint32_t hi = m, step = NEAR, t;

    while (lo <= hi && hi - lo >= step) {
        t = lo + step;
        if (wins(km, u, t)) {
            hi = t - 1;
            break;
        }
        lo = t + 1;
        step *= 2;
    }
    while (lo <= hi) {
        t = lo + (hi - lo) / 2;
        if (wins(km, u, t))
            hi = t - 1;
        else
            lo = t + 1;
    }
    return lo;
}

static inline void pass(struct qz_kmeans *km, double price, near_fn *near)
{
    const uint32_t m = (uint32_t)km->m;
    uint32_t *cand = km->cand, *start = km->start;
    uint32_t head = 0, tail = 0, i, t, n;
    double *v = km->d0;

    v[0] = 0;
    cand[0] = 0;
    start[0] = 1;
    for (i = 1;; i++) {
        head += head < tail && start[head + 1] <= i;
        km->par[i] = cand[head];
        v[i] = v[cand[head]] + kmeans_cost(km, cand[head], i) + price;
        if (i == m)
            break;
        for (;;) {
            struct duel u = duel_of(km, v, i, cand[tail]);

            t = start[tail] > i ? start[tail] : i + 1;
            n = near(km, &u, t);
            if (n == 0 && tail > head && start[tail] > i) {
                tail--;
                continue;
            }
            t = n < NEAR ? t + n : far_win(km, &u, t + n, m);
            if (t <= m) {
                tail++;
                cand[tail] = i;
                start[tail] = t;
            }
            break;
        }
    }
}

static void pass_scalar(struct qz_kmeans *km, double price)
{
    pass(km, price, near_scalar);
}

#if defined(__x86_64__)
/* The same with all places at once, each by the operations of wins(). Two in
 * five end at the first one, which alone is known sooner. */
ATTR_TARGET("avx2,bmi")
static inline uint32_t near_avx2(const struct qz_kmeans *km,
                                 const struct duel *u, uint32_t t)
{
    const __m256d d = _mm256_set1_pd(u->d);
    const __m256d si = _mm256_set1_pd(u->si), ai = _mm256_set1_pd(u->ai);
    const __m256d sc = _mm256_set1_pd(u->sc), ac = _mm256_set1_pd(u->ac);
    unsigned won = 1u << NEAR;
    int h;

    if (wins(km, u, t))
        return 0;
    for (h = 0; h < NEAR; h += 4) {
        __m256d s = _mm256_loadu_pd(km->s + t + h);
        __m256d a = _mm256_loadu_pd(km->a + t + h);
        __m256d p = _mm256_sub_pd(s, si), wi = _mm256_sub_pd(a, ai);
        __m256d q = _mm256_sub_pd(s, sc), wc = _mm256_sub_pd(a, ac);

        p = _mm256_mul_pd(_mm256_mul_pd(p, p), wc);
        q = _mm256_mul_pd(_mm256_mul_pd(q, q), wi);
        wi = _mm256_mul_pd(_mm256_mul_pd(d, wi), wc);
        q = _mm256_cmp_pd(_mm256_add_pd(wi, p), q, _CMP_GT_OQ);
        won |= (unsigned)_mm256_movemask_pd(q) << h;
    }
    return _tzcnt_u32(won);
}

ATTR_TARGET("avx2,bmi")
static void pass_avx2(struct qz_kmeans *km, double price)
{
    pass(km, price, near_avx2);
}
#endif

uint32_t kmeans_pass(struct qz_kmeans *km, double price)
{
    uint32_t count, i;

#if defined(__x86_64__)
    if ((cpu_features() & CPU_AVX2) != 0)
        pass_avx2(km, price);
    else
#endif
        pass_scalar(km, price);
    for (count = 0, i = (uint32_t)km->m; i > 0; i = km->par[i])
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
     * of points. The factor makes up for few levels and for few points:
     * measured on groups of 8 x 128 to 8 x 3072 Gaussian, Laplace and
     * Student weights; a bad guess costs passes, never exactness. */
    enum { CHUNKS = 96 };
    double factor = k <= 4 ? 0.56 : k <= 8 ? 0.75 : k <= 64 ? 0.87 : 0.75;
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
    return factor * sum * sum * sum / ((double)k * k * k * 6);
}
