/*
 * Decoded constants. Each is decoded once, whichever functions use it: two
 * constants are one if they have the same mil_data (or equal inline bytes), two
 * constexpr results if they have the same op and arguments. Content is
 * loaded when the first consumer says what it needs: fp16 bits for products,
 * float or int32_t arrays for everything else, nothing at all for a large
 * table that is only gathered from.
 */
#include "mil/run/run_priv.h"

#include <inttypes.h>

/* Up to here a float copy costs nothing; above, products read halves. */
#define SMALL_ELEMS 4096
/* Tables from here on stay in their file when only rows are read. */
#define ROWS_BYTES (UINT64_C(1) << 20)
#define CHUNK_ELEMS 65536 /* a multiple of 8: sub-byte chunks end on bytes */

/* ---- raw elements ---- */

static int raw_read(const struct mil_const *c, uint64_t offset, void *dst,
                    size_t n, struct err *e)
{
    if (c->bytes) {
        memcpy(dst, (const unsigned char *)c->bytes + offset, n);
        return 0;
    }
    return c->data->read(c->data->cookie, offset, dst, n, e);
}

int run_const_raw(const struct run_const *k, uint64_t offset, void *dst,
                  size_t n, struct err *e)
{
    return raw_read(k->konst, offset, dst, n, e);
}

static int raw_check(const struct run_const *k, struct err *e)
{
    const struct mil_const *c = k->konst;
    int64_t bytes = mil_type_bytes(&k->type);
    char text[MIL_TYPE_TEXT_MAX];

    mil_type_text(&k->type, text);
    if (k->elems < 0 || bytes < 0)
        return err_set(e, ERR_INPUT, "a constant of type %s has no size", text);
    if (!c->bytes && !c->data)
        return err_set(e, ERR_INPUT, "a constant of type %s has no content",
                       text);
    if (!c->bytes && c->data->bytes != (uint64_t)bytes)
        return err_set(e, ERR_INPUT,
                       "a constant of type %s has %" PRIu64
                       " bytes of content, %" PRId64 " are needed",
                       text, c->data->bytes, bytes);
    return 0;
}

/* Element i of packed integers. */
static int32_t raw_int(enum mil_dtype d, const unsigned char *p, int64_t i)
{
    unsigned bits = mil_dtype_bits(d), v;

    switch (d) {
    case MIL_I32:
    case MIL_U32: return (int32_t)load_le32(p + 4 * i);
    case MIL_I64:
    case MIL_U64: return (int32_t)(uint32_t)load_le64(p + 8 * i);
    case MIL_I16: return (int16_t)load_le16(p + 2 * i);
    case MIL_U16: return load_le16(p + 2 * i);
    case MIL_I8: return (int8_t)p[i];
    case MIL_BOOL: return p[i] != 0;
    default: break;
    }
    v = p[i * bits / 8];
    if (i * bits % 8 + bits > 8)
        v |= (unsigned)p[i * bits / 8 + 1] << 8;
    v = v >> (i * bits % 8) & ((1u << bits) - 1);
    return d == MIL_I4 && v > 7 ? (int32_t)v - 16 : (int32_t)v;
}

static void raw_floats(enum mil_dtype d, const unsigned char *p, int64_t n,
                       float *dst)
{
    if (d == MIL_F16) {
        num_f16_to_f32(dst, p, (size_t)n);
    } else if (d == MIL_F32) {
        for (int64_t i = 0; i < n; i++)
            dst[i] = kern_from_bits(load_le32(p + 4 * i));
    } else if (d == MIL_BF16) {
        num_bf16_to_f32(dst, p, (size_t)n);
    } else if (d == MIL_F64) {
        for (int64_t i = 0; i < n; i++) {
            uint64_t u = load_le64(p + 8 * i);
            double v;

            memcpy(&v, &u, sizeof(v));
            dst[i] = (float)v;
        }
    } else {
        for (int64_t i = 0; i < n; i++)
            dst[i] = (float)raw_int(d, p, i);
    }
}

/* Hands chunks of packed elements to `fn`; `first` is a multiple of 8 for
 * sub-byte types. */
