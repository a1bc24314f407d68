/*
 * Constants of the runtime: decoded once and shared, large tables read row by
 * row, compressed weights, sources that fail or lie about their size.
 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "mil/build.h"
#include "mil/run/run.h"

static struct err e;

/* A source that counts what is read of it and may fail. */
struct source {
    struct mil_data data;
    const unsigned char *bytes;
    _Atomic uint64_t read_bytes; /* by any thread */
    _Atomic int reads;
    uint64_t fail_from; /* reads that reach this byte fail */
};

static int source_read(void *cookie, uint64_t offset, void *dst, size_t n,
                       struct err *err)
{
    struct source *s = cookie;

    s->reads++;
    s->read_bytes += n;
    if (offset + n > s->fail_from)
        return err_set(err, ERR_IO, "bytes beyond %d cannot be read",
                       (int)s->fail_from);
    memcpy(dst, s->bytes + offset, n);
    return 0;
}

static void source_init(struct source *s, enum mil_dtype d, int rank,
                        const int64_t *dims, const void *bytes)
{
    memset(s, 0, sizeof(*s));
    s->data.type = mil_type_make(d, rank, dims);
    s->data.bytes = (uint64_t)mil_type_bytes(&s->data.type);
    s->data.read = source_read;
    s->data.cookie = s;
    s->bytes = bytes;
    s->fail_from = UINT64_MAX;
}

static struct run_model *open_as(const struct mil_program *p,
                                 enum run_profile profile)
{
    struct run_options o = { .profile = profile };
    struct run_model *m = run_open(p, &o, &e);

    cr_assert(m, "%s", e.text);
    return m;
}

static f16_t *halves(size_t n, unsigned seed)
{
    f16_t *h = mem_alloc(n, sizeof(*h), &e);

    cr_assert(h);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        h[i] = f32_to_f16((float)(seed >> 8 & 0xff) / 64.0f - 2.0f);
    }
    return h;
}

/* ---- shared ---- */

#define IN 96
#define OUT 160

/* Two functions, one weight. */
static struct mil_program *shared(const struct mil_data *w, int n_functions)
{
    static const char *const names[] = { "infer", "prefill" };
    struct mil_program *p = mil_program_new(&e);

    for (int i = 0; i < n_functions; i++) {
        struct mb b;

        mb_begin(&b, p, names[i]);
        mil_ref x =
            mb_input(&b, "x", MIL_F16, 4, (int64_t[]){ 1, IN, 1, i ? 5 : 1 });
        mb_output(&b, "y", mb_conv1x1(&b, x, mb_data(&b, "w", w), 0));
        cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    }
    return p;
}

Test(run_const, functions_share_one_copy_in_half)
{
    f16_t *w = halves(IN * OUT, 1);
    uint64_t bytes[2];

    for (int n = 1; n <= 2; n++) {
        struct source s;
        struct mil_program *p;
        struct run_model *m;

        source_init(&s, MIL_F16, 4, (int64_t[]){ OUT, IN, 1, 1 }, w);
        p = shared(&s.data, n);
        m = open_as(p, RUN_FP16);
        cr_expect_eq(s.read_bytes, IN * OUT * 2, "read once");
        bytes[n - 1] = run_resident_bytes(m);
        cr_expect_geq(bytes[n - 1], IN * OUT * 2);
        run_close(m);
        mil_program_free(p);
    }
    /* the second function costs its activations, not a second weight */
    cr_expect_lt(bytes[1] - bytes[0], IN * OUT);
    mem_free(w);
}

static void conv_reference(const f16_t *w, const float *x, int n, float *y)
{
    for (int o = 0; o < OUT; o++)
        for (int t = 0; t < n; t++) {
            double sum = 0;

            for (int i = 0; i < IN; i++)
                sum += (double)f16_to_f32(w[o * IN + i]) * x[i * n + t];
            y[o * n + t] = (float)sum;
        }
}

