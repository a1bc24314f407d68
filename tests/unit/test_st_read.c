/*
 * Reading data: conversions against the scalar definitions, odd addresses,
 * offsets past 2 and 4 GiB, threads, files that change.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "converter/base/num.h"
#include "safetensors/st.h"
#include "t_st.h"

TestSuite(st_read, .fini = t_st_clean);

static struct st *open_ok(const char *path)
{
    struct err e = ERR_INIT;
    struct st *s = st_open(path, &e);

    cr_assert_not_null(s, "%s", e.text);
    return s;
}

static uint32_t bits_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, 4);
    return u;
}

/* Values of every kind in the three plain types. */
#define N 70001 /* crosses the reader's blocks */
static void put_plain(const char *name)
{
    static unsigned char data[8 * N];
    char header[512];
    uint32_t x = 1;

    for (size_t i = 0; i < sizeof data; i++) {
        x = x * 1664525 + 1013904223;
        data[i] = (unsigned char)(x >> 24);
    }
    snprintf(header, sizeof header,
             "{\"b\":{\"dtype\":\"BF16\",\"shape\":[%d],"
             "\"data_offsets\":[0,%d]},"
             "\"h\":{\"dtype\":\"F16\",\"shape\":[%d],"
             "\"data_offsets\":[%d,%d]},"
             "\"f\":{\"dtype\":\"F32\",\"shape\":[%d],"
             "\"data_offsets\":[%d,%d]}}",
             N, 2 * N, N, 2 * N, 4 * N, N, 4 * N, 8 * N);
    t_st_raw(name, header, strlen(header), data, sizeof data);
}

static float wide_of(const struct st *s, const struct st_tensor *t, uint64_t i)
{
    struct err e = ERR_INIT;
    unsigned char b[4];
    uint32_t u;
    float f;

    if (t->dtype == ST_F32) {
        cr_assert_eq(st_read_bytes(s, t, i * 4, b, 4, &e), 0);
        u = load_le32(b);
        memcpy(&f, &u, 4);
        return f;
    }
    cr_assert_eq(st_read_bytes(s, t, i * 2, b, 2, &e), 0);
    return t->dtype == ST_BF16 ? bf16_to_f32(load_le16(b))
                               : f16_to_f32(load_le16(b));
}

static bool same(float a, float b)
{
    return bits_of(a) == bits_of(b) || (a != a && b != b);
}

Test(st_read, plain_types)
{
    static const char *const names[] = { "b", "h", "f" };
    static const struct {
        uint64_t first;
        size_t n;
    } ranges[] = { { 0, N },         { 1, 3 },     { 32767, 2 },
                   { 16383, 40000 }, { N - 1, 1 }, { N, 0 } };
    float *wide = malloc(N * sizeof *wide);
    f16_t *half = malloc(N * sizeof *half);
    struct err e = ERR_INIT;
    struct st *s;

    put_plain("x.safetensors");
    s = open_ok(t_st_path("x.safetensors"));
    for (int k = 0; k < 3; k++) {
        const struct st_tensor *t = st_find(s, names[k]);
        for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
            uint64_t first = ranges[r].first;
            size_t n = ranges[r].n;
            size_t step = n > 5000 ? 13 : 1;
            cr_assert_eq(st_read_f32(s, t, first, n, wide, &e), 0);
            cr_assert_eq(st_read_f16(s, t, first, n, half, &e), 0);
            for (size_t i = 0; i < n; i += step) {
                float w = wide_of(s, t, first + i);
                cr_assert(same(wide[i], w), "%s[%zu]", names[k], i);
                cr_assert(same(f16_to_f32(half[i]), f16_to_f32(f32_to_f16(w))),
                          "%s[%zu]", names[k], i);
            }
        }
    }
    st_close(s);
    free(wide);
    free(half);
}

