/*
 * Directories: which files are read, what the index decides, what it may not
 * name, and broken sets of shards.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "safetensors/st.h"
#include "t_st.h"

TestSuite(st_index, .fini = t_st_clean);

#define INDEX "model.safetensors.index.json"

/* A shard of U8 tensors with 4 bytes each; names apart by spaces. The bytes
 * of all are `value`. */
static void put_shard(const char *file, const char *names, int value)
{
    char copy[256], header[1024] = "{", data[64];
    unsigned at = 0;

    snprintf(copy, sizeof copy, "%s", names);
    memset(data, value, sizeof data);
    for (char *n = strtok(copy, " "); n; n = strtok(NULL, " ")) {
        size_t len = strlen(header);
        snprintf(header + len, sizeof header - len,
                 "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[4],"
                 "\"data_offsets\":[%u,%u]}",
                 at ? "," : "", n, at, at + 4);
        at += 4;
    }
    strcat(header, "}");
    t_st_raw(file, header, strlen(header), data, at);
}

static void put_index(const char *map)
{
    char text[2048];

    snprintf(text, sizeof text,
             "{\"metadata\":{\"total_size\":1},\"weight_map\":{%s}}", map);
    t_st_text(INDEX, text);
}

static struct st *open_ok(void)
{
    struct err e = ERR_INIT;
    struct st *s = st_open(t_st_dir(), &e);

    cr_assert_not_null(s, "%s", e.text);
    return s;
}

static void open_refused(const char *texts)
{
    struct err e = ERR_INIT;
    struct st *s = st_open(t_st_dir(), &e);
    char copy[512];

    cr_expect_null(s, "accepted, expected: %s", texts);
    st_close(s);
    cr_expect_eq((int)e.code, (int)ERR_INPUT, "%s", e.text);
    snprintf(copy, sizeof copy, "%s", texts);
    for (char *t = strtok(copy, "|"); t; t = strtok(NULL, "|"))
        cr_expect_not_null(strstr(e.text, t), "no '%s' in: %s", t, e.text);
}

static void expect_byte(const struct st *s, const char *name, int value)
{
    const struct st_tensor *t = st_find(s, name);
    struct err e = ERR_INIT;
    unsigned char b[4] = { 0 };

    cr_assert_not_null(t, "%s", name);
    cr_assert_eq(st_read_bytes(s, t, 0, b, 4, &e), 0, "%s", e.text);
    cr_expect_eq(b[3], value, "%s: %d", name, b[3]);
}

static void expect_note(const struct st *s, const char *texts)
{
    char copy[512];

    cr_assert_eq(st_note_count(s), 1, "%zu notes", st_note_count(s));
    snprintf(copy, sizeof copy, "%s", texts);
    for (char *t = strtok(copy, "|"); t; t = strtok(NULL, "|"))
        cr_expect_not_null(strstr(st_note(s, 0), t), "no '%s' in: %s", t,
                           st_note(s, 0));
}

Test(st_index, nothing_there)
{
    open_refused("neither model.safetensors nor model.safetensors.index.json");
}

Test(st_index, single_file)
{
    struct st *s;

    put_shard("model.safetensors", "a b", 1);
    put_shard("consolidated.safetensors", "c", 2); /* never looked at */
    s = open_ok();
    cr_expect_eq(st_count(s), 2);
    cr_expect_eq(st_shard_count(s), 1);
    cr_expect_eq(st_note_count(s), 0);
    cr_expect_eq(st_missing_count(s), 0);
    st_close(s);
}

/* Names follow no pattern and are read in any order. */
Test(st_index, shards_by_name)
{
    struct st *s;
    int shard = -1;

    put_shard("zz.safetensors", "b d", 1);
    put_shard("model.safetensors-00001-of-00001.safetensors", "a c", 2);
    put_shard("not-named.safetensors", "e", 3);
    put_index("\"a\":\"model.safetensors-00001-of-00001.safetensors\","
              "\"d\":\"zz.safetensors\",\"b\":\"zz.safetensors\","
              "\"c\":\"model.safetensors-00001-of-00001.safetensors\"");
    s = open_ok();
    cr_expect_eq(st_count(s), 4);
    cr_expect_eq(st_shard_count(s), 2);
    cr_expect_eq(st_data_bytes(s), 16);
    for (size_t i = 0; i < 4; i++)
        cr_expect_eq(st_at(s, i)->name[0], (char)('a' + (int)i));
    expect_byte(s, "a", 2);
    expect_byte(s, "b", 1);
    cr_expect_str_eq(io_basename(st_shard_path(s, st_find(s, "d")->shard)),
                     "zz.safetensors");
    cr_expect_eq(st_note_count(s), 0);
    cr_expect_null(st_missing_name(s, 0, &shard));
    st_close(s);
}

