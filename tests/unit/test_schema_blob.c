/*
 * The weight file: exact bytes, sharing, and a reader that trusts nothing.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "schema/blob.h"
#include "t_dir.h"
#include "t_schema.h"

static const char *dir;

static void setup(void)
{
    dir = t_dir_new();
}

static void drop(void)
{
    t_dir_drop(dir);
}

TestSuite(blob, .init = setup, .fini = drop);

static struct mil_type vec(enum mil_dtype d, int64_t n)
{
    return mil_type_make(d, 1, &n);
}

static uint64_t put(struct blob_writer *w, enum mil_dtype d, int64_t n,
                    const void *bytes)
{
    struct err e = ERR_INIT;
    struct mil_type t = vec(d, n);
    uint64_t at = 0;

    cr_assert_eq(blob_put_bytes(w, &t, bytes, &at, &e), 0, "%s", e.text);
    return at;
}

static struct blob_totals finish(struct blob_writer *w)
{
    struct err e = ERR_INIT;
    struct blob_totals t;

    cr_assert_eq(blob_writer_finish(w, &t, &e), 0, "%s", e.text);
    blob_writer_free(w);
    return t;
}

static struct blob_writer *writer(const char *name)
{
    struct err e = ERR_INIT;
    struct blob_writer *w = blob_writer_new(t_path(dir, name), NULL, &e);

    cr_assert_not_null(w, "%s", e.text);
    return w;
}

/* Three blobs, as another writer of the format lays them out. */
Test(blob, known_file)
{
    static const uint8_t u4[] = { 0x21, 0xf3, 0x0a };
    static const uint8_t u6[] = { 0x81, 0x30, 0xfc, 0x21 };
    static const uint8_t f16[] = { 0x00, 0x3c, 0x00, 0xc0, 0x00, 0x38 };
    struct blob_writer *w = writer("w");
    struct buf got = BUF_INIT;
    uint8_t want[390] = { 3, 0, 0, 0, 2 };
    struct blob_totals t;

    cr_assert_eq(put(w, MIL_U4, 5, u4), 64);
    cr_assert_eq(put(w, MIL_U6, 5, u6), 192);
    cr_assert_eq(put(w, MIL_F16, 3, f16), 320);
    t = finish(w);
    cr_assert_eq(t.bytes, 390);
    cr_assert_eq(t.blobs, 3);
    cr_assert_eq(t.shared, 0);
    memcpy(want + 0x40, "\xef\xbe\xad\xde\x0b\0\0\0\x03", 9);
    want[0x50] = 0x80;
    want[0x58] = 4;
    memcpy(want + 0x80, u4, 3);
    memcpy(want + 0xc0, "\xef\xbe\xad\xde\x0d\0\0\0\x04", 9);
    want[0xd1] = 1;
    want[0xd8] = 2;
    memcpy(want + 0x100, u6, 4);
    memcpy(want + 0x140, "\xef\xbe\xad\xde\x01\0\0\0\x06", 9);
    memcpy(want + 0x150, "\x80\x01", 2);
    memcpy(want + 0x180, f16, 6);
    ts_read(&got, t_path(dir, "w"));
    cr_assert_eq(got.len, sizeof(want));
    cr_assert_eq(memcmp(got.data, want, sizeof(want)), 0);
    buf_release(&got);
}

