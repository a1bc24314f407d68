/*
 * Constants that stream from checkpoint tensors, and RoPE tables that are
 * computed while they are read.
 */
#include "models/weights.h"

#include <math.h>
#include <string.h>

#include "converter/base/dmath.h"
#include "converter/base/num.h"

/* Elements converted at a time: bounds the scratch on the stack. */
#define PIECE 4096

/* Constants that programs hold themselves, when they are built, are no longer
 * than this. */
#define INLINE_MAX 9

struct entry {
    struct mil_data data;
    struct mil_origin origin;
    struct weight_spec spec;
    const struct ckpt *ckpt;
    const struct need *need;
    const struct st_tensor *tensor; /* NULL when planning */
    uint64_t elems, cols;
    uint64_t wide_in; /* wide: I; cols is E * I, and H the rows */
};

struct rope_entry {
    struct mil_data data;
    const struct rope_params *rope;
    float *inv_freq;
    double scale; /* the caller's */
    int dim;
    bool is_sin;
    struct rope_entry *next;
};

struct weights {
    const struct ckpt *ckpt;
    struct arena arena;
    struct entry **entries;
    size_t n, cap;
    struct rope_entry *rope; /* list */
};

struct weights *weights_new(const struct ckpt *c, struct err *e)
{
    struct weights *w = mem_zalloc(1, sizeof(*w), e);

    if (w)
        w->ckpt = c;
    return w;
}

void weights_free(struct weights *w)
{
    if (!w)
        return;
    mem_free(w->entries);
    arena_release(&w->arena);
    mem_free(w);
}

/* ---- checkpoint tensors ---- */

/* Where element `el` of the constant lies in the tensor, and how many from
 * there on follow each other in both. */
static uint64_t locate(const struct entry *en, uint64_t el, uint64_t *run)
{
    const struct weight_spec *s = &en->spec;
    uint64_t row = s->row + el / en->cols, col = el % en->cols;

    if (s->wide) {
        uint64_t expert = col / en->wide_in, i = col % en->wide_in;

        *run = en->wide_in - i;
        return (expert * s->rows + row) * en->wide_in + i;
    }
    if (!s->block) {
        *run = en->elems - el;
        return row * en->cols + col;
    }
    *run = (s->take - row % s->take) * en->cols - col;
    return (row / s->take * s->block + s->skip + row % s->take) * en->cols +
           col;
}

/* The place, element `at`, is told as the checkpoint has it. */
static int bad_value(const struct st_tensor *t, uint64_t at,
                     const struct num_stats *s, struct err *e)
{
    uint64_t cols = t->rank ? t->dims[t->rank - 1] : 1;

    if (t->rank < 2)
        cols = 1;
    if (s->nan || s->inf)
        return err_set(e, ERR_INPUT,
                       "tensor '%s' holds %llu NaN and %llu infinite values, "
                       "the first at row %llu, column %llu",
                       t->name, (unsigned long long)s->nan,
                       (unsigned long long)s->inf,
                       (unsigned long long)(at / cols),
                       (unsigned long long)(at % cols));
    return err_set(e, ERR_INPUT,
                   "tensor '%s' holds %llu values beyond fp16 (largest finite "
                   "65504, found %g), the first at row %llu, column %llu",
                   t->name, (unsigned long long)s->above_f16,
                   (double)s->max_abs, (unsigned long long)(at / cols),
                   (unsigned long long)(at % cols));
}

static int in_checkpoint(const struct entry *en, struct err *e)
{
    (void)err_in(e, "'%s'", en->ckpt->dir);
    return err_whole(e);
}

static bool is_bad(const struct num_stats *s)
{
    return s->nan || s->inf || s->above_f16;
}

static uint64_t first_bad(const struct num_stats *s)
{
    return s->nan || s->inf ? s->first_bad : s->first_above;
}

/* Folds in double, rounded once to float; powers of two are exact. */
static void fold(const struct weight_spec *s, float *f, size_t n)
{
    double factor = s->factor != 0 ? s->factor : 1;

    if (s->neg_exp)
        for (size_t i = 0; i < n; i++)
            f[i] = (float)-dm_exp((double)f[i]);
    else if (s->add != 0 || factor != 1)
        for (size_t i = 0; i < n; i++)
            f[i] = (float)(((double)f[i] + s->add) * factor);
    if (s->scale_exp)
        for (size_t i = 0; i < n; i++)
            f[i] = ldexpf(f[i], s->scale_exp);
}

