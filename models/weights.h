/*
 * Checkpoint tensors as constants of a program: row ranges, fp16 conversion,
 * exact folds of powers of two, value checks. Nothing is held in memory; each
 * read streams from the checkpoint.
 */
#ifndef MODELS_WEIGHTS_H
#define MODELS_WEIGHTS_H

#include "mil/mil.h"
#include "models/checkpoint.h"

struct weights;

/* `c` must outlive the result and every program built with it. A checkpoint
 * without weights (planning) gives constants with types but no bytes. */
struct weights *weights_new(const struct ckpt *c, struct err *e) ATTR_MUST_USE;
void weights_free(struct weights *w);

struct weight_spec {
    const char *tensor; /* canonical name */
    enum mil_role role;
    uint64_t row, rows; /* of axis 0; rows 0 = all */
    int scale_exp;      /* folded: value * 2^scale_exp */
    bool conv;          /* matrices as [out, in, 1, 1], [C, 1, K] as
                           [C, 1, 1, K] */
    /* Which rows: of each `block` rows, `take` from `skip` on; 0 = all. */
    uint64_t block, take, skip;
    /* Stacked [E, H, I] as the wide [H, E * I]. */
    bool wide;
    /* Folded in double and rounded once: (value + add) * factor (0 = 1), or
     * -exp(value). */
    double add, factor;
    bool neg_exp;
    /* Shape of the constant if not the tensor's; rank 0 = by the above. */
    int rank;
    int64_t dims[4];
};
/* One mil_data per distinct spec: both functions of a chunk get the same. */
const struct mil_data *weights_get(struct weights *w,
                                   const struct weight_spec *s,
                                   struct err *e) ATTR_MUST_USE;

/* cos (is_sin false) or sin rows [rows, dim] for positions 0 .. rows - 1,
 * fp16, both halves of a row equal (rotate-half), times `scale`. Frequencies
 * and angles are float32, as transformers has them, by arithmetic that is the
 * same on every machine. `rope` is one of the checkpoint's hyper-parameters. */
const struct mil_data *weights_rope(struct weights *w,
                                    const struct rope_params *rope,
                                    uint64_t rows, bool is_sin, double scale,
                                    struct err *e) ATTR_MUST_USE;

/* Reads every needed tensor: one that holds values that are not finite or
 * beyond fp16 is told with the first one's place, as reading a constant
 * tells. */
int weights_check(const struct ckpt *c, struct err *e) ATTR_MUST_USE;

/* For palettization: the bit patterns as stored (F32: rounded to fp16),
 * unscaled. NULL if the data is no checkpoint matrix. */
struct weight_raw {
    uint64_t rows, cols;
    bool is_bf16; /* else fp16 */
    int scale_exp;
    const char *tensor; /* name in the checkpoint */
};
bool weights_raw(const struct mil_data *d, struct weight_raw *out);
int weights_raw_rows(const struct mil_data *d, uint64_t row, uint64_t n,
                     uint16_t *dst, struct err *e) ATTR_MUST_USE;
/* Puts the checkpoint's folder in front of an error about values of such a
 * constant; the text is then whole. Reading does the same. Returns -1. */
int weights_error(const struct mil_data *d, struct err *e);

/* The tensor behind a constant for which weights_raw() is true; where element
 * `el` of the constant lies in it (flat index), and how many from there on
 * follow each other in both. */
const struct need *weights_need(const struct mil_data *d);
uint64_t weights_place(const struct mil_data *d, uint64_t el, uint64_t *run);

/* Frequencies of a RoPE setting: inv_freq[0 .. dim/2 - 1], every step rounded
 * to float32 as in transformers' modeling_rope_utils. */
int rope_frequencies(const struct rope_params *r, float *inv_freq,
                     struct err *e) ATTR_MUST_USE;

#endif
