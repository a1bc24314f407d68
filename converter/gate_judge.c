/*
 * Checks, limits, verdict.
 */
#include "converter/gate_judge.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "converter/gate_metrics.h"
#include "converter/package_run.h"

/* Single steps that a PASS of a recurrent package covers, if the context has
 * as many. */
#define DECODE_STEPS 256
/* The states of both calls, and of package and oracle. Where two experts are
 * almost equal, half precision may take the other one: then a token leaves
 * something else behind. */
#define STATE_F32 1e-3
#define STATE_HALF 5e-2
#define STATE_HALF_EXPERTS 0.5
/* Of the last quarter's error over the first's, or over what such a run has
 * anyhow. */
#define DRIFT 8.0
#define DRIFT_F32 1e-7
#define DRIFT_HALF 1e-3
#define DRIFT_HALF_EXPERTS 1e-2

static void check(struct gate_result *r, const char *name, double value,
                  bool at_least, double limit)
{
    struct gate_check *c = &r->checks[r->n_checks];

    BUG_UNLESS(r->n_checks < GATE_MAX_CHECKS);
    r->n_checks++;
    snprintf(c->name, sizeof(c->name), "%s", name);
    c->value = value;
    c->limit = limit;
    c->at_least = at_least;
    c->pass = at_least ? value >= limit : value <= limit; /* NaN fails */
}

/* ---- limits that a noisy model softens ---- */

static bool is_f32(const struct gate_result *r)
{
    return r->profile == RUN_F32;
}

/* The strict limit where it is met, else the noise's own figure if that is
 * weaker. */
static void soft_check(struct gate_result *r, const char *name, double value,
                       bool at_least, double strict, double noise)
{
    bool weaker = at_least ? noise < strict : noise > strict;
    bool met = at_least ? value >= strict : value <= strict;

    check(r, name, value, at_least,
          r->noise.draws && weaker && !met ? noise : strict);
}

/* The share of a distance that is left in this profile. */
static double share(const struct gate_result *r)
{
    return is_f32(r) ? 1 / GATE_NOISE_F32 : 1;
}

/* 1 - cosine is half the square of a distance. */
static double noisy_cosine(const struct gate_result *r)
{
    return 1 - (1 - r->noise.cosine_min) * share(r) * share(r);
}

static double noisy_psnr(const struct gate_result *r)
{
    return r->noise.psnr_min - 20 * log10(share(r));
}

/* Rows of embeddings: one or two roundings to fp16, which in the mean square
 * stay below 2^-11 each, and what the hardware flushes to zero; none in f32. */
#define EMBED_F32 1e-5
#define EMBED_FP16 1e-3
#define EMBED_ANE 1e-2

/* ---- groups of checks ---- */

/* What compression may cost, by the narrowest width: mean KL divergence in
 * nats and mean cosine of the logits. From measurements on the trained
 * checkpoints that docs/GATE.md lists; below 4 bits a model may lose anything
 * and only finite values are asked for. */
static void loss_limits(int bits, double *kl_mean, double *cosine_mean)
{
    *kl_mean = bits > 8    ? 0.01
               : bits == 8 ? 0.02
               : bits >= 6 ? 0.25
               : bits >= 4 ? 1.0
                           : 1e9;
    *cosine_mean = bits >= 8 ? 0.999 : bits >= 6 ? 0.97 : bits >= 4 ? 0.8 : -1;
}

static void judge_loss(struct gate_result *r)
{
    double kl, cosine;

    loss_limits(r->bits, &kl, &cosine);
    if (r->bits < 16) {
        check(r, "loss_kl_mean", r->loss.kl_mean, false, kl);
        check(r, "loss_cosine_mean", r->loss.cosine_mean, true, cosine);
        return;
    }
    /* The loss is that of rounding the weights once, less than they are moved
     * by to measure the noise. */
    soft_check(r, "loss_kl_mean", r->loss.kl_mean, false, kl, r->noise.kl_mean);
    soft_check(r, "loss_cosine_mean", r->loss.cosine_mean, true, cosine,
               r->noise.cosine_mean);
}

