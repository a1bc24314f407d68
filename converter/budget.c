/*
 * Widths under a budget.
 *
 * Each matrix of the layers and of the LM head is clustered at every width
 * that may be used; what a tensor loses at a width is its squared error over
 * its energy, weighted as the conversion weights it. With calibration tokens
 * this is scaled to what the model loses: the reference runs with that tensor
 * alone at the narrowest width, and its outputs diverge by so much. Losses of
 * tensors add up (Malinovskii et al. 2025), so the least sum within the budget
 * is taken. Sizes include the tables.
 *
 * Without tokens nothing tells a tensor that matters from one that does not,
 * and a large one would pay for many small ones: an LM head at 4 bits for
 * layers at 8. So no tensor falls below the widest width that all could have.
 */
#include "converter/budget_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"
#include "converter/calib.h"
#include "converter/matrix_priv.h"
#include "converter/program_priv.h"
#include "converter/recipe.h"
#include "quant/allocate.h"

static const int all_widths[] = { 1, 2, 3, 4, 6, 8 };
#define WIDTHS ((int)(sizeof(all_widths) / sizeof(all_widths[0])))

/* A matrix of the graph. */
struct source {
    const struct mil_data *data;
    struct cv_lut asked; /* of its part, or pinned */
    size_t tensor;
};
struct tensor {
    const char *name;
    uint64_t weights;
    bool pinned; /* its one option is what the recipe says */
    struct qz_choice c;
    double error[QZ_MAX_OPTIONS], energy[QZ_MAX_OPTIONS];
};
struct budget {
    struct cv_job *j;
    int widths[WIDTHS], n_widths;
    struct source *sources;
    size_t n, cap;
    struct tensor *tensors;
    size_t n_tensors, cap_tensors;
    uint64_t weights;
};

struct cv_lut cv_width(const struct cv_job *j, const struct cv_part *part,
                       const char *tensor, bool *pinned)
{
    const struct cv_lut *rule =
        recipe_find(j->recipe, &j->ckpt, part->kind, tensor);
    struct cv_lut lut = part->asked;

    *pinned = rule != NULL;
    if (rule)
        return *rule;
    for (size_t i = 0; j->choices && i < j->choices->n; i++)
        if (!strcmp(j->choices->items[i].tensor, tensor))
            lut.bits = j->choices->items[i].bits;
    return lut;
}

/* ---- what there is ---- */

static int add_tensor(struct budget *b, const char *name, bool pinned,
                      size_t *at, struct err *e)
{
    for (*at = 0; *at < b->n_tensors; ++*at)
        if (!strcmp(b->tensors[*at].name, name))
            return 0;
    if (mem_grow((void **)&b->tensors, &b->cap_tensors, b->n_tensors,
                 sizeof(*b->tensors), e))
        return -1;
    memset(&b->tensors[b->n_tensors], 0, sizeof(*b->tensors));
    b->tensors[b->n_tensors].name = name;
    b->tensors[b->n_tensors].pinned = pinned;
    b->tensors[b->n_tensors++].c.n = pinned ? 1 : b->n_widths;
    return 0;
}

static int add_source(struct budget *b, const struct cv_matrix *m,
                      struct err *e)
{
    struct source s = { .data = m->source, .asked = m->asked };

    for (size_t i = 0; i < b->n; i++)
        if (b->sources[i].data == m->source)
            return 0;
    if (mem_grow((void **)&b->sources, &b->cap, b->n, sizeof(s), e) ||
        add_tensor(b, m->source->origin->tensor, m->pinned, &s.tensor, e))
        return -1;
    b->tensors[s.tensor].weights += m->rows.rows * m->rows.cols;
    b->weights += m->rows.rows * m->rows.cols;
    b->sources[b->n++] = s;
    return 0;
}

/* fp16 by the recipe: it counts, and there is nothing to choose. */
static int add_kept(struct budget *b, const struct mil_data *d, struct err *e)
{
    size_t at;

    if (add_tensor(b, d->origin->tensor, true, &at, e))
        return -1;
    b->tensors[at].weights += d->bytes / 2;
    b->tensors[at].c.size[0] += 8 * d->bytes;
    b->weights += d->bytes / 2;
    return 0;
}

