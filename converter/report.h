/*
 * report.json of a package: a row for each constant that holds weights, with
 * what was asked for, what was written, and what it lost; sums of parts and
 * package. docs/WEIGHTS.md lists the keys.
 *
 * Rows come from the written files, opened again. A file that does not hold
 * what was promised is ERR_MISMATCH.
 */
#ifndef CONVERTER_REPORT_H
#define CONVERTER_REPORT_H

#include "converter/converter.h"
#include "converter/stored.h"

#define REPORT_NAME "report.json"

struct report;
/* Creates DIR/report.json, which grows with the parts. */
struct report *report_new(const struct cv_job *j, const char *dir,
                          struct err *e) ATTR_MUST_USE;
void report_free(struct report *r);
/* The next part, as it was written and as it was planned. */
int report_part(struct report *r, const struct cv_part *part,
                const struct pkg *written, const struct cv_program *planned,
                struct err *e) ATTR_MUST_USE;
/* All parts are there: the sums. */
int report_finish(struct report *r, struct err *e) ATTR_MUST_USE;

/* Why a constant that comes from a tensor is fp16 whatever the options say. */
const char *report_rule(const char *tensor);

/* What report.json of a package says of a constant. */
struct report_said {
    const char *part, *name, *tensor, *kind, *method, *rule; /* may be NULL */
    uint64_t weights, bits, group, value_bytes, table_bytes;
    double bits_per_weight, bits_requested; /* NAN: unknown */
    double sse, snr; /* NAN: unknown; INFINITY: nothing lost */
};
/* Reads DIR/report.json; hostile input. NULL without an error: there is
 * none. */
struct report_file;
struct report_file *report_open(const char *dir, struct err *e) ATTR_MUST_USE;
void report_close(struct report_file *f);
/* False: it has no row of that constant. */
bool report_find(const struct report_file *f, const char *part,
                 const char *name, struct report_said *out);
size_t report_rows(const struct report_file *f);

#endif
