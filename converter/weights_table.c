/*
 * Rows of weights: file after file, constant after constant.
 */
#include "converter/weights_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/program_priv.h"
#include "converter/report_check.h"
#include "converter/source_guess.h"

struct table {
    const struct weights_query *q;
    struct js_writer *w; /* NULL: text */
    struct buf *out;
    struct report_check check;
    size_t parts;
    size_t unread; /* compressed constants of other forms */
    struct report_part all;
};
/* A file at work. */
struct file {
    struct pkg *pkg;
    char name[200]; /* of the part */
    struct package_source *src;
    struct report_part part;
};
struct row {
    const struct stored *s;
    struct report_said said;
    bool has_said, has_loss, measured;
    const char *tensor; /* that it was measured against */
    struct stored_loss loss;
    double snr;
};

/* ---- one constant ---- */

static int measure(struct table *t, const struct file *f, struct row *r,
                   struct err *e)
{
    struct source_piece piece;
    size_t i;

    if (package_source_find(f->src, r->s->name, &i)) {
        if (stored_measure(f->src, i, t->q->ckpt, t->q->par, &r->loss, e))
            return -1;
        package_source_at(f->src, i, &piece);
        r->measured = r->has_loss = true;
        r->tensor = piece.tensor;
    }
    if (r->measured && r->has_said)
        report_check_loss(&t->check, &f->part, r->s, &r->said, &r->loss);
    return 0;
}

static int fill_row(struct table *t, const struct file *f,
                    const struct stored *s, struct row *r, struct err *e)
{
    *r = (struct row){ .s = s, .snr = (double)NAN };
    r->has_said = report_check_row(&t->check, &f->part, s, &r->said);
    if (r->has_said && isfinite(r->said.sums.sse)) {
        r->has_loss = true;
        r->snr = r->said.sums.snr;
        r->loss.sse = r->said.sums.sse;
        /* As much energy as the ratio tells. */
        r->loss.energy =
            isfinite(r->snr) ? r->loss.sse * pow(10, r->snr / 10) : 0;
    }
    if (t->q->ckpt && measure(t, f, r, e))
        return -1;
    if (r->measured)
        r->snr = stored_snr(&r->loss);
    return 0;
}

static void form_text(const struct stored *s, char out[48])
{
    char group[24] = "tensor";

    if (s->group)
        snprintf(group, sizeof(group), "%" PRIu64, s->group);
    if (s->form == STORED_TABLES)
        snprintf(out, 48, "LUT%d,%s", s->bits, group);
    else if (s->form == STORED_INTEGERS)
        snprintf(out, 48, "int%d,%s", s->bits, group);
    else
        snprintf(out, 48, "%d bits", s->bits);
}

static const char *row_method(const struct row *r)
{
    if (r->has_said && r->said.method)
        return r->said.method;
    if (r->has_said && r->said.rule)
        return r->said.rule;
    return NULL;
}

static void loss_text(const struct row *r, struct buf *out)
{
    if (!r->has_loss)
        buf_printf(out, "%10s %9s", "?", "?");
    else if (r->loss.sse > 0)
        buf_printf(out, "%10.4g %6.2f dB", r->loss.sse, r->snr);
    else
        buf_printf(out, "%10s %9s", "0", "exact");
}

static void row_text(const struct row *r, struct buf *out)
{
    const struct stored *s = r->s;
    const char *name = s->tensor && s->whole ? s->tensor : s->name,
               *method = row_method(r);
    char form[48], bytes[NUM_TEXT_MAX];

    form_text(s, form);
    num_bytes_text(bytes, s->value_bytes + s->table_bytes);
    buf_printf(out, "  %-44s %-12s %9s %7.3f ", name, form, bytes,
               stored_bits(s));
    loss_text(r, out);
    buf_printf(out, "  %s", method ? method : "?");
    if (r->tensor && !s->tensor)
        buf_printf(out, "  (%s)", r->tensor);
    buf_puts(out, "\n");
}

static void row_json(const struct row *r, const struct file *f,
                     struct js_writer *w)
{
    const struct stored *s = r->s;