static void judge_bytes(struct gate_result *r)
{
    const struct gate_compare *b = &r->bytes;
    bool f32 = is_f32(r);

    check(r, "finite", b->finite ? 1 : 0, true, 1);
    soft_check(r, "cosine_min", b->cosine_min, true, f32 ? 0.99999 : 0.999,
               noisy_cosine(r));
    if (f32)
        soft_check(r, "psnr_min", b->psnr_min, true, 70, noisy_psnr(r));
    soft_check(r, "top1_agreement_decided", b->top1_agreement_decided, true, 1,
               f32 ? 1 : r->noise.top1_agreement_decided);
}

static void judge_passes(struct gate_result *r)
{
    double max = r->max_abs_logit > 0 ? r->max_abs_logit : 1;

    soft_check(r, "prefill_infer_relative_diff",
               r->prefill_infer_max_diff / max, false, is_f32(r) ? 1e-4 : 5e-3,
               r->noise.relative_diff * share(r));
}

static void judge_weights(struct gate_result *r)
{
    const struct gate_weights *w = &r->weights;

    check(r, "weights_missing", (double)w->missing, false, 0);
    check(r, "weights_differ", (double)w->differ, false, 0);
    if (!r->compressed)
        return;
    check(r, "weights_misplaced", (double)w->misplaced, false, 0);
    check(r, "weights_gain_error", w->gain_error, false, GATE_GAIN_ERROR);
    check(r, "weights_excess", w->excess, false, GATE_EXCESS);
}

static void judge_states(struct gate_result *r)
{
    double strict = is_f32(r)    ? STATE_F32
                    : r->experts ? STATE_HALF_EXPERTS
                                 : STATE_HALF;
    double noise = r->noise.state * share(r);
    double calls = 0, oracle = 0;
    bool known = false;

    for (int i = 0; i < r->n_states; i++) {
        metrics_keep_max(&calls, r->states[i].prefill_infer);
        metrics_keep_max(&oracle, r->states[i].oracle);
        known = known || r->states[i].known;
    }
    soft_check(r, "state_prefill_infer", calls, false, strict, noise);
    if (known)
        soft_check(r, "state_oracle", oracle, false, strict, noise);
}

static void judge_drift(struct gate_result *r)
{
    const struct gate_drift *d = &r->drift;
    double first = is_f32(r)    ? DRIFT_F32
                   : r->experts ? DRIFT_HALF_EXPERTS
                                : DRIFT_HALF;

    if (d->error[0] > first)
        first = d->error[0];

    if (d->positions)
        check(r, "drift", d->error[GATE_QUARTERS - 1] / first, false, DRIFT);
}

static void judge_recurrent(struct gate_result *r)
{
    int64_t steps = r->ctx < DECODE_STEPS ? r->ctx : DECODE_STEPS;

    check(r, "decode_steps", (double)r->decode_steps, true, (double)steps);
    judge_states(r);
    judge_drift(r);
}

/* ---- verdict ---- */

static void explain(struct gate_result *r, const struct gate_check *c)
{
    char v[NUM_TEXT_MAX], l[NUM_TEXT_MAX];
    size_t n;

    if (r->forms_differ[0]) {
        snprintf(r->reason, sizeof(r->reason), "%s", r->forms_differ);
        return;
    }
    num_text(v, c->value);
    num_text(l, c->limit);
    snprintf(r->reason, sizeof(r->reason), "%s is %s, %s %s is required",
             c->name, v, c->at_least ? "at least" : "at most", l);
    n = strlen(r->reason);
    if (!strncmp(c->name, "weights_", 8) && r->weights.first[0]) {
        snprintf(r->reason + n, sizeof(r->reason) - n, "; first in %s",
                 r->weights.first);
        n = strlen(r->reason);
    }
    if (r->bytes.diverged)
        snprintf(r->reason + n, sizeof(r->reason) - n,
                 "; first divergence in prompt %" PRId64 " at position %" PRId64
                 ": oracle token %" PRId64 ", package token %" PRId64
                 ", margin %.4g",
                 r->bytes.first.prompt, r->bytes.first.position,
                 r->bytes.first.oracle_token, r->bytes.first.package_token,
                 r->bytes.first.margin);
}

