/*
 * Decodes constants of a package: plain fp16 and constexpr_lut_to_dense.
 */
#include "converter/package_source.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "converter/program_priv.h"
#include "quant/quant.h"

/* A constant: what it holds, and where its bytes are. */
struct piece {
    struct source_piece is;
    const struct mil_const *values;           /* plain fp16, or */
    const struct mil_const *indices, *tables; /* palettized; or integers and
                                                 scales */
};
struct package_source {
    struct js_doc **docs; /* own the tensor names */
    size_t n_docs;
    struct piece *pieces;
    size_t n, cap;
    int bits;
};

/* Bytes of a constant, wherever they are. */
static int const_read(const struct mil_const *c, uint64_t offset, void *dst,
                      size_t n, struct err *e)
{
    uint64_t have = (uint64_t)mil_type_bytes(&c->type);

    if (offset > have || n > have - offset)
        return err_set(e, ERR_INPUT,
                       "a constant of %" PRIu64 " bytes has no "
                       "bytes %" PRIu64 " to %" PRIu64,
                       have, offset, offset + n);
    if (c->data)
        return c->data->read(c->data->cookie, offset, dst, n, e);
    memcpy(dst, (const char *)c->bytes + offset, n);
    return 0;
}

/* ---- the index ---- */

static int elem_u64(const struct js_node **n, uint64_t *out)
{
    bool ok = js_uint(*n, out);

    *n = js_next(*n);
    return ok ? 0 : -1;
}

static int elem_double(const struct js_node **n, double *out)
{
    bool ok = js_double(*n, out);

    *n = js_next(*n);
    return ok && *out == *out ? 0 : -1;
}

/* The members behind the first five: block, take, skip, experts of a wide
 * matrix, addend, factor, whether -exp was taken. */
static int parse_folds(const struct js_node *x, struct source_piece *p)
{
    uint64_t neg_exp;

    if (elem_u64(&x, &p->block) || elem_u64(&x, &p->take) ||
        elem_u64(&x, &p->skip) || elem_u64(&x, &p->wide) ||
        elem_double(&x, &p->add) || elem_double(&x, &p->factor) ||
        elem_u64(&x, &neg_exp))
        return -1;
    p->neg_exp = neg_exp == 1;
    return p->factor != 0 && neg_exp <= 1 && p->block <= 1u << 30 &&
                   (!p->block || (p->take && p->take <= p->block &&
                                  p->skip <= p->block - p->take)) &&
                   (!p->block || !p->wide)
               ? 0
               : -1;
}

static int parse_entry(const struct js_node *n, struct source_piece *p,
                       uint64_t *total, struct err *e)
{
    const struct js_node *x = js_first(n);
    size_t count = n && js_kind(n) == JS_ARRAY ? js_count(n) : 0;
    int64_t exp;

    p->name = js_key(n);
    p->factor = 1;
    if ((count == 5 || count == 12) && js_string(x, &p->tensor)) {
        x = js_next(x);
        if (!elem_u64(&x, &p->row) && !elem_u64(&x, &p->rows) &&
            !elem_u64(&x, total) && js_integral(x, &exp) && exp >= -30 &&
            exp <= 30 && p->rows && p->row <= 1u << 30 && p->rows <= 1u << 30) {
            p->scale_exp = (int)exp;
            if (count == 12 ? !parse_folds(js_next(x), p)
                            : p->row <= *total && p->rows <= *total - p->row)
                return 0;
        }
    }
    return err_set(e, ERR_INPUT,
                   "metadata '%s': the entry of '%s' is not [tensor, row, "
                   "rows, total rows, exponent] with or without the seven "
                   "members on folds",
                   CV_SOURCES_KEY, p->name ? p->name : "?");
}

static int fill_plain(struct piece *p, const struct mil_const *c, struct err *e)
{
    int64_t elems = mil_type_elems(&c->type);

    if (c->type.dtype != MIL_F16 || elems < 1 || (uint64_t)elems % p->is.rows)
        return err_set(e, ERR_INPUT,
                       "constant '%s' does not hold %" PRIu64 " rows of fp16",
                       p->is.name, p->is.rows);
    p->values = c;
    p->is.cols = (uint64_t)elems / p->is.rows;
    return 0;
}

