/*
 * The lint: its stages and its report.
 */
#include "converter/lint.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/lint_priv.h"

static const struct lint_rule rules[] = {
#define RULE(id, severity, topic, wrong, advice) \
    { #id, LINT_##severity, topic, wrong, advice },
#include "converter/lint_rules.def"
};

const struct lint_rule *lint_rule(enum lint_id id)
{
    return &rules[id];
}

const char *lint_severity_name(enum lint_severity s)
{
    static const char *const names[] = { "note", "warning", "error" };

    return names[s];
}

/* ---- findings ---- */

void lint_add(struct lint *l, enum lint_id id, const char *where,
              const char *fmt, ...)
{
    struct lint_report *r = l->report;
    struct lint_finding *f;
    struct buf what = BUF_INIT;
    va_list ap;

    if (l->e->code)
        return;
    va_start(ap, fmt);
    buf_vprintf(&what, fmt, ap);
    va_end(ap);
    if (!mem_grow((void **)&r->v, &r->cap, r->n, sizeof(*r->v), l->e)) {
        f = &r->v[r->n];
        f->rule = &rules[id];
        f->where = mem_strdup(where, l->e);
        f->what = buf_detach(&what, l->e);
        r->n++;
        r->errors += f->rule->severity == LINT_ERROR;
        r->warnings += f->rule->severity == LINT_WARNING;
        r->notes += f->rule->severity == LINT_NOTE;
    }
    buf_release(&what);
}

void lint_add_err(struct lint *l, enum lint_id id, const char *where,
                  const struct err *found)
{
    if (found->code == ERR_NOMEM)
        err_copy(l->e, found);
    else
        lint_add(l, id, where, "%s", found->text);
}

bool lint_has_error(const struct lint *l, const char *where)
{
    const struct lint_report *r = l->report;

    for (size_t i = 0; i < r->n; i++)
        if (r->v[i].rule->severity == LINT_ERROR && r->v[i].where &&
            !strncmp(r->v[i].where, where, strlen(where)))
            return true;
    return false;
}

/* ---- walks ---- */

struct lint_model *lint_next_part(struct lint *l, int *at)
{
    while (*at < LINT_MAX_CHUNKS + 3) {
        int i = (*at)++;
        struct lint_model *m = i == 0                     ? l->embeddings
                               : i <= LINT_MAX_CHUNKS     ? l->chunk[i - 1]
                               : i == LINT_MAX_CHUNKS + 1 ? l->head
                                                          : l->whole;

        if (m && m->pkg)
            return m;
    }
    return NULL;
}

const struct mil_value *lint_input(const struct mil_function *f,
                                   const char *name)
{
    return mil_value_among(f, f->inputs, f->n_inputs, name);
}

const struct mil_value *lint_output(const struct mil_function *f,
                                    const char *name)
{
    return mil_value_among(f, f->outputs, f->n_outputs, name);
}

/* ---- the whole ---- */

static bool is_model(const char *name)
{
    size_t n = strlen(name);

    return (n > 10 && !strcmp(name + n - 10, ".mlpackage")) ||
           (n > 9 && !strcmp(name + n - 9, ".mlmodelc"));
}

int lint_is_package(const char *dir, bool *yes, struct err *e)
{
    char **names;
    size_t n;

    *yes = false;
    if (!io_is_dir(dir) || is_model(dir))
        return 0;
    if (io_list(dir, &names, &n, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], "meta.yaml") || is_model(names[i]))
            *yes = true;
    io_list_free(names, n);
    return 0;
}

static void release(struct lint *l)
{
    for (size_t i = 0; i < l->n_models; i++) {
        pkg_close(l->models[i].pkg);
        mem_free(l->models[i].stem);
        mem_free(l->models[i].name);
    }
    mem_free(l->models);
    if (l->meta.loaded)
        yaml_document_delete(&l->meta.doc);
    buf_release(&l->meta.text);
    io_list_free(l->names, l->n_names);
}

/* By severity, rule and place in the order of the checks. */
static int by_rank(const void *a, const void *b)
{
    const struct lint_finding *x = a, *y = b;

    if (x->rule->severity != y->rule->severity)
        return x->rule->severity < y->rule->severity ? 1 : -1;
    if (x->rule != y->rule)
        return x->rule < y->rule ? -1 : 1;
    if (strcmp(x->where, y->where) != 0)
        return strcmp(x->where, y->where);
    return strcmp(x->what, y->what);
}

