/*
 * Staged directories.
 *
 *   parent/name                              the target
 *   parent/.name.anemll-stage-PID/           the stage's home
 *       .anemll-stage                        marker: who made this
 *       .lock                                locked while in use
 *       new/                                 becomes the target
 *       old/                                 a target that is being replaced
 *
 * All that a killed run can leave lies beside a marker in a home, at any
 * moment; the next run for the same target clears it away, and puts `old`
 * back if the kill fell between the two renames. A home belongs to a living
 * process exactly as long as its lock is held. Process numbers decide only
 * where there is no lock to ask: they are used again, and mean nothing
 * across containers. The lock has a file of its own because a process loses
 * it when it closes any other descriptor of that file, as reading the
 * marker would.
 */
#include "converter/base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "converter/base/hash.h"
#include "converter/base/io_priv.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"

#define MARKER ".anemll-stage"
#define LOCK ".lock"
#define MARKER_HEAD "anemll stage 1\n"
#define MARKER_MAX 64
#define HOME_MID ".anemll-stage-"

/* Tells this process from others that had its number: locks do not stop a
 * process from taking its own. */
static uint64_t process_id(void)
{
    static _Atomic uint64_t once;
    uint64_t id = atomic_load(&once), seed[2];
    struct timespec now = { 0 };

    if (id != 0)
        return id;
    clock_gettime(CLOCK_REALTIME, &now);
    seed[0] = (uint64_t)now.tv_sec;
    seed[1] = (uint64_t)now.tv_nsec;
    if (atomic_compare_exchange_strong(&once, &id,
                                       hash_bytes(seed, sizeof seed).lo | 1))
        return atomic_load(&once);
    return id;
}

static void marker_text(char out[MARKER_MAX])
{
    snprintf(out, MARKER_MAX, MARKER_HEAD "%ld %016" PRIx64 "\n",
             (long)getpid(), process_id());
}

/* 0: the lock is ours; 1: another process has it; -1: no locks here. */
static int take_lock(int fd)
{
    struct flock l = { 0 };

    l.l_type = F_WRLCK;
    l.l_whence = SEEK_SET;
    if (fcntl(fd, F_SETLK, &l) == 0)
        return 0;
    return errno == EACCES || errno == EAGAIN ? 1 : -1;
}

