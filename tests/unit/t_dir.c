/*
 * Test helper: scratch directories. Uses the C library alone, so that the
 * code under test does not vouch for itself.
 */
#define _XOPEN_SOURCE 700 /* nftw */

#include "t_dir.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RING 32

const char *t_dir_new(void)
{
    static char path[256];
    const char *tmp = getenv("TMPDIR");

    snprintf(path, sizeof path, "%s/anemll-test-XXXXXX",
             tmp != NULL ? tmp : "/tmp");
    cr_assert_not_null(mkdtemp(path), "cannot make %s", path);
    return path;
}

const char *t_path(const char *dir, const char *name)
{
    static char ring[RING][1024];
    static int at;
    char *p = ring[at++ % RING];

    snprintf(p, sizeof ring[0], "%s/%s", dir, name);
    return p;
}

void t_write(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");

    cr_assert_not_null(f, "cannot write %s", path);
    cr_assert(n == 0 || fwrite(p, 1, n, f) == n);
    cr_assert(fclose(f) == 0);
}

void t_write_text(const char *path, const char *text)
{
    t_write(path, text, strlen(text));
}

const char *t_read_text(const char *path)
{
    static char text[1 << 16];
    FILE *f = fopen(path, "rb");
    size_t n;

    cr_assert_not_null(f, "cannot read %s", path);
    n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    return text;
}

static int drop_one(const char *path, const struct stat *st, int kind,
                    struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    if (kind == FTW_DP)
        return rmdir(path);
    return unlink(path);
}

void t_dir_drop(const char *dir)
{
    cr_expect(nftw(dir, drop_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

const char *t_names(const char *dir)
{
    static char out[4096];
    char names[64][256];
    size_t n = 0, len = 0;
    struct dirent *entry;
    DIR *d = opendir(dir);

    cr_assert_not_null(d, "cannot list %s", dir);
    while ((entry = readdir(d)) != NULL && n < 64)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            snprintf(names[n++], sizeof names[0], "%.255s", entry->d_name);
    closedir(d);
    qsort(names, n, sizeof names[0], by_name);
    out[0] = '\0';
    for (size_t i = 0; i < n && len < sizeof out; i++)
        len += (size_t)snprintf(out + len, sizeof out - len, "%s%s",
                                i > 0 ? " " : "", names[i]);
    return out;
}
