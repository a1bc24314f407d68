/*
 * Weights of products that are not held in memory: pieces of a few rows are
 * read from their source and decoded each time they are multiplied. Plain
 * fp16, and scalar palettes whose groups are rows: what packages consist of.
 * Everything else is decoded once, whatever the limit.
 */
#include "mil/run/run_priv.h"

/* Of a piece: it and what it is made of should stay in a core's cache. */
#define PIECE_ELEMS 65536
#define PIECE_MIN 8 /* rows that the products work on together */
#define PIECE_MAX 32
#define SLACK 16 /* indices are read eight at a time */

int64_t run_stream_rows(int64_t cols)
{
    int64_t n = PIECE_ELEMS / cols / PIECE_MIN * PIECE_MIN;

    return n < PIECE_MIN ? PIECE_MIN : n > PIECE_MAX ? PIECE_MAX : n;
}

/* Elements that share a table, in flat order; 0 if that is no run of rows. */
static int64_t group_elems(const struct run_const *k)
{
    const struct mil_type *ix = &k->args[0]->type, *t = &k->args[1]->type;
    int64_t n = k->elems / (t->dims[0] < 1 ? 1 : t->dims[0]);

    for (int i = 1; i < ix->rank; i++)
        if (t->dims[i] != 1)
            return 0;
    return t->dims[ix->rank + 1] == 1 ? n : 0;
}

static bool plain(const struct run_const *k)
{
    return k->code == MIL_OP_const && k->konst &&
           (k->konst->data || k->konst->bytes);
}

bool run_stream_fits(const struct run_const *k)
{
    if (k->type.dtype != MIL_F16 || k->elems < 1)
        return false;
    if (k->code != MIL_OP_constexpr_lut_to_dense)
        return plain(k);
    return plain(k->args[0]) && plain(k->args[1]) &&
           mil_dtype_bits(k->args[0]->type.dtype) <= 8 &&
           k->args[1]->type.dtype == MIL_F16 && group_elems(k) > 0;
}

static int64_t floats_of(int64_t bytes)
{
    return (bytes + 63) / 64 * 16;
}

/* Scratch: halves, then indices, then tables. */
struct layout {
    int64_t indices, tables, end; /* floats from the start */
};

static struct layout layout_of(const struct run_const *k, int64_t elems)
{
    struct layout l = { .indices = floats_of(2 * elems) };

    l.tables = l.end = l.indices;
    if (k->code == MIL_OP_const)
        return l;
    l.tables += floats_of(elems * mil_dtype_bits(k->args[0]->type.dtype) / 8 +
                          SLACK + 2);
    l.end = l.tables + floats_of((elems / group_elems(k) + 2) *
                                 k->args[1]->type.dims[k->type.rank] * 2);
    return l;
}

int64_t run_stream_floats(const struct run_const *k, int64_t elems)
{
    return layout_of(k, elems < k->elems ? elems : k->elems).end;
}

static int read_halves(const struct run_const *k, int64_t first, int64_t n,
                       f16_t *dst, struct err *e)
{
    if (run_const_raw(k, (uint64_t)first * sizeof(f16_t), dst,
                      (size_t)n * sizeof(f16_t), e))
        return -1;
    for (int64_t i = 0; i < n; i++)
        dst[i] = load_le16(&dst[i]);
    return 0;
}

/* Entries of `n` indices of `bits` each, the first of which begins `at` bits
 * from p. */
static void look_up(const unsigned char *p, uint64_t at, unsigned bits,
                    int64_t n, const f16_t *table, f16_t *dst)
{
    const unsigned mask = (1u << bits) - 1;
    int64_t i = 0;

    for (; i + 8 <= n; i += 8, at += 8 * bits) {
        uint64_t v = load_le64(p + at / 8) >> at % 8;

        for (int j = 0; j < 8; j++, v >>= bits)
            dst[i + j] = table[v & mask];
    }
    for (; i < n; i++, at += bits)
        dst[i] = table[(unsigned)load_le16(p + at / 8) >> at % 8 & mask];
}

static int read_lut(const struct run_const *k, int64_t first, int64_t n,
                    float *scratch, struct err *e)
{
    struct layout l = layout_of(k, n);
    unsigned char *p = (unsigned char *)(scratch + l.indices);
    f16_t *tables = (f16_t *)(void *)(scratch + l.tables);
    f16_t *dst = (f16_t *)(void *)scratch;
    unsigned bits = mil_dtype_bits(k->args[0]->type.dtype);
    uint64_t at = (uint64_t)first * bits;
    uint64_t bytes = ((uint64_t)n * bits + at % 8 + 7) / 8;
    int64_t entries = k->args[1]->type.dims[k->type.rank];
    int64_t size = group_elems(k), group = first / size;
    int64_t groups = (first + n - 1) / size - group + 1;

    if (run_const_raw(k->args[0], at / 8, p, (size_t)bytes, e) ||
        read_halves(k->args[1], group * entries, groups * entries, tables, e))
        return -1;
    memset(p + bytes, 0, SLACK);
    at %= 8;
    for (int64_t i = 0; i < n;) {
        int64_t g = (first + i) / size, run = (g + 1) * size - first - i;

        run = run < n - i ? run : n - i;
        look_up(p, at, bits, run, tables + (g - group) * entries, dst + i);
        i += run;
        at += (uint64_t)run * bits;
    }
    return 0;
}

int run_stream_read(const struct run_const *k, int64_t first, int64_t n,
                    float *scratch, struct err *e)
{
    return k->code == MIL_OP_const
               ? read_halves(k, first, n, (f16_t *)(void *)scratch, e)
               : read_lut(k, first, n, scratch, e);
}