typedef void (*chunk_fn)(void *arg, const unsigned char *p, int64_t at,
                         int64_t n);
static int raw_each(const struct run_const *k, int64_t first, int64_t count,
                    chunk_fn fn, void *arg, struct err *e)
{
    uint64_t bits = mil_dtype_bits(k->type.dtype);
    unsigned char *p = mem_alloc(CHUNK_ELEMS, bits / 8 + 1, e);
    int rc = 0;

    if (!p)
        return -1;
    for (int64_t i = 0; i < count && rc == 0; i += CHUNK_ELEMS) {
        int64_t n = count - i < CHUNK_ELEMS ? count - i : CHUNK_ELEMS;
        uint64_t at = (uint64_t)(first + i) * bits / 8;

        rc = raw_read(k->konst, at, p, (size_t)(((uint64_t)n * bits + 7) / 8),
                      e);
        if (rc == 0)
            fn(arg, p, i, n);
    }
    mem_free(p);
    return rc;
}

/* fp16 bits as they lie, in pieces that a source likes. */
static int raw_halves(const struct run_const *k, struct err *e)
{
    const uint16_t one = 1;
    unsigned char little;

    for (int64_t i = 0; i < k->elems; i += 16 * CHUNK_ELEMS) {
        int64_t n =
            k->elems - i < 16 * CHUNK_ELEMS ? k->elems - i : 16 * CHUNK_ELEMS;

        if (raw_read(k->konst, (uint64_t)i * sizeof(f16_t), k->half + i,
                     (size_t)n * sizeof(f16_t), e))
            return -1;
    }
    memcpy(&little, &one, 1);
    for (int64_t i = 0; i < k->elems && !little; i++)
        k->half[i] = load_le16(&k->half[i]);
    return 0;
}

struct fill_arg {
    enum mil_dtype d;
    float *f32;
    int32_t *i32;
};

static void fill_chunk(void *arg, const unsigned char *p, int64_t at, int64_t n)
{
    struct fill_arg *a = arg;

    if (a->f32) {
        raw_floats(a->d, p, n, a->f32 + at);
    } else {
        for (int64_t i = 0; i < n; i++)
            a->i32[at + i] = raw_int(a->d, p, i);
    }
}

int run_const_floats(const struct run_const *k, int64_t first, int64_t n,
                     float *dst, struct err *e)
{
    struct fill_arg a = { .d = k->type.dtype, .f32 = dst };

    if (k->f32) {
        memcpy(dst, k->f32 + first, (size_t)n * sizeof(float));
    } else if (k->half) {
        num_f16_to_f32(dst, k->half + first, (size_t)n);
    } else if (k->i32) {
        for (int64_t i = 0; i < n; i++)
            dst[i] = (float)k->i32[first + i];
    } else {
        return raw_each(k, first, n, fill_chunk, &a, e);
    }
    return 0;
}

/* ---- groups of compressed weights ---- */

/* Element runs of an array d that is cut into g[i] equal parts on axis i:
 * all elements of a run belong to one group. */
struct groups {
    int axis; /* the innermost that is cut; -1: one group */
    int64_t d[MIL_MAX_RANK], g[MIL_MAX_RANK], gs[MIL_MAX_RANK];
    int64_t run, count;
};

static void groups_init(struct groups *w, const struct mil_type *t,
                        const int64_t *g)
{
    int64_t stride = 1;

    memset(w, 0, sizeof(*w));
    w->axis = -1;
    w->run = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        w->d[i] = t->dims[i];
        w->g[i] = g[i];
        w->gs[i] = stride;
        stride *= g[i];
        if (w->axis < 0 && g[i] == 1)
            w->run *= t->dims[i];
        else if (w->axis < 0) {
            w->axis = i;
            w->run *= t->dims[i] / g[i];
        }
    }
    w->count = stride;
}

/* Group of run number `seg`. */
static int64_t groups_of(const struct groups *w, int64_t seg)
{
    int64_t at;

    if (w->axis < 0)
        return 0;
    at = seg % w->g[w->axis] * w->gs[w->axis];
    seg /= w->g[w->axis];
    for (int i = w->axis - 1; i >= 0; i--) {
        at += seg % w->d[i] / (w->d[i] / w->g[i]) * w->gs[i];
        seg /= w->d[i];
    }
    return at;
}