Test(run_const, halves_give_what_floats_would)
{
    f16_t *w = halves(IN * OUT, 2);
    struct source s;
    struct mil_program *p;
    struct run_model *m;
    float x[IN * 5], want[OUT * 5];
    struct run_tensor in, out;
    size_t k;

    source_init(&s, MIL_F16, 4, (int64_t[]){ OUT, IN, 1, 1 }, w);
    p = shared(&s.data, 2);
    m = open_as(p, RUN_F32);
    for (int i = 0; i < IN * 5; i++)
        x[i] = (float)(i * 7 % 23) / 8.0f - 1.0f;
    for (int f = 0; f < 2; f++) {
        int n = f ? 5 : 1;

        in.name = "x";
        in.type = mil_type_make(MIL_F16, 4, (int64_t[]){ 1, IN, 1, n });
        in.data = x;
        conv_reference(w, x, n, want);
        cr_assert_eq(run_call(m, f ? "prefill" : "infer", NULL, &in, 1, &out, 1,
                              &k, &e),
                     0, "%s", e.text);
        for (int i = 0; i < OUT * n; i++)
            cr_expect_float_eq(((const float *)out.data)[i], want[i], 1e-3);
    }
    run_close(m);
    mil_program_free(p);
    mem_free(w);
}

/* ---- tables ---- */

#define ROWS 40000
#define COLS 16

static struct mil_program *table(const struct mil_data *d, bool tied)
{
    struct mil_program *p = mil_program_new(&e);
    struct mb b;

    mb_begin(&b, p, "main");
    mil_ref ids = mb_input(&b, "ids", MIL_I32, 2, (int64_t[]){ 1, 3 });
    mil_ref w = mb_data(&b, "table", d);
    mil_ref g = MB(&b, gather, .x = w, .indices = ids, .axis = mb_int(&b, 0));
    mb_output(&b, "rows", MB(&b, mul, .x = g, .y = mb_f16(&b, 1)));
    if (tied)
        mb_output(&b, "logits", MB(&b, linear, .x = g, .weight = w));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    return p;
}

static void gather_rows(struct run_model *m, const f16_t *w, size_t n_out)
{
    int32_t ids[3] = { ROWS - 1, 0, 12345 };
    struct run_tensor in, out[2];
    size_t k;

    in.name = "ids";
    in.type = mil_type_make(MIL_I32, 2, (int64_t[]){ 1, 3 });
    in.data = ids;
    cr_assert_eq(run_call(m, NULL, NULL, &in, 1, out, n_out, &k, &e), 0, "%s",
                 e.text);
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < COLS; c++)
            cr_expect_eq(((const float *)out[0].data)[r * COLS + c],
                         f16_to_f32(w[ids[r] * COLS + c]));
}

Test(run_const, a_large_table_is_read_by_rows)
{
    f16_t *w = halves(ROWS * COLS, 3);
    struct source s;
    struct mil_program *p;
    struct run_model *m;

    source_init(&s, MIL_F16, 2, (int64_t[]){ ROWS, COLS }, w);
    p = table(&s.data, false);
    m = open_as(p, RUN_FP16);
    cr_expect_eq(s.read_bytes, 0);
    cr_expect_lt(run_resident_bytes(m), 65536);
    gather_rows(m, w, 1);
    cr_expect_eq(s.read_bytes, 3 * COLS * 2);
    /* a row that cannot be read is an error of the call */
    {
        int32_t ids[3] = { 5, 6, 7 };
        struct run_tensor in, out;
        size_t k;

        s.fail_from = 6 * COLS * 2 + 1;
        in.name = "ids";
        in.type = mil_type_make(MIL_I32, 2, (int64_t[]){ 1, 3 });
        in.data = ids;
        cr_expect_neq(run_call(m, NULL, NULL, &in, 1, &out, 1, &k, &e), 0);
        cr_expect_eq(e.code, ERR_IO);
        cr_expect(strstr(e.text, "row 6"), "%s", e.text);
    }
    run_close(m);
    mil_program_free(p);
    mem_free(w);
}

/* A table that is also a head is in memory anyway. */
Test(run_const, a_tied_table_is_loaded_once)
{
    f16_t *w = halves(ROWS * COLS, 4);
    struct source s;
    struct mil_program *p;
    struct run_model *m;
    uint64_t after;

    source_init(&s, MIL_F16, 2, (int64_t[]){ ROWS, COLS }, w);
    p = table(&s.data, true);
    m = open_as(p, RUN_FP16);
    after = s.read_bytes;
    cr_expect_eq(after, ROWS * COLS * 2);
    gather_rows(m, w, 2);
    cr_expect_eq(s.read_bytes, after);
    run_close(m);
    mil_program_free(p);
    mem_free(w);
}

/* ---- sources that fail ---- */