static int fill_lut(struct package_source *s, struct piece *p,
                    const struct mil_function *f, const struct mil_op *op,
                    struct err *e)
{
    int64_t elems, tables;

    p->indices = mil_arg_const(f, op, 0);
    p->tables = mil_arg_const(f, op, 1);
    if (!p->indices || !p->tables)
        return err_set(e, ERR_INPUT, "constant '%s' has no indices or table",
                       p->is.name);
    p->is.bits = (int)mil_dtype_bits(p->indices->type.dtype);
    elems = mil_type_elems(&p->indices->type);
    tables = mil_type_elems(&p->tables->type);
    p->is.groups = (uint64_t)tables >> p->is.bits;
    if (!qz_bits_ok(p->is.bits) || p->tables->type.dtype != MIL_F16 ||
        elems < 1 || tables < 1 || (uint64_t)elems % p->is.rows ||
        p->is.groups != (uint64_t)p->tables->type.dims[0] || !p->is.groups ||
        p->is.rows % p->is.groups)
        return err_set(e, ERR_INPUT,
                       "constant '%s' is not %" PRIu64 " rows in groups of "
                       "rows with one fp16 table each",
                       p->is.name, p->is.rows);
    p->is.cols = (uint64_t)elems / p->is.rows;
    if (p->is.bits < s->bits)
        s->bits = p->is.bits;
    return 0;
}

static int fill_linear(struct package_source *s, struct piece *p,
                       const struct mil_function *f, const struct mil_op *op,
                       struct err *e)
{
    const struct mil_const *q = mil_arg_const(f, op, 0);
    const struct mil_const *c = mil_arg_const(f, op, 1);
    int64_t elems = q ? mil_type_elems(&q->type) : -1;
    bool known = q && c && !op->args[2].n &&
                 (q->type.dtype == MIL_I4 || q->type.dtype == MIL_I8) &&
                 c->type.dtype == MIL_F16;
    uint64_t scales = known ? (uint64_t)mil_type_elems(&c->type) : 0;

    if (!known || elems < 1 || (uint64_t)elems % p->is.rows || !scales ||
        (scales > 1 && (scales % p->is.rows || (uint64_t)elems % scales ||
                        (uint64_t)c->type.dims[0] != p->is.rows)))
        return err_set(e, ERR_INPUT,
                       "constant '%s' is not %" PRIu64 " rows of signed "
                       "integers with fp16 scales along them",
                       p->is.name, p->is.rows);
    p->indices = q;
    p->tables = c;
    p->is.linear = true;
    p->is.bits = (int)mil_dtype_bits(q->type.dtype);
    p->is.groups = 1;
    p->is.cols = (uint64_t)elems / p->is.rows;
    p->is.per_scale = scales > 1 ? (uint64_t)elems / scales : 0;
    if (p->is.bits < s->bits)
        s->bits = p->is.bits;
    return 0;
}

/* The op that yields the constant `name`. */
static const struct mil_op *find_op(const struct mil_function *f,
                                    const char *name)
{
    for (size_t i = 0; i < f->n_ops; i++)
        if (f->ops[i].n_outs == 1 &&
            !strcmp(mil_value(f, f->ops[i].outs[0])->name, name))
            return &f->ops[i];
    return NULL;
}

/* Rows that a piece may choose from and columns of a row, of a tensor. */
static void tensor_shape(const struct source_piece *p, const struct need *nd,
                         uint64_t *rows, uint64_t *cols)
{
    *rows = nd->dims[0];
    *cols = 1;
    for (int i = 1; i < nd->rank; i++)
        *cols *= nd->dims[i];
    if (p->wide) {
        *rows = nd->dims[1];
        *cols = nd->dims[0] * nd->dims[2];
    } else if (p->block && nd->rank == 3) {
        *rows = nd->dims[0] * nd->dims[1];
        *cols = nd->dims[2];
    }
    if (p->block)
        *rows = *rows / p->block * p->take;
}