static int gather_part(struct budget *b, struct cv_part *part, struct err *e)
{
    struct cv_program p;
    int rc = 0;

    if (cv_build_part(b->j, part, &p, e))
        return -1;
    for (size_t k = 0; !rc && k < p.matrices->n; k++)
        rc = add_source(b, p.matrices->items[k], e);
    for (size_t k = 0; !rc && k < p.matrices->n_kept; k++)
        if (p.matrices->kept[k].pinned)
            rc = add_kept(b, p.matrices->kept[k].source, e);
    cv_program_release(&p);
    return rc;
}

static int gather(struct budget *b, struct err *e)
{
    size_t notes = b->j->notes.len, open = 0;

    for (size_t i = 0; i < b->j->n_parts; i++)
        if (b->j->parts[i].kind != CV_EMBEDDINGS &&
            gather_part(b, &b->j->parts[i], e))
            return -1;
    b->j->notes.len = notes; /* told when the parts are written */
    if (b->j->notes.data)
        b->j->notes.data[notes] = '\0';
    for (size_t i = 0; i < b->n_tensors; i++)
        open += !b->tensors[i].pinned;
    return open ? 0
                : err_set(e, ERR_USAGE,
                          "--budget: nothing is palettized that could have "
                          "other widths");
}

/* ---- sizes and errors ---- */

static int read_data(const struct mil_data *d, struct err *e)
{
    unsigned char buf[4096];

    for (uint64_t at = 0; at < d->bytes; at += sizeof(buf)) {
        uint64_t left = d->bytes - at;

        if (d->read(d->cookie, at, buf,
                    left < sizeof(buf) ? (size_t)left : sizeof(buf), e))
            return -1;
    }
    return 0;
}

/* The tables, read to their end, make the palette cluster everything. A cache
 * finds and keeps whole matrices. */
static int read_through(struct cv_matrix *m, struct err *e)
{
    if (m->job->cache && read_data(&m->indices, e))
        return -1;
    return read_data(&m->tables, e);
}

/* One matrix at one width: its size, and its error if `measure`. */
static int try_width(struct budget *b, const struct source *s, int w,
                     bool measure, struct err *e)
{
    struct cv_matrices ms = { 0 };
    struct cv_part part = { .name = "" };
    struct tensor *t = &b->tensors[s->tensor];
    struct cv_lut lut = s->asked;
    size_t notes = b->j->notes.len;
    struct cv_matrix *m;
    int rc = 0;

    if (!t->pinned)
        lut.bits = b->widths[w];
    m = cv_matrix_for(b->j, &part, &ms, s->data->origin->tensor, s->data, &lut,
                      e);
    b->j->notes.len = notes;
    if (b->j->notes.data)
        b->j->notes.data[notes] = '\0';
    if (!m)
        return -1;
    if (measure) {
        m->rows.moment = NULL; /* nearest entries tell enough */
        rc = read_through(m, e);
        t->error[w] += m->stats.weighted;
        t->energy[w] += m->stats.weighted_sq;
    } else {
        t->c.size[w] += 8 * (m->indices.bytes + m->tables.bytes);
    }
    cv_matrices_clear(&ms);
    return rc;
}

static int measure_all(struct budget *b, bool measure, struct err *e)
{
    for (size_t i = 0; i < b->n; i++) {
        if (log_cancelled(b->j->opt.log))
            return err_set(e, ERR_CANCELLED, "interrupted");
        if (measure)
            log_progress(b->j->opt.log, "budget", i, b->n, "matrices");
        for (int w = 0; w < b->tensors[b->sources[i].tensor].c.n; w++)
            if (!(measure && b->tensors[b->sources[i].tensor].pinned) &&
                try_width(b, &b->sources[i], w, measure, e))
                return -1;
    }
    return 0;
}

static int check_budget(const struct budget *b, struct err *e)
{
    double least = 0, most = 0;
    size_t pinned = 0;
    char rest[64] = "";

    for (size_t i = 0; i < b->n_tensors; i++) {
        const struct qz_choice *c = &b->tensors[i].c;

        least += (double)c->size[0];
        most += (double)c->size[c->n - 1];
        pinned += b->tensors[i].pinned;
    }
    /* As they are told, so that what is told may be asked for. */
    least = ceil(1000 * least / (double)b->weights) / 1000;
    most = ceil(1000 * most / (double)b->weights) / 1000;
    if (b->j->opt.budget >= least && b->j->opt.budget <= most)
        return 0;
    if (pinned)
        snprintf(rest, sizeof(rest), " and %zu tensors pinned by the recipe",
                 pinned);
    return err_set(e, ERR_USAGE,
                   "--budget %g: with widths of %d to %d bits%s this model "
                   "takes %.3f to %.3f bits per weight, tables included",
                   b->j->opt.budget, b->widths[0], b->widths[b->n_widths - 1],
                   rest, least, most);
}