    js_w_object(w, NULL);
    js_w_string(w, "tensor",
                r->has_said ? r->said.tensor
                : s->tensor ? s->tensor
                            : r->tensor);
    js_w_string(w, "part", f->name);
    js_w_string(w, "name", s->name);
    js_w_array(w, "shape", true);
    for (int i = 0; i < s->type.rank; i++)
        js_w_int(w, NULL, s->type.dims[i]);
    js_w_end(w);
    js_w_string(w, "kind", stored_form_name(s->form));
    js_w_int(w, "bits", s->bits);
    if (s->form != STORED_PLAIN)
        js_w_uint(w, s->form == STORED_INTEGERS ? "block" : "group", s->group);
    js_w_string(w, "method", r->has_said ? r->said.method : NULL);
    js_w_string(w, "rule", r->has_said ? r->said.rule : NULL);
    js_w_uint(w, "weights", s->weights);
    js_w_uint(w, "value_bytes", s->value_bytes);
    js_w_uint(w, "table_bytes", s->table_bytes);
    js_w_double(w, "bits_per_weight_requested",
                r->has_said ? r->said.sums.bits_requested : (double)NAN);
    js_w_double(w, "bits_per_weight", stored_bits(s));
    js_w_double(w, "sse", r->has_loss ? r->loss.sse : (double)NAN);
    js_w_double(w, "snr_db", r->has_loss ? r->snr : (double)NAN);
    js_w_bool(w, "measured", r->measured);
    js_w_end(w);
}

/* ---- files ---- */

static void add_row(struct report_part *p, const struct row *r)
{
    report_check_add(p, r->s, r->has_said ? &r->said : NULL, &r->loss);
    p->known = p->known && r->has_loss;
    p->measured = p->measured && r->measured;
}

static void sums_text(const struct report_part *p, const char *what,
                      struct buf *out)
{
    const struct report_sums *t = &p->all;
    char bytes[NUM_TEXT_MAX];

    num_bytes_text(bytes, t->value_bytes + t->table_bytes);
    buf_printf(out, "  %-44s %-12s %9s %7.3f ", what, "", bytes,
               report_bits(t));
    if (p->known)
        buf_printf(out, "%10.4g\n", t->loss.sse);
    else
        buf_printf(out, "%10s\n", "?");
}

static int open_source(struct table *t, struct file *f, struct err *e)
{
    const struct mil_program *p = pkg_program(f->pkg);

    if (!t->q->ckpt)
        return 0;
    f->src = mil_program_metadata(p, CV_SOURCES_KEY)
                 ? package_source_of(f->pkg, t->q->ckpt, e)
                 : source_guess(f->pkg, t->q->ckpt, e);
    return f->src ? 0 : -1;
}

static const char *method_of(const struct pkg *pkg)
{
    const char *m = mil_program_metadata(pkg_program(pkg), CV_METHOD_KEY);

    return m ? m : cv_method_name(CV_KMEANS);
}

static int file_rows(struct table *t, struct file *f, struct err *e)
{
    struct stored_list l;
    int rc = 0;

    if (stored_read(pkg_program(f->pkg), &l, e))
        return -1;
    if (l.sources)
        f->part.method = method_of(f->pkg);
    if (!t->w)
        buf_printf(t->out, "%s\n", f->name);
    for (size_t i = 0; !rc && i < l.n; i++) {
        const struct stored *s = &l.items[i];
        struct row r;

        if (log_cancelled(t->q->log))
            rc = err_set(e, ERR_CANCELLED, "interrupted");
        else if (l.sources && !s->tensor)
            continue; /* computed */
        else
            rc = fill_row(t, f, s, &r, e);
        if (rc)
            break;
        add_row(&f->part, &r);
        if (t->w)
            row_json(&r, f, t->w);
        else
            row_text(&r, t->out);
    }
    t->unread += l.unread;
    if (!rc && !t->w)
        sums_text(&f->part, "together", t->out);
    if (!rc)
        report_check_part(&t->check, &f->part);
    stored_release(&l);
    return rc;
}

static void set_name(struct file *f, const char *path)
{
    const char *base = io_basename(path), *dot = strrchr(base, '.');

    snprintf(f->name, sizeof(f->name), "%.*s",
             (int)(dot ? (size_t)(dot - base) : strlen(base)), base);
}

/* Older forms as the new ones; programs with operations that nobody knows as
 * they stand. */
static struct pkg *open_model(const char *path, struct err *e)
{
    struct err first = ERR_INIT;
    struct pkg *p = pkg_open(path, &first);

    return p ? p : pkg_open_raw(path, e);
}

static void add_part(struct report_part *all, const struct report_part *p)
{
    report_join(&all->all, &p->all);
    report_join(&all->matrices, &p->matrices);
    report_join(&all->counted, &p->counted);
    all->method = all->method && p->method ? p->method : NULL;
    all->known = all->known && p->known;
    all->measured = all->measured && p->measured;
}