Test(st_read, ranges_are_checked)
{
    struct err e = ERR_INIT;
    float f[4];
    f16_t h[4];
    struct st *s;
    const struct st_tensor *t;

    put_plain("x.safetensors");
    s = open_ok(t_st_path("x.safetensors"));
    t = st_find(s, "b");
    cr_expect_eq(st_read_f32(s, t, N - 1, 2, f, &e), -1);
    cr_expect_not_null(strstr(e.text, "'b' has 70001 elements, 2 at 70000"),
                       "%s", e.text);
    err_reset(&e);
    cr_expect_eq(st_read_f16(s, t, UINT64_MAX, 2, h, &e), -1);
    err_reset(&e);
    cr_expect_eq(st_read_bytes(s, t, 2 * N, f, 1, &e), -1);
    cr_expect_not_null(strstr(e.text, "'b' has 140002 bytes, 1 at 140002"),
                       "%s", e.text);
    err_reset(&e);
    cr_expect_eq(st_read_bytes(s, t, UINT64_MAX, f, 2, &e), -1);
    err_reset(&e);
    cr_expect_eq(st_read_bytes(s, t, 1, f, SIZE_MAX, &e), -1);
    err_reset(&e);
    cr_expect_eq(st_read_bytes(s, t, 2 * N, f, 0, &e), 0);
    st_close(s);
}

Test(st_read, other_types_are_named)
{
    struct err e = ERR_INIT;
    char header[128];
    float f[4];
    f16_t h[4];
    int32_t i32[4];

    for (int d = 0; d < ST_DTYPE_COUNT; d++) {
        const char *name = st_dtype_name((enum st_dtype)d);
        bool ints = d == ST_I32 || d == ST_I64;
        const struct st_tensor *t;
        struct st *s;
        snprintf(header, sizeof header,
                 "{\"w.q\":{\"dtype\":\"%s\",\"shape\":[4],"
                 "\"data_offsets\":[0,%u]}}",
                 name, st_dtype_bits((enum st_dtype)d) / 2);
        s = open_ok(t_st_raw("x.safetensors", header, strlen(header),
                             "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                             "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
                             st_dtype_bits((enum st_dtype)d) / 2));
        t = st_find(s, "w.q");
        if (!st_dtype_is_plain(t->dtype)) {
            cr_expect_eq(st_read_f32(s, t, 0, 4, f, &e), -1);
            cr_expect_eq((int)e.code, (int)ERR_UNSUPPORTED);
            cr_expect(strstr(e.text, "'w.q'") && strstr(e.text, name), "%s",
                      e.text);
            err_reset(&e);
            cr_expect_eq(st_read_f16(s, t, 0, 4, h, &e), -1);
            cr_expect_eq((int)e.code, (int)ERR_UNSUPPORTED);
            err_reset(&e);
        }
        cr_expect_eq(st_read_i32(s, t, 0, 4, i32, &e), ints ? 0 : -1);
        cr_expect_eq((int)e.code, (int)(ints ? ERR_OK : ERR_UNSUPPORTED));
        err_reset(&e);
        st_close(s);
    }
}