Test(run_const, a_failing_source_is_an_error_at_open)
{
    f16_t *w = halves(IN * OUT, 5);
    struct run_options o = { .profile = RUN_FP16 };
    struct source s;
    struct mil_program *p;

    source_init(&s, MIL_F16, 4, (int64_t[]){ OUT, IN, 1, 1 }, w);
    p = shared(&s.data, 2);
    s.fail_from = 100;
    cr_expect_null(run_open(p, &o, &e));
    cr_expect_eq(e.code, ERR_IO);
    cr_expect_str_eq(e.text, "function 'infer': constant 'w': bytes beyond "
                             "100 cannot be read");
    mil_program_free(p);
    mem_free(w);
}

Test(run_const, a_source_of_another_size_is_refused)
{
    f16_t *w = halves(IN * OUT, 6);
    struct run_options o = { .profile = RUN_FP16 };
    struct source s;
    struct mil_program *p;

    source_init(&s, MIL_F16, 4, (int64_t[]){ OUT, IN, 1, 1 }, w);
    p = shared(&s.data, 1);
    s.data.bytes -= 2;
    cr_expect_null(run_open(p, &o, &e));
    cr_expect_eq(e.code, ERR_INPUT);
    cr_expect_str_eq(e.text,
                     "function 'infer': constant 'w': a constant of type "
                     "tensor<fp16, [160, 96, 1, 1]> has 30718 bytes of "
                     "content, 30720 are needed");
    cr_expect_eq(s.reads, 0);
    mil_program_free(p);
    mem_free(w);
}

/* ---- compressed weights ---- */

/* Tables of 4-bit indices for 8 rows each, their entries scaled: the table of
 * the product is itself a constexpr result. */
Test(run_const, a_table_scaled_by_a_constexpr)
{
    enum { ROWS_ = 16, COLS_ = 320, G = 2 };
    struct mil_program *p = mil_program_new(&e);
    static unsigned char ix[ROWS_ * COLS_ / 2];
    f16_t scale[G] = { f32_to_f16(0.5f), f32_to_f16(2.0f) };
    int8_t lut[G * 16], *l = lut;
    static float x[COLS_];
    struct source si, sl, ss;
    struct run_tensor in, out;
    struct run_model *m;
    struct mb b;
    size_t k;

    for (int i = 0; i < G * 16; i++)
        *l++ = (int8_t)(i * 5 - 60);
    for (int i = 0; i < ROWS_ * COLS_ / 2; i++)
        ix[i] = (unsigned char)(i * 37 + i / 7);
    for (int i = 0; i < COLS_; i++)
        x[i] = (float)(i % 5) - 2.0f;
    source_init(&si, MIL_U4, 2, (int64_t[]){ ROWS_, COLS_ }, ix);
    source_init(&sl, MIL_I8, 4, (int64_t[]){ G, 1, 16, 1 }, lut);
    source_init(&ss, MIL_F16, 4, (int64_t[]){ G, 1, 1, 1 }, scale);
    mb_begin(&b, p, "main");
    mil_ref in_x = mb_input(&b, "x", MIL_F16, 2, (int64_t[]){ 1, COLS_ });
    mil_ref t = MB(&b, constexpr_blockwise_shift_scale,
                   .data = mb_data(&b, "lut", &sl.data),
                   .scale = mb_data(&b, "scale", &ss.data));
    mil_ref w = MB(&b, constexpr_lut_to_dense,
                   .indices = mb_data(&b, "ix", &si.data), .lut = t);
    mb_output(&b, "y", MB(&b, linear, .x = in_x, .weight = w));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    m = open_as(p, RUN_F32);
    in.name = "x";
    in.type = mil_type_make(MIL_F16, 2, (int64_t[]){ 1, COLS_ });
    in.data = x;
    cr_assert_eq(run_call(m, NULL, NULL, &in, 1, &out, 1, &k, &e), 0, "%s",
                 e.text);
    for (int r = 0; r < ROWS_; r++) {
        double sum = 0;

        for (int c = 0; c < COLS_; c++) {
            int at = r * COLS_ + c;
            int v = at % 2 ? ix[at / 2] >> 4 : ix[at / 2] & 15;

            sum += (double)lut[r / 8 * 16 + v] *
                   (double)f16_to_f32(scale[r / 8]) * (double)x[c];
        }
        cr_expect_float_eq(((const float *)out.data)[r], (float)sum, 1e-2,
                           "row %d", r);
    }
    /* the tables' floats and the indices are gone: weights, in half */
    cr_expect_lt(run_resident_bytes(m), ROWS_ * COLS_ * 2 + 32768);
    run_close(m);
    mil_program_free(p);
}