/* Every type of the format, whole bytes and broken ones. */
Test(blob, every_type_and_odd_count)
{
    static const int64_t counts[] = { 1, 2, 3, 5, 7, 8, 9, 31, 64, 1001 };
    uint8_t bytes[1001 * 4];
    struct blob_writer *w = writer("w");
    struct blob_reader r = BLOB_READER_INIT;
    struct err e = ERR_INIT;
    struct {
        struct mil_type t;
        uint64_t at;
        uint8_t seed;
    } all[MIL_DTYPE_COUNT * 10];
    size_t n = 0, i, j;
    uint64_t next = 0;
    struct blob_record rec;
    int d;

    for (d = 1; d < MIL_DTYPE_COUNT; d++)
        for (i = 0; blob_code((enum mil_dtype)d) && i < 10; i++) {
            all[n].t = vec((enum mil_dtype)d, counts[i]);
            all[n].seed = (uint8_t)n;
            memset(bytes, all[n].seed, sizeof(bytes));
            all[n].at = put(w, (enum mil_dtype)d, counts[i], bytes);
            n++;
        }
    cr_assert_eq(n, 150);
    finish(w);
    cr_assert_eq(blob_open(&r, t_path(dir, "w"), &e), 0, "%s", e.text);
    cr_assert_eq(r.count, n);
    for (i = 0; i < n; i++) {
        uint64_t size = (uint64_t)mil_type_bytes(&all[i].t), data;
        struct mil_type more = vec(all[i].t.dtype, all[i].t.dims[0] + 1);

        cr_assert_eq(blob_find(&r, all[i].at, &all[i].t, &data, &e), 0, "%s",
                     e.text);
        cr_assert_eq(data, all[i].at + 64);
        cr_assert_eq(io_pread(&r.file, bytes, size, data, &e), 0);
        for (j = 0; j < size; j++)
            cr_assert_eq(bytes[j], all[i].seed);
        cr_assert_eq(blob_find(&r, all[i].at, &more, &data, &e), -1);
        err_reset(&e);
        cr_assert_eq(blob_next(&r, &next, &rec, &e), 1);
        cr_assert_eq(rec.offset, all[i].at);
        cr_assert_eq(rec.dtype, all[i].t.dtype);
        cr_assert_eq(rec.elems, (uint64_t)all[i].t.dims[0]);
    }
    cr_assert_eq(blob_next(&r, &next, &rec, &e), 0);
    blob_close(&r);
}

struct source {
    uint64_t bytes;
    uint8_t last; /* what the last byte holds */
    int reads;
    uint64_t fail_at; /* 0: never */
};

static int read_source(void *cookie, uint64_t at, void *dst, size_t n,
                       struct err *e)
{
    struct source *s = cookie;
    uint8_t *p = dst;
    size_t i;

    s->reads++;
    if (s->fail_at && at + n >= s->fail_at)
        return err_set(e, ERR_INPUT, "the shard ends here");
    for (i = 0; i < n; i++)
        p[i] = (uint8_t)((at + i) * 31 >> 3);
    if (at + n == s->bytes)
        p[n - 1] = s->last;
    return 0;
}

static struct mil_data source_data(struct source *s, int64_t elems)
{
    struct mil_data d;

    memset(&d, 0, sizeof(d));
    d.type = vec(MIL_F16, elems);
    d.bytes = s->bytes = (uint64_t)elems * 2;
    d.read = read_source;
    d.cookie = s;
    return d;
}

/* Blobs of equal type and bytes are one; those that differ in the last byte
 * are two; one source is read once. */
static void check_sharing(int64_t elems)
{
    struct source s[4] = {
        { 0, 1, 0, 0 }, { 0, 1, 0, 0 }, { 0, 2, 0, 0 }, { 0, 2, 0, 0 }
    };
    struct mil_data d[4];
    struct blob_writer *w = writer("w");
    struct blob_reader r = BLOB_READER_INIT;
    struct err e = ERR_INIT;
    struct blob_totals t;
    uint64_t at[6], step = 64 + ((uint64_t)elems * 2 + 63) / 64 * 64;
    uint64_t next = 0;
    struct blob_record rec;
    int i, once;

    for (i = 0; i < 4; i++) {
        d[i] = source_data(&s[i], elems);
        cr_assert_eq(blob_put(w, &d[i], &at[i], &e), 0, "%s", e.text);
    }
    once = s[0].reads;
    cr_assert_eq(blob_put(w, &d[0], &at[4], &e), 0);
    cr_assert_eq(s[0].reads, once, "read a second time");
    d[3].type = vec(MIL_I16, elems);
    cr_assert_eq(blob_put(w, &d[3], &at[5], &e), 0);
    cr_assert_eq(at[0], 64);
    cr_assert_eq(at[1], 64);
    cr_assert_eq(at[2], 64 + step);
    cr_assert_eq(at[3], 64 + step);
    cr_assert_eq(at[4], 64);
    t = finish(w);
    cr_assert_eq(t.blobs, 2);
    cr_assert_eq(t.shared, 4);
    cr_assert_eq(t.bytes, 64 + step + 64 + (uint64_t)elems * 2);
    cr_assert_eq(blob_open(&r, t_path(dir, "w"), &e), 0, "%s", e.text);
    cr_assert_eq(r.file.size, t.bytes);
    while (blob_next(&r, &next, &rec, &e) == 1) {
        uint8_t buf[4096], want[4096];
        uint64_t i2;

        for (i2 = 0; i2 < rec.bytes; i2 += sizeof(buf)) {
            size_t n = rec.bytes - i2 < sizeof(buf) ? (size_t)(rec.bytes - i2)
                                                    : sizeof(buf);

            cr_assert_eq(io_pread(&r.file, buf, n, rec.data + i2, &e), 0);
            s[rec.offset == 64 ? 0 : 2].fail_at = 0;
            read_source(&s[rec.offset == 64 ? 0 : 2], i2, want, n, &e);
            cr_assert_eq(memcmp(buf, want, n), 0);
        }
    }
    cr_assert_eq(e.code, ERR_OK, "%s", e.text);
    blob_close(&r);
}

