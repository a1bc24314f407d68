/*
 * Cosine, PSNR, Kullback-Leibler divergence, top-1 and perplexity.
 */
#include "converter/gate_metrics.h"

#include <math.h>
#include <string.h>

void metrics_init(struct metrics *m)
{
    memset(m, 0, sizeof(*m));
    m->out.finite = true;
    m->out.cosine_min = 1;
    m->out.psnr_min = INFINITY;
}

struct best {
    int64_t token;
    double value, margin; /* to the second */
};

static struct best best_of(const float *x, int64_t n)
{
    struct best b = { 0, -INFINITY, 0 };
    double second = -INFINITY;

    for (int64_t i = 0; i < n; i++) {
        if ((double)x[i] > b.value) {
            second = b.value;
            b.value = (double)x[i];
            b.token = i;
        } else if ((double)x[i] > second) {
            second = (double)x[i];
        }
    }
    b.margin = b.value - second;
    return b;
}

/* ln sum exp(x), with the maximum given. */
static double log_sum_exp(const float *x, int64_t n, double max)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += exp((double)x[i] - max);
    return max + log(s);
}

/* sum p ln(p / q) of the two softmax distributions; never below 0 but for
 * rounding. */
static double divergence(const float *p, const float *q, int64_t n, double lp,
                         double lq)
{
    double kl = 0;

    for (int64_t i = 0; i < n; i++) {
        double a = (double)p[i] - lp;

        if (a > -80)
            kl += exp(a) * (a - ((double)q[i] - lq));
    }
    return kl > 0 || kl != kl ? kl : 0;
}

struct shape {
    double cosine, psnr, max_diff, max_abs;
    bool finite;
};

static struct shape compare(const float *a, const float *b, int64_t n)
{
    struct shape s = { 0, 0, 0, 0, true };
    double aa = 0, bb = 0, ab = 0, dd = 0;

    for (int64_t i = 0; i < n; i++) {
        double x = (double)a[i], y = (double)b[i], d = fabs(x - y);

        if (!isfinite(x) || !isfinite(y))
            s.finite = false;
        aa += x * x;
        bb += y * y;
        ab += x * y;
        dd += d * d;
        metrics_keep_max(&s.max_diff, d);
        if (fabs(x) > s.max_abs)
            s.max_abs = fabs(x);
    }
    s.cosine = ab / sqrt(aa * bb);
    s.psnr = 20 * log10(s.max_abs / sqrt(dd / (double)n));
    return s;
}

/* A comparison with NaN is false, whichever side it is on: the first test
 * keeps one that is there, the second lets a new one in. */
void metrics_keep_min(double *min, double v)
{
    if (*min == *min && !(v >= *min))
        *min = v;
}

void metrics_keep_max(double *max, double v)
{
    if (*max == *max && !(v <= *max))
        *max = v;
}

static void add_top(struct metrics *m, const struct best *o,
                    const struct best *p, int64_t prompt, int64_t position)
{
    bool same = o->token == p->token;

    m->same += same;
    if (o->margin >= GATE_DECIDED_MARGIN) {
        m->out.decided++;
        m->decided_same += same;
    }
    if (same || m->out.diverged)
        return;
    m->out.diverged = true;
    m->out.first = (struct gate_divergence){ prompt, position, o->token,
                                             p->token, o->margin };
}

void metrics_add(struct metrics *m, const float *oracle, const float *package,
                 int64_t vocab, int64_t prompt, int64_t position, int64_t next)
{
    struct shape s = compare(oracle, package, vocab);
    struct best o = best_of(oracle, vocab), p = best_of(package, vocab);
    double lo, lp, kl;

    m->out.positions++;
    m->out.finite = m->out.finite && s.finite;
    metrics_keep_min(&m->out.cosine_min, s.cosine);
    metrics_keep_min(&m->out.psnr_min, s.psnr);
    metrics_keep_max(&m->out.max_abs_diff, s.max_diff);
    metrics_keep_max(&m->max_abs_logit, s.max_abs);
    m->cosine_sum += s.cosine;
    lo = log_sum_exp(oracle, vocab, o.value);
    lp = log_sum_exp(package, vocab, p.value);
    kl = divergence(oracle, package, vocab, lo, lp);
    metrics_keep_max(&m->out.kl_max, kl);
    m->kl_sum += kl;
    add_top(m, &o, &p, prompt, position);
    if (next >= 0) {
        m->nll_positions++;
        m->nll_oracle += lo - (double)oracle[next];
        m->nll_package += lp - (double)package[next];
    }
}

double metrics_distance(const float *a, const float *b, int64_t n)
{
    double aa = 0, dd = 0;

    for (int64_t i = 0; i < n; i++) {
        double d = (double)b[i] - (double)a[i];

        aa += (double)a[i] * (double)a[i];
        dd += d * d;
    }
    return sqrt(dd / aa);
}

void metrics_finish(struct metrics *m)
{
    double n = (double)m->out.positions;

    if (!m->out.positions) /* extremes of nothing */
        m->out.cosine_min = m->out.psnr_min = m->out.kl_max =
            m->out.max_abs_diff = NAN;
    m->out.cosine_mean = m->cosine_sum / n;
    m->out.kl_mean = m->kl_sum / n;
    m->out.top1_agreement = (double)m->same / n;
    m->out.top1_agreement_decided =
        m->out.decided ? (double)m->decided_same / (double)m->out.decided : 1;
    m->out.perplexity_oracle = exp(m->nll_oracle / (double)m->nll_positions);
    m->out.perplexity_package = exp(m->nll_package / (double)m->nll_positions);
}
