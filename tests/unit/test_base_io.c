/*
 * Files: stand-ins for data, ranged reads, output, names, trees, a full
 * disk.
 */
#define _DEFAULT_SOURCE /* mount */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/mount.h>
#endif

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "t_dir.h"

static const char *dir;

static void set_up(void)
{
    dir = t_dir_new();
}

static void tear_down(void)
{
    t_dir_drop(dir);
}

TestSuite(io, .init = set_up, .fini = tear_down);

static void not_opened(const char *path, enum err_code code, const char *part)
{
    struct io_file f = IO_FILE_INIT;
    struct err e = ERR_INIT;

    cr_assert_eq(io_open_input(&f, path, &e), -1);
    cr_assert_eq(e.code, code, "%s", e.text);
    cr_assert_not_null(strstr(e.text, part), "%s", e.text);
    cr_assert_not_null(strstr(e.text, path), "%s", e.text);
    cr_assert_eq(f.fd, -1);
    io_close(&f);
}

Test(io, opens_a_file)
{
    const char *path = t_path(dir, "f");
    struct io_file f = IO_FILE_INIT;
    struct err e = ERR_INIT;
    struct stat st;
    char text[6] = "";

    t_write_text(path, "0123456789");
    cr_assert_eq(io_open_input(&f, path, &e), 0);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(f.size, 10);
    cr_assert(f.dev == st.st_dev && f.ino == st.st_ino);
    cr_assert_eq(f.mtime_s, st.st_mtim.tv_sec);
    cr_assert_str_eq(f.path, path);
    cr_assert_eq(io_pread(&f, text, 5, 3, &e), 0);
    cr_assert_str_eq(text, "34567");
    cr_assert_eq(io_pread(&f, text, 0, 10, &e), 0);
    cr_assert_eq(io_unchanged(&f, &e), 0);
    io_close(&f);
    io_close(&f);
}

Test(io, reads_end_where_the_file_ends)
{
    const char *path = t_path(dir, "f");
    struct io_file f = IO_FILE_INIT;
    struct err e = ERR_INIT;
    char text[16];

    t_write_text(path, "0123456789");
    cr_assert_eq(io_open_input(&f, path, &e), 0);
    cr_assert_eq(io_pread(&f, text, 8, 4, &e), -1);
    cr_assert_eq(e.code, ERR_INPUT);
    cr_assert_not_null(strstr(e.text, "ends early: 6 of 8 bytes at offset 4"));
    err_reset(&e);
    cr_assert_eq(io_pread(&f, text, 1, UINT64_MAX, &e), -1);
    cr_assert_not_null(strstr(e.text, "beyond any file"));
    err_reset(&e);
    cr_assert_eq(io_pread(&f, text, 16, INT64_MAX, &e), -1);
    io_close(&f);
}

Test(io, standins_for_data)
{
    const char *link = t_path(dir, "link");

    not_opened(t_path(dir, "none"), ERR_INPUT, "does not exist");
    t_write_text(t_path(dir, "f"), "x");
    not_opened(t_path(dir, "f/x"), ERR_INPUT, "does not exist");
    not_opened(dir, ERR_INPUT, "is a directory, not a file");
    t_write_text(t_path(dir, "empty"), "");
    not_opened(t_path(dir, "empty"), ERR_INPUT, "is empty");
    cr_assert_eq(symlink("../../blobs/abc", link), 0);
    not_opened(link, ERR_INPUT,
               "is a link to '../../blobs/abc', which does not exist");
    cr_assert_eq(symlink("loop", t_path(dir, "loop")), 0);
    not_opened(t_path(dir, "loop"), ERR_INPUT, "leads to itself");
    cr_assert_eq(mkfifo(t_path(dir, "pipe"), 0666), 0);
    not_opened(t_path(dir, "pipe"), ERR_INPUT, "is a pipe, not a regular");
    not_opened("/dev/null", ERR_INPUT, "is a device, not a regular file");
}

