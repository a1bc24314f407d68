/*
 * Widths of single matrices: chosen under a budget of bits.
 */
#ifndef CONVERTER_BUDGET_PRIV_H
#define CONVERTER_BUDGET_PRIV_H

#include "converter/converter.h"

/* The width of one tensor, in the checkpoint's canonical name. */
struct cv_choice {
    char tensor[128];
    int bits;
};
struct cv_choices {
    struct cv_choice *items;
    size_t n, cap;
};
/* What recipe, choices and the part's option, in this order, make of a
 * tensor. */
struct cv_lut cv_width(const struct cv_job *j, const struct cv_part *part,
                       const char *tensor, bool *pinned);
/* Whether any widths can give the budget; reads no weight. */
int cv_check_budget(struct cv_job *j, struct err *e) ATTR_MUST_USE;
/* Measures every matrix at every width and chooses; then plans anew. */
int cv_choose_widths(struct cv_job *j, struct err *e) ATTR_MUST_USE;
/* plan.c: parts, names and sizes for the widths chosen. */
int cv_plan_again(struct cv_job *j, struct err *e) ATTR_MUST_USE;

#endif
