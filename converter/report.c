/*
 * report.json: rows are written as the parts are, sums at the end.
 */
#include "converter/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/matrix_priv.h"

struct report {
    const struct cv_job *job;
    struct io_out out;
    struct buf text; /* that is not in the file yet */
    struct js_writer w;
    struct {
        char name[160];
        const char *kind;
        struct report_sums all, matrices;
    } * parts;
    size_t n, cap;
    struct report_sums counted; /* what a budget is for */
};

const char *report_kind(enum cv_kind kind)
{
    static const char *const kinds[] = { "embeddings", "ffn", "lmhead" };

    return kinds[kind];
}

struct report *report_new(const struct cv_job *j, const char *dir,
                          struct err *e)
{
    struct report *r = mem_zalloc(1, sizeof(*r), e);
    char *path = io_join(dir, REPORT_NAME, e);

    if (r)
        r->out = (struct io_out)IO_OUT_INIT;
    if (!r || !path || io_out_open(&r->out, path, e)) {
        mem_free(path);
        mem_free(r);
        return NULL;
    }
    mem_free(path);
    r->job = j;
    js_w_init(&r->w, &r->text);
    js_w_object(&r->w, NULL);
    js_w_uint(&r->w, "schema", 1);
    js_w_array(&r->w, "weights", false);
    return r;
}

void report_free(struct report *r)
{
    if (!r)
        return;
    io_out_release(&r->out);
    buf_release(&r->text);
    mem_free(r->parts);
    mem_free(r);
}

static int flush(struct report *r, struct err *e)
{
    if (buf_ok(&r->text, e) ||
        io_out_write(&r->out, r->text.data, r->text.len, e))
        return -1;
    buf_clear(&r->text);
    return 0;
}

/* ---- one constant ---- */

/* A constant as it was planned; neither: it is fp16 by a rule. */
struct planned {
    const struct cv_matrix *m;
    const struct cv_kept *kept;
};

static struct planned find_planned(const struct cv_program *p,
                                   const struct stored *s)
{
    const struct cv_matrices *ms = p->matrices;
    const struct mil_function *f;
    struct planned found = { 0 };

    for (size_t i = 0; i < ms->n; i++)
        if (!strcmp(ms->items[i]->name, s->name))
            found.m = ms->items[i];
    for (size_t n = 0; !found.m && n < p->program->n_functions; n++) {
        f = p->program->functions[n];
        for (size_t k = 0; k < f->n_ops && !found.kept; k++) {
            const struct mil_value *v =
                f->ops[k].n_outs ? mil_value(f, f->ops[k].outs[0]) : NULL;

            if (!v || !v->name || !v->konst || strcmp(v->name, s->name) != 0)
                continue;
            for (size_t i = 0; i < ms->n_kept; i++)
                if (ms->kept[i].source == v->konst->data)
                    found.kept = &ms->kept[i];
        }
    }
    return found;
}

const char *report_rule(const char *tensor)
{
    static const struct {
        const char *part, *rule;
    } rules[] = {
        { "norm", "norm" },
        { "conv1d", "convolution" },
        { "router.", "router" },
        { "mlp.gate.weight", "router" },
        { "shared_expert_gate", "router" },
        { "bias", "bias" },
        { "per_layer_", "per-layer input" },
    };

    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (strstr(tensor, rules[i].part))
            return rules[i].rule;
    return "small";
}

/* Bits of a matrix with tables or scales as they were asked for. */
static double bits_asked(const struct cv_lut *l, const struct cv_matrix *m)
{
    double rows = (double)m->rows.rows, cols = (double)m->rows.cols;
    double group = l->group ? (double)l->group : rows;

    if (!l->linear)
        return rows * cols * l->bits +
               rows / (group < rows ? group : rows) * ldexp(16, l->bits);
    if (!l->group)
        return rows * cols * l->bits + 16;
    if (l->group == CV_ROW || group > cols)
        group = cols;
    return rows * cols * l->bits + rows * cols / group * 16;
}

