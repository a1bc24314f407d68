/*
 * The writer: what it writes is read back, byte-stable, padded, and nothing
 * is left of a file that was not finished.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "converter/base/buf.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "safetensors/st.h"
#include "t_st.h"

TestSuite(st_write, .fini = t_st_clean);

static struct st_writer *new_ok(void)
{
    struct err e = ERR_INIT;
    struct st_writer *w = st_writer_new(&e);

    cr_assert_not_null(w, "%s", e.text);
    return w;
}

static void add(struct st_writer *w, const char *name, enum st_dtype d,
                int rank, uint64_t a, uint64_t b)
{
    uint64_t dims[2] = { a, b };
    struct err e = ERR_INIT;

    cr_assert_eq(st_writer_add(w, name, d, rank, dims, &e), 0, "%s", e.text);
}

static void write_sample(const char *path)
{
    struct st_writer *w = new_ok();
    struct err e = ERR_INIT;
    unsigned char data[26];

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)i;
    add(w, "z \"quoted\" \xe2\x82\xac", ST_F32, 2, 2, 3);
    add(w, "empty", ST_BF16, 2, 0, 7);
    add(w, "A", ST_U8, 1, 2, 0);
    add(w, "a", ST_I32, 0, 0, 0);
    cr_assert_eq(st_writer_begin(w, path, &e), 0, "%s", e.text);
    cr_assert_eq(st_writer_write(w, data, 5, &e), 0);
    cr_assert_eq(st_writer_write(w, data + 5, 0, &e), 0);
    cr_assert_eq(st_writer_write(w, data + 5, 21, &e), 0);
    cr_assert_eq(st_writer_write(w, "\1\2\3\4", 4, &e), 0);
    cr_assert_eq(st_writer_finish(w, &e), 0, "%s", e.text);
    st_writer_free(w);
}

Test(st_write, read_back)
{
    struct err e = ERR_INIT;
    const char *path = t_st_path("x.safetensors");
    const struct st_tensor *t;
    struct st *s;
    int32_t i32;
    unsigned char b[24];

    write_sample(path);
    s = st_open(path, &e);
    cr_assert_not_null(s, "%s", e.text);
    cr_expect_eq(st_count(s), 4);
    t = st_find(s, "z \"quoted\" \xe2\x82\xac");
    cr_assert_not_null(t);
    cr_expect(t->rank == 2 && t->dims[0] == 2 && t->dims[1] == 3);
    cr_assert_eq(st_read_bytes(s, t, 0, b, 24, &e), 0);
    cr_expect(b[0] == 0 && b[23] == 23);
    cr_expect_eq(st_find(s, "empty")->elems, 0);
    cr_assert_eq(st_read_i32(s, st_find(s, "a"), 0, 1, &i32, &e), 0);
    cr_expect_eq(i32, 0x04030201);
    st_close(s);
}

Test(st_write, stable_and_padded)
{
    struct buf a = BUF_INIT, b = BUF_INIT;
    struct err e = ERR_INIT;
    uint64_t n;

    write_sample(t_st_path("x.safetensors"));
    write_sample(t_st_path("y.safetensors"));
    cr_assert_eq(io_read_file(t_st_path("x.safetensors"), 4096, &a, &e), 0);
    cr_assert_eq(io_read_file(t_st_path("y.safetensors"), 4096, &b, &e), 0);
    cr_expect(a.len == b.len && !memcmp(a.data, b.data, a.len));
    n = load_le64(a.data);
    cr_expect_eq(n % 8, 0);
    cr_expect_eq(a.data[8], '{');
    cr_expect_eq(a.len, 8 + n + 30);
    buf_release(&a);
    buf_release(&b);
}

Test(st_write, no_tensors)
{
    struct err e = ERR_INIT;
    const char *path = t_st_path("x.safetensors");
    struct st_writer *w = new_ok();
    struct st *s;

    cr_assert_eq(st_writer_begin(w, path, &e), 0);
    cr_assert_eq(st_writer_finish(w, &e), 0);
    st_writer_free(w);
    s = st_open(path, &e);
    cr_assert_not_null(s, "%s", e.text);
    cr_expect_eq(st_count(s), 0);
    st_close(s);
}

Test(st_write, exactly_what_was_declared)
{
    struct err e = ERR_INIT;
    const char *path = t_st_path("x.safetensors");
    struct st_writer *w = new_ok();
    char **names;
    size_t n;

    add(w, "a", ST_F32, 1, 2, 0);
    cr_assert_eq(st_writer_begin(w, path, &e), 0);
    cr_assert_eq(st_writer_write(w, "1234567", 7, &e), 0);
    cr_expect_eq(st_writer_finish(w, &e), -1);
    cr_expect_not_null(strstr(e.text, "7 bytes of data written, 8 declared"),
                       "%s", e.text);
    err_reset(&e);
    cr_expect_eq(st_writer_write(w, "12", 2, &e), -1);
    cr_expect_not_null(strstr(e.text, "8 bytes of data declared, 2 more"), "%s",
                       e.text);
    st_writer_free(w);
    cr_expect(!io_exists(path), "an unfinished file stays");
    cr_assert_eq(io_list(t_st_path(""), &names, &n, &e), 0);
    cr_expect_eq(n, 0, "its part stays");
    io_list_free(names, n);
}

Test(st_write, replaces_a_file_in_one_step)
{
    struct err e = ERR_INIT;
    const char *path = t_st_path("x.safetensors");
    struct st_writer *w;
    struct st *s;

    write_sample(path);
    w = new_ok();
    add(w, "new", ST_U8, 1, 1, 0);
    cr_assert_eq(st_writer_begin(w, path, &e), 0, "%s", e.text);
    s = st_open(path, &e);
    cr_assert_not_null(s, "the old file is gone too early");
    cr_expect_null(st_find(s, "new"));
    st_close(s);
    cr_assert_eq(st_writer_write(w, "1", 1, &e), 0);
    cr_assert_eq(st_writer_finish(w, &e), 0, "%s", e.text);
    st_writer_free(w);
    s = st_open(path, &e);
    cr_assert_not_null(s, "%s", e.text);
    cr_expect_not_null(st_find(s, "new"));
    st_close(s);
}

Test(st_write, refusals)
{
    static const uint64_t huge[] = { UINT64_C(1) << 40, UINT64_C(1) << 40 };
    static const uint64_t large[] = { UINT64_C(1) << 46 };
    static const uint64_t three[] = { 3 };
    struct err e = ERR_INIT;
    struct st_writer *w = new_ok();

    cr_expect_eq(st_writer_add(w, "__metadata__", ST_U8, 0, NULL, &e), -1);
    err_reset(&e);
    cr_expect_eq(st_writer_add(w, "h", ST_U8, 2, huge, &e), -1);
    cr_expect_not_null(strstr(e.text, "'h'"), "%s", e.text);
    err_reset(&e);
    cr_expect_eq(st_writer_add(w, "q", ST_F4, 1, three, &e), -1);
    cr_expect_not_null(strstr(e.text, "'q'"), "%s", e.text);
    err_reset(&e);
    cr_expect_eq(st_writer_add(w, "l", ST_F32, 1, large, &e), -1);
    err_reset(&e);
    cr_expect_eq(st_writer_add(w, "l", ST_U8, 1, large, &e), 0);
    cr_expect_eq(st_writer_add(w, "l", ST_U8, 1, large, &e), 0);
    cr_expect_eq(st_writer_begin(w, t_st_path("x.safetensors"), &e), -1);
    cr_expect_not_null(strstr(e.text, "'l' declared twice"), "%s", e.text);
    cr_expect(!io_exists(t_st_path("x.safetensors")));
    st_writer_free(w);
}

Test(st_write, never_over_a_directory)
{
    struct err e = ERR_INIT;
    struct st_writer *w = new_ok();

    cr_expect_eq(st_writer_begin(w, t_st_path(""), &e), -1);
    cr_expect_not_null(strstr(e.text, "is a directory"), "%s", e.text);
    st_writer_free(w);
}

/* Every allocation on the way fails once: an error, no leak, no file. */
Test(st_write, allocation_failures)
{
    struct err e = ERR_INIT;
    const char *path = t_st_path("x.safetensors");
    uint64_t dims[] = { 2 };
    int ok = 0;

    for (long n = 0; n < 200 && !ok; n++) {
        struct st_writer *w;
        err_reset(&e);
        mem_fail_at(n, false);
        w = st_writer_new(&e);
        ok = w && !st_writer_add(w, "a", ST_U8, 1, dims, &e) &&
             !st_writer_begin(w, path, &e) &&
             !st_writer_write(w, "xy", 2, &e) && !st_writer_finish(w, &e);
        mem_fail_at(-1, false);
        st_writer_free(w);
        cr_assert(ok || e.code == ERR_NOMEM, "%ld: %s", n, e.text);
        if (!ok)
            unlink(path);
    }
    cr_expect(ok);
    ok = 0;
    for (long n = 0; n < 400 && !ok; n++) {
        struct st *s;
        err_reset(&e);
        mem_fail_at(n, false);
        s = st_open(path, &e);
        mem_fail_at(-1, false);
        ok = s != NULL;
        st_close(s);
        cr_assert(ok || e.code == ERR_NOMEM, "%ld: %s", n, e.text);
    }
    cr_expect(ok);
}
