/*
 * A palettized matrix, computed while it is read.
 *
 * The matrix is cut into blocks of whole rows whose packed indices begin and
 * end on a byte. If groups are small a block holds whole groups, and its
 * groups are clustered in parallel when the block is first wanted. A large
 * group (one table for the whole tensor) is read twice: for the histogram of
 * all its rows, then block by block for the indices. Of what was clustered
 * only the tables stay; the indices of a block that is asked for again are
 * found again from them.
 */
#include <inttypes.h>
#include <string.h>

#include "converter/base/mem.h"
#include "quant/palette_priv.h"

/* Weights in a block, about. */
#define BLOCK_WEIGHTS (UINT64_C(1) << 20)
/* Groups beyond this are large. */
#define SMALL_GROUP (UINT64_C(1) << 21)
/* Weights that one thread packs, assigns or counts at a time: whole bytes
 * at every width. */
#define PIECE (UINT64_C(1) << 16)
#define MAX_COLS (UINT64_C(1) << 27)

/* Every finite key, for thresholds of values not known yet. */
static struct qz_span any_span(enum qz_format f)
{
    int16_t inf = (int16_t)qz_layout(f).inf;
    struct qz_span span = { (int16_t)-inf, (int16_t)(inf - 1), 0 };

    return span;
}

static uint64_t gcd8(uint64_t n)
{
    return n % 8 == 0 ? 8 : n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1;
}

/* Units (groups or rows of `weights` each) in a block: whole bytes, about
 * BLOCK_WEIGHTS. */
static uint64_t block_units(uint64_t weights, int bits)
{
    uint64_t align = 8 / gcd8(weights % 8 * (uint64_t)bits);
    uint64_t n = BLOCK_WEIGHTS / weights / align * align;

    return n > 0 ? n : align;
}

static int check_source(const struct qz_source *src, int bits, uint64_t group,
                        struct err *e)
{
    uint64_t n;

    if (qz_check_options(bits, src->scale_exp, e))
        return -1;
    if (src->rows == 0 || src->cols == 0 || src->cols > MAX_COLS ||
        !mem_mul(src->rows, src->cols, &n) || !mem_mul(n, 8, &n))
        return err_set(e, ERR_INPUT,
                       "a matrix of %" PRIu64 " x %" PRIu64
                       " cannot be palettized",
                       src->rows, src->cols);
    if (group == 0 || group > src->rows || src->rows % group != 0)
        return err_set(e, ERR_INPUT,
                       "groups of %" PRIu64 " rows do not divide %" PRIu64
                       " rows",
                       group, src->rows);
    if (group * src->cols > QZ_MAX_GROUP)
        return err_set(e, ERR_INPUT,
                       "a group has %" PRIu64 " weights, more than %" PRIu64,
                       group * src->cols, QZ_MAX_GROUP);
    return 0;
}

static void set_blocks(struct qz_palette *p)
{
    uint64_t gw = p->group_weights;

    p->large = gw > SMALL_GROUP / 8 * gcd8(gw % 8 * (uint64_t)p->bits);
    p->block_rows = p->large ? block_units(p->src.cols, p->bits)
                             : block_units(gw, p->bits) * p->group;
    if (p->block_rows > p->src.rows)
        p->block_rows = p->src.rows;
    p->blocks = (p->src.rows - 1) / p->block_rows + 1;
    p->block = p->blocks;
    p->nearest_group = p->groups;
}

static int get_tables(struct qz_palette *p, struct err *e)
{
    uint64_t elems;

    if (!mem_mul(p->groups, p->k, &elems) || elems > SIZE_MAX / 2)
        return err_set(e, ERR_NOMEM, "tables of %" PRIu64 " groups", p->groups);
    if ((p->tables = mem_alloc((size_t)elems, sizeof(f16_t), e)) == NULL ||
        (p->done = mem_zalloc((size_t)p->groups, 1, e)) == NULL)
        return -1;
    return 0;
}