/* Groups as rows tell them: 0 for one table, or one scale, of all. */
static uint64_t group_told(const struct cv_lut *l, const struct cv_matrix *m)
{
    if (l->linear) {
        uint64_t block = l->group == CV_ROW ? m->rows.cols : l->group;

        return m->rows.rows == 1 && block == m->rows.cols ? 0 : block;
    }
    return l->group < m->rows.rows ? l->group : 0;
}

static int broken(const struct stored *s, const char *what, uint64_t promised,
                  uint64_t found, struct err *e)
{
    return err_set(e, ERR_MISMATCH,
                   "constant '%s' was promised %" PRIu64 " %s, the file holds "
                   "%" PRIu64,
                   s->name, promised, what, found);
}

/* What was promised of a matrix, in the written file. */
static int check_promise(const struct stored *s, const struct planned *p,
                         struct err *e)
{
    enum stored_form form = !p->m              ? STORED_PLAIN
                            : p->m->lut.linear ? STORED_INTEGERS
                                               : STORED_TABLES;
    const struct cv_lut *l = p->m ? &p->m->lut : NULL;
    uint64_t values, tables;

    if (s->form != form)
        return err_set(e, ERR_MISMATCH,
                       "constant '%s' was promised to be %s, the file holds "
                       "it as %s",
                       s->name, stored_form_name(form),
                       stored_form_name(s->form));
    if (!p->m)
        return s->bits == 16 ? 0 : broken(s, "bits", 16, (uint64_t)s->bits, e);
    values = (s->weights * (uint64_t)p->m->asked.bits + 7) / 8;
    tables = p->m->tables.bytes;
    if (s->weights != p->m->rows.rows * p->m->rows.cols)
        return broken(s, "weights", p->m->rows.rows * p->m->rows.cols,
                      s->weights, e);
    if (s->bits != p->m->asked.bits)
        return broken(s, "bits", (uint64_t)p->m->asked.bits, (uint64_t)s->bits,
                      e);
    if (s->group != group_told(l, p->m))
        return broken(s, "channels to a table or scale", group_told(l, p->m),
                      s->group, e);
    if (s->value_bytes != values)
        return broken(s, "bytes of values", values, s->value_bytes, e);
    if (s->table_bytes != tables)
        return broken(s, "bytes of tables", tables, s->table_bytes, e);
    return 0;
}

void report_join(struct report_sums *to, const struct report_sums *t)
{
    to->weights += t->weights;
    to->value_bytes += t->value_bytes;
    to->table_bytes += t->table_bytes;
    to->file_bytes += t->file_bytes;
    to->asked += t->asked;
    to->loss.sse += t->loss.sse;
    to->loss.energy += t->loss.energy;
}

static void loss_json(const struct stored_loss *loss, struct js_writer *w)
{
    js_w_double(w, "sse", loss->sse);
    js_w_double(w, "snr_db", stored_snr(loss));
}

static const char *method_told(const struct cv_matrix *m)
{
    return m->lut.linear && m->method == CV_KMEANS ? "nearest"
                                                   : cv_method_name(m->method);
}

const char *report_tensor(const struct ckpt *c, const char *canonical)
{
    const struct need *n = ckpt_need(c, canonical);

    return n && n->tensor && !n->n_parts ? n->tensor->name : canonical;
}

