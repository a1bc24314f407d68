/*
 * What the parts of the solver share. Costs come from exact prefix sums: see
 * kmeans.c.
 */
#ifndef QUANT_KMEANS_PRIV_H
#define QUANT_KMEANS_PRIV_H

#include "quant/kmeans.h"

struct qz_kmeans {
    size_t m;
    /* Prefix sums, m + 1 each: weight, weight * x, and weight * x * x as
     * h * unit + l. */
    double *a, *s, *h, *l;
    double unit;
    double *d0, *d1;        /* values of two layers, or of a pass */
    uint32_t *par;          /* pass: last border before each i */
    uint32_t *cand, *start; /* pass: queue */
    uint16_t *back;         /* layers: back-pointers, row after row */
    size_t back_cap;
    struct qz_solve_info info;
};

/* The prefix sums have so many more elements, all equal to the last, to be
 * read in vectors. */
#define QZ_POINTS_PAD 8

/* Borders of layer q lie in [lo, hi]. */
struct qz_window {
    uint32_t lo, hi;
};

/* Squared error of points j .. i-1, up to rounding of one part in 2^52 of
 * their sum of squares; may be a hair below zero. */
static inline double kmeans_cost(const struct qz_kmeans *km, size_t j, size_t i)
{
    double q = (km->h[i] - km->h[j]) * km->unit + (km->l[i] - km->l[j]);
    double s = km->s[i] - km->s[j];

    return q - s * s / (km->a[i] - km->a[j]);
}

/* Best partition into k runs with border q inside win[q] (q = 0 .. k). */
int kmeans_layers(struct qz_kmeans *km, int k, const struct qz_window *win,
                  uint32_t *borders, struct err *e) ATTR_MUST_USE;
/* One pass at a price; fills d0 and par, returns the number of clusters. */
uint32_t kmeans_pass(struct qz_kmeans *km, double price);
/* A price near the one that yields k clusters; 0 if there is no telling. */
double kmeans_guess(const struct qz_kmeans *km, int k);
/* Positive x; about 1 part in 10^6, the same on every machine. */
double kmeans_cbrt(double x);

#endif
