/*
 * Rounding with error feedback: see moment.h for the formula. Up to 32 rows
 * are rounded together, column by column in the moment's order; the rows do
 * not know of each other and may have different tables.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "converter/base/sgemm.h"
#include "quant/feedback_priv.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LANES FEED_LANES

struct qz_feed *qz_feed_new(size_t rows, size_t cols, size_t group, int bits,
                            bool fit, struct err *e)
{
    struct qz_feed *f = mem_zalloc(1, sizeof *f, e);
    size_t k = (size_t)1 << bits;

    if (f == NULL)
        return NULL;
    fit = fit && bits <= REFIT_BITS;
    f->fit = fit;
    f->rows = rows;
    f->cols = cols;
    f->group = group;
    f->bits = bits;
    if ((f->x = mem_alloc_aligned(rows * cols, sizeof *f->x, e)) == NULL ||
        (f->d = mem_alloc_aligned(cols * LANES, sizeof *f->d, e)) == NULL ||
        (f->diff = mem_alloc_aligned(group * cols, sizeof *f->diff, e)) ==
            NULL ||
        (f->packed = mem_alloc_aligned(group * sgemm_pad(cols),
                                       sizeof *f->packed, e)) == NULL ||
        (f->r = mem_alloc_aligned(group * cols, sizeof *f->r, e)) == NULL ||
        (f->gemm = mem_alloc_aligned(1, sizeof *f->gemm, e)) == NULL ||
        (fit &&
         ((f->s = mem_alloc_aligned(cols, sizeof *f->s, e)) == NULL ||
          (f->columns = mem_alloc(cols, sizeof *f->columns, e)) == NULL ||
          (f->m = mem_alloc(k * (k + 1), sizeof *f->m, e)) == NULL))) {
        qz_feed_free(f);
        return NULL;
    }
    return f;
}

void qz_feed_free(struct qz_feed *f)
{
    if (f == NULL)
        return;
    mem_free(f->x);
    mem_free(f->d);
    mem_free(f->diff);
    mem_free(f->packed);
    mem_free(f->r);
    mem_free(f->s);
    mem_free(f->columns);
    mem_free(f->m);
    mem_free(f->gemm);
    mem_free(f);
}

void feed_table_set(struct feed_table *t, const f16_t *table, int bits)
{
    int q;

    t->k = 1 << bits;
    for (q = 0; q < t->k; q++)
        t->entry[q] = f16_to_f32(table[q]);
    for (q = 0; q + 1 < t->k; q++)
        t->mid[q] = (t->entry[q] + t->entry[q + 1]) / 2;
}

/* ---- kernels ---- */

/* out[l] = sum of a[i] d[i][l] over i < n: even and odd i apart, by fused
 * multiply-add. */
static void feed_scalar(const float *a, const float *d, size_t n, float *out)
{
    float s[2][LANES];
    size_t i, l;

    memset(s, 0, sizeof s);
    for (i = 0; i < n; i++)
        for (l = 0; l < LANES; l++)
            s[i % 2][l] = fmaf(a[i], d[i * LANES + l], s[i % 2][l]);
    for (l = 0; l < LANES; l++)
        out[l] = s[0][l] + s[1][l];
}

static void axpy_scalar(float *y, const float *x, float a, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++)
        y[i] += a * x[i];
}

/* Columns from `i` on. */
static void sum_rows_scalar(float *sum, const float *h, size_t width, size_t i,
                            const uint32_t *rows, size_t n)
{
    size_t q, j;

    memset(sum + i, 0, (width - i) * sizeof *sum);
    for (q = 0; q < n; q++)
        for (j = i; j < width; j++)
            sum[j] += h[rows[q] * width + j];
}

#if defined(__x86_64__)
ATTR_TARGET("avx2,fma,f16c")
static void feed_avx2(const float *a, const float *d, size_t n, float *out)
{
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    __m256 t0 = s0, t1 = s0, t2 = s0, t3 = s0;
    size_t i;

    for (i = 0; i + 2 <= n; i += 2, d += 2 * LANES) {
        __m256 u = _mm256_set1_ps(a[i]), v = _mm256_set1_ps(a[i + 1]);

        s0 = _mm256_fmadd_ps(u, _mm256_loadu_ps(d), s0);
        s1 = _mm256_fmadd_ps(u, _mm256_loadu_ps(d + 8), s1);
        s2 = _mm256_fmadd_ps(u, _mm256_loadu_ps(d + 16), s2);
        s3 = _mm256_fmadd_ps(u, _mm256_loadu_ps(d + 24), s3);
        t0 = _mm256_fmadd_ps(v, _mm256_loadu_ps(d + 32), t0);
        t1 = _mm256_fmadd_ps(v, _mm256_loadu_ps(d + 40), t1);
        t2 = _mm256_fmadd_ps(v, _mm256_loadu_ps(d + 48), t2);
        t3 = _mm256_fmadd_ps(v, _mm256_loadu_ps(d + 56), t3);
    }
    if (i < n) {
        __m256 u = _mm256_set1_ps(a[i]);

        s0 = _mm256_fmadd_ps(u, _mm256_loadu_ps(d), s0);
        s1 = _mm256_fmadd_ps(u, _mm256_loadu_ps(d + 8), s1);
        s2 = _mm256_fmadd_ps(u, _mm256_loadu_ps(d + 16), s2);
        s3 = _mm256_fmadd_ps(u, _mm256_loadu_ps(d + 24), s3);
    }
    _mm256_storeu_ps(out, _mm256_add_ps(s0, t0));
    _mm256_storeu_ps(out + 8, _mm256_add_ps(s1, t1));
    _mm256_storeu_ps(out + 16, _mm256_add_ps(s2, t2));
    _mm256_storeu_ps(out + 24, _mm256_add_ps(s3, t3));
}