Test(blob, equal_small_blobs_are_one)
{
    check_sharing(1000);
}

Test(blob, equal_large_blobs_are_one)
{
    check_sharing((int64_t)3 << 20 | 5);
}

/* The same bytes under another type are another blob. */
Test(blob, type_is_part_of_identity)
{
    static const uint8_t bytes[64] = { 1 };
    struct blob_writer *w = writer("w");
    uint64_t a = put(w, MIL_F16, 32, bytes), b = put(w, MIL_I16, 32, bytes);
    uint64_t c = put(w, MIL_U8, 64, bytes), d = put(w, MIL_F16, 32, bytes);
    uint64_t four = put(w, MIL_U4, 127, bytes),
             odd = put(w, MIL_U4, 128, bytes);

    cr_assert_neq(a, b);
    cr_assert_neq(b, c);
    cr_assert_eq(a, d);
    cr_assert_neq(four, odd, "127 and 128 nibbles have equal bytes, not sizes");
    finish(w);
}

/* Offsets and totals as in a file, without one and without a read. */
Test(blob, measured_as_written)
{
    struct err e = ERR_INIT;
    struct blob_writer *w[2] = { writer("w"), blob_writer_measuring(&e) };
    struct blob_totals t[2];
    struct source s[3] = { { 0, 1, 0, 0 }, { 0, 2, 0, 0 }, { 0, 3, 0, 0 } };
    struct mil_data d[3];
    uint64_t seed = 9;

    cr_assert_not_null(w[1], "%s", e.text);
    d[0] = source_data(&s[0], 700);
    d[1] = source_data(&s[1], ((int64_t)2 << 20) + 3); /* more than a block */
    d[2] = source_data(&s[2], 11);
    for (int i = 0; i < 200; i++) {
        uint64_t at[2], r = ts_random(&seed);
        int64_t n = 10 + (int64_t)(r >> 8 & 31);
        uint8_t bytes[128];
        struct mil_type type = vec(r & 64 ? MIL_F16 : MIL_U6, n);

        memset(bytes, (int)(r >> 16 & 3), sizeof(bytes));
        for (int k = 0; k < 2; k++)
            cr_assert_eq(r % 8 < 3
                             ? blob_put(w[k], &d[r % 8], &at[k], &e)
                             : blob_put_bytes(w[k], &type, bytes, &at[k], &e),
                         0, "%s", e.text);
        cr_assert_eq(at[0], at[1], "blob %d", i);
    }
    for (int k = 0; k < 3; k++)
        cr_expect_eq(s[k].reads, k == 1 ? 3 : 1, "%d reads", s[k].reads);
    t[0] = finish(w[0]);
    t[1] = finish(w[1]);
    cr_expect_eq(t[0].bytes, t[1].bytes);
    cr_expect_eq(t[0].blobs, t[1].blobs);
    cr_expect_eq(t[0].shared, t[1].shared);
}

Test(blob, no_blob_no_file)
{
    struct blob_totals t = finish(writer("w"));

    cr_assert_eq(t.bytes, 0);
    cr_assert_eq(t.blobs, 0);
    cr_assert_not(io_exists(t_path(dir, "w")));
}

