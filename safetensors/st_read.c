/*
 * Data of tensors: ranged reads and conversion of blocks of elements.
 *
 * Bytes go through a bounded buffer on the caller's stack or straight into
 * the destination; no pointer into file bytes is ever dereferenced as a wider
 * type. All functions are thread-safe: they only pread. The block conversions
 * take little-endian bytes as they stand in the file.
 */
#include "safetensors/st_priv.h"

#include <inttypes.h>
#include <string.h>

/* Fits the second-level cache and any thread's stack. */
#define SCRATCH_BYTES 65536u

int st_read_bytes(const struct st *s, const struct st_tensor *t,
                  uint64_t offset, void *dst, size_t n, struct err *e)
{
    const struct st_shard *f = &s->shards[t->shard];
    uint64_t size = t->end - t->begin;

    if (offset > size || n > size - offset)
        return err_set(e, ERR_INPUT,
                       "tensor " ST_NAME " has %" PRIu64
                       " bytes, %zu at %" PRIu64 " were asked for",
                       t->name, size, n, offset);
    if (!n)
        return 0;
    if (io_pread(&f->file, dst, n, f->data_at + t->begin + offset, e))
        return err_in(e, "tensor " ST_NAME, t->name);
    return 0;
}

static int check_range(const struct st_tensor *t, uint64_t first, size_t n,
                       struct err *e)
{
    if (first > t->elems || n > t->elems - first)
        return err_set(e, ERR_INPUT,
                       "tensor " ST_NAME " has %" PRIu64
                       " elements, %zu at %" PRIu64 " were asked for",
                       t->name, t->elems, n, first);
    return 0;
}

static int wrong_dtype(const struct st_tensor *t, const char *allowed,
                       struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED,
                   "tensor " ST_NAME " is %s, only %s can be read here",
                   t->name, st_dtype_name(t->dtype), allowed);
}

int st_read_f32(const struct st *s, const struct st_tensor *t, uint64_t first,
                size_t n, float *dst, struct err *e)
{
    unsigned char scratch[SCRATCH_BYTES];
    void (*convert)(float *, const void *, size_t) =
        t->dtype == ST_BF16 ? num_bf16_to_f32 : num_f16_to_f32;

    if (!st_dtype_is_plain(t->dtype))
        return wrong_dtype(t, "BF16, F16 and F32", e);
    if (check_range(t, first, n, e))
        return -1;
    if (t->dtype == ST_F32) {
        if (st_read_bytes(s, t, first * 4, dst, n * 4, e))
            return -1;
        num_order_le32(dst, n);
        return 0;
    }
    while (n) {
        size_t k = n < SCRATCH_BYTES / 2 ? n : SCRATCH_BYTES / 2;
        if (st_read_bytes(s, t, first * 2, scratch, k * 2, e))
            return -1;
        convert(dst, scratch, k);
        dst += k;
        first += k;
        n -= k;
    }
    return 0;
}

int st_read_f16(const struct st *s, const struct st_tensor *t, uint64_t first,
                size_t n, f16_t *dst, struct err *e)
{
    unsigned char scratch[SCRATCH_BYTES];
    size_t width = t->dtype == ST_F32 ? 4 : 2;
    void (*convert)(f16_t *, const void *, size_t) =
        t->dtype == ST_BF16 ? num_bf16_to_f16 : num_f32_to_f16;

    if (!st_dtype_is_plain(t->dtype))
        return wrong_dtype(t, "BF16, F16 and F32", e);
    if (check_range(t, first, n, e))
        return -1;
    if (t->dtype == ST_F16) {
        if (st_read_bytes(s, t, first * 2, dst, n * 2, e))
            return -1;
        num_order_le16(dst, n);
        return 0;
    }
    while (n) {
        size_t most = SCRATCH_BYTES / width;
        size_t k = n < most ? n : most;
        if (st_read_bytes(s, t, first * width, scratch, k * width, e))
            return -1;
        convert(dst, scratch, k);
        dst += k;
        first += k;
        n -= k;
    }
    return 0;
}

static int narrow_i64(const struct st_tensor *t, const unsigned char *src,
                      uint64_t first, size_t n, int32_t *dst, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = load_le64(src + 8 * i);
        int64_t v;
        memcpy(&v, &bits, 8);
        if (v < INT32_MIN || v > INT32_MAX)
            return err_set(e, ERR_INPUT,
                           "tensor " ST_NAME " holds %" PRId64
                           " at index %" PRIu64
                           ", must fit in 32 bits with sign",
                           t->name, v, first + i);
        dst[i] = (int32_t)v;
    }
    return 0;
}

int st_read_i32(const struct st *s, const struct st_tensor *t, uint64_t first,
                size_t n, int32_t *dst, struct err *e)
{
    unsigned char scratch[SCRATCH_BYTES];

    if (t->dtype != ST_I32 && t->dtype != ST_I64)
        return wrong_dtype(t, "I32 and I64", e);
    if (check_range(t, first, n, e))
        return -1;
    if (t->dtype == ST_I32) {
        if (st_read_bytes(s, t, first * 4, dst, n * 4, e))
            return -1;
        num_order_le32(dst, n);
        return 0;
    }
    while (n) {
        size_t k = n < SCRATCH_BYTES / 8 ? n : SCRATCH_BYTES / 8;
        if (st_read_bytes(s, t, first * 8, scratch, k * 8, e) ||
            narrow_i64(t, scratch, first, k, dst, e))
            return -1;
        dst += k;
        first += k;
        n -= k;
    }
    return 0;
}

int st_unchanged(const struct st *s, struct err *e)
{
    for (size_t i = 0; i < s->n_shards; i++)
        if (io_unchanged(&s->shards[i].file, e))
            return -1;
    return 0;
}
