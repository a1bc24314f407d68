/*
 * Differences between report.json and files, a line each.
 */
#include "converter/report_check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- rows ---- */

static void number(struct report_check *k, const char *part, const char *name,
                   const char *what, double said, double found)
{
    buf_printf(&k->lines,
               "%s, '%s': " REPORT_NAME " says %.9g %s, found %.9g\n", part,
               name, said, what, found);
}

static void count(struct report_check *k, const char *part, const char *name,
                  const char *what, uint64_t said, uint64_t found)
{
    if (said != found)
        number(k, part, name, what, (double)said, (double)found);
}

/* Sums of the same numbers, printed exactly. */
static void about(struct report_check *k, const char *part, const char *name,
                  const char *what, double said, double found)
{
    if (!(fabs(said - found) <= 1e-6 * fabs(found)))
        number(k, part, name, what, said, found);
}

static void word(struct report_check *k, const char *part, const char *name,
                 const char *said, const char *found)
{
    if (!said || strcmp(said, found) != 0)
        buf_printf(&k->lines,
                   "%s, '%s': " REPORT_NAME " says '%.120s', found '%s'\n",
                   part, name, said ? said : "", found);
}

/* Segments of the canonical name stand in that of the checkpoint, the last one
 * last: wrappers may stand in front of and between them. */
static bool is_named(const char *told, const char *canonical)
{
    const char *t = told, *c = canonical;

    for (;;) {
        size_t n = strcspn(t, "."), m = strcspn(c, ".");
        bool same = n == m && !memcmp(t, c, n);

        if (!t[n] || (same && !c[m]))
            return same && !t[n] && !c[m];
        t += n + 1;
        c += same ? m + 1 : 0;
    }
}

static void check_tensor(struct report_check *k, const char *part,
                         const struct stored *s, const char *told)
{
    const char *tied = "embed_tokens.weight";

    if (k->ckpt)
        word(k, part, s->name, told, report_tensor(k->ckpt, s->tensor));
    else if (!told ||
             !(is_named(told, s->tensor) ||
               (!strcmp(s->tensor, "lm_head.weight") && is_named(told, tied))))
        word(k, part, s->name, told, s->tensor);
}

/* What stays fp16 by the rule of its name is no matter of options. */
static bool rule_fits(const char *rule, const char *tensor)
{
    const char *by_name = report_rule(tensor);

    return !strcmp(rule, by_name) ||
           (!strcmp(by_name, report_rule("")) &&
            (!strcmp(rule, "option") || !strcmp(rule, "recipe")));
}

/* A method or a rule, never both. */
static void check_method(struct report_check *k, const struct report_part *part,
                         const struct stored *s, const struct report_said *said)
{
    const char *rule = said->rule, *method = part->method;

    if (s->form == STORED_INTEGERS &&
        !strcmp(method, cv_method_name(CV_KMEANS)))
        method = "nearest";
    if (s->form != STORED_PLAIN)
        word(k, part->name, s->name, rule ? rule : said->method, method);
    else if (said->method || !rule || !rule_fits(rule, s->tensor))
        word(k, part->name, s->name, said->method ? said->method : rule,
             report_rule(s->tensor));
}

static void check_shape(struct report_check *k, const char *part,
                        const struct stored *s, const struct report_said *said)
{
    int i = 0;

    while (i < s->type.rank && said->shape[i] == (uint64_t)s->type.dims[i])
        i++;
    if (i < s->type.rank || (i < MIL_MAX_RANK && said->shape[i] != UINT64_MAX))
        buf_printf(&k->lines,
                   "%s, '%s': axis %d of its shape in " REPORT_NAME
                   " is another\n",
                   part, s->name, i);
}

static void compare_row(struct report_check *k, const struct report_part *part,
                        const struct stored *s, const struct report_said *said)
{
    word(k, part->name, s->name, said->kind, stored_form_name(s->form));
    check_shape(k, part->name, s, said);
    count(k, part->name, s->name, "weights", said->sums.weights, s->weights);
    about(k, part->name, s->name, "bits per weight", said->sums.bits_per_weight,
          stored_bits(s));
    count(k, part->name, s->name, "bits", said->bits, (uint64_t)s->bits);
    count(k, part->name, s->name, "channels to a table or scale", said->group,
          s->group);
    count(k, part->name, s->name, "bytes of values", said->sums.value_bytes,
          s->value_bytes);
    count(k, part->name, s->name, "bytes of tables", said->sums.table_bytes,
          s->table_bytes);
    if (!isfinite(said->sums.sse))
        buf_printf(&k->lines,
                   "%s, '%s': " REPORT_NAME " says no squared error\n",
                   part->name, s->name);
    if (!s->tensor)
        return;
    check_tensor(k, part->name, s, said->tensor);
    check_method(k, part, s, said);
}

bool report_check_row(struct report_check *k, const struct report_part *part,
                      const struct stored *s, struct report_said *said)
{
    if (!k->report)
        return false;
    if (report_find(k->report, part->name, s->name, said)) {
        compare_row(k, part, s, said);
        return true;
    }
    if (s->tensor)
        buf_printf(&k->lines, "%s, '%s': " REPORT_NAME " has no row of it\n",
                   part->name, s->name);
    return false;
}