static void row_json(struct report *r, const struct cv_part *part,
                     const struct stored *s, const struct planned *p,
                     double asked, const struct stored_loss *loss)
{
    const char *group = s->form == STORED_INTEGERS ? "block" : "group";
    struct js_writer *w = &r->w;
    char requested[32];

    js_w_object(w, NULL);
    js_w_string(w, "tensor", report_tensor(&r->job->ckpt, s->tensor));
    js_w_string(w, "part", part->name);
    js_w_string(w, "name", s->name);
    js_w_array(w, "shape", true);
    for (int i = 0; i < s->type.rank; i++)
        js_w_int(w, NULL, s->type.dims[i]);
    js_w_end(w);
    js_w_string(w, "kind", stored_form_name(s->form));
    js_w_int(w, "bits", s->bits);
    if (p->m) {
        js_w_int(w, "bits_requested", p->m->asked.bits);
        js_w_uint(w, group, s->group);
        snprintf(requested, sizeof(requested), "%s_requested", group);
        js_w_uint(w, requested, group_told(&p->m->asked, p->m));
        js_w_string(w, "method", method_told(p->m));
    } else {
        js_w_string(w, "rule",
                    !p->kept          ? report_rule(s->tensor)
                    : p->kept->pinned ? "recipe"
                                      : "option");
    }
    js_w_uint(w, "weights", s->weights);
    js_w_uint(w, "value_bytes", s->value_bytes);
    js_w_uint(w, "table_bytes", s->table_bytes);
    js_w_double(w, "bits_per_weight_requested", asked / (double)s->weights);
    js_w_double(w, "bits_per_weight", stored_bits(s));
    loss_json(loss, w);
    js_w_end(w);
}

/* ---- parts ---- */

/* Whoever found the indices summed up what they lose, against the very bits of
 * the checkpoint, unless these are rounded to fp16 first. Decoding everything
 * once more would give the same sums, for a sixth of the conversion's time. */
static bool known_loss(const struct report *r, const struct cv_matrix *m,
                       struct stored_loss *loss)
{
    const struct need *n =
        m ? ckpt_need(&r->job->ckpt, m->source->origin->tensor) : NULL;

    /* Runtimes round an integer times its scale, which decoding does too. */
    if (!n || !n->tensor || n->tensor->dtype == ST_F32 || m->lut.linear ||
        m->stats.weights != m->rows.rows * m->rows.cols)
        return false;
    *loss =
        (struct stored_loss){ .sse = m->stats.sse, .energy = m->stats.sum_sq };
    return true;
}

/* Of the constant in the written file. */
static int find_loss(const struct report *r, const struct stored *s,
                     const struct cv_matrix *m,
                     const struct package_source *src, struct stored_loss *loss,
                     struct err *e)
{
    size_t i;

    if (known_loss(r, m, loss))
        return 0;
    if (package_source_find(src, s->name, &i))
        return stored_measure(src, i, &r->job->ckpt, r->job->opt.par, loss, e);
    return err_set(e, ERR_MISMATCH, "the list of sources lacks constant '%s'",
                   s->name);
}

static int add_row(struct report *r, const struct cv_part *part,
                   const struct stored *s, const struct planned *p,
                   const struct stored_loss *loss, struct err *e)
{
    const struct report_sums one = { .weights = s->weights,
                                     .value_bytes = s->value_bytes,
                                     .table_bytes = s->table_bytes,
                                     .asked =
                                         p->m ? bits_asked(&p->m->asked, p->m)
                                              : 16.0 * (double)s->weights,
                                     .loss = *loss };

    if (check_promise(s, p, e))
        return -1;
    report_join(&r->parts[r->n].all, &one);
    if (p->m || p->kept)
        report_join(&r->parts[r->n].matrices, &one);
    if (part->kind != CV_EMBEDDINGS && (p->m || (p->kept && p->kept->pinned)))
        report_join(&r->counted, &one);
    row_json(r, part, s, p, one.asked, loss);
    return 0;
}

static int add_rows(struct report *r, const struct cv_part *part,
                    const struct stored_list *l,
                    const struct package_source *src,
                    const struct cv_program *planned, struct err *e)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct stored *s = &l->items[i];
        struct planned p = find_planned(planned, s);
        struct stored_loss loss;

        if (!s->tensor) /* computed: rotations */
            continue;
        if (log_cancelled(r->job->opt.log))
            return err_set(e, ERR_CANCELLED, "interrupted");
        if (find_loss(r, s, p.m, src, &loss, e) ||
            add_row(r, part, s, &p, &loss, e))
            return -1;
    }
    return 0;
}