/* Readers size their buffers by the checkpoint's shapes. */
static int check_shape(const struct piece *piece, uint64_t total,
                       const struct ckpt *c, struct err *e)
{
    const struct source_piece *p = &piece->is;
    const struct need *nd = ckpt_need(c, p->tensor);
    uint64_t rows, cols;

    if (!nd)
        return err_set(e, ERR_MISMATCH,
                       "constant '%s' holds tensor '%s', which the checkpoint "
                       "'%s' has no use for",
                       p->name, p->tensor, c->dir);
    tensor_shape(p, nd, &rows, &cols);
    if (total == nd->dims[0] && p->cols == cols && p->row <= rows &&
        p->rows <= rows - p->row &&
        (!p->wide || (nd->rank == 3 && p->wide == nd->dims[0] && !p->row &&
                      p->rows == rows)) &&
        (nd->rank > 1 || p->rows == rows))
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "constant '%s' holds rows %" PRIu64 " to %" PRIu64
                   " of %" PRIu64 " with %" PRIu64
                   " columns of tensor '%s', which has %" PRIu64
                   " rows and %" PRIu64 " columns",
                   p->name, p->row, p->row + p->rows, total, p->cols, p->tensor,
                   rows, cols);
}

static bool same_const(const struct mil_const *a, const struct mil_const *b)
{
    if (!a || !b || a->data || b->data)
        return a == b || (a && b && a->data && a->data == b->data);
    return mil_type_equal(&a->type, &b->type) &&
           !memcmp(a->bytes, b->bytes, (size_t)mil_type_bytes(&a->type));
}

/* The functions of a file share their constants. */
static bool known(const struct package_source *s, size_t first,
                  const struct piece *p)
{
    for (size_t i = first; i < s->n; i++) {
        const struct piece *q = &s->pieces[i];

        if (!strcmp(q->is.name, p->is.name) &&
            same_const(q->values, p->values) &&
            same_const(q->indices, p->indices) &&
            same_const(q->tables, p->tables))
            return true;
    }
    return false;
}

/* Completes a piece from the program; first: where this file's begin. */
static int add_piece(struct package_source *s, size_t first,
                     const struct mil_function *f, const struct ckpt *c,
                     struct piece *p, uint64_t total, struct err *e)
{
    const struct mil_op *op = find_op(f, p->is.name);
    int rc;

    if (!op)
        return err_set(e, ERR_INPUT,
                       "metadata '%s' names '%s', which the program does not "
                       "hold",
                       CV_SOURCES_KEY, p->is.name);
    if (op->code == MIL_OP_const)
        rc = fill_plain(p, mil_value(f, op->outs[0])->konst, e);
    else if (op->code == MIL_OP_constexpr_lut_to_dense)
        rc = fill_lut(s, p, f, op, e);
    else if (op->code == MIL_OP_constexpr_blockwise_shift_scale)
        rc = fill_linear(s, p, f, op, e);
    else
        rc = err_set(e, ERR_UNSUPPORTED, "constant '%s' is made by op '%s'",
                     p->is.name, mil_op_type(op));
    if (rc || check_shape(p, total, c, e))
        return -1;
    if (known(s, first, p))
        return 0;
    if (s->n == s->cap &&
        mem_grow((void **)&s->pieces, &s->cap, s->n, sizeof(*s->pieces), e))
        return -1;
    s->pieces[s->n++] = *p;
    return 0;
}

static int add_entry(struct package_source *s, size_t first,
                     enum cv_method method, const struct mil_function *f,
                     const struct ckpt *c, const struct js_node *n,
                     struct err *e)
{
    struct piece p = { .is.method = method };
    uint64_t total;

    return parse_entry(n, &p.is, &total, e)
               ? -1
               : add_piece(s, first, f, c, &p, total, e);
}

/* What may be demanded of the palettized constants of a file. */
static int file_method(const struct mil_program *prog, enum cv_method *method,
                       struct err *e)
{
    const char *name = mil_program_metadata(prog, CV_METHOD_KEY);

    *method = CV_KMEANS;
    if (!name || cv_method_by_name(name, method))
        return 0;
    return err_set(e, ERR_INPUT, "metadata '%s' is '%s', which is no method",
                   CV_METHOD_KEY, name);
}

