/*
 * Files: inputs that are judged before they are read, ranged reads, staged
 * output that appears by one rename.
 */
#ifndef BASE_IO_H
#define BASE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "converter/base/buf.h"
#include "converter/base/compiler.h"
#include "converter/base/err.h"

/* An open input file. size and mtime as found when it was opened. */
struct io_file {
    int fd;
    uint64_t size;
    int64_t mtime_s, mtime_ns;
    dev_t dev;
    ino_t ino;
    char *path;          /* for messages */
    uint64_t disk_bytes; /* what the file system holds of it */
    bool holes;          /* disk_bytes falls short of size */
};
#define IO_FILE_INIT               \
    {                              \
        -1, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* Opens a regular file for reading; links are followed at every level. Each
 * stand-in has its own sentence: absent, a directory, a dangling link (names
 * its target), empty, a git-lfs pointer (names the expected size). A file
 * with holes is opened and marked: the caller judges. */
int io_open_input(struct io_file *f, const char *path,
                  struct err *e) ATTR_MUST_USE;
void io_close(struct io_file *f);
/* Reads exactly n bytes at offset or fails: "N of M bytes". No mmap. */
int io_pread(const struct io_file *f, void *dst, size_t n, uint64_t offset,
             struct err *e) ATTR_MUST_USE;
/* Size and mtime again; an error if the file changed since it was opened. */
int io_unchanged(const struct io_file *f, struct err *e) ATTR_MUST_USE;
/* A whole file of at most max bytes into `out` (appended). */
int io_read_file(const char *path, uint64_t max, struct buf *out,
                 struct err *e) ATTR_MUST_USE;

bool io_exists(const char *path); /* anything, also a dangling link */
bool io_is_dir(const char *path); /* follows links */
/* One path component: not empty, no '/', '\\', ':' or NUL, not "." or "..". */
bool io_is_component(const char *name);
/* dir + "/" + name, fresh (mem_free). */
char *io_join(const char *dir, const char *name, struct err *e) ATTR_MUST_USE;
const char *io_basename(const char *path); /* view into path */
/* The path without links, "." and "..", fresh; what it names must exist. */
char *io_realpath(const char *path, struct err *e) ATTR_MUST_USE;
/* Names in a directory, sorted by byte order; free with io_list_free. */
int io_list(const char *dir, char ***names, size_t *n,
            struct err *e) ATTR_MUST_USE;
void io_list_free(char **names, size_t n);
/* Free bytes for this user; of the nearest parent that exists. */
int io_free_bytes(const char *dir, uint64_t *bytes,
                  struct err *e) ATTR_MUST_USE;
int io_mkdir(const char *path, struct err *e) ATTR_MUST_USE; /* mode 0777 */
/* A folder and its parents, as far as they are not there; *made (NULL before,
 * fresh) names the topmost one that was not. */
int io_make_dirs(const char *dir, char **made, struct err *e) ATTR_MUST_USE;
/* Removes it and its parents up to `made`, as far as they are empty. */
void io_remove_empty(const char *dir, const char *made);
/* Removes a file or a whole tree; absent is fine. */
int io_remove_tree(const char *path, struct err *e) ATTR_MUST_USE;
/* 1 if a and b are the same file, or b lies inside directory a (by device
 * and inode of b's parents); 0 if not or if either does not exist. */
int io_contains(const char *a, const char *b);
/* Whether two paths that exist lie on one file system. */
bool io_same_disk(const char *a, const char *b);

/* A file being written: O_CREAT|O_EXCL, mode 0666 less umask. */
struct io_out {
    int fd;
    uint64_t pos;
    char *path;
};
#define IO_OUT_INIT \
    {               \
        -1, 0, 0    \
    }
int io_out_open(struct io_out *o, const char *path,
                struct err *e) ATTR_MUST_USE;
int io_out_write(struct io_out *o, const void *p, size_t n,
                 struct err *e) ATTR_MUST_USE;
int io_out_write_at(struct io_out *o, const void *p, size_t n, uint64_t offset,
                    struct err *e) ATTR_MUST_USE;
/* Drops everything behind `pos`. */
int io_out_truncate(struct io_out *o, uint64_t pos,
                    struct err *e) ATTR_MUST_USE;
int io_out_read_at(struct io_out *o, void *dst, size_t n, uint64_t offset,
                   struct err *e) ATTR_MUST_USE;
/* fsync; while it runs another thread may write. */
int io_out_sync(const struct io_out *o, struct err *e) ATTR_MUST_USE;
/* fsync and close. */
int io_out_finish(struct io_out *o, struct err *e) ATTR_MUST_USE;
void io_out_release(struct io_out *o); /* closes without sync */
/* A small file in one go, through io_out. */
int io_write_file(const char *path, const void *p, size_t n,
                  struct err *e) ATTR_MUST_USE;
/* One more name for an open file; false where that is not possible. */
bool io_link(const struct io_file *f, const char *to) ATTR_MUST_USE;
/* Whether a file in this folder, which must be writable, may have two names:
 * tried, and both removed. */
bool io_takes_links(const char *dir);
/* Byte-for-byte copy into a new regular file. */
int io_copy_file(const char *from, const char *to, struct err *e) ATTR_MUST_USE;

/*
 * A directory that becomes visible by one rename. Work happens beside the
 * target under ".<name>.anemll-stage-<pid>", which holds a marker file so
 * that a stage left by a killed run is recognised and removed (only if its
 * process is gone). What becomes the target is the folder "new" in there, a
 * replaced target waits in "old": whenever the run is killed, the marker
 * lies beside what it marks, and the target never holds it.
 */
struct io_stage {
    char *target, *dir; /* dir: where to write; NULL when not begun */
    char *home;         /* the folder with the marker; holds dir */
    char *made;         /* the topmost parent that begin had to make */
    int lock_fd;        /* held locked while the stage is in use */
    bool replace;
    bool committed;
};
#define IO_STAGE_INIT        \
    {                        \
        0, 0, 0, 0, -1, 0, 0 \
    }
/* Target exists and !replace: ERR_INPUT that says so. Parents are made. */
int io_stage_begin(struct io_stage *s, const char *target, bool replace,
                   struct err *e) ATTR_MUST_USE;
/* Syncs files and folder, then renames. With replace the old target is moved
 * aside first, removed after, and put back if the rename fails. */
int io_stage_commit(struct io_stage *s, struct err *e) ATTR_MUST_USE;
void io_stage_release(struct io_stage *s); /* removes what was not committed */

#endif
