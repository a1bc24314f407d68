/*
 * Helpers of the safetensors suites.
 */
#include "t_st.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/num.h"

static char dir[256];

const char *t_st_dir(void)
{
    const char *tmp = getenv("TMPDIR");

    if (!dir[0]) {
        snprintf(dir, sizeof dir, "%s/t-st-XXXXXX", tmp ? tmp : "/tmp");
        cr_assert_not_null(mkdtemp(dir));
    }
    return dir;
}

void t_st_clean(void)
{
    struct err e = ERR_INIT;

    if (dir[0])
        cr_expect_eq(io_remove_tree(dir, &e), 0, "%s", e.text);
    dir[0] = 0;
}

const char *t_st_path(const char *name)
{
    static char text[4][512];
    static int next;
    char *out = text[next++ % 4];

    snprintf(out, sizeof text[0], "%s/%s", t_st_dir(), name);
    return out;
}

const char *t_st_put(const char *name, const void *bytes, size_t n)
{
    const char *path = t_st_path(name);
    FILE *f = fopen(path, "wb");

    cr_assert_not_null(f, "%s", path);
    cr_assert_eq(fwrite(bytes, 1, n, f), n);
    cr_assert_eq(fclose(f), 0);
    return path;
}

const char *t_st_text(const char *name, const char *text)
{
    return t_st_put(name, text, strlen(text));
}

const char *t_st_raw(const char *name, const char *header, size_t len,
                     const void *data, uint64_t n)
{
    size_t total = 8 + len + (size_t)n;
    unsigned char *bytes = malloc(total);
    const char *path;

    cr_assert_not_null(bytes);
    store_le64(bytes, len);
    memcpy(bytes + 8, header, len);
    for (size_t i = 0; i < n; i++)
        bytes[8 + len + i] =
            data ? ((const unsigned char *)data)[i] : (unsigned char)(i % 251);
    path = t_st_put(name, bytes, total);
    free(bytes);
    return path;
}

const char *t_st_file(const char *name, const char *header, uint64_t n)
{
    return t_st_raw(name, header, strlen(header), NULL, n);
}