/* ---- constexpr ---- */

struct lut_arg {
    const struct run_const *k;
    struct groups w;
    const struct run_const *lut;
    enum mil_dtype d;
    int64_t entries, vec, axis_d, inner;
};

/* Copies table element `from` to element `to` of the result. */
static void lut_put(const struct lut_arg *a, int64_t to, int64_t from)
{
    if (a->k->half)
        a->k->half[to] = f32_to_f16(a->lut->f32[from]);
    else if (a->k->f32)
        a->k->f32[to] = a->lut->f32[from];
    else
        a->k->i32[to] = a->lut->i32[from];
}

/* Runs of scalar entries with fp16 results: the common and large case. */
static void lut_halves(const struct lut_arg *a, const unsigned char *p,
                       int64_t at, int64_t n)
{
    f16_t table[256];
    int64_t i = 0;

    while (i < n) {
        int64_t seg = (at + i) / a->w.run, end = (seg + 1) * a->w.run - at;
        const float *t = a->lut->f32 + groups_of(&a->w, seg) * a->entries;

        for (int64_t j = 0; j < a->entries; j++)
            table[j] = f32_to_f16(t[j]);
        for (end = end < n ? end : n; i < end; i++)
            a->k->half[at + i] = table[raw_int(a->d, p, i) & 255];
    }
}

