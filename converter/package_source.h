/*
 * The weights of a finished package, decoded from its bytes and unfolded, as
 * a tensor source for the oracle.
 */
#ifndef CONVERTER_PACKAGE_SOURCE_H
#define CONVERTER_PACKAGE_SOURCE_H

#include "converter/package_run.h"
#include "models/checkpoint.h"

struct package_source;
/* Uses the package's own list of sources (user metadata of each file), every
 * entry of which must fit the checkpoint's tensor of that name. A package
 * without one: ERR_UNSUPPORTED. `p` must outlive the result. */
struct package_source *package_source_open(const struct package *p,
                                           const struct ckpt *c,
                                           struct err *e) ATTR_MUST_USE;
/* The same of one file. */
struct package_source *package_source_of(const struct pkg *file,
                                         const struct ckpt *c,
                                         struct err *e) ATTR_MUST_USE;
void package_source_close(struct package_source *s);
struct tensor_source package_source_tensors(const struct package_source *s);
/* What one constant holds: rows [row, row + rows) of a checkpoint tensor, in
 * groups of rows with one table each if it is palettized. */
struct source_piece {
    const char *tensor, *name; /* of the checkpoint, of the program */
    uint64_t row, rows, cols;
    int scale_exp; /* the constant holds value * 2^scale_exp */
    /* Which rows: of each `block` rows `take` from `skip` on (0: all), and
     * `row` counts the chosen ones. wide: experts E of a stacked [E, H, I]
     * that is held as [H, E * I] (0: as it is). */
    uint64_t block, take, skip, wide;
    /* Folded before the power of two: (value + add) * factor, or -exp(value).
     * factor is never 0. */
    double add, factor;
    bool neg_exp;
    int bits;           /* 16: plain fp16 */
    bool linear;        /* integers times scales: */
    uint64_t per_scale; /* columns; 0: one scale for all */
    uint64_t groups;
    enum cv_method method;
};
/* One without pieces, of a file that has no list; each is added by itself.
 * `is` gives name, tensor, row, rows and scale_exp; the rest is filled in.
 * package_source_add fails where form or shape do not fit, or if the piece is
 * there already. */
struct package_source *package_source_empty(struct err *e) ATTR_MUST_USE;
int package_source_add(struct package_source *s, const struct mil_function *f,
                       const struct source_piece *is, const struct ckpt *c,
                       struct err *e) ATTR_MUST_USE;
void package_source_drop(struct package_source *s); /* the last piece */
/* Where element `el` of a piece lies in its tensor (flat index), and how many
 * from there on follow each other in both. */
uint64_t source_locate(const struct source_piece *p, uint64_t el,
                       uint64_t *run);
/* The folds, without the power of two, in double; and back. */
double source_fold(const struct source_piece *p, double v);
double source_unfold(const struct source_piece *p, double v);
size_t package_source_count(const struct package_source *s);
void package_source_at(const struct package_source *s, size_t i,
                       struct source_piece *out);
/* The piece that a constant is, by the constant's name; false: there is none,
 * or s is NULL. */
bool package_source_find(const struct package_source *s, const char *name,
                         size_t *i);
/* Elements [first, first + n) of piece i as the constant holds them, and the
 * 2^bits entries of one of its tables. Thread-safe. */
int package_source_values(const struct package_source *s, size_t i,
                          uint64_t first, uint64_t n, float *dst,
                          struct err *e) ATTR_MUST_USE;
int package_source_table(const struct package_source *s, size_t i,
                         uint64_t group, float *dst,
                         struct err *e) ATTR_MUST_USE;
/* The scale of element `el` of a linear piece. Thread-safe. */
int package_source_scale(const struct package_source *s, size_t i, uint64_t el,
                         float *scale, struct err *e) ATTR_MUST_USE;
/* 1 if any constant is palettized. */
int package_source_compressed(const struct package_source *s);
/* Whether constants hold values that folding rounded: 1 + w, w times a factor
 * that is no power of two. */
bool package_source_rounded(const struct package_source *s);
/* Narrowest width among palettized matrices; 16 if none. */
int package_source_bits(const struct package_source *s);

#endif
