/*
 * Test helper: a scratch directory per test, and files in it.
 */
#ifndef T_DIR_H
#define T_DIR_H

#include <stddef.h>

/* Makes and enters nothing: returns the path of a fresh directory. */
const char *t_dir_new(void);
/* "<dir>/<name>"; holds until 32 calls later. */
const char *t_path(const char *dir, const char *name);
void t_write(const char *path, const void *p, size_t n);
void t_write_text(const char *path, const char *text);
/* Whole file as text in a static buffer of 64 KB; fails the test if it
 * cannot be read. */
const char *t_read_text(const char *path);
/* Removes the directory of t_dir_new with all in it. */
void t_dir_drop(const char *dir);
/* Names in a directory, hidden ones too, joined by ' ' and sorted. */
const char *t_names(const char *dir);

#endif
