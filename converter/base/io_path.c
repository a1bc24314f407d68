/*
 * Paths and directories: names, listing, removal, containment, free space.
 */
#define _XOPEN_SOURCE 700 /* realpath */

#include "converter/base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "converter/base/io_priv.h"
#include "converter/base/mem.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

bool io_exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

bool io_is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool io_is_component(const char *name)
{
    return name != NULL && name[0] != '\0' && strpbrk(name, "/\\:") == NULL &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

char *io_join(const char *dir, const char *name, struct err *e)
{
    size_t n = strlen(dir);

    if (n == 0)
        return mem_strdup(name, e);
    return mem_printf(e, dir[n - 1] == '/' ? "%s%s" : "%s/%s", dir, name);
}

const char *io_basename(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

char *io_dirname(const char *path, struct err *e)
{
    size_t n = (size_t)(io_basename(path) - path);

    if (n == 0)
        return mem_strdup(".", e);
    while (n > 1 && path[n - 1] == '/')
        n--;
    return mem_strndup(path, n, e);
}

/* No such name, or a link that leads nowhere. */
static int absent(const char *path, const char *hint, struct err *e)
{
    char target[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof target - 1);

    if (n < 0)
        return err_set(e, ERR_INPUT, "'%s' does not exist", path);
    target[n] = '\0';
    return err_set(e, ERR_INPUT,
                   "'%s' is a link to '%s', which does not exist%s%s", path,
                   target, hint != NULL ? ": " : "", hint != NULL ? hint : "");
}

int io_cannot(const char *what, const char *path, int errnum, const char *hint,
              struct err *e)
{
    if (errnum == ENOENT || errnum == ENOTDIR)
        return absent(path, hint, e);
    if (errnum == ELOOP)
        return err_set(e, ERR_INPUT, "'%s' is a link that leads to itself",
                       path);
    return err_sys(e, errnum, "cannot %s '%s'", what, path);
}

char *io_realpath(const char *path, struct err *e)
{
    char real[PATH_MAX];

    if (realpath(path, real) != NULL)
        return mem_strdup(real, e);
    io_cannot("resolve", path, errno, NULL, e);
    return NULL;
}

static int by_bytes(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return strcmp(*x, *y);
}

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

struct names {
    char **v;
    size_t n, cap;
};

/* All names of an open directory; closes it. */
static int read_names(DIR *d, const char *path, struct names *l, struct err *e)
{
    int rc = 0;

    while (rc == 0) {
        void *items = l->v;
        struct dirent *entry;

        errno = 0;
        entry = readdir(d);
        if (entry == NULL) {
            if (errno != 0)
                rc = err_sys(e, errno, "cannot list '%s'", path);
            break;
        }
        if (is_dot(entry->d_name))
            continue;
        rc = mem_grow(&items, &l->cap, l->n, sizeof *l->v, e);
        if (rc != 0)
            break;
        l->v = items;
        l->v[l->n] = mem_strdup(entry->d_name, e);
        if (l->v[l->n] == NULL)
            rc = -1;
        else
            l->n++;
    }
    closedir(d);
    return rc;
}

int io_list(const char *dir, char ***names, size_t *n, struct err *e)
{
    struct names l = { NULL, 0, 0 };
    DIR *d = opendir(dir);

    *names = NULL;
    *n = 0;
    if (d == NULL) {
        if (errno == ENOENT)
            return err_set(e, ERR_INPUT, "'%s' does not exist", dir);
        if (errno == ENOTDIR)
            return err_set(e, ERR_INPUT, "'%s' is not a directory", dir);
        return err_sys(e, errno, "cannot list '%s'", dir);
    }
    if (read_names(d, dir, &l, e)) {
        io_list_free(l.v, l.n);
        return -1;
    }
    if (l.n > 1)
        qsort(l.v, l.n, sizeof *l.v, by_bytes);
    *names = l.v;
    *n = l.n;
    return 0;
}

void io_list_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        mem_free(names[i]);
    mem_free(names);
}

int io_free_bytes(const char *dir, uint64_t *bytes, struct err *e)
{
    struct statvfs v;
    int errnum;

    if (statvfs(dir, &v) == 0) {
        if (!mem_mul(v.f_bavail, v.f_frsize, bytes))
            *bytes = UINT64_MAX;
        return 0;
    }
    errnum = errno;
    if (errnum == ENOENT && strcmp(dir, ".") != 0 && strcmp(dir, "/") != 0) {
        char *up = io_dirname(dir, e);
        int rc = up == NULL ? -1 : io_free_bytes(up, bytes, e);

        mem_free(up);
        return rc;
    }
    return err_sys(e, errnum, "cannot ask for the free space of '%s'", dir);
}

int io_mkdir(const char *path, struct err *e)
{
    if (mkdir(path, 0777) != 0)
        return err_sys(e, errno, "cannot make the directory '%s'", path);
    return 0;
}

int io_make_dirs(const char *dir, char **made, struct err *e)
{
    char *up;
    int rc;

    if (io_is_dir(dir))
        return 0;
    if (io_exists(dir))
        return err_set(e, ERR_INPUT, "'%s' is not a directory", dir);
    up = io_dirname(dir, e);
    if (up == NULL)
        return -1;
    rc = io_make_dirs(up, made, e);
    mem_free(up);
    if (rc == 0 && *made == NULL) {
        *made = mem_strdup(dir, e);
        rc = *made == NULL ? -1 : 0;
    }
    if (rc == 0 && mkdir(dir, 0777) != 0 && errno != EEXIST)
        rc = err_sys(e, errno, "cannot make the directory '%s'", dir);
    return rc;
}

void io_remove_empty(const char *dir, const char *made)
{
    struct err ignored = ERR_INIT;
    char *at = mem_strdup(dir, &ignored), *up;

    while (at != NULL && strlen(at) >= strlen(made) && rmdir(at) == 0) {
        up = io_dirname(at, &ignored);
        mem_free(at);
        at = up;
    }
    mem_free(at);
}

static int remove_at(int parent, const char *name, const char *path,
                     struct err *e);

/* Empties the directory open as `fd`, which is closed. */
static int empty_dir(int fd, const char *path, struct err *e)
{
    struct names l = { NULL, 0, 0 };
    int rc = -1, copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;

    if (d == NULL) {
        err_sys(e, errno, "cannot list '%s'", path);
        if (copy >= 0)
            close(copy);
    } else {
        rc = read_names(d, path, &l, e);
    }
    for (size_t i = 0; rc == 0 && i < l.n; i++)
        rc = remove_at(fd, l.v[i], path, e);
    io_list_free(l.v, l.n);
    close(fd);
    return rc;
}

/* Links are removed, never followed. `path` is for messages. */
static int remove_at(int parent, const char *name, const char *path,
                     struct err *e)
{
    int fd;

    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return 0;
    /* Linux says EISDIR for a directory, POSIX EPERM. */
    if (errno != EISDIR && errno != EPERM)
        return err_sys(e, errno, "cannot remove '%s' of '%s'", name, path);
    fd = openat(parent, name, OPEN_DIR | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(e, errno == ENOTDIR ? EPERM : errno,
                       "cannot remove '%s' of '%s'", name, path);
    if (empty_dir(fd, path, e))
        return -1;
    if (unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        return err_sys(e, errno, "cannot remove '%s' of '%s'", name, path);
    return 0;
}

int io_remove_tree(const char *path, struct err *e)
{
    return remove_at(AT_FDCWD, path, path, e);
}

int io_sync_path(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;

    if (fd < 0)
        return err_sys(e, errno, "cannot open '%s' to sync it", path);
    /* Some file systems do not sync directories and say EINVAL. */
    if (fsync(fd) != 0 && errno != EINVAL)
        rc = err_sys(e, errno, "cannot sync '%s' to disk", path);
    close(fd);
    return rc;
}

int io_sync_tree(const char *path, struct err *e)
{
    char **names;
    size_t n;
    int rc = 0;

    if (io_list(path, &names, &n, e))
        return -1;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        char *child = io_join(path, names[i], e);
        struct stat st;

        if (child == NULL || lstat(child, &st) != 0)
            rc = child == NULL
                     ? -1
                     : err_sys(e, errno, "cannot examine '%s'", child);
        else if (S_ISDIR(st.st_mode))
            rc = io_sync_tree(child, e);
        else if (S_ISREG(st.st_mode))
            rc = io_sync_path(child, e);
        mem_free(child);
    }
    io_list_free(names, n);
    return rc != 0 ? rc : io_sync_path(path, e);
}

/* Whether `a` is the directory open as fd or one above; closes fd. */
static int above(const struct stat *a, int fd)
{
    struct stat st, up;
    int found = 0;

    while (fd >= 0 && fstat(fd, &st) == 0) {
        int parent;

        if (st.st_dev == a->st_dev && st.st_ino == a->st_ino) {
            found = 1;
            break;
        }
        parent = openat(fd, "..", OPEN_DIR);
        if (parent < 0 || fstat(parent, &up) != 0 ||
            (up.st_dev == st.st_dev && up.st_ino == st.st_ino)) {
            if (parent >= 0)
                close(parent);
            break; /* the root */
        }
        close(fd);
        fd = parent;
    }
    if (fd >= 0)
        close(fd);
    return found;
}

/* Whether the directory that holds the name `path` is a or inside it. */
static int parent_inside(const struct stat *a, const char *path)
{
    struct err ignored = ERR_INIT;
    char *dir = io_dirname(path, &ignored);
    int found = 0;

    if (dir != NULL)
        found = above(a, open(dir, OPEN_DIR));
    mem_free(dir);
    return found;
}

int io_contains(const char *a, const char *b)
{
    struct stat sa, sb;
    char real[PATH_MAX];

    if (stat(a, &sa) != 0 || stat(b, &sb) != 0)
        return 0;
    if (sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino)
        return 1;
    if (!S_ISDIR(sa.st_mode))
        return 0;
    if (S_ISDIR(sb.st_mode) && above(&sa, open(b, OPEN_DIR)))
        return 1;
    /* The name itself, and where a link leads. */
    if (parent_inside(&sa, b))
        return 1;
    return realpath(b, real) != NULL && parent_inside(&sa, real);
}

bool io_same_disk(const char *a, const char *b)
{
    struct stat sa, sb;

    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev;
}
