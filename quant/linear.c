/*
 * Integers and scales.
 *
 * For given integers the best scale is sum w x q / sum w q^2; for a given
 * scale the best integers are the nearest. The search starts from scales that
 * let the largest magnitude reach the end of the range, or overshoot it (by up
 * to 60 %, or three times where weights do not count alike), takes both steps
 * twice, and keeps what leaves the least error with the scale rounded to fp16.
 * Sums run in eight fixed lanes: results are the same on every machine.
 */
#include "quant/linear.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "converter/base/mem.h"
#include "quant/feedback_priv.h"

#define BLOCK_WEIGHTS (UINT64_C(1) << 20)
#define STARTS 24
#define LANES 8
#define LEAST_NORMAL 0x1p-14f
#define CHUNK 4096

struct failure {
    uint64_t at; /* weight within the block; UINT64_MAX: none */
    uint16_t bits;
    struct err err; /* the rows from there on could not be read */
};

struct qz_linear {
    struct qz_source src;
    int bits, top;
    uint64_t block, per_row; /* columns per scale; scales per row */
    bool whole;              /* one scale for all */
    struct par *par;
    int workers;
    uint64_t block_rows, blocks;
    f16_t *scales;
    uint8_t *done; /* per block of rows: its scales and figures are there */
    bool have_scale;
    struct qz_stats stats;

    /* Only while something is read. */
    uint64_t loaded; /* the block in `packed`; `blocks`: none */
    uint64_t rows;   /* in it */
    uint16_t *values;
    float *x, *importance;
    int8_t *q;
    uint8_t *packed;
    struct qz_errors *errors; /* per row of the block */
    struct failure *failures; /* per worker */
    /* Error feedback: tiles of the block's rows, scratch of the workers. */
    struct qz_tile_map map;
    float *d;
};

bool qz_linear_bits_ok(int bits)
{
    return bits == 4 || bits == 8;
}

/* ---- one block ---- */

static float lanes_sum(const float s[LANES])
{
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

/* Nearest whole number, half to even; |v| below 2^22. */
static inline float whole(float v)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23 */

    return (v + magic) - magic;
}

static inline float to_grid(float v, float top)
{
    v = v > top ? top : v;
    return whole(v < -top - 1 ? -top - 1 : v);
}

struct sums {
    float error, xq, qq;
};

/* Over a block at scale s, whose inverse is down. Importances count in units of
 * their mean, whose inverse is `unit`. */
static struct sums block_sums(const float *x, const float *imp, float unit,
                              size_t n, float s, float down, float top)
{
    float error[LANES] = { 0 }, xq[LANES] = { 0 }, qq[LANES] = { 0 };
    size_t i, lane;

    for (i = 0; i + LANES <= n; i += LANES)
        for (lane = 0; lane < LANES; lane++) {
            float v = x[i + lane], q = to_grid(v * down, top), d = v - s * q;
            float w = imp != NULL ? imp[i + lane] * unit : 1;

            error[lane] += w * (d * d);
            xq[lane] += w * (v * q);
            qq[lane] += w * (q * q);
        }
    for (lane = 0; i < n; i++, lane++) {
        float v = x[i], q = to_grid(v * down, top), d = v - s * q;
        float w = imp != NULL ? imp[i] * unit : 1;

        error[lane] += w * (d * d);
        xq[lane] += w * (v * q);
        qq[lane] += w * (q * q);
    }
    return (struct sums){ lanes_sum(error), lanes_sum(xq), lanes_sum(qq) };
}

/* As it is stored: fp16, normal. */
static float stored(float s)
{
    float v = f16_to_f32(f32_to_f16(s));

    return v >= LEAST_NORMAL ? (v < INFINITY ? v : 65504.0f) : LEAST_NORMAL;
}

static void quantize(const float *x, size_t n, float s, float top, int8_t *q)
{
    float down = 1 / s;
    size_t i;

    for (i = 0; i < n; i++)
        q[i] = (int8_t)to_grid(x[i] * down, top);
}

