/*
 * One group of weights: distinct values, exact partition, fp16 table.
 *
 * Values become whole multiples of a common unit, exactly when the group's
 * range allows it (40 bits for 4096 weights, one less for each doubling);
 * of a wider range the smallest values are rounded, by at most 2^-40 of the
 * largest there. bf16 itself is never rounded to fp16. A mean is rounded to
 * fp16 once, from exact sums, after the scale; the scale therefore costs no
 * precision, and only a mean beyond fp16 is an error.
 *
 * Rounded means move the borders a little: every value goes to its nearest
 * table entry, and new means for these runs are taken as long as the squared
 * error falls, three times at most.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "converter/base/mem.h"
#include "quant/stages.h"

#define POLISH 3
#define SUM_BITS 52 /* weights times the largest whole number */
#define MAX_X_BITS 40
/* Weights counted before 32-bit counters are emptied into wider ones; with
 * importances they count for more. */
#define COUNT_MAX (UINT64_C(1) << 31)
#define WEIGHTED_MAX (UINT64_C(1) << 21)

bool qz_bits_ok(int bits)
{
    return (bits >= 1 && bits <= 4) || bits == 6 || bits == 8;
}

uint64_t qz_fit_group(uint64_t rows, uint64_t wanted)
{
    uint64_t g, best = 1, d;

    if (rows == 0 || wanted == 0 || wanted >= rows)
        return rows;
    /* Divisors come in pairs: the search ends at the square root. */
    for (d = 1; d <= wanted && d <= rows / d; d++) {
        if (rows % d != 0)
            continue;
        g = rows / d;
        if (g <= wanted && g > best)
            best = g;
        if (d <= wanted && d > best)
            best = d;
    }
    return best;
}

int qz_check_options(int bits, int scale_exp, struct err *e)
{
    if (!qz_bits_ok(bits))
        return err_set(e, ERR_INPUT,
                       "palettes have 1, 2, 3, 4, 6 or 8 bits, not %d", bits);
    if (scale_exp < -QZ_MAX_SCALE || scale_exp > QZ_MAX_SCALE)
        return err_set(e, ERR_INPUT, "scale 2^%d is beyond 2^-%d .. 2^%d",
                       scale_exp, QZ_MAX_SCALE, QZ_MAX_SCALE);
    return 0;
}

const char *qz_bad_name(uint16_t bits, enum qz_format f)
{
    return (bits & 0x7fff) > qz_layout(f).inf ? "nan" : "infinite";
}

struct qz_scratch *qz_scratch_new(struct err *e)
{
    struct qz_scratch *s = mem_zalloc(1, sizeof *s, e);
    size_t n = KEYS;

    if (s == NULL)
        return NULL;
    s->counts = mem_alloc_aligned(n, sizeof *s->counts, e);
    if (s->counts != NULL)
        memset(s->counts, 0, n * sizeof *s->counts);
    if (s->counts == NULL ||
        (s->keys = mem_alloc(n, sizeof *s->keys, e)) == NULL ||
        (s->bits = mem_alloc(n, sizeof *s->bits, e)) == NULL ||
        (s->f = mem_alloc(n, sizeof *s->f, e)) == NULL ||
        (s->w = mem_alloc(n, sizeof *s->w, e)) == NULL ||
        (s->x = mem_alloc(n, sizeof *s->x, e)) == NULL ||
        (s->v = mem_alloc(n, sizeof *s->v, e)) == NULL ||
        (s->c = mem_alloc(n, sizeof *s->c, e)) == NULL ||
        (s->nearest = mem_zalloc(1, sizeof *s->nearest, e)) == NULL ||
        (s->km = qz_kmeans_new(e)) == NULL) {
        qz_scratch_free(s);
        return NULL;
    }
    return s;
}

void qz_scratch_free(struct qz_scratch *s)
{
    if (s == NULL)
        return;
    mem_free(s->counts);
    mem_free(s->keys);
    mem_free(s->bits);
    mem_free(s->f);
    mem_free(s->w);
    mem_free(s->x);
    mem_free(s->v);
    mem_free(s->c);
    mem_free(s->nearest);
    mem_free(s->heavy);
    qz_kmeans_free(s->km);
    mem_free(s);
}