/* Elements [first, first + n) of the constant as checked, folded fp16. */
static int read_piece(const struct entry *en, uint64_t first, size_t n,
                      f16_t *dst, struct err *e)
{
    float f[PIECE];
    struct num_stats s = NUM_STATS_INIT;

    for (size_t i = 0; i < n;) {
        uint64_t run, at = locate(en, first + i, &run);
        size_t m = run < n - i ? (size_t)run : n - i;

        if (need_read_f32(en->ckpt->st, en->need, at, m, f + i, e))
            return -1;
        i += m;
    }
    fold(&en->spec, f, n);
    num_stats_f32(&s, f, n, first);
    if (is_bad(&s)) {
        uint64_t run, at = locate(en, first_bad(&s), &run);

        (void)bad_value(en->tensor, at, &s, e);
        return in_checkpoint(en, e);
    }
    num_f32_to_f16(dst, f, n);
    return 0;
}

static int check_need(const struct st *st, const struct need *n, struct err *e)
{
    const struct st_tensor *t = n->tensor;
    uint64_t elems = 1;
    float f[PIECE];

    for (int i = 0; i < n->rank; i++)
        elems *= n->dims[i];
    for (uint64_t at = 0; at < elems;) {
        size_t m = elems - at < PIECE ? (size_t)(elems - at) : PIECE;
        struct num_stats s = NUM_STATS_INIT;

        if (need_read_f32(st, n, at, m, f, e))
            return -1;
        num_stats_f32(&s, f, m, at);
        if (is_bad(&s)) {
            at = first_bad(&s);
            if (n->n_parts)
                t = n->parts[at / t->elems];
            return bad_value(t, at % t->elems, &s, e);
        }
        at += m;
    }
    return 0;
}

int weights_check(const struct ckpt *c, struct err *e)
{
    for (size_t i = 0; c->st && i < c->ledger.n; i++)
        if (check_need(c->st, &c->ledger.needs[i], e))
            return -1;
    return 0;
}

static int read_elems(const struct entry *en, uint64_t first, uint64_t n,
                      f16_t *dst, struct err *e)
{
    while (n) {
        size_t m = n < PIECE ? (size_t)n : PIECE;

        if (read_piece(en, first, m, dst, e))
            return -1;
        first += m;
        dst += m;
        n -= m;
    }
    return 0;
}

/* Bytes [offset, offset + n) of the constant. */
static int read_bytes(const struct entry *en, uint64_t offset, void *dst,
                      size_t n, struct err *e)
{
    unsigned char *out = dst;

    if (!en->tensor && en->elems <= INLINE_MAX) {
        memset(dst, 0, n); /* of a plan's programs the size alone counts */
        return 0;
    }
    if (!en->tensor)
        return err_set(e, ERR_INPUT,
                       "tensor '%s' is planned from the config alone and has "
                       "no values",
                       en->spec.tensor);
    if (offset % 2 == 0 && n % 2 == 0 && (uintptr_t)dst % 2 == 0)
        return read_elems(en, offset / 2, n / 2, dst, e);
    for (size_t i = 0; i < n;) { /* odd ends: through one piece */
        f16_t h[PIECE];
        uint64_t el = (offset + i) / 2;
        size_t skip = (size_t)((offset + i) % 2), m = PIECE, take;

        if (m > en->elems - el)
            m = (size_t)(en->elems - el);
        if (read_elems(en, el, m, h, e))
            return -1;
        take = 2 * m - skip;
        if (take > n - i)
            take = n - i;
        memcpy(out + i, (const unsigned char *)h + skip, take);
        i += take;
    }
    return 0;
}

static int read_weight(void *cookie, uint64_t offset, void *dst, size_t n,
                       struct err *e)
{
    return read_bytes(cookie, offset, dst, n, e) ? err_whole(e) : 0;
}

int weights_error(const struct mil_data *d, struct err *e)
{
    return in_checkpoint(d->cookie, e);
}

