/*
 * Layers of a divide-and-conquer dynamic program.
 *
 * D[q][i] is the least cost of the first i points in q runs; the best last
 * border is monotone in i, so the middle state of a range halves the
 * candidates of both sides. Each layer covers only its window. The lowest
 * of equally good borders wins, at every SIMD level.
 */
#include <float.h>

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
};

static inline uint32_t scan_scalar(const struct layer *ly, uint32_t i,
                                   uint32_t jlo, uint32_t jhi)
{
    double best = ly->prev[jlo] + kmeans_cost(ly->km, jlo, i);
    uint32_t j, at = jlo;

    for (j = jlo + 1; j <= jhi; j++) {
        double v = ly->prev[j] + kmeans_cost(ly->km, j, i);

        if (v < best) {
            best = v;
            at = j;
        }
    }
    ly->cur[i] = best;
    return at;
}

/* States lo .. hi, whose best borders lie in jlo .. jhi. The depth is the
 * logarithm of the number of states. */
static void fill_scalar(const struct layer *ly, uint32_t lo, uint32_t hi,
                        uint32_t jlo, uint32_t jhi)
{
    while (lo <= hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        uint32_t top = jhi < mid - 1 ? jhi : mid - 1;
        uint32_t j = scan_scalar(ly, mid, jlo, top);

        ly->back[mid - ly->first] = (uint16_t)j;
        if (mid > lo)
            fill_scalar(ly, lo, mid - 1, jlo, j);
        lo = mid + 1;
        jlo = j;
    }
}

#if defined(__x86_64__)
/* Four borders at a time, the operations of kmeans_cost() in their order.
 * Each lane keeps its first minimum; the lowest border of the least lanes
 * is the first minimum of all. Places past jhi are read and masked: they
 * exist, as the arrays have QZ_POINTS_PAD more elements than points. */
ATTR_TARGET("avx2,bmi")
static inline uint32_t scan_avx2(const struct layer *ly, uint32_t i,
                                 uint32_t jlo, uint32_t jhi)
{
    const struct qz_kmeans *km = ly->km;
    const __m256d hi = _mm256_set1_pd(km->h[i]), li = _mm256_set1_pd(km->l[i]);
    const __m256d si = _mm256_set1_pd(km->s[i]), ai = _mm256_set1_pd(km->a[i]);
    const __m256d unit = _mm256_set1_pd(km->unit);
    const __m256d none = _mm256_set1_pd(DBL_MAX);
    const __m256i last = _mm256_set1_epi64x(jhi), four = _mm256_set1_epi64x(4);
    __m256d best = none, other;
    __m256i pos, at;
    uint32_t j;

    pos = _mm256_add_epi64(_mm256_set1_epi64x(jlo),
                           _mm256_setr_epi64x(0, 1, 2, 3));
    at = pos;
    for (j = jlo; j <= jhi; j += 4) {
        __m256d q, s, v, less;

        q = _mm256_mul_pd(_mm256_sub_pd(hi, _mm256_loadu_pd(km->h + j)), unit);
        q = _mm256_add_pd(q, _mm256_sub_pd(li, _mm256_loadu_pd(km->l + j)));
        s = _mm256_sub_pd(si, _mm256_loadu_pd(km->s + j));
        s = _mm256_div_pd(_mm256_mul_pd(s, s),
                          _mm256_sub_pd(ai, _mm256_loadu_pd(km->a + j)));
        v = _mm256_add_pd(_mm256_loadu_pd(ly->prev + j), _mm256_sub_pd(q, s));
        v = _mm256_blendv_pd(v, none,
                             _mm256_castsi256_pd(
                                 _mm256_cmpgt_epi64(pos, last)));
        less = _mm256_cmp_pd(v, best, _CMP_LT_OQ);
        best = _mm256_blendv_pd(best, v, less);
        at = _mm256_blendv_epi8(at, pos, _mm256_castpd_si256(less));
        pos = _mm256_add_epi64(pos, four);
    }
    /* The least of the four, then the lowest place that has it. */
    other = _mm256_min_pd(best, _mm256_permute4x64_pd(best, 0x4e));
    other = _mm256_min_pd(other, _mm256_permute_pd(other, 0x5));
    ly->cur[i] = _mm256_cvtsd_f64(other);
    other = _mm256_cmp_pd(best, other, _CMP_EQ_OQ);
    at = _mm256_blendv_epi8(last, at, _mm256_castpd_si256(other));
    at = _mm256_min_epu32(at, _mm256_permute4x64_epi64(at, 0x4e));
    at = _mm256_min_epu32(at, _mm256_shuffle_epi32(at, 0x4e));
    return (uint32_t)_mm256_cvtsi256_si32(at);
}

ATTR_TARGET("avx2,bmi")
static void fill_avx2(const struct layer *ly, uint32_t lo, uint32_t hi,
                      uint32_t jlo, uint32_t jhi)
{
    while (lo <= hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        uint32_t top = jhi < mid - 1 ? jhi : mid - 1;
        uint32_t j = scan_avx2(ly, mid, jlo, top);

        ly->back[mid - ly->first] = (uint16_t)j;
        if (mid > lo)
            fill_avx2(ly, lo, mid - 1, jlo, j);
        lo = mid + 1;
        jlo = j;
    }
}
#endif

static void fill(const struct layer *ly, uint32_t lo, uint32_t hi, uint32_t jlo,
                 uint32_t jhi)
{
#if defined(__x86_64__)
    if ((cpu_features() & CPU_AVX2) != 0) {
        fill_avx2(ly, lo, hi, jlo, jhi);
        return;
    }
#endif
    fill_scalar(ly, lo, hi, jlo, jhi);
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