int lint_package(const char *dir, struct lint_report *r, struct err *e)
{
    struct lint l = { .dir = dir, .report = r, .e = e };

    memset(r, 0, sizeof(*r));
    if (!io_list(dir, &l.names, &l.n_names, e) && !lint_meta_read(&l) &&
        !lint_files_find(&l) && !lint_models_open(&l)) {
        lint_meta_check(&l);
        lint_contract_check(&l);
        lint_states_check(&l);
        lint_layers_check(&l);
        lint_weights_check(&l);
        lint_program_check(&l);
        (void)(lint_files_check(&l) || lint_assets_check(&l));
    }
    release(&l);
    if (e->code) {
        lint_release(r);
        return err_in(e, "lint of '%s'", dir);
    }
    if (r->n)
        qsort(r->v, r->n, sizeof(*r->v), by_rank);
    return 0;
}

void lint_release(struct lint_report *r)
{
    for (size_t i = 0; i < r->n; i++) {
        mem_free(r->v[i].where);
        mem_free(r->v[i].what);
    }
    mem_free(r->v);
    memset(r, 0, sizeof(*r));
}

/* ---- printing ---- */

static size_t count_rules(const struct lint_report *r)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n; i++)
        n += !i || r->v[i].rule != r->v[i - 1].rule;
    return n;
}

static void counted(struct buf *out, const char *before, size_t n,
                    const char *what)
{
    buf_printf(out, "%s%zu %s%s", before, n, what, n == 1 ? "" : "s");
}

void lint_sum(const struct lint_report *r, const char *dir, struct buf *out)
{
    buf_printf(out, "%s", dir);
    counted(out, ": ", r->errors, "error");
    counted(out, ", ", r->warnings, "warning");
    counted(out, ", ", r->notes, "note");
    if (r->n) {
        counted(out, " (", r->n, "finding");
        counted(out, " of ", count_rules(r), "rule");
        buf_puts(out, ")");
    }
    buf_puts(out, "\n");
}

void lint_findings(const struct lint_report *r, enum lint_severity least,
                   struct buf *out)
{
    for (size_t i = 0; i < r->n && r->v[i].rule->severity >= least;) {
        const struct lint_rule *rule = r->v[i].rule;

        buf_printf(out, "%s %s: %s\n", lint_severity_name(rule->severity),
                   rule->id, rule->wrong);
        for (; i < r->n && r->v[i].rule == rule; i++)
            buf_printf(out, "  %s: %s\n", r->v[i].where, r->v[i].what);
        buf_printf(out, "  -> %s\n", rule->advice);
    }
}

void lint_text(const struct lint_report *r, const char *dir, struct buf *out)
{
    lint_findings(r, LINT_NOTE, out);
    lint_sum(r, dir, out);
}

void lint_json(const struct lint_report *r, struct js_writer *w,
               const char *key)
{
    js_w_object(w, key);
    js_w_uint(w, "schema", 1);
    js_w_string(w, "kind", "lint");
    js_w_uint(w, "errors", r->errors);
    js_w_uint(w, "warnings", r->warnings);
    js_w_uint(w, "notes", r->notes);
    js_w_uint(w, "rules", count_rules(r));
    js_w_array(w, "findings", false);
    for (size_t i = 0; i < r->n; i++) {
        const struct lint_finding *f = &r->v[i];

        js_w_object(w, NULL);
        js_w_string(w, "rule", f->rule->id);
        js_w_string(w, "severity", lint_severity_name(f->rule->severity));
        js_w_string(w, "topic", f->rule->topic);
        js_w_string(w, "where", f->where);
        js_w_string(w, "what", f->what);
        js_w_string(w, "advice", f->rule->advice);
        js_w_end(w);
    }
    js_w_end(w);
    js_w_end(w);
}

void lint_rules_text(struct buf *out)
{
    buf_puts(out, "| rule | severity | what is wrong | what to do |\n"
                  "|---|---|---|---|\n");
    for (size_t i = 0; i < LINT_RULES; i++)
        buf_printf(out, "| `%s` | %s | %s | %s |\n", rules[i].id,
                   lint_severity_name(rules[i].severity), rules[i].wrong,
                   rules[i].advice);
}