Test(st_read, integers)
{
    enum { M = 9000 };
    static unsigned char data[12 * M];
    static int32_t got[M];
    char header[256];
    struct err e = ERR_INIT;
    struct st *s;

    for (int i = 0; i < M; i++) {
        int64_t v = i % 2 ? -(int64_t)i * 200000 : (int64_t)i * 200000;
        store_le32(data + 4 * i, (uint32_t)(int32_t)v);
        store_le64(data + 4 * M + 8 * i, (uint64_t)v);
    }
    store_le64(data + 4 * M + 8 * 8900, (uint64_t)INT32_MAX);
    store_le64(data + 4 * M + 8 * 8901, (uint64_t)(int64_t)INT32_MIN);
    snprintf(header, sizeof header,
             "{\"i\":{\"dtype\":\"I32\",\"shape\":[%d],"
             "\"data_offsets\":[0,%d]},"
             "\"l\":{\"dtype\":\"I64\",\"shape\":[%d],"
             "\"data_offsets\":[%d,%d]}}",
             M, 4 * M, M, 4 * M, 12 * M);
    s = open_ok(
        t_st_raw("x.safetensors", header, strlen(header), data, sizeof data));
    cr_assert_eq(st_read_i32(s, st_find(s, "i"), 0, M, got, &e), 0);
    for (int i = 0; i < M; i++)
        cr_assert_eq(got[i], i % 2 ? -i * 200000 : i * 200000);
    cr_assert_eq(st_read_i32(s, st_find(s, "l"), 1, M - 1, got, &e), 0);
    cr_expect_eq(got[8898], 8899 * -200000);
    cr_expect_eq(got[8899], INT32_MAX);
    cr_expect_eq(got[8900], INT32_MIN);
    st_close(s);
    store_le64(data + 4 * M + 8 * 8900, (uint64_t)INT32_MAX + 1);
    s = open_ok(
        t_st_raw("x.safetensors", header, strlen(header), data, sizeof data));
    cr_expect_eq(st_read_i32(s, st_find(s, "l"), 1, M - 1, got, &e), -1);
    cr_expect_not_null(strstr(e.text, "'l' holds 2147483648 at index 8900"),
                       "%s", e.text);
    st_close(s);
}

/* Nothing promises alignment: a header of any length, a byte in front. Run
 * under UBSan and ASan this would catch a typed pointer into file bytes. */
Test(st_read, odd_addresses)
{
    char header[512];
    unsigned char data[64] = { 9 };
    struct err e = ERR_INIT;

    for (size_t pad = 0; pad < 8; pad++) {
        float f[8];
        f16_t h[8];
        int32_t i[2];
        struct st *s;
        size_t len = (size_t)snprintf(
            header, sizeof header,
            "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
            "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]},"
            "\"h\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[9,13]},"
            "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],"
            "\"data_offsets\":[13,17]},"
            "\"l\":{\"dtype\":\"I64\",\"shape\":[2],"
            "\"data_offsets\":[17,33]}}");
        while (len % 8 != pad)
            header[len++] = ' ';
        store_le32(data + 1, 0x3fc00000);
        store_le32(data + 5, 0xc0200000);
        store_le16(data + 9, 0x3e00);
        store_le16(data + 11, 0xc100);
        store_le16(data + 13, 0x3fc0);
        store_le16(data + 15, 0xc020);
        store_le64(data + 17, 7);
        store_le64(data + 25, UINT64_MAX);
        s = open_ok(t_st_raw("x.safetensors", header, len, data, 33));
        cr_assert_eq(st_read_f32(s, st_find(s, "f"), 0, 2, f, &e), 0);
        cr_assert_eq(st_read_f32(s, st_find(s, "h"), 0, 2, f + 2, &e), 0);
        cr_assert_eq(st_read_f32(s, st_find(s, "b"), 0, 2, f + 4, &e), 0);
        cr_assert_eq(st_read_f16(s, st_find(s, "f"), 0, 2, h, &e), 0);
        cr_assert_eq(st_read_f16(s, st_find(s, "h"), 0, 2, h + 2, &e), 0);
        cr_assert_eq(st_read_f16(s, st_find(s, "b"), 0, 2, h + 4, &e), 0);
        cr_assert_eq(st_read_i32(s, st_find(s, "l"), 0, 2, i, &e), 0);
        for (int k = 0; k < 6; k++) {
            cr_expect_eq(f[k], k % 2 ? -2.5f : 1.5f);
            cr_expect_eq(h[k], k % 2 ? 0xc100 : 0x3e00);
        }
        cr_expect(i[0] == 7 && i[1] == -1);
        st_close(s);
    }
}

