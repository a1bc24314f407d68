/*
 * Element types, tensor types and small constants: names, sizes, reading of
 * packed elements. Knows nothing of operations.
 */
#include "mil/mil.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"

static const struct dtype_row {
    const char *name;
    unsigned bits;
    char kind; /* b bool, s string, f float, i signed, u unsigned */
} dtypes[MIL_DTYPE_COUNT] = {
    [MIL_INVALID] = { "invalid", 0, '?' }, [MIL_BOOL] = { "bool", 8, 'b' },
    [MIL_STRING] = { "string", 0, 's' },   [MIL_F16] = { "fp16", 16, 'f' },
    [MIL_F32] = { "fp32", 32, 'f' },       [MIL_F64] = { "fp64", 64, 'f' },
    [MIL_BF16] = { "bf16", 16, 'f' },      [MIL_I4] = { "int4", 4, 'i' },
    [MIL_I8] = { "int8", 8, 'i' },         [MIL_I16] = { "int16", 16, 'i' },
    [MIL_I32] = { "int32", 32, 'i' },      [MIL_I64] = { "int64", 64, 'i' },
    [MIL_U1] = { "uint1", 1, 'u' },        [MIL_U2] = { "uint2", 2, 'u' },
    [MIL_U3] = { "uint3", 3, 'u' },        [MIL_U4] = { "uint4", 4, 'u' },
    [MIL_U6] = { "uint6", 6, 'u' },        [MIL_U8] = { "uint8", 8, 'u' },
    [MIL_U16] = { "uint16", 16, 'u' },     [MIL_U32] = { "uint32", 32, 'u' },
    [MIL_U64] = { "uint64", 64, 'u' },
};

static const struct dtype_row *row(enum mil_dtype d)
{
    unsigned i = (unsigned)d;

    return &dtypes[i < MIL_DTYPE_COUNT ? i : MIL_INVALID];
}

const char *mil_dtype_name(enum mil_dtype d)
{
    return row(d)->name;
}

bool mil_dtype_by_name(const char *name, enum mil_dtype *out)
{
    for (int d = MIL_INVALID + 1; d < MIL_DTYPE_COUNT; d++) {
        if (strcmp(dtypes[d].name, name) == 0) {
            *out = (enum mil_dtype)d;
            return true;
        }
    }
    return false;
}

unsigned mil_dtype_bits(enum mil_dtype d)
{
    return row(d)->bits;
}

bool mil_dtype_is_float(enum mil_dtype d)
{
    return row(d)->kind == 'f';
}

bool mil_dtype_is_int(enum mil_dtype d)
{
    return row(d)->kind == 'i' || row(d)->kind == 'u';
}

struct mil_type mil_type_make(enum mil_dtype d, int rank, const int64_t *dims)
{
    struct mil_type t = { .dtype = d, .rank = rank };

    BUG_UNLESS(rank >= 0 && rank <= MIL_MAX_RANK);
    for (int i = 0; i < rank; i++)
        t.dims[i] = dims[i];
    return t;
}

struct mil_type mil_scalar(enum mil_dtype d)
{
    return mil_type_make(d, 0, NULL);
}

bool mil_type_equal(const struct mil_type *a, const struct mil_type *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++) {
        if (a->dims[i] != b->dims[i])
            return false;
    }
    return true;
}

bool mil_type_is_static(const struct mil_type *t)
{
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] < 0)
            return false;
    }
    return true;
}

int64_t mil_type_elems(const struct mil_type *t)
{
    const uint64_t limit = (uint64_t)1 << 62;
    uint64_t n = 1;

    if (!mil_type_is_static(t))
        return -1;
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] == 0)
            return 0;
    }
    for (int i = 0; i < t->rank; i++) {
        if (!mem_mul(n, (uint64_t)t->dims[i], &n) || n > limit)
            return -1;
    }
    return (int64_t)n;
}

int64_t mil_type_bytes(const struct mil_type *t)
{
    int64_t n = mil_type_elems(t);
    uint64_t bits;

    if (n < 0 || !mem_mul((uint64_t)n, mil_dtype_bits(t->dtype), &bits))
        return -1;
    return (int64_t)(bits / 8 + (bits % 8 != 0));
}

