/*
 * How the tensors of a Qwen3.5 checkpoint were written. Names do not tell:
 * MLX keeps them, adds 1 to every norm but the recurrent one and turns the
 * convolutions; other tools do only the first. Taking 1 + w once more or
 * once less gives fluent nonsense, so convolutions and norms must tell one
 * story: that of the published files. Everything else is refused with what
 * was found; nothing is converted back, the sum was rounded.
 */
#include "models/hp_hybrid_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/mem.h"

/* Between weights around 0, to which 1 is added, and weights around 1. */
#define SHIFTED 0.5

struct story {
    size_t published, turned; /* convolutions [C, 1, K], [C, K, 1] */
    double *means;            /* of the norms, sorted */
    size_t n;
    double median;
};

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && !strcmp(s + n - m, end);
}

/* The norms of stream and heads; the recurrent one multiplies by w. */
static bool is_shiftable(const struct need *n)
{
    return n->rank == 1 && ends_with(n->name, "norm.weight") &&
           !ends_with(n->name, "linear_attn.norm.weight");
}

static int mean_of(const struct ckpt *c, const struct need *n, double *out,
                   struct err *e)
{
    size_t count = (size_t)n->tensor->elems;
    float *v = mem_alloc(count, sizeof *v, e);
    double sum = 0;

    if (!v)
        return -1;
    if (st_read_f32(c->st, n->tensor, 0, count, v, e)) {
        mem_free(v);
        return -1;
    }
    for (size_t i = 0; i < count; i++)
        sum += (double)v[i];
    mem_free(v);
    *out = sum / (double)count;
    return 0;
}

/* Convolutions of neither form and norms of another size are for the ledger
 * to complain of. */
static int gather(const struct ckpt *c, struct story *s, struct err *e)
{
    uint64_t taps = (uint64_t)c->hp.conv_kernel;

    for (size_t i = 0; i < c->ledger.n; i++) {
        const struct need *n = &c->ledger.needs[i];
        const struct st_tensor *t = n->tensor;

        if (!t)
            continue;
        if (ends_with(n->name, "conv1d.weight") && t->rank == 3) {
            s->published += t->dims[1] == 1 && t->dims[2] == taps;
            s->turned += t->dims[1] == taps && t->dims[2] == 1;
        } else if (is_shiftable(n) && t->rank == 1 &&
                   t->dims[0] == n->dims[0] && st_dtype_is_plain(t->dtype)) {
            if (mean_of(c, n, &s->means[s->n], e))
                return -1;
            /* Not a number says nothing here; values are judged later. */
            s->n += isfinite(s->means[s->n]) != 0;
        }
    }
    return 0;
}

static int by_value(const void *pa, const void *pb)
{
    const double *a = pa, *b = pb;

    return (*a > *b) - (*a < *b);
}

static int refuse_story(const struct story *s, struct err *e)
{
    bool shifted = s->median >= SHIFTED;
    const char *what;

    if (s->turned && s->published)
        what = "its convolutions are written in two ways";
    else if (s->turned && shifted)
        what = "it is in MLX layout";
    else if (s->turned)
        what = "its convolutions are written as MLX does, its norms are not";
    else
        what = "1 was added to its norms already";
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: %zu convolutions are [channels, 1, taps] as "
                   "published, %zu [channels, taps, 1] as MLX turns them, and "
                   "the means of %zu norms run from %.3f to %.3f with median "
                   "%.3f (around 0 as published, around 1 where 1 was added): "
                   "use the original checkpoint",
                   what, s->published, s->turned, s->n, s->means[0],
                   s->means[s->n - 1], s->median);
}

static int judge_story(struct ckpt *c, struct story *s, struct err *e)
{
    if (gather(c, s, e))
        return -1;
    /* Without norms, or without convolutions, it is another model: the ledger
     * has more to say. */
    if (!s->n || s->published + s->turned == 0)
        return 0;
    qsort(s->means, s->n, sizeof *s->means, by_value);
    s->median = s->means[s->n / 2];
    if (s->turned || s->median >= SHIFTED)
        return refuse_story(s, e);
    buf_printf(&c->notes,
               "norms are zero-centred as published: means of %zu run from "
               "%.3f to %.3f, median %.3f\n",
               s->n, s->means[0], s->means[s->n - 1], s->median);
    return 0;
}

/* Names under which other tools keep other arrangements. */
static int judge_names(const struct ckpt *c, struct err *e)
{
    static const struct {
        const char *part, *what;
    } foreign[] = {
        { ".in_proj_qkvz.", "the linear projections are packed per key head, "
                            "as Qwen3-Next has them" },
        { ".in_proj_ba.", "the linear projections are packed per key head, as "
                          "Qwen3-Next has them" },
        { ".switch_mlp.", "it is in MLX layout" },
    };

    for (size_t i = 0; i < st_count(c->st); i++)
        for (size_t k = 0; k < sizeof foreign / sizeof *foreign; k++)
            if (strstr(st_at(c->st, i)->name, foreign[k].part))
                return err_set(e, ERR_UNSUPPORTED,
                               "%s (tensor '%.200s'): use the original "
                               "checkpoint of a Qwen3.5 model",
                               foreign[k].what, st_at(c->st, i)->name);
    return 0;
}

int layout_hybrid(struct ckpt *c, struct err *e)
{
    struct story s = { 0 };
    int rc;

    if (judge_names(c, e))
        return -1;
    s.means = mem_alloc(c->ledger.n, sizeof *s.means, e);
    rc = s.means ? judge_story(c, &s, e) : -1;
    mem_free(s.means);
    return rc;
}