/* The checkpoint's weights, but one tensor at another width. */
struct bent {
    struct tensor_source base;
    const char *tensor;
    int bits;
    uint64_t group, cols;
    enum qz_format format;
};

/* Groups of rows as they are asked for: near enough to those of the graph. */
static int bend(const struct bent *t, float *x, uint64_t rows, struct err *e)
{
    size_t n = (size_t)((t->group < rows ? t->group : rows) * t->cols), at;
    size_t all = (size_t)(rows * t->cols), len;
    uint16_t *bits = mem_alloc(n, sizeof(*bits), e);
    uint8_t *codes = mem_alloc(n, 1, e);
    struct qz_scratch *s = qz_scratch_new(e);
    int rc = bits && codes && s ? 0 : -1;

    for (at = 0; !rc && at < all; at += len) {
        f16_t table[256];
        struct qz_result r;

        len = all - at < n ? all - at : n;
        if (t->format == QZ_BF16)
            num_f32_to_bf16(bits, x + at, len);
        else
            num_f32_to_f16(bits, x + at, len);
        rc = qz_cluster(s, bits, len, t->format, 0, t->bits, table, codes, &r,
                        e);
        for (size_t i = 0; !rc && i < len; i++)
            x[at + i] = f16_to_f32(table[codes[i]]);
    }
    qz_scratch_free(s);
    mem_free(bits);
    mem_free(codes);
    return rc;
}

static int bent_rows(void *cookie, const char *name, uint64_t row, uint64_t n,
                     float *dst, struct err *e)
{
    const struct bent *t = cookie;

    if (t->base.rows(t->base.cookie, name, row, n, dst, e))
        return -1;
    return strcmp(name, t->tensor) ? 0 : bend(t, dst, n, e);
}

/* What the model loses when this tensor alone has the narrowest width. */
static int divergence_of(struct budget *b, size_t tensor, double *kl,
                         struct err *e)
{
    struct bent t = { .base = ckpt_source(&b->j->ckpt),
                      .tensor = b->tensors[tensor].name,
                      .bits = b->widths[0] };
    struct tensor_source src = { bent_rows, &t };
    const struct need *nd = NULL;

    for (size_t i = 0; !nd && i < b->n; i++)
        if (b->sources[i].tensor == tensor) {
            nd = weights_need(b->sources[i].data);
            t.group = b->sources[i].asked.group;
        }
    t.group = t.group ? t.group : UINT64_MAX;
    t.cols = nd->dims[nd->rank - 1];
    t.format = nd->tensor->dtype == ST_BF16 ? QZ_BF16 : QZ_F16;
    return calib_divergence(b->j->calib, &src, kl, e);
}

/* Relative errors become losses of the model. */
static int measure_losses(struct budget *b, struct err *e)
{
    for (size_t i = 0; b->j->calib && i < b->n_tensors; i++) {
        struct tensor *t = &b->tensors[i];
        double kl;

        log_progress(b->j->opt.log, "losses", i, b->n_tensors, "tensors");
        if (t->pinned)
            continue;
        if (divergence_of(b, i, &kl, e))
            return err_in(e, "tensor '%s'", t->name);
        if (t->c.damage[0] > 0)
            for (int w = b->n_widths - 1; w >= 0; w--)
                t->c.damage[w] *= kl / t->c.damage[0];
    }
    return 0;
}

static void set_damage(struct budget *b)
{
    for (size_t i = 0; i < b->n_tensors; i++) {
        struct tensor *t = &b->tensors[i];

        for (int w = 0; w < t->c.n; w++)
            t->c.damage[w] = t->energy[w] > 0 ? t->error[w] / t->energy[w] : 0;
    }
}

/* The widest width that all tensors together could have. */
static int widest_for_all(const struct budget *b, double bits)
{
    int widest = 0;

    for (int w = 1; w < b->n_widths; w++) {
        double size = 0;

        for (size_t i = 0; i < b->n_tensors; i++)
            size += (double)b->tensors[i].c.size[b->tensors[i].pinned ? 0 : w];
        widest = size <= bits ? w : widest;
    }
    return widest;
}