/* What a block needs while it is worked on. A conversion has hundreds of
 * palettes and reads one at a time: each takes this when it is first read
 * and gives it back behind its last byte. */
static int get_work(struct qz_palette *p, struct err *e)
{
    size_t block = (size_t)(p->block_rows * p->src.cols);
    size_t workers = (size_t)p->workers, i;

    if ((p->values = mem_alloc(block, sizeof(uint16_t), e)) == NULL ||
        (p->indices = mem_alloc(block, 1, e)) == NULL ||
        (p->packed = mem_alloc(block, 1, e)) == NULL ||
        (p->scratch = mem_zalloc(workers, sizeof *p->scratch, e)) == NULL ||
        (p->failures = mem_zalloc(workers, sizeof *p->failures, e)) == NULL)
        return -1;
    for (i = 0; i < workers; i++)
        if ((p->scratch[i] = qz_scratch_new(e)) == NULL)
            return -1;
    if (p->src.read_importance != NULL &&
        (p->importance = mem_alloc(block, sizeof *p->importance, e)) == NULL)
        return -1;
    if (p->src.moment != NULL && palette_feed_new(p, e))
        return -1;
    if (!p->large) {
        p->results = mem_alloc((size_t)(p->block_rows / p->group),
                               sizeof *p->results, e);
        return p->results != NULL ? 0 : -1;
    }
    if ((p->wide = mem_alloc(KEYS, sizeof *p->wide, e)) == NULL ||
        (p->spans = mem_alloc(workers, sizeof *p->spans, e)) == NULL)
        return -1;
    for (i = 0; i < workers && p->importance != NULL; i++)
        if ((p->scratch[i]->heavy =
                 mem_zalloc(KEYS, sizeof *p->scratch[i]->heavy, e)) == NULL)
            return -1;
    return 0;
}

static void drop_work(struct qz_palette *p)
{
    int i;

    for (i = 0; p->scratch != NULL && i < p->workers; i++)
        qz_scratch_free(p->scratch[i]);
    mem_free(p->scratch);
    mem_free(p->failures);
    mem_free(p->values);
    mem_free(p->importance);
    mem_free(p->indices);
    mem_free(p->packed);
    mem_free(p->results);
    mem_free(p->wide);
    mem_free(p->spans);
    palette_feed_free(p);
    p->scratch = NULL;
    p->failures = NULL;
    p->values = NULL;
    p->importance = NULL;
    p->indices = p->packed = NULL;
    p->results = NULL;
    p->wide = NULL;
    p->spans = NULL;
    p->working = false;
    p->block = p->blocks;
    p->nearest_group = p->groups;
}

static int need_work(struct qz_palette *p, struct err *e)
{
    if (p->working)
        return 0;
    p->working = true;
    if (!get_work(p, e))
        return 0;
    drop_work(p);
    return -1;
}

struct qz_palette *qz_palette_new(const struct qz_source *src, int bits,
                                  uint64_t group, struct par *par,
                                  struct err *e)
{
    struct qz_palette *p;

    if (check_source(src, bits, group, e) ||
        (p = mem_zalloc(1, sizeof *p, e)) == NULL)
        return NULL;
    p->src = *src;
    p->bits = bits;
    p->k = 1u << bits;
    p->group = group;
    p->group_weights = group * src->cols;
    p->groups = src->rows / group;
    p->par = par;
    p->workers = par_width(par);
    set_blocks(p);
    if (get_tables(p, e)) {
        qz_palette_free(p);
        return NULL;
    }
    return p;
}

void qz_palette_free(struct qz_palette *p)
{
    if (p == NULL)
        return;
    drop_work(p);
    mem_free(p->tables);
    mem_free(p->done);
    mem_free(p->counted);
    mem_free(p);
}

uint64_t qz_palette_index_bytes(const struct qz_palette *p)
{
    return (p->src.rows * p->src.cols * (uint64_t)p->bits + 7) / 8;
}

uint64_t qz_palette_table_elems(const struct qz_palette *p)
{
    return p->groups * p->k;
}

