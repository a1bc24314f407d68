/*
 * The range of a model's values in fp16; see fp16_range.h. The reference
 * notes peaks while it computes (oracle_range.c); here they are judged.
 */
#include "models/fp16_range.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "models/models.h"
#include "models/oracle_priv.h"

#define F16_LEAST 0x1p-24
#define F16_LEAST_NORMAL 0x1p-14
#define F16_MOST 65504.0

double range_norm_eps(double eps, int stream_exp)
{
    double e = ldexp(eps, 2 * stream_exp);

    return e < F16_LEAST ? F16_LEAST : e;
}

/* ---- measuring ---- */

static size_t longest(const struct range_prompts *p)
{
    size_t n = 1;

    for (size_t i = 0; i < p->n; i++)
        n = p->lengths[i] > n ? p->lengths[i] : n;
    return n;
}

int range_measure(const struct hparams *hp, const struct tensor_source *src,
                  const struct range_prompts *p, struct par *par,
                  struct range_report *r, struct err *e)
{
    struct oracle_options opt = { .par = par,
                                  .max_positions = (int64_t)longest(p) };
    struct oracle *o = oracle_new(hp, src, &opt, e);
    int rc = o ? 0 : -1;

    memset(r, 0, sizeof(*r));
    r->least_square = INFINITY;
    for (int k = 0; k < RANGE_KINDS; k++)
        r->peak[k].layer = -1;
    if (o)
        o->range = r;
    for (size_t i = 0; i < p->n && !rc; i++) {
        rc = oracle_reset(o, e);
        if (!rc)
            rc = oracle_feed(o, p->ids[i], p->lengths[i], NULL, e);
        r->tokens += p->lengths[i];
    }
    oracle_free(o);
    return rc;
}

/* ---- judging ---- */

static const char *const kinds[RANGE_KINDS] = {
    [RANGE_STREAM] = "the residual stream",
    [RANGE_MATRIX] = "the output of a matrix",
    [RANGE_BRANCH] = "the output of a branch",
    [RANGE_PRODUCT] = "a product in the MLP",
    [RANGE_SCORE] = "an attention score",
};

/* "40123 in layer 14 (layers.14.mlp.up_proj.weight)" */
static void peak_text(const struct range_peak *p, char *out, size_t cap)
{
    char where[32] = "the embedding";

    if (p->layer >= 0)
        snprintf(where, sizeof(where), "layer %" PRId64, p->layer);
    snprintf(out, cap, "%.5g in %s%s%s%s", p->value, where,
             p->name[0] ? " (" : "", p->name, p->name[0] ? ")" : "");
}

/* The greatest of the kinds that are not the stream. */
static int greatest_other(const struct range_report *r)
{
    int best = RANGE_STREAM + 1;

    for (int k = best + 1; k < RANGE_KINDS; k++)
        best = r->peak[k].value > r->peak[best].value ? k : best;
    return best;
}

static void note_peaks(const struct range_report *r, struct buf *notes)
{
    int other = greatest_other(r);
    char stream[192], t[192];

    peak_text(&r->peak[RANGE_STREAM], stream, sizeof(stream));
    peak_text(&r->peak[other], t, sizeof(t));
    buf_printf(notes,
               "fp16 range on %" PRIu64
               " measured tokens: the residual stream reaches %s, of other "
               "values %s %s\n",
               r->tokens, stream, kinds[other], t);
}

/* Does this kind shrink with the stream? */
static bool follows_stream(const struct hparams *hp, int kind)
{
    return kind == RANGE_STREAM ||
           (kind == RANGE_BRANCH && !hp->arch->norms_branches);
}

static int judge_peak(const struct range_report *r, int kind, double value,
                      struct buf *notes, struct err *e)
{
    char t[192];

    if (value <= RANGE_WARN)
        return 0;
    peak_text(&r->peak[kind], t, sizeof(t));
    if (!(value <= F16_MOST))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s reaches %s on %" PRIu64
                       " measured tokens, beyond fp16 (65504), and no scale "
                       "of the graph brings it back",
                       kinds[kind], t, r->tokens);
    buf_printf(notes,
               "warning: %s reaches %s; other texts may leave fp16 (65504)\n",
               kinds[kind], t);
    return 0;
}

/* What scaling does to epsilon, where fp16 cannot follow. */
static void note_epsilon(const struct hparams *hp, const struct range_report *r,
                         int s, struct buf *notes)
{
    double exact = ldexp(hp->rms_eps, 2 * s);
    double square = ldexp(r->least_square, 2 * s);

    if (range_norm_eps(hp->rms_eps, s) == exact)
        return;
    buf_printf(notes,
               "epsilon %g of the stream's norms would be %g at this scale, "
               "below 2^-24, the least that fp16 holds: it is 2^-24, which "
               "changes the measured norms by at most %.1e\n",
               hp->rms_eps, exact, (F16_LEAST - exact) / (2 * square));
}

int range_norm_exp(const struct hparams *hp, const struct range_report *r)
{
    double most =
        r ? fmax(r->peak[RANGE_MATRIX].value, r->peak[RANGE_BRANCH].value) : 0;
    int k = 0;

    while (hp->arch->norms_branches && hp->rms_eps > 0 &&
           ldexp(hp->rms_eps, 2 * k) < F16_LEAST_NORMAL &&
           ldexp(most, k + 1) <= RANGE_STREAM_GOAL)
        k++;
    return k;
}

static void note_norms(const struct hparams *hp, const struct range_report *r,
                       struct buf *notes)
{
    int k = range_norm_exp(hp, r);

    if (k)
        buf_printf(notes,
                   "epsilon %g is no normal number of fp16: what norms read "
                   "from a matrix is computed times 2^%d, folded exactly into "
                   "the matrix, and their epsilon is %g\n",
                   hp->rms_eps, k, ldexp(hp->rms_eps, 2 * k));
}

int range_choose(const struct hparams *hp, const struct range_report *r,
                 int *stream_exp, struct buf *notes, struct err *e)
{
    double stream = 0;
    int s = 0;

    note_peaks(r, notes);
    for (int k = 0; k < RANGE_KINDS; k++)
        if (follows_stream(hp, k))
            stream = fmax(stream, r->peak[k].value);
    while (hp->arch->scales_stream && s > RANGE_LEAST_EXP &&
           ldexp(stream, s) > RANGE_STREAM_GOAL)
        s--;
    for (int k = 0; k < RANGE_KINDS; k++)
        if (judge_peak(r, k,
                       follows_stream(hp, k) ? ldexp(r->peak[k].value, s)
                                             : r->peak[k].value,
                       notes, e))
            return -1;
    *stream_exp = s;
    note_norms(hp, r, notes);
    if (!s)
        return buf_ok(notes, e);
    buf_printf(notes,
               "fp16 scale: the stream is computed times 2^%d, so that it "
               "reaches %.5g; folded exactly into embeddings, the ends of "
               "branches and epsilon\n",
               s, ldexp(stream, s));
    note_epsilon(hp, r, s, notes);
    return buf_ok(notes, e);
}

int range_check_exp(const struct hparams *hp, int stream_exp, struct err *e)
{
    if (stream_exp && !hp->arch->scales_stream)
        return err_set(e, ERR_USAGE,
                       "--fp16-scale: the graph of %s does not scale its "
                       "residual stream, only 1 is possible",
                       hp->arch->name);
    return 0;
}