static int add_file(struct package_source *s, const struct pkg *file,
                    const struct ckpt *c, struct err *e)
{
    const struct mil_program *prog = pkg_program(file);
    const char *text = mil_program_metadata(prog, CV_SOURCES_KEY);
    enum cv_method method;
    struct js_doc *d;
    size_t first = s->n;

    if (!text)
        return err_set(e, ERR_UNSUPPORTED,
                       "'%s' does not say which tensors its constants hold "
                       "(metadata '%s'); packages of this tool do",
                       pkg_path(file), CV_SOURCES_KEY);
    if (file_method(prog, &method, e))
        return err_in(e, "'%s'", pkg_path(file));
    d = js_parse(text, strlen(text), e);
    if (!d)
        return err_in(e, "metadata '%s'", CV_SOURCES_KEY);
    s->docs[s->n_docs++] = d;
    for (size_t i = 0; i < prog->n_functions; i++)
        for (const struct js_node *n = js_first(js_root(d)); n; n = js_next(n))
            if (add_entry(s, first, method, prog->functions[i], c, n, e))
                return err_in(e, "'%s', function '%s'", pkg_path(file),
                              prog->functions[i]->name);
    return 0;
}

static struct package_source *new_source(size_t files, struct err *e)
{
    struct package_source *s = mem_zalloc(1, sizeof(*s), e);

    if (!s)
        return NULL;
    s->bits = 16;
    s->docs = mem_zalloc(files, sizeof(*s->docs), e);
    if (s->docs)
        return s;
    package_source_close(s);
    return NULL;
}

struct package_source *package_source_open(const struct package *p,
                                           const struct ckpt *c, struct err *e)
{
    struct package_source *s = new_source(package_files(p), e);

    for (size_t i = 0; s && i < package_files(p); i++)
        if (add_file(s, package_file(p, i), c, e)) {
            package_source_close(s);
            return NULL;
        }
    return s;
}

struct package_source *package_source_of(const struct pkg *file,
                                         const struct ckpt *c, struct err *e)
{
    struct package_source *s = new_source(1, e);

    if (s && add_file(s, file, c, e)) {
        package_source_close(s);
        return NULL;
    }
    return s;
}

struct package_source *package_source_empty(struct err *e)
{
    return new_source(1, e);
}

int package_source_add(struct package_source *s, const struct mil_function *f,
                       const struct source_piece *is, const struct ckpt *c,
                       struct err *e)
{
    const struct need *nd = ckpt_need(c, is->tensor);
    struct piece p = { .is = *is };
    size_t before = s->n;

    p.is.factor = 1;
    if (!nd || add_piece(s, 0, f, c, &p, nd->dims[0], e))
        return -1;
    return s->n > before ? 0
                         : err_set(e, ERR_INPUT, "constant '%s' is there twice",
                                   is->name);
}

void package_source_drop(struct package_source *s)
{
    s->n--;
}

void package_source_close(struct package_source *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_docs; i++)
        js_free(s->docs[i]);
    mem_free(s->docs);
    mem_free(s->pieces);
    mem_free(s);
}

int package_source_compressed(const struct package_source *s)
{
    return s->bits < 16;
}

bool package_source_rounded(const struct package_source *s)
{
    int exp;

    for (size_t i = 0; i < s->n; i++) {
        const struct source_piece *p = &s->pieces[i].is;

        if (p->add != 0 || p->neg_exp || frexp(fabs(p->factor), &exp) != 0.5)
            return true;
    }
    return false;
}

int package_source_bits(const struct package_source *s)
{
    return s->bits;
}

size_t package_source_count(const struct package_source *s)
{
    return s->n;
}

void package_source_at(const struct package_source *s, size_t i,
                       struct source_piece *out)
{
    const struct piece *p = &s->pieces[i];

    *out = p->is;
    if (p->values) {
        out->bits = 16;
        out->groups = 1;
    }
}

bool package_source_find(const struct package_source *s, const char *name,
                         size_t *i)
{
    for (*i = 0; s && *i < s->n; ++*i)
        if (!strcmp(s->pieces[*i].is.name, name))
            return true;
    return false;
}

/* ---- where and how ---- */

uint64_t source_locate(const struct source_piece *p, uint64_t el, uint64_t *run)
{
    uint64_t row = p->row + el / p->cols, col = el % p->cols;

    if (p->wide) {
        uint64_t in = p->cols / p->wide, expert = col / in;

        *run = in - col % in;
        return (expert * p->rows + row) * in + col % in;
    }
    if (!p->block) {
        *run = p->rows * p->cols - el;
        return row * p->cols + col;
    }
    *run = p->cols - col; /* to the end of its row */
    return (row / p->take * p->block + p->skip + row % p->take) * p->cols + col;
}