void qz_palette_stats(const struct qz_palette *p, struct qz_stats *out)
{
    *out = p->stats;
}

static void add_stats(struct qz_palette *p, const struct qz_result *r)
{
    p->stats.sse += r->sse;
    p->stats.sum_sq += r->sum_sq;
    p->stats.weighted += r->weighted;
    p->stats.weighted_sq += r->weighted_sq;
    p->stats.groups++;
    p->stats.weights += p->group_weights;
}

static int report_bad(const struct qz_palette *p, uint64_t row, size_t at,
                      uint16_t bits, struct err *e)
{
    return err_set(e, ERR_INPUT,
                   "weight at row %" PRIu64 ", column %" PRIu64 " is %s",
                   row + at / p->src.cols, at % p->src.cols,
                   qz_bad_name(bits, p->src.format));
}

static int report_group(const struct qz_palette *p, uint64_t g, struct err *e)
{
    return err_in(e, "rows %" PRIu64 " to %" PRIu64, g * p->group,
                  (g + 1) * p->group - 1);
}

/* Rows of groups of the block into `values`. Each worker reads its own: reading
 * costs a tenth of clustering, and waits for the disk. */
static bool read_groups(struct qz_palette *p, uint64_t begin, uint64_t end,
                        struct failure *fail)
{
    uint64_t g = p->first_group + begin;
    struct err err = ERR_INIT;

    if (p->src.read_rows(p->src.cookie, g * p->group, (end - begin) * p->group,
                         p->values + begin * p->group_weights, &err) == 0)
        return true;
    if (g < fail->group) {
        fail->group = g;
        fail->read = true;
        fail->err = err;
    }
    return false;
}

/* Small groups of the block: by clustering, or from their tables. */
static void do_groups(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct qz_palette *p = arg;
    struct qz_scratch *s = p->scratch[worker];
    struct failure *fail = &p->failures[worker];
    const struct qz_span any = any_span(p->src.format);
    size_t n = (size_t)p->group_weights, bad;
    uint64_t i;

    if (!read_groups(p, begin, end, fail))
        return;
    for (i = begin; i < end; i++) {
        uint64_t g = p->first_group + i;
        const uint16_t *v = p->values + i * n;
        f16_t *table = p->tables + g * p->k;
        struct err err = ERR_INIT;

        if (p->done[g] && p->src.moment == NULL) {
            qz_nearest_set(s->nearest, table, p->bits, p->src.format,
                           p->src.scale_exp, &any);
            qz_nearest_map(s->nearest, p->indices + i * n, v, n);
            continue;
        }
        if (qz_group(s, v, p->importance ? p->importance + i * n : NULL, n,
                     p->src.format, p->src.scale_exp, p->bits, table,
                     p->indices + i * n, &p->results[i], &bad, &err) &&
            g < fail->group) {
            fail->group = g;
            fail->read = false;
            fail->bad = bad;
            fail->bits = bad < n ? v[bad] : 0;
            fail->err = err;
        }
    }
}

/* The error of the first group that failed, whoever worked on it. */
static int first_failure(const struct qz_palette *p, struct err *e)
{
    const struct failure *first = &p->failures[0];
    int i;

    for (i = 1; i < p->workers; i++)
        if (p->failures[i].group < first->group)
            first = &p->failures[i];
    if (first->group == UINT64_MAX)
        return 0;
    if (!first->read && first->bad < p->group_weights)
        return report_bad(p, first->group * p->group, first->bad, first->bits,
                          e);
    (void)err_copy(e, &first->err);
    return first->read ? -1 : report_group(p, first->group, e);
}

static void forget_failures(struct qz_palette *p)
{
    for (int w = 0; w < p->workers; w++)
        p->failures[w].group = UINT64_MAX;
}

static int read_importance(struct qz_palette *p, uint64_t row, uint64_t rows,
                           struct err *e)
{
    return p->importance != NULL
               ? p->src.read_importance(p->src.cookie, row, rows, p->importance,
                                        e)
               : 0;
}