int report_part(struct report *r, const struct cv_part *part,
                const struct pkg *written, const struct cv_program *planned,
                struct err *e)
{
    struct package_source *src;
    struct stored_list l;
    struct report_sums *t;
    int rc = -1;

    if (mem_grow((void **)&r->parts, &r->cap, r->n, sizeof(*r->parts), e) ||
        stored_read(pkg_program(written), &l, e))
        return -1;
    memset(&r->parts[r->n], 0, sizeof(*r->parts));
    snprintf(r->parts[r->n].name, sizeof(r->parts[r->n].name), "%s",
             part->name);
    r->parts[r->n].kind = report_kind(part->kind);
    r->parts[r->n].all.file_bytes = part->written_weights;
    src = package_source_of(written, &r->job->ckpt, e);
    if (src)
        rc = add_rows(r, part, &l, src, planned, e);
    t = &r->parts[r->n].matrices;
    if (!rc && 8 * (t->value_bytes + t->table_bytes) != part->stored_bits)
        rc = err_set(e, ERR_MISMATCH,
                     "the matrices were promised to take %" PRIu64
                     " bits, the file holds %" PRIu64,
                     part->stored_bits, 8 * (t->value_bytes + t->table_bytes));
    if (!rc)
        rc = flush(r, e);
    r->n += !rc;
    package_source_close(src);
    stored_release(&l);
    return rc;
}

/* ---- sums ---- */

double report_bits(const struct report_sums *t)
{
    double bits = 8.0 * (double)(t->value_bytes + t->table_bytes);

    return t->weights ? bits / (double)t->weights : 0;
}

double report_bits_asked(const struct report_sums *t)
{
    return t->weights ? t->asked / (double)t->weights : 0;
}

static void sums_json(const struct report_sums *t, const char *key,
                      struct js_writer *w)
{
    js_w_object(w, key);
    js_w_uint(w, "weights", t->weights);
    js_w_uint(w, "value_bytes", t->value_bytes);
    js_w_uint(w, "table_bytes", t->table_bytes);
    js_w_double(w, "bits_per_weight_requested", report_bits_asked(t));
    js_w_double(w, "bits_per_weight", report_bits(t));
    loss_json(&t->loss, w);
    js_w_end(w);
}

static void end_json(struct report *r)
{
    struct report_sums all = { 0 }, matrices = { 0 };
    struct js_writer *w = &r->w;

    js_w_end(w);
    js_w_array(w, "parts", false);
    for (size_t i = 0; i < r->n; i++) {
        js_w_object(w, NULL);
        js_w_string(w, "part", r->parts[i].name);
        js_w_string(w, "kind", r->parts[i].kind);
        js_w_uint(w, "weight_file_bytes", r->parts[i].all.file_bytes);
        sums_json(&r->parts[i].matrices, "matrices", w);
        sums_json(&r->parts[i].all, "all", w);
        js_w_end(w);
        report_join(&all, &r->parts[i].all);
        report_join(&matrices, &r->parts[i].matrices);
    }
    js_w_end(w);
    js_w_object(w, "package");
    js_w_uint(w, "weight_file_bytes", all.file_bytes);
    sums_json(&matrices, "matrices", w);
    sums_json(&all, "all", w);
    js_w_end(w);
    if (r->job->opt.budget > 0) {
        js_w_object(w, "budget");
        js_w_double(w, "requested", r->job->opt.budget);
        js_w_double(w, "achieved", report_bits(&r->counted));
        js_w_end(w);
    }
    js_w_end(w);
    buf_puts(&r->text, "\n");
}

int report_finish(struct report *r, struct err *e)
{
    if (r->job->opt.budget > 0 && report_bits(&r->counted) > r->job->opt.budget)
        return err_set(e, ERR_MISMATCH,
                       "a budget of %g bits per weight was promised, the files "
                       "hold %.6f",
                       r->job->opt.budget, report_bits(&r->counted));
    end_json(r);
    return flush(r, e) || io_out_finish(&r->out, e) ? -1 : 0;
}
