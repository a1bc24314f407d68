/*
 * Output files: created anew, written at explicit offsets, synced at the
 * end.
 */
#include "converter/base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "converter/base/io_priv.h"
#include "converter/base/mem.h"

#define COPY_BLOCK ((size_t)4 << 20)

int io_out_open(struct io_out *o, const char *path, struct err *e)
{
    *o = (struct io_out)IO_OUT_INIT;
    o->path = mem_strdup(path, e);
    if (o->path == NULL)
        return -1;
    o->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666);
    if (o->fd < 0) {
        err_sys(e, errno, "cannot create '%s'", path);
        io_out_release(o);
        return -1;
    }
    return 0;
}

int io_out_write_at(struct io_out *o, const void *p, size_t n, uint64_t offset,
                    struct err *e)
{
    const char *src = p;
    size_t done = 0;

    if (offset > (uint64_t)INT64_MAX || n > (uint64_t)INT64_MAX - offset)
        return err_set(e, ERR_IO,
                       "%zu bytes at offset %" PRIu64 " of '%s' lie beyond "
                       "any file",
                       n, offset, o->path);
    while (done < n) {
        size_t want = n - done < COPY_BLOCK * 16 ? n - done : COPY_BLOCK * 16;
        ssize_t put = pwrite(o->fd, src + done, want, (off_t)(offset + done));

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return err_sys(e, put < 0 ? errno : ENOSPC,
                           "cannot write %zu bytes at offset %" PRIu64
                           " of '%s'",
                           n, offset, o->path);
        done += (size_t)put;
    }
    if (offset + n > o->pos)
        o->pos = offset + n;
    return 0;
}

int io_out_write(struct io_out *o, const void *p, size_t n, struct err *e)
{
    return io_out_write_at(o, p, n, o->pos, e);
}

int io_out_truncate(struct io_out *o, uint64_t pos, struct err *e)
{
    int rc;

    if (pos > (uint64_t)INT64_MAX)
        return err_set(e, ERR_IO, "cannot cut '%s' to %" PRIu64 " bytes",
                       o->path, pos);
    do
        rc = ftruncate(o->fd, (off_t)pos);
    while (rc != 0 && errno == EINTR);
    if (rc != 0)
        return err_sys(e, errno, "cannot cut '%s' to %" PRIu64 " bytes",
                       o->path, pos);
    o->pos = pos;
    return 0;
}

int io_out_read_at(struct io_out *o, void *dst, size_t n, uint64_t offset,
                   struct err *e)
{
    return io_read_fd(o->fd, o->path, dst, n, offset, e);
}

int io_out_sync(const struct io_out *o, struct err *e)
{
    return fsync(o->fd) == 0
               ? 0
               : err_sys(e, errno, "cannot sync '%s' to disk", o->path);
}

int io_out_finish(struct io_out *o, struct err *e)
{
    int rc = io_out_sync(o, e);

    /* Some file systems report a full disk only here. */
    if (close(o->fd) != 0 && errno != EINTR && rc == 0)
        rc = err_sys(e, errno, "cannot close '%s'", o->path);
    o->fd = -1;
    io_out_release(o);
    return rc;
}

void io_out_release(struct io_out *o)
{
    if (o->fd >= 0)
        close(o->fd);
    mem_free(o->path);
    *o = (struct io_out)IO_OUT_INIT;
}

int io_write_file(const char *path, const void *p, size_t n, struct err *e)
{
    struct io_out o = IO_OUT_INIT;
    int rc = -1;

    if (io_out_open(&o, path, e) == 0 && io_out_write(&o, p, n, e) == 0)
        rc = io_out_finish(&o, e);
    io_out_release(&o);
    return rc;
}

static int copy_bytes(const struct io_file *from, struct io_out *to,
                      struct err *e)
{
    size_t block = from->size < COPY_BLOCK ? (size_t)from->size : COPY_BLOCK;
    char *mem = mem_alloc(block, 1, e);
    int rc = mem == NULL ? -1 : 0;

    for (uint64_t at = 0; rc == 0 && at < from->size; at += block) {
        size_t n = from->size - at < block ? (size_t)(from->size - at) : block;

        rc = io_pread(from, mem, n, at, e);
        if (rc == 0)
            rc = io_out_write(to, mem, n, e);
    }
    mem_free(mem);
    return rc;
}

bool io_link(const struct io_file *f, const char *to)
{
    return linkat(AT_FDCWD, f->path, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0;
}

bool io_takes_links(const char *dir)
{
    struct io_file f = IO_FILE_INIT;
    struct err ignored = ERR_INIT;
    char *a = io_join(dir, ".link-a", &ignored);
    char *b = io_join(dir, ".link-b", &ignored);
    bool yes = false;

    if (a && b && io_write_file(a, "x", 1, &ignored) == 0) {
        yes = io_open_input(&f, a, &ignored) == 0 && io_link(&f, b);
        io_close(&f);
        unlink(a);
        if (yes)
            unlink(b);
    }
    mem_free(a);
    mem_free(b);
    return yes;
}

int io_copy_file(const char *from, const char *to, struct err *e)
{
    struct io_file f = IO_FILE_INIT;
    struct io_out o = IO_OUT_INIT;
    int rc = -1;

    if (io_open_input(&f, from, e) == 0 && io_out_open(&o, to, e) == 0 &&
        copy_bytes(&f, &o, e) == 0 && io_unchanged(&f, e) == 0)
        rc = io_out_finish(&o, e);
    io_out_release(&o);
    io_close(&f);
    return rc;
}