ATTR_TARGET("avx2,fma,f16c")
static void axpy_avx2(float *y, const float *x, float a, size_t n)
{
    const __m256 v = _mm256_set1_ps(a);
    size_t i;

    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i),
                                              _mm256_mul_ps(v, _mm256_loadu_ps(
                                                                   x + i))));
    axpy_scalar(y + i, x + i, a, n - i);
}

/* Sums of 64 columns stay in registers. */
ATTR_TARGET("avx2,fma,f16c")
static void sum_rows_avx2(float *sum, const float *h, size_t width,
                          const uint32_t *rows, size_t n)
{
    size_t i, q, v;

    for (i = 0; i + 64 <= width; i += 64) {
        __m256 s[8];

        for (v = 0; v < 8; v++)
            s[v] = _mm256_setzero_ps();
        for (q = 0; q < n; q++) {
            const float *row = h + rows[q] * width + i;

            for (v = 0; v < 8; v++)
                s[v] = _mm256_add_ps(s[v], _mm256_loadu_ps(row + 8 * v));
        }
        for (v = 0; v < 8; v++)
            _mm256_storeu_ps(sum + i + 8 * v, s[v]);
    }
    if (i < width)
        sum_rows_scalar(sum, h, width, i, rows, n);
}
#endif

void feed_lanes(const float *a, const float *d, size_t n, float *out)
{
#if defined(__x86_64__)
    if ((cpu_features() & CPU_AVX2) != 0) {
        feed_avx2(a, d, n, out);
        return;
    }
#endif
    feed_scalar(a, d, n, out);
}

void feed_axpy(float *y, const float *x, float a, size_t n)
{
#if defined(__x86_64__)
    if ((cpu_features() & CPU_AVX2) != 0) {
        axpy_avx2(y, x, a, n);
        return;
    }
#endif
    axpy_scalar(y, x, a, n);
}

void feed_sum_rows(float *sum, const float *h, size_t width,
                   const uint32_t *rows, size_t n)
{
#if defined(__x86_64__)
    if ((cpu_features() & CPU_AVX2) != 0) {
        sum_rows_avx2(sum, h, width, rows, n);
        return;
    }
#endif
    sum_rows_scalar(sum, h, width, 0, rows, n);
}

/* ---- tiles ---- */

static int add_tile(struct qz_tile_map *map, const struct qz_source *src,
                    uint64_t row, uint64_t col, uint64_t *n, struct err *e)
{
    struct qz_tile t = { .col = (size_t)col };

    if (src->moment(src->cookie, row, col, n, &t.m, e))
        return -1;
    if (*n == 0 || *n > src->cols - col || (t.m != NULL && t.m->width != *n))
        return err_set(e, ERR_INPUT,
                       "row %" PRIu64 ", column %" PRIu64
                       ": a moment of %" PRIu64 " columns does not fit",
                       row, col, *n);
    t.n = (size_t)*n;
    if (map->n == map->cap && mem_grow((void **)&map->tiles, &map->cap, map->n,
                                       sizeof *map->tiles, e))
        return -1;
    map->tiles[map->n++] = t;
    return 0;
}

/* A list is told by its place until all are there. */
int feed_map_rows(struct qz_tile_map *map, const struct qz_source *src,
                  uint64_t row, uint64_t rows, struct err *e)
{
    size_t *first = mem_alloc((size_t)rows, sizeof *first, e), last = 0, i;
    int rc = first != NULL ? 0 : -1;

    map->n = 0;
    for (i = 0; rc == 0 && i < rows; i++) {
        size_t begin = map->n, count;
        uint64_t col, n;

        for (col = 0; rc == 0 && col < src->cols; col += n)
            rc = add_tile(map, src, row + i, col, &n, e);
        if (rc != 0)
            break;
        count = map->n - begin;
        if (i > 0 && count == begin - last &&
            memcmp(map->tiles + begin, map->tiles + last,
                   count * sizeof *map->tiles) == 0)
            map->n = begin;
        else
            last = begin;
        first[i] = last;
        map->rows[i].n = count;
    }
    for (i = 0; rc == 0 && i < rows; i++)
        map->rows[i].tiles = map->tiles + first[i];
    mem_free(first);
    return rc;
}

