/*
 * Finished matrices in the cache: what a matrix is made of as a key, and its
 * bytes from an entry or, on their way to the writer, into one.
 */
#include <string.h>

#include "converter/base/hash.h"
#include "converter/base/mem.h"
#include "converter/calib.h"
#include "converter/importance.h"
#include "converter/matrix_priv.h"

/* Weights that are hashed at a time, about. */
#define PIECE (UINT64_C(1) << 19)

static void add_number(struct hash_state *h, uint64_t v)
{
    uint8_t b[8];

    store_le64(b, v);
    hash_add(h, b, sizeof(b));
}

static bool weighted(const struct cv_matrix *m)
{
    return m->rows.read_importance != NULL;
}

/* All that the result depends on beside values and importances. A version of
 * the algorithm that gives other bytes gives other keys. */
static void add_settings(struct hash_state *h, const struct cv_matrix *m)
{
    add_number(h, QZ_RESULTS);
    add_number(h, m->rows.rows);
    add_number(h, m->rows.cols);
    add_number(h, m->rows.format == QZ_BF16);
    add_number(h, (uint64_t)(int64_t)m->rows.scale_exp);
    add_number(h, (uint64_t)m->lut.bits);
    add_number(h, m->lut.linear);
    add_number(h, m->lut.group);
    add_number(h, !weighted(m) ? 0 : m->job->calib ? 1 : 2);
    add_number(h, m->rows.moment != NULL);
}

struct scratch {
    uint64_t rows; /* that fit */
    uint16_t *values;
    float *importance; /* NULL: none from a file */
};

static void free_scratch(struct scratch *s)
{
    mem_free(s->values);
    mem_free(s->importance);
}

static int get_scratch(struct scratch *s, const struct cv_matrix *m,
                       struct err *e)
{
    uint64_t n;

    s->rows = PIECE / m->rows.cols + 1;
    s->rows = s->rows < m->rows.rows ? s->rows : m->rows.rows;
    n = s->rows * m->rows.cols;
    s->values = mem_alloc((size_t)n, sizeof(*s->values), e);
    if (!s->values)
        return -1;
    if (!weighted(m) || m->job->calib)
        return 0;
    s->importance = mem_alloc((size_t)n, sizeof(*s->importance), e);
    return s->importance ? 0 : -1;
}

/* Values as they are stored: what is not finite is told when they are
 * clustered, and is in no entry. */
static int add_values(struct hash_state *h, const struct cv_matrix *m,
                      struct scratch *s, struct err *e)
{
    uint64_t row, n;

    for (row = 0; row < m->rows.rows; row += n) {
        size_t weights;

        n = m->rows.rows - row < s->rows ? m->rows.rows - row : s->rows;
        weights = (size_t)(n * m->rows.cols);
        if (log_cancelled(m->job->opt.log))
            return err_set(e, ERR_CANCELLED, "interrupted");
        if (weights_raw_rows(m->source, row, n, s->values, e))
            return -1;
        hash_add(h, s->values, weights * sizeof(*s->values));
        if (!s->importance)
            continue;
        if (m->rows.read_importance(m->rows.cookie, row, n, s->importance, e))
            return -1;
        hash_add(h, s->importance, weights * sizeof(*s->importance));
    }
    return 0;
}

/* The moments of all inputs, each where it begins to count. */
static int add_moments(struct hash_state *h, const struct cv_matrix *m,
                       struct err *e)
{
    const struct need *nd = weights_need(m->source);
    uint64_t width = nd->dims[nd->rank - 1], end, el, run;
    struct hash128 last = { 0, 0 }, d;

    end = m->rows.rows * m->rows.cols;
    for (el = 0; el < end; el += run) {
        uint64_t at = weights_place(m->source, el, &run), col = at % width;

        run = run < width - col ? run : width - col;
        if (calib_digest(m->job->calib, m->source->origin->tensor, at / width,
                         &d, e))
            return -1;
        if (el && d.hi == last.hi && d.lo == last.lo)
            continue;
        add_number(h, el);
        add_number(h, d.hi);
        add_number(h, d.lo);
        last = d;
    }
    return 0;
}

static int make_key(const struct cv_matrix *m, struct hash128 *key,
                    struct err *e)
{
    struct scratch s = { 0 };
    struct hash_state *h = hash_new(e);
    int rc = -1;

    if (h && !get_scratch(&s, m, e)) {
        add_settings(h, m);
        rc = add_values(h, m, &s, e);
        if (!rc && weighted(m) && m->job->calib)
            rc = add_moments(h, m, e);
        *key = hash_get(h);
    }
    free_scratch(&s);
    hash_free(h);
    return rc;
}

void matrix_cache_close(struct cv_matrix *m)
{
    cache_found_free(m->found);
    cache_drop(m->fresh);
    m->found = NULL;
    m->fresh = NULL;
}

int matrix_cache_open(struct cv_matrix *m, struct err *e)
{
    uint64_t bytes = m->indices.bytes + m->tables.bytes;
    struct hash128 key;

    matrix_cache_close(m);
    if (!m->job->cache)
        return 0;
    if (make_key(m, &key, e))
        return -1;
    m->found = cache_find(m->job->cache, key, bytes);
    if (!m->found)
        m->fresh = cache_begin(m->job->cache, key, bytes);
    return 0;
}

int matrix_cache_read(struct cv_matrix *m, uint64_t at, void *dst, size_t n,
                      struct err *e)
{
    uint64_t have;

    if (!m->found)
        return 0;
    have = cache_at(m->found);
    /* Whoever reads backwards gets the rest by clustering. */
    if (at < have) {
        matrix_cache_close(m);
        return 0;
    }
    if (cache_read(m->found, NULL, (size_t)(at - have), e) ||
        cache_read(m->found, dst, n, e))
        return -1;
    if (at + n < m->indices.bytes + m->tables.bytes)
        return 1;
    if (cache_read_end(m->found, &m->stats, e))
        return -1;
    matrix_cache_close(m);
    return 1;
}

void matrix_cache_add(struct cv_matrix *m, uint64_t at, const void *p, size_t n)
{
    if (!m->fresh)
        return;
    if (at == cache_added(m->fresh))
        cache_add(m->fresh, p, n);
    else
        matrix_cache_close(m);
}

void matrix_cache_commit(struct cv_matrix *m)
{
    if (m->fresh)
        cache_commit(m->fresh, &m->stats);
    m->fresh = NULL;
}