static float largest(const float *x, size_t n)
{
    float max = 0;
    size_t i;

    for (i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    return max;
}

f16_t qz_linear_block(const float *x, const float *imp, size_t n, int top,
                      int8_t *q)
{
    float max = largest(x, n), best = 1, least = INFINITY, t = (float)top;
    float unit =
        imp != NULL ? qz_importance_scale(qz_importance_sum(imp, n), n, 0) : 0;
    float span;
    int i, step;

    if (!(unit > 0))
        imp = NULL;
    /* What is far out may count for little. */
    span = imp != NULL ? 2.0f : 0.6f;

    for (i = 0; i < STARTS && max > 0; i++) {
        float s = max / (t * (1 + span * (float)i / (STARTS - 1)));

        for (step = 0; step < 3; step++) {
            struct sums sum;

            s = stored(s);
            sum = block_sums(x, imp, unit, n, s, 1 / s, t);
            if (sum.error < least) {
                least = sum.error;
                best = s;
            }
            if (!(sum.qq > 0) || !(sum.xq > 0))
                break;
            s = sum.xq / sum.qq;
        }
    }
    quantize(x, n, best, t, q);
    return f32_to_f16(best);
}

/* ---- the matrix ---- */

static int check(const struct qz_source *src, int bits, uint64_t block,
                 struct err *e)
{
    uint64_t n;

    if (!qz_linear_bits_ok(bits))
        return err_set(e, ERR_INPUT, "linear weights have 4 or 8 bits, not %d",
                       bits);
    if (src->rows == 0 || src->cols == 0 || !mem_mul(src->rows, src->cols, &n))
        return err_set(e, ERR_INPUT,
                       "a matrix of %" PRIu64 " x %" PRIu64
                       " cannot be quantized",
                       src->rows, src->cols);
    if (block > src->cols || (block != 0 && src->cols % block != 0))
        return err_set(e, ERR_INPUT,
                       "blocks of %" PRIu64 " columns do not divide %" PRIu64
                       " columns",
                       block, src->cols);
    return 0;
}

struct qz_linear *qz_linear_new(const struct qz_source *src, int bits,
                                uint64_t block, struct par *par, struct err *e)
{
    struct qz_linear *l;

    if (check(src, bits, block, e) || (l = mem_zalloc(1, sizeof *l, e)) == NULL)
        return NULL;
    l->src = *src;
    l->bits = bits;
    l->top = (1 << (bits - 1)) - 1;
    l->whole = block == 0;
    l->block = l->whole ? src->cols : block;
    l->per_row = src->cols / l->block;
    l->par = par;
    l->workers = par_width(par);
    /* Pairs of rows end on a byte at any width. */
    l->block_rows = BLOCK_WEIGHTS / src->cols / 2 * 2;
    l->block_rows = l->block_rows > 0 ? l->block_rows : 2;
    l->blocks = (src->rows - 1) / l->block_rows + 1;
    l->loaded = l->blocks;
    l->scales = mem_alloc((size_t)qz_linear_scales(l), sizeof *l->scales, e);
    l->done = mem_zalloc((size_t)l->blocks, 1, e);
    if (l->scales != NULL && l->done != NULL)
        return l;
    qz_linear_free(l);
    return NULL;
}

static void drop_work(struct qz_linear *l)
{
    mem_free(l->values);
    mem_free(l->x);
    mem_free(l->importance);
    mem_free(l->q);
    mem_free(l->packed);
    mem_free(l->errors);
    mem_free(l->failures);
    mem_free(l->d);
    feed_map_release(&l->map);
    l->values = NULL;
    l->x = l->importance = NULL;
    l->q = NULL;
    l->packed = NULL;
    l->errors = NULL;
    l->failures = NULL;
    l->d = NULL;
    l->loaded = l->blocks;
}

void qz_linear_free(struct qz_linear *l)
{
    if (l == NULL)
        return;
    drop_work(l);
    mem_free(l->scales);
    mem_free(l->done);
    mem_free(l);
}

static int need_work(struct qz_linear *l, struct err *e)
{
    uint64_t rows = l->block_rows < l->src.rows ? l->block_rows : l->src.rows;
    size_t n = (size_t)(rows * l->src.cols);

    if (l->values != NULL)
        return 0;
    if ((l->values = mem_alloc(n, sizeof *l->values, e)) != NULL &&
        (l->x = mem_alloc(n, sizeof *l->x, e)) != NULL &&
        (l->q = mem_alloc(n, 1, e)) != NULL &&
        (l->packed = mem_alloc(n, 1, e)) != NULL &&
        (l->errors = mem_alloc((size_t)rows, sizeof *l->errors, e)) != NULL &&
        (l->failures = mem_alloc((size_t)l->workers, sizeof *l->failures, e)) !=
            NULL &&
        (l->src.read_importance == NULL ||
         (l->importance = mem_alloc(n, sizeof *l->importance, e)) != NULL) &&
        (l->src.moment == NULL ||
         ((l->map.rows = mem_alloc((size_t)rows, sizeof *l->map.rows, e)) !=
              NULL &&
          (l->d = mem_alloc_aligned((size_t)l->workers * (size_t)l->src.cols *
                                        FEED_LANES,
                                    sizeof *l->d, e)) != NULL)))
        return 0;
    drop_work(l);
    return -1;
}

uint64_t qz_linear_value_bytes(const struct qz_linear *l)
{
    return (l->src.rows * l->src.cols * (uint64_t)l->bits + 7) / 8;
}

uint64_t qz_linear_scales(const struct qz_linear *l)
{
    return l->whole ? 1 : l->src.rows * l->per_row;
}

void qz_linear_stats(const struct qz_linear *l, struct qz_stats *out)
{
    *out = l->stats;
}

/* A row as floats; false: a value is not finite. */
static bool load_row(struct qz_linear *l, uint64_t row, struct failure *fail)
{
    size_t cols = (size_t)l->src.cols, i;
    const uint16_t *v = l->values + row * cols;
    float *x = l->x + row * cols;
    size_t bad = qz_first_bad(v, cols, l->src.format);

    if (bad < cols) {
        if (row * cols + bad < fail->at) {
            fail->at = row * cols + bad;
            fail->bits = v[bad];
            err_reset(&fail->err);
        }
        return false;
    }
    if (l->src.format == QZ_BF16)
        num_bf16_to_f32(x, v, cols);
    else
        num_f16_to_f32(x, v, cols);
    for (i = 0; l->src.scale_exp != 0 && i < cols; i++)
        x[i] = ldexpf(x[i], l->src.scale_exp);
    return true;
}

static void row_errors(const struct qz_linear *l, uint64_t row,
                       const f16_t *scales, struct qz_errors *out)
{
    size_t cols = (size_t)l->src.cols, i;
    const float *x = l->x + row * cols, *imp = l->importance;
    const int8_t *q = l->q + row * cols;

    memset(out, 0, sizeof *out);
    for (i = 0; i < cols; i++) {
        double s = (double)f16_to_f32(scales[l->whole ? 0 : i / l->block]);
        double v = (double)x[i], d = v - s * q[i];
        double w = imp != NULL ? (double)imp[row * cols + i] : 1;

        out->sse += d * d;
        out->sum_sq += v * v;
        out->weighted += w * (d * d);
        out->weighted_sq += w * (v * v);
    }
}

/* Each worker reads its own. */
static bool read_some(struct qz_linear *l, uint64_t begin, uint64_t end,
                      struct failure *fail)
{
    struct err err = ERR_INIT;
    uint64_t cols = l->src.cols;

    if (l->src.read_rows(l->src.cookie, l->loaded * l->block_rows + begin,
                         end - begin, l->values + begin * cols, &err) == 0)
        return true;
    if (begin * cols < fail->at) {
        fail->at = begin * cols;
        fail->err = err;
    }
    return false;
}

static f16_t *scales_of(const struct qz_linear *l, uint64_t row)
{
    return l->whole
               ? l->scales
               : l->scales + (l->loaded * l->block_rows + row) * l->per_row;
}

/* By units of FEED_LANES rows, whose nearest integers are there. */
static void feed_units(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct qz_linear *l = arg;
    size_t cols = (size_t)l->src.cols;
    float *d = l->d + (size_t)worker * cols * FEED_LANES;

    for (; begin < end; begin++) {
        uint64_t row = begin * FEED_LANES, i;
        uint64_t n = l->rows - row < FEED_LANES ? l->rows - row : FEED_LANES;
        struct qz_scales s = { scales_of(l, row), l->whole ? 0 : l->per_row,
                               l->block, l->top };

        feed_integers(d, l->x + row * cols, (size_t)n, cols, l->map.rows + row,
                      &s, l->q + row * cols);
        for (i = row; i < row + n; i++)
            row_errors(l, i, scales_of(l, i), &l->errors[i]);
    }
}

static void do_rows(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct qz_linear *l = arg;
    uint64_t b;
    size_t cols = (size_t)l->src.cols;

    if (!read_some(l, begin, end, &l->failures[worker]))
        return;
    for (; begin < end; begin++) {
        f16_t *scales = scales_of(l, begin);
        size_t at = (size_t)begin * cols;

        if (!load_row(l, begin, &l->failures[worker]))
            continue;
        for (b = 0; b < l->per_row && !l->whole; b++)
            scales[b] = qz_linear_block(l->x + at + b * l->block,
                                        l->importance != NULL
                                            ? l->importance + at + b * l->block
                                            : NULL,
                                        (size_t)l->block, l->top,
                                        l->q + at + b * l->block);
        if (l->whole)
            quantize(l->x + at, cols, f16_to_f32(scales[0]), (float)l->top,
                     l->q + at);
        row_errors(l, begin, scales, &l->errors[begin]);
    }
}

static int first_failure(const struct qz_linear *l, uint64_t row, struct err *e)
{
    const struct failure *f = &l->failures[0];
    int i;

    for (i = 1; i < l->workers; i++)
        if (l->failures[i].at < f->at)
            f = &l->failures[i];
    if (f->at == UINT64_MAX)
        return 0;
    if (f->err.code)
        return err_copy(e, &f->err);
    return err_set(e, ERR_INPUT,
                   "weight at row %" PRIu64 ", column %" PRIu64 " is %s",
                   row + f->at / l->src.cols, f->at % l->src.cols,
                   qz_bad_name(f->bits, l->src.format));
}

/* Sets how many rows a block has, and reads their importances. */
static int begin_block(struct qz_linear *l, uint64_t block, struct err *e)
{
    uint64_t row = block * l->block_rows;
    int i;

    l->rows =
        l->src.rows - row < l->block_rows ? l->src.rows - row : l->block_rows;
    for (i = 0; i < l->workers; i++) {
        l->failures[i].at = UINT64_MAX;
        err_reset(&l->failures[i].err);
    }
    return l->importance != NULL
               ? l->src.read_importance(l->src.cookie, row, l->rows,
                                        l->importance, e)
               : 0;
}

/* The scale of all: by a pass over everything. */
static int whole_scale(struct qz_linear *l, struct err *e)
{
    float max = 0;
    uint64_t b, r;

    for (b = 0; b < l->blocks; b++) {
        if (begin_block(l, b, e) ||
            l->src.read_rows(l->src.cookie, b * l->block_rows, l->rows,
                             l->values, e))
            return -1;
        for (r = 0; r < l->rows; r++) {
            float m = load_row(l, r, &l->failures[0])
                          ? largest(l->x + r * l->src.cols, (size_t)l->src.cols)
                          : 0;

            max = m > max ? m : max;
        }
        if (first_failure(l, b * l->block_rows, e))
            return -1;
    }
    l->scales[0] = f32_to_f16(max > 0 ? stored(max / (float)l->top) : 1.0f);
    l->have_scale = true;
    return 0;
}

static void pack(struct qz_linear *l)
{
    size_t n = (size_t)(l->rows * l->src.cols), i;

    if (l->bits == 8) {
        memcpy(l->packed, l->q, n);
        return;
    }
    for (i = 0; i < n / 2; i++)
        l->packed[i] = (uint8_t)((l->q[2 * i] & 15) |
                                 (uint8_t)((l->q[2 * i + 1] & 15) << 4));
    if (n % 2 != 0)
        l->packed[n / 2] = (uint8_t)(l->q[n - 1] & 15);
}

static void add_stats(struct qz_linear *l)
{
    uint64_t i;

    for (i = 0; i < l->rows; i++) {
        l->stats.sse += l->errors[i].sse;
        l->stats.sum_sq += l->errors[i].sum_sq;
        l->stats.weighted += l->errors[i].weighted;
        l->stats.weighted_sq += l->errors[i].weighted_sq;
    }
    l->stats.weights += l->rows * l->src.cols;
    l->stats.groups += l->whole ? l->stats.groups == 0 : l->rows * l->per_row;
}

static int load_block(struct qz_linear *l, uint64_t block, struct err *e)
{
    if (l->loaded == block)
        return 0;
    l->loaded = l->blocks;
    if ((l->whole && !l->have_scale && whole_scale(l, e)) ||
        begin_block(l, block, e) ||
        (l->src.moment != NULL &&
         feed_map_rows(&l->map, &l->src, block * l->block_rows, l->rows, e)))
        return -1;
    l->loaded = block;
    par_for(l->par, l->rows, CHUNK / l->src.cols + 1, do_rows, l);
    if (first_failure(l, block * l->block_rows, e)) {
        l->loaded = l->blocks;
        return -1;
    }
    if (l->src.moment != NULL)
        par_for(l->par, (l->rows + FEED_LANES - 1) / FEED_LANES, 1, feed_units,
                l);
    pack(l);
    if (!l->done[block])
        add_stats(l);
    l->done[block] = 1;
    return 0;
}

int qz_linear_read_values(struct qz_linear *l, uint64_t offset, void *dst,
                          size_t n, struct err *e)
{
    uint64_t total = qz_linear_value_bytes(l);
    uint64_t size = l->block_rows * l->src.cols * (uint64_t)l->bits / 8, len;
    uint8_t *out = dst;

    if (qz_check_range(offset, n, total, "integers", e) || need_work(l, e))
        return -1;
    if (l->blocks == 1)
        size = total;
    for (; n > 0; n -= (size_t)len, offset += len, out += len) {
        uint64_t from = offset % size;

        len = size - from < n ? size - from : n;
        if (load_block(l, offset / size, e))
            return -1;
        memcpy(out, l->packed + from, (size_t)len);
    }
    if (offset == total)
        drop_work(l);
    return 0;
}

int qz_linear_read_scales(struct qz_linear *l, uint64_t offset, void *dst,
                          size_t n, struct err *e)
{
    uint8_t *out = dst;
    size_t i;

    if (qz_check_range(offset, n, qz_linear_scales(l) * sizeof(f16_t), "scales",
                       e))
        return -1;
    for (i = 0; i < n; i++) {
        uint64_t at = (offset + i) / 2;
        uint64_t block = l->whole ? 0 : at / l->per_row / l->block_rows;

        if (!l->done[block] && (need_work(l, e) || load_block(l, block, e)))
            return -1;
        out[i] = (uint8_t)(l->scales[at] >> ((offset + i) % 2 * 8));
    }
    return 0;
}
