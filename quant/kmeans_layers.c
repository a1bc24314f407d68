/*
 * Layers of a divide-and-conquer dynamic program.
 *
 * D[q][i] is the least cost of the first i points in q runs; the best last
 * border is monotone in i, so the middle state of a range halves the
 * candidates of both sides. Each layer covers only its window. The lowest
 * of equally good borders wins, at every SIMD level.
 */
#include <stdbool.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "quant/kmeans_priv.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

struct layer {
    const struct qz_kmeans *km;
    const double *prev;
    double *cur;
    uint16_t *back; /* of state first */
    uint32_t first;
    bool avx2;
};

static uint32_t scan(const struct qz_kmeans *km, const double *prev, uint32_t i,
                     uint32_t jlo, uint32_t jhi, double *value)
{
    double best = prev[jlo] + kmeans_cost(km, jlo, i);
    uint32_t j, at = jlo;

    for (j = jlo + 1; j <= jhi; j++) {
        double v = prev[j] + kmeans_cost(km, j, i);

        if (v < best) {
            best = v;
            at = j;
        }
    }
    *value = best;
    return at;
}

#if defined(__x86_64__)
/* Four borders at a time, the operations of kmeans_cost() in their order.
 * Each lane keeps its first minimum; the lowest border of the least lanes
 * is the first minimum of all. */
ATTR_TARGET("avx2")
static uint32_t scan_avx2(const struct qz_kmeans *km, const double *prev,
                          uint32_t i, uint32_t jlo, uint32_t jhi, double *value)
{
    const __m256d hi = _mm256_set1_pd(km->h[i]), li = _mm256_set1_pd(km->l[i]);
    const __m256d si = _mm256_set1_pd(km->s[i]), ai = _mm256_set1_pd(km->a[i]);
    const __m256d unit = _mm256_set1_pd(km->unit);
    const __m256d four = _mm256_set1_pd(4);
    __m256d best = _mm256_set1_pd(0), at = best, pos;
    double vals[4], ats[4];
    uint32_t j = jlo, tail;
    int lane;

    if (jhi - jlo < 4)
        return scan(km, prev, i, jlo, jhi, value);
    pos = _mm256_add_pd(_mm256_set1_pd(jlo), _mm256_setr_pd(0, 1, 2, 3));
    /* The last step steps back so as to end at jhi: seeing a border twice
     * changes nothing. */
    for (tail = jhi - 3;; j += 4) {
        __m256d q, s, v, less;

        if (j > tail) {
            j = tail;
            pos = _mm256_add_pd(_mm256_set1_pd(j), _mm256_setr_pd(0, 1, 2, 3));
        }
        q = _mm256_mul_pd(_mm256_sub_pd(hi, _mm256_loadu_pd(km->h + j)), unit);
        q = _mm256_add_pd(q, _mm256_sub_pd(li, _mm256_loadu_pd(km->l + j)));
        s = _mm256_sub_pd(si, _mm256_loadu_pd(km->s + j));
        s = _mm256_div_pd(_mm256_mul_pd(s, s),
                          _mm256_sub_pd(ai, _mm256_loadu_pd(km->a + j)));
        v = _mm256_add_pd(_mm256_loadu_pd(prev + j), _mm256_sub_pd(q, s));
        if (j == jlo) {
            best = v;
            at = pos;
        } else {
            less = _mm256_cmp_pd(v, best, _CMP_LT_OQ);
            best = _mm256_blendv_pd(best, v, less);
            at = _mm256_blendv_pd(at, pos, less);
        }
        if (j == tail)
            break;
        pos = _mm256_add_pd(pos, four);
    }
    _mm256_storeu_pd(vals, best);
    _mm256_storeu_pd(ats, at);
    for (lane = 1; lane < 4; lane++)
        if (vals[lane] < vals[0] ||
            (vals[lane] <= vals[0] && ats[lane] < ats[0])) {
            vals[0] = vals[lane];
            ats[0] = ats[lane];
        }
    *value = vals[0];
    return (uint32_t)ats[0];
}
#endif

static uint32_t best_border(const struct layer *ly, uint32_t i, uint32_t jlo,
                            uint32_t jhi)
{
#if defined(__x86_64__)
    if (ly->avx2)
        return scan_avx2(ly->km, ly->prev, i, jlo, jhi, &ly->cur[i]);
#endif
    return scan(ly->km, ly->prev, i, jlo, jhi, &ly->cur[i]);
}

/* States lo .. hi, whose best borders lie in jlo .. jhi. The depth is the
 * logarithm of the number of states. */
static void fill(const struct layer *ly, uint32_t lo, uint32_t hi, uint32_t jlo,
                 uint32_t jhi)
{
    while (lo <= hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        uint32_t top = jhi < mid - 1 ? jhi : mid - 1;
        uint32_t j = best_border(ly, mid, jlo, top);

        ly->back[mid - ly->first] = (uint16_t)j;
        if (mid > lo)
            fill(ly, lo, mid - 1, jlo, j);
        lo = mid + 1;
        jlo = j;
    }
}

static int room_for_back(struct qz_kmeans *km, uint64_t states, struct err *e)
{
    uint16_t *p;

    if (states <= km->back_cap)
        return 0;
    p = mem_realloc(km->back, (size_t)states, sizeof *p, e);
    if (p == NULL)
        return -1;
    km->back = p;
    km->back_cap = (size_t)states;
    return 0;
}

int kmeans_layers(struct qz_kmeans *km, int k, const struct qz_window *win,
                  uint32_t *borders, struct err *e)
{
    struct layer ly = { 0 };
    double *prev = km->d0, *cur = km->d1, *swap;
    uint64_t states = 0;
    uint16_t *back;
    int q;

    for (q = 1; q <= k; q++)
        states += win[q].hi - win[q].lo + 1;
    if (room_for_back(km, states, e))
        return -1;
    km->info.states = states;
    ly.km = km;
    ly.avx2 = (cpu_features() & CPU_AVX2) != 0;
    back = km->back;
    prev[0] = 0;
    for (q = 1; q <= k; q++) {
        ly.prev = prev;
        ly.cur = cur;
        ly.back = back;
        ly.first = win[q].lo;
        fill(&ly, win[q].lo, win[q].hi, win[q - 1].lo, win[q - 1].hi);
        back += win[q].hi - win[q].lo + 1;
        swap = prev;
        prev = cur;
        cur = swap;
    }
    borders[k] = win[k].hi;
    for (q = k; q > 0; q--) {
        back -= win[q].hi - win[q].lo + 1;
        borders[q - 1] = back[borders[q] - win[q].lo];
    }
    return 0;
}