Test(run_const, a_cast_constant)
{
    struct mil_program *p = mil_program_new(&e);
    f16_t h[3] = { f32_to_f16(0.1f), f32_to_f16(-2), f32_to_f16(1e-7f) };
    float x[3] = { 1, 2, 3 };
    struct run_tensor in, out;
    struct source s;
    struct run_model *m;
    struct mb b;
    size_t k;

    source_init(&s, MIL_F16, 1, (int64_t[]){ 3 }, h);
    mb_begin(&b, p, "main");
    mil_ref in_x = mb_input(&b, "x", MIL_F32, 1, (int64_t[]){ 3 });
    mil_ref w = MB(&b, constexpr_cast, .source_val = mb_data(&b, "h", &s.data),
                   .output_dtype = mb_string(&b, "fp32"));
    mb_output(&b, "y", MB(&b, mul, .x = in_x, .y = w));
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    m = open_as(p, RUN_FP16);
    in.name = "x";
    in.type = mil_type_make(MIL_F32, 1, (int64_t[]){ 3 });
    in.data = x;
    cr_assert_eq(run_call(m, NULL, NULL, &in, 1, &out, 1, &k, &e), 0, "%s",
                 e.text);
    for (int i = 0; i < 3; i++) /* fp32 values are not rounded to half */
        cr_expect_eq(((const float *)out.data)[i], x[i] * f16_to_f32(h[i]));
    run_close(m);
    mil_program_free(p);
}

Test(run_const, a_mask_that_takes_another_number_of_values)
{
    struct run_options o = { .profile = RUN_F32 };
    static const unsigned char mask[1] = { 0x1d }; /* 1, 0, 1, 1, 1 */
    f16_t v[5] = { 0 };

    for (int n = 3; n <= 5; n++) {
        struct mil_program *p = mil_program_new(&e);
        struct source sv, sm;
        struct run_model *m;
        struct mb b;

        source_init(&sv, MIL_F16, 1, (int64_t[]){ n }, v);
        source_init(&sm, MIL_U1, 1, (int64_t[]){ 5 }, mask);
        mb_begin(&b, p, "main");
        mil_ref x = mb_input(&b, "x", MIL_F16, 1, (int64_t[]){ 5 });
        mil_ref w = MB(&b, constexpr_sparse_to_dense,
                       .nonzero_data = mb_data(&b, "v", &sv.data),
                       .mask = mb_data(&b, "m", &sm.data));
        mb_output(&b, "y", MB(&b, mul, .x = x, .y = w));
        cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
        err_reset(&e);
        m = run_open(p, &o, &e);
        cr_expect_eq(m != NULL, n == 4, "%d values: %s", n, e.text);
        run_close(m);
        mil_program_free(p);
    }
}

/* Two-bit weights whose tables stand inline in each function: one matrix. */
Test(run_const, inline_tables_are_compared_by_content)
{
    enum { D = 128 };
    struct mil_program *p = mil_program_new(&e);
    static unsigned char ix[D * D / 4];
    f16_t lut[4] = { f32_to_f16(-1), f32_to_f16(-0.25f), f32_to_f16(0.5f),
                     f32_to_f16(2) };
    struct mil_const table = { .type = mil_type_make(MIL_F16, 4,
                                                     (int64_t[]){ 1, 1, 4, 1 }),
                               .bytes = lut };
    struct source si;
    struct run_model *m;

    source_init(&si, MIL_U2, 2, (int64_t[]){ D, D }, ix);
    for (int i = 0; i < 2; i++) {
        const struct mil_const *kept;
        struct mil_op *op;
        struct mb b;

        mb_begin(&b, p, i ? "prefill" : "infer");
        mil_ref x = mb_input(&b, "x", MIL_F16, 2, (int64_t[]){ 1 + i, D });
        kept = mil_copy_const(p, &table, &e);
        op = mil_add_op(b.f, MIL_OP_const, "lut", &e);
        cr_assert(kept && op);
        mil_ref t = mil_add_output(b.f, op, "lut", &table.type, &e);
        cr_assert(t);
        mil_value(b.f, t)->konst = kept;
        mil_ref w = MB(&b, constexpr_lut_to_dense,
                       .indices = mb_data(&b, "ix", &si.data), .lut = t);
        mb_output(&b, "y", MB(&b, linear, .x = x, .weight = w));
        cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    }
    m = open_as(p, RUN_FP16);
    cr_expect_eq(si.read_bytes, sizeof(ix));
    run_close(m);
    mil_program_free(p);
}

/* ---- weights beyond the limit ---- */

struct weight {
    int bits; /* 16: plain fp16 */
    int64_t rows, cols, group;
    struct source indices, tables;
    unsigned char *bytes;
    f16_t *entries;
};