Test(st_read, empty_tensor)
{
    struct err e = ERR_INIT;
    struct st *s = open_ok(t_st_file(
        "x.safetensors",
        "{\"z\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[0,0]},"
        "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
        4));
    const struct st_tensor *z = st_find(s, "z");
    float f[1];

    cr_expect_eq(z->elems, 0);
    cr_expect_eq(st_read_f32(s, z, 0, 0, f, &e), 0);
    cr_expect_eq(st_find(s, "s")->elems, 1);
    cr_expect_eq(st_read_f32(s, st_find(s, "s"), 0, 1, f, &e), 0);
    cr_expect_eq(bits_of(f[0]), 0x03020100u);
    st_close(s);
}

/* Tensors beyond 2 and 4 GiB, and one that is larger than 2^31 elements. */
Test(st_read, past_four_gib)
{
    static const uint64_t at[] = { 0x7ffffff0, 0x80000010, 0xfffffff0,
                                   0x100000010 };
    char header[512];
    unsigned char length[8], value[2];
    struct err e = ERR_INIT;
    uint64_t data_at;
    int len, fd = open(t_st_path("x.safetensors"), O_CREAT | O_RDWR, 0666);
    struct st *s;
    float f[1];

    cr_assert_geq(fd, 0);
    len = snprintf(header, sizeof header,
                   "{\"big\":{\"dtype\":\"BF16\",\"shape\":[65536,40000],"
                   "\"data_offsets\":[0,5242880000]},"
                   "\"last\":{\"dtype\":\"F16\",\"shape\":[1],"
                   "\"data_offsets\":[5242880000,5242880002]}}");
    data_at = 8 + (uint64_t)len;
    store_le64(length, (uint64_t)len);
    cr_assert_eq(pwrite(fd, length, 8, 0), 8);
    cr_assert_eq(pwrite(fd, header, (size_t)len, 8), len);
    if (ftruncate(fd, (off_t)(data_at + 5242880002)))
        cr_skip_test("no file of 5 GB with holes here");
    for (int i = 0; i < 4; i++) {
        store_le16(value, (uint16_t)(0x3f80 + i));
        cr_assert_eq(pwrite(fd, value, 2, (off_t)(data_at + at[i])), 2);
    }
    store_le16(value, 0x4200);
    cr_assert_eq(pwrite(fd, value, 2, (off_t)(data_at + 5242880000)), 2);
    close(fd);
    s = open_ok(t_st_path("x.safetensors"));
    cr_expect(st_sparse(s));
    cr_expect(st_shard_sparse(s, 0));
    cr_expect_eq(st_data_bytes(s), 5242880002);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(st_read_f32(s, st_find(s, "big"), at[i] / 2, 1, f, &e), 0);
        cr_expect_eq(f[0], bf16_to_f32((bf16_t)(0x3f80 + i)));
    }
    cr_assert_eq(st_read_f32(s, st_find(s, "last"), 0, 1, f, &e), 0);
    cr_expect_eq(f[0], 3.0f);
    st_close(s);
}

Test(st_read, whole_file_is_not_sparse)
{
    struct st *s;

    put_plain("x.safetensors");
    s = open_ok(t_st_path("x.safetensors"));
    cr_expect(!st_sparse(s));
    st_close(s);
}

Test(st_read, change_is_noticed)
{
    struct err e = ERR_INIT;
    float f[1];
    struct st *s;

    put_plain("x.safetensors");
    s = open_ok(t_st_path("x.safetensors"));
    cr_expect_eq(st_unchanged(s, &e), 0);
    cr_assert_eq(truncate(t_st_path("x.safetensors"), 1000), 0);
    cr_expect_eq(st_unchanged(s, &e), -1);
    cr_expect_not_null(strstr(e.text, "x.safetensors"), "%s", e.text);
    err_reset(&e);
    cr_expect_eq(st_read_f32(s, st_find(s, "f"), N - 1, 1, f, &e), -1);
    cr_expect(strstr(e.text, "x.safetensors") && strstr(e.text, "'f'"), "%s",
              e.text);
    st_close(s);
}