/* Some rows of a stretch of a large group. */
static void do_read(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct qz_palette *p = arg;
    struct failure *fail = &p->failures[worker];
    struct err err = ERR_INIT;

    if (p->src.read_rows(p->src.cookie, p->read_row + begin, end - begin,
                         p->values + begin * p->src.cols, &err) == 0 ||
        begin >= fail->group)
        return;
    fail->group = begin;
    fail->read = true;
    fail->err = err;
}

static int read_values(struct qz_palette *p, uint64_t row, uint64_t rows,
                       struct err *e)
{
    forget_failures(p);
    p->read_row = row;
    par_for(p->par, rows, PIECE / p->src.cols + 1, do_read, p);
    return first_failure(p, e);
}

static int read_block(struct qz_palette *p, uint64_t row, uint64_t rows,
                      struct err *e)
{
    return read_values(p, row, rows, e) || read_importance(p, row, rows, e) ? -1
                                                                            : 0;
}

static int small_block(struct qz_palette *p, uint64_t row, uint64_t rows,
                       struct err *e)
{
    uint64_t n = rows / p->group, i;

    p->first_group = row / p->group;
    forget_failures(p);
    if (read_importance(p, row, rows, e))
        return -1;
    par_for(p->par, n, PIECE / 8 / p->group_weights + 1, do_groups, p);
    if (first_failure(p, e))
        return -1;
    if (p->src.moment != NULL) {
        if (palette_feed_tiles(p, row, rows, e))
            return -1;
        palette_feed_groups(p, n);
    }
    for (i = 0; i < n; i++) {
        if (!p->done[p->first_group + i])
            add_stats(p, &p->results[i]);
        p->done[p->first_group + i] = 1;
    }
    return 0;
}

static void do_count(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct qz_palette *p = arg;

    for (; begin < end; begin++) {
        uint64_t at = begin * PIECE, left = p->weights - at;
        size_t n = (size_t)(left < PIECE ? left : PIECE);
        struct qz_scratch *s = p->scratch[worker];

        if (p->importance != NULL)
            qz_count_heavy(s->heavy, &p->spans[worker], p->values + at,
                           p->importance + at, p->scale, n);
        else
            qz_count(s->counts, &p->spans[worker], p->values + at, n);
    }
}

static uint64_t pieces(uint64_t weights)
{
    return (weights + PIECE - 1) / PIECE;
}

/* Counts of one stretch of rows, added to `wide`. */
static int count_rows(struct qz_palette *p, uint64_t row, uint64_t rows,
                      void *span, struct err *e)
{
    const struct qz_span none = QZ_SPAN_INIT;
    struct qz_span here = none;
    int w;

    if (read_block(p, row, rows, e))
        return -1;
    for (w = 0; w < p->workers; w++)
        p->spans[w] = none;
    p->weights = rows * p->src.cols;
    par_for(p->par, pieces(p->weights), 1, do_count, p);
    for (w = 0; w < p->workers; w++) {
        qz_span_join(&here, &p->spans[w]);
        if (p->importance != NULL)
            qz_fold_heavy(p->wide, p->scratch[w]->heavy, &p->spans[w]);
        else
            qz_fold(p->wide, p->scratch[w]->counts, &p->spans[w]);
    }
    if (!qz_span_finite(&here, p->src.format)) {
        size_t at = qz_first_bad(p->values, (size_t)p->weights, p->src.format);

        return report_bad(p, row, at, p->values[at], e);
    }
    qz_span_join(span, &here);
    return 0;
}

static void do_nearest(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct qz_palette *p = arg;
    const struct qz_nearest *a = p->scratch[0]->nearest;

    (void)worker;
    for (; begin < end; begin++) {
        uint64_t at = begin * PIECE, left = p->weights - at;

        qz_nearest_map(a, p->indices + at, p->values + at,
                       (size_t)(left < PIECE ? left : PIECE));
    }
}

/* Mean of a large group's importances as whole numbers: their sum stays far
 * below 2^52, which leaves room for the values. */