Test(blob, source_errors_come_through)
{
    static const int64_t sizes[] = { 100, (int64_t)3 << 20 };
    size_t i;

    for (i = 0; i < 2; i++) {
        struct source s = { 0, 0, 0, 0 };
        struct mil_data d = source_data(&s, sizes[i]);
        struct blob_writer *w = writer(i ? "a" : "b");
        struct err e = ERR_INIT;
        uint64_t at;

        s.fail_at = d.bytes;
        cr_assert_eq(blob_put(w, &d, &at, &e), -1);
        cr_assert_str_eq(e.text, "the shard ends here");
        blob_writer_free(w);
    }
}

Test(blob, wrong_size_is_refused)
{
    struct source s = { 0, 0, 0, 0 };
    struct mil_data d = source_data(&s, 100);
    struct blob_writer *w = writer("w");
    struct err e = ERR_INIT;
    uint64_t at;

    d.bytes = 199;
    cr_assert_eq(blob_put(w, &d, &at, &e), -1);
    cr_assert_str_eq(e.text, "a constant of type tensor<fp16, [100]> and 199 "
                             "bytes cannot be stored in a weight file");
    err_reset(&e);
    d.type.dtype = MIL_BOOL;
    d.bytes = 100;
    cr_assert_eq(blob_put(w, &d, &at, &e), -1);
    blob_writer_free(w);
}

static int stop(void *cookie)
{
    (void)cookie;
    return 1;
}

Test(blob, an_interrupt_stops_it)
{
    struct log log = { LOG_ERROR, NULL, NULL, NULL, stop };
    struct blob_options o = { &log, "weights", 0, 0 };
    struct err e = ERR_INIT;
    struct blob_writer *w = blob_writer_new(t_path(dir, "w"), &o, &e);
    struct source s = { 0, 0, 0, 0 };
    struct mil_data d = source_data(&s, (int64_t)3 << 20);
    uint64_t at;

    cr_assert_eq(blob_put(w, &d, &at, &e), -1);
    cr_assert_eq(e.code, ERR_CANCELLED);
    cr_assert_eq(s.reads, 1, "stops after the first piece");
    blob_writer_free(w);
}

static uint64_t reported;

static void note(void *cookie, const char *stage, uint64_t done, uint64_t total,
                 const char *unit)
{
    (void)cookie;
    (void)stage;
    (void)unit;
    cr_assert_eq(total, 1000000);
    reported = done;
}

Test(blob, progress_counts_bytes)
{
    struct log log = { LOG_ERROR, NULL, note, NULL, NULL };
    struct blob_options o = { &log, "weights", 1000, 1000000 };
    struct err e = ERR_INIT;
    struct blob_writer *w = blob_writer_new(t_path(dir, "w"), &o, &e);
    struct source s = { 0, 0, 0, 0 };
    struct mil_data d = source_data(&s, (int64_t)3 << 20);
    uint64_t at;

    cr_assert_eq(blob_put(w, &d, &at, &e), 0);
    cr_assert_eq(reported, 1000 + 2 * ((uint64_t)3 << 20));
    blob_writer_free(w);
}

/* ---- reading what is broken ---- */

/* A sound file of one fp16 blob of 3 elements, and what a test bends in it. */
static void sound(uint8_t f[134])
{
    memset(f, 0, 134);
    store_le32(f, 1);
    store_le32(f + 4, 2);
    store_le32(f + 64, 0xDEADBEEFu);
    store_le32(f + 68, 1);
    store_le64(f + 72, 6);
    store_le64(f + 80, 128);
}

static void expect(const uint8_t *f, size_t n, uint64_t at, const char *text)
{
    struct blob_reader r = BLOB_READER_INIT;
    struct mil_type t = vec(MIL_F16, 3);
    struct err e = ERR_INIT;
    uint64_t data;
    int rc;

    t_write(t_path(dir, "w"), f, n);
    rc = blob_open(&r, t_path(dir, "w"), &e);
    if (rc == 0) {
        rc = blob_find(&r, at, &t, &data, &e);
        blob_close(&r);
    }
    if (!text) {
        cr_assert_eq(rc, 0, "%s", e.text);
        return;
    }
    cr_assert_eq(rc, -1, "%s", text);
    cr_assert_not_null(strstr(e.text, text), "got: %s", e.text);
}

