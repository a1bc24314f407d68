/*
 * A matrix as it is stored: its source checked, its palette made while the
 * writer reads.
 */
#include "converter/calib.h"
#include "converter/importance.h"
#include "converter/matrix_priv.h"

#include <inttypes.h>
#include <string.h>

/* The least magnitude, as a bit pattern, that is not finite in fp16 once it
 * is scaled. bf16 has nothing between 65280 and 65536. */
static uint16_t too_large(const struct weight_raw *raw)
{
    if (raw->is_bf16)
        return (uint16_t)(0x4780 - raw->scale_exp * 128);
    return (uint16_t)(0x7c00 -
                      (raw->scale_exp > 0 ? raw->scale_exp * 1024 : 0));
}

/* A table would hide what no fp16 package could hold. */
static int report_values(const struct mil_data *d, const struct weight_raw *raw,
                         uint64_t row, const uint16_t *v, uint64_t n,
                         struct err *e)
{
    uint16_t limit = too_large(raw), inf = raw->is_bf16 ? 0x7f80 : 0x7c00;
    uint64_t nan = 0, infinite = 0, large = 0, first = n;

    for (uint64_t i = 0; i < n; i++) {
        uint16_t a = v[i] & 0x7fff;

        if (a < limit)
            continue;
        first = i < first ? i : first;
        nan += a > inf;
        infinite += a == inf;
        large += a < inf;
    }
    row += d->origin->row;
    err_set(e, ERR_INPUT,
            "tensor '%s' holds %" PRIu64 " NaN, %" PRIu64
            " infinite values and %" PRIu64 " beyond fp16 in rows "
            "%" PRIu64 " to %" PRIu64 ", the first at row %" PRIu64
            ", column %" PRIu64,
            raw->tensor, nan, infinite, large, row, row + n / raw->cols - 1,
            row + first / raw->cols, first % raw->cols);
    return weights_error(d, e);
}

static int read_rows(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                     struct err *e)
{
    const struct cv_matrix *m = cookie;
    const struct mil_data *d = m->source;
    struct weight_raw raw;
    unsigned bad = 0;
    uint16_t limit;

    if (!weights_raw(d, &raw))
        BUG("a palette without a matrix");
    if (weights_raw_rows(d, row, n, dst, e))
        return -1;
    limit = too_large(&raw);
    for (uint64_t i = 0; i < n * raw.cols; i++)
        bad |= (dst[i] & 0x7fff) >= limit;
    return bad ? report_values(d, &raw, row, dst, n * raw.cols, e) : 0;
}

static int read_importance(void *cookie, uint64_t row, uint64_t n, float *dst,
                           struct err *e)
{
    const struct cv_matrix *m = cookie;

    return m->job->calib
               ? calib_rows(m->job->calib, m->source, row, n, dst, e)
               : importance_rows(m->job->importance, m->source, row, n, dst, e);
}

/* Tiles are as wide as the tensor: one, or one of each expert. */
static int read_moment(void *cookie, uint64_t row, uint64_t col, uint64_t *n,
                       const struct qz_moment **out, struct err *e)
{
    const struct cv_matrix *m = cookie;
    const struct need *nd = weights_need(m->source);
    uint64_t run, at;

    at = weights_place(m->source, row * m->rows.cols + col, &run);
    *n = nd->dims[nd->rank - 1];
    BUG_UNLESS(at % *n == 0);
    if (calib_feedback(m->job->calib, m->source->origin->tensor, at / *n, out,
                       e))
        return -1;
    if (*out && (*out)->width != *n)
        *out = NULL;
    return 0;
}

static int in_tensor(const struct cv_matrix *p, struct err *e)
{
    return err_in(e, "tensor '%s'", p->source->origin->tensor);
}

static uint64_t group_of(const struct cv_matrix *p)
{
    return p->lut.group ? p->lut.group : p->rows.rows;
}

static uint64_t block_of(const struct cv_matrix *p)
{
    return p->lut.group == CV_ROW ? p->rows.cols : p->lut.group;
}

static int open_palette(struct cv_matrix *p, struct err *e)
{
    if (p->lut.linear) {
        if (!p->linear)
            p->linear = qz_linear_new(&p->rows, p->lut.bits, block_of(p),
                                      p->job->opt.par, e);
        return p->linear ? 0 : -1;
    }
    if (!p->palette)
        p->palette = qz_palette_new(&p->rows, p->lut.bits, group_of(p),
                                    p->job->opt.par, e);
    return p->palette ? 0 : -1;
}

static void close_palette(struct cv_matrix *p)
{
    if (p->palette)
        qz_palette_stats(p->palette, &p->stats);
    if (p->linear)
        qz_linear_stats(p->linear, &p->stats);
    qz_palette_free(p->palette);
    qz_linear_free(p->linear);
    p->palette = NULL;
    p->linear = NULL;
}

static int read_indices(void *cookie, uint64_t offset, void *dst, size_t n,
                        struct err *e)
{
    struct cv_matrix *p = cookie;
    int rc;