/* The distinct values as numbers: v in real units. */
static void set_values(struct qz_scratch *s, enum qz_format f, int scale_exp)
{
    double scale = ldexp(1, scale_exp);
    size_t i;

    for (i = 0; i < s->m; i++)
        s->bits[i] = qz_bits_of_key(s->keys[i]);
    if (f == QZ_BF16)
        num_bf16_to_f32(s->f, s->bits, s->m);
    else
        num_f16_to_f32(s->f, s->bits, s->m);
    for (i = 0; i < s->m; i++)
        s->v[i] = s->f[i] * scale;
}

/* Exponent of the last place of a magnitude, or of the power of two above. */
static int exponent_of(int mag, const struct qz_layout *lay, bool above)
{
    int e = mag >> lay->mant;

    e = (e > 0 ? e : 1) - lay->bias;
    return above ? e + 1 : e - lay->mant;
}

static int magnitude(int16_t key)
{
    return key < 0 ? -key - 1 : key;
}

/* Sets x: whole multiples of 2^unit_exp, less *origin, and tells the solver.
 * Returns unit_exp. */
static int set_points(struct qz_scratch *s, const struct qz_span *span,
                      enum qz_format f, double total, int64_t *origin)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52: to whole numbers */
    struct qz_layout lay = qz_layout(f);
    int lo = magnitude(span->lo), hi = magnitude(span->hi);
    int room = SUM_BITS, top, unit;
    double down, mid, one;
    size_t i;

    for (one = 1; one < total; one *= 2)
        room--;
    if (room > MAX_X_BITS)
        room = MAX_X_BITS;
    top = exponent_of(lo > hi ? lo : hi, &lay, true);
    unit = exponent_of(span->near + 1, &lay, false);
    /* One bit is for the origin. */
    if (unit < top - (room - 1))
        unit = top - (room - 1);
    down = ldexp(1, -unit);
    mid = (s->f[s->m / 2] * down + magic) - magic;
    for (i = 0; i < s->m; i++)
        s->x[i] = ((s->f[i] * down + magic) - magic) - mid;
    *origin = (int64_t)mid;
    qz_kmeans_points(s->km, s->x, s->w, s->m);
    return unit;
}