double source_fold(const struct source_piece *p, double v)
{
    return p->neg_exp ? -exp(v) : (v + p->add) * p->factor;
}

double source_unfold(const struct source_piece *p, double v)
{
    return p->neg_exp ? log(-v) : v / p->factor - p->add;
}

/* ---- decoding ---- */

#define PIECE_ELEMS 4096

static int decode_plain(const struct piece *p, uint64_t first, size_t n,
                        float *dst, struct err *e)
{
    f16_t h[PIECE_ELEMS];

    if (const_read(p->values, 2 * first, h, 2 * n, e))
        return -1;
    num_f16_to_f32(dst, h, n);
    return 0;
}

static int read_table(const struct piece *p, uint64_t group, float *dst,
                      struct err *e)
{
    f16_t half[256];
    size_t k = (size_t)1 << p->is.bits;

    if (const_read(p->tables, 2 * k * group, half, 2 * k, e))
        return -1;
    num_f16_to_f32(dst, half, k);
    return 0;
}

/* One table serves the elements of one group of rows. */
static int decode_lut(const struct piece *p, uint64_t first, size_t n,
                      float *dst, struct err *e)
{
    unsigned char packed[PIECE_ELEMS + 8];
    uint8_t idx[PIECE_ELEMS];
    float table[256];
    size_t lead = (size_t)(first % 8);
    uint64_t per = p->is.rows / p->is.groups * p->is.cols;
    /* Eight elements take whole bytes at any width. */
    uint64_t begin = (first - lead) / 8 * (uint64_t)p->is.bits;
    size_t bytes = ((lead + n) * (size_t)p->is.bits + 7) / 8;

    if (const_read(p->indices, begin, packed, bytes, e))
        return -1;
    qz_unpack(idx, packed, lead, n, p->is.bits);
    for (size_t i = 0; i < n;) {
        uint64_t g = (first + i) / per, left = (g + 1) * per - first - i;
        size_t end = left < n - i ? i + (size_t)left : n;

        if (read_table(p, g, table, e))
            return -1;
        for (; i < end; i++)
            dst[i] = table[idx[i]];
    }
    return 0;
}

/* Integers times scales, rounded to fp16 as runtimes do. n <= PIECE_ELEMS. */
static int decode_linear(const struct piece *p, uint64_t first, size_t n,
                         float *dst, struct err *e)
{
    unsigned char raw[PIECE_ELEMS + 1];
    uint64_t bits = (uint64_t)p->is.bits, at = first * bits / 8,
             had = UINT64_MAX;
    size_t bytes = (size_t)(((first + n) * bits + 7) / 8 - at);
    float scale = 0;

    if (const_read(p->indices, at, raw, bytes, e))
        return -1;
    for (size_t i = 0; i < n; i++) {
        uint64_t el = first + i, k = p->is.per_scale ? el / p->is.per_scale : 0;
        size_t b = (size_t)(el * bits / 8 - at);
        int q = (int8_t)raw[b];
        f16_t h;

        if (bits == 4)
            q = el % 2 ? q >> 4 : (int8_t)(uint8_t)((unsigned)raw[b] << 4) >> 4;
        if (k != had) {
            if (const_read(p->tables, 2 * k, &h, 2, e))
                return -1;
            scale = f16_to_f32(load_le16(&h));
            had = k;
        }
        dst[i] = f16_to_f32(f32_to_f16((float)q * scale));
    }
    return 0;
}

int package_source_scale(const struct package_source *s, size_t i, uint64_t el,
                         float *scale, struct err *e)
{
    const struct source_piece *is = &s->pieces[i].is;
    f16_t h;

    if (const_read(s->pieces[i].tables,
                   is->per_scale ? 2 * (el / is->per_scale) : 0, &h, 2, e))
        return -1;
    *scale = f16_to_f32(load_le16(&h));
    return 0;
}

/* As the constant holds them. */
static int held(const struct piece *p, uint64_t first, uint64_t n, float *dst,
                struct err *e)
{
    while (n) {
        size_t m = n < PIECE_ELEMS - 8 ? (size_t)n : PIECE_ELEMS - 8;

        if (p->values      ? decode_plain(p, first, m, dst, e)
            : p->is.linear ? decode_linear(p, first, m, dst, e)
                           : decode_lut(p, first, m, dst, e))
            return -1;
        first += m;
        dst += m;
        n -= m;
    }
    return 0;
}

