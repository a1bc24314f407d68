/*
 * The gate's result as JSON, as gate.json of a package, and for people.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/gate.h"
#include "converter/package_run.h"

const char *gate_verdict_name(enum gate_verdict v)
{
    return v == GATE_PASS ? "PASS" : v == GATE_FAIL ? "FAIL" : "UNVERIFIED";
}

/* Identical rows have an infinite ratio, which JSON cannot say. */
static double psnr(double v)
{
    return v > 999 ? 999 : v;
}

static void divergence_json(const struct gate_compare *c, struct js_writer *w)
{
    if (!c->diverged) {
        js_w_null(w, "first_divergence");
        return;
    }
    js_w_object(w, "first_divergence");
    js_w_int(w, "prompt", c->first.prompt);
    js_w_int(w, "position", c->first.position);
    js_w_int(w, "oracle_token", c->first.oracle_token);
    js_w_int(w, "package_token", c->first.package_token);
    js_w_double(w, "margin", c->first.margin);
    js_w_end(w);
}

static void compare_json(const struct gate_compare *c, struct js_writer *w)
{
    js_w_double(w, "cosine_min", c->cosine_min);
    js_w_double(w, "cosine_mean", c->cosine_mean);
    js_w_double(w, "psnr_min", psnr(c->psnr_min));
    js_w_double(w, "kl_mean", c->kl_mean);
    js_w_double(w, "kl_max", c->kl_max);
    js_w_double(w, "top1_agreement", c->top1_agreement);
    js_w_double(w, "top1_agreement_decided", c->top1_agreement_decided);
    js_w_double(w, "max_abs_diff", c->max_abs_diff);
    js_w_object(w, "perplexity");
    js_w_double(w, "oracle", c->perplexity_oracle);
    js_w_double(w, "package", c->perplexity_package);
    js_w_end(w);
    divergence_json(c, w);
}

static void forms_json(unsigned forms, struct js_writer *w)
{
    js_w_array(w, "forms", true);
    if (forms & PACKAGE_COMPILED)
        js_w_string(w, NULL, "mlmodelc");
    if (forms & PACKAGE_SOURCE)
        js_w_string(w, NULL, "mlpackage");
    js_w_end(w);
}

static void checks_json(const struct gate_result *r, struct js_writer *w)
{
    js_w_array(w, "checks", false);
    for (int i = 0; i < r->n_checks; i++) {
        const struct gate_check *c = &r->checks[i];

        js_w_object(w, NULL);
        js_w_string(w, "name", c->name);
        js_w_double(w, "value", c->value);
        js_w_string(w, "compare", c->at_least ? ">=" : "<=");
        js_w_double(w, "limit", c->limit);
        js_w_bool(w, "pass", c->pass);
        js_w_end(w);
    }
    js_w_end(w);
}

static void states_json(const struct gate_result *r, struct js_writer *w)
{
    js_w_array(w, "states", false);
    for (int i = 0; i < r->n_states; i++) {
        const struct gate_state *s = &r->states[i];

        js_w_object(w, NULL);
        js_w_string(w, "name", s->name);
        js_w_double(w, "prefill_infer", s->prefill_infer);
        if (s->known)
            js_w_double(w, "oracle", s->oracle);
        else
            js_w_null(w, "oracle");
        js_w_end(w);
    }
    js_w_end(w);
}

static void drift_json(const struct gate_drift *d, struct js_writer *w)
{
    js_w_array(w, "drift", true);
    for (int i = 0; i < GATE_QUARTERS && d->positions; i++)
        js_w_double(w, NULL, d->error[i]);
    js_w_end(w);
}

static void noise_json(const struct gate_noise *n, struct js_writer *w)
{
    if (!n->draws) {
        js_w_null(w, "noise");
        return;
    }
    js_w_object(w, "noise");
    js_w_int(w, "draws", n->draws);
    js_w_double(w, "cosine_min", n->cosine_min);
    js_w_double(w, "cosine_mean", n->cosine_mean);
    js_w_double(w, "kl_mean", n->kl_mean);
    js_w_double(w, "psnr_min", psnr(n->psnr_min));
    js_w_double(w, "top1_agreement_decided", n->top1_agreement_decided);
    js_w_double(w, "relative_diff", n->relative_diff);
    js_w_double(w, "state", n->state);
    js_w_end(w);
}