/* The same choice without its first options. */
static struct qz_choice choice_from(const struct qz_choice *c, int first)
{
    struct qz_choice out = { .n = c->n - first };

    for (int o = 0; o < out.n; o++) {
        out.size[o] = c->size[first + o];
        out.damage[o] = c->damage[first + o];
    }
    return out;
}

static int choose(struct budget *b, struct err *e)
{
    struct qz_choice *c = mem_alloc(b->n_tensors, sizeof(*c), e);
    double bits = b->j->opt.budget * (double)b->weights, size = 0, loss = 0;
    int first = b->j->calib ? 0 : widest_for_all(b, bits);
    int count[WIDTHS] = { 0 }, pinned = 0, rc;
    double bound = 0;

    if (!c)
        return -1;
    for (size_t i = 0; i < b->n_tensors; i++)
        c[i] = choice_from(&b->tensors[i].c, b->tensors[i].pinned ? 0 : first);
    rc = qz_allocate(c, b->n_tensors, (uint64_t)bits, &bound, e);
    for (size_t i = 0; !rc && i < b->n_tensors; i++) {
        struct cv_choice *ch;

        size += (double)c[i].size[c[i].chosen];
        loss += c[i].damage[c[i].chosen];
        pinned += b->tensors[i].pinned;
        if (b->tensors[i].pinned)
            continue;
        rc = mem_grow((void **)&b->j->choices->items, &b->j->choices->cap,
                      b->j->choices->n, sizeof(*ch), e);
        if (rc)
            break;
        ch = &b->j->choices->items[b->j->choices->n++];
        snprintf(ch->tensor, sizeof(ch->tensor), "%s", b->tensors[i].name);
        ch->bits = b->widths[first + c[i].chosen];
        count[first + c[i].chosen]++;
    }
    mem_free(c);
    if (rc)
        return -1;
    buf_printf(&b->j->notes, "budget of %g bits: %.3f used", b->j->opt.budget,
               size / (double)b->weights);
    for (int w = 0; w < b->n_widths; w++)
        buf_printf(&b->j->notes, ", %d tensors of %d bits", count[w],
                   b->widths[w]);
    if (pinned)
        buf_printf(&b->j->notes, ", %d pinned by the recipe", pinned);
    buf_printf(&b->j->notes,
               "; tensors' %s add up to %.4g, no choice has less than %.4g\n",
               b->j->calib ? "divergences" : "relative errors", loss, bound);
    return 0;
}

/* What may be chosen, and its sizes: when a job opens, and anew before widths
 * are chosen, since the scale of the residual stream is measured in between and
 * folded into the matrices. */
static int survey(struct budget *b, struct cv_job *j, struct err *e)
{
    *b = (struct budget){ .j = j };
    for (int w = 0; w < WIDTHS; w++)
        if (j->opt.budget_widths >> all_widths[w] & 1)
            b->widths[b->n_widths++] = all_widths[w];
    return gather(b, e) || measure_all(b, false, e) ? -1 : 0;
}

static void release(struct budget *b)
{
    mem_free(b->sources);
    mem_free(b->tensors);
}

int cv_check_budget(struct cv_job *j, struct err *e)
{
    struct budget b;
    int rc;

    if (j->calib && calib_tokens(j->calib) < CALIB_KL_EACH)
        return err_set(e, ERR_INPUT,
                       "--budget: '%s' has %" PRIu64 " tokens; at least %d are "
                       "needed to measure what the model loses",
                       j->opt.calib, calib_tokens(j->calib), CALIB_KL_EACH);
    rc = survey(&b, j, e) ? -1 : check_budget(&b, e);

    release(&b);
    return rc;
}

int cv_choose_widths(struct cv_job *j, struct err *e)
{
    struct budget b;
    int rc = survey(&b, j, e) ? -1 : measure_all(&b, true, e);

    if (!rc)
        set_damage(&b);
    if (!rc)
        j->choices = mem_zalloc(1, sizeof(*j->choices), e);
    if (rc || !j->choices || measure_losses(&b, e) || choose(&b, e) ||
        cv_plan_again(j, e))
        rc = -1;
    release(&b);
    return rc;
}