static bool spec_equal(const struct weight_spec *a, const struct weight_spec *b)
{
    if (strcmp(a->tensor, b->tensor) || a->row != b->row ||
        a->rows != b->rows || a->scale_exp != b->scale_exp ||
        a->conv != b->conv || a->role != b->role || a->block != b->block ||
        a->take != b->take || a->skip != b->skip || a->wide != b->wide ||
        a->add != b->add || a->factor != b->factor ||
        a->neg_exp != b->neg_exp || a->rank != b->rank)
        return false;
    return !memcmp(a->dims, b->dims, sizeof(a->dims));
}

/* Rows that the constant can choose from, and what a row is. */
static uint64_t shape_rows(struct entry *en, const struct need *nd)
{
    const struct weight_spec *s = &en->spec;
    uint64_t rows = nd->dims[0];

    en->cols = 1;
    for (int i = 1; i < nd->rank; i++)
        en->cols *= nd->dims[i];
    if (s->wide) { /* [E, H, I] */
        rows = nd->dims[1];
        en->wide_in = nd->dims[2];
        en->cols = nd->dims[0] * nd->dims[2];
    } else if (nd->rank == 3 && s->block) { /* stacked: experts' rows */
        rows = nd->dims[0] * nd->dims[1];
        en->cols = nd->dims[2];
    }
    return s->block ? rows / s->block * s->take : rows;
}

static void set_type(struct entry *en, const struct need *nd)
{
    const struct weight_spec *s = &en->spec;
    int64_t dims[4] = { (int64_t)s->rows, (int64_t)en->cols, 1, 1 };
    int rank = s->conv ? 4 : nd->rank > 2 ? 2 : nd->rank;

    if (s->conv && nd->rank == 3 && nd->dims[1] == 1) { /* depthwise */
        dims[1] = 1;
        dims[3] = (int64_t)nd->dims[2];
    }
    if (s->rank) {
        rank = s->rank;
        memcpy(dims, s->dims, sizeof(dims));
    }
    en->data.type = mil_type_make(MIL_F16, rank, dims);
}

static void set_origin(struct entry *en, const struct need *nd)
{
    const struct weight_spec *s = &en->spec;
    struct mil_origin *o = &en->origin;

    /* As it was asked for: a tied head is not the embedding table. */
    o->tensor = s->tensor;
    o->row = s->row;
    o->rows = s->rows;
    o->total_rows = nd->dims[0];
    o->scale_exp = s->scale_exp;
    o->block = s->block;
    o->take = s->take;
    o->skip = s->skip;
    o->wide = s->wide ? nd->dims[0] : 0;
    o->add = s->add;
    o->factor = s->factor;
    o->neg_exp = s->neg_exp;
}

static int fill_entry(struct weights *w, struct entry *en,
                      const struct need *nd, struct err *e)
{
    struct weight_spec *s = &en->spec;
    uint64_t rows = shape_rows(en, nd);

    if (!s->rows)
        s->rows = rows;
    if (s->row > rows || s->rows > rows - s->row)
        return err_set(e, ERR_INPUT,
                       "tensor '%s' has %llu rows, rows %llu to %llu are "
                       "asked for",
                       nd->name, (unsigned long long)rows,
                       (unsigned long long)s->row,
                       (unsigned long long)(s->row + s->rows));
    en->elems = s->rows * en->cols;
    en->ckpt = w->ckpt;
    en->need = nd;
    en->tensor = nd->tensor;
    set_type(en, nd);
    set_origin(en, nd);
    en->data.bytes = 2 * en->elems;
    en->data.read = read_weight;
    en->data.cookie = en;
    en->data.role = s->role;
    en->data.origin = &en->origin;
    if (mil_type_elems(&en->data.type) != (int64_t)en->elems)
        return err_set(e, ERR_INPUT,
                       "tensor '%s': a constant of another size is asked for",
                       nd->name);
    return 0;
}

const struct mil_data *weights_get(struct weights *w,
                                   const struct weight_spec *s, struct err *e)
{
    const struct need *nd = ckpt_need(w->ckpt, s->tensor);
    struct entry probe = { .spec = *s };
    struct entry *en;

    if (!nd) {
        err_set(e, ERR_INPUT,
                "the %s graph asks for tensor '%s', which its "
                "list of tensors does not hold",
                w->ckpt->hp.model_type, s->tensor);
        return NULL;
    }
    if (!probe.spec.rows)
        probe.spec.rows = shape_rows(&probe, nd);
    for (size_t i = 0; i < w->n; i++)
        if (spec_equal(&w->entries[i]->spec, &probe.spec))
            return &w->entries[i]->data;
    if (w->n == w->cap &&
        mem_grow((void **)&w->entries, &w->cap, w->n, sizeof(*w->entries), e))
        return NULL;
    en = arena_alloc(&w->arena, 1, sizeof(*en), e);
    if (!en)
        return NULL;
    en->spec = probe.spec;
    en->spec.tensor = arena_strdup(&w->arena, s->tensor, e);
    if (!en->spec.tensor || fill_entry(w, en, nd, e))
        return NULL;
    w->entries[w->n++] = en;
    return &en->data;
}