static int one_file(struct table *t, const char *path, enum cv_kind kind,
                    struct err *e)
{
    struct file f = { .pkg = open_model(path, e) };
    struct pkg_sizes sizes;
    int rc = -1;

    set_name(&f, path);
    f.part = (struct report_part){
        .name = f.name, .kind = kind, .known = true, .measured = true
    };
    if (f.pkg) {
        pkg_sizes(f.pkg, &sizes);
        f.part.all.file_bytes = sizes.weights_bytes;
    }
    if (f.pkg && !open_source(t, &f, e))
        rc = file_rows(t, &f, e);
    add_part(&t->all, &f.part);
    t->parts++;
    package_source_close(f.src);
    pkg_close(f.pkg);
    return rc;
}

static int package_part(struct table *t, const struct meta *m,
                        enum cv_kind kind, int chunk, struct err *e)
{
    char *path = meta_part_path(t->q->path, m, kind, chunk, META_COMPILED, e);
    int rc;

    if (path && !io_exists(path)) {
        mem_free(path);
        path = meta_part_path(t->q->path, m, kind, chunk, META_PACKAGE, e);
    }
    rc = path ? one_file(t, path, kind, e) : -1;
    mem_free(path);
    return rc;
}

static int package_parts(struct table *t, struct err *e)
{
    struct meta m;
    int chunks;

    if (meta_read(t->q->path, &m, e))
        return -1;
    t->check.report = report_open(t->q->path, e);
    if (e->code)
        return -1;
    chunks = m.num_chunks ? (int)m.num_chunks : 1;
    for (int i = 0; i < chunks + 2; i++)
        if (package_part(t, &m,
                         i == 0            ? CV_EMBEDDINGS
                         : i == chunks + 1 ? CV_HEAD
                                           : CV_CHUNK,
                         i, e))
            return -1;
    report_check_package(&t->check, &t->all, t->parts);
    return 0;
}

/* ---- the table ---- */

static void begin(struct table *t)
{
    if (t->w) {
        js_w_object(t->w, NULL);
        js_w_uint(t->w, "schema", 1);
        js_w_string(t->w, "kind", "weights");
        js_w_array(t->w, "weights", false);
    } else {
        buf_printf(t->out, "  %-44s %-12s %9s %7s %10s %9s  %s\n", "tensor",
                   "stored", "bytes", "bits/w", "SSE", "SNR", "method or rule");
    }
}

static void finish(struct table *t)
{
    const struct report_sums *all = &t->all.all;

    if (!t->w) {
        if (t->q->package)
            sums_text(&t->all, "the package", t->out);
        if (t->q->package && !t->check.report)
            buf_puts(t->out, "no " REPORT_NAME ": ? is not known\n");
        if (t->unread)
            buf_printf(t->out,
                       "%zu constants in other compressed forms are not "
                       "shown\n",
                       t->unread);
        for (const char *s = buf_text(&t->check.lines); *s;
             s += strcspn(s, "\n") + 1)
            buf_printf(t->out, "MISMATCH %.*s\n", (int)strcspn(s, "\n"), s);
        return;
    }
    js_w_end(t->w);
    js_w_bool(t->w, "report", t->check.report != NULL);
    js_w_uint(t->w, "unread", t->unread);
    js_w_object(t->w, "total");
    js_w_uint(t->w, "weights", all->weights);
    js_w_uint(t->w, "bytes", all->value_bytes + all->table_bytes);
    js_w_double(t->w, "bits_per_weight", report_bits(all));
    js_w_double(t->w, "sse", t->all.known ? all->loss.sse : (double)NAN);
    js_w_end(t->w);
    js_w_lines(t->w, "mismatches", buf_text(&t->check.lines));
    js_w_end(t->w);
}

int weights_table(const struct weights_query *q, struct js_writer *w,
                  struct buf *out, bool *sound, struct err *e)
{
    struct table t = { .q = q,
                       .w = w,
                       .out = out,
                       .check.ckpt = q->ckpt,
                       .all = { .name = "the package",
                                .method = "",
                                .known = true,
                                .measured = true } };
    int rc;

    begin(&t);
    rc = q->package ? package_parts(&t, e) : one_file(&t, q->path, CV_CHUNK, e);
    if (!rc)
        finish(&t);
    *sound = !t.check.lines.len;
    if (!rc)
        rc = buf_ok(&t.check.lines, e);
    report_close(t.check.report);
    buf_release(&t.check.lines);
    return rc;
}
