/*
 * Exact k-means on sorted, weighted points of the real line.
 *
 * The points are integers held in doubles, so that every prefix sum is exact
 * and the order of summation cannot matter; quant.h's callers scale their
 * 16-bit floats to such integers. An optimal clustering is a partition of
 * the sorted points into k runs; the solver returns its borders. Equal
 * neighbours are legal and may fall on both sides of a border.
 *
 * Two ways, the same optimum: layers of a divide-and-conquer dynamic program
 * (QZ_LAYERS), or one pass under a price per cluster that narrows those
 * layers to windows around a known optimum (QZ_AUTO).
 */
#ifndef QUANT_KMEANS_H
#define QUANT_KMEANS_H

#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"

#define QZ_MAX_POINTS 65536
#define QZ_MAX_CLUSTERS 256

struct qz_kmeans;
struct qz_kmeans *qz_kmeans_new(struct err *e) ATTR_MUST_USE;
void qz_kmeans_free(struct qz_kmeans *km);

/*
 * Sets m points (1 .. QZ_MAX_POINTS), ascending, with their weights (whole
 * numbers from 1). Every x is a whole number of at most 2^40, and the sum of
 * the weights times the power of two at or above every |x| is at most 2^52.
 * Nothing is kept of the arrays.
 */
void qz_kmeans_points(struct qz_kmeans *km, const double *x, const double *w,
                      size_t m);

enum qz_solver { QZ_AUTO, QZ_LAYERS };
/* borders[0] = 0 < borders[1] < ... < borders[k] = m. 1 <= k <= m, at most
 * QZ_MAX_CLUSTERS. Fails only for want of memory. */
int qz_kmeans_solve(struct qz_kmeans *km, int k, enum qz_solver how,
                    uint32_t *borders, struct err *e) ATTR_MUST_USE;

/* Squared error of points j .. i-1 around their mean. */
double qz_kmeans_cost(const struct qz_kmeans *km, size_t j, size_t i);
/* Sums over points j .. i-1, exact. */
double qz_kmeans_sum(const struct qz_kmeans *km, size_t j, size_t i);
double qz_kmeans_weight(const struct qz_kmeans *km, size_t j, size_t i);
/*
 * Least value of (squared error + price * clusters) over all partitions, and
 * how many clusters attain it. For every price, value - price * k is a lower
 * bound of the squared error of k clusters: the certificate of a solution.
 */
double qz_kmeans_priced(struct qz_kmeans *km, double price, uint32_t *clusters);

/* What the last solve did, for benchmarks and tests. */
struct qz_solve_info {
    int passes;   /* priced passes */
    int distance; /* clusters between the pass used and k; -1: no pass used */
    uint64_t states; /* of the layered program */
};
void qz_kmeans_info(const struct qz_kmeans *km, struct qz_solve_info *info);

#endif