/* As the checkpoint has them. */
static int decode(const struct piece *p, uint64_t first, uint64_t n, float *dst,
                  struct err *e)
{
    bool folded = p->is.add != 0 || p->is.factor != 1 || p->is.neg_exp;
    float scale = ldexpf(1, -p->is.scale_exp);

    if (held(p, first, n, dst, e))
        return -1;
    /* A power of two alone is undone exactly, in float as in double. */
    for (uint64_t i = 0; i < n && !folded && p->is.scale_exp; i++)
        dst[i] *= scale;
    if (folded)
        for (uint64_t i = 0; i < n; i++)
            dst[i] = (float)source_unfold(&p->is, ldexp((double)dst[i],
                                                        -p->is.scale_exp));
    return 0;
}

int package_source_values(const struct package_source *s, size_t i,
                          uint64_t first, uint64_t n, float *dst, struct err *e)
{
    const struct piece *p = &s->pieces[i];

    return held(p, first, n, dst, e) ? err_in(e, "constant '%s'", p->is.name)
                                     : 0;
}

int package_source_table(const struct package_source *s, size_t i,
                         uint64_t group, float *dst, struct err *e)
{
    const struct piece *p = &s->pieces[i];

    return read_table(p, group, dst, e) ? err_in(e, "constant '%s'", p->is.name)
                                        : 0;
}

/* Which row of a piece is row `row` of its tensor; false if none is. */
static bool row_in(const struct source_piece *p, uint64_t row, uint64_t *at)
{
    if (p->block) {
        uint64_t in = row % p->block;

        if (in < p->skip || in >= p->skip + p->take)
            return false;
        row = row / p->block * p->take + in - p->skip;
    }
    *at = row - p->row;
    return row >= p->row && row - p->row < p->rows;
}

/* The piece that holds row `row` of a tensor, and how many rows from there
 * on follow each other in it. */
static const struct piece *find_piece(const struct package_source *s,
                                      const char *name, uint64_t row,
                                      uint64_t *at, uint64_t *run)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct source_piece *p = &s->pieces[i].is;

        if (strcmp(p->tensor, name) != 0)
            continue;
        if (p->wide) { /* one row of one expert */
            *at = row;
            *run = 1;
            if (row < p->wide * p->rows)
                return &s->pieces[i];
        } else if (row_in(p, row, at)) {
            *run =
                p->block ? p->skip + p->take - row % p->block : p->rows - *at;
            return &s->pieces[i];
        }
    }
    return NULL;
}

static int decode_rows(const struct piece *p, uint64_t at, uint64_t n,
                       float *dst, uint64_t *cols, struct err *e)
{
    uint64_t in;

    *cols = p->is.cols;
    if (!p->is.wide)
        return decode(p, at * p->is.cols, n * p->is.cols, dst, e);
    *cols = in = p->is.cols / p->is.wide;
    return decode(p, at % p->is.rows * p->is.cols + at / p->is.rows * in, in,
                  dst, e);
}

/* A vector is one row to the oracle and as many rows as elements here. */
static int read_rows(void *cookie, const char *name, uint64_t row, uint64_t n,
                     float *dst, struct err *e)
{
    const struct package_source *s = cookie;
    uint64_t at, run, cols;
    const struct piece *p = find_piece(s, name, 0, &at, &run);

    if (p && p->is.cols == 1 && row == 0 && n == 1)
        return decode(p, 0, p->is.rows, dst, e);
    for (; n; row += run, n -= run) {
        p = find_piece(s, name, row, &at, &run);
        if (!p)
            return err_set(e, ERR_INPUT,
                           "the package holds no row %" PRIu64
                           " of tensor '%s'",
                           row, name);
        if (run > n)
            run = n;
        if (decode_rows(p, at, run, dst, &cols, e))
            return err_in(e, "constant '%s'", p->is.name);
        dst += run * cols;
    }
    return 0;
}

struct tensor_source package_source_tensors(const struct package_source *s)
{
    return (struct tensor_source){ read_rows, (void *)(uintptr_t)s };
}