void gate_json_members(const struct gate_result *r, struct js_writer *w)
{
    js_w_uint(w, "schema", 1);
    js_w_string(w, "verdict", gate_verdict_name(r->verdict));
    if (r->reason[0])
        js_w_string(w, "reason", r->reason);
    forms_json(r->forms, w);
    js_w_string(w, "profile", run_profile_name(r->profile));
    js_w_uint(w, "prompts", r->prompts);
    js_w_uint(w, "positions", r->positions);
    js_w_bool(w, "crossed_batch", r->crossed_batch);
    js_w_bool(w, "reached_end", r->reached_end);
    compare_json(&r->loss, w);
    js_w_double(w, "prefill_infer_max_diff", r->prefill_infer_max_diff);
    js_w_double(w, "max_abs_logit", r->max_abs_logit);
    js_w_bool(w, "compressed", r->compressed);
    js_w_object(w, "bytes");
    compare_json(&r->bytes, w);
    js_w_end(w);
    js_w_object(w, "loss");
    compare_json(&r->loss, w);
    js_w_end(w);
    js_w_uint(w, "f32_positions", r->f32_positions);
    js_w_uint(w, "decode_steps", r->decode_steps);
    drift_json(&r->drift, w);
    states_json(r, w);
    noise_json(&r->noise, w);
    checks_json(r, w);
}

void gate_json(const struct gate_result *r, struct js_writer *w,
               const char *key)
{
    js_w_object(w, key);
    gate_json_members(r, w);
    js_w_end(w);
}

/* Written beside and renamed, so that a reader never sees half of it. */
int gate_write(const char *package, const struct gate_result *r, struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;
    char *path = io_join(package, "gate.json", e);
    char *part = mem_printf(e, "%s/.gate.json.%ld", package, (long)getpid());
    int rc = -1;

    js_w_init(&w, &b);
    gate_json(r, &w, NULL);
    buf_puts(&b, "\n");
    if (path && part && !buf_ok(&b, e) && !io_remove_tree(part, e) &&
        !io_write_file(part, b.data, b.len, e)) {
        rc = rename(part, path)
                 ? err_sys(e, errno, "cannot rename '%s' to '%s'", part, path)
                 : 0;
        if (rc)
            unlink(part);
    }
    buf_release(&b);
    mem_free(path);
    mem_free(part);
    return rc;
}

static void compare_text(const char *what, const struct gate_compare *c,
                         struct buf *out)
{
    buf_printf(out,
               "  %s: cosine min %.7f mean %.7f, PSNR min %.1f dB, KL mean "
               "%.3g max %.3g,\n    top-1 %.2f %% (decided %.2f %%), "
               "perplexity %.4g against %.4g\n",
               what, c->cosine_min, c->cosine_mean, psnr(c->psnr_min),
               c->kl_mean, c->kl_max, 100 * c->top1_agreement,
               100 * c->top1_agreement_decided, c->perplexity_package,
               c->perplexity_oracle);
}

static void recurrent_text(const struct gate_result *r, struct buf *out)
{
    const double *e = r->drift.error;

    for (int i = 0; i < r->n_states; i++) {
        const struct gate_state *s = &r->states[i];

        buf_printf(out, "  state %s: prefill against infer %.2g", s->name,
                   s->prefill_infer);
        if (s->known)
            buf_printf(out, ", against the oracle %.2g", s->oracle);
        buf_puts(out, "\n");
    }
    if (r->drift.positions)
        buf_printf(out,
                   "  drift: error by quarter of the context %.2g, %.2g, "
                   "%.2g, %.2g\n",
                   e[0], e[1], e[2], e[3]);
}

static void noise_text(const struct gate_noise *n, struct buf *out)
{
    buf_printf(out,
               "  the model itself, with weights moved in the last place: "
               "cosine min %.7f,\n    PSNR min %.1f dB, decided top-1 "
               "%.2f %% (limits that were missed are judged by this)\n",
               n->cosine_min, psnr(n->psnr_min),
               100 * n->top1_agreement_decided);
}

void gate_text(const struct gate_result *r, struct buf *out)
{
    buf_printf(out, "%s (%s, %" PRIu64 " prompts, %" PRIu64 " positions)%s%s\n",
               gate_verdict_name(r->verdict), run_profile_name(r->profile),
               r->prompts, r->positions, r->reason[0] ? ": " : "", r->reason);
    if (r->forms_differ[0])
        return;
    if (r->forms == (PACKAGE_COMPILED | PACKAGE_SOURCE))
        buf_puts(out, "  both forms, .mlmodelc and .mlpackage, are one model "
                      "to the bit\n");
    if (r->loss.positions && r->compressed)
        compare_text("bytes (against the package's own weights)", &r->bytes,
                     out);
    if (r->loss.positions)
        compare_text(r->compressed ? "loss (against the checkpoint)"
                                   : "against the checkpoint",
                     &r->loss, out);
    buf_printf(out, "  prefill against infer: max difference %.3g\n",
               r->prefill_infer_max_diff);
    if (r->recurrent)
        recurrent_text(r, out);
    if (r->noise.draws)
        noise_text(&r->noise, out);
}