/* ---- raw rows, for palettization ---- */

bool weights_raw(const struct mil_data *d, struct weight_raw *out)
{
    const struct entry *en = d->cookie;

    if (d->read != read_weight || d->type.rank < 2 || en->spec.add != 0 ||
        (en->spec.factor != 0 && en->spec.factor != 1) || en->spec.neg_exp)
        return false;
    out->rows = en->spec.rows;
    out->cols = en->cols;
    out->is_bf16 = en->tensor && en->tensor->dtype == ST_BF16;
    out->scale_exp = en->spec.scale_exp;
    out->tensor = en->tensor ? en->tensor->name : en->spec.tensor;
    return true;
}

const struct need *weights_need(const struct mil_data *d)
{
    return ((const struct entry *)d->cookie)->need;
}

uint64_t weights_place(const struct mil_data *d, uint64_t el, uint64_t *run)
{
    return locate(d->cookie, el, run);
}

static int raw_elems(const struct entry *en, uint64_t first, uint64_t n,
                     uint16_t *dst, struct err *e)
{
    if (en->tensor->dtype == ST_F32) {
        struct entry unscaled = *en;

        unscaled.spec.scale_exp = 0;
        return read_elems(&unscaled, first, n, dst, e);
    }
    for (uint64_t i = 0; i < n;) {
        uint64_t run, at = locate(en, first + i, &run);
        uint64_t m = run < n - i ? run : n - i;

        if (need_read_bytes(en->ckpt->st, en->need, 2 * at, dst + i, 2 * m, e))
            return -1;
        i += m;
    }
    num_order_le16(dst, (size_t)n);
    return 0;
}

int weights_raw_rows(const struct mil_data *d, uint64_t row, uint64_t n,
                     uint16_t *dst, struct err *e)
{
    const struct entry *en = d->cookie;

    BUG_UNLESS(d->read == read_weight);
    if (!en->tensor || row > en->spec.rows || n > en->spec.rows - row)
        return err_set(e, ERR_INPUT, "tensor '%s' has no rows %llu to %llu",
                       en->spec.tensor, (unsigned long long)row,
                       (unsigned long long)(row + n));
    return raw_elems(en, row * en->cols, n * en->cols, dst, e) ? err_whole(e)
                                                               : 0;
}

/* ---- RoPE tables ---- */

/*
 * In float32 step by step, as transformers computes them: at position 2000 an
 * angle in float32 is up to 1e-4 off, which decides how many of the sines are
 * rounded to fp16, and a table from exact angles would not be the model's.
 */

/* theta^(2i/dim) */
static float rope_period(const struct rope_params *r, int i)
{
    float power = (float)(2 * i) / (float)r->dim;

    return (float)dm_pow((double)(float)r->theta, (double)power);
}

static const double two_pi = 6.28318530717958647693;

/* Index (fractional) of the frequency that turns `b` times within the
 * original context: transformers' yarn rule, which is in double. */
static double yarn_index(const struct rope_params *r, double b)
{
    return r->dim * dm_log(r->original_max / (two_pi * b)) /
           (2 * dm_log(r->theta));
}