static int heavy_shift(uint64_t weights)
{
    int shift = 10;

    while (shift > 0 && weights > UINT64_C(1) << (40 - shift))
        shift--;
    return shift;
}

/* Calls `each` for stretches of a large group's rows. */
static int each_stretch(struct qz_palette *p, uint64_t g, void *arg,
                        int (*each)(struct qz_palette *p, uint64_t row,
                                    uint64_t rows, void *arg, struct err *e),
                        struct err *e)
{
    uint64_t row = g * p->group, end = row + p->group, n;

    for (; row < end; row += n) {
        n = end - row < p->block_rows ? end - row : p->block_rows;
        if (each(p, row, n, arg, e))
            return -1;
    }
    return 0;
}

static int add_importance(struct qz_palette *p, uint64_t row, uint64_t rows,
                          void *sum, struct err *e)
{
    if (read_importance(p, row, rows, e))
        return -1;
    *(double *)sum +=
        qz_importance_sum(p->importance, (size_t)(rows * p->src.cols));
    return 0;
}

static int add_errors(struct qz_palette *p, uint64_t row, uint64_t rows,
                      void *sum, struct err *e)
{
    uint64_t g = row / p->group;

    if (read_block(p, row, rows, e))
        return -1;
    p->weights = rows * p->src.cols;
    par_for(p->par, pieces(p->weights), 1, do_nearest, p);
    qz_errors_add(sum, p->values, p->indices, p->tables + g * p->k, p->bits,
                  p->importance, (size_t)p->weights, p->src.format,
                  p->src.scale_exp);
    return 0;
}

static void set_nearest(struct qz_palette *p, uint64_t g)
{
    const struct qz_span any = any_span(p->src.format);

    if (p->nearest_group != g)
        qz_nearest_set(p->scratch[0]->nearest, p->tables + g * p->k, p->bits,
                       p->src.format, p->src.scale_exp, &any);
    p->nearest_group = g;
}

/* The counts of a weighted group do not tell these. */
static int weighted_errors(struct qz_palette *p, uint64_t g,
                           struct qz_result *r, struct err *e)
{
    struct qz_errors sum = { 0, 0, 0, 0 };

    set_nearest(p, g);
    if (each_stretch(p, g, &sum, add_errors, e))
        return -1;
    r->sse = sum.sse;
    r->sum_sq = sum.sum_sq;
    r->weighted = sum.weighted;
    r->weighted_sq = sum.weighted_sq;
    return 0;
}

/* The table of one large group. */
static int large_table(struct qz_palette *p, uint64_t g, struct err *e)
{
    struct qz_scratch *s = p->scratch[0];
    struct qz_span span = QZ_SPAN_INIT;
    struct qz_result result;
    double sum = 0;

    if (p->done[g])
        return 0;
    memset(p->wide, 0, KEYS * sizeof *p->wide);
    if (p->importance != NULL && each_stretch(p, g, &sum, add_importance, e))
        return -1;
    p->scale = qz_importance_scale(sum, p->group_weights,
                                   heavy_shift(p->group_weights));
    if (each_stretch(p, g, &span, count_rows, e))
        return -1;
    s->m = qz_compact_wide(p->wide, &span, s->keys, s->w);
    if (qz_table(s, &span, p->src.format, p->src.scale_exp, p->bits,
                 p->tables + g * p->k, &result, e))
        return report_group(p, g, e);
    if (p->src.moment != NULL) {
        p->stats.groups++; /* its figures come with the codes */
    } else {
        if (p->importance != NULL && weighted_errors(p, g, &result, e))
            return -1;
        add_stats(p, &result);
    }
    p->done[g] = 1;
    return 0;
}

static int large_block(struct qz_palette *p, uint64_t row, uint64_t rows,
                       struct err *e)
{
    uint64_t first = row, end = row + rows, n, g;
    uint8_t *indices = p->indices;
    uint16_t *values = p->values;

