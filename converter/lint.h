/*
 * The lint: is this directory a package that ANEMLL's runtimes load and run
 * as it was meant? Any ANEMLL package, ours or not, without a checkpoint.
 *
 * Rules stand in lint_rules.def, each with an id, a severity and a sentence
 * that says what to do. Nothing of a damaged package is an error of the lint
 * itself: it is a finding, and the checks that do not depend on it go on.
 * Weights are read only to compare the two forms of a part, where each has a
 * file of its own.
 */
#ifndef CONVERTER_LINT_H
#define CONVERTER_LINT_H

#include "converter/base/json.h"

enum lint_severity { LINT_NOTE, LINT_WARNING, LINT_ERROR };
const char *lint_severity_name(enum lint_severity s);

enum lint_id {
#define RULE(id, severity, topic, wrong, advice) LINT_ID_##id,
#include "converter/lint_rules.def"
    LINT_RULES
};
struct lint_rule {
    const char *id; /* "head_uneven" */
    enum lint_severity severity;
    const char *topic;  /* "meta", "files", ... */
    const char *wrong;  /* what is wrong */
    const char *advice; /* what to do */
};
const struct lint_rule *lint_rule(enum lint_id id);

struct lint_finding {
    const struct lint_rule *rule;
    char *where; /* file, or file and key; "." for the package */
    char *what;  /* what was found and what was expected */
};
/* Errors first, then warnings and notes; among equals in the order of the
 * rules, then of the checks. */
struct lint_report {
    struct lint_finding *v;
    size_t n, cap;
    size_t errors, warnings, notes;
};

/* Whether a directory is, or was meant to be, an ANEMLL package: it has a
 * meta.yaml or a model file. */
int lint_is_package(const char *dir, bool *yes, struct err *e) ATTR_MUST_USE;
/* Fails only where the system does: memory, a folder that cannot be listed. */
int lint_package(const char *dir, struct lint_report *r,
                 struct err *e) ATTR_MUST_USE;
void lint_release(struct lint_report *r);
/* For people: the findings of a severity and above, each under its rule. */
void lint_findings(const struct lint_report *r, enum lint_severity least,
                   struct buf *out);
/* All of them, then lint_sum. */
void lint_text(const struct lint_report *r, const char *dir, struct buf *out);
/* A line: "p: 1 error, 2 warnings, 0 notes (3 findings of 2 rules)". */
void lint_sum(const struct lint_report *r, const char *dir, struct buf *out);
/* {"schema", "kind": "lint", "errors", "warnings", "notes", "rules",
 * "findings"}; rules: how many of them the findings are of. */
void lint_json(const struct lint_report *r, struct js_writer *w,
               const char *key);

/* The table of rules in Markdown, as it stands in docs/LINT.md. */
void lint_rules_text(struct buf *out);

#endif