/* 2^e for the exponents that occur here: far from the ends of double. */
static double power(int e)
{
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

/* sum / weight * 2^exp as fp16, rounded once to nearest even. */
static f16_t mean_f16(int64_t sum, int64_t weight, int exp)
{
    uint64_t n = (uint64_t)(sum < 0 ? -sum : sum), d = (uint64_t)weight, q, odd;
    double v;

    if (n == 0)
        return 0;
    /* Enough bits in the quotient; what is left over only breaks ties, so
     * that one odd bit can stand for it. */
    while (n >> 54 == 0) {
        n <<= 8;
        exp -= 8;
    }
    q = n / d;
    odd = n % d != 0;
    if (q >> 51 != 0) {
        odd |= (q & 0x7ff) != 0;
        q >>= 11;
        exp += 11;
    }
    v = (double)(q * 2 + odd) * power(exp - 1);
    return f64_to_f16(sum < 0 ? -v : v);
}

static int beyond_f16(int q, int k, double v, struct err *e)
{
    char text[NUM_TEXT_MAX];

    num_text(text, v);
    return err_set(e, ERR_INPUT,
                   "table entry %d of %d is %s, beyond fp16's 65504", q, k,
                   text);
}

static bool is_finite(f16_t c)
{
    return (c & 0x7fff) < 0x7c00;
}

static f16_t plus_zero(f16_t c)
{
    return c == 0x8000 ? 0 : c;
}

/* Means of the runs, as fp16. An empty run repeats the entry below it: no
 * value is nearest to it. */
static int set_table(struct qz_scratch *s, const uint32_t *borders, int k,
                     int64_t origin, int exp, f16_t *table, struct err *e)
{
    int q;

    for (q = 0; q < k; q++) {
        size_t j = borders[q], i = borders[q + 1];
        int64_t w = (int64_t)qz_kmeans_weight(s->km, j, i);
        int64_t sum = (int64_t)qz_kmeans_sum(s->km, j, i) + origin * w;

        if (j == i) {
            table[q] = q > 0 ? table[q - 1] : 0;
            continue;
        }
        table[q] = plus_zero(mean_f16(sum, w, exp));
        if (!is_finite(table[q]))
            return beyond_f16(q, k, ldexp((double)sum / (double)w, exp), e);
    }
    return 0;
}

/* Runs of nearest values; `borders` holds a guess. */
static void set_borders(const struct qz_scratch *s, const f16_t *table, int k,
                        uint32_t *borders)
{
    uint32_t m = (uint32_t)s->m, p;
    int q, head = 0, next = 1;

    for (q = 1; q < k; q++) {
        double mid;

        if (table[q] == table[head])
            continue;
        mid = ((double)f16_to_f32(table[head]) + f16_to_f32(table[q])) / 2;
        p = borders[q];
        while (p > 0 && s->v[p - 1] > mid)
            p--;
        while (p < m && s->v[p] <= mid)
            p++;
        while (next <= q)
            borders[next++] = p;
        head = q;
    }
    while (next <= k)
        borders[next++] = m;
}

/* Squared error; four sums in a fixed order. */
static double table_error(struct qz_scratch *s, const f16_t *table, int k,
                          const uint32_t *borders)
{
    double sum[4] = { 0, 0, 0, 0 };
    size_t i;
    int q;

    for (q = 0; q < k; q++) {
        double c = f16_to_f32(table[q]);

        for (i = borders[q]; i < borders[q + 1]; i++)
            s->c[i] = c;
    }
    for (i = 0; i < s->m; i++) {
        double d = s->v[i] - s->c[i];

        sum[i & 3] += s->w[i] * (d * d);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static double energy(const struct qz_scratch *s)
{
    double sum[4] = { 0, 0, 0, 0 };
    size_t i;

    for (i = 0; i < s->m; i++)
        sum[i & 3] += s->w[i] * (s->v[i] * s->v[i]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static int exact_table(struct qz_scratch *s, const struct qz_span *span,
                       enum qz_format f, int scale_exp, int k, double total,
                       f16_t *table, double *sse, struct err *e)
{
    uint32_t borders[QZ_MAX_CLUSTERS + 1], b2[QZ_MAX_CLUSTERS + 1];
    f16_t t2[QZ_MAX_CLUSTERS];
    size_t bytes = (size_t)k * sizeof *table;
    int64_t origin;
    int exp, i;
    double sse2;

    exp = set_points(s, span, f, total, &origin) + scale_exp;
    if (qz_kmeans_solve(s->km, k, QZ_AUTO, borders, e) ||
        set_table(s, borders, k, origin, exp, table, e))
        return -1;
    set_borders(s, table, k, borders);
    *sse = table_error(s, table, k, borders);
    for (i = 0; i < POLISH; i++) {
        if (set_table(s, borders, k, origin, exp, t2, e))
            return -1;
        if (memcmp(t2, table, bytes) == 0)
            break;
        memcpy(b2, borders, sizeof b2);
        set_borders(s, t2, k, b2);
        sse2 = table_error(s, t2, k, b2);
        if (!(sse2 < *sse))
            break;
        *sse = sse2;
        memcpy(table, t2, bytes);
        memcpy(borders, b2, sizeof borders);
    }
    return 0;
}

/* No more values than entries: each its own, the last one repeated. */
static int lossless_table(struct qz_scratch *s, int k, f16_t *table,
                          double *sse, struct err *e)
{
    uint32_t borders[QZ_MAX_CLUSTERS + 1], m = (uint32_t)s->m, q;

    for (q = 0; q < (uint32_t)k; q++) {
        borders[q] = q < m ? q : m;
        table[q] = q < m ? plus_zero(f64_to_f16(s->v[q])) : table[m - 1];
        if (q < m && !is_finite(table[q]))
            return beyond_f16((int)q, k, s->v[q], e);
    }
    borders[k] = m;
    set_borders(s, table, k, borders);
    *sse = table_error(s, table, k, borders);
    return 0;
}

int qz_table(struct qz_scratch *s, const struct qz_span *span, enum qz_format f,
             int scale_exp, int bits, f16_t *table, struct qz_result *result,
             struct err *e)
{
    double total = 0;
    size_t i;
    int k = 1 << bits;

    set_values(s, f, scale_exp);
    for (i = 0; i < s->m; i++)
        total += s->w[i];
    result->distinct = (uint32_t)s->m;
    result->sum_sq = result->weighted_sq = energy(s);
    if (s->m <= (size_t)k ? lossless_table(s, k, table, &result->sse, e)
                          : exact_table(s, span, f, scale_exp, k, total, table,
                                        &result->sse, e))
        return -1;
    result->weighted = result->sse;
    return 0;
}

/* Distinct values of a group into the scratch. Returns -1 with *bad. */
static int count_group(struct qz_scratch *s, const uint16_t *values,
                       const float *imp, size_t n, enum qz_format f,
                       struct qz_span *span, size_t *bad)
{
    const struct qz_span none = QZ_SPAN_INIT;

    *span = none;
    if (imp != NULL)
        qz_count_weighted(s->counts, span, values, imp,
                          qz_importance_scale(qz_importance_sum(imp, n), n,
                                              qz_importance_shift(n)),
                          n);
    else
        qz_count(s->counts, span, values, n);
    if (!qz_span_finite(span, f)) {
        memset(s->counts, 0, KEYS * sizeof *s->counts);
        *bad = qz_first_bad(values, n, f);
        return -1;
    }
    s->m = qz_compact(s->counts, span, s->keys, s->w);
    return 0;
}

/* The counts told nothing of plain errors, nor of importances as they are. */
static void weighted_result(struct qz_result *r, const uint16_t *values,
                            const uint8_t *indices, const f16_t *table,
                            int bits, const float *imp, size_t n,
                            enum qz_format f, int scale_exp)
{
    struct qz_errors sum = { 0, 0, 0, 0 };

    qz_errors_add(&sum, values, indices, table, bits, imp, n, f, scale_exp);
    r->sse = sum.sse;
    r->sum_sq = sum.sum_sq;
    r->weighted = sum.weighted;
    r->weighted_sq = sum.weighted_sq;
}

int qz_group(struct qz_scratch *s, const uint16_t *values, const float *imp,
             size_t n, enum qz_format f, int scale_exp, int bits, f16_t *table,
             uint8_t *indices, struct qz_result *result, size_t *bad,
             struct err *e)
{
    uint64_t max = imp != NULL ? WEIGHTED_MAX : COUNT_MAX;
    struct qz_span span;

    *bad = n;
    if (n == 0 || (uint64_t)n > max)
        return err_set(e, ERR_INPUT,
                       "a group of %zu weights cannot be clustered at once "
                       "(1 to %" PRIu64 ")",
                       n, max);
    if (count_group(s, values, imp, n, f, &span, bad) ||
        qz_table(s, &span, f, scale_exp, bits, table, result, e))
        return -1;
    qz_nearest_set(s->nearest, table, bits, f, scale_exp, &span);
    qz_nearest_map(s->nearest, indices, values, n);
    if (imp != NULL)
        weighted_result(result, values, indices, table, bits, imp, n, f,
                        scale_exp);
    return 0;
}

int qz_cluster_weighted(struct qz_scratch *s, const uint16_t *values,
                        const float *importance, size_t n,
                        enum qz_format format, int scale_exp, int bits,
                        f16_t *table, uint8_t *indices,
                        struct qz_result *result, struct err *e)
{
    size_t bad;

    if (qz_check_options(bits, scale_exp, e))
        return -1;
    if (qz_group(s, values, importance, n, format, scale_exp, bits, table,
                 indices, result, &bad, e) == 0)
        return 0;
    if (bad < n)
        return err_set(e, ERR_INPUT, "weight %zu of %zu is %s", bad, n,
                       qz_bad_name(values[bad], format));
    return -1;
}

int qz_cluster(struct qz_scratch *s, const uint16_t *values, size_t n,
               enum qz_format format, int scale_exp, int bits, f16_t *table,
               uint8_t *indices, struct qz_result *result, struct err *e)
{
    return qz_cluster_weighted(s, values, NULL, n, format, scale_exp, bits,
                               table, indices, result, e);
}
