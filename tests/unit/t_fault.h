/*
 * Test helper: planted faults. Each is put alone into a scratch copy of a
 * finished package that passes, and must turn the verdict into FAIL, by a
 * check that has to do with it. Run a suite with --verbose for the table of
 * what caught what.
 */
#ifndef T_FAULT_H
#define T_FAULT_H

#include "t_gate.h"
#include "t_graph.h"

struct t_fault {
    const char *name;
    enum cv_kind kind;
    int chunk;
    void (*plant)(struct mil_function *f);
    const char *in; /* the function; NULL: all */
    /* Checks that must fail, in the f32 profile, in the order of the list of
     * checks; the first gives the reason. */
    const char *caught;
};

/* For t_gate_edit, with a fault as its argument. */
void t_fault_edit(struct mil_program *p, const void *fault);
/* The honest package passes in both profiles. */
void t_fault_honest(const struct t_gate *t, const char *dir);
/* The copy, with the fault in it, fails in both, by the checks named. */
void t_fault_judge(const struct t_gate *t, const struct t_fault *x);
void t_fault_checks(const struct t_fault *x, const struct gate_result *r);
void t_fault_tell(const struct t_fault *x, const struct gate_result *r);
/* The honest package passes, rewritten too; with each fault it fails. */
void t_faults_run(struct t_gate *t, const struct t_fault *list, size_t n);
#define T_FAULTS_RUN(t, list) \
    t_faults_run(t, list, sizeof(list) / sizeof(list[0]))

/* ---- pieces of faults ---- */

/* What two constants hold, palettized or not. */
void tf_exchange(struct mil_function *f, const char *a, const char *b);
/* Later ops take b for a and a for b. */
void tf_cross(struct mil_function *f, mil_ref a, mil_ref b);
/* All values of a constant, multiplied or set. */
void tf_scale(struct mil_function *f, const char *name, float by);
void tf_fill(struct mil_function *f, const char *name, float v);
/* An op's output is no longer used, its argument is. */
void tf_bypass(struct mil_function *f, struct mil_op *op, const char *param);

#endif
