/*
 * Test helper: a small synthetic checkpoint, its converted package, and
 * scratch copies of the package in which faults are planted.
 */
#ifndef T_GATE_H
#define T_GATE_H

#include "converter/converter.h"
#include "converter/gate.h"

struct t_gate {
    char root[256], ck[300], honest[300], copy[300];
    char tokens[300]; /* prompts file; "" = the gate's own */
    struct ckpt ckpt;
};

struct t_gate_recipe {
    const char *arch, *like;      /* synthetic checkpoint */
    const char *lut;              /* NULL: "none" */
    int chunks;                   /* 0: 1 */
    int64_t ctx, batch;           /* 0: 64, 16 */
    void (*bend)(const char *ck); /* changes the checkpoint at first */
};
void t_gate_make(struct t_gate *t, const struct t_gate_recipe *recipe);
#define T_GATE_MAKE(t, ...) \
    t_gate_make(t, &(struct t_gate_recipe){ __VA_ARGS__ })
void t_gate_drop(struct t_gate *t);
/* For `bend`: multiplies a BF16 tensor; exact for powers of two. */
void t_gate_scale(const char *ck, const char *tensor, float by);

/* The copy is made anew, with links to the honest files. */
void t_gate_copy(struct t_gate *t);
/* Path of a part below `dir`; chunks count from 1. */
const char *t_gate_part(const struct t_gate *t, const char *dir,
                        enum cv_kind kind, int chunk);
/* Rewrites one part of the copy after `edit` had its program. */
void t_gate_edit(struct t_gate *t, enum cv_kind kind, int chunk,
                 void (*edit)(struct mil_program *p, const void *arg),
                 const void *arg);
/* Makes a part of the copy its own: no link. */
void t_gate_own(struct t_gate *t, enum cv_kind kind, int chunk);

/* Runs the gate; errors fail the test. */
enum gate_verdict t_gate_run(const struct t_gate *t, const char *dir,
                             enum run_profile profile, struct gate_result *r);
/* A check by name; NULL if it was not made. */
const struct gate_check *t_gate_check(const struct gate_result *r,
                                      const char *name);

#endif