void feed_map_release(struct qz_tile_map *map)
{
    mem_free(map->tiles);
    mem_free(map->rows);
    memset(map, 0, sizeof *map);
}

/* ---- rows ---- */

static void load_values(float *x, const uint16_t *src, size_t n,
                        enum qz_format f, int scale_exp)
{
    size_t i;

    if (f == QZ_BF16)
        num_bf16_to_f32(x, src, n);
    else
        num_f16_to_f32(x, src, n);
    for (i = 0; scale_exp != 0 && i < n; i++)
        x[i] = ldexpf(x[i], scale_exp);
}

/* Rounds the columns of one tile of the rows from `row` on, n of them. */
static void round_tile(struct qz_feed *f, size_t row, size_t n,
                       const struct qz_tile *t, uint8_t *codes)
{
    const struct qz_moment *m = t->m;
    float sum[LANES];
    size_t j, l;

    memset(f->d, 0, t->n * LANES * sizeof *f->d);
    for (j = 0; j < t->n; j++) {
        size_t col = t->col + m->order[j];
        float *d = f->d + j * LANES;

        feed_lanes(m->feed + j * (j - 1) / 2, f->d, j, sum);
        for (l = 0; l < n; l++) {
            float x = f->x[(row + l) * f->cols + col];
            uint8_t q = feed_nearest(&f->table[l], x + sum[l]);

            codes[(row + l) * f->cols + col] = q;
            d[l] = x - f->table[l].entry[q];
        }
    }
}

static bool same_tiles(const struct qz_tiles *a, const struct qz_tiles *b)
{
    return a->tiles == b->tiles && a->n == b->n;
}

/* Rows in stretches that have one list of tiles. */
static void round_rows(struct qz_feed *f, size_t n,
                       const struct qz_tiles *tiles, const f16_t *tables,
                       uint8_t *codes)
{
    size_t row, len, i;

    for (row = 0; row < n; row += len) {
        for (len = 1; row + len < n && len < LANES &&
                      same_tiles(&tiles[row], &tiles[row + len]);
             len++)
            ;
        for (i = 0; i < len; i++)
            feed_table_set(&f->table[i],
                           tables + ((row + i) / f->group << f->bits), f->bits);
        for (i = 0; i < tiles[row].n; i++)
            if (tiles[row].tiles[i].m != NULL)
                round_tile(f, row, len, &tiles[row].tiles[i], codes);
    }
}

void qz_feed_rows(struct qz_feed *f, const uint16_t *values, size_t n,
                  enum qz_format format, int scale_exp,
                  const struct qz_tiles *tiles, f16_t *tables, uint8_t *codes,
                  struct qz_output *out)
{
    size_t row;

    load_values(f->x, values, n * f->cols, format, scale_exp);
    round_rows(f, n, tiles, tables, codes);
    for (row = 0; row < n; row += f->group)
        feed_refine(f, row, n - row < f->group ? n - row : f->group,
                    tiles + row, tables + (row / f->group << f->bits),
                    codes + row * f->cols, out);
}

/* ---- integers ---- */

static int8_t nearest_integer(float v, int top)
{
    float r = nearbyintf(v), most = (float)top;

    return (int8_t)(r > most ? most : r >= -most - 1 ? r : -most - 1);
}

static void round_integers(float *d, const float *x, size_t n, size_t cols,
                           const struct qz_tile *t, const struct qz_scales *s,
                           int8_t *q)
{
    const struct qz_moment *m = t->m;
    float sum[LANES];
    size_t j, l;

    memset(d, 0, t->n * LANES * sizeof *d);
    for (j = 0; j < t->n; j++) {
        size_t col = t->col + m->order[j];

        feed_lanes(m->feed + j * (j - 1) / 2, d, j, sum);
        for (l = 0; l < n; l++) {
            size_t at = l * cols + col;
            float scale = f16_to_f32(
                s->scales[s->per_row ? l * s->per_row + col / s->block : 0]);

            q[at] = nearest_integer((x[at] + sum[l]) / scale, s->top);
            d[j * LANES + l] = x[at] - scale * (float)q[at];
        }
    }
}

void feed_integers(float *d, const float *x, size_t n, size_t cols,
                   const struct qz_tiles *tiles, const struct qz_scales *s,
                   int8_t *q)
{
    size_t row, len, i;

    for (row = 0; row < n; row += len) {
        struct qz_scales own = *s;

        own.scales += row * s->per_row;
        for (len = 1; row + len < n && len < LANES &&
                      same_tiles(&tiles[row], &tiles[row + len]);
             len++)
            ;
        for (i = 0; i < tiles[row].n; i++)
            if (tiles[row].tiles[i].m != NULL)
                round_integers(d, x + row * cols, len, cols,
                               &tiles[row].tiles[i], &own, q + row * cols);
    }
}
