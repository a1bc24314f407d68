/*
 * Matrices of the graph that are stored in another form than fp16, and the
 * constants that replace them.
 */
#ifndef CONVERTER_MATRIX_PRIV_H
#define CONVERTER_MATRIX_PRIV_H

#include "converter/cache.h"
#include "converter/converter.h"
#include "models/weights.h"
#include "quant/linear.h"

/* Bytes are computed while they are read. The palette holds all of the
 * matrix's tables, and a part has hundreds of matrices: it is there from the
 * first read to the last of the tables, which a writer asks for behind the
 * indices. */
struct cv_matrix {
    const struct mil_data *source;
    const char *name;    /* of the constant in the program */
    struct cv_lut asked; /* with the group as it was asked for */
    struct cv_lut lut;   /* as it is stored */
    bool pinned;         /* by a recipe */
    bool measuring;      /* sizes are asked for, not values */
    enum cv_method method;
    struct cv_job *job;
    struct qz_source rows;
    struct qz_palette *palette;
    struct qz_linear *linear;
    struct cache_found *found; /* while it is read; NULL: not in the cache */
    struct cache_fresh *fresh; /* while it is made for the cache */
    struct qz_stats stats;     /* once everything was read */
    struct mil_data indices, tables; /* or integers and scales */
};
/* A matrix that stays fp16: by its part's option, or by a recipe. */
struct cv_kept {
    const struct mil_data *source;
    bool pinned;
};
struct cv_matrices {
    struct cv_matrix **items;
    size_t n, cap;
    struct cv_kept *kept;
    size_t n_kept, cap_kept;
};

/* Of the matrices of one role. */
enum cv_method cv_method_for(const struct cv_job *j, enum mil_role role);
/* The matrix behind constant `d` of the graph: the same for both functions.
 * What cannot be stored as asked is told here, before anything is written. */
struct cv_matrix *cv_matrix_for(struct cv_job *j, struct cv_part *part,
                                struct cv_matrices *ms, const char *name,
                                const struct mil_data *d,
                                const struct cv_lut *lut,
                                struct err *e) ATTR_MUST_USE;
int cv_matrix_keep(struct cv_matrices *ms, const struct mil_data *d,
                   bool pinned, struct err *e) ATTR_MUST_USE;
void cv_matrices_clear(struct cv_matrices *ms); /* the content */
void cv_matrices_free(struct cv_matrices *ms);

/*
 * matrix_cache.c: the bytes of `indices`, then those of `tables`, are one
 * content of the cache. Without a cache these do nothing.
 */
/* Hashes the source and looks for it. */
int matrix_cache_open(struct cv_matrix *m, struct err *e) ATTR_MUST_USE;
/* 1: read, and at the end the figures set; 0: not there. */
int matrix_cache_read(struct cv_matrix *m, uint64_t at, void *dst, size_t n,
                      struct err *e) ATTR_MUST_USE;
/* What was clustered, front to back; the entry is dropped else. */
void matrix_cache_add(struct cv_matrix *m, uint64_t at, const void *p,
                      size_t n);
void matrix_cache_commit(struct cv_matrix *m); /* all is there, figures too */
void matrix_cache_close(struct cv_matrix *m);

#endif