static void check_sse(struct report_check *k, const char *part,
                      const char *name, double said,
                      const struct stored_loss *loss)
{
    if (!(fabs(said - loss->sse) <= 1e-6 * loss->sse + 1e-15 * loss->energy))
        number(k, part, name, "of squared error", said, loss->sse);
}

static void check_snr(struct report_check *k, const char *part,
                      const char *name, double said,
                      const struct stored_loss *loss)
{
    /* To a hundredth, rounded twice. */
    if (isfinite(said) && !(fabs(said - stored_snr(loss)) < 0.0151))
        number(k, part, name, "dB", said, stored_snr(loss));
}

void report_check_loss(struct report_check *k, const struct report_part *part,
                       const struct stored *s, const struct report_said *said,
                       const struct stored_loss *loss)
{
    if (isfinite(said->sums.sse)) /* else it was told */
        check_sse(k, part->name, s->name, said->sums.sse, loss);
    check_snr(k, part->name, s->name, said->sums.snr, loss);
}

/* ---- sums ---- */

void report_check_add(struct report_part *part, const struct stored *s,
                      const struct report_said *said,
                      const struct stored_loss *loss)
{
    const struct report_sums one = { .weights = s->weights,
                                     .value_bytes = s->value_bytes,
                                     .table_bytes = s->table_bytes,
                                     .asked = said ? said->sums.bits_requested *
                                                         (double)s->weights
                                                   : (double)NAN,
                                     .loss = *loss };
    const char *rule = said && said->rule ? said->rule : "";
    bool recipe = !strcmp(rule, "recipe"), stored = s->form != STORED_PLAIN;

    report_join(&part->all, &one);
    if (stored || recipe || !strcmp(rule, "option"))
        report_join(&part->matrices, &one);
    if (part->kind != CV_EMBEDDINGS && (stored || recipe))
        report_join(&part->counted, &one);
}

static void compare_sums(struct report_check *k, const struct report_part *part,
                         const char *name, const struct report_said_sums *said,
                         const struct report_sums *found)
{
    count(k, part->name, name, "weights", said->weights, found->weights);
    count(k, part->name, name, "bytes of values", said->value_bytes,
          found->value_bytes);
    count(k, part->name, name, "bytes of tables", said->table_bytes,
          found->table_bytes);
    about(k, part->name, name, "bits per weight", said->bits_per_weight,
          report_bits(found));
    about(k, part->name, name, "bits per weight requested",
          said->bits_requested, report_bits_asked(found));
    if (part->known)
        check_sse(k, part->name, name, said->sse, &found->loss);
    if (part->measured)
        check_snr(k, part->name, name, said->snr, &found->loss);
}

static void compare_total(struct report_check *k,
                          const struct report_part *part,
                          const struct report_said_total *said)
{
    count(k, part->name, "all", "bytes of weight files", said->file_bytes,
          part->all.file_bytes);
    compare_sums(k, part, "all", &said->all, &part->all);
    compare_sums(k, part, "matrices", &said->matrices, &part->matrices);
}

void report_check_part(struct report_check *k, const struct report_part *part)
{
    struct report_said_total said;

    if (!k->report || !part->method)
        return;
    if (!report_total(k->report, part->name, &said)) {
        buf_printf(&k->lines, "%s: " REPORT_NAME " has no sums of it\n",
                   part->name);
        return;
    }
    word(k, part->name, "kind", said.kind, report_kind(part->kind));
    compare_total(k, part, &said);
}

static void unknown_rows(struct report_check *k)
{
    struct report_said said;

    for (size_t i = 0; i < report_rows(k->report); i++)
        if (!report_row(k->report, i, &said))
            buf_printf(&k->lines,
                       "%.120s, '%.120s': " REPORT_NAME " has row %zu of it, "
                       "the files have no constant left for it\n",
                       said.part ? said.part : "?", said.name ? said.name : "?",
                       i + 1);
}

static void compare_budget(struct report_check *k,
                           const struct report_part *all)
{
    double requested, achieved, found = report_bits(&all->counted);

    if (!report_budget(k->report, &requested, &achieved))
        return;
    about(k, all->name, "budget", "bits per weight", achieved, found);
    if (!(found <= requested))
        buf_printf(&k->lines,
                   "%s, 'budget': " REPORT_NAME " says %.9g bits per weight "
                   "were requested, found %.9g\n",
                   all->name, requested, found);
}

void report_check_package(struct report_check *k, const struct report_part *all,
                          size_t n)
{
    struct report_said_total said;

    if (!k->report)
        return;
    unknown_rows(k);
    if (!all->method)
        return;
    if (report_parts(k->report) != n)
        buf_printf(&k->lines,
                   "%s: " REPORT_NAME " has sums of %zu parts, found %zu\n",
                   all->name, report_parts(k->report), n);
    if (report_total(k->report, NULL, &said))
        compare_total(k, all, &said);
    else
        buf_printf(&k->lines, "%s: " REPORT_NAME " has no sums of it\n",
                   all->name);
    compare_budget(k, all);
}
