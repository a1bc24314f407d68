/*
 * The header of one safetensors file: 8 bytes of little-endian length N, then
 * N bytes of JSON, one object with a member per tensor.
 *
 * Every rule by which a reader must reject a file is here, each with its own
 * message; the file size is compared with the claims of the header before
 * anything is allocated for them. The rules of plain JSON (UTF-8, no key
 * twice, nothing behind the object) are the JSON reader's.
 */
#include "safetensors/st_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/json.h"

static const struct {
    const char *name;
    unsigned bits;
} dtypes[ST_DTYPE_COUNT] = {
    [ST_BOOL] = { "BOOL", 8 },
    [ST_U8] = { "U8", 8 },
    [ST_I8] = { "I8", 8 },
    [ST_F8_E4M3] = { "F8_E4M3", 8 },
    [ST_F8_E5M2] = { "F8_E5M2", 8 },
    [ST_F8_E8M0] = { "F8_E8M0", 8 },
    [ST_F8_E4M3FNUZ] = { "F8_E4M3FNUZ", 8 },
    [ST_F8_E5M2FNUZ] = { "F8_E5M2FNUZ", 8 },
    [ST_F6_E2M3] = { "F6_E2M3", 6 },
    [ST_F6_E3M2] = { "F6_E3M2", 6 },
    [ST_F4] = { "F4", 4 },
    [ST_I16] = { "I16", 16 },
    [ST_U16] = { "U16", 16 },
    [ST_F16] = { "F16", 16 },
    [ST_BF16] = { "BF16", 16 },
    [ST_I32] = { "I32", 32 },
    [ST_U32] = { "U32", 32 },
    [ST_F32] = { "F32", 32 },
    [ST_I64] = { "I64", 64 },
    [ST_U64] = { "U64", 64 },
    [ST_F64] = { "F64", 64 },
    [ST_C64] = { "C64", 64 },
};

const char *st_dtype_name(enum st_dtype d)
{
    BUG_UNLESS((unsigned)d < ST_DTYPE_COUNT);
    return dtypes[d].name;
}

unsigned st_dtype_bits(enum st_dtype d)
{
    BUG_UNLESS((unsigned)d < ST_DTYPE_COUNT);
    return dtypes[d].bits;
}

bool st_dtype_by_name(const char *name, enum st_dtype *out)
{
    for (int i = 0; i < ST_DTYPE_COUNT; i++) {
        if (!strcmp(name, dtypes[i].name)) {
            *out = (enum st_dtype)i;
            return true;
        }
    }
    return false;
}

bool st_dtype_is_plain(enum st_dtype d)
{
    return d == ST_BF16 || d == ST_F16 || d == ST_F32;
}

