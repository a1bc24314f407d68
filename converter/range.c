/*
 * The scale of the residual stream: given by the user, or chosen from what the
 * reference reaches on a few tokens. A pass over 32 tokens reads every layer's
 * weights once and holds one block of rows; the gate reads them far more
 * often.
 */
#include <math.h>
#include <string.h>

#include "converter/converter.h"
#include "converter/gate.h"
#include "converter/program_priv.h"
#include "models/fp16_range.h"
#include "models/weights.h"

#define OWN_TOKENS 32   /* of the prompt that every model is measured with */
#define USER_TOKENS 64  /* of the user's first prompt */
#define ID_STRIDE 7919u /* prime: ids all over the vocabulary */

int cv_scale_parse(const char *text, struct cv_options *o, struct err *e)
{
    double v;
    int exp;

    if (!strcmp(text, "auto")) {
        o->scale_given = false;
        return 0;
    }
    if (!num_parse_double(text, strlen(text), &v) || !(v > 0) ||
        frexp(v, &exp) != 0.5 || exp - 1 > 0 || exp - 1 < RANGE_LEAST_EXP)
        return err_set(e, ERR_USAGE,
                       "--fp16-scale '%s' is neither auto nor a power of two "
                       "from 2^%d to 1, which is folded without rounding "
                       "(0.5, 0.25, 0.125, ...)",
                       text, RANGE_LEAST_EXP);
    o->scale_given = true;
    o->stream_exp = exp - 1;
    return 0;
}

/* The beginning of a text, which reaches furthest, then ids of all kinds. */
static void own_prompt(const struct hparams *hp, int32_t ids[OWN_TOKENS])
{
    for (uint32_t i = 0; i < OWN_TOKENS; i++)
        ids[i] = (int32_t)((uint64_t)(i + 1) * ID_STRIDE % (uint64_t)hp->vocab);
    if (hp->bos >= 0)
        ids[0] = (int32_t)hp->bos;
}

static int measure(struct cv_job *j, const struct prompts *user,
                   struct range_report *r, struct err *e)
{
    struct tensor_source src = ckpt_source(&j->ckpt);
    int32_t own[OWN_TOKENS];
    const int32_t *ids[2] = { own };
    size_t lengths[2] = { OWN_TOKENS };
    struct range_prompts p = { .ids = ids, .lengths = lengths, .n = 1 };

    own_prompt(&j->ckpt.hp, own);
    if (user->n) {
        ids[p.n] = user->ids[0];
        lengths[p.n++] =
            user->lengths[0] < USER_TOKENS ? user->lengths[0] : USER_TOKENS;
    }
    return range_measure(&j->ckpt.hp, &src, &p, j->opt.par, r, e);
}

/* Weights that are not finite, or beyond fp16 themselves, are the better
 * reason for values that are. */
static int judge(struct cv_job *j, const struct range_report *r, struct err *e)
{
    struct err why = ERR_INIT;

    j->norm_exp = range_norm_exp(&j->ckpt.hp, r);
    if (!range_choose(&j->ckpt.hp, r, &j->stream_exp, &j->notes, &why))
        return 0;
    if (weights_check(&j->ckpt, e))
        return err_in(e, "'%s'", j->opt.model);
    err_copy(e, &why);
    return err_in(e, "fp16 range");
}

int cv_choose_scale(struct cv_job *j, struct err *e)
{
    struct prompts user = { 0 };
    struct range_report r;
    int rc = -1;

    if (j->opt.scale_given)
        return 0;
    log_debug(j->opt.log, "measuring the range of the residual stream");
    if ((!j->opt.tokens ||
         !prompts_read(&user, j->opt.tokens, j->ckpt.hp.vocab, e)) &&
        !measure(j, &user, &r, e))
        rc = judge(j, &r, e);
    prompts_release(&user);
    return rc;
}
