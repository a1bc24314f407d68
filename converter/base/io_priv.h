/*
 * Shared by the io_*.c files.
 */
#ifndef BASE_IO_PRIV_H
#define BASE_IO_PRIV_H

#include "converter/base/io.h"

/* Exactly n bytes at offset of an open file. */
int io_read_fd(int fd, const char *path, void *dst, size_t n, uint64_t offset,
               struct err *e) ATTR_MUST_USE;
/* fsync of a file or directory by name. */
int io_sync_path(const char *path, struct err *e) ATTR_MUST_USE;
/* fsync of everything under a directory, then of the directory. */
int io_sync_tree(const char *path, struct err *e) ATTR_MUST_USE;
/* Why a path cannot be opened or resolved (`what`), by errno; `hint` is for a
 * link to what is not there, or NULL. */
int io_cannot(const char *what, const char *path, int errnum, const char *hint,
              struct err *e);
/* The part in front of the last component: "." if there is none. Fresh. */
char *io_dirname(const char *path, struct err *e) ATTR_MUST_USE;

#endif