    if (offset == 0 && matrix_cache_open(p, e))
        return in_tensor(p, e);
    rc = matrix_cache_read(p, offset, dst, n, e);
    if (rc)
        return rc > 0 ? 0 : in_tensor(p, e);
    if (open_palette(p, e) ||
        (p->linear ? qz_linear_read_values(p->linear, offset, dst, n, e)
                   : qz_palette_read_indices(p->palette, offset, dst, n, e)))
        return in_tensor(p, e);
    matrix_cache_add(p, offset, dst, n);
    return 0;
}

/* A table of a few entries stands in the program itself. Entries that are
 * printed as long as any: -0x1.ffcp-14. */
static int fill(uint8_t *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = i % 2 ? 0x87 : 0xff;
    return 0;
}

static int read_tables(void *cookie, uint64_t offset, void *dst, size_t n,
                       struct err *e)
{
    struct cv_matrix *p = cookie;
    uint64_t at = p->indices.bytes + offset;
    int rc;

    if (p->measuring)
        return fill(dst, n);
    rc = matrix_cache_read(p, at, dst, n, e);
    if (rc)
        return rc > 0 ? 0 : in_tensor(p, e);
    if (open_palette(p, e) ||
        (p->linear ? qz_linear_read_scales(p->linear, offset, dst, n, e)
                   : qz_palette_read_tables(p->palette, offset, dst, n, e)))
        return in_tensor(p, e);
    matrix_cache_add(p, at, dst, n);
    if (offset + n == p->tables.bytes) {
        close_palette(p);
        matrix_cache_commit(p);
    }
    return 0;
}

static enum mil_dtype index_dtype(int bits)
{
    switch (bits) {
    case 1: return MIL_U1;
    case 2: return MIL_U2;
    case 3: return MIL_U3;
    case 4: return MIL_U4;
    case 6: return MIL_U6;
    default: return MIL_U8;
    }
}

/* What begins at `start` is dropped where the line before it is the same: the
 * outputs of an LM head are pieces of one tensor. */
static void note_once(struct buf *notes, size_t start)
{
    size_t n = notes->len - start;

    if (!notes->data || n > start ||
        memcmp(notes->data + start - n, notes->data + start, n) != 0)
        return;
    notes->len = start;
    notes->data[start] = '\0';
}

static int group_rows(struct cv_job *j, struct cv_part *part,
                      const struct weight_raw *raw, uint64_t wanted,
                      uint64_t *group, struct err *e)
{
    size_t before = j->notes.len;

    *group = qz_fit_group(raw->rows, wanted);
    if (!wanted || *group == wanted)
        return 0;
    if (j->opt.strict)
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor '%s': its %" PRIu64 " rows are not divisible "
                       "by the group of %" PRIu64 " output channels (the "
                       "largest that divides is %" PRIu64 "; --strict refuses "
                       "the fallback)",
                       raw->tensor, raw->rows, wanted, *group);
    part->fallback_tensors++;
    buf_printf(&j->notes,
               "tensor '%s': %" PRIu64 " rows are not divisible by a group of "
               "%" PRIu64 ", using %" PRIu64 "%s\n",
               raw->tensor, raw->rows, wanted, *group,
               *group < 4 ? " (small groups halve the speed of the Neural "
                            "Engine)"
                          : "");
    note_once(&j->notes, before);
    return 0;
}

/* The same for input channels. */
static int block_cols(struct cv_job *j, struct cv_part *part,
                      const struct weight_raw *raw, uint64_t wanted,
                      uint64_t *block, struct err *e)
{
    size_t before = j->notes.len;

    if (!wanted || wanted == CV_ROW)
        return 0;
    *block = qz_fit_group(raw->cols, wanted);
    if (*block == wanted)
        return 0;
    if (j->opt.strict)
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor '%s': its %" PRIu64 " columns are not divisible "
                       "by the block of %" PRIu64 " input channels (the "
                       "largest that divides is %" PRIu64 "; --strict refuses "
                       "the fallback)",
                       raw->tensor, raw->cols, wanted, *block);
    part->fallback_tensors++;
    buf_printf(&j->notes,
               "tensor '%s': %" PRIu64 " columns are not divisible by a block "
               "of %" PRIu64 ", using %" PRIu64 "\n",
               raw->tensor, raw->cols, wanted, *block);
    note_once(&j->notes, before);
    return 0;
}

static void describe_linear(struct cv_matrix *m)
{
    struct mil_type *t = &m->tables.type;

    m->indices = *m->source;
    m->indices.type.dtype = m->lut.bits == 4 ? MIL_I4 : MIL_I8;
    m->indices.bytes = (uint64_t)mil_type_bytes(&m->indices.type);
    m->indices.read = read_indices;
    m->indices.cookie = m;
    *t = mil_type_make(MIL_F16, 0, NULL);
    t->rank = m->source->type.rank;
    for (int i = 0; i < t->rank; i++)
        t->dims[i] = 1;
    if (m->lut.group) {
        t->dims[0] = (int64_t)m->rows.rows;
        t->dims[1] = (int64_t)(m->rows.cols / block_of(m));
    }
    m->tables.bytes = (uint64_t)mil_type_bytes(t);
    m->tables.read = read_tables;
    m->tables.cookie = m;
}