void mil_type_text(const struct mil_type *t, char out[MIL_TYPE_TEXT_MAX])
{
    size_t n;

    if (t->rank == 0) {
        snprintf(out, MIL_TYPE_TEXT_MAX, "%s", mil_dtype_name(t->dtype));
        return;
    }
    n = (size_t)snprintf(out, MIL_TYPE_TEXT_MAX, "tensor<%s, [",
                         mil_dtype_name(t->dtype));
    /* 7 + 6 + 3 characters around at most 8 * 22: cut only beyond 10^15. */
    for (int i = 0; i < t->rank && n < MIL_TYPE_TEXT_MAX - 28; i++) {
        const char *sep = i ? ", " : "";
        int k;

        if (t->dims[i] < 0)
            k = snprintf(out + n, MIL_TYPE_TEXT_MAX - n, "%s?", sep);
        else
            k = snprintf(out + n, MIL_TYPE_TEXT_MAX - n, "%s%lld", sep,
                         (long long)t->dims[i]);
        n += (size_t)k;
    }
    snprintf(out + n, MIL_TYPE_TEXT_MAX - n, "]>");
}

int mil_data_read_memory(void *cookie, uint64_t offset, void *dst, size_t n,
                         struct err *e)
{
    (void)e; /* memory cannot fail; the caller stays within `bytes` */
    memcpy(dst, (const char *)cookie + offset, n);
    return 0;
}

/* Element i of packed little-endian bytes, as raw bits. */
static uint64_t raw_bits(const struct mil_const *c, int64_t i)
{
    const unsigned char *p = c->bytes;
    unsigned bits = mil_dtype_bits(c->type.dtype);
    uint64_t at, v;

    if (bits >= 8) {
        p += (uint64_t)i * (bits / 8);
        switch (bits) {
        case 8: return *p;
        case 16: return load_le16(p);
        case 32: return load_le32(p);
        default: return load_le64(p);
        }
    }
    at = (uint64_t)i * bits;
    v = p[at / 8];
    if (at % 8 + bits > 8)
        v |= (uint64_t)p[at / 8 + 1] << 8;
    return (v >> (at % 8)) & (((uint64_t)1 << bits) - 1);
}

static bool has_element(const struct mil_const *c, int64_t i)
{
    return c && c->bytes && i >= 0 && i < mil_type_elems(&c->type) &&
           mil_dtype_bits(c->type.dtype) > 0;
}

static double float_from_bits(enum mil_dtype d, uint64_t v)
{
    uint32_t v32 = (uint32_t)v;
    float f;
    double x;

    switch (d) {
    case MIL_F16: return (double)f16_to_f32((f16_t)v);
    case MIL_BF16: return (double)bf16_to_f32((bf16_t)v);
    case MIL_F32: memcpy(&f, &v32, sizeof f); return (double)f;
    default: memcpy(&x, &v, sizeof x); return x;
    }
}

static int64_t int_from_bits(enum mil_dtype d, uint64_t v)
{
    unsigned bits = mil_dtype_bits(d);
    uint64_t sign = (uint64_t)1 << (bits - 1);
    int64_t s;

    if (row(d)->kind == 'i' && bits < 64 && (v & sign))
        v |= ~(sign * 2 - 1);
    memcpy(&s, &v, sizeof s);
    return s;
}

double mil_const_double(const struct mil_const *c, int64_t i)
{
    enum mil_dtype d;

    if (!has_element(c, i))
        return 0;
    d = c->type.dtype;
    if (mil_dtype_is_float(d))
        return float_from_bits(d, raw_bits(c, i));
    if (d == MIL_U64)
        return (double)raw_bits(c, i);
    return (double)int_from_bits(d, raw_bits(c, i));
}

int64_t mil_const_int(const struct mil_const *c, int64_t i)
{
    enum mil_dtype d;
    double x;

    if (!has_element(c, i))
        return 0;
    d = c->type.dtype;
    if (!mil_dtype_is_float(d))
        return int_from_bits(d, raw_bits(c, i));
    x = float_from_bits(d, raw_bits(c, i));
    if (isnan(x))
        return 0;
    if (x >= 9.2e18)
        return INT64_MAX;
    if (x <= -9.2e18)
        return INT64_MIN;
    return (int64_t)x;
}
