/*
 * Running planted faults; see t_fault.h.
 */
#include "t_fault.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

void t_fault_edit(struct mil_program *p, const void *arg)
{
    const struct t_fault *x = arg;

    for (size_t i = 0; i < p->n_functions; i++) {
        struct mil_function *f = p->functions[i];

        if (x->in && strcmp(x->in, f->name) != 0)
            continue;
        x->plant(f);
        tg_infer(f);
    }
}

void t_fault_checks(const struct t_fault *x, const struct gate_result *r)
{
    const char *s = x->caught;

    cr_expect(!strncmp(r->reason, s, strcspn(s, " ")),
              "%s: the reason is '%s', not %s", x->name, r->reason, s);
    while (*s) {
        char name[64];
        const struct gate_check *c;

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(s, " "), s);
        c = t_gate_check(r, name);
        cr_expect(c && !c->pass, "%s: %s passes", x->name, name);
        s += strlen(name);
        s += *s == ' ';
    }
}

void t_fault_tell(const struct t_fault *x, const struct gate_result *r)
{
    for (int i = 0; i < r->n_checks; i++)
        if (!r->checks[i].pass)
            cr_log_info("%s | %s | %s %.6g, %s %g", x->name,
                        run_profile_name(r->profile), r->checks[i].name,
                        r->checks[i].value,
                        r->checks[i].at_least ? "at least" : "at most",
                        r->checks[i].limit);
    if (r->verdict == GATE_PASS)
        cr_log_info("%s | %s | passes", x->name, run_profile_name(r->profile));
}

void t_fault_judge(const struct t_gate *t, const struct t_fault *x)
{
    struct gate_result r;

    t_gate_run(t, t->copy, RUN_F32, &r);
    t_fault_tell(x, &r);
    cr_expect_eq(r.verdict, GATE_FAIL, "%s passes in f32", x->name);
    t_fault_checks(x, &r);
    t_gate_run(t, t->copy, RUN_FP16, &r);
    t_fault_tell(x, &r);
    cr_expect_eq(r.verdict, GATE_FAIL, "%s passes in fp16", x->name);
}

void t_fault_honest(const struct t_gate *t, const char *dir)
{
    struct gate_result r;

    cr_assert_eq(t_gate_run(t, dir, RUN_F32, &r), GATE_PASS, "%s", r.reason);
    cr_assert_eq(t_gate_run(t, dir, RUN_FP16, &r), GATE_PASS, "%s", r.reason);
}

/* The honest package passes, rewritten too; with each fault it fails. */
void t_faults_run(struct t_gate *t, const struct t_fault *list, size_t n)
{
    t_fault_honest(t, t->honest);
    t_gate_copy(t);
    t_gate_own(t, CV_EMBEDDINGS, 0);
    t_gate_own(t, CV_CHUNK, 1);
    t_gate_own(t, CV_HEAD, 0);
    t_fault_honest(t, t->copy);
    for (size_t i = 0; i < n; i++) {
        t_gate_copy(t);
        t_gate_edit(t, list[i].kind, list[i].chunk, t_fault_edit, &list[i]);
        t_fault_judge(t, &list[i]);
    }
}

/* ---- pieces of faults ---- */

void tf_exchange(struct mil_function *f, const char *a, const char *b)
{
    mil_ref x = tg_named(f, a), y = tg_named(f, b);
    const struct mil_const *k = mil_value(f, x)->konst;
    struct mil_op *p = tg_maker(f, x), *q = tg_maker(f, y);

    mil_value(f, x)->konst = mil_value(f, y)->konst;
    mil_value(f, y)->konst = k;
    for (int i = 0; i < MIL_MAX_PARAMS; i++) {
        struct mil_arg arg = p->args[i];

        p->args[i] = q->args[i];
        q->args[i] = arg;
    }
}

void tf_cross(struct mil_function *f, mil_ref a, mil_ref b)
{
    int from = mil_value(f, a)->op, other = mil_value(f, b)->op;

    for (size_t i = (size_t)(from > other ? from : other) + 1; i < f->n_ops;
         i++) {
        const struct mil_op_info *info = mil_op_info(f->ops[i].code);

        for (int p = 0; p < info->n_params; p++)
            for (uint32_t k = 0; k < f->ops[i].args[p].n; k++) {
                mil_ref r = f->ops[i].args[p].refs[k];

                if (r == a || r == b)
                    tg_set(f, &f->ops[i], info->params[p].name, (int)k,
                           r == a ? b : a);
            }
    }
}

void tf_scale(struct mil_function *f, const char *name, float by)
{
    size_t n;
    float *x = tg_floats(f, tg_named(f, name), &n);

    for (size_t i = 0; i < n; i++)
        x[i] *= by;
    tg_put(f, tg_named(f, name), x);
}

void tf_fill(struct mil_function *f, const char *name, float v)
{
    size_t n;
    float *x = tg_floats(f, tg_named(f, name), &n);

    for (size_t i = 0; i < n; i++)
        x[i] = v;
    tg_put(f, tg_named(f, name), x);
}

void tf_bypass(struct mil_function *f, struct mil_op *op, const char *param)
{
    mil_ref out = op->outs[0], in = tg_arg(op, param, 0);

    tg_replace(f, out, in);
}