void st_shape_text(const struct st_tensor *t, char *out, size_t cap)
{
    size_t at = 0;

    if (!cap)
        return;
    out[0] = 0;
    for (int i = 0; i <= t->rank && at < cap; i++) {
        int n;
        if (i == t->rank)
            n = snprintf(out + at, cap - at, t->rank ? "]" : "[]");
        else
            n = snprintf(out + at, cap - at, "%s%" PRIu64, i ? ", " : "[",
                         t->dims[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    if (at >= cap && cap > 3)
        memcpy(out + cap - 4, "...", 4);
}

/* The value as the file spells it, cut to fit a message. */
#define RAW_MAX 48
static const char *raw_text(char out[RAW_MAX], const struct js_doc *doc,
                            const struct js_node *n)
{
    size_t begin, end, len;
    const char *text = js_text(doc, &len);

    js_span(doc, n, &begin, &end);
    if (end - begin < RAW_MAX)
        snprintf(out, RAW_MAX, "%.*s", (int)(end - begin), text + begin);
    else
        snprintf(out, RAW_MAX, "%.*s...", RAW_MAX - 4, text + begin);
    return out;
}

/* A member of a tensor's object, of the kind that the format wants. */
static int get_member(const struct js_node *tensor, const char *key,
                      enum js_kind kind, const struct js_node **out,
                      struct err *e)
{
    *out = js_get(tensor, key);
    if (!*out)
        return err_set(e, ERR_INPUT, "no '%s'", key);
    if (js_kind(*out) != kind)
        return err_set(e, ERR_INPUT, "'%s' is %s, must be %s", key,
                       js_kind_name(js_kind(*out)), js_kind_name(kind));
    return 0;
}

static int get_uint(const struct js_doc *doc, const struct js_node *n,
                    const char *what, int i, uint64_t *out, struct err *e)
{
    char raw[RAW_MAX];

    if (js_uint(n, out))
        return 0;
    return err_set(e, ERR_INPUT,
                   "%s[%d] is %s, must be an integer from 0 to %" PRIu64, what,
                   i, raw_text(raw, doc, n), ST_MAX_INTEGER);
}

static int parse_shape(const struct js_doc *doc, const struct js_node *tensor,
                       struct st_tensor *t, struct err *e)
{
    const struct js_node *shape;

    if (get_member(tensor, "shape", JS_ARRAY, &shape, e))
        return -1;
    if (js_count(shape) > ST_MAX_RANK)
        return err_set(e, ERR_UNSUPPORTED,
                       "shape has %zu dimensions, at most %d are taken",
                       js_count(shape), ST_MAX_RANK);
    for (const struct js_node *d = js_first(shape); d; d = js_next(d)) {
        if (get_uint(doc, d, "shape", t->rank, &t->dims[t->rank], e))
            return -1;
        t->rank++;
    }
    return 0;
}

static int parse_offsets(const struct js_doc *doc, const struct js_node *tensor,
                         struct st_tensor *t, struct err *e)
{
    const struct js_node *offsets, *begin;

    if (get_member(tensor, "data_offsets", JS_ARRAY, &offsets, e))
        return -1;
    if (js_count(offsets) != 2)
        return err_set(e, ERR_INPUT,
                       "data_offsets has %zu numbers, must have 2",
                       js_count(offsets));
    begin = js_first(offsets);
    if (get_uint(doc, begin, "data_offsets", 0, &t->begin, e) ||
        get_uint(doc, js_next(begin), "data_offsets", 1, &t->end, e))
        return -1;
    if (t->end < t->begin)
        return err_set(e, ERR_INPUT,
                       "ends at byte %" PRIu64
                       " of the data, before its begin at %" PRIu64,
                       t->end, t->begin);
    return 0;
}

/* Shape and dtype against the range of bytes. */
static int check_size(struct st_tensor *t, struct err *e)
{
    char shape[256];
    const char *dtype = dtypes[t->dtype].name;
    uint64_t bits;

    st_shape_text(t, shape, sizeof shape);
    t->elems = 1;
    for (int i = 0; i < t->rank; i++)
        if (!mem_mul(t->elems, t->dims[i], &t->elems))
            return err_set(e, ERR_INPUT,
                           "the number of elements of shape %s overflows "
                           "64 bits",
                           shape);
    if (!mem_mul(t->elems, dtypes[t->dtype].bits, &bits))
        return err_set(e, ERR_INPUT,
                       "the size of shape %s of %s overflows 64 bits", shape,
                       dtype);
    if (bits % 8)
        return err_set(e, ERR_INPUT,
                       "shape %s of %s takes %" PRIu64
                       " bits, not a multiple of 8",
                       shape, dtype, bits);
    if (t->end - t->begin != bits / 8)
        return err_set(e, ERR_INPUT,
                       "data_offsets span %" PRIu64
                       " bytes, shape %s of %s takes %" PRIu64,
                       t->end - t->begin, shape, dtype, bits / 8);
    return 0;
}

static int parse_tensor(const struct js_doc *doc, const struct js_node *n,
                        struct st_tensor *t, struct err *e)
{
    const struct js_node *dtype;
    const char *text;

    if (js_kind(n) != JS_OBJECT)
        return err_set(e, ERR_INPUT,
                       "is %s, must be an object with dtype, shape and "
                       "data_offsets",
                       js_kind_name(js_kind(n)));
    if (get_member(n, "dtype", JS_STRING, &dtype, e))
        return -1;
    if (!js_string(dtype, &text) || !st_dtype_by_name(text, &t->dtype))
        return err_set(e, ERR_INPUT, "unknown dtype '%.40s'", text);
    if (parse_shape(doc, n, t, e) || parse_offsets(doc, n, t, e))
        return -1;
    return check_size(t, e);
}

static int check_metadata(const struct js_node *meta, struct err *e)
{
    if (js_kind(meta) == JS_NULL)
        return 0;
    if (js_kind(meta) != JS_OBJECT)
        return err_set(e, ERR_INPUT, "'__metadata__' is %s, must be an object",
                       js_kind_name(js_kind(meta)));
    for (const struct js_node *m = js_first(meta); m; m = js_next(m))
        if (js_kind(m) != JS_STRING)
            return err_set(e, ERR_INPUT,
                           "'__metadata__' member " ST_NAME
                           " is %s, must be a string",
                           js_key(m), js_kind_name(js_kind(m)));
    return 0;
}

static int add_tensor(struct st *s, int shard, const struct js_doc *doc,
                      const struct js_node *n, struct err *e)
{
    struct st_tensor *t;

    if (mem_grow((void **)&s->tensors, &s->cap, s->n, sizeof *s->tensors, e))
        return -1;
    t = &s->tensors[s->n];
    memset(t, 0, sizeof *t);
    t->shard = shard;
    if (parse_tensor(doc, n, t, e))
        return err_in(e, "tensor " ST_NAME, js_key(n));
    t->name = arena_strdup(&s->arena, js_key(n), e);
    if (!t->name)
        return -1;
    s->n++;
    return 0;
}

/* By begin, then end: an empty tensor stands before the one that shares its
 * begin. By name where both are equal, so that messages are stable. */
static int by_place(const void *pa, const void *pb)
{
    const struct st_tensor *a = pa, *b = pb;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* The tensors must tile the data section: no hole, no overlap, no rest. */
static int check_tiling(const struct st_tensor *t, size_t n, uint64_t data_at,
                        uint64_t file_size, struct err *e)
{
    uint64_t end = 0;

    for (size_t i = 0; i < n; i++) {
        if (t[i].begin > end && i == 0)
            return err_set(e, ERR_INPUT,
                           "tensor " ST_NAME " is the first and begins at byte "
                           "%" PRIu64 " of the data, must begin at 0",
                           t[i].name, t[i].begin);
        if (t[i].begin > end)
            return err_set(e, ERR_INPUT,
                           "bytes [%" PRIu64 ", %" PRIu64
                           ") of the data, between tensors " ST_NAME
                           " and " ST_NAME ", belong to no tensor",
                           end, t[i].begin, t[i - 1].name, t[i].name);
        if (t[i].begin < end)
            return err_set(e, ERR_INPUT,
                           "tensor " ST_NAME " at bytes [%" PRIu64 ", %" PRIu64
                           ") of the data overlaps " ST_NAME " at [%" PRIu64
                           ", %" PRIu64 ")",
                           t[i].name, t[i].begin, t[i].end, t[i - 1].name,
                           t[i - 1].begin, t[i - 1].end);
        end = t[i].end;
    }
    if (data_at + end > file_size)
        return err_set(e, ERR_INPUT,
                       "truncated: %" PRIu64 " of %" PRIu64
                       " bytes, download it again",
                       file_size, data_at + end);
    if (data_at + end < file_size)
        return err_set(e, ERR_INPUT,
                       "%" PRIu64 " bytes where the header accounts for "
                       "%" PRIu64 ": the last %" PRIu64 " belong to no tensor",
                       file_size, data_at + end, file_size - data_at - end);
    return 0;
}

static int parse_header(struct st *s, int shard, const char *text, size_t len,
                        struct err *e)
{
    const struct st_shard *f = &s->shards[shard];
    struct js_doc *doc = js_parse(text, len, e);
    const struct js_node *root;
    size_t first = s->n;
    int rc = -1;

    if (!doc)
        return err_in(e, "header of %zu bytes", len);
    root = js_root(doc);
    if (js_kind(root) != JS_OBJECT) {
        err_set(e, ERR_INPUT, "header is %s, must be an object",
                js_kind_name(js_kind(root)));
        goto out;
    }
    for (const struct js_node *n = js_first(root); n; n = js_next(n)) {
        if (!strcmp(js_key(n), "__metadata__")
                ? check_metadata(n, e)
                : add_tensor(s, shard, doc, n, e))
            goto out;
    }
    if (s->n > first)
        qsort(s->tensors + first, s->n - first, sizeof *s->tensors, by_place);
    rc = check_tiling(s->tensors + first, s->n - first, f->data_at,
                      f->file.size, e);
out:
    js_free(doc);
    return rc;
}

static int check_length(const struct io_file *f, uint64_t n, struct err *e)
{
    if (n > ST_MAX_HEADER)
        return err_set(e, ERR_INPUT,
                       "header length of %" PRIu64
                       " bytes, at most %u are allowed",
                       n, ST_MAX_HEADER);
    if (n > f->size - 8)
        return err_set(e, ERR_INPUT,
                       "truncated: %" PRIu64 " of %" PRIu64
                       " bytes and more (a header of %" PRIu64
                       " behind its length), download it again",
                       f->size, n + 8, n);
    return 0;
}

int st_header_load(struct st *s, int shard, struct err *e)
{
    struct st_shard *f = &s->shards[shard];
    unsigned char length[8];
    uint64_t n;
    char *text;
    int rc;

    if (f->file.size < sizeof length) {
        err_set(e, ERR_INPUT,
                "truncated: %" PRIu64 " bytes, the header length alone takes "
                "8, download it again",
                f->file.size);
        return err_in(e, "cannot read '%s'", f->file.path);
    }
    if (io_pread(&f->file, length, sizeof length, 0, e))
        return -1;
    n = load_le64(length);
    if (check_length(&f->file, n, e))
        return err_in(e, "cannot read '%s'", f->file.path);
    f->data_at = n + sizeof length;
    text = mem_alloc((size_t)n, 1, e);
    if (!text)
        return -1;
    rc = io_pread(&f->file, text, (size_t)n, sizeof length, e);
    if (!rc) {
        rc = parse_header(s, shard, text, (size_t)n, e);
        if (rc)
            err_in(e, "cannot read '%s'", f->file.path);
    }
    mem_free(text);
    return rc;
}