    for (g = row / p->group; g * p->group < end; g++)
        if (large_table(p, g, e))
            return -1;
    if (p->src.moment != NULL
            ? read_block(p, row, rows, e) || palette_feed_tiles(p, row, rows, e)
            : read_values(p, row, rows, e))
        return -1;
    /* The pieces of each group that has rows here. */
    for (; row < end; row += n) {
        g = row / p->group;
        n = (g + 1) * p->group < end ? (g + 1) * p->group - row : end - row;
        set_nearest(p, g);
        p->weights = n * p->src.cols;
        par_for(p->par, pieces(p->weights), 1, do_nearest, p);
        p->values += p->weights;
        p->indices += p->weights;
    }
    p->values = values;
    p->indices = indices;
    for (row = first; p->src.moment != NULL && row < end; row += n) {
        g = row / p->group;
        n = (g + 1) * p->group < end ? (g + 1) * p->group - row : end - row;
        palette_feed_part(p, row - first, n, g,
                          !p->counted[first / p->block_rows]);
    }
    if (p->src.moment != NULL)
        p->counted[first / p->block_rows] = 1;
    return 0;
}

static void do_pack(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct qz_palette *p = arg;

    (void)worker;
    for (; begin < end; begin++) {
        uint64_t at = begin * PIECE, left = p->weights - at;

        qz_pack(p->packed + at / 8 * (uint64_t)p->bits, p->indices + at,
                (size_t)(left < PIECE ? left : PIECE), p->bits);
    }
}

static int load_block(struct qz_palette *p, uint64_t block, struct err *e)
{
    uint64_t row = block * p->block_rows, rows = p->src.rows - row;
    int rc;

    if (p->block == block)
        return 0;
    p->block = p->blocks;
    if (rows > p->block_rows)
        rows = p->block_rows;
    rc = p->large ? large_block(p, row, rows, e) : small_block(p, row, rows, e);
    if (rc)
        return -1;
    p->weights = rows * p->src.cols;
    par_for(p->par, pieces(p->weights), 1, do_pack, p);
    p->block = block;
    return 0;
}

int qz_check_range(uint64_t offset, size_t n, uint64_t total, const char *what,
                   struct err *e)
{
    if (offset <= total && n <= total - offset)
        return 0;
    return err_set(e, ERR_INPUT,
                   "%zu bytes at %" PRIu64 " of %" PRIu64 " bytes of %s", n,
                   offset, total, what);
}

int qz_palette_read_indices(struct qz_palette *p, uint64_t offset, void *dst,
                            size_t n, struct err *e)
{
    uint64_t total = qz_palette_index_bytes(p);
    uint64_t size = p->block_rows * p->src.cols * (uint64_t)p->bits / 8;
    uint64_t block, from, len;
    uint8_t *out = dst;

    if (qz_check_range(offset, n, total, "indices", e) || need_work(p, e))
        return -1;
    /* One block may end inside a byte: the only one, or the last. */
    if (p->blocks == 1)
        size = total;
    for (; n > 0; n -= (size_t)len, offset += len, out += len) {
        block = offset / size;
        from = offset % size;
        len = size - from < n ? size - from : n;
        if (load_block(p, block, e))
            return -1;
        memcpy(out, p->packed + from, (size_t)len);
    }
    if (offset == total)
        drop_work(p);
    return 0;
}

int qz_palette_read_tables(struct qz_palette *p, uint64_t offset, void *dst,
                           size_t n, struct err *e)
{
    uint64_t size = (uint64_t)p->k * sizeof(f16_t), at, g;
    uint8_t *out = dst;
    size_t i;

    if (qz_check_range(offset, n, p->groups * size, "tables", e))
        return -1;
    for (i = 0; i < n; i++) {
        at = offset + i;
        g = at / size;
        if (!p->done[g] &&
            (need_work(p, e) ||
             (p->large ? large_table(p, g, e)
                       : load_block(p, g * p->group / p->block_rows, e))))
            return -1;
        out[i] = (uint8_t)(p->tables[at / 2] >> (at % 2 * 8));
    }
    return 0;
}