static void weight_make(struct weight *w, int rank, const int64_t *dims)
{
    static const enum mil_dtype types[] = {
        [1] = MIL_U1, [2] = MIL_U2, [3] = MIL_U3,
        [4] = MIL_U4, [6] = MIL_U6, [8] = MIL_U8
    };
    int64_t lut[MIL_MAX_RANK] = { 0 }, n = 1;

    for (int i = 0; i < rank; i++)
        n *= dims[i];
    w->rows = dims[0];
    w->cols = n / dims[0];
    w->entries = halves((size_t)(w->bits == 16 ? n : w->rows << w->bits), 7);
    if (w->bits == 16) {
        source_init(&w->indices, MIL_F16, rank, dims, w->entries);
        return;
    }
    w->bytes = mem_alloc((size_t)n + 1, 1, &e);
    for (int64_t i = 0; i <= n; i++)
        w->bytes[i] = (unsigned char)(i * 167 + i / 11 + i / 257);
    for (int i = 0; i < rank + 2; i++)
        lut[i] = 1;
    lut[0] = w->rows / w->group;
    lut[rank] = (int64_t)1 << w->bits;
    source_init(&w->indices, types[w->bits], rank, dims, w->bytes);
    source_init(&w->tables, MIL_F16, rank + 2, lut, w->entries);
}

static void weight_drop(struct weight *w)
{
    mem_free(w->bytes);
    mem_free(w->entries);
}

static mil_ref weight_ref(struct mb *b, const struct weight *w)
{
    mil_ref ix = mb_data(b, "w", &w->indices.data);

    return w->bits == 16 ? ix
                         : MB(b, constexpr_lut_to_dense, .indices = ix,
                              .lut = mb_data(b, "lut", &w->tables.data));
}

enum product { LINEAR, POINTWISE, GROUPED };

/* 160 rows of 101: pieces begin within a byte, tables within a piece. */
static struct mil_program *product(struct weight *w, enum product what,
                                   int64_t tokens)
{
    static const int64_t dims[3][4] = { [LINEAR] = { 160, 101 },
                                        [POINTWISE] = { 160, 101, 1, 1 },
                                        [GROUPED] = { 160, 51, 1, 2 } };
    struct mil_program *p = mil_program_new(&e);
    struct mb b;
    mil_ref x, y;

    weight_make(w, what == LINEAR ? 2 : 4, dims[what]);
    mb_begin(&b, p, "main");
    if (what == LINEAR) {
        x = mb_input(&b, "x", MIL_F16, 2, (int64_t[]){ tokens, 101 });
        y = MB(&b, linear, .x = x, .weight = weight_ref(&b, w));
    } else {
        x = mb_input(&b, "x", MIL_F16, 4,
                     (int64_t[]){ 1, what == GROUPED ? 102 : 101, 1,
                                  tokens + (what == GROUPED) });
        y = MB(&b, conv, .x = x, .weight = weight_ref(&b, w),
               .strides = MB_INTS(&b, 1, 1), .pad_type = mb_string(&b, "valid"),
               .pad = MB_INTS(&b, 0, 0, 0, 0), .dilations = MB_INTS(&b, 1, 1),
               .groups = mb_int(&b, what == GROUPED ? 2 : 1));
    }
    mb_output(&b, "y", y);
    cr_assert_eq(mb_end(&b, &e), 0, "%s", e.text);
    return p;
}

/* Runs a program with one input and one output; the result is copied. */
static int64_t run_one(const struct mil_program *p, const struct run_options *o,
                       uint64_t *resident, float *y)
{
    const struct mil_function *f = p->functions[0];
    static float x[102 * 8];
    struct run_tensor in = { .name = "x", .data = x }, out;
    struct run_model *m = run_open(p, o, &e);
    int64_t n;
    size_t k;

    cr_assert(m, "%s", e.text);
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++)
        x[i] = (float)(i * 7 % 23) / 8.0f - 1.0f;
    in.type = mil_value(f, f->inputs[0])->type;
    cr_assert_eq(run_call(m, NULL, NULL, &in, 1, &out, 1, &k, &e), 0, "%s",
                 e.text);
    n = mil_type_elems(&out.type);
    memcpy(y, out.data, (size_t)n * sizeof(*y));
    *resident = run_resident_bytes(m);
    run_close(m);
    return n;
}

