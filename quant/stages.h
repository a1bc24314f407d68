/*
 * The stages of palettization, as qz_cluster and qz_palette compose them:
 * keys, histogram, table, nearest entries. Of use to benchmarks beside that.
 *
 * A key is the 16-bit pattern mapped to a signed integer of the same order:
 * x >= 0 keeps its bits, x < 0 becomes the complement of its magnitude. -0
 * counts as +0, so the key -1 never occurs.
 */
#ifndef QUANT_STAGES_H
#define QUANT_STAGES_H

#include "quant/kmeans.h"
#include "quant/quant.h"

#define KEYS 65536
/* More weights in one group than this would wear the sums thin. */
#define QZ_MAX_GROUP (UINT64_C(1) << 36)
#define QZ_MAX_SCALE 256

/* Parts of a format's magnitude bits. */
struct qz_layout {
    int mant, bias;
    uint16_t inf; /* magnitude bits of infinity; above: NaN */
};
struct qz_layout qz_layout(enum qz_format f);

/* Keys seen: least, greatest, and the least magnitude but zero, less one
 * (0xffff: none). */
struct qz_span {
    int16_t lo, hi;
    uint16_t near;
};
#define QZ_SPAN_INIT                     \
    {                                    \
        INT16_MAX, INT16_MIN, UINT16_MAX \
    }

static inline int16_t qz_key(uint16_t bits)
{
    int mag = bits & 0x7fff;

    return (int16_t)((bits & 0x8000) != 0 && mag != 0 ? -mag - 1 : mag);
}

static inline uint16_t qz_bits_of_key(int16_t key)
{
    return (uint16_t)(key >= 0 ? key : 0x8000 | (-key - 1));
}

bool qz_span_finite(const struct qz_span *span, enum qz_format f);
void qz_span_join(struct qz_span *span, const struct qz_span *more);
/* Index of the first NaN or infinity; n if there is none. */
size_t qz_first_bad(const uint16_t *src, size_t n, enum qz_format f);
/* Whether n bytes at `offset` lie in the `total` bytes of `what`. */
int qz_check_range(uint64_t offset, size_t n, uint64_t total, const char *what,
                   struct err *e);
/* Adds n values to counts[key + 32768] and to the span. */
void qz_count(uint32_t *counts, struct qz_span *span, const uint16_t *src,
              size_t n);
/*
 * The same with importances for counts: whole numbers from 1 whose mean over
 * a group is 2^shift, at most 2^32 in sum. `scale` is from
 * qz_importance_scale; 0 means that all count alike, 1 each.
 */
void qz_count_weighted(uint32_t *counts, struct qz_span *span,
                       const uint16_t *src, const float *imp, float scale,
                       size_t n);
/* In wide counters, for any number of weights. */
void qz_count_heavy(uint64_t *counts, struct qz_span *span, const uint16_t *src,
                    const float *imp, float scale, size_t n);
/* In a fixed order. */
double qz_importance_sum(const float *imp, size_t n);
/* The most that keeps the sum of n weights in 32 bits. */
int qz_importance_shift(uint64_t n);
float qz_importance_scale(double sum, uint64_t n, int shift);
void qz_importance_round(uint32_t *dst, const float *imp, float scale,
                         size_t n);
/* Squared error and energy of values under a table, in real units; the
 * weighted ones by `imp` (NULL: by 1). Adds. */
struct qz_errors {
    double sse, sum_sq, weighted, weighted_sq;
};
void qz_errors_add(struct qz_errors *sum, const uint16_t *src,
                   const uint8_t *codes, const f16_t *table, int bits,
                   const float *imp, size_t n, enum qz_format f, int scale_exp);
/* Moves the counts inside the span out: ascending keys and their counts;
 * the counters are zero afterwards. Returns how many. */
size_t qz_compact(uint32_t *counts, const struct qz_span *span, int16_t *keys,
                  double *weights);
/* Moves counts into wider ones. */
void qz_fold(uint64_t *wide, uint32_t *counts, const struct qz_span *span);
void qz_fold_heavy(uint64_t *wide, uint64_t *counts,
                   const struct qz_span *span);
size_t qz_compact_wide(const uint64_t *wide, const struct qz_span *span,
                       int16_t *keys, double *weights);

/* Nearest table entry by comparison of keys: index = how many thresholds
 * the key has reached. `coded`: `codes` has the index for each bit pattern of
 * the span; a table of up to 16 does without where keys are compared many at
 * a time. */
struct qz_nearest {
    int n;
    bool coded;
    int16_t reach[QZ_MAX_CLUSTERS];
    uint8_t codes[KEYS];
};
/* For values whose keys lie in the span. */
void qz_nearest_set(struct qz_nearest *a, const f16_t *table, int bits,
                    enum qz_format f, int scale_exp,
                    const struct qz_span *span);
void qz_nearest_map(const struct qz_nearest *a, uint8_t *dst,
                    const uint16_t *src, size_t n);

struct qz_scratch {
    uint32_t *counts; /* KEYS; all zero between groups */
    int16_t *keys;
    uint16_t *bits;
    float *f;
    double *w, *x, *v, *c;
    size_t m; /* distinct values */
    struct qz_kmeans *km;
    struct qz_nearest *nearest;
    uint64_t *heavy; /* KEYS, zero between groups; NULL until needed */
};

/* The table of the m distinct values (keys, w) in the scratch. */
int qz_table(struct qz_scratch *s, const struct qz_span *span, enum qz_format f,
             int scale_exp, int bits, f16_t *table, struct qz_result *result,
             struct err *e) ATTR_MUST_USE;
/* As qz_cluster_weighted; when a value is not finite, *bad is its index and
 * nothing is reported. */
int qz_group(struct qz_scratch *s, const uint16_t *values, const float *imp,
             size_t n, enum qz_format f, int scale_exp, int bits, f16_t *table,
             uint8_t *indices, struct qz_result *result, size_t *bad,
             struct err *e) ATTR_MUST_USE;
/* ERR_INPUT unless bits and scale_exp are ours. */
int qz_check_options(int bits, int scale_exp, struct err *e) ATTR_MUST_USE;
/* "nan" or "infinite". */
const char *qz_bad_name(uint16_t bits, enum qz_format f);

#endif
