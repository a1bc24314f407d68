/*
 * Helpers of the safetensors suites: a scratch directory and files made from
 * a header text and bytes, sound or not.
 */
#ifndef T_ST_H
#define T_ST_H

#include <stddef.h>
#include <stdint.h>

/* A fresh directory; one per test process. */
const char *t_st_dir(void);
/* Removes it. */
void t_st_clean(void);
/* dir/name; the text lives until four calls later. */
const char *t_st_path(const char *name);
/* Writes a file of these bytes and returns its path. */
const char *t_st_put(const char *name, const void *bytes, size_t n);
const char *t_st_text(const char *name, const char *text);
/* Length, header and `n` bytes of data (byte i holds i mod 251). */
const char *t_st_file(const char *name, const char *header, uint64_t n);
/* The same with a header of `len` bytes and given data (NULL: as above). */
const char *t_st_raw(const char *name, const char *header, size_t len,
                     const void *data, uint64_t n);

#endif