static void same_in_pieces(int bits, int64_t group, enum product what,
                           int64_t tokens, struct par *par)
{
    static float want[160 * 8], got[160 * 8];

    for (int half = 0; half < 2; half++) {
        struct run_options o = { .profile = half ? RUN_FP16 : RUN_F32 };
        struct weight w = { .bits = bits, .group = group };
        struct mil_program *p = product(&w, what, tokens);
        uint64_t whole, pieces;
        int64_t n = run_one(p, &o, &whole, want);

        o.const_bytes = 1;
        o.par = par;
        cr_assert_eq(run_one(p, &o, &pieces, got), n);
        cr_expect_eq(memcmp(got, want, (size_t)n * sizeof(*got)), 0,
                     "%d bits, group %d, product %d, %d tokens", bits,
                     (int)group, what, (int)tokens);
        mil_program_free(p);
        weight_drop(&w);
    }
}

Test(run_const, weights_in_pieces_give_the_same_bits)
{
    static const int bits[] = { 1, 2, 3, 4, 6, 8, 16 };
    static const int64_t groups[] = { 1, 8, 20, 160 };
    struct par *par = par_new(3, &e);

    for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++)
        for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++)
            for (int what = LINEAR; what <= GROUPED; what++)
                for (int64_t n = 1; n <= 5; n += 4)
                    same_in_pieces(bits[i], groups[g], what, n, par);
    par_free(par);
}

Test(run_const, the_limit_keeps_what_fits)
{
    f16_t *w = halves(IN * OUT, 8);
    struct run_options o = { .profile = RUN_FP16 };
    struct source s;
    struct mil_program *p;
    struct run_model *m;
    struct run_tensor in, out;
    float x[IN] = { 1 };
    size_t k;

    source_init(&s, MIL_F16, 4, (int64_t[]){ OUT, IN, 1, 1 }, w);
    p = shared(&s.data, 2);
    in.name = "x";
    in.type = mil_type_make(MIL_F16, 4, (int64_t[]){ 1, IN, 1, 1 });
    in.data = x;
    for (int fits = 0; fits < 2; fits++) {
        uint64_t once;

        o.const_bytes = fits ? IN * OUT * 2 + 4096 : IN * OUT * 2;
        s.read_bytes = 0;
        m = run_open(p, &o, &e);
        cr_assert(m, "%s", e.text);
        once = s.read_bytes;
        cr_expect_eq(once, fits ? IN * OUT * 2 : 0);
        for (int i = 1; i <= 3; i++) {
            cr_assert_eq(run_call(m, "infer", NULL, &in, 1, &out, 1, &k, &e), 0,
                         "%s", e.text);
            cr_expect_eq(s.read_bytes,
                         fits ? once : (uint64_t)i * IN * OUT * 2);
        }
        run_close(m);
    }
    mil_program_free(p);
    mem_free(w);
}

/* Pieces fail while a call runs; the lowest of them is told, whatever the
 * threads, and the next call may go well. */
Test(run_const, a_piece_that_cannot_be_read)
{
    f16_t *w = halves(IN * OUT, 9);
    struct run_options o = { .profile = RUN_FP16, .const_bytes = 1 };
    struct run_tensor in, out;
    struct mil_program *p;
    struct run_model *m;
    struct source s;
    float x[IN] = { 1 };
    size_t k;

    source_init(&s, MIL_F16, 4, (int64_t[]){ OUT, IN, 1, 1 }, w);
    o.par = par_new(4, &e);
    p = shared(&s.data, 1);
    in.name = "x";
    in.type = mil_type_make(MIL_F16, 4, (int64_t[]){ 1, IN, 1, 1 });
    in.data = x;
    m = run_open(p, &o, &e);
    cr_assert(m, "%s", e.text);
    for (int i = 0; i < 20; i++) {
        err_reset(&e);
        s.fail_from = i % 2 ? UINT64_MAX : 10000;
        cr_expect_eq(run_call(m, "infer", NULL, &in, 1, &out, 1, &k, &e),
                     i % 2 ? 0 : -1);
        if (i % 2)
            continue;
        cr_expect_eq(e.code, ERR_IO);
        cr_expect(strstr(e.text, "bytes beyond 10000 cannot be read"), "%s",
                  e.text);
    }
    run_close(m);
    s.data.bytes -= 2;
    err_reset(&e);
    cr_expect_null(run_open(p, &o, &e));
    cr_expect(strstr(e.text, "30718 bytes of content, 30720 are needed"), "%s",
              e.text);
    par_free(o.par);
    mil_program_free(p);
    mem_free(w);
}
