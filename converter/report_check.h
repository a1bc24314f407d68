/*
 * report.json held against the files that it speaks of.
 */
#ifndef CONVERTER_REPORT_CHECK_H
#define CONVERTER_REPORT_CHECK_H

#include "converter/report.h"

struct report_check {
    struct report_file *report; /* not owned; NULL: nothing is said */
    const struct ckpt *ckpt;    /* names of tensors; NULL: by their ends */
    struct buf lines;           /* what differs */
};
/* A file of the package, and what its constants were found to add up to. */
struct report_part {
    const char *name;
    enum cv_kind kind;
    const char *method; /* by its metadata; NULL: not a file of ours */
    /* matrices: those that options and recipes are about. counted: of these,
     * what a budget is for. */
    struct report_sums all, matrices, counted;
    bool known;    /* sse of all of them */
    bool measured; /* energy too */
};
/* Finds the row of a constant; false: there is none, which is told where there
 * should be one. */
bool report_check_row(struct report_check *k, const struct report_part *part,
                      const struct stored *s, struct report_said *said);
/* A loss that was measured. */
void report_check_loss(struct report_check *k, const struct report_part *part,
                       const struct stored *s, const struct report_said *said,
                       const struct stored_loss *loss);
/* Adds a constant: its losses, and what its row says it was asked for. */
void report_check_add(struct report_part *part, const struct stored *s,
                      const struct report_said *said,
                      const struct stored_loss *loss);
/* All constants of a part are added: its sums. */
void report_check_part(struct report_check *k, const struct report_part *part);
/* All of `n` parts are: sums of the package, rows of no constant. */
void report_check_package(struct report_check *k, const struct report_part *all,
                          size_t n);

#endif
