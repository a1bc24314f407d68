/*
 * The whole product with several threads: a synthetic checkpoint is
 * converted, palettized and gated. For the thread sanitizer; the verdict
 * counts as well.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/converter.h"
#include "converter/gate.h"
#include "converter/synth.h"

struct verify {
    struct cv_job *job;
    struct par *par;
    enum gate_verdict verdict;
};

static int verify(void *cookie, const char *dir, bool *keep, struct err *e)
{
    struct verify *v = cookie;
    struct gate_options g = { .package = dir,
                              .ckpt = &v->job->ckpt,
                              .profile = RUN_FP16,
                              .par = v->par };
    struct gate_result r;

    *keep = true;
    if (gate_run(&g, &r, e))
        return -1;
    v->verdict = r.verdict;
    return 0;
}

static int convert(const char *model, const char *output, int threads,
                   struct err *e)
{
    struct par *par = par_new(threads, e);
    struct verify v = { .par = par, .verdict = GATE_FAIL };
    struct cv_verify hook = { verify, &v };
    struct cv_options o;
    struct cv_job j;
    int rc = -1;

    cv_options_init(&o);
    o.model = model;
    o.output = output;
    o.ctx = 64;
    o.batch = 32;
    o.chunks = 2;
    o.par = par;
    if (par && !cv_job_open(&j, &o, false, e)) {
        v.job = &j;
        rc = cv_convert(&j, &hook, e);
        if (!rc && v.verdict != GATE_PASS)
            rc = err_set(e, ERR_MISMATCH, "the gate says %s",
                         gate_verdict_name(v.verdict));
        cv_job_close(&j);
    }
    par_free(par);
    return rc;
}

int main(void)
{
    char dir[] = "anemll-threads-XXXXXX";
    struct err e = ERR_INIT;
    char *model = NULL, *out = NULL;
    int rc = 1;

    if (!mkdtemp(dir))
        return perror("mkdtemp"), 1;
    model = mem_printf(&e, "%s/model", dir);
    out = mem_printf(&e, "%s/out", dir);
    if (model && out &&
        !synth_checkpoint("qwen3", "tiny", 1, model, NULL, &e) &&
        !convert(model, out, 4, &e))
        rc = 0;
    else
        fprintf(stderr, "%s\n", e.text);
    mem_free(model);
    mem_free(out);
    err_reset(&e);
    if (io_remove_tree(dir, &e))
        fprintf(stderr, "%s\n", e.text);
    return rc;
}