static void describe_palette(struct cv_matrix *p)
{
    const struct mil_type *t = &p->source->type;
    struct mil_type *tt = &p->tables.type;

    p->indices = *p->source;
    p->indices.type.dtype = index_dtype(p->lut.bits);
    p->indices.bytes = (uint64_t)mil_type_bytes(&p->indices.type);
    p->indices.read = read_indices;
    p->indices.cookie = p;

    *tt = mil_type_make(MIL_F16, 0, NULL);
    tt->rank = t->rank + 2;
    for (int i = 0; i < tt->rank; i++)
        tt->dims[i] = 1;
    tt->dims[0] = (int64_t)(p->rows.rows / group_of(p));
    tt->dims[t->rank] = (int64_t)1 << p->lut.bits;
    p->tables.bytes = (uint64_t)mil_type_bytes(tt);
    p->tables.read = read_tables;
    p->tables.cookie = p;
}

enum cv_method cv_method_for(const struct cv_job *j, enum mil_role role)
{
    if (j->importance)
        return CV_IMPORTANCE;
    /* Calibration does not say which rows of a token table are looked up. */
    if (!j->calib || role == MIL_ROLE_EMBEDDING)
        return CV_KMEANS;
    return j->opt.gptq ? CV_GPTQ : CV_CALIB;
}

static void describe_rows(struct cv_matrix *m, const struct weight_raw *raw)
{
    m->rows.rows = raw->rows;
    m->rows.cols = raw->cols;
    m->rows.format = raw->is_bf16 ? QZ_BF16 : QZ_F16;
    m->rows.scale_exp = raw->scale_exp;
    m->rows.read_rows = read_rows;
    m->rows.cookie = m;
    m->method = cv_method_for(m->job, m->source->role);
    if (m->method != CV_KMEANS)
        m->rows.read_importance = read_importance;
    if (m->method == CV_GPTQ)
        m->rows.moment = read_moment;
}

/* What cannot be stored so is told before anything is written. */
static int check_matrix(struct cv_matrix *m, struct err *e)
{
    if (m->job->importance &&
        importance_check(m->job->importance, m->source, e))
        return -1;
    if (open_palette(m, e))
        return -1;
    close_palette(m);
    return 0;
}

struct cv_matrix *cv_matrix_for(struct cv_job *j, struct cv_part *part,
                                struct cv_matrices *ms, const char *name,
                                const struct mil_data *d,
                                const struct cv_lut *lut, struct err *e)
{
    struct weight_raw raw;
    struct cv_matrix *m;

    for (size_t i = 0; i < ms->n; i++)
        if (ms->items[i]->source == d)
            return ms->items[i];
    if (!weights_raw(d, &raw)) {
        err_set(e, ERR_INPUT,
                "a constant of the graph cannot be palettized: "
                "it is no matrix of the checkpoint");
        return NULL;
    }
    if (mem_grow((void **)&ms->items, &ms->cap, ms->n, sizeof(*ms->items), e))
        return NULL;
    m = mem_zalloc(1, sizeof(*m), e);
    if (!m)
        return NULL;
    m->source = d;
    m->name = name;
    m->asked = m->lut = *lut;
    m->job = j;
    if (lut->linear ? block_cols(j, part, &raw, lut->group, &m->lut.group, e)
                    : group_rows(j, part, &raw, lut->group, &m->lut.group, e)) {
        mem_free(m);
        return NULL;
    }
    describe_rows(m, &raw);
    if (lut->linear)
        describe_linear(m);
    else
        describe_palette(m);
    if (check_matrix(m, e)) {
        mem_free(m);
        return NULL;
    }
    ms->items[ms->n++] = m;
    return m;
}

int cv_matrix_keep(struct cv_matrices *ms, const struct mil_data *d,
                   bool pinned, struct err *e)
{
    for (size_t i = 0; i < ms->n_kept; i++)
        if (ms->kept[i].source == d)
            return 0;
    if (mem_grow((void **)&ms->kept, &ms->cap_kept, ms->n_kept,
                 sizeof(*ms->kept), e))
        return -1;
    ms->kept[ms->n_kept++] = (struct cv_kept){ d, pinned };
    return 0;
}

void cv_matrices_clear(struct cv_matrices *ms)
{
    for (size_t i = 0; i < ms->n; i++) {
        close_palette(ms->items[i]);
        matrix_cache_close(ms->items[i]);
        mem_free(ms->items[i]);
    }
    mem_free(ms->items);
    mem_free(ms->kept);
    memset(ms, 0, sizeof(*ms));
}

void cv_matrices_free(struct cv_matrices *ms)
{
    if (ms)
        cv_matrices_clear(ms);
    mem_free(ms);
}
