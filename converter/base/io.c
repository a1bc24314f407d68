/*
 * Input files: judged when they are opened, read by pread at explicit
 * offsets. No mapping: a page that cannot be filled must be an error with
 * the name of a file, not a signal.
 */
#include "converter/base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "converter/base/io_priv.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"

/* The largest offset that off_t takes. */
#define OFF_MAX ((uint64_t)INT64_MAX)
/* One read call; more is cut by some kernels. */
#define IO_CHUNK ((size_t)1 << 30)
/* A git-lfs pointer is a text of a few lines, at most this long. */
#define LFS_MAX 1024
#define LFS_FIRST "version https://git-lfs"
#define LFS_OLD "version https://hawser"

static int judge_kind(const struct stat *st, const char *path, struct err *e)
{
    if (S_ISREG(st->st_mode))
        return 0;
    if (S_ISDIR(st->st_mode))
        return err_set(e, ERR_INPUT, "'%s' is a directory, not a file", path);
    return err_set(e, ERR_INPUT, "'%s' is a %s, not a regular file", path,
                   S_ISFIFO(st->st_mode)   ? "pipe"
                   : S_ISSOCK(st->st_mode) ? "socket"
                                           : "device");
}

/* The number behind "size " at the start of a line. */
static bool lfs_size(const char *text, size_t len, uint64_t *size)
{
    for (const char *p = text, *end = text + len; p < end;) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((eol != NULL ? eol : end) - p);

        if (n > 0 && p[n - 1] == '\r')
            n--;
        if (n > 5 && memcmp(p, "size ", 5) == 0)
            return num_parse_u64(p + 5, n - 5, size);
        if (eol == NULL)
            break;
        p = eol + 1;
    }
    return false;
}

static bool starts_with(const char *text, size_t len, const char *prefix)
{
    size_t n = strlen(prefix);

    return len >= n && memcmp(text, prefix, n) == 0;
}

static int judge_pointer(const struct io_file *f, struct err *e)
{
    char text[LFS_MAX];
    uint64_t size = 0;

    if (f->size > LFS_MAX)
        return 0;
    if (io_pread(f, text, (size_t)f->size, 0, e))
        return -1;
    if (!starts_with(text, (size_t)f->size, LFS_FIRST) &&
        !starts_with(text, (size_t)f->size, LFS_OLD))
        return 0;
    if (!lfs_size(text, (size_t)f->size, &size))
        return err_set(e, ERR_INPUT,
                       "'%s' is a git-lfs pointer, not the file itself: fetch "
                       "it with 'git lfs pull'",
                       f->path);
    return err_set(e, ERR_INPUT,
                   "'%s' is a git-lfs pointer of %" PRIu64 " bytes to a file "
                   "of %" PRIu64 " bytes: fetch it with 'git lfs pull'",
                   f->path, f->size, size);
}

static int judge(struct io_file *f, struct err *e)
{
    struct stat st;

    if (fstat(f->fd, &st) != 0)
        return err_sys(e, errno, "cannot examine '%s'", f->path);
    if (judge_kind(&st, f->path, e))
        return -1;
    if (st.st_size <= 0)
        return err_set(e, ERR_INPUT, "'%s' is empty", f->path);
    f->size = (uint64_t)st.st_size;
    f->mtime_s = (int64_t)st.st_mtim.tv_sec;
    f->mtime_ns = (int64_t)st.st_mtim.tv_nsec;
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    f->disk_bytes = (uint64_t)st.st_blocks * 512;
    f->holes = f->disk_bytes < f->size;
    return judge_pointer(f, e);
}

int io_open_input(struct io_file *f, const char *path, struct err *e)
{
    *f = (struct io_file)IO_FILE_INIT;
    f->path = mem_strdup(path, e);
    if (f->path == NULL)
        return -1;
    /* O_NONBLOCK: a pipe in the place of a file must not stop us. */
    do
        f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    while (f->fd < 0 && errno == EINTR);
    if (f->fd < 0)
        io_cannot("open", path, errno, "the download is incomplete", e);
    else if (judge(f, e) == 0)
        return 0;
    io_close(f);
    return -1;
}

void io_close(struct io_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    mem_free(f->path);
    *f = (struct io_file)IO_FILE_INIT;
}

int io_read_fd(int fd, const char *path, void *dst, size_t n, uint64_t offset,
               struct err *e)
{
    char *p = dst;
    size_t done = 0;

    if (offset > OFF_MAX || n > OFF_MAX - offset)
        return err_set(e, ERR_INPUT,
                       "%zu bytes at offset %" PRIu64 " of '%s' lie beyond "
                       "any file",
                       n, offset, path);
    while (done < n) {
        size_t want = n - done < IO_CHUNK ? n - done : IO_CHUNK;
        ssize_t got = pread(fd, p + done, want, (off_t)(offset + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(e, errno, "cannot read '%s'", path);
        if (got == 0)
            return err_set(e, ERR_INPUT,
                           "'%s' ends early: %zu of %zu bytes at offset "
                           "%" PRIu64,
                           path, done, n, offset);
        done += (size_t)got;
    }
    return 0;
}

int io_pread(const struct io_file *f, void *dst, size_t n, uint64_t offset,
             struct err *e)
{
    return io_read_fd(f->fd, f->path, dst, n, offset, e);
}

int io_unchanged(const struct io_file *f, struct err *e)
{
    struct stat st;

    if (fstat(f->fd, &st) != 0)
        return err_sys(e, errno, "cannot examine '%s'", f->path);
    if ((uint64_t)st.st_size != f->size)
        return err_set(e, ERR_INPUT,
                       "'%s' changed while it was read: %" PRIu64
                       " bytes when it was opened, %" PRIu64 " now",
                       f->path, f->size, (uint64_t)st.st_size);
    if ((int64_t)st.st_mtim.tv_sec != f->mtime_s ||
        (int64_t)st.st_mtim.tv_nsec != f->mtime_ns)
        return err_set(e, ERR_INPUT,
                       "'%s' was written to while it was read (its time of "
                       "change is another one)",
                       f->path);
    return 0;
}

static int read_all(const struct io_file *f, uint64_t max, struct buf *out,
                    struct err *e)
{
    void *dst;

    if (f->size > max)
        return err_set(e, ERR_INPUT,
                       "'%s' has %" PRIu64 " bytes; at most %" PRIu64
                       " are taken",
                       f->path, f->size, max);
    if (f->size > SIZE_MAX)
        return err_set(e, ERR_NOMEM, "'%s' of %" PRIu64 " bytes is too large",
                       f->path, f->size);
    dst = buf_extend(out, (size_t)f->size);
    if (dst == NULL)
        return buf_ok(out, e);
    if (io_pread(f, dst, (size_t)f->size, 0, e)) {
        out->len -= (size_t)f->size;
        out->data[out->len] = '\0';
        return -1;
    }
    return 0;
}

int io_read_file(const char *path, uint64_t max, struct buf *out, struct err *e)
{
    struct io_file f = IO_FILE_INIT;
    int rc;

    if (io_open_input(&f, path, e))
        return -1;
    rc = read_all(&f, max, out, e);
    io_close(&f);
    return rc;
}