static bool process_gone(long pid)
{
    return pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

enum marker { MARKER_NONE, MARKER_CUT, MARKER_OWN, MARKER_OTHER };

static enum marker read_marker(int home)
{
    char text[MARKER_MAX + 1] = "", own[MARKER_MAX];
    int fd =
        openat(home, MARKER, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t n;

    if (fd < 0)
        return MARKER_NONE;
    n = read(fd, text, MARKER_MAX);
    close(fd);
    marker_text(own);
    if (n == 0)
        return MARKER_CUT;
    if (n < 0 || strncmp(text, MARKER_HEAD, strlen(MARKER_HEAD)) != 0)
        return MARKER_NONE;
    return strcmp(text, own) == 0 ? MARKER_OWN : MARKER_OTHER;
}

/* Whether nobody works in the home any more. */
static bool is_stale(int home, long pid)
{
    enum marker m = read_marker(home);
    int fd, lock;

    if (m == MARKER_CUT) /* killed in the middle of its first write */
        return process_gone(pid);
    if (m != MARKER_OTHER)
        return false;
    fd = openat(home, LOCK, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return process_gone(pid);
    lock = take_lock(fd);
    close(fd);
    return lock == 0 || (lock < 0 && process_gone(pid));
}

/* "PID" behind ".NAME.anemll-stage-"; false if it is another name. */
static bool is_home_name(const char *entry, const char *name, long *pid)
{
    size_t n = strlen(name), mid = strlen(HOME_MID);
    uint64_t v;

    if (entry[0] != '.' || strncmp(entry + 1, name, n) != 0 ||
        strncmp(entry + 1 + n, HOME_MID, mid) != 0)
        return false;
    entry += 1 + n + mid;
    if (!num_parse_u64(entry, strlen(entry), &v) || v > INT32_MAX)
        return false;
    *pid = (long)v;
    return true;
}

/* The marker goes last, so that a kill on the way leaves a home that the
 * next run still knows for one. */
static int remove_home(const char *home, struct err *e)
{
    static const char *const first[] = { "new", "old", LOCK };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof first / sizeof first[0]; i++) {
        char *path = io_join(home, first[i], e);

        rc = path == NULL ? -1 : io_remove_tree(path, e);
        mem_free(path);
    }
    return rc == 0 ? io_remove_tree(home, e) : -1;
}

/* Clears one home that a killed run left. */
static int clear_home(const char *home, const char *target, struct err *e)
{
    char *old = io_join(home, "old", e);
    int rc = -1;

    if (old == NULL)
        return -1;
    if (io_exists(old) && !io_exists(target) && rename(old, target) != 0)
        err_sys(e, errno, "cannot move '%s' back to '%s'", old, target);
    else
        rc = remove_home(home, e);
    mem_free(old);
    return rc;
}

static int clear_one(const char *home, long pid, const char *target,
                     struct err *e)
{
    int fd = open(home, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool stale;

    if (fd < 0)
        return 0; /* not a directory of ours */
    stale = is_stale(fd, pid);
    close(fd);
    if (stale)
        return clear_home(home, target, e);
    if (process_gone(pid))
        rmdir(home); /* killed before the marker, if it is empty */
    return 0;
}

static int clear_stale(const char *parent, const char *target, struct err *e)
{
    char **names;
    size_t n;
    int rc = 0;

    if (io_list(parent, &names, &n, e))
        return -1;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        char *home;
        long pid;

        if (!is_home_name(names[i], io_basename(target), &pid))
            continue;
        home = io_join(parent, names[i], e);
        rc = home == NULL ? -1 : clear_one(home, pid, target, e);
        mem_free(home);
    }
    io_list_free(names, n);
    return rc;
}

/* The target without slashes at its end. */
static char *clean_target(const char *target, struct err *e)
{
    size_t n = strlen(target);
    char *t;

    while (n > 1 && target[n - 1] == '/')
        n--;
    t = mem_strndup(target, n, e);
    if (t == NULL)
        return NULL;
    if (io_basename(t)[0] != '\0' && strcmp(io_basename(t), ".") != 0 &&
        strcmp(io_basename(t), "..") != 0)
        return t;
    mem_free(t);
    err_set(e, ERR_USAGE, "'%s' is no name for a new directory", target);
    return NULL;
}

static int fill_home(struct io_stage *s, struct err *e)
{
    char *marker = io_join(s->home, MARKER, e), text[MARKER_MAX];
    char *lock = marker != NULL ? io_join(s->home, LOCK, e) : NULL;
    int rc = -1;

    marker_text(text);
    if (lock != NULL && io_write_file(marker, text, strlen(text), e) == 0) {
        s->lock_fd = open(lock, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (s->lock_fd < 0)
            err_sys(e, errno, "cannot create '%s'", lock);
        else
            rc = 0;
    }
    if (rc == 0)
        (void)take_lock(s->lock_fd); /* where there are none, numbers do */
    mem_free(lock);
    mem_free(marker);
    if (rc != 0)
        return rc;
    s->dir = io_join(s->home, "new", e);
    return s->dir == NULL ? -1 : io_mkdir(s->dir, e);
}

static int make_home(struct io_stage *s, const char *parent, struct err *e)
{
    s->home = mem_printf(e, "%s%s.%s" HOME_MID "%ld", parent,
                         parent[strlen(parent) - 1] == '/' ? "" : "/",
                         io_basename(s->target), (long)getpid());
    if (s->home == NULL)
        return -1;
    if (mkdir(s->home, 0777) != 0) {
        err_sys(e, errno, "cannot make the directory '%s'", s->home);
        mem_free(s->home);
        s->home = NULL; /* not ours to remove */
        return -1;
    }
    return fill_home(s, e);
}

static int begin(struct io_stage *s, struct err *e)
{
    char *parent = io_dirname(s->target, e);
    int rc = -1;

    if (parent == NULL)
        return -1;
    if (io_make_dirs(parent, &s->made, e) == 0 &&
        clear_stale(parent, s->target, e) == 0) {
        if (io_exists(s->target) && !s->replace)
            err_set(e, ERR_INPUT, "'%s' exists", s->target);
        else
            rc = make_home(s, parent, e);
    }
    mem_free(parent);
    return rc;
}

int io_stage_begin(struct io_stage *s, const char *target, bool replace,
                   struct err *e)
{
    *s = (struct io_stage)IO_STAGE_INIT;
    s->replace = replace;
    s->target = clean_target(target, e);
    if (s->target != NULL && begin(s, e) == 0)
        return 0;
    io_stage_release(s);
    return -1;
}

/* The renames. `old` is where a target that exists waits. */
static int swap_in(struct io_stage *s, const char *old, struct err *e)
{
    bool moved = false;
    int errnum;

    if (io_exists(s->target)) {
        if (!s->replace)
            return err_set(e, ERR_INPUT,
                           "'%s' exists now; it did not when the work began",
                           s->target);
        if (rename(s->target, old) != 0)
            return err_sys(e, errno, "cannot move the old '%s' aside",
                           s->target);
        moved = true;
    }
    if (rename(s->dir, s->target) == 0)
        return 0;
    errnum = errno;
    if (moved && rename(old, s->target) != 0)
        return err_sys(e, errnum,
                       "cannot move the result to '%s', and its old content "
                       "stays in '%s'",
                       s->target, old);
    return err_sys(e, errnum, "cannot move the result to '%s'", s->target);
}

int io_stage_commit(struct io_stage *s, struct err *e)
{
    char *old = io_join(s->home, "old", e), *parent = NULL;
    struct err ignored = ERR_INIT;
    int rc = -1;

    if (old == NULL)
        return -1;
    parent = io_dirname(s->target, e);
    if (parent != NULL && io_sync_tree(s->dir, e) == 0 &&
        swap_in(s, old, e) == 0) {
        s->committed = true;
        rc = io_sync_path(parent, e);
        /* The result stands; what cannot be removed is found next time. */
        if (remove_home(s->home, &ignored) != 0)
            err_reset(&ignored);
    }
    mem_free(parent);
    mem_free(old);
    return rc;
}

void io_stage_release(struct io_stage *s)
{
    struct err ignored = ERR_INIT;

    /* An old target that could not be put back is never removed. */
    if (s->home != NULL && !s->committed) {
        char *old = io_join(s->home, "old", &ignored);

        if (old != NULL && !io_exists(old) &&
            remove_home(s->home, &ignored) != 0)
            err_reset(&ignored);
        mem_free(old);
    }
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    if (s->made != NULL && !s->committed) {
        char *parent = io_dirname(s->target, &ignored);

        if (parent != NULL)
            io_remove_empty(parent, s->made);
        mem_free(parent);
    }
    mem_free(s->target);
    mem_free(s->dir);
    mem_free(s->home);
    mem_free(s->made);
    *s = (struct io_stage)IO_STAGE_INIT;
}