Test(blob, broken_files_are_named)
{
    uint8_t f[134];
    size_t n;

    sound(f);
    expect(f, 134, 64, NULL);
    for (n = 1; n < 64; n++)
        expect(f, n, 64, "header");
    for (; n < 128; n++)
        expect(f, n, 64, "no blob can start at byte 64");
    for (; n < 134; n++)
        expect(f, n, 64, "spans bytes 128 to 128 + 6");
    expect(f, 134, 0, "no blob can start at byte 0");
    expect(f, 134, 65, "no blob can start at byte 65");
    expect(f, 134, 128, "no blob can start at byte 128");
    expect(f, 134, UINT64_MAX - 63, "no blob can start at byte");
    store_le32(f + 4, 1);
    expect(f, 134, 64, "storage version 1, supported is 2");
    sound(f);
    f[64] = 0;
    expect(f, 134, 64, "is not the start of a blob");
    sound(f);
    store_le32(f + 68, 2);
    store_le64(f + 72, 4);
    expect(f, 134, 64, "holds fp32, the program declares fp16");
    sound(f);
    store_le32(f + 68, 99);
    expect(f, 134, 64, "unknown type code 99");
    sound(f);
    store_le64(f + 72, 4);
    expect(f, 134, 64, "holds 2 elements, the program declares 3");
    store_le64(f + 72, 5);
    expect(f, 134, 64, "no whole number of fp16 elements");
    store_le64(f + 72, UINT64_MAX);
    expect(f, 134, 64, "spans bytes");
    sound(f);
    store_le64(f + 80, UINT64_MAX - 2);
    expect(f, 134, 64, "spans bytes");
    store_le64(f + 80, 10);
    expect(f, 134, 64, "spans bytes 10");
    sound(f);
    store_le64(f + 88, 8);
    expect(f, 134, 64, "8 unused bits");
    store_le64(f + 88, 1);
    expect(f, 134, 64, "1 unused bits");
}

Test(blob, padding_of_narrow_types)
{
    uint8_t f[134];
    struct blob_reader r = BLOB_READER_INIT;
    struct mil_type t = vec(MIL_U4, 5);
    struct err e = ERR_INIT;
    uint64_t data;

    sound(f);
    store_le32(f + 68, blob_code(MIL_U4));
    store_le64(f + 72, 3);
    store_le64(f + 88, 2);
    t_write(t_path(dir, "w"), f, 134);
    cr_assert_eq(blob_open(&r, t_path(dir, "w"), &e), 0);
    cr_assert_eq(blob_find(&r, 64, &t, &data, &e), -1);
    cr_assert_not_null(strstr(e.text, "no whole number of uint4"), "%s",
                       e.text);
    blob_close(&r);
    err_reset(&e);
    store_le64(f + 88, 4);
    t_write(t_path(dir, "w2"), f, 134);
    cr_assert_eq(blob_open(&r, t_path(dir, "w2"), &e), 0);
    cr_assert_eq(blob_find(&r, 64, &t, &data, &e), 0, "%s", e.text);
    blob_close(&r);
}

/* Any bytes at all: the walk ends and never reads outside. */
Test(blob, random_files)
{
    uint64_t seed = 1;
    int i;

    for (i = 0; i < 500; i++) {
        uint8_t f[512];
        struct blob_reader r = BLOB_READER_INIT;
        struct err e = ERR_INIT;
        uint64_t next = 0;
        struct blob_record rec;
        size_t n = 64 + ts_random(&seed) % (sizeof(f) - 64), k;
        char name[16];

        memset(f, 0, sizeof(f));
        sound(f);
        for (k = 0; k < 4; k++)
            f[ts_random(&seed) % 134] ^= (uint8_t)ts_random(&seed);
        store_le32(f + 4, 2);
        snprintf(name, sizeof(name), "r%d", i);
        t_write(t_path(dir, name), f, n);
        cr_assert_eq(blob_open(&r, t_path(dir, name), &e), 0, "%s", e.text);
        for (k = 0; k < 100 && blob_next(&r, &next, &rec, &e) == 1; k++)
            cr_assert_leq(rec.data + rec.bytes, n);
        cr_assert_lt(k, 100);
        blob_close(&r);
    }
}