struct job {
    const struct st *s;
    const char *name;
    uint64_t sum[8];
};

static uint64_t checksum(const struct st *s, const char *name)
{
    const struct st_tensor *t = st_find(s, name);
    struct err e = ERR_INIT;
    float *f = malloc(N * sizeof *f);
    uint64_t sum = 0;

    cr_assert_eq(st_read_f32(s, t, 0, N, f, &e), 0, "%s", e.text);
    for (size_t i = 0; i < N; i++)
        sum = sum * 31 + (f[i] == f[i] ? bits_of(f[i]) : 1);
    free(f);
    return sum;
}

static void *read_all(void *arg)
{
    struct job *j = arg;

    for (int i = 0; i < 8; i++)
        j->sum[i] = checksum(j->s, j->name);
    return NULL;
}

Test(st_read, threads)
{
    static const char *const names[] = { "b", "h", "f", "b", "h", "f" };
    struct job jobs[6];
    pthread_t id[6];
    struct st *s;

    put_plain("x.safetensors");
    s = open_ok(t_st_path("x.safetensors"));
    for (int i = 0; i < 6; i++) {
        jobs[i].s = s;
        jobs[i].name = names[i];
        cr_assert_eq(pthread_create(&id[i], NULL, read_all, &jobs[i]), 0);
    }
    for (int i = 0; i < 6; i++)
        cr_assert_eq(pthread_join(id[i], NULL), 0);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 8; k++)
            cr_assert_eq(jobs[i].sum[k], checksum(s, names[i]));
    st_close(s);
}

static void fixture_path(char *out, size_t cap, const char *name)
{
    const char *root = getenv("ANEMLL_FIXTURES");

    if (root && *root)
        snprintf(out, cap, "%s/%s", root, name);
    else
        snprintf(out, cap, "%s/../shared/fixtures/%s", ANEMLL_SOURCE_DIR, name);
}

/* Sums that an independent reader (NumPy over the file's bytes) computed. */
Test(st_read, trained_checkpoint)
{
    static const struct {
        const char *name;
        double sum, sum_abs;
        float first, last;
    } want[] = {
        { "model.embed_tokens.weight", -1638.7329962968361, 25526.116710114526,
          0.0339355469f, -0.129882812f },
        { "model.layers.5.self_attn.q_norm.weight", 64.015625, 64.015625,
          1.0234375f, 0.88671875f },
        { "model.layers.3.mlp.down_proj.weight", 5.9655555675271899,
          4783.8472367862705, 0.0551757812f, -0.00396728516f },
    };
    char path[700];
    struct err e = ERR_INIT;
    struct st *s;

    fixture_path(path, sizeof path, "qwen3-tiny");
    if (access(path, F_OK))
        cr_skip_test("no fixtures");
    s = open_ok(path);
    for (size_t k = 0; k < sizeof want / sizeof want[0]; k++) {
        const struct st_tensor *t = st_find(s, want[k].name);
        double sum = 0, sum_abs = 0;
        float *f;
        cr_assert_not_null(t);
        f = malloc((size_t)t->elems * sizeof *f);
        cr_assert_eq(st_read_f32(s, t, 0, (size_t)t->elems, f, &e), 0);
        for (size_t i = 0; i < t->elems; i++) {
            sum += (double)f[i];
            sum_abs += f[i] < 0 ? -(double)f[i] : (double)f[i];
        }
        cr_expect_eq(sum, want[k].sum, "%s: %.17g", t->name, sum);
        cr_expect_eq(sum_abs, want[k].sum_abs, "%s: %.17g", t->name, sum_abs);
        cr_expect_eq(f[0], want[k].first);
        cr_expect_eq(f[t->elems - 1], want[k].last);
        free(f);
    }
    st_close(s);
}