static void lut_chunk(void *arg, const unsigned char *p, int64_t at, int64_t n)
{
    struct lut_arg *a = arg;

    if (a->vec == 1 && a->k->half && a->w.run >= 256) {
        lut_halves(a, p, at, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t el = at + i, t = el % a->inner;
        int64_t ax = el / a->inner % a->axis_d;
        int64_t o = el / a->inner / a->axis_d;
        int64_t from = (groups_of(&a->w, el / a->w.run) * a->entries +
                        raw_int(a->d, p, i)) *
                       a->vec;

        for (int64_t j = 0; j < a->vec; j++)
            lut_put(a, ((o * a->axis_d + ax) * a->vec + j) * a->inner + t,
                    from + j);
    }
}

static int lut_decode(struct run_const *k, struct err *e)
{
    const struct run_const *ix = k->args[0];
    struct lut_arg a = { .k = k, .lut = k->args[1], .d = ix->type.dtype };
    int r = ix->type.rank;

    groups_init(&a.w, &ix->type, a.lut->type.dims);
    a.entries = a.lut->type.dims[r];
    a.vec = a.lut->type.dims[r + 1];
    a.inner = 1;
    for (int i = (int)k->axis + 1; i < r; i++)
        a.inner *= ix->type.dims[i];
    a.axis_d = ix->type.dims[k->axis];
    if (!ix->konst || raw_check(ix, e))
        return err_set(e, ERR_UNSUPPORTED,
                       "constexpr_lut_to_dense: indices must be a constant");
    return raw_each(ix, 0, ix->elems, lut_chunk, &a, e);
}

/* Each step rounded to the scale's dtype, as the format's folder does. */
static int scale_decode(struct run_const *k, struct err *e)
{
    const struct run_const *data = k->args[0], *scale = k->args[1];
    const struct run_const *off = k->args[2];
    float *v = mem_alloc(CHUNK_ELEMS, sizeof(float), e);
    bool half = k->half != NULL;
    struct groups w;
    int rc = v ? 0 : -1;

    groups_init(&w, &k->type, scale->type.dims);
    for (int64_t at = 0; at < k->elems && rc == 0; at += CHUNK_ELEMS) {
        int64_t n = k->elems - at < CHUNK_ELEMS ? k->elems - at : CHUNK_ELEMS;

        rc = run_const_floats(data, at, n, v, e);
        for (int64_t i = 0; i < n && rc == 0; i++) {
            int64_t g = groups_of(&w, (at + i) / w.run);
            float x = kern_round(v[i], half), o;

            if (off) {
                o = off->f32 ? off->f32[g] : (float)off->i32[g];
                x = kern_round(x - kern_round(o, half), half);
            }
            x *= scale->f32[g];
            if (half)
                k->half[at + i] = f32_to_f16(x);
            else
                k->f32[at + i] = x;
        }
    }
    mem_free(v);
    return rc;
}

static int sparse_decode(struct run_const *k, struct err *e)
{
    const struct run_const *values = k->args[0], *mask = k->args[1];
    int64_t at = 0;

    for (int64_t i = 0; i < k->elems; i++) {
        bool on = mask->i32[i] != 0;

        if (on && at == values->elems)
            return err_set(e, ERR_INPUT,
                           "constexpr_sparse_to_dense: the mask takes more "
                           "than the %" PRId64 " values",
                           values->elems);
        if (k->half)
            k->half[i] = on ? f32_to_f16(values->f32[at]) : 0;
        else if (k->f32)
            k->f32[i] = on ? values->f32[at] : 0.0f;
        else
            k->i32[i] = on ? values->i32[at] : 0;
        at += on;
    }
    if (at != values->elems)
        return err_set(e, ERR_INPUT,
                       "constexpr_sparse_to_dense: the mask takes %" PRId64
                       " of %" PRId64 " values",
                       at, values->elems);
    return 0;
}

static int cast_decode(struct run_const *k, struct err *e)
{
    return run_const_floats(k->args[0], 0, k->elems, k->f32, e);
}

/* ---- loading ---- */

static int alloc(struct run_model *m, void **p, int64_t n, size_t size,
                 struct err *e)
{
    if (n < 0)
        return err_set(e, ERR_INPUT, "a constant has no size");
    *p = mem_alloc_aligned((size_t)n, size, e);
    if (!*p)
        return -1;
    m->const_bytes += (uint64_t)n * size;
    return 0;
}

static void *drop(struct run_model *m, void *p, int64_t n, size_t size)
{
    if (p)
        m->const_bytes -= (uint64_t)n * size;
    mem_free(p);
    return NULL;
}

static int alloc_native(struct run_model *m, struct run_const *k, bool half,
                        struct err *e)
{
    void *p = NULL;
    bool flt = mil_dtype_is_float(k->type.dtype);

    if (alloc(m, &p, k->elems, half ? sizeof(f16_t) : sizeof(float), e))
        return -1;
    if (half)
        k->half = p;
    else if (flt)
        k->f32 = p;
    else
        k->i32 = p;
    return 0;
}

static bool loaded(const struct run_const *k)
{
    return k->half || k->f32 || k->i32;
}

static void unload(struct run_model *m, struct run_const *k)
{
    k->half = drop(m, k->half, k->elems, sizeof(f16_t));
    k->f32 = drop(m, k->f32, k->elems, sizeof(float));
    k->i32 = drop(m, k->i32, k->elems, sizeof(int32_t));
}

static int decode_constexpr(struct run_const *k, struct err *e)
{
    switch (k->code) {
    case MIL_OP_constexpr_lut_to_dense: return lut_decode(k, e);
    case MIL_OP_constexpr_blockwise_shift_scale: return scale_decode(k, e);
    case MIL_OP_constexpr_sparse_to_dense: return sparse_decode(k, e);
    default: return cast_decode(k, e);
    }
}

static int decode(struct run_model *m, struct run_const *k, struct err *e)
{
    struct fill_arg a = { .d = k->type.dtype };
    bool was[3] = { true, true, true };
    int rc = 0;

    if (k->code == MIL_OP_const) {
        a.f32 = k->f32;
        a.i32 = k->i32;
        if (k->half)
            return raw_halves(k, e);
        return raw_each(k, 0, k->elems, fill_chunk, &a, e);
    }
    for (int i = 0; i < 3 && rc == 0; i++) {
        bool stream = i == 0 && k->code != MIL_OP_constexpr_sparse_to_dense;

        /* streamed ones are read as they are decoded */
        was[i] = !k->args[i] || loaded(k->args[i]);
        if (k->args[i] && !(stream && k->args[i]->konst))
            rc = run_const_need(m, k->args[i], RUN_NEED_WIDE, e);
    }
    if (rc == 0)
        rc = decode_constexpr(k, e);
    for (int i = 0; i < 3; i++)
        if (!was[i])
            unload(m, k->args[i]);
    return rc;
}

/* Content in its own form: halves where wanted, or where a constexpr makes
 * them. */
static int load(struct run_model *m, struct run_const *k, bool half,
                struct err *e)
{
    if (k->code == MIL_OP_const && raw_check(k, e))
        return -1;
    half = k->type.dtype == MIL_F16 && (half || k->code != MIL_OP_const);
    if (alloc_native(m, k, half, e))
        return -1;
    if (decode(m, k, e)) {
        unload(m, k);
        return -1;
    }
    return 0;
}

/* Are there bytes of the right number behind it? */
static int stream_check(const struct run_const *k, struct err *e)
{
    if (k->code == MIL_OP_const)
        return raw_check(k, e);
    return raw_check(k->args[0], e) || raw_check(k->args[1], e) ? -1 : 0;
}

/* Whether a constant is left to be read in pieces; -1: it cannot be read. */
static int stream(const struct run_model *m, struct run_const *k, struct err *e)
{
    uint64_t bytes = (uint64_t)k->elems * sizeof(f16_t);

    if (!m->options.const_bytes || loaded(k) || k->elems <= SMALL_ELEMS ||
        m->const_bytes + bytes <= m->options.const_bytes || !run_stream_fits(k))
        return 0;
    if (stream_check(k, e))
        return -1;
    k->streamed = true;
    return 1;
}

int run_const_need(struct run_model *m, struct run_const *k, enum run_need need,
                   struct err *e)
{
    void *p = NULL;

    if (k->type.dtype == MIL_STRING)
        return 0;
    if (need == RUN_NEED_ROWS) {
        if (loaded(k) || (k->konst && k->konst->data &&
                          k->konst->data->bytes >= ROWS_BYTES &&
                          mil_dtype_is_float(k->type.dtype)))
            return loaded(k) ? 0 : raw_check(k, e);
        need = RUN_NEED_HALF;
    }
    if (need == RUN_NEED_PIECES) {
        int rc = k->streamed ? 1 : stream(m, k, e);

        if (rc)
            return rc < 0 ? -1 : 0;
        need = RUN_NEED_HALF;
    }
    if (k->type.dtype != MIL_F16 || k->elems <= SMALL_ELEMS)
        need = RUN_NEED_WIDE;
    if (need == RUN_NEED_HALF) {
        if (k->half)
            return 0;
        if (!k->f32)
            return load(m, k, true, e);
        if (alloc(m, &p, k->elems, sizeof(f16_t), e))
            return -1;
        k->half = p;
        num_f32_to_f16(k->half, k->f32, (size_t)k->elems);
        return 0;
    }
    if (k->f32 || k->i32)
        return 0;
    if (!k->half && load(m, k, false, e))
        return -1;
    if (!k->half)
        return 0;
    if (alloc(m, &p, k->elems, sizeof(float), e))
        return -1;
    k->f32 = p;
    num_f16_to_f32(k->f32, k->half, (size_t)k->elems);
    return 0;
}

/* ---- identity ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    return (h ^ v) * 0x9e3779b97f4a7c15u ^ h >> 29;
}

/* Inline content is compared as such: tables of a few entries stand in each
 * function by themselves. */
static uint64_t hash_of(const struct run_const *k)
{
    const struct mil_const *c = k->konst;
    uint64_t h = mix((uint64_t)k->code, (uint64_t)k->axis);

    for (int i = 0; i < 3; i++)
        h = mix(h, (uint64_t)(uintptr_t)k->args[i]);
    if (c && c->bytes) {
        int64_t n = mil_type_bytes(&k->type);

        for (int64_t i = 0; i < n; i++)
            h = mix(h, ((const unsigned char *)c->bytes)[i]);
    } else if (c) {
        h = mix(h, (uint64_t)(uintptr_t)c->data);
    }
    return h ^ h >> 32;
}

static bool same(const struct run_const *a, const struct run_const *b)
{
    const struct mil_const *x = a->konst, *y = b->konst;

    if (a->code != b->code || a->axis != b->axis || !x != !y ||
        memcmp(a->args, b->args, sizeof(a->args)) != 0 ||
        !mil_type_equal(&a->type, &b->type))
        return false;
    if (!x || x == y)
        return true;
    if (x->bytes && y->bytes && mil_type_bytes(&a->type) >= 0)
        return memcmp(x->bytes, y->bytes, (size_t)mil_type_bytes(&a->type)) ==
               0;
    return x->data && x->data == y->data;
}

static int keep(struct run_model *m, const struct run_const *like,
                struct run_const **out, struct err *e)
{
    struct run_const **chain =
        &m->buckets[hash_of(like) % (sizeof(m->buckets) / sizeof(*chain))];

    for (*out = *chain; *out; *out = (*out)->next)
        if (same(*out, like))
            return 0;
    *out = mem_alloc(1, sizeof(**out), e);
    if (!*out)
        return -1;
    **out = *like;
    (*out)->elems = mil_type_elems(&like->type);
    (*out)->next = *chain;
    *chain = *out;
    m->const_bytes += sizeof(**out);
    return 0;
}

static int constexpr_get(struct run_model *m, const struct mil_function *f,
                         const struct mil_value *v, struct run_const **out,
                         int depth, struct err *e);

static int get(struct run_model *m, const struct mil_function *f, mil_ref r,
               struct run_const **out, int depth, struct err *e)
{
    const struct mil_value *v;
    struct run_const like = { .code = MIL_OP_const };

    *out = NULL;
    if (r == 0 || r >= f->n_values)
        return err_set(e, ERR_INPUT, "an op refers to value %u of %zu", r,
                       f->n_values);
    v = mil_value(f, r);
    if (v->konst) {
        like.konst = v->konst;
        like.type = v->konst->type;
        return keep(m, &like, out, e);
    }
    if (v->kind == MIL_V_RESULT && v->op >= 0 && (size_t)v->op < f->n_ops &&
        f->ops[v->op].code != MIL_OP_INVALID &&
        (mil_op_info(f->ops[v->op].code)->flags & MIL_O_CONSTEXPR))
        return constexpr_get(m, f, v, out, depth, e);
    return 0;
}

/* Numbers of the parameters that make a constexpr's content. */
static int constexpr_get(struct run_model *m, const struct mil_function *f,
                         const struct mil_value *v, struct run_const **out,
                         int depth, struct err *e)
{
    const struct mil_op *op = &f->ops[v->op];
    struct run_const like = { .code = op->code }, *arg;
    const struct mil_const *axis = NULL;
    bool lut = op->code == MIL_OP_constexpr_lut_to_dense;
    int n = op->code == MIL_OP_constexpr_cast                    ? 1
            : op->code == MIL_OP_constexpr_blockwise_shift_scale ? 3
                                                                 : 2;

    if (depth > 16)
        return err_set(e, ERR_INPUT, "%s '%s': constants are nested too deep",
                       mil_op_type(op), op->name ? op->name : "");
    if (mil_infer_op(f, op, &like.type, 1, e))
        return -1;
    for (int i = 0; i < n; i++) {
        if (!op->args[i].n)
            continue;
        if (get(m, f, mil_arg(op, i), &arg, depth + 1, e))
            return -1;
        if (!arg)
            return err_set(e, ERR_INPUT, "%s '%s': an argument is not constant",
                           mil_op_type(op), op->name ? op->name : "");
        like.args[i] = arg;
    }
    if (lut)
        axis = mil_arg_const(f, op, P_constexpr_lut_to_dense_vector_axis);
    if (axis)
        like.axis = mil_const_int(axis, 0);
    if (like.axis < 0)
        like.axis += like.args[0]->type.rank;
    return keep(m, &like, out, e);
}

int run_const_get(struct run_model *m, const struct mil_function *f, mil_ref r,
                  struct run_const **out, struct err *e)
{
    return get(m, f, r, out, 0, e);
}

void run_const_free_all(struct run_model *m)
{
    for (size_t i = 0; i < sizeof(m->buckets) / sizeof(m->buckets[0]); i++)
        while (m->buckets[i]) {
            struct run_const *k = m->buckets[i];

            m->buckets[i] = k->next;
            mem_free(k->half);
            mem_free(k->f32);
            mem_free(k->i32);
            mem_free(k);
        }
}
