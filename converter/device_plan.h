/*
 * The device plan: per operation, what the Neural Engine is known to refuse
 * or to compute badly. It is a list of what has been seen, not a compiler: an
 * operation that it does not name may still run elsewhere.
 */
#ifndef CONVERTER_DEVICE_PLAN_H
#define CONVERTER_DEVICE_PLAN_H

#include "converter/base/json.h"
#include "schema/package.h"

enum dev_effect { DEV_REFUSED, DEV_WRONG, DEV_SLOW, DEV_EDGE };
enum dev_known { DEV_MEASURED, DEV_REPORTED, DEV_INFERRED };
const char *dev_effect_name(enum dev_effect e); /* "refused", ... */
const char *dev_known_name(enum dev_known k);

enum dev_id {
#define ANE(id, effect, known, what, advice) DEV_ID_##id,
#include "converter/device_rules.def"
    DEV_RULES
};
struct dev_rule {
    const char *id;
    enum dev_effect effect;
    enum dev_known known;
    const char *what, *advice;
};
const struct dev_rule *dev_rule(enum dev_id id);

/* One finding: an operation, or op -1 for the function as a whole. */
struct dev_finding {
    enum dev_id rule;
    int op;
};
struct dev_plan { /* of one function */
    const struct mil_function *f;
    struct dev_finding *v;
    size_t n, cap;
    size_t ops; /* without constants */
    size_t by_rule[DEV_RULES], by_effect[DEV_EDGE + 1];
    size_t unknown; /* operations that are not known here */
};
int dev_plan(const struct mil_function *f, struct dev_plan *out,
             struct err *e) ATTR_MUST_USE;
void dev_plan_release(struct dev_plan *p);

/* The functions of one model file, for people and for machines. */
int dev_plan_text(const struct pkg *p, struct buf *out,
                  struct err *e) ATTR_MUST_USE;
int dev_plan_json(const struct pkg *p, struct js_writer *w,
                  struct err *e) ATTR_MUST_USE;

/* The table of rules in Markdown, as it stands in docs/LINT.md. */
void dev_rules_text(struct buf *out);

#endif
