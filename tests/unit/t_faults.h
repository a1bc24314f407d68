/*
 * Test helper: planted faults. Each is put alone into a scratch copy of a
 * finished package that passes, and must turn the verdict into FAIL, by a
 * check that has to do with it.
 */
#ifndef T_FAULTS_H
#define T_FAULTS_H

#include "t_gate.h"
#include "t_graph.h"

struct tf_fault {
    const char *name;
    enum cv_kind kind;
    int chunk;
    void (*plant)(struct mil_function *f);
    const char *in; /* the function; NULL: all */
    /* Checks that must fail, in the f32 profile, in the order of the list of
     * checks; the first gives the reason. */
    const char *caught;
};

/* Plants one (`arg`), for t_gate_edit. */
void tf_edit(struct mil_program *p, const void *arg);
/* The checks that a fault names have failed, the first as the reason. */
void tf_expect_checks(const struct tf_fault *x, const struct gate_result *r);
/* What caught it, for --verbose. */
void tf_tell(const struct tf_fault *x, const struct gate_result *r);
/* The copy fails in both profiles, by the checks that the fault names. */
void tf_judge(const struct t_gate *t, const struct tf_fault *x);
/* PASS in both profiles. */
void tf_honest(const struct t_gate *t, const char *dir);
/* The honest package passes, rewritten too; with each fault it fails. */
void tf_run(struct t_gate *t, const struct tf_fault *list, size_t n);
#define TF_RUN(t, list) tf_run(t, list, sizeof(list) / sizeof(list[0]))

/* What two constants hold, palettized or not. */
void tf_exchange(struct mil_function *f, const char *a, const char *b);
/* Later ops take b for a and a for b. */
void tf_cross(struct mil_function *f, mil_ref a, mil_ref b);
void tf_scale(struct mil_function *f, const char *name, float by);
void tf_fill(struct mil_function *f, const char *name, float v);
/* Row i becomes row i + 1, the last stays. */
void tf_rows_ahead(struct mil_function *f, const char *name);
/* An op's output is no longer used, its argument is. */
void tf_bypass(struct mil_function *f, struct mil_op *op, const char *param);

#endif
