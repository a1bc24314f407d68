/*
 * The oracle on moved weights; see gate_noise.h.
 */
#include "converter/gate_noise.h"

#include <math.h>
#include <string.h>

#include "converter/base/hash.h"
#include "converter/base/num.h"
#include "converter/gate_metrics.h"
#include "converter/gate_states.h"

/* Logits at a time. */
#define STEP_ELEMS ((size_t)1 << 22)

uint64_t gate_random(uint64_t *s)
{
    return num_mix(*s += NUM_GOLDEN);
}

float gate_noise_move(float x, double by)
{
    float power;
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits &= 0x7f800000u; /* the power of two below |x| */
    memcpy(&power, &bits, sizeof(power));
    power = power < 0x1p-14f ? 0x1p-14f : power; /* fp16's subnormals */
    return power <= 0x1p15f ? x + (float)(by * (double)power * 0x1p-10) : x;
}

/* Matrices of another source, moved. Vectors stay: norms, decays and biases
 * are not what a package rounds again and again. */
struct moved {
    const struct ckpt *ckpt;
    struct tensor_source under;
    uint64_t seed;
    double ulps;
};

static int moved_rows(void *cookie, const char *name, uint64_t row, uint64_t n,
                      float *dst, struct err *e)
{
    const struct moved *m = cookie;
    const struct need *need = ckpt_need(m->ckpt, name);
    uint64_t cols, at;

    if (m->under.rows(m->under.cookie, name, row, n, dst, e))
        return -1;
    if (!need || need->rank < 2)
        return 0;
    cols = need->dims[need->rank - 1];
    at = hash_bytes(need->name, strlen(need->name)).lo * m->seed + row * cols;
    for (uint64_t i = 0; i < n * cols; i++) {
        uint64_t s = at + i;
        double u = (double)(gate_random(&s) >> 11) * 0x1p-52 - 1; /* -1 ... 1 */

        dst[i] = gate_noise_move(dst[i], m->ulps * u);
    }
    return 0;
}

/* Two oracles side by side. */
struct noise {
    const struct gate_noise_job *j;
    struct oracle *moved;
    float *a, *b; /* [step, vocab] */
    size_t step;
    struct metrics m;
    double state;
    uint64_t done, total;
};

static void compare_rows(struct noise *x, size_t prompt, size_t at, size_t n)
{
    size_t v = (size_t)x->j->ckpt->hp.vocab;

    for (size_t i = 0; i < n; i++)
        metrics_add(&x->m, x->a + i * v, x->b + i * v, (int64_t)v,
                    (int64_t)prompt, (int64_t)(at + i), -1);
    x->done += n;
    log_progress(x->j->log, "noise of the model", x->done, x->total,
                 "positions");
}

static int feed_both(struct noise *x, size_t prompt, struct err *e)
{
    const int32_t *ids = x->j->prompts->ids[prompt];
    size_t n = x->j->prompts->lengths[prompt];
    struct oracle_out a = { .logits = x->a }, b = { .logits = x->b };

    if (oracle_reset(x->j->base, e) || oracle_reset(x->moved, e))
        return -1;
    for (size_t at = 0; at < n; at += x->step) {
        size_t m = n - at < x->step ? n - at : x->step;

        if (log_cancelled(x->j->log))
            return err_set(e, ERR_CANCELLED, "interrupted");
        if (oracle_feed(x->j->base, ids + at, m, &a, e) ||
            oracle_feed(x->moved, ids + at, m, &b, e))
            return err_in(e, "oracle on moved weights");
        compare_rows(x, prompt, at, m);
    }
    metrics_keep_max(&x->state, gate_states_between(x->j->base, x->moved));
    return 0;
}

static int feed_all(struct noise *x, struct err *e)
{
    const struct prompts *p = x->j->prompts;

    for (size_t i = 0; i < p->n; i++)
        x->total += p->lengths[i];
    for (size_t i = 0; i < p->n; i++)
        if (feed_both(x, i, e))
            return err_in(e, "prompt %zu", i);
    return 0;
}

static void keep_worst(struct noise *x, struct gate_noise *out)
{
    if (!out->draws++)
        *out = (struct gate_noise){ .draws = 1,
                                    .cosine_min = 1,
                                    .cosine_mean = 1,
                                    .psnr_min = INFINITY,
                                    .top1_agreement_decided = 1 };
    metrics_finish(&x->m);
    metrics_keep_min(&out->cosine_min, x->m.out.cosine_min);
    metrics_keep_min(&out->cosine_mean, x->m.out.cosine_mean);
    metrics_keep_max(&out->kl_mean, x->m.out.kl_mean);
    metrics_keep_min(&out->psnr_min, x->m.out.psnr_min);
    metrics_keep_min(&out->top1_agreement_decided,
                     x->m.out.top1_agreement_decided);
    metrics_keep_max(&out->relative_diff,
                     x->m.out.max_abs_diff / x->m.max_abs_logit);
    metrics_keep_max(&out->state, x->state);
}

int gate_noise_draw(const struct gate_noise_job *j, struct gate_noise *out,
                    struct err *e)
{
    struct moved moved = { .ckpt = j->ckpt,
                           .under = j->weights,
                           .seed = (uint64_t)out->draws + 1,
                           .ulps = j->ckpt->hp.experts ? GATE_NOISE_EXPERTS
                                                       : GATE_NOISE_ULPS };
    struct tensor_source s = { moved_rows, &moved };
    struct noise x = { .j = j };
    size_t v = (size_t)j->ckpt->hp.vocab;
    int rc = -1;

    metrics_init(&x.m);
    x.step = STEP_ELEMS / v + 1;
    x.a = mem_alloc(x.step * v, sizeof(float), e);
    x.b = mem_alloc(x.step * v, sizeof(float), e);
    if (x.a && x.b && (x.moved = oracle_new(&j->ckpt->hp, &s, &j->options, e)))
        rc = feed_all(&x, e);
    if (!rc)
        keep_worst(&x, out);
    oracle_free(x.moved);
    mem_free(x.a);
    mem_free(x.b);
    return rc;
}