/* What keeps a run that failed nowhere from being a PASS. */
static const char *shortfall(const struct gate_result *r)
{
    if (!r->judged)
        return "no checkpoint to compare with (--hf DIR)";
    if (!r->crossed_batch && r->ctx > r->batch)
        return "no prompt crossed a batch border";
    if (!r->reached_end)
        return "no prompt reached the end of the context";
    return NULL;
}

static void decide(struct gate_result *r)
{
    const char *why = shortfall(r);

    r->reason[0] = '\0';
    r->verdict = why ? GATE_UNVERIFIED : GATE_PASS;
    if (why)
        snprintf(r->reason, sizeof(r->reason), "%s", why);
    for (int i = 0; i < r->n_checks; i++)
        if (!r->checks[i].pass) {
            r->verdict = GATE_FAIL;
            explain(r, &r->checks[i]);
            return;
        }
}

/* Both forms are one model, or there are no figures. */
static bool judge_forms(struct gate_result *r)
{
    bool differ = r->forms_differ[0];

    if (r->forms == (PACKAGE_COMPILED | PACKAGE_SOURCE))
        check(r, "forms_differ", differ ? 1 : 0, false, 0);
    return !differ;
}

void gate_judge(struct gate_result *r)
{
    r->n_checks = 0;
    if (!judge_forms(r)) {
        decide(r);
        return;
    }
    if (r->sourced)
        judge_weights(r);
    if (r->judged)
        judge_bytes(r);
    judge_passes(r);
    if (r->recurrent)
        judge_recurrent(r);
    if (r->judged && r->compressed)
        judge_loss(r);
    if (r->judged)
        check(r, "embeddings_distance", r->embeddings, false,
              is_f32(r)                ? EMBED_F32
              : r->profile == RUN_FP16 ? EMBED_FP16
                                       : EMBED_ANE);
    decide(r);
}

static bool is_soft(const struct gate_result *r, const struct gate_check *c)
{
    static const char *const names[] = {
        "cosine_min",
        "psnr_min",
        "top1_agreement_decided",
        "state_oracle",
        "state_prefill_infer",
        "prefill_infer_relative_diff",
    };

    if (c->value != c->value)
        return false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(c->name, names[i]))
            return true;
    return r->bits >= 16 && !strncmp(c->name, "loss_", 5);
}

/* Squares of distances. */
static bool is_hopeless(const struct gate_result *r)
{
    double noise = (1 - r->noise.cosine_min) * share(r) * share(r);

    return r->noise.draws && 1 - r->bytes.cosine_min > GATE_NOISE_HOPELESS *
                                                           GATE_NOISE_HOPELESS *
                                                           noise;
}

bool gate_judge_asks_noise(const struct gate_result *r)
{
    bool asks = false;

    if (!r->judged || r->noise.draws == GATE_NOISE_DRAWS || is_hopeless(r))
        return false;
    for (int i = 0; i < r->n_checks; i++) {
        if (!r->checks[i].pass && !is_soft(r, &r->checks[i]))
            return false;
        asks = asks || !r->checks[i].pass;
    }
    return asks;
}

/* Not the same in every profile, and not of the whole context. */
static bool is_joined(const struct gate_check *c)
{
    return strncmp(c->name, "weights_", 8) && strncmp(c->name, "loss_", 5) &&
           strcmp(c->name, "forms_differ") != 0 &&
           strcmp(c->name, "decode_steps") != 0;
}

void gate_judge_join(struct gate_result *r, const struct gate_result *f32)
{
    for (int i = 0; i < f32->n_checks; i++) {
        const struct gate_check *c = &f32->checks[i];
        char name[sizeof(c->name)];

        if (!is_joined(c))
            continue;
        snprintf(name, sizeof(name), "f32_%.59s", c->name);
        check(r, name, c->value, c->at_least, c->limit);
    }
    r->f32_positions = f32->positions;
    decide(r);
}