/* A single shard with an index, as some repositories have it. */
Test(st_index, one_shard_with_index)
{
    struct st *s;

    put_shard("model.safetensors-00001-of-00001.safetensors", "a c", 2);
    put_index("\"a\":\"model.safetensors-00001-of-00001.safetensors\","
              "\"c\":\"model.safetensors-00001-of-00001.safetensors\"");
    s = open_ok();
    cr_expect_eq(st_count(s), 2);
    cr_expect_eq(st_shard_count(s), 1);
    st_close(s);
}

Test(st_index, broken_indexes)
{
    static const struct {
        const char *text, *texts;
    } bad[] = {
        { "{}", INDEX "|no 'weight_map'" },
        { "{\"Weight_map\":{\"a\":\"x\"}}", INDEX "|no 'weight_map'" },
        { "[]", INDEX "|an array|an object" },
        { "{\"weight_map\":[]}", INDEX "|'weight_map' is an array|an object" },
        { "{\"weight_map\":null}", INDEX "|'weight_map' is null" },
        { "{\"weight_map\":{}}", INDEX "|names no tensor" },
        { "{\"weight_map\":{\"a\":3}}", INDEX "|'a'|a number|a file name" },
        { "{\"weight_map\":{\"a\":null}}", INDEX "|'a'|null" },
        { "{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", INDEX "|a|twice" },
        { "{\"weight_map\":{\"a\":\"x\"}", INDEX },
        { "", INDEX "|empty" },
        { "version https://git-lfs.github.com/spec/v1\noid sha256:00\n"
          "size 9876\n",
          INDEX "|git-lfs" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        t_st_text(INDEX, bad[i].text);
        open_refused(bad[i].texts);
    }
}

/* Nine names that leave the directory or are no file name. */
Test(st_index, bad_file_names)
{
    static const char *const bad[] = {
        "",
        ".",
        "..",
        "../x.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "a\\\\b.safetensors",
        "C:x.safetensors",
        "x\\u0000.safetensors",
    };
    char map[128];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(map, sizeof map, "\"T.weight\":\"%s\"", bad[i]);
        put_index(map);
        open_refused(i < 8 ? INDEX "|'T.weight'|plain file name" : INDEX);
    }
}

