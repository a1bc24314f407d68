/*
 * Strided copies of 4-byte elements: transposes, slices, joins, tiles.
 */
#include "mil/run/run_priv.h"

#define PAR_ELEMS 65536 /* below, threads cost more than they give */

void nd_strides(const struct mil_type *t, int64_t *strides)
{
    int64_t s = 1;

    for (int i = t->rank - 1; i >= 0; i--) {
        strides[i] = s;
        s *= t->dims[i];
    }
}

/* Drops dims of size 1 and merges those that are one run on both sides. */
static void collapse(struct nd *to, const struct nd *from)
{
    to->rank = 0;
    for (int i = 0; i < from->rank; i++) {
        int j = to->rank - 1;

        if (from->d[i] == 1)
            continue;
        if (j >= 0 && to->ss[j] == from->ss[i] * from->d[i] &&
            to->ds[j] == from->ds[i] * from->d[i]) {
            to->d[j] *= from->d[i];
            to->ss[j] = from->ss[i];
            to->ds[j] = from->ds[i];
            continue;
        }
        to->d[to->rank] = from->d[i];
        to->ss[to->rank] = from->ss[i];
        to->ds[to->rank++] = from->ds[i];
    }
}

static void copy1(uint32_t *dst, const uint32_t *src, int64_t n, int64_t ds,
                  int64_t ss)
{
    if (ds == 1 && ss == 1) {
        memcpy(dst, src, (size_t)n * sizeof(*dst));
    } else if (ds == 1) {
        for (int64_t i = 0; i < n; i++)
            dst[i] = src[i * ss];
    } else {
        for (int64_t i = 0; i < n; i++)
            dst[i * ds] = src[i * ss];
    }
}

/* Two dims; a transpose where the source runs along the outer one. */
static void copy2(uint32_t *dst, const uint32_t *src, const int64_t d[2],
                  const int64_t ds[2], const int64_t ss[2])
{
    if (ss[0] == 1 && ds[1] == 1 && d[0] >= 4 && d[1] >= 4) {
        kern_get()->transpose(dst, ds[0], src, ss[1], d[1], d[0]);
        return;
    }
    for (int64_t i = 0; i < d[0]; i++)
        copy1(dst + i * ds[0], src + i * ss[0], d[1], ds[1], ss[1]);
}

static void copy_nd(uint32_t *dst, const uint32_t *src, const struct nd *nd,
                    int at)
{
    if (at == nd->rank) {
        *dst = *src;
    } else if (at == nd->rank - 1) {
        copy1(dst, src, nd->d[at], nd->ds[at], nd->ss[at]);
    } else if (at == nd->rank - 2) {
        copy2(dst, src, nd->d + at, nd->ds + at, nd->ss + at);
    } else {
        for (int64_t i = 0; i < nd->d[at]; i++)
            copy_nd(dst + i * nd->ds[at], src + i * nd->ss[at], nd, at + 1);
    }
}

struct copy_arg {
    struct nd nd;
    uint32_t *dst;
    const uint32_t *src;
};

static void copy_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct copy_arg *a = arg;
    struct nd nd = a->nd;

    (void)worker;
    nd.d[0] = (int64_t)(end - begin);
    copy_nd(a->dst + (int64_t)begin * nd.ds[0],
            a->src + (int64_t)begin * nd.ss[0], &nd, 0);
}

void nd_copy(struct par *par, void *dst, const void *src, const struct nd *nd)
{
    struct copy_arg a = { .dst = dst, .src = src };
    int64_t n = 1;

    for (int i = 0; i < nd->rank; i++)
        n *= nd->d[i];
    if (n == 0)
        return;
    collapse(&a.nd, nd);
    if (n < PAR_ELEMS || a.nd.rank < 2 || a.nd.d[0] < 2)
        copy_nd(a.dst, a.src, &a.nd, 0);
    else
        par_for(par, (uint64_t)a.nd.d[0],
                (uint64_t)(PAR_ELEMS * a.nd.d[0] / n / 4 + 1), copy_range, &a);
}

void nd_transpose(struct par *par, float *dst, const float *src, int64_t rows,
                  int64_t cols, int64_t ld)
{
    struct nd nd = {
        .rank = 2, .d = { cols, rows }, .ss = { 1, ld }, .ds = { rows, 1 }
    };

    nd_copy(par, dst, src, &nd);
}