static void yarn(const struct rope_params *r, float *f)
{
    double lo = yarn_index(r, r->beta_fast), hi = yarn_index(r, r->beta_slow);
    float span;

    if (r->truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    lo = lo < 0 ? 0 : lo;
    hi = hi > r->dim - 1 ? r->dim - 1 : hi;
    if (lo == hi)
        hi += 0.001;
    span = (float)(hi - lo);
    for (int i = 0; i < r->dim / 2; i++) {
        float period = rope_period(r, i), m = ((float)i - (float)lo) / span;

        m = 1.0f - (m < 0 ? 0.0f : m > 1 ? 1.0f : m); /* what is kept */
        f[i] =
            1.0f / ((float)r->factor * period) * (1.0f - m) + 1.0f / period * m;
    }
}

static void llama3(const struct rope_params *r, float *f)
{
    float longest = (float)(r->original_max / r->low_freq_factor);
    float shortest = (float)(r->original_max / r->high_freq_factor);
    float span = (float)(r->high_freq_factor - r->low_freq_factor);

    for (int i = 0; i < r->dim / 2; i++) {
        float wave = (float)two_pi / f[i], m;

        if (wave < shortest)
            continue;
        if (wave > longest) {
            f[i] /= (float)r->factor;
            continue;
        }
        m = ((float)r->original_max / wave - (float)r->low_freq_factor) / span;
        f[i] = (1.0f - m) * f[i] / (float)r->factor + m * f[i];
    }
}

int rope_frequencies(const struct rope_params *r, float *f, struct err *e)
{
    if (r->dim <= 0 || r->dim % 2 || !(r->theta > 1))
        return err_set(e, ERR_INPUT,
                       "rope of width %d and theta %g cannot be computed "
                       "(an even width and theta above 1 are needed)",
                       r->dim, r->theta);
    for (int i = 0; i < r->dim / 2; i++)
        f[i] = 1.0f / rope_period(r, i);
    switch (r->type) {
    case ROPE_DEFAULT: break;
    case ROPE_LINEAR:
        for (int i = 0; i < r->dim / 2; i++)
            f[i] /= (float)r->factor;
        break;
    case ROPE_LLAMA3: llama3(r, f); break;
    case ROPE_YARN: yarn(r, f); break;
    case ROPE_PROPORTIONAL:
        for (int i = 0; i < r->dim / 2; i++)
            f[i] = i < r->live ? f[i] / (float)r->factor : 0;
        break;
    }
    return 0;
}

static f16_t rope_elem(const struct rope_entry *r, uint64_t el)
{
    uint64_t pos = el / (uint64_t)r->dim;
    uint64_t i = el % (uint64_t)r->dim % (uint64_t)(r->dim / 2);
    float angle = (float)pos * r->inv_freq[i], v;
    double s, c;

    dm_sincos((double)angle, &s, &c);
    v = (float)(r->is_sin ? s : c) * (float)r->rope->attention_scaling;
    return f64_to_f16((double)v * r->scale);
}

static int read_rope(void *cookie, uint64_t offset, void *dst, size_t n,
                     struct err *e)
{
    const struct rope_entry *r = cookie;
    unsigned char *out = dst;

    (void)e;
    for (size_t i = 0; i < n; i++) {
        unsigned char le[2];

        store_le16(le, rope_elem(r, (offset + i) / 2));
        out[i] = le[(offset + i) % 2];
        if ((offset + i) % 2 == 0 && i + 1 < n)
            out[++i] = le[1];
    }
    return 0;
}

static struct rope_entry *new_rope(struct weights *w,
                                   const struct rope_params *p, uint64_t rows,
                                   bool is_sin, double scale, struct err *e)
{
    int64_t dims[2] = { (int64_t)rows, p->dim };
    struct rope_entry *r = arena_alloc(&w->arena, 1, sizeof(*r), e);

    if (!r)
        return NULL;
    r->inv_freq = arena_alloc(&w->arena, (size_t)p->dim, sizeof(float), e);
    if (!r->inv_freq || rope_frequencies(p, r->inv_freq, e))
        return NULL;
    r->rope = p;
    r->scale = scale;
    r->dim = p->dim;
    r->is_sin = is_sin;
    r->data.type = mil_type_make(MIL_F16, 2, dims);
    r->data.bytes = 2 * rows * (uint64_t)p->dim;
    r->data.read = read_rope;
    r->data.cookie = r;
    r->data.role = MIL_ROLE_ROPE;
    r->next = w->rope;
    w->rope = r;
    return r;
}

const struct mil_data *weights_rope(struct weights *w,
                                    const struct rope_params *rope,
                                    uint64_t rows, bool is_sin, double scale,
                                    struct err *e)
{
    struct rope_entry *r = w->rope;

    while (r && (r->rope != rope || r->is_sin != is_sin || r->scale != scale ||
                 r->data.type.dims[0] != (int64_t)rows))
        r = r->next;
    if (!r)
        r = new_rope(w, rope, rows, is_sin, scale, e);
    return r ? &r->data : NULL;
}