Test(io, git_lfs_pointers)
{
    static const char good[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d1"
        "7e2393\nsize 1234567890\n";
    const char *path = t_path(dir, "model.safetensors");
    struct io_file f = IO_FILE_INIT;
    struct err e = ERR_INIT;
    char big[2000];

    t_write_text(path, good);
    not_opened(path, ERR_INPUT, "is a git-lfs pointer");
    not_opened(path, ERR_INPUT, "to a file of 1234567890 bytes");
    t_write_text(path, "version https://git-lfs.github.com/spec/v1\r\n"
                       "size 77\r\n");
    not_opened(path, ERR_INPUT, "to a file of 77 bytes");
    t_write_text(path, "version https://git-lfs.github.com/spec/v1\nsize x\n");
    not_opened(path, ERR_INPUT, "git-lfs pointer, not the file itself");
    t_write_text(path, "version https://git-lfs");
    not_opened(path, ERR_INPUT, "git-lfs pointer");
    t_write_text(path, "version https://hawser.github.com/spec/v1\nsize 5\n");
    not_opened(path, ERR_INPUT, "to a file of 5 bytes");
    /* The same words at the start of something larger are just text. */
    memset(big, ' ', sizeof big);
    memcpy(big, good, sizeof good - 1);
    t_write(path, big, sizeof big);
    cr_assert_eq(io_open_input(&f, path, &e), 0);
    io_close(&f);
    t_write_text(path, "version https://git-l");
    cr_assert_eq(io_open_input(&f, path, &e), 0);
    io_close(&f);
}

Test(io, links_are_followed_at_every_level)
{
    struct io_file f = IO_FILE_INIT;
    struct err e = ERR_INIT;

    cr_assert_eq(mkdir(t_path(dir, "blobs"), 0777), 0);
    cr_assert_eq(mkdir(t_path(dir, "snap"), 0777), 0);
    t_write_text(t_path(dir, "blobs/b"), "data");
    cr_assert_eq(symlink("../blobs/b", t_path(dir, "snap/one")), 0);
    cr_assert_eq(symlink("one", t_path(dir, "snap/two")), 0);
    cr_assert_eq(symlink("snap", t_path(dir, "s")), 0);
    cr_assert_eq(io_open_input(&f, t_path(dir, "s/two"), &e), 0, "%s", e.text);
    cr_assert_eq(f.size, 4);
    io_close(&f);
}

Test(io, holes_are_marked)
{
    const char *path = t_path(dir, "sparse");
    struct io_file f = IO_FILE_INIT;
    struct err e = ERR_INIT;
    char *full = calloc(1, 1 << 20);

    t_write_text(path, "x");
    cr_assert_eq(truncate(path, 5000000000), 0);
    cr_assert_eq(io_open_input(&f, path, &e), 0);
    cr_assert(f.holes);
    cr_assert_eq(f.size, UINT64_C(5000000000));
    cr_assert_lt(f.disk_bytes, 1 << 20);
    io_close(&f);
    memset(full, 7, 1 << 20);
    t_write(t_path(dir, "full"), full, 1 << 20);
    sync();
    cr_assert_eq(io_open_input(&f, t_path(dir, "full"), &e), 0);
    cr_assert(!f.holes);
    io_close(&f);
    free(full);
}

Test(io, a_change_is_noticed)
{
    const char *path = t_path(dir, "f");
    struct timespec times[2] = { { 0, UTIME_OMIT }, { 12345, 6789 } };
    struct io_file f = IO_FILE_INIT;
    struct err e = ERR_INIT;

    t_write_text(path, "0123456789");
    cr_assert_eq(io_open_input(&f, path, &e), 0);
    cr_assert_eq(truncate(path, 4), 0);
    cr_assert_eq(io_unchanged(&f, &e), -1);
    cr_assert_not_null(strstr(e.text, "10 bytes when it was opened, 4 now"));
    io_close(&f);
    err_reset(&e);
    cr_assert_eq(io_open_input(&f, path, &e), 0);
    cr_assert_eq(utimensat(AT_FDCWD, path, times, 0), 0);
    cr_assert_eq(io_unchanged(&f, &e), -1);
    cr_assert_not_null(strstr(e.text, "was written to while it was read"));
    io_close(&f);
}

Test(io, whole_files)
{
    const char *path = t_path(dir, "f");
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;

    t_write_text(path, "0123456789");
    buf_puts(&b, "> ");
    cr_assert_eq(io_read_file(path, 10, &b, &e), 0);
    cr_assert_str_eq(b.data, "> 0123456789");
    cr_assert_eq(io_read_file(path, 9, &b, &e), -1);
    cr_assert_eq(e.code, ERR_INPUT);
    cr_assert_not_null(strstr(e.text, "has 10 bytes; at most 9 are taken"));
    cr_assert_str_eq(b.data, "> 0123456789");
    buf_release(&b);
    for (long n = 0, rc = -1; rc != 0; n++) {
        err_reset(&e);
        mem_fail_at(n, false);
        rc = io_read_file(path, 10, &b, &e);
        mem_fail_at(-1, false);
        cr_assert_eq(e.code, rc == 0 ? ERR_OK : ERR_NOMEM);
        buf_release(&b);
    }
}

Test(io, components)
{
    static const char *const bad[] = { "",     ".",  "..",   "/",  "a/b",
                                       "/a",   "a/", "a\\b", "c:", "c:x",
                                       "../a", "\\", ":" };
    static const char *const good[] = {
        "a", "...", ".a", "a..b", "a b", "model-00001-of-00002.safetensors"
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert(!io_is_component(bad[i]), "'%s'", bad[i]);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        cr_assert(io_is_component(good[i]), "'%s'", good[i]);
    cr_assert(!io_is_component(NULL));
}

static void check_join(const char *a, const char *b, const char *want)
{
    struct err e = ERR_INIT;
    char *p = io_join(a, b, &e);

    cr_assert_str_eq(p, want);
    mem_free(p);
}

Test(io, joining)
{
    check_join("a", "b", "a/b");
    check_join("a/", "b", "a/b");
    check_join("/", "b", "/b");
    check_join("", "b", "b");
    cr_assert_str_eq(io_basename("a/b/c"), "c");
    cr_assert_str_eq(io_basename("c"), "c");
    cr_assert_str_eq(io_basename("a/"), "");
}

Test(io, listing)
{
    struct err e = ERR_INIT;
    char **names;
    size_t n;

    cr_assert_eq(io_list(dir, &names, &n, &e), 0);
    cr_assert_eq(n, 0);
    io_list_free(names, n);
    t_write_text(t_path(dir, "b"), "");
    t_write_text(t_path(dir, "a10"), "");
    t_write_text(t_path(dir, "a9"), "");
    t_write_text(t_path(dir, ".h"), "");
    t_write_text(t_path(dir, "\xc3\xa9"), "");
    t_write_text(t_path(dir, "B"), "");
    cr_assert_eq(io_list(dir, &names, &n, &e), 0);
    cr_assert_eq(n, 6);
    cr_assert_str_eq(names[0], ".h");
    cr_assert_str_eq(names[1], "B");
    cr_assert_str_eq(names[2], "a10");
    cr_assert_str_eq(names[3], "a9");
    cr_assert_str_eq(names[4], "b");
    cr_assert_str_eq(names[5], "\xc3\xa9");
    io_list_free(names, n);
    cr_assert_eq(io_list(t_path(dir, "none"), &names, &n, &e), -1);
    cr_assert_not_null(strstr(e.text, "does not exist"));
    err_reset(&e);
    cr_assert_eq(io_list(t_path(dir, "b"), &names, &n, &e), -1);
    cr_assert_not_null(strstr(e.text, "is not a directory"));
    io_list_free(NULL, 0);
    for (long k = 0, rc = -1; rc != 0; k++) {
        err_reset(&e);
        mem_fail_at(k, false);
        rc = io_list(dir, &names, &n, &e);
        mem_fail_at(-1, false);
        cr_assert_eq(e.code, rc == 0 ? ERR_OK : ERR_NOMEM);
    }
    io_list_free(names, n);
}

Test(io, existence_and_space)
{
    struct err e = ERR_INIT;
    uint64_t here = 0, below = 0;

    cr_assert_eq(symlink("nowhere", t_path(dir, "l")), 0);
    cr_assert(io_exists(t_path(dir, "l")));
    cr_assert(!io_exists(t_path(dir, "m")));
    cr_assert(!io_is_dir(t_path(dir, "l")));
    cr_assert_eq(symlink(".", t_path(dir, "d")), 0);
    cr_assert(io_is_dir(t_path(dir, "d")));
    cr_assert_eq(io_free_bytes(dir, &here, &e), 0);
    cr_assert_gt(here, 0);
    cr_assert_eq(io_free_bytes(t_path(dir, "not/yet/there"), &below, &e), 0);
    cr_assert_gt(below, 0);
    cr_assert_eq(io_mkdir(t_path(dir, "new"), &e), 0);
    cr_assert(io_is_dir(t_path(dir, "new")));
    cr_assert_eq(io_mkdir(t_path(dir, "new"), &e), -1);
    cr_assert_eq(e.code, ERR_IO);
}

Test(io, removing_trees_stops_at_links)
{
    struct err e = ERR_INIT;
    char deep[600];
    int n;

    cr_assert_eq(mkdir(t_path(dir, "keep"), 0777), 0);
    t_write_text(t_path(dir, "keep/file"), "precious");
    cr_assert_eq(mkdir(t_path(dir, "t"), 0777), 0);
    cr_assert_eq(symlink("../keep", t_path(dir, "t/link")), 0);
    cr_assert_eq(symlink("nowhere", t_path(dir, "t/dangling")), 0);
    t_write_text(t_path(dir, "t/f"), "x");
    n = snprintf(deep, sizeof deep, "%s/t", dir);
    for (int i = 0; i < 50; i++) {
        n += snprintf(deep + n, sizeof deep - (size_t)n, "/d");
        cr_assert_eq(mkdir(deep, 0777), 0);
    }
    cr_assert_eq(io_remove_tree(t_path(dir, "t"), &e), 0, "%s", e.text);
    cr_assert_str_eq(t_names(dir), "keep");
    cr_assert_str_eq(t_read_text(t_path(dir, "keep/file")), "precious");
    cr_assert_eq(io_remove_tree(t_path(dir, "t"), &e), 0);
    cr_assert_eq(symlink("keep", t_path(dir, "l")), 0);
    cr_assert_eq(io_remove_tree(t_path(dir, "l"), &e), 0);
    cr_assert_str_eq(t_names(dir), "keep");
    cr_assert_eq(io_remove_tree(t_path(dir, "keep/file"), &e), 0);
    cr_assert_str_eq(t_names(t_path(dir, "keep")), "");
}

Test(io, containment_by_inode)
{
    cr_assert_eq(mkdir(t_path(dir, "m"), 0777), 0);
    cr_assert_eq(mkdir(t_path(dir, "m/sub"), 0777), 0);
    cr_assert_eq(mkdir(t_path(dir, "m2"), 0777), 0);
    cr_assert_eq(mkdir(t_path(dir, "blobs"), 0777), 0);
    t_write_text(t_path(dir, "m/sub/f"), "x");
    t_write_text(t_path(dir, "blobs/b"), "x");
    cr_assert_eq(symlink("../blobs/b", t_path(dir, "m/shard")), 0);
    cr_assert_eq(symlink("m", t_path(dir, "alias")), 0);
    cr_assert_eq(link(t_path(dir, "blobs/b"), t_path(dir, "hard")), 0);

    cr_assert_eq(io_contains(t_path(dir, "m"), t_path(dir, "m")), 1);
    cr_assert_eq(io_contains(t_path(dir, "m"), t_path(dir, "m/")), 1);
    cr_assert_eq(io_contains(t_path(dir, "m"), t_path(dir, "m/sub")), 1);
    cr_assert_eq(io_contains(t_path(dir, "m"), t_path(dir, "m/sub/f")), 1);
    cr_assert_eq(io_contains(t_path(dir, "alias"), t_path(dir, "m/sub/f")), 1);
    cr_assert_eq(io_contains(t_path(dir, "m"), t_path(dir, "alias/sub")), 1);
    cr_assert_eq(io_contains(t_path(dir, "m"), t_path(dir, "m2/../m/sub")), 1);
    cr_assert_eq(io_contains(dir, t_path(dir, "m")), 1);
    cr_assert_eq(io_contains("/", t_path(dir, "m/sub/f")), 1);
    /* A linked file lies where its name is and where it leads. */
    cr_assert_eq(io_contains(t_path(dir, "m"), t_path(dir, "m/shard")), 1);
    cr_assert_eq(io_contains(t_path(dir, "blobs"), t_path(dir, "m/shard")), 1);
    cr_assert_eq(io_contains(t_path(dir, "hard"), t_path(dir, "blobs/b")), 1);

    cr_assert_eq(io_contains(t_path(dir, "m"), t_path(dir, "m2")), 0);
    cr_assert_eq(io_contains(t_path(dir, "m2"), t_path(dir, "m")), 0);
    cr_assert_eq(io_contains(t_path(dir, "m/sub"), t_path(dir, "m")), 0);
    cr_assert_eq(io_contains(t_path(dir, "m"), t_path(dir, "none")), 0);
    cr_assert_eq(io_contains(t_path(dir, "none"), t_path(dir, "m")), 0);
    cr_assert_eq(io_contains(t_path(dir, "m/sub/f"), t_path(dir, "m/sub")), 0);
}

Test(io, writing)
{
    const char *path = t_path(dir, "o");
    struct io_out o = IO_OUT_INIT;
    struct err e = ERR_INIT;
    char text[8] = "";

    cr_assert_eq(io_out_open(&o, path, &e), 0);
    cr_assert_eq(io_out_write(&o, "01234567", 8, &e), 0);
    cr_assert_eq(o.pos, 8);
    cr_assert_eq(io_out_write_at(&o, "ab", 2, 2, &e), 0);
    cr_assert_eq(o.pos, 8);
    cr_assert_eq(io_out_write_at(&o, "z", 1, 10, &e), 0);
    cr_assert_eq(o.pos, 11);
    cr_assert_eq(io_out_truncate(&o, 7, &e), 0);
    cr_assert_eq(io_out_write(&o, "!", 1, &e), 0);
    cr_assert_eq(io_out_read_at(&o, text, 4, 1, &e), 0);
    cr_assert_str_eq(text, "1ab4");
    cr_assert_eq(io_out_read_at(&o, text, 4, 6, &e), -1);
    cr_assert_not_null(strstr(e.text, "2 of 4 bytes at offset 6"));
    err_reset(&e);
    cr_assert_eq(io_out_finish(&o, &e), 0);
    cr_assert_eq(o.fd, -1);
    cr_assert_str_eq(t_read_text(path), "01ab456!");
    cr_assert_eq(io_out_open(&o, path, &e), -1);
    cr_assert_eq(e.code, ERR_IO);
    cr_assert_not_null(strstr(e.text, "File exists"));
    err_reset(&e);
    cr_assert_eq(symlink("elsewhere", t_path(dir, "l")), 0);
    cr_assert_eq(io_out_open(&o, t_path(dir, "l"), &e), -1);
    io_out_release(&o);
}

static unsigned mode_of(const char *path)
{
    struct stat st;

    cr_assert_eq(stat(path, &st), 0);
    return (unsigned)st.st_mode & 0777;
}

Test(io, the_umask_decides_modes)
{
    struct err e = ERR_INIT;

    umask(022);
    cr_assert_eq(io_write_file(t_path(dir, "a"), "x", 1, &e), 0);
    cr_assert_eq(io_mkdir(t_path(dir, "d"), &e), 0);
    cr_assert_eq(mode_of(t_path(dir, "a")), 0644);
    cr_assert_eq(mode_of(t_path(dir, "d")), 0755);
    umask(077);
    cr_assert_eq(chmod(t_path(dir, "a"), 0777), 0);
    cr_assert_eq(io_copy_file(t_path(dir, "a"), t_path(dir, "b"), &e), 0);
    cr_assert_eq(mode_of(t_path(dir, "b")), 0600);
}

Test(io, copying)
{
    const char *from = t_path(dir, "from"), *to = t_path(dir, "to");
    size_t n = 9000001;
    unsigned char *data = malloc(n);
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;

    for (size_t i = 0; i < n; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    t_write(from, data, n);
    cr_assert_eq(symlink("from", t_path(dir, "link")), 0);
    cr_assert_eq(io_copy_file(t_path(dir, "link"), to, &e), 0);
    cr_assert_eq(io_read_file(to, n, &b, &e), 0);
    cr_assert(b.len == n && memcmp(b.data, data, n) == 0);
    cr_assert_eq(io_copy_file(from, to, &e), -1);
    cr_assert_not_null(strstr(e.text, "File exists"));
    err_reset(&e);
    t_write_text(t_path(dir, "empty"), "");
    cr_assert_eq(io_copy_file(t_path(dir, "empty"), t_path(dir, "x"), &e), -1);
    cr_assert(!io_exists(t_path(dir, "x")));
    buf_release(&b);
    free(data);
}

/* A file system of 1 MB, where we may mount one. */
static const char *small_disk(void)
{
#if defined(__linux__)
    const char *path = t_path(dir, "disk");

    cr_assert_eq(mkdir(path, 0777), 0);
    if (geteuid() == 0 &&
        mount("tmpfs", path, "tmpfs", 0, "size=1m,mode=777") == 0)
        return path;
#endif
    return NULL;
}

static void drop_disk(const char *disk)
{
#if defined(__linux__)
    cr_assert_eq(umount(disk), 0);
#else
    (void)disk;
#endif
}

Test(io, a_full_disk)
{
    const char *disk = small_disk();
    struct io_stage s = IO_STAGE_INIT;
    struct io_out o = IO_OUT_INIT;
    struct err e = ERR_INIT;
    static char block[65536];
    uint64_t room = 0;
    int rc = 0;

    if (disk == NULL)
        cr_skip_test("no right to mount a small file system");
    cr_assert_eq(io_free_bytes(disk, &room, &e), 0);
    cr_assert(room > 500000 && room <= 1 << 20, "%" PRIu64, room);
    cr_assert_eq(io_stage_begin(&s, t_path(disk, "out"), false, &e), 0);
    cr_assert_eq(io_out_open(&o, t_path(s.dir, "weights"), &e), 0);
    for (int i = 0; i < 32 && rc == 0; i++)
        rc = io_out_write(&o, block, sizeof block, &e);
    cr_assert_eq(rc, -1);
    cr_assert_eq(e.code, ERR_IO);
    cr_assert_eq(err_exit_code(&e), 4);
    cr_assert_not_null(strstr(e.text, "the disk is full"), "%s", e.text);
    cr_assert_not_null(strstr(e.text, "weights"), "%s", e.text);
    io_out_release(&o);
    io_stage_release(&s);
    cr_assert_str_eq(t_names(disk), "");
    drop_disk(disk);
}