Test(st_index, absent_shards)
{
    put_shard("s1.safetensors", "a", 1);
    put_index("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"");
    open_refused("1 of the 2 files|is missing|'s2.safetensors'|download it");
    put_index("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\","
              "\"c\":\"s3.safetensors\"");
    open_refused("2 of the 3 files|are missing|'s2.safetensors', "
                 "'s3.safetensors'|download them");
}

Test(st_index, truncated_shard)
{
    struct stat st;
    char want[96];

    put_shard("s1.safetensors", "a", 1);
    put_shard("s2.safetensors", "b", 1);
    put_index("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"");
    cr_assert_eq(stat(t_st_path("s2.safetensors"), &st), 0);
    st_close(open_ok());
    /* cut in the last tensor, the header, the length */
    for (long size = (long)st.st_size - 1; size > 0; size -= 13) {
        cr_assert_eq(truncate(t_st_path("s2.safetensors"), size), 0);
        snprintf(want, sizeof want,
                 "s2.safetensors|truncated: %ld |download it again", size);
        open_refused(want);
    }
}

Test(st_index, shard_stand_ins)
{
    put_shard("s1.safetensors", "a", 1);
    put_index("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"");
    t_st_text("s2.safetensors", "version https://git-lfs.github.com/spec/v1\n"
                                "oid sha256:00\nsize 4321\n");
    open_refused("s2.safetensors|git-lfs|4321");
    unlink(t_st_path("s2.safetensors"));
    cr_assert_eq(mkdir(t_st_path("s2.safetensors"), 0777), 0);
    open_refused("s2.safetensors|directory");
    rmdir(t_st_path("s2.safetensors"));
    cr_assert_eq(symlink("../blobs/beef", t_st_path("s2.safetensors")), 0);
    open_refused("s2.safetensors|../blobs/beef");
}

/* Hub caches link every file to a blob elsewhere, and directories as well. */
Test(st_index, links)
{
    char cache[600];
    struct err e = ERR_INIT;
    struct st *s;

    snprintf(cache, sizeof cache, "%s", t_st_path("blobs"));
    cr_assert_eq(mkdir(cache, 0777), 0);
    put_shard("blobs/beef", "a", 7);
    cr_assert_eq(mkdir(t_st_path("snap"), 0777), 0);
    cr_assert_eq(symlink("../blobs/beef", t_st_path("snap/s1.safetensors")), 0);
    put_index("\"a\":\"s1.safetensors\"");
    cr_assert_eq(rename(t_st_path(INDEX), t_st_path("blobs/cafe")), 0);
    cr_assert_eq(symlink("../blobs/cafe", t_st_path("snap/" INDEX)), 0);
    cr_assert_eq(symlink("snap", t_st_path("main")), 0);
    cr_assert_eq(symlink("main", t_st_path("latest")), 0);
    s = st_open(t_st_path("latest"), &e);
    cr_assert_not_null(s, "%s", e.text);
    expect_byte(s, "a", 7);
    st_close(s);
}

/* An overlay repeats a tensor with another value: the index decides, in
 * whatever order the files are seen. */
Test(st_index, overlay)
{
    struct st *s;

    put_shard("s1.safetensors", "a t", 1);
    put_shard("s2.safetensors", "b t", 2);
    put_index("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\","
              "\"t\":\"s2.safetensors\"");
    s = open_ok();
    cr_expect_eq(st_count(s), 3);
    cr_expect_eq(st_data_bytes(s), 12);
    expect_byte(s, "t", 2);
    expect_note(s, "'t'|'s1.safetensors'|'s2.safetensors'|using "
                   "'s2.safetensors'");
    st_close(s);
    put_index("\"t\":\"s1.safetensors\",\"b\":\"s2.safetensors\","
              "\"a\":\"s1.safetensors\"");
    s = open_ok();
    expect_byte(s, "t", 1);
    expect_note(s, "'t'|'s1.safetensors'|'s2.safetensors'|using "
                   "'s1.safetensors'");
    st_close(s);
}

Test(st_index, extra_file_by_index)
{
    struct st *s;

    put_shard("model.safetensors", "a t", 1);
    put_shard("extra.safetensors", "t u", 2);
    put_index("\"a\":\"model.safetensors\",\"t\":\"extra.safetensors\","
              "\"u\":\"extra.safetensors\"");
    s = open_ok();
    cr_expect_eq(st_count(s), 3);
    expect_byte(s, "t", 2);
    expect_byte(s, "u", 2);
    expect_note(s, "'t'|'model.safetensors'|using 'extra.safetensors'");
    st_close(s);
}

Test(st_index, single_file_beside_foreign_index)
{
    struct st *s;

    put_shard("model.safetensors", "a", 1);
    put_shard("s1.safetensors", "a b", 2);
    put_index("\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"");
    s = open_ok();
    cr_expect_eq(st_count(s), 1);
    expect_byte(s, "a", 1);
    expect_note(s, "using 'model.safetensors'|index|not used");
    st_close(s);
    t_st_text(INDEX, "{\"weight_map\":");
    s = open_ok();
    expect_byte(s, "a", 1);
    expect_note(s, "using 'model.safetensors'|index|broken");
    st_close(s);
}

Test(st_index, mapped_but_absent)
{
    struct st *s;
    int shard = -1;

    put_shard("s1.safetensors", "a", 1);
    put_shard("s2.safetensors", "b c", 2);
    put_index("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\","
              "\"c\":\"s1.safetensors\",\"mtp.x\":\"s2.safetensors\"");
    s = open_ok();
    cr_expect_eq(st_count(s), 2);
    cr_expect_null(st_find(s, "c")); /* the index wants it elsewhere */
    cr_assert_eq(st_missing_count(s), 2);
    cr_expect_str_eq(st_missing_name(s, 0, &shard), "c");
    cr_expect_str_eq(io_basename(st_shard_path(s, shard)), "s1.safetensors");
    cr_expect_str_eq(st_missing_name(s, 1, &shard), "mtp.x");
    cr_expect_str_eq(io_basename(st_shard_path(s, shard)), "s2.safetensors");
    expect_note(s, "'c' is in 's2.safetensors'|maps it to "
                   "'s1.safetensors'|not used");
    st_close(s);
}

Test(st_index, present_but_unmapped)
{
    struct st *s;

    put_shard("s1.safetensors", "a x", 1);
    put_shard("s2.safetensors", "b", 2);
    put_index("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"");
    s = open_ok();
    cr_expect_eq(st_count(s), 3);
    expect_byte(s, "x", 1);
    expect_note(s, "'x' is in 's1.safetensors'|not in the index");
    st_close(s);
    put_shard("s2.safetensors", "b x", 2); /* and now nobody decides */
    open_refused("'x'|'s1.safetensors'|'s2.safetensors'|index");
}

Test(st_index, many_notes_are_counted)
{
    char names[256] = "";
    struct st *s;

    for (int i = 0; i < 15; i++)
        snprintf(names + strlen(names), 16, "%s%c%d", i ? " " : "", 'm', i);
    put_shard("s1.safetensors", names, 1);
    for (char *p = names; *p; p++)
        if (*p == 'm')
            *p = 'n';
    put_shard("s2.safetensors", names, 1);
    put_shard("s3.safetensors", "a", 1);
    put_index("\"a\":\"s3.safetensors\",\"q\":\"s1.safetensors\","
              "\"r\":\"s2.safetensors\"");
    s = open_ok();
    cr_expect_eq(st_count(s), 31);
    cr_assert_eq(st_note_count(s), 17);
    cr_expect_not_null(strstr(st_note(s, 16), "14 more tensors"), "%s",
                       st_note(s, 16));
    cr_expect_null(st_note(s, 17));
    st_close(s);
}

/* Every allocation on the way fails once: an error, and no leak. */
Test(st_index, allocation_failures)
{
    struct err e = ERR_INIT;
    struct st *s = NULL;
    long n;

    put_shard("model.safetensors", "a t", 1);
    put_shard("s2.safetensors", "b t x", 2);
    put_index("\"a\":\"model.safetensors\",\"b\":\"s2.safetensors\","
              "\"t\":\"s2.safetensors\",\"m\":\"s2.safetensors\"");
    for (n = 0; n < 1000 && !s; n++) {
        err_reset(&e);
        mem_fail_at(n, false);
        s = st_open(t_st_dir(), &e);
        mem_fail_at(-1, false);
        cr_assert(s || e.code == ERR_NOMEM, "%ld: %s", n, e.text);
    }
    cr_assert_not_null(s);
    cr_expect_gt(n, 20);
    cr_expect_eq(st_count(s), 4);
    cr_expect_eq(st_note_count(s), 2);
    cr_expect_eq(st_missing_count(s), 1);
    st_close(s);
}

/* 100,000 tensors in two shards: nothing may be quadratic. */
Test(st_index, many_tensors)
{
    enum { N = 50000 };
    static const char *const files[] = { "s0.safetensors", "s1.safetensors" };
    char *header = malloc(N * 96), *map = malloc(2 * N * 64);
    size_t end = (size_t)sprintf(map, "{\"weight_map\":{");
    clock_t start;
    struct st *s;

    for (int f = 0; f < 2; f++) {
        size_t at = (size_t)sprintf(header, "{");
        for (int i = 0; i < N; i++) {
            at += (size_t)sprintf(header + at,
                                  "%s\"t.%d.%d\":{\"dtype\":\"U8\",\"shape\":"
                                  "[1],\"data_offsets\":[%d,%d]}",
                                  i ? "," : "", i, f, i, i + 1);
            end += (size_t)sprintf(map + end, "%s\"t.%d.%d\":\"%s\"",
                                   f + i ? "," : "", i, f, files[f]);
        }
        sprintf(header + at, "}");
        t_st_file(files[f], header, N);
    }
    sprintf(map + end, "}}");
    t_st_text(INDEX, map);
    free(header);
    free(map);
    start = clock();
    s = open_ok();
    cr_expect_eq(st_count(s), 2 * N);
    cr_expect_lt((double)(clock() - start) / CLOCKS_PER_SEC, 5.0);
    st_close(s);
}

Test(st_index, fixtures_open)
{
    const char *root = getenv("ANEMLL_FIXTURES");
    char base[512], path[900];
    struct err e = ERR_INIT;
    char **names;
    size_t n, opened = 0;

    if (!root || !*root) {
        snprintf(base, sizeof base, "%s/../shared/fixtures", ANEMLL_SOURCE_DIR);
        root = base;
    }
    if (!io_is_dir(root))
        cr_skip_test("no fixtures");
    cr_assert_eq(io_list(root, &names, &n, &e), 0, "%s", e.text);
    for (size_t i = 0; i < n; i++) {
        struct st *s;
        snprintf(path, sizeof path, "%s/%s/config.json", root, names[i]);
        if (!io_exists(path))
            continue;
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        s = st_open(path, &e);
        cr_assert_not_null(s, "%s: %s", names[i], e.text);
        cr_expect_gt(st_count(s), 20, "%s", names[i]);
        cr_expect_eq(st_note_count(s), 0, "%s: %s", names[i], st_note(s, 0));
        cr_expect_eq(st_missing_count(s), 0);
        cr_expect(!st_sparse(s), "%s", names[i]);
        cr_expect_eq(st_unchanged(s, &e), 0);
        st_close(s);
        opened++;
    }
    io_list_free(names, n);
    cr_expect_geq(opened, 12);
}
