/*
 * A weight file written while its sources are computed: a palette on several
 * threads, long constants, repeated ones that are taken back, sources and
 * files that fail. For the thread sanitizer, and against the file that is
 * written without threads.
 */
#define _XOPEN_SOURCE 700 /* mkdtemp */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "quant/quant.h"
#include "schema/blob.h"

#define ROWS 1200
#define COLS 1024
#define LONG ((uint64_t)36 << 20) /* beyond one sync */
#define FAILS_AT ((uint64_t)5 << 20)

static int read_rows(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                     struct err *e)
{
    (void)cookie;
    (void)e;
    for (uint64_t i = 0; i < n * COLS; i++) {
        uint64_t x = (row * COLS + i) * UINT64_C(0x9e3779b97f4a7c15);

        dst[i] = (uint16_t)(0x3c00 | (x >> 40 & 0x81ff));
    }
    return 0;
}

static int read_indices(void *cookie, uint64_t at, void *dst, size_t n,
                        struct err *e)
{
    return qz_palette_read_indices(cookie, at, dst, n, e);
}

static int read_tables(void *cookie, uint64_t at, void *dst, size_t n,
                       struct err *e)
{
    return qz_palette_read_tables(cookie, at, dst, n, e);
}

static int read_long(void *cookie, uint64_t at, void *dst, size_t n,
                     struct err *e)
{
    uint8_t *p = dst;

    if (cookie && at + n > FAILS_AT)
        return err_set(e, ERR_INPUT, "the source fails");
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)((at + i) * (at + i) >> 9);
    return 0;
}

static struct mil_data data(enum mil_dtype d, uint64_t elems, void *cookie,
                            int (*read)(void *, uint64_t, void *, size_t,
                                        struct err *))
{
    int64_t n = (int64_t)elems;
    struct mil_data m = { .type = mil_type_make(d, 1, &n),
                          .read = read,
                          .cookie = cookie };

    m.bytes = (uint64_t)mil_type_bytes(&m.type);
    return m;
}

/* -1 with the error of the first blob that fails. */
static int write_file(const char *path, bool threads, bool fails, struct err *e)
{
    struct blob_options o = { .threads = threads };
    struct qz_source src = {
        ROWS, COLS, QZ_BF16, 0, read_rows, NULL, NULL, NULL
    };
    struct par *par = threads ? par_new(4, e) : NULL;
    struct qz_palette *p = qz_palette_new(&src, 6, 8, par, e);
    struct blob_writer *w = blob_writer_new(path, &o, e);
    struct mil_data all[] = {
        data(MIL_U8, LONG, NULL, read_long),
        data(MIL_U6, ROWS * COLS, p, read_indices),
        data(MIL_F16, ROWS / 8 * 64, p, read_tables),
        data(MIL_U8, LONG, NULL, read_long),    /* the same again */
        data(MIL_U8, 3 << 20, NULL, read_long), /* its beginning */
        data(MIL_U8, 100, NULL, read_long),
        data(MIL_U8, LONG, fails ? w : NULL, read_long),
    };
    struct blob_totals totals;
    uint64_t offset;
    int rc = w && p ? 0 : -1;

    for (size_t i = 0; !rc && i < sizeof(all) / sizeof(all[0]); i++)
        rc = blob_put(w, &all[i], &offset, e);
    if (!rc)
        rc = blob_writer_finish(w, &totals, e);
    if (!rc && totals.shared != 2)
        rc = err_set(e, ERR_MISMATCH, "%llu blobs are shared, 2 were expected",
                     (unsigned long long)totals.shared);
    blob_writer_free(w);
    qz_palette_free(p);
    par_free(par);
    return rc;
}

static int same(const char *a, const char *b)
{
    struct err e = ERR_INIT;
    struct buf x = BUF_INIT, y = BUF_INIT;
    int rc = io_read_file(a, 1u << 30, &x, &e) ||
             io_read_file(b, 1u << 30, &y, &e) || x.len != y.len ||
             memcmp(x.data, y.data, x.len) != 0;

    if (rc)
        fprintf(stderr, "with threads the file is another: %s\n", e.text);
    buf_release(&x);
    buf_release(&y);
    return rc;
}

/* The error must be the one that is expected. */
static int fails(const char *path, const char *says)
{
    struct err e = ERR_INIT, none = ERR_INIT;
    int rc = io_remove_tree(path, &none);

    if (!write_file(path, true, true, &e) || !strstr(e.text, says)) {
        fprintf(stderr, "'%s' was expected, not '%s'\n", says, e.text);
        return 1;
    }
    return rc;
}

int main(void)
{
    char dir[] = "anemll-threads-XXXXXX";
    struct rlimit small = { 20u << 20, 20u << 20 };
    struct err e = ERR_INIT;
    char *a, *b;
    int rc = 1;

    if (!mkdtemp(dir))
        return perror("mkdtemp"), 1;
    a = mem_printf(&e, "%s/a", dir);
    b = mem_printf(&e, "%s/b", dir);
    if (!a || !b || write_file(a, false, false, &e) ||
        write_file(b, true, false, &e))
        fprintf(stderr, "%s\n", e.text);
    else
        rc = same(a, b) || fails(b, "the source fails");
    /* The disk takes no more in the middle of a constant. */
    signal(SIGXFSZ, SIG_IGN);
    if (!rc && setrlimit(RLIMIT_FSIZE, &small) == 0)
        rc = fails(b, "cannot write");
    mem_free(a);
    mem_free(b);
    err_reset(&e);
    if (io_remove_tree(dir, &e))
        fprintf(stderr, "%s\n", e.text);
    return rc;
}
