/*
 * par_for with many pools, widths and sizes at once: for the thread
 * sanitizer, and against a plain loop.
 */
#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"
#include "converter/base/par.h"

#define N 5000

struct work {
    uint64_t out[N];
    uint64_t scratch[64]; /* one per worker */
};

static void square(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct work *w = arg;

    for (uint64_t i = begin; i < end; i++) {
        w->scratch[worker] += i;
        w->out[i] += i * i;
    }
}

static int check(struct par *p, struct work *w, uint64_t n, uint64_t grain)
{
    uint64_t sum = 0;

    memset(w, 0, sizeof(*w));
    par_for(p, n, grain, square, w);
    for (int i = 0; i < par_width(p); i++)
        sum += w->scratch[i];
    if (n && sum != n * (n - 1) / 2)
        return fprintf(stderr, "sum %llu of %llu indices\n",
                       (unsigned long long)sum, (unsigned long long)n);
    for (uint64_t i = 0; i < N; i++)
        if (w->out[i] != (i < n ? i * i : 0))
            return fprintf(stderr, "index %llu is wrong\n",
                           (unsigned long long)i);
    return 0;
}

int main(void)
{
    static const int widths[] = { 1, 2, 3, 8 };
    static const uint64_t sizes[] = { 0, 1, 2, 63, 64, 65, 1000, N };
    static struct work w;
    struct err e = ERR_INIT;

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        struct par *p = par_new(widths[i], &e);

        if (!p)
            return fprintf(stderr, "%s\n", e.text), 1;
        for (int round = 0; round < 4; round++)
            for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
                if (check(p, &w, sizes[k], (uint64_t)round % 3))
                    return 1;
        par_free(p);
    }
    return 0;
}
