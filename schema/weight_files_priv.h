/*
 * The weight files of an open model: opened as its constants name them, one
 * mil_data for each place and type.
 */
#ifndef SCHEMA_WEIGHT_FILES_PRIV_H
#define SCHEMA_WEIGHT_FILES_PRIV_H

#include "schema/blob.h"

#define WEIGHT_FILES_MAX 64
#define WEIGHT_BUCKETS 4096

struct weight_file {
    char *name; /* as the program spells it: "@model_path/weights/x.bin" */
    struct blob_reader reader;
    struct weight_files *owner;
};
struct weight; /* behind a constant: where it lies */
struct weight_files {
    char *dir; /* NULL: the model has none */
    /* Names lead from `dir`; else from the folder around it, which the
     * program calls "weights" whatever it is called. */
    bool whole;
    struct weight_file *files[WEIGHT_FILES_MAX];
    size_t n;
    struct weight *buckets[WEIGHT_BUCKETS]; /* in the program's arena */
};

/* The part of a name behind "@model_path/"; NULL if a component of it is not
 * plain, so that it could lead elsewhere. */
const char *weight_files_relative(const char *name);
/* Fits the readers of programs: `files` is a struct weight_files. */
const struct mil_data *weight_files_get(void *files, struct mil_program *p,
                                        const char *name, uint64_t offset,
                                        const struct mil_type *type,
                                        struct err *e);
/* Where a constant lies; false for one of other files. */
bool weight_files_place(const struct weight_files *w, const struct mil_data *d,
                        const char **name, uint64_t *offset);
/* Closes the files; the program must be gone, or no longer read. */
void weight_files_release(struct weight_files *w);

#endif
